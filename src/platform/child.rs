//! Runs an outside program once: no shell, both pipes drained, output capped, time limited, always
//! reaped.
//!
//! The child gets a process group of its own. So a Ctrl-C at our terminal interrupts no call, and a
//! call that exceeds its limit is ended together with its helpers.
//!
//! Thread: the caller's, which waits in one `poll` for output, exit, cancellation and deadlines.
//! Owns: the child until it is reaped. Takes: [`ChildCall`], [`Cancel`]. Gives: [`ChildEnd`].

use crate::clock::{Clock, SystemClock};
use crate::limits::{
    CHILD_POLL_INTERVAL, KERNEL_KILL_GRACE, PIPE_CAPACITY, PIPE_CONTENT_MAX, STACK_SMALL,
};
use crate::memory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, fcntl_setfl};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
};
use std::ffi::OsStr;
use std::io::{self, ErrorKind, PipeReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A descriptor that becomes readable to cancel a call; `None` if it cannot be cancelled.
pub type Cancel<'a> = Option<BorrowedFd<'a>>;

/// One call of a program.
#[derive(Debug)]
pub struct ChildCall<'a> {
    /// A path, or a name that is looked up in `PATH`.
    pub program: &'a OsStr,
    pub arguments: Vec<String>,
    /// The working folder of the program; that of this process without it.
    pub folder: Option<PathBuf>,
    /// Additional environment variables.
    pub variables: Vec<(&'static str, String)>,
    /// Bytes for the standard input, which is `/dev/null` without them.
    pub input: &'a [u8],
    /// Time after which the call is ended; `None` is never.
    pub limit: Option<Duration>,
    pub bounds: OutputBounds,
    /// Time from SIGTERM to SIGKILL when the call is ended.
    pub kill_grace: Duration,
}

/// Bytes of a child's output that are kept; the rest is read and counted only.
#[derive(Debug, Clone, Copy)]
pub struct OutputBounds {
    /// Kept bytes of the standard output, from its beginning.
    pub output_max: usize,
    /// Kept bytes of the standard error, from its end: the reason comes last.
    pub error_max: usize,
    /// Whether a child with a longer standard output is ended at once.
    pub end_when_exceeded: bool,
}

/// The end of a call, and the output of the child.
#[derive(Debug)]
pub struct ChildEnd {
    pub ending: Ending,
    /// Its exit status; `None` if even SIGKILL did not end it.
    pub status: Option<ExitStatus>,
    /// The beginning of its standard output.
    pub output: Vec<u8>,
    /// Bytes of its standard output that were not kept.
    pub discarded: u64,
    /// The end of its standard error, trimmed.
    pub error_output: String,
    /// Why the child did not read its whole standard input. Always `None` for input that fits into
    /// the pipe ([`PIPE_CAPACITY`]): a child that reads nothing fails to take it only by chance.
    pub input_error: Option<io::Error>,
    /// A child that the kernel cannot end, for [`reap_later`].
    pub left_over: Option<Child>,
}

/// The cause of the end of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The child exited by itself.
    Itself,
    /// Its limit, of this length, had passed.
    TimedOut(Duration),
    /// It was cancelled.
    Cancelled,
    /// Its standard output was too long.
    TooMuchOutput,
}

impl<'a> ChildCall<'a> {
    /// Runs the program and waits for its end. After the limit, `more_time` is called once and may
    /// extend it.
    pub fn run(
        self,
        cancel: Cancel<'_>,
        more_time: impl FnOnce() -> Option<Duration>,
    ) -> io::Result<ChildEnd> {
        let mut running = RunningCall::new(self.command().spawn()?, &self);
        let status = running.wait(cancel, more_time);
        let mut end = running.end_with(status);
        if self.input.len() <= PIPE_CAPACITY {
            end.input_error = None; // With so little input it is chance, see the field.
        }
        memory::settle_again(); // The code that the call has used is mostly idle now.
        Ok(end)
    }

