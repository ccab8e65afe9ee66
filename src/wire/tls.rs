//! Mutual TLS: certificates, the handshake, and one pump per connection between its socket and gRPC.
//!
//! Thread: `tls:<peer>`, one per connection; the handshake of a client on the thread that connects.
//! Owns: the TCP socket and the TLS session; gRPC gets the other end of a socket pair and knows nothing of TLS.

use super::address::PemTexts;
use super::pump::{Gate, Incoming, PumpError, would_block};
use crate::limits::{FAREWELL_MAX, TLS_BUFFER};
use crate::platform::clock::{Clock, SystemClock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The name that every server certificate must carry, whatever the address of the server is.
pub const SERVER_NAME: &str = "ank-server";
const ALPN: &[u8] = b"h2";

/// Certificates or key that cannot be used. Never contains any of their text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// A PEM text holds nothing usable.
    #[error("the {what} cannot be used: {reason}")]
    Material {
        /// Which of the three.
        what: &'static str,
        /// Why.
        reason: String,
    },
    /// The three do not belong together.
    #[error("certificate, key and CA do not fit together: {0}")]
    Mismatch(String),
    /// The other side, or what it sent, was refused.
    #[error("{0}")]
    Handshake(String),
    /// What came is more than is taken.
    #[error("{0}")]
    Refused(String),
}

/// Settings of the server's side, shared by all connections.
#[cfg(feature = "server")]
#[derive(Debug, Clone)]
pub struct ServerTls(Arc<ServerConfig>);

/// Settings of a client's side.
#[cfg(any(feature = "agent", feature = "cli"))]
#[derive(Debug, Clone)]
pub struct ClientTls(Arc<ClientConfig>);

/// What a client's certificate says about it.
#[cfg(feature = "server")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerCertificate {
    /// How many certificates were presented.
    pub count: usize,
    /// DNS names of the first one.
    pub dns_names: Vec<String>,
}

#[cfg(feature = "server")]
impl ServerTls {
    /// Reads the PEM texts.
    ///
    /// # Errors
    /// [`TlsError`] naming the text that cannot be used.
    pub fn new(pem: &PemTexts) -> Result<Self, TlsError> {
        let mismatch = |error: &dyn std::fmt::Display| TlsError::Mismatch(error.to_string());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = Arc::new(roots(&pem.ca)?);
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
            .build()
            .map_err(|error| mismatch(&error))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| mismatch(&error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(certificates(&pem.certificate, "certificate")?, key(&pem.key)?)
            .map_err(|error| mismatch(&error))?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.send_tls13_tickets = 0; // Connections last for days, so resumption would only cost memory.
        Ok(Self(Arc::new(config)))
    }

    /// Greets a client within `limit`.
    ///
    /// # Errors
    /// [`TlsError::Handshake`] with the reason for the log; the client was told as far as it listens.
    pub fn accept(&self, stream: TcpStream, limit: Duration) -> Result<(TlsStream, PeerCertificate), TlsError> {
        let session = ServerConnection::new(self.0.clone()).map_err(|error| handshake_error(&error, Side::Server))?;
        let mut stream = TlsStream { session: session.into(), tcp: stream, side: Side::Server };
        stream.handshake(limit)?;
        match names(stream.session.peer_certificates().unwrap_or_default()) {
            Ok(names) => Ok((stream, names)),
            Err(error) => {
                stream.session.send_close_notify();
                stream.end_in_order();
                Err(error)
            }
        }
    }
}

#[cfg(any(feature = "agent", feature = "cli"))]
impl ClientTls {
    /// Reads the PEM texts.
    ///
    /// # Errors
    /// [`TlsError`] naming the text that cannot be used.
    pub fn new(pem: &PemTexts) -> Result<Self, TlsError> {
        let mismatch = |error: &dyn std::fmt::Display| TlsError::Mismatch(error.to_string());
        let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| mismatch(&error))?
            .with_root_certificates(roots(&pem.ca)?)
            .with_client_auth_cert(certificates(&pem.certificate, "certificate")?, key(&pem.key)?)
            .map_err(|error| mismatch(&error))?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Self(Arc::new(config)))
    }

    /// Greets the server within `limit`.
    ///
    /// # Errors
    /// [`TlsError::Handshake`] with the reason for the user.
    pub fn connect(&self, stream: TcpStream, limit: Duration) -> Result<TlsStream, TlsError> {
        let name = ServerName::try_from(SERVER_NAME).expect("a literal DNS name");
        let session =
            ClientConnection::new(self.0.clone(), name).map_err(|error| handshake_error(&error, Side::Client))?;
        let mut stream = TlsStream { session: session.into(), tcp: stream, side: Side::Client };
        stream.handshake(limit)?;
        Ok(stream)
    }
}

