//! What nodes and workloads use of CPU and memory: counters and levels. Shares are computed by the
//! reader of two samples.
//!
//! Thread: none, plain values.

use super::node::Node;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Why an agent has no sample: it did not respond to the request in time.
pub const NO_ANSWER: &str = "no answer within 1 s";
/// Why an agent has no sample: it disconnected before it responded.
pub const DISCONNECTED: &str = "disconnected";
/// Why a workload has no values: its processes share a control group with others, or it cannot be
/// seen from here.
pub const NO_CGROUP: &str = "no cgroup of its own";

/// What one instance uses. What is unknown is `None`, never 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WorkloadUsage {
    /// Bytes charged to it, page cache included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Bytes of page cache among them that the kernel can take back at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inactive_file_bytes: Option<u64>,
    /// The most bytes that were ever charged to it, page cache included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_peak_bytes: Option<u64>,
    /// CPU time since it was started, in microseconds of one core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_usec: Option<u64>,
    /// Processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// Milliseconds since its main process was started; of several containers the oldest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uptime_ms: Option<u64>,
    /// How often the present agent process has started it after the first time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarts: Option<u64>,
    /// Why there are no values, for example [`NO_CGROUP`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// What a node uses as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeUsage {
    /// Cores that are online.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u64>,
    /// CPU time of all cores since boot that was not idle, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_busy_usec: Option<u64>,
    /// Bytes of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_total_bytes: Option<u64>,
    /// Bytes of it that programs can get without swapping.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_available_bytes: Option<u64>,
}

/// One sample of one agent, or why there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AgentUsage {
    /// Monotonic time of the sample, in microseconds; only the difference of two samples means
    /// something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled_usec: Option<u64>,
    /// Its node.
    #[serde(skip_serializing_if = "is_default")]
    pub node: NodeUsage,
    /// Its instances by workload and id.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub workloads: BTreeMap<String, BTreeMap<String, WorkloadUsage>>,
    /// Why there is no sample, for example [`NO_ANSWER`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

impl AgentUsage {
    /// An agent without a sample.
    pub fn missing(reason: &str) -> Self {
        Self {
            missing: Some(reason.to_owned()),
            ..Self::default()
        }
    }

    /// The tree of one agent, with what is known.
    pub fn node(&self) -> Node {
        serde_json::to_value(self)
            .and_then(serde_json::from_value)
            .unwrap_or_default()
    }
}

fn is_default(node: &NodeUsage) -> bool {
    *node == NodeUsage::default()
}
