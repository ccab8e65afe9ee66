//! Bytes between gRPC and its clients without TLS, for all these connections on one thread.
//!
//! Thread: `listen`. Owns: the sockets of these clients, our ends of gRPC's connections, one buffer for each direction.
//! A client is read only when what it sent before was taken, and costs no connection of gRPC before its first byte.

use super::pump::{Gate, Incoming, PumpError, would_block};
use crate::limits::{FAREWELL_BYTES, FAREWELL_MAX, HELLO_MAX, TLS_BUFFER};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Bytes that a client sends after gRPC has ended are thrown away in pieces of this size.
const DISCARDED: usize = 4096;
/// Events taken at once.
const EVENTS: usize = 64;
/// Keys of connections begin here: smaller ones are for what else the thread waits for.
const FIRST_LINK: u64 = 1 << 32;

/// The socket of a client. It must not block.
pub trait Socket: Read + Write + AsFd + Send {
    /// Sends the end of the stream.
    fn end(&self);
}

impl Socket for TcpStream {
    fn end(&self) {
        let _ = self.shutdown(Shutdown::Write); // It may be gone already.
    }
}

impl Socket for UnixStream {
    fn end(&self) {
        let _ = self.shutdown(Shutdown::Write); // As above.
    }
}

/// Makes a connection of gRPC: our end of it, and what the bytes of the client have to pass.
pub type Open = Box<dyn FnOnce() -> io::Result<(UnixStream, Box<dyn Gate>)> + Send>;

/// Called with the reason when a connection ends for another one than that somebody hung up.
pub type OnRefused = Box<dyn FnOnce(&str) + Send>;

/// All connections without TLS.
pub struct PlainPump {
    epoll: OwnedFd,
    links: BTreeMap<u64, Link>,
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
        Ok(Self { epoll, links: BTreeMap::new(), next: FIRST_LINK, due: BTreeSet::new() })
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
    pub fn add(&mut self, client: Box<dyn Socket>, open: Open, on_refused: OnRefused, now: Instant) -> io::Result<()> {
        let key = self.next;
        let mut link = Link {
            client,
            stage: Stage::Silent { until: now + HELLO_MAX, open: Some(open) },
            unsent: Vec::new(),
            range: 0..0,
            registered: [EventFlags::empty(); 2],
            due: None,
            on_refused: Some(on_refused),
        };
        link.register(&self.epoll, key, now)?;
        self.due.extend(link.due.map(|due| (due, key)));
        self.links.insert(key, link);
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
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let now = clock();
        let mut others = Vec::new();
        for event in events {
            let key = event.data.u64();
            if key < FIRST_LINK { others.push(key) } else { self.step(key & !1, key & 1 == 0, key & 1 == 1, now) }
        }
        while let Some((_, key)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.step(key, false, false, now);
        }
        Ok(others)
    }

    fn step(&mut self, key: u64, from_client: bool, from_grpc: bool, now: Instant) {
        // Both ends of one connection may be ready at once, and the first may have ended it.
        let Some(link) = self.links.get_mut(&key) else { return };
        if let Some(due) = link.due.take() {
            self.due.remove(&(due, key));
        }
        let moved = link.step(from_client, from_grpc, now);
        let goes_on = moved.and_then(|goes_on| {
            let registered = if goes_on { link.register(&self.epoll, key, now) } else { Ok(()) };
            registered.map(|()| goes_on).map_err(|error| error.to_string())
        });
        match goes_on {
            Ok(true) => self.due.extend(link.due.map(|due| (due, key))),
            Ok(false) => drop(self.links.remove(&key)),
            Err(reason) => {
                if let Some(on_refused) = self.links.remove(&key).and_then(|mut link| link.on_refused.take()) {
                    on_refused(&reason);
                }
            }
        }
    }
}

/// One client.
struct Link {
    client: Box<dyn Socket>,
    stage: Stage,
    /// Bytes for the client, and which of them it has not taken yet.
    unsent: Vec<u8>,
    range: Range<usize>,
    /// What the kernel was asked to watch: the client, gRPC.
    registered: [EventFlags; 2],
    due: Option<Instant>,
    on_refused: Option<OnRefused>,
}

enum Stage {
    /// Nothing came yet.
    Silent {
        until: Instant,
        open: Option<Open>,
    },
    Open {
        grpc: UnixStream,
        incoming: Incoming,
    },
    /// gRPC has ended. A socket that is closed with unread bytes resets the connection, and the client may lose what
    /// it was sent last, so it is read until the client ends as well.
    Farewell {
        until: Instant,
        has_ended: bool,
    },
}

