//! `ank get events`, `ank logs`, watching: how they follow, and how they end.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use std::io::Write;

use crate::support::process::exit_code;
use crate::support::{Cluster, LIMIT, Process, manifest, poll, wait_until, workload};
use rustix::process::Signal;
use serde_json::Value;

const CONFIGS: &str = "desiredState:\n  apiVersion: v1\n  configs:\n";

fn set_config(cluster: &Cluster, name: &str, value: &str) {
    let text = format!("{CONFIGS}    {name}: {value}\n");
    cluster
        .ank_with_input(
            &["set", "state", &format!("desiredState.configs.{name}"), "-"],
            &text,
        )
        .success();
}

/// Starts `get events -c -o json` for configs and waits for the state as it is, so that nothing
/// later is missed.
fn follow_configs(cluster: &Cluster, further: &[&str]) -> Process {
    let mut arguments = vec!["get", "events", "-c", "-o", "json"];
    arguments.extend(further);
    arguments.push("desiredState.configs");
    let process = cluster.start_ank(&arguments);
    wait_until("the current state", || {
        process.stdout().lines().count() == 1
    });
    process
}

fn ended(process: &mut Process) -> i32 {
    exit_code(process.wait(LIMIT).expect("ank ends"))
}

#[test]
fn events_are_one_json_object_a_line_until_the_count() {
    let cluster = Cluster::start(&[]);
    set_config(&cluster, "other", "stays");
    let mut process = follow_configs(&cluster, &["--count", "3"]);
    set_config(&cluster, "port", "'80'");
    set_config(&cluster, "port", "'81'");
    assert_eq!(
        cluster.ank(&["delete", "config", "port"]).stdout,
        "Deleted config 'port'.\n"
    );
    assert_eq!((ended(&mut process), process.stderr()), (0, String::new()));
    let lines: Vec<Value> = process
        .stdout()
        .lines()
        .map(|line| serde_json::from_str(line).expect("one object a line"))
        .collect();
    assert_eq!(lines.len(), 4);
    let path = "desiredState.configs.port";
    for (line, key, value) in [
        (&lines[1], "addedFields", Some("80")),
        (&lines[2], "updatedFields", Some("81")),
        (&lines[3], "removedFields", None),
    ] {
        assert_eq!(line[key], serde_json::json!([path]), "{line}");
        assert_eq!(
            line["completeState"]["desiredState"]["configs"]["port"].as_str(),
            value,
            "{line}"
        );
        let timestamp = line["timestamp"].as_str().unwrap_or_default();
        assert!(
            timestamp.len() == 35 && timestamp.ends_with("+00:00"),
            "{timestamp}"
        );
    }
    assert!(lines[0].get("addedFields").is_none());
}

#[test]
fn signals_end_events_in_order_and_without_a_word() {
    let cluster = Cluster::start(&[]);
    for signal in [Signal::INT, Signal::TERM, Signal::QUIT, Signal::HUP] {
        let mut process = follow_configs(&cluster, &[]);
        process.signal(signal);
        assert_eq!(
            (ended(&mut process), process.stderr()),
            (0, String::new()),
            "{signal:?}"
        );
    }
    let mut watch = cluster.start_ank(&["get", "workloads", "-w"]);
    wait_until("the first frame", || {
        watch.stdout().contains("WORKLOAD NAME")
    });
    watch.signal(Signal::INT);
    assert_eq!(
        (ended(&mut watch), watch.stderr()),
        (130, String::new()),
        "everything else ends by the signal"
    );
}

#[test]
fn signal_ends_awaited_events_with_an_error_code() {
    let cluster = Cluster::start(&[]);
    for further in [
        &["--until", "desiredState.configs.k=never"][..],
        &["--count", "9"],
    ] {
        let mut process = follow_configs(&cluster, further);
        process.signal(Signal::INT);
        assert_eq!(
            (ended(&mut process), process.stderr()),
            (130, String::new()),
            "{further:?}"
        );
    }
}

