//! What `apply` and `run workload` refuse and warn of.

use super::super::*;
use crate::session::{CliUpdate, Context};
use crate::settings::Waiting;
use crate::tests::{Played, Step, accepted, play};

/// Workloads as `(name, tags, needs)`.
type Entry<'e> = (&'e str, &'e [(&'e str, &'e str)], &'e [&'e str]);

fn desired(workloads: &[Entry<'_>]) -> Node {
    let workload = |(name, tags, needs): &Entry<'_>| {
        let tags = Node::map(tags.iter().map(|(key, value)| (*key, Node::text(*value))));
        let needs = Node::map(
            needs
                .iter()
                .map(|name| (*name, Node::text("ADD_COND_RUNNING"))),
        );
        (
            (*name).to_owned(),
            Node::map([("tags", tags), ("dependencies", needs)]),
        )
    };
    Node::map([(
        "desiredState",
        Node::map([("workloads", Node::map(workloads.iter().map(workload)))]),
    )])
}

/// Checks an update of `sent`; the server has modes with these names, and `there`.
fn checked(sent: &[Entry<'_>], modes: Option<(&[&str], bool)>, there: &[Entry<'_>]) -> Played<()> {
    let mut state = desired(there);
    if let Some((known, on_failure)) = modes {
        let known = Node::List(known.iter().map(|mode| Node::text(*mode)).collect());
        let on_failure = on_failure.then(|| ("onFailure", Node::text("limp")));
        let modes = Node::map(
            [("configItem", Node::text("mode")), ("known", known)]
                .into_iter()
                .chain(on_failure),
        );
        state.as_map_mut().unwrap().insert(PART.to_owned(), modes);
    }
    let update = desired(sent);
    play(None, [Step::State(state)], |server, output| {
        check(&update, server, output)
    })
}

const NAV: Entry<'_> = ("nav", &[("modes", "drive")], &[]);

// [utest->swdd~cli-modes-need-a-server-with-modes~1]
#[test]
fn a_server_without_modes_gets_nothing_that_names_one() {
    let map = ("map", &[("modes", "park")][..], &[][..]);
    let played = checked(&[NAV, map, ("base", &[], &[])], None, &[]);
    let error = played.result.unwrap_err();
    let text =
        "Workloads with the tag 'modes' ('map', 'nav') would all run: this server has no modes.";
    assert_eq!(error.to_string(), text);
    assert_eq!(error.hint(), "'--ignore-modes' sends them anyway");
}

#[test]
fn nothing_is_read_without_the_tag_or_when_modes_are_ignored() {
    let played = checked(&[("base", &[("owner", "me")], &[])], None, &[]);
    assert!(played.result.is_ok() && played.server.reads.is_empty());
    for (checks_modes, ignore_modes) in [(false, false), (true, true)] {
        let masks = vec!["desiredState.workloads.nav".to_owned()];
        let update = CliUpdate {
            new_state: desired(&[NAV]),
            masks,
            checks_modes,
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
                ignore_modes,
            }
            .update_and_wait(update)
        });
        assert!(played.result.is_ok() && played.server.reads.is_empty());
    }
}

#[test]
fn what_is_probably_a_mistake_is_warned_of() {
    let known: &[&str] = &["drive", "park"];
    let tagged = |name, tag| (name, tag, &[] as &[&str]);
    let misspelt = [("modes", "prak")];
    let other = [("modes", "flash")];
    let park = [("modes", "park")];
    let essential = [("modes", "drive"), ("essential", "true")];
    for (sent, there, on_failure, expected) in [
        (vec![NAV], vec![], true, ""),
        (vec![tagged("w", &other[..])], vec![], true, ""),
        (
            vec![tagged("w", &misspelt)],
            vec![],
            true,
            "mode 'prak' of workload 'w' is not known; did you mean 'park'?",
        ),
        (
            vec![tagged("v", &misspelt), tagged("w", &misspelt)],
            vec![],
            true,
            "",
        ),
        (
            vec![tagged("w", &essential)],
            vec![],
            false,
            "the tag 'essential' of workload 'w' does nothing: this server has no mode for failures",
        ),
        (vec![tagged("w", &essential)], vec![], true, ""),
        (
            vec![("w", &essential, &["db"])],
            vec![tagged("db", &park)],
            true,
            "workload 'w' is in mode 'drive' without 'db', which it needs",
        ),
        (
            vec![("w", &park, &["db"])],
            vec![tagged("db", &park)],
            true,
            "",
        ),
        (
            vec![("w", &park, &["db", "missing"])],
            vec![tagged("db", &[])],
            true,
            "",
        ),
        // One that is there needs one that is sent.
        (
            vec![tagged("db", &park)],
            vec![("w", &[], &["db"])],
            true,
            "workload 'w' is in mode 'drive' without 'db', which it needs",
        ),
        (
            vec![NAV],
            vec![("w", &[], &["db"]), tagged("db", &park)],
            true,
            "",
        ),
    ] {
        let played = checked(&sent, Some((known, on_failure)), &there);
        assert!(played.result.is_ok());
        let warnings: Vec<&str> = played
            .err
            .lines()
            .map(|line| line.split_once("warn: ").unwrap().1)
            .collect();
        assert_eq!(warnings.join("\n"), expected, "{sent:?}");
    }
}

#[test]
fn of_many_warnings_the_first_ones_are_shown() {
    let names: Vec<String> = (10..22).map(|number| format!("w{number}")).collect();
    let sent: Vec<Entry<'_>> = names
        .iter()
        .map(|name| (name.as_str(), NAV.1, &["db"] as &[&str]))
        .collect();
    let played = checked(
        &sent,
        Some((&["drive", "park"], true)),
        &[("db", &[("modes", "park")], &[])],
    );
    let lines: Vec<&str> = played.err.lines().collect();
    assert_eq!(
        lines[..2],
        ["w10", "w11"].map(|name| format!(
            "warn: workload '{name}' is in mode 'drive' without 'db', which it needs"
        ))
    );
    assert_eq!((lines.len(), lines[10]), (11, "warn: and 2 more of these"));
}
