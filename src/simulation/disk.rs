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

/// What is stored, and what is on its way there.
pub(crate) struct Disk {
    clock: ManualClock,
    given: Receiver<StateWrite>,
    writing: Option<(Instant, String)>,
    stored: Option<String>,
    /// What was stored before that.
    previous: Option<String>,
}

impl Disk {
    /// An empty one.
    pub(crate) fn new(clock: &ManualClock) -> Self {
        Self {
            clock: clock.clone(),
            given: never(),
            writing: None,
            stored: None,
            previous: None,
        }
    }

    /// A server starts with what is stored, and puts states here from now on. What it has to store
    /// before it serves anybody is stored at once. Answers what is wrong.
    pub(crate) fn start(&mut self, server: &mut ServerLoop) -> Option<String> {
        let (store, given) = StateStore::unattended();
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
        // A start may be the third loss of an update, which is undone then.
        let is_same = accepted.desired == stored.desired || phases(&accepted) != phases(&stored);
        (!is_same).then(|| "the server does not start with the state that was stored".to_owned())
    }

    fn read(&self) -> Stored {
        let stored = self
            .stored
            .as_deref()
            .map(|text| parse(text).expect("what was written can be read"));
        stored.unwrap_or_default()
    }

    /// Answers what is stored in place of the present state while nothing is being written. Losses
    /// of agents are stored with whatever comes next.
    pub(crate) fn lost_state(&self, server: &ServerLoop) -> Option<String> {
        let (stored, accepted) = (self.settled()?, server.stored());
        let is_same = stored.desired == accepted.desired && phases(&stored) == phases(&accepted);
        (!is_same).then(|| format!("stored is {stored:?}, accepted was {accepted:?}"))
    }

    /// The server is killed; a write that has not ended did nothing.
    pub(crate) fn killed(&mut self) {
        (self.given, self.writing) = (never(), None);
    }

    /// The newest state cannot be read any more. The one before it is used, if there is one.
    pub(crate) fn damage(&mut self) {
        self.stored = self.previous.take().or(self.stored.take());
    }

    fn written(&mut self, text: String) {
        self.previous = self.stored.replace(text);
    }

    /// When a write ends or can begin.
    pub(crate) fn due(&self) -> Option<Instant> {
        match &self.writing {
            Some((at, _)) => Some(*at),
            None if self.given.is_empty() => None,
            None => Some(self.clock.now()),
        }
    }

    /// Ends a write or begins the next one.
    pub(crate) fn step(&mut self, random: &mut fastrand::Rng) {
        match self.writing.take() {
            Some((_, written)) => self.written(written),
            None => {
                let Ok(StateWrite { state, .. }) = self.given.try_recv() else {
                    return;
                };
                let at = self.clock.now() + Duration::from_millis(random.u64(1..WRITE_MS));
                self.writing = Some((at, text(&state).expect("any state can be written")));
            }
        }
    }

    /// What is stored while no write is under way and none is to come: no workloads if nothing ever
    /// was.
    fn settled(&self) -> Option<Stored> {
        let idle = self.writing.is_none() && self.given.is_empty();
        idle.then(|| self.read())
    }
}

/// Guarded updates and how far they are.
fn phases(stored: &Stored) -> Vec<(u64, Option<Node>)> {
    let updates = stored.updates.iter().flat_map(|updates| &updates.list);
    updates
        .map(|stored| (stored.number, stored.update.get("phase").cloned()))
        .collect()
}
