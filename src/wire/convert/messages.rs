//! What each message has, and where bytes of peers become messages of ours.
//!
//! Thread: whichever reads or writes the stream.

use super::codec::{Codec, Decoded, Item, Left, Message, PART, from_bytes, last_of, one_of, read_fields, to_bytes};
use super::fields::{Field, Fields, Value, read_varint};
use super::tree::writer::Writer;
use super::tree::{self, Parts};
use super::{ConvertError, phase};
use crate::limits::{CONDITION_INFO_MAX, FOREIGN_MESSAGE_MAX, READ_MASKS_PARTS_MAX, STATE_INFO_MAX};
use crate::model::execution_state::{ExecutionState, WorkloadState};
use crate::model::messages::{
    AddedWorkload, AgentLoad, AlteredFields, DeletedWorkload, FromServer, FromWorkload, LogEntry, LogsRequest,
    PreparedInstance, ReadState, Request, RequestContent, Response, ResponseContent, ToServer, ToWorkload, UpdateState,
    WorkloadPlan,
};
use crate::model::names::{InstanceName, Name};
use crate::model::node::Node;
use crate::model::prepare_level::PrepareLevel;
use crate::model::usage::{AgentUsage, NodeUsage, WorkloadUsage};
use crate::model::workload::Workload;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of a request in what workloads and peers of the server send, and of its id in that.
const REQUEST: u32 = 3;
const REQUEST_ID: u32 = 1;
/// That of a rollback in an update.
const ROLLBACK_OF: u32 = 1005;

// --------------------------------------------------------------- to the server

pub fn write_to_server(message: ToServer) -> Vec<u8> {
    let message = match message {
        ToServer::Empty => None,
        ToServer::StatesComplete => Some(ToServer::WorkloadStates(Vec::new())),
        message => Some(message),
    };
    to_bytes(&mut ToServerMessage(message))
}

/// Reads any message; one without content becomes [`ToServer::Empty`]. A request that may not be decoded becomes one that
/// cannot be understood, so that its sender gets a response.
///
/// # Errors
/// Bytes that are no message.
pub fn read_to_server(bytes: &[u8], left: &mut Left) -> Decoded<ToServer> {
    if bytes.len() > FOREIGN_MESSAGE_MAX && !is_request(bytes) {
        // States, logs and loads go on to others, and all agents send these in pieces that everybody takes.
        let text = format!("{} bytes that are no request, at most {FOREIGN_MESSAGE_MAX} are taken", bytes.len());
        return Err(left.refuse(text));
    }
    let message: Decoded<ToServerMessage> = from_bytes(bytes, left);
    let refused = left.refused().filter(|_| message.is_err());
    if let Some((reason, id)) = refused.zip(request_id(bytes)) {
        return Ok(refused_request(id, reason.clone()));
    }
    Ok(match message?.0 {
        // A list without states is the end of those that an agent has.
        Some(ToServer::WorkloadStates(states)) if states.is_empty() && last_of(bytes, 2) == Some(&[]) => {
            ToServer::StatesComplete
        }
        Some(ToServer::LogsStop { instance, .. }) if instance == InstanceName::default() => ToServer::Empty,
        message => message.unwrap_or(ToServer::Empty),
    })
}

/// A request that was not decoded, for the reason that its sender is told.
pub fn refused_request(id: String, reason: String) -> ToServer {
    let update = UpdateState { new_state: Some(Err(reason)), masks: Vec::new() };
    ToServer::Request(Request { id, content: RequestContent::UpdateState(update) })
}

/// Whether a message of a workload or for the server is a request. Of several parts the last one counts.
fn is_request(bytes: &[u8]) -> bool {
    Fields::of(bytes).map_while(Result::ok).last().is_some_and(|field| field.number == REQUEST)
}

