//! What happens around the three programs goes wrong: processes that stand still, connections that
//! are slow, silent or wrong, and clients that behave badly. Each test has its promise as its name.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::connection::{self, Connection};
use crate::support::process::{
    exit_code, is_alive, memory_peak_kib, open_files, own_threads, process_state,
};
use crate::support::{Cluster, LIMIT, Proxy, manifest, wait_until, workload};
use ankaios_lite::model::messages::{ReadState, RequestContent, ToServer, UpdateState};
use ankaios_lite::model::node::Node;
use ankaios_lite::platform::limits::LOG_SOURCE_LINES;
use ankaios_lite::wire::client::{Service, StreamEnd};
use rustix::process::Signal;

fn stopped(pid: u32) -> bool {
    process_state(pid) == Some('T')
}

/// Waits until exactly these workloads run, each with one container that is alive. The states may
/// be those from before a change, so the containers are waited for as well.
fn all_run(cluster: &Cluster, names: &[&str]) {
    cluster.wait_for_all(names.len(), "Running(Ok)");
    for name in names {
        let (pid, _) = cluster.engine.wait_for_container(name);
        assert!(is_alive(pid), "the container of '{name}' lives");
    }
    wait_until("there is no other container", || {
        cluster.engine.containers().len() == names.len()
    });
}

// ---------------------------------------------------------- processes too many

#[test]
fn second_agent_of_a_name_ends_and_leaves_the_first_alone() {
    let mut cluster = Cluster::start(&["agent_A"]);
    cluster.apply(&manifest(&[workload("runs", "run")]));
    all_run(&cluster, &["runs"]);
    cluster
        .engine
        .script(&serde_json::json!([{ "command": "run", "hang": true }]));
    cluster.apply(&manifest(&[
        workload("runs", "run"),
        workload("slow", "run"),
    ]));
    wait_until("a call takes its time", || {
        cluster.engine.hanging_calls_of("run").len() == 1
    });
    let call = cluster.engine.hanging_calls_of("run")[0];
    let mut rival = cluster.start_rival("agent_A");
    assert_eq!(
        rival.wait(LIMIT).map(exit_code),
        Some(1),
        "{}",
        rival.stderr()
    );
    let named = "another agent with the name 'agent_A' runs and uses the folder '";
    assert!(rival.stderr().contains(named), "{}", rival.stderr());
    assert!(is_alive(call), "the call of the first agent goes on");
    assert!(cluster.agent("agent_A").is_running());
    assert!(
        !cluster.server().stderr().contains("connected again"),
        "its connection stays"
    );
}

// ------------------------------------------------------- processes that stand still

#[test]
fn paused_agent_catches_up_without_a_second_container() {
    let mut cluster = Cluster::start(&["agent_A"]);
    cluster.apply(&manifest(&[
        workload("stays", "run"),
        workload("ends", "run"),
        workload("back", "run").restart("ALWAYS"),
    ]));
    all_run(&cluster, &["stays", "ends", "back"]);
    let (stays, _) = cluster.engine.only_container("stays");
    let agent = cluster.agent("agent_A").pid();
    cluster.agent("agent_A").signal(Signal::STOP);
    wait_until("the agent stands still", || stopped(agent));
    cluster.engine.finish("ends", 3);
    cluster.engine.finish("back", 3);
    cluster.apply(&manifest(&[workload("new", "run")]));
    cluster.agent("agent_A").signal(Signal::CONT);
    cluster.wait_for_row("ends", "its end is seen", |row| {
        row.state == "Failed(ExecFailed)"
    });
    // Until its end is reported, its state is that from before.
    wait_until("the one that ended comes back", || {
        cluster.engine.calls_of("run", "back.").len() == 2
    });
    for name in ["stays", "back", "new"] {
        cluster.wait_for_state(name, "Running(Ok)");
        cluster.engine.wait_for_container(name);
    }
    assert_eq!(
        cluster.engine.only_container("stays").0,
        stays,
        "what did not change runs on"
    );
}

#[test]
fn paused_server_answers_and_catches_up_when_it_continues() {
    let mut cluster = Cluster::start(&["agent_A"]);
    cluster.apply(&manifest(&[
        workload("ends", "run"),
        workload("stays", "run"),
    ]));
    all_run(&cluster, &["ends", "stays"]);
    let server = cluster.server().pid();
    cluster.server().signal(Signal::STOP);
    wait_until("the server stands still", || stopped(server));
    cluster.engine.finish("ends", 0);
    let mut waiting = cluster.start_ank(&["get", "workloads"]);
    cluster.server().signal(Signal::CONT);
    let status = waiting
        .wait(LIMIT)
        .expect("a command that met the pause is answered after it");
    assert!(status.success(), "{}", waiting.stderr());
    cluster.wait_for_state("ends", "Succeeded(Ok)");
    cluster.wait_for_state("stays", "Running(Ok)");
}

