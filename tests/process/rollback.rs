//! `ank apply --rollback`: updates that fail are undone by `ank`, whatever the server does.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use crate::support::{Cluster, Output, manifest, wait_until, workload};

fn apply(cluster: &Cluster, text: &str) -> Output {
    cluster.ank_with_input(&["apply", "--rollback", "-"], text)
}

fn desired(cluster: &Cluster) -> String {
    cluster
        .ank(&["get", "state", "-o", "json", "desiredState"])
        .success()
}

/// Asserts that the update was undone for this reason, and that everything is as it was before.
#[track_caller]
fn assert_undone(cluster: &Cluster, output: &Output, before: &str, why: &str) {
    let expected = format!(
        "warn: the update failed: {why}\n\
         error: the update failed and was rolled back\n\
         hint: the desired state is as it was before; correct the manifest and apply it again\n"
    );
    assert_eq!(
        (output.code, output.stderr.as_str()),
        (5, expected.as_str()),
        "{}",
        output.stdout
    );
    assert!(
        output.stdout.contains("\nRolling back the update.\n"),
        "{}",
        output.stdout
    );
    assert_eq!(desired(cluster), before);
}

#[test]
fn update_with_a_failing_workload_is_rolled_back_whole() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("web", "run").tag("old"), workload("db", "run")]);
    let (before, (_, db)) = (desired(&cluster), cluster.engine.only_container("db"));
    let new = manifest(&[workload("web", "exit3"), workload("extra", "run")]);
    let output = apply(&cluster, &new);
    assert_undone(
        &cluster,
        &output,
        &before,
        "web: Failed(ExecFailed): 'Exit code: '3''",
    );
    cluster.wait_for_state("web", "Running(Ok)");
    assert_eq!(cluster.engine.containers_of("web")[0]["Image"], "run");
    cluster.wait_until_gone("extra");
    assert_eq!(
        cluster.engine.only_container("db").1,
        db,
        "others are left alone"
    );
}

#[test]
fn an_update_that_cannot_be_started_is_undone() {
    let mut cluster = Cluster::prepare();
    cluster.agent_config = "retry_limit = 1".to_owned();
    cluster.start_all(&["agent_A"]);
    cluster.engine.script(&serde_json::json!([
        { "command": "run", "image": "missing", "exit": 125, "stderr": "Error: no such image" }
    ]));
    cluster.run(&[workload("web", "run")]);
    let before = desired(&cluster);
    let output = apply(&cluster, &manifest(&[workload("web", "missing")]));
    assert_eq!(output.code, 5, "{}{}", output.stdout, output.stderr);
    let why = "warn: the update failed: web: Pending(StartingFailed): 'No more retries: ";
    assert!(output.stderr.starts_with(why), "{}", output.stderr);
    assert_eq!(desired(&cluster), before);
    cluster.wait_for_state("web", "Running(Ok)");
}

#[test]
fn a_config_whose_users_fail_is_put_back() {
    let cluster = Cluster::start(&["agent_A"]);
    let text = "apiVersion: v1\nworkloads:\n  web: {agent: agent_A, runtime: podman, configs: {i: image}, \
                runtimeConfig: 'image: {{i}}'}\nconfigs: {image: run}\n";
    cluster.ank_with_input(&["apply", "-"], text).success();
    let before = desired(&cluster);
    let output = apply(&cluster, "apiVersion: v1\nconfigs: {image: exit4}\n");
    assert_undone(
        &cluster,
        &output,
        &before,
        "web: Failed(ExecFailed): 'Exit code: '4''",
    );
    cluster.wait_for_state("web", "Running(Ok)");
}

