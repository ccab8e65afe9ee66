//! Prints states as YAML or JSON with the documented order of fields.
//!
//! Thread: `main`, plain functions. Names of workloads, agents, tags and configs are sorted, so that two outputs can
//! be compared. Empty maps and lists are left out where only an unmasked response of the server has them.

use super::args::Format;
use crate::model::fields::table::COMPLETE_STATE;
use crate::model::fields::{Kind, Object};
use crate::model::messages::AlteredFields;
use crate::model::node::{Entries, Node};
use crate::model::shown_text::acts_on_terminal;
use crate::platform::logging::utc;
use serde::ser::{Serialize, Serializer};
use serde_yaml::{Mapping, Value};
use std::time::{SystemTime, UNIX_EPOCH};

/// A node with its kind: it is written with the documented order of fields.
pub struct Ordered<'n> {
    /// The node.
    pub node: &'n Node,
    /// What it is.
    pub kind: Kind,
}

// [impl->swdd~api-object-serialization~1]
impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let below = |kind: Kind| move |node| Ordered { node, kind };
        match (self.node, self.kind) {
            (Node::Map(entries), Kind::Map(value) | Kind::Named(value)) => {
                serializer.collect_map(entries.iter().map(|(name, node)| (name, below(*value)(node))))
            }
            (Node::List(items), Kind::List(item)) => serializer.collect_seq(items.iter().map(below(*item))),
            (Node::Map(entries), kind) => match kind.object(self.node) {
                Some(object) => serializer.collect_map(ordered_fields(entries, object)),
                None => self.node.serialize(serializer),
            },
            (node, _) => node.serialize(serializer),
        }
    }
}

/// The fields to print in their order; those that are not in the table come last.
fn ordered_fields<'n>(entries: &'n Entries, object: &'static Object) -> Vec<(&'n str, Ordered<'n>)> {
    let known = object.fields.iter().filter_map(|field| {
        let node = entries.get(field.name).filter(|node| !field.is_omitted(node))?;
        Some((field.name, Ordered { node, kind: field.kind }))
    });
    let unknown = entries.iter().filter(|(name, _)| object.field(name).is_none());
    known.chain(unknown.map(|(name, node)| (name, Ordered { node, kind: Kind::Any }))).collect()
}

/// The text of a complete state or a part of one, as `ank get state` prints it.
pub fn state_text(state: &Node, format: Format) -> String {
    let text = document(&Ordered { node: state, kind: Kind::Object(&COMPLETE_STATE) }, format, false);
    if format == Format::Yaml { text + "\n" } else { text }
}

/// Anything that can be written in both formats, which are texts, numbers, lists and maps with text keys. In a `stream`,
/// YAML follows after a line `---`, and JSON has one line.
pub fn document(value: &impl Serialize, format: Format, stream: bool) -> String {
    let json = if stream { serde_json::to_string } else { serde_json::to_string_pretty };
    match format {
        Format::Yaml if stream => format!("---\n{}\n", yaml_text(value).trim_end()),
        Format::Yaml => yaml_text(value),
        _ => escaped_json(&json(value).unwrap_or_default()) + "\n",
    }
}

/// One event as a document of a stream.
pub fn event_text(now: SystemTime, altered: &AlteredFields, state: &Node, format: Format) -> String {
    let paths = |paths: &Vec<String>| value(Some(paths).filter(|paths| !paths.is_empty()));
    let event = object([
        ("timestamp", timestamp(now).into()),
        ("addedFields", paths(&altered.added)),
        ("updatedFields", paths(&altered.updated)),
        ("removedFields", paths(&altered.removed)),
        ("completeState", value(Some(Ordered { node: state, kind: Kind::Object(&COMPLETE_STATE) }))),
    ]);
    document(&event, format, true)
}

/// Anything as a value; what is missing has none.
pub fn value(of: Option<impl Serialize>) -> Value {
    of.map_or(Value::Null, |of| serde_yaml::to_value(of).unwrap_or_default()) // States can always be written.
}

/// A map of what is known.
pub fn object<K: Into<Value>>(entries: impl IntoIterator<Item = (K, Value)>) -> Value {
    let known = entries.into_iter().filter(|(_, value)| !value.is_null());
    Value::Mapping(known.map(|(key, value)| (key.into(), value)).collect::<Mapping>())
}

/// JSON in which nothing acts on a terminal. Such characters stand only inside of texts, where an escape means the same.
fn escaped_json(json: &str) -> String {
    // The last two are not allowed in YAML, which `yaml_text` makes of this.
    let escapes = |c: char| acts_on_terminal(c) || matches!(c, '\u{fffe}' | '\u{ffff}');
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if escapes(c) { escaped.push_str(&format!("\\u{:04x}", u32::from(c))) } else { escaped.push(c) }
    }
    escaped
}

