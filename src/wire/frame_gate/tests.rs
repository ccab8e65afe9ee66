//! Tests of the gate with frames made by hand.

use super::*;
use crate::limits::AGENT_REQUEST_MAX;
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::limits::MESSAGE_MAX;
use ankaios_platform::clock::Clock;

const LARGE: usize = AGENT_REQUEST_MAX + 1;

/// Capacity for one large message and some smaller ones.
fn capacity() -> Arc<Semaphore> {
    Semaphore::new(2 * LARGE - 1)
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn message(length: usize) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend(u32::try_from(length).unwrap().to_be_bytes());
    bytes.resize(MESSAGE_PREFIX + length, 7);
    bytes
}

/// The beginning of a message, as it is announced.
fn announced(length: usize) -> Vec<u8> {
    message(length)[..MESSAGE_PREFIX + 1].to_vec()
}

/// A message in frames as clients send them.
fn frames(stream: u32, length: usize) -> Vec<u8> {
    message(length)
        .chunks(16 * 1024)
        .flat_map(|part| frame(DATA, 0, stream, part))
        .collect()
}

struct Peer {
    gate: FrameGate,
    in_flight: Arc<InFlightMessages>,
    clock: ManualClock,
}

impl Peer {
    /// After the beginning, with all streams opened.
    fn new(intake: &Arc<Semaphore>) -> Self {
        let in_flight = InFlightMessages::new(intake.clone(), MESSAGE_MAX);
        let clock = ManualClock::new();
        let mut gate = FrameGate::new(in_flight.clone(), clock.now());
        assert_eq!(
            gate.admit(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", clock.now()),
            Ok(PREFACE)
        );
        gate.last_opened = u32::MAX;
        gate.beginning = Beginning::Over;
        Self {
            gate,
            in_flight,
            clock,
        }
    }

    /// After a hello on stream 1.
    fn greeted(intake: &Arc<Semaphore>) -> Self {
        let mut peer = Self::new(intake);
        assert!(peer.passes(&frames(1, 50)));
        peer.in_flight.hello_accepted();
        peer
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, Refused> {
        self.gate.admit(bytes, self.clock.now())
    }

    fn passes(&mut self, bytes: &[u8]) -> bool {
        let passed = self.send(bytes).unwrap();
        assert_eq!(self.gate.is_waiting, passed < bytes.len());
        passed == bytes.len()
    }
}

#[test]
fn frames_pass_however_they_are_cut() {
    let intake = capacity();
    let mut bytes = frame(4, 0, 0, &[0; 12]);
    bytes.extend(frame(1, 4, 1, b"headers"));
    bytes.extend(frames(1, 20));
    let mut peer = Peer::new(&intake);
    for byte in &bytes {
        assert!(peer.passes(&[*byte]));
    }
    peer.in_flight.hello_accepted();
    for length in [0, 1, SMALL_MESSAGE, LARGE] {
        let bytes = frames(1, length);
        for part in bytes.chunks(1000) {
            assert!(peer.passes(part), "{length}");
        }
        let bytes = if length > SMALL_MESSAGE { length } else { 0 };
        assert_eq!(peer.in_flight.arrived(length).amount(), bytes);
    }
    assert!(peer.passes(&frame(DATA, END_STREAM, 1, &[])));
    assert!(peer.gate.streams.is_empty());
}

#[test]
fn wrong_or_large_first_message_ends_the_connection_early() {
    let intake = capacity();
    let mut peer = Peer::new(&intake);
    let first = FIRST_MESSAGE_MAX + 1;
    assert_eq!(
        peer.send(&frame(DATA, 0, 1, &announced(first))),
        Err(Refused::First(first))
    );
    let mut peer = Peer::greeted(&intake);
    let length = MESSAGE_MAX + 1;
    let mut announced_only = vec![0];
    announced_only.extend(u32::try_from(length).unwrap().to_be_bytes());
    let refused = peer.send(&frame(DATA, 0, 1, &announced_only));
    assert_eq!(
        refused,
        Err(Refused::TooLarge {
            length,
            max: MESSAGE_MAX
        })
    );
    assert_eq!(
        Peer::greeted(&intake).send(&frame(DATA, 0, 3, &announced(first))),
        Err(Refused::First(first))
    );
}

#[test]
fn what_comes_right_behind_a_hello_waits_until_that_is_accepted() {
    let mut peer = Peer::new(&capacity());
    assert!(peer.passes(&frames(1, 50)) && peer.passes(&frames(1, SMALL_MESSAGE)));
    let large = frames(1, LARGE);
    let before = peer.send(&large).unwrap();
    assert_eq!(before, FRAME_HEADER + MESSAGE_PREFIX - 1);
    assert_eq!(peer.send(&large[before..]), Ok(0));
    peer.in_flight.hello_accepted();
    assert!(peer.passes(&large[before..]));
    let mut peer = Peer::new(&capacity());
    assert!(peer.passes(&frames(1, 50)) && !peer.passes(&large));
    assert_eq!(peer.send(&large[before..]), Ok(0));
}

#[test]
fn connection_without_accepted_hello_ends_in_any_case() {
    let (silent, greeted) = (Peer::new(&capacity()), Peer::greeted(&capacity()));
    for (peer, expected) in [(silent, Err(Refused::NoHello)), (greeted, Ok(()))] {
        assert_eq!(
            peer.gate.check_again_at(peer.clock.now()).is_some(),
            expected.is_err()
        );
        peer.clock.advance(NO_HELLO_MAX - CHECK);
        assert_eq!(peer.gate.check(peer.clock.now()), Ok(()));
        peer.clock.advance(CHECK);
        assert_eq!(peer.gate.check(peer.clock.now()), expected);
        assert_eq!(peer.gate.is_served(), expected.is_ok());
    }
}

#[test]
fn connection_whose_streams_ended_is_unserved_and_stays() {
    let peer = Peer::greeted(&capacity());
    peer.in_flight.hello_accepted();
    peer.in_flight.stream_ended();
    assert!(peer.gate.is_served());
    peer.in_flight.stream_ended();
    assert!(!peer.gate.is_served());
    peer.clock.advance(NO_HELLO_MAX);
    assert_eq!(peer.gate.check(peer.clock.now()), Ok(()));
}

#[test]
fn large_messages_come_one_by_one_and_small_ones_pass() {
    let intake = capacity();
    let (mut first, mut second, mut third) = (
        Peer::greeted(&intake),
        Peer::greeted(&intake),
        Peer::greeted(&intake),
    );
    let large = frames(1, LARGE);
    assert!(first.passes(&large));
    let before = second.send(&large).unwrap();
    assert!(second.gate.is_waiting && before < 20);
    assert!(
        third.passes(&frames(1, SMALL_MESSAGE)) && !third.passes(&frames(1, AGENT_REQUEST_MAX)),
        "it does not overtake"
    );
    drop(third);
    let room = first.in_flight.arrived(LARGE);
    assert_eq!(
        second.send(&large[before..]),
        Ok(0),
        "its bytes are still there"
    );
    drop(room);
    assert!(second.passes(&large[before..]));
    // A connection that ends takes nothing with it.
    drop(second);
    assert!(first.passes(&large));
}

#[test]
fn next_large_message_waits_until_the_reader_took_the_last() {
    let mut peer = Peer::greeted(&capacity());
    let bytes = frames(1, SMALL_MESSAGE + 1);
    assert!(peer.passes(&bytes));
    let before = peer.send(&bytes).unwrap();
    assert!(peer.gate.is_waiting);
    let _room = peer.in_flight.arrived(SMALL_MESSAGE + 1);
    assert!(peer.passes(&bytes[before..]));
}

#[test]
fn two_streams_of_a_connection_cannot_wait_for_each_other() {
    let intake = capacity();
    let mut peer = Peer::greeted(&intake);
    assert!(peer.passes(&frames(3, 50)));
    let part = |stream| frame(DATA, 0, stream, &message(LARGE)[..1000]);
    assert!(peer.passes(&part(1)));
    assert_eq!(peer.send(&part(3)), Err(Refused::Several));
    let mut peer = Peer::greeted(&capacity());
    assert!(peer.passes(&frames(3, 50)));
    let part = |stream| frame(DATA, 0, stream, &message(SMALL_MESSAGE + 1)[..1000]);
    assert!(
        peer.passes(&part(1)) && peer.passes(&part(3)),
        "there is room for both"
    );
}

#[test]
fn connection_that_holds_a_permit_and_is_silent_ends() {
    let intake = capacity();
    let (mut slow, mut waits) = (Peer::greeted(&intake), Peer::greeted(&intake));
    assert!(slow.passes(&frame(DATA, 0, 1, &message(LARGE)[..1000])));
    slow.clock.advance(MEASURED * 10);
    assert_eq!(slow.gate.check(slow.clock.now()), Ok(()), "nobody waits");
    assert!(!waits.passes(&frames(1, LARGE)));
    assert_eq!(slow.gate.check(slow.clock.now()), Err(Refused::Slow));
    drop(slow);
    assert_eq!(
        waits.gate.check_again_at(waits.clock.now()),
        Some(waits.clock.now() + RETRY)
    );
}

#[test]
fn a_message_that_stops_coming_is_slow_whatever_came_before() {
    let intake = capacity();
    let (mut slow, mut waits) = (Peer::greeted(&intake), Peer::greeted(&intake));
    let bytes = frames(1, LARGE);
    assert!(slow.passes(&bytes[..3 << 20]) && !waits.passes(&bytes));
    slow.clock.advance(MEASURED);
    assert_eq!(slow.gate.check(slow.clock.now()), Ok(()), "it was fast");
    slow.clock.advance(MEASURED);
    assert_eq!(slow.gate.check(slow.clock.now()), Err(Refused::Slow));
}

/// The connection of gRPC is made after the time at which the first bytes came was taken.
#[test]
fn first_stream_of_a_connection_does_not_wait() {
    let came = ManualClock::new().now();
    let in_flight = InFlightMessages::new(capacity(), MESSAGE_MAX);
    let mut gate = FrameGate::new(in_flight, came + RETRY);
    gate.beginning = Beginning::Over;
    let bytes = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(SETTINGS, 0, 0, &[]),
        frame(HEADERS, 4, 1, &[0x88]),
    ]
    .concat();
    assert_eq!(gate.admit(&bytes, came), Ok(bytes.len()));
}

/// Each costs a thread and a call, however soon it is reset.
#[test]
fn streams_that_are_reset_at_once_begin_one_by_one() {
    let room = capacity();
    let mut peer = Peer::greeted(&room);
    let begun_and_reset = |stream| {
        [
            frame(HEADERS, 4, stream, &[0x88]),
            frame(RST_STREAM, 0, stream, &[0; 4]),
        ]
        .concat()
    };
    assert!(peer.passes(&begun_and_reset(3)), "the first one");
    let next = begun_and_reset(5);
    let passed = peer.send(&next).unwrap();
    assert!(passed < FRAME_HEADER, "not even its header: {passed}");
    assert!(
        peer.gate
            .check_again_at(peer.clock.now())
            .is_some_and(|at| at <= peer.clock.now() + STREAM_INTERVAL)
    );
    peer.clock.advance(STREAM_INTERVAL);
    assert_eq!(peer.send(&next[passed..]), Ok(next.len() - passed));
    // What its streams send meanwhile is not held up.
    assert!(peer.passes(&frames(1, 50)));
}

/// Returns the number of these frames that pass at once.
fn count_passed(peer: &mut Peer, frame: &[u8]) -> usize {
    let passed = peer.send(&frame.repeat(5000)).unwrap();
    passed / frame.len()
}

#[test]
fn control_frames_beyond_a_burst_wait_for_their_time() {
    const UNKNOWN: u8 = 0x77;
    let burst = |cost: Duration| 1 + CONTROL_BURST.div_duration_f64(cost) as usize;
    for (kind, flags, length, cost) in [
        (PING, 0, 8, COSTLY_FRAME),
        (SETTINGS, 0, 6, COSTLY_FRAME),
        (GOAWAY, 0, 8, COSTLY_FRAME),
        (SETTINGS, 0, 10 * 1024, COSTLY_FRAME + 10 * CONTROL_KIB),
        (PING, ACK, 8, CONTROL_FRAME),
        (SETTINGS, ACK, 0, CONTROL_FRAME),
        (WINDOW_UPDATE, 0, 4, CONTROL_FRAME),
        (RST_STREAM, 0, 4, CONTROL_FRAME),
        (UNKNOWN, 0, 0, CONTROL_FRAME),
        (UNKNOWN, 0, 15 * 1024, CONTROL_FRAME + 15 * CONTROL_KIB),
    ] {
        let row = format!("kind {kind}, flags {flags}, {length} bytes");
        let mut peer = Peer::greeted(&capacity());
        let bytes = frame(kind, flags, 0, &vec![0; length]);
        assert_eq!(count_passed(&mut peer, &bytes), burst(cost), "{row}");
        assert!(peer.gate.check_again_at(peer.clock.now()).is_some());
        let mut rest = bytes[FRAME_HEADER - 1..].to_vec();
        rest.extend(&bytes);
        assert_eq!(peer.send(&rest), Ok(0), "{row}");
        peer.clock.advance(cost);
        let passed = bytes.len();
        assert_eq!(peer.send(&rest), Ok(passed), "one more: {row}");
    }
}

/// gRPC sends one for each message that it reads: more than a thousand per second are normal.
#[test]
fn window_updates_for_sent_bytes_do_not_wait() {
    let mut peer = Peer::greeted(&capacity());
    let updates = frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]).repeat(2);
    for number in 0..10_000 {
        Gate::sent(&mut peer.gate, FRAME_HEADER + MESSAGE_PREFIX);
        assert!(peer.passes(&updates), "message {number}");
    }
    // Without a response they are control frames as others.
    let passed = count_passed(&mut peer, &updates);
    assert!(passed < 1000, "{passed}");
    // Bytes that were sent long ago are not kept for a flood.
    Gate::sent(&mut peer.gate, 1 << 30);
    assert_eq!(peer.gate.window_credit, WINDOW_CREDIT_MAX);
}

