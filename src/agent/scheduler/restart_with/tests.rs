//! Restarts of dependents after those of their dependencies, counted by the calls of the engine.

use super::*;
use crate::events::SchedulerEvent;
use crate::stepped_agent::{AgentRig as Rig, deleted_after, wanted_with};
use ankaios_model::execution_state::WorkloadState;
use ankaios_model::messages::{FromServer, WorkloadPlan};
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::workload::RestartPolicy;
use std::sync::Arc;
use std::time::Duration;

const FOLLOWS: &str = "lifecycle: { restartWith: DEPENDENCIES }";

/// A workload that needs others to run, with this configuration.
fn with_config(name: &str, config: &str, needs: &[&str]) -> AddedWorkload {
    wanted_with(name, config, |workload| {
        workload.restart_policy = RestartPolicy::Always;
        for needed in needs {
            let needed = (*needed).to_owned();
            workload.dependencies.insert(needed, AddCondition::Running);
        }
    })
}

/// A workload that is restarted with those that it needs.
fn follower(name: &str, needs: &[&str]) -> AddedWorkload {
    with_config(name, FOLLOWS, needs)
}

fn plain(name: &str, needs: &[&str]) -> AddedWorkload {
    with_config(name, "a", needs)
}

/// Three levels that are restarted with `db`, named against the order of the dependencies as well
/// as along it, and a workload that needs one of them and is not restarted.
fn levels() -> Vec<AddedWorkload> {
    vec![
        plain("db", &[]),
        follower("middle", &["db"]),
        follower("a-user", &["middle"]),
        follower("top", &["a-user"]),
        plain("stays", &["middle"]),
    ]
}

fn running(workloads: &[AddedWorkload]) -> Rig {
    let mut rig = Rig::new();
    rig.add(workloads);
    rig.sent();
    rig.engine.take_calls();
    rig
}

fn position(calls: &[String], call: &str) -> usize {
    let found = calls.iter().position(|one| one == call);
    found.unwrap_or_else(|| panic!("no '{call}' in {calls:?}"))
}

fn calls(rig: &Rig) -> Vec<String> {
    let mut calls = rig.engine.take_calls();
    calls.retain(|call| call.contains(' ')); // Listings have no name.
    calls
}

fn count(calls: &[String], call: &str) -> usize {
    calls.iter().filter(|one| *one == call).count()
}

fn state_of(rig: &Rig, name: &str) -> String {
    let mut known = rig.agent.scheduler.known_states();
    let found = known.find(|(instance, _)| *instance.workload == *name);
    found.map_or_else(String::new, |(_, state)| state.to_string())
}

// [utest->swdd~agent-restarts-with-dependencies~1]
#[test]
fn three_levels_of_dependents_restart_with_a_crash_in_order() {
    let mut rig = running(&levels());
    rig.ends("db", 1);
    rig.agent.pass(Duration::from_secs(5));
    let calls = calls(&rig);
    let order = [
        "delete top",
        "delete a-user",
        "delete middle",
        "create middle",
        "create a-user",
        "create top",
    ];
    for pair in order.windows(2) {
        assert!(
            position(&calls, pair[0]) < position(&calls, pair[1]),
            "{calls:?}"
        );
    }
    assert!(
        position(&calls, "create db") < position(&calls, "create middle"),
        "{calls:?}"
    );
    for call in order {
        assert_eq!(count(&calls, call), 1, "{calls:?}");
    }
    assert!(
        !calls.iter().any(|call| call.ends_with("stays")),
        "{calls:?}"
    );
}

