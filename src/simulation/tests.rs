//! Runs the simulation with a fixed set of seeds and some fresh ones, with `ANKAIOS_SIM_SEEDS`
//! seeds from `ANKAIOS_SIM_FIRST` on, or with the one of `ANKAIOS_SIM_SEED`, less what
//! `ANKAIOS_SIM_WITHOUT` names.

use super::disturbances::{Disturbances, LAST, LATEST, NEWER, NEWEST};
use super::scenario::{LeftOut, ROUNDS_MAX};
use super::shrink::{SmallestRun, run, shrink};
use ankaios_platform::clock::{Clock, SystemClock};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds of each run of the tests.
const SEEDS: std::ops::Range<u64> = 0..300;
/// Seeds of each run of the tests that were never run before.
const FRESH: u64 = 20;
/// Seeds that have found something, whatever the others are. They are run without the kinds of
/// faults that there were not when they did.
const FOUND: [u64; 11] = [
    22362,
    22654,
    22823,
    23561,
    23784,
    50420,
    52498,
    57895,
    800136,
    810084,
    3294621808303364555,
];
/// Seeds that have found something since then.
const FOUND_SINCE: [u64; 16] = [
    70236, 70979, 80475, 86232, 90806, 770985, 800109, 810495, 900272, 900351, 1202390, 1204185,
    2008032, 2010618, 2013391, 2023933,
];
/// Seeds that have found something with all kinds of faults except the named ones.
const FOUND_LESS: [(u64, &str); 11] = [
    (
        2037184,
        "checks_fail,delete_fails,list_lies,manifests,paths,pauses,removals,server_kills,strange_ends,self_removals,\
         2-3,7,9,11-19,21-29",
    ),
    (5000207, ""),
    (5211295, ""),
    (5323308, ""),
    (5417861, ""),
    (3002773, ""),
    (3005533, ""),
    (3012384, ""),
    (
        3000153,
        "checks_fail,delete_fails,manifests,paths,server_kills,start_half_done,stop_hangs,0,6,10-16",
    ),
    (3011153, ""),
    (3013823, ""),
];
/// Seeds that have found something with all kinds of faults but `damages` and `rollbacks`.
const FOUND_LAST: [u64; 26] = [
    5600108, 5601525, 5601546, 5603447, 5603982, 5607148, 5607919, 5611148, 5711018, 5714632,
    6201632, 6207407, 6220063, 6221132, 6233195, 6262316, 6271199, 6273304, 6457832, 6460441,
    6499960, 6570323, 6573981, 6629158, 6641034, 880010497,
];
/// Seeds with all kinds of faults but `followers` that have found something.
const FOUND_HASTY: [u64; 1] = [2037];
/// Seeds with all kinds of faults but `lags` that have found something since there are followers.
const FOUND_NOW: [u64; 6] = [9004333, 9021256, 10023650, 10040068, 10046746, 10115132];
/// Seeds with all kinds of faults that have found something since there are `lags`.
const FOUND_WITH_ALL: [u64; 9] = [
    10152932, 10156193, 10156534, 10162806, 10165594, 10166391, 10176075, 10184132, 10206204,
];
/// Events shown of a seed that failed.
const SHOWN: usize = 200;
/// Seeds named of those that failed.
const FAILURES_SHOWN: usize = 40;

#[allow(clippy::print_stderr)] // For people who run `./justw sim`.
fn show(line: &str) {
    eprintln!("{line}");
}

fn text(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|text| !text.is_empty())
}

fn number(variable: &str) -> Option<u64> {
    let text = text(variable)?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| {
        panic!(
            "{variable} is '{text}', not a whole number from 0 to {}",
            u64::MAX
        )
    }))
}

fn found_without(seed: u64) -> LeftOut {
    let latest = LATEST.map(str::to_owned);
    if let Some((_, names)) = FOUND_LESS.iter().find(|(found, _)| *found == seed) {
        let mut left_out = left_out(names).expect("names of faults and rounds");
        left_out.faults.extend(latest);
        left_out.faults.extend(LAST.map(str::to_owned));
        return left_out;
    }
    let newer = if FOUND.contains(&seed) {
        NEWER.as_slice()
    } else {
        &[]
    };
    let newest = if !newer.is_empty() || FOUND_SINCE.contains(&seed) {
        NEWEST.as_slice()
    } else {
        &[]
    };
    let latest = latest.into_iter().filter(|_| !newest.is_empty());
    let last = if FOUND_LAST.contains(&seed) {
        ["damages", "rollbacks"].as_slice()
    } else {
        &[]
    };
    let is_found = !newest.is_empty() || FOUND_LAST.contains(&seed);
    let hasty = match seed {
        _ if is_found => LAST.as_slice(),
        _ if FOUND_HASTY.contains(&seed) => &["followers", "lags"],
        _ if FOUND_NOW.contains(&seed) => &["lags"],
        _ => &[],
    };
    let older = newer
        .iter()
        .chain(newest)
        .chain(last)
        .chain(hasty)
        .map(|name| (*name).to_owned());
    LeftOut {
        faults: older.chain(latest).collect(),
        ..LeftOut::default()
    }
}

