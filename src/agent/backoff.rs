//! Delays before retries of failed creates and before restarts of ended workloads.
//!
//! Thread: none; `wl:<name>` owns the values. Time and randomness are passed in.

use crate::limits::{RESTART_RESET, RESTART_SPACING};
use ankaios_model::lifecycle::Restart;
use ankaios_model::limits::{BACKOFF_FIRST, BACKOFF_MAX};
use std::time::{Duration, Instant};

/// Longest delay before retry number `attempt`, which begins with 1: it doubles each time, up to
/// [`BACKOFF_MAX`].
pub(crate) fn backoff_max(attempt: u32) -> Duration {
    // The exponent is bounded, so that no attempt can overflow.
    let exponent = attempt.saturating_sub(1).min(16);
    BACKOFF_FIRST.saturating_mul(1 << exponent).min(BACKOFF_MAX)
}

/// Delay before retry number `attempt`: random, up to [`backoff_max`], so that workloads that have
/// failed together do not retry together.
// [impl->swdd~agent-workload-control-loop-requests-retries-on-failing-retry-attempt~1]
pub(crate) fn retry_delay(attempt: u32, random: &mut fastrand::Rng) -> Duration {
    Duration::from_millis(random.u64(0..=whole_ms(backoff_max(attempt))))
}

/// A random delay between half of the bound and all of it.
fn delay_up_to(bound: Duration, random: &mut fastrand::Rng) -> Duration {
    let bound_ms = whole_ms(bound);
    Duration::from_millis(random.u64(bound_ms / 2..=bound_ms))
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// How a workload ended. After a success it is restarted in another way than after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndKind {
    /// With exit code 0.
    Well,
    /// With another exit code.
    Badly,
}

/// When a workload that ended may start again.
#[derive(Debug, Clone)]
pub(crate) struct RestartBackoff {
    enabled: bool,
    /// Restarts after a failure since the workload last ran for [`RESTART_RESET`].
    failures: u32,
    last_start: Option<Instant>,
    running_since: Option<Instant>,
    /// The workload's own rules, from its `lifecycle:` block.
    rules: Option<Restart>,
}

impl RestartBackoff {
    /// Returns the backoff of a workload that was not started yet. Unless `enabled`, restarts are
    /// not delayed, except those of a workload with rules of its own.
    pub(crate) fn new(enabled: bool, rules: Option<Restart>) -> Self {
        Self {
            enabled,
            failures: 0,
            last_start: None,
            running_since: None,
            rules,
        }
    }

    /// Notes that the engine is about to start the workload.
    pub(crate) fn starting(&mut self, now: Instant) {
        self.last_start = Some(now);
        self.running_since = None;
    }

    /// Notes that the workload runs.
    pub(crate) fn running(&mut self, now: Instant) {
        self.running_since.get_or_insert(now);
    }

    /// The number of starts and restarts that failed in a row.
    pub(crate) fn unsuccessful(&self) -> u32 {
        self.failures
    }

    /// Returns when to restart a workload that has just ended, or did not become ready; `None` when
    /// it has failed too often.
    ///
    /// - If restarts are not delayed: at once.
    /// - After a success: at once, but two starts are at least [`RESTART_SPACING`] apart.
    /// - After a failure, by default: the first time as after a success, then later each time.
    /// - After a failure, by rules of the workload: later each time, from the first one on.
    pub(crate) fn next(
        &mut self,
        ended: EndKind,
        now: Instant,
        random: &mut fastrand::Rng,
    ) -> Option<Instant> {
        self.forget_failures_after_long_run(now);
        if !self.enabled && self.rules.is_none() {
            return Some(now);
        }
        let spaced = match self.last_start {
            Some(start) => now.max(start + RESTART_SPACING),
            None => now,
        };
        if ended == EndKind::Well {
            return Some(spaced);
        }
        match self.rules {
            None => Some(spaced.max(now + self.next_default_delay(random))),
            Some(rules) => Some(now + self.next_delay_of(rules, random)?),
        }
    }

    /// The delay after one more failure, without rules: none after the first one.
    fn next_default_delay(&mut self, random: &mut fastrand::Rng) -> Duration {
        let bound = if self.failures == 0 {
            Duration::ZERO
        } else {
            backoff_max(self.failures)
        };
        self.failures = self.failures.saturating_add(1);
        delay_up_to(bound, random)
    }

