//! States between field trees and the bytes of their messages, directly: a message of the library
//! for each node of a large state would take many times the memory and the time.
//!
//! Thread: whichever reads or writes the stream.
//!
//! A table says for each message which key of the tree is which field; writer.rs and reader.rs
//! follow it. Presence is kept: what a message leaves out is not in the tree, what it sends empty
//! is there and empty. The wire cannot tell an empty map or list from none; which of them is in the
//! tree stands in the table.

pub(super) mod reader;
pub(super) mod writer;

use super::fields::{Fields, Value};
use super::{ConvertError, Decoded, Left};
use ankaios_model::access_rules::{
    LOG_RULE as LOG_RULE_TYPE, Operation, STATE_RULE as STATE_RULE_TYPE,
};
use ankaios_model::complete_state::{Rendering, workload_node};
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::fields::TYPE;
use ankaios_model::node::Node;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::reason::Reason;
use ankaios_model::usage::AgentUsage;
use ankaios_model::workload::{AddCondition, RestartPolicy, Workload};
use reader::{last_of, message, only};
use writer::MessageWriter;

/// A field of a message.
#[derive(Clone, Copy)]
pub(crate) struct WireField {
    pub(crate) number: u32,
    /// Its key in the tree.
    pub(crate) key: &'static str,
    pub kind: WireKind,
    /// Whether it is in every tree that is read.
    always: bool,
}

