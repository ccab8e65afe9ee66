//! Which engines have listed the containers that existed before this agent.
//!
//! Thread: `scheduler`; part of [`super::Workloads`].

use crate::backoff::backoff_max;
use crate::events::{Note, SchedulerEvent};
use crate::limits::{FIRST_LISTING_MAX, REPAIR_INTERVAL};
use crate::state_checker::{ListResult, WatchCommand};
use crate::workload::Engines;
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::names::Name;
use ankaios_model::reason::{Reason, UNLISTED_PREFIX};
use ankaios_runtime::{ListedContainer, RuntimeError};
use crossbeam_channel::{Sender, TrySendError};
use log::{debug, info, warn};
use std::collections::BTreeMap;
use std::time::Instant;

/// The listings of all engines.
pub(crate) struct Listings {
    engines: BTreeMap<Name, EngineListing>,
    /// Until when hellos, and workloads of other engines, wait for engines without a listing; from
    /// the first request on.
    first_until: Option<Instant>,
    /// That time is over. After a reconnect all of our containers are known.
    is_over: bool,
}

#[derive(Default)]
struct EngineListing {
    state: ListingState,
    failures: u32,
    /// The last error, which the log does not repeat.
    error: Option<RuntimeError>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ListingState {
    /// No hello has come, or the engine is not there, so it has no containers. It is requested with
    /// the next hello, and when another workload wants this engine.
    #[default]
    Unwanted,
    /// To be requested, or the state checker had no room for the request.
    Wanted,
    Requested,
    Known,
    /// The engine failed; request it again then.
    Failed(Instant),
}

impl ListingState {
    fn is_known(self) -> bool {
        matches!(self, Self::Known | Self::Unwanted)
    }
}

impl Listings {
    pub(super) fn new(engines: &Engines) -> Self {
        let engines = engines
            .keys()
            .map(|name| (name.clone(), EngineListing::default()))
            .collect_entries();
        Self {
            engines,
            first_until: None,
            is_over: false,
        }
    }

    /// Whether it is known of all engines which containers they have.
    pub(crate) fn are_known(&self) -> bool {
        self.engines.values().all(|engine| engine.state.is_known())
    }

    /// Whether a hello has to wait for the first listings.
    pub(crate) fn hold_up_hello(&self) -> bool {
        let is_open = |state| matches!(state, ListingState::Wanted | ListingState::Requested);
        !self.is_over && self.engines.values().any(|engine| is_open(engine.state))
    }

    /// When something is to be done without an event: see [`Self::give_up`] and [`Self::are_due`].
    pub(crate) fn due(&self) -> Option<Instant> {
        let again = self
            .engines
            .values()
            .filter_map(|engine| match engine.state {
                ListingState::Failed(again) => Some(again),
                _ => None,
            });
        again.chain(self.first_until).min()
    }

    /// Whether from now on nothing but the workloads of an engine waits for its listing. What it
    /// lists later and is too much is removed then.
    pub(crate) fn give_up(&mut self, now: Instant) -> bool {
        let is_now = self.first_until.take_if(|until| *until <= now).is_some();
        self.is_over |= is_now;
        for (runtime, _) in self
            .engines
            .iter()
            .filter(|(_, engine)| is_now && !engine.state.is_known())
        {
            warn!(
                "Starting workloads of other runtimes although '{runtime}' has not listed its containers."
            );
        }
        is_now
    }

    /// Whether the engine may have containers of an earlier agent that it has not listed.
    pub(super) fn is_missing(&self, runtime: &str) -> bool {
        self.engines
            .get(runtime)
            .is_some_and(|engine| engine.state != ListingState::Known)
    }

    /// Why a workload of this runtime may not be started now: an engine may have a container of it.
    pub(super) fn hold_up(&self, runtime: &str) -> Option<Note> {
        self.engines.get(runtime)?;
        let mut missing = self
            .engines
            .iter()
            .filter(|(_, engine)| !engine.state.is_known());
        let (name, engine) = missing.find(|(name, _)| ***name == *runtime || !self.is_over)?;
        let why = match &engine.error {
            Some(error) => error.reason(),
            None => "it has not listed its containers".to_owned(),
        };
        let text = format!("{UNLISTED_PREFIX}{name}', which may have a container of it: {why}");
        Some(Note::new(Reason::EngineUnlisted, text))
    }

    /// The server has sent a hello, or a workload wants one of these engines: when it was not
    /// installed, it may be by now.
    pub(crate) fn want(&mut self, is_it: impl Fn(&str) -> bool) {
        for (name, engine) in &mut self.engines {
            if engine.state == ListingState::Unwanted && is_it(name) {
                engine.state = ListingState::Wanted;
            }
        }
    }

    /// Whether a listing is to be requested now.
    pub(crate) fn are_due(&self, now: Instant) -> bool {
        self.engines.values().any(|engine| engine.is_due(now))
    }

    // [impl->swdd~agent-existing-workloads-finds-list~1]
    // [impl->swdd~agent-facade-forwards-list-reusable-workloads-call~1]
    /// Requests the listings that are due.
    pub(crate) fn request(
        &mut self,
        engines: &Engines,
        inbox: &Sender<SchedulerEvent>,
        now: Instant,
    ) {
        if !self.is_over {
            self.first_until.get_or_insert(now + FIRST_LISTING_MAX);
        }
        for (runtime, listing) in self
            .engines
            .iter_mut()
            .filter(|(_, listing)| listing.is_due(now))
        {
            let Some(engine) = engines.get(runtime) else {
                continue;
            };
            let (inbox, name) = (inbox.clone(), runtime.clone());
            let reply = Box::new(move |result| {
                let _ = inbox.send(SchedulerEvent::Listed {
                    runtime: name,
                    result,
                }); // Gone only at the end.
            });
            listing.state = match engine.watch.try_send(WatchCommand::ListAll { reply }) {
                Ok(()) => ListingState::Requested,
                // Requested again with the next tick.
                Err(TrySendError::Full(_)) => ListingState::Wanted,
                Err(TrySendError::Disconnected(_)) => ListingState::Failed(now + REPAIR_INTERVAL),
            };
        }
    }

    /// Takes the listing of an engine. Returns the containers; `None` when they are not known.
    pub(crate) fn take(
        &mut self,
        runtime: &Name,
        result: ListResult,
        now: Instant,
    ) -> Option<Vec<ListedContainer>> {
        let listing = self.engines.get_mut(runtime)?;
        match result {
            Ok(containers) => {
                info!(
                    "Found '{}' existing '{runtime}' workload(s).",
                    containers.len()
                );
                *listing = EngineListing {
                    state: ListingState::Known,
                    ..EngineListing::default()
                };
                Some(containers)
            }
            Err(RuntimeError::NotInstalled(text)) => {
                debug!("There are no existing '{runtime}' workloads: '{text}'");
                listing.state = ListingState::Unwanted;
                Some(Vec::new())
            }
            Err(error) => {
                if listing.error.as_ref() != Some(&error) {
                    warn!(
                        "Could not list the existing '{runtime}' workloads, trying again: '{error}'"
                    );
                    listing.error = Some(error);
                }
                listing.failures = listing.failures.saturating_add(1);
                listing.state =
                    ListingState::Failed(now + backoff_max(listing.failures).min(REPAIR_INTERVAL));
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
            ListingState::Unwanted | ListingState::Requested | ListingState::Known => false,
        }
    }
}