/// gRPC keeps each response until its client takes it.
#[test]
fn frames_with_a_response_wait_while_the_peer_reads_nothing() {
    for (kind, flags, waits) in [
        (HEADERS, 4, true),
        (PING, 0, true),
        (SETTINGS, 0, true),
        (PING, ACK, false),
        (SETTINGS, ACK, false),
        (RST_STREAM, 0, false),
        (DATA, 0, false),
    ] {
        let row = format!("kind {kind}, flags {flags}");
        let mut peer = Peer::greeted(&capacity());
        peer.gate.peer_reads = false;
        let bytes = frame(kind, flags, 1, &message(3));
        let passed = peer.send(&bytes).unwrap();
        assert_eq!(passed < FRAME_HEADER, waits, "{row}");
        peer.gate.peer_reads = true;
        assert_eq!(
            peer.send(&bytes[passed..]),
            Ok(bytes.len() - passed),
            "{row}"
        );
    }
}

#[test]
fn message_on_a_stream_that_was_not_opened_is_refused() {
    let mut peer = Peer::new(&capacity());
    peer.gate.last_opened = 0;
    assert!(peer.passes(&frame(HEADERS, 4, 3, &[0x88])));
    for (stream, refused) in [(1, false), (3, false), (0, true), (5, true)] {
        let expected = if refused {
            Err(Refused::NotOpened(stream))
        } else {
            Ok(FRAME_HEADER)
        };
        assert_eq!(peer.send(&frame(DATA, 0, stream, &[])), expected);
    }
}