/// What a field holds.
#[derive(Clone, Copy)]
pub(crate) enum WireKind {
    /// `string`.
    Text,
    /// `uint64`.
    Number,
    /// `uint32`; a larger number becomes the largest.
    Short,
    /// An enumeration: the texts of its values, and their numbers.
    Choice(&'static [&'static str], &'static [u64]),
    /// A message with these fields.
    Message(&'static [WireField]),
    /// A message whose only field, with the number 1, is this.
    Only(&'static WireKind),
    /// `map` from `string` to this.
    Map(&'static WireKind),
    /// `repeated`.
    List(&'static WireKind),
    /// A message that a table cannot describe: one of several fields, by the value.
    Own(Codec),
}

/// How a message is written and read.
#[derive(Clone, Copy)]
pub(crate) struct Codec {
    /// Adds it as the field with that number.
    pub(crate) write: fn(&mut MessageWriter, u32, &Node),
    /// Reads its tree. The number is the depth of messages around it.
    read: fn(&[u8], usize, &mut Left) -> Decoded<Node>,
}

use WireKind::{Choice, List, Map, Number, Only, Own, Short, Text};

const fn field(number: u32, key: &'static str, kind: WireKind) -> WireField {
    WireField {
        number,
        key,
        kind,
        always: false,
    }
}

const fn always(number: u32, key: &'static str, kind: WireKind) -> WireField {
    WireField {
        number,
        key,
        kind,
        always: true,
    }
}

// ------------------------------------------------------------- the messages

const COMPLETE_STATE: &[WireField] = &[
    field(1, "desiredState", WireKind::Message(STATE)),
    field(
        2,
        "workloadStates",
        Only(&Map(&Only(&Map(&Only(&Map(&EXECUTION_STATE)))))),
    ),
    field(3, "agents", Only(&Map(&WireKind::Message(AGENT)))),
    field(4, "effectiveState", WireKind::Message(STATE)),
    field(1000, "usage", Only(&Map(&WireKind::Message(AGENT_USAGE)))),
    field(1001, "modes", WireKind::Message(MODES)),
    field(1002, "timings", WireKind::Message(TIMINGS)),
    field(1003, "updates", Only(&Map(&WireKind::Message(UPDATE)))),
    field(1004, "warning", Text),
    field(
        1005,
        "history",
        Only(&List(&WireKind::Message(STATE_CHANGE))),
    ),
    field(1006, "programs", WireKind::Message(PROGRAMS)),
];
/// The number of the first part that is sent only to who requests it by name.
const FIRST_ON_REQUEST: u32 = 1000;
const STATE: &[WireField] = &[
    always(1, "apiVersion", Text),
    field(2, "workloads", Only(&Map(&WireKind::Message(WORKLOAD)))),
    field(3, "configs", Only(&Map(&CONFIG))),
];
const WORKLOAD: &[WireField] = &[
    field(1, "agent", Text),
    field(2, "restartPolicy", RESTART_POLICY),
    field(3, "dependencies", Only(&Map(&ADD_CONDITION))),
    field(4, "tags", TEXTS),
    field(5, "runtime", Text),
    field(6, "runtimeConfig", Text),
    field(7, "controlInterfaceAccess", WireKind::Message(ACCESS)),
    field(8, "configs", TEXTS),
    field(9, "files", Only(&List(&FILE))),
];
const TEXTS: WireKind = Only(&Map(&Text));
/// Fields of a file, of which it has one.
const DATA: u32 = 2;
const BINARY_DATA: u32 = 3;
const FILE_FIELDS: &[WireField] = &[
    always(1, "mountPoint", Text),
    field(DATA, "data", Text),
    field(BINARY_DATA, "binaryData", Text),
];
const ACCESS: &[WireField] = &[
    always(1, "allowRules", List(&RULE)),
    always(2, "denyRules", List(&RULE)),
];
const STATE_RULE: &[WireField] = &[
    always(1, "operation", OPERATION),
    always(2, "filterMasks", List(&Text)),
];
const LOG_RULE: &[WireField] = &[always(1, "workloadNames", List(&Text))];
const AGENT: &[WireField] = &[
    field(1, "status", WireKind::Message(STATUS)),
    field(2, "tags", TEXTS),
];
const STATUS: &[WireField] = &[
    field(1, "cpuUsage", Only(&Short)),
    field(2, "freeMemory", Only(&Number)),
];
const AGENT_USAGE: &[WireField] = &[
    field(1, "sampledUsec", Number),
    field(2, "node", WireKind::Message(NODE_USAGE)),
    field(
        3,
        "workloads",
        Map(&Only(&Map(&WireKind::Message(WORKLOAD_USAGE)))),
    ),
    field(4, "missing", Text),
];
const NODE_USAGE: &[WireField] = &[
    field(1, "cores", Number),
    field(2, "cpuBusyUsec", Number),
    field(3, "memoryTotalBytes", Number),
    field(4, "memoryAvailableBytes", Number),
];
const WORKLOAD_USAGE: &[WireField] = &[
    field(1, "memoryBytes", Number),
    field(2, "inactiveFileBytes", Number),
    field(3, "memoryPeakBytes", Number),
    field(4, "cpuUsec", Number),
    field(5, "pids", Number),
    field(6, "uptimeMs", Number),
    field(7, "restarts", Number),
    field(8, "missing", Text),
    field(9, "imageBytes", Number),
    field(10, "imageRemovableBytes", Number),
];
const PROGRAMS: &[WireField] = &[
    field(1, "version", Text),
    field(2, "certificateExpires", Number),
    field(3, "agents", Map(&WireKind::Message(AGENT_PROGRAM))),
];
const AGENT_PROGRAM: &[WireField] = &[
    field(1, "version", Text),
    field(2, "certificateExpires", Number),
    field(3, "connectedAt", Number),
    field(4, "engine", Text),
];
const STATE_CHANGE: &[WireField] = &[
    field(1, "at", Number),
    field(2, "agent", Text),
    field(3, "workload", Text),
    field(4, "id", Text),
    field(5, "state", Text),
    field(6, "info", Text),
];
const MODES: &[WireField] = &[
    field(1, "configItem", Text),
    field(2, "current", Text),
    field(3, "known", List(&Text)),
    field(4, "onFailure", Text),
    field(5, "cause", Text),
];
const TIMINGS: &[WireField] = &[
    field(1, "now", Number),
    field(2, "boot", Number),
    field(
        3,
        "instances",
        Map(&Only(&Map(&Only(&Map(&WireKind::Message(
            INSTANCE_TIMINGS,
        )))))),
    ),
];
const INSTANCE_TIMINGS: &[WireField] = &[
    field(1, "desired", Number),
    field(2, "waiting", Number),
    field(3, "starting", Number),
    field(4, "started", Number),
    field(5, "running", Number),
    field(6, "ended", Number),
    field(7, "starts", Number),
    field(8, "prepared", Text),
];

const UPDATE: &[WireField] = &[
    field(1, "phase", Text),
    field(2, "reason", Text),
    field(3, "accepted", Text),
    field(4, "ended", Text),
    field(5, "losses", Short),
    field(6, "waitsFor", List(&Text)),
    field(7, "before", WireKind::Message(STATE)),
    field(8, "workloads", Map(&WireKind::Message(UPDATED_WORKLOAD))),
    field(9, "configs", Map(&WireKind::Message(UPDATED_CONFIG))),
    field(10, "replacedBy", Text),
    field(11, "keptIn", Text),
    field(12, "cause", Text),
];
const UPDATED_WORKLOAD: &[WireField] = &[
    field(1, "old", Text),
    field(2, "new", Text),
    field(3, "after", Text),
];
const UPDATED_CONFIG: &[WireField] = &[field(1, "after", Text)];

const RESTART_POLICY: WireKind = choice(RestartPolicy::TEXTS, &[0, 1, 2]);
const ADD_CONDITION: WireKind = choice(AddCondition::TEXTS, &[0, 1, 2]);
const OPERATION: WireKind = choice(Operation::TEXTS, &[0, 1, 2, 5]);

/// An enum of the protocol: its texts, and the number of each in the same order.
const fn choice(texts: &'static [&'static str], numbers: &'static [u64]) -> WireKind {
    assert!(texts.len() == numbers.len(), "each text has a number");
    Choice(texts, numbers)
}

const CONFIG: WireKind = Own(Codec {
    write: write_config,
    read: read_config,
});
const CONFIG_LIST: WireKind = List(&CONFIG);
const CONFIG_MAP: WireKind = Map(&CONFIG);

fn write_config(writer: &mut MessageWriter, number: u32, node: &Node) {
    writer.nested(number, |writer| match node {
        Node::Text(text) => writer.text(1, text),
        Node::Number(number) => writer.text(1, &number.to_string()),
        Node::List(_) => writer.node(2, Only(&CONFIG_LIST), node),
        Node::Map(_) => writer.node(3, Only(&CONFIG_MAP), node),
    });
}

fn read_config(bytes: &[u8], depth: usize, left: &mut Left) -> Decoded<Node> {
    match last_of(bytes, 1..=3)? {
        Some((1, bytes)) => Ok(Node::text(left.text(bytes)?)),
        Some((2, bytes)) => only(&CONFIG_LIST, bytes, depth, left),
        Some((_, bytes)) => only(&CONFIG_MAP, bytes, depth, left),
        None => Err(ConvertError::missing("config_item_enum")),
    }
}

const FILE: WireKind = Own(Codec {
    write: write_file,
    read: read_file,
});

/// Writes a file; one without content or place is left out.
fn write_file(writer: &mut MessageWriter, number: u32, node: &Node) {
    let Some(place) = text_at(node, "mountPoint") else {
        return;
    };
    let mut field = DATA;
    let mut content = text_at(node, "data");
    if node.get("data").is_none() {
        field = BINARY_DATA;
        content = text_at(node, "binaryData");
    }
    let Some(content) = content else {
        return;
    };
    writer.nested(number, |writer| {
        writer.text(1, place);
        writer.text(field, content);
    });
}

fn read_file(bytes: &[u8], depth: usize, left: &mut Left) -> Decoded<Node> {
    let Some((content, _)) = last_of(bytes, DATA..=BINARY_DATA)? else {
        return Err(ConvertError::missing("file_content"));
    };
    let mut file = message(FILE_FIELDS, bytes, depth, left)?;
    // Of both contents the last one applies.
    let other = if content == DATA {
        "binaryData"
    } else {
        "data"
    };
    if let Node::Map(fields) = &mut file {
        fields.remove(other);
    }
    Ok(file)
}

const RULE: WireKind = Own(Codec {
    write: write_rule,
    read: read_rule,
});

/// Writes an access rule; one of an unknown type or operation is left out.
fn write_rule(writer: &mut MessageWriter, number: u32, node: &Node) {
    let kind = text_at(node, TYPE);
    let operation = text_at(node, "operation").and_then(Operation::parse);
    if kind == Some(STATE_RULE_TYPE) && operation.is_some() {
        let rule = WireKind::Message(STATE_RULE);
        writer.nested(number, |writer| writer.node(1, rule, node));
    } else if kind == Some(LOG_RULE_TYPE) {
        let rule = WireKind::Message(LOG_RULE);
        writer.nested(number, |writer| writer.node(2, rule, node));
    }
}

fn read_rule(bytes: &[u8], depth: usize, left: &mut Left) -> Decoded<Node> {
    match last_of(bytes, 1..=2)? {
        Some((1, bytes)) => read_rule_of(STATE_RULE_TYPE, STATE_RULE, bytes, depth, left),
        Some((_, bytes)) => read_rule_of(LOG_RULE_TYPE, LOG_RULE, bytes, depth, left),
        None => Err(ConvertError::missing("access_rights_rule_enum")),
    }
}

fn read_rule_of(
    kind: &str,
    fields: &[WireField],
    bytes: &[u8],
    depth: usize,
    left: &mut Left,
) -> Decoded<Node> {
    let mut rule = message(fields, bytes, depth, left)?;
    if let Node::Map(entries) = &mut rule {
        entries.insert(TYPE, Node::text(kind));
    }
    Ok(rule)
}

const EXECUTION_STATE: WireKind = Own(Codec {
    write: write_execution_state,
    read: read_execution_state,
});

/// The field and number of each phase, in their order.
const PHASES: [(u32, u64); Phase::ALL.len()] = [
    (2, 0),
    (3, 0),
    (3, 1),
    (3, 2),
    (3, 8),
    (4, 0),
    (5, 0),
    (5, 1),
    (5, 2),
    (5, 8),
    (6, 0),
    (7, 0),
    (7, 1),
    (7, 2),
    (8, 0),
    (9, 0),
];

/// Fields of the reason and of the level of preparation.
const REASON: u32 = 1000;
const PREPARED: u32 = 1001;

fn write_execution_state(writer: &mut MessageWriter, number: u32, node: &Node) {
    let mut parts = StateParts {
        info: text_at(node, "additionalInfo"),
        ..StateParts::default()
    };
    if let (Some(state), Some(sub)) = (text_at(node, "state"), text_at(node, "subState")) {
        parts.phase = Phase::parse(state, sub);
    }
    if let Some(reason) = text_at(node, "reason") {
        parts.reason = number_of(Reason::TEXTS, reason);
    }
    if let Some(level) = text_at(node, "prepared") {
        parts.prepared = number_of(PrepareLevel::TEXTS, level);
    }
    writer.bytes(number, &parts.write());
}

fn text_at<'n>(node: &'n Node, key: &str) -> Option<&'n str> {
    node.get(key).and_then(Node::as_text)
}

/// The tree of an execution state. Where unknown values are shown, a phase of a newer program
/// becomes the state `Unknown`; [`write_execution_state`] leaves it out, because it has no number
/// for it.
fn read_execution_state(bytes: &[u8], _: usize, left: &mut Left) -> Decoded<Node> {
    let parts = match StateParts::read(bytes, left) {
        Ok(parts) => parts,
        Err(ConvertError(why)) if left.shows_unknown => {
            let state = ("state", Node::text("Unknown"));
            return Ok(Node::object([state, ("subState", Node::text(why))]));
        }
        Err(error) => return Err(error),
    };
    let mut entries = Vec::new();
    if let Some(phase) = parts.phase {
        entries.push(("state", Node::text(phase.state())));
        entries.push(("subState", Node::text(phase.sub_state())));
    }
    if let Some(info) = parts.info {
        entries.push(("additionalInfo", Node::text(info)));
    }
    if let Some(number) = parts.reason {
        entries.push(("reason", Node::text(text_of(Reason::TEXTS, number))));
    }
    if let Some(number) = parts.prepared {
        entries.push(("prepared", Node::text(text_of(PrepareLevel::TEXTS, number))));
    }
    Ok(Node::object(entries))
}

/// The text of a number; of one that only a newer program knows, the number itself.
fn text_of(texts: &[&str], number: u64) -> String {
    let known = usize::try_from(number)
        .ok()
        .and_then(|index| texts.get(index));
    match known {
        Some(text) => (*text).to_owned(),
        None => number.to_string(),
    }
}

fn number_of(texts: &[&str], text: &str) -> Option<u64> {
    match texts.iter().position(|known| *known == text) {
        Some(index) => Some(index as u64),
        None => text.parse().ok(),
    }
}

/// An execution state on the wire, as far as it is there.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StateParts<'b> {
    pub(crate) info: Option<&'b str>,
    pub(crate) phase: Option<Phase>,
    /// A number of [`Reason`], which may be unknown here.
    pub(crate) reason: Option<u64>,
    /// One of [`PrepareLevel`], likewise.
    pub(crate) prepared: Option<u64>,
}

