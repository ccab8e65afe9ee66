//! What happens to containers that an earlier life of the agent left behind (resume, reuse,
//! replace, delete), and to our own workloads with another hello of the server.
//!
//! Thread: `scheduler`; part of [`Workloads`].

use super::conditions::Gate;
use super::staging::{found_container, is_prepared};
use super::workloads::{Existing, KeptContainer, Waits, Workloads};
use crate::end_record;
use crate::events::Note;
use crate::state_checker::KnownEnd;
use crate::workload::mailbox::{FoundContainer, FoundPurpose, Run};
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::lifecycle::Check;
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::Name;
use ankaios_model::reason::{READY_PREFIX, Reason};
use ankaios_model::workload::Workload;
use ankaios_platform::clock::Clock;
use ankaios_platform::logging::log_source;
use ankaios_runtime::ListedContainer;
use ankaios_runtime::container_records::{Noted, leave_strangers};
use log::info;
use std::collections::BTreeMap;
use std::sync::Arc;

impl<C: Clock> Workloads<C> {
    /// These are all workloads that are wanted. Within one life of the agent an unchanged one is
    /// left alone in whatever state it is. Nothing is ordered before [`Self::on_listings_known`].
    // [impl->swdd~agent-initial-list-existing-workloads~1]
    // [impl->swdd~agent-existing-workloads-starts-new-if-not-found~1]
    pub(crate) fn hello(&mut self, wanted: BTreeMap<Name, AddedWorkload>) {
        self.session_begins();
        let mut all: Vec<(Name, Option<AddedWorkload>)> = Vec::new();
        for (name, record) in &mut self.records {
            record.deleted.clear();
            if !wanted.contains_key(name) {
                all.push((name.clone(), None));
            }
        }
        for (name, added) in wanted {
            all.push((name, Some(added)));
        }
        for (name, new) in all {
            if !self.is_settled(&name, new.as_ref()) {
                self.request(name, new, None);
            }
        }
    }

    /// Whether this is what a workload does, or waits for, already.
    fn is_settled(&self, name: &Name, new: Option<&AddedWorkload>) -> bool {
        let Some(record) = self.records.get(name) else {
            return false;
        };
        let is_done = match new {
            Some(new) => record.runs(new),
            None => record.current().is_none(),
        };
        record.wanted.as_ref() == new && (record.waits != Waits::No || is_done)
    }

    /// Adds to what an engine has listed the workloads that ended in an earlier life of the agent,
    /// as their records say: others may have removed their containers since.
    // [impl->swdd~agent-keeps-observed-ends~1]
    pub(crate) fn recall_ends(&self, runtime: &Name, listed: &mut Vec<ListedContainer>) {
        if !self.keeps_finished {
            return; // They run again in any case.
        }
        let Some(connector) = self.context.connector(runtime) else {
            return;
        };
        for record in self.records.values() {
            if record.control_loop.is_some() {
                continue;
            }
            let Some(added) = &record.wanted else {
                continue;
            };
            if added.workload.runtime != *runtime {
                continue;
            }
            let Some((id, state)) =
                end_record::kept(&*connector, &added.instance, &self.context.calls.boot)
            else {
                continue;
            };
            let found = listed
                .iter_mut()
                .find(|found| found.instance == added.instance);
            let Some(found) = found else {
                let instance = added.instance.clone();
                let processes = Vec::new();
                listed.push(ListedContainer {
                    id,
                    instance,
                    state,
                    processes,
                    ended_at: None,
                    in_pod: false,
                    pods: None,
                });
                continue;
            };
            // A pod that others have removed, as a whole or its container that failed, is listed in
            // another state.
            if found.id == id {
                let engine_restarts = added.workload.config().engine_restarts().is_some();
                found.state = KnownEnd::of_earlier_life(&id, state, engine_restarts).update(found);
            }
        }
    }

    /// All engines have listed their containers, or had time enough: what is wanted is ordered.
    pub(crate) fn on_listings_known(&mut self) {
        self.awaits_listings = false;
        self.dirty.extend(self.records.keys().cloned());
    }

    /// Takes in what an engine has listed. [`Self::adopt`] decides what becomes of it.
    pub(crate) fn take_listed(&mut self, runtime: &Name, listed: Vec<ListedContainer>) {
        for container in listed {
            let name = container.instance.workload.clone();
            let record = self.records.entry(name.clone()).or_default();
            record.found.push((runtime.clone(), container));
            self.dirty.insert(name);
        }
    }

