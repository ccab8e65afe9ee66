//! Why an instance is in its state, as far as others decide by it. The text beside it is for
//! people, and for programs that do not know reasons.
//!
//! Thread: none, plain values.

use super::execution_state::{ExecutionState, PARTS_SEPARATOR, Phase};
use super::guarded_update::CANNOT_BE_STAGED;
use super::modes::NOT_IN_MODE;
use super::names::named_enum;
use super::prepare_level::PrepareLevel;
use super::workload::AddCondition;
use std::sync::Arc;

named_enum! {
    /// The reason of a state. Its number on the wire is its place in this list, so a new one comes
    /// last.
    #[derive(Default)]
    Reason {
        /// The state alone decides.
        #[default]
        None = "NONE",
        /// Waits for another workload.
        Dependency = "DEPENDENCY",
        /// Waits for another workload that is blocked itself.
        BlockedDependency = "BLOCKED_DEPENDENCY",
        /// Its `activation` condition is not known yet.
        Activation = "ACTIVATION",
        /// Its `activation` condition does not hold: it is not relevant on its node.
        Inactive = "INACTIVE",
        /// Its `precondition` does not hold.
        Precondition = "PRECONDITION",
        /// An engine that may have a container of it has not listed its containers.
        EngineUnlisted = "ENGINE_UNLISTED",
        /// The last try to prepare its start failed.
        PreparationFailed = "PREPARATION_FAILED",
        /// Is blocked for a reason that only its text has.
        Blocked = "BLOCKED",
        /// The text is about its `ready` condition.
        Ready = "READY",
        /// The text is about its `alive` condition.
        Alive = "ALIVE",
        /// Its `gone` condition does not hold yet, so its end is still awaited.
        Gone = "GONE",
        /// Has used up its restarts.
        NoMoreRestarts = "NO_MORE_RESTARTS",
        /// Is outside of the current mode.
        NotInMode = "NOT_IN_MODE",
        /// Cannot be staged, so its update ends.
        CannotBeStaged = "CANNOT_BE_STAGED",
        /// The kernel has killed it for want of memory.
        OutOfMemory = "OUT_OF_MEMORY",
        /// A client has stopped it, until one starts it again.
        Stopped = "STOPPED",
        /// Waits only for failures of other workloads, which usually do not come.
        AwaitsFailure = "AWAITS_FAILURE",
    }
}

impl Reason {
    /// The number on the wire.
    pub fn number(self) -> u64 {
        self as u64
    }

    /// Finds the reason with this number; `None` for one of a newer program.
    pub fn from_number(number: u64) -> Option<Self> {
        let index = usize::try_from(number).ok()?;
        Self::ALL.get(index).copied()
    }

    /// Returns whether a waiting workload cannot start until its own conditions change.
    pub fn is_block(self) -> bool {
        matches!(
            self,
            Self::BlockedDependency
                | Self::Activation
                | Self::Inactive
                | Self::Precondition
                | Self::EngineUnlisted
                | Self::Blocked
        )
    }

    /// Returns whether the text is the result of a condition in the workload's `lifecycle:` block,
    /// or of the preparation of its start.
    pub fn is_of_lifecycle(self) -> bool {
        matches!(
            self,
            Self::Inactive
                | Self::Precondition
                | Self::PreparationFailed
                | Self::Ready
                | Self::Alive
                | Self::Gone
        )
    }
}

// Words that the texts of states contain. Programs without reasons decide by them, so they stay as
// they are; ours read them in `ExecutionState::from_text` only.

