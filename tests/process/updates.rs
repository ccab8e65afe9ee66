//! Guarded updates seen from the command line: waiting for their ends, `ank get updates`,
//! `ank rollback`, exit codes.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use crate::support::manifest::Workload;
use crate::support::{Cluster, Output, manifest, table, workload};

/// A workload whose updates the server judges.
fn guarded(name: &str, image: &str, update: &str) -> Workload {
    workload(name, image).config(&format!(
        "lifecycle: {{ update: {{ healthyMs: 2000, deadlineMs: 1200000, {update} }} }}"
    ))
}

fn apply(cluster: &Cluster, options: &[&str], workloads: &[Workload]) -> Output {
    let arguments: Vec<&str> = ["apply", "-"].iter().chain(options).copied().collect();
    cluster.ank_with_input(&arguments, &manifest(workloads))
}

/// Number, phase, names and info of each update, and what stands on standard error.
fn updates(cluster: &Cluster) -> (Vec<[String; 4]>, String) {
    let output = cluster.ank(&["get", "updates"]);
    assert_eq!(output.code, 0, "{}", output.stderr);
    // The parser looks for a heading with this word.
    let text = output.stdout.replacen("PHASE", "PNAME", 1);
    let rows = table::parse(&text).into_iter().map(|cells| {
        let [id, phase, accepted, names, info] =
            <[String; 5]>::try_from(cells).expect("five columns");
        assert!(
            accepted.len() == 20 && accepted.ends_with('Z'),
            "{accepted}"
        );
        [id, phase, names, info]
    });
    (rows.collect(), output.stderr)
}

#[track_caller]
fn assert_ended(output: &Output, code: i32, stderr: &str) {
    assert_eq!(
        (output.code, output.stderr.as_str()),
        (code, stderr),
        "{}",
        output.stdout
    );
}

// [stest->swdd~server-rolls-back-updates~1]
#[test]
fn a_good_update_is_waited_for_listed_and_rolled_back() {
    let mut cluster = Cluster::prepare();
    cluster.server_config = format!("state_dir = '{}'", cluster.folder().join("state").display());
    cluster.start_all(&["agent_A"]);
    cluster.run(&[workload("web", "run")]);
    let before = cluster.ank(&["get", "state", "desiredState"]).success();
    let stdout = apply(
        &cluster,
        &[],
        &[guarded("web", "run", ""), guarded("extra", "run", "")],
    )
    .success();
    assert!(stdout.ends_with("\nUpdate 1 is good.\n"), "{stdout}");
    let row = |id: &str, phase: &str, names: &str| [id, phase, names, ""].map(str::to_owned);
    assert_eq!(
        updates(&cluster),
        (vec![row("1", "GOOD", "extra, web")], String::new())
    );

    let stdout = cluster.ank(&["rollback"]).success();
    let named = "Rolling back update 1: workloads 'extra', 'web'.\n";
    assert!(
        stdout.starts_with(&format!(
            "{named}Waiting for workload(s) to reach desired states"
        )),
        "{stdout}"
    );
    assert_eq!(
        cluster.ank(&["get", "state", "desiredState"]).success(),
        before
    );
    cluster.wait_until_gone("extra");
    let again = cluster.ank(&["rollback", "1"]);
    let refused = "error: workload 'extra' was changed after update 1\n\
                   hint: nothing was changed; 'ank get updates' lists the updates\n";
    assert_ended(&again, 1, refused);
    assert_eq!(
        cluster.ank(&["get", "state", "desiredState"]).success(),
        before
    );
}

#[test]
fn failed_update_ends_with_5_and_is_refused_unless_forced() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("web", "run")]);
    let before = cluster.ank(&["get", "state", "desiredState"]).success();
    let bad = [guarded("web", "exit3", "onFailure: ROLLBACK")];
    let undone = |number: u8| {
        format!(
            "error: update {number} failed and was rolled back: web: Failed(ExecFailed): 'Exit code: '3''\n\
             hint: correct it and send it again; 'ank apply --force' tries the same again\n"
        )
    };
    assert_ended(&apply(&cluster, &[], &bad), 5, &undone(1));
    assert_eq!(
        cluster.ank(&["get", "state", "desiredState"]).success(),
        before
    );
    let runs = cluster.workload("web").map(|row| row.state);
    assert_eq!(
        runs.as_deref(),
        Some("Running(Ok)"),
        "the old one runs when the command ends"
    );
    let refused = "error: SetState failed with: Update rejected: it is the same as update 1, which was \
                   rolled back: web: Failed(ExecFailed): 'Exit code: '3''\n\
                   hint: nothing was changed; 'ank apply --force' tries it again\n";
    assert_ended(&apply(&cluster, &[], &bad), 8, refused);
    assert_ended(&apply(&cluster, &["--force"], &bad), 5, &undone(2));
    // With '--rollback' the server evaluates its guarded updates.
    assert_ended(
        &apply(&cluster, &["--force", "--rollback"], &bad),
        5,
        &undone(3),
    );
    let (rows, warning) = updates(&cluster);
    let why = "web: Failed(ExecFailed): 'Exit code: '3''";
    assert_eq!(
        rows.last().map(|row| row.each_ref().map(String::as_str)),
        Some(["3", "UNDONE", "web", why])
    );
    assert!(
        warning.starts_with("warn: the server keeps updates in memory: "),
        "{warning}"
    );
    let none = cluster.ank(&["rollback"]);
    assert_ended(
        &none,
        1,
        "error: the newest update, 3, was rolled back: what was there before it is \
         active\n\
         hint: no update in 'ank get updates' is open, GOOD or KEPT\n",
    );
}

