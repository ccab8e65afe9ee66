//! Peers connect, report and disconnect.
//!
//! Thread: `server`; part of [`ServerLoop`].

use super::ServerLoop;
use super::effects::Effects;
use super::events::Changes;
use super::peers::{Agent, Peer};
use super::requester::Requester;
use super::subscriptions::Kind;
use ankaios_model::complete_state::AgentAttributes;
use ankaios_model::execution_state::WorkloadState;
use ankaios_model::mask_tree::MaskTree;
use ankaios_model::messages::{AgentHello, AgentLoad, FromServer, ToServer};
use ankaios_model::names::{InstanceName, Name, excerpt};
use ankaios_platform::logging::log_source;
use ankaios_wire::outbox::Outbox;
use ankaios_wire::peer::{MessagePermits, PeerHello, PeerId, Service};

impl ServerLoop {
    pub(super) fn peer_opened(
        &mut self,
        id: PeerId,
        hello: PeerHello,
        source: Name,
        outbox: Outbox,
    ) {
        let (class, prefix) = match hello {
            PeerHello::Agent(hello) => return self.agent_opened(id, hello, outbox),
            PeerHello::Cli => (Service::Cli, "cli-conn"),
            PeerHello::Commander => (Service::Command, "commander-conn"),
        };
        let name = Name::from(format!("{prefix}-{}", uuid::Uuid::new_v4()));
        self.peers.streams.insert(
            id,
            Peer {
                class,
                name,
                source,
                outbox,
            },
        );
    }

    /// Sends the states of the others first and the agent's workloads after them: these may depend
    /// on the others.
    fn agent_opened(
        &mut self,
        id: PeerId,
        AgentHello {
            agent,
            tags,
            capabilities,
            ..
        }: AgentHello,
        outbox: Outbox,
    ) {
        let name = Name::from(agent);
        let _source = log_source(name.clone());
        let begin = self.now();
        let is_throttled = self.admission.defers_agent(&name, begin);
        if is_throttled || !outbox.has_room_for_agent() {
            let why = if is_throttled {
                "it kept the server busy, and others wait"
            } else {
                "too much waits for others"
            };
            return log::warn!("Ending the connection of agent '{name}': {why}. It tries again.");
        }
        if let Some(old) = self.peers.of_agent(&name) {
            // Readers that wait for room in the inbox do not keep the order of their streams.
            if old > id {
                return log::warn!(
                    "Ignoring an older connection of agent '{name}' that was announced late."
                );
            }
            log::warn!(
                "Agent '{name}' connected again; closing its older connection. If this repeats, two agents use this \
                 name; give each agent a name of its own."
            );
            self.remove_peer(old);
            self.end_subscriptions_of_peer(old, &name);
        }
        let mut states = self.updates.workloads().reported_states();
        states.retain(|state| state.instance.agent != name);
        let result = outbox.put_first_states(&states);
        self.peers.streams.insert(
            id,
            Peer {
                class: Service::Agent,
                name: name.clone(),
                source: name.clone(),
                outbox,
            },
        );
        self.peers.check(id, result);
        log::info!("Agent '{name}' connected.");
        self.updates.agent_connected(&name);
        let attributes = AgentAttributes { load: None, tags };
        let mut changes = Changes::default();
        changes.agent(
            &name,
            self.peers.agents.get(&name).map(|agent| &agent.attributes),
            Some(&attributes),
        );
        let agent = Agent {
            peer: id,
            attributes,
            capabilities,
        };
        self.peers.agents.insert(name.clone(), agent);
        let mut effects = Effects::default();
        self.rollouts
            .agent_connected(&name, capabilities.prepares, begin, &mut effects);
        self.apply(effects);
        let own = self
            .updates
            .workloads()
            .effective
            .values()
            .filter(|added| added.instance.agent == name)
            .cloned();
        self.peers.send(id, FromServer::ServerHello(own.collect()));
        self.publish(changes);
        self.admission
            .debit(&Requester::of_agent(&name), begin, self.now());
    }

    /// Every end of a stream: closed, failed, ended by a goodbye, or not read. An agent's states
    /// become unknown.
    pub(super) fn peer_gone(&mut self, id: PeerId) {
        // Its requests end first, so that nothing of what follows is sent for them.
        let Some(Peer { class, name, .. }) = self.remove_peer(id) else {
            return;
        }; // Replaced by a newer stream, or closed before.
        if class == Service::Agent {
            self.agent_gone(&name);
        }
        self.end_subscriptions_of_peer(id, &name);
    }

    fn agent_gone(&mut self, name: &Name) {
        let _source = log_source(name.clone());
        log::info!("Agent '{name}' disconnected.");
        let agent = self.peers.agents.remove(name);
        self.rollouts.agent_gone(name, self.now());
        let mut changes = Changes::default();
        changes.agent(name, agent.as_ref().map(|agent| &agent.attributes), None);
        let (now, mut effects) = (self.now(), Effects::default());
        self.updates.agent_gone(name, changes, now, &mut effects);
        self.apply(effects);
    }

