//! Real TLS between both ends, with good certificates and every kind of bad one.
//!
//! Thread: the test's, plus those of the endpoint.

use super::*;
use crate::address::Security;
use crate::client::{ClientOptions, Service, StreamEnd, connect};
use crate::grpc::Keepalive;
use crate::limits::HANDSHAKE_MAX;
use crate::peer::PeerEvent;
use crate::pump::{BUFFER, GrpcConnection, Pump, PumpError, UNAUTHENTICATED_MAX};
use crate::server_endpoint::LARGE_MESSAGES;
use crate::server_endpoint::ServerEndpoint;
use crate::server_endpoint::tests::{client, start};
use ankaios_model::limits::MESSAGE_MAX;
use ankaios_model::messages::{
    AgentHello, FromServer, Request, RequestContent, Response, ResponseContent, ToServer,
};
use ankaios_model::version::VERSION;
use ankaios_platform::clock::{Clock, SystemClock};
use ankaios_platform::limits::STACK_SMALL;
use ankaios_platform::threads;
use crossbeam_channel::{Receiver, bounded};
use rcgen::{
    CertificateParams, ExtendedKeyUsagePurpose as Usage, IsCa, KeyPair, SanType, date_time_ymd,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::error::Error;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(180);

struct Authority {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        // Two authorities of one name would differ by their keys only, which shows as a wrong
        // signature.
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, uuid::Uuid::new_v4().to_string());
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        Self {
            certificate: params.self_signed(&key).unwrap(),
            key,
        }
    }

    fn sign(&self, change: impl FnOnce(&mut CertificateParams)) -> PemTexts {
        let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        change(&mut params);
        let certificate = params
            .signed_by(&key, &self.certificate, &self.key)
            .unwrap();
        PemTexts {
            ca: self.certificate.pem(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }

    fn named(&self, name: &str, usage: Usage) -> PemTexts {
        self.sign(|params| {
            params.subject_alt_names = vec![SanType::DnsName(name.try_into().unwrap())];
            params.extended_key_usages = vec![usage];
        })
    }

    fn server(&self) -> PemTexts {
        self.named(SERVER_NAME, Usage::ServerAuth)
    }

    fn agent(&self, name: &str) -> PemTexts {
        self.named(name, Usage::ClientAuth)
    }
}

fn endpoint(security: Security) -> (ServerEndpoint, Receiver<PeerEvent>) {
    start(security, MESSAGE_MAX, Keepalive::default(), LARGE_MESSAGES)
}

fn options(endpoint: &ServerEndpoint, security: Security, service: Service) -> ClientOptions {
    client(
        &format!("https://{}", endpoint.address()),
        security,
        service,
    )
}

fn agent_hello() -> ToServer {
    ToServer::AgentHello(AgentHello {
        agent: "agent_A".into(),
        version: VERSION.into(),
        ..AgentHello::default()
    })
}

/// What the user of an agent reads when it connects; "connected" when the server accepts it.
fn outcome(server: Security, client: Security) -> String {
    let (endpoint, events) = endpoint(server);
    let result = match connect(&options(&endpoint, client, Service::Agent), agent_hello()) {
        Err(error) => {
            assert_eq!(
                error.to_string(),
                format!("no secure connection to 'https://{}'", endpoint.address())
            );
            error.source().expect("a reason").to_string()
        }
        Ok((_sender, mut receiver, _hangup)) => {
            // An accepted peer is dropped at once, so both outcomes end the stream, however long
            // that takes.
            let (opened, accepted) = bounded(1);
            let waiting = threads::spawn("test", STACK_SMALL, move || {
                for event in events {
                    if let PeerEvent::Opened { .. } = event {
                        let _ = opened.try_send(());
                    }
                }
            });
            waiting.unwrap();
            let end = receiver.receive().unwrap_err();
            if accepted.try_recv().is_ok() {
                assert_eq!(end, StreamEnd::Closed);
                "connected".to_owned()
            } else {
                end.to_string()
            }
        }
    };
    endpoint.stop(LIMIT);
    result
}

fn tls(pem: PemTexts) -> Security {
    Security::MutualTls(pem)
}

#[test]
fn good_certificates_connect_and_carry_large_messages_both_ways() {
    let authority = Authority::new();
    for name in ["agent_A", "*"] {
        let certificate = authority.sign(|params| {
            params.subject_alt_names = vec![SanType::DnsName(name.try_into().unwrap())]
        });
        assert_eq!(
            outcome(tls(authority.server()), tls(certificate)),
            "connected",
            "{name}"
        );
    }
    let (endpoint, events) = endpoint(tls(authority.server()));
    // Commanders are not checked for names.
    let client = tls(authority.sign(|_| ()));
    let hello = ToServer::CommanderHello {
        version: VERSION.into(),
    };
    let (mut sender, mut receiver, _hangup) =
        connect(&options(&endpoint, client, Service::Cli), hello).unwrap();
    let Ok(PeerEvent::Opened { outbox, .. }) = events.recv_timeout(LIMIT) else {
        panic!("not opened")
    };
    for size in [1, BUFFER, 10 * 1024 * 1024] {
        let id = "x".repeat(size);
        let request = ToServer::Request(Request {
            id: id.clone(),
            content: RequestContent::LogsCancel,
        });
        sender.send(request.clone()).unwrap();
        let Ok(PeerEvent::Message { message, .. }) = events.recv_timeout(LIMIT) else {
            panic!("no message")
        };
        assert!(message == request, "{size} bytes changed on the way");
        let answer = FromServer::Response(Response {
            id,
            content: ResponseContent::EventsCancelAccepted,
        });
        outbox.put(answer.clone()).unwrap();
        assert!(
            receiver.receive() == Ok(answer),
            "{size} bytes changed on the way back"
        );
    }
    drop(outbox);
    assert_eq!(receiver.receive(), Err(StreamEnd::Closed));
}

// [utest->swdd~server-check-agent-name~1]
#[test]
fn each_kind_of_bad_certificate_is_refused_with_its_reason() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let past = |params: &mut CertificateParams| {
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    };
    let server_name = |params: &mut CertificateParams| {
        params.subject_alt_names = vec![SanType::DnsName(SERVER_NAME.try_into().unwrap())];
    };
    let ca = |pem: PemTexts, authority: &Authority| PemTexts {
        ca: authority.certificate.pem(),
        ..pem
    };
    let chain = {
        let (first, second) = (ours.agent("agent_A"), ours.agent("agent_A"));
        PemTexts {
            certificate: format!("{}{}", first.certificate, second.certificate),
            ..first
        }
    };
    let unauthenticated = |text: &str| format!("the server refused: {text} (UNAUTHENTICATED)");
    let cases: Vec<(&str, Security, Security, String)> = vec![
        (
            "agent of another name",
            tls(ours.server()),
            tls(ours.agent("agent_B")),
            unauthenticated(r#"Agent name 'agent_A' does not match SAN ["agent_B"] in agent certificates!"#),
        ),
        (
            "agent certificate with an address only",
            tls(ours.server()),
            tls(ours.sign(|params| params.subject_alt_names = vec![SanType::IpAddress([127, 0, 0, 1].into())])),
            unauthenticated("No subject alt names found in agent certificates!"),
        ),
        (
            "agent certificate without names",
            tls(ours.server()),
            tls(ours.sign(|_| ())),
            unauthenticated("No subject alt names found in agent certificates!"),
        ),
        ("chain", tls(ours.server()), tls(chain), unauthenticated("Ambiguous agent certificates provided!")),
        (
            "client of another CA",
            tls(ours.server()),
            tls(ca(theirs.agent("agent_A"), &ours)),
            "the server refused the connection: our certificate was not signed by its CA (UnknownCA)".into(),
        ),
        (
            "expired client",
            tls(ours.server()),
            tls(ours.sign(past)),
            "the server refused the connection: our certificate has expired or is not valid yet, by the clock of the other side (CertificateExpired)".into(),
        ),
        (
            "client with a server's certificate",
            tls(ours.server()),
            tls(ours.named("agent_A", Usage::ServerAuth)),
            "the server refused the connection: our certificate is not meant for this use (UnsupportedCertificate)".into(),
        ),
        (
            "server of another CA",
            tls(theirs.server()),
            tls(ours.agent("agent_A")),
            "the server's certificate was not signed by our CA".into(),
        ),
        (
            "server without the name",
            tls(ours.named("localhost", Usage::ServerAuth)),
            tls(ours.agent("agent_A")),
            "the server's certificate does not carry the name 'ank-server'".into(),
        ),
        (
            "expired server",
            tls(ours.sign(|params| {
                server_name(params);
                past(params);
            })),
            tls(ours.agent("agent_A")),
            "the server's certificate has expired (or the clock of this machine is wrong)".into(),
        ),
        (
            "server of the future",
            tls(ours.sign(|params| {
                server_name(params);
                params.not_before = date_time_ymd(3000, 1, 1);
            })),
            tls(ours.agent("agent_A")),
            "the server's certificate is not valid yet (or the clock of this machine is wrong)".into(),
        ),
        (
            "server with a client's certificate",
            tls(ours.named(SERVER_NAME, Usage::ClientAuth)),
            tls(ours.agent("agent_A")),
            "the server's certificate is not meant for a server (extended key usage)".into(),
        ),
    ];
    for (case, server, client, expected) in cases {
        let outcome = outcome(server, client);
        // A refusal by the server arrives while the connection is made, or just after.
        assert_eq!(
            outcome
                .strip_prefix("the connection was lost: ")
                .unwrap_or(&outcome),
            expected,
            "{case}"
        );
    }
    // gRPC may end the connection before it has sent anything.
    let end = outcome(Security::Insecure, tls(ours.agent("agent_A")));
    assert!(
        end.starts_with("the server ") && end.ends_with("does not speak TLS"),
        "{end}"
    );
}

/// The reason for which a server ends the handshake with this client.
fn refusal(server: &PemTexts, client: &PemTexts) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_nonblocking(true).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    accepted.set_nonblocking(true).unwrap();
    let mut of_server = ServerTls::new(server).unwrap().begin(accepted).unwrap();
    let mut of_client = ClientTls::new(client).unwrap().begin(stream).unwrap();
    let end = SystemClock.now() + LIMIT;
    while SystemClock.now() < end {
        if let Err(why) = of_server.handshake() {
            return why.text;
        }
        let _ = of_client.handshake(); // The server may have refused it already.
    }
    panic!("no end of the handshake");
}

