//! What a workload instance is doing, its texts, and the rules that compare and combine states.
//!
//! Thread: none, plain values.

use super::names::InstanceName;
use super::prepare_level::PrepareLevel;
use super::reason::{OUT_OF_MEMORY, Reason};
use super::workload::{AddCondition, DeleteCondition};
use std::fmt;
use std::sync::{Arc, LazyLock};

/// Exit code that engines give a process which was killed: 128 and the number of SIGKILL.
const EXIT_CODE_OF_SIGKILL: i64 = 137;

/// Between the parts of an additional info.
pub const PARTS_SEPARATOR: &str = "; ";

/// State of one workload instance.
// [impl->swdd~api-workload-states-supported-states~1]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExecutionState {
    /// What the instance is doing.
    pub phase: Phase,
    /// The cause, for programs.
    // [impl->swdd~api-reasons-of-workload-states~1]
    pub reason: Reason,
    /// How far its start is prepared while it waits.
    pub prepared: PrepareLevel,
    /// The cause, for people; may be empty.
    // [impl->swdd~api-workload-state-additional-information~1]
    pub additional_info: Arc<str>,
}

/// The states and sub-states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Its agent is not connected, so its state is unknown.
    AgentDisconnected,
    /// Known to the server, not yet to the agent.
    PendingInitial,
    /// Its dependencies have not reached the states that it waits for.
    PendingWaitingToStart,
    /// Its start was requested from the runtime.
    PendingStarting,
    /// It could not be started and will not be tried again soon.
    PendingStartingFailed,
    /// It runs.
    Running,
    /// The runtime stops it.
    Stopping,
    /// It must stop, but workloads that depend on it still run.
    StoppingWaitingToStop,
    /// Its stop was requested from the runtime.
    StoppingRequestedAtRuntime,
    /// The runtime failed to stop or remove it.
    StoppingDeleteFailed,
    /// It ended with exit code 0.
    Succeeded,
    /// It ended with another exit code.
    FailedExecFailed,
    /// Its state cannot be determined.
    FailedUnknown,
    /// The runtime does not have it any more.
    FailedLost,
    /// It has no agent.
    NotScheduled,
    /// It is gone; only reported, never stored.
    Removed,
}

impl Phase {
    /// All phases with the names of their state and sub-state.
    pub const ALL: [(Self, &'static str, &'static str); 16] = [
        (
            Self::AgentDisconnected,
            "AgentDisconnected",
            "AgentDisconnected",
        ),
        (Self::PendingInitial, "Pending", "Initial"),
        (Self::PendingWaitingToStart, "Pending", "WaitingToStart"),
        (Self::PendingStarting, "Pending", "Starting"),
        (Self::PendingStartingFailed, "Pending", "StartingFailed"),
        (Self::Running, "Running", "Ok"),
        (Self::Stopping, "Stopping", "Stopping"),
        (Self::StoppingWaitingToStop, "Stopping", "WaitingToStop"),
        (
            Self::StoppingRequestedAtRuntime,
            "Stopping",
            "RequestedAtRuntime",
        ),
        (Self::StoppingDeleteFailed, "Stopping", "DeleteFailed"),
        (Self::Succeeded, "Succeeded", "Ok"),
        (Self::FailedExecFailed, "Failed", "ExecFailed"),
        (Self::FailedUnknown, "Failed", "Unknown"),
        (Self::FailedLost, "Failed", "Lost"),
        (Self::NotScheduled, "NotScheduled", "NotScheduled"),
        (Self::Removed, "Removed", "Removed"),
    ];

    /// Name of the state, for example `Pending`.
    pub fn state(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Name of the sub-state, for example `Starting`.
    pub fn sub_state(self) -> &'static str {
        Self::ALL[self as usize].2
    }

