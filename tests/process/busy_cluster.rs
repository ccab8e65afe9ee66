//! Hours of a busy cluster: what server and agent hold and how often they wake up stays the same.
//!
//! Thread: the test's. Owns: one cluster with the fake engine, the agent behind a proxy.
//!
//! `ANKAIOS_SOAK_MINUTES` is how long it goes on (half a minute otherwise), `ANKAIOS_SOAK_CURVE`
//! names a file for the measured curves. `./justw bench soak` sets both.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant};

use crate::support::process::{memory_kib, open_files, own_threads};
use crate::support::table::workloads;
use crate::support::{Cluster, LIMIT, Proxy, manifest, poll, wait_until, workload};
use rustix::process::Signal;

const WORKLOADS: usize = 10;
/// An idle cluster is watched for this long in each round; a measurement, nothing waits for it.
const WATCHED: Duration = Duration::from_secs(2);
/// Rounds until allocators, thread stacks and caches have grown, and every thread that starts on
/// first use has been started.
const WARM_UP: usize = 3;
/// gRPC makes a few descriptors when they are first needed and keeps them.
const FILES_MORE: usize = 2;
/// Allowed growth from the begin to the end; allocators take pages as threads happen to meet.
const GROWTH_MAX_KIB: f64 = 4.0 * 1024.0;
/// Wake-ups per second of an idle program may differ by this factor and this number: others use the
/// machine as well.
const WAKE_UPS_FACTOR: f64 = 2.0;
const WAKE_UPS_MORE: f64 = 20.0;

/// What a program holds while nothing happens.
#[derive(Debug, Clone, Copy)]
struct Sample {
    threads: usize,
    files: usize,
    memory: Memory,
    wake_ups: f64,
}

/// Threads of our own by their names, and files.
#[derive(Debug, Clone, Default)]
pub struct Held {
    threads: BTreeMap<String, usize>,
    files: usize,
}

impl Held {
    pub fn of(pid: u32) -> Self {
        let mut threads = BTreeMap::new();
        for name in own_threads(pid) {
            *threads.entry(name).or_default() += 1;
        }
        Self {
            threads,
            files: open_files(pid),
        }
    }

    pub fn count(&self, thread: &str) -> usize {
        self.threads.get(thread).copied().unwrap_or(0)
    }

    /// What either had.
    fn most(&mut self, other: Self) {
        self.files = self.files.max(other.files);
        for (name, count) in other.threads {
            let most = self.threads.entry(name).or_default();
            *most = count.max(*most);
        }
    }

    /// Nothing here is more than there.
    pub fn is_within(&self, other: &Self) -> bool {
        let mut threads = self.threads.iter();
        let has_no_more_threads = threads.all(|(name, count)| *count <= other.count(name));
        has_no_more_threads && self.files <= other.files + FILES_MORE
    }
}

/// How often the threads of a process have begun to wait so far.
fn waits(pid: u32) -> u64 {
    let mut sum = 0;
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    for task in tasks.flatten() {
        // A thread may have ended meanwhile.
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        for line in status.lines() {
            if let Some(count) = line.strip_prefix("voluntary_ctxt_switches:") {
                sum += count.trim().parse::<u64>().expect("a number");
            }
        }
    }
    sum
}

#[derive(Debug, Clone, Copy)]
struct Memory {
    /// With the pages of the program's own file that happen to be mapped: they come with use and
    /// are given back after it.
    rss_kib: f64,
    /// Its allocated memory, which can leak.
    own_kib: f64,
}

impl Memory {
    fn of(pid: u32) -> Self {
        let kib = |name: &str| memory_kib(pid, name) as f64;
        Self {
            rss_kib: kib("VmRSS:"),
            own_kib: kib("RssAnon:"),
        }
    }
}

