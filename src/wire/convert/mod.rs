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
mod modes;
pub mod state;
mod timings;
pub mod to_server;
mod updates;
mod usage;
pub mod values;

use crate::model::node::Node;
use std::collections::HashMap;

/// A message that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConvertError(pub String);

impl ConvertError {
    fn missing(field: &str) -> Self {
        Self(format!("Missing field '{field}'"))
    }

    fn unknown_enum(number: i32) -> Self {
        Self(format!("unknown enumeration value {number}"))
    }
}

/// The map of the schema that has what `value` makes of each entry of `node`.
fn write_map<T>(node: &Node, value: impl Fn(&Node) -> T) -> HashMap<String, T> {
    node.as_map().into_iter().flatten().map(|(key, node)| (key.clone(), value(node))).collect()
}

#[cfg(test)]
mod tests;
