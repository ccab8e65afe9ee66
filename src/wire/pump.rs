//! Moves bytes between peers and gRPC: every connection of the server, and those of clients with
//! TLS, pass a socket pair. So the lengths of messages are seen before gRPC reads them, and gRPC
//! needs no TLS. One thread moves the bytes of all connections, one buffer of each in turn: a
//! silent peer costs no thread, and one that takes nothing delays no other.
//!
//! Thread: `listen` of the server, with four `tls` that compute handshakes and never wait for a
//! peer; `tls:server` of a client.
//! Owns: the sockets of the peers, our ends of gRPC's connections, and the bytes under way in each
//! direction. Each side is read only when its earlier bytes were taken. An idle connection holds no
//! memory, and gRPC's connection begins with the first byte or the end of the handshake.

use super::tls::{TlsError, TlsLink, would_block};
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
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Bytes that are moved at once: one TLS record.
pub(crate) const BUFFER: usize = 16 * 1024;
/// Longest time that we still read after we have ended a connection, until the peer has closed it
/// too. So an alert, or the last message, arrives.
const DRAIN_MAX: Duration = Duration::from_secs(2);
/// Threads that compute handshakes, which takes milliseconds each.
const HANDSHAKE_THREADS: usize = 4;
/// Connections without an accepted hello. A further one evicts the oldest, whose client tries
/// again, so idle peers cannot exhaust descriptors; each connection takes three.
pub(crate) const UNAUTHENTICATED_MAX: usize = 128;
const TOO_MANY: &str = "too many connections without a stream that is served";
/// Events taken at once.
const EVENTS: usize = 64;
/// Keys of connections begin here, with two keys for each. Smaller ones are those of
/// [`Pump::watch`].
const FIRST_CONNECTION: u64 = 1 << 32;
/// Key of [`Pump::wake`].
const WAKE: u64 = FIRST_CONNECTION - 1;

/// Decides how many bytes of a peer reach gRPC.
pub(crate) trait Gate: Send {
    /// How many of these bytes may pass now. Also called without any, to check the bytes that have
    /// passed before. `peer_reads` is false while the peer has not taken all bytes for it.
    ///
    /// # Errors
    /// Why the connection must end.
    fn admit(&mut self, bytes: &[u8], peer_reads: bool, now: Instant) -> Result<usize, String>;

    /// Returns a few bytes for gRPC, which come before the next ones of the peer. Only at the
    /// beginning of a connection.
    fn take_insertion(&mut self) -> &'static [u8];

    /// Counts bytes of gRPC that were sent to the peer.
    fn sent(&mut self, bytes: usize);

    /// When to call [`Self::admit`] again although nothing comes.
    fn check_again_at(&self, now: Instant) -> Option<Instant>;

    /// Whether the hello of one of its streams was accepted.
    fn is_served(&self) -> bool;
}

/// Why a connection ends before one of its sides has ended it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) enum PumpError {
    /// We end it.
    Refused(String),
    /// Its socket, or TLS on it, failed.
    Broken(TlsError),
}

impl From<TlsError> for PumpError {
    fn from(error: TlsError) -> Self {
        Self::Broken(error)
    }
}

/// A new connection of gRPC.
pub(crate) struct GrpcConnection {
    /// Our end, which does not block.
    pub(crate) grpc: UnixStream,
    /// The gate for the bytes of the peer; `None` admits all.
    pub(crate) gate: Option<Box<dyn Gate>>,
}

/// Makes the connection of gRPC for a peer.
pub(crate) type OpenGrpc = Box<dyn FnOnce(&TlsLink) -> io::Result<GrpcConnection> + Send>;
/// Called before gRPC sees the end.
pub(crate) type OnConnectionEnd = Box<dyn FnOnce(&PumpError) + Send>;

/// Makes a connection of gRPC: our end, and that of gRPC.
pub(crate) fn pair() -> io::Result<(UnixStream, UnixStream)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, grpc) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok((ours.into(), grpc.into()))
}

/// All connections of a thread.
pub(crate) struct Pump {
    epoll: OwnedFd,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    /// Times at which connections must be stepped although nothing comes.
    due: BTreeSet<(Instant, u64)>,
    buffer: Box<[u8]>,
    /// Ends [`Pump::wait`].
    pub(crate) wake: EventFd,
    handshakes: Option<Handshakes>,
}

