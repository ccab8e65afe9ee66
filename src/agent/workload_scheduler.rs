//! Operations wait here until the workloads they depend on have reached what they wait for.
//!
//! Thread: `scheduler`, which owns it.
//! Costs: a state change looks only at the operations that wait for that workload; how many others wait is irrelevant.

use super::workload_state_store::WorkloadStateStore;
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::messages::{AddedWorkload, DeletedWorkload};
use crate::model::names::{InstanceName, Name};
use std::collections::{BTreeMap, BTreeSet};

/// What shall be done with one workload.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    /// Start it.
    Create(Created),
    /// Replace the old instance by the new one; never both at the same time.
    Update(Updated),
    /// Remove the old instance; the new one waits for its dependencies.
    UpdateDeleteOnly(Name),
    /// Remove it.
    Delete(DeletedWorkload),
}

/// A workload to start.
#[derive(Debug, Clone, PartialEq)]
pub struct Created {
    /// What to start.
    pub added: AddedWorkload,
    /// A container of the same instance ended before and shall be started again.
    pub reuse: bool,
}

/// A workload to replace.
#[derive(Debug, Clone, PartialEq)]
pub struct Updated {
    /// The new instance.
    pub new: AddedWorkload,
    /// The old one and what others must have reached before it goes.
    pub deleted: DeletedWorkload,
}

impl Operation {
    /// The workload it is about.
    #[must_use]
    pub fn workload(&self) -> &Name {
        match self {
            Self::Create(created) => &created.added.instance.workload,
            Self::Update(updated) => &updated.new.instance.workload,
            Self::UpdateDeleteOnly(name) => name,
            Self::Delete(deleted) => &deleted.instance.workload,
        }
    }
}

/// An operation that waits. One per workload name.
#[derive(Debug, Clone, PartialEq)]
pub enum Waiting {
    /// For its dependencies.
    Create(Created),
    /// For those that depend on it.
    Delete(DeletedWorkload),
    /// The old instance is removed; the new one waits for its dependencies.
    UpdateCreate(Updated),
    /// The old instance waits for those that depend on it.
    UpdateDelete(Updated),
}

impl Waiting {
    /// The instance that was not started yet.
    #[must_use]
    pub fn new_instance(&self) -> Option<&AddedWorkload> {
        match self {
            Self::Create(created) => Some(&created.added),
            Self::UpdateCreate(updated) | Self::UpdateDelete(updated) => Some(&updated.new),
            Self::Delete(_) => None,
        }
    }

    fn dependencies(&self) -> impl Iterator<Item = &String> {
        let added = self.new_instance().map(|added| &added.workload.dependencies);
        let deleted = match self {
            Self::Delete(deleted) => Some(&deleted.dependencies),
            Self::UpdateDelete(updated) => Some(&updated.deleted.dependencies),
            Self::Create(_) | Self::UpdateCreate(_) => None,
        };
        added.into_iter().flat_map(BTreeMap::keys).chain(deleted.into_iter().flat_map(BTreeMap::keys))
    }
}

/// What follows from an operation or a state.
#[derive(Debug, Default, PartialEq)]
pub struct Decision {
    /// To execute now, in this order.
    pub ready: Vec<Operation>,
    /// To report, in this order, before the execution.
    pub reports: Vec<WorkloadState>,
}

impl Decision {
    fn report(&mut self, instance: &InstanceName, phase: Phase) {
        self.reports.push(WorkloadState::new(instance.clone(), ExecutionState::plain(phase)));
    }
}

/// The waiting operations.
#[derive(Debug, Default)]
pub struct WorkloadScheduler {
    queue: BTreeMap<Name, Waiting>,
    /// Who waits for a workload, by the name of that workload.
    waiters: BTreeMap<String, BTreeSet<Name>>,
}

