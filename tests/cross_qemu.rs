//! The programs that were built for aarch64, run by qemu, with this machine's `ank` and fake
//! engine.
//!
//! Not a part of `cargo test`, which has no such programs: `./justw cross test` builds them and runs
//! this file, with their folder in `ANKAIOS_CROSS_BIN`.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

#![allow(unreachable_pub)] // The files of `support` offer each other what they have, and nobody else.
#![allow(clippy::disallowed_methods)] // Tests start processes and wait for them.

#[allow(dead_code, unused_imports)] // The process tests use all of it, these a part.
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use support::process::{clean_command, is_alive, thread_names};
use support::python::succeeded;
use support::{Cluster, LIMIT, manifest, wait_until, workload};

/// Runs a program of the other architecture; its own children are of this machine again.
const QEMU: &str = "qemu-aarch64-static";
/// `e_machine` of an ELF file for aarch64.
const ELF_AARCH64: [u8; 2] = [0xb7, 0];

fn folder() -> PathBuf {
    std::env::var_os("ANKAIOS_CROSS_BIN")
        .expect("run by `./justw cross test`, which sets ANKAIOS_CROSS_BIN")
        .into()
}

/// The full path, because agents have a `PATH` of their own.
fn qemu() -> PathBuf {
    let path = std::env::var_os("PATH").expect("a path");
    let found = std::env::split_paths(&path)
        .map(|folder| folder.join(QEMU))
        .find(|file| file.exists());
    found.unwrap_or_else(|| panic!("'{QEMU}' is not installed (Debian package qemu-user-static)"))
}

/// A path that is certainly a program for the other architecture.
fn foreign(program: &str) -> PathBuf {
    let path = folder().join(program);
    let bytes = fs::read(&path)
        .unwrap_or_else(|error| panic!("'{}': {error}; `./justw cross aarch64`", path.display()));
    assert_eq!(
        bytes[18..20],
        ELF_AARCH64,
        "'{}' is a program for another machine",
        path.display()
    );
    path
}

/// A cluster whose `programs` are of the other architecture.
fn cluster_with(programs: &[&str]) -> Cluster {
    let mut cluster = Cluster::prepare();
    for program in programs {
        cluster.set_program(program, &[&qemu(), &foreign(program)]);
    }
    // qemu runs a missing program as one that ends with 127; agents would wait for an engine that
    // is not installed.
    cluster.agent_config = "runtimes = [\"podman\"]".to_owned();
    cluster.start_server(&[]);
    cluster.start_agent("agent_A");
    cluster.wait_for_agents(&["agent_A"]);
    cluster
}

fn runs(cluster: &Cluster, workload: &str) -> usize {
    cluster
        .engine
        .calls_of("run", &format!("{workload}."))
        .len()
}

/// Create, dependency, update, restart after an exit, delete.
fn lives_of_workloads(cluster: &Cluster) {
    let needed = workload("w1", "run").restart("ALWAYS");
    let second = workload("w2", "run").after("w1", "ADD_COND_RUNNING");
    cluster.apply(&manifest(&[needed.clone(), second.clone()]));
    cluster.wait_for_state("w1", "Running(Ok)");
    cluster.wait_for_state("w2", "Running(Ok)");
    let (_, old) = cluster.engine.only_container("w2");

    cluster.apply(&manifest(&[needed, second.config("commandArgs: [new]")]));
    wait_until(
        "w2 was replaced",
        || matches!(cluster.engine.containers_of("w2").as_slice(), [one] if one["Id"] != old.as_str()),
    );
    cluster.wait_for_state("w2", "Running(Ok)");

    cluster.engine.finish("w1", 1);
    wait_until("w1 was restarted", || {
        runs(cluster, "w1") + cluster.engine.calls_of("start", "").len() == 2
    });
    cluster.wait_for_state("w1", "Running(Ok)");

    for name in ["w2", "w1"] {
        cluster.delete(name);
        cluster.wait_until_gone(name);
    }
    wait_until("no container is left", || {
        cluster.engine.containers().is_empty()
    });
}

#[test]
fn server_and_agent_take_workloads_from_apply_to_delete() {
    lives_of_workloads(&cluster_with(&["ank-server", "ank-agent"]));
}