// [utest->swdd~agent-restarts-with-dependencies~1]
#[test]
fn a_dependent_waits_as_long_as_what_it_needs_in_a_crash_loop() {
    let mut rig = running(&levels());
    for _ in 0..40 {
        if rig
            .engine
            .containers()
            .iter()
            .any(|(_, one)| &*one.instance.workload == "db" && one.state.phase == Phase::Running)
        {
            rig.ends("db", 1);
        }
        rig.agent.pass(Duration::from_secs(30));
    }
    rig.agent.pass(Duration::from_secs(600));
    let calls = calls(&rig);
    let starts = count(&calls, "create db") + count(&calls, "start db");
    assert!(starts >= 5, "{calls:?}");
    for name in ["middle", "a-user", "top"] {
        assert_eq!(count(&calls, &format!("create {name}")), starts, "{name}");
        assert_eq!(count(&calls, &format!("delete {name}")), starts, "{name}");
        assert_eq!(state_of(&rig, name), "Running(Ok)");
    }
}

// [utest->swdd~agent-restarts-with-dependencies~1]
#[test]
fn a_dependent_does_not_run_while_what_it_needs_waits() {
    let mut rig = running(&levels());
    rig.ends("db", 1);
    rig.agent.pass(Duration::from_secs(2));
    rig.ends("db", 1);
    let known = state_of(&rig, "middle");
    assert_eq!(known, "Pending(WaitingToStart): 'waits for 'db' to run'");
    assert_eq!(state_of(&rig, "stays"), "Running(Ok)");
}

// Otherwise the update of a dependency would wait for its dependents without end.
// [utest->swdd~agent-restarts-with-dependencies~1]
#[test]
fn an_update_of_a_dependency_restarts_its_dependents_around_it() {
    let mut rig = running(&levels());
    let old = plain("db", &[]).instance;
    let new = with_config("db", "b", &[]);
    rig.change(&[new], &[deleted_after(&old, &["middle"])]);
    let expected = [
        "delete top",
        "delete a-user",
        "delete middle",
        "delete db",
        "create db",
        "create middle",
        "create a-user",
        "create top",
    ];
    assert_eq!(calls(&rig), expected);
}

#[test]
fn a_deleted_dependency_takes_its_dependents_with_it() {
    let mut rig = running(&levels());
    let old = plain("db", &[]).instance;
    rig.change(&[], &[deleted_after(&old, &["middle"])]);
    let expected = ["delete top", "delete a-user", "delete middle", "delete db"];
    assert_eq!(calls(&rig), expected);
    let waits = "Pending(WaitingToStart): 'waits for 'db' to run'";
    assert_eq!(state_of(&rig, "middle"), waits);
    rig.add(&[plain("db", &[])]);
    assert_eq!(
        calls(&rig),
        ["create db", "create middle", "create a-user", "create top"]
    );
}

#[test]
fn a_dependent_that_has_ended_is_started_with_a_new_start() {
    for code in [0, 1] {
        let mut user = follower("user", &["db"]);
        Arc::make_mut(&mut user.workload).restart_policy = RestartPolicy::Never;
        let mut rig = running(&[plain("db", &[]), user]);
        rig.ends("user", code);
        rig.ends("db", 1);
        rig.agent.pass(Duration::from_secs(5));
        let calls = calls(&rig);
        assert_eq!(count(&calls, "create user"), 1, "{code}: {calls:?}");
        assert_eq!(state_of(&rig, "user"), "Running(Ok)", "{code}");
    }
}

#[test]
fn dependencies_that_end_together_restart_a_dependent_once() {
    let mut rig = running(&[
        plain("one", &[]),
        plain("two", &[]),
        follower("user", &["one", "two"]),
    ]);
    let [one, two] = ["one", "two"].map(|name| rig.container_of(name));
    rig.engine.set_state(&one, ExecutionState::exited(1));
    rig.engine.set_state(&two, ExecutionState::exited(1));
    rig.agent.pass(Duration::from_secs(5));
    let calls = calls(&rig);
    assert_eq!(count(&calls, "create user"), 1, "{calls:?}");
    assert_eq!(count(&calls, "delete user"), 1, "{calls:?}");
}

