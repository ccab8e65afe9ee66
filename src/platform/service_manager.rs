//! Reports to the service manager (systemd) that the program is ready, its status, that it ends,
//! and that all watched threads make progress. Without a `NOTIFY_SOCKET` nothing is reported and
//! nothing is watched.
//!
//! Thread: `notify` watches and reports; [`StatusBoard`] belongs to all that have a part of the
//! status; `main` starts it and reports the end.
//! Owns: the watched threads' rounds, the socket. Takes: parts of the status, of which only the
//! newest counts.
//!
//! The socket is ours because it has to work after children were started without the variable, with
//! abstract names too, and with a bound on how long a full queue of the manager is waited for.

use crate::clock::{Clock, SystemClock};
use crate::limits::STACK_SMALL;
use crate::sync::Mutex;
use crate::threads::{self, Thread};
use crate::watchdog::WatchedThreads;
use crossbeam_channel::{Receiver, Sender, bounded, never, select_biased};
use sd_notify::NotifyState;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A changed status is sent at most this often: it is for people.
const SERVICE_STATUS_REST: Duration = Duration::from_secs(1);
/// Longest part of the status, in bytes; it is shown on one line.
const SERVICE_STATUS_MAX: usize = 300;
/// First pause before a woken thread is checked again; it doubles. A turn takes less than a
/// millisecond.
const VITAL_CHECK_FIRST: Duration = Duration::from_millis(2);
/// Longest pause between two such checks. Much less than half of the shortest sensible
/// `WatchdogSec`.
const VITAL_CHECK_MAX: Duration = Duration::from_millis(250);

/// Time after which a thread without progress is named in the log, before the service manager kills
/// the program.
const COMPLAINT_AFTER: Duration = Duration::from_secs(2);
/// Longest wait for the service manager to take a message. A busy one needs milliseconds; otherwise
/// it is gone.
const SEND_MAX: Duration = Duration::from_secs(1);

/// The service manager that started us, if there is one.
#[derive(Debug, Default)]
pub struct ServiceManager {
    socket: Option<Arc<ManagerSocket>>,
    /// A program that is silent for this long is killed.
    watchdog: Option<Duration>,
    board: StatusBoard,
    changed: Option<Receiver<()>>,
}

/// Where the parts of the status are put. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct StatusBoard(Option<Arc<Board>>);

#[derive(Debug)]
struct Board {
    /// That of connections and that of workloads.
    status: Mutex<[String; 2]>,
    changed: Sender<()>,
}

impl ServiceManager {
    /// The manager that the environment names. What does not make sense there is logged and
    /// ignored.
    pub fn from_environment() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self::default();
        };
        let watchdog = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero());
        Self::new(&name, watchdog).unwrap_or_else(|error| {
            log::warn!(
                "The service manager cannot be notified at '{}': {error}",
                name.display()
            );
            Self::default()
        })
    }

    fn new(socket: &OsStr, watchdog: Option<Duration>) -> io::Result<Self> {
        let (changed, changes) = bounded(1);
        let board = Board {
            status: Mutex::default(),
            changed,
        };
        Ok(Self {
            socket: Some(Arc::new(ManagerSocket::new(socket)?)),
            watchdog,
            board: StatusBoard(Some(Arc::new(board))),
            changed: Some(changes),
        })
    }

    /// Where to put the status.
    pub fn status(&self) -> StatusBoard {
        self.board.clone()
    }

    /// Starts the thread that reports that all of `threads` run, and from then on that they make
    /// progress. It ends when the returned sender is dropped; `None` without a service manager.
    pub fn watch(&self, threads: WatchedThreads) -> io::Result<Option<(Sender<()>, Thread)>> {
        let (Some(socket), Some(changed)) = (self.socket.clone(), self.changed.clone()) else {
            return Ok(None);
        };
        let (running, stop) = bounded::<()>(0);
        let notifier = Notifier::new(
            socket,
            self.board.clone(),
            threads,
            self.watchdog,
            SystemClock,
        );
        let thread = threads::spawn("notify", STACK_SMALL, move || notifier.run(&changed, &stop))?;
        Ok(Some((running, thread)))
    }

    /// Reports that the program is ending.
    pub fn stopping(&self) {
        if let Some(socket) = &self.socket {
            socket.send(&[NotifyState::Stopping, NotifyState::Status("Stopping")]);
        }
    }
}

impl StatusBoard {
    /// Puts the status of connections; `text` is called only when there is a service manager.
    pub fn connection(&self, text: impl FnOnce() -> String) {
        self.put(0, text);
    }

    /// Puts the status of workloads; `text` is called only when there is a service manager.
    pub fn workloads(&self, text: impl FnOnce() -> String) {
        self.put(1, text);
    }

    fn put(&self, part: usize, text: impl FnOnce() -> String) {
        let Some(board) = &self.0 else { return };
        let text = one_line(&text());
        let mut status = board.status.lock();
        if status[part] != text {
            status[part] = text;
            drop(status);
            let _ = board.changed.try_send(()); // Full: `notify` is being woken already.
        }
    }

