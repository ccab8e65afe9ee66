//! Messages of ours and those of the schema, which the library reads and writes. Complete states, workloads and execution
//! states are bytes in these (proto/build.rs), which tree.rs reads and writes.
//!
//! Thread: whichever reads or writes the stream.

use super::fields::{Field, Fields, Value};
use super::schema::{ank_base as base, control_api as control, grpc_api as api};
use super::tree::reader::last_of;
use super::tree::writer::Writer;
use super::tree::{self, Parts};
use super::{ConvertError, Decoded, LIBRARY_DEPTH, Left, MALFORMED, PART};
use crate::limits::{ADDITIONAL_INFO_MAX, CONDITION_INFO_MAX, FOREIGN_MESSAGE_MAX, READ_MASKS_PARTS_MAX};
use crate::model::execution_state::{ExecutionState, WorkloadState};
use crate::model::messages::{
    AddedWorkload, AgentCapabilities, AgentLoad, AlteredFields, DeletedWorkload, FromServer, FromWorkload, LogEntry,
    LogsRequest, PreparedInstance, ReadState, Request, RequestContent, Response, ResponseContent, ToServer, ToWorkload,
    UpdateState, WorkloadPlan,
};
use crate::model::names::InstanceName;
use crate::model::node::Node;
use crate::model::prepare_level::PrepareLevel;
use crate::model::workload::DeleteCondition;
use protobuf::{CodedInputStream, EnumOrUnknown, Message, MessageField};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Number of a request in what workloads and peers of the server send, and of its id in that.
const REQUEST: u32 = 3;
const REQUEST_ID: u32 = 1;
/// That of a rollback in an update.
const ROLLBACK_OF: u32 = 1005;
const ANY: RangeInclusive<u32> = 1..=u32::MAX;

/// Lets the library read a message, and gives the bytes back before it becomes one of ours.
fn parse<M: Message>(bytes: impl AsRef<[u8]>) -> Decoded<M> {
    let bytes = bytes.as_ref();
    let (mut message, mut stream) = (M::new(), CodedInputStream::from_bytes(bytes));
    // Without the end as a limit it takes what is cut short for complete.
    let read = stream.push_limit(bytes.len() as u64).and_then(|_| message.merge_from(&mut stream));
    read.map(|()| message).map_err(|_| ConvertError(MALFORMED.to_owned()))
}

fn parse_within<M: Message>(bytes: &[u8], left: &mut Left) -> Decoded<M> {
    left.take(bytes.len())?;
    left.take_for_library(bytes, LIBRARY_DEPTH)?;
    parse(bytes)
}

fn bytes_of(message: &impl Message) -> Vec<u8> {
    message.write_to_bytes().expect("no field is required, and a vector takes all bytes")
}

// --------------------------------------------------------------- to the server

