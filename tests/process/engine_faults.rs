//! An engine that hangs, is missing, fails or talks nonsense: a clear state, the rest goes on,
//! nothing is lost.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use crate::support::log_client::everything;
use crate::support::manifest::Workload;
use crate::support::process::{Identity, has_zombies, memory_peak_kib};
use crate::support::table::Row;
use crate::support::{Cluster, LogClient, Recorder, manifest, pod, wait_until, workload};
use serde_json::{Value, json};

#[test]
fn hanging_run_shows_its_age_and_is_cancelled_by_a_delete() {
    let mut cluster = Cluster::start(&["agent_A"]);
    cluster
        .engine
        .script(&json!([{ "command": "run", "workload": "hanging", "hang": true }]));
    cluster.apply(&manifest(&[workload("hanging", "run")]));
    wait_until("podman run hangs", || {
        cluster.engine.hanging_calls_of("run").len() == 1
    });

    let others: Vec<_> = (0..10)
        .map(|number| workload(&format!("other_{number}"), "run"))
        .collect();
    cluster.apply(&manifest(&others));
    for number in 0..10 {
        cluster.wait_for_state(&format!("other_{number}"), "Running(Ok)");
    }
    let row = cluster.wait_for_row("hanging", "shows its age", |row| {
        let age = row
            .info
            .split_whitespace()
            .find_map(|word| word.parse::<u64>().ok());
        age.is_some_and(|seconds| seconds >= 1)
    });
    assert_eq!(row.state, "Pending(Starting)");

    cluster.remove("hanging");
    wait_until("podman run is ended", || {
        cluster.engine.hanging_calls_of("run").is_empty()
    });
    assert!(cluster.engine.containers_of("hanging").is_empty());
    let agent = cluster.agent("agent_A").pid();
    wait_until("no zombie is left", || !has_zombies(agent));
}

#[test]
fn hanging_stop_delays_nobody() {
    let cluster = Cluster::start(&["agent_A"]);
    // It may take an hour to stop, as long as this test may.
    let w1 = workload("w1", "run").config("commandOptions: [--stop-timeout=3600]");
    cluster.run(&[w1, workload("w2", "run")]);
    cluster
        .engine
        .script(&json!([{ "command": "stop", "workload": "w1", "hold": "stop" }]));
    cluster.delete("w1");
    wait_until("podman stop hangs", || {
        cluster.engine.hanging_calls_of("stop").len() == 1
    });
    cluster.apply(&manifest(&[workload("w3", "run")]));
    cluster.delete("w2");
    cluster.wait_for_state("w3", "Running(Ok)");
    cluster.wait_until_gone("w2");
    assert_eq!(
        cluster.workload("w1").map(|row| row.state).as_deref(),
        Some("Stopping(RequestedAtRuntime)")
    );
    cluster.engine.release("stop");
    cluster.wait_until_gone("w1");
    assert!(cluster.engine.containers_of("w1").is_empty());
}

/// The limit is the container's own 10 s and 10 s more.
#[test]
fn stop_that_hangs_is_ended_at_its_limit_and_repeated() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("w1", "run")]);
    cluster
        .engine
        .script(&json!([{ "command": "stop", "workload": "w1", "times": 1, "hang": true }]));
    cluster.remove("w1");
    assert!(cluster.engine.containers_of("w1").is_empty());
    let stops = cluster.engine.calls_of("stop", "");
    assert!(stops.len() >= 2, "{stops:?}");
    assert_eq!(stops[0].exit, None, "it was ended");
}