#[test]
fn room_of_a_stream_that_ended_comes_back() {
    let intake = capacity();
    let mut peer = Peer::greeted(&intake);
    let begun = frame(DATA, 0, 1, &message(LARGE)[..1000]);
    assert!(peer.passes(&begun) && peer.passes(&frame(RST_STREAM, 0, 1, &[0; 4])));
    assert!(peer.in_flight.state.lock().in_flight.is_empty());
    // Also when its client ends it within the message.
    let mut other = Peer::greeted(&intake);
    assert!(other.passes(&frame(DATA, END_STREAM, 1, &message(LARGE)[..1000])));
    assert!(other.in_flight.state.lock().in_flight.is_empty());
    assert!(peer.passes(&frames(3, 50)) && peer.passes(&frames(3, LARGE)));
    peer.clock.advance(TAKEN_MAX);
    assert_eq!(
        peer.gate.check(peer.clock.now()),
        Ok(()),
        "its reader may be busy"
    );
    peer.clock.advance(CHECK);
    assert_eq!(
        peer.gate.check(peer.clock.now()),
        Err(Refused::NotTaken),
        "gRPC drops what still comes"
    );
}

/// A hostile client does not acknowledge them, and gRPC applies them only then.
#[test]
fn settings_are_acknowledged_behind_the_first_frame() {
    let settings = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(SETTINGS, 0, 0, &[0; 12]),
    ]
    .concat();
    let call = frame(HEADERS, 4, 1, &[0x88]);
    for piece in [1, 10, settings.len(), settings.len() + call.len()] {
        let in_flight = InFlightMessages::new(capacity(), MESSAGE_MAX);
        let now = ManualClock::new().now();
        let mut gate = FrameGate::new(in_flight, now);
        let mut grpc = Vec::new();
        for part in [&settings[..], &call].concat().chunks(piece) {
            let mut left = part;
            while !left.is_empty() {
                let passed = gate.admit(left, now).unwrap();
                grpc.extend_from_slice(&left[..passed]);
                grpc.extend_from_slice(gate.take_insertion());
                left = &left[passed..];
            }
        }
        let expected = [&settings[..], &SETTINGS_ACKNOWLEDGED, &call].concat();
        assert_eq!(grpc, expected, "{piece} bytes at once");
    }
}

