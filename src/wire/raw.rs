//! Messages as bytes, without a connection: for tests with malformed messages (tests/fuzz).
//!
//! Thread: none, plain functions.

use super::convert::{from_server, to_server};
use super::schema::grpc_api;
use crate::model::messages::{FromServer, ToServer};
use protobuf::Message;

/// What the server makes of these bytes; `None` when they are refused before or by the decoder.
#[must_use]
pub fn read_to_server(bytes: &[u8]) -> Option<ToServer> {
    super::weight::weigh_request(bytes, &super::weight::TO_SERVER).ok()?;
    super::weight::decode::<grpc_api::ToServer>(bytes).ok().map(to_server::read)
}

/// What a client makes of these bytes; `None` when they cannot be understood.
#[must_use]
pub fn read_from_server(bytes: &[u8]) -> Option<FromServer> {
    from_server::read(grpc_api::FromServer::parse_from_bytes(bytes).ok()?).ok()
}

/// The bytes that a client sends; `None` for what cannot be encoded.
#[must_use]
pub fn write_to_server(message: ToServer) -> Option<Vec<u8>> {
    to_server::write(message).write_to_bytes().ok()
}

/// The bytes that the server sends; `None` for what cannot be encoded.
#[must_use]
pub fn write_from_server(message: FromServer) -> Option<Vec<u8>> {
    from_server::write(message).write_to_bytes().ok()
}
