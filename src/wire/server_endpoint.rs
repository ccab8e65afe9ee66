//! The server's end of all connections: accept, hello, one reader thread per stream, one writer for all.
//!
//! Thread: `listen` accepts; `tls:<port>` greets and pumps where TLS is on; `rx:<peer>` reads one stream, `tx`
//! (writer.rs) writes all.
//! Owns: the listening sockets and the gRPC server. Gives: [`PeerEvent`] (readers wait when the inbox is full).

use super::address::{ListenAddress, Security};
use super::budget::{Budget, Share};
use super::convert::to_server;
use super::frame_gate::{Account, FrameGate, Intake};
use super::grpc::{self, Keepalive, Received, Unpacked, wait, wait_at_most};
use super::hello::{NO_HELLO, check_hello, check_user};
use super::listener::{Accepted, Listener};
use super::outbox::outbox_waking;
use super::peer::{Class, Inbox, Origin, PeerEvent, PeerHello, PeerId};
use super::pump::{Gate, Plain, Reason, pump};
use super::schema::grpc_api;
use super::tls::{ServerTls, TlsError};
use super::weight;
use super::writer::{PeerStream, Writer};
use crate::limits::{
    AGENT_REQUEST_MAX, ANSWERS_BYTES, CONNECTION_FD_MAX, CONNECTION_FD_MIN, CONNECTION_IDLE_MAX, FIRST_MESSAGE_MAX,
    HANDSHAKE_MAX, HANDSHAKES, HELLO_MAX, PEER_STUCK, SERVER_INBOX_BYTES, STACK_LARGE, STACK_SMALL, STOP_DEADLINE,
    STREAMS_MAX, STREAMS_PER_CONNECTION,
};
use crate::model::messages::{Request, RequestContent, ToServer, UpdateState};
use crate::model::names::excerpt;
use crate::platform::logging::may_log;
use crate::platform::threads::{self, Thread};
use crate::platform::vital::{Pulse, VitalThreads};
use crossbeam_channel::Sender;
use futures_util::StreamExt;
use grpcio::{DuplexSink, RequestStream, RpcContext, RpcStatus, RpcStatusCode, ServiceBuilder};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What the endpoint needs to know.
#[derive(Debug, Clone)]
pub struct EndpointOptions {
    /// Where to listen.
    pub addresses: Vec<ListenAddress>,
    /// Permissions of the files of Unix domain sockets.
    pub socket_mode: u32,
    /// How connections over TCP are protected. Unix domain sockets are never encrypted.
    pub security: Security,
    /// Largest message sent and received, in bytes.
    pub message_max: usize,
    /// Only certificates with one of these DNS names may command; empty: all of the authority.
    pub commander_names: Vec<String>,
}

/// The endpoint could not be started.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The address cannot be listened on.
    #[error("cannot listen on '{address}'")]
    Bind {
        /// The address.
        address: ListenAddress,
        /// Why, for example address in use.
        source: io::Error,
    },
    /// Certificates or key that cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A thread or the gRPC library could not be started.
    #[error("cannot start the gRPC server: {0}")]
    Start(String),
}

/// All connections of the server.
pub struct ServerEndpoint {
    addresses: Vec<ListenAddress>,
    listen: Thread,
    /// Dropping it ends the `listen` thread.
    stop: OwnedFd,
}

type Requests = RequestStream<Received>;
type Responses = DuplexSink<grpc_api::FromServer>;

/// What all streams share.
struct Shared {
    inbox: Sender<PeerEvent>,
    /// See [`Inbox`].
    inbox_bytes: Arc<Budget>,
    /// What answers take that wait for all peers.
    answers: Arc<Budget>,
    intake: Arc<Intake>,
    message_max: usize,
    writer: Writer<Responses>,
    next_peer: AtomicU64,
    streams: AtomicUsize,
    /// Open connections by the number that gRPC calls them; an entry is replaced when its number is used again,
    /// so there are never more than [`CONNECTION_FD_MAX`].
    connections: Mutex<HashMap<i32, Connection>>,
    handshakes: Mutex<Handshakes>,
    /// See [`EndpointOptions::commander_names`].
    commander_names: Vec<String>,
}

