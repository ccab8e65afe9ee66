//! What can go wrong in a command: texts that scripts match, hints for people, exit codes.
//!
//! Thread: `main`. Scripts for Eclipse Ankaios match `Could not connect to Ankaios server on`, `SetState failed with`,
//! `Command timed out after`, `Connection to server interrupted` and `does not exist`, so these stay.

use crate::model::nearest::nearest;
use crate::model::version::VERSION;
use crate::wire::client::StreamEnd;
use std::io;
use std::time::Duration;

/// Part of the text with which a server refuses an update because it has undone the same before.
const REMEMBERED: &str = "it is the same as update ";

/// How `ank` ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitCode {
    /// Done.
    Success = 0,
    /// Something failed while the command ran.
    Failed = 1,
    /// The command line or an environment variable is wrong.
    Usage = 2,
    /// The update was accepted, but a workload failed; only with `--fail-on-error`.
    WorkloadFailed = 3,
    /// The update was accepted, but `--wait-timeout` passed before all workloads were there.
    GaveUp = 4,
    /// The update was accepted, failed and was undone.
    Undone = 5,
    /// The manifests and the desired state differ; only of `ank diff` and `ank apply --dry-run`.
    Different = 6,
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
        /// The URL of the server.
        url: String,
        /// The cause, and what to do.
        hint: String,
    },
    /// The command itself.
    #[error("Command failed: '{0}'")]
    Command(CommandError),
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
}

/// Why a command failed after the settings were read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// No response within the response timeout.
    #[error("Command timed out after '{0:?}'")]
    TimedOut(Duration),
    /// The connection ended while something was awaited.
    #[error("Connection to server interrupted")]
    Ended(StreamEnd),
    /// The same after the server had responded, or over a Unix domain socket: TLS is not the cause.
    #[error("Connection to server interrupted")]
    Stopped(StreamEnd),
    /// The server did not accept an update.
    #[error("SetState failed with: '{0}'")]
    Refused(String),
    /// The server responded to a read or a request for logs with an error.
    #[error("Server replied with error: '{0}'")]
    Response(String),
    /// The server refused or ended a subscription.
    #[error("Event subscription failed: '{0}'")]
    Subscription(String),
    /// The server ended logs after it had accepted the request.
    #[error("Error streaming logs: '{0}'")]
    Logs(String),
    /// A signal ended the command; no message is printed.
    #[error("interrupted")]
    Interrupted,
    /// The response is of another kind than the request.
    #[error("Received an unexpected response from the server")]
    Unexpected,
    /// An instance name in the response to an update has not three parts.
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
        // A refused version is no failure of the command.
        if let CommandError::Ended(StreamEnd::VersionMismatch(text)) = &error {
            let status = "The system is not in a state required for the operation's execution";
            return Self::Start {
                text: format!("Ankaios version mismatch: 'code: '{status}', message: \"{text}\"'."),
                hint: Some(format!("this is ank {VERSION}; use an ank with the server's major version")),
            };
        }
        Self::Command(error)
    }
}

/// A time limit as people write it.
#[must_use]
pub fn shown(limit: Duration) -> String {
    if limit.is_zero() { "0s".to_owned() } else { format!("{limit:?}") }
}

/// `, did you mean '...'?` where one of `known` is similar to `name`.
pub fn meant<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    nearest(name, known).map_or_else(String::new, |name| format!(", did you mean '{name}'?"))
}

/// The hint for an unknown `name`: the similar one of `known`, or `otherwise` where none is similar.
pub fn meant_or<'k>(name: &str, known: impl IntoIterator<Item = &'k str>, otherwise: &str) -> String {
    nearest(name, known).map_or_else(|| otherwise.to_owned(), |name| format!("did you mean '{name}'?"))
}

impl CommandError {
    /// A problem with a file or its content.
    #[must_use]
    pub fn input(text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Input { text: text.into(), hint: hint.into() }
    }

