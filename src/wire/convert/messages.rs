//! Messages of ours and those of the schema, which the library reads and writes. One list says
//! which part of ours is which part of theirs. Complete states, workloads and execution states are
//! bytes in these (build.rs), which tree.rs reads and writes.
//!
//! Thread: whichever reads or writes the stream.

use super::fields::{Fields, ReceivedField, Value};
use super::schema::{ank_base as base, control_api as control, grpc_api as api};
use super::tree::reader::last_of;
use super::tree::writer::MessageWriter;
use super::tree::{self, Parts, StateParts};
use super::{ConvertError, Decoded, LIBRARY_DEPTH, Left, MALFORMED, PART};
use crate::limits::READ_MASKS_PARTS_MAX;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::limits::{CONDITION_INFO_MAX, FOREIGN_MESSAGE_MAX};
use ankaios_model::messages::{
    AddedWorkload, AgentHello, AgentLoad, AlteredFields, DeletedWorkload, FromServer, FromWorkload,
    LogEntry, LogsRequest, PreparedInstance, ReadState, Request, RequestContent, Response,
    ResponseContent, StopAndStart, ToServer, ToWorkload, UpdateState, WorkloadPlan,
};
use ankaios_model::names::{InstanceName, Name, excerpt};
use ankaios_model::node::Node;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::refusal::ErrorResponse;
use ankaios_model::usage::AgentUsage;
use ankaios_model::workload::DeleteCondition;
use ankaios_platform::limits::ADDITIONAL_INFO_MAX;
use api::from_server::FromServerEnum;
use api::to_server::ToServerEnum;
use base::request::RequestContent as RequestEnum;
use base::response::ResponseContent as ResponseEnum;
use control::from_ankaios::FromAnkaiosEnum;
use control::to_ankaios::ToAnkaiosEnum;
use protobuf::{CodedInputStream, EnumOrUnknown, Message, MessageField};
use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Field of a request in messages of workloads and of peers of the server.
const REQUEST: u32 = 3;
/// The tag of a response in messages of the server: field 3, of bytes.
const RESPONSE_TAG: u8 = 3 << 3 | 2;
/// The masks of a read.
const FIELD_MASK: u32 = 1;
/// Fields of a request: its id, and two of its possible contents.
const REQUEST_ID: u32 = 1;
const UPDATE_STATE: u32 = 2;
const READ_STATE: u32 = 3;
/// Fields of an update: its state and masks, restarts, a rollback, stops and starts.
const NEW_STATE: u32 = 1;
const UPDATE_MASK: u32 = 2;
const RESTART_WORKLOADS: u32 = 1004;
const ROLLBACK_OF: u32 = 1005;
const STOP_WORKLOADS: u32 = 1006;
const START_WORKLOADS: u32 = 1007;
const ANY: RangeInclusive<u32> = 1..=u32::MAX;

/// Reads a message with the library. Owned `bytes` are freed on return, before the message is
/// converted to one of ours.
fn parse<M: Message>(bytes: impl AsRef<[u8]>) -> Decoded<M> {
    let bytes = bytes.as_ref();
    let mut message = M::new();
    let mut stream = CodedInputStream::from_bytes(bytes);
    // Without its end as a limit, the library takes a cut message for a complete one.
    let is_limited = stream.push_limit(bytes.len() as u64).is_ok();
    if !is_limited || message.merge_from(&mut stream).is_err() {
        return Err(ConvertError(MALFORMED.to_owned()));
    }
    Ok(message)
}

fn parse_within<M: Message>(bytes: &[u8], left: &mut Left) -> Decoded<M> {
    left.take(bytes.len())?;
    left.take_for_library(bytes, LIBRARY_DEPTH)?;
    parse(bytes)
}

fn bytes_of(message: &impl Message) -> Vec<u8> {
    message
        .write_to_bytes()
        .expect("no field is required, and a vector takes all bytes")
}

fn without_content() -> ConvertError {
    ConvertError("a message without content".to_owned())
}

// -------------------------------------------------------------------- the list

/// A value of ours that is `M` in a message of the library.
trait Wire<M>: Sized {
    fn write(&self) -> M;

