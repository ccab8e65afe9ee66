//! The first listings of all runtimes: the containers that existed before this agent.
//!
//! Thread: `scheduler`; part of [`super::WorkloadRecords`].

use crate::backoff::backoff_max;
use crate::events::{Note, SchedulerEvent};
use crate::limits::{FIRST_LISTING_MAX, REPAIR_INTERVAL};
use crate::state_checker::thread::NotSent;
use crate::state_checker::{ListResult, WatchCommand};
use crate::workload::Engines;
use ankaios_model::names::Name;
use ankaios_model::reason::{Reason, UNLISTED_PREFIX};
use ankaios_runtime::{ListedContainer, RuntimeError};
use crossbeam_channel::Sender;
use log::{debug, info, warn};
use std::collections::BTreeMap;
use std::time::Instant;

/// The listings of all runtimes.
pub(crate) struct Listings {
    runtimes: BTreeMap<Name, RuntimeListing>,
    /// The end of the time in which a hello, and workloads of other runtimes, wait for missing
    /// listings; `None` before the first request, and afterwards.
    first_until: Option<Instant>,
    /// That time is over. It does not begin again after a reconnect.
    is_over: bool,
    /// It was logged that all engines are missing.
    has_warned: bool,
}

#[derive(Default)]
struct RuntimeListing {
    state: ListingState,
    failures: u32,
    /// The last error, which the log does not repeat.
    error: Option<RuntimeError>,
    /// Its program is not installed.
    is_missing: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ListingState {
    /// No hello was received, or the engine is not installed and so has no containers. The next
    /// hello needs the listing, and so does a new workload with this runtime.
    #[default]
    Unneeded,
    /// It must be requested.
    Needed,
    Requested,
    Known,
    /// The engine failed. The listing is requested again at this time.
    Failed(Instant),
}

impl ListingState {
    /// Whether the containers of the runtime are known, or it has none.
    fn is_known(self) -> bool {
        matches!(self, Self::Known | Self::Unneeded)
    }
}

impl Listings {
    pub(super) fn new(engines: &Engines) -> Self {
        let mut runtimes = BTreeMap::new();
        for name in engines.keys() {
            runtimes.insert(name.clone(), RuntimeListing::default());
        }
        Self {
            runtimes,
            first_until: None,
            is_over: false,
            has_warned: false,
        }
    }

    /// Whether the containers of all runtimes are known.
    pub(crate) fn are_known(&self) -> bool {
        self.runtimes
            .values()
            .all(|listing| listing.state.is_known())
    }

    /// Whether a hello has to wait for the first listings.
    pub(crate) fn must_hello_wait(&self) -> bool {
        if self.is_over {
            return false; // It has waited long enough.
        }
        self.runtimes.values().any(|listing| {
            matches!(
                listing.state,
                ListingState::Needed | ListingState::Requested
            )
        })
    }

    /// When there is something to do without an event: see [`Self::give_up`] and [`Self::are_due`].
    pub(crate) fn due(&self) -> Option<Instant> {
        let mut due = self.first_until;
        for listing in self.runtimes.values() {
            if let ListingState::Failed(again) = listing.state {
                due = match due {
                    Some(at) => Some(at.min(again)),
                    None => Some(again),
                };
            }
        }
        due
    }

    /// Ends the wait of a hello, and of workloads of other runtimes, for missing listings, if its
    /// time is over. Returns whether it did. Orphaned containers in a later listing are removed
    /// then.
    pub(crate) fn give_up(&mut self, now: Instant) -> bool {
        if self.first_until.is_none_or(|until| now < until) {
            return false;
        }
        self.first_until = None;
        self.is_over = true;
        for (runtime, listing) in &self.runtimes {
            if !listing.state.is_known() {
                warn!(
                    "Starting workloads of other runtimes although '{runtime}' has not listed its containers."
                );
            }
        }
        true
    }

    /// Whether the runtime may have containers of an earlier agent that it has not listed.
    pub(super) fn is_missing(&self, runtime: &str) -> bool {
        match self.runtimes.get(runtime) {
            Some(listing) => listing.state != ListingState::Known,
            None => false,
        }
    }

    /// Why a workload of this runtime cannot be started now, if so: a runtime that has not listed
    /// its containers may have one of the workload. After the first wait, only its own runtime
    /// matters.
    pub(super) fn unlisted_note(&self, runtime: &str) -> Option<Note> {
        if !self.runtimes.contains_key(runtime) {
            return None; // It cannot be started at all.
        }
        for (name, listing) in &self.runtimes {
            let is_awaited = !self.is_over || **name == *runtime;
            if listing.state.is_known() || !is_awaited {
                continue;
            }
            let why = match &listing.error {
                Some(error) => error.reason(),
                None => "it has not listed its containers".to_owned(),
            };
            let text = format!("{UNLISTED_PREFIX}{name}', which may have a container of it: {why}");
            return Some(Note::new(Reason::EngineUnlisted, text));
        }
        None
    }

    /// Marks all listings that were not needed before as needed, since the server has sent a hello.
    pub(crate) fn need_all(&mut self) {
        for listing in self.runtimes.values_mut() {
            listing.need();
        }
    }