#[test]
fn container_of_a_failed_create_is_removed_after_an_outage() {
    let cluster = Cluster::start(&["agent_A"]);
    let broken = json!({ "exit": 125, "stderr": "Error: no space left" });
    let with = |command: &str, key: &str, value: bool| {
        let mut rule = broken.clone();
        (rule["command"], rule[key]) = (json!(command), json!(value));
        rule
    };
    cluster.engine.script(&json!([
        with("run", "leaves_container", true),
        with("rm", "perform", false)
    ]));
    cluster.apply(&manifest(&[workload("w1", "run")]));
    cluster.wait_for_row("w1", "has failed", |row| row.info.contains("no space left"));
    cluster.engine.uninstall();
    cluster.delete("w1");
    let row = cluster.wait_for_row("w1", "cannot be removed", |row| {
        row.state == "Stopping(DeleteFailed)"
    });
    assert!(
        row.info
            .contains("Error: 'podman' cannot be started: No such file or directory"),
        "{row:?}"
    );
    assert_eq!(cluster.engine.containers_of("w1").len(), 1);
    // Only now: a call of the last retry may have begun before podman was away.
    cluster.engine.script(&json!([]));
    cluster.engine.install();
    cluster.wait_until_gone("w1");
    assert!(cluster.engine.containers_of("w1").is_empty());
}

// The workload is known before its container exists.
#[test]
fn the_log_of_a_workload_whose_run_hangs_delays_no_other() {
    let cluster = Cluster::start(&["agent_A"]);
    let recorder = Recorder::start(&cluster);
    cluster
        .engine
        .script(&json!([{ "command": "run", "workload": "hanging", "hang": true }]));
    cluster.apply(&manifest(&[workload("hanging", "run")]));
    wait_until("podman run hangs", || {
        cluster.engine.hanging_calls_of("run").len() == 1
    });
    let instance = recorder.instance("hanging");
    let mut client = LogClient::new(&cluster);
    client.request("log", everything(&instance));
    client.accepted("log");
    // More than the queue of one workload holds: the newest target applies, and no update waits.
    for number in 0..20 {
        cluster.apply(&manifest(&[
            workload("hanging", "run").tag(&format!("t{number}"))
        ]));
    }
    cluster.run(&[workload("calm", "run")]);
    cluster.engine.script(&json!([]));
    cluster.remove("hanging");
    assert_eq!(cluster.engine.containers().len(), 1);
    let lines = client.lines_until_stop("log", &instance);
    assert!(
        lines.len() == 1 && lines[0].starts_with("[no log: "),
        "{lines:?}"
    );
}

#[test]
fn agent_without_podman_finds_containers_when_it_is_back() {
    let mut cluster = Cluster::prepare();
    cluster.engine.uninstall();
    cluster.start_with_manifest(&manifest(&[workload("w1", "run")]));
    let row = cluster.wait_for_row("w1", "is retried", |row| row.info.starts_with("Retry "));
    assert!(
        row.info
            .contains("Error: 'podman' cannot be started: No such file or directory"),
        "{row:?}"
    );
    cluster.engine.install();
    cluster.wait_for_state("w1", "Running(Ok)");
    assert_eq!(cluster.engine.containers_of("w1").len(), 1);
}

#[test]
fn hundred_megabytes_from_the_engine_are_not_kept() {
    let mut cluster = Cluster::start(&["agent_A"]);
    let recorder = Recorder::start(&cluster);
    cluster.run(&[workload("calm", "run")]);
    cluster.engine.script(&json!([
        { "command": "run", "workload": "noisy", "times": 1, "exit": 125, "stderr_bytes": 100_000_000 },
        { "command": "run", "workload": "noisy", "times": 2, "stdout_bytes": 100_000_000 },
        { "command": "ps", "times": 2, "stdout_bytes": 100_000_000 },
    ]));
    cluster.apply(&manifest(&[workload("noisy", "run")]));
    cluster.wait_until_run(&["noisy", "calm"]);
    recorder.states_until("noisy", "Running(Ok)");
    let mut retries = recorder.changes();
    retries.retain(|change| change.workload == "noisy" && change.info.starts_with("Retry "));
    let longest = retries.iter().map(|change| change.info.len()).max();
    assert!(
        longest.is_some_and(|longest| longest < 10_000),
        "the text of the engine is cut: {longest:?} bytes"
    );
    assert_eq!(cluster.engine.calls_of("run", "calm.").len(), 1);
    let peak = memory_peak_kib(cluster.agent("agent_A").pid());
    assert!(peak < 100_000, "the agent took {peak} KiB");
}

