//! `ank get state`, `get agents`: shape and order of the YAML and JSON output.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use std::process::Stdio;

use crate::support::process::exit_code;
use crate::support::{Cluster, LIMIT, Process, manifest, table, workload};
use rustix::process::Signal;
use serde_json::{Value, json};

fn json_state(cluster: &Cluster, masks: &[&str]) -> Value {
    let json = cluster
        .ank(&[&["get", "state", "-o", "json"], masks].concat())
        .success();
    serde_json::from_str(&json).expect("JSON")
}

fn yaml_state(cluster: &Cluster, masks: &[&str]) -> String {
    cluster.ank(&[&["get", "state"], masks].concat()).success()
}

const TWO: &str = "apiVersion: v1
workloads:
  web:
    agent: agent_A
    runtime: podman
    restartPolicy: ALWAYS
    tags:
      owner: me
    dependencies:
      db: ADD_COND_RUNNING
    runtimeConfig: |
      image: run
      commandArgs: [a]
  db:
    agent: agent_A
    runtime: podman
    runtimeConfig: 'image: run'
configs:
  port: '80'
";

#[test]
fn state_of_an_empty_cluster() {
    let cluster = Cluster::start(&[]);
    let empty = json!({ "apiVersion": "v1", "workloads": {} });
    let expected = json!({ "desiredState": empty, "workloadStates": {}, "agents": {}, "effectiveState": empty });
    assert_eq!(json_state(&cluster, &[]), expected);
    let yaml = "desiredState:\n  apiVersion: v1\n  workloads: {}\nworkloadStates: {}\nagents: {}\n\
                effectiveState:\n  apiVersion: v1\n  workloads: {}\n\n";
    assert_eq!(yaml_state(&cluster, &[]), yaml);
    assert_eq!(
        cluster.ank(&["get", "agents"]).stdout,
        "NAME   WORKLOADS   CPU USAGE   FREE MEMORY\n"
    );
    assert_eq!(cluster.ank(&["get", "configs"]).stdout.trim_end(), "CONFIG");
}

#[test]
fn masks_select_exactly_what_they_name() {
    let cluster = Cluster::start(&[]);
    cluster.apply(TWO);
    let masks = [
        "desiredState.workloads.*.agent",
        "desiredState.workloads.*.runtime",
    ];
    let expected = json!({ "desiredState": { "apiVersion": "v1", "workloads": {
        "db": { "agent": "agent_A", "runtime": "podman" },
        "web": { "agent": "agent_A", "runtime": "podman" },
    } } });
    assert_eq!(json_state(&cluster, &masks), expected);
    let tag = json!({ "desiredState": { "apiVersion": "v1", "workloads": { "web": { "tags": { "owner": "me" } } } } });
    assert_eq!(
        json_state(&cluster, &["desiredState.workloads.web.tags.owner"]),
        tag
    );
    let output = cluster.ank(&[
        "get",
        "state",
        "-o",
        "json",
        "desiredState.workloads.nosuch",
    ]);
    let version_only = json!({ "desiredState": { "apiVersion": "v1" } });
    assert_eq!(
        (
            output.code,
            serde_json::from_str::<Value>(&output.stdout).expect("JSON")
        ),
        (0, version_only)
    );
    assert_eq!(output.stderr, "warn: workload 'nosuch' does not exist\n");
    for (masks, expected, wrong) in [
        (&["nosuch"][..], json!({}), "nosuch"),
        (&["", "agents"], json!({ "agents": {} }), ""),
    ] {
        let output = cluster.ank(&[&["get", "state", "-o", "json"], masks].concat());
        assert_eq!(
            (
                output.code,
                serde_json::from_str::<Value>(&output.stdout).expect("JSON")
            ),
            (0, expected)
        );
        let told = format!(
            "warn: mask '{wrong}' selects nothing: no part of the state is called '{wrong}'\n"
        );
        assert_eq!(output.stderr, told);
    }
}

#[test]
fn states_of_workloads_are_keyed_by_agent_name_and_id() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.apply(&manifest(&[
        workload("w1", "run"),
        workload("lonely", "run").on("''"),
    ]));
    cluster.wait_for_state("w1", "Running(Ok)");
    let state = json_state(&cluster, &["workloadStates"]);
    // SHA-256 of "image: run", the rendered runtime configuration without surrounding white space.
    let id = "19a24e67f6fca6845fe4479bf0d86cbae4f7818a4f1fbe4325bf091732e2b998";
    let running = json!({ "state": "Running", "subState": "Ok", "additionalInfo": "" });
    assert_eq!(
        state["workloadStates"]["agent_A"],
        json!({ "w1": { id: running } })
    );
    let unscheduled =
        json!({ "state": "NotScheduled", "subState": "NotScheduled", "additionalInfo": "" });
    assert_eq!(
        state["workloadStates"][""]["lonely"],
        json!({ id: unscheduled })
    );
    let only = json_state(&cluster, &["workloadStates.agent_A.w1.*.state"]);
    let pair = json!({ "state": "Running", "subState": "Ok" });
    assert_eq!(
        only,
        json!({ "workloadStates": { "agent_A": { "w1": { id: pair } } } })
    );
}

