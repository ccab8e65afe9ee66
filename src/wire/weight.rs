//! What a message will take in memory, counted on its bytes before it is decoded; afterwards model/memory_size.rs counts.
//! A message of tiny parts takes many times its bytes: two bytes are enough for an empty workload. So a bound on bytes alone
//! does not bound the memory.
//!
//! Thread: `control`, `rx:<peer>`; plain functions. [`Shape`]s list which fields are messages themselves; a test compares
//! them with the schema.

use super::fields::{Fields, Value, read_varint};
use super::schema::{ank_base as base, control_api as control, grpc_api as grpc};
use crate::limits::{DECODED_ALWAYS, DECODED_FACTOR, READ_MASKS_PARTS_MAX};
use protobuf::{CodedInputStream, Message};

/// What a part takes beside itself, in bytes: its place in a map or list that has grown, and in the tree that is made of
/// it.
const PART: usize = 96;
/// What a text or number takes beside its content, in bytes.
const VALUE: usize = 64;
/// What a field that the schema does not know takes, in bytes. The decoder keeps it in a map of its own.
const UNKNOWN: usize = 320;
/// Messages nest less deep than this; the decoder refuses those that do not.
const DEPTH_MAX: usize = 128;

/// A kind of message.
#[derive(Debug)]
pub struct Shape {
    /// What one takes without what its fields point to, in bytes.
    bytes: usize,
    /// The highest number of a field, without those of extensions: between these many numbers are unknown.
    last: u32,
    /// Fields that are messages.
    nested: &'static [(u32, &'static Shape)],
}

const fn shape<M>(last: u32, nested: &'static [(u32, &'static Shape)]) -> Shape {
    Shape { bytes: size_of::<M>() + PART, last, nested }
}

/// An entry of a map with such values.
const fn entry(value: &'static [(u32, &'static Shape)]) -> Shape {
    Shape { bytes: size_of::<String>() + PART, last: 2, nested: value }
}

/// What workloads send.
pub static TO_ANKAIOS: Shape = shape::<control::ToAnkaios>(3, &[(1, &HELLO), (3, &REQUEST)]);
/// What the server receives.
pub static TO_SERVER: Shape = shape::<grpc::ToServer>(
    8,
    &[
        (1, &AGENT_HELLO),
        (2, &UPDATE_WORKLOAD_STATE),
        (3, &REQUEST),
        (4, &EMPTY),
        (5, &AGENT_LOAD),
        (6, &HELLO),
        (7, &LOG_ENTRIES_TO_SERVER),
        (8, &LOGS_STOP_TO_SERVER),
        (1001, &PREPARED),
        (1000, &USAGE_TO_SERVER),
    ],
);
/// Number of the field in both that holds a request, and of its id in that.
const REQUEST_ID: [u32; 2] = [3, 1];

/// Numbers of the fields in both that lead to a mask of a read: request, its content, the mask.
const READ_MASK: [u32; 3] = [REQUEST_ID[0], 3, 1];

static EMPTY: Shape = shape::<base::LogsCancelRequest>(0, &[]);
static HELLO: Shape = shape::<control::Hello>(2, &[]);
static AGENT_HELLO: Shape = shape::<grpc::AgentHello>(3, &[(3, &TAGS)]);
static PREPARED: Shape = shape::<grpc::Prepared>(1, &[(1, &PREPARED_INSTANCE)]);
static PREPARED_INSTANCE: Shape = shape::<grpc::PreparedInstance>(6, &[(1, &INSTANCE)]);
static AGENT_LOAD: Shape = shape::<grpc::AgentLoadStatus>(3, &[(2, &CPU), (3, &MEMORY)]);
static UPDATE_WORKLOAD_STATE: Shape = shape::<grpc::UpdateWorkloadState>(1, &[(1, &WORKLOAD_STATE)]);
static WORKLOAD_STATE: Shape = shape::<base::WorkloadState>(2, &[(1, &INSTANCE), (2, &EXECUTION_STATE)]);
static LOG_ENTRIES_TO_SERVER: Shape = shape::<grpc::LogEntriesResponse>(2, &[(2, &LOG_ENTRIES)]);
static LOG_ENTRIES: Shape = shape::<base::LogEntriesResponse>(1, &[(1, &LOG_ENTRY)]);
static LOG_ENTRY: Shape = shape::<base::LogEntry>(2, &[(1, &INSTANCE)]);
static LOGS_STOP_TO_SERVER: Shape = shape::<grpc::LogsStopResponse>(2, &[(2, &LOGS_STOP)]);
static LOGS_STOP: Shape = shape::<base::LogsStopResponse>(1, &[(1, &INSTANCE)]);
static INSTANCE: Shape = shape::<base::WorkloadInstanceName>(3, &[]);
static USAGE_TO_SERVER: Shape = shape::<grpc::UsageResponse>(2, &[(2, &AGENT_USAGE)]);
static AGENT_USAGE: Shape = shape::<base::AgentUsage>(4, &[(2, &NODE_USAGE), (3, &USAGE_OF_WORKLOAD_ENTRY)]);
static NODE_USAGE: Shape = shape::<base::NodeUsage>(4, &[]);
static USAGE_OF_WORKLOAD_ENTRY: Shape = entry(&[(2, &USAGE_OF_WORKLOAD)]);
static USAGE_OF_WORKLOAD: Shape = shape::<base::InstanceUsageMap>(1, &[(1, &WORKLOAD_USAGE_ENTRY)]);
static WORKLOAD_USAGE_ENTRY: Shape = entry(&[(2, &WORKLOAD_USAGE)]);
static WORKLOAD_USAGE: Shape = shape::<base::WorkloadUsage>(8, &[]);