/// TLS handshakes under way, at most [`HANDSHAKES`].
#[derive(Default)]
struct Handshakes {
    next: u64,
    under_way: BTreeMap<u64, TcpStream>,
}

impl Handshakes {
    /// Counts the handshake of `stream` and answers its number. If there are too many, the oldest is given up: whoever
    /// is silent that long must not keep others out.
    fn begin(&mut self, stream: &TcpStream) -> io::Result<u64> {
        let stream = stream.try_clone()?;
        if self.under_way.len() >= HANDSHAKES
            && let Some((_, oldest)) = self.under_way.pop_first()
        {
            let _ = oldest.shutdown(Shutdown::Both); // Wakes its thread, which says in the log whose it was.
        }
        self.next += 1;
        self.under_way.insert(self.next, stream);
        Ok(self.next)
    }

    fn end(&mut self, number: u64) {
        self.under_way.remove(&number);
    }
}

/// An open connection.
#[derive(Debug, Clone)]
struct Connection {
    origin: Origin,
    account: Arc<Account>,
}

/// The other end of one stream.
struct Client {
    connection: Option<Connection>,
    /// Largest message it takes, in bytes.
    message_max: usize,
    /// Whether it is a program of ours.
    own: bool,
}

impl Client {
    fn origin(&self) -> Option<&Origin> {
        self.connection.as_ref().map(|connection| &connection.origin)
    }

    /// A message came; what it took on its way is held as long as its bytes are.
    fn arrived(&self, received: &Received) -> Option<Share> {
        self.connection.as_ref()?.account.arrived(received.len())
    }

    fn from(&self) -> String {
        self.origin().map_or_else(|| "unknown".to_owned(), Origin::to_string)
    }

    fn source(&self) -> String {
        self.origin().map_or_else(|| "unknown".to_owned(), Origin::source)
    }
}

/// Gives connections to gRPC.
struct Entrance {
    server: grpcio::Server,
    /// Lowest number for the next connection.
    next_number: i32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that is locked here is left half changed by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ServerEndpoint {
    /// Listens and reports everything that happens to `inbox`; readers wait when it is full.
    ///
    /// # Errors
    /// [`EndpointError`] when the address cannot be had or threads cannot be started.
    // [impl->swdd~server-supports-multiple-clients~1]
    pub fn start(
        options: &EndpointOptions,
        inbox: Sender<PeerEvent>,
        vital: &mut VitalThreads,
    ) -> Result<Self, EndpointError> {
        Self::start_with(options, inbox, vital, Keepalive::default(), SERVER_INBOX_BYTES)
    }

    /// The same with another bound for peers that have vanished, and for the bytes of large messages that wait.
    fn start_with(
        options: &EndpointOptions,
        inbox: Sender<PeerEvent>,
        vital: &mut VitalThreads,
        keepalive: Keepalive,
        inbox_bytes: usize,
    ) -> Result<Self, EndpointError> {
        let tls = match &options.security {
            Security::Insecure => None,
            Security::MutualTls(pem) => Some(ServerTls::new(pem)?),
        };
        let start = |text: &dyn std::fmt::Display| EndpointError::Start(text.to_string());
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        for address in &options.addresses {
            let bind = |source| EndpointError::Bind { address: address.clone(), source };
            let listener = Listener::bind(address, options.socket_mode).map_err(bind)?;
            addresses.push(listener.address().map_err(bind)?);
            listeners.push(listener);
        }
        let shared = Arc::new(Shared {
            inbox,
            inbox_bytes: Budget::new(inbox_bytes),
            answers: Budget::new(ANSWERS_BYTES),
            intake: Intake::new(),
            message_max: options.message_max,
            writer: Writer::start(vital).map_err(|error| start(&error))?,
            next_peer: AtomicU64::new(1),
            streams: AtomicUsize::new(0),
            connections: Mutex::default(),
            handshakes: Mutex::default(),
            commander_names: options.commander_names.clone(),
        });
        let arguments = grpc::channel(options.message_max, keepalive)
            .max_concurrent_stream(STREAMS_PER_CONNECTION)
            .raw_cfg_int(
                grpc::argument("grpc.max_connection_idle_ms"),
                i32::try_from(CONNECTION_IDLE_MAX.as_millis()).unwrap_or(i32::MAX),
            )
            // What a stream sends that nobody reads yet must not grow with the speed of its connection.
            .raw_cfg_int(grpc::argument("grpc.http2.bdp_probe"), 0)
            .build_args();
        let mut server = grpcio::ServerBuilder::new(grpc::environment())
            .channel_args(arguments)
            .requests_slot_per_cq(16)
            .register_service(services(&shared, options.message_max))
            .build()
            .map_err(|error| start(&error))?;
        server.start();
        let gate = Arc::new(Mutex::new(Entrance { server, next_number: CONNECTION_FD_MIN }));
        let (stopped, stop) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|error| start(&error))?;
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| start(&error))?);
        let nudge = wake.clone();
        let pulse = vital.add_nudged_by("listen", move || {
            let _ = rustix::io::write(&nudge, &1_u64.to_ne_bytes()); // Full means readable already.
        });
        let listen = threads::spawn("listen", STACK_SMALL, move || {
            accept_until_stopped(&listeners, &Wakes { stopped, wake, pulse }, &shared, &gate, tls.as_ref());
            drop(listeners); // Refuse new connections before the old ones end.
            let mut gate = lock(&gate);
            let ended = gate.server.shutdown();
            gate.server.cancel_all_calls();
            let _ = wait_at_most(Box::pin(ended), STOP_DEADLINE);
        })
        .map_err(|error| start(&error))?;
        Ok(Self { addresses, listen, stop })
    }

    /// Where it listens, in the order of the options; tells the port when 0 was asked for.
    #[must_use]
    pub fn addresses(&self) -> &[ListenAddress] {
        &self.addresses
    }

    /// Accepts no more, ends all streams and waits at most `limit` for that.
    pub fn stop(self, limit: Duration) {
        drop(self.stop);
        for name in threads::join_all([self.listen], limit) {
            log::warn!("Thread '{name}' did not end within {limit:?}.");
        }
    }
}