    /// Decides what becomes of the containers of a workload that engines have listed: the one that
    /// is good for what is wanted is adopted, the others are removed before that is started, or
    /// when their users let them stop. Before all engines have listed, only a workload that runs as
    /// it should is adopted, and the rest waits.
    pub(super) fn adopt(&mut self, name: &Name) {
        let Some(record) = self.records.get_mut(name) else {
            return;
        };
        let mut candidates = std::mem::take(&mut record.found);
        let record = &self.records[name];
        let wanted = record.wanted.clone();
        let has_loop = record.control_loop.is_some();
        let is_active = !record.conditions.as_ref().is_some_and(Gate::is_inactive);
        self.leave_accounted(name, &mut candidates);
        if candidates.is_empty() {
            return;
        }
        if self.awaits_listings && self.listings.hold_up_hello() {
            let runs_as_wanted = candidates
                .iter()
                .any(|existing| runs_as(existing, wanted.as_ref()));
            if has_loop || !is_active || !runs_as_wanted {
                if let Some(record) = self.records.get_mut(name) {
                    record.found = candidates;
                }
                return;
            }
        }
        // What runs in a control loop may be another instance than what is wanted.
        let good_for = wanted.filter(|_| !has_loop);
        let mut adopt = self.take_prepared(name, good_for.as_ref(), &mut candidates);
        if !has_loop && let Some(best) = take_best(&mut candidates, good_for.as_ref()) {
            adopt.push(self.take_over(good_for.as_ref(), is_active, best));
        }
        for existing in &candidates {
            adopt.push(found_container(existing, FoundPurpose::Remove));
        }
        self.hand_over(name, adopt);
    }

    /// Gives containers to the control loop of the workload with its next target.
    fn hand_over(&mut self, name: &Name, adopt: Vec<FoundContainer>) {
        let Some(first) = adopt.first() else {
            return;
        };
        let has_loop = self.records[name].control_loop.is_some();
        if !has_loop {
            self.start_loop(first.instance.clone());
        }
        let Some(record) = self.records.get_mut(name) else {
            return;
        };
        if let Some(control_loop) = &mut record.control_loop {
            for found in &adopt {
                // As the control loop will report it.
                let state = match &found.purpose {
                    FoundPurpose::Adopt(_, state) => state.clone(),
                    _ => ExecutionState::plain(Phase::PendingInitial),
                };
                let instances = &mut Arc::make_mut(&mut control_loop.status).instances;
                instances.entry(found.instance.clone()).or_insert(state);
            }
        }
        record.adopt.extend(adopt);
    }

    /// Leaves out containers of others, and the one that the control loop of the workload has.
    fn leave_accounted(&self, name: &Name, candidates: &mut Vec<Existing>) {
        let record = &self.records[name];
        let control_loop = record.control_loop.as_ref();
        let ordered = control_loop.and_then(|control_loop| control_loop.target.run.added());
        let definition = record.wanted.as_ref().or(ordered);
        leave_strangers(
            candidates,
            |(_, one)| one,
            |one| self.noted(one),
            definition.map(|added| &*added.workload),
        );
        let Some(control_loop) = control_loop else {
            return;
        };
        // Instances of two runtimes may have the same id.
        candidates.retain(|(runtime, container)| {
            control_loop.current() != Some(&container.instance)
                || control_loop.runtime() != Some(runtime)
        });
    }

    fn noted(&self, (runtime, container): &Existing) -> Noted {
        let Some(connector) = self.context.connector(runtime) else {
            return Noted::No;
        };
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
        let is_kept = match container.state.phase {
            Phase::Running => true,
            phase if phase.has_ended() => {
                self.keeps_finished && self.ended_in_this_boot(added, runtime, container)
            }
            _ => false,
        };
        is_kept && is_unchanged(added, runtime, container)
    }

    /// Whether a container that has ended did so since the node booted: it is known to have run, or
    /// was seen to end.
    fn ended_in_this_boot(
        &self,
        added: &AddedWorkload,
        runtime: &Name,
        container: &ListedContainer,
    ) -> bool {
        let Some(connector) = self.context.connector(runtime) else {
            return false;
        };
        if connector.ran_in_this_boot(&added.instance, &container.id) {
            return true;
        }
        let kept = end_record::kept(&*connector, &added.instance, &self.context.calls.boot);
        kept.is_some_and(|(id, _)| id == container.id)
    }