#[test]
fn server_and_agent_killed_together_find_the_containers() {
    let mut cluster = Cluster::prepare();
    let folder = cluster.folder().join("state");
    cluster.server_config = format!("state_dir = '{}'", folder.display());
    cluster.start_all(&["agent_A"]);
    cluster.apply(&manifest(&[workload("one", "run"), workload("two", "run")]));
    all_run(&cluster, &["one", "two"]);
    let before = ["one", "two"].map(|name| cluster.engine.only_container(name));
    wait_until("the state is stored", || {
        std::fs::read_to_string(folder.join("desired-state.json"))
            .is_ok_and(|text| text.contains("two"))
    });
    cluster.kill_server();
    cluster.kill_agent("agent_A");
    cluster.start_all(&["agent_A"]);
    all_run(&cluster, &["one", "two"]);
    assert_eq!(
        ["one", "two"].map(|name| cluster.engine.only_container(name)),
        before,
        "they never stopped"
    );
}

// ---------------------------------------------------------- connections that go wrong

#[test]
fn a_slow_connection_delays_and_loses_nothing() {
    let (cluster, proxy) = Cluster::start_behind_proxy();
    proxy.delay(Duration::from_millis(200));
    cluster.apply(&manifest(&[
        workload("first", "run"),
        workload("second", "run").after("first", "ADD_COND_RUNNING"),
    ]));
    all_run(&cluster, &["first", "second"]);
    cluster.remove("second");
    assert_eq!(proxy.accepted(), 1, "slow is no reason to connect again");
}

#[test]
fn repeatedly_cut_connections_leave_one_container_each() {
    let (cluster, proxy) = Cluster::start_behind_proxy();
    let names = ["a", "b", "c", "d"];
    for round in 0..5 {
        let all: Vec<_> = names
            .iter()
            .map(|name| workload(name, "run").config(&format!("commandArgs: [\"{round}\"]")))
            .collect();
        cluster.apply(&manifest(&all));
        let before = proxy.accepted();
        proxy.cut();
        wait_until("the agent is back", || proxy.accepted() > before);
    }
    all_run(&cluster, &names);
    for name in names {
        let container = cluster.engine.containers_of(name);
        assert!(
            container[0].to_string().contains("\"4\""),
            "the last wish counts: {container:?}"
        );
    }
}

#[test]
fn a_connection_that_stalls_delivers_what_was_said_meanwhile() {
    let (cluster, proxy) = Cluster::start_behind_proxy();
    cluster.apply(&manifest(&[workload("ends", "run")]));
    all_run(&cluster, &["ends"]);
    proxy.stall(true);
    cluster.engine.finish("ends", 7);
    cluster.apply(&manifest(&[workload("new", "run")]));
    assert_eq!(
        cluster.ank(&["get", "agents"]).code,
        0,
        "others are served meanwhile"
    );
    assert!(
        cluster.engine.calls_of("run", "new").is_empty(),
        "the agent cannot know of it yet"
    );
    proxy.stall(false);
    cluster.wait_for_row("ends", "its end", |row| {
        row.state == "Failed(ExecFailed)" && row.info.contains('7')
    });
    cluster.wait_for_state("new", "Running(Ok)");
}

/// The agent gets no message of the end: only its keepalive notices it (within half a minute).
#[test]
fn a_half_open_connection_is_noticed_by_both_ends_and_replaced() {
    let (cluster, proxy) = Cluster::start_behind_proxy();
    cluster.apply(&manifest(&[workload("stays", "run")]));
    all_run(&cluster, &["stays"]);
    proxy.stall(true);
    cluster.wait_for("the server misses the agent", || {
        let row = cluster.workload("stays")?;
        (row.state == "AgentDisconnected").then_some(())
    });
    wait_until("the agent tries again", || proxy.accepted() > 1);
    proxy.stall(false);
    all_run(&cluster, &["stays"]);
    assert_eq!(
        cluster.engine.calls_of("run", "stays").len(),
        1,
        "the container was left alone"
    );
}

#[test]
fn connection_with_wrong_bytes_is_closed_without_harm() {
    let (mut cluster, proxy) = Cluster::start_behind_proxy();
    cluster.apply(&manifest(&[workload("stays", "run")]));
    all_run(&cluster, &["stays"]);
    for one_of in [7, 100, 1000] {
        proxy.corrupt(one_of);
        let before = proxy.accepted();
        cluster.apply(&manifest(&[workload(&format!("new{one_of}"), "run")]));
        wait_until("the connection is given up", || proxy.accepted() > before);
    }
    proxy.corrupt(0);
    proxy.cut();
    for name in ["new7", "new100", "new1000"] {
        cluster.remove(name);
    }
    all_run(&cluster, &["stays"]);
    assert!(cluster.server().is_running() && cluster.agent("agent_A").is_running());
}

