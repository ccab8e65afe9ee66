//! Sessions: all open streams with their outboxes, the connected agents, and the rights of
//! workloads to send requests through these.
//!
//! Only this part has outboxes ([`sending`]). A stream that does not take a message is noted as
//! failed, and the loop closes it when the event is done.
//!
//! Thread: `server`; a plain value owned by [`crate::ServerLoop`]. Sees no other part: values of
//! other parts are passed in.

mod requester;
mod rights;
mod sending;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use requester::{RequestKey, Requester, TokenBuckets};
pub(crate) use rights::{Denied, Rights};

use crate::subscriptions::{AgentAvailability, ChangedPaths};
use crate::updates::{Tags, Workloads};
use ankaios_model::complete_state::AgentAttributes;
use ankaios_model::execution_state::WorkloadState;
use ankaios_model::messages::{AddedWorkload, AgentCapabilities, AgentHello, AgentLoad};
use ankaios_model::names::{InstanceName, Name, excerpt};
use ankaios_wire::outbox::Outbox;
use ankaios_wire::peer::{PeerId, Service};
use std::collections::BTreeMap;
use std::time::SystemTime;

/// The program at the other end of a stream.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// Which service it uses.
    pub(crate) service: Service,
    /// The agent's name, or a name that no agent can have and no other stream has.
    pub(crate) name: Name,
    /// The source that its log lines are counted for: the agent's name, or the holder of a
    /// commander's connection.
    pub(crate) source: Name,
}

impl Peer {
    pub(crate) fn is_agent(&self) -> bool {
        self.service == Service::Agent
    }
}

/// One stream.
#[derive(Debug)]
struct PeerSession {
    peer: Peer,
    /// Messages that wait to be sent.
    outbox: Outbox,
}

/// A connected agent.
#[derive(Debug)]
pub struct ConnectedAgent {
    /// Its stream. An agent is removed by its stream and not by its name, so that the late end of
    /// an old stream does not remove its successor.
    peer: PeerId,
    /// Its tags and load.
    pub(crate) attributes: AgentAttributes,
    /// Version of its program, as its hello names it.
    pub(crate) version: String,
    /// Names and versions of its container engines, as its last load names them; may be empty.
    pub(crate) engine: String,
    /// When it connected, on the clock of this node.
    pub(crate) connected_at: SystemTime,
    /// When its certificate expires, in seconds since 1970; `None` without TLS.
    pub(crate) certificate_expires: Option<u64>,
    /// Abilities of its program that not every agent has.
    pub(crate) capabilities: AgentCapabilities,
}

/// The consequence of a new connection of an agent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It is refused, since too many bytes wait for other peers.
    NoCapacity,
    /// It is ignored, since a newer one was announced before it.
    Outdated,
    /// It replaces this older one.
    Replaces(PeerId),
    /// It is the only one.
    First,
}

/// All streams, all connected agents, and the rights of workloads.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    /// By the number of the stream.
    sessions: BTreeMap<PeerId, PeerSession>,
    /// By name.
    agents: BTreeMap<Name, ConnectedAgent>,
    rights: Rights,
    /// Streams that did not take a message.
    failed: Vec<PeerId>,
}

// ------------------------------------------------------------- connections

impl Sessions {
    /// Adds the stream of a client.
    pub(crate) fn open_client(&mut self, id: PeerId, peer: Peer, outbox: Outbox) {
        self.sessions.insert(id, PeerSession { peer, outbox });
    }

    /// Returns the consequence of a new connection of an agent.
    pub(crate) fn arrival(&self, id: PeerId, agent: &str, outbox: &Outbox) -> Arrival {
        if !outbox.has_room_for_agent() {
            return Arrival::NoCapacity;
        }
        match self.of_agent(agent) {
            // The threads of two streams may announce them in another order than they were opened.
            Some(other) if other > id => Arrival::Outdated,
            Some(other) => Arrival::Replaces(other),
            None => Arrival::First,
        }
    }

    /// Adds the stream of an agent, and sends it these states of other agents. Returns the
    /// changes for subscribers.
    pub(crate) fn open_agent(
        &mut self,
        id: PeerId,
        hello: AgentHello,
        certificate_expires: Option<u64>,
        states: &[WorkloadState],
        outbox: Outbox,
    ) -> ChangedPaths {
        let name = Name::from(hello.agent);
        let result = outbox.put_first_states(states);
        let peer = Peer {
            service: Service::Agent,
            name: name.clone(),
            source: name.clone(),
        };
        self.sessions.insert(id, PeerSession { peer, outbox });
        self.note_result(id, result);
        let attributes = AgentAttributes {
            load: None,
            tags: hello.tags,
        };
        let mut changes = ChangedPaths::default();
        let before = self.agents.get(&name).map(|agent| &agent.attributes);
        changes.agent(&name, before, Some(&attributes));
        let agent = ConnectedAgent {
            peer: id,
            attributes,
            version: hello.version,
            engine: String::new(),
            connected_at: SystemTime::now(),
            certificate_expires,
            capabilities: hello.capabilities,
        };
        self.agents.insert(name, agent);
        changes
    }

    /// Removes a stream, which ends it with status OK. Returns the peer; `None` when the stream was
    /// replaced by a newer one, or closed before.
    pub(crate) fn close(&mut self, id: PeerId) -> Option<Peer> {
        let session = self.sessions.remove(&id)?;
        Some(session.peer)
    }

