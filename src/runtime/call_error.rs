//! The cause of a failed call of an engine's program, and its meaning.
//!
//! The words of an engine are searched here only, once for each call, in what the engine wrote. The
//! call itself has options and names of users, which may be any words, and is never searched.
//!
//! Thread: none, plain values.

use super::ContainerId;
use crate::limits::ENGINE_REASON_MAX;
use std::fmt::{self, Display, Formatter};

/// Digits of a container id.
pub(crate) const ID_DIGITS: usize = 64;

/// The meaning of a failed call, which decides the next step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ErrorMeaning {
    /// The call failed; nothing else is known.
    #[default]
    Failure,
    /// The container does not exist.
    NoSuchContainer,
    /// The volume does not exist.
    NoSuchVolume,
    /// The pod does not exist.
    NoSuchPod,
    /// The image does not exist.
    NoSuchImage,
    /// The container is paused.
    Paused,
    /// The engine does not know the option `--pidfile`: a remote client for example.
    NoPidFileOption,
    /// The engine does not know another option.
    UnknownOption,
    /// The name of the container is in use by the container with this id.
    NameInUse(ContainerId),
}

/// Reads the error output of a failed call.
pub(crate) type ReadMeaning = fn(&str) -> ErrorMeaning;

/// A failed call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallError {
    /// The error output of the engine, at most 4 KiB, or our own description.
    pub text: String,
    /// The command as users see it; `None` when no program was involved.
    pub call: Option<String>,
    /// The exit status, when the program ended by itself.
    pub code: Option<i32>,
    /// Its meaning, read from the text.
    pub meaning: ErrorMeaning,
}

impl CallError {
    /// An error that we found ourselves in a call.
    pub(crate) fn in_call(text: String, call: String) -> Self {
        Self {
            text,
            call: Some(call),
            ..Self::default()
        }
    }
}

/// An error without a call of an engine.
impl From<String> for CallError {
    fn from(text: String) -> Self {
        Self {
            text,
            ..Self::default()
        }
    }
}

impl From<&str> for CallError {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl Display for CallError {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)?;
        match &self.call {
            Some(call) => write!(formatter, ". Execution of {call}"),
            None => Ok(()),
        }
    }
}

/// Returns what podman means by its error output.
pub(crate) fn meaning_of_podman(text: &str) -> ErrorMeaning {
    let line = error_line(text);
    if let Some(unknown) = unknown_option(line.strip_prefix("Error: ").unwrap_or(line)) {
        return unknown;
    }
    if let Some((_, id)) = text.split_once("is already in use by ")
        && let Some(id) = id.get(..ID_DIGITS)
        && id.bytes().all(|digit| digit.is_ascii_hexdigit())
    {
        return ErrorMeaning::NameInUse(ContainerId(id.into()));
    }
    if text.contains("no such pod") {
        return ErrorMeaning::NoSuchPod;
    }
    if text.contains("no such volume") {
        return ErrorMeaning::NoSuchVolume;
    }
    meaning_for_container(text)
}

/// Returns what nerdctl means by its error output.
pub(crate) fn meaning_of_nerdctl(text: &str) -> ErrorMeaning {
    let line = error_line(text);
    let message = match line.split_once("msg=\"") {
        Some((_, message)) => message,
        None => line,
    };
    match unknown_option(message) {
        Some(unknown) => unknown,
        None => meaning_for_container(text),
    }
}

/// Recognises an error about an unknown option. Both engines use the same library for their command
/// lines, so its text is the same.
fn unknown_option(message: &str) -> Option<ErrorMeaning> {
    if message.starts_with("unknown shorthand flag: ") {
        return Some(ErrorMeaning::UnknownOption);
    }
    let option = message.strip_prefix("unknown flag: ")?;
    if option.starts_with("--pidfile") {
        return Some(ErrorMeaning::NoPidFileOption);
    }
    Some(ErrorMeaning::UnknownOption)
}

/// The meaning of an error output, by words that both engines use.
fn meaning_for_container(text: &str) -> ErrorMeaning {
    let text = text.to_ascii_lowercase();
    if text.contains("no such container") {
        return ErrorMeaning::NoSuchContainer;
    }
    // `paused` must be a word of its own, since a path may contain it. The quote at its end may be
    // that of a whole message. A name in quotes also has one at its beginning, so it differs.
    let end_of_word = ['.', ',', ':', ';', '"'];
    for word in text.split_ascii_whitespace() {
        if word.trim_end_matches(end_of_word) == "paused" {
            return ErrorMeaning::Paused;
        }
    }
    if text.contains("image not known") || text.contains("no such image") {
        return ErrorMeaning::NoSuchImage;
    }
    ErrorMeaning::Failure
}

/// Returns whether a line looks like the error with which podman or nerdctl ends.
pub(crate) fn may_be_of_engine(line: &str) -> bool {
    line.starts_with("Error: ") || (line.starts_with("time=\"") && line.contains(" level=fatal "))
}

/// The line of an error output that has the cause: the last one that begins with `Error:`, since
/// podman may write a hint after it. Without one it is the last line.
fn error_line(text: &str) -> &str {
    let mut last = "";
    for line in text.lines().rev().map(str::trim) {
        if line.starts_with("Error:") {
            return line;
        }
        if last.is_empty() {
            last = line;
        }
    }
    last
}

