//! `bench modes`: what a switch of the mode costs the server, beside the same change written into
//! the fields `agent` of the same workloads, and how soon the failure of an essential workload
//! leads to the first message of the switch.
//!
//! Thread: `main` of the bench.

use std::path::Path;
use std::time::Instant;

use ankaios_lite::model::complete_state::{DesiredState, Rendering};
use ankaios_lite::model::node::Node;
use ankaios_lite::model::workload::{ConfigItem, Workload};
use ankaios_lite::wire::address::Security;

use super::clients::{Agent, Commander, Reports};
use super::process::Server;
use super::scale::{agent_name, milliseconds, running};
use super::table::{Table, median};

const AGENTS: usize = 10;
/// Workloads that a switch ends; it starts as many.
const GROUP: usize = 25;
/// Switches that one mean is made of; an even number, so that the mode is the first one again.
const SWITCHES: u32 = 100;
/// Means of which the median is taken, taken in turns so that other load meets all clusters.
const ROUNDS: usize = 5;
/// Failures of which the median is taken.
const FAILURES: usize = 21;
/// Limits of the cost of a switch, in costs of the same change by hand, and of a switch in a
/// cluster with fewer workloads.
const BY_HAND_MAX: f64 = 2.0;
const GROWTH_MAX: f64 = 1.25;
/// The first message of a switch because of a failure is sent within this time, in milliseconds.
const FAILURE_MAX: f64 = 5.0;

/// Returns whether a switch costs not much more than the same change by hand, whatever else there
/// is.
pub fn run(programs: &Path) -> bool {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let config = folder.path().join("ank-server.conf");
    let text = "version = 'v1'\nmode_config = 'mode'\nmode_on_failure = 'limp'\n";
    std::fs::write(&config, text).expect("own folder is writable");
    let start = |workloads, by_hand| Cluster::start(programs, &config, workloads, by_hand);
    let mut clusters = [start(1000, false), start(5000, false), start(5000, true)];
    let rounds: Vec<[f64; 3]> = (0..ROUNDS)
        .map(|_| clusters.each_mut().map(Cluster::switches))
        .collect();
    let [small, large, by_hand] =
        [0, 1, 2].map(|index| median(rounds.iter().map(|round| round[index]).collect()));
    let of_large = median(rounds.iter().map(|round| round[1] / round[2]).collect());
    let growth = median(rounds.iter().map(|round| round[1] / round[0]).collect());
    let failure = clusters[1].failures();
    let mut table = Table::default();
    table.noted("CPU of a switch of 50 among 1,000 workloads", "ms", small);
    table.noted("CPU of a switch of 50 among 5,000 workloads", "ms", large);
    table.noted("CPU of the same change in 50 fields 'agent'", "ms", by_hand);
    table.promised(
        "from a final failure to the first message, limit",
        "ms",
        failure,
        FAILURE_MAX,
        1.0,
    );
    table.print();
    let mut held = true;
    for (what, ratio, max) in [
        ("the same change by hand", of_large, BY_HAND_MAX),
        ("a switch among 1,000 workloads", growth, GROWTH_MAX),
    ] {
        let within = ratio <= max;
        held &= within;
        let verdict = if within { "kept" } else { "BROKEN" };
        println!(
            "among 5,000: {ratio:.2} times the CPU of {what}, at most {max} promised: {verdict}"
        );
    }
    held
}

/// A server with connected agents whose workloads all run.
struct Cluster {
    server: Server,
    agents: Vec<Agent>,
    commander: Commander,
    by_hand: bool,
}

fn agent_of(index: usize) -> usize {
    index % GROUP % AGENTS
}

fn workload_name(index: usize) -> String {
    format!("workload_{index}")
}

