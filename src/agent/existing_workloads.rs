//! What happens to containers that an earlier life of the agent left behind (resume, reuse, replace, delete), and to
//! our own workloads when the server says hello again.
//!
//! Thread: `scheduler`; part of [`RuntimeManager`].

use super::lifecycle::adopted_state;
use super::runtime_manager::{Identity, RerunFinished, RuntimeManager, WorkloadThreads};
use super::workload_command::{HeldContainer, OtherEngine, WorkloadCommand};
use super::workload_scheduler::{Created, Operation, Updated, Waiting};
use crate::clock::Clock;
use crate::model::execution_state::{Phase, WorkloadState};
use crate::model::messages::{AddedWorkload, DeletedWorkload};
use crate::model::names::Name;
use crate::runtime::ListedContainer;
use crate::runtime::container_records::leave_strangers;
use log::info;
use std::collections::{BTreeMap, BTreeSet};

/// A container with the name of its runtime.
pub type Existing = (Name, ListedContainer);

impl<C: Clock, T: WorkloadThreads<C>> RuntimeManager<C, T> {
    /// Takes all workloads that the server wants and all containers that exist and have no object yet; answers what
    /// is to be done about them (spec/agent.md section 6). Within one life of the agent an unchanged workload is
    /// left alone in whatever state it is (FIX-4, FIX-22).
    // [impl->swdd~agent-initial-list-existing-workloads~1]
    pub fn hello(
        &mut self,
        added: Vec<AddedWorkload>,
        existing: Vec<Existing>,
    ) -> (Vec<Operation>, Vec<WorkloadState>) {
        let wanted: BTreeMap<Name, AddedWorkload> =
            added.into_iter().map(|added| (added.instance.workload.clone(), added)).collect();
        let mut operations = self.unneeded(&wanted);
        let mut reports = Vec::new();
        let mut found = self.unaccounted(existing, |name| wanted.get(name));
        for (name, added) in wanted {
            let known = self.live(&name).is_some() || self.scheduler.get(&name).is_some();
            if known && self.is_settled(&added) {
                continue;
            }
            let best = if known { None } else { take_best(&mut found, &added) };
            operations.push(match best {
                Some(container) => match self.adopt(added, container, &runtimes(&found, &name), &mut reports) {
                    Some(operation) => operation,
                    None => continue,
                },
                // [impl->swdd~agent-existing-workloads-starts-new-if-not-found~1]
                None => Operation::Create(Created { added, reuse: false }),
            });
        }
        for (runtime, container) in found.into_values().flatten() {
            reports.extend(self.discard(&runtime, container));
        }
        (operations, reports)
    }

