//! What can go wrong in a command, the texts scripts look for, hints for people, and the exit codes.
//!
//! Thread: `main`. The texts are those of spec/cli.md sections 4, 6, 8 and 12.

use super::args::{Delete, Get, Run, Set, Verb};
use crate::model::version::VERSION;
use crate::wire::client::StreamEnd;
use std::io;
use std::time::Duration;

/// How `ank` ends (spec/cli.md section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitCode {
    /// Done.
    Success = 0,
    /// Something failed while the command ran.
    Failed = 1,
    /// The words of the command line or the environment mean nothing.
    Usage = 2,
    /// The update was accepted, but a workload failed; only with `--fail-on-error`.
    WorkloadFailed = 3,
    /// The update was accepted, but `--wait-timeout` passed before all workloads were there.
    GaveUp = 4,
}

/// Why a command ends without success.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// Settings or connection; the same text for all commands.
    #[error("{text}")]
    Start {
        /// What is wrong.
        text: String,
        /// What to do.
        hint: Option<String>,
    },
    /// No connection; the same text for all commands.
    #[error("Could not connect to Ankaios server on '{url}'.")]
    Unreachable {
        /// Where to.
        url: String,
        /// Why, and what to do.
        hint: String,
    },
    /// The command itself.
    #[error("Command failed: '{0}'")]
    Command(CommandError),
    /// The file of `set state` holds no complete state.
    #[error("Could not serialize YAML object: '{text}'")]
    StateFile {
        /// What is wrong.
        text: String,
        /// What to do.
        hint: String,
    },
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
}

/// Why a command failed after the settings were clear.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// No answer within the response timeout.
    #[error("Command timed out after '{0:?}'")]
    TimedOut(Duration),
    /// The connection ended while something was awaited.
    #[error("{phrase}")]
    Ended {
        /// The text for what was awaited.
        phrase: &'static str,
        /// How it ended.
        end: StreamEnd,
    },
    /// The server did not accept an update.
    #[error("SetState failed with: '{0}'")]
    Refused(String),
    /// The server answered with an error where a state was expected.
    #[error("Server replied with error: '{0}'")]
    Answer(String),
    /// The server refused a subscription, or ended it.
    #[error("Event subscription failed: '{0}'")]
    Subscription(String),
    /// The server ended the logs that it had accepted.
    #[error("Error streaming logs: '{0}'")]
    Logs(String),
    /// A signal asked to stop; not worth a message.
    #[error("interrupted")]
    Interrupted,
    /// The server answered with something else than what was asked for.
    #[error("Received an unexpected answer from the server")]
    Unexpected,
    /// An instance name in the answer to an update has not three parts.
    #[error("Could not parse UpdateStateSuccess message: '{0}'")]
    InstanceName(String),
    /// A manifest or state file, or what is in it.
    #[error("{text}")]
    Input {
        /// What is wrong, with the place.
        text: String,
        /// What to do.
        hint: String,
    },
}

impl From<CommandError> for CliError {
    fn from(error: CommandError) -> Self {
        // A refused version is no matter of the command that noticed it.
        if let CommandError::Ended { end: StreamEnd::VersionMismatch(text), .. } = &error {
            let status = "The system is not in a state required for the operation's execution";
            return Self::Start {
                text: format!("Ankaios version mismatch: 'code: '{status}', message: \"{text}\"'."),
                hint: Some(format!("this is ank {VERSION}; use one with the server's major version")),
            };
        }
        Self::Command(error)
    }
}

/// A time that was given, as people write it.
#[must_use]
pub fn shown(limit: Duration) -> String {
    if limit.is_zero() { "0s".to_owned() } else { format!("{limit:?}") }
}

/// Text for a stream that ended while a complete state was awaited.
pub const ENDED_READING: &str = "Channel preliminary closed.";
/// Text for a stream that ended while anything else was awaited.
pub const ENDED: &str = "Connection to server interrupted";
/// Text for a stream that ended before logs were accepted.
pub const NO_LOGS: &str = "Connection to server interrupted while waiting for LogsRequestAccepted response.";
/// Text for a stream that ended while logs were printed.
pub const ENDED_IN_LOGS: &str = "Error streaming workload logs: channel preliminary closed.";

impl CommandError {
    /// A problem with a file or its content.
    #[must_use]
    pub fn input(text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Input { text: text.into(), hint: hint.into() }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::TimedOut(_) => {
                "the server did not answer in time; check its log, or give it longer with '--response-timeout <MS>'"
            }
            Self::Ended { end, .. } => {
                return Some(format!("{end}; check the server's log, and whether it expects TLS"));
            }
            Self::Refused(text) if text.contains("cycle") => "remove one of the dependencies of that cycle",
            Self::Refused(text) if text.contains("Failed to access variable") => {
                "the configs have no such value; compare with 'ank get state desiredState.configs'"
            }
            Self::Refused(text) if text.contains("references config key") => {
                "add it to the 'configs' of the manifest; 'ank get configs' lists those there are"
            }
            Self::Refused(_) => "nothing was changed; correct what the server names and try again",
            Self::Answer(_) | Self::Unexpected | Self::InstanceName(_) => {
                "check the versions of ank and server with '--version'"
            }
            Self::Subscription(_) | Self::Logs(_) => "see the server's log",
            Self::Interrupted => return None,
            Self::Input { hint, .. } => return (!hint.is_empty()).then(|| hint.clone()),
        };
        Some(hint.to_owned())
    }
}

