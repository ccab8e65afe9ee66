//! The `lifecycle:` block with real podman: a database-like workload that is up after three seconds
//! and ready after six, checked in each way; then it stops working, is blocked, or is
//! not gone yet.
//!
//! Thread: the test's. Owns: per test one cluster and one podman store (support/podman.rs).

use crate::store::Podman;
use crate::support::{Cluster, Recorder, wait_until};
use std::fs;
use std::path::PathBuf;

/// A cluster of `agent_A`, which uses `podman`, and a folder of the node that workloads see as
/// `/shared`.
fn cluster(podman: &Podman) -> (Cluster, PathBuf) {
    let cluster = Cluster::start_on(podman, &["agent_A"], "");
    let shared = cluster.folder().join("shared");
    fs::create_dir(&shared).expect("own folder is writable");
    (cluster, shared)
}

/// A workload that runs `script` in a shell. Its network is its own, as is the default of this
/// store.
fn shell(
    name: &str,
    shared: &std::path::Path,
    script: &str,
    rest: &str,
    lifecycle: &str,
) -> String {
    // What busybox does not have is the node's perl.
    let volumes = ["/usr", "/lib", "/lib64"]
        .map(|folder| format!("--volume={folder}:{folder}:ro"))
        .join("\", \"");
    let lifecycle = if lifecycle.is_empty() {
        String::new()
    } else {
        format!("      lifecycle: {{ {lifecycle} }}\n")
    };
    format!(
        "  {name}:\n    agent: agent_A\n    runtime: podman\n{rest}    runtimeConfig: |\n      image: alpine:latest\n      \
         commandOptions: [\"--stop-timeout\", \"1\", \"{volumes}\", \"--volume={}:/shared\"]\n      \
         commandArgs: [sh, -c, {script:?}]\n{lifecycle}",
        shared.display()
    )
}

fn manifest(workloads: &[String]) -> String {
    format!("apiVersion: v1\nworkloads:\n{}", workloads.concat())
}

fn needs(name: &str) -> String {
    format!("    dependencies: {{{name}: ADD_COND_RUNNING}}\n")
}

/// Ends at once on SIGTERM.
const PATIENT: &str = "trap 'exit 0' TERM; while true; do sleep 0.1; done";

// [stest->swdd~agent-lifecycle-ready~1]
// [stest->swdd~agent-lifecycle-probes~1]
#[test]
fn dependent_starts_with_each_kind_of_ready_check() {
    let podman = Podman::new();
    let (cluster, shared) = cluster(&podman);
    let recorder = Recorder::start(&cluster);
    let notify = r#"/usr/bin/perl -MIO::Socket::UNIX -e 'my $s = IO::Socket::UNIX->new(Type => SOCK_DGRAM, Peer => $ENV{NOTIFY_SOCKET}) or die; print $s "READY=1"'"#;
    let listen = r#"{ /usr/bin/perl -MIO::Socket::UNIX -e 'my $s = IO::Socket::UNIX->new(Listen => 5, Local => "/shared/socket") or die; while (1) { $s->accept }' & }"#;
    let kinds = [
        ("notify", notify, "notify: true".to_owned()),
        (
            "tcp",
            "httpd -p 5432 -h /tmp",
            "tcp: { port: 5432 }".to_owned(),
        ),
        (
            "http",
            "mkdir /www; echo up > /www/ready; httpd -p 8080 -h /www",
            "http: { port: 8080, path: /ready, status: 200 }".to_owned(),
        ),
        ("unix", listen, format!("unix: {}/socket", shared.display())),
        (
            "file",
            "touch /shared/file",
            format!("file: {}/file", shared.display()),
        ),
        (
            "exec",
            "touch /tmp/ready",
            "exec: [test, -f, /tmp/ready], timeoutMs: 60000".to_owned(),
        ),
    ];
    let mut workloads = Vec::new();
    for (kind, serve, check) in &kinds {
        // Up, which is not enough, and ready, which it says of itself, too.
        let script = format!(
            "sleep 3; touch /shared/{kind}.up; sleep 3; touch /shared/{kind}.ready; {serve}; {PATIENT}"
        );
        let lifecycle = format!("ready: {{ {check}, deadlineMs: 0 }}");
        workloads.push(shell(
            &format!("db_{kind}"),
            &shared,
            &script,
            "",
            &lifecycle,
        ));
        let script = format!("test -f /shared/{kind}.ready || exit 7; {PATIENT}");
        workloads.push(shell(
            &format!("web_{kind}"),
            &shared,
            &script,
            &needs(&format!("db_{kind}")),
            "",
        ));
    }
    let output = cluster.ank_with_input(&["apply", "-", "--no-wait"], &manifest(&workloads));
    assert_eq!(output.code, 0, "{}", output.stderr);
    for (kind, ..) in &kinds {
        let (db, web) = (format!("db_{kind}"), format!("web_{kind}"));
        let row = cluster.wait_for_row(&web, "to run or to have failed", |row| {
            ["Running(Ok)", "Failed(ExecFailed)"].contains(&row.state.as_str())
        });
        assert_eq!(
            row.state, "Running(Ok)",
            "{kind}: it started before {db} was ready"
        );
        let at = |name: &str, state| recorder.position(name, state);
        assert!(
            at(&db, "Pending(Starting)") < at(&db, "Running(Ok)"),
            "{kind}"
        );
        assert!(
            at(&db, "Running(Ok)") < at(&web, "Pending(Starting)"),
            "{kind}"
        );
        let info = cluster.workload(&db).expect("it is there").info;
        assert!(
            info.starts_with("ready: ") && info.contains("answered"),
            "{kind}: {info}"
        );
    }
}

