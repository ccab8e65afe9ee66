//! The agent is killed at any moment of prepared starts and guarded updates, over and over: each
//! workload has one container of real podman then, and nothing else is left.
//!
//! Thread: the test's. Owns: one cluster and one podman store (store.rs).
//!
//! `ANKAIOS_KILL_ROUNDS` and `ANKAIOS_KILL_SEED` are as in the process test of that name.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::store::{PATIENT, Podman, shell};
use crate::support::{Cluster, from_environment, wait_until};

/// Kills of each run of the tests; one takes about four seconds.
const ROUNDS: u64 = 3;
/// Each needs the one before it, so they start one after the other and are prepared meanwhile.
const CHAIN: [&str; 4] = ["first", "second", "third", "fourth"];
/// An update of all of them takes about as long.
const UPDATE_MS: u64 = 5000;

fn manifest(round: u64, is_guarded: bool) -> String {
    let update = if is_guarded {
        "update: { stage: CREATE, healthyMs: 300, deadlineMs: 1200000, onFailure: ROLLBACK }"
    } else {
        ""
    };
    let mut text = "apiVersion: v1\nworkloads:\n".to_owned();
    let mut dependency = String::new();
    for name in CHAIN {
        text.push_str(&format!(
            "  {name}:\n    agent: agent_A\n    runtime: podman\n    restartPolicy: ALWAYS\n    \
             dependencies: {{ {dependency} }}\n    files: [{{ mountPoint: /etc/round, data: \"{round}\" }}]\n    \
             runtimeConfig: |\n      image: alpine:latest\n      \
             commandOptions: [\"--stop-timeout\", \"1\"]\n      commandArgs: [sh, -c, \"true {round}; {PATIENT}\"]\n      \
             lifecycle: {{ {update} }}\n"
        ));
        dependency = format!("{name}: ADD_COND_RUNNING");
    }
    text
}

fn open_updates(cluster: &Cluster) -> usize {
    let output = cluster.ank(&["get", "state", "-o", "json", "updates"]);
    let state: Value = serde_json::from_str(&output.success()).expect("a state");
    let Some(updates) = state["updates"].as_object() else {
        return 0;
    };
    let mut open = 0;
    for update in updates.values() {
        if update["phase"] == "STAGING" || update["phase"] == "TRIAL" {
            open += 1;
        }
    }
    open
}

/// Folders with files of instances, below the run folder of the agent.
fn folders(cluster: &Cluster) -> Vec<String> {
    let of_agent = cluster.run_folder().join("agent_A_io");
    let mut folders = Vec::new();
    for entry in fs::read_dir(of_agent)
        .expect("a folder of the agent")
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        let mut workloads = CHAIN.iter();
        if workloads.any(|workload| name.starts_with(&format!("{workload}."))) {
            folders.push(name);
        }
    }
    folders
}

/// Whether the workload has one container, which runs a command of the desired state.
fn runs_as_desired(podman: &Podman, name: &str, desired: &str) -> bool {
    let containers = podman.containers_of(name);
    let [container] = &containers[..] else {
        return false;
    };
    let command = container["Command"][2].as_str().expect("a command");
    let state = container["State"].as_str().unwrap_or_default();
    desired.contains(command) && state.eq_ignore_ascii_case("running")
}

/// The process that has this one started.
fn parent(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process is there");
    let fields = stat.rsplit(')').next().expect("fields behind the name");
    fields
        .split_whitespace()
        .nth(1)
        .and_then(|field| field.parse().ok())
        .expect("a parent")
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it can be killed");
}

/// podman never notices the end of a container whose conmon was killed, and lists it as running for
/// ever.
// [stest->swdd~agent-sees-ends-that-no-engine-notices~1]
#[test]
fn container_killed_with_its_conmon_is_restarted() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], "");
    let manifest = shell("web", PATIENT).replace(
        "    runtime: podman",
        "    restartPolicy: ALWAYS\n    runtime: podman",
    );
    cluster.apply_until_run(&manifest, &["web"]);
    let (pid, id) = podman.only_container("web");
    let conmon = parent(pid);
    kill(conmon);
    wait_until("conmon is gone", || parent(pid) != conmon);
    kill(pid);
    wait_until("the container is replaced by one that runs", || {
        podman
            .containers_of("web")
            .iter()
            .all(|container| container["Id"] != *id && container["State"] == "running")
            && podman.containers_of("web").len() == 1
    });
    cluster.wait_until_run(&["web"]);
}

#[test]
#[allow(clippy::print_stderr)] // Whoever sees it fail needs the seed.
fn agent_killed_during_updates_leaves_one_container_each() {
    let seed = from_environment("ANKAIOS_KILL_SEED").unwrap_or_else(|| fastrand::u64(..));
    let rounds = from_environment("ANKAIOS_KILL_ROUNDS").unwrap_or(ROUNDS);
    eprintln!("ANKAIOS_KILL_SEED={seed} ANKAIOS_KILL_ROUNDS={rounds}");
    let mut random = fastrand::Rng::with_seed(seed);
    let podman = Podman::new();
    let mut cluster = Cluster::start_on(&podman, &["agent_A"], "prepare = \"init\"");
    cluster.apply_until_run(&manifest(0, false), &CHAIN);
    for round in 1..=rounds {
        let is_guarded = random.bool();
        let after = random.u64(0..UPDATE_MS);
        let what =
            format!("round {round} of seed {seed}, guarded: {is_guarded}, killed after {after} ms");
        eprintln!("{what}");
        cluster.apply(&manifest(round, is_guarded));
        std::thread::sleep(Duration::from_millis(after));
        cluster.kill_agent("agent_A");
        cluster.start_agent("agent_A");
        wait_until(&format!("no update is open, {what}"), || {
            open_updates(&cluster) == 0
        });
        let desired = cluster
            .ank(&["get", "state", "-o", "json", "desiredState"])
            .success();
        // The states may be those from before the kill, so the containers are waited for.
        wait_until(
            &format!("each has one container, as desired, {what}"),
            || {
                let mut chain = CHAIN.iter();
                podman.containers().len() == CHAIN.len()
                    && chain.all(|name| runs_as_desired(&podman, name, &desired))
            },
        );
        cluster.wait_until_run(&CHAIN);
        wait_until(
            &format!("no folder of another instance is left, {what}"),
            || folders(&cluster).len() == CHAIN.len(),
        );
    }
}
