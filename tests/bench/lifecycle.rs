//! `bench lifecycle`: what checks of workloads cost. Server and agent are real, the engine is the
//! scripted one, and this program listens on the ports.
//!
//! Thread: `main` of the bench, one that accepts connections. Owns: one cluster at a time. Prints
//! CPU, memory and threads of the agent.

use std::net::TcpListener;
use std::time::Duration;

use super::process::pss_of;
use crate::support::process::{cpu_ticks, thread_names};
use crate::support::{Cluster, manifest, workload};

const WORKLOADS: usize = 100;
/// Everything is started and given back by then (`limits::SETTLE_AFTER`).
const SETTLED: Duration = Duration::from_secs(6);
const MEASURED: Duration = Duration::from_secs(20);

/// Returns true: there is no relation to keep.
pub fn run() -> bool {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    measure("no checks", "");
    measure(
        "alive by tcp, every 500 ms",
        &format!("lifecycle: {{alive: {{tcp: {{port: {port}}}, periodMs: 500}}}}"),
    );
    measure(
        "alive by file, every 500 ms",
        "lifecycle: {alive: {file: /proc/self, periodMs: 500}}",
    );
    measure(
        "ready by tcp, refused, every 500 ms",
        "lifecycle: {ready: {tcp: {port: 1}, deadlineMs: 0}}",
    );
    true
}

fn measure(what: &str, lifecycle: &str) {
    let cluster = Cluster::start(&["agent_A"]);
    let names: Vec<String> = (0..WORKLOADS).map(|number| format!("w{number}")).collect();
    let workloads: Vec<_> = names
        .iter()
        .map(|name| workload(name, "run").config(lifecycle))
        .collect();
    let output = cluster.ank_with_input(&["apply", "-", "--no-wait"], &manifest(&workloads));
    assert_eq!(output.code, 0, "{}", output.stderr);
    for name in &names {
        cluster.wait_for_row(name, "to run", |row| {
            row.state == "Running(Ok)" || row.info.starts_with("ready: ")
        });
    }
    std::thread::sleep(SETTLED);
    let pid = cluster.agents["agent_A"].pid();
    let before = cpu_ticks(pid);
    std::thread::sleep(MEASURED);
    let percent = (cpu_ticks(pid) - before) as f64 / MEASURED.as_secs_f64();
    let threads = thread_names(pid).len();
    println!(
        "agent with {WORKLOADS} workloads, {what}: {percent:.2} % of a core, {} KiB PSS, {threads} threads",
        pss_of(pid) / 1024
    );
}
