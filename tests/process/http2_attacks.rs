//! Clients that break the rules of HTTP/2, or stretch them, as published attacks on gRPC do. Beside
//! each, an agent stays connected, and commanders are served on an old and on new connections.
//! SECURITY.md names the test of each known weakness.
//!
//! Thread: the test's, and one for each attacker. Owns: one cluster with the fake engine per test.

#![allow(clippy::print_stderr)] // What was measured is of interest also when it is good enough.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::flood::{MemoryPeak, SERVER_MAX_KIB, assert_never_disconnected};
use crate::support::process::thread_names;
use crate::support::{Cluster, LIMIT, connection, poll, workload};
use ankaios_lite::model::messages::FromServer;
use ankaios_lite::wire::client::{ClientReceiver, ClientSender, Service};

/// Attackers at the same time.
const ATTACKERS: usize = 4;
/// Rounds of the attackers together before a test may end.
const ROUNDS: usize = 2_000;
/// Connections that stay open and read nothing: as many as a server keeps without a hello, except
/// some for honest clients.
const SILENT: usize = 100;
/// Responses to honest clients while these send. A server without bounds exceeds the limit of its
/// memory in a tenth of that.
const SILENT_RESPONSES: usize = 100;
/// Connections with headers that do not end. Without a bound each takes 16 MiB.
const UNFINISHED: usize = 20;
/// Limit of the server's own memory meanwhile.
const SILENT_MAX_KIB: u64 = 40 * 1024;
/// The same while clients send headers that unpack to much. A server that does not bound them has
/// ten times as much.
const UNPACKED_MAX_KIB: u64 = 16 * 1024;
/// Responses to honest clients on each kind of connection before a test may end.
const RESPONSES: usize = 10;
/// Calls that the server lets one connection have at a time.
const CALLS_OF_CONNECTION: usize = 16;
/// Threads that the server may have: its own, those of gRPC, one for each honest client, and those
/// of the calls of each attacker.
const THREADS_MAX: usize = 32 + CALLS_OF_CONNECTION * ATTACKERS;
/// An attacker whose bytes are not taken for this long connects again.
const STALLED: Duration = Duration::from_millis(200);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
/// First index of the dynamic table of HPACK.
const DYNAMIC: u8 = 62;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame");
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A string of HPACK, not compressed.
fn string(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    if text.len() < 0x7f {
        bytes.push(u8::try_from(text.len()).expect("compared"));
    } else {
        bytes.push(0x7f);
        let mut rest = text.len() - 0x7f;
        while rest >= 0x80 {
            bytes.push(0x80 | u8::try_from(rest & 0x7f).expect("seven bits"));
            rest >>= 7;
        }
        bytes.push(u8::try_from(rest).expect("compared"));
    }
    bytes.extend(text);
    bytes
}

/// A header that the table of HPACK does not keep.
fn header(name: &str, value: &[u8]) -> Vec<u8> {
    [vec![0x00], string(name.as_bytes()), string(value)].concat()
}

/// A header that the table of HPACK keeps.
fn kept_header(name: &str, value: &[u8]) -> Vec<u8> {
    [vec![0x40], string(name.as_bytes()), string(value)].concat()
}

/// The headers of a call that the server serves.
fn call() -> Vec<u8> {
    let path = "/grpc_api.CommandConnection/ConnectCommand";
    [
        vec![0x83, 0x86], // POST, http
        header(":path", path.as_bytes()),
        header(":authority", b"localhost"),
        header("te", b"trailers"),
        header("content-type", b"application/grpc"),
    ]
    .concat()
}

/// Numbers of streams of a client are odd.
fn stream(round: usize) -> u32 {
    u32::try_from(2 * round + 1).expect("few rounds")
}

/// A client after its preface.
struct Client {
    socket: TcpStream,
}

impl Client {
    fn connect(address: &str) -> std::io::Result<Self> {
        let mut socket = TcpStream::connect(address)?;
        socket.set_write_timeout(Some(LIMIT))?;
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")?;
        socket.write_all(&frame(SETTINGS, 0, 0, &[]))?;
        Ok(Self { socket })
    }

    /// Whether the server took the bytes.
    fn send(&mut self, bytes: &[u8]) -> bool {
        self.socket.write_all(bytes).is_ok()
    }

    /// Discards what the server has sent.
    fn discard(&mut self) {
        self.socket.set_nonblocking(true).expect("own socket");
        let mut buffer = [0; 16 * 1024];
        while matches!(self.socket.read(&mut buffer), Ok(1..)) {}
        self.socket.set_nonblocking(false).expect("own socket");
    }

