//! `ank restart`, `ank apply --restart-dependents` and `restartWith` with the real programs: what
//! stops and starts, in which order, and what is refused.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use crate::support::manifest::Workload;
use crate::support::{Cluster, Recorder, manifest, wait_until, workload};

/// `web` on another agent needs `storage`, and `log` needs neither.
fn vehicle(storage: &str) -> Vec<Workload> {
    vec![
        workload("storage", storage),
        workload("web", "run")
            .on("agent_B")
            .after("storage", "ADD_COND_RUNNING"),
        workload("log", "run"),
    ]
}

fn started() -> Cluster {
    let cluster = Cluster::start(&["agent_A", "agent_B"]);
    cluster.run(&vehicle("run"));
    cluster
}

// [stest->swdd~server-restarts-workloads~1]
#[test]
fn a_restart_stops_dependents_first_and_starts_them_last() {
    let cluster = started();
    let (web, storage, log) = (
        cluster.engine.only_container("web"),
        cluster.engine.only_container("storage"),
        cluster.engine.only_container("log"),
    );
    let output = cluster.ank(&["restart", "storage"]).success();
    assert!(
        output.starts_with("Restarting 'storage', 'web'.\n"),
        "{output}"
    );
    cluster.wait_until_run(&["web", "storage", "log"]);
    assert_ne!(
        (
            cluster.engine.only_container("web"),
            cluster.engine.only_container("storage")
        ),
        (web, storage)
    );
    assert_eq!(cluster.engine.only_container("log"), log);
    assert_eq!(cluster.workloads().len(), 3, "nothing is left of it");
}

#[test]
fn waiting_update_continues_with_a_restart_or_the_option() {
    let cluster = started();
    let waits = cluster.ank_with_input(
        &["--wait-timeout", "1", "apply", "-"],
        &manifest(&vehicle("run:latest")),
    );
    assert_eq!(waits.code, 4, "{}", waits.stderr);
    cluster.ank(&["restart", "storage"]).success();
    cluster.wait_until_run(&["web", "storage"]);
    let output = cluster
        .ank_with_input(
            &["apply", "--restart-dependents", "-"],
            &manifest(&vehicle("run")),
        )
        .success();
    assert!(
        output.starts_with("Restarting 'storage', 'web'.\n"),
        "{output}"
    );
    cluster.wait_until_run(&["web", "storage", "log"]);
}

#[test]
fn what_cannot_be_restarted_is_an_error_with_a_hint() {
    let mut cluster = started();
    let unknown = cluster.ank(&["restart", "storag"]);
    let expected = "error: Workload name 'storag' does not exist.\n\
                    hint: did you mean 'storage'?\n";
    assert_eq!((unknown.code, unknown.stderr.as_str()), (1, expected));
    cluster.kill_agent("agent_B");
    cluster.wait_for_state("web", "AgentDisconnected");
    let away = cluster.ank(&["restart", "storage"]);
    let expected = "error: agent 'agent_B' is not connected, so 'web' cannot be restarted\n\
                    hint: nothing was changed; try again when it is connected\n";
    assert_eq!((away.code, away.stderr.as_str()), (1, expected));
}

/// `web` on another agent follows `storage`, `shop` follows `web`, and `log` only needs it.
pub fn following(storage: &str) -> Vec<Workload> {
    let follows = "lifecycle: { restartWith: DEPENDENCIES }";
    vec![
        workload("storage", storage).restart("ALWAYS"),
        workload("web", "run")
            .on("agent_B")
            .after("storage", "ADD_COND_RUNNING")
            .config(follows),
        workload("shop", "run")
            .after("web", "ADD_COND_RUNNING")
            .config(follows),
        workload("log", "run").after("web", "ADD_COND_RUNNING"),
    ]
}

/// How often containers of the workload were created and started.
pub fn starts(cluster: &Cluster, name: &str) -> usize {
    cluster.engine.calls_of("run", &format!("{name}.")).len()
}

