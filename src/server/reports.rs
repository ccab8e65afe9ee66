//! What agents report: states of their workloads, and their load.
//!
//! Thread: `server`; part of [`ServerLoop`].

use super::ServerLoop;
use super::events::Changes;
use super::peers::Peer;
use crate::limits::{STRAY_INFO_MAX, STRAYS_OF_WORKLOAD};
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::messages::{AgentLoad, DeletedWorkload, FromServer, WorkloadPlan};
use crate::model::names::{InstanceName, Name, excerpt};
use crate::platform::logging::may_log;
use crate::wire::server_endpoint::PeerId;

fn removed(instance: InstanceName) -> WorkloadState {
    WorkloadState::new(instance, ExecutionState::plain(Phase::Removed))
}

impl ServerLoop {
    /// An agent reports its own workloads only: states of others are ignored.
    pub(super) fn states_reported(&mut self, id: PeerId, name: &Name, mut states: Vec<WorkloadState>) {
        let all = states.len();
        let may_log_peer = self.peers.get(id).is_some_and(Peer::may_log);
        let agent = self.peers.agent_on(id, name);
        states.retain(|state| agent.is_some() && state.instance.agent == *name);
        if states.len() < all && may_log_peer {
            log::warn!("Ignoring {} workload states that '{name}' may not report.", all - states.len());
        }
        let Some(agent) = agent else { return };
        let all = states.len();
        let workloads = &mut self.workloads;
        states.retain_mut(|WorkloadState { instance, state }| {
            agent.unconfirmed.remove(instance);
            if state.phase == Phase::Removed {
                workloads.strays.remove(instance);
                return true;
            }
            if workloads.is_wanted(instance) {
                return true;
            }
            state.cut_info(STRAY_INFO_MAX);
            workloads.strays.report(instance)
        });
        if states.len() < all && may_log(name) {
            log::warn!(
                "Ignoring {} states of workloads that '{name}' should not have: there are too many of such, or more than \
                 {STRAYS_OF_WORKLOAD} of one workload.",
                all - states.len()
            );
        }
        self.take_states(Some(id), states);
        self.forget_surplus();
    }

    /// The first report of the agent has ended: what it lost while it was away, and is not wanted any more, is gone. Nobody
    /// else could ever report that.
    pub(super) fn all_states_reported(&mut self, id: PeerId, name: &Name) {
        let Some(agent) = self.peers.agent_on(id, name) else { return };
        agent.first_report_ended();
        let mut gone = std::mem::take(&mut agent.unconfirmed);
        gone.retain(|instance| self.workloads.states.get(instance).is_some());
        self.states_reported(id, name, gone.into_iter().map(removed).collect());
    }

    /// Agents of ever new names must not fill the memory with states of instances that nobody wants.
    pub(super) fn forget_surplus(&mut self) {
        while let Some((name, instances)) = self.workloads.strays.take_surplus() {
            if may_log(&name) {
                log::warn!(
                    "Forgetting {} states of workloads that '{name}', which is disconnected, should not have.",
                    instances.len()
                );
            }
            self.take_states(None, instances.into_iter().map(removed).collect());
        }
    }

    /// Stores states that the agent with the stream `from` may report, and passes them on.
    fn take_states(&mut self, from: Option<PeerId>, states: Vec<WorkloadState>) {
        let mut old = Vec::new();
        for WorkloadState { instance, state } in &states {
            log::debug!("The state of '{instance}' is '{state}'.");
            old.push((instance.clone(), self.workloads.states.set(instance, state.clone())));
            if state.phase == Phase::Removed {
                self.deletes.forget_stopping(instance);
                // For a wanted instance this may be the end of an earlier form; the present one waits for what was sent last.
                if !self.workloads.is_wanted(instance) {
                    self.deletes.forget_sent(instance);
                }
            }
        }
        if !self.subscriptions.is_empty() {
            let mut changes = Changes::default();
            changes.states(old, &self.workloads.states);
            self.publish(&changes);
        }
        for removed in states.iter().filter(|state| state.state.phase == Phase::Removed) {
            self.end_requests_of_gone(&removed.instance); // Another one may have come with the same report.
        }
        self.peers.broadcast_states(&states, from);
        self.resend_unknown_deletes(&states);
        self.relieve_deletes(states.iter().map(|state| &state.instance));
    }

    /// Sends agents again what they let wait for conditions that this server does not know: an earlier server sent them, or
    /// this one on a connection that was lost with its last messages, or the instance was started again while it waits and
    /// its end was reported. A wanted instance may wait to be replaced by the same instance in another form, or for a
    /// condition of its node; an agent that reports that when it connects is sent the update once.
    fn resend_unknown_deletes(&mut self, states: &[WorkloadState]) {
        let Self { workloads, peers, deletes, .. } = self;
        let waiting = states.iter().filter(|state| state.state.phase == Phase::StoppingWaitingToStop);
        let mut is_to_be_sent = |one: &InstanceName| {
            !workloads.is_wanted(one) || peers.agents.get_mut(&one.agent).is_some_and(|agent| agent.must_resend(one))
        };
        let waiting = waiting.map(|state| &state.instance).filter(|one| !deletes.has_sent(one));
        let unknown: Vec<InstanceName> = waiting.filter(|one| is_to_be_sent(one)).cloned().collect();
        for deleted in deletes.with_conditions(unknown, workloads) {
            self.deletes.note_sent(&deleted);
            self.resend_delete(deleted);
        }
    }

    /// Sends agents again what has to wait for less, now that the states of these instances are known.
    pub(super) fn relieve_deletes<'n>(&mut self, changed: impl Iterator<Item = &'n InstanceName>) {
        for deleted in self.deletes.relieved(changed, &self.workloads) {
            log::debug!("'{}' may be deleted although others that needed it exist again.", deleted.instance);
            self.resend_delete(deleted);
        }
    }

    fn resend_delete(&mut self, deleted: DeletedWorkload) {
        let InstanceName { workload, agent, .. } = &deleted.instance;
        let Some(peer) = self.peers.of_agent(agent) else { return };
        // Its successor is a part of the same order.
        let successor = self.workloads.effective.get(workload).filter(|added| added.instance.agent == *agent);
        let added = successor.cloned().into_iter().collect();
        self.peers.send(peer, FromServer::UpdateWorkload(WorkloadPlan { added, deleted: vec![deleted] }));
    }

    pub(super) fn load_reported(&mut self, id: PeerId, name: &Name, load: &AgentLoad) {
        let Some(agent) = self.peers.agent_on(id, name).filter(|_| *load.agent == **name) else {
            if self.peers.get(id).is_some_and(Peer::may_log) {
                log::warn!("Ignoring the load of '{}' reported by '{name}'.", excerpt(&load.agent));
            }
            return;
        };
        let before = agent.attributes.clone();
        agent.attributes.load = Some((load.cpu_usage, load.free_memory));
        if !self.subscriptions.is_empty() {
            let mut changes = Changes::default();
            changes.agent(name, Some(&before), Some(&agent.attributes));
            self.publish(&changes);
        }
    }
}
