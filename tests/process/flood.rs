//! Clients that send requests without end and do not read the responses: a workload at its FIFOs,
//! and an agent that forwards all requests of its workloads, as other implementations do. With the
//! state of 500 workloads the server stays small, the agents stay connected, and everybody else is
//! answered.
//!
//! Thread: the test's, and one for each flood. Owns: one cluster with the fake engine per test.

#![allow(clippy::print_stderr)] // What was measured is of interest also when it is good enough.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::control_client::{folder, logs, read};
use crate::support::process::memory_kib;
use crate::support::{Cluster, ControlClient, LIMIT, connection, manifest, wait_until, workload};
use ankaios_lite::model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_lite::model::messages::{
    AgentLoad, FromServer, FromWorkload, ReadState, Request, RequestContent, Response,
    ResponseContent, ToServer, UpdateState,
};
use ankaios_lite::model::names::InstanceName;
use ankaios_lite::wire::client::Hangup;
use ankaios_lite::wire::delimited::workload_side::frame;
use ankaios_lite::wire::limits::PEER_STUCK;

const WORKLOADS: usize = 500;
/// How long a flood lasts at least: longer than a connection that is stuck is put up with.
const FLOOD: Duration = Duration::from_secs(2 * PEER_STUCK.as_secs());
/// Most memory of its own that the server takes.
pub const SERVER_MAX_KIB: u64 = 60 * 1024;
const AGENT_MAX_KIB: u64 = 60 * 1024;

/// A server with the state of [`WORKLOADS`] and an agent with a flooding workload and `web`, which
/// may read everything.
fn cluster() -> Cluster {
    let cluster = Cluster::start(&["agent_A"]);
    let stored = (0..WORKLOADS - 2).map(|number| {
        let options = format!(
            "commandOptions: [\"--publish\", \"{number}:80\", \"--env\", \"NUMBER={number}\"]"
        );
        workload(&format!("stored_{number}"), "registry.example/stored:1.2.3")
            .on("nobody")
            .tag("stored")
            .config(&options)
    });
    let here = ["greedy", "web"].map(|name| workload(name, "run").allow("ReadWrite", "*"));
    cluster.apply(&manifest(&stored.chain(here).collect::<Vec<_>>()));
    cluster.wait_until_run(&["greedy", "web"]);
    cluster
}

/// Watches the memory of its own of a process until it is dropped: without the code, of which a
/// debug build has much.
pub struct MemoryPeak {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

impl MemoryPeak {
    pub fn of(pid: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut peak = 0;
            while !stopped.load(Ordering::Relaxed) {
                peak = peak.max(memory_kib(pid, "RssAnon:"));
                std::thread::sleep(Duration::from_millis(5));
            }
            peak
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }

    pub fn kib(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .take()
            .expect("it runs")
            .join()
            .expect("it only reads")
    }
}

impl Drop for MemoryPeak {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Asks for everything as fast as the pipe takes it, and reads nothing. Returns how much was taken.
fn flood_pipe(folder: &Path, stop: &AtomicBool) -> usize {
    flood_pipe_with(folder, stop, |number| {
        let request = Request {
            id: number.to_string(),
            content: read(&[], false),
        };
        frame(FromWorkload::Request(request))
    })
}

/// The same with these messages.
fn flood_pipe_with(folder: &Path, stop: &AtomicBool, message: impl Fn(usize) -> Vec<u8>) -> usize {
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).expect("a small flag");
    let mut output = fs::File::options()
        .write(true)
        .custom_flags(flags)
        .open(folder.join("output"))
        .expect("open");
    let mut sent = 0;
    for number in 0_usize.. {
        let bytes = message(number);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            if stop.load(Ordering::Relaxed) {
                return sent;
            }
            match output.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1))
                }
                Err(error) => panic!("{error}"),
            }
        }
        sent += 1;
    }
    sent
}

