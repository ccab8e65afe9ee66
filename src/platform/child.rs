//! Runs an outside program once: no shell, both pipes drained, output capped, time limited, always reaped.
//!
//! The child gets a process group of its own: a Ctrl-C at our terminal reaches us only, so that no call is torn down
//! half way, and a call that takes too long can be ended together with its helpers.
//!
//! Thread: the caller's, which waits in one `poll` for output, exit, cancellation and deadlines.
//! Owns: the child until it is reaped. Takes: [`ChildCall`], [`CallWatch`]. Gives: [`ChildEnd`].

#[cfg(feature = "agent")]
pub mod followed;

use crate::limits::{CHILD_POLL_INTERVAL, KERNEL_KILL_GRACE, PIPE_CAPACITY, PIPE_CONTENT_MAX, STACK_SMALL};
use crate::platform::clock::{Clock, SystemClock};
use crate::platform::memory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, fcntl_setfl};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid};
use std::ffi::{CStr, OsStr, OsString};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// What a service manager hands to us and no child may see: it would answer in our name, and with the last one podman
/// leaves what holds its containers in the cgroup of our unit.
const SERVICE_MANAGER_VARIABLES: [&str; 7] =
    ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "INVOCATION_ID"];

/// Where the kernel keeps how likely this process is killed when memory runs out.
const OOM_SCORE_ADJUSTMENT: &str = "/proc/self/oom_score_adj";
const OOM_SCORE_ADJUSTMENT_C: &CStr = c"/proc/self/oom_score_adj";

/// The caller's view of a call that may take long.
pub trait CallWatch {
    /// Readable as soon as the call should be cancelled; `None` when it cannot be.
    fn cancel_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// When [`Self::still_running`] wants to be called next, counted from the start of the call; `None` never.
    fn next_progress(&self) -> Option<Duration> {
        None
    }

    /// The call has been running for `age`.
    fn still_running(&mut self, _age: Duration) {}

    /// The call has failed; what follows only removes what it left.
    fn cleaning_up(&mut self) {}
}

/// A watch for calls without cancellation and progress.
#[derive(Debug, Default)]
pub struct Unwatched;

impl CallWatch for Unwatched {}

/// One watch for several calls in a row: ages count from the beginning of the first.
pub struct CallSequence<'a> {
    watch: &'a mut dyn CallWatch,
    clock: SystemClock,
    began: Instant,
    /// Age of the sequence when the present call began.
    before: Duration,
}

impl<'a> CallSequence<'a> {
    /// Begins a sequence that `watch` watches.
    pub fn new(watch: &'a mut dyn CallWatch) -> Self {
        let clock = SystemClock;
        Self { watch, began: clock.now(), clock, before: Duration::ZERO }
    }

    /// The watch for the next call.
    pub fn next_call(&mut self) -> &mut Self {
        self.before = self.clock.now().saturating_duration_since(self.began);
        self
    }
}

impl CallWatch for CallSequence<'_> {
    fn cancel_fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.cancel_fd()
    }

    fn next_progress(&self) -> Option<Duration> {
        self.watch.next_progress().map(|at| at.saturating_sub(self.before))
    }

    fn still_running(&mut self, age: Duration) {
        self.watch.still_running(self.before.saturating_add(age));
    }

    fn cleaning_up(&mut self) {
        self.watch.cleaning_up();
    }
}

/// One call of a program.
#[derive(Debug)]
pub struct ChildCall<'a> {
    /// A path, or a name that is looked up in `PATH`.
    pub program: &'a OsStr,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Environment variables besides the inherited ones.
    pub variables: Vec<(&'static str, String)>,
    /// Bytes for the standard input, which is `/dev/null` without them.
    pub input: &'a [u8],
    /// The call is ended after this time; `None` never.
    pub limit: Option<Duration>,
    /// How much of each output is kept.
    pub bounds: OutputBounds,
    /// Time after SIGTERM until SIGKILL, for a call that is ended.
    pub kill_grace: Duration,
}

/// How many bytes of a child's output are kept; the rest is read and counted only.
#[derive(Debug, Clone, Copy)]
pub struct OutputBounds {
    /// Of the standard output, from its beginning.
    pub output_max: usize,
    /// Of the standard error, from its end: the reason comes last.
    pub error_max: usize,
    /// A child whose standard output is longer is ended at once, instead of being read to its end.
    pub end_when_exceeded: bool,
}

