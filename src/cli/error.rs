//! Errors of commands: texts that scripts match, hints for people, exit codes.
//!
//! Thread: `main`. Scripts for Eclipse Ankaios match `Could not connect to Ankaios server
//! on`, `SetState failed with`, `Command timed out after`, `Connection to server
//! interrupted` and `does not exist`, so these stay.

use ankaios_model::nearest::nearest;
use ankaios_model::refusal::{ErrorResponse, Refusal};
use ankaios_model::version::VERSION;
use ankaios_wire::client::StreamEnd;
use std::fmt::Display;
use std::io;
use std::time::Duration;

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
    /// The update was accepted, but `--wait-timeout` passed before all workloads reached their
    /// states. With `--fail-on-error`, also if a guarded update stays open for a disconnected
    /// agent.
    GaveUp = 4,
    /// The update was accepted, failed and was rolled back; everything is as it was before.
    Undone = 5,
    /// The manifests and the desired state differ; only of `ank diff` and `ank apply --dry-run`.
    Different = 6,
    /// The update was accepted, failed and was rolled back, but not all earlier workloads run
    /// again.
    NotRestored = 7,
    /// The update was refused, since the server has rolled back the same one before.
    UndoneBefore = 8,
}

/// Why a command ends without success.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// Settings or connection; the same text for all commands.
    #[error("{text}")]
    Start { text: String, hint: String },
    /// No connection; the same text for all commands.
    #[error("Could not connect to Ankaios server on '{url}': {cause}")]
    Unreachable {
        url: String,
        cause: String,
        hint: String,
    },
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
    /// A manifest, a state file, or a state or message of the server.
    #[error("{text}")]
    Input { text: String, hint: String },
    /// No response within the response timeout.
    #[error("Command timed out after '{0:?}'")]
    TimedOut(Duration),
    /// The connection ended while something was awaited, and what to do.
    #[error("Connection to server interrupted: {}", cause_of_end(_0))]
    Ended(StreamEnd, &'static str),
    /// The server did not accept an update.
    #[error("SetState failed with: {}", shown_refusal(&_0.text))]
    Refused(ErrorResponse),
    /// The server did not accept a restart or a rollback.
    #[error("{text}")]
    ActionRefused {
        text: String,
        hint: String,
        refusal: Refusal,
    },
    /// The server responded to a read or a request for logs with an error.
    #[error("Server replied with error: {0}")]
    Response(String),
    /// The server refused or ended a subscription.
    #[error("Event subscription failed: {0}")]
    Subscription(String),
    /// The server ended logs after it had accepted the request.
    #[error("Error streaming logs: {0}")]
    Logs(String),
    /// A signal ended the command; no message is printed.
    #[error("interrupted")]
    Interrupted,
}

/// What most functions of commands return.
pub(crate) type Result<T, E = CliError> = std::result::Result<T, E>;

/// The way out when a server ends that has answered before.
pub(crate) const SERVER_STOPPED: &str = "start the server again if it was stopped, or see its log";

/// Texts that a server writes before the quoted reason of a refusal, the outermost first. Only the
/// first one is shown: scripts match it.
const REFUSAL_FRAMES: [&str; 3] = [
    "Update rejected: ",
    "Resulting State is invalid, reason: ",
    "Could not parse into CompleteState: ",
];

/// The text after `frame` without the quotes around it; `None` without this frame.
fn unframed<'t>(text: &'t str, frame: &str) -> Option<&'t str> {
    let reason = text.strip_prefix(frame)?;
    reason.strip_prefix('\'')?.strip_suffix('\'')
}

/// The reason of a refusal without [`REFUSAL_FRAMES`]; `None` for a text without the first one.
pub(crate) fn reason_of_refusal(text: &str) -> Option<&str> {
    let mut reason = unframed(text, REFUSAL_FRAMES[0])?;
    for frame in &REFUSAL_FRAMES[1..] {
        reason = unframed(reason, frame).unwrap_or(reason);
    }
    Some(reason)
}

/// The text of a refusal with the first frame only, so that quotes are not nested.
pub(crate) fn shown_refusal(text: &str) -> String {
    match reason_of_refusal(text) {
        Some(reason) => format!("{}{reason}", REFUSAL_FRAMES[0]),
        None => text.to_owned(),
    }
}