/// Both programs, watched at the same time.
fn sample(pids: [u32; 2]) -> [Sample; 2] {
    let before = pids.map(waits);
    let begin = Instant::now();
    std::thread::sleep(WATCHED);
    let seconds = begin.elapsed().as_secs_f64();
    let after = pids.map(waits);
    let mut samples = pids.map(|pid| {
        let Held { threads, files } = Held::of(pid);
        Sample {
            threads: threads.values().sum(),
            files,
            memory: Memory::of(pid),
            wake_ups: 0.0,
        }
    });
    for (index, sample) in samples.iter_mut().enumerate() {
        // A thread that ended takes its count with it.
        sample.wake_ups = after[index].saturating_sub(before[index]) as f64 / seconds;
    }
    samples
}

/// The manifest of all workloads. Each version changes all of them.
fn all_workloads(version: usize) -> String {
    let mut workloads = Vec::new();
    for number in 0..WORKLOADS {
        let image = ["run", "run", "exit0", "exit1:after=200ms", "run"][number % 5];
        let one = workload(&format!("w{number}"), image);
        let mut one = one.config(&format!("commandArgs: [\"{version}\"]"));
        if number % 5 == 3 {
            one = one.restart("ALWAYS");
        }
        if number > 4 && number.is_multiple_of(5) {
            let needed = format!("w{}", number - 5);
            one = one.after(&needed, "ADD_COND_RUNNING");
        }
        workloads.push(one);
    }
    manifest(&workloads)
}

/// Workloads come, change, end by themselves, are restarted and go; connections break; clients come
/// and go.
fn churn(cluster: &Cluster, proxy: &Proxy, round: usize) {
    // First apply two versions, and cut the connection of the agent.
    let mut events = cluster.start_ank(&["get", "events", "-o", "json"]);
    cluster.apply(&all_workloads(2 * round));
    cluster.wait_for_state("w5", "Running(Ok)");
    cluster.apply(&all_workloads(2 * round + 1));
    let before = proxy.accepted();
    proxy.cut();
    wait_until("the agent is back", || proxy.accepted() > before);
    // Then let one workload end, and clients come and go.
    // The container of the version before takes no order, and its row is not the only one.
    wait_until("the new version of 'w0' runs alone", || {
        let containers = cluster.engine.containers_of("w0");
        let version = format!("\"{}\"", 2 * round + 1);
        containers.len() == 1
            && containers[0]["State"] == "running"
            && containers[0].to_string().contains(&version)
    });
    cluster.wait_for_state("w0", "Running(Ok)");
    cluster.engine.finish("w0", 1);
    cluster.wait_for_row("w0", "its end", |row| row.state == "Failed(ExecFailed)");
    let mut logs = cluster.start_ank(&["logs", "-f", "w1"]);
    let _ = cluster.ank(&["get", "state"]);
    for program in [&mut logs, &mut events] {
        if program.is_running() {
            program.signal(Signal::TERM);
        }
        program.wait(LIMIT).expect("it ends when it is told");
    }
    // Finally delete all.
    let file = cluster.write("all.yaml", &all_workloads(0));
    let file = file.to_string_lossy();
    cluster.ank(&["--no-wait", "apply", "-d", &file]).success();
    cluster.wait_for("all are gone", || {
        let output = cluster.ank(&["get", "workloads"]);
        (output.code == 0 && workloads(&output.stdout).is_empty()).then_some(())
    });
    assert!(cluster.engine.containers().is_empty());
}

