//! States of instances that nobody wants: bounded in number and size, whatever agents report.

use super::*;
use crate::limits::{
    AGENT_TAGS_BYTES, FOREIGN_MESSAGE_MAX, FORMER_OF_WORKLOAD, STATE_INFO_MAX, STRAY_INFO_MAX, STRAY_STATE_ENTRY,
    STRAYS_BYTES, STRAYS_OF_WORKLOAD,
};
use crate::wire::raw;

const MANIFEST: &str = "
apiVersion: v1
workloads:
  a: {agent: agent_A, runtime: podman, runtimeConfig: x}
  b: {agent: agent_B, runtime: podman, runtimeConfig: x}
";

/// What a state of an instance that nobody wants counts at least.
const STRAY: usize = STRAY_STATE_ENTRY + STRAY_INFO_MAX;

fn a() -> InstanceName {
    InstanceName::new("a", "x", "agent_A")
}

/// The workload of [`a`] with another configuration.
fn form(config: &str) -> String {
    format!(
        "desiredState: {{workloads: {{a: {{agent: agent_A, runtime: podman, runtimeConfig: '{config}', restartPolicy: NEVER}}}}}}"
    )
}

fn told(instance: &InstanceName, bytes: usize) -> WorkloadState {
    WorkloadState::new(instance.clone(), ExecutionState::with_info(Phase::FailedExecFailed, "\u{fc}".repeat(bytes / 2)))
}

fn info(cluster: &Cluster, instance: &InstanceName) -> usize {
    cluster.server.workloads.states.get(instance).unwrap().additional_info.len()
}

#[test]
fn of_workloads_that_nobody_wants_only_short_texts_are_kept_and_told() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let (agent, witness) = (cluster.settled_agent("agent_A"), cluster.settled_agent("agent_B"));
    let stray = InstanceName::with_id("stray", "id", "agent_A");
    cluster.send(agent, ToServer::WorkloadStates(vec![told(&stray, STATE_INFO_MAX), told(&a(), STATE_INFO_MAX)]));
    assert_eq!((info(&cluster, &stray), info(&cluster, &a())), (STRAY_INFO_MAX, STATE_INFO_MAX));
    assert_eq!(
        cluster.take(witness),
        [FromServer::WorkloadStates(vec![told(&stray, STRAY_INFO_MAX), told(&a(), STATE_INFO_MAX)])]
    );
    // A workload that is not wanted any more is no exception, and one that is wanted again is none either.
    cluster.update("desiredState: {apiVersion: v1}", &["desiredState.workloads.a"]).unwrap();
    cluster.send(agent, ToServer::WorkloadStates(vec![told(&a(), STATE_INFO_MAX)]));
    assert_eq!(info(&cluster, &a()), STRAY_INFO_MAX);
    cluster.update(&form("x"), &["desiredState.workloads.a"]).unwrap();
    cluster.send(agent, ToServer::WorkloadStates(vec![told(&a(), STATE_INFO_MAX)]));
    assert_eq!(info(&cluster, &a()), STATE_INFO_MAX);
}

#[test]
fn many_instances_of_one_workload_are_not_kept_whether_it_is_wanted_or_not() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let agent = cluster.settled_agent("agent_A");
    for workload in ["a", "stray"] {
        let names: Vec<InstanceName> =
            (0..1_000).map(|id| InstanceName::with_id(workload, &format!("id{id}"), "agent_A")).collect();
        for phase in [Phase::Running, Phase::StoppingWaitingToStop] {
            cluster.report(agent, &names.iter().map(|name| (name, phase)).collect::<Vec<_>>());
        }
        let kept = names.iter().filter(|name| cluster.phase(name) == Some(Phase::StoppingWaitingToStop)).count();
        assert_eq!(kept, STRAYS_OF_WORKLOAD, "{workload}");
    }
    cluster.report(agent, &[(&a(), Phase::Running)]);
    assert_eq!(cluster.phase(&a()), Some(Phase::Running), "the wanted instance has its place");
}

