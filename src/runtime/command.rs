//! Runs an engine's program once: no shell, both pipes drained, output capped, time limited, always reaped.
//!
//! The child gets a process group of its own: a Ctrl-C at the agent's terminal reaches the agent only, so that no
//! `podman run` is torn down half way, and a call that takes too long can be ended together with its helpers.
//!
//! Thread: the caller's, which waits in one `poll` for output, exit, cancellation and deadlines.
//! Owns: the child until it is reaped. Takes: [`EngineCall`], [`CallWatch`]. Gives: [`EngineOutput`] or [`CallError`].

use super::engine_children::{CALL_VARIABLE, ChildRecord, EngineChildren};
use super::{CallWatch, RuntimeError};
use crate::clock::{Clock, SystemClock};
use crate::limits::{
    ENGINE_ERROR_MAX, ENGINE_KILL_GRACE, ENGINE_OUTPUT_MAX, ENGINE_POLL_INTERVAL, PIPE_CONTENT_MAX, STACK_SMALL,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid};
use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What a service manager hands to the agent and no engine may see: podman would answer in the agent's name.
const SERVICE_MANAGER_VARIABLES: [&str; 6] =
    ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];

/// One call of an engine's program.
#[derive(Debug)]
pub struct EngineCall<'a> {
    program: &'a str,
    arguments: Vec<String>,
    input: &'a [u8],
    limit: Option<Duration>,
    record_in: Option<&'a EngineChildren>,
    partial: bool,
}

/// What a successful call wrote to its standard output.
#[derive(Debug)]
pub struct EngineOutput {
    bytes: Vec<u8>,
    discarded: u64,
    call: String,
}

/// Why a call did not work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// The program could not even be started, so nothing happened.
    NotStarted(String),
    /// It ended with an error, or its output makes no sense.
    Failed(String),
    /// It was ended because it took too long.
    TimedOut(String),
    /// It was ended because its watch said so.
    Cancelled,
}

impl From<CallError> for RuntimeError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::NotStarted(text) => Self::NotStarted(text),
            CallError::Failed(text) => Self::Failed(text),
            CallError::TimedOut(text) => Self::TimedOut(text),
            CallError::Cancelled => Self::Cancelled,
        }
    }
}

impl EngineOutput {
    /// The output as text.
    ///
    /// # Errors
    /// `Failed` when it is not UTF-8 or was longer than [`ENGINE_OUTPUT_MAX`] bytes.
    pub fn into_text(self) -> Result<String, CallError> {
        if self.discarded > 0 {
            let total = self.discarded + self.bytes.len() as u64;
            let text = format!("{total} bytes of output are too many, at most {ENGINE_OUTPUT_MAX} can be read");
            return Err(CallError::Failed(format!("{text}. Execution of {}", self.call)));
        }
        String::from_utf8(self.bytes)
            .map_err(|error| CallError::Failed(format!("The output is not text: {error}. Execution of {}", self.call)))
    }
}

impl<'a> EngineCall<'a> {
    /// A call of `program`, looked up in `PATH`, without input and without time limit.
    #[must_use]
    pub fn new(program: &'a str, arguments: Vec<String>) -> Self {
        Self { program, arguments, input: &[], limit: None, record_in: None, partial: false }
    }

    /// Ends the call after `limit`, `None` never.
    #[must_use]
    pub fn limit(self, limit: impl Into<Option<Duration>>) -> Self {
        Self { limit: limit.into(), ..self }
    }

    /// Bytes for the standard input, which is `/dev/null` without them.
    #[must_use]
    pub fn input(self, input: &'a [u8]) -> Self {
        Self { input, ..self }
    }

    /// Leaves a record of the child while it runs, so that the next agent can wait for it. For calls that change
    /// something; listings need none.
    #[must_use]
    pub fn recorded(self, children: &'a EngineChildren) -> Self {
        Self { record_in: Some(children), ..self }
    }

    /// Takes what the program wrote even when it ends with an error; only a call that wrote nothing fails then. For
    /// questions about several things of which some may be gone.
    #[must_use]
    pub fn partial(self) -> Self {
        Self { partial: true, ..self }
    }

    /// The command as users see it (spec/agent.md section 14).
    fn quoted(&self) -> String {
        let mut text = format!("'{}", self.program);
        for argument in &self.arguments {
            let _ = write!(text, " \"{argument}\""); // Writing to a String cannot fail.
        }
        text.push('\'');
        text
    }