    fn command(&self) -> Command {
        let mut command = command(self.program, &self.arguments);
        if !self.input.is_empty() {
            command.stdin(Stdio::piped());
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command.envs(self.variables.iter().map(|(name, value)| (*name, value)));
        command
    }
}

/// Prepares a program in a process group of its own, without input and without the environment
/// variables of our service manager.
#[allow(clippy::disallowed_methods)] // The one place that starts processes.
fn command(program: &OsStr, arguments: &[String]) -> Command {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .process_group(0)
        .stdin(Stdio::null());
    // A child with these would notify the service manager in our name. With the last one podman
    // leaves the monitors of its containers in the cgroup of our unit.
    for variable in [
        "NOTIFY_SOCKET",
        "WATCHDOG_USEC",
        "WATCHDOG_PID",
        "LISTEN_FDS",
        "LISTEN_PID",
        "LISTEN_FDNAMES",
        "INVOCATION_ID",
    ] {
        command.env_remove(variable);
    }
    if is_protected() {
        #[allow(unsafe_code)]
        // SAFETY: between fork and exec the function makes system calls with constants only. It
        // allocates nothing and takes no lock.
        unsafe {
            command.pre_exec(give_up_protection);
        }
    }
    command
}

/// Returns whether the kernel kills other processes before this one when memory runs out
/// (`OOMScoreAdjust=`). Read once: it does not change while we run.
fn is_protected() -> bool {
    static PROTECTED: OnceLock<bool> = OnceLock::new();
    *PROTECTED.get_or_init(|| {
        let adjustment = std::fs::read_to_string("/proc/self/oom_score_adj");
        is_negative(&adjustment.unwrap_or_default())
    })
}

fn is_negative(adjustment: &str) -> bool {
    let adjustment = adjustment.trim().parse::<i32>();
    adjustment.is_ok_and(|adjustment| adjustment < 0)
}

/// Gives up the protection that [`is_protected`] finds. Otherwise workloads would inherit it from
/// their engine: one that takes all memory would be as safe as the agent.
fn give_up_protection() -> io::Result<()> {
    // A child that stays protected is better than none.
    if let Ok(file) = rustix::fs::open(
        c"/proc/self/oom_score_adj",
        OFlags::WRONLY | OFlags::CLOEXEC,
        Mode::empty(),
    ) {
        let _ = rustix::io::write(&file, b"0");
    }
    Ok(())
}

// -------------------------------------------------------------------- pipes

/// One output pipe and the kept part of its content.
#[derive(Debug)]
struct Capture<P> {
    pipe: Option<P>,
    kept: Vec<u8>,
    discarded: u64,
    bound: usize,
    /// Whether the end is kept in place of the beginning: the reason comes last, after the progress
    /// of a pull for example.
    keeps_end: bool,
}

impl<P: Read + AsFd> Capture<P> {
    fn new(pipe: Option<P>, bound: usize, keeps_end: bool) -> Self {
        Self {
            pipe: nonblocking(pipe),
            kept: Vec::new(),
            discarded: 0,
            bound,
            keeps_end,
        }
    }

    /// Reads the content of the pipe, at most its capacity: a grandchild that keeps it open, such
    /// as podman's monitor of a container, may write forever. Closes the pipe at its end.
    fn drain(&mut self) {
        let mut chunk = [0_u8; 16 * 1024];
        let mut total = 0;
        while total < PIPE_CONTENT_MAX
            && let Some(pipe) = &mut self.pipe
        {
            match pipe.read(&mut chunk) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => self.pipe = None,
                Ok(count) => {
                    total += count;
                    self.take(&chunk[..count]);
                }
            }
        }
    }

    /// Keeps bytes of the output within the bound.
    fn take(&mut self, bytes: &[u8]) {
        self.kept.extend_from_slice(bytes);
        let surplus = self.kept.len().saturating_sub(self.bound);
        self.discarded += surplus as u64;
        if self.keeps_end {
            self.kept.drain(..surplus);
        } else {
            self.kept.truncate(self.bound);
        }
    }
}

/// Makes a pipe nonblocking. `None` if that fails: a blocking pipe could hang this thread forever,
/// so no input or output at all is better.
fn nonblocking<P: AsFd>(pipe: Option<P>) -> Option<P> {
    let pipe = pipe?;
    match fcntl_setfl(&pipe, OFlags::NONBLOCK) {
        Ok(()) => Some(pipe),
        Err(_) => None,
    }
}

/// The pipe to the standard input, and the bytes that were not written yet.
struct PendingInput<'a> {
    pipe: ChildStdin,
    rest: &'a [u8],
}

// ------------------------------------------------------------- running call

