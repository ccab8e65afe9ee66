//! Programs end, are killed and come back: containers live on, nothing is started twice.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use super::prepare::NO_REPAIR;
use crate::support::manifest::Workload;
use crate::support::process::{exit_code, is_alive, send_signal, thread_names};
use crate::support::{Cluster, LIMIT, Recorder, manifest, poll, wait_until, workload};
use rustix::process::Signal;
use serde_json::json;
use std::fs;

fn with_manifest(workloads: &[Workload]) -> (Cluster, String) {
    let mut cluster = Cluster::prepare();
    let file = cluster.start_with_manifest(&manifest(workloads));
    (cluster, file)
}

fn runs(cluster: &Cluster, workload: &str) -> usize {
    cluster
        .engine
        .calls_of("run", &format!("{workload}."))
        .len()
}

#[test]
fn killed_server_comes_back_and_finds_everything_as_it_was() {
    let (mut cluster, file) = with_manifest(&[workload("w1", "run"), workload("w2", "exit0")]);
    cluster.wait_for_state("w1", "Running(Ok)");
    cluster.wait_for_state("w2", "Succeeded(Ok)");
    let before = cluster.engine.only_container("w1");
    cluster.kill_server();
    cluster.start_server(&["-m", &file]);
    cluster.wait_for_state("w1", "Running(Ok)");
    cluster.wait_for_state("w2", "Succeeded(Ok)");
    assert_eq!(cluster.engine.only_container("w1"), before);
    assert_eq!(
        (runs(&cluster, "w1"), runs(&cluster, "w2")),
        (1, 1),
        "finished ones are not run again either"
    );
    assert_eq!(cluster.engine.calls_of("start", "").len(), 0);
}

#[test]
fn end_of_a_workload_without_a_server_is_reported_later() {
    let (mut cluster, file) = with_manifest(&[
        workload("w1", "run"),
        workload("w2", "run").restart("ALWAYS"),
    ]);
    cluster.wait_until_run(&["w1", "w2"]);
    cluster.kill_server();
    cluster.engine.finish("w1", 5);
    cluster.engine.finish("w2", 1);
    wait_until("the restart needs no server", || runs(&cluster, "w2") == 2);
    cluster.start_server(&["-m", &file]);
    let row = cluster.wait_for_state("w1", "Failed(ExecFailed)");
    assert_eq!(row.info, "Exit code: '5'");
    cluster.wait_for_state("w2", "Running(Ok)");
    assert_eq!(runs(&cluster, "w1"), 1);
}

#[test]
fn server_that_comes_back_with_less_has_the_rest_deleted() {
    let (mut cluster, _) = with_manifest(&[workload("w1", "run"), workload("w2", "run")]);
    cluster.wait_until_run(&["w1", "w2"]);
    cluster.kill_server();
    let less = cluster.write("less.yaml", &manifest(&[workload("w1", "run")]));
    cluster.start_server(&["-m", &less.to_string_lossy()]);
    wait_until("w2 is deleted", || {
        cluster.engine.containers_of("w2").is_empty()
    });
    cluster.wait_for_state("w1", "Running(Ok)");
    assert_eq!(runs(&cluster, "w1"), 1);
}

