//! Messages from the server, which agents and commanders read, and what hooks read and write.
//!
//! Thread: `tx` and `hook` of the server write; `rx:server` and `hook` read.

use super::ConvertError;
use super::tree::{self, Parts};
use super::values::{
    known, read_instance_name, read_log_entries, read_logs_request, read_workload_states, required_instance_name,
    write_instance_name, write_log_entries, write_logs_request, write_workload_states,
};
use crate::model::execution_state::WorkloadState;
use crate::model::messages::{
    AddedWorkload, AlteredFields, DeletedWorkload, FromServer, Response, ResponseContent, WorkloadPlan,
};
use crate::model::node::Node;
use crate::wire::schema::ank_base as base;
use crate::wire::schema::grpc_api;
use base::response::ResponseContent as WireContent;
use grpc_api::from_server::FromServerEnum;
use protobuf::{Message, MessageField};
use std::sync::Arc;

/// Reads a message of the server.
///
/// # Errors
/// What is missing or unknown; the whole message is of no use then.
pub fn read(message: grpc_api::FromServer) -> Result<FromServer, ConvertError> {
    Ok(match message.FromServerEnum {
        Some(FromServerEnum::ServerHello(hello)) => FromServer::ServerHello(read_added_all(&hello.addedWorkloads)?),
        Some(FromServerEnum::UpdateWorkload(update)) => FromServer::UpdateWorkload(read_plan(update)?),
        Some(FromServerEnum::UpdateWorkloadState(states)) => FromServer::WorkloadStates(read_workload_states(&states)),
        Some(FromServerEnum::Response(answer)) => FromServer::Response(read_response(answer)?),
        Some(FromServerEnum::LogsRequest(request)) => FromServer::LogsRequest {
            request_id: request.requestId,
            request: read_logs_request(request.logsRequest.unwrap_or_default()),
        },
        Some(FromServerEnum::LogsCancelRequest(cancel)) => FromServer::LogsCancel { request_id: cancel.requestId },
        Some(FromServerEnum::UsageRequest(request)) => FromServer::UsageRequest { number: request.number },
        Some(FromServerEnum::Prepare(prepare)) => FromServer::Prepare(read_added_all(&prepare.addedWorkloads)?),
        _ => return Err(ConvertError("a message without content".to_owned())),
    })
}

/// Writes a message of the server.
#[must_use]
pub fn write(message: FromServer) -> grpc_api::FromServer {
    let content = match message {
        FromServer::ServerHello(added) => FromServerEnum::ServerHello(grpc_api::ServerHello {
            addedWorkloads: added.iter().map(write_added).collect(),
            ..Default::default()
        }),
        FromServer::UpdateWorkload(plan) => FromServerEnum::UpdateWorkload(write_plan(&plan)),
        FromServer::WorkloadStates(states) => FromServerEnum::UpdateWorkloadState(write_workload_states(&states)),
        FromServer::Response(answer) => FromServerEnum::Response(write_response(answer)),
        FromServer::LogsRequest { request_id, request } => FromServerEnum::LogsRequest(grpc_api::LogsRequest {
            requestId: request_id,
            logsRequest: MessageField::some(write_logs_request(request)),
            ..Default::default()
        }),
        FromServer::LogsCancel { request_id } => FromServerEnum::LogsCancelRequest(grpc_api::LogsCancelRequest {
            requestId: request_id,
            ..Default::default()
        }),
        FromServer::UsageRequest { number } => {
            FromServerEnum::UsageRequest(grpc_api::UsageRequest { number, ..Default::default() })
        }
        FromServer::Prepare(added) => FromServerEnum::Prepare(grpc_api::Prepare {
            addedWorkloads: added.iter().map(write_added).collect(),
            ..Default::default()
        }),
    };
    grpc_api::FromServer { FromServerEnum: Some(content), ..Default::default() }
}

/// Reads what changes for an agent, or what a hook made of it.
///
/// # Errors
/// What is missing or unknown.
pub fn read_plan(update: grpc_api::UpdateWorkload) -> Result<WorkloadPlan, ConvertError> {
    Ok(WorkloadPlan {
        added: read_added_all(&update.addedWorkloads)?,
        deleted: update.deletedWorkloads.iter().map(read_deleted).collect::<Result<_, _>>()?,
    })
}

/// Writes what changes for an agent, or what a hook shall check.
#[must_use]
pub fn write_plan(plan: &WorkloadPlan) -> grpc_api::UpdateWorkload {
    grpc_api::UpdateWorkload {
        addedWorkloads: plan.added.iter().map(write_added).collect(),
        deletedWorkloads: plan.deleted.iter().map(write_deleted).collect(),
        ..Default::default()
    }
}

fn read_added_all(added: &[grpc_api::AddedWorkload]) -> Result<Vec<AddedWorkload>, ConvertError> {
    added.iter().map(read_added).collect()
}

fn read_added(added: &grpc_api::AddedWorkload) -> Result<AddedWorkload, ConvertError> {
    let instance = required_instance_name(&added.instanceName)?;
    let workload = added.workload.as_ref().ok_or_else(|| ConvertError("No workload".to_owned()))?;
    Ok(AddedWorkload { instance, workload: Arc::new(tree::read_workload(workload)?) })
}

fn write_added(added: &AddedWorkload) -> grpc_api::AddedWorkload {
    grpc_api::AddedWorkload {
        instanceName: MessageField::some(write_instance_name(&added.instance)),
        workload: Some(tree::write_workload(&added.workload)),
        ..Default::default()
    }
}

