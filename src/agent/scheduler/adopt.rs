//! The adoption of containers that an earlier agent has left: each is adopted, started again,
//! replaced or removed. Also the hello of the server, after which its list of workloads is
//! complete.
//!
//! Thread: `scheduler`; part of [`WorkloadRecords`].

use super::conditions::StartConditions;
use super::staging::{found_container, is_prepared};
use super::workloads::{Existing, KeptContainer, Waits, WorkloadRecords};
use crate::end_record;
use crate::events::Note;
use crate::state_checker::KnownEnd;
use crate::workload::mailbox::{FoundContainer, FoundPurpose, RunTarget};
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::lifecycle::Check;
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::Name;
use ankaios_model::reason::{READY_PREFIX, Reason};
use ankaios_model::workload::Workload;
use ankaios_platform::clock::Clock;
use ankaios_platform::logging::log_source;
use ankaios_runtime::container_records::{Noted, keep_own};
use ankaios_runtime::{ContainerId, ListedContainer};
use log::info;
use std::collections::BTreeMap;
use std::sync::Arc;

impl<C: Clock> WorkloadRecords<C> {
    /// Takes the desired workloads of a hello, which are all. A workload that already runs as
    /// desired, or waits for that, is not touched.
    // [impl->swdd~agent-initial-list-existing-workloads~1]
    // [impl->swdd~agent-existing-workloads-starts-new-if-not-found~1]
    pub(crate) fn hello(&mut self, desired: BTreeMap<Name, AddedWorkload>) {
        self.session_begins();
        // First: workloads that are not desired any more.
        let mut undesired = Vec::new();
        for (name, record) in &mut self.records {
            record.deleted.clear(); // The report after the hello has all states.
            if !desired.contains_key(name) {
                undesired.push(name.clone());
            }
        }
        for name in undesired {
            if !self.follows_already(&name, None) {
                self.request(name, None, None);
            }
        }
        // Then: the desired ones.
        for (name, new) in desired {
            if !self.follows_already(&name, Some(&new)) {
                self.request(name, Some(new), None);
            }
        }
    }

    /// Whether `new` is desired already, and runs or waits to be started. Without `new`: whether no
    /// instance is desired already, and none runs, or the present one waits to stop.
    fn follows_already(&self, name: &Name, new: Option<&AddedWorkload>) -> bool {
        let Some(record) = self.records.get(name) else {
            return false;
        };
        let is_done = match new {
            Some(new) => record.runs(new),
            None => record.current().is_none(),
        };
        record.desired.as_ref() == new && (record.waits != Waits::No || is_done)
    }

    /// Corrects the listed containers with the ends that an earlier agent has recorded. A container
    /// that others have removed since its end is added.
    // [impl->swdd~agent-keeps-observed-ends~1]
    pub(crate) fn recall_ends(&self, runtime: &Name, listed: &mut Vec<ListedContainer>) {
        if !self.keeps_finished {
            return; // Ended workloads are started again in any case.
        }
        let Some(connector) = self.context.connector(runtime) else {
            return;
        };
        for record in self.records.values() {
            let Some(added) = &record.desired else {
                continue;
            };
            let has_container = record.control_loop.is_some();
            if has_container || added.workload.runtime != *runtime {
                continue;
            }
            let kept = end_record::kept(&*connector, &added.instance, &self.context.calls.boot);
            if let Some((id, state)) = kept {
                recall_end(added, id, state, listed);
            }
        }
    }

    /// Begins to set targets, since all engines have listed their containers or had enough time for
    /// that.
    pub(crate) fn on_listings_known(&mut self) {
        self.awaits_listings = false;
        self.dirty.extend(self.records.keys().cloned());
    }

    /// Takes the containers that an engine has listed. [`Self::adopt`] decides about them.
    pub(crate) fn take_listed(&mut self, runtime: &Name, listed: Vec<ListedContainer>) {
        for container in listed {
            let name = container.instance.workload.clone();
            let record = self.records.entry(name.clone()).or_default();
            record.found.push(Existing {
                runtime: runtime.clone(),
                container,
            });
            self.dirty.insert(name);
        }
    }

