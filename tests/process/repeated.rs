//! Commands that are repeated after they were interrupted: the second one ends as the first would
//! have ended.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use crate::support::process::exit_code;
use crate::support::{Cluster, LIMIT, Process, manifest, wait_until, workload};

/// How long `ank` waits for what does not come. Any time will do.
const NOT_LONG: &str = "1";

fn ended(process: &mut Process) -> i32 {
    exit_code(process.wait(LIMIT).expect("ank ends"))
}

/// Starts a command and waits until it waits for workloads.
fn start_waiting(cluster: &Cluster, arguments: &[&str]) -> Process {
    let process = cluster.start_ank(arguments);
    wait_until("ank waits", || {
        process.stdout().contains("Waiting for workload(s)")
    });
    process
}

// [stest->swdd~cli-repeated-command-has-the-same-result~1]
#[test]
fn repeated_apply_of_failed_workload_ends_with_3() {
    let mut cluster = Cluster::prepare();
    cluster.agent_config = "retry_limit = 1".to_owned();
    cluster.start_all(&["agent_A"]);
    // It never runs: a container that runs for a moment may be seen, which would end the wait.
    cluster
        .engine
        .script(&serde_json::json!([{ "command": "run", "exit": 125, "stderr": "Error: no" }]));
    let text = manifest(&[workload("web", "run")]);
    let first = cluster.ank_with_input(&["apply", "--fail-on-error", "-"], &text);
    let again = cluster.ank_with_input(&["apply", "--fail-on-error", "-"], &text);
    assert_eq!((first.code, again.code), (3, 3), "{}", again.stderr);
    let expected = "error: the update was accepted, but 1 workload failed\n";
    assert!(
        first.stderr.contains(expected) && again.stderr.contains(expected),
        "{}",
        again.stderr
    );
    assert_eq!(
        again.stdout, "Apply successful. No workloads updated.\n",
        "nothing is waited for"
    );
}

#[test]
fn apply_killed_while_it_waits_is_repeated_with_its_result() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster
        .engine
        .script(&serde_json::json!([{ "command": "run", "hang": true }]));
    let file = cluster.write("web.yaml", &manifest(&[workload("web", "run")]));
    let file = file.to_str().expect("a plain name");
    start_waiting(&cluster, &["apply", "--fail-on-error", file]).kill();
    let again = cluster.ank(&["apply", "--fail-on-error", "--wait-timeout", NOT_LONG, file]);
    assert_eq!(again.code, 4, "{}", again.stderr);
    assert!(
        again
            .stderr
            .contains("error: gave up waiting after '1s' for 1 workload\n"),
        "{}",
        again.stderr
    );
}

#[test]
fn apply_killed_during_the_trial_is_repeated_with_its_verdict() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("web", "run")]);
    let block =
        "lifecycle: { update: { onFailure: ROLLBACK, healthyMs: 600000, deadlineMs: 1200000 } }";
    let file = cluster.write(
        "web.yaml",
        &manifest(&[workload("web", "run:latest").config(block)]),
    );
    let arguments = [
        "apply",
        "--fail-on-error",
        file.to_str().expect("a plain name"),
    ];
    start_waiting(&cluster, &arguments).kill();
    let mut again = start_waiting(&cluster, &arguments);
    cluster.wait_for("the update is on trial", || {
        cluster
            .ank(&["get", "updates"])
            .stdout
            .contains("TRIAL")
            .then_some(())
    });
    cluster.wait_for_row("web", "runs alone", |row| row.state == "Running(Ok)");
    wait_until("only the new one is left", || {
        cluster.engine.containers_of("web").len() == 1
    });
    cluster.engine.finish("web", 3);
    assert_eq!(ended(&mut again), 5, "{}", again.stderr());
}

#[test]
fn delete_killed_while_it_waits_is_repeated_with_its_result() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("web", "run")]);
    cluster
        .engine
        .script(&serde_json::json!([{ "command": "stop", "hang": true }]));
    start_waiting(&cluster, &["delete", "workload", "web"]).kill();
    let again = cluster.ank(&["delete", "workload", "--wait-timeout", NOT_LONG, "web"]);
    assert_eq!(again.code, 4, "{}{}", again.stdout, again.stderr);
}

#[test]
fn apply_with_a_limit_waits_for_an_agent_that_connects_later() {
    let mut cluster = Cluster::start(&[]);
    let file = cluster.write("web.yaml", &manifest(&[workload("web", "run")]));
    let file = file.to_str().expect("a plain name");
    let without_limit = cluster.ank(&["apply", file]);
    assert_eq!(
        (without_limit.code, without_limit.stdout.contains("Waiting")),
        (0, false),
        "{}",
        without_limit.stdout
    );
    let late = cluster.ank(&["apply", "--wait-timeout", NOT_LONG, file]);
    assert_eq!(late.code, 4, "{}", late.stderr);
    assert!(
        late.stderr.contains("agent 'agent_A' is not connected"),
        "{}",
        late.stderr
    );
    let mut waiting = start_waiting(&cluster, &["apply", "--wait-timeout", "600", file]);
    cluster.start_agent("agent_A");
    assert_eq!(ended(&mut waiting), 0, "{}", waiting.stderr());
    assert_eq!(
        cluster.workload("web").map(|row| row.state).as_deref(),
        Some("Running(Ok)")
    );
}
