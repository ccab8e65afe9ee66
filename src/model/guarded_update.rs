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

named_enum! {
    /// Why an update was rolled back, as far as programs decide by it.
    #[derive(Default)]
    UpdateCause {
        /// An instance has failed, or was not healthy in time.
        #[default]
        Unhealthy = "UNHEALTHY",
        /// An instance could not be staged, so nothing was stopped.
        CannotBeStaged = "CANNOT_BE_STAGED",
        /// An instance was late because dependents kept the earlier one from stopping.
        AwaitsDependents = "AWAITS_DEPENDENTS",
    }
}

impl UpdateCause {
    /// Derives the cause from the words of a reason, for updates of a server that sends no cause.
    /// No other code decides by these words.
    pub fn from_reason(reason: &str) -> Self {
        let Some((_, why)) = reason.split_once(": ") else {
            return Self::Unhealthy;
        };
        if why.starts_with(CANNOT_BE_STAGED) {
            return Self::CannotBeStaged;
        }
        let Some((deadline, details)) = why.split_once(": ") else {
            return Self::Unhealthy;
        };
        let awaits_stop = details.starts_with("waits for '") && details.ends_with("' to stop");
        if deadline.starts_with(LATE) && awaits_stop {
            return Self::AwaitsDependents;
        }
        Self::Unhealthy
    }
}

// Words that the reasons of updates contain. Clients without causes decide by them, so they stay as
// they are; ours read them in `UpdateCause::from_reason` only.

/// Begins the reason, behind the workload, of an instance that missed its deadline.
pub const LATE: &str = "not healthy within";
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

#[cfg(test)]
mod tests {
    use super::*;

    // [utest->swdd~server-says-why-updates-failed~1]
    #[test]
    fn reason_of_an_older_server_has_the_cause_that_it_meant() {
        for (reason, cause) in [
            (
                "web: cannot be staged: no such image",
                UpdateCause::CannotBeStaged,
            ),
            (
                "db: not healthy within 5 s: waits for 'web', 'api' to stop",
                UpdateCause::AwaitsDependents,
            ),
            (
                "db: not healthy within 5 s: Pending(WaitingToStart): 'x'",
                UpdateCause::Unhealthy,
            ),
            (
                "db: Failed(ExecFailed): 'cannot be staged: waits for 'web' to stop",
                UpdateCause::Unhealthy,
            ),
            ("", UpdateCause::Unhealthy),
        ] {
            assert_eq!(UpdateCause::from_reason(reason), cause, "{reason}");
        }
    }

    #[test]
    fn phases_of_an_update_are_open_ended_or_superseded() {
        use UpdatePhase::{Good, Kept, Replaced, Staging, Stuck, Trial, Undone, Withdrawn};
        for (phase, is_open, is_superseded) in [
            (Staging, true, false),
            (Trial, true, false),
            (Good, false, false),
            (Kept, false, false),
            (Undone, false, false),
            (Stuck, false, false),
            (Replaced, false, true),
            (Withdrawn, false, true),
        ] {
            assert_eq!(phase.is_open(), is_open, "{phase}");
            assert_eq!(phase.is_superseded(), is_superseded, "{phase}");
        }
    }
}