    /// Converts a message of the library. A part that was left out becomes an empty one, or `None`
    /// where ours is an option. The memory was counted before the library read the message.
    fn read(message: M) -> Decoded<Self>;
}

/// Values that are the same in both.
macro_rules! same {
    ($($type:ty),*) => { $(
        impl Wire<Self> for $type {
            fn write(&self) -> Self {
                self.clone()
            }

            fn read(message: Self) -> Decoded<Self> {
                Ok(message)
            }
        }
    )* };
}

/// Messages, with our name of each field and theirs.
macro_rules! messages {
    ($($type:ty as $message:ty { $($($field:ident).+: $theirs:ident),* })*) => { $(
        impl Wire<$message> for $type {
            fn write(&self) -> $message {
                let mut message = <$message>::new();
                $(message.$theirs = self.$($field).+.write();)*
                message
            }

            fn read(message: $message) -> Decoded<Self> {
                let mut value = Self::default();
                $(value.$($field).+ = Wire::read(message.$theirs)?;)*
                Ok(value)
            }
        }
    )* };
}

/// Messages whose only field is one of our values.
macro_rules! only {
    ($($type:ty as $message:ty: $theirs:ident),*) => { $(
        impl Wire<$message> for $type {
            fn write(&self) -> $message {
                let mut message = <$message>::new();
                message.$theirs = self.write();
                message
            }

            fn read(message: $message) -> Decoded<Self> {
                Wire::read(message.$theirs)
            }
        }
    )* };
}

/// One of several messages: our name of each, its content, and their name of it. Others become the
/// one after `or`.
macro_rules! choices {
    ($($type:ident as $choice:ident or $other:expr => {
        $($kind:ident $(($value:ident))? $({ $($field:ident: $theirs:ident),* })? = $module:ident $message:ident)*
    })*) => { $(
        impl Wire<Option<$choice>> for $type {
            #[allow(unused_assignments, unused_mut, unreachable_patterns)]
            fn write(&self) -> Option<$choice> {
                Some(match self {
                    $(Self::$kind $(($value))? $({ $($field),* })? => {
                        let mut message = $module::$message::new();
                        $(message = $value.write();)?
                        $($(message.$theirs = $field.write();)*)?
                        $choice::$message(message)
                    })*
                    _ => return None,
                })
            }

            #[allow(unused_variables)]
            fn read(message: Option<$choice>) -> Decoded<Self> {
                Ok(match message {
                    $(Some($choice::$message(message)) => Self::$kind
                        $(({
                            let $value = Wire::read(message)?;
                            $value
                        }))?
                        $({ $($field: Wire::read(message.$theirs)?),* })?,)*
                    _ => $other,
                })
            }
        }
    )* };
}

same!(
    String,
    bool,
    u32,
    u64,
    Option<bool>,
    Option<i32>,
    Option<String>
);

messages! {
    InstanceName as base::WorkloadInstanceName { workload: workloadName, agent: agentName, id: id }
    AgentHello as api::AgentHello {
        agent: agentName, version: protocolVersion, tags: tags,
        capabilities.tells_usage: tellsUsage, capabilities.prepares: prepares,
        capabilities.removes_images: removesImages
    }
    AgentLoad as api::AgentLoadStatus {
        agent: agent_name, cpu_usage: cpu_usage, free_memory: free_memory, engine: engine
    }
    PreparedInstance as api::PreparedInstance {
        instance: instanceName, level: level, reason: reason, tries: tries, is_final: isFinal, unmet: unmet
    }
    WorkloadPlan as api::UpdateWorkload { added: addedWorkloads, deleted: deletedWorkloads }
    ReadState as base::CompleteStateRequest { masks: fieldMask, subscribe: subscribeForEvents }
    LogsRequest as base::LogsRequest {
        instances: workloadNames, follow: follow, tail: tail, since: since, until: until,
        timestamps: timestamps
    }
    Response as base::Response { id: requestId, content: ResponseContent }
    AlteredFields as base::AlteredFields { added: addedFields, updated: updatedFields, removed: removedFields }
    LogEntry as base::LogEntry { instance: workloadName, message: message, is_reason: isReason }
}