#[test]
fn headers_without_an_end_end_the_connection() {
    let begin = frame(HEADERS, 0, 1, &[0; 1000]);
    for (frames, bytes) in [(HEADERS_FRAMES_MAX, 0), (5, 15 * 1024)] {
        let mut peer = Peer::new(&capacity());
        assert!(peer.passes(&begin));
        for _ in 0..frames - 1 {
            assert!(peer.passes(&frame(CONTINUATION, 0, 1, &vec![0; bytes])));
        }
        let next = frame(CONTINUATION, 0, 1, &vec![0; bytes]);
        assert_eq!(peer.send(&next), Err(Refused::Headers), "{bytes} bytes");
    }
}

#[test]
fn headers_of_many_calls_are_counted_for_each() {
    let mut peer = Peer::new(&capacity());
    for number in 0..2 * HEADERS_FRAMES_MAX {
        let stream = 2 * u32::try_from(number).unwrap() + 1;
        assert!(peer.passes(&frame(HEADERS, 0, stream, &vec![0; 15 * 1024])));
        assert!(peer.passes(&frame(CONTINUATION, 4, stream, &vec![0; 15 * 1024])));
        peer.clock.advance(STREAM_INTERVAL + 30 * HEADERS_KIB);
    }
}

/// gRPC reads all of them, which takes time, also when it refuses the call.
#[test]
fn large_headers_delay_the_next_stream() {
    for (first, rest, kib) in [
        (1023, 0, 0),
        (1024, 0, 1),
        (1023, 1, 1),
        (15_000, 15_000, 29),
    ] {
        let row = format!("{first} and {rest} bytes");
        let mut peer = Peer::new(&capacity());
        assert!(peer.passes(&frame(HEADERS, 0, 1, &vec![0; first])));
        assert!(peer.passes(&frame(CONTINUATION, 4, 1, &vec![0; rest])));
        let next = frame(HEADERS, 4, 3, &[0x88]);
        peer.clock.advance(STREAM_INTERVAL);
        let mut passed = peer.send(&next).unwrap();
        assert_eq!(passed == next.len(), kib == 0, "{row}");
        if kib > 0 {
            peer.clock
                .advance(kib * HEADERS_KIB - Duration::from_millis(1));
            assert_eq!(peer.send(&next[passed..]), Ok(0), "{row}");
            peer.clock.advance(Duration::from_millis(1));
            passed += peer.send(&next[passed..]).unwrap();
        }
        assert_eq!(passed, next.len(), "{row}");
    }
}

