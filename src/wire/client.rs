//! The client's end of a stream to the server: connect, send the hello, send, receive.
//!
//! Thread: [`connect`] on `uplink` of the agent and `cli:connect` of `ank`;
//! [`ClientSender`] on `uplink`, `control` and `scheduler`, and on `cli:tx`; [`ClientReceiver`] on
//! `rx:server` and `cli:rx`.

use super::address::{Security, ServerUrl};
use super::convert::messages::{read_from_server, write_to_server};
pub use super::grpc::Service;
use super::grpc::{self, Keepalive, Received, wait_at_most};
use super::pump::{self, Pump, PumpError};
use super::tls::{ClientTls, TlsError};
use crate::limits::GOODBYE_MAX;
use ankaios_model::messages::{FromServer, ToServer};
use ankaios_platform::clock::{Clock, SystemClock};
use ankaios_platform::limits::STACK_LARGE;
use ankaios_platform::threads;
use futures_executor::block_on;
use futures_util::{Sink, SinkExt, StreamExt};
use grpcio::{
    Channel, ChannelBuilder, ClientDuplexReceiver, ClientDuplexSender, RpcStatus, RpcStatusCode,
    WriteFlags,
};
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
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
    stream: ClientDuplexReceiver<Received>,
    ended: Option<StreamEnd>,
    /// Whether the other side has sent a message: then it is a server.
    has_received: bool,
    /// Why TLS ended the connection, if it did: the better reason than the one that gRPC sees.
    tls_end: Reason,
    _client: Arc<grpcio::Client>,
}

/// Why a connection broke, for whoever sees only the end that gRPC has.
type Reason = Arc<OnceLock<String>>;

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

/// The same with another bound for a server that has vanished.
pub(super) fn connect_with(
    options: &ClientOptions,
    hello: ToServer,
    keepalive: Keepalive,
) -> Result<(ClientSender, ClientReceiver, Hangup), ConnectError> {
    let failed = |source| ConnectError::Connect {
        url: options.url.to_string(),
        source,
    };
    let tls = match &options.security {
        Security::MutualTls(pem) if !options.url.is_socket() => {
            Some(ClientTls::new(pem).map_err(|error| ConnectError::Tls {
                url: options.url.to_string(),
                source: error,
            })?)
        }
        _ => None,
    };
    let tls_end = Reason::default();
    let duplicate = |socket: BorrowedFd<'_>| {
        rustix::io::fcntl_dupfd_cloexec(socket, 3).map_err(|errno| failed(errno.into()))
    };
    let (socket, endpoint) = match &options.url {
        ServerUrl::Socket(path) => {
            let stream = connect_unix(path, options.connect_limit).map_err(failed)?;
            (duplicate(stream.as_fd())?, stream)
        }
        ServerUrl::Tcp { host, port, .. } => {
            let stream = connect_tcp(options, host, *port)?;
            grpc::prepare(&stream).map_err(failed)?;
            let socket = duplicate(stream.as_fd())?;
            let endpoint = match tls {
                None => OwnedFd::from(stream),
                Some(tls) => secure(options, &tls, stream, &tls_end)?,
            };
            (socket, endpoint)
        }
    };
    let channel = channel_over(grpc::channel(options.message_max, keepalive), endpoint);
    let client = grpcio::Client::new(channel);
    let (sink, stream) = client
        .duplex_streaming(
            &grpc::called(options.service),
            grpcio::CallOption::default(),
        )
        .map_err(|error| failed(io::Error::other(error.to_string())))?;
    let client = Arc::new(client);
    let mut sender = ClientSender {
        sink,
        ended: None,
        _client: client.clone(),
    };
    // When this fails the stream has ended, and its receiver knows why.
    let _ = sender.send(hello);
    Ok((
        sender,
        ClientReceiver {
            stream,
            ended: None,
            has_received: false,
            tls_end,
            _client: client,
        },
        Hangup { socket },
    ))
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
    reason: &Reason,
) -> Result<OwnedFd, ConnectError> {
    let url = options.url.to_string();
    let failed = |source| ConnectError::Connect {
        url: url.clone(),
        source,
    };
    let insecure = |text: String| ConnectError::Tls {
        url: url.clone(),
        source: TlsError(text),
    };
    let link = tls
        .begin(stream)
        .map_err(|error| insecure(error.to_string()))?;
    let (plain, endpoint) = pump::pair().map_err(failed)?;
    let ended = reason.clone();
    let on_end = move |error: &PumpError| drop(ended.set(error.to_string()));
    let mut pump = Pump::new().map_err(failed)?;
    pump.add(
        link,
        Box::new(|_| Ok((plain, None))),
        true,
        Box::new(on_end),
        SystemClock.now(),
    );
    while pump.is_shaking() {
        pump.wait(None, || SystemClock.now()).map_err(failed)?;
    }
    if let Some(text) = reason.get() {
        pump.run(None); // The alert names the reason to the server.
        return Err(insecure(text.clone()));
    }
    threads::spawn("tls:server", STACK_LARGE, move || pump.run(None)).map_err(failed)?;
    Ok(endpoint.into())
}

