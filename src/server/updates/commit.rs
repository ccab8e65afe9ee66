//! An accepted update becomes the desired state, subscribers are notified, and each agent is sent
//! its part.
//!
//! Thread: `server`; part of [`Updates`].

use super::Updates;
use super::checks::{CheckedUpdate, Failed};
use super::desired_change::DesiredChange;
use super::plan::{EffectiveDiff, Revision, per_agent};
use super::workloads::removed;
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

/// What an accepted update did or will do, as instances for its response.
#[derive(Debug, Default)]
pub(crate) struct AcceptedUpdate {
    pub(crate) added: Vec<InstanceName>,
    pub(crate) deleted: Vec<InstanceName>,
    pub(crate) restarted: Vec<InstanceName>,
}

/// What the desired and the effective state take, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StateSizes {
    pub(crate) before: usize,
    pub(crate) after: usize,
}

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
    workload.map_or(0, |workload| workload_bytes(workload))
}

fn config_bytes_of(item: Option<&ConfigItem>) -> usize {
    item.map_or(0, |item| config_node(item).memory_bytes())
}

impl AcceptedUpdate {
    /// The response, with what users should know of the stored state.
    pub(crate) fn response(&self, warning: Option<String>) -> ResponseContent {
        let texts = |names: &[InstanceName]| names.iter().map(ToString::to_string).collect();
        ResponseContent::UpdateStateSuccess {
            added: texts(&self.added),
            deleted: texts(&self.deleted),
            restarted: texts(&self.restarted),
            warning,
        }
    }
}

