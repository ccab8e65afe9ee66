//! Documents of `ank` in YAML and JSON.
//!
//! Documents have the documented order of fields. Names of workloads, agents, tags and configs are
//! sorted, so that two outputs can be compared. Empty maps and lists are left out where only an
//! unmasked response of the server has them.
//!
//! Thread: `main`, plain functions.

use crate::args::Format;
use ankaios_model::fields::table::{COMPLETE_STATE, STATE};
use ankaios_model::fields::{Kind, Object};
use ankaios_model::messages::AlteredFields;
use ankaios_model::node::{Entries, Node};
use ankaios_model::shown_text::acts_on_terminal;
use ankaios_platform::logging::utc;
use serde::ser::{Serialize, Serializer};
use serde_yaml::{Mapping, Value};
use std::time::{SystemTime, UNIX_EPOCH};

/// A node with its kind: it is written with the documented order of fields.
pub(crate) struct Ordered<'n> {
    /// The node.
    pub(crate) node: &'n Node,
    /// Its kind.
    pub(crate) kind: Kind,
}

// [impl->swdd~api-object-serialization~1]
impl Serialize for Ordered<'_> {
    /// Writes the fields of an object in their order, and the entries of maps and lists likewise.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.node, self.kind) {
            (Node::Map(entries), Kind::Map(kind) | Kind::Named(kind)) => {
                let kind = *kind;
                let ordered = entries
                    .iter()
                    .map(|(name, node)| (name, Self { node, kind }));
                serializer.collect_map(ordered)
            }
            (Node::List(items), Kind::List(kind)) => {
                let kind = *kind;
                serializer.collect_seq(items.iter().map(|node| Self { node, kind }))
            }
            (Node::Map(entries), kind) => match kind.object(self.node) {
                Some(object) => serializer.collect_map(ordered_fields(entries, object)),
                None => self.node.serialize(serializer),
            },
            (node, _) => node.serialize(serializer),
        }
    }
}

/// The fields to print in their order; those that are not in the table come last.
fn ordered_fields<'n>(
    entries: &'n Entries,
    object: &'static Object,
) -> Vec<(&'n str, Ordered<'n>)> {
    let mut ordered = Vec::new();
    for field in object.fields {
        if let Some(node) = entries.get(field.name)
            && !field.is_omitted(node)
        {
            let kind = field.kind;
            ordered.push((field.name, Ordered { node, kind }));
        }
    }
    for (name, node) in entries.iter() {
        if object.field(name).is_none() {
            let kind = Kind::Any;
            ordered.push((name, Ordered { node, kind }));
        }
    }
    ordered
}

/// A complete state or a part of one.
fn complete_state(node: &Node) -> Ordered<'_> {
    let kind = Kind::Object(&COMPLETE_STATE);
    Ordered { node, kind }
}

/// The text of a complete state or a part of one, as `ank get state` prints it.
pub(crate) fn state_text(state: &Node, format: Format) -> String {
    let mut text = document(&complete_state(state), format, false);
    if format == Format::Yaml {
        text.push('\n');
    }
    text
}

/// The desired state as a manifest in YAML, which `ank apply` reads.
pub(crate) fn manifest_text(desired: &Node) -> String {
    let manifest = Ordered {
        node: desired,
        kind: Kind::Object(&STATE),
    };
    document(&manifest, Format::Yaml, false)
}

/// The text of a value in YAML or JSON. In a `stream` of documents, YAML begins with a line `---`,
/// and JSON is one line.
pub(crate) fn document(value: &impl Serialize, format: Format, stream: bool) -> String {
    if format == Format::Yaml {
        let yaml = yaml_text(value);
        if stream {
            return format!("---\n{}\n", yaml.trim_end());
        }
        return yaml;
    }
    let json = if stream {
        serde_json::to_string(value)
    } else {
        serde_json::to_string_pretty(value)
    };
    // Texts, numbers, lists and maps with text keys can always be written.
    escaped_json(&json.unwrap_or_default()) + "\n"
}

/// One event as a document of a stream.
pub(crate) fn event_text(
    now: SystemTime,
    altered: &AlteredFields,
    state: &Node,
    format: Format,
) -> String {
    let event = object([
        ("timestamp", timestamp(now).into()),
        ("addedFields", some_paths(&altered.added)),
        ("updatedFields", some_paths(&altered.updated)),
        ("removedFields", some_paths(&altered.removed)),
        ("completeState", value(Some(complete_state(state)))),
    ]);
    document(&event, format, true)
}

/// The paths as a list; no value when there are none.
fn some_paths(paths: &[String]) -> Value {
    if paths.is_empty() {
        return Value::Null;
    }
    value(Some(paths))
}

/// A value for programs; null without one.
pub(crate) fn value(of: Option<impl Serialize>) -> Value {
    let Some(of) = of else { return Value::Null };
    serde_yaml::to_value(of).unwrap_or_default() // States can always be written.
}

