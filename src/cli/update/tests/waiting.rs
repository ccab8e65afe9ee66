//! Which states end a wait, what the frames show, and how a wait ends without success.

use super::*;
use crate::tests::{Step, accepted, instance, let_need, play, reported, state};

fn wait_state(added: &[&str], deleted: &[&str], connected: &[&str]) -> WaitState {
    let all: Vec<InstanceName> = added
        .iter()
        .chain(deleted)
        .map(|name| instance(name))
        .collect();
    let listed: Vec<(&str, &str, &str, Phase)> = all
        .iter()
        .map(|name| {
            (
                &*name.workload,
                &*name.id,
                &*name.agent,
                Phase::PendingInitial,
            )
        })
        .collect();
    WaitState::new(
        &accepted(added, deleted),
        &Node::empty(),
        &state(connected, &listed),
        AbsentAgents::Skipped,
    )
}

/// The info of an instance in a frame.
fn info_of(state: &WaitState, name: &str) -> String {
    let instance = instance(name);
    state.reasons.explained(&instance).info
}

#[test]
fn each_phase_ends_the_wait_for_an_instance_as_the_table_says() {
    use Phase::*;
    for phase in Phase::ALL.map(|row| row.0) {
        let starts = [
            Running,
            Succeeded,
            FailedExecFailed,
            FailedUnknown,
            FailedLost,
            NotScheduled,
            PendingStartingFailed,
            AgentDisconnected,
        ];
        let mut added = wait_state(&["w.1.A"], &[], &["A"]);
        assert!(!added.is_settled());
        added.on_states(&[reported("w.1.A", phase, "")]);
        assert_eq!(added.is_settled(), starts.contains(&phase), "added {phase}");

        let mut deleted = wait_state(&[], &["w.1.A"], &["A"]);
        assert!(!deleted.is_settled());
        deleted.on_states(&[reported("w.1.A", phase, "")]);
        assert_eq!(
            deleted.is_settled(),
            [Removed, AgentDisconnected].contains(&phase),
            "deleted {phase}"
        );
    }
}

#[test]
fn an_instance_in_both_lists_must_go_and_come_back() {
    let mut state = wait_state(&["w.1.A"], &["w.1.A"], &["A"]);
    state.on_states(&[reported("w.1.A", Phase::Removed, "")]);
    assert!(!state.is_settled());
    state.on_states(&[
        reported("w.1.A", Phase::PendingStarting, ""),
        reported("w.1.A", Phase::Running, ""),
    ]);
    assert!(state.is_settled());
}

/// It was set back without waiting, and applied again before it had ended.
#[test]
fn late_states_of_an_older_instance_do_not_end_the_wait() {
    let begin = |earlier: &[Phase]| {
        let complete = state(&["A"], &[("w", "1", "A", Phase::Running)]);
        let mut accepted = accepted(&["w.1.A"], &[]);
        accepted.earlier = earlier
            .iter()
            .map(|phase| reported("w.1.A", *phase, ""))
            .collect();
        WaitState::new(&accepted, &complete, &complete, AbsentAgents::Skipped)
    };
    let mut state = begin(&[]);
    for phase in [
        Phase::Running,
        Phase::StoppingRequestedAtRuntime,
        Phase::Removed,
    ] {
        state.on_states(&[reported("w.1.A", phase, "")]);
        assert!(!state.is_settled(), "{phase}");
    }
    state.on_states(&[reported("w.1.A", Phase::PendingStarting, "")]);
    state.on_states(&[reported("w.1.A", Phase::FailedExecFailed, "")]);
    assert!(state.is_settled());
    assert_eq!(state.failures(), [&instance("w.1.A")]);
    // What ended before the update was accepted does not end once more.
    let mut state = begin(&[Phase::StoppingRequestedAtRuntime, Phase::Removed]);
    state.on_states(&[reported("w.1.A", Phase::Running, "")]);
    assert!(state.is_settled());
    let mut state = begin(&[Phase::Removed, Phase::PendingStarting]);
    state.on_states(&[reported("w.1.A", Phase::Running, "")]);
    assert!(!state.is_settled(), "it was started again before");
}

