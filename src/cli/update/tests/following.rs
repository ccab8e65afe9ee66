//! How `ank` follows an update that the server judges, against a scripted server.

use super::*;
use crate::session::CliUpdate;
use crate::settings::Waiting;
use crate::tests::{Played, Step, accepted, let_need, play, reported, state};
use ankaios_model::execution_state::Phase;
use std::time::Duration;

fn texts(entries: &[(&str, &str)]) -> Node {
    Node::map(entries.iter().map(|(key, text)| (*key, Node::text(*text))))
}

/// An update with these texts that changes workload `web`.
fn update(entries: &[(&str, &str)]) -> Node {
    let mut update = texts(entries);
    let web = texts(&[("old", "web.1.A"), ("new", "web.2.A")]);
    update
        .as_map_mut()
        .unwrap()
        .insert("workloads".to_owned(), Node::map([("web", web)]));
    update
}

fn waiting_for(names: &[&str]) -> Node {
    let mut update = update(&[("phase", "TRIAL")]);
    let names = names.iter().map(|name| Node::text(*name)).collect();
    update
        .as_map_mut()
        .unwrap()
        .insert("waitsFor".to_owned(), Node::List(names));
    update
}

fn with_updates(mut state: Node, updates: &[(&str, Node)]) -> Node {
    let updates = Node::map(updates.iter().map(|(id, update)| (*id, update.clone())));
    state
        .as_map_mut()
        .unwrap()
        .insert("updates".to_owned(), updates);
    state
}

/// The response to a read of one update.
fn read(id: &str, update: Node) -> Step {
    Step::State(with_updates(Node::empty(), &[(id, update)]))
}

/// Replaces `web`; the server knows update 3 from before and makes update 4 of the request.
fn begun() -> Vec<Step> {
    let old = ("3", update(&[("phase", "GOOD")]));
    let running = ("web", "1", "A", Phase::Running);
    let now = state(&["A"], &[running, ("web", "2", "A", Phase::PendingInitial)]);
    vec![
        Step::State(with_updates(
            state(&["A"], &[running]),
            std::slice::from_ref(&old),
        )),
        Step::Accept(accepted(&["web.2.A"], &["web.1.A"])),
        Step::State(with_updates(
            now,
            &[old, ("4", update(&[("phase", "STAGING")]))],
        )),
    ]
}

/// After a rollback: which instances it brought back, and how they are.
fn brought_back(phase: Phase) -> [Step; 2] {
    [
        read("4", update(&[])),
        Step::State(state(&["A"], &[("web", "1", "A", phase)])),
    ]
}

fn run_with(update: CliUpdate, waiting: Waiting, steps: Vec<Step>) -> Played<ExitCode> {
    play(None, steps, |link, output| {
        Context {
            link,
            output,
            waiting,
            ignore_modes: false,
        }
        .update_and_wait(update)
    })
}

fn request() -> CliUpdate {
    CliUpdate {
        masks: vec!["desiredState.workloads.web".to_owned()],
        ..CliUpdate::default()
    }
}

/// The old instance has gone, for which a wait that ends well waits, too.
fn gone() -> Step {
    Step::Broadcast(vec![reported("web.1.A", Phase::Removed, "")])
}

fn run(steps: impl IntoIterator<Item = Step>) -> Played<ExitCode> {
    run_with(
        request(),
        Waiting::default(),
        begun().into_iter().chain(steps).collect(),
    )
}

// [utest->swdd~server-says-why-updates-failed~1]
#[test]
fn cause_of_a_rollback_chooses_the_hint_not_its_words() {
    let late = "db: not healthy within 5 s: waits for 'web' to stop";
    for (cause, reason, hint) in [
        (
            "UNHEALTHY",
            late,
            "'ank apply --force' tries the same again",
        ),
        ("CANNOT_BE_STAGED", late, "nothing was stopped"),
        (
            "AWAITS_DEPENDENTS",
            "db: x",
            "'ank apply --restart-dependents'",
        ),
        // Of a newer server, and of one without causes.
        ("DREAMING", late, "'ank apply --restart-dependents'"),
        ("", late, "'ank apply --restart-dependents'"),
    ] {
        let fields = [("phase", "UNDONE"), ("cause", cause), ("reason", reason)];
        let end = read("4", update(&fields));
        let ran = run([end].into_iter().chain(brought_back(Phase::Running)));
        assert!(ran.err.contains(hint), "{cause}: {}", ran.err);
    }
}