#[test]
fn cause_of_a_missing_image_is_shown_without_progress() {
    let error = "initializing source docker://localhost/nope:1.0: pinging container registry localhost: Get \
                 \"https://localhost/v2/\": dial tcp [::1]:443: connect: connection refused";
    let retry = format!(
        "time=\"2026-01-31T12:00:00Z\" level=warning msg=\"Failed, retrying in 1s ... (1/3). Error: {error}\"\n"
    );
    let said = format!(
        "Trying to pull localhost/nope:1.0...\n{}Error: {error}\n",
        retry.repeat(3)
    );
    let mut cluster = Cluster::start(&["agent_A"]);
    cluster
        .engine
        .script(&json!([{ "command": "run", "exit": 125, "stderr": said }]));
    cluster.apply(&manifest(&[workload("web", "localhost/nope:1.0")]));
    let row = cluster.wait_for_row("web", "is retried", |row| row.info.starts_with("Retry "));
    assert_eq!(
        row.info.split_once(": ").map(|(_, cause)| cause),
        Some(&*format!("Error: {error}"))
    );
    let log = cluster.agent("agent_A").stderr();
    assert!(
        log.contains("Trying to pull localhost/nope:1.0...")
            && log.contains("Execution of 'podman \"run\""),
        "{log}"
    );
}

#[test]
fn hanging_first_listing_ends_after_its_limit() {
    let mut cluster = Cluster::prepare();
    cluster
        .engine
        .script(&json!([{ "command": "ps", "times": 1, "hang": true }]));
    cluster.start_with_manifest(&manifest(&[workload("w1", "run")]));
    let listing = cluster.wait_for("podman ps hangs", || {
        let calls = cluster.engine.hanging_calls_of("ps");
        calls.first().map(|pid| Identity::of(*pid))
    });
    cluster.wait_for_state("w1", "Running(Ok)");
    wait_until("the hanging listing is ended", || !listing.is_alive());
    assert_eq!(cluster.engine.containers_of("w1").len(), 1);
}

/// Runs the fake engine beside the agent, as a person at the machine would.
fn by_hand(cluster: &Cluster, arguments: &[&str]) {
    let mut command = std::process::Command::new(cluster.engine.bin().join("podman"));
    command
        .args(arguments)
        .env("FAKE_ENGINE_DIR", cluster.engine.state());
    let output = command.output().expect("the fake engine starts");
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_hanging_log_of_the_engine_hangs_nothing_else() {
    let cluster = Cluster::start(&["agent_A"]);
    let recorder = Recorder::start(&cluster);
    cluster.run(&[workload("w1", "run").config("commandArgs: [hello]")]);
    let w1 = recorder.instance("w1");
    cluster
        .engine
        .script(&json!([{ "command": "logs", "hang": true, "times": 1 }]));
    let mut client = LogClient::new(&cluster);
    client.request("hangs", everything(&w1));
    client.accepted("hangs");
    let hangs = || {
        cluster
            .engine
            .calls_of("logs", "")
            .iter()
            .any(|call| cluster.engine.hanging_calls_of("logs").contains(&call.pid))
    };
    wait_until("the call hangs", || {
        hangs() && cluster.engine.state().join("rule_uses.json").exists()
    });
    let mut other = LogClient::new(&cluster);
    assert_eq!(other.read_all(everything(&w1)), ["hello"]);
    cluster.run(&[workload("w2", "run")]);
    cluster.remove("w1");
    assert!(hangs(), "as long as somebody wants the log");
    client.cancel("hangs");
    wait_until("the hanging call is ended", || {
        cluster.engine.hanging_calls_of("logs").is_empty()
    });
}

#[test]
fn pods_without_kube_play_are_retried_and_can_be_deleted() {
    let cluster = Cluster::start(&["agent_A"]);
    let refused = |command: &str| {
        let text = format!("Error: unrecognized command `podman {command}`\n");
        json!({ "command": command, "exit": 125, "stderr": text })
    };
    cluster.engine.script(&json!([
        refused("kube play"),
        refused("kube down"),
        refused("pod ls"),
        refused("pod rm")
    ]));
    cluster.apply(&manifest(&[pod("pod", "run")]));
    let row = cluster.wait_for_row("pod", "is retried", |row| row.info.starts_with("Retry "));
    assert!(
        row.info.contains("Error: unrecognized command `podman "),
        "{row:?}"
    );
    cluster.run(&[workload("calm", "run")]);
    cluster.remove("pod");
}

/// A cluster with all engines, where these fail to run anything, and whose agent logs every call.
fn with_failing_engines(said: &str, further: &[Value]) -> Cluster {
    let mut cluster = Cluster::prepare();
    cluster.engine.install_nerdctl();
    cluster.agent_env = vec![("RUST_LOG".to_owned(), "debug".to_owned())];
    cluster.start_all(&["agent_A"]);
    let fails = |command: &str| json!({ "command": command, "exit": 125, "stderr": said });
    cluster.engine.script(
        &[&[fails("run"), fails("kube play")], further]
            .concat()
            .into(),
    );
    cluster
}

/// The row of a workload whose create has failed twice.
fn failed_twice(cluster: &Cluster, name: &str) -> Row {
    let retried = |info: &str| info.starts_with("Retry ") && !info.starts_with("Retry 1: ");
    cluster.wait_for_row(name, "was tried twice", |row| retried(&row.info))
}

#[track_caller]
fn has_no_secret(log: &str) {
    let shown: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("hunter2"))
        .collect();
    assert!(shown.is_empty(), "{shown:#?}");
}