/// The three services; every call gets a reader thread at once, since the library's thread must not wait.
fn services(shared: &Arc<Shared>, message_max: usize) -> grpcio::Service {
    let handler = |class: Class| {
        let shared = shared.clone();
        move |context: RpcContext<'_>, requests: Requests, responses: Responses| {
            let peer = PeerId(shared.next_peer.fetch_add(1, Ordering::Relaxed));
            let user_agent = user_agent(&context);
            let client = Client {
                connection: connection(&shared, &context.peer()),
                message_max: grpc::takes(user_agent, message_max),
                own: grpc::is_own(user_agent),
            };
            let (stream_shared, source) = (shared.clone(), client.source());
            let place = StreamPlace { shared: shared.clone(), connection: client.connection.clone() };
            if shared.streams.fetch_add(1, Ordering::Relaxed) >= STREAMS_MAX {
                if may_log(&source) {
                    log::warn!(
                        "Refusing a stream from '{source}': {STREAMS_MAX} are open, which is as many as may be."
                    );
                }
                let text = format!("The server has {STREAMS_MAX} streams open; try again later");
                let failed = responses.fail(RpcStatus::with_message(RpcStatusCode::RESOURCE_EXHAUSTED, text));
                context.spawn(async move {
                    let _ = failed.await; // Nobody is there to be told that it failed.
                    drop(place);
                });
                return;
            }
            let body = move || {
                serve_stream(&stream_shared, peer, class, &client, requests, responses);
                drop(place);
            };
            if let Err(error) = threads::spawn(format!("rx:{}", peer.0), STACK_LARGE, body)
                && may_log(&source)
            {
                // Both ends of the call were dropped with the closure, which cancels it.
                log::error!("Cannot start a thread for a new connection: '{error}'. The client may try again.");
            }
        }
    };
    ServiceBuilder::new()
        .add_duplex_streaming_handler(&grpc::served(&grpc::CONNECT_AGENT), handler(Class::Agent))
        .add_duplex_streaming_handler(&grpc::served(&grpc::CONNECT_CLI), handler(Class::Cli))
        .add_duplex_streaming_handler(&grpc::served(&grpc::CONNECT_COMMAND), handler(Class::Commander))
        .build()
}

