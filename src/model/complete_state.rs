//! The complete state: what is desired, what runs, who is there. To and from the field tree.
//!
//! Thread: none, plain values.

use super::access_rules::{AccessRule, ControlInterfaceAccess, Operation};
use super::execution_state::{ExecutionState, Phase, WorkloadState};
use super::names::{InstanceName, Name};
use super::node::Node;
use super::workload::{AddCondition, ConfigItem, File, FileContent, RestartPolicy, Workload};
use crate::limits::AGENT_TAG_ENTRY;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// The version of manifests and states that is current.
pub const API_VERSION: &str = "v1";
/// The version that is still read.
pub const API_VERSION_DEPRECATED: &str = "v0.1";

/// What users asked for, or what agents are told.
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

/// Whether empty maps and lists are part of a tree (spec/server.md section 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rendering {
    /// Left out: for masked reads, events and new states of updates (T1).
    Sparse,
    /// Present: for unmasked reads and as the base of an update (T2).
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

fn instance((agent, workload, id): &(Name, Name, Name)) -> InstanceName {
    InstanceName { workload: workload.clone(), id: id.clone(), agent: agent.clone() }
}

impl WorkloadStates {
    /// The state of `instance`.
    #[must_use]
    pub fn get(&self, instance: &InstanceName) -> Option<&ExecutionState> {
        self.entries.get(&key(instance))
    }

    /// Stores a state; `Removed` deletes the entry. Answers the state that was there before.
    pub fn set(&mut self, instance: &InstanceName, state: ExecutionState) -> Option<ExecutionState> {
        if state.phase == Phase::Removed {
            self.entries.remove(&key(instance))
        } else {
            self.entries.insert(key(instance), state)
        }
    }

    /// Stores `state` unless the instance has a state already. Answers whether it was stored.
    pub fn set_initial(&mut self, instance: &InstanceName, state: ExecutionState) -> bool {
        let mut stored = false;
        self.entries.entry(key(instance)).or_insert_with(|| {
            stored = true;
            state
        });
        stored
    }

    /// Nobody knows any more what the instances of `agent` do. Answers them with the states they had.
    pub fn set_agent_disconnected(&mut self, agent: &str) -> Vec<(InstanceName, ExecutionState)> {
        let agent: Name = agent.into();
        let empty: Name = "".into();
        self.entries
            .range_mut((agent.clone(), empty.clone(), empty)..)
            .take_while(|(key, _)| key.0 == agent)
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
    pub fn of_agent<'a>(&'a self, agent: &str) -> impl Iterator<Item = (InstanceName, &'a ExecutionState)> {
        let agent: Name = agent.into();
        let empty: Name = "".into();
        self.entries
            .range((agent.clone(), empty.clone(), empty)..)
            .take_while(move |(key, _)| key.0 == agent)
            .map(|(key, state)| (instance(key), state))
    }

    /// The entries of `workload` on `agent`, sorted by id.
    pub fn of_agent_workload<'a>(
        &'a self,
        agent: &str,
        workload: &str,
    ) -> impl Iterator<Item = (InstanceName, &'a ExecutionState)> {
        let (agent, workload): (Name, Name) = (agent.into(), workload.into());
        self.entries
            .range((agent.clone(), workload.clone(), "".into())..)
            .take_while(move |(key, _)| key.0 == agent && key.1 == workload)
            .map(|(key, state)| (instance(key), state))
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
    let mut entries = vec![
        ("agent", Node::text(&*workload.agent)),
        ("restartPolicy", Node::text(workload.restart_policy.as_str())),
        ("runtime", Node::text(&*workload.runtime)),
        ("runtimeConfig", Node::text(&*workload.runtime_config)),
    ];
    let dependencies = workload.dependencies.iter().map(|(name, condition)| (name, Node::text(condition.as_str())));
    let rules = &workload.control_interface_access;
    let access = [("allowRules", &rules.allow_rules), ("denyRules", &rules.deny_rules)]
        .map(|(name, rules)| (name, Node::List(rules.iter().map(rule_node).collect())));
    let keep = |node: &Node| rendering == Rendering::Full || !node.is_empty_container();
    let containers = [
        ("dependencies", Node::map(dependencies)),
        ("tags", texts(&workload.tags)),
        ("configs", texts(&workload.configs)),
        ("files", Node::List(workload.files.iter().map(file_node).collect())),
        ("controlInterfaceAccess", Node::map(access.into_iter().filter(|(_, node)| keep(node)))),
    ];
    entries.extend(containers.into_iter().filter(|(_, node)| keep(node)));
    Node::map(entries)
}

