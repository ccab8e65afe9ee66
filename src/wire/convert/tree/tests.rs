//! The table against the schema, and both directions against the library.
//!
//! Thread: the test's.

use super::*;
use crate::convert::schema::ank_base as base;
use ankaios_platform::limits::STACK_LARGE;
use ankaios_platform::threads;
use base::CompleteState;
use protobuf::reflect::{
    FieldDescriptor, MessageDescriptor, ReflectValueBox, RuntimeFieldType, RuntimeType,
};
use protobuf::{CodedInputStream, Message, MessageDyn, MessageFull};
use std::collections::BTreeSet;

/// Compares the fields of a message with the schema: all are there, with their names and types.
fn compare(fields: &[WireField], message: &MessageDescriptor, seen: &mut BTreeSet<String>) {
    seen.insert(message.full_name().to_owned());
    let expected: Vec<FieldDescriptor> = message.fields().collect();
    assert_eq!(fields.len(), expected.len(), "{message}");
    for (field, expected) in fields.iter().zip(expected) {
        assert_eq!(
            (field.number.cast_signed(), field.key),
            (expected.number(), expected.json_name()),
            "{message}"
        );
        compare_kind(field.kind, &expected, seen);
    }
}

fn compare_kind(kind: WireKind, field: &FieldDescriptor, seen: &mut BTreeSet<String>) {
    let one = |kind: WireKind, value: RuntimeType, seen: &mut BTreeSet<String>| match (kind, value)
    {
        (Text, RuntimeType::String) | (Number, RuntimeType::U64) | (Short, RuntimeType::U32) => {}
        (Choice(texts, numbers), RuntimeType::Enum(values)) => {
            assert_eq!(texts.len(), numbers.len());
            let expected: Vec<u64> = values
                .values()
                .map(|value| value.value().try_into().unwrap())
                .collect();
            assert_eq!(numbers, expected);
        }
        (WireKind::Message(fields), RuntimeType::Message(message)) => {
            compare(fields, &message, seen)
        }
        (Only(kind), RuntimeType::Message(message)) => {
            let only: Vec<FieldDescriptor> = message.fields().collect();
            assert!(only.len() == 1 && only[0].number() == 1, "{message}");
            compare_kind(*kind, &only[0], seen);
        }
        // Their codecs are compared by messages of their own.
        (Own(_), RuntimeType::Message(_)) => {}
        (_, value) => panic!("{field} is {value:?}"),
    };
    match (kind, field.runtime_field_type()) {
        (Map(kind), RuntimeFieldType::Map(RuntimeType::String, value)) => one(*kind, value, seen),
        (List(kind), RuntimeFieldType::Repeated(value)) => one(*kind, value, seen),
        (kind, RuntimeFieldType::Singular(value)) => one(kind, value, seen),
        _ => panic!("{field}"),
    }
}

#[test]
fn the_table_is_that_of_the_schema() {
    let mut seen = BTreeSet::new();
    compare(COMPLETE_STATE, &CompleteState::descriptor(), &mut seen);
    for (fields, message) in [
        (FILE_FIELDS, base::File::descriptor()),
        (STATE_RULE, base::StateRule::descriptor()),
        (LOG_RULE, base::LogRule::descriptor()),
        (AGENT_USAGE, base::AgentUsage::descriptor()),
    ] {
        compare(fields, &message, &mut seen);
    }
    assert!(seen.len() > 10, "{seen:?}");
}

fn read_state(bytes: &[u8], parts: Parts) -> Decoded<Node> {
    super::read_state(bytes, parts, &mut Left::unbounded())
}

/// The message as the library reads it. It needs the end as a limit, or takes a cut message for a
/// complete one.
fn decode<M: Message>(bytes: &[u8]) -> protobuf::Result<M> {
    let mut message = M::new();
    let mut stream = CodedInputStream::from_bytes(bytes);
    stream.push_limit(bytes.len() as u64)?;
    message.merge_from(&mut stream)?;
    Ok(message)
}