/// Sends requests as `web` and as a commander, and gets responses for both, until the time of the
/// flood is over and `is_enough` holds. Returns the longest wait of each.
fn ask_during_flood(
    cluster: &Cluster,
    web: &mut ControlClient,
    mut is_enough: impl FnMut() -> bool,
) -> (Duration, Duration) {
    let (mut longest_web, mut longest_ank) = (Duration::ZERO, Duration::ZERO);
    let flood_begin = Instant::now();
    for number in 0.. {
        let begin = Instant::now();
        if begin > flood_begin + FLOOD && is_enough() {
            break;
        }
        assert!(
            begin < flood_begin + FLOOD + LIMIT,
            "the flood comes to nothing"
        );
        let answer = web.read(&number.to_string(), &["desiredState.workloads.web"]);
        assert!(
            matches!(answer, ResponseContent::CompleteState { .. }),
            "{answer:?}"
        );
        longest_web = longest_web.max(begin.elapsed());
        let begin = Instant::now();
        let output = cluster.ank(&["get", "agents"]);
        assert_eq!(output.code, 0, "{}", output.stderr);
        longest_ank = longest_ank.max(begin.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
    (longest_web, longest_ank)
}

pub fn assert_never_disconnected(cluster: &Cluster, agent: &str) {
    let log = cluster.server.as_ref().expect("it runs").stderr();
    let count = |text: &str| log.lines().filter(|line| line.contains(text)).count();
    let connected = count(&format!("Agent '{agent}' connected"));
    assert_eq!(
        (connected, count(&format!("Agent '{agent}' disconnected"))),
        (1, 0),
        "of agent '{agent}'"
    );
}

#[test]
fn workload_that_requests_and_never_reads_harms_no_other() {
    let mut cluster = cluster();
    let mut web = ControlClient::connect(&folder(&cluster, "agent_A", "web"));
    let greedy_folder = folder(&cluster, "agent_A", "greedy");
    let greedy = ControlClient::connect(&greedy_folder);
    let server = MemoryPeak::of(cluster.server().pid());
    let agent = MemoryPeak::of(cluster.agent("agent_A").pid());
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let flood = std::thread::spawn(move || flood_pipe(&greedy_folder, &stopped));
    let (web_waited, ank_waited) = ask_during_flood(&cluster, &mut web, || true);
    stop.store(true, Ordering::Relaxed);
    let sent = flood.join().expect("the flood ends");
    let (server, agent) = (server.kib(), agent.kib());
    let measured = format!(
        "{sent} requests taken; server {server} KiB, agent {agent} KiB; waited: web {web_waited:?}, ank {ank_waited:?}"
    );
    eprintln!("{measured}");
    assert!(
        server < SERVER_MAX_KIB && agent < AGENT_MAX_KIB,
        "{measured}"
    );
    assert_never_disconnected(&cluster, "agent_A");
    drop(greedy);
}

/// What the server did with the requests of a flood, and with those of a workload beside it.
#[derive(Debug, Default)]
struct Answers {
    states: AtomicUsize,
    refused: AtomicUsize,
    /// The time of the other workload's open request, and its longest wait.
    modest: Mutex<(Option<Instant>, Duration)>,
}

/// An agent of another implementation: it passes on all that its workloads ask, and reads what
/// comes.
struct ForeignAgent {
    hangup: Hangup,
    asks: JoinHandle<usize>,
    reads: JoinHandle<()>,
}

impl ForeignAgent {
    fn start(url: &str, name: &str, stop: Arc<AtomicBool>, answers: &Arc<Answers>) -> Self {
        let (mut sender, mut receiver, hangup) = connection::agent(url, name);
        let counts = answers.clone();
        let reads = std::thread::spawn(move || {
            let mut last = None;
            while let Ok(message) = receiver.receive() {
                let FromServer::Response(Response { id, content }) = message else {
                    continue;
                };
                match content {
                    ResponseContent::CompleteState { .. } if id.starts_with("modest") => {
                        let mut modest = counts.modest.lock().expect("nobody panics");
                        let waited = modest.0.take().expect("it has asked").elapsed();
                        modest.1 = modest.1.max(waited);
                    }
                    ResponseContent::CompleteState { .. } => {
                        let number = id
                            .strip_prefix("greedy@")
                            .and_then(|number| number.parse::<usize>().ok());
                        assert!(
                            number > last,
                            "states come in the order in which they were asked for"
                        );
                        last = number;
                        counts.states.fetch_add(1, Ordering::Relaxed);
                    }
                    ResponseContent::Error(_) => _ = counts.refused.fetch_add(1, Ordering::Relaxed),
                    other => panic!("{other:?}"),
                }
            }
        });
        let counts = answers.clone();
        let asks = std::thread::spawn(move || {
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                let mut modest = counts.modest.lock().expect("nobody panics");
                if sent % 100 == 99 && modest.0.is_none() {
                    modest.0 = Some(Instant::now());
                    connection::request(&mut sender, "modest@x", read(&["agents"], false));
                }
                drop(modest);
                connection::request(&mut sender, &format!("greedy@{sent}"), read(&[], false));
                sent += 1;
            }
            sent
        });
        Self {
            hangup,
            asks,
            reads,
        }
    }

    fn end(self) -> usize {
        let sent = self.asks.join().expect("it only sends");
        self.hangup.hang_up();
        self.reads.join().expect("the answers are in order");
        sent
    }
}

#[test]
fn agent_that_forwards_all_requests_costs_little() {
    let mut cluster = cluster();
    let there =
        ["greedy", "modest"].map(|name| workload(name, "run").on("foreign").allow("Read", "*"));
    cluster.apply(&manifest(&there));
    let mut web = ControlClient::connect(&folder(&cluster, "agent_A", "web"));
    let server = MemoryPeak::of(cluster.server().pid());
    let (stop, answers) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(Answers::default()),
    );
    let foreign = ForeignAgent::start(&cluster.url(), "foreign", stop.clone(), &answers);
    wait_until("it is connected", || {
        answers.states.load(Ordering::Relaxed) > 0
    });
    let modest_waited = || answers.modest.lock().expect("nobody panics").1;
    let (web_waited, ank_waited) = ask_during_flood(&cluster, &mut web, || {
        modest_waited() > Duration::ZERO && answers.refused.load(Ordering::Relaxed) > 0
    });
    assert_never_disconnected(&cluster, "agent_A");
    assert_never_disconnected(&cluster, "foreign");
    stop.store(true, Ordering::Relaxed);
    let sent = foreign.end();
    let server = server.kib();
    let measured = format!(
        "{sent} requests, {answers:?}; server {server} KiB; waited: web {web_waited:?}, ank {ank_waited:?}"
    );
    eprintln!("{measured}");
    assert!(server < SERVER_MAX_KIB, "{measured}");
    // It waits behind what its agent has sent before, as long as that is on its way.
    assert!(modest_waited() < LIMIT, "{measured}");
}