#[test]
fn start_times_separate_start_and_readiness() {
    let podman = Podman::new();
    let (cluster, shared) = cluster(&podman);
    let ready = format!(
        "ready: {{ file: {}/db, periodMs: 50, deadlineMs: 0 }}",
        shared.display()
    );
    let database = shell("db", &shared, PATIENT, "", &ready);
    let web = shell("web", &shared, PATIENT, &needs("db"), "");
    cluster.apply(&manifest(&[database, web]));
    cluster.wait_for_row("db", "runs and is not ready", |row| {
        row.info.starts_with("ready: ")
    });
    fs::write(shared.join("db"), "").expect("own folder is writable");
    cluster.wait_until_run(&["db", "web"]);
    let text = cluster.ank(&["blame", "-o", "json"]).success();
    let document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let [web, db] = ["web", "db"].map(|name| {
        let workloads = document["workloads"].as_array().expect("a list");
        workloads
            .iter()
            .find(|one| one["workload"] == name)
            .unwrap_or_else(|| panic!("no {name} in {text}"))
    });
    let number = |one: &serde_json::Value, key: &str| {
        one[key]
            .as_u64()
            .unwrap_or_else(|| panic!("no {key} in {text}"))
    };
    assert!(
        number(db, "readyMs") > 0 && number(db, "startMs") > 0,
        "{text}"
    );
    assert_eq!(
        number(db, "startMs") + number(db, "readyMs"),
        number(db, "runningAtMs") - number(db, "startingAtMs")
    );
    assert_eq!(
        (web["waitedFor"].as_str(), web["readyMs"].as_u64()),
        (Some("db"), None),
        "{text}"
    );
    assert!(number(web, "waitedMs") >= number(db, "readyMs"), "{text}");
}

#[test]
fn a_pod_is_ready_when_a_command_in_its_container_says_so() {
    let podman = Podman::new();
    let (cluster, _) = cluster(&podman);
    let pod = format!(
        "apiVersion: v1\n        kind: Pod\n        metadata: {{name: db}}\n        spec:\n          hostNetwork: true\n          \
         restartPolicy: Never\n          terminationGracePeriodSeconds: 1\n          containers:\n          \
         - {{name: main, image: 'alpine:latest', command: [sh, -c, \"sleep 3; touch /tmp/ready; {PATIENT}\"]}}\n"
    );
    let text = format!(
        "apiVersion: v1\nworkloads:\n  db:\n    agent: agent_A\n    runtime: podman-kube\n    runtimeConfig: |\n      \
         manifest: |\n        {pod}      lifecycle: {{ ready: {{ exec: [test, -f, /tmp/ready], timeoutMs: 60000, deadlineMs: 0 }} }}\n"
    );
    let output = cluster.ank_with_input(&["apply", "-"], &text);
    assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
    let row = cluster.workload("db").expect("it is there");
    assert_eq!(
        (
            row.state.as_str(),
            row.info.starts_with("ready: exec test answered")
        ),
        ("Running(Ok)", true),
        "{}",
        row.info
    );
}

// [stest->swdd~agent-lifecycle-restarts~1]
#[test]
fn missed_deadline_fails_and_starts_the_error_handler() {
    let podman = Podman::new();
    let (cluster, shared) = cluster(&podman);
    let handler = "    dependencies: {db: ADD_COND_FAILED}\n";
    let lifecycle = "ready: { tcp: { port: 5432 }, deadlineMs: 10000 }, restart: { backoffMs: 100, maxRestarts: 1 }";
    let db = shell("db", &shared, PATIENT, "", lifecycle);
    let handler = shell("handler", &shared, "exit 0", handler, "");
    cluster.apply(&manifest(&[db, handler]));
    cluster.wait_for_state("handler", "Succeeded(Ok)");
    // The handler ends before that, or while the restarted one is stopped.
    let info = "No more restarts: ready: tcp 5432 refused, not ready within 10 s";
    let row = cluster.wait_for_row("db", "has failed again", |row| row.info == info);
    assert_eq!(row.state, "Failed(ExecFailed)");
    assert!(podman.containers_of("db").is_empty());
}

