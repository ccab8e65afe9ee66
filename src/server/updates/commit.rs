//! An accepted update becomes the desired state, subscribers are notified, and each agent is sent
//! its part.
//!
//! Thread: `server`; part of [`Updates`].

use super::Updates;
use super::checks::{CheckedUpdate, Failed};
use super::desired_change::DesiredChange;
use super::plan::{EffectiveDiff, Revision, per_agent};
use super::workloads::{ModeDiff, removed};
use crate::effects::{Effect, Effects};
use crate::subscriptions::ChangedPaths;
use ankaios_model::complete_state::{DesiredState, config_node, workload_bytes};
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::field_path;
use ankaios_model::messages::{AddedWorkload, DeletedWorkload, FromServer, ResponseContent};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::workload::{ConfigItem, Workload};
use ankaios_platform::limits::ADDITIONAL_INFO_MAX;
use ankaios_platform::logging::log_source;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// The instances that an accepted update adds, deletes and restarts, for its response.
#[derive(Debug, Default)]
pub(crate) struct AcceptedUpdate {
    pub(crate) added: Vec<InstanceName>,
    pub(crate) deleted: Vec<InstanceName>,
    pub(crate) restarted: Vec<InstanceName>,
}

/// Memory of the desired and the effective state before and after a change, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StateSizes {
    pub(crate) before: usize,
    pub(crate) after: usize,
}

/// Memory of a desired state and of the workloads with their own agents, in bytes.
fn state_bytes(desired: &DesiredState, placed: &BTreeMap<Name, AddedWorkload>) -> usize {
    let mut bytes = 0;
    for workload in desired.workloads.values() {
        bytes += workload_bytes(workload);
    }
    for added in placed.values() {
        bytes += workload_bytes(&added.workload);
    }
    for item in desired.configs.values() {
        bytes += config_bytes_of(Some(item));
    }
    bytes
}

fn workload_bytes_of(workload: Option<&Arc<Workload>>) -> usize {
    match workload {
        Some(workload) => workload_bytes(workload),
        None => 0,
    }
}

fn config_bytes_of(item: Option<&ConfigItem>) -> usize {
    match item {
        Some(item) => config_node(item).memory_bytes(),
        None => 0,
    }
}

impl AcceptedUpdate {
    /// The response, with the `warning` about the stored state.
    pub(crate) fn response(&self, warning: Option<String>) -> ResponseContent {
        ResponseContent::UpdateStateSuccess {
            added: texts(&self.added),
            deleted: texts(&self.deleted),
            restarted: texts(&self.restarted),
            warning,
        }
    }
}

