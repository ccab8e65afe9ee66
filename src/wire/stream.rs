//! Reads one stream: its hello, then its messages for the server.
//!
//! Thread: `rx:<peer>`, one per stream; it waits when the inbox of the server has no room.
//! Gives: [`PeerEvent`] to the server, and the writing end of the stream to `tx`.

use super::budget::{Budget, Share};
use super::convert::to_server;
use super::frame_gate::Account;
use super::grpc::{Received, Unpacked, wait, wait_at_most};
use super::hello::{NO_HELLO, check_hello, check_user, refusal};
use super::outbox::outbox_waking;
use super::peer::{Class, Inbox, Origin, PeerEvent, PeerHello, PeerId};
use super::schema::grpc_api;
use super::weight;
use super::writer::{PeerStream, Writer};
use crate::limits::{AGENT_REQUEST_MAX, FIRST_MESSAGE_MAX, HELLO_MAX, PEER_STUCK};
use crate::model::messages::{Request, RequestContent, ToServer, UpdateState};
use crate::model::names::excerpt;
use crate::platform::clock::{Clock, SystemClock};
use crate::platform::logging::log_source;
use crossbeam_channel::Sender;
use futures_util::StreamExt;
use grpcio::{DuplexSink, RequestStream, RpcStatus, RpcStatusCode};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// What a client sends.
pub type Requests = RequestStream<Received>;
/// What a client gets.
pub type Responses = DuplexSink<grpc_api::FromServer>;

/// What all streams share.
pub struct Streams {
    /// Of the server.
    pub inbox: Sender<PeerEvent>,
    /// See [`Inbox`].
    pub inbox_bytes: Arc<Budget>,
    /// What responses to all peers take that wait.
    pub answers: Arc<Budget>,
    /// Largest message, in bytes.
    pub message_max: usize,
    /// Only certificates with one of these DNS names may command; empty: all of the authority.
    pub commander_names: Vec<String>,
    /// Sends to all peers.
    pub writer: Writer<Responses>,
    /// How many are open.
    pub open: AtomicUsize,
}

/// An open connection.
#[derive(Debug, Clone)]
pub struct Connection {
    /// Where it comes from.
    pub origin: Origin,
    /// Its messages on their way.
    pub account: Arc<Account>,
}

/// The other end of one stream.
pub struct Client {
    /// Its connection, if it is known.
    pub connection: Option<Connection>,
    /// Largest message it takes, in bytes.
    pub message_max: usize,
    /// Whether it is a program of ours.
    pub own: bool,
}

impl Client {
    fn origin(&self) -> Option<&Origin> {
        self.connection.as_ref().map(|connection| &connection.origin)
    }

    /// A message came; what it took on its way is held as long as its bytes are.
    fn arrived(&self, received: &Received) -> Option<Share> {
        self.connection.as_ref()?.account.arrived(received.len())
    }

    /// Calls `wait`, in which the server is waited for.
    fn while_reader_waits<T>(&self, wait: impl FnOnce() -> T) -> T {
        let account = self.connection.as_ref().map(|connection| &connection.account);
        account.inspect(|account| account.reader_waits());
        let waited = wait();
        account.inspect(|account| account.reader_goes_on(SystemClock.now()));
        waited
    }

    fn from(&self) -> String {
        self.origin().map_or_else(|| "unknown".to_owned(), Origin::to_string)
    }

    /// See [`Origin::source`].
    pub fn source(&self) -> String {
        self.origin().map_or_else(|| "unknown".to_owned(), Origin::source)
    }
}

