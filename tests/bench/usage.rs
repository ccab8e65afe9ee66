//! `bench usage`: what a read of what all workloads of a large cluster use costs the server, and
//! how long it takes.
//!
//! Thread: `main` of the bench.

use std::path::Path;
use std::time::{Duration, Instant};

use ankaios_lite::model::node::Node;

use super::clients::{Commander, Reports};
use super::scale::{Applied, LARGE, applied, milliseconds};
use super::table::{Table, median};

/// Reads that one mean is made of.
const READS: u32 = 50;
/// What a read may cost and take: CPU of the server and time, in milliseconds.
const CPU_MAX: f64 = 30.0;
const TIME_MAX: f64 = 1000.0;

/// Returns whether each read has the samples of all workloads.
pub fn run(programs: &Path) -> bool {
    let Applied {
        server,
        agents: _agents,
        ..
    } = applied(programs, &LARGE, Reports::Together);
    let mut commander = Commander::connect(&server);
    server.wait_until_idle();
    let before = server.cpu();
    let (mut times, mut held) = (Vec::new(), true);
    for _ in 0..READS {
        let begin = Instant::now();
        let state = commander.read(&["usage"]);
        times.push(milliseconds(begin.elapsed()));
        let sampled = |agent: &Node| {
            agent
                .get("workloads")
                .and_then(Node::as_map)
                .map_or(0, |all| all.len())
        };
        let agents = state.get("usage").and_then(Node::as_map);
        held &= agents
            .is_some_and(|agents| agents.values().map(sampled).sum::<usize>() == LARGE.workloads);
        std::thread::sleep(Duration::from_millis(20));
    }
    server.wait_until_idle();
    let mut table = Table::default();
    let cpu = milliseconds((server.cpu() - before) / READS);
    let longest = times.iter().copied().fold(0.0, f64::max);
    table.promised(
        &LARGE.label("CPU of a read of usage, limit"),
        "ms",
        cpu,
        CPU_MAX,
        1.0,
    );
    table.noted(&LARGE.label("time of a read of usage"), "ms", median(times));
    table.promised(
        &LARGE.label("the longest of them, limit"),
        "ms",
        longest,
        TIME_MAX,
        1.0,
    );
    table.print();
    println!(
        "each read has all samples: {}",
        if held { "kept" } else { "BROKEN" }
    );
    held
}