pub fn write_to_server(message: ToServer) -> Vec<u8> {
    use api::to_server::ToServerEnum as To;
    let content = match message {
        ToServer::AgentHello { agent, version, tags, capabilities } => To::AgentHello(api::AgentHello {
            agentName: agent,
            protocolVersion: version,
            tags: MessageField::some(base::Tags { tags: tags.into_iter().collect(), ..Default::default() }),
            tellsUsage: capabilities.tells_usage,
            prepares: capabilities.prepares,
            ..Default::default()
        }),
        ToServer::CommanderHello { version } => {
            To::CommanderHello(api::CommanderHello { protocolVersion: version, ..Default::default() })
        }
        ToServer::WorkloadStates(states) => To::UpdateWorkloadState(write_states(&states)),
        ToServer::StatesComplete => To::UpdateWorkloadState(write_states(&[])),
        ToServer::AgentLoad(load) => To::AgentLoadStatus(api::AgentLoadStatus {
            agent_name: load.agent,
            cpu_usage: MessageField::some(base::CpuUsage { cpu_usage: load.cpu_usage, ..Default::default() }),
            free_memory: MessageField::some(base::FreeMemory { free_memory: load.free_memory, ..Default::default() }),
            ..Default::default()
        }),
        ToServer::Request(request) => To::Request(write_request(request)),
        ToServer::LogEntries { request_id, entries } => To::LogEntriesResponse(api::LogEntriesResponse {
            requestId: request_id,
            logEntriesResponse: MessageField::some(write_log_entries(&entries)),
            ..Default::default()
        }),
        ToServer::LogsStop { request_id, instance } => To::LogsStopResponse(api::LogsStopResponse {
            requestId: request_id,
            logsStopResponse: MessageField::some(write_logs_stop(&instance)),
            ..Default::default()
        }),
        ToServer::UsageResponse { number, usage } => To::UsageResponse(api::UsageResponse {
            number,
            usage: Some(tree::write_usage(&usage.node())),
            ..Default::default()
        }),
        ToServer::Prepared(instances) => To::Prepared(api::Prepared {
            instances: instances.into_iter().map(write_prepared).collect(),
            ..Default::default()
        }),
        ToServer::Goodbye => To::Goodbye(api::Goodbye::default()),
        ToServer::Empty => return Vec::new(),
    };
    bytes_of(&api::ToServer { ToServerEnum: Some(content), ..Default::default() })
}

/// Reads any message; one without content becomes [`ToServer::Empty`]. A request that may not be decoded becomes one that
/// cannot be understood, so that its sender gets a response.
///
/// # Errors
/// Bytes that are no message.
pub fn read_to_server(bytes: &[u8], left: &mut Left) -> Decoded<ToServer> {
    use api::to_server::ToServerEnum as To;
    // Of several parts the last one counts.
    if let Some((REQUEST, request)) = last_of(bytes, ANY)? {
        let read = read_request(request, left);
        return match left.refused().filter(|_| read.is_err()).cloned().zip(request_id(request)) {
            Some((reason, id)) => Ok(refused_request(id, reason)),
            None => read.map(ToServer::Request),
        };
    }
    if bytes.len() > FOREIGN_MESSAGE_MAX {
        // States, logs and loads go on to others, and all agents send these in pieces that everybody takes.
        let text = format!("{} bytes that are no request, at most {FOREIGN_MESSAGE_MAX} are taken", bytes.len());
        return Err(left.refuse(text));
    }
    let message: api::ToServer = parse_within(bytes, left)?;
    Ok(match message.ToServerEnum {
        Some(To::AgentHello(hello)) => ToServer::AgentHello {
            agent: hello.agentName,
            version: hello.protocolVersion,
            tags: hello.tags.into_option().map(|tags| tags.tags.into_iter().collect()).unwrap_or_default(),
            capabilities: AgentCapabilities { tells_usage: hello.tellsUsage, prepares: hello.prepares },
        },
        Some(To::CommanderHello(hello)) => ToServer::CommanderHello { version: hello.protocolVersion },
        Some(To::UpdateWorkloadState(states)) if states.workloadStates.is_empty() => ToServer::StatesComplete,
        Some(To::UpdateWorkloadState(states)) => ToServer::WorkloadStates(read_states(states, left)?),
        Some(To::AgentLoadStatus(load)) => ToServer::AgentLoad(AgentLoad {
            agent: load.agent_name,
            cpu_usage: load.cpu_usage.cpu_usage,
            free_memory: load.free_memory.free_memory,
        }),
        Some(To::LogEntriesResponse(response)) => ToServer::LogEntries {
            request_id: response.requestId,
            entries: read_log_entries(response.logEntriesResponse.unwrap_or_default()),
        },
        Some(To::LogsStopResponse(response)) => {
            match response.logsStopResponse.into_option().and_then(|stop| read_instance(stop.workloadName)) {
                Some(instance) => ToServer::LogsStop { request_id: response.requestId, instance },
                None => ToServer::Empty,
            }
        }
        Some(To::Prepared(prepared)) => ToServer::Prepared(prepared.instances.into_iter().map(read_prepared).collect()),
        Some(To::UsageResponse(response)) => ToServer::UsageResponse {
            number: response.number,
            usage: tree::read_usage(&response.usage.unwrap_or_default(), left)?,
        },
        Some(To::Goodbye(_)) => ToServer::Goodbye,
        _ => ToServer::Empty,
    })
}

