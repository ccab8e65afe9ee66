//! One workload's life on a real agent: update, delete, retry, restart.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test; the test itself decides
//! when a container ends.

use crate::support::process::Identity;
use crate::support::{Cluster, Recorder, manifest, wait_until, workload};
use serde_json::json;

/// Number of `podman <command>` calls that mention `text`.
fn count(cluster: &Cluster, command: &str, text: &str) -> usize {
    cluster.engine.calls_of(command, text).len()
}

// [itest->swdd~agent-workload-control-loop-executes-create~3]
#[test]
fn created_workload_goes_through_the_documented_states() {
    let cluster = Cluster::start(&["agent_A"]);
    let recorder = Recorder::start(&cluster);
    cluster.apply(&manifest(&[workload("w1", "run")]));
    assert_eq!(
        recorder.states_until("w1", "Running(Ok)"),
        ["Pending(Starting)", "Running(Ok)"]
    );
    let mut infos: Vec<String> = recorder
        .changes()
        .into_iter()
        .map(|change| change.info)
        .collect();
    // On a busy machine it is said how long the create has been running.
    infos.retain(|info| !info.contains("The create has been running for"));
    assert_eq!(infos, ["Triggered at runtime.", ""]);
}

// [itest->swdd~agent-reports-kills-out-of-memory~1]
#[test]
fn kill_for_want_of_memory_is_shown_with_its_limit() {
    let cluster = Cluster::start(&["agent_A"]);
    let details = r#"{"State":{"OOMKilled":true},"HostConfig":{"Memory":8388608}}"#;
    cluster
        .engine
        .script(&json!([{ "command": "container inspect", "stdout": details }]));
    cluster.run(&[workload("w1", "run"), workload("w2", "run")]);
    cluster.engine.finish("w2", 1);
    cluster.wait_for_row("w2", "has failed", |row| row.info == "Exit code: '1'");
    assert_eq!(count(&cluster, "container", "inspect"), 0);
    cluster.engine.finish("w1", 137);
    cluster.wait_for_row("w1", "was killed", |row| {
        row.info == "Exit code: '137', out of memory (limit 8 MiB)"
    });
    assert_eq!(count(&cluster, "container", "inspect"), 1);
    let state = cluster.ank(&["get", "state", "-o", "json", "workloadStates"]);
    assert!(
        state.stdout.contains("\"OUT_OF_MEMORY\""),
        "{}",
        state.stdout
    );
}

// [stest->swdd~cli-describes-checks~1]
#[test]
fn description_has_the_last_results_of_checks() {
    let cluster = Cluster::start(&["agent_A"]);
    let file = cluster.folder().join("up");
    let path = file.to_str().expect("UTF-8");
    let block = format!(
        "lifecycle: {{ ready: {{ file: {path}, periodMs: 50, deadlineMs: 0 }}, alive: {{ file: /, periodMs: 500 }} }}"
    );
    cluster.apply(&manifest(&[workload("w1", "run").config(&block)]));
    let described = || cluster.ank(&["describe", "w1"]).success();
    let ready = format!("ready: file {path} every 50ms, ");
    cluster.wait_for("a result of the check is described", || {
        let described = described();
        let (_, result) = described.split_once(&ready)?;
        let line = result.lines().next()?;
        line.contains("attempt ").then_some(())
    });
    let alive = "alive: file / every 500ms, not checked now";
    assert!(described().contains(alive), "{}", described());
    std::fs::write(&file, "").expect("own folder is writable");
    cluster.wait_for_state("w1", "Running(Ok)");
    cluster.wait_for("results of both checks are described", || {
        let running = described();
        let alive_passes = running.contains("alive: file / every 500ms, passes");
        let is_ready = running.contains(&format!("{ready}answered, attempt "));
        (alive_passes && is_ready).then_some(())
    });
}

// [itest->swdd~agent-workload-control-loop-executes-update~2]
#[test]
fn update_replaces_the_container() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("w1", "run")]);
    let recorder = Recorder::start(&cluster);
    let (pid, id) = cluster.engine.only_container("w1");
    let old = Identity::of(pid);
    cluster.apply(&manifest(&[workload("w1", "run:latest")]));
    cluster.wait_for("the new instance runs alone", || {
        let rows = cluster.workloads();
        (rows.len() == 1 && rows[0].state == "Running(Ok)" && count(&cluster, "run", "w1.") == 2)
            .then_some(())
    });
    let (new_pid, new_id) = cluster.engine.only_container("w1");
    assert!(new_pid != pid && new_id != id);
    assert!(!old.is_alive());
    let states = recorder.states_until("w1", "Running(Ok)");
    assert_eq!(
        states,
        [
            "Stopping(RequestedAtRuntime)",
            "Removed",
            "Pending(Starting)",
            "Running(Ok)"
        ]
    );
    let mut ids: Vec<String> = recorder
        .changes()
        .into_iter()
        .map(|change| change.id)
        .collect();
    ids.dedup();
    assert_eq!(ids.len(), 2, "first the old one, then the new one: {ids:?}");
}

