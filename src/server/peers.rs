//! Everybody who is connected: one outbox for each stream, and the agents among them.
//!
//! Thread: `server`; a plain value owned by [`super::ServerLoop`].

use super::events::Changes;
use super::logs::LogAvailability;
use super::requester::{RequestKey, Requester};
use super::update::Tags;
use ankaios_model::complete_state::AgentAttributes;
use ankaios_model::execution_state::WorkloadState;
use ankaios_model::messages::{AgentCapabilities, FromServer, Response, ResponseContent};
use ankaios_model::names::Name;
use ankaios_platform::logging::log_source;
use ankaios_wire::outbox::{Encoded, Outbox, OutboxError};
use ankaios_wire::peer::{PeerId, Service};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::task::Waker;

/// One stream.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Which service it uses.
    pub(crate) class: Service,
    /// The agent's name, or a name that no agent can have and no other stream has.
    pub(crate) name: Name,
    /// The source that its log lines are counted for: the agent's name, or the holder of a
    /// commander's connection.
    pub(crate) source: Name,
    /// What waits to be sent.
    pub(crate) outbox: Outbox,
}

/// A connected agent.
#[derive(Debug)]
pub struct Agent {
    /// Its stream. An agent is removed by its stream and not by its name, so that the late end of
    /// an old stream does not remove its successor.
    pub(crate) peer: PeerId,
    /// Its tags and load.
    pub(crate) attributes: AgentAttributes,
    /// What its program does beyond what every agent does.
    pub(crate) capabilities: AgentCapabilities,
}

/// All streams and all connected agents.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    /// Streams by their number.
    pub(crate) streams: BTreeMap<PeerId, Peer>,
    /// Connected agents by name.
    pub(crate) agents: BTreeMap<Name, Agent>,
    /// Streams that did not take a message; closed at the end of the event.
    failed: Vec<PeerId>,
}

/// The capacity for responses at one moment.
pub(crate) struct ResponseCapacity<'p> {
    peers: &'p Peers,
    waker: &'p Waker,
    /// Counted when it is needed first.
    unsent_by_source: Option<BTreeMap<&'p Name, usize>>,
}

impl ResponseCapacity<'_> {
    /// Whether a response for this peer would be sent soon.
    pub(crate) fn has_room(&mut self, peer: PeerId) -> bool {
        let peers = self.peers;
        let Some(peer) = peers.get(peer) else {
            return true;
        };
        let by_source = &mut self.unsent_by_source;
        let unsent_of_source = || {
            let by_source = by_source.get_or_insert_with(|| peers.unsent_by_source());
            by_source.get(&peer.source).copied().unwrap_or_default()
        };
        peer.outbox
            .has_room_for_response(unsent_of_source, self.waker)
    }
}

impl Peers {
    /// The stream `id`.
    pub(crate) fn get(&self, id: PeerId) -> Option<&Peer> {
        self.streams.get(&id)
    }

    /// The stream of a connected agent.
    pub(crate) fn of_agent(&self, name: &str) -> Option<PeerId> {
        self.agents.get(name).map(|agent| agent.peer)
    }

    /// The capacity for responses. `waker` is woken when it may have become enough for a peer for
    /// which it was not.
    pub(crate) fn response_capacity<'p>(&'p self, waker: &'p Waker) -> ResponseCapacity<'p> {
        ResponseCapacity {
            peers: self,
            waker,
            unsent_by_source: None,
        }
    }

    /// Bytes of responses that wait for the peers of each source.
    fn unsent_by_source(&self) -> BTreeMap<&Name, usize> {
        let mut unsent = BTreeMap::new();
        for peer in self.streams.values() {
            *unsent.entry(&peer.source).or_default() += peer.outbox.unsent_responses();
        }
        unsent
    }

    /// Whether an agent can be sent a request for logs.
    pub(crate) fn log_availability(&self, agent: &Name) -> LogAvailability {
        let Some(peer) = self.of_agent(agent).and_then(|peer| self.get(peer)) else {
            return LogAvailability::NotConnected;
        };
        if peer.outbox.is_half_empty() {
            LogAvailability::Ready
        } else {
            LogAvailability::Busy
        }
    }

    /// Who sent a request.
    pub(crate) fn requester(&self, key: &RequestKey) -> Requester {
        let known = self
            .get(key.peer)
            .map(|peer| (peer.class == Service::Agent, peer.source.clone()));
        let (is_agent, source) = known.unwrap_or_default();
        let workload = key.workload().filter(|_| is_agent).map(Name::from);
        Requester {
            is_agent,
            source,
            peer: (!is_agent).then_some(key.peer),
            workload,
        }
    }