// [stest->swdd~agent-existing-workloads-replace-updated~2]
#[test]
fn restarted_agent_adopts_restarts_and_replaces_containers() {
    let all =
        ["adopted", "finished", "failed", "changed", "unneeded"].map(|name| workload(name, "run"));
    let mut cluster = Cluster::start(&["agent_A"]);
    cluster.apply(&manifest(&all));
    cluster.wait_until_run(&["adopted", "finished", "failed", "changed", "unneeded"]);
    let adopted = cluster.engine.only_container("adopted");
    let finished = cluster.engine.only_container("finished");
    cluster.kill_agent("agent_A");
    cluster.wait_for_state("adopted", "AgentDisconnected");
    assert!(is_alive(adopted.0), "containers outlive the agent");

    cluster.engine.finish("finished", 0);
    cluster.engine.finish("failed", 1);
    let ended = |name: &str| cluster.engine.containers_of(name)[0]["State"] == "exited";
    wait_until("both ended", || ended("finished") && ended("failed"));
    cluster.apply(&manifest(&[workload("changed", "run:latest")]));
    cluster.delete("unneeded");
    cluster.start_agent("agent_A");

    cluster.wait_until_run(&["adopted", "finished", "failed"]);
    cluster.wait_for("the changed one runs", || {
        let rows = cluster
            .workloads()
            .into_iter()
            .filter(|row| row.name == "changed");
        rows.into_iter().find(|row| row.state == "Running(Ok)")
    });
    wait_until("the unneeded one is gone", || {
        cluster.engine.containers_of("unneeded").is_empty()
    });
    assert_eq!(
        (
            cluster.engine.only_container("adopted"),
            runs(&cluster, "adopted")
        ),
        (adopted, 1)
    );
    assert_eq!(
        cluster.engine.only_container("finished").1,
        finished.1,
        "the same container, started again"
    );
    assert_eq!(cluster.engine.calls_of("start", &finished.1).len(), 1);
    assert_eq!(
        (
            runs(&cluster, "finished"),
            runs(&cluster, "failed"),
            runs(&cluster, "changed")
        ),
        (1, 2, 2)
    );
    assert_eq!(
        cluster.engine.containers_of("changed")[0]["Image"],
        "run:latest"
    );
}

#[test]
fn adopted_workload_is_watched_restarted_and_deleted() {
    let mut cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[
        workload("w1", "run").restart("ON_FAILURE"),
        workload("w2", "run"),
    ]);
    cluster.kill_agent("agent_A");
    cluster.wait_for_state("w1", "AgentDisconnected");
    cluster.start_agent("agent_A");
    cluster.wait_until_run(&["w1", "w2"]);
    cluster.engine.finish("w1", 1);
    wait_until("it was restarted", || runs(&cluster, "w1") == 2);
    cluster.wait_for_state("w1", "Running(Ok)");
    cluster.remove("w2");
    assert!(cluster.engine.containers_of("w2").is_empty());
}

/// What a restart after a crash needs: a listing with the exit code, the removal, the start. The
/// process of the new container is in its file, so nothing is listed for it. A listing may come too
/// early for the engine.
#[test]
fn restart_after_a_crash_takes_three_engine_calls() {
    let mut cluster = Cluster::prepare();
    cluster.agent_config = NO_REPAIR.to_owned();
    cluster.start_all(&["agent_A"]);
    cluster.run(&[workload("w", "run").restart("ALWAYS")]);
    wait_until("the version of the engine was read", || {
        let calls = cluster.engine.calls_of("", "--version");
        calls.iter().any(|call| call.exit.is_some())
    });
    for restart in 2..5 {
        let before = cluster.engine.calls().len();
        cluster.engine.finish("w", 1);
        wait_until("it was restarted", || runs(&cluster, "w") == restart);
        cluster.wait_for_state("w", "Running(Ok)");
        let calls = cluster.engine.calls();
        let calls: Vec<&str> = calls[before..].iter().map(|call| call.command()).collect();
        let changes: Vec<&str> = calls.iter().copied().filter(|call| *call != "ps").collect();
        assert_eq!(changes, ["rm", "run"], "{calls:?}");
        // The listing is repeated until the engine has the exit code, which takes a busy machine a
        // while.
        assert!(calls.len() >= 3, "{calls:?}");
    }
}

#[test]
fn containers_of_other_agents_are_left_alone() {
    let mut cluster = Cluster::start(&["A", "X-A"]);
    cluster.run(&[
        workload("w1", "run").on("A"),
        workload("w2", "run").on("X-A"),
    ]);
    let other = cluster.engine.only_container("w2");
    cluster.kill_agent("A");
    cluster.wait_for_state("w1", "AgentDisconnected");
    cluster.start_agent("A");
    cluster.wait_for_state("w1", "Running(Ok)");
    assert_eq!(cluster.engine.only_container("w2"), other);
    assert_eq!(
        cluster.workload("w2").map(|row| row.state).as_deref(),
        Some("Running(Ok)")
    );
}