/// Why a connection ended, without the words of the layers below.
fn cause_of_end(end: &StreamEnd) -> String {
    match end {
        StreamEnd::Lost(cause) | StreamEnd::RefusedByTls(cause) => cause.clone(),
        StreamEnd::Refused { message, .. } => format!("the server refused: {message}"),
        end => end.to_string(),
    }
}

/// A time limit as people write it.
pub(crate) fn shown(limit: Duration) -> String {
    if limit.is_zero() {
        "0s".to_owned()
    } else {
        format!("{limit:?}")
    }
}

/// A number of things; the word is in the plural unless the number is one.
pub(crate) fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// The `names` that are not in `known`.
pub(crate) fn unknown<'n, 'k>(
    names: &'n [String],
    known: impl Iterator<Item = &'k str> + Clone,
) -> impl Iterator<Item = &'n String> {
    names
        .iter()
        .filter(move |name| !known.clone().any(|known| known == **name))
}

/// The hint for an unknown `name`: a similar name of `known`, or `otherwise` if none is similar.
pub(crate) fn meant_or<'k>(
    name: &str,
    known: impl IntoIterator<Item = &'k str>,
    otherwise: &str,
) -> String {
    match nearest(name, known) {
        Some(similar) => format!("did you mean '{similar}'?"),
        None => otherwise.to_owned(),
    }
}

/// Words that other tools have between a command and a name.
const KINDS_OF_OBJECTS: [&str; 8] = [
    "workload",
    "workloads",
    "pod",
    "pods",
    "container",
    "containers",
    "node",
    "nodes",
];

/// The hint for an update that the server did not accept.
fn hint_of_refusal(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::RolledBackBefore => "nothing was changed; 'ank apply --force' tries it again",
        Refusal::NoState => {
            "the server is older than this ank: it can only apply manifests, not roll back, restart or stop workloads"
        }
        Refusal::NoModeItem => {
            "nothing was changed; 'ank mode --new NAME' sets the first mode, or apply the manifest with the item \
             first; to delete the item, delete the workloads with the tag 'modes' first"
        }
        Refusal::None => "nothing was changed; correct what the server names and try again",
    }
}

impl CliError {
    /// An error of settings or of the connection, see [`Self::Start`].
    pub fn start(text: impl Display, hint: &str) -> Self {
        Self::Start {
            text: text.to_string(),
            hint: hint.to_owned(),
        }
    }

    /// An error in the input or on the server, see [`Self::Input`].
    pub(crate) fn input(text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Input {
            text: text.into(),
            hint: hint.into(),
        }
    }

    /// An error about a response that no server of this version sends.
    pub(crate) fn unexpected(text: &str) -> Self {
        Self::input(
            text,
            "check the versions of ank and server with '--version'",
        )
    }

    /// See [`Self::Response`].
    pub(crate) fn response(error: ErrorResponse) -> Self {
        Self::Response(error.text)
    }

    /// See [`Self::Subscription`].
    pub(crate) fn subscription(error: ErrorResponse) -> Self {
        Self::Subscription(error.text)
    }

    /// See [`Self::Logs`].
    pub(crate) fn logs(error: ErrorResponse) -> Self {
        Self::Logs(error.text)
    }

