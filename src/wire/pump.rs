//! Bytes between clients and gRPC: every connection of the server, and those of clients with TLS,
//! pass a socket pair. So the lengths of messages are seen before gRPC takes them, and gRPC needs
//! no TLS. One thread moves the bytes of all connections, a buffer a turn of each: a silent client
//! costs no thread, and whoever takes nothing is left alone.
//!
//! Thread: `listen` of the server, with four `tls` that do what handshakes compute and never wait
//! for a client; `tls:server` of a client.
//! Owns: the sockets of the other sides, our ends of gRPC's connections, and what is under way in
//! each direction. Each side is read only when what it sent before was taken. A connection on which
//! nothing is sent holds no memory, and one of gRPC begins with the first byte or the end of the
//! handshake.

use super::tls::{Link, would_block};
use crate::limits::{HANDSHAKE_MAX, HELLO_MAX};
use ankaios_platform::clock::{Clock, SystemClock};
use ankaios_platform::limits::STACK_LARGE;
use ankaios_platform::sync::EventFd;
use ankaios_platform::threads;
use crossbeam_channel::{Receiver, Sender, bounded};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Bytes that are moved at once: one TLS record.
pub(crate) const BUFFER: usize = 16 * 1024;
/// After we end a connection we read for this long until the other side has closed it, so that an
/// alert or the last message arrives.
const FAREWELL_MAX: Duration = Duration::from_secs(2);
/// Threads that do what handshakes compute, which takes milliseconds each.
const SHAKERS: usize = 4;
/// Connections without a stream that is served; another one ends the oldest, whose client tries
/// again: whoever says nothing must not keep others out, and each takes three descriptors.
pub(crate) const STRANGERS: usize = 128;
const TOO_MANY: &str = "too many connections without a stream that is served";
/// Events taken at once.
const EVENTS: usize = 64;
/// Keys of connections begin here: smaller ones are for what else the thread waits for.
const FIRST_CONNECTION: u64 = 1 << 32;
/// Key of what wakes the thread.
const WAKE: u64 = FIRST_CONNECTION - 1;

/// Decides what of the bytes of a client goes on.
pub(crate) trait Gate: Send {
    /// How many of these bytes may go on now. Also called without any, to check what was admitted
    /// before.
    ///
    /// # Errors
    /// The connection has to end, and why.
    fn admit(&mut self, bytes: &[u8], now: Instant) -> Result<usize, String>;

    /// When to call [`Self::admit`] again although nothing comes.
    fn check_again_at(&self, now: Instant) -> Option<Instant>;

    /// Whether a stream of it is served, whose hello was accepted.
    fn is_served(&self) -> bool;
}

/// Why a connection ends before one of its sides has ended it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) enum PumpError {
    /// It is not served any longer.
    Refused(String),
    /// Its socket failed.
    Broken(String),
}

impl From<String> for PumpError {
    fn from(reason: String) -> Self {
        Self::Broken(reason)
    }
}

/// Makes a connection of gRPC: our end of it, which must not block, and what the bytes for it have
/// to pass.
pub(crate) type Open =
    Box<dyn FnOnce(&Link) -> io::Result<(UnixStream, Option<Box<dyn Gate>>)> + Send>;
/// Called before gRPC sees the end.
pub(crate) type OnEnd = Box<dyn FnOnce(&PumpError) + Send>;

/// Our end of a connection of gRPC, and that of gRPC.
pub(crate) fn pair() -> io::Result<(UnixStream, UnixStream)> {
    let (ours, grpc) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    grpc.set_nonblocking(true)?;
    Ok((ours, grpc))
}

/// All connections of a thread.
pub(crate) struct Pump {
    epoll: OwnedFd,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    /// Connections that go on at some time although nothing comes.
    due: BTreeSet<(Instant, u64)>,
    buffer: Box<[u8]>,
    /// Ends [`Pump::wait`].
    pub(crate) wake: EventFd,
    shakers: Option<Shakers>,
}

/// A connection with its key, and how its handshake went on.
type Shaken = (u64, Connection, Result<(), String>);

struct Shakers {
    work: Sender<(u64, Connection)>,
    done: Receiver<Shaken>,
    /// Connections that they have.
    busy: usize,
}

