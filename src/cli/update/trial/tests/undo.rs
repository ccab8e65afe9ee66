//! What `ank apply --rollback` sends and prints, against a scripted server.

use super::*;
use crate::session::CliUpdate;
use crate::settings::Waiting;
use crate::tests::{Played, Step, accepted, play, reported, state};
use ankaios_model::execution_state::{Phase, WorkloadState};

const WEB: &str = "desiredState.workloads.web";
const PORT: &str = "desiredState.configs.port";

/// The desired state of both objects; an empty text stands for one that is not there.
fn objects(web: &str, port: &str) -> Node {
    let part = |name: &str, text: &str| match text {
        "" => Node::empty(),
        _ => Node::map([(name, Node::text(text))]),
    };
    let (workloads, configs) = (part("web", web), part("port", port));
    Node::map([(
        "desiredState",
        Node::map([("workloads", workloads), ("configs", configs)]),
    )])
}

fn cluster(instances: &[(&str, &str, &str, Phase)]) -> Node {
    state(&["A"], instances)
}

fn broadcast(name: &str, phase: Phase, info: &str) -> Step {
    Step::Broadcast(vec![reported(name, phase, info)])
}

/// Lets exactly this time pass.
fn pass(seconds: u64) -> [Step; 2] {
    [
        Step::Silence(Duration::from_secs(seconds)),
        Step::Broadcast(Vec::new()),
    ]
}

/// The steps until the update is judged: `web` is replaced.
fn begun() -> Vec<Step> {
    let effective = Node::map([
        ("runtime", Node::text("podman")),
        ("restartPolicy", Node::text("NEVER")),
        (
            "runtimeConfig",
            Node::text("lifecycle: { update: { healthyMs: 5000, deadlineMs: 30000 } }"),
        ),
    ]);
    let mut sent = objects("new", "81");
    let effective = Node::map([("workloads", Node::map([("web", effective)]))]);
    sent.as_map_mut()
        .unwrap()
        .insert("effectiveState".to_owned(), effective);
    vec![
        Step::State(objects("old", "80")),
        Step::State(cluster(&[("web", "1", "A", Phase::Running)])),
        Step::Accept(accepted(&["web.2.A"], &["web.1.A"])),
        Step::State(cluster(&[
            ("web", "1", "A", Phase::Running),
            ("web", "2", "A", Phase::PendingInitial),
        ])),
        Step::State(sent),
        broadcast("web.1.A", Phase::Removed, ""),
    ]
}

/// The steps of the undo until its workloads are waited for.
fn undone(now: Node) -> Vec<Step> {
    vec![
        Step::State(cluster(&[("web", "2", "A", Phase::FailedExecFailed)])),
        Step::State(now),
        Step::Accept(accepted(&["web.1.A"], &["web.2.A"])),
        Step::State(cluster(&[
            ("web", "2", "A", Phase::FailedExecFailed),
            ("web", "1", "A", Phase::PendingInitial),
        ])),
    ]
}

fn failing() -> Vec<Step> {
    let mut steps = begun();
    steps.push(broadcast(
        "web.2.A",
        Phase::FailedExecFailed,
        "Exit code: '1'",
    ));
    steps
}

