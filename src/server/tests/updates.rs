//! What accepted and refused updates do to states, plans and agents.

use super::*;
use crate::updates::requested_change;
use ankaios_model::messages::DeletedWorkload;

fn manifest(workloads: &[(&str, &str, &str)]) -> String {
    let line = |(name, agent, rest): &(&str, &str, &str)| {
        format!("  {name}: {{agent: '{agent}', runtime: podman, runtimeConfig: x{rest}}}\n")
    };
    let lines: String = workloads.iter().map(line).collect();
    let workloads = if lines.is_empty() {
        " {}".to_owned()
    } else {
        format!("\n{lines}")
    };
    format!("apiVersion: v1\nworkloads:{workloads}")
}

fn new_state(workloads: &[(&str, &str, &str)]) -> String {
    format!(
        "desiredState:\n{}",
        manifest(workloads)
            .lines()
            .map(|line| format!("  {line}\n"))
            .collect::<String>()
    )
}

/// A workload that needs `b` running.
const NEEDS_B: &str = ", dependencies: {b: ADD_COND_RUNNING}";

fn instance(name: &str, agent: &str) -> InstanceName {
    InstanceName::new(name, "x", agent)
}

#[test]
fn each_connected_agent_gets_one_plan_sorted_by_name() {
    let mut cluster = Cluster::with_manifest(&manifest(&[("old", "A", ""), ("moves", "A", "")]));
    let (a, b, idle) = (
        cluster.settled_agent("A"),
        cluster.settled_agent("B"),
        cluster.settled_agent("C"),
    );
    cluster.take_all();
    let (added, deleted) = cluster
        .update(
            &new_state(&[
                ("z", "A", ""),
                ("moves", "B", ""),
                ("k", "A", ""),
                ("away", "D", ""),
            ]),
            &[],
        )
        .unwrap();
    let texts = |names: &[InstanceName]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        added,
        texts(&[
            instance("away", "D"),
            instance("k", "A"),
            instance("moves", "B"),
            instance("z", "A")
        ])
    );
    assert_eq!(
        deleted,
        texts(&[instance("moves", "A"), instance("old", "A")])
    );
    let plan = cluster.one_plan(a);
    assert_eq!(names(&plan.added), ["k", "z"]);
    assert_eq!(
        plan.deleted
            .iter()
            .map(|entry| &*entry.instance.workload)
            .collect::<Vec<_>>(),
        ["moves", "old"]
    );
    let plan = cluster.one_plan(b);
    assert_eq!(
        (names(&plan.added), plan.deleted.len()),
        (vec!["moves".to_owned()], 0)
    );
    assert_eq!(cluster.take(idle), []);
    // The unconnected agent learns its workloads when it comes.
    let d = cluster.agent("D");
    assert!(
        matches!(cluster.take(d).last(), Some(FromServer::ServerHello(added)) if names(added) == ["away"])
    );
}

/// Several updates may each render up to the bound. A start renders them together: workloads above
/// the bound fail, but neither small ones nor the start itself.
#[test]
fn start_renders_what_it_can_and_the_rest_fails() {
    let template = format!("{}{}", "{{#each @root/l}}".repeat(5), "{{/each}}".repeat(5));
    let workload = |name: &str| {
        format!(
            "    {name}: {{agent: A, runtime: podman, runtimeConfig: '{template}', configs: {{l: l}}}}\n"
        )
    };
    let items = ["x"; 13].join(", ");
    let state = |workloads: &str| {
        format!(
            "desiredState:\n  apiVersion: v1\n  configs: {{l: [{items}]}}\n  workloads:\n{workloads}"
        )
    };
    let mut cluster = Cluster::default();
    cluster.update(&state(&workload("a")), &[]).unwrap();
    cluster
        .update(&state(&workload("b")), &["desiredState.workloads.b"])
        .unwrap();
    let both = format!("{}{}", workload("c"), workload("d"));
    let error = cluster
        .update(
            &state(&both),
            &["desiredState.workloads.c", "desiredState.workloads.d"],
        )
        .unwrap_err();
    assert!(
        error.contains("steps"),
        "the templates are too cheap for this test: {error}"
    );
    for name in ["c", "d", "e"] {
        cluster
            .update(
                &state(&workload(name)),
                &[&format!("desiredState.workloads.{name}")],
            )
            .unwrap();
    }
    let light = "    z: {agent: A, runtime: podman, runtimeConfig: '{{l}}', configs: {l: l}}\n";
    cluster
        .update(&state(light), &["desiredState.workloads.z"])
        .unwrap();
    let stored = cluster.server.view().desired.clone();
    // One server was given all of it in a manifest, the other one had stored it.
    let again =
        |server: &mut ServerLoop, stored: DesiredState| server.start_again_with(stored.into());
    for start in [ServerLoop::start_with, again] {
        let mut restarted = ServerLoop::new();
        start(&mut restarted, stored.clone()).unwrap();
        let agents = restarted
            .view()
            .effective
            .iter()
            .map(|(name, added)| (&**name, &*added.instance.agent));
        assert_eq!(
            agents.collect::<Vec<_>>(),
            [
                ("a", "A"),
                ("b", "A"),
                ("c", ""),
                ("d", ""),
                ("e", ""),
                ("z", "A")
            ]
        );
        let failed: Vec<_> = restarted
            .view()
            .states
            .iter()
            .filter(|(instance, _)| instance.agent.is_empty())
            .collect();
        assert_eq!(failed.len(), 3);
        for (_, state) in failed {
            assert_eq!(state.phase, Phase::PendingStartingFailed);
            assert!(
                state.additional_info.contains("take too many steps"),
                "{}",
                state.additional_info
            );
        }
        assert_eq!(
            restarted.view().desired,
            &stored,
            "what failed stays wanted"
        );
        // Applied again as they are, each is tried again within the budget of that update; an
        // update of others does not.
        let mut cluster = Cluster::default();
        cluster.server = restarted;
        assert_eq!(
            cluster.update(&state(light), &["desiredState.workloads.z"]),
            Ok((vec![], vec![]))
        );
        for name in ["c", "d"] {
            let mask = format!("desiredState.workloads.{name}");
            let (added, deleted) = cluster.update(&state(&workload(name)), &[&mask]).unwrap();
            assert_eq!((added.len(), deleted.len()), (1, 1), "{name}");
            assert!(
                added[0].ends_with(".A") && deleted[0].ends_with('.'),
                "{added:?} {deleted:?}"
            );
            assert_eq!(
                cluster.update(&state(&workload(name)), &[&mask]),
                Ok((vec![], vec![])),
                "{name}"
            );
        }
        let agents = cluster
            .server
            .view()
            .effective
            .iter()
            .map(|(name, added)| (&**name, &*added.instance.agent));
        assert_eq!(
            agents.collect::<Vec<_>>(),
            [
                ("a", "A"),
                ("b", "A"),
                ("c", "A"),
                ("d", "A"),
                ("e", ""),
                ("z", "A")
            ]
        );
        assert_eq!(cluster.server.view().desired, &stored);
    }
}