/// Whatever the schema allows. Of several fields of which one is sent, one is there.
fn random_message(
    random: &mut fastrand::Rng,
    descriptor: &MessageDescriptor,
    depth: usize,
) -> Box<dyn MessageDyn> {
    let mut message = descriptor.new_instance();
    let chosen: Vec<String> = descriptor
        .oneofs()
        .filter(|choice| !choice.is_synthetic())
        .filter_map(|choice| {
            // The first one needs no other messages.
            let fields: Vec<FieldDescriptor> = choice.fields().collect();
            let index = if depth == 0 {
                0
            } else {
                random.usize(..fields.len())
            };
            Some(fields.get(index)?.name().to_owned())
        })
        .collect();
    for field in descriptor.fields() {
        let is_choice = field
            .containing_oneof()
            .is_some_and(|choice| !choice.is_synthetic());
        if if is_choice {
            !chosen.iter().any(|name| name == field.name())
        } else {
            random.u8(..3) == 0
        } {
            continue;
        }
        let count = if depth == 0 { 0 } else { random.usize(..4) };
        match field.runtime_field_type() {
            RuntimeFieldType::Singular(value) => {
                field.set_singular_field(&mut *message, random_value(random, &value, depth));
            }
            RuntimeFieldType::Repeated(value) => {
                let mut list = field.mut_repeated(&mut *message);
                (0..count).for_each(|_| list.push(random_value(random, &value, depth)));
            }
            RuntimeFieldType::Map(key, value) => {
                let mut map = field.mut_map(&mut *message);
                (0..count).for_each(|_| {
                    map.insert(
                        random_value(random, &key, depth),
                        random_value(random, &value, depth),
                    )
                });
            }
        }
    }
    message
}

fn random_value(random: &mut fastrand::Rng, value: &RuntimeType, depth: usize) -> ReflectValueBox {
    match value {
        RuntimeType::String => {
            let length = if random.u8(..20) == 0 {
                200
            } else {
                random.usize(..4)
            };
            ReflectValueBox::String(
                (0..length)
                    .map(|_| *random.choice(&['a', 'b', '.', 'é', '\0']).unwrap())
                    .collect(),
            )
        }
        RuntimeType::U32 => ReflectValueBox::U32(random.u32(..) >> random.u8(..32)),
        RuntimeType::U64 => ReflectValueBox::U64(random.u64(..) >> random.u8(..64)),
        RuntimeType::Enum(values) => {
            let values: Vec<i32> = values.values().map(|value| value.value()).collect();
            let RuntimeType::Enum(descriptor) = value else {
                unreachable!("it is one")
            };
            ReflectValueBox::Enum(descriptor.clone(), random.choice(values).unwrap())
        }
        RuntimeType::Message(message) => {
            ReflectValueBox::Message(random_message(random, message, depth.saturating_sub(1)))
        }
        other => panic!("no state has {other:?}"),
    }
}

fn random_state(random: &mut fastrand::Rng) -> Vec<u8> {
    random_message(random, &CompleteState::descriptor(), 7)
        .write_to_bytes_dyn()
        .unwrap()
}

#[test]
fn library_and_own_codec_read_what_the_other_writes() {
    let mut random = fastrand::Rng::with_seed(20);
    for _ in 0..1_000 {
        let bytes = random_state(&mut random);
        let tree = read_state(&bytes, Parts::Sent).unwrap();
        let written = CompleteState::parse_from_bytes(&write_state(&tree)).unwrap();
        assert_eq!(written, CompleteState::parse_from_bytes(&bytes).unwrap());
        assert_eq!(read_state(&write_state(&tree), Parts::Sent), Ok(tree));
    }
}

