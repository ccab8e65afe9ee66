//! What happens to containers that an earlier life of the agent left behind (resume, reuse, replace, delete), and to
//! our own workloads with another hello of the server.
//!
//! Thread: `scheduler`; part of [`RuntimeManager`].

use super::next::{is_prepared, surplus_of};
use super::{Change, Existing, Record, RuntimeManager, Waits, WorkloadThreads};
use crate::agent::conditions::Gate;
use crate::agent::probes::short_info;
use crate::agent::settings::RerunFinished;
use crate::agent::wish_slot::{OnExisting, Surplus, Wish};
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::lifecycle::Check;
use crate::model::messages::{AddedWorkload, DeletedWorkload};
use crate::model::names::{InstanceName, Name};
use crate::model::workload::{DeleteCondition, Workload};
use crate::platform::clock::Clock;
use crate::platform::logging::log_source;
use crate::runtime::ListedContainer;
use crate::runtime::container_records::{Noted, leave_strangers};
use log::info;
use std::collections::{BTreeMap, BTreeSet};

/// What the server wants, until it is known which containers there are.
#[derive(Debug, Default)]
pub struct Hello {
    /// The workloads of the hello, and of the plans that came since.
    pub wanted: BTreeMap<Name, AddedWorkload>,
    /// What those plans have deleted, with the dependencies of the newest delete.
    pub deleted: BTreeMap<Name, BTreeMap<String, DeleteCondition>>,
    /// All instances that they have deleted.
    pub gone: BTreeSet<InstanceName>,
}

impl<C: Clock, T: WorkloadThreads<C>> RuntimeManager<C, T> {
    /// What a hello changes; unneeded workloads first. Within one life of the agent an unchanged workload is left alone in
    /// whatever state it is. What exists was taken in by [`Self::take_existing`].
    // [impl->swdd~agent-initial-list-existing-workloads~1]
    // [impl->swdd~agent-existing-workloads-starts-new-if-not-found~1]
    pub fn hello(
        &mut self,
        wanted: BTreeMap<Name, AddedWorkload>,
        mut deleted: BTreeMap<Name, BTreeMap<String, DeleteCondition>>,
    ) -> Vec<Change> {
        self.awaits_hello = false;
        self.touch_waiting();
        let unneeded = self.records.keys().filter(|name| !wanted.contains_key(*name)).cloned();
        let all: Vec<_> = unneeded.map(|name| (name, None)).collect();
        let all = all.into_iter().chain(wanted.into_iter().map(|(name, added)| (name, Some(added))));
        let change = |(name, new): (Name, Option<AddedWorkload>)| {
            let record = self.records.get(&name);
            let live = record.and_then(Record::live).map(|object| object.instance.clone());
            let is_settled = record.is_some_and(|record| {
                record.wanted == new && (record.waits != Waits::No || new.as_ref().is_none_or(|new| record.runs(new)))
            });
            // What was never wanted here and is held goes as well.
            let is_settled =
                is_settled && (new.is_some() || live.is_none() || record.is_some_and(Record::waits_to_stop));
            // What waits already goes on waiting for its users.
            let dependencies = deleted.remove(&name);
            let deleted = live.zip(dependencies);
            let deleted = deleted.map(|(instance, dependencies)| DeletedWorkload { instance, dependencies });
            if !is_settled && new.is_none() {
                let _source = log_source(name.clone());
                info!("Deleting existing workload '{name}', which is not needed.");
            }
            (!is_settled).then_some(Change { name, new, deleted })
        };
        all.filter_map(change).collect()
    }

