//! Peers connect, report and disconnect.
//!
//! Thread: `server`; part of [`ServerLoop`].

use super::ServerLoop;
use super::effects::{Effect, Effects};
use super::sessions::{Arrival, Peer, RequestKey, Requester};
use ankaios_model::messages::{AgentHello, FromServer, ToServer};
use ankaios_model::names::{Name, excerpt};
use ankaios_platform::logging::log_source;
use ankaios_wire::outbox::Outbox;
use ankaios_wire::peer::{MessagePermits, PeerHello, PeerId, Service};

impl ServerLoop {
    /// Adds a stream. A client gets a name that no other stream has.
    pub(super) fn peer_opened(
        &mut self,
        id: PeerId,
        hello: PeerHello,
        source: Name,
        certificate_expires: Option<u64>,
        outbox: Outbox,
    ) {
        let service = match hello {
            PeerHello::Agent(hello) => {
                return self.agent_opened(id, hello, certificate_expires, outbox);
            }
            PeerHello::Cli => Service::Cli, // Of `ank` of an earlier version.
            PeerHello::Commander => Service::Command,
        };
        let prefix = if service == Service::Cli {
            "cli-conn"
        } else {
            "commander-conn"
        };
        let peer = Peer {
            service,
            name: Name::from(format!("{prefix}-{}", uuid::Uuid::new_v4())),
            source,
        };
        self.sessions.open_client(id, peer, outbox);
    }

    /// Adds an agent. It is sent the states of all other agents' workloads before its own
    /// workloads, which may depend on them.
    fn agent_opened(
        &mut self,
        id: PeerId,
        hello: AgentHello,
        certificate_expires: Option<u64>,
        outbox: Outbox,
    ) {
        let name = Name::from(hello.agent.clone());
        let _source = log_source(name.clone());
        let begin = self.now();
        // First, decide whether the agent may connect. An older connection of it ends.
        if self.admission.defers_agent(&name, begin) {
            return refuse_agent(
                &name,
                "it has kept the server busy, and other messages wait",
            );
        }
        match self.sessions.arrival(id, &name, &outbox) {
            Arrival::NoCapacity => {
                return refuse_agent(&name, "too many messages wait for other peers");
            }
            Arrival::Outdated => {
                return log::warn!(
                    "Ignoring an older connection of agent '{name}' that was announced late."
                );
            }
            Arrival::Replaces(older) => {
                log::warn!(
                    "Agent '{name}' connected again; closing its older connection. If this repeats, two agents use this \
                     name; give each agent a name of its own."
                );
                let mut effects = Effects::default();
                self.close(older);
                self.subscriptions.end_of_peer(older, &name, &mut effects);
                self.apply(effects);
            }
            Arrival::First => {}
        }
        // Then it gets the states of other agents, and each part of the server learns of it.
        let capabilities = hello.capabilities;
        let mut states = self.updates.workloads().reported_states();
        states.retain(|state| state.instance.agent != name);
        let changes = self
            .sessions
            .open_agent(id, hello, certificate_expires, &states, outbox);
        if certificate_expires.is_some() {
            self.expiry.check_soon(begin);
        }
        log::info!("Agent '{name}' connected.");
        self.updates.agent_connected(&name);
        let mut effects = Effects::default();
        self.rollouts
            .agent_connected(&name, capabilities, begin, &mut effects);
        // Finally, it gets its own workloads.
        let mut own = Vec::new();
        for added in self.updates.workloads().effective.values() {
            if added.instance.agent == name {
                own.push(added.clone());
            }
        }
        effects.send_to_agent(&name, FromServer::ServerHello(own));
        effects.push(Effect::Publish(changes));
        self.apply(effects);
        self.admission
            .debit(&Requester::of_agent(&name), begin, self.now());
    }

