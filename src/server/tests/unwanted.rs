//! States of unwanted instances: bounded in number and size, whatever agents report.

use super::*;
use crate::updates::{DELETED_OF_WORKLOAD, NEVER_WANTED_OF_WORKLOAD, UNWANTED_INFO_MAX};
use ankaios_fakes::log_lines::lines_of;
use ankaios_platform::limits::ADDITIONAL_INFO_MAX;
use ankaios_wire::limits::AGENT_TAGS_BYTES;

const MANIFEST: &str = "
apiVersion: v1
workloads:
  a: {agent: agent_A, runtime: podman, runtimeConfig: x}
  b: {agent: agent_B, runtime: podman, runtimeConfig: x}
";

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
    WorkloadState::new(
        instance.clone(),
        ExecutionState::with_info(Phase::FailedExecFailed, "\u{fc}".repeat(bytes / 2)),
    )
}

fn info(cluster: &Cluster, instance: &InstanceName) -> usize {
    cluster
        .server
        .updates
        .workloads()
        .states
        .get(instance)
        .unwrap()
        .additional_info
        .len()
}

#[test]
fn info_of_unwanted_instances_is_cut() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let (agent, witness) = (
        cluster.settled_agent("agent_A"),
        cluster.settled_agent("agent_B"),
    );
    let stray = InstanceName::with_id("stray", "id", "agent_A");
    cluster.send(
        agent,
        ToServer::WorkloadStates(vec![
            told(&stray, ADDITIONAL_INFO_MAX),
            told(&a(), ADDITIONAL_INFO_MAX),
        ]),
    );
    assert_eq!(
        (info(&cluster, &stray), info(&cluster, &a())),
        (UNWANTED_INFO_MAX, ADDITIONAL_INFO_MAX)
    );
    assert_eq!(
        cluster.take(witness),
        [FromServer::WorkloadStates(vec![
            told(&stray, UNWANTED_INFO_MAX),
            told(&a(), ADDITIONAL_INFO_MAX)
        ])]
    );
    // A workload that is not wanted any more is no exception, and one that is wanted again is none
    // either.
    cluster
        .update(
            "desiredState: {apiVersion: v1}",
            &["desiredState.workloads.a"],
        )
        .unwrap();
    cluster.send(
        agent,
        ToServer::WorkloadStates(vec![told(&a(), ADDITIONAL_INFO_MAX)]),
    );
    assert_eq!(info(&cluster, &a()), UNWANTED_INFO_MAX);
    cluster
        .update(&form("x"), &["desiredState.workloads.a"])
        .unwrap();
    cluster.send(
        agent,
        ToServer::WorkloadStates(vec![told(&a(), ADDITIONAL_INFO_MAX)]),
    );
    assert_eq!(info(&cluster, &a()), ADDITIONAL_INFO_MAX);
}

/// All others would receive each state that an agent invents.
#[test]
fn the_end_of_what_nobody_knows_is_told_to_nobody() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let (agent, witness) = (
        cluster.settled_agent("agent_A"),
        cluster.settled_agent("agent_B"),
    );
    let [stray, other] =
        ["stray", "other"].map(|name| InstanceName::with_id(name, "id", "agent_A"));
    let ended = |instance: &InstanceName| {
        WorkloadState::new(instance.clone(), ExecutionState::plain(Phase::Removed))
    };
    cluster.send(agent, ToServer::WorkloadStates(vec![told(&stray, 10)]));
    cluster.take(witness);
    cluster.send(
        agent,
        ToServer::WorkloadStates(vec![ended(&other), ended(&stray), ended(&stray)]),
    );
    assert_eq!(
        cluster.take(witness),
        [FromServer::WorkloadStates(vec![
            ended(&stray),
            ended(&stray)
        ])]
    );
    let lines = lines_of(|| cluster.send(agent, ToServer::WorkloadStates(vec![ended(&stray)])));
    assert_eq!(
        (cluster.take(witness), lines),
        (vec![], vec![]),
        "nor is it in the log as one of too many"
    );
}

#[test]
fn instances_of_one_workload_are_bounded() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let agent = cluster.settled_agent("agent_A");
    for workload in ["a", "stray"] {
        let names: Vec<InstanceName> = (0..1_000)
            .map(|id| InstanceName::with_id(workload, &format!("id{id}"), "agent_A"))
            .collect();
        for phase in [Phase::Running, Phase::StoppingWaitingToStop] {
            cluster.report(
                agent,
                &names.iter().map(|name| (name, phase)).collect::<Vec<_>>(),
            );
        }
        let kept = names
            .iter()
            .filter(|name| cluster.phase(name) == Some(Phase::StoppingWaitingToStop))
            .count();
        assert_eq!(kept, NEVER_WANTED_OF_WORKLOAD, "{workload}");
    }
    cluster.report(agent, &[(&a(), Phase::Running)]);
    assert_eq!(
        cluster.phase(&a()),
        Some(Phase::Running),
        "the wanted instance has its place"
    );
}

