//! Field trees written as messages of the schema, straight to bytes: a message of the library for each node of a large
//! state would take many times the memory and the time.
//!
//! Thread: whichever writes the stream.
//!
//! A table says for each message which key of the tree is which field. What a tree lacks, or has in another shape, is left
//! out, since it may be partial.

use super::values::write_phase;
use crate::model::access_rules::Operation;
use crate::model::execution_state::Phase;
use crate::model::node::Node;
use crate::model::workload::{AddCondition, RestartPolicy};
use crate::wire::schema::ank_base as base;
use protobuf::{Enum, Message, SpecialFields};

/// A field of a message.
struct Field {
    number: u32,
    /// Its key in the tree.
    key: &'static str,
    kind: Kind,
}

/// How a node is written.
#[derive(Clone, Copy)]
enum Kind {
    /// `string`.
    Text,
    /// `uint32` or `uint64`.
    Number,
    /// An enumeration, by the name of its value.
    Choice(fn(&str) -> Option<i32>),
    /// A message with these fields.
    Message(&'static [Field]),
    /// A message whose only field, with the number 1, is this.
    Only(&'static Kind),
    /// `map` from `string` to this.
    Map(&'static Kind),
    /// `repeated`.
    List(&'static Kind),
    /// What a table cannot say: one of several fields, by the value.
    Own(fn(&mut Writer, u32, &Node)),
}

use Kind::{Choice, List, Map, Number, Only, Own, Text};

const fn field(number: u32, key: &'static str, kind: Kind) -> Field {
    Field { number, key, kind }
}

// ------------------------------------------------------------- the messages

const COMPLETE_STATE: &[Field] = &[
    field(1, "desiredState", Kind::Message(STATE)),
    field(2, "workloadStates", Only(&Map(&Only(&Map(&Only(&Map(&Own(write_execution_state)))))))),
    field(3, "agents", Only(&Map(&Kind::Message(AGENT)))),
    field(4, "effectiveState", Kind::Message(STATE)),
    field(1000, "usage", Only(&Map(&Kind::Message(AGENT_USAGE)))),
    field(1001, "modes", Kind::Message(MODES)),
    field(1002, "timings", Kind::Message(TIMINGS)),
];
const STATE: &[Field] = &[
    field(1, "apiVersion", Text),
    field(2, "workloads", Only(&Map(&Kind::Message(WORKLOAD)))),
    field(3, "configs", Only(&Map(&Own(write_config)))),
];
const WORKLOAD: &[Field] = &[
    field(1, "agent", Text),
    field(2, "restartPolicy", Choice(restart_policy)),
    field(3, "dependencies", Only(&Map(&Choice(add_condition)))),
    field(4, "tags", TEXTS),
    field(5, "runtime", Text),
    field(6, "runtimeConfig", Text),
    field(7, "controlInterfaceAccess", Kind::Message(ACCESS)),
    field(8, "configs", TEXTS),
    field(9, "files", Only(&List(&Kind::Message(FILE)))),
];
const TEXTS: Kind = Only(&Map(&Text));
const FILE: &[Field] = &[field(1, "mountPoint", Text), field(2, "data", Text), field(3, "binaryData", Text)];
const ACCESS: &[Field] =
    &[field(1, "allowRules", List(&Own(write_rule))), field(2, "denyRules", List(&Own(write_rule)))];
const STATE_RULE: &[Field] = &[field(1, "operation", Choice(operation)), field(2, "filterMasks", List(&Text))];
const LOG_RULE: &[Field] = &[field(1, "workloadNames", List(&Text))];
const AGENT: &[Field] = &[field(1, "status", Kind::Message(STATUS)), field(2, "tags", TEXTS)];
const STATUS: &[Field] = &[field(1, "cpuUsage", Only(&Number)), field(2, "freeMemory", Only(&Number))];
const AGENT_USAGE: &[Field] = &[
    field(1, "sampledUsec", Number),
    field(2, "node", Kind::Message(NODE_USAGE)),
    field(3, "workloads", Map(&Only(&Map(&Kind::Message(WORKLOAD_USAGE))))),
    field(4, "missing", Text),
];
const NODE_USAGE: &[Field] = &[
    field(1, "cores", Number),
    field(2, "cpuBusyUsec", Number),
    field(3, "memoryTotalBytes", Number),
    field(4, "memoryAvailableBytes", Number),
];
const WORKLOAD_USAGE: &[Field] = &[
    field(1, "memoryBytes", Number),
    field(2, "inactiveFileBytes", Number),
    field(3, "memoryPeakBytes", Number),
    field(4, "cpuUsec", Number),
    field(5, "pids", Number),
    field(6, "uptimeMs", Number),
    field(7, "restarts", Number),
    field(8, "missing", Text),
];
const MODES: &[Field] = &[
    field(1, "configItem", Text),
    field(2, "current", Text),
    field(3, "known", List(&Text)),
    field(4, "onFailure", Text),
    field(5, "cause", Text),
];
const TIMINGS: &[Field] = &[
    field(1, "now", Number),
    field(2, "boot", Number),
    field(3, "instances", Map(&Only(&Map(&Only(&Map(&Kind::Message(INSTANCE_TIMINGS))))))),
];
const INSTANCE_TIMINGS: &[Field] = &[
    field(1, "desired", Number),
    field(2, "waiting", Number),
    field(3, "starting", Number),
    field(4, "started", Number),
    field(5, "running", Number),
    field(6, "ended", Number),
    field(7, "starts", Number),
    field(8, "prepared", Text),
];

fn restart_policy(name: &str) -> Option<i32> {
    Some(base::RestartPolicy::from(RestartPolicy::parse(name)?).value())
}

fn add_condition(name: &str) -> Option<i32> {
    Some(base::AddCondition::from(AddCondition::parse(name)?).value())
}

fn operation(name: &str) -> Option<i32> {
    Some(base::ReadWriteEnum::from(Operation::parse(name)?).value())
}

fn write_config(writer: &mut Writer, number: u32, node: &Node) {
    writer.nested(number, |writer| match node {
        Node::Text(text) => writer.text(1, text),
        Node::Number(number) => writer.text(1, &number.to_string()),
        Node::List(_) => writer.nested(2, |writer| writer.node(1, List(&Own(write_config)), node)),
        Node::Map(_) => writer.nested(3, |writer| writer.node(1, Map(&Own(write_config)), node)),
    });
}

fn write_rule(writer: &mut Writer, number: u32, node: &Node) {
    let (kind, fields) = match node.get("type").and_then(Node::as_text) {
        Some("StateRule") => (1, STATE_RULE),
        Some("LogRule") => (2, LOG_RULE),
        _ => return,
    };
    writer.nested(number, |writer| writer.node(kind, Kind::Message(fields), node));
}

fn write_execution_state(writer: &mut Writer, number: u32, node: &Node) {
    let text = |key: &str| node.get(key).and_then(Node::as_text);
    let phase = text("state").zip(text("subState")).and_then(|(state, sub)| Phase::parse(state, sub));
    writer.nested(number, |writer| {
        text("additionalInfo").into_iter().for_each(|info| writer.text(1, info));
        if let Some(phase) = phase {
            let state = base::ExecutionState { ExecutionStateEnum: Some(write_phase(phase)), ..Default::default() };
            state.write_to_vec(&mut writer.bytes).expect("no field is required, and a vector takes all bytes");
        }
    });
}

// --------------------------------------------------------------- the bytes

/// The wire type of numbers.
const VARINT: u32 = 0;
/// That of texts and messages, which begin with their length.
const LENGTH: u32 = 2;

#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn tag(&mut self, number: u32, wire_type: u32) {
        self.varint(u64::from(number << 3 | wire_type));
    }

    fn text(&mut self, number: u32, text: &str) {
        self.tag(number, LENGTH);
        self.varint(text.len() as u64);
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// Writes what `body` writes as one field. Most lengths need one byte, for which there is room; what is longer moves.
    fn nested(&mut self, number: u32, body: impl FnOnce(&mut Self)) {
        self.tag(number, LENGTH);
        let at = self.bytes.len();
        self.bytes.push(0);
        body(self);
        let length = self.bytes.len() - at - 1;
        let mut prefix = Self::default();
        match u8::try_from(length) {
            Ok(short @ ..0x80) => self.bytes[at] = short,
            _ => {
                prefix.varint(length as u64);
                self.bytes.splice(at..=at, prefix.bytes);
            }
        }
    }

    fn fields(&mut self, fields: &[Field], node: &Node) {
        for Field { number, key, kind } in fields {
            if let Some(child) = node.get(key) {
                self.node(*number, *kind, child);
            }
        }
    }

    fn node(&mut self, number: u32, kind: Kind, node: &Node) {
        match kind {
            Text => node.as_text().into_iter().for_each(|text| self.text(number, text)),
            Number => node.as_number().into_iter().for_each(|value| {
                self.tag(number, VARINT);
                self.varint(value);
            }),
            Choice(value) => {
                if let Some(value) = node.as_text().and_then(value).and_then(|value| u64::try_from(value).ok()) {
                    self.tag(number, VARINT);
                    self.varint(value);
                }
            }
            Kind::Message(fields) => self.nested(number, |writer| writer.fields(fields, node)),
            Only(kind) => self.nested(number, |writer| writer.node(1, *kind, node)),
            Map(kind) => {
                for (key, value) in node.as_map().into_iter().flatten() {
                    self.nested(number, |writer| {
                        writer.text(1, key);
                        writer.node(2, *kind, value);
                    });
                }
            }
            List(kind) => {
                node.as_list().unwrap_or_default().iter().for_each(|item| self.node(number, *kind, item));
            }
            Own(write) => write(self, number, node),
        }
    }
}

fn bytes(fields: &[Field], tree: &Node) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.fields(fields, tree);
    writer.bytes
}

/// The bytes of a `CompleteState`.
// [impl->swdd~api-conversions-between-ank-base-and-spec~1]
#[must_use]
pub fn complete_state(tree: &Node) -> Vec<u8> {
    bytes(COMPLETE_STATE, tree)
}

/// The bytes of a `Workload`.
#[must_use]
pub fn workload(tree: &Node) -> Vec<u8> {
    bytes(WORKLOAD, tree)
}

/// The bytes of an `AgentUsage`.
#[must_use]
pub fn agent_usage(tree: &Node) -> Vec<u8> {
    bytes(AGENT_USAGE, tree)
}

/// Makes bytes the field `number` of a message. The library writes fields that it does not know as they are, so they are
/// given to it as such a field.
#[must_use]
pub fn as_field(number: u32, bytes: Vec<u8>) -> SpecialFields {
    let mut fields = SpecialFields::new();
    fields.mut_unknown_fields().add_length_delimited(number, bytes);
    fields
}
