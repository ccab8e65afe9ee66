//! What happens to containers that an earlier life of the agent left behind (resume, reuse, replace, delete), and to
//! our own workloads with another hello of the server.
//!
//! Thread: `scheduler`; part of [`RuntimeManager`].

use super::preparing::is_prepared;
use super::{Existing, RuntimeManager, WorkloadThreads};
use crate::agent::probes::short_info;
use crate::agent::settings::RerunFinished;
use crate::agent::wish_slot::{OnExisting, Surplus, Wish};
use crate::agent::workload_scheduler::Change;
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::lifecycle::Check;
use crate::model::messages::{AddedWorkload, DeletedWorkload};
use crate::model::names::Name;
use crate::model::workload::Workload;
use crate::platform::clock::Clock;
use crate::platform::logging::log_source;
use crate::runtime::ListedContainer;
use crate::runtime::container_records::{Noted, leave_strangers};
use log::info;
use std::collections::{BTreeMap, BTreeSet};

impl<C: Clock, T: WorkloadThreads<C>> RuntimeManager<C, T> {
    /// Takes all workloads that the server wants and all containers that exist and have no object yet; returns what is
    /// to be done about them. Within one life of the agent an unchanged workload is left alone in whatever state it is.
    // [impl->swdd~agent-initial-list-existing-workloads~1]
    pub fn hello(&mut self, added: Vec<AddedWorkload>, existing: Vec<Existing>) -> (Vec<Change>, Vec<WorkloadState>) {
        self.staging.hello_is_done();
        self.touch_waiting();
        let wanted: BTreeMap<Name, AddedWorkload> =
            added.into_iter().map(|added| (added.instance.workload.clone(), added)).collect();
        let mut changes = self.unneeded(&wanted);
        let mut reports = Vec::new();
        let mut found = self.unaccounted(existing, |name| wanted.get(name));
        for (name, added) in wanted {
            let known = self.live(&name).is_some() || self.scheduler.get(&name).is_some();
            if known && self.is_settled(&added) {
                continue;
            }
            let candidates = if known { None } else { found.remove(&name) };
            changes.extend(match candidates {
                Some(candidates) => self.adopt(added, candidates, &mut reports),
                // [impl->swdd~agent-existing-workloads-starts-new-if-not-found~1]
                None => Some(Change::run(added)),
            });
        }
        reports.extend(self.discard(found));
        (changes, reports)
    }