impl Link {
    /// Moves what can be moved. Returns whether the connection goes on.
    fn step(&mut self, from_client: bool, from_grpc: bool, now: Instant) -> Result<bool, String> {
        if let Stage::Silent { until, open } = &mut self.stage {
            if !from_client {
                return if now < *until { Ok(true) } else { Err(format!("it sent nothing within {HELLO_MAX:?}")) };
            }
            let Some(open) = open.take() else { return Ok(false) };
            let (grpc, gate) = open().map_err(|error| error.to_string())?;
            self.stage = Stage::Open { grpc, incoming: Incoming::new(Some(gate)) };
        }
        if let Stage::Open { grpc, incoming } = &mut self.stage {
            if from_client && incoming.is_empty() && has_ended(incoming.fill_from(&mut self.client)) {
                return Ok(false);
            }
            let mut is_over = false;
            if from_grpc && self.range.is_empty() {
                self.unsent = vec![0; TLS_BUFFER];
                let count = grpc.read(&mut self.unsent);
                self.range = 0..*count.as_ref().unwrap_or(&0);
                is_over = has_ended(count);
            }
            match incoming.write_to(grpc) {
                Ok(()) => {}
                Err(PumpError::Refused(reason)) => return Err(reason),
                Err(PumpError::Ended) => is_over = true,
            }
            if is_over {
                self.unsent.truncate(self.range.end);
                let _ = grpc.take(FAREWELL_BYTES).read_to_end(&mut self.unsent); // Whatever there is.
                self.range.end = self.unsent.len();
                self.registered[1] = EventFlags::empty(); // Closing it ends that.
                self.stage = Stage::Farewell { until: now + FAREWELL_MAX, has_ended: false };
            }
        }
        while !self.range.is_empty() {
            match self.client.write(&self.unsent[self.range.clone()]) {
                Ok(count) => self.range.start += count,
                Err(error) if would_block(&error) => break,
                Err(_) => return Ok(false),
            }
        }
        if self.range.is_empty() {
            (self.unsent, self.range) = (Vec::new(), 0..0);
        }
        let Stage::Farewell { until, has_ended } = &mut self.stage else { return Ok(true) };
        if self.range.is_empty() && !*has_ended {
            self.client.end();
            *has_ended = true;
        }
        Ok(now < *until && !(from_client && discard(&mut self.client)))
    }

    /// Has the kernel watch for what can be moved next.
    fn register(&mut self, epoll: &OwnedFd, key: u64, now: Instant) -> io::Result<()> {
        let flags = |read, write| {
            let read = if read { EventFlags::IN } else { EventFlags::empty() };
            if write { read | EventFlags::OUT } else { read }
        };
        let is_sent = self.range.is_empty();
        let (client, grpc) = match &self.stage {
            Stage::Silent { until, .. } => {
                self.due = Some(*until);
                (flags(true, false), EventFlags::empty())
            }
            Stage::Open { incoming, .. } => {
                self.due = incoming.look_again().map(|time| now + time);
                (flags(incoming.is_empty(), !is_sent), flags(is_sent, incoming.is_for_writing()))
            }
            Stage::Farewell { until, .. } => {
                self.due = Some(*until);
                (flags(true, !is_sent), EventFlags::empty())
            }
        };
        watch(epoll, self.client.as_fd(), key, &mut self.registered[0], client)?;
        if let Stage::Open { grpc: end, .. } = &self.stage {
            watch(epoll, end.as_fd(), key + 1, &mut self.registered[1], grpc)?;
        }
        Ok(())
    }
}

/// An end of which nothing is wanted is left out: the kernel reports its hang-up whether wanted or not, and the loop would
/// spin.
fn watch(
    epoll: &OwnedFd,
    end: BorrowedFd<'_>,
    key: u64,
    registered: &mut EventFlags,
    wanted: EventFlags,
) -> io::Result<()> {
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

/// Whether nothing more comes from there.
fn has_ended(read: io::Result<usize>) -> bool {
    match read {
        Ok(count) => count == 0,
        Err(error) => !would_block(&error),
    }
}

/// Throws away one piece of what a client sent. Returns whether it has ended.
fn discard(client: &mut impl Read) -> bool {
    has_ended(client.read(&mut [0; DISCARDED]))
}

#[cfg(test)]
mod tests;
