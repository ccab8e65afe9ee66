//! Mutual TLS: certificates, the handshake, and the sockets that pump.rs reads and writes, with a
//! session or without.
//!
//! Thread: `listen` and `tls` of the server; of a client the one that connects, and then
//! `tls:server`.
//! Owns: the socket and the TLS session.

use super::address::PemTexts;
use super::key_kinds::{
    RSA_BITS_AUTHORITY, RSA_BITS_OWN, WORKING_AUTHORITIES, WORKING_KEYS, is_encrypted,
    other_content, other_content_than_key, unusable_kind,
};
use crate::limits::HELLO_MAX;
use ankaios_model::names::excerpt;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct,
    DistinguishedName, RootCertStore, ServerConfig, ServerConnection, SignatureScheme,
};
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

/// The name that every server certificate must carry, whatever the address of the server is.
pub(crate) const SERVER_NAME: &str = "ank-server";
const ALPN: &[u8] = b"h2";

/// Certificates or key that cannot be used, or why the other side was refused. Never contains any
/// text of a certificate or key, except for the names in a certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct TlsError {
    pub text: String,
    pub cause: TlsCause,
}

/// Why a connection ended, as far as programs decide by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsCause {
    /// Only the text has it.
    Other,
    /// The other side does not speak TLS, as far as that can be seen.
    NoTls,
    /// The other side refused the connection by an alert: our certificate, mostly.
    RefusedByPeer,
}

impl From<String> for TlsError {
    fn from(text: String) -> Self {
        Self {
            text,
            cause: TlsCause::Other,
        }
    }
}

fn unusable(what: &str, reason: impl std::fmt::Display) -> TlsError {
    format!("the {what} cannot be used: {reason}").into()
}

fn mismatch(reason: impl std::fmt::Display) -> TlsError {
    format!("certificate, key and CA do not belong together: {reason}").into()
}

/// Settings of the server's side, shared by all connections.
#[derive(Debug, Clone)]
pub(crate) struct ServerTls(Arc<ServerConfig>);

/// Settings of a client's side.
#[derive(Debug, Clone)]
pub(crate) struct ClientTls(Arc<ClientConfig>);

/// What the server uses of a client's certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PeerCertificate {
    /// How many certificates were presented.
    pub(crate) count: usize,
    /// DNS names of the first one.
    pub(crate) dns_names: Vec<String>,
    /// When the first one expires, in seconds since 1970.
    pub(crate) expires: u64,
}

/// The error for a certificate and a key that cannot be used together.
fn unusable_key(error: &rustls::Error) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            mismatch("the private key is not that of the certificate")
        }
        other => mismatch(other),
    }
}

impl ServerTls {
    /// Reads the PEM texts.
    ///
    /// # Errors
    /// [`TlsError`] naming the text that cannot be used.
    pub(crate) fn new(pem: &PemTexts) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = Arc::new(roots(&pem.ca)?);
        let (chain, key) = identity(pem, &provider)?;
        let verifier =
            rustls::server::WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
                .build()
                .map_err(mismatch)?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(mismatch)?
            .with_client_cert_verifier(Arc::new(NamingVerifier(verifier)))
            .with_single_cert(chain, key)
            .map_err(|error| unusable_key(&error))?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        // Connections last for days, so resumption would only cost memory.
        config.send_tls13_tickets = 0;
        Ok(Self(Arc::new(config)))
    }

    /// Begins the handshake with a client, on a socket that does not block.
    ///
    /// # Errors
    /// The library has no session.
    pub(crate) fn begin(&self, socket: impl Into<OwnedFd>) -> Result<TlsLink, rustls::Error> {
        ServerConnection::new(self.0.clone())
            .map(|session| TlsLink::new(socket, Some(Box::new(session.into()))))
    }
}

impl ClientTls {
    /// Reads the PEM texts.
    ///
    /// # Errors
    /// [`TlsError`] naming the text that cannot be used.
    pub(crate) fn new(pem: &PemTexts) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = roots(&pem.ca)?;
        let (chain, key) = identity(pem, &provider)?;
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(mismatch)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|error| unusable_key(&error))?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Self(Arc::new(config)))
    }

    /// Begins the handshake with the server, on a socket that does not block.
    ///
    /// # Errors
    /// The library has no session.
    pub(crate) fn begin(&self, stream: TcpStream) -> Result<TlsLink, rustls::Error> {
        let name = ServerName::try_from(SERVER_NAME).expect("a literal DNS name");
        let session = ClientConnection::new(self.0.clone(), name)?;
        Ok(TlsLink::new(stream, Some(Box::new(session.into()))))
    }
}