struct Connection {
    link: Link,
    /// While nothing came yet, or its handshake is under way.
    open: Option<Open>,
    /// Until gRPC has ended, or the connection broke. Then what is left for the other side is sent,
    /// the sending side is closed, and the socket is read until the other side closes as well. A
    /// socket that is closed with unread bytes resets the connection, and the other side may lose
    /// what was sent last.
    grpc: Option<UnixStream>,
    gate: Option<Box<dyn Gate>>,
    /// Bytes on their way to gRPC, of which so many have passed the gate.
    left: Vec<u8>,
    admitted: usize,
    /// The other side has ended.
    has_ended: bool,
    /// When it is given up: before gRPC has it, and after it takes no more.
    until: Option<Instant>,
    is_closed: bool,
    on_end: Option<OnEnd>,
    /// What the kernel watches: the other side, gRPC.
    registered: [EventFlags; 2],
    due: Option<Instant>,
}

impl Pump {
    /// Without any connection.
    ///
    /// # Errors
    /// The kernel has no room for it.
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (connections, due, buffer) = (BTreeMap::new(), BTreeSet::new(), vec![0; BUFFER].into());
        let wake = EventFd::new()?;
        let pump = Self {
            epoll,
            connections,
            next: FIRST_CONNECTION,
            due,
            buffer,
            wake,
            shakers: None,
        };
        pump.watch(pump.wake.as_fd(), WAKE)?;
        Ok(pump)
    }

    /// Starts the threads for handshakes.
    ///
    /// # Errors
    /// The system has no room for them.
    pub(crate) fn start_shakers(&mut self) -> io::Result<()> {
        let (work, to_do) = bounded::<(u64, Connection)>(STRANGERS);
        // We never wait, so whoever waits for a place gets one.
        let (finished, done) = bounded(STRANGERS);
        for _ in 0..SHAKERS {
            let (to_do, finished, wake) = (to_do.clone(), finished.clone(), self.wake.clone());
            threads::spawn("tls", STACK_LARGE, move || {
                for (key, mut connection) in to_do {
                    let shaken = connection.link.shake();
                    let _ = finished.send((key, connection, shaken)); // Nobody takes it at the end.
                    wake.set();
                }
            })?;
        }
        self.shakers = Some(Shakers {
            work,
            done,
            busy: 0,
        });
        Ok(())
    }

    /// [`Self::wait`] returns `key`, which is a small number, while `end` is readable.
    ///
    /// # Errors
    /// The kernel has no room for it.
    pub(crate) fn watch(&self, end: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        Ok(epoll::add(
            &self.epoll,
            end,
            EventData::new_u64(key),
            EventFlags::IN,
        )?)
    }

    /// Ends [`Self::watch`].
    pub(crate) fn unwatch(&self, end: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, end); // It is watched, else nothing is lost.
    }

    /// Adds a connection, which is opened `at_once` or with its first byte.
    pub(crate) fn add(
        &mut self,
        link: Link,
        open: Open,
        at_once: bool,
        on_end: OnEnd,
        now: Instant,
    ) {
        let strangers = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.is_stranger());
        let strangers: Vec<u64> = strangers.map(|(key, _)| *key).collect();
        let busy = self.shakers.as_ref().map_or(0, |shakers| shakers.busy);
        if strangers.len() + busy >= STRANGERS
            && let Some(key) = strangers.first().copied()
            && let Some(oldest) = self.take(key)
        {
            self.keep(
                key,
                oldest,
                Err(PumpError::Refused(TOO_MANY.to_owned())),
                now,
            );
        }
        let key = self.next;
        self.next += 2;
        let connection = Connection {
            link,
            open: Some(open),
            grpc: None,
            gate: None,
            left: Vec::new(),
            admitted: 0,
            has_ended: false,
            until: Some(now + HELLO_MAX.max(HANDSHAKE_MAX)),
            is_closed: false,
            on_end: Some(on_end),
            registered: [EventFlags::empty(); 2],
            due: None,
        };
        self.connections.insert(key, connection);
        self.step(key, at_once, false, now);
    }

    /// Waits until something comes, at most `limit`, and moves what can be moved. Returns the keys
    /// of what else is readable.
    ///
    /// # Errors
    /// The kernel cannot wait.
    pub(crate) fn wait(
        &mut self,
        limit: Option<Duration>,
        clock: impl Fn() -> Instant,
    ) -> io::Result<Vec<u64>> {
        let now = clock();
        let due = self
            .due
            .first()
            .map(|(due, _)| due.saturating_duration_since(now));
        let time = [limit, due].into_iter().flatten().min();
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        let mut events = Vec::with_capacity(EVENTS);
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut events),
            time.as_ref(),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let now = clock();
        let mut others = Vec::new();
        for event in events {
            match event.data.u64() {
                WAKE => self.take_shaken(now),
                key @ ..FIRST_CONNECTION => others.push(key),
                key => self.step(key & !1, key & 1 == 0, key & 1 == 1, now),
            }
        }
        while let Some((_, key)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.step(key, false, false, now);
        }
        Ok(others)
    }

    /// Whether a handshake is under way.
    pub(crate) fn is_shaking(&self) -> bool {
        self.connections.values().any(Connection::is_shaking)
    }

    /// Moves the bytes of its connections until all have ended. With an `end` that is the last
    /// time, and those on which nothing came yet end at once.
    pub(crate) fn run(&mut self, end: Option<Instant>) {
        let silent = self
            .connections
            .iter()
            .filter(|(_, connection)| end.is_some() && connection.open.is_some());
        let silent: Vec<u64> = silent.map(|(key, _)| *key).collect();
        silent.into_iter().for_each(|key| drop(self.take(key)));
        let left = || end.map(|end| SystemClock.until(end));
        while !self.connections.is_empty()
            && left() != Some(Duration::ZERO)
            && self.wait(left(), || SystemClock.now()).is_ok()
        {}
    }

    fn take(&mut self, key: u64) -> Option<Connection> {
        let mut connection = self.connections.remove(&key)?;
        connection
            .due
            .take()
            .map(|due| self.due.remove(&(due, key)));
        Some(connection)
    }

    fn step(&mut self, key: u64, from_link: bool, from_grpc: bool, now: Instant) {
        // Both ends of one connection may be ready at once, and the first may have ended it.
        let Some(mut connection) = self.take(key) else {
            return;
        };
        if let Some(shakers) = self
            .shakers
            .as_mut()
            .filter(|_| from_link && connection.is_shaking())
        {
            let [registered, _] = &mut connection.registered;
            let _ = watch(
                &self.epoll,
                connection.link.socket(),
                key,
                registered,
                (false, false),
            ); // It is watched.
            match shakers.work.try_send((key, connection)) {
                Ok(()) => shakers.busy += 1,
                Err(full) => {
                    let (key, connection) = full.into_inner();
                    self.keep(
                        key,
                        connection,
                        Err(PumpError::Refused(TOO_MANY.to_owned())),
                        now,
                    );
                }
            }
            return;
        }
        let moved = connection.step(from_link, from_grpc, now, &mut self.buffer);
        self.keep(key, connection, moved, now);
    }

    fn take_shaken(&mut self, now: Instant) {
        self.wake.reset();
        let Some(shakers) = &mut self.shakers else {
            return;
        };
        let done: Vec<Shaken> = shakers.done.try_iter().collect();
        shakers.busy -= done.len();
        for (key, mut connection, shaken) in done {
            let is_done = !connection.link.is_shaking();
            let moved = match shaken {
                Ok(()) => connection.step(is_done, false, now, &mut self.buffer),
                Err(text) => Err(PumpError::Refused(text)),
            };
            self.keep(key, connection, moved, now);
        }
    }

    /// Keeps a connection that goes on.
    fn keep(
        &mut self,
        key: u64,
        mut connection: Connection,
        moved: Result<bool, PumpError>,
        now: Instant,
    ) {
        let goes_on = moved.unwrap_or_else(|error| connection.break_off(&error, now));
        if !goes_on {
            return;
        }
        match connection.register(&self.epoll, key, now) {
            Ok(()) => {
                self.due.extend(connection.due.map(|due| (due, key)));
                self.connections.insert(key, connection);
            }
            Err(error) => _ = connection.break_off(&PumpError::Refused(error.to_string()), now),
        }
    }
}

