//! An accepted update: it becomes the desired state, subscribers are notified, and each agent is
//! sent its part.
//!
//! Thread: `server`; part of [`ServerLoop`].

use super::ServerLoop;
use super::connections::removed;
use super::effects::Effects;
use super::events::Changes;
use super::plan::{Difference, per_agent};
use super::prepare::{Failed, PreparedUpdate};
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::messages::{AddedWorkload, DeletedWorkload, FromServer, ResponseContent};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::workload::Workload;
use ankaios_platform::limits::ADDITIONAL_INFO_MAX;
use ankaios_platform::logging::log_source;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl ServerLoop {
    /// Makes a checked state the desired one and sends agents what that means for them. Returns the
    /// response.
    ///
    /// When workloads changed, subscribers have been notified before the agents; otherwise they are
    /// after the response.
    pub(super) fn commit(&mut self, prepared: PreparedUpdate) -> ResponseContent {
        let PreparedUpdate {
            mut change,
            forms,
            failed,
            writes_mode,
            restarted,
        } = prepared;
        let agent_tags = std::mem::take(&mut change.agent_tags);
        let workloads = &mut self.workloads;
        workloads.commits += 1;
        let stays = change.keeps(&workloads.desired);
        let before = change.carry_out(&mut workloads.desired);
        for (name, old) in &before.workloads {
            let new = workloads.desired.workloads.get(name);
            workloads
                .config_users
                .remove(name, old.iter().flat_map(|old| old.configs.values()));
            workloads
                .config_users
                .add(name, new.into_iter().flat_map(|new| new.configs.values()));
        }
        let for_agents = workloads.render(forms);
        if !stays || self.guarded.is_unsaved {
            self.store_state();
        }
        self.put_failed(failed);
        let mut changes = Changes::default();
        if self.is_observed() {
            changes.desired(&before, &self.workloads.desired);
        }
        for (name, tags) in agent_tags {
            // Only the tags of connected agents can be changed.
            if let Some(agent) = self.peers.agents.get_mut(&name) {
                let before = agent.attributes.clone();
                agent.attributes.tags = tags;
                changes.agent(&name, Some(&before), Some(&agent.attributes));
            }
        }
        if let Some(modes) = self.workloads.modes.as_mut().filter(|_| writes_mode) {
            modes.cause = None;
        }
        let names = self.begin_restart(&restarted);
        let mut response = self.carry_out_in_mode(for_agents, &names, changes);
        self.restart_begun(&names);
        if let ResponseContent::UpdateStateSuccess {
            restarted: again, ..
        } = &mut response
        {
            let back = restarted
                .iter()
                .filter_map(|name| self.workloads.scheduled(name));
            *again = back.map(|added| added.instance.to_string()).collect();
        }
        response
    }

    /// Carries out what `difference`, which is about workloads with their own agents, means in the
    /// present mode, and as the restart of the workloads `restarted` begins or ends: replaces the
    /// effective workloads that differ, notifies subscribers and sends each connected agent its
    /// part.
    pub(super) fn carry_out_in_mode(
        &mut self,
        difference: Difference,
        restarted: &BTreeSet<Name>,
        mut changes: Changes,
    ) -> ResponseContent {
        let (Difference { added, deleted }, infos) = self.workloads.in_mode(difference, restarted);
        let begun: Vec<InstanceName> = added.iter().map(|added| added.instance.clone()).collect();
        let deletes = self
            .deletes
            .with_conditions(deleted.clone(), &self.workloads);
        self.replace_effective(&added, &deleted, &mut changes);
        deleted
            .iter()
            .for_each(|instance| self.end_logs_of_workload(instance));
        // One that comes back to an agent keeps its subscriptions there until the older instance
        // has stopped.
        for instance in deleted.iter().chain(&begun) {
            self.end_denied_subscriptions(instance);
        }
        let (finished, for_agents) = self.split_finished(deletes);
        self.workloads.refresh_infos(&infos);
        if added.is_empty() && deleted.is_empty() {
            self.unpublished.push(changes);
        } else {
            self.publish(changes);
        }
        let reports: Vec<WorkloadState> = finished.into_iter().map(removed).collect();
        self.peers.broadcast_states(&reports);
        for (agent, plan) in per_agent(&added, for_agents) {
            if let Some(peer) = self.peers.of_agent(&agent) {
                plan.deleted
                    .iter()
                    .for_each(|deleted| self.deletes.note_sent(deleted));
                self.peers.send(peer, FromServer::UpdateWorkload(plan));
            }
        }
        // Instances whose agent is away are never reported, so no report would relieve what waits
        // for them.
        let away = begun
            .iter()
            .filter(|begun| self.peers.of_agent(&begun.agent).is_none());
        let mut effects = Effects::default();
        self.deletes.relieve(away, &self.workloads, &mut effects);
        self.apply(effects);
        // What a restart leaves out for now is going to start on its agent.
        let scheduled = |it: InstanceName| {
            self.workloads
                .scheduled(&it.workload)
                .map_or(it, |added| added.instance)
        };
        let begun: Vec<InstanceName> = begun.into_iter().map(scheduled).collect();
        let texts = |names: &[InstanceName]| names.iter().map(ToString::to_string).collect();
        ResponseContent::UpdateStateSuccess {
            added: texts(&begun),
            deleted: texts(&deleted),
            restarted: vec![],
            warning: None,
        }
    }

    /// Workloads of a start that cannot be taken over have no agent and never start; their state
    /// has the reason. An update that names one tries it again, see [`Self::failed_at_start`].
    fn put_failed(&mut self, failed: Failed) {
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
            self.timings.accept(&instance, self.now());
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

    /// Replaces the effective workloads and gives new instances their first state.
    fn replace_effective(
        &mut self,
        added: &[AddedWorkload],
        deleted: &[InstanceName],
        changes: &mut Changes,
    ) {
        let now = self.now();
        let observed = self.is_observed();
        let Self {
            workloads,
            deletes,
            rights,
            peers,
            timings,
            guarded,
            ..
        } = self;
        let mut before: BTreeMap<Name, Arc<Workload>> = BTreeMap::new();
        let mut ended: Vec<AddedWorkload> = Vec::with_capacity(deleted.len());
        for InstanceName { workload: name, .. } in deleted {
            let Some(stopped) = workloads.end(name) else {
                continue;
            };
            rights.end(&stopped.instance, workloads);
            guarded.instance_ended(&stopped.instance, now);
            before.insert(name.clone(), stopped.workload.clone());
            ended.push(stopped);
        }
        for entry in added {
            let AddedWorkload { instance, workload } = entry;
            let old = before.remove(&instance.workload);
            if observed {
                changes.workload(
                    "effectiveState",
                    &instance.workload,
                    old.as_ref(),
                    Some(workload),
                );
            }
            workloads.begin(entry);
            rights.begin(entry);
            workloads.unwanted.remove(instance);
            timings.accept(instance, now);
            if let Some(agent) = peers.agents.get_mut(&instance.agent) {
                // It receives the workload, so it will report it.
                agent.unconfirmed.remove(instance);
            }
            let state = workloads.first_state(instance);
            let was_staged = workloads.placeholders.remove(instance);
            guarded.changed_if(was_staged);
            if was_staged || workloads.states.get(instance).is_none() {
                workloads.states.set(instance, state);
            }
        }
        for stopped in ended {
            // Without a state it has stopped already, and its end would never be reported. One that
            // goes on in another form has one: what was reported last may be the end of a still
            // earlier form, and this one may run.
            if workloads.states.get(&stopped.instance).is_some() {
                deletes.note_stopping(stopped);
            } else {
                timings.remove(&stopped.instance);
            }
        }
        for (name, old) in before.iter().filter(|_| observed) {
            changes.workload("effectiveState", name, Some(old), None);
        }
    }

    /// Removes the states of deleted instances that no agent was ever sent, and returns these, and
    /// what agents have to delete.
    ///
    /// No agent was sent what has no agent, or an agent that is away and never reported a state.
    /// What would be too much of an agent that reports no ends is removed as well. An instance that
    /// continues in another form keeps its entry.
    fn split_finished(
        &mut self,
        deleted: Vec<DeletedWorkload>,
    ) -> (Vec<InstanceName>, Vec<DeletedWorkload>) {
        let (mut finished, mut for_agents) = (Vec::new(), Vec::new());
        for entry in deleted {
            let instance = entry.instance.clone();
            let continues = self.workloads.is_wanted(&instance);
            let state = self.workloads.states.get(&instance);
            let is_initial = state.is_some_and(|state| state.phase == Phase::PendingInitial);
            let is_unsent = instance.agent.is_empty()
                || self.peers.of_agent(&instance.agent).is_none() && is_initial;
            if continues || !is_unsent {
                for_agents.push(entry);
                if continues || self.keeps_deleted(&instance) {
                    continue;
                }
            }
            self.deletes.forget_stopping(&instance);
            if self.workloads.states.get(&instance).is_some() {
                self.workloads.states.remove(&instance);
                self.timings.remove(&instance);
                let was_staged = self.workloads.placeholders.remove(&instance);
                self.guarded.changed_if(was_staged);
                self.rights.end(&instance, &self.workloads);
                finished.push(instance);
            }
        }
        (finished, for_agents)
    }

    /// Whether the state of an instance that is not wanted any more stays until its agent reports
    /// its end.
    fn keeps_deleted(&mut self, instance: &InstanceName) -> bool {
        let Some(state) = self.workloads.states.get(instance) else {
            return true;
        };
        let keeps = self
            .workloads
            .unwanted
            .delete(instance, state.additional_info.len());
        if !keeps {
            log::warn!(
                "Taking '{}' as removed: agent '{}' has not reported the end of very many earlier workloads.",
                instance.short(),
                instance.agent
            );
        }
        keeps
    }
}
