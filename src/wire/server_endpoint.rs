//! The server's end of all connections: accepts them and gives them to gRPC.
//!
//! Thread: `listen` accepts, and moves the bytes of all connections (pump.rs).
//! Owns: the listening sockets and the gRPC server.

use super::address::{ListenAddress, Security};
use super::frame_gate::{FrameGate, InFlightMessages};
use super::grpc::{self, Keepalive, Received, Service, wait_at_most};
use super::listener::Listener;
use super::outbox::OTHERS_BYTES;
use super::peer::{PeerEvent, PeerId, PeerOrigin};
use super::pump::{self, GrpcConnection, Pump, PumpError};
use super::semaphore::Semaphore;
use super::stream::{Client, PeerConnection, Responses, Streams};
use super::tls::{ServerTls, TlsError, TlsLink, would_block};
use super::writer::StreamWriter;
use crate::limits::RESPONSES_BYTES;
use ankaios_platform::clock::{Clock, SystemClock};
use ankaios_platform::limits::{STACK_LARGE, STOP_DEADLINE};
use ankaios_platform::logging::log_source;
use ankaios_platform::sync::Mutex;
use ankaios_platform::threads::{self, Thread};
use ankaios_platform::watchdog::{Heartbeat, WatchedThreads};
use crossbeam_channel::Sender;
use futures_util::StreamExt;
use grpcio::{RequestStream, RpcContext, RpcStatus, RpcStatusCode, ServiceBuilder};
use rustix::fd::{AsFd, IntoRawFd, OwnedFd};
use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// Open streams of all clients together: hundreds of agents, and commanders. Each takes 45 KB.
const STREAMS_MAX: usize = 1024;
/// Open streams of one certificate, address without one, or user of a socket, so that none of them
/// can take all.
const STREAMS_OF_HOLDER: usize = STREAMS_MAX / 4;
/// Calls that one connection may have open; each costs a thread.
const CALLS_OF_CONNECTION: i32 = 16;
/// Lowest number given to an accepted connection, above the descriptors of the program itself.
const CONNECTION_FD_MIN: i32 = 64;
/// Connections have lower numbers than this; higher ones would only cost kernel memory.
const CONNECTION_FD_END: i32 = 4096;
/// Pause after a connection could not be accepted: out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Settings of the endpoint.
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
    #[error("cannot start the gRPC server")]
    Start(#[from] io::Error),
}

impl EndpointError {
    fn of_address(address: &ListenAddress, source: io::Error) -> Self {
        Self::Bind {
            address: address.clone(),
            source,
        }
    }
}

/// Bytes of large messages of all connections until they are decoded. A larger one comes alone.
pub(super) const LARGE_MESSAGES: usize = 8 * 1024 * 1024;

/// All connections of the server.
pub struct ServerEndpoint {
    addresses: Vec<ListenAddress>,
    listen: Thread,
    /// Dropping it ends the `listen` thread.
    stop: OwnedFd,
}

/// What all connections share.
struct Shared {
    streams: Arc<Streams>,
    next_peer: AtomicU64,
    /// Open connections by the number that gRPC names them with. An entry is replaced when its
    /// number is used again, so there are at most [`CONNECTION_FD_END`].
    connections: Mutex<HashMap<i32, PeerConnection>>,
    /// Number of open streams of each [holder](PeerOrigin::holder).
    open: Mutex<HashMap<String, usize>>,
}

/// The slot of an open stream; released when dropped.
struct StreamSlot {
    shared: Arc<Shared>,
    holder: String,
}

impl StreamSlot {
    /// A slot of `holder`, or why there is none.
    fn take(shared: &Arc<Shared>, holder: &str) -> Result<Self, String> {
        let mut open = shared.open.lock();
        if open.values().sum::<usize>() >= STREAMS_MAX {
            return Err(format!(
                "The server has {STREAMS_MAX} streams open; try again later"
            ));
        }
        let of_holder = open.entry(holder.to_owned()).or_default();
        if *of_holder >= STREAMS_OF_HOLDER {
            return Err(format!(
                "The server has {STREAMS_OF_HOLDER} streams of '{holder}' open; try again later"
            ));
        }
        *of_holder += 1;
        Ok(Self {
            shared: shared.clone(),
            holder: holder.to_owned(),
        })
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut open = self.shared.open.lock();
        let Some(count) = open.get_mut(&self.holder) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            open.remove(&self.holder);
        }
    }
}

