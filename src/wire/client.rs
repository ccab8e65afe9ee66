//! The client's end of a stream to the server: connect, send the hello, send, receive.
//!
//! Thread: [`connect`] on `uplink` of the agent and `cli:rx` of `ank`;
//! [`ClientSender`] on `uplink`, `control` and `scheduler`, and on `cli:rx` and `main` of `ank`;
//! [`ClientReceiver`] on `rx:server` and `cli:rx`, its small responses on `grpc-poll-0`.

use super::address::{Security, ServerUrl};
use super::convert::messages::{is_response, read_from_server, write_to_server};
pub use super::grpc::Service;
use super::grpc::{self, Keepalive, Received, wait_at_most};
use super::pump::{self, GrpcConnection, Pump, PumpError};
use super::stream_reader::StreamReader;
use super::tls::{ClientTls, TlsLink};
pub use super::tls::{TlsCause, TlsError};
#[cfg(test)]
use crate::limits::GOODBYE_MAX;
use crate::limits::SMALL_RESPONSE;
use ankaios_model::messages::{FromServer, Response, ToServer};
use ankaios_platform::clock::{Clock, SystemClock};
use ankaios_platform::limits::STACK_LARGE;
use ankaios_platform::threads;
use futures_executor::block_on;
use futures_util::future::poll_fn;
use futures_util::{Sink, SinkExt};
use grpcio::{Channel, ChannelBuilder, ClientDuplexSender, RpcStatus, RpcStatusCode, WriteFlags};
use rustix::fd::{AsFd, IntoRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

/// How to reach the server.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Where it is.
    pub url: ServerUrl,
    /// How the connection is protected.
    pub security: Security,
    /// Which service is wanted.
    pub service: Service,
    /// Longest wait for the connection; [`crate::limits::CONNECT_MAX`] by default.
    pub connect_limit: Duration,
    /// Largest message sent and received, in bytes.
    pub message_max: usize,
}

impl ClientOptions {
    /// Whether the connection is one over TCP without TLS.
    pub fn has_no_tls(&self) -> bool {
        self.security == Security::Insecure && !self.url.is_socket()
    }

    fn no_connection(&self, source: io::Error) -> ConnectError {
        ConnectError::Connect {
            url: self.url.to_string(),
            source,
        }
    }

    fn no_tls(&self, source: TlsError) -> ConnectError {
        ConnectError::Tls {
            url: self.url.to_string(),
            source,
        }
    }

    /// A second descriptor of a socket, above those of standard input, output and error.
    fn duplicate(&self, socket: impl AsFd) -> Result<OwnedFd, ConnectError> {
        rustix::io::fcntl_dupfd_cloexec(socket, 3).map_err(|errno| self.no_connection(errno.into()))
    }
}

/// The server could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No address for the host name.
    #[error("cannot resolve host '{host}'")]
    Resolve {
        /// The host of the URL.
        host: String,
        /// Why.
        source: std::io::Error,
    },
    /// Certificates that cannot be used, or a server that TLS does not accept.
    #[error("no secure connection to '{url}'")]
    Tls {
        /// Where to.
        url: String,
        /// Why.
        source: TlsError,
    },
    /// No connection to any address of the host.
    #[error("no connection to '{url}'")]
    Connect {
        /// Where to.
        url: String,
        /// Why.
        source: std::io::Error,
    },
}

/// How a stream ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamEnd {
    /// The server closed it in order, or we did.
    #[error("the server closed the connection")]
    Closed,
    /// The server refused our version; trying again is of no use. Holds the server's text.
    #[error("Ankaios version mismatch: '{0}'")]
    VersionMismatch(String),
    /// The server ended the call with another status.
    #[error("the server refused: {message} ({code})")]
    Refused {
        /// Name of the gRPC status, for example `UNAUTHENTICATED`.
        code: String,
        /// The server's text.
        message: String,
    },
    /// The connection broke.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// The server refused the connection by an alert of TLS: our certificate, mostly.
    #[error("the connection was lost: {0}")]
    RefusedByTls(String),
    /// Something answered that does not speak the protocol. Holds what gRPC says of it.
    #[error("no Ankaios server answers there: {0}")]
    Foreign(String),
}

