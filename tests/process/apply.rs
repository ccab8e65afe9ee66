//! `ank apply`, `delete`, `run` and `set state`: their effects and, byte for byte, their output.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use crate::support::process::clean_command;
use crate::support::{Cluster, manifest, table, with_enough_time, workload};

const WAITING: &str = "Successfully applied the manifest(s).\n\
                       Waiting for workload(s) to reach desired states (press Ctrl+C to interrupt).\n\
                       \n";
const UNCHANGED: &str = "Apply successful. No workloads updated.\n";

/// The frames after the two status lines. Every frame ends in an empty line.
#[track_caller]
fn frames(stdout: &str) -> Vec<String> {
    let rest = stdout
        .strip_prefix(WAITING)
        .unwrap_or_else(|| panic!("other status lines: {stdout:?}"));
    let rest = rest
        .strip_suffix("\n\n")
        .unwrap_or_else(|| panic!("no empty line at the end: {stdout:?}"));
    rest.split("\n\n")
        .map(|frame| format!("{frame}\n"))
        .collect()
}

#[track_caller]
fn last_frame(stdout: &str) -> String {
    frames(stdout).pop().expect("at least one frame")
}

// [itest->swdd~agent-workload-control-loop-executes-create~3]
#[test]
fn apply_waits_until_running_and_ends_with_the_final_table() {
    let cluster = Cluster::start(&["agent_A"]);
    let stdout = cluster
        .ank_with_input(&["apply", "-"], &manifest(&[workload("w1", "run")]))
        .success();
    let frames = frames(&stdout);
    let done = "WORKLOAD NAME   AGENT     RUNTIME     EXECUTION STATE   ADDITIONAL INFO\n\
                w1              agent_A   podman      Running(Ok)                      \n";
    assert_eq!(frames.last().map(String::as_str), Some(done));
    for frame in &frames {
        let heading = frame.lines().next().unwrap_or_default();
        assert!(
            heading.starts_with("WORKLOAD NAME   AGENT     RUNTIME     EXECUTION STATE"),
            "{frame}"
        );
    }
    assert_eq!(cluster.engine.calls_of("run", "w1.").len(), 1);
}

// [stest->swdd~cli-refuses-what-no-agent-can-run~1]
#[test]
fn config_that_no_agent_can_run_stops_nothing() {
    let cluster = Cluster::start(&["agent_A"]);
    let good = manifest(&[workload("w1", "run")]);
    cluster.ank_with_input(&["apply", "-"], &good).success();
    let container = cluster.engine.only_container("w1");
    let bad = good.replace("image:", "imag:");
    assert_ne!(bad, good);
    let run = [
        "run",
        "workload",
        "w1",
        "--runtime",
        "podman",
        "--agent",
        "agent_A",
        "--config",
        "imag: x",
    ];
    for words in [
        &["apply", "-"][..],
        &["diff", "-"],
        &["validate", "-"],
        &run,
    ] {
        let output = cluster.ank_with_input(words, &bad);
        assert_eq!(output.code, 1, "{words:?}: {output:?}");
        let cause = "cannot be run: missing field `image`";
        assert!(output.stderr.contains(cause), "{words:?}: {output:?}");
    }
    // The applied workload is still desired and runs.
    let again = cluster.ank_with_input(&["apply", "-"], &good).success();
    assert_eq!(again, UNCHANGED);
    assert_eq!(cluster.engine.only_container("w1"), container);
    // Without the checks of manifests it is sent, as any client may do.
    let state = "{desiredState: {apiVersion: v1, workloads: {w1: {runtimeConfig: 'imag: x'}}}}";
    let mask = "desiredState.workloads.w1.runtimeConfig";
    let set = cluster.ank_with_input(&["--no-wait", "set", "state", mask, "-"], state);
    assert_eq!(set.code, 0, "{set:?}");
    cluster.wait_for_state("w1", "Pending(StartingFailed)");
}

