//! What happens to containers that an earlier life of the agent left behind (resume, reuse,
//! replace, delete), and to our own workloads with another hello of the server.
//!
//! Thread: `scheduler`; part of [`Workloads`].

use super::staging::{is_prepared, surplus_of};
use super::workloads::{Existing, Waits, Workloads, removed};
use crate::end_record;
use crate::events::Note;
use crate::scheduler::conditions::Gate;
use crate::state_checker::KnownEnd;
use crate::workload::Held;
use crate::workload::mailbox::Surplus;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
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

impl<C: Clock> Workloads<C> {
    /// These are all workloads that are wanted. Within one life of the agent an unchanged one is
    /// left alone in whatever state it is. Nothing is ordered before [`Self::on_listings_known`].
    // [impl->swdd~agent-initial-list-existing-workloads~1]
    // [impl->swdd~agent-existing-workloads-starts-new-if-not-found~1]
    pub(crate) fn hello(&mut self, wanted: BTreeMap<Name, AddedWorkload>) {
        self.session_begins();
        self.gone.clear();
        let unneeded = self
            .records
            .keys()
            .filter(|name| !wanted.contains_key(*name))
            .cloned();
        let all: Vec<_> = unneeded.map(|name| (name, None)).collect();
        let all = all
            .into_iter()
            .chain(wanted.into_iter().map(|(name, added)| (name, Some(added))));
        for (name, new) in all {
            let is_settled = self.records.get(&name).is_some_and(|record| {
                let is_carried_out = new
                    .as_ref()
                    .map_or(record.live().is_none(), |new| record.runs(new));
                record.wanted == new && (record.waits != Waits::No || is_carried_out)
            });
            if !is_settled {
                self.submit(name, new, None);
            }
        }
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
        for record in self
            .records
            .values()
            .filter(|record| record.object.is_none())
        {
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

    /// From now on what is wanted is ordered.
    pub(crate) fn on_listings_known(&mut self) {
        self.awaits_listings = false;
        self.touch_waiting();
    }

    /// The end of what was deleted meanwhile and is not there.
    pub(crate) fn report_ends_of_unknown(&mut self) {
        let gone = std::mem::take(&mut self.gone);
        let unknown = gone
            .iter()
            .filter(|gone| self.store.get(gone).is_none() && !self.has(gone));
        let ends: Vec<WorkloadState> = unknown.map(removed).collect();
        self.reports.extend(ends);
    }

    /// Takes in containers that listings showed, as far as no object accounts for them: what serves
    /// a wanted workload goes on, the others go before that is started, or when their users let
    /// them. Before `all` engines have listed only workloads that run as they should go on, and the
    /// rest waits.
    pub(crate) fn take_existing(&mut self, all: bool) {
        // What others are is known when all is known that is wanted.
        let is_wanted = |(_, container): &Existing| {
            self.records
                .get(&container.instance.workload)
                .is_some_and(|record| record.wanted.is_some())
        };
        let existing = std::mem::take(&mut self.existing).into_iter();
        let (candidates, others) = existing.partition(|existing| all || is_wanted(existing));
        self.existing = others;
        for (name, mut candidates) in self.unaccounted(candidates) {
            let record = self.records.get(&name);
            let has_loop = record.is_some_and(|record| record.object.is_some());
            let wanted = record
                .filter(|_| !has_loop)
                .and_then(|record| record.wanted.clone());
            let is_active = !record
                .and_then(|record| record.gate.as_ref())
                .is_some_and(Gate::is_inactive);
            let serves = |(runtime, container): &Existing| {
                let is_it = wanted
                    .as_ref()
                    .is_some_and(|added| is_unchanged(added, runtime, container));
                is_it && container.state.phase == Phase::Running
            };
            if !all && (has_loop || !is_active || !candidates.iter().any(serves)) {
                self.existing.extend(candidates);
                continue;
            }
            let mut surplus = self.take_prepared(&name, wanted.as_ref(), &mut candidates);
            let best = if has_loop {
                None
            } else {
                take_best(&mut candidates, wanted.as_ref())
            };
            if let Some((runtime, container)) = best {
                self.take_over(wanted.as_ref(), is_active, runtime, container);
            }
            surplus.extend(
                candidates
                    .iter()
                    .map(|(runtime, container)| surplus_of(runtime, container)),
            );
            self.remove(surplus);
        }
    }

    /// By workload, what belongs to it and no object accounts for.
    fn unaccounted(&self, existing: Vec<Existing>) -> BTreeMap<Name, Vec<Existing>> {
        let mut found: BTreeMap<Name, Vec<Existing>> = BTreeMap::new();
        for (runtime, container) in existing {
            found
                .entry(container.instance.workload.clone())
                .or_default()
                .push((runtime, container));
        }
        for (name, candidates) in &mut found {
            let record = self.records.get(name);
            let object = record.and_then(|record| record.object.as_ref());
            let wanted = record
                .and_then(|record| record.wanted.as_ref())
                .map(|added| &added.workload);
            let wanted = wanted.or_else(|| object?.workload.as_ref());
            leave_strangers(
                candidates,
                |(_, one)| one,
                |one| self.noted(one),
                wanted.map(|workload| &**workload),
            );
            // Instances of two runtimes may have the same id.
            candidates.retain(|(runtime, container)| {
                object.is_none_or(|object| {
                    object.instance != container.instance || object.runtime != *runtime
                })
            });
        }
        found.retain(|_, candidates| !candidates.is_empty());
        found
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

    /// Goes on with this container of an earlier agent, starts it again, or replaces or deletes it.
    // [impl->swdd~agent-existing-workloads-delete-unneeded~1]
    // [impl->swdd~agent-delete-old-workload~2]
    fn take_over(
        &mut self,
        wanted: Option<&AddedWorkload>,
        is_active: bool,
        runtime: Name,
        container: ListedContainer,
    ) {
        let (name, id) = (container.instance.workload.clone(), container.id.clone());
        let _source = log_source(name.clone());
        let held = |serves| Some(Held { id, serves });
        self.unsettled.insert(name.clone());
        let Some(added) = wanted else {
            info!("Deleting existing workload '{name}', which is not needed.");
            return self.start_loop(container.instance, runtime.clone(), held(None));
        };
        // [impl->swdd~agent-existing-workloads-resume-existing~2]
        if is_active && self.stays(added, &runtime, &container) {
            info!("Resuming workload '{name}'");
            // Others may wait for it or depend on it already.
            let state = adopted_state(&added.workload, container.state);
            self.reports
                .push_back(WorkloadState::new(added.instance.clone(), state));
            self.start_loop(
                container.instance,
                runtime.clone(),
                held(Some((added.clone(), true))),
            );
            return self.start(added.clone());
        }
        let reuse = is_active
            && is_unchanged(added, &runtime, &container)
            && container.state.phase == Phase::Succeeded
            && self
                .context
                .connector(&runtime)
                .is_some_and(|connector| connector.can_start_again());
        // [impl->swdd~agent-existing-workloads-replace-updated~2]
        let what = if reuse {
            "Re-starting workload"
        } else {
            "Replacing existing workload"
        };
        info!("{what} '{name}'{}", if reuse { "" } else { "." });
        let held = held(reuse.then(|| (added.clone(), false)));
        self.start_loop(container.instance.clone(), runtime, held);
        if let Some(object) = self.object(&name) {
            object.replaced = Some(container);
        }
    }

    /// Lets a container of an earlier agent go on that was to be replaced and is what is wanted
    /// now, after an update that could not be staged was rolled back for example: nothing of it was
    /// stopped.
    // [impl->swdd~agent-existing-workloads-resume-existing~2]
    pub(super) fn resume_replaced(&mut self, name: &Name) {
        let Some(record) = self.records.get(name) else {
            return;
        };
        let (Some(added), Some(object)) = (&record.wanted, record.live()) else {
            return;
        };
        let Some(container) = &object.replaced else {
            return;
        };
        let is_ordered = object.workload.is_some() || object.start_again_for.is_some();
        let is_inactive = record.gate.as_ref().is_some_and(Gate::is_inactive);
        if is_ordered || is_inactive || !self.stays(added, &object.runtime, container) {
            return;
        }
        info!("Resuming workload '{name}', which is not replaced any more.");
        let (added, state) = (
            added.clone(),
            adopted_state(&added.workload, container.state.clone()),
        );
        self.reports
            .push_back(WorkloadState::new(added.instance.clone(), state));
        let Some(object) = self.object(name) else {
            return;
        };
        object.replaced = None;
        object.workload = Some(added.workload.clone());
        object.wishes.resume(added);
    }

    /// Gives containers of a workload to its control loop to remove, or to one made for that.
    fn remove(&mut self, surplus: Vec<Surplus>) {
        let Some(first) = surplus.first() else { return };
        if let Some(object) = self.object_for(&first.instance, &first.runtime) {
            object.wishes.put_surplus(surplus);
        }
    }
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
