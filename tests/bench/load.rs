//! `bench load`: the growth of costs with workloads on one agent, workloads on the server,
//! subscribers, and commands at the same time. Each curve is printed; one that grows faster than
//! its subject is an error.
//!
//! Thread: `main` of the bench. Owns: a server, an agent with the fake engine, many `ank`, one kind
//! after the other.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ankaios_lite::model::node::Node;
use ankaios_lite::wire::address::Security;

use super::clients::{Agent, Commander, Reports, Subscriber};
use super::process::{Server, cpu_of, pss_of};
use super::scale::{SETTLE, agent_name, mebibytes, milliseconds, running, state};
use super::table::median;

/// Limit of the cost of one more at the end of a curve, in costs of one more at its begin. A cost
/// that grows with the square of its subject would be eight times as much: each curve goes up to
/// eight times its begin.
const GROWTH_MAX: f64 = 3.0;
/// State changes of which the mean is taken.
const CHANGES: usize = 400;
/// Longest wait for a cluster to be as it should.
const LIMIT: Duration = Duration::from_secs(600);

/// One curve: sizes and their whole costs.
struct Curve {
    what: &'static str,
    unit: &'static str,
    points: Vec<(usize, f64)>,
}

impl Curve {
    fn new(what: &'static str, unit: &'static str) -> Self {
        Self {
            what,
            unit,
            points: Vec::new(),
        }
    }

    /// Prints the curve. Returns whether it is flat enough. `share` is what a single one may cost
    /// by itself, below which growth cannot be distinguished from noise.
    #[allow(clippy::cast_precision_loss)] // Counts are small.
    fn print(&self, share: f64) -> bool {
        println!("{}", self.what);
        let each = |(count, cost): &(usize, f64)| cost / *count as f64;
        let most = self
            .points
            .iter()
            .map(|(_, cost)| *cost)
            .fold(f64::MIN_POSITIVE, f64::max);
        for point in &self.points {
            let bar = "#".repeat((point.1 / most * 40.0) as usize);
            println!(
                "{:>9}{:>12.3} {:<4}{:>12.5} each  {bar}",
                point.0,
                point.1,
                self.unit,
                each(point)
            );
        }
        let (Some(first), Some(last)) = (self.points.first(), self.points.last()) else {
            return true;
        };
        let growth = each(last) / each(first).max(share);
        let held = growth <= GROWTH_MAX;
        let verdict = if held { "kept" } else { "BROKEN" };
        println!(
            "  one costs {growth:.2} times as much in the end, at most {GROWTH_MAX} promised: {verdict}\n"
        );
        held
    }
}

/// Returns whether nothing grows too fast.
pub fn run(programs: &Path, engine: &Path) -> bool {
    let mut held = workloads_of_server(programs);
    held &= states_apart(programs);
    held &= subscribers(programs);
    held &= commands(programs);
    held &= open_update(programs);
    held & workloads_of_agent(programs, engine)
}

// ------------------------------------------------------------------------- server

/// Simulated agents, and the workloads of all of them together.
const AGENTS: usize = 200;
const WORKLOADS: [usize; 4] = [2500, 5000, 10_000, 20_000];
/// Reads of which the fastest applies: each is long enough for other programs to run meanwhile.
const READS: usize = 5;

/// A server to which all agents are connected.
fn with_agents(programs: &Path, reports: Reports) -> (Server, Vec<Agent>, Commander) {
    let server = Server::start(programs, &[], Security::Insecure);
    let agents = (0..AGENTS)
        .map(|index| Agent::connect(&server, &agent_name(index), reports))
        .collect();
    let mut commander = Commander::connect(&server);
    while commander
        .read(&["agents"])
        .get("agents")
        .and_then(Node::as_map)
        .map_or(0, |all| all.len())
        < AGENTS
    {
        std::thread::sleep(Duration::from_millis(20));
    }
    server.wait_until_idle();
    (server, agents, commander)
}