/// The line with the cause in the text of an error, at most [`ENGINE_REASON_MAX`] bytes. If the
/// text mentions want of space anywhere, that comes first: it explains any other cause.
pub(crate) fn reason(text: &str) -> String {
    let mut reason = error_line(text).to_owned();
    if reason.len() > ENGINE_REASON_MAX {
        // The middle is left out: the cause may be at the very end.
        let half = ENGINE_REASON_MAX / 2 - 2;
        let begin = reason.floor_char_boundary(half);
        let end = reason.ceil_char_boundary(reason.len() - half);
        reason.replace_range(begin..end, "...");
    }
    match want_of_space(text) {
        Some(want) if want_of_space(&reason).is_none() => format!("{want}: {reason}"),
        _ => reason,
    }
}

/// The words for a full disk or a used up quota in a text of an engine.
fn want_of_space(text: &str) -> Option<&'static str> {
    let text = text.to_ascii_lowercase();
    let causes = ["no space left on device", "disk quota exceeded"];
    causes.into_iter().find(|cause| text.contains(cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_podman_have_one_meaning() {
        let id = "1f".repeat(ID_DIGITS / 2);
        let in_use = format!("Error: the container name \"web\" is already in use by {id}. Remove");
        let paused = "Error: can only stop created or running containers. 1f is in state paused: \
                      container state improper";
        for (text, meaning) in [
            (&*in_use, ErrorMeaning::NameInUse(ContainerId((*id).into()))),
            ("is already in use by web", ErrorMeaning::Failure),
            (
                "Error: unknown flag: --x\nSee 'podman create --help'",
                ErrorMeaning::UnknownOption,
            ),
            (
                "Error: unknown shorthand flag: 'x' in -x",
                ErrorMeaning::UnknownOption,
            ),
            (
                "Error: unknown flag: --pidfile",
                ErrorMeaning::NoPidFileOption,
            ),
            (
                "Error: invalid annotation \"unknown flag: --pidfile\"",
                ErrorMeaning::Failure,
            ),
            (
                "Error: no container with name or ID \"web\" found: no such container",
                ErrorMeaning::NoSuchContainer,
            ),
            (
                "Error: inspecting object: no such volume web.config",
                ErrorMeaning::NoSuchVolume,
            ),
            (
                "Error: no pod with name or ID web found: no such pod",
                ErrorMeaning::NoSuchPod,
            ),
            ("Error: 1f: image not known", ErrorMeaning::NoSuchImage),
            (
                "Error: 1f is running or paused, refusing to clean up",
                ErrorMeaning::Paused,
            ),
            (paused, ErrorMeaning::Paused),
            (
                "Error: \"paused\" and /run/paused.1/x",
                ErrorMeaning::Failure,
            ),
            ("", ErrorMeaning::Failure),
        ] {
            assert_eq!(meaning_of_podman(text), meaning, "{text}");
        }
    }

    #[test]
    fn words_of_nerdctl_have_one_meaning() {
        for (text, meaning) in [
            (
                "time=\"2026\" level=fatal msg=\"unknown flag: --x\"",
                ErrorMeaning::UnknownOption,
            ),
            (
                "level=fatal msg=\"unknown flag: --pidfile\"",
                ErrorMeaning::NoPidFileOption,
            ),
            (
                "level=fatal msg=\"No such image: x\"",
                ErrorMeaning::NoSuchImage,
            ),
            (
                "level=fatal msg=\"No such container: x\"",
                ErrorMeaning::NoSuchContainer,
            ),
            (
                "level=fatal msg=\"container is paused\"",
                ErrorMeaning::Paused,
            ),
            ("level=fatal msg=\"no such volume\"", ErrorMeaning::Failure),
        ] {
            assert_eq!(meaning_of_nerdctl(text), meaning, "{text}");
        }
    }

    #[test]
    fn reason_of_a_failure_is_the_last_error_of_the_engine() {
        let long = format!("Error: {}", "\u{fc}".repeat(ENGINE_REASON_MAX));
        let lookup = format!("Error: {}: no such host", "x".repeat(ENGINE_REASON_MAX));
        let cut = format!(
            "Error: {}...{}: no such host",
            "x".repeat(91),
            "x".repeat(84)
        );
        let wide = format!("Error: {}...{}", "\u{fc}".repeat(45), "\u{fc}".repeat(49));
        for (text, expected) in [
            ("warning\nError: no such image\n\n", "Error: no such image"),
            (
                "Error: unknown flag: --x\nSee 'podman create --help'",
                "Error: unknown flag: --x",
            ),
            ("one line", "one line"),
            (
                "level=error msg=\"write .pid: No space left on device\"\nError: EOF",
                "no space left on device: Error: EOF",
            ),
            (
                "Error: write /x: disk quota exceeded",
                "Error: write /x: disk quota exceeded",
            ),
            (&lookup, &cut),
            (&long, &wide),
            ("", ""),
        ] {
            assert_eq!(reason(text), expected);
        }
    }
}