fn texts(names: &[InstanceName]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

impl Updates {
    /// Makes a checked state the desired one and sends agents their plans.
    ///
    /// Subscribers are notified of its changes and of `changes`: before the agents when workloads
    /// have changed, otherwise after the response.
    pub(crate) fn commit(
        &mut self,
        checked: CheckedUpdate,
        mut changes: ChangedPaths,
        now: Instant,
        effects: &mut Effects,
    ) -> AcceptedUpdate {
        let CheckedUpdate {
            change,
            revisions,
            failed,
            writes_mode,
            restarted,
        } = checked;
        // First, the desired state. `change_back` would restore the present one.
        self.workloads.commits += 1;
        if !change.keeps(&self.workloads.desired) {
            effects.push(Effect::Store);
        }
        let change_back = change.apply(&mut self.workloads.desired);
        // Then, what follows from it.
        self.update_config_users(&change_back);
        let for_agents = self.workloads.take_rendered(revisions);
        self.put_failed(failed, now);
        if self.is_observed {
            changes.desired(&change_back, &self.workloads.desired);
        }
        if writes_mode && let Some(modes) = &mut self.workloads.modes {
            modes.cause = None; // Now a client has chosen the mode, not the server.
        }
        // Then, the effective workloads. Those that restart are taken out of them until their
        // instances have ended, for which the restart waits from then on.
        let leaving = self.begin_restart(&restarted);
        let mut accepted = self.make_effective(for_agents, &leaving, changes, now, effects);
        self.restart_begun(&leaving);
        // Finally, the restarted instances for the response.
        for name in &restarted {
            if let Some(added) = self.workloads.scheduled(name) {
                accepted.restarted.push(added.instance);
            }
        }
        accepted
    }

    /// The memory of the desired and the effective state before and after a change.
    pub(crate) fn sizes(&self, change: &DesiredChange, for_agents: &EffectiveDiff) -> StateSizes {
        let desired = &self.workloads.desired;
        let placed = self.workloads.placed();
        let before = state_bytes(desired, placed);
        let mut after = before;
        for (name, new) in &change.workloads {
            after += workload_bytes_of(new.as_ref());
            after -= workload_bytes_of(desired.workloads.get(name));
        }
        for (key, new) in &change.configs {
            after += config_bytes_of(new.as_ref());
            after -= config_bytes_of(desired.configs.get(key));
        }
        for added in &for_agents.added {
            after += workload_bytes(&added.workload);
        }
        for deleted in &for_agents.deleted {
            let known = placed.get(&deleted.workload);
            after -= workload_bytes_of(known.map(|known| &known.workload));
        }
        StateSizes { before, after }
    }

    /// Updates the users of configs after the desired state has changed. `before` is the change
    /// that leads back.
    fn update_config_users(&mut self, before: &DesiredChange) {
        let workloads = &mut self.workloads;
        for (name, old) in &before.workloads {
            if let Some(old) = old {
                workloads.config_users.remove(name, old.configs.values());
            }
            if let Some(new) = workloads.desired.workloads.get(name) {
                workloads.config_users.add(name, new.configs.values());
            }
        }
    }

    /// Activates revisions that are not the desired ones, while a guarded update is staged.
    pub(crate) fn activate(
        &mut self,
        revisions: BTreeMap<Name, Revision>,
        now: Instant,
        effects: &mut Effects,
    ) {
        let difference = self.workloads.take_rendered(revisions);
        let changes = ChangedPaths::default();
        self.make_effective(difference, &BTreeSet::new(), changes, now, effects);
    }

    /// Replaces effective workloads, notifies subscribers and sends each connected agent its plan.
    ///
    /// `difference` is about workloads with their own agents; the mode, restarts and stops decide
    /// which of them are effective there. `restarted` are workloads whose restart or stop begins or
    /// ends.
    pub(super) fn make_effective(
        &mut self,
        difference: EffectiveDiff,
        restarted: &BTreeSet<Name>,
        mut changes: ChangedPaths,
        now: Instant,
        effects: &mut Effects,
    ) -> AcceptedUpdate {
        let ModeDiff {
            difference: EffectiveDiff { added, deleted },
            affected,
        } = self.workloads.apply_difference(difference, restarted);
        // The conditions follow from the dependents before the change.
        let deletes = self
            .deletes
            .with_conditions(deleted.clone(), &self.workloads);
        // First, the effective workloads themselves.
        self.replace_effective(&added, &deleted, &mut changes, now, effects);
        effects.push(Effect::Replaced {
            added: added.clone(),
            deleted: deleted.clone(),
        });
        self.deletes.note_replaced(&deleted);
        let mut replaced = BTreeSet::new();
        for instance in &deleted {
            replaced.insert(instance.workload.clone());
        }
        let for_agents = self.remove_unsent(deletes, effects);
        self.workloads.refresh_infos(&affected);
        // Then, subscribers and peers.
        if added.is_empty() && deleted.is_empty() {
            effects.push(Effect::PublishLater(changes));
        } else {
            effects.push(Effect::Publish(changes));
        }
        effects.push(Effect::Broadcast(for_agents.removed));
        for (agent, plan) in per_agent(&added, for_agents.deletes) {
            if !self.is_connected(&agent) {
                continue; // When it connects, it is sent all its workloads.
            }
            for deleted in &plan.deleted {
                self.deletes.note_sent(deleted, &replaced, &self.workloads);
                self.note_on_connection(&deleted.instance);
            }
            effects.send_to_agent(&agent, FromServer::UpdateWorkload(plan));
        }
        // Finally, deletes that wait. Instances of a disconnected agent are never reported, so no
        // report would relieve a delete that waits for them.
        let mut begun = Vec::with_capacity(added.len());
        for added in added {
            begun.push(added.instance);
        }
        let away = begun
            .iter()
            .filter(|begun| !self.agents.contains_key(&begun.agent));
        self.deletes
            .relieve(away, &self.workloads, &self.agents, effects);
        AcceptedUpdate {
            added: self.as_scheduled(begun),
            deleted,
            restarted: Vec::new(),
        }
    }

    /// Notes on the connection of its agent that an instance was replaced or deleted.
    fn note_on_connection(&mut self, instance: &InstanceName) {
        let is_wanted = self.workloads.is_wanted(instance);
        let Some(agent) = self.agents.get_mut(&instance.agent) else {
            return;
        };
        if is_wanted {
            agent.note_ordered(instance);
        } else {
            agent.note_unwanted(instance);
        }
    }

    /// These instances with the agents on which they will start. While one is restarted, it is
    /// effective without its agent.
    fn as_scheduled(&self, begun: Vec<InstanceName>) -> Vec<InstanceName> {
        let mut instances = Vec::with_capacity(begun.len());
        for instance in begun {
            match self.workloads.scheduled(&instance.workload) {
                Some(added) => instances.push(added.instance),
                None => instances.push(instance),
            }
        }
        instances
    }

    /// Makes the workloads that a start cannot take over effective without an agent, so that they
    /// never start. Their state has the reason. An update that names such a workload tries to start
    /// it again, see [`Self::failed_at_start`].
    fn put_failed(&mut self, failed: Failed, now: Instant) {
        for (name, reason) in failed {
            let _source = log_source(name.clone());
            log::error!("Workload '{name}' cannot be started: {reason}");
            let Some(workload) = self.workloads.desired.workloads.get(&name) else {
                continue;
            };
            let workload = Arc::new(Workload {
                agent: Name::default(),
                ..Workload::clone(workload)
            });
            let instance = InstanceName::new(&name, &workload.runtime_config, "");
            // A character has at most four bytes.
            let reason: String = reason.chars().take(ADDITIONAL_INFO_MAX / 4).collect();
            self.workloads.states.set(
                &instance,
                ExecutionState::with_info(Phase::PendingStartingFailed, reason),
            );
            self.timings.accept(&instance, now);
            let added = AddedWorkload { instance, workload };
            self.workloads.begin(&added);
            if let Some(placed) = &mut self.workloads.placed {
                placed.insert(name.clone(), added.clone());
            }
            if let Some(before_hooks) = &mut self.workloads.before_hooks {
                before_hooks.insert(name, added);
            }
        }
    }

    /// The workloads that have failed at the start and that `masks` name one by one: an update
    /// tries them again although they are unchanged. A mask of all workloads names none of them,
    /// since all together may be too much for one update.
    pub(crate) fn failed_at_start(&self, masks: &[String]) -> BTreeMap<Name, Arc<Workload>> {
        let mut failed = BTreeMap::new();
        for mask in masks {
            let ["desiredState", "workloads", name, ..] = field_path::parts(mask)[..] else {
                continue;
            };
            let Some(AddedWorkload { instance, .. }) = self.workloads.effective.get(name) else {
                continue;
            };
            let Some(state) = self.workloads.states.get(instance) else {
                continue;
            };
            if !instance.agent.is_empty() || state.phase != Phase::PendingStartingFailed {
                continue;
            }
            if let Some(workload) = self.workloads.desired.workloads.get(name) {
                failed.insert(instance.workload.clone(), workload.clone());
            }
        }
        failed
    }

    /// Replaces the effective workloads and gives new instances their first state.
    fn replace_effective(
        &mut self,
        added: &[AddedWorkload],
        deleted: &[InstanceName],
        changes: &mut ChangedPaths,
        now: Instant,
        effects: &mut Effects,
    ) {
        // First, the ends.
        let mut ended: Vec<AddedWorkload> = Vec::with_capacity(deleted.len());
        let mut before: BTreeMap<Name, Arc<Workload>> = BTreeMap::new();
        for InstanceName { workload: name, .. } in deleted {
            if let Some(stopped) = self.workloads.end(name) {
                before.insert(name.clone(), stopped.workload.clone());
                ended.push(stopped);
            }
        }
        // Then, the begins. Workloads that stay in `before` have no successor.
        for entry in added {
            let name = &entry.instance.workload;
            let old = before.remove(name);
            if self.is_observed {
                changes.workload("effectiveState", name, old.as_ref(), Some(&entry.workload));
            }
            self.begin_instance(entry, now, effects);
        }
        // Finally, the ends that agents will report. An instance without a state has stopped
        // already. An instance with one may run, even if the state is the end of an earlier
        // revision of the same name.
        for stopped in ended {
            if self.workloads.states.get(&stopped.instance).is_some() {
                self.deletes.note_stopping(stopped);
            } else {
                self.timings.remove(&stopped.instance);
            }
        }
        if self.is_observed {
            for (name, old) in &before {
                changes.workload("effectiveState", name, Some(old), None);
            }
        }
    }

    /// Makes one workload effective, and gives its instance a first state unless it has one.
    fn begin_instance(&mut self, added: &AddedWorkload, now: Instant, effects: &mut Effects) {
        let instance = &added.instance;
        self.workloads.begin(added);
        self.workloads.unwanted.remove(instance);
        self.timings.accept(instance, now);
        if let Some(agent) = self.agents.get_mut(&instance.agent) {
            // It receives the workload, so it will report it.
            agent.unconfirmed.remove(instance);
        }
        let was_staged = self.workloads.placeholders.remove(instance);
        if was_staged {
            effects.push(Effect::ShowStaged);
        }
        if was_staged || self.workloads.states.get(instance).is_none() {
            let state = self.workloads.first_state(instance);
            self.workloads.states.set(instance, state);
        }
    }

    /// Removes the states of deleted instances whose end no agent will report. Returns these states
    /// and the deletes for agents. A deleted instance:
    /// - continues in another revision: its state stays;
    /// - was never sent to an agent: its state is removed, and no delete is sent;
    /// - otherwise: its state stays until its agent reports the end. If the agent has too many such
    ///   instances, the state is removed at once.
    fn remove_unsent(&mut self, deleted: Vec<DeletedWorkload>, effects: &mut Effects) -> ForAgents {
        let mut for_agents = ForAgents::default();
        for entry in deleted {
            let instance = entry.instance.clone();
            if self.workloads.is_wanted(&instance) {
                for_agents.deletes.push(entry);
                continue;
            }
            if !self.is_unsent(&instance) {
                for_agents.deletes.push(entry);
                let is_kept = self.keep_deleted(&instance);
                if is_kept {
                    continue;
                }
            }
            self.deletes.forget_stopping(&instance);
            if self.workloads.states.get(&instance).is_none() {
                continue;
            }
            self.workloads.states.remove(&instance);
            self.timings.remove(&instance);
            if self.workloads.placeholders.remove(&instance) {
                effects.push(Effect::ShowStaged);
            }
            for_agents.removed.push(removed(instance));
        }
        for_agents
    }

    /// Returns whether an instance with a state was never sent to an agent: it has none, or its
    /// agent is disconnected and has never reported a state.
    fn is_unsent(&self, instance: &InstanceName) -> bool {
        if instance.agent.is_empty() {
            return true;
        }
        match self.workloads.states.get(instance) {
            Some(state) => {
                state.phase == Phase::PendingInitial && !self.is_connected(&instance.agent)
            }
            None => false,
        }
    }

    /// Keeps the state of a deleted instance, if it has one, until its agent reports the end.
    /// Returns `false` if the state cannot be kept, because that agent has too many of them.
    fn keep_deleted(&mut self, instance: &InstanceName) -> bool {
        let Some(state) = self.workloads.states.get(instance) else {
            return true; // There is nothing to keep.
        };
        let info_bytes = state.additional_info.len();
        let is_kept = self.workloads.unwanted.add_deleted(instance, info_bytes);
        if !is_kept {
            log::warn!(
                "Treating '{}' as removed: agent '{}' has not reported the ends of too many earlier workloads.",
                instance.short(),
                instance.agent
            );
        }
        is_kept
    }
}

/// The messages that follow from deletes.
#[derive(Default)]
struct ForAgents {
    /// Deletes for agents.
    deletes: Vec<DeletedWorkload>,
    /// Removed states, for all peers.
    removed: Vec<WorkloadState>,
}
