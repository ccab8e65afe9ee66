//! Runs the simulation with a fixed set of seeds, with `ANKAIOS_SIM_SEEDS` seeds from `ANKAIOS_SIM_FIRST` on, or with
//! the one of `ANKAIOS_SIM_SEED`.

use super::manual_clock::ManualClock;
use super::scenario::{self, Outcome};
use super::trace::Trace;
use crate::clock::{Clock, SystemClock};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Seeds of each run of the tests.
const SEEDS: std::ops::Range<u64> = 0..300;
/// Events shown of a seed that failed.
const SHOWN: usize = 200;
/// Seeds named of those that failed.
const FAILURES_SHOWN: usize = 40;

/// Runs one seed; answers what is wrong, and the last events.
fn run(seed: u64, kept: usize) -> (Result<u64, String>, Vec<String>) {
    let clock = ManualClock::new();
    let trace = Trace::new(&clock, kept);
    let outcome = catch_unwind(AssertUnwindSafe(|| scenario::run(seed, clock, trace.clone())));
    let result = match outcome {
        Ok(Outcome { steps, violation: None }) => Ok(steps),
        Ok(Outcome { violation: Some(violation), .. }) => Err(violation),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(format!("panic: {}", text.unwrap_or_default()))
        }
    };
    (result, trace.take())
}

#[allow(clippy::print_stderr)] // For people who run `just sim`.
fn show(line: &str) {
    eprintln!("{line}");
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not '{text}'")))
}

#[test]
fn faults_never_make_two_containers_of_one_workload_and_once_they_stop_actual_equals_desired() {
    if let Some(seed) = number("ANKAIOS_SIM_SEED") {
        let (result, trace) = run(seed, usize::MAX);
        trace.iter().for_each(|line| show(line));
        assert_eq!(result.err(), None, "seed {seed}");
        return;
    }
    let begin = SystemClock.now();
    let first = number("ANKAIOS_SIM_FIRST").unwrap_or(SEEDS.start);
    let seeds = number("ANKAIOS_SIM_SEEDS").map_or(SEEDS, |count| first..first + count);
    let (mut steps, mut failures) = (0, Vec::new());
    for seed in seeds.clone() {
        match run(seed, 0).0 {
            Ok(taken) => steps += taken,
            Err(violation) => failures.push((seed, violation)),
        }
    }
    let seconds = SystemClock.now().saturating_duration_since(begin).as_secs_f64();
    let count = seeds.end - seeds.start;
    show(&format!("{count} seeds, {steps} steps in {seconds:.1} s"));
    if let Some((seed, _)) = failures.first() {
        run(*seed, SHOWN).1.iter().for_each(|line| show(line));
        let list: String = failures
            .iter()
            .take(FAILURES_SHOWN)
            .map(|(seed, violation)| format!("seed {seed}: {violation}\n"))
            .collect();
        panic!("{} of {count} seeds failed:\n{list}`just sim {seed}` shows all events", failures.len());
    }
}