#[test]
fn applying_the_same_manifest_again_changes_nothing() {
    let cluster = Cluster::start(&["agent_A"]);
    let text = manifest(&[workload("w1", "run")]);
    cluster.ank_with_input(&["apply", "-"], &text).success();
    let (pid, id) = cluster.engine.only_container("w1");
    assert_eq!(
        cluster.ank_with_input(&["apply", "-"], &text).success(),
        UNCHANGED
    );
    assert_eq!(cluster.engine.only_container("w1"), (pid, id));
    assert_eq!(
        cluster
            .ank_with_input(&["apply", "-"], "apiVersion: v1\n")
            .success(),
        "Nothing to update.\n"
    );
}

#[test]
fn no_wait_prints_counts_and_does_not_wait() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster
        .engine
        .script(&serde_json::json!([{ "command": "run", "hang": true }]));
    let text = manifest(&[workload("w1", "run")]);
    assert_eq!(
        cluster
            .ank_with_input(&["--no-wait", "apply", "-"], &text)
            .success(),
        "Accepted: 1 added, 0 changed, 0 deleted.\n"
    );
    cluster.wait_for_state("w1", "Pending(Starting)");
}

#[test]
fn quiet_waits_but_prints_nothing() {
    let cluster = Cluster::start(&["agent_A"]);
    assert_eq!(
        cluster
            .ank_with_input(&["-q", "apply", "-"], &manifest(&[workload("w1", "run")]))
            .success(),
        ""
    );
    let state = cluster.workload("w1").map(|row| row.state);
    assert_eq!(state.as_deref(), Some("Running(Ok)"), "it waited");
}

#[test]
fn quiet_still_prints_what_was_asked_for_and_errors() {
    let cluster = Cluster::start(&["agent_A"]);
    let table = cluster.ank(&["-q", "get", "workloads"]).success();
    assert_eq!(
        table,
        "WORKLOAD NAME   AGENT   RUNTIME   EXECUTION STATE   ADDITIONAL INFO\n"
    );
    let failed = cluster.ank(&["-q", "apply", "nosuch.yaml"]);
    assert_eq!(failed.code, 1);
    assert!(
        failed
            .stderr
            .starts_with("error: File 'nosuch.yaml' not found!"),
        "{}",
        failed.stderr
    );
}

#[test]
fn several_files_are_one_update() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.write(
        "a.yaml",
        &manifest(&[workload("w1", "run").after("w2", "ADD_COND_RUNNING")]),
    );
    cluster.write(
        "b.yaml",
        &manifest(&[workload("w2", "run"), workload("w3", "exit0")]),
    );
    let stdout = cluster.ank(&["apply", "a.yaml", "b.yaml"]).success();
    let rows = table::workloads(&last_frame(&stdout));
    let states: Vec<(&str, &str)> = rows
        .iter()
        .map(|row| (row.name.as_str(), row.state.as_str()))
        .collect();
    assert!(
        matches!(
            states[..],
            [
                ("w1", "Running(Ok)"),
                ("w2", "Running(Ok)"),
                ("w3", "Running(Ok)" | "Succeeded(Ok)")
            ]
        ),
        "{stdout}"
    );
}

#[test]
fn stdin_is_the_only_input_when_it_comes_first() {
    let cluster = Cluster::start(&["agent_A"]);
    let stdout = cluster
        .ank_with_input(
            &["--no-wait", "apply", "-", "ignored.yaml"],
            &manifest(&[workload("w1", "run")]),
        )
        .success();
    assert_eq!(stdout, "Accepted: 1 added, 0 changed, 0 deleted.\n");
    let output = cluster.ank_with_input(&["apply", "--agent", "agent_A", "missing.yaml", "-"], "");
    assert_eq!(
        output.stderr.lines().next(),
        Some("error: File 'missing.yaml' not found!")
    );
}

