//! Workloads that may not run because of their conditions are stopped, their dependents first, and started again.
//!
//! Thread: `scheduler`; part of [`RuntimeManager`].

use super::{RuntimeManager, WorkloadThreads};
use crate::agent::conditions::{Conditions, NodeFacts};
use crate::agent::probes::short_info;
use crate::agent::workload_scheduler::Change;
use crate::agent::workload_state_store::WorkloadStateStore;
use crate::model::execution_state::{Phase, WorkloadState};
use crate::model::messages::{AddedWorkload, DeletedWorkload};
use crate::model::names::Name;
use crate::model::workload::{AddCondition, DeleteCondition, RestartPolicy, Workload};
use crate::platform::clock::Clock;
use crate::platform::logging::log_source;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

impl<C: Clock, T: WorkloadThreads<C>> RuntimeManager<C, T> {
    /// Conditions are about this node.
    #[must_use]
    pub fn on_node(mut self, facts: NodeFacts) -> Self {
        self.conditions = Conditions::new(facts);
        self
    }

    /// When [`Self::refresh_conditions`] wants to be called next.
    #[must_use]
    pub fn conditions_due(&self) -> Option<Instant> {
        self.scheduler.unstaged.values().copied().flatten().chain(self.conditions.due()).min()
    }

    /// Evaluates the conditions of what is wanted now; it is not started while it may not run.
    pub(super) fn note_wanted(&mut self, added: &AddedWorkload) {
        self.conditions.insert(added, self.context.clock.now());
        if self.has_no_conditions() {
            return;
        }
        // At least this one must be right before it is decided about; its dependents follow.
        let name = &added.instance.workload;
        let withheld = &self.scheduler.withheld;
        let needs = |(other, condition): (&String, &AddCondition)| {
            (*condition == AddCondition::Running && withheld.contains_key(&**other)).then(|| waits_for(other))
        };
        let why = self.conditions.reason(name);
        match why.or_else(|| added.workload.dependencies.iter().find_map(needs)) {
            Some(why) => _ = self.scheduler.withheld.insert(name.clone(), why),
            None => _ = self.scheduler.withheld.remove(name),
        }
    }

    /// The workload is not wanted any more.
    pub(super) fn note_unwanted(&mut self, name: &Name) {
        self.conditions.remove(name);
        self.scheduler.withheld.remove(name);
    }

    fn has_no_conditions(&self) -> bool {
        self.conditions.is_empty() && self.scheduler.withheld.is_empty()
    }

    /// Forgets the conditions of workloads that a hello wanted and that were taken back before all engines were listed:
    /// no change was ever submitted for them. Their dependents may run now. Returns states to report.
    pub(in crate::agent) fn forget_unwanted_conditions(
        &mut self,
        store: &mut WorkloadStateStore,
    ) -> Vec<WorkloadState> {
        let Self { conditions, objects, scheduler, .. } = self;
        let live = objects.iter().filter(|(_, object)| !object.ending).map(|(name, _)| name);
        let wanted: BTreeSet<Name> = live.chain(scheduler.iter().map(|waiting| &waiting.name)).cloned().collect();
        conditions.retain(&wanted);
        scheduler.withheld.retain(|name, _| wanted.contains(name));
        self.withhold(store)
    }

    /// Evaluates the conditions again and does what follows. Returns states to report.
    pub fn refresh_conditions(&mut self, store: &mut WorkloadStateStore) -> Vec<WorkloadState> {
        self.conditions.refresh(self.context.clock.now());
        self.touched.extend(self.staging.names().cloned()); // A staged instance may be created now, or not any more.
        let mut reports = self.release_unstaged(store);
        reports.extend(self.withhold(store));
        reports
    }

    /// Stops workloads that may not run any more, their dependents first, and releases those that may run again.
    pub(super) fn withhold(&mut self, store: &mut WorkloadStateStore) -> Vec<WorkloadState> {
        if self.has_no_conditions() {
            return Vec::new();
        }
        let wanted = self.wanted_workloads();
        let withheld = with_dependents(self.conditions.closed(), &wanted);
        let before = std::mem::replace(&mut self.scheduler.withheld, withheld.clone());
        self.touched.extend(before.keys().chain(withheld.keys()).cloned());
        let mut reports = Vec::new();
        for (name, why) in &withheld {
            if let Some(added) = wanted.get(name) {
                reports.extend(self.withhold_one(added, why, &wanted, store));
            }
        }
        for name in before.keys().filter(|name| !withheld.contains_key(*name)) {
            reports.extend(self.release(name, store));
        }
        reports
    }