    /// Runs the program and waits for its end.
    ///
    /// # Errors
    /// See [`CallError`]; the texts are those of spec/agent.md section 14.
    pub fn run(self, watch: &mut dyn CallWatch) -> Result<EngineOutput, CallError> {
        self.run_extended(watch, || None)
    }

    /// As [`Self::run`]; when the limit has passed, `more_time` is asked once for additional time.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_extended(
        self,
        watch: &mut dyn CallWatch,
        more_time: impl FnOnce() -> Option<Duration>,
    ) -> Result<EngineOutput, CallError> {
        let quoted = self.quoted();
        log::debug!("Executing {quoted}");
        let mut record = self.record_in.and_then(|children| children.announce(self.program));
        let mut child = self
            .command(record.as_ref())
            .spawn()
            .map_err(|error| CallError::NotStarted(format!("Error: '{error}'. Could not spawn command {quoted}.")))?;
        if let Some(record) = &mut record {
            record.started(child.id());
        }
        let streams = Streams::of(&mut child, self.input);
        let mut running = RunningCall::new(child, streams, record, self.limit);
        let status = running.wait(watch, more_time);
        running.outcome(status, quoted, self.partial)
    }

    #[allow(clippy::disallowed_methods)] // The one place that starts processes.
    fn command(&self, record: Option<&ChildRecord>) -> Command {
        let mut command = Command::new(self.program);
        command.args(&self.arguments).process_group(0);
        command.stdin(if self.input.is_empty() { Stdio::null() } else { Stdio::piped() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        for variable in SERVICE_MANAGER_VARIABLES {
            command.env_remove(variable);
        }
        if let Some(record) = record {
            command.env(CALL_VARIABLE, record.token());
        }
        command
    }
}

// -------------------------------------------------------------------- pipes

/// Which end of a long output is worth keeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// The beginning: output that is cut cannot be parsed anyway.
    Head,
    /// The end: engines tell the reason last, after the progress of a pull.
    Tail,
}

/// One output pipe and what is kept of it.
#[derive(Debug)]
struct Capture<P> {
    pipe: Option<P>,
    kept: Vec<u8>,
    discarded: u64,
    bound: usize,
    keep: Keep,
}

impl<P: Read + AsFd> Capture<P> {
    fn new(pipe: Option<P>, bound: usize, keep: Keep) -> Self {
        // A pipe that cannot be made non-blocking could hang this thread for ever; better no output at all.
        let pipe = pipe.filter(|pipe| fcntl_setfl(pipe, OFlags::NONBLOCK).is_ok());
        Self { pipe, kept: Vec::new(), discarded: 0, bound, keep }
    }

    /// Reads what is there, at most `limit` bytes. Forgets the pipe at its end.
    fn drain(&mut self, limit: usize) {
        let mut chunk = [0_u8; 16 * 1024];
        let mut total = 0;
        while total < limit
            && let Some(pipe) = &mut self.pipe
        {
            match pipe.read(&mut chunk) {
                Ok(0) => self.pipe = None,
                Ok(count) => {
                    total += count;
                    self.take(&chunk[..count]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.pipe = None,
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        let surplus = (self.kept.len() + bytes.len()).saturating_sub(self.bound);
        self.discarded += surplus as u64;
        match self.keep {
            Keep::Head => self.kept.extend_from_slice(&bytes[..bytes.len() - surplus]),
            Keep::Tail => {
                self.kept.extend_from_slice(bytes);
                self.kept.drain(..surplus);
            }
        }
    }

    /// The kept bytes as trimmed text; says when something is missing.
    fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.kept);
        if self.discarded == 0 { text.trim().to_owned() } else { format!("... {}", text.trim()) }
    }
}

/// The pipes of a child.
#[derive(Debug)]
struct Streams<'a> {
    stdin: Option<(ChildStdin, &'a [u8])>,
    stdout: Capture<std::process::ChildStdout>,
    stderr: Capture<std::process::ChildStderr>,
}

impl<'a> Streams<'a> {
    fn of(child: &mut Child, input: &'a [u8]) -> Self {
        let stdin = child.stdin.take().filter(|pipe| fcntl_setfl(pipe, OFlags::NONBLOCK).is_ok());
        Self {
            stdin: stdin.map(|pipe| (pipe, input)),
            stdout: Capture::new(child.stdout.take(), ENGINE_OUTPUT_MAX, Keep::Head),
            stderr: Capture::new(child.stderr.take(), ENGINE_ERROR_MAX, Keep::Tail),
        }
    }

    /// Writes as much input as fits; closes the pipe after the last byte or when nobody reads it.
    fn feed(&mut self) {
        while let Some((pipe, rest)) = &mut self.stdin {
            match pipe.write(rest) {
                Ok(count) if count < rest.len() => *rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => self.stdin = None,
            }
        }
    }
}

// ------------------------------------------------------------- running call

/// Why a call is being ended before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    TimedOut,
    Cancelled,
}

/// How far the ending has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nobody wants the end.
    Running,
    /// SIGTERM was sent, SIGKILL follows at this time.
    Asked(Ending, Instant),
    /// SIGKILL was sent; at this time we stop waiting for a process that the kernel cannot end.
    Killed(Ending, Instant),
}

