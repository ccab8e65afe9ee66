//! The messages that the thread of gRPC forwards itself, and those that it leaves to the thread of
//! the stream.

use super::super::convert::messages::write_to_server;
use super::*;
use ankaios_model::messages::{ReadState, Request, RequestContent};
use ankaios_platform::watchdog::WatchedThreads;
use crossbeam_channel::{Receiver, bounded};

/// Slots of the stream, and room of the server, in these tests.
const SLOTS: usize = 2;

fn forwarder(room: usize) -> (Forwarder, Receiver<PeerEvent>) {
    let (inbox, events) = bounded(room);
    let arriving = Semaphore::new(1024);
    let streams = Streams {
        inbox,
        arriving: arriving.clone(),
        decoded: Semaphore::new(1),
        responses: Semaphore::new(1024),
        others: Semaphore::new(1024),
        message_max: 1024 * 1024,
        commander_names: Vec::new(),
        writer: StreamWriter::start(&mut WatchedThreads::new(|_| {})).unwrap(),
    };
    let forwarder = Forwarder {
        streams: Arc::new(streams),
        peer: PeerId(1),
        from: "test".to_owned(),
        log_source: Name::from("test"),
        in_flight: InFlightMessages::new(arriving, 1024 * 1024),
        own: true,
        longest: 1024 * 1024,
        slots: Semaphore::new(SLOTS),
    };
    (forwarder, events)
}

/// A request that reads these parts of the state.
fn read(masks: Vec<String>) -> Vec<u8> {
    write_to_server(&ToServer::Request(Request {
        id: "1".to_owned(),
        content: RequestContent::CompleteState(ReadState {
            masks,
            subscribe: false,
        }),
    }))
}

/// Whether it was forwarded. Otherwise it must be returned unchanged.
fn is_forwarded(forwarder: &Forwarder, bytes: &[u8]) -> bool {
    let Some(left) = forwarder.forward_now(Received::Copied(bytes.to_vec())) else {
        return true;
    };
    match left.unpack(bytes.len()) {
        Ok(left) => assert_eq!(left, bytes),
        Err(error) => panic!("{}", error.reason),
    }
    false
}

#[test]
fn small_message_is_forwarded_while_the_stream_has_a_slot() {
    let (forwarder, events) = forwarder(SLOTS + 1);
    let small = read(vec!["agents".to_owned()]);
    assert!(is_forwarded(&forwarder, &small));
    assert!(is_forwarded(&forwarder, &small));
    assert!(!is_forwarded(&forwarder, &small), "both slots are taken");
    drop(events.try_recv().unwrap()); // The server has handled one.
    assert!(is_forwarded(&forwarder, &small));
    assert_eq!(events.len(), SLOTS);
}

#[test]
fn small_message_is_left_while_the_inbox_is_full() {
    let (forwarder, events) = forwarder(1);
    let small = read(vec!["agents".to_owned()]);
    assert!(is_forwarded(&forwarder, &small));
    assert!(!is_forwarded(&forwarder, &small));
    drop(events.try_recv().unwrap());
    assert!(
        is_forwarded(&forwarder, &small),
        "what was left keeps no slot"
    );
}

#[test]
fn message_that_takes_time_or_memory_is_left() {
    let (forwarder, events) = forwarder(1);
    let large = read(vec!["x".repeat(INBOX_SMALL_MESSAGE)]);
    assert!(!is_forwarded(&forwarder, &large));
    // Few bytes, but each mask takes more memory than that.
    let many_parts = read(vec!["a".to_owned(); INBOX_SMALL_MESSAGE / 4]);
    assert!(many_parts.len() < INBOX_SMALL_MESSAGE);
    assert!(!is_forwarded(&forwarder, &many_parts));
    assert!(!is_forwarded(&forwarder, b"\xff"), "it cannot be decoded");
    assert!(events.is_empty());
}
