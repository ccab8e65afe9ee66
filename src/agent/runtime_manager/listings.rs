//! Which engines have listed the containers that existed before this agent.
//!
//! Thread: `scheduler`; part of [`super::RuntimeManager`].

use crate::agent::events::SchedulerEvent;
use crate::agent::state_checker::{ListResult, WatchCommand};
use crate::agent::workload_control_loop::Engines;
use crate::limits::{FIRST_LISTING_MAX, REPAIR_INTERVAL};
use crate::model::names::Name;
use crate::runtime::{ListedContainer, RuntimeError};
use crossbeam_channel::{Sender, TrySendError};
use log::{debug, info, warn};
use std::collections::BTreeMap;
use std::time::Instant;

/// The listings of all engines.
pub struct Listings {
    engines: BTreeMap<Name, EngineListing>,
    /// Until when a hello waits for engines without a listing; `None` before the first request. After a reconnect all
    /// of our containers are known.
    first_until: Option<Instant>,
}

struct EngineListing {
    state: ListingState,
    /// The last error, which the log does not repeat.
    error: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListingState {
    /// Not requested, or the state checker had no room for the request.
    Wanted,
    Requested,
    Known,
    /// The engine is not there, so it has no containers. It is requested again with the next hello, and by each
    /// workload that wants this engine.
    NotInstalled,
    /// The engine failed; request it again then.
    Failed(Instant),
}

impl ListingState {
    fn is_known(self) -> bool {
        matches!(self, Self::Known | Self::NotInstalled)
    }
}

impl Listings {
    pub(super) fn new(engines: &Engines) -> Self {
        let wanted = |_| EngineListing { state: ListingState::Wanted, error: String::new() };
        Self { engines: engines.keys().map(|name| (name.clone(), wanted(()))).collect(), first_until: None }
    }

    /// Whether it is known of all engines which containers they have.
    #[must_use]
    pub fn are_known(&self) -> bool {
        self.engines.values().all(|engine| engine.state.is_known())
    }

    /// Whether a hello has to wait for the first listings.
    #[must_use]
    pub fn hold_up_hello(&self, now: Instant) -> bool {
        let is_open = |state| matches!(state, ListingState::Wanted | ListingState::Requested);
        self.first_until.is_none_or(|until| now < until) && self.engines.values().any(|engine| is_open(engine.state))
    }

    /// When [`Self::hold_up_hello`] changes by itself.
    #[must_use]
    pub fn first_until(&self) -> Option<Instant> {
        self.first_until
    }

    /// Whether the engine may have containers of an earlier agent that it has not listed.
    pub(super) fn is_missing(&self, runtime: &str) -> bool {
        self.engines.get(runtime).is_some_and(|engine| engine.state != ListingState::Known)
    }

    /// The engines besides `runtime` that a workload has to wait for, and until when: its container may be there.
    pub(super) fn missing_besides<'a>(
        &'a self,
        runtime: &'a str,
        now: Instant,
    ) -> impl Iterator<Item = (&'a Name, Instant)> {
        let until = self.first_until.filter(|until| now < *until);
        let missing = self.engines.iter().filter(move |(name, engine)| ***name != *runtime && !engine.state.is_known());
        missing.filter_map(move |(name, _)| Some((name, until?)))
    }

    /// The server has sent a hello: engines that were not installed may be by now.
    pub fn on_hello(&mut self) {
        for engine in self.engines.values_mut().filter(|engine| engine.state == ListingState::NotInstalled) {
            engine.state = ListingState::Wanted;
        }
    }

    /// Whether a listing is to be requested now.
    #[must_use]
    pub fn are_due(&self, now: Instant) -> bool {
        self.engines.values().any(|engine| engine.is_due(now))
    }

    // [impl->swdd~agent-existing-workloads-finds-list~1]
    // [impl->swdd~agent-facade-forwards-list-reusable-workloads-call~1]
    pub(super) fn request(&mut self, engines: &Engines, inbox: &Sender<SchedulerEvent>, now: Instant) {
        self.first_until.get_or_insert(now + FIRST_LISTING_MAX);
        for (runtime, listing) in self.engines.iter_mut().filter(|(_, listing)| listing.is_due(now)) {
            let Some(engine) = engines.get(runtime) else { continue };
            let (inbox, name) = (inbox.clone(), runtime.clone());
            let reply = Box::new(move |result| {
                let _ = inbox.send(SchedulerEvent::Listed { runtime: name, result }); // Gone only at the end.
            });
            listing.state = match engine.watch.try_send(WatchCommand::ListAll { reply }) {
                Ok(()) => ListingState::Requested,
                Err(TrySendError::Full(_)) => ListingState::Wanted, // Requested again with the next tick.
                Err(TrySendError::Disconnected(_)) => ListingState::Failed(now + REPAIR_INTERVAL),
            };
        }
    }

    /// Takes the listing of an engine. Returns the containers; `None` when they are not known.
    pub fn take(&mut self, runtime: &Name, result: ListResult, now: Instant) -> Option<Vec<ListedContainer>> {
        let listing = self.engines.get_mut(runtime)?;
        match result {
            Ok(containers) => {
                info!("Found '{}' existing '{runtime}' workload(s).", containers.len());
                listing.state = ListingState::Known;
                Some(containers)
            }
            Err(RuntimeError::NotInstalled(text)) => {
                debug!("There are no existing '{runtime}' workloads: '{text}'");
                listing.state = ListingState::NotInstalled;
                Some(Vec::new())
            }
            Err(error) => {
                let text = error.to_string();
                if listing.error != text {
                    warn!("Could not list the existing '{runtime}' workloads, trying again: '{text}'");
                    listing.error = text;
                }
                listing.state = ListingState::Failed(now + REPAIR_INTERVAL);
                None
            }
        }
    }
}

impl EngineListing {
    fn is_due(&self, now: Instant) -> bool {
        match self.state {
            ListingState::Wanted => true,
            ListingState::Failed(again) => again <= now,
            ListingState::Requested | ListingState::Known | ListingState::NotInstalled => false,
        }
    }
}
