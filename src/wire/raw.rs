//! Messages as bytes, without a connection: for tests with malformed messages (tests/fuzz).
//!
//! Thread: none, plain functions.

use super::convert::Left;
use super::convert::messages;
use crate::model::messages::{FromServer, ToServer};

/// What the server makes of these bytes; `None` when they are refused before or by the decoder.
pub fn read_to_server(bytes: &[u8]) -> Option<ToServer> {
    messages::read_to_server(bytes, &mut Left::of(bytes)).ok()
}

/// What a client makes of these bytes; `None` when they cannot be understood.
pub fn read_from_server(bytes: &[u8]) -> Option<FromServer> {
    messages::read_from_server(bytes).ok()
}

/// The bytes that a client sends.
pub fn write_to_server(message: ToServer) -> Option<Vec<u8>> {
    Some(messages::write_to_server(message))
}

/// The bytes that the server sends.
pub fn write_from_server(message: FromServer) -> Option<Vec<u8>> {
    Some(messages::write_from_server(&message))
}
