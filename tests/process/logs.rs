//! Logs of workloads: what a requester gets, what ends, and what a reader that does not read costs.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use crate::support::log_client::everything;
use crate::support::manifest::Workload;
use crate::support::process::{Identity, has_zombies, memory_peak_kib, thread_names};
use crate::support::{Cluster, LIMIT, LogClient, Recorder, manifest, wait_until, workload};
use ankaios_lite::model::messages::{LogsRequest, ResponseContent};
use ankaios_lite::model::names::InstanceName;
use rustix::process::Signal;
use serde_json::json;

/// A cluster of one agent with both workloads.
fn cluster() -> (Cluster, InstanceName, InstanceName) {
    let cluster = Cluster::start(&["agent_A"]);
    let (web, job) = run_both(&cluster);
    (cluster, web, job)
}

/// Runs the workload `web`, which writes `hello world` and runs, and `job`, which ends.
fn run_both(cluster: &Cluster) -> (InstanceName, InstanceName) {
    let recorder = Recorder::start(cluster);
    let web = workload("web", "run").config("commandArgs: [hello, world]");
    let job = workload("job", "exit0").config("commandArgs: ['one\n\n      two']");
    cluster.apply(&manifest(&[web, job]));
    cluster.wait_for_state("web", "Running(Ok)");
    cluster.wait_for_state("job", "Succeeded(Ok)");
    (recorder.instance("web"), recorder.instance("job"))
}

fn follow(instance: &InstanceName) -> LogsRequest {
    LogsRequest {
        follow: Some(true),
        ..everything(instance)
    }
}

#[test]
fn logs_of_running_and_ended_workloads_are_complete() {
    let (cluster, web, job) = cluster();
    let mut client = LogClient::new(&cluster);
    assert_eq!(client.read_all(everything(&web)), ["hello world"]);
    assert_eq!(client.read_all(everything(&job)), ["one", "two"]);
    let wanted = LogsRequest {
        tail: Some(5),
        since: Some("2026-01-01T00:00:00Z".into()),
        until: Some("2030-01-01T00:00:00Z".into()),
        ..follow(&job)
    };
    assert_eq!(client.read_all(wanted), ["one", "two"]);
    let (_, id) = cluster.engine.only_container("job");
    let calls: Vec<String> = cluster
        .engine
        .calls_of("logs", &id)
        .iter()
        .map(|call| call.argv.join(" "))
        .collect();
    let options = "-f --since 2026-01-01T00:00:00Z --until 2030-01-01T00:00:00Z --tail 5";
    assert_eq!(
        calls,
        [format!("logs {id}"), format!("logs {options} {id}")]
    );
}

#[test]
fn followed_logs_end_with_the_container_or_a_cancel() {
    let (mut cluster, web, _) = cluster();
    let mut client = LogClient::new(&cluster);
    client.request("ends", follow(&web));
    client.accepted("ends");
    assert_eq!(client.lines("ends"), ["hello world"]);
    let mut other = LogClient::new(&cluster);
    other.request("cancelled", follow(&web));
    other.accepted("cancelled");
    assert_eq!(other.lines("cancelled"), ["hello world"]);
    assert_eq!(cluster.engine.hanging_calls_of("logs").len(), 2);
    let agent = cluster.agent("agent_A").pid();
    let names = thread_names(agent);
    assert!(names.iter().any(|name| name == "log:1:web"), "{names:?}");

    other.cancel("cancelled");
    assert_eq!(
        other.next(),
        ("cancelled".to_owned(), ResponseContent::LogsCancelAccepted)
    );
    wait_until("its process is ended", || {
        cluster.engine.hanging_calls_of("logs").len() == 1
    });
    cluster.engine.finish("web", 0);
    assert_eq!(
        client.next(),
        ("ends".to_owned(), ResponseContent::LogsStop(web))
    );
    wait_until("no process and no thread is left", || {
        !has_zombies(agent)
            && thread_names(agent)
                .iter()
                .all(|name| !name.starts_with("log:"))
    });
    assert!(cluster.engine.hanging_calls_of("logs").is_empty());
}

/// A cluster whose engine holds the start of the workload `job` until `start` is released. It fails
/// then if it `fails`.
fn cluster_with_held_start(job: Workload, fails: bool) -> (Cluster, InstanceName) {
    let cluster = Cluster::start(&["agent_A"]);
    let mut rule = json!({ "command": "run", "workload": "job", "hold": "start" });
    if fails {
        rule["exit"] = json!(125);
        rule["stderr"] = json!("Error: no disk");
    }
    cluster.engine.script(&json!([rule]));
    let recorder = Recorder::start(&cluster);
    cluster.apply(&manifest(&[job]));
    cluster.wait_for_state("job", "Pending(Starting)");
    let instance = recorder.instance("job");
    (cluster, instance)
}