fn run_with(waiting: Waiting, steps: Vec<Step>) -> Played<ExitCode> {
    let masks = vec![PORT.to_owned(), WEB.to_owned()];
    let update = CliUpdate {
        new_state: objects("new", "81"),
        masks,
        rollback: true,
        ..CliUpdate::default()
    };
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

fn run(steps: Vec<Step>) -> Played<ExitCode> {
    run_with(Waiting::default(), steps)
}

fn back() -> [Step; 1] {
    let state = |name, phase| -> WorkloadState { reported(name, phase, "") };
    [Step::Broadcast(vec![
        state("web.2.A", Phase::Removed),
        state("web.1.A", Phase::Running),
    ])]
}

#[test]
fn an_update_is_good_when_all_is_healthy() {
    let mut steps = begun();
    steps.push(broadcast("web.2.A", Phase::Running, ""));
    steps.extend(pass(5));
    let ran = run(steps);
    assert_eq!(
        (ran.result.unwrap(), ran.err.as_str()),
        (ExitCode::Success, "")
    );
    assert!(ran.server.is_done());
    assert_eq!(ran.server.updates.len(), 1);
    assert_eq!(
        ran.server.reads[0],
        [PORT, WEB],
        "what was there is read first"
    );
    assert_eq!(
        ran.server.reads[3],
        [PORT, WEB, "effectiveState.workloads.web"]
    );
    let last = ran.out.trim_end().lines().last().unwrap();
    assert!(
        last.starts_with("web ") && last.contains("  Running(Ok)"),
        "{}",
        ran.out
    );
}

#[test]
fn failed_update_is_rolled_back_and_old_workloads_awaited() {
    let mut steps = failing();
    steps.extend(undone(objects("new", "81")));
    steps.extend(back());
    let ran = run(steps);
    let expected = "warn: the update failed: web: Failed(ExecFailed): 'Exit code: '1''\n\
                    error: the update failed and was rolled back\n\
                    hint: the desired state is as it was before; correct the manifest and apply it again\n";
    assert_eq!(
        (ran.result.unwrap(), ran.err.as_str()),
        (ExitCode::Undone, expected)
    );
    assert!(ran.server.is_done());
    assert_eq!(
        ran.server.updates[1],
        (objects("old", "80"), vec![PORT.to_owned(), WEB.to_owned()])
    );
    assert!(
        ran.out
            .contains("\nRolling back the update.\nWaiting for workload(s) "),
        "{}",
        ran.out
    );
}

#[test]
fn an_update_that_is_not_healthy_in_time_is_undone() {
    let mut steps = begun();
    steps.push(broadcast(
        "web.2.A",
        Phase::PendingStarting,
        "Retry 2: no image",
    ));
    steps.extend(pass(30));
    steps.extend(undone(objects("new", "81")));
    steps.extend(back());
    let ran = run(steps);
    assert_eq!(ran.result.unwrap(), ExitCode::Undone);
    let why = "warn: the update failed: web: not healthy within 30 s: Pending(Starting): 'Retry 2: no image'\n";
    assert!(ran.err.starts_with(why), "{}", ran.err);
}

#[test]
fn undone_update_whose_old_workloads_do_not_run_ends_with_7() {
    let mut steps = failing();
    steps.extend(undone(objects("new", "81")));
    steps.extend([
        Step::Broadcast(vec![
            reported("web.2.A", Phase::Removed, ""),
            reported("web.1.A", Phase::PendingStarting, "x"),
        ]),
        Step::Silence(Duration::from_secs(121)),
    ]);
    let ran = run(steps);
    assert_eq!(ran.result.unwrap(), ExitCode::NotRestored);
    let error = "error: the update failed and was rolled back, but not all is as before: web: \
                 Pending(Starting): 'x'\nhint: correct the cause on its node (load a missing image), \
                 then 'ank restart NAME'\n";
    assert!(ran.err.ends_with(error), "{}", ran.err);
    assert_eq!(ran.server.updates.len(), 2);
}

#[test]
fn objects_that_others_changed_meanwhile_stay() {
    let mut steps = failing();
    steps.extend(undone(objects("new", "90")));
    steps.extend(back());
    let ran = run(steps);
    assert_eq!(ran.result.unwrap(), ExitCode::Failed);
    let error =
        "error: the update failed; 'port' stayed because others changed it meanwhile\nhint: ";
    assert!(ran.err.contains(error), "{}", ran.err);
    assert_eq!(ran.server.updates[1].1, [WEB]);
    // Where nothing is left to be put back, nothing is sent.
    let mut steps = failing();
    steps.extend([Step::State(Node::empty()), Step::State(objects("", "90"))]);
    let ran = run(steps);
    assert_eq!(
        (ran.result.unwrap(), ran.server.updates.len()),
        (ExitCode::Failed, 1)
    );
    assert!(ran.err.contains("'port', 'web' stayed"), "{}", ran.err);
}

#[test]
fn update_that_others_replaced_has_no_outcome() {
    let mut steps = begun();
    steps.extend([
        broadcast("web.2.A", Phase::Running, ""),
        broadcast("web.2.A", Phase::Removed, ""),
    ]);
    steps.push(Step::State(Node::empty()));
    let ran = run(steps);
    assert_eq!(
        (ran.result.unwrap(), ran.server.updates.len()),
        (ExitCode::Failed, 1)
    );
    let error = "error: others deleted or replaced 'web' meanwhile; all else of the update is active\nhint: ";
    assert!(ran.err.starts_with(error), "{}", ran.err);
}

#[test]
fn an_undo_that_the_server_refuses_is_an_error() {
    let mut steps = failing();
    steps.extend([
        Step::State(Node::empty()),
        Step::State(objects("new", "81")),
        Step::Refuse("Update rejected: 'why'"),
    ]);
    let ran = run(steps);
    assert_eq!(ran.result.unwrap(), ExitCode::Failed);
    let error =
        "error: the update failed and cannot be rolled back: why\nhint: the update stays active";
    assert!(ran.err.contains(error), "{}", ran.err);
}

#[test]
fn a_lost_connection_leaves_the_update_active_and_says_so() {
    let ran = run(begun());
    assert_eq!(
        ran.result.unwrap_err().to_string(),
        "Connection to server interrupted: end of the script"
    );
    let warning = "warn: the update is not watched any more: it stays active, whether it fails or not, and nothing rolls it back\n";
    assert_eq!(ran.err, warning);
}

#[test]
fn a_connection_lost_after_each_step_warns_of_the_update() {
    let accepted_at = 3; // Steps until the server has accepted the update.
    for number in accepted_at..begun().len() {
        let steps = begun().into_iter().take(number).collect();
        let ran = run(steps);
        assert!(ran.result.is_err());
        let warning = "the update is not watched any more: it stays active";
        assert!(ran.err.contains(warning), "{number}: {}", ran.err);
    }
}

#[test]
fn a_wait_that_is_given_up_undoes_nothing() {
    let mut steps = begun();
    steps.push(Step::Silence(Duration::from_secs(11)));
    let ran = run_with(
        Waiting {
            limit: Some(Duration::from_secs(10)),
            ..Waiting::default()
        },
        steps,
    );
    assert_eq!(
        (ran.result.unwrap(), ran.server.updates.len()),
        (ExitCode::GaveUp, 1)
    );
    assert!(
        ran.err
            .contains("error: gave up waiting after '10s' for 1 workload\n"),
        "{}",
        ran.err
    );
}

#[test]
fn a_no_wait_of_the_config_file_does_not_count() {
    let mut steps = begun();
    steps.push(broadcast("web.2.A", Phase::Running, ""));
    steps.extend(pass(5));
    let ran = run_with(
        Waiting {
            no_wait: true,
            ..Waiting::default()
        },
        steps,
    );
    assert_eq!(ran.result.unwrap(), ExitCode::Success);
    assert!(ran.server.is_done());
}

#[test]
fn kept_failure_is_an_error_only_with_the_option() {
    let steps = || {
        let mut steps = failing();
        let Step::State(sent) = &mut steps[4] else {
            panic!("another step")
        };
        let config = sent
            .at_mut(&["effectiveState", "workloads", "web", "runtimeConfig"])
            .unwrap();
        *config = Node::text("lifecycle: { update: { onFailure: KEEP } }");
        steps
    };
    let ran = run(steps());
    assert_eq!(ran.result.unwrap(), ExitCode::Success);
    let why = "warn: failed, and stays because of 'onFailure: KEEP': web: Failed(ExecFailed): 'Exit code: '1''\n";
    assert!(ran.err.starts_with(why), "{}", ran.err);
    let ran = run_with(
        Waiting {
            fail_on_error: true,
            ..Waiting::default()
        },
        steps(),
    );
    assert_eq!(
        (ran.result.unwrap(), ran.server.updates.len()),
        (ExitCode::WorkloadFailed, 1)
    );
}

#[test]
fn an_update_without_instances_is_good_at_once() {
    let cluster = || Step::State(cluster(&[]));
    let steps = vec![
        Step::State(objects("old", "80")),
        cluster(),
        Step::Accept(accepted(&[], &[])),
        cluster(),
        cluster(),
    ];
    let ran = run(steps);
    assert_eq!(
        (ran.result.unwrap(), ran.out.as_str()),
        (
            ExitCode::Success,
            "Apply successful. No workloads updated.\n"
        )
    );
}
