//! A gRPC client in another language (Python, grpcio from PyPI, stubs generated from
//! `proto/`) talks to `ank-server`.
//!
//! The scenarios are functions of tests/python/interop.py. Their Python environment is made once,
//! in `~/.cache/ankaios-lite/venv`; the stubs are made by every run of this test.
//!
//! Thread: the test's. Owns: one server per test, the stubs in cargo's folder for test files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::Cluster;
use crate::support::python::{interpreter, repository, succeeded};

/// The Python interpreter with grpcio, and the folder of the generated stubs.
struct Python {
    program: PathBuf,
    stubs: PathBuf,
}

fn python() -> &'static Python {
    static PYTHON: OnceLock<Python> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let program = interpreter("venv", "requirements.txt", "import grpc, grpc_tools.protoc");
        let stubs = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python_stubs");
        let _ = fs::remove_dir_all(&stubs);
        fs::create_dir_all(&stubs).expect("cargo's folder is writable");
        let proto = repository("proto");
        let option = |name: &str| format!("--{name}={}", stubs.display());
        let mut generate = Command::new(&program);
        generate
            .args(["-m", "grpc_tools.protoc", "-I"])
            .arg(&proto)
            .args([option("python_out"), option("grpc_python_out")]);
        generate.args(["ank_base.proto", "control_api.proto", "grpc_api.proto"]);
        succeeded("stubs", generate.output());
        Python { program, stubs }
    })
}

fn run(cluster: &Cluster, scenario: &str) {
    let python = python();
    let mut command = Command::new(&python.program);
    command
        .arg(repository("tests/python/interop.py"))
        .arg(scenario)
        .arg(cluster.address());
    command
        .env("PYTHONPATH", &python.stubs)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    succeeded(scenario, command.output());
}

/// Runs a scenario against a server with tests/python/startup.yaml.
fn scenario(name: &str) {
    let mut cluster = Cluster::prepare();
    cluster.start_server(&[
        "-m",
        &repository("tests/python/startup.yaml").to_string_lossy(),
    ]);
    run(&cluster, name);
}

// [itest->swdd~agent-sends-hello~1]
// [itest->swdd~agent-default-communication-grpc~1]
#[test]
fn agent_is_greeted_with_foreign_states_and_then_its_workloads() {
    scenario("agent_is_greeted_with_foreign_states_and_then_its_workloads");
}

// [itest->swdd~agent-shall-use-interfaces-to-server~1]
#[test]
fn agent_receives_updates_with_delete_conditions() {
    scenario("agent_receives_updates_with_delete_conditions");
}

// [itest->swdd~communication-to-from-agent-middleware~1]
#[test]
fn states_are_broadcast_to_agents_and_cli_connections() {
    scenario("states_are_broadcast_to_agents_and_cli_connections");
}

// [stest->swdd~api-reasons-of-workload-states~1]
#[test]
fn state_without_a_reason_has_that_of_its_text() {
    scenario("state_without_a_reason_has_that_of_its_text");
}

#[test]
fn complete_state_with_and_without_masks() {
    scenario("complete_state_with_and_without_masks");
}

#[test]
fn refused_updates_say_why_and_change_nothing() {
    scenario("refused_updates_say_why_and_change_nothing");
}

#[test]
fn wrong_hellos_end_in_the_documented_status() {
    scenario("wrong_hellos_end_in_the_documented_status");
}

#[test]
fn every_end_of_an_agent_stream_is_noticed() {
    scenario("every_end_of_an_agent_stream_is_noticed");
}

#[test]
fn load_of_an_agent_is_part_of_the_state() {
    scenario("load_of_an_agent_is_part_of_the_state");
}

// [itest->swdd~agent-manager-listens-requests-from-server~1]
#[test]
fn commander_runs_a_workload_on_a_real_agent() {
    let cluster = Cluster::start(&["agent_A"]);
    run(&cluster, "commander_runs_a_workload_on_a_real_agent");
}
