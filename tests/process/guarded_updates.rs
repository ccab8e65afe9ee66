//! Updates that fail with the three programs: running containers and stored state afterwards.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use crate::support::manifest::Workload;
use crate::support::{Cluster, manifest, wait_until, workload};
use std::fs;

/// A workload whose updates are put back when they fail.
fn guarded(name: &str, image: &str, update: &str) -> Workload {
    workload(name, image).config(&format!(
        "lifecycle: {{ update: {{ onFailure: ROLLBACK, {update} }} }}"
    ))
}

fn web(image: &str) -> Workload {
    workload("web", image)
        .on("agent_B")
        .after("db", "ADD_COND_RUNNING")
}

/// Updates by number, as a client reads them.
fn updates(cluster: &Cluster) -> serde_json::Value {
    let output = cluster.ank(&["get", "state", "-o", "json", "updates"]);
    let mut state: serde_json::Value = serde_json::from_str(&output.stdout).unwrap_or_default();
    state["updates"].take()
}

fn wait_for_phase(cluster: &Cluster, number: &str, phase: &str) {
    cluster.wait_for(&format!("update {number} is {phase}"), || {
        (updates(cluster)[number]["phase"] == phase).then_some(())
    });
}

fn desired(cluster: &Cluster) -> String {
    cluster
        .ank(&["get", "state", "-o", "json", "desiredState"])
        .success()
}

/// The images of the containers of a workload.
fn images(cluster: &Cluster, name: &str) -> Vec<String> {
    let containers = cluster.engine.containers_of(name).into_iter();
    containers
        .map(|container| container["Image"].as_str().unwrap_or_default().to_owned())
        .collect()
}

// [stest->swdd~server-judges-guarded-updates~1]
// [stest->swdd~server-undoes-failed-updates~1]
// [stest->swdd~server-remembers-undone-updates~1]
#[test]
fn bad_update_is_rolled_back_and_then_refused() {
    let cluster = Cluster::start(&["agent_A", "agent_B"]);
    cluster.run(&[workload("db", "run"), web("run")]);
    let before = desired(&cluster);
    let bad = manifest(&[
        guarded("db", "exit3", ""),
        web("run:latest"),
        workload("extra", "run"),
    ]);
    cluster.apply(&bad);
    wait_for_phase(&cluster, "1", "UNDONE");
    assert_eq!(
        updates(&cluster)["1"]["reason"],
        "db: Failed(ExecFailed): 'Exit code: '3''"
    );
    assert_eq!(desired(&cluster), before);
    cluster.wait_until_gone("extra");
    cluster.wait_for_all(2, "Running(Ok)");
    for name in ["db", "web"] {
        wait_until("the old one runs alone", || {
            images(&cluster, name) == ["run"]
        });
    }
    let again = cluster.ank_with_input(&["--no-wait", "apply", "-"], &bad);
    let refused = "Update rejected: it is the same as update 1, which was rolled back: db: Failed(ExecFailed)";
    assert!(
        again.code == 8 && again.stderr.contains(refused),
        "{}",
        again.stderr
    );
    assert_eq!(desired(&cluster), before);
}

#[test]
fn update_behind_running_dependents_fails_without_a_stop() {
    let cluster = Cluster::start(&["agent_A", "agent_B"]);
    cluster.run(&[workload("db", "run"), web("run")]);
    let pids = ["db", "web"].map(|name| cluster.engine.only_container(name).0);
    cluster.apply(&manifest(&[guarded(
        "db",
        "run:latest",
        "healthyMs: 100, deadlineMs: 6000",
    )]));
    wait_for_phase(&cluster, "1", "UNDONE");
    assert_eq!(
        updates(&cluster)["1"]["reason"],
        "db: not healthy within 6 s: waits for 'web' to stop"
    );
    cluster.wait_for_all(2, "Running(Ok)");
    assert_eq!(
        ["db", "web"].map(|name| cluster.engine.only_container(name).0),
        pids
    );
}

