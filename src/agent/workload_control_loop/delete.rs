//! A delete, alone or as the first half of an update or a restart, repeated until it worked.
//!
//! Thread: `wl:<name>`; part of [`WorkloadControlLoop`].
//! Gives: states to the scheduler (may block there).

use super::search::leave_strangers_of;
use super::{AfterDelete, Leftovers, Stage, Start, WorkloadControlLoop};
use crate::agent::backoff::retry_delay;
use crate::agent::wish_slot::Wish;
use crate::model::execution_state::{ExecutionState, Phase};
use crate::platform::clock::Clock;
use crate::runtime::RuntimeError;
use log::{debug, warn};

impl<C: Clock> WorkloadControlLoop<C> {
    /// Removes what is there, then does `after`. Ends all waiting, above all for a retry.
    // [impl->swdd~agent-workload-control-loop-prevents-retries-on-other-workload-commands~1]
    pub(super) fn delete(&mut self, after: AfterDelete) {
        self.stage = Stage::Idle;
        self.failed_deletes = 0;
        self.next.take_if(|next| next.is_started).into_iter().for_each(|next| self.discard(next));
        let wish_keeps = || self.slot.peek(|order| self.keeps_control_interface(order));
        let is_kept = !matches!(after, AfterDelete::Wish) || wish_keeps().unwrap_or(false);
        self.end_control_interface_unless(is_kept);
        self.lifecycle_ended();
        let stopping = self.lifecycle.stopping(ExecutionState::plain(Phase::StoppingRequestedAtRuntime));
        self.report(stopping);
        self.try_delete(after);
    }

    pub(super) fn try_delete(&mut self, after: AfterDelete) {
        let deleted = if self.only_stops(&after) { self.stop_old() } else { self.delete_container(&after) };
        if let Err(error) = deleted {
            return self.on_delete_failed(after, &error);
        }
        self.unwatch();
        self.container = None;
        self.leftovers = Leftovers::None;
        if self.must_wait_until_gone() {
            return self.wait_until_gone(after);
        }
        self.deleted(after);
    }

    /// Nothing is left of the container.
    pub(super) fn deleted(&mut self, after: AfterDelete) {
        if let Some(control) = &self.control {
            control.container_gone(); // It is kept for another container, which has asked nothing yet.
        }
        match after {
            AfterDelete::Wish => self.removed(),
            AfterDelete::Restart => {
                self.remove_files();
                self.report(ExecutionState::plain(Phase::Removed));
                self.restart_control_interface();
                self.report(ExecutionState::starting_triggered());
                self.begin_start(Start::New);
            }
            // What follows from these is reported with the state that follows.
            AfterDelete::NotReady(cause) => {
                self.remove_files();
                self.retry_not_ready(&cause);
            }
            AfterDelete::Failed(cause) => {
                self.remove_files();
                self.on_failed(ExecutionState::with_info(Phase::FailedExecFailed, cause));
            }
        }
    }

    /// The instance is gone, and the newest wish comes in its place.
    fn removed(&mut self) {
        let next = self.slot.take(Some(&self.instance));
        let is_kept = matches!(&next, Some(Wish::Run(order)) if self.keeps_control_interface(order));
        self.end_control_interface_unless(is_kept);
        let comes_back = matches!(&next, Some(Wish::Run(order)) if order.added.instance == self.instance);
        if comes_back {
            self.remove_files();
        } else {
            self.remove_folder(&self.folder());
        }
        if self.removal.counts_for(&self.instance) && !comes_back {
            self.slot.hold(&self.instance); // Its end is reported with that of the last container.
        } else {
            self.report(ExecutionState::plain(Phase::Removed));
        }
        match next {
            Some(Wish::Run(order)) => self.create(*order),
            Some(Wish::End) | None => (self.is_empty, self.wanted) = (true, None),
        }
    }

    fn remove_files(&self) {
        self.remove_folder(&self.files_folder());
        if self.control.is_none() {
            self.remove_folder(&self.control_folder(&self.instance));
        }
    }