    /// Decides whether the container that a workload has is adopted, started again, replaced or
    /// removed. A new control loop gets it.
    // [impl->swdd~agent-existing-workloads-delete-unneeded~1]
    // [impl->swdd~agent-delete-old-workload~2]
    fn take_over(
        &mut self,
        wanted: Option<&AddedWorkload>,
        is_active: bool,
        existing: Existing,
    ) -> FoundContainer {
        let (runtime, container) = &existing;
        let name = container.instance.workload.clone();
        let _source = log_source(name.clone());
        let is_good_for =
            |added: &&AddedWorkload| is_active && is_unchanged(added, runtime, container);
        let good_for = wanted.filter(is_good_for);
        // [impl->swdd~agent-existing-workloads-resume-existing~2]
        if let Some(added) = good_for
            && self.stays(added, runtime, container)
        {
            info!("Resuming workload '{name}'");
            // Others may wait for it or depend on it already.
            let state = adopted_state(&added.workload, container.state.clone());
            self.start_loop(container.instance.clone()).target.run = Run::Instance(added.clone());
            return found_container(&existing, FoundPurpose::Adopt(added.clone(), state));
        }
        let can_start_again = || {
            let connector = self.context.connector(runtime);
            container.state.phase == Phase::Succeeded
                && connector.is_some_and(|connector| connector.can_start_again())
        };
        let start_again_for = good_for.filter(|_| can_start_again()).cloned();
        // [impl->swdd~agent-existing-workloads-replace-updated~2]
        let purpose = match (&start_again_for, wanted) {
            (Some(added), _) => {
                info!("Re-starting workload '{name}'");
                FoundPurpose::StartAgain(added.clone())
            }
            (None, Some(_)) => {
                info!("Replacing existing workload '{name}'.");
                FoundPurpose::Replace
            }
            (None, None) => {
                info!("Deleting existing workload '{name}', which is not needed.");
                FoundPurpose::Replace
            }
        };
        let found = found_container(&existing, purpose);
        let (runtime, container) = existing;
        let control_loop = self.start_loop(container.instance.clone());
        control_loop.target.run = Run::Found;
        control_loop.kept = Some(KeptContainer {
            runtime,
            container,
            start_again_for,
            may_be_adopted: true,
        });
        found
    }

    /// Adopts a container of an earlier agent that was kept until it is replaced, and is what is
    /// wanted now, after the rollback of an update that could not be staged for example: nothing of
    /// it was stopped. Returns what its control loop must run if that is so.
    // [impl->swdd~agent-existing-workloads-resume-existing~2]
    pub(super) fn adopt_kept(&mut self, name: &Name) -> Option<Run> {
        let record = self.records.get(name)?;
        let added = record.wanted.clone()?;
        let kept = record.kept()?;
        let is_inactive = record.conditions.as_ref().is_some_and(Gate::is_inactive);
        let is_reserved = !kept.may_be_adopted || kept.start_again_for.is_some();
        if is_reserved || is_inactive || !self.stays(&added, &kept.runtime, &kept.container) {
            return None;
        }
        info!("Resuming workload '{name}', which is not replaced any more.");
        let state = adopted_state(&added.workload, kept.container.state.clone());
        let found = FoundContainer {
            runtime: kept.runtime.clone(),
            instance: kept.container.instance.clone(),
            id: kept.container.id.clone(),
            purpose: FoundPurpose::Adopt(added.clone(), state.clone()),
        };
        let record = self.records.get_mut(name)?;
        let control_loop = record.control_loop.as_mut()?;
        let instances = &mut Arc::make_mut(&mut control_loop.status).instances;
        instances.insert(found.instance.clone(), state);
        record.adopt.push(found);
        Some(Run::Instance(added))
    }
}

/// Whether a container runs and is what is wanted.
fn runs_as((runtime, container): &Existing, wanted: Option<&AddedWorkload>) -> bool {
    let Some(added) = wanted else {
        return false;
    };
    is_unchanged(added, runtime, container) && container.state.phase == Phase::Running
}

fn is_unchanged(added: &AddedWorkload, runtime: &Name, container: &ListedContainer) -> bool {
    container.instance == added.instance && *runtime == added.workload.runtime
}

/// The state to show for a container of an earlier agent that was not probed yet.
fn adopted_state(workload: &Workload, state: ExecutionState) -> ExecutionState {
    let config = workload.config();
    match config
        .usable_lifecycle()
        .and_then(|lifecycle| lifecycle.ready.as_ref())
    {
        Some(ready) if state.phase == Phase::Running && ready.check != Check::Notify => {
            let text = format!("{READY_PREFIX}waits for {}", ready.check);
            Note::new(Reason::Ready, text).state(Phase::PendingStarting)
        }
        _ => state,
    }
}

/// Takes the container that serves the wanted workload best: of its runtime, unchanged, running, in
/// this order. One of another runtime serves as well, since it must be gone before the new one
/// comes. The others stay and will be deleted.
fn take_best(candidates: &mut Vec<Existing>, wanted: Option<&AddedWorkload>) -> Option<Existing> {
    let rank = |(runtime, container): &Existing| {
        let fits = wanted.is_some_and(|added| added.workload.runtime == *runtime);
        let unchanged = wanted.is_some_and(|added| added.instance == container.instance);
        (fits, unchanged, container.state.phase == Phase::Running)
    };
    let (index, _) = candidates
        .iter()
        .enumerate()
        .max_by_key(|(index, existing)| (rank(existing), std::cmp::Reverse(*index)))?;
    Some(candidates.swap_remove(index))
}

#[cfg(test)]
mod tests;