/// Sends what no engine can run: `ank apply` refuses it, `ank set state` does not. Neither shows a
/// secret.
fn set_unfit(cluster: &Cluster, workload: Workload, expected: &str) {
    let mask = format!("desiredState.workloads.{}", workload.name());
    let text = manifest(&[workload]);
    let refused = cluster.ank_with_input(&["--no-wait", "apply", "-"], &text);
    assert!(
        refused.code == 1 && refused.stderr.contains(expected),
        "{refused:?}"
    );
    let mut state = String::from("desiredState:\n");
    for line in text.lines() {
        state += &format!("  {line}\n");
    }
    let sent = cluster.ank_with_input(&["--no-wait", "set", "state", &mask, "-"], &state);
    assert_eq!(sent.code, 0, "{sent:?}");
    for output in [refused, sent] {
        assert!(!output.stderr.contains("hunter2"), "{}", output.stderr);
    }
}

#[test]
fn secrets_in_options_are_masked_in_states_and_log() {
    let no_volumes =
        json!({ "command": "volume create", "exit": 125, "stderr": "Error: no room\n" });
    let cluster = with_failing_engines(
        "Error: 'PASSWORD=hunter2' is wrong, so is 'hunter2'\n",
        &[no_volumes],
    );
    let options =
        "commandOptions: [--env, PASSWORD=hunter2, -eX=hunter2]\ncommandArgs: [--key, hunter2]";
    let pods = pod("w3", "run").config("playOptions: ['--annotation=PASSWORD=hunter2']");
    let unreadable = workload("w4", "run").config("commandOptions: '--env=PASSWORD=hunter2'");
    let plain = workload("w1", "run").config(options);
    let nerdctl = workload("w2", "run").config(options).runtime("containerd");
    cluster.apply(&manifest(&[plain, nerdctl, pods]));
    set_unfit(
        &cluster,
        unreadable,
        "commandOptions: expected a list ('- ' before each item), found a text",
    );
    for name in ["w1", "w2", "w3"] {
        let row = failed_twice(&cluster, name);
        assert!(
            row.info.ends_with("'PASSWORD=***' is wrong, so is '***'"),
            "{row:?}"
        );
    }
    let row = cluster.wait_for_state("w4", "Pending(StartingFailed)");
    assert!(
        row.info
            .contains("commandOptions: expected a list ('- ' before each item), found a text")
            && !row.info.contains("hunter2"),
        "{row:?}"
    );
    let log = cluster.agents["agent_A"].stderr();
    assert!(
        log.contains("Executing 'podman \"run\"") && log.contains("PASSWORD=***"),
        "the log shows no calls"
    );
    has_no_secret(&log);
    assert!(
        !log.contains("--label=data=b") && !log.contains("--label=data=a"),
        "the configuration is kept in a label"
    );
}

