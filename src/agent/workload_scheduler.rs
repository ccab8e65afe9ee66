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
    /// Remove it and let it wait: it may not run at the moment (spec/lifecycle.md rule 12).
    Withhold(Updated),
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
            Self::Update(updated) | Self::Withhold(updated) => &updated.new.instance.workload,
            Self::UpdateDeleteOnly(name) => name,
            Self::Delete(deleted) => &deleted.instance.workload,
        }
    }

    /// The instance that it ends, as far as the server knows.
    #[must_use]
    pub fn old_instance(&self) -> Option<&InstanceName> {
        match self {
            Self::Update(updated) | Self::Withhold(updated) => Some(&updated.deleted.instance),
            Self::Delete(deleted) => Some(&deleted.instance),
            Self::Create(_) | Self::UpdateDeleteOnly(_) => None,
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
    /// It may not run, but those that depend on it must be gone first.
    Withhold(Updated),
}

impl Waiting {
    /// The instance that was not started yet.
    #[must_use]
    pub fn new_instance(&self) -> Option<&AddedWorkload> {
        match self {
            Self::Create(created) => Some(&created.added),
            Self::UpdateCreate(updated) | Self::UpdateDelete(updated) | Self::Withhold(updated) => Some(&updated.new),
            Self::Delete(_) => None,
        }
    }

    fn dependencies(&self) -> impl Iterator<Item = &String> {
        let added = self.new_instance().map(|added| &added.workload.dependencies);
        let deleted = match self {
            Self::Delete(deleted) => Some(&deleted.dependencies),
            Self::UpdateDelete(updated) | Self::Withhold(updated) => Some(&updated.deleted.dependencies),
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
    /// Who may not run whatever its dependencies do, and why (spec/lifecycle.md rules 12 and 13).
    pub(super) withheld: BTreeMap<Name, String>,
}

impl WorkloadScheduler {
    /// Decides about a new operation; the caller has removed an older one of the same workload with [`Self::take`].
    pub fn decide(&mut self, operation: Operation, store: &WorkloadStateStore) -> Decision {
        let mut decision = Decision::default();
        match operation {
            Operation::Create(created) => {
                if self.may_start(&created.added, store) {
                    decision.ready.push(Operation::Create(created));
                } else {
                    // [impl->swdd~agent-enqueues-unfulfilled-create~1]
                    decision.reports.push(self.waiting_to_start(&created.added.instance));
                    self.put(Waiting::Create(created));
                }
            }
            Operation::Update(updated) => {
                if self.may_stop(&updated.deleted, store) {
                    self.decide_start_of_update(updated, store, &mut decision);
                } else {
                    // [impl->swdd~agent-enqueues-update-with-unfulfilled-delete~1]
                    decision.report(&updated.deleted.instance, Phase::StoppingWaitingToStop);
                    self.put(Waiting::UpdateDelete(updated));
                }
            }
            Operation::Delete(deleted) => {
                if self.may_stop(&deleted, store) {
                    decision.ready.push(Operation::Delete(deleted));
                } else {
                    // [impl->swdd~agent-enqueues-unfulfilled-delete~1]
                    decision.report(&deleted.instance, Phase::StoppingWaitingToStop);
                    self.put(Waiting::Delete(deleted));
                }
            }
            // [impl->swdd~agent-shall-not-enqueue-update-delete-only-workload-operation~1]
            Operation::UpdateDeleteOnly(name) => decision.ready.push(Operation::UpdateDeleteOnly(name)),
            Operation::Withhold(updated) if are_gone(&updated.deleted, store) => self.empty(updated, &mut decision),
            Operation::Withhold(updated) => {
                decision.report(&updated.deleted.instance, Phase::StoppingWaitingToStop);
                self.put(Waiting::Withhold(updated));
            }
        }
        decision
    }

    /// The old instance may go; the new one may have to wait.
    fn decide_start_of_update(&mut self, updated: Updated, store: &WorkloadStateStore, decision: &mut Decision) {
        if self.may_start(&updated.new, store) {
            decision.ready.push(Operation::Update(updated));
            return;
        }
        // [impl->swdd~agent-handles-update-with-fulfilled-delete~1]
        decision.reports.push(self.waiting_to_start(&updated.new.instance));
        decision.ready.push(Operation::UpdateDeleteOnly(updated.new.instance.workload.clone()));
        self.put(Waiting::UpdateCreate(updated));
    }

    /// Looks again at the operations that wait for `workload`. What keeps waiting is not reported again.
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

    fn go_on(&mut self, waiting: Waiting, store: &WorkloadStateStore, decision: &mut Decision) {
        match waiting {
            Waiting::Create(created) => decision.ready.push(Operation::Create(created)),
            Waiting::Delete(deleted) => decision.ready.push(Operation::Delete(deleted)),
            Waiting::UpdateCreate(updated) => decision.ready.push(Operation::Update(updated)),
            Waiting::UpdateDelete(updated) => self.decide_start_of_update(updated, store, decision),
            Waiting::Withhold(updated) => self.empty(updated, decision),
        }
    }

    /// Whether `workload` may run has changed: looks again whether it can start. What goes on waiting for its
    /// dependencies says so anew.
    pub fn recheck(&mut self, workload: &str, store: &WorkloadStateStore) -> Decision {
        let mut decision = Decision::default();
        let Some(waiting @ (Waiting::Create(_) | Waiting::UpdateCreate(_))) = self.queue.get(workload) else {
            return decision;
        };
        if !self.is_ready(waiting, store) {
            decision.reports.extend(waiting.new_instance().map(|added| self.waiting_to_start(&added.instance)));
        } else if let Some(waiting) = self.take(workload) {
            self.go_on(waiting, store, &mut decision);
        }
        decision
    }

    /// The container is removed, and its instance waits.
    fn empty(&mut self, mut updated: Updated, decision: &mut Decision) {
        decision.ready.push(Operation::UpdateDeleteOnly(updated.new.instance.workload.clone()));
        updated.deleted.dependencies.clear();
        self.put(Waiting::UpdateCreate(updated));
    }

    /// What is shown of an instance that waits to be started.
    pub fn waiting_to_start(&self, instance: &InstanceName) -> WorkloadState {
        let why = self.withheld.get(&instance.workload).cloned().unwrap_or_default();
        WorkloadState::new(instance.clone(), ExecutionState::with_info(Phase::PendingWaitingToStart, why))
    }

    fn is_ready(&self, waiting: &Waiting, store: &WorkloadStateStore) -> bool {
        match waiting {
            Waiting::Create(created) => self.may_start(&created.added, store),
            Waiting::UpdateCreate(updated) => self.may_start(&updated.new, store),
            Waiting::Delete(deleted) => self.may_stop(deleted, store),
            Waiting::UpdateDelete(updated) => self.may_stop(&updated.deleted, store),
            Waiting::Withhold(updated) => are_gone(&updated.deleted, store),
        }
    }

    fn may_start(&self, added: &AddedWorkload, store: &WorkloadStateStore) -> bool {
        !self.withheld.contains_key(&added.instance.workload) && store.may_start(&added.workload.dependencies)
    }

    /// Whether those that depend on `deleted` are far enough. One that waits for us itself holds up nothing, or both
    /// would wait for ever.
    fn may_stop(&self, deleted: &DeletedWorkload, store: &WorkloadStateStore) -> bool {
        if store.may_stop(&deleted.dependencies) {
            return true;
        }
        deleted.dependencies.iter().all(|(name, condition)| {
            let one = BTreeMap::from([(name.clone(), *condition)]);
            let in_circle = || store.is_stopping(name, *condition) && self.waits_for(name, &deleted.instance.workload);
            store.may_stop(&one) || in_circle()
        })
    }

    /// Whether the end of `name` waits for that of `other`, directly or not.
    fn waits_for(&self, name: &str, other: &str) -> bool {
        let (mut open, mut seen) = (vec![name], BTreeSet::new());
        while let Some(name) = open.pop() {
            let next = match self.queue.get(name) {
                Some(Waiting::Delete(deleted)) => &deleted.dependencies,
                Some(Waiting::UpdateDelete(updated) | Waiting::Withhold(updated)) => &updated.deleted.dependencies,
                _ => continue,
            };
            if next.contains_key(other) {
                return true;
            }
            open.extend(next.keys().map(String::as_str).filter(|name| seen.insert(*name)));
        }
        false
    }

    /// The operation that waits for `workload`.
    #[must_use]
    pub fn get(&self, workload: &str) -> Option<&Waiting> {
        self.queue.get(workload)
    }

    /// How many operations wait, and for how many workloads.
    #[cfg(test)]
    pub fn sizes(&self) -> [usize; 2] {
        [self.queue.len(), self.waiters.values().map(BTreeSet::len).sum()]
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
            Waiting::UpdateCreate(updated) | Waiting::UpdateDelete(updated) | Waiting::Withhold(updated) => {
                &updated.new.instance.workload
            }
        }
        .clone();
        debug_assert!(!self.queue.contains_key(&name), "the caller takes an older operation out first");
        for dependency in waiting.dependencies() {
            self.waiters.entry(dependency.clone()).or_default().insert(name.clone());
        }
        self.queue.insert(name, waiting);
    }
}

/// Whether those that depend on `deleted` have no container here any more: its end must not hurt them.
fn are_gone(deleted: &DeletedWorkload, store: &WorkloadStateStore) -> bool {
    deleted.dependencies.keys().all(|name| store.has_no_container(name))
}

#[cfg(test)]
mod tests;
