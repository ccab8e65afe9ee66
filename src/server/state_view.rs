//! Reads of the complete state: builds the parts that masks select and no others.
//!
//! Thread: `server`; plain functions over the state that [`super::ServerLoop`] owns.

use super::sessions::ConnectedAgent;
use ankaios_model::complete_state::{
    DesiredState, Rendering, WorkloadStates, agent_node, config_node, execution_state_node,
    workload_node,
};
use ankaios_model::execution_state::ExecutionState;
use ankaios_model::mask_tree::{MaskTree, Wanted, WantedKeys};
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::node::{Entries, Node};
use ankaios_model::workload::Workload;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Everything that can be read.
#[derive(Clone, Copy)]
pub struct StateView<'s> {
    pub desired: &'s DesiredState,
    /// The effective workloads.
    pub effective: &'s BTreeMap<Name, AddedWorkload>,
    /// The execution states of all instances.
    pub states: &'s WorkloadStates,
    /// The connected agents.
    pub agents: &'s BTreeMap<Name, ConnectedAgent>,
}

impl<'s> StateView<'s> {
    /// The parts of the state at `paths`, for events: keys in paths may contain dots.
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

    /// The parts of the state that `tree`, the masks of a read, selects.
    // [impl->swdd~server-filters-get-complete-state-result~2]
    pub fn select(&self, tree: &MaskTree) -> Node {
        let wanted = tree.wanted();
        let parts = [
            ("desiredState", self.desired_state(&wanted, tree)),
            ("effectiveState", self.effective_state(&wanted, tree)),
            (
                "workloadStates",
                self.workload_states(&wanted.below("workloadStates")),
            ),
            ("agents", self.connected_agents(&wanted.below("agents"))),
        ];
        Node::Map(existing(parts))
    }

    /// The wanted part of the desired state.
    fn desired_state(&self, wanted: &Wanted<'_>, tree: &MaskTree) -> Option<Node> {
        let wanted = wanted.below("desiredState");
        let workloads = entries(&wanted.below("workloads"), &self.desired.workloads, sparse);
        // Unlike the map of workloads, an empty map of configs is left out.
        let configs = if self.desired.configs.is_empty() {
            None
        } else {
            entries(&wanted.below("configs"), &self.desired.configs, config_node)
        };
        let parts = [("workloads", workloads), ("configs", configs)];
        let state = present(&wanted, parts);
        self.with_version(state, &wanted, tree.begins_with("desiredState"))
    }

    /// The wanted part of the effective state.
    fn effective_state(&self, wanted: &Wanted<'_>, tree: &MaskTree) -> Option<Node> {
        let wanted = wanted.below("effectiveState");
        let workloads = entries(&wanted.below("workloads"), self.effective, |added| {
            sparse(&added.workload)
        });
        let parts = [("workloads", workloads)];
        let state = present(&wanted, parts);
        self.with_version(state, &wanted, tree.begins_with("effectiveState"))
    }

    /// Adds the version to the selected parts of a state, which would not be valid without it. It
    /// is added as soon as a mask names the state (`is_named`), even if no part is selected.
    fn with_version(
        &self,
        state: Option<Node>,
        wanted: &Wanted<'_>,
        is_named: bool,
    ) -> Option<Node> {
        let is_read = wanted.below("apiVersion").is_whole();
        if state.is_none() && !is_named && !is_read {
            return None;
        }
        let mut state = state.unwrap_or_default();
        if let Node::Map(fields) = &mut state {
            fields.insert("apiVersion", Node::text(&*self.desired.api_version));
        }
        Some(state)
    }

    fn connected_agents(&self, wanted: &Wanted<'_>) -> Option<Node> {
        entries(wanted, self.agents, |agent| {
            agent_node(&agent.attributes, Rendering::Sparse)
        })
    }