#[test]
fn refused_certificate_of_a_client_is_named_to_the_server() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let past = |name: Option<&str>| {
        ours.sign(|params| {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2002, 1, 1);
            if let Some(name) = name {
                params.subject_alt_names = vec![SanType::DnsName(name.try_into().unwrap())];
            }
            params.distinguished_name = rcgen::DistinguishedName::new();
            params
                .distinguished_name
                .push(rcgen::DnType::CommonName, "a subject");
        })
    };
    let expired =
        "the client's certificate has expired (or the clock of this machine is wrong); it names ";
    let foreign = PemTexts {
        ca: ours.certificate.pem(),
        ..theirs.agent("agent_B")
    };
    for (client, expected) in [
        (past(Some("agent_A")), format!("{expired}'agent_A'")),
        (past(None), format!("{expired}'CN=a subject'")),
        (
            foreign,
            "the client's certificate was not signed by our CA; it names 'agent_B'".to_owned(),
        ),
    ] {
        assert_eq!(refusal(&ours.server(), &client), expected);
    }
}

#[test]
fn a_plain_client_of_a_tls_server_is_cut_off() {
    let authority = Authority::new();
    let end = outcome(tls(authority.server()), Security::Insecure);
    assert!(
        end.starts_with("the connection was lost") || end == "the server closed the connection",
        "{end}"
    );
}