/// A started child with everything needed to wait for it.
struct RunningCall<'a> {
    child: Option<Child>,
    pid: Pid,
    pidfd: Option<OwnedFd>,
    streams: Streams<'a>,
    record: Option<ChildRecord>,
    clock: SystemClock,
    began: Instant,
    limit: Option<Duration>,
    stage: Stage,
}

/// What a turn of the wait found ready.
#[derive(Debug, Default)]
struct Ready {
    cancelled: bool,
    ended: bool,
}

impl<'a> RunningCall<'a> {
    fn new(child: Child, streams: Streams<'a>, record: Option<ChildRecord>, limit: Option<Duration>) -> Self {
        let pid = Pid::from_child(&child);
        // The child is not reaped yet, so its pid cannot mean another process.
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok();
        let clock = SystemClock;
        let began = clock.now();
        Self { child: Some(child), pid, pidfd, streams, record, clock, began, limit, stage: Stage::Running }
    }

    /// Waits for the end of the child; `None` when even SIGKILL did not end it.
    fn wait(&mut self, watch: &mut dyn CallWatch, more_time: impl FnOnce() -> Option<Duration>) -> Option<ExitStatus> {
        let mut more_time = Some(more_time);
        self.streams.feed();
        loop {
            let age = self.clock.now().saturating_duration_since(self.began);
            if watch.next_progress().is_some_and(|at| at <= age) {
                watch.still_running(age);
            }
            if self.stage == Stage::Running && self.limit.is_some_and(|limit| limit <= age) {
                match more_time.take().and_then(|ask| ask()) {
                    Some(extra) => self.limit = self.limit.map(|limit| limit.saturating_add(extra)),
                    None => self.end(Ending::TimedOut),
                }
            }
            if self.escalate() {
                return None;
            }
            let ready = self.turn(watch, age);
            if ready.cancelled {
                self.end(Ending::Cancelled);
            }
            if ready.ended {
                return self.reap();
            }
        }
    }