fn roots(pem: &str) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem, "CA certificate")? {
        roots
            .add(certificate)
            .map_err(|error| TlsError::Material { what: "CA certificate", reason: error.to_string() })?;
    }
    Ok(roots)
}

fn certificates(pem: &str, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let material = |reason: String| TlsError::Material { what, reason };
    let found = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| material(error.to_string()))?;
    if found.is_empty() { Err(material("it holds no certificate in PEM form".to_owned())) } else { Ok(found) }
}

fn key(pem: &str) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| TlsError::Material {
        what: "private key",
        // The reason of the library could quote the text.
        reason: "it holds no PKCS#8, PKCS#1 or SEC1 key in PEM form".to_owned(),
    })
}

/// Reads the names, `*` among them: it is compared literally, so it need not be a valid DNS name.
#[cfg(feature = "server")]
fn names(presented: &[CertificateDer<'_>]) -> Result<PeerCertificate, TlsError> {
    use x509_parser::extensions::GeneralName;
    let Some(first) = presented.first() else { return Ok(PeerCertificate::default()) };
    let unreadable =
        |error: &dyn std::fmt::Display| TlsError::Handshake(format!("its certificate cannot be read: {error}"));
    let (_, parsed) = x509_parser::parse_x509_certificate(first).map_err(|error| unreadable(&error))?;
    let extension = parsed.subject_alternative_name().map_err(|error| unreadable(&error))?;
    let dns_names = extension.iter().flat_map(|extension| &extension.value.general_names);
    let dns_names = dns_names.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    });
    Ok(PeerCertificate { count: presented.len(), dns_names: dns_names.collect() })
}

// ---------------------------------------------------------------- handshake

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

/// A connection whose handshake is done.
#[derive(Debug)]
pub struct TlsStream {
    session: Connection,
    tcp: TcpStream,
    side: Side,
}

impl TlsStream {
    fn handshake(&mut self, limit: Duration) -> Result<(), TlsError> {
        let done = self.greet(SystemClock.now() + limit);
        if done.is_err() {
            self.end_in_order(); // The alert tells the other side why.
        }
        done
    }

    fn greet(&mut self, deadline: Instant) -> Result<(), TlsError> {
        while self.session.is_handshaking() || self.session.wants_write() {
            self.flush()?;
            if !self.session.is_handshaking() {
                continue;
            }
            let mut wanted = PollFlags::IN;
            wanted.set(PollFlags::OUT, self.session.wants_write());
            self.wait_until(deadline, wanted)?;
            match self.session.read_tls(&mut self.tcp) {
                Ok(0) => {
                    return Err(TlsError::Handshake(
                        "the other side closed the connection during the TLS handshake".to_owned(),
                    ));
                }
                Ok(_) => self.process()?,
                Err(error) if would_block(&error) => {}
                Err(error) => return Err(broken(&error)),
            }
        }
        Ok(())
    }

    fn process(&mut self) -> Result<(), TlsError> {
        self.session.process_new_packets().map(|_| ()).map_err(|error| handshake_error(&error, self.side))
    }

    fn flush(&mut self) -> Result<(), TlsError> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut self.tcp) {
                Ok(_) => {}
                Err(error) if would_block(&error) => return Ok(()),
                Err(error) => return Err(self.why_broken(&error)),
            }
        }
        Ok(())
    }

    /// Writes all that the session has for the other side.
    fn flush_until(&mut self, deadline: Instant) -> Result<(), TlsError> {
        self.flush()?;
        while self.session.wants_write() {
            self.wait_until(deadline, PollFlags::OUT)?;
            self.flush()?;
        }
        Ok(())
    }

    /// Why nothing can be written any more. An alert that came before the connection broke is the better reason.
    fn why_broken(&mut self, error: &io::Error) -> TlsError {
        while let Ok(1..) = self.session.read_tls(&mut self.tcp) {
            if let Err(alert) = self.session.process_new_packets() {
                return handshake_error(&alert, self.side);
            }
        }
        broken(error)
    }

    /// Delivers what the session still has to say, an alert or a farewell: sends it, closes the sending side and reads
    /// until the other side closes as well, for at most [`FAREWELL_MAX`]. A socket that is closed with unread bytes
    /// resets the connection, and the other side may lose what it was told last.
    fn end_in_order(&mut self) {
        let deadline = SystemClock.now() + FAREWELL_MAX;
        if !self.session.wants_write() || self.flush_until(deadline).is_err() {
            return; // Nothing to say, or nobody to whom.
        }
        let mut ended = self.tcp.shutdown(Shutdown::Write).is_err();
        let mut unwanted = [0; 4096];
        while !ended && self.wait_until(deadline, PollFlags::IN).is_ok() {
            ended = match self.tcp.read(&mut unwanted) {
                Ok(count) => count == 0,
                Err(error) => !would_block(&error),
            };
        }
    }

    fn wait_until(&self, deadline: Instant, wanted: PollFlags) -> Result<(), TlsError> {
        let left = SystemClock.until(deadline);
        if left.is_zero() {
            return Err(TlsError::Handshake("no TLS handshake within the time limit".to_owned()));
        }
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(&self.tcp, wanted)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(TlsError::Handshake(error.to_string())),
        }
    }
}