static REQUEST: Shape =
    shape::<base::Request>(6, &[(2, &UPDATE_STATE), (3, &READ_STATE), (4, &LOGS), (5, &EMPTY), (6, &EMPTY)]);
static UPDATE_STATE: Shape = shape::<base::UpdateStateRequest>(2, &[(1, &COMPLETE_STATE)]);
static READ_STATE: Shape = shape::<base::CompleteStateRequest>(2, &[]);
static LOGS: Shape = shape::<base::LogsRequest>(5, &[(1, &INSTANCE)]);

static COMPLETE_STATE: Shape = shape::<base::CompleteState>(
    4,
    &[
        (1, &STATE),
        (2, &WORKLOAD_STATES),
        (3, &AGENTS),
        (4, &STATE),
        (1000, &USAGE),
        (1001, &MODES),
        (1002, &TIMINGS),
        (1003, &UPDATES),
    ],
);
static USAGE: Shape = shape::<base::UsageMap>(1, &[(1, &AGENT_USAGE_ENTRY)]);
static AGENT_USAGE_ENTRY: Shape = entry(&[(2, &AGENT_USAGE)]);
static MODES: Shape = shape::<base::Modes>(5, &[]);
static TIMINGS: Shape = shape::<base::Timings>(3, &[(3, &TIMINGS_OF_AGENT_ENTRY)]);
static TIMINGS_OF_AGENT_ENTRY: Shape = entry(&[(2, &TIMINGS_OF_AGENT)]);
static TIMINGS_OF_AGENT: Shape = shape::<base::TimingsOfAgent>(1, &[(1, &TIMINGS_OF_WORKLOAD_ENTRY)]);
static TIMINGS_OF_WORKLOAD_ENTRY: Shape = entry(&[(2, &TIMINGS_OF_WORKLOAD)]);
static TIMINGS_OF_WORKLOAD: Shape = shape::<base::TimingsOfWorkload>(1, &[(1, &INSTANCE_TIMINGS_ENTRY)]);
static INSTANCE_TIMINGS_ENTRY: Shape = entry(&[(2, &INSTANCE_TIMINGS)]);
static INSTANCE_TIMINGS: Shape = shape::<base::InstanceTimings>(8, &[]);
static UPDATES: Shape = shape::<base::UpdateMap>(1, &[(1, &UPDATE_ENTRY)]);
static UPDATE_ENTRY: Shape = entry(&[(2, &UPDATE)]);
static UPDATE: Shape =
    shape::<base::GuardedUpdate>(11, &[(7, &STATE), (8, &UPDATED_WORKLOAD_ENTRY), (9, &UPDATED_CONFIG_ENTRY)]);