/// What the program at the other end calls itself.
fn user_agent<'c>(context: &'c RpcContext<'_>) -> &'c [u8] {
    let mut headers = context.request_headers().iter();
    headers.find(|(key, _)| *key == "user-agent").map(|(_, value)| value).unwrap_or_default()
}

/// Where a stream comes from. gRPC names connections `fd:<number>`.
fn connection(shared: &Shared, grpc_name: &str) -> Option<Connection> {
    let number = grpc_name.strip_prefix("fd:")?.parse().ok()?;
    lock(&shared.connections).get(&number).cloned()
}

// ------------------------------------------------------------------- accept

/// What wakes the `listen` thread beside connections.
struct Wakes {
    /// Closed at the end.
    stopped: OwnedFd,
    /// Readable when a turn is wanted.
    wake: Arc<OwnedFd>,
    pulse: Pulse,
}

fn accept_until_stopped(
    listeners: &[Listener],
    wakes: &Wakes,
    shared: &Arc<Shared>,
    gate: &Arc<Mutex<Entrance>>,
    tls: Option<&ServerTls>,
) {
    loop {
        wakes.pulse.turn();
        let stop = PollFd::from_borrowed_fd(wakes.stopped.as_fd(), PollFlags::IN);
        let wake = PollFd::from_borrowed_fd(wakes.wake.as_fd(), PollFlags::IN);
        let listening = listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN));
        let mut wanted: Vec<PollFd<'_>> = [stop, wake].into_iter().chain(listening).collect();
        match poll(&mut wanted, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                log::error!("Cannot wait for connections: '{error}'. No further client can connect.");
                return;
            }
        }
        if !wanted[0].revents().is_empty() {
            return;
        }
        if !wanted[1].revents().is_empty() {
            let _ = rustix::io::read(&wakes.wake, &mut [0; 8]); // Nobody else reads it.
        }
        let ready = listeners.iter().zip(&wanted[2..]).filter(|(_, polled)| !polled.revents().is_empty());
        for (listener, _) in ready {
            accept_from(listener, &wakes.stopped, shared, gate, tls);
        }
    }
}

/// Takes one connection of a listener that has some.
fn accept_from(
    listener: &Listener,
    stopped: &OwnedFd,
    shared: &Arc<Shared>,
    gate: &Arc<Mutex<Entrance>>,
    tls: Option<&ServerTls>,
) {
    let dropped = |from: &Origin, error: io::Error| {
        if may_log(&from.source()) {
            log::warn!("Dropping the connection from '{from}': '{error}'");
        }
    };
    match listener.accept() {
        Ok(Accepted::Tcp(stream, from)) => {
            if let Err(error) = admit(stream, from, shared, gate, tls) {
                dropped(&Origin::Plain(from), error);
            }
        }
        Ok(Accepted::Socket(stream, peer)) => {
            let origin = Origin::Socket(peer);
            let prepared = stream.set_nonblocking(true);
            if let Err(error) = prepared.and_then(|()| serve_plain(Plain::new(stream), &origin, shared, gate)) {
                dropped(&origin, error);
            }
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
        Err(error) => {
            // Out of descriptors or memory: the connection stays in the backlog, so pause instead of spinning.
            if may_log("accepting connections") {
                log::warn!("Cannot accept a connection: '{error}'. Trying again.");
            }
            let mut only_stop = [PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::IN)];
            let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
            let _ = poll(&mut only_stop, Some(&pause));
        }
    }
}

/// Brings a new connection to gRPC, with TLS on a thread of its own, so that a slow handshake delays nobody.
fn admit(
    stream: TcpStream,
    address: SocketAddr,
    shared: &Arc<Shared>,
    gate: &Arc<Mutex<Entrance>>,
    tls: Option<&ServerTls>,
) -> io::Result<()> {
    grpc::prepare(&stream)?;
    let Some(tls) = tls.cloned() else {
        return serve_plain(Plain::new(stream), &Origin::Plain(address), shared, gate);
    };
    let handshake = lock(&shared.handshakes).begin(&stream)?;
    let (owned, gate) = (shared.clone(), gate.clone());
    let started = threads::spawn(format!("tls:{}", address.port()), STACK_LARGE, move || {
        let greeted = tls.accept(stream, HANDSHAKE_MAX);
        lock(&owned.handshakes).end(handshake);
        let connected = greeted.map_err(io::Error::other).and_then(|(session, certificate)| {
            let (plain, frames) = connect_grpc(Origin::Tls(address, certificate), &owned, &gate)?;
            Ok((session, plain, frames))
        });
        // Only what the pump needs stays for the life of the connection.
        drop((owned, gate));
        match connected {
            Ok((session, plain, frames)) => {
                log_refusal(&Origin::Plain(address), pump(session, plain, Some(frames), &Reason::default()));
            }
            Err(error) if may_log(&Origin::Plain(address).source()) => {
                log::warn!("Dropping the connection from '{address}': {error}");
            }
            Err(_) => {}
        }
    });
    started.map(|_| ()).inspect_err(|_| lock(&shared.handshakes).end(handshake))
}