/// Begins the text of a stopping state whose `gone` condition does not hold yet.
pub const GONE_PREFIX: &str = "gone: ";
/// Begins the text of a workload that is not relevant on its node.
pub const INACTIVE_PREFIX: &str = "inactive: ";
/// Begins the text of a workload whose relevance is not known yet.
pub const ACTIVATION_PREFIX: &str = "activation: ";
/// Begins the text of a workload whose precondition does not hold.
pub const PRECONDITION_PREFIX: &str = "precondition: ";
/// Begins the text of a workload that its agent does not restart any more.
pub const NO_MORE_RESTARTS: &str = "No more restarts: ";
/// Begins the text of a workload whose engine may have a container of it.
pub const UNLISTED_PREFIX: &str = "Waiting for '";
/// Begins the text of a container that is probed for its readiness, or has become ready.
pub const READY_PREFIX: &str = "ready: ";
/// Begins the text of a container whose liveness probe fails.
pub const ALIVE_PREFIX: &str = "alive: ";
/// Begins the part that says how far the start of a waiting workload is prepared.
pub const PREPARED_PREFIX: &str = "prepared: ";
/// Begins the part that says why that start could not be prepared.
pub const PREPARE_PREFIX: &str = "prepare: ";
/// Begins the part that names a workload which is awaited.
const WAITS_PREFIX: &str = "waits for '";
/// Begins the text of a workload that was killed for want of memory.
pub(crate) const OUT_OF_MEMORY: &str = "Exit code: '137', out of memory";
/// The text of a workload that a client has stopped, until one starts it again.
pub const STOPPED: &str = "stopped on request";
/// Follows the name of an awaited workload that is blocked itself.
const MAY_NOT_RUN: &str = "', which may not run";

/// The part of a text that names an awaited workload.
pub fn waits_for(name: &str, condition: AddCondition) -> String {
    format!("{WAITS_PREFIX}{name}' {}", condition.awaited())
}

/// The part of a text that names an awaited workload which is blocked itself.
pub fn waits_for_blocked(name: &str) -> String {
    format!("{WAITS_PREFIX}{name}{MAY_NOT_RUN}")
}

impl ExecutionState {
    /// Derives the reason of a state from the words of its text, for programs that send no reason,
    /// or one that is unknown here. No other code decides by these words.
    pub fn from_text(phase: Phase, info: impl Into<Arc<str>>) -> Self {
        let info = info.into();
        let mut prepared = PrepareLevel::None;
        let reason = match phase {
            Phase::PendingWaitingToStart => {
                prepared = prepared_in(&info);
                waiting_reason(&info)
            }
            Phase::PendingStarting | Phase::Running if info.starts_with(READY_PREFIX) => {
                Reason::Ready
            }
            Phase::Running | Phase::FailedExecFailed if info.starts_with(ALIVE_PREFIX) => {
                Reason::Alive
            }
            Phase::FailedExecFailed if info.starts_with(NO_MORE_RESTARTS) => Reason::NoMoreRestarts,
            Phase::FailedExecFailed if info.starts_with(OUT_OF_MEMORY) => Reason::OutOfMemory,
            Phase::PendingStartingFailed if info.starts_with(CANNOT_BE_STAGED) => {
                Reason::CannotBeStaged
            }
            Phase::NotScheduled if info.starts_with(NOT_IN_MODE) => Reason::NotInMode,
            Phase::NotScheduled if *info == *STOPPED => Reason::Stopped,
            _ if phase.is_stopping() && info.starts_with(GONE_PREFIX) => Reason::Gone,
            _ => Reason::None,
        };
        Self {
            phase,
            reason,
            prepared,
            additional_info: info,
        }
    }

    /// The reason to send. It is left out if there is none, unless the receiver would derive one
    /// from the text.
    pub fn sent_reason(&self) -> Option<Reason> {
        if self.reason == Reason::None && self.by_text().reason == Reason::None {
            return None;
        }
        Some(self.reason)
    }

    /// The level of preparation to send. It is left out if there is none, unless the receiver would
    /// derive one from the text.
    pub fn sent_level(&self) -> Option<PrepareLevel> {
        if self.prepared == PrepareLevel::None && self.by_text().prepared == PrepareLevel::None {
            return None;
        }
        Some(self.prepared)
    }

    fn by_text(&self) -> Self {
        Self::from_text(self.phase, self.additional_info.clone())
    }
}

/// How far the start of a waiting workload is prepared.
fn prepared_in(info: &str) -> PrepareLevel {
    let mut level = "";
    for part in info.split(PARTS_SEPARATOR) {
        if let Some(text) = part.strip_prefix(PREPARED_PREFIX) {
            level = text;
        }
    }
    PrepareLevel::parse(level).unwrap_or_default()
}