#[test]
fn end_of_a_waiting_workload_is_not_awaited() {
    for (before, ends) in [
        (Phase::PendingInitial, false),
        (Phase::PendingWaitingToStart, false),
        (Phase::StoppingWaitingToStop, false),
        (Phase::PendingStarting, true),
        (Phase::Running, true),
    ] {
        let complete = state(&["A"], &[("w", "1", "A", before)]);
        let names = ["w.1.A"];
        let mut state = WaitState::new(
            &accepted(&names, &names),
            &complete,
            &complete,
            AbsentAgents::Skipped,
        );
        state.on_states(&[reported("w.1.A", Phase::Running, "")]);
        assert_eq!(!state.is_settled(), ends, "{before}");
    }
}

#[test]
fn instances_of_disconnected_agents_are_not_awaited() {
    assert!(wait_state(&["w.1.B"], &["v.1.B"], &["A"]).is_settled());
    assert!(wait_state(&["w.1."], &["v.1."], &[]).is_settled());
    let mut state = wait_state(&["w.1.A", "v.1.B"], &[], &["A"]);
    assert!(!state.is_settled());
    state.on_states(&[reported("w.1.A", Phase::Running, "")]);
    assert!(state.is_settled());
}

#[test]
fn what_the_server_does_not_list_any_more_is_removed_already() {
    let before = state(&["A"], &[("w", "1", "A", Phase::Running)]);
    let state = WaitState::new(
        &accepted(&[], &["w.1.A"]),
        &before,
        &state(&["A"], &[]),
        AbsentAgents::Skipped,
    );
    assert!(state.is_settled());
    let frame = state.frame(' ', 200, usize::MAX);
    assert_eq!(
        frame[1].trim_end(),
        "w               A       podman      Removed"
    );
}

#[test]
fn states_of_others_change_nothing() {
    let mut state = wait_state(&["w.1.A"], &[], &["A"]);
    let frame = state.frame('|', 200, usize::MAX);
    for name in ["w.2.A", "w.1.B", "v.1.A"] {
        state.on_states(&[reported(name, Phase::Running, "")]);
    }
    assert!(!state.is_settled());
    assert_eq!(state.frame('|', 200, usize::MAX), frame);
}

#[test]
fn frames_show_a_spinner_while_an_instance_is_outstanding() {
    let mut state = wait_state(&["sleepy.1.cspA", "web.2.cspA"], &[], &["cspA"]);
    state.on_states(&[
        reported(
            "sleepy.1.cspA",
            Phase::PendingStarting,
            "Triggered at runtime.",
        ),
        reported("web.2.cspA", Phase::Running, ""),
    ]);
    let expected = [
        "WORKLOAD NAME   AGENT   RUNTIME     EXECUTION STATE     ADDITIONAL INFO      ",
        "sleepy          cspA    podman    / Pending(Starting)   Triggered at runtime.",
        "web             cspA    podman      Running(Ok)                              ",
    ];
    assert_eq!(state.frame('/', 200, usize::MAX), expected);
    assert_eq!(
        state.frame('/', 74, usize::MAX)[1],
        "sleepy          cspA    podman    / Pending(Starting)   Triggered at ru..."
    );
}

#[test]
fn outstanding_texts_that_a_narrow_table_cuts_are_below_it() {
    let mut state = wait_state(&["db.1.A", "web.1.A"], &[], &["A"]);
    let info = "Retry 3: Error: no space left on device, and nothing helps";
    state.on_states(&[
        reported("web.1.A", Phase::PendingStarting, info),
        reported("db.1.A", Phase::Running, info),
    ]);
    let frame = state.frame('|', 76, usize::MAX);
    assert_eq!(frame[3..], [String::new(), format!("web: {info}")]);
    assert_eq!(state.frame('|', 76, 5).len(), 5);
    assert_eq!(state.frame('|', 76, 4).len(), 3, "no room");
    assert_eq!(
        state.frame('|', 40, 9)[4],
        "web: Retry 3: Error: no space left on..."
    );
    assert_eq!(state.frame('|', 200, 9).len(), 3, "nothing is cut");
    state.on_states(&[reported("web.1.A", Phase::Running, info)]);
    assert_eq!(state.frame(' ', 76, usize::MAX).len(), 3, "all are done");
}

