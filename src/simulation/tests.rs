//! Runs the simulation with a fixed set of seeds and some fresh ones, with `ANKAIOS_SIM_SEEDS` seeds from
//! `ANKAIOS_SIM_FIRST` on, or with the one of `ANKAIOS_SIM_SEED`, less what `ANKAIOS_SIM_WITHOUT` names.

use super::disturbances::NEWER;
use super::scenario::LeftOut;
use super::shrink::{run, shrink};
use crate::clock::{Clock, SystemClock};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds of each run of the tests.
const SEEDS: std::ops::Range<u64> = 0..300;
/// Seeds of each run of the tests that were never run before.
const FRESH: u64 = 20;
/// Seeds that have found something, whatever the others are. They are run without the kinds of faults that there were
/// not when they did.
const FOUND: [u64; 11] = [22362, 22654, 22823, 23561, 23784, 50420, 52498, 57895, 800136, 810084, 3294621808303364555];
/// Seeds that have found something since then.
const FOUND_SINCE: [u64; 4] = [800109, 810495, 900272, 900351];
/// Events shown of a seed that failed.
const SHOWN: usize = 200;
/// Seeds named of those that failed.
const FAILURES_SHOWN: usize = 40;

#[allow(clippy::print_stderr)] // For people who run `just sim`.
fn show(line: &str) {
    eprintln!("{line}");
}

fn text(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|text| !text.is_empty())
}

fn number(variable: &str) -> Option<u64> {
    let text = text(variable)?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not '{text}'")))
}

fn found_without(seed: u64) -> LeftOut {
    let newer = FOUND.contains(&seed).then(|| NEWER.map(str::to_owned));
    LeftOut { faults: newer.into_iter().flatten().collect(), ..LeftOut::default() }
}

/// Names of faults and numbers of rounds, with commas between them.
fn left_out(names: &str) -> LeftOut {
    let mut left_out = LeftOut::default();
    for part in names.split(',').filter(|part| !part.is_empty()) {
        match part.split_once('-').unwrap_or((part, part)) {
            (first, last) if first.parse::<usize>().is_ok() => {
                left_out.rounds.extend(first.parse().unwrap_or(0)..=last.parse().unwrap_or(0));
            }
            _ => _ = left_out.faults.insert(part.to_owned()),
        }
    }
    left_out
}

/// As [`left_out`] reads it.
fn without(left_out: &LeftOut) -> String {
    let mut parts: Vec<String> = left_out.faults.iter().cloned().collect();
    let mut rounds = left_out.rounds.iter().copied().peekable();
    while let Some(first) = rounds.next() {
        let mut last = first;
        while let Some(next) = rounds.next_if_eq(&(last + 1)) {
            last = next;
        }
        parts.push(if last == first { first.to_string() } else { format!("{first}-{last}") });
    }
    parts.join(",")
}

/// Runs seeds on as many threads as there are processors. Answers the steps, and what failed in order.
fn run_all(seeds: &[u64]) -> (u64, Vec<(u64, String)>) {
    let (next, steps, failures) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    let run = run(*seed, &found_without(*seed), 0);
                    steps.fetch_add(run.outcome.map_or(0, |outcome| outcome.steps), Ordering::Relaxed);
                    failures.lock().unwrap().extend(run.violation.map(|violation| (*seed, violation)));
                }
            });
        }
    });
    let mut failures = failures.into_inner().unwrap();
    failures.sort();
    (steps.into_inner(), failures)
}

#[test]
fn faults_never_make_two_containers_of_one_workload_and_once_they_stop_actual_equals_desired() {
    if let Some(seed) = number("ANKAIOS_SIM_SEED") {
        let run = run(seed, &left_out(&text("ANKAIOS_SIM_WITHOUT").unwrap_or_default()), usize::MAX);
        run.trace.iter().for_each(|line| show(line));
        assert_eq!(run.violation, None, "seed {seed}");
        return;
    }
    let fresh = fastrand::Rng::new().u64(1 << 32..1 << 62);
    let seeds: Vec<u64> = match (number("ANKAIOS_SIM_FIRST"), number("ANKAIOS_SIM_SEEDS")) {
        (None, None) => SEEDS.chain(FOUND).chain(FOUND_SINCE).chain(fresh..fresh + FRESH).collect(),
        (first, count) => {
            let first = first.unwrap_or(SEEDS.start);
            (first..first + count.unwrap_or(SEEDS.end)).collect()
        }
    };
    let begin = SystemClock.now();
    let (steps, failures) = run_all(&seeds);
    let seconds = SystemClock.now().saturating_duration_since(begin).as_secs_f64();
    show(&format!(
        "{} seeds, {steps} steps in {seconds:.1} s, {:.0} a minute",
        seeds.len(),
        steps as f64 / seconds * 60.0
    ));
    let Some((seed, violation)) = failures.first() else { return };
    let (left_out, smallest) = shrink(*seed, found_without(*seed), violation);
    run(*seed, &left_out, SHOWN).trace.iter().for_each(|line| show(line));
    let list: String =
        failures.iter().take(FAILURES_SHOWN).map(|(seed, violation)| format!("seed {seed}: {violation}\n")).collect();
    panic!(
        "{} of {} seeds failed:\n{list}`just sim {seed}` shows all events of the first.\nIt fails with less, too: {smallest}\n\
         ANKAIOS_SIM_WITHOUT={} just sim {seed}",
        failures.len(),
        seeds.len(),
        without(&left_out)
    );
}

#[test]
fn what_is_left_out_is_named_as_it_is_read() {
    let left_out = LeftOut { rounds: [1, 2, 3, 7, 9, 10].into(), faults: ["cuts".to_owned()].into() };
    assert_eq!(without(&left_out), "cuts,1-3,7,9-10");
    assert_eq!(super::tests::left_out("cuts,1-3,7,9-10"), left_out);
}