#[test]
fn each_end_of_an_update_has_its_text_and_exit_code() {
    let reason = "web: Pending(StartingFailed): No more retries: no image";
    let needed = "web: not healthy within 120 s: waits for 'app' to stop";
    let end = read("4", update(&[("phase", "UNDONE"), ("reason", needed)]));
    let hint = "\nhint: 'ank apply --restart-dependents' restarts what needs it, too\n";
    assert!(
        run([end].into_iter().chain(brought_back(Phase::Running)))
            .err
            .ends_with(hint),
        "the same again would only wait again"
    );
    let end = read("4", update(&[("phase", "UNDONE"), ("reason", needed)]));
    let request = CliUpdate {
        rollback_of: Some(3),
        ..request()
    };
    let steps = begun()
        .into_iter()
        .chain([end])
        .chain(brought_back(Phase::Running));
    let err = run_with(request, Waiting::default(), steps.collect()).err;
    let hint = "\nhint: apply the earlier manifest with '--restart-dependents', which restarts what needs it, too\n";
    assert!(
        err.ends_with(hint),
        "the same rollback would be refused: {err}"
    );
    for (phase, code, err) in [
        ("GOOD", ExitCode::Success, String::new()),
        (
            "KEPT",
            ExitCode::Success,
            format!("warn: update 4 is kept, though not all of it is healthy: {reason}\n"),
        ),
        (
            "UNDONE",
            ExitCode::Undone,
            format!(
                "error: update 4 failed and was rolled back: {reason}\n\
                 hint: correct it and send it again; 'ank apply --force' tries the same again\n"
            ),
        ),
        (
            "STUCK",
            ExitCode::Failed,
            format!(
                "error: update 4 failed and cannot be rolled back: {reason}\n\
                 hint: the update stays active; see 'ank get workloads'\n"
            ),
        ),
        (
            "WITHDRAWN",
            ExitCode::Failed,
            "error: update 4 is withdrawn: other requests restored or deleted what it changed\n\
             hint: see 'ank get updates'\n"
                .to_owned(),
        ),
        (
            "DREAMING", // A newer server.
            ExitCode::Failed,
            "error: how update 4 ended is unknown: its phase is 'DREAMING'\n\
             hint: see 'ank get workloads' and 'ank get updates'\n"
                .to_owned(),
        ),
    ] {
        let is_active = ["GOOD", "KEPT"].contains(&phase);
        let end = read("4", update(&[("phase", phase), ("reason", reason)]));
        let back = if phase == "UNDONE" {
            brought_back(Phase::Running).to_vec()
        } else {
            Vec::new()
        };
        let ran = run(std::iter::once(end).chain(is_active.then(gone)).chain(back));
        assert_eq!((ran.result.unwrap(), ran.err), (code, err), "{phase}");
        assert!(ran.server.is_done());
        let fields = ["phase", "reason", "cause", "waitsFor", "replacedBy"]
            .map(|field| format!("updates.4.{field}"));
        assert_eq!(ran.server.reads[2], fields);
        assert_eq!(
            ran.out.ends_with("\nUpdate 4 is good.\n"),
            phase == "GOOD",
            "{}",
            ran.out
        );
    }
}

/// Steps of an update that was rolled back while what ran before is not back yet.
fn rolled_back(then: impl IntoIterator<Item = Step>) -> Vec<Step> {
    let end = read("4", update(&[("phase", "UNDONE"), ("reason", "why")]));
    begun()
        .into_iter()
        .chain([end])
        .chain(brought_back(Phase::PendingInitial))
        .chain(then)
        .collect()
}

fn back(phase: Phase, info: &str) -> Step {
    Step::Broadcast(vec![reported("web.1.A", phase, info)])
}

#[test]
fn rolled_back_update_ends_when_the_old_workloads_run() {
    let steps = rolled_back([back(Phase::PendingStarting, ""), back(Phase::Running, "")]);
    let ran = run_with(request(), Waiting::default(), steps);
    assert_eq!(ran.result.unwrap(), ExitCode::Undone);
    assert!(ran.server.is_done(), "it waited for the old one");
    assert!(
        ran.err
            .starts_with("error: update 4 failed and was rolled back: why\n"),
        "{}",
        ran.err
    );
}