only! {
    BTreeMap<String, String> as base::Tags: tags,
    u32 as base::CpuUsage: cpu_usage,
    u64 as base::FreeMemory: free_memory,
    Vec<PreparedInstance> as api::Prepared: instances,
    Vec<AddedWorkload> as api::ServerHello: addedWorkloads,
    Vec<AddedWorkload> as api::Prepare: addedWorkloads,
    bool as api::UpdateOpen: isOpen,
    Vec<InstanceName> as base::LogsRequestAccepted: workloadNames,
    Vec<LogEntry> as base::LogEntriesResponse: logEntries,
    InstanceName as base::LogsStopResponse: workloadName
}

choices! {
    ToServer as ToServerEnum or Self::Empty => {
        AgentHello(hello) = api AgentHello
        CommanderHello { version: protocolVersion } = api CommanderHello
        WorkloadStates(states) = api UpdateWorkloadState
        AgentLoad(load) = api AgentLoadStatus
        Request(request) = base Request
        LogEntries { request_id: requestId, entries: logEntriesResponse } = api LogEntriesResponse
        LogsStop { request_id: requestId, instance: logsStopResponse } = api LogsStopResponse
        UsageResponse { number: number, usage: usage } = api UsageResponse
        Prepared(instances) = api Prepared
        Goodbye = api Goodbye
    }
    FromServer as FromServerEnum or return Err(without_content()) => {
        ServerHello(added) = api ServerHello
        Prepare(added) = api Prepare
        UpdateOpen(is_open) = api UpdateOpen
        UpdateWorkload(plan) = api UpdateWorkload
        WorkloadStates(states) = api UpdateWorkloadState
        Response(response) = base Response
        LogsRequest { request_id: requestId, request: logsRequest } = api LogsRequest
        LogsCancel { request_id: requestId } = api LogsCancelRequest
        UsageRequest { number: number } = api UsageRequest
    }
    RequestContent as RequestEnum or Self::Missing => {
        CompleteState(read) = base CompleteStateRequest
        Logs(logs) = base LogsRequest
        LogsCancel = base LogsCancelRequest
        EventsCancel = base EventsCancelRequest
    }
    ResponseContent as ResponseEnum or Self::default() => {
        Error(error) = base Error
        CompleteState { state: completeState, altered: alteredFields } = base CompleteStateResponse
        UpdateStateSuccess {
            added: addedWorkloads, deleted: deletedWorkloads, restarted: restartedWorkloads, warning: warning
        } = base UpdateStateSuccess
        LogsAccepted(instances) = base LogsRequestAccepted
        LogEntries(entries) = base LogEntriesResponse
        LogsStop(instance) = base LogsStopResponse
        LogsCancelAccepted = base LogsCancelAccepted
        EventsCancelAccepted = base EventsCancelAccepted
    }
    FromWorkload as ToAnkaiosEnum or Self::Empty => {
        Hello { version: protocolVersion } = control Hello
        Request(request) = base Request
    }
    ToWorkload as FromAnkaiosEnum or return Err(without_content()) => {
        Accepted = control ControlInterfaceAccepted
        Closed { reason: reason } = control ConnectionClosed
        Response(response) = base Response
    }
}

impl<T: Wire<M>, M: Default> Wire<MessageField<M>> for T {
    fn write(&self) -> MessageField<M> {
        MessageField::some(self.write())
    }

    fn read(message: MessageField<M>) -> Decoded<Self> {
        Self::read(message.into_option().unwrap_or_default())
    }
}

impl<T: Wire<M>, M> Wire<Vec<M>> for Vec<T> {
    fn write(&self) -> Vec<M> {
        self.iter().map(Wire::write).collect()
    }

    fn read(message: Vec<M>) -> Decoded<Self> {
        message.into_iter().map(|item| Wire::read(item)).collect()
    }
}

impl<T: Wire<M>, M> Wire<HashMap<String, M>> for BTreeMap<String, T> {
    fn write(&self) -> HashMap<String, M> {
        self.iter()
            .map(|(key, value)| (key.clone(), value.write()))
            .collect()
    }

