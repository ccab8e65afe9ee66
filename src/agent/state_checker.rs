//! Knows what the containers of one engine are doing and reports what changed.
//!
//! Thread: `watch:<engine>`, one per engine.
//! Owns: which containers are watched and the state last reported of each.
//! Takes: [`WatchCommand`] from the control loops (create, start, delete) and from the scheduler (existing containers).
//! Gives: [`WatchReport`] to the scheduler's inbox and the answers to `ListAll`; may block on both.

use crate::model::execution_state::ExecutionState;
use crate::model::names::InstanceName;
use crate::runtime::{ContainerId, ListedContainer, RuntimeError};

/// Receives the containers of this agent; runs on the thread of the state checker and may block.
pub type ListReply = Box<dyn FnOnce(Result<Vec<ListedContainer>, RuntimeError>) + Send>;

/// What control loops and the scheduler ask a state checker to do.
pub enum WatchCommand {
    /// Report the state of this container from now on; a listing follows at once.
    Watch {
        /// Whose container.
        instance: InstanceName,
        /// Which container.
        id: ContainerId,
        /// Number of this start of the instance; a higher one replaces an older watch of the same instance.
        generation: u64,
    },
    /// Report nothing more of this start of the instance. An unknown one is no error.
    Unwatch {
        /// Whose container.
        instance: InstanceName,
        /// Number given to `Watch`.
        generation: u64,
    },
    /// List all containers of this agent.
    ListAll {
        /// Gets the answer.
        reply: ListReply,
    },
}

/// The state of a watched container; sent only when it differs from the one last sent for this start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchReport {
    /// Whose state.
    pub instance: InstanceName,
    /// Number given to `Watch`.
    pub generation: u64,
    /// The state.
    pub state: ExecutionState,
}
