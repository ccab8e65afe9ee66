//! Modes of the vehicle with real podman: workloads in both modes keep running over many switches,
//! and each of a chain stops only after the stop of its dependents has begun.
//!
//! Thread: the test's. Owns: a cluster with a podman store.

use crate::store::{PATIENT, Podman};
use crate::support::recorder::Change;
use crate::support::{Cluster, Recorder};

const SWITCHES: usize = 20;
/// Workloads of each group; three after another are a chain.
const EACH: usize = 10;

fn name(group: &str, number: usize) -> String {
    format!("{group}{number}")
}

/// The workloads of a group, with these modes.
fn group(group: &str, modes: &str) -> String {
    let one = |number: usize| {
        let needs = if number.is_multiple_of(3) {
            "{}".to_owned()
        } else {
            format!("{{{}: ADD_COND_RUNNING}}", name(group, number - 1))
        };
        format!(
            "  {}:\n    agent: agent_A\n    runtime: podman\n    dependencies: {needs}\n    tags: {{modes: {modes}}}\n    runtimeConfig: |\n      \
             image: alpine:latest\n      commandOptions: [\"--stop-timeout\", \"1\"]\n      \
             commandArgs: [sh, -c, \"{PATIENT}\"]\n",
            name(group, number)
        )
    };
    (0..EACH).map(one).collect()
}

/// Id and time of start of the containers in both modes.
fn common(podman: &Podman) -> Vec<(u32, String)> {
    (0..EACH)
        .map(|number| podman.only_container(&name("both", number)))
        .collect()
}

fn applied(cluster: &Cluster, workloads: &[String], configs: &str) {
    let output = cluster.ank_with_input(
        &["apply", "-"],
        &format!(
            "apiVersion: v1\nworkloads:\n{}{configs}",
            workloads.concat()
        ),
    );
    assert_eq!(output.code, 0, "{}", output.stderr);
}

#[test]
fn many_switches_leave_what_is_common_alone_and_keep_the_order() {
    let podman = Podman::new();
    let mut cluster = Cluster::prepare_on(&podman);
    cluster.server_config = "mode_config = 'mode'".to_owned();
    cluster.start_all(&["agent_A"]);
    let tagged = [("drive", "drive"), ("park", "park"), ("both", "drive park")];
    applied(
        &cluster,
        &tagged.map(|(name, modes)| group(name, modes)),
        "configs: {mode: park}\n",
    );
    let before = common(&podman);
    for number in 0..SWITCHES {
        let (new, old) = if number.is_multiple_of(2) {
            ("drive", "park")
        } else {
            ("park", "drive")
        };
        let recorder = Recorder::start(&cluster);
        cluster.ank(&["mode", new]).success();
        for number in 0..EACH {
            recorder.states_until(&name(old, number), "Removed");
        }
        // What a message has together was reported in either order.
        let changes = recorder.changes();
        let stops = |number| {
            let begins = |change: &&Change| {
                change.workload == name(old, number)
                    && change.state == "Stopping(RequestedAtRuntime)"
            };
            changes
                .iter()
                .find(begins)
                .unwrap_or_else(|| panic!("{} does not stop", name(old, number)))
                .message
        };
        for number in (1..EACH).filter(|number| !number.is_multiple_of(3)) {
            assert!(
                stops(number) <= stops(number - 1),
                "'{}' stops before what needs it",
                name(old, number - 1)
            );
        }
        let rows = cluster.workloads();
        let running = rows.iter().filter(|row| row.state == "Running(Ok)").count();
        assert_eq!((rows.len(), running), (3 * EACH, 2 * EACH), "{rows:?}");
        assert!((0..EACH).all(|number| podman.containers_of(&name(old, number)).is_empty()));
        assert!((0..EACH).all(|number| recorder.states_of(&name("both", number)).is_empty()));
    }
    assert_eq!(common(&podman), before, "what is in both modes runs on");
}