#[test]
fn server_told_to_end_ends_at_once_and_containers_live_on() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut cluster = Cluster::start(&["agent_A"]);
        cluster.run(&[workload("w1", "run")]);
        let (pid, _) = cluster.engine.only_container("w1");
        cluster.server().signal(signal);
        let status = cluster
            .server()
            .wait(LIMIT)
            .unwrap_or_else(|| panic!("the server ignores {signal:?}"));
        let code = exit_code(status);
        assert!(
            code == 0 || code == 128 + signal.as_raw(),
            "exit code {code}"
        );
        assert!(is_alive(pid));
        assert!(cluster.agent("agent_A").is_running());
    }
}

#[test]
fn agent_ends_at_once_with_a_hanging_engine() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut cluster = Cluster::start(&["agent_A"]);
        cluster.run(&[workload("w1", "run")]);
        cluster
            .engine
            .script(&json!([{ "command": "run", "workload": "hanging", "hang": true }]));
        cluster.apply(&manifest(&[workload("hanging", "run")]));
        wait_until("podman run hangs", || {
            cluster.engine.hanging_calls_of("run").len() == 1
        });
        let (pid, _) = cluster.engine.only_container("w1");
        cluster.agent("agent_A").signal(signal);
        let status = cluster
            .agent("agent_A")
            .wait(LIMIT)
            .unwrap_or_else(|| panic!("the agent ignores {signal:?}"));
        let code = exit_code(status);
        assert!(
            code == 0 || code == 128 + signal.as_raw(),
            "exit code {code}"
        );
        assert!(is_alive(pid), "workloads keep running");
        assert!(
            cluster.run_folder().join("agent_A_io").is_dir(),
            "the run folder stays"
        );
        cluster.wait_for_state("w1", "AgentDisconnected");
    }
}

#[test]
fn stalled_commander_delays_nobody() {
    let cluster = Cluster::start(&["agent_A"]);
    let mut watch = cluster.start_ank(&["get", "workloads", "-w"]);
    cluster.wait_for("the first frame", || {
        watch.stdout().contains("WORKLOAD NAME").then_some(())
    });
    watch.signal(Signal::STOP);
    for number in 0..20 {
        cluster.apply(&manifest(&[
            workload("w1", "exit0").config(&format!("commandArgs: [{number}]"))
        ]));
    }
    cluster.wait_for_all(1, "Succeeded(Ok)");
    watch.signal(Signal::CONT);
    // Where the updates took longer than a connection may stand still, it has lost that.
    cluster.wait_for("the commander catches up", || {
        (watch.stdout().contains("Succeeded(Ok)") || !watch.is_running()).then_some(())
    });
}

#[test]
fn second_agent_of_a_name_takes_over_from_the_first() {
    let mut cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("w1", "run")]);
    cluster.agent("agent_A").signal(Signal::STOP);
    let mut first = cluster.agents.remove("agent_A").expect("started");
    // As on another node: beside the first one, in its folder, it would end.
    let elsewhere = cluster.folder().join("elsewhere");
    fs::create_dir(&elsewhere).expect("own folder is writable");
    cluster.agent_run_folder = Some(elsewhere);
    cluster.start_agent("agent_A");
    // Its own log shows that; the states are those of the first one still.
    cluster.wait_for_agents(&["agent_A"]);
    wait_until("the second is at work", || {
        cluster.agents["agent_A"].stderr().contains("server hello")
    });
    cluster.wait_for_state("w1", "Running(Ok)");
    first.kill();
    cluster.run(&[workload("w2", "run")]);
    cluster.wait_for_agents(&["agent_A"]);
    assert_eq!(runs(&cluster, "w1"), 1);
}

#[test]
fn every_thread_has_a_name() {
    let mut cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("w1", "run")]);
    // A thread without a name of its own has that of the program's main thread.
    for (program, pid) in [
        ("ank-server", cluster.server().pid()),
        ("ank-agent", cluster.agent("agent_A").pid()),
    ] {
        let mut names = Vec::new();
        // A thread has the name of its program until it gives itself its own.
        let is_named = poll(LIMIT, || {
            names = thread_names(pid);
            let unnamed = names.iter().filter(|name| *name == program).count();
            (unnamed == 1).then_some(())
        });
        assert!(is_named.is_some(), "{names:?}");
    }
}

