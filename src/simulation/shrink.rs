//! Runs of a seed, and what a seed that fails needs for that: kinds of faults and rounds are left
//! out one after the other as long as it still fails in the same way.
//!
//! Thread: the one of the test.

use super::scenario::{self, LeftOut, Outcome};
use super::trace::Trace;
use ankaios_fakes::manual_clock::ManualClock;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Most runs of a seed while it is made smaller.
const RUNS_MAX: usize = 120;

/// How one run ended.
pub(crate) struct Run {
    /// `None` after a panic.
    pub outcome: Option<Outcome>,
    pub violation: Option<String>,
    /// The last events.
    pub trace: Vec<String>,
}

/// Runs one seed and keeps that many events.
pub(crate) fn run(seed: u64, left_out: &LeftOut, kept: usize) -> Run {
    let clock = ManualClock::new();
    let trace = Trace::new(&clock, kept);
    let result = catch_unwind(AssertUnwindSafe(|| {
        scenario::run(seed, clock, trace.clone(), left_out)
    }));
    let (outcome, violation) = match result {
        Ok(mut outcome) => {
            let violation = outcome.violation.take();
            (Some(outcome), violation)
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            (None, Some(format!("panic: {}", text.unwrap_or_default())))
        }
    };
    Run {
        outcome,
        violation,
        trace: trace.take(),
    }
}

/// What a violation says without names and numbers: two of the same kind have the same reason,
/// probably.
fn kind(violation: &str) -> String {
    let outside = violation.split('\'').step_by(2).collect::<String>();
    outside
        .chars()
        .filter(|letter| letter.is_ascii_alphabetic() || *letter == ' ')
        .take(60)
        .collect()
}

/// As much as can be left out of a seed that fails so that it still fails in the same way, with its
/// violation then. `left_out` are those with which it was run.
pub(crate) fn shrink(seed: u64, left_out: LeftOut, violation: &str) -> (LeftOut, String) {
    let mut best = (left_out, violation.to_owned());
    let Some(outcome) = run(seed, &best.0, 0).outcome else {
        return best;
    };
    shrink_with(&mut best, outcome.rounds, &outcome.faults, |left_out| {
        run(seed, left_out, 0).violation
    });
    best
}

fn shrink_with(
    best: &mut (LeftOut, String),
    rounds: usize,
    faults: &[&str],
    mut fails: impl FnMut(&LeftOut) -> Option<String>,
) {
    let wanted = kind(&best.1);
    let mut runs = 0;
    let mut try_without = |best: &mut (LeftOut, String), change: &dyn Fn(&mut LeftOut)| {
        let mut left_out = best.0.clone();
        change(&mut left_out);
        if runs >= RUNS_MAX || left_out == best.0 {
            return;
        }
        runs += 1;
        if let Some(violation) = fails(&left_out).filter(|violation| kind(violation) == wanted) {
            *best = (left_out, violation);
        }
    };
    // Halves of the rounds first, then quarters, at last each alone; faults before the small parts.
    let mut size = rounds.div_ceil(2).max(1);
    loop {
        for first in (0..rounds).step_by(size).rev() {
            try_without(best, &|left_out| {
                left_out.rounds.extend(first..(first + size).min(rounds))
            });
        }
        if size == rounds.div_ceil(2).max(1) {
            for fault in faults {
                try_without(best, &|left_out| {
                    _ = left_out.faults.insert((*fault).to_owned())
                });
            }
        }
        if size == 1 {
            return;
        }
        size = size.div_ceil(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_failure_does_not_need_is_left_out() {
        let mut best = (LeftOut::default(), "'w1' starts 3 times".to_owned());
        shrink_with(&mut best, 40, &["cuts", "kills", "pauses"], |left_out| {
            let needed = [3, 17, 39]
                .iter()
                .all(|round| !left_out.rounds.contains(round));
            let fails = needed && !left_out.faults.contains("kills");
            // Another failure must not take the place of the one that is looked for.
            let other = || Some("something else".to_owned());
            if fails {
                Some(format!("'w2' starts {} times", left_out.rounds.len()))
            } else {
                other()
            }
        });
        let left: Vec<usize> = (0..40)
            .filter(|round| !best.0.rounds.contains(round))
            .collect();
        assert_eq!(left, [3, 17, 39]);
        assert_eq!(
            best.0.faults.into_iter().collect::<Vec<_>>(),
            ["cuts", "pauses"]
        );
        assert_eq!(best.1, "'w2' starts 37 times");
    }
}
