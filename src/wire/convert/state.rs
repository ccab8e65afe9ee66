//! The complete state as a field tree. Presence is kept: what a message leaves out is not in the tree, what it
//! sends empty is there and empty.
//!
//! Thread: whichever reads or writes the stream.

use super::ConvertError;
use super::workload::{
    access_rule, add_condition, add_condition_text, file_to_wire, known, operation_text, phase, read_phase,
    restart_policy, restart_policy_text,
};
use crate::model::access_rules::{AccessRule, Operation};
use crate::model::execution_state::Phase;
use crate::model::node::Node;
use crate::model::workload::{AddCondition, FileContent, RestartPolicy};
use crate::wire::schema::ank_base as base;
use protobuf::MessageField;
use std::collections::HashMap;

// -------------------------------------------------------------- to the tree

/// The tree of a complete state.
///
/// # Errors
/// An enumeration number without meaning, or a choice that is left open, anywhere in the state.
// [impl->swdd~api-conversions-between-ank-base-and-spec~1]
pub fn complete_state_tree(state: &base::CompleteState) -> Result<Node, ConvertError> {
    let mut entries = Vec::new();
    if let Some(desired) = state.desiredState.as_ref() {
        entries.push(("desiredState", state_tree(desired)?));
    }
    if let Some(states) = state.workloadStates.as_ref() {
        entries.push(("workloadStates", workload_states_tree(states)?));
    }
    if let Some(agents) = state.agents.as_ref() {
        let agents = agents.agents.iter().map(|(name, agent)| (name.clone(), agent_tree(agent)));
        entries.push(("agents", Node::map(agents)));
    }
    if let Some(effective) = state.effectiveState.as_ref() {
        entries.push(("effectiveState", state_tree(effective)?));
    }
    Ok(Node::map(entries))
}

fn state_tree(state: &base::State) -> Result<Node, ConvertError> {
    let mut entries = vec![("apiVersion", Node::text(&state.apiVersion))];
    if let Some(workloads) = state.workloads.as_ref() {
        entries.push(("workloads", try_map(&workloads.workloads, workload_tree)?));
    }
    if let Some(configs) = state.configs.as_ref() {
        entries.push(("configs", try_map(&configs.configs, config_tree)?));
    }
    Ok(Node::map(entries))
}

fn try_map<T>(
    entries: &HashMap<String, T>,
    tree: impl Fn(&T) -> Result<Node, ConvertError>,
) -> Result<Node, ConvertError> {
    entries.iter().map(|(key, value)| Ok((key.clone(), tree(value)?))).collect::<Result<_, _>>().map(Node::Map)
}

fn texts(entries: &HashMap<String, String>) -> Node {
    Node::map(entries.iter().map(|(key, text)| (key.clone(), Node::text(text))))
}

fn text_list(texts: &[String]) -> Node {
    Node::List(texts.iter().map(Node::text).collect())
}

pub(super) fn workload_tree(workload: &base::Workload) -> Result<Node, ConvertError> {
    let mut entries = Vec::new();
    for (key, text) in
        [("agent", &workload.agent), ("runtime", &workload.runtime), ("runtimeConfig", &workload.runtimeConfig)]
    {
        entries.extend(text.as_ref().map(|text| (key, Node::text(text))));
    }
    if let Some(policy) = workload.restartPolicy {
        entries.push(("restartPolicy", Node::text(restart_policy_text(known(policy)?))));
    }
    if let Some(dependencies) = workload.dependencies.as_ref() {
        let condition = |condition: &_| Ok(Node::text(add_condition_text(known(*condition)?)));
        entries.push(("dependencies", try_map(&dependencies.dependencies, condition)?));
    }
    entries.extend(workload.tags.as_ref().map(|tags| ("tags", texts(&tags.tags))));
    entries.extend(workload.configs.as_ref().map(|configs| ("configs", texts(&configs.configs))));
    if let Some(files) = workload.files.as_ref() {
        let files = files.files.iter().map(file_tree).collect::<Result<_, _>>()?;
        entries.push(("files", Node::List(files)));
    }
    if let Some(access) = workload.controlInterfaceAccess.as_ref() {
        let rules = |rules: &[base::AccessRightsRule]| rules.iter().map(rule_tree).collect::<Result<_, _>>();
        let allow = ("allowRules", Node::List(rules(&access.allowRules)?));
        let deny = ("denyRules", Node::List(rules(&access.denyRules)?));
        entries.push(("controlInterfaceAccess", Node::map([allow, deny])));
    }
    Ok(Node::map(entries))
}