    /// The wanted states. If masks name agents, only these are looked up.
    fn workload_states(&self, wanted: &Wanted<'_>) -> Option<Node> {
        if wanted.is_nothing() {
            return None;
        }
        let mut agents = Entries::default();
        match wanted.keys() {
            WantedKeys::All => add_states(&mut agents, wanted, self.states.iter()),
            WantedKeys::Named(names) => {
                for agent in names {
                    self.add_states_of_agent(&mut agents, wanted, agent);
                }
            }
        }
        present_entries(wanted, agents)
    }

    /// Adds the wanted states of one agent. If masks name workloads, only these are looked up.
    fn add_states_of_agent(&self, agents: &mut Entries, wanted: &Wanted<'_>, agent: &str) {
        match wanted.below(agent).keys() {
            WantedKeys::All => add_states(agents, wanted, self.states.of_agent(agent)),
            WantedKeys::Named(workloads) => {
                for workload in workloads {
                    let states = self.states.of_agent_workload(agent, workload);
                    add_states(agents, wanted, states);
                }
            }
        }
    }
}

/// Adds the wanted parts of these states to the tree `agents`.
fn add_states<'s>(
    agents: &mut Entries,
    wanted: &Wanted<'_>,
    states: impl Iterator<Item = (InstanceName, &'s ExecutionState)>,
) {
    for (instance, state) in states {
        let wanted = wanted
            .below(&instance.agent)
            .below(&instance.workload)
            .below(&instance.id);
        if let Some(node) = state_parts(&wanted, state) {
            put_instance(agents, &instance, node);
        }
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

/// The wanted part of one state. If masks select `state` or `subState`, both are sent: one alone
/// has no meaning in the protocol.
fn state_parts(wanted: &Wanted<'_>, state: &ExecutionState) -> Option<Node> {
    if wanted.is_nothing() {
        return None;
    }
    let wants_phase = wanted.below("state").is_whole() || wanted.below("subState").is_whole();
    let mut node = execution_state_node(state);
    if let Node::Map(entries) = &mut node {
        entries.retain(|key, _| match &**key {
            "state" | "subState" => wants_phase,
            other => wanted.below(other).is_whole(),
        });
    }
    (wanted.is_whole() || !node.is_empty_container()).then_some(node)
}

/// The wanted entries of a map. `node` is called for the values of these entries only.
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
    let mut found = Entries::default();
    match wanted.keys() {
        WantedKeys::All => {
            for (key, value) in map {
                add_wanted(&mut found, wanted, key.as_ref(), || node(value));
            }
        }
        WantedKeys::Named(names) => {
            for name in names {
                if let Some(value) = map.get(name) {
                    add_wanted(&mut found, wanted, name, || node(value));
                }
            }
        }
    }
    present_entries(wanted, found)
}

/// Adds the wanted part of the entry `key`, if there is one.
fn add_wanted(entries: &mut Entries, wanted: &Wanted<'_>, key: &str, node: impl FnOnce() -> Node) {
    let below = wanted.below(key);
    if below.is_nothing() {
        return;
    }
    if let Some(part) = below.take(node()) {
        entries.insert(key.to_owned(), part);
    }
}

/// A map of the parts that exist; `None` if there is none and the map itself is not wanted.
pub(crate) fn present<const N: usize>(
    wanted: &Wanted<'_>,
    parts: [(&'static str, Option<Node>); N],
) -> Option<Node> {
    present_entries(wanted, existing(parts))
}

/// A map of these entries; `None` if there is none and the map itself is not wanted.
pub(crate) fn present_entries(wanted: &Wanted<'_>, entries: Entries) -> Option<Node> {
    (wanted.is_whole() || !entries.is_empty()).then_some(Node::Map(entries))
}

fn existing<const N: usize>(parts: [(&'static str, Option<Node>); N]) -> Entries {
    let mut entries = Entries::default();
    for (key, part) in parts {
        if let Some(part) = part {
            entries.insert(key, part);
        }
    }
    entries
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
                engine: String::new(),
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
    fn wildcards_read_everything_without_empty_containers() {
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
