//! Peers connect, send messages and disconnect.
//!
//! Thread: `server`; part of [`ServerLoop`].

use super::ServerLoop;
use super::events::Changes;
use super::peers::{Agent, Peer, PeerClass};
use crate::model::complete_state::AgentAttributes;
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::messages::{FromServer, ToServer};
use crate::model::names::{InstanceName, Name};
use crate::platform::logging::may_log;
use crate::wire::inbox_budget::Room;
use crate::wire::outbox::Outbox;
use crate::wire::server_endpoint::{PeerHello, PeerId};
use std::collections::{BTreeMap, BTreeSet};

impl ServerLoop {
    pub(super) fn peer_opened(&mut self, id: PeerId, hello: PeerHello, source: Name, outbox: Outbox) {
        let (class, prefix) = match hello {
            PeerHello::Agent { name, tags } => return self.agent_opened(id, name.into(), tags, outbox),
            PeerHello::Cli => (PeerClass::Cli, "cli-conn"),
            PeerHello::Commander => (PeerClass::Commander, "commander-conn"),
        };
        let name = Name::from(format!("{prefix}-{}", uuid::Uuid::new_v4()));
        self.peers.add(id, Peer { class, name, source, outbox });
    }

    /// Sends the states of the others first and the agent's workloads after them: these may depend on the others.
    fn agent_opened(&mut self, id: PeerId, name: Name, tags: BTreeMap<String, String>, outbox: Outbox) {
        if let Some(old) = self.peers.of_agent(&name) {
            // Readers that wait for room in the inbox do not keep the order of their streams.
            if old > id {
                if may_log(&name) {
                    log::warn!("Ignoring an older connection of agent '{name}' that was announced late.");
                }
                return;
            }
            if may_log(&name) {
                log::warn!(
                    "Agent '{name}' connected again; closing its older connection. If this repeats, two agents use this \
                     name; give each agent a name of its own."
                );
            }
            self.remove_peer(old);
            self.end_logs_of_peer(old, PeerClass::Agent, &name);
        }
        self.peers.add(id, Peer { class: PeerClass::Agent, name: name.clone(), source: name.clone(), outbox });
        if may_log(&name) {
            log::info!("Agent '{name}' connected.");
        }
        self.peers.broadcast_all(self.workloads.states.reports(), id, &name);
        self.deletes.forget_agent(&name);
        let own = self.workloads.effective.values().filter(|added| added.instance.agent == name).cloned();
        self.peers.send(id, FromServer::ServerHello(own.collect()));
        let attributes = AgentAttributes { load: None, tags };
        let mut changes = Changes::default();
        changes.agent(&name, self.peers.agents.get(&name).map(|agent| &agent.attributes), Some(&attributes));
        let states = self.workloads.states.of_agent(&name).map(|(instance, _)| instance);
        let unwanted: BTreeSet<InstanceName> = states.filter(|instance| !self.workloads.is_wanted(instance)).collect();
        self.workloads.strays.agent_connected(&name);
        self.peers.agents.insert(name, Agent::new(id, attributes, unwanted));
        self.publish(&changes);
    }

    /// Every end of a stream: closed, failed, ended by a goodbye, or not read. An agent's states become unknown.
    pub(super) fn peer_gone(&mut self, id: PeerId) {
        // Its requests end first, so that nothing of what follows is sent for them.
        let Some(Peer { class, name, .. }) = self.remove_peer(id) else { return }; // Replaced by a newer stream, or closed before.
        if class == PeerClass::Agent && self.peers.of_agent(&name) == Some(id) {
            self.agent_gone(&name);
        }
        self.end_logs_of_peer(id, class, &name);
    }

    fn agent_gone(&mut self, name: &Name) {
        if may_log(name) {
            log::info!("Agent '{name}' disconnected.");
        }
        let agent = self.peers.agents.remove(name);
        let lost = self.workloads.states.set_agent_disconnected(name);
        let unknown = ExecutionState::plain(Phase::AgentDisconnected);
        let reports: Vec<WorkloadState> =
            lost.iter().map(|(instance, _)| WorkloadState::new(instance.clone(), unknown.clone())).collect();
        if !self.subscriptions.is_empty() {
            let mut changes = Changes::default();
            changes.agent(name, agent.as_ref().map(|agent| &agent.attributes), None);
            let lost = lost.into_iter().map(|(instance, state)| (instance, Some(state)));
            changes.states(lost.collect(), &self.workloads.states);
            self.publish(&changes);
        }
        self.peers.broadcast_states(&reports, None);
        // Nothing waits for what is not known to run.
        self.relieve_deletes(reports.iter().map(|report| &report.instance));
        self.workloads.strays.agent_disconnected(name);
        self.forget_surplus();
    }

    /// Removes a stream and its requests, except for logs.
    fn remove_peer(&mut self, id: PeerId) -> Option<Peer> {
        let peer = self.peers.remove(id)?;
        self.subscriptions.remove_peer(id);
        self.waiting.remove_peer(id);
        if !self.waiting.is_empty() {
            self.room.0.wake_by_ref(); // Updates of it wait for no room any more.
        }
        Some(peer)
    }

    /// `room` is given back when the message is handled, so that the next large one waits until then.
    pub(super) fn message_received(&mut self, id: PeerId, message: ToServer, room: Room) {
        let Some(peer) = self.peers.get(id) else { return }; // Late messages of a replaced stream mean nothing.
        let name = peer.name.clone();
        match message {
            ToServer::Request(request) => self.request(id, request, room),
            ToServer::WorkloadStates(states) => self.states_reported(id, &name, states),
            ToServer::StatesComplete => self.all_states_reported(id, &name),
            ToServer::AgentLoad(load) => self.load_reported(id, &name, &load),
            ToServer::Goodbye => {
                log::debug!("'{name}' sent a goodbye.");
                self.peer_gone(id);
            }
            ToServer::LogEntries { request_id, entries } => self.log_entries(&name, &request_id, entries),
            ToServer::LogsStop { request_id, instance } => self.logs_stopped(&name, &request_id, instance),
            ToServer::AgentHello { .. } | ToServer::CommanderHello { .. } => {
                if peer.may_log() {
                    log::warn!("Ignoring another hello of '{name}' on the same connection.");
                }
            }
            ToServer::Empty => {
                if peer.may_log() {
                    log::warn!("Ignoring a message of '{name}' that has no content.");
                }
            }
        }
    }
}