/// The authorities of a bundle. Some may have keys that cannot be used, but not all.
fn roots(pem: &str) -> Result<RootCertStore, TlsError> {
    let certificates = certificates(pem, "CA certificate")?;
    let mut unusable_kinds = Vec::new();
    for certificate in &certificates {
        unusable_kinds.extend(unusable_kind_of(certificate, RSA_BITS_AUTHORITY));
    }
    if let Some(kind) = unusable_kinds.first()
        && unusable_kinds.len() == certificates.len()
    {
        let reason = format_args!("its key is {kind}; {WORKING_AUTHORITIES}");
        return Err(unusable("CA certificate", reason));
    }
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        let added = roots.add(certificate);
        added.map_err(|error| unusable("CA certificate", error))?;
    }
    Ok(roots)
}

/// Our certificate, those of the authorities between it and the CA, and its key.
fn identity(
    pem: &PemTexts,
    provider: &CryptoProvider,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    // First read both.
    let chain = certificates(&pem.certificate, "certificate")?;
    let key = key(&pem.key)?;
    let Ok(signing_key) = provider.key_provider.load_private_key(key.clone_key()) else {
        let kind = match unusable_kind(key.secret_der(), RSA_BITS_OWN) {
            Some(kind) => kind,
            None => "of an unknown kind".to_owned(),
        };
        let reason = format_args!("it is {kind}; {WORKING_KEYS}");
        return Err(unusable("private key", reason));
    };
    // Then check that our certificate is the first one, as the protocol and both libraries require.
    let own = chain.iter().position(|certificate| {
        let pair = CertifiedKey::new(vec![certificate.clone()], signing_key.clone());
        pair.keys_match().is_ok()
    });
    if let Some(own @ 1..) = own {
        let place = own + 1;
        return Err(unusable(
            "certificate",
            format_args!(
                "the private key is that of certificate {place} in it, which has to be the first one; write the others \
                 after it, each followed by that of the authority that signed it"
            ),
        ));
    }
    // Finally check the kind of its key.
    if let Some(first) = chain.first()
        && let Some(kind) = unusable_kind_of(first, RSA_BITS_OWN)
    {
        let reason = format_args!("its key is {kind}; {WORKING_KEYS}");
        return Err(unusable("certificate", reason));
    }
    Ok((chain, key))
}

/// Why the key of a certificate cannot be used; `None` when it works or is unknown.
fn unusable_kind_of(certificate: &CertificateDer<'static>, rsa_bits_max: usize) -> Option<String> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    unusable_kind(&parsed.subject_public_key_info(), rsa_bits_max)
}

fn certificates(pem: &str, what: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let found = found.map_err(|error| unusable(what, error))?;
    if found.is_empty() {
        let held = other_content(pem).unwrap_or("it holds no certificate in PEM form");
        return Err(unusable(what, held));
    }
    Ok(found)
}

fn key(pem: &str) -> Result<PrivateKeyDer<'static>, TlsError> {
    if is_encrypted(pem) {
        let way = "'openssl pkey -in <file> -out <new file>' decrypts it, and the new file needs mode 0600";
        return Err(unusable(
            "private key",
            format_args!("it is encrypted; {way}"),
        ));
    }
    match PrivateKeyDer::from_pem_slice(pem.as_bytes()) {
        Ok(key) => Ok(key),
        // The reason of the library could quote the text, so it is not shown.
        Err(_) => {
            let held = other_content_than_key(pem)
                .unwrap_or("it holds no PKCS#8, PKCS#1 or SEC1 key in PEM form");
            Err(unusable("private key", held))
        }
    }
}