/// A server that keeps its state goes on judging, and the third time that it is lost is one too
/// many.
// [stest->swdd~server-keeps-guarded-updates~1]
#[test]
fn repeatedly_killed_server_rolls_back_the_open_update() {
    let mut cluster = Cluster::prepare();
    let folder = cluster.folder().join("state");
    cluster.server_config = format!("state_dir = '{}'", folder.display());
    let stored = || fs::read_to_string(folder.join("desired-state.json")).unwrap_or_default();
    cluster.start_all(&["agent_A"]);
    cluster.run(&[workload("db", "run")]);
    let before = desired(&cluster);
    let update = manifest(&[guarded(
        "db",
        "run:latest",
        "healthyMs: 600000, deadlineMs: 1200000",
    )]);
    cluster.apply(&update);
    for losses in 1..3 {
        wait_until("the update is stored", || {
            stored().contains(r#""phase":"TRIAL""#)
        });
        cluster.kill_server();
        cluster.start_server(&[]);
        assert_eq!(updates(&cluster)["1"]["losses"], losses);
        wait_until("the loss is stored", || {
            stored().contains(&format!("\"losses\":{losses}"))
        });
        cluster.wait_for_agents(&["agent_A"]);
        cluster.wait_for_state("db", "Running(Ok)");
        // The old one is removed after the start of the new one.
        cluster.wait_for("only the new one is left", || {
            (images(&cluster, "db") == ["run:latest"]).then_some(())
        });
    }
    cluster.kill_server();
    cluster.start_server(&[]);
    assert_eq!(updates(&cluster)["1"]["phase"], "UNDONE");
    assert_eq!(updates(&cluster)["1"]["keptIn"], "DISK");
    assert_eq!(desired(&cluster), before);
    cluster.wait_for("the old one runs", || {
        (images(&cluster, "db") == ["run"]).then_some(())
    });
    let again = cluster.ank_with_input(&["--no-wait", "apply", "-"], &update);
    assert!(
        again
            .stderr
            .contains("same as update 1, which was rolled back: db: 3 losses of the server"),
        "{}",
        again.stderr
    );
}

#[test]
fn restart_without_state_dir_uses_the_manifest() {
    let mut cluster = Cluster::prepare();
    let arguments = [
        "--startup-manifest",
        &cluster.start_with_manifest(&manifest(&[workload("db", "run")])),
    ]
    .map(str::to_owned);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    cluster.wait_for_state("db", "Running(Ok)");
    cluster.apply(&manifest(&[guarded(
        "db",
        "run:latest",
        "healthyMs: 600000, deadlineMs: 1200000",
    )]));
    wait_for_phase(&cluster, "1", "TRIAL");
    assert_eq!(updates(&cluster)["1"]["keptIn"], "MEMORY");
    cluster.kill_server();
    cluster.start_server(&arguments);
    assert_eq!(updates(&cluster), serde_json::json!({}));
    cluster.wait_for("the one of the manifest runs", || {
        (images(&cluster, "db") == ["run"]).then_some(())
    });
}

#[test]
fn with_the_setting_every_update_is_judged_and_a_good_one_ends() {
    let mut cluster = Cluster::prepare();
    cluster.server_config = "update_on_failure = 'rollback'".to_owned();
    cluster.start_all(&["agent_A"]);
    cluster.run(&[workload("db", "run")
        .config("lifecycle: { update: { healthyMs: 100, deadlineMs: 1200000 } }")]);
    wait_for_phase(&cluster, "1", "GOOD");
    cluster.apply(&manifest(&[workload("db", "exit1")]));
    wait_for_phase(&cluster, "2", "UNDONE");
    cluster.wait_for_state("db", "Running(Ok)");
    let log = cluster.server().stderr();
    for line in [
        "INFO",
        "Update 1 (db) switched; its health window has begun.",
        "Update 1 (db) passed its health window after ",
        "Update 2 (db) failed and is rolled back: db: ",
    ] {
        assert!(log.contains(line), "{line}: {log}");
    }
}
