//! Bytes of a client on their way to gRPC: what came and has to wait, and the pump of connections without TLS.
//!
//! Thread: `tls:<port>`, or `pump:<number>` for a connection without TLS, one for each.
//! Owns: one buffer for each direction. Each side is read only when what it sent before was taken.

use crate::limits::TLS_BUFFER;
use crate::platform::clock::{Clock, SystemClock};
use rustix::event::Timespec;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Decides what of the bytes of a client goes on.
pub trait Gate: Send {
    /// How many of these bytes may go on now.
    ///
    /// # Errors
    /// The connection has to end, and why.
    fn admit(&mut self, bytes: &[u8], now: Instant) -> Result<usize, String>;

    /// When to look again although nothing comes.
    fn look_again(&self) -> Option<Duration>;

    /// Whether the bytes that come next have to wait.
    fn is_waiting(&self) -> bool;

    /// To be asked from time to time.
    ///
    /// # Errors
    /// The connection has to end, and why.
    fn check(&self, now: Instant) -> Result<(), String>;
}

/// Why nothing more goes on.
#[derive(Debug)]
pub enum PumpError {
    /// The gate has closed.
    Refused(String),
    /// The other end has.
    Ended,
}

/// Bytes on their way to gRPC. A connection on which nothing is sent holds no memory for them.
pub struct Incoming {
    bytes: Vec<u8>,
    range: Range<usize>,
    /// Of these so many have passed the gate.
    admitted: usize,
    gate: Option<Box<dyn Gate>>,
}

impl Incoming {
    /// An empty buffer before `gate`.
    pub fn new(gate: Option<Box<dyn Gate>>) -> Self {
        Self { bytes: Vec::new(), range: 0..0, admitted: 0, gate }
    }

    /// Whether all went on.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Whether some may go on as soon as the other end takes it.
    pub fn is_for_writing(&self) -> bool {
        !self.is_empty() && !self.gate.as_ref().is_some_and(|gate| gate.is_waiting())
    }