/// Earlier versions took a day.
#[test]
fn stored_workload_with_too_slow_checks_fails_alone() {
    let stored = desired(
        "apiVersion: v1\nworkloads:\n  slow:\n    agent: A\n    runtime: podman\n    runtimeConfig: |\n      image: i\n      \
         lifecycle: { ready: { exec: [check], timeoutMs: 86400000 } }\n  quick:\n    agent: A\n    runtime: podman\n    \
         runtimeConfig: \"image: i\"\n",
    );
    assert!(
        ServerLoop::new().start_with(stored.clone()).is_err(),
        "a manifest is refused"
    );
    let mut restarted = ServerLoop::new();
    restarted.start_again_with(stored.into()).unwrap();
    let agents = restarted
        .view()
        .effective
        .iter()
        .map(|(name, added)| (&**name, &*added.instance.agent));
    assert_eq!(agents.collect::<Vec<_>>(), [("quick", "A"), ("slow", "")]);
    let state = restarted
        .view()
        .states
        .iter()
        .find(|(instance, _)| &*instance.workload == "slow")
        .unwrap()
        .1;
    assert_eq!(state.phase, Phase::PendingStartingFailed);
    assert!(
        state
            .additional_info
            .contains("expected a whole number from 50 to 60000"),
        "{}",
        state.additional_info
    );
}

#[test]
fn update_without_changes_succeeds_and_sends_nothing() {
    let workloads = [("a", "A", ", tags: {k: v}")];
    let mut cluster = Cluster::with_manifest(&manifest(&workloads));
    let agent = cluster.settled_agent("A");
    assert_eq!(
        cluster.update(&new_state(&workloads), &[]),
        Ok((vec![], vec![]))
    );
    assert_eq!(cluster.take(agent), []);
}

#[test]
fn new_workloads_are_initial_and_known_states_stay() {
    let mut cluster = Cluster::with_manifest(&manifest(&[("a", "A", "")]));
    let agent = cluster.settled_agent("A");
    cluster.report(agent, &[(&instance("a", "A"), Phase::Running)]);
    cluster
        .update(
            &new_state(&[("a", "A", ", tags: {k: v}"), ("b", "", ""), ("c", "A", "")]),
            &[],
        )
        .unwrap();
    assert_eq!(cluster.phase(&instance("a", "A")), Some(Phase::Running));
    assert_eq!(cluster.phase(&instance("b", "")), Some(Phase::NotScheduled));
    assert_eq!(
        cluster.phase(&instance("c", "A")),
        Some(Phase::PendingInitial)
    );
}

#[test]
fn a_changed_tag_is_an_update_of_the_same_instance() {
    let mut cluster = Cluster::with_manifest(&manifest(&[("a", "A", "")]));
    let agent = cluster.settled_agent("A");
    let (added, deleted) = cluster
        .update(&new_state(&[("a", "A", ", tags: {k: v}")]), &[])
        .unwrap();
    assert_eq!(added, deleted);
    let plan = cluster.one_plan(agent);
    assert_eq!(plan.added[0].instance, plan.deleted[0].instance);
    assert_eq!(plan.added[0].workload.tags["k"], "v");
}

#[test]
fn the_server_finishes_deletes_that_no_agent_has_heard_of() {
    let workloads = [("never", "A", ""), ("unscheduled", "", "")];
    for (connect, finished) in [
        (false, vec!["never", "unscheduled"]),
        (true, vec!["unscheduled"]),
    ] {
        let mut cluster = Cluster::with_manifest(&manifest(&workloads));
        let witness = cluster.settled_agent("witness");
        if connect {
            cluster.settled_agent("A");
        }
        let (_, deleted) = cluster.update(&new_state(&[]), &[]).unwrap();
        assert_eq!(
            deleted,
            [
                instance("never", "A").to_string(),
                instance("unscheduled", "").to_string()
            ]
        );
        let told = cluster.take(witness);
        let [FromServer::WorkloadStates(states)] = told.as_slice() else {
            panic!("{told:?}")
        };
        assert!(
            states
                .iter()
                .all(|state| state.state.phase == Phase::Removed)
        );
        assert_eq!(
            states
                .iter()
                .map(|state| &*state.instance.workload)
                .collect::<Vec<_>>(),
            finished
        );
        assert_eq!(cluster.phase(&instance("unscheduled", "")), None);
        assert_eq!(cluster.phase(&instance("never", "A")).is_some(), connect);
    }
}

#[test]
fn workload_of_a_lost_agent_keeps_its_state_until_a_report() {
    let mut cluster = Cluster::with_manifest(&manifest(&[("a", "A", "")]));
    let agent = cluster.settled_agent("A");
    let name = instance("a", "A");
    cluster.report(agent, &[(&name, Phase::Running)]);
    cluster.close(agent);
    cluster.update(&new_state(&[]), &[]).unwrap();
    assert_eq!(cluster.phase(&name), Some(Phase::AgentDisconnected));
    let agent = cluster.agent("A");
    assert_eq!(cluster.take(agent), [FromServer::ServerHello(vec![])]);
    cluster.report(agent, &[(&name, Phase::Removed)]);
    assert_eq!(cluster.phase(&name), None);
}

