//! Bytes between one client and gRPC: every connection of the server, and those of clients with TLS, pass a socket pair.
//! So the lengths of messages are seen before gRPC takes them, and gRPC needs no TLS.
//!
//! Thread: `tls:<port>`, one for each connection with TLS; `listen` for all others (plain_pump.rs).
//! Owns: what is under way in each direction. Each side is read only when what it sent before was taken. A connection on
//! which nothing is sent holds no memory.

use crate::limits::{FAREWELL_BYTES, FAREWELL_MAX, TLS_BUFFER};
use crate::platform::clock::{Clock, SystemClock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Bytes that the other side sends after gRPC has ended are thrown away in pieces of this size.
const DISCARDED: usize = 4096;

/// Decides what of the bytes of a client goes on.
pub trait Gate: Send {
    /// How many of these bytes may go on now.
    ///
    /// # Errors
    /// The connection has to end, and why.
    fn admit(&mut self, bytes: &[u8], now: Instant) -> Result<usize, String>;

    /// When to call [`Self::check`] and [`Self::admit`] again although nothing comes.
    fn check_again_after(&self) -> Option<Duration>;

    /// Whether the bytes that come next have to wait.
    fn is_waiting(&self) -> bool;

    /// Checks what was admitted; called from time to time.
    ///
    /// # Errors
    /// The connection has to end, and why.
    fn check(&self, now: Instant) -> Result<(), String>;
}

/// The other side of a connection, with or without TLS. No method waits; errors are reasons why the connection broke.
pub trait Link {
    /// The socket, which does not block.
    fn socket(&self) -> BorrowedFd<'_>;

    /// Reads what the other side sent; 0 when it has ended, `None` when there is nothing now. The socket is read only if it
    /// `is_ready`.
    fn read(&mut self, buffer: &mut [u8], is_ready: bool) -> Result<Option<usize>, String>;

    /// Takes bytes for the other side. Only when nothing is left to be written.
    fn queue(&mut self, bytes: Vec<u8>) -> Result<(), String>;

    /// Writes what was taken, as far as the socket takes it.
    fn flush(&mut self) -> Result<(), String>;

    /// Whether something is left to be written.
    fn wants_write(&self) -> bool;

    /// Takes what the protocol sends at the end.
    fn close(&mut self);
}

/// Why a connection broke, for whoever sees only the end that gRPC has.
pub type Reason = Arc<OnceLock<String>>;

/// Why a connection ends before one of its sides has ended it.
#[derive(Debug)]
pub enum PumpError {
    /// The gate has closed.
    Refused(String),
    /// The connection broke.
    Broken(String),
}

/// Bytes on their way to gRPC.
struct Incoming {
    bytes: Vec<u8>,
    range: Range<usize>,
    /// Of these so many have passed the gate.
    admitted: usize,
    gate: Option<Box<dyn Gate>>,
}

impl Incoming {
    fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Whether some may go on as soon as gRPC takes it.
    fn wants_write(&self) -> bool {
        !self.is_empty() && !self.gate.as_ref().is_some_and(|gate| gate.is_waiting())
    }

    /// Fills the empty buffer with one read.
    fn fill_from(&mut self, link: &mut impl Link, is_ready: bool) -> Result<Option<usize>, PumpError> {
        let mut bytes = vec![0; TLS_BUFFER];
        let count = link.read(&mut bytes, is_ready).map_err(PumpError::Broken)?;
        if let Some(count @ 1..) = count {
            (self.bytes, self.range) = (bytes, 0..count);
        }
        Ok(count)
    }

    /// Writes what may go on, as far as gRPC takes it. Returns `false` when gRPC has closed its end.
    fn write_to(&mut self, grpc: &mut UnixStream, now: Instant) -> Result<bool, PumpError> {
        if let Some(gate) = &self.gate {
            gate.check(now).map_err(PumpError::Refused)?;
        }
        while !self.is_empty() {
            if self.admitted == 0 {
                let bytes = &self.bytes[self.range.clone()];
                self.admitted = match &mut self.gate {
                    Some(gate) => gate.admit(bytes, now).map_err(PumpError::Refused)?,
                    None => bytes.len(),
                };
                if self.admitted == 0 {
                    return Ok(true);
                }
            }
            match grpc.write(&self.bytes[self.range.start..][..self.admitted]) {
                Ok(0) => return Ok(false),
                Ok(count) => {
                    self.range.start += count;
                    self.admitted -= count;
                }
                Err(error) => return Ok(would_block(&error)),
            }
        }
        self.bytes = Vec::new();
        Ok(true)
    }
}

/// Whether there is just nothing to be done now.
pub fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// One connection on its way between the other side and gRPC.
pub struct Transfer<L> {
    link: L,
    stage: Stage,
}

enum Stage {
    Open {
        grpc: UnixStream,
        incoming: Incoming,
        /// The other side has ended.
        has_ended: bool,
    },
    /// gRPC has ended, or the connection broke. What is left for the other side is sent, then the sending side is closed,
    /// and the socket is read until the other side closes as well. A socket that is closed with unread bytes resets the
    /// connection, and the other side may lose what was sent last.
    Farewell {
        until: Instant,
        /// What gRPC wrote before it ended.
        last: Option<std::vec::IntoIter<u8>>,
        is_closed: bool,
    },
}

/// What a connection waits for.
pub struct Wanted {
    /// Whether to read and to write the socket of the other side.
    pub link: (bool, bool),
    /// The same for gRPC.
    pub grpc: (bool, bool),
    /// When to go on although nothing comes.
    pub due: Option<Instant>,
}

impl<L: Link> Transfer<L> {
    /// Between `link` and `grpc`, which must not block; what goes to gRPC passes `gate`.
    pub fn new(link: L, grpc: UnixStream, gate: Option<Box<dyn Gate>>) -> Self {
        let incoming = Incoming { bytes: Vec::new(), range: 0..0, admitted: 0, gate };
        Self { link, stage: Stage::Open { grpc, incoming, has_ended: false } }
    }

    /// Only sends what `link` has left, and ends.
    fn farewell(link: L, now: Instant) -> Self {
        Self { link, stage: Stage::Farewell { until: now + FAREWELL_MAX, last: None, is_closed: false } }
    }

    /// The socket of the other side.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.link.socket()
    }

    /// Our end of the connection to gRPC, until that ends.
    pub fn grpc(&self) -> Option<BorrowedFd<'_>> {
        if let Stage::Open { grpc, .. } = &self.stage { Some(grpc.as_fd()) } else { None }
    }

    /// What to wait for before the next [`Self::step`].
    pub fn wanted(&self, now: Instant) -> Wanted {
        let is_sent = !self.link.wants_write();
        match &self.stage {
            Stage::Open { incoming, has_ended, .. } => Wanted {
                link: (incoming.is_empty() && !has_ended, !is_sent),
                grpc: (is_sent, incoming.wants_write()),
                due: incoming.gate.as_ref().and_then(|gate| gate.check_again_after()).map(|time| now + time),
            },
            Stage::Farewell { until, .. } => Wanted { link: (true, !is_sent), grpc: (false, false), due: Some(*until) },
        }
    }

    /// Moves what can be moved; each side is read if there is something. Returns whether the connection goes on.
    pub fn step(&mut self, mut from_link: bool, from_grpc: bool, now: Instant) -> Result<bool, PumpError> {
        self.link.flush().map_err(PumpError::Broken)?;
        if let Stage::Open { grpc, incoming, has_ended } = &mut self.stage {
            // All that came must go on now: only new bytes from the socket lead to the next step.
            let mut is_open = incoming.write_to(grpc, now)?;
            while is_open && incoming.is_empty() && !*has_ended {
                match incoming.fill_from(&mut self.link, std::mem::take(&mut from_link))? {
                    Some(0) => *has_ended = true,
                    Some(_) => is_open = incoming.write_to(grpc, now)?,
                    None => break,
                }
            }
            if is_open && from_grpc && !self.link.wants_write() {
                let mut outgoing = vec![0; TLS_BUFFER];
                match grpc.read(&mut outgoing) {
                    Ok(count @ 1..) => {
                        outgoing.truncate(count);
                        self.link.queue(outgoing).and_then(|()| self.link.flush()).map_err(PumpError::Broken)?;
                    }
                    Err(error) if would_block(&error) => {}
                    Ok(_) | Err(_) => is_open = false,
                }
            }
            if is_open {
                return Ok(!*has_ended || !incoming.is_empty() || self.link.wants_write());
            }
            let mut last = Vec::new();
            let _ = grpc.take(FAREWELL_BYTES).read_to_end(&mut last); // Whatever there is.
            let last = Some(last.into_iter());
            self.stage = Stage::Farewell { until: now + FAREWELL_MAX, last, is_closed: false };
        }
        self.send_farewell(from_link, now)
    }

    fn send_farewell(&mut self, from_link: bool, now: Instant) -> Result<bool, PumpError> {
        let Stage::Farewell { until, last, is_closed } = &mut self.stage else { return Ok(true) };
        while !self.link.wants_write()
            && let Some(bytes) = last
        {
            let piece: Vec<u8> = bytes.by_ref().take(TLS_BUFFER).collect();
            if piece.is_empty() {
                self.link.close();
                *last = None;
            } else {
                self.link.queue(piece).map_err(PumpError::Broken)?;
            }
            self.link.flush().map_err(PumpError::Broken)?;
        }
        if !self.link.wants_write() && !*is_closed {
            if rustix::net::shutdown(self.link.socket(), rustix::net::Shutdown::Write).is_err() {
                return Ok(false);
            }
            *is_closed = true;
        }
        let has_ended = from_link
            && match rustix::io::read(self.link.socket(), &mut [0; DISCARDED]) {
                Ok(count) => count == 0,
                Err(errno) => !matches!(errno, Errno::AGAIN | Errno::INTR),
            };
        Ok(now < *until && !has_ended)
    }

    /// Waits for what is wanted. Returns which of the two sides can be read.
    fn wait(&self) -> Result<(bool, bool), PumpError> {
        let now = SystemClock.now();
        let Wanted { link, grpc, due } = self.wanted(now);
        // An end of which nothing is wanted is left out: the kernel reports its hang-up whether wanted or not, and the
        // loop would spin.
        let ends = [(Some(self.socket()), link), (self.grpc(), grpc)].map(|(end, (read, write))| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, read);
            flags.set(PollFlags::OUT, write);
            end.filter(|_| read || write).map(|end| PollFd::from_borrowed_fd(end, flags))
        });
        let mut wanted: Vec<PollFd<'_>> = ends.iter().flatten().cloned().collect();
        let time = due.and_then(|due| Timespec::try_from(due.saturating_duration_since(now)).ok());
        match poll(&mut wanted, time.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(PumpError::Broken(errno.to_string())),
        }
        let mut polled = wanted.iter();
        let [link, grpc] = ends.map(|end| {
            let end = end.and_then(|_| polled.next());
            end.is_some_and(|end| end.revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR))
        });
        Ok((link, grpc))
    }

    fn run_until_end(&mut self) -> Result<(), PumpError> {
        let (mut from_link, mut from_grpc) = (false, false);
        while self.step(from_link, from_grpc, SystemClock.now())? {
            (from_link, from_grpc) = self.wait()?;
        }
        Ok(())
    }
}

/// Moves the bytes of one connection until it ends. If it breaks, `reason` is set before gRPC sees its end.
///
/// # Errors
/// Why the gate has closed; all other ends are in order.
pub fn run(mut transfer: Transfer<impl Link>, reason: &Reason) -> Result<(), String> {
    let Err(error) = transfer.run_until_end() else { return Ok(()) };
    let (PumpError::Refused(text) | PumpError::Broken(text)) = &error;
    log::debug!("Connection ended: '{text}'");
    let _ = reason.set(text.clone());
    let Transfer { link, stage } = transfer;
    drop(stage); // Who waits at the end of gRPC must not wait for the farewell.
    end_in_order(link);
    if let PumpError::Refused(text) = error { Err(text) } else { Ok(()) }
}

/// Sends what `link` has left, an alert or a farewell of TLS, and reads until the other side closes, for at most
/// [`FAREWELL_MAX`].
pub fn end_in_order(link: impl Link) {
    if link.wants_write() {
        let _ = Transfer::farewell(link, SystemClock.now()).run_until_end(); // When it breaks, nobody reads it.
    }
}
