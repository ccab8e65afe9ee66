//! What is shown of instances that are being staged. These states are the server's own: no agent knows of the new
//! instances, so none receives them, and the loss of an agent changes nothing.
//!
//! Thread: `server`; part of [`ServerLoop`].

use super::GuardedUpdates;
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::names::InstanceName;
use crate::server::ServerLoop;
use crate::server::connections::removed;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// From so many staged instances on not every report is shown at once: that would be quadratic.
const MANY: usize = 64;
/// The texts of many are shown at most so often.
const MANY_INTERVAL: Duration = Duration::from_secs(1);

impl GuardedUpdates {
    /// Whether the state of this instance is the server's own.
    pub fn is_placeholder(&self, instance: &InstanceName) -> bool {
        self.placeholders.contains(instance)
    }

    /// An agent has reported a state of this instance: it knows it, or does not have it any more.
    pub fn reported(&mut self, instance: &InstanceName) {
        // One that is staged may be in force as well, or an earlier one still stops.
        self.has_progress |=
            self.placeholders.remove(instance) || self.open.values().any(|open| open.staging.has(instance));
    }

    /// The instance is sent to its agent, which reports its state from now on, or has no state any more. Returns whether
    /// that was the server's own.
    pub fn end_placeholder(&mut self, instance: &InstanceName) -> bool {
        let was_own = self.placeholders.remove(instance);
        self.is_outdated |= was_own;
        was_own
    }

    /// These states without those that no agent knows.
    pub fn as_reported(&self, mut states: Vec<WorkloadState>) -> Vec<WorkloadState> {
        if !self.placeholders.is_empty() {
            states.retain(|state| !self.placeholders.contains(&state.instance));
        }
        states
    }
}

impl ServerLoop {
    /// The states of a lost agent have become unknown: those that are not its states are as they were.
    pub(in crate::server) fn keep_placeholders(&mut self, lost: &mut Vec<(InstanceName, ExecutionState)>) {
        lost.retain(|(instance, before)| {
            let is_own = self.guarded.placeholders.contains(instance);
            if is_own {
                self.workloads.states.set(instance, before.clone());
            }
            !is_own
        });
    }

    /// Shows what is outdated. Where each report may change the texts of many, all of them are shown from time to time.
    pub(super) fn show_in_time(&mut self, now: Instant) {
        let guarded = &mut self.guarded;
        let is_due = guarded.is_outdated || guarded.staging_due.is_some_and(|at| at <= now);
        match guarded.shown_many_at.map(|at| at + MANY_INTERVAL).filter(|next| !is_due && *next > now) {
            Some(next) => {
                guarded.has_progress = false;
                guarded.staging_due = guarded.staging_due.map_or(Some(next), |due| Some(due.min(next)));
            }
            None => self.refresh_shown(),
        }
    }

    /// Shows how far all staged instances are, and those that are not staged any more as they are.
    pub(super) fn refresh_shown(&mut self) {
        let now = self.now();
        let guarded = &mut self.guarded;
        (guarded.is_outdated, guarded.has_progress) = (false, false);
        let staging = guarded.open.values().filter(|open| open.is_staging());
        guarded.staging_due = staging.clone().filter_map(|open| open.staging.due(now)).min();
        let infos: BTreeMap<InstanceName, String> = staging.flat_map(|open| open.staging.infos(now)).collect();
        guarded.shown_many_at = (infos.len() >= MANY).then_some(now);
        if infos.is_empty() && guarded.placeholders.is_empty() {
            return;
        }
        let mut old = self.end_placeholders(|placeholder| !infos.contains_key(placeholder));
        for (instance, text) in infos {
            let known = self.workloads.states.get(&instance).cloned();
            // What an agent reports is shown as it is: an instance of the same name is in force, or an earlier one still stops.
            let is_of_agent = known.is_some() || self.workloads.is_wanted(&instance);
            if is_of_agent && !self.guarded.is_placeholder(&instance) {
                continue;
            }
            self.guarded.placeholders.insert(instance.clone());
            let state = ExecutionState::with_info(Phase::PendingInitial, text);
            if known.as_ref() != Some(&state) {
                old.push((instance.clone(), self.workloads.states.set(&instance, state)));
            }
        }
        let now = old.iter().filter_map(|(instance, _)| {
            let state = self.workloads.states.get(instance)?;
            Some(WorkloadState::new(instance.clone(), state.clone()))
        });
        let now: Vec<WorkloadState> = now.collect();
        self.peers.broadcast_to_clis(&now);
        self.publish_states(old);
    }

    /// An instance that is not staged any more and that no agent has is finished. Returns the states before.
    fn end_placeholders(
        &mut self,
        is_over: impl Fn(&InstanceName) -> bool,
    ) -> Vec<(InstanceName, Option<ExecutionState>)> {
        let placeholders = self.guarded.placeholders.iter();
        let over: Vec<InstanceName> = placeholders.filter(|placeholder| is_over(placeholder)).cloned().collect();
        let (mut old, mut finished) = (Vec::new(), Vec::new());
        for instance in over {
            self.guarded.placeholders.remove(&instance);
            let is_wanted = self.workloads.is_wanted(&instance);
            finished.extend((!is_wanted).then(|| removed(instance.clone())));
            let phase = if is_wanted { Phase::PendingInitial } else { Phase::Removed };
            old.push((instance.clone(), self.workloads.states.set(&instance, ExecutionState::plain(phase))));
        }
        for removed in &finished {
            self.end_requests_of_gone(&removed.instance);
        }
        self.peers.broadcast_to_clis(&finished);
        old
    }
}
