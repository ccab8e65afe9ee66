//! `ank restart` and `ank apply --restart-dependents` with the real programs: what stops and
//! starts, in which order, and what is refused.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use crate::support::manifest::Workload;
use crate::support::{Cluster, manifest, workload};

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