/// Some agents report long texts of very many instances that are not desired.
#[test]
fn agents_that_report_unknown_workloads_cost_little() {
    let mut cluster = Cluster::start(&["agent_A"]);
    cluster.run(&[workload("web", "run").allow("ReadWrite", "*")]);
    let mut web = ControlClient::connect(&folder(&cluster, "agent_A", "web"));
    let server = MemoryPeak::of(cluster.server().pid());
    let agent = MemoryPeak::of(cluster.agent("agent_A").pid());
    let (mut hostile, mut readers) = (Vec::new(), Vec::new());
    for name in ["hostile_1", "hostile_2", "hostile_3"] {
        let (sender, mut receiver, hangup) = connection::agent(&cluster.url(), name);
        readers.push(std::thread::spawn(
            move || while receiver.receive().is_ok() {},
        ));
        hostile.push((name, sender, hangup));
    }
    for batch in 0..12 {
        for (name, sender, _) in &mut hostile {
            let stray = |number: usize| {
                let instance =
                    InstanceName::with_id(&format!("stray_{batch}_{number}"), "id", name);
                WorkloadState::new(
                    instance,
                    ExecutionState::with_info(Phase::FailedUnknown, "x".repeat(16_000)),
                )
            };
            sender
                .send(ToServer::WorkloadStates((0..200).map(stray).collect()))
                .expect("the server takes it");
        }
    }
    let known = || {
        cluster
            .workloads()
            .iter()
            .filter(|row| row.agent.starts_with("hostile"))
            .count()
    };
    wait_until("the reports have come", || known() >= 3_000);
    for mask in [&[][..], &["workloadStates"], &["agents"]] {
        let answer = web.read("states", mask);
        assert!(
            matches!(answer, ResponseContent::CompleteState { .. }),
            "{mask:?}"
        );
    }
    for arguments in [
        &["get", "state"][..],
        &["get", "workloads"],
        &["get", "agents"],
    ] {
        let output = cluster.ank(arguments);
        assert_eq!(output.code, 0, "{arguments:?}: {}", output.stderr);
    }
    let (server, agent) = (server.kib(), agent.kib());
    let measured = format!("{} states; server {server} KiB, agent {agent} KiB", known());
    eprintln!("{measured}");
    assert!(
        server < SERVER_MAX_KIB && agent < AGENT_MAX_KIB,
        "{measured}"
    );
    assert_never_disconnected(&cluster, "agent_A");
    for (_, _, hangup) in hostile {
        hangup.hang_up();
    }
    readers
        .into_iter()
        .for_each(|reader| reader.join().expect("it only reads"));
}

