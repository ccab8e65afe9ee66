//! Agents connect, report states of their instances and disconnect.
//!
//! Thread: `server`; part of [`Updates`].

use super::Updates;
use super::workloads::{NEVER_WANTED_OF_WORKLOAD, UNWANTED_INFO_MAX, removed};
use crate::effects::{Effect, Effects};
use crate::subscriptions::ChangedPaths;

use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::names::{InstanceName, Name};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// The connection of an agent, with the progress of its first report and the orders since.
#[derive(Debug)]
pub(super) struct AgentConnection {
    /// Unwanted instances with a state that the agent has not reported yet on this connection. They
    /// are gone if its first report ends without them.
    pub(super) unconfirmed: BTreeSet<InstanceName>,
    /// Whether its first report has ended.
    has_reported: bool,
    /// Wanted instances whose replacement by another revision was sent on this connection. Such an
    /// instance waits because of that order, and any other one because of an order of an earlier
    /// connection or server, see
    /// [`Deletes::resend_unknown`](super::deletes::Deletes::resend_unknown).
    ordered: BTreeSet<InstanceName>,
}

impl AgentConnection {
    /// Notes that the replacement of a wanted instance is sent. Returns whether it is the first one
    /// on this connection.
    pub(super) fn note_ordered(&mut self, instance: &InstanceName) -> bool {
        self.ordered.insert(instance.clone())
    }

    /// Notes that an instance is not wanted any more.
    pub(super) fn note_unwanted(&mut self, instance: &InstanceName) {
        self.ordered.remove(instance);
    }
}

impl Updates {
    /// Returns whether an agent is connected.
    pub(crate) fn is_connected(&self, agent: &Name) -> bool {
        self.agents.contains_key(agent)
    }

    /// Expects the first report of an agent, which has just connected or reconnected.
    pub(crate) fn agent_connected(&mut self, name: &Name) {
        self.history.agent_connected(name);
        // Deletes that were sent on an earlier connection may be lost.
        self.deletes.agent_connected(name, &self.workloads.states);
        // The agent no longer has an unwanted instance that its first report does not contain.
        let mut unconfirmed = BTreeSet::new();
        for (instance, _) in self.workloads.states.of_agent(name) {
            if self.workloads.is_unwanted(&instance) {
                unconfirmed.insert(instance);
            }
        }
        let connection = AgentConnection {
            unconfirmed,
            has_reported: false,
            ordered: BTreeSet::new(),
        };
        self.agents.insert(name.clone(), connection);
    }

    /// Makes the states of a lost agent unknown. `changes` are published with that.
    pub(crate) fn agent_gone(
        &mut self,
        name: &Name,
        changes: ChangedPaths,
        now: Instant,
        effects: &mut Effects,
    ) {
        self.history.agent_lost(name);
        self.agents.remove(name);
        let never_wanted = self.workloads.unwanted.agent_gone(name);
        let mut lost = Vec::new();
        for (instance, _) in self.workloads.states.of_agent(name) {
            if self.workloads.placeholders.contains(&instance) {
                continue; // The state is the server's own, and is not lost with the agent.
            }
            // A state of an instance that was never wanted is not kept without its agent.
            let phase = if never_wanted.contains(&instance) {
                Phase::Removed
            } else {
                Phase::AgentDisconnected
            };
            lost.push(WorkloadState::new(instance, ExecutionState::plain(phase)));
        }
        self.take_states(lost, changes, now, effects);
    }

    /// Takes over states that an agent reports. States of other agents' instances are ignored.
    pub(crate) fn states_reported(
        &mut self,
        name: &Name,
        mut states: Vec<WorkloadState>,
        now: Instant,
        effects: &mut Effects,
    ) {
        let is_connected = self.is_connected(name);
        let all = states.len();
        states.retain(|state| is_connected && state.instance.agent == *name);
        if states.len() < all {
            log::warn!(
                "Ignoring {} workload states that '{name}' must not report.",
                all - states.len()
            );
        }
        if !is_connected {
            return;
        }
        let mut refused = 0;
        let mut kept = Vec::with_capacity(states.len());
        for mut report in states {
            match self.take_report(&mut report) {
                ReportFate::Kept => kept.push(report),
                ReportFate::Ignored => {}
                ReportFate::Refused => refused += 1,
            }
        }
        if refused > 0 {
            log::warn!(
                "Ignoring {refused} states of workloads that '{name}' should not have: it has too many of them, or more \
                 than {NEVER_WANTED_OF_WORKLOAD} of one workload."
            );
        }
        let failures = self.take_failures(&kept);
        self.take_states(kept, ChangedPaths::default(), now, effects);
        for failure in failures {
            effects.push(Effect::EssentialFailed(failure));
        }
    }