/// The library signs with shorter keys only, and verifies with these.
#[test]
fn authority_with_a_long_rsa_key_is_taken() {
    let pem = PemTexts {
        ca: include_str!("rsa-8192-ca.pem").into(),
        ..Authority::new().server()
    };
    ServerTls::new(&pem).unwrap();
    ClientTls::new(&pem).unwrap();
}

#[test]
fn unusable_texts_are_named_without_quoting_them() {
    let authority = Authority::new();
    let good = authority.server();
    let other_key = authority.server().key;
    for (case, pem, expected) in [
        (
            "no CA",
            PemTexts {
                ca: "secret".into(),
                ..good.clone()
            },
            "the CA certificate cannot be used",
        ),
        (
            "no certificate",
            PemTexts {
                certificate: "secret".into(),
                ..good.clone()
            },
            "the certificate cannot be used",
        ),
        (
            "no key",
            PemTexts {
                key: "secret".into(),
                ..good.clone()
            },
            "the private key cannot be used",
        ),
        (
            "other key",
            PemTexts {
                key: other_key,
                ..good.clone()
            },
            "certificate, key and CA do not belong together: the private key is not that of the certificate",
        ),
    ] {
        for error in [
            ServerTls::new(&pem).unwrap_err(),
            ClientTls::new(&pem).unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(
                text.starts_with(expected) && !text.contains("secret"),
                "{case}: {text}"
            );
        }
    }
}