    fn read(message: HashMap<String, M>) -> Decoded<Self> {
        let mut map = BTreeMap::new();
        for (key, value) in message {
            map.insert(key, Wire::read(value)?);
        }
        Ok(map)
    }
}

impl Wire<String> for Name {
    fn write(&self) -> String {
        self.to_string()
    }

    fn read(message: String) -> Decoded<Self> {
        Ok(message.into())
    }
}

// ----------------------------------------------- with rules of their own

impl Wire<Option<String>> for Option<PrepareLevel> {
    fn write(&self) -> Option<String> {
        self.map(|level| level.as_str().to_owned())
    }

    fn read(message: Option<String>) -> Decoded<Self> {
        Ok(message.and_then(|level| PrepareLevel::parse(&level)))
    }
}

impl Wire<Option<Vec<u8>>> for AgentUsage {
    fn write(&self) -> Option<Vec<u8>> {
        Some(tree::write_usage(&self.node()))
    }

    fn read(message: Option<Vec<u8>>) -> Decoded<Self> {
        tree::read_usage(&message.unwrap_or_default(), &mut Left::unbounded())
    }
}

impl Wire<Option<Vec<u8>>> for Node {
    fn write(&self) -> Option<Vec<u8>> {
        Some(tree::write_state(self))
    }

    fn read(message: Option<Vec<u8>>) -> Decoded<Self> {
        tree::read_state(
            &message.unwrap_or_default(),
            Parts::Sent,
            &mut Left::unbounded(),
        )
    }
}

impl Wire<MessageField<base::AlteredFields>> for Option<AlteredFields> {
    fn write(&self) -> MessageField<base::AlteredFields> {
        self.as_ref().map(Wire::write).into()
    }

    fn read(message: MessageField<base::AlteredFields>) -> Decoded<Self> {
        message.into_option().map(Wire::read).transpose()
    }
}

// [impl->swdd~api-reasons-of-refusals~1]
impl Wire<base::Error> for ErrorResponse {
    fn write(&self) -> base::Error {
        let refusal = self.sent_refusal();
        base::Error {
            message: self.text.clone(),
            refusal: refusal.map(|refusal| EnumOrUnknown::from_i32(refusal.number())),
            ..base::Error::default()
        }
    }

    fn read(message: base::Error) -> Decoded<Self> {
        let number = message.refusal.map(|refusal| refusal.value());
        Ok(Self::received(message.message, number))
    }
}

impl Wire<EnumOrUnknown<api::DeleteCondition>> for DeleteCondition {
    fn write(&self) -> EnumOrUnknown<api::DeleteCondition> {
        EnumOrUnknown::new(match self {
            Self::Running => api::DeleteCondition::DEL_COND_RUNNING,
            Self::NotPendingNorRunning => api::DeleteCondition::DEL_COND_NOT_PENDING_NOR_RUNNING,
        })
    }

    fn read(message: EnumOrUnknown<api::DeleteCondition>) -> Decoded<Self> {
        match message.enum_value() {
            Ok(api::DeleteCondition::DEL_COND_RUNNING) => Ok(Self::Running),
            Ok(api::DeleteCondition::DEL_COND_NOT_PENDING_NOR_RUNNING) => {
                Ok(Self::NotPendingNorRunning)
            }
            Err(number) => {
                log::warn!(
                    "The server is probably newer: waiting for a workload to end instead of for condition {number}."
                );
                Ok(Self::NotPendingNorRunning)
            }
        }
    }
}

fn required_instance(name: MessageField<base::WorkloadInstanceName>) -> Decoded<InstanceName> {
    let name = name
        .into_option()
        .ok_or_else(|| ConvertError("No instance name".to_owned()))?;
    Wire::read(name)
}

impl Wire<api::DeletedWorkload> for DeletedWorkload {
    fn write(&self) -> api::DeletedWorkload {
        api::DeletedWorkload {
            instanceName: self.instance.write(),
            dependencies: self.dependencies.write(),
            ..Default::default()
        }
    }

    fn read(message: api::DeletedWorkload) -> Decoded<Self> {
        let instance = required_instance(message.instanceName)?;
        Ok(Self {
            instance,
            dependencies: Wire::read(message.dependencies)?,
        })
    }
}