/// The threads that compute handshakes.
struct Handshakes {
    work: Sender<Handshake>,
    done: Receiver<Handshake>,
    /// Connections that the threads have.
    under_way: usize,
}

/// A connection whose handshake is computed by another thread.
struct Handshake {
    key: u64,
    connection: Connection,
    /// Set by that thread.
    result: Result<(), TlsError>,
}

/// The events that the kernel reports of one end.
#[derive(Debug, Clone, Copy, Default)]
struct Interest {
    read: bool,
    write: bool,
}

/// The end of a connection that may have bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadyEnd {
    /// The socket of the peer.
    Link,
    /// The connection of gRPC.
    Grpc,
    /// None: the step is due.
    None,
}

struct Connection {
    link: TlsLink,
    /// `None` once gRPC has the connection.
    open: Option<OpenGrpc>,
    /// `None` before it is opened, after gRPC has ended, and after the connection broke. At the end
    /// the rest for the peer is sent, the sending side is closed, and the socket is read until the
    /// peer closes as well: a socket that is closed with unread bytes resets the connection, and
    /// the peer may lose the last message.
    grpc: Option<UnixStream>,
    gate: Option<Box<dyn Gate>>,
    /// Bytes of the peer that gRPC has not taken.
    left: Vec<u8>,
    /// How many of `left` have passed the gate.
    admitted: usize,
    /// The peer has ended.
    has_ended: bool,
    /// When the connection is given up: before gRPC has it, and after gRPC takes no more.
    until: Option<Instant>,
    /// Whether our sending side is closed.
    is_closed: bool,
    on_end: Option<OnConnectionEnd>,
    /// Events that the kernel reports of the peer's socket.
    link_events: EventFlags,
    /// Events that the kernel reports of gRPC's connection.
    grpc_events: EventFlags,
    /// Its entry in [`Pump::due`].
    due: Option<Instant>,
}

