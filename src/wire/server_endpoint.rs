//! The server's end of all connections: accept, hello, one reader thread per stream, one writer for all.
//!
//! Thread: `listen` accepts, and moves bytes where TLS is off; `tls:<port>` greets and moves them where it is on; `rx:<peer>` reads one stream, `tx`
//! (writer.rs) writes all.
//! Owns: the listening sockets and the gRPC server. Gives: [`PeerEvent`] (readers wait when the inbox is full).

use super::address::{ListenAddress, Security};
use super::answer_budget::AnswerBudget;
use super::convert::to_server;
use super::frame_gate::{Account, FrameGate};
use super::grpc::{self, Keepalive, Received, Unpacked, wait, wait_at_most};
use super::hello::{check_hello, check_user};
use super::inbox_budget::{InboxBudget, Room};
use super::intake::{Intake, IntakeRoom};
use super::listener::{Accepted, Listener, SocketPeer};
use super::outbox::{Outbox, outbox_waking};
use super::plain_pump::{PlainPump, Socket};
use super::pump::Gate;
use super::schema::grpc_api;
use super::tls::{PeerCertificate, Reason, ServerTls, TlsError};
use super::weight;
use super::writer::{PeerStream, Writer};
use crate::limits::{
    ACCEPT_PAUSE, AGENT_REQUEST_MAX, CONNECTION_FD_MAX, CONNECTION_FD_MIN, CONNECTION_IDLE_MAX, FIRST_MESSAGE_MAX,
    HANDSHAKE_MAX, HANDSHAKES, HELLO_MAX, PEER_STUCK, SERVER_INBOX_BYTES, STACK_LARGE, STACK_SMALL, STOP_DEADLINE,
    STREAMS_MAX, STREAMS_PER_CONNECTION,
};
use crate::model::messages::{Request, RequestContent, ToServer, UpdateState};
use crate::model::names::excerpt;
use crate::platform::clock::{Clock, SystemClock};
use crate::platform::logging::may_log;
use crate::platform::threads::{self, Thread};
use crate::platform::vital::{Pulse, VitalThreads};
use crossbeam_channel::Sender;
use futures_util::StreamExt;
use grpcio::{DuplexSink, RequestStream, RpcContext, RpcStatus, RpcStatusCode, ServiceBuilder};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a peer is answered that says nothing where its hello should be.
pub(super) const NO_HELLO: &str = "Empty";

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
        /// Where it comes from, for [`crate::platform::logging::may_log`].
        source: String,
        /// Where to put messages for it.
        outbox: Outbox,
    },
    /// A message of the peer.
    Message {
        /// Who sent it.
        peer: PeerId,
        /// What it says.
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

/// The class of a stream, from the service it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Agent,
    Cli,
    Commander,
}

type Requests = RequestStream<Received>;
type Responses = DuplexSink<grpc_api::FromServer>;