/// Sends to the server.
pub struct ClientSender {
    sink: ClientDuplexSender<Vec<u8>>,
    /// How sending failed. The library panics when it is used again after that.
    ended: Option<StreamEnd>,
    /// Keeps the channel as long as one of the ends is in use.
    _client: Arc<grpcio::Client>,
}

/// Receives from the server.
pub struct ClientReceiver {
    stream: StreamReader,
    ended: Option<StreamEnd>,
    /// Whether the other side has sent a message: then it is a server.
    has_received: bool,
    tls_end: TlsEnd,
    _client: Arc<grpcio::Client>,
}

/// Why TLS ended the connection, if it did. gRPC reports only that the connection was lost.
type TlsEnd = Arc<OnceLock<TlsError>>;

/// Ends a stream from any thread: wakes a blocked sender and receiver.
#[derive(Debug)]
pub struct Hangup {
    socket: OwnedFd,
}

/// Connects and sends `hello`.
///
/// # Errors
/// [`ConnectError`] when no connection can be had. A refusal by the server shows as the end of the
/// stream.
// [impl->swdd~agent-default-communication-grpc~1]
pub fn connect(
    options: &ClientOptions,
    hello: ToServer,
) -> Result<(ClientSender, ClientReceiver, Hangup), ConnectError> {
    connect_with(options, hello, Keepalive::default())
}

/// [`connect`] with another bound for a server that has vanished.
pub(super) fn connect_with(
    options: &ClientOptions,
    hello: ToServer,
    keepalive: Keepalive,
) -> Result<(ClientSender, ClientReceiver, Hangup), ConnectError> {
    // First connect.
    let tls_end = TlsEnd::default();
    let connected = connect_socket(options, &tls_end)?;
    // Then begin the call. An agent runs for long, so it ends the threads that it does not need.
    if options.service == Service::Agent {
        grpc::end_timer_thread();
        grpc::end_executor_threads();
    }
    let builder = grpc::channel(options.message_max, keepalive);
    let channel = channel_over(builder, connected.endpoint);
    let client = Arc::new(grpcio::Client::new(channel));
    let method = grpc::called(options.service);
    let (sink, stream) = client
        .duplex_streaming(&method, grpcio::CallOption::default())
        .map_err(|error| options.no_connection(io::Error::other(error.to_string())))?;
    let mut sender = ClientSender {
        sink,
        ended: None,
        _client: client.clone(),
    };
    // Finally send the hello. If this fails the stream has ended, and its receiver returns why.
    let _ = sender.send(hello);
    let receiver = ClientReceiver {
        stream: StreamReader::new(Box::new(stream)),
        ended: None,
        has_received: false,
        tls_end,
        _client: client,
    };
    Ok((sender, receiver, connected.hangup))
}

/// A connection to the server, before gRPC uses it.
struct ConnectedSocket {
    hangup: Hangup,
    /// The end that gRPC gets.
    endpoint: OwnedFd,
}

fn connect_socket(
    options: &ClientOptions,
    tls_end: &TlsEnd,
) -> Result<ConnectedSocket, ConnectError> {
    let (host, port) = match &options.url {
        ServerUrl::Socket(path) => {
            let endpoint = connect_unix(path, options.connect_limit)
                .map_err(|error| options.no_connection(error))?;
            let socket = options.duplicate(&endpoint)?;
            let hangup = Hangup { socket };
            return Ok(ConnectedSocket { hangup, endpoint });
        }
        ServerUrl::Tcp { host, port, .. } => (host, *port),
    };
    let tls = match &options.security {
        Security::Insecure => None,
        Security::MutualTls(pem) => {
            let tls = ClientTls::new(pem);
            Some(tls.map_err(|error| options.no_tls(error))?)
        }
    };
    let stream = connect_tcp(options, host, port)?;
    grpc::set_tcp_options(&stream).map_err(|error| options.no_connection(error))?;
    stream
        .set_nonblocking(true)
        .map_err(|error| options.no_connection(error))?;
    let socket = options.duplicate(&stream)?;
    let hangup = Hangup { socket };
    let endpoint = match tls {
        None => OwnedFd::from(stream),
        Some(tls) => secure(options, &tls, stream, tls_end)?,
    };
    Ok(ConnectedSocket { hangup, endpoint })
}

