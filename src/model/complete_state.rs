//! The complete state: desired state, workload states and agents. To and from the field tree.
//!
//! Thread: none, plain values.

use super::access_rules::{AccessRule, LOG_RULE, STATE_RULE};
use super::execution_state::{ExecutionState, Phase, WorkloadState};
use super::fields::table::{AGENT, STATE, WORKLOAD};
use super::fields::{Kind, TYPE, omit_empty};
use super::names::{InstanceName, Name};
use super::node::{Node, StateError};
use super::version::API_VERSION;
use super::workload::{ConfigItem, File, FileContent, Workload};

use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A desired or an effective state.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DesiredState {
    /// `v1` or `v0.1`.
    #[serde(default)]
    pub api_version: String,
    #[serde(default)]
    pub workloads: BTreeMap<Name, Arc<Workload>>,
    /// Values for templates by key.
    #[serde(default)]
    pub configs: BTreeMap<String, ConfigItem>,
}

impl Default for DesiredState {
    fn default() -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            workloads: BTreeMap::new(),
            configs: BTreeMap::new(),
        }
    }
}

/// A connected agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentAttributes {
    /// CPU usage in percent and free memory in bytes; `None` until the first report.
    pub load: Option<(u32, u64)>,
    /// Tags by key.
    pub tags: BTreeMap<String, String>,
}

/// Memory of an entry of a map or list beside its texts, in bytes, about.
const ENTRY: usize = 64;

/// Memory of tags, in bytes, about.
pub fn tags_bytes(tags: &BTreeMap<String, String>) -> usize {
    tags.iter()
        .map(|(key, text)| key.len() + text.len() + ENTRY)
        .sum()
}

/// About how many bytes of memory a workload takes. Only lengths of texts are read.
pub fn workload_bytes(workload: &Workload) -> usize {
    let mut bytes = size_of::<Workload>()
        + workload.agent.len()
        + workload.runtime.len()
        + workload.runtime_config.len()
        + tags_bytes(&workload.tags)
        + tags_bytes(&workload.configs);
    for file in &workload.files {
        let (FileContent::Data(text) | FileContent::BinaryData(text)) = &file.content;
        bytes += file.mount_point.len() + text.len() + ENTRY;
    }
    let access = &workload.control_interface_access;
    for rule in access.allow_rules.iter().chain(&access.deny_rules) {
        bytes += rule_node(rule).memory_bytes() + ENTRY;
    }
    for name in workload.dependencies.keys() {
        bytes += name.len() + ENTRY;
    }
    bytes
}

/// Whether empty maps and lists are part of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rendering {
    /// Left out: for masked reads, events and new states of updates.
    Sparse,
    /// Present: for unmasked reads and as the base of an update.
    Full,
}

/// States of instances, sorted by agent, workload and id.
// [impl->swdd~api-state-map-for-workload-execution-states~1]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkloadStates {
    entries: BTreeMap<StateKey, ExecutionState>,
    /// The former states of entries that have changed since the last [`Self::take_changed`];
    /// `None` unless changes are observed.
    changed: Option<BTreeMap<StateKey, Option<ExecutionState>>>,
}

/// An instance, in the order of the tree of states.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct StateKey {
    agent: Name,
    workload: Name,
    id: Name,
}

impl StateKey {
    fn new(instance: &InstanceName) -> Self {
        Self {
            agent: instance.agent.clone(),
            workload: instance.workload.clone(),
            id: instance.id.clone(),
        }
    }

    /// Returns a key before all entries of `workload` on `agent`.
    fn first(agent: &str, workload: &str) -> Self {
        Self {
            agent: agent.into(),
            workload: workload.into(),
            id: "".into(),
        }
    }

    fn instance(&self) -> InstanceName {
        InstanceName {
            workload: self.workload.clone(),
            id: self.id.clone(),
            agent: self.agent.clone(),
        }
    }
}