/// A request that was not decoded, for the reason that its sender is told.
pub fn refused_request(id: String, reason: String) -> ToServer {
    let update = UpdateState { new_state: Some(Err(reason)), masks: Vec::new() };
    ToServer::Request(Request { id, content: RequestContent::UpdateState(update) })
}

/// The id of a request, if it can be read.
fn request_id(request: &[u8]) -> Option<String> {
    let id = last_of(request, REQUEST_ID..=REQUEST_ID).ok()?;
    String::from_utf8(id.map(|(_, id)| id.to_vec()).unwrap_or_default()).ok()
}

/// The id of the request that begins with these bytes, if it is there as a whole.
pub fn request_id_of_begin(begin: &[u8]) -> Option<String> {
    let mut stream = CodedInputStream::from_bytes(begin);
    if stream.read_raw_varint32().ok()? != REQUEST << 3 | 2 {
        return None;
    }
    stream.read_raw_varint32().ok()?; // Its length, of which only the beginning is there.
    let request = begin.get(usize::try_from(stream.pos()).ok()?..)?;
    match Fields::of(request).next()?.ok()? {
        Field { number: REQUEST_ID, value: Value::Bytes(id) } => String::from_utf8(id.to_vec()).ok(),
        _ => None,
    }
}

fn write_prepared(prepared: PreparedInstance) -> api::PreparedInstance {
    api::PreparedInstance {
        instanceName: write_instance(&prepared.instance),
        level: prepared.level.map(|level| level.as_str().to_owned()),
        reason: prepared.reason,
        tries: prepared.tries,
        isFinal: prepared.is_final,
        unmet: prepared.unmet,
        ..Default::default()
    }
}

fn read_prepared(prepared: api::PreparedInstance) -> PreparedInstance {
    // Our agents send no more; the server keeps it and shows it to everybody.
    let cut = |mut text: String| {
        text.truncate(text.floor_char_boundary(CONDITION_INFO_MAX));
        text.shrink_to_fit();
        text
    };
    PreparedInstance {
        instance: read_instance(prepared.instanceName).unwrap_or_default(),
        level: prepared.level.and_then(|level| PrepareLevel::parse(&level)),
        reason: prepared.reason.map(cut),
        tries: prepared.tries,
        is_final: prepared.isFinal,
        unmet: prepared.unmet.map(cut),
    }
}

fn write_request(request: Request) -> base::Request {
    use base::request::RequestContent as Wire;
    let update = |update| Some(Wire::UpdateStateRequest(update));
    let content = match request.content {
        RequestContent::UpdateState(state) => update(base::UpdateStateRequest {
            // A state that could not be read never leaves this program again.
            newState: state.new_state.and_then(Result::ok).map(|state| tree::write_state(&state)),
            updateMask: state.masks,
            ..Default::default()
        }),
        RequestContent::RollBack(number) => {
            update(base::UpdateStateRequest { rollbackOf: Some(number), ..Default::default() })
        }
        RequestContent::CompleteState(read) => Some(Wire::CompleteStateRequest(base::CompleteStateRequest {
            fieldMask: read.masks,
            subscribeForEvents: read.subscribe,
            ..Default::default()
        })),
        RequestContent::Logs(logs) => Some(Wire::LogsRequest(write_logs_request(&logs))),
        RequestContent::LogsCancel => Some(Wire::LogsCancelRequest(base::LogsCancelRequest::default())),
        RequestContent::EventsCancel => Some(Wire::EventsCancelRequest(base::EventsCancelRequest::default())),
        RequestContent::Missing => None,
    };
    base::Request { requestId: request.id, RequestContent: content, ..Default::default() }
}

