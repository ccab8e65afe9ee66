//! Bytes of a client on their way to gRPC: what came and has to wait.
//!
//! Thread: `tls:<port>`, or `listen` for all connections without TLS. Owns: one buffer.

use crate::limits::TLS_BUFFER;
use crate::platform::clock::{Clock, SystemClock};
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
    pub fn look_again(&self) -> Option<Duration> {
        self.gate.as_ref()?.look_again()
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