#[test]
fn a_client_gives_up_on_a_server_that_does_not_greet() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_nonblocking(true).unwrap();
    let client = ClientTls::new(&Authority::new().agent("agent_A")).unwrap();
    let (mut pump, reason, begin) = (
        Pump::new().unwrap(),
        Arc::new(OnceLock::new()),
        SystemClock.now(),
    );
    let ended = reason.clone();
    let on_end = move |error: &PumpError| drop(ended.set(error.to_string()));
    pump.add(
        client.begin(stream).unwrap(),
        Box::new(|_| unreachable!()),
        true,
        Box::new(on_end),
        begin,
    );
    for (time, is_handshaking) in [(HANDSHAKE_MAX / 2, true), (HANDSHAKE_MAX, false)] {
        pump.wait(Some(Duration::ZERO), || begin + time).unwrap();
        assert_eq!(
            (pump.is_handshaking(), reason.get().is_none()),
            (is_handshaking, is_handshaking)
        );
    }
    assert_eq!(
        reason.get().unwrap(),
        "no TLS handshake within the time limit"
    );
}

#[test]
fn an_end_without_a_word_may_be_a_server_without_tls() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    listener
        .accept()
        .unwrap()
        .0
        .shutdown(std::net::Shutdown::Write)
        .unwrap();
    stream.set_nonblocking(true).unwrap();
    let client = ClientTls::new(&Authority::new().agent("agent_A")).unwrap();
    let error = handshake(&mut client.begin(stream).unwrap()).unwrap_err();
    assert_eq!(
        error.text,
        "the server closed the connection during the TLS handshake, perhaps it does not speak TLS"
    );
    assert_eq!(error.cause, TlsCause::NoTls);
}

#[test]
fn the_end_of_a_burst_of_records_is_not_left_behind() {
    let (mut link, mut plain, pump) = pumped();
    // Many small records in one write: more plain text at once than the pump's buffer holds, and
    // then silence.
    let record = [7; 1000];
    let records = 3 * BUFFER / record.len();
    for _ in 0..records {
        session_of(&mut link).writer().write_all(&record).unwrap();
    }
    link.flush().unwrap();
    plain.set_read_timeout(Some(LIMIT)).unwrap();
    let mut received = vec![0; records * record.len()];
    plain.read_exact(&mut received).unwrap();
    assert!(received.iter().all(|byte| *byte == 7));
    drop(plain);
    pump.join().unwrap();
}

#[test]
fn connections_that_never_greet_do_not_keep_others_out() {
    let authority = Authority::new();
    let secure = (
        tls(authority.server()),
        tls(authority.sign(|_| ())),
        &b""[..],
    );
    // Those without TLS have a connection of gRPC.
    let plain = (
        Security::Insecure,
        Security::Insecure,
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
    );
    for (server, client, begin) in [secure, plain] {
        let (endpoint, events) = endpoint(server);
        let client = options(&endpoint, client, Service::Cli);
        let greet = || {
            let connected = connect(
                &client,
                ToServer::CommanderHello {
                    version: VERSION.into(),
                },
            )
            .unwrap();
            let Ok(PeerEvent::Opened { outbox, .. }) = events.recv_timeout(LIMIT) else {
                panic!("not opened")
            };
            (connected, outbox)
        };
        let mut greeted = greet();
        let say_nothing = || {
            let mut silent = TcpStream::connect(endpoint.address()).unwrap();
            silent.write_all(begin).unwrap();
            silent
        };
        let mut silent: Vec<_> = (0..UNAUTHENTICATED_MAX + 1)
            .map(|_| say_nothing())
            .collect();
        let late = greet();
        silent[0].set_read_timeout(Some(LIMIT)).unwrap();
        silent[0]
            .read_to_end(&mut Vec::new())
            .expect("the oldest is ended");
        silent[UNAUTHENTICATED_MAX].set_nonblocking(true).unwrap();
        assert!(
            silent[UNAUTHENTICATED_MAX]
                .read_to_end(&mut Vec::new())
                .is_err_and(|error| would_block(&error))
        );
        greeted.0.0.send(ToServer::Goodbye).unwrap();
        assert!(
            matches!(events.recv_timeout(LIMIT), Ok(PeerEvent::Message { .. })),
            "who has greeted stays"
        );
        drop((silent, greeted, late));
        endpoint.stop(LIMIT);
    }
}

