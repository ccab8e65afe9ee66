//! Reads one stream: its hello, then its messages for the server.
//!
//! Thread: `rx:<peer>`, one per stream, for the hello, for large messages, and when it must wait for
//! a permit or for room in the inbox of the server; `grpc-poll-0` forwards all other messages.
//! Gives: [`PeerEvent`] to the server, and the writing end of the stream to `tx`.

use super::convert::Left;
use super::convert::messages::{read_to_server, refused_request};
use super::frame_gate::InFlightMessages;
use super::grpc::{NotUnpacked, Received, Service, wait_at_most};
use super::hello::{NO_HELLO, check_hello, check_user, refusal};
use super::outbox::{Outgoing, outbox_waking};
use super::peer::{MessagePermits, PeerEvent, PeerHello, PeerId, PeerOrigin};
use super::semaphore::{Permit, Semaphore};
use super::stream_reader::StreamReader;
use super::writer::{PeerStream, StreamWriter};
use crate::limits::{
    AGENT_REQUEST_MAX, FIRST_MESSAGE_MAX, HELLO_MAX, INBOX_SMALL_MESSAGE, PEER_STUCK,
    SERVER_INBOX_OF_STREAM,
};
use ankaios_model::messages::ToServer;
use ankaios_model::names::{Name, excerpt};
use ankaios_platform::logging::log_source;
use crossbeam_channel::{Sender, TrySendError};
use futures_util::stream::Peekable;
use futures_util::{Sink, StreamExt};
use grpcio::{DuplexSink, RequestStream, RpcStatus, RpcStatusCode, WriteFlags};
use std::pin::Pin;
use std::sync::Arc;

/// Messages of a client. The first one is asked for before the thread of the stream starts.
pub(crate) type Requests = Peekable<RequestStream<Received>>;
/// Messages for a client.
pub(crate) type Responses = DuplexSink<Outgoing>;

/// What all streams share.
pub(crate) struct Streams {
    /// Of the server.
    pub(crate) inbox: Sender<PeerEvent>,
    /// Bytes of large messages of all connections: from the first byte that gRPC gets until the
    /// message is decoded.
    pub(crate) arriving: Arc<Semaphore>,
    /// Large messages that are decoded, until the server has handled them or keeps them as pending
    /// requests: one, since a message may take many times its bytes.
    pub(crate) decoded: Arc<Semaphore>,
    /// Bytes of responses to all peers.
    pub(crate) responses: Arc<Semaphore>,
    /// Bytes of all other messages for all peers.
    pub(crate) others: Arc<Semaphore>,
    /// Largest message, in bytes.
    pub(crate) message_max: usize,
    /// DNS names of the certificates that may command; empty: all certificates of the authority.
    pub(crate) commander_names: Vec<String>,
    /// Sends to all peers.
    pub(crate) writer: StreamWriter,
}

/// An open connection.
#[derive(Debug, Clone)]
pub(crate) struct PeerConnection {
    pub(crate) origin: PeerOrigin,
    /// Its messages that were received and not handled.
    pub(crate) in_flight: Arc<InFlightMessages>,
}

/// The client of one stream.
pub(crate) struct Client {
    pub(crate) connection: PeerConnection,
    /// Largest message that it accepts, in bytes.
    pub(crate) message_max: usize,
    /// Whether it is a program of this project.
    pub(crate) own: bool,
    /// Whether it sends nothing after its hello until the response headers have come.
    pub(crate) waits_for_headers: bool,
}