impl Pump {
    /// Without connections.
    ///
    /// # Errors
    /// The kernel has no room for it.
    pub(crate) fn new() -> io::Result<Self> {
        let pump = Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            connections: BTreeMap::new(),
            next: FIRST_CONNECTION,
            due: BTreeSet::new(),
            buffer: vec![0; BUFFER].into(),
            wake: EventFd::new()?,
            handshakes: None,
        };
        pump.watch(pump.wake.as_fd(), WAKE)?;
        Ok(pump)
    }

    /// Starts the threads for handshakes.
    ///
    /// # Errors
    /// The system has no room for them.
    pub(crate) fn start_handshake_threads(&mut self) -> io::Result<()> {
        let (work, to_do) = bounded::<Handshake>(UNAUTHENTICATED_MAX);
        // As many as can wait, so that no thread blocks when it is done.
        let (finished, done) = bounded(UNAUTHENTICATED_MAX);
        for _ in 0..HANDSHAKE_THREADS {
            let to_do = to_do.clone();
            let finished = finished.clone();
            let wake = self.wake.clone();
            threads::spawn("tls", STACK_LARGE, move || {
                for mut handshake in to_do {
                    handshake.result = handshake.connection.link.handshake();
                    let _ = finished.send(handshake); // The pump is gone only at the end.
                    wake.set();
                }
            })?;
        }
        self.handshakes = Some(Handshakes {
            work,
            done,
            under_way: 0,
        });
        Ok(())
    }

    /// Makes [`Self::wait`] return `key`, a small number, while `end` is readable.
    ///
    /// # Errors
    /// The kernel has no room for it.
    pub(crate) fn watch(&self, end: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        let data = EventData::new_u64(key);
        Ok(epoll::add(&self.epoll, end, data, EventFlags::IN)?)
    }

    /// Ends [`Self::watch`].
    pub(crate) fn unwatch(&self, end: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, end); // An error means that it is not watched.
    }

    /// Adds a connection, which is opened `at_once` or with its first byte.
    pub(crate) fn add(
        &mut self,
        link: TlsLink,
        open: OpenGrpc,
        at_once: bool,
        on_end: OnConnectionEnd,
        now: Instant,
    ) {
        self.evict_oldest_unauthenticated(now);
        let key = self.next;
        self.next += 2; // Epoll has `key` for the socket of the peer and `key + 1` for gRPC.
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
            link_events: EventFlags::empty(),
            grpc_events: EventFlags::empty(),
            due: None,
        };
        self.connections.insert(key, connection);
        let ready = if at_once {
            ReadyEnd::Link
        } else {
            ReadyEnd::None
        };
        self.step(key, ready, now);
    }

    /// Ends the oldest connection without an accepted hello when there are [`UNAUTHENTICATED_MAX`].
    fn evict_oldest_unauthenticated(&mut self, now: Instant) {
        let mut number = match &self.handshakes {
            Some(handshakes) => handshakes.under_way,
            None => 0,
        };
        let mut oldest = None;
        for (key, connection) in &self.connections {
            if !connection.is_authenticated() {
                number += 1;
                oldest.get_or_insert(*key);
            }
        }
        if number < UNAUTHENTICATED_MAX {
            return;
        }
        if let Some(key) = oldest
            && let Some(connection) = self.take(key)
        {
            self.refuse(key, connection, TOO_MANY.to_owned(), now);
        }
    }

    /// Waits at most `limit` for an event, and moves bytes as far as possible. Returns the keys of
    /// [`Self::watch`] that are readable.
    ///
    /// # Errors
    /// The kernel cannot wait.
    pub(crate) fn wait(
        &mut self,
        limit: Option<Duration>,
        clock: impl Fn() -> Instant,
    ) -> io::Result<Vec<u64>> {
        // First wait.
        let mut time = limit;
        if let Some((due, _)) = self.due.first() {
            let until_due = due.saturating_duration_since(clock());
            time = Some(until_due.min(limit.unwrap_or(Duration::MAX)));
        }
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        let mut events = Vec::with_capacity(EVENTS);
        let free = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.epoll, free, time.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        // Then step the connections that have bytes. Even keys are those of peers.
        let now = clock();
        let mut watched = Vec::new();
        for event in events {
            match event.data.u64() {
                WAKE => self.take_handshakes(now),
                key @ ..FIRST_CONNECTION => watched.push(key),
                key if key % 2 == 0 => self.step(key, ReadyEnd::Link, now),
                key => self.step(key - 1, ReadyEnd::Grpc, now),
            }
        }
        // Finally step those that are due.
        while let Some((due, key)) = self.due.first().copied()
            && due <= now
        {
            self.step(key, ReadyEnd::None, now);
        }
        Ok(watched)
    }

    /// Whether a handshake is under way.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.connections.values().any(Connection::is_handshaking)
    }

    /// Moves bytes until all connections have ended, or until `end`. With an `end`, connections
    /// that gRPC does not have end at once.
    pub(crate) fn run(&mut self, end: Option<Instant>) {
        if end.is_some() {
            let mut unopened = Vec::new();
            for (key, connection) in &self.connections {
                if connection.open.is_some() {
                    unopened.push(*key);
                }
            }
            for key in unopened {
                self.take(key);
            }
        }
        while !self.connections.is_empty() {
            let left = end.map(|end| SystemClock.until(end));
            if left == Some(Duration::ZERO) || self.wait(left, || SystemClock.now()).is_err() {
                return;
            }
        }
    }

    /// Takes a connection out, with its entry in [`Self::due`].
    fn take(&mut self, key: u64) -> Option<Connection> {
        let mut connection = self.connections.remove(&key)?;
        if let Some(due) = connection.due.take() {
            self.due.remove(&(due, key));
        }
        Some(connection)
    }

    /// Moves the bytes of a connection, or gives it to a thread for handshakes.
    fn step(&mut self, key: u64, ready: ReadyEnd, now: Instant) {
        // Both ends of a connection may be ready, and the step of the first may have ended it.
        let Some(mut connection) = self.take(key) else {
            return;
        };
        if self.handshakes.is_some() && ready == ReadyEnd::Link && connection.is_handshaking() {
            self.start_handshake(key, connection, now);
            return;
        }
        let moved = connection.step(ready, now, &mut self.buffer);
        self.keep(key, connection, moved, now);
    }

    /// Gives a connection to a thread for handshakes.
    fn start_handshake(&mut self, key: u64, mut connection: Connection, now: Instant) {
        let Some(handshakes) = &mut self.handshakes else {
            return;
        };
        let socket = connection.link.socket();
        // An error means that the socket is not watched.
        let _ = watch(
            &self.epoll,
            socket,
            key,
            &mut connection.link_events,
            Interest::default(),
        );
        let handshake = Handshake {
            key,
            connection,
            result: Ok(()),
        };
        match handshakes.work.try_send(handshake) {
            Ok(()) => handshakes.under_way += 1,
            Err(full) => {
                let connection = full.into_inner().connection;
                self.refuse(key, connection, TOO_MANY.to_owned(), now);
            }
        }
    }

    /// Takes connections back from the threads for handshakes.
    fn take_handshakes(&mut self, now: Instant) {
        self.wake.reset();
        let Some(handshakes) = &mut self.handshakes else {
            return;
        };
        let done: Vec<Handshake> = handshakes.done.try_iter().collect();
        handshakes.under_way -= done.len();
        for handshake in done {
            let Handshake {
                key,
                mut connection,
                result,
            } = handshake;
            if let Err(why) = result {
                self.refuse(key, connection, why.text, now);
                continue;
            }
            // After the handshake the session may already have bytes of the peer.
            let ready = if connection.link.is_handshaking() {
                ReadyEnd::None
            } else {
                ReadyEnd::Link
            };
            let moved = connection.step(ready, now, &mut self.buffer);
            self.keep(key, connection, moved, now);
        }
    }

    fn refuse(&mut self, key: u64, connection: Connection, why: String, now: Instant) {
        self.keep(key, connection, Err(PumpError::Refused(why)), now);
    }

    /// Keeps a connection that was stepped, unless it has ended.
    fn keep(
        &mut self,
        key: u64,
        mut connection: Connection,
        stepped: Result<Progress, PumpError>,
        now: Instant,
    ) {
        let progress = match stepped {
            Ok(progress) => progress,
            Err(error) => connection.break_off(&error, now),
        };
        if progress == Progress::Ended {
            return;
        }
        if let Err(error) = connection.register(&self.epoll, key, now) {
            connection.break_off(&PumpError::Refused(error.to_string()), now);
            return;
        }
        if let Some(due) = connection.due {
            self.due.insert((due, key));
        }
        self.connections.insert(key, connection);
    }
}

