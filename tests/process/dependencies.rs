//! Inter-workload dependencies between real agents.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test; the test itself decides
//! when a container ends.

use crate::support::manifest::Workload;
use crate::support::process::{is_alive, process_state};
use crate::support::{Cluster, Recorder, manifest, wait_until, with_enough_time, workload};
use rustix::process::Signal;
use serde_json::Value;

/// The storage example of the design document, with containers that end when the test says so.
fn storage_example() -> Vec<Workload> {
    vec![
        workload("logger", "run").after("storage_provider", "ADD_COND_RUNNING"),
        workload("storage_provider", "run")
            .on("agent_B")
            .after("init_storage", "ADD_COND_SUCCEEDED"),
        workload("init_storage", "run").on("agent_B"),
        workload("error_handler", "exit0").after("storage_provider", "ADD_COND_FAILED"),
    ]
}

fn state(cluster: &Cluster, name: &str) -> String {
    cluster
        .workload(name)
        .map(|row| row.state)
        .unwrap_or_default()
}

// [stest->swdd~agent-enqueues-unfulfilled-create~1]
// [stest->swdd~agent-handles-workloads-with-fulfilled-dependencies~1]
// [stest->swdd~agent-handles-new-workload-operations]
#[test]
fn workloads_start_only_when_their_dependencies_are_met() {
    let cluster = Cluster::start(&["agent_A", "agent_B"]);
    let recorder = Recorder::start(&cluster);
    cluster.apply(&manifest(&storage_example()));

    cluster.wait_for_state("init_storage", "Running(Ok)");
    for name in ["logger", "storage_provider", "error_handler"] {
        cluster.wait_for_state(name, "Pending(WaitingToStart)");
    }
    cluster.engine.finish("init_storage", 0);
    cluster.wait_for_state("logger", "Running(Ok)");
    assert_eq!(state(&cluster, "error_handler"), "Pending(WaitingToStart)");
    cluster.engine.finish("storage_provider", 1);
    cluster.wait_for_state("error_handler", "Succeeded(Ok)");

    cluster.apply(&manifest(&[workload("restart_service", "exit0")
        .on("agent_B")
        .after("error_handler", "ADD_COND_SUCCEEDED")]));
    cluster.wait_for_state("restart_service", "Succeeded(Ok)");

    let at = |name, state| recorder.position(name, state);
    assert!(at("init_storage", "Succeeded(Ok)") < at("storage_provider", "Pending(Starting)"));
    assert!(at("storage_provider", "Running(Ok)") < at("logger", "Pending(Starting)"));
    assert!(
        at("storage_provider", "Failed(ExecFailed)") < at("error_handler", "Pending(Starting)")
    );
    assert!(at("error_handler", "Succeeded(Ok)") < at("restart_service", "Pending(Starting)"));
}

/// The additional info of a workload on agent_A, as any client reads it from the state.
fn additional_info(cluster: &Cluster, name: &str) -> Option<String> {
    let mask = format!("workloadStates.agent_A.{name}");
    let state: Value =
        serde_json::from_str(&cluster.ank(&["get", "state", "-o", "json", &mask]).stdout).ok()?;
    let instances = state["workloadStates"]["agent_A"][name].as_object()?;
    Some(
        instances.values().next()?["additionalInfo"]
            .as_str()?
            .to_owned(),
    )
}

fn wait_for_additional_info(cluster: &Cluster, name: &str, info: &str) {
    wait_until(
        &format!("the state of '{name}' has the info '{info}'"),
        || additional_info(cluster, name).as_deref() == Some(info),
    );
}

// [stest->swdd~agent-shows-unmet-dependencies~1]
#[test]
fn state_of_a_waiting_workload_names_unmet_dependencies() {
    let cluster = Cluster::start(&["agent_A", "agent_B"]);
    let waiting = workload("fallback", "run")
        .after("init", "ADD_COND_SUCCEEDED")
        .after("nobody", "ADD_COND_RUNNING")
        .after("planner", "ADD_COND_FAILED");
    cluster.apply(&manifest(&[
        waiting,
        workload("init", "run"),
        workload("planner", "run").on("agent_B"),
    ]));
    cluster.wait_for_state("planner", "Running(Ok)");
    cluster.wait_for_state("init", "Running(Ok)");
    let nobody_and_planner = "waits for 'nobody' to run; waits for 'planner' to fail";
    wait_for_additional_info(
        &cluster,
        "fallback",
        &format!("waits for 'init' to succeed; {nobody_and_planner}"),
    );
    // `ank` says of each one how it is, once.
    cluster.wait_for_row("fallback", "how its dependencies are", |row| {
        row.info
            == "waits for 'init' to succeed: it is Running(Ok); waits for 'nobody' to run: it does not exist; \
                waits for 'planner' to fail: it is Running(Ok)"
    });
    cluster.engine.finish("init", 0);
    wait_for_additional_info(&cluster, "fallback", nobody_and_planner);
    cluster.engine.finish("planner", 1);
    wait_for_additional_info(&cluster, "fallback", "waits for 'nobody' to run");
    cluster.apply(&manifest(&[workload("nobody", "run").on("agent_B")]));
    cluster.wait_for_state("fallback", "Running(Ok)");
    assert_eq!(additional_info(&cluster, "fallback").as_deref(), Some(""));
}