fn read_request(bytes: &[u8], left: &mut Left) -> Decoded<Request> {
    use base::request::RequestContent as Wire;
    match last_of(bytes, 2..=6)? {
        Some((2, update)) => {
            let id = last_of(bytes, REQUEST_ID..=REQUEST_ID)?.map(|(_, id)| left.text(id)).transpose()?;
            return Ok(Request { id: id.unwrap_or_default(), content: read_update(update, left)? });
        }
        Some((3, read)) => check_masks(read, left)?,
        _ => {}
    }
    let request: base::Request = parse_within(bytes, left)?;
    let content = match request.RequestContent {
        Some(Wire::CompleteStateRequest(read)) => {
            RequestContent::CompleteState(ReadState { masks: read.fieldMask, subscribe: read.subscribeForEvents })
        }
        Some(Wire::LogsRequest(logs)) => RequestContent::Logs(read_logs_request(logs)),
        Some(Wire::LogsCancelRequest(_)) => RequestContent::LogsCancel,
        Some(Wire::EventsCancelRequest(_)) => RequestContent::EventsCancel,
        _ => RequestContent::Missing,
    };
    Ok(Request { id: request.requestId, content })
}

/// Without masks fewer parts of the state count. A state that cannot be read is refused by the server, with its reason.
fn read_update(bytes: &[u8], left: &mut Left) -> Decoded<RequestContent> {
    let (mut masks, mut state, mut rollback_of) = (Vec::new(), None, None);
    for field in Fields::of(bytes) {
        match field? {
            Field { number: 1, value: Value::Bytes(bytes) } => state = Some(bytes),
            Field { number: 2, value: Value::Bytes(mask) } => {
                left.take(PART)?;
                masks.push(left.text(mask)?);
            }
            Field { number: ROLLBACK_OF, value: Value::Varint(number) } => rollback_of = Some(number),
            _ => {}
        }
    }
    if let Some(number) = rollback_of {
        return Ok(RequestContent::RollBack(number)); // Whatever else it has: its sender needs the rights for this only.
    }
    let parts = if masks.is_empty() { Parts::NewWhole } else { Parts::New };
    let new_state = state.map(|state| tree::read_state(state, parts, left).map_err(|error| error.to_string()));
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

// ------------------------------------------------------------- from the server

pub fn write_from_server(message: &FromServer) -> Vec<u8> {
    use api::from_server::FromServerEnum as From;
    let added = |added: &[AddedWorkload]| added.iter().map(write_added).collect();
    let content = match message {
        FromServer::ServerHello(all) => {
            From::ServerHello(api::ServerHello { addedWorkloads: added(all), ..Default::default() })
        }
        FromServer::Prepare(all) => From::Prepare(api::Prepare { addedWorkloads: added(all), ..Default::default() }),
        FromServer::UpdateWorkload(plan) => From::UpdateWorkload(plan_message(plan)),
        FromServer::WorkloadStates(states) => From::UpdateWorkloadState(write_states(states)),
        FromServer::Response(response) => From::Response(write_response(response)),
        FromServer::LogsRequest { request_id, request } => From::LogsRequest(api::LogsRequest {
            requestId: request_id.clone(),
            logsRequest: MessageField::some(write_logs_request(request)),
            ..Default::default()
        }),
        FromServer::LogsCancel { request_id } => {
            From::LogsCancelRequest(api::LogsCancelRequest { requestId: request_id.clone(), ..Default::default() })
        }
        FromServer::UsageRequest { number } => {
            From::UsageRequest(api::UsageRequest { number: *number, ..Default::default() })
        }
    };
    bytes_of(&api::FromServer { FromServerEnum: Some(content), ..Default::default() })
}

/// Reads a message of the server.
///
/// # Errors
/// What is missing or unknown; the whole message is of no use then.
pub fn read_from_server(bytes: impl AsRef<[u8]>) -> Decoded<FromServer> {
    use api::from_server::FromServerEnum as From;
    let added = |added: Vec<api::AddedWorkload>| added.into_iter().map(read_added).collect::<Decoded<_>>();
    Ok(match parse::<api::FromServer>(bytes)?.FromServerEnum {
        Some(From::ServerHello(hello)) => FromServer::ServerHello(added(hello.addedWorkloads)?),
        Some(From::Prepare(prepare)) => FromServer::Prepare(added(prepare.addedWorkloads)?),
        Some(From::UpdateWorkload(update)) => FromServer::UpdateWorkload(plan_of(update)?),
        Some(From::UpdateWorkloadState(states)) => {
            FromServer::WorkloadStates(read_states(states, &mut Left::unbounded())?)
        }
        Some(From::Response(response)) => FromServer::Response(read_response(response)?),
        Some(From::LogsRequest(request)) => FromServer::LogsRequest {
            request_id: request.requestId,
            request: read_logs_request(request.logsRequest.unwrap_or_default()),
        },
        Some(From::LogsCancelRequest(cancel)) => FromServer::LogsCancel { request_id: cancel.requestId },
        Some(From::UsageRequest(request)) => FromServer::UsageRequest { number: request.number },
        _ => return Err(ConvertError("a message without content".to_owned())),
    })
}

/// What hooks read: what changes for an agent.
#[cfg(feature = "server")]
pub fn write_plan(plan: &WorkloadPlan) -> Vec<u8> {
    bytes_of(&plan_message(plan))
}

/// Reads what a hook wrote.
///
/// # Errors
/// What is missing or unknown.
#[cfg(feature = "server")]
pub fn read_plan(bytes: &[u8]) -> Decoded<WorkloadPlan> {
    plan_of(parse(bytes)?)
}

fn plan_message(plan: &WorkloadPlan) -> api::UpdateWorkload {
    let deleted = |deleted: &DeletedWorkload| {
        let condition = |condition: &DeleteCondition| match condition {
            DeleteCondition::Running => api::DeleteCondition::DEL_COND_RUNNING,
            DeleteCondition::NotPendingNorRunning => api::DeleteCondition::DEL_COND_NOT_PENDING_NOR_RUNNING,
        };
        let dependencies = deleted.dependencies.iter().map(|(name, when)| (name.clone(), condition(when).into()));
        api::DeletedWorkload {
            instanceName: write_instance(&deleted.instance),
            dependencies: dependencies.collect(),
            ..Default::default()
        }
    };
    api::UpdateWorkload {
        addedWorkloads: plan.added.iter().map(write_added).collect(),
        deletedWorkloads: plan.deleted.iter().map(deleted).collect(),
        ..Default::default()
    }
}

fn plan_of(update: api::UpdateWorkload) -> Decoded<WorkloadPlan> {
    let condition = |value: EnumOrUnknown<api::DeleteCondition>| match value.enum_value() {
        Ok(api::DeleteCondition::DEL_COND_RUNNING) => Ok(DeleteCondition::Running),
        Ok(api::DeleteCondition::DEL_COND_NOT_PENDING_NOR_RUNNING) => Ok(DeleteCondition::NotPendingNorRunning),
        Err(number) => Err(ConvertError::unknown_enum(i64::from(number).cast_unsigned())),
    };
    let deleted = |deleted: api::DeletedWorkload| {
        let dependencies = deleted.dependencies.into_iter().map(|(name, when)| Ok((name, condition(when)?)));
        Ok(DeletedWorkload {
            instance: required_instance(deleted.instanceName)?,
            dependencies: dependencies.collect::<Decoded<_>>()?,
        })
    };
    Ok(WorkloadPlan {
        added: update.addedWorkloads.into_iter().map(read_added).collect::<Decoded<_>>()?,
        deleted: update.deletedWorkloads.into_iter().map(deleted).collect::<Decoded<_>>()?,
    })
}

fn write_added(added: &AddedWorkload) -> api::AddedWorkload {
    api::AddedWorkload {
        instanceName: write_instance(&added.instance),
        workload: Some(tree::write_workload(&added.workload)),
        ..Default::default()
    }
}

fn read_added(added: api::AddedWorkload) -> Decoded<AddedWorkload> {
    let instance = required_instance(added.instanceName)?;
    let workload = added.workload.ok_or_else(|| ConvertError("No workload".to_owned()))?;
    Ok(AddedWorkload { instance, workload: Arc::new(tree::read_workload(&workload, &mut Left::unbounded())?) })
}

fn write_response(response: &Response) -> base::Response {
    use base::response::ResponseContent as Wire;
    let content = match &response.content {
        ResponseContent::Error(message) => Wire::Error(base::Error { message: message.clone(), ..Default::default() }),
        ResponseContent::CompleteState { state, altered } => Wire::CompleteStateResponse(base::CompleteStateResponse {
            completeState: Some(tree::write_state(state)),
            alteredFields: altered.clone().map(write_altered).into(),
            ..Default::default()
        }),
        ResponseContent::UpdateStateSuccess { added, deleted } => Wire::UpdateStateSuccess(base::UpdateStateSuccess {
            addedWorkloads: added.clone(),
            deletedWorkloads: deleted.clone(),
            ..Default::default()
        }),
        ResponseContent::LogsAccepted(instances) => Wire::LogsRequestAccepted(base::LogsRequestAccepted {
            workloadNames: instances.iter().filter_map(|name| write_instance(name).into_option()).collect(),
            ..Default::default()
        }),
        ResponseContent::LogEntries(entries) => Wire::LogEntriesResponse(write_log_entries(entries)),
        ResponseContent::LogsStop(instance) => Wire::LogsStopResponse(write_logs_stop(instance)),
        ResponseContent::LogsCancelAccepted => Wire::LogsCancelAccepted(base::LogsCancelAccepted::default()),
        ResponseContent::EventsCancelAccepted => Wire::EventsCancelAccepted(base::EventsCancelAccepted::default()),
    };
    base::Response { requestId: response.id.clone(), ResponseContent: Some(content), ..Default::default() }
}

fn read_response(response: base::Response) -> Decoded<Response> {
    use base::response::ResponseContent as Wire;
    let content = match response.ResponseContent {
        Some(Wire::Error(error)) => ResponseContent::Error(error.message),
        Some(Wire::CompleteStateResponse(state)) => ResponseContent::CompleteState {
            state: tree::read_state(&state.completeState.unwrap_or_default(), Parts::Sent, &mut Left::unbounded())?,
            altered: state.alteredFields.into_option().map(|altered| AlteredFields {
                added: altered.addedFields,
                updated: altered.updatedFields,
                removed: altered.removedFields,
            }),
        },
        Some(Wire::UpdateStateSuccess(success)) => {
            ResponseContent::UpdateStateSuccess { added: success.addedWorkloads, deleted: success.deletedWorkloads }
        }
        Some(Wire::LogsRequestAccepted(accepted)) => {
            ResponseContent::LogsAccepted(accepted.workloadNames.into_iter().map(instance_of).collect())
        }
        Some(Wire::LogEntriesResponse(entries)) => ResponseContent::LogEntries(read_log_entries(entries)),
        Some(Wire::LogsStopResponse(stop)) => {
            ResponseContent::LogsStop(read_instance(stop.workloadName).unwrap_or_default())
        }
        Some(Wire::LogsCancelAccepted(_)) => ResponseContent::LogsCancelAccepted,
        Some(Wire::EventsCancelAccepted(_)) => ResponseContent::EventsCancelAccepted,
        _ => ResponseContent::default(),
    };
    Ok(Response { id: response.requestId, content })
}

fn write_altered(altered: AlteredFields) -> base::AlteredFields {
    base::AlteredFields {
        addedFields: altered.added,
        updatedFields: altered.updated,
        removedFields: altered.removed,
        ..Default::default()
    }
}

/// The bytes of a state, with what changed when it is an event, without the id of its request.
#[cfg(any(feature = "agent", feature = "server"))]
pub fn encode_state(state: &Node, altered: Option<AlteredFields>) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.bytes(1, &tree::write_state(state));
    altered.into_iter().for_each(|altered| writer.bytes(2, &bytes_of(&write_altered(altered))));
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
    bytes_of(&write_states(std::slice::from_ref(state)))
}

