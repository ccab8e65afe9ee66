//! Who asks without end and does not read what comes back: a workload at its FIFOs, and an agent that passes on whatever
//! its workloads ask, as those of other implementations do. With the state of 500 workloads the server stays small, the
//! agents stay connected, and everybody else is answered.
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

use crate::support::control_client::{folder, read};
use crate::support::{Cluster, ControlClient, LIMIT, connection, manifest, wait_until, workload};
use ankaios_lite::model::messages::{FromServer, FromWorkload, Request, Response, ResponseContent};
use ankaios_lite::wire::client::Hangup;
use ankaios_lite::wire::delimited::workload_side::frame;

const WORKLOADS: usize = 500;
/// How long a flood lasts: longer than a connection that is stuck is put up with.
const FLOOD: Duration = Duration::from_secs(20);
/// Everybody else is answered within this time. A build without optimisation on a loaded machine is slow, not wrong.
const ANSWERED: Duration = Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 2 });
/// Most memory of its own that the server takes.
const SERVER_MAX_KIB: u64 = 60 * 1024;
const AGENT_MAX_KIB: u64 = 60 * 1024;

/// A server with the state of [`WORKLOADS`] and an agent with `greedy` and `web`, which may read everything.
fn cluster() -> Cluster {
    let cluster = Cluster::start(&["agent_A"]);
    let stored = (0..WORKLOADS - 2).map(|number| {
        let options = format!("commandOptions: [\"--publish\", \"{number}:80\", \"--env\", \"NUMBER={number}\"]");
        workload(&format!("stored_{number}"), "registry.example/stored:1.2.3")
            .on("nobody")
            .tag("stored")
            .config(&options)
    });
    let here = ["greedy", "web"].map(|name| workload(name, "run").allow("ReadWrite", "*"));
    cluster.apply(&manifest(&stored.chain(here).collect::<Vec<_>>()));
    cluster.wait_for_state("greedy", "Running(Ok)");
    cluster.wait_for_state("web", "Running(Ok)");
    cluster
}

/// Memory of its own that the process has now, in KiB: without the code, of which a debug build has much.
fn memory_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the kernel counts it");
    line.trim().trim_end_matches("kB").trim().parse().expect("a number")
}

/// Watches the memory of a process until it is dropped.
struct MemoryPeak {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

impl MemoryPeak {
    fn of(pid: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut peak = 0;
            while !stopped.load(Ordering::Relaxed) {
                peak = peak.max(memory_kib(pid));
                std::thread::sleep(Duration::from_millis(5));
            }
            peak
        });
        Self { stop, thread: Some(thread) }
    }

    fn kib(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("it runs").join().expect("it only reads")
    }
}

impl Drop for MemoryPeak {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Asks for everything as fast as the pipe takes it, and reads nothing. Returns how much was taken.
fn flood_pipe(folder: &Path, stop: &AtomicBool) -> usize {
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).expect("a small flag");
    let mut output = fs::File::options().write(true).custom_flags(flags).open(folder.join("output")).expect("open");
    let mut sent = 0;
    for number in 0_usize.. {
        let request = Request { id: number.to_string(), content: read(&[], false) };
        let bytes = frame(FromWorkload::Request(request)).expect("it is small");
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            if stop.load(Ordering::Relaxed) {
                return sent;
            }
            match output.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => panic!("{error}"),
            }
        }
        sent += 1;
    }
    sent
}

