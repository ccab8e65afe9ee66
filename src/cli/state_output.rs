//! Prints states as YAML or JSON with the documented order of fields (spec/cli.md section 6.1).
//!
//! Thread: `main`, plain functions. Names of workloads, agents, tags and configs are sorted, so that two outputs can
//! be compared. Empty maps and lists are left out where only an unmasked answer of the server has them.

use super::args::Format;
use super::state_shape::Kind;
use crate::logging::utc;
use crate::model::messages::AlteredFields;
use crate::model::node::Node;
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// A node with its kind.
struct Ordered<'n> {
    node: &'n Node,
    kind: Kind,
}

impl Ordered<'_> {
    fn is_empty(&self) -> bool {
        match self.kind {
            // Both lists empty is as good as no rules.
            Kind::Access => {
                self.kind.fields().iter().all(|field| self.node.get(field.name).is_none_or(Node::is_empty_container))
            }
            _ => self.node.is_empty_container(),
        }
    }
}

// [impl->swdd~api-object-serialization~1]
impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.node, self.kind) {
            (Node::Map(entries), Kind::Map(below)) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (name, node) in entries {
                    map.serialize_entry(name, &Ordered { node, kind: *below })?;
                }
                map.end()
            }
            (Node::List(items), Kind::List(below)) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for node in items {
                    list.serialize_element(&Ordered { node, kind: *below })?;
                }
                list.end()
            }
            (Node::Map(entries), kind) if !kind.fields().is_empty() => {
                let fields = ordered_fields(entries, kind);
                let mut map = serializer.serialize_map(Some(fields.len()))?;
                for (name, field) in fields {
                    map.serialize_entry(name, &field)?;
                }
                map.end()
            }
            (node, _) => node.serialize(serializer),
        }
    }
}

/// The fields to print in their order; those that nobody documented come last.
fn ordered_fields(entries: &BTreeMap<String, Node>, kind: Kind) -> Vec<(&str, Ordered<'_>)> {
    let known = kind.fields().iter().filter_map(|field| {
        let ordered = Ordered { node: entries.get(field.name)?, kind: field.kind };
        (!(field.omit_empty && ordered.is_empty())).then_some((field.name, ordered))
    });
    let is_unknown = |name: &str| kind.fields().iter().all(|field| field.name != name);
    let unknown = entries.iter().filter(|(name, _)| is_unknown(name));
    known.chain(unknown.map(|(name, node)| (name.as_str(), Ordered { node, kind: Kind::Any }))).collect()
}

/// The text of a complete state or a part of one, as `ank get state` prints it.
#[must_use]
pub fn state_text(state: &Node, format: Format) -> String {
    let ordered = Ordered { node: state, kind: Kind::CompleteState };
    // Texts, numbers, lists and maps with text keys can be written in both formats.
    let text = match format {
        Format::Yaml => serde_yaml::to_string(&ordered).unwrap_or_default(),
        Format::Json => serde_json::to_string_pretty(&ordered).unwrap_or_default(),
    };
    text + "\n"
}

/// One event as a document: YAML after a line `---`, or JSON in one line (spec/cli.md section 10).
#[must_use]
pub fn event_text(now: SystemTime, altered: &AlteredFields, state: &Node, format: Format) -> String {
    let event = Event { timestamp: timestamp(now), altered, state };
    // As in `state_text`.
    match format {
        Format::Yaml => format!("---\n{}\n", serde_yaml::to_string(&event).unwrap_or_default().trim_end()),
        Format::Json => serde_json::to_string(&event).unwrap_or_default() + "\n",
    }
}

/// UTC with nanoseconds as scripts know it.
fn timestamp(now: SystemTime) -> String {
    let nanoseconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    format!("{}.{nanoseconds:09}+00:00", utc(now).trim_end_matches('Z'))
}

struct Event<'e> {
    timestamp: String,
    altered: &'e AlteredFields,
    state: &'e Node,
}