#[test]
fn apply_d_deletes_what_the_manifest_names_and_nothing_else() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster
        .ank_with_input(
            &["apply", "-"],
            &manifest(&[workload("w1", "run"), workload("w2", "run")]),
        )
        .success();
    let stdout = cluster
        .ank_with_input(&["apply", "-d", "-"], &manifest(&[workload("w1", "run")]))
        .success();
    let last = last_frame(&stdout);
    let row = table::workloads(&last)
        .pop()
        .expect("the deleted workload has a row");
    assert_eq!(
        (row.name.as_str(), row.state.as_str()),
        ("w1", "Removed"),
        "{last}"
    );
    let left: Vec<String> = cluster
        .workloads()
        .into_iter()
        .map(|row| row.name)
        .collect();
    assert_eq!(left, ["w2"]);
    assert!(cluster.engine.containers_of("w1").is_empty());
    assert_eq!(
        cluster
            .ank_with_input(&["apply", "-d", "-"], &manifest(&[workload("w1", "run")]))
            .success(),
        UNCHANGED
    );
}

#[test]
fn delete_waits_until_removed_and_accepts_unknown_names() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster
        .ank_with_input(&["apply", "-"], &manifest(&[workload("w1", "run")]))
        .success();
    let output = cluster.ank(&["delete", "workload", "w1", "nosuch"]);
    let unknown = "warn: workload 'nosuch' does not exist\n";
    assert_eq!((output.code, output.stderr.as_str()), (0, unknown));
    let row = table::workloads(&last_frame(&output.stdout))
        .pop()
        .expect("the deleted workload has a row");
    assert_eq!((row.name.as_str(), row.state.as_str()), ("w1", "Removed"));
    let output = cluster.ank(&["delete", "workload", "nosuch"]);
    assert_eq!(
        (output.code, output.stdout.as_str(), output.stderr.as_str()),
        (0, UNCHANGED, unknown)
    );
}

#[test]
fn update_that_keeps_the_id_ends_for_running_and_waiting() {
    let cluster = Cluster::start(&["agent_A"]);
    let waiting = manifest(&[
        workload("runs", "run"),
        workload("waits", "run").after("never", "ADD_COND_RUNNING"),
    ]);
    cluster
        .ank_with_input(&["--no-wait", "apply", "-"], &waiting)
        .success();
    cluster.wait_for_state("waits", "Pending(WaitingToStart)");
    cluster.wait_for_state("runs", "Running(Ok)");
    let other = [
        workload("runs", "run").restart("ALWAYS"),
        workload("waits", "run").after("runs", "ADD_COND_RUNNING"),
    ];
    let stdout = cluster
        .ank_with_input(&["--wait-timeout", "600", "apply", "-"], &manifest(&other))
        .success();
    let rows = table::workloads(&last_frame(&stdout));
    let states: Vec<_> = rows
        .iter()
        .map(|row| (row.name.as_str(), row.state.as_str()))
        .collect();
    assert_eq!(
        states,
        [("runs", "Running(Ok)"), ("waits", "Running(Ok)")],
        "{stdout}"
    );
}

#[test]
fn agent_option_is_needed_by_workloads_without_an_agent() {
    let cluster = Cluster::start(&["agent_A"]);
    let homeless =
        "apiVersion: v1\nworkloads:\n  w1:\n    runtime: podman\n    runtimeConfig: 'image: run'\n";
    let output = cluster.ank_with_input(&["apply", "-"], homeless);
    assert_eq!((output.code, output.stdout.as_str()), (1, ""));
    let expected = "error: No agent name specified -> use '--agent' option to specify!";
    assert_eq!(output.stderr.lines().next(), Some(expected));

    let elsewhere = manifest(&[workload("w2", "run").on("agent_Z")]);
    cluster
        .ank_with_input(&["apply", "--agent", "agent_A", "-"], homeless)
        .success();
    cluster
        .ank_with_input(&["apply", "--agent", "agent_A", "-"], &elsewhere)
        .success();
    let agents: Vec<String> = cluster
        .workloads()
        .into_iter()
        .map(|row| format!("{} {}", row.name, row.agent))
        .collect();
    assert_eq!(agents, ["w1 agent_A", "w2 agent_A"]);
}

