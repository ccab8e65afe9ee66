//! `bench server`: start, memory, the cost of an apply and of one state change, at two sizes of
//! cluster.
//!
//! Thread: `main` of the bench.

use std::path::Path;
use std::time::{Duration, Instant};

use ankaios_lite::model::complete_state::{DesiredState, Rendering};
use ankaios_lite::model::node::Node;
use ankaios_lite::model::workload::Workload;
use ankaios_lite::wire::address::Security;
use std::sync::Arc;

use super::clients::{Agent, Commander, Reports, Subscriber};
use super::process::Server;
use super::settings::rounds;
use super::table::{Table, median};

/// Starts of which the median is taken.
const STARTS: usize = 15;
/// Commands, and reads of the complete state, of which the median is taken.
const COMMANDS: usize = 41;
const READS: usize = 11;
/// State changes that one mean is made of.
const CHANGES: u32 = 400;
/// The same where there is a pause after each.
const CHANGES_APART: u32 = 150;
/// Pause after each change in the part where each is sent to all agents in a message of its own.
const APART: Duration = Duration::from_millis(25);
/// The server gives memory of bursts back within this time.
pub const SETTLE: Duration = Duration::from_secs(4);
/// What one state change costs may grow by this factor from the small to the large cluster.
const GROWTH_MAX: f64 = 2.0;

/// A size of cluster, and what Eclipse Ankaios needs at it.
pub struct Size {
    pub agents: usize,
    pub workloads: usize,
    peer: Numbers,
    promise: Numbers,
}

/// Of one size: memory in MiB when calm and right after the apply, CPU of the apply in seconds,
/// also with a message for each state, CPU and latency of a state change and the time of a read of
/// the complete state in milliseconds.
#[derive(Clone, Copy, Default)]
struct Numbers {
    pss: f64,
    peak: f64,
    apply: f64,
    apart: f64,
    change: f64,
    latency: f64,
    read: f64,
}

const SMALL: Size = Size {
    agents: 50,
    workloads: 1000,
    peer: Numbers {
        pss: 20.5,
        peak: 19.6,
        apply: 0.33,
        apart: 0.46,
        change: 13.6,
        latency: 21.0,
        read: 16.0,
    },
    promise: Numbers {
        pss: 0.5,
        peak: 0.5,
        apply: 0.6,
        apart: 0.45,
        change: 0.05,
        latency: 0.1,
        read: 0.8,
    },
};
pub const LARGE: Size = Size {
    agents: 100,
    workloads: 5000,
    peer: Numbers {
        pss: 66.0,
        peak: 66.8,
        apply: 3.7,
        apart: 4.05,
        change: 83.0,
        latency: 125.0,
        read: 83.0,
    },
    promise: Numbers {
        pss: 0.5,
        peak: 0.5,
        apply: 0.3,
        apart: 0.3,
        change: 0.01,
        latency: 0.02,
        read: 0.8,
    },
};

/// Returns whether the cost of a state change stays below [`GROWTH_MAX`].
pub fn run(programs: &Path) -> bool {
    let mut table = Table::default();
    start_and_idle(programs, &mut table);
    let mut clusters = [SMALL, LARGE].map(|size| apply(programs, size, &mut table));
    let all = change_in_turns(&mut clusters, Duration::ZERO);
    let apart = change_in_turns(&mut clusters, APART);
    for Cluster { agents, .. } in &mut clusters {
        agents.truncate(1);
    }
    let alone = change_in_turns(&mut clusters, Duration::ZERO);
    for (index, Cluster { size, .. }) in clusters.iter().enumerate() {
        let Size { peer, promise, .. } = size;
        table.promised(
            &size.label("CPU of a state change"),
            "ms",
            all.cpu[index],
            peer.change,
            promise.change,
        );
        let latency = all.latency[index];
        table.promised(
            &size.label("event at the subscriber after"),
            "ms",
            latency,
            peer.latency,
            promise.latency,
        );
        table.noted(
            &size.label("CPU of a state change that is not followed"),
            "ms",
            apart.cpu[index],
        );
        table.noted(
            &size.label("event after, not followed"),
            "ms",
            apart.latency[index],
        );
        table.noted(
            &size.label("CPU of a state change, one agent left"),
            "ms",
            alone.cpu[index],
        );
        table.noted(
            &size.label("event after, one agent left"),
            "ms",
            alone.latency[index],
        );
    }
    table.print();
    // Each agent gets a message, so the cost grows with their number in any case.
    let told = |size: &Size| f64::from(u32::try_from(size.agents).unwrap_or(u32::MAX));
    let streams = told(&clusters[1].size) / told(&clusters[0].size);
    let text = "times the CPU of a state change in the large cluster";
    println!(
        "all agents connected: {:.2} {text}, where {streams:.2} times as many streams are told",
        all.growth
    );
    let mut held = true;
    for (what, growth) in [
        ("for each stream that is told", all.growth / streams),
        ("one agent connected", alone.growth),
    ] {
        let within = growth <= GROWTH_MAX;
        held &= within;
        let verdict = if within { "kept" } else { "BROKEN" };
        println!("{what}: {growth:.2} {text}, at most {GROWTH_MAX} promised: {verdict}");
    }
    held
}