impl Wire<api::AddedWorkload> for AddedWorkload {
    fn write(&self) -> api::AddedWorkload {
        api::AddedWorkload {
            instanceName: self.instance.write(),
            workload: Some(tree::write_workload(&self.workload)),
            ..Default::default()
        }
    }

    fn read(message: api::AddedWorkload) -> Decoded<Self> {
        let instance = required_instance(message.instanceName)?;
        let Some(bytes) = message.workload else {
            return Err(ConvertError("No workload".to_owned()));
        };
        let workload = match tree::read_workload(&bytes, &mut Left::unbounded()) {
            Ok(workload) => workload,
            Err(error) => {
                let name = excerpt(&instance.workload);
                log::warn!("Workload '{name}' is refused: {error}");
                tree::unreadable_workload(&bytes, &error)
            }
        };
        Ok(Self {
            instance,
            workload: Arc::new(workload),
        })
    }
}

fn write_states(states: &[WorkloadState]) -> api::UpdateWorkloadState {
    let mut message = api::UpdateWorkloadState::default();
    for WorkloadState { instance, state } in states {
        message.workloadStates.push(base::WorkloadState {
            instanceName: instance.write(),
            executionState: Some(StateParts::of(state).write()),
            ..Default::default()
        });
    }
    message
}

impl Wire<api::UpdateWorkloadState> for Vec<WorkloadState> {
    fn write(&self) -> api::UpdateWorkloadState {
        write_states(self)
    }

    /// An incomplete or malformed state is left out. One that only a newer program knows becomes an
    /// unknown one.
    fn read(message: api::UpdateWorkloadState) -> Decoded<Self> {
        let mut states = Vec::new();
        for entry in message.workloadStates {
            let bytes = entry.executionState.unwrap_or_default();
            let state = match StateParts::read(&bytes, &mut Left::unbounded()) {
                Ok(parts) => bounded_state(&parts),
                Err(error) if error.is_malformed() => {
                    log::debug!("Skipping a malformed workload state: {error}");
                    continue;
                }
                Err(error) => {
                    log::warn!(
                        "The state of a workload is not known: {error}. The program that sent it is probably newer."
                    );
                    unknown_state(&error)
                }
            };
            let instance = entry.instanceName.into_option();
            if let Some(instance) = instance
                && let Some(state) = state
            {
                states.push(WorkloadState::new(Wire::read(instance)?, state));
            } else {
                log::debug!("Skipping an incomplete workload state.");
            }
        }
        Ok(states)
    }
}

/// The state of a workload; `None` without a phase. Its additional info is cut to a bound: agents
/// of other implementations send all that their engine writes, and the server stores it.
fn bounded_state(parts: &StateParts<'_>) -> Option<ExecutionState> {
    let phase = parts.phase?;
    let info = parts.info.unwrap_or_default();
    let bounded = &info[..info.floor_char_boundary(ADDITIONAL_INFO_MAX)];
    Some(parts.state(phase, bounded))
}

/// Stands for a state that cannot be read because of `error`.
fn unknown_state(error: &ConvertError) -> Option<ExecutionState> {
    let info = format!("{error}, which only a newer program knows");
    bounded_state(&StateParts {
        info: Some(&info),
        phase: Some(Phase::FailedUnknown),
        ..StateParts::default()
    })
}

impl Wire<base::Request> for Request {
    fn write(&self) -> base::Request {
        let mut update = base::UpdateStateRequest::default();
        let mut message = base::Request {
            requestId: self.id.clone(),
            ..Default::default()
        };
        match &self.content {
            RequestContent::UpdateState(content) => {
                // A state that could not be read is not sent.
                if let Some(Ok(state)) = &content.new_state {
                    update.newState = Some(tree::write_state(state));
                }
                update.updateMask = content.masks.clone();
                update.restartWorkloads = content.restart.clone();
            }
            RequestContent::RollBack(number) => update.rollbackOf = Some(*number),
            RequestContent::StopAndStart(names) => {
                update.stopWorkloads = names.stop.clone();
                update.startWorkloads = names.start.clone();
            }
            other => {
                message.RequestContent = other.write();
                return message;
            }
        }
        message.RequestContent = Some(RequestEnum::UpdateStateRequest(update));
        message
    }

