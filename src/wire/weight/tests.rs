//! Tests of the weights: against the schema, against what decoding really takes, and with what is malformed.

use super::*;
use protobuf::MessageFull;
use protobuf::reflect::{MessageDescriptor, RuntimeFieldType, RuntimeType};
use std::collections::BTreeSet;

/// Compares a shape and all that it nests with the schema.
fn compare(shape: &'static Shape, message: &MessageDescriptor, seen: &mut BTreeSet<String>) {
    let name = message.full_name().to_owned();
    if !seen.insert(name.clone()) {
        return;
    }
    const FIRST_EXTENSION: u32 = 1000;
    let numbers = message.fields().map(|field| u32::try_from(field.number()).unwrap());
    let last = numbers.filter(|number| *number < FIRST_EXTENSION).max().unwrap_or(0);
    // Hellos share a shape; a gap between the numbers of fields is nothing to know about.
    assert!(shape.last >= last && shape.last <= last + 2, "{name}: {} {last}", shape.last);
    for field in message.fields() {
        let number = u32::try_from(field.number()).unwrap();
        let nested = shape.nested.iter().find(|(nested, _)| *nested == number).map(|(_, shape)| *shape);
        let what = format!("{name}.{}", field.name());
        let found = match field.runtime_field_type() {
            RuntimeFieldType::Singular(RuntimeType::Message(inner))
            | RuntimeFieldType::Repeated(RuntimeType::Message(inner)) => Some((nested.expect(&what), inner)),
            RuntimeFieldType::Map(_, RuntimeType::Message(inner)) => {
                let [(2, value)] = nested.expect(&what).nested else { panic!("{what} is a map of messages") };
                Some((*value, inner))
            }
            RuntimeFieldType::Map(..) => {
                assert!(nested.expect(&what).nested.is_empty(), "{what} is a map of values");
                None
            }
            // A message that is left as bytes at first.
            RuntimeFieldType::Singular(RuntimeType::VecU8) => {
                assert_eq!(what, "ank_base.UpdateStateRequest.newState");
                Some((nested.expect(&what), base::CompleteState::descriptor()))
            }
            _ => {
                assert!(nested.is_none(), "{what} is a value");
                None
            }
        };
        if let Some((shape, inner)) = found {
            compare(shape, &inner, seen);
        }
    }
    for (number, _) in shape.nested {
        assert!(message.fields().any(|field| field.number() == i32::try_from(*number).unwrap()), "{name}: {number}");
    }
}

#[test]
fn shapes_are_those_of_the_schema() {
    let mut seen = BTreeSet::new();
    compare(&TO_ANKAIOS, &control::ToAnkaios::descriptor(), &mut seen);
    compare(&TO_SERVER, &grpc::ToServer::descriptor(), &mut seen);
    assert!(seen.len() > 40, "{seen:?}");
}

fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in [u64::from(number) << 3 | 2, content.len() as u64] {
        let mut rest = part;
        while rest >= 0x80 {
            bytes.push(0x80 | u8::try_from(rest & 0x7f).unwrap());
            rest >>= 7;
        }
        bytes.push(u8::try_from(rest).unwrap());
    }
    [&bytes, content].concat()
}

/// Wraps `content` into fields, the last number being the innermost.
fn within(path: &[u32], content: &[u8]) -> Vec<u8> {
    path.iter().rev().fold(content.to_vec(), |bytes, number| field(*number, &bytes))
}

/// A message of a workload whose `parts` are all tiny, each of them another way to take memory.
fn dense(kind: usize, parts: usize) -> Vec<u8> {
    let state = |path: &[u32], content: &[u8]| within(&[&[3, 2, 1, 1], path].concat(), content);
    match kind {
        0 => within(&[3, 4], &field(1, &[]).repeat(parts)), // names of workloads
        1 => within(&[3, 3], &field(1, &[]).repeat(parts)), // masks
        2 => state(&[3, 1, 2, 2], &field(1, &[]).repeat(parts)), // items of a config
        3 => state(&[2, 1, 2, 7], &field(1, &[]).repeat(parts)), // rules of a workload
        4 => state(&[2, 1, 2, 9], &field(1, &[]).repeat(parts)), // files of a workload
        5 => {
            // workloads without anything
            let names =
                (0..parts).flat_map(|n| field(1, &[field(1, n.to_string().as_bytes()), field(2, &[])].concat()));
            state(&[2], &names.collect::<Vec<u8>>())
        }
        _ => {
            // fields that nobody knows
            let unknown = (0..parts).flat_map(|n| field(100 + u32::try_from(n).unwrap(), &[]));
            within(&[3, 3], &unknown.collect::<Vec<u8>>())
        }
    }
}

#[test]
fn messages_of_tiny_parts_are_refused_before_they_fill_the_memory() {
    for kind in 0..7 {
        let few = dense(kind, 1_000);
        assert!(control::ToAnkaios::parse_from_bytes(&few).is_ok(), "kind {kind}");
        let weight = weigh(&few, &TO_ANKAIOS).expect("a thousand parts are nothing unusual");
        assert!(weight > 48_000, "kind {kind}: {weight}");
        let many = dense(kind, 800_000);
        let error = weigh(&many, &TO_ANKAIOS).expect_err("almost a million parts");
        assert!(error.to_string().contains("bytes of memory"), "{error}");
    }
}

