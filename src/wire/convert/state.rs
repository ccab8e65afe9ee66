//! The complete state as a field tree. Presence is kept: what a message leaves out is not in the tree, what it
//! sends empty is there and empty. `read` makes the tree of a message, `write` the message of a tree that may be partial;
//! what the schema has no place for is left out. Parts on request are only in what the server sends, see `read_sent`.
//!
//! Thread: whichever reads or writes the stream.

use super::values::{known, read_phase, write_phase};
use super::{ConvertError, write_map};
use super::{modes, timings, updates, usage};
use crate::model::access_rules::Operation;
use crate::model::complete_state::{Rendering, workload_from_node, workload_node};
use crate::model::execution_state::Phase;
use crate::model::node::Node;
use crate::model::workload::{AddCondition, RestartPolicy, Workload};
use crate::wire::schema::ank_base as base;
use base::access_rights_rule::AccessRightsRuleEnum;
use base::config_item::ConfigItemEnum;
use base::file::FileContent;
use protobuf::MessageField;
use std::collections::HashMap;

/// The tree of a complete state.
///
/// # Errors
/// An enumeration number without meaning, or a choice that is left open, anywhere in the state.
// [impl->swdd~api-conversions-between-ank-base-and-spec~1]
pub fn read(state: &base::CompleteState) -> Result<Node, ConvertError> {
    let mut entries = Vec::new();
    if let Some(desired) = state.desiredState.as_ref() {
        entries.push(("desiredState", read_state(desired)?));
    }
    if let Some(states) = state.workloadStates.as_ref() {
        entries.push(("workloadStates", read_workload_states(states)?));
    }
    if let Some(agents) = state.agents.as_ref() {
        let agents = agents.agents.iter().map(|(name, agent)| (name.clone(), read_agent(agent)));
        entries.push(("agents", Node::map(agents)));
    }
    if let Some(effective) = state.effectiveState.as_ref() {
        entries.push(("effectiveState", read_state(effective)?));
    }
    Ok(Node::map(entries))
}

/// The tree of a complete state that the server sent, with the parts that it sends on request. In a new state that a
/// client sends they are unknown.
///
/// # Errors
/// As [`read`].
pub fn read_sent(state: &base::CompleteState) -> Result<Node, ConvertError> {
    let mut tree = read(state)?;
    let updates = state.updates.as_ref().map(|updates| updates::read(updates, read_state)).transpose()?;
    let on_request = [
        ("modes", state.modes.as_ref().map(modes::read)),
        ("timings", state.timings.as_ref().map(timings::read)),
        ("updates", updates),
        ("usage", state.usage.as_ref().map(usage::read)),
    ];
    if let Node::Map(entries) = &mut tree {
        entries.extend(on_request.into_iter().filter_map(|(name, part)| Some((name.to_owned(), part?))));
    }
    Ok(tree)
}

/// The message of a complete state.
// [impl->swdd~api-conversions-between-ank-base-and-spec~1]
#[must_use]
pub fn write(tree: &Node) -> base::CompleteState {
    let part = |key: &str| tree.get(key);
    let agents = |agents: &Node| base::AgentMap { agents: write_map(agents, write_agent), ..Default::default() };
    base::CompleteState {
        desiredState: part("desiredState").map(write_state).into(),
        workloadStates: part("workloadStates").map(write_workload_states).into(),
        agents: part("agents").map(agents).into(),
        effectiveState: part("effectiveState").map(write_state).into(),
        modes: part("modes").map(modes::write).into(),
        timings: part("timings").map(timings::write).into(),
        usage: part("usage").map(usage::write).into(),
        updates: part("updates").map(|tree| updates::write(tree, write_state)).into(),
        ..Default::default()
    }
}

// ------------------------------------------------------- maps, lists, texts

fn read_map<T>(
    entries: &HashMap<String, T>,
    tree: impl Fn(&T) -> Result<Node, ConvertError>,
) -> Result<Node, ConvertError> {
    entries.iter().map(|(key, value)| Ok((key.clone(), tree(value)?))).collect::<Result<_, _>>().map(Node::Map)
}

