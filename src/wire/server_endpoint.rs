//! The server's end of all connections: accept, hello, one reader and one writer thread per stream.
//!
//! Thread: `listen` accepts; `rx:<peer>` and `tx:<peer>` serve one stream each.

use super::address::Security;
use super::outbox::Outbox;
use crate::model::messages::ToServer;
use crossbeam_channel::Sender;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// Identifies one stream for the life of the process; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u64);

/// Who is at the other end, after the checks of the hello (spec/server.md sections 10.1 and 12.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerHello {
    /// An agent whose name and certificate were checked.
    Agent {
        /// Its name: 1 to 63 bytes of `[a-zA-Z0-9_-]`.
        name: String,
        /// Its tags.
        tags: BTreeMap<String, String>,
    },
    /// A commander on the deprecated CLI service.
    Cli,
    /// A commander on the command service.
    Commander,
}

/// What the connections tell the server. For one peer: `Opened`, any number of `Message`, `Closed`.
#[derive(Debug)]
pub enum PeerEvent {
    /// A stream whose hello was accepted. Dropping the outbox ends it with status OK.
    Opened {
        /// Its number.
        peer: PeerId,
        /// Who it is.
        hello: PeerHello,
        /// Where to put messages for it.
        outbox: Outbox,
    },
    /// A message of the peer.
    Message {
        /// Who sent it.
        peer: PeerId,
        /// What it says.
        message: ToServer,
    },
    /// The stream has ended, for whatever reason.
    Closed {
        /// Whose stream.
        peer: PeerId,
    },
}

/// What the endpoint needs to know.
#[derive(Debug, Clone)]
pub struct EndpointOptions {
    /// Where to listen.
    pub address: SocketAddr,
    /// How connections are protected.
    pub security: Security,
    /// Largest message sent and received, in bytes.
    pub message_max: usize,
}

/// The endpoint could not be started.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The address cannot be listened on.
    #[error("cannot listen on '{address}'")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why, for example address in use.
        source: std::io::Error,
    },
    /// A thread or the gRPC library could not be started.
    #[error("cannot start the gRPC server: {0}")]
    Start(String),
}

/// All connections of the server.
pub struct ServerEndpoint {}

impl ServerEndpoint {
    /// Listens and reports everything that happens to `inbox`; readers wait when it is full.
    ///
    /// # Errors
    /// [`EndpointError`] when the address cannot be had or threads cannot be started.
    pub fn start(_options: &EndpointOptions, _inbox: Sender<PeerEvent>) -> Result<Self, EndpointError> {
        unimplemented!()
    }

    /// Where it listens; tells the port when 0 was asked for.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        unimplemented!()
    }

    /// Accepts no more, ends all streams and waits at most `limit` for that.
    pub fn stop(self, _limit: Duration) {
        unimplemented!()
    }
}
