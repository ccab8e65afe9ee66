//! Reads of the complete state: builds what the masks select and nothing else.
//!
//! Thread: `server`; plain functions over the state that [`super::ServerLoop`] owns.

use super::sessions::ConnectedAgent;
use ankaios_model::complete_state::{
    DesiredState, Rendering, WorkloadStates, agent_node, config_node, execution_state_node,
    workload_node,
};
use ankaios_model::execution_state::ExecutionState;
use ankaios_model::mask_tree::{Keys, MaskTree, Wanted};
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::node::{Entries, Node};
use ankaios_model::workload::Workload;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Everything that can be read.
#[derive(Clone, Copy)]
pub struct StateView<'s> {
    /// What users want.
    pub desired: &'s DesiredState,
    /// What agents have to run.
    pub effective: &'s BTreeMap<Name, AddedWorkload>,
    /// What runs.
    pub states: &'s WorkloadStates,
    /// Who is connected.
    pub agents: &'s BTreeMap<Name, ConnectedAgent>,
}

impl<'s> StateView<'s> {
    /// What `paths` lead to; for events, where keys may contain dots.
    pub fn read_paths<'p>(&self, paths: impl Iterator<Item = &'p [String]>) -> Node {
        self.select(&MaskTree::of_paths(paths))
    }

    /// The whole state with all empty containers, which is what a read without masks returns.
    pub fn everything(&self) -> Node {
        let workloads = self
            .effective
            .iter()
            .map(|(name, added)| (&**name, full(&added.workload)));
        let effective = Node::object([
            ("apiVersion", Node::text(&*self.desired.api_version)),
            ("workloads", Node::map(workloads)),
            ("configs", Node::empty()),
        ]);
        let agents = self
            .agents
            .iter()
            .map(|(name, agent)| (&**name, agent_node(&agent.attributes, Rendering::Full)));
        Node::object([
            ("desiredState", self.desired.node(Rendering::Full)),
            ("effectiveState", effective),
            ("workloadStates", self.states.node()),
            ("agents", Node::map(agents)),
        ])
    }

    /// What `tree` selects, which are the masks of a read. A state that a mask names has at least
    /// its version.
    // [impl->swdd~server-filters-get-complete-state-result~2]
    pub fn select(&self, tree: &MaskTree) -> Node {
        let wanted = tree.wanted();
        let mut selected = Vec::new();
        let (desired, effective) = (wanted.below("desiredState"), wanted.below("effectiveState"));
        let workloads = entries(&desired.below("workloads"), &self.desired.workloads, sparse);
        let configs = entries(
            &desired.below("configs"),
            &self.desired.configs,
            config_node,
        );
        let configs = configs.filter(|_| !self.desired.configs.is_empty());
        let run = entries(&effective.below("workloads"), self.effective, |added| {
            sparse(&added.workload)
        });
        let state_parts = [
            ("desiredState", self.state(&desired, workloads, configs)),
            ("effectiveState", self.state(&effective, run, None)),
        ];
        for (name, mut part) in state_parts {
            // A state without version is not valid, so it comes with whatever is read; also when a
            // mask only begins with the name and reads nothing.
            if (part.is_some() || tree.begins_with(name))
                && let Node::Map(entries) = part.get_or_insert_default()
            {
                entries.insert(
                    "apiVersion".to_owned(),
                    Node::text(&*self.desired.api_version),
                );
            }
            selected.extend(part.map(|part| (name, part)));
        }
        let states = self.workload_states(&wanted.below("workloadStates"));
        selected.extend(states.map(|states| ("workloadStates", states)));
        selected.extend(
            self.connected_agents(&wanted.below("agents"))
                .map(|agents| ("agents", agents)),
        );
        Node::map(selected)
    }

    fn state(
        &self,
        wanted: &Wanted<'_>,
        workloads: Option<Node>,
        configs: Option<Node>,
    ) -> Option<Node> {
        let version = wanted
            .below("apiVersion")
            .take(Node::text(&*self.desired.api_version));
        present(
            wanted,
            [
                ("apiVersion", version),
                ("workloads", workloads),
                ("configs", configs),
            ],
        )
    }

    fn connected_agents(&self, wanted: &Wanted<'_>) -> Option<Node> {
        entries(wanted, self.agents, |agent| {
            agent_node(&agent.attributes, Rendering::Sparse)
        })
    }

    fn workload_states(&self, wanted: &Wanted<'_>) -> Option<Node> {
        if wanted.is_nothing() {
            return None;
        }
        let mut agents = Entries::default();
        let mut add = |entry| add_state(&mut agents, wanted, entry);
        match wanted.keys() {
            Keys::All => self.states.iter().for_each(add),
            Keys::Named(names) => {
                names
                    .into_iter()
                    .for_each(|agent| match wanted.below(agent).keys() {
                        Keys::All => self.states.of_agent(agent).for_each(&mut add),
                        Keys::Named(workloads) => workloads
                            .into_iter()
                            .flat_map(|workload| self.states.of_agent_workload(agent, workload))
                            .for_each(&mut add),
                    })
            }
        }
        (wanted.is_whole() || !agents.is_empty()).then_some(Node::Map(agents))
    }
}