/// How a call came to its end, and what the child wrote until then.
#[derive(Debug)]
pub struct ChildEnd {
    /// What ended it.
    pub ending: Ending,
    /// Its exit status; `None` when even SIGKILL did not end it.
    pub status: Option<ExitStatus>,
    /// The beginning of its standard output.
    pub output: Vec<u8>,
    /// Bytes of its standard output that were not kept.
    pub discarded: u64,
    /// The end of its standard error, trimmed.
    pub error_output: String,
    /// Why its standard input was not taken completely. `None` for input of at most [`PIPE_CAPACITY`] bytes: whether
    /// a child that reads nothing ends before or after they are in the pipe is chance.
    pub input_error: Option<io::Error>,
    /// The child that the kernel cannot end, to be given to [`reap_later`].
    pub left_over: Option<Child>,
}

/// What ended a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The child itself.
    Itself,
    /// Its time was over after this long.
    TimedOut(Duration),
    /// Its watch cancelled it.
    Cancelled,
    /// Its standard output was too long.
    TooMuchOutput,
}

impl<'a> ChildCall<'a> {
    /// Runs the program and waits for its end. `started` gets its pid; when the limit has passed, `more_time` is called
    /// once for additional time.
    pub fn run(
        self,
        watch: &mut dyn CallWatch,
        started: impl FnOnce(u32),
        more_time: impl FnOnce() -> Option<Duration>,
    ) -> io::Result<ChildEnd> {
        let mut running = RunningCall::new(self.command().spawn()?, &self);
        started(running.pid.as_raw_nonzero().get().unsigned_abs());
        let status = running.wait(watch, more_time);
        let mut end = running.end_with(status);
        end.input_error.take_if(|_| self.input.len() <= PIPE_CAPACITY);
        memory::settle_again();
        Ok(end)
    }

    fn command(&self) -> Command {
        let mut command = command(self.program, &self.arguments);
        if !self.input.is_empty() {
            command.stdin(Stdio::piped());
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.envs(self.variables.iter().map(|(name, value)| (*name, value)));
        command
    }
}

/// A program in a process group of its own, without input and without what a service manager gave to us.
#[allow(clippy::disallowed_methods)] // The one place that starts processes.
fn command(program: &OsStr, arguments: &[OsString]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).process_group(0).stdin(Stdio::null());
    for variable in SERVICE_MANAGER_VARIABLES {
        command.env_remove(variable);
    }
    if is_protected() {
        #[allow(unsafe_code)]
        // SAFETY: between fork and exec the function makes system calls with constants only. It allocates nothing and
        // takes no lock.
        unsafe {
            command.pre_exec(give_up_protection);
        }
    }
    command
}

/// Whether a service manager has other processes killed before this one when memory runs out (`OOMScoreAdjust=`). Read
/// once: it does not change while we run.
fn is_protected() -> bool {
    static PROTECTED: OnceLock<bool> = OnceLock::new();
    *PROTECTED.get_or_init(|| is_negative(&std::fs::read_to_string(OOM_SCORE_ADJUSTMENT).unwrap_or_default()))
}

fn is_negative(adjustment: &str) -> bool {
    adjustment.trim().parse::<i32>().is_ok_and(|adjustment| adjustment < 0)
}

/// Makes this process as likely to be killed as any other. An engine passes on what it has: a workload that takes all
/// memory would be as safe as the agent.
fn give_up_protection() -> io::Result<()> {
    // A child that stays protected is better than none.
    if let Ok(file) = rustix::fs::open(OOM_SCORE_ADJUSTMENT_C, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        let _ = rustix::io::write(&file, b"0");
    }
    Ok(())
}

// -------------------------------------------------------------------- pipes

/// Which end of a long output is worth keeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// The beginning: output that is cut cannot be parsed anyway.
    Head,
    /// The end: the reason comes last, after the progress of a pull for example.
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

    /// The kept bytes as trimmed text, with a mark when something is missing.
    fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.kept);
        if self.discarded == 0 { text.trim().to_owned() } else { format!("... {}", text.trim()) }
    }
}

/// The pipes of a child.
#[derive(Debug)]
struct Streams<'a> {
    stdin: Option<(ChildStdin, &'a [u8])>,
    input_error: Option<io::Error>,
    stdout: Capture<ChildStdout>,
    stderr: Capture<ChildStderr>,
}

impl<'a> Streams<'a> {
    fn of(child: &mut Child, input: &'a [u8], bounds: OutputBounds) -> Self {
        let stdin = child.stdin.take().filter(|pipe| fcntl_setfl(pipe, OFlags::NONBLOCK).is_ok());
        Self {
            stdin: stdin.map(|pipe| (pipe, input)),
            input_error: None,
            stdout: Capture::new(child.stdout.take(), bounds.output_max, Keep::Head),
            stderr: Capture::new(child.stderr.take(), bounds.error_max, Keep::Tail),
        }
    }