/// Names of faults and numbers of rounds, with commas between them.
///
/// # Errors
///
/// What is neither: left unread, a run with a misspelt name would fail and say that the fault is
/// not needed for it.
fn left_out(names: &str) -> Result<LeftOut, String> {
    let faults = Disturbances::default().kinds().map(|(name, _)| name);
    let mut left_out = LeftOut::default();
    for part in names
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            if first > last || last >= ROUNDS_MAX {
                return Err(format!(
                    "'{part}' are no rounds: there are less than {ROUNDS_MAX}, the first comes first"
                ));
            }
            left_out.rounds.extend(first..=last);
        } else if faults.contains(&part) {
            left_out.faults.insert(part.to_owned());
        } else {
            return Err(format!(
                "'{part}' is neither a round nor a kind of fault; these are {}",
                faults.join(", ")
            ));
        }
    }
    Ok(left_out)
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
        parts.push(if last == first {
            first.to_string()
        } else {
            format!("{first}-{last}")
        });
    }
    parts.join(",")
}

/// Runs seeds on one thread for each processor. Returns the number of steps, and the seeds that
/// failed with their violations, in order.
fn run_all(seeds: &[u64]) -> (u64, Vec<(u64, String)>) {
    let next = AtomicU64::new(0);
    let steps = AtomicU64::new(0);
    let failures = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    let run = run(*seed, &found_without(*seed), 0);
                    if let Some(outcome) = run.outcome {
                        steps.fetch_add(outcome.steps, Ordering::Relaxed);
                    }
                    if let Some(violation) = run.violation {
                        failures.lock().unwrap().push((*seed, violation));
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().unwrap();
    failures.sort();
    (steps.into_inner(), failures)
}

#[test]
fn faults_make_no_second_container_and_actual_becomes_desired() {
    if let Some(seed) = number("ANKAIOS_SIM_SEED") {
        let names = text("ANKAIOS_SIM_WITHOUT").unwrap_or_default();
        let left_out =
            left_out(&names).unwrap_or_else(|error| panic!("ANKAIOS_SIM_WITHOUT: {error}"));
        let run = run(seed, &left_out, usize::MAX);
        run.trace.iter().for_each(|line| show(line));
        if let Some(violation) = run.violation {
            panic!("seed {seed} failed: {violation}");
        }
        show(&format!(
            "seed {seed}: {} steps, nothing was violated",
            run.outcome.map_or(0, |outcome| outcome.steps)
        ));
        return;
    }
    let fresh = fastrand::Rng::new().u64(1 << 32..1 << 62);
    let seeds: Vec<u64> = match (number("ANKAIOS_SIM_FIRST"), number("ANKAIOS_SIM_SEEDS")) {
        (None, None) => {
            let less = FOUND_LESS.map(|(seed, _)| seed);
            let found = FOUND
                .into_iter()
                .chain(FOUND_SINCE)
                .chain(less)
                .chain(FOUND_LAST)
                .chain(FOUND_HASTY)
                .chain(FOUND_NOW)
                .chain(FOUND_WITH_ALL);
            SEEDS.chain(found).chain(fresh..fresh + FRESH).collect()
        }
        (first, count) => {
            let first = first.unwrap_or(SEEDS.start);
            (first..first.saturating_add(count.unwrap_or(SEEDS.end))).collect()
        }
    };
    let begin = SystemClock.now();
    let (steps, failures) = run_all(&seeds);
    let seconds = SystemClock
        .now()
        .saturating_duration_since(begin)
        .as_secs_f64();
    show(&format!(
        "{} seeds, {steps} steps in {seconds:.1} s, {:.0} a minute",
        seeds.len(),
        steps as f64 / seconds * 60.0
    ));
    let Some((seed, violation)) = failures.first() else {
        return;
    };
    let SmallestRun {
        left_out,
        violation: smallest,
    } = shrink(*seed, found_without(*seed), violation);
    show(&format!(
        "The last {SHOWN} events of seed {seed}, less what it does not need:"
    ));
    run(*seed, &left_out, SHOWN)
        .trace
        .iter()
        .for_each(|line| show(line));
    let mut list = String::new();
    for (seed, violation) in failures.iter().take(FAILURES_SHOWN) {
        list.push_str(&format!("seed {seed}: {violation}\n"));
    }
    let all = format!("./justw sim {seed}");
    let names = without(&left_out);
    let mut less = "Nothing can be left out of it.".to_owned();
    if !names.is_empty() {
        less =
            format!("It fails with less, too: {smallest}\n    ANKAIOS_SIM_WITHOUT={names} {all}");
    }
    panic!(
        "{} of {} seeds failed:\n{list}All events of the first:\n    {all}\n{less}",
        failures.len(),
        seeds.len()
    );
}

#[test]
fn what_is_left_out_is_named_as_it_is_read() {
    let left_out = LeftOut {
        rounds: [1, 2, 3, 7, 9, 10].into(),
        faults: ["cuts".to_owned()].into(),
    };
    assert_eq!(without(&left_out), "cuts,1-3,7,9-10");
    assert_eq!(super::tests::left_out("cuts,1-3,7,9-10"), Ok(left_out));
}

#[test]
fn what_cannot_be_left_out_is_refused_and_not_passed_over() {
    for (names, wrong) in [
        ("cuts,kils", "'kils' is neither"),
        ("1-x", "'1-x' is neither"),
        ("7-3", "'7-3' are no rounds"),
    ] {
        let error = left_out(names).expect_err(names);
        assert!(error.starts_with(wrong), "{error}");
    }
    assert!(left_out("0-99999999999").is_err(), "it would be collected");
}
