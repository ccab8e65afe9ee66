//! Both ends of real gRPC streams over loopback.
//!
//! Thread: the test's, plus those of the endpoint.

use super::*;
use crate::address::ServerUrl;
use crate::client::{
    ClientOptions, ClientReceiver, ClientSender, Hangup, Service, StreamEnd, channel_over, connect,
    connect_with,
};
use crate::convert::messages::{read_from_server, write_to_server};
use crate::grpc::Received;
use crate::hello::check_user;
use crate::limits::{AGENT_REQUEST_MAX, AGENT_TAGS_BYTES, FIRST_MESSAGE_MAX};
use crate::outbox::Outbox;
use crate::peer::PeerHello;
use crate::tls::PeerCertificate;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::limits::MESSAGE_MAX;
use ankaios_model::messages::{
    AgentHello, FromServer, LogsRequest, Request, RequestContent, Response, ResponseContent,
    ToServer, UpdateState,
};
use ankaios_model::names::InstanceName;
use ankaios_model::refusal::ErrorResponse;
use ankaios_model::version::VERSION;
use crossbeam_channel::{Receiver, bounded};
use futures_executor::block_on;
use futures_util::{SinkExt, StreamExt};
use grpcio::WriteFlags;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::AtomicBool;

/// Long enough for a machine that is busy with other tests.
const LIMIT: Duration = Duration::from_secs(180);

impl EndpointOptions {
    /// For one TCP address.
    pub(crate) fn tcp(address: SocketAddr, security: Security, message_max: usize) -> Self {
        Self {
            addresses: vec![ListenAddress::Tcp(address)],
            socket_mode: 0o660,
            security,
            message_max,
            commander_names: Vec::new(),
        }
    }
}

impl ServerEndpoint {
    /// The TCP address, of which there is one.
    pub(crate) fn address(&self) -> SocketAddr {
        match self.addresses() {
            [ListenAddress::Tcp(address)] => *address,
            other => panic!("{other:?}"),
        }
    }
}

/// An endpoint on a free port of the loopback interface, and its events.
pub(crate) fn start(
    security: Security,
    message_max: usize,
    keepalive: Keepalive,
    waiting_max: usize,
) -> (ServerEndpoint, Receiver<PeerEvent>) {
    let (inbox, events) = bounded(64);
    let options = EndpointOptions::tcp("127.0.0.1:0".parse().unwrap(), security, message_max);
    let watched = &mut WatchedThreads::new(|_| {});
    (
        ServerEndpoint::start_with(&options, inbox, watched, keepalive, waiting_max).unwrap(),
        events,
    )
}

fn endpoint(message_max: usize) -> (ServerEndpoint, Receiver<PeerEvent>) {
    start(
        Security::Insecure,
        message_max,
        Keepalive::default(),
        LARGE_MESSAGES,
    )
}

pub(crate) fn client(url: &str, security: Security, service: Service) -> ClientOptions {
    let url = ServerUrl::parse(url).unwrap();
    ClientOptions {
        url,
        security,
        service,
        connect_limit: LIMIT,
        message_max: MESSAGE_MAX,
    }
}

fn insecure(address: impl std::fmt::Display, service: Service) -> ClientOptions {
    client(&format!("http://{address}"), Security::Insecure, service)
}

fn dial(
    endpoint: &ServerEndpoint,
    service: Service,
    hello: ToServer,
) -> (ClientSender, ClientReceiver, Hangup) {
    connect(&insecure(endpoint.address(), service), hello).unwrap()
}

fn commander(version: &str) -> ToServer {
    ToServer::CommanderHello {
        version: version.to_owned(),
    }
}

fn agent(name: &str) -> ToServer {
    ToServer::AgentHello(AgentHello {
        agent: name.to_owned(),
        version: VERSION.to_owned(),
        ..AgentHello::default()
    })
}

