//! The complete state: desired state, workload states and agents. To and from the field tree.
//!
//! Thread: none, plain values.

use super::access_rules::{AccessRule, LOG_RULE, STATE_RULE};
use super::execution_state::{ExecutionState, Phase, WorkloadState};
use super::fields::table::{AGENT, STATE, WORKLOAD};
use super::fields::{Kind, Object, Presence, TYPE, Text, omit_empty};
use super::names::{InstanceName, Name, alternatives};
use super::node::{Entries, Node};
use super::version::API_VERSION;
use super::workload::{ConfigItem, File, FileContent, Workload};
use crate::limits::AGENT_TAG_ENTRY;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// What users want, or what agents get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredState {
    /// `v1` or `v0.1`.
    pub api_version: String,
    /// Workloads by name.
    pub workloads: BTreeMap<Name, Arc<Workload>>,
    /// Values for templates by key.
    pub configs: BTreeMap<String, ConfigItem>,
}

impl Default for DesiredState {
    fn default() -> Self {
        Self { api_version: API_VERSION.to_owned(), workloads: BTreeMap::new(), configs: BTreeMap::new() }
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

/// What tags take in memory, in bytes, about.
#[must_use]
pub fn tags_bytes(tags: &BTreeMap<String, String>) -> usize {
    tags.iter().map(|(key, text)| key.len() + text.len() + AGENT_TAG_ENTRY).sum()
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
    entries: BTreeMap<(Name, Name, Name), ExecutionState>,
}

fn key(instance: &InstanceName) -> (Name, Name, Name) {
    (instance.agent.clone(), instance.workload.clone(), instance.id.clone())
}

/// No entry of `workload` on `agent` comes before it.
fn first(agent: &str, workload: &str) -> (Name, Name, Name) {
    (agent.into(), workload.into(), "".into())
}

fn instance((agent, workload, id): &(Name, Name, Name)) -> InstanceName {
    InstanceName { workload: workload.clone(), id: id.clone(), agent: agent.clone() }
}

impl WorkloadStates {
    /// The state of `instance`.
    #[must_use]
    pub fn get(&self, instance: &InstanceName) -> Option<&ExecutionState> {
        self.entries.get(&key(instance))
    }

    /// Stores a state; `Removed` deletes the entry. Returns the state before.
    pub fn set(&mut self, instance: &InstanceName, state: ExecutionState) -> Option<ExecutionState> {
        if state.phase == Phase::Removed {
            self.entries.remove(&key(instance))
        } else {
            self.entries.insert(key(instance), state)
        }
    }

    /// Stores `state` unless the instance has a state already. Returns whether it was stored.
    pub fn set_initial(&mut self, instance: &InstanceName, state: ExecutionState) -> bool {
        let entry = self.entries.entry(key(instance));
        let is_vacant = matches!(entry, Entry::Vacant(_));
        entry.or_insert(state);
        is_vacant
    }

    /// Marks the instances of `agent` as disconnected. Returns them with the states before.
    pub fn set_agent_disconnected(&mut self, agent: &str) -> Vec<(InstanceName, ExecutionState)> {
        let of_agent = self.entries.range_mut(first(agent, "")..).take_while(|(key, _)| &*key.0 == agent);
        of_agent
            .map(|(key, state)| {
                (instance(key), std::mem::replace(state, ExecutionState::plain(Phase::AgentDisconnected)))
            })
            .collect()
    }

    /// Deletes the entry of `instance`.
    pub fn remove(&mut self, instance: &InstanceName) -> Option<ExecutionState> {
        self.entries.remove(&key(instance))
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All entries, sorted by agent, workload and id.
    pub fn iter(&self) -> impl Iterator<Item = (InstanceName, &ExecutionState)> {
        self.entries.iter().map(|(key, state)| (instance(key), state))
    }

    /// The entries of `agent`, sorted by workload and id.
    pub fn of_agent(&self, agent: &str) -> impl Iterator<Item = (InstanceName, &ExecutionState)> {
        let entries = self.entries.range(first(agent, "")..).take_while(move |(key, _)| &*key.0 == agent);
        entries.map(|(key, state)| (instance(key), state))
    }

    /// The entries of `workload` on `agent`, sorted by id.
    pub fn of_agent_workload(
        &self,
        agent: &str,
        workload: &str,
    ) -> impl Iterator<Item = (InstanceName, &ExecutionState)> {
        let is_wanted = move |key: &(Name, Name, Name)| &*key.0 == agent && &*key.1 == workload;
        let entries = self.entries.range(first(agent, workload)..).take_while(move |(key, _)| is_wanted(key));
        entries.map(|(key, state)| (instance(key), state))
    }

    /// All entries as reports.
    #[must_use]
    pub fn reports(&self) -> Vec<WorkloadState> {
        self.iter().map(|(instance, state)| WorkloadState::new(instance, state.clone())).collect()
    }
}

// -------------------------------------------------------------- to the tree

fn texts(map: &BTreeMap<String, String>) -> Node {
    Node::map(map.iter().map(|(key, text)| (key.clone(), Node::text(text))))
}

/// The tree of one workload.
#[must_use]
pub fn workload_node(workload: &Workload, rendering: Rendering) -> Node {
    let dependencies =
        workload.dependencies.iter().map(|(name, condition)| (name.clone(), Node::text(condition.as_str())));
    let access = &workload.control_interface_access;
    let rules = |rules: &[AccessRule]| Node::List(rules.iter().map(rule_node).collect());
    let node = Node::object([
        ("agent", Node::text(&*workload.agent)),
        ("restartPolicy", Node::text(workload.restart_policy.as_str())),
        ("dependencies", Node::map(dependencies)),
        ("tags", texts(&workload.tags)),
        ("runtime", Node::text(&*workload.runtime)),
        ("runtimeConfig", Node::text(&*workload.runtime_config)),
        (
            "controlInterfaceAccess",
            Node::object([("allowRules", rules(&access.allow_rules)), ("denyRules", rules(&access.deny_rules))]),
        ),
        ("configs", texts(&workload.configs)),
        ("files", Node::List(workload.files.iter().map(file_node).collect())),
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
        FileContent::Data(data) => ("data", Node::text(data)),
        FileContent::BinaryData(data) => ("binaryData", Node::text(data)),
    };
    Node::object([("mountPoint", Node::text(&file.mount_point)), content])
}

fn rule_node(rule: &AccessRule) -> Node {
    let list = |texts: &[String]| Node::List(texts.iter().map(Node::text).collect());
    match rule {
        AccessRule::State { operation, filter_masks } => Node::object([
            (TYPE, Node::text(STATE_RULE)),
            ("operation", Node::text(operation.as_str())),
            ("filterMasks", list(filter_masks)),
        ]),
        AccessRule::Log { workload_names } => {
            Node::object([(TYPE, Node::text(LOG_RULE)), ("workloadNames", list(workload_names))])
        }
    }
}

/// The tree of a config value.
#[must_use]
pub fn config_node(item: &ConfigItem) -> Node {
    match item {
        ConfigItem::Text(text) => Node::text(text),
        ConfigItem::List(items) => Node::List(items.iter().map(config_node).collect()),
        ConfigItem::Map(items) => Node::map(items.iter().map(|(key, item)| (key.clone(), config_node(item)))),
    }
}

/// The tree of the state of one instance.
#[must_use]
pub fn execution_state_node(state: &ExecutionState) -> Node {
    Node::object([
        ("state", Node::text(state.phase.state())),
        ("subState", Node::text(state.phase.sub_state())),
        ("additionalInfo", Node::text(&*state.additional_info)),
    ])
}

/// The tree of one agent.
#[must_use]
pub fn agent_node(agent: &AgentAttributes, rendering: Rendering) -> Node {
    let status = agent.load.map(|(cpu, memory)| {
        let status = [("cpuUsage", Node::Number(cpu.into())), ("freeMemory", Node::Number(memory))];
        ("status", Node::object(status))
    });
    let node = Node::object(status.into_iter().chain([("tags", texts(&agent.tags))]));
    rendered(node, Kind::Object(&AGENT), rendering)
}

impl DesiredState {
    /// The tree of this state.
    #[must_use]
    pub fn node(&self, rendering: Rendering) -> Node {
        let workloads =
            self.workloads.iter().map(|(name, workload)| (&**name, workload_node(workload, Rendering::Full)));
        let node = Node::object([
            ("apiVersion", Node::text(&self.api_version)),
            ("workloads", Node::map(workloads)),
            ("configs", Node::map(self.configs.iter().map(|(key, item)| (key.clone(), config_node(item))))),
        ]);
        rendered(node, Kind::Object(&STATE), rendering)
    }
}

impl WorkloadStates {
    /// The tree `<agent>.<workload>.<id>.{state,subState,additionalInfo}`.
    #[must_use]
    pub fn node(&self) -> Node {
        let all: Vec<_> = self.entries.iter().collect();
        Node::map(all.chunk_by(|(one, _), (next, _)| one.0 == next.0).map(|of_agent| {
            let workloads = of_agent.chunk_by(|(one, _), (next, _)| one.1 == next.1).map(|of_workload| {
                let ids = of_workload.iter().map(|((.., id), state)| (&**id, execution_state_node(state)));
                (&*of_workload[0].0.1, Node::map(ids))
            });
            (&*of_agent[0].0.0, Node::map(workloads))
        }))
    }
}

// ------------------------------------------------------------ from the tree

/// Why a tree is not a desired state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// A mandatory field is not there.
    #[error("missing field `{field}`")]
    Missing {
        /// Path of the node that lacks it.
        path: String,
        /// Name of the field.
        field: &'static str,
    },
    /// A field has another type or value than it may have.
    #[error("{path}: invalid value, expected {expected}")]
    Invalid {
        /// Path of the field.
        path: String,
        /// What may stand there.
        expected: String,
    },
}

/// The keys that lead to a node. They become a text only for an error: there may be many nodes below a long key.
#[derive(Clone, Copy)]
struct Way<'a> {
    above: Option<&'a Way<'a>>,
    key: &'a str,
}

impl Way<'_> {
    fn path(&self) -> String {
        match self.above.map(Way::path) {
            Some(above) if !above.is_empty() => format!("{above}.{}", self.key),
            _ => self.key.to_owned(),
        }
    }

    fn missing(&self, field: &'static str) -> StateError {
        StateError::Missing { path: self.path(), field }
    }

    /// Checks that the node here is complete and as in the table of fields.
    fn check(&self, node: &Node, kind: Kind) -> Result<(), StateError> {
        let below = |key: &str, node: &Node, kind: Kind| Way { above: Some(self), key }.check(node, kind);
        let each = |entries: &Entries, kind| entries.iter().try_for_each(|(key, node)| below(key, node, kind));
        let expected = match (kind, node) {
            (Kind::Any, _)
            | (Kind::Text(_) | Kind::Config, Node::Text(_))
            | (Kind::Number | Kind::Range(..), Node::Number(_)) => return Ok(()),
            (Kind::Choice(_) | Kind::Constant(_), Node::Text(text)) => match kind.texts() {
                texts if texts.contains(&text.as_str()) => return Ok(()),
                texts => alternatives(&texts),
            },
            (Kind::List(_) | Kind::Config, Node::List(items)) => {
                let kind = if let Kind::List(item) = kind { *item } else { kind };
                return items.iter().enumerate().try_for_each(|(index, item)| below(&index.to_string(), item, kind));
            }
            (Kind::Map(value) | Kind::Named(value), Node::Map(entries)) => return each(entries, *value),
            (Kind::Tags, Node::Map(entries)) => return each(entries, Kind::Text(Text::Any)),
            (Kind::Config, Node::Map(entries)) => return each(entries, kind),
            (Kind::Object(_) | Kind::OneOf(_), _) => match kind.object(node) {
                Some(object) => return self.check_object(node, object),
                None if node.get(TYPE).is_none() => return Err(self.missing(TYPE)),
                None => alternatives(&kind.texts()),
            },
            (Kind::Text(_) | Kind::Choice(_) | Kind::Constant(_) | Kind::True, _) => "text".to_owned(),
            (Kind::Number | Kind::Range(..), _) => "a whole number".to_owned(),
            (Kind::List(_) | Kind::Command, _) => "a list".to_owned(),
            (Kind::Map(_) | Kind::Named(_) | Kind::Tags, _) => "a map".to_owned(),
            (Kind::Config, _) => "text, a list or a map".to_owned(),
        };
        Err(StateError::Invalid { path: self.path(), expected })
    }

    fn check_object(&self, node: &Node, object: &'static Object) -> Result<(), StateError> {
        if let Some(first) = object.any_of.first()
            && object.any_of.iter().all(|name| node.get(name).is_none())
        {
            return Err(self.missing(first));
        }
        object.fields.iter().try_for_each(|field| match node.get(field.name) {
            Some(node) => Way { above: Some(self), key: field.name }.check(node, field.kind),
            None if field.presence != Presence::Optional => Err(self.missing(field.name)),
            None => Ok(()),
        })
    }
}

// What follows reads trees that were checked.

/// The config item of its tree. A number becomes a text.
#[must_use]
pub fn config_from_node(node: &Node) -> ConfigItem {
    match node {
        Node::Text(text) => ConfigItem::Text(text.clone()),
        Node::Number(number) => ConfigItem::Text(number.to_string()),
        Node::List(items) => ConfigItem::List(items.iter().map(config_from_node).collect()),
        Node::Map(entries) => {
            ConfigItem::Map(entries.iter().map(|(key, node)| (key.to_owned(), config_from_node(node))).collect())
        }
    }
}

fn workload(node: &Node) -> Result<Workload, StateError> {
    let read = Workload::deserialize(node);
    read.map_err(|error| StateError::Invalid { path: "workload".to_owned(), expected: error.to_string() })
}

/// Reads one workload from its tree.
///
/// # Errors
/// [`StateError`] naming the field below `path` that is missing or has a value it cannot have.
pub fn workload_from_node(node: &Node, path: &str) -> Result<Workload, StateError> {
    Way { above: None, key: path }.check_object(node, &WORKLOAD)?;
    workload(node)
}

/// Reads a desired state from its tree; each part may be missing.
///
/// # Errors
/// [`StateError`] naming the field that is missing or has a value it cannot have.
pub fn desired_state_from_node(node: &Node) -> Result<DesiredState, StateError> {
    let root = Way { above: None, key: "desiredState" };
    for field in STATE.fields {
        let way = Way { above: Some(&root), key: field.name };
        node.get(field.name).map_or(Ok(()), |node| way.check(node, field.kind))?;
    }
    let workloads = node.entries("workloads").map(|(name, node)| Ok((name.into(), Arc::new(workload(node)?))));
    Ok(DesiredState {
        api_version: node.get("apiVersion").and_then(Node::as_text).unwrap_or_default().to_owned(),
        workloads: workloads.collect::<Result<_, _>>()?,
        configs: node.entries("configs").map(|(key, node)| (key.to_owned(), config_from_node(node))).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::manifest::tests::workload_with_everything;

    #[test]
    fn a_desired_state_survives_the_way_through_the_tree() {
        let mut state = DesiredState::default();
        state.workloads.insert("full".into(), Arc::new(workload_with_everything()));
        state.workloads.insert("bare".into(), Arc::new(Workload::new("", "podman", "x")));
        let nested = ConfigItem::Map([("k".to_owned(), ConfigItem::List(vec![ConfigItem::Text("v".into())]))].into());
        state.configs.insert("c".into(), nested);
        for rendering in [Rendering::Sparse, Rendering::Full] {
            assert_eq!(desired_state_from_node(&state.node(rendering)), Ok(state.clone()), "{rendering:?}");
        }
    }

    #[test]
    fn empty_containers_are_rendered_only_in_full() {
        let bare = Workload::new("a", "r", "c");
        let keys = |node: Node| node.as_map().unwrap().keys().collect::<Vec<_>>().join(",");
        assert_eq!(keys(workload_node(&bare, Rendering::Sparse)), "agent,restartPolicy,runtime,runtimeConfig");
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
            ("tags", Some(Node::text("x")), "w.tags: invalid value, expected a map"),
            ("files", Some(Node::List(vec![Node::empty()])), "missing field `data`"),
            ("runtimeConfig", Some(Node::Number(1)), "w.runtimeConfig: invalid value, expected text"),
        ] {
            let mut node = good.clone();
            let map = node.as_map_mut().unwrap();
            map.remove(field);
            map.extend(value.map(|value| (field.to_owned(), value)));
            assert_eq!(workload_from_node(&node, "w").unwrap_err().to_string(), message, "{field}");
        }
    }

    // [utest->swdd~api-state-map-for-workload-execution-states~1]
    #[test]
    fn a_lost_agent_makes_its_states_unknown_and_an_initial_state_overwrites_nothing() {
        let mut states = WorkloadStates::default();
        let (mine, other) = (InstanceName::new("w", "c", "A"), InstanceName::new("w", "c", "A2"));
        let running = ExecutionState::with_info(Phase::Running, "info");
        assert!(states.set_initial(&mine, running.clone()));
        assert!(!states.set_initial(&mine, ExecutionState::plain(Phase::PendingInitial)));
        assert_eq!(states.get(&mine), Some(&running));
        states.set(&other, running.clone());
        assert_eq!(states.set_agent_disconnected("A"), [(mine.clone(), running.clone())]);
        assert_eq!(states.get(&mine), Some(&ExecutionState::plain(Phase::AgentDisconnected)));
        assert_eq!(states.get(&other), Some(&running));
        assert!(states.set_agent_disconnected("nobody").is_empty());
    }

    // [utest->swdd~api-state-map-for-workload-execution-states~1]
    #[test]
    fn states_are_found_by_agent_and_its_workload() {
        let mut states = WorkloadStates::default();
        let running = ExecutionState::plain(Phase::Running);
        for (workload, agent) in [("w", "A"), ("v", "A"), ("w", "A2"), ("w", ""), ("x", "B")] {
            states.set(&InstanceName::new(workload, "c", agent), running.clone());
        }
        let workloads: Vec<String> = states.of_agent("A").map(|(name, _)| name.workload.to_string()).collect();
        assert_eq!(workloads, ["v", "w"]);
        let mine: Vec<String> = states.of_agent_workload("A", "w").map(|(name, _)| name.to_string()).collect();
        assert_eq!(mine, [InstanceName::new("w", "c", "A").to_string()]);
        states.set(&InstanceName::new("x", "c", "B"), ExecutionState::plain(Phase::Removed));
        assert_eq!(states.len(), 4);
        assert_eq!(states.of_agent("B").count(), 0);
        assert!(states.node().at(&["A2", "w"]).is_some());
    }
}
