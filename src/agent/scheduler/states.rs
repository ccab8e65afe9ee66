//! The states of all workloads: those of this agent as others must see them, those of other agents
//! as the server reports them.
//!
//! Thread: `scheduler`, which owns it.

use super::restart_with::{ends_run, has_ended};
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::names::{InstanceName, Name, of_workload};
use ankaios_model::workload::{AddCondition, DeleteCondition};
use std::collections::{BTreeMap, BTreeSet};

/// States by instance, so that those of a workload are beside each other.
// [impl->swdd~agent-manager-stores-all-workload-states~1]
#[derive(Debug)]
pub(crate) struct WorkloadStateStore {
    pub(crate) agent: Name,
    entries: BTreeMap<InstanceName, StateEntry>,
}

#[derive(Debug)]
struct StateEntry {
    state: ExecutionState,
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

    /// The states of the own instances of a workload.
    pub(crate) fn own_of(&self, workload: &Name) -> BTreeMap<InstanceName, ExecutionState> {
        let mut own = BTreeMap::new();
        for (instance, entry) in of_workload(&self.entries, workload) {
            if instance.agent == self.agent {
                own.insert(instance.clone(), entry.state.clone());
            }
        }
        own
    }

    /// Stores the states of all own instances of a workload. Returns whether that ends the
    /// workload.
    // [impl->swdd~agent-stores-workload-states-of-its-workloads~1]
    pub(crate) fn replace_own(
        &mut self,
        workload: &Name,
        states: BTreeMap<InstanceName, ExecutionState>,
    ) -> bool {
        let mut has_ended = false;
        for instance in self.own_of(workload).keys() {
            if !states.contains_key(instance) {
                has_ended |= self.forget(instance);
            }
        }
        for (instance, state) in states {
            has_ended |= self.set(instance, state);
        }
        has_ended
    }

    /// Forgets an instance, of which nothing is left. Returns whether that ends its workload: it
    /// may have run until now, and no other instance runs.
    pub(crate) fn forget(&mut self, instance: &InstanceName) -> bool {
        let before = self.entries.remove(instance);
        let has_ended = ends_run(before.as_ref().map(|entry| &entry.state), None);
        has_ended && !self.runs(&instance.workload)
    }

    /// Stores a state of an instance on another agent, without its text: a hostile agent must not
    /// fill the memory of all others. Returns whether that ends its workload.
    pub(crate) fn set_foreign(&mut self, report: WorkloadState) -> bool {
        if report.instance.agent == self.agent {
            return false; // Only the own control loops report it.
        }
        self.set(report.instance, report.state.without_text())
    }

    /// Whether an instance of the workload runs. As long as one does, the end of another one means
    /// nothing: any agent can report an instance of any workload as its own.
    fn runs(&self, workload: &str) -> bool {
        let mut entries = of_workload(&self.entries, workload);
        entries.any(|(_, entry)| entry.state.phase == Phase::Running)
    }

    /// Whether there are instances of the workload and all of them have ended.
    pub(crate) fn has_ended(&self, workload: &str) -> bool {
        let mut entries = of_workload(&self.entries, workload).peekable();
        entries.peek().is_some() && entries.all(|(_, entry)| has_ended(&entry.state))
    }

    /// Marks the states of other agents as stale, since the connection is lost.
    pub(crate) fn mark_foreign_stale(&mut self) {
        for (instance, entry) in &mut self.entries {
            entry.stale = instance.agent != self.agent;
        }
    }

    /// Drops states that the server has not repeated since the connection was lost. Returns their
    /// workloads.
    pub(crate) fn drop_stale(&mut self) -> BTreeSet<Name> {
        let mut workloads = BTreeSet::new();
        for (instance, _) in self.entries.extract_if(.., |_, entry| entry.stale) {
            workloads.insert(instance.workload);
        }
        workloads
    }

    /// The states of all own instances.
    pub(crate) fn own(&self) -> Vec<WorkloadState> {
        let mut own = Vec::new();
        for (instance, entry) in &self.entries {
            if instance.agent == self.agent {
                own.push(WorkloadState::new(instance.clone(), entry.state.clone()));
            }
        }
        own
    }

    /// Returns a text with the number of own instances in each state:
    /// `3 workloads: 2 running, 1 failed`.
    pub(crate) fn summary(&self) -> String {
        let mut total = 0;
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (instance, entry) in &self.entries {
            if instance.agent == self.agent {
                total += 1;
                *counts.entry(entry.state.phase.state()).or_default() += 1;
            }
        }
        let mut parts = Vec::new();
        for (state, count) in counts {
            parts.push(format!("{count} {}", state.to_lowercase()));
        }
        let parts = parts.join(", ");
        match total {
            0 => "no workloads".to_owned(),
            1 => format!("1 workload: {parts}"),
            _ => format!("{total} workloads: {parts}"),
        }
    }

    /// The state of an instance.
    pub(crate) fn get(&self, instance: &InstanceName) -> Option<&ExecutionState> {
        self.entries.get(instance).map(|entry| &entry.state)
    }