    /// Decides about one reported state of a connected agent. Counts the state of an unwanted
    /// instance, and cuts its info.
    fn take_report(&mut self, WorkloadState { instance, state }: &mut WorkloadState) -> ReportFate {
        if let Some(agent) = self.agents.get_mut(&instance.agent) {
            agent.unconfirmed.remove(instance);
        }
        if self.workloads.is_wanted(instance) {
            return ReportFate::Kept;
        }
        state.cut_info(UNWANTED_INFO_MAX);
        if state.phase != Phase::Removed {
            let has_room = self.workloads.unwanted.report(instance);
            if !has_room {
                return ReportFate::Refused;
            }
            return ReportFate::Kept;
        }
        let was_counted = self.workloads.unwanted.remove(instance);
        let has_state = self.workloads.states.get(instance).is_some();
        if was_counted || has_state || self.deletes.contain(instance) {
            ReportFate::Kept
        } else {
            ReportFate::Ignored
        }
    }

    /// Ends the first report of an agent. An unwanted instance that is not part of it was removed
    /// while the agent was disconnected, and no later report will contain it.
    pub(crate) fn all_states_reported(&mut self, name: &Name, now: Instant, effects: &mut Effects) {
        let Some(agent) = self.agents.get_mut(name) else {
            return;
        };
        agent.has_reported = true;
        let mut gone = Vec::new();
        for instance in std::mem::take(&mut agent.unconfirmed) {
            if self.workloads.states.get(&instance).is_some() {
                gone.push(removed(instance));
            }
        }
        self.states_reported(name, gone, now, effects);
    }

    /// Stores states that were reported, or follow from the loss of an agent, and passes them on.
    /// `changes` are published with them.
    fn take_states(
        &mut self,
        states: Vec<WorkloadState>,
        changes: ChangedPaths,
        now: Instant,
        effects: &mut Effects,
    ) {
        let mut was_staged = false;
        for WorkloadState { instance, state } in &states {
            log::debug!("The state of '{instance}' is '{state}'.");
            let is_wanted = self.workloads.is_wanted(instance);
            self.timings.report(instance, state, now, is_wanted);
            let before = self.workloads.states.get(instance).map(|state| state.phase);
            let is_first_report = match self.agents.get(&instance.agent) {
                Some(agent) => !agent.has_reported,
                None => false,
            };
            self.history
                .report(instance, before, state, is_first_report);
            was_staged |= self.workloads.placeholders.remove(instance);
            self.workloads.states.set(instance, state.clone());
            if is_wanted {
                self.deletes.note_state(instance, state);
            }
            if state.phase == Phase::Removed {
                self.deletes.note_end(instance, is_wanted);
            }
        }
        let mut resent = Effects::default();
        self.deletes
            .resend_unknown(&states, &self.workloads, &mut self.agents, &mut resent);
        let changed = states.iter().map(|state| &state.instance);
        self.deletes
            .relieve(changed, &self.workloads, &self.agents, &mut resent);
        effects.push(Effect::Reported {
            states,
            was_staged,
            changes,
        });
        effects.append(resent);
    }

    // ---------------------------------------------------------- staged instances

    /// Shows how far staged instances are, and the real states of instances that are not staged any
    /// more. Agents do not receive these states.
    pub(crate) fn show_staged(
        &mut self,
        infos: &BTreeMap<InstanceName, String>,
        effects: &mut Effects,
    ) {
        // First, the instances that are staged.
        let mut shown = Vec::new();
        for (instance, text) in infos {
            let state = ExecutionState::with_info(Phase::PendingInitial, &**text);
            let known = self.workloads.states.get(instance);
            if known == Some(&state) {
                continue; // It is shown already.
            }
            // A state that an agent has reported stays: an instance of the same name is active, or
            // an earlier one still stops.
            let is_of_agent = known.is_some() || self.workloads.is_wanted(instance);
            if is_of_agent && !self.workloads.placeholders.contains(instance) {
                continue;
            }
            self.workloads.placeholders.insert(instance.clone());
            shown.push(WorkloadState::new(instance.clone(), state));
        }
        // Then, those that are not staged any more. Each is active now, or gone.
        let placeholders = &mut self.workloads.placeholders;
        let over: Vec<InstanceName> = placeholders
            .extract_if(.., |instance| !infos.contains_key(instance))
            .collect();
        for instance in over {
            let phase = if self.workloads.is_wanted(&instance) {
                Phase::PendingInitial
            } else {
                Phase::Removed
            };
            shown.push(WorkloadState::new(instance, ExecutionState::plain(phase)));
        }
        // Finally, store these states and pass them on.
        for WorkloadState { instance, state } in &shown {
            self.workloads.states.set(instance, state.clone());
        }
        for WorkloadState { instance, state } in &shown {
            if state.phase == Phase::Removed {
                effects.push(Effect::InstanceGone(instance.clone()));
            }
        }
        effects.push(Effect::BroadcastToClis(shown));
        effects.push(Effect::Publish(ChangedPaths::default()));
    }
}

/// The fate of one reported state.
enum ReportFate {
    /// It becomes a state of the cluster.
    Kept,
    /// It is the end of an unknown instance.
    Ignored,
    /// Its agent has too many unwanted instances.
    Refused,
}
