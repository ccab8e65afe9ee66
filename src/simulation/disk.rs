//! The disk of a server that keeps its state over restarts: a write takes time, and one that is interrupted did nothing.
//!
//! Thread: the one of the test.

use super::manual_clock::ManualClock;
use crate::platform::clock::Clock;
use crate::server::state_store::{StateStore, Stored, parse, text};
use crossbeam_channel::{Receiver, never};
use std::time::{Duration, Instant};

/// Longest write, in milliseconds.
const WRITE_MS: u64 = 2_000;

/// What is stored, and what is on its way there.
pub struct Disk {
    clock: ManualClock,
    given: Receiver<Stored>,
    writing: Option<(Instant, String)>,
    stored: Option<String>,
}

impl Disk {
    /// An empty one.
    pub fn new(clock: &ManualClock) -> Self {
        Self { clock: clock.clone(), given: never(), writing: None, stored: None }
    }

    /// A server starts: what it finds, and where it puts states from now on.
    pub fn open(&mut self) -> (Option<Stored>, StateStore) {
        let (store, given) = StateStore::unattended();
        self.given = given;
        let stored = self.stored.as_deref().map(|text| parse(text).expect("what was written can be read"));
        (stored, store)
    }

    /// A server that starts stores this before it serves anybody.
    pub fn save(&mut self, state: &Stored) {
        self.stored = Some(text(state).expect("any state can be written"));
    }

    /// The server is killed; a write that has not ended did nothing.
    pub fn killed(&mut self) {
        (self.given, self.writing) = (never(), None);
    }

    /// When a write ends or can begin.
    pub fn due(&self) -> Option<Instant> {
        match &self.writing {
            Some((at, _)) => Some(*at),
            None if self.given.is_empty() => None,
            None => Some(self.clock.now()),
        }
    }

    /// Ends a write or begins the next one.
    pub fn step(&mut self, random: &mut fastrand::Rng) {
        match self.writing.take() {
            Some((_, written)) => self.stored = Some(written),
            None => {
                let Ok(state) = self.given.try_recv() else { return };
                let at = self.clock.now() + Duration::from_millis(random.u64(1..WRITE_MS));
                self.writing = Some((at, text(&state).expect("any state can be written")));
            }
        }
    }

    /// What is stored while no write is under way and none is to come: no workloads if nothing ever was.
    pub fn settled(&self) -> Option<Stored> {
        let idle = self.writing.is_none() && self.given.is_empty();
        let stored = || self.stored.as_deref().map(|text| parse(text).expect("what was written can be read"));
        idle.then(|| stored().unwrap_or_default())
    }
}
