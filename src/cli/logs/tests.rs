//! What `ank logs` requests, prints and ends with, against a scripted server.

use super::*;
use crate::args::Moment;
use crate::tests::{Played, Step, instance, play, reported, state};
use std::time::UNIX_EPOCH;

fn arguments(names: &[&str]) -> LogsArguments {
    LogsArguments {
        follow: false,
        tail: -1,
        names_before_lines: false,
        agent_names: false,
        timestamps: false,
        since: None,
        until: None,
        tags: Vec::new(),
        names: names.iter().map(ToString::to_string).collect(),
    }
}

fn at() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(190)
}

fn run(arguments: &LogsArguments, steps: Vec<Step>) -> Played<ExitCode> {
    play(None, steps, |server, output| {
        output.set_level(true, false); // Log lines are printed although it is quiet.
        print(arguments, at, server, output)
    })
}

fn two_workloads() -> Step {
    Step::State(state(
        &["A", "B"],
        &[
            ("web", "1", "A", Phase::Running),
            ("db", "2", "B", Phase::FailedExecFailed),
        ],
    ))
}

/// The server lists both workloads and accepts to send the logs of `web`.
fn web_logs(then: impl IntoIterator<Item = Step>) -> Vec<Step> {
    [two_workloads(), Step::Logs(vec![instance("web.1.A")])]
        .into_iter()
        .chain(then)
        .collect()
}

fn lines(entries: &[(&str, &str)]) -> Step {
    let entry = |(name, message): &(&str, &str)| LogEntry::line(instance(name), *message);
    Step::Log(Incoming::Lines(entries.iter().map(entry).collect()))
}

fn stopped(name: &str) -> Step {
    Step::Log(Incoming::Stopped(instance(name)))
}

#[test]
fn lines_of_one_workload_are_printed_as_they_are() {
    let first = lines(&[("web.1.A", "one"), ("web.1.A", "")]);
    let steps = web_logs([first, lines(&[("web.1.A", " three ")]), stopped("web.1.A")]);
    let ran = run(&arguments(&["web", "web"]), steps);
    assert_eq!(ran.result.unwrap(), ExitCode::Success);
    assert_eq!(
        (ran.out.as_str(), ran.err.as_str()),
        ("one\n\n three \n", "")
    );
    assert_eq!(ran.server.reads, [["workloadStates"]]);
    let expected = LogsRequest {
        instances: vec![instance("web.1.A")],
        ..LogsRequest::default()
    };
    assert_eq!(ran.server.logs, [expected]);
    assert!(ran.server.is_done() && !ran.server.cancelled);
}

#[test]
fn lines_of_several_instances_begin_with_the_workload_name() {
    let steps = |prefixed: &str| {
        let instances = vec![instance("db.2.B"), instance("web.1.A")];
        let ends = [
            lines(&[("web.1.A", "w"), ("db.2.B", "d")]),
            stopped("db.2.B"),
            stopped("web.1.A"),
        ];
        let steps: Vec<Step> = [two_workloads(), Step::Logs(instances)]
            .into_iter()
            .chain(ends)
            .collect();
        (steps, prefixed.to_owned())
    };
    let (script, expected) = steps("web w\ndb d\n");
    assert_eq!(run(&arguments(&["web", "db"]), script).out, expected);
    let (script, expected) = steps("A/web w\nB/db d\n");
    let with_agents = LogsArguments {
        agent_names: true,
        ..arguments(&["web", "db"])
    };
    assert_eq!(run(&with_agents, script).out, expected);
    let one = web_logs([lines(&[("web.1.A", "w")]), stopped("web.1.A")]);
    let forced = LogsArguments {
        names_before_lines: true,
        ..arguments(&["web"])
    };
    assert_eq!(run(&forced, one).out, "web w\n");
}

