//! Every call of every engine that hangs, fails, is slow, prints 100 MB or nonsense: what users
//! see, that the rest goes on, and that all is as it should be once the engine works again.
//!
//! Each row of the tables is one call of one workload. Calls that hang are shown in more detail in
//! engine_faults.rs.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use super::prepare::NO_REPAIR;
use crate::support::log_client::everything;
use crate::support::manifest::Workload;
use crate::support::process::send_signal;
use crate::support::{
    Cluster, LIMIT, LogClient, Recorder, manifest, pod, poll, wait_until, workload,
};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A fault of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Hangs,
    Fails,
    Slow,
    /// 100 MB instead of the answer.
    Floods,
    /// Nonsense instead of the answer, and nothing is done.
    Babbles,
    /// It is done, and nonsense printed.
    Mumbles,
    /// It is done, and 100 MB printed.
    Gushes,
}

use Fault::{Babbles, Fails, Floods, Gushes, Hangs, Mumbles, Slow};

const NONSENSE: &str = "}{ no JSON, no id\n";
const REFUSAL: &str = "Error: the disk is on fire";
const FLOOD: u64 = 100_000_000;

/// Creates and starts may take this long for agents whose engine hangs. Those whose engine is only
/// slow have the default.
const TIMEOUT: &str = "create_timeout = 3";

