//! Messages for clients of other implementations, which take at most 4 MiB each (spec/server.md section 12.5).
//!
//! Thread: `tx`.

use super::convert::to_client::from_server;
use super::encoded_state::EncodedState;
use super::outbox::approximate_bytes;
use super::schema::grpc_api;
use crate::model::messages::{FromServer, Response, ResponseContent, WorkloadPlan};
use crate::model::names::Name;
use crate::platform::logging::may_log;
use protobuf::Message;
use std::collections::BTreeMap;

/// The message on the wire, in as many pieces as it takes to keep each within `limit` bytes.
///
/// What cannot be cut is replaced: an answer by an error that names the way out, the list of workloads in a hello
/// by nothing and an error in the log, because it would end the session again and again.
#[must_use]
pub fn fit(message: FromServer, limit: usize, peer: &str) -> Vec<grpc_api::FromServer> {
    // Nearly all messages are far from the limit; only the others are worth a copy to cut.
    if approximate_bytes(&message).saturating_mul(4) <= limit {
        return vec![from_server(message)];
    }
    let encoded = from_server(message.clone());
    let size = usize::try_from(encoded.compute_size()).unwrap_or(usize::MAX);
    if size <= limit {
        return vec![encoded];
    }
    match message {
        FromServer::WorkloadStates(mut states) if states.len() > 1 => {
            let rest = states.split_off(states.len() / 2);
            [states, rest].into_iter().flat_map(|half| fit(FromServer::WorkloadStates(half), limit, peer)).collect()
        }
        FromServer::UpdateWorkload(plan) => match halves(&plan) {
            Some(parts) => {
                parts.into_iter().flat_map(|half| fit(FromServer::UpdateWorkload(half), limit, peer)).collect()
            }
            None => too_large(peer, "an update of one workload", size, limit),
        },
        FromServer::Response(Response { id, .. }) => too_large_answer(id, size, limit, peer),
        FromServer::ServerHello(added) => {
            too_large(peer, &format!("the hello with {} workloads", added.len()), size, limit)
        }
        _ => too_large(peer, "a message", size, limit),
    }
}

/// The same for an answer that is encoded already.
#[must_use]
pub fn fit_state(id: String, state: &EncodedState, limit: usize, peer: &str) -> Vec<grpc_api::FromServer> {
    /// Tags and lengths around state and id: three of each at most, and each has up to six bytes.
    const AROUND: usize = 18;
    let size = state.bytes() + id.len() + AROUND;
    if size <= limit { vec![state.message(id)] } else { too_large_answer(id, size, limit, peer) }
}

fn too_large_answer(id: String, size: usize, limit: usize, peer: &str) -> Vec<grpc_api::FromServer> {
    let text =
        format!("The answer has {size} bytes, but this client takes at most {limit}. Ask for parts with field masks.");
    let error = from_server(FromServer::Response(Response { id, content: ResponseContent::Error(text) }));
    // An endless id is the requester's own; its agent must not suffer for it.
    let size = usize::try_from(error.compute_size()).unwrap_or(usize::MAX);
    if size <= limit { vec![error] } else { too_large(peer, "an answer", size, limit) }
}

fn too_large(peer: &str, what: &str, size: usize, limit: usize) -> Vec<grpc_api::FromServer> {
    if may_log(peer) {
        log::error!(
            "Not sending {what} to '{peer}': it has {size} bytes, but that program takes at most {limit}. \
             Use fewer or smaller workloads there, or an agent of this version."
        );
    }
    Vec::new()
}

