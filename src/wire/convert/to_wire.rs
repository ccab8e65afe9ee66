//! Messages that agents and commanders send.
//!
//! Thread: `uplink` of the agent, `main` of `ank`.

use super::logs::{log_entries, logs_request};
use super::state::complete_state;
use super::workload::{instance_name, tags, workload_states};
use crate::model::messages::{Request, RequestContent, ToServer};
use crate::wire::schema::ank_base as base;
use crate::wire::schema::grpc_api;
use base::request::RequestContent as WireContent;
use grpc_api::to_server::ToServerEnum;
use protobuf::MessageField;

/// The message on the wire.
#[must_use]
pub fn to_server(message: ToServer) -> grpc_api::ToServer {
    let content = match message {
        ToServer::AgentHello { agent, version, tags: agent_tags } => ToServerEnum::AgentHello(grpc_api::AgentHello {
            agentName: agent,
            protocolVersion: version,
            tags: MessageField::some(tags(&agent_tags)),
            ..Default::default()
        }),
        ToServer::CommanderHello { version } => {
            ToServerEnum::CommanderHello(grpc_api::CommanderHello { protocolVersion: version, ..Default::default() })
        }
        ToServer::WorkloadStates(states) => ToServerEnum::UpdateWorkloadState(workload_states(&states)),
        ToServer::StatesComplete => ToServerEnum::UpdateWorkloadState(workload_states(&[])),
        ToServer::AgentLoad(load) => ToServerEnum::AgentLoadStatus(grpc_api::AgentLoadStatus {
            agent_name: load.agent,
            cpu_usage: MessageField::some(base::CpuUsage { cpu_usage: load.cpu_usage, ..Default::default() }),
            free_memory: MessageField::some(base::FreeMemory { free_memory: load.free_memory, ..Default::default() }),
            ..Default::default()
        }),
        ToServer::Request(content) => ToServerEnum::Request(request(content)),
        ToServer::LogEntries { request_id, entries } => {
            ToServerEnum::LogEntriesResponse(grpc_api::LogEntriesResponse {
                requestId: request_id,
                logEntriesResponse: MessageField::some(log_entries(entries)),
                ..Default::default()
            })
        }
        ToServer::LogsStop { request_id, instance } => ToServerEnum::LogsStopResponse(grpc_api::LogsStopResponse {
            requestId: request_id,
            logsStopResponse: MessageField::some(base::LogsStopResponse {
                workloadName: MessageField::some(instance_name(&instance)),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ToServer::Goodbye => ToServerEnum::Goodbye(grpc_api::Goodbye::default()),
        ToServer::Empty => return grpc_api::ToServer::default(),
    };
    grpc_api::ToServer { ToServerEnum: Some(content), ..Default::default() }
}

/// A request on the wire.
#[must_use]
pub fn request(request: Request) -> base::Request {
    let content = match request.content {
        RequestContent::UpdateState(update) => Some(WireContent::UpdateStateRequest(base::UpdateStateRequest {
            // A state that could not be read never leaves this program again.
            newState: update.new_state.and_then(Result::ok).map(|tree| complete_state(&tree)).into(),
            updateMask: update.masks,
            ..Default::default()
        })),
        RequestContent::CompleteState(read) => Some(WireContent::CompleteStateRequest(base::CompleteStateRequest {
            fieldMask: read.masks,
            subscribeForEvents: read.subscribe,
            ..Default::default()
        })),
        RequestContent::Logs(logs) => Some(WireContent::LogsRequest(logs_request(logs))),
        RequestContent::LogsCancel => Some(WireContent::LogsCancelRequest(base::LogsCancelRequest::default())),
        RequestContent::EventsCancel => Some(WireContent::EventsCancelRequest(base::EventsCancelRequest::default())),
        RequestContent::Missing => None,
    };
    base::Request { requestId: request.id, RequestContent: content, ..Default::default() }
}