impl Connection {
    fn is_shaking(&self) -> bool {
        self.open.is_some() && self.link.is_shaking()
    }

    /// Whether no stream of it is served. One that is ending was opened and has no gate any more.
    fn is_stranger(&self) -> bool {
        self.open.is_some() || self.gate.as_ref().is_some_and(|gate| !gate.is_served())
    }

    /// Moves what can be moved; each side is read if there is something. Returns whether the
    /// connection goes on.
    fn step(
        &mut self,
        from_link: bool,
        from_grpc: bool,
        now: Instant,
        buffer: &mut [u8],
    ) -> Result<bool, PumpError> {
        let is_late = self.until.is_some_and(|until| until <= now);
        if self.open.is_some() {
            if is_late {
                return Err(PumpError::Refused(self.link.why_late()));
            }
            if from_link {
                self.link.shake()?;
            }
            let is_shaking = self.link.is_shaking();
            let Some(open) = self.open.take_if(|_| from_link && !is_shaking) else {
                return Ok(true);
            };
            self.until = None;
            let (grpc, gate) = open(&self.link).map_err(|error| {
                self.link.close();
                PumpError::Refused(error.to_string())
            })?;
            (self.grpc, self.gate) = (Some(grpc), gate);
        }
        self.link.flush()?;
        self.move_incoming(from_link, now, buffer)?;
        if from_grpc
            && !self.link.wants_write()
            && let Some(grpc) = &mut self.grpc
        {
            match grpc.read(buffer) {
                Ok(count @ 1..) => self.link.send(&buffer[..count])?,
                Err(error) if would_block(&error) => {}
                Ok(_) | Err(_) => {
                    self.link.close();
                    self.link.flush()?;
                    self.leave_grpc(now);
                }
            }
        }
        if self.until.is_none() {
            return Ok(!self.has_ended || !self.left.is_empty() || self.link.wants_write());
        }
        if self.grpc.is_none() && !self.link.wants_write() && !self.is_closed {
            self.is_closed = true;
            if rustix::net::shutdown(self.link.socket(), rustix::net::Shutdown::Write).is_err() {
                return Ok(false);
            }
        }
        Ok(!(is_late || from_link && self.link.discard()))
    }

