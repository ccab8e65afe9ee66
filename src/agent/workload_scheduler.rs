//! Changes wait here until the workloads they depend on have reached what they wait for.
//!
//! Thread: `scheduler`, which owns it.
//! Costs: a state change looks only at the changes that wait for that workload; how many others wait does not matter.

use super::probes::short_info;
use super::workload_state_store::WorkloadStateStore;
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::messages::{AddedWorkload, DeletedWorkload};
use crate::model::names::{InstanceName, Name};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// What is wanted of one workload from now on.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Which workload.
    pub name: Name,
    /// What is to run of it. It waits for its dependencies.
    pub new: Option<AddedWorkload>,
    /// What has to go first, and what others must have reached before it goes.
    pub deleted: Option<DeletedWorkload>,
    /// It goes because its precondition does not hold at the moment: the others must have no container.
    pub withheld: bool,
}

impl Change {
    /// This workload is to run.
    #[must_use]
    pub fn run(added: AddedWorkload) -> Self {
        Self { name: added.instance.workload.clone(), new: Some(added), deleted: None, withheld: false }
    }

    /// This workload is to go, and perhaps another one to run in its place.
    #[must_use]
    pub fn replace(deleted: DeletedWorkload, new: Option<AddedWorkload>) -> Self {
        Self { name: deleted.instance.workload.clone(), new, deleted: Some(deleted), withheld: false }
    }

    fn dependencies(&self) -> impl Iterator<Item = &String> {
        let added = self.new.iter().flat_map(|added| added.workload.dependencies.keys());
        added.chain(self.deleted.iter().flat_map(|deleted| deleted.dependencies.keys()))
    }
}

/// An order for a control loop.
#[derive(Debug, Clone, PartialEq)]
pub enum Order {
    /// Run this and nothing else of the workload.
    Run(AddedWorkload),
    /// Remove what is there.
    End(Name),
}

/// What follows from a change or a state.
#[derive(Debug, Default, PartialEq)]
pub struct Decision {
    /// To execute now, in this order.
    pub ready: Vec<Order>,
    /// To report, in this order, before the execution.
    pub reports: Vec<WorkloadState>,
}

impl Decision {
    fn report(&mut self, instance: &InstanceName, phase: Phase) {
        self.reports.push(WorkloadState::new(instance.clone(), ExecutionState::plain(phase)));
    }
}

/// The changes that wait.
#[derive(Debug, Default)]
pub struct WorkloadScheduler {
    queue: BTreeMap<Name, Change>,
    /// The workloads that wait for another one, by the name of that one.
    waiters: BTreeMap<String, BTreeSet<Name>>,
    /// The workloads that may not run whatever their dependencies do, and why.
    pub(super) withheld: BTreeMap<Name, String>,
    /// The workloads whose old instance runs on until the new one is staged; from when on it does not, if that has failed.
    pub(super) unstaged: BTreeMap<Name, Option<Instant>>,
    /// How far they are prepared, of those that have something to show.
    notes: BTreeMap<Name, String>,
}

impl WorkloadScheduler {
    /// Decides about a new change; the caller has removed an older one of the same workload with [`Self::take`].
    pub fn decide(&mut self, change: Change, store: &WorkloadStateStore) -> Decision {
        let mut decision = Decision::default();
        self.go_on(change, store, &mut decision);
        decision
    }

    fn go_on(&mut self, mut change: Change, store: &WorkloadStateStore, decision: &mut Decision) {
        if let Some(deleted) = &change.deleted
            && !self.may_stop(deleted, change.withheld, store)
        {
            // [impl->swdd~agent-enqueues-unfulfilled-delete~1]
            // [impl->swdd~agent-enqueues-update-with-unfulfilled-delete~1]
            decision.report(&deleted.instance, Phase::StoppingWaitingToStop);
            return self.put(change);
        }
        if let Some(new) = change.new.as_ref().filter(|_| self.is_unstaged(&change)) {
            if change.deleted.as_ref().is_some_and(|deleted| deleted.instance != new.instance) {
                decision.reports.push(self.waiting_to_start(&new.instance));
            }
            return self.put(change);
        }
        let deleted = change.deleted.take();
        match &change.new {
            None => decision.ready.push(Order::End(change.name)),
            Some(new) if self.may_start(new, store) => decision.ready.push(Order::Run(new.clone())),
            Some(new) => {
                // Of the same instance this is shown when the old container is gone.
                if deleted.as_ref().is_none_or(|deleted| deleted.instance != new.instance) {
                    decision.reports.push(self.waiting_to_start(&new.instance));
                }
                // [impl->swdd~agent-handles-update-with-fulfilled-delete~1]
                // [impl->swdd~agent-shall-not-enqueue-update-delete-only-workload-operation~1]
                decision.ready.extend(deleted.map(|_| Order::End(change.name.clone())));
                // [impl->swdd~agent-enqueues-unfulfilled-create~1]
                self.put(Change { withheld: false, ..change });
            }
        }
    }

    /// Decides again about the changes that wait for `workload`. One that keeps waiting is not reported again.
    // [impl->swdd~agent-keeps-workloads-with-unfulfilled-workload-dependencies-in-queue~1]
    pub fn state_changed(&mut self, workload: &str, store: &WorkloadStateStore) -> Decision {
        let mut decision = Decision::default();
        for name in self.waiters.get(workload).cloned().unwrap_or_default() {
            if self.queue.get(&name).is_some_and(|waiting| self.is_ready(waiting, store))
                && let Some(waiting) = self.take(&name)
            {
                self.go_on(waiting, store, &mut decision);
            }
        }
        decision
    }

