//! Bytes between one client and gRPC: every connection of the server, and those of clients with TLS, pass a socket pair.
//! So the lengths of messages are seen before gRPC takes them, and gRPC needs no TLS.
//!
//! Thread: `pump:<number>` without TLS, `tls:<port>` with it, one for each connection.
//! Owns: what is under way in each direction. Each side is read only when what it sent before was taken. A connection on
//! which nothing is sent holds no memory.

use crate::limits::{FAREWELL_BYTES, FAREWELL_MAX, TLS_BUFFER};
use crate::platform::clock::{Clock, SystemClock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Decides what of the bytes of a client goes on.
pub trait Gate: Send {
    /// How many of these bytes may go on now.
    ///
    /// # Errors
    /// The connection has to end, and why.
    fn admit(&mut self, bytes: &[u8], now: Instant) -> Result<usize, String>;

    /// When to call [`Self::check`] and [`Self::admit`] again although nothing comes.
    fn look_again(&self) -> Option<Duration>;

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

/// Why nothing more goes on.
#[derive(Debug)]
enum PumpError {
    /// The gate has closed.
    Refused(String),
    /// The connection broke.
    Broken(String),
    /// gRPC has closed its end.
    Ended,
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
        (self.bytes, self.range) = (bytes, 0..count.unwrap_or_default());
        Ok(count)
    }

    /// Writes what may go on, as far as gRPC takes it.
    fn write_to(&mut self, grpc: &mut UnixStream) -> Result<(), PumpError> {
        if let Some(gate) = &self.gate {
            gate.check(SystemClock.now()).map_err(PumpError::Refused)?;
        }
        while !self.is_empty() {
            if self.admitted == 0 {
                let bytes = &self.bytes[self.range.clone()];
                self.admitted = match &mut self.gate {
                    Some(gate) => gate.admit(bytes, SystemClock.now()).map_err(PumpError::Refused)?,
                    None => bytes.len(),
                };
                if self.admitted == 0 {
                    return Ok(());
                }
            }
            match grpc.write(&self.bytes[self.range.start..][..self.admitted]) {
                Ok(0) => return Err(PumpError::Ended),
                Ok(count) => {
                    self.range.start += count;
                    self.admitted -= count;
                }
                Err(error) if would_block(&error) => return Ok(()),
                Err(_) => return Err(PumpError::Ended),
            }
        }
        self.bytes = Vec::new();
        Ok(())
    }
}

/// Whether there is just nothing to be done now.
pub fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Moves bytes between the other side and gRPC until one of them ends; what goes to gRPC passes `gate`. `grpc` must not
/// block. If the connection breaks, `reason` is set before gRPC sees its end.
///
/// # Errors
/// Why the gate has closed; all other ends are in order.
pub fn pump(
    mut link: impl Link,
    mut grpc: UnixStream,
    gate: Option<Box<dyn Gate>>,
    reason: &Reason,
) -> Result<(), String> {
    let ended = move_until_end(&mut link, &mut grpc, gate);
    match &ended {
        Err(PumpError::Ended) => end_in_order(&mut link, Some(&mut grpc)),
        Err(PumpError::Refused(text) | PumpError::Broken(text)) => {
            log::debug!("Connection ended: '{text}'");
            let _ = reason.set(text.clone());
        }
        Ok(()) => {}
    }
    let _ = grpc.shutdown(Shutdown::Both); // Who waits at that end must not wait for a farewell.
    if link.wants_write() {
        end_in_order(&mut link, None);
    }
    if let Err(PumpError::Refused(text)) = ended { Err(text) } else { Ok(()) }
}

/// Returns when the other side has ended and all that it sent went on.
fn move_until_end(link: &mut impl Link, grpc: &mut UnixStream, gate: Option<Box<dyn Gate>>) -> Result<(), PumpError> {
    let mut incoming = Incoming { bytes: Vec::new(), range: 0..0, admitted: 0, gate };
    let (mut is_ready, mut has_ended) = (false, false);
    loop {
        link.flush().map_err(PumpError::Broken)?;
        // All that came must go on now: only new bytes from the socket wake this loop again.
        loop {
            incoming.write_to(grpc)?;
            if !incoming.is_empty() || has_ended {
                break;
            }
            match incoming.fill_from(link, std::mem::take(&mut is_ready))? {
                Some(0) => has_ended = true,
                Some(_) => {}
                None => break,
            }
        }
        if has_ended && incoming.is_empty() && !link.wants_write() {
            return Ok(());
        }
        let from_link = incoming.is_empty() && !has_ended;
        let from_grpc = !link.wants_write();
        let timeout = incoming.gate.as_ref().and_then(|gate| gate.look_again());
        let grpc_ready;
        (is_ready, grpc_ready) = wait(
            (link.socket(), flags(from_link, link.wants_write())),
            (grpc.as_fd(), flags(from_grpc, incoming.wants_write())),
            timeout,
        )?;
        is_ready &= from_link;
        if grpc_ready && from_grpc {
            let mut outgoing = vec![0; TLS_BUFFER];
            match grpc.read(&mut outgoing) {
                Ok(0) => return Err(PumpError::Ended),
                Ok(count) => {
                    outgoing.truncate(count);
                    link.queue(outgoing).map_err(PumpError::Broken)?;
                }
                Err(error) if would_block(&error) => {}
                Err(_) => return Err(PumpError::Ended),
            }
        }
    }
}

fn flags(read: bool, write: bool) -> PollFlags {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::IN, read);
    flags.set(PollFlags::OUT, write);
    flags
}