/// The progress of ending a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    /// SIGTERM was sent, and SIGKILL follows.
    Terminated {
        ending: Ending,
        kill_at: Instant,
    },
    /// SIGKILL was sent. After a while the wait for a process that the kernel cannot end is over.
    Killed {
        ending: Ending,
        give_up_at: Instant,
    },
}

/// A started child with everything needed to wait for it.
struct RunningCall<'a> {
    child: Option<Child>,
    pid: Pid,
    pidfd: Option<OwnedFd>,
    stdin: Option<PendingInput<'a>>,
    input_error: Option<io::Error>,
    stdout: Capture<ChildStdout>,
    stderr: Capture<ChildStderr>,
    bounds: OutputBounds,
    began: Instant,
    limit: Option<Duration>,
    kill_grace: Duration,
    stage: Stage,
}

impl<'a> RunningCall<'a> {
    fn new(mut child: Child, call: &ChildCall<'a>) -> Self {
        let pid = Pid::from_child(&child);
        let rest = call.input;
        let stdin = nonblocking(child.stdin.take());
        Self {
            pid,
            // The child is not reaped yet, so its pid cannot mean another process.
            pidfd: pidfd_open(pid, PidfdFlags::empty()).ok(),
            stdin: stdin.map(|pipe| PendingInput { pipe, rest }),
            input_error: None,
            stdout: Capture::new(child.stdout.take(), call.bounds.output_max, false),
            stderr: Capture::new(child.stderr.take(), call.bounds.error_max, true),
            child: Some(child),
            bounds: call.bounds,
            began: SystemClock.now(),
            limit: call.limit,
            kill_grace: call.kill_grace,
            stage: Stage::Running,
        }
    }