fn file_node(file: &File) -> Node {
    let content = match &file.content {
        FileContent::Data(data) => ("data", Node::text(data)),
        FileContent::BinaryData(data) => ("binaryData", Node::text(data)),
    };
    Node::map([("mountPoint", Node::text(&file.mount_point)), content])
}

fn rule_node(rule: &AccessRule) -> Node {
    let list = |texts: &[String]| Node::List(texts.iter().map(Node::text).collect());
    match rule {
        AccessRule::State { operation, filter_masks } => Node::map([
            ("type", Node::text("StateRule")),
            ("operation", Node::text(operation.as_str())),
            ("filterMasks", list(filter_masks)),
        ]),
        AccessRule::Log { workload_names } => {
            Node::map([("type", Node::text("LogRule")), ("workloadNames", list(workload_names))])
        }
    }
}

/// The tree of a config value.
#[must_use]
pub fn config_node(item: &ConfigItem) -> Node {
    match item {
        ConfigItem::Text(text) => Node::text(text),
        ConfigItem::List(items) => Node::List(items.iter().map(config_node).collect()),
        ConfigItem::Map(items) => Node::map(items.iter().map(|(key, item)| (key, config_node(item)))),
    }
}

/// The tree of the state of one instance.
#[must_use]
pub fn execution_state_node(state: &ExecutionState) -> Node {
    Node::map([
        ("state", Node::text(state.phase.state())),
        ("subState", Node::text(state.phase.sub_state())),
        ("additionalInfo", Node::text(&*state.additional_info)),
    ])
}

/// The tree of one agent.
#[must_use]
pub fn agent_node(agent: &AgentAttributes, rendering: Rendering) -> Node {
    let mut entries = Vec::new();
    if let Some((cpu, memory)) = agent.load {
        let status = [("cpuUsage", Node::Number(cpu.into())), ("freeMemory", Node::Number(memory))];
        entries.push(("status", Node::map(status)));
    }
    if rendering == Rendering::Full || !agent.tags.is_empty() {
        entries.push(("tags", texts(&agent.tags)));
    }
    Node::map(entries)
}

impl DesiredState {
    /// The tree of this state, with `configs` as asked for.
    #[must_use]
    pub fn node(&self, rendering: Rendering) -> Node {
        let workloads = self.workloads.iter().map(|(name, workload)| (&**name, workload_node(workload, rendering)));
        let configs = Node::map(self.configs.iter().map(|(key, item)| (key, config_node(item))));
        let mut entries = vec![("apiVersion", Node::text(&self.api_version)), ("workloads", Node::map(workloads))];
        if rendering == Rendering::Full || !self.configs.is_empty() {
            entries.push(("configs", configs));
        }
        Node::map(entries)
    }
}

impl WorkloadStates {
    /// The tree `<agent>.<workload>.<id>.{state,subState,additionalInfo}`.
    #[must_use]
    pub fn node(&self) -> Node {
        let mut tree = Node::empty();
        for ((agent, workload, id), state) in &self.entries {
            let mut place = &mut tree;
            for part in [agent, workload, id] {
                let Node::Map(entries) = place else { unreachable!("only maps are created here") };
                place = entries.entry(part.to_string()).or_default();
            }
            *place = execution_state_node(state);
        }
        tree
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
        expected: &'static str,
    },
}

/// Reads nodes and knows where it is, so that errors can say it.
struct At<'a> {
    node: &'a Node,
    way: Rc<Way<'a>>,
}

/// The keys that lead to a node. They become a text only for an error: there may be many nodes below a long key.
struct Way<'a> {
    above: Option<Rc<Way<'a>>>,
    key: Cow<'a, str>,
}