impl Size {
    pub fn label(&self, what: &str) -> String {
        format!(
            "{} workloads on {} agents: {what}",
            self.workloads, self.agents
        )
    }
}

fn start_and_idle(programs: &Path, table: &mut Table) {
    let start = || Server::start(programs, &[], Security::Insecure);
    let starts = (0..STARTS)
        .map(|_| milliseconds(start().answered_after))
        .collect();
    table.promised(
        "start of the server until it answers (median)",
        "ms",
        median(starts),
        6.0,
        1.0,
    );
    let server = start();
    std::thread::sleep(SETTLE);
    table.promised("memory, idle", "MiB", mebibytes(server.pss()), 6.5, 0.6);
    let commands = (0..COMMANDS)
        .map(|_| milliseconds(server.time_of(programs, &["get", "workloads"])))
        .collect();
    table.promised(
        "ank get workloads, the whole process (median)",
        "ms",
        median(commands),
        3.85,
        1.0,
    );
}

/// A server with connected agents whose workloads all run.
struct Cluster {
    size: Size,
    server: Server,
    agents: Vec<Agent>,
}

/// What an apply costs, in CPU and memory.
fn apply(programs: &Path, size: Size, table: &mut Table) -> Cluster {
    let apart = applied(programs, &size, Reports::OneByOne).cpu;
    let Applied {
        cpu,
        before,
        peak,
        server,
        agents,
    } = applied(programs, &size, Reports::Together);
    let Size { peer, promise, .. } = &size;
    table.promised(
        &size.label("CPU until all are reported"),
        "s",
        cpu,
        peer.apply,
        promise.apply,
    );
    table.promised(
        &size.label("the same, a message for each state"),
        "s",
        apart,
        peer.apart,
        promise.apart,
    );
    table.promised(
        &size.label("memory right after it"),
        "MiB",
        peak,
        peer.peak,
        promise.peak,
    );
    std::thread::sleep(SETTLE);
    table.promised(
        &size.label("memory"),
        "MiB",
        mebibytes(server.pss()),
        peer.pss,
        promise.pss,
    );
    table.noted(
        &size.label("memory before the workloads came"),
        "MiB",
        before,
    );
    let mut commander = Commander::connect(&server);
    let mut read = || {
        let begin = Instant::now();
        let state = commander.read(&[]);
        let time = begin.elapsed();
        assert_eq!(running(&state), size.workloads, "it is the complete state");
        milliseconds(time)
    };
    let reads = (0..READS).map(|_| read()).collect();
    table.promised(
        &size.label("read of the complete state (median)"),
        "ms",
        median(reads),
        peer.read,
        promise.read,
    );
    Cluster {
        size,
        server,
        agents,
    }
}

/// CPU seconds from the apply to the end of all reports, memory in MiB before it and right after.
pub struct Applied {
    pub cpu: f64,
    pub before: f64,
    pub peak: f64,
    pub server: Server,
    pub agents: Vec<Agent>,
}

