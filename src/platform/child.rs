//! Runs an outside program once: no shell, both pipes drained, output capped, time limited, always
//! reaped.
//!
//! The child gets a process group of its own: a Ctrl-C at our terminal reaches us only, so that no
//! call is torn down half way, and a call that takes too long can be ended together with its
//! helpers.
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
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Readable as soon as a call should be cancelled; `None` when it cannot be.
pub type Cancel<'a> = Option<BorrowedFd<'a>>;

/// One call of a program.
#[derive(Debug)]
pub struct ChildCall<'a> {
    /// A path, or a name that is looked up in `PATH`.
    pub program: &'a OsStr,
    /// Its arguments.
    pub arguments: Vec<String>,
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
    /// Why its standard input was not taken completely. `None` for input of at most
    /// [`PIPE_CAPACITY`] bytes: whether a child that reads nothing ends before or after they are in
    /// the pipe is chance.
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
    /// It was cancelled.
    Cancelled,
    /// Its standard output was too long.
    TooMuchOutput,
}

impl<'a> ChildCall<'a> {
    /// Runs the program and waits for its end. When the limit has passed, `more_time` is called
    /// once for additional time.
    pub fn run(
        self,
        cancel: Cancel<'_>,
        more_time: impl FnOnce() -> Option<Duration>,
    ) -> io::Result<ChildEnd> {
        let mut running = RunningCall::new(self.command().spawn()?, &self);
        let status = running.wait(cancel, more_time);
        let mut end = running.end_with(status);
        end.input_error
            .take_if(|_| self.input.len() <= PIPE_CAPACITY);
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

/// A program in a process group of its own, without input and without what a service manager gave
/// to us.
#[allow(clippy::disallowed_methods)] // The one place that starts processes.
fn command(program: &OsStr, arguments: &[String]) -> Command {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .process_group(0)
        .stdin(Stdio::null());
    // What a service manager hands to us and no child may see: it would answer in our name, and
    // with the last one podman leaves what holds its containers in the cgroup of our unit.
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

/// Whether a service manager has other processes killed before this one when memory runs out
/// (`OOMScoreAdjust=`). Read once: it does not change while we run.
fn is_protected() -> bool {
    static PROTECTED: OnceLock<bool> = OnceLock::new();
    // Where the kernel keeps how likely this process is killed when memory runs out.
    *PROTECTED.get_or_init(|| {
        is_negative(&std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default())
    })
}

fn is_negative(adjustment: &str) -> bool {
    adjustment
        .trim()
        .parse::<i32>()
        .is_ok_and(|adjustment| adjustment < 0)
}

/// Makes this process as likely to be killed as any other. An engine passes on what it has: a
/// workload that takes all memory would be as safe as the agent.
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

/// One output pipe and what is kept of it.
#[derive(Debug)]
struct Capture<P> {
    pipe: Option<P>,
    kept: Vec<u8>,
    discarded: u64,
    bound: usize,
    /// Whether the end is kept and not the beginning: the reason comes last, after the progress of
    /// a pull for example.
    keeps_end: bool,
}

impl<P: Read + AsFd> Capture<P> {
    fn new(pipe: Option<P>, bound: usize, keeps_end: bool) -> Self {
        // A pipe that cannot be made non-blocking could hang this thread for ever; better no output
        // at all.
        let pipe = pipe.filter(|pipe| fcntl_setfl(pipe, OFlags::NONBLOCK).is_ok());
        Self {
            pipe,
            kept: Vec::new(),
            discarded: 0,
            bound,
            keeps_end,
        }
    }

    /// Reads what is there, at most what a pipe can hold: a grandchild that keeps it open (podman's
    /// monitor of a container does) may write for ever. Forgets the pipe at its end.
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
    stdin: Option<(ChildStdin, &'a [u8])>,
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
        let stdin = child
            .stdin
            .take()
            .filter(|pipe| fcntl_setfl(pipe, OFlags::NONBLOCK).is_ok());
        Self {
            pid,
            // The child is not reaped yet, so its pid cannot mean another process.
            pidfd: pidfd_open(pid, PidfdFlags::empty()).ok(),
            stdin: stdin.map(|pipe| (pipe, call.input)),
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

    /// Waits for the end of the child; `None` when even SIGKILL did not end it.
    fn wait(
        &mut self,
        cancel: Cancel<'_>,
        more_time: impl FnOnce() -> Option<Duration>,
    ) -> Option<ExitStatus> {
        let mut more_time = Some(more_time);
        loop {
            self.feed();
            let age = SystemClock.now().saturating_duration_since(self.began);
            if self.stage == Stage::Running && self.limit.is_some_and(|limit| limit <= age) {
                match more_time.take().and_then(|ask| ask()) {
                    Some(extra) => self.limit = self.limit.map(|limit| limit.saturating_add(extra)),
                    None => self.end(Ending::TimedOut(self.limit.unwrap_or_default())),
                }
            }
            if self.escalate() {
                return None;
            }
            self.turn(cancel, age);
            if self.bounds.end_when_exceeded && self.stdout.discarded > 0 {
                self.end(Ending::TooMuchOutput);
            }
            // It is not reaped yet, so that its number stays that of its group.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if !matches!(waitid(WaitId::Pid(self.pid), options), Ok(None)) {
                return self.reap();
            }
        }
    }

    /// One `poll`, which the input that fits and the end of the child end too; then takes the
    /// output that is there.
    fn turn(&mut self, cancel: Cancel<'_>, age: Duration) {
        let timeout = self.timeout(age);
        let cancel = cancel.filter(|_| self.stage == Stage::Running);
        let readable = [
            cancel,
            self.pidfd.as_ref().map(AsFd::as_fd),
            self.stdout.pipe.as_ref().map(AsFd::as_fd),
            self.stderr.pipe.as_ref().map(AsFd::as_fd),
        ];
        let readable = readable
            .into_iter()
            .flatten()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let writable = self
            .stdin
            .iter()
            .map(|(fd, _)| PollFd::new(fd, PollFlags::OUT));
        let mut polled: Vec<PollFd<'_>> = readable.chain(writable).collect();
        // An error, EINTR for one, reports nothing ready; the next turn tries again.
        let _ = poll(&mut polled, timeout.as_ref());
        let is_cancelled = cancel.is_some() && !polled[0].revents().is_empty();
        drop(polled);
        if is_cancelled {
            self.end(Ending::Cancelled);
        }
        self.stdout.drain();
        self.stderr.drain();
    }

    /// Writes as much input as fits; closes the pipe after the last byte or when the child has
    /// closed it.
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

    /// How long the next `poll` may wait; `None` for ever.
    fn timeout(&self, age: Duration) -> Option<Timespec> {
        let stage = match self.stage {
            Stage::Running => self.limit.map(|limit| limit.saturating_sub(age)),
            Stage::Asked(_, at) | Stage::Killed(_, at) => Some(SystemClock.until(at)),
        };
        let without_pidfd = self.pidfd.is_none().then_some(CHILD_POLL_INTERVAL);
        let wait = [stage, without_pidfd].into_iter().flatten().min()?;
        Timespec::try_from(wait).ok()
    }

    /// Sends SIGTERM to the child and its helpers.
    fn end(&mut self, ending: Ending) {
        if self.stage == Stage::Running {
            let _ = kill_process_group(self.pid, Signal::TERM);
            self.stage = Stage::Asked(ending, SystemClock.now() + self.kill_grace);
        }
    }

    /// Goes to the next stage of ending when its time has come; true when there is nothing left to
    /// try.
    fn escalate(&mut self) -> bool {
        let now = SystemClock.now();
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

    /// Takes the rest of the output and the exit status of the ended child.
    fn reap(&mut self) -> Option<ExitStatus> {
        if self.stage != Stage::Running {
            // Helpers of a call that was ended go with it. The zombie still holds the group's
            // number.
            let _ = kill_process_group(self.pid, Signal::KILL);
        }
        self.stdout.drain(); // What the child wrote is in the pipes.
        self.stderr.drain();
        self.child.take()?.wait().ok()
    }

    fn end_with(self, status: Option<ExitStatus>) -> ChildEnd {
        let unread = self
            .stdin
            .filter(|(_, rest)| !rest.is_empty())
            .map(|_| io::Error::from(ErrorKind::BrokenPipe));
        let discarded = self.stdout.discarded;
        let ending = match self.stage {
            Stage::Running if self.bounds.end_when_exceeded && discarded > 0 => {
                Ending::TooMuchOutput
            }
            Stage::Running => Ending::Itself,
            Stage::Asked(ending, _) | Stage::Killed(ending, _) => ending,
        };
        let mark = if self.stderr.discarded == 0 {
            ""
        } else {
            "... "
        };
        ChildEnd {
            ending,
            status,
            error_output: format!(
                "{mark}{}",
                String::from_utf8_lossy(&self.stderr.kept).trim()
            ),
            output: self.stdout.kept,
            discarded,
            input_error: self.input_error.or(unread),
            left_over: self.child,
        }
    }
}

/// Waits on a thread of its own for a killed child that the kernel cannot end yet, so that it
/// leaves no zombie. `held` is dropped when it has ended.
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
// Both outputs share one pipe, so that their lines stay in the order in which they were written;
// what the program writes without a line end is followed by what it writes next, whatever the
// output. Nothing is kept here: while nobody reads, the program waits at the full pipe.

/// A running program.
#[derive(Debug)]
pub struct FollowedChild {
    child: Option<Child>,
    pid: Pid,
    pidfd: Option<OwnedFd>,
    output: PipeReader,
}

/// What a read gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// This many bytes.
    Bytes(usize),
    /// Nothing now.
    NotYet,
    /// Nothing any more.
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

    /// Descriptors of which one is readable when [`Self::read`] has something.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [
            Some(self.output.as_fd()),
            self.pidfd.as_ref().map(AsFd::as_fd),
        ]
        .into_iter()
        .flatten()
    }

    /// How long to wait for the descriptors at most; `None` for ever.
    pub fn wait_max(&self) -> Option<Duration> {
        self.pidfd.is_none().then_some(CHILD_POLL_INTERVAL)
    }

    /// Reads what is there into `buffer`; never waits. A helper that keeps the pipe open does not
    /// delay the end.
    pub fn read(&mut self, buffer: &mut [u8]) -> Output {
        // Checked before reading: what it wrote until its end is in the pipe then.
        let ended = self
            .child
            .as_mut()
            .is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
        loop {
            match self.output.read(buffer) {
                Ok(0) => return Output::End,
                Ok(count) => return Output::Bytes(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && !ended => {
                    return Output::NotYet;
                }
                Err(_) => return Output::End,
            }
        }
    }
}

impl FollowedChild {
    /// How it ended; waits a moment for that, because its output ends first. `None` when it goes
    /// on, or nobody can tell.
    pub fn status(&mut self) -> Option<ExitStatus> {
        let child = self.child.as_mut()?;
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        let mut descriptors: Vec<PollFd<'_>> = self
            .pidfd
            .iter()
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        let wait = if self.pidfd.is_some() {
            KERNEL_KILL_GRACE
        } else {
            CHILD_POLL_INTERVAL
        };
        // It ends at once, as a rule.
        let _ = poll(&mut descriptors, Timespec::try_from(wait).ok().as_ref());
        child.try_wait().ok().flatten()
    }
}

impl Drop for FollowedChild {
    /// It only reads, so nothing is lost when it is killed.
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        let _ = kill_process_group(self.pid, Signal::KILL);
        let mut descriptors: Vec<PollFd<'_>> = self
            .pidfd
            .iter()
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        let wait = self.wait_max().unwrap_or(KERNEL_KILL_GRACE);
        // It ends at once, as a rule.
        let _ = poll(&mut descriptors, Timespec::try_from(wait).ok().as_ref());
        if matches!(child.try_wait(), Ok(None)) {
            reap_later(child, ());
        }
    }
}

#[cfg(test)]
mod tests;