/// Damaged bytes are read as the library reads them, which writes them without skipped parts.
#[test]
fn damaged_bytes_are_refused_or_read_as_the_library_reads_them() {
    let mut random = fastrand::Rng::with_seed(21);
    let mut read = 0;
    for _ in 0..30_000 {
        let mut bytes = random_state(&mut random);
        if bytes.is_empty() {
            continue;
        }
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..bytes.len());
            match random.u8(..4) {
                0 => bytes.truncate(at.max(1)),
                1 => bytes[at] = random.u8(..),
                2 => bytes.insert(at, random.u8(..)),
                _ => bytes[at] ^= 1 << random.u8(..8),
            }
        }
        let ours = read_state(&bytes, Parts::Sent);
        if let (Ok(tree), Ok(message)) = (&ours, decode::<CompleteState>(&bytes)) {
            let plain = message.write_to_bytes().unwrap();
            assert_eq!(
                read_state(&plain, Parts::Sent).as_ref(),
                Ok(tree),
                "{bytes:?}"
            );
            read += 1;
        }
    }
    // About 3,040: the library writes the entries of a map in another order each time.
    assert!(read > 2_500, "{read}");
}

/// The field with that number that has these bytes.
fn with_length(number: u32, bytes: &[u8]) -> Vec<u8> {
    let mut writer = MessageWriter::default();
    writer.bytes(number, bytes);
    writer.bytes
}

#[test]
fn messages_nest_as_deep_as_in_the_library_on_every_thread() {
    let nested = move |levels: usize| {
        let text = with_length(1, b"x");
        let list = (0..levels).fold(text, |inner, _| with_length(2, &with_length(1, &inner)));
        let configs = with_length(1, &[with_length(1, b"c"), with_length(2, &list)].concat());
        with_length(1, &with_length(3, &configs))
    };
    let (sender, deepest) = std::sync::mpsc::sync_channel(1);
    let read = move |levels: &usize| read_state(&nested(*levels), Parts::New).is_ok();
    let _thread = threads::spawn("deep", STACK_LARGE / 2, move || {
        sender.send((0..5_000).take_while(read).count()).unwrap();
    });
    let deepest = deepest.recv().unwrap();
    assert!((40..50).contains(&deepest), "{deepest}");
    assert!(CompleteState::parse_from_bytes(&nested(deepest - 1)).is_ok());
    let error = read_state(&nested(5_000), Parts::New).unwrap_err();
    assert_eq!(error.to_string(), "messages that nest too deep");
}