#[test]
fn removed_is_not_lost_when_the_server_was_away() {
    let (mut cluster, file) = with_manifest(&[workload("w1", "run")]);
    cluster.wait_for_state("w1", "Running(Ok)");
    cluster
        .engine
        .script(&json!([{ "command": "stop", "hold": "stop" }]));
    cluster.delete("w1");
    // Before, the agent does not always know of the delete.
    wait_until("the agent stops it", || {
        !cluster.engine.hanging_calls_of("stop").is_empty()
    });
    cluster.kill_server();
    cluster.engine.release("stop");
    wait_until("the container is gone", || {
        cluster.engine.containers_of("w1").is_empty()
    });
    cluster.engine.script(&json!([]));
    cluster.start_server(&["-m", &file]);
    cluster.wait_for_state("w1", "Running(Ok)");
    let recorder = Recorder::start(&cluster);
    cluster.remove("w1");
    assert_eq!(
        recorder.states_until("w1", "Removed"),
        ["Stopping(RequestedAtRuntime)", "Removed"]
    );
}

// The connection stays open, and no process responds at its other end.
#[test]
fn silent_server_is_noticed_and_found_again() {
    let mut cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("web", "run").restart("ALWAYS")]);
    let server = cluster.server().pid();
    assert!(send_signal(server, Signal::STOP));
    let interrupted = |cluster: &mut Cluster| {
        cluster
            .agent("agent_A")
            .stderr()
            .contains("Connection to server interrupted")
    };
    wait_until("the agent notices", || interrupted(&mut cluster));
    let (_, id) = cluster.engine.only_container("web");
    cluster.engine.finish("web", 0);
    wait_until("it is restarted without the server", || {
        cluster.engine.calls_of("start", &id).len() == 1
    });
    assert!(send_signal(server, Signal::CONT));
    cluster.wait_for_state("web", "Running(Ok)");
    assert_eq!(cluster.engine.only_container("web").1, id);
    cluster.run(&[workload("next", "run")]);
}

/// As on a node without a clock of its own, which is set when the network is there.
#[test]
fn finished_workload_stays_in_its_boot_whatever_clocks_say() {
    let mut cluster = Cluster::prepare();
    cluster.agent_config = "rerun_finished = \"boot\"".to_owned();
    cluster.start_with_manifest(&manifest(&[
        workload("job", "exit0"),
        workload("bad", "exit3"),
    ]));
    let states = [("job", "Succeeded(Ok)"), ("bad", "Failed(ExecFailed)")];
    for (name, state) in states {
        cluster.wait_for_state(name, state);
    }
    cluster.kill_agent("agent_A");
    cluster.wait_for_state("job", "AgentDisconnected");
    cluster.engine.set_ends(1_000_000);
    cluster.start_agent("agent_A");
    for (name, state) in states {
        cluster.wait_for_state(name, state);
    }
    let starts =
        cluster.engine.calls_of("run", "").len() + cluster.engine.calls_of("start", "").len();
    assert_eq!(starts, 2, "nothing has booted");
}

/// The numbers of the threads with this name.
fn numbers_of_threads(pid: u32, name: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the program runs");
    let mut numbers = Vec::new();
    for task in tasks.flatten() {
        let found = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if found.trim() == name {
            numbers.push(task.file_name().to_string_lossy().into_owned());
        }
    }
    numbers
}

#[test]
fn control_loop_that_rests_continues_on_another_thread() {
    let mut cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("w1", "run")]);
    let pid = cluster.agent("agent_A").pid();
    let before = numbers_of_threads(pid, "wl:w1");
    // The control loop handles this and ends no instance; a restart would get a loop of its own.
    cluster.engine.finish("w1", 5);
    cluster.wait_for_state("w1", "Failed(ExecFailed)");
    wait_until("the thread that has worked has ended", || {
        let now = numbers_of_threads(pid, "wl:w1");
        now.len() == 1 && now != before
    });
    cluster.ank(&["delete", "workload", "w1"]).success();
    wait_until("nothing of the workload is left", || {
        numbers_of_threads(pid, "wl:w1").is_empty()
    });
}