impl WorkloadStates {
    /// The state of `instance`.
    pub fn get(&self, instance: &InstanceName) -> Option<&ExecutionState> {
        self.entries.get(&StateKey::new(instance))
    }

    /// Stores a state; `Removed` deletes the entry.
    pub fn set(&mut self, instance: &InstanceName, state: ExecutionState) {
        let key = StateKey::new(instance);
        let old = match state.phase {
            Phase::Removed => self.entries.remove(&key),
            _ => self.entries.insert(key.clone(), state),
        };
        if let Some(changed) = &mut self.changed {
            changed.entry(key).or_insert(old); // The state before the first change is kept.
        }
    }

    /// Deletes the entry of `instance`.
    pub fn remove(&mut self, instance: &InstanceName) {
        self.set(instance, ExecutionState::plain(Phase::Removed));
    }

    /// Sets whether changes are kept until they are taken.
    pub fn observe(&mut self, is_observed: bool) {
        if !is_observed {
            self.changed = None;
        } else if self.changed.is_none() {
            self.changed = Some(BTreeMap::new());
        }
    }

    /// Takes the instances that have changed since the last call, with their former states, sorted
    /// by agent and workload.
    pub fn take_changed(&mut self) -> Vec<(InstanceName, Option<ExecutionState>)> {
        let Some(changed) = &mut self.changed else {
            return Vec::new();
        };
        std::mem::take(changed)
            .into_iter()
            .map(|(key, old)| (key.instance(), old))
            .collect()
    }

    /// All entries, sorted by agent, workload and id.
    pub fn iter(&self) -> impl Iterator<Item = (InstanceName, &ExecutionState)> {
        self.entries
            .iter()
            .map(|(key, state)| (key.instance(), state))
    }

    /// The entries of `agent`, sorted by workload and id.
    pub fn of_agent(&self, agent: &str) -> impl Iterator<Item = (InstanceName, &ExecutionState)> {
        self.entries
            .range(StateKey::first(agent, "")..)
            .take_while(move |(key, _)| *key.agent == *agent)
            .map(|(key, state)| (key.instance(), state))
    }

    /// The entries of `workload` on `agent`, sorted by id.
    pub fn of_agent_workload(
        &self,
        agent: &str,
        workload: &str,
    ) -> impl Iterator<Item = (InstanceName, &ExecutionState)> {
        self.entries
            .range(StateKey::first(agent, workload)..)
            .take_while(move |(key, _)| *key.agent == *agent && *key.workload == *workload)
            .map(|(key, state)| (key.instance(), state))
    }

    /// All entries as reports.
    pub fn reports(&self) -> Vec<WorkloadState> {
        self.iter()
            .map(|(instance, state)| WorkloadState::new(instance, state.clone()))
            .collect()
    }
}

// -------------------------------------------------------------- to the tree

fn text_map(map: &BTreeMap<String, String>) -> Node {
    let entries = map
        .iter()
        .map(|(key, text)| (key.clone(), Node::text(&**text)));
    Node::map(entries)
}

fn text_list(texts: &[String]) -> Node {
    Node::List(texts.iter().map(|text| Node::text(&**text)).collect())
}

fn rule_list(rules: &[AccessRule]) -> Node {
    Node::List(rules.iter().map(rule_node).collect())
}

/// The tree of one workload.
pub fn workload_node(workload: &Workload, rendering: Rendering) -> Node {
    let dependencies = workload
        .dependencies
        .iter()
        .map(|(name, condition)| (name.clone(), Node::text(condition.as_str())));
    let access = &workload.control_interface_access;
    let node = Node::object([
        ("agent", Node::text(workload.agent.clone())),
        (
            "restartPolicy",
            Node::text(workload.restart_policy.as_str()),
        ),
        ("dependencies", Node::map(dependencies)),
        ("tags", text_map(&workload.tags)),
        ("runtime", Node::text(workload.runtime.clone())),
        (
            "runtimeConfig",
            Node::text(workload.runtime_config.text.clone()),
        ),
        (
            "controlInterfaceAccess",
            Node::object([
                ("allowRules", rule_list(&access.allow_rules)),
                ("denyRules", rule_list(&access.deny_rules)),
            ]),
        ),
        ("configs", text_map(&workload.configs)),
        (
            "files",
            Node::List(workload.files.iter().map(file_node).collect()),
        ),
    ]);
    rendered(node, Kind::Object(&WORKLOAD), rendering)
}

