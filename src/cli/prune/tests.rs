//! The objects that `--prune` deletes, and the question before it.

use super::*;
use crate::set;
use crate::tests::{Step, play};

/// The complete state whose desired state is `text`.
fn desired(text: &str) -> Node {
    set::read("-", &format!("desiredState:\n  apiVersion: v1\n{text}"))
        .unwrap()
        .tree
}

fn workload(name: &str, agent: &str, further: &str) -> String {
    format!("    {name}: {{agent: {agent}, runtime: podman, runtimeConfig: ''{further}}}\n")
}

fn workloads(list: &[String]) -> String {
    format!("  workloads:\n{}", list.concat())
}

fn tag(text: &str) -> (String, String) {
    let (key, value) = text.split_once('=').unwrap();
    (key.to_owned(), value.to_owned())
}

/// The masks of the update to `new` on a server with the state `old`.
fn masks(old: &Node, new: &str, tags: &[(String, String)]) -> Vec<String> {
    let mut update = CliUpdate {
        new_state: desired(new),
        ..CliUpdate::default()
    };
    let arguments = PruneArguments {
        prune: true,
        tags: tags.to_vec(),
    };
    let steps = [Step::State(old.clone())];
    let played = play(None, steps, |server, _| {
        extend(&mut update, &arguments, server)
    });
    played.result.unwrap();
    update.masks
}

// [utest->swdd~cli-prunes-what-manifests-do-not-name~1]
#[test]
fn prune_of_unnamed_objects_deletes_exactly_these() {
    let old = desired(&format!(
        "{}  configs: {{kept: a, unused: b, left: c, named: d}}\n",
        workloads(&[
            workload("web", "A", ", configs: {c: left}"),
            workload("old", "A", ", configs: {c: unused, d: kept}"),
        ])
    ));
    let new = format!(
        "{}  configs: {{named: e}}\n",
        workloads(&[workload("web", "A", ", configs: {c: kept}")])
    );
    let expected = [
        "desiredState.configs.left",
        "desiredState.configs.unused",
        "desiredState.workloads.old",
    ];
    assert_eq!(masks(&old, &new, &[]), expected);
}

#[test]
fn prune_with_tags_deletes_only_what_has_all_of_them() {
    let old = desired(&format!(
        "{}  configs: {{mine: a, shared: b, other: c, loose: d}}\n",
        workloads(&[
            workload("web", "A", ", tags: {team: one}"),
            workload(
                "old",
                "A",
                ", tags: {team: one, kind: x}, configs: {c: mine, d: shared}"
            ),
            workload("plain", "A", ", tags: {team: one}"),
            workload(
                "theirs",
                "A",
                ", tags: {team: two}, configs: {c: shared, d: other}"
            ),
        ])
    ));
    let new = workloads(&[workload("web", "A", ", tags: {team: one}")]);
    let one = [
        "desiredState.configs.mine",
        "desiredState.workloads.old",
        "desiredState.workloads.plain",
    ];
    assert_eq!(masks(&old, &new, &[tag("team=one")]), one);
    let both = ["desiredState.configs.mine", "desiredState.workloads.old"];
    assert_eq!(masks(&old, &new, &[tag("team=one"), tag("kind=x")]), both);
    assert_eq!(masks(&old, &new, &[tag("team=three")]), [""; 0]);
}

#[test]
fn prune_keeps_the_config_item_of_the_mode() {
    let mut old = desired("  configs: {mode: drive, unused: x}\n");
    let modes = Node::map([("configItem", Node::text("mode"))]);
    old.as_map_mut().unwrap().insert("modes", modes);
    let new = workloads(&[workload("web", "A", "")]);
    assert_eq!(masks(&old, &new, &[]), ["desiredState.configs.unused"]);
}

#[test]
fn prune_with_manifests_without_workloads_is_refused() {
    for new in ["", "  configs: {a: b}\n"] {
        let mut update = CliUpdate {
            new_state: desired(new),
            ..CliUpdate::default()
        };
        let arguments = PruneArguments {
            prune: true,
            tags: Vec::new(),
        };
        let played = play(None, [], |server, _| {
            extend(&mut update, &arguments, server)
        });
        let error = played.result.unwrap_err();
        assert_eq!(
            error.to_string(),
            "The manifests name no workload, so '--prune' would delete all."
        );
        assert!(played.server.reads.is_empty());
    }
}

#[test]
fn prune_of_much_asks_and_of_little_does_not() {
    let old = [
        workload("a", "A", ""),
        workload("b", "A", ""),
        workload("c", "B", ""),
        workload("d", "A", ""),
    ];
    for (new, expected) in [
        (
            vec![workload("a", "A", "")],
            Some("This deletes 3 of 4 workloads."),
        ),
        // Exactly half.
        (vec![workload("a", "A", ""), workload("c", "B", "")], None),
        (
            vec![
                workload("a", "A", ""),
                workload("b", "A", ""),
                workload("d", "A", ""),
            ],
            Some("This deletes all workloads of agent 'B'."),
        ),
        // Another one comes to this agent.
        (
            vec![
                workload("a", "A", ""),
                workload("b", "B", ""),
                workload("d", "A", ""),
            ],
            None,
        ),
        // It moves away, and nothing of that agent is pruned.
        (
            vec![
                workload("a", "A", ""),
                workload("c", "A", ""),
                workload("d", "A", ""),
            ],
            None,
        ),
    ] {
        let state = desired(&workloads(&old));
        let pruned = Pruned::of(&state, &desired(&workloads(&new)), &[]);
        assert_eq!(pruned.question.as_deref(), expected, "{new:?}");
    }
}

/// Confirms the deletion of more than half of all workloads.
fn confirmed(can_ask: bool, yes: bool, steps: &[Step]) -> (Result<()>, String, String) {
    let old = desired(&workloads(&[
        workload("a", "A", ""),
        workload("b", "A", ""),
        workload("c", "A", ""),
    ]));
    let new = desired(&workloads(&[workload("a", "A", "")]));
    let pruned = Pruned::of(&old, &new, &[]);
    let played = play(None, steps.to_vec(), |server, output| {
        output.can_ask = can_ask;
        confirm(&pruned, yes, server, output)
    });
    assert!(played.server.is_done());
    (played.result, played.out, played.err)
}

#[test]
fn question_on_a_terminal_accepts_only_yes() {
    let question = "This deletes 2 of 3 workloads. Delete them? [y/N] ";
    for answer in ["y\n", "yes\n", " Y \n"] {
        let (result, out, err) = confirmed(true, false, &[Step::Line(answer)]);
        assert!(result.is_ok(), "{answer:?}");
        assert_eq!(
            out,
            "Deleting what the manifests do not name: workloads 'b', 'c'.\n"
        );
        assert_eq!(err, question);
    }
    for answer in ["", "\n", "n\n", "yep\n"] {
        let (result, ..) = confirmed(true, false, &[Step::Line(answer)]);
        let error = result.unwrap_err();
        assert_eq!(
            error.to_string(),
            "The deletion was not confirmed.",
            "{answer:?}"
        );
    }
    let (result, ..) = confirmed(true, false, &[Step::Signal]);
    assert!(result.unwrap_err().is_interrupted());
}

#[test]
fn question_is_not_asked_with_yes_or_without_a_terminal() {
    for (can_ask, yes) in [(true, true), (false, false), (false, true)] {
        let (result, out, err) = confirmed(can_ask, yes, &[]);
        assert!(result.is_ok());
        assert_eq!(
            out,
            "Deleting what the manifests do not name: workloads 'b', 'c'.\n"
        );
        assert_eq!(err, "");
    }
}