    /// Whether the server answers a ping: it has read all before, and keeps the connection.
    fn is_served(&mut self) -> bool {
        const OPAQUE: &[u8; 8] = b"ankaios!";
        if !self.send(&frame(PING, 0, 0, OPAQUE)) {
            return false;
        }
        let expected = frame(PING, ACK, 0, OPAQUE);
        let mut received = Vec::new();
        let mut buffer = [0; 16 * 1024];
        self.socket
            .set_read_timeout(Some(LIMIT))
            .expect("own socket");
        loop {
            match self.socket.read(&mut buffer) {
                Ok(count @ 1..) => received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => return false,
            }
            if received
                .windows(expected.len())
                .any(|part| part == expected)
            {
                return true;
            }
        }
    }
}

/// The frames that attackers send in one round of a connection, from the number of earlier rounds.
type Frames = fn(usize) -> Vec<u8>;

/// What attackers have done.
#[derive(Default)]
struct Progress {
    rounds: AtomicUsize,
    connections: AtomicUsize,
}

/// Repeats `frames` until `stop`, and connects again when the server ends the connection or reads
/// no more of it.
fn attack(address: &str, frames: Frames, reads: bool, stop: &AtomicBool, progress: &Progress) {
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut client) = Client::connect(address) else {
            continue;
        };
        let write_timeout = client.socket.set_write_timeout(Some(STALLED));
        write_timeout.expect("own socket");
        progress.connections.fetch_add(1, Ordering::Relaxed);
        let mut round = 0;
        while !stop.load(Ordering::Relaxed) && client.send(&frames(round)) {
            round += 1;
            progress.rounds.fetch_add(1, Ordering::Relaxed);
            if reads {
                client.discard();
            }
        }
    }
}

/// A commander whose connection is older than the attack.
struct Honest {
    sender: ClientSender,
    receiver: ClientReceiver,
    _hangup: ankaios_lite::wire::client::Hangup,
}

impl Honest {
    fn connect(cluster: &Cluster) -> Self {
        let (sender, receiver, hangup) = connection::commander(&cluster.url(), Service::Command);
        Self {
            sender,
            receiver,
            _hangup: hangup,
        }
    }

    fn reads_the_state(&mut self) {
        let content = crate::support::control_client::read(&[], false);
        connection::request(&mut self.sender, "honest", content);
        let response = self.receiver.receive().expect("the stream stays open");
        assert!(matches!(response, FromServer::Response(_)), "{response:?}");
    }
}

/// Runs the attack, with attackers that read what the server sends or do not, while honest clients
/// are served. Returns the peak of the server's own memory in KiB.
fn assert_others_are_served_during(frames: Frames, reads: bool) -> u64 {
    let mut cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("before", "run")]);
    let mut honest = Honest::connect(&cluster);
    let server = cluster.server().pid();
    let memory = MemoryPeak::of(server);
    let stop = Arc::new(AtomicBool::new(false));
    let progress = Arc::new(Progress::default());
    let attackers: Vec<_> = (0..ATTACKERS)
        .map(|_| {
            let (address, stop, progress) = (cluster.address(), stop.clone(), progress.clone());
            std::thread::spawn(move || attack(&address, frames, reads, &stop, &progress))
        })
        .collect();
    let mut responses = 0;
    let mut threads = 0;
    let came_to_its_end = poll(LIMIT, || {
        honest.reads_the_state();
        let output = cluster.ank(&["get", "agents"]);
        assert_eq!(output.code, 0, "{}", output.stderr);
        responses += 1;
        threads = threads.max(thread_names(server).len());
        let rounds = progress.rounds.load(Ordering::Relaxed);
        (rounds >= ROUNDS && responses >= RESPONSES).then_some(())
    });
    cluster.run(&[workload("meanwhile", "run")]);
    stop.store(true, Ordering::Relaxed);
    for attacker in attackers {
        attacker.join().expect("it only sends");
    }
    let memory = memory.kib();
    let measured = format!(
        "{} rounds on {} connections, {responses} responses; server {memory} KiB, {threads} threads",
        progress.rounds.load(Ordering::Relaxed),
        progress.connections.load(Ordering::Relaxed),
    );
    eprintln!("{measured}");
    assert!(came_to_its_end.is_some(), "{measured}");
    assert!(memory < SERVER_MAX_KIB, "{measured}");
    assert!(threads < THREADS_MAX, "{measured}");
    assert!(cluster.server().is_running());
    assert_never_disconnected(&cluster, "agent_A");
    memory
}