/// A channel over a connected stream socket that does not block.
pub(super) fn channel_over(builder: ChannelBuilder, socket: OwnedFd) -> Channel {
    #[allow(unsafe_code)]
    // SAFETY: the descriptor is a connected stream socket whose ownership goes to gRPC. The
    // duplicate that is kept is only ever shut down, which gRPC sees as the peer closing the
    // connection.
    unsafe {
        grpc::with_late_timers(|| builder.connect_from_fd("ankaios", socket.into_raw_fd()))
    }
}

/// Does the TLS handshake and starts the pump; returns the end that gRPC gets.
fn secure(
    options: &ClientOptions,
    tls: &ClientTls,
    stream: TcpStream,
    tls_end: &TlsEnd,
) -> Result<OwnedFd, ConnectError> {
    // First give the connection to a pump.
    let link = tls
        .begin(stream)
        .map_err(|error| options.no_tls(error.to_string().into()))?;
    let (plain, endpoint) = pump::pair().map_err(|error| options.no_connection(error))?;
    let opened = GrpcConnection {
        grpc: plain,
        gate: None,
    };
    let open = Box::new(|_: &TlsLink| Ok(opened));
    let ended = tls_end.clone();
    let on_end = Box::new(move |error: &PumpError| {
        let reason = match error {
            PumpError::Broken(error) => error.clone(),
            PumpError::Refused(text) => text.clone().into(),
        };
        let _ = ended.set(reason); // A connection ends once.
    });
    let mut pump = Pump::new().map_err(|error| options.no_connection(error))?;
    pump.add(link, open, true, on_end, SystemClock.now());
    // Then do the handshake.
    while pump.is_handshaking() {
        let waited = pump.wait(None, || SystemClock.now());
        waited.map_err(|error| options.no_connection(error))?;
    }
    if let Some(error) = tls_end.get() {
        pump.run(None); // Send the alert, which names the reason to the server.
        return Err(options.no_tls(error.clone()));
    }
    // Finally start the thread of the pump.
    threads::spawn("tls:server", STACK_LARGE, move || pump.run(None))
        .map_err(|error| options.no_connection(error))?;
    Ok(endpoint.into())
}

/// Tries the addresses of the host in order. Returns the last failure if all fail.
fn connect_tcp(options: &ClientOptions, host: &str, port: u16) -> Result<TcpStream, ConnectError> {
    let addresses = match (host, port).to_socket_addrs() {
        Ok(addresses) => addresses,
        Err(source) => {
            let host = host.to_owned();
            return Err(ConnectError::Resolve { host, source });
        }
    };
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, options.connect_limit) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(options.no_connection(failure))
}

/// Connects to a Unix domain socket. Waits at most `limit` for a server that does not accept.
fn connect_unix(path: &Path, limit: Duration) -> io::Result<OwnedFd> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // The time limit for sending is also that of the connect.
    set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
        connected => connected?,
    }
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

impl ClientSender {
    /// Sends one message, in order; waits while the connection is full.
    ///
    /// # Errors
    /// How the stream ended; the receiver may return a better reason. Every later call of any
    /// method returns the same.
    pub fn send(&mut self, message: ToServer) -> Result<(), StreamEnd> {
        self.unless_ended(|sink| {
            block_on(sink.send((write_to_server(&message), WriteFlags::default())))
        })
    }

    /// Sends one message as soon as the earlier ones are sent, and does not wait until it is sent
    /// itself. Waits at most `limit` for the earlier ones; then the message is not sent.
    ///
    /// # Errors
    /// As [`Self::send`]. Also if `limit` has passed.
    pub fn send_within(&mut self, message: ToServer, limit: Duration) -> Result<(), StreamEnd> {
        let ready = poll_fn(|context| self.poll_ready(context));
        let Some(ready) = wait_at_most(ready, limit) else {
            let text = format!("it was full for {limit:?}");
            return Err(StreamEnd::Lost(text));
        };
        ready?;
        self.start_send(message)
    }