    /// All workloads that are to run here, whether they run or wait.
    fn wanted_workloads(&self) -> BTreeMap<Name, AddedWorkload> {
        let mut wanted: BTreeMap<Name, AddedWorkload> = BTreeMap::new();
        for (name, object) in self.objects.iter().filter(|(_, object)| !object.ending) {
            let added = |workload: &Arc<Workload>| (object.instance.clone(), workload.clone());
            let added = object.workload.as_ref().map(added);
            wanted.extend(added.map(|(instance, workload)| (name.clone(), AddedWorkload { instance, workload })));
        }
        for Change { name, new, .. } in self.scheduler.iter() {
            match new {
                Some(added) => _ = wanted.insert(name.clone(), added.clone()),
                None => _ = wanted.remove(name),
            }
        }
        wanted
    }

    // [impl->swdd~agent-lifecycle-precondition~1]
    fn withhold_one(
        &mut self,
        added: &AddedWorkload,
        why: &str,
        wanted: &BTreeMap<Name, AddedWorkload>,
        store: &mut WorkloadStateStore,
    ) -> Vec<WorkloadState> {
        let AddedWorkload { instance, .. } = added;
        let name = &instance.workload;
        match self.scheduler.get(name) {
            // It does not run: only the reason may be a new one.
            Some(Change { deleted: None, .. }) => {
                let state = self.scheduler.waiting_to_start(instance);
                let shown = store.get(instance);
                let stale =
                    shown.is_some_and(|shown| shown.phase == Phase::PendingWaitingToStart && *shown != state.state);
                return if stale { vec![state] } else { Vec::new() };
            }
            Some(_) => return Vec::new(),
            None => {}
        }
        let running = self.live(name).is_some_and(|object| object.workload.is_some());
        if !running || has_finished(added, store) {
            return Vec::new();
        }
        let needs_it = |other: &&AddedWorkload| {
            other.workload.dependencies.get(&**name) == Some(&AddCondition::Running)
                && self.scheduler.withheld.contains_key(&other.instance.workload)
                && !has_finished(other, store)
        };
        let dependents = wanted.values().filter(needs_it);
        let dependencies = dependents
            .map(|other| (other.instance.workload.to_string(), DeleteCondition::NotPendingNorRunning))
            .collect();
        let _source = log_source(name.clone());
        log::info!("Workload '{name}' may not run: {why}");
        let deleted = DeletedWorkload { instance: instance.clone(), dependencies };
        let change = Change { withheld: true, ..Change::replace(deleted, Some(added.clone())) };
        let decision = self.scheduler.decide(change, store);
        self.execute_all(decision)
    }

    fn release(&mut self, name: &Name, store: &mut WorkloadStateStore) -> Vec<WorkloadState> {
        if self.scheduler.get(name).is_some_and(|waiting| waiting.withheld)
            && let Some(instance) =
                self.scheduler.take(name).and_then(|waiting| waiting.new).map(|added| added.instance)
        {
            // It was not stopped yet, and may go on.
            return store.cancel_stop(&instance).map(|state| WorkloadState::new(instance, state)).into_iter().collect();
        }
        let _source = log_source(name.clone());
        log::info!("Workload '{name}' may run again.");
        let decision = self.scheduler.recheck(name, store);
        self.execute_all(decision)
    }
}

/// Whether the workload ended for good: there is nothing to stop, and a path that comes back does not run it again.
fn has_finished(AddedWorkload { instance, workload }: &AddedWorkload, store: &WorkloadStateStore) -> bool {
    match (store.get(instance).map(|state| state.phase), workload.restart_policy) {
        (Some(Phase::Succeeded), policy) => policy != RestartPolicy::Always,
        (Some(Phase::FailedExecFailed), policy) => policy == RestartPolicy::Never,
        _ => false,
    }
}

fn waits_for(name: &str) -> String {
    short_info(format!("waits for '{name}', which may not run"))
}

/// Adds all workloads that need one of these to run, directly or not.
fn with_dependents(closed: BTreeMap<Name, String>, wanted: &BTreeMap<Name, AddedWorkload>) -> BTreeMap<Name, String> {
    let mut all = closed;
    let mut open: BTreeSet<Name> = all.keys().cloned().collect();
    while let Some(name) = open.pop_first() {
        for (dependent, added) in wanted {
            let needs = added.workload.dependencies.get(&*name) == Some(&AddCondition::Running);
            if needs && !all.contains_key(dependent) {
                all.insert(dependent.clone(), waits_for(&name));
                open.insert(dependent.clone());
            }
        }
    }
    all
}

#[cfg(test)]
mod tests;