    /// Whether the old container is only stopped, because that of the new instance is there already.
    fn only_stops(&self, after: &AfterDelete) -> bool {
        let was_started = self.container.is_some() && self.starts > 0 && self.leftovers == Leftovers::None;
        let next = self.next.as_ref().filter(|next| was_started && next.has_container());
        matches!(after, AfterDelete::Wish) && next.is_some_and(|next| self.is_about_to_start(&next.added))
    }

    /// Stops the old container. From then on it is none of the instance any more.
    // [impl->swdd~agent-switches-to-prepared~1]
    fn stop_old(&mut self) -> Result<(), RuntimeError> {
        let (Some(engine), Some(id)) = (&mut self.engine, &self.container) else { return Ok(()) };
        engine.connector.stop(id)?;
        self.container.take().into_iter().for_each(|id| self.remove_later(id));
        Ok(())
    }

    // [impl->swdd~agent-workload-control-loop-delete-broken-allowed~1]
    // [impl->swdd~agent-workload-control-loop-update-broken-allowed~1]
    fn delete_container(&mut self, after: &AfterDelete) -> Result<(), RuntimeError> {
        let Some(engine) = &mut self.engine else { return Ok(()) };
        if let Some(id) = &self.container {
            match after {
                AfterDelete::Restart => engine.connector.delete_ended(id)?,
                // One call less; if it runs again all the same, it is stopped.
                AfterDelete::Wish if self.lifecycle.has_ended() => engine.connector.delete_ended(id)?,
                AfterDelete::Wish | AfterDelete::NotReady(_) | AfterDelete::Failed(_) => engine.connector.delete(id)?,
            }
        }
        // What may be left is never given up: it would run for ever unnoticed.
        if self.leftovers != Leftovers::None {
            return self.delete_leftovers();
        }
        if self.container.is_none() {
            debug!("Workload '{}' already gone.", self.instance.workload);
        }
        Ok(())
    }

    pub(super) fn expect_leftovers(&mut self) {
        if self.leftovers != Leftovers::AnyInstance {
            self.leftovers = Leftovers::Likely;
        }
    }

    fn delete_leftovers(&mut self) -> Result<(), RuntimeError> {
        let Some(engine) = &mut self.engine else { return Ok(()) };
        let ids = if self.leftovers == Leftovers::AnyInstance {
            let mut found = match engine.connector.list() {
                // Its program is not there, so nothing can have been made with it.
                Err(RuntimeError::NotInstalled(_)) => Vec::new(),
                listed => listed?,
            };
            found.retain(|found| found.instance.workload == self.instance.workload);
            leave_strangers_of(&engine.connector, &mut found, self.wanted.as_deref());
            found.into_iter().map(|container| container.id).collect()
        } else {
            engine.connector.find(&self.instance, self.wanted.as_deref())?
        };
        for id in ids {
            if self.container.as_ref() != Some(&id) {
                engine.connector.delete(&id)?;
            }
        }
        self.leftovers = Leftovers::None;
        Ok(())
    }

    /// Keeps the container's id and what was to follow, and tries again later: a container that is left alone would
    /// run for ever unnoticed.
    // [impl->swdd~agent-workload-control-loop-delete-failed-allows-retry~1]
    // [impl->swdd~agent-workload-control-loop-update-delete-failed-allows-retry~1]
    fn on_delete_failed(&mut self, after: AfterDelete, error: &RuntimeError) {
        let replaced = !matches!(after, AfterDelete::Wish) || self.slot.peek(|_| ()).is_some();
        let verb = if replaced { "update" } else { "stop" };
        warn!("Could not {verb} workload '{}': '{error}'", self.instance.workload);
        let state = self.lifecycle.stopping(ExecutionState::with_info(Phase::StoppingDeleteFailed, error.reason()));
        self.report(state);
        self.failed_deletes = self.failed_deletes.saturating_add(1);
        let at = self.context.clock.now() + retry_delay(self.failed_deletes, &mut self.random);
        self.stage = Stage::DeleteRetryAt(at, after);
    }
}
