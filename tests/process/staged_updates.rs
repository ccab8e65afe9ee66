//! Updates that are staged: nothing is stopped before all of it is prepared and permitted, and the
//! switch is a stop and a start.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use super::prepare::NO_REPAIR;
use crate::support::manifest::Workload;
use crate::support::{Cluster, Recorder, manifest, wait_until, workload};
use serde_json::{Value, json};
use std::fs;

fn update_of(cluster: &Cluster, number: &str) -> Value {
    let output = cluster.ank(&["get", "state", "-o", "json", "updates"]);
    serde_json::from_str::<Value>(&output.stdout).unwrap_or_default()["updates"][number].take()
}

fn wait_for_phase(cluster: &Cluster, phase: &str) {
    cluster.wait_for(&format!("update 1 is {phase}"), || {
        (update_of(cluster, "1")["phase"] == phase).then_some(())
    });
}

fn staged(name: &str, update: &str) -> Workload {
    workload(name, "run:latest").config(&format!(
        "lifecycle: {{ update: {{ healthyMs: 200, deadlineMs: 1200000, {update} }} }}"
    ))
}

/// The calls that make, start, stop or remove something, since there were `from` calls.
fn changes(cluster: &Cluster, from: usize) -> Vec<String> {
    let calls = cluster
        .engine
        .calls()
        .into_iter()
        .skip(from)
        .map(|call| call.command().to_owned());
    calls
        .filter(|command| ["create", "run", "start", "stop", "rm"].contains(&command.as_str()))
        .collect()
}

/// The shown state of the staged instance.
fn wait_for_info(cluster: &Cluster, name: &str, info: &str) {
    cluster.wait_for(&format!("'{name}' shows '{info}'"), || {
        let mut rows = cluster.workloads().into_iter();
        rows.any(|row| {
            row.name == name && row.state == "Pending(Initial)" && row.info.starts_with(info)
        })
        .then_some(())
    });
}

// [itest->swdd~agent-stages-updates~1]
// [itest->swdd~agent-switches-to-prepared~1]
#[test]
fn good_update_is_staged_and_switched_by_stop_and_start() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("web", "run")]);
    let (recorder, from) = (Recorder::start(&cluster), cluster.engine.calls().len());
    cluster.apply(&manifest(&[staged("web", "onFailure: ROLLBACK")]));
    wait_for_phase(&cluster, "GOOD");
    wait_until("only the new one is left", || {
        let containers = cluster.engine.containers_of("web");
        containers.len() == 1 && containers[0]["Image"] == "run:latest"
    });
    assert_eq!(changes(&cluster, from), ["create", "stop", "start", "rm"]);
    let mut states = recorder.states_until("web", "Running(Ok)");
    // How far the new one is, as long as it is staged.
    states.retain(|state| state != "Pending(Initial)");
    assert_eq!(
        states,
        [
            "Stopping(RequestedAtRuntime)",
            "Removed",
            "Pending(Starting)",
            "Running(Ok)"
        ]
    );
}