/// All other connections wait for the thread that moves bytes.
#[test]
fn many_handshakes_take_no_time_of_the_thread_that_moves_bytes() {
    let authority = Authority::new();
    let (server, client) = (
        ServerTls::new(&authority.server()).unwrap(),
        ClientTls::new(&authority.agent("agent_A")).unwrap(),
    );
    let (mut pump, opened) = (
        Pump::new().unwrap(),
        Arc::new(std::sync::atomic::AtomicUsize::new(0)),
    );
    pump.start_handshake_threads().unwrap();
    let mut clients = Vec::new();
    for _ in 0..UNAUTHENTICATED_MAX {
        let (inner, outer) = connected(false);
        outer.set_nonblocking(true).unwrap();
        let opened = opened.clone();
        let open = move |link: &TlsLink| {
            assert_eq!(link.certificate().unwrap().unwrap().dns_names, ["agent_A"]);
            opened.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let (plain, endpoint) = UnixStream::pair()?;
            plain.set_nonblocking(true)?;
            drop(endpoint);
            Ok(GrpcConnection {
                grpc: plain,
                gate: None,
            })
        };
        pump.add(
            server.begin(inner).unwrap(),
            Box::new(open),
            false,
            Box::new(|_| {}),
            SystemClock.now(),
        );
        clients.push(client.begin(outer));
    }
    let shaking = std::thread::spawn(move || {
        clients
            .into_iter()
            .map(|link| handshake(&mut link.unwrap()))
            .filter(Result::is_ok)
            .count()
    });
    let cpu = |clock| Duration::try_from(rustix::time::clock_gettime(clock)).unwrap();
    let [own, all] = [
        rustix::time::ClockId::ThreadCPUTime,
        rustix::time::ClockId::ProcessCPUTime,
    ];
    let (before, all_before, deadline) = (cpu(own), cpu(all), SystemClock.now() + LIMIT);
    while opened.load(std::sync::atomic::Ordering::Relaxed) < UNAUTHENTICATED_MAX {
        assert!(!SystemClock.until(deadline).is_zero());
        assert_eq!(
            pump.wait(Some(Duration::from_millis(10)), || SystemClock.now())
                .unwrap(),
            [0; 0]
        );
    }
    let (took, of) = (cpu(own) - before, cpu(all) - all_before);
    assert!(
        took * 4 < of,
        "{took:?} of {of:?}; half of it where this thread shakes hands itself"
    );
    drop(pump);
    let _ = shaking.join().unwrap();
}

/// Two connected sockets, both not blocking as those of an endpoint are, or as `std` makes them.
fn connected(blocking: bool) -> (TcpStream, TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    one.set_nonblocking(!blocking).unwrap();
    for stream in [&one, &other] {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
    }
    (one, other)
}

/// Waits for the socket; returns whether it is ready.
fn wait_until(link: &TlsLink, deadline: Instant, wanted: PollFlags) -> bool {
    let left = SystemClock.until(deadline);
    poll(
        &mut [PollFd::new(&link.socket(), wanted)],
        Timespec::try_from(left).ok().as_ref(),
    )
    .unwrap()
        > 0
}

/// Shakes hands until that is done.
fn handshake(link: &mut TlsLink) -> Result<(), TlsError> {
    let deadline = SystemClock.now() + LIMIT;
    link.handshake()?;
    while link.is_handshaking() || link.wants_write() {
        let mut wanted = PollFlags::IN;
        wanted.set(PollFlags::OUT, link.wants_write());
        assert!(wait_until(link, deadline, wanted), "no handshake");
        link.handshake()?;
    }
    Ok(())
}

fn with_handshake(link: Result<TlsLink, rustls::Error>) -> TlsLink {
    let mut link = link.unwrap();
    handshake(&mut link).unwrap();
    link
}