    /// Ready when [`Self::start_send`] may be called. Otherwise wakes the waker of `context` as
    /// soon as it may.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StreamEnd>> {
        if let Some(end) = &self.ended {
            return Poll::Ready(Err(end.clone()));
        }
        match Pin::new(&mut self.sink).poll_ready(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(ready) => Poll::Ready(self.note_end(ready)),
        }
    }

    /// Hands one message over and does not wait until it is sent. Only after [`Self::poll_ready`]
    /// was ready.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn start_send(&mut self, message: ToServer) -> Result<(), StreamEnd> {
        self.unless_ended(|sink| {
            Pin::new(sink).start_send((write_to_server(&message), WriteFlags::default()))
        })
    }

    /// Ends the sending side; the server then ends the stream. Waits at most [`GOODBYE_MAX`].
    #[cfg(test)]
    pub(crate) fn finish(mut self) {
        // An error means that the stream has ended already.
        let _ = self.unless_ended(|sink| {
            let closed = wait_at_most(sink.close(), GOODBYE_MAX);
            closed.unwrap_or(Ok(()))
        });
    }

    /// Does `work`, unless the stream has ended: the library panics when a failed sink is used
    /// again.
    fn unless_ended(
        &mut self,
        work: impl FnOnce(&mut ClientDuplexSender<Vec<u8>>) -> grpcio::Result<()>,
    ) -> Result<(), StreamEnd> {
        if let Some(end) = &self.ended {
            return Err(end.clone());
        }
        let done = work(&mut self.sink);
        self.note_end(done)
    }

    fn note_end(&mut self, done: grpcio::Result<()>) -> Result<(), StreamEnd> {
        let Err(error) = done else {
            return Ok(());
        };
        let end = stream_end(error);
        self.ended = Some(end.clone());
        Err(end)
    }
}

impl ClientReceiver {
    /// From the next message on gives small responses to `take`, on the thread of gRPC, which must
    /// not wait. [`Self::receive`] returns all other messages, and large responses.
    pub fn give_responses_to(&mut self, mut take: Box<dyn FnMut(Response) + Send>) {
        self.stream.pass_with(Box::new(move |received| {
            if received.len() > SMALL_RESPONSE {
                return Some(received);
            }
            let Ok(bytes) = received.unpack(SMALL_RESPONSE) else {
                return None; // gRPC can read each of its own messages.
            };
            if !is_response(&bytes) {
                return Some(Received::Copied(bytes));
            }
            match read_from_server(&bytes) {
                Ok(FromServer::Response(response)) => take(response),
                _ => return Some(Received::Copied(bytes)),
            }
            None
        }));
    }

    /// Waits for the next message. One that cannot be understood is skipped.
    ///
    /// # Errors
    /// How the stream ended; every later call returns the same.
    pub fn receive(&mut self) -> Result<FromServer, StreamEnd> {
        loop {
            if let Some(end) = &self.ended {
                return Err(end.clone());
            }
            match self.stream.next() {
                Some(Ok(received)) => {
                    self.has_received = true;
                    match decode(received) {
                        Ok(message) => return Ok(message),
                        Err(error) => log::warn!("Dropping a message of the server: '{error}'"),
                    }
                }
                Some(Err(error)) => self.ended = Some(self.end_of(error)),
                None => self.ended = Some(StreamEnd::Closed),
            }
        }
    }

    /// The end of the stream that this error means.
    fn end_of(&self, error: grpcio::Error) -> StreamEnd {
        // A peer that has sent a message is a server of Ankaios.
        if !self.has_received
            && let Some(text) = foreign_answer(&error)
        {
            return StreamEnd::Foreign(text);
        }
        let end = stream_end(error);
        let StreamEnd::Lost(_) = end else {
            return end;
        };
        match self.tls_end.get() {
            Some(error) if error.cause == TlsCause::RefusedByPeer => {
                StreamEnd::RefusedByTls(error.text.clone())
            }
            Some(error) => StreamEnd::Lost(error.text.clone()),
            None => end,
        }
    }
}

fn decode(received: Received) -> Result<FromServer, String> {
    let bytes = received.unpack(usize::MAX).map_err(|error| error.reason)?;
    read_from_server(bytes).map_err(|error| error.0)
}