/// YAML in which nothing acts on a terminal.
fn yaml_text(value: &impl Serialize) -> String {
    let text = serde_yaml::to_string(value).unwrap_or_default();
    if !text.chars().any(acts_on_terminal) {
        return text;
    }
    // The library writes some of these characters as they are.
    all_lines(&serde_yaml::to_value(value).unwrap_or_default()).join("\n") + "\n"
}

/// The lines of a value as YAML.
pub fn all_lines(value: &Value) -> Vec<String> {
    let (beside, below) = yaml_lines(value);
    Some(beside).filter(|line| !line.is_empty()).into_iter().chain(below).collect()
}

/// A value as YAML: what stands beside its key, and the lines below. Texts of several lines are written line by line, so
/// that these can be compared.
pub fn yaml_lines(value: &Value) -> (String, Vec<String>) {
    match value {
        Value::Mapping(map) if !map.is_empty() => {
            let lines = map.iter().flat_map(|(key, value)| {
                let (key, (beside, below)) = (scalar(key), yaml_lines(value));
                let indent = if value.is_sequence() { "" } else { "  " };
                let blank = if beside.is_empty() { "" } else { " " };
                // Bytes of a key that stands before its value; YAML reads no longer ones there than 1,024.
                let key = if key.len() > 128 { format!("? {key}\n") } else { key };
                let first = format!("{key}:{blank}{beside}");
                std::iter::once(first).chain(below.into_iter().map(move |line| format!("{indent}{line}")))
            });
            // A long key has a line of its own.
            (String::new(), lines.flat_map(|line| line.split('\n').map(str::to_owned).collect::<Vec<_>>()).collect())
        }
        Value::Sequence(items) if !items.is_empty() => {
            let lines = items.iter().flat_map(|item| {
                // The first entry of a map stands beside the dash.
                let leads = std::iter::once("- ").chain(std::iter::repeat("  "));
                all_lines(item).into_iter().zip(leads).map(|(line, lead)| format!("{lead}{line}"))
            });
            (String::new(), lines.collect())
        }
        Value::String(text) if text.contains('\n') && is_block(text) => {
            let body = text.strip_suffix('\n');
            let style = match body {
                None => "|-",
                Some(body) if body.is_empty() || body.ends_with('\n') => "|+",
                Some(_) => "|",
            };
            (style.to_owned(), body.unwrap_or(text).split('\n').map(str::to_owned).collect())
        }
        value => (scalar(value), Vec::new()),
    }
}

/// Whether a text of several lines can be written line by line, and is read back as it was.
fn is_block(text: &str) -> bool {
    let begins_deeper = text.trim_start_matches('\n').starts_with([' ', '\t']);
    // The last two are not allowed in YAML.
    !begins_deeper && text.chars().all(|c| !acts_on_terminal(c) && !matches!(c, '\u{fffe}' | '\u{ffff}'))
}

/// A value on one line.
fn scalar(value: &Value) -> String {
    match value {
        // Each text of JSON is one of YAML as well.
        Value::String(text) if text.contains('\n') || text.chars().any(acts_on_terminal) => {
            escaped_json(&serde_json::to_string(text).unwrap_or_default())
        }
        _ => serde_yaml::to_string(value).unwrap_or_default().trim_end().to_owned(),
    }
}

/// UTC with nanoseconds, the format that scripts expect.
pub(super) fn timestamp(now: SystemTime) -> String {
    let nanoseconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    format!("{}.{nanoseconds:09}+00:00", utc(now).trim_end_matches('Z'))
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
    fn characters_that_act_on_a_terminal_are_escaped_and_read_back_as_they_were() {
        let all = (0..0x3000).chain(0xfe00..=0xffff).filter_map(char::from_u32);
        let mut texts: Vec<String> = all.map(|c| format!("a {c}b: '\"\\\u{ffff}🦀")).collect();
        let long = format!("\u{202e}{}", "k".repeat(3_000));
        texts.extend(["\x1b[2J\nline: \u{202e}two\n".to_owned(), "\u{2066}".to_owned(), long]);
        let keys = Node::map(texts.iter().map(|text| (text.as_str(), Node::text(text.as_str()))));
        let state = Node::map([("keys", keys), ("list", Node::List(texts.iter().map(Node::text).collect()))]);
        let altered = AlteredFields { added: texts.clone(), ..AlteredFields::default() };
        let plain = serde_json::to_value(&state).unwrap();
        for format in [Format::Yaml, Format::Json] {
            for (text, path) in
                [(state_text(&state, format), ""), (event_text(UNIX_EPOCH, &altered, &state, format), "/completeState")]
            {
                assert!(!text.chars().any(acts_on_terminal), "{format:?}");
                let read: serde_json::Value = match format {
                    Format::Yaml => serde_yaml::from_str(&text).unwrap(),
                    _ => serde_json::from_str(&text).unwrap(),
                };
                assert_eq!(read.pointer(path), Some(&plain), "{format:?}");
                assert!(path.is_empty() || read["addedFields"] == serde_json::json!(texts), "{format:?}");
            }
        }
    }
}
