//! The states of all workloads: our own with hysteresis, those of other agents as the server
//! reports them.
//!
//! Thread: `scheduler`, which owns it.

use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::names::{InstanceName, Name, of_workload};
use ankaios_model::workload::{AddCondition, DeleteCondition};
use std::collections::{BTreeMap, BTreeSet};

/// States by instance, so that those of a workload are beside each other.
// [impl->swdd~agent-manager-stores-all-workload-states~1]
#[derive(Debug)]
pub(crate) struct WorkloadStateStore {
    pub(crate) agent: Name,
    entries: BTreeMap<InstanceName, Entry>,
}

#[derive(Debug)]
struct Entry {
    state: ExecutionState,
    /// The state of the container while a requested stop hides it.
    hidden: Option<ExecutionState>,
    /// Of another agent, from before the connection was lost.
    stale: bool,
}

impl WorkloadStateStore {
    /// No state yet; instances of `agent` are our own.
    pub(crate) fn new(agent: Name) -> Self {
        Self {
            agent,
            entries: BTreeMap::new(),
        }
    }

    /// Stores a state of an own instance; returns the one to show: while a stop is under way, the
    /// state of the container changes nothing.
    // [impl->swdd~agent-manager-hysteresis_on-workload-states-of-its-workloads~1]
    // [impl->swdd~agent-stores-workload-states-of-its-workloads~1]
    pub(crate) fn set_own(
        &mut self,
        instance: &InstanceName,
        incoming: ExecutionState,
    ) -> ExecutionState {
        let Some(entry) = self.entries.get_mut(instance) else {
            self.set(instance.clone(), incoming.clone());
            return incoming;
        };
        let shown = entry.state.transition(incoming.clone());
        let hidden = if shown != incoming {
            Some(incoming)
        } else if shown.phase == Phase::StoppingWaitingToStop {
            entry.hidden.take().or_else(|| Some(entry.state.clone()))
        } else {
            None
        };
        if shown.phase == Phase::Removed {
            self.entries.remove(instance);
        } else {
            (entry.state, entry.hidden) = (shown.clone(), hidden);
        }
        shown
    }

    /// The workload need not stop any more: returns the state of its container. `None` when it was
    /// not to stop.
    pub(crate) fn cancel_stop(&mut self, instance: &InstanceName) -> Option<ExecutionState> {
        let entry = self.entries.get_mut(instance)?;
        entry.state = entry.hidden.take()?;
        Some(entry.state.clone())
    }

    /// Stores a state of an instance on another agent; one of our own is ignored. Of its text only
    /// what decides about our workloads is kept: a hostile agent must not fill the memory of all
    /// others.
    pub(crate) fn set_foreign(&mut self, report: WorkloadState) {
        if report.instance.agent != self.agent {
            self.set(report.instance, report.state.without_text());
        }
    }

    /// The connection was lost: states of other agents may be wrong from now on.
    pub(crate) fn mark_foreign_stale(&mut self) {
        for (instance, entry) in &mut self.entries {
            entry.stale = instance.agent != self.agent;
        }
    }

    /// Drops states that the server has not repeated since the connection was lost; returns their
    /// workloads.
    pub(crate) fn drop_stale(&mut self) -> BTreeSet<Name> {
        let dropped = self.entries.extract_if(.., |_, entry| entry.stale);
        dropped.map(|(instance, _)| instance.workload).collect()
    }

    /// The states of all own instances.
    pub(crate) fn own(&self) -> Vec<WorkloadState> {
        let own = self
            .entries
            .iter()
            .filter(|(instance, _)| instance.agent == self.agent);
        own.map(|(instance, entry)| WorkloadState::new(instance.clone(), entry.state.clone()))
            .collect()
    }