#[test]
fn a_frame_that_is_too_long_shows_what_is_outstanding() {
    let names: Vec<String> = (0..20).map(|index| format!("w{index:02}.1.A")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut state = wait_state(&names, &[], &["A"]);
    let running: Vec<WorkloadState> = names
        .iter()
        .take(17)
        .map(|name| reported(name, Phase::Running, ""))
        .collect();
    state.on_states(&running);
    let shown = |state: &WaitState, lines| -> Vec<String> {
        let frame = state.frame('|', 200, lines);
        frame[1..]
            .iter()
            .map(|line| line.split("   ").next().unwrap_or_default().to_owned())
            .collect()
    };
    assert_eq!(
        shown(&state, 5),
        ["w17", "w18", "w19", "and 17 more, 0 of them not finished"]
    );
    assert_eq!(
        shown(&state, 7),
        [
            "w00",
            "w01",
            "w17",
            "w18",
            "w19",
            "and 15 more, 0 of them not finished"
        ]
    );
    assert_eq!(
        shown(&state, 3),
        ["w17", "and 19 more, 2 of them not finished"]
    );
    assert_eq!(shown(&state, 21).len(), 20);
    assert_eq!(shown(&state, usize::MAX).len(), 20);
}

#[test]
fn failures_are_listed_in_full_length() {
    let mut state = wait_state(&["a.1.A", "b.1.A", "c.1.A", "d.1.A"], &["e.1.A"], &["A"]);
    let long = "x".repeat(500);
    state.on_states(&[
        reported("a.1.A", Phase::FailedExecFailed, "Exit code: '1'"),
        reported("b.1.A", Phase::PendingStartingFailed, &long),
        reported("c.1.A", Phase::Succeeded, ""),
        reported("d.1.A", Phase::PendingWaitingToStart, ""),
        reported("e.1.A", Phase::FailedLost, ""),
    ]);
    let names = |instances: Vec<&InstanceName>| {
        instances
            .iter()
            .map(|name| name.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(state.failures()), ["a.1.A", "b.1.A"]);
    // A deleted workload is waited for until it is gone.
    assert_eq!(names(state.outstanding()), ["d.1.A", "e.1.A"]);
    let summary = state.summary(state.failures()).text(65_535, TooWide::Wrap);
    assert_eq!(summary.lines().count(), 3);
    assert!(
        summary
            .lines()
            .nth(2)
            .unwrap()
            .ends_with(&format!("Pending(StartingFailed)   {long}")),
        "{summary}"
    );
}

/// `web` needs `db` running and `init` succeeded, `db` needs nothing; all are added but `init`.
fn dependent() -> WaitState {
    let mut now = state(
        &["A"],
        &[
            ("db", "1", "A", Phase::PendingInitial),
            ("init", "1", "B", Phase::Running),
            ("web", "1", "A", Phase::PendingInitial),
        ],
    );
    let needs = [
        ("db", "ADD_COND_RUNNING"),
        ("init", "ADD_COND_SUCCEEDED"),
        ("nobody", "ADD_COND_FAILED"),
    ];
    let_need(&mut now, "effectiveState", "web", &needs);
    WaitState::new(
        &accepted(&["web.1.A", "db.1.A"], &[]),
        &Node::empty(),
        &now,
        AbsentAgents::Skipped,
    )
}

#[test]
fn a_workload_that_waits_shows_for_what() {
    let mut state = dependent();
    let info = |state: &WaitState| info_of(state, "web.1.A");
    assert_eq!(info(&state), "");
    state.on_states(&[reported("web.1.A", Phase::PendingWaitingToStart, "")]);
    assert_eq!(
        info(&state),
        "waits for 'db' to run: it is Pending(Initial); waits for 'init' to succeed: it is Running(Ok); \
         waits for 'nobody' to fail: it does not exist"
    );
    state.on_states(&[
        reported("init.1.B", Phase::Succeeded, ""), // Not ours, but waited for.
        reported("db.1.A", Phase::PendingStarting, "Retry 2: no image"),
        reported("nobody.1.A", Phase::FailedExecFailed, ""),
    ]);
    assert_eq!(
        info(&state),
        "waits for 'db' to run: it is Pending(Starting)"
    );
    let frame = state.frame('|', 200, usize::MAX);
    assert!(
        frame[1].contains("| Pending(Starting)         Retry 2: no image"),
        "{frame:#?}"
    );
    assert!(
        frame[2].ends_with(
            "| Pending(WaitingToStart)   waits for 'db' to run: it is Pending(Starting)"
        ),
        "{frame:#?}"
    );
    state.on_states(&[
        reported("db.1.A", Phase::Running, ""),
        reported("web.1.A", Phase::Running, ""),
    ]);
    assert_eq!(info(&state), "");
}

#[test]
fn a_workload_that_must_not_stop_yet_shows_what_still_needs_it() {
    let mut before = state(&["A"], &[]);
    let_need(
        &mut before,
        "desiredState",
        "web",
        &[("db", "ADD_COND_RUNNING")],
    );
    let now = state(
        &["A"],
        &["db", "web"].map(|name| (name, "1", "A", Phase::Running)),
    );
    let mut state = WaitState::new(
        &accepted(&[], &["db.1.A", "web.1.A"]),
        &before,
        &now,
        AbsentAgents::Skipped,
    );
    state.on_states(&[
        reported("db.1.A", Phase::StoppingWaitingToStop, ""),
        reported("web.1.A", Phase::StoppingRequestedAtRuntime, ""),
    ]);
    let info = |state: &WaitState| info_of(state, "db.1.A");
    assert_eq!(
        info(&state),
        "waits for 'web' to end: it is Stopping(RequestedAtRuntime)"
    );
    state.on_states(&[reported("web.1.A", Phase::Removed, "")]);
    assert_eq!(info(&state), "");
}

#[test]
fn dependents_that_delay_a_stop_are_named_together() {
    let mut now = state(
        &["A"],
        &["a", "b", "c", "d", "db"].map(|name| (name, "1", "A", Phase::Running)),
    );
    for name in ["a", "b", "c", "d"] {
        let_need(
            &mut now,
            "desiredState",
            name,
            &[("db", "ADD_COND_RUNNING")],
        );
    }
    let mut state = WaitState::new(
        &accepted(&["db.2.A"], &["db.1.A"]),
        &now,
        &now,
        AbsentAgents::Skipped,
    );
    state.on_states(&[reported("db.1.A", Phase::StoppingWaitingToStop, "")]);
    let waits = "waits for 'a', 'b', 'c' and 1 more to end";
    assert_eq!(info_of(&state, "db.1.A"), waits);
    for (is_guarded, restart) in [(false, "db"), (true, "a b c d")] {
        state.is_guarded = is_guarded;
        let expected =
            format!("'db' {waits}: use 'ank restart {restart}', or delete or change what needs it");
        assert_eq!(state.advice(), Some(expected));
    }
}

#[test]
fn dependency_that_the_update_removed_is_not_awaited() {
    let mut now = state(&["A"], &[("web", "1", "A", Phase::PendingWaitingToStart)]);
    let mut before = now.clone();
    let (cache, db) = (("cache", "ADD_COND_RUNNING"), ("db", "ADD_COND_RUNNING"));
    let_need(&mut before, "effectiveState", "web", &[cache, db]);
    let_need(&mut now, "effectiveState", "web", &[cache]);
    let state = WaitState::new(
        &accepted(&["web.1.A"], &[]),
        &before,
        &now,
        AbsentAgents::Skipped,
    );
    assert_eq!(
        info_of(&state, "web.1.A"),
        "waits for 'cache' to run: it does not exist"
    );
}

/// As in a restart: its old instance is removed, and there is no new one yet.
#[test]
fn what_has_ended_is_not_said_to_be_misspelt() {
    let mut now = state(
        &["A"],
        &[
            ("web", "1", "A", Phase::PendingWaitingToStart),
            ("db", "1", "A", Phase::Running),
        ],
    );
    let_need(
        &mut now,
        "effectiveState",
        "web",
        &[("db", "ADD_COND_RUNNING")],
    );
    let mut state = WaitState::new(
        &accepted(&["web.1.A"], &["db.1.A"]),
        &now,
        &now,
        AbsentAgents::Skipped,
    );
    state.on_states(&[reported("db.1.A", Phase::Removed, "")]);
    assert_eq!(
        info_of(&state, "web.1.A"),
        "waits for 'db' to run: it has ended"
    );
}

/// An instance without an agent needs nothing.
#[test]
fn what_is_not_scheduled_keeps_nothing_from_ending() {
    let mut before = state(&["A"], &[]);
    let_need(
        &mut before,
        "desiredState",
        "web",
        &[("db", "ADD_COND_RUNNING")],
    );
    let web = [
        ("web", "1", "", Phase::NotScheduled),
        ("web", "1", "A", Phase::Running),
    ];
    let now = state(
        &["A"],
        &[
            web[0],
            web[1],
            ("db", "1", "A", Phase::StoppingWaitingToStop),
        ],
    );
    let state = WaitState::new(
        &accepted(&[], &["db.1.A"]),
        &before,
        &now,
        AbsentAgents::Skipped,
    );
    assert_eq!(
        info_of(&state, "db.1.A"),
        "waits for 'web' to end: it is Running(Ok)"
    );
}

#[test]
fn a_removed_instance_does_not_go_back_to_stopping() {
    let mut state = wait_state(&["w.2.A"], &["w.1.A"], &["A"]);
    state.on_states(&[reported("w.1.A", Phase::Removed, "")]);
    state.on_states(&[reported("w.1.A", Phase::StoppingRequestedAtRuntime, "late")]);
    let summary = state.summary([&instance("w.1.A")]);
    assert_eq!(
        (summary.rows[0][3].as_str(), summary.rows[0][4].as_str()),
        ("Removed", "")
    );
}

#[test]
fn removed_instance_has_a_row_until_another_replaces_it() {
    let names_and_states = |state: &WaitState| {
        let frame = state.frame(' ', 200, usize::MAX);
        let mut rows = Vec::new();
        for line in &frame[1..] {
            rows.push(line.split_whitespace().collect::<Vec<_>>().join(" "));
        }
        rows
    };
    let mut state = wait_state(&["w.2.A"], &["w.1.A", "v.1.A"], &["A"]);
    state.on_states(&[reported("w.1.A", Phase::StoppingRequestedAtRuntime, "")]);
    state.on_states(&[reported("v.1.A", Phase::Removed, "")]);
    let expected = [
        "v A podman Removed",
        "w A podman Stopping(RequestedAtRuntime)",
        "w A podman Pending(Initial)",
    ];
    assert_eq!(names_and_states(&state), expected);
    state.on_states(&[reported("w.1.A", Phase::Removed, "")]);
    let expected = ["v A podman Removed", "w A podman Pending(Initial)"];
    assert_eq!(names_and_states(&state), expected);
    // All instances of a workload are removed.
    state.on_states(&[reported("w.2.A", Phase::Removed, "")]);
    let rows = names_and_states(&state);
    assert!(rows.contains(&"w A podman Removed".to_owned()), "{rows:?}");
}

#[test]
fn what_was_deleted_stands_above_what_replaced_it() {
    let (old, new, other) = (instance("w.b.A"), instance("w.a.A"), instance("v.c.A"));
    let mut state = wait_state(&["w.a.A", "v.c.A"], &["w.b.A"], &["A"]);
    state.on_states(&[reported("w.b.A", Phase::StoppingDeleteFailed, "")]);
    let summary = state.summary([&new, &old, &other]);
    let states: Vec<[&str; 2]> = summary
        .rows
        .iter()
        .map(|row| [row[0].as_str(), row[3].as_str()])
        .collect();
    assert_eq!(
        states,
        [
            ["v", "Pending(Initial)"],
            ["w", "Stopping(DeleteFailed)"],
            ["w", "Pending(Initial)"]
        ]
    );
}

/// Plays `steps` and returns the end of the wait and the output.
fn run(state: &mut WaitState, steps: Vec<Step>) -> (Result<bool>, String) {
    run_in(None, state, steps)
}

fn run_in(
    terminal: Option<fn() -> (usize, usize)>,
    state: &mut WaitState,
    steps: Vec<Step>,
) -> (Result<bool>, String) {
    let played = play(terminal, steps, |link, output| {
        wait(
            state,
            settled,
            None,
            &mut Context {
                link,
                output,
                waiting: crate::settings::Waiting::default(),
                ignore_modes: false,
            },
        )
    });
    (played.result, played.out)
}

#[test]
fn changes_and_final_frame_are_written_without_a_terminal() {
    let mut state = wait_state(&["w.1.A"], &[], &["A"]);
    let (end, text) = run(
        &mut state,
        vec![
            Step::Silence(Duration::from_secs(600)),
            Step::Broadcast(vec![reported("w.1.A", Phase::PendingStarting, "")]),
            Step::Broadcast(vec![reported("other.1.A", Phase::Running, "")]),
            Step::Broadcast(vec![reported("w.1.A", Phase::PendingStarting, "")]),
            Step::Broadcast(vec![reported("w.1.A", Phase::Running, "")]),
        ],
    );
    assert!(end.unwrap());
    let expected = "\
Waiting for workload(s) to reach desired states (press Ctrl+C to interrupt).

WORKLOAD NAME   AGENT   RUNTIME     EXECUTION STATE    ADDITIONAL INFO
w               A       podman    | Pending(Initial)                  \n
WORKLOAD NAME   AGENT   RUNTIME     EXECUTION STATE     ADDITIONAL INFO
w               A       podman    | Pending(Starting)                  \n
WORKLOAD NAME   AGENT   RUNTIME     EXECUTION STATE   ADDITIONAL INFO
w               A       podman      Running(Ok)                      \n
";
    assert_eq!(text, expected);
}

#[test]
fn long_table_is_not_repeated_without_a_terminal() {
    let names: Vec<String> = (0..120).map(|number| format!("w{number}.1.A")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut state = wait_state(&names, &[], &["A"]);
    let mut steps: Vec<Step> = names
        .iter()
        .map(|name| Step::Broadcast(vec![reported(name, Phase::Running, "")]))
        .collect();
    let pause = state.pause_between_frames();
    assert_eq!(pause, Duration::from_secs(1));
    steps.insert(60, Step::Silence(pause + Duration::from_millis(1)));
    let (end, text) = run(&mut state, steps);
    assert!(end.unwrap());
    let frames: Vec<usize> = text
        .split("WORKLOAD NAME")
        .skip(1)
        .map(|frame| frame.matches("Running(Ok)").count())
        .collect();
    assert_eq!(frames, [0, 60, 120], "at once, after the pause, at the end");
}

#[test]
fn in_a_terminal_the_spinner_turns_with_the_time() {
    let mut state = wait_state(&["w.1.A"], &[], &["A"]);
    let steps = vec![
        Step::Silence(SPINNER_INTERVAL * 4),
        Step::Broadcast(vec![reported("w.1.A", Phase::Running, "")]),
    ];
    let (end, text) = run_in(Some(|| (100, 24)), &mut state, steps);
    assert!(end.unwrap());
    let symbols: String = text
        .split("\x1b[1G")
        .filter_map(|frame| frame.split("podman    ").nth(1)?.chars().next())
        .collect();
    assert_eq!(symbols, "|/-\\ ");
    assert_eq!(
        text.matches("\x1b[2A").count(),
        4,
        "every frame but the first goes back over the one before"
    );
}

#[test]
fn waiting_ends_with_the_connection() {
    let mut state = wait_state(&["w.1.A"], &[], &["A"]);
    let steps = vec![Step::Broadcast(vec![reported(
        "w.1.A",
        Phase::PendingStarting,
        "Retry 3: no image",
    )])];
    let (end, _) = run(&mut state, steps);
    assert_eq!(
        end.unwrap_err().to_string(),
        "Connection to server interrupted: end of the script"
    );
}

#[test]
fn what_is_not_relevant_on_its_node_is_not_waited_for() {
    let mut state = wait_state(&["w.1.A", "x.1.A"], &[], &["A"]);
    state.on_states(&[reported(
        "w.1.A",
        Phase::PendingWaitingToStart,
        "precondition: /key does not exist",
    )]);
    state.on_states(&[reported(
        "x.1.A",
        Phase::PendingWaitingToStart,
        "inactive: /dev/x does not exist",
    )]);
    assert_eq!(state.outstanding(), [&instance("w.1.A")]);
}

// [utest->swdd~update-awaits-no-failure~1]
#[test]
fn workload_that_awaits_a_failure_and_its_users_have_settled() {
    let all = ["recovery", "report", "web"].map(|name| (name, "1", "A", Phase::PendingInitial));
    let mut complete = state(&["A"], &all);
    let needs = [("recovery", "ADD_COND_SUCCEEDED")];
    let_need(&mut complete, "desiredState", "report", &needs);
    let mut state = WaitState::new(
        &accepted(&["recovery.1.A", "report.1.A", "web.1.A"], &[]),
        &Node::empty(),
        &complete,
        AbsentAgents::Skipped,
    );
    let waits = |name: &str, info: &str| reported(name, Phase::PendingWaitingToStart, info);
    state.on_states(&[
        waits("recovery.1.A", "waits for 'storage' to fail"),
        waits("report.1.A", "waits for 'recovery' to succeed"),
        waits("web.1.A", "waits for 'storage' to run"),
    ]);
    assert_eq!(state.outstanding(), [&instance("web.1.A")]);
}

/// Nothing but an update brings them to life, so waiting for them would not end.
#[test]
fn dependents_of_an_inactive_workload_are_not_awaited() {
    let all = ["camera", "view", "far", "web"].map(|name| (name, "1", "A", Phase::PendingInitial));
    let mut complete = state(&["A"], &all);
    for (name, needed) in [("view", "camera"), ("far", "view"), ("web", "db")] {
        let_need(
            &mut complete,
            "desiredState",
            name,
            &[(needed, "ADD_COND_RUNNING")],
        );
    }
    let added = ["camera.1.A", "view.1.A", "far.1.A", "web.1.A"];
    let mut state = WaitState::new(
        &accepted(&added, &[]),
        &Node::empty(),
        &complete,
        AbsentAgents::Skipped,
    );
    let waits = |name: &str, info: &str| reported(name, Phase::PendingWaitingToStart, info);
    state.on_states(&[
        waits("view.1.A", ""),
        waits("far.1.A", ""),
        waits("web.1.A", ""),
    ]);
    assert_eq!(state.outstanding().len(), 4);
    state.on_states(&[waits("camera.1.A", "inactive: /dev/x does not exist")]);
    assert_eq!(state.outstanding(), [&instance("web.1.A")]);
}

#[test]
fn what_waits_for_a_workload_outside_of_the_mode_is_done() {
    let listed = [
        ("web", "1", "A", Phase::PendingInitial),
        ("db", "1", "", Phase::NotScheduled),
    ];
    let mut now = state(&["A"], &listed);
    let_need(
        &mut now,
        "desiredState",
        "web",
        &[("db", "ADD_COND_RUNNING")],
    );
    let place = ["workloadStates", "", "db", "1"]
        .iter()
        .fold(&mut now, |place, key| {
            place.as_map_mut().unwrap().get_mut(*key).unwrap()
        });
    place.as_map_mut().unwrap().insert(
        "additionalInfo".to_owned(),
        Node::text("not in mode 'park'"),
    );
    let mut state = WaitState::new(
        &accepted(&["web.1.A"], &[]),
        &Node::empty(),
        &now,
        AbsentAgents::Skipped,
    );
    assert!(!state.is_settled());
    state.on_states(&[reported("web.1.A", Phase::PendingWaitingToStart, "")]);
    assert!(state.is_settled());
    assert_eq!(
        info_of(&state, "web.1.A"),
        "waits for 'db' to run: it is NotScheduled (not in mode 'park')"
    );
}