#[test]
fn options_are_passed_on_as_the_protocol_has_them() {
    for (follow, tail, sent_follow, sent_tail) in [
        (false, -1, None, None),
        (true, 0, Some(true), Some(0)),
        (true, 7, Some(true), Some(7)),
        (false, -9, None, None),
    ] {
        let since = "2026-01-31T12:00:00Z".to_owned();
        let arguments = LogsArguments {
            follow,
            tail,
            since: Some(Moment::At(since.clone())),
            until: Some(Moment::Ago(Duration::from_secs(90))),
            timestamps: true,
            ..arguments(&["web"])
        };
        let request = run(&arguments, web_logs([stopped("web.1.A")]))
            .server
            .logs
            .remove(0);
        let expected = LogsRequest {
            instances: vec![instance("web.1.A")],
            follow: sent_follow,
            tail: sent_tail,
            since: Some(since),
            until: Some("1970-01-01T00:01:40.000000000+00:00".to_owned()),
            timestamps: true,
        };
        assert_eq!(request, expected, "{arguments:?}");
    }
}

/// The state of [`two_workloads`], with tags.
fn tagged_workloads() -> Step {
    let mut complete = state(
        &["A", "B"],
        &[
            ("web", "1", "A", Phase::Running),
            ("db", "2", "B", Phase::FailedExecFailed),
        ],
    );
    // A server renders templates; the desired state has them as they were sent.
    let tags = |team: &str| Node::map([("team", Node::text(team)), ("kind", Node::text("x"))]);
    let workload = |team: &str| Node::map([("tags", tags(team))]);
    let workloads = Node::map([("web", workload("one")), ("db", workload("two"))]);
    let effective = Node::map([("workloads", workloads)]);
    complete
        .as_map_mut()
        .unwrap()
        .insert("effectiveState", effective);
    Step::State(complete)
}

#[test]
fn logs_by_tag_are_of_workloads_that_have_all_tags() {
    let tag = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    for (tags, expected) in [
        (vec![tag("team", "one")], Some("web.1.A")),
        (vec![tag("kind", "x"), tag("team", "two")], Some("db.2.B")),
        (vec![tag("team", "one"), tag("team", "two")], None),
        (vec![tag("other", "")], None),
    ] {
        let mut steps = vec![tagged_workloads()];
        if let Some(name) = expected {
            steps.extend([Step::Logs(vec![instance(name)]), stopped(name)]);
        }
        let arguments = LogsArguments {
            tags: tags.clone(),
            ..arguments(&[])
        };
        let ran = run(&arguments, steps);
        assert!(ran.server.is_done(), "{tags:?}");
        if expected.is_none() {
            let error = ran.result.unwrap_err().to_string();
            assert!(error.starts_with("No workload has the tag '"), "{error}");
        }
    }
}

#[test]
fn names_on_a_terminal_have_colours_that_differ() {
    let script = || {
        vec![
            two_workloads(),
            Step::Logs(vec![instance("db.2.B"), instance("web.1.A")]),
            lines(&[("web.1.A", "w"), ("db.2.B", "d"), ("web.1.A", "w")]),
            stopped("db.2.B"),
            stopped("web.1.A"),
        ]
    };
    for (has_colours, expected) in [
        (
            true,
            "\x1b[33mweb\x1b[0m w\n\x1b[36mdb\x1b[0m d\n\x1b[33mweb\x1b[0m w\n",
        ),
        (false, "web w\ndb d\nweb w\n"),
    ] {
        let ran = play(None, script(), |server, output| {
            output.result_colours = has_colours;
            print(&arguments(&["web", "db"]), at, server, output)
        });
        assert_eq!(ran.out, expected);
    }
}

#[test]
fn timestamps_that_an_agent_does_not_send_are_warned_of_once() {
    let with_time = "2026-01-31T12:00:00.123456789+01:00 one";
    let of_pod = "main 2026-01-31T12:00:00.123456789Z two";
    for (messages, is_warned) in [
        (
            vec![with_time, of_pod, "[3 lines not shown: they came faster]"],
            false,
        ),
        (vec!["one", "two"], true),
        (vec!["2026-01-31 one"], true),
    ] {
        let entries: Vec<_> = messages.iter().map(|text| ("web.1.A", *text)).collect();
        let arguments = LogsArguments {
            timestamps: true,
            ..arguments(&["web"])
        };
        let ran = run(&arguments, web_logs([lines(&entries), stopped("web.1.A")]));
        assert_eq!(ran.out, messages.join("\n") + "\n");
        let warning = "warn: agent 'A' does not send the times of lines; a newer one does\n";
        assert_eq!(
            ran.err,
            if is_warned { warning } else { "" },
            "{messages:?}"
        );
    }
}