    /// How many own instances there are in which state, for people:
    /// `3 workloads: 2 running, 1 failed`.
    pub(crate) fn summary(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, entry) in self
            .entries
            .iter()
            .filter(|(instance, _)| instance.agent == self.agent)
        {
            *counts.entry(entry.state.phase.state()).or_default() += 1;
        }
        let total: usize = counts.values().sum();
        let parts: Vec<String> = counts
            .iter()
            .map(|(state, count)| format!("{count} {}", state.to_lowercase()))
            .collect();
        match total {
            0 => "no workloads".to_owned(),
            1 => format!("1 workload: {}", parts.join(", ")),
            _ => format!("{total} workloads: {}", parts.join(", ")),
        }
    }

    /// The state of an instance.
    pub(crate) fn get(&self, instance: &InstanceName) -> Option<&ExecutionState> {
        self.entries.get(instance).map(|entry| &entry.state)
    }

    /// Those of these dependencies that are not met: of none of them, an instance that counts has
    /// reached the state.
    // [impl->swdd~workload-ready-to-create-on-fulfilled-dependencies~1]
    pub(crate) fn unmet(
        &self,
        dependencies: &BTreeMap<String, AddCondition>,
        counts: impl Fn(&InstanceName) -> bool,
    ) -> BTreeMap<String, AddCondition> {
        let mut unmet = BTreeMap::new();
        for (name, condition) in dependencies {
            let mut entries = of_workload(&self.entries, name);
            if !entries.any(|(instance, entry)| {
                entry.state.phase.fulfils_add(*condition) && counts(instance)
            }) {
                unmet.insert(name.clone(), *condition);
            }
        }
        unmet
    }

    /// Whether a workload that `dependent` depends on may stop: all instances of that are far
    /// enough.
    // [impl->swdd~workload-ready-to-delete-on-fulfilled-dependencies~1]
    pub(crate) fn may_stop(&self, dependent: &str, condition: DeleteCondition) -> bool {
        of_workload(&self.entries, dependent)
            .all(|(_, entry)| entry.state.fulfils_delete(condition))
    }

    /// As [`Self::may_stop`], whatever it is that its end has to wait for.
    pub(crate) fn is_stopping(&self, dependent: &str, condition: DeleteCondition) -> bool {
        let mut phases = of_workload(&self.entries, dependent).map(|(_, entry)| entry.state.phase);
        phases.all(|phase| phase.state() == "Stopping" || phase.fulfils_delete(condition))
    }

    /// Whether no own instance of the workload has a container any more, as far as is known.
    pub(crate) fn has_no_container(&self, workload: &str) -> bool {
        let mut own = of_workload(&self.entries, workload)
            .filter(|(instance, _)| instance.agent == self.agent);
        own.all(|(_, entry)| entry.state.phase == Phase::PendingWaitingToStart)
    }

    fn set(&mut self, instance: InstanceName, state: ExecutionState) {
        if state.phase == Phase::Removed {
            self.entries.remove(&instance);
        } else {
            self.entries.insert(
                instance,
                Entry {
                    state,
                    hidden: None,
                    stale: false,
                },
            );
        }
    }
}

/// What tests of other files and crates look at.
#[cfg(debug_assertions)]
impl WorkloadStateStore {
    /// All states.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&InstanceName, &ExecutionState)> {
        self.entries
            .iter()
            .map(|(instance, entry)| (instance, &entry.state))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ankaios_model::reason::{GONE_PREFIX, INACTIVE_PREFIX, Reason};

    fn instance(workload: &str, agent: &str) -> InstanceName {
        InstanceName::with_id(workload, "id", agent)
    }

    fn plain(phase: Phase) -> ExecutionState {
        ExecutionState::plain(phase)
    }

    fn foreign(workload: &str, phase: Phase) -> WorkloadState {
        WorkloadState::new(instance(workload, "B"), plain(phase))
    }

    // [utest->swdd~agent-manager-hysteresis_on-workload-states-of-its-workloads~1]
    // [utest->swdd~agent-stores-workload-states-of-its-workloads~1]
    #[test]
    fn a_requested_stop_hides_what_the_runtime_says_until_it_is_done() {
        let own = instance("w", "A");
        for stop in [
            Phase::StoppingRequestedAtRuntime,
            Phase::StoppingWaitingToStop,
        ] {
            let mut store = WorkloadStateStore::new("A".into());
            for (incoming, shown) in [
                (Phase::Running, Phase::Running),
                (stop, stop),
                (Phase::Running, stop),
                (Phase::FailedLost, stop),
                (Phase::StoppingDeleteFailed, Phase::StoppingDeleteFailed),
                (Phase::Running, Phase::Running),
                (Phase::Removed, Phase::Removed),
            ] {
                assert_eq!(
                    store.set_own(&own, plain(incoming)),
                    plain(shown),
                    "{incoming}"
                );
            }
            assert_eq!(store.get(&own), None);
        }
    }

    #[test]
    fn a_cancelled_stop_shows_what_the_runtime_said_last() {
        let own = instance("w", "A");
        for (said_meanwhile, shown) in [
            (None, Phase::Running),
            (Some(Phase::Succeeded), Phase::Succeeded),
        ] {
            let mut store = WorkloadStateStore::new("A".into());
            store.set_own(&own, plain(Phase::Running));
            store.set_own(&own, plain(Phase::StoppingWaitingToStop));
            store.set_own(&own, plain(Phase::StoppingWaitingToStop));
            if let Some(phase) = said_meanwhile {
                store.set_own(&own, plain(phase));
            }
            assert_eq!(store.cancel_stop(&own), Some(plain(shown)));
            assert_eq!(store.cancel_stop(&own), None);
            assert_eq!(store.own(), [WorkloadState::new(own.clone(), plain(shown))]);
        }
    }