/// Many connections stay open, send `bytes` without end and read nothing, while honest clients are
/// served.
fn assert_silent_clients_cost_no_memory(bytes: &[u8]) {
    let mut cluster = Cluster::start(&["agent_A"]);
    let mut honest = Honest::connect(&cluster);
    let memory = MemoryPeak::of(cluster.server().pid());
    let block = bytes.repeat(64 * 1024 / bytes.len());
    let mut clients: Vec<Client> = (0..SILENT)
        .map(|_| {
            let client = Client::connect(&cluster.address()).expect("the server listens");
            client.socket.set_nonblocking(true).expect("own socket");
            client
        })
        .collect();
    // How many bytes of the block were sent last.
    let mut sent = [0; SILENT];
    let mut total = 0;
    for _ in 0..SILENT_RESPONSES {
        for (client, sent) in clients.iter_mut().zip(&mut sent) {
            // Until the server takes no more for now.
            while let Ok(count) = client.socket.write(&block[*sent..]) {
                total += count;
                *sent = (*sent + count) % block.len();
            }
        }
        honest.reads_the_state();
    }
    let memory = memory.kib();
    let measured = format!("{total} bytes; server {memory} KiB");
    eprintln!("{measured}");
    assert!(memory < SILENT_MAX_KIB, "{measured}");
    assert_never_disconnected(&cluster, "agent_A");
}

// ------------------------------------------------------------------ streams

#[test]
fn calls_reset_at_once_delay_nobody() {
    fn begun_and_reset(round: usize) -> Vec<u8> {
        let stream = stream(round);
        [
            frame(HEADERS, END_HEADERS, stream, &call()),
            frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]),
        ]
        .concat()
    }
    assert_others_are_served_during(begun_and_reset, true);
}

/// The client makes the server reset the stream, so that it does not count as the client's reset.
#[test]
fn calls_that_the_server_has_to_reset_delay_nobody() {
    fn begun_and_wrong(round: usize) -> Vec<u8> {
        let stream = stream(round);
        [
            frame(HEADERS, END_HEADERS, stream, &call()),
            frame(WINDOW_UPDATE, 0, stream, &[0; 4]),
            frame(PRIORITY, 0, stream, &[0; 4]),
        ]
        .concat()
    }
    assert_others_are_served_during(begun_and_wrong, true);
}

#[test]
fn empty_data_frames_delay_nobody() {
    fn empty(round: usize) -> Vec<u8> {
        match round {
            0 => frame(HEADERS, END_HEADERS, 1, &call()),
            _ => frame(DATA, 0, 1, &[]).repeat(100),
        }
    }
    assert_others_are_served_during(empty, true);
}

// ------------------------------------------------------------------ headers

#[test]
fn header_of_four_gigabytes_costs_no_memory() {
    fn announced(round: usize) -> Vec<u8> {
        match round {
            0 => {
                let string_of_4_gib = [0x00, 0x7f, 0x80, 0xff, 0xff, 0xff, 0x0f];
                frame(HEADERS, 0, 1, &string_of_4_gib)
            }
            _ => frame(CONTINUATION, 0, 1, &[b'a'; 16 * 1024]),
        }
    }
    assert_others_are_served_during(announced, true);
}

#[test]
fn number_with_endless_padding_delays_nobody() {
    fn padded(round: usize) -> Vec<u8> {
        match round {
            0 => frame(HEADERS, 0, 1, &[0x00, 0x7f]),
            _ => frame(CONTINUATION, 0, 1, &[0x80; 16 * 1024]),
        }
    }
    assert_others_are_served_during(padded, true);
}

#[test]
fn headers_without_an_end_delay_nobody() {
    fn endless(round: usize) -> Vec<u8> {
        match round {
            0 => frame(HEADERS, 0, 1, &call()),
            _ => frame(CONTINUATION, 0, 1, &header("x-more", b"a")).repeat(10),
        }
    }
    assert_others_are_served_during(endless, true);
}

#[test]
fn empty_continuations_without_an_end_delay_nobody() {
    fn endless(round: usize) -> Vec<u8> {
        match round {
            0 => frame(HEADERS, 0, 1, &call()),
            _ => frame(CONTINUATION, 0, 1, &[]).repeat(100),
        }
    }
    assert_others_are_served_during(endless, true);
}