#[test]
fn unwanted_instances_of_a_lost_agent_are_removed() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let (agent, witness) = (
        cluster.settled_agent("agent_A"),
        cluster.settled_agent("agent_B"),
    );
    let strange = InstanceName::with_id("strange", "id", "agent_A");
    cluster.report(agent, &[(&strange, Phase::Running), (&a(), Phase::Running)]);
    cluster
        .update(&form("y"), &["desiredState.workloads.a"])
        .unwrap();
    cluster.take_all();
    cluster.close(agent);
    let told = cluster.take(witness);
    let [FromServer::WorkloadStates(states)] = &told[..] else {
        panic!("one list of states: {told:?}")
    };
    assert!(
        states.contains(&state(&strange, Phase::Removed)),
        "{states:?}"
    );
    let deleted = state(&a(), Phase::AgentDisconnected);
    assert!(
        states.contains(&deleted),
        "what is being deleted is not known to have ended: {states:?}"
    );
    assert_eq!(
        (cluster.phase(&strange), cluster.phase(&a())),
        (None, Some(Phase::AgentDisconnected))
    );
    // When its agent comes back without it, it is gone.
    let agent = cluster.settled_agent("agent_A");
    cluster.take_all();
    cluster.send(agent, ToServer::StatesComplete);
    assert_eq!(
        cluster.take(witness),
        [FromServer::WorkloadStates(vec![state(
            &a(),
            Phase::Removed
        )])]
    );
    assert_eq!(cluster.phase(&a()), None);
}

#[test]
fn very_long_names_are_not_kept() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let agent = cluster.settled_agent("agent_A");
    let long = InstanceName::with_id("x", &"i".repeat(1_000), "agent_A");
    cluster.report(agent, &[(&long, Phase::Running)]);
    assert_eq!(cluster.phase(&long), None);
}

#[test]
fn agent_that_reports_no_ends_is_bounded_in_old_revisions() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let (agent, witness) = (
        cluster.settled_agent("agent_A"),
        cluster.settled_agent("agent_B"),
    );
    let instance = |number: usize| InstanceName::new("a", &number.to_string(), "agent_A");
    let count = DELETED_OF_WORKLOAD + 10;
    for number in 0..count {
        cluster.take_all();
        cluster
            .update(&form(&number.to_string()), &["desiredState.workloads.a"])
            .unwrap();
        cluster.send(
            agent,
            ToServer::WorkloadStates(vec![told(&instance(number), ADDITIONAL_INFO_MAX)]),
        );
    }
    assert_eq!(
        cluster
            .server
            .updates
            .workloads()
            .states
            .of_agent_workload("agent_A", "a")
            .count(),
        DELETED_OF_WORKLOAD + 1
    );
    // The last update was one too many: everybody hears that the earlier form is gone, and its
    // agent still deletes it.
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
    cluster
        .update(&form("new"), &["desiredState.workloads.a"])
        .unwrap();
    assert_eq!(
        cluster.phase(&instance(count - 1)),
        Some(Phase::FailedExecFailed)
    );
}

#[test]
fn tags_in_an_update_are_bounded_as_those_of_a_hello() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    cluster.agent("agent_A");
    let tags = |bytes: usize| {
        format!(
            "agents: {{agent_A: {{tags: {{key: {}}}}}}}",
            "x".repeat(bytes)
        )
    };
    cluster
        .update(&tags(AGENT_TAGS_BYTES / 2), &["agents.agent_A.tags"])
        .unwrap();
    let before = cluster.read(&["agents"]);
    let refused = cluster
        .update(&tags(AGENT_TAGS_BYTES), &["agents.agent_A.tags"])
        .unwrap_err();
    assert!(
        refused.contains("The tags of agent 'agent_A' take 16451 bytes, at most 16384 are allowed"),
        "{refused}"
    );
    assert_eq!(cluster.read(&["agents"]), before);
}

/// 16 hostile agents made 8 MB of the state that every client reads.
#[test]
fn all_agents_together_leave_no_more_than_any_client_can_read() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    for agent in 0..16 {
        let name = format!("hostile{agent}");
        let peer = cluster.settled_agent(&name);
        let states = (0..1_000).map(|number| {
            let workload = format!("{number:04}{}", "w".repeat(50));
            told(
                &InstanceName::with_id(&workload, &"i".repeat(64), &name),
                ADDITIONAL_INFO_MAX,
            )
        });
        cluster.send(peer, ToServer::WorkloadStates(states.collect()));
    }
    let bytes = cluster.read(&["workloadStates"]).len();
    assert!((512 * 1024..2 * 1024 * 1024).contains(&bytes), "{bytes}");
    // Short names, of which this number is no mistake either.
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let mut peers = Vec::new();
    for agent in 0..16 {
        let name = format!("h{agent}");
        peers.push(cluster.settled_agent(&name));
        let names: Vec<InstanceName> = (0..1_000)
            .map(|number| InstanceName::with_id(&number.to_string(), "i", &name))
            .collect();
        cluster.report(
            peers[agent],
            &names
                .iter()
                .map(|name| (name, Phase::Running))
                .collect::<Vec<_>>(),
        );
    }
    let kept = cluster
        .server
        .updates
        .workloads()
        .unwanted
        .instances()
        .len();
    assert!((2_000..=4_000).contains(&kept), "{kept}");
    peers.into_iter().for_each(|peer| cluster.close(peer));
    let agent = cluster.settled_agent("agent_A");
    let strange = InstanceName::with_id("strange", "id", "agent_A");
    cluster.report(agent, &[(&strange, Phase::Running)]);
    assert_eq!(
        cluster.phase(&strange),
        Some(Phase::Running),
        "there is room again"
    );
}

#[test]
fn states_that_are_not_kept_are_logged_with_their_number() {
    let mut cluster = Cluster::with_manifest(MANIFEST);
    let agent = cluster.settled_agent("agent_A");
    let mut names = Vec::new();
    for id in 0..NEVER_WANTED_OF_WORKLOAD + 3 {
        names.push(InstanceName::with_id(
            "stray",
            &format!("id{id}"),
            "agent_A",
        ));
    }
    let states: Vec<_> = names.iter().map(|name| (name, Phase::Running)).collect();
    let lines = lines_of(|| cluster.report(agent, &states));
    let line = "Ignoring 3 states of workloads that 'agent_A' should not have";
    assert!(
        lines.iter().any(|found| found.starts_with(line)),
        "{lines:?}"
    );
}