/// Agents whose requests are as large as messages may be.
const LARGE_SENDERS: usize = 6;
/// One message of that size at a time, and little beside it. gRPC takes a message as a whole before the
/// server can refuse it with a response: of 68 MiB that were measured, 56 are that message, 4 the
/// server before, and the rest is the workload of 5 MiB that this test stores meanwhile.
const LARGE_MAX_KIB: u64 = 100 * 1024;

/// Very many masks in a message of about `bytes`.
fn masks(bytes: usize, prefix: &str) -> Vec<String> {
    (0..bytes / (prefix.len() + 9))
        .map(|number| format!("{prefix}.{number:06x}"))
        .collect()
}

#[test]
fn largest_messages_of_all_agents_cost_the_memory_of_one() {
    let mut cluster = cluster();
    let mut web = ControlClient::connect(&folder(&cluster, "agent_A", "web"));
    let before = memory_kib(cluster.server().pid(), "RssAnon:");
    let server = MemoryPeak::of(cluster.server().pid());
    let stop = Arc::new(AtomicBool::new(false));
    let content = RequestContent::CompleteState(ReadState {
        masks: vec!["x".repeat(56 << 20)],
        subscribe: false,
    });
    let message = Arc::new(ToServer::Request(Request {
        id: "greedy@1".to_owned(),
        content,
    }));
    let refusals = Arc::new(AtomicUsize::new(0));
    let senders = (0..LARGE_SENDERS).map(|number| {
        let (url, name) = (cluster.url(), format!("large_{number}"));
        let (stopped, message, refused) = (stop.clone(), message.clone(), refusals.clone());
        std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let (mut sender, mut receiver, hangup) = connection::agent(&url, &name);
                let counted = refused.clone();
                let reads = std::thread::spawn(move || {
                    while let Ok(message) = receiver.receive() {
                        if matches!(
                            message,
                            FromServer::Response(Response {
                                content: ResponseContent::Error(_),
                                ..
                            })
                        ) {
                            counted.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
                // A machine without time may lose a connection over such messages, to its
                // keepalive.
                while !stopped.load(Ordering::Relaxed) && sender.send((*message).clone()).is_ok() {}
                hangup.hang_up();
                reads.join().expect("it only reads");
            }
        })
    });
    let senders: Vec<_> = senders.collect();
    let refused = || refusals.load(Ordering::Relaxed);
    let (web_waited, ank_waited) =
        ask_during_flood(&cluster, &mut web, || refused() >= LARGE_SENDERS);
    // A request larger than those of workloads is served as well.
    cluster.apply(&manifest(&[workload("large", "run")
        .on("nobody")
        .tag(&"x".repeat(5 << 20))]));
    stop.store(true, Ordering::Relaxed);
    let server = server.kib();
    for sends in senders {
        sends.join().expect("it only sends");
    }
    let refused = refused();
    let measured = format!(
        "{refused} refused; server {before} KiB before and {server} KiB; waited: web {web_waited:?}, ank {ank_waited:?}"
    );
    eprintln!("{measured}");
    assert!(server < LARGE_MAX_KIB, "{measured}");
    assert_never_disconnected(&cluster, "agent_A");
}

#[test]
fn largest_requests_of_all_workloads_cost_little() {
    const GREEDY: usize = 6;
    let mut cluster = cluster();
    let names: Vec<String> = (0..GREEDY)
        .map(|number| format!("greedy_{number}"))
        .collect();
    let greedy: Vec<_> = names
        .iter()
        .map(|name| workload(name, "run").allow("ReadWrite", "*"))
        .collect();
    cluster.apply(&manifest(&greedy));
    let mut web = ControlClient::connect(&folder(&cluster, "agent_A", "web"));
    let peaks = [cluster.server().pid(), cluster.agent("agent_A").pid()].map(MemoryPeak::of);
    let stop = Arc::new(AtomicBool::new(false));
    let turns = Arc::new(AtomicUsize::new(0));
    let floods: Vec<_> = names
        .iter()
        .map(|name| {
            let folder = folder(&cluster, "agent_A", name);
            let client = ControlClient::connect(&folder);
            let stopped = stop.clone();
            let has_turn = turns.clone();
            let kinds = [
                RequestContent::CompleteState(ReadState {
                    masks: masks(3 << 20, "configs"),
                    subscribe: false,
                }),
                RequestContent::UpdateState(UpdateState {
                    new_state: None,
                    masks: masks(5 << 19, "desiredState.configs"),
                    restart: Vec::new(),
                }),
            ];
            let frames = kinds.map(|content| {
                frame(FromWorkload::Request(Request {
                    id: "x".to_owned(),
                    content,
                }))
            });
            std::thread::spawn(move || {
                let sent = flood_pipe_with(&folder, &stopped, |number| {
                    // The first one was taken.
                    if number == 1 {
                        has_turn.fetch_add(1, Ordering::Relaxed);
                    }
                    frames[number % frames.len()].clone()
                });
                drop(client);
                sent
            })
        })
        .collect();
    // Each has its turn.
    let (web_waited, ank_waited) = ask_during_flood(&cluster, &mut web, || {
        turns.load(Ordering::Relaxed) == GREEDY
    });
    stop.store(true, Ordering::Relaxed);
    let sent: Vec<usize> = floods
        .into_iter()
        .map(|flood| flood.join().expect("the flood ends"))
        .collect();
    let [server, agent] = peaks.map(MemoryPeak::kib);
    let measured = format!(
        "{sent:?} taken; server {server} KiB, agent {agent} KiB; waited: web {web_waited:?}, ank {ank_waited:?}"
    );
    eprintln!("{measured}");
    assert!(
        server < SERVER_MAX_KIB && agent < AGENT_MAX_KIB,
        "{measured}"
    );
    assert_never_disconnected(&cluster, "agent_A");
}

/// A request at a control interface of which the last byte is missing.
struct UnfinishedRequest {
    output: fs::File,
    bytes: Vec<u8>,
    /// Bytes that the pipe has taken.
    taken: usize,
}

impl UnfinishedRequest {
    /// Begins a request of about `bytes`.
    fn begin(folder: &Path, bytes: usize) -> Self {
        let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).expect("a small flag");
        let output = fs::File::options()
            .write(true)
            .custom_flags(flags)
            .open(folder.join("output"))
            .expect("open");
        let mut bytes = frame(FromWorkload::Request(Request {
            id: "x".to_owned(),
            content: RequestContent::CompleteState(ReadState {
                masks: masks(bytes, "configs"),
                subscribe: false,
            }),
        }));
        bytes.pop();
        Self {
            output,
            bytes,
            taken: 0,
        }
    }

    /// Writes as much as the pipe takes now. Returns whether all of it is written.
    fn write(&mut self) -> bool {
        while self.taken < self.bytes.len() {
            match self.output.write(&self.bytes[self.taken..]) {
                Ok(count) => self.taken += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) => panic!("{error}"),
            }
        }
        true
    }
}