    /// Waits for the end of the child; `None` if even SIGKILL did not end it.
    fn wait(
        &mut self,
        cancel: Cancel<'_>,
        more_time: impl FnOnce() -> Option<Duration>,
    ) -> Option<ExitStatus> {
        let mut more_time = Some(more_time);
        loop {
            // First, write input, and end the call if its time is over.
            self.feed();
            let age = SystemClock.now().saturating_duration_since(self.began);
            if self.stage == Stage::Running
                && let Some(limit) = self.limit
                && limit <= age
            {
                let extra = match more_time.take() {
                    Some(more_time) => more_time(),
                    None => None,
                };
                match extra {
                    Some(extra) => self.limit = Some(limit.saturating_add(extra)),
                    None => self.end(Ending::TimedOut(limit)),
                }
            }
            self.escalate();
            if self.is_given_up() {
                return None;
            }
            // Then, wait, and take the output.
            self.turn(cancel, age);
            if self.bounds.end_when_exceeded && self.stdout.discarded > 0 {
                self.end(Ending::TooMuchOutput);
            }
            // Finally, check for the end without reaping the child: while it is a zombie, its
            // group keeps its number.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if !matches!(waitid(WaitId::Pid(self.pid), options), Ok(None)) {
                return self.reap();
            }
        }
    }

    /// Waits in one `poll` for cancellation, the end of the child, output, and room for input. Then
    /// takes the output.
    fn turn(&mut self, cancel: Cancel<'_>, age: Duration) {
        let timeout = self.timeout(age);
        let mut polled = Vec::new();
        // First in the list, cancellation. A call that is being ended cannot be cancelled.
        let mut can_be_cancelled = false;
        if self.stage == Stage::Running
            && let Some(cancel) = cancel
        {
            polled.push(PollFd::from_borrowed_fd(cancel, PollFlags::IN));
            can_be_cancelled = true;
        }
        let readable = [
            self.pidfd.as_ref().map(AsFd::as_fd),
            self.stdout.pipe.as_ref().map(AsFd::as_fd),
            self.stderr.pipe.as_ref().map(AsFd::as_fd),
        ];
        for descriptor in readable.into_iter().flatten() {
            polled.push(PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        }
        if let Some(PendingInput { pipe, .. }) = &self.stdin {
            polled.push(PollFd::new(pipe, PollFlags::OUT));
        }
        // An error, EINTR for one, reports nothing ready; the next turn tries again.
        let _ = poll(&mut polled, timeout.as_ref());
        let is_cancelled = can_be_cancelled && !polled[0].revents().is_empty();
        drop(polled);
        if is_cancelled {
            self.end(Ending::Cancelled);
        }
        self.stdout.drain();
        self.stderr.drain();
    }

    /// Writes as much input as fits. Closes the pipe after the last byte, or if the child has
    /// closed it.
    fn feed(&mut self) {
        while let Some(PendingInput { pipe, rest }) = &mut self.stdin {
            match pipe.write(rest) {
                Ok(count) if count < rest.len() => *rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(_) => self.stdin = None,
                Err(error) => {
                    self.stdin = None;
                    self.input_error = Some(error);
                }
            }
        }
    }

    /// The longest wait of the next `poll`; `None` waits forever.
    fn timeout(&self, age: Duration) -> Option<Timespec> {
        let until_due = match self.stage {
            Stage::Running => self.limit.map(|limit| limit.saturating_sub(age)),
            Stage::Terminated { kill_at, .. } => Some(SystemClock.until(kill_at)),
            Stage::Killed { give_up_at, .. } => Some(SystemClock.until(give_up_at)),
        };
        let wait = match self.pidfd {
            Some(_) => until_due?,
            // Nothing reports the end of the child.
            None => until_due.unwrap_or(Duration::MAX).min(CHILD_POLL_INTERVAL),
        };
        Timespec::try_from(wait).ok()
    }

    /// Sends SIGTERM to the child and its helpers.
    fn end(&mut self, ending: Ending) {
        if self.stage == Stage::Running {
            let _ = kill_process_group(self.pid, Signal::TERM); // It fails if all have ended.
            let kill_at = SystemClock.now() + self.kill_grace;
            self.stage = Stage::Terminated { ending, kill_at };
        }
    }

    /// Sends SIGKILL if the child has not ended in time after SIGTERM.
    fn escalate(&mut self) {
        let now = SystemClock.now();
        if let Stage::Terminated { ending, kill_at } = self.stage
            && kill_at <= now
        {
            let _ = kill_process_group(self.pid, Signal::KILL); // It fails if all have ended.
            let give_up_at = now + KERNEL_KILL_GRACE;
            self.stage = Stage::Killed { ending, give_up_at };
        }
    }

    /// Returns whether the kernel could not end the child in time.
    fn is_given_up(&self) -> bool {
        match self.stage {
            Stage::Killed { give_up_at, .. } => give_up_at <= SystemClock.now(),
            Stage::Running | Stage::Terminated { .. } => false,
        }
    }

    /// Takes the rest of the output and the exit status of the ended child.
    fn reap(&mut self) -> Option<ExitStatus> {
        if self.stage != Stage::Running {
            // Helpers of an ended call end with it. The zombie still holds the group's number.
            let _ = kill_process_group(self.pid, Signal::KILL);
        }
        self.stdout.drain(); // The pipes have the rest of the output.
        self.stderr.drain();
        self.child.take()?.wait().ok()
    }

    /// The end of the call. `status` is `None` if the child could not be ended.
    fn end_with(self, status: Option<ExitStatus>) -> ChildEnd {
        let mut input_error = self.input_error;
        // A child that ends before it has read all input closes the pipe.
        if let Some(PendingInput { rest, .. }) = self.stdin
            && !rest.is_empty()
            && input_error.is_none()
        {
            input_error = Some(io::Error::from(ErrorKind::BrokenPipe));
        }
        let discarded = self.stdout.discarded;
        let ending = match self.stage {
            Stage::Running if self.bounds.end_when_exceeded && discarded > 0 => {
                Ending::TooMuchOutput
            }
            Stage::Running => Ending::Itself,
            Stage::Terminated { ending, .. } | Stage::Killed { ending, .. } => ending,
        };
        let errors = String::from_utf8_lossy(&self.stderr.kept);
        let error_output = match self.stderr.discarded {
            0 => errors.trim().to_owned(),
            _ => format!("... {}", errors.trim()),
        };
        ChildEnd {
            ending,
            status,
            error_output,
            output: self.stdout.kept,
            discarded,
            input_error,
            left_over: self.child,
        }
    }
}

/// Waits on a thread of its own for a killed child that the kernel cannot end yet, so that it
/// leaves no zombie. Drops `held` after its end.
pub fn reap_later(mut child: Child, held: impl Send + 'static) {
    log::warn!(
        "process {} does not end even when killed; not waiting for it any longer",
        child.id()
    );
    let reaper = crate::threads::spawn("reaper", STACK_SMALL, move || {
        let _ = child.wait();
        drop(held);
    });
    if let Err(error) = reaper {
        log::warn!("no thread to wait for a killed process: {error}");
    }
}