#[test]
fn rollback_whose_old_workloads_do_not_run_ends_with_7() {
    let too_long = Step::Silence(Duration::from_secs(121));
    let gone = Step::Broadcast(vec![reported("web.1.A", Phase::AgentDisconnected, "")]);
    for (step, why) in [
        (
            back(Phase::PendingStartingFailed, "No more retries: x"),
            "web: Pending(StartingFailed): 'No more retries: x'",
        ),
        (too_long, "web: Pending(Initial)"),
        (gone, "agent 'A' is not connected"),
    ] {
        let ran = run_with(request(), Waiting::default(), rolled_back([step]));
        assert_eq!(ran.result.unwrap(), ExitCode::NotRestored);
        let expected = format!(
            "error: update 4 failed and was rolled back, but not all is as before: {why}\n\
             hint: correct the cause on its node (load a missing image), then 'ank restart NAME'; \
             the update failed: why\n"
        );
        assert_eq!(ran.err, expected);
    }
    let waiting = Waiting {
        limit: Some(Duration::from_secs(10)),
        ..Waiting::default()
    };
    let ran = run_with(
        request(),
        waiting,
        rolled_back([Step::Silence(Duration::from_secs(11))]),
    );
    assert_eq!(
        ran.result.unwrap(),
        ExitCode::NotRestored,
        "the limit of the command holds, too"
    );
}

#[test]
fn rolled_back_update_with_failed_dependent_ends_with_7() {
    let mut before = state(
        &["A"],
        &[
            ("web", "1", "A", Phase::Running),
            ("app", "1", "A", Phase::Running),
        ],
    );
    let_need(
        &mut before,
        "desiredState",
        "app",
        &[("web", "ADD_COND_RUNNING")],
    );
    let mut now = state(
        &["A"],
        &[
            ("web", "1", "A", Phase::Running),
            ("app", "1", "A", Phase::FailedExecFailed),
        ],
    );
    let app = Node::map([(
        "workloads",
        Node::map([("app", texts(&[("restartPolicy", "NEVER")]))]),
    )]);
    now.as_map_mut()
        .unwrap()
        .insert("effectiveState".to_owned(), app);
    let mut steps = begun();
    steps[0] = Step::State(before);
    steps.push(read("4", update(&[("phase", "UNDONE"), ("reason", "why")])));
    steps.extend([read("4", update(&[])), Step::State(now)]);
    let ran = run_with(request(), Waiting::default(), steps);
    assert_eq!(ran.result.unwrap(), ExitCode::NotRestored);
    assert!(
        ran.err
            .contains("not all is as before: app: Failed(ExecFailed)\n"),
        "{}",
        ran.err
    );
}

#[test]
fn rolled_back_update_does_not_wait_for_what_did_not_run_before() {
    let mut steps = rolled_back([]);
    let failed = state(&["A"], &[("web", "1", "A", Phase::FailedExecFailed)]);
    steps[0] = Step::State(with_updates(failed, &[("3", update(&[("phase", "GOOD")]))]));
    let ran = run_with(request(), Waiting::default(), steps);
    assert_eq!(ran.result.unwrap(), ExitCode::Undone);
}

#[test]
fn rolled_back_update_waits_for_dependents_of_what_it_changed() {
    let running = [
        ("web", "1", "A", Phase::Running),
        ("app", "1", "A", Phase::Running),
    ];
    let mut before = state(&["A"], &running);
    let_need(
        &mut before,
        "desiredState",
        "app",
        &[("web", "ADD_COND_RUNNING")],
    );
    let failed = [
        ("web", "1", "A", Phase::Running),
        ("app", "1", "A", Phase::FailedLost),
    ];
    let mut steps = begun();
    steps[0] = Step::State(before);
    steps.push(read("4", update(&[("phase", "UNDONE"), ("reason", "why")])));
    steps.extend([read("4", update(&[])), Step::State(state(&["A"], &failed))]);
    steps.push(Step::Broadcast(vec![reported(
        "app.1.A",
        Phase::Running,
        "",
    )]));
    let ran = run_with(request(), Waiting::default(), steps);
    assert_eq!(ran.result.unwrap(), ExitCode::Undone);
    assert!(ran.server.is_done());
}

#[test]
fn an_update_is_read_once_a_second_until_its_end() {
    let open = || read("4", waiting_for(&["web"]));
    let second = || {
        [
            Step::Silence(Duration::from_secs(1)),
            Step::Broadcast(Vec::new()),
        ]
    };
    let started = Step::Broadcast(vec![
        reported("web.1.A", Phase::Removed, ""),
        reported("web.2.A", Phase::Running, ""),
    ]);
    let steps = [open(), started]
        .into_iter()
        .chain(second())
        .chain([open()])
        .chain(second());
    let ran = run(steps.chain([read("4", update(&[("phase", "GOOD")]))]));
    assert_eq!(
        (ran.result.unwrap(), ran.err.as_str()),
        (ExitCode::Success, "")
    );
    assert!(ran.server.is_done());
    assert!(
        ran.out.contains("| Running(Ok)"),
        "it is on trial, though it runs: {}",
        ran.out
    );
}

