//! Who is at the other end of a stream, and what the server receives from there.
//!
//! Thread: none, plain values.

pub use super::grpc::Service;
use super::outbox::Outbox;
use super::semaphore::Permit;
use super::tls::PeerCertificate;
use ankaios_model::messages::{AgentHello, ToServer};
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// Identifies one stream for the life of the process; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u64);

/// Who is at the other end, after its hello was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerHello {
    /// An agent whose name, version and certificate were checked.
    Agent(AgentHello),
    /// A commander on the deprecated CLI service.
    Cli,
    /// A commander on the command service.
    Commander,
}

/// What connections report to the server. For one peer: `Opened`, any number of `Message`,
/// `Closed`.
#[derive(Debug)]
pub enum PeerEvent {
    /// A stream whose hello was accepted. Dropping the outbox ends it with status OK.
    Opened {
        /// Its number.
        peer: PeerId,
        /// Who it is.
        hello: PeerHello,
        /// What its log lines and its time are counted under, see [`Origin::holder`].
        source: String,
        /// Where to put messages for it.
        outbox: Outbox,
    },
    /// A message of the peer.
    Message {
        /// Who sent it.
        peer: PeerId,
        /// Its content.
        message: ToServer,
        /// What it takes of the inbox until it is handled.
        permits: MessagePermits,
    },
    /// The stream has ended, for whatever reason.
    Closed {
        /// Whose stream.
        peer: PeerId,
    },
}

/// What a message takes of the inbox until it is handled. The default takes nothing.
#[derive(Debug, Default)]
pub struct MessagePermits {
    /// To be decoded, if it is large.
    pub(super) _decoded: Permit,
    /// A slot among the messages of its stream.
    pub(super) slot: Permit,
}

impl MessagePermits {
    /// Keeps the slot only: its stream is read no further while all slots are kept.
    pub fn into_slot(self) -> Permit {
        self.slot
    }
}

/// Where a connection comes from, and what vouches for the other end.
#[derive(Debug, Clone)]
pub(crate) enum Origin {
    /// TCP without TLS: nothing does.
    Plain(SocketAddr),
    /// TCP with TLS: its certificate.
    Tls(SocketAddr, PeerCertificate),
    /// A Unix domain socket, by its path, and the user as whom the other end connected: the kernel.
    Socket(Arc<Path>, u32),
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(address) | Self::Tls(address, _) => address.fmt(formatter),
            Self::Socket(path, uid) => write!(formatter, "unix://{} (uid {uid})", path.display()),
        }
    }
}

impl Origin {
    /// Whose streams, log lines and time of the server are counted together: those of a
    /// certificate, wherever it is used, and else those of an address or user; each connection has
    /// another port.
    pub(crate) fn holder(&self) -> String {
        match self {
            Self::Tls(_, certificate) if !certificate.dns_names.is_empty() => {
                certificate.dns_names.join(", ")
            }
            Self::Plain(address) | Self::Tls(address, _) => address.ip().to_string(),
            Self::Socket(_, uid) => format!("uid {uid}"),
        }
    }
}

/// What tests of other files and crates look at.
#[cfg(debug_assertions)]
impl MessagePermits {
    /// Of a small message.
    pub fn of_slot(slot: Permit) -> Self {
        Self {
            _decoded: Permit::default(),
            slot,
        }
    }
}