/// Each workload could keep a message of `max_control_message_size` in the memory of the agent. The
/// bytes that its pipes take are counted, since memory differs from build to build.
#[test]
fn agent_takes_one_unfinished_large_request_at_a_time() {
    const GREEDY: usize = 12;
    const BYTES: usize = 2 << 20;
    let cluster = Cluster::start(&["agent_A"]);
    let names: Vec<String> = (0..GREEDY)
        .map(|number| format!("greedy_{number}"))
        .collect();
    let greedy: Vec<_> = names
        .iter()
        .map(|name| workload(name, "run").allow("ReadWrite", "*"))
        .collect();
    cluster.apply(&manifest(&greedy));
    let mut clients = Vec::new();
    let mut requests = Vec::new();
    for name in &names {
        let folder = folder(&cluster, "agent_A", name);
        clients.push(ControlClient::connect(&folder));
        requests.push(UnfinishedRequest::begin(&folder, BYTES));
    }
    // All of them are written in turn, until the agent has taken one of them.
    let mut taken = 0;
    wait_until("the agent takes one of the requests", || {
        loop {
            let before = taken;
            for request in &mut requests {
                let is_taken = request.write();
                if is_taken {
                    return true;
                }
            }
            taken = requests.iter().map(|request| request.taken).sum();
            if taken == before {
                return false;
            }
        }
    });
    taken = requests.iter().map(|request| request.taken).sum();
    // One request, one that was too slow before it, and of each other what a pipe holds and the
    // agent reads at once.
    assert!(
        taken < 3 * BYTES,
        "the agent has taken {taken} bytes of {GREEDY} requests"
    );
    drop(clients);
}