#[test]
fn instance_lost_with_its_agent_is_gone_after_its_report() {
    let all = [
        ("stays", "A", ""),
        ("lost", "A", ""),
        ("stopping", "A", ""),
        ("back", "A", ""),
        ("unstarted", "A", ""),
    ];
    for clean_end in [true, false] {
        let mut cluster = Cluster::with_manifest(&manifest(&all));
        let (agent, witness) = (cluster.settled_agent("A"), cluster.settled_agent("witness"));
        let names = all.map(|(name, ..)| instance(name, "A"));
        let [stays, lost, stopping, back, unstarted] = &names;
        cluster.report(
            agent,
            &[stays, lost, stopping, back].map(|name| (name, Phase::Running)),
        );
        if clean_end {
            cluster.close(agent);
        }
        cluster.update(&new_state(&all[..1]), &[]).unwrap();
        let agent = cluster.agent("A");
        cluster.update(&new_state(&[all[0], all[3]]), &[]).unwrap();
        assert!(
            [lost, stopping, back, unstarted]
                .iter()
                .all(|name| cluster.phase(name).is_some()),
            "{clean_end}"
        );
        cluster.take_all();
        // The report may take several messages, and until its end a missing instance has no
        // consequence.
        cluster.report(agent, &[]);
        assert!(
            names.iter().all(|name| cluster.phase(name).is_some()),
            "{clean_end}"
        );
        cluster.report(agent, &[(stays, Phase::Running)]);
        cluster.report(agent, &[(stopping, Phase::StoppingRequestedAtRuntime)]);
        assert!(
            [lost, back, unstarted]
                .iter()
                .all(|name| cluster.phase(name).is_some()),
            "{clean_end}"
        );
        cluster.send(agent, ToServer::StatesComplete);
        assert_eq!(cluster.phase(stays), Some(Phase::Running), "{clean_end}");
        assert_eq!(cluster.phase(lost), None, "{clean_end}");
        assert_eq!(cluster.phase(unstarted), None, "{clean_end}");
        assert_eq!(
            cluster.phase(stopping),
            Some(Phase::StoppingRequestedAtRuntime),
            "{clean_end}"
        );
        assert!(cluster.phase(back).is_some(), "it is wanted again");
        let told = cluster.take(witness);
        let [FromServer::WorkloadStates(states)] = told.as_slice() else {
            panic!("{told:?}")
        };
        assert_eq!(
            states[2..],
            [
                state(lost, Phase::Removed),
                state(unstarted, Phase::Removed)
            ],
            "{clean_end}"
        );
        // Only the first end counts, and only that of the agent itself.
        cluster.send(agent, ToServer::StatesComplete);
        cluster.send(witness, ToServer::StatesComplete);
        assert!(cluster.phase(stopping).is_some());
        assert_eq!(cluster.take(witness), []);
    }
}

#[test]
fn instance_added_and_deleted_before_the_report_stays() {
    let mut cluster = Cluster::with_manifest(&manifest(&[("a", "A", "")]));
    let agent = cluster.settled_agent("A");
    cluster.report(agent, &[(&instance("a", "A"), Phase::Running)]);
    cluster.close(agent);
    cluster.update(&new_state(&[]), &[]).unwrap();
    let agent = cluster.settled_agent("A");
    cluster.update(&new_state(&[("a", "A", "")]), &[]).unwrap();
    cluster.update(&new_state(&[]), &[]).unwrap();
    cluster.send(agent, ToServer::StatesComplete);
    assert!(cluster.phase(&instance("a", "A")).is_some());
}

#[test]
fn update_of_the_same_instance_keeps_an_unreported_entry() {
    for agent in ["", "never_there"] {
        let mut cluster = Cluster::with_manifest(&manifest(&[("a", agent, "")]));
        let witness = cluster.settled_agent("witness");
        let before = cluster.phase(&instance("a", agent));
        cluster
            .update(&new_state(&[("a", agent, ", tags: {k: v}")]), &[])
            .unwrap();
        assert_eq!(cluster.phase(&instance("a", agent)), before, "{agent:?}");
        assert_eq!(cluster.take(witness), [], "{agent:?}");
    }
}

#[test]
fn scheduling_and_unscheduling_a_workload() {
    let mut cluster = Cluster::with_manifest(&manifest(&[("a", "", "")]));
    let agent = cluster.settled_agent("A");
    cluster.update(&new_state(&[("a", "A", "")]), &[]).unwrap();
    let messages = cluster.take(agent);
    let removed = FromServer::WorkloadStates(vec![state(&instance("a", ""), Phase::Removed)]);
    assert_eq!(messages[0], removed);
    let [plan] = plans(&messages)[..] else {
        panic!("{messages:?}")
    };
    assert_eq!(
        (names(&plan.added), plan.deleted.len()),
        (vec!["a".to_owned()], 0)
    );
    assert_eq!(cluster.phase(&instance("a", "")), None);
    cluster.update(&new_state(&[("a", "", "")]), &[]).unwrap();
    let plan = cluster.one_plan(agent);
    assert_eq!((plan.added.len(), plan.deleted.len()), (0, 1));
    assert_eq!(cluster.phase(&instance("a", "")), Some(Phase::NotScheduled));
}

fn waits(cluster: &Cluster, agent: PeerId, deleted: &str) -> Vec<String> {
    let messages = cluster.take(agent);
    let plans = plans(&messages);
    let entry = plans
        .iter()
        .flat_map(|plan| &plan.deleted)
        .find(|entry| &*entry.instance.workload == deleted);
    entry
        .unwrap_or_else(|| panic!("{messages:?}"))
        .dependencies
        .keys()
        .cloned()
        .collect()
}

#[test]
fn deletes_wait_for_dependents_of_the_state_before_the_update() {
    let mut cluster = Cluster::with_manifest(&manifest(&[("a", "A", NEEDS_B), ("b", "A", "")]));
    let agent = cluster.settled_agent("A");
    // After an update of b the old instance goes; a still needs the new one.
    cluster
        .update(
            &new_state(&[("a", "A", NEEDS_B), ("b", "A", ", tags: {k: v}")]),
            &[],
        )
        .unwrap();
    assert_eq!(waits(&cluster, agent, "b"), ["a"]);
    cluster.report(agent, &[(&instance("b", "A"), Phase::Removed)]);
    cluster.report(
        agent,
        &[
            (&instance("b", "A"), Phase::Running),
            (&instance("a", "A"), Phase::Running),
        ],
    );
    // Deleting both in one update, and b later than a.
    cluster
        .update(&new_state(&[("b", "A", ", tags: {k: v}")]), &[])
        .unwrap();
    assert_eq!(waits(&cluster, agent, "a"), [] as [&str; 0]);
    cluster.update(&new_state(&[]), &[]).unwrap();
    assert_eq!(
        waits(&cluster, agent, "b"),
        ["a"],
        "a was told to stop but has not stopped"
    );
}

#[test]
fn a_dependency_that_was_dropped_delays_no_delete() {
    let mut cluster = Cluster::with_manifest(&manifest(&[("a", "A", NEEDS_B), ("b", "A", "")]));
    let agent = cluster.settled_agent("A");
    cluster
        .update(&new_state(&[("a", "A", ""), ("b", "A", "")]), &[])
        .unwrap();
    cluster.report(agent, &[(&instance("a", "A"), Phase::Running)]);
    cluster.take_all();
    cluster.update(&new_state(&[("a", "A", "")]), &[]).unwrap();
    assert_eq!(waits(&cluster, agent, "b"), [] as [&str; 0]);
}

