//! What workloads and nodes use: read as values, written from field trees, which may be partial.
//!
//! Thread: whichever reads or writes the stream.

use super::write_map;
use crate::model::node::Node;
use crate::model::usage::{AgentUsage, NodeUsage, WorkloadUsage};
use crate::wire::schema::ank_base as base;
use protobuf::MessageField;
use std::collections::BTreeMap;

/// The tree of all samples.
pub fn read(usage: &base::UsageMap) -> Node {
    Node::map(usage.agents.iter().map(|(name, usage)| (name.clone(), read_agent_usage(usage.clone()).node())))
}

/// The message of all samples.
pub fn write(tree: &Node) -> base::UsageMap {
    base::UsageMap { agents: write_map(tree, write_agent_usage), ..Default::default() }
}

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

/// Writes the tree of one agent, as [`AgentUsage::node`] makes it.
#[must_use]
pub fn write_agent_usage(tree: &Node) -> base::AgentUsage {
    let workload =
        |ids: &Node| base::InstanceUsageMap { instances: write_map(ids, write_workload), ..Default::default() };
    base::AgentUsage {
        sampledUsec: number(tree, "sampledUsec"),
        node: tree.get("node").map_or_else(MessageField::none, |node| MessageField::some(write_node(node))),
        workloads: tree.get("workloads").map(|workloads| write_map(workloads, workload)).unwrap_or_default(),
        missing: text(tree, "missing"),
        ..Default::default()
    }
}

fn write_node(tree: &Node) -> base::NodeUsage {
    base::NodeUsage {
        cores: number(tree, "cores"),
        cpuBusyUsec: number(tree, "cpuBusyUsec"),
        memoryTotalBytes: number(tree, "memoryTotalBytes"),
        memoryAvailableBytes: number(tree, "memoryAvailableBytes"),
        ..Default::default()
    }
}

fn write_workload(tree: &Node) -> base::WorkloadUsage {
    base::WorkloadUsage {
        memoryBytes: number(tree, "memoryBytes"),
        inactiveFileBytes: number(tree, "inactiveFileBytes"),
        memoryPeakBytes: number(tree, "memoryPeakBytes"),
        cpuUsec: number(tree, "cpuUsec"),
        pids: number(tree, "pids"),
        uptimeMs: number(tree, "uptimeMs"),
        restarts: number(tree, "restarts"),
        missing: text(tree, "missing"),
        ..Default::default()
    }
}

fn number(tree: &Node, key: &str) -> Option<u64> {
    tree.get(key).and_then(Node::as_number)
}

fn text(tree: &Node, key: &str) -> Option<String> {
    tree.get(key).and_then(Node::as_text).map(str::to_owned)
}
