//! Messages that the server sends, and asks hooks about.
//!
//! Thread: `tx`; `hook`.

use super::logs::{log_entries, logs_request};
use super::state::complete_state;
use super::workload::{delete_condition, instance_name, workload, workload_states};
use crate::model::messages::{
    AddedWorkload, AlteredFields, DeletedWorkload, FromServer, Response, ResponseContent, WorkloadPlan,
};
use crate::model::node::Node;
use crate::wire::schema::ank_base as base;
use crate::wire::schema::grpc_api;
use base::response::ResponseContent as WireContent;
use grpc_api::from_server::FromServerEnum;
use protobuf::MessageField;

/// The message on the wire.
#[must_use]
pub fn from_server(message: FromServer) -> grpc_api::FromServer {
    let content = match message {
        FromServer::ServerHello(added) => FromServerEnum::ServerHello(grpc_api::ServerHello {
            addedWorkloads: added.iter().map(added_workload).collect(),
            ..Default::default()
        }),
        FromServer::UpdateWorkload(plan) => FromServerEnum::UpdateWorkload(update_workload(&plan)),
        FromServer::WorkloadStates(states) => FromServerEnum::UpdateWorkloadState(workload_states(&states)),
        FromServer::Response(answer) => FromServerEnum::Response(response(answer)),
        FromServer::LogsRequest { request_id, request } => FromServerEnum::LogsRequest(grpc_api::LogsRequest {
            requestId: request_id,
            logsRequest: MessageField::some(logs_request(request)),
            ..Default::default()
        }),
        FromServer::LogsCancel { request_id } => FromServerEnum::LogsCancelRequest(grpc_api::LogsCancelRequest {
            requestId: request_id,
            ..Default::default()
        }),
    };
    grpc_api::FromServer { FromServerEnum: Some(content), ..Default::default() }
}

/// What changes for an agent, or what hooks are asked about.
#[must_use]
pub fn update_workload(plan: &WorkloadPlan) -> grpc_api::UpdateWorkload {
    grpc_api::UpdateWorkload {
        addedWorkloads: plan.added.iter().map(added_workload).collect(),
        deletedWorkloads: plan.deleted.iter().map(deleted_workload).collect(),
        ..Default::default()
    }
}

fn added_workload(added: &AddedWorkload) -> grpc_api::AddedWorkload {
    grpc_api::AddedWorkload {
        instanceName: MessageField::some(instance_name(&added.instance)),
        workload: MessageField::some(workload(&added.workload)),
        ..Default::default()
    }
}

fn deleted_workload(deleted: &DeletedWorkload) -> grpc_api::DeletedWorkload {
    let conditions =
        deleted.dependencies.iter().map(|(name, condition)| (name.clone(), delete_condition(*condition).into()));
    grpc_api::DeletedWorkload {
        instanceName: MessageField::some(instance_name(&deleted.instance)),
        dependencies: conditions.collect(),
        ..Default::default()
    }
}

/// An answer on the wire, for gRPC and the control interface alike.
#[must_use]
pub fn response(answer: Response) -> base::Response {
    let content = match answer.content {
        ResponseContent::Error(message) => WireContent::Error(base::Error { message, ..Default::default() }),
        ResponseContent::CompleteState { state, altered } => {
            WireContent::CompleteStateResponse(complete_state_response(&state, altered))
        }
        ResponseContent::UpdateStateSuccess { added, deleted } => {
            WireContent::UpdateStateSuccess(base::UpdateStateSuccess {
                addedWorkloads: added,
                deletedWorkloads: deleted,
                ..Default::default()
            })
        }
        ResponseContent::LogsAccepted(names) => WireContent::LogsRequestAccepted(base::LogsRequestAccepted {
            workloadNames: names.iter().map(instance_name).collect(),
            ..Default::default()
        }),
        ResponseContent::LogEntries(entries) => WireContent::LogEntriesResponse(log_entries(entries)),
        ResponseContent::LogsStop(name) => WireContent::LogsStopResponse(base::LogsStopResponse {
            workloadName: MessageField::some(instance_name(&name)),
            ..Default::default()
        }),
        ResponseContent::LogsCancelAccepted => WireContent::LogsCancelAccepted(base::LogsCancelAccepted::default()),
        ResponseContent::EventsCancelAccepted => {
            WireContent::EventsCancelAccepted(base::EventsCancelAccepted::default())
        }
    };
    base::Response { requestId: answer.id, ResponseContent: Some(content), ..Default::default() }
}

/// A state, with what changed when it is an event.
#[must_use]
pub fn complete_state_response(state: &Node, altered: Option<AlteredFields>) -> base::CompleteStateResponse {
    let altered = altered.map(|altered| base::AlteredFields {
        addedFields: altered.added,
        updatedFields: altered.updated,
        removedFields: altered.removed,
        ..Default::default()
    });
    base::CompleteStateResponse {
        completeState: MessageField::some(complete_state(state)),
        alteredFields: altered.into(),
        ..Default::default()
    }
}

/// An answer with a state that is encoded already. The library encodes fields that it does not know as they are, so this
/// one is given to it as such.
#[must_use]
pub fn encoded_response(id: String, complete_state_response: &[u8]) -> grpc_api::FromServer {
    const COMPLETE_STATE_RESPONSE: u32 = 4; // Its number in ank_base.proto.
    let mut response = base::Response { requestId: id, ..Default::default() };
    let fields = response.special_fields.mut_unknown_fields();
    fields.add_length_delimited(COMPLETE_STATE_RESPONSE, complete_state_response.to_vec());
    grpc_api::FromServer { FromServerEnum: Some(FromServerEnum::Response(response)), ..Default::default() }
}