impl<'b> StateParts<'b> {
    /// The whole state.
    // [impl->swdd~api-reasons-of-workload-states~1]
    pub(crate) fn of(state: &'b ExecutionState) -> Self {
        Self {
            info: Some(&state.additional_info),
            phase: Some(state.phase),
            reason: state.sent_reason().map(Reason::number),
            prepared: state.sent_level().map(PrepareLevel::number),
        }
    }

    /// The state that the sender means, with this part of its text. If the reason is unknown here,
    /// it is read from the text.
    pub(crate) fn state(&self, phase: Phase, info: &str) -> ExecutionState {
        let mut state = if info.is_empty() {
            ExecutionState::plain(phase)
        } else {
            ExecutionState::from_text(phase, info)
        };
        if let Some(reason) = self.reason.and_then(Reason::from_number) {
            state.reason = reason;
        }
        if let Some(level) = self.prepared.and_then(PrepareLevel::from_number) {
            state.prepared = level;
        }
        state
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let mut writer = MessageWriter::default();
        if let Some(info) = self.info {
            writer.text(1, info);
        }
        if let Some(phase) = self.phase {
            let (field, number) = PHASES[phase as usize];
            writer.number(field, number);
        }
        if let Some(number) = self.reason {
            writer.number(REASON, number);
        }
        if let Some(number) = self.prepared {
            writer.number(PREPARED, number);
        }
        writer.bytes
    }