fn read_texts(entries: &HashMap<String, String>) -> Node {
    Node::map(entries.iter().map(|(key, text)| (key.clone(), Node::text(text))))
}

fn write_text(node: &Node) -> String {
    node.as_text().unwrap_or_default().to_owned()
}

fn read_list<T>(items: &[T], tree: impl Fn(&T) -> Result<Node, ConvertError>) -> Result<Node, ConvertError> {
    items.iter().map(tree).collect::<Result<_, _>>().map(Node::List)
}

fn write_list<T>(node: Option<&Node>, item: impl Fn(&Node) -> Option<T>) -> Vec<T> {
    node.and_then(Node::as_list).unwrap_or_default().iter().filter_map(item).collect()
}

// ------------------------------------------------------------ desired state

fn read_state(state: &base::State) -> Result<Node, ConvertError> {
    let mut entries = vec![("apiVersion", Node::text(&state.apiVersion))];
    if let Some(workloads) = state.workloads.as_ref() {
        entries.push(("workloads", read_map(&workloads.workloads, read_workload_tree)?));
    }
    if let Some(configs) = state.configs.as_ref() {
        entries.push(("configs", read_map(&configs.configs, read_config)?));
    }
    Ok(Node::map(entries))
}

fn write_state(node: &Node) -> base::State {
    let workloads =
        |node: &Node| base::WorkloadMap { workloads: write_map(node, write_workload_tree), ..Default::default() };
    let configs = |node: &Node| base::ConfigMap { configs: write_map(node, write_config), ..Default::default() };
    base::State {
        apiVersion: node.get("apiVersion").map(write_text).unwrap_or_default(),
        workloads: node.get("workloads").map(workloads).into(),
        configs: node.get("configs").map(configs).into(),
        ..Default::default()
    }
}

fn read_config(item: &base::ConfigItem) -> Result<Node, ConvertError> {
    match &item.ConfigItemEnum {
        Some(ConfigItemEnum::String(text)) => Ok(Node::text(text)),
        Some(ConfigItemEnum::Array(array)) => read_list(&array.values, read_config),
        Some(ConfigItemEnum::Object(object)) => read_map(&object.fields, read_config),
        _ => Err(ConvertError::missing("config_item_enum")),
    }
}

fn write_config(node: &Node) -> base::ConfigItem {
    let item = match node {
        Node::Text(text) => ConfigItemEnum::String(text.clone()),
        Node::Number(number) => ConfigItemEnum::String(number.to_string()),
        Node::List(items) => ConfigItemEnum::Array(base::ConfigArray {
            values: items.iter().map(write_config).collect(),
            ..Default::default()
        }),
        Node::Map(_) => {
            ConfigItemEnum::Object(base::ConfigObject { fields: write_map(node, write_config), ..Default::default() })
        }
    };
    base::ConfigItem { ConfigItemEnum: Some(item), ..Default::default() }
}

// --------------------------------------------------------------- workloads

/// Reads a complete workload; the field names in errors are those of the schema.
pub fn read_workload(workload: &base::Workload) -> Result<Workload, ConvertError> {
    for (present, field) in [
        (workload.agent.is_some(), "agent"),
        (workload.runtime.is_some(), "runtime"),
        (workload.runtimeConfig.is_some(), "runtime_config"),
    ] {
        if !present {
            return Err(ConvertError::missing(field));
        }
    }
    workload_from_node(&read_workload_tree(workload)?, "workload").map_err(|error| ConvertError(error.to_string()))
}

/// The message of a complete workload, every part present.
pub fn write_workload(workload: &Workload) -> base::Workload {
    write_workload_tree(&workload_node(workload, Rendering::Full))
}