/// Connections as agents and workloads that flood the server together, each in a way of its own.
const HOSTILE_AGENTS: usize = 16;
const HOSTILE_WORKLOADS: usize = 8;

/// The message of the hostile agent `number` in its round `round`. It is named `agent` and runs the
/// workload `hostile`.
fn hostile_message(number: usize, agent: &str, round: usize) -> ToServer {
    let mut id = format!("hostile_{number}@{round}");
    let content = match number {
        0 | 1 => read(&[], false),
        2 => read(&["workloadStates.*.*.*.state"], false),
        3 => read(&[], true),
        4 => read_masks(masks(3 << 20, "configs")),
        5 => change_of(masks(5 << 19, "desiredState.configs")),
        6 => change_of(masks(40 << 10, "desiredState.workloads.nobody")),
        7 => return stray_states(agent, round, 200, 16_000),
        8 => return stray_states(agent, round, 5, 10),
        9 => {
            let names = (0..100).map(|index| format!("stored_{index}"));
            let instances = names.map(|name| InstanceName::with_id(&name, "id", "nobody"));
            logs(instances.collect())
        }
        10 => {
            id = format!("nobody_{round}@x");
            read(&[], false)
        }
        11 => {
            return ToServer::AgentLoad(AgentLoad {
                agent: agent.to_owned(),
                cpu_usage: u32::try_from(round % 100).expect("a percentage"),
                free_memory: 1,
                engine: String::new(),
            });
        }
        12 => {
            id = "x".repeat(1 << 20);
            read(&["agents"], false)
        }
        13 => return ToServer::WorkloadStates(Vec::new()),
        14 => read_masks(vec!["x".repeat(4 << 20)]),
        _ => return ToServer::Goodbye,
    };
    ToServer::Request(Request { id, content })
}

fn read_masks(masks: Vec<String>) -> RequestContent {
    RequestContent::CompleteState(ReadState {
        masks,
        subscribe: false,
    })
}

/// An update of these masks without a state.
fn change_of(masks: Vec<String>) -> RequestContent {
    RequestContent::UpdateState(UpdateState {
        new_state: None,
        masks,
        restart: Vec::new(),
    })
}

/// States of unknown instances, each with a text of this number of bytes.
fn stray_states(agent: &str, round: usize, count: usize, text_bytes: usize) -> ToServer {
    let mut states = Vec::new();
    for index in 0..count {
        let instance = InstanceName::with_id(&format!("stray_{round}_{index}"), "id", agent);
        let state = ExecutionState::with_info(Phase::FailedUnknown, "x".repeat(text_bytes));
        states.push(WorkloadState::new(instance, state));
    }
    ToServer::WorkloadStates(states)
}

