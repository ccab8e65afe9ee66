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

/// How the state of an instance is shown.
#[derive(Debug)]
pub enum Shown {
    /// It is the server's own.
    Own,
    /// The text stands before the info of what its agent reports: an instance of the same name runs.
    Before {
        /// The text.
        text: String,
        /// What the agent reported.
        reported: ExecutionState,
    },
}

fn with_text(text: &str, reported: &ExecutionState) -> ExecutionState {
    let info = &reported.additional_info;
    let separator = if info.is_empty() { "" } else { "; " };
    ExecutionState::with_info(reported.phase, format!("{text}{separator}{info}"))
}

impl GuardedUpdates {
    /// Whether the state of this instance is the server's own.
    pub fn is_own(&self, instance: &InstanceName) -> bool {
        matches!(self.shown.get(instance), Some(Shown::Own))
    }

    /// How a state that an agent reports is shown.
    pub fn as_shown(&mut self, instance: &InstanceName, state: &ExecutionState) -> ExecutionState {
        match self.shown.get_mut(instance) {
            Some(Shown::Before { text, reported }) if state.phase != Phase::Removed => {
                *reported = state.clone();
                with_text(text, state)
            }
            Some(_) => {
                // Its agent knows it, or does not have it any more.
                self.shown.remove(instance);
                self.has_progress = true;
                state.clone()
            }
            None => {
                // It is in force and had no state for a moment, or an earlier one still stops.
                self.has_progress |= self.open.values().any(|open| open.staging.has(instance));
                state.clone()
            }
        }
    }

    /// The instance is sent to its agent, which reports its state from now on. Returns whether that was the server's own.
    pub fn begins(&mut self, instance: &InstanceName) -> bool {
        let was_own = self.is_own(instance);
        if was_own {
            self.show_no_more(instance);
        }
        was_own
    }

    /// The instance has no state any more, or its agent knows it.
    pub fn show_no_more(&mut self, instance: &InstanceName) {
        self.is_outdated |= self.shown.remove(instance).is_some();
    }

    /// These states as agents receive them.
    pub fn as_reported(&self, mut states: Vec<WorkloadState>) -> Vec<WorkloadState> {
        if !self.shown.is_empty() {
            states.retain_mut(|WorkloadState { instance, state }| match self.shown.get(instance) {
                Some(Shown::Own) => false,
                Some(Shown::Before { reported, .. }) => {
                    *state = reported.clone();
                    true
                }
                None => true,
            });
        }
        states
    }
}

impl ServerLoop {
    /// The states of a lost agent have become unknown: those that are not its states are as they were.
    pub(in crate::server) fn keep_shown(&mut self, lost: &mut Vec<(InstanceName, ExecutionState)>) {
        let states = &mut self.workloads.states;
        let shown = &mut self.guarded.shown;
        if shown.is_empty() {
            return;
        }
        lost.retain(|(instance, before)| match shown.get_mut(instance) {
            Some(Shown::Own) => {
                states.set(instance, before.clone());
                false
            }
            Some(Shown::Before { text, reported }) => {
                *reported = ExecutionState::plain(Phase::AgentDisconnected);
                states.set(instance, with_text(text, reported));
                true
            }
            None => true,
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
        if infos.is_empty() && guarded.shown.is_empty() {
            return;
        }
        let mut old = self.stop_showing(|shown| !infos.contains_key(shown));
        for (instance, text) in infos {
            let (known, is_wanted) =
                (self.workloads.states.get(&instance).cloned(), self.workloads.is_wanted(&instance));
            let state = match (self.guarded.shown.get_mut(&instance), &known) {
                (None, Some(_)) if !is_wanted => continue, // An earlier one still stops.
                // In force, and its agent has reported the end of an earlier one: it reports this one as well.
                (None, None) if is_wanted => continue,
                (None, Some(reported)) => {
                    let state = with_text(&text, reported);
                    let reported = reported.clone();
                    self.guarded.shown.insert(instance.clone(), Shown::Before { text, reported });
                    state
                }
                (Some(Shown::Before { text: shown, reported }), _) => {
                    let state = with_text(&text, reported);
                    *shown = text;
                    state
                }
                (shown, _) => {
                    if shown.is_none() {
                        self.guarded.shown.insert(instance.clone(), Shown::Own);
                    }
                    ExecutionState::with_info(Phase::PendingInitial, text)
                }
            };
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

    /// States that are not shown otherwise any more are as agents reported them, and an instance that no agent has is
    /// finished. Returns the states before.
    fn stop_showing(&mut self, is_over: impl Fn(&InstanceName) -> bool) -> Vec<(InstanceName, Option<ExecutionState>)> {
        let over: Vec<InstanceName> = self.guarded.shown.keys().filter(|shown| is_over(shown)).cloned().collect();
        let (mut old, mut finished) = (Vec::new(), Vec::new());
        for instance in over {
            let state = match self.guarded.shown.remove(&instance) {
                Some(Shown::Before { reported, .. }) => reported,
                _ if self.workloads.is_wanted(&instance) => ExecutionState::plain(Phase::PendingInitial),
                _ => {
                    finished.push(removed(instance.clone()));
                    ExecutionState::plain(Phase::Removed)
                }
            };
            old.push((instance.clone(), self.workloads.states.set(&instance, state)));
        }
        for removed in &finished {
            self.end_requests_of_gone(&removed.instance);
        }
        self.peers.broadcast_to_clis(&finished);
        old
    }
}