#[test]
fn kept_failure_is_a_warning_or_an_error_by_option() {
    let cluster = Cluster::start(&["agent_A"]);
    let kept = "update 1 is kept, though not all of it is healthy: web: Failed(ExecFailed): 'Exit code: '3''\n";
    let output = apply(&cluster, &[], &[guarded("web", "exit3", "onFailure: KEEP")]);
    assert_ended(&output, 0, &format!("warn: {kept}"));
    let other = guarded("web", "exit3", "onFailure: KEEP").config("commandArgs: [other]");
    let output = apply(&cluster, &["--fail-on-error"], &[other]);
    let kept = kept.replace("update 1", "update 2");
    assert_ended(
        &output,
        3,
        &format!("error: {kept}hint: 'ank rollback' rolls it back\n"),
    );
}

#[test]
fn an_open_update_is_listed_with_what_it_waits_for() {
    let cluster = Cluster::start(&["agent_A"]);
    let workloads = [
        guarded("web", "run", "").after("nobody", "ADD_COND_RUNNING"),
        guarded("far", "run", "").on("agent_Z"),
    ];
    let output = apply(&cluster, &["--wait-timeout", "1s"], &workloads);
    assert_eq!(output.code, 4, "{}", output.stderr);
    let end = "error: gave up waiting after '1s': update 1 is open\n\
               hint: the update continues; follow it with 'ank get updates'\n";
    assert!(output.stderr.ends_with(end), "{}", output.stderr);
    let (rows, _) = updates(&cluster);
    assert_eq!(
        (rows[0][1].as_str(), rows[0][2].as_str()),
        ("TRIAL", "far, web")
    );
    cluster.wait_for("it is shown for what it waits", || {
        let (rows, _) = updates(&cluster);
        (rows[0][3].starts_with("waits for ") && rows[0][3].contains("agent agent_Z")).then_some(())
    });
    let candidates = cluster.ank(&["rollback", "7"]);
    assert_ended(
        &candidates,
        1,
        "error: update 7 does not exist\nhint: 'ank get updates' lists them\n",
    );
}

#[test]
fn agents_that_are_away_are_named_and_not_waited_for() {
    let cluster = Cluster::start(&["agent_A"]);
    let output = apply(
        &cluster,
        &[],
        &[
            guarded("far", "run", "").on("agent_Z"),
            guarded("web", "run", ""),
        ],
    );
    assert_ended(
        &output,
        0,
        "warn: agent 'agent_Z' is not connected; update 1 stays open until its workloads are healthy there\n",
    );
    cluster.wait_for_state("web", "Running(Ok)");
}

#[test]
fn set_run_and_delete_wait_for_their_guarded_updates() {
    let mut cluster = Cluster::prepare();
    cluster.server_config = "update_on_failure = 'rollback'".to_owned();
    cluster.start_all(&["agent_A"]);
    let config = "image: exit3\nlifecycle: { update: { healthyMs: 200, deadlineMs: 1200000 } }";
    let run = [
        "run",
        "workload",
        "web",
        "--runtime",
        "podman",
        "--agent",
        "agent_A",
        "--config",
        config,
    ];
    let undone =
        "error: update 1 failed and was rolled back: web: Failed(ExecFailed): 'Exit code: '3''\n";
    let output = cluster.ank(&run);
    assert!(
        output.code == 5 && output.stderr.starts_with(undone),
        "{}",
        output.stderr
    );
    let state = "desiredState: {apiVersion: v1, workloads: {job: {agent: agent_A, runtime: podman, \
                 runtimeConfig: 'image: exit1'}}}";
    let output =
        cluster.ank_with_input(&["set", "state", "desiredState.workloads.job", "-"], state);
    let undone =
        "error: update 2 failed and was rolled back: job: Failed(ExecFailed): 'Exit code: '1''\n";
    assert!(
        output.code == 5 && output.stderr.starts_with(undone),
        "{}",
        output.stderr
    );
    let stdout = apply(&cluster, &[], &[guarded("db", "run", "")]).success();
    assert!(stdout.ends_with("\nUpdate 3 is good.\n"), "{stdout}");
    let stdout = cluster.ank(&["delete", "workload", "db"]).success();
    assert!(stdout.contains("\nUpdate 4 is good.\n"), "{stdout}");
    cluster.wait_until_gone("db");
}