    /// Of all that was found until now, takes those containers that run as `wanted` says, and deletes the others of the
    /// same workloads. The rest stays in `found` until all engines have listed.
    pub fn resume_running(&mut self, hello: &Hello, found: &mut Vec<Existing>) -> Vec<WorkloadState> {
        let Hello { wanted, deleted, .. } = hello;
        let mut reports = Vec::new();
        // What others are is known when all is known that is wanted.
        let (candidates, others): (Vec<Existing>, Vec<Existing>) =
            found.drain(..).partition(|(_, container)| wanted.contains_key(&container.instance.workload));
        let mut by_workload = self.unaccounted(candidates, wanted);
        for (name, added) in wanted.iter().filter(|(name, _)| !deleted.contains_key(*name)) {
            let serves = |(runtime, container): &Existing| {
                is_unchanged(added, runtime, container) && container.state.phase == Phase::Running
            };
            if self.records.get(name).is_some_and(|record| record.wanted.is_some() || record.object.is_some()) {
                continue;
            }
            let is_served = by_workload.get(name).is_some_and(|found| found.iter().any(serves));
            if is_served && !self.gate(added, false).is_some_and(|gate| gate.is_inactive()) {
                let candidates = by_workload.remove(name).unwrap_or_default();
                self.adopt(name, Some(added), candidates, &mut reports); // It resumes, so nothing else is to be done.
            }
        }
        *found = others.into_iter().chain(by_workload.into_values().flatten()).collect();
        reports
    }

    /// Takes in containers that a listing showed, as far as no object accounts for them: what serves one of the `wanted`
    /// workloads goes on, the others go before that is started, or when their users let them. Returns states to report.
    pub fn take_existing(
        &mut self,
        wanted: &BTreeMap<Name, AddedWorkload>,
        existing: Vec<Existing>,
    ) -> Vec<WorkloadState> {
        let mut reports = Vec::new();
        for (name, mut candidates) in self.unaccounted(existing, wanted) {
            if self.records.get(&name).is_some_and(|record| record.object.is_some()) {
                let mut surplus = self.take_prepared(&name, None, &mut candidates);
                surplus.extend(candidates.iter().map(|(runtime, container)| surplus_of(runtime, container)));
                reports.extend(self.remove(surplus));
            } else {
                self.adopt(&name, wanted.get(&name), candidates, &mut reports);
            }
        }
        reports
    }

    /// Containers that a listing showed after the hello. Returns changes, and states to report first.
    pub fn found_late(&mut self, existing: Vec<Existing>) -> (Vec<Change>, Vec<WorkloadState>) {
        let names: BTreeSet<Name> = existing.iter().map(|(_, found)| found.instance.workload.clone()).collect();
        let waiting = |name: &Name| Some((name.clone(), self.records.get(name)?.waiting()?.clone()));
        let wanted: BTreeMap<Name, AddedWorkload> = names.iter().filter_map(waiting).collect();
        let without_object = |name: &&Name| self.records.get(*name).is_none_or(|record| record.object.is_none());
        let names: Vec<Name> = names.iter().filter(without_object).cloned().collect();
        let reports = self.take_existing(&wanted, existing);
        let changed = names.into_iter().filter(|name| {
            let record = self.records.get(name);
            record.is_some_and(|record| record.live().is_some_and(|object| object.workload.is_none()))
        });
        let changes = changed.map(|name| Change { new: wanted.get(&name).cloned(), name, deleted: None });
        (changes.collect(), reports)
    }