    /// Of all that was found until now, takes those containers that run as `wanted` says, and deletes the others of the
    /// same workloads. The rest stays in `found` until all engines have listed.
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
            // The conditions of what is known were evaluated when it came; the activation counts once.
            if self.objects.contains_key(name) || self.scheduler.get(name).is_some() {
                continue;
            }
            self.note_wanted(added);
            if self.conditions.is_inactive(name) || !by_workload.get(name).is_some_and(|found| found.iter().any(serves))
            {
                continue;
            }
            let Some(candidates) = by_workload.remove(name) else { continue };
            self.adopt(added.clone(), candidates, &mut reports); // It resumes, so nothing else is to be done.
        }
        *found = others.into_iter().chain(by_workload.into_values().flatten()).collect();
        reports
    }

    /// Containers that a listing showed late. A create that still waits gets the one that serves it, as with a hello;
    /// what no object accounts for is deleted.
    pub fn found_late(&mut self, existing: Vec<Existing>) -> (Vec<Change>, Vec<WorkloadState>) {
        let (mut changes, mut reports) = (Vec::new(), Vec::new());
        let mut found = self.unaccounted(existing, |name| self.scheduler.new_of(name));
        let waiting = found.keys().filter(|name| !self.objects.contains_key(*name));
        let waiting: Vec<AddedWorkload> = waiting.filter_map(|name| self.scheduler.new_of(name).cloned()).collect();
        for added in waiting {
            let name = added.instance.workload.clone();
            let Some(candidates) = found.remove(&name) else { continue };
            match self.adopt(added, candidates, &mut reports) {
                Some(change) => changes.push(change),
                None => _ = self.scheduler.take(&name), // It runs already.
            }
        }
        reports.extend(self.discard(found));
        (changes, reports)
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
            let ordered = || self.objects.get(name)?.workload.as_ref();
            let wanted = wanted(name).map(|added| &added.workload).or_else(ordered);
            leave_strangers(candidates, |(_, one)| one, |one| self.noted(one), wanted.map(|workload| &**workload));
            candidates.retain(|(runtime, container)| !self.is_ours(runtime, container));
        }
        found.retain(|_, candidates| !candidates.is_empty());
        found
    }

    fn noted(&self, (runtime, container): &Existing) -> Noted {
        let Some(source) = self.context.engines.get(runtime) else { return Noted::No };
        let connector = (source.connect)();
        if connector.is_noted(&container.instance, &container.id) {
            Noted::Runs
        } else if is_prepared(&*connector, container) {
            Noted::Prepared
        } else {
            Noted::No
        }
    }

    /// Whether the object of that name accounts for the container. Instances of two runtimes may have the same id.
    fn is_ours(&self, runtime: &Name, container: &ListedContainer) -> bool {
        let object = self.objects.get(&container.instance.workload);
        object.is_some_and(|object| object.instance == container.instance && object.runtime == *runtime)
    }

    /// Deletes of what the server does not want any more. A delete that waits already goes on waiting.
    fn unneeded(&self, wanted: &BTreeMap<Name, AddedWorkload>) -> Vec<Change> {
        let objects = self.objects.iter().filter(|(_, object)| !object.ending).map(|(name, _)| name);
        let names: BTreeSet<&Name> = objects.chain(self.scheduler.iter().map(|change| &change.name)).collect();
        let gone = names.into_iter().filter(|name| !wanted.contains_key(*name));
        gone.filter_map(|name| {
            let waiting = self.scheduler.get(name);
            if matches!(waiting, Some(Change { new: None, .. })) {
                return None;
            }
            let _source = log_source(name.clone());
            info!("Deleting existing workload '{name}', which is not needed.");
            let waited = waiting.filter(|change| !change.withheld).and_then(|change| change.deleted.as_ref());
            let dependencies = waited.map(|deleted| deleted.dependencies.clone()).unwrap_or_default();
            let pending = self.scheduler.new_of(name).map(|added| &added.instance);
            let instance = self.live(name).map(|object| &object.instance).or(pending)?.clone();
            Some(Change::replace(DeletedWorkload { instance, dependencies }, None))
        })
        .collect()
    }

    /// Whether what the server wants is what runs or waits already.
    fn is_settled(&self, added: &AddedWorkload) -> bool {
        let name = &added.instance.workload;
        match self.scheduler.get(name) {
            Some(waiting) => waiting.new.as_ref() == Some(added),
            None => self.live(name).is_some_and(|object| object.runs(added)),
        }
    }

    /// Whether the workload runs here, waits to, or has one of the containers found, which goes on.
    #[must_use]
    pub fn has_already(&self, added: &AddedWorkload, found: &[Existing]) -> bool {
        let name = &added.instance.workload;
        let waits = self.scheduler.new_of(name) == Some(added);
        if waits || self.live(name).is_some_and(|object| object.runs(added)) {
            return true;
        }
        let mut candidates: Vec<&Existing> = found.iter().filter(|(_, one)| one.instance.workload == *name).collect();
        leave_strangers(&mut candidates, |(_, one)| one, |one| self.noted(one), Some(&added.workload));
        candidates.into_iter().any(|(runtime, container)| self.stays(added, runtime, container))
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

    /// Decides about a wanted workload with existing containers, of which all but one are too many.
    fn adopt(
        &mut self,
        added: AddedWorkload,
        mut candidates: Vec<Existing>,
        reports: &mut Vec<WorkloadState>,
    ) -> Option<Change> {
        let name = added.instance.workload.clone();
        let _source = log_source(name.clone());
        let mut surplus = self.take_staged(&name, &mut candidates);
        surplus.extend(self.take_prepared(&added, &mut candidates));
        let Some((runtime, container)) = take_best(&mut candidates, &added) else {
            reports.extend(self.remove(surplus));
            return Some(Change::run(added));
        };
        let unchanged = is_unchanged(&added, &runtime, &container);
        self.note_wanted(&added);
        let stays = !self.conditions.is_inactive(&name) && self.stays(&added, &runtime, &container);
        let held = Some(container.id.clone());
        surplus.extend(candidates.into_iter().map(surplus_of));
        // [impl->swdd~agent-existing-workloads-resume-existing~2]
        if stays {
            info!("Resuming workload '{name}'");
            let mut order = self.order(&added);
            order.existing = OnExisting::TakeOver;
            // Others may wait for it or depend on it already.
            let state = adopted_state(&added.workload, container.state);
            reports.push(WorkloadState::new(added.instance.clone(), state));
            let wish = Some(Wish::Run(Box::new(order)));
            reports.extend(self.start_loop(added.instance, runtime, held, surplus, wish));
            return None;
        }
        let ended_well = unchanged && !self.conditions.is_inactive(&name) && container.state.phase == Phase::Succeeded;
        let reuse = ended_well && self.can_start_again(&runtime);
        let what = if reuse { "Re-starting workload" } else { "Replacing existing workload" };
        info!("{what} '{name}'{}", if reuse { "" } else { "." });
        let old = container.instance.clone();
        reports.extend(self.start_loop(container.instance, runtime, held, surplus, None));
        if reuse {
            if let Some(object) = self.objects.get_mut(&name) {
                object.start_again_for = Some(added.clone());
            }
            return Some(Change::run(added));
        }
        // [impl->swdd~agent-existing-workloads-replace-updated~2]
        Some(Change::replace(DeletedWorkload { instance: old, dependencies: BTreeMap::new() }, Some(added)))
    }

    /// Deletes containers that are not wanted: the control loop of their workload does it, or one made for that.
    // [impl->swdd~agent-existing-workloads-delete-unneeded~1]
    // [impl->swdd~agent-delete-old-workload~2]
    fn discard(&mut self, mut found: BTreeMap<Name, Vec<Existing>>) -> Vec<WorkloadState> {
        let mut reports = Vec::new();
        let unused: Vec<Surplus> =
            found.iter_mut().flat_map(|(name, candidates)| self.take_staged(name, candidates)).collect();
        reports.extend(self.remove(unused));
        for (runtime, container) in found.into_values().flatten() {
            let name = &container.instance.workload;
            let _source = log_source(name.clone());
            info!("Deleting existing workload '{name}', which is not needed.");
            if self.objects.contains_key(name) {
                reports.extend(self.remove(vec![surplus_of((runtime, container))]));
            } else {
                let held = Some(container.id);
                reports.extend(self.start_loop(container.instance, runtime, held, Vec::new(), Some(Wish::End)));
            }
        }
        reports
    }

    fn can_start_again(&self, runtime: &Name) -> bool {
        self.context.engines.get(runtime).is_some_and(|source| (source.connect)().can_start_again())
    }
}

fn surplus_of((runtime, ListedContainer { instance, id, .. }): Existing) -> Surplus {
    Surplus { runtime, instance, id, is_unused: false }
}

fn is_unchanged(added: &AddedWorkload, runtime: &Name, container: &ListedContainer) -> bool {
    container.instance == added.instance && *runtime == added.workload.runtime
}

/// The state to show for a container of an earlier agent that was not probed yet.
fn adopted_state(workload: &Workload, state: ExecutionState) -> ExecutionState {
    let config = workload.config();
    match config.usable_lifecycle().and_then(|lifecycle| lifecycle.ready.as_ref()) {
        Some(ready) if state.phase == Phase::Running && ready.check != Check::Notify => ExecutionState::with_info(
            Phase::PendingStarting,
            short_info(format!("ready: {} is being probed", ready.check)),
        ),
        _ => state,
    }
}

/// Takes the container that serves the wanted workload best: of its runtime, unchanged, running, in this order. One of
/// another runtime serves as well, since it must be gone before the new one comes. The others stay and will be deleted.
fn take_best(candidates: &mut Vec<Existing>, added: &AddedWorkload) -> Option<Existing> {
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