#[test]
fn update_outside_of_the_id_also_replaces_the_container() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("w1", "run")]);
    let (pid, _) = cluster.engine.only_container("w1");
    cluster.apply(&manifest(&[workload("w1", "run").restart("ALWAYS")]));
    wait_until("the container is another one", || {
        let containers = cluster.engine.containers_of("w1");
        containers.len() == 1
            && containers[0]["Pid"]
                .as_u64()
                .is_some_and(|new| new != 0 && new != u64::from(pid))
    });
    cluster.wait_for_state("w1", "Running(Ok)");
    assert_eq!(cluster.workloads().len(), 1);
}

// [stest->swdd~podman-delete-workload-stops-and-removes-workload~1]
#[test]
fn delete_stops_and_removes_the_container() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("w1", "run"), workload("w2", "run")]);
    let recorder = Recorder::start(&cluster);
    cluster.remove("w1");
    assert!(cluster.engine.containers_of("w1").is_empty());
    assert_eq!(cluster.engine.containers_of("w2").len(), 1);
    assert_eq!(
        recorder.states_until("w1", "Removed"),
        ["Stopping(RequestedAtRuntime)", "Removed"]
    );
    assert_eq!(recorder.states_of("w2"), [""; 0]);
}

// [stest->swdd~agent-workload-control-loop-executes-retry~1]
// [stest->swdd~agent-workload-control-loop-retries-workload-creation-on-create-failure~1]
// [stest->swdd~agent-workload-control-loop-requests-retries-on-failing-retry-attempt~1]
#[test]
fn failed_create_is_retried_and_says_how_often_and_why() {
    let cluster = Cluster::start(&["agent_A"]);
    let recorder = Recorder::start(&cluster);
    let rule = json!({ "command": "run", "workload": "w1", "times": 3, "exit": 125, "stderr": "Error: boom\n" });
    cluster.engine.script(&json!([rule]));
    cluster.run(&[workload("w1", "run")]);
    assert_eq!(count(&cluster, "run", "w1."), 4);
    assert_eq!(
        recorder.states_until("w1", "Running(Ok)"),
        ["Pending(Starting)", "Running(Ok)"]
    );
    let infos: Vec<String> = recorder
        .changes()
        .into_iter()
        .map(|change| change.info)
        .collect();
    for number in 1..=3 {
        let expected = format!("Retry {number}: Error: boom");
        assert!(infos.contains(&expected), "no '{expected}' in {infos:#?}");
    }
    assert_eq!(
        cluster.workload("w1").map(|row| row.info).as_deref(),
        Some("")
    );
}

// [stest->swdd~agent-workload-control-loop-limits-retry-attempts~1]
// [stest->swdd~agent-workload-control-loop-retry-limit-set-execution-state~2]
#[test]
fn retries_end_at_the_limit_and_an_update_begins_anew() {
    let mut cluster = Cluster::prepare();
    cluster.agent_config = "retry_limit = 2".to_owned();
    cluster.start_all(&["agent_A"]);
    cluster.engine.script(
        &json!([{ "command": "run", "image": "run", "exit": 125, "stderr": "Error: boom\n" }]),
    );
    cluster.apply(&manifest(&[workload("w1", "run")]));
    let row = cluster.wait_for_state("w1", "Pending(StartingFailed)");
    assert_eq!(row.info, "No more retries: Error: boom");
    assert_eq!(
        count(&cluster, "run", "w1."),
        3,
        "one attempt and two retries"
    );
    cluster.apply(&manifest(&[workload("w1", "run:latest")]));
    cluster.wait_for("the new instance runs", || {
        cluster
            .workloads()
            .iter()
            .any(|row| row.state == "Running(Ok)")
            .then_some(())
    });
}

// [stest->swdd~agent-workload-control-loop-prevents-retries-on-other-workload-commands~1]
#[test]
fn delete_ends_the_retries() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster
        .engine
        .script(&json!([{ "command": "run", "exit": 125, "stderr": "Error: boom\n" }]));
    cluster.apply(&manifest(&[workload("w1", "run")]));
    cluster.wait_for_row("w1", "is retried", |row| row.info.starts_with("Retry "));
    cluster.remove("w1");
    cluster.engine.script(&json!([]));
    cluster.run(&[workload("w2", "run")]);
    assert!(cluster.engine.containers_of("w1").is_empty());
}

