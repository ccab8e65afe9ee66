//! The complete state as a field tree. Presence is kept: what a message leaves out is not in the tree, what it
//! sends empty is there and empty. Parts on request are only in what the server sends, see `read_sent`. What is written
//! stands in tree.rs.
//!
//! Thread: whichever reads or writes the stream.

use super::values::{known, read_phase};
use super::{ConvertError, modes, timings, usage};
use crate::model::access_rules::Operation;
use crate::model::complete_state::workload_from_node;
use crate::model::node::Node;
use crate::model::workload::{AddCondition, RestartPolicy, Workload};
use crate::wire::schema::ank_base as base;
use base::access_rights_rule::AccessRightsRuleEnum;
use base::config_item::ConfigItemEnum;
use base::file::FileContent;
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
    let on_request = [
        ("modes", state.modes.as_ref().map(modes::read)),
        ("timings", state.timings.as_ref().map(timings::read)),
        ("usage", state.usage.as_ref().map(usage::read)),
    ];
    if let Node::Map(entries) = &mut tree {
        entries.extend(on_request.into_iter().filter_map(|(name, part)| Some((name.to_owned(), part?))));
    }
    Ok(tree)
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

fn read_list<T>(items: &[T], tree: impl Fn(&T) -> Result<Node, ConvertError>) -> Result<Node, ConvertError> {
    items.iter().map(tree).collect::<Result<_, _>>().map(Node::List)
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

fn read_config(item: &base::ConfigItem) -> Result<Node, ConvertError> {
    match &item.ConfigItemEnum {
        Some(ConfigItemEnum::String(text)) => Ok(Node::text(text)),
        Some(ConfigItemEnum::Array(array)) => read_list(&array.values, read_config),
        Some(ConfigItemEnum::Object(object)) => read_map(&object.fields, read_config),
        _ => Err(ConvertError::missing("config_item_enum")),
    }
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

fn read_file(file: &base::File) -> Result<Node, ConvertError> {
    let content = match &file.FileContent {
        Some(FileContent::Data(data)) => ("data", Node::text(data)),
        Some(FileContent::BinaryData(data)) => ("binaryData", Node::text(data)),
        _ => return Err(ConvertError::missing("file_content")),
    };
    Ok(Node::map([("mountPoint", Node::text(&file.mountPoint)), content]))
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

// -------------------------------------------------------- states and agents

fn read_workload_states(states: &base::WorkloadStatesMap) -> Result<Node, ConvertError> {
    read_map(&states.agentStateMap, |workloads| {
        read_map(&workloads.wlNameStateMap, |ids| read_map(&ids.idStateMap, read_execution_state))
    })
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
