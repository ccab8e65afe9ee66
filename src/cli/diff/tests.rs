//! Differences as text and JSON, against a scripted server.

use super::*;
use crate::cli::state_input;
use crate::cli::tests::{Played, Step, play};
use crate::model::shown_text::acts_on_terminal;

/// The state whose desired state is `text`.
fn desired(text: &str) -> Node {
    state_input::read(&format!("desiredState:\n  apiVersion: v1\n{text}")).unwrap().state
}

/// Compares the objects `names` of two desired states.
fn compared(names: &[&str], old: &str, new: &str, format: DiffFormat) -> Played<ExitCode> {
    let masks = names.iter().map(|name| format!("desiredState.{name}")).collect();
    let update = Update { new_state: desired(new), masks, ..Update::default() };
    play(None, [Step::State(desired(old))], |server, _, output| print(&update, format, server, output))
}

const OLD_STATE: &str = "  workloads:
    web: {agent: A, runtime: podman, runtimeConfig: \"image: x:1\\ncommandArgs: [a]\", tags: {team: one}}
    gone: {agent: A, runtime: podman, runtimeConfig: ''}
    same: {agent: A, runtime: podman, runtimeConfig: r, tags: {}, configs: {p: port}}
  configs: {port: '80', other: x}
";
const NEW_STATE: &str = "  workloads:
    web: {agent: B, runtime: podman, runtimeConfig: \"image: x:2\\ncommandArgs: [a]\", tags: {team: one, level: '1'}}
    extra: {agent: A, runtime: podman, runtimeConfig: c, files: [{mountPoint: /f, data: \"1\\n2\\n\"}]}
    same: {agent: A, runtime: podman, runtimeConfig: r, configs: {p: port}}
  configs: {port: '81'}
";
const NAMES: [&str; 5] = ["configs.port", "workloads.extra", "workloads.gone", "workloads.same", "workloads.web"];

#[test]
fn each_object_is_a_unified_diff_of_its_fields() {
    let played = compared(&NAMES, OLD_STATE, NEW_STATE, DiffFormat::Text);
    let expected = "\
--- config port
+++ config port
@@ -1,1 +1,1 @@
-'80'
+'81'
--- /dev/null
+++ workload extra
@@ -0,0 +1,8 @@
+agent: A
+runtime: podman
+runtimeConfig: c
+files:
+- mountPoint: /f
+  data: |
+    1
+    2
--- workload gone
+++ /dev/null
@@ -1,3 +0,0 @@
-agent: A
-runtime: podman
-runtimeConfig: ''
--- workload web
+++ workload web
@@ -1,7 +1,8 @@
-agent: A
+agent: B
 tags:
+  level: '1'
   team: one
 runtime: podman
 runtimeConfig: |-
-  image: x:1
+  image: x:2
   commandArgs: [a]
1 workload to add, 1 workload and 1 config to change, 1 workload to delete.
Workload 'same' uses the config 'port' and is replaced if its rendered configuration changes.
";
    assert_eq!((played.out.as_str(), played.err.as_str()), (expected, ""));
    assert_eq!(played.result.unwrap(), ExitCode::Different);
    let mut read: Vec<String> = NAMES.iter().map(|name| format!("desiredState.{name}")).collect();
    read.push(USERS_MASK.to_owned());
    assert_eq!(played.server.reads, [read]);
    assert!(played.server.updates.is_empty(), "nothing is changed");
}

#[test]
fn json_has_old_and_new_value_of_each_changed_field() {
    let played = compared(&NAMES, OLD_STATE, NEW_STATE, DiffFormat::Json);
    let found: serde_json::Value = serde_json::from_str(&played.out).unwrap();
    let expected = serde_json::json!({
        "workloads": {
            "extra": { "action": "add", "fields": {
                "agent": { "new": "A" }, "runtime": { "new": "podman" }, "runtimeConfig": { "new": "c" },
                "files": { "new": [{ "mountPoint": "/f", "data": "1\n2\n" }] },
            } },
            "gone": { "action": "delete", "fields": {
                "agent": { "old": "A" }, "runtime": { "old": "podman" }, "runtimeConfig": { "old": "" },
            } },
            "web": { "action": "change", "fields": {
                "agent": { "old": "A", "new": "B" },
                "runtimeConfig": { "old": "image: x:1\ncommandArgs: [a]", "new": "image: x:2\ncommandArgs: [a]" },
                "tags": { "old": { "team": "one" }, "new": { "team": "one", "level": "1" } },
            } },
        },
        "configs": { "port": { "action": "change", "old": "80", "new": "81" } },
        "configUsers": { "same": ["port"] },
    });
    assert_eq!(found, expected);
    assert_eq!(played.result.unwrap(), ExitCode::Different);
}

#[test]
fn equal_objects_are_no_difference_whatever_else_differs() {
    let played = compared(&["workloads.same"], OLD_STATE, NEW_STATE, DiffFormat::Text);
    assert_eq!((played.out.as_str(), played.result.unwrap()), ("No differences.\n", ExitCode::Success));
    assert_eq!(played.server.reads, [["desiredState.workloads.same"]], "configs are not read for workloads only");
    let played = compared(&["workloads.same"], OLD_STATE, NEW_STATE, DiffFormat::Json);
    assert_eq!(played.result.unwrap(), ExitCode::Success);
    assert_eq!(played.out, "{\n  \"configUsers\": {},\n  \"configs\": {},\n  \"workloads\": {}\n}\n");
}

#[test]
fn without_objects_nothing_is_read() {
    let played = play(None, [], |server, _, output| print(&Update::default(), DiffFormat::Text, server, output));
    assert_eq!((played.out.as_str(), played.result.unwrap()), ("No differences.\n", ExitCode::Success));
    assert!(played.server.reads.is_empty());
}

#[test]
fn a_server_that_does_not_respond_with_a_state_is_an_error() {
    let update = Update { masks: vec!["desiredState.workloads.w".to_owned()], ..Update::default() };
    let played =
        play(None, [Step::NoState("why")], |server, _, output| print(&update, DiffFormat::Text, server, output));
    assert_eq!(played.result.unwrap_err().to_string(), "Command failed: 'Server replied with error: 'why''");
    assert_eq!(played.out, "");
}

#[test]
fn long_texts_are_compared_line_by_line_also_with_blanks_at_the_end_of_lines() {
    let config = |changed: &str| {
        let lines: Vec<String> = (0..20).map(|number| format!("line {number} ")).collect();
        let text = lines.join("\\n").replace("line 15", changed);
        format!("  workloads: {{w: {{agent: A, runtime: podman, runtimeConfig: \"{text}\"}}}}\n")
    };
    let played = compared(&["workloads.w"], &config("line 15"), &config("other"), DiffFormat::Text);
    let expected = "\
--- workload w
+++ workload w
@@ -16,7 +16,7 @@ runtimeConfig
   line 12\x20
   line 13\x20
   line 14\x20
-  line 15\x20
+  other\x20
   line 16\x20
   line 17\x20
   line 18\x20
1 workload to change.
";
    assert_eq!(played.out, expected);
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
        assert_eq!(written(text), (style.to_owned(), below), "{text:?}");
    }
}

#[test]
fn configs_of_any_shape_are_shown_as_yaml() {
    let new = "  configs: {c: [a, {k: v, l: [x, y]}, [p]]}\n";
    let played = compared(&["configs.c"], "  configs: {c: text}\n", new, DiffFormat::Text);
    let expected = "\
--- config c
+++ config c
@@ -1,1 +1,6 @@
-text
+- a
+- k: v
+  l:
+  - x
+  - y
+- - p
1 config to change.
";
    assert_eq!(played.out, expected);
}

#[test]
fn texts_of_others_cannot_act_on_the_terminal() {
    let hostile = "\\e]0;x\\a\\u202ex\\nsecond\\e[2J";
    let old = format!(
        "  workloads: {{w: {{agent: A, runtime: p, runtimeConfig: \"{hostile}\", tags: {{\"{hostile}\": x}}}}}}\n"
    );
    for format in [DiffFormat::Text, DiffFormat::Json] {
        let played = compared(&["workloads.w"], &old, "", format);
        assert!(!played.out.chars().any(acts_on_terminal), "{}", played.out);
        assert!(played.out.contains("202e"), "{}", played.out);
    }
}