/// Whether a connection continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Continues,
    Ended,
}

impl Progress {
    fn continues_if(continues: bool) -> Self {
        if continues {
            Self::Continues
        } else {
            Self::Ended
        }
    }
}

impl Connection {
    fn is_handshaking(&self) -> bool {
        self.open.is_some() && self.link.is_handshaking()
    }

    /// Returns whether a hello was accepted. Also true for a connection that gRPC has left: it ends
    /// soon.
    fn is_authenticated(&self) -> bool {
        match &self.gate {
            Some(gate) => gate.is_served(),
            None => self.open.is_none(),
        }
    }

    /// Moves bytes as far as possible. Returns whether the connection continues.
    fn step(
        &mut self,
        ready: ReadyEnd,
        now: Instant,
        buffer: &mut [u8],
    ) -> Result<Progress, PumpError> {
        let is_late = self.until.is_some_and(|until| until <= now);
        let is_link_ready = ready == ReadyEnd::Link;
        let mut is_grpc_ready = ready == ReadyEnd::Grpc;
        // First give the connection to gRPC, after the handshake and with the first byte.
        if self.open.is_some() {
            if is_late {
                return Err(PumpError::Refused(self.link.why_late()));
            }
            if !is_link_ready {
                return Ok(Progress::Continues);
            }
            self.link.handshake()?;
            if self.link.is_handshaking() {
                return Ok(Progress::Continues);
            }
            self.open_grpc()?;
            is_grpc_ready = true; // It has written its settings.
        }
        // Then move bytes in both directions.
        self.link.flush()?;
        self.move_incoming(is_link_ready, now, buffer)?;
        if is_grpc_ready {
            self.move_outgoing(now, buffer)?;
        }
        // A connection that gRPC uses ends after the last bytes of the peer.
        if self.until.is_none() {
            let has_rest = !self.left.is_empty() || self.link.wants_write();
            return Ok(Progress::continues_if(!self.has_ended || has_rest));
        }
        // Finally, after gRPC has ended, close our sending side behind the last bytes, and wait
        // until the peer closes as well.
        if self.grpc.is_none() && !self.link.wants_write() && !self.is_closed {
            self.is_closed = true;
            if rustix::net::shutdown(self.link.socket(), rustix::net::Shutdown::Write).is_err() {
                return Ok(Progress::Ended);
            }
        }
        let peer_has_closed = is_link_ready && self.link.discard();
        Ok(Progress::continues_if(!is_late && !peer_has_closed))
    }

