//! Masks secrets of users in the calls of engines, for logs and states.
//!
//! The text of a failed call is in the log and in the state of its workload, which many clients may
//! read. A list of all options with secrets, also of later engines, is impossible. So the shape
//! decides: only the name of a `NAME=value` is shown, no argument of the workload itself, and no
//! password of an address or image.
//!
//! Thread: none, plain values.

use ankaios_model::shown_text::{MASK, password_in, without_passwords};

/// Options whose whole value may be a secret, also without a name.
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

/// Arguments of a call, and their masked form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MaskedArguments {
    pub given: Vec<String>,
    pub(crate) shown: Vec<String>,
    /// The values that are not shown.
    pub(crate) hidden: Vec<String>,
}

/// Our own arguments, which may be shown.
impl<T: AsRef<str>, const N: usize> From<[T; N]> for MaskedArguments {
    fn from(texts: [T; N]) -> Self {
        Self::default().plain(&texts)
    }
}

impl MaskedArguments {
    /// Arguments that are shown in another way.
    pub(crate) fn shown_as(given: &[&str], shown: &[&str]) -> Self {
        Self {
            given: strings(given),
            shown: strings(shown),
            hidden: Vec::new(),
        }
    }

    /// Appends our own arguments.
    pub(crate) fn plain(mut self, texts: &[impl AsRef<str>]) -> Self {
        self.given.extend(strings(texts));
        self.shown.extend(strings(texts));
        self
    }

    /// Appends options of a user.
    pub(crate) fn options(mut self, options: &[impl AsRef<str>]) -> Self {
        let mut is_value_of_secret = false;
        for option in options {
            let option = option.as_ref();
            let value_at = start_of_hidden(option, is_value_of_secret);
            is_value_of_secret = SECRET_OPTIONS.contains(&option);
            let Some(value_at) = value_at else {
                self = self.address(option); // It is shown, except for a password in it.
                continue;
            };
            self.given.push(option.to_owned());
            self.shown.push(format!("{}{MASK}", &option[..value_at]));
            let value = &option[value_at..];
            self.hidden.push(value.to_owned());
            // An engine may repeat only the password.
            if let Some(password) = password_in(value) {
                self.hidden.push(value[password].to_owned());
            }
        }
        self
    }

    /// Appends a text that may be an address or an image, of which only a password is hidden.
    pub(crate) fn address(mut self, text: &str) -> Self {
        self.given.push(text.to_owned());
        match password_in(text) {
            Some(password) => {
                let before = &text[..password.start];
                let after = &text[password.end..];
                self.shown.push(format!("{before}{MASK}{after}"));
                self.hidden.push(text[password].to_owned());
            }
            None => self.shown.push(text.to_owned()),
        }
        self
    }

    /// Appends the command of a container, which may hold any secret.
    pub(crate) fn command(mut self, texts: &[impl AsRef<str>]) -> Self {
        for text in texts {
            self.given.push(text.as_ref().to_owned());
            self.shown.push(MASK.to_owned());
        }
        self
    }

    /// Masks each hidden value that an engine repeats, and passwords in addresses.
    pub(crate) fn mask(hidden: &[String], mut text: String) -> String {
        let mut values: Vec<&str> = hidden.iter().map(String::as_str).collect();
        values.retain(|value| value.len() >= MASKED_MIN);
        // The longest first: one may be the beginning of another.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        for value in values {
            text = text.replace(value, MASK);
        }
        without_passwords(&text)
    }
}

/// Shortest hidden value, in bytes, that is masked in output of an engine: shorter ones are parts
/// of ordinary words.
const MASKED_MIN: usize = 4;

fn strings(texts: &[impl AsRef<str>]) -> Vec<String> {
    texts.iter().map(|text| text.as_ref().to_owned()).collect()
}

/// The index of the hidden value in an option; `None` if the whole option may be shown.
fn start_of_hidden(option: &str, is_value_of_secret: bool) -> Option<usize> {
    if is_value_of_secret {
        return Some(0);
    }
    let first = option.find('=')?;
    // `NAME=value` is the value of an option before it.
    if !option.starts_with("--") || SECRET_OPTIONS.contains(&&option[..first]) {
        return Some(first + 1);
    }
    // `--option=value` is shown, `--option=NAME=value` up to the second `=`.
    let second = option[first + 1..].find('=')?;
    Some(first + second + 2)
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
                MaskedArguments::default().options(&options).shown,
                shown,
                "{options:?}"
            );
        }
    }

    #[test]
    fn hidden_values_are_not_shown_where_an_engine_repeats_them() {
        let options = ["--env=A=word", "--env=B=wordlong", "--env=C=80"].map(str::to_owned);
        let masked = MaskedArguments::default().options(&options);
        assert_eq!(masked.hidden, ["word", "wordlong", "80"]);
        assert_eq!(
            MaskedArguments::mask(&masked.hidden, "no wordlong, no word, 80".to_owned()),
            "no ***, no ***, 80"
        );
    }

    #[test]
    fn password_in_an_address_repeated_by_an_engine_is_masked() {
        let options = [
            "--env=PROXY=http://user:pass/word@host",
            "--proxy=http://u:other@host",
            "u:pw@host",
        ];
        let masked = MaskedArguments::default().options(&options);
        assert_eq!(
            masked.shown,
            ["--env=PROXY=***", "--proxy=http://u:***@host", "u:***@host"]
        );
        let said = "user 'user' with 'pass/word' and other, u:pw@host, https://a:b@c".to_owned();
        let shown = "user 'user' with '***' and ***, u:***@host, https://a:***@c";
        assert_eq!(MaskedArguments::mask(&masked.hidden, said), shown);
    }
}