    /// Removes a stream and its requests, except for logs.
    fn remove_peer(&mut self, id: PeerId) -> Option<Peer> {
        let peer = self.peers.streams.remove(&id)?; // Dropping its outbox ends it with status OK.
        let mut effects = Effects::default();
        self.subscriptions.end(
            |kind, key, _| kind != Kind::Logs && key.peer == id,
            &mut effects,
        );
        self.subscriptions.end_usage_of_agent(&peer.name);
        self.apply(effects);
        self.admission.remove_peer(id);
        Some(peer)
    }

    /// Ends what is left of the subscriptions of a stream, and the log lines of its agent.
    fn end_subscriptions_of_peer(&mut self, id: PeerId, name: &Name) {
        let mut effects = Effects::default();
        self.subscriptions.end_of_peer(id, name, &mut effects);
        self.apply(effects);
    }

    /// An instance has no state any more: its subscriptions end. When its agent has nothing of the
    /// workload any more, so do all of the workload: they belong to the last instance that was
    /// wanted, which may have gone first.
    pub(super) fn end_requests_of_gone(&mut self, gone: &InstanceName) {
        self.rights.end(gone, self.updates.workloads());
        let mut effects = Effects::default();
        self.subscriptions.end_of_owner(gone, &mut effects);
        self.apply(effects);
        if self.rights.of(&gone.agent, &gone.workload).is_none() {
            self.end_denied_subscriptions(gone);
            self.end_logs_of_workload(gone);
        }
    }

    /// A workload was added, updated or deleted: event subscriptions that it may not have any more
    /// end with the reason.
    pub(super) fn end_denied_subscriptions(&mut self, instance: &InstanceName) {
        let InstanceName {
            workload, agent, ..
        } = instance;
        let Some(peer) = self.peers.of_agent(agent) else {
            return;
        };
        let check = |masks: Option<&MaskTree>| self.rights.check_read(agent, workload, masks);
        let mut effects = Effects::default();
        self.subscriptions
            .end_denied(peer, workload, check, &mut effects);
        self.apply(effects);
    }

    /// A workload is deleted or becomes another instance: nobody reads the logs that it requested.
    pub(super) fn end_logs_of_workload(&mut self, instance: &InstanceName) {
        let Some(peer) = self.peers.of_agent(&instance.agent) else {
            return;
        };
        let mut effects = Effects::default();
        self.subscriptions
            .end_logs_of_workload(peer, &instance.workload, &mut effects);
        self.apply(effects);
    }

    /// `permits` are released when the message is handled, so that the next large one waits until
    /// then.
    pub(super) fn message_received(
        &mut self,
        id: PeerId,
        message: ToServer,
        permits: MessagePermits,
    ) {
        let Some(peer) = self.peers.get(id) else {
            return;
        }; // Late messages of a replaced stream mean nothing.
        let (name, is_agent) = (peer.name.clone(), peer.class == Service::Agent);
        let _source = log_source(peer.source.clone());
        let begin = self.now();
        match message {
            ToServer::Request(request) => return self.request(id, request, permits),
            ToServer::WorkloadStates(states) => self.states_reported(&name, states),
            ToServer::StatesComplete => self.all_states_reported(&name),
            ToServer::AgentLoad(load) => self.load_reported(&name, &load),
            ToServer::UsageResponse { number, usage } => {
                let states = &self.updates.workloads().states;
                let has_state = |instance: &InstanceName| states.get(instance).is_some();
                self.subscriptions
                    .usage_reported(&name, number, usage, has_state);
            }
            ToServer::Prepared(reports) => self.rollouts.prepared_reported(&name, &reports),
            ToServer::Goodbye => {
                log::debug!("'{name}' sent a goodbye.");
                self.peer_gone(id);
            }
            ToServer::LogEntries {
                request_id,
                entries,
            } => self.log_entries(&name, &request_id, entries),
            ToServer::LogsStop {
                request_id,
                instance,
            } => self.logs_stopped(&name, &request_id, instance),
            ToServer::AgentHello(_) | ToServer::CommanderHello { .. } => {
                log::warn!("Ignoring another hello of '{name}' on the same connection.");
            }
            ToServer::Empty => log::warn!("Ignoring a message of '{name}' that has no content."),
        }
        if is_agent {
            let end = self.now();
            self.admission
                .debit_agent(&name, permits.into_slot(), begin, end);
        }
    }

    // ---------------------------------------------------------------- reports

    fn states_reported(&mut self, name: &Name, states: Vec<WorkloadState>) {
        let (now, mut effects) = (self.now(), Effects::default());
        self.updates
            .states_reported(name, states, now, &mut effects);
        self.apply(effects);
    }

    fn all_states_reported(&mut self, name: &Name) {
        let (now, mut effects) = (self.now(), Effects::default());
        self.updates.all_states_reported(name, now, &mut effects);
        self.apply(effects);
    }

    fn load_reported(&mut self, name: &Name, load: &AgentLoad) {
        let Some(agent) = self
            .peers
            .agents
            .get_mut(name)
            .filter(|_| *load.agent == **name)
        else {
            return log::warn!(
                "Ignoring the load of '{}' reported by '{name}'.",
                excerpt(&load.agent)
            );
        };
        let before = agent.attributes.clone();
        agent.attributes.load = Some((load.cpu_usage, load.free_memory));
        let mut changes = Changes::default();
        changes.agent(name, Some(&before), Some(&agent.attributes));
        self.publish(changes);
    }
}