static UPDATED_WORKLOAD_ENTRY: Shape = entry(&[(2, &UPDATED_WORKLOAD)]);
static UPDATED_WORKLOAD: Shape = shape::<base::UpdatedWorkload>(3, &[]);
static UPDATED_CONFIG_ENTRY: Shape = entry(&[(2, &UPDATED_CONFIG)]);
static UPDATED_CONFIG: Shape = shape::<base::UpdatedConfig>(1, &[]);
static STATE: Shape = shape::<base::State>(3, &[(2, &WORKLOADS), (3, &CONFIGS)]);
static WORKLOADS: Shape = shape::<base::WorkloadMap>(1, &[(1, &WORKLOAD_ENTRY)]);
static WORKLOAD_ENTRY: Shape = entry(&[(2, &WORKLOAD)]);
static WORKLOAD: Shape =
    shape::<base::Workload>(9, &[(3, &DEPENDENCIES), (4, &TAGS), (7, &ACCESS), (8, &MAPPINGS), (9, &FILES)]);
static TEXT_ENTRY: Shape = entry(&[]);
static DEPENDENCIES: Shape = shape::<base::Dependencies>(1, &[(1, &TEXT_ENTRY)]);
static TAGS: Shape = shape::<base::Tags>(1, &[(1, &TEXT_ENTRY)]);
static MAPPINGS: Shape = shape::<base::ConfigMappings>(1, &[(1, &TEXT_ENTRY)]);
static FILES: Shape = shape::<base::Files>(1, &[(1, &FILE)]);
static FILE: Shape = shape::<base::File>(3, &[]);
static ACCESS: Shape = shape::<base::ControlInterfaceAccess>(2, &[(1, &RULE), (2, &RULE)]);
static RULE: Shape = shape::<base::AccessRightsRule>(2, &[(1, &STATE_RULE), (2, &LOG_RULE)]);
static STATE_RULE: Shape = shape::<base::StateRule>(2, &[]);
static LOG_RULE: Shape = shape::<base::LogRule>(1, &[]);
static CONFIGS: Shape = shape::<base::ConfigMap>(1, &[(1, &CONFIG_ENTRY)]);
static CONFIG_ENTRY: Shape = entry(&[(2, &CONFIG)]);
static CONFIG: Shape = shape::<base::ConfigItem>(3, &[(2, &CONFIG_LIST), (3, &CONFIG_OBJECT)]);
static CONFIG_LIST: Shape = shape::<base::ConfigArray>(1, &[(1, &CONFIG)]);
static CONFIG_OBJECT: Shape = shape::<base::ConfigObject>(1, &[(1, &CONFIG_ENTRY)]);
static WORKLOAD_STATES: Shape = shape::<base::WorkloadStatesMap>(1, &[(1, &STATES_OF_AGENT_ENTRY)]);
static STATES_OF_AGENT_ENTRY: Shape = entry(&[(2, &STATES_OF_AGENT)]);
static STATES_OF_AGENT: Shape = shape::<base::ExecutionsStatesOfWorkload>(1, &[(1, &STATES_OF_WORKLOAD_ENTRY)]);
static STATES_OF_WORKLOAD_ENTRY: Shape = entry(&[(2, &STATES_OF_WORKLOAD)]);
static STATES_OF_WORKLOAD: Shape = shape::<base::ExecutionsStatesForId>(1, &[(1, &EXECUTION_STATE_ENTRY)]);
static EXECUTION_STATE_ENTRY: Shape = entry(&[(2, &EXECUTION_STATE)]);
static EXECUTION_STATE: Shape = shape::<base::ExecutionState>(9, &[]);
static AGENTS: Shape = shape::<base::AgentMap>(1, &[(1, &AGENT_ENTRY)]);
static AGENT_ENTRY: Shape = entry(&[(2, &AGENT)]);
static AGENT: Shape = shape::<base::AgentAttributes>(2, &[(1, &AGENT_STATUS), (2, &TAGS)]);
static AGENT_STATUS: Shape = shape::<base::AgentStatus>(2, &[(1, &CPU), (2, &MEMORY)]);
static CPU: Shape = shape::<base::CpuUsage>(1, &[]);
static MEMORY: Shape = shape::<base::FreeMemory>(1, &[]);

/// A message that would take too much memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a message of {bytes} bytes that takes more than {max} bytes of memory when it is decoded")]
pub struct TooHeavy {
    bytes: usize,
    max: usize,
}

/// What a message of this shape will take, in bytes, about; a read with too many masks is not weighed.
///
/// # Errors
/// Why it shall not be decoded.
pub fn weigh_request(bytes: &[u8], shape: &'static Shape) -> Result<usize, String> {
    let parts = parts_of_read_masks(bytes);
    if parts > READ_MASKS_PARTS_MAX {
        return Err(format!(
            "its field masks have {parts} parts, at most {READ_MASKS_PARTS_MAX} are allowed; use fewer or shorter masks"
        ));
    }
    weigh(bytes, shape).map_err(|too_heavy| too_heavy.to_string())
}

