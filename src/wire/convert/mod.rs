//! Schema to model and back: the edge where bytes from outside are checked once.
//!
//! Thread: whichever reads or writes the stream.
//!
//! Receivers are lenient where that is safe: a state without additional info has an empty one, an
//! incomplete entry of a list of states is left out. What cannot be read at all is an error with
//! the reason.
//!
//! A message that was read has a bound in memory, since one of tiny parts takes many times its
//! bytes: two bytes are enough for an empty workload. Our own reader counts the values that it
//! makes of complete states; the parts of all other messages are counted before the library reads
//! them.

mod fields;
pub(crate) mod messages;
mod schema;
mod tree;

use fields::{Fields, Value};

/// What becomes of bytes.
type Decoded<T> = Result<T, ConvertError>;

/// A message that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConvertError(pub String);

const MALFORMED: &str = "bytes that are no message";
const NO_TEXT: &str = "a text that is no UTF-8";

impl ConvertError {
    /// Returns whether these bytes are no message, rather than an incomplete one.
    pub fn is_malformed(&self) -> bool {
        [MALFORMED, NO_TEXT].contains(&self.0.as_str())
    }

    fn missing(field: &str) -> Self {
        Self(format!("Missing field '{field}'"))
    }

    fn unknown_enum(number: u64) -> Self {
        let number = number.cast_signed();
        Self(format!("unknown enumeration value {number}"))
    }
}

/// What a part of a state takes beside its content, in bytes: itself, and its place in a map or
/// list that has grown.
const PART: usize = 96;
/// What any part takes that the library reads, in bytes: a place in a map or list of messages that
/// has grown, the message, and what we make of it. One that the schema does not know has a table
/// entry of its own and takes twice as much.
const LIBRARY_PART: usize = 256;
/// Messages of the library that have such parts nest at most so deep.
const LIBRARY_DEPTH: usize = 8;
/// Memory that any message may take when it is decoded, in bytes: some 100,000 small parts.
const DECODED_ALWAYS: usize = 16 * 1024 * 1024;
/// Further memory, as a multiple of the message's own bytes. States of people take three to five
/// times their bytes; a message of tiny parts would take a hundred times.
const DECODED_FACTOR: usize = 8;

/// What a message may still take in memory when it is decoded.
#[derive(Debug)]
pub struct Left {
    /// Bytes of the message.
    length: usize,
    max: usize,
    left: usize,
    /// Why the message is refused although it is one.
    refused: Option<String>,
    /// Enumeration numbers without meaning are shown as they are; a newer program sent them.
    shows_unknown: bool,
}

impl Left {
    /// For a message from outside.
    pub fn of(bytes: &[u8]) -> Self {
        Self::at_most(
            DECODED_ALWAYS.saturating_add(bytes.len().saturating_mul(DECODED_FACTOR)),
            bytes,
        )
    }

    pub(crate) fn at_most(max: usize, bytes: &[u8]) -> Self {
        Self {
            length: bytes.len(),
            max,
            left: max,
            refused: None,
            shows_unknown: false,
        }
    }

    /// For a message of the server, which is trusted.
    fn unbounded() -> Self {
        Self::at_most(usize::MAX, &[])
    }

    /// Its size, for tests.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.max - self.left
    }

    /// Takes `bytes` of the memory that is left.
    ///
    /// # Errors
    /// Less is left. The message is refused for this reason.
    fn take(&mut self, bytes: usize) -> Decoded<()> {
        let Some(left) = self.left.checked_sub(bytes) else {
            let reason = format!(
                "a message of {} bytes that takes more than {} bytes of memory when it is decoded",
                self.length, self.max
            );
            return Err(self.refuse(reason));
        };
        self.left = left;
        Ok(())
    }

    /// Takes the memory that the library needs for a message, and for those in it down to `depth`.
    /// A part may be a text or a message, so each is read as a message.
    fn take_for_library(&mut self, bytes: &[u8], depth: usize) -> Decoded<()> {
        for field in Fields::of(bytes).map_while(Result::ok) {
            // The fields of most messages have such numbers.
            let is_known = matches!(field.number, ..16 | 1000..1006);
            let needed = if is_known {
                LIBRARY_PART
            } else {
                2 * LIBRARY_PART
            };
            self.take(needed)?;
            let Value::Bytes(part) = field.value else {
                continue;
            };
            // As a message, printable text has only fields with numbers up to 15.
            if depth > 0 && !is_printable(part) {
                self.take_for_library(part, depth - 1)?;
            }
        }
        Ok(())
    }

    /// Refuses the message for this reason.
    fn refuse(&mut self, reason: String) -> ConvertError {
        ConvertError(self.refused.insert(reason).clone())
    }

    pub(crate) fn refused(&self) -> Option<&String> {
        self.refused.as_ref()
    }

    /// Reads a text, and takes its memory.
    fn text<'b>(&mut self, bytes: &'b [u8]) -> Decoded<&'b str> {
        self.take(bytes.len())?;
        std::str::from_utf8(bytes).map_err(|_| ConvertError(NO_TEXT.to_owned()))
    }
}

/// Returns whether these are printable characters, tabs and codes of colours.
fn is_printable(bytes: &[u8]) -> bool {
    let mut bytes = bytes.iter();
    bytes.all(|byte| matches!(byte, b' '..=b'~' | b'\t' | b'\r' | 0x1b))
}

#[cfg(test)]
mod tests;
