//! What becomes of the item of the mode in updates.

use super::super::*;
use crate::apply;
use crate::args::{ManifestArguments, ModeChange, PruneArguments};
use crate::error::ExitCode;
use crate::session::Context;
use crate::settings::Waiting;
use crate::tests::{Step, accepted, play};

const ITEM: &str = "desiredState.configs.mode";
const REFUSED: &str = "This would switch the mode from 'drive' to 'park'.";

fn with_configs(configs: &[(&str, &str)]) -> Node {
    let configs = Node::map(
        configs
            .iter()
            .map(|(name, value)| (*name, Node::text(*value))),
    );
    Node::map([("desiredState", Node::map([("configs", configs)]))])
}

/// A server in this mode, with further configs.
fn server(mode: Option<&str>) -> Node {
    let mut state = with_configs(&[("old", "1"), ("port", "80")]);
    let current = mode.map(|mode| ("current", Node::text(mode)));
    let modes = Node::map(
        [("configItem", Node::text("mode"))]
            .into_iter()
            .chain(current),
    );
    if let Some(mode) = mode {
        state
            .at_mut(&["desiredState", "configs"])
            .unwrap()
            .as_map_mut()
            .unwrap()
            .insert("mode", Node::text(mode));
    }
    state.as_map_mut().unwrap().insert(PART, modes);
    state
}

/// The rest of an update of these masks, in which `mode` is the mode, or the reason of its refusal.
fn left(
    mode: &str,
    masks: &[&str],
    mode_rule: ModeRule,
    server: Node,
) -> (Option<String>, Vec<String>, Node) {
    let new = if mode.is_empty() {
        with_configs(&[("port", "81")])
    } else {
        with_configs(&[("mode", mode), ("port", "81")])
    };
    let masks = masks.iter().map(ToString::to_string).collect();
    let mut update = CliUpdate {
        new_state: new,
        masks,
        mode_rule,
        ..CliUpdate::default()
    };
    let played = play(None, [Step::State(server)], |link, _| {
        apply_mode_rule(&mut update, link)
    });
    assert_eq!(played.server.reads, [["modes", "desiredState.configs"]]);
    (played.result.unwrap(), update.masks, update.new_state)
}

// [utest->swdd~cli-switches-no-mode-by-accident~1]
#[test]
fn other_mode_is_refused_by_masks_that_write_the_item_alone() {
    for (masks, refused) in [
        (&[ITEM][..], true),
        (&["desiredState.configs"], true),
        (&["desiredState"], true),
        (&["desiredState.workloads", "desiredState"], true),
        (&["desiredState.configs.port"], false),
        (&["desiredState.configs.mod"], false),
        (&["desiredState.workloads"], false),
        (&["agents.A.tags"], false),
    ] {
        let (refusal, left, _) = left(
            "park",
            masks,
            ModeRule::MustNotSwitch,
            server(Some("drive")),
        );
        assert_eq!(refusal, refused.then(|| REFUSED.to_owned()), "{masks:?}");
        assert_eq!(left, masks, "{masks:?}");
    }
}

#[test]
fn same_or_kept_item_is_left_out_with_masks_for_all_else() {
    let without = with_configs(&[("port", "81")]);
    for (masks, narrowed) in [
        (&[ITEM][..], &[][..]),
        (
            &[ITEM, "desiredState.configs.port"],
            &["desiredState.configs.port"],
        ),
        (
            &["desiredState.configs"],
            &[
                "desiredState.configs.old",
                "desiredState.configs.port",
                "desiredState.configs.port",
            ],
        ),
        (
            &["desiredState"],
            &[
                "desiredState.configs.old",
                "desiredState.configs.port",
                "desiredState.configs.port",
                "desiredState.workloads",
            ],
        ),
    ] {
        for (mode, rule) in [
            ("drive", ModeRule::MustNotSwitch),
            ("drive", ModeRule::Keep),
            ("park", ModeRule::Keep),
        ] {
            let result = left(mode, masks, rule, server(Some("drive")));
            assert_eq!(
                result,
                (
                    None,
                    narrowed.iter().map(ToString::to_string).collect(),
                    without.clone()
                ),
                "{masks:?} {mode}"
            );
        }
    }
    assert_eq!(
        left(
            "",
            &["desiredState.configs", ITEM],
            ModeRule::Keep,
            server(Some("drive"))
        )
        .1
        .len(),
        3,
        "nor is it deleted"
    );
}