// [stest->swdd~workload-control-loop-restarts-workload-with-enabled-restart-policy~2]
#[test]
fn restart_policies_restart_what_they_say_and_nothing_else() {
    let cluster = Cluster::start(&["agent_A"]);
    let policies = [
        ("never", "NEVER"),
        ("on_failure", "ON_FAILURE"),
        ("always", "ALWAYS"),
    ];
    let workloads: Vec<_> = policies
        .iter()
        .map(|(name, policy)| workload(name, "run").restart(policy))
        .collect();
    cluster.apply(&manifest(&workloads));
    for (name, _) in policies {
        cluster.wait_for_state(name, "Running(Ok)");
    }

    for (name, _) in policies {
        cluster.engine.finish(name, 1);
    }
    cluster.wait_for_state("never", "Failed(ExecFailed)");
    for name in ["on_failure", "always"] {
        wait_until("a new container", || {
            count(&cluster, "run", &format!("{name}.")) == 2
        });
        cluster.wait_for_state(name, "Running(Ok)");
    }
    assert_eq!(count(&cluster, "run", "never."), 1);

    for name in ["on_failure", "always"] {
        cluster.engine.finish(name, 0);
    }
    cluster.wait_for_state("on_failure", "Succeeded(Ok)");
    let id = cluster.engine.containers_of("always")[0]["Id"]
        .as_str()
        .expect("an id")
        .to_owned();
    wait_until("the same container is started", || {
        count(&cluster, "start", &id) == 1
    });
    cluster.wait_for_state("always", "Running(Ok)");
    assert_eq!(cluster.engine.only_container("always").1, id);
    assert_eq!(count(&cluster, "run", "on_failure."), 2);
    assert_eq!(count(&cluster, "run", "always."), 2);
    assert_eq!(count(&cluster, "run", "never."), 1);
}

#[test]
fn exit_code_is_waited_for_when_the_engine_is_late_with_it() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster
        .engine
        .write_script(&json!({ "exit_record_delay_ms": 300 }));
    cluster.run(&[workload("w1", "run")]);
    let recorder = Recorder::start(&cluster);
    cluster.engine.finish("w1", 0);
    cluster.wait_for_state("w1", "Succeeded(Ok)");
    assert_eq!(
        recorder.states_until("w1", "Succeeded(Ok)"),
        ["Succeeded(Ok)"]
    );
}

#[test]
fn container_that_removes_itself_has_its_exit_code() {
    for runtime in ["podman", "containerd"] {
        let mut cluster = Cluster::prepare();
        cluster.engine.install_nerdctl();
        cluster.start_all(&["agent_A"]);
        cluster
            .engine
            .write_script(&json!({ "removal_delay_ms": 2000 }));
        let removing = |name| {
            workload(name, "run")
                .config("commandOptions: [--rm]")
                .runtime(runtime)
                .restart("ALWAYS")
        };
        let waits = workload("waits", "run").after("w1", "ADD_COND_SUCCEEDED");
        cluster.apply(&manifest(&[removing("w1"), removing("w2"), waits]));
        cluster.wait_until_run(&["w1", "w2"]);
        let recorder = Recorder::start(&cluster);
        // Its end is noticed at once, and it is shown as exited then.
        cluster.engine.finish("w1", 0);
        cluster.engine.finish("w2", 3);
        for name in ["w1", "w2"] {
            assert_eq!(
                recorder.states_until(name, "Failed(Lost)"),
                ["Failed(Lost)"],
                "{runtime} {name}"
            );
        }
        wait_until("both are gone", || cluster.engine.containers().is_empty());
        for name in ["w1", "w2"] {
            assert_eq!(
                cluster.workload(name).map(|row| row.state).as_deref(),
                Some("Failed(Lost)")
            );
            assert_eq!(
                count(&cluster, "run", &format!("{name}.")),
                1,
                "what is lost is not restarted"
            );
        }
        assert_eq!(
            cluster.workload("waits").map(|row| row.state).as_deref(),
            Some("Pending(WaitingToStart)")
        );
    }
}

#[test]
fn unknown_runtime_is_final_and_a_change_of_the_runtime_helps() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.apply(&manifest(&[workload("w1", "run").runtime("rocket")]));
    let row = cluster.wait_for_state("w1", "Pending(StartingFailed)");
    assert!(
        row.info
            .starts_with("Unsupported Runtime 'rocket'; there are 'podman', "),
        "{}",
        row.info
    );
    cluster.run(&[workload("w1", "run")]);
    cluster.apply(&manifest(&[workload("w1", "run").runtime("rocket")]));
    cluster.wait_for_state("w1", "Pending(StartingFailed)");
    wait_until("the old one is removed", || {
        cluster.engine.containers_of("w1").is_empty()
    });
}

#[test]
fn moved_workload_leaves_the_old_agent() {
    let cluster = Cluster::start(&["agent_A", "agent_B"]);
    cluster.run(&[workload("w1", "run")]);
    cluster.apply(&manifest(&[workload("w1", "run").on("agent_B")]));
    cluster.wait_for("only the one of the new agent is left, and runs", || {
        let rows = cluster.workloads();
        let is_moved = rows.len() == 1 && rows[0].agent == "agent_B";
        (is_moved && rows[0].state == "Running(Ok)").then_some(())
    });
    assert_eq!(cluster.engine.containers_of("w1").len(), 1);
}
