//! The part with the desired state, the effective workloads and their execution states, and with
//! hooks, modes, restarts, stops and deletes.
//!
//! An update passes [`desired_change`], which applies its masks, [`checks`], which checks and
//! renders it, hooks if there are some, and [`commit`], which makes it the desired state.
//! [`reports`] takes the states that agents report. [`Workloads`] is the state itself.
//!
//! Thread: `server`; a plain value owned by [`crate::ServerLoop`]. It changes its own fields only;
//! the consequences for peers, subscribers, guarded updates and the disk are
//! [`Effects`](crate::effects::Effects).

mod checks;
mod commit;
mod deletes;
mod desired_change;
mod essential;
mod modes;
mod plan;
mod reports;
mod restarts;
mod stops;
mod templates;
mod timings;
mod workloads;

pub(crate) use checks::{CheckedUpdate, Failed, UpdateSource};
pub(crate) use commit::AcceptedUpdate;
pub(crate) use desired_change::{DesiredChange, Tags, UpdateError, requested_change};
pub(crate) use modes::Modes;
pub(crate) use plan::{EffectiveDiff, Revision};
pub(crate) use templates::RenderError;
#[cfg(test)]
pub(crate) use workloads::{
    DELETED_OF_WORKLOAD, NEVER_WANTED, NEVER_WANTED_OF_WORKLOAD, UNWANTED_INFO_MAX,
};
pub(crate) use workloads::{Workloads, removed};

use crate::effects::Effects;
use crate::history::History;
use crate::mutating_hooks::{HookOutcome, MutatingHooks};
use crate::settings::ModeSettings;
use crate::subscriptions::ChangedPaths;
use ankaios_model::complete_state::DesiredState;
use ankaios_model::names::Name;
use crossbeam_channel::{Receiver, never};
use deletes::Deletes;
use essential::OlderUpdates;
use reports::AgentConnection;
use std::collections::BTreeMap;
use std::time::Instant;
use timings::Timings;

/// Results of updates since the start.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct UpdateCounts {
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
}

/// The desired state, the effective workloads and their states.
#[derive(Default)]
pub(crate) struct Updates {
    workloads: Workloads,
    deletes: Deletes,
    /// When instances were accepted and started.
    timings: Timings,
    /// The last changes of states.
    history: History,
    /// Connected agents.
    agents: BTreeMap<Name, AgentConnection>,
    hooks: Option<MutatingHooks>,
    /// Updates that came before the server switched the mode by itself.
    older_updates: OlderUpdates,
    counts: UpdateCounts,
    /// Whether a client has subscribed to changes.
    is_observed: bool,
}

impl Updates {
    /// Sets the hooks that may change or refuse updates of workloads. Call it before the first
    /// update.
    pub(crate) fn set_hooks(&mut self, hooks: MutatingHooks) {
        self.workloads.before_hooks = Some(self.workloads.effective.clone());
        self.hooks = Some(hooks);
    }

    /// Lets a config item decide which workloads run. Call it before the first update.
    pub(crate) fn set_modes(&mut self, settings: ModeSettings) {
        self.workloads.modes = Some(Modes::new(settings));
        self.workloads.placed = Some(self.workloads.effective.clone());
    }

    /// Sets whether changes are collected for subscribers.
    pub(crate) fn observe(&mut self, is_observed: bool) {
        self.is_observed = is_observed;
        self.workloads.states.observe(is_observed);
    }

    /// The workloads, for reading.
    pub(crate) fn workloads(&self) -> &Workloads {
        &self.workloads
    }

    /// The deletes that have not ended, for reading.
    pub(crate) fn deletes(&self) -> &Deletes {
        &self.deletes
    }

    /// The times of all instances, for reading.
    pub(crate) fn timings(&self) -> &Timings {
        &self.timings
    }

    /// The last changes of states, for reading.
    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    /// The last changes of states, for events of other parts.
    pub(crate) fn history_mut(&mut self) -> &mut History {
        &mut self.history
    }

    /// The numbers of accepted and refused updates.
    pub(crate) fn counts(&self) -> UpdateCounts {
        self.counts
    }

    /// Counts an update that has its result.
    pub(crate) fn count(&mut self, is_accepted: bool) {
        if is_accepted {
            self.counts.accepted += 1;
        } else {
            self.counts.refused += 1;
        }
    }

    /// Adds the states that have changed since the last call to `changes`.
    pub(crate) fn add_changed_states(&mut self, changes: &mut ChangedPaths) {
        let states = &mut self.workloads.states;
        changes.states(&states.take_changed(), states);
    }

    // -------------------------------------------------------------------- hooks

    pub(crate) fn has_hooks(&self) -> bool {
        self.hooks.is_some()
    }

    /// The channel of the outcomes of hooks.
    pub(crate) fn hook_outcomes(&self) -> Receiver<HookOutcome> {
        match &self.hooks {
            Some(hooks) => hooks.outcomes().clone(),
            None => never(),
        }
    }

    /// Gives an update to the hooks, if there are some and it changes workloads. Returns whether it
    /// did.
    pub(crate) fn start_hooks(&self, checked: &CheckedUpdate) -> bool {
        let Some(hooks) = &self.hooks else {
            return false;
        };
        if checked.revisions.is_empty() {
            return false;
        }
        hooks.start_plan(self.workloads.difference(&checked.revisions).message());
        true
    }

    // -------------------------------------------------------------------- start

    /// Makes the state of a start the desired one. Waits for the hooks, since no agent is connected
    /// yet.
    ///
    /// # Errors
    /// [`UpdateError`] with the reason of the refusal.
    pub(crate) fn start(
        &mut self,
        desired: DesiredState,
        source: UpdateSource,
        now: Instant,
        effects: &mut Effects,
    ) -> Result<(), UpdateError> {
        let change = DesiredChange::between(&self.workloads.desired, desired);
        let mut checked = self.workloads.check(change, source)?;
        if let Some(hooks) = &self.hooks
            && !checked.revisions.is_empty()
        {
            let plan = self.workloads.difference(&checked.revisions).message();
            checked = self.workloads.hooked(checked, hooks.run(plan))?;
        }
        self.commit(checked, ChangedPaths::default(), now, effects);
        Ok(())
    }
}

/// What tests of other files change.
#[cfg(test)]
impl Updates {
    pub(crate) fn timings_mut(&mut self) -> &mut Timings {
        &mut self.timings
    }
}

#[cfg(test)]
mod tests;