    /// Longest time to wait for anything else.
    pub fn look_again(&self) -> Option<Timespec> {
        let time = self.gate.as_ref()?.look_again()?;
        Some(Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        })
    }

    /// Fills the empty buffer with one read.
    pub fn fill_from(&mut self, source: &mut impl Read) -> io::Result<usize> {
        let mut bytes = vec![0; TLS_BUFFER];
        let count = source.read(&mut bytes)?;
        (self.bytes, self.range) = (bytes, 0..count);
        Ok(count)
    }

    /// What did not go on.
    #[cfg(test)]
    pub fn unread(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }

    /// Writes what may go on, as far as `end` takes it.
    pub fn write_to(&mut self, end: &mut UnixStream) -> Result<(), PumpError> {
        if let Some(gate) = &self.gate {
            gate.check(SystemClock.now()).map_err(PumpError::Refused)?;
        }
        while !self.is_empty() {
            if self.admitted == 0 {
                self.admitted = match &mut self.gate {
                    Some(gate) => {
                        let bytes = &self.bytes[self.range.clone()];
                        gate.admit(bytes, SystemClock.now()).map_err(PumpError::Refused)?
                    }
                    None => self.range.len(),
                };
                if self.admitted == 0 {
                    return Ok(());
                }
            }
            match end.write(&self.bytes[self.range.start..][..self.admitted]) {
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

#[cfg(feature = "server")]
pub use plain::{Socket, pump};

#[cfg(feature = "server")]
mod plain {
    use super::{Gate, Incoming, PumpError, would_block};
    use crate::limits::{FAREWELL_BYTES, FAREWELL_MAX, TLS_BUFFER};
    use crate::platform::clock::{Clock, SystemClock};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    /// The socket of a client.
    pub trait Socket: Read + Write + AsFd {
        /// Says that nothing more comes.
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

    /// Moves bytes between a client and gRPC until one of them ends. Both sockets must not block.
    ///
    /// # Errors
    /// Why the gate has closed.
    pub fn pump(mut client: impl Socket, mut grpc: UnixStream, gate: Box<dyn Gate>) -> Result<(), String> {
        let mut incoming = Incoming::new(Some(gate));
        let (mut outgoing, mut unsent) = (Vec::new(), 0..0);
        loop {
            match incoming.write_to(&mut grpc) {
                Ok(()) => {}
                Err(PumpError::Refused(reason)) => return Err(reason),
                Err(PumpError::Ended) => break,
            }
            while !unsent.is_empty() {
                match client.write(&outgoing[unsent.clone()]) {
                    Ok(count) => unsent.start += count,
                    Err(error) if would_block(&error) => break,
                    Err(_) => return Ok(()),
                }
            }
            if unsent.is_empty() {
                outgoing = Vec::new();
            }
            let flags = |read: bool, write: bool| {
                let flags = if read { PollFlags::IN } else { PollFlags::empty() };
                if write { flags | PollFlags::OUT } else { flags }
            };
            let from_client = flags(incoming.is_empty(), !unsent.is_empty());
            let from_grpc = flags(unsent.is_empty(), incoming.is_for_writing());
            let (client_ready, grpc_ready) =
                wait(&client, from_client, &grpc, from_grpc, incoming.look_again().as_ref())
                    .map_err(|errno| errno.to_string())?;
            if client_ready && incoming.is_empty() {
                match incoming.fill_from(&mut client) {
                    Ok(0) => return Ok(()),
                    Ok(_) => {}
                    Err(error) if would_block(&error) => {}
                    Err(_) => return Ok(()),
                }
            }
            if grpc_ready && unsent.is_empty() {
                outgoing = vec![0; TLS_BUFFER];
                match grpc.read(&mut outgoing) {
                    Ok(0) => break,
                    Ok(count) => unsent = 0..count,
                    Err(error) if would_block(&error) => {}
                    Err(_) => break,
                }
            }
        }
        say_goodbye(&mut client, &mut grpc, &outgoing[unsent]);
        Ok(())
    }

    /// gRPC has ended: sends what it said last. A socket that is closed with unread bytes resets the connection, and the
    /// client may lose that, so it is read until the client ends as well.
    fn say_goodbye(client: &mut impl Socket, grpc: &mut UnixStream, unsent: &[u8]) {
        let deadline = SystemClock.now() + FAREWELL_MAX;
        let mut last = unsent.to_vec();
        let _ = grpc.take(FAREWELL_BYTES).read_to_end(&mut last); // Whatever there is.
        let (mut sent, mut unwanted) = (0, [0; 4096]);
        let mut has_ended = false;
        while !SystemClock.until(deadline).is_zero() {
            if sent < last.len() {
                match client.write(&last[sent..]) {
                    Ok(count) => sent += count,
                    Err(error) if would_block(&error) => {}
                    Err(_) => return,
                }
            } else if !has_ended {
                client.end();
                has_ended = true;
            }
            match client.read(&mut unwanted) {
                Ok(0) => return,
                Ok(_) => continue,
                Err(error) if would_block(&error) => {}
                Err(_) => return,
            }
            let left = SystemClock.until(deadline);
            let time = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            let flags = if sent < last.len() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            let _ = poll(&mut [PollFd::new(&*client, flags)], Some(&time)); // The time bounds the loop.
        }
    }

    /// Waits for what is wanted of both. An end of which nothing is wanted is left out: the kernel reports its hang-up
    /// whether asked or not, and the loop would spin.
    fn wait(
        client: &impl AsFd,
        of_client: PollFlags,
        grpc: &UnixStream,
        of_grpc: PollFlags,
        timeout: Option<&Timespec>,
    ) -> rustix::io::Result<(bool, bool)> {
        let mut wanted = Vec::with_capacity(2);
        if !of_client.is_empty() {
            wanted.push(PollFd::new(client, of_client));
        }
        if !of_grpc.is_empty() {
            wanted.push(PollFd::new(grpc, of_grpc));
        }
        match poll(&mut wanted, timeout) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let ready = |index: usize| wanted.get(index).is_some_and(|end| !end.revents().is_empty());
        let of_grpc_index = usize::from(!of_client.is_empty());
        Ok((!of_client.is_empty() && ready(0), !of_grpc.is_empty() && ready(of_grpc_index)))
    }
}
