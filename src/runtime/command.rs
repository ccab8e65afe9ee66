//! Calls of an engine's program: recorded while they change something, quoted in errors.
//!
//! Thread: the caller's, see [`ankaios_platform::child`].
//! Takes: [`EngineCall`], [`Cancel`]. Gives: [`EngineOutput`] or [`RuntimeError`].

use super::call_error::{CallError, ErrorMeaning, ReadMeaning};
use super::engine_children::{CALL_VARIABLE, EngineChildren};
use super::masking::MaskedArguments;
use super::{Cancel, RuntimeError};
use ankaios_platform::child::{ChildCall, ChildEnd, Ending, OutputBounds, reap_later};
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// Standard output kept of one engine call, in bytes. A listing of 1,000 containers is about 0.4
/// MB.
const ENGINE_OUTPUT_MAX: usize = 16 * 1024 * 1024;
/// Standard error kept of one engine call, in bytes.
const ENGINE_ERROR_MAX: usize = 4 * 1024;

/// Bounds of the output. A listing can be long; one that is cut cannot be parsed, so any part of it
/// may be kept.
const BOUNDS: OutputBounds = OutputBounds {
    output_max: ENGINE_OUTPUT_MAX,
    error_max: ENGINE_ERROR_MAX,
    end_when_exceeded: false,
};

/// One call of an engine's program.
#[derive(Debug)]
pub(crate) struct EngineCall<'a> {
    call: ChildCall<'a>,
    record_in: Option<&'a EngineChildren>,
    /// Whether output is accepted although the program fails.
    partial: bool,
    read_meaning: ReadMeaning,
    /// The command as users see it.
    quoted: String,
    /// Values that are masked in it.
    hidden: Vec<String>,
}

/// What a successful call wrote to its standard output.
#[derive(Debug)]
pub(crate) struct EngineOutput {
    bytes: Vec<u8>,
    discarded: u64,
    call: String,
}

impl EngineOutput {
    /// The output as text.
    pub(crate) fn into_text(self) -> Result<String, RuntimeError> {
        if self.discarded > 0 {
            let total = self.discarded + self.bytes.len() as u64;
            let text = format!(
                "{total} bytes of output are too many, at most {ENGINE_OUTPUT_MAX} can be read"
            );
            return Err(RuntimeError::Failed(CallError::in_call(text, self.call)));
        }
        String::from_utf8(self.bytes).map_err(|error| {
            let text = format!("The output is not text: {error}");
            RuntimeError::Failed(CallError::in_call(text, self.call))
        })
    }
}

impl<'a> EngineCall<'a> {
    /// A call of `program`, looked up in `PATH`, without input and without time limit.
    pub(crate) fn new(program: &'a str, arguments: impl Into<MaskedArguments>) -> Self {
        let MaskedArguments {
            given,
            shown,
            hidden,
        } = arguments.into();
        let call = ChildCall {
            program: OsStr::new(program),
            arguments: given,
            folder: None,
            variables: Vec::new(),
            input: &[],
            limit: None,
            bounds: BOUNDS,
            // Time from SIGTERM to SIGKILL for a call of an engine.
            kill_grace: Duration::from_secs(2),
        };
        Self {
            call,
            record_in: None,
            partial: false,
            read_meaning: |_| ErrorMeaning::Failure,
            quoted: quoted(program, &shown),
            hidden,
        }
    }

    /// Reads errors of the program with this function.
    pub(crate) fn reading(self, read_meaning: ReadMeaning) -> Self {
        Self {
            read_meaning,
            ..self
        }
    }

    /// Ends the call after `limit`, `None` never.
    pub(crate) fn limit(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.call.limit = limit.into();
        self
    }

    /// Bytes for the standard input, which is `/dev/null` without them.
    pub(crate) fn input(mut self, input: &'a [u8]) -> Self {
        self.call.input = input;
        self
    }

    /// Leaves a record of the child while it runs, so that the next agent can wait for it. For
    /// calls that change something; listings need none.
    pub(crate) fn recorded(self, children: &'a EngineChildren) -> Self {
        Self {
            record_in: Some(children),
            ..self
        }
    }

    /// Accepts output, unless it is empty, although the program fails: some of several queried
    /// objects may be gone.
    pub(crate) fn partial(self) -> Self {
        Self {
            partial: true,
            ..self
        }
    }