/// Cuts a plan in two without separating what belongs to one workload: its old and its new instance in one
/// message are an update, in two messages they would be a stop and an unrelated start.
fn halves(plan: &WorkloadPlan) -> Option<[WorkloadPlan; 2]> {
    let mut by_name: BTreeMap<Name, WorkloadPlan> = BTreeMap::new();
    for added in &plan.added {
        by_name.entry(added.instance.workload.clone()).or_default().added.push(added.clone());
    }
    for deleted in &plan.deleted {
        by_name.entry(deleted.instance.workload.clone()).or_default().deleted.push(deleted.clone());
    }
    if by_name.len() < 2 {
        return None;
    }
    let middle = by_name.len() / 2;
    let mut halves = [WorkloadPlan::default(), WorkloadPlan::default()];
    for (index, (_, part)) in by_name.into_iter().enumerate() {
        let half = &mut halves[usize::from(index >= middle)];
        half.added.extend(part.added);
        half.deleted.extend(part.deleted);
    }
    Some(halves)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::access_rules::AccessRule;
    use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
    use crate::model::messages::{AddedWorkload, DeletedWorkload, LogsRequest};
    use crate::model::names::InstanceName;
    use crate::model::workload::{AddCondition, Workload};
    use grpc_api::from_server::FromServerEnum;
    use std::sync::Arc;

    const LIMIT: usize = 4096;

    fn added(index: usize, config: &str) -> AddedWorkload {
        let workload = Arc::new(Workload::new("A", "podman", config));
        AddedWorkload { instance: workload.instance_name(&format!("w{index}")), workload }
    }

    #[test]
    fn states_are_cut_and_none_is_lost() {
        let state = |index: usize| {
            let instance = InstanceName::new(&format!("w{index}"), "c", "A");
            WorkloadState::new(instance, ExecutionState::plain(Phase::Running))
        };
        let pieces = fit(FromServer::WorkloadStates((0..500).map(state).collect()), LIMIT, "A");
        let mut names = Vec::new();
        for piece in &pieces {
            assert!(piece.compute_size() <= LIMIT as u64);
            let Some(FromServerEnum::UpdateWorkloadState(states)) = &piece.FromServerEnum else { panic!("{piece}") };
            names.extend(states.workloadStates.iter().map(|state| state.instanceName.workloadName.clone()));
        }
        assert_eq!(names, (0..500).map(|index| format!("w{index}")).collect::<Vec<_>>());
    }

    #[test]
    fn both_instances_of_an_updated_workload_stay_together() {
        let plan = WorkloadPlan {
            added: (0..100).map(|index| added(index, "new")).collect(),
            deleted: (0..100)
                .map(|index| DeletedWorkload { instance: added(index, "old").instance, dependencies: BTreeMap::new() })
                .collect(),
        };
        let pieces = fit(FromServer::UpdateWorkload(plan), LIMIT, "A");
        let mut count = 0;
        for piece in &pieces {
            assert!(piece.compute_size() <= LIMIT as u64);
            let Some(FromServerEnum::UpdateWorkload(plan)) = &piece.FromServerEnum else { panic!("{piece}") };
            let mut new: Vec<_> = plan.addedWorkloads.iter().map(|added| &added.instanceName.workloadName).collect();
            let mut old: Vec<_> = plan.deletedWorkloads.iter().map(|old| &old.instanceName.workloadName).collect();
            count += new.len();
            new.sort();
            old.sort();
            assert_eq!(new, old);
        }
        assert_eq!(count, 100);
    }

    #[test]
    fn an_answer_that_is_too_large_becomes_an_error_and_a_hello_nothing() {
        let content = ResponseContent::UpdateStateSuccess { added: vec!["x".repeat(LIMIT)], deleted: Vec::new() };
        let pieces = fit(FromServer::Response(Response { id: "id".into(), content }), LIMIT, "c");
        let Some(FromServerEnum::Response(response)) = &pieces[0].FromServerEnum else { panic!("{pieces:?}") };
        assert_eq!(response.requestId, "id");
        assert!(response.error().message.contains("field masks"));
        assert!(fit(FromServer::ServerHello(vec![added(0, &"x".repeat(LIMIT))]), LIMIT, "A").is_empty());
    }

    #[test]
    fn what_is_too_large_is_seen_in_whatever_part_of_a_message_it_is() {
        let long = || "x".repeat(LIMIT + 1);
        let with = |change: &dyn Fn(&mut Workload)| {
            let mut workload = Workload::new("A", "podman", "c");
            change(&mut workload);
            let workload = Arc::new(workload);
            AddedWorkload { instance: workload.instance_name("w"), workload }
        };
        let rule = |allow| {
            move |workload: &mut Workload| {
                let rule = AccessRule::Log { workload_names: vec!["x".repeat(LIMIT + 1)] };
                let access = &mut workload.control_interface_access;
                if allow { &mut access.allow_rules } else { &mut access.deny_rules }.push(rule);
            }
        };
        let plan = |added| FromServer::UpdateWorkload(WorkloadPlan { added: vec![added], deleted: vec![] });
        let request = |since: Option<String>, until: Option<String>| FromServer::LogsRequest {
            request_id: "id".into(),
            request: LogsRequest { since, until, ..LogsRequest::default() },
        };
        for message in [
            plan(with(&|workload| workload.dependencies = [(long(), AddCondition::Running)].into())),
            plan(with(&|workload| workload.runtime = long().into())),
            plan(with(&rule(true))),
            plan(with(&rule(false))),
            request(Some(long()), None),
            request(None, Some(long())),
            FromServer::Response(Response { id: long(), content: ResponseContent::EventsCancelAccepted }),
        ] {
            assert!(fit(message.clone(), LIMIT, "A").is_empty(), "{message:.100?}");
        }
    }
}