fn rendered(mut node: Node, kind: Kind, rendering: Rendering) -> Node {
    if rendering == Rendering::Sparse {
        omit_empty(&mut node, kind);
    }
    node
}

fn file_node(file: &File) -> Node {
    let content = match &file.content {
        FileContent::Data(data) => ("data", Node::text(&**data)),
        FileContent::BinaryData(data) => ("binaryData", Node::text(&**data)),
    };
    Node::object([("mountPoint", Node::text(&*file.mount_point)), content])
}

fn rule_node(rule: &AccessRule) -> Node {
    match rule {
        AccessRule::State {
            operation,
            filter_masks,
        } => Node::object([
            (TYPE, Node::text(STATE_RULE)),
            ("operation", Node::text(operation.as_str())),
            ("filterMasks", text_list(filter_masks)),
        ]),
        AccessRule::Log { workload_names } => Node::object([
            (TYPE, Node::text(LOG_RULE)),
            ("workloadNames", text_list(workload_names)),
        ]),
    }
}

/// The tree of a config value.
pub fn config_node(item: &ConfigItem) -> Node {
    match item {
        ConfigItem::Text(text) => Node::text(&**text),
        ConfigItem::List(items) => Node::List(items.iter().map(config_node).collect()),
        ConfigItem::Map(items) => config_map(items),
    }
}

fn config_map(items: &BTreeMap<String, ConfigItem>) -> Node {
    let entries = items
        .iter()
        .map(|(key, item)| (key.clone(), config_node(item)));
    Node::map(entries)
}

/// The tree of the state of one instance.
pub fn execution_state_node(state: &ExecutionState) -> Node {
    let mut entries = vec![
        ("state", Node::text(state.phase.state())),
        ("subState", Node::text(state.phase.sub_state())),
        ("additionalInfo", Node::text(state.additional_info.clone())),
    ];
    if let Some(reason) = state.sent_reason() {
        entries.push(("reason", Node::text(reason.as_str())));
    }
    if let Some(level) = state.sent_level() {
        entries.push(("prepared", Node::text(level.as_str())));
    }
    Node::object(entries)
}

/// The tree of one agent.
pub fn agent_node(agent: &AgentAttributes, rendering: Rendering) -> Node {
    let mut fields = Vec::new();
    if let Some((cpu, memory)) = agent.load {
        let status = [
            ("cpuUsage", Node::Number(cpu.into())),
            ("freeMemory", Node::Number(memory)),
        ];
        fields.push(("status", Node::object(status)));
    }
    fields.push(("tags", text_map(&agent.tags)));
    rendered(Node::object(fields), Kind::Object(&AGENT), rendering)
}

impl DesiredState {
    /// The tree of this state.
    pub fn node(&self, rendering: Rendering) -> Node {
        let workloads = self
            .workloads
            .iter()
            .map(|(name, workload)| (&**name, workload_node(workload, Rendering::Full)));
        let node = Node::object([
            ("apiVersion", Node::text(&*self.api_version)),
            ("workloads", Node::map(workloads)),
            ("configs", config_map(&self.configs)),
        ]);
        rendered(node, Kind::Object(&STATE), rendering)
    }
}

