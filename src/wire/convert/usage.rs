//! What workloads and nodes use, read as values.
//!
//! Thread: whichever reads the stream.

use crate::model::usage::{AgentUsage, NodeUsage, WorkloadUsage};
use crate::wire::schema::ank_base as base;
use std::collections::BTreeMap;

/// Reads the sample of one agent.
pub fn read_agent_usage(usage: base::AgentUsage) -> AgentUsage {
    let of_workload = |ids: base::InstanceUsageMap| -> BTreeMap<_, _> {
        ids.instances.into_iter().map(|(id, usage)| (id.as_str().into(), read_workload(usage))).collect()
    };
    let workloads = usage.workloads.into_iter().map(|(name, ids)| (name.as_str().into(), of_workload(ids)));
    AgentUsage {
        sampled_usec: usage.sampledUsec,
        node: read_node(&usage.node),
        workloads: workloads.collect(),
        missing: usage.missing,
    }
}

fn read_node(node: &base::NodeUsage) -> NodeUsage {
    NodeUsage {
        cores: node.cores,
        cpu_busy_usec: node.cpuBusyUsec,
        memory_total_bytes: node.memoryTotalBytes,
        memory_available_bytes: node.memoryAvailableBytes,
    }
}

fn read_workload(usage: base::WorkloadUsage) -> WorkloadUsage {
    WorkloadUsage {
        memory_bytes: usage.memoryBytes,
        inactive_file_bytes: usage.inactiveFileBytes,
        memory_peak_bytes: usage.memoryPeakBytes,
        cpu_usec: usage.cpuUsec,
        pids: usage.pids,
        uptime_ms: usage.uptimeMs,
        restarts: usage.restarts,
        missing: usage.missing,
    }
}
