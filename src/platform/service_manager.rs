//! Reports to the service manager (systemd): readiness, the status, the progress of all watched
//! threads, and the end. Without a `NOTIFY_SOCKET` nothing is reported and nothing is watched.
//!
//! Thread: `notify` watches and reports; [`StatusBoard`] belongs to all that have a part of the
//! status; `main` starts it and reports the end.
//! Owns: the watched threads' rounds, the socket. Takes: parts of the status, of which only the
//! newest counts.
//!
//! The socket is our own, not that of `sd_notify`: it must work with abstract names, after children
//! were started without the variable, and with a limit for the wait when the manager's queue is
//! full.

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
    status: Mutex<ServiceStatus>,
    changed: Sender<()>,
}

/// The parts of the status; empty ones are left out.
#[derive(Debug, Default)]
struct ServiceStatus {
    connection: String,
    workloads: String,
}

impl ServiceManager {
    /// The manager that the environment names. An unusable name is logged and ignored.
    pub fn from_environment() -> Self {
        let name = std::env::var_os("NOTIFY_SOCKET").unwrap_or_default();
        if name.is_empty() {
            return Self::default();
        }
        let watchdog = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero());
        match Self::new(&name, watchdog) {
            Ok(manager) => manager,
            Err(error) => {
                let name = name.display();
                log::warn!("The service manager cannot be notified at '{name}': {error}");
                Self::default()
            }
        }
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

    /// The board for the status.
    pub fn status(&self) -> StatusBoard {
        self.board.clone()
    }

    /// Starts a thread that reports the start of all `threads`, and then their progress. It ends
    /// when the returned sender is dropped. `None` without a service manager.
    pub fn watch(&self, threads: WatchedThreads) -> io::Result<Option<(Sender<()>, Thread)>> {
        let Some(socket) = self.socket.clone() else {
            return Ok(None);
        };
        let Some(changed) = self.changed.clone() else {
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
    /// Puts the status of connections. Without a service manager, `text` is not called.
    pub fn connection(&self, text: impl FnOnce() -> String) {
        self.put(|status| &mut status.connection, text);
    }

    /// Puts the status of workloads. Without a service manager, `text` is not called.
    pub fn workloads(&self, text: impl FnOnce() -> String) {
        self.put(|status| &mut status.workloads, text);
    }

    fn put(&self, part: fn(&mut ServiceStatus) -> &mut String, text: impl FnOnce() -> String) {
        let Some(board) = &self.0 else { return };
        let text = one_line(&text());
        let mut status = board.status.lock();
        let part = part(&mut status);
        if *part != text {
            *part = text;
            drop(status);
            let _ = board.changed.try_send(()); // Full: `notify` is being woken already.
        }
    }

    fn text(&self) -> String {
        let Some(board) = &self.0 else {
            return String::new();
        };
        let status = board.status.lock();
        let mut parts = vec![status.connection.as_str(), status.workloads.as_str()];
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
    /// The time of the next check of the threads.
    due: Option<Instant>,
    /// The begin of the wait for silent threads.
    late_since: Option<Instant>,
    /// Pause before the next check of silent threads.
    pause: Duration,
    /// Whether the silent threads were named in the log.
    complained: bool,
    /// The status that was sent last.
    sent: String,
    /// The time before which no change of the status is sent.
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

    /// Body of the thread `notify`.
    fn run(mut self, changed: &Receiver<()>, stop: &Receiver<()>) {
        loop {
            let check = self.alarm(self.due);
            let rested = self.alarm(self.rest_until);
            let nothing = never();
            let changed = if self.listens_for_changes() {
                changed
            } else {
                &nothing
            };
            // The status is sent once a second at most, so it never keeps the check from its turn.
            // The check may be due without a pause: it comes last.
            select_biased! {
                recv(stop) -> _ => return,
                recv(changed) -> _ => self.send_status(),
                recv(rested) -> _ => self.rest_until = None,
                recv(check) -> _ => self.check(),
            }
        }
    }

    /// A channel that becomes ready at `at`; never without a time.
    fn alarm(&self, at: Option<Instant>) -> Receiver<Instant> {
        match at {
            Some(at) => self.clock.alarm(at),
            None => never(),
        }
    }

    /// Returns whether a change of the status is sent now. The first status is sent when the
    /// program is ready.
    fn listens_for_changes(&self) -> bool {
        self.ready && self.rest_until.is_none()
    }

    /// Checks the threads, if that is due. Reports once all have made progress. Until then it wakes
    /// the silent ones, and checks again soon.
    fn check(&mut self) {
        let Some(due) = self.due else { return };
        let now = self.clock.now();
        if now < due {
            return;
        }
        let silent = self.threads.wake_silent();
        if silent.is_empty() {
            return self.report_progress(now);
        }
        let late_since = *self.late_since.get_or_insert(now);
        let waited = now.saturating_duration_since(late_since);
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

    /// Reports that all threads made progress, the first time as readiness. Begins the next round.
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
        // Half of the limit: one late report does not end the program.
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

/// A socket, and the address of the service manager.
#[derive(Debug)]
struct ManagerSocket {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl ManagerSocket {
    /// `name` is a path, or `@` and an abstract name.
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

    /// Sends `states` as one message. A lost one is only logged.
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