impl Updates {
    /// Makes a checked state the desired one and sends agents what that means for them. `changes`
    /// are published with it.
    ///
    /// When workloads changed, subscribers are notified before the agents; otherwise after the
    /// response.
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
        // First, the desired state.
        self.workloads.commits += 1;
        let stays = change.keeps(&self.workloads.desired);
        let before = change.apply(&mut self.workloads.desired);
        self.update_config_users(&before);
        let for_agents = self.workloads.render(revisions);
        if !stays {
            effects.push(Effect::Store);
        }
        self.put_failed(failed, now);
        if self.is_observed {
            changes.desired(&before, &self.workloads.desired);
        }
        if writes_mode && let Some(modes) = &mut self.workloads.modes {
            modes.cause = None;
        }
        // Then, the effective workloads. Those that are restarted leave them for now.
        let leaving = self.begin_restart(&restarted);
        let mut accepted = self.make_effective(for_agents, &leaving, changes, now, effects);
        self.restart_begun(&leaving);
        for name in &restarted {
            if let Some(added) = self.workloads.scheduled(name) {
                accepted.restarted.push(added.instance);
            }
        }
        accepted
    }

    /// What the desired and the effective state take before and after a change, in bytes.
    pub(crate) fn sizes(&self, change: &DesiredChange, for_agents: &EffectiveDiff) -> StateSizes {
        let (desired, placed) = (&self.workloads.desired, self.workloads.placed());
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

    /// The desired state has changed; `before` leads back.
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

    /// Activates these revisions, which are not the desired ones: a guarded update is staged.
    pub(crate) fn activate(
        &mut self,
        revisions: BTreeMap<Name, Revision>,
        now: Instant,
        effects: &mut Effects,
    ) {
        let difference = self.workloads.render(revisions);
        let changes = ChangedPaths::default();
        self.make_effective(difference, &BTreeSet::new(), changes, now, effects);
    }

    /// Makes `difference`, which is about workloads with their own agents, effective in the present
    /// mode, while the restart of the workloads `restarted` begins or ends: replaces the effective
    /// workloads that differ, notifies subscribers and sends each connected agent its part.
    pub(super) fn make_effective(
        &mut self,
        difference: EffectiveDiff,
        restarted: &BTreeSet<Name>,
        mut changes: ChangedPaths,
        now: Instant,
        effects: &mut Effects,
    ) -> AcceptedUpdate {
        let (EffectiveDiff { added, deleted }, affected) =
            self.workloads.in_mode(difference, restarted);
        let deletes = self
            .deletes
            .with_conditions(deleted.clone(), &self.workloads);
        // First, the effective workloads themselves.
        self.replace_effective(&added, &deleted, &mut changes, now, effects);
        effects.push(Effect::Replaced {
            added: added.clone(),
            deleted: deleted.clone(),
        });
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
                continue;
            }
            for deleted in &plan.deleted {
                self.deletes.note_sent(deleted);
            }
            effects.send_to_agent(&agent, FromServer::UpdateWorkload(plan));
        }
        // Finally, deletes that wait. Instances whose agent is away are never reported, so no
        // report would relieve what waits for them.
        let begun: Vec<InstanceName> = added.into_iter().map(|added| added.instance).collect();
        let away = begun
            .iter()
            .filter(|begun| !self.agents.contains_key(&begun.agent));
        self.deletes.relieve(away, &self.workloads, effects);
        AcceptedUpdate {
            added: self.as_scheduled(begun),
            deleted,
            restarted: Vec::new(),
        }
    }

    /// These instances, as they will start on their agents when a restart leaves them out for now.
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

    /// Workloads of a start that cannot be taken over have no agent and never start; their state
    /// has the reason. An update that names one tries it again, see [`Self::failed_at_start`].
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

    /// The workloads among those that `masks` name that the start could not take over: an update
    /// tries them again although they are as they were. A wider mask names none of them, since all
    /// of them may be too much for one update.
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
        let mut ended: Vec<AddedWorkload> = Vec::with_capacity(deleted.len());
        let mut before: BTreeMap<Name, Arc<Workload>> = BTreeMap::new();
        for InstanceName { workload: name, .. } in deleted {
            if let Some(stopped) = self.workloads.end(name) {
                before.insert(name.clone(), stopped.workload.clone());
                ended.push(stopped);
            }
        }
        for entry in added {
            let name = &entry.instance.workload;
            let old = before.remove(name);
            if self.is_observed {
                changes.workload("effectiveState", name, old.as_ref(), Some(&entry.workload));
            }
            self.begin_instance(entry, now, effects);
        }
        for stopped in ended {
            // Without a state it has stopped already, and its end would never be reported. One that
            // continues in another revision has one: what was reported last may be the end of a
            // still earlier revision, and this one may run.
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

    /// Removes the states of deleted instances that no agent was ever sent, and returns these, and
    /// what agents have to delete.
    ///
    /// No agent was sent what has no agent, or an agent that is away and never reported a state.
    /// What would be too much of an agent that reports no ends is removed as well. An instance that
    /// continues in another revision keeps its entry.
    fn remove_unsent(&mut self, deleted: Vec<DeletedWorkload>, effects: &mut Effects) -> ForAgents {
        let mut for_agents = ForAgents::default();
        for entry in deleted {
            let instance = entry.instance.clone();
            let continues = self.workloads.is_wanted(&instance);
            let is_unsent = self.is_unsent(&instance);
            if continues || !is_unsent {
                for_agents.deletes.push(entry);
                if continues || self.keep_deleted(&instance) {
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

    /// Whether no agent was ever sent an instance that has a state.
    fn is_unsent(&self, instance: &InstanceName) -> bool {
        if instance.agent.is_empty() {
            return true;
        }
        let state = self.workloads.states.get(instance);
        let is_initial = state.is_some_and(|state| state.phase == Phase::PendingInitial);
        is_initial && !self.is_connected(&instance.agent)
    }

    /// Keeps the state of an instance that is not wanted any more until its agent reports its end.
    /// Returns `false` when there is no room for it.
    fn keep_deleted(&mut self, instance: &InstanceName) -> bool {
        let Some(state) = self.workloads.states.get(instance) else {
            return true;
        };
        let info_bytes = state.additional_info.len();
        let is_kept = self.workloads.unwanted.delete(instance, info_bytes);
        if !is_kept {
            log::warn!(
                "Taking '{}' as removed: agent '{}' has not reported the end of very many earlier workloads.",
                instance.short(),
                instance.agent
            );
        }
        is_kept
    }
}

/// What follows from deletes.
#[derive(Default)]
struct ForAgents {
    /// What agents have to delete.
    deletes: Vec<DeletedWorkload>,
    /// States that are gone, as all peers are sent them.
    removed: Vec<WorkloadState>,
}