fn broken(error: &io::Error) -> TlsError {
    TlsError::Handshake(format!("the connection broke: {error}"))
}

/// Says in one line what a person can act on.
fn handshake_error(error: &rustls::Error, side: Side) -> TlsError {
    let other = if side == Side::Client { "server" } else { "client" };
    TlsError::Handshake(match error {
        rustls::Error::InvalidCertificate(reason) => match reason {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                format!("the {other}'s certificate has expired (or the clock of this machine is wrong)")
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                format!("the {other}'s certificate is not valid yet (or the clock of this machine is wrong)")
            }
            CertificateError::UnknownIssuer => format!("the {other}'s certificate was not signed by our CA"),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                format!("the server's certificate does not carry the name '{SERVER_NAME}'")
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                format!("the {other}'s certificate is not meant for a {other} (extended key usage)")
            }
            reason => format!("the {other}'s certificate is not acceptable: {reason:?}"),
        },
        rustls::Error::NoCertificatesPresented => format!("the {other} presented no certificate"),
        rustls::Error::InvalidMessage(_) | rustls::Error::InappropriateMessage { .. } => {
            format!("the {other} does not speak TLS")
        }
        rustls::Error::AlertReceived(alert) => {
            format!("the {other} refused the connection: {}", alert_text(*alert))
        }
        rustls::Error::PeerIncompatible(reason) => format!("no common TLS version or cipher: {reason:?}"),
        rustls::Error::NoApplicationProtocol => format!("the {other} does not offer HTTP/2 (ALPN 'h2')"),
        other => other.to_string(),
    })
}

fn alert_text(alert: rustls::AlertDescription) -> String {
    use rustls::AlertDescription as Alert;
    match alert {
        Alert::UnknownCA => "our certificate was not signed by its CA (UnknownCA)".to_owned(),
        Alert::CertificateExpired => "our certificate has expired (CertificateExpired)".to_owned(),
        Alert::CertificateRequired => "it requires a certificate (CertificateRequired)".to_owned(),
        Alert::UnsupportedCertificate => {
            "our certificate is not meant for this use (UnsupportedCertificate)".to_owned()
        }
        Alert::DecryptError => {
            "a signature of our certificate is wrong, perhaps of a CA with the same name (DecryptError)".to_owned()
        }
        Alert::BadCertificate => "our certificate is not acceptable (BadCertificate)".to_owned(),
        other => format!("{other:?}"),
    }
}

// --------------------------------------------------------------------- pump

/// Why a pump ended before the peer said so, for whoever sees the plain end break.
pub type Reason = Arc<OnceLock<String>>;

impl TlsStream {
    /// Moves bytes between the socket and `plain` until one of them ends. Buffers are bounded both ways:
    /// each side is read only when what it sent before was taken. What goes to `plain` passes `gate` on the server's side.
    ///
    /// # Errors
    /// [`TlsError::Refused`] when the gate has closed; all other ends are in order.
    pub fn pump(mut self, mut plain: UnixStream, gate: Option<Box<dyn Gate>>, reason: &Reason) -> Result<(), TlsError> {
        self.session.set_buffer_limit(Some(TLS_BUFFER));
        let ended = self.pump_until_end(&mut plain, gate);
        if let Err(error) = &ended {
            log::debug!("TLS connection ended: '{error}'");
            let _ = reason.set(error.to_string());
        }
        let _ = plain.shutdown(Shutdown::Both); // First: who waits at that end must not wait for a farewell.
        self.end_in_order();
        let _ = self.tcp.shutdown(Shutdown::Both);
        ended.or_else(|error| if matches!(error, TlsError::Refused(_)) { Err(error) } else { Ok(()) })
    }

