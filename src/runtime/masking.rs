//! Calls of engines as they may be shown: without what users may keep secret in the options and
//! arguments of containers.
//!
//! The text of a failed call is in the log and in the state of its workload, which everybody reads
//! who may read states. Nobody can list all options that may hold a secret, now and of later
//! engines. So the rule is one of shape: of `NAME=value` only the name is shown, wherever it
//! stands, of the arguments of the workload itself nothing, and of an address or an image no
//! password.
//!
//! Thread: none, plain values.

use ankaios_model::shown_text::{MASK, password_in, without_passwords};

/// Options whose whole value may be a secret, also when it has no name.
const SECRET_OPTIONS: [&str; 10] = [
    "--creds",
    "--decryption-key",
    "--entrypoint",
    "--group-entry",
    "--health-cmd",
    "--health-startup-cmd",
    "--passwd-entry",
    "--password",
    "--secret",
    "--url",
];

/// Arguments of a call, and how they may be shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arguments {
    pub given: Vec<String>,
    pub(crate) shown: Vec<String>,
    /// The values that are not shown.
    pub(crate) hidden: Vec<String>,
}

/// Arguments of ours, which may be shown.
impl<T: AsRef<str>, const N: usize> From<[T; N]> for Arguments {
    fn from(texts: [T; N]) -> Self {
        Self::default().plain(&texts)
    }
}

impl Arguments {
    /// Arguments that are shown in another way.
    pub(crate) fn shown_as(given: &[&str], shown: &[&str]) -> Self {
        Self {
            given: strings(given),
            shown: strings(shown),
            hidden: Vec::new(),
        }
    }

    /// Appends arguments of ours.
    pub(crate) fn plain(mut self, texts: &[impl AsRef<str>]) -> Self {
        self.given.extend(strings(texts));
        self.shown.extend(strings(texts));
        self
    }

    /// Appends options of a user.
    pub(crate) fn options(mut self, options: &[impl AsRef<str>]) -> Self {
        let mut value_of_secret = false;
        for option in options.iter().map(AsRef::as_ref) {
            let name_end = name_length(option, value_of_secret);
            value_of_secret = SECRET_OPTIONS.contains(&option);
            let Some(end) = name_end else {
                self = self.address(option);
                continue;
            };
            self.given.push(option.to_owned());
            self.shown.push(format!("{}{MASK}", &option[..end]));
            self.hidden.push(option[end..].to_owned());
            // An engine may repeat only this part of it.
            self.hidden.extend(
                password_in(&option[end..]).map(|password| option[end..][password].to_owned()),
            );
        }
        self
    }

    /// Appends what may be an address or an image, of which only a password is hidden.
    pub(crate) fn address(mut self, text: &str) -> Self {
        self.given.push(text.to_owned());
        match password_in(text) {
            Some(password) => {
                self.shown.push(format!(
                    "{}{MASK}{}",
                    &text[..password.start],
                    &text[password.end..]
                ));
                self.hidden.push(text[password].to_owned());
            }
            None => self.shown.push(text.to_owned()),
        }
        self
    }

    /// Appends what a container executes, which may hold anything.
    pub(crate) fn command(mut self, texts: &[impl AsRef<str>]) -> Self {
        self.given.extend(strings(texts));
        self.shown.extend(texts.iter().map(|_| MASK.to_owned()));
        self
    }

    /// Puts the mask in the place of each hidden value that an engine repeats, and of passwords in
    /// addresses. Short values stay: they are parts of words.
    pub(crate) fn mask(hidden: &[String], text: String) -> String {
        // A secret of fewer bytes is not masked in output of an engine: it would be found in the
        // middle of words.
        let long_enough = hidden.iter().filter(|value| value.len() >= 4);
        let mut values: Vec<&String> = long_enough.collect();
        // One may be the beginning of another.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        let text = values
            .into_iter()
            .fold(text, |text, value| text.replace(value.as_str(), MASK));
        without_passwords(&text)
    }
}

/// Owned arguments.
fn strings(texts: &[impl AsRef<str>]) -> Vec<String> {
    texts.iter().map(|text| text.as_ref().to_owned()).collect()
}

/// How many bytes of an option are shown; `None` when all of it is.
fn name_length(option: &str, is_value_of_secret: bool) -> Option<usize> {
    if is_value_of_secret {
        return Some(0);
    }
    let first = option.find('=')?;
    if !option.starts_with("--") || SECRET_OPTIONS.contains(&&option[..first]) {
        return Some(first + 1);
    }
    // `--option=value` is shown, of `--option=NAME=value` the name.
    option[first + 1..]
        .find('=')
        .map(|second| first + second + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_a_name_and_those_of_secret_options_are_not_shown() {
        for (options, shown) in [
            (
                &["--env", "PASSWORD=x=y"][..],
                &["--env", "PASSWORD=***"][..],
            ),
            (&["--env=PASSWORD=x"], &["--env=PASSWORD=***"]),
            (&["-e", "PASSWORD=x"], &["-e", "PASSWORD=***"]),
            (&["-ePASSWORD=x"], &["-ePASSWORD=***"]),
            (&["-e=PASSWORD=x"], &["-e=***"]),
            (&["-ite", "PASSWORD=a\nb=c"], &["-ite", "PASSWORD=***"]),
            (&["--evn", "PASSWORD=x"], &["--evn", "PASSWORD=***"]),
            (
                &["--annotation=a=b", "--build-arg", "a=b"],
                &["--annotation=a=***", "--build-arg", "a=***"],
            ),
            (
                &["--secret", "name", "--net=host"],
                &["--secret", "***", "--net=host"],
            ),
            (&["--secret=name,type=env", "x"], &["--secret=***", "x"]),
            (
                &["--creds=user:word", "--creds", "user:word"],
                &["--creds=***", "--creds", "***"],
            ),
            (
                &["--env", "HOME", "-p", "80:80", "-it"],
                &["--env", "HOME", "-p", "80:80", "-it"],
            ),
            (
                &["--env=", "--env=A=", "="],
                &["--env=", "--env=A=***", "=***"],
            ),
            (&["--secret"], &["--secret"]),
            (
                &["--proxy=http://u:word@host", "ssh://u:word@host/run"],
                &["--proxy=http://u:***@host", "ssh://u:***@host/run"],
            ),
        ] {
            let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
            assert_eq!(
                Arguments::default().options(&options).shown,
                shown,
                "{options:?}"
            );
        }
    }

    #[test]
    fn hidden_values_are_not_shown_where_an_engine_repeats_them() {
        let options = ["--env=A=word", "--env=B=wordlong", "--env=C=80"].map(str::to_owned);
        let masked = Arguments::default().options(&options);
        assert_eq!(masked.hidden, ["word", "wordlong", "80"]);
        assert_eq!(
            Arguments::mask(&masked.hidden, "no wordlong, no word, 80".to_owned()),
            "no ***, no ***, 80"
        );
    }

    #[test]
    fn a_password_in_an_address_is_not_shown_where_an_engine_repeats_it() {
        let options = [
            "--env=PROXY=http://user:pass/word@host",
            "--proxy=http://u:other@host",
            "u:pw@host",
        ];
        let masked = Arguments::default().options(&options);
        assert_eq!(
            masked.shown,
            ["--env=PROXY=***", "--proxy=http://u:***@host", "u:***@host"]
        );
        let said = "user 'user' with 'pass/word' and other, u:pw@host, https://a:b@c".to_owned();
        let shown = "user 'user' with '***' and ***, u:***@host, https://a:***@c";
        assert_eq!(Arguments::mask(&masked.hidden, said), shown);
    }
}