    /// Finds the phase with these names.
    pub fn parse(state: &str, sub_state: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|(_, s, sub)| *s == state && *sub == sub_state)
            .map(|(phase, _, _)| *phase)
    }

    /// Any `Pending` sub-state.
    pub fn is_pending(self) -> bool {
        self.state() == "Pending"
    }

    /// Any `Stopping` sub-state.
    pub fn is_stopping(self) -> bool {
        self.state() == "Stopping"
    }

    /// Returns whether the container has exited. A start that was given up has no container, and a
    /// lost container is not known to have exited.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::FailedExecFailed)
    }

    /// Returns whether the phase fulfils a dependency with `condition`.
    ///
    /// A start that was given up counts as failed, so that an error handler need not wait for more.
    // [impl->swdd~execution-states-of-workload-dependencies-fulfill-add-conditions~1]
    pub fn fulfils_add(self, condition: AddCondition) -> bool {
        match condition {
            AddCondition::Running => self == Self::Running,
            AddCondition::Succeeded => self == Self::Succeeded,
            AddCondition::Failed => {
                matches!(self, Self::FailedExecFailed | Self::PendingStartingFailed)
            }
        }
    }

    /// Returns whether the phase of a dependent allows to stop the workload that it depends on.
    // [impl->swdd~execution-states-of-workload-dependencies-fulfill-delete-conditions~1]
    pub fn fulfils_delete(self, condition: DeleteCondition) -> bool {
        match (self, condition) {
            (Self::PendingWaitingToStart, _) => true, // Not started, so it cannot be hurt.
            // It runs on until those that depend on it have stopped.
            (Self::StoppingWaitingToStop, _) => false,
            (_, DeleteCondition::Running) => self == Self::Running,
            (_, DeleteCondition::NotPendingNorRunning) => {
                !self.is_pending() && self != Self::Running
            }
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AgentDisconnected | Self::NotScheduled | Self::Removed => {
                formatter.write_str(self.state())
            }
            _ => write!(formatter, "{}({})", self.state(), self.sub_state()),
        }
    }
}

impl ExecutionState {
    /// A state without additional info.
    pub fn plain(phase: Phase) -> Self {
        static NONE: LazyLock<Arc<str>> = LazyLock::new(|| Arc::from(""));
        Self::with_info(phase, NONE.clone())
    }

    /// A state with additional info.
    pub fn with_info(phase: Phase, info: impl Into<Arc<str>>) -> Self {
        Self {
            phase,
            reason: Reason::None,
            prepared: PrepareLevel::None,
            additional_info: info.into(),
        }
    }

    /// This state for a reason.
    pub fn because(self, reason: Reason) -> Self {
        Self { reason, ..self }
    }

    /// The start of the workload was requested from the runtime.
    pub fn starting_triggered() -> Self {
        Self::with_info(Phase::PendingStarting, "Triggered at runtime.")
    }

    /// The start failed with `error` and retry number `retry` will come.
    pub fn retry_starting(retry: u32, error: &str) -> Self {
        Self::with_info(Phase::PendingStarting, format!("Retry {retry}: {error}"))
    }

    /// The start failed with `error` for the last time.
    pub fn no_more_retries(error: &str) -> Self {
        Self::with_info(
            Phase::PendingStartingFailed,
            format!("No more retries: {error}"),
        )
    }

    /// The workload ended with `code`.
    pub fn exited(code: i64) -> Self {
        if code == 0 {
            Self::plain(Phase::Succeeded)
        } else {
            Self::with_info(Phase::FailedExecFailed, format!("Exit code: '{code}'"))
        }
    }

    /// The workload was killed (SIGKILL), for a reason that is not known.
    pub fn killed() -> Self {
        Self::exited(EXIT_CODE_OF_SIGKILL)
    }

    /// The kernel has killed the workload because it has used all memory up to `limit` bytes, or
    /// all of the node if it has no limit.
    pub fn out_of_memory(limit: Option<u64>) -> Self {
        let mut info = OUT_OF_MEMORY.to_owned();
        if let Some(bytes) = limit {
            info.push_str(&format!(" (limit {})", memory_text(bytes)));
        }
        Self::with_info(Phase::FailedExecFailed, info).because(Reason::OutOfMemory)
    }