#[test]
fn a_message_in_frames_of_one_byte_ends_the_connection() {
    let mut peer = Peer::greeted(&capacity());
    assert!(peer.passes(&frame(DATA, 0, 1, &announced(LARGE))));
    let tiny: Vec<u8> = (0..2 * FRAMES_ALWAYS)
        .flat_map(|_| frame(DATA, 0, 1, &[7]))
        .collect();
    assert_eq!(peer.send(&tiny), Err(Refused::TinyFrames));
    let mut peer = Peer::greeted(&capacity());
    let empty: Vec<u8> = (0..2 * FRAMES_ALWAYS)
        .flat_map(|_| frame(DATA, 0, 1, &[]))
        .collect();
    assert_eq!(peer.send(&empty), Err(Refused::TinyFrames));
    let mut peer = Peer::greeted(&capacity());
    for _ in 0..10 * FRAMES_ALWAYS {
        assert!(peer.passes(&frames(1, 10)), "many small messages are none");
    }
}

#[test]
fn endless_streams_are_forgotten_unless_a_message_is_coming() {
    let mut peer = Peer::greeted(&capacity());
    for stream in 1..1000 {
        assert!(peer.passes(&frames(stream, 10)));
        assert!(peer.gate.streams.len() <= GATED_STREAMS);
    }
    let mut begin = |stream| peer.send(&frame(DATA, 0, stream, &announced(100)));
    let refused = (1..1000)
        .map(|number| begin(2 * number))
        .find_map(Result::err);
    assert_eq!(refused, Some(Refused::Streams));
}
