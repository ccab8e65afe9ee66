//! Connections without TLS on one thread: the test's, with a clock that it moves.
//!
//! Thread: the test's. Owns: both ends of each socket.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A gate that may be closed for a while, and is closed for a question while its peer does not
/// read.
struct Door {
    is_closed: Arc<AtomicBool>,
    /// The bytes that passed last were [`GREETING`].
    is_greeted: bool,
}

const QUESTION: &[u8] = b"question";
/// Behind this, gRPC gets [`INSERTION`].
const GREETING: &[u8] = b"greeting";
const INSERTION: &[u8] = b" and more";

impl Gate for Door {
    fn admit(&mut self, bytes: &[u8], peer_reads: bool, _: Instant) -> Result<usize, String> {
        if bytes == b"bad" {
            return Err("bad bytes".to_owned());
        }
        if bytes == QUESTION && !peer_reads {
            return Ok(0);
        }
        if self.is_closed() {
            return Ok(0);
        }
        self.is_greeted = bytes.starts_with(GREETING);
        Ok(if self.is_greeted {
            GREETING.len()
        } else {
            bytes.len()
        })
    }

    fn take_insertion(&mut self) -> &'static [u8] {
        if std::mem::take(&mut self.is_greeted) {
            INSERTION
        } else {
            &[]
        }
    }

    fn sent(&mut self, _: usize) {}

    fn check_again_at(&self, now: Instant) -> Option<Instant> {
        self.is_closed().then_some(now + Duration::from_millis(5))
    }

    fn is_served(&self) -> bool {
        true
    }
}

impl Door {
    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }
}

struct Client {
    end: UnixStream,
    /// The end that gRPC has, after the first byte.
    grpc: Arc<Mutex<Option<UnixStream>>>,
    is_closed: Arc<AtomicBool>,
    refused: Arc<Mutex<Option<String>>>,
}

fn client(pump: &mut Pump, begin: Instant) -> Client {
    let (end, ours) = pair().unwrap();
    let client = Client {
        end,
        grpc: Arc::default(),
        is_closed: Arc::default(),
        refused: Arc::default(),
    };
    let (grpc, is_closed, refused) = (
        client.grpc.clone(),
        client.is_closed.clone(),
        client.refused.clone(),
    );
    let open = Box::new(move |_: &TlsLink| {
        let (plain, endpoint) = pair()?;
        *grpc.lock().unwrap() = Some(endpoint);
        let gate = Box::new(Door {
            is_closed,
            is_greeted: false,
        });
        Ok(GrpcConnection {
            grpc: plain,
            gate: Some(gate),
        })
    });
    let on_end = Box::new(move |error: &PumpError| {
        if let PumpError::Refused(reason) = error {
            *refused.lock().unwrap() = Some(reason.clone());
        }
    });
    pump.add(TlsLink::new(ours, None), open, false, on_end, begin);
    client
}

/// Lets the pump work until nothing comes for a moment.
fn run(pump: &mut Pump, now: Instant) {
    for _ in 0..20 {
        assert_eq!(
            pump.wait(Some(Duration::from_millis(2)), || now).unwrap(),
            [0; 0]
        );
    }
}

fn take(mut end: impl Read) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let count = end.read(&mut bytes).unwrap();
    bytes.truncate(count);
    bytes
}

/// Takes all bytes that have come, possibly none.
fn take_all(mut end: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = end.read_to_end(&mut bytes); // It ends when nothing is left.
    bytes
}

impl Client {
    fn at_grpc<T>(&self, act: impl FnOnce(&UnixStream) -> T) -> T {
        act(self.grpc.lock().unwrap().as_ref().expect("it was opened"))
    }
}

#[test]
fn bytes_that_the_gate_inserts_reach_grpc_in_their_place() {
    let (mut pump, begin) = (Pump::new().unwrap(), SystemClock.now());
    let client = client(&mut pump, begin);
    (&client.end).write_all(b"greetingrest").unwrap();
    run(&mut pump, begin);
    assert_eq!(client.at_grpc(|grpc| take(grpc)), b"greeting and morerest");
    // Also when nothing comes behind.
    (&client.end).write_all(GREETING).unwrap();
    run(&mut pump, begin);
    assert_eq!(client.at_grpc(|grpc| take(grpc)), b"greeting and more");
}

/// A socket takes some hundred writes, however short, and gRPC does not read at each moment.
#[test]
fn connection_ends_if_grpc_takes_no_insertion() {
    let (mut pump, begin) = (Pump::new().unwrap(), SystemClock.now());
    let (mut one, _two) = pair().unwrap();
    let mut writes_max = 0;
    while one.write(b"x").is_ok() {
        writes_max += 1;
    }
    let client = client(&mut pump, begin);
    for _ in 0..writes_max {
        (&client.end).write_all(b"x").unwrap();
        pump.wait(Some(Duration::from_millis(2)), || begin).unwrap();
    }
    (&client.end).write_all(b"greetingrest").unwrap();
    run(&mut pump, begin);
    let mut received = client.at_grpc(|grpc| take_all(grpc));
    run(&mut pump, begin);
    received.extend(client.at_grpc(|grpc| take_all(grpc)));
    let text = String::from_utf8(received).unwrap();
    assert!(text.ends_with('x'), "{text}");
}