#[test]
fn a_dependency_that_only_must_succeed_restarts_nobody() {
    let mut user = follower("user", &["db"]);
    let workload = Arc::make_mut(&mut user.workload);
    workload
        .dependencies
        .insert("setup".to_owned(), AddCondition::Succeeded);
    let mut rig = running(&[
        plain("db", &[]),
        wanted_with("setup", "a", |_| {}),
        user.clone(),
    ]);
    rig.ends("setup", 0);
    assert_eq!(calls(&rig), ["create user"]);
    let old = wanted_with("setup", "a", |_| {}).instance;
    rig.change(&[], &[deleted_after(&old, &[])]);
    assert_eq!(calls(&rig), ["delete setup"]);
    assert_eq!(state_of(&rig, "user"), "Running(Ok)");
}

// ------------------------------------------------------------ other agents

// [utest->swdd~agent-restarts-with-dependencies~1]
#[test]
fn states_of_another_agent_restart_once_for_each_new_start() {
    for end in [
        Phase::FailedExecFailed,
        Phase::Succeeded,
        Phase::FailedLost,
        Phase::PendingStarting,
        Phase::PendingWaitingToStart,
        Phase::StoppingWaitingToStop,
        Phase::StoppingRequestedAtRuntime,
        Phase::Removed,
    ] {
        let mut rig = Rig::new();
        rig.foreign("far", Phase::Running);
        rig.add(&[follower("user", &["far"])]);
        rig.engine.take_calls();
        rig.foreign("far", end);
        assert_eq!(calls(&rig), ["delete user"], "{end}");
        for phase in [Phase::FailedExecFailed, Phase::PendingStarting] {
            rig.foreign("far", phase);
        }
        assert_eq!(calls(&rig), [""; 0], "{end}");
        rig.foreign("far", Phase::Running);
        assert_eq!(calls(&rig), ["create user"], "{end}");
    }
}

#[test]
fn an_agent_that_is_away_and_comes_back_restarts_nobody() {
    let mut rig = Rig::new();
    rig.foreign("far", Phase::Running);
    rig.add(&[follower("user", &["far"])]);
    rig.engine.take_calls();
    for phase in [
        Phase::AgentDisconnected,
        Phase::PendingInitial,
        Phase::FailedUnknown,
        Phase::Running,
    ] {
        rig.foreign("far", phase);
        assert_eq!(calls(&rig), [""; 0], "{phase}");
    }
    // It was restarted and probes its adopted containers.
    let instance = InstanceName::with_id("far", "id", "agent_B");
    for (phase, reason) in [
        (Phase::AgentDisconnected, Reason::None),
        (Phase::PendingWaitingToStart, Reason::EngineUnlisted),
        (Phase::PendingStarting, Reason::Ready),
        (Phase::Running, Reason::None),
    ] {
        let state = ExecutionState::plain(phase).because(reason);
        let report = WorkloadState::new(instance.clone(), state);
        rig.agent.receive(FromServer::WorkloadStates(vec![report]));
        assert_eq!(calls(&rig), [""; 0], "{phase}");
    }
}

#[test]
fn an_agent_whose_node_has_booted_restarts_dependents() {
    let mut rig = Rig::new();
    rig.foreign("far", Phase::Running);
    rig.add(&[follower("user", &["far"])]);
    rig.engine.take_calls();
    rig.foreign("far", Phase::AgentDisconnected);
    rig.foreign("far", Phase::PendingStarting);
    rig.foreign("far", Phase::Running);
    assert_eq!(calls(&rig), ["delete user", "create user"]);
}

#[test]
fn a_restart_that_arrives_as_one_message_is_seen() {
    let mut rig = Rig::new();
    rig.foreign("far", Phase::Running);
    rig.add(&[follower("user", &["far"])]);
    rig.engine.take_calls();
    let instance = InstanceName::with_id("far", "id", "agent_B");
    let phases = [Phase::FailedExecFailed, Phase::Running];
    let states = phases
        .map(|phase| WorkloadState::new(instance.clone(), ExecutionState::plain(phase)))
        .to_vec();
    rig.agent.receive(FromServer::WorkloadStates(states));
    assert_eq!(calls(&rig), ["delete user", "create user"]);
}

