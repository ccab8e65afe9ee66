//! What messages take, in bytes, roughly. A bound needs no exact number.
//!
//! Thread: none, plain functions.

use crate::limits::PEER_OUTBOX_ENTRY;
use crate::model::access_rules::AccessRule;
use crate::model::execution_state::WorkloadState;
use crate::model::messages::{AddedWorkload, FromServer, Response, ResponseContent};
use crate::model::names::InstanceName;
use crate::wire::encoded_state::EncodedState;

const OVERHEAD: usize = 16;

pub(super) fn name_bytes(name: &InstanceName) -> usize {
    name.workload.len() + name.id.len() + name.agent.len() + OVERHEAD
}

pub(super) fn state_bytes(state: &WorkloadState) -> usize {
    name_bytes(&state.instance) + state.state.additional_info.len() + OVERHEAD
}

/// What states take while they wait if each is the newest of its instance, in bytes, roughly: their texts are those in
/// the state of the cluster then, and nobody has a copy.
pub(super) fn shared_bytes(states: &[WorkloadState]) -> usize {
    let own = states.iter().map(|state| size_of::<WorkloadState>() + name_bytes(&state.instance));
    own.sum::<usize>() + PEER_OUTBOX_ENTRY
}

/// What an encoded state takes for one who waits for it, in bytes, roughly.
pub(super) fn state_answer_bytes(id: &str, state: &EncodedState) -> usize {
    id.len() + state.bytes() + PEER_OUTBOX_ENTRY
}

/// What a message takes in memory while it waits, in bytes, roughly. A state as a tree takes many times what it takes
/// encoded.
pub(super) fn waiting_bytes(message: &FromServer) -> usize {
    let content = match message {
        FromServer::WorkloadStates(states) => {
            states.iter().map(|state| size_of::<WorkloadState>() + state_bytes(state)).sum()
        }
        FromServer::Response(Response { id, content: ResponseContent::CompleteState { state, altered } }) => {
            let paths = altered.iter().flat_map(|a| a.added.iter().chain(&a.updated).chain(&a.removed));
            id.len() + state.memory_bytes() + paths.map(|path| path.len() + size_of::<String>()).sum::<usize>()
        }
        other => approximate_bytes(other),
    };
    content + PEER_OUTBOX_ENTRY
}

/// Roughly the encoded size of a message, in bytes. A bound needs no exact number.
#[must_use]
pub fn approximate_bytes(message: &FromServer) -> usize {
    fn added_bytes(added: &AddedWorkload) -> usize {
        let workload = &added.workload;
        let files: usize = workload
            .files
            .iter()
            .map(|file| match &file.content {
                crate::model::workload::FileContent::Data(text)
                | crate::model::workload::FileContent::BinaryData(text) => file.mount_point.len() + text.len(),
            })
            .sum();
        let tags: usize = workload.tags.iter().map(|(key, text)| key.len() + text.len() + OVERHEAD).sum();
        let dependencies: usize = workload.dependencies.keys().map(|name| name.len() + OVERHEAD).sum();
        let access = &workload.control_interface_access;
        let rules = access.allow_rules.iter().chain(&access.deny_rules);
        let texts = rules.flat_map(|rule| match rule {
            AccessRule::State { filter_masks, .. } => filter_masks,
            AccessRule::Log { workload_names } => workload_names,
        });
        let access: usize = texts.map(|text| text.len() + OVERHEAD).sum();
        let runtime = workload.runtime.len() + workload.runtime_config.len();
        name_bytes(&added.instance) + runtime + files + tags + dependencies + access + 8 * OVERHEAD
    }
    match message {
        FromServer::ServerHello(added) => added.iter().map(added_bytes).sum::<usize>() + OVERHEAD,
        FromServer::UpdateWorkload(plan) => {
            let deleted = plan.deleted.iter().map(|entry| {
                let dependencies = entry.dependencies.keys().map(|name| name.len() + OVERHEAD);
                name_bytes(&entry.instance) + dependencies.sum::<usize>()
            });
            plan.added.iter().map(added_bytes).sum::<usize>() + deleted.sum::<usize>() + OVERHEAD
        }
        FromServer::WorkloadStates(states) => states.iter().map(state_bytes).sum::<usize>() + OVERHEAD,
        FromServer::Response(response) => {
            response.id.len()
                + OVERHEAD
                + match &response.content {
                    ResponseContent::Error(text) => text.len(),
                    ResponseContent::CompleteState { state, altered } => {
                        let paths = altered.iter().flat_map(|a| a.added.iter().chain(&a.updated).chain(&a.removed));
                        state.approximate_bytes() + paths.map(|path| path.len() + 4).sum::<usize>()
                    }
                    ResponseContent::UpdateStateSuccess { added, deleted } => {
                        added.iter().chain(deleted).map(|name| name.len() + 4).sum()
                    }
                    ResponseContent::LogsAccepted(names) => names.iter().map(name_bytes).sum(),
                    ResponseContent::LogEntries(entries) => {
                        entries.iter().map(|entry| name_bytes(&entry.instance) + entry.message.len()).sum()
                    }
                    ResponseContent::LogsStop(name) => name_bytes(name),
                    ResponseContent::LogsCancelAccepted | ResponseContent::EventsCancelAccepted => 0,
                }
        }
        FromServer::LogsRequest { request_id, request } => {
            let times: usize = [&request.since, &request.until].into_iter().flatten().map(String::len).sum();
            request_id.len() + times + request.instances.iter().map(name_bytes).sum::<usize>() + OVERHEAD
        }
        FromServer::LogsCancel { request_id } => request_id.len() + OVERHEAD,
    }
}