#[test]
fn failed_start_meets_the_condition_failed() {
    let mut cluster = Cluster::prepare();
    cluster.agent_config = "retry_limit = 1".to_owned();
    cluster.start_all(&["agent_A"]);
    cluster.apply(&manifest(&[
        workload("broken", "localhost/nosuch"),
        workload("handler", "run").after("broken", "ADD_COND_FAILED"),
    ]));
    cluster.wait_for_state("broken", "Pending(StartingFailed)");
    cluster.wait_for_state("handler", "Running(Ok)");
}

// [stest->swdd~update-awaits-no-failure~1]
#[test]
fn handler_of_a_failure_that_does_not_come_delays_no_update() {
    let mut cluster = Cluster::prepare();
    cluster.server_config = "update_on_failure = \"rollback\"".to_owned();
    cluster.start_all(&["agent_A"]);
    let block = "lifecycle: {update: {healthyMs: 0, deadlineMs: 1200000}}";
    let handler = workload("handler", "exit0").after("storage", "ADD_COND_FAILED");
    let text = manifest(&[
        workload("storage", "run").config(block),
        handler.config(block),
    ]);
    // First in a guarded update, then unchanged, then by itself.
    let output = cluster.ank_with_input(&["apply", "--fail-on-error", "-"], &text);
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.stdout.contains("Update 1 is good."), "{output:?}");
    assert_eq!(state(&cluster, "handler"), "Pending(WaitingToStart)");
    let again = cluster.ank_with_input(&["apply", "--fail-on-error", "-"], &text);
    assert_eq!(again.code, 0, "{again:?}");
    for word in ["stop", "start"] {
        let output = cluster.ank(&[word, "handler"]);
        assert_eq!(output.code, 0, "{output:?}");
    }
    // It still handles the failure.
    cluster.engine.finish("storage", 1);
    cluster.wait_for_state("handler", "Succeeded(Ok)");
}

// [stest->swdd~agent-enqueues-unfulfilled-delete~1]
#[test]
fn delete_of_a_dependency_waits_for_its_running_dependents() {
    let cluster = Cluster::start(&["agent_A", "agent_B"]);
    cluster.apply(&manifest(&[
        workload("storage_provider", "run").on("agent_B"),
        workload("logger", "run").after("storage_provider", "ADD_COND_RUNNING"),
    ]));
    cluster.wait_for_state("logger", "Running(Ok)");
    let (pid, _) = cluster.engine.only_container("storage_provider");

    cluster.delete("storage_provider");
    cluster.wait_for_state("storage_provider", "Stopping(WaitingToStop)");
    assert!(is_alive(pid), "it still runs for its dependents");
    assert!(cluster.engine.calls_of("stop", "").is_empty());

    cluster.engine.finish("logger", 0);
    cluster.wait_until_gone("storage_provider");
    assert!(cluster.engine.containers_of("storage_provider").is_empty());
    assert_eq!(state(&cluster, "logger"), "Succeeded(Ok)");
}

/// A workload that waits to stop still runs and needs its dependencies; also on another agent.
// [stest->swdd~agent-enqueues-unfulfilled-delete~1]
#[test]
fn a_chain_that_is_deleted_together_stops_from_its_end() {
    let cluster = Cluster::start(&["agent_A", "agent_B"]);
    cluster.apply(&manifest(&[
        workload("first", "run"),
        workload("middle", "run")
            .on("agent_B")
            .after("first", "ADD_COND_RUNNING"),
        workload("last", "run").after("middle", "ADD_COND_RUNNING"),
        workload("user", "run")
            .on("agent_B")
            .after("last", "ADD_COND_RUNNING"),
    ]));
    cluster.wait_for_state("user", "Running(Ok)");
    let recorder = Recorder::start(&cluster);
    let chain = ["last", "middle", "first"];
    let pids = chain.map(|name| cluster.engine.only_container(name).0);

    cluster
        .ank(&[&["--no-wait", "delete", "workload"], &chain[..]].concat())
        .success();
    for name in chain {
        cluster.wait_for_state(name, "Stopping(WaitingToStop)");
    }
    assert!(
        pids.into_iter().all(is_alive),
        "they still run for what needs them"
    );
    cluster.engine.finish("user", 0);
    chain.iter().for_each(|name| cluster.wait_until_gone(name));
    let order = chain.map(|name| recorder.position(name, "Stopping(RequestedAtRuntime)"));
    assert!(order.is_sorted(), "{:#?}", recorder.changes());
}