#[test]
fn late_wait_ends_with_the_missing_workloads_and_reasons() {
    let cluster = Cluster::start(&["agent_A"]);
    let both = manifest(&[
        workload("w1", "run").after("w2", "ADD_COND_SUCCEEDED"),
        workload("w2", "run"),
    ]);
    // Until then 'w2' has to run, and 'ank' to see it.
    let (wait, output) = with_enough_time("it is Running(Ok)", |wait| {
        cluster
            .ank_with_input(&["apply", "-d", "-"], &both)
            .success();
        cluster.ank_with_input(&["apply", "-", "--wait-timeout", wait], &both)
    });
    assert_eq!(output.code, 4, "{}{}", output.stdout, output.stderr);
    let row = table::workloads(&output.stderr)
        .into_iter()
        .next()
        .expect("one is missing");
    assert_eq!(
        (row.name.as_str(), row.state.as_str()),
        ("w1", "Pending(WaitingToStart)"),
        "{}",
        output.stderr
    );
    assert_eq!(row.info, "waits for 'w2' to succeed: it is Running(Ok)");
    let end = format!("error: gave up waiting after '{wait}' for 1 workload\n");
    assert!(output.stderr.contains(&end), "{}", output.stderr);
    assert_eq!(
        table::workloads(&last_frame(&output.stdout))[0].info,
        row.info
    );
}

#[test]
fn run_workload_creates_one_workload_with_tags() {
    let cluster = Cluster::start(&["agent_A"]);
    let options = [
        "--runtime",
        "podman",
        "--config",
        "image: run",
        "--agent",
        "agent_A",
        "--tags",
        "a=1",
        "--tags",
        "e=",
    ];
    let mut arguments = vec!["run", "workload", "w1"];
    arguments.extend(options);
    let stdout = cluster.ank(&arguments).success();
    assert_eq!(
        table::workloads(&last_frame(&stdout))[0].state,
        "Running(Ok)"
    );
    let state = cluster
        .ank(&["get", "state", "-o", "json", "desiredState.workloads.w1"])
        .success();
    let state: serde_json::Value = serde_json::from_str(&state).expect("JSON");
    let expected = serde_json::json!({
        "desiredState": { "apiVersion": "v1", "workloads": { "w1": {
            "agent": "agent_A", "restartPolicy": "NEVER", "tags": { "a": "1", "e": "" }, "runtime": "podman",
            "runtimeConfig": "image: run",
        } } }
    });
    assert_eq!(state, expected);
}

#[test]
fn set_state_changes_what_its_masks_name() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster
        .ank_with_input(
            &["apply", "-"],
            &manifest(&[workload("w1", "run"), workload("w2", "run")]),
        )
        .success();
    let state = "desiredState:\n  apiVersion: v1\n  workloads:\n    w1:\n      agent: agent_A\n      runtime: podman\n      \
                 restartPolicy: NEVER\n      runtimeConfig: 'image: run:latest'\n";
    let stdout = cluster
        .ank_with_input(&["set", "state", "desiredState.workloads.w1", "-"], state)
        .success();
    assert!(last_frame(&stdout).contains("Running(Ok)"), "{stdout}");
    assert_eq!(cluster.engine.containers_of("w1")[0]["Image"], "run:latest");
    assert_eq!(
        cluster.engine.calls_of("run", "w2.").len(),
        1,
        "the other workload was left alone"
    );
}

#[test]
fn version_and_help_go_to_stdout() {
    let cluster = Cluster::prepare();
    for program in [
        env!("CARGO_BIN_EXE_ank"),
        env!("CARGO_BIN_EXE_ank-server"),
        env!("CARGO_BIN_EXE_ank-agent"),
    ] {
        let name = program.rsplit('/').next().expect("a path");
        let run = |option: &str| {
            let mut command = clean_command(program, cluster.folder());
            command.arg(option);
            cluster.finish(command, "").success()
        };
        let version = run("--version");
        let commit = version.strip_prefix(&format!(
            "{name} {} (ankaios-lite",
            env!("CARGO_PKG_VERSION")
        ));
        assert!(
            commit.is_some_and(|commit| commit.ends_with(")\n")),
            "{version}"
        );
        assert!(run("--help").contains("Usage: "), "{name}");
    }
}