#[test]
fn an_instance_that_replaces_another_one_restarts_once() {
    let mut rig = Rig::new();
    rig.foreign("far", Phase::Running);
    rig.add(&[follower("user", &["far"])]);
    rig.engine.take_calls();
    let new = InstanceName::with_id("far", "new", "agent_C");
    let mut report = |instance: &InstanceName, phase| {
        let state = WorkloadState::new(instance.clone(), ExecutionState::plain(phase));
        rig.agent.receive(FromServer::WorkloadStates(vec![state]));
        calls(&rig)
    };
    // It starts on another agent before the old one has ended.
    assert_eq!(report(&new, Phase::PendingStarting), [""; 0]);
    let old = InstanceName::with_id("far", "id", "agent_B");
    let stops = report(&old, Phase::StoppingRequestedAtRuntime);
    assert_eq!(stops, ["delete user"]);
    assert_eq!(report(&new, Phase::Running), ["create user"]);
    assert_eq!(report(&old, Phase::Removed), [""; 0]);
}

// Any agent can report an instance of any workload as its own.
#[test]
fn an_instance_of_a_hostile_agent_restarts_nobody() {
    let mut rig = running(&levels());
    let forged = InstanceName::with_id("db", "id", "agent_B");
    for phase in [
        Phase::Running,
        Phase::FailedExecFailed,
        Phase::Running,
        Phase::StoppingRequestedAtRuntime,
        Phase::Running,
        Phase::Removed,
    ] {
        let state = WorkloadState::new(forged.clone(), ExecutionState::plain(phase));
        rig.agent.receive(FromServer::WorkloadStates(vec![state]));
        assert_eq!(calls(&rig), [""; 0], "{phase}");
    }
}

// --------------------------------------------------- restarts and reconnects

// [utest->swdd~agent-restarts-with-dependencies~1]
#[test]
fn a_restart_of_the_agent_or_the_server_restarts_nobody() {
    let all = levels();
    let mut rig = running(&all);
    rig.restart_agent(&all);
    assert_eq!(calls(&rig), [""; 0]);
    rig.agent.scheduler.on_event(SchedulerEvent::ServerGone);
    rig.agent.hello(&all);
    rig.agent.pass(Duration::from_secs(60));
    assert_eq!(calls(&rig), [""; 0]);
}

#[test]
fn a_dependency_that_ended_without_agent_restarts_dependents() {
    let all = levels();
    let mut rig = running(&all);
    let db = rig.container_of("db");
    rig.engine.set_state(&db, ExecutionState::exited(1));
    rig.restart_agent(&all);
    rig.agent.pass(Duration::from_secs(5));
    let calls = calls(&rig);
    for name in ["middle", "a-user", "top"] {
        assert_eq!(count(&calls, &format!("create {name}")), 1, "{calls:?}");
    }
    assert_eq!(count(&calls, "create stays"), 0, "{calls:?}");
}

#[test]
fn a_restart_follows_without_the_server() {
    let mut rig = running(&levels());
    rig.agent.scheduler.on_event(SchedulerEvent::ServerGone);
    rig.ends("db", 1);
    rig.agent.pass(Duration::from_secs(5));
    let calls = calls(&rig);
    for name in ["middle", "a-user", "top"] {
        assert_eq!(count(&calls, &format!("create {name}")), 1, "{calls:?}");
    }
}

#[test]
fn a_lost_server_stops_nobody_whose_dependency_is_elsewhere() {
    let mut rig = Rig::new();
    rig.foreign("far", Phase::Running);
    let all = [follower("user", &["far"])];
    rig.add(&all);
    rig.engine.take_calls();
    rig.agent.scheduler.on_event(SchedulerEvent::ServerGone);
    rig.agent.hello(&all);
    assert_eq!(calls(&rig), [""; 0], "the server does not know it yet");
    rig.foreign("far", Phase::Running);
    assert_eq!(calls(&rig), [""; 0]);
}