    /// Returns the dependencies that are not met. A dependency is met if any of its instances has
    /// reached the state, and that instance `applies`.
    // [impl->swdd~workload-ready-to-create-on-fulfilled-dependencies~1]
    pub(crate) fn unmet(
        &self,
        dependencies: &BTreeMap<String, AddCondition>,
        applies: impl Fn(&InstanceName) -> bool,
    ) -> BTreeMap<String, AddCondition> {
        let mut unmet = BTreeMap::new();
        for (name, condition) in dependencies {
            let mut entries = of_workload(&self.entries, name);
            let is_met = entries.any(|(instance, entry)| {
                entry.state.phase.fulfils_add(*condition) && applies(instance)
            });
            if !is_met {
                unmet.insert(name.clone(), *condition);
            }
        }
        unmet
    }

    /// Whether a workload may stop as far as this dependent is concerned: all instances of the
    /// dependent fulfil the condition.
    // [impl->swdd~workload-ready-to-delete-on-fulfilled-dependencies~1]
    pub(crate) fn may_stop(&self, dependent: &str, condition: DeleteCondition) -> bool {
        of_workload(&self.entries, dependent)
            .all(|(_, entry)| entry.state.fulfils_delete(condition))
    }

    /// Whether each instance of the dependent stops, waits to stop, or fulfils the condition.
    pub(crate) fn is_stopping(&self, dependent: &str, condition: DeleteCondition) -> bool {
        let mut phases = of_workload(&self.entries, dependent).map(|(_, entry)| entry.state.phase);
        phases.all(|phase| phase.state() == "Stopping" || phase.fulfils_delete(condition))
    }

    /// Whether all own instances of the workload, if any, still wait to be started, so that none
    /// has a container.
    pub(crate) fn has_no_container(&self, workload: &str) -> bool {
        for (instance, entry) in of_workload(&self.entries, workload) {
            let waits_to_start = entry.state.phase == Phase::PendingWaitingToStart;
            if instance.agent == self.agent && !waits_to_start {
                return false;
            }
        }
        true
    }

    /// Stores a state. Returns whether that ends its workload: the instance may have run until now,
    /// and no other one runs.
    fn set(&mut self, instance: InstanceName, state: ExecutionState) -> bool {
        if state.phase == Phase::Removed {
            return self.forget(&instance);
        }
        let has_ended = ends_run(self.get(&instance), Some(&state));
        let name = instance.workload.clone();
        let entry = StateEntry {
            state,
            stale: false,
        };
        self.entries.insert(instance, entry);
        has_ended && !self.runs(&name)
    }
}

/// For tests of other files and crates.
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
    use ankaios_model::reason::{GONE_PREFIX, INACTIVE_PREFIX, Reason, waits_for};

    fn instance(workload: &str, agent: &str) -> InstanceName {
        InstanceName::with_id(workload, "id", agent)
    }

    fn plain(phase: Phase) -> ExecutionState {
        ExecutionState::plain(phase)
    }

    fn foreign(workload: &str, phase: Phase) -> WorkloadState {
        WorkloadState::new(instance(workload, "B"), plain(phase))
    }

    // [utest->swdd~agent-stores-workload-states-of-its-workloads~1]
    #[test]
    fn the_own_states_of_a_workload_are_replaced_together() {
        let mut store = WorkloadStateStore::new("A".into());
        let states = |names: &[&str]| {
            let state = |id: &&str| (InstanceName::with_id("w", id, "A"), plain(Phase::Running));
            names.iter().map(state).collect::<BTreeMap<_, _>>()
        };
        store.set_foreign(foreign("w", Phase::Running));
        store.replace_own(&"other".into(), BTreeMap::new());
        for ids in [&["1", "2"] as &[&str], &["2", "3"], &[]] {
            store.replace_own(&"w".into(), states(ids));
            assert_eq!(store.own_of(&"w".into()), states(ids));
            assert_eq!(store.own().len(), ids.len());
        }
        assert_eq!(store.iter().count(), 1, "the foreign one stays");
    }

    // [utest->swdd~agent-manager-stores-all-workload-states~1]
    #[test]
    fn foreign_states_are_stored_without_hysteresis() {
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
            (
                Phase::PendingWaitingToStart,
                waits_for("db", AddCondition::Failed),
                Reason::AwaitsFailure,
            ),
        ] {
            let state = ExecutionState::from_text(phase, info);
            store.set_foreign(WorkloadState::new(instance("w", "B"), state.clone()));
            let held = store.get(&instance("w", "B")).unwrap();
            assert_eq!(*held, plain(phase).because(kept));
            assert_eq!(held.needs_no_start(), state.needs_no_start());
            let condition = DeleteCondition::NotPendingNorRunning;
            assert_eq!(
                held.fulfils_delete(condition),
                state.fulfils_delete(condition)
            );
            store.set(instance("w", "A"), state.clone());
            assert_eq!(
                store.get(&instance("w", "A")),
                Some(&state),
                "our own keep their texts"
            );
            store.set(instance("w", "A"), plain(Phase::Removed));
        }
    }

    #[test]
    fn what_the_server_does_not_repeat_after_a_reconnect_is_dropped() {
        let mut store = WorkloadStateStore::new("A".into());
        store.set(instance("own", "A"), plain(Phase::Running));
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
                    store.set(instance("d", agent), plain(*phase));
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
