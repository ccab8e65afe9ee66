//! The fake engine keeps its promises: without these, a green process test would mean little.
//!
//! Thread: the test's. Owns: one fake engine per test.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::process::{Identity, process_state};
use crate::support::{FakeEngine, wait_until};
use serde_json::{Value, json};

fn podman(engine: &FakeEngine, arguments: &[&str]) -> Output {
    let mut command = Command::new(engine.bin().join("podman"));
    command
        .args(arguments)
        .env("FAKE_ENGINE_DIR", engine.state())
        .stdin(Stdio::null());
    command.output().expect("the fake engine starts")
}

fn run(engine: &FakeEngine, workload: &str, image: &str) -> Output {
    let label = format!("--label=name={workload}.0123.agent_A");
    podman(
        engine,
        &[
            "run",
            "--detach",
            "--name",
            workload,
            &label,
            "--label=agent=agent_A",
            image,
            "word",
        ],
    )
}

fn listed(engine: &FakeEngine) -> Vec<Value> {
    let output = podman(
        engine,
        &[
            "ps",
            "--all",
            "--filter",
            "label=agent=agent_A",
            "--format=json",
        ],
    );
    serde_json::from_slice(&output.stdout).expect("a JSON list")
}

#[test]
fn container_is_a_real_process_until_it_is_stopped() {
    let engine = FakeEngine::new();
    assert!(run(&engine, "w", "run").status.success());
    let (pid, id) = engine.only_container("w");
    let container = Identity::of(pid);
    assert!(container.is_alive());
    assert_eq!(
        (
            listed(&engine)[0]["State"].as_str(),
            listed(&engine)[0]["Pid"].as_u64()
        ),
        (Some("running"), Some(u64::from(pid)))
    );

    assert!(podman(&engine, &["stop", "--ignore", &id]).status.success());
    assert!(!container.is_alive());
    assert_eq!(
        (
            listed(&engine)[0]["State"].as_str(),
            listed(&engine)[0]["ExitCode"].as_i64()
        ),
        (Some("exited"), Some(143))
    );
    assert!(podman(&engine, &["rm", "--ignore", &id]).status.success());
    assert_eq!(listed(&engine), Vec::<Value>::new());
    assert!(
        podman(&engine, &["rm", "--ignore", &id]).status.success(),
        "gone is ignored"
    );
}

#[test]
fn process_with_the_pid_of_an_ended_container_is_left_alone() {
    let engine = FakeEngine::new();
    assert!(run(&engine, "w", "run").status.success());
    let (pid, id) = engine.only_container("w");
    let begin = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
        stat.rsplit(')')
            .next()
            .and_then(|fields| fields.split_whitespace().nth(19).map(str::to_owned))
    };
    // One that began at another time, in the kernel's grain of 10 ms.
    wait_until("time goes on", || {
        let mut other = Command::new("true")
            .stdin(Stdio::null())
            .spawn()
            .expect("true starts");
        let later = begin(other.id()) != begin(pid);
        other.wait().expect("it was ours");
        later
    });
    let mut stranger = Command::new("sleep")
        .arg("60")
        .stdin(Stdio::null())
        .spawn()
        .expect("sleep starts");
    // As when the container has ended, its number was given away, and its monitor was not quick
    // enough to record it.
    let path = engine.state().join("containers").join(&id);
    let text = std::fs::read_to_string(&path).expect("the record of the container");
    let pid_of = |pid: u32| format!("\"Pid\":{pid}");
    assert!(text.contains(&pid_of(pid)), "{text}");
    std::fs::write(&path, text.replace(&pid_of(pid), &pid_of(stranger.id())))
        .expect("the record can be written");
    assert!(podman(&engine, &["pause", &id]).status.success());
    assert_ne!(process_state(stranger.id()), Some('T'));
    stranger.kill().expect("it runs");
    stranger.wait().expect("it was ours");
}

#[test]
fn exit_code_comes_from_the_image_or_from_the_test() {
    let engine = FakeEngine::new();
    assert!(run(&engine, "a", "exit7:after=50ms").status.success());
    assert!(run(&engine, "b", "run").status.success());
    engine.finish("b", 3);
    wait_until("both ended", || {
        listed(&engine)
            .iter()
            .all(|container| container["State"] == "exited")
    });
    let code = |name| engine.containers_of(name)[0]["ExitCode"].as_i64();
    assert_eq!((code("a"), code("b")), (Some(7), Some(3)));
}

#[test]
fn errors_of_the_fake_engine_are_those_of_podman() {
    let engine = FakeEngine::new();
    assert!(run(&engine, "w", "run").status.success());
    assert_eq!(run(&engine, "w", "run").status.code(), Some(125));
    assert_eq!(podman(&engine, &["rm", "w"]).status.code(), Some(2));
    assert_eq!(
        run(&engine, "x", "localhost/nosuch").status.code(),
        Some(125)
    );
    assert_eq!(
        podman(&engine, &["logs", "nosuch"]).status.code(),
        Some(125)
    );
    assert_eq!(engine.containers().len(), 1);
}

#[test]
fn rules_apply_to_the_named_workload_as_often_as_they_say() {
    let engine = FakeEngine::new();
    engine.script(&json!([{ "command": "run", "workload": "w", "times": 1, "exit": 125, "stderr": "Error: boom\n" }]));
    let failed = run(&engine, "w", "run");
    assert_eq!(
        (
            failed.status.code(),
            String::from_utf8_lossy(&failed.stderr).as_ref()
        ),
        (Some(125), "Error: boom\n")
    );
    assert!(run(&engine, "other", "run").status.success());
    assert!(run(&engine, "w", "run").status.success());
    let exits: Vec<Option<i64>> = engine.calls().iter().map(|call| call.exit).collect();
    assert_eq!(exits, [Some(125), Some(0), Some(0)]);
}

#[test]
fn fake_engine_hangs_and_writes_as_ordered() {
    let engine = FakeEngine::new();
    engine.script(&json!([{ "command": "run", "hang": true }, { "command": "ps", "stdout_bytes": 1_000_000 }]));
    let mut command = Command::new(engine.bin().join("podman"));
    let mut child = command
        .args(["run", "run"])
        .env("FAKE_ENGINE_DIR", engine.state())
        .spawn()
        .expect("starts");
    wait_until("the call is logged", || {
        engine.hanging_calls() == [child.id()]
    });
    assert_eq!(podman(&engine, &["ps"]).stdout.len(), 1_000_000);
    assert!(child.try_wait().expect("own child").is_none());
    child.kill().and_then(|()| child.wait()).expect("own child");
    assert_eq!(engine.hanging_calls(), Vec::<u32>::new());
}

#[test]
fn every_process_ends_when_the_folder_is_gone() {
    let engine = FakeEngine::new();
    assert!(run(&engine, "w", "run:ignore-term").status.success());
    let container = Identity::of(engine.only_container("w").0);
    drop(engine);
    wait_until("the container ends", || !container.is_alive());
}

#[test]
fn container_that_ignores_sigterm_is_killed_after_its_timeout() {
    let engine = FakeEngine::new();
    let begin = Instant::now();
    let arguments = [
        "run",
        "--detach",
        "--name",
        "w",
        "--label=name=w.0.a",
        "--stop-timeout",
        "1",
        "run:ignore-term",
    ];
    assert!(podman(&engine, &arguments).status.success());
    assert!(podman(&engine, &["stop", "w"]).status.success());
    assert!(
        begin.elapsed() >= Duration::from_secs(1),
        "it had its second"
    );
    assert_eq!(engine.containers_of("w")[0]["ExitCode"].as_i64(), Some(137));
}