    /// Marks the listing of a runtime as needed if it was not before, since a workload has this
    /// runtime.
    pub(crate) fn need(&mut self, runtime: &str) {
        if let Some(listing) = self.runtimes.get_mut(runtime) {
            listing.need();
        }
    }

    /// Whether any listing must be requested now.
    pub(crate) fn are_due(&self, now: Instant) -> bool {
        self.runtimes.values().any(|listing| listing.is_due(now))
    }

    /// Requests the listings that are due.
    // [impl->swdd~agent-existing-workloads-finds-list~1]
    // [impl->swdd~agent-facade-forwards-list-reusable-workloads-call~1]
    pub(crate) fn request(
        &mut self,
        engines: &Engines,
        inbox: &Sender<SchedulerEvent>,
        now: Instant,
    ) {
        if !self.is_over {
            self.first_until.get_or_insert(now + FIRST_LISTING_MAX);
        }
        for (runtime, listing) in &mut self.runtimes {
            let Some(engine) = engines.get(runtime) else {
                continue;
            };
            if !listing.is_due(now) {
                continue;
            }
            let inbox = inbox.clone();
            let runtime = runtime.clone();
            let reply = Box::new(move |result| {
                let event = SchedulerEvent::Listed { runtime, result };
                let _ = inbox.send(event); // Gone only when the agent ends.
            });
            listing.state = match engine.watch.try_send(WatchCommand::ListAll { reply }) {
                Ok(()) => ListingState::Requested,
                // It is requested again with the next tick.
                Err(NotSent::Full) => ListingState::Needed,
                Err(NotSent::Ended) => ListingState::Failed(now + REPAIR_INTERVAL),
            };
        }
    }

    /// Takes the listing of a runtime. Returns its containers; `None` when the engine failed.
    pub(crate) fn take(
        &mut self,
        runtime: &Name,
        result: ListResult,
        now: Instant,
    ) -> Option<Vec<ListedContainer>> {
        let listing = self.runtimes.get_mut(runtime)?;
        match result {
            Ok(containers) => {
                info!(
                    "Found '{}' existing '{runtime}' workload(s).",
                    containers.len()
                );
                *listing = RuntimeListing {
                    state: ListingState::Known,
                    ..RuntimeListing::default()
                };
                Some(containers)
            }
            Err(RuntimeError::NotInstalled(text)) => {
                debug!(
                    "There are no existing '{runtime}' workloads, since the engine is not installed: '{text}'"
                );
                listing.state = ListingState::Unneeded;
                listing.is_missing = true;
                self.warn_of_missing_engines();
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
                let pause = backoff_max(listing.failures).min(REPAIR_INTERVAL);
                listing.state = ListingState::Failed(now + pause);
                None
            }
        }
    }
}

impl Listings {
    /// Warns once if no container engine at all is installed. A single missing one is normal: a
    /// node has only those that it needs.
    fn warn_of_missing_engines(&mut self) {
        if self.has_warned || !self.runtimes.values().all(|runtime| runtime.is_missing) {
            return;
        }
        self.has_warned = true;
        let names: Vec<&str> = self.runtimes.keys().map(|name| &**name).collect();
        warn!(
            "No container engine is installed, so no workload can start here (runtimes: {}). Install podman, or start \
             the agent with its folder in PATH.",
            names.join(", ")
        );
    }
}

impl RuntimeListing {
    /// Marks the listing as needed if it was not before. An engine that was not installed may be
    /// installed by now.
    fn need(&mut self) {
        if self.state == ListingState::Unneeded {
            self.state = ListingState::Needed;
        }
    }

    /// Whether the listing must be requested now.
    fn is_due(&self, now: Instant) -> bool {
        match self.state {
            ListingState::Needed => true,
            ListingState::Failed(again) => again <= now,
            ListingState::Unneeded | ListingState::Requested | ListingState::Known => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ankaios_fakes::log_lines::lines_of;
    use ankaios_platform::clock::{Clock as _, SystemClock};

    fn warnings(results: &[(&str, ListResult)]) -> Vec<String> {
        let mut listings = Listings {
            runtimes: BTreeMap::new(),
            first_until: None,
            is_over: false,
            has_warned: false,
        };
        for name in ["containerd", "podman"] {
            listings
                .runtimes
                .insert(name.into(), RuntimeListing::default());
        }
        let now = SystemClock.now();
        let mut lines = lines_of(|| {
            for (name, result) in results {
                listings.take(&(*name).into(), result.clone(), now);
            }
        });
        lines.retain(|line| line.starts_with("No container engine"));
        lines
    }

    #[test]
    fn node_without_any_engine_is_warned_of_once() {
        let missing = || {
            Err(RuntimeError::NotInstalled(
                "no such program".to_owned().into(),
            ))
        };
        let all = [("containerd", missing()), ("podman", missing())];
        let again = [&all[..], &all[..]].concat();
        assert_eq!(warnings(&again).len(), 1);
        let one = [("containerd", missing()), ("podman", Ok(Vec::new()))];
        assert_eq!(warnings(&one), [""; 0]);
    }
}