fn read_deleted(deleted: &grpc_api::DeletedWorkload) -> Result<DeletedWorkload, ConvertError> {
    let conditions = deleted.dependencies.iter();
    Ok(DeletedWorkload {
        instance: required_instance_name(&deleted.instanceName)?,
        dependencies: conditions
            .map(|(name, condition)| Ok((name.clone(), known(*condition)?.into())))
            .collect::<Result<_, ConvertError>>()?,
    })
}

fn write_deleted(deleted: &DeletedWorkload) -> grpc_api::DeletedWorkload {
    let conditions = deleted
        .dependencies
        .iter()
        .map(|(name, condition)| (name.clone(), grpc_api::DeleteCondition::from(*condition).into()));
    grpc_api::DeletedWorkload {
        instanceName: MessageField::some(write_instance_name(&deleted.instance)),
        dependencies: conditions.collect(),
        ..Default::default()
    }
}

/// Reads a response, from gRPC and the control interface alike.
///
/// # Errors
/// What is missing or unknown.
pub fn read_response(answer: base::Response) -> Result<Response, ConvertError> {
    let content = match answer.ResponseContent {
        Some(WireContent::Error(error)) => ResponseContent::Error(error.message),
        Some(WireContent::CompleteStateResponse(state)) => ResponseContent::CompleteState {
            state: tree::read_state(&state.completeState.unwrap_or_default(), Parts::Sent)?,
            altered: state.alteredFields.into_option().map(|altered| AlteredFields {
                added: altered.addedFields,
                updated: altered.updatedFields,
                removed: altered.removedFields,
            }),
        },
        Some(WireContent::UpdateStateSuccess(success)) => {
            ResponseContent::UpdateStateSuccess { added: success.addedWorkloads, deleted: success.deletedWorkloads }
        }
        Some(WireContent::LogsRequestAccepted(accepted)) => {
            ResponseContent::LogsAccepted(accepted.workloadNames.iter().map(read_instance_name).collect())
        }
        Some(WireContent::LogEntriesResponse(entries)) => ResponseContent::LogEntries(read_log_entries(entries)),
        Some(WireContent::LogsStopResponse(stop)) => {
            ResponseContent::LogsStop(required_instance_name(&stop.workloadName)?)
        }
        Some(WireContent::LogsCancelAccepted(_)) => ResponseContent::LogsCancelAccepted,
        Some(WireContent::EventsCancelAccepted(_)) => ResponseContent::EventsCancelAccepted,
        _ => return Err(ConvertError("an answer without content".to_owned())),
    };
    Ok(Response { id: answer.requestId, content })
}

/// Writes a response, for gRPC and the control interface alike.
#[must_use]
pub fn write_response(answer: Response) -> base::Response {
    let content = match answer.content {
        ResponseContent::Error(message) => WireContent::Error(base::Error { message, ..Default::default() }),
        ResponseContent::CompleteState { state, altered } => {
            WireContent::CompleteStateResponse(write_complete_state_response(&state, altered))
        }
        ResponseContent::UpdateStateSuccess { added, deleted } => {
            WireContent::UpdateStateSuccess(base::UpdateStateSuccess {
                addedWorkloads: added,
                deletedWorkloads: deleted,
                ..Default::default()
            })
        }
        ResponseContent::LogsAccepted(names) => WireContent::LogsRequestAccepted(base::LogsRequestAccepted {
            workloadNames: names.iter().map(write_instance_name).collect(),
            ..Default::default()
        }),
        ResponseContent::LogEntries(entries) => WireContent::LogEntriesResponse(write_log_entries(entries)),
        ResponseContent::LogsStop(name) => WireContent::LogsStopResponse(base::LogsStopResponse {
            workloadName: MessageField::some(write_instance_name(&name)),
            ..Default::default()
        }),
        ResponseContent::LogsCancelAccepted => WireContent::LogsCancelAccepted(base::LogsCancelAccepted::default()),
        ResponseContent::EventsCancelAccepted => {
            WireContent::EventsCancelAccepted(base::EventsCancelAccepted::default())
        }
    };
    base::Response { requestId: answer.id, ResponseContent: Some(content), ..Default::default() }
}

/// Writes a state, with what changed when it is an event.
#[must_use]
pub fn write_complete_state_response(state: &Node, altered: Option<AlteredFields>) -> base::CompleteStateResponse {
    let altered = altered.map(|altered| base::AlteredFields {
        addedFields: altered.added,
        updatedFields: altered.updated,
        removedFields: altered.removed,
        ..Default::default()
    });
    base::CompleteStateResponse {
        alteredFields: altered.into(),
        completeState: Some(tree::write_state(state)),
        ..Default::default()
    }
}

/// The entry of a state in a message with states.
#[must_use]
pub fn encoded_state_entry(state: &WorkloadState) -> Vec<u8> {
    let message = write_workload_states(std::slice::from_ref(state));
    message.write_to_bytes().expect("no field is required, and a vector takes all bytes")
}

/// A message with states whose entries are encoded already.
#[must_use]
pub fn states_of_encoded(entries: Vec<u8>) -> grpc_api::FromServer {
    const UPDATE_WORKLOAD_STATE: u32 = 2; // Its number in grpc_api.proto.
    grpc_api::FromServer { special_fields: tree::as_field(UPDATE_WORKLOAD_STATE, entries), ..Default::default() }
}

/// A response with a state that is encoded already.
#[must_use]
pub fn response_of_encoded(id: String, complete_state_response: &[u8]) -> grpc_api::FromServer {
    const COMPLETE_STATE_RESPONSE: u32 = 4; // Its number in ank_base.proto.
    let special_fields = tree::as_field(COMPLETE_STATE_RESPONSE, complete_state_response.to_vec());
    let response = base::Response { requestId: id, special_fields, ..Default::default() };
    grpc_api::FromServer { FromServerEnum: Some(FromServerEnum::Response(response)), ..Default::default() }
}
