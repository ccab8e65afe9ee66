//! Differences as text and JSON, against a scripted server.

use super::*;
use crate::session::ModeRule;
use crate::set;
use crate::tests::{Played, Step, let_need, play, state};
use ankaios_model::execution_state::Phase;
use ankaios_model::shown_text::acts_on_terminal;
use rustix::time::{ClockId, clock_gettime};

/// The state whose desired state is `text`.
fn desired(text: &str) -> Node {
    set::read("-", &format!("desiredState:\n  apiVersion: v1\n{text}"))
        .unwrap()
        .tree
}

/// Compares the objects `names` of two desired states.
fn compared(names: &[&str], old: &str, new: &str, format: Format) -> Played<ExitCode> {
    let masks = names
        .iter()
        .map(|name| format!("desiredState.{name}"))
        .collect();
    let update = CliUpdate {
        new_state: desired(new),
        masks,
        ..CliUpdate::default()
    };
    // The dependents of a change are read again.
    play(
        None,
        [(); 2].map(|()| Step::State(desired(old))),
        |server, output| print(update, format, server, output),
    )
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
const NAMES: [&str; 5] = [
    "configs.port",
    "workloads.extra",
    "workloads.gone",
    "workloads.same",
    "workloads.web",
];

#[test]
fn each_object_is_a_unified_diff_of_its_fields() {
    let played = compared(&NAMES, OLD_STATE, NEW_STATE, Format::Table);
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
    let mut read: Vec<String> = NAMES
        .iter()
        .map(|name| format!("desiredState.{name}"))
        .collect();
    read.extend([USERS_MASK, WARNING].map(str::to_owned));
    let reasons = rows::MASKS.iter().chain(&rows::CONFIG_MASKS);
    let reasons: Vec<String> = reasons.map(|mask| (*mask).to_owned()).collect();
    assert_eq!(played.server.reads, [read, reasons]);
    assert!(played.server.updates.is_empty(), "nothing is changed");
}

#[test]
fn json_has_old_and_new_value_of_each_changed_field() {
    let played = compared(&NAMES, OLD_STATE, NEW_STATE, Format::Json);
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
    let played = compared(&["workloads.same"], OLD_STATE, NEW_STATE, Format::Table);
    assert_eq!(
        (played.out.as_str(), played.result.unwrap()),
        ("No differences.\n", ExitCode::Success)
    );
    assert_eq!(
        played.server.reads,
        [["desiredState.workloads.same", WARNING]],
        "configs are not read for workloads only"
    );
    let played = compared(&["workloads.same"], OLD_STATE, NEW_STATE, Format::Json);
    assert_eq!(played.result.unwrap(), ExitCode::Success);
    assert_eq!(
        played.out,
        "{\n  \"configUsers\": {},\n  \"configs\": {},\n  \"workloads\": {}\n}\n"
    );
}

#[test]
fn without_objects_nothing_is_read() {
    let played = play(None, [], |server, output| {
        print(CliUpdate::default(), Format::Table, server, output)
    });
    assert_eq!(
        (played.out.as_str(), played.result.unwrap()),
        ("No differences.\n", ExitCode::Success)
    );
    assert!(played.server.reads.is_empty());
}

#[test]
fn a_server_that_does_not_respond_with_a_state_is_an_error() {
    let update = CliUpdate {
        masks: vec!["desiredState.workloads.w".to_owned()],
        ..CliUpdate::default()
    };
    let played = play(None, [Step::NoState("why")], |server, output| {
        print(update, Format::Table, server, output)
    });
    assert_eq!(
        played.result.unwrap_err().to_string(),
        "Server replied with error: why"
    );
    assert_eq!(played.out, "");
}

#[test]
fn long_texts_with_blanks_at_line_ends_are_compared_by_line() {
    let config = |changed: &str| {
        let lines: Vec<String> = (0..20).map(|number| format!("line {number} ")).collect();
        let text = lines.join("\\n").replace("line 15", changed);
        format!("  workloads: {{w: {{agent: A, runtime: podman, runtimeConfig: \"{text}\"}}}}\n")
    };
    let played = compared(
        &["workloads.w"],
        &config("line 15"),
        &config("other"),
        Format::Table,
    );
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
fn configs_of_any_shape_are_shown_as_yaml() {
    let new = "  configs: {c: [a, {k: v, l: [x, y]}, [p]]}\n";
    let played = compared(&["configs.c"], "  configs: {c: text}\n", new, Format::Table);
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
    for format in [Format::Table, Format::Json] {
        let played = compared(&["workloads.w"], &old, "", format);
        assert!(!played.out.chars().any(acts_on_terminal), "{}", played.out);
        assert!(played.out.contains("202e"), "{}", played.out);
    }
}

/// The lines of the diff of two configs with one text each, of which each letter is a line.
fn lines_of(old: &str, new: &str) -> Vec<String> {
    let list = |text: &str| {
        (!text.is_empty()).then(|| {
            Node::List(
                text.chars()
                    .map(|letter| Node::text(letter.to_string()))
                    .collect(),
            )
        })
    };
    let (old, new) = (list(old), list(new));
    let difference = Difference {
        part: "configs".to_owned(),
        kind: Kind::Config,
        name: "c".to_owned(),
        old,
        new,
    };
    difference
        .lines()
        .into_iter()
        .skip(2)
        .map(|line| line.text.replace("- ", ""))
        .collect()
}

#[test]
fn hunks_have_three_lines_of_context_and_join_when_they_touch() {
    let places = |old: &str, new: &str| {
        let lines = lines_of(old, new).into_iter();
        lines
            .filter(|line| line.starts_with('@'))
            .collect::<Vec<_>>()
    };
    assert_eq!(places("abcdefghi", "abcdXfghi"), ["@@ -2,7 +2,7 @@"]);
    assert_eq!(
        places("abcdefghijklmn", "Xbcdefghijklmn"),
        ["@@ -1,4 +1,4 @@"]
    );
    assert_eq!(
        places("abcdefghijklmn", "XbcdefgYijklmn"),
        ["@@ -1,11 +1,11 @@"]
    );
    assert_eq!(
        places("abcdefghijklmn", "XbcdefghijklmY"),
        ["@@ -1,4 +1,4 @@", "@@ -11,4 +11,4 @@"]
    );
    assert_eq!(places("", "ab"), ["@@ -0,0 +1,2 @@"]);
    assert_eq!(places("ab", ""), ["@@ -1,2 +0,0 @@"]);
    assert_eq!(places("abcdefgh", "abcdeXfgh"), ["@@ -3,6 +3,7 @@"]);
    assert_eq!(places("ab", "ab"), [""; 0]);
}

#[test]
fn as_many_lines_as_possible_are_in_both() {
    for (old, new, expected) in [
        ("", "ab", 0),
        ("ab", "", 0),
        ("abc", "axc", 2),
        ("aaa", "aa", 2),
        ("ab", "ba", 1),
        ("abcabba", "cbabac", 4),
        ("abcdefgh", "xbcyefzh", 5),
    ] {
        let lines = lines_of(old, new);
        let count = |sign: &str| lines.iter().filter(|line| line.starts_with(sign)).count();
        assert_eq!(
            (count(" "), count("-"), count("+")),
            (expected, old.len() - expected, new.len() - expected),
            "{old} {new}"
        );
    }
}

#[test]
fn new_text_follows_from_the_old_one_and_any_lines() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut text =
        |length: usize| -> String { (0..length).map(|_| random.char('a'..='d')).collect() };
    for length in 0..60 {
        let (old, new) = (text(length), text(60 - length));
        let lines = lines_of(&old, &new);
        let (mut left, mut made) = (old.as_str(), String::new());
        for line in &lines {
            let (sign, letter) = line.split_at(1);
            match sign {
                "@" => {
                    let at: usize = line[4..].split(',').next().unwrap().parse().unwrap();
                    let skipped = at.saturating_sub(1).saturating_sub(old.len() - left.len());
                    made.push_str(&left[..skipped]);
                    left = &left[skipped..];
                }
                "+" => made.push_str(letter),
                sign => {
                    left = left
                        .strip_prefix(letter)
                        .unwrap_or_else(|| panic!("{old} {new} {lines:?}"));
                    made.push_str(if sign == " " { letter } else { "" });
                }
            }
        }
        assert_eq!(made + left, new, "{old}");
    }
}

#[test]
fn texts_without_a_line_in_common_take_a_bounded_time() {
    let config = |first: usize| {
        let lines: Vec<String> = (first..first + 60_000)
            .map(|number| number.to_string())
            .collect();
        Some(Node::text(lines.join("\n")))
    };
    let (old, new) = (config(0), config(1_000_000));
    let difference = Difference {
        part: "configs".to_owned(),
        kind: Kind::Config,
        name: "c".to_owned(),
        old,
        new,
    };
    // Other load on the machine does not count.
    let cpu_seconds = || clock_gettime(ClockId::ThreadCPUTime).tv_sec.unsigned_abs();
    let begin = cpu_seconds();
    assert_eq!(difference.lines().len(), 2 + 1 + 1 + 120_000);
    let used = cpu_seconds() - begin;
    assert!(used < 10 * TIME_MAX.as_secs(), "{used} s");
}

#[test]
fn dependents_that_delay_the_update_are_warned_of() {
    let old = desired(
        "  workloads:\n    storage: {agent: A, runtime: podman, runtimeConfig: a}\n    web: {agent: A, runtime: podman, runtimeConfig: a}\n",
    );
    let new = desired(
        "  workloads:\n    storage: {agent: A, runtime: podman, runtimeConfig: b}\n    web: {agent: A, runtime: podman, runtimeConfig: b}\n",
    );
    let there = |condition: &str, phase: Phase| {
        let mut there = state(
            &["A"],
            &[
                ("storage", "1", "A", Phase::Running),
                ("web", "1", "A", phase),
            ],
        );
        let_need(&mut there, "desiredState", "web", &[("storage", condition)]);
        Step::State(there)
    };
    let warned = |names: &[&str], new: &Node, there: Step| {
        let masks = names
            .iter()
            .map(|name| format!("desiredState.workloads.{name}"))
            .collect();
        let update = CliUpdate {
            new_state: new.clone(),
            masks,
            ..CliUpdate::default()
        };
        let steps = [Step::State(old.clone()), there];
        let played = play(None, steps, |server, output| {
            print(update, Format::Json, server, output)
        });
        assert_eq!(played.result.unwrap(), ExitCode::Different);
        played.err
    };
    let running = || there("ADD_COND_RUNNING", Phase::Running);
    let text = "warn: when it is applied, 'storage' waits for 'web' to end: ";
    let restart = "use 'ank apply --restart-dependents', or ";
    assert_eq!(
        warned(&["storage"], &new, running()),
        format!("{text}{restart}delete or change what needs it\n")
    );
    assert_eq!(
        warned(&["storage"], &Node::empty(), running()),
        format!("{text}delete or change what needs it\n")
    );
    assert_eq!(warned(&["storage", "web"], &new, running()), "");
    assert_eq!(warned(&["web"], &new, running()), "");
    for phase in [
        Phase::Succeeded,
        Phase::NotScheduled,
        Phase::PendingWaitingToStart,
    ] {
        assert_eq!(
            warned(&["storage"], &new, there("ADD_COND_RUNNING", phase)),
            "",
            "{phase}"
        );
    }
    assert_eq!(
        warned(
            &["storage"],
            &new,
            there("ADD_COND_SUCCEEDED", Phase::Running)
        ),
        ""
    );
    let Step::State(mut restarted) = running() else {
        return;
    };
    let place = restarted.at_mut(&["desiredState", "workloads", "web"]);
    let web = place.unwrap().as_map_mut().unwrap();
    web.insert("runtime".to_owned(), Node::text("podman"));
    let config = "lifecycle: { restartWith: DEPENDENCIES }";
    web.insert("runtimeConfig".to_owned(), Node::text(config));
    let shown = warned(&["storage"], &new, Step::State(restarted));
    assert_eq!(shown, "", "it ends by itself");
}

#[test]
fn mode_switch_is_said_in_words_and_kept_mode_is_no_change() {
    let there = || {
        let modes = Node::map([
            ("configItem", Node::text("mode")),
            ("current", Node::text("drive")),
        ]);
        let mut state = desired("  configs: {mode: drive}\n");
        state.as_map_mut().unwrap().insert("modes", modes);
        Step::State(state)
    };
    let diff = |mode_rule| {
        let (new_state, masks) = (
            desired("  configs: {mode: park}\n"),
            vec!["desiredState.configs.mode".to_owned()],
        );
        let update = CliUpdate {
            new_state,
            masks,
            mode_rule,
            ..CliUpdate::default()
        };
        play(None, [there(), there()], |server, output| {
            print(update, Format::Table, server, output)
        })
    };
    let played = diff(ModeRule::MustNotSwitch);
    let expected = "warn: This would switch the mode from 'drive' to 'park'. 'ank apply' does so only with '--switch-mode'.\n";
    assert_eq!(
        (played.err.as_str(), played.result.unwrap()),
        (expected, ExitCode::Different)
    );
    let played = diff(ModeRule::Keep);
    assert_eq!(
        (
            played.out.as_str(),
            played.err.as_str(),
            played.result.unwrap()
        ),
        ("No differences.\n", "", ExitCode::Success)
    );
    assert_eq!(diff(ModeRule::MaySwitch).err, "");
}
