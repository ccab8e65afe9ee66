//! The report of a control loop to the scheduler: one value, of which the newest applies.
//!
//! Thread: plain values; made by `wl:<name>`, compared by `scheduler`. They are sent in order, so
//! that others see an instance stop before they see it again.

use crate::events::PreparationReport;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::names::InstanceName;
use litemap::LiteMap;
use std::sync::Arc;

/// All that there is of one workload.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    /// The number of the newest target that the control loop has taken.
    pub(crate) target: u64,
    /// All instances of which there is something. `Pending(Initial)`: this agent has not started
    /// the container, which is prepared, or was found and stays as it is. If it cannot be removed,
    /// the text says why.
    ///
    /// Mostly this is one instance, and there are four copies. A `BTreeMap` would take 800 bytes.
    pub(crate) instances: LiteMap<InstanceName, ExecutionState>,
    /// How far the newest start is.
    pub(crate) start: Option<NewestStart>,
    /// How far the next instance is prepared.
    pub(crate) prepared: Option<PreparationReport>,
    /// How often it was killed until now because memory ran out.
    pub(crate) out_of_memory: u64,
    /// There is nothing of the workload, and nothing to do.
    pub(crate) is_idle: bool,
}

/// The newest start of a control loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewestStart {
    pub(crate) instance: InstanceName,
    pub(crate) progress: StartProgress,
}

/// How far the newest start of an instance is, which decides whether its log can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum StartProgress {
    /// No try has ended yet.
    #[default]
    UnderWay,
    /// The last try failed. There may be further ones.
    Failed,
    /// The container was started. Starts of one control loop have numbers.
    Started(u64),
}

impl Status {
    /// The state of an instance that this agent has started, adopted or is removing.
    pub(crate) fn state_of(&self, instance: &InstanceName) -> Option<&ExecutionState> {
        match self.instances.get(instance) {
            Some(state) if state.phase != Phase::PendingInitial => Some(state),
            _ => None,
        }
    }

    /// How far the start of this instance is.
    pub(crate) fn progress_of(&self, instance: &InstanceName) -> StartProgress {
        match &self.start {
            Some(start) if start.instance == *instance => start.progress,
            _ => StartProgress::UnderWay,
        }
    }

    /// Returns this status as others must see it after the earlier one: a requested stop hides the
    /// state of the container until it has ended or failed.
    // [impl->swdd~agent-manager-hysteresis_on-workload-states-of-its-workloads~1]
    pub(crate) fn with_stops_of(self: Arc<Self>, earlier: &Self) -> Arc<Self> {
        let mut shown = self.clone();
        for (instance, state) in &self.instances {
            let Some(earlier) = earlier.instances.get(instance) else {
                continue;
            };
            let kept = earlier.transition(state.clone());
            if kept != *state {
                let shown = Arc::make_mut(&mut shown);
                shown.instances.insert(instance.clone(), kept);
            }
        }
        shown
    }

    /// Returns the instances that had a state in the earlier status, and have none in this one.
    pub(crate) fn ended_since(&self, earlier: &Self) -> Vec<InstanceName> {
        let mut ended = Vec::new();
        for instance in earlier.instances.keys() {
            if earlier.state_of(instance).is_some() && self.state_of(instance).is_none() {
                ended.push(instance.clone());
            }
        }
        ended
    }

    /// Returns the states that differ from the earlier status. An instance that has ended is
    /// `Removed`.
    pub fn changes_since(&self, earlier: &Self) -> Vec<WorkloadState> {
        let mut changes = Vec::new();
        for instance in self.ended_since(earlier) {
            changes.push(WorkloadState::new(
                instance,
                ExecutionState::plain(Phase::Removed),
            ));
        }
        for instance in self.instances.keys() {
            let state = self.state_of(instance);
            if let Some(state) = state
                && earlier.state_of(instance) != Some(state)
            {
                changes.push(WorkloadState::new(instance.clone(), state.clone()));
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(config: &str) -> InstanceName {
        InstanceName::new("web", config, "A")
    }

    fn status(states: &[(&str, Phase)]) -> Status {
        let mut status = Status::default();
        for (config, phase) in states {
            let state = ExecutionState::plain(*phase);
            status.instances.insert(instance(config), state);
        }
        status
    }

    // [utest->swdd~agent-manager-hysteresis_on-workload-states-of-its-workloads~1]
    #[test]
    fn a_requested_stop_hides_the_state_of_the_container() {
        let stop = Phase::StoppingRequestedAtRuntime;
        let mut shown = Arc::new(status(&[("a", Phase::Running)]));
        for (incoming, expected) in [
            (stop, stop),
            (Phase::Running, stop),
            (Phase::FailedLost, stop),
            (Phase::StoppingDeleteFailed, Phase::StoppingDeleteFailed),
            (Phase::Running, Phase::Running),
        ] {
            let next = Arc::new(status(&[("a", incoming)]));
            shown = next.with_stops_of(&shown);
            assert_eq!(*shown, status(&[("a", expected)]), "{incoming}");
        }
    }

    #[test]
    fn an_instance_that_is_not_listed_any_more_has_ended() {
        let earlier = status(&[
            ("a", Phase::Running),
            ("b", Phase::Running),
            ("c", Phase::PendingInitial),
            ("d", Phase::PendingInitial),
        ]);
        let now = status(&[
            ("a", Phase::Running),
            ("b", Phase::PendingInitial),
            ("d", Phase::PendingStarting),
        ]);
        let mut changes = now.changes_since(&earlier);
        changes.sort_by(|one, other| {
            one.state
                .phase
                .to_string()
                .cmp(&other.state.phase.to_string())
        });
        let expected = [
            (instance("d"), Phase::PendingStarting),
            (instance("b"), Phase::Removed),
        ];
        let expected = expected
            .map(|(instance, phase)| WorkloadState::new(instance, ExecutionState::plain(phase)));
        assert_eq!(changes, expected);
    }
}