impl Hangup {
    /// Closes the connection at once.
    pub fn hang_up(&self) {
        // An error means that it is closed already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

fn stream_end(error: grpcio::Error) -> StreamEnd {
    match error {
        grpcio::Error::RpcFailure(status) | grpcio::Error::RpcFinished(Some(status)) => {
            from_status(&status)
        }
        grpcio::Error::RpcFinished(None) | grpcio::Error::RemoteStopped => StreamEnd::Closed,
        other => StreamEnd::Lost(other.to_string()),
    }
}

/// The text of gRPC about an answer of another program: a web server, or a server with other
/// services. `None` if the error does not show one.
fn foreign_answer(error: &grpcio::Error) -> Option<String> {
    let status = match error {
        grpcio::Error::RpcFailure(status) | grpcio::Error::RpcFinished(Some(status)) => status,
        _ => return None,
    };
    // gRPC has no other sign of a peer that does not speak HTTP/2, or that answers with a page.
    const TEXTS: [&str; 4] = [
        "Stream removed",
        "http1",
        "Received http2 header with status",
        "HTTP status",
    ];
    let text = status.message();
    let is_foreign = status.code() == RpcStatusCode::UNIMPLEMENTED
        || TEXTS.iter().any(|known| text.contains(known));
    if !is_foreign {
        return None;
    }
    if text.is_empty() {
        return Some("it has no such service".to_owned());
    }
    Some(text.to_owned())
}

fn from_status(status: &RpcStatus) -> StreamEnd {
    let message = status.message().to_owned();
    match status.code() {
        RpcStatusCode::OK => StreamEnd::Closed,
        RpcStatusCode::FAILED_PRECONDITION => StreamEnd::VersionMismatch(message),
        RpcStatusCode::UNAVAILABLE | RpcStatusCode::CANCELLED => StreamEnd::Lost(message),
        code => {
            let text = format!("{code:?}"); // `<number>-<name>`
            let code = match text.split_once('-') {
                Some((_, name)) => name.to_owned(),
                None => text,
            };
            StreamEnd::Refused { code, message }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ankaios_model::limits::MESSAGE_MAX;
    use ankaios_model::messages::{Request, RequestContent};
    use std::net::TcpListener;

    #[test]
    fn send_within_waits_for_earlier_messages_only() {
        // The kernel accepts the connection, and no program reads from it.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let options = ClientOptions {
            url: ServerUrl::parse(&url).unwrap(),
            security: Security::Insecure,
            service: Service::Cli,
            connect_limit: Duration::from_secs(60),
            message_max: MESSAGE_MAX,
        };
        let (mut sender, _receiver, _hangup) = connect(&options, ToServer::Goodbye).unwrap();
        // It has more bytes than HTTP/2 sends without a word of the other side.
        let large = ToServer::Request(Request {
            id: "x".repeat(1024 * 1024),
            content: RequestContent::LogsCancel,
        });
        let sent = sender.send_within(large.clone(), Duration::from_secs(60));
        assert_eq!(sent, Ok(()));
        let end = sender.send_within(large, Duration::from_millis(5));
        let text = end.unwrap_err().to_string();
        assert_eq!(text, "the connection was lost: it was full for 5ms");
    }

    #[test]
    fn answers_of_other_servers_are_told_from_lost_connections() {
        for (code, text, is_foreign) in [
            (RpcStatusCode::UNKNOWN, "Stream removed", true),
            (
                RpcStatusCode::UNAVAILABLE,
                "Trying to connect an http1.x server",
                true,
            ),
            (RpcStatusCode::UNIMPLEMENTED, "", true),
            (
                RpcStatusCode::PERMISSION_DENIED,
                "Received http2 header with status: 403",
                true,
            ),
            (RpcStatusCode::UNAVAILABLE, "Socket closed", false),
            (RpcStatusCode::UNAUTHENTICATED, "Only certificates", false),
            (RpcStatusCode::OK, "", false),
        ] {
            let end = grpcio::Error::RpcFailure(RpcStatus::with_message(code, text.to_owned()));
            assert_eq!(
                foreign_answer(&end).is_some(),
                is_foreign,
                "{code:?} {text}"
            );
        }
    }
}
