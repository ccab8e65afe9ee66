//! The peers of streams, and the events that the server receives of them.
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

/// A peer whose hello was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerHello {
    /// An agent whose name, version and certificate were checked.
    Agent(AgentHello),
    /// A commander on the deprecated CLI service.
    Cli,
    /// A commander on the command service.
    Commander,
}

/// The events of a peer, in this order: `Opened`, any number of `Message`, `Closed`.
#[derive(Debug)]
pub enum PeerEvent {
    /// A stream whose hello was accepted. Dropping the outbox ends it with status OK.
    Opened {
        /// Its number.
        peer: PeerId,
        hello: PeerHello,
        /// Accounts for its log lines and its time of the server thread, see
        /// [`PeerOrigin::holder`].
        source: String,
        /// When its certificate expires, in seconds since 1970; `None` without TLS.
        certificate_expires: Option<u64>,
        /// For messages to it.
        outbox: Outbox,
    },
    /// A message of the peer.
    Message {
        /// Its sender.
        peer: PeerId,
        message: ToServer,
        /// Held until the message is handled.
        permits: MessagePermits,
    },
    /// The stream has ended.
    Closed { peer: PeerId },
}

/// The permits that a message in the inbox of the server holds. The default holds none.
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

/// Where a connection comes from, and the identity of its peer.
#[derive(Debug, Clone)]
pub(crate) enum PeerOrigin {
    /// TCP without TLS; the identity is unknown.
    Plain(SocketAddr),
    /// TCP with TLS, and the certificate that was verified.
    Tls(SocketAddr, PeerCertificate),
    /// A Unix domain socket, by its path, and the user id of the peer, which the kernel knows.
    Socket(Arc<Path>, u32),
}

impl fmt::Display for PeerOrigin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(address) | Self::Tls(address, _) => address.fmt(formatter),
            Self::Socket(path, uid) => write!(formatter, "unix://{} (uid {uid})", path.display()),
        }
    }
}

impl PeerOrigin {
    /// The name under which streams, log lines and time of the server thread are accounted: the DNS
    /// names of the certificate, otherwise the IP address or the user.
    pub(crate) fn holder(&self) -> String {
        match self {
            Self::Tls(_, certificate) if !certificate.dns_names.is_empty() => {
                certificate.dns_names.join(", ")
            }
            Self::Plain(address) | Self::Tls(address, _) => address.ip().to_string(),
            Self::Socket(_, uid) => format!("uid {uid}"),
        }
    }

    /// When the certificate of the peer expires, in seconds since 1970.
    pub(crate) fn certificate_expires(&self) -> Option<u64> {
        match self {
            Self::Tls(_, certificate) if certificate.count > 0 => Some(certificate.expires),
            _ => None,
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