/// A hostile agent floods until it is stopped, and connects again whenever it is disconnected. Every
/// second one reads what it is sent.
fn flood_as_agent(url: &str, number: usize, stop: &AtomicBool) -> usize {
    let name = format!("hostile_{number}");
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        let (mut sender, mut receiver, hangup) = connection::agent(url, &name);
        let reads = std::thread::spawn(move || {
            if number % 2 == 1 {
                while receiver.receive().is_ok() {}
            }
            receiver
        });
        while !stop.load(Ordering::Relaxed)
            && sender.send(hostile_message(number, &name, sent)).is_ok()
        {
            sent += 1;
        }
        hangup.hang_up();
        drop(reads.join().expect("it only reads"));
    }
    sent
}

/// What the hostile workload `number` writes as its message `round`.
fn hostile_frame(number: usize, round: usize) -> Vec<u8> {
    let content = match number {
        0 | 1 => read(&[], false),
        2 => RequestContent::CompleteState(ReadState {
            masks: masks(3 << 20, "configs"),
            subscribe: false,
        }),
        3 => RequestContent::UpdateState(UpdateState {
            new_state: None,
            masks: masks(5 << 19, "desiredState.configs"),
            restart: Vec::new(),
        }),
        4 => read(&[], true),
        5 => read(&["workloadStates.*.*.*.state"], false),
        6 => logs(vec![InstanceName::with_id("stored_1", "id", "nobody")]),
        _ => RequestContent::EventsCancel,
    };
    frame(FromWorkload::Request(Request {
        id: round.to_string(),
        content,
    }))
}

#[test]
fn hostile_agents_and_workloads_leave_memory_and_turns() {
    let mut cluster = cluster();
    let on_agents = (0..HOSTILE_AGENTS).map(|number| {
        workload(&format!("hostile_{number}"), "run")
            .on(&format!("hostile_{number}"))
            .allow("ReadWrite", "*")
    });
    let workloads: Vec<String> = (0..HOSTILE_WORKLOADS)
        .map(|number| format!("greedy_{number}"))
        .collect();
    let here = workloads
        .iter()
        .map(|name| workload(name, "run").allow("ReadWrite", "*"));
    cluster.apply(&manifest(&on_agents.chain(here).collect::<Vec<_>>()));
    let mut web = ControlClient::connect(&folder(&cluster, "agent_A", "web"));
    let peaks = [cluster.server().pid(), cluster.agent("agent_A").pid()].map(MemoryPeak::of);
    let stop = Arc::new(AtomicBool::new(false));
    let mut floods = Vec::new();
    for (number, name) in workloads.iter().enumerate() {
        let folder = folder(&cluster, "agent_A", name);
        let client = ControlClient::connect(&folder);
        let stopped = stop.clone();
        floods.push(std::thread::spawn(move || {
            let sent = flood_pipe_with(&folder, &stopped, |round| hostile_frame(number, round));
            drop(client);
            sent
        }));
    }
    for number in 0..HOSTILE_AGENTS {
        let (url, stopped) = (cluster.url(), stop.clone());
        floods.push(std::thread::spawn(move || {
            flood_as_agent(&url, number, &stopped)
        }));
    }
    let (web_waited, ank_waited) = ask_during_flood(&cluster, &mut web, || true);
    stop.store(true, Ordering::Relaxed);
    let [server, agent] = peaks.map(MemoryPeak::kib);
    let sent: Vec<usize> = floods
        .into_iter()
        .map(|flood| flood.join().expect("the flood ends"))
        .collect();
    let measured = format!(
        "{sent:?} sent; server {server} KiB, agent {agent} KiB; waited: web {web_waited:?}, ank {ank_waited:?}"
    );
    eprintln!("{measured}");
    assert!(
        server < SERVER_MAX_KIB && agent < AGENT_MAX_KIB,
        "{measured}"
    );
    assert_never_disconnected(&cluster, "agent_A");
}
