//! The table of updates and what `ank rollback` sends, against a scripted server.

use super::*;
use crate::settings::Waiting;
use crate::tests::{Played, Step, accepted, play};

const NOT_KEPT: &str = "the server keeps no updates";

fn texts(entries: &[(&str, &str)]) -> Node {
    Node::map(entries.iter().map(|(key, text)| (*key, Node::text(*text))))
}

fn with(mut node: Node, entries: impl IntoIterator<Item = (&'static str, Node)>) -> Node {
    let entries = entries.into_iter().map(|(key, value)| (key.into(), value));
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
    play(None, steps, |server, output| {
        print(&ListArguments::default(), server, output)
    })
}

#[test]
fn the_table_has_number_phase_time_names_and_reason() {
    let accepted = |second: u8| format!("2026-01-31T12:00:{second:02}Z");
    let waits = Node::List(["web", "agent B"].map(Node::text).into());
    let update = |phase: &str, second, workloads: &[&str]| {
        let texts = texts(&[
            ("phase", phase),
            ("accepted", &accepted(second)),
            ("keptIn", "DISK"),
        ]);
        with(texts, [("workloads", names(workloads))])
    };
    let reason = [(
        "reason",
        Node::text("web: Failed(ExecFailed):\nExit code: '1'"),
    )];
    let played = printed(vec![known(&[
        (
            "10",
            with(update("TRIAL", 3, &["web"]), [("waitsFor", waits)]),
        ),
        ("9", with(update("UNDONE", 2, &["db", "web"]), reason)),
        (
            "2",
            with(
                update("REPLACED", 1, &["a", "b", "c", "d", "e"]),
                [("replacedBy", Node::text("9"))],
            ),
        ),
        ("x", Node::empty()),
    ])]);
    let expected = "\
ID   PHASE      ACCEPTED               WORKLOADS            INFO                                   \n\
2    REPLACED   2026-01-31T12:00:01Z   a, b, c and 2 more   part of update 9                       \n\
9    UNDONE     2026-01-31T12:00:02Z   db, web              web: Failed(ExecFailed):, Exit code: '1'\n\
10   TRIAL      2026-01-31T12:00:03Z   web                  waits for web, agent B                 \n";
    let trimmed = |text: &str| {
        text.lines()
            .map(|line| line.trim_end().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(trimmed(&played.out), trimmed(expected));
    assert_eq!(played.err, "");
    assert_eq!(played.server.reads, [["updates", "warning"]]);
}

#[test]
fn updates_lost_by_a_server_restart_are_shown_with_a_warning() {
    let played = printed(vec![known(&[(
        "1",
        texts(&[("phase", "GOOD"), ("keptIn", "MEMORY")]),
    )])]);
    assert!(
        played
            .err
            .starts_with("warn: the server keeps updates in memory: "),
        "{}",
        played.err
    );
    let played = printed(vec![known(&[])]);
    assert_eq!(
        (played.out.as_str(), played.err.as_str()),
        ("ID   PHASE   ACCEPTED   WORKLOADS   INFO\n", "")
    );
}

#[test]
fn a_server_without_updates_is_named_with_a_way_out() {
    let printed = printed(vec![Step::State(Node::empty())])
        .result
        .unwrap_err();
    let (_, played) = rolled_back(None, vec![Step::State(Node::empty())]);
    for error in [printed, played.result.unwrap_err()] {
        assert_eq!(error.to_string(), NOT_KEPT);
        assert_eq!(error.hint(), "'ank apply --rollback' works with any server");
    }
}

#[test]
fn texts_of_the_server_cannot_act_on_the_terminal() {
    let hostile = "a\x1b[2J\u{202e}";
    let update = with(
        texts(&[
            ("phase", hostile),
            ("accepted", hostile),
            ("reason", hostile),
        ]),
        [("workloads", names(&[hostile]))],
    );
    let played = printed(vec![known(&[("1", update)])]);
    assert!(
        !played
            .out
            .chars()
            .any(ankaios_model::shown_text::acts_on_terminal),
        "{:?}",
        played.out
    );
}

/// Update `phase` of workload `web` and config `port`.
fn update(phase: &str) -> Node {
    with(
        texts(&[("phase", phase)]),
        [
            ("workloads", names(&["web"])),
            ("configs", names(&["port"])),
        ],
    )
}

/// Rolls back; gives the numbers that were sent.
fn rolled_back(id: Option<u64>, steps: Vec<Step>) -> (Vec<Node>, Played<ExitCode>) {
    let played = play(None, steps, |link, output| {
        let waiting = Waiting {
            no_wait: true,
            ..Waiting::default()
        };
        roll_back(
            id,
            &mut Context {
                link,
                output,
                waiting,
                ignore_modes: false,
            },
        )
    });
    (
        played
            .server
            .updates
            .iter()
            .map(|(sent, _)| sent.clone())
            .collect(),
        played,
    )
}

#[test]
fn a_rollback_names_what_it_sets_back_and_is_one_request() {
    let one = with(
        texts(&[("phase", "UNDONE")]),
        [("workloads", names(&["a\x1b[2J", "b"]))],
    );
    for (id, sent, named) in [
        (
            None,
            2,
            "Rolling back update 2: workload 'web' and config 'port'.\n",
        ),
        (
            Some(1),
            1,
            "Rolling back update 1: workload 'web' and config 'port'.\n",
        ),
        (
            Some(3),
            3,
            "Rolling back update 3: workloads 'a\u{fffd}[2J', 'b'.\n",
        ), // The server refuses it.
        (Some(4), 4, ""), // This, too.
    ] {
        let replaced = texts(&[("phase", "REPLACED")]);
        let all = [
            ("1", update("KEPT")),
            ("2", update("TRIAL")),
            ("3", one.clone()),
            ("4", replaced),
        ];
        let (requests, played) = rolled_back(
            id,
            vec![
                known(&all),
                Step::Accept(accepted(&["web.1.A"], &["web.2.A"])),
            ],
        );
        assert_eq!(
            (played.result.unwrap(), played.err.as_str()),
            (ExitCode::Success, "")
        );
        assert_eq!(requests, [Node::Number(sent)]);
        assert_eq!(played.out, named);
    }
}

#[test]
fn rollback_of_a_staged_update_says_that_nothing_was_done() {
    let known = || known(&[("1", update("STAGING"))]);
    let played = play(
        None,
        vec![known(), known(), Step::Accept(accepted(&[], &[]))],
        |link, output| {
            roll_back(
                None,
                &mut Context {
                    link,
                    output,
                    waiting: Waiting::default(),
                    ignore_modes: false,
                },
            )
        },
    );
    let named = "Rolling back update 1: workload 'web' and config 'port'.\n";
    assert_eq!(
        played.out,
        format!("{named}Rolled back. Nothing had to be stopped or started.\n")
    );
    assert_eq!(
        (played.result.unwrap(), played.err.as_str()),
        (ExitCode::Success, "")
    );
}

#[test]
fn what_the_server_refuses_is_an_error() {
    let steps = vec![
        known(&[("1", update("GOOD"))]),
        Step::Refuse("Update rejected: 'config 'port' was changed'"),
    ];
    let error = rolled_back(None, steps).1.result.unwrap_err();
    assert_eq!(error.to_string(), "config 'port' was changed");
    assert_eq!(
        error.hint(),
        "nothing was changed; 'ank get updates' lists the updates"
    );
}

/// After a list whose newest update was rolled back or withdrawn, `ank rollback` means that one,
/// not the one before it.
#[test]
fn rollback_without_number_takes_newest_open_or_active_update() {
    let undone = |id: u64| {
        Err(format!(
            "the newest update, {id}, was rolled back: what was there before it is active"
        ))
    };
    let withdrawn = |id: u64| {
        Err(format!(
            "the newest update, {id}, was withdrawn: nothing of it is active"
        ))
    };
    let none = || Err("there is no update to roll back".to_owned());
    for (phases, expected) in [
        (&[(1, "TRIAL"), (2, "STAGING"), (3, "UNDONE")][..], Ok(2)),
        (
            &[
                (1, "GOOD"),
                (2, "KEPT"),
                (3, "UNDONE"),
                (4, "WITHDRAWN"),
                (5, "STUCK"),
                (6, "NEW"),
            ],
            Ok(2),
        ),
        (
            &[
                (1, "GOOD"),
                (2, "KEPT"),
                (3, "UNDONE"),
                (4, "STUCK"),
                (5, "WITHDRAWN"),
                (6, "NEW"),
            ],
            withdrawn(5),
        ),
        (&[(1, "TRIAL"), (2, "WITHDRAWN")], Ok(1)),
        (&[(1, "KEPT"), (2, "GOOD")], Ok(2)),
        (&[(9, "GOOD"), (10, "UNDONE")], undone(10)),
        (&[(1, "GOOD"), (2, "UNDONE"), (3, "REPLACED")], undone(2)),
        (
            &[(1, "GOOD"), (2, "WITHDRAWN"), (3, "REPLACED")],
            withdrawn(2),
        ),
        (&[(1, "UNDONE")], undone(1)),
        (&[(2, "REPLACED")], none()),
        (
            &[],
            Err("there is no guarded update to roll back".to_owned()),
        ),
    ] {
        let updates: Vec<(String, Node)> = phases
            .iter()
            .map(|(id, phase)| (id.to_string(), update(phase)))
            .collect();
        let updates: Vec<(&str, Node)> = updates
            .iter()
            .map(|(id, update)| (id.as_str(), update.clone()))
            .collect();
        let (requests, played) = rolled_back(
            None,
            vec![known(&updates), Step::Accept(accepted(&[], &[]))],
        );
        let result = played
            .result
            .map(|_| requests.first().and_then(Node::as_number).unwrap());
        assert_eq!(
            result.map_err(|error| error.to_string()),
            expected,
            "{phases:?}"
        );
    }
    let updates = [("9", update("GOOD")), ("10", update("UNDONE"))];
    let hint = rolled_back(None, vec![known(&updates)])
        .1
        .result
        .unwrap_err()
        .hint();
    let earlier = "'ank rollback 9' rolls back update 9, of workload 'web' and config 'port'";
    assert_eq!(hint, earlier);
}

#[test]
fn an_update_that_does_not_exist_is_an_error() {
    let (requests, played) = rolled_back(Some(7), vec![known(&[("1", update("GOOD"))])]);
    assert_eq!(
        played.result.unwrap_err().to_string(),
        "update 7 does not exist"
    );
    assert_eq!(requests, []);
}
