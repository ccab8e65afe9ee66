//! The notifications of a service manager by server and agent, and their absence when a thread is
//! stuck.
//!
//! Thread: the test's. Owns: one cluster and one scripted service manager per test.

use crate::support::process::exit_code;
use crate::support::{Cluster, LIMIT, ServiceManager, manifest, wait_until, workload};
use rustix::process::Signal;
use serde_json::json;
use std::fs;
use std::net::TcpStream;
use std::time::Duration;

/// Long enough for a slow machine, short enough for many signs of life within a test.
const WATCHDOG: Duration = Duration::from_millis(100);

/// A cluster whose agents answer to `manager`; nothing runs yet.
fn with_agents_of(manager: &ServiceManager) -> Cluster {
    let mut cluster = Cluster::prepare();
    cluster.agent_env = manager.environment(WATCHDOG);
    cluster
}

#[test]
fn server_notifies_readiness_clients_and_its_end() {
    let manager = ServiceManager::new();
    let mut cluster = Cluster::prepare();
    cluster.server_env = manager.environment(WATCHDOG);
    cluster.start_server(&[]);
    assert_eq!(
        manager.next(),
        "READY=1\nSTATUS=0 agents connected; 0 workloads"
    );
    TcpStream::connect(cluster.address()).expect("a server that is ready listens");
    assert_eq!(manager.next(), "WATCHDOG=1");
    cluster.start_agent("agent_A");
    assert_eq!(manager.next_news(), "STATUS=1 agent connected; 0 workloads");
    cluster.apply(&manifest(&[workload("w1", "run"), workload("w2", "run")]));
    manager.wait_for("STATUS=1 agent connected; 2 workloads");
    cluster.server().signal(Signal::TERM);
    assert_eq!(manager.next_news(), "STOPPING=1\nSTATUS=Stopping");
    assert_eq!(cluster.server().wait(LIMIT).map(exit_code), Some(0));
}

#[test]
fn server_is_ready_only_after_its_startup_manifest() {
    let manager = ServiceManager::new();
    let mut cluster = Cluster::prepare();
    cluster.server_env = manager.environment(WATCHDOG);
    let path = cluster.write("start.yaml", &manifest(&[workload("w1", "run")]));
    cluster.start_server(&[
        "--startup-manifest",
        path.to_str().expect("the path is text"),
    ]);
    assert_eq!(
        manager.next(),
        "READY=1\nSTATUS=0 agents connected; 1 workload"
    );
}

#[test]
fn agent_is_ready_without_a_server_and_notifies_its_status() {
    let manager = ServiceManager::new();
    let mut cluster = with_agents_of(&manager);
    cluster.reserve_port();
    cluster.start_agent("agent_A");
    let ready = manager.next();
    assert!(ready.starts_with("READY=1\nSTATUS="), "{ready}");
    assert!(ready.ends_with("; no workloads"), "{ready}");
    let missing = format!("STATUS=No connection to '{}': ", cluster.url());
    if !ready.contains(&missing) {
        manager.wait_for(&missing);
    }
    manager.wait_for("WATCHDOG=1"); // Waiting for a server is no standstill.
    cluster.start_server(&[]);
    manager.wait_for(&format!(
        "STATUS=Connected to '{}'; no workloads",
        cluster.url()
    ));
    cluster.apply(&manifest(&[workload("w1", "run")]));
    manager.wait_for("; 1 workload: 1 running");
    let agent = cluster.agent("agent_A");
    agent.signal(Signal::TERM);
    assert_eq!(manager.next_news(), "STOPPING=1\nSTATUS=Stopping");
    assert_eq!(agent.wait(LIMIT).map(exit_code), Some(0));
}

#[test]
fn a_hanging_engine_and_a_server_that_is_away_are_no_standstill() {
    let manager = ServiceManager::new();
    let mut cluster = with_agents_of(&manager);
    cluster.engine.script(&json!([
        { "command": "run", "workload": "w1", "hang": true },
        { "command": "ps", "hang": true },
    ]));
    cluster.start_all(&["agent_A"]);
    cluster.apply(&manifest(&[workload("w1", "run")]));
    wait_until("the engine hangs", || {
        !cluster.engine.hanging_calls().is_empty()
    });
    cluster.kill_server();
    manager.wait_for("STATUS=No connection");
    manager.waiting();
    for _ in 0..5 {
        manager.wait_for("WATCHDOG=1");
    }
}

#[test]
fn the_watchdog_of_another_process_is_not_ours() {
    let manager = ServiceManager::new();
    let mut cluster = Cluster::prepare();
    let mut environment = manager.environment(WATCHDOG);
    environment.push(("WATCHDOG_PID".to_owned(), "1".to_owned()));
    cluster.server_env = environment;
    cluster.start_all(&["agent_A"]);
    manager.wait_for("READY=1");
    // The status rests for many times the watchdog's time.
    assert_eq!(manager.next(), "STATUS=1 agent connected; 0 workloads");
    cluster.server().signal(Signal::TERM);
    assert_eq!(manager.next(), "STOPPING=1\nSTATUS=Stopping");
}

/// Freezes a thread and waits until the program has noticed; answers how many signs of life came
/// nevertheless.
fn signs_of_life_of_a_frozen(
    thread: &str,
    manager: &ServiceManager,
    mut log: impl FnMut() -> String,
) -> usize {
    manager.wait_for("WATCHDOG=1");
    let file = manager.freezer().join(thread);
    fs::write(&file, "").expect("own folder is writable");
    wait_until(&format!("'{thread}' is frozen"), || !file.exists());
    manager.waiting();
    wait_until(&format!("'{thread}' is missed"), || {
        log().contains(&format!("Waiting for the thread(s) '{thread}'"))
    });
    manager
        .waiting()
        .iter()
        .filter(|message| *message == "WATCHDOG=1")
        .count()
}

#[test]
fn a_frozen_thread_of_the_agent_ends_the_signs_of_life() {
    for thread in ["scheduler", "uplink", "control", "watch"] {
        let manager = ServiceManager::new();
        let mut cluster = with_agents_of(&manager);
        cluster.start_all(&["agent_A"]);
        let signs =
            signs_of_life_of_a_frozen(thread, &manager, || cluster.agent("agent_A").stderr());
        // The turn in which it froze counts for one; a thread that is not missed would have given
        // dozens.
        assert!(
            signs <= 1,
            "{signs} signs of life although '{thread}' is frozen"
        );
    }
}

#[test]
fn a_frozen_thread_of_the_server_ends_the_signs_of_life() {
    for thread in ["server", "tx", "listen"] {
        let manager = ServiceManager::new();
        let mut cluster = Cluster::prepare();
        cluster.server_env = manager.environment(WATCHDOG);
        cluster.start_server(&[]);
        let signs = signs_of_life_of_a_frozen(thread, &manager, || cluster.server().stderr());
        assert!(
            signs <= 1,
            "{signs} signs of life although '{thread}' is frozen"
        );
    }
}