// ------------------------------------------------------------ combinations

#[test]
fn prepared_starts_follow_in_each_level_of_preparation() {
    for level in [
        PrepareLevel::Image,
        PrepareLevel::Create,
        PrepareLevel::Init,
    ] {
        let mut rig = Rig::with(|options| options.prepare.level = level);
        rig.add(&levels());
        rig.agent.pass(Duration::from_secs(5));
        for _ in 0..3 {
            rig.ends("db", 1);
            rig.agent.pass(Duration::from_secs(60));
            for name in ["db", "middle", "a-user", "top", "stays"] {
                assert_eq!(state_of(&rig, name), "Running(Ok)", "{level} {name}");
            }
            assert_eq!(rig.engine.containers().len(), 5, "{level}");
        }
    }
}

#[test]
fn an_update_of_a_dependent_that_is_restarted_replaces_it_once() {
    let mut rig = running(&[plain("db", &[]), follower("user", &["db"])]);
    rig.agent.loops.hold_calls = true;
    rig.ends("db", 1);
    let old = follower("user", &["db"]).instance;
    let new = with_config("user", &format!("{FOLLOWS} # new"), &["db"]);
    rig.change(std::slice::from_ref(&new), &[deleted_after(&old, &[])]);
    rig.agent.loops.hold_calls = false;
    rig.agent.pass(Duration::from_secs(5));
    let calls = calls(&rig);
    assert_eq!(count(&calls, "create user"), 1, "{calls:?}");
    let user = rig.container_of("user");
    let containers = rig.engine.containers();
    let container = &containers.iter().find(|(id, _)| **id == user).unwrap().1;
    assert_eq!(container.instance, new.instance);
}

/// A follower of `far` and one of it, which cannot be deleted at the moment.
fn followers_with_stuck_top() -> Rig {
    let mut rig = Rig::new();
    rig.foreign("far", Phase::Running);
    rig.add(&[follower("user", &["far"]), follower("top", &["user"])]);
    rig.engine.take_calls();
    rig.engine.set_stuck("top", true);
    rig
}

/// A new version of the follower of `far`, with its old instance name or another one.
fn new_user(is_renamed: bool) -> AddedWorkload {
    let config = if is_renamed {
        format!("{FOLLOWS} # new")
    } else {
        FOLLOWS.to_owned()
    };
    let mut user = with_config("user", &config, &["far"]);
    let workload = Arc::make_mut(&mut user.workload);
    workload.tags.insert("tag".to_owned(), "new".to_owned());
    user
}

/// Lets `far` run again and `top` be deleted. Both followers are started once then.
fn assert_followers_start_once(rig: &mut Rig) {
    rig.engine.set_stuck("top", false);
    rig.foreign("far", Phase::Running);
    rig.agent.pass(Duration::from_secs(600));
    let calls = calls(rig);
    for name in ["user", "top"] {
        assert_eq!(count(&calls, &format!("create {name}")), 1, "{calls:?}");
        assert_eq!(state_of(rig, name), "Running(Ok)");
    }
}

// Its own dependents are stopped at this time, and waiting for them would let it start.
// [utest->swdd~agent-restarts-with-dependencies~1]
#[test]
fn new_version_is_not_started_after_the_end_of_its_dependency() {
    for is_renamed in [false, true] {
        let mut rig = followers_with_stuck_top();
        // The old version cannot be deleted for a moment, so the new one is not started yet.
        rig.engine.set_stuck("user", true);
        let old = follower("user", &["far"]).instance;
        rig.change(&[new_user(is_renamed)], &[deleted_after(&old, &["top"])]);
        rig.foreign("far", Phase::FailedExecFailed);
        rig.engine.set_stuck("user", false);
        rig.agent.pass(Duration::from_secs(600));
        let calls = calls(&rig);
        assert_eq!(count(&calls, "create user"), 0, "{is_renamed}: {calls:?}");
        assert_followers_start_once(&mut rig);
    }
}