    pub(crate) fn read(bytes: &'b [u8], left: &mut Left) -> Decoded<Self> {
        let mut parts = Self::default();
        let mut found = None;
        for field in Fields::of(bytes) {
            let field = field?;
            match (field.number, field.value) {
                (1, Value::Bytes(text)) => parts.info = Some(left.text(text)?),
                // Each state is a field of its own, with the number of the sub-state in it.
                (2..=9, Value::Varint(number)) => found = Some((field.number, number)),
                (REASON, Value::Varint(number)) => parts.reason = Some(number),
                (PREPARED, Value::Varint(number)) => parts.prepared = Some(number),
                _ => {}
            }
        }
        if let Some((state, number)) = found {
            let Some(index) = PHASES.iter().position(|known| *known == (state, number)) else {
                return Err(ConvertError::unknown_enum(number));
            };
            let (phase, _, _) = Phase::ALL[index];
            parts.phase = Some(phase);
        }
        Ok(parts)
    }
}

// ---------------------------------------------------------------- the states

/// The bytes of a `CompleteState`. Parts may be missing, and unknown parts are left out.
// [impl->swdd~api-conversions-between-ank-base-and-spec~1]
pub(crate) fn write_state(tree: &Node) -> Vec<u8> {
    MessageWriter::tree(COMPLETE_STATE, tree)
}

