//! Reports the end of containers' processes at once, without a call of the engine.
//!
//! Each process is held by a pidfd in one epoll set. A pid alone proves nothing: it may be in use
//! by another process by now, and it means something else entirely when the engine runs in another
//! pid namespace. So after the pidfd is open, `/proc` must show that the process belongs to the
//! container: by its control group, or by the engine's monitor (conmon) as its parent. Where that
//! cannot be shown, the caller has to poll.
//!
//! Thread: that of the owner of [`ExitWatch`], `watch` in an agent: it adds processes and waits for
//! their ends.
//! Gives: the key of each process that ended, once.

use super::{ContainerId, MainProcess};
use ankaios_platform::sync::EventFd;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, getrlimit, pidfd_open};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Key of the descriptor that wakes the owner.
const WOKEN: u64 = u64::MAX;
/// Key of the descriptor that ends the owner.
const STOP: u64 = u64::MAX - 1;

/// Ends that are taken from the kernel at once.
const ENDS_AT_ONCE: usize = 16;

/// The set of watched processes.
#[derive(Debug)]
pub struct ExitWatch {
    set: Arc<OwnedFd>,
    woken: EventFd,
    /// A closed descriptor would leave the set.
    _stop: OwnedFd,
}

/// One watched process, until dropped.
#[derive(Debug)]
pub struct WatchedProcess {
    set: Arc<OwnedFd>,
    pidfd: OwnedFd,
}

impl Drop for WatchedProcess {
    fn drop(&mut self) {
        // Closing our descriptor does not remove it from the set while a child that is being
        // started has a copy.
        let _ = epoll::delete(&self.set, &self.pidfd); // It cannot fail: the pidfd is in the set.
    }
}

/// Why a process cannot be watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotWatched {
    /// There is no process with this pid: it has ended, or it lives in another pid namespace.
    Gone,
    /// The pid is not the container's, the kernel has no pidfd, or there are too few descriptors.
    Unable,
}

impl ExitWatch {
    /// An empty set. [`Self::wait`] ends when the other end of the pipe `stop` is closed.
    pub fn new(stop: OwnedFd) -> io::Result<Self> {
        let set = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let woken = EventFd::new()?;
        let when_readable = epoll::EventFlags::IN;
        epoll::add(
            &set,
            &woken,
            epoll::EventData::new_u64(WOKEN),
            when_readable,
        )?;
        epoll::add(&set, &stop, epoll::EventData::new_u64(STOP), when_readable)?;
        Ok(Self {
            set,
            woken,
            _stop: stop,
        })
    }

    /// The descriptor that ends a wait when it is set.
    pub fn waker(&self) -> EventFd {
        self.woken.clone()
    }

    /// Watches `process`. [`Self::wait`] returns `key` when it has ended.
    pub fn watch(&self, key: u64, process: &MainProcess) -> Result<WatchedProcess, NotWatched> {
        let raw = i32::try_from(process.pid).map_err(|_| NotWatched::Unable)?;
        let pid = Pid::from_raw(raw).ok_or(NotWatched::Unable)?;
        let pidfd = open(pid)?;
        if !leaves_enough(pidfd.as_fd()) {
            return Err(NotWatched::Unable);
        }
        // Checked after the pidfd is open: if the pid is reused later, the pidfd has ended.
        if !belongs_to(pid, &process.container.0) {
            open(pid)?; // Fails with `Gone` if the process has ended meanwhile.
            return Err(NotWatched::Unable);
        }
        let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        if epoll::add(&self.set, &pidfd, epoll::EventData::new_u64(key), once).is_err() {
            return Err(NotWatched::Unable);
        }
        Ok(WatchedProcess {
            set: self.set.clone(),
            pidfd,
        })
    }

    /// Waits until processes end, the waker is set, or `timeout` is over. Returns the keys of the
    /// processes that have ended, each once; `None` when the owner must end.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<Vec<u64>>, Errno> {
        let mut events = Vec::with_capacity(ENDS_AT_ONCE);
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        let space = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.set, space, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let mut ended = Vec::new();
        for event in events {
            match event.data.u64() {
                STOP => return Ok(None),
                WOKEN => _ = self.woken.reset(),
                key => ended.push(key),
            }
        }
        Ok(Some(ended))
    }
}

fn open(pid: Pid) -> Result<OwnedFd, NotWatched> {
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => Ok(pidfd),
        Err(Errno::SRCH) => Err(NotWatched::Gone),
        Err(_) => Err(NotWatched::Unable),
    }
}

/// Descriptors that are left for calls of the engine and the connection to the server. With fewer,
/// the engine is polled in place of watching another process.
const SPARE_DESCRIPTORS: u64 = 32;

/// Returns whether [`SPARE_DESCRIPTORS`] are left beside this one. The kernel gives the lowest free
/// number, so the number shows how many are in use.
fn leaves_enough(descriptor: BorrowedFd<'_>) -> bool {
    let Some(limit) = getrlimit(Resource::Nofile).current else {
        return true; // There is no limit.
    };
    let number = u64::try_from(descriptor.as_raw_fd());
    number.is_ok_and(|number| number + SPARE_DESCRIPTORS < limit)
}

/// The process whose pid an engine wrote to this file, if it is one of the container.
pub fn main_process(file: &Path, container: &ContainerId) -> Option<MainProcess> {
    let number: i32 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    if number <= 0 {
        return None; // A negative one would mean a group of processes to the kernel.
    }
    if !belongs_to(Pid::from_raw(number)?, &container.0) {
        return None;
    }
    Some(MainProcess {
        container: container.clone(),
        pid: number.unsigned_abs(),
    })
}