    fn text(&self) -> String {
        let Some(board) = &self.0 else {
            return String::new();
        };
        let mut parts = board.status.lock().to_vec();
        parts.retain(|part| !part.is_empty());
        parts.join("; ")
    }
}

/// Joins the lines of a text: the protocol has one line for a status.
fn one_line(text: &str) -> String {
    let mut line = text.replace(char::is_control, " ");
    line.truncate(line.floor_char_boundary(SERVICE_STATUS_MAX));
    line
}

// ------------------------------------------------------------------ the thread

struct Notifier<C> {
    socket: Arc<ManagerSocket>,
    board: StatusBoard,
    threads: WatchedThreads,
    watchdog: Option<Duration>,
    clock: C,
    /// Whether all threads have run.
    ready: bool,
    /// When to check the threads next.
    due: Option<Instant>,
    /// Since when some of them are waited for.
    late_since: Option<Instant>,
    /// Pause before the next check of these.
    pause: Duration,
    complained: bool,
    /// The status that was sent last.
    sent: String,
    /// Before this no change of it is sent.
    rest_until: Option<Instant>,
}

impl<C: Clock> Notifier<C> {
    fn new(
        socket: Arc<ManagerSocket>,
        board: StatusBoard,
        threads: WatchedThreads,
        watchdog: Option<Duration>,
        clock: C,
    ) -> Self {
        let now = clock.now();
        Self {
            socket,
            board,
            threads,
            watchdog,
            clock,
            ready: false,
            due: Some(now),
            late_since: None,
            pause: VITAL_CHECK_FIRST,
            complained: false,
            sent: String::new(),
            rest_until: None,
        }
    }

    fn run(mut self, changed: &Receiver<()>, stop: &Receiver<()>) {
        loop {
            let check = self.due.map_or_else(never, |at| self.clock.alarm(at));
            let rested = self
                .rest_until
                .map_or_else(never, |at| self.clock.alarm(at));
            let nothing = never();
            let changed = if self.listens_for_changes() {
                changed
            } else {
                &nothing
            };
            select_biased! {
                recv(stop) -> _ => return,
                recv(check) -> _ => self.check(),
                recv(changed) -> _ => self.send_status(),
                recv(rested) -> _ => self.rest_until = None,
            }
        }
    }

    /// Before the program is ready its status is sent together with that.
    fn listens_for_changes(&self) -> bool {
        self.ready && self.rest_until.is_none()
    }

    /// Checks the threads. Once all have made progress, reports it and begins the next round; until
    /// then the others are woken and checked again soon.
    fn check(&mut self) {
        let now = self.clock.now();
        if self.due.is_none_or(|at| now < at) {
            return;
        }
        let silent = self.threads.nudge_silent();
        if silent.is_empty() {
            return self.report_progress(now);
        }
        let waited = now.saturating_duration_since(*self.late_since.get_or_insert(now));
        if waited >= COMPLAINT_AFTER && !self.complained {
            log::warn!(
                "Waiting for the thread(s) '{}', which make no progress.",
                silent.join("', '")
            );
            self.complained = true;
        }
        self.due = Some(now + self.pause);
        self.pause = (self.pause * 2).min(VITAL_CHECK_MAX);
    }

    fn report_progress(&mut self, now: Instant) {
        if self.complained {
            log::warn!("All threads make progress again.");
        }
        if self.ready {
            self.socket.send(&[NotifyState::Watchdog]);
        } else {
            self.ready = true;
            self.sent = self.board.text();
            self.rest_until = Some(now + SERVICE_STATUS_REST);
            self.socket
                .send(&[NotifyState::Ready, NotifyState::Status(&self.sent)]);
        }
        self.threads.begin_round();
        self.late_since = None;
        self.pause = VITAL_CHECK_FIRST;
        self.complained = false;
        self.due = self.watchdog.map(|limit| now + limit / 2);
    }

    fn send_status(&mut self) {
        let text = self.board.text();
        if text != self.sent {
            self.sent = text;
            self.rest_until = Some(self.clock.now() + SERVICE_STATUS_REST);
            self.socket.send(&[NotifyState::Status(&self.sent)]);
        }
    }
}

// ------------------------------------------------------------------ the socket

/// Where the service manager listens.
#[derive(Debug)]
struct ManagerSocket {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl ManagerSocket {
    /// A path, or `@` and an abstract name.
    fn new(name: &OsStr) -> io::Result<Self> {
        let address = match name.as_bytes() {
            [b'/', ..] => SocketAddr::from_pathname(name)?,
            [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
            _ => {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "it is neither a path nor an abstract name",
                ));
            }
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(SEND_MAX))?;
        Ok(Self { socket, address })
    }

    /// Sends all of `states` as one message. Nothing depends on its arrival but what the manager
    /// does next.
    fn send(&self, states: &[NotifyState<'_>]) {
        let message: Vec<String> = states.iter().map(ToString::to_string).collect();
        if let Err(error) = self
            .socket
            .send_to_addr(message.join("\n").as_bytes(), &self.address)
        {
            log::warn!(
                "The service manager was not notified '{}': {error}",
                message.join("', '")
            );
        }
    }
}

#[cfg(test)]
mod tests;
