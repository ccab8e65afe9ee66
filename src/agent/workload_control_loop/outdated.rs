//! Old containers that were only stopped for a new instance whose container was prepared: they are removed once the new
//! one was started, whatever came of that, so that nothing but the stop and the start lie between both.
//!
//! Thread: `wl:<name>`; part of [`WorkloadControlLoop`].

use super::{AfterDelete, Leftovers, Stage, WorkloadControlLoop};
use crate::agent::backoff::retry_delay;
use crate::agent::wish_slot::Strays;
use crate::platform::clock::Clock;
use crate::runtime::RuntimeError;
use log::warn;
use std::time::Instant;

/// Stopped containers, which nothing of the workload needs any more.
#[derive(Default)]
pub(super) struct Outdated {
    containers: Vec<Strays>,
    /// When to try to remove them.
    due: Option<Instant>,
    failures: u32,
}

impl Outdated {
    pub(super) fn is_empty(&self) -> bool {
        self.containers.is_empty()
    }
}

impl<C: Clock> WorkloadControlLoop<C> {
    /// Whether the old container is only stopped, because that of the new instance is there already.
    pub(super) fn only_stops(&self, after: &AfterDelete) -> bool {
        let was_started = self.container.is_some() && self.starts > 0 && self.leftovers == Leftovers::None;
        matches!(after, AfterDelete::Wish) && was_started && self.slot.peek(|order| order.keeps_old).unwrap_or(false)
    }

    /// Stops the old container. From then on it is none of the instance any more.
    ///
    /// # Errors
    /// It may still run.
    // [impl->swdd~agent-switches-to-prepared~1]
    pub(super) fn stop_old(&mut self) -> Result<(), RuntimeError> {
        let (Some(engine), Some(id)) = (&mut self.engine, &self.container) else { return Ok(()) };
        engine.connector.stop(id)?;
        self.stopped = self.container.take();
        Ok(())
    }

    /// The old instance is gone for all others: what is left of it is removed later.
    pub(super) fn put_off_stopped(&mut self) {
        let Some(id) = self.stopped.take() else { return };
        let Some(engine) = self.engine.take() else { return };
        let runtime = self.wanted.as_ref().map(|workload| workload.runtime.clone()).unwrap_or_default();
        let containers = vec![(self.instance.clone(), id)];
        self.outdated.containers.push(Strays { runtime, engine, containers });
        (self.outdated.due, self.outdated.failures) = (Some(self.context.clock.now()), 0);
        self.note_outdated();
    }

    /// Nothing is prepared of an instance whose container is still there.
    fn note_outdated(&self) {
        let containers = self.outdated.containers.iter().flat_map(|strays| &strays.containers);
        self.slot.note_stopped(containers.map(|(instance, _)| instance.clone()).collect());
    }

    /// A container of the instance that comes back must be gone before another one is created.
    pub(super) fn reclaim_outdated(&mut self) {
        let (outdated, instance) = (&mut self.outdated.containers, &self.instance);
        let of_instance = |strays: &mut Strays| strays.containers.iter().any(|(other, _)| other == instance);
        let found: Vec<Strays> = outdated.extract_if(.., of_instance).collect();
        self.add_strays(found);
        self.note_outdated();
    }

    /// When to remove them; not while a start is under way.
    pub(super) fn outdated_due(&self) -> Option<Instant> {
        let starts = matches!(
            self.stage,
            Stage::BehindStrays(_) | Stage::Searching(_) | Stage::WaitingForSlot(..) | Stage::Preparing(_)
        );
        self.outdated.due.filter(|_| !starts && !self.outdated.is_empty())
    }

    /// Tries to remove them, and again later what could not be removed.
    pub(super) fn remove_outdated(&mut self) {
        self.outdated.due = None;
        for mut strays in std::mem::take(&mut self.outdated.containers) {
            strays.containers.retain(|(instance, id)| {
                let removed = strays.engine.connector.delete_ended(id);
                if let Err(error) = &removed {
                    warn!("Could not remove the stopped container of '{}', trying again: '{error}'", instance.short());
                }
                removed.is_err()
            });
            if !strays.containers.is_empty() {
                self.outdated.containers.push(strays);
            }
        }
        if !self.outdated.is_empty() {
            self.outdated.failures = self.outdated.failures.saturating_add(1);
            let delay = retry_delay(self.outdated.failures, &mut self.random);
            self.outdated.due = Some(self.context.clock.now() + delay);
        }
        self.note_outdated();
    }
}
