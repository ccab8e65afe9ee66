//! The table of updates and what `ank rollback` sends, against a scripted server.

use super::*;
use crate::cli::settings::Waiting;
use crate::cli::tests::{Played, Step, accepted, play};

const NOT_KEPT: &str = "Command failed: 'the server keeps no updates'";

fn texts(entries: &[(&str, &str)]) -> Node {
    Node::map(entries.iter().map(|(key, text)| (*key, Node::text(*text))))
}

fn with(mut node: Node, entries: impl IntoIterator<Item = (&'static str, Node)>) -> Node {
    let entries = entries.into_iter().map(|(key, value)| (key.to_owned(), value));
    node.as_map_mut().unwrap().extend(entries);
    node
}

fn names(names: &[&str]) -> Node {
    Node::map(names.iter().map(|name| (*name, Node::empty())))
}

fn known(updates: &[(&str, Node)]) -> Step {
    let updates = Node::map(updates.iter().map(|(id, update)| (*id, update.clone())));
    Step::State(Node::map([("updates", updates)]))
}

fn printed(steps: Vec<Step>) -> Played<()> {
    play(None, steps, |server, _, output| print(server, output))
}

#[test]
fn the_table_has_number_phase_time_names_and_reason() {
    let accepted = |second: u8| format!("2026-01-31T12:00:{second:02}Z");
    let waits = Node::List(["web", "agent B"].map(Node::text).into());
    let update = |phase: &str, second, workloads: &[&str]| {
        let texts = texts(&[("phase", phase), ("accepted", &accepted(second)), ("keptIn", "DISK")]);
        with(texts, [("workloads", names(workloads))])
    };
    let reason = [("reason", Node::text("web: Failed(ExecFailed):\nExit code: '1'"))];
    let played = printed(vec![known(&[
        ("10", with(update("TRIAL", 3, &["web"]), [("waitsFor", waits)])),
        ("9", with(update("UNDONE", 2, &["db", "web"]), reason)),
        ("2", with(update("REPLACED", 1, &["a", "b", "c", "d", "e"]), [("replacedBy", Node::text("9"))])),
        ("x", Node::empty()),
    ])]);
    let expected = "\
ID   PHASE      ACCEPTED               WORKLOADS            INFO                                   \n\
2    REPLACED   2026-01-31T12:00:01Z   a, b, c and 2 more   part of update 9                       \n\
9    UNDONE     2026-01-31T12:00:02Z   db, web              web: Failed(ExecFailed):, Exit code: '1'\n\
10   TRIAL      2026-01-31T12:00:03Z   web                  waits for web, agent B                 \n";
    let trimmed = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
    assert_eq!(trimmed(&played.out), trimmed(expected));
    assert_eq!(played.err, "");
    assert_eq!(played.server.reads, [["updates"]]);
}

#[test]
fn updates_that_a_restart_of_the_server_forgets_are_shown_with_a_warning() {
    let played = printed(vec![known(&[("1", texts(&[("phase", "GOOD"), ("keptIn", "MEMORY")]))])]);
    assert!(played.err.starts_with("warn: the server keeps updates in memory: "), "{}", played.err);
    let played = printed(vec![known(&[])]);
    assert_eq!((played.out.as_str(), played.err.as_str()), ("ID   PHASE   ACCEPTED   WORKLOADS   INFO\n", ""));
}

#[test]
fn a_server_without_updates_is_named_with_a_way_out() {
    let printed = printed(vec![Step::State(Node::empty())]).result.unwrap_err();
    let (_, played) = rolled_back(None, vec![Step::State(Node::empty())]);
    for error in [printed, played.result.unwrap_err()] {
        assert_eq!(error.to_string(), NOT_KEPT);
        assert_eq!(error.hint().as_deref(), Some("'ank apply --rollback' works with any server"));
    }
}

#[test]
fn texts_of_the_server_cannot_act_on_the_terminal() {
    let hostile = "a\x1b[2J\u{202e}";
    let update = with(
        texts(&[("phase", hostile), ("accepted", hostile), ("reason", hostile)]),
        [("workloads", names(&[hostile]))],
    );
    let played = printed(vec![known(&[("1", update)])]);
    assert!(!played.out.chars().any(crate::model::shown_text::acts_on_terminal), "{:?}", played.out);
}

const WEB: &str = "desiredState.workloads.web";
const PORT: &str = "desiredState.configs.port";

/// The desired state as update 2 left it: `web` changed, `gone` deleted, `port` added.
fn desired(web: &str) -> Node {
    let web = with(texts(&[("agent", "A"), ("runtime", "podman"), ("runtimeConfig", web)]), [("tags", Node::empty())]);
    let desired = [("workloads", Node::map([("web", web)])), ("configs", texts(&[("port", "80")]))];
    Node::map([("desiredState", Node::map(desired))])
}

/// Update `phase` with what was there before.
fn update(phase: &str) -> Node {
    let hash = |part: &str, name: &str| texts(&[("after", &hash(&desired("new"), part, name).unwrap())]);
    let workloads = Node::map([("web", hash("workloads", "web")), ("gone", Node::empty())]);
    with(
        texts(&[("phase", phase)]),
        [
            ("workloads", workloads),
            ("configs", Node::map([("port", hash("configs", "port"))])),
            ("before", texts(&[("apiVersion", "v1")])),
        ],
    )
}

/// Rolls back; gives the masks of the update that was sent.
fn rolled_back(id: Option<u64>, steps: Vec<Step>) -> (Option<Vec<String>>, Played<ExitCode>) {
    let played = play(None, steps, |link, clock, output| {
        let waiting = Waiting { no_wait: true, ..Waiting::default() };
        roll_back(id, &mut Context { link, clock, output, waiting })
    });
    (played.server.updates.first().map(|(_, masks)| masks.clone()), played)
}

fn all_known() -> Step {
    known(&[("1", update("KEPT")), ("2", update("GOOD")), ("3", update("UNDONE")), ("4", texts(&[("phase", "GOOD")]))])
}

#[test]
fn a_rollback_sends_what_was_there_before_with_all_names() {
    let steps = vec![all_known(), Step::State(desired("new")), Step::Accept(accepted(&["web.1.A"], &["web.2.A"]))];
    let (masks, played) = rolled_back(Some(2), steps);
    assert_eq!((played.result.unwrap(), played.err.as_str()), (ExitCode::Success, ""));
    assert_eq!(played.out, "Rolling back update 2.\n");
    let expected = [PORT, "desiredState.workloads.gone", WEB].map(str::to_owned);
    assert_eq!(masks.as_deref(), Some(&expected[..]));
    let before = Node::map([("desiredState", texts(&[("apiVersion", "v1")]))]);
    assert_eq!(played.server.updates[0].0, before);
    assert_eq!(played.server.reads[1], expected);
}

#[test]
fn what_was_changed_since_is_not_rolled_back() {
    let mut gone_is_back = desired("new");
    let workloads = gone_is_back.at_mut(&["desiredState", "workloads"]).unwrap().as_map_mut().unwrap();
    workloads.insert("gone".to_owned(), texts(&[("agent", "A")]));
    let mut other_port = desired("new");
    *other_port.at_mut(&["desiredState", "configs", "port"]).unwrap() = Node::text("81");
    for (now, name) in [
        (desired("other"), "workload 'web'"),
        (gone_is_back, "workload 'gone'"),
        (other_port, "config 'port'"),
        (Node::empty(), "config 'port'"),
    ] {
        let (masks, played) = rolled_back(Some(2), vec![all_known(), Step::State(now)]);
        let error = played.result.unwrap_err();
        assert_eq!(error.to_string(), format!("Command failed: '{name} was changed after update 2'"));
        assert_eq!((masks, played.out.as_str()), (None, ""));
    }
}

#[test]
fn without_a_number_it_is_the_newest_open_update_or_the_newest_in_force() {
    let update = |phase: &str| texts(&[("phase", phase)]);
    let chosen = |id, phases: &[(u64, &str)]| {
        let updates: Vec<(u64, Node)> = phases.iter().map(|(id, phase)| (*id, update(phase))).collect();
        let updates: Vec<(u64, &Node)> = updates.iter().map(|(id, update)| (*id, update)).collect();
        choose(id, &updates).map(|(id, _)| id).map_err(|error| error.to_string())
    };
    for (id, phases, expected) in [
        (None, &[(1, "TRIAL"), (2, "STAGING"), (3, "GOOD")][..], Ok(2)),
        (None, &[(1, "GOOD"), (2, "KEPT"), (3, "UNDONE"), (4, "STUCK"), (5, "WITHDRAWN"), (6, "NEW")], Ok(2)),
        (None, &[(1, "KEPT"), (2, "GOOD")], Ok(2)),
        (None, &[(1, "UNDONE"), (2, "REPLACED")], Err("there is no update to roll back")),
        (None, &[], Err("there is no update to roll back")),
        (Some(1), &[(1, "STUCK"), (2, "GOOD")], Ok(1)),
        (Some(7), &[(1, "GOOD")], Err("update 7 does not exist")),
    ] {
        assert_eq!(chosen(id, phases), expected.map_err(str::to_owned), "{phases:?}");
    }
}

/// Without masks the request would be one for the whole state.
#[test]
fn an_update_that_another_one_has_taken_over_is_not_rolled_back() {
    let before = Node::map([("apiVersion", Node::text("v1"))]);
    let replaced = with(texts(&[("phase", "REPLACED"), ("replacedBy", "9")]), [("before", before)]);
    let (masks, played) = rolled_back(Some(2), vec![known(&[("2", replaced)]), Step::State(Node::empty())]);
    let error = played.result.unwrap_err();
    assert_eq!(error.to_string(), "Command failed: 'nothing of update 2 is left: part of update 9'");
    assert_eq!(masks, None);
}

#[test]
fn an_update_whose_way_back_is_not_kept_any_more_is_an_error() {
    let (masks, played) = rolled_back(Some(4), vec![all_known()]);
    let error = played.result.unwrap_err().to_string();
    assert_eq!(error, "Command failed: 'the server does not keep any more what was there before update 4'");
    assert_eq!(masks, None);
}