    /// Refuses the first of `names` that is not in `known`, the names of all workloads.
    pub(crate) fn check_workloads<'k>(
        names: &[String],
        known: impl Iterator<Item = &'k str> + Clone,
    ) -> Result<()> {
        let Some(name) = unknown(names, known.clone()).next() else {
            return Ok(());
        };
        let mut hint = meant_or(name, known, "'ank get workloads' lists the names");
        if KINDS_OF_OBJECTS.contains(&&**name) {
            hint = format!("leave out '{name}': the command takes names of workloads only");
        }
        Err(Self::input(
            format!("Workload name '{name}' does not exist."),
            hint,
        ))
    }

    /// The error for the end of a connection. If the server has `understood` a message, neither TLS
    /// nor another program at its address is the cause.
    pub(crate) fn ended(end: StreamEnd, understood: bool) -> Self {
        match end {
            // The same text for all commands: none of them has begun.
            StreamEnd::VersionMismatch(text) => Self::start(
                format_args!("Ankaios version mismatch: {text}"),
                &format!("this is ank {VERSION}; use an ank with the server's major version"),
            ),
            StreamEnd::Closed | StreamEnd::Lost(_) | StreamEnd::RefusedByTls(_) if understood => {
                Self::Ended(end, SERVER_STOPPED)
            }
            StreamEnd::Refused { .. } => {
                Self::Ended(end, "correct what the server names, or see its log")
            }
            StreamEnd::RefusedByTls(_) => Self::Ended(end, "check the certificates of both sides"),
            _ => Self::Ended(
                end,
                "check whether an Ankaios server answers there, whether it expects TLS, and its log",
            ),
        }
    }

    /// A way out of the error; may be empty.
    pub fn hint(&self) -> String {
        let hint = match self {
            Self::Start { hint, .. }
            | Self::Unreachable { hint, .. }
            | Self::ActionRefused { hint, .. }
            | Self::Input { hint, .. } => hint,
            Self::TimedOut(_) => {
                "the server did not respond in time; check its log, or set a longer '--response-timeout <MS>'"
            }
            Self::Ended(_, hint) => hint,
            Self::Refused(error) => hint_of_refusal(error.refusal),
            Self::Response(_) => {
                "correct what the server names and try again; if it does not know the request, check the versions with '--version'"
            }
            Self::Subscription(_) | Self::Logs(_) => "see the server's log",
            Self::Interrupted | Self::Output(_) => "",
        };
        hint.to_owned()
    }

    /// The exit code of a command that ends with this error.
    pub(crate) fn exit_code(&self) -> ExitCode {
        let refusal = match self {
            Self::Refused(error) => error.refusal,
            Self::ActionRefused { refusal, .. } => *refusal,
            _ => Refusal::None,
        };
        match refusal {
            Refusal::RolledBackBefore => ExitCode::UndoneBefore,
            Refusal::None | Refusal::NoModeItem | Refusal::NoState => ExitCode::Failed,
        }
    }

    /// Returns whether a signal ended the command.
    pub(crate) fn is_interrupted(&self) -> bool {
        matches!(self, Self::Interrupted)
    }

    /// Returns whether another attempt may succeed: the connection was lost, or there is none at
    /// the moment.
    pub(crate) fn is_transient(&self) -> bool {
        let lost = matches!(
            self,
            Self::Ended(
                StreamEnd::Closed | StreamEnd::Lost(_) | StreamEnd::RefusedByTls(_),
                _
            )
        );
        lost || matches!(self, Self::Unreachable { .. } | Self::TimedOut(_))
    }

    /// Returns whether the reader of the output has ended, as in `ank get state | head -1`. Then no
    /// message is printed.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The whole text for the failed `action` of a command, without the prefix `error: `. The texts
    /// are those of Eclipse Ankaios, whose `get state` has one of its own.
    pub(crate) fn text_for(&self, action: Option<&str>) -> String {
        let is_same_for_all = matches!(
            self,
            Self::Start { .. } | Self::Unreachable { .. } | Self::Output(_)
        );
        match action {
            None => self.to_string(),
            Some(_) if is_same_for_all => self.to_string(),
            Some("get state") => format!("Could not retrieve state. {self}"),
            Some(action) => format!("Failed to {action}: {self}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Arguments;

    fn text(error: CliError, words: &str) -> String {
        let arguments = Arguments::read(std::iter::once("ank").chain(words.split(' '))).unwrap();
        error.text_for(arguments.command.action())
    }

    #[test]
    fn each_command_has_its_documented_outer_text() {
        let timed_out = || CliError::TimedOut(Duration::from_secs(3));
        for (words, expected) in [
            (
                "get state",
                "Could not retrieve state. Command timed out after '3s'",
            ),
            (
                "get workload",
                "Failed to get workloads: Command timed out after '3s'",
            ),
            (
                "get workload -w",
                "Failed to watch workloads: Command timed out after '3s'",
            ),
            (
                "get agents",
                "Failed to get agents: Command timed out after '3s'",
            ),
            (
                "get configs",
                "Failed to get configs: Command timed out after '3s'",
            ),
            (
                "get events",
                "Failed to get events: Command timed out after '3s'",
            ),
            (
                "logs a",
                "Failed to output logs: Command timed out after '3s'",
            ),
            (
                "set state a b",
                "Failed to set state: Command timed out after '3s'",
            ),
            (
                "delete workload a",
                "Failed to delete workloads: Command timed out after '3s'",
            ),
            (
                "delete config a",
                "Failed to delete configs: Command timed out after '3s'",
            ),
            (
                "run workload a --runtime r --config c --agent a",
                "Failed to run workloads: Command timed out after '3s'",
            ),
            ("apply f", "Command timed out after '3s'"),
            ("diff f", "Command timed out after '3s'"),
            ("get updates", "Command timed out after '3s'"),
            ("rollback 1", "Command timed out after '3s'"),
            ("mode", "Command timed out after '3s'"),
            ("mode drive", "Command timed out after '3s'"),
            ("graph", "Command timed out after '3s'"),
            ("blame", "Command timed out after '3s'"),
            ("top", "Command timed out after '3s'"),
        ] {
            assert_eq!(text(timed_out(), words), expected, "{words}");
        }
        let refused = StreamEnd::VersionMismatch("Unsupported protocol version '1'.".into());
        let expected = "Ankaios version mismatch: Unsupported protocol version '1'.";
        assert_eq!(
            text(CliError::ended(refused, false), "get workload"),
            expected
        );
        let start = CliError::start("Could not connect", "");
        assert_eq!(text(start, "get workload"), "Could not connect");
    }

    #[test]
    fn reasons_of_the_server_are_printed_without_quotes_in_quotes() {
        let refused = "Update rejected: 'Resulting State is invalid, reason: 'no 'x'''";
        assert_eq!(
            CliError::Refused(refused.into()).to_string(),
            "SetState failed with: Update rejected: no 'x'"
        );
        assert_eq!(
            CliError::Refused("'a' is 'b'".into()).to_string(),
            "SetState failed with: 'a' is 'b'"
        );
    }

    #[test]
    fn refusals_of_the_server_lead_to_what_to_do() {
        for (refusal, expected) in [
            (
                Refusal::NoState,
                "older than this ank: it can only apply manifests",
            ),
            (Refusal::RolledBackBefore, "'ank apply --force'"),
            (
                Refusal::NoModeItem,
                "'ank mode --new NAME' sets the first mode",
            ),
            (Refusal::None, "correct what the server names"),
        ] {
            let text = "x".to_owned();
            let hint = CliError::Refused(ErrorResponse { text, refusal }).hint();
            assert!(hint.contains(expected), "{hint}");
        }
    }

    #[test]
    fn end_of_a_connection_has_its_cause_and_a_hint_that_fits() {
        let refused = StreamEnd::Refused {
            code: "UNAUTHENTICATED".into(),
            message: "Only certificates".into(),
        };
        let certificate = StreamEnd::RefusedByTls(
            "the server refused the connection: our certificate has expired".into(),
        );
        for (end, cause, hint) in [
            (
                refused,
                "the server refused: Only certificates",
                "correct what the server names, or see its log",
            ),
            (
                certificate,
                "the server refused the connection: our certificate has expired",
                "check the certificates of both sides",
            ),
            (
                StreamEnd::Lost("Socket closed".into()),
                "Socket closed",
                "check whether an Ankaios server answers there, whether it expects TLS, and its log",
            ),
        ] {
            let error = CliError::ended(end, false);
            let text = format!("Connection to server interrupted: {cause}");
            assert_eq!((error.to_string(), error.hint()), (text, hint.to_owned()));
        }
    }

    #[test]
    fn refusal_of_what_was_rolled_back_before_has_its_own_exit_code() {
        for (refusal, exit_code) in [
            (Refusal::RolledBackBefore, ExitCode::UndoneBefore),
            (Refusal::None, ExitCode::Failed),
        ] {
            let text = "it is the same as update 3".to_owned();
            let action = CliError::ActionRefused {
                text: text.clone(),
                hint: String::new(),
                refusal,
            };
            assert_eq!(action.exit_code(), exit_code);
            let update = CliError::Refused(ErrorResponse { text, refusal });
            assert_eq!(update.exit_code(), exit_code);
        }
    }

    #[test]
    fn a_kind_before_a_name_is_to_be_left_out() {
        for (kind, hint) in [
            (
                "pods",
                "leave out 'pods': the command takes names of workloads only",
            ),
            ("nothing", "'ank get workloads' lists the names"),
        ] {
            let names = [kind.to_owned()];
            let error = CliError::check_workloads(&names, ["web"].into_iter()).unwrap_err();
            assert_eq!(error.hint(), hint);
        }
    }

    #[test]
    fn durations_are_written_as_scripts_match_them() {
        for (milliseconds, expected) in [(3000, "3s"), (500, "500ms"), (1234, "1.234s"), (0, "0ns")]
        {
            let text = CliError::TimedOut(Duration::from_millis(milliseconds)).to_string();
            assert_eq!(text, format!("Command timed out after '{expected}'"));
        }
    }
}