#[test]
fn all_agents_together_have_a_bound_and_those_that_are_gone_make_room() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let strays = |agent: &str| -> Vec<WorkloadState> {
        (0..3_000)
            .map(|index| told(&InstanceName::with_id(&format!("x{index}"), "id", agent), STATE_INFO_MAX))
            .collect()
    };
    let agents: Vec<(String, PeerId)> = (0..8)
        .map(|number| {
            let name = format!("new_{number}");
            let peer = cluster.settled_agent(&name);
            cluster.send(peer, ToServer::WorkloadStates(strays(&name)));
            cluster.take_all();
            (name, peer)
        })
        .collect();
    let of = |cluster: &Cluster, name: &str| cluster.server.workloads.states.of_agent(name).count();
    assert!(cluster.server.workloads.states.len() * STRAY <= STRAYS_BYTES, "{}", cluster.server.workloads.states.len());
    assert!(agents[..4].iter().all(|(name, _)| of(&cluster, name) > 1_500));
    assert_eq!(of(&cluster, "new_7"), 0);
    // What is kept fits into an answer that any client takes.
    let commander = cluster.commander();
    let read = read(&["workloadStates"], false);
    cluster.send_request(commander, "read", read);
    let answer = cluster.take(commander).remove(0);
    let bytes = raw::write_from_server(answer).unwrap().len();
    assert!((STRAYS_BYTES / 4..FOREIGN_MESSAGE_MAX).contains(&bytes), "{bytes}");
    // One that went leaves its states until others need the room; they are told that these are forgotten.
    cluster.close(agents[0].1);
    assert!(of(&cluster, "new_0") > 1_500);
    cluster.take_all();
    cluster.send(agents[7].1, ToServer::WorkloadStates(strays("new_7")));
    assert_eq!((of(&cluster, "new_0"), of(&cluster, "new_7") > 1_500), (0, true));
    let removed = |message: &FromServer| {
        matches!(message, FromServer::WorkloadStates(states)
            if states.iter().any(|state| &*state.instance.agent == "new_0" && state.state.phase == Phase::Removed))
    };
    assert!(cluster.take(agents[7].1).iter().any(removed), "also the one that took the room");
}

#[test]
fn an_agent_that_reports_no_ends_cannot_fill_the_memory_with_earlier_forms_of_a_workload() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let (agent, witness) = (cluster.settled_agent("agent_A"), cluster.settled_agent("agent_B"));
    let instance = |number: usize| InstanceName::new("a", &number.to_string(), "agent_A");
    let count = FORMER_OF_WORKLOAD + 10;
    for number in 0..count {
        cluster.take_all();
        cluster.update(&form(&number.to_string()), &["desiredState.workloads.a"]).unwrap();
        cluster.send(agent, ToServer::WorkloadStates(vec![told(&instance(number), STATE_INFO_MAX)]));
    }
    assert_eq!(cluster.server.workloads.states.of_agent_workload("agent_A", "a").count(), FORMER_OF_WORKLOAD + 1);
    // The last update was one too many: everybody hears that the earlier form is gone, and its agent still deletes it.
    let last = instance(count - 2);
    assert_eq!(cluster.phase(&last), None);
    let told_removed = cluster.take(witness).into_iter().any(
        |message| matches!(message, FromServer::WorkloadStates(states) if states.contains(&state(&last, Phase::Removed))),
    );
    assert!(told_removed);
    let deletes = |message: &FromServer| matches!(message, FromServer::UpdateWorkload(plan) if plan.deleted.iter().any(|one| one.instance == last));
    assert!(cluster.take(agent).iter().any(deletes));
    // Ends that are reported make room again.
    cluster.report(agent, &[(&instance(0), Phase::Removed)]);
    cluster.update(&form("new"), &["desiredState.workloads.a"]).unwrap();
    assert_eq!(cluster.phase(&instance(count - 1)), Some(Phase::FailedExecFailed));
}

#[test]
fn tags_that_an_update_gives_to_an_agent_are_bounded_like_those_of_its_hello() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    cluster.agent("agent_A");
    let tags = |bytes: usize| format!("agents: {{agent_A: {{tags: {{key: {}}}}}}}", "x".repeat(bytes));
    cluster.update(&tags(AGENT_TAGS_BYTES / 2), &["agents.agent_A.tags"]).unwrap();
    let before = cluster.read(&["agents"]);
    let refused = cluster.update(&tags(AGENT_TAGS_BYTES), &["agents.agent_A.tags"]).unwrap_err();
    assert!(refused.contains("The tags of agent 'agent_A' take 16451 bytes, at most 16384 are allowed"), "{refused}");
    assert_eq!(cluster.read(&["agents"]), before);
}