    /// Sets the tags of agents; only those of connected agents can be changed. Returns what has
    /// changed.
    pub(crate) fn set_agent_tags(&mut self, agent_tags: BTreeMap<Name, Tags>) -> Changes {
        let mut changes = Changes::default();
        for (name, tags) in agent_tags {
            if let Some(agent) = self.agents.get_mut(&name) {
                let before = agent.attributes.clone();
                agent.attributes.tags = tags;
                changes.agent(&name, Some(&before), Some(&agent.attributes));
            }
        }
        changes
    }

    /// A stream that did not take a message, once for each.
    pub(crate) fn take_failed(&mut self) -> Option<PeerId> {
        self.failed.pop()
    }

    // ---------------------------------------------------------------- sending

    /// Puts a message for one stream. A stream that cannot take it is closed when the event is
    /// done.
    pub(crate) fn send(&mut self, id: PeerId, message: FromServer) {
        let result = self.get(id).map_or(Ok(()), |peer| peer.outbox.put(message));
        self.check(id, result);
    }

    /// Puts a message for an agent, if it is connected.
    pub(crate) fn send_to_agent(&mut self, name: &str, message: FromServer) {
        if let Some(peer) = self.of_agent(name) {
            self.send(peer, message);
        }
    }

    /// Closes the stream when its outbox did not take a message.
    pub(crate) fn check(&mut self, id: PeerId, result: Result<(), OutboxError>) {
        let Err(error) = result else { return };
        let Some(peer) = self.streams.get(&id).filter(|_| !self.failed.contains(&id)) else {
            return;
        };
        let _source = log_source(peer.source.clone());
        log::warn!("Closing the connection of '{}': {error}.", peer.name);
        self.failed.push(id);
    }

    /// Sends a response. The id on the stream of an agent names the workload, and the agent removes
    /// that part. A request without an id has no response: nobody could assign it.
    pub(crate) fn respond(&mut self, key: &RequestKey, content: ResponseContent) {
        if key.id.is_empty() {
            if let Some(peer) = self.get(key.peer) {
                let _source = log_source(peer.source.clone());
                log::warn!(
                    "Dropping a response for '{}': its request has an empty id.",
                    peer.name
                );
            }
            return;
        }
        self.send(
            key.peer,
            FromServer::Response(Response {
                id: key.id.clone(),
                content,
            }),
        );
    }

    /// Responds with an error.
    pub(crate) fn refuse(&mut self, key: &RequestKey, text: impl Display) {
        self.respond(key, ResponseContent::Error(text.to_string()));
    }

    /// Responds with an error before all earlier responses, or not at all when much waits for the
    /// stream: requests without end must not fill the outbox that others on that stream need as
    /// well.
    pub(crate) fn refuse_or_drop(&mut self, key: &RequestKey, text: impl Display) {
        let Some(peer) = self.get(key.peer).filter(|_| !key.id.is_empty()) else {
            return;
        };
        let response = Response {
            id: key.id.clone(),
            content: ResponseContent::Error(text.to_string()),
        };
        let result = peer.outbox.put_or_drop(FromServer::Response(response));
        self.check(key.peer, result);
    }

    /// Sends `states` to every stream that receives broadcasts, and to no agent its own.
    pub(crate) fn broadcast_states(&mut self, states: &[WorkloadState]) {
        self.broadcast(states, &[Service::Agent, Service::Cli]);
    }

    /// Sends `states` to command lines of an earlier version only.
    pub(crate) fn broadcast_to_clis(&mut self, states: &[WorkloadState]) {
        self.broadcast(states, &[Service::Cli]);
    }

    /// Sends `states` to the streams of these services. Each state is encoded once for all of them.
    fn broadcast(&mut self, states: &[WorkloadState], services: &[Service]) {
        let mut receivers = Vec::new();
        for (id, peer) in &self.streams {
            if services.contains(&peer.class) {
                receivers.push(*id);
            }
        }
        if receivers.is_empty() {
            return;
        }
        let each: Vec<Arc<Encoded>> = states.iter().map(Encoded::of_state).collect();
        let together = Encoded::together(&each);
        for id in receivers {
            let Some(peer) = self.streams.get(&id) else {
                continue;
            };
            let mut foreign = Vec::new();
            for state in &each {
                if !state.is_of_agent(&peer.name) {
                    foreign.push(state.clone());
                }
            }
            if foreign.is_empty() {
                continue;
            }
            // Several that all go to this stream are one entry of its outbox.
            let is_together = foreign.len() == each.len() && each.len() > 1;
            let together = is_together.then_some(&together);
            let result = peer.outbox.put_states(together, foreign.into_iter());
            self.check(id, result);
        }
    }
}