    /// Handles the end of a stream, whatever the reason: closed, failed, ended by a goodbye, or not
    /// read. The states of an agent become unknown.
    pub(super) fn peer_gone(&mut self, id: PeerId) {
        // Its requests end first, so that the messages below are not sent for them.
        let Some(peer) = self.close(id) else {
            return; // Replaced by a newer stream, or closed before.
        };
        let name = &peer.name;
        let mut effects = Effects::default();
        if peer.is_agent() {
            let _source = log_source(name.clone());
            log::info!("Agent '{name}' disconnected.");
            let now = self.now();
            let changes = self.sessions.remove_agent(name);
            self.rollouts.agent_gone(name, now);
            self.updates.agent_gone(name, changes, now, &mut effects);
            self.apply(std::mem::take(&mut effects));
        }
        self.subscriptions.end_of_peer(id, name, &mut effects);
        self.apply(effects);
    }

    /// Removes a stream and its requests, except for logs.
    fn close(&mut self, id: PeerId) -> Option<Peer> {
        let peer = self.sessions.close(id)?;
        self.subscriptions.end_reads_of_peer(id, &peer.name);
        self.admission.remove_peer(id);
        Some(peer)
    }

    /// Handles a message. Its `permits` are released at the end, so the next large message waits
    /// until this message is handled.
    pub(super) fn message_received(
        &mut self,
        id: PeerId,
        message: ToServer,
        permits: MessagePermits,
    ) {
        let Some(peer) = self.sessions.peer(id) else {
            return; // A late message of a replaced stream.
        };
        let peer = peer.clone();
        let name = &peer.name;
        let _source = log_source(peer.source.clone());
        let begin = self.now();
        let mut effects = Effects::default();
        match message {
            ToServer::Request(request) => return self.request(id, request, permits),
            ToServer::WorkloadStates(states) => {
                self.updates
                    .states_reported(name, states, begin, &mut effects);
            }
            ToServer::StatesComplete => {
                self.updates.all_states_reported(name, begin, &mut effects);
            }
            ToServer::AgentLoad(load) => {
                let changes = self.sessions.load_reported(name, &load);
                effects.push(Effect::Publish(changes));
            }
            ToServer::UsageResponse { number, usage } => {
                let states = &self.updates.workloads().states;
                self.subscriptions
                    .usage_reported(name, number, usage, |instance| {
                        states.get(instance).is_some()
                    });
            }
            ToServer::Prepared(reports) => self.rollouts.prepared_reported(name, &reports),
            ToServer::Goodbye => {
                log::debug!("'{name}' sent a goodbye.");
                self.peer_gone(id);
            }
            ToServer::LogEntries {
                request_id,
                entries,
            } => {
                if let Some(key) = self.log_request(&request_id) {
                    self.subscriptions
                        .log_entries(name, &key, entries, &mut effects);
                }
            }
            ToServer::LogsStop {
                request_id,
                instance,
            } => {
                if let Some(key) = self.log_request(&request_id) {
                    self.subscriptions
                        .logs_stopped(name, &key, instance, &mut effects);
                }
            }
            ToServer::AgentHello(_) | ToServer::CommanderHello { .. } => {
                log::warn!("Ignoring another hello of '{name}' on the same connection.");
            }
            ToServer::Empty => log::warn!("Ignoring a message of '{name}' that has no content."),
        }
        self.apply(effects);
        if peer.is_agent() {
            let end = self.now();
            self.admission
                .debit_agent(name, permits.into_slot(), begin, end);
        }
    }

    /// The request that an agent sends logs for. `None` if it has ended, which is logged.
    fn log_request(&self, full_id: &str) -> Option<RequestKey> {
        let key = self.sessions.request_of(full_id);
        if key.is_none() {
            let id = excerpt(full_id);
            log::warn!("Dropping logs for the unknown request '{id}'.");
        }
        key
    }
}

fn refuse_agent(name: &Name, why: &str) {
    log::warn!("Ending the connection of agent '{name}': {why}. It tries again.");
}