#[test]
fn failing_dependent_of_a_changed_workload_rolls_back() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[
        workload("db", "run"),
        workload("web", "run").after("db", "ADD_COND_RUNNING"),
    ]);
    let before = desired(&cluster);
    cluster.write(
        "db.yaml",
        &manifest(&[workload("db", "run").config("commandArgs: [new]")]),
    );
    let mut update = cluster.start_ank(&["apply", "--rollback", "db.yaml"]);
    wait_until("the update waits for the end of 'web'", || {
        update.stdout().contains("waits for 'web' to end")
    });
    cluster.engine.finish("web", 7);
    wait_until("ank ends", || !update.is_running());
    assert!(
        update
            .stderr()
            .starts_with("warn: the update failed: web: Failed(ExecFailed): 'Exit code: '7''\n")
    );
    assert_eq!(desired(&cluster), before);
}

#[test]
fn good_update_ends_after_ten_seconds_of_running() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("web", "run")]);
    let new = manifest(&[workload("web", "run").config("commandArgs: [new]")]);
    let begin = std::time::Instant::now();
    let stdout = apply(&cluster, &new).success();
    assert!(begin.elapsed().as_secs() >= 10, "it is not good before");
    assert!(
        stdout.contains("Running(Ok)") && !stdout.contains("Rolling back"),
        "{stdout}"
    );
    cluster.write("new.yaml", &new);
    assert_eq!(
        cluster.ank(&["diff", "new.yaml"]).success(),
        "No differences.\n"
    );
}

#[test]
fn a_new_workload_that_fails_is_deleted_again() {
    let cluster = Cluster::start(&["agent_A"]);
    let before = desired(&cluster);
    let output = apply(&cluster, &manifest(&[workload("job", "exit1")]));
    assert_undone(
        &cluster,
        &output,
        &before,
        "job: Failed(ExecFailed): 'Exit code: '1''",
    );
    cluster.wait_until_gone("job");
}

#[test]
fn an_update_that_the_server_refuses_is_not_undone() {
    let cluster = Cluster::start(&["agent_A"]);
    let output = apply(
        &cluster,
        &manifest(&[workload("a", "run").after("a", "ADD_COND_RUNNING")]),
    );
    assert_eq!((output.code, output.stdout.as_str()), (1, ""));
    assert!(
        output.stderr.starts_with("error: SetState failed with: "),
        "{}",
        output.stderr
    );
}

/// The bad one is set back without waiting, and applied again before it has ended.
#[test]
fn an_update_right_after_it_was_set_back_was_not_judged() {
    let mut cluster = Cluster::start(&["agent_A"]);
    let good = manifest(&[workload("web", "run")]);
    cluster.apply(&good);
    cluster.wait_for_state("web", "Running(Ok)");
    let before = desired(&cluster);
    cluster.write(
        "bad.yaml",
        &manifest(&[workload("web", "run").config("commandArgs: [bad]")]),
    );
    cluster.ank(&["apply", "bad.yaml"]).success();
    cluster.engine.script(
        &serde_json::json!([{ "command": "stop", "workload": "web", "times": 1, "hold": "stop" }]),
    );
    cluster
        .ank_with_input(&["apply", "--no-wait", "-"], &good)
        .success();
    let mut update = cluster.start_ank(&["apply", "--rollback", "bad.yaml"]);
    // To the bad one, back to the good one, to the bad one again.
    wait_until("the agent knows three updates", || {
        let log = cluster.agent("agent_A").stderr();
        log.matches("Updating workload 'web'.").count() == 3
    });
    cluster.engine.release("stop");
    wait_until("the bad one runs again", || {
        let starts = cluster.engine.calls_of("run", "bad");
        starts.len() == 2 && starts[1].exit == Some(0)
    });
    cluster.engine.finish("web", 7);
    wait_until("ank ends", || !update.is_running());
    let expected = "warn: the update failed: web: Failed(ExecFailed): 'Exit code: '7''\n";
    assert!(
        update.stderr().starts_with(expected),
        "{}{}",
        update.stdout(),
        update.stderr()
    );
    assert_eq!(desired(&cluster), before);
}