impl Streams {
    /// Reads a stream until it ends.
    pub fn serve(&self, peer: PeerId, class: Class, client: &Client, mut requests: Requests, responses: Responses) {
        let (from, source) = (client.from(), client.source());
        let _source = log_source(source.as_str());
        let hello = match self.receive_hello(class, client, &mut requests) {
            Ok(hello) => hello,
            Err(status) => {
                match status.message() {
                    NO_HELLO => {
                        log::warn!("No hello came from '{from}': the connection ended, or its first message is empty.");
                    }
                    text => log::warn!("Refusing the connection from '{from}': '{}'", excerpt(text)),
                }
                let _ = wait_at_most(responses.fail(status), PEER_STUCK);
                return;
            }
        };
        let name = match &hello {
            PeerHello::Agent { name, .. } => name.clone(),
            PeerHello::Cli | PeerHello::Commander => peer.0.to_string(),
        };
        // The name is for people who look at the process; without it nothing is lost.
        let _ = std::ffi::CString::new(format!("rx:{name}")).map(|name| rustix::thread::set_name(&name));
        log::debug!("Stream {} from '{from}' is '{name}'.", peer.0);
        let waker = self.writer.waker(peer);
        let (outbox, reader) = outbox_waking(waker.clone(), self.answers.clone());
        let stream = PeerStream::new(name, responses, reader, client.message_max, class == Class::Agent);
        self.writer.add(peer, stream, waker);
        if self.inbox.send(PeerEvent::Opened { peer, hello, source, outbox }).is_err() {
            return; // The server is ending.
        }
        if let Some(connection) = &client.connection {
            connection.account.hello_accepted();
        }
        let longest = if class == Class::Agent { AGENT_REQUEST_MAX.min(self.message_max) } else { self.message_max };
        if self.pass_on(peer, client, longest, requests).is_ok() {
            let _ = self.inbox.send(PeerEvent::Closed { peer });
        }
    }

    fn receive_hello(&self, class: Class, client: &Client, requests: &mut Requests) -> Result<PeerHello, RpcStatus> {
        let first = wait_at_most(requests.next(), HELLO_MAX);
        // Without its origin, its certificate could not be checked.
        let Some(origin) = client.origin() else {
            return Err(refusal(RpcStatusCode::UNAUTHENTICATED, "Unknown connection."));
        };
        let received = match first {
            Some(Some(Ok(received))) => received,
            Some(_) => return Err(refusal(RpcStatusCode::INVALID_ARGUMENT, NO_HELLO)),
            None => return Err(refusal(RpcStatusCode::DEADLINE_EXCEEDED, "No hello received.")),
        };
        let share = client.arrived(&received);
        let message = read(received.unpack(FIRST_MESSAGE_MAX), &client.from());
        drop(share);
        let certificate = match origin {
            Origin::Tls(_, certificate) if class == Class::Agent => Some(certificate),
            _ => None,
        };
        let hello = check_hello(class, certificate, message.unwrap_or(ToServer::Empty))?;
        check_user(&hello, origin, &self.commander_names)?;
        Ok(hello)
    }

    /// Passes messages of at most `longest` bytes on to the server until the stream ends.
    ///
    /// # Errors
    /// The server is ending.
    fn pass_on(
        &self,
        peer: PeerId,
        client: &Client,
        longest: usize,
        mut requests: Requests,
    ) -> Result<(), ServerEnded> {
        let from = client.from();
        let inbox = Inbox::of_stream(self.inbox_bytes.clone());
        // A stream that failed answers with errors for ever, so the first one ends it.
        while let Some(Ok(received)) = wait(requests.next()) {
            let incoming = client.arrived(&received);
            let unpacked = received.unpack(longest);
            // Its bytes wait for room, not what they become.
            let weight = if let Unpacked::Message { weight, .. } = &unpacked { *weight } else { 0 };
            let room = client.while_reader_waits(|| inbox.take(weight));
            let message = match read(unpacked, &from) {
                // From programs of other implementations a list without states means nothing.
                Some(ToServer::StatesComplete) if !client.own => ToServer::WorkloadStates(Vec::new()),
                Some(message) => message,
                None => break,
            };
            drop(incoming);
            self.inbox.send(PeerEvent::Message { peer, message, room }).map_err(|_| ServerEnded)?;
        }
        Ok(())
    }
}

/// Nobody takes messages any more.
struct ServerEnded;

/// Decodes a message of a peer at `from`. A request that was not decoded is refused as one that cannot be understood, so that its
/// sender gets a response; anything else becomes [`ToServer::Empty`].
///
/// `None`: it cannot be decoded.
fn read(unpacked: Unpacked, from: &str) -> Option<ToServer> {
    match unpacked {
        Unpacked::Message { bytes, .. } => weight::decode(&bytes).ok().map(|message| {
            drop(bytes);
            to_server::read(message)
        }),
        Unpacked::TooHeavy { request_id, reason } => {
            log::warn!("Not decoding a message from '{from}': {reason}.");
            let refused = |id| {
                let update = UpdateState { new_state: Some(Err(reason)), masks: Vec::new() };
                ToServer::Request(Request { id, content: RequestContent::UpdateState(update) })
            };
            Some(request_id.map_or(ToServer::Empty, refused))
        }
    }
}