#[test]
fn a_log_requested_during_the_start_has_all_lines() {
    let job = workload("job", "exit0").config("commandArgs: ['one\n\n      two']");
    let (cluster, instance) = cluster_with_held_start(job, false);
    let mut clients = [LogClient::new(&cluster), LogClient::new(&cluster)];
    for (client, request) in clients
        .iter_mut()
        .zip([everything(&instance), follow(&instance)])
    {
        client.request("early", request);
        assert_eq!(client.accepted("early"), std::slice::from_ref(&instance));
    }
    let mut ank = cluster.start_ank(&["logs", "job"]);
    cluster.engine.release("start");
    for client in &mut clients {
        assert_eq!(client.lines_until_stop("early", &instance), ["one", "two"]);
    }
    let ended = ank.wait(LIMIT).expect("it ends with the log");
    assert_eq!(
        (ended.code(), ank.stdout().as_str()),
        (Some(0), "one\ntwo\n")
    );
}

#[test]
fn a_log_that_waits_for_a_start_ends_with_a_reason() {
    let removed: fn(&mut Cluster) = |cluster| cluster.delete("job");
    let fails: fn(&mut Cluster) = |cluster| cluster.engine.release("start");
    let agent_ends: fn(&mut Cluster) = |cluster| cluster.kill_agent("agent_A");
    for (end, expected) in [
        (removed, "workload 'job' is deleted"),
        (fails, "it has no container; it is Pending(Starting): '"),
        (agent_ends, "agent 'agent_A' is not connected any more"),
    ] {
        let (mut cluster, instance) =
            cluster_with_held_start(workload("job", "run"), expected.starts_with("it has no"));
        let mut client = LogClient::new(&cluster);
        client.request("early", everything(&instance));
        client.accepted("early");
        end(&mut cluster);
        let lines = client.lines_until_stop("early", &instance);
        let is_it = lines.len() == 1 && lines[0].starts_with(&format!("[no log: {expected}"));
        assert!(is_it, "{expected}: {lines:?}");
    }
}

#[test]
fn what_has_no_log_ends_at_once() {
    let cluster = Cluster::start(&["agent_A"]);
    let recorder = Recorder::start(&cluster);
    let pending = workload("pending", "run").after("never", "ADD_COND_RUNNING");
    let never = workload("never", "run").on("agent_B");
    cluster.apply(&manifest(&[
        pending,
        never,
        workload("odd", "run").runtime("odd"),
    ]));
    cluster.wait_for_state("pending", "Pending(WaitingToStart)");
    cluster.wait_for_state("odd", "Pending(StartingFailed)");
    let mut client = LogClient::new(&cluster);
    let no_container = |state: &str| [format!("[no log: it has no container; it is {state}]")];
    let pending = recorder.instance("pending");
    assert_eq!(
        client.read_all(everything(&pending)),
        no_container("Pending(WaitingToStart): 'waits for 'never' to run'")
    );
    let odd = client.read_all(follow(&recorder.instance("odd")));
    let is_reason = odd[0].starts_with(
        "[no log: it has no container; it is Pending(StartingFailed): 'Unsupported Runtime",
    );
    assert!(odd.len() == 1 && is_reason, "{odd:?}");
    let refused = ank_logs(&cluster, "pending");
    assert!(
        refused.contains(
            "no logs of workload 'pending' on agent 'agent_A': it is Pending(WaitingToStart)"
        ),
        "{refused}"
    );
}

#[test]
fn who_follows_waits_also_for_dependencies() {
    let cluster = Cluster::start(&["agent_A"]);
    let recorder = Recorder::start(&cluster);
    let web = workload("web", "exit0")
        .config("commandArgs: [hello]")
        .after("db", "ADD_COND_SUCCEEDED");
    cluster.apply(&manifest(&[web, workload("db", "run")]));
    cluster.wait_for_state("web", "Pending(WaitingToStart)");
    cluster.wait_for_state("db", "Running(Ok)");
    let mut client = LogClient::new(&cluster);
    let web = recorder.instance("web");
    client.request("early", follow(&web));
    client.accepted("early");
    cluster.engine.finish("db", 0);
    assert_eq!(client.lines_until_stop("early", &web), ["hello"]);
}

/// What `ank logs` says about a workload without a log.
fn ank_logs(cluster: &Cluster, workload: &str) -> String {
    let output = cluster.ank(&["logs", workload]);
    assert_eq!(
        (output.code, output.stdout.as_str()),
        (1, ""),
        "{}",
        output.stderr
    );
    output.stderr
}

