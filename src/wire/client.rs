//! The client's end of a stream to the server: connect, say hello, send, receive.
//!
//! Thread: [`connect`] and [`ClientSender`] on the caller's thread (`uplink` of the agent, `main` of `ank`),
//! [`ClientReceiver`] on a thread of its own.

use super::address::{Security, ServerUrl};
use crate::model::messages::{FromServer, ToServer};
use std::time::Duration;

/// Which of the three services a client uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// For agents.
    Agent,
    /// For command line tools: gets broadcasts of workload states.
    Cli,
    /// For other commanders: gets responses only.
    Command,
}

/// How to reach the server.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Where it is.
    pub url: ServerUrl,
    /// How the connection is protected.
    pub security: Security,
    /// Which service is wanted.
    pub service: Service,
    /// Longest wait for the connection; [`crate::limits::CONNECT_MAX`] by default.
    pub connect_limit: Duration,
    /// Largest message sent and received, in bytes.
    pub message_max: usize,
}

/// The server could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No address for the host name.
    #[error("cannot resolve host '{host}'")]
    Resolve {
        /// The host of the URL.
        host: String,
        /// Why.
        source: std::io::Error,
    },
    /// No connection to any address of the host.
    #[error("no connection to '{url}'")]
    Connect {
        /// Where to.
        url: String,
        /// Why.
        source: std::io::Error,
    },
}

/// How a stream ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamEnd {
    /// The server closed it in order, or we did.
    #[error("the server closed the connection")]
    Closed,
    /// The server refused our version; trying again is of no use. Holds the server's text.
    #[error("Ankaios version mismatch: '{0}'")]
    VersionMismatch(String),
    /// The server ended the call with another status.
    #[error("the server refused: {message} ({code})")]
    Refused {
        /// Name of the gRPC status, for example `UNAUTHENTICATED`.
        code: String,
        /// The server's text.
        message: String,
    },
    /// The connection broke.
    #[error("the connection was lost: {0}")]
    Lost(String),
}

/// Sends to the server; blocks as long as the server does not read.
pub struct ClientSender {}

/// Receives from the server.
pub struct ClientReceiver {}

/// Ends a stream from any thread: wakes a blocked sender and receiver.
#[derive(Debug)]
pub struct Hangup {}

/// Connects and sends `hello`.
///
/// # Errors
/// [`ConnectError`] when no connection can be had. A refusal by the server shows as the end of the stream.
pub fn connect(
    _options: &ClientOptions,
    _hello: ToServer,
) -> Result<(ClientSender, ClientReceiver, Hangup), ConnectError> {
    unimplemented!()
}

impl ClientSender {
    /// Sends one message, in order; waits while the connection is full.
    ///
    /// # Errors
    /// How the stream ended; the receiver may know the better reason.
    pub fn send(&mut self, _message: ToServer) -> Result<(), StreamEnd> {
        unimplemented!()
    }

    /// Says that nothing more will be sent; the server then ends the stream.
    pub fn finish(self) {
        unimplemented!()
    }
}

impl ClientReceiver {
    /// Waits for the next message.
    ///
    /// # Errors
    /// How the stream ended; every later call answers the same.
    pub fn receive(&mut self) -> Result<FromServer, StreamEnd> {
        unimplemented!()
    }
}

impl Hangup {
    /// Closes the connection at once.
    pub fn hang_up(&self) {
        unimplemented!()
    }
}
