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
        /// It is carried out and judged.
        #[default]
        Trial = "TRIAL",
        /// All judged instances were healthy.
        Good = "GOOD",
        /// It failed, or is not waited for any more, and stays.
        Kept = "KEPT",
        /// It failed, and what was before is desired again.
        Undone = "UNDONE",
        /// It failed, and what was before cannot be desired any more.
        Stuck = "STUCK",
        /// A later update of the same workloads has taken it over.
        Replaced = "REPLACED",
        /// All that it changed was put back or deleted by requests.
        Withdrawn = "WITHDRAWN",
    }
}

impl UpdatePhase {
    /// Whether nothing is decided yet.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Staging | Self::Trial)
    }

    /// Whether others have taken over all that it was about.
    pub fn is_superseded(self) -> bool {
        matches!(self, Self::Replaced | Self::Withdrawn)
    }
}

/// Begins the reason, behind the workload, of an update that was never carried out.
pub const CANNOT_BE_STAGED: &str = "cannot be staged: ";
/// Begins the reason of a refusal: the same update was undone before.
pub const REMEMBERED: &str = "it is the same as update ";
/// Before the name of an agent that an update waits for because it is away; names of workloads
/// stand alone.
pub const AGENT_PREFIX: &str = "agent ";

/// The SHA-256 of the definition of a workload or config: its tree without empty containers, as
/// JSON with sorted keys.
pub fn definition_hash(definition: &Node) -> String {
    // A tree has nothing that JSON could not hold.
    hash_id(&serde_json::to_string(definition).unwrap_or_default())
}