#[test]
fn a_response_that_is_late_does_not_end_the_wait() {
    let second = [
        Step::Silence(Duration::from_secs(1)),
        Step::Broadcast(Vec::new()),
    ];
    let end = [read("4", update(&[("phase", "GOOD")])), gone()];
    let ran = run([Step::Late].into_iter().chain(second).chain(end));
    assert_eq!(
        (ran.result.unwrap(), ran.err.as_str()),
        (ExitCode::Success, "")
    );
}

#[test]
fn agents_that_are_away_are_not_waited_for_but_named() {
    let ran = run([read("4", waiting_for(&["agent B", "agent C"]))]);
    assert_eq!(ran.result.unwrap(), ExitCode::Success);
    let expected = "warn: agent 'B' is not connected; update 4 stays open until its workloads are healthy there\n\
                    warn: agent 'C' is not connected; update 4 stays open until its workloads are healthy there\n";
    assert_eq!(ran.err, expected);
    let waiting = Waiting {
        fail_on_error: true,
        ..Waiting::default()
    };
    let steps = begun()
        .into_iter()
        .chain([read("4", waiting_for(&["agent B", "agent C"]))]);
    let ran = run_with(request(), waiting, steps.collect());
    assert_eq!(
        (ran.result.unwrap(), ran.err.as_str()),
        (ExitCode::GaveUp, expected)
    );
    assert!(
        !ran.out.contains("Waiting"),
        "nothing is waited for: {}",
        ran.out
    );
    let waiting = Waiting {
        limit: Some(Duration::from_millis(500)),
        ..Waiting::default()
    };
    let late = [
        read("4", waiting_for(&["agent B"])),
        Step::Silence(Duration::from_secs(1)),
    ];
    let ran = run_with(
        request(),
        waiting,
        begun().into_iter().chain(late).collect(),
    );
    assert_eq!(
        ran.result.unwrap(),
        ExitCode::GaveUp,
        "with a limit it is waited for"
    );
    assert!(
        ran.err.starts_with("warn: agent 'B' is not connected\n"),
        "{}",
        ran.err
    );
    let ran = run([
        read("4", waiting_for(&["agent B", "web"])),
        Step::Silence(Duration::from_secs(1)),
    ]);
    assert!(ran.result.is_err(), "a workload is left to wait for");
    assert_eq!(
        ran.err,
        "warn: the server continues with update 4; see 'ank get updates'\n"
    );
}

#[test]
fn the_successor_of_a_replaced_update_is_followed() {
    let ran = run([
        read("4", update(&[("phase", "REPLACED"), ("replacedBy", "5")])),
        read("5", update(&[("phase", "REPLACED"), ("replacedBy", "7")])),
        read("7", update(&[("phase", "UNDONE"), ("reason", "why")])),
        read("7", update(&[])),
        Step::State(state(&["A"], &[("web", "1", "A", Phase::Running)])),
    ]);
    assert_eq!(ran.result.unwrap(), ExitCode::Undone);
    let expected = "warn: update 4 became a part of update 7\nerror: update 7 failed and was rolled back: why\n";
    assert!(ran.err.starts_with(expected), "{}", ran.err);
    // A successor that came before it could send us in a circle.
    let ran = run([read(
        "4",
        update(&[("phase", "REPLACED"), ("replacedBy", "4")]),
    )]);
    assert_eq!(ran.result.unwrap(), ExitCode::Failed);
}

#[test]
fn a_server_that_has_lost_the_update_is_no_success() {
    let ran = run([Step::State(Node::empty())]);
    assert_eq!(ran.result.unwrap(), ExitCode::Failed);
    let expected = "error: how update 4 ended is unknown: the server no longer has this update\n";
    assert!(ran.err.starts_with(expected), "{}", ran.err);
}

#[test]
fn a_wait_that_is_given_up_leaves_the_update_open() {
    let steps = begun().into_iter().chain([
        read("4", waiting_for(&["web"])),
        Step::Silence(Duration::from_secs(1)),
    ]);
    let waiting = Waiting {
        limit: Some(Duration::from_millis(500)),
        ..Waiting::default()
    };
    let ran = run_with(request(), waiting, steps.collect());
    assert_eq!(ran.result.unwrap(), ExitCode::GaveUp);
    let expected = "error: gave up waiting after '500ms': update 4 is open\n\
                    hint: the update continues; follow it with 'ank get updates'\n";
    assert!(ran.err.ends_with(expected), "{}", ran.err);
}