/// Brings a connection without TLS to gRPC.
fn serve_plain(client: Plain, origin: &Origin, shared: &Shared, gate: &Mutex<Entrance>) -> io::Result<()> {
    let (plain, frames) = connect_grpc(origin.clone(), shared, gate)?;
    let origin = origin.clone();
    threads::spawn(format!("pump:{}", plain.as_fd().as_raw_fd()), STACK_SMALL, move || {
        log_refusal(&origin, pump(client, plain, Some(frames), &Reason::default()));
    })?;
    Ok(())
}

fn log_refusal(origin: &Origin, ended: Result<(), String>) {
    if let Err(reason) = ended
        && may_log(&origin.source())
    {
        log::warn!("Closing the connection from '{origin}': {reason}.");
    }
}

/// A new connection of gRPC: our end of it, and what the bytes of the client have to pass.
fn connect_grpc(origin: Origin, shared: &Shared, gate: &Mutex<Entrance>) -> io::Result<(UnixStream, Box<dyn Gate>)> {
    let (plain, endpoint) = UnixStream::pair()?;
    plain.set_nonblocking(true)?;
    endpoint.set_nonblocking(true)?;
    let account = Account::new(shared.intake.clone(), shared.message_max);
    let frames = Box::new(FrameGate::new(account.clone()));
    hand_over(endpoint.as_fd(), Connection { origin, account }, shared, gate)?;
    Ok((plain, frames))
}

/// Gives a duplicate of `endpoint` to gRPC, under a number that was not used for long, because gRPC tells
/// connections apart by it.
fn hand_over(
    endpoint: BorrowedFd<'_>,
    connection: Connection,
    shared: &Shared,
    gate: &Mutex<Entrance>,
) -> io::Result<()> {
    let mut gate = lock(gate);
    let fd = match rustix::io::fcntl_dupfd_cloexec(endpoint, gate.next_number) {
        Ok(fd) => fd,
        // No free number from there up to the limit of the process: start again at the bottom.
        Err(_) => rustix::io::fcntl_dupfd_cloexec(endpoint, 3)?,
    };
    let number = fd.into_raw_fd();
    gate.next_number =
        if number + 1 >= CONNECTION_FD_MAX { CONNECTION_FD_MIN } else { (number + 1).max(CONNECTION_FD_MIN) };
    lock(&shared.connections).insert(number, connection);
    #[allow(unsafe_code)]
    // SAFETY: `number` is a connected stream socket that nothing else uses: a fresh duplicate whose original is
    // dropped by the caller without being read or written. gRPC owns it from here on.
    unsafe {
        gate.server.add_channel_from_fd(number);
    }
    Ok(())
}

// ------------------------------------------------------------------- streams

/// An open stream; dropped when it has ended.
struct StreamPlace {
    shared: Arc<Shared>,
    connection: Option<Connection>,
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        self.shared.streams.fetch_sub(1, Ordering::Relaxed);
        if let Some(connection) = &self.connection {
            connection.account.stream_ended();
        }
    }
}