    fn read(message: base::Request) -> Decoded<Self> {
        Ok(Self {
            id: message.requestId,
            content: Wire::read(message.RequestContent)?,
        })
    }
}

// --------------------------------------------------------------- to the server

pub fn write_to_server(message: &ToServer) -> Vec<u8> {
    let content = match message {
        ToServer::StatesComplete => Some(ToServerEnum::UpdateWorkloadState(write_states(&[]))),
        message => message.write(),
    };
    bytes_of(&api::ToServer {
        ToServerEnum: content,
        ..Default::default()
    })
}

/// Reads any message; one without content becomes [`ToServer::Empty`]. A request that exceeds a
/// bound becomes one that is refused, so that its sender gets a response.
///
/// # Errors
/// Bytes that are no message.
pub fn read_to_server(bytes: &[u8], left: &mut Left) -> Decoded<ToServer> {
    // Of several contents the last one applies.
    if let Some((REQUEST, request)) = last_of(bytes, ANY)? {
        let read = read_request(request, left);
        if read.is_err()
            && let Some(reason) = left.refused()
            && let Some(id) = request_id(request)
        {
            return Ok(refused_request(id, reason.clone()));
        }
        return read.map(ToServer::Request);
    }
    if bytes.len() > FOREIGN_MESSAGE_MAX {
        // States, logs and loads are passed on to peers that take no larger messages. All agents
        // send them in smaller pieces.
        let text = format!(
            "{} bytes that are no request, at most {FOREIGN_MESSAGE_MAX} are taken",
            bytes.len()
        );
        return Err(left.refuse(text));
    }
    let message: api::ToServer = parse_within(bytes, left)?;
    let mut message = match message.ToServerEnum {
        Some(ToServerEnum::UpdateWorkloadState(states)) if states.workloadStates.is_empty() => {
            ToServer::StatesComplete
        }
        content => Wire::read(content)?,
    };
    if let ToServer::Prepared(instances) = &mut message {
        // The server keeps these texts and shows them to all. Our agents send no longer ones.
        for instance in instances {
            let texts = [&mut instance.reason, &mut instance.unmet];
            for text in texts.into_iter().flatten() {
                text.truncate(text.floor_char_boundary(CONDITION_INFO_MAX));
                text.shrink_to_fit();
            }
        }
    }
    Ok(message)
}

/// A request that was not decoded, with the reason for its sender.
pub(crate) fn refused_request(id: String, reason: String) -> ToServer {
    let update = UpdateState {
        new_state: Some(Err(reason)),
        ..UpdateState::default()
    };
    ToServer::Request(Request {
        id,
        content: RequestContent::UpdateState(update),
    })
}

/// The id of a request; empty if it has none, `None` if it cannot be read.
fn request_id(request: &[u8]) -> Option<String> {
    let Some((_, id)) = last_of(request, REQUEST_ID..=REQUEST_ID).ok()? else {
        return Some(String::new());
    };
    String::from_utf8(id.to_vec()).ok()
}

/// The id of the request that begins with these bytes; `None` if they do not have the whole id.
pub(crate) fn request_id_of_begin(begin: &[u8]) -> Option<String> {
    let mut stream = CodedInputStream::from_bytes(begin);
    // The tag of a field with this number that begins with its length.
    if stream.read_raw_varint32().ok()? != REQUEST << 3 | 2 {
        return None;
    }
    stream.read_raw_varint32().ok()?; // The length of the whole request.
    let request = begin.get(usize::try_from(stream.pos()).ok()?..)?;
    match Fields::of(request).next()?.ok()? {
        ReceivedField {
            number: REQUEST_ID,
            value: Value::Bytes(id),
        } => String::from_utf8(id.to_vec()).ok(),
        _ => None,
    }
}