impl Serialize for Event<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("timestamp", &self.timestamp)?;
        let AlteredFields { added, updated, removed } = self.altered;
        for (key, paths) in [("addedFields", added), ("updatedFields", updated), ("removedFields", removed)] {
            if !paths.is_empty() {
                map.serialize_entry(key, paths)?;
            }
        }
        map.serialize_entry("completeState", &Ordered { node: self.state, kind: Kind::CompleteState })?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::complete_state::Rendering;
    use crate::model::execution_state::{ExecutionState, Phase};
    use crate::model::manifest::Manifest;

    fn state(rendering: Rendering) -> Node {
        let manifest = "\
apiVersion: v1
workloads:
  web:
    agent: agent_A
    runtime: podman
    runtimeConfig: |
      image: x
      commandArgs: [\"a\"]
    tags: {b: '1', a: yes}
    dependencies: {db: ADD_COND_RUNNING}
    configs: {alias: key}
    files:
    - {mountPoint: /b, binaryData: aGk=}
    controlInterfaceAccess:
      allowRules:
      - {type: StateRule, operation: Read, filterMasks: [a.*, b]}
      denyRules:
      - {type: LogRule, workloadNames: [\"*\"]}
  bare: {agent: '', runtime: podman, runtimeConfig: ''}
configs: {key: [v, {n: ''}]}
";
        let desired = Manifest::parse(manifest).unwrap().into_desired_state().unwrap();
        let load = Node::map([("cpuUsage", Node::Number(7)), ("freeMemory", Node::Number(1024))]);
        let agent = Node::map([("tags", Node::empty()), ("status", load)]);
        let info = ExecutionState::with_info(Phase::FailedExecFailed, "Exit code: '1'");
        let id = Node::map([("0a", crate::model::complete_state::execution_state_node(&info))]);
        let states = Node::map([("agent_A", Node::map([("web", id)])), ("", Node::empty())]);
        Node::map([
            ("desiredState", desired.node(rendering)),
            ("workloadStates", states),
            ("agents", Node::map([("agent_A", agent)])),
            ("effectiveState", Node::map([("apiVersion", Node::text("v1")), ("workloads", Node::empty())])),
        ])
    }

    const YAML: &str = "\
desiredState:
  apiVersion: v1
  workloads:
    bare:
      agent: ''
      restartPolicy: NEVER
      runtime: podman
      runtimeConfig: ''
    web:
      agent: agent_A
      restartPolicy: NEVER
      dependencies:
        db: ADD_COND_RUNNING
      tags:
        a: yes
        b: '1'
      runtime: podman
      runtimeConfig: |-
        image: x
        commandArgs: [\"a\"]
      controlInterfaceAccess:
        allowRules:
        - type: StateRule
          operation: Read
          filterMasks:
          - a.*
          - b
        denyRules:
        - type: LogRule
          workloadNames:
          - '*'
      configs:
        alias: key
      files:
      - mountPoint: /b
        binaryData: aGk=
  configs:
    key:
    - v
    - n: ''
workloadStates:
  '': {}
  agent_A:
    web:
      0a:
        additionalInfo: 'Exit code: ''1'''
        state: Failed
        subState: ExecFailed
agents:
  agent_A:
    status:
      cpuUsage: 7
      freeMemory: 1024
effectiveState:
  apiVersion: v1
  workloads: {}

";

    // [utest->swdd~api-object-serialization~1]
    #[test]
    fn yaml_has_the_documented_order_whatever_the_server_sends() {
        for rendering in [Rendering::Full, Rendering::Sparse] {
            assert_eq!(state_text(&state(rendering), Format::Yaml), YAML, "{rendering:?}");
        }
        assert_eq!(state_text(&Node::empty(), Format::Yaml), "{}\n\n");
    }

    #[test]
    fn json_is_indented_and_holds_the_same() {
        let text = state_text(&state(Rendering::Full), Format::Json);
        assert!(text.starts_with("{\n  \"desiredState\": {\n    \"apiVersion\": \"v1\",\n    \"workloads\": {\n"));
        assert!(text.contains("\"cpuUsage\": 7,"));
        assert!(text.ends_with("\n}\n"));
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let yaml: serde_json::Value = serde_yaml::from_str(YAML).unwrap();
        assert_eq!(json, yaml);
        assert_eq!(state_text(&Node::empty(), Format::Json), "{}\n");
    }

    #[test]
    fn parts_that_a_mask_selects_are_printed_without_the_rest() {
        let agent = Node::map([("agent", Node::text("A"))]);
        let desired = Node::map([("workloads", Node::map([("w", agent)])), ("apiVersion", Node::text("v1"))]);
        let text = state_text(&Node::map([("desiredState", desired)]), Format::Yaml);
        assert_eq!(text, "desiredState:\n  apiVersion: v1\n  workloads:\n    w:\n      agent: A\n\n");
    }
}