    /// Cuts the additional info to at most `bytes` bytes, between two characters.
    pub fn cut_info(&mut self, bytes: usize) {
        let end = self.additional_info.floor_char_boundary(bytes);
        if end < self.additional_info.len() {
            self.additional_info = self.additional_info[..end].into();
        }
    }

    /// The state without its text for people.
    pub fn without_text(&self) -> Self {
        Self::plain(self.phase).because(self.reason)
    }

    /// Returns whether nothing should wait for the start of the workload: it is not relevant on its
    /// node, or starts only after a failure of another one.
    // [impl->swdd~update-awaits-no-failure~1]
    pub fn needs_no_start(&self) -> bool {
        let is_reason = matches!(self.reason, Reason::Inactive | Reason::AwaitsFailure);
        self.phase == Phase::PendingWaitingToStart && is_reason
    }

    /// Returns whether a dependent in this state allows the workload that it needs to stop. Its
    /// phase decides, unless its `gone` condition is still awaited.
    pub fn fulfils_delete(&self, condition: DeleteCondition) -> bool {
        let awaits_gone = self.phase.is_stopping() && self.reason == Reason::Gone;
        !awaits_gone && self.phase.fulfils_delete(condition)
    }

    /// The state after this one when `incoming` is reported. A container that is being stopped
    /// still exists, so a report of its runtime about it changes nothing.
    // [impl->swdd~api-workload-state-transitions~1]
    pub fn transition(&self, incoming: Self) -> Self {
        let is_stop_requested = matches!(
            self.phase,
            Phase::StoppingRequestedAtRuntime | Phase::StoppingWaitingToStop
        );
        let is_of_runtime = matches!(
            incoming.phase,
            Phase::Running
                | Phase::Succeeded
                | Phase::FailedExecFailed
                | Phase::FailedLost
                | Phase::FailedUnknown
        );
        if is_stop_requested && is_of_runtime {
            self.clone()
        } else {
            incoming
        }
    }
}

/// A limit of memory in the largest unit that has no fraction: `8 MiB`, `1500 KiB`, `100 B`.
fn memory_text(bytes: u64) -> String {
    for (unit, size) in [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes > 0 && bytes.is_multiple_of(size) {
            return format!("{} {unit}", bytes / size);
        }
    }
    format!("{bytes} B")
}

impl fmt::Display for ExecutionState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.phase)?;
        if self.additional_info.is_empty() {
            Ok(())
        } else {
            write!(formatter, ": '{}'", self.additional_info)
        }
    }
}

/// The state of a named instance: what agents report.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WorkloadState {
    pub instance: InstanceName,
    pub state: ExecutionState,
}