fn file_tree(file: &base::File) -> Result<Node, ConvertError> {
    use base::file::FileContent as Wire;
    let content = match &file.FileContent {
        Some(Wire::Data(data)) => ("data", Node::text(data)),
        Some(Wire::BinaryData(data)) => ("binaryData", Node::text(data)),
        _ => return Err(ConvertError::missing("file_content")),
    };
    Ok(Node::map([("mountPoint", Node::text(&file.mountPoint)), content]))
}

fn rule_tree(rule: &base::AccessRightsRule) -> Result<Node, ConvertError> {
    use base::access_rights_rule::AccessRightsRuleEnum as Wire;
    Ok(match &rule.AccessRightsRuleEnum {
        Some(Wire::StateRule(rule)) => Node::map([
            ("type", Node::text("StateRule")),
            ("operation", Node::text(operation_text(known(rule.operation)?))),
            ("filterMasks", text_list(&rule.filterMasks)),
        ]),
        Some(Wire::LogRule(rule)) => {
            Node::map([("type", Node::text("LogRule")), ("workloadNames", text_list(&rule.workloadNames))])
        }
        _ => return Err(ConvertError::missing("access_rights_rule_enum")),
    })
}

fn config_tree(item: &base::ConfigItem) -> Result<Node, ConvertError> {
    use base::config_item::ConfigItemEnum as Wire;
    Ok(match &item.ConfigItemEnum {
        Some(Wire::String(text)) => Node::text(text),
        Some(Wire::Array(array)) => {
            Node::List(array.values.iter().map(config_tree).collect::<Result<_, ConvertError>>()?)
        }
        Some(Wire::Object(object)) => try_map(&object.fields, config_tree)?,
        _ => return Err(ConvertError::missing("config_item_enum")),
    })
}

fn workload_states_tree(states: &base::WorkloadStatesMap) -> Result<Node, ConvertError> {
    try_map(&states.agentStateMap, |workloads| {
        try_map(&workloads.wlNameStateMap, |ids| try_map(&ids.idStateMap, execution_state_tree))
    })
}

fn execution_state_tree(state: &base::ExecutionState) -> Result<Node, ConvertError> {
    let mut entries = Vec::new();
    entries.extend(state.additionalInfo.as_ref().map(|info| ("additionalInfo", Node::text(info))));
    if let Some(kind) = &state.ExecutionStateEnum {
        let phase = read_phase(kind)?;
        entries.push(("state", Node::text(phase.state())));
        entries.push(("subState", Node::text(phase.sub_state())));
    }
    Ok(Node::map(entries))
}

fn agent_tree(agent: &base::AgentAttributes) -> Node {
    let mut entries = Vec::new();
    if let Some(status) = agent.status.as_ref() {
        let cpu = status.cpu_usage.as_ref().map(|cpu| ("cpuUsage", Node::Number(cpu.cpu_usage.into())));
        let memory = status.free_memory.as_ref().map(|memory| ("freeMemory", Node::Number(memory.free_memory)));
        entries.push(("status", Node::map(cpu.into_iter().chain(memory))));
    }
    entries.extend(agent.tags.as_ref().map(|tags| ("tags", texts(&tags.tags))));
    Node::map(entries)
}

// ------------------------------------------------------------ from the tree

/// The message of a tree that may be partial. What the schema has no place for is left out.
// [impl->swdd~api-conversions-between-ank-base-and-spec~1]
#[must_use]
pub fn complete_state(tree: &Node) -> base::CompleteState {
    let part = |key: &str| tree.get(key);
    base::CompleteState {
        desiredState: part("desiredState").map(state).into(),
        workloadStates: part("workloadStates").map(workload_states).into(),
        agents: part("agents").map(|agents| base::AgentMap { agents: map(agents, agent), ..Default::default() }).into(),
        effectiveState: part("effectiveState").map(state).into(),
        ..Default::default()
    }
}

fn map<T>(node: &Node, value: impl Fn(&Node) -> T) -> HashMap<String, T> {
    node.as_map().into_iter().flatten().map(|(key, node)| (key.clone(), value(node))).collect()
}

fn text(node: &Node) -> String {
    node.as_text().unwrap_or_default().to_owned()
}

fn list<T>(node: Option<&Node>, item: impl Fn(&Node) -> Option<T>) -> Vec<T> {
    node.and_then(Node::as_list).unwrap_or_default().iter().filter_map(item).collect()
}

fn state(node: &Node) -> base::State {
    base::State {
        apiVersion: node.get("apiVersion").map(text).unwrap_or_default(),
        workloads: node
            .get("workloads")
            .map(|workloads| base::WorkloadMap { workloads: map(workloads, workload), ..Default::default() })
            .into(),
        configs: node
            .get("configs")
            .map(|configs| base::ConfigMap { configs: map(configs, config), ..Default::default() })
            .into(),
        ..Default::default()
    }
}

