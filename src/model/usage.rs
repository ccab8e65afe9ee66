//! Use of CPU and memory by nodes and workloads: counters and levels. The reader of two samples
//! computes shares.
//!
//! Thread: none, plain values.

use super::node::Node;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Why an agent has no sample: it did not respond to the request in time.
pub const NO_ANSWER: &str = "no answer within 1 s";
/// Why an agent has no sample: it disconnected before it responded.
pub const DISCONNECTED: &str = "disconnected";
/// Why a workload has no values: its processes share a control group with others, or the agent
/// cannot see the group.
pub const NO_CGROUP: &str = "no cgroup of its own";

/// Use of one instance. An unknown value is `None`, never 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WorkloadUsage {
    /// Bytes charged to the instance, page cache included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Bytes of page cache among `memory_bytes` that the kernel can take back at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inactive_file_bytes: Option<u64>,
    /// Highest value of `memory_bytes` so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_peak_bytes: Option<u64>,
    /// CPU time since it was started, in microseconds of one core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_usec: Option<u64>,
    /// Processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// Age of its main process in milliseconds; of several containers the oldest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uptime_ms: Option<u64>,
    /// Restarts by the present agent process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarts: Option<u64>,
    /// Bytes of the images that the agent keeps for the workload, where it cleans up images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_bytes: Option<u64>,
    /// Bytes of those among them that can be removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_removable_bytes: Option<u64>,
    /// Why there are no values, for example [`NO_CGROUP`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// Use of a whole node.
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
    /// Bytes of memory that programs can get without swapping.
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

    /// The tree of one agent, without unknown values.
    pub fn node(&self) -> Node {
        serde_json::to_value(self)
            .and_then(serde_json::from_value)
            .unwrap_or_default()
    }
}

fn is_default(node: &NodeUsage) -> bool {
    *node == NodeUsage::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_without_a_sample_has_the_reason() {
        let missing = AgentUsage::missing("no answer");
        assert_eq!(missing.missing.as_deref(), Some("no answer"));
        let expected = Node::map([("missing", Node::text("no answer"))]);
        assert_eq!(missing.node(), expected);
    }
}
