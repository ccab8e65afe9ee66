//! Connections of the server without TLS, all of them on one thread: a silent client costs no thread.
//!
//! Thread: `listen`. Owns: the sockets of these clients, our ends of gRPC's connections.
//! A client costs no connection of gRPC before its first byte.

use super::pump::{Gate, Link, PumpError, Transfer, Wanted};
use crate::limits::HELLO_MAX;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Events taken at once.
const EVENTS: usize = 64;
/// Keys of connections begin here: smaller ones are for what else the thread waits for.
const FIRST_CONNECTION: u64 = 1 << 32;

/// A socket without TLS.
pub struct Plain {
    socket: OwnedFd,
    unsent: Vec<u8>,
    sent: usize,
}

impl Plain {
    /// The socket must not block.
    pub fn new(socket: impl Into<OwnedFd>) -> Self {
        Self { socket: socket.into(), unsent: Vec::new(), sent: 0 }
    }
}

impl Link for Plain {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn read(&mut self, buffer: &mut [u8], is_ready: bool) -> Result<Option<usize>, String> {
        if !is_ready {
            return Ok(None);
        }
        match rustix::io::read(&self.socket, buffer) {
            Ok(count) => Ok(Some(count)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno.to_string()),
        }
    }

    fn queue(&mut self, bytes: Vec<u8>) -> Result<(), String> {
        (self.unsent, self.sent) = (bytes, 0);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), String> {
        while self.wants_write() {
            match send(&self.socket, &self.unsent[self.sent..], SendFlags::NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(errno) => return Err(errno.to_string()),
            }
        }
        (self.unsent, self.sent) = (Vec::new(), 0);
        Ok(())
    }

    fn wants_write(&self) -> bool {
        self.sent < self.unsent.len()
    }

    fn close(&mut self) {}
}

/// Makes a connection of gRPC: our end of it, and what the bytes of the client have to pass.
pub type Open = Box<dyn FnOnce() -> io::Result<(UnixStream, Box<dyn Gate>)> + Send>;

/// Called with the reason when a connection is refused.
pub type OnRefused = Box<dyn FnOnce(&str) + Send>;

/// All connections without TLS.
pub struct PlainPump {
    epoll: OwnedFd,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    /// Connections that go on at some time although nothing comes.
    due: BTreeSet<(Instant, u64)>,
}

impl PlainPump {
    /// Without any connection.
    ///
    /// # Errors
    /// The kernel has no room for it.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, connections: BTreeMap::new(), next: FIRST_CONNECTION, due: BTreeSet::new() })
    }

    /// [`Self::wait`] returns `key`, below 2^32, while `end` is readable.
    ///
    /// # Errors
    /// The kernel has no room for it.
    pub fn watch(&self, end: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, end, EventData::new_u64(key), EventFlags::IN)?)
    }

    /// Ends [`Self::watch`].
    pub fn unwatch(&self, end: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, end); // It is watched, else nothing is lost.
    }

    /// A new client. `open` is called with its first byte.
    ///
    /// # Errors
    /// The kernel has no room for it.
    pub fn add(&mut self, client: Plain, open: Open, on_refused: OnRefused, now: Instant) -> io::Result<()> {
        let key = self.next;
        let mut connection = Connection {
            stage: Stage::Silent { client, until: now + HELLO_MAX, open },
            registered: [EventFlags::empty(); 2],
            due: None,
            on_refused,
        };
        connection.register(&self.epoll, key, now)?;
        self.due.extend(connection.due.map(|due| (due, key)));
        self.connections.insert(key, connection);
        self.next += 2;
        Ok(())
    }

    /// Waits until something comes, at most `limit`, and moves what can be moved. Returns the keys of what else is
    /// readable.
    ///
    /// # Errors
    /// The kernel cannot wait.
    pub fn wait(&mut self, limit: Option<Duration>, clock: impl Fn() -> Instant) -> io::Result<Vec<u64>> {
        let now = clock();
        let due = self.due.first().map(|(due, _)| due.saturating_duration_since(now));
        let time = [limit, due].into_iter().flatten().min();
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        let mut events = Vec::with_capacity(EVENTS);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), time.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let now = clock();
        let mut others = Vec::new();
        for event in events {
            let key = event.data.u64();
            if key < FIRST_CONNECTION {
                others.push(key);
            } else {
                self.step(key & !1, key & 1 == 0, key & 1 == 1, now);
            }
        }
        while let Some((_, key)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.step(key, false, false, now);
        }
        Ok(others)
    }

    fn step(&mut self, key: u64, from_client: bool, from_grpc: bool, now: Instant) {
        // Both ends of one connection may be ready at once, and the first may have ended it.
        let Some(mut connection) = self.connections.remove(&key) else { return };
        if let Some(due) = connection.due.take() {
            self.due.remove(&(due, key));
        }
        let moved = connection.step(from_client, from_grpc, now).and_then(|connection| {
            let Some(mut connection) = connection else { return Ok(None) };
            match connection.register(&self.epoll, key, now) {
                Ok(()) => Ok(Some(connection)),
                Err(error) => Err((connection.on_refused, error.to_string())),
            }
        });
        match moved {
            Ok(Some(connection)) => {
                self.due.extend(connection.due.map(|due| (due, key)));
                self.connections.insert(key, connection);
            }
            Ok(None) => {}
            Err((on_refused, reason)) => on_refused(&reason),
        }
    }
}