#[test]
fn errors_of_the_engine_are_reasons_and_no_lines_of_the_log() {
    let (cluster, web, _) = cluster();
    let mut client = LogClient::new(&cluster);
    let refused =
        json!({ "command": "logs", "times": 1, "exit": 125, "stderr": "Error: bad time \"x\"\n" });
    cluster
        .engine
        .script(&json!([refused, { "command": "ps", "exit": 125, "stderr": "locked" }]));
    // The container has to be found first, which fails.
    let lines = client.read_all(everything(&web));
    assert!(
        lines.len() == 1 && lines[0].starts_with("[no log: locked. Execution of 'podman "),
        "{lines:?}"
    );
    cluster.engine.script(&json!([refused]));
    assert_eq!(
        client.read_all(everything(&web)),
        ["[no log: Error: bad time \"x\"]"]
    );
}

#[test]
fn a_lost_server_ends_the_processes_that_read_logs() {
    let (mut cluster, web, _) = cluster();
    let mut client = LogClient::new(&cluster);
    client.request("logs", follow(&web));
    client.accepted("logs");
    assert_eq!(client.lines("logs"), ["hello world"]);
    wait_until("only the log is being read", || {
        cluster.engine.hanging_calls_of("logs").len() == 1
    });
    cluster.kill_server();
    wait_until("its process is ended", || {
        cluster.engine.hanging_calls_of("logs").is_empty()
    });
}

#[test]
fn ended_and_restarted_agents_leave_no_log_readers() {
    let (mut cluster, web, _) = cluster();
    for killed in [false, true] {
        let mut client = LogClient::new(&cluster);
        client.request("logs", follow(&web));
        client.accepted("logs");
        assert_eq!(client.lines("logs"), ["hello world"]);
        wait_until("only the log is being read", || {
            cluster.engine.hanging_calls_of("logs").len() == 1
        });
        let reading = Identity::of(cluster.engine.hanging_calls_of("logs")[0]);
        if killed {
            cluster.kill_agent("agent_A");
            assert!(reading.is_alive(), "nobody could end it");
        } else {
            let agent = cluster.agent("agent_A");
            agent.signal(Signal::TERM);
            assert!(agent.wait(LIMIT).is_some());
            assert!(!reading.is_alive());
            cluster.agents.remove("agent_A");
        }
        let reason = "[no log: agent 'agent_A' is not connected any more]";
        assert_eq!(client.lines_until_stop("logs", &web), [reason]);
        cluster.start_agent("agent_A");
        cluster.wait_for_state("web", "Running(Ok)");
        assert!(!reading.is_alive());
    }
}

#[test]
fn slow_log_reader_learns_the_number_of_missed_lines() {
    let mut cluster = Cluster::prepare();
    // Otherwise the server closes the connection before a slow engine has written all lines.
    cluster.server_env = vec![(
        "ANKAIOS_TEST_PATIENCE".to_owned(),
        LIMIT.as_secs().to_string(),
    )];
    cluster.start_all(&["agent_A"]);
    let (web, _) = run_both(&cluster);
    cluster
        .engine
        .script(&json!([{ "command": "logs", "stdout_bytes": 20_000_000, "line_bytes": 256 }]));
    let mut client = LogClient::new(&cluster);
    client.request("flood", everything(&web));
    cluster.run(&[workload("calm", "run")]);
    wait_until("all lines were read from the engine", || {
        cluster
            .engine
            .calls_of("logs", "")
            .first()
            .is_some_and(|call| call.exit == Some(0))
    });
    for pid in [cluster.agent("agent_A").pid(), cluster.server().pid()] {
        let peak = memory_peak_kib(pid);
        assert!(peak < 150_000, "process {pid} took {peak} KiB");
    }
    client.accepted("flood");
    let lines = client.lines_until_stop("flood", &web);
    let missed = |line: &String| -> Option<usize> {
        line.strip_prefix('[')?
            .strip_suffix(" lines not shown: they came faster than they were read]")?
            .parse()
            .ok()
    };
    let dropped: usize = lines.iter().filter_map(missed).sum();
    assert!(dropped > 0, "{} lines came", lines.len());
    let shown = lines.iter().filter(|line| missed(line).is_none()).count();
    assert_eq!(shown + dropped, 20_000_000 / 256);
}

#[test]
fn a_line_without_end_closes_the_log() {
    let (mut cluster, web, _) = cluster();
    cluster
        .engine
        .script(&json!([{ "command": "logs", "stdout_bytes": 100_000_000 }]));
    let mut client = LogClient::new(&cluster);
    let lines = client.read_all(follow(&web));
    assert_eq!(
        lines,
        ["The previous log message exceeded the maximum 50 MB size. Closing the log campaign."]
    );
    wait_until("its process is ended", || {
        cluster.engine.hanging_calls_of("logs").is_empty()
    });
    let peak = memory_peak_kib(cluster.agent("agent_A").pid());
    assert!(peak < 100_000, "the agent took {peak} KiB");
}