/// Seeds 11002713 and 12005669 of the simulation: a was replaced twice in place. When the server
/// did so the second time, all that it knew was the end of the first form; the second one, which
/// needs b, may have been started since.
#[test]
fn delete_waits_for_a_replaced_revision_after_an_earlier_end() {
    let mut cluster = Cluster::with_manifest(&manifest(&[("a", "A", ""), ("b", "B", "")]));
    let (agent_of_a, agent) = (cluster.settled_agent("A"), cluster.settled_agent("B"));
    let (a, b) = (instance("a", "A"), instance("b", "B"));
    cluster.report(agent_of_a, &[(&a, Phase::Running)]);
    cluster.report(agent, &[(&b, Phase::Running)]);
    cluster
        .update(&new_state(&[("a", "A", NEEDS_B), ("b", "B", "")]), &[])
        .unwrap();
    cluster.report(agent_of_a, &[(&a, Phase::Removed)]);
    cluster
        .update(&new_state(&[("a", "A", ""), ("b", "B", "")]), &[])
        .unwrap();
    cluster.update(&new_state(&[("b", "B", "")]), &[]).unwrap();
    cluster.update(&new_state(&[]), &[]).unwrap();
    assert_eq!(waits(&cluster, agent, "b"), ["a"]);
    cluster.report(agent_of_a, &[(&a, Phase::Removed)]);
    cluster.report(agent, &[(&b, Phase::Removed)]);
    assert_eq!(cluster.server.updates.deletes().len(), [0, 0]);
}

/// Simulated seed 5387: b was deleted and came back while a, which had needed it, went on without
/// needing it.
#[test]
fn waiting_delete_is_sent_again_without_a_former_dependent() {
    for (back, agent_of_b) in [
        (None, ""),
        (Some(("b", "A", ", tags: {k: v}")), "A"),
        (Some(("b", "B", "")), "B"),
    ] {
        let mut cluster = Cluster::with_manifest(&manifest(&[("a", "A", NEEDS_B), ("b", "A", "")]));
        let agent = cluster.settled_agent("A");
        cluster.settled_agent("B");
        let (a, b) = (instance("a", "A"), instance("b", "A"));
        cluster.report(agent, &[(&a, Phase::Running), (&b, Phase::Running)]);
        cluster
            .update(&new_state(&[("a", "A", NEEDS_B)]), &[])
            .unwrap();
        assert_eq!(waits(&cluster, agent, "b"), ["a"]);
        cluster.report(agent, &[(&b, Phase::StoppingWaitingToStop)]);
        let workloads: Vec<_> = [("a", "A", "")].into_iter().chain(back).collect();
        cluster.update(&new_state(&workloads), &[]).unwrap();
        cluster.take_all();
        cluster.report(agent, &[(&a, Phase::Running)]);
        let messages = cluster.take(agent);
        assert!(plans(&messages).is_empty(), "the old revision may run");
        cluster.report(agent, &[(&a, Phase::StoppingRequestedAtRuntime)]);
        cluster.report(agent, &[(&a, Phase::Running)]);
        let plan = cluster.one_plan(agent);
        let expected = DeletedWorkload {
            instance: b.clone(),
            dependencies: BTreeMap::new(),
        };
        assert_eq!(plan.deleted, [expected]);
        // The new b is a part of the order when the same agent has it: it waits there behind the
        // old one.
        let added: &[&str] = if agent_of_b == "A" { &["b"] } else { &[] };
        assert_eq!(names(&plan.added), added);
        cluster.report(agent, &[(&a, Phase::Running), (&b, Phase::Removed)]);
        assert!(plans(&cluster.take(agent)).is_empty(), "it is told once");
        assert!(cluster.server.updates.deletes().len()[1] == 0);
    }
}

/// Two workloads of different agents are replaced together. The new dependent may run before the
/// agent of the other has seen the end of the old one, since newer states replace older ones in its
/// outbox.
#[test]
fn delete_does_not_wait_for_the_successor_of_a_dependent() {
    for (is_lost, rest) in [
        (false, format!("2{NEEDS_B}")),
        (true, format!("2{NEEDS_B}")),
        // Its instance name stays.
        (false, format!(", tags: {{k: v}}{NEEDS_B}")),
        (true, format!(", tags: {{k: v}}{NEEDS_B}")),
    ] {
        let mut cluster = Cluster::with_manifest(&manifest(&[("a", "A", NEEDS_B), ("b", "B", "")]));
        let (agent_of_a, mut agent) = (cluster.settled_agent("A"), cluster.settled_agent("B"));
        let (a, b) = (instance("a", "A"), instance("b", "B"));
        cluster.report(agent_of_a, &[(&a, Phase::Running)]);
        cluster.report(agent, &[(&b, Phase::Running)]);
        cluster
            .update(&new_state(&[("a", "A", &rest), ("b", "B", "2")]), &[])
            .unwrap();
        assert_eq!(waits(&cluster, agent, "b"), ["a"]);
        let new_a = InstanceName::new("a", if rest.starts_with('2') { "x2" } else { "x" }, "A");
        cluster.report(agent, &[(&b, Phase::StoppingWaitingToStop)]);
        cluster.report(agent_of_a, &[(&a, Phase::StoppingRequestedAtRuntime)]);
        cluster.report(agent_of_a, &[(&a, Phase::Removed)]);
        assert_eq!(plans(&cluster.take(agent)), [] as [&WorkloadPlan; 0]);
        if is_lost {
            cluster.close(agent);
        }
        cluster.report(agent_of_a, &[(&new_a, Phase::PendingStarting)]);
        cluster.report(agent_of_a, &[(&new_a, Phase::Running)]);
        if is_lost {
            agent = cluster.settled_agent("B");
            cluster.report(agent, &[(&b, Phase::StoppingWaitingToStop)]);
        }
        let plan = cluster.one_plan(agent);
        let expected = DeletedWorkload {
            instance: b.clone(),
            dependencies: BTreeMap::new(),
        };
        assert_eq!(plan.deleted, [expected], "{rest}");
        assert_eq!(names(&plan.added), ["b"]);
        cluster.report(agent, &[(&b, Phase::Removed)]);
        assert_eq!(cluster.server.updates.deletes().len(), [0, 0]);
    }
}

/// Seed 90806 of the simulation: a workload without an agent has no reports.
#[test]
fn delete_does_not_wait_for_a_former_dependent_without_agent() {
    let mut cluster =
        Cluster::with_manifest(&manifest(&[("a", "nobody", NEEDS_B), ("b", "A", "")]));
    let agent = cluster.settled_agent("A");
    let b = instance("b", "A");
    cluster.report(agent, &[(&b, Phase::Running)]);
    cluster
        .update(&new_state(&[("a", "nobody", NEEDS_B)]), &[])
        .unwrap();
    assert_eq!(waits(&cluster, agent, "b"), ["a"]);
    cluster.report(agent, &[(&b, Phase::StoppingWaitingToStop)]);
    cluster.take_all();
    cluster
        .update(&new_state(&[("a", "nobody", "")]), &[])
        .unwrap();
    let plan = cluster.one_plan(agent);
    assert_eq!(
        plan.deleted,
        [DeletedWorkload {
            instance: b,
            dependencies: BTreeMap::new()
        }]
    );
}