/// A text for programs; null if it is empty.
pub(crate) fn optional(text: &str) -> Value {
    if text.is_empty() {
        return Value::Null;
    }
    text.into()
}

/// A map of the entries whose value is not null.
pub(crate) fn object<K: Into<Value>>(entries: impl IntoIterator<Item = (K, Value)>) -> Value {
    let mut map = Mapping::new();
    for (key, value) in entries {
        if !value.is_null() {
            map.insert(key.into(), value);
        }
    }
    Value::Mapping(map)
}

/// Returns whether YAML forbids a character even in quotes.
fn is_no_yaml(c: char) -> bool {
    matches!(c, '\u{fffe}' | '\u{ffff}')
}

/// Escapes the characters of JSON that act on a terminal. They are only in texts, where an escape
/// means the same.
fn escaped_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        // Texts of YAML are written as JSON, too.
        if acts_on_terminal(c) || is_no_yaml(c) {
            escaped.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// YAML in which nothing acts on a terminal.
fn yaml_text(value: &impl Serialize) -> String {
    let text = serde_yaml::to_string(value).unwrap_or_default();
    if !text.chars().any(acts_on_terminal) {
        return text;
    }
    // The library does not escape all of these characters.
    let value = serde_yaml::to_value(value).unwrap_or_default();
    all_lines(&value).join("\n") + "\n"
}

/// The lines of a value as YAML.
pub(crate) fn all_lines(value: &Value) -> Vec<String> {
    let YamlLines { beside, mut below } = yaml_lines(value);
    if !beside.is_empty() {
        below.insert(0, beside);
    }
    below
}

/// A value as YAML. Texts of several lines are written line by line, so that these can be compared.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct YamlLines {
    /// The text beside the key.
    pub(crate) beside: String,
    /// The lines below.
    pub(crate) below: Vec<String>,
}

/// Longest key that is written before its value, in bytes. YAML allows 1,024 there.
const SHORT_KEY: usize = 128;

/// Writes a value in block style as far as possible.
pub(crate) fn yaml_lines(value: &Value) -> YamlLines {
    match value {
        Value::Mapping(map) if !map.is_empty() => map_lines(map),
        Value::Sequence(items) if !items.is_empty() => list_lines(items),
        Value::String(text) if text.contains('\n') && is_block(text) => block_lines(text),
        value => YamlLines {
            beside: scalar(value),
            below: Vec::new(),
        },
    }
}

/// Writes a map, one entry after the other.
fn map_lines(map: &Mapping) -> YamlLines {
    let mut lines = YamlLines::default();
    for (key, value) in map {
        let key = scalar(key);
        let YamlLines { beside, below } = yaml_lines(value);
        let blank = if beside.is_empty() { "" } else { " " };
        if key.len() > SHORT_KEY {
            lines.below.push(format!("? {key}")); // A long key has a line of its own.
            lines.below.push(format!(":{blank}{beside}"));
        } else {
            lines.below.push(format!("{key}:{blank}{beside}"));
        }
        let indent = if value.is_sequence() { "" } else { "  " };
        for line in below {
            lines.below.push(format!("{indent}{line}"));
        }
    }
    lines
}

/// Writes a list, each item behind a dash.
fn list_lines(items: &[Value]) -> YamlLines {
    let mut lines = YamlLines::default();
    for item in items {
        // The first entry of a map stands beside the dash.
        let mut lead = "- ";
        for line in all_lines(item) {
            lines.below.push(format!("{lead}{line}"));
            lead = "  ";
        }
    }
    lines
}

/// Writes a text line by line. The style says how many line ends the text has at its end.
fn block_lines(text: &str) -> YamlLines {
    let body = text.strip_suffix('\n').unwrap_or(text);
    let style = if body == text {
        "|-" // None.
    } else if body.is_empty() || body.ends_with('\n') {
        "|+" // As many as there are.
    } else {
        "|" // One.
    };
    YamlLines {
        beside: style.to_owned(),
        below: body.split('\n').map(str::to_owned).collect(),
    }
}

/// Returns whether a text that is written line by line is read back unchanged.
fn is_block(text: &str) -> bool {
    let is_indented = text.trim_start_matches('\n').starts_with([' ', '\t']);
    let needs_escape = text.chars().any(|c| acts_on_terminal(c) || is_no_yaml(c));
    !is_indented && !needs_escape
}

/// A value on one line.
fn scalar(value: &Value) -> String {
    if let Value::String(text) = value
        && (text.contains('\n') || text.chars().any(acts_on_terminal))
    {
        // Each text of JSON is one of YAML as well.
        return escaped_json(&serde_json::to_string(text).unwrap_or_default());
    }
    let yaml = serde_yaml::to_string(value).unwrap_or_default();
    yaml.trim_end().to_owned()
}