#[test]
fn killed_server_ends_apply_with_a_way_to_its_outcome() {
    let mut cluster = Cluster::start(&[]);
    let file = cluster.write("web.yaml", &manifest(&[workload("web", "run")]));
    let path = file.display().to_string();
    // It waits, since its agent is not connected.
    let mut apply = cluster.start_ank(&["--wait-timeout", "36000", "apply", &path]);
    wait_until("it is accepted", || {
        apply.stdout().contains("Successfully applied")
    });
    cluster.kill_server();
    assert_eq!(ended(&mut apply), 1);
    let stderr = apply.stderr();
    let hint = "hint: start the server again if it was stopped, or see its log; \
                then repeat the command with '--fail-on-error'\n";
    assert!(stderr.ends_with(hint), "{stderr}");
}

#[test]
fn lost_connection_ends_events_unless_they_reconnect() {
    let mut cluster = Cluster::start(&[]);
    let mut ends = follow_configs(&cluster, &[]);
    let mut watch = cluster.start_ank(&["get", "workloads", "-w"]);
    wait_until("the first frame", || {
        watch.stdout().contains("WORKLOAD NAME")
    });
    let mut stays = follow_configs(&cluster, &["--reconnect", "--count", "1"]);
    cluster.kill_server();
    assert_eq!(ended(&mut ends), 1);
    let first = |process: &Process| {
        process
            .stderr()
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let expected = "error: Failed to get events: Connection to server interrupted: ";
    assert!(first(&ends).starts_with(expected), "{}", first(&ends));
    assert_eq!(ended(&mut watch), 1);
    let expected = "error: Failed to watch workloads: Connection to server interrupted: ";
    assert!(first(&watch).starts_with(expected), "{}", first(&watch));
    for process in [&ends, &watch] {
        let stderr = process.stderr();
        let stopped =
            stderr.ends_with("\nhint: start the server again if it was stopped, or see its log\n");
        assert!(stopped && !stderr.contains("TLS"), "{stderr}");
    }
    cluster.start_server(&[]);
    // The state as it is after the new connection.
    wait_until("a new connection", || stays.stdout().lines().count() == 2);
    set_config(&cluster, "k", "v");
    assert_eq!(ended(&mut stays), 0, "{}", stays.stderr());
    assert!(
        stays
            .stdout()
            .lines()
            .last()
            .unwrap_or_default()
            .contains("addedFields"),
        "{}",
        stays.stdout()
    );
    let first = first(&stays);
    let is_named = first.starts_with("warn: Connection to server interrupted: ");
    assert!(is_named && first.ends_with("; trying again"), "{first}");
}

#[test]
fn events_without_a_server_are_an_error_with_reconnect_too() {
    let mut cluster = Cluster::start(&[]);
    cluster.kill_server();
    for arguments in [&["get", "events"][..], &["get", "events", "--reconnect"]] {
        let output = cluster.ank(arguments);
        assert_eq!(output.code, 1);
        assert!(
            output
                .stderr
                .starts_with("error: Could not connect to Ankaios server on 'http://"),
            "{}",
            output.stderr
        );
    }
}

#[test]
fn a_reader_that_goes_away_ends_ank_without_a_message() {
    let cluster = Cluster::start(&[]);
    for words in [
        "get state",
        "get events -c",
        "get workloads -w",
        "help apply",
    ] {
        let (reader, writer) = std::io::pipe().expect("pipes can be had");
        drop(reader);
        let mut command = cluster.ank_command();
        let output = command
            .args(words.split(' '))
            .stdout(writer)
            .output()
            .expect("ank starts");
        assert_eq!(
            (
                exit_code(output.status),
                String::from_utf8_lossy(&output.stderr).as_ref()
            ),
            (0, ""),
            "{words}"
        );
    }
}

#[test]
fn logs_that_cannot_be_had_are_explained_instead_of_awaited() {
    let mut cluster = Cluster::start(&["agent_A"]);
    cluster.apply(&manifest(&[
        workload("odd", "run").runtime("nosuch"),
        workload("waits", "run").after("odd", "ADD_COND_RUNNING"),
        workload("nowhere", "run").on("\"\""),
        workload("fine", "run"),
    ]));
    cluster.wait_for_state("odd", "Pending(StartingFailed)");
    cluster.wait_for_state("waits", "Pending(WaitingToStart)");
    cluster.wait_for_state("fine", "Running(Ok)");
    for (name, warning) in [
        (
            "odd",
            "error: no logs of workload 'odd' on agent 'agent_A': it is Pending(StartingFailed): ",
        ),
        (
            "waits",
            "error: no logs of workload 'waits' on agent 'agent_A': it is Pending(WaitingToStart): waits for 'odd' to run\n",
        ),
        (
            "nowhere",
            "error: no logs of workload 'nowhere': it is NotScheduled\n",
        ),
    ] {
        for arguments in [&["logs", name][..], &["logs", "-f", name]] {
            let output = cluster.ank(arguments);
            assert_eq!(
                (output.code, output.stdout.as_str()),
                (1, ""),
                "{arguments:?}"
            );
            assert!(output.stderr.starts_with(warning), "{}", output.stderr);
        }
    }
    let output = cluster.ank(&["logs", "fien"]);
    let text = "error: Failed to output logs: Workload name 'fien' does not exist.\nhint: did you mean 'fine'?\n";
    assert_eq!((output.code, output.stderr.as_str()), (1, text));
    cluster.agents.get_mut("agent_A").expect("started").kill();
    cluster.wait_for_state("fine", "AgentDisconnected");
    let output = cluster.ank(&["logs", "-f", "fine"]);
    assert_eq!(output.code, 1);
    assert!(
        output.stderr.contains("it is AgentDisconnected"),
        "{}",
        output.stderr
    );
}

#[test]
fn logs_options_reach_the_engine_with_absolute_times() {
    let cluster = Cluster::start(&["agent_A"]);
    let web = workload("web", "run").config("commandArgs: [hello, world]");
    cluster.run(&[web.tagged("team", "web"), workload("db", "run")]);
    for (arguments, expected) in [
        (
            &["logs", "--timestamps", "web"][..],
            "2026-01-31T12:00:00.000000000Z hello world\n",
        ),
        (
            &["logs", "--since", "1h", "--until", "0s", "-n", "5", "web"],
            "hello world\n",
        ),
        (&["logs", "-l", "team=web"], "hello world\n"),
    ] {
        let output = cluster.ank(arguments).success();
        assert_eq!(output, expected, "{arguments:?}");
    }
    let calls = cluster.engine.calls_of("logs", "--since");
    let words: Vec<&str> = calls[0].argv.iter().map(String::as_str).collect();
    let ["logs", "--since", since, "--until", until, "--tail", "5", _] = words[..] else {
        panic!("{words:?}");
    };
    assert!(since < until && since.ends_with("+00:00"), "{words:?}");
}

#[test]
fn logs_on_two_agents_are_followed_until_both_ended() {
    let cluster = Cluster::start(&["agent_A", "agent_B"]);
    let web = workload("web", "run").config("commandArgs: [hello, world]");
    let db = workload("db", "run")
        .on("agent_B")
        .config("commandArgs: ['one\n\n      two']");
    cluster.apply(&manifest(&[web, db]));
    cluster.wait_until_run(&["web", "db"]);
    for (arguments, expected) in [
        (&["logs", "web"][..], "hello world\n"),
        (&["logs", "-n", "web"], "web hello world\n"),
        (
            &["logs", "--agent-names", "--tail", "7", "web"],
            "agent_A/web hello world\n",
        ),
    ] {
        let output = cluster.ank(arguments);
        assert_eq!(
            (output.code, output.stdout.as_str(), output.stderr.as_str()),
            (0, expected, ""),
            "{arguments:?}"
        );
    }
    let (_, id) = cluster.engine.only_container("web");
    let calls: Vec<String> = cluster
        .engine
        .calls_of("logs", &id)
        .iter()
        .map(|call| call.argv.join(" "))
        .collect();
    assert_eq!(
        calls,
        [
            format!("logs {id}"),
            format!("logs {id}"),
            format!("logs --tail 7 {id}")
        ]
    );

    // Which of the two workloads comes first is open, the order of the lines of one of them is not.
    let lines_of = |process: &Process, name: &str| -> Vec<String> {
        let text = process.stdout();
        text.lines()
            .filter_map(|line| line.strip_prefix(name))
            .map(str::to_owned)
            .collect()
    };
    let mut both = cluster.start_ank(&["logs", "--follow", "web", "db"]);
    let mut stopped = cluster.start_ank(&["logs", "-f", "web"]);
    let came = poll(LIMIT, || (both.stdout().lines().count() == 3).then_some(()));
    assert!(
        came.is_some(),
        "the lines so far: {:?} {:?}",
        both.stdout(),
        both.stderr()
    );
    wait_until("the line of the other reader", || {
        stopped.stdout() == "hello world\n"
    });
    let log = cluster.engine.state().join("logs").join(&id);
    let mut file = std::fs::File::options()
        .append(true)
        .open(log)
        .expect("the container has a log");
    file.write_all(b"later\n").expect("the log is writable");
    wait_until("the line that comes later", || {
        both.stdout().lines().count() == 4
    });
    assert_eq!(lines_of(&both, "web "), ["hello world", "later"]);
    assert_eq!(lines_of(&both, "db "), ["one", "two"]);
    wait_until("the same line", || {
        stopped.stdout() == "hello world\nlater\n"
    });

    stopped.signal(Signal::INT);
    assert_eq!((ended(&mut stopped), stopped.stderr()), (0, String::new()));
    wait_until("nobody reads for it any more", || {
        cluster.engine.hanging_calls_of("logs").len() == 2
    });
    cluster.engine.finish("web", 0);
    wait_until("one reader is left", || {
        cluster.engine.hanging_calls_of("logs").len() == 1
    });
    assert!(both.is_running(), "the other workload still runs");
    cluster.engine.finish("db", 0);
    assert_eq!((ended(&mut both), both.stderr()), (0, String::new()));
    assert_eq!(both.stdout().lines().count(), 4);
}

// [stest->swdd~cli-state-as-manifest~1]
// [stest->swdd~cli-waits-for-workloads~1]
// [stest->swdd~cli-describes-one-object~1]
#[test]
fn workload_of_a_folder_is_awaited_described_and_gone() {
    let cluster = Cluster::start(&["agent_A"]);
    let folder = cluster.folder().join("vehicle");
    std::fs::create_dir(&folder).expect("own folder is writable");
    cluster.write("vehicle/b.yaml", &manifest(&[workload("web", "run")]));
    cluster.write("vehicle/a.txt", "no manifest");
    let accepted = cluster.ank(&["apply", "--no-wait", "vehicle"]).success();
    assert_eq!(accepted, "Accepted: 1 added, 0 changed, 0 deleted.\n");
    let waited = cluster.ank(&["wait", "web"]).success();
    assert!(waited.ends_with("'web': running.\n"), "{waited}");
    let described = cluster.ank(&["describe", "web"]).success();
    assert!(described.starts_with("workload: web\n"), "{described}");
    assert!(described.contains("state: Running(Ok)\n"), "{described}");
    let saved = cluster.ank(&["get", "state", "-o", "manifest"]).success();
    let repeated = cluster
        .ank_with_input(&["apply", "-f", "-"], &saved)
        .success();
    assert_eq!(repeated, "Apply successful. No workloads updated.\n");
    let names = cluster.ank(&["get", "agents", "-o", "name"]).success();
    assert_eq!(names, "agent_A\n");
    let missing = cluster.ank(&["get", "agents", "agent_B"]);
    assert_eq!(missing.code, 1, "{}", missing.stderr);
    let late = cluster.ank(&["wait", "web", "--for", "gone", "--timeout", "1ms"]);
    assert_eq!(late.code, 4, "{}", late.stderr);
    cluster
        .ank(&["--no-wait", "delete", "workload", "web"])
        .success();
    cluster.ank(&["wait", "web", "--for", "gone"]).success();
}