impl Streams {
    /// Reads a stream until it ends.
    pub(crate) fn serve(
        self: &Arc<Self>,
        peer: PeerId,
        service: Service,
        client: &Client,
        mut requests: Requests,
        mut responses: Responses,
    ) {
        // First receive the hello, or end the stream.
        let PeerConnection { origin, in_flight } = &client.connection;
        let from = origin.to_string();
        let source = origin.holder();
        let certificate_expires = origin.certificate_expires();
        let _source = log_source(source.as_str());
        let hello = match self.receive_hello(service, client, &mut requests) {
            Ok(hello) => hello,
            Err(status) => {
                warn_refused(&from, status.message());
                // The client may be gone already.
                let _ = wait_at_most(responses.fail(status), PEER_STUCK);
                return;
            }
        };
        let name = match &hello {
            PeerHello::Agent(hello) => hello.agent.clone(),
            PeerHello::Cli | PeerHello::Commander => peer.0.to_string(),
        };
        name_thread(&name);
        log::debug!("Stream {} from '{from}' is '{name}'.", peer.0);
        // Then give the writing end to `tx`, and report the peer to the server.
        if client.waits_for_headers && service != Service::Agent {
            // gRPC sends the headers with the first message. The server sends one to agents at
            // once; commanders would wait for the headers and send no request.
            let first = (Outgoing::no_states(), WriteFlags::default());
            let _ = Pin::new(&mut responses).start_send(first);
        }
        let waker = self.writer.waker(peer);
        let (outbox, reader) =
            outbox_waking(waker.clone(), self.responses.clone(), self.others.clone());
        let outbox = outbox.limited_to(client.message_max, &name);
        let stream = PeerStream::new(name, Box::new(responses), reader, service == Service::Agent);
        let outbox = outbox.with_stream(self.writer.add(peer, stream, waker));
        in_flight.hello_accepted();
        let opened = PeerEvent::Opened {
            peer,
            hello,
            source,
            certificate_expires,
            outbox,
        };
        if self.inbox.send(opened).is_err() {
            return; // The server is ending.
        }
        // Finally pass its messages on.
        let longest = if service == Service::Agent {
            AGENT_REQUEST_MAX.min(self.message_max)
        } else {
            self.message_max
        };
        let forwarder = Arc::new(Forwarder {
            streams: self.clone(),
            peer,
            from,
            log_source: Name::from(origin.holder()),
            in_flight: in_flight.clone(),
            own: client.own,
            longest,
            slots: Semaphore::in_batches(SERVER_INBOX_OF_STREAM),
        });
        let is_served = forwarder.forward_all(requests);
        in_flight.stream_ended();
        if is_served {
            let _ = self.inbox.send(PeerEvent::Closed { peer }); // Gone only when the server ends.
        }
    }

    /// Waits for the first message of a stream, and checks that it is a hello this peer may send.
    ///
    /// # Errors
    /// The status to end the stream with.
    fn receive_hello(
        &self,
        service: Service,
        client: &Client,
        requests: &mut Requests,
    ) -> Result<PeerHello, RpcStatus> {
        let first = wait_at_most(requests.next(), HELLO_MAX);
        let received = match first {
            Some(Some(Ok(received))) => received,
            Some(_) => return Err(refusal(RpcStatusCode::INVALID_ARGUMENT, NO_HELLO)),
            None => {
                let text = "No hello received.";
                return Err(refusal(RpcStatusCode::DEADLINE_EXCEEDED, text));
            }
        };
        let PeerConnection { origin, in_flight } = &client.connection;
        let message = {
            // The permits count the memory of the bytes and of the decoded message.
            let mut decoded = Permit::default();
            let _arrived = in_flight.arrived(received.len());
            let from = origin.to_string();
            self.read(received, FIRST_MESSAGE_MAX, &mut decoded, &from)
        };
        // What cannot be decoded is refused like any message that is not a hello.
        let message = message.unwrap_or(ToServer::Empty);
        let certificate = match origin {
            PeerOrigin::Tls(_, certificate) if service == Service::Agent => Some(certificate),
            _ => None,
        };
        let hello = check_hello(service, certificate, message)?;
        check_user(&hello, origin, &self.commander_names)?;
        Ok(hello)
    }

    /// Decodes a message of a peer at `from`; `None` when it cannot be decoded. A message that
    /// takes much memory acquires `decoded` first.
    ///
    /// A message that exceeds a bound is not decoded: a request is refused, so that its sender gets
    /// a response, anything else becomes [`ToServer::Empty`].
    fn read(
        &self,
        received: Received,
        longest: usize,
        decoded: &mut Permit,
        from: &str,
    ) -> Option<ToServer> {
        let bytes = match received.unpack(longest) {
            Ok(bytes) => bytes,
            Err(NotUnpacked { request_id, reason }) => {
                warn_not_decoded(from, &reason);
                return match request_id {
                    Some(id) => Some(refused_request(id, reason)),
                    None => Some(ToServer::Empty),
                };
            }
        };
        // First try it without a permit.
        if let Some(message) = read_small(&bytes) {
            return Some(message);
        }
        // Then decode any other message with a permit.
        *decoded = self.decoded.acquire(1);
        let mut left = Left::of(&bytes);
        let message = read_to_server(&bytes, &mut left).ok();
        match left.refused() {
            None => message,
            // A request has become one that the server refuses; anything else is dropped.
            Some(reason) => {
                warn_not_decoded(from, reason);
                Some(message.unwrap_or(ToServer::Empty))
            }
        }
    }
}

