//! Messages that agents and commanders receive, and hooks answer.
//!
//! Thread: `rx:server`; `hook` of the server.

use super::ConvertError;
use super::logs::{read_log_entries, read_logs_request};
use super::state::complete_state_tree;
use super::workload::{
    read_delete_condition, read_instance_name, read_workload, read_workload_states, required_instance_name,
};
use crate::model::messages::{
    AddedWorkload, AlteredFields, DeletedWorkload, FromServer, Response, ResponseContent, WorkloadPlan,
};
use crate::wire::schema::ank_base as base;
use crate::wire::schema::grpc_api;
use base::response::ResponseContent as WireContent;
use grpc_api::from_server::FromServerEnum;
use std::sync::Arc;

/// Reads a message of the server.
///
/// # Errors
/// What is missing or unknown; the whole message is of no use then.
pub fn from_server(message: grpc_api::FromServer) -> Result<FromServer, ConvertError> {
    Ok(match message.FromServerEnum {
        Some(FromServerEnum::ServerHello(hello)) => FromServer::ServerHello(added_workloads(&hello.addedWorkloads)?),
        Some(FromServerEnum::UpdateWorkload(update)) => FromServer::UpdateWorkload(workload_plan(update)?),
        Some(FromServerEnum::UpdateWorkloadState(states)) => FromServer::WorkloadStates(read_workload_states(&states)),
        Some(FromServerEnum::Response(answer)) => FromServer::Response(response(answer)?),
        Some(FromServerEnum::LogsRequest(request)) => FromServer::LogsRequest {
            request_id: request.requestId,
            request: read_logs_request(request.logsRequest.unwrap_or_default()),
        },
        Some(FromServerEnum::LogsCancelRequest(cancel)) => FromServer::LogsCancel { request_id: cancel.requestId },
        _ => return Err(ConvertError("a message without content".to_owned())),
    })
}

/// Reads what changes for an agent, or what a hook made of it.
///
/// # Errors
/// What is missing or unknown.
pub fn workload_plan(update: grpc_api::UpdateWorkload) -> Result<WorkloadPlan, ConvertError> {
    Ok(WorkloadPlan {
        added: added_workloads(&update.addedWorkloads)?,
        deleted: update.deletedWorkloads.iter().map(deleted_workload).collect::<Result<_, _>>()?,
    })
}

fn added_workloads(added: &[grpc_api::AddedWorkload]) -> Result<Vec<AddedWorkload>, ConvertError> {
    added.iter().map(added_workload).collect()
}

fn added_workload(added: &grpc_api::AddedWorkload) -> Result<AddedWorkload, ConvertError> {
    let instance = required_instance_name(&added.instanceName)?;
    let workload = added.workload.as_ref().ok_or_else(|| ConvertError("No workload".to_owned()))?;
    Ok(AddedWorkload { instance, workload: Arc::new(read_workload(workload)?) })
}

fn deleted_workload(deleted: &grpc_api::DeletedWorkload) -> Result<DeletedWorkload, ConvertError> {
    let conditions = deleted.dependencies.iter();
    Ok(DeletedWorkload {
        instance: required_instance_name(&deleted.instanceName)?,
        dependencies: conditions
            .map(|(name, condition)| Ok((name.clone(), read_delete_condition(*condition)?)))
            .collect::<Result<_, ConvertError>>()?,
    })
}

/// Reads an answer, from gRPC and the control interface alike.
///
/// # Errors
/// What is missing or unknown.
pub fn response(answer: base::Response) -> Result<Response, ConvertError> {
    let content = match answer.ResponseContent {
        Some(WireContent::Error(error)) => ResponseContent::Error(error.message),
        Some(WireContent::CompleteStateResponse(state)) => ResponseContent::CompleteState {
            state: complete_state_tree(&state.completeState)?,
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