/// Seeds 1202390 and 770985 of the simulation: the last known state of the old revision was that it
/// waits to start, and its agent may have started it meanwhile. Then a workload that it needs was
/// stopped beside it.
#[test]
fn delete_waits_until_the_agent_knows_that_a_dependent_moves() {
    for last_known in [
        Phase::PendingWaitingToStart,
        Phase::Succeeded,
        Phase::FailedLost,
    ] {
        for is_lost in [false, true] {
            let mut cluster =
                Cluster::with_manifest(&manifest(&[("a", "B", NEEDS_B), ("b", "A", "")]));
            let (agent, other) = (cluster.settled_agent("A"), cluster.settled_agent("B"));
            let (a, b) = (instance("a", "B"), instance("b", "A"));
            cluster.report(other, &[(&a, last_known)]);
            cluster.report(agent, &[(&b, Phase::Running)]);
            cluster
                .update(
                    &new_state(&[("a", "B", NEEDS_B), ("b", "A", ", tags: {k: v}")]),
                    &[],
                )
                .unwrap();
            cluster.report(agent, &[(&b, Phase::StoppingWaitingToStop)]);
            cluster.take_all();
            cluster
                .update(
                    &new_state(&[("a", "nobody", ""), ("b", "A", ", tags: {k: w}")]),
                    &[],
                )
                .unwrap();
            assert_eq!(waits(&cluster, agent, "b"), ["a"], "{last_known}");
            assert!(plans(&cluster.take(agent)).is_empty(), "{last_known}");
            if is_lost {
                cluster.close(other);
            } else {
                cluster.report(other, &[(&a, Phase::Removed)]);
            }
            let plan = cluster.one_plan(agent);
            assert_eq!(
                plan.deleted,
                [DeletedWorkload {
                    instance: b,
                    dependencies: BTreeMap::new()
                }]
            );
            assert_eq!(names(&plan.added), ["b"]);
        }
    }
}

/// An update that keeps the instance name waits at its agent for what an earlier server has said,
/// or this one on an earlier connection. The agent was not sent that it had to wait for less.
#[test]
fn restarted_server_relieves_an_update_in_place() {
    let (a, b) = (instance("a", "B"), instance("b", "A"));
    for needed in [false, true] {
        let present = [
            ("a", "B", if needed { NEEDS_B } else { "" }),
            ("b", "A", ", tags: {k: v}"),
        ];
        let mut cluster = Cluster::with_manifest(&manifest(&present));
        let other = cluster.settled_agent("B");
        cluster.report(other, &[(&a, Phase::Running)]);
        for connection in ["another server", "another connection"] {
            let agent = cluster.agent("A");
            cluster.take_all();
            cluster.report(agent, &[(&b, Phase::StoppingWaitingToStop)]);
            let plan = cluster.one_plan(agent);
            let waits: Vec<&str> = plan.deleted[0]
                .dependencies
                .keys()
                .map(String::as_str)
                .collect();
            assert_eq!(
                (waits, names(&plan.added)),
                (
                    if needed { vec!["a"] } else { vec![] },
                    vec!["b".to_owned()]
                )
            );
            // It may say the same more than once before it has heard that, and for another reason
            // later.
            cluster.report(agent, &[(&b, Phase::StoppingWaitingToStop)]);
            cluster.send(agent, ToServer::StatesComplete);
            cluster.report(agent, &[(&b, Phase::Removed)]);
            cluster.report(agent, &[(&b, Phase::Running)]);
            cluster.report(agent, &[(&b, Phase::StoppingWaitingToStop)]);
            assert!(plans(&cluster.take(agent)).is_empty(), "{connection}");
            cluster.close(agent);
        }
    }
}

/// Simulated seed 10115132: the old revision was being restarted by its policy at the first report
/// of a new connection, and was shown as waiting after it. The agent was not sent that it had to
/// wait for less.
#[test]
fn update_in_place_shown_as_waiting_late_is_relieved() {
    let (a, b) = (instance("a", "B"), instance("b", "A"));
    let present = [("a", "B", ""), ("b", "A", ", tags: {k: v}")];
    let mut cluster = Cluster::with_manifest(&manifest(&present));
    let other = cluster.settled_agent("B");
    cluster.report(other, &[(&a, Phase::Running)]);
    let agent = cluster.agent("A");
    cluster.report(agent, &[(&b, Phase::StoppingRequestedAtRuntime)]);
    cluster.send(agent, ToServer::StatesComplete);
    cluster.report(agent, &[(&b, Phase::Removed)]);
    cluster.take_all();
    cluster.report(agent, &[(&b, Phase::StoppingWaitingToStop)]);
    let plan = cluster.one_plan(agent);
    assert!(plan.deleted[0].dependencies.is_empty());
    assert_eq!(names(&plan.added), ["b"]);
    // A report that has crossed this order repeats nothing.
    cluster.report(agent, &[(&b, Phase::StoppingWaitingToStop)]);
    assert!(plans(&cluster.take(agent)).is_empty());
    // Nor does one that has crossed an update of this connection.
    let changed = [("a", "B", ""), ("b", "A", ", tags: {k: w}")];
    cluster.close(agent);
    let agent = cluster.settled_agent("A");
    cluster.report(agent, &[(&b, Phase::Running)]);
    cluster.send(agent, ToServer::StatesComplete);
    cluster.update(&new_state(&changed), &[]).unwrap();
    cluster.take_all();
    cluster.report(agent, &[(&b, Phase::StoppingWaitingToStop)]);
    assert!(plans(&cluster.take(agent)).is_empty());
}

