//! Messages that the server receives.
//!
//! Thread: `rx:<peer>`.

use super::logs::{read_log_entries, read_logs_request};
use super::state::complete_state_tree;
use super::workload::{read_workload_states, required_instance_name};
use crate::model::messages::{AgentLoad, ReadState, Request, RequestContent, ToServer, UpdateState};
use crate::wire::schema::ank_base as base;
use crate::wire::schema::grpc_api;
use base::request::RequestContent as WireContent;
use grpc_api::to_server::ToServerEnum;
use protobuf::MessageField;

/// Reads any message; one that says nothing becomes [`ToServer::Empty`].
#[must_use]
pub fn to_server(message: grpc_api::ToServer) -> ToServer {
    match message.ToServerEnum {
        Some(ToServerEnum::AgentHello(hello)) => ToServer::AgentHello {
            agent: hello.agentName,
            version: hello.protocolVersion,
            tags: hello.tags.into_option().map(|tags| tags.tags.into_iter().collect()).unwrap_or_default(),
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
        Some(ToServerEnum::Goodbye(_)) => ToServer::Goodbye,
        _ => ToServer::Empty,
    }
}

/// Reads a request of a commander or workload.
#[must_use]
pub fn read_request(request: base::Request) -> Request {
    let content = match request.RequestContent {
        Some(WireContent::UpdateStateRequest(mut update)) => {
            // Without masks only the desired state and the agents count, so nothing else can be wrong.
            if let Some(state) = update.newState.as_mut().filter(|_| update.updateMask.is_empty()) {
                (state.workloadStates, state.effectiveState) = (MessageField::none(), MessageField::none());
            }
            let tree = |state| complete_state_tree(state).map_err(|error| error.to_string());
            RequestContent::UpdateState(UpdateState {
                new_state: update.newState.as_ref().map(tree),
                masks: std::mem::take(&mut update.updateMask),
            })
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