#[test]
fn last_of_two_fields_is_used_and_another_shape_ignored() {
    let workload = |fields: &[u8]| {
        let entry = with_length(1, &[with_length(1, b"w"), with_length(2, fields)].concat());
        let tree = read_state(&with_length(1, &with_length(2, &entry)), Parts::New);
        tree.map(|tree| {
            serde_json::to_string(tree.at(&["desiredState", "workloads", "w"]).unwrap()).unwrap()
        })
    };
    let file = |fields: &[(u32, &[u8])]| {
        with_length(
            9,
            &with_length(
                1,
                &fields
                    .iter()
                    .flat_map(|(number, bytes)| with_length(*number, bytes))
                    .collect::<Vec<_>>(),
            ),
        )
    };
    let tags = |tags: &[&[u8]]| {
        with_length(
            4,
            &tags
                .iter()
                .flat_map(|tag| with_length(1, tag))
                .collect::<Vec<_>>(),
        )
    };
    let tag = |key: &[u8], value: &[u8]| [with_length(1, key), with_length(2, value)].concat();
    for (fields, expected) in [
        (vec![], "{}"),
        (
            [with_length(1, b"A"), with_length(1, b"B")].concat(),
            r#"{"agent":"B"}"#,
        ),
        // A number where a text belongs, and a text where a number belongs.
        (vec![0x08, 0x05], "{}"),
        (with_length(2, b"x"), "{}"),
        (
            vec![0x10, 0x01, 0x10, 0x02],
            r#"{"restartPolicy":"ALWAYS"}"#,
        ),
        // Numbers of fixed length, and groups, of which one is within the other.
        (vec![0x09, 0, 0, 0, 0, 0, 0, 0, 0, 0x0d, 0, 0, 0, 0], "{}"),
        (
            [
                &[0x0b, 0x13, 0x08, 0x01, 0x14, 0x0c][..],
                &with_length(5, b"r"),
            ]
            .concat(),
            r#"{"runtime":"r"}"#,
        ),
        (
            tags(&[&tag(b"k", b"1"), &tag(b"", b""), &tag(b"k", b"2"), b""]),
            r#"{"tags":{"":"","k":"2"}}"#,
        ),
        (
            [tags(&[&tag(b"k", b"1")]), tags(&[])].concat(),
            r#"{"tags":{}}"#,
        ),
        (
            file(&[(2, b"d"), (3, b"b"), (1, b"/m")]),
            r#"{"files":[{"binaryData":"b","mountPoint":"/m"}]}"#,
        ),
        (
            file(&[(3, b"b"), (2, b"d")]),
            r#"{"files":[{"data":"d","mountPoint":""}]}"#,
        ),
        (
            with_length(7, b""),
            r#"{"controlInterfaceAccess":{"allowRules":[],"denyRules":[]}}"#,
        ),
        (
            with_length(7, &with_length(1, &with_length(1, b""))),
            r#"{"controlInterfaceAccess":{"allowRules":[{"filterMasks":[],"operation":"Nothing","type":"StateRule"}],"denyRules":[]}}"#,
        ),
    ] {
        assert_eq!(workload(&fields).as_deref(), Ok(expected), "{fields:?}");
    }
    for (fields, message) in [
        (with_length(1, &[0xff]), "a text that is no UTF-8"),
        (vec![0x0a, 0x05, b'x'], "bytes that are no message"),
        (vec![0x0b, 0x08], "bytes that are no message"),
        (vec![0x02, 0x00], "bytes that are no message"),
        (vec![0x0c], "bytes that are no message"),
        (vec![0xff; 11], "bytes that are no message"),
        (
            with_length(7, &with_length(1, b"")),
            "Missing field 'access_rights_rule_enum'",
        ),
        (
            vec![
                0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
            ],
            "unknown enumeration value -1",
        ),
    ] {
        assert_eq!(
            workload(&fields).unwrap_err().to_string(),
            message,
            "{fields:?}"
        );
    }
}

#[test]
fn a_number_that_is_too_long_for_its_field_becomes_the_longest() {
    let status = Node::object([
        ("cpuUsage", Node::Number(1 << 40)),
        ("freeMemory", Node::Number(1 << 40)),
    ]);
    let agents = Node::map([("A", Node::object([("status", status)]))]);
    let written =
        CompleteState::parse_from_bytes(&write_state(&Node::object([("agents", agents)]))).unwrap();
    let status = &written.agents.agents["A"].status;
    assert_eq!(
        (status.cpu_usage.cpu_usage, status.free_memory.free_memory),
        (u32::MAX, 1 << 40)
    );
}

#[test]
fn files_and_rules_that_are_not_complete_are_left_out() {
    let text = Node::text;
    let files = [
        vec![("mountPoint", text("/a"))],
        vec![("data", text("x"))],
        vec![
            ("mountPoint", text("/b")),
            ("data", text("d")),
            ("binaryData", text("b")),
        ],
    ];
    let rules = [
        vec![("type", text("StateRule"))],
        vec![("type", text("StateRule")), ("operation", text("Fly"))],
        vec![("operation", text("Read"))],
        vec![("type", text("LogRule"))],
    ];
    let list = |items: &[Vec<(&'static str, Node)>]| {
        Node::List(items.iter().cloned().map(Node::object).collect())
    };
    let workload = Node::object([
        ("files", list(&files)),
        (
            "controlInterfaceAccess",
            Node::object([("denyRules", list(&rules))]),
        ),
    ]);
    let workload =
        base::Workload::parse_from_bytes(&MessageWriter::tree(WORKLOAD, &workload)).unwrap();
    assert_eq!(
        workload
            .files
            .files
            .iter()
            .map(|file| (&*file.mountPoint, file.data()))
            .collect::<Vec<_>>(),
        [("/b", "d")]
    );
    assert_eq!(
        (
            workload.controlInterfaceAccess.denyRules.len(),
            workload.controlInterfaceAccess.allowRules.len()
        ),
        (1, 0)
    );
}
