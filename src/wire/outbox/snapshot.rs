//! All states of one moment, sent to many in messages of bounded size.
//!
//! Thread: `server` makes them, `tx` sends them.

use crate::limits::STATES_MESSAGE_BYTES;
use crate::model::execution_state::WorkloadState;
use crate::model::names::Name;
use crate::wire::shared_state::{SharedStates, shared};
use std::sync::Arc;

/// All states of one moment, shared by all who receive them.
#[derive(Debug)]
pub struct StatesSnapshot {
    states: SharedStates,
    /// Each agent with states, once.
    agents: Vec<Name>,
}

impl StatesSnapshot {
    /// A snapshot of `states`, which are sorted by agent.
    #[must_use]
    pub fn new(states: Vec<WorkloadState>) -> Arc<Self> {
        let mut agents: Vec<Name> = Vec::new();
        for state in &states {
            if agents.last() != Some(&state.instance.agent) {
                agents.push(state.instance.agent.clone());
            }
        }
        Arc::new(Self { states: shared(states), agents })
    }
}

/// A snapshot for one peer.
#[derive(Debug)]
pub(super) struct PeerSnapshot {
    pub(super) snapshot: Arc<StatesSnapshot>,
    pub(super) own: Name,
    /// Whose states are left out too.
    pub(super) newcomer: Option<Name>,
    /// The peer has received what is in it, so a newer one can replace it.
    pub(super) repeats: bool,
    /// How many of its states were sent.
    pub(super) sent: usize,
}

impl PeerSnapshot {
    /// Whether the peer would get none of the states.
    pub(super) fn is_empty(&self) -> bool {
        self.snapshot.agents.iter().all(|agent| self.leaves_out(agent))
    }

    /// Whether some states were not sent yet.
    pub(super) fn has_more(&self) -> bool {
        self.sent < self.snapshot.states.len()
    }

    fn leaves_out(&self, agent: &Name) -> bool {
        *agent == self.own || self.newcomer.as_ref() == Some(agent)
    }

    /// The next states, not too many for a message; `None` when all were sent.
    pub(super) fn next_states(&mut self) -> Option<SharedStates> {
        let rest = &self.snapshot.states[self.sent..];
        let mut own = Vec::new();
        let mut bytes = 0;
        for state in rest {
            if !self.leaves_out(&state.state().instance.agent) {
                bytes += state.bytes();
                if bytes > STATES_MESSAGE_BYTES && !own.is_empty() {
                    break;
                }
                own.push(state.clone());
            }
            self.sent += 1;
        }
        (!own.is_empty()).then_some(own)
    }
}
