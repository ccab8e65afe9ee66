//! The bound on steps at one instant: a part that is ready without end would keep the virtual time
//! from advancing, and the run from ending.
//!
//! Thread: the one of the test.

use std::collections::VecDeque;
use std::time::Instant;

/// Most steps of a whole cluster at one instant. Of 385 seeds the busiest instant had 108.
const STEPS_MAX: usize = 10_000;
/// Steps that the failure names.
const SHOWN: usize = 12;

/// Counts the steps at the present instant.
pub(crate) struct Progress {
    start: Instant,
    instant: Instant,
    steps: usize,
    /// The last steps, in order; only of an instant with almost too many.
    last: VecDeque<String>,
}

impl Progress {
    /// Nothing has happened yet; times are counted from now.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            start: now,
            instant: now,
            steps: 0,
            last: VecDeque::new(),
        }
    }

    /// Counts a step at this instant.
    ///
    /// # Errors
    /// The time does not advance: the text names the instant and the last steps.
    pub(crate) fn count(
        &mut self,
        now: Instant,
        step: impl FnOnce() -> String,
    ) -> Result<(), String> {
        if now != self.instant {
            self.instant = now;
            self.steps = 0;
            self.last.clear();
        }
        self.steps += 1;
        if self.steps + SHOWN > STEPS_MAX {
            self.last.push_back(step());
        }
        if self.steps < STEPS_MAX {
            return Ok(());
        }
        let seconds = now.saturating_duration_since(self.start).as_secs_f64();
        let last: Vec<String> = self.last.drain(..).collect();
        Err(format!(
            "no progress: {STEPS_MAX} steps at one instant, {seconds:.3} s after the start; the last were {}",
            last.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ankaios_fakes::manual_clock::ManualClock;
    use ankaios_platform::clock::Clock as _;
    use std::time::Duration;

    fn start() -> Instant {
        ManualClock::new().now()
    }

    #[test]
    fn steps_without_progress_fail_with_instant_and_last_steps() {
        let start = start();
        let mut progress = Progress::new(start);
        let at = start + Duration::from_millis(2_500);
        for number in 1..STEPS_MAX {
            let counted = progress.count(at, || format!("step {number}"));
            assert_eq!(counted, Ok(()), "{number}");
        }
        let error = progress.count(at, || "step last".to_owned()).unwrap_err();
        assert!(error.starts_with("no progress: 10000 steps at one instant, 2.500 s after"));
        assert!(
            error.contains("the last were step 9989, step 9990,"),
            "{error}"
        );
        assert!(error.ends_with("step 9999, step last"), "{error}");
    }

    #[test]
    fn steps_at_further_instants_never_fail() {
        let start = start();
        let mut progress = Progress::new(start);
        for round in 0..4 {
            let at = start + Duration::from_millis(round);
            for _ in 1..STEPS_MAX {
                assert_eq!(progress.count(at, String::new), Ok(()), "{round}");
            }
        }
    }
}
