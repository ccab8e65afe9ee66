//! The thread that checks all workloads of an agent: one `poll` for all sockets, no process and no thread per check.
//!
//! It is started by the first order, so that an agent without checks has no such thread.
//!
//! Thread: `probes`, which never waits for a control loop. Looking at a file may take as long as its file system does.
//! Owns: the orders and what is asked. Takes: [`ProbeOrder`] from control loops. Gives: [`super::ProbeReport`].

use super::probe_sockets::{SocketIo, Wake};
use super::probe_table::ProbeTable;
use super::{Outcome, ProbeOrder, Probes};
use crate::clock::Clock;
use crate::limits::{NOTIFY_MESSAGE_MAX, NOTIFY_TURN, PROBE_INBOX, STACK_LARGE};
use crate::threads;
use crossbeam_channel::{Receiver, Sender, bounded};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, bind, recv, socket_with};
use rustix::pipe::{PipeFlags, pipe_with};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Orders checks from the thread that makes them.
pub struct Prober<C> {
    clock: C,
    /// `None` before the first order.
    thread: Mutex<Option<Running>>,
}

#[derive(Clone)]
struct Running {
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
}

enum Command {
    Watch(Box<ProbeOrder>),
    Unwatch(u64),
}

impl<C: Clock> Prober<C> {
    /// Starts nothing yet. The thread ends when this is dropped.
    #[must_use]
    pub fn new(clock: C) -> Self {
        Self { clock, thread: Mutex::new(None) }
    }

    fn running(&self) -> io::Result<Running> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = thread.as_ref() {
            return Ok(running.clone());
        }
        let (commands, orders) = bounded(PROBE_INBOX);
        let (woken, wake) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let wake = Arc::new(wake);
        let for_commands = Arc::downgrade(&wake);
        let io = SocketIo::new(Arc::new(move || for_commands.upgrade().iter().for_each(|wake| wake_up(wake))) as Wake);
        let clock = self.clock.clone();
        threads::spawn("probes", STACK_LARGE, move || Loop { table: ProbeTable::new(io), clock, orders, woken }.run())?;
        Ok(thread.insert(Running { commands, wake }).clone())
    }

    fn send(&self, command: Command) {
        match self.running() {
            Ok(running) => {
                let _ = running.commands.send(command); // Gone only at the end.
                wake_up(&running.wake);
            }
            Err(error) => {
                log::error!("There is no thread to check workloads with: {error}");
                if let Command::Watch(order) = command {
                    let outcome = Outcome::fails(format!("no thread to ask with: {error}"));
                    let report = super::ProbeReport {
                        key: order.key,
                        outcome,
                        in_a_row: 1,
                        attempts: 1,
                        is_verdict: order.failures == Some(1),
                    };
                    let _ = order.reports.try_send(report); // It has room: nothing was reported yet.
                }
            }
        }
    }
}

impl<C: Clock + Sync> Probes for Prober<C> {
    fn watch(&self, order: ProbeOrder) {
        self.send(Command::Watch(Box::new(order)));
    }

    fn unwatch(&self, key: u64) {
        self.send(Command::Unwatch(key));
    }
}

fn wake_up(wake: &OwnedFd) {
    let _ = rustix::io::write(wake, &[0]); // Full means that it is being woken already.
}

/// A notify socket at `path`, which nothing else can be using.
///
/// # Errors
/// The path is too long for a socket, or its folder cannot be used.
pub fn notify_socket(path: &Path) -> io::Result<OwnedFd> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

struct Loop<C> {
    table: ProbeTable<SocketIo>,
    clock: C,
    orders: Receiver<Command>,
    /// Becomes readable when there is an order, and for good when nobody can order any more.
    woken: OwnedFd,
}

#[derive(Clone, Copy)]
enum Source {
    Woken,
    Answer(u64),
    Notify(u64),
}

impl<C: Clock> Loop<C> {
    fn run(mut self) {
        loop {
            let Ok(ready) = self.wait() else { continue }; // Interrupted.
            for source in ready {
                match source {
                    Source::Woken => {
                        let mut bytes = [0_u8; 64];
                        if rustix::io::read(&self.woken, &mut bytes[..]) == Ok(0) {
                            return;
                        }
                    }
                    Source::Answer(key) => {
                        if let Some(outcome) = self.table.io.ready(key) {
                            self.table.ended(key, outcome, self.clock.now());
                        }
                    }
                    Source::Notify(key) => self.read_notifications(key),
                }
            }
            for command in self.orders.try_iter() {
                match command {
                    Command::Watch(order) => self.table.watch(*order, self.clock.now()),
                    Command::Unwatch(key) => self.table.unwatch(key),
                }
            }
            for (key, outcome) in self.table.io.take_ended_commands() {
                self.table.ended(key, outcome, self.clock.now());
            }
            self.table.turn(self.clock.now());
        }
    }

    fn wait(&self) -> io::Result<Vec<Source>> {
        let now = self.clock.now();
        let timeout = self.table.due(now).map(|at| at.saturating_duration_since(now));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut sources = vec![Source::Woken];
        let mut polled = vec![PollFd::new(&self.woken, PollFlags::IN)];
        for (key, socket, flags) in self.table.io.descriptors() {
            sources.push(Source::Answer(key));
            polled.push(PollFd::from_borrowed_fd(socket, flags));
        }
        for order in self.table.orders() {
            if let Some(socket) = &order.notify {
                sources.push(Source::Notify(order.key));
                polled.push(PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN));
            }
        }
        poll(&mut polled, timeout.as_ref())?;
        let ready = sources.iter().zip(&polled).filter(|(_, polled)| !polled.revents().is_empty());
        Ok(ready.map(|(source, _)| *source).collect())
    }

    fn read_notifications(&mut self, key: u64) {
        let socket = self.table.orders().find(|order| order.key == key).and_then(|order| order.notify.clone());
        let Some(socket) = socket else { return };
        let mut message = [0_u8; NOTIFY_MESSAGE_MAX];
        for _ in 0..NOTIFY_TURN {
            let Ok((length, _)) = recv(&socket, &mut message[..], RecvFlags::empty()) else { return };
            self.table.notified(key, &message[..length], self.clock.now());
        }
    }
}

#[cfg(test)]
mod tests;