#[test]
fn an_unknown_workload_is_an_error_that_names_the_nearest_one() {
    let ran = run(&arguments(&["wbe", "db"]), vec![two_workloads()]);
    let error = ran.result.unwrap_err();
    assert_eq!(error.to_string(), "Workload name 'wbe' does not exist.");
    assert_eq!(error.hint(), "did you mean 'web'?");
    assert!(
        ran.server.logs.is_empty(),
        "nothing is requested when one name is wrong"
    );
    let error = run(&arguments(&["web"]), vec![Step::State(Node::empty())])
        .result
        .unwrap_err();
    let expected = "No workload states available to convert workload names to instance names.";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_workload_without_container_leads_to_an_error_and_no_wait() {
    for (phase, follow) in [
        (Phase::PendingWaitingToStart, false),
        (Phase::PendingWaitingToStart, true),
        (Phase::PendingStartingFailed, true),
        (Phase::NotScheduled, true),
        (Phase::AgentDisconnected, true),
        (Phase::FailedLost, true),
    ] {
        let arguments = LogsArguments {
            follow,
            ..arguments(&["w"])
        };
        let ran = run(
            &arguments,
            vec![Step::State(state(&["A"], &[("w", "1", "A", phase)]))],
        );
        assert_eq!(ran.result.unwrap(), ExitCode::Failed, "{phase}");
        assert_eq!(
            ran.err,
            format!(
                "error: no logs of workload 'w' on agent 'A': it is {phase}\n\
                 hint: 'ank describe w' shows its state\n"
            )
        );
        assert!(ran.server.logs.is_empty());
    }
    let both = state(
        &["A"],
        &[
            ("bad", "1", "A", Phase::PendingStartingFailed),
            ("good", "1", "A", Phase::Succeeded),
        ],
    );
    let steps = vec![
        Step::State(both),
        Step::Logs(vec![instance("good.1.A")]),
        lines(&[("good.1.A", "x")]),
        stopped("good.1.A"),
    ];
    let ran = run(&arguments(&["bad", "good"]), steps);
    assert_eq!(
        (ran.result.unwrap(), ran.out.as_str()),
        (ExitCode::Failed, "x\n")
    );
}

#[test]
fn a_workload_that_is_being_started_is_waited_for() {
    for (phase, follow) in [
        (Phase::PendingInitial, false),
        (Phase::PendingStarting, false),
        (Phase::PendingStarting, true),
    ] {
        let arguments = LogsArguments {
            follow,
            ..arguments(&["w"])
        };
        let begin = vec![
            Step::State(state(&["A"], &[("w", "1", "A", phase)])),
            Step::Logs(vec![instance("w.1.A")]),
        ];
        let quick = [
            lines(&[("w.1.A", "x")]),
            Step::Silence(10 * EXPLAIN_AFTER),
            stopped("w.1.A"),
        ];
        let ran = run(&arguments, begin.into_iter().chain(quick).collect());
        assert_eq!(ran.result.unwrap(), ExitCode::Success, "{phase}");
        assert_eq!((ran.out.as_str(), ran.err.as_str()), ("x\n", ""));
    }
}

#[test]
fn what_a_log_waits_for_is_said_after_some_time_once() {
    let begin = vec![
        Step::State(state(&["A"], &[("w", "1", "A", Phase::PendingInitial)])),
        Step::Logs(vec![instance("w.1.A")]),
        Step::Log(Incoming::States(vec![reported(
            "w.1.A",
            Phase::PendingStarting,
            "Triggered at runtime.",
        )])),
        Step::Silence(10 * EXPLAIN_AFTER),
    ];
    let end = [lines(&[("w.1.A", "x")]), stopped("w.1.A")];
    let ran = run(&arguments(&["w"]), begin.into_iter().chain(end).collect());
    assert_eq!(
        (ran.result.unwrap(), ran.out.as_str()),
        (ExitCode::Success, "x\n")
    );
    let expected = "warn: no logs of workload 'w' on agent 'A' yet: it is Pending(Starting): 'Triggered at runtime.'\n";
    assert_eq!(ran.err, expected);
}

#[test]
fn reason_in_place_of_lines_is_an_error_with_exit_code_1() {
    let reason = log_entries::no_log(instance("w.1.A"), "its start failed");
    let of_no_interest = log_entries::no_log(instance("other.1.A"), "nobody asked");
    let steps = vec![
        Step::State(state(&["A"], &[("w", "1", "A", Phase::PendingStarting)])),
        Step::Logs(vec![instance("w.1.A")]),
        Step::Log(Incoming::Lines(vec![of_no_interest, reason])),
        stopped("w.1.A"),
    ];
    let ran = run(&arguments(&["w"]), steps);
    assert_eq!(
        (ran.result.unwrap(), ran.out.as_str()),
        (ExitCode::Failed, "")
    );
    assert_eq!(
        ran.err,
        "error: no logs of workload 'w' on agent 'A': its start failed\n\
         hint: 'ank describe w' shows its state; a log driver such as 'none' keeps no log\n"
    );
}

#[test]
fn a_namespace_behind_n_leads_to_a_hint() {
    let arguments = LogsArguments {
        names_before_lines: true,
        ..arguments(&["default", "web"])
    };
    let ran = run(&arguments, vec![two_workloads()]);
    let error = ran.result.unwrap_err();
    assert_eq!(
        error.hint(),
        "'-n' begins lines with names; if 'default' is a namespace, leave it out: a cluster has no namespaces"
    );
}

#[test]
fn logs_end_when_their_agent_goes_away() {
    let lost = |name| {
        Step::Log(Incoming::States(vec![reported(
            name,
            Phase::AgentDisconnected,
            "",
        )]))
    };
    let steps = web_logs([lost("db.2.B"), lines(&[("web.1.A", "x")]), lost("web.1.A")]);
    let ran = run(&arguments(&["web"]), steps);
    assert_eq!(
        (ran.result.unwrap(), ran.out.as_str()),
        (ExitCode::Failed, "x\n")
    );
    assert_eq!(
        ran.err,
        "error: logs of workload 'web' end: agent 'A' is disconnected\n\
         hint: repeat it when the agent is connected again; 'ank get agents' shows it\n"
    );
    assert!(ran.server.is_done());
}

#[test]
fn an_instance_that_is_not_accepted_is_an_error() {
    let ran = run(
        &arguments(&["web", "db"]),
        vec![two_workloads(), Step::Logs(vec![instance("db.2.B")])],
    );
    let expected = "Workload 'web' is not accepted by the server to receive logs from.";
    assert_eq!(ran.result.unwrap_err().to_string(), expected);
    assert!(ran.server.cancelled);
}

#[test]
fn a_signal_cancels_the_logs_and_a_lost_connection_is_an_error() {
    let ran = run(&arguments(&["web"]), web_logs([Step::Signal]));
    assert!(ran.result.unwrap_err().is_interrupted() && ran.server.cancelled);
    for (end, text) in [
        (None, "Connection to server interrupted: end of the script"),
        (Some(Step::Refuse("no")), "Error streaming logs: no"),
    ] {
        let error = run(&arguments(&["web"]), web_logs(end)).result.unwrap_err();
        assert_eq!(error.to_string(), text);
    }
    let error = run(
        &arguments(&["web"]),
        vec![two_workloads(), Step::Refuse("no")],
    )
    .result
    .unwrap_err();
    assert_eq!(error.to_string(), "Server replied with error: no");
    let error = run(&arguments(&["web"]), vec![two_workloads()])
        .result
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "Connection to server interrupted: end of the script"
    );
}