fn median(samples: &[Sample], value: fn(&Sample) -> f64) -> f64 {
    let mut values: Vec<f64> = samples.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A drawing of a curve in one line, from its least to its greatest value.
fn curve(samples: &[Sample], value: fn(&Sample) -> f64) -> String {
    const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    const WIDTH: usize = 60;
    let mut medians = Vec::new();
    let mut least = f64::MAX;
    let mut most = 0.0_f64;
    for part in samples.chunks(samples.len().div_ceil(WIDTH)) {
        let median = median(part, value);
        least = least.min(median);
        most = most.max(median);
        medians.push(median);
    }
    let height = (most - least).max(1.0);
    let mut line = String::new();
    for median in medians {
        let share = (median - least) / height;
        line.push(STEPS[(share * 7.0) as usize]);
    }
    format!("{line} {least:.0} to {most:.0}")
}

#[test]
#[allow(clippy::print_stderr)] // The curves are of interest.
fn resources_of_a_busy_cluster_stay_flat() {
    let minutes = std::env::var("ANKAIOS_SOAK_MINUTES")
        .ok()
        .filter(|text| !text.is_empty());
    let minutes: f64 = minutes.map_or(0.5, |text| {
        text.parse().expect("ANKAIOS_SOAK_MINUTES is a number")
    });
    let (mut cluster, proxy) = Cluster::start_behind_proxy();
    let pids = [cluster.server().pid(), cluster.agent("agent_A").pid()];
    let mut base = pids.map(|_| Held::default());
    let mut curves: [Vec<Sample>; 2] = [Vec::new(), Vec::new()];
    let mut text =
        "round,seconds,program,threads,files,rss_kib,own_kib,wake_ups_per_s\n".to_owned();
    let begin = Instant::now();
    let mut round = 0;
    while begin.elapsed().as_secs_f64() < minutes * 60.0 || round < WARM_UP + 3 {
        churn(&cluster, &proxy, round);
        if round >= WARM_UP {
            // Connections of `ank` and the one that was cut may be just ending.
            for (what, (pid, base)) in ["server", "agent"]
                .into_iter()
                .zip(pids.into_iter().zip(&base))
            {
                let settled = poll(LIMIT, || Held::of(pid).is_within(base).then_some(()));
                assert!(
                    settled.is_some(),
                    "round {round}: {what} held {base:?}, now {:?}",
                    Held::of(pid)
                );
            }
        }
        let samples = sample(pids);
        if round < WARM_UP {
            // Here and not before the first round: some threads and files come with the first
            // workload.
            base.iter_mut()
                .zip(pids)
                .for_each(|(base, pid)| base.most(Held::of(pid)));
        }
        for (index, what) in ["server", "agent"].into_iter().enumerate() {
            let Sample {
                threads,
                files,
                memory: Memory { rss_kib, own_kib },
                wake_ups,
            } = samples[index];
            let seconds = begin.elapsed().as_secs();
            writeln!(
                text,
                "{round},{seconds},{what},{threads},{files},{rss_kib},{own_kib},{wake_ups:.1}"
            )
            .expect("a String");
            curves[index].push(samples[index]);
        }
        if let Some(path) = std::env::var_os("ANKAIOS_SOAK_CURVE").filter(|path| !path.is_empty()) {
            fs::write(path, &text).expect("the file for the curves is writable");
        }
        round += 1;
    }
    type Value = fn(&Sample) -> f64;
    let values: [(&str, Value); 5] = [
        ("threads", |sample| sample.threads as f64),
        ("files", |sample| sample.files as f64),
        ("own memory, KiB", |sample| sample.memory.own_kib),
        ("all memory, KiB", |sample| sample.memory.rss_kib),
        ("wake-ups per second", |sample| sample.wake_ups),
    ];
    eprintln!("{round} rounds in {:.0} s", begin.elapsed().as_secs_f64());
    for (what, samples) in ["server", "agent"].into_iter().zip(&curves) {
        let samples = &samples[WARM_UP..];
        for (name, value) in values {
            eprintln!("{what:<7} {name:<20} {}", curve(samples, value));
        }
        let third = samples.len().div_ceil(3);
        let (first, last) = (&samples[..third], &samples[samples.len() - third..]);
        let grown = median(last, values[2].1) - median(first, values[2].1);
        assert!(
            grown <= GROWTH_MAX_KIB,
            "{what}: {grown:.0} KiB more in the last third: {samples:?}"
        );
        let (before, after) = (median(first, values[4].1), median(last, values[4].1));
        let most = before * WAKE_UPS_FACTOR + WAKE_UPS_MORE;
        assert!(
            after <= most,
            "{what}: {before:.1} wake-ups per second became {after:.1}: {samples:?}"
        );
    }
}
