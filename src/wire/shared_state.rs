//! A state that many peers are told of: all of them share it, and it is encoded once, when the first of them is sent it.
//!
//! Thread: `server` makes them, `tx` encodes and sends them.

use super::convert::from_server::encoded_state_entry;
use crate::model::execution_state::WorkloadState;
use crate::model::memory_size::MemorySize;
use std::sync::{Arc, OnceLock};

/// The state of an instance for all who are told of it.
#[derive(Debug)]
pub struct SharedState {
    state: WorkloadState,
    /// Its entry in the message.
    entry: OnceLock<Box<[u8]>>,
}

/// States for one peer.
pub type SharedStates = Vec<Arc<SharedState>>;

impl SharedState {
    /// Not encoded yet.
    #[must_use]
    pub fn new(state: WorkloadState) -> Arc<Self> {
        Arc::new(Self { state, entry: OnceLock::new() })
    }

    /// What it tells.
    #[must_use]
    pub fn state(&self) -> &WorkloadState {
        &self.state
    }

    /// What it takes with its entry, about, as if its receiver had it alone: the others may have been sent it already.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + 2 * self.state.memory_bytes()
    }

    /// The same of the newest state of an instance, which shares its text with the state of the cluster.
    #[must_use]
    pub fn newest_bytes(&self) -> usize {
        self.bytes() - self.state.state.additional_info.len()
    }

    /// Its entry in a message of states.
    pub(super) fn entry(&self) -> &[u8] {
        self.entry.get_or_init(|| encoded_state_entry(&self.state).into())
    }
}

/// Each of them, not encoded yet.
#[must_use]
pub fn shared(states: Vec<WorkloadState>) -> SharedStates {
    states.into_iter().map(SharedState::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::execution_state::{ExecutionState, Phase};
    use crate::model::messages::FromServer;
    use crate::model::names::InstanceName;
    use crate::wire::convert::from_server::{states_of_encoded, write};
    use protobuf::Message;

    #[test]
    fn encoded_entries_are_the_message_that_they_would_be_together() {
        let info = ["", "text", &"ä".repeat(200)];
        let all: Vec<WorkloadState> = info
            .iter()
            .enumerate()
            .map(|(number, info)| {
                let instance = InstanceName::new(&format!("w{number}"), "config", "A");
                WorkloadState::new(instance, ExecutionState::with_info(Phase::FailedExecFailed, *info))
            })
            .collect();
        let entries = shared(all.clone()).iter().flat_map(|state| state.entry().to_vec()).collect();
        let plain = write(FromServer::WorkloadStates(all)).write_to_bytes().unwrap();
        assert_eq!(states_of_encoded(entries).write_to_bytes().unwrap(), plain);
    }

    #[test]
    fn a_state_is_encoded_once_for_all() {
        let instance = InstanceName::new("w", "config", "A");
        let one = SharedState::new(WorkloadState::new(instance, ExecutionState::plain(Phase::Running)));
        let other = one.clone();
        assert!(std::ptr::eq(one.entry(), other.entry()));
    }
}
