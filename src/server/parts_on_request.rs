//! Parts of the complete state that exist only where a mask of a read begins with their name: not in a read without
//! masks, not for `*`, not in subscriptions and events, and updates do not know them. So clients of other
//! implementations never receive fields that they did not request, and parts that cost something cost nothing unread.
//!
//! What workloads use is such a part, too; its reads wait for the agents, see usage.rs.
//!
//! Thread: `server`; part of [`ServerLoop`].

use super::ServerLoop;
use super::requester::Requester;
use crate::model::mask_tree::{MaskTree, Wanted};
use crate::model::node::Node;

/// One such part.
struct PartOnRequest {
    /// What a mask has to begin with.
    name: &'static str,
    /// Whether workloads may read it as far as their rules allow; otherwise their masks for it select nothing.
    for_workloads: bool,
    /// What is wanted of it; `None` where the part does not exist or nothing of it is selected.
    read: fn(&ServerLoop, &Wanted<'_>) -> Option<Node>,
}

/// Their names are also those of [`crate::model::fields::table::PARTS_ON_REQUEST`], by which `ank` knows them.
const PARTS: &[PartOnRequest] = &[
    PartOnRequest {
        name: "modes",
        for_workloads: true,
        read: |server, wanted| wanted.take(server.workloads.modes.as_ref()?.node()),
    },
    PartOnRequest {
        name: "timings",
        for_workloads: false,
        read: |server, wanted| server.timings.read(server.now(), wanted),
    },
    PartOnRequest {
        name: "updates",
        for_workloads: false, // What was before would pass their deny rules.
        read: |server, wanted| Some(server.read_updates(wanted)),
    },
    PartOnRequest {
        name: "warning",
        for_workloads: false,
        read: |server, wanted| wanted.take(Node::text(server.warning.as_ref()?)),
    },
];

impl ServerLoop {
    /// Adds to `state`, the response to a read with `masks`, the parts that these request by name.
    // [impl->swdd~server-sends-parts-on-request~1]
    pub(super) fn add_parts_on_request(&self, requester: &Requester, masks: &MaskTree, state: &mut Node) {
        let Node::Map(entries) = state else { return };
        for part in PARTS.iter().filter(|part| part.for_workloads || requester.agent().is_none()) {
            let wanted = masks.named(part.name);
            if !wanted.is_nothing() {
                entries.extend((part.read)(self, &wanted).map(|node| (part.name.to_owned(), node)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fields::table::PARTS_ON_REQUEST;
    use crate::model::messages::ResponseContent;
    use crate::server::tests::{Cluster, read};
    use crate::server::usage::USAGE;

    const MANIFEST: &str = "
apiVersion: v1
workloads:
  reader:
    agent: A
    runtime: podman
    runtimeConfig: x
    controlInterfaceAccess:
      allowRules: [{type: StateRule, operation: Read, filterMasks: ['*', timings]}]
";

    #[test]
    fn the_names_are_those_that_ank_knows() {
        let mut names: Vec<&str> = PARTS.iter().map(|part| part.name).chain([USAGE]).collect();
        names.sort_unstable();
        assert_eq!(names, PARTS_ON_REQUEST);
    }

    // [utest->swdd~server-sends-parts-on-request~1]
    #[test]
    fn a_part_exists_only_where_a_mask_of_a_read_begins_with_its_name() {
        let mut cluster = Cluster::with_manifest(MANIFEST);
        let client = cluster.commander();
        let usual = ["agents", "desiredState", "effectiveState", "workloadStates"];
        let without = ["desiredState", "effectiveState", "workloadStates"]; // No agent is connected.
        for (masks, subscribe, expected) in [
            (&[][..], false, &usual[..]),
            (&["*"], false, &usual),
            (&["*.now", "*.*.*"], false, &without),
            (&["tim", "timing.now", "timingss"], false, &[]),
            (&["timings"], false, &["timings"]),
            (&["timings.now", "agents"], false, &["agents", "timings"]),
            (&["timings.nothing"], false, &[]),
            (&["timings"], true, &[]),
            (&[], true, &usual),
        ] {
            let response = cluster.request(client, read(masks, subscribe));
            let ResponseContent::CompleteState { state: Node::Map(parts), .. } = response else { panic!("no state") };
            assert_eq!(parts.keys().collect::<Vec<_>>(), expected, "{masks:?}");
        }
    }

    #[test]
    fn a_warning_of_the_start_is_read_by_its_name_only() {
        let mut cluster = Cluster::default();
        assert_eq!(cluster.read(&["warning"]), "{}");
        cluster.server.set_warning("an older state".to_owned());
        assert_eq!(cluster.read(&["warning"]), r#"{"warning":"an older state"}"#);
        assert!(!cluster.read(&["*"]).contains("warning") && !cluster.read(&[]).contains("warning"));
    }

    #[test]
    fn a_wildcard_beside_the_name_selects_nothing_more_of_the_part() {
        let mut cluster = Cluster::default();
        assert_eq!(cluster.read(&["timings.boot.x", "*.now"]), "{}");
        assert!(cluster.read(&["timings.now", "*.boot"]).starts_with(r#"{"timings":{"now":"#));
        assert!(!cluster.read(&["timings.now", "*.boot", "*"]).contains("boot"));
    }

    #[test]
    fn workloads_do_not_get_a_part_that_is_not_for_them() {
        let mut cluster = Cluster::with_manifest(MANIFEST);
        let agent = cluster.settled_agent("A");
        cluster.send_request(agent, "reader@1", read(&["timings", "agents"], false));
        let [ResponseContent::CompleteState { state, .. }] = &cluster.responses(agent)[..] else { panic!("no state") };
        assert!(state.get("agents").is_some() && state.get("timings").is_none(), "{state:?}");
    }
}