fn add_state(
    agents: &mut Entries,
    wanted: &Wanted<'_>,
    (instance, state): (InstanceName, &ExecutionState),
) {
    let wanted = wanted
        .below(&instance.agent)
        .below(&instance.workload)
        .below(&instance.id);
    if let Some(node) = state_parts(&wanted, state) {
        put_instance(agents, &instance, node);
    }
}

/// Puts the node of an instance into the tree `<agent>.<workload>.<id>`.
pub(crate) fn put_instance(agents: &mut Entries, instance: &InstanceName, node: Node) {
    let mut place = agents.child(instance.agent.to_string());
    for key in [&instance.workload, &instance.id] {
        let Node::Map(below) = place else { return };
        place = below.child(key.to_string());
    }
    *place = node;
}

/// The wanted part of one state. `state` and `subState` come together: one alone has no meaning on
/// the wire.
fn state_parts(wanted: &Wanted<'_>, state: &ExecutionState) -> Option<Node> {
    if wanted.is_nothing() {
        return None;
    }
    let pair = wanted.below("state").is_whole() || wanted.below("subState").is_whole();
    let mut node = execution_state_node(state);
    if let Node::Map(entries) = &mut node {
        entries.retain(|key, _| match &**key {
            "state" | "subState" => pair,
            other => wanted.below(other).is_whole(),
        });
    }
    (wanted.is_whole() || !node.is_empty_container()).then_some(node)
}

/// The wanted entries of a map whose values are rendered only when they are wanted.
pub(crate) fn entries<K, V>(
    wanted: &Wanted<'_>,
    map: &BTreeMap<K, V>,
    node: impl Fn(&V) -> Node,
) -> Option<Node>
where
    K: Ord + AsRef<str> + std::borrow::Borrow<str>,
{
    if wanted.is_nothing() {
        return None;
    }
    let entry = |key: &str, value: &V| {
        let below = wanted.below(key);
        if below.is_nothing() {
            None
        } else {
            Some((key.to_owned(), below.take(node(value))?))
        }
    };
    let found: Entries = match wanted.keys() {
        Keys::All => map
            .iter()
            .filter_map(|(key, value)| entry(key.as_ref(), value))
            .collect(),
        Keys::Named(names) => names
            .into_iter()
            .filter_map(|name| entry(name, map.get(name)?))
            .collect(),
    };
    (wanted.is_whole() || !found.is_empty()).then_some(Node::Map(found))
}

/// A map of the parts that exist, or nothing when there is none and the map itself is not wanted.
pub(crate) fn present<const N: usize>(
    wanted: &Wanted<'_>,
    parts: [(&str, Option<Node>); N],
) -> Option<Node> {
    let node = Node::map(
        parts
            .into_iter()
            .filter_map(|(key, part)| Some((key, part?))),
    );
    (wanted.is_whole() || !node.is_empty_container()).then_some(node)
}

