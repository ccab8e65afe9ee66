//! What `ank mode` prints and sends.

mod check;
mod kept;

use super::*;
use crate::error::ExitCode;
use crate::session::Context;
use crate::settings::Waiting;
use crate::tests::{Played, Step, accepted, play, reported, state};
use ankaios_model::execution_state::Phase;

/// A state with modes, in which `nav` and `map` name some.
fn with_modes(current: &str, cause: Option<&str>) -> Node {
    let texts = [
        ("configItem", Some("mode")),
        ("current", Some(current)),
        ("cause", cause),
    ];
    let known = ["drive", "limp", "park"].map(Node::text).to_vec();
    let texts = texts
        .into_iter()
        .filter_map(|(key, text)| Some((key, Node::text(text?))));
    let modes = Node::map(texts.chain([("known", Node::List(known))]));
    let workload = |tag: &str| Node::map([("tags", Node::map([(MODES_TAG, Node::text(tag))]))]);
    let workloads = [
        ("nav", workload("drive park drive")),
        ("map", workload("drive")),
        ("base", Node::empty()),
    ];
    Node::map([
        (PART, modes),
        (
            "effectiveState",
            Node::map([("workloads", Node::map(workloads))]),
        ),
    ])
}

fn error<T: std::fmt::Debug>(played: Played<T>) -> (String, String) {
    let error = played.result.unwrap_err();
    (error.to_string(), error.hint())
}

#[test]
fn table_has_each_known_mode_and_the_cause_is_a_warning() {
    let show = |format, cause| {
        play(
            None,
            [Step::State(with_modes("park", cause))],
            |server, output| show(server, format, output),
        )
    };
    let played = show(Format::Table, None);
    let expected = "\
MODE    CURRENT   WORKLOADS
drive             2        \n\
limp              0        \n\
park    yes       1        \n";
    assert_eq!((played.out.as_str(), played.err.as_str()), (expected, ""));
    assert_eq!(
        played.server.reads[0],
        ["modes", "effectiveState.workloads.*.tags"]
    );
    let played = show(Format::Json, Some("it failed"));
    assert!(played.err.contains("it failed"), "{}", played.err);
    let json: serde_json::Value = serde_json::from_str(&played.out).unwrap();
    let expected = serde_json::json!({
        "configItem": "mode", "current": "park", "known": ["drive", "limp", "park"], "cause": "it failed",
        "workloads": {"drive": 2, "limp": 0, "park": 1}
    });
    assert_eq!(json, expected);
}

#[test]
fn server_without_modes_is_reported_with_the_missing_key() {
    let expected = (
        "This server has no modes.".into(),
        "set 'mode_config' in ank-server.conf".into(),
    );
    let empty = || [Step::State(Node::empty())];
    let played = play(None, empty(), |server, output| {
        show(server, Format::Table, output)
    });
    assert_eq!(error(played), expected);
    let played = play(None, empty(), |server, _| switch(server, "park", true));
    assert!(played.server.updates.is_empty());
    assert_eq!(error(played), expected);
}

#[test]
fn only_known_modes_are_switched_to_unless_a_new_one_is_meant() {
    let switch = |mode: &str, may_be_new: bool| {
        play(
            None,
            [Step::State(with_modes("park", None))],
            |server, _| switch(server, mode, may_be_new),
        )
    };
    let text = |mode: &str| format!("Mode '{mode}' is not known.");
    assert_eq!(
        error(switch("prak", false)),
        (text("prak"), "did you mean 'park'?".into())
    );
    let hint = "'--new' switches to it anyway; the known ones are 'drive', 'limp', 'park'";
    assert_eq!(error(switch("flash", false)), (text("flash"), hint.into()));
    let hint = "no mode can have this name; the known ones are 'drive', 'limp', 'park'";
    assert_eq!(error(switch("go on", false)), (text("go on"), hint.into()));
    for (mode, may_be_new, accepted) in [
        ("drive", false, "Switched from mode 'park' to 'drive'."),
        ("park", false, "Mode 'park' is set already."),
        ("flash", true, "Switched from mode 'park' to 'flash'."),
    ] {
        let update = switch(mode, may_be_new).result.unwrap();
        assert_eq!(
            (update.accepted.as_str(), update.masks),
            (accepted, vec!["desiredState.configs.mode".to_owned()])
        );
        let item = update.new_state.at(&["desiredState", "configs", "mode"]);
        assert_eq!(item.and_then(Node::as_text), Some(mode));
    }
}

#[test]
fn a_switch_that_was_accepted_is_reported_first() {
    let update = |no_wait: bool| {
        let running = || Step::State(state(&["A"], &[("nav", "1", "A", Phase::Running)]));
        let before = (!no_wait).then(running);
        let steps = before.into_iter().chain([Step::Accept(accepted(&[], &[]))]);
        play(None, steps, |link, output| {
            let waiting = Waiting {
                no_wait,
                ..Waiting::default()
            };
            let update = CliUpdate {
                masks: vec!["m".into()],
                accepted: "Switched.".into(),
                ..CliUpdate::default()
            };
            Context {
                link,
                output,
                waiting,
                ignore_modes: false,
            }
            .update_and_wait(update)
        })
    };
    let played = update(false);
    assert_eq!(played.result.unwrap(), ExitCode::Success);
    assert_eq!(played.out, "Switched.\n");
    assert_eq!(update(true).out, "Switched.\n");
}

#[test]
fn wait_for_a_switch_reports_a_switch_of_the_server() {
    let steps = [
        Step::State(state(&["A"], &[])),
        Step::Accept(accepted(&["nav.1.A"], &[])),
        Step::State(state(&["A"], &[("nav", "1", "A", Phase::PendingInitial)])),
        Step::Broadcast(vec![reported("nav.1.A", Phase::FailedExecFailed, "")]),
        Step::State(with_modes("limp", Some("'nav' failed; switched"))),
    ];
    let played = play(None, steps, |link, output| {
        let update = CliUpdate {
            masks: vec!["m".into()],
            accepted: "Switched.".into(),
            ..CliUpdate::default()
        };
        Context {
            link,
            output,
            waiting: Waiting::default(),
            ignore_modes: false,
        }
        .update_and_wait(update)
    });
    assert_eq!(played.result.unwrap(), ExitCode::Success);
    assert!(
        played.err.ends_with("warn: 'nav' failed; switched\n"),
        "{}",
        played.err
    );
}

#[test]
fn without_the_item_no_mode_is_set() {
    let mut state = with_modes("park", None);
    state
        .at_mut(&[PART])
        .and_then(Node::as_map_mut)
        .map(|modes| modes.remove("current"));
    let played = play(None, [Step::State(state)], |server, output| {
        show(server, Format::Table, output)
    });
    assert_eq!(
        played.err,
        "warn: config item 'mode' does not exist, so no mode is set\n"
    );
}