/// The id of the request in a message of a workload or for the server, if it holds one that can be read.
fn request_id(bytes: &[u8]) -> Option<String> {
    let id = last_of(last_of(bytes, REQUEST)?, REQUEST_ID).unwrap_or_default();
    String::from_utf8(id.to_vec()).ok()
}

/// The id of the request that begins with these bytes, if it is there as a whole.
pub fn request_id_of_begin(begin: &[u8]) -> Option<String> {
    let mut rest = begin;
    if read_varint(&mut rest)? != u64::from(REQUEST) << 3 | 2 {
        return None;
    }
    read_varint(&mut rest)?; // Its length, of which only the beginning is there.
    match Fields::of(rest).next()?.ok()? {
        Field { number: REQUEST_ID, value: Value::Bytes(id) } => String::from_utf8(id.to_vec()).ok(),
        _ => None,
    }
}

#[derive(Default)]
struct ToServerMessage(Option<ToServer>);

impl Message for ToServerMessage {
    fn fields(&mut self, codec: &mut Codec<'_>) -> Decoded<()> {
        one_of!(codec, &mut self.0, ToServer:
            1 => AgentHello { agent: agent, version: version, tags: tags, capabilities: capabilities } {
                codec.field(1, agent)?;
                codec.field(2, version)?;
                codec.nested(3, |codec| codec.map(1, tags))?;
                codec.field(1000, &mut capabilities.tells_usage)?;
                codec.field(1001, &mut capabilities.prepares)?;
            }
            2 => WorkloadStates { 0: states } { codec.list(1, states)?; }
            3 => Request { 0: request } { request.fields(codec)?; }
            4 => Goodbye {} {}
            5 => AgentLoad { 0: load } { load.fields(codec)?; }
            6 => CommanderHello { version: version } { codec.field(2, version)?; }
            7 => LogEntries { request_id: id, entries: entries } {
                codec.field(1, id)?;
                codec.nested(2, |codec| codec.list(1, entries))?;
            }
            8 => LogsStop { request_id: id, instance: instance } {
                codec.field(1, id)?;
                codec.nested(2, |codec| codec.field(1, instance))?;
            }
            1000 => UsageResponse { number: number, usage: usage } {
                codec.field(1, number)?;
                codec.field(2, usage)?;
            }
            1001 => Prepared { 0: instances } { codec.list(1, instances)?; }
        );
        Ok(())
    }
}

impl Message for AgentLoad {
    fn fields(&mut self, codec: &mut Codec<'_>) -> Decoded<()> {
        codec.field(1, &mut self.agent)?;
        codec.nested(2, |codec| codec.field(1, &mut self.cpu_usage))?;
        codec.nested(3, |codec| codec.field(1, &mut self.free_memory))
    }
}

impl Message for PreparedInstance {
    fn fields(&mut self, codec: &mut Codec<'_>) -> Decoded<()> {
        let mut level = self.level.map(|level| level.as_str().to_owned());
        codec.field(1, &mut self.instance)?;
        codec.optional(2, &mut level)?;
        codec.optional(3, &mut self.reason)?;
        codec.field(4, &mut self.tries)?;
        codec.field(5, &mut self.is_final)?;
        codec.optional(6, &mut self.unmet)?;
        self.level = level.and_then(|level| PrepareLevel::parse(&level));
        // Our agents send no more; the server keeps it and shows it to everybody.
        for text in [&mut self.reason, &mut self.unmet].into_iter().flatten() {
            text.truncate(text.floor_char_boundary(CONDITION_INFO_MAX));
            text.shrink_to_fit();
        }
        Ok(())
    }
}

impl Message for AgentUsage {
    fn fields(&mut self, codec: &mut Codec<'_>) -> Decoded<()> {
        codec.optional(1, &mut self.sampled_usec)?;
        codec.field(2, &mut self.node)?;
        codec.map(3, &mut self.workloads)?;
        codec.optional(4, &mut self.missing)
    }
}