    fn open_grpc(&mut self) -> Result<(), PumpError> {
        let Some(open) = self.open.take() else {
            return Ok(()); // It is open already.
        };
        self.until = None;
        match open(&self.link) {
            Ok(GrpcConnection { grpc, gate }) => {
                self.grpc = Some(grpc);
                self.gate = gate;
                Ok(())
            }
            Err(error) => {
                self.link.close();
                Err(PumpError::Refused(error.to_string()))
            }
        }
    }

    /// Moves bytes of the peer to gRPC. The socket is read once, if it is ready.
    fn move_incoming(
        &mut self,
        is_link_ready: bool,
        now: Instant,
        buffer: &mut [u8],
    ) -> Result<(), PumpError> {
        // First forward the bytes that gRPC has not taken before. An empty vector is dropped, so
        // that an idle connection holds no memory.
        let mut left = std::mem::take(&mut self.left);
        let forwarded = self.forward(&left, now)?;
        left.drain(..forwarded);
        if !left.is_empty() {
            self.left = left;
        }
        // Then read until the session of TLS is empty: only new bytes of the socket lead to the
        // next step.
        let mut is_ready = is_link_ready;
        while self.until.is_none() && self.left.is_empty() && !self.has_ended {
            let read = self.link.read(buffer, is_ready)?;
            is_ready = false;
            match read {
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

    /// Moves bytes of gRPC to the peer, a buffer at most.
    fn move_outgoing(&mut self, now: Instant, buffer: &mut [u8]) -> Result<(), PumpError> {
        if self.link.wants_write() {
            return Ok(()); // The peer has not taken the earlier bytes.
        }
        let Some(grpc) = &mut self.grpc else {
            return Ok(());
        };
        match grpc.read(buffer) {
            Ok(count @ 1..) => {
                if let Some(gate) = &mut self.gate {
                    gate.sent(count);
                }
                self.link.send(&buffer[..count])?;
            }
            Err(error) if would_block(&error) => {}
            // gRPC has closed its end.
            Ok(_) | Err(_) => {
                self.link.close();
                self.link.flush()?;
                self.leave_grpc(now);
            }
        }
        Ok(())
    }

    /// Writes the bytes that pass the gate, as far as gRPC takes them. Returns how many bytes are
    /// no longer needed: all of them after gRPC has ended.
    fn forward(&mut self, bytes: &[u8], now: Instant) -> Result<usize, PumpError> {
        if self.grpc.is_none() || self.until.is_some() {
            return Ok(bytes.len()); // gRPC takes no more.
        }
        let mut sent = 0;
        loop {
            // Bytes that have passed the gate must not pass it again, so they are written first.
            let fresh = if self.admitted == 0 {
                &bytes[sent..]
            } else {
                &[]
            };
            self.admitted += self.admit(fresh, now)?;
            let passed = sent + self.admitted;
            let insertion = self.take_insertion();
            if !insertion.is_empty() {
                // Write it with the bytes before it and those that pass behind it: each write wakes
                // gRPC.
                let end = passed + self.admit(&bytes[passed..], now)?;
                let together = [&bytes[sent..passed], insertion, &bytes[passed..end]].concat();
                self.admitted = 0;
                sent = end;
                if self.write_to_grpc(&together) != Some(together.len()) {
                    // gRPC has ended, or its socket is full: at the beginning only a peer that
                    // sends hundreds of pieces fills it. Without the insertion the connection must
                    // not go on.
                    self.drain(now);
                    return Ok(bytes.len());
                }
                continue;
            }
            if self.admitted == 0 {
                return Ok(sent);
            }
            match self.write_to_grpc(&bytes[sent..passed]) {
                Some(0) => return Ok(sent),
                Some(count) => {
                    sent += count;
                    self.admitted -= count;
                }
                None => {
                    self.drain(now);
                    return Ok(bytes.len());
                }
            }
        }
    }

    /// Asks the gate how many of these bytes may pass now. Without any, it checks the bytes that
    /// have passed before.
    fn admit(&mut self, bytes: &[u8], now: Instant) -> Result<usize, PumpError> {
        let peer_reads = !self.link.wants_write();
        match &mut self.gate {
            Some(gate) => gate
                .admit(bytes, peer_reads, now)
                .map_err(PumpError::Refused),
            None => Ok(bytes.len()),
        }
    }

    /// Bytes that gRPC gets before the next ones of the peer.
    fn take_insertion(&mut self) -> &'static [u8] {
        match &mut self.gate {
            Some(gate) => gate.take_insertion(),
            None => &[],
        }
    }

    /// Returns how many of these bytes gRPC has taken: 0 while its socket is full, `None` after it
    /// has ended.
    fn write_to_grpc(&mut self, bytes: &[u8]) -> Option<usize> {
        match self.grpc.as_mut()?.write(bytes) {
            Ok(count @ 1..) => Some(count),
            Err(error) if would_block(&error) => Some(0),
            Ok(_) | Err(_) => None,
        }
    }

    /// Takes nothing more from the peer. The last bytes of gRPC are still sent.
    fn drain(&mut self, now: Instant) {
        self.gate = None;
        self.until = Some(now + DRAIN_MAX);
    }

    /// Closes our end of gRPC's connection, which the kernel then does not watch any more.
    fn leave_grpc(&mut self, now: Instant) {
        self.grpc = None;
        self.gate = None;
        self.grpc_events = EventFlags::empty();
        self.until.get_or_insert(now + DRAIN_MAX);
    }

    /// Ends the connection for gRPC. It continues while an alert of TLS is left for the peer,
    /// unless it was ending already.
    fn break_off(&mut self, error: &PumpError, now: Instant) -> Progress {
        log::debug!("Connection ended: '{error}'");
        if let Some(on_end) = self.on_end.take() {
            on_end(error);
        }
        let was_ending = self.open.is_none() && self.until.is_some();
        let continues = self.link.wants_write() && !was_ending;
        self.open = None;
        self.until = None; // `leave_grpc` sets the time for the alert.
        self.leave_grpc(now);
        Progress::continues_if(continues)
    }

    /// Registers the events after which bytes can be moved, and the time of the next step.
    fn register(&mut self, epoll: &OwnedFd, key: u64, now: Instant) -> io::Result<()> {
        self.due = self.until;
        if self.due.is_none()
            && let Some(gate) = &self.gate
        {
            self.due = gate.check_again_at(now);
        }
        let is_sent = !self.link.wants_write();
        let can_forward = self.left.is_empty() && !self.has_ended;
        // `until` is set before gRPC has the connection, and when it takes no more: bytes are read
        // for the handshake then, or to be dropped.
        let of_link = Interest {
            read: can_forward || self.until.is_some(),
            write: !is_sent,
        };
        let socket = self.link.socket();
        watch(epoll, socket, key, &mut self.link_events, of_link)?;
        let Some(grpc) = &self.grpc else {
            return Ok(());
        };
        let of_grpc = Interest {
            read: is_sent,
            write: self.admitted > 0 && self.until.is_none(),
        };
        watch(epoll, grpc.as_fd(), key + 1, &mut self.grpc_events, of_grpc)
    }
}

/// Changes the events that the kernel reports of `end` from `registered` to `interest`. An end
/// without interest is removed: the kernel would report its hang-up again and again.
fn watch(
    epoll: &OwnedFd,
    end: BorrowedFd<'_>,
    key: u64,
    registered: &mut EventFlags,
    interest: Interest,
) -> io::Result<()> {
    let mut wanted = EventFlags::empty();
    wanted.set(EventFlags::IN, interest.read);
    wanted.set(EventFlags::OUT, interest.write);
    if *registered == wanted {
        return Ok(());
    }
    let data = EventData::new_u64(key);
    if registered.is_empty() {
        epoll::add(epoll, end, data, wanted)?;
    } else if wanted.is_empty() {
        epoll::delete(epoll, end)?;
    } else {
        epoll::modify(epoll, end, data, wanted)?;
    }
    *registered = wanted;
    Ok(())
}

#[cfg(test)]
mod tests;