impl CliError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Start { hint, .. } => hint.clone(),
            Self::Command(error) => error.hint(),
            Self::StateFile { hint, .. } | Self::Unreachable { hint, .. } => Some(hint.clone()),
            Self::Output(_) => None,
        }
    }

    /// Whether a signal asked to stop.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Self::Command(CommandError::Interrupted))
    }

    /// Whether it may be over when one tries again: the connection was lost, or there is none at the moment.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Command(CommandError::TimedOut(_)) => true,
            Self::Command(CommandError::Ended { end, .. }) => matches!(end, StreamEnd::Closed | StreamEnd::Lost(_)),
            _ => false,
        }
    }

    /// Whether nobody reads the output any more, as in `ank get state | head -1`: not worth a message.
    #[must_use]
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The whole text for `verb`, without the prefix `error: `.
    #[must_use]
    pub fn text_for(&self, verb: &Verb) -> String {
        match (self, outer(verb)) {
            (Self::Start { .. } | Self::Unreachable { .. } | Self::Output(_), _) | (_, None) => self.to_string(),
            (_, Some("get state")) => format!("Could not retrieve state. {self}"),
            (_, Some(what)) => format!("Failed to {what}: '{self}'"),
        }
    }
}

/// What a command is called in its errors; `None` where the bare text is printed.
fn outer(verb: &Verb) -> Option<&'static str> {
    Some(match verb {
        Verb::Get { object: Get::State { .. } } => "get state",
        Verb::Get { object: Get::Workload { watch: false, .. } } => "get workloads",
        Verb::Get { object: Get::Workload { watch: true, .. } } => "watch workloads",
        Verb::Get { object: Get::Agent } => "get agents",
        Verb::Get { object: Get::Config } => "get configs",
        Verb::Get { object: Get::Events { .. } } => "get events",
        Verb::Set { object: Set::State { .. } } => "set state",
        Verb::Delete { object: Delete::Workload { .. } } => "delete workloads",
        Verb::Delete { object: Delete::Config { .. } } => "delete configs",
        Verb::Run { object: Run::Workload { .. } } => "run workloads",
        Verb::Logs(_) => "output logs",
        Verb::Graph { .. } => "print the graph",
        Verb::Apply(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Arguments;

    fn text(error: impl Into<CliError>, words: &str) -> String {
        let arguments = Arguments::read(std::iter::once("ank").chain(words.split(' '))).unwrap();
        error.into().text_for(&arguments.command)
    }

    #[test]
    fn each_command_has_its_documented_outer_text() {
        let timed_out = || CommandError::TimedOut(Duration::from_secs(3));
        for (words, expected) in [
            ("get state", "Could not retrieve state. Command failed: 'Command timed out after '3s''"),
            ("get workload", "Failed to get workloads: 'Command failed: 'Command timed out after '3s'''"),
            ("get workload -w", "Failed to watch workloads: 'Command failed: 'Command timed out after '3s'''"),
            ("get agents", "Failed to get agents: 'Command failed: 'Command timed out after '3s'''"),
            ("get configs", "Failed to get configs: 'Command failed: 'Command timed out after '3s'''"),
            ("get events", "Failed to get events: 'Command failed: 'Command timed out after '3s'''"),
            ("logs a", "Failed to output logs: 'Command failed: 'Command timed out after '3s'''"),
            ("graph", "Failed to print the graph: 'Command failed: 'Command timed out after '3s'''"),
            ("set state a b", "Failed to set state: 'Command failed: 'Command timed out after '3s'''"),
            ("delete workload a", "Failed to delete workloads: 'Command failed: 'Command timed out after '3s'''"),
            ("delete config a", "Failed to delete configs: 'Command failed: 'Command timed out after '3s'''"),
            (
                "run workload a --runtime r --config c --agent a",
                "Failed to run workloads: 'Command failed: 'Command timed out after '3s'''",
            ),
            ("apply f", "Command failed: 'Command timed out after '3s''"),
        ] {
            assert_eq!(text(timed_out(), words), expected, "{words}");
        }
        let file = CliError::StateFile { text: "missing field `apiVersion`".into(), hint: String::new() };
        let expected = "Failed to set state: 'Could not serialize YAML object: 'missing field `apiVersion`''";
        assert_eq!(text(file, "set state a b"), expected);
        let refused = StreamEnd::VersionMismatch("Unsupported protocol version '1'.".into());
        let expected = "Ankaios version mismatch: 'code: 'The system is not in a state required for the operation's \
                        execution', message: \"Unsupported protocol version '1'.\"'.";
        assert_eq!(text(CommandError::Ended { phrase: ENDED, end: refused }, "get workload"), expected);
        let start = CliError::Start { text: "Could not connect".into(), hint: None };
        assert_eq!(text(start, "get workload"), "Could not connect");
    }

    #[test]
    fn durations_are_written_as_scripts_know_them() {
        for (milliseconds, expected) in [(3000, "3s"), (500, "500ms"), (1234, "1.234s"), (0, "0ns")] {
            let text = CommandError::TimedOut(Duration::from_millis(milliseconds)).to_string();
            assert_eq!(text, format!("Command timed out after '{expected}'"));
        }
    }
}