#[test]
fn no_workload_stops_before_all_are_staged() {
    let mut cluster = Cluster::prepare();
    cluster.server_config = format!("state_dir = '{}'", cluster.folder().join("state").display());
    cluster.agent_config = NO_REPAIR.to_owned();
    cluster.start_all(&["agent_A", "agent_B"]);
    cluster.run(&[workload("web", "run"), workload("map", "run").on("agent_B")]);
    let lock = cluster.write("lock", "");
    let pids = |cluster: &Cluster| {
        ["web", "map"].map(|name| {
            let containers = cluster.engine.containers_of(name).into_iter();
            containers
                .filter(|one| one["State"] == "running")
                .map(|one| one["Pid"].clone())
                .collect::<Vec<_>>()
        })
    };
    let before = pids(&cluster);
    let when = format!("when: {{ pathMissing: {} }}", lock.display());
    cluster.apply(&manifest(&[
        staged("web", ""),
        staged("map", &when).on("agent_B"),
    ]));
    wait_for_info(
        &cluster,
        "map",
        &format!("update: {} exists", lock.display()),
    );
    wait_for_info(&cluster, "web", "update: waits for map");
    cluster.engine.wait_until_quiet();
    let calls = || {
        cluster
            .engine
            .calls()
            .into_iter()
            .filter(|call| call.mentions("web.") || call.mentions("map."))
            .count()
    };
    let before_others = calls();
    // Both agents start and end others meanwhile.
    for agent in ["agent_A", "agent_B"] {
        cluster.run(&[workload("other", "run").on(agent)]);
        cluster.remove("other");
    }
    assert_eq!(
        calls(),
        before_others,
        "what is staged needs no call: {}",
        cluster.engine.tail()
    );
    cluster.kill_server();
    cluster.start_server(&[]);
    cluster.wait_for_agents(&["agent_A", "agent_B"]);
    cluster.kill_agent("agent_A");
    cluster.wait_for("the agent of 'web' is missed", || {
        let mut rows = cluster.workloads().into_iter();
        rows.any(|row| row.name == "web" && row.state == "AgentDisconnected")
            .then_some(())
    });
    cluster.start_agent("agent_A");
    cluster.wait_for_agents(&["agent_A"]);
    wait_for_info(
        &cluster,
        "map",
        &format!("update: {} exists", lock.display()),
    );
    wait_for_info(&cluster, "web", "update: waits for map");
    assert_eq!(pids(&cluster), before);
    assert_eq!(update_of(&cluster, "1")["phase"], "STAGING");
    fs::remove_file(lock).expect("own folder is writable");
    wait_for_phase(&cluster, "GOOD");
    for name in ["web", "map"] {
        wait_until("the new one runs alone", || {
            let containers = cluster.engine.containers_of(name);
            containers.len() == 1 && containers[0]["Image"] == "run:latest"
        });
    }
    let starts: Vec<String> = cluster
        .engine
        .calls_of("start", "")
        .iter()
        .map(|call| call.command().to_owned())
        .collect();
    assert_eq!(starts.len(), 2, "both were started as they were prepared");
}

#[test]
fn moved_and_new_workloads_wait_staged_for_a_condition() {
    let cluster = Cluster::start(&["agent_A", "agent_B"]);
    cluster.run(&[workload("nav", "run")]);
    let (lock, (pid, _)) = (
        cluster.write("lock", ""),
        cluster.engine.only_container("nav"),
    );
    let when = format!("when: {{ pathMissing: {} }}", lock.display());
    let from = cluster.engine.calls().len();
    cluster.apply(&manifest(&[
        staged("nav", &when).on("agent_B"),
        staged("new", ""),
    ]));
    wait_for_info(
        &cluster,
        "nav",
        &format!("update: {} exists", lock.display()),
    );
    wait_for_info(&cluster, "new", "update: waits for nav");
    assert_eq!(changes(&cluster, from), ["create", "create"]);
    let running = cluster
        .engine
        .containers()
        .into_iter()
        .filter(|one| one["State"] == "running");
    assert_eq!(
        running.map(|one| one["Pid"].clone()).collect::<Vec<_>>(),
        [pid]
    );
    fs::remove_file(lock).expect("own folder is writable");
    wait_for_phase(&cluster, "GOOD");
    cluster.wait_for_all(2, "Running(Ok)");
    wait_until("the old one is removed", || {
        changes(&cluster, from).contains(&"rm".to_owned())
    });
    let mut changes = changes(&cluster, from);
    changes.sort();
    assert_eq!(
        changes,
        ["create", "create", "rm", "start", "start", "stop"]
    );
}

#[test]
fn what_an_agent_cannot_stage_is_shown_and_tried_again() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("web", "run")]);
    cluster.engine.script(&json!([
        { "command": "create", "image": "run:latest", "exit": 125, "stderr": "Error: the link is down\n" }
    ]));
    cluster.apply(&manifest(&[staged("web", "")]));
    wait_for_info(&cluster, "web", "update: Error: the link is down, retry ");
    cluster.engine.script(&json!([]));
    wait_for_phase(&cluster, "GOOD");
    assert_eq!(cluster.engine.calls_of("stop", "").len(), 1);
}

#[test]
fn rollback_of_a_staged_update_leaves_nothing() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("web", "run")]);
    let (lock, (pid, _)) = (
        cluster.write("lock", ""),
        cluster.engine.only_container("web"),
    );
    cluster.apply(&manifest(&[staged(
        "web",
        &format!("when: {{ pathMissing: {} }}", lock.display()),
    )]));
    wait_until("it is prepared", || cluster.engine.containers().len() == 2);
    cluster.apply(&manifest(&[workload("web", "run")]));
    wait_for_phase(&cluster, "WITHDRAWN");
    wait_until("what was prepared is gone", || {
        cluster.engine.containers().len() == 1
    });
    assert_eq!(cluster.engine.only_container("web").0, pid);
    assert!(cluster.engine.calls_of("stop", "").is_empty());
}