/// One byte in a frame stands for a header of 4 KB. gRPC copies its name, not its value.
#[test]
fn headers_that_unpack_to_megabytes_cost_no_memory() {
    fn bomb(round: usize) -> Vec<u8> {
        let block = match round {
            0 => [call(), kept_header(&"x".repeat(3_900), b"")].concat(),
            _ => [call(), vec![0x80 | DYNAMIC; 12 * 1024]].concat(),
        };
        frame(HEADERS, END_HEADERS, stream(round), &block)
    }
    let memory = assert_others_are_served_during(bomb, true);
    assert!(memory < UNPACKED_MAX_KIB, "server {memory} KiB");
}

/// Headers whose end does not come stay in memory, unpacked.
#[test]
fn unfinished_headers_of_many_clients_cost_no_memory() {
    let mut cluster = Cluster::start(&["agent_A"]);
    let mut honest = Honest::connect(&cluster);
    let memory = MemoryPeak::of(cluster.server().pid());
    let long_name = "x".repeat(3_900);
    let block = [
        call(),
        kept_header(&long_name, b""),
        vec![0x80 | DYNAMIC; 4_000],
    ]
    .concat();
    let mut clients = Vec::new();
    for _ in 0..UNFINISHED {
        let mut client = Client::connect(&cluster.address()).expect("the server listens");
        assert!(client.send(&frame(HEADERS, 0, 1, &block)));
        clients.push(client);
    }
    honest.reads_the_state();
    for (number, client) in clients.iter_mut().enumerate() {
        // A ping is answered behind the end of headers only, and then all of them were read.
        assert!(client.send(&frame(CONTINUATION, END_HEADERS, 1, &[])));
        assert!(client.is_served(), "client {number}");
    }
    honest.reads_the_state();
    let memory = memory.kib();
    eprintln!("server {memory} KiB");
    assert!(memory < UNPACKED_MAX_KIB, "server {memory} KiB");
    assert_never_disconnected(&cluster, "agent_A");
}

/// A hostile client acknowledges no settings, of which the number of its calls is one.
#[test]
fn calls_beyond_the_limit_end_a_connection() {
    let cluster = Cluster::start(&["agent_A"]);
    let mut client = Client::connect(&cluster.address()).expect("the server listens");
    let mut calls = 0;
    // The server ends calls that say nothing, so further ones may come on a slow machine.
    while calls < 10 * CALLS_OF_CONNECTION {
        let begun = frame(HEADERS, END_HEADERS, stream(calls), &call());
        if !client.send(&begun) || !client.is_served() {
            break;
        }
        calls += 1;
    }
    assert!(calls >= CALLS_OF_CONNECTION, "{calls} calls");
    assert!(calls < 10 * CALLS_OF_CONNECTION, "the connection is served");
}

/// Clients of one proxy share a connection, so a call of one must not end those of others.
#[test]
fn call_with_a_wrong_binary_header_ends_only_itself() {
    let cluster = Cluster::start(&["agent_A"]);
    let mut client = Client::connect(&cluster.address()).expect("the server listens");
    for round in 0..3 {
        let block = [call(), header("x-bin", b"%%%")].concat();
        assert!(client.send(&frame(HEADERS, END_HEADERS, stream(round), &block)));
        assert!(client.is_served(), "after {round} calls");
    }
}

/// The headers after one that is too large belong to the table of HPACK anyway.
#[test]
fn call_with_too_many_headers_keeps_the_table_of_its_connection() {
    let cluster = Cluster::start(&["agent_A"]);
    let mut client = Client::connect(&cluster.address()).expect("the server listens");
    let large = header("x-large", &[b'a'; 9_000]);
    let first = [call(), large.clone()].concat();
    let rest = [large, kept_header("x-kept", b"1")].concat();
    assert!(client.send(&frame(HEADERS, 0, 1, &first)));
    assert!(client.send(&frame(CONTINUATION, END_HEADERS, 1, &rest)));
    let indexed = [call(), vec![0x80 | DYNAMIC]].concat();
    assert!(client.send(&frame(HEADERS, END_HEADERS, 3, &indexed)));
    assert!(client.is_served(), "the table has the entry");
    let missing = [call(), vec![0x80 | (DYNAMIC + 1)]].concat();
    assert!(client.send(&frame(HEADERS, END_HEADERS, 5, &missing)));
    assert!(!client.is_served(), "the table has one entry only");
}

/// An entry behind a wrong header is wrong as well for the connection that sent both, and for no
/// other one.
#[test]
fn poisoned_table_of_one_connection_spoils_no_other() {
    fn poisoned(round: usize) -> Vec<u8> {
        let block = match round {
            0 => [
                call(),
                header("x-bin", b"%%%"),
                kept_header("user-agent", b"grpc"),
                kept_header("te", b"trailers"),
            ]
            .concat(),
            _ => [call(), vec![0x80 | DYNAMIC, 0x80 | (DYNAMIC + 1)]].concat(),
        };
        frame(HEADERS, END_HEADERS, stream(round), &block)
    }
    assert_others_are_served_during(poisoned, true);
}