    /// One `poll`: moves bytes, and tells what else became ready.
    fn turn(&mut self, watch: &dyn CallWatch, age: Duration) -> Ready {
        let cancel = if self.stage == Stage::Running { watch.cancel_fd() } else { None };
        let timeout = self.timeout(watch.next_progress(), age);
        let mut descriptors: Vec<(Source, BorrowedFd<'_>, PollFlags)> = Vec::with_capacity(5);
        descriptors.extend(self.pidfd.as_ref().map(|fd| (Source::Exit, fd.as_fd(), PollFlags::IN)));
        descriptors.extend(cancel.map(|fd| (Source::Cancel, fd, PollFlags::IN)));
        descriptors.extend(self.streams.stdout.pipe.as_ref().map(|fd| (Source::Output, fd.as_fd(), PollFlags::IN)));
        descriptors.extend(self.streams.stderr.pipe.as_ref().map(|fd| (Source::Error, fd.as_fd(), PollFlags::IN)));
        descriptors.extend(self.streams.stdin.as_ref().map(|(fd, _)| (Source::Input, fd.as_fd(), PollFlags::OUT)));
        let mut polled: Vec<PollFd<'_>> =
            descriptors.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        // An error, EINTR for one, reports nothing ready; the next turn tries again.
        let _ = poll(&mut polled, timeout.as_ref());
        let ready: Vec<Source> = descriptors
            .iter()
            .zip(&polled)
            .filter(|(_, polled)| !polled.revents().is_empty())
            .map(|((source, _, _), _)| *source)
            .collect();
        drop(polled);
        let mut result = Ready::default();
        for source in ready {
            match source {
                Source::Cancel => result.cancelled = true,
                Source::Output => self.streams.stdout.drain(PIPE_CONTENT_MAX),
                Source::Error => self.streams.stderr.drain(PIPE_CONTENT_MAX),
                Source::Input => self.streams.feed(),
                Source::Exit => result.ended = true,
            }
        }
        result.ended = (result.ended || self.pidfd.is_none()) && self.has_ended();
        result
    }

    /// How long the next `poll` may wait; `None` for ever.
    fn timeout(&self, progress: Option<Duration>, age: Duration) -> Option<Timespec> {
        let until = |at: Instant| self.clock.until(at);
        let stage = match self.stage {
            Stage::Running => self.limit.map(|limit| limit.saturating_sub(age)),
            Stage::Asked(_, at) | Stage::Killed(_, at) => Some(until(at)),
        };
        // A watch that does not move its time on is not allowed to make this a busy loop.
        let progress = progress.filter(|at| *at > age).map(|at| at - age);
        let without_pidfd = self.pidfd.is_none().then_some(ENGINE_POLL_INTERVAL);
        let wait = [stage, progress, without_pidfd].into_iter().flatten().min()?;
        Timespec::try_from(wait).ok()
    }

    /// Asks the child and its helpers to end.
    fn end(&mut self, ending: Ending) {
        if self.stage == Stage::Running {
            let _ = kill_process_group(self.pid, Signal::TERM);
            self.stage = Stage::Asked(ending, self.clock.now() + ENGINE_KILL_GRACE);
        }
    }

    /// Goes to the next stage of ending when its time has come; true when there is nothing left to try.
    fn escalate(&mut self) -> bool {
        let now = self.clock.now();
        match self.stage {
            Stage::Asked(ending, at) if at <= now => {
                let _ = kill_process_group(self.pid, Signal::KILL);
                self.stage = Stage::Killed(ending, now + ENGINE_KILL_GRACE);
                false
            }
            Stage::Killed(_, at) => at <= now,
            _ => false,
        }
    }

    /// Whether the child has ended; it is not reaped yet.
    fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(self.pid), options), Ok(None))
    }

    /// Takes the rest of the output and the exit status of the ended child.
    fn reap(&mut self) -> Option<ExitStatus> {
        if self.stage != Stage::Running {
            // Helpers of a call that was ended go with it. The zombie still holds the group's number.
            let _ = kill_process_group(self.pid, Signal::KILL);
        }
        // What the child wrote is in the pipes. A grandchild that keeps them open (podman's monitor of a container
        // does) may write for ever, so only as much is read as a pipe can hold.
        self.streams.stdout.drain(PIPE_CONTENT_MAX);
        self.streams.stderr.drain(PIPE_CONTENT_MAX);
        self.child.take()?.wait().ok()
    }

    fn outcome(mut self, status: Option<ExitStatus>, call: String, partial: bool) -> Result<EngineOutput, CallError> {
        if let Some(child) = self.child.take() {
            reap_later(child, self.record.take());
        }
        let said = self.streams.stderr.text();
        let wrote = !self.streams.stdout.kept.is_empty();
        match (self.stage, status) {
            (Stage::Running, Some(status)) if status.success() || (partial && wrote) => {
                let Capture { kept, discarded, .. } = self.streams.stdout;
                Ok(EngineOutput { bytes: kept, discarded, call })
            }
            (Stage::Running, status) => {
                let said = match (said.is_empty(), status) {
                    (false, _) => said,
                    (true, Some(status)) => format!("Ended with {status}"),
                    (true, None) => "Its exit status is not known".to_owned(),
                };
                Err(CallError::Failed(format!("{said}. Execution of {call}")))
            }
            (Stage::Asked(Ending::Cancelled, _) | Stage::Killed(Ending::Cancelled, _), _) => Err(CallError::Cancelled),
            _ => {
                let limit = self.limit.unwrap_or_default();
                let said = if said.is_empty() { said } else { format!(" It said: '{said}'.") };
                Err(CallError::TimedOut(format!("No answer within {limit:?}.{said} Execution of {call}")))
            }
        }
    }
}

/// What a turn of the wait can find ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Exit,
    Cancel,
    Output,
    Error,
    Input,
}

/// Waits on a thread of its own for a killed child that the kernel cannot end yet, so that it leaves no zombie.
fn reap_later(mut child: Child, record: Option<ChildRecord>) {
    log::warn!("process {} does not end even when killed; not waiting for it any longer", child.id());
    let reaper = crate::threads::spawn("reaper", STACK_SMALL, move || {
        let _ = child.wait();
        drop(record);
    });
    if let Err(error) = reaper {
        log::warn!("no thread to wait for a killed process: {error}");
    }
}

#[cfg(test)]
mod tests;