fn opened(events: &Receiver<PeerEvent>) -> (PeerId, PeerHello, Outbox) {
    match events.recv_timeout(LIMIT).unwrap() {
        PeerEvent::Opened {
            peer,
            hello,
            outbox,
            ..
        } => (peer, hello, outbox),
        other => panic!("{other:?}"),
    }
}

fn message(events: &Receiver<PeerEvent>) -> (PeerId, ToServer) {
    match events.recv_timeout(LIMIT).unwrap() {
        PeerEvent::Message { peer, message, .. } => (peer, message),
        other => panic!("{other:.100?}"),
    }
}

fn closed(events: &Receiver<PeerEvent>) -> PeerId {
    match events.recv_timeout(LIMIT).unwrap() {
        PeerEvent::Closed { peer } => peer,
        other => panic!("{other:?}"),
    }
}

fn answer(bytes: usize) -> FromServer {
    FromServer::Response(Response {
        id: "id".into(),
        content: ResponseContent::Error("x".repeat(bytes).into()),
    })
}

#[test]
fn too_large_response_becomes_an_error_for_its_client() {
    let (endpoint, events) = endpoint(MESSAGE_MAX);
    let options = ClientOptions {
        message_max: 5_000_000,
        ..insecure(endpoint.address(), Service::Cli)
    };
    let (_sender, mut receiver, _hangup) = connect(&options, commander(VERSION)).unwrap();
    let (_, _, outbox) = opened(&events);
    outbox.put(answer(4_900_000)).unwrap();
    assert_eq!(receiver.receive(), Ok(answer(4_900_000)));
    outbox.put(answer(5_000_000)).unwrap();
    match receiver.receive() {
        Ok(FromServer::Response(Response {
            content: ResponseContent::Error(ErrorResponse { text, .. }),
            ..
        })) => {
            assert!(text.contains("takes at most 5000000"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    outbox.put(answer(1)).unwrap();
    assert_eq!(receiver.receive(), Ok(answer(1)));
}

#[test]
fn messages_travel_both_ways_and_goodbye_closes_in_order() {
    let (endpoint, events) = endpoint(MESSAGE_MAX);
    for (service, expected) in [
        (Service::Cli, PeerHello::Cli),
        (Service::Command, PeerHello::Commander),
    ] {
        let (mut sender, mut receiver, _hangup) = dial(&endpoint, service, commander(VERSION));
        let (peer, hello, outbox) = opened(&events);
        assert_eq!(hello, expected);
        let request = ToServer::Request(Request {
            id: "r".into(),
            content: RequestContent::EventsCancel,
        });
        sender.send(request.clone()).unwrap();
        assert_eq!(message(&events), (peer, request));
        // Larger than the 4 MiB that gRPC takes by default.
        outbox.put(answer(8 * 1024 * 1024)).unwrap();
        assert_eq!(receiver.receive(), Ok(answer(8 * 1024 * 1024)));
        drop(outbox);
        assert_eq!(receiver.receive(), Err(StreamEnd::Closed));
        assert_eq!(receiver.receive(), Err(StreamEnd::Closed));
        drop((sender, receiver));
        assert_eq!(closed(&events), peer);
    }
    endpoint.stop(LIMIT);
}

#[test]
fn what_is_still_in_the_outbox_arrives_before_the_end() {
    let (endpoint, events) = endpoint(MESSAGE_MAX);
    let (_sender, mut receiver, _hangup) = dial(&endpoint, Service::Cli, commander(VERSION));
    let (_, _, outbox) = opened(&events);
    for bytes in 0..100 {
        outbox.put(answer(bytes)).unwrap();
    }
    drop(outbox);
    for bytes in 0..100 {
        assert_eq!(receiver.receive(), Ok(answer(bytes)));
    }
    assert_eq!(receiver.receive(), Err(StreamEnd::Closed));
}

// [utest->swdd~server-check-agent-name~1]
#[test]
fn a_wrong_hello_is_refused_with_the_documented_status() {
    let (endpoint, events) = endpoint(MESSAGE_MAX);
    let refused = |code: &str, message: &str| StreamEnd::Refused {
        code: code.into(),
        message: message.into(),
    };
    let old = "Unsupported protocol version '2.0.0'. Currently supported '1'";
    for (service, hello, end) in [
        (
            Service::Agent,
            commander(VERSION),
            refused("INVALID_ARGUMENT", "No AgentHello received."),
        ),
        (
            Service::Cli,
            agent("A"),
            refused("INVALID_ARGUMENT", "No CommanderHello received."),
        ),
        (
            Service::Command,
            ToServer::Goodbye,
            refused("INVALID_ARGUMENT", "No CommanderHello received."),
        ),
        (
            Service::Agent,
            ToServer::Empty,
            refused("INVALID_ARGUMENT", "Empty"),
        ),
        (
            Service::Cli,
            commander("2.0.0"),
            StreamEnd::VersionMismatch(old.into()),
        ),
    ] {
        let (_sender, mut receiver, _hangup) = dial(&endpoint, service, hello.clone());
        assert_eq!(receiver.receive(), Err(end), "{service:?} {hello:?}");
    }
    for name in [
        "",
        "a.b",
        "a@b",
        "cli-conn-x",
        "commander-conn",
        &"a".repeat(64),
    ] {
        let (_sender, mut receiver, _hangup) = dial(&endpoint, Service::Agent, agent(name));
        let end = receiver.receive().unwrap_err();
        let StreamEnd::Refused { code, message } = end else {
            panic!("{name:?}: {end:?}")
        };
        assert_eq!(code, "INVALID_ARGUMENT", "{name:?}");
        let rule = if name.contains("-conn") {
            "It must not begin with 'cli-conn'"
        } else {
            "Only a-z, A-Z, 0-9 chars"
        };
        assert!(
            message.contains(&format!("'. {rule}")),
            "{name:?}: {message}"
        );
    }
    let long = BTreeMap::from([("key".to_owned(), "x".repeat(AGENT_TAGS_BYTES))]);
    let many: BTreeMap<String, String> = (1_000..2_000)
        .map(|key| (key.to_string(), String::new()))
        .collect();
    for (tags, bytes) in [(long, AGENT_TAGS_BYTES + 3 + 64), (many, 1_000 * (4 + 64))] {
        let hello = ToServer::AgentHello(AgentHello {
            agent: "A".to_owned(),
            version: VERSION.to_owned(),
            tags,
            ..AgentHello::default()
        });
        let (_sender, mut receiver, _hangup) = dial(&endpoint, Service::Agent, hello);
        let text = format!("The tags of agent 'A' take {bytes} bytes, at most 16384 are allowed.");
        assert_eq!(receiver.receive(), Err(refused("INVALID_ARGUMENT", &text)));
    }
    let hello = ToServer::AgentHello(AgentHello {
        agent: "A".to_owned(),
        version: format!("{VERSION}+{}", "x".repeat(256)),
        ..AgentHello::default()
    });
    let (_sender, mut receiver, _hangup) = dial(&endpoint, Service::Agent, hello);
    let bytes = VERSION.len() + 257;
    let text = format!("The version of agent 'A' has {bytes} bytes, at most 256 are allowed.");
    assert_eq!(receiver.receive(), Err(refused("INVALID_ARGUMENT", &text)));
    assert!(events.try_recv().is_err());
}

#[test]
fn message_of_too_many_parts_is_refused_with_a_response() {
    let (endpoint, events) = endpoint(MESSAGE_MAX);
    let (mut sender, _receiver, _hangup) = dial(&endpoint, Service::Command, commander(VERSION));
    let _opened = opened(&events);
    let instance = InstanceName::with_id("", "", "");
    let logs = LogsRequest {
        instances: vec![instance; 500_000],
        ..LogsRequest::default()
    };
    sender
        .send(ToServer::Request(Request {
            id: "dense".to_owned(),
            content: RequestContent::Logs(logs),
        }))
        .unwrap();
    let (_, ToServer::Request(request)) = message(&events) else {
        panic!("no request")
    };
    let RequestContent::UpdateState(UpdateState {
        new_state: Some(Err(reason)),
        ..
    }) = request.content
    else {
        panic!("{request:?}")
    };
    assert_eq!(request.id, "dense");
    assert!(reason.contains("bytes of memory"), "{reason}");
    sender.send(ToServer::Goodbye).unwrap();
    assert_eq!(message(&events).1, ToServer::Goodbye, "the stream goes on");
}

#[test]
fn states_larger_than_any_agent_sends_are_not_decoded() {
    let (endpoint, events) = endpoint(MESSAGE_MAX);
    let (mut sender, _receiver, _hangup) = dial(&endpoint, Service::Agent, agent("A"));
    let _opened = opened(&events);
    let state = |info: &str| {
        let state = ExecutionState::with_info(Phase::Running, info);
        WorkloadState::new(InstanceName::with_id("w", "id", "A"), state)
    };
    let many = |count: usize| ToServer::WorkloadStates(vec![state(&"x".repeat(8 * 1024)); count]);
    sender.send(many(600)).unwrap();
    sender.send(many(400)).unwrap();
    assert!(
        message(&events).1 == ToServer::Empty,
        "states of unusual size are not decoded"
    );
    assert!(
        matches!(message(&events).1, ToServer::WorkloadStates(_)),
        "states of usual size arrive"
    );
}

#[test]
fn streams_are_counted_by_certificate_address_or_user() {
    let address = |port| std::net::SocketAddr::from(([10, 0, 0, 1], port));
    let tls = |name: &str, port| {
        let certificate = PeerCertificate {
            count: 1,
            expires: 0,
            dns_names: vec![name.to_owned()],
        };
        PeerOrigin::Tls(address(port), certificate).holder()
    };
    assert_eq!(tls("front", 1), tls("front", 2));
    assert_ne!(tls("front", 1), tls("ank", 1));
    assert_eq!(
        PeerOrigin::Plain(address(1)).holder(),
        PeerOrigin::Plain(address(2)).holder()
    );
    assert_eq!(
        PeerOrigin::Tls(address(1), PeerCertificate::default()).holder(),
        "10.0.0.1"
    );
}

#[test]
fn one_address_cannot_take_the_streams_of_all() {
    let (endpoint, events) = endpoint(MESSAGE_MAX);
    let open: Vec<_> = (0..STREAMS_OF_HOLDER)
        .map(|_| {
            (
                dial(&endpoint, Service::Command, commander(VERSION)),
                opened(&events),
            )
        })
        .collect();
    let (_sender, mut receiver, _hangup) = dial(&endpoint, Service::Command, commander(VERSION));
    let end = receiver.receive().unwrap_err();
    assert!(
        matches!(&end, StreamEnd::Refused { code, .. } if code == "RESOURCE_EXHAUSTED"),
        "{end:?}"
    );
    drop(open);
    let again = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        let (_sender, _receiver, _hangup) = dial(&endpoint, Service::Command, commander(VERSION));
        std::iter::from_fn(|| events.recv_timeout(Duration::from_millis(200)).ok())
            .any(|event| matches!(event, PeerEvent::Opened { .. }))
    });
    assert!(again, "the places of streams that have ended are free");
}

#[test]
fn too_large_request_is_refused_and_the_stream_continues() {
    let (endpoint, events) = endpoint(MESSAGE_MAX);
    let large = |id: &str| {
        let masks = vec!["x".repeat(AGENT_REQUEST_MAX)];
        let content = RequestContent::UpdateState(UpdateState {
            new_state: None,
            masks,
            ..Default::default()
        });
        ToServer::Request(Request {
            id: id.to_owned(),
            content,
        })
    };
    let (mut of_agent, _receiver, _hangup) = dial(&endpoint, Service::Agent, agent("A"));
    let _opened = opened(&events);
    of_agent.send(large("w@1")).unwrap();
    let (_, ToServer::Request(Request { id, content })) = message(&events) else {
        panic!("no request")
    };
    let RequestContent::UpdateState(UpdateState {
        new_state: Some(Err(reason)),
        ..
    }) = content
    else {
        panic!()
    };
    assert!(id == "w@1" && reason.contains("bytes"), "{id} {reason}");
    of_agent.send(ToServer::Goodbye).unwrap();
    assert_eq!(message(&events).1, ToServer::Goodbye);
    // Commanders have no such bound.
    let (mut of_commander, _receiver, _hangup) = dial(&endpoint, Service::Cli, commander(VERSION));
    let _opened = opened(&events);
    of_commander.send(large("1")).unwrap();
    assert!(
        message(&events).1 == large("1"),
        "the request changed on its way"
    );
}

#[test]
fn large_first_message_ends_the_connection_unreceived() {
    let (endpoint, events) = endpoint(MESSAGE_MAX);
    let tags = BTreeMap::from([("a".to_owned(), "x".repeat(2 * FIRST_MESSAGE_MAX))]);
    let hello = ToServer::AgentHello(AgentHello {
        agent: "A".to_owned(),
        version: VERSION.to_owned(),
        tags,
        ..AgentHello::default()
    });
    let (_sender, mut receiver, _hangup) = dial(&endpoint, Service::Agent, hello);
    assert!(receiver.receive().is_err());
    assert!(events.try_recv().is_err());
}

#[test]
fn every_end_of_a_stream_is_reported_once() {
    let (endpoint, events) = endpoint(MESSAGE_MAX);
    for way in ["half-close", "hang up", "drop"] {
        let (sender, receiver, hangup) = dial(&endpoint, Service::Agent, agent("agent_A"));
        let (peer, _, outbox) = opened(&events);
        match way {
            "half-close" => sender.finish(),
            "hang up" => hangup.hang_up(),
            _ => drop((sender, receiver)),
        }
        assert_eq!(closed(&events), peer, "{way}");
        drop(outbox);
    }
}

// [utest->swdd~server-supports-multiple-clients~1]
#[test]
fn garbage_and_oversize_messages_end_only_their_own_stream() {
    let (endpoint, events) = endpoint(64 * 1024);
    let (mut witness, _receiver, _hangup) = dial(&endpoint, Service::Cli, commander(VERSION));
    let (witness_id, _, _outbox) = opened(&events);
    let mut garbage = TcpStream::connect(endpoint.address()).unwrap();
    garbage.write_all(&[0xff; 4096]).unwrap();
    let (mut large, mut receiver, _hangup) = dial(&endpoint, Service::Cli, commander(VERSION));
    let (large_id, _, _outbox) = opened(&events);
    let id = "x".repeat(100 * 1024);
    let _ = large.send(ToServer::Request(Request {
        id,
        content: RequestContent::LogsCancel,
    }));
    assert_eq!(closed(&events), large_id);
    assert!(receiver.receive().is_err());
    witness.send(ToServer::Goodbye).unwrap();
    assert_eq!(message(&events), (witness_id, ToServer::Goodbye));
}

/// Passes bytes on between one client and `server` until the flag is set: then it takes everything
/// and passes nothing on, like a host that has vanished behind a switch. Ends are not
/// passed on either.
fn wire_to(server: SocketAddr) -> (SocketAddr, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let silent = Arc::new(AtomicBool::new(false));
    let told = silent.clone();
    std::thread::spawn(move || {
        let ends = [
            listener.accept().unwrap().0,
            TcpStream::connect(server).unwrap(),
        ];
        for (from, to) in [(0, 1), (1, 0)] {
            let (mut from, mut to) = (
                ends[from].try_clone().unwrap(),
                ends[to].try_clone().unwrap(),
            );
            let silent = told.clone();
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(bytes @ 1..) = from.read(&mut buffer) {
                    if !silent.load(Ordering::SeqCst) && to.write_all(&buffer[..bytes]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, silent)
}

#[test]
fn vanished_peer_is_noticed_by_either_side() {
    let promised = Keepalive::default();
    let bound = promised.interval + promised.timeout;
    assert!(
        bound <= Duration::from_secs(30)
            && crate::limits::TCP_USER_TIMEOUT <= Duration::from_secs(30)
    );
    // The settings have an effect: only the short ones end within this test. A machine without time
    // for a response within seconds would lose a peer that is there.
    let short = Keepalive {
        interval: Duration::from_secs(1),
        timeout: Duration::from_secs(5),
    };
    let never = Keepalive {
        interval: 10 * LIMIT,
        timeout: 10 * LIMIT,
    };
    for (server_side, client_side) in [(short, never), (never, short)] {
        let server_notices = server_side.interval < client_side.interval;
        let (endpoint, events) = start(Security::Insecure, MESSAGE_MAX, server_side, MESSAGE_MAX);
        let (address, silent) = wire_to(endpoint.address());
        let options = insecure(address, Service::Agent);
        let (_sender, mut receiver, _hangup) =
            connect_with(&options, agent("A"), client_side).unwrap();
        let (peer, _, outbox) = opened(&events);
        outbox.put(answer(1)).unwrap();
        assert_eq!(receiver.receive(), Ok(answer(1)));
        silent.store(true, Ordering::SeqCst);
        if server_notices {
            let event = events.recv_timeout(LIMIT).unwrap();
            assert!(
                matches!(event, PeerEvent::Closed { peer: gone } if gone == peer),
                "{event:?}"
            );
        } else {
            let (ended, end) = bounded(1);
            std::thread::spawn(move || ended.send(receiver.receive()).unwrap());
            assert!(end.recv_timeout(LIMIT).unwrap().is_err());
        }
    }
}

#[test]
fn sender_of_a_lost_connection_returns_the_end_each_time() {
    // A peer that never reads: a message that is larger than all buffers stays half sent.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = insecure(mute.local_addr().unwrap(), Service::Agent);
    let large = || {
        ToServer::Request(Request {
            id: "x".repeat(1 << 20),
            content: RequestContent::LogsCancel,
        })
    };
    for finishes in [false, true] {
        let (mut sender, _receiver, hangup) = connect(&options, agent("A")).unwrap();
        sender.start_send(large()).unwrap();
        hangup.hang_up();
        let mut ready = || block_on(std::future::poll_fn(|context| sender.poll_ready(context)));
        let lost = ready();
        assert!(lost.is_err());
        assert_eq!(ready(), lost);
        if finishes {
            sender.finish();
        } else {
            assert_eq!(
                [sender.start_send(large()), sender.send(large())],
                [lost.clone(), lost]
            );
        }
    }
}

#[test]
fn pending_large_messages_are_bounded_and_small_ones_pass() {
    const LARGE: usize = 100 * 1024;
    let (endpoint, events) = start(
        Security::Insecure,
        MESSAGE_MAX,
        Keepalive::default(),
        3 * LARGE,
    );
    let (mut flood, _flood_receiver, _hangup) = dial(&endpoint, Service::Cli, commander(VERSION));
    let (flooding, _, _flood_outbox) = opened(&events);
    let (mut witness, _receiver, _hangup) = dial(&endpoint, Service::Cli, commander(VERSION));
    let (witnessing, _, _outbox) = opened(&events);
    let sender = std::thread::spawn(move || {
        for _ in 0..20 {
            let request = Request {
                id: "x".repeat(LARGE),
                content: RequestContent::LogsCancel,
            };
            flood.send(ToServer::Request(request)).unwrap();
        }
        flood
    });
    let next = || match events.recv_timeout(LIMIT).unwrap() {
        PeerEvent::Message { peer, permits, .. } => (peer, permits),
        other => panic!("{other:?}"),
    };
    // The permit is held as long as this one is not handled, so the next one is not decoded.
    let held = next();
    assert_eq!(held.0, flooding);
    for _ in 0..100 {
        witness.send(ToServer::Goodbye).unwrap();
        assert_eq!(next().0, witnessing);
    }
    drop(held);
    for _ in 1..20 {
        assert_eq!(next().0, flooding);
    }
    sender.join().unwrap();
}

/// A stream as programs of Eclipse Ankaios open it.
fn dial_as_tonic(
    endpoint: &ServerEndpoint,
    service: Service,
) -> (
    grpcio::Client,
    grpcio::ClientDuplexSender<Vec<u8>>,
    grpcio::ClientDuplexReceiver<Received>,
) {
    let builder = grpcio::ChannelBuilder::new(grpc::environment()).primary_user_agent("tonic/0.12");
    let socket = TcpStream::connect(endpoint.address()).unwrap();
    grpc::set_tcp_options(&socket).unwrap();
    socket.set_nonblocking(true).unwrap();
    let client = grpcio::Client::new(channel_over(builder, socket.into()));
    let (sink, stream) = client
        .duplex_streaming(&grpc::called(service), grpcio::CallOption::default())
        .unwrap();
    (client, sink, stream)
}

#[test]
fn a_client_that_waits_for_the_headers_before_it_asks_gets_them() {
    for service in [Service::Cli, Service::Command] {
        let (endpoint, events) = endpoint(MESSAGE_MAX);
        let (_client, mut sink, mut stream) = dial_as_tonic(&endpoint, service);
        block_on(sink.send((write_to_server(&commander(VERSION)), WriteFlags::default()))).unwrap();
        let first = wait_at_most(stream.next(), LIMIT)
            .expect("headers come before any request")
            .unwrap()
            .unwrap();
        let first = read_from_server(first.unpack(MESSAGE_MAX).ok().unwrap());
        assert_eq!(first.unwrap(), FromServer::WorkloadStates(vec![]));
        let (_, _, outbox) = opened(&events);
        outbox.put(answer(1)).unwrap();
        let next = wait_at_most(stream.next(), LIMIT)
            .unwrap()
            .unwrap()
            .unwrap();
        assert_eq!(
            read_from_server(next.unpack(MESSAGE_MAX).ok().unwrap()).unwrap(),
            answer(1)
        );
        endpoint.stop(LIMIT);
    }
}

#[test]
fn the_end_of_a_report_is_believed_of_our_own_agents() {
    let (endpoint, events) = endpoint(MESSAGE_MAX);
    let (mut sender, _receiver, _hangup) = dial(&endpoint, Service::Agent, agent("A"));
    let _opened = opened(&events);
    sender.send(ToServer::StatesComplete).unwrap();
    assert_eq!(message(&events).1, ToServer::StatesComplete);
    // Programs of other implementations, which have another name, mean nothing by it.
    let (_client, mut sink, _stream) = dial_as_tonic(&endpoint, Service::Agent);
    for sent in [agent("B"), ToServer::StatesComplete] {
        block_on(sink.send((write_to_server(&sent), WriteFlags::default()))).unwrap();
    }
    let _opened = opened(&events);
    assert_eq!(message(&events).1, ToServer::WorkloadStates(vec![]));
}

#[test]
fn stopping_ends_all_streams_and_frees_the_address() {
    let (endpoint, events) = endpoint(MESSAGE_MAX);
    let (_sender, mut receiver, _hangup) = dial(&endpoint, Service::Cli, commander(VERSION));
    let (_, _, _outbox) = opened(&events);
    let address = endpoint.address();
    let again = EndpointOptions::tcp(address, Security::Insecure, MESSAGE_MAX);
    let (inbox, _events) = bounded(1);
    assert!(matches!(
        ServerEndpoint::start(&again, inbox.clone(), &mut WatchedThreads::new(|_| {})),
        Err(EndpointError::Bind { .. })
    ));
    endpoint.stop(LIMIT);
    assert!(receiver.receive().is_err());
    ServerEndpoint::start(&again, inbox, &mut WatchedThreads::new(|_| {}))
        .unwrap()
        .stop(LIMIT);
}

#[test]
fn a_peer_that_cannot_be_reached_is_named() {
    let unused = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let error = |address: &str| {
        connect(&insecure(address, Service::Cli), commander(VERSION))
            .err()
            .unwrap()
            .to_string()
    };
    assert_eq!(
        error(&unused),
        format!("no connection to 'http://{unused}'")
    );
    assert_eq!(
        error("no such host:1"),
        "cannot resolve host 'no such host'"
    );
}

#[test]
fn socket_and_port_are_open_together_until_the_server_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made/ank.sock");
    let (inbox, events) = bounded(64);
    let options = EndpointOptions {
        addresses: vec![
            "127.0.0.1:0".parse().unwrap(),
            ListenAddress::Socket(path.clone()),
        ],
        socket_mode: 0o660,
        security: Security::Insecure,
        message_max: MESSAGE_MAX,
        commander_names: Vec::new(),
    };
    let endpoint =
        ServerEndpoint::start(&options, inbox, &mut WatchedThreads::new(|_| {})).unwrap();
    let [ListenAddress::Tcp(port), socket] = endpoint.addresses() else {
        panic!("{:?}", endpoint.addresses())
    };
    for url in [format!("http://{port}"), socket.to_string()] {
        let options = client(&url, Security::Insecure, Service::Agent);
        let (mut sender, mut receiver, _hangup) = connect(&options, agent("A")).unwrap();
        let (peer, hello, outbox) = opened(&events);
        assert_eq!(
            hello,
            PeerHello::Agent(AgentHello {
                agent: "A".into(),
                version: VERSION.to_owned(),
                ..AgentHello::default()
            }),
            "{url}"
        );
        sender.send(ToServer::Goodbye).unwrap();
        assert_eq!(message(&events), (peer, ToServer::Goodbye));
        // Larger than what a socket holds.
        outbox.put(answer(3_000_000)).unwrap();
        assert_eq!(receiver.receive(), Ok(answer(3_000_000)), "{url}");
        drop((sender, receiver, outbox));
        assert_eq!(closed(&events), peer);
    }
    endpoint.stop(LIMIT);
    assert!(!path.exists());
}

#[test]
fn socket_accepts_agents_of_root_and_of_its_own_user() {
    let own = rustix::process::geteuid().as_raw();
    let agent = PeerHello::Agent(AgentHello {
        agent: "A".into(),
        version: VERSION.to_owned(),
        ..AgentHello::default()
    });
    let from = |uid| PeerOrigin::Socket(std::path::Path::new("/run/ank.sock").into(), uid);
    let stranger = own + 1;
    for uid in [0, own] {
        assert!(check_user(&agent, &from(uid), &[]).is_ok(), "{uid}");
    }
    for commander in [PeerHello::Cli, PeerHello::Commander] {
        assert!(
            check_user(&commander, &from(stranger), &[]).is_ok(),
            "the permissions of the file decide"
        );
    }
    let refused = check_user(&agent, &from(stranger), &[]).unwrap_err();
    assert_eq!(refused.code(), RpcStatusCode::PERMISSION_DENIED);
    assert!(refused.message().ends_with(&format!(
        "(uid {own}) may run an agent, not uid {stranger}."
    )));
    assert!(
        check_user(
            &agent,
            &PeerOrigin::Plain("127.0.0.1:1".parse().unwrap()),
            &[]
        )
        .is_ok()
    );
}