impl Message for BTreeMap<Name, WorkloadUsage> {
    fn fields(&mut self, codec: &mut Codec<'_>) -> Decoded<()> {
        codec.map(1, self)
    }
}

impl Message for NodeUsage {
    fn fields(&mut self, codec: &mut Codec<'_>) -> Decoded<()> {
        codec.optional(1, &mut self.cores)?;
        codec.optional(2, &mut self.cpu_busy_usec)?;
        codec.optional(3, &mut self.memory_total_bytes)?;
        codec.optional(4, &mut self.memory_available_bytes)
    }
}

impl Message for WorkloadUsage {
    fn fields(&mut self, codec: &mut Codec<'_>) -> Decoded<()> {
        codec.optional(1, &mut self.memory_bytes)?;
        codec.optional(2, &mut self.inactive_file_bytes)?;
        codec.optional(3, &mut self.memory_peak_bytes)?;
        codec.optional(4, &mut self.cpu_usec)?;
        codec.optional(5, &mut self.pids)?;
        codec.optional(6, &mut self.uptime_ms)?;
        codec.optional(7, &mut self.restarts)?;
        codec.optional(8, &mut self.missing)
    }
}

impl Message for Request {
    fn fields(&mut self, codec: &mut Codec<'_>) -> Decoded<()> {
        codec.field(1, &mut self.id)?;
        if let Codec::Read(Field { number: 2, value: Value::Bytes(bytes) }, left) = codec {
            self.content = read_update(bytes, left)?;
            return Ok(());
        }
        if let Codec::Read(Field { number: 3, value: Value::Bytes(bytes) }, left) = codec {
            check_masks(bytes, left)?;
        }
        if let (Codec::Write(_), RequestContent::RollBack(number)) = (&*codec, &mut self.content) {
            return codec.nested(2, |codec| codec.optional(ROLLBACK_OF, &mut Some(*number)));
        }
        let mut content = Some(std::mem::take(&mut self.content));
        one_of!(codec, &mut content, RequestContent:
            2 => UpdateState { 0: update } {
                // A state that could not be read never leaves this program again.
                if let (Codec::Write(writer), Some(Ok(state))) = (&mut *codec, &update.new_state) {
                    writer.bytes(1, &tree::write_state(state));
                }
                codec.list(2, &mut update.masks)?;
            }
            3 => CompleteState { 0: read } { read.fields(codec)?; }
            4 => Logs { 0: logs } { logs.fields(codec)?; }
            5 => LogsCancel {} {}
            6 => EventsCancel {} {}
        );
        self.content = content.unwrap_or_default();
        Ok(())
    }
}

/// Without masks fewer parts of the state count. A state that cannot be read is refused by the server, with its reason.
fn read_update(bytes: &[u8], left: &mut Left) -> Decoded<RequestContent> {
    let (mut masks, mut rollback_of) = (Vec::new(), None);
    read_fields(bytes, left, |codec| {
        codec.optional(ROLLBACK_OF, &mut rollback_of)?;
        codec.list(2, &mut masks)
    })?;
    if let Some(number) = rollback_of {
        return Ok(RequestContent::RollBack(number)); // Whatever else it has: its sender needs the rights for this only.
    }
    let parts = if masks.is_empty() { Parts::NewWhole } else { Parts::New };
    let new_state =
        last_of(bytes, 1).map(|state| tree::read_state(state, parts, left).map_err(|error| error.to_string()));
    Ok(RequestContent::UpdateState(UpdateState { new_state, masks }))
}

/// Parts of all masks of a read or subscription.
fn check_masks(bytes: &[u8], left: &mut Left) -> Decoded<()> {
    let parts = |field: Field<'_>| match field {
        Field { number: 1, value: Value::Bytes(mask) } => 1 + mask.iter().filter(|byte| **byte == b'.').count(),
        _ => 0,
    };
    let parts: usize = Fields::of(bytes).map_while(Result::ok).map(parts).sum();
    if parts <= READ_MASKS_PARTS_MAX {
        return Ok(());
    }
    Err(left.refuse(format!(
        "its field masks have {parts} parts, at most {READ_MASKS_PARTS_MAX} are allowed; use fewer or shorter masks"
    )))
}

