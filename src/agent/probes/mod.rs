//! Readiness, liveness and the conditions of workloads while they run (spec/lifecycle.md).
//!
//! Follow one check: a control loop orders it ([`ProbeOrder`]); [`probe_table`] decides when to ask and what the answers
//! amount to; [`prober`] asks, on one thread for all workloads; the result goes back to the control loop, which draws
//! the conclusions (`workload_control_loop/lifecycle.rs`). Conditions of the node are looked at by the scheduler
//! ([`conditions`]). Both look at paths with [`path_looks`], since a file system may never answer.
//!
//! Thread: plain values; ordered by `wl:<name>`, asked by `probes`.

pub mod conditions;
pub mod path_looks;
pub mod probe_sockets;
pub mod probe_table;
pub mod prober;

use crate::limits::CONDITION_INFO_MAX;
use crate::model::execution_state::{ExecutionState, Phase};
use crate::model::lifecycle::{Check, Pace};
use crate::model::names::InstanceName;
use crate::model::workload::Workload;
use crate::runtime::ProbeTarget;
use crossbeam_channel::Sender;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What a check is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Whether dependents may start.
    Ready,
    /// Whether it still works.
    Alive,
    /// Whether it has really ended.
    Gone,
}

impl Purpose {
    /// Its key in the block.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Alive => "alive",
            Self::Gone => "gone",
        }
    }
}

/// A check to repeat until it is not wanted any more.
#[derive(Debug)]
pub struct ProbeOrder {
    /// Tells orders apart; never used twice.
    pub key: u64,
    /// Whose check.
    pub instance: InstanceName,
    /// What for.
    pub purpose: Purpose,
    /// What to ask.
    pub check: Check,
    /// How it is repeated.
    pub pace: Pace,
    /// Successes in a row that count.
    pub successes: u32,
    /// Failures in a row that count; `None` never.
    pub failures: Option<u32>,
    /// Where to ask.
    pub target: ProbeTarget,
    /// Where the workload notifies, when it does.
    pub notify: Option<Arc<OwnedFd>>,
    /// Whether the first notification is still to come, and no time counts before.
    pub unarmed: bool,
    /// Gets the results.
    pub reports: Sender<ProbeReport>,
}

/// What came of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It holds.
    Holds,
    /// It does not.
    Fails {
        /// Why, in a few words.
        reason: String,
        /// Whether there was an answer all the same.
        answered: bool,
    },
}

impl Outcome {
    /// A failure without any answer.
    #[must_use]
    pub fn fails(reason: impl Into<String>) -> Self {
        Self::Fails { reason: reason.into(), answered: false }
    }
}

/// What the checks of one order have come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeReport {
    /// Of which order.
    pub key: u64,
    /// The last result.
    pub outcome: Outcome,
    /// How often in a row it was like that.
    pub in_a_row: u32,
    /// How often it was asked.
    pub attempts: u32,
    /// Whether that is often enough to draw the conclusion, for the first time since it was different.
    pub is_verdict: bool,
}

/// Where control loops order checks. Ordering may wait for room, which is made in microseconds.
pub trait Probes: Send + Sync {
    /// Repeats a check from now on.
    fn watch(&self, order: ProbeOrder);

    /// Not any more. An unknown key is no error.
    fn unwatch(&self, key: u64);

    /// Begins with what could not be begun.
    fn try_again(&self) {}
}

/// Begins the additional info of a state that keeps what the workload depends on from being stopped (rule 14).
pub use crate::model::execution_state::GONE_PREFIX;

/// Cuts a text about a condition to what a state may show of it (rule 15).
#[must_use]
pub fn short_info(mut text: String) -> String {
    super::workload_control_loop::cut(&mut text, CONDITION_INFO_MAX);
    text
}

/// What is shown of a container of an earlier life of the agent before it was asked anything (rule 9).
#[must_use]
pub fn adopted_state(workload: &Workload, state: ExecutionState) -> ExecutionState {
    let lifecycle = crate::model::lifecycle::of_config(&workload.runtime, &workload.runtime_config);
    let ready = lifecycle.ok().flatten().and_then(|lifecycle| lifecycle.ready);
    match ready {
        Some(ready) if state.phase == Phase::Running && ready.check != Check::Notify => {
            ExecutionState::with_info(Phase::PendingStarting, short_info(format!("ready: {} is asked", ready.check)))
        }
        _ => state,
    }
}

#[cfg(test)]
mod tests;