    /// By workload, what belongs to it and no object accounts for.
    fn unaccounted(
        &self,
        existing: Vec<Existing>,
        wanted: &BTreeMap<Name, AddedWorkload>,
    ) -> BTreeMap<Name, Vec<Existing>> {
        let mut found: BTreeMap<Name, Vec<Existing>> = BTreeMap::new();
        for (runtime, container) in existing {
            found.entry(container.instance.workload.clone()).or_default().push((runtime, container));
        }
        for (name, candidates) in &mut found {
            let object = self.records.get(name).and_then(|record| record.object.as_ref());
            let ordered = || object?.workload.as_ref();
            let wanted = wanted.get(name).map(|added| &added.workload).or_else(ordered);
            leave_strangers(candidates, |(_, one)| one, |one| self.noted(one), wanted.map(|workload| &**workload));
            // Instances of two runtimes may have the same id.
            candidates.retain(|(runtime, container)| {
                object.is_none_or(|object| object.instance != container.instance || object.runtime != *runtime)
            });
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

    /// Whether a container is left as it is when this is wanted.
    fn stays(&self, added: &AddedWorkload, runtime: &Name, container: &ListedContainer) -> bool {
        let ended = matches!(container.state.phase, Phase::Succeeded | Phase::FailedExecFailed);
        let stays_ended = match self.rerun {
            RerunFinished::Always => false,
            RerunFinished::EndedBefore(boot) => ended && container.ended_at.is_some_and(|at| at >= boot),
        };
        is_unchanged(added, runtime, container) && (container.state.phase == Phase::Running || stays_ended)
    }

    /// Takes in the existing containers of a workload, of which all but one are too many.
    // [impl->swdd~agent-existing-workloads-delete-unneeded~1]
    // [impl->swdd~agent-delete-old-workload~2]
    fn adopt(
        &mut self,
        name: &Name,
        wanted: Option<&AddedWorkload>,
        mut candidates: Vec<Existing>,
        reports: &mut Vec<WorkloadState>,
    ) {
        let _source = log_source(name.clone());
        let mut surplus = self.take_prepared(name, wanted, &mut candidates);
        let Some((runtime, container)) = take_best(&mut candidates, wanted) else {
            return reports.extend(self.remove(surplus));
        };
        surplus.extend(candidates.iter().map(|(runtime, container)| surplus_of(runtime, container)));
        let held = Some(container.id.clone());
        let Some(added) = wanted else {
            return reports.extend(self.start_loop(container.instance, runtime, held, surplus, None));
        };
        let gate = self.gate(added, false);
        let is_active = !gate.as_ref().is_some_and(Gate::is_inactive);
        // [impl->swdd~agent-existing-workloads-resume-existing~2]
        if is_active && self.stays(added, &runtime, &container) {
            info!("Resuming workload '{name}'");
            let mut order = self.order(added);
            order.existing = OnExisting::TakeOver;
            // Others may wait for it or depend on it already.
            let state = adopted_state(&added.workload, container.state);
            reports.push(WorkloadState::new(added.instance.clone(), state));
            let wish = Some(Wish::Run(Box::new(order)));
            reports.extend(self.start_loop(added.instance.clone(), runtime, held, surplus, wish));
            let record = self.records.entry(name.clone()).or_default();
            (record.wanted, record.gate) = (Some(added.clone()), gate);
            return self.wait(name, Waits::No, BTreeMap::new());
        }
        let reuse = is_active
            && is_unchanged(added, &runtime, &container)
            && container.state.phase == Phase::Succeeded
            && self.can_start_again(&runtime);
        // [impl->swdd~agent-existing-workloads-replace-updated~2]
        let what = if reuse { "Re-starting workload" } else { "Replacing existing workload" };
        info!("{what} '{name}'{}", if reuse { "" } else { "." });
        reports.extend(self.start_loop(container.instance, runtime, held, surplus, None));
        if let Some(object) = self.records.get_mut(name).and_then(|record| record.object.as_mut()) {
            object.start_again_for = reuse.then(|| added.clone());
        }
    }

    /// Gives containers to remove to the control loop of their workload, or to one made for that.
    fn remove(&mut self, surplus: Vec<Surplus>) -> Vec<WorkloadState> {
        let mut reports = Vec::new();
        for one in surplus {
            let (instance, runtime) = (one.instance.clone(), one.runtime.clone());
            let object = self.records.get(&instance.workload).and_then(|record| record.object.as_ref());
            if object.is_none_or(|object| object.wishes.put_surplus(vec![one.clone()]).is_err()) {
                reports.extend(self.start_loop(instance, runtime, None, vec![one], Some(Wish::End)));
            }
        }
        reports
    }

    fn can_start_again(&self, runtime: &Name) -> bool {
        self.context.engines.get(runtime).is_some_and(|source| (source.connect)().can_start_again())
    }
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
fn take_best(candidates: &mut Vec<Existing>, wanted: Option<&AddedWorkload>) -> Option<Existing> {
    let rank = |(runtime, container): &Existing| {
        let fits = wanted.is_some_and(|added| added.workload.runtime == *runtime);
        let unchanged = wanted.is_some_and(|added| added.instance == container.instance);
        (fits, unchanged, container.state.phase == Phase::Running)
    };
    let (index, _) =
        candidates.iter().enumerate().max_by_key(|(index, existing)| (rank(existing), std::cmp::Reverse(*index)))?;
    Some(candidates.swap_remove(index))
}

#[cfg(test)]
mod tests;
