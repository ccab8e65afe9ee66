//! `bench control`: what the control interface costs. Server and agent are real, the engine is the
//! scripted one, and this program is the workloads.
//!
//! Thread: `main` of the bench. Owns: one cluster at a time. Prints medians, and what other load on
//! the machine may change.

use std::time::{Duration, Instant};

use ankaios_lite::model::messages::{ResponseContent, ToWorkload};

use super::process::pss_of;
use super::table::append_rows;
use crate::support::control_client::{folder, read};
use crate::support::manifest::Workload;
use crate::support::process::{open_files, thread_names};
use crate::support::{Cluster, ControlClient, workload};

const WORKLOADS: usize = 50;
const ROUND_TRIPS: usize = 1_000;
/// Memory is measured when the start is over (`limits::SETTLE_AFTER`).
const SETTLED: Duration = Duration::from_secs(4);

/// Returns true: there is no relation to keep.
pub fn run() -> bool {
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

    let client = &mut clients[0];
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
    true
}

fn names() -> impl Iterator<Item = String> {
    (0..WORKLOADS).map(|number| format!("w{number}"))
}

fn cluster(rules: impl Fn(Workload) -> Workload) -> Cluster {
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
    let threads = thread_names(pid);
    let control = threads
        .iter()
        .filter(|name| name.starts_with("control"))
        .count();
    let descriptors = open_files(pid);
    println!(
        "agent with {WORKLOADS} workloads, {what}: {} KiB PSS, {} threads ({control} for control interfaces), \
         {descriptors} descriptors",
        pss_of(pid) / 1024,
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
    // The time of a small read in Eclipse Ankaios, and the promised part of it.
    let promise = if masks == ["agents.agent_A.tags"] {
        "0.175\t0.8"
    } else {
        "\t"
    };
    append_rows(&format!(
        "control interface: {what}\tms\t{}\t{promise}\n",
        at(50)
    ));
}

fn answered(message: ToWorkload) {
    match message {
        ToWorkload::Response(response)
            if matches!(response.content, ResponseContent::CompleteState { .. }) => {}
        other => panic!("a state is expected, not {other:?}"),
    }
}