/// Reads the certificates that a client has presented. DNS names are not checked: one may be `*`,
/// which is compared literally.
fn peer_certificate(presented: &[CertificateDer<'_>]) -> Result<PeerCertificate, String> {
    let Some(first) = presented.first() else {
        return Ok(PeerCertificate::default());
    };
    let (_, parsed) = x509_parser::parse_x509_certificate(first).map_err(unreadable)?;
    Ok(PeerCertificate {
        count: presented.len(),
        dns_names: dns_names(&parsed)?,
        expires: end_of(&parsed),
    })
}

fn dns_names(
    certificate: &x509_parser::certificate::X509Certificate<'_>,
) -> Result<Vec<String>, String> {
    use x509_parser::extensions::GeneralName;
    let mut names = Vec::new();
    if let Some(extension) = certificate.subject_alternative_name().map_err(unreadable)? {
        for name in &extension.value.general_names {
            if let GeneralName::DNSName(name) = name {
                names.push((*name).to_owned());
            }
        }
    }
    Ok(names)
}

fn unreadable(error: impl std::fmt::Display) -> String {
    format!("its certificate cannot be read: {error}")
}

thread_local! {
    /// The names in the certificate that this thread has refused last.
    static REFUSED_NAMES: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Verifies the certificates of clients, and keeps the names of a refused one: the error of the
/// library does not have them, and its session does not keep the certificate.
#[derive(Debug)]
struct NamingVerifier(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for NamingVerifier {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.0.verify_client_cert(end_entity, intermediates, now);
        if verified.is_err() {
            REFUSED_NAMES.set(names_in(end_entity));
        }
        verified
    }

    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// The DNS names in a certificate, or else its subject; `None` if it has neither. They are not
/// verified.
fn names_in(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let dns_names = dns_names(&parsed).unwrap_or_default();
    let mut names = dns_names.join(", ");
    if names.is_empty() {
        names = parsed.subject().to_string();
    }
    if names.is_empty() { None } else { Some(names) }
}

/// When a certificate expires, in seconds since 1970.
fn end_of(certificate: &x509_parser::certificate::X509Certificate<'_>) -> u64 {
    let end = certificate.validity().not_after.timestamp();
    u64::try_from(end).unwrap_or_default()
}

/// When the certificate in these texts expires; `None` when it cannot be read.
pub(crate) fn expiry(pem: &PemTexts) -> Option<u64> {
    let certificates = certificates(&pem.certificate, "certificate").ok()?;
    let (_, parsed) = x509_parser::parse_x509_certificate(certificates.first()?).ok()?;
    Some(end_of(&parsed))
}

// ---------------------------------------------------------------- handshake

/// The other side of a connection, with or without TLS. Nothing waits; errors are reasons why the
/// connection broke.
pub(crate) struct TlsLink {
    socket: File,
    session: Option<Box<Connection>>,
    /// What a socket without TLS has not taken yet.
    unsent: Vec<u8>,
}

impl TlsLink {
    /// On a socket that does not block.
    pub(crate) fn new(socket: impl Into<OwnedFd>, session: Option<Box<Connection>>) -> Self {
        Self {
            socket: socket.into().into(),
            session,
            unsent: Vec::new(),
        }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether its handshake is under way.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.session
            .as_ref()
            .is_some_and(|session| session.is_handshaking())
    }

    /// Continues the handshake as far as that goes without waiting. After an error, an alert for
    /// the other side may be left to be written.
    pub(crate) fn handshake(&mut self) -> Result<(), TlsError> {
        self.flush()?;
        while self.is_handshaking() {
            match self.receive()? {
                Some(0) => return Err(self.why_closed()),
                Some(_) => self.flush()?,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// The error for a peer that closes the connection during the handshake. A server without TLS
    /// may do that and send nothing.
    fn why_closed(&self) -> TlsError {
        if let Some(Connection::Client(_)) = self.session.as_deref() {
            let text = "the server closed the connection during the TLS handshake, perhaps it does not speak TLS";
            return TlsError {
                text: text.to_owned(),
                cause: TlsCause::NoTls,
            };
        }
        let text = "the client closed the connection during the TLS handshake";
        text.to_owned().into()
    }

    /// The reason to end a connection that was not opened in time.
    pub(crate) fn why_late(&self) -> String {
        if self.is_handshaking() {
            "no TLS handshake within the time limit".to_owned()
        } else {
            format!("it sent nothing within {HELLO_MAX:?}")
        }
    }

    /// The certificate of the client; `None` without TLS.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn certificate(&self) -> Result<Option<PeerCertificate>, String> {
        let Some(session) = &self.session else {
            return Ok(None);
        };
        let presented = session.peer_certificates().unwrap_or_default();
        Ok(Some(peer_certificate(presented)?))
    }

    /// Passes bytes from the socket to the session. Returns their number: 0 at the end, `None` if
    /// there are none now.
    fn receive(&mut self) -> Result<Option<usize>, TlsError> {
        let Some(session) = &mut self.session else {
            return Ok(None);
        };
        let received = now_or_later(session.read_tls(&mut self.socket))?;
        if let Err(error) = session.process_new_packets() {
            let is_client = matches!(**session, Connection::Client(_));
            let mut why = refused(&error, is_client);
            // The certificate was verified within this call, on this thread.
            if !is_client && let Some(names) = REFUSED_NAMES.take() {
                why.text
                    .push_str(&format!("; it names '{}'", excerpt(&names)));
            }
            return Err(why);
        }
        Ok(received)
    }

    /// Reads bytes of the other side and returns their number: 0 at the end, `None` if there are
    /// none now. The socket is read only if it `is_ready`.
    pub(crate) fn read(
        &mut self,
        buffer: &mut [u8],
        is_ready: bool,
    ) -> Result<Option<usize>, TlsError> {
        if is_ready {
            self.receive()?;
        }
        match &mut self.session {
            None if is_ready => now_or_later(self.socket.read(buffer)),
            None => Ok(None),
            Some(session) => match session.reader().read(buffer) {
                // The socket ended without an alert. Earlier bytes are complete anyway.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Some(0)),
                read => now_or_later(read),
            },
        }
    }

    /// Reads and drops bytes of the other side. Returns whether it has ended.
    pub(crate) fn discard(&mut self) -> bool {
        match now_or_later(self.socket.read(&mut [0; 4096])) {
            Ok(Some(0)) | Err(_) => true,
            Ok(Some(_) | None) => false,
        }
    }

    /// Sends bytes, as far as the socket takes them. Call it only when nothing is left to be
    /// written.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), TlsError> {
        match &mut self.session {
            Some(session) => session
                .writer()
                .write_all(bytes)
                .map_err(|error| broken(&error))?,
            None => self.unsent = bytes.to_vec(),
        }
        self.flush()
    }

    /// Writes the rest, as far as the socket takes it.
    pub(crate) fn flush(&mut self) -> Result<(), TlsError> {
        while self.wants_write() {
            let written = match &mut self.session {
                Some(session) => session.write_tls(&mut self.socket),
                None => self.write_unsent(),
            };
            match written {
                Ok(_) => {}
                Err(error) if would_block(&error) => return Ok(()),
                Err(error) => return Err(self.why_broken(&error)),
            }
        }
        self.unsent = Vec::new();
        Ok(())
    }

    fn write_unsent(&mut self) -> io::Result<usize> {
        let count = self.socket.write(&self.unsent)?;
        self.unsent.drain(..count);
        Ok(count)
    }

    /// Returns whether something is left to be written.
    pub(crate) fn wants_write(&self) -> bool {
        match &self.session {
            Some(session) => session.wants_write(),
            None => !self.unsent.is_empty(),
        }
    }

    /// Adds the last message of TLS, which says that no bytes follow.
    pub(crate) fn close(&mut self) {
        if let Some(session) = &mut self.session {
            session.send_close_notify();
        }
    }

    /// The error for a failed write. If the other side sent an alert before, that is the reason.
    fn why_broken(&mut self, error: &io::Error) -> TlsError {
        loop {
            match self.receive() {
                Ok(Some(1..)) => {}
                Err(alert) => return alert,
                Ok(_) => return broken(error),
            }
        }
    }
}

/// Returns whether nothing can be read or written now; later it may.
pub(crate) fn would_block(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// The result of a read; `None` if there is nothing to read now.
fn now_or_later(result: io::Result<usize>) -> Result<Option<usize>, TlsError> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(error) if would_block(&error) => Ok(None),
        Err(error) => Err(broken(&error)),
    }
}

fn broken(error: &io::Error) -> TlsError {
    format!("the connection broke: {error}").into()
}

/// Why the other side is refused, or refuses us.
fn refused(error: &rustls::Error, is_client: bool) -> TlsError {
    let cause = match error {
        rustls::Error::InvalidMessage(_) | rustls::Error::InappropriateMessage { .. } => {
            TlsCause::NoTls
        }
        rustls::Error::AlertReceived(_) => TlsCause::RefusedByPeer,
        _ => TlsCause::Other,
    };
    TlsError {
        text: reason(error, is_client),
        cause,
    }
}

/// Explains an error so that a user can act on it, in one line.
fn reason(error: &rustls::Error, is_client: bool) -> String {
    let other = if is_client { "server" } else { "client" };
    match error {
        rustls::Error::InvalidCertificate(reason) => match reason {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                format!(
                    "the {other}'s certificate has expired (or the clock of this machine is wrong)"
                )
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                format!(
                    "the {other}'s certificate is not valid yet (or the clock of this machine is wrong)"
                )
            }
            // `BadSignature` is returned if another authority has the name of ours.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                format!("the {other}'s certificate was not signed by our CA")
            }
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
        rustls::Error::PeerIncompatible(reason) => {
            format!("no common TLS version or cipher: {reason:?}")
        }
        rustls::Error::NoApplicationProtocol => {
            format!("the {other} does not offer HTTP/2 (ALPN 'h2')")
        }
        other => other.to_string(),
    }
}

fn alert_text(alert: rustls::AlertDescription) -> String {
    use rustls::AlertDescription as Alert;
    match alert {
        Alert::UnknownCA => "our certificate was not signed by its CA (UnknownCA)".to_owned(),
        // TLS has no other alert for a certificate that is not valid yet.
        Alert::CertificateExpired => {
            "our certificate has expired or is not valid yet, by the clock of the other side (CertificateExpired)"
                .to_owned()
        }
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

#[cfg(test)]
mod tests;
