//! The only place that knows protobuf, grpcio, TLS and the sockets of connections.
//!
//! Thread: see the files. We open and accept connections; gRPC is given connected sockets, so TLS
//! and the lengths of messages are in our hands.

pub mod address;
#[cfg(any(feature = "agent", feature = "server"))]
pub mod budget;
#[cfg(any(feature = "agent", feature = "cli"))]
pub mod client;
mod convert;
#[cfg(feature = "agent")]
pub mod delimited;
#[cfg(any(feature = "agent", feature = "server"))]
mod foreign;
#[cfg(feature = "server")]
mod frame_gate;
mod grpc;
mod grpc_parts;
#[cfg(feature = "server")]
mod hello;
mod key_kinds;
#[cfg(feature = "server")]
mod listener;
#[cfg(any(feature = "agent", feature = "server"))]
pub mod outbox;
#[cfg(feature = "server")]
pub mod peer;
mod pump;
#[cfg(feature = "server")]
pub mod server_endpoint;
#[cfg(feature = "server")]
mod stream;
mod tls;
#[cfg(feature = "server")]
mod writer;
pub use tls::{SERVER_NAME, TlsError};

/// Messages as bytes, without a connection: for tests with malformed messages (tests/fuzz).
#[doc(hidden)]
#[cfg(feature = "server")]
pub mod raw {
    pub use super::convert::Left;
    pub use super::convert::messages::{
        read_from_server, read_to_server, write_from_server, write_to_server,
    };
}

/// What mutating hooks read and write: one `UpdateWorkload` without length.
#[cfg(feature = "server")]
pub mod hooks {
    pub use super::convert::ConvertError;
    pub use super::convert::messages::{read_plan, write_plan};
}
