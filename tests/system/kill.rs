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
    let one = |(index, name): (usize, &&str)| {
        let needed = index.checked_sub(1).map(|before| CHAIN[before]);
        let dependencies =
            needed.map_or_else(String::new, |name| format!("{name}: ADD_COND_RUNNING"));
        format!(
            "  {name}:\n    agent: agent_A\n    runtime: podman\n    restartPolicy: ALWAYS\n    \
             dependencies: {{ {dependencies} }}\n    files: [{{ mountPoint: /etc/round, data: \"{round}\" }}]\n    \
             runtimeConfig: |\n      image: alpine:latest\n      \
             commandOptions: [\"--stop-timeout\", \"1\"]\n      commandArgs: [sh, -c, \"true {round}; {PATIENT}\"]\n      \
             lifecycle: {{ {update} }}\n"
        )
    };
    format!(
        "apiVersion: v1\nworkloads:\n{}",
        CHAIN.iter().enumerate().map(one).collect::<String>()
    )
}

fn open_updates(cluster: &Cluster) -> usize {
    let text = cluster
        .ank(&["get", "state", "-o", "json", "updates"])
        .success();
    let state: Value = serde_json::from_str(&text).expect("a state");
    let is_open = |update: &&Value| {
        ["STAGING", "TRIAL"]
            .iter()
            .any(|phase| update["phase"] == *phase)
    };
    state["updates"]
        .as_object()
        .map_or(0, |updates| updates.values().filter(is_open).count())
}

/// Folders with files of instances, below the run folder of the agent.
fn folders(cluster: &Cluster) -> Vec<String> {
    let run = fs::read_dir(cluster.run_folder())
        .expect("a run folder")
        .flatten();
    let agent = run
        .map(|entry| entry.path())
        .find(|path| path.ends_with("agent_A_io"))
        .expect("a folder of the agent");
    let names = fs::read_dir(agent)
        .expect("a folder")
        .flatten()
        .map(|entry| entry.file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    names
        .filter(|name| {
            CHAIN
                .iter()
                .any(|workload| name.starts_with(&format!("{workload}.")))
        })
        .collect()
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
        cluster.wait_until_run(&CHAIN);
        wait_until(&format!("only they are there, {what}"), || {
            podman.containers().len() == CHAIN.len()
        });
        let desired = cluster
            .ank(&["get", "state", "-o", "json", "desiredState"])
            .success();
        for name in CHAIN {
            let containers = podman.containers_of(name);
            assert_eq!(containers.len(), 1, "{what}: {containers:#?}");
            let command = containers[0]["Command"][2].as_str().expect("a command");
            assert!(
                desired.contains(command),
                "{what}: '{name}' runs '{command}', desired is {desired}"
            );
            assert!(
                containers[0]["State"]
                    .as_str()
                    .is_some_and(|it| it.eq_ignore_ascii_case("running")),
                "{what}: {containers:#?}"
            );
        }
        wait_until(
            &format!("no folder of another instance is left, {what}"),
            || folders(&cluster).len() == CHAIN.len(),
        );
    }
}