/// Waits until the workload was started this often and runs. Its state may be that from before its
/// end, so the call that starts it must have ended, too. One that was ended does not count.
pub fn wait_for_start(cluster: &Cluster, name: &str, number: usize) {
    wait_until(&format!("start {number} of '{name}'"), || {
        let calls = cluster.engine.calls_of("run", &format!("{name}."));
        let mut later = calls.iter().skip(number - 1);
        later.any(|call| call.exit == Some(0))
    });
    cluster.wait_for_state(name, "Running(Ok)");
}

// [itest->swdd~agent-restarts-with-dependencies~1]
#[test]
fn dependents_restart_once_for_each_start_of_a_crash_loop() {
    let cluster = Cluster::start(&["agent_A", "agent_B"]);
    cluster.run(&following("run"));
    let recorder = Recorder::start(&cluster);
    let log = cluster.engine.only_container("log");
    for crash in 1..=3 {
        cluster.engine.finish("storage", 1);
        for name in ["storage", "web", "shop"] {
            wait_for_start(&cluster, name, crash + 1);
        }
    }
    for name in ["storage", "web", "shop"] {
        assert_eq!(starts(&cluster, name), 4, "{name}");
    }
    assert_eq!(cluster.engine.only_container("log"), log);
    let at = |name: &str, state| recorder.position(name, state);
    assert!(at("storage", "Failed(ExecFailed)") < at("web", "Stopping(RequestedAtRuntime)"));
    assert!(at("storage", "Running(Ok)") < at("web", "Running(Ok)"));
}

// [itest->swdd~agent-restarts-with-dependencies~1]
#[test]
fn an_update_restarts_what_follows_without_an_option() {
    let cluster = Cluster::start(&["agent_A", "agent_B"]);
    cluster.run(&following("run"));
    let diff = cluster.ank_with_input(&["diff", "-"], &manifest(&following("run:latest")));
    assert_eq!(diff.stderr, "", "'web' ends by itself");
    let graph = cluster.ank(&["graph", "shop"]).success();
    assert_eq!(graph.matches("running, restarts").count(), 2, "{graph}");
    let described = cluster.ank(&["describe", "web"]).success();
    assert!(
        described.contains("storage (running, met), restarts with it"),
        "{described}"
    );
    let output = cluster.ank_with_input(&["apply", "-"], &manifest(&following("run:latest")));
    assert_eq!(output.code, 0, "{}", output.stderr);
    for name in ["storage", "web", "shop"] {
        wait_for_start(&cluster, name, 2);
        assert_eq!(starts(&cluster, name), 2, "{name}");
    }
    assert_eq!(starts(&cluster, "log"), 1);
}

// [itest->swdd~agent-restarts-with-dependencies~1]
#[test]
fn new_lives_of_agents_and_server_restart_nobody() {
    let mut cluster = Cluster::start(&["agent_A", "agent_B"]);
    cluster.run(&following("run"));
    let names = ["storage", "web", "shop", "log"];
    for agent in ["agent_A", "agent_B"] {
        cluster.kill_agent(agent);
        cluster.start_agent(agent);
        cluster.wait_for_agents(&["agent_A", "agent_B"]);
        cluster.wait_until_run(&names);
    }
    // The last start comes after all that an agent could do before.
    cluster.engine.finish("storage", 1);
    for name in ["storage", "web", "shop"] {
        wait_for_start(&cluster, name, 2);
        assert_eq!(starts(&cluster, name), 2, "{name}");
    }
    assert_eq!(starts(&cluster, "log"), 1);
}

// [itest->swdd~lifecycle-restart-with-needs-a-dependency~1]
#[test]
fn restart_with_without_a_dependency_is_an_error_with_a_way_out() {
    let cluster = Cluster::start(&["agent_A"]);
    let alone = workload("alone", "run").config("lifecycle: { restartWith: DEPENDENCIES }");
    let output = cluster.ank_with_input(&["apply", "-"], &manifest(&[alone]));
    assert_eq!(output.code, 1, "{}", output.stdout);
    assert!(
        output
            .stderr
            .contains("workload 'alone': lifecycle.restartWith: ")
            && output.stderr.contains("'dependencies'")
            && output.stderr.contains("hint: "),
        "{}",
        output.stderr
    );
}
