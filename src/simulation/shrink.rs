//! Runs a seed, and makes a seed that fails smaller: kinds of faults and rounds are left out, one
//! after the other, as long as it still fails in the same way.
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

/// Runs one seed and keeps this number of events.
pub(crate) fn run(seed: u64, left_out: &LeftOut, kept: usize) -> Run {
    let clock = ManualClock::new();
    let trace = Trace::new(&clock, kept);
    let result = catch_unwind(AssertUnwindSafe(|| {
        scenario::run(seed, clock, trace.clone(), left_out)
    }));
    let trace = trace.take();
    match result {
        Ok(mut outcome) => {
            let violation = outcome.violation.take();
            Run {
                outcome: Some(outcome),
                violation,
                trace,
            }
        }
        Err(panic) => {
            let mut text = "";
            if let Some(panic) = panic.downcast_ref::<String>() {
                text = panic;
            } else if let Some(panic) = panic.downcast_ref::<&str>() {
                text = panic;
            }
            Run {
                outcome: None,
                violation: Some(format!("panic: {text}")),
                trace,
            }
        }
    }
}

/// The first letters of a violation without names and numbers. Two that are equal have the same
/// reason, probably.
fn kind(violation: &str) -> String {
    let outside_of_quotes = violation.split('\'').step_by(2).collect::<String>();
    let mut kind = String::new();
    for letter in outside_of_quotes.chars() {
        if kind.len() < KIND_LETTERS && (letter.is_ascii_alphabetic() || letter == ' ') {
            kind.push(letter);
        }
    }
    kind
}

/// Letters of a violation that [`kind`] keeps.
const KIND_LETTERS: usize = 60;

/// The smallest run of a seed that still fails in the same way.
#[derive(Debug)]
pub(crate) struct SmallestRun {
    pub left_out: LeftOut,
    pub violation: String,
}

/// Leaves out as much as possible of a seed that fails. It was run without `left_out`.
pub(crate) fn shrink(seed: u64, left_out: LeftOut, violation: &str) -> SmallestRun {
    let smallest = SmallestRun {
        left_out,
        violation: violation.to_owned(),
    };
    let Some(outcome) = run(seed, &smallest.left_out, 0).outcome else {
        return smallest;
    };
    let mut shrinking = Shrinking {
        kind: kind(violation),
        smallest,
        runs: 0,
        fails: |left_out: &LeftOut| run(seed, left_out, 0).violation,
    };
    shrinking.leave_out(outcome.rounds, &outcome.faults);
    shrinking.smallest
}

/// The search for the smallest run.
struct Shrinking<F> {
    /// The kind of the violation that must stay.
    kind: String,
    smallest: SmallestRun,
    runs: usize,
    /// Runs the seed and returns its violation.
    fails: F,
}

impl<F: FnMut(&LeftOut) -> Option<String>> Shrinking<F> {
    /// Leaves out halves of the rounds, then kinds of faults, then smaller and smaller parts of the
    /// rounds.
    fn leave_out(&mut self, rounds: usize, faults: &[&str]) {
        let half = rounds.div_ceil(2).max(1);
        self.leave_out_rounds(rounds, half);
        for fault in faults {
            let mut left_out = self.smallest.left_out.clone();
            left_out.faults.insert((*fault).to_owned());
            self.try_without(left_out);
        }
        let mut size = half;
        while size > 1 {
            size = size.div_ceil(2);
            self.leave_out_rounds(rounds, size);
        }
    }

    /// Leaves out parts of this `size`, the last one first.
    fn leave_out_rounds(&mut self, rounds: usize, size: usize) {
        for first in (0..rounds).step_by(size).rev() {
            let end = (first + size).min(rounds);
            let mut left_out = self.smallest.left_out.clone();
            left_out.rounds.extend(first..end);
            self.try_without(left_out);
        }
    }

    fn try_without(&mut self, left_out: LeftOut) {
        if self.runs >= RUNS_MAX || left_out == self.smallest.left_out {
            return;
        }
        self.runs += 1;
        if let Some(violation) = (self.fails)(&left_out)
            && kind(&violation) == self.kind
        {
            self.smallest = SmallestRun {
                left_out,
                violation,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_failure_does_not_need_is_left_out() {
        let violation = "'w1' starts 3 times".to_owned();
        let mut shrinking = Shrinking {
            kind: kind(&violation),
            smallest: SmallestRun {
                left_out: LeftOut::default(),
                violation,
            },
            runs: 0,
            fails: |left_out: &LeftOut| {
                let mut needed = [3, 17, 39].iter();
                let has_rounds = needed.all(|round| !left_out.rounds.contains(round));
                if has_rounds && !left_out.faults.contains("kills") {
                    return Some(format!("'w2' starts {} times", left_out.rounds.len()));
                }
                // Another failure must not take the place of the wanted one.
                Some("something else".to_owned())
            },
        };
        shrinking.leave_out(40, &["cuts", "kills", "pauses"]);
        let SmallestRun {
            left_out,
            violation,
        } = shrinking.smallest;
        let mut left: Vec<usize> = (0..40).collect();
        left.retain(|round| !left_out.rounds.contains(round));
        assert_eq!(left, [3, 17, 39]);
        let faults: Vec<String> = left_out.faults.into_iter().collect();
        assert_eq!(faults, ["cuts", "pauses"]);
        assert_eq!(violation, "'w2' starts 37 times");
    }
}
