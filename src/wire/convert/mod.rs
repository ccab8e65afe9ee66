//! Schema to model and back: the edge where bytes from outside are checked once.
//!
//! Thread: whichever reads or writes the stream.
//!
//! Receivers are lenient where that is safe: a state without additional info has an empty one, an incomplete
//! entry of a list of states is left out. What cannot be read at all is an error with the reason.

mod codec;
mod fields;
pub mod messages;
mod phase;
#[cfg(test)]
mod schema;
mod tree;
pub use codec::Left;

/// A message that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConvertError(pub String);

const MALFORMED: &str = "bytes that are no message";
const NO_TEXT: &str = "a text that is no UTF-8";

impl ConvertError {
    /// Whether it is no message at all, and not just one that lacks something.
    #[cfg(feature = "server")]
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

#[cfg(test)]
mod tests;