/// Parts of all masks of a read or subscription, in a message of a workload or for the server.
fn parts_of_read_masks(bytes: &[u8]) -> usize {
    let [request, read, mask] = READ_MASK;
    let inside = |bytes, number| fields(bytes).filter(move |field| field.number == number).map(|field| field.content);
    let masks = inside(bytes, request).flat_map(|request| inside(request, read)).flat_map(|read| inside(read, mask));
    masks.map(|mask| 1 + mask.iter().filter(|byte| **byte == b'.').count()).sum()
}

/// What the message of this shape will take, in bytes, about.
///
/// # Errors
/// It is too much for a message of that length.
pub fn weigh(bytes: &[u8], shape: &'static Shape) -> Result<usize, TooHeavy> {
    let max = DECODED_ALWAYS.saturating_add(bytes.len().saturating_mul(DECODED_FACTOR));
    let mut left = max;
    match weigh_message(bytes, shape, DEPTH_MAX, &mut left) {
        Some(()) => Ok(max - left),
        None => Err(TooHeavy { bytes: bytes.len(), max }),
    }
}

/// Takes the weight of a message from `left`; `None` when that is not enough. What is malformed ends the count: the
/// decoder gets no further either.
fn weigh_message(bytes: &[u8], shape: &'static Shape, depth: usize, left: &mut usize) -> Option<()> {
    take(left, shape.bytes)?;
    for Field { number, content } in fields(bytes) {
        match shape.nested.iter().find(|(nested, _)| *nested == number) {
            Some((_, nested)) if depth > 0 => weigh_message(content, nested, depth - 1, left)?,
            Some(_) => return Some(()),
            // The text, and a copy in the tree.
            None => take(left, if number <= shape.last { VALUE } else { UNKNOWN } + 2 * content.len())?,
        }
    }
    Some(())
}

fn take(left: &mut usize, bytes: usize) -> Option<()> {
    *left = left.checked_sub(bytes)?;
    Some(())
}

/// Decodes all of `bytes`. The decoder gets their end as a limit: without it, it takes a nested message that
/// is cut short for a complete one, and an update that lost its masks would replace everything.
///
/// # Errors
/// What the decoder does not understand.
pub fn decode<M: Message>(bytes: &[u8]) -> protobuf::Result<M> {
    let mut message = M::new();
    let mut stream = CodedInputStream::from_bytes(bytes);
    stream.push_limit(bytes.len() as u64)?;
    message.merge_from(&mut stream)?;
    Ok(message)
}

/// Whether a message of a workload or for the server is a request. Of several parts the last one counts.
pub fn is_request(bytes: &[u8]) -> bool {
    fields(bytes).last().is_some_and(|field| field.number == REQUEST_ID[0])
}

/// The id of the request in a message of a workload or for the server, if it holds one that can be read.
pub fn request_id(bytes: &[u8]) -> Option<String> {
    let [request, id] = REQUEST_ID;
    // Of fields that are there twice the last one counts.
    let request = fields(bytes).filter(|field| field.number == request).last()?;
    let id = fields(request.content).filter(|field| field.number == id).last();
    String::from_utf8(id.map(|field| field.content.to_vec()).unwrap_or_default()).ok()
}

/// The id of the request that begins with these bytes, if it is there as a whole.
pub fn request_id_of_begin(begin: &[u8]) -> Option<String> {
    let [request, id] = REQUEST_ID;
    let mut rest = begin;
    if read_varint(&mut rest)? != u64::from(request) << 3 | 2 {
        return None;
    }
    read_varint(&mut rest)?; // Its length, of which only the beginning is there.
    let id = fields(rest).take_while(|field| field.number == id).next()?;
    String::from_utf8(id.content.to_vec()).ok()
}

/// A field of a message; a number has no content.
struct Field<'b> {
    number: u32,
    content: &'b [u8],
}

/// The fields of a message, up to the first that is malformed.
fn fields(bytes: &[u8]) -> impl Iterator<Item = Field<'_>> {
    let content = |value| if let Value::Bytes(content) = value { content } else { &[] };
    let fields = Fields::of(bytes).map_while(Result::ok);
    fields.map(move |field| Field { number: field.number, content: content(field.value) })
}

#[cfg(test)]
mod tests;