#[test]
fn each_program_works_with_those_of_this_machine() {
    for program in ["ank-server", "ank-agent", "ank"] {
        let cluster = cluster_with(&[program]);
        cluster.apply(&manifest(&[workload("w1", "run")]));
        cluster.wait_for_state("w1", "Running(Ok)");
    }
}

#[test]
fn restarted_agent_adopts_what_runs() {
    let mut cluster = cluster_with(&["ank-server", "ank-agent"]);
    cluster.apply(&manifest(&[workload("w1", "run"), workload("w2", "run")]));
    cluster.wait_for_state("w1", "Running(Ok)");
    cluster.wait_for_state("w2", "Running(Ok)");
    let before = cluster.engine.only_container("w1");

    cluster.agent("agent_A").signal(Signal::TERM);
    let ended = cluster
        .agent("agent_A")
        .wait(LIMIT)
        .expect("it ends in time");
    assert!(ended.success(), "{ended}");
    assert!(is_alive(before.0), "containers outlive their agent");
    cluster.engine.finish("w2", 3);
    cluster.start_agent("agent_A");
    let row = cluster.wait_for_row("w2", "its end was seen", |row| row.state != "Running(Ok)");
    assert_ne!(row.state, "Failed(Lost)", "{row:?}");
    cluster.wait_for_state("w1", "Running(Ok)");
    assert_eq!(cluster.engine.only_container("w1"), before);
    assert_eq!(runs(&cluster, "w1"), 1, "it was adopted, not started again");

    cluster.kill_agent("agent_A");
    cluster.start_agent("agent_A");
    cluster.wait_for_agents(&["agent_A"]);
    cluster.delete("w1");
    wait_until("w1 is deleted", || {
        cluster.engine.containers_of("w1").is_empty()
    });
}

#[test]
fn killed_container_is_seen() {
    let cluster = cluster_with(&["ank-server", "ank-agent"]);
    cluster.apply(&manifest(&[workload("w1", "run")]));
    cluster.wait_for_state("w1", "Running(Ok)");
    cluster.engine.kill_container("w1");
    let row = cluster.wait_for_state("w1", "Failed(ExecFailed)");
    assert_eq!(row.info, "Exit code: '137'");
}

#[test]
fn threads_have_the_stack_they_ask_for_and_their_names() {
    let mut cluster = cluster_with(&["ank-server", "ank-agent"]);
    let server = thread_names(cluster.server().pid());
    let agent = thread_names(cluster.agent("agent_A").pid());
    assert!(server.iter().any(|name| name == "listen"), "{server:?}");
    assert!(agent.iter().any(|name| name == "scheduler"), "{agent:?}");
}

/// What an image has to have for the programs to start: the packages of the layer and of Debian
/// rely on it.
#[test]
fn programs_need_nothing_but_the_c_and_cxx_libraries() {
    let allowed = [
        "libc.so.6",
        "libm.so.6",
        "libgcc_s.so.1",
        "libstdc++.so.6",
        "ld-linux-aarch64.so.1",
    ];
    for program in ["ank-server", "ank-agent", "ank"] {
        let listing = succeeded(
            "readelf",
            Command::new("readelf")
                .arg("-d")
                .arg(foreign(program))
                .output(),
        );
        let needed: Vec<&str> = listing
            .lines()
            .filter(|line| line.contains("(NEEDED)"))
            .filter_map(|line| line.split(['[', ']']).nth(1))
            .collect();
        assert!(needed.contains(&"libc.so.6"), "{listing}");
        assert!(
            needed.iter().all(|name| allowed.contains(name)),
            "'{program}' needs {needed:?}"
        );
    }
}

#[test]
fn versions_are_those_of_this_machines_programs() {
    for program in ["ank-server", "ank-agent", "ank"] {
        let mut command = clean_command(qemu(), Path::new("/"));
        let printed = succeeded(
            program,
            command.arg(foreign(program)).arg("--version").output(),
        );
        let version = concat!(env!("CARGO_PKG_VERSION"), " (ankaios-lite");
        let commit = printed
            .trim()
            .strip_prefix(&format!("{program} {version}"))
            .and_then(|rest| rest.strip_suffix(')'));
        let commit = commit
            .unwrap_or_else(|| panic!("'{printed}'"))
            .trim_start()
            .trim_end_matches("-dirty");
        assert!(
            matches!(commit.len(), 0 | 12) && commit.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "'{printed}'"
        );
    }
}