/// The reason why a workload waits, from the first part of its text that is not about the level of
/// preparation.
fn waiting_reason(info: &str) -> Reason {
    let prefixes = [
        (ACTIVATION_PREFIX, Reason::Activation),
        (INACTIVE_PREFIX, Reason::Inactive),
        (PRECONDITION_PREFIX, Reason::Precondition),
        (UNLISTED_PREFIX, Reason::EngineUnlisted),
        (PREPARE_PREFIX, Reason::PreparationFailed),
    ];
    let mut parts = info.split(PARTS_SEPARATOR);
    let Some(first) = parts.find(|part| !part.starts_with(PREPARED_PREFIX)) else {
        return Reason::None;
    };
    for (prefix, reason) in prefixes {
        if first.starts_with(prefix) {
            return reason;
        }
    }
    if first.is_empty() {
        Reason::None
    } else if !first.starts_with(WAITS_PREFIX) {
        Reason::Blocked
    } else if first.ends_with(MAY_NOT_RUN) {
        Reason::BlockedDependency
    } else if names_only_failures(info) {
        Reason::AwaitsFailure
    } else {
        Reason::Dependency
    }
}

/// Returns whether each part that names an awaited workload is about its failure.
fn names_only_failures(info: &str) -> bool {
    let mut parts = info.split(PARTS_SEPARATOR);
    let end = format!("' {}", AddCondition::Failed.awaited());
    parts.all(|part| part.ends_with(&end) || !part.starts_with(WAITS_PREFIX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_reasons_never_change() {
        let texts = [
            "NONE",
            "DEPENDENCY",
            "BLOCKED_DEPENDENCY",
            "ACTIVATION",
            "INACTIVE",
            "PRECONDITION",
            "ENGINE_UNLISTED",
            "PREPARATION_FAILED",
            "BLOCKED",
            "READY",
            "ALIVE",
            "GONE",
            "NO_MORE_RESTARTS",
            "NOT_IN_MODE",
            "CANNOT_BE_STAGED",
            "OUT_OF_MEMORY",
            "STOPPED",
            "AWAITS_FAILURE",
        ];
        assert_eq!(Reason::TEXTS, texts);
        for (number, reason) in (0..).zip(Reason::ALL) {
            assert_eq!(reason.number(), number);
            assert_eq!(Reason::from_number(number), Some(*reason));
        }
        assert_eq!(Reason::from_number(texts.len() as u64), None);
        assert_eq!(Reason::from_number(u64::MAX), None);
    }

    // [utest->swdd~api-reasons-of-workload-states~1]
    #[test]
    fn text_without_reason_is_understood_in_its_phase() {
        use Phase::{
            FailedExecFailed, FailedLost, NotScheduled, PendingInitial, PendingStarting,
            PendingStartingFailed, PendingWaitingToStart, Running, Stopping, StoppingDeleteFailed,
        };
        let rows = [
            (PendingWaitingToStart, "", Reason::None),
            (
                PendingWaitingToStart,
                "waits for 'db' to run",
                Reason::Dependency,
            ),
            (
                PendingWaitingToStart,
                "waits for 'db' to fail",
                Reason::AwaitsFailure,
            ),
            (
                PendingWaitingToStart,
                "waits for 'db' to fail; waits for 'web' to run",
                Reason::Dependency,
            ),
            // The end of a long text is cut off.
            (
                PendingWaitingToStart,
                "waits for 'db' to fail; waits for 'we",
                Reason::Dependency,
            ),
            (
                PendingWaitingToStart,
                "waits for 'db', which may not run; waits for 'init' to succeed",
                Reason::BlockedDependency,
            ),
            (
                PendingWaitingToStart,
                "activation: /dev/x is not known",
                Reason::Activation,
            ),
            (
                PendingWaitingToStart,
                "inactive: /dev/x does not exist",
                Reason::Inactive,
            ),
            (
                PendingWaitingToStart,
                "precondition: /run/key does not exist; waits for 'db' to run",
                Reason::Precondition,
            ),
            (
                PendingWaitingToStart,
                "Waiting for 'podman', which may have a container of it: no answer",
                Reason::EngineUnlisted,
            ),
            (
                PendingWaitingToStart,
                "prepare: no such image; waits for 'db' to run",
                Reason::PreparationFailed,
            ),
            (PendingWaitingToStart, "prepared: CREATE", Reason::None),
            (
                PendingWaitingToStart,
                "prepared: CREATE; waits for 'db' to run",
                Reason::Dependency,
            ),
            (
                PendingWaitingToStart,
                "prepared: CREATE; waits for 'db' to fail; waits for 'web' to fail",
                Reason::AwaitsFailure,
            ),
            (PendingWaitingToStart, "no more disk space", Reason::Blocked),
            (
                PendingInitial,
                "inactive: /dev/x does not exist",
                Reason::None,
            ),
            (PendingStarting, "ready: tcp 80 refused", Reason::Ready),
            (
                PendingStarting,
                "Retry 1: ready: tcp 80 refused",
                Reason::None,
            ),
            (
                PendingStartingFailed,
                "cannot be staged: no image",
                Reason::CannotBeStaged,
            ),
            (Running, "ready: tcp 80 answered", Reason::Ready),
            (Running, "alive: tcp 80 refused, 1 of 3", Reason::Alive),
            (Running, "gone: x", Reason::None),
            (Stopping, "gone: /lock is still there", Reason::Gone),
            (
                StoppingDeleteFailed,
                "gone: /lock is still there",
                Reason::Gone,
            ),
            (
                FailedExecFailed,
                "No more restarts: Exit code: '1'",
                Reason::NoMoreRestarts,
            ),
            (FailedExecFailed, "alive: No more restarts: ", Reason::Alive),
            (FailedLost, "No more restarts: ", Reason::None),
            (NotScheduled, "not in mode 'park'", Reason::NotInMode),
            (NotScheduled, STOPPED, Reason::Stopped),
            (Running, STOPPED, Reason::None),
        ];
        for (phase, text, reason) in rows {
            let state = ExecutionState::from_text(phase, text);
            assert_eq!((state.phase, &*state.additional_info), (phase, text));
            assert_eq!(state.reason, reason, "{phase}: {text}");
        }
    }

    #[test]
    fn text_without_level_shows_the_last_prepared_one() {
        for (phase, text, level) in [
            (
                Phase::PendingWaitingToStart,
                "prepared: IMAGE",
                PrepareLevel::Image,
            ),
            (
                Phase::PendingWaitingToStart,
                "precondition: /x is missing; prepared: INIT; waits for 'db' to run",
                PrepareLevel::Init,
            ),
            (
                Phase::PendingWaitingToStart,
                "prepared: MORE",
                PrepareLevel::None,
            ),
            (
                Phase::PendingWaitingToStart,
                "prepare: no such image",
                PrepareLevel::None,
            ),
            (Phase::PendingStarting, "prepared: INIT", PrepareLevel::None),
        ] {
            assert_eq!(
                ExecutionState::from_text(phase, text).prepared,
                level,
                "{text}"
            );
        }
    }

    #[test]
    fn parts_about_dependencies_are_recognised_by_older_programs() {
        let waits = waits_for("db", AddCondition::Running);
        let blocked = waits_for_blocked("db");
        assert_eq!(waits, "waits for 'db' to run");
        assert_eq!(blocked, "waits for 'db', which may not run");
        assert_eq!(waiting_reason(&waits), Reason::Dependency);
        assert_eq!(waiting_reason(&blocked), Reason::BlockedDependency);
    }

    #[test]
    fn reason_and_level_are_sent_unless_the_text_has_no_other() {
        let waiting = Phase::PendingWaitingToStart;
        let plain = ExecutionState::with_info(waiting, "just a text");
        let text = ExecutionState::with_info(waiting, "prepared: INIT; waits for 'db' to run");
        // An older program would read a reason and a level in this text.
        assert_eq!(text.sent_reason(), Some(Reason::None));
        assert_eq!(text.sent_level(), Some(PrepareLevel::None));
        assert_eq!(plain.sent_level(), None);
        let running = ExecutionState::plain(Phase::Running);
        assert_eq!(running.sent_reason(), None);
        assert_eq!(running.sent_level(), None);
        let ready = running.because(Reason::Ready);
        assert_eq!(ready.sent_reason(), Some(Reason::Ready));
        let prepared = ExecutionState::from_text(waiting, "prepared: INIT");
        assert_eq!(prepared.sent_level(), Some(PrepareLevel::Init));
    }

    #[test]
    fn reasons_of_the_lifecycle_block_are_those_of_its_checks() {
        let of_lifecycle = [
            Reason::Inactive,
            Reason::Precondition,
            Reason::PreparationFailed,
            Reason::Ready,
            Reason::Alive,
            Reason::Gone,
        ];
        for reason in Reason::ALL {
            assert_eq!(
                reason.is_of_lifecycle(),
                of_lifecycle.contains(reason),
                "{reason}"
            );
        }
    }
}