pub fn applied(programs: &Path, size: &Size, reports: Reports) -> Applied {
    let server = Server::start(programs, &[], Security::Insecure);
    let mut commander = Commander::connect(&server);
    let connect = |index| Agent::connect(&server, &agent_name(index), reports);
    let mut agents: Vec<Agent> = (0..size.agents).map(connect).collect();
    while commander
        .read(&["agents"])
        .get("agents")
        .and_then(Node::as_map)
        .map_or(0, |all| all.len())
        < size.agents
    {
        std::thread::sleep(Duration::from_millis(20));
    }
    server.wait_until_idle();
    let before = mebibytes(server.pss());
    let used = server.cpu();
    commander.apply(state(size.agents, size.workloads));
    agents
        .iter_mut()
        .for_each(|agent| agent.wait_for_workloads(size.workloads / size.agents));
    let peak = mebibytes(server.pss());
    server.wait_until_idle();
    let cpu = (server.cpu() - used).as_secs_f64();
    let states = commander.read(&["workloadStates.*.*.*.state"]);
    assert_eq!(
        running(&states),
        size.workloads,
        "all workloads are reported"
    );
    Applied {
        cpu,
        before,
        peak,
        server,
        agents,
    }
}

pub fn agent_name(index: usize) -> String {
    format!("agent_{index}")
}

/// Complete state with workloads as people write them, spread evenly.
pub fn state(agents: usize, workloads: usize) -> Node {
    let mut desired = DesiredState::default();
    for index in 0..workloads {
        let config = format!(
            "image: docker.io/library/alpine:latest\n\
             commandOptions: [\"--name\", \"service-{index}\", \"--entrypoint\", \"/bin/sleep\"]\n\
             commandArgs: [\"{index}\"]\n"
        );
        let mut workload = Workload::new(&agent_name(index % agents), "podman", &config);
        workload
            .tags
            .insert("owner".to_owned(), "Ankaios team".to_owned());
        desired
            .workloads
            .insert(format!("workload_{index}").into(), Arc::new(workload));
    }
    Node::map([("desiredState", desired.node(Rendering::Full))])
}

pub fn running(states: &Node) -> usize {
    let text = serde_json::to_string(states).expect("a tree has a text");
    text.matches(r#""state":"Running""#).count()
}

/// CPU and delay of the event of one state change in milliseconds, by cluster, and how much more
/// CPU the second needs.
struct Changes {
    cpu: [f64; 2],
    latency: [f64; 2],
    growth: f64,
}

/// Means of CPU and delay of one round, in milliseconds.
type Means = (f64, f64);

/// The medians of some rounds, measured in turns so that other load meets both sizes.
fn change_in_turns(clusters: &mut [Cluster; 2], pause: Duration) -> Changes {
    let means: Vec<[Means; 2]> = (0..rounds())
        .map(|_| clusters.each_mut().map(|cluster| changes(cluster, pause)))
        .collect();
    let of = |value: fn(&[Means; 2]) -> f64| median(means.iter().map(value).collect());
    Changes {
        cpu: [of(|round| round[0].0), of(|round| round[1].0)],
        latency: [of(|round| round[0].1), of(|round| round[1].1)],
        growth: of(|round| round[1].0 / round[0].0),
    }
}

/// Each change waits for the event of the one before, so that each has an event of its own. Without
/// a `pause`, agents get all changes of a short time in one message.
fn changes(Cluster { server, agents, .. }: &mut Cluster, pause: Duration) -> Means {
    let subscriber = Subscriber::connect(server);
    server.wait_until_idle();
    let before = server.cpu();
    let mut latency = Duration::ZERO;
    let count = if pause.is_zero() {
        CHANGES
    } else {
        CHANGES_APART
    };
    for number in 0..count as usize {
        let last = agents.len();
        let begin = Instant::now();
        agents[number % last].report_change(number / last);
        latency += subscriber.next().saturating_duration_since(begin);
        std::thread::sleep(pause);
    }
    server.wait_until_idle();
    let cpu = server.cpu() - before;
    (milliseconds(cpu / count), milliseconds(latency / count))
}

pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

#[allow(clippy::cast_precision_loss)] // Three digits are shown.
pub fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