// ------------------------------------------ programs whose output is followed
//
// Both outputs share one pipe, so that their lines stay in order. A line without end continues with
// the next output, whichever that is. Nothing is kept here: without a reader the program waits at
// the full pipe.

/// A running program.
#[derive(Debug)]
pub struct FollowedChild {
    child: Option<Child>,
    pid: Pid,
    pidfd: Option<OwnedFd>,
    output: PipeReader,
}

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildOutput {
    /// The number of bytes read.
    Bytes(usize),
    /// There is no output at the moment.
    NotYet,
    /// The end of the output.
    End,
}

impl FollowedChild {
    /// Starts `program`, a path or a name that is looked up in `PATH`, without input.
    pub fn start(
        program: &OsStr,
        arguments: &[String],
        variables: &[(&str, String)],
    ) -> io::Result<Self> {
        let (output, writer) = io::pipe()?;
        fcntl_setfl(&output, OFlags::NONBLOCK)?;
        let mut command = command(program, arguments);
        command.stdout(writer.try_clone()?).stderr(writer);
        command.envs(variables.iter().map(|(name, value)| (*name, value)));
        let child = command.spawn()?;
        drop(command); // It holds the writing end; the pipe ends only when all of these are closed.
        let pid = Pid::from_child(&child);
        // The child is not reaped yet, so its pid cannot mean another process.
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok();
        Ok(Self {
            child: Some(child),
            pid,
            pidfd,
            output,
        })
    }

    /// Descriptors of which one is readable when [`Self::read`] returns output or the end.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let output = Some(self.output.as_fd());
        let end = self.pidfd.as_ref().map(AsFd::as_fd);
        [output, end].into_iter().flatten()
    }

    /// The longest wait for the descriptors; `None` waits forever.
    pub fn wait_max(&self) -> Option<Duration> {
        match self.pidfd {
            Some(_) => None,
            None => Some(CHILD_POLL_INTERVAL),
        }
    }

    /// Reads output into `buffer`; never waits. A helper that keeps the pipe open does not delay
    /// the end.
    pub fn read(&mut self, buffer: &mut [u8]) -> ChildOutput {
        // Checked before the read, so that the pipe has all output of an ended child.
        let ended = match &mut self.child {
            Some(child) => !matches!(child.try_wait(), Ok(None)),
            None => true,
        };
        loop {
            match self.output.read(buffer) {
                Ok(0) => return ChildOutput::End,
                Ok(count) => return ChildOutput::Bytes(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && !ended => {
                    return ChildOutput::NotYet;
                }
                Err(_) => return ChildOutput::End,
            }
        }
    }
}

impl FollowedChild {
    /// The exit status. Waits a moment for it, since the output of a program ends first. `None` if
    /// the program still runs, or the kernel has no status.
    pub fn status(&mut self) -> Option<ExitStatus> {
        if let Ok(Some(status)) = self.child.as_mut()?.try_wait() {
            return Some(status);
        }
        self.wait_for_end();
        self.child.as_mut()?.try_wait().ok()?
    }

    /// Waits until the program has ended, at most for a moment. Usually it ends at once.
    fn wait_for_end(&self) {
        let mut polled = Vec::new();
        let mut wait = CHILD_POLL_INTERVAL; // Nothing reports the end.
        if let Some(pidfd) = &self.pidfd {
            polled.push(PollFd::new(pidfd, PollFlags::IN));
            wait = KERNEL_KILL_GRACE;
        }
        // An error, EINTR for one, only shortens the wait.
        let _ = poll(&mut polled, Timespec::try_from(wait).ok().as_ref());
    }
}

impl Drop for FollowedChild {
    /// Kills the program. It only reads, so nothing is lost.
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        if !matches!(child.try_wait(), Ok(None)) {
            return; // It has ended.
        }
        let _ = kill_process_group(self.pid, Signal::KILL);
        self.wait_for_end();
        if matches!(child.try_wait(), Ok(None)) {
            reap_later(child, ());
        }
    }
}

#[cfg(test)]
mod tests;