#[test]
fn passwords_in_addresses_are_masked_in_states_and_log() {
    let said = "Error: source docker://u:other@h/x: no 'user:hunter2@host', not even 'hunter2'\n";
    let mut cluster = with_failing_engines(said, &[]);
    let options = "commandOptions: ['--http-proxy=http://user:hunter2@proxy:3128', --log-opt, 'x=https://u:hunter2@h']";
    let plain = workload("w1", "user:hunter2@host/image").config(options);
    let nerdctl = workload("w2", "https://user:hunter2@host/image")
        .config(options)
        .runtime("containerd");
    let pods = pod("w3", "user:hunter2@host/image")
        .config("playOptions: ['--annotation=PASSWORD=hunter2']");
    let unfit = workload("w4", "-https://user:hunter2@host/image");
    let block = workload("w5", "run")
        .config("lifecycle: {ready: {http: {port: 80, host: 'user:hunter2@host'}}}");
    cluster.apply(&manifest(&[plain, nerdctl, pods]));
    set_unfit(
        &cluster,
        unfit,
        "Unsupported image '-https://user:***@host/image'",
    );
    for name in ["w1", "w2", "w3"] {
        let row = failed_twice(&cluster, name);
        assert!(
            row.info
                .ends_with("source docker://u:***@h/x: no 'user:***@host', not even '***'"),
            "{row:?}"
        );
    }
    let row = cluster.wait_for_state("w4", "Pending(StartingFailed)");
    assert!(
        row.info.contains("user:***@host") && !row.info.contains("hunter2"),
        "{row:?}"
    );
    let refused = cluster.ank_with_input(&["apply", "-"], &manifest(&[block]));
    assert!(
        refused.code != 0 && refused.stderr.contains("found text 'user:***@host'"),
        "{}",
        refused.stderr
    );
    let log = cluster.agent("agent_A").stderr();
    assert!(
        log.contains("user:***@host/image\"")
            && log.contains("\"--http-proxy=http://user:***@proxy:3128\"")
    );
    has_no_secret(&(log + &cluster.server().stderr()));
}

/// Adds containers with the label of the agent and 16 MB of other labels, as images bring them.
fn add_large_containers(cluster: &Cluster) {
    by_hand(
        cluster,
        &[
            "run",
            "--detach",
            "--name",
            "large",
            "--label=agent=agent_A",
            "exit0",
        ],
    );
    let mut large = cluster.engine.containers().remove(0);
    let id = large["Id"].as_str().expect("an id").to_owned();
    for (label, value) in [
        ("image", "x".repeat(1_300_000)),
        ("name", "\u{e9}\"\n".repeat(300_000)),
    ] {
        large["Labels"][label] = json!(value);
    }
    for number in 0..8 {
        let id = format!("{number}{}", &id[1..]);
        large["Id"] = json!(id);
        let file = cluster.engine.state().join("containers").join(id);
        std::fs::write(file, large.to_string()).expect("own folder is writable");
    }
}

#[test]
fn sixteen_megabytes_of_labels_hid_all_workloads_of_an_engine() {
    for runtimes in [&["podman", "podman-kube"][..], &["containerd"]] {
        let mut cluster = Cluster::prepare();
        cluster.engine.install_nerdctl();
        add_large_containers(&cluster);
        cluster.start_all(&["agent_A"]);
        let named = |runtime: &&str| match *runtime {
            "podman-kube" => pod("podman-kube", "run"),
            other => workload(other, "run").runtime(other),
        };
        cluster.apply(&manifest(&runtimes.iter().map(named).collect::<Vec<_>>()));
        for name in runtimes {
            cluster.wait_for_state(name, "Running(Ok)");
            cluster.engine.finish(name, 3);
            cluster.wait_for_state(name, "Failed(ExecFailed)");
        }
    }
}