/// Tries the addresses of the host in order; the last failure is the one that is returned.
fn connect_tcp(options: &ClientOptions, host: &str, port: u16) -> Result<TcpStream, ConnectError> {
    let url = &options.url;
    let resolve = |source| ConnectError::Resolve {
        host: host.to_owned(),
        source,
    };
    let addresses = (host, port).to_socket_addrs().map_err(resolve)?;
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, options.connect_limit) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(ConnectError::Connect {
        url: url.to_string(),
        source: failure,
    })
}

/// Connects to a Unix domain socket; a server that does not accept is waited for at most `limit`.
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
    /// How the stream ended; the receiver may know the better reason. Every later call of any
    /// method returns the same.
    pub fn send(&mut self, message: ToServer) -> Result<(), StreamEnd> {
        self.unless_ended(|sink| {
            block_on(sink.send((write_to_server(&message), WriteFlags::default())))
        })
    }

    /// Whether [`Self::start_send`] may be called. When not, the waker of `context` is woken as
    /// soon as it may.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StreamEnd>> {
        let mut waits = false;
        let ready = self.unless_ended(|sink| match Pin::new(sink).poll_ready(context) {
            Poll::Ready(ready) => ready,
            Poll::Pending => {
                waits = true;
                Ok(())
            }
        });
        if waits {
            Poll::Pending
        } else {
            Poll::Ready(ready)
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
    pub fn finish(mut self) {
        // When this fails the stream has ended, which is what was wanted.
        let _ = self.unless_ended(|sink| wait_at_most(sink.close(), GOODBYE_MAX).unwrap_or(Ok(())));
    }

    fn unless_ended(
        &mut self,
        work: impl FnOnce(&mut ClientDuplexSender<Vec<u8>>) -> grpcio::Result<()>,
    ) -> Result<(), StreamEnd> {
        if let Some(end) = &self.ended {
            return Err(end.clone());
        }
        work(&mut self.sink).map_err(|error| self.ended.insert(stream_end(error)).clone())
    }
}

impl ClientReceiver {
    /// Waits for the next message. One that cannot be understood is skipped.
    ///
    /// # Errors
    /// How the stream ended; every later call returns the same.
    pub fn receive(&mut self) -> Result<FromServer, StreamEnd> {
        loop {
            if let Some(end) = &self.ended {
                return Err(end.clone());
            }
            match block_on(self.stream.next()) {
                Some(Ok(received)) => {
                    self.has_received = true;
                    let bytes = received.unpack(usize::MAX).map_err(|(_, reason)| reason);
                    match bytes.and_then(|bytes| read_from_server(bytes).map_err(|error| error.0)) {
                        Ok(message) => return Ok(message),
                        Err(error) => log::warn!("Dropping a message of the server: '{error}'"),
                    }
                }
                Some(Err(error)) => {
                    let foreign = foreign_answer(&error).filter(|_| !self.has_received);
                    self.ended = Some(match (stream_end(error), self.tls_end.get(), foreign) {
                        (_, _, Some(text)) => StreamEnd::Foreign(text),
                        (StreamEnd::Lost(_), Some(reason), None) => StreamEnd::Lost(reason.clone()),
                        (end, _, None) => end,
                    });
                }
                None => self.ended = Some(StreamEnd::Closed),
            }
        }
    }
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

/// What gRPC says of an answer that is none of a server of Ankaios: of a web server, or of a server
/// with other services.
fn foreign_answer(error: &grpcio::Error) -> Option<String> {
    let (grpcio::Error::RpcFailure(status) | grpcio::Error::RpcFinished(Some(status))) = error
    else {
        return None;
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
    is_foreign.then(|| {
        if text.is_empty() {
            "it has no such service".to_owned()
        } else {
            text.to_owned()
        }
    })
}

fn from_status(status: &RpcStatus) -> StreamEnd {
    let message = status.message().to_owned();
    match status.code() {
        RpcStatusCode::OK => StreamEnd::Closed,
        RpcStatusCode::FAILED_PRECONDITION => StreamEnd::VersionMismatch(message),
        RpcStatusCode::UNAVAILABLE | RpcStatusCode::CANCELLED => StreamEnd::Lost(message),
        code => {
            let text = format!("{code:?}"); // `<number>-<name>`
            StreamEnd::Refused {
                code: text
                    .split_once('-')
                    .map_or(text.clone(), |(_, name)| name.to_owned()),
                message,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