/// What stands before entries of so many bytes.
#[cfg(any(feature = "agent", feature = "server"))]
pub fn before_state_entries(bytes: usize) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.begin(2, bytes);
    writer.bytes
}

// ----------------------------------------------------------- in several messages

fn write_instance(name: &InstanceName) -> MessageField<base::WorkloadInstanceName> {
    MessageField::some(base::WorkloadInstanceName {
        workloadName: name.workload.to_string(),
        agentName: name.agent.to_string(),
        id: name.id.to_string(),
        ..Default::default()
    })
}

fn instance_of(name: base::WorkloadInstanceName) -> InstanceName {
    InstanceName::with_id(&name.workloadName, &name.id, &name.agentName)
}

fn read_instance(name: MessageField<base::WorkloadInstanceName>) -> Option<InstanceName> {
    name.into_option().map(instance_of)
}

fn required_instance(name: MessageField<base::WorkloadInstanceName>) -> Decoded<InstanceName> {
    read_instance(name).ok_or_else(|| ConvertError("No instance name".to_owned()))
}

fn write_states(states: &[WorkloadState]) -> api::UpdateWorkloadState {
    let entry = |WorkloadState { instance, state }: &WorkloadState| base::WorkloadState {
        instanceName: write_instance(instance),
        executionState: Some(tree::write_phase(Some(&state.additional_info), Some(state.phase))),
        ..Default::default()
    };
    api::UpdateWorkloadState { workloadStates: states.iter().map(entry).collect(), ..Default::default() }
}