/// Simulated seeds 810495 and 900351: what a delete waits for was known to a server that was
/// killed, or was forgotten with the connection or when the instance was started again while it
/// waits. Then the agent was not sent any more that it had to wait for less.
#[test]
fn delete_with_forgotten_conditions_is_relieved() {
    let (a, b) = (instance("a", "A"), instance("b", "B"));
    for still_needed in [false, true] {
        let present = [("a", "A", if still_needed { NEEDS_B } else { "" })];
        let waiting = || {
            let mut cluster =
                Cluster::with_manifest(&manifest(&[("a", "A", NEEDS_B), ("b", "B", "")]));
            let (agent_of_a, agent) = (cluster.settled_agent("A"), cluster.settled_agent("B"));
            cluster.report(agent_of_a, &[(&a, Phase::Running)]);
            cluster.report(agent, &[(&b, Phase::Running)]);
            cluster
                .update(&new_state(&[("a", "A", NEEDS_B)]), &[])
                .unwrap();
            cluster.report(agent, &[(&b, Phase::StoppingWaitingToStop)]);
            (cluster, agent_of_a, agent)
        };
        let told = |cluster: &mut Cluster, agent| {
            cluster.take_all();
            cluster.report(agent, &[(&b, Phase::StoppingWaitingToStop)]);
            cluster.send(agent, ToServer::StatesComplete);
            let messages = cluster.take(agent);
            let conditions = plans(&messages)
                .into_iter()
                .map(|plan| plan.deleted[0].dependencies.keys().cloned().collect());
            let conditions = conditions.collect::<Vec<Vec<String>>>();
            cluster.report(agent, &[(&b, Phase::Removed)]);
            assert!(cluster.server.updates.deletes().len()[1] == 0);
            conditions
        };
        let anew: [Vec<String>; 1] = [if still_needed {
            vec!["a".to_owned()]
        } else {
            vec![]
        }];

        let (mut cluster, agent_of_a, agent) = waiting();
        cluster.close(agent);
        cluster.update(&new_state(&present), &[]).unwrap();
        for phase in [Phase::StoppingRequestedAtRuntime, Phase::Running] {
            cluster.report(agent_of_a, &[(&a, phase)]);
        }
        let agent = cluster.settled_agent("B");
        assert_eq!(
            told(&mut cluster, agent),
            anew,
            "another connection, still needed: {still_needed}"
        );

        let mut cluster = Cluster::with_manifest(&manifest(&present));
        let (agent_of_a, agent) = (cluster.settled_agent("A"), cluster.settled_agent("B"));
        cluster.report(agent_of_a, &[(&a, Phase::Running)]);
        assert_eq!(
            told(&mut cluster, agent),
            anew,
            "another server, still needed: {still_needed}"
        );

        let (mut cluster, _, agent) = waiting();
        cluster.report(agent, &[(&b, Phase::Removed)]);
        cluster.update(&new_state(&present), &[]).unwrap();
        assert_eq!(
            told(&mut cluster, agent),
            anew,
            "started again, still needed: {still_needed}"
        );
    }
}

/// Simulated seed 3000153: an update in place was sent while the one before removed the container.
/// When that was gone, the server forgot the conditions of the newer one, and did not send the
/// agent any more that it had to wait for less.
#[test]
fn update_in_place_behind_another_one_is_relieved() {
    let mut cluster = Cluster::with_manifest(&manifest(&[("b", "B", "")]));
    let (agent_of_a, agent) = (cluster.settled_agent("A"), cluster.settled_agent("B"));
    let (a, b) = (instance("a", "A"), instance("b", "B"));
    cluster.report(agent, &[(&b, Phase::Running)]);
    cluster.send(agent, ToServer::StatesComplete);
    let update = |cluster: &mut Cluster, needs: &str, tag: &str| {
        let tags = format!(", tags: {{k: {tag}}}");
        cluster
            .update(&new_state(&[("a", "A", needs), ("b", "B", &tags)]), &[])
            .unwrap();
    };
    update(&mut cluster, NEEDS_B, "first");
    assert!(waits(&cluster, agent, "b").is_empty());
    update(&mut cluster, NEEDS_B, "second");
    assert_eq!(waits(&cluster, agent, "b"), ["a"]);
    for phase in [
        Phase::StoppingRequestedAtRuntime,
        Phase::Removed,
        Phase::StoppingWaitingToStop,
    ] {
        cluster.report(agent, &[(&b, phase)]);
    }
    update(&mut cluster, "", "second");
    cluster.take_all();
    cluster.report(agent_of_a, &[(&a, Phase::PendingStarting)]);
    let plan = cluster.one_plan(agent);
    assert_eq!(
        plan.deleted,
        [DeletedWorkload {
            instance: b.clone(),
            dependencies: BTreeMap::new()
        }]
    );
    assert_eq!(names(&plan.added), ["b"]);
    cluster.report(agent, &[(&b, Phase::Removed), (&b, Phase::Running)]);
    assert!(plans(&cluster.take(agent)).is_empty(), "it is told once");
    // The conditions of an instance that is not wanted any more end with it.
    update(&mut cluster, NEEDS_B, "second");
    cluster
        .update(&new_state(&[("a", "A", NEEDS_B)]), &[])
        .unwrap();
    assert!(cluster.server.updates.deletes().len()[1] > 0);
    cluster.report(agent, &[(&b, Phase::Removed)]);
    assert!(cluster.server.updates.deletes().len()[1] == 0);
}

#[test]
fn removed_dependent_delays_no_delete_and_is_forgotten() {
    let mut cluster = Cluster::with_manifest(&manifest(&[("a", "A", NEEDS_B), ("b", "A", "")]));
    let agent = cluster.settled_agent("A");
    cluster.report(agent, &[(&instance("a", "A"), Phase::Running)]);
    cluster.update(&new_state(&[("b", "A", "")]), &[]).unwrap();
    assert_eq!(cluster.server.updates.deletes().len()[0], 1);
    cluster.report(agent, &[(&instance("a", "A"), Phase::Removed)]);
    assert!(cluster.server.updates.deletes().len()[0] == 0);
    cluster.take_all();
    cluster.update(&new_state(&[]), &[]).unwrap();
    assert_eq!(waits(&cluster, agent, "b"), [] as [&str; 0]);
}

#[test]
fn an_invalid_state_is_refused_as_a_whole_and_the_old_one_stays() {
    let cyclic = [
        ("a", "A", ", dependencies: {b: ADD_COND_FAILED}"),
        ("b", "A", ", dependencies: {a: ADD_COND_RUNNING}"),
    ];
    for (workloads, text) in [
        (
            vec![("good", "A", ""), ("bad.name", "A", "")],
            "Update rejected: 'Resulting State is invalid, reason: 'Unsupported workload name 'bad.name'. Expected to have characters in [a-zA-Z0-9_-].''",
        ),
        (
            vec![("good", "{{a}}", "")],
            "Update rejected: 'Resulting State is invalid, reason: 'Unsupported agent name '{{a}}'. Only a-z, A-Z, 0-9 chars, underscore (_), and hyphen (-) allowed. Maximum length is 63 characters. (workload 'good')''",
        ),
        (
            cyclic.to_vec(),
            "Update rejected: 'workload dependency 'a' is part of a cycle. It is: a -> b -> a'",
        ),
        (
            vec![(
                "a",
                "A",
                ", controlInterfaceAccess: {allowRules: [{type: StateRule, operation: Read, filterMasks: ['']}]}",
            )],
            "Update rejected: 'Resulting State is invalid, reason: 'Empty filter masks are not allowed in Control Interface access rules (workload 'a')''",
        ),
    ] {
        let mut cluster = Cluster::with_manifest(&manifest(&[("old", "A", "")]));
        let agent = cluster.settled_agent("A");
        let before = cluster.read(&[]);
        assert_eq!(
            cluster.update(&new_state(&workloads), &[]),
            Err(text.to_owned())
        );
        assert_eq!(cluster.read(&[]), before);
        assert_eq!(cluster.take(agent), []);
    }
}