#[test]
fn a_kept_failure_is_an_error_only_with_the_option() {
    let waiting = Waiting {
        fail_on_error: true,
        ..Waiting::default()
    };
    let end = read("4", update(&[("phase", "KEPT"), ("reason", "why")]));
    let ran = run_with(
        request(),
        waiting,
        begun().into_iter().chain([end, gone()]).collect(),
    );
    assert_eq!(ran.result.unwrap(), ExitCode::WorkloadFailed);
    let expected = "error: update 4 is kept, though not all of it is healthy: why\n\
                    hint: 'ank rollback' rolls it back\n";
    assert_eq!(ran.err, expected);
}

#[test]
fn other_updates_of_the_server_are_not_waited_for() {
    let running = ("web", "1", "A", Phase::Running);
    let now = state(&["A"], &[running]);
    let other = Node::map([
        ("phase", Node::text("TRIAL")),
        ("workloads", Node::map([("db", Node::empty())])),
    ]);
    for updates in [
        vec![],
        vec![("3", update(&[("phase", "TRIAL")]))], // It was there before.
        vec![("4", other)],
        vec![("4", update(&[("phase", "WITHDRAWN")]))], // The request has put back what was there.
        vec![("x", update(&[("phase", "TRIAL")]))],
    ] {
        let steps = vec![
            Step::State(with_updates(
                now.clone(),
                &[("3", update(&[("phase", "TRIAL")]))],
            )),
            Step::Accept(accepted(&["web.2.A"], &["web.1.A"])),
            Step::State(with_updates(now.clone(), &updates)),
            Step::Broadcast(vec![
                reported("web.1.A", Phase::Removed, ""),
                reported("web.2.A", Phase::Running, ""),
            ]),
        ];
        let ran = run_with(request(), Waiting::default(), steps);
        assert_eq!(
            (ran.result.unwrap(), ran.err.as_str()),
            (ExitCode::Success, ""),
            "{updates:?}"
        );
        assert!(ran.server.is_done());
    }
}

#[test]
fn with_rollback_the_server_judges_what_it_guards() {
    let steps = [Step::State(Node::empty())].into_iter().chain(begun());
    let undone = read("4", update(&[("phase", "UNDONE")]));
    let update = CliUpdate {
        rollback: true,
        ..request()
    };
    let steps = steps.chain([undone]).chain(brought_back(Phase::Running));
    let ran = run_with(update, Waiting::default(), steps.collect());
    assert_eq!(
        (ran.result.unwrap(), ran.server.updates.len()),
        (ExitCode::Undone, 1)
    );
}

#[test]
fn force_makes_the_server_forget_rollbacks_of_the_same_names() {
    let undone = |part: &'static str, name: &str| {
        Node::map([
            ("phase", Node::text("UNDONE")),
            (part, Node::map([(name, Node::empty())])),
        ])
    };
    let updates = [
        ("2", undone("workloads", "db")),
        ("5", undone("workloads", "web")),
        ("7", undone("configs", "port")),
        ("8", undone("configs", "web")),
        ("9", update(&[("phase", "GOOD")])),
    ];
    let masks = ["desiredState.configs.port", "desiredState.workloads.web"].map(str::to_owned);
    let steps = vec![
        Step::State(with_updates(Node::empty(), &updates)),
        Step::Accept(accepted(&["web.2.A"], &[])),
    ];
    let update = CliUpdate {
        masks: masks.to_vec(),
        force: true,
        ..CliUpdate::default()
    };
    let ran = run_with(
        update,
        Waiting {
            no_wait: true,
            ..Waiting::default()
        },
        steps,
    );
    assert_eq!(ran.result.unwrap(), ExitCode::Success);
    let sent = [
        &masks[..],
        &["updates.5".to_owned(), "updates.7".to_owned()],
    ]
    .concat();
    assert_eq!(ran.server.updates, [(Node::empty(), sent)]);
    // Other servers remember nothing.
    let steps = vec![Step::State(Node::empty()), Step::Accept(accepted(&[], &[]))];
    let ran = run_with(
        CliUpdate {
            force: true,
            ..request()
        },
        Waiting {
            no_wait: true,
            ..Waiting::default()
        },
        steps,
    );
    assert_eq!(ran.server.updates, [(Node::empty(), request().masks)]);
}