    /// Runs the program in this folder, if there is one to run it in.
    pub(crate) fn folder(mut self, folder: Option<PathBuf>) -> Self {
        self.call.folder = folder;
        self
    }

    /// Adds an environment variable that only this call gets.
    pub(crate) fn variable(mut self, name: &'static str, value: String) -> Self {
        self.call.variables.push((name, value));
        self
    }

    /// Runs the program and waits for its end.
    pub(crate) fn run(self, cancel: Cancel<'_>) -> Result<EngineOutput, RuntimeError> {
        self.run_extended(cancel, || None)
    }

    /// As [`Self::run`]; when the limit has passed, `more_time` is called once for additional time.
    pub(crate) fn run_extended(
        self,
        cancel: Cancel<'_>,
        more_time: impl FnOnce() -> Option<Duration>,
    ) -> Result<EngineOutput, RuntimeError> {
        let Self {
            mut call,
            record_in,
            partial,
            read_meaning,
            quoted,
            hidden,
        } = self;
        let program = call.program.display().to_string();
        log::debug!("Executing {quoted}");
        let record = record_in.and_then(|children| children.announce(&program, ""));
        if let Some(record) = &record {
            call.variables.push((CALL_VARIABLE, record.token.clone()));
        }
        let mut end = match call.run(cancel, more_time) {
            Ok(end) => end,
            Err(error) => return Err(not_started(&error, &program, quoted)),
        };
        if let Some(child) = end.left_over.take() {
            reap_later(child, record); // The record stays until the program has ended.
        }
        end.error_output = MaskedArguments::mask(&hidden, end.error_output);
        outcome(end, quoted, partial, read_meaning)
    }
}

/// A command as users see it.
pub(crate) fn quoted(program: &str, arguments: &[impl AsRef<str>]) -> String {
    let mut command = program.to_owned();
    for argument in arguments {
        command.push_str(&format!(" \"{}\"", argument.as_ref()));
    }
    format!("'{command}'")
}

/// The error for a program that cannot be started.
fn not_started(error: &io::Error, program: &str, call: String) -> RuntimeError {
    let text = format!("Error: '{program}' cannot be started: {error}");
    let not_started = CallError::in_call(text, call);
    match error.kind() {
        ErrorKind::NotFound => RuntimeError::NotInstalled(not_started),
        _ => RuntimeError::NotStarted(not_started),
    }
}

/// The error for a program that failed. Without any output the exit status is its text.
fn failure(
    status: Option<ExitStatus>,
    error_output: String,
    call: String,
    read_meaning: ReadMeaning,
) -> RuntimeError {
    let meaning = read_meaning(&error_output);
    let mut text = error_output;
    if text.is_empty() {
        text = match status {
            Some(status) => format!("Ended with {status}"),
            None => "Its exit status is not known".to_owned(),
        };
    }
    RuntimeError::Failed(CallError {
        text,
        call: Some(call),
        code: status.and_then(|status| status.code()),
        meaning,
    })
}

/// The error for a program that did not end in time.
fn timed_out(limit: Duration, error_output: &str, call: String) -> RuntimeError {
    // The output is joined to the line of our text, since a separate line could be taken for the
    // cause.
    let output = error_output.lines().collect::<Vec<_>>().join("; ");
    let text = if output.is_empty() {
        format!("No answer within {limit:?}")
    } else {
        format!("No answer within {limit:?}. It wrote: '{output}'")
    };
    RuntimeError::TimedOut(CallError::in_call(text, call))
}

/// The result of a call, from the end of its program. With `partial`, output is accepted although
/// the program failed.
fn outcome(
    end: ChildEnd,
    call: String,
    partial: bool,
    read_meaning: ReadMeaning,
) -> Result<EngineOutput, RuntimeError> {
    let is_accepted = match end.status {
        Some(status) => status.success() || (partial && !end.output.is_empty()),
        None => false,
    };
    match end.ending {
        Ending::Itself if is_accepted => Ok(EngineOutput {
            bytes: end.output,
            discarded: end.discarded,
            call,
        }),
        Ending::Itself | Ending::TooMuchOutput => {
            Err(failure(end.status, end.error_output, call, read_meaning))
        }
        Ending::Cancelled => Err(RuntimeError::Cancelled),
        Ending::TimedOut(limit) => Err(timed_out(limit, &end.error_output, call)),
    }
}

#[cfg(test)]
mod tests;