fn workload(node: &Node) -> base::Workload {
    let parsed = |key: &str| node.get(key).and_then(Node::as_text);
    let condition = |node: &Node| {
        add_condition(node.as_text().and_then(AddCondition::parse).unwrap_or(AddCondition::Running)).into()
    };
    base::Workload {
        agent: parsed("agent").map(str::to_owned),
        restartPolicy: parsed("restartPolicy")
            .and_then(RestartPolicy::parse)
            .map(|policy| restart_policy(policy).into()),
        dependencies: node
            .get("dependencies")
            .map(|entries| base::Dependencies { dependencies: map(entries, condition), ..Default::default() })
            .into(),
        tags: tags(node),
        runtime: parsed("runtime").map(str::to_owned),
        runtimeConfig: parsed("runtimeConfig").map(str::to_owned),
        controlInterfaceAccess: node
            .get("controlInterfaceAccess")
            .map(|access| base::ControlInterfaceAccess {
                allowRules: list(access.get("allowRules"), rule),
                denyRules: list(access.get("denyRules"), rule),
                ..Default::default()
            })
            .into(),
        configs: node
            .get("configs")
            .map(|entries| base::ConfigMappings { configs: map(entries, text), ..Default::default() })
            .into(),
        files: node
            .get("files")
            .map(|files| base::Files { files: list(Some(files), file), ..Default::default() })
            .into(),
        ..Default::default()
    }
}

fn tags(node: &Node) -> MessageField<base::Tags> {
    node.get("tags").map(|tags| base::Tags { tags: map(tags, text), ..Default::default() }).into()
}

fn file(node: &Node) -> Option<base::File> {
    let data = node.get("data").map(|data| FileContent::Data(text(data)));
    let content = data.or_else(|| node.get("binaryData").map(|data| FileContent::BinaryData(text(data))))?;
    Some(file_to_wire(node.get("mountPoint")?.as_text()?, &content))
}

fn rule(node: &Node) -> Option<base::AccessRightsRule> {
    let texts = |key: &str| list(node.get(key), |item| item.as_text().map(str::to_owned));
    let rule = match node.get("type")?.as_text()? {
        "StateRule" => AccessRule::State {
            operation: Operation::parse(node.get("operation")?.as_text()?)?,
            filter_masks: texts("filterMasks"),
        },
        "LogRule" => AccessRule::Log { workload_names: texts("workloadNames") },
        _ => return None,
    };
    Some(access_rule(&rule))
}

fn config(node: &Node) -> base::ConfigItem {
    use base::config_item::ConfigItemEnum as Wire;
    let item = match node {
        Node::Text(text) => Wire::String(text.clone()),
        Node::Number(number) => Wire::String(number.to_string()),
        Node::List(items) => {
            Wire::Array(base::ConfigArray { values: items.iter().map(config).collect(), ..Default::default() })
        }
        Node::Map(_) => Wire::Object(base::ConfigObject { fields: map(node, config), ..Default::default() }),
    };
    base::ConfigItem { ConfigItemEnum: Some(item), ..Default::default() }
}

fn workload_states(node: &Node) -> base::WorkloadStatesMap {
    let ids =
        |node: &Node| base::ExecutionsStatesForId { idStateMap: map(node, execution_state), ..Default::default() };
    let workloads =
        |node: &Node| base::ExecutionsStatesOfWorkload { wlNameStateMap: map(node, ids), ..Default::default() };
    base::WorkloadStatesMap { agentStateMap: map(node, workloads), ..Default::default() }
}

fn execution_state(node: &Node) -> base::ExecutionState {
    let names = node.get("state").and_then(Node::as_text).zip(node.get("subState").and_then(Node::as_text));
    base::ExecutionState {
        additionalInfo: node.get("additionalInfo").map(text),
        ExecutionStateEnum: names.and_then(|(state, sub)| Phase::parse(state, sub)).map(phase),
        ..Default::default()
    }
}

fn agent(node: &Node) -> base::AgentAttributes {
    let status = |node: &Node| base::AgentStatus {
        cpu_usage: node
            .get("cpuUsage")
            .and_then(Node::as_number)
            .map(|percent| base::CpuUsage {
                cpu_usage: u32::try_from(percent).unwrap_or(u32::MAX),
                ..Default::default()
            })
            .into(),
        free_memory: node
            .get("freeMemory")
            .and_then(Node::as_number)
            .map(|bytes| base::FreeMemory { free_memory: bytes, ..Default::default() })
            .into(),
        ..Default::default()
    };
    base::AgentAttributes { status: node.get("status").map(status).into(), tags: tags(node), ..Default::default() }
}