// As above; the control loop has not followed the target with the new version yet.
// [utest->swdd~agent-restarts-with-dependencies~1]
#[test]
fn new_version_is_not_started_if_its_dependency_ends_at_once() {
    for is_renamed in [false, true] {
        let mut rig = followers_with_stuck_top();
        let old = follower("user", &["far"]).instance;
        let plan = WorkloadPlan {
            added: vec![new_user(is_renamed)],
            deleted: vec![deleted_after(&old, &["top"])],
        };
        let scheduler = &mut rig.agent.scheduler;
        scheduler.on_event(SchedulerEvent::Server(FromServer::UpdateWorkload(plan)));
        while rig.agent.loops.step() {}
        rig.agent.step(); // The scheduler has seen `top` stop, and lets `user` be replaced.
        rig.foreign("far", Phase::FailedExecFailed);
        rig.agent.pass(Duration::from_secs(600));
        let calls = calls(&rig);
        assert_eq!(count(&calls, "delete user"), 1, "{is_renamed}: {calls:?}");
        assert_eq!(count(&calls, "create user"), 0, "{is_renamed}: {calls:?}");
        assert_followers_start_once(&mut rig);
    }
}

// It has ended by itself, and waits for its own restart while its dependent is stopped.
// [utest->swdd~agent-restarts-with-dependencies~1]
#[test]
fn ended_dependent_is_not_restarted_after_its_dependency_ends() {
    let mut rig = followers_with_stuck_top();
    rig.ends("user", 1);
    rig.foreign("far", Phase::FailedExecFailed);
    rig.agent.pass(Duration::from_secs(600));
    let calls = calls(&rig);
    assert_eq!(count(&calls, "create user"), 0, "{calls:?}");
    assert_followers_start_once(&mut rig);
}

#[test]
fn a_deleted_dependent_is_not_started_again() {
    let mut rig = running(&[plain("db", &[]), follower("user", &["db"])]);
    rig.ends("db", 1);
    let old = follower("user", &["db"]).instance;
    rig.change(&[], &[deleted_after(&old, &[])]);
    rig.agent.pass(Duration::from_secs(60));
    assert_eq!(count(&calls(&rig), "create user"), 0);
    assert!(rig.agent.scheduler.workloads.restarted_with.is_empty());
}

#[test]
fn a_workload_that_does_not_say_it_is_not_looked_at() {
    let mut rig = running(&[plain("db", &[]), plain("user", &["db"])]);
    assert!(rig.agent.scheduler.workloads.restarted_with.is_empty());
    rig.ends("db", 1);
    rig.agent.pass(Duration::from_secs(60));
    assert_eq!(count(&calls(&rig), "create user"), 0);
}

#[test]
fn a_container_that_an_engine_restarts_for_a_moment_is_followed() {
    let mut rig = running(&[plain("db", &[]), follower("user", &["db"])]);
    let db = rig.container_of("db");
    rig.engine.set_state(&db, ExecutionState::exited(1));
    rig.agent.run();
    rig.engine
        .set_state(&db, ExecutionState::plain(Phase::Running));
    rig.agent.pass(Duration::from_secs(5));
    let calls = calls(&rig);
    assert_eq!(count(&calls, "create user"), 1, "{calls:?}");
}

#[test]
fn an_invalid_block_fails_the_start_with_a_way_out() {
    let alone = follower("alone", &[]);
    let rig = running(&[alone]);
    let state = state_of(&rig, "alone");
    assert!(state.starts_with("Pending(StartingFailed)"), "{state}");
    assert!(state.contains("'dependencies'"), "{state}");
}
