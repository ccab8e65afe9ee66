//! Messages for clients of other implementations, which take at most 4 MiB each.
//!
//! Thread: `tx`.

use super::convert::from_server::{self, states_of_encoded};
use super::encoded_state::EncodedState;
use super::schema::grpc_api;
use super::shared_state::SharedState;
use crate::model::messages::{FromServer, Response, ResponseContent};
use crate::platform::logging::log_source;
use grpc_api::from_server::FromServerEnum;
use protobuf::Message;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The message on the wire, in as many pieces as it takes to keep each within `limit` bytes, and the bytes that it has as
/// a whole.
///
/// What cannot be cut is replaced: an answer by an error that names the way out, the list of workloads in a hello
/// by nothing and an error in the log, because it would end the session again and again.
#[must_use]
pub fn fit(message: FromServer, limit: usize, peer: &str) -> (Vec<grpc_api::FromServer>, usize) {
    let message = from_server::write(message);
    let size = encoded_bytes(&message);
    (cut(message, size, limit, peer), size)
}

fn cut(message: grpc_api::FromServer, size: usize, limit: usize, peer: &str) -> Vec<grpc_api::FromServer> {
    if size <= limit {
        return vec![message];
    }
    let halves = match message.FromServerEnum {
        Some(FromServerEnum::UpdateWorkload(plan)) => match halves(plan) {
            Some(halves) => halves.map(FromServerEnum::UpdateWorkload),
            None => return too_large(peer, "an update of one workload", size, limit),
        },
        Some(FromServerEnum::Response(response)) => return too_large_answer(response.requestId, size, limit, peer),
        Some(FromServerEnum::ServerHello(hello)) => {
            let what = format!("the hello with {} workloads", hello.addedWorkloads.len());
            return too_large(peer, &what, size, limit);
        }
        _ => return too_large(peer, "a message", size, limit),
    };
    let cut_half = |half| {
        let half = grpc_api::FromServer { FromServerEnum: Some(half), ..Default::default() };
        let size = encoded_bytes(&half);
        cut(half, size, limit, peer)
    };
    halves.into_iter().flat_map(cut_half).collect()
}

fn encoded_bytes(message: &grpc_api::FromServer) -> usize {
    usize::try_from(message.compute_size()).unwrap_or(usize::MAX)
}

/// The same for states.
#[must_use]
pub fn fit_states(states: &[Arc<SharedState>], limit: usize, peer: &str) -> (Vec<grpc_api::FromServer>, usize) {
    /// Tag and length around them.
    const AROUND: usize = 6;
    let (mut pieces, mut entries, mut size) = (Vec::new(), Vec::new(), 0);
    for state in states {
        let entry = state.entry();
        size += entry.len();
        if entry.len() + AROUND > limit {
            pieces.extend(too_large(
                peer,
                &format!("the state of '{}'", state.state().instance.short()),
                entry.len(),
                limit,
            ));
            continue;
        }
        if entries.len() + entry.len() + AROUND > limit {
            pieces.push(states_of_encoded(std::mem::take(&mut entries)));
        }
        entries.extend_from_slice(entry);
    }
    if !entries.is_empty() {
        pieces.push(states_of_encoded(entries));
    }
    (pieces, size)
}

/// The same for an answer that is encoded already.
#[must_use]
pub fn fit_state(id: String, state: &EncodedState, limit: usize, peer: &str) -> (Vec<grpc_api::FromServer>, usize) {
    /// Tags and lengths around state and id: three of each at most, and each has up to six bytes.
    const AROUND: usize = 18;
    let size = state.bytes() + id.len() + AROUND;
    (if size <= limit { vec![state.message(id)] } else { too_large_answer(id, size, limit, peer) }, size)
}

fn too_large_answer(id: String, size: usize, limit: usize, peer: &str) -> Vec<grpc_api::FromServer> {
    let text =
        format!("The answer has {size} bytes, but this client takes at most {limit}. Ask for parts with field masks.");
    let error = from_server::write(FromServer::Response(Response { id, content: ResponseContent::Error(text) }));
    // An endless id is the requester's own; its agent must not suffer for it.
    let size = encoded_bytes(&error);
    if size <= limit { vec![error] } else { too_large(peer, "an answer", size, limit) }
}

fn too_large(peer: &str, what: &str, size: usize, limit: usize) -> Vec<grpc_api::FromServer> {
    let _source = log_source(peer);
    log::error!(
        "Not sending {what} to '{peer}': it has {size} bytes, but that program takes at most {limit}. \
         Use fewer or smaller workloads there, or an agent of this version."
    );
    Vec::new()
}