impl Message for ReadState {
    fn fields(&mut self, codec: &mut Codec<'_>) -> Decoded<()> {
        codec.list(1, &mut self.masks)?;
        codec.field(2, &mut self.subscribe)
    }
}

impl Message for LogsRequest {
    fn fields(&mut self, codec: &mut Codec<'_>) -> Decoded<()> {
        codec.list(1, &mut self.instances)?;
        codec.optional(2, &mut self.follow)?;
        codec.optional(3, &mut self.tail)?;
        codec.optional(4, &mut self.since)?;
        codec.optional(5, &mut self.until)
    }
}

// ------------------------------------------------------------- from the server

/// The bytes of a message of the server, and the message.
pub fn write_from_server(message: FromServer) -> (Vec<u8>, Option<FromServer>) {
    let mut message = FromServerMessage(Some(message));
    (to_bytes(&mut message), message.0)
}

/// Reads a message of the server.
///
/// # Errors
/// What is missing or unknown; the whole message is of no use then.
pub fn read_from_server(bytes: &[u8]) -> Decoded<FromServer> {
    let message: FromServerMessage = from_bytes(bytes, &mut Left::unbounded())?;
    message.0.ok_or_else(|| ConvertError("a message without content".to_owned()))
}

#[derive(Default)]
struct FromServerMessage(Option<FromServer>);

impl Message for FromServerMessage {
    fn fields(&mut self, codec: &mut Codec<'_>) -> Decoded<()> {
        one_of!(codec, &mut self.0, FromServer:
            1 => UpdateWorkload { 0: plan } { plan.fields(codec)?; }
            2 => WorkloadStates { 0: states } { codec.list(1, states)?; }
            3 => Response { 0: response } { response.fields(codec)?; }
            4 => ServerHello { 0: added } { codec.list(1, added)?; }
            5 => LogsRequest { request_id: id, request: request } {
                codec.field(1, id)?;
                codec.field(2, request)?;
            }
            6 => LogsCancel { request_id: id } { codec.field(1, id)?; }
            1000 => UsageRequest { number: number } { codec.field(1, number)?; }
            1001 => Prepare { 0: added } { codec.list(1, added)?; }
        );
        Ok(())
    }
}

impl Message for WorkloadPlan {
    fn fields(&mut self, codec: &mut Codec<'_>) -> Decoded<()> {
        codec.list(1, &mut self.added)?;
        codec.list(2, &mut self.deleted)
    }
}

impl Item for AddedWorkload {
    fn write(&mut self, number: u32, writer: &mut Writer) {
        writer.nested(number, |writer| {
            self.instance.write(1, writer);
            writer.bytes(2, &tree::write_workload(&self.workload));
        });
    }

    fn read(value: Value<'_>, left: &mut Left) -> Decoded<Option<Self>> {
        let Value::Bytes(bytes) = value else { return Ok(None) };
        left.take(size_of::<Workload>())?;
        let mut instance = None;
        read_fields(bytes, left, |codec| codec.optional(1, &mut instance))?;
        let instance = instance.ok_or_else(|| ConvertError("No instance name".to_owned()))?;
        let workload = last_of(bytes, 2).ok_or_else(|| ConvertError("No workload".to_owned()))?;
        Ok(Some(Self { instance, workload: Arc::new(tree::read_workload(workload, left)?) }))
    }
}

impl Message for DeletedWorkload {
    fn fields(&mut self, codec: &mut Codec<'_>) -> Decoded<()> {
        codec.field(1, &mut self.instance)?;
        codec.map(2, &mut self.dependencies)
    }
}