/// An incomplete one is left out.
fn read_states(states: api::UpdateWorkloadState, left: &mut Left) -> Decoded<Vec<WorkloadState>> {
    let mut read = Vec::new();
    for state in states.workloadStates {
        let execution = tree::read_phase(&state.executionState.unwrap_or_default(), left);
        if let Some(reason) = left.refused() {
            return Err(ConvertError(reason.clone()));
        }
        let (Some(instance), Ok((info, Some(phase)))) = (read_instance(state.instanceName), execution) else {
            log::debug!("Skipping an incomplete workload state.");
            continue;
        };
        let info = info.as_deref().unwrap_or_default();
        // Additional info of a state that a program stores, in bytes. Agents of other implementations send all that
        // their engine writes.
        let info = &info[..info.floor_char_boundary(ADDITIONAL_INFO_MAX)];
        let state = if info.is_empty() { ExecutionState::plain(phase) } else { ExecutionState::with_info(phase, info) };
        read.push(WorkloadState::new(instance, state));
    }
    Ok(read)
}

fn write_logs_request(request: &LogsRequest) -> base::LogsRequest {
    base::LogsRequest {
        workloadNames: request.instances.iter().filter_map(|name| write_instance(name).into_option()).collect(),
        follow: request.follow,
        tail: request.tail,
        since: request.since.clone(),
        until: request.until.clone(),
        ..Default::default()
    }
}