/// Adds the bytes of [`write_state`].
pub(crate) fn add_state(writer: &mut MessageWriter, tree: &Node) {
    writer.fields(COMPLETE_STATE, tree);
}

/// The bytes of an `AgentUsage`.
pub(crate) fn write_usage(tree: &Node) -> Vec<u8> {
    MessageWriter::tree(AGENT_USAGE, tree)
}

/// Reads an `AgentUsage`.
pub(crate) fn read_usage(bytes: &[u8], left: &mut Left) -> Decoded<AgentUsage> {
    message(AGENT_USAGE, bytes, 0, left)?
        .read("usage")
        .map_err(|error| ConvertError(error.to_string()))
}

/// Which parts of a `CompleteState` are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parts {
    /// All that the server sends.
    Sent,
    /// Those of a new state: parts on request are unknown there.
    New,
    /// Those of a new state without masks: its desired state and agents. Nothing else applies, so
    /// nothing else is checked.
    NewWhole,
}

/// The tree of a `CompleteState`.
///
/// # Errors
/// An enumeration number without meaning, a choice that is left open or bytes that are no message,
/// anywhere in these parts.
// [impl->swdd~api-conversions-between-ank-base-and-spec~1]
pub(crate) fn read_state(bytes: &[u8], parts: Parts, left: &mut Left) -> Decoded<Node> {
    let mut fields = COMPLETE_STATE.to_vec();
    fields.retain(|field| match parts {
        Parts::Sent => true,
        Parts::New => field.number < FIRST_ON_REQUEST,
        Parts::NewWhole => ["desiredState", "agents"].contains(&field.key),
    });
    left.shows_unknown = parts == Parts::Sent;
    message(&fields, bytes, 0, left)
}