/// Why a handshake fails; the other side reads that.
fn refused(link: Result<TlsLink, rustls::Error>) -> String {
    let (mut pump, reason) = (Pump::new().unwrap(), Arc::new(OnceLock::new()));
    let ended = reason.clone();
    let on_end = move |error: &PumpError| drop(ended.set(error.to_string()));
    pump.add(
        link.unwrap(),
        Box::new(|_| unreachable!()),
        true,
        Box::new(on_end),
        SystemClock.now(),
    );
    pump.run(None);
    reason.get().unwrap().clone()
}

fn session_of(link: &mut TlsLink) -> &mut Connection {
    link.session.as_mut().unwrap()
}

/// A client of a server that a pump connects with gRPC's end, and the thread of the pump.
fn pumped() -> (TlsLink, UnixStream, std::thread::JoinHandle<()>) {
    let authority = Authority::new();
    let (inner, outer) = connected(false);
    outer.set_nonblocking(true).unwrap();
    let server = ServerTls::new(&authority.server()).unwrap();
    let (plain, grpc_end) = UnixStream::pair().unwrap();
    plain.set_nonblocking(true).unwrap();
    let pump = std::thread::spawn(move || {
        let link = with_handshake(server.begin(inner));
        let mut pump = Pump::new().unwrap();
        pump.add(
            link,
            Box::new(|_| {
                Ok(GrpcConnection {
                    grpc: plain,
                    gate: None,
                })
            }),
            true,
            Box::new(|_| {}),
            SystemClock.now(),
        );
        pump.run(None);
    });
    let client = ClientTls::new(&authority.agent("agent_A")).unwrap();
    (with_handshake(client.begin(outer)), grpc_end, pump)
}

/// Writes what the session has to send.
fn write_out(session: &mut Connection, mut to: impl Write) {
    while session.wants_write() {
        session.write_tls(&mut to).unwrap();
    }
}

/// All that comes, up to the end of the connection; fails when it is reset in place of that.
fn read_to_end(session: &mut Connection, tcp: &mut TcpStream) -> rustls::Error {
    let mut refused = None;
    while session.read_tls(tcp).expect("the connection ends in order") > 0 {
        if let Err(error) = session.process_new_packets() {
            refused = Some(error);
        }
    }
    refused.expect("an alert")
}

#[test]
fn refused_client_reads_the_reason_and_an_orderly_end() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (inner, mut tcp) = connected(false);
    let server = ServerTls::new(&ours.server()).unwrap();
    let served = std::thread::spawn(move || refused(server.begin(inner)));
    let pem = PemTexts {
        ca: ours.certificate.pem(),
        ..theirs.agent("agent_A")
    };
    let client = ClientTls::new(&pem).unwrap();
    let mut session: Connection =
        ClientConnection::new(client.0.clone(), ServerName::try_from(SERVER_NAME).unwrap())
            .unwrap()
            .into();
    while session.is_handshaking() {
        write_out(&mut session, &mut tcp);
        session.read_tls(&mut tcp).unwrap();
        session.process_new_packets().unwrap();
    }
    // In TLS 1.3 the client is done now and talks; the server has not seen its certificate yet.
    session.writer().write_all(&[7; 32 * 1024]).unwrap();
    let mut together = Vec::new();
    write_out(&mut session, &mut together);
    tcp.write_all(&together).unwrap();
    let alert = read_to_end(&mut session, &mut tcp);
    assert_eq!(
        alert,
        rustls::Error::AlertReceived(rustls::AlertDescription::UnknownCA)
    );
    drop(tcp);
    assert_eq!(
        served.join().unwrap(),
        "the client's certificate was not signed by our CA; it names 'agent_A'"
    );
}

#[test]
fn refused_server_reads_the_reason_and_an_orderly_end() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (inner, mut tcp) = connected(false);
    let client = ClientTls::new(&PemTexts {
        ca: ours.certificate.pem(),
        ..ours.agent("agent_A")
    })
    .unwrap();
    let connects = std::thread::spawn(move || refused(client.begin(inner)));
    let server = ServerTls::new(&theirs.server()).unwrap();
    let mut session: Connection = ServerConnection::new(server.0.clone()).unwrap().into();
    while !session.wants_write() {
        session.read_tls(&mut tcp).unwrap();
        session.process_new_packets().unwrap();
    }
    let mut together = Vec::new();
    write_out(&mut session, &mut together);
    together.extend([7; 32 * 1024]);
    tcp.write_all(&together).unwrap();
    // The keys of both sides differ already at this point, so the alert looks like
    // garbage.
    let mut received = Vec::new();
    tcp.read_to_end(&mut received)
        .expect("the connection ends in order");
    assert!(!received.is_empty(), "the alert is missing");
    drop(tcp);
    assert_eq!(
        connects.join().unwrap(),
        "the server's certificate was not signed by our CA"
    );
}