// ------------------------------------------------------------- clients that behave badly

fn follow(url: &str) -> Connection {
    let (mut sender, receiver, hangup) = connection::commander(url, Service::Command);
    let content = RequestContent::CompleteState(ReadState {
        masks: Vec::new(),
        subscribe: true,
    });
    connection::request(&mut sender, "events", content);
    (sender, receiver, hangup)
}

#[test]
fn two_hundred_idle_connections_cost_nobody_the_service() {
    let mut cluster = Cluster::start(&["agent_A"]);
    let server = cluster.server().pid();
    let threads = own_threads(server).len();
    let idle: Vec<TcpStream> = (0..200)
        .map(|_| TcpStream::connect(cluster.address()).expect("the server listens"))
        .collect();
    cluster.apply(&manifest(&[workload("w", "run")]));
    all_run(&cluster, &["w"]);
    cluster.remove("w");
    let now = own_threads(server).len();
    assert!(
        now <= threads + 8,
        "{now} threads instead of {threads}: none for each idle connection"
    );
    drop(idle);
    cluster.apply(&manifest(&[workload("w", "run")]));
    all_run(&cluster, &["w"]);
}

#[test]
fn repeatedly_refused_client_does_not_fill_the_log() {
    const EACH: usize = 15;
    let mut cluster = Cluster::start(&["agent_A"]);
    let begin = Instant::now();
    let (mut sender, mut receiver, _hangup) = follow(&cluster.url());
    receiver.receive().expect("the first answer");
    // Neither the name nor the version may be as they are; the server quotes them.
    let name = format!("\x1b[2J{}", "x".repeat(500_000));
    for number in 0..EACH {
        let workload = Node::map([(
            "workloads",
            Node::map([(name.as_str(), Node::map([("agent", Node::text("a"))]))]),
        )]);
        let new_state = Some(Ok(Node::map([("desiredState", workload)])));
        let content = RequestContent::UpdateState(UpdateState {
            new_state,
            masks: Vec::new(),
            ..Default::default()
        });
        connection::request(&mut sender, &number.to_string(), content);
        receiver.receive().expect("an answer");
    }
    for _ in 0..EACH {
        let hello = ToServer::CommanderHello {
            version: "0.1\x1b[2J".to_owned(),
        };
        let (_sender, mut refused, _hangup) =
            connection::open(&cluster.url(), Service::Command, hello);
        assert!(matches!(
            refused.receive(),
            Err(StreamEnd::VersionMismatch(_))
        ));
    }
    let log = cluster.server().stderr();
    for text in ["Refusing an update: ", "Refusing the connection from "] {
        assert!(log.contains(text), "{log}");
    }
    assert!(
        log.len() < 20_000 && !log.contains('\x1b'),
        "{} bytes",
        log.len()
    );
    assert!(
        log.contains("Many log lines are about '127.0.0.1': further ones are left out for 60s."),
        "{log}"
    );
    let complaints = log.lines().filter(|line| line.contains("Refusing")).count();
    // On a slow machine it lasts longer than a minute, and each has its own lines.
    let minutes = begin.elapsed().as_secs() as usize / 60 + 1;
    assert!(complaints <= LOG_SOURCE_LINES as usize * minutes, "{log}");
    // The agent is another source.
    cluster.kill_agent("agent_A");
    wait_until("the end of the agent is logged", || {
        cluster
            .server()
            .stderr()
            .contains("Agent 'agent_A' disconnected.")
    });
}

/// In the end more than `PEER_OUTBOX` responses wait for it, in messages of 100 KiB.
#[test]
fn client_that_never_reads_costs_bounded_memory() {
    let mut cluster = Cluster::start(&["agent_A"]);
    let server = cluster.server().pid();
    let open = || open_files(server);
    let without = open();
    let proxy = Proxy::start(&cluster.address());
    let (_sender, mut receiver, _hangup) = follow(&proxy.url());
    receiver.receive().expect("the first answer");
    proxy.stall(true);
    let before = memory_peak_kib(server);
    let padding = "x".repeat(100 * 1024);
    for round in 0..100 {
        let lines = format!("commandArgs: [\"{round}\", \"{padding}\"]");
        cluster.apply(&manifest(&[workload("large", "run")
            .on("nobody")
            .config(&lines)]));
    }
    cluster.run(&[workload("w", "run")]);
    // The kernel sums its counters up only roughly, so that a peak may be read lower later.
    let grown = memory_peak_kib(server).saturating_sub(before);
    assert!(grown < 64 * 1024, "the server grew by {grown} KiB");
    wait_until(
        "the server gives up the connection of who takes nothing",
        || open() <= without,
    );
}