impl WorkloadScheduler {
    /// Decides about a new operation; the caller has removed an older one of the same workload with [`Self::take`].
    pub fn decide(&mut self, operation: Operation, store: &WorkloadStateStore) -> Decision {
        let mut decision = Decision::default();
        match operation {
            Operation::Create(created) => {
                if store.may_start(&created.added.workload.dependencies) {
                    decision.ready.push(Operation::Create(created));
                } else {
                    // [impl->swdd~agent-enqueues-unfulfilled-create~1]
                    decision.report(&created.added.instance, Phase::PendingWaitingToStart);
                    self.put(Waiting::Create(created));
                }
            }
            Operation::Update(updated) => {
                if store.may_stop(&updated.deleted.dependencies) {
                    self.decide_start_of_update(updated, store, &mut decision);
                } else {
                    // [impl->swdd~agent-enqueues-update-with-unfulfilled-delete~1]
                    decision.report(&updated.deleted.instance, Phase::StoppingWaitingToStop);
                    self.put(Waiting::UpdateDelete(updated));
                }
            }
            Operation::Delete(deleted) => {
                if store.may_stop(&deleted.dependencies) {
                    decision.ready.push(Operation::Delete(deleted));
                } else {
                    // [impl->swdd~agent-enqueues-unfulfilled-delete~1]
                    decision.report(&deleted.instance, Phase::StoppingWaitingToStop);
                    self.put(Waiting::Delete(deleted));
                }
            }
            // [impl->swdd~agent-shall-not-enqueue-update-delete-only-workload-operation~1]
            Operation::UpdateDeleteOnly(name) => decision.ready.push(Operation::UpdateDeleteOnly(name)),
        }
        decision
    }

    /// The old instance may go; the new one may have to wait.
    fn decide_start_of_update(&mut self, updated: Updated, store: &WorkloadStateStore, decision: &mut Decision) {
        if store.may_start(&updated.new.workload.dependencies) {
            decision.ready.push(Operation::Update(updated));
            return;
        }
        // [impl->swdd~agent-handles-update-with-fulfilled-delete~1]
        decision.report(&updated.new.instance, Phase::PendingWaitingToStart);
        decision.ready.push(Operation::UpdateDeleteOnly(updated.new.instance.workload.clone()));
        self.put(Waiting::UpdateCreate(updated));
    }

    /// Looks again at the operations that wait for `workload`. What keeps waiting is not reported again.
    // [impl->swdd~agent-keeps-workloads-with-unfulfilled-workload-dependencies-in-queue~1]
    pub fn state_changed(&mut self, workload: &str, store: &WorkloadStateStore) -> Decision {
        let mut decision = Decision::default();
        for name in self.waiters.get(workload).cloned().unwrap_or_default() {
            if self.queue.get(&name).is_some_and(|waiting| Self::is_ready(waiting, store))
                && let Some(waiting) = self.take(&name)
            {
                match waiting {
                    Waiting::Create(created) => decision.ready.push(Operation::Create(created)),
                    Waiting::Delete(deleted) => decision.ready.push(Operation::Delete(deleted)),
                    Waiting::UpdateCreate(updated) => decision.ready.push(Operation::Update(updated)),
                    Waiting::UpdateDelete(updated) => self.decide_start_of_update(updated, store, &mut decision),
                }
            }
        }
        decision
    }

    fn is_ready(waiting: &Waiting, store: &WorkloadStateStore) -> bool {
        match waiting {
            Waiting::Create(created) => store.may_start(&created.added.workload.dependencies),
            Waiting::UpdateCreate(updated) => store.may_start(&updated.new.workload.dependencies),
            Waiting::Delete(deleted) => store.may_stop(&deleted.dependencies),
            Waiting::UpdateDelete(updated) => store.may_stop(&updated.deleted.dependencies),
        }
    }

    /// The operation that waits for `workload`.
    #[must_use]
    pub fn get(&self, workload: &str) -> Option<&Waiting> {
        self.queue.get(workload)
    }

    /// The names of all workloads with an operation that waits.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.queue.keys()
    }

    /// Removes the operation of `workload`, for example because a newer one replaces it (spec/agent.md FIX-6).
    pub fn take(&mut self, workload: &str) -> Option<Waiting> {
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

    fn put(&mut self, waiting: Waiting) {
        let name = match &waiting {
            Waiting::Create(created) => &created.added.instance.workload,
            Waiting::Delete(deleted) => &deleted.instance.workload,
            Waiting::UpdateCreate(updated) | Waiting::UpdateDelete(updated) => &updated.new.instance.workload,
        }
        .clone();
        debug_assert!(!self.queue.contains_key(&name), "the caller takes an older operation out first");
        for dependency in waiting.dependencies() {
            self.waiters.entry(dependency.clone()).or_default().insert(name.clone());
        }
        self.queue.insert(name, waiting);
    }
}

#[cfg(test)]
mod tests;
