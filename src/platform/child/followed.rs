//! A program whose output is read while it runs, as it comes. Dropping it ends the program.
//!
//! Both outputs share one pipe, so that their lines stay in the order in which they were written; what the program writes
//! without a line end is followed by what it writes next, whatever the output. Nothing is kept here: while nobody reads,
//! the program waits at the full pipe.
//!
//! Thread: the caller's. Owns: the child until it is reaped.

use super::{command, reap_later};
use crate::limits::{CHILD_POLL_INTERVAL, KERNEL_KILL_GRACE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::ffi::OsStr;
use std::io::{self, ErrorKind, PipeReader, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::time::Duration;

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
    pub fn start(program: &OsStr, arguments: &[String], variables: &[(&str, String)]) -> io::Result<Self> {
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
        Ok(Self { child: Some(child), pid, pidfd, output })
    }

    /// Descriptors of which one is readable when [`Self::read`] has something.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [Some(self.output.as_fd()), self.pidfd.as_ref().map(AsFd::as_fd)].into_iter().flatten()
    }

    /// How long to wait for the descriptors at most; `None` for ever.
    pub fn wait_max(&self) -> Option<Duration> {
        self.pidfd.is_none().then_some(CHILD_POLL_INTERVAL)
    }

    /// Reads what is there into `buffer`; never waits. A helper that keeps the pipe open does not delay the end.
    pub fn read(&mut self, buffer: &mut [u8]) -> Output {
        // Checked before reading: what it wrote until its end is in the pipe then.
        let ended = self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
        loop {
            match self.output.read(buffer) {
                Ok(0) => return Output::End,
                Ok(count) => return Output::Bytes(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && !ended => return Output::NotYet,
                Err(_) => return Output::End,
            }
        }
    }
}

impl Drop for FollowedChild {
    /// It only reads, so nothing is lost when it is killed.
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        let _ = kill_process_group(self.pid, Signal::KILL);
        let mut descriptors: Vec<PollFd<'_>> = self.pidfd.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let wait = self.wait_max().unwrap_or(KERNEL_KILL_GRACE);
        let _ = poll(&mut descriptors, Timespec::try_from(wait).ok().as_ref()); // It ends at once, as a rule.
        if matches!(child.try_wait(), Ok(None)) {
            reap_later(child, ());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::clock::{Clock as _, SystemClock};

    fn start(script: &str) -> FollowedChild {
        FollowedChild::start(OsStr::new("sh"), &["-c".into(), script.into()], &[]).unwrap()
    }

    /// Waits for something to read; answers all that was read until the end or until `enough`.
    fn read_until(child: &mut FollowedChild, enough: impl Fn(&str) -> bool) -> (String, Output) {
        let (mut text, mut buffer) = (String::new(), [0; 1024]);
        loop {
            match child.read(&mut buffer) {
                Output::Bytes(count) => text.push_str(std::str::from_utf8(&buffer[..count]).unwrap()),
                Output::End => return (text, Output::End),
                Output::NotYet if enough(&text) => return (text, Output::NotYet),
                Output::NotYet => {
                    let mut polled: Vec<PollFd<'_>> =
                        child.descriptors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
                    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
                    assert_ne!(poll(&mut polled, Some(&limit)), Ok(0), "nothing came, only {text:?}");
                }
            }
        }
    }

    fn exists(pid: impl std::fmt::Display) -> bool {
        std::path::Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn both_outputs_come_in_the_order_in_which_they_were_written() {
        let mut child = start("echo 1; echo 2 >&2; echo 3; echo 4 >&2; printf 5");
        assert_eq!(read_until(&mut child, |_| false), ("1\n2\n3\n4\n5".to_owned(), Output::End));
    }

    #[test]
    fn output_is_read_while_the_program_runs_and_dropping_ends_and_reaps_it() {
        // It ignores what can be ignored, and has a helper.
        let mut child = start("trap '' TERM PIPE; sleep 600 & echo $!; wait");
        let (helper, output) = read_until(&mut child, |text| text.ends_with('\n'));
        assert_eq!(output, Output::NotYet);
        let pid = child.pid.as_raw_nonzero();
        assert!(exists(pid));
        drop(child);
        assert!(!exists(pid), "not even a zombie is left");
        let helper: u32 = helper.trim().parse().unwrap();
        // It was killed, too; how soon that shows is up to the kernel, and who reaps it is not us.
        let state = || std::fs::read_to_string(format!("/proc/{helper}/stat")).unwrap_or_default();
        let begin = SystemClock.now();
        while !(state().is_empty() || state().contains(") Z ") || state().contains(") X ")) {
            assert!(SystemClock.until(begin + Duration::from_secs(60)) > Duration::ZERO, "{}", state());
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_helper_that_keeps_the_pipe_open_does_not_delay_the_end() {
        let mut child = start("sleep 600 & echo $!; exit 3");
        let (helper, output) = read_until(&mut child, |_| false);
        assert_eq!(output, Output::End);
        let helper = Pid::from_raw(helper.trim().parse().unwrap()).unwrap();
        rustix::process::kill_process(helper, Signal::KILL).unwrap();
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error() {
        let error = FollowedChild::start(OsStr::new("/no/such/program"), &[], &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}
