//! The only place that knows protobuf, grpcio, TLS and the sockets of connections.
//!
//! Thread: see the files. We open and accept connections; gRPC is given connected sockets, so TLS
//! and the lengths of messages are in our hands.

#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod address;
pub mod client;
mod convert;
pub mod delimited;
pub mod expiry;
mod foreign;
mod frame_gate;
mod grpc;
mod grpc_parts;
mod hello;
mod key_kinds;
pub mod limits;
mod listener;
pub mod outbox;
pub mod peer;
mod pump;
pub mod semaphore;
pub mod server_endpoint;
mod stream;
mod stream_reader;
mod tls;
mod writer;

/// Messages as bytes, without a connection: for tests with malformed messages (tests/fuzz).
#[doc(hidden)]
pub mod raw {
    pub use super::convert::Left;
    pub use super::convert::messages::{
        read_from_server, read_to_server, write_from_server, write_to_server,
    };
}

/// What mutating hooks read and write: one `UpdateWorkload` without length.
pub mod hooks {
    pub use super::convert::ConvertError;
    pub use super::convert::messages::{read_plan, write_plan};
}
