//! Guarded updates in the loop: decisions of [`Rollouts`] become commits of
//! [`Updates`](crate::updates::Updates), messages and writes of the state.
//!
//! Thread: `server`; part of [`ServerLoop`].

use super::ServerLoop;
use super::effects::{Effect, Effects};
use super::rollouts::accept::{OpenedUpdate, RequestDecision};
use super::rollouts::outcome::{DueStep, RolloutStep, Undo};
use super::sessions::Requester;
use super::state_store::{Stored, StoredUpdates};
use crate::updates::{AcceptedUpdate, CheckedUpdate, UpdateError};
use ankaios_model::health_window::Failure;
use ankaios_model::names::Name;
use ankaios_platform::logging::log_source;

impl ServerLoop {
    /// Commits a checked update of a request, now or once it is completely staged.
    ///
    /// # Errors
    /// The update is refused, see [`Rollouts::accept`](super::rollouts::Rollouts::accept).
    pub(super) fn accept(
        &mut self,
        checked: CheckedUpdate,
        requester: &Requester,
    ) -> Result<AcceptedUpdate, UpdateError> {
        let now = self.now();
        let decision = self.rollouts.accept(
            checked,
            requester,
            self.sessions.rights(),
            &self.updates,
            now,
        )?;
        match decision {
            RequestDecision::Plain(checked) => Ok(self.commit(checked)),
            RequestDecision::Withdrawn(checked) => {
                let accepted = self.commit(checked);
                self.send_lists();
                Ok(accepted)
            }
            RequestDecision::Opened(opened) => {
                let number = opened.number();
                let difference = opened.difference(&self.updates);
                let mut accepted = self.switch_or_stage(*opened);
                self.rollouts.add_staged(number, difference, &mut accepted);
                Ok(accepted)
            }
        }
    }

    /// Switches an open update if all of it is staged, otherwise begins its staging.
    fn switch_or_stage(&mut self, opened: OpenedUpdate) -> AcceptedUpdate {
        let now = self.now();
        let switch = self.rollouts.switch_or_stage(opened, &self.updates, now);
        // First, the disk: before an agent receives anything of the update.
        if switch.is_stored_first {
            self.store_and_wait();
        }
        // Then, the commit, which sends agents their plans.
        let accepted = self.commit(switch.commit);
        if let Some(window) = switch.window {
            self.rollouts.begin_window(&window, &self.updates, now);
        }
        // Finally, the lists. Before the plan an agent would discard the prepared instances.
        self.send_lists();
        accepted
    }

    /// Sends agents the lists of instances that they have to prepare.
    fn send_lists(&mut self) {
        let mut effects = Effects::default();
        self.rollouts.send_lists(&mut effects);
        self.apply(effects);
    }

    /// Takes the due steps of open updates. Returns whether there was one: then others may follow.
    pub(super) fn settle_updates(&mut self) -> bool {
        let due = self.rollouts.take_due(self.now());
        let has_steps = !due.steps.is_empty();
        for step in due.steps {
            self.take_step(step);
        }
        // After the last step: each of them may change the shown states.
        if !has_steps && due.has_news {
            self.show_staged(due.is_show_due);
        }
        if self.rollouts.is_unsaved() {
            self.store_state();
        }
        // A step may open or end an update, so agents are notified after the last one.
        if !has_steps {
            let mut effects = Effects::default();
            self.rollouts.send_open(&mut effects);
            self.apply(effects);
        }
        has_steps
    }

    /// Takes one step of an open update.
    fn take_step(
        &mut self,
        DueStep {
            number,
            source,
            step,
        }: DueStep,
    ) {
        let _source = log_source(source);
        match step {
            RolloutStep::Switch => {
                if let Some(opened) = self.rollouts.take_staged(number) {
                    self.switch_or_stage(opened);
                }
            }
            RolloutStep::Undo(failure) => self.undo(number, &failure),
            RolloutStep::End(phase) => self.rollouts.end_window(number, phase, self.now()),
        }
    }

    /// Rolls a failed update back. If that is impossible, an update that is being staged stays
    /// open, and any other one ends with its changes kept.
    fn undo(&mut self, number: u64, failure: &Failure) {
        match self.rollouts.undo(number, failure, &self.updates) {
            Undo::RolledBack { commit, states } => {
                // First, the shown states: those that command lines of earlier versions wait for,
                // and those of its instances, none of which is staged any more.
                let mut effects = Effects::default();
                effects.push(Effect::BroadcastToClis(states));
                self.apply(effects);
                self.show_staged(true);
                // Then, the workloads from before it.
                self.commit(commit);
                self.send_lists();
            }
            Undo::Stuck(names) => {
                self.send_lists();
                self.essential_failed_for_good(&names);
            }
            Undo::Kept => {}
        }
    }

    /// Handles failures of essential workloads whose update cannot be rolled back: they may switch
    /// the mode now.
    fn essential_failed_for_good(&mut self, names: &[Name]) {
        for name in names {
            if let Some(failure) = self.updates.noted_failure(name) {
                self.essential_failed(&failure);
            }
        }
    }

    /// Shows how far agents have prepared staged instances. Unless `is_due`, reports that come
    /// shortly after the last time are shown together later.
    fn show_staged(&mut self, is_due: bool) {
        let Some(infos) = self.rollouts.take_infos(is_due, self.now()) else {
            return;
        };
        let mut effects = Effects::default();
        self.updates.show_staged(&infos, &mut effects);
        self.apply(effects);
    }

    // ------------------------------------------------------------------- on disk

    /// The desired state and all updates, as they are stored.
    pub fn stored(&self) -> Stored {
        Stored {
            desired: self.updates.workloads().desired.clone(),
            updates: self.rollouts.stored(),
            stopped: self.updates.workloads().stopped.clone(),
        }
    }

    /// The state to store before the first client is served, if the start has changed it: a start
    /// counts as a loss for open updates.
    pub fn take_unsaved(&mut self) -> Option<Stored> {
        if !self.rollouts.is_unsaved() {
            return None;
        }
        self.rollouts.note_saved();
        Some(self.stored())
    }

    /// Stores the desired state and all updates, and waits for the disk. Without the wait, a server
    /// that ends during a switch would stage the update again after its restart. If the switch is
    /// the reason of its end, that would never stop.
    fn store_and_wait(&mut self) {
        if self.storage.is_on() {
            self.storage.store_and_wait(self.stored());
            self.rollouts.note_saved();
        }
    }

    /// Stores the desired state and all updates. During the start there is no store yet:
    /// [`Self::take_unsaved`] returns the unstored state then.
    pub(super) fn store_state(&mut self) {
        if self.storage.is_on() {
            self.storage.store(self.stored());
            self.rollouts.note_saved();
        }
    }

    /// Continues stored updates, each in its phase. The stored desired state, which is active
    /// already, has the changes of all of them.
    // [impl->swdd~server-keeps-guarded-updates~1]
    pub(super) fn restore_updates(&mut self, stored: StoredUpdates) {
        let now = self.now();
        for mut record in self.rollouts.restore(stored) {
            // While an update is being staged, agents run the earlier revisions.
            let active = self.rollouts.restage(&mut record, &self.updates, now);
            let mut effects = Effects::default();
            self.updates.activate(active, now, &mut effects);
            self.apply(effects);
            self.rollouts.reopen(record, &self.updates, now);
        }
        while self.settle_updates() {}
    }
}
