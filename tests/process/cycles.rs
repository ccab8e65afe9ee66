//! Workloads come and go: agent and server keep no thread, no file descriptor and no memory of
//! those that went.
//!
//! Thread: the test's. Owns: one cluster with the fake engine.
//!
//! `ANKAIOS_CYCLE_ROUNDS` sets how often all workloads come and go.

use crate::support::process::{memory_kib, open_files, own_threads};
use crate::support::table::workloads;
use crate::support::{Cluster, LIMIT, manifest, poll, workload};

/// Rounds of each run of the tests: a thousand cycles.
const ROUNDS: u64 = 20;
const WORKLOADS: usize = 50;
/// Rounds until allocators and thread stacks stop growing.
const WARM_UP: u64 = 2;
/// Growth that is no leak: allocators take pages as threads happen to run at the same time. A leak
/// of one thread's stack or one connection's buffers for each cycle would be far more.
const GROWTH_MAX_KIB: u64 = 8 * 1024;

/// What a program holds.
#[derive(Debug, Clone, Copy)]
struct Held {
    threads: usize,
    files: usize,
    rss_kib: u64,
}

fn held(pid: u32) -> Held {
    Held {
        threads: own_threads(pid).len(),
        files: open_files(pid),
        rss_kib: memory_kib(pid, "VmRSS:"),
    }
}

/// Waits until the program holds no more threads and files than `base`.
fn settles(what: &str, round: u64, pid: u32, base: Held) -> Held {
    let settled = poll(LIMIT, || {
        let now = held(pid);
        (now.threads <= base.threads && now.files <= base.files).then_some(now)
    });
    settled.unwrap_or_else(|| panic!("{what} in round {round}: {base:?} became {:?}", held(pid)))
}

#[test]
#[allow(clippy::print_stderr)] // The curve is of interest.
fn removed_workloads_leave_no_threads_files_or_memory() {
    let text = std::env::var("ANKAIOS_CYCLE_ROUNDS").ok();
    let rounds = text.map_or(ROUNDS, |text| {
        text.parse().expect("ANKAIOS_CYCLE_ROUNDS is a number")
    });
    assert!(rounds > WARM_UP, "the first {WARM_UP} rounds show nothing");
    let mut cluster = Cluster::start(&["agent_A"]);
    let all: Vec<_> = (0..WORKLOADS)
        .map(|number| workload(&format!("w{number}"), "run"))
        .collect();
    let (running, none) = (manifest(&all), cluster.write("all.yaml", &manifest(&all)));
    let none = none.to_string_lossy().into_owned();
    let programs = [
        ("agent", cluster.agent("agent_A").pid()),
        ("server", cluster.server().pid()),
    ];
    let mut base = programs.map(|(_, pid)| held(pid));
    for round in 1..=rounds {
        cluster.apply(&running);
        cluster.wait_for_all(WORKLOADS, "Running(Ok)");
        cluster.ank(&["--no-wait", "apply", "-d", &none]).success();
        cluster.wait_for("all are gone", || {
            let output = cluster.ank(&["get", "workloads"]);
            (output.code == 0 && workloads(&output.stdout).is_empty()).then_some(())
        });
        assert!(cluster.engine.containers().is_empty());
        for ((what, pid), base) in programs.into_iter().zip(&mut base) {
            if round <= WARM_UP {
                // A connection of `ank` may be just ending; pages of code that were just given back
                // come again.
                let now = settles(
                    what,
                    round,
                    pid,
                    Held {
                        threads: base.threads + 2,
                        files: base.files + 4,
                        ..*base
                    },
                );
                *base = Held {
                    rss_kib: now.rss_kib.max(base.rss_kib),
                    ..now
                };
            } else {
                let now = settles(what, round, pid, *base);
                let most = base.rss_kib + GROWTH_MAX_KIB;
                assert!(
                    now.rss_kib <= most,
                    "{what} in round {round}: {base:?} became {now:?}"
                );
            }
            eprintln!("round {round} {what}: {:?}", held(pid));
        }
    }
}