/// Reads a request: an update with our own reader, since its state may be large, all others with
/// the library.
fn read_request(bytes: &[u8], left: &mut Left) -> Decoded<Request> {
    // A request has one of several contents, which are the fields 2 to 6.
    match last_of(bytes, 2..=6)? {
        Some((UPDATE_STATE, update)) => {
            let mut id = "";
            if let Some((_, bytes)) = last_of(bytes, REQUEST_ID..=REQUEST_ID)? {
                id = left.text(bytes)?;
            }
            return Ok(Request {
                id: id.to_owned(),
                content: read_update(update, left)?,
            });
        }
        Some((READ_STATE, read)) => check_masks(read, left)?,
        _ => {}
    }
    let request: base::Request = parse_within(bytes, left)?;
    Wire::read(request)
}

/// Reads an update. If its state cannot be read, the reason takes its place, and the server refuses
/// the update with that.
fn read_update(bytes: &[u8], left: &mut Left) -> Decoded<RequestContent> {
    let mut masks = Vec::new();
    let mut restart = Vec::new();
    let mut names = StopAndStart::default();
    let mut state = None;
    let mut rollback_of = None;
    for field in Fields::of(bytes) {
        match field? {
            ReceivedField {
                number: NEW_STATE,
                value: Value::Bytes(bytes),
            } => state = Some(bytes),
            ReceivedField {
                number:
                    number @ (UPDATE_MASK | RESTART_WORKLOADS | STOP_WORKLOADS | START_WORKLOADS),
                value: Value::Bytes(text),
            } => {
                left.take(PART)?;
                let texts = match number {
                    RESTART_WORKLOADS => &mut restart,
                    STOP_WORKLOADS => &mut names.stop,
                    START_WORKLOADS => &mut names.start,
                    _ => &mut masks,
                };
                texts.push(left.text(text)?.to_owned());
            }
            ReceivedField {
                number: ROLLBACK_OF,
                value: Value::Varint(number),
            } => rollback_of = Some(number),
            _ => {}
        }
    }
    // The rights of the sender are checked for one content, so all others are dropped.
    if let Some(number) = rollback_of {
        return Ok(RequestContent::RollBack(number));
    }
    if names != StopAndStart::default() {
        return Ok(RequestContent::StopAndStart(names));
    }
    let parts = if masks.is_empty() {
        Parts::NewWhole
    } else {
        Parts::New
    };
    let new_state =
        state.map(|state| tree::read_state(state, parts, left).map_err(|error| error.to_string()));
    Ok(RequestContent::UpdateState(UpdateState {
        new_state,
        masks,
        restart,
    }))
}

/// Checks the number of parts of all masks of a read or subscription.
fn check_masks(bytes: &[u8], left: &mut Left) -> Decoded<()> {
    let mut parts = 0;
    // Behind a malformed field nothing is counted: the library refuses such a message.
    for field in Fields::of(bytes).map_while(Result::ok) {
        if let Some(mask) = field.bytes_of(FIELD_MASK) {
            let dots = mask.iter().filter(|byte| **byte == b'.').count();
            parts += dots + 1;
        }
    }
    if parts > READ_MASKS_PARTS_MAX {
        return Err(left.refuse(format!(
            "its field masks have {parts} parts, at most {READ_MASKS_PARTS_MAX} are allowed; use fewer or shorter masks"
        )));
    }
    Ok(())
}

// ------------------------------------------------------------- from the server

pub fn write_from_server(message: &FromServer) -> Vec<u8> {
    bytes_of(&api::FromServer {
        FromServerEnum: message.write(),
        ..Default::default()
    })
}

/// Whether this message of the server is a response; without reading it.
pub(crate) fn is_response(bytes: &[u8]) -> bool {
    bytes.first() == Some(&RESPONSE_TAG)
}

/// Reads a message of the server.
///
/// # Errors
/// What is missing or unknown; the whole message is of no use then.
pub fn read_from_server(bytes: impl AsRef<[u8]>) -> Decoded<FromServer> {
    Wire::read(parse::<api::FromServer>(bytes)?.FromServerEnum)
}

/// Writes a plan for hooks.
pub fn write_plan(plan: &WorkloadPlan) -> Vec<u8> {
    let plan: api::UpdateWorkload = plan.write();
    bytes_of(&plan)
}

