//! Peers connect, report and disconnect.
//!
//! Thread: `server`; part of [`ServerLoop`].

use super::ServerLoop;
use super::effects::Effects;
use super::events::Changes;
use super::lasting::Kind;
use super::peers::{Agent, Peer};
use super::requester::Requester;
use ankaios_model::complete_state::AgentAttributes;
use ankaios_model::execution_state::WorkloadState;
use ankaios_model::messages::{AgentHello, AgentLoad, FromServer, ToServer};
use ankaios_model::names::{Name, excerpt};
use ankaios_platform::logging::log_source;
use ankaios_wire::outbox::Outbox;
use ankaios_wire::peer::{PeerEvent, PeerHello, PeerId, Room, Service};

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
        let is_greedy = !self.arrived.is_empty() && self.waiting.agent_rests(&name, begin);
        if is_greedy || !outbox.has_room_for_agent() {
            let why = if is_greedy {
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
            self.end_logs_of_peer(old, &name);
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
            to_prepare: vec![],
        };
        self.peers.agents.insert(name.clone(), agent);
        self.send_list(&name);
        let own = self
            .updates
            .workloads()
            .effective
            .values()
            .filter(|added| added.instance.agent == name)
            .cloned();
        self.peers.send(id, FromServer::ServerHello(own.collect()));
        self.judge_connected(&name, capabilities.prepares);
        self.publish(changes);
        self.waiting
            .charge(&Requester::of_agent(&name), begin, self.now());
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
        self.end_logs_of_peer(id, &name);
    }

    fn agent_gone(&mut self, name: &Name) {
        let _source = log_source(name.clone());
        log::info!("Agent '{name}' disconnected.");
        let agent = self.peers.agents.remove(name);
        self.judge_lost(name);
        let mut changes = Changes::default();
        changes.agent(name, agent.as_ref().map(|agent| &agent.attributes), None);
        let (now, mut effects) = (self.now(), Effects::default());
        self.updates.agent_gone(name, changes, now, &mut effects);
        self.apply(effects);
    }

    /// Removes a stream and its requests, except for logs.
    fn remove_peer(&mut self, id: PeerId) -> Option<Peer> {
        let peer = self.peers.streams.remove(&id)?; // Dropping its outbox ends it with status OK.
        self.end_lasting(|kind, key, _| kind != Kind::Logs && key.peer == id);
        self.end_usage_of_peer(&peer.name);
        self.waiting.remove_peer(id);
        if !self.waiting.is_empty() {
            self.room.0.wake_by_ref(); // Updates of it wait for no room any more.
        }
        Some(peer)
    }

    /// `room` is given back when the message is handled, so that the next large one waits until
    /// then.
    pub(super) fn message_received(&mut self, id: PeerId, message: ToServer, room: Room) {
        let Some(peer) = self.peers.get(id) else {
            return;
        }; // Late messages of a replaced stream mean nothing.
        let (name, is_agent) = (peer.name.clone(), peer.class == Service::Agent);
        let _source = log_source(peer.source.clone());
        let begin = self.now();
        match message {
            ToServer::Request(request) => return self.request(id, request, room),
            ToServer::WorkloadStates(states) => self.states_reported(&name, states),
            ToServer::StatesComplete => self.all_states_reported(&name),
            ToServer::AgentLoad(load) => self.load_reported(&name, &load),
            ToServer::UsageResponse { number, usage } => self.usage_reported(&name, number, usage),
            ToServer::Prepared(reports) => self.prepared_reported(&name, &reports),
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
            self.waiting
                .charge(&Requester::of_agent(&name), begin, self.now());
        }
    }

    /// The next event that has arrived: the oldest that is not from an agent that rests, if there
    /// is one. Those of one stream keep their order, so that its end takes nothing away that was
    /// sent before it.
    pub(super) fn next_arrived(&mut self) -> Option<PeerEvent> {
        let now = self.now();
        let rests = |event: &PeerEvent| {
            let (PeerEvent::Message { peer, .. } | PeerEvent::Closed { peer }) = event else {
                return false;
            };
            let agent = self
                .peers
                .get(*peer)
                .filter(|peer| peer.class == Service::Agent);
            agent.is_some_and(|agent| self.waiting.agent_rests(&agent.name, now))
        };
        let index = self
            .arrived
            .iter()
            .position(|event| !rests(event))
            .unwrap_or_default();
        self.arrived.remove(index)
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