/// Gives connections to gRPC.
struct Entrance {
    server: grpcio::Server,
    /// Lowest number for the next connection.
    next_number: i32,
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
        watched: &mut WatchedThreads,
    ) -> Result<Self, EndpointError> {
        Self::start_with(
            options,
            inbox,
            watched,
            Keepalive::default(),
            LARGE_MESSAGES,
        )
    }

    /// [`Self::start`] with other bounds for peers that have vanished, and for large messages.
    fn start_with(
        options: &EndpointOptions,
        inbox: Sender<PeerEvent>,
        watched: &mut WatchedThreads,
        keepalive: Keepalive,
        arriving_bytes: usize,
    ) -> Result<Self, EndpointError> {
        let tls = match &options.security {
            Security::Insecure => None,
            Security::MutualTls(pem) => Some(ServerTls::new(pem)?),
        };
        // First listen.
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for address in &options.addresses {
            let listener = Listener::bind(address, options.socket_mode)
                .map_err(|source| EndpointError::of_address(address, source))?;
            let actual = listener
                .address()
                .map_err(|source| EndpointError::of_address(address, source))?;
            addresses.push(actual);
            listeners.push(listener);
        }
        // Then start gRPC.
        let shared = Arc::new(Shared {
            streams: Arc::new(Streams {
                inbox,
                arriving: Semaphore::new(arriving_bytes),
                decoded: Semaphore::new(1),
                responses: Semaphore::new(RESPONSES_BYTES),
                others: Semaphore::new(OTHERS_BYTES),
                message_max: options.message_max,
                commander_names: options.commander_names.clone(),
                writer: StreamWriter::start(watched)?,
            }),
            next_peer: AtomicU64::new(1),
            connections: Mutex::default(),
            open: Mutex::default(),
        });
        grpc::end_timer_thread();
        let arguments = grpc::channel(options.message_max, keepalive)
            .max_concurrent_stream(CALLS_OF_CONNECTION)
            .build_args();
        let server = grpcio::ServerBuilder::new(grpc::environment())
            .channel_args(arguments)
            .requests_slot_per_cq(16)
            .register_service(services(&shared));
        let mut server = grpc::with_late_timers(|| server.build()).map_err(io::Error::other)?;
        server.start();
        let entrance = Arc::new(Mutex::new(Entrance {
            server,
            next_number: CONNECTION_FD_MIN,
        }));
        // Finally start the thread that accepts connections.
        let (stopped, stop) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(io::Error::from)?;
        let mut pump = Pump::new()?;
        if tls.is_some() {
            pump.start_handshake_threads()?;
        }
        let waker = pump.wake.clone();
        let heartbeat = watched.add_woken_by("listen", move || waker.set());
        let listen = threads::spawn("listen", STACK_LARGE, move || {
            let tls = tls.as_ref();
            let accepted = accept_until_stopped(
                &mut pump, &listeners, &stopped, &heartbeat, &shared, &entrance, tls,
            );
            if let Err(error) = accepted {
                log::error!(
                    "Cannot wait for connections: '{error}'. No further client can connect."
                );
            }
            drop(listeners); // Refuse new connections before the old ones end.
            let mut entrance = entrance.lock();
            let ended = entrance.server.shutdown();
            entrance.server.cancel_all_calls();
            // Send the last messages, and the ends of TLS.
            pump.run(Some(SystemClock.now() + STOP_DEADLINE / 8));
            let _ = wait_at_most(Box::pin(ended), STOP_DEADLINE);
        })?;
        Ok(Self {
            addresses,
            listen,
            stop,
        })
    }

    /// Where it listens, in the order of the options; with the actual port when 0 was given.
    pub fn addresses(&self) -> &[ListenAddress] {
        &self.addresses
    }

    /// Stops accepting, ends all streams and waits at most `limit` for that.
    pub fn stop(self, limit: Duration) {
        drop(self.stop);
        for name in threads::join_all([self.listen], limit) {
            log::warn!("Thread '{name}' did not end within {limit:?}.");
        }
    }
}

