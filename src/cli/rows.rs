//! Rows of workload tables: what a complete state has about each instance.
//!
//! Thread: `main`, plain values.

use super::args::Format;
use super::table::{Field, View, one_line};
use crate::model::execution_state::ExecutionState;
use crate::model::names::InstanceName;
use crate::model::node::Node;
use std::collections::BTreeMap;

/// The parts of the complete state that tables of workloads need. Everything else could be large.
pub const MASKS: [&str; 8] = [
    "workloadStates",
    "agents",
    "desiredState.workloads.*.agent",
    "desiredState.workloads.*.runtime",
    "effectiveState.workloads.*.agent",
    "effectiveState.workloads.*.runtime",
    "desiredState.workloads.*.dependencies",
    "effectiveState.workloads.*.dependencies",
];

/// The cells of one instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row {
    /// Empty when it is unknown, for example of a workload that was deleted.
    pub runtime: String,
    /// For example `Running(Ok)`.
    pub state: String,
    /// One line of any length.
    pub info: String,
}

impl Row {
    /// Applies a reported state.
    pub fn update(&mut self, state: &ExecutionState) {
        self.state = state.phase.to_string();
        self.info = one_line(&state.additional_info);
    }
}

/// The rows of all instances below `workloadStates`.
pub fn rows(state: &Node) -> BTreeMap<InstanceName, Row> {
    let mut rows = BTreeMap::new();
    for (agent, workloads) in entries(state.get("workloadStates")) {
        for (workload, ids) in entries(Some(workloads)) {
            for (id, execution_state) in entries(Some(ids)) {
                let row = Row { runtime: runtime(state, workload, agent), ..row(execution_state) };
                rows.insert(InstanceName::with_id(workload, id, agent), row);
            }
        }
    }
    rows
}

fn row(state: &Node) -> Row {
    let text = |key: &str| state.get(key).and_then(Node::as_text).unwrap_or_default();
    let (name, sub_state) = (text("state"), text("subState"));
    // States of a newer server are shown unchanged.
    let state = if name == sub_state { name.to_owned() } else { format!("{name}({sub_state})") };
    Row { runtime: String::new(), state, info: one_line(text("additionalInfo")) }
}

/// The runtime of the workload called `name` on `agent`. The effective state comes first: there a templated agent
/// has its final name.
fn runtime(state: &Node, name: &str, agent: &str) -> String {
    let found = ["effectiveState", "desiredState"].into_iter().find_map(|part| {
        let workload = state.at(&[part, "workloads", name])?;
        let same_agent = workload.get("agent").and_then(Node::as_text).unwrap_or_default() == agent;
        if same_agent { workload.get("runtime")?.as_text() } else { None }
    });
    found.unwrap_or_default().to_owned()
}

/// The entries of a map; none when it is missing.
pub fn entries(node: Option<&Node>) -> impl Iterator<Item = (&str, &Node)> {
    node.and_then(Node::as_map).into_iter().flatten()
}

/// What is shown of instances, in the order of `rows`.
pub fn view<'r>(format: Format, rows: impl IntoIterator<Item = (&'r InstanceName, Row)>) -> View {
    let blank = fields(&InstanceName::with_id("", "", ""), &Row::default());
    View::new(format, &blank, rows.into_iter().map(|(instance, row)| fields(instance, &row)))
}

fn fields(instance: &InstanceName, row: &Row) -> Vec<Field> {
    let mut fields = instance_fields(instance, &row.state);
    fields.insert(2, Field::text("RUNTIME", "runtime", &row.runtime));
    fields.push(Field::text("ADDITIONAL INFO", "additionalInfo", &row.info));
    fields
}

/// The first columns of all views of instances.
pub fn instance_fields(instance: &InstanceName, state: &str) -> Vec<Field> {
    let (name, sub_state) = state.split_once('(').unwrap_or((state, state));
    vec![
        Field::text("WORKLOAD NAME", "workload", &instance.workload),
        Field::text("AGENT", "agent", &instance.agent),
        Field::text("ID", "id", &instance.id).wide(),
        Field::new("EXECUTION STATE", "state", one_line(state), name),
        Field::data("subState", sub_state.trim_end_matches(')')),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::state;
    use crate::model::execution_state::Phase;

    #[test]
    fn the_runtime_belongs_to_name_and_agent_and_the_effective_state_comes_first() {
        let workload = |agent: &str, runtime: &str| {
            Node::map([("w", Node::map([("agent", Node::text(agent)), ("runtime", Node::text(runtime))]))])
        };
        let part = |workloads: Node| Node::map([("workloads", workloads)]);
        let empty = Node::empty;
        for (desired, effective, runtime) in [
            (workload("A", "podman"), empty(), "podman"),
            (workload("{{agent}}", "podman"), empty(), ""),
            (workload("{{agent}}", "podman"), workload("A", "podman"), "podman"),
            (workload("B", "podman"), workload("B", "podman"), ""),
            (workload("A", "new"), workload("A", "hooked"), "hooked"),
            (empty(), empty(), ""),
        ] {
            let mut tree = state(&[], &[("w", "1", "A", Phase::Running)]);
            let map = tree.as_map_mut().unwrap();
            map.insert("desiredState", part(desired.clone()));
            map.insert("effectiveState", part(effective.clone()));
            let rows = rows(&tree);
            assert_eq!(rows[&InstanceName::with_id("w", "1", "A")].runtime, runtime, "{desired:?} {effective:?}");
        }
    }

    #[test]
    fn states_are_written_with_their_sub_state_unless_they_have_none() {
        for (name, sub_state, expected) in [
            ("Running", "Ok", "Running(Ok)"),
            ("Pending", "WaitingToStart", "Pending(WaitingToStart)"),
            ("NotScheduled", "NotScheduled", "NotScheduled"),
            ("AgentDisconnected", "AgentDisconnected", "AgentDisconnected"),
            ("Hibernating", "Deep", "Hibernating(Deep)"),
        ] {
            let node = Node::map([("state", Node::text(name)), ("subState", Node::text(sub_state))]);
            assert_eq!(row(&node).state, expected);
        }
    }
}