// [stest->swdd~agent-enqueues-update-with-unfulfilled-delete~1]
#[test]
fn update_of_a_dependency_waits_for_its_running_dependents() {
    let cluster = Cluster::start(&["agent_A"]);
    let dependent = workload("logger", "run").after("storage_provider", "ADD_COND_RUNNING");
    cluster.apply(&manifest(&[workload("storage_provider", "run"), dependent]));
    cluster.wait_for_state("logger", "Running(Ok)");

    cluster.apply(&manifest(&[workload("storage_provider", "run:latest")]));
    cluster.wait_for("the old instance waits", || {
        let rows = cluster.workloads().into_iter();
        rows.into_iter()
            .find(|row| row.name == "storage_provider" && row.state == "Stopping(WaitingToStop)")
    });
    cluster.engine.finish("logger", 0);
    cluster.wait_for_state("storage_provider", "Running(Ok)");
    let containers = cluster.engine.containers_of("storage_provider");
    assert_eq!(containers.len(), 1);
    assert_eq!(containers[0]["Image"], "run:latest");
}

#[test]
fn ank_says_who_keeps_an_update_waiting_and_what_to_do() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[
        workload("storage", "run"),
        workload("web", "run").after("storage", "ADD_COND_RUNNING"),
    ]);
    cluster.write("before.yaml", &manifest(&[workload("storage", "run")]));
    cluster.write(
        "storage.yaml",
        &manifest(&[workload("storage", "run:latest")]),
    );
    let waits = "'storage' waits for 'web' to end: use '";
    let output = cluster.ank(&["diff", "storage.yaml"]);
    assert!(
        output
            .stderr
            .starts_with(&format!("warn: when it is applied, {waits}")),
        "{}",
        output.stderr
    );
    let (_, output) = with_enough_time(&format!("warn: {waits}"), |wait| {
        cluster
            .ank(&["apply", "--wait-timeout", "600s", "before.yaml"])
            .success();
        cluster.ank(&["apply", "--wait-timeout", wait, "storage.yaml"])
    });
    assert_eq!(output.code, 4, "{}", output.stderr);
    assert!(
        output
            .stderr
            .starts_with(&format!("warn: {waits}ank restart storage', or ")),
        "{}",
        output.stderr
    );
    assert_eq!(
        output.stderr.matches("to end: use ").count(),
        1,
        "{}",
        output.stderr
    );
    let output = cluster.ank(&["apply", "--wait-timeout", "600s", "before.yaml"]);
    assert_eq!(
        (output.code, output.stderr.as_str()),
        (0, ""),
        "what was set back runs on"
    );
    let output = cluster.ank(&["delete", "workload", "web"]);
    assert_eq!((output.code, output.stderr.as_str()), (0, ""));
    cluster.wait_for_state("storage", "Running(Ok)");
}

// [stest->swdd~agent-handles-update-with-fulfilled-delete~1]
#[test]
fn update_with_an_unmet_condition_deletes_now_and_creates_later() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("w1", "run")]);
    let changed = workload("w1", "run:latest").after("gate", "ADD_COND_RUNNING");
    cluster.apply(&manifest(&[changed]));
    wait_until("the old container is gone", || {
        cluster.engine.containers_of("w1").is_empty()
    });
    cluster.wait_for_state("w1", "Pending(WaitingToStart)");
    cluster.apply(&manifest(&[workload("gate", "run")]));
    cluster.wait_for_state("w1", "Running(Ok)");
}

/// `web` on another agent needs `db`, and both are replaced together. The new `web` starts while the
/// old `db` is not known to stop. The agent of `db` stands still meanwhile, and a large message fills
/// its connection, so the server merges the states behind that: of the stop of the old `web` the
/// agent sees nothing, only that the new one runs.
#[test]
fn replaced_workload_does_not_wait_for_a_new_dependent() {
    let mut cluster = Cluster::start(&["agent_A", "agent_B"]);
    let large =
        |letter: &str| workload("large", "run").config(&format!("# {}", letter.repeat(1 << 20)));
    let web = |image: &str| {
        workload("web", image)
            .on("agent_B")
            .after("db", "ADD_COND_RUNNING")
    };
    cluster.run(&[workload("db", "run"), web("run"), large("a")]);
    let changes = [
        [workload("db", "run:latest"), web("run:latest"), large("b")],
        // The instance of `web` keeps its name.
        [
            workload("db", "run"),
            web("run:latest").tag("new"),
            large("c"),
        ],
    ];
    for change in changes {
        let (old_db, _) = cluster.engine.only_container("db");
        let (old_web, _) = cluster.engine.only_container("web");
        let agent = cluster.agent("agent_A").pid();
        cluster.agent("agent_A").signal(Signal::STOP);
        wait_until("the agent stands still", || {
            process_state(agent) == Some('T')
        });
        cluster.apply(&manifest(&change));
        wait_until("the new web runs alone", || {
            let rows = cluster.workloads();
            let mut webs = rows.iter().filter(|row| row.name == "web");
            let is_one = webs.next().is_some_and(|row| row.state == "Running(Ok)");
            is_one && webs.next().is_none() && cluster.engine.wait_for_container("web").0 != old_web
        });
        cluster.agent("agent_A").signal(Signal::CONT);
        wait_until("the new db runs alone", || {
            cluster.engine.wait_for_container("db").0 != old_db
        });
        cluster.wait_for_all(3, "Running(Ok)");
    }
}
