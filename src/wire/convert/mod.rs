//! Schema to model and back: the edge where bytes from outside are checked once. `read` makes our type of a message of the
//! schema, `write` the reverse.
//!
//! Thread: whichever reads or writes the stream.
//!
//! Receivers are lenient where that is safe: a state without additional info has an empty one, an incomplete
//! entry of a list of states is left out. What cannot be read at all is an error with the reason.

#[cfg(feature = "agent")]
pub mod control;
pub mod from_server;
pub mod to_server;
pub mod tree;
mod usage;
pub mod values;

/// A message that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConvertError(pub String);

impl ConvertError {
    fn missing(field: &str) -> Self {
        Self(format!("Missing field '{field}'"))
    }

    fn malformed() -> Self {
        Self("bytes that are no message".to_owned())
    }

    fn unknown_enum(number: i32) -> Self {
        Self(format!("unknown enumeration value {number}"))
    }
}

#[cfg(test)]
mod tests;