impl Message for Response {
    fn fields(&mut self, codec: &mut Codec<'_>) -> Decoded<()> {
        codec.field(1, &mut self.id)?;
        let mut content = Some(std::mem::take(&mut self.content));
        one_of!(codec, &mut content, ResponseContent:
            3 => Error { 0: text } { codec.field(1, text)?; }
            4 => CompleteState { state: state, altered: altered } { state_fields(state, altered, codec)?; }
            5 => UpdateStateSuccess { added: added, deleted: deleted } {
                codec.list(1, added)?;
                codec.list(2, deleted)?;
            }
            6 => LogsAccepted { 0: instances } { codec.list(1, instances)?; }
            7 => LogEntries { 0: entries } { codec.list(1, entries)?; }
            8 => LogsStop { 0: instance } { codec.field(1, instance)?; }
            9 => LogsCancelAccepted {} {}
            10 => EventsCancelAccepted {} {}
        );
        self.content = content.unwrap_or_default();
        Ok(())
    }
}

fn state_fields(state: &mut Node, altered: &mut Option<AlteredFields>, codec: &mut Codec<'_>) -> Decoded<()> {
    match codec {
        Codec::Write(writer) => writer.bytes(1, &tree::write_state(state)),
        Codec::Read(Field { number: 1, value: Value::Bytes(bytes) }, left) => {
            *state = tree::read_state(bytes, Parts::Sent, left)?;
        }
        Codec::Read(..) => {}
    }
    codec.optional(2, altered)
}

/// The bytes of a state, with what changed when it is an event, without the id of its request.
#[cfg(any(feature = "agent", feature = "server"))]
pub fn encode_state(state: &Node, mut altered: Option<AlteredFields>) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.bytes(1, &tree::write_state(state));
    let _ = Codec::Write(&mut writer).optional(2, &mut altered); // Only reading fails.
    writer.bytes
}

/// What stands before such a state in the response to the request `id`.
#[cfg(any(feature = "agent", feature = "server"))]
pub fn before_state(id: &str, state: usize) -> Vec<u8> {
    let mut inner = Writer::default();
    inner.text(1, id);
    inner.begin(4, state);
    let mut outer = Writer::default();
    outer.begin(3, inner.bytes.len() + state);
    outer.bytes.extend(inner.bytes);
    outer.bytes
}

/// The entry of a state in a message with states.
#[cfg(any(feature = "agent", feature = "server"))]
pub fn encode_state_entry(state: &WorkloadState) -> Vec<u8> {
    let mut writer = Writer::default();
    state.clone().write(1, &mut writer);
    writer.bytes
}

/// What stands before entries of so many bytes.
#[cfg(any(feature = "agent", feature = "server"))]
pub fn before_state_entries(bytes: usize) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.begin(2, bytes);
    writer.bytes
}

impl Message for AlteredFields {
    fn fields(&mut self, codec: &mut Codec<'_>) -> Decoded<()> {
        codec.list(1, &mut self.added)?;
        codec.list(2, &mut self.updated)?;
        codec.list(3, &mut self.removed)
    }
}

// ----------------------------------------------------------- in several messages

impl Message for InstanceName {
    fn fields(&mut self, codec: &mut Codec<'_>) -> Decoded<()> {
        codec.field(1, &mut self.workload)?;
        codec.field(2, &mut self.agent)?;
        codec.field(3, &mut self.id)
    }
}

impl Message for LogEntry {
    fn fields(&mut self, codec: &mut Codec<'_>) -> Decoded<()> {
        codec.field(1, &mut self.instance)?;
        codec.field(2, &mut self.message)
    }
}

/// An incomplete one is left out of a list.
impl Item for WorkloadState {
    fn write(&mut self, number: u32, writer: &mut Writer) {
        writer.nested(number, |writer| {
            self.instance.write(1, writer);
            writer.nested(2, |writer| phase::write(writer, Some(&self.state.additional_info), Some(self.state.phase)));
        });
    }