/// Asks as `web` and as a commander until the time of the flood is over. Returns the longest wait of each.
fn ask_until(end: Instant, cluster: &Cluster, web: &mut ControlClient) -> (Duration, Duration) {
    let (mut longest_web, mut longest_ank) = (Duration::ZERO, Duration::ZERO);
    for number in 0.. {
        let begin = Instant::now();
        if begin >= end {
            break;
        }
        let answer = web.read(&number.to_string(), &["desiredState.workloads.web"]);
        assert!(matches!(answer, ResponseContent::CompleteState { .. }), "{answer:?}");
        longest_web = longest_web.max(begin.elapsed());
        let begin = Instant::now();
        let output = cluster.ank(&["get", "agents"]);
        assert_eq!(output.code, 0, "{}", output.stderr);
        longest_ank = longest_ank.max(begin.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
    (longest_web, longest_ank)
}

fn assert_never_disconnected(cluster: &Cluster, agent: &str) {
    let log = cluster.server.as_ref().expect("it runs").stderr();
    let count = |text: &str| log.lines().filter(|line| line.contains(text)).count();
    let connected = count(&format!("Agent '{agent}' connected"));
    assert_eq!((connected, count(&format!("Agent '{agent}' disconnected"))), (1, 0), "of agent '{agent}'");
}

#[test]
fn a_workload_that_asks_and_never_reads_costs_the_cluster_nothing() {
    let mut cluster = cluster();
    let mut web = ControlClient::connect(&folder(&cluster, "agent_A", "web"));
    let greedy_folder = folder(&cluster, "agent_A", "greedy");
    let greedy = ControlClient::connect(&greedy_folder);
    let server = MemoryPeak::of(cluster.server().pid());
    let agent = MemoryPeak::of(cluster.agent("agent_A").pid());
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let flood = std::thread::spawn(move || flood_pipe(&greedy_folder, &stopped));
    let (web_waited, ank_waited) = ask_until(Instant::now() + FLOOD, &cluster, &mut web);
    stop.store(true, Ordering::Relaxed);
    let sent = flood.join().expect("the flood ends");
    let (server, agent) = (server.kib(), agent.kib());
    let measured = format!(
        "{sent} requests taken; server {server} KiB, agent {agent} KiB; waited: web {web_waited:?}, ank {ank_waited:?}"
    );
    eprintln!("{measured}");
    assert!(server < SERVER_MAX_KIB && agent < AGENT_MAX_KIB, "{measured}");
    assert!(web_waited < ANSWERED && ank_waited < ANSWERED, "{measured}");
    assert_never_disconnected(&cluster, "agent_A");
    drop(greedy);
}

/// What the server did with the requests of a flood, and with those of a workload beside it.
#[derive(Debug, Default)]
struct Answers {
    states: AtomicUsize,
    refused: AtomicUsize,
    /// When the other workload has asked what is not answered yet, and its longest wait.
    modest: Mutex<(Option<Instant>, Duration)>,
}

/// An agent of another implementation: it passes on all that its workloads ask, and reads what comes.
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
                let FromServer::Response(Response { id, content }) = message else { continue };
                match content {
                    ResponseContent::CompleteState { .. } if id.starts_with("modest") => {
                        let mut modest = counts.modest.lock().expect("nobody panics");
                        let waited = modest.0.take().expect("it has asked").elapsed();
                        modest.1 = modest.1.max(waited);
                    }
                    ResponseContent::CompleteState { .. } => {
                        let number = id.strip_prefix("greedy@").and_then(|number| number.parse::<usize>().ok());
                        assert!(number > last, "states come in the order in which they were asked for");
                        last = number;
                        counts.states.fetch_add(1, Ordering::Relaxed);
                    }
                    ResponseContent::Error(_) => drop(counts.refused.fetch_add(1, Ordering::Relaxed)),
                    other => panic!("{other:?}"),
                }
            }
        });
        let counts = answers.clone();
        let asks = std::thread::spawn(move || {
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                let mut modest = counts.modest.lock().expect("nobody panics");
                if sent % 1000 == 999 && modest.0.is_none() {
                    modest.0 = Some(Instant::now());
                    connection::request(&mut sender, "modest@x", read(&["agents"], false));
                }
                drop(modest);
                connection::request(&mut sender, &format!("greedy@{sent}"), read(&[], false));
                sent += 1;
            }
            sent
        });
        Self { hangup, asks, reads }
    }

    fn end(self) -> usize {
        let sent = self.asks.join().expect("it only sends");
        self.hangup.hang_up();
        self.reads.join().expect("the answers are in order");
        sent
    }
}

#[test]
fn an_agent_that_passes_on_whatever_its_workload_asks_costs_the_cluster_little() {
    let mut cluster = cluster();
    let there = ["greedy", "modest"].map(|name| workload(name, "run").on("foreign").allow("Read", "*"));
    cluster.apply(&manifest(&there));
    let mut web = ControlClient::connect(&folder(&cluster, "agent_A", "web"));
    let server = MemoryPeak::of(cluster.server().pid());
    let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(Answers::default()));
    let foreign = ForeignAgent::start(&cluster.url(), "foreign", stop.clone(), &answers);
    wait_until("it is connected", || answers.states.load(Ordering::Relaxed) > 0);
    let (web_waited, ank_waited) = ask_until(Instant::now() + FLOOD, &cluster, &mut web);
    assert_never_disconnected(&cluster, "agent_A");
    assert_never_disconnected(&cluster, "foreign");
    stop.store(true, Ordering::Relaxed);
    let sent = foreign.end();
    let server = server.kib();
    let measured =
        format!("{sent} requests, {answers:?}; server {server} KiB; waited: web {web_waited:?}, ank {ank_waited:?}");
    eprintln!("{measured}");
    assert!(server < SERVER_MAX_KIB, "{measured}");
    let (_, modest_waited) = *answers.modest.lock().expect("nobody panics");
    assert!(web_waited < ANSWERED && ank_waited < ANSWERED, "{measured}");
    // It waits behind what its agent has sent before, as long as that is on its way.
    assert!(modest_waited < LIMIT && modest_waited > Duration::ZERO, "{measured}");
    assert!(answers.refused.load(Ordering::Relaxed) > 0, "{measured}");
}