fn read_workload_tree(workload: &base::Workload) -> Result<Node, ConvertError> {
    let mut entries = Vec::new();
    for (key, text) in
        [("agent", &workload.agent), ("runtime", &workload.runtime), ("runtimeConfig", &workload.runtimeConfig)]
    {
        entries.extend(text.as_ref().map(|text| (key, Node::text(text))));
    }
    if let Some(policy) = workload.restartPolicy {
        entries.push(("restartPolicy", Node::text(RestartPolicy::from(known(policy)?).as_str())));
    }
    if let Some(dependencies) = workload.dependencies.as_ref() {
        let condition = |condition: &_| Ok(Node::text(AddCondition::from(known(*condition)?).as_str()));
        entries.push(("dependencies", read_map(&dependencies.dependencies, condition)?));
    }
    entries.extend(workload.tags.as_ref().map(|tags| ("tags", read_texts(&tags.tags))));
    entries.extend(workload.configs.as_ref().map(|configs| ("configs", read_texts(&configs.configs))));
    if let Some(files) = workload.files.as_ref() {
        entries.push(("files", read_list(&files.files, read_file)?));
    }
    if let Some(access) = workload.controlInterfaceAccess.as_ref() {
        let allow = ("allowRules", read_list(&access.allowRules, read_rule)?);
        let deny = ("denyRules", read_list(&access.denyRules, read_rule)?);
        entries.push(("controlInterfaceAccess", Node::map([allow, deny])));
    }
    Ok(Node::map(entries))
}

fn write_workload_tree(node: &Node) -> base::Workload {
    let text = |key: &str| node.get(key).and_then(Node::as_text);
    let condition = |node: &Node| {
        let condition = node.as_text().and_then(AddCondition::parse).unwrap_or(AddCondition::Running);
        base::AddCondition::from(condition).into()
    };
    let dependencies =
        |node: &Node| base::Dependencies { dependencies: write_map(node, condition), ..Default::default() };
    let access = |node: &Node| base::ControlInterfaceAccess {
        allowRules: write_list(node.get("allowRules"), write_rule),
        denyRules: write_list(node.get("denyRules"), write_rule),
        ..Default::default()
    };
    let configs = |node: &Node| base::ConfigMappings { configs: write_map(node, write_text), ..Default::default() };
    let files = |node: &Node| base::Files { files: write_list(Some(node), write_file), ..Default::default() };
    base::Workload {
        agent: text("agent").map(str::to_owned),
        restartPolicy: text("restartPolicy")
            .and_then(RestartPolicy::parse)
            .map(|policy| base::RestartPolicy::from(policy).into()),
        dependencies: node.get("dependencies").map(dependencies).into(),
        tags: write_tags(node),
        runtime: text("runtime").map(str::to_owned),
        runtimeConfig: text("runtimeConfig").map(str::to_owned),
        controlInterfaceAccess: node.get("controlInterfaceAccess").map(access).into(),
        configs: node.get("configs").map(configs).into(),
        files: node.get("files").map(files).into(),
        ..Default::default()
    }
}

fn write_tags(node: &Node) -> MessageField<base::Tags> {
    node.get("tags").map(|tags| base::Tags { tags: write_map(tags, write_text), ..Default::default() }).into()
}

fn read_file(file: &base::File) -> Result<Node, ConvertError> {
    let content = match &file.FileContent {
        Some(FileContent::Data(data)) => ("data", Node::text(data)),
        Some(FileContent::BinaryData(data)) => ("binaryData", Node::text(data)),
        _ => return Err(ConvertError::missing("file_content")),
    };
    Ok(Node::map([("mountPoint", Node::text(&file.mountPoint)), content]))
}

fn write_file(node: &Node) -> Option<base::File> {
    let data = node.get("data").map(|data| FileContent::Data(write_text(data)));
    let content = data.or_else(|| node.get("binaryData").map(|data| FileContent::BinaryData(write_text(data))))?;
    let mount_point = node.get("mountPoint")?.as_text()?.to_owned();
    Some(base::File { mountPoint: mount_point, FileContent: Some(content), ..Default::default() })
}

fn read_rule(rule: &base::AccessRightsRule) -> Result<Node, ConvertError> {
    let texts = |texts: &[String]| Node::List(texts.iter().map(Node::text).collect());
    Ok(match &rule.AccessRightsRuleEnum {
        Some(AccessRightsRuleEnum::StateRule(rule)) => Node::map([
            ("type", Node::text("StateRule")),
            ("operation", Node::text(Operation::from(known(rule.operation)?).as_str())),
            ("filterMasks", texts(&rule.filterMasks)),
        ]),
        Some(AccessRightsRuleEnum::LogRule(rule)) => {
            Node::map([("type", Node::text("LogRule")), ("workloadNames", texts(&rule.workloadNames))])
        }
        _ => return Err(ConvertError::missing("access_rights_rule_enum")),
    })
}