    fn read(value: Value<'_>, left: &mut Left) -> Decoded<Option<Self>> {
        let Value::Bytes(bytes) = value else { return Ok(None) };
        left.take(PART)?;
        let (mut instance, mut state) = (None, None);
        read_fields(bytes, left, |codec| {
            codec.optional(1, &mut instance)?;
            codec.nested(2, |codec| state.get_or_insert_with(phase::Read::default).fields(codec))
        })?;
        let phase = state.as_ref().map(|state| state.phase());
        let (Some(instance), Some(Ok(Some(phase)))) = (instance, phase) else {
            log::debug!("Skipping an incomplete workload state.");
            return Ok(None);
        };
        let info = state.as_ref().and_then(|state| state.info.as_deref()).unwrap_or_default();
        let info = &info[..info.floor_char_boundary(STATE_INFO_MAX)];
        let state = if info.is_empty() { ExecutionState::plain(phase) } else { ExecutionState::with_info(phase, info) };
        Ok(Some(Self::new(instance, state)))
    }
}

// -------------------------------------------------------------------- hooks

/// What hooks read: what changes for an agent.
#[cfg(feature = "server")]
pub fn write_plan(plan: &WorkloadPlan) -> Vec<u8> {
    to_bytes(&mut plan.clone())
}

/// Reads what a hook wrote.
///
/// # Errors
/// What is missing or unknown.
#[cfg(feature = "server")]
pub fn read_plan(bytes: &[u8]) -> Decoded<WorkloadPlan> {
    from_bytes(bytes, &mut Left::unbounded())
}

// -------------------------------------------------------- the control interface

/// Reads a message of a workload. A request that may not be decoded is refused with its id.
///
/// # Errors
/// Bytes that are no message.
// [impl->swdd~agent-converts-control-interface-message-to-ankaios-object~1]
pub fn read_from_workload(bytes: &[u8]) -> Decoded<FromWorkload> {
    let mut left = Left::of(bytes);
    let message: Decoded<FromWorkloadMessage> = from_bytes(bytes, &mut left);
    if let Some((reason, id)) = left.refused().zip(request_id(bytes)) {
        return Ok(FromWorkload::TooHeavy { id, reason: reason.clone() });
    }
    Ok(message?.0.unwrap_or(FromWorkload::Empty))
}

pub fn write_from_workload(message: FromWorkload) -> Vec<u8> {
    to_bytes(&mut FromWorkloadMessage(Some(message)))
}

#[derive(Default)]
struct FromWorkloadMessage(Option<FromWorkload>);

impl Message for FromWorkloadMessage {
    fn fields(&mut self, codec: &mut Codec<'_>) -> Decoded<()> {
        one_of!(codec, &mut self.0, FromWorkload:
            1 => Hello { version: version } { codec.field(2, version)?; }
            3 => Request { 0: request } { request.fields(codec)?; }
        );
        Ok(())
    }
}

/// Reads a message of the agent.
///
/// # Errors
/// What is missing or unknown.
pub fn read_to_workload(bytes: &[u8]) -> Decoded<ToWorkload> {
    let message: ToWorkloadMessage = from_bytes(bytes, &mut Left::unbounded())?;
    message.0.ok_or_else(|| ConvertError("a message without content".to_owned()))
}

pub fn write_to_workload(message: ToWorkload) -> Vec<u8> {
    to_bytes(&mut ToWorkloadMessage(Some(message)))
}

#[derive(Default)]
struct ToWorkloadMessage(Option<ToWorkload>);

impl Message for ToWorkloadMessage {
    fn fields(&mut self, codec: &mut Codec<'_>) -> Decoded<()> {
        one_of!(codec, &mut self.0, ToWorkload:
            3 => Response { 0: response } { response.fields(codec)?; }
            4 => Accepted {} {}
            5 => Closed { reason: reason } { codec.field(1, reason)?; }
        );
        Ok(())
    }
}