/// The way of the messages of one stream to the server.
struct Forwarder {
    streams: Arc<Streams>,
    peer: PeerId,
    /// Its origin, for log lines.
    from: String,
    /// The source of its log lines.
    log_source: Name,
    in_flight: Arc<InFlightMessages>,
    /// Whether it is a program of this project.
    own: bool,
    /// Longest message that is decoded, in bytes.
    longest: usize,
    /// Messages that the server has not handled.
    slots: Arc<Semaphore>,
}

impl Forwarder {
    /// Forwards messages until the stream ends. Returns whether the server still runs.
    fn forward_all(self: &Arc<Self>, requests: Requests) -> bool {
        let forwarder = self.clone();
        let forward_now = Box::new(move |received| forwarder.forward_now(received));
        let mut reader = StreamReader::passing(Box::new(requests), forward_now);
        loop {
            // First a slot: without one the next message stays with gRPC, which stops reading.
            let slot = self.slots.acquire(1);
            // A stream that failed returns errors without end, so the first one ends it.
            let Some(Ok(received)) = reader.next() else {
                return true;
            };
            let arriving = self.in_flight.arrived(received.len());
            let mut decoded = Permit::default();
            let read = self
                .streams
                .read(received, self.longest, &mut decoded, &self.from);
            let Some(message) = read else {
                return true;
            };
            drop(arriving);
            if self
                .streams
                .inbox
                .send(self.event(message, decoded, slot))
                .is_err()
            {
                return false;
            }
        }
    }

    /// Forwards a small message on the thread of gRPC. Returns any other one, and one for which the
    /// server has no room.
    fn forward_now(&self, received: Received) -> Option<Received> {
        if received.len() >= INBOX_SMALL_MESSAGE.min(self.longest) {
            return Some(received);
        }
        let Some(slot) = self.slots.try_acquire(&mut None, 1) else {
            return Some(received);
        };
        let _source = log_source(self.log_source.clone());
        let Ok(bytes) = received.unpack(self.longest) else {
            return None; // gRPC can read each of its own messages.
        };
        let Some(message) = read_small(&bytes) else {
            return Some(Received::Copied(bytes));
        };
        let event = self.event(message, Permit::default(), slot);
        if let Err(TrySendError::Full(_)) = self.streams.inbox.try_send(event) {
            return Some(Received::Copied(bytes));
        }
        drop(self.in_flight.arrived(bytes.len()));
        None
    }

    fn event(&self, message: ToServer, decoded: Permit, slot: Permit) -> PeerEvent {
        let message = match message {
            // Only our agents send an empty list of states to say that their states are complete.
            ToServer::StatesComplete if !self.own => ToServer::WorkloadStates(Vec::new()),
            message => message,
        };
        let permits = MessagePermits {
            _decoded: decoded,
            slot,
        };
        PeerEvent::Message {
            peer: self.peer,
            message,
            permits,
        }
    }
}

/// Decodes a small message, which needs no permit. `None` when it has many parts, which take too
/// much memory for that, and when it cannot be decoded.
fn read_small(bytes: &[u8]) -> Option<ToServer> {
    if bytes.len() >= INBOX_SMALL_MESSAGE {
        return None;
    }
    let mut left = Left::at_most(INBOX_SMALL_MESSAGE, bytes);
    let message = read_to_server(bytes, &mut left).ok()?;
    match left.refused() {
        None => Some(message),
        Some(_) => None,
    }
}

fn warn_refused(from: &str, why: &str) {
    if why == NO_HELLO {
        log::warn!(
            "No hello came from '{from}': the connection ended, or its first message is empty."
        );
    } else {
        let why = excerpt(why);
        log::warn!("Refusing the connection from '{from}': '{why}'");
    }
}

fn warn_not_decoded(from: &str, reason: &str) {
    log::warn!("Not decoding a message from '{from}': {reason}.");
}

/// Names this thread after its peer, for people who look at the process.
fn name_thread(peer: &str) {
    if let Ok(name) = std::ffi::CString::new(format!("rx:{peer}")) {
        let _ = rustix::thread::set_name(&name); // Without it the thread keeps its earlier name.
    }
}

#[cfg(test)]
mod tests;