fn read_logs_request(request: base::LogsRequest) -> LogsRequest {
    LogsRequest {
        instances: request.workloadNames.into_iter().map(instance_of).collect(),
        follow: request.follow,
        tail: request.tail,
        since: request.since,
        until: request.until,
    }
}

fn write_log_entries(entries: &[LogEntry]) -> base::LogEntriesResponse {
    let entry = |entry: &LogEntry| base::LogEntry {
        workloadName: write_instance(&entry.instance),
        message: entry.message.clone(),
        ..Default::default()
    };
    base::LogEntriesResponse { logEntries: entries.iter().map(entry).collect(), ..Default::default() }
}

fn read_log_entries(entries: base::LogEntriesResponse) -> Vec<LogEntry> {
    let entry = |entry: base::LogEntry| LogEntry {
        instance: read_instance(entry.workloadName).unwrap_or_default(),
        message: entry.message,
    };
    entries.logEntries.into_iter().map(entry).collect()
}

fn write_logs_stop(instance: &InstanceName) -> base::LogsStopResponse {
    base::LogsStopResponse { workloadName: write_instance(instance), ..Default::default() }
}

// -------------------------------------------------------- the control interface

fn delimited(message: &impl Message) -> Vec<u8> {
    message.write_length_delimited_to_bytes().expect("no field is required, and a vector takes all bytes")
}