#[test]
fn agents_report_their_load() {
    let cluster = Cluster::start(&["agent_B", "agent_A"]);
    cluster.apply(&manifest(&[workload("w1", "run")]));
    let rows = cluster.wait_for("both have reported their load", || {
        let rows = table::parse(&cluster.ank(&["get", "agents"]).stdout);
        rows.iter()
            .all(|row| row[2].ends_with('%') && row[3].ends_with('B'))
            .then_some(rows)
    });
    let names: Vec<(&str, &str)> = rows
        .iter()
        .map(|row| (row[0].as_str(), row[1].as_str()))
        .collect();
    assert_eq!(names, [("agent_A", "1"), ("agent_B", "0")]);
    let status = json_state(&cluster, &["agents.agent_A.status"]);
    assert!(
        status["agents"]["agent_A"]["status"]["cpuUsage"].is_u64(),
        "{status}"
    );
    assert!(
        status["agents"]["agent_A"]["status"]["freeMemory"]
            .as_u64()
            .is_some_and(|bytes| bytes > 0),
        "{status}"
    );
}

#[test]
fn state_read_as_yaml_can_be_set_again() {
    let cluster = Cluster::start(&[]);
    cluster.apply(TWO);
    let yaml = yaml_state(&cluster, &["desiredState"]);
    let shown = cluster
        .ank_with_input(&["set", "state", "desiredState", "-"], &yaml)
        .success();
    assert_eq!(shown, "Apply successful. No workloads updated.\n");
    assert_eq!(yaml_state(&cluster, &["desiredState"]), yaml);
}

#[test]
fn verbose_output_does_not_mix_with_the_result() {
    let cluster = Cluster::start(&[]);
    let output = cluster.ank(&["-v", "get", "state", "-o", "json"]);
    assert!(
        serde_json::from_str::<Value>(&output.stdout).is_ok(),
        "{}",
        output.stdout
    );
}

#[test]
fn state_above_four_megabytes_can_be_read_and_changed() {
    let cluster = Cluster::start(&[]);
    let padding = format!("# {}", "x".repeat(20_000));
    let many: Vec<_> = (0..300)
        .map(|number| {
            workload(&format!("w{number}"), "run")
                .on("absent")
                .config(&padding)
        })
        .collect();
    cluster.apply(&manifest(&many));
    let output = cluster.ank(&["get", "state", "-o", "json"]);
    assert!(
        output.code == 0 && output.stdout.len() > 6_000_000,
        "{} {}",
        output.code,
        output.stderr
    );
    assert_eq!(cluster.workloads().len(), 300);
    cluster.delete("w7");
    assert_eq!(cluster.workloads().len(), 299);

    let mut command = cluster.ank_command();
    command
        .args(["get", "state"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("ank starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("own child");
    let code = exit_code(output.status);
    assert!(code == 0 || code == 141, "exit code {code}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn watch_prints_a_frame_per_change_until_a_signal_ends_it() {
    let cluster = Cluster::start(&["agent_A"]);
    let mut watch = cluster.start_ank(&["get", "workloads", "-w"]);
    let last_frame = |watch: &Process| {
        let stdout = watch.stdout();
        let frame = stdout
            .strip_suffix("\n\n")
            .and_then(|text| text.rsplit("\n\n").next().map(str::to_owned));
        frame.map(|frame| table::workloads(&frame))
    };
    let states = |watch: &Process| {
        let rows = last_frame(watch)?.into_iter();
        Some(
            rows.map(|row| format!("{} {}", row.name, row.state))
                .collect::<Vec<String>>(),
        )
    };
    cluster.wait_for("the first frame is empty", || {
        (states(&watch)? == [""; 0]).then_some(())
    });
    cluster.apply(&manifest(&[workload("w1", "run")]));
    cluster.wait_for("w1 appears", || {
        (states(&watch)? == ["w1 Running(Ok)"]).then_some(())
    });
    cluster.engine.finish("w1", 2);
    cluster.wait_for("w1 changes", || {
        (states(&watch)? == ["w1 Failed(ExecFailed)"]).then_some(())
    });
    cluster.delete("w1");
    cluster.wait_for("w1 vanishes", || (states(&watch)? == [""; 0]).then_some(()));
    watch.signal(Signal::INT);
    let status = watch.wait(LIMIT).expect("it ends by the signal");
    assert_eq!((exit_code(status), watch.stderr().as_str()), (130, ""));
}