    /// Decides about the listed containers of a workload: the one that fits best is taken over, the
    /// others are removed. Before all engines have listed, only a container that runs as desired is
    /// taken over.
    pub(super) fn adopt(&mut self, name: &Name) {
        // First: only containers that an earlier agent has left.
        let Some(record) = self.records.get_mut(name) else {
            return;
        };
        let mut candidates = std::mem::take(&mut record.found);
        self.drop_accounted(name, &mut candidates);
        if candidates.is_empty() {
            return;
        }
        // Then: wait for the other engines, except to adopt a container that runs as desired.
        let record = &self.records[name];
        let desired = record.desired.clone();
        let has_loop = record.control_loop.is_some();
        let conditions = record.conditions.as_ref();
        let is_inactive = conditions.is_some_and(StartConditions::is_inactive);
        let runs_as_desired = candidates
            .iter()
            .any(|existing| runs_as(existing, desired.as_ref()));
        let can_wait = has_loop || is_inactive || !runs_as_desired;
        if can_wait && self.awaits_listings && self.listings.must_hello_wait() {
            if let Some(record) = self.records.get_mut(name) {
                record.found = candidates;
            }
            return;
        }
        // Finally: decide. A control loop has its container already, so it takes over none.
        let found_for = if has_loop { None } else { desired };
        let mut adopt = self.take_prepared(name, found_for.as_ref(), &mut candidates);
        if !has_loop && let Some(best) = take_best(&mut candidates, found_for.as_ref()) {
            adopt.push(self.take_over(found_for.as_ref(), is_inactive, best));
        }
        for existing in &candidates {
            adopt.push(found_container(existing, FoundPurpose::Remove));
        }
        self.hand_over(name, adopt);
    }

    /// Hands containers over to the control loop of the workload: it gets them with its next
    /// target.
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
                // The control loop will report the same when it has taken them.
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

    /// Drops the candidates that are not of this agent, and the one that the control loop of the
    /// workload has.
    fn drop_accounted(&self, name: &Name, candidates: &mut Vec<Existing>) {
        let record = &self.records[name];
        // The definition says whether the workload joins a pod of others.
        let mut definition = record.desired.as_ref();
        if let Some(control_loop) = &record.control_loop
            && definition.is_none()
        {
            definition = control_loop.target.run.added();
        }
        keep_own(
            candidates,
            |existing| &existing.container,
            |existing| self.noted(existing),
            definition.map(|added| &*added.workload),
        );
        if let Some(control_loop) = &record.control_loop {
            // Instances of two runtimes may have the same id.
            candidates.retain(|existing| {
                control_loop.current() != Some(&existing.container.instance)
                    || control_loop.runtime() != Some(&existing.runtime)
            });
        }
    }

    /// What the records of an earlier agent say about a container.
    fn noted(&self, Existing { runtime, container }: &Existing) -> Noted {
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

    /// Whether a container can stay as it is for this desired instance: it runs, or it has ended
    /// and is not started again.
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

    /// Whether a container ended after the node was booted. A record says so: of its run, or of its
    /// end.
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
        match end_record::kept(&*connector, &added.instance, &self.context.calls.boot) {
            Some((id, _)) => id == container.id,
            None => false,
        }
    }

    /// Whether this container has succeeded, and the engine can start it again.
    fn can_start_again(&self, Existing { runtime, container }: &Existing) -> bool {
        if container.state.phase != Phase::Succeeded {
            return false;
        }
        match self.context.connector(runtime) {
            Some(connector) => connector.can_start_again(),
            None => false,
        }
    }