#[test]
fn a_weight_counts_at_least_the_structures_that_decoding_makes() {
    for (kind, each) in [
        (0, size_of::<base::WorkloadInstanceName>()),
        (1, size_of::<String>()),
        (2, size_of::<base::ConfigItem>()),
        (3, size_of::<base::AccessRightsRule>()),
        (4, size_of::<base::File>()),
        (5, size_of::<base::Workload>() + size_of::<String>()),
        (6, 4 * size_of::<Vec<u64>>()), // what the decoder keeps of each
    ] {
        let parts = 10_000;
        let weight = weigh(&dense(kind, parts), &TO_ANKAIOS).unwrap();
        assert!(weight > parts * (each + 24), "kind {kind}: {weight}");
    }
}

#[test]
fn messages_of_long_texts_and_usual_states_are_never_too_heavy() {
    let text = within(&[3, 2, 1, 1, 2, 1, 2, 6], &vec![b'x'; 8_000_000]);
    let workload = |number: usize| {
        let texts =
            [(1, "agent_A"), (5, "podman"), (6, "image: alpine:latest")].map(|(n, text)| field(n, text.as_bytes()));
        let tags = within(&[4, 1], &[field(1, b"owner"), field(2, b"me")].concat());
        let workload = [&texts.concat(), tags.as_slice()].concat();
        field(1, &[field(1, format!("workload_{number}").as_bytes()), field(2, &workload)].concat())
    };
    let workloads = within(&[3, 2, 1, 1, 2], &(0..20_000).flat_map(workload).collect::<Vec<u8>>());
    for message in [text, workloads] {
        let weight = weigh(&message, &TO_ANKAIOS).unwrap();
        assert!(weight > message.len());
    }
}

#[test]
fn ids_are_found_as_the_decoder_finds_them() {
    for (bytes, expected) in [
        (within(&[3, 1], b"id"), Some("id")),
        ([within(&[3, 1], b"first"), within(&[3, 1], b"last")].concat(), Some("last")),
        (field(3, &[field(1, b"first"), field(3, b""), field(1, b"last")].concat()), Some("last")),
        (within(&[3, 3], b""), Some("")),
        (within(&[3, 1], &[0xff]), None),
        (within(&[1, 2], b"1.0.0"), None),
        (vec![], None),
    ] {
        assert_eq!(request_id(&bytes).as_deref(), expected, "{bytes:?}");
    }
}

#[test]
fn a_request_is_known_by_the_part_that_counts() {
    let (request, states) = (within(&[3, 1], b"id"), within(&[2, 1], b""));
    for (bytes, expected) in [
        (request.clone(), true),
        (states.clone(), false),
        ([states.clone(), request.clone()].concat(), true),
        ([request, states].concat(), false),
        (vec![], false),
    ] {
        assert_eq!(is_request(&bytes), expected, "{bytes:?}");
    }
}

#[test]
fn what_is_malformed_ends_the_count() {
    for bytes in
        [&[0xff; 20][..], &[0x1a], &[0x1a, 5, 0x12], &[0x1a, 0xff, 0xff, 0xff, 0xff, 0x0f], &[0x0b, 0x0c, 9, 1]]
    {
        assert!(weigh(bytes, &TO_ANKAIOS).is_ok(), "{bytes:?}");
    }
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..random.usize(..60)).map(|_| random.u8(..)).collect();
        let weight = weigh(&bytes, &TO_SERVER).unwrap();
        assert!(weight < 1_000_000);
    }
    // Config items within config items, deeper than the decoder goes.
    let nested = (0..5_000).fold(vec![], |inner, _| within(&[2, 1], &inner));
    let deep = within(&[1, 3, 1, 2], &nested);
    assert!(weigh(&within(&[3, 2, 1], &deep), &TO_ANKAIOS).is_ok());
    assert!(base::CompleteState::parse_from_bytes(&deep).is_err());
}

#[test]
fn masks_of_a_read_are_counted_before_it_is_decoded_and_those_of_an_update_are_not() {
    let masks = |number: u32, count: usize| field(number, b"a.b").repeat(count);
    let request = |content: Vec<u8>| field(3, &[field(1, b"id"), content].concat());
    let read = |count| request(field(3, &masks(1, count)));
    let most = READ_MASKS_PARTS_MAX / 2;
    for shape in [&TO_SERVER, &TO_ANKAIOS] {
        assert!(weigh_request(&read(most), shape).is_ok());
        let reason = weigh_request(&read(most + 1), shape).unwrap_err();
        assert!(reason.contains(&format!("have {} parts", 2 * most + 2)), "{reason}");
        assert!(weigh_request(&request(field(2, &masks(2, most + 1))), shape).is_ok());
        // Of fields that are there twice the decoder joins the masks.
        let twice = request([field(3, &masks(1, most)), field(3, &masks(1, 1))].concat());
        assert!(weigh_request(&twice, shape).is_err());
    }
}

#[test]
fn the_id_of_a_request_is_found_in_its_first_bytes() {
    let request = field(3, &[field(1, b"w@7"), field(3, &[7; 10_000])].concat());
    assert_eq!(request_id_of_begin(&request[..100]).as_deref(), Some("w@7"));
    assert_eq!(request_id_of_begin(&request[..5]), None);
    assert_eq!(request_id_of_begin(&field(2, b"states")), None);
    assert_eq!(request_id_of_begin(&field(3, &field(3, &[7; 100]))), None);
    assert_eq!(request_id_of_begin(&[]), None);
}