// [stest->swdd~agent-lifecycle-alive~1]
#[test]
fn what_does_not_work_any_more_is_stopped_and_started_again() {
    let podman = Podman::new();
    let (cluster, shared) = cluster(&podman);
    // It is ready when the server listens, so that it lives from the first check on.
    let lifecycle = "ready: { http: { port: 8080, path: /ok }, deadlineMs: 0 }, \
                     alive: { http: { port: 8080, path: /ok }, periodMs: 200, timeoutMs: 60000, failureThreshold: 2 }";
    let script = format!("touch /shared/ok; httpd -p 8080 -h /shared; {PATIENT}");
    let policy = "    restartPolicy: ON_FAILURE\n";
    cluster.apply_until_run(
        &manifest(&[shell("db", &shared, &script, policy, lifecycle)]),
        &["db"],
    );
    let recorder = Recorder::start(&cluster);
    let (_, first) = podman.only_container("db");
    // A command in the container could be ended by its stop.
    fs::remove_file(shared.join("ok")).expect("the container made it");
    wait_until("another container runs", || {
        let found = podman.containers_of("db");
        found.len() == 1
            && found[0]["Id"].as_str() != Some(&first)
            && found[0]["State"] == "running"
    });
    cluster.wait_for_state("db", "Running(Ok)");
    assert!(
        recorder
            .states_of("db")
            .contains(&"Failed(ExecFailed)".to_owned())
    );
}

// [stest->swdd~agent-lifecycle-gone~1]
#[test]
fn a_delete_is_held_back_while_something_still_answers() {
    let podman = Podman::new();
    let (cluster, shared) = cluster(&podman);
    let lock = shared.join("lock");
    fs::write(&lock, "").expect("own folder is writable");
    let lifecycle = format!("gone: {{ file: {}, deadlineMs: 1000 }}", lock.display());
    cluster.apply_until_run(
        &manifest(&[shell("db", &shared, PATIENT, "", &lifecycle)]),
        &["db"],
    );
    let output = cluster.ank(&["delete", "workload", "db", "--no-wait"]);
    assert_eq!(output.code, 0, "{}", output.stderr);
    let row = cluster.wait_for_state("db", "Stopping(DeleteFailed)");
    assert!(
        row.info.ends_with("is still there after 1 s"),
        "{}",
        row.info
    );
    assert!(podman.containers_of("db").is_empty());
    fs::remove_file(&lock).expect("it was there");
    cluster.wait_until_gone("db");
}

// [stest->swdd~agent-lifecycle-precondition~1]
#[test]
fn withdrawn_precondition_stops_dependents_first() {
    let podman = Podman::new();
    let (cluster, shared) = cluster(&podman);
    let key = shared.join("key");
    fs::write(&key, "").expect("own folder is writable");
    let lifecycle = format!("precondition: {{ pathExists: {} }}", key.display());
    let db = shell("db", &shared, PATIENT, "", &lifecycle);
    cluster.apply_until_run(
        &manifest(&[db, shell("web", &shared, PATIENT, &needs("db"), "")]),
        &["web"],
    );
    let recorder = Recorder::start(&cluster);
    fs::remove_file(&key).expect("it was there");
    let row = cluster.wait_for_state("db", "Pending(WaitingToStart)");
    assert!(
        row.info.starts_with("precondition: ") && row.info.ends_with("does not exist"),
        "{}",
        row.info
    );
    assert!(podman.containers().is_empty());
    let at = |name: &str, state| recorder.position(name, state);
    assert!(at("web", "Pending(WaitingToStart)") < at("db", "Stopping(RequestedAtRuntime)"));
    fs::write(&key, "").expect("own folder is writable");
    cluster.wait_for_state("web", "Running(Ok)");
    assert!(at("db", "Running(Ok)") < at("web", "Running(Ok)"));
}