    /// Moves what came from the other side.
    fn move_incoming(
        &mut self,
        mut from_link: bool,
        now: Instant,
        buffer: &mut [u8],
    ) -> Result<(), PumpError> {
        let mut left = std::mem::take(&mut self.left);
        left.drain(..self.forward(&left, now)?);
        self.left = if left.is_empty() { Vec::new() } else { left };
        // All that came must go on now: only new bytes from the socket lead to the next step.
        while self.until.is_none() && self.left.is_empty() && !self.has_ended {
            match self.link.read(buffer, std::mem::take(&mut from_link))? {
                Some(0) => self.has_ended = true,
                Some(count) => {
                    let sent = self.forward(&buffer[..count], now)?;
                    self.left = buffer[sent..count].to_vec();
                }
                None => break,
            }
        }
        Ok(())
    }

    /// Writes what may go on, as far as gRPC takes it. Returns how many bytes are done with; all
    /// when gRPC has ended.
    fn forward(&mut self, bytes: &[u8], now: Instant) -> Result<usize, PumpError> {
        let Some(grpc) = self.grpc.as_mut().filter(|_| self.until.is_none()) else {
            return Ok(bytes.len());
        };
        let mut sent = 0;
        loop {
            let fresh = if self.admitted == 0 {
                &bytes[sent..]
            } else {
                &[]
            };
            self.admitted += match &mut self.gate {
                Some(gate) => gate.admit(fresh, now).map_err(PumpError::Refused)?,
                None => fresh.len(),
            };
            if self.admitted == 0 {
                break;
            }
            match grpc.write(&bytes[sent..sent + self.admitted]) {
                Ok(count @ 1..) => {
                    sent += count;
                    self.admitted -= count;
                }
                Err(error) if would_block(&error) => break,
                // It has ended, and what it wrote before is still to be sent.
                Ok(_) | Err(_) => {
                    (self.gate, self.until) = (None, Some(now + FAREWELL_MAX));
                    return Ok(bytes.len());
                }
            }
        }
        Ok(sent)
    }

    /// Closes our end of gRPC's connection, which the kernel then does not watch any more.
    fn leave_grpc(&mut self, now: Instant) {
        (self.grpc, self.gate, self.registered[1]) = (None, None, EventFlags::empty());
        self.until.get_or_insert(now + FAREWELL_MAX);
    }

    /// The connection is over for gRPC. Returns whether something is left for the other side, an
    /// alert of TLS.
    fn break_off(&mut self, error: &PumpError, now: Instant) -> bool {
        log::debug!("Connection ended: '{error}'");
        self.on_end
            .take()
            .into_iter()
            .for_each(|on_end| on_end(error));
        let goes_on = self.link.wants_write() && (self.open.is_some() || self.until.is_none());
        (self.open, self.until) = (None, None);
        self.leave_grpc(now);
        goes_on
    }

    /// Has the kernel watch for what can be moved next.
    fn register(&mut self, epoll: &OwnedFd, key: u64, now: Instant) -> io::Result<()> {
        self.due = self
            .until
            .or_else(|| self.gate.as_ref()?.check_again_at(now));
        let is_sent = !self.link.wants_write();
        let reads = self.until.is_some() || self.left.is_empty() && !self.has_ended;
        watch(
            epoll,
            self.link.socket(),
            key,
            &mut self.registered[0],
            (reads, !is_sent),
        )?;
        let Some(grpc) = &self.grpc else {
            return Ok(());
        };
        watch(
            epoll,
            grpc.as_fd(),
            key + 1,
            &mut self.registered[1],
            (is_sent, self.admitted > 0 && self.until.is_none()),
        )
    }
}

/// An end of which nothing is wanted is left out: the kernel reports its hang-up whether wanted or
/// not, and the loop would spin.
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
