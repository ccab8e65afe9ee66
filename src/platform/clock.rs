//! Time as a value that is passed in, so that tests and the simulation decide what time it is.
//!
//! Thread: none; a clock is cloned into whichever thread needs it.

use crossbeam_channel::Receiver;
#[cfg(debug_assertions)]
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Source of monotonic time.
pub trait Clock: Clone + Send + 'static {
    /// The current point in time; never goes backwards.
    fn now(&self) -> Instant;

    /// A channel that becomes ready at `at`.
    fn alarm(&self, at: Instant) -> Receiver<Instant>;

    /// Time left until `at`; zero when it has passed.
    fn until(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.now())
    }
}

/// Returns `limit`, the longest wait for a response that is immediate unless its sender hangs.
///
/// Builds for tests wait at least `ANKAIOS_TEST_PATIENCE` seconds, since on a busy machine late
/// responses are usual.
#[must_use]
pub fn patience(limit: Duration) -> Duration {
    #[cfg(debug_assertions)]
    let limit = limit.max(least_patience());
    limit
}

#[cfg(debug_assertions)]
fn least_patience() -> Duration {
    static LEAST: OnceLock<Duration> = OnceLock::new();
    *LEAST.get_or_init(|| {
        let text = std::env::var("ANKAIOS_TEST_PATIENCE").unwrap_or_default();
        Duration::from_secs(text.parse().unwrap_or(0))
    })
}

/// The operating system's monotonic clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods)] // The one place that reads the system's clock.
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn alarm(&self, at: Instant) -> Receiver<Instant> {
        crossbeam_channel::at(at)
    }
}