    /// The delay after one more failure, by these rules; `None` when it has failed too often.
    fn next_delay_of(&mut self, rules: Restart, random: &mut fastrand::Rng) -> Option<Duration> {
        if let Some(limit) = rules.max_restarts
            && self.failures >= limit
        {
            return None;
        }
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let bound = rules.backoff.saturating_mul(factor).min(rules.backoff_max);
        self.failures = self.failures.saturating_add(1);
        Some(delay_up_to(bound, random))
    }

    /// Forgets earlier failures, if the workload has run for long since.
    fn forget_failures_after_long_run(&mut self, now: Instant) {
        let Some(since) = self.running_since.take() else {
            return;
        };
        let long_run = match self.rules {
            Some(rules) => rules.window,
            None => RESTART_RESET,
        };
        if now.saturating_duration_since(since) >= long_run {
            self.failures = 0;
        }
    }

    /// Returns when to restart a workload that did not become ready, as [`Self::next`] does. If
    /// restarts are not delayed, this restart is delayed like a failed create, since it is shown as
    /// a failed create.
    pub(crate) fn next_start(
        &mut self,
        now: Instant,
        random: &mut fastrand::Rng,
    ) -> Option<Instant> {
        if self.enabled || self.rules.is_some() {
            return self.next(EndKind::Badly, now, random);
        }
        self.failures = self.failures.saturating_add(1);
        Some(now + retry_delay(self.failures, random))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ankaios_fakes::manual_clock::ManualClock;
    use ankaios_platform::clock::Clock;

    #[test]
    fn backoff_bound_doubles_then_stays_at_the_cap_for_ever() {
        let rows = [
            (1, 500),
            (2, 1_000),
            (3, 2_000),
            (10, 256_000),
            (11, 300_000),
            (65, 300_000),
            (u32::MAX, 300_000),
        ];
        for (attempt, expected_ms) in rows {
            assert_eq!(
                backoff_max(attempt).as_millis(),
                expected_ms,
                "attempt {attempt}"
            );
        }
    }

    // [utest->swdd~agent-workload-control-loop-requests-retries-on-failing-retry-attempt~1]
    #[test]
    fn retry_delays_use_the_whole_range_up_to_the_bound() {
        let mut random = fastrand::Rng::with_seed(7);
        for attempt in [1, 2, 5, 20, u32::MAX] {
            let bound = backoff_max(attempt);
            let delays: Vec<Duration> = (0..200)
                .map(|_| retry_delay(attempt, &mut random))
                .collect();
            assert!(
                delays.iter().all(|delay| *delay <= bound),
                "attempt {attempt}"
            );
            assert!(
                delays.iter().any(|delay| *delay < bound / 4),
                "attempt {attempt}"
            );
            assert!(
                delays.iter().any(|delay| *delay > bound / 4 * 3),
                "attempt {attempt}"
            );
        }
    }

    #[test]
    fn a_crash_loop_restarts_at_once_then_ever_later() {
        let clock = ManualClock::new();
        let mut random = fastrand::Rng::with_seed(1);
        let mut backoff = RestartBackoff::new(true, None);
        let start = clock.now();
        backoff.starting(start);
        backoff.running(start);
        let ended = start + Duration::from_secs(5);
        assert_eq!(
            backoff.next(EndKind::Badly, ended, &mut random).unwrap(),
            ended
        );
        for (restart, bound_ms) in [
            (1, 500),
            (2, 1_000),
            (3, 2_000),
            (4, 4_000),
            (20, 300_000),
            (30, 300_000),
        ] {
            backoff.failures = restart;
            let delay = backoff.next(EndKind::Badly, ended, &mut random).unwrap() - ended;
            let bound = Duration::from_millis(bound_ms);
            assert!(
                delay <= bound && delay >= bound / 2,
                "restart {restart}: {delay:?}"
            );
        }
    }

    #[test]
    fn a_minute_of_running_makes_the_next_restart_immediate_again() {
        let clock = ManualClock::new();
        let mut random = fastrand::Rng::with_seed(1);
        for (ran, immediate) in [
            (RESTART_RESET - Duration::from_millis(1), false),
            (RESTART_RESET, true),
        ] {
            let mut backoff = RestartBackoff::new(true, None);
            backoff.failures = 12;
            backoff.starting(clock.now());
            backoff.running(clock.now());
            let ended = clock.now() + ran;
            assert_eq!(
                backoff.next(EndKind::Badly, ended, &mut random).unwrap() == ended,
                immediate,
                "{ran:?}"
            );
        }
    }

    #[test]
    fn starts_are_a_second_apart_whatever_the_reason() {
        let clock = ManualClock::new();
        let mut random = fastrand::Rng::with_seed(1);
        let start = clock.now();
        for ended in [EndKind::Well, EndKind::Badly] {
            let mut backoff = RestartBackoff::new(true, None);
            backoff.starting(start);
            let now = start + Duration::from_millis(10);
            assert_eq!(
                backoff.next(ended, now, &mut random).unwrap(),
                start + RESTART_SPACING,
                "{ended:?}"
            );
            let later = start + Duration::from_secs(2);
            backoff = RestartBackoff::new(true, None);
            assert_eq!(
                backoff.next(ended, later, &mut random).unwrap(),
                later,
                "{ended:?}"
            );
        }
    }

    /// It was created and removed as fast as the engine could.
    #[test]
    fn start_that_did_not_become_ready_is_delayed_without_backoff() {
        let start = ManualClock::new().now();
        let mut random = fastrand::Rng::with_seed(1);
        let mut backoff = RestartBackoff::new(false, None);
        let mut now = start;
        for _ in 0..12 {
            backoff.starting(now);
            now = backoff.next_start(now, &mut random).unwrap();
        }
        assert!(now - start > Duration::from_secs(60), "{:?}", now - start);
        backoff.running(now);
        backoff
            .next(EndKind::Badly, now + RESTART_RESET, &mut random)
            .unwrap();
        assert_eq!(backoff.unsuccessful(), 0);
    }

    fn rules(max_restarts: Option<u32>) -> Restart {
        Restart {
            backoff: Duration::from_millis(200),
            backoff_max: Duration::from_secs(5),
            max_restarts,
            window: Duration::from_secs(10),
        }
    }

    #[test]
    fn rules_of_the_workload_decide_its_delays_and_their_bound() {
        let now = ManualClock::new().now();
        let mut random = fastrand::Rng::with_seed(1);
        for enabled in [true, false] {
            let mut backoff = RestartBackoff::new(enabled, Some(rules(None)));
            for bound_ms in [200, 400, 800, 1_600, 3_200, 5_000, 5_000] {
                let delay = backoff.next(EndKind::Badly, now, &mut random).unwrap() - now;
                let bound = Duration::from_millis(bound_ms);
                assert!(
                    delay <= bound && delay >= bound / 2,
                    "{bound_ms}: {delay:?}"
                );
            }
            backoff.failures = u32::MAX;
            assert!(
                backoff.next(EndKind::Badly, now, &mut random).unwrap()
                    <= now + Duration::from_secs(5)
            );
        }
    }

    #[test]
    fn restarts_end_at_their_limit_and_count_again_after_the_window() {
        let now = ManualClock::new().now();
        let mut random = fastrand::Rng::with_seed(1);
        for most in [0, 1, 3] {
            let mut backoff = RestartBackoff::new(true, Some(rules(Some(most))));
            for (ran_s, begins_anew) in [(9, false), (10, true)] {
                backoff.failures = most;
                backoff.running(now);
                let ended = now + Duration::from_secs(ran_s);
                let next = backoff.next(EndKind::Badly, ended, &mut random);
                assert_eq!(next.is_some(), begins_anew && most > 0, "{most} {ran_s}");
            }
            backoff.failures = most;
            assert!(
                backoff.next(EndKind::Well, now, &mut random).is_some(),
                "success is not counted"
            );
        }
    }

    #[test]
    fn missed_readiness_follows_rules_even_without_a_backoff() {
        let clock = ManualClock::new();
        let mut random = fastrand::Rng::with_seed(1);
        for enabled in [true, false] {
            let mut backoff = RestartBackoff::new(enabled, Some(rules(Some(1))));
            assert!(backoff.next_start(clock.now(), &mut random).is_some());
            assert_eq!(backoff.next_start(clock.now(), &mut random), None);
        }
        let mut backoff = RestartBackoff::new(true, None);
        let first = backoff.next_start(clock.now(), &mut random);
        assert_eq!(first, Some(clock.now()));
    }
}