    /// Writes as much input as fits; closes the pipe after the last byte or when the child has closed it.
    fn feed(&mut self) {
        while let Some((pipe, rest)) = &mut self.stdin {
            match pipe.write(rest) {
                Ok(count) if count < rest.len() => *rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(_) => self.stdin = None,
                Err(error) => (self.stdin, self.input_error) = (None, Some(error)),
            }
        }
    }
}

// ------------------------------------------------------------- running call

/// How far the ending has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is not being ended.
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
    bounds: OutputBounds,
    clock: SystemClock,
    began: Instant,
    limit: Option<Duration>,
    kill_grace: Duration,
    stage: Stage,
}

/// What a turn of the wait found ready.
#[derive(Debug, Default)]
struct Ready {
    cancelled: bool,
    ended: bool,
}

impl<'a> RunningCall<'a> {
    fn new(mut child: Child, call: &ChildCall<'a>) -> Self {
        let pid = Pid::from_child(&child);
        // The child is not reaped yet, so its pid cannot mean another process.
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok();
        let streams = Streams::of(&mut child, call.input, call.bounds);
        let clock = SystemClock;
        let began = clock.now();
        Self {
            child: Some(child),
            pid,
            pidfd,
            streams,
            bounds: call.bounds,
            clock,
            began,
            limit: call.limit,
            kill_grace: call.kill_grace,
            stage: Stage::Running,
        }
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
                    None => self.end(Ending::TimedOut(self.limit.unwrap_or_default())),
                }
            }
            if self.escalate() {
                return None;
            }
            let ready = self.turn(watch, age);
            if ready.cancelled {
                self.end(Ending::Cancelled);
            }
            if self.bounds.end_when_exceeded && self.streams.stdout.discarded > 0 {
                self.end(Ending::TooMuchOutput);
            }
            if ready.ended {
                return self.reap();
            }
        }
    }

    /// One `poll`: moves bytes, and returns what else became ready.
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
        // A late progress report is made soon. A watch that does not advance its time must not make this a busy loop.
        let progress =
            progress.map(|at| at.checked_sub(age).filter(|wait| !wait.is_zero()).unwrap_or(CHILD_POLL_INTERVAL));
        let without_pidfd = self.pidfd.is_none().then_some(CHILD_POLL_INTERVAL);
        let wait = [stage, progress, without_pidfd].into_iter().flatten().min()?;
        Timespec::try_from(wait).ok()
    }

    /// Sends SIGTERM to the child and its helpers.
    fn end(&mut self, ending: Ending) {
        if self.stage == Stage::Running {
            let _ = kill_process_group(self.pid, Signal::TERM);
            self.stage = Stage::Asked(ending, self.clock.now() + self.kill_grace);
        }
    }

    /// Goes to the next stage of ending when its time has come; true when there is nothing left to try.
    fn escalate(&mut self) -> bool {
        let now = self.clock.now();
        match self.stage {
            Stage::Asked(ending, at) if at <= now => {
                let _ = kill_process_group(self.pid, Signal::KILL);
                self.stage = Stage::Killed(ending, now + KERNEL_KILL_GRACE);
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

    fn end_with(self, status: Option<ExitStatus>) -> ChildEnd {
        let Streams { stdin, input_error, stdout, stderr } = self.streams;
        let unread = stdin.filter(|(_, rest)| !rest.is_empty()).map(|_| io::Error::from(ErrorKind::BrokenPipe));
        let ending = match self.stage {
            Stage::Running if self.bounds.end_when_exceeded && stdout.discarded > 0 => Ending::TooMuchOutput,
            Stage::Running => Ending::Itself,
            Stage::Asked(ending, _) | Stage::Killed(ending, _) => ending,
        };
        ChildEnd {
            ending,
            status,
            error_output: stderr.text(),
            output: stdout.kept,
            discarded: stdout.discarded,
            input_error: input_error.or(unread),
            left_over: self.child,
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
/// `held` is dropped when it has ended.
pub fn reap_later(mut child: Child, held: impl Send + 'static) {
    log::warn!("process {} does not end even when killed; not waiting for it any longer", child.id());
    let reaper = crate::platform::threads::spawn("reaper", STACK_SMALL, move || {
        let _ = child.wait();
        drop(held);
    });
    if let Err(error) = reaper {
        log::warn!("no thread to wait for a killed process: {error}");
    }
}

#[cfg(test)]
mod tests;