/// Returns whether `/proc` shows that the process belongs to the container: its control group has
/// the id of the container, or its parent is the container's monitor, with the id as an argument.
pub(crate) fn belongs_to(pid: Pid, container: &str) -> bool {
    if container.is_empty() {
        return false;
    }
    let own = pid.as_raw_nonzero().to_string();
    if proc_text(&own, "cgroup").contains(container) {
        return true;
    }
    let stat = proc_text(&own, "stat");
    // The name in parentheses may contain anything; the state and the parent follow.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let Some(parent) = fields.split_ascii_whitespace().nth(1) else {
        return false;
    };
    let arguments = proc_text(parent, "cmdline");
    arguments.split('\0').any(|argument| argument == container)
}

fn proc_text(pid: &str, name: &str) -> String {
    let bytes = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
#[cfg_attr(test, allow(clippy::disallowed_methods))]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};
    use std::process::{Child, Command, Stdio};

    const AMPLE: Duration = Duration::from_secs(180);
    const ID: &str = "0123456789abcdef";

    /// An empty set, and what ends its owner when it is closed.
    struct Rig {
        watch: ExitWatch,
        running: OwnedFd,
    }

    impl Rig {
        fn new() -> Self {
            let (stop, running) = pipe_with(PipeFlags::CLOEXEC).unwrap();
            let watch = ExitWatch::new(stop).unwrap();
            Self { watch, running }
        }

        /// Waits for an event. Returns the keys that came with it.
        fn next(&self) -> Vec<u64> {
            self.watch.wait(Some(AMPLE)).unwrap().unwrap()
        }

        /// The keys that are there already.
        fn present(&self) -> Vec<u64> {
            self.watch.wait(Some(Duration::ZERO)).unwrap().unwrap()
        }
    }

    #[test]
    fn wait_ends_when_woken_and_when_its_owner_must_end() {
        let rig = Rig::new();
        rig.watch.waker().set();
        assert_eq!(rig.next(), [0; 0], "woken");
        assert_eq!(rig.present(), [0; 0], "the timeout is over");
        rig.watch.waker().set();
        drop(rig.running);
        assert_eq!(rig.watch.wait(None).unwrap(), None);
    }

    #[test]
    fn pid_file_that_holds_no_process_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        for text in [
            "",
            "0",
            "-1",
            "-5",
            "2147483647",
            "2147483648",
            "-2147483648",
            "18446744073709551616",
            "1.5",
            "x",
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(main_process(&file, &ContainerId(ID.into())), None, "{text}");
        }
    }

    /// A monitor with the container's id among its arguments, and the pid of its child.
    fn monitored() -> (Child, MainProcess) {
        use std::io::{BufRead as _, BufReader};
        let script = "sleep 600 & echo $!; wait";
        let mut monitor = Command::new("sh")
            .args(["-c", script, "conmon", ID])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(monitor.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        (
            monitor,
            MainProcess {
                container: ContainerId(ID.into()),
                pid: line.trim().parse().unwrap(),
            },
        )
    }

    /// A process that has ended and was waited for.
    fn gone() -> MainProcess {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        MainProcess {
            container: ContainerId(ID.into()),
            pid: child.id(),
        }
    }

    fn kill(pid: u32) {
        let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    #[test]
    fn the_end_of_a_process_is_told_once() {
        let rig = Rig::new();
        let (mut monitor, process) = monitored();
        let watched = rig.watch.watch(7, &process).unwrap();
        kill(process.pid);
        assert_eq!(rig.next(), [7]);
        monitor.wait().unwrap();
        assert_eq!(rig.present(), [0; 0], "nothing is told twice");
        drop(watched);
        assert_eq!(rig.present(), [0; 0], "nothing is told twice");
    }

    #[test]
    fn a_process_that_is_not_watched_any_more_is_not_told() {
        let rig = Rig::new();
        let (mut first, process) = monitored();
        let watched = rig.watch.watch(1, &process).unwrap();
        // As a program that is being started has it.
        let copy = rustix::io::fcntl_dupfd_cloexec(&watched.pidfd, 3).unwrap();
        drop(watched);
        kill(process.pid);
        first.wait().unwrap();
        let (mut second, process) = monitored();
        let _watched = rig.watch.watch(2, &process).unwrap();
        kill(process.pid);
        assert_eq!(rig.next(), [2]);
        second.wait().unwrap();
        drop(copy);
    }

    #[test]
    fn a_process_that_is_not_the_containers_is_refused() {
        let watch = Rig::new().watch;
        let (mut monitor, process) = monitored();
        let other = MainProcess {
            container: ContainerId("fedcba9876543210".into()),
            pid: process.pid,
        };
        assert_eq!(
            watch.watch(1, &other).unwrap_err(),
            NotWatched::Unable,
            "another container"
        );
        let own = MainProcess {
            container: ContainerId(ID.into()),
            pid: std::process::id(),
        };
        assert_eq!(
            watch.watch(1, &own).unwrap_err(),
            NotWatched::Unable,
            "another process"
        );
        kill(process.pid);
        monitor.wait().unwrap();
        assert_eq!(
            watch.watch(1, &gone()).unwrap_err(),
            NotWatched::Gone,
            "an ended process"
        );
        for pid in [0, u32::MAX] {
            let nobody = MainProcess {
                container: ContainerId(ID.into()),
                pid,
            };
            assert_eq!(
                watch.watch(1, &nobody).unwrap_err(),
                NotWatched::Unable,
                "{pid}"
            );
        }
    }
}