    /// Removes an agent whose stream was closed. Returns the changes for subscribers.
    pub(crate) fn remove_agent(&mut self, name: &Name) -> ChangedPaths {
        let agent = self.agents.remove(name);
        let mut changes = ChangedPaths::default();
        changes.agent(name, agent.as_ref().map(|agent| &agent.attributes), None);
        changes
    }

    /// Takes a stream that did not take a message, once for each.
    pub(crate) fn take_failed(&mut self) -> Option<PeerId> {
        self.failed.pop()
    }
}

// ------------------------------------------------------------------ agents

impl Sessions {
    /// Takes the load that an agent reports of itself. Returns the changes for subscribers.
    pub(crate) fn load_reported(&mut self, name: &Name, load: &AgentLoad) -> ChangedPaths {
        let mut changes = ChangedPaths::default();
        let agent = match self.agents.get_mut(name) {
            Some(agent) if *load.agent == **name => agent,
            _ => {
                let agent = excerpt(&load.agent);
                log::warn!("Ignoring the load of '{agent}' reported by '{name}'.");
                return changes;
            }
        };
        let before = agent.attributes.clone();
        agent.attributes.load = Some((load.cpu_usage, load.free_memory));
        if agent.engine != load.engine {
            agent.engine = excerpt(&load.engine).into_owned();
        }
        changes.agent(name, Some(&before), Some(&agent.attributes));
        changes
    }

    /// Sets the tags of agents; only those of connected agents can be changed. Returns the
    /// changes.
    pub(crate) fn set_agent_tags(&mut self, agent_tags: BTreeMap<Name, Tags>) -> ChangedPaths {
        let mut changes = ChangedPaths::default();
        for (name, tags) in agent_tags {
            if let Some(agent) = self.agents.get_mut(&name) {
                let before = agent.attributes.clone();
                agent.attributes.tags = tags;
                changes.agent(&name, Some(&before), Some(&agent.attributes));
            }
        }
        changes
    }
}

// ------------------------------------------------------------------ rights

impl Sessions {
    /// The rights of workloads, for reading.
    pub(crate) fn rights(&self) -> &Rights {
        &self.rights
    }

    /// Follows a change of the effective workloads: forgets the rules of deleted ones that do not
    /// apply any more, and takes the rules of added ones.
    pub(crate) fn replaced(
        &mut self,
        added: &[AddedWorkload],
        deleted: &[InstanceName],
        workloads: &Workloads,
    ) {
        for instance in deleted {
            self.end_rights(instance, workloads);
        }
        for added in added {
            self.rights.begin(added);
        }
    }

    /// Forgets the rules of a workload after one of its instances has ended. The rules still apply
    /// while the workload is effective on that agent, or has another instance with a state there.
    pub(crate) fn end_rights(&mut self, ended: &InstanceName, workloads: &Workloads) {
        let InstanceName {
            workload, agent, ..
        } = ended;
        if !workloads.is_on_agent(workload, agent) {
            self.rights.end(agent, workload);
        }
    }
}

// --------------------------------------------------------------- questions

impl Sessions {
    /// The program at the other end of a stream.
    pub(crate) fn peer(&self, id: PeerId) -> Option<&Peer> {
        self.sessions.get(&id).map(|session| &session.peer)
    }

    /// The stream of a connected agent.
    pub(crate) fn of_agent(&self, name: &str) -> Option<PeerId> {
        self.agents.get(name).map(|agent| agent.peer)
    }

    /// Connected agents by name.
    pub(crate) fn agents(&self) -> &BTreeMap<Name, ConnectedAgent> {
        &self.agents
    }

    /// The requester of a request.
    pub(crate) fn requester(&self, key: &RequestKey) -> Requester {
        let Some(peer) = self.peer(key.peer) else {
            // The stream has ended, and with it its source is forgotten.
            return Requester {
                is_agent: false,
                source: Name::default(),
                peer: Some(key.peer),
                workload: None,
            };
        };
        let source = peer.source.clone();
        if peer.is_agent() {
            Requester {
                workload: key.workload().map(Name::from),
                ..Requester::of_agent(&source)
            }
        } else {
            Requester {
                is_agent: false,
                source,
                peer: Some(key.peer),
                workload: None,
            }
        }
    }

    /// The request that an agent knows under this id; `None` when its stream has ended.
    pub(crate) fn request_of(&self, full_id: &str) -> Option<RequestKey> {
        let key = RequestKey::from_full_id(full_id)?;
        self.peer(key.peer)?;
        Some(key)
    }

    /// Returns whether an agent can be sent a request for logs.
    pub(crate) fn log_availability(&self, agent: &Name) -> AgentAvailability {
        let stream = self.of_agent(agent);
        let Some(session) = stream.and_then(|peer| self.sessions.get(&peer)) else {
            return AgentAvailability::NotConnected;
        };
        if session.outbox.is_half_empty() {
            AgentAvailability::Ready
        } else {
            AgentAvailability::Busy
        }
    }
}

/// For tests of other files and crates.
#[cfg(debug_assertions)]
impl Sessions {
    /// Number of streams.
    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Number of workloads whose rights outlast them.
    pub(crate) fn outlasting_rights(&self, workloads: &Workloads) -> usize {
        let mut count = 0;
        for (agent, workload) in self.rights.holders() {
            let effective = workloads.effective.get(workload);
            if effective.is_none_or(|added| added.instance.agent != *agent) {
                count += 1;
            }
        }
        count
    }
}