    // [utest->swdd~agent-manager-stores-all-workload-states~1]
    #[test]
    fn foreign_states_are_stored_without_hysteresis_and_ours_are_not_for_others_to_tell() {
        let mut store = WorkloadStateStore::new("A".into());
        store.set_foreign(foreign("w", Phase::StoppingRequestedAtRuntime));
        store.set_foreign(foreign("w", Phase::Running));
        assert_eq!(store.get(&instance("w", "B")), Some(&plain(Phase::Running)));
        store.set_foreign(WorkloadState::new(
            instance("w", "A"),
            plain(Phase::Running),
        ));
        assert_eq!(store.own(), []);
        store.set_foreign(foreign("w", Phase::Removed));
        assert_eq!(store.get(&instance("w", "B")), None);
    }

    #[test]
    fn foreign_states_keep_their_reason_and_no_text() {
        let mut store = WorkloadStateStore::new("A".into());
        for (phase, info, kept) in [
            (Phase::FailedExecFailed, "x".repeat(4096), Reason::None),
            (
                Phase::StoppingRequestedAtRuntime,
                format!("{GONE_PREFIX}{}", "x".repeat(4096)),
                Reason::Gone,
            ),
            (
                Phase::PendingWaitingToStart,
                format!("{INACTIVE_PREFIX}no camera"),
                Reason::Inactive,
            ),
        ] {
            let state = ExecutionState::from_text(phase, info);
            store.set_foreign(WorkloadState::new(instance("w", "B"), state.clone()));
            let held = store.get(&instance("w", "B")).unwrap();
            assert_eq!(*held, plain(phase).because(kept));
            assert_eq!(held.is_inactive(), state.is_inactive());
            let condition = DeleteCondition::NotPendingNorRunning;
            assert_eq!(
                held.fulfils_delete(condition),
                state.fulfils_delete(condition)
            );
            store.set_own(&instance("w", "A"), state.clone());
            assert_eq!(
                store.get(&instance("w", "A")),
                Some(&state),
                "our own keep their texts"
            );
            store.set_own(&instance("w", "A"), plain(Phase::Removed));
        }
    }

    #[test]
    fn what_the_server_does_not_repeat_after_a_reconnect_is_dropped() {
        let mut store = WorkloadStateStore::new("A".into());
        store.set_own(&instance("own", "A"), plain(Phase::Running));
        store.set_foreign(foreign("gone", Phase::Running));
        store.set_foreign(foreign("still", Phase::Running));
        assert!(store.drop_stale().is_empty());
        store.mark_foreign_stale();
        store.set_foreign(foreign("still", Phase::Succeeded));
        assert_eq!(store.drop_stale(), BTreeSet::from(["gone".into()]));
        assert_eq!(store.get(&instance("gone", "B")), None);
        assert_eq!(
            store.get(&instance("still", "B")),
            Some(&plain(Phase::Succeeded))
        );
        assert_eq!(store.own().len(), 1);
    }

    // [utest->swdd~workload-ready-to-create-on-fulfilled-dependencies~1]
    // [utest->swdd~workload-ready-to-delete-on-fulfilled-dependencies~1]
    #[test]
    fn one_instance_is_enough_to_start_and_all_must_agree_to_stop() {
        let add = BTreeMap::from([("d".to_owned(), AddCondition::Running)]);
        for (states, may_start, may_stop) in [
            (vec![], false, true),
            (vec![("A", Phase::Running)], true, false),
            (vec![("A", Phase::Succeeded)], false, true),
            (
                vec![("A", Phase::Succeeded), ("B", Phase::Running)],
                true,
                false,
            ),
            (
                vec![("A", Phase::Succeeded), ("B", Phase::PendingWaitingToStart)],
                false,
                true,
            ),
            (
                vec![("A", Phase::Succeeded), ("B", Phase::PendingStarting)],
                false,
                false,
            ),
            (vec![("B", Phase::StoppingRequestedAtRuntime)], false, true),
            (vec![("B", Phase::StoppingWaitingToStop)], false, false),
            (vec![("B", Phase::AgentDisconnected)], false, true),
        ] {
            let mut store = WorkloadStateStore::new("A".into());
            for (agent, phase) in &states {
                if *agent == "A" {
                    store.set_own(&instance("d", agent), plain(*phase));
                } else {
                    store.set_foreign(WorkloadState::new(instance("d", agent), plain(*phase)));
                }
            }
            assert_eq!(
                store.unmet(&add, |_| true).is_empty(),
                may_start,
                "{states:?}"
            );
            assert_eq!(
                store.may_stop("d", DeleteCondition::NotPendingNorRunning),
                may_stop,
                "{states:?}"
            );
            assert!(store.unmet(&BTreeMap::new(), |_| true).is_empty());
        }
    }
}