/// The three services of gRPC.
fn services(shared: &Arc<Shared>) -> grpcio::Service {
    let mut builder = ServiceBuilder::new();
    for service in [Service::Agent, Service::Cli, Service::Command] {
        let shared = shared.clone();
        builder = builder.add_duplex_streaming_handler(
            &grpc::served(service),
            move |context: RpcContext<'_>,
                  requests: RequestStream<Received>,
                  responses: Responses| {
                begin_stream(&shared, service, &context, requests, responses);
            },
        );
    }
    builder.build()
}

/// Starts a reader thread for a new stream, since this thread of the library must not wait.
fn begin_stream(
    shared: &Arc<Shared>,
    service: Service,
    context: &RpcContext<'_>,
    requests: RequestStream<Received>,
    responses: Responses,
) {
    // First take a slot. The connection is there: it is entered before gRPC gets it.
    let Some(connection) = connection(shared, &context.peer()) else {
        return;
    };
    let holder = connection.origin.holder();
    let _source = log_source(holder.as_str());
    let slot = match StreamSlot::take(shared, &holder) {
        Ok(slot) => slot,
        Err(text) => {
            log::warn!("Refusing a stream from '{holder}': {text}.");
            let code = RpcStatusCode::RESOURCE_EXHAUSTED;
            let failed = responses.fail(RpcStatus::with_message(code, text));
            context.spawn(async move { _ = failed.await }); // An error means that the client is gone.
            return;
        }
    };
    // Then describe the client.
    let peer = PeerId(shared.next_peer.fetch_add(1, Ordering::Relaxed));
    let user_agent = user_agent(context);
    let client = Client {
        connection,
        message_max: grpc::takes(user_agent, shared.streams.message_max),
        own: grpc::is_own(user_agent),
        waits_for_headers: grpc::waits_for_headers(user_agent),
    };
    // Then ask gRPC for the first message, which it has most often. Asked for by the new thread, it
    // would wake this one, which then would wake the new one.
    let mut requests = requests.peekable();
    let _ = Pin::new(&mut requests).poll_peek(&mut Context::from_waker(Waker::noop()));
    // Finally start the thread.
    let shared = shared.clone();
    let started = threads::spawn(format!("rx:{}", peer.0), STACK_LARGE, move || {
        let streams = &shared.streams;
        streams.serve(peer, service, &client, requests, responses);
        drop(slot);
    });
    if let Err(error) = started {
        // Both ends of the call were dropped with the closure, which cancels the call.
        log::error!(
            "Cannot start a thread for a new connection: '{error}'. The client may try again."
        );
    }
}

/// The value of the header `user-agent`; empty without one.
fn user_agent<'c>(context: &'c RpcContext<'_>) -> &'c [u8] {
    for (key, value) in context.request_headers().iter() {
        if key == "user-agent" {
            return value;
        }
    }
    &[]
}

/// The connection of a stream. gRPC names connections `fd:<number>`.
fn connection(shared: &Shared, grpc_name: &str) -> Option<PeerConnection> {
    let number = grpc_name.strip_prefix("fd:")?.parse().ok()?;
    shared.connections.lock().get(&number).cloned()
}

// ------------------------------------------------------------------- accept

/// Keys of [`Pump::watch`]; those of listeners follow.
const STOPPED: u64 = 0;
const LISTENERS: u64 = 1;

/// Accepts connections, and serves them, until `stopped` is closed.
fn accept_until_stopped(
    pump: &mut Pump,
    listeners: &[Listener],
    stopped: &OwnedFd,
    heartbeat: &Heartbeat,
    shared: &Arc<Shared>,
    entrance: &Arc<Mutex<Entrance>>,
    tls: Option<&ServerTls>,
) -> io::Result<()> {
    pump.watch(stopped.as_fd(), STOPPED)?;
    watch_listeners(pump, listeners)?;
    let mut paused_until: Option<Instant> = None;
    loop {
        heartbeat.turn();
        let pause = paused_until.map(|until| SystemClock.until(until));
        let ready = pump.wait(pause, || SystemClock.now())?;
        if let Some(until) = paused_until
            && SystemClock.until(until).is_zero()
        {
            paused_until = None;
            watch_listeners(pump, listeners)?;
        }
        if ready.contains(&STOPPED) {
            pump.unwatch(stopped.as_fd());
            unwatch_listeners(pump, listeners);
            return Ok(());
        }
        for (key, listener) in (LISTENERS..).zip(listeners) {
            if !ready.contains(&key) {
                continue;
            }
            if let Err(error) = accept_from(listener, pump, shared, entrance, tls) {
                log::warn!("Cannot accept a connection: '{error}'. Trying again.");
                // The connection stays in the backlog, so the loop would spin.
                unwatch_listeners(pump, listeners);
                paused_until = Some(SystemClock.now() + ACCEPT_PAUSE);
            }
        }
    }
}

