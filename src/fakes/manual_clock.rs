//! A clock that only moves when a test says so.
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
    /// Starts somewhere.
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

    /// Ready at once or never: no thread waits in a simulation, the owner of the clock looks again
    /// after moving it.
    fn alarm(&self, at: Instant) -> Receiver<Instant> {
        if at > self.now() {
            return never();
        }
        let (sender, receiver) = bounded(1);
        sender.send(at).unwrap();
        receiver
    }
}
