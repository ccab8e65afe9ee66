//! What the parts of the server want to happen outside of them.
//!
//! A part changes its own fields only. A call that affects peers, subscribers or the disk adds
//! effects to a list, and [`super::ServerLoop::apply`] carries them out in their order. A call
//! without such a list is a question or changes nothing but the part.
//!
//! Thread: `server`; plain values.

use super::events::Changes;
use ankaios_model::execution_state::WorkloadState;
use ankaios_model::messages::FromServer;
use ankaios_model::names::Name;

/// One thing to do outside of the part that returns it.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Send a message to an agent, if it is connected.
    SendToAgent { agent: Name, message: FromServer },
    /// Send states to command lines of an earlier version only.
    BroadcastToClis(Vec<WorkloadState>),
    /// Notify subscribers of these changes and of all states that have changed.
    Publish(Changes),
}

/// Effects in the order in which they are carried out.
#[derive(Debug, Default)]
pub(crate) struct Effects(Vec<Effect>);

impl Effects {
    /// Adds [`Effect::SendToAgent`].
    pub(crate) fn send_to_agent(&mut self, agent: &Name, message: FromServer) {
        self.0.push(Effect::SendToAgent {
            agent: agent.clone(),
            message,
        });
    }

    /// Adds [`Effect::BroadcastToClis`].
    pub(crate) fn broadcast_to_clis(&mut self, states: Vec<WorkloadState>) {
        self.0.push(Effect::BroadcastToClis(states));
    }

    /// Adds [`Effect::Publish`].
    pub(crate) fn publish(&mut self, changes: Changes) {
        self.0.push(Effect::Publish(changes));
    }
}

impl IntoIterator for Effects {
    type Item = Effect;
    type IntoIter = std::vec::IntoIter<Effect>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