impl Way<'_> {
    fn path(&self) -> String {
        match self.above.as_ref().map(|above| above.path()) {
            Some(above) if !above.is_empty() => format!("{above}.{}", self.key),
            _ => self.key.clone().into_owned(),
        }
    }
}

impl<'a> At<'a> {
    fn root(node: &'a Node, path: &'a str) -> Self {
        Self { node, way: Rc::new(Way { above: None, key: path.into() }) }
    }

    fn invalid<T>(&self, expected: &'static str) -> Result<T, StateError> {
        Err(StateError::Invalid { path: self.way.path(), expected })
    }

    fn missing(&self, field: &'static str) -> StateError {
        StateError::Missing { path: self.way.path(), field }
    }

    fn child(&self, key: impl Into<Cow<'a, str>>, node: &'a Node) -> At<'a> {
        At { node, way: Rc::new(Way { above: Some(self.way.clone()), key: key.into() }) }
    }

    fn optional(&self, field: &'static str) -> Option<At<'a>> {
        self.node.get(field).map(|node| self.child(field, node))
    }

    fn required(&self, field: &'static str) -> Result<At<'a>, StateError> {
        self.optional(field).ok_or_else(|| self.missing(field))
    }

    fn text(&self) -> Result<&'a str, StateError> {
        self.node.as_text().map_or_else(|| self.invalid("text"), Ok)
    }

    fn entries(&self) -> Result<impl Iterator<Item = (&'a String, At<'a>)>, StateError> {
        match self.node.as_map() {
            Some(map) => Ok(map.iter().map(|(key, node)| (key, self.child(key.as_str(), node)))),
            None => self.invalid("a map"),
        }
    }

    fn items(&self) -> Result<impl Iterator<Item = At<'a>>, StateError> {
        match self.node.as_list() {
            Some(list) => Ok(list.iter().enumerate().map(|(index, node)| self.child(index.to_string(), node))),
            None => self.invalid("a list"),
        }
    }

    fn texts(&self) -> Result<BTreeMap<String, String>, StateError> {
        self.entries()?.map(|(key, value)| Ok((key.clone(), value.text()?.to_owned()))).collect()
    }

    fn text_list(&self) -> Result<Vec<String>, StateError> {
        self.items()?.map(|item| Ok(item.text()?.to_owned())).collect()
    }

    fn config(&self) -> Result<ConfigItem, StateError> {
        Ok(match self.node {
            Node::Text(text) => ConfigItem::Text(text.clone()),
            Node::List(_) => ConfigItem::List(self.items()?.map(|item| item.config()).collect::<Result<_, _>>()?),
            Node::Map(_) => {
                ConfigItem::Map(self.entries()?.map(|(key, item)| Ok((key.clone(), item.config()?))).collect::<Result<
                    _,
                    StateError,
                >>(
                )?)
            }
            Node::Number(_) => return self.invalid("text, a list or a map"),
        })
    }

    fn rule(&self) -> Result<AccessRule, StateError> {
        let kind = self.required("type")?;
        match kind.text()? {
            "StateRule" => {
                let operation = self.required("operation")?;
                Ok(AccessRule::State {
                    operation: Operation::parse(operation.text()?)
                        .map_or_else(|| operation.invalid("Nothing, Read, Write or ReadWrite"), Ok)?,
                    filter_masks: self.required("filterMasks")?.text_list()?,
                })
            }
            "LogRule" => Ok(AccessRule::Log { workload_names: self.required("workloadNames")?.text_list()? }),
            _ => kind.invalid("StateRule or LogRule"),
        }
    }

    fn rules(&self, field: &'static str) -> Result<Vec<AccessRule>, StateError> {
        self.optional(field).map_or(Ok(Vec::new()), |rules| rules.items()?.map(|rule| rule.rule()).collect())
    }

    fn file(&self) -> Result<File, StateError> {
        let content = match (self.optional("data"), self.optional("binaryData")) {
            (Some(data), _) => FileContent::Data(data.text()?.to_owned()),
            (None, Some(data)) => FileContent::BinaryData(data.text()?.to_owned()),
            (None, None) => return Err(self.missing("data")),
        };
        Ok(File { mount_point: self.required("mountPoint")?.text()?.to_owned(), content })
    }

    fn workload(&self) -> Result<Workload, StateError> {
        let required = |field| self.required(field)?.text();
        let texts = |field| self.optional(field).map_or(Ok(BTreeMap::new()), |map| map.texts());
        let mut workload = Workload::new(required("agent")?, required("runtime")?, required("runtimeConfig")?);
        if let Some(policy) = self.optional("restartPolicy") {
            workload.restart_policy = RestartPolicy::parse(policy.text()?)
                .map_or_else(|| policy.invalid("NEVER, ON_FAILURE or ALWAYS"), Ok)?;
        }
        if let Some(dependencies) = self.optional("dependencies") {
            for (name, condition) in dependencies.entries()? {
                let parsed = AddCondition::parse(condition.text()?)
                    .map_or_else(|| condition.invalid("ADD_COND_RUNNING, ADD_COND_SUCCEEDED or ADD_COND_FAILED"), Ok)?;
                workload.dependencies.insert(name.clone(), parsed);
            }
        }
        workload.tags = texts("tags")?;
        workload.configs = texts("configs")?;
        if let Some(files) = self.optional("files") {
            workload.files = files.items()?.map(|file| file.file()).collect::<Result<_, _>>()?;
        }
        if let Some(access) = self.optional("controlInterfaceAccess") {
            workload.control_interface_access = ControlInterfaceAccess {
                allow_rules: access.rules("allowRules")?,
                deny_rules: access.rules("denyRules")?,
            };
        }
        Ok(workload)
    }
}