/// Reads the plan that a hook wrote.
///
/// # Errors
/// What is missing or unknown.
pub fn read_plan(bytes: &[u8]) -> Decoded<WorkloadPlan> {
    let plan = parse::<api::UpdateWorkload>(bytes)?;
    // The conversion below accepts unknown values, for plans of newer servers. In the plan of a
    // hook they are errors, which its author must see.
    for deleted in &plan.deletedWorkloads {
        for condition in deleted.dependencies.values() {
            if let Err(number) = condition.enum_value() {
                let number = i64::from(number).cast_unsigned();
                return Err(ConvertError::unknown_enum(number));
            }
        }
    }
    for added in &plan.addedWorkloads {
        if let Some(workload) = &added.workload {
            tree::read_workload(workload, &mut Left::unbounded())?;
        }
    }
    Wire::read(plan)
}

/// Encodes the end of a response: the `CompleteStateResponse` with `state`, for an event also with
/// the `altered` fields. The begin is made by [`before_state`].
pub(crate) fn encode_state(state: &Node, altered: Option<&AlteredFields>) -> Vec<u8> {
    let mut writer = MessageWriter::default();
    writer.nested(1, |writer| tree::add_state(writer, state));
    if let Some(altered) = altered {
        let altered: base::AlteredFields = altered.write();
        writer.bytes(2, &bytes_of(&altered));
    }
    writer.bytes
}

/// Encodes the begin of the response to the request `id`. The end, made by [`encode_state`], has
/// `state` bytes: it is field 4 of a `Response`, which is field 3 of a `FromServer`.
pub(crate) fn before_state(id: &str, state: usize) -> Vec<u8> {
    let mut inner = MessageWriter::default();
    inner.text(1, id);
    inner.begin(4, state);
    let mut outer = MessageWriter::default();
    outer.begin(3, inner.bytes.len() + state);
    outer.bytes.extend(inner.bytes);
    outer.bytes
}

/// The entries of states in a message with states.
pub(crate) fn encode_states(states: &[WorkloadState]) -> Vec<u8> {
    bytes_of(&write_states(states))
}

/// The head of a list of states with this number of bytes.
pub(crate) fn before_state_entries(bytes: usize) -> Vec<u8> {
    let mut writer = MessageWriter::default();
    writer.begin(2, bytes);
    writer.bytes
}

// -------------------------------------------------------- the control interface

fn delimited(message: &impl Message) -> Vec<u8> {
    message
        .write_length_delimited_to_bytes()
        .expect("no field is required, and a vector takes all bytes")
}

/// Reads a message of a workload. A request that exceeds a bound is refused with its id.
///
/// # Errors
/// Bytes that are no message.
// [impl->swdd~agent-converts-control-interface-message-to-ankaios-object~1]
pub fn read_from_workload(bytes: &[u8]) -> Decoded<FromWorkload> {
    let mut left = Left::of(bytes);
    if let Some((REQUEST, request)) = last_of(bytes, ANY)? {
        let read = read_request(request, &mut left);
        if let Some(reason) = left.refused().cloned()
            && let Some(id) = request_id(request)
        {
            return Ok(FromWorkload::TooHeavy { id, reason });
        }
        return read.map(FromWorkload::Request);
    }
    let message: control::ToAnkaios = parse_within(bytes, &mut left)?;
    Wire::read(message.ToAnkaiosEnum)
}

/// With its length.
pub fn write_from_workload(message: FromWorkload) -> Vec<u8> {
    delimited(&control::ToAnkaios {
        ToAnkaiosEnum: message.write(),
        ..Default::default()
    })
}

/// Reads a message of the agent.
///
/// # Errors
/// What is missing or unknown.
pub fn read_to_workload(bytes: &[u8]) -> Decoded<ToWorkload> {
    Wire::read(parse::<control::FromAnkaios>(bytes)?.FromAnkaiosEnum)
}

/// With its length.
pub fn write_to_workload(message: ToWorkload) -> Vec<u8> {
    delimited(&control::FromAnkaios {
        FromAnkaiosEnum: message.write(),
        ..Default::default()
    })
}