/// Each state in a message of its own goes to all other agents.
fn states_apart(programs: &Path) -> bool {
    let mut cpu = Curve::new(
        "server: CPU of an apply on 200 agents that send a message for each state, by workloads",
        "s",
    );
    for workloads in WORKLOADS {
        let (server, mut agents, mut commander) = with_agents(programs, Reports::OneByOne);
        let before = server.cpu();
        commander.apply(state(AGENTS, workloads));
        agents
            .iter_mut()
            .for_each(|agent| agent.wait_for_workloads(workloads / AGENTS));
        server.wait_until_idle();
        cpu.points
            .push((workloads, (server.cpu() - before).as_secs_f64()));
    }
    cpu.print(0.0)
}

fn workloads_of_server(programs: &Path) -> bool {
    let mut cpu = Curve::new(
        "server: CPU of an apply on 200 agents until all is reported, by workloads",
        "s",
    );
    let mut time = Curve::new("server: time of that", "s");
    let mut peak = Curve::new("server: memory right after it", "MiB");
    let mut memory = Curve::new("server: memory some seconds later", "MiB");
    let mut read = Curve::new(
        "server: time of a read of the complete state, with decoding",
        "ms",
    );
    let mut change = Curve::new(
        "server: CPU of 400 state changes with one subscriber and 200 agents, by workloads",
        "ms",
    );
    let mut event = Curve::new(
        "server: time until the events of these 400 arrived, each before the next change",
        "ms",
    );
    for workloads in WORKLOADS {
        let (server, mut agents, mut commander) = with_agents(programs, Reports::Together);
        let new = state(AGENTS, workloads);
        let (before, begin) = (server.cpu(), Instant::now());
        commander.apply(new);
        agents
            .iter_mut()
            .for_each(|agent| agent.wait_for_workloads(workloads / AGENTS));
        time.points.push((workloads, begin.elapsed().as_secs_f64()));
        peak.points.push((workloads, mebibytes(server.pss())));
        server.wait_until_idle();
        cpu.points
            .push((workloads, (server.cpu() - before).as_secs_f64()));
        assert_eq!(
            running(&commander.read(&["workloadStates.*.*.*.state"])),
            workloads,
            "all workloads are reported"
        );
        std::thread::sleep(SETTLE);
        memory.points.push((workloads, mebibytes(server.pss())));
        let mut read_all = || {
            let begin = Instant::now();
            assert!(
                commander.read(&[]).get("effectiveState").is_some(),
                "all of the state is read"
            );
            begin.elapsed()
        };
        let fastest = (0..READS).map(|_| read_all()).min().unwrap_or_default();
        read.points.push((workloads, milliseconds(fastest)));
        // Not by workload: the others do not matter to one change.
        let subscriber = Subscriber::connect(&server);
        server.wait_until_idle();
        let (before, mut told) = (server.cpu(), Duration::ZERO);
        for number in 0..CHANGES {
            let begin = Instant::now();
            agents[number % AGENTS].report_change(number / AGENTS);
            told += subscriber.next().saturating_duration_since(begin);
        }
        event.points.push((workloads, milliseconds(told)));
        server.wait_until_idle();
        change
            .points
            .push((workloads, milliseconds(server.cpu() - before)));
    }
    // One state change must not cost more because there are more workloads: growth of the cost of
    // one.
    let flat = change.points.last().map_or(0.0, |last| last.1) / change.points[0].1.max(1.0);
    let held = [cpu.print(0.0), memory.print(0.0), change.print(0.0)]
        .into_iter()
        .all(|held| held);
    // Other load on the machine decides how long things take, and when memory is looked at.
    [time, peak, read, event]
        .iter()
        .for_each(|curve| _ = curve.print(0.0));
    println!(
        "  400 state changes cost {flat:.2} times as much with eight times as many workloads, at most {GROWTH_MAX}\n"
    );
    held && flat <= GROWTH_MAX
}

fn with_a_thousand_workloads(programs: &Path) -> (Server, Agent) {
    let server = Server::start(programs, &[], Security::Insecure);
    let mut agent = Agent::connect(&server, &agent_name(0), Reports::Together);
    Commander::connect(&server).apply(state(1, 1000));
    agent.wait_for_workloads(1000);
    (server, agent)
}

