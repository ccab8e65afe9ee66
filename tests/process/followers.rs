//! `restartWith` together with all that ends or starts a dependency: guarded updates, rollbacks,
//! modes, and the commands that restart, stop and prune. Each start of a follower is counted.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use super::dependents::{following, starts, wait_for_start};
use crate::support::manifest::Workload;
use crate::support::{Cluster, Output, manifest, wait_until, workload};
use serde_json::json;

/// What follows `storage`, directly or not.
const FOLLOWERS: [&str; 2] = ["web", "shop"];
/// Time in which no health window ends.
const NEVER: &str = "600000";

/// A workload whose updates are rolled back when they fail.
fn guarded(name: &str, image: &str, healthy_ms: &str) -> Workload {
    let update = format!("healthyMs: {healthy_ms}, deadlineMs: 1200000, onFailure: ROLLBACK");
    workload(name, image).config(&format!("lifecycle: {{ update: {{ {update} }} }}"))
}

/// `storage` as a guarded update has it, and its followers.
fn with_guarded(image: &str, healthy_ms: &str) -> Vec<Workload> {
    let mut all = following(image);
    all[0] = guarded("storage", image, healthy_ms);
    all
}

/// A cluster of two agents in which all of [`following`] run.
fn cluster(prepare: impl FnOnce(&mut Cluster)) -> Cluster {
    let mut cluster = Cluster::prepare();
    prepare(&mut cluster);
    cluster.start_all(&["agent_A", "agent_B"]);
    cluster.run(&following("run"));
    cluster
}

fn apply(cluster: &Cluster, options: &[&str], workloads: &[Workload]) -> Output {
    let words = [&["apply"], options, &["-"]].concat();
    cluster.ank_with_input(&words, &manifest(workloads))
}

fn wait_for_phase(cluster: &Cluster, phase: &str) {
    cluster.wait_for(&format!("update 1 is {phase}"), || {
        let output = cluster.ank(&["get", "state", "-o", "json", "updates"]);
        let state: serde_json::Value = serde_json::from_str(&output.stdout).unwrap_or_default();
        (state["updates"]["1"]["phase"] == phase).then_some(())
    });
}

/// Waits until all run, the followers started this often; `log` never ended.
#[track_caller]
fn wait_for_starts(cluster: &Cluster, number: usize) {
    for name in FOLLOWERS {
        wait_for_start(cluster, name, number);
    }
    cluster.wait_until_run(&["storage", "web", "shop", "log"]);
    for name in FOLLOWERS {
        assert_eq!(starts(cluster, name), number, "{name}");
    }
    assert_eq!(starts(cluster, "log"), 1);
}

/// Waits until the followers have ended and wait for a start that `storage` does not offer.
fn wait_until_stopped(cluster: &Cluster) {
    for name in FOLLOWERS {
        cluster.wait_for_state(name, "Pending(WaitingToStart)");
        wait_until("it has no container", || {
            cluster.engine.containers_of(name).is_empty()
        });
    }
}

fn wait_for_image(cluster: &Cluster, image: &str) {
    wait_until("only this version of 'storage' is left", || {
        let containers = cluster.engine.containers_of("storage");
        containers.len() == 1 && containers[0]["Image"] == image
    });
}

// [itest->swdd~agent-restarts-with-dependencies~1]
#[test]
fn good_update_and_its_rollback_restart_followers_once_each() {
    let cluster = cluster(|_| ());
    let output = apply(&cluster, &[], &with_guarded("run:latest", "50")).success();
    assert!(output.ends_with("\nUpdate 1 is good.\n"), "{output}");
    wait_for_starts(&cluster, 2);
    wait_for_image(&cluster, "run:latest");
    let output = cluster.ank(&["rollback", "1"]);
    assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
    wait_for_starts(&cluster, 3);
    wait_for_image(&cluster, "run");
}

// [itest->swdd~agent-restarts-with-dependencies~1]
#[test]
fn update_that_fails_on_trial_restarts_followers_twice() {
    let cluster = cluster(|_| ());
    apply(&cluster, &["--no-wait"], &with_guarded("run:latest", NEVER));
    wait_for_starts(&cluster, 2);
    wait_for_image(&cluster, "run:latest");
    cluster.engine.finish("storage", 3);
    wait_for_phase(&cluster, "UNDONE");
    wait_for_starts(&cluster, 3);
    wait_for_image(&cluster, "run");
}

// [itest->swdd~agent-restarts-with-dependencies~1]
#[test]
fn update_that_cannot_start_restarts_followers_only_after_it() {
    let cluster = cluster(|cluster| cluster.agent_config = "retry_limit = 1".to_owned());
    let fails = |command: &str, key: &str, of: &str| json!({ "command": command, key: of, "exit": 125, "stderr": "Error: boom\n" });
    cluster.engine.script(&json!([
        fails("start", "workload", "storage"),
        fails("run", "image", "run:latest"),
    ]));
    let output = apply(&cluster, &[], &with_guarded("run:latest", NEVER));
    assert_eq!(output.code, 5, "{}{}", output.stdout, output.stderr);
    wait_for_starts(&cluster, 2);
    wait_for_image(&cluster, "run");
}