/// What all streams share.
struct Shared {
    inbox: Sender<PeerEvent>,
    budget: Arc<InboxBudget>,
    answers: Arc<AnswerBudget>,
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

/// Where a connection comes from, and what vouches for the other end.
#[derive(Debug, Clone)]
pub(super) enum Origin {
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
    fn source(&self) -> String {
        match self {
            Self::Plain(address) | Self::Tls(address, _) => address.ip().to_string(),
            Self::Socket(peer) => format!("uid {}", peer.uid),
        }
    }
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
    fn arrived(&self, received: &Received) -> Option<IntakeRoom> {
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
            budget: InboxBudget::new(inbox_bytes),
            answers: Arc::default(),
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
            let wakes = Wakes { stopped, wake, pulse };
            if let Err(error) = accept_until_stopped(&listeners, &wakes, &shared, &gate, tls.as_ref()) {
                log::error!("Cannot wait for connections: '{error}'. No further client can connect.");
            }
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

/// Keys of [`PlainPump::watch`]; those of listeners follow.
const STOPPED: u64 = 0;
const WAKE: u64 = 1;
const LISTENERS: u64 = 2;

/// Serves connections without TLS beside it: nobody needs a thread to say nothing.
fn accept_until_stopped(
    listeners: &[Listener],
    wakes: &Wakes,
    shared: &Arc<Shared>,
    gate: &Arc<Mutex<Entrance>>,
    tls: Option<&ServerTls>,
) -> io::Result<()> {
    let mut pump = PlainPump::new()?;
    pump.watch(wakes.stopped.as_fd(), STOPPED)?;
    pump.watch(wakes.wake.as_fd(), WAKE)?;
    let watch_listeners = |pump: &PlainPump| {
        (LISTENERS..).zip(listeners).try_for_each(|(key, listener)| pump.watch(listener.as_fd(), key))
    };
    watch_listeners(&pump)?;
    let mut resting: Option<Instant> = None;
    loop {
        wakes.pulse.turn();
        let rest = resting.map(|until| SystemClock.until(until));
        let ready = pump.wait(rest, || SystemClock.now())?;
        if resting.is_some_and(|until| SystemClock.until(until).is_zero()) {
            resting = None;
            watch_listeners(&pump)?;
        }
        if ready.contains(&STOPPED) {
            return Ok(());
        }
        if ready.contains(&WAKE) {
            let _ = rustix::io::read(&wakes.wake, &mut [0; 8]); // Nobody else reads it.
        }
        for (_, listener) in (LISTENERS..).zip(listeners).filter(|(key, _)| ready.contains(key)) {
            let Err(error) = accept_from(listener, &mut pump, shared, gate, tls) else { continue };
            // Out of descriptors or memory: the connection stays in the backlog, so pause instead of spinning.
            if may_log("accepting connections") {
                log::warn!("Cannot accept a connection: '{error}'. Trying again.");
            }
            listeners.iter().for_each(|listener| pump.unwatch(listener.as_fd()));
            resting = Some(SystemClock.now() + ACCEPT_PAUSE);
        }
    }
}

/// Takes one connection of a listener that has some.
///
/// # Errors
/// It cannot be taken now.
fn accept_from(
    listener: &Listener,
    pump: &mut PlainPump,
    shared: &Arc<Shared>,
    gate: &Arc<Mutex<Entrance>>,
    tls: Option<&ServerTls>,
) -> io::Result<()> {
    let (from, served) = match listener.accept() {
        Ok(Accepted::Tcp(stream, from)) => {
            let prepared = grpc::prepare(&stream);
            let served = prepared.and_then(|()| match tls {
                Some(tls) => serve_tls(stream, from, shared, gate, tls.clone()),
                None => serve_plain(Box::new(stream), Origin::Plain(from), pump, shared, gate),
            });
            (Origin::Plain(from), served)
        }
        Ok(Accepted::Socket(stream, peer)) => {
            let prepared = stream.set_nonblocking(true);
            let origin = Origin::Socket(peer);
            let served = prepared.and_then(|()| serve_plain(Box::new(stream), origin.clone(), pump, shared, gate));
            (origin, served)
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return Ok(()),
        Err(error) => return Err(error),
    };
    if let Err(error) = served
        && may_log(&from.source())
    {
        log::warn!("Dropping the connection from '{from}': '{error}'");
    }
    Ok(())
}

/// Brings a new connection to gRPC, with TLS on a thread of its own, so that a slow handshake delays nobody.
fn serve_tls(
    stream: TcpStream,
    address: SocketAddr,
    shared: &Arc<Shared>,
    gate: &Arc<Mutex<Entrance>>,
    tls: ServerTls,
) -> io::Result<()> {
    let handshake = lock(&shared.handshakes).begin(&stream)?;
    let (owned, gate) = (shared.clone(), gate.clone());
    let started = threads::spawn(format!("tls:{}", address.port()), STACK_LARGE, move || {
        let greeted = tls.accept(stream, HANDSHAKE_MAX);
        lock(&owned.handshakes).end(handshake);
        let pump = greeted.map_err(io::Error::other).and_then(|(session, certificate)| {
            let (plain, frames) = connect_grpc(Origin::Tls(address, certificate), &owned, &gate)?;
            Ok((session, plain, frames))
        });
        // Only what the pump needs stays for the life of the connection.
        drop((owned, gate));
        match pump {
            Ok((session, plain, frames)) => {
                if let Err(error) = session.pump(plain, Some(frames), &Reason::default()) {
                    log_refusal(&Origin::Plain(address), &error.to_string());
                }
            }
            Err(error) if may_log(&Origin::Plain(address).source()) => {
                log::warn!("Dropping the connection from '{address}': {error}");
            }
            Err(_) => {}
        }
    });
    started.map(|_| ()).inspect_err(|_| lock(&shared.handshakes).end(handshake))
}

/// Brings a connection without TLS to gRPC as soon as its client sends anything.
fn serve_plain(
    client: Box<dyn Socket>,
    origin: Origin,
    pump: &mut PlainPump,
    shared: &Arc<Shared>,
    gate: &Arc<Mutex<Entrance>>,
) -> io::Result<()> {
    let (shared, gate, from) = (shared.clone(), gate.clone(), origin.clone());
    let open = Box::new(move || connect_grpc(origin, &shared, &gate));
    let on_refused = Box::new(move |reason: &str| log_refusal(&from, reason));
    pump.add(client, open, on_refused, SystemClock.now())
}

fn log_refusal(origin: &Origin, reason: &str) {
    if may_log(&origin.source()) {
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
    let share = Arc::default();
    // A stream that failed answers with errors for ever, so the first one ends it.
    while let Some(Ok(received)) = wait(requests.next()) {
        let incoming = client.arrived(&received);
        let unpacked = received.unpack(longest);
        // Its bytes wait for room, not what they become.
        let weight = if let Unpacked::Message { weight, .. } = &unpacked { *weight } else { 0 };
        let room = shared.budget.take(weight, &share);
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
            to_server::to_server(message)
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
