//! Times of starts as a field tree, `timings.{now,boot}` and `timings.instances.<agent>.<workload>.<id>.<time>`.
//!
//! Thread: whichever reads the stream.

use crate::model::node::Node;
use crate::wire::schema::ank_base as base;

/// The tree of times of starts.
pub fn read(timings: &base::Timings) -> Node {
    let mut entries = numbers([("now", timings.now), ("boot", timings.boot)]);
    // The wire cannot tell an empty map from none.
    if !timings.instances.is_empty() {
        let ids = |ids: &base::TimingsOfWorkload| Node::map(ids.ids.iter().map(|(id, times)| (id, read_times(times))));
        let workloads = |workloads: &base::TimingsOfAgent| {
            Node::map(workloads.workloads.iter().map(|(name, workload)| (name, ids(workload))))
        };
        let agents = timings.instances.iter().map(|(name, agent)| (name, workloads(agent)));
        entries.push(("instances", Node::map(agents)));
    }
    Node::map(entries)
}

fn numbers<const N: usize>(numbers: [(&'static str, Option<u64>); N]) -> Vec<(&'static str, Node)> {
    numbers.into_iter().filter_map(|(key, number)| Some((key, Node::Number(number?)))).collect()
}

fn read_times(times: &base::InstanceTimings) -> Node {
    let mut entries = numbers([
        ("desired", times.desired),
        ("waiting", times.waiting),
        ("starting", times.starting),
        ("started", times.started),
        ("running", times.running),
        ("ended", times.ended),
        ("starts", times.starts),
    ]);
    entries.extend(times.prepared.as_ref().map(|level| ("prepared", Node::text(level))));
    Node::map(entries)
}