#[test]
fn item_can_be_created_deleted_and_is_ordinary_without_modes() {
    for (mode, server) in [
        ("park", server(None)),
        ("", server(Some("drive"))),
        ("park", with_configs(&[("mode", "drive")])),
    ] {
        for mask in [ITEM, "desiredState.configs", "desiredState"] {
            let (refusal, masks, _) = left(mode, &[mask], ModeRule::MustNotSwitch, server.clone());
            assert_eq!((refusal, masks), (None, vec![mask.to_owned()]));
        }
    }
}

#[test]
fn refused_switch_names_modes_and_options_and_sends_nothing() {
    let update = CliUpdate {
        new_state: with_configs(&[("mode", "park")]),
        masks: vec![ITEM.to_owned()],
        mode_rule: ModeRule::MustNotSwitch,
        ..CliUpdate::default()
    };
    let played = play(
        None,
        [Step::State(server(Some("drive")))],
        |link, output| {
            Context {
                link,
                output,
                waiting: Waiting::default(),
                ignore_modes: true,
            }
            .update_and_wait(update)
        },
    );
    let error = played.result.unwrap_err();
    assert_eq!(error.to_string(), REFUSED);
    assert_eq!(
        error.hint(),
        "nothing was changed; '--keep-mode' leaves the mode as it is, '--switch-mode' switches it"
    );
    assert!(played.server.updates.is_empty());
}

/// The update that 'ank apply' makes of a manifest with these options.
fn applied(name: &str, text: &str, delete: bool, mode: ModeChange) -> CliUpdate {
    let file = std::env::temp_dir().join(format!("ankaios-{}-{name}.yaml", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let manifests = vec![file.display().to_string()];
    let arguments = ManifestArguments {
        files: Vec::new(),
        agent: None,
        delete,
        ignore_modes: false,
        mode,
        prune: PruneArguments::default(),
        manifests,
    };
    let played = play(None, [], |_, output| apply::update(&arguments, output));
    std::fs::remove_file(&file).unwrap();
    played.result.unwrap()
}

#[test]
fn intended_switches_and_updates_without_the_item_are_unchecked() {
    let keep = || ModeChange {
        keep_mode: true,
        ..ModeChange::default()
    };
    let switch = || ModeChange {
        switch_mode: true,
        ..ModeChange::default()
    };
    let (item, none) = (
        "apiVersion: v1\nconfigs: {mode: park}\n",
        "apiVersion: v1\n",
    );
    for (text, delete, mode, expected) in [
        (item, false, ModeChange::default(), ModeRule::MustNotSwitch),
        (item, false, keep(), ModeRule::Keep),
        (item, false, switch(), ModeRule::MaySwitch),
        (item, true, ModeChange::default(), ModeRule::MaySwitch),
        (item, true, keep(), ModeRule::Keep),
        (none, false, ModeChange::default(), ModeRule::MaySwitch),
    ] {
        let update = applied("looked_at", text, delete, mode.clone());
        assert_eq!(update.mode_rule, expected, "{text:?} {delete} {mode:?}");
    }
    // Nothing is read then.
    let update = CliUpdate {
        masks: vec![ITEM.to_owned()],
        ..CliUpdate::default()
    };
    let waiting = Waiting {
        no_wait: true,
        ..Waiting::default()
    };
    let played = play(None, [Step::Accept(accepted(&[], &[]))], |link, output| {
        Context {
            link,
            output,
            waiting,
            ignore_modes: false,
        }
        .update_and_wait(update)
    });
    assert_eq!(played.result.unwrap(), ExitCode::Success);
    assert!(played.server.reads.is_empty());
}