impl WorkloadState {
    pub fn new(instance: InstanceName, state: ExecutionState) -> Self {
        Self { instance, state }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [utest->swdd~api-workload-states-supported-states~1]
    #[test]
    fn the_table_of_phases_is_in_the_order_of_the_enum() {
        for (index, (phase, state, sub_state)) in Phase::ALL.into_iter().enumerate() {
            assert_eq!(phase as usize, index);
            assert_eq!(Phase::parse(state, sub_state), Some(phase));
        }
    }

    // [utest->swdd~api-workload-state-additional-information~1]
    #[test]
    fn texts_are_those_of_the_specification() {
        for (state, text) in [
            (ExecutionState::plain(Phase::Running), "Running(Ok)"),
            (ExecutionState::plain(Phase::NotScheduled), "NotScheduled"),
            (
                ExecutionState::starting_triggered(),
                "Pending(Starting): 'Triggered at runtime.'",
            ),
            (
                ExecutionState::retry_starting(2, "x"),
                "Pending(Starting): 'Retry 2: x'",
            ),
            (
                ExecutionState::no_more_retries("x"),
                "Pending(StartingFailed): 'No more retries: x'",
            ),
            (ExecutionState::exited(0), "Succeeded(Ok)"),
            (
                ExecutionState::out_of_memory(Some(8 << 20)),
                "Failed(ExecFailed): 'Exit code: '137', out of memory (limit 8 MiB)'",
            ),
            (
                ExecutionState::out_of_memory(Some(1536 << 20)),
                "Failed(ExecFailed): 'Exit code: '137', out of memory (limit 1536 MiB)'",
            ),
            (
                ExecutionState::out_of_memory(Some(100)),
                "Failed(ExecFailed): 'Exit code: '137', out of memory (limit 100 B)'",
            ),
            (
                ExecutionState::out_of_memory(None),
                "Failed(ExecFailed): 'Exit code: '137', out of memory'",
            ),
            (
                ExecutionState::exited(-1),
                "Failed(ExecFailed): 'Exit code: '-1''",
            ),
        ] {
            assert_eq!(state.to_string(), text);
        }
    }

    // [utest->swdd~api-workload-state-transitions~1]
    #[test]
    fn a_requested_stop_is_not_hidden_by_what_the_runtime_sees() {
        use Phase::*;
        for old in Phase::ALL.map(|row| row.0) {
            for new in Phase::ALL.map(|row| row.0) {
                let kept = matches!(old, StoppingRequestedAtRuntime | StoppingWaitingToStop)
                    && matches!(
                        new,
                        Running | Succeeded | FailedExecFailed | FailedLost | FailedUnknown
                    );
                let expected = if kept { old } else { new };
                let result = ExecutionState::plain(old).transition(ExecutionState::plain(new));
                assert_eq!(result.phase, expected, "{old} then {new}");
            }
        }
    }

    // [utest->swdd~execution-states-of-workload-dependencies-fulfill-add-conditions~1]
    // [utest->swdd~execution-states-of-workload-dependencies-fulfill-delete-conditions~1]
    #[test]
    fn conditions_are_met_by_exactly_the_documented_phases() {
        use Phase::*;
        for phase in Phase::ALL.map(|row| row.0) {
            assert_eq!(
                phase.fulfils_add(AddCondition::Running),
                phase == Running,
                "{phase}"
            );
            assert_eq!(
                phase.fulfils_add(AddCondition::Succeeded),
                phase == Succeeded,
                "{phase}"
            );
            let failed = matches!(phase, FailedExecFailed | PendingStartingFailed);
            assert_eq!(phase.fulfils_add(AddCondition::Failed), failed, "{phase}");
            let busy = matches!(
                phase,
                PendingInitial
                    | PendingStarting
                    | PendingStartingFailed
                    | Running
                    | StoppingWaitingToStop
            );
            assert_eq!(
                phase.fulfils_delete(DeleteCondition::NotPendingNorRunning),
                !busy,
                "{phase}"
            );
            let running = matches!(phase, Running | PendingWaitingToStart);
            assert_eq!(
                phase.fulfils_delete(DeleteCondition::Running),
                running,
                "{phase}"
            );
        }
    }

    #[test]
    fn text_of_a_state_is_cut_between_characters() {
        for (text, bytes, expected) in [
            ("abc", 2, "ab"),
            ("abc", 3, "abc"),
            ("abc", 4, "abc"),
            ("aä", 2, "a"),
            ("", 0, ""),
        ] {
            let mut state = ExecutionState::with_info(Phase::Running, text);
            state.cut_info(bytes);
            assert_eq!(&*state.additional_info, expected, "{text} {bytes}");
        }
    }

    #[test]
    fn stopping_dependent_that_is_not_gone_allows_no_stop() {
        let condition = DeleteCondition::NotPendingNorRunning;
        let removed = ExecutionState::plain(Phase::Removed);
        assert!(removed.fulfils_delete(condition));
        assert!(removed.because(Reason::Gone).fulfils_delete(condition));
        let running = ExecutionState::plain(Phase::Running);
        assert!(!running.fulfils_delete(condition));
        for (phase, ..) in Phase::ALL {
            if !phase.is_stopping() {
                continue;
            }
            let stopping = ExecutionState::plain(phase);
            assert_eq!(
                stopping.fulfils_delete(condition),
                phase.fulfils_delete(condition)
            );
            assert!(!stopping.because(Reason::Gone).fulfils_delete(condition));
        }
    }
}
