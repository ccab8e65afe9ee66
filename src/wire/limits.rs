//! Bounds of connections, and of the messages that wait in them.
//!
//! Thread: none, plain values.

use ankaios_model::limits::FOREIGN_MESSAGE_MAX;
use ankaios_platform::limits::{CONTROL_MESSAGE_MAX, TRIM_FROM};
use std::time::Duration;

// ------------------------------------------------------------------- memory

/// Messages of this many bytes in total are a burst, after which free memory is returned.
pub(crate) const BURST_TRIM_FROM: usize = 4 * 1024 * 1024;
const _: () = assert!(BURST_TRIM_FROM >= TRIM_FROM);
/// Free memory is returned this long after a burst was noticed.
pub(crate) const BURST_TRIM_AFTER: Duration = Duration::from_millis(500);

// ------------------------------------------------------------------- queues

/// Messages of all peers waiting in the inbox of the server. When it is full readers wait, and TCP
/// slows the peers down.
pub const SERVER_INBOX: usize = 512;
/// Messages of one stream among them, and pending requests of a commander. Other peers wait for at
/// most this number of messages of a peer that sends without pause.
pub const SERVER_INBOX_OF_STREAM: usize = 16;
/// Messages up to this decoded size, in bytes, are not limited in bytes: their number is.
pub const INBOX_SMALL_MESSAGE: usize = 16 * 1024;
const _: () = assert!(SERVER_INBOX * INBOX_SMALL_MESSAGE < 12 * 1024 * 1024);
/// Bytes that wait for one peer, beside one large message: some thousands of events. A peer for
/// which more waits is disconnected and gets the whole state when it reconnects.
pub const PEER_OUTBOX_BYTES: usize = 16 * 1024 * 1024;
/// Bytes of responses that wait for all peers together. A source (an agent, certificate, address or
/// user) may have as many waiting as are free; at half of it no event is sent to a slow subscriber.
/// Responses are built one at a time, so at most one comes on top. With 500 workloads a whole state
/// takes some 250 KB.
pub const RESPONSES_BYTES: usize = 12 * 1024 * 1024;
const _: () = assert!(RESPONSES_BYTES / 2 > PEER_EVENTS_BYTES);
/// While requests wait for that capacity, a peer that occupies some of it and takes nothing for this
/// long is disconnected. On a link of 1 Mbit/s, 250 KB take as long.
pub(crate) const PEER_STUCK_CROWDED: Duration = Duration::from_secs(2);
const _: () = assert!(PEER_STUCK_CROWDED.as_secs() < PEER_STUCK.as_secs());
/// A peer that takes nothing for this long while something waits for it is disconnected.
pub const PEER_STUCK: Duration = Duration::from_secs(10);
/// Bytes per second of the slowest supported link (1 Mbit/s). gRPC reports only that a whole
/// message was sent, so a large one has so much longer than [`PEER_STUCK`]; keepalive notices
/// earlier that a peer is gone.
pub(crate) const PEER_SLOWEST: u64 = 128 * 1024;
/// A message up to this size, in bytes, counts as sent when gRPC has it; its completion is checked
/// before the next one. Half of the smallest window of a stream, so that it normally leaves at
/// once.
pub(crate) const PEER_SMALL_MESSAGE: usize = 32 * 1024;
/// A response up to this size, in bytes, is read on the thread of gRPC. Reading a larger one takes
/// longer than waking another thread.
pub(crate) const SMALL_RESPONSE: usize = 32 * 1024;
/// After an agent was sent states of others, further ones are collected in one message for this
/// long, so that a burst of changes on many agents does not cost agents times changes.
pub(crate) const STATES_REST: Duration = Duration::from_millis(20);

// ------------------------------------------------------------------ requests

/// Longest id of a request, in bytes. It is stored, and sent to agents behind the names of a stream
/// and a workload.
pub const REQUEST_ID_MAX: usize = 1024;
/// Parts of all field masks of one read or subscription, equal masks counted each time: two masks
/// for each of 5,000 workloads. More is refused before it is decoded.
pub(crate) const READ_MASKS_PARTS_MAX: usize = 50_000;
/// While responses hold half of [`RESPONSES_BYTES`], a peer for which more bytes than this wait
/// loses further events.
pub(crate) const PEER_EVENTS_BYTES: usize = 1024 * 1024;
/// Tags of an agent, in bytes of their keys and values and 64 each. They are stored while it is
/// connected, and are a part of responses with those of all agents.
pub const AGENT_TAGS_BYTES: usize = 16 * 1024;
/// Longest version of an agent, in bytes. It is stored while the agent is connected, and a part of
/// responses with those of all agents.
pub(crate) const AGENT_VERSION_BYTES: usize = 256;

// --------------------------------------------------------------- connections

/// Longest first message of a stream, in bytes: a hello with [`AGENT_TAGS_BYTES`] of tags.
pub(crate) const FIRST_MESSAGE_MAX: usize = 128 * 1024;
const _: () = assert!(AGENT_TAGS_BYTES * 3 / 2 < FIRST_MESSAGE_MAX);
/// Longest request on the stream of an agent, in bytes: what a workload sends by default, and what
/// agents add.
pub(crate) const AGENT_REQUEST_MAX: usize = CONTROL_MESSAGE_MAX + 64 * 1024;
const _: () = assert!(AGENT_REQUEST_MAX > FOREIGN_MESSAGE_MAX);
/// Longest wait for a TCP connection. A vehicle network connects in milliseconds or not at all.
pub const CONNECT_MAX: Duration = Duration::from_secs(5);
/// An HTTP/2 ping is sent after this long without traffic.
pub(crate) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// A peer that does not answer a ping for this long is gone.
pub(crate) const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time data may stay unacknowledged by TCP before the connection counts as dead.
pub(crate) const TCP_USER_TIMEOUT: Duration = Duration::from_secs(20);
/// A new connection must send its hello within this time.
pub(crate) const HELLO_MAX: Duration = Duration::from_secs(10);
/// A TLS handshake must be done within this time.
pub(crate) const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Longest wait of a client for its last message to be sent.
pub const GOODBYE_MAX: Duration = Duration::from_secs(1);
const _: () = assert!(
    KEEPALIVE_INTERVAL.as_secs() + KEEPALIVE_TIMEOUT.as_secs() < 30
        && TCP_USER_TIMEOUT.as_secs() < 30
);