fn serve_stream(
    shared: &Shared,
    peer: PeerId,
    class: Class,
    client: &Client,
    mut requests: Requests,
    responses: Responses,
) {
    let (from, source) = (client.from(), client.source());
    let certificate = match client.origin() {
        Some(Origin::Tls(_, certificate)) if class == Class::Agent => Some(certificate),
        _ => None,
    };
    let hello = match wait_at_most(requests.next(), HELLO_MAX) {
        // Nobody knows its certificate, so nobody could check it.
        _ if client.connection.is_none() => {
            Err(RpcStatus::with_message(RpcStatusCode::UNAUTHENTICATED, "Unknown connection.".to_owned()))
        }
        Some(Some(Ok(received))) => {
            let room = client.arrived(&received);
            let first = read(received.unpack(FIRST_MESSAGE_MAX), &from, &source).unwrap_or(ToServer::Empty);
            drop(room);
            check_hello(class, certificate, first)
                .and_then(|hello| check_user(&hello, client.origin(), &shared.commander_names).map(|()| hello))
        }
        Some(_) => Err(RpcStatus::with_message(RpcStatusCode::INVALID_ARGUMENT, NO_HELLO.to_owned())),
        None => Err(RpcStatus::with_message(RpcStatusCode::DEADLINE_EXCEEDED, "No hello received.".to_owned())),
    };
    let hello = match hello {
        Ok(hello) => hello,
        Err(status) => {
            match status.message() {
                _ if !may_log(&source) => {}
                NO_HELLO => {
                    log::warn!("No hello came from '{from}': the connection ended, or its first message says nothing.")
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
    let waker = shared.writer.waker(peer);
    let (outbox, reader) = outbox_waking(waker.clone(), shared.answers.clone());
    let stream = PeerStream::new(name, responses, reader, client.message_max, class == Class::Agent);
    shared.writer.add(peer, stream, waker);
    if shared.inbox.send(PeerEvent::Opened { peer, hello, source: source.clone(), outbox }).is_err() {
        return; // The server is ending.
    }
    if let Some(connection) = &client.connection {
        connection.account.greeted();
    }
    let longest = if class == Class::Agent { AGENT_REQUEST_MAX.min(shared.message_max) } else { shared.message_max };
    if pass_on(shared, peer, client, longest, requests).is_ok() {
        let _ = shared.inbox.send(PeerEvent::Closed { peer });
    }
}

/// Nobody takes messages any more.
struct ServerEnded;

/// Passes messages of at most `longest` bytes on to the server until the stream ends.
///
/// # Errors
/// The server is ending.
fn pass_on(
    shared: &Shared,
    peer: PeerId,
    client: &Client,
    longest: usize,
    mut requests: Requests,
) -> Result<(), ServerEnded> {
    let (from, source) = (client.from(), client.source());
    let inbox = Inbox::of_stream(shared.inbox_bytes.clone());
    // A stream that failed answers with errors for ever, so the first one ends it.
    while let Some(Ok(received)) = wait(requests.next()) {
        let incoming = client.arrived(&received);
        let unpacked = received.unpack(longest);
        // Its bytes wait for room, not what they become.
        let weight = if let Unpacked::Message { weight, .. } = &unpacked { *weight } else { 0 };
        let room = inbox.take(weight);
        let message = match read(unpacked, &from, &source) {
            // From others a list without states means nothing (spec/server.md section 10.3).
            Some(ToServer::StatesComplete) if !client.own => ToServer::WorkloadStates(Vec::new()),
            Some(message) => message,
            None => break,
        };
        drop(incoming);
        shared.inbox.send(PeerEvent::Message { peer, message, room }).map_err(|_| ServerEnded)?;
    }
    Ok(())
}

/// What a peer at `from` says. A request that was not decoded is refused as one that cannot be understood, so that its
/// sender gets an answer; anything else that was not decoded says nothing.
///
/// `None`: what cannot be decoded.
fn read(unpacked: Unpacked, from: &str, source: &str) -> Option<ToServer> {
    match unpacked {
        Unpacked::Message { bytes, .. } => weight::decode(&bytes).ok().map(|message| {
            drop(bytes);
            to_server::read(message)
        }),
        Unpacked::TooHeavy { request_id, reason } => {
            if may_log(source) {
                log::warn!("Not decoding a message from '{from}': {reason}.");
            }
            let refused = |id| {
                let update = UpdateState { new_state: Some(Err(reason)), masks: Vec::new() };
                ToServer::Request(Request { id, content: RequestContent::UpdateState(update) })
            };
            Some(request_id.map_or(ToServer::Empty, refused))
        }
    }
}

#[cfg(test)]
mod tests;
