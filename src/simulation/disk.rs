//! The disk of a server that keeps its state over restarts: a write takes time, and one that is
//! interrupted did nothing, or has left a newest state that cannot be read.
//!
//! Thread: the one of the test.

use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::node::Node;
use ankaios_platform::clock::Clock;
use ankaios_server::ServerLoop;
use ankaios_server::state_store::{StateStore, StateWrite, Stored, parse, text};
use crossbeam_channel::{Receiver, never};
use std::time::{Duration, Instant};

/// Longest write, in milliseconds.
const WRITE_MS: u64 = 2_000;

/// The stored state, and the write under way.
pub(crate) struct Disk {
    clock: ManualClock,
    given: Receiver<StateWrite>,
    writing: Option<Writing>,
    stored: Option<String>,
    /// The state stored before that.
    previous: Option<String>,
}

/// A write under way.
struct Writing {
    ends_at: Instant,
    text: String,
}

impl Disk {
    /// An empty disk.
    pub(crate) fn new(clock: &ManualClock) -> Self {
        Self {
            clock: clock.clone(),
            given: never(),
            writing: None,
            stored: None,
            previous: None,
        }
    }

    /// Starts a server with the stored state, and takes its writes. A state that it must store
    /// before it serves clients is stored at once. Returns the violation.
    pub(crate) fn start(&mut self, server: &mut ServerLoop) -> Option<String> {
        let (store, given) = StateStore::without_writer();
        self.given = given;
        let stored = self.read();
        server
            .start_again_with(stored.clone())
            .expect("it was accepted before");
        if let Some(state) = server.take_unsaved() {
            self.written(text(&state).expect("any state can be written"));
        }
        server.set_store(store);
        let accepted = server.stored();
        // A start may be the third loss of an update, which is rolled back then.
        if accepted.desired == stored.desired || phases(&accepted) != phases(&stored) {
            return None;
        }
        Some("the server does not start with the state that was stored".to_owned())
    }

    fn read(&self) -> Stored {
        match &self.stored {
            Some(text) => parse(text).expect("a written text can be read"),
            None => Stored::default(),
        }
    }

    /// Returns the violation if the stored state is not the present one while no write is under
    /// way. Losses of agents are stored with the next state.
    pub(crate) fn lost_state(&self, server: &ServerLoop) -> Option<String> {
        let stored = self.settled()?;
        let accepted = server.stored();
        if stored.desired == accepted.desired && phases(&stored) == phases(&accepted) {
            return None;
        }
        Some(format!("stored is {stored:?}, accepted was {accepted:?}"))
    }

    /// Takes the kill of the server; a write that has not ended did nothing.
    pub(crate) fn killed(&mut self) {
        self.given = never();
        self.writing = None;
    }

    /// Makes the newest state unreadable. The one before it is used, if there is one.
    pub(crate) fn damage(&mut self) {
        self.stored = self.previous.take().or(self.stored.take());
    }

    /// Stores a text that was written.
    fn written(&mut self, text: String) {
        self.previous = self.stored.replace(text);
    }

    /// The time at which a write ends or can begin.
    pub(crate) fn due(&self) -> Option<Instant> {
        if let Some(writing) = &self.writing {
            return Some(writing.ends_at);
        }
        if self.given.is_empty() {
            return None;
        }
        Some(self.clock.now())
    }

    /// Ends a write or begins the next one.
    pub(crate) fn step(&mut self, random: &mut fastrand::Rng) {
        if let Some(writing) = self.writing.take() {
            self.written(writing.text);
            return;
        }
        let Ok(StateWrite { state, .. }) = self.given.try_recv() else {
            return;
        };
        self.writing = Some(Writing {
            ends_at: self.clock.now() + Duration::from_millis(random.u64(1..WRITE_MS)),
            text: text(&state).expect("any state can be written"),
        });
    }

    /// The stored state while no write is under way and none waits; one without workloads if
    /// nothing was ever written.
    fn settled(&self) -> Option<Stored> {
        if self.writing.is_some() || !self.given.is_empty() {
            return None;
        }
        Some(self.read())
    }
}

/// The numbers of guarded updates with their phases.
fn phases(stored: &Stored) -> Vec<(u64, Option<Node>)> {
    let Some(updates) = &stored.updates else {
        return Vec::new();
    };
    let mut phases = Vec::new();
    for one in &updates.list {
        phases.push((one.number, one.update.get("phase").cloned()));
    }
    phases
}