    /// Of all that was found until now, takes those containers that run as `wanted` says, and deletes the others of the
    /// same workloads. The rest stays in `found`: other engines may have something to say.
    pub fn resume_running<'a>(
        &mut self,
        wanted: impl Iterator<Item = &'a AddedWorkload>,
        found: &mut Vec<Existing>,
    ) -> Vec<WorkloadState> {
        let mut reports = Vec::new();
        let wanted: BTreeMap<&Name, &AddedWorkload> = wanted.map(|added| (&added.instance.workload, added)).collect();
        // What others are is known when all is known that is wanted.
        let (candidates, others): (Vec<Existing>, Vec<Existing>) =
            found.drain(..).partition(|(_, container)| wanted.contains_key(&container.instance.workload));
        let mut by_workload = self.unaccounted(candidates, |name| wanted.get(name).copied());
        for added in wanted.into_values() {
            let name = &added.instance.workload;
            let serves = |(runtime, container): &Existing| {
                is_unchanged(added, runtime, container) && container.state.phase == Phase::Running
            };
            // What is known was looked at when it came: once for its activation, and what waits for its precondition would
            // be forgotten.
            if self.objects.contains_key(name) || self.scheduler.get(name).is_some() {
                continue;
            }
            self.note_wanted(added);
            if self.is_inactive(name) || !by_workload.get(name).is_some_and(|found| found.iter().any(serves)) {
                continue;
            }
            let Some(best) = take_best(&mut by_workload, added) else { continue };
            // It resumes, so nothing else is to be done.
            self.adopt(added.clone(), best, &runtimes(&by_workload, name), &mut reports);
            for (runtime, container) in by_workload.remove(name).into_iter().flatten() {
                reports.extend(self.discard(&runtime, container));
            }
        }
        *found = others.into_iter().chain(by_workload.into_values().flatten()).collect();
        reports
    }

    /// Containers that a listing showed late. A create that still waits gets the one that serves it, as with a hello;
    /// what no object accounts for is deleted.
    pub fn found_late(&mut self, existing: Vec<Existing>) -> (Vec<Operation>, Vec<WorkloadState>) {
        let (mut operations, mut reports) = (Vec::new(), Vec::new());
        let mut found = self.unaccounted(existing, |name| self.scheduler.get(name)?.new_instance());
        let waiting = found.keys().filter(|name| !self.objects.contains_key(*name));
        let waiting = waiting.filter_map(|name| self.scheduler.get(name)?.new_instance().cloned());
        for added in waiting.collect::<Vec<_>>() {
            let Some(best) = take_best(&mut found, &added) else { continue };
            let name = added.instance.workload.clone();
            match self.adopt(added, best, &runtimes(&found, &name), &mut reports) {
                Some(operation) => operations.push(operation),
                None => _ = self.scheduler.take(&name), // It runs already.
            }
        }
        for (runtime, container) in found.into_values().flatten() {
            reports.extend(self.discard(&runtime, container));
        }
        (operations, reports)
    }

    /// By workload, what belongs to it and no object accounts for.
    fn unaccounted<'a>(
        &'a self,
        existing: Vec<Existing>,
        wanted: impl Fn(&Name) -> Option<&'a AddedWorkload>,
    ) -> BTreeMap<Name, Vec<Existing>> {
        let mut found: BTreeMap<Name, Vec<Existing>> = BTreeMap::new();
        for (runtime, container) in existing {
            found.entry(container.instance.workload.clone()).or_default().push((runtime, container));
        }
        for (name, candidates) in &mut found {
            let ordered = || self.objects.get(name)?.workload();
            let wanted = wanted(name).map(|added| &added.workload).or_else(ordered);
            leave_strangers(candidates, |(_, one)| one, |one| self.is_noted(one), wanted.map(|workload| &**workload));
            candidates.retain(|(runtime, container)| !self.is_ours(runtime, container));
        }
        found.retain(|_, candidates| !candidates.is_empty());
        found
    }

    fn is_noted(&self, (runtime, container): &Existing) -> bool {
        let engine = self.engine(runtime);
        engine.is_some_and(|engine| engine.connector.is_noted(&container.instance, &container.id))
    }

    /// Whether the object of that name accounts for the container. The id of an instance does not tell its runtime.
    fn is_ours(&self, runtime: &Name, container: &ListedContainer) -> bool {
        let object = self.objects.get(&container.instance.workload);
        object.is_some_and(|object| object.instance == container.instance && object.runtime == *runtime)
    }

    /// Deletes of what the server does not want any more. A delete that waits already goes on waiting.
    fn unneeded(&self, wanted: &BTreeMap<Name, AddedWorkload>) -> Vec<Operation> {
        let objects = self.objects.iter().filter(|(_, object)| !object.deleting).map(|(name, _)| name);
        let names: BTreeSet<&Name> = objects.chain(self.scheduler.names()).collect();
        let gone = names.into_iter().filter(|name| !wanted.contains_key(*name));
        gone.filter_map(|name| {
            let dependencies = match self.scheduler.get(name) {
                Some(Waiting::Delete(_)) => return None,
                Some(Waiting::UpdateDelete(updated)) => updated.deleted.dependencies.clone(),
                _ => BTreeMap::new(),
            };
            info!("Found existing workload '{name}' is not needed.");
            let pending = self.scheduler.get(name).and_then(Waiting::new_instance).map(|added| &added.instance);
            let instance = self.live(name).map(|object| &object.instance).or(pending)?.clone();
            Some(Operation::Delete(DeletedWorkload { instance, dependencies }))
        })
        .collect()
    }

    /// Whether what the server wants is what runs or waits already.
    fn is_settled(&self, added: &AddedWorkload) -> bool {
        let name = &added.instance.workload;
        match self.scheduler.get(name) {
            Some(waiting) => waiting.new_instance() == Some(added),
            None => self.live(name).is_some_and(|object| object.runs(added)),
        }
    }

    /// Whether what the server said runs here, waits to, or is one of the containers found, which goes on.
    #[must_use]
    pub fn has_already(&self, said: &AddedWorkload, found: &[Existing]) -> bool {
        let name = &said.instance.workload;
        let waits = self.scheduler.get(name).and_then(Waiting::new_instance) == Some(said);
        if waits || self.live(name).is_some_and(|object| object.runs(said)) {
            return true;
        }
        let mut candidates: Vec<&Existing> = found.iter().filter(|(_, one)| one.instance.workload == *name).collect();
        leave_strangers(&mut candidates, |(_, one)| one, |one| self.is_noted(one), Some(&said.workload));
        candidates.into_iter().any(|(runtime, container)| self.stays(said, runtime, container))
    }

    /// Whether a container is left as it is when this is wanted.
    fn stays(&self, added: &AddedWorkload, runtime: &Name, container: &ListedContainer) -> bool {
        let ended = matches!(container.state.phase, Phase::Succeeded | Phase::FailedExecFailed);
        let stays_ended = match self.rerun {
            RerunFinished::Always => false,
            RerunFinished::EndedBefore(boot) => ended && container.ended_at.is_some_and(|at| at >= boot),
        };
        is_unchanged(added, runtime, container) && (container.state.phase == Phase::Running || stays_ended)
    }

    /// Decides about a wanted workload with an existing container. There are more, which will be removed, in the
    /// runtimes of `surplus`.
    fn adopt(
        &mut self,
        added: AddedWorkload,
        (runtime, container): Existing,
        surplus: &BTreeSet<Name>,
        reports: &mut Vec<WorkloadState>,
    ) -> Option<Operation> {
        let name = added.instance.workload.clone();
        let unchanged = is_unchanged(&added, &runtime, &container);
        self.note_wanted(&added);
        // [impl->swdd~agent-existing-workloads-resume-existing~2]
        if !self.is_inactive(&name) && self.stays(&added, &runtime, &container) {
            info!("Resuming workload '{name}'");
            let resume = WorkloadCommand::Resume(self.order_beside(&added, surplus), container.id);
            // Others may wait for it or depend on it already.
            let state = adopted_state(&added.workload, container.state);
            reports.push(WorkloadState::new(added.instance.clone(), state));
            reports.extend(self.start_loop(&name, Identity::of(&added), vec![resume]));
            return None;
        }
        let old = container.instance.clone();
        let ended_well = unchanged && !self.is_inactive(&name) && container.state.phase == Phase::Succeeded;
        let reuse = ended_well && self.engine(&runtime).is_some_and(|engine| engine.connector.can_start_again());
        let what = if reuse { "Re-starting workload" } else { "Replacing existing workload" };
        info!("{what} '{name}'{}", if reuse { "" } else { "." });
        let identity = identity(&runtime, &container);
        if let Some(held) = self.hold(&runtime, container, false) {
            reports.extend(self.start_loop(&name, identity, vec![held]));
        }
        if reuse {
            return Some(Operation::Create(Created { added, reuse }));
        }
        // [impl->swdd~agent-existing-workloads-replace-updated~2]
        let deleted = DeletedWorkload { instance: old, dependencies: BTreeMap::new() };
        Some(Operation::Update(Updated { new: added, deleted }))
    }

    /// Deletes a container that nobody wants, with a loop of its own.
    // [impl->swdd~agent-existing-workloads-delete-unneeded~1]
    // [impl->swdd~agent-delete-old-workload~2]
    fn discard(&mut self, runtime: &Name, container: ListedContainer) -> Vec<WorkloadState> {
        let name = container.instance.workload.clone();
        info!("Found existing workload '{name}' is not needed.");
        info!("Directly deleting workload {name}");
        // A dot cannot be part of a workload's name, so this never takes the place of a wanted workload.
        let key = if self.objects.contains_key(&name) {
            format!("{}.{}", container.instance, container.id.0).into()
        } else {
            name
        };
        let identity = identity(runtime, &container);
        self.tell_of_another_container(&container.instance.workload, runtime);
        // The same instance goes on elsewhere: what becomes of this container is not its state.
        let silent = self.objects.get(&container.instance.workload).is_some_and(|it| it.instance == container.instance);
        let Some(held) = self.hold(runtime, container, silent) else { return Vec::new() };
        let reports = self.start_loop(&key, identity, vec![held, WorkloadCommand::Delete]);
        if let Some(object) = self.objects.get_mut(&key) {
            object.deleting = true;
        }
        reports
    }

    /// The control loop of the workload may have given up this engine, which was silent for long: it starts nothing
    /// any more beside what the engine has. Its own engine is never given up.
    fn tell_of_another_container(&self, workload: &Name, runtime: &Name) {
        let Some(object) = self.objects.get(workload).filter(|object| object.runtime != *runtime) else { return };
        let Some(engine) = self.engine(runtime) else { return };
        let other = OtherEngine { runtime: runtime.clone(), engine, until: None };
        let _ = object.sender.send(WorkloadCommand::FoundIn(other)); // Ended means that it starts nothing.
    }

    fn hold(&self, runtime: &Name, container: ListedContainer, silent: bool) -> Option<WorkloadCommand> {
        let ListedContainer { instance, id, .. } = container;
        let engine = self.engine(runtime)?;
        Some(WorkloadCommand::Hold(HeldContainer { instance, id, engine, silent }))
    }
}