fn full(workload: &Arc<Workload>) -> Node {
    workload_node(workload, Rendering::Full)
}

fn sparse(workload: &Arc<Workload>) -> Node {
    workload_node(workload, Rendering::Sparse)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Cluster;
    use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
    use ankaios_model::messages::{AgentLoad, ToServer};
    use ankaios_model::names::hash_id;

    const MANIFEST: &str = "
apiVersion: v1
workloads:
  a: {agent: agent_A, runtime: podman, runtimeConfig: x, tags: {owner: me, t2: '2'}, files: [{mountPoint: /m, data: d}]}
  b: {agent: agent_B, runtime: podman, runtimeConfig: x}
  c: {agent: '', runtime: podman, runtimeConfig: x}
";

    /// `a` and `b` run on their agents.
    fn running() -> Cluster {
        let mut cluster = Cluster::with_manifest(MANIFEST);
        for (workload, agent) in [("a", "agent_A"), ("b", "agent_B")] {
            let peer = cluster.agent(agent);
            let load = AgentLoad {
                agent: agent.to_owned(),
                cpu_usage: 7,
                free_memory: 8,
            };
            cluster.send(peer, ToServer::AgentLoad(load));
            let state = ExecutionState::with_info(Phase::Running, "info");
            let state = WorkloadState::new(InstanceName::new(workload, "x", agent), state);
            cluster.send(peer, ToServer::WorkloadStates(vec![state]));
        }
        cluster
    }

    // [utest->swdd~server-filters-get-complete-state-result~2]
    #[test]
    fn masks_read_the_fields_that_they_select() {
        let mut cluster = Cluster::with_manifest(MANIFEST);
        assert_eq!(cluster.read(&["agents"]), r#"{"agents":{}}"#);
        assert_eq!(cluster.read(&["agents.*"]), "{}");
        let (mut cluster, id) = (running(), hash_id("x"));
        let version_only = r#"{"desiredState":{"apiVersion":"v1"}}"#;
        let pair = r#"{"state":"Running","subState":"Ok"}"#;
        let unscheduled = r#"{"state":"NotScheduled","subState":"NotScheduled"}"#;
        for (masks, expected) in [
            (
                vec!["desiredState.workloads.a.tags.owner"],
                r#"{"desiredState":{"apiVersion":"v1","workloads":{"a":{"tags":{"owner":"me"}}}}}"#.to_owned(),
            ),
            (vec!["desiredState.workloads.zzz"], version_only.to_owned()),
            (vec!["desiredState.workloads.a.files.0"], version_only.to_owned()),
            (
                vec!["desiredState.workloads.a.files", "desiredState.workloads.a.files.0"],
                r#"{"desiredState":{"apiVersion":"v1","workloads":{"a":{"files":[{"data":"d","mountPoint":"/m"}]}}}}"#
                    .to_owned(),
            ),
            (vec!["desiredState..a", ".", "desiredState."], version_only.to_owned()),
            (vec!["desiredState.*.*.agent", "*.workloads.b.agent", "effectiveState.workloads.zz.agent"], {
                let agent = |name: &str| format!(r#"{{"agent":"{name}"}}"#);
                let (a, b, c) = (agent("agent_A"), agent("agent_B"), agent(""));
                let desired = format!(r#"{{"apiVersion":"v1","workloads":{{"a":{a},"b":{b},"c":{c}}}}}"#);
                format!(r#"{{"desiredState":{desired},"effectiveState":{{"apiVersion":"v1","workloads":{{"b":{b}}}}}}}"#)
            }),
            (vec!["desiredStateFoo"], version_only.to_owned()),
            (vec!["effectiveState.x"], r#"{"effectiveState":{"apiVersion":"v1"}}"#.to_owned()),
            (vec!["nonexistent"], "{}".to_owned()),
            (vec![""], "{}".to_owned()),
            (vec!["agents.agent_A.status.cpuUsage"], r#"{"agents":{"agent_A":{"status":{"cpuUsage":7}}}}"#.to_owned()),
            (vec!["agents.agent_A.status.cpu_usage"], "{}".to_owned()),
            (
                vec!["workloadStates.*.*.*.state"],
                format!(
                    r#"{{"workloadStates":{{"":{{"c":{{"ID":{unscheduled}}}}},"agent_A":{{"a":{{"ID":{pair}}}}},"agent_B":{{"b":{{"ID":{pair}}}}}}}}}"#
                ),
            ),
            (
                vec!["workloadStates.agent_B.b.*.subState"],
                format!(r#"{{"workloadStates":{{"agent_B":{{"b":{{"ID":{pair}}}}}}}}}"#),
            ),
            (
                vec!["workloadStates.agent_B.b.*.additionalInfo"],
                r#"{"workloadStates":{"agent_B":{"b":{"ID":{"additionalInfo":"info"}}}}}"#.to_owned(),
            ),
            (
                vec!["workloadStates..c.ID.state"],
                format!(r#"{{"workloadStates":{{"":{{"c":{{"ID":{unscheduled}}}}}}}}}"#),
            ),
            (vec!["workloadStates.agent_B.b.ID.nothing"], "{}".to_owned()),
            (vec!["workloadStates.agent_B.zzz"], "{}".to_owned()),
            (
                vec!["*.workloads.a.agent"],
                r#"{"desiredState":{"apiVersion":"v1","workloads":{"a":{"agent":"agent_A"}}},"effectiveState":{"apiVersion":"v1","workloads":{"a":{"agent":"agent_A"}}}}"#
                    .to_owned(),
            ),
            (
                vec!["", "desiredState.workloads.b.agent"],
                r#"{"desiredState":{"apiVersion":"v1","workloads":{"b":{"agent":"agent_B"}}}}"#.to_owned(),
            ),
        ] {
            let with_id: Vec<String> = masks.iter().map(|mask| mask.replace("ID", &id)).collect();
            let with_id: Vec<&str> = with_id.iter().map(String::as_str).collect();
            assert_eq!(cluster.read(&with_id), expected.replace("ID", &id), "{masks:?}");
        }
    }

    #[test]
    fn wildcards_and_top_level_names_read_everything_without_empty_containers() {
        let mut cluster = running();
        let everything = cluster.read(&["*"]);
        assert_eq!(cluster.read(&["*.*"]), everything);
        assert_eq!(
            cluster.read(&["desiredState", "effectiveState", "workloadStates", "agents"]),
            everything
        );
        assert!(
            !everything.contains("{}") && !everything.contains("[]"),
            "{everything}"
        );
        assert!(everything.contains(r#""tags":{"owner":"me","t2":"2"}"#));
    }

    #[test]
    fn a_read_without_masks_has_every_container_even_when_empty() {
        let node = Cluster::with_manifest(MANIFEST).server.view().everything();
        for path in [
            vec!["agents"],
            vec!["desiredState", "configs"],
            vec!["effectiveState", "configs"],
            vec!["desiredState", "workloads", "b", "tags"],
            vec!["effectiveState", "workloads", "b", "dependencies"],
            vec![
                "desiredState",
                "workloads",
                "b",
                "controlInterfaceAccess",
                "allowRules",
            ],
        ] {
            assert!(
                node.at(&path).is_some_and(Node::is_empty_container),
                "{path:?}"
            );
        }
    }

    #[test]
    fn configs_are_read_by_mask_and_left_out_when_there_are_none() {
        let mut cluster = Cluster::default();
        assert_eq!(
            cluster.read(&["desiredState.configs"]),
            r#"{"desiredState":{"apiVersion":"v1"}}"#
        );
        cluster
            .update(
                "{desiredState: {apiVersion: v1, configs: {k: {x: '1'}}}}",
                &["desiredState.configs"],
            )
            .unwrap();
        assert_eq!(
            cluster.read(&["desiredState.configs.k.x", "effectiveState.configs"]),
            r#"{"desiredState":{"apiVersion":"v1","configs":{"k":{"x":"1"}}},"effectiveState":{"apiVersion":"v1"}}"#
        );
    }
}