#[test]
fn silent_peer_has_no_connection_of_grpc_and_is_refused() {
    let (mut pump, begin) = (Pump::new().unwrap(), SystemClock.now());
    let (silent, other) = (client(&mut pump, begin), client(&mut pump, begin));
    run(&mut pump, begin);
    (&other.end).write_all(b"hello").unwrap();
    run(&mut pump, begin);
    assert!(silent.grpc.lock().unwrap().is_none());
    assert_eq!(other.at_grpc(|grpc| take(grpc)), b"hello");
    run(&mut pump, begin + HELLO_MAX);
    assert_eq!(
        silent.refused.lock().unwrap().as_deref(),
        Some("it sent nothing within 10s")
    );
    assert_eq!(take(&silent.end), b"");
    other.at_grpc(|mut grpc| grpc.write_all(b"answer")).unwrap();
    run(&mut pump, begin + HELLO_MAX);
    assert_eq!(take(&other.end), b"answer");
    assert_eq!((pump.connections.len(), pump.due.len()), (1, 0));
}

#[test]
fn waiting_or_refused_peer_affects_no_other_connection() {
    let (mut pump, now) = (Pump::new().unwrap(), SystemClock.now());
    let [waits, goes_on, bad] = [(); 3].map(|()| client(&mut pump, now));
    waits.is_closed.store(true, Ordering::Relaxed);
    for (client, bytes) in [(&waits, b"one"), (&goes_on, b"two"), (&bad, b"bad")] {
        (&client.end).write_all(bytes).unwrap();
    }
    run(&mut pump, now);
    assert_eq!(goes_on.at_grpc(|grpc| take(grpc)), b"two");
    assert!(waits.at_grpc(|mut grpc| grpc.read(&mut [0]).is_err_and(|error| would_block(&error))));
    assert_eq!(bad.refused.lock().unwrap().as_deref(), Some("bad bytes"));
    waits.is_closed.store(false, Ordering::Relaxed);
    run(&mut pump, now + Duration::from_millis(5));
    assert_eq!(waits.at_grpc(|grpc| take(grpc)), b"one");
    assert_eq!(pump.connections.len(), 2);
}

#[test]
fn questions_of_a_peer_wait_while_it_does_not_read() {
    let (mut pump, now) = (Pump::new().unwrap(), SystemClock.now());
    let client = client(&mut pump, now);
    (&client.end).write_all(QUESTION).unwrap();
    run(&mut pump, now);
    assert_eq!(client.at_grpc(|grpc| take(grpc)), QUESTION);
    // Until both sockets are full.
    while client.at_grpc(|mut grpc| grpc.write(&[7; BUFFER])).is_ok() {
        run(&mut pump, now);
    }
    (&client.end).write_all(QUESTION).unwrap();
    run(&mut pump, now);
    let is_kept = |grpc: &UnixStream| {
        let mut grpc = grpc;
        grpc.read(&mut [0]).is_err_and(|error| would_block(&error))
    };
    assert!(client.at_grpc(is_kept));
    while !take_all(&client.end).is_empty() {
        run(&mut pump, now);
    }
    assert_eq!(client.at_grpc(|grpc| take(grpc)), QUESTION);
}

#[test]
fn bytes_keep_their_order_and_the_last_ones_of_grpc_arrive() {
    let (mut pump, now) = (Pump::new().unwrap(), SystemClock.now());
    let client = client(&mut pump, now);
    (&client.end).write_all(b"x").unwrap();
    run(&mut pump, now);
    let sent: Vec<u8> = (0..2_000_000_u32).map(|number| number as u8).collect();
    let (mut written, mut received) = (0, Vec::new());
    while received.len() < sent.len() {
        if written < sent.len() {
            written += client
                .at_grpc(|mut grpc| grpc.write(&sent[written..]))
                .unwrap_or(0);
        } else {
            *client.grpc.lock().unwrap() = None;
        }
        let _ = (&client.end).write(b"more"); // Nobody reads it in the end.
        pump.wait(Some(Duration::from_millis(1)), || now).unwrap();
        let mut bytes = [0; 65536];
        let count = (&client.end).read(&mut bytes).unwrap_or(0);
        received.extend_from_slice(&bytes[..count]);
    }
    assert!(received == sent);
    run(&mut pump, now);
    assert_eq!(take(&client.end), b"", "the end of the stream");
    drop(client);
    run(&mut pump, now);
    assert_eq!((pump.connections.len(), pump.due.len()), (0, 0));
}
