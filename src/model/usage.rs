//! What nodes and workloads use of CPU and memory: counters and levels. Shares are computed by the reader of two samples.
//!
//! Thread: none, plain values.

use super::names::Name;
use super::node::Node;
use std::collections::BTreeMap;

/// Why an agent has no sample: it did not respond to the request in time.
pub const NO_ANSWER: &str = "no answer within 1 s";
/// Why an agent has no sample: it disconnected before it responded.
pub const DISCONNECTED: &str = "disconnected";
/// Why a workload has no values: its processes share a control group with others, or it cannot be seen from here.
pub const NO_CGROUP: &str = "no cgroup of its own";

/// What one instance uses. What is unknown is `None`, never 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkloadUsage {
    /// Bytes charged to it, page cache included.
    pub memory_bytes: Option<u64>,
    /// Bytes of page cache among them that the kernel can take back at once.
    pub inactive_file_bytes: Option<u64>,
    /// The most bytes that were ever charged to it, page cache included.
    pub memory_peak_bytes: Option<u64>,
    /// CPU time since it was started, in microseconds of one core.
    pub cpu_usec: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Milliseconds since its main process was started; of several containers the oldest.
    pub uptime_ms: Option<u64>,
    /// How often the present agent process has started it after the first time.
    pub restarts: Option<u64>,
    /// Why there are no values, for example [`NO_CGROUP`].
    pub missing: Option<String>,
}

/// What a node uses as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeUsage {
    /// Cores that are online.
    pub cores: Option<u64>,
    /// CPU time of all cores since boot that was not idle, in microseconds.
    pub cpu_busy_usec: Option<u64>,
    /// Bytes of memory.
    pub memory_total_bytes: Option<u64>,
    /// Bytes of it that programs can get without swapping.
    pub memory_available_bytes: Option<u64>,
}

/// One sample of one agent, or why there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentUsage {
    /// Monotonic time of the sample, in microseconds; only the difference of two samples means something.
    pub sampled_usec: Option<u64>,
    /// Its node.
    pub node: NodeUsage,
    /// Its instances by workload and id.
    pub workloads: BTreeMap<Name, BTreeMap<Name, WorkloadUsage>>,
    /// Why there is no sample, for example [`NO_ANSWER`].
    pub missing: Option<String>,
}

/// A map of the values that are known.
fn known<const N: usize>(numbers: [(&'static str, Option<u64>); N], missing: Option<&String>) -> Node {
    let numbers = numbers.into_iter().filter_map(|(key, number)| Some((key, Node::Number(number?))));
    Node::object(numbers.chain(missing.map(|text| ("missing", Node::text(text)))))
}

impl WorkloadUsage {
    /// The tree of one instance.
    #[must_use]
    pub fn node(&self) -> Node {
        let numbers = [
            ("memoryBytes", self.memory_bytes),
            ("inactiveFileBytes", self.inactive_file_bytes),
            ("memoryPeakBytes", self.memory_peak_bytes),
            ("cpuUsec", self.cpu_usec),
            ("pids", self.pids),
            ("uptimeMs", self.uptime_ms),
            ("restarts", self.restarts),
        ];
        known(numbers, self.missing.as_ref())
    }
}

impl NodeUsage {
    fn node(&self) -> Node {
        let numbers = [
            ("cores", self.cores),
            ("cpuBusyUsec", self.cpu_busy_usec),
            ("memoryTotalBytes", self.memory_total_bytes),
            ("memoryAvailableBytes", self.memory_available_bytes),
        ];
        known(numbers, None)
    }
}

impl AgentUsage {
    /// An agent without a sample.
    #[must_use]
    pub fn missing(reason: &str) -> Self {
        Self { missing: Some(reason.to_owned()), ..Self::default() }
    }

    /// The tree of one agent, without empty containers.
    #[must_use]
    pub fn node(&self) -> Node {
        let workloads = self.workloads.iter().map(|(name, ids)| {
            let ids = ids.iter().map(|(id, usage)| (&**id, usage.node()));
            (&**name, Node::map(ids))
        });
        let mut agent = known([("sampledUsec", self.sampled_usec)], self.missing.as_ref());
        if let Some(entries) = agent.as_map_mut() {
            let parts = [("node", self.node.node()), ("workloads", Node::map(workloads))];
            let present = parts.into_iter().filter(|(_, part)| !part.is_empty_container());
            entries.extend(present);
        }
        agent
    }
}
