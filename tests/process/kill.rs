//! The agent is killed at any moment while it creates workloads, over and over: each workload has
//! one container then.
//!
//! Thread: the test's. Owns: one cluster with the fake engine.
//!
//! `ANKAIOS_KILL_ROUNDS` sets how often the agent is killed, `ANKAIOS_KILL_SEED` makes the moments
//! those of a run that printed its seed.

use std::time::Duration;

use crate::support::process::is_alive;
use crate::support::{Cluster, from_environment, manifest, wait_until, workload};
use serde_json::json;

/// Kills of each run of the tests; a machine with two cores does a round in less than two seconds.
const ROUNDS: u64 = 20;
const WORKLOADS: usize = 20;
/// A create of the engine takes this long.
const CREATE_MS: u64 = 100;

#[test]
#[allow(clippy::print_stderr)] // Whoever sees it fail needs the seed.
fn agent_killed_during_creates_leaves_one_container_each() {
    let seed = from_environment("ANKAIOS_KILL_SEED").unwrap_or_else(|| fastrand::u64(..));
    let rounds = from_environment("ANKAIOS_KILL_ROUNDS").unwrap_or(ROUNDS);
    eprintln!("ANKAIOS_KILL_SEED={seed} ANKAIOS_KILL_ROUNDS={rounds}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut cluster = Cluster::start(&["agent_A"]);
    cluster
        .engine
        .script(&json!([{ "command": "run", "delay_ms": CREATE_MS }]));
    let names: Vec<String> = (0..WORKLOADS).map(|number| format!("w{number}")).collect();
    let mut interrupted = 0;
    for round in 0..rounds {
        // Each round replaces what the one before has made.
        let all: Vec<_> = names
            .iter()
            .map(|name| workload(name, "run").config(&format!("commandArgs: [\"{round}\"]")))
            .collect();
        let begun = || cluster.engine.calls_of("run", "").len();
        let at = begun() + random.usize(0..WORKLOADS);
        cluster.apply(&manifest(&all));
        wait_until("some creates have begun", || begun() >= at);
        // At any moment of a create, not only at its begin.
        std::thread::sleep(Duration::from_millis(random.u64(0..2 * CREATE_MS)));
        cluster.kill_agent("agent_A");
        interrupted += u64::from(!cluster.engine.hanging_calls_of("run").is_empty());
        cluster.start_agent("agent_A");
        cluster.wait_for_all(WORKLOADS, "Running(Ok)");
        wait_until("every call ended", || {
            cluster.engine.hanging_calls().is_empty()
        });
        let containers = cluster.engine.containers();
        assert_eq!(
            containers.len(),
            WORKLOADS,
            "round {round} of seed {seed}: {containers:#?}"
        );
        for name in &names {
            let (pid, _) = cluster.engine.only_container(name);
            assert!(is_alive(pid), "'{name}' in round {round} of seed {seed}");
        }
    }
    eprintln!("{interrupted} of {rounds} kills met calls of the engine");
}