/// The bytes of a complete `Workload`, every part present.
pub(crate) fn write_workload(workload: &Workload) -> Vec<u8> {
    MessageWriter::tree(WORKLOAD, &workload_node(workload, Rendering::Full))
}

/// Reads a complete `Workload`; the field names in errors are those of the schema.
///
/// # Errors
/// The missing or unknown part.
pub(crate) fn read_workload(bytes: &[u8], left: &mut Left) -> Decoded<Workload> {
    let tree = message(WORKLOAD, bytes, 0, left)?;
    for (key, name) in [
        ("agent", "agent"),
        ("runtime", "runtime"),
        ("runtimeConfig", "runtime_config"),
    ] {
        tree.get(key).ok_or_else(|| ConvertError::missing(name))?;
    }
    tree.read("workload")
        .map_err(|error| ConvertError(error.to_string()))
}

/// The text of a field of a message that cannot be read as a whole; empty if it is unreadable too.
fn readable_text(bytes: &[u8], number: u32) -> &str {
    match last_of(bytes, number..=number) {
        Ok(Some((_, text))) => std::str::from_utf8(text).unwrap_or_default(),
        _ => "",
    }
}

/// Stands for a workload that cannot be read because of `error`: its agent refuses it by name.
pub(crate) fn unreadable_workload(bytes: &[u8], error: &ConvertError) -> Workload {
    let agent = readable_text(bytes, 1);
    let runtime = readable_text(bytes, 5);
    let config = readable_text(bytes, 6);
    let why = format!(
        "This agent cannot read the workload: {error}. The server is probably newer; update the agent"
    );
    Workload {
        unreadable: Some(why.into()),
        ..Workload::new(agent, runtime, config)
    }
}

#[cfg(test)]
mod tests;
