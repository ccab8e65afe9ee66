//! The connected agents and which stream each of them uses.
//!
//! Thread: `server`; a plain value owned by [`super::ServerLoop`].

use crate::model::complete_state::AgentAttributes;
use crate::model::names::{InstanceName, Name};
use crate::wire::peer::PeerId;
use std::collections::{BTreeMap, BTreeSet};

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
    /// Wanted instances that it lets wait for what an earlier server or connection has said, and whose update it was told
    /// again. `None` once it has told all states: what it lets wait after that was said on this connection.
    retold: Option<BTreeSet<InstanceName>>,
}

impl Agent {
    /// An agent with the stream `peer`; `unconfirmed` are its instances with a state that are not wanted.
    #[must_use]
    pub fn new(peer: PeerId, attributes: AgentAttributes, unconfirmed: BTreeSet<InstanceName>) -> Self {
        Self { peer, attributes, unconfirmed, retold: Some(BTreeSet::new()) }
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

/// All connected agents by name.
#[derive(Debug, Default)]
pub struct Agents {
    by_name: BTreeMap<Name, Agent>,
}

impl Agents {
    /// Registers `agent`. Answers the stream it replaces.
    pub fn connect(&mut self, name: Name, agent: Agent) -> Option<PeerId> {
        self.by_name.insert(name, agent).map(|old| old.peer)
    }

    /// Removes the agent `name` if `peer` is its stream. Answers its last attributes.
    pub fn disconnect(&mut self, name: &str, peer: PeerId) -> Option<AgentAttributes> {
        if self.by_name.get(name)?.peer != peer {
            return None;
        }
        self.by_name.remove(name).map(|agent| agent.attributes)
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