/// Which call goes wrong how, and a state that users see of it: text of the state, and what its
/// info begins with.
type Row = (&'static str, Fault, &'static str, &'static str);

const STARTING: &str = "Pending(Starting)";
const TRIGGERED: &str = "Triggered at runtime.";
const TOO_MUCH: &str =
    "Retry 1: 100000000 bytes of output are too many, at most 16777216 can be read";
const NO_CONTAINER: &str = "Retry 1: Unexpected number of workloads: 0 containers after a create";

impl Fault {
    /// The rule of the fake engine.
    fn rule(self, call: &str, workload: Option<&str>) -> Value {
        let mut rule = match self {
            Hangs => json!({ "hang": true }),
            Fails => json!({ "exit": 125, "stderr": format!("{REFUSAL}\n") }),
            Slow => json!({ "delay_ms": 1500 }),
            Floods => json!({ "stdout_bytes": FLOOD }),
            Babbles => json!({ "stdout": NONSENSE }),
            Mumbles => json!({ "stdout": NONSENSE, "perform": true }),
            Gushes => json!({ "stdout_bytes": FLOOD, "perform": true }),
        };
        rule["command"] = json!(call);
        if let Some(workload) = workload {
            rule["workload"] = json!(workload);
        }
        rule
    }
}

/// The name of a row's workload.
fn name((call, fault, ..): &Row) -> String {
    format!("{}-{fault:?}", call.replace(' ', "-"))
}

/// Breaks the calls of each row's workload.
fn break_calls(cluster: &Cluster, rows: &[Row]) {
    let rules: Vec<Value> = rows
        .iter()
        .map(|row| row.1.rule(row.0, Some(&name(row))))
        .collect();
    cluster.engine.script(&json!(rules));
}

/// Lets the engine work again; who hangs is ended by hand.
fn mend(cluster: &Cluster) {
    cluster.engine.script(&json!([]));
    for pid in cluster.engine.hanging_calls() {
        send_signal(pid, Signal::KILL);
    }
}

fn start(runtime: &str, config: &str) -> Cluster {
    let mut cluster = Cluster::prepare();
    if runtime == "containerd" {
        cluster.engine.install_nerdctl();
    }
    cluster.agent_config = config.to_owned();
    cluster.start_all(&["agent_A"]);
    cluster
}

fn workload_of(runtime: &str, name: &str) -> Workload {
    if runtime == "podman-kube" {
        pod(name, "run")
    } else {
        workload(name, "run").runtime(runtime)
    }
}

/// Ids of the containers of a workload, in or outside of a pod.
fn containers_of(cluster: &Cluster, workload: &str) -> Vec<String> {
    let containers = cluster.engine.containers().into_iter();
    let own = containers.filter(|one| {
        let label = one["Labels"]["name"]
            .as_str()
            .and_then(|label| label.split('.').next());
        one["PodName"] == *workload || label == Some(workload)
    });
    own.map(|one| one["Id"].as_str().expect("an id").to_owned())
        .collect()
}

/// Additional info without the number of the retry: on a busy machine an earlier one may have met a
/// limit of time.
fn cause(info: &str) -> &str {
    if let Some(rest) = info.strip_prefix("Retry ")
        && let Some((_, cause)) = rest.split_once(": ")
    {
        return cause;
    }
    info
}

/// Waits until the workload of the row was in the state of the row.
#[track_caller]
fn wait_until_shown(recorder: &Recorder, row: &Row) {
    let workload = name(row);
    let (_, _, state, info) = *row;
    let mut shown = Vec::new();
    let seen = poll(LIMIT, || {
        shown = recorder.changes();
        shown.retain(|change| change.workload == workload);
        let mut changes = shown.iter();
        let is_seen = changes
            .any(|change| change.state == state && cause(&change.info).starts_with(cause(info)));
        is_seen.then_some(())
    });
    assert!(
        seen.is_some(),
        "'{workload}' never was {state} [{info}...]: {shown:#?}"
    );
}

/// The rows whose calls hang, and all others, each with the configuration of their agent.
fn by_timeout(rows: &[Row]) -> [(&'static str, Vec<Row>); 2] {
    let (hanging, others) = rows.iter().partition(|row| row.1 == Hangs);
    [(TIMEOUT, hanging), ("", others)]
}

/// Applies a workload for each row, and one whose calls work.
fn creates(runtime: &str, rows: &[Row]) {
    for (config, rows) in by_timeout(rows) {
        creates_with(runtime, config, &rows);
    }
}

fn creates_with(runtime: &str, config: &str, rows: &[Row]) {
    let cluster = start(runtime, config);
    let recorder = Recorder::start(&cluster);
    break_calls(&cluster, rows);
    let workloads: Vec<Workload> = rows
        .iter()
        .map(|row| workload_of(runtime, &name(row)))
        .collect();
    cluster.apply(&manifest(&workloads));
    cluster.apply(&manifest(&[workload_of(runtime, "calm")]));
    rows.iter().for_each(|row| wait_until_shown(&recorder, row));
    cluster.wait_for_state("calm", "Running(Ok)");
    mend(&cluster);
    for row in rows {
        cluster.wait_for_state(&name(row), "Running(Ok)");
        assert_eq!(containers_of(&cluster, &name(row)).len(), 1, "{row:?}");
    }
    assert_eq!(
        recorder.states_until("calm", "Running(Ok)"),
        ["Pending(Starting)", "Running(Ok)"]
    );
}

#[test]
fn podman_creates() {
    creates("podman", &CREATES);
}

#[test]
fn nerdctl_creates() {
    creates("containerd", &CREATES);
}

const CREATES: [Row; 7] = [
    ("run", Hangs, STARTING, "Retry 1: No answer within 3s"),
    (
        "run",
        Fails,
        STARTING,
        "Retry 1: Error: the disk is on fire",
    ),
    ("run", Slow, STARTING, TRIGGERED),
    ("run", Floods, STARTING, TOO_MUCH),
    ("run", Babbles, STARTING, NO_CONTAINER),
    ("run", Mumbles, "Running(Ok)", ""),
    ("run", Gushes, "Running(Ok)", ""),
];

#[test]
fn pods_are_played() {
    creates(
        "podman-kube",
        &[
            ("kube play", Hangs, STARTING, "Retry 1: No answer within 3s"),
            (
                "kube play",
                Fails,
                STARTING,
                "Retry 1: Error: the disk is on fire",
            ),
            ("kube play", Slow, STARTING, TRIGGERED),
            ("kube play", Floods, STARTING, TOO_MUCH),
            (
                "kube play",
                Babbles,
                STARTING,
                "Retry 1: It made no pod that can be found",
            ),
            ("kube play", Mumbles, "Running(Ok)", ""),
            ("kube play", Gushes, "Running(Ok)", ""),
            // Only a later agent needs the volumes, so they never hinder a workload.
            ("volume create", Fails, "Running(Ok)", ""),
            ("volume create", Slow, "Running(Ok)", ""),
            ("volume create", Floods, "Running(Ok)", ""),
            ("volume create", Babbles, "Running(Ok)", ""),
            ("volume rm", Fails, "Running(Ok)", ""),
        ],
    );
}

#[test]
fn volumes_that_hang_delay_their_workload_only() {
    let cluster = start("podman-kube", "");
    let recorder = Recorder::start(&cluster);
    let row: Row = (
        "volume create",
        Hangs,
        STARTING,
        "Triggered at runtime. The create has been running for 10 s.",
    );
    let mut rule = Hangs.rule(row.0, Some(&name(&row)));
    rule["times"] = json!(1);
    cluster.engine.script(&json!([rule]));
    cluster.apply(&manifest(&[pod(&name(&row), "run")]));
    wait_until("it hangs", || {
        cluster.engine.hanging_calls_of("volume").len() == 1
    });
    cluster.run(&[pod("calm", "run")]);
    wait_until_shown(&recorder, &row);
    cluster.wait_for_state(&name(&row), "Running(Ok)");
}

/// The listing of pods before a play says which ones were there before. Without it a play that
/// fails could not be cleaned up, so it has to work.
#[test]
fn pods_are_not_played_before_existing_ones_are_listed() {
    let cluster = start("podman-kube", "");
    let recorder = Recorder::start(&cluster);
    for (fault, info) in [
        (Fails, "Retry 1: Error: the disk is on fire"),
        (Slow, TRIGGERED),
        (Floods, TOO_MUCH),
    ] {
        let row: Row = ("pod ls", fault, STARTING, info);
        cluster.engine.script(&json!([fault.rule(row.0, None)]));
        cluster.apply(&manifest(&[pod(&name(&row), "run")]));
        wait_until_shown(&recorder, &row);
        mend(&cluster);
        cluster.wait_for_state(&name(&row), "Running(Ok)");
        assert_eq!(containers_of(&cluster, &name(&row)).len(), 1, "{row:?}");
    }
}

/// Ends containers that will be started again.
fn starts(runtime: &str) {
    const ROWS: [Row; 6] = [
        ("start", Hangs, STARTING, "Retry 1: No answer within 3s"),
        (
            "start",
            Fails,
            STARTING,
            "Retry 1: Error: the disk is on fire",
        ),
        ("start", Slow, STARTING, TRIGGERED),
        ("start", Babbles, "Succeeded(Ok)", ""),
        ("start", Mumbles, STARTING, TRIGGERED),
        ("start", Gushes, STARTING, TRIGGERED),
    ];
    for (config, rows) in by_timeout(&ROWS) {
        starts_with(runtime, config, &rows);
    }
}

fn starts_with(runtime: &str, config: &str, rows: &[Row]) {
    let cluster = start(runtime, config);
    let mut workloads = Vec::new();
    for row in rows {
        workloads.push(workload_of(runtime, &name(row)).restart("ALWAYS"));
    }
    cluster.run(&workloads);
    let recorder = Recorder::start(&cluster);
    break_calls(&cluster, rows);
    for row in rows {
        cluster.engine.finish(&name(row), 0);
    }
    for row in rows {
        wait_until_shown(&recorder, row);
    }
    mend(&cluster);
    for row in rows {
        cluster.wait_for_state(&name(row), "Running(Ok)");
        assert_eq!(containers_of(&cluster, &name(row)).len(), 1, "{row:?}");
    }
}

#[test]
fn podman_starts() {
    starts("podman");
}

#[test]
fn nerdctl_starts() {
    starts("containerd");
}

/// Deletes a workload for each row, and one whose calls work.
fn deletes(runtime: &str, rows: &[Row]) {
    let cluster = start(runtime, "");
    let mut names: Vec<String> = rows.iter().map(name).collect();
    names.push("calm".to_owned());
    let mut workloads = Vec::new();
    for name in &names {
        workloads.push(workload_of(runtime, name));
    }
    cluster.run(&workloads);
    let recorder = Recorder::start(&cluster);
    break_calls(&cluster, rows);
    let mut arguments = vec!["--no-wait", "delete", "workload"];
    arguments.extend(names.iter().map(String::as_str));
    assert_eq!(cluster.ank(&arguments).code, 0);
    cluster.wait_until_gone("calm");
    for row in rows {
        wait_until_shown(&recorder, row);
    }
    mend(&cluster);
    for name in &names {
        cluster.wait_until_gone(name);
    }
    assert_eq!(cluster.engine.containers().len(), 0);
}

/// There is nothing to stop.
fn ended_are_deleted(runtime: &str) {
    let cluster = start(runtime, "");
    let ended = workload("ended", "exit1").runtime(runtime);
    cluster.apply(&manifest(&[ended, workload_of(runtime, "runs")]));
    cluster.wait_for_state("ended", "Failed(ExecFailed)");
    cluster.wait_for_state("runs", "Running(Ok)");
    for (name, stops) in [("ended", 0), ("runs", 1)] {
        let container = containers_of(&cluster, name).concat();
        assert_eq!(cluster.ank(&["delete", "workload", name]).code, 0);
        assert_eq!(
            cluster.engine.calls_of("stop", &container).len(),
            stops,
            "{name}"
        );
        assert_eq!(cluster.engine.calls_of("rm", &container).len(), 1, "{name}");
    }
}

#[test]
fn podman_removes_what_has_ended_with_one_call() {
    ended_are_deleted("podman");
}

#[test]
fn nerdctl_removes_what_has_ended_with_one_call() {
    ended_are_deleted("containerd");
}

const BROKEN_STOP: &str = "Error: the disk is on fire";
const DELETES: [Row; 10] = [
    ("stop", Hangs, "Stopping(RequestedAtRuntime)", ""),
    ("stop", Fails, "Stopping(DeleteFailed)", BROKEN_STOP),
    ("stop", Slow, "Stopping(RequestedAtRuntime)", ""),
    ("stop", Mumbles, "Removed", ""),
    ("stop", Gushes, "Removed", ""),
    ("rm", Hangs, "Stopping(RequestedAtRuntime)", ""),
    ("rm", Fails, "Stopping(DeleteFailed)", BROKEN_STOP),
    ("rm", Slow, "Stopping(RequestedAtRuntime)", ""),
    ("rm", Mumbles, "Removed", ""),
    ("rm", Gushes, "Removed", ""),
];

#[test]
fn podman_deletes() {
    deletes("podman", &DELETES);
}

#[test]
fn nerdctl_deletes() {
    deletes("containerd", &DELETES);
}

#[test]
fn pods_are_taken_down() {
    deletes(
        "podman-kube",
        &[
            ("stop", Hangs, "Stopping(RequestedAtRuntime)", ""),
            ("stop", Fails, "Stopping(DeleteFailed)", BROKEN_STOP),
            ("stop", Slow, "Stopping(RequestedAtRuntime)", ""),
            ("stop", Mumbles, "Removed", ""),
            ("stop", Gushes, "Removed", ""),
            ("kube down", Hangs, "Stopping(RequestedAtRuntime)", ""),
            ("kube down", Fails, "Stopping(DeleteFailed)", BROKEN_STOP),
            ("kube down", Slow, "Stopping(RequestedAtRuntime)", ""),
            ("kube down", Mumbles, "Removed", ""),
            ("kube down", Gushes, "Removed", ""),
            ("volume rm", Hangs, "Stopping(RequestedAtRuntime)", ""),
            ("volume rm", Fails, "Removed", ""),
            ("volume rm", Gushes, "Removed", ""),
        ],
    );
}

/// A running workload whose listings go wrong, one after the other.
fn listings(runtime: &str, calls: &[&'static str], unknown: &str) {
    let cluster = start(runtime, "listing_interval = 1");
    cluster.apply(&manifest(&[workload_of(runtime, "web")]));
    cluster.wait_for_state("web", "Running(Ok)");
    let id = containers_of(&cluster, "web");
    for call in calls {
        for fault in [Fails, Slow, Floods, Babbles, Hangs] {
            let begun = cluster.engine.calls().len();
            cluster.engine.script(&json!([fault.rule(call, None)]));
            if matches!(fault, Slow | Hangs) {
                // Nothing is known to be different, so nothing is reported.
                wait_until("a listing is under way", || {
                    !cluster.engine.hanging_calls().is_empty()
                });
                wait_until("it went on", || {
                    fault == Hangs || cluster.engine.calls().len() > begun + 2
                });
                cluster.wait_for_state("web", "Running(Ok)");
            } else {
                let row = cluster.wait_for_state("web", "Failed(Unknown)");
                assert_eq!(row.info, unknown, "{call} {fault:?}");
            }
            mend(&cluster);
            cluster.wait_for_state("web", "Running(Ok)");
            assert_eq!(containers_of(&cluster, "web"), id, "{call} {fault:?}");
        }
    }
    // What happens while listings fail and hang is seen afterwards.
    cluster.engine.script(&json!([Fails.rule(calls[0], None)]));
    cluster.engine.finish("web", 4);
    cluster.wait_for_state("web", "Failed(Unknown)");
    cluster.engine.script(&json!([Hangs.rule(calls[0], None)]));
    wait_until("a listing hangs", || {
        !cluster.engine.hanging_calls().is_empty()
    });
    mend(&cluster);
    let row = cluster.wait_for_state("web", "Failed(ExecFailed)");
    assert_eq!(row.info, "Exit code: '4'");
}

#[test]
fn podman_lists() {
    listings("podman", &["ps"], "Error getting state from Podman.");
}

#[test]
fn nerdctl_lists() {
    listings(
        "containerd",
        &["ps", "inspect"],
        "Error getting state from Nerdctl.",
    );
}

#[test]
fn pods_are_listed() {
    listings(
        "podman-kube",
        &["volume ls", "ps"],
        "Error getting state from pods.",
    );
}

/// Asks for the log of a workload that wrote one line.
fn logs(runtime: &str) {
    let cluster = start(runtime, "");
    let recorder = Recorder::start(&cluster);
    let hello = |name: &str| {
        workload(name, "run")
            .runtime(runtime)
            .config("commandArgs: [hello]")
    };
    cluster.apply(&manifest(&[hello("web")]));
    cluster.wait_for_state("web", "Running(Ok)");
    let web = recorder.instance("web");
    let refused = format!("[no log: {REFUSAL}]");
    for (fault, lines) in [
        (Fails, &*refused),
        (Slow, "hello"),
        (Babbles, NONSENSE.trim_end()),
    ] {
        cluster.engine.script(&json!([fault.rule("logs", None)]));
        assert_eq!(
            LogClient::new(&cluster).read_all(everything(&web)),
            [lines],
            "{fault:?}"
        );
    }
    cluster.engine.script(&json!([Fails.rule("logs", None)]));
    for arguments in [&["logs", "web"][..], &["logs", "-f", "web"]] {
        let output = cluster.ank(arguments);
        assert_eq!((output.code, &*output.stdout), (1, ""), "{arguments:?}");
        assert!(
            output.stderr.contains(REFUSAL) && !output.stderr.contains("[no log"),
            "{}",
            output.stderr
        );
    }
    cluster.engine.script(&json!([Floods.rule("logs", None)]));
    let flood = LogClient::new(&cluster).read_all(everything(&web));
    assert!(
        flood.concat().len() < 20_000_000,
        "a line that never ends is cut"
    );
    mend(&cluster);
    assert_eq!(
        LogClient::new(&cluster).read_all(everything(&web)),
        ["hello"]
    );
    assert_eq!(
        cluster.workload("web").map(|row| row.state).as_deref(),
        Some("Running(Ok)")
    );
}

#[test]
fn podman_logs() {
    logs("podman");
}

#[test]
fn nerdctl_logs() {
    logs("containerd");
}

/// How many listings there were when the workload ran, beside those of the agent's start.
fn listings_until_it_runs(prepare: impl FnOnce(&Cluster) -> Workload) -> usize {
    let mut cluster = Cluster::prepare();
    cluster.agent_config = NO_REPAIR.to_owned();
    cluster.start_all(&["agent_A"]);
    cluster.run(&[workload("first", "run")]);
    // On a slow machine workloads do not wait for the first listings of all engines.
    cluster.engine.wait_until_quiet();
    let listings = || cluster.engine.calls_of("ps", "").len();
    let wanted = prepare(&cluster);
    let before = listings();
    cluster.apply(&manifest(&[wanted]));
    cluster.wait_until_run(&["web"]);
    listings() - before
}

#[test]
fn a_start_whose_pid_is_known_needs_no_listing() {
    assert_eq!(listings_until_it_runs(|_| workload("web", "run")), 0);
    // Not /dev/null: as runc, the engine puts a new file in its place, which is that of the
    // machine.
    let own = |cluster: &Cluster| {
        let file = cluster.folder().join("own.pid");
        workload("web", "run").config(&format!("commandOptions: ['--pidfile={}']", file.display()))
    };
    assert!(
        listings_until_it_runs(own) > 0,
        "the user wants it elsewhere"
    );
    let unknown = |cluster: &Cluster| {
        let refusal = json!({ "command": "run", "times": 1, "exit": 125, "stderr": "Error: unknown flag: --pidfile" });
        cluster.engine.script(&json!([refusal]));
        workload("web", "run")
    };
    assert!(
        listings_until_it_runs(unknown) > 0,
        "the engine knows no such option, and it runs all the same"
    );
}