// ------------------------------------------------------------------ messages

/// Sixty megabytes of zeros, in less than what a stream may send before the server takes some of it.
#[test]
fn compressed_message_is_refused_before_it_grows() {
    let mut cluster = Cluster::start(&["agent_A"]);
    let zeros = cluster.folder().join("zeros");
    File::create(&zeros)
        .and_then(|file| file.set_len(60_000_000))
        .expect("own folder is writable");
    let packed = Command::new("gzip")
        .args(["-9", "-c"])
        .arg(&zeros)
        .output()
        .expect("gzip is installed");
    assert!(packed.status.success());
    let is_compressed = 1;
    let length = u32::try_from(packed.stdout.len()).expect("a short message");
    let message = [
        vec![is_compressed],
        length.to_be_bytes().to_vec(),
        packed.stdout,
    ]
    .concat();
    let block = [call(), header("grpc-encoding", b"gzip")].concat();
    let memory = MemoryPeak::of(cluster.server().pid());
    for _ in 0..3 {
        let mut client = Client::connect(&cluster.address()).expect("the server listens");
        assert!(client.send(&frame(HEADERS, END_HEADERS, 1, &block)));
        for part in message.chunks(16 * 1024) {
            assert!(client.send(&frame(DATA, 0, 1, part)));
        }
        assert!(client.is_served());
    }
    let memory = memory.kib();
    assert!(memory < SERVER_MAX_KIB / 2, "server {memory} KiB");
    assert_never_disconnected(&cluster, "agent_A");
}

/// Each piece of it differs from all others.
#[test]
fn large_response_arrives_as_it_was_stored() {
    let cluster = Cluster::start(&["agent_A"]);
    let text: String = (0..1_000_000)
        .map(|number| format!("{number:07}"))
        .collect();
    cluster.apply(&format!("apiVersion: v1\nconfigs:\n  large: \"{text}\"\n"));
    for _ in 0..5 {
        let output = cluster.ank(&["get", "state", "-o", "json", "desiredState.configs"]);
        assert_eq!(output.code, 0, "{}", output.stderr);
        assert!(
            output.stdout.contains(&text),
            "something is missing or wrong"
        );
    }
}

// ------------------------------------------------------------------ control frames

fn settings(_: usize) -> Vec<u8> {
    // The size of the table of HPACK, as large and as small as can be.
    let largest = frame(SETTINGS, 0, 0, &[0, 1, 0xff, 0xff, 0xff, 0xff]);
    let smallest = frame(SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0]);
    [largest, smallest].concat().repeat(50)
}

fn pings(_: usize) -> Vec<u8> {
    frame(PING, 0, 0, b"ankaios!").repeat(100)
}

#[test]
fn settings_without_an_end_delay_nobody() {
    assert_others_are_served_during(settings, true);
}

#[test]
fn settings_of_a_client_that_reads_nothing_cost_no_memory() {
    assert_others_are_served_during(settings, false);
}

#[test]
fn pings_without_an_end_delay_nobody() {
    assert_others_are_served_during(pings, true);
}

#[test]
fn pings_of_a_client_that_reads_nothing_cost_no_memory() {
    assert_others_are_served_during(pings, false);
}

#[test]
fn pings_of_many_silent_clients_cost_no_memory() {
    assert_silent_clients_cost_no_memory(&frame(PING, 0, 0, b"ankaios!"));
}

#[test]
fn settings_of_many_silent_clients_cost_no_memory() {
    assert_silent_clients_cost_no_memory(&frame(SETTINGS, 0, 0, &[]));
}

/// Nothing is sent back, but gRPC has larger buffers for a connection that sends much.
#[test]
fn acknowledgements_of_many_silent_clients_cost_no_memory() {
    assert_silent_clients_cost_no_memory(&frame(PING, ACK, 0, b"ankaios!"));
}

#[test]
fn window_updates_of_many_silent_clients_cost_no_memory() {
    assert_silent_clients_cost_no_memory(&frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]));
}

/// A client that measures the bandwidth sends a ping as soon as the one before was answered.
#[test]
fn pings_that_are_read_are_all_answered() {
    let cluster = Cluster::start(&["agent_A"]);
    let mut client = Client::connect(&cluster.address()).expect("the server listens");
    for number in 0..200 {
        assert!(client.is_served(), "after {number} pings");
    }
}