impl WorkloadStates {
    /// The tree `<agent>.<workload>.<id>.{state,subState,additionalInfo,reason,prepared}`.
    pub fn node(&self) -> Node {
        // They are sorted, so the states of an agent are neighbours, and so are those of a
        // workload.
        let all: Vec<(&StateKey, &ExecutionState)> = self.entries.iter().collect();
        let mut agents = Vec::new();
        for of_agent in all.chunk_by(|(one, _), (next, _)| one.agent == next.agent) {
            let mut workloads = Vec::new();
            for of_workload in
                of_agent.chunk_by(|(one, _), (next, _)| one.workload == next.workload)
            {
                let ids = of_workload
                    .iter()
                    .map(|(key, state)| (&*key.id, execution_state_node(state)));
                let (first, _) = of_workload[0];
                workloads.push((&*first.workload, Node::map(ids)));
            }
            let (first, _) = of_agent[0];
            agents.push((&*first.agent, Node::map(workloads)));
        }
        Node::map(agents)
    }
}

// ------------------------------------------------------------ from the tree

/// Reads a desired state from its tree; each part may be missing.
pub fn desired_state_from_node(node: &Node) -> Result<DesiredState, StateError> {
    node.read("desiredState")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::tests::workload_with_everything;

    impl WorkloadStates {
        pub(crate) fn count(&self) -> usize {
            self.entries.len()
        }
    }

    #[test]
    fn a_desired_state_survives_the_way_through_the_tree() {
        let mut state = DesiredState::default();
        state
            .workloads
            .insert("full".into(), Arc::new(workload_with_everything()));
        state
            .workloads
            .insert("bare".into(), Arc::new(Workload::new("", "podman", "x")));
        let nested = ConfigItem::Map(
            [(
                "k".to_owned(),
                ConfigItem::List(vec![ConfigItem::Text("v".into())]),
            )]
            .into(),
        );
        state.configs.insert("c".into(), nested);
        for rendering in [Rendering::Sparse, Rendering::Full] {
            assert_eq!(
                desired_state_from_node(&state.node(rendering)),
                Ok(state.clone()),
                "{rendering:?}"
            );
        }
    }

    #[test]
    fn empty_containers_are_rendered_only_in_full() {
        let bare = Workload::new("a", "r", "c");
        let keys = |node: Node| node.as_map().unwrap().keys().collect::<Vec<_>>().join(",");
        assert_eq!(
            keys(workload_node(&bare, Rendering::Sparse)),
            "agent,restartPolicy,runtime,runtimeConfig"
        );
        assert_eq!(
            keys(workload_node(&bare, Rendering::Full)),
            "agent,configs,controlInterfaceAccess,dependencies,files,restartPolicy,runtime,runtimeConfig,tags"
        );
    }

    #[test]
    fn a_wrong_tree_is_refused_with_the_place() {
        let good = workload_node(&workload_with_everything(), Rendering::Sparse);
        for (field, value, message) in [
            ("runtime", None, "missing field `runtime`"),
            ("agent", None, "missing field `agent`"),
            (
                "restartPolicy",
                Some(Node::text("never")),
                "w.restartPolicy: invalid value, expected NEVER, ON_FAILURE or ALWAYS",
            ),
            (
                "tags",
                Some(Node::text("x")),
                "w.tags: invalid value, expected a map",
            ),
            (
                "files",
                Some(Node::List(vec![Node::empty()])),
                "missing field `mountPoint`",
            ),
            (
                "runtimeConfig",
                Some(Node::Number(1)),
                "w.runtimeConfig: invalid value, expected text",
            ),
        ] {
            let mut node = good.clone();
            let map = node.as_map_mut().unwrap();
            map.remove(field);
            map.extend(value.map(|value| (field.to_owned().into(), value)));
            assert_eq!(
                node.read::<Workload>("w").unwrap_err().to_string(),
                message,
                "{field}"
            );
        }
    }

    #[test]
    fn observed_changes_are_taken_once_with_their_first_state() {
        let (mut states, instance) = (WorkloadStates::default(), InstanceName::new("w", "c", "A"));
        let running = ExecutionState::with_info(Phase::Running, "info");
        states.set(&instance, running.clone());
        assert!(states.take_changed().is_empty());
        states.observe(true);
        for phase in [Phase::AgentDisconnected, Phase::Removed] {
            states.set(&instance, ExecutionState::plain(phase));
            states.observe(true);
        }
        assert_eq!(
            (states.take_changed(), states.get(&instance)),
            (vec![(instance.clone(), Some(running.clone()))], None)
        );
        states.set(&instance, running);
        assert_eq!(states.take_changed(), [(instance.clone(), None)]);
        states.remove(&instance);
        states.observe(false);
        states.observe(true);
        assert!(states.take_changed().is_empty());
    }

    #[test]
    fn stored_state_is_found_until_it_is_removed() {
        let (mut states, instance) = (WorkloadStates::default(), InstanceName::new("w", "c", "A"));
        let running = ExecutionState::plain(Phase::Running);
        states.set(&instance, running.clone());
        assert_eq!(states.get(&instance), Some(&running));
        assert_eq!(states.get(&InstanceName::new("w", "other", "A")), None);
        states.set(&instance, ExecutionState::plain(Phase::Removed));
        assert_eq!(states.get(&instance), None);
    }

    // [utest->swdd~api-state-map-for-workload-execution-states~1]
    #[test]
    fn states_are_found_by_agent_and_its_workload() {
        let mut states = WorkloadStates::default();
        let running = ExecutionState::plain(Phase::Running);
        for (workload, agent) in [("w", "A"), ("v", "A"), ("w", "A2"), ("w", ""), ("x", "B")] {
            states.set(&InstanceName::new(workload, "c", agent), running.clone());
        }
        let workloads: Vec<String> = states
            .of_agent("A")
            .map(|(name, _)| name.workload.to_string())
            .collect();
        assert_eq!(workloads, ["v", "w"]);
        let mine: Vec<String> = states
            .of_agent_workload("A", "w")
            .map(|(name, _)| name.to_string())
            .collect();
        assert_eq!(mine, [InstanceName::new("w", "c", "A").to_string()]);
        states.set(
            &InstanceName::new("x", "c", "B"),
            ExecutionState::plain(Phase::Removed),
        );
        assert_eq!(states.count(), 4);
        assert_eq!(states.of_agent("B").count(), 0);
        assert!(states.node().at(&["A2", "w"]).is_some());
    }

    #[test]
    fn memory_of_a_workload_counts_all_that_a_user_chooses() {
        let texts = |entries: &[(&str, &str)]| {
            let owned = entries
                .iter()
                .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
            owned.collect::<BTreeMap<String, String>>()
        };
        assert_eq!(tags_bytes(&texts(&[])), 0);
        assert_eq!(tags_bytes(&texts(&[("ab", "c"), ("d", "")])), 4 + 2 * ENTRY);
        let mut workload = Workload::new("a", "bc", "def");
        let mut expected = size_of::<Workload>() + 6;
        assert_eq!(workload_bytes(&workload), expected);
        workload.tags = texts(&[("ab", "c")]);
        workload.configs = texts(&[("x", "y")]);
        expected += 3 + 2 + 2 * ENTRY;
        assert_eq!(workload_bytes(&workload), expected);
        workload.files.push(File {
            mount_point: "/m".to_owned(),
            content: FileContent::BinaryData("data".to_owned()),
        });
        expected += 6 + ENTRY;
        assert_eq!(workload_bytes(&workload), expected);
        let rule = AccessRule::Log {
            workload_names: vec!["web".to_owned()],
        };
        expected += rule_node(&rule).memory_bytes() + ENTRY;
        workload
            .control_interface_access
            .deny_rules
            .push(rule.clone());
        assert_eq!(workload_bytes(&workload), expected);
        expected += rule_node(&rule).memory_bytes() + ENTRY;
        workload.control_interface_access.allow_rules.push(rule);
        let needed = crate::workload::AddCondition::Running;
        workload.dependencies.insert("db".to_owned(), needed);
        assert_eq!(workload_bytes(&workload), expected + 2 + ENTRY);
    }
}
