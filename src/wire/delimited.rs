//! Length-delimited messages of the control interface: each is a varint with its length and then
//! its bytes.
//!
//! Thread: `control`. A [`FrameBuffer`] holds the incomplete message of one workload: at most the
//! limit of a message and one read. [`workload_side`] is the other end, for tests and measurements.

pub use super::convert::ConvertError;
use super::convert::messages;
use protobuf::CodedInputStream;

/// A varint of 64 bits has at most this many bytes.
const VARINT_MAX: usize = 10;
/// Memory kept for the next message, in bytes.
const KEPT: usize = 4 * 1024;

/// The stream cannot be read any more: the beginning of the next message is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length is no varint.
    #[error("a length that is no varint")]
    BadLength,
    /// The length is above the limit.
    #[error("a message of {length} bytes, at most {max} are allowed")]
    TooLong {
        /// Bytes as announced.
        length: u64,
        /// Bytes allowed.
        max: usize,
    },
}

/// Received bytes that are not handled yet.
#[derive(Debug)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    /// Bytes at the beginning that were already returned.
    used: usize,
    /// Bytes of the incomplete message, with its length; 0 if that is unknown.
    expected: usize,
    max: usize,
}

impl FrameBuffer {
    /// Holds messages of at most `max` bytes each.
    pub fn new(max: usize) -> Self {
        Self {
            bytes: Vec::new(),
            used: 0,
            expected: 0,
            max,
        }
    }

    /// Adds received bytes.
    pub fn put(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.used);
        self.used = 0;
        let capacity = self.bytes.capacity();
        let needed = self.bytes.len() + bytes.len();
        if needed > capacity {
            // Twice as much as before, but not more than the message has.
            let wanted = needed.max(self.expected.min(2 * capacity));
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes of the message that is not complete, as far as that is known. Valid after
    /// [`Self::next_message`] found no further message.
    pub fn expected(&self) -> usize {
        self.expected
    }

    /// The next message, without its length; `None` if it is not complete yet.
    ///
    /// # Errors
    /// The stream is of no use any more; forget it with [`Self::clear`].
    // [impl->swdd~agent-uses-length-delimited-protobuf-for-pipes~1]
    pub fn next_message(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let unread = &self.bytes[self.used..];
        self.expected = 0;
        let mut stream = CodedInputStream::from_bytes(unread);
        let length = stream.read_raw_varint64();
        let prefix = stream.pos() as usize;
        drop(stream);
        let length = match length {
            Ok(length) => length,
            Err(_) if unread.len() >= VARINT_MAX => return Err(FrameError::BadLength),
            Err(_) => {
                self.shrink();
                return Ok(None);
            }
        };
        let length = match usize::try_from(length) {
            Ok(short) if short <= self.max => short,
            _ => {
                return Err(FrameError::TooLong {
                    length,
                    max: self.max,
                });
            }
        };
        if unread.len() - prefix < length {
            self.expected = prefix + length;
            return Ok(None);
        }
        let start = self.used + prefix;
        self.used = start + length;
        Ok(Some(&self.bytes[start..self.used]))
    }

    /// Whether a message has begun and is not complete. Valid after [`Self::next_message`] found no
    /// more.
    pub fn is_partial(&self) -> bool {
        self.used < self.bytes.len()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.bytes = Vec::new();
        self.used = 0;
        self.expected = 0;
    }

    /// Gives memory of a large message back.
    fn shrink(&mut self) {
        if self.used == self.bytes.len() && self.bytes.capacity() > KEPT {
            self.clear();
        }
    }
}

pub use messages::{read_from_workload as read_message, write_to_workload as frame};

/// The end of a workload.
pub mod workload_side {
    pub use super::messages::{read_to_workload as read_message, write_from_workload as frame};
}

#[cfg(test)]
mod tests;