fn write_rule(node: &Node) -> Option<base::AccessRightsRule> {
    let texts = |key: &str| write_list(node.get(key), |item| item.as_text().map(str::to_owned));
    let rule = match node.get("type")?.as_text()? {
        "StateRule" => AccessRightsRuleEnum::StateRule(base::StateRule {
            operation: base::ReadWriteEnum::from(Operation::parse(node.get("operation")?.as_text()?)?).into(),
            filterMasks: texts("filterMasks"),
            ..Default::default()
        }),
        "LogRule" => {
            AccessRightsRuleEnum::LogRule(base::LogRule { workloadNames: texts("workloadNames"), ..Default::default() })
        }
        _ => return None,
    };
    Some(base::AccessRightsRule { AccessRightsRuleEnum: Some(rule), ..Default::default() })
}

// -------------------------------------------------------- states and agents

fn read_workload_states(states: &base::WorkloadStatesMap) -> Result<Node, ConvertError> {
    read_map(&states.agentStateMap, |workloads| {
        read_map(&workloads.wlNameStateMap, |ids| read_map(&ids.idStateMap, read_execution_state))
    })
}

fn write_workload_states(node: &Node) -> base::WorkloadStatesMap {
    let ids = |node: &Node| base::ExecutionsStatesForId {
        idStateMap: write_map(node, write_execution_state),
        ..Default::default()
    };
    let workloads =
        |node: &Node| base::ExecutionsStatesOfWorkload { wlNameStateMap: write_map(node, ids), ..Default::default() };
    base::WorkloadStatesMap { agentStateMap: write_map(node, workloads), ..Default::default() }
}

fn read_execution_state(state: &base::ExecutionState) -> Result<Node, ConvertError> {
    let mut entries = Vec::new();
    entries.extend(state.additionalInfo.as_ref().map(|info| ("additionalInfo", Node::text(info))));
    if let Some(state) = &state.ExecutionStateEnum {
        let phase = read_phase(state)?;
        entries.push(("state", Node::text(phase.state())));
        entries.push(("subState", Node::text(phase.sub_state())));
    }
    Ok(Node::map(entries))
}

fn write_execution_state(node: &Node) -> base::ExecutionState {
    let names = node.get("state").and_then(Node::as_text).zip(node.get("subState").and_then(Node::as_text));
    base::ExecutionState {
        additionalInfo: node.get("additionalInfo").map(write_text),
        ExecutionStateEnum: names.and_then(|(state, sub)| Phase::parse(state, sub)).map(write_phase),
        ..Default::default()
    }
}

fn read_agent(agent: &base::AgentAttributes) -> Node {
    let mut entries = Vec::new();
    if let Some(status) = agent.status.as_ref() {
        let cpu = status.cpu_usage.as_ref().map(|cpu| ("cpuUsage", Node::Number(cpu.cpu_usage.into())));
        let memory = status.free_memory.as_ref().map(|memory| ("freeMemory", Node::Number(memory.free_memory)));
        entries.push(("status", Node::map(cpu.into_iter().chain(memory))));
    }
    entries.extend(agent.tags.as_ref().map(|tags| ("tags", read_texts(&tags.tags))));
    Node::map(entries)
}

fn write_agent(node: &Node) -> base::AgentAttributes {
    let cpu =
        |percent: u64| base::CpuUsage { cpu_usage: u32::try_from(percent).unwrap_or(u32::MAX), ..Default::default() };
    let memory = |bytes: u64| base::FreeMemory { free_memory: bytes, ..Default::default() };
    let status = |node: &Node| base::AgentStatus {
        cpu_usage: node.get("cpuUsage").and_then(Node::as_number).map(cpu).into(),
        free_memory: node.get("freeMemory").and_then(Node::as_number).map(memory).into(),
        ..Default::default()
    };
    base::AgentAttributes {
        status: node.get("status").map(status).into(),
        tags: write_tags(node),
        ..Default::default()
    }
}