fn subscribers(programs: &Path) -> bool {
    let mut cpu = Curve::new(
        "server: CPU of a state change with 1,000 workloads, by subscribers",
        "ms",
    );
    let mut last = Curve::new("server: time until the last of them is told", "ms");
    let (server, mut agent) = with_a_thousand_workloads(programs);
    for count in [6, 12, 25, 50] {
        let all: Vec<Subscriber> = (0..count).map(|_| Subscriber::connect(&server)).collect();
        server.wait_until_idle();
        let (before, mut told) = (server.cpu(), Duration::ZERO);
        for number in 0..CHANGES {
            let begin = Instant::now();
            agent.report_change(number);
            let latest = all.iter().map(Subscriber::next).max().unwrap_or(begin);
            told += latest.saturating_duration_since(begin);
        }
        server.wait_until_idle();
        let changes = u32::try_from(CHANGES).unwrap_or(1);
        cpu.points
            .push((count, milliseconds((server.cpu() - before) / changes)));
        last.points.push((count, milliseconds(told / changes)));
    }
    let held = cpu.print(0.0);
    // Other load on the machine decides how long things take, so this is no verdict.
    last.print(0.0);
    held
}

/// A state change while an update is open that judges all 1,000 workloads, beside one while none
/// is.
fn open_update(programs: &Path) -> bool {
    const TIMES: usize = 5;
    let cost = |state: &Node| {
        let server = Server::start(programs, &[], Security::Insecure);
        let mut agent = Agent::connect(&server, &agent_name(0), Reports::Together);
        Commander::connect(&server).apply(state.clone());
        agent.wait_for_workloads(1000);
        let subscriber = Subscriber::connect(&server);
        server.wait_until_idle();
        let before = server.cpu();
        for number in 0..CHANGES {
            agent.report_change(number);
            subscriber.next();
        }
        server.wait_until_idle();
        milliseconds(server.cpu() - before)
    };
    let plain = state(1, 1000);
    let text = serde_json::to_string(&plain).expect("a tree has a text");
    let block = "lifecycle: {update: {healthyMs: 600000, deadlineMs: 1200000}}";
    let text = text.replace("commandArgs: ", &format!("{block}\\ncommandArgs: "));
    let guarded: Node = serde_json::from_str(&text).expect("it was one");
    let [none, open] =
        [plain, guarded].map(|state| median((0..TIMES).map(|_| cost(&state)).collect()));
    let ratio = open / none.max(1.0);
    println!(
        "server: CPU of {CHANGES} state changes with 1,000 workloads: {none:.1} ms, with an update that is open on all \
         {open:.1} ms, {ratio:.2} times as much, at most {GROWTH_MAX}\n"
    );
    ratio <= GROWTH_MAX
}

fn commands(programs: &Path) -> bool {
    let mut cpu = Curve::new(
        "server: CPU of so many `ank get workloads` at the same time, 1,000 workloads",
        "ms",
    );
    let mut time = Curve::new("the same: time until all have ended", "ms");
    let (server, _agent) = with_a_thousand_workloads(programs);
    let url = format!("http://127.0.0.1:{}", server.port);
    for count in [12, 25, 50, 100] {
        server.wait_until_idle();
        let (before, begin) = (server.cpu(), Instant::now());
        let start = |_| {
            let mut command = Command::new(programs.join("ank"));
            command.args([
                "--insecure",
                "--server-url",
                &url,
                "--response-timeout",
                "60000",
                "get",
                "workloads",
            ]);
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .expect("ank starts")
        };
        let all: Vec<Child> = (0..count).map(start).collect();
        for mut ank in all {
            assert!(
                ank.wait().is_ok_and(|status| status.success()),
                "each of {count} commands is answered"
            );
        }
        time.points.push((count, milliseconds(begin.elapsed())));
        server.wait_until_idle();
        cpu.points
            .push((count, milliseconds(server.cpu() - before)));
    }
    let held = cpu.print(0.0);
    time.print(0.0);
    held
}