    /// Whether `workload` may run has changed: decides again. One that goes on waiting for its dependencies is reported
    /// again.
    pub fn recheck(&mut self, workload: &str, store: &WorkloadStateStore) -> Decision {
        let mut decision = Decision::default();
        let Some(waiting @ Change { new: Some(new), deleted: None, .. }) = self.queue.get(workload) else {
            return decision;
        };
        if !self.is_ready(waiting, store) {
            decision.reports.push(self.waiting_to_start(&new.instance));
        } else if let Some(waiting) = self.take(workload) {
            self.go_on(waiting, store, &mut decision);
        }
        decision
    }

    /// The old instance of `workload` need not run on any more until the new one is staged.
    pub fn release_unstaged(&mut self, workload: &Name, store: &WorkloadStateStore) -> Decision {
        let mut decision = Decision::default();
        if self.unstaged.remove(workload).is_some()
            && self.queue.get(workload).is_some_and(|waiting| self.is_ready(waiting, store))
            && let Some(waiting) = self.take(workload)
        {
            self.go_on(waiting, store, &mut decision);
        }
        decision
    }

    fn is_unstaged(&self, change: &Change) -> bool {
        change.deleted.is_some() && self.unstaged.contains_key(&change.name)
    }

    /// What is shown of an instance that waits to be started.
    pub fn waiting_to_start(&self, instance: &InstanceName) -> WorkloadState {
        let parts = [self.withheld.get(&instance.workload), self.notes.get(&instance.workload)];
        let parts: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
        let info = short_info(parts.join("; "));
        WorkloadState::new(instance.clone(), ExecutionState::with_info(Phase::PendingWaitingToStart, info))
    }

    /// Shows this of `workload` while it waits; nothing when it is empty. Returns whether that is something new.
    pub fn note(&mut self, workload: &Name, note: String) -> bool {
        if note.is_empty() {
            return self.notes.remove(workload).is_some();
        }
        let is_new = self.notes.get(workload) != Some(&note);
        self.notes.insert(workload.clone(), note);
        is_new
    }

    fn is_ready(&self, change: &Change, store: &WorkloadStateStore) -> bool {
        match (&change.deleted, &change.new) {
            (Some(deleted), _) => !self.is_unstaged(change) && self.may_stop(deleted, change.withheld, store),
            (None, Some(new)) => self.may_start(new, store),
            (None, None) => true,
        }
    }

    fn may_start(&self, added: &AddedWorkload, store: &WorkloadStateStore) -> bool {
        !self.withheld.contains_key(&added.instance.workload) && store.may_start(&added.workload.dependencies)
    }

    /// Whether the dependents have reached what the delete waits for. One that waits for this delete itself does not
    /// count, or both would wait for ever.
    fn may_stop(&self, deleted: &DeletedWorkload, withheld: bool, store: &WorkloadStateStore) -> bool {
        let DeletedWorkload { instance, dependencies } = deleted;
        if withheld {
            return dependencies.keys().all(|name| store.has_no_container(name)); // Its end must not hurt them.
        }
        dependencies.iter().all(|(name, condition)| {
            let in_circle = || store.is_stopping(name, *condition) && self.waits_for(name, &instance.workload);
            store.may_stop(name, *condition) || in_circle()
        })
    }

    /// Whether the end of `name` waits for that of `other`, directly or not.
    fn waits_for(&self, name: &str, other: &str) -> bool {
        let (mut open, mut seen) = (vec![name], BTreeSet::new());
        while let Some(name) = open.pop() {
            let Some(Change { deleted: Some(next), .. }) = self.queue.get(name) else { continue };
            let next = &next.dependencies;
            if next.contains_key(other) {
                return true;
            }
            open.extend(next.keys().map(String::as_str).filter(|name| seen.insert(*name)));
        }
        false
    }

    /// The change of `workload` that waits.
    #[must_use]
    pub fn get(&self, workload: &str) -> Option<&Change> {
        self.queue.get(workload)
    }

    /// How many changes wait, and for how many workloads.
    #[cfg(test)]
    pub fn sizes(&self) -> [usize; 2] {
        [self.queue.len(), self.waiters.values().map(BTreeSet::len).sum()]
    }

    /// All changes that wait.
    pub fn iter(&self) -> impl Iterator<Item = &Change> {
        self.queue.values()
    }

    /// What waits to run of `workload`.
    #[must_use]
    pub fn new_of(&self, workload: &str) -> Option<&AddedWorkload> {
        self.queue.get(workload)?.new.as_ref()
    }

    /// Removes the change of `workload`, for example because a newer one replaces it.
    pub fn take(&mut self, workload: &str) -> Option<Change> {
        let waiting = self.queue.remove(workload)?;
        for dependency in waiting.dependencies() {
            if let Some(names) = self.waiters.get_mut(dependency) {
                names.remove(workload);
                if names.is_empty() {
                    self.waiters.remove(dependency);
                }
            }
        }
        Some(waiting)
    }

    fn put(&mut self, waiting: Change) {
        let name = waiting.name.clone();
        debug_assert!(!self.queue.contains_key(&name), "the caller takes an older change out first");
        for dependency in waiting.dependencies() {
            self.waiters.entry(dependency.clone()).or_default().insert(name.clone());
        }
        self.queue.insert(name, waiting);
    }
}

#[cfg(test)]
mod tests;
