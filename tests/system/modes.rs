//! Modes of the vehicle with real podman: what is in both modes runs on over many switches, what needs others stops before
//! them, and a switch takes no longer than the same change of agents by hand.
//!
//! Thread: the test's. Owns: two clusters, each with a podman store (support/podman.rs).

use std::time::{Duration, Instant};

use crate::store::{PATIENT, Podman};
use crate::support::{Cluster, Recorder};

/// Switches, and changes by hand to compare with.
const SWITCHES: usize = 20;
const COMPARED: usize = 6;
/// Workloads of each group; three after another are a chain.
const EACH: usize = 10;

fn name(group: &str, number: usize) -> String {
    format!("{group}{number}")
}

/// The workloads of a group, with this agent and these modes.
fn group(group: &str, agent: &str, modes: Option<&str>) -> String {
    let one = |number: usize| {
        let needs = if number.is_multiple_of(3) {
            "{}".to_owned()
        } else {
            format!("{{{}: ADD_COND_RUNNING}}", name(group, number - 1))
        };
        let tags = modes.map_or_else(String::new, |modes| format!("    tags: {{modes: {modes}}}\n"));
        format!(
            "  {}:\n    agent: '{agent}'\n    runtime: podman\n    dependencies: {needs}\n{tags}    runtimeConfig: |\n      \
             image: alpine:latest\n      commandOptions: [\"--stop-timeout\", \"1\"]\n      \
             commandArgs: [sh, -c, \"{PATIENT}\"]\n",
            name(group, number)
        )
    };
    (0..EACH).map(one).collect()
}

/// Id and time of start of the containers in both modes.
fn common(podman: &Podman) -> Vec<(u32, String)> {
    (0..EACH).map(|number| podman.only_container(&name("both", number))).collect()
}

fn applied(cluster: &Cluster, workloads: &[String], configs: &str) {
    let output = cluster
        .ank_with_input(&["apply", "-"], &format!("apiVersion: v1\nworkloads:\n{}{configs}", workloads.concat()));
    assert_eq!(output.code, 0, "{}", output.stderr);
}

/// The middle one.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[test]
#[allow(clippy::print_stderr)]
fn many_switches_leave_what_is_common_alone_keep_the_order_and_take_no_longer_than_by_hand() {
    let (podman, podman_by_hand) = (Podman::new(), Podman::new());
    let mut cluster = Cluster::prepare_on(&podman);
    cluster.server_config = "mode_config = 'mode'".to_owned();
    cluster.start_all(&["agent_A"]);
    let by_hand = Cluster::start_on(&podman_by_hand, &["agent_A"], "");
    let tagged = [("drive", "drive"), ("park", "park"), ("both", "drive park")];
    applied(&cluster, &tagged.map(|(name, modes)| group(name, "agent_A", Some(modes))), "configs: {mode: park}\n");
    let agents = [("drive", ""), ("park", "agent_A"), ("both", "agent_A")];
    applied(&by_hand, &agents.map(|(name, agent)| group(name, agent, None)), "");
    let before = common(&podman);
    let (mut switches, mut changes) = (Vec::new(), Vec::new());
    for number in 0..SWITCHES {
        let (new, old) = if number.is_multiple_of(2) { ("drive", "park") } else { ("park", "drive") };
        let recorder = Recorder::start(&cluster);
        let begin = Instant::now();
        cluster.ank(&["mode", new]).success();
        switches.push(begin.elapsed());
        // The last of each chain goes first.
        let stops = |number| recorder.position(&name(old, number), "Stopping(RequestedAtRuntime)");
        for number in (1..EACH).filter(|number| !number.is_multiple_of(3)) {
            assert!(stops(number) < stops(number - 1), "'{}' stopped before what needs it", name(old, number - 1));
        }
        let rows = cluster.workloads();
        let running = rows.iter().filter(|row| row.state == "Running(Ok)").count();
        assert_eq!((rows.len(), running), (3 * EACH, 2 * EACH), "{rows:?}");
        assert!((0..EACH).all(|number| podman.containers_of(&name(old, number)).is_empty()));
        assert!((0..EACH).all(|number| recorder.states_of(&name("both", number)).is_empty()));
        if number < COMPARED {
            changes.push(change_by_hand(&by_hand, new, old));
        }
    }
    assert_eq!(common(&podman), before, "what is in both modes runs on");
    let (switch, change) = (median(switches), median(changes));
    let ratio = switch.as_secs_f64() / change.as_secs_f64();
    eprintln!("a switch takes {switch:?}, the same by hand {change:?}: {ratio:.2}");
    assert!(ratio < 1.5, "a switch takes {switch:?}, the same by hand {change:?}");
}

/// Gives the workloads of `new` an agent and takes it from those of `old`, in one update. Returns how long that takes.
fn change_by_hand(cluster: &Cluster, new: &str, old: &str) -> Duration {
    let names = |group| (0..EACH).map(move |number| name(group, number));
    let lines =
        |group, agent: &str| names(group).map(|name| format!("{name}: {{agent: '{agent}'}}")).collect::<Vec<_>>();
    let workloads = [lines(new, "agent_A"), lines(old, "")].concat().join(", ");
    let masks: Vec<String> =
        names(new).chain(names(old)).map(|name| format!("desiredState.workloads.{name}.agent")).collect();
    let mut arguments = vec!["set", "state"];
    arguments.extend(masks.iter().map(String::as_str).chain(["-"]));
    let begin = Instant::now();
    let output =
        cluster.ank_with_input(&arguments, &format!("desiredState: {{apiVersion: v1, workloads: {{{workloads}}}}}"));
    assert_eq!(output.code, 0, "{}", output.stderr);
    begin.elapsed()
}
