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

/// What a probe is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Whether dependents may start.
    Ready,
    /// Whether it still works.
    Alive,
    /// Whether it is still there after its container was removed.
    Gone,
}

/// A probe to repeat until it is not wanted any more.
pub struct ProbeOrder {
    /// Identifies the order; never used twice.
    pub key: u64,
    /// The instance to probe.
    pub instance: InstanceName,
    /// What the probe is for.
    pub purpose: Purpose,
    /// How to probe.
    pub check: Check,
    /// How it is repeated.
    pub pace: Pace,
    /// Successes in a row that count.
    pub successes: u32,
    /// Failures in a row that count; `None` never.
    pub failures: Option<u32>,
    /// Where to probe.
    pub target: ProbeTarget,
    /// The socket that the workload notifies, when it does.
    pub notify: Option<Arc<OwnedFd>>,
    /// Whether time counts from the first notification only.
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
        /// Why, in a few words.
        reason: String,
        /// Whether there was an answer all the same.
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

/// What the probes of one order amount to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeReport {
    /// The key of the order.
    pub key: u64,
    /// The last result.
    pub outcome: Outcome,
    /// How often in a row the result was like that.
    pub in_a_row: u32,
    /// How often it was probed.
    pub attempts: u32,
    /// Whether the threshold was reached just now.
    pub is_verdict: bool,
}

/// Receives what the probes of an order amount to; runs on the thread of the probes and must not
/// block.
pub type ProbeReply = Box<dyn Fn(ProbeReport) + Send>;

/// Where control loops order probes. Ordering may wait for room, which is made in microseconds.
pub trait Probes: Send + Sync {
    /// Starts to repeat a probe.
    fn watch(&self, order: ProbeOrder);

    /// Ends a probe. An unknown key is no error.
    fn unwatch(&self, key: u64);
}

/// Cuts a text about a probe or a condition to what a state may show of it.
pub fn short_info(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(CONDITION_INFO_MAX));
    text
}