    /// The error for a workload that none of `known` is.
    #[must_use]
    pub fn unknown_workload<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Self {
        let hint = meant_or(name, known, "'ank get workloads' lists the names");
        Self::input(format!("Workload name '{name}' does not exist."), hint)
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::TimedOut(_) => {
                "the server did not respond in time; check its log, or set a longer '--response-timeout <MS>'"
            }
            Self::Ended(end) => return Some(format!("{end}; check the server's log, and whether it expects TLS")),
            Self::Refused(text) if text.contains(REMEMBERED) => {
                "nothing was changed; 'ank apply --force' tries it again all the same"
            }
            Self::Stopped(end) => {
                return Some(format!("{end}; start the server again if it was stopped, or see its log"));
            }
            Self::Refused(_) => "nothing was changed; correct what the server names and try again",
            Self::Response(_) | Self::Unexpected | Self::InstanceName(_) => {
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
            Self::Unreachable { hint, .. } => Some(hint.clone()),
            Self::Output(_) => None,
        }
    }

    /// Whether a signal ended the command.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Self::Command(CommandError::Interrupted))
    }

    /// Whether another attempt may succeed: the connection was lost, or there is none at the moment.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Command(CommandError::TimedOut(_)) => true,
            Self::Command(CommandError::Ended(end) | CommandError::Stopped(end)) => {
                matches!(end, StreamEnd::Closed | StreamEnd::Lost(_))
            }
            _ => false,
        }
    }

    /// Whether the reader of the output ended, as in `ank get state | head -1`: no message is printed.
    #[must_use]
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The whole text for the failed `action` of a command, without the prefix `error: `.
    #[must_use]
    pub fn text_for(&self, action: Option<&str>) -> String {
        match (self, action) {
            (Self::Start { .. } | Self::Unreachable { .. } | Self::Output(_), _) | (_, None) => self.to_string(),
            (_, Some("get state")) => format!("Could not retrieve state. {self}"),
            (_, Some(action)) => format!("Failed to {action}: '{self}'"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Arguments;

    fn text(error: impl Into<CliError>, words: &str) -> String {
        let arguments = Arguments::read(std::iter::once("ank").chain(words.split(' '))).unwrap();
        error.into().text_for(arguments.command.action())
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
            ("get updates", "Failed to get updates: 'Command failed: 'Command timed out after '3s'''"),
            ("rollback 1", "Failed to roll back: 'Command failed: 'Command timed out after '3s'''"),
            ("logs a", "Failed to output logs: 'Command failed: 'Command timed out after '3s'''"),
            ("graph", "Failed to print the graph: 'Command failed: 'Command timed out after '3s'''"),
            ("blame", "Failed to print the start times: 'Command failed: 'Command timed out after '3s'''"),
            ("top", "Failed to show usage: 'Command failed: 'Command timed out after '3s'''"),
            ("set state a b", "Failed to set state: 'Command failed: 'Command timed out after '3s'''"),
            ("delete workload a", "Failed to delete workloads: 'Command failed: 'Command timed out after '3s'''"),
            ("delete config a", "Failed to delete configs: 'Command failed: 'Command timed out after '3s'''"),
            (
                "run workload a --runtime r --config c --agent a",
                "Failed to run workloads: 'Command failed: 'Command timed out after '3s'''",
            ),
            ("apply f", "Command failed: 'Command timed out after '3s''"),
            ("diff f", "Command failed: 'Command timed out after '3s''"),
        ] {
            assert_eq!(text(timed_out(), words), expected, "{words}");
        }
        let refused = StreamEnd::VersionMismatch("Unsupported protocol version '1'.".into());
        let expected = "Ankaios version mismatch: 'code: 'The system is not in a state required for the operation's \
                        execution', message: \"Unsupported protocol version '1'.\"'.";
        assert_eq!(text(CommandError::Ended(refused), "get workload"), expected);
        let start = CliError::Start { text: "Could not connect".into(), hint: None };
        assert_eq!(text(start, "get workload"), "Could not connect");
    }

    #[test]
    fn durations_are_written_as_scripts_match_them() {
        for (milliseconds, expected) in [(3000, "3s"), (500, "500ms"), (1234, "1.234s"), (0, "0ns")] {
            let text = CommandError::TimedOut(Duration::from_millis(milliseconds)).to_string();
            assert_eq!(text, format!("Command timed out after '{expected}'"));
        }
    }
}
