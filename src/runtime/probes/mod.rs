//! Probes of workloads: whether they are ready, alive, or gone.
//!
//! Follow one probe: a control loop orders it ([`ProbeOrder`]); [`table`] decides when to probe and
//! what the results amount to; [`prober`] probes, on one thread for all workloads, with [`sockets`]
//! and [`paths`]; the result goes back to the control loop, which acts on it
//! (`workload/health.rs`).
//!
//! Thread: plain values; ordered by `wl:<name>`, probed by `probes`.

pub mod paths;
#[cfg(test)]
mod probe_order;
pub mod prober;
pub mod sockets;
pub mod table;

use crate::ProbeTarget;
use ankaios_model::lifecycle::{Check, Pace};
use ankaios_model::limits::CONDITION_INFO_MAX;
use ankaios_model::names::InstanceName;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The question that a probe answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// May dependents start?
    Ready,
    /// Does the workload still work?
    Alive,
    /// Has it ended, after its container was removed?
    Gone,
}

/// A probe that is repeated until its order is removed.
pub struct ProbeOrder {
    /// Identifies the order; never used twice.
    pub key: u64,
    /// The instance to probe.
    pub instance: InstanceName,
    pub purpose: Purpose,
    pub check: Check,
    pub pace: Pace,
    /// Number of successes in a row that are a verdict.
    pub successes: u32,
    /// Number of failures in a row that are a verdict; `None` if no number is.
    pub failures: Option<u32>,
    pub target: ProbeTarget,
    /// The socket that the workload notifies, if it does.
    pub notify: Option<Arc<OwnedFd>>,
    /// Whether the time limit begins only with the first notification.
    pub unarmed: bool,
    /// Receives the results.
    pub reply: ProbeReply,
}

/// The result of one probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The probe succeeded.
    Holds,
    /// The probe failed.
    Fails {
        /// The cause, in a few words.
        reason: String,
        /// Whether there was an answer, although not the expected one.
        answered: bool,
    },
}

impl Outcome {
    /// A failure without any answer.
    pub fn fails(reason: impl Into<String>) -> Self {
        Self::Fails {
            reason: reason.into(),
            answered: false,
        }
    }
}

/// A result that is reported, with those before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeReport {
    /// The key of the order.
    pub key: u64,
    /// The last result.
    pub outcome: Outcome,
    /// Number of results in a row that were successes, or failures, as the last one.
    pub in_a_row: u32,
    /// Number of probes so far.
    pub attempts: u32,
    /// Whether the last result reached the threshold.
    pub is_verdict: bool,
}

/// Receives the reports of one order; runs on the thread of the probes and must not block.
pub type ProbeReply = Box<dyn Fn(ProbeReport) + Send>;

/// Takes the orders of control loops. Ordering may wait for room, which is made in microseconds.
pub trait Probes: Send + Sync {
    /// Starts to repeat a probe.
    fn watch(&self, order: ProbeOrder);

    /// Ends a probe. An unknown key is no error.
    fn unwatch(&self, key: u64);
}

/// Cuts a text about a probe or a condition to the length that a state may show of it.
pub fn short_info(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(CONDITION_INFO_MAX));
    text
}
