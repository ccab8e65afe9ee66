//! Tests of framing and of the bytes that workloads and agents exchange.

use super::*;
use ankaios_model::messages::{FromWorkload, ToWorkload};
use ankaios_model::messages::{
    LogsRequest, ReadState, Request, RequestContent, Response, ResponseContent,
};
use ankaios_model::names::InstanceName;

fn bytes(hex: &str) -> Vec<u8> {
    hex.split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect()
}

fn request(content: RequestContent) -> FromWorkload {
    FromWorkload::Request(Request {
        id: "a".to_owned(),
        content,
    })
}

fn read(masks: &[&str], subscribe: bool) -> RequestContent {
    let masks = masks.iter().map(|mask| (*mask).to_owned()).collect();
    RequestContent::CompleteState(ReadState { masks, subscribe })
}

// [utest->swdd~agent-converts-control-interface-message-to-ankaios-object~1]
#[test]
fn messages_of_workloads_have_the_documented_bytes() {
    let logs = LogsRequest {
        instances: vec![InstanceName::with_id("w", "1", "A")],
        follow: Some(true),
        ..LogsRequest::default()
    };
    for (hex, message) in [
        (
            "09 0a 07 12 05 31 2e 30 2e 30",
            FromWorkload::Hello {
                version: "1.0.0".to_owned(),
            },
        ),
        (
            "0f 1a 0d 0a 01 61 1a 08 0a 06 61 67 65 6e 74 73",
            request(read(&["agents"], false)),
        ),
        (
            "11 1a 0f 0a 01 61 1a 0a 0a 06 61 67 65 6e 74 73 10 01",
            request(read(&["agents"], true)),
        ),
        (
            "14 1a 12 0a 01 61 22 0d 0a 09 0a 01 77 12 01 41 1a 01 31 10 01",
            request(RequestContent::Logs(logs)),
        ),
        (
            "07 1a 05 0a 01 61 2a 00",
            request(RequestContent::LogsCancel),
        ),
        (
            "07 1a 05 0a 01 61 32 00",
            request(RequestContent::EventsCancel),
        ),
        ("00", FromWorkload::Empty),
    ] {
        let expected = bytes(hex);
        assert_eq!(
            workload_side::frame(message.clone()),
            expected,
            "{message:?}"
        );
        let mut buffer = FrameBuffer::new(100);
        buffer.put(&expected);
        assert_eq!(
            read_message(buffer.next_message().unwrap().unwrap()).unwrap(),
            message
        );
        assert_eq!(buffer.next_message(), Ok(None));
        assert!(!buffer.is_partial());
    }
}

#[test]
fn messages_to_workloads_have_the_documented_bytes() {
    let closed = "1a 2a 18 0a 16 49 6e 69 74 69 61 6c 20 48 65 6c 6c 6f 20 6d 69 73 73 69 6e 67 21";
    let denied = Response {
        id: "a".to_owned(),
        content: ResponseContent::Error("Access denied".into()),
    };
    for (hex, message) in [
        ("02 22 00", ToWorkload::Accepted),
        (
            closed,
            ToWorkload::Closed {
                reason: "Initial Hello missing!".to_owned(),
            },
        ),
        (
            "16 1a 14 0a 01 61 1a 0f 0a 0d 41 63 63 65 73 73 20 64 65 6e 69 65 64",
            ToWorkload::Response(denied),
        ),
    ] {
        let frame = frame(message.clone());
        assert_eq!(frame, bytes(hex), "{message:?}");
        assert_eq!(workload_side::read_message(&frame[1..]).unwrap(), message);
    }
}

// [utest->swdd~agent-uses-length-delimited-protobuf-for-pipes~1]
#[test]
fn messages_are_found_however_the_bytes_are_cut() {
    let messages: Vec<FromWorkload> = (0..20)
        .map(|number| match number % 3 {
            0 => FromWorkload::Empty,
            1 => FromWorkload::Hello {
                version: "x".repeat(number * 30),
            },
            _ => request(read(&["agents"], false)),
        })
        .collect();
    let stream: Vec<u8> = messages
        .iter()
        .flat_map(|message| workload_side::frame(message.clone()))
        .collect();
    for step in [1, 2, 3, 7, 100, stream.len()] {
        let mut buffer = FrameBuffer::new(1000);
        let mut found = Vec::new();
        for piece in stream.chunks(step) {
            buffer.put(piece);
            while let Some(bytes) = buffer.next_message().unwrap() {
                found.push(read_message(bytes).unwrap());
            }
        }
        assert_eq!(found, messages, "pieces of {step} bytes");
        assert!(!buffer.is_partial());
    }
}

