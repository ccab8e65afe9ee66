//! What the control interface costs: `just bench control`. Server and agent are real, the engine is
//! the scripted one, and this program is the workloads.
//!
//! Thread: `main`. Owns: one cluster at a time. Prints medians, and what other load on the machine
//! may change.

#![allow(unreachable_pub)]
// Its files offer each other what they have, and nobody else.

// It starts processes, takes times and prints them.
#![allow(clippy::disallowed_methods, clippy::print_stdout)]

#[allow(dead_code, unused_imports)] // The process tests use all of it, these a part.
#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::io::Write as _;
use std::time::{Duration, Instant};

use ankaios_lite::model::messages::{ResponseContent, ToWorkload};
use support::control_client::{folder, read};
use support::process::thread_names;
use support::{Cluster, ControlClient, workload};

const WORKLOADS: usize = 50;
const ROUND_TRIPS: usize = 1_000;
/// Memory is measured when the start is over (`limits::SETTLE_AFTER`).
const SETTLED: Duration = Duration::from_secs(4);

fn main() {
    let without = cluster(|workload| workload);
    report("without control interface", &without);
    drop(without);

    let with = cluster(|workload| workload.allow("Read", "*").deny("Write", "*"));
    let mut clients: Vec<ControlClient> = names()
        .map(|name| ControlClient::connect(&folder(&with, "agent_A", &name)))
        .collect();
    for client in &mut clients {
        client.read("first", &["agents"]);
    }
    report("each with a session", &with);

    let Some(client) = clients.first_mut() else {
        return;
    };
    round_trips(
        "small get, one workload asks",
        client,
        &["agents.agent_A.tags"],
    );
    round_trips(
        "state of one workload",
        client,
        &["desiredState.workloads.w0"],
    );
    round_trips("complete state", client, &[]);
    let begin = Instant::now();
    for round in 0..20 {
        for client in &mut clients {
            client.request(&round.to_string(), read(&["agents.agent_A.tags"], false));
        }
        for client in &mut clients {
            answered(client.receive());
        }
    }
    let each = begin.elapsed() / u32::try_from(20 * WORKLOADS).unwrap_or(1);
    println!(
        "{WORKLOADS} workloads ask at the same time: {:.3} ms for each answer",
        each.as_secs_f64() * 1e3
    );
}

fn names() -> impl Iterator<Item = String> {
    (0..WORKLOADS).map(|number| format!("w{number}"))
}

fn cluster(rules: impl Fn(support::manifest::Workload) -> support::manifest::Workload) -> Cluster {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.run(
        &names()
            .map(|name| rules(workload(&name, "run")))
            .collect::<Vec<_>>(),
    );
    cluster
}

fn report(what: &str, cluster: &Cluster) {
    std::thread::sleep(SETTLED);
    let pid = cluster.agents["agent_A"].pid();
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let pss = rollup.lines().find_map(|line| {
        line.strip_prefix("Pss:")?
            .trim()
            .strip_suffix(" kB")?
            .parse::<u64>()
            .ok()
    });
    let threads = thread_names(pid);
    let control = threads
        .iter()
        .filter(|name| name.starts_with("control"))
        .count();
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    println!(
        "agent with {WORKLOADS} workloads, {what}: {} KiB PSS, {} threads ({control} for control interfaces), \
         {descriptors} descriptors",
        pss.unwrap_or(0),
        threads.len()
    );
}

fn round_trips(what: &str, client: &mut ControlClient, masks: &[&str]) {
    let mut times: Vec<Duration> = (0..ROUND_TRIPS)
        .map(|number| {
            let begin = Instant::now();
            client.request(&number.to_string(), read(masks, false));
            answered(client.receive());
            begin.elapsed()
        })
        .collect();
    times.sort_unstable();
    let at = |part: usize| times[ROUND_TRIPS * part / 100].as_secs_f64() * 1e3;
    println!(
        "{what}: median {:.3} ms, 90 % within {:.3} ms, {ROUND_TRIPS} round trips",
        at(50),
        at(90)
    );
    if let Some(path) = std::env::var_os("BENCH_ROWS").filter(|path| !path.is_empty()) {
        // What Eclipse Ankaios needs for a small read, and what is promised of that.
        let promise = if masks == ["agents.agent_A.tags"] {
            "0.19\t1"
        } else {
            "\t"
        };
        let row = format!("control interface: {what}\tms\t{}\t{promise}\n", at(50));
        let file = fs::File::options().create(true).append(true).open(path);
        file.and_then(|mut file| file.write_all(row.as_bytes()))
            .expect("the file of BENCH_ROWS is writable");
    }
}

fn answered(message: ToWorkload) {
    match message {
        ToWorkload::Response(response)
            if matches!(response.content, ResponseContent::CompleteState { .. }) => {}
        other => panic!("a state is expected, not {other:?}"),
    }
}