/// UTC with nanoseconds, the format that scripts expect.
pub(crate) fn timestamp(now: SystemTime) -> String {
    let since_1970 = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let nanoseconds = since_1970.subsec_nanos();
    let to_seconds = utc(now);
    let to_seconds = to_seconds.trim_end_matches('Z');
    format!("{to_seconds}.{nanoseconds:09}+00:00")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ankaios_model::complete_state::Rendering;
    use ankaios_model::execution_state::{ExecutionState, Phase};
    use ankaios_model::manifest::Manifest;

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
        let desired = Manifest::parse(manifest)
            .unwrap()
            .into_desired_state()
            .unwrap();
        let load = Node::map([
            ("cpuUsage", Node::Number(7)),
            ("freeMemory", Node::Number(1024)),
        ]);
        let agent = Node::map([("tags", Node::empty()), ("status", load)]);
        let info = ExecutionState::with_info(Phase::FailedExecFailed, "Exit code: '1'");
        let id = Node::map([(
            "0a",
            ankaios_model::complete_state::execution_state_node(&info),
        )]);
        let states = Node::map([("agent_A", Node::map([("web", id)])), ("", Node::empty())]);
        Node::map([
            ("desiredState", desired.node(rendering)),
            ("workloadStates", states),
            ("agents", Node::map([("agent_A", agent)])),
            (
                "effectiveState",
                Node::map([
                    ("apiVersion", Node::text("v1")),
                    ("workloads", Node::empty()),
                ]),
            ),
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
            assert_eq!(
                state_text(&state(rendering), Format::Yaml),
                YAML,
                "{rendering:?}"
            );
        }
        assert_eq!(state_text(&Node::empty(), Format::Yaml), "{}\n\n");
    }

    #[test]
    fn json_is_indented_and_holds_the_same() {
        let text = state_text(&state(Rendering::Full), Format::Json);
        assert!(text.starts_with(
            "{\n  \"desiredState\": {\n    \"apiVersion\": \"v1\",\n    \"workloads\": {\n"
        ));
        assert!(text.contains("\"cpuUsage\": 7,"));
        assert!(text.ends_with("\n}\n"));
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let yaml: serde_json::Value = serde_yaml::from_str(YAML).unwrap();
        assert_eq!(json, yaml);
        assert_eq!(state_text(&Node::empty(), Format::Json), "{}\n");
    }

    #[test]
    fn terminal_characters_are_escaped_and_read_back() {
        let all = (0..0x3000)
            .chain(0xfe00..=0xffff)
            .filter_map(char::from_u32);
        let mut texts: Vec<String> = all.map(|c| format!("a {c}b: '\"\\\u{ffff}🦀")).collect();
        let long = format!("\u{202e}{}", "k".repeat(3_000));
        texts.extend([
            "\x1b[2J\nline: \u{202e}two\n".to_owned(),
            "\u{2066}".to_owned(),
            long,
        ]);
        let keys = Node::map(
            texts
                .iter()
                .map(|text| (text.as_str(), Node::text(text.as_str()))),
        );
        let state = Node::map([
            ("keys", keys),
            (
                "list",
                Node::List(texts.iter().map(|text| Node::text(&**text)).collect()),
            ),
        ]);
        let altered = AlteredFields {
            added: texts.clone(),
            ..AlteredFields::default()
        };
        let plain = serde_json::to_value(&state).unwrap();
        for format in [Format::Yaml, Format::Json] {
            for (text, path) in [
                (state_text(&state, format), ""),
                (
                    event_text(UNIX_EPOCH, &altered, &state, format),
                    "/completeState",
                ),
            ] {
                assert!(!text.chars().any(acts_on_terminal), "{format:?}");
                let read: serde_json::Value = match format {
                    Format::Yaml => serde_yaml::from_str(&text).unwrap(),
                    _ => serde_json::from_str(&text).unwrap(),
                };
                assert_eq!(read.pointer(path), Some(&plain), "{format:?}");
                assert!(
                    path.is_empty() || read["addedFields"] == serde_json::json!(texts),
                    "{format:?}"
                );
            }
        }
    }

    #[test]
    fn the_end_of_a_text_is_part_of_it() {
        let written = |text: &str| yaml_lines(&Value::String(text.to_owned()));
        let lines = |lines: &[&str]| lines.iter().map(ToString::to_string).collect::<Vec<_>>();
        for (text, style, below) in [
            ("a\nb", "|-", lines(&["a", "b"])),
            ("a\nb\n", "|", lines(&["a", "b"])),
            ("a\nb\n\n", "|+", lines(&["a", "b", ""])),
            ("a\n", "|", lines(&["a"])),
            ("\n", "|+", lines(&[""])),
            ("yes", "yes", lines(&[])),
            ("80", "'80'", lines(&[])),
            ("", "''", lines(&[])),
        ] {
            let beside = style.to_owned();
            assert_eq!(written(text), YamlLines { beside, below }, "{text:?}");
        }
    }
}