#[test]
fn impossible_lengths_are_refused_before_an_allocation() {
    let huge = "ff ff ff ff ff ff ff ff ff 01";
    for (hex, expected) in [
        ("80 80 80 80 80 80 80 80 80 80", Err(FrameError::BadLength)),
        ("80 80 80 80 80 80 80 80 80 02", Err(FrameError::BadLength)),
        (
            huge,
            Err(FrameError::TooLong {
                length: u64::MAX,
                max: 100,
            }),
        ),
        (
            "80 80 80 80 80 02",
            Err(FrameError::TooLong {
                length: 1 << 36,
                max: 100,
            }),
        ),
        (
            "65",
            Err(FrameError::TooLong {
                length: 101,
                max: 100,
            }),
        ),
        ("64", Ok(None)),
        ("80 80 80 80 80 80 80 80 80", Ok(None)),
        ("80", Ok(None)),
        ("", Ok(None)),
        ("80 00", Ok(Some(0))),
    ] {
        let mut buffer = FrameBuffer::new(100);
        buffer.put(&bytes(hex));
        assert_eq!(
            buffer.next_message().map(|found| found.map(<[u8]>::len)),
            expected,
            "{hex}"
        );
        assert!(buffer.bytes.capacity() <= 64, "{hex}");
    }
}

#[test]
fn the_memory_of_a_large_message_is_given_back() {
    let mut buffer = FrameBuffer::new(1 << 20);
    let message = FromWorkload::Hello {
        version: "x".repeat(1 << 19),
    };
    for piece in workload_side::frame(message).chunks(65_536) {
        buffer.put(piece);
    }
    assert!(buffer.next_message().unwrap().is_some());
    assert_eq!(buffer.next_message(), Ok(None));
    assert!(buffer.bytes.capacity() <= KEPT);
}

#[test]
fn a_message_that_is_cut_short_is_not_taken_for_a_shorter_one() {
    let whole = workload_side::frame(request(read(&["desiredState.workloads", "agents"], true)));
    let message = &whole[1..];
    for end in 1..message.len() {
        assert!(
            read_message(&message[..end]).is_err(),
            "{end} of {} bytes",
            message.len()
        );
    }
}

#[test]
fn garbage_is_undecodable_and_random_bytes_do_no_harm() {
    for hex in ["0a", "0a 05 12", "1a 7f", "ff", "08 01 0b"] {
        assert!(read_message(&bytes(hex)).is_err(), "{hex}");
    }
    assert_eq!(
        read_message(&bytes("18 01 7a 00")).map_err(|_| ()),
        Ok(FromWorkload::Empty),
        "unknown fields only"
    );
    let mut random = fastrand::Rng::with_seed(5);
    let seed = workload_side::frame(request(read(&["desiredState.workloads.*"], true)));
    for round in 0..20_000 {
        let mut buffer = FrameBuffer::new(4096);
        let mut stream: Vec<u8> = if round % 2 == 0 {
            (0..random.usize(..200)).map(|_| random.u8(..)).collect()
        } else {
            seed.repeat(3)
        };
        for _ in 0..round % 4 {
            if let Some(byte) = random.choice(stream.iter_mut()) {
                *byte = fastrand::Rng::with_seed(round).u8(..);
            }
        }
        for piece in stream.chunks(50) {
            buffer.put(piece);
            loop {
                match buffer.next_message() {
                    Ok(Some(bytes)) => {
                        // Any message can be written again.
                        if let Ok(message) = read_message(bytes) {
                            let again = workload_side::frame(message);
                            assert!(again.len() <= 2 * stream.len() + 16, "round {round}");
                        }
                    }
                    Ok(None) => break,
                    Err(_) => {
                        buffer.clear();
                        break;
                    }
                }
            }
        }
        assert!(buffer.bytes.len() <= stream.len());
    }
}
