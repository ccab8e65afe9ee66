//! What the containers of pods mean for the workload that the pods belong to.
//!
//! Thread: none, plain values; runs on the thread that called the engine.

use super::container_list::EngineContainer;
use super::{ContainerId, ListedContainer, MainProcess, RuntimeError};
use crate::model::execution_state::{ExecutionState, Phase};
use crate::model::names::InstanceName;

/// Ids of the pods of a workload: `None` when nothing was noted, so that nothing was played to its end; an error when they
/// could not be read now.
pub type Pods = Result<Option<Vec<String>>, RuntimeError>;

/// The workload as a listing shows it.
pub fn listed(instance: InstanceName, pods: &Pods, containers: &[EngineContainer]) -> ListedContainer {
    let ids: &[String] = if let Ok(Some(ids)) = pods { ids } else { &[] };
    let ours: Vec<&EngineContainer> = containers.iter().filter(|container| is_in(container, ids)).collect();
    let state = match pods {
        Ok(Some(pods)) => combined_state(pods, containers),
        Ok(None) => ExecutionState::plain(Phase::Succeeded),
        Err(_) => ExecutionState::with_info(Phase::FailedUnknown, "Could not load workload metadata"),
    };
    let processes: Vec<MainProcess> = ours.iter().filter_map(|container| container.process()).collect();
    // One that failed while others go on has not ended.
    let ended = processes.is_empty() && matches!(state.phase, Phase::Succeeded | Phase::FailedExecFailed);
    let ended_at = ours.iter().filter_map(|container| container.ended_at()).max().filter(|_| ended);
    ListedContainer {
        id: ContainerId(instance.to_string().into()),
        instance,
        state,
        processes,
        ended_at,
        in_pod: false,
    }
}

/// Whether the container belongs to one of these pods.
pub fn is_in(container: &EngineContainer, pods: &[String]) -> bool {
    container.pod().is_some_and(|pod| pods.iter().any(|ours| ours == pod))
}

/// The state of a workload: of all containers of its pods the one that matters most.
// [impl->swdd~podman-kube-state-getter-combines-states~2]
fn combined_state(pods: &[String], containers: &[EngineContainer]) -> ExecutionState {
    let states = pods.iter().flat_map(|pod| {
        let mut states: Vec<ExecutionState> =
            containers.iter().filter(|container| container.pod() == Some(pod)).map(pod_container_state).collect();
        // [impl->swdd~podman-kube-state-getter-treats-missing-pods-as-unknown~1]
        if states.is_empty() {
            states.push(unknown());
        }
        states
    });
    // [impl->swdd~podman-kube-state-getter-removed-if-no-container~1]
    states.min_by_key(|state| priority(state.phase)).unwrap_or_else(|| ExecutionState::plain(Phase::FailedLost))
}

fn unknown() -> ExecutionState {
    ExecutionState::with_info(Phase::FailedUnknown, "unknown container state")
}

// [impl->swdd~podman-kube-state-getter-maps-state~2]
fn pod_container_state(container: &EngineContainer) -> ExecutionState {
    let state = container.execution_state();
    match state.phase {
        Phase::PendingStarting => ExecutionState::with_info(Phase::PendingStarting, "starting container"),
        Phase::Stopping => ExecutionState::with_info(Phase::Stopping, "stopping container"),
        Phase::FailedUnknown => unknown(),
        _ => state,
    }
}

/// Lower matters more.
fn priority(phase: Phase) -> u8 {
    match phase {
        Phase::FailedExecFailed => 0,
        Phase::PendingStarting => 1,
        Phase::FailedUnknown => 2,
        Phase::Running => 3,
        Phase::Stopping => 4,
        Phase::Succeeded => 5,
        _ => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::container_list;

    fn states(containers: &[(&str, &str, i64)]) -> Vec<EngineContainer> {
        let entries: Vec<String> = containers
            .iter()
            .map(|(pod, state, code)| {
                let pid = if *state == "running" { 7 } else { 0 };
                let ended = 100 + code;
                format!(
                    r#"{{"Id":"c","Pod":"{pod}","State":"{state}","ExitCode":{code},"Pid":{pid},"ExitedAt":{ended}}}"#
                )
            })
            .collect();
        container_list::parse(&entries.concat()).unwrap()
    }

    // [utest->swdd~podman-kube-state-getter-maps-state~2]
    #[test]
    fn a_single_container_gives_its_state_to_the_workload() {
        for (state, code, expected) in [
            ("created", 0, "Pending(Starting): 'starting container'"),
            ("configured", 0, "Pending(Starting): 'starting container'"),
            ("initialized", 0, "Pending(Starting): 'starting container'"),
            ("paused", 0, "Failed(Unknown): 'unknown container state'"),
            ("running", 0, "Running(Ok)"),
            ("exited", 0, "Succeeded(Ok)"),
            ("exited", 7, "Failed(ExecFailed): 'Exit code: '7''"),
            ("stopping", 0, "Stopping(Stopping): 'stopping container'"),
            ("stopped", 0, "Stopping(Stopping): 'stopping container'"),
            ("removing", 0, "Stopping(Stopping): 'stopping container'"),
            ("odd", 0, "Failed(Unknown): 'unknown container state'"),
        ] {
            let combined = combined_state(&["p".to_owned()], &states(&[("p", state, code), ("other", "exited", 9)]));
            assert_eq!(combined.to_string(), expected, "{state} {code}");
        }
    }

    // [utest->swdd~podman-kube-state-getter-combines-states~2]
    #[test]
    fn of_all_containers_the_state_that_matters_most_counts() {
        let order = [("exited", 1), ("created", 0), ("paused", 0), ("running", 0), ("stopping", 0), ("exited", 0)];
        for (index, (state, code)) in order.iter().enumerate() {
            for (lesser, lesser_code) in &order[index..] {
                let containers =
                    states(&[("q", lesser, *lesser_code), ("p", state, *code), ("q", lesser, *lesser_code)]);
                let expected = pod_container_state(&containers[1]);
                let pods = ["p".to_owned(), "q".to_owned()];
                assert_eq!(combined_state(&pods, &containers), expected, "{state} before {lesser}");
            }
        }
    }

    // [utest->swdd~podman-kube-state-getter-treats-missing-pods-as-unknown~1]
    // [utest->swdd~podman-kube-state-getter-removed-if-no-container~1]
    #[test]
    fn missing_pods_are_unknown_and_no_pods_at_all_are_lost() {
        let pods = ["p".to_owned(), "q".to_owned()];
        assert_eq!(combined_state(&pods, &states(&[("p", "running", 0)])), unknown());
        assert_eq!(combined_state(&pods, &states(&[("p", "exited", 1)])), ExecutionState::exited(1));
        assert_eq!(combined_state(&[], &states(&[("p", "running", 0)])), ExecutionState::plain(Phase::FailedLost));
    }

    #[test]
    fn pods_have_ended_when_the_last_of_their_containers_has() {
        for (containers, ended_at) in [
            (&[("p", "exited", 0), ("p", "exited", 3), ("other", "exited", 9)][..], Some(103)),
            (&[("p", "exited", 0)], Some(100)),
            (&[("p", "exited", 3), ("p", "running", 0)], None),
            (&[("p", "running", 0)], None),
            (&[], None),
        ] {
            let pods = Ok(Some(vec!["p".to_owned()]));
            let instance = InstanceName::with_id("web", "1", "agent_A");
            assert_eq!(listed(instance, &pods, &states(containers)).ended_at, ended_at, "{containers:?}");
        }
    }
}
