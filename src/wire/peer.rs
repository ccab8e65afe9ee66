//! Who is at the other end of a stream, and what the server receives from there.
//!
//! Thread: none, plain values.

use super::budget::{Budget, Share};
use super::listener::SocketPeer;
use super::outbox::Outbox;
use super::tls::PeerCertificate;
use crate::limits::{INBOX_SMALL_MESSAGE, SERVER_INBOX_OF_STREAM};
use crate::model::messages::{AgentCapabilities, ToServer};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// Identifies one stream for the life of the process; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u64);

/// Who is at the other end, after its hello was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerHello {
    /// An agent whose name and certificate were checked.
    Agent {
        /// Its name: 1 to 63 bytes of `[a-zA-Z0-9_-]`.
        name: String,
        /// Its tags.
        tags: BTreeMap<String, String>,
        /// What its program does beyond what every agent does.
        capabilities: AgentCapabilities,
    },
    /// A commander on the deprecated CLI service.
    Cli,
    /// A commander on the command service.
    Commander,
}

/// What connections report to the server. For one peer: `Opened`, any number of `Message`, `Closed`.
#[derive(Debug)]
pub enum PeerEvent {
    /// A stream whose hello was accepted. Dropping the outbox ends it with status OK.
    Opened {
        /// Its number.
        peer: PeerId,
        /// Who it is.
        hello: PeerHello,
        /// Where it comes from, for [`crate::platform::logging::log_source`].
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
        room: Room,
    },
    /// The stream has ended, for whatever reason.
    Closed {
        /// Whose stream.
        peer: PeerId,
    },
}

/// Room in the inbox of the server for the messages of one stream.
///
/// Large ones need room for the bytes that they take when they are decoded, of which all streams have one budget, and
/// each one a place among those of its stream. So neither many streams with large messages nor one that never stops
/// sending keeps all others waiting. Not counted is the one message that a reader holds while it waits.
#[derive(Debug)]
pub struct Inbox {
    bytes: Arc<Budget>,
    places: Arc<Budget>,
}

impl Inbox {
    /// For one stream; `bytes` is what all streams share.
    #[must_use]
    pub fn of_stream(bytes: Arc<Budget>) -> Self {
        Self { bytes, places: Budget::new(SERVER_INBOX_OF_STREAM) }
    }

    /// How many messages of the stream have a place.
    #[cfg(test)]
    #[must_use]
    pub fn places_taken(&self) -> usize {
        self.places.taken()
    }

    /// Room for a message of `bytes`; waits for it, so that nothing more is read of the stream. Nobody who holds room
    /// waits for anything but the server, which never waits for a reader. Small messages need no room for their bytes:
    /// the number of messages bounds them.
    #[must_use]
    pub fn take(&self, bytes: usize) -> Room {
        let place = self.places.take(1);
        let bytes = if bytes > INBOX_SMALL_MESSAGE { self.bytes.take(bytes) } else { Share::default() };
        Room { bytes, _place: place }
    }
}

/// Room of one message; dropping it gives the room back. The default takes none.
#[derive(Debug, Default)]
pub struct Room {
    bytes: Share,
    _place: Share,
}

impl Room {
    /// Gives the room for the bytes back, and keeps the place among the messages of the stream.
    pub fn give_bytes_back(&mut self) {
        self.bytes = Share::default();
    }
}

/// The class of a stream, from the service it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// For agents.
    Agent,
    /// For command line tools, deprecated.
    Cli,
    /// For all commanders.
    Commander,
}

/// Where a connection comes from, and what vouches for the other end.
#[derive(Debug, Clone)]
pub enum Origin {
    /// TCP without TLS: nothing does.
    Plain(SocketAddr),
    /// TCP with TLS: its certificate.
    Tls(SocketAddr, PeerCertificate),
    /// A Unix domain socket: the kernel.
    Socket(SocketPeer),
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(address) | Self::Tls(address, _) => address.fmt(formatter),
            Self::Socket(peer) => peer.fmt(formatter),
        }
    }
}

impl Origin {
    /// What its log lines are counted under: each connection has another port.
    #[must_use]
    pub fn source(&self) -> String {
        match self {
            Self::Plain(address) | Self::Tls(address, _) => address.ip().to_string(),
            Self::Socket(peer) => format!("uid {}", peer.uid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_has_so_many_places_and_small_messages_pass_while_large_ones_wait() {
        let bytes = Budget::new(1);
        let (inbox, other) = (Inbox::of_stream(bytes.clone()), Inbox::of_stream(bytes.clone()));
        let mut large = inbox.take(INBOX_SMALL_MESSAGE + 1);
        let small: Vec<Room> = (1..SERVER_INBOX_OF_STREAM).map(|_| inbox.take(INBOX_SMALL_MESSAGE)).collect();
        assert_eq!((inbox.places_taken(), bytes.has_room()), (SERVER_INBOX_OF_STREAM, false));
        drop(other.take(INBOX_SMALL_MESSAGE));
        large.give_bytes_back();
        assert_eq!((inbox.places_taken(), bytes.has_room()), (SERVER_INBOX_OF_STREAM, true), "its place is kept");
        drop((small, large));
        assert_eq!(inbox.places_taken(), 0);
    }
}
