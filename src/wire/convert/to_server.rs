//! Messages to the server: agents and commanders write them, the server reads them.
//!
//! Thread: `rx:<peer>` reads; `uplink` of the agent and `main` of `ank` write.

use super::tree::{self, Parts};
use super::usage::read_agent_usage;
use super::values::{
    read_instance_name, read_log_entries, read_logs_request, read_workload_states, required_instance_name,
    write_instance_name, write_log_entries, write_logs_request, write_workload_states,
};
use crate::limits::CONDITION_INFO_MAX;
use crate::model::messages::{
    AgentCapabilities, AgentLoad, PreparedInstance, ReadState, Request, RequestContent, ToServer, UpdateState,
};
use crate::model::prepare_level::PrepareLevel;
use crate::wire::schema::ank_base as base;
use crate::wire::schema::grpc_api;
use base::request::RequestContent as WireContent;
use grpc_api::to_server::ToServerEnum;
use protobuf::MessageField;

/// The number of `usage` in `UsageResponse`.
const USAGE: u32 = 2;

/// Reads any message; one without content becomes [`ToServer::Empty`].
#[must_use]
pub fn read(message: grpc_api::ToServer) -> ToServer {
    match message.ToServerEnum {
        Some(ToServerEnum::AgentHello(hello)) => ToServer::AgentHello {
            agent: hello.agentName,
            version: hello.protocolVersion,
            tags: hello.tags.into_option().map(|tags| tags.tags.into_iter().collect()).unwrap_or_default(),
            capabilities: AgentCapabilities { tells_usage: hello.tellsUsage, prepares: hello.prepares },
        },
        Some(ToServerEnum::CommanderHello(hello)) => ToServer::CommanderHello { version: hello.protocolVersion },
        Some(ToServerEnum::UpdateWorkloadState(states)) if states.workloadStates.is_empty() => ToServer::StatesComplete,
        Some(ToServerEnum::UpdateWorkloadState(states)) => ToServer::WorkloadStates(read_workload_states(&states)),
        Some(ToServerEnum::AgentLoadStatus(load)) => ToServer::AgentLoad(AgentLoad {
            agent: load.agent_name,
            cpu_usage: load.cpu_usage.cpu_usage,
            free_memory: load.free_memory.free_memory,
        }),
        Some(ToServerEnum::Request(request)) => ToServer::Request(read_request(request)),
        Some(ToServerEnum::LogEntriesResponse(response)) => match response.logEntriesResponse.into_option() {
            Some(entries) => {
                ToServer::LogEntries { request_id: response.requestId, entries: read_log_entries(entries) }
            }
            None => ToServer::Empty,
        },
        Some(ToServerEnum::LogsStopResponse(response)) => {
            match response.logsStopResponse.as_ref().map(|stop| required_instance_name(&stop.workloadName)) {
                Some(Ok(instance)) => ToServer::LogsStop { request_id: response.requestId, instance },
                _ => ToServer::Empty,
            }
        }
        Some(ToServerEnum::Prepared(prepared)) => {
            ToServer::Prepared(prepared.instances.into_iter().map(read_prepared).collect())
        }
        Some(ToServerEnum::UsageResponse(response)) => ToServer::UsageResponse {
            number: response.number,
            usage: read_agent_usage(response.usage.unwrap_or_default()),
        },
        Some(ToServerEnum::Goodbye(_)) => ToServer::Goodbye,
        _ => ToServer::Empty,
    }
}