// -------------------------------------------------------------------------- agent

/// A real agent with the fake engine.
struct RealAgent {
    child: Child,
    folder: tempfile::TempDir,
}

impl RealAgent {
    fn start(programs: &Path, engine: &Path, server: &Server) -> Self {
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        let path = |name: &str| -> PathBuf { folder.path().join(name) };
        for name in ["bin", "engine", "run"] {
            fs::create_dir(path(name)).expect("own folder is writable");
        }
        // A link is relative to where it is.
        let engine = fs::canonicalize(engine).expect("the fake engine is built");
        symlink(engine, path("bin/podman")).expect("own folder is writable");
        let log = fs::File::create(path("log")).expect("own folder is writable");
        let mut command = Command::new(programs.join("ank-agent"));
        command.args(["--insecure", "--name", &agent_name(0), "--server-url"]);
        command
            .arg(format!("http://127.0.0.1:{}", server.port))
            .arg("--run-folder")
            .arg(path("run"));
        command
            .env("PATH", path("bin"))
            .env("FAKE_ENGINE_DIR", path("engine"))
            .env("RUST_LOG", "error");
        command.env("FAKE_ENGINE_ORDER_TICK", "1000ms"); // No end is ordered here.
        let child = command
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("ank-agent starts");
        Self { child, folder }
    }
}

impl Drop for RealAgent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // From one moment to the next; containers of the fake engine end when it is gone.
        let _ = fs::rename(
            self.folder.path().join("engine"),
            self.folder.path().join("ended"),
        );
    }
}

fn workloads_of_agent(programs: &Path, engine: &Path) -> bool {
    let mut cpu = Curve::new(
        "agent: CPU until all run, by workloads (its own, without the engine's)",
        "s",
    );
    let mut memory = Curve::new("agent: memory then, by workloads", "MiB");
    let mut time = Curve::new(
        "agent and fake engine: time until all run, by workloads",
        "s",
    );
    let mut gone = Curve::new("agent: CPU until all are gone again, by workloads", "s");
    for workloads in [125, 250, 500, 1000] {
        let server = Server::start(programs, &[], Security::Insecure);
        let agent = RealAgent::start(programs, engine, &server);
        let mut commander = Commander::connect(&server);
        let pid = agent.child.id();
        let (before, begin) = (cpu_of(pid), Instant::now());
        commander.apply(fake_state(workloads));
        wait_for(&mut commander, "all run", |states| {
            running(states) == workloads
        });
        time.points.push((workloads, begin.elapsed().as_secs_f64()));
        cpu.points
            .push((workloads, (cpu_of(pid) - before).as_secs_f64()));
        std::thread::sleep(SETTLE);
        memory.points.push((workloads, mebibytes(pss_of(pid))));
        let before = cpu_of(pid);
        commander.apply(fake_state(0));
        wait_for(&mut commander, "all are gone", |states| {
            states.at(&["workloadStates", &agent_name(0)]).is_none()
        });
        gone.points
            .push((workloads, (cpu_of(pid) - before).as_secs_f64()));
    }
    time.print(0.0); // Mostly the fake engine, which keeps a file for each container.
    [cpu.print(0.0), memory.print(0.0), gone.print(0.0)]
        .into_iter()
        .all(|held| held)
}

fn fake_state(workloads: usize) -> Node {
    let text = serde_json::to_string(&state(1, workloads)).expect("a tree has a text");
    let text = text.replace("docker.io/library/alpine:latest", "run");
    serde_json::from_str(&text).expect("it was one")
}

fn wait_for(commander: &mut Commander, what: &str, held: impl Fn(&Node) -> bool) {
    const SHOWN: usize = 600;
    let begin = Instant::now();
    loop {
        let states = commander.read(&["workloadStates"]);
        if held(&states) {
            return;
        }
        if begin.elapsed() >= LIMIT {
            let text: String = serde_json::to_string(&states)
                .unwrap_or_default()
                .chars()
                .take(SHOWN)
                .collect();
            panic!("waited {LIMIT:?} in vain: {what}; it begins so: {text}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
