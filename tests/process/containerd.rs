//! The runtime containerd: workloads through a scripted nerdctl, and an agent on a machine without
//! nerdctl.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use crate::support::engine::Call;
use crate::support::log_client::everything;
use crate::support::manifest::Workload;
use crate::support::process::Identity;
use crate::support::{Cluster, LogClient, Recorder, manifest, wait_until, workload};
use serde_json::json;

/// A cluster of one agent on a machine with nerdctl and without podman.
fn prepare() -> Cluster {
    let cluster = Cluster::prepare();
    cluster.engine.install_nerdctl();
    cluster.engine.uninstall();
    cluster
}

fn start() -> Cluster {
    let mut cluster = prepare();
    cluster.start_all(&["agent_A"]);
    cluster
}

fn containerd(name: &str, image: &str) -> Workload {
    workload(name, image).runtime("containerd")
}

#[test]
fn workloads_run_end_restart_change_and_go() {
    let cluster = start();
    let recorder = Recorder::start(&cluster);
    let job = containerd("job", "exit0").config("commandArgs: [done]");
    cluster.apply(&manifest(&[
        containerd("web", "run"),
        job,
        containerd("again", "run").restart("ALWAYS"),
    ]));
    cluster.wait_until_run(&["web", "again"]);
    cluster.wait_for_state("job", "Succeeded(Ok)");
    assert_eq!(
        LogClient::new(&cluster).read_all(everything(&recorder.instance("job"))),
        ["done"]
    );

    let web = Identity::of(cluster.engine.only_container("web").0);
    cluster.engine.kill_container("web");
    let row = cluster.wait_for_state("web", "Failed(ExecFailed)");
    assert_eq!(row.info, "Exit code: '137'");
    assert!(!web.is_alive());
    let (_, again) = cluster.engine.only_container("again");
    cluster.engine.finish("again", 0);
    wait_until("it is started again", || {
        cluster.engine.calls_of("start", &again).len() == 1
    });
    cluster.wait_for_state("again", "Running(Ok)");

    let (_, before) = cluster.engine.only_container("again");
    cluster.apply(&manifest(&[containerd("again", "run:latest")]));
    cluster.wait_for("the new one runs", || {
        let containers = cluster.engine.containers_of("again");
        (containers.len() == 1
            && containers[0]["Id"] != json!(before)
            && containers[0]["State"] == "running")
            .then_some(())
    });
    for name in ["web", "job", "again"] {
        cluster.remove(name);
    }
    assert_eq!(cluster.engine.containers().len(), 0);
    let calls = cluster.engine.calls();
    let commands: Vec<&str> = calls.iter().map(Call::command).collect();
    // A call with an option only is `--version`.
    let expected = ["ps", "inspect", "run", "start", "stop", "rm", "logs", ""];
    assert!(
        commands.iter().all(|one| expected.contains(one)),
        "{commands:?}"
    );
}

#[test]
fn next_agent_adopts_containers_and_keeps_those_that_ended() {
    let mut cluster = prepare();
    let workloads = [
        containerd("web", "run"),
        containerd("job", "exit0"),
        containerd("bad", "exit3"),
    ];
    cluster.agent_config = "rerun_finished = \"boot\"".to_owned();
    cluster.start_with_manifest(&manifest(&workloads));
    let states = [
        ("web", "Running(Ok)"),
        ("job", "Succeeded(Ok)"),
        ("bad", "Failed(ExecFailed)"),
    ];
    for (name, state) in states {
        cluster.wait_for_state(name, state);
    }
    let web = cluster.engine.only_container("web");
    cluster.kill_agent("agent_A");
    cluster.wait_for_state("web", "AgentDisconnected");
    cluster.start_agent("agent_A");
    for (name, state) in states {
        cluster.wait_for_state(name, state);
    }
    assert_eq!(cluster.engine.only_container("web"), web);
    assert_eq!(
        (
            cluster.engine.calls_of("run", "").len(),
            cluster.engine.calls_of("start", "").len()
        ),
        (3, 0)
    );
}

#[test]
fn faults_of_nerdctl_are_shown_and_cleaned_up() {
    let cluster = start();
    cluster.engine.script(&json!([
        { "command": "run", "workload": "web", "times": 2, "exit": 1, "stderr": "no space left", "leaves_container": true },
        { "command": "stop", "workload": "web", "times": 1, "exit": 1, "stderr": "busy" },
        { "command": "inspect", "times": 1, "stdout": "garbage" },
    ]));
    cluster.apply(&manifest(&[
        containerd("web", "run"),
        containerd("calm", "run"),
    ]));
    // The second try may be shown already: the container that the first one left is in its way,
    // which comes before its reason.
    let row = cluster.wait_for_row("web", "is retried", |row| row.info.starts_with("Retry "));
    assert!(
        row.info.ends_with("no space left") || row.info.contains("is already in use"),
        "{row:?}"
    );
    cluster.wait_until_run(&["web", "calm"]);
    assert_eq!(cluster.engine.containers().len(), 2);
}

#[test]
fn an_agent_without_nerdctl_is_quiet_until_a_workload_wants_it() {
    let mut cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("web", "run")]);
    let log = cluster.agent("agent_A").stderr();
    assert!(
        !log.contains("nerdctl") && !log.contains("containerd"),
        "{log}"
    );

    cluster.apply(&manifest(&[containerd("wants", "run")]));
    let row = cluster.wait_for_row("wants", "is retried", |row| row.info.starts_with("Retry "));
    assert_eq!(row.state, "Pending(Starting)");
    let reason = ": Error: 'nerdctl' cannot be started: No such file or directory (os error 2)";
    assert!(row.info.ends_with(reason), "{row:?}");
    cluster.engine.install_nerdctl();
    cluster.wait_for_state("wants", "Running(Ok)");
    assert_eq!(cluster.engine.containers_of("wants").len(), 1);
}

#[test]
fn engines_without_workloads_are_not_called() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("web", "run")]);
    cluster.engine.install_nerdctl();
    cluster.remove("web");
    // One listing per engine at the start, of nerdctl none, since it was not there.
    let calls = cluster.engine.calls();
    let inspections = calls
        .iter()
        .filter(|call| call.mentions("--no-trunc"))
        .count();
    let volumes = calls
        .iter()
        .filter(|call| call.command() == "volume")
        .count();
    assert!(inspections == 0 && volumes <= 2, "{calls:?}");
}