    /// Starts a control loop for the container that a workload has. Decides whether the container
    /// is adopted, started again, or replaced.
    // [impl->swdd~agent-existing-workloads-delete-unneeded~1]
    // [impl->swdd~agent-delete-old-workload~2]
    fn take_over(
        &mut self,
        desired: Option<&AddedWorkload>,
        is_inactive: bool,
        existing: Existing,
    ) -> FoundContainer {
        let container = &existing.container;
        let name = container.instance.workload.clone();
        let _source = log_source(name.clone());
        let unchanged = match desired {
            Some(added) if !is_inactive && is_unchanged(added, &existing.runtime, container) => {
                Some(added.clone())
            }
            _ => None,
        };
        // First: adopt it as it is.
        // [impl->swdd~agent-existing-workloads-resume-existing~2]
        if let Some(added) = &unchanged
            && self.stays(added, &existing.runtime, container)
        {
            info!("Resuming workload '{name}'");
            // Other workloads may wait for this state already.
            let state = adopted_state(&added.workload, container.state.clone());
            let control_loop = self.start_loop(container.instance.clone());
            control_loop.target.run = RunTarget::Instance(added.clone());
            return found_container(&existing, FoundPurpose::Adopt(added.clone(), state));
        }
        // Otherwise start it again, or replace it. It stays as it is until the target says so.
        let start_again_for = if self.can_start_again(&existing) {
            unchanged
        } else {
            None
        };
        // [impl->swdd~agent-existing-workloads-replace-updated~2]
        let purpose = match (&start_again_for, desired) {
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
        let control_loop = self.start_loop(existing.container.instance.clone());
        control_loop.target.run = RunTarget::Found;
        control_loop.kept = Some(KeptContainer {
            runtime: existing.runtime,
            container: existing.container,
            start_again_for,
            may_be_adopted: true,
        });
        found
    }

    /// Adopts the container of an earlier agent that was kept for its replacement, if its instance
    /// is desired again. That is so after the rollback of an update that could not be staged, for
    /// example. Returns the new target.
    // [impl->swdd~agent-existing-workloads-resume-existing~2]
    pub(super) fn adopt_kept(&mut self, name: &Name) -> Option<RunTarget> {
        let record = self.records.get(name)?;
        let added = record.desired.clone()?;
        let kept = record.kept()?;
        let conditions = record.conditions.as_ref();
        if conditions.is_some_and(StartConditions::is_inactive) {
            return None; // It must not run on this node.
        }
        if !kept.may_be_adopted || kept.start_again_for.is_some() {
            return None; // Another use of it is decided.
        }
        if !self.stays(&added, &kept.runtime, &kept.container) {
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
        Some(RunTarget::Instance(added))
    }
}

/// Corrects the listed containers with the recorded end of an instance. Adds its container if that
/// was removed.
fn recall_end(
    added: &AddedWorkload,
    id: ContainerId,
    state: ExecutionState,
    listed: &mut Vec<ListedContainer>,
) {
    for found in listed.iter_mut() {
        if found.instance != added.instance {
            continue;
        }
        // If others have removed a container of its pod, the listing shows another state.
        if found.id == id {
            let engine_restarts = added.workload.config().engine_restarts().is_some();
            found.state = KnownEnd::of_earlier_life(&id, state, engine_restarts).update(found);
        }
        return; // A container with another id is newer, so its own state applies.
    }
    listed.push(ListedContainer {
        id,
        instance: added.instance.clone(),
        state,
        processes: Vec::new(),
        ended_at: None,
        in_pod: false,
        pods: None,
    });
}

/// Whether a container runs as desired.
fn runs_as(existing: &Existing, desired: Option<&AddedWorkload>) -> bool {
    let Some(added) = desired else {
        return false;
    };
    let container = &existing.container;
    is_unchanged(added, &existing.runtime, container) && container.state.phase == Phase::Running
}

/// Whether a container is of this instance, in the same runtime.
fn is_unchanged(added: &AddedWorkload, runtime: &Name, container: &ListedContainer) -> bool {
    container.instance == added.instance && *runtime == added.workload.runtime
}

/// The state to show for an adopted container until it is probed: if it has a `ready` condition, it
/// waits for that. A notification is not repeated, so it does not wait for one.
fn adopted_state(workload: &Workload, state: ExecutionState) -> ExecutionState {
    let config = workload.config();
    if let Some(lifecycle) = config.usable_lifecycle()
        && let Some(ready) = &lifecycle.ready
        && ready.check != Check::Notify
        && state.phase == Phase::Running
    {
        let text = format!("{READY_PREFIX}waits for {}", ready.check);
        return Note::new(Reason::Ready, text).state(Phase::PendingStarting);
    }
    state
}

/// Takes the container that fits the desired workload best out of the list ([`Fitness`]). Even one
/// of another runtime is taken if there is no better one: it must be gone before the new one
/// starts.
fn take_best(candidates: &mut Vec<Existing>, desired: Option<&AddedWorkload>) -> Option<Existing> {
    if candidates.is_empty() {
        return None;
    }
    let mut best = 0;
    for index in 1..candidates.len() {
        if fitness(&candidates[index], desired) > fitness(&candidates[best], desired) {
            best = index;
        }
    }
    Some(candidates.swap_remove(best))
}

/// How well a container fits the desired workload. The first field that differs decides.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Fitness {
    has_runtime: bool,
    is_unchanged: bool,
    is_running: bool,
}

/// How well this container fits the desired workload. Without one, only a running container is
/// better than others.
fn fitness(existing: &Existing, desired: Option<&AddedWorkload>) -> Fitness {
    let container = &existing.container;
    Fitness {
        has_runtime: desired.is_some_and(|added| added.workload.runtime == existing.runtime),
        is_unchanged: desired.is_some_and(|added| added.instance == container.instance),
        is_running: container.state.phase == Phase::Running,
    }
}

#[cfg(test)]
mod tests;