/// One client.
struct Connection {
    stage: Stage,
    /// What the kernel watches: the client, gRPC.
    registered: [EventFlags; 2],
    due: Option<Instant>,
    on_refused: OnRefused,
}

enum Stage {
    /// Nothing came yet.
    Silent { client: Plain, until: Instant, open: Open },
    /// Since its first byte.
    Open(Transfer<Plain>),
}

impl Connection {
    /// Moves what can be moved. Returns the connection if it goes on.
    ///
    /// # Errors
    /// Why it is refused.
    fn step(mut self, from_client: bool, from_grpc: bool, now: Instant) -> Result<Option<Self>, (OnRefused, String)> {
        self.stage = match self.stage {
            Stage::Silent { client, open, .. } if from_client => match open() {
                Ok((grpc, gate)) => Stage::Open(Transfer::new(client, grpc, Some(gate))),
                Err(error) => return Err((self.on_refused, error.to_string())),
            },
            Stage::Silent { until, .. } if now >= until => {
                return Err((self.on_refused, format!("it sent nothing within {HELLO_MAX:?}")));
            }
            stage => stage,
        };
        let Stage::Open(transfer) = &mut self.stage else { return Ok(Some(self)) };
        let had_grpc = transfer.grpc().is_some();
        let moved = transfer.step(from_client, from_grpc, now);
        if had_grpc && transfer.grpc().is_none() {
            self.registered[1] = EventFlags::empty(); // Closing it ends that.
        }
        match moved {
            Ok(goes_on) => Ok(goes_on.then_some(self)),
            Err(PumpError::Refused(reason)) => Err((self.on_refused, reason)),
            Err(PumpError::Broken(_)) => Ok(None),
        }
    }

    /// Has the kernel watch for what can be moved next.
    fn register(&mut self, epoll: &OwnedFd, key: u64, now: Instant) -> io::Result<()> {
        let (client, grpc, wanted) = match &self.stage {
            Stage::Silent { client, until, .. } => {
                let wanted = Wanted { link: (true, false), grpc: (false, false), due: Some(*until) };
                (client.socket(), None, wanted)
            }
            Stage::Open(transfer) => (transfer.socket(), transfer.grpc(), transfer.wanted(now)),
        };
        self.due = wanted.due;
        watch(epoll, client, key, &mut self.registered[0], wanted.link)?;
        grpc.map_or(Ok(()), |grpc| watch(epoll, grpc, key + 1, &mut self.registered[1], wanted.grpc))
    }
}

/// An end of which nothing is wanted is left out: the kernel reports its hang-up whether wanted or not, and the loop would
/// spin.
fn watch(
    epoll: &OwnedFd,
    end: BorrowedFd<'_>,
    key: u64,
    registered: &mut EventFlags,
    (read, write): (bool, bool),
) -> io::Result<()> {
    let mut wanted = EventFlags::empty();
    wanted.set(EventFlags::IN, read);
    wanted.set(EventFlags::OUT, write);
    let data = EventData::new_u64(key);
    match (registered.is_empty(), wanted.is_empty()) {
        _ if *registered == wanted => {}
        (true, _) => epoll::add(epoll, end, data, wanted)?,
        (false, true) => epoll::delete(epoll, end)?,
        (false, false) => epoll::modify(epoll, end, data, wanted)?,
    }
    *registered = wanted;
    Ok(())
}

#[cfg(test)]
mod tests;
