//! The connected agents and which stream each of them uses; what those that are gone have left behind.
//!
//! Thread: `server`; a plain value owned by [`super::ServerLoop`].

use crate::limits::{GONE_STRAYS_BYTES, STRAY_STATE_ENTRY, STRAY_STATES_BYTES};
use crate::model::complete_state::AgentAttributes;
use crate::model::names::{InstanceName, Name};
use crate::wire::server_endpoint::PeerId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A connected agent.
#[derive(Debug)]
pub struct Agent {
    /// Its stream. Removal is tied to this and not to the name, so that an old stream that dies late takes
    /// nothing from its successor.
    pub peer: PeerId,
    /// What it told about itself.
    pub attributes: AgentAttributes,
    /// Instances with a state that were not wanted any more when it came, and of which it has not spoken since. They
    /// are gone if it has told all states and these were not among them.
    pub unconfirmed: BTreeSet<InstanceName>,
    /// Instances with a state that nobody wanted when it came, or when it reported them first.
    pub strays: Strays,
    /// Wanted instances that it lets wait for what an earlier server or connection has said, and whose update it was told
    /// again. `None` once it has told all states: what it lets wait after that was said on this connection.
    retold: Option<BTreeSet<InstanceName>>,
}

impl Agent {
    /// An agent with the stream `peer`; `strays` are its instances with a state that are not wanted.
    #[must_use]
    pub fn new(peer: PeerId, attributes: AgentAttributes, strays: BTreeSet<InstanceName>) -> Self {
        let bytes = strays.iter().map(stray_bytes).sum();
        let unconfirmed = strays.clone();
        let strays = Strays { instances: strays, bytes };
        Self { peer, attributes, unconfirmed, strays, retold: Some(BTreeSet::new()) }
    }

    /// Whether it has to be told again what to do with a wanted instance, which it lets wait although nobody knows for
    /// what; it is told once.
    pub fn retell(&mut self, instance: &InstanceName) -> bool {
        self.retold.as_mut().is_some_and(|retold| retold.insert(instance.clone()))
    }

    /// It has told all states that it has.
    pub fn told_all(&mut self) {
        self.retold = None;
    }
}

/// Instances that an agent has although it should not. There are some after each start with another manifest, but an
/// agent must not fill the memory of the server with them.
#[derive(Debug, Default)]
pub struct Strays {
    instances: BTreeSet<InstanceName>,
    bytes: usize,
}

fn stray_bytes(instance: &InstanceName) -> usize {
    instance.workload.len() + instance.id.len() + instance.agent.len() + STRAY_STATE_ENTRY
}

impl Strays {
    /// Adds an instance; answers `false` when there are too many.
    pub fn add(&mut self, instance: &InstanceName) -> bool {
        let bytes = self.bytes + stray_bytes(instance);
        if self.instances.contains(instance) {
            return true;
        }
        if bytes > STRAY_STATES_BYTES {
            return false;
        }
        self.bytes = bytes;
        self.instances.insert(instance.clone());
        true
    }

    /// The instance is gone.
    pub fn remove(&mut self, instance: &InstanceName) {
        if self.instances.remove(instance) {
            self.bytes -= stray_bytes(instance);
        }
    }
}

/// All connected agents by name.
#[derive(Debug, Default)]
pub struct Agents {
    by_name: BTreeMap<Name, Agent>,
    /// Agents that went and left states of instances that nobody wanted, who is gone longest first.
    gone: VecDeque<(Name, Strays)>,
    gone_bytes: usize,
}

impl Agents {
    /// Registers `agent`. Answers the stream it replaces.
    pub fn connect(&mut self, name: Name, agent: Agent) -> Option<PeerId> {
        if let Some(index) = self.gone.iter().position(|(gone, _)| *gone == name) {
            self.take_gone(index);
        }
        self.by_name.insert(name, agent).map(|old| old.peer)
    }

    /// Removes the agent `name` if `peer` is its stream. Answers its last attributes.
    pub fn disconnect(&mut self, name: &str, peer: PeerId) -> Option<AgentAttributes> {
        if self.by_name.get(name)?.peer != peer {
            return None;
        }
        let (name, agent) = self.by_name.remove_entry(name)?;
        if agent.strays.bytes > 0 {
            self.gone_bytes += agent.strays.bytes;
            self.gone.push_back((name, agent.strays));
        }
        Some(agent.attributes)
    }

    /// Instances that nobody wanted of an agent that is not connected, if there are too many of such.
    pub fn take_surplus(&mut self) -> Option<(Name, BTreeSet<InstanceName>)> {
        let (name, strays) = if self.gone_bytes > GONE_STRAYS_BYTES { self.take_gone(0)? } else { return None };
        Some((name, strays.instances))
    }

    fn take_gone(&mut self, index: usize) -> Option<(Name, Strays)> {
        let (name, strays) = self.gone.remove(index)?;
        self.gone_bytes -= strays.bytes;
        Some((name, strays))
    }

    /// The agent `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Agent> {
        self.by_name.get(name)
    }

    /// The agent `name`.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Agent> {
        self.by_name.get_mut(name)
    }

    /// All agents, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &Agent)> {
        self.by_name.iter()
    }

    /// All agents, sorted by name.
    #[must_use]
    pub fn by_name(&self) -> &BTreeMap<Name, Agent> {
        &self.by_name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_stream_takes_nothing_from_its_successor() {
        let agent = |number| Agent::new(PeerId(number), AgentAttributes::default(), BTreeSet::new());
        let mut agents = Agents::default();
        assert_eq!(agents.connect("A".into(), agent(1)), None);
        assert_eq!(agents.connect("A".into(), agent(2)), Some(PeerId(1)));
        assert_eq!(agents.disconnect("A", PeerId(1)), None);
        assert_eq!(agents.get("A").map(|agent| agent.peer), Some(PeerId(2)));
        assert!(agents.disconnect("A", PeerId(2)).is_some());
        assert!(agents.get("A").is_none());
    }
}
