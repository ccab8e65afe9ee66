//! A clock that only a test moves.
//!
//! Thread: the one of the test; clones show the same time.

use crate::clock::{Clock, SystemClock};
use crossbeam_channel::{Receiver, bounded, never};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Shows a time that [`Self::advance`] moves.
#[derive(Debug, Clone)]
pub struct ManualClock {
    now: Arc<Mutex<Instant>>,
}

impl ManualClock {
    /// Starts at the present time.
    pub fn new() -> Self {
        Self {
            now: Arc::new(Mutex::new(SystemClock.now())),
        }
    }

    /// Moves the time of all clones.
    pub fn advance(&self, by: Duration) {
        *self.now.lock().unwrap() += by;
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        *self.now.lock().unwrap()
    }

    /// Ready at once or never. No thread waits for it in a simulation: the owner of the clock
    /// checks what is due after it has moved the clock.
    fn alarm(&self, at: Instant) -> Receiver<Instant> {
        if at > self.now() {
            return never();
        }
        let (sender, receiver) = bounded(1);
        sender.send(at).unwrap();
        receiver
    }
}
