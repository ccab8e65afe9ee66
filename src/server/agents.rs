//! The connected agents and which stream each of them uses.
//!
//! Thread: `server`; a plain value owned by [`super::ServerLoop`].

use crate::model::complete_state::AgentAttributes;
use crate::model::names::Name;
use crate::wire::server_endpoint::PeerId;
use std::collections::BTreeMap;

/// A connected agent.
#[derive(Debug)]
pub struct Agent {
    /// Its stream. Removal is tied to this and not to the name, so that an old stream that dies late takes
    /// nothing from its successor.
    pub peer: PeerId,
    /// What it told about itself.
    pub attributes: AgentAttributes,
}

/// All connected agents by name.
#[derive(Debug, Default)]
pub struct Agents {
    by_name: BTreeMap<Name, Agent>,
}

impl Agents {
    /// Registers the agent `name` on the stream `peer`, with fresh attributes. Answers the stream it replaces.
    pub fn connect(&mut self, name: Name, peer: PeerId, attributes: AgentAttributes) -> Option<PeerId> {
        self.by_name.insert(name, Agent { peer, attributes }).map(|old| old.peer)
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
        let mut agents = Agents::default();
        assert_eq!(agents.connect("A".into(), PeerId(1), AgentAttributes::default()), None);
        assert_eq!(agents.connect("A".into(), PeerId(2), AgentAttributes::default()), Some(PeerId(1)));
        assert_eq!(agents.disconnect("A", PeerId(1)), None);
        assert_eq!(agents.get("A").map(|agent| agent.peer), Some(PeerId(2)));
        assert!(agents.disconnect("A", PeerId(2)).is_some());
        assert!(agents.get("A").is_none());
    }
}