fn watch_listeners(pump: &Pump, listeners: &[Listener]) -> io::Result<()> {
    for (key, listener) in (LISTENERS..).zip(listeners) {
        pump.watch(listener.as_fd(), key)?;
    }
    Ok(())
}

fn unwatch_listeners(pump: &Pump, listeners: &[Listener]) {
    for listener in listeners {
        pump.unwatch(listener.as_fd());
    }
}

/// Accepts one connection of a listener that has some.
///
/// # Errors
/// It cannot be accepted now.
fn accept_from(
    listener: &Listener,
    pump: &mut Pump,
    shared: &Arc<Shared>,
    entrance: &Arc<Mutex<Entrance>>,
    tls: Option<&ServerTls>,
) -> io::Result<()> {
    let (socket, origin) = match listener.accept() {
        Err(error) if would_block(&error) => return Ok(()),
        accepted => accepted?,
    };
    // First begin the handshake, with TLS. Unix domain sockets have none.
    let begun = match tls {
        Some(tls) if matches!(origin, PeerOrigin::Plain(_)) => tls.begin(socket),
        _ => Ok(TlsLink::new(socket, None)),
    };
    let link = match begun {
        Ok(link) => link,
        Err(error) => {
            warn_closing(&origin, &error.to_string());
            return Ok(());
        }
    };
    // Then give the connection to the pump, which opens it for gRPC later.
    let from = origin.clone();
    let on_end = Box::new(move |error: &PumpError| {
        if let PumpError::Refused(reason) = error {
            warn_closing(&from, reason);
        }
    });
    let shared = shared.clone();
    let entrance = entrance.clone();
    let open = Box::new(move |link: &TlsLink| {
        let mut identified = origin;
        if let Some(certificate) = link.certificate().map_err(io::Error::other)?
            && let PeerOrigin::Plain(address) = identified
        {
            identified = PeerOrigin::Tls(address, certificate);
        }
        connect_grpc(identified, &shared, &entrance)
    });
    pump.add(link, open, false, on_end, SystemClock.now());
    Ok(())
}

fn warn_closing(from: &PeerOrigin, reason: &str) {
    let _source = log_source(from.holder());
    log::warn!("Closing the connection from '{from}': {reason}.");
}

/// Makes a connection of gRPC, with a number that was not used for long: gRPC identifies
/// connections by the numbers of their descriptors.
fn connect_grpc(
    origin: PeerOrigin,
    shared: &Shared,
    entrance: &Mutex<Entrance>,
) -> io::Result<GrpcConnection> {
    let (plain, endpoint) = pump::pair()?;
    let in_flight =
        InFlightMessages::new(shared.streams.arriving.clone(), shared.streams.message_max);
    let gate = FrameGate::new(in_flight.clone(), SystemClock.now());
    let mut entrance = entrance.lock();
    let fd = match rustix::io::fcntl_dupfd_cloexec(&endpoint, entrance.next_number) {
        Ok(fd) => fd,
        // No free number from there up to the limit of the process: start again at the bottom.
        Err(_) => rustix::io::fcntl_dupfd_cloexec(&endpoint, 3)?,
    };
    let number = fd.into_raw_fd();
    entrance.next_number = (number + 1).max(CONNECTION_FD_MIN);
    if entrance.next_number >= CONNECTION_FD_END {
        entrance.next_number = CONNECTION_FD_MIN;
    }
    let connection = PeerConnection { origin, in_flight };
    shared.connections.lock().insert(number, connection);
    #[allow(unsafe_code)]
    // SAFETY: `number` is a connected stream socket that nothing else uses: a fresh duplicate whose
    // original is dropped here without being read or written. gRPC owns it from here on.
    unsafe {
        entrance.server.add_channel_from_fd(number);
    }
    Ok(GrpcConnection {
        grpc: plain,
        gate: Some(Box::new(gate)),
    })
}

#[cfg(test)]
pub(crate) mod tests;