#[test]
fn config_keys_and_aliases_are_checked_before_anything_else() {
    let mut cluster = Cluster::default();
    let state = "{desiredState: {apiVersion: v1, workloads: {}, configs: {a: [{'b.c': x}]}}}";
    let error = cluster.update(state, &[]).unwrap_err();
    assert!(
        error.starts_with("Unsupported config item key 'b.c'. Only a-z"),
        "{error}"
    );
    let state = new_state(&[("a", "A", ", configs: {'a b': k}")]);
    let error = cluster.update(&state, &[]).unwrap_err();
    assert!(
        error.starts_with("Unsupported config alias 'a b'. Only a-z"),
        "{error}"
    );
    assert!(error.ends_with(" (workload 'a')"), "{error}");
}

#[test]
fn changed_config_updates_exactly_the_different_workloads() {
    let with_configs = |k: &str, other: &str, rest: &str| {
        format!(
            "desiredState:\n  apiVersion: v1\n  configs: {{k: '{k}', other: '{other}'}}\n  workloads:\n    \
             a: {{agent: 'A', runtime: podman, runtimeConfig: 'c {{{{k}}}}', configs: {{k: k, unused: other}}}}\n    \
             b: {{agent: '{{{{where}}}}', runtime: podman, runtimeConfig: x, configs: {{where: other}}}}\n    \
             c: {{agent: A, runtime: podman, runtimeConfig: '{{{{literal}}}}'{rest}}}\n"
        )
    };
    let mut cluster = Cluster::default();
    let agent = cluster.settled_agent("A");
    let (added, _) = cluster.update(&with_configs("1", "B", ""), &[]).unwrap();
    let name = |workload, config, agent| InstanceName::new(workload, config, agent).to_string();
    assert_eq!(
        added,
        [
            name("a", "c 1", "A"),
            name("b", "x", "B"),
            name("c", "{{literal}}", "A")
        ]
    );
    let read = cluster.read(&[
        "effectiveState.workloads.a",
        "desiredState.workloads.a.runtimeConfig",
    ]);
    assert!(read.contains(
        r#""desiredState":{"apiVersion":"v1","workloads":{"a":{"runtimeConfig":"c {{k}}"}}}"#
    ));
    assert!(read.contains(
        r#""a":{"agent":"A","restartPolicy":"NEVER","runtime":"podman","runtimeConfig":"c 1"}"#
    ));
    cluster.take_all();
    // Only a uses k; b moves with the other one; replacing a template by the equal text changes
    // nothing.
    let changed = cluster.update(
        "{desiredState: {apiVersion: v1, configs: {k: '2'}}}",
        &["desiredState.configs.k"],
    );
    assert_eq!(
        changed,
        Ok((vec![name("a", "c 2", "A")], vec![name("a", "c 1", "A")]))
    );
    assert_eq!(plans(&cluster.take(agent)).len(), 1);
    let moved = cluster.update(
        "{desiredState: {apiVersion: v1, configs: {other: A}}}",
        &["desiredState.configs.other"],
    );
    assert_eq!(
        moved,
        Ok((vec![name("b", "x", "A")], vec![name("b", "x", "B")]))
    );
    let literal = "{desiredState: {apiVersion: v1, workloads: {a: {runtimeConfig: c 2}}}}";
    assert_eq!(
        cluster.update(literal, &["desiredState.workloads.a.runtimeConfig"]),
        Ok((vec![], vec![]))
    );
    let error = cluster
        .update(
            "{desiredState: {apiVersion: v1}}",
            &["desiredState.configs.other"],
        )
        .unwrap_err();
    let expected = "Update rejected: 'Resulting State is invalid, reason: 'Workload references config key 'other' that does not exist (workload 'a')''";
    assert_eq!(error, expected);
    let error = cluster
        .update(&with_configs("1", "not a name", ""), &[])
        .unwrap_err();
    assert!(
        error.contains("Unsupported agent name 'not a name'"),
        "{error}"
    );
}

#[test]
fn update_examines_only_its_workloads_and_config_users() {
    let mut cluster = Cluster::default();
    let lines: String = (0..1_000)
        .map(|index| {
            let configs = if index % 500 == 7 {
                ", configs: {alias: k}"
            } else {
                ""
            };
            format!("  w{index:03}: {{agent: A, runtime: podman, runtimeConfig: x{configs}}}\n")
        })
        .collect();
    let state =
        format!("apiVersion: v1\nconfigs: {{k: v, other: v, more: v}}\nworkloads:\n{lines}");
    cluster.server.start_with(desired(&state)).unwrap();
    let whole = format!(
        "desiredState:\n{}",
        state
            .lines()
            .map(|line| format!("  {line}\n"))
            .collect::<String>()
    );
    for (new_state, masks, changed, configs, rendered) in [
        (
            "desiredState: {configs: {k: w}}",
            vec!["desiredState.configs.k"],
            vec![],
            vec!["k"],
            vec!["w007", "w507"],
        ),
        (
            "desiredState: {configs: {k: w}}",
            vec!["desiredState.configs.other"],
            vec![],
            vec!["other"],
            vec![],
        ),
        (
            "desiredState: {configs: {k: v}}",
            vec!["desiredState.configs.k"],
            vec![],
            vec![],
            vec![],
        ),
        (
            "desiredState: {}",
            vec!["desiredState.workloads.w005"],
            vec!["w005"],
            vec![],
            vec!["w005"],
        ),
        (
            "desiredState: {workloads: {w005: {tags: {k: v}}}}",
            vec![
                "desiredState.workloads.w005.tags",
                "desiredState.workloads.w006.tags",
            ],
            vec!["w005"],
            vec![],
            vec!["w005"],
        ),
        (&whole, vec![], vec![], vec![], vec![]),
        (&whole, vec!["desiredState"], vec![], vec![], vec![]),
    ] {
        let RequestContent::UpdateState(update) = update(new_state, &masks) else {
            panic!("an update")
        };
        let change = requested_change(cluster.server.view(), update, true).unwrap();
        assert_eq!(
            change
                .workloads
                .keys()
                .map(|name| &**name)
                .collect::<Vec<_>>(),
            changed,
            "{masks:?}"
        );
        assert_eq!(
            change.configs.keys().collect::<Vec<_>>(),
            configs,
            "{masks:?}"
        );
        let looked_at = cluster
            .server
            .updates
            .workloads()
            .rendered(&change, UpdateSource::Update, &mut Failed::new())
            .unwrap();
        assert_eq!(
            looked_at.keys().map(|name| &**name).collect::<Vec<_>>(),
            rendered,
            "{masks:?}"
        );
    }
    // The index of users follows the workloads.
    cluster
        .update("desiredState: {}", &["desiredState.workloads.w007"])
        .unwrap();
    let error = cluster
        .update("desiredState: {}", &["desiredState.configs.k"])
        .unwrap_err();
    assert!(error.contains("config key 'k'"), "{error}");
    cluster
        .update("desiredState: {}", &["desiredState.workloads.w507.configs"])
        .unwrap();
    assert_eq!(
        cluster.update("desiredState: {}", &["desiredState.configs.k"]),
        Ok((vec![], vec![]))
    );
}