/// The first group is in `drive`, the next one in `park`, of the others every second one in both.
/// By hand, what is not in `park` has no agent. The last two are for failures.
fn desired(workloads: usize, by_hand: bool) -> Node {
    let mut desired = DesiredState::default();
    let mut add = |name: String, agent: &str, modes: Option<&str>| {
        let mut workload =
            Workload::new(agent, "podman", "image: docker.io/library/alpine:latest\n");
        let modes = modes.filter(|_| !by_hand);
        workload
            .tags
            .extend(modes.map(|modes| ("modes".to_owned(), modes.to_owned())));
        if name == "brake" {
            workload
                .tags
                .insert("essential".to_owned(), "true".to_owned());
        }
        desired.workloads.insert(name.into(), workload.into());
    };
    for index in 0..workloads {
        let modes = match index {
            index if index < GROUP => Some("drive"),
            index if index < 2 * GROUP => Some("park"),
            index => index.is_multiple_of(2).then_some("drive park"),
        };
        let has_agent = !(by_hand && index < GROUP);
        add(
            workload_name(index),
            &if has_agent {
                agent_name(agent_of(index))
            } else {
                String::new()
            },
            modes,
        );
    }
    if !by_hand {
        add("brake".to_owned(), &agent_name(0), Some("fail"));
        add("lamp".to_owned(), &agent_name(1), Some("limp"));
    }
    desired
        .configs
        .insert("mode".to_owned(), ConfigItem::Text("park".to_owned()));
    Node::map([("desiredState", desired.node(Rendering::Full))])
}

impl Cluster {
    fn start(programs: &Path, config: &Path, workloads: usize, by_hand: bool) -> Self {
        let arguments = ["--server-config".to_owned(), config.display().to_string()];
        let server = Server::start(programs, &arguments, Security::Insecure);
        let connect = |index| Agent::connect(&server, &agent_name(index), Reports::Together);
        let mut agents: Vec<Agent> = (0..AGENTS).map(connect).collect();
        let mut commander = Commander::connect(&server);
        commander.apply(desired(workloads, by_hand));
        for (index, agent) in agents.iter_mut().enumerate() {
            agent.wait_for_workloads(
                (GROUP..workloads)
                    .filter(|workload| agent_of(*workload) == index)
                    .count(),
            );
        }
        server.wait_until_idle();
        let states = commander.read(&["workloadStates.*.*.*.state"]);
        assert_eq!(
            running(&states),
            workloads - GROUP,
            "all that are in the mode run"
        );
        Self {
            server,
            agents,
            commander,
            by_hand,
        }
    }

    /// Mean CPU of a switch in milliseconds, with what agents report of it.
    fn switches(&mut self) -> f64 {
        self.server.wait_until_idle();
        let before = self.server.cpu();
        for number in 0..SWITCHES {
            let mode = if number.is_multiple_of(2) {
                "drive"
            } else {
                "park"
            };
            if self.by_hand {
                self.assign(mode);
            } else {
                self.set_mode(mode);
            }
            for (index, agent) in self.agents.iter_mut().enumerate() {
                agent.wait_for_more(
                    (0..GROUP)
                        .filter(|workload| agent_of(*workload) == index)
                        .count(),
                );
            }
        }
        self.server.wait_until_idle();
        milliseconds((self.server.cpu() - before) / SWITCHES)
    }

    fn set_mode(&mut self, mode: &str) {
        let configs = Node::map([("mode", Node::text(mode))]);
        let new_state = Node::map([("desiredState", Node::map([("configs", configs)]))]);
        self.commander
            .update(new_state, vec!["desiredState.configs.mode".to_owned()]);
    }

    fn assign(&mut self, mode: &str) {
        let agent = |index: usize| {
            let is_in = (index < GROUP) == (mode == "drive");
            Node::text(if is_in {
                agent_name(agent_of(index))
            } else {
                String::new()
            })
        };
        let of = |index: usize| (workload_name(index), Node::map([("agent", agent(index))]));
        let workloads = Node::Map((0..2 * GROUP).map(of).collect());
        let new_state = Node::map([("desiredState", Node::map([("workloads", workloads)]))]);
        let masks = (0..2 * GROUP)
            .map(|index| format!("desiredState.workloads.{}.agent", workload_name(index)));
        self.commander.update(new_state, masks.collect());
    }

    /// Milliseconds from the report of a failure until another agent has the first workload of the
    /// mode for failures.
    fn failures(&mut self) -> f64 {
        let mut times = Vec::new();
        for _ in 0..FAILURES {
            self.set_mode("fail");
            self.agents[0].wait_for_more(1);
            self.server.wait_until_idle();
            let begin = Instant::now();
            self.agents[0].report_failure();
            self.agents[1].wait_for_more(1);
            times.push(milliseconds(begin.elapsed()));
        }
        median(times)
    }
}