/// Reads a message of a workload. A request that may not be decoded is refused with its id.
///
/// # Errors
/// Bytes that are no message.
// [impl->swdd~agent-converts-control-interface-message-to-ankaios-object~1]
pub fn read_from_workload(bytes: &[u8]) -> Decoded<FromWorkload> {
    let mut left = Left::of(bytes);
    if let Some((REQUEST, request)) = last_of(bytes, ANY)? {
        let read = read_request(request, &mut left);
        return match left.refused().cloned().zip(request_id(request)) {
            Some((reason, id)) => Ok(FromWorkload::TooHeavy { id, reason }),
            None => read.map(FromWorkload::Request),
        };
    }
    let message: control::ToAnkaios = parse_within(bytes, &mut left)?;
    Ok(match message.ToAnkaiosEnum {
        Some(control::to_ankaios::ToAnkaiosEnum::Hello(hello)) => {
            FromWorkload::Hello { version: hello.protocolVersion }
        }
        _ => FromWorkload::Empty,
    })
}

/// With its length.
pub fn write_from_workload(message: FromWorkload) -> Vec<u8> {
    use control::to_ankaios::ToAnkaiosEnum as To;
    let content = match message {
        FromWorkload::Hello { version } => {
            Some(To::Hello(control::Hello { protocolVersion: version, ..Default::default() }))
        }
        FromWorkload::Request(request) => Some(To::Request(write_request(request))),
        FromWorkload::Empty | FromWorkload::TooHeavy { .. } => None,
    };
    delimited(&control::ToAnkaios { ToAnkaiosEnum: content, ..Default::default() })
}

/// Reads a message of the agent.
///
/// # Errors
/// What is missing or unknown.
pub fn read_to_workload(bytes: &[u8]) -> Decoded<ToWorkload> {
    use control::from_ankaios::FromAnkaiosEnum as From;
    Ok(match parse::<control::FromAnkaios>(bytes)?.FromAnkaiosEnum {
        Some(From::ControlInterfaceAccepted(_)) => ToWorkload::Accepted,
        Some(From::ConnectionClosed(closed)) => ToWorkload::Closed { reason: closed.reason },
        Some(From::Response(response)) => ToWorkload::Response(read_response(response)?),
        _ => return Err(ConvertError("a message without content".to_owned())),
    })
}

/// With its length.
pub fn write_to_workload(message: &ToWorkload) -> Vec<u8> {
    use control::from_ankaios::FromAnkaiosEnum as From;
    let content = match message {
        ToWorkload::Accepted => From::ControlInterfaceAccepted(control::ControlInterfaceAccepted::default()),
        ToWorkload::Closed { reason } => {
            From::ConnectionClosed(control::ConnectionClosed { reason: reason.clone(), ..Default::default() })
        }
        ToWorkload::Response(response) => From::Response(write_response(response)),
    };
    delimited(&control::FromAnkaios { FromAnkaiosEnum: Some(content), ..Default::default() })
}