/// Writes any message.
#[must_use]
pub fn write(message: ToServer) -> grpc_api::ToServer {
    let content = match message {
        ToServer::AgentHello { agent, version, tags, capabilities } => ToServerEnum::AgentHello(grpc_api::AgentHello {
            prepares: capabilities.prepares,
            agentName: agent,
            protocolVersion: version,
            tags: MessageField::some(base::Tags { tags: tags.into_iter().collect(), ..Default::default() }),
            tellsUsage: capabilities.tells_usage,
            ..Default::default()
        }),
        ToServer::CommanderHello { version } => {
            ToServerEnum::CommanderHello(grpc_api::CommanderHello { protocolVersion: version, ..Default::default() })
        }
        ToServer::WorkloadStates(states) => ToServerEnum::UpdateWorkloadState(write_workload_states(&states)),
        ToServer::StatesComplete => ToServerEnum::UpdateWorkloadState(write_workload_states(&[])),
        ToServer::AgentLoad(load) => ToServerEnum::AgentLoadStatus(grpc_api::AgentLoadStatus {
            agent_name: load.agent,
            cpu_usage: MessageField::some(base::CpuUsage { cpu_usage: load.cpu_usage, ..Default::default() }),
            free_memory: MessageField::some(base::FreeMemory { free_memory: load.free_memory, ..Default::default() }),
            ..Default::default()
        }),
        ToServer::Request(content) => ToServerEnum::Request(write_request(content)),
        ToServer::LogEntries { request_id, entries } => {
            ToServerEnum::LogEntriesResponse(grpc_api::LogEntriesResponse {
                requestId: request_id,
                logEntriesResponse: MessageField::some(write_log_entries(entries)),
                ..Default::default()
            })
        }
        ToServer::LogsStop { request_id, instance } => ToServerEnum::LogsStopResponse(grpc_api::LogsStopResponse {
            requestId: request_id,
            logsStopResponse: MessageField::some(base::LogsStopResponse {
                workloadName: MessageField::some(write_instance_name(&instance)),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ToServer::UsageResponse { number, usage } => ToServerEnum::UsageResponse(grpc_api::UsageResponse {
            number,
            special_fields: tree::as_field(USAGE, tree::write_agent_usage(&usage.node())),
            ..Default::default()
        }),
        ToServer::Prepared(instances) => ToServerEnum::Prepared(grpc_api::Prepared {
            instances: instances.into_iter().map(write_prepared).collect(),
            ..Default::default()
        }),
        ToServer::Goodbye => ToServerEnum::Goodbye(grpc_api::Goodbye::default()),
        ToServer::Empty => return grpc_api::ToServer::default(),
    };
    grpc_api::ToServer { ToServerEnum: Some(content), ..Default::default() }
}

fn read_prepared(prepared: grpc_api::PreparedInstance) -> PreparedInstance {
    PreparedInstance {
        instance: read_instance_name(&prepared.instanceName),
        level: prepared.level.and_then(|level| PrepareLevel::parse(&level)),
        reason: prepared.reason.map(cut_info),
        tries: prepared.tries,
        is_final: prepared.isFinal,
        unmet: prepared.unmet.map(cut_info),
    }
}

/// Our agents send no more; the server keeps it and shows it to everybody.
fn cut_info(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(CONDITION_INFO_MAX));
    text.shrink_to_fit();
    text
}

fn write_prepared(prepared: PreparedInstance) -> grpc_api::PreparedInstance {
    grpc_api::PreparedInstance {
        instanceName: MessageField::some(write_instance_name(&prepared.instance)),
        level: prepared.level.map(|level| level.as_str().to_owned()),
        reason: prepared.reason,
        tries: prepared.tries,
        isFinal: prepared.is_final,
        unmet: prepared.unmet,
        ..Default::default()
    }
}

/// Reads a request of a commander or workload.
#[must_use]
pub fn read_request(request: base::Request) -> Request {
    let content = match request.RequestContent {
        // Whatever else it has: its sender needs the rights for this only.
        Some(WireContent::UpdateStateRequest(base::UpdateStateRequest { rollbackOf: Some(number), .. })) => {
            RequestContent::RollBack(number)
        }
        Some(WireContent::UpdateStateRequest(update)) => {
            let parts = if update.updateMask.is_empty() { Parts::NewWhole } else { Parts::New };
            let tree = |bytes: Vec<u8>| tree::read_state(&bytes, parts).map_err(|error| error.to_string());
            RequestContent::UpdateState(UpdateState { new_state: update.newState.map(tree), masks: update.updateMask })
        }
        Some(WireContent::CompleteStateRequest(read)) => {
            RequestContent::CompleteState(ReadState { masks: read.fieldMask, subscribe: read.subscribeForEvents })
        }
        Some(WireContent::LogsRequest(logs)) => RequestContent::Logs(read_logs_request(logs)),
        Some(WireContent::LogsCancelRequest(_)) => RequestContent::LogsCancel,
        Some(WireContent::EventsCancelRequest(_)) => RequestContent::EventsCancel,
        _ => RequestContent::Missing,
    };
    Request { id: request.requestId, content }
}

/// Writes a request of a commander or workload.
#[must_use]
pub fn write_request(request: Request) -> base::Request {
    let content = match request.content {
        RequestContent::UpdateState(update) => Some(WireContent::UpdateStateRequest(base::UpdateStateRequest {
            // A state that could not be read never leaves this program again.
            newState: update.new_state.and_then(Result::ok).map(|new| tree::write_state(&new)),
            updateMask: update.masks,
            ..Default::default()
        })),
        RequestContent::RollBack(number) => Some(WireContent::UpdateStateRequest(base::UpdateStateRequest {
            rollbackOf: Some(number),
            ..Default::default()
        })),
        RequestContent::CompleteState(read) => Some(WireContent::CompleteStateRequest(base::CompleteStateRequest {
            fieldMask: read.masks,
            subscribeForEvents: read.subscribe,
            ..Default::default()
        })),
        RequestContent::Logs(logs) => Some(WireContent::LogsRequest(write_logs_request(logs))),
        RequestContent::LogsCancel => Some(WireContent::LogsCancelRequest(base::LogsCancelRequest::default())),
        RequestContent::EventsCancel => Some(WireContent::EventsCancelRequest(base::EventsCancelRequest::default())),
        RequestContent::Missing => None,
    };
    base::Request { requestId: request.id, RequestContent: content, ..Default::default() }
}