// [itest->swdd~agent-restarts-with-dependencies~1]
#[test]
fn update_that_cannot_be_staged_restarts_no_follower() {
    let cluster = cluster(|cluster| cluster.agent_config = "retry_limit = 1".to_owned());
    let before = cluster.engine.only_container("storage");
    let fails = json!({ "command": "create", "image": "run:latest", "exit": 125, "stderr": "Error: boom\n" });
    cluster.engine.script(&json!([fails]));
    let output = apply(&cluster, &[], &with_guarded("run:latest", NEVER));
    assert_eq!(output.code, 5, "{}{}", output.stdout, output.stderr);
    wait_for_starts(&cluster, 1);
    assert_eq!(cluster.engine.only_container("storage"), before);
}

/// The kills do not wait for the followers.
// [itest->swdd~agent-restarts-with-dependencies~1]
#[test]
fn kill_loop_starts_each_level_no_more_often_than_its_need() {
    let cluster = Cluster::start(&["agent_A", "agent_B"]);
    let mut all = following("run");
    let site = workload("site", "run").on("agent_B");
    let follows = "lifecycle: { restartWith: DEPENDENCIES }";
    all.push(site.after("shop", "ADD_COND_RUNNING").config(follows));
    cluster.run(&all);
    let log = cluster.engine.only_container("log");
    for kill in 1..=5 {
        cluster.engine.kill_container("storage");
        wait_for_start(&cluster, "storage", kill + 1);
    }
    // Followers are counted before their dependency, which may start meanwhile.
    let levels = ["site", "shop", "web", "storage"];
    let mut counted = Vec::new();
    for name in levels {
        wait_for_start(&cluster, name, 2);
        counted.push(starts(&cluster, name));
    }
    assert!(counted.is_sorted(), "{levels:?}: {counted:?}");
    assert_eq!(counted[3], 6);
    cluster.wait_until_run(&levels);
    assert_eq!(cluster.engine.only_container("log"), log);
}

// [itest->swdd~agent-restarts-with-dependencies~1]
#[test]
fn mode_without_the_dependency_stops_followers_until_it_returns() {
    let mut cluster = Cluster::prepare();
    cluster.server_config = "mode_config = 'mode'".to_owned();
    cluster.start_all(&["agent_A", "agent_B"]);
    let mut all = following("run");
    all[0] = workload("storage", "run").tagged("modes", "drive");
    cluster.apply(&(manifest(&all) + "configs: {mode: drive}\n"));
    wait_for_starts(&cluster, 1);
    cluster.ank(&["mode", "--new", "park", "--no-wait"]);
    cluster.wait_for_state("storage", "NotScheduled");
    wait_until_stopped(&cluster);
    let output = cluster.ank(&["mode", "drive"]);
    assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
    wait_for_starts(&cluster, 2);
    assert_eq!(starts(&cluster, "storage"), 2);
}

// [itest->swdd~agent-restarts-with-dependencies~1]
// [stest->swdd~server-stops-workloads~1]
#[test]
fn stop_of_the_dependency_stops_followers_until_its_start() {
    let cluster = cluster(|_| ());
    let output = cluster.ank(&["stop", "storage"]);
    assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
    cluster.wait_for_state("storage", "NotScheduled");
    wait_until_stopped(&cluster);
    cluster.ank(&["start", "storage"]).success();
    wait_for_starts(&cluster, 2);
    assert_eq!(starts(&cluster, "storage"), 2);
}

/// The server restarts all that need it, also `log`, which has no `restartWith`.
// [itest->swdd~agent-restarts-with-dependencies~1]
#[test]
fn restart_of_the_dependency_restarts_all_only_once() {
    let cluster = cluster(|_| ());
    let output = cluster.ank(&["restart", "storage"]).success();
    let first = "Restarting 'log', 'shop', 'storage', 'web'.\n";
    assert!(output.starts_with(first), "{output}");
    cluster.wait_until_run(&["storage", "web", "shop", "log"]);
    // The last start comes after all that an agent could do before.
    cluster.engine.finish("storage", 1);
    for name in ["storage", "web", "shop"] {
        wait_for_start(&cluster, name, 3);
        assert_eq!(starts(&cluster, name), 3, "{name}");
    }
    assert_eq!(starts(&cluster, "log"), 2);
}

// [itest->swdd~agent-restarts-with-dependencies~1]
#[test]
fn prune_of_the_dependency_stops_followers_until_it_is_back() {
    let cluster = cluster(|_| ());
    let all = following("run");
    apply(&cluster, &["--prune", "--no-wait"], &all[1..]);
    cluster.wait_until_gone("storage");
    wait_until_stopped(&cluster);
    cluster.run(&all);
    wait_for_starts(&cluster, 2);
}

// [itest->swdd~agent-restarts-with-dependencies~1]
#[test]
fn prune_that_is_rolled_back_starts_followers_once_more() {
    let cluster = cluster(|_| ());
    let mut new = following("run");
    new[0] = guarded("other", "run", NEVER);
    apply(&cluster, &["--prune", "--no-wait"], &new);
    cluster.wait_until_gone("storage");
    wait_until_stopped(&cluster);
    cluster.wait_for_state("other", "Running(Ok)");
    cluster.engine.finish("other", 3);
    wait_for_phase(&cluster, "UNDONE");
    cluster.wait_until_gone("other");
    wait_for_starts(&cluster, 2);
}