// [stest->swdd~agent-restarts-with-dependencies~1]
#[test]
fn killed_container_restarts_three_levels_of_dependents() {
    let podman = Podman::new();
    let (cluster, shared) = cluster(&podman);
    let follows = "restartWith: DEPENDENCIES";
    let policy = "    restartPolicy: ALWAYS\n";
    let names = ["db", "web", "shop", "site"];
    let mut workloads = vec![shell("db", &shared, PATIENT, policy, "")];
    for pair in names.windows(2) {
        workloads.push(shell(pair[1], &shared, PATIENT, &needs(pair[0]), follows));
    }
    workloads.push(shell("stays", &shared, PATIENT, &needs("db"), ""));
    let all = ["db", "web", "shop", "site", "stays"];
    cluster.apply_until_run(&manifest(&workloads), &all);
    let recorder = Recorder::start(&cluster);
    let first = names.map(|name| podman.only_container(name).1);
    let stays = podman.only_container("stays").1;
    podman.run(&["kill", &first[0]]);
    let site = &first[3];
    wait_until("another container of 'site' runs", || {
        let found = podman.containers_of("site");
        found.len() == 1 && found[0]["Id"].as_str() != Some(site) && found[0]["State"] == "running"
    });
    cluster.wait_until_run(&all);
    for (name, id) in names.iter().zip(&first) {
        assert_ne!(podman.only_container(name).1, *id, "{name}");
        let states = recorder.states_until(name, "Running(Ok)");
        let starts = states.iter().filter(|state| *state == "Running(Ok)");
        assert_eq!(starts.count(), 1, "{name}: {states:?}");
    }
    assert_eq!(podman.only_container("stays").1, stays);
    let at = |name: &str, state| recorder.position(name, state);
    for pair in names.windows(2) {
        assert!(at(pair[0], "Running(Ok)") < at(pair[1], "Running(Ok)"));
    }
}

#[test]
fn new_agent_probes_and_keeps_an_existing_container() {
    let podman = Podman::new();
    let (mut cluster, shared) = cluster(&podman);
    let ready = shared.join("ready");
    // Longer than a slow machine needs until the first agent is killed.
    let lifecycle = format!("ready: {{ file: {}, deadlineMs: 15000 }}", ready.display());
    let db = shell("db", &shared, PATIENT, "", &lifecycle);
    let text = manifest(&[db, shell("web", &shared, PATIENT, &needs("db"), "")]);
    assert_eq!(
        cluster
            .ank_with_input(&["apply", "-", "--no-wait"], &text)
            .code,
        0
    );
    wait_until("the container runs", || {
        podman
            .containers_of("db")
            .iter()
            .any(|one| one["State"] == "running")
    });
    cluster.kill_agent("agent_A");
    let (_, first) = podman.only_container("db");
    cluster.start_agent("agent_A");
    cluster.wait_for_row("db", "to be waited for longer than its deadline", |row| {
        let waited = row
            .info
            .rsplit(", ")
            .next()
            .and_then(|last| last.strip_suffix(" s"))
            .and_then(|s| s.parse().ok());
        row.state == "Pending(Starting)" && waited.is_some_and(|seconds: u32| seconds > 15)
    });
    fs::write(&ready, "").expect("own folder is writable");
    cluster.wait_for_state("web", "Running(Ok)");
    assert_eq!(podman.only_container("db").1, first);
}

// [stest->swdd~agent-lifecycle-activation~1]
#[test]
fn irrelevant_workload_does_not_delay_apply() {
    let podman = Podman::new();
    let (cluster, shared) = cluster(&podman);
    let lifecycle = "activation: { tagEquals: { zone: rear } }";
    let text = manifest(&[
        shell("camera", &shared, PATIENT, "", lifecycle),
        shell("web", &shared, PATIENT, "", ""),
    ]);
    let output = cluster.ank_with_input(&["apply", "-"], &text);
    assert_eq!(output.code, 0, "{}", output.stderr);
    let row = cluster.workload("camera").expect("it is there");
    assert_eq!(row.state, "Pending(WaitingToStart)");
    assert_eq!(row.info, "inactive: the agent has no tag zone");
    assert!(podman.containers_of("camera").is_empty());
    assert!(
        cluster
            .ank(&["graph"])
            .stdout
            .contains("inactive: the agent has no tag zone")
    );
}

// [stest->swdd~lifecycle-block-is-checked~1]
#[test]
fn misspelt_key_is_refused_by_ank_or_the_server() {
    let cluster = Cluster::start(&["agent_A"]);
    let text = |configs: &str, key: &str| {
        format!(
            "apiVersion: v1\nworkloads:\n  db:\n    agent: agent_A\n    runtime: podman\n{configs}    runtimeConfig: |\n      \
             image: run\n      lifecycle:\n        {key}: {{ file: /up }}\nconfigs: {{ key: redy }}\n"
        )
    };
    for (text, expected) in [
        (text("", "redy"), "line 9"),
        (
            text("    configs: { k: key }\n", "{{k}}"),
            "Workload 'db': lifecycle.redy: unknown key; did you mean 'ready'? (line 3",
        ),
    ] {
        let output = cluster.ank_with_input(&["apply", "-"], &text);
        assert_eq!(output.code, 1, "{}", output.stdout);
        assert!(
            output.stderr.contains(expected) && output.stderr.contains("did you mean 'ready'?"),
            "{}",
            output.stderr
        );
        assert!(cluster.workloads().is_empty());
    }
}