fn is_unchanged(added: &AddedWorkload, runtime: &Name, container: &ListedContainer) -> bool {
    container.instance == added.instance && *runtime == added.workload.runtime
}

/// The runtimes of what was found of a workload.
fn runtimes(found: &BTreeMap<Name, Vec<Existing>>, workload: &Name) -> BTreeSet<Name> {
    found.get(workload).into_iter().flatten().map(|(runtime, _)| runtime.clone()).collect()
}

fn identity(runtime: &Name, container: &ListedContainer) -> Identity {
    Identity { instance: container.instance.clone(), runtime: runtime.clone(), workload: None }
}

/// Takes the container that serves the wanted workload best: of its runtime, unchanged, running, in this order. One of
/// another runtime serves as well, since it must be gone before the new one comes. The others stay and will be deleted.
fn take_best(found: &mut BTreeMap<Name, Vec<Existing>>, added: &AddedWorkload) -> Option<Existing> {
    let candidates = found.get_mut(&added.instance.workload)?;
    let rank = |(runtime, container): &Existing| {
        let unchanged = container.instance == added.instance;
        (*runtime == added.workload.runtime, unchanged, container.state.phase == Phase::Running)
    };
    let (index, _) =
        candidates.iter().enumerate().max_by_key(|(index, existing)| (rank(existing), std::cmp::Reverse(*index)))?;
    Some(candidates.swap_remove(index))
}

#[cfg(test)]
mod tests;
