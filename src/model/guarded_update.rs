//! Guarded updates as their readers see them: the phases, and the hash by which a definition is
//! recognised.
//!
//! Thread: none, plain values.

use super::names::{hash_id, named_enum};
use super::node::Node;

named_enum! {
    /// How far a guarded update is, or how it ended.
    #[derive(Default)]
    UpdatePhase {
        /// Agents prepare the new instances while the old ones run.
        Staging = "STAGING",
        /// The new instances run, and their health is evaluated.
        #[default]
        Trial = "TRIAL",
        /// All its instances were healthy.
        Good = "GOOD",
        /// It failed, or its health is no longer evaluated, and it stays.
        Kept = "KEPT",
        /// It failed and was rolled back.
        Undone = "UNDONE",
        /// It failed and cannot be rolled back.
        Stuck = "STUCK",
        /// A later update of the same workloads has replaced it.
        Replaced = "REPLACED",
        /// Later requests have reverted or deleted all its changes.
        Withdrawn = "WITHDRAWN",
    }
}

impl UpdatePhase {
    /// Returns whether the outcome is still unknown.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Staging | Self::Trial)
    }

    /// Returns whether later updates have replaced all its changes.
    pub fn is_superseded(self) -> bool {
        matches!(self, Self::Replaced | Self::Withdrawn)
    }
}

/// Begins the reason, behind the workload, of an update that was never applied.
pub const CANNOT_BE_STAGED: &str = "cannot be staged: ";
/// Begins the reason of a refusal: the same update was rolled back before.
pub const REMEMBERED: &str = "it is the same as update ";
/// Precedes the name of a disconnected agent that an update waits for; names of workloads have no
/// prefix.
pub const AGENT_PREFIX: &str = "agent ";

/// The SHA-256 of the definition of a workload or config: its tree without empty containers, as
/// JSON with sorted keys.
pub fn definition_hash(definition: &Node) -> String {
    // A tree has nothing that JSON could not hold.
    hash_id(&serde_json::to_string(definition).unwrap_or_default())
}