    fn pump_until_end(&mut self, plain: &mut UnixStream, gate: Option<Box<dyn Gate>>) -> Result<(), TlsError> {
        let mut decrypted = Incoming::new(gate);
        let mut outgoing = vec![0; TLS_BUFFER];
        let mut peer_ended = false;
        loop {
            self.flush()?;
            // All that is decrypted must go on now: only new bytes from the socket wake this loop again.
            loop {
                match decrypted.write_to(plain) {
                    Ok(()) => {}
                    Err(PumpError::Refused(reason)) => return Err(TlsError::Refused(reason)),
                    Err(PumpError::Ended) => return self.say_goodbye(plain), // gRPC closed its end.
                }
                if !decrypted.is_empty() {
                    break;
                }
                match self.decrypt_into(&mut decrypted)? {
                    Decrypted::Some => {}
                    Decrypted::Nothing => break,
                    Decrypted::Ended => {
                        peer_ended = true;
                        break;
                    }
                }
            }
            if !decrypted.is_empty() || self.session.wants_write() || !peer_ended {
                let from_tcp = decrypted.is_empty() && !peer_ended;
                let from_plain = !self.session.wants_write();
                let (tcp_ready, plain_ready) = self.wait_for(plain, from_tcp, from_plain, &decrypted)?;
                if tcp_ready && from_tcp {
                    match self.session.read_tls(&mut self.tcp) {
                        Ok(0) => peer_ended = true,
                        Ok(_) => self.process()?,
                        Err(error) if would_block(&error) => {}
                        Err(error) => return Err(broken(&error)),
                    }
                }
                if plain_ready && from_plain {
                    match plain.read(&mut outgoing) {
                        Ok(0) => return self.say_goodbye(plain),
                        Ok(count) => {
                            self.session.writer().write_all(&outgoing[..count]).map_err(|error| broken(&error))?;
                        }
                        Err(error) if would_block(&error) => {}
                        Err(_) => return self.say_goodbye(plain),
                    }
                }
            } else {
                return Ok(());
            }
        }
    }

    /// Fills the empty buffer with decrypted bytes.
    fn decrypt_into(&mut self, decrypted: &mut Incoming) -> Result<Decrypted, TlsError> {
        match decrypted.fill_from(&mut self.session.reader()) {
            Ok(0) => Ok(Decrypted::Ended),
            Ok(_) => Ok(Decrypted::Some),
            Err(error) if would_block(&error) => Ok(Decrypted::Nothing),
            // The socket ended without a farewell; what came before was complete all the same.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Decrypted::Ended),
            Err(error) => Err(broken(&error)),
        }
    }

    /// Sends what gRPC wrote before it closed its end, and then the farewell, which [`Self::end_in_order`] delivers.
    fn say_goodbye(&mut self, plain: &mut UnixStream) -> Result<(), TlsError> {
        let deadline = SystemClock.now() + FAREWELL_MAX;
        let mut outgoing = vec![0; TLS_BUFFER];
        loop {
            self.flush_until(deadline)?;
            match plain.read(&mut outgoing) {
                Ok(count @ 1..) => {
                    self.session.writer().write_all(&outgoing[..count]).map_err(|error| broken(&error))?;
                }
                _ => break,
            }
        }
        self.session.send_close_notify();
        Ok(())
    }

    /// Waits until something can be done. Answers whether the socket and the plain end can be read.
    fn wait_for(
        &self,
        plain: &UnixStream,
        from_tcp: bool,
        from_plain: bool,
        decrypted: &Incoming,
    ) -> Result<(bool, bool), TlsError> {
        let flags = |read: bool, write: bool| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, read);
            flags.set(PollFlags::OUT, write);
            flags
        };
        let tcp = flags(from_tcp, self.session.wants_write());
        let grpc = flags(from_plain, decrypted.is_for_writing());
        // An end of which nothing is wanted is left out: the kernel reports its hang-up whether asked or not,
        // and the loop would spin.
        let mut wanted: Vec<PollFd<'_>> = Vec::with_capacity(2);
        if !tcp.is_empty() {
            wanted.push(PollFd::from_borrowed_fd(self.tcp.as_fd(), tcp));
        }
        if !grpc.is_empty() {
            wanted.push(PollFd::from_borrowed_fd(plain.as_fd(), grpc));
        }
        let time = decrypted.look_again().and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut wanted, time.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(TlsError::Handshake(error.to_string())),
        }
        let ready = |index: usize| {
            let readable = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
            wanted.get(index).is_some_and(|fd| fd.revents().intersects(readable))
        };
        let plain_index = usize::from(!tcp.is_empty());
        Ok((!tcp.is_empty() && ready(0), !grpc.is_empty() && ready(plain_index)))
    }
}

/// What a TLS session has for gRPC.
enum Decrypted {
    /// Bytes, now in the buffer.
    Some,
    /// Nothing at the moment.
    Nothing,
    /// Nothing ever again.
    Ended,
}

#[cfg(all(test, feature = "server", feature = "agent"))]
mod tests;