/// Reads one workload from its tree.
///
/// # Errors
/// [`StateError`] naming the field below `path` that is missing or has a value it cannot have.
pub fn workload_from_node(node: &Node, path: &str) -> Result<Workload, StateError> {
    At::root(node, path).workload()
}

/// Reads a desired state from its tree.
///
/// # Errors
/// [`StateError`] naming the field that is missing or has a value it cannot have.
pub fn desired_state_from_node(node: &Node) -> Result<DesiredState, StateError> {
    let root = At::root(node, "desiredState");
    let mut state = DesiredState {
        api_version: root.optional("apiVersion").map_or(Ok(""), |version| version.text())?.to_owned(),
        ..DesiredState::default()
    };
    if let Some(workloads) = root.optional("workloads") {
        for (name, workload) in workloads.entries()? {
            state.workloads.insert(name.as_str().into(), Arc::new(workload.workload()?));
        }
    }
    if let Some(configs) = root.optional("configs") {
        for (key, item) in configs.entries()? {
            state.configs.insert(key.clone(), item.config()?);
        }
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full_workload() -> Workload {
        let mut workload = Workload::new("agent_A", "podman", " image: x\n");
        workload.restart_policy = RestartPolicy::Always;
        workload.dependencies.insert("db".into(), AddCondition::Succeeded);
        workload.tags.insert("owner".into(), "me".into());
        workload.configs.insert("alias".into(), "key".into());
        workload.files = vec![
            File { mount_point: "/a".into(), content: FileContent::Data("text".into()) },
            File { mount_point: "/b".into(), content: FileContent::BinaryData("aGk=".into()) },
        ];
        workload.control_interface_access.allow_rules = vec![
            AccessRule::State { operation: Operation::ReadWrite, filter_masks: vec!["a.*".into()] },
            AccessRule::Log { workload_names: vec!["web*".into()] },
        ];
        workload
    }

    #[test]
    fn a_desired_state_survives_the_way_through_the_tree() {
        let mut state = DesiredState::default();
        state.workloads.insert("full".into(), Arc::new(full_workload()));
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
        let keys = |node: Node| node.as_map().unwrap().keys().cloned().collect::<Vec<_>>().join(",");
        assert_eq!(keys(workload_node(&bare, Rendering::Sparse)), "agent,restartPolicy,runtime,runtimeConfig");
        assert_eq!(
            keys(workload_node(&bare, Rendering::Full)),
            "agent,configs,controlInterfaceAccess,dependencies,files,restartPolicy,runtime,runtimeConfig,tags"
        );
    }

    #[test]
    fn a_wrong_tree_is_refused_with_the_place() {
        let good = workload_node(&full_workload(), Rendering::Sparse);
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