#[test]
fn a_startup_manifest_is_checked_like_an_update() {
    let mut server = ServerLoop::new();
    let error = server.start_with(desired(&manifest(&[(
        "a",
        "A",
        ", dependencies: {a: ADD_COND_RUNNING}",
    )])));
    assert_eq!(
        error.unwrap_err().to_string(),
        "workload dependency 'a' is part of a cycle. It is: a -> a"
    );
    let chain: Vec<String> = (10..30).map(|number| format!("w{number}")).collect();
    let needs: Vec<String> = (0..20)
        .map(|index| {
            format!(
                ", dependencies: {{{}: ADD_COND_RUNNING}}",
                chain[(index + 1) % 20]
            )
        })
        .collect();
    let long: Vec<_> = chain
        .iter()
        .zip(&needs)
        .map(|(name, needs)| (name.as_str(), "A", needs.as_str()))
        .collect();
    let error = server
        .start_with(desired(&manifest(&long)))
        .unwrap_err()
        .to_string();
    let ways =
        "It is: w10 -> w11 -> w12 -> w13 -> w14 -> w15 -> w16 -> w17 -> w18 -> ... -> w29 -> w10";
    assert!(error.ends_with(ways), "{error}");
    let error = server.start_with(desired("{apiVersion: v2}"));
    assert_eq!(
        error.unwrap_err().to_string(),
        "Unsupported API version. Received 'v2', expected 'v1'"
    );
    server.start_with(desired("{apiVersion: v0.1}")).unwrap();
}

#[test]
fn a_hundred_thousand_workloads_in_one_update() {
    let mut cluster = Cluster::default();
    let workloads: BTreeMap<Name, std::sync::Arc<ankaios_model::workload::Workload>> = (0..100_000)
        .map(|index| {
            let workload = ankaios_model::workload::Workload::new(
                &format!("agent{}", index % 100),
                "podman",
                "x",
            );
            (format!("w{index}").into(), std::sync::Arc::new(workload))
        })
        .collect();
    cluster
        .server
        .start_with(DesiredState {
            workloads,
            ..DesiredState::default()
        })
        .unwrap();
    let added = cluster.update(
        "{desiredState: {apiVersion: v1, workloads: {w5: {tags: {k: v}}}}}",
        &["desiredState.workloads.w5.tags"],
    );
    assert_eq!(added.unwrap().0.len(), 1);
}

#[test]
fn lifecycle_block_is_checked_after_rendering() {
    let state = |key: &str| {
        format!(
            "desiredState:\n  apiVersion: v1\n  configs: {{key: {key}}}\n  workloads:\n    db:\n      agent: A\n      \
             runtime: podman\n      configs: {{k: key}}\n      runtimeConfig: |\n        image: x\n        lifecycle:\n          \
             ready: {{file: /up, {{{{k}}}}: 5}}\n"
        )
    };
    let mut cluster = Cluster::with_manifest(&manifest(&[]));
    let error = cluster.update(&state("deadlinMs"), &[]).unwrap_err();
    let expected =
        "Workload 'db': lifecycle.ready.deadlinMs: unknown key; did you mean 'deadlineMs'? (line 3";
    assert!(error.contains(expected), "{error}");
    cluster.update(&state("deadlineMs"), &[]).unwrap();
}

// A later update that takes the last dependency away is refused as well.
// [utest->swdd~lifecycle-restart-with-needs-a-dependency~1]
#[test]
fn restart_with_without_a_dependency_is_refused() {
    let state = |dependencies: &str| {
        format!(
            "desiredState:\n  apiVersion: v1\n  workloads:\n    web:\n      agent: A\n      runtime: podman\n      \
             dependencies: {dependencies}\n      runtimeConfig: |\n        image: x\n        lifecycle: {{ restartWith: DEPENDENCIES }}\n"
        )
    };
    let mut cluster = Cluster::with_manifest(&manifest(&[]));
    cluster
        .update(&state("{ db: ADD_COND_RUNNING }"), &[])
        .unwrap();
    for dependencies in ["{}", "{ db: ADD_COND_FAILED }"] {
        let error = cluster.update(&state(dependencies), &[]).unwrap_err();
        let expected = "Workload 'web': lifecycle.restartWith: ";
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn mount_point_with_options_is_refused_unless_stored_before() {
    let bad = |point: &str| {
        manifest(&[(
            "w",
            "A",
            &format!(", files: [{{mountPoint: \"{point}\", data: d}}]"),
        )])
    };
    for point in ["/x,source=/,destination=/host", "/x\\n", "/\\\"x"] {
        let mut cluster = Cluster::default();
        let state = format!(
            "desiredState:\n{}",
            bad(point)
                .lines()
                .map(|line| format!("  {line}\n"))
                .collect::<String>()
        );
        let error = cluster.update(&state, &[]).unwrap_err();
        let expected = format!("Unsupported mount point '{point}'. It contains '");
        assert!(
            error.contains(&expected) && error.contains("(workload 'w')"),
            "{error}"
        );
    }
    let mut stored = Cluster::with_manifest(&bad("/x,y"));
    assert_eq!(
        stored.server.view().effective.len(),
        1,
        "what was there before does not end a start"
    );
    stored
        .update(
            "desiredState: {apiVersion: v1, configs: {k: v}}",
            &["desiredState.configs"],
        )
        .unwrap();
    assert_eq!(
        stored
            .update("desiredState: {}", &["desiredState.workloads.w"])
            .unwrap()
            .0,
        [""; 0]
    );
}

/// Each of these texts may be read, and takes milliseconds: all of them in one update took ten
/// seconds.
#[test]
fn the_texts_that_are_read_for_one_update_are_bounded_together() {
    let text = format!(
        "image: x, lifecycle: {{}}, unknown: [{}]",
        "x,".repeat(30_000)
    );
    let state = |count: usize| {
        let line = |number: usize| {
            format!("    w{number}: {{agent: A, runtime: podman, runtimeConfig: '{{{text}}}'}}\n")
        };
        let lines: String = (0..count).map(line).collect();
        format!("desiredState:\n  apiVersion: v1\n  workloads:\n{lines}")
    };
    let mut cluster = Cluster::default();
    let error = cluster.update(&state(40), &[]).unwrap_err();
    assert!(
        error.contains("too many and too large runtime configurations"),
        "{error}"
    );
    cluster.update(&state(5), &[]).unwrap();
}