#[test]
fn a_reason_that_came_before_a_reset_is_read() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (inner, mut tcp) = connected(true);
    let pem = PemTexts {
        ca: ours.certificate.pem(),
        ..theirs.agent("agent_A")
    };
    let client = ClientTls::new(&pem).unwrap();
    let connecting = std::thread::spawn(move || with_handshake(client.begin(inner)));
    let server = ServerTls::new(&ours.server()).unwrap();
    let mut session: Connection = ServerConnection::new(server.0.clone()).unwrap().into();
    while session.is_handshaking() {
        session.read_tls(&mut tcp).unwrap();
        if session.process_new_packets().is_err() {
            break;
        }
        write_out(&mut session, &mut tcp);
    }
    let mut client = connecting.join().unwrap();
    // The other side says why, reads nothing, and closes: a reset.
    write_out(&mut session, &mut tcp);
    session_of(&mut client)
        .writer()
        .write_all(b"first")
        .unwrap();
    client.flush().unwrap();
    rustix::event::poll(&mut [PollFd::new(&tcp, PollFlags::IN)], None).unwrap();
    drop(tcp);
    let mut reset = [PollFd::new(&client.socket, PollFlags::ERR)];
    rustix::event::poll(&mut reset, None).unwrap();
    session_of(&mut client)
        .writer()
        .write_all(b"second")
        .unwrap();
    let error = client.flush().unwrap_err();
    assert_eq!(
        error.text,
        "the server refused the connection: our certificate was not signed by its CA (UnknownCA)"
    );
    assert_eq!(error.cause, TlsCause::RefusedByPeer);
}

#[test]
fn bytes_before_the_close_arrive_while_the_other_side_sends() {
    let (mut client, mut grpc_end, pump) = pumped();
    // The other end does not read, so the pump is stuck with decrypted bytes.
    let deadline = SystemClock.now() + LIMIT;
    for _ in 0..64 {
        session_of(&mut client)
            .writer()
            .write_all(&[7; BUFFER])
            .unwrap();
        if !wait_until(
            &client,
            SystemClock.now() + Duration::from_millis(300),
            PollFlags::OUT,
        ) {
            break;
        }
        client.flush().unwrap();
    }
    let last_words = vec![9; 100_000];
    grpc_end.write_all(&last_words).unwrap();
    drop(grpc_end);
    let mut received = Vec::new();
    let mut buffer = [0; BUFFER];
    let mut has_ended = false;
    while !has_ended {
        assert!(wait_until(&client, deadline, PollFlags::IN));
        let mut is_ready = true;
        while let Some(count) = client
            .read(&mut buffer, is_ready)
            .unwrap()
            .filter(|_| !has_ended)
        {
            received.extend_from_slice(&buffer[..count]);
            (is_ready, has_ended) = (false, count == 0);
        }
    }
    assert!(
        received == last_words,
        "{} of {} bytes came",
        received.len(),
        last_words.len()
    );
    drop(client);
    pump.join().unwrap();
}

#[test]
fn who_goes_on_talking_after_a_refused_hello_gets_the_reason() {
    let authority = Authority::new();
    let secure = (tls(authority.server()), tls(authority.agent("agent_A")));
    for (server, client) in [secure, (Security::Insecure, Security::Insecure)] {
        let (endpoint, _events) = endpoint(server);
        for _ in 0..10 {
            let hello = ToServer::CommanderHello {
                version: "0.0.1".into(),
            };
            let client = options(&endpoint, client.clone(), Service::Command);
            let (mut sender, mut receiver, _hangup) = connect(&client, hello).unwrap();
            let request = Request {
                id: "x".repeat(1 << 20),
                content: RequestContent::LogsCancel,
            };
            while sender.send(ToServer::Request(request.clone())).is_ok() {}
            let end = receiver.receive().unwrap_err();
            assert!(matches!(end, StreamEnd::VersionMismatch(_)), "{end}");
        }
    }
}