/// Cuts a plan in two without separating what belongs to one workload: its old and its new instance in one
/// message are an update, in two messages they would be a stop and an unrelated start.
fn halves(plan: grpc_api::UpdateWorkload) -> Option<[grpc_api::UpdateWorkload; 2]> {
    let mut by_name: BTreeMap<String, grpc_api::UpdateWorkload> = BTreeMap::new();
    for added in plan.addedWorkloads {
        by_name.entry(added.instanceName.workloadName.clone()).or_default().addedWorkloads.push(added);
    }
    for deleted in plan.deletedWorkloads {
        by_name.entry(deleted.instanceName.workloadName.clone()).or_default().deletedWorkloads.push(deleted);
    }
    if by_name.len() < 2 {
        return None;
    }
    let middle = by_name.len() / 2;
    let mut halves = [grpc_api::UpdateWorkload::default(), grpc_api::UpdateWorkload::default()];
    for (index, part) in by_name.into_values().enumerate() {
        let half = &mut halves[usize::from(index >= middle)];
        half.addedWorkloads.extend(part.addedWorkloads);
        half.deletedWorkloads.extend(part.deletedWorkloads);
    }
    Some(halves)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::access_rules::AccessRule;
    use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
    use crate::model::messages::{AddedWorkload, DeletedWorkload, LogsRequest, WorkloadPlan};
    use crate::model::names::InstanceName;
    use crate::model::workload::{AddCondition, Workload};
    use crate::wire::shared_state::shared;

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
        let pieces = fit_states(&shared((0..500).map(state).collect()), LIMIT, "A").0;
        let mut names = Vec::new();
        for piece in &pieces {
            assert!(piece.compute_size() <= LIMIT as u64);
            let piece = grpc_api::FromServer::parse_from_bytes(&piece.write_to_bytes().unwrap()).unwrap();
            let Some(FromServerEnum::UpdateWorkloadState(states)) = &piece.FromServerEnum else { panic!("{piece}") };
            names.extend(states.workloadStates.iter().map(|state| state.instanceName.workloadName.clone()));
        }
        assert_eq!(names, (0..500).map(|index| format!("w{index}")).collect::<Vec<_>>());
    }

    #[test]
    fn states_fill_a_message_up_to_the_limit_and_one_that_fits_in_none_costs_no_other() {
        let state = |name: &str, info: usize| {
            let state = ExecutionState::with_info(Phase::Running, "x".repeat(info));
            WorkloadState::new(InstanceName::new(name, "c", "A"), state)
        };
        let names = |pieces: &[grpc_api::FromServer]| -> Vec<Vec<String>> {
            let names = |piece: &grpc_api::FromServer| {
                assert!(piece.compute_size() <= LIMIT as u64);
                let piece = grpc_api::FromServer::parse_from_bytes(&piece.write_to_bytes().unwrap()).unwrap();
                let Some(FromServerEnum::UpdateWorkloadState(states)) = piece.FromServerEnum else { panic!() };
                states.workloadStates.iter().map(|state| state.instanceName.workloadName.clone()).collect()
            };
            pieces.iter().map(names).collect()
        };
        let all = shared(vec![state("a", 0), state("large", LIMIT), state("b", 0)]);
        assert_eq!(names(&fit_states(&all, LIMIT, "A").0), [["a", "b"]]);
        let alone = shared(vec![state("a", 1000)])[0].entry().len();
        for (info, expected) in [(LIMIT - alone - 1000, 1), (LIMIT - alone, 2)] {
            let two = shared(vec![state("a", 1000), state("b", info)]);
            assert_eq!(names(&fit_states(&two, LIMIT, "A").0).len(), expected, "{info}");
        }
    }

    #[test]
    fn both_instances_of_an_updated_workload_stay_together() {
        let plan = WorkloadPlan {
            added: (0..100).map(|index| added(index, "new")).collect(),
            deleted: (0..100)
                .map(|index| DeletedWorkload { instance: added(index, "old").instance, dependencies: BTreeMap::new() })
                .collect(),
        };
        let pieces = fit(FromServer::UpdateWorkload(plan), LIMIT, "A").0;
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
        let pieces = fit(FromServer::Response(Response { id: "id".into(), content }), LIMIT, "c").0;
        let Some(FromServerEnum::Response(response)) = &pieces[0].FromServerEnum else { panic!("{pieces:?}") };
        assert_eq!(response.requestId, "id");
        assert!(response.error().message.contains("field masks"));
        assert!(fit(FromServer::ServerHello(vec![added(0, &"x".repeat(LIMIT))]), LIMIT, "A").0.is_empty());
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
            assert!(fit(message.clone(), LIMIT, "A").0.is_empty(), "{message:.100?}");
        }
    }
}