/// Waits for what is wanted of both ends. Returns which of them can be read.
fn wait(
    link: (BorrowedFd<'_>, PollFlags),
    grpc: (BorrowedFd<'_>, PollFlags),
    timeout: Option<Duration>,
) -> Result<(bool, bool), PumpError> {
    let ends = [link, grpc];
    // An end of which nothing is wanted is left out: the kernel reports its hang-up whether wanted or not, and the loop
    // would spin.
    let is_wanted = |(_, flags): &&(BorrowedFd<'_>, PollFlags)| !flags.is_empty();
    let mut wanted: Vec<PollFd<'_>> =
        ends.iter().filter(is_wanted).map(|(end, flags)| PollFd::from_borrowed_fd(*end, *flags)).collect();
    match poll(&mut wanted, timeout.and_then(|time| Timespec::try_from(time).ok()).as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(PumpError::Broken(errno.to_string())),
    }
    let mut polled = wanted.iter();
    let [link, grpc] = ends.map(|(_, flags)| {
        let end = if flags.is_empty() { None } else { polled.next() };
        end.is_some_and(|end| end.revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR))
    });
    Ok((link, grpc))
}

/// Delivers what the link still has for the other side, after what gRPC wrote before it closed its end: sends it, closes
/// the sending side and reads until the other side closes as well, for at most [`FAREWELL_MAX`]. A socket that is closed
/// with unread bytes resets the connection, and the other side may lose what was sent last.
pub fn end_in_order(link: &mut impl Link, grpc: Option<&mut UnixStream>) {
    let deadline = SystemClock.now() + FAREWELL_MAX;
    let mut rest = grpc.map(|grpc| grpc.take(FAREWELL_BYTES));
    let mut unwanted = [0; 4096];
    let mut has_closed = false;
    while !SystemClock.until(deadline).is_zero() {
        if link.flush().is_err() {
            return;
        }
        if !link.wants_write()
            && let Some(grpc) = &mut rest
        {
            let mut last = vec![0; TLS_BUFFER];
            let count = grpc.read(&mut last).unwrap_or_default();
            last.truncate(count);
            if last.is_empty() {
                link.close();
                rest = None;
            } else if link.queue(last).is_err() {
                return;
            }
            continue;
        }
        if !link.wants_write() && !has_closed {
            if rustix::net::shutdown(link.socket(), rustix::net::Shutdown::Write).is_err() {
                return;
            }
            has_closed = true;
        }
        match rustix::io::read(link.socket(), &mut unwanted) {
            Ok(0) => return,
            Ok(_) => continue,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return,
        }
        let left = Timespec::try_from(SystemClock.until(deadline)).ok();
        let wanted = PollFd::from_borrowed_fd(link.socket(), flags(true, link.wants_write()));
        let _ = poll(&mut [wanted], left.as_ref()); // The time bounds the loop.
    }
}

/// A socket without TLS.
#[cfg(feature = "server")]
pub struct Plain {
    socket: rustix::fd::OwnedFd,
    unsent: Vec<u8>,
    sent: usize,
}

#[cfg(feature = "server")]
impl Plain {
    /// The socket must not block.
    pub fn new(socket: impl Into<rustix::fd::OwnedFd>) -> Self {
        Self { socket: socket.into(), unsent: Vec::new(), sent: 0 }
    }
}

#[cfg(feature = "server")]
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
        use rustix::net::{SendFlags, send};
        while self.wants_write() {
            match send(&self.socket, &self.unsent[self.sent..], SendFlags::NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(errno) => return Err(errno.to_string()),
            }
        }
        self.unsent = Vec::new();
        self.sent = 0;
        Ok(())
    }

    fn wants_write(&self) -> bool {
        self.sent < self.unsent.len()
    }

    fn close(&mut self) {}
}
