//! The requests and the output of updates, against a scripted server.

mod following;
mod guarded;
mod waiting;

use super::*;
use crate::settings::{AbsentAgents, Waiting};
use crate::tests::{Played, Step, accepted, instance, let_need, play, reported, state};
use ankaios_model::execution_state::Phase;
use std::time::Duration;

fn run(
    steps: Vec<Step>,
    waiting: Waiting,
    job: impl FnOnce(&mut Context<'_>) -> Result<ExitCode, CliError>,
) -> Played<ExitCode> {
    run_in(None, steps, waiting, job)
}

fn run_in(
    terminal: Option<fn() -> (usize, usize)>,
    steps: Vec<Step>,
    waiting: Waiting,
    job: impl FnOnce(&mut Context<'_>) -> Result<ExitCode, CliError>,
) -> Played<ExitCode> {
    play(terminal, steps, |link, output| {
        job(&mut Context {
            link,
            output,
            waiting,
            ignore_modes: false,
        })
    })
}

fn update() -> CliUpdate {
    CliUpdate {
        masks: vec!["desiredState.workloads.w".to_owned()],
        ..CliUpdate::default()
    }
}

fn running_after_update(end: Vec<Step>) -> Vec<Step> {
    let now = state(&["A"], &[("w", "1", "A", Phase::PendingInitial)]);
    let steps = [
        Step::State(state(&["A"], &[])),
        Step::Accept(accepted(&["w.1.A"], &[])),
        Step::State(now),
    ];
    steps.into_iter().chain(end).collect()
}

const WAITING: &str = "Successfully applied the manifest(s).\n\
                       Waiting for workload(s) to reach desired states (press Ctrl+C to interrupt).\n\n";

#[test]
fn an_update_is_followed_until_its_workloads_run() {
    let steps = running_after_update(vec![Step::Broadcast(vec![reported(
        "w.1.A",
        Phase::Running,
        "",
    )])]);
    let ran = run(steps, Waiting::default(), |context| {
        context.update_and_wait(update())
    });
    assert_eq!(ran.result.unwrap(), ExitCode::Success);
    assert!(ran.out.starts_with(WAITING), "{}", ran.out);
    assert!(
        ran.out.ends_with(
            "\nw               A       podman      Running(Ok)                      \n\n"
        ),
        "{}",
        ran.out
    );
    assert_eq!(ran.err, "");
    assert!(ran.server.is_done());
    let masks = [&rows::MASKS[..], &GUARDED_MASKS].concat();
    assert_eq!(ran.server.reads, [masks.clone(), masks]);
    assert_eq!(
        ran.server.updates,
        [(Node::empty(), vec!["desiredState.workloads.w".to_owned()])]
    );
}

#[test]
fn without_waiting_nothing_is_read_and_counts_are_printed() {
    let waiting = Waiting {
        no_wait: true,
        ..Waiting::default()
    };
    let steps = vec![Step::Accept(accepted(&["w.1.A"], &[]))];
    let ran = run(steps, waiting, |context| context.update_and_wait(update()));
    assert_eq!(ran.result.unwrap(), ExitCode::Success);
    let counts = "Accepted: 1 added, 0 changed, 0 deleted.\n";
    assert_eq!((ran.out.as_str(), ran.err.as_str()), (counts, ""));
    assert!(ran.server.reads.is_empty());
}

#[test]
fn a_refused_update_is_an_error_with_the_text_of_the_server() {
    let steps = vec![
        Step::State(Node::empty()),
        Step::Refuse("Update rejected: 'why'"),
    ];
    let ran = run(steps, Waiting::default(), |context| {
        context.update_and_wait(update())
    });
    let error = ran.result.unwrap_err();
    assert_eq!(
        error.to_string(),
        "SetState failed with: Update rejected: why"
    );
    assert_eq!(ran.out, "");
}

#[test]
fn failed_workloads_are_an_error_only_with_the_option() {
    let failed = || {
        let end = vec![Step::Broadcast(vec![reported(
            "w.1.A",
            Phase::PendingStartingFailed,
            "No more retries: x\ny",
        )])];
        running_after_update(end)
    };
    let summary = "warn: 1 workload did not reach the desired state:\n\
                WORKLOAD NAME   AGENT   RUNTIME   EXECUTION STATE           ADDITIONAL INFO      \n\
                w               A       podman    Pending(StartingFailed)   No more retries: x, y\n";
    let ran = run(failed(), Waiting::default(), |context| {
        context.update_and_wait(update())
    });
    assert_eq!(
        (ran.result.unwrap(), ran.err.as_str()),
        (ExitCode::Success, summary)
    );
    let waiting = Waiting {
        fail_on_error: true,
        ..Waiting::default()
    };
    let ran = run(failed(), waiting, |context| {
        context.update_and_wait(update())
    });
    assert_eq!(ran.result.unwrap(), ExitCode::WorkloadFailed);
    assert!(ran.err.starts_with(summary), "{}", ran.err);
    assert!(
        ran.err
            .contains("error: the update was accepted, but 1 workload failed\nhint: "),
        "{}",
        ran.err
    );
}

#[test]
fn a_wait_that_takes_too_long_is_given_up_with_what_is_missing() {
    for (seconds, columns, row) in [
        (
            0,
            "STATE    ADDITIONAL INFO",
            "Pending(Initial)                  ",
        ),
        (
            5,
            "STATE     ADDITIONAL INFO  ",
            "Pending(Starting)   Retry 3: no image",
        ),
    ] {
        let waiting = Waiting {
            limit: Some(Duration::from_secs(seconds)),
            ..Waiting::default()
        };
        let silence = || Step::Silence(Duration::from_secs(4));
        let starting = Step::Broadcast(vec![reported(
            "w.1.A",
            Phase::PendingStarting,
            "Retry 3: no image",
        )]);
        let steps = running_after_update(vec![silence(), starting, silence()]);
        let ran = run(steps, waiting, |context| context.update_and_wait(update()));
        assert_eq!(ran.result.unwrap(), ExitCode::GaveUp);
        let expected = format!(
            "warn: 1 workload did not reach the desired state:\n\
             WORKLOAD NAME   AGENT   RUNTIME   EXECUTION {columns}\n\
             w               A       podman    {row}\n\
             error: gave up waiting after '{seconds}s' for 1 workload\n\
             hint: the server continues with it; follow it with 'ank get workloads -w'\n"
        );
        assert_eq!(ran.err, expected);
    }
}

#[test]
fn who_interrupts_the_wait_is_told_that_the_server_goes_on() {
    let ran = run(
        running_after_update(vec![Step::Signal]),
        Waiting::default(),
        |context| context.update_and_wait(update()),
    );
    assert!(ran.result.unwrap_err().is_interrupted());
    let expected = "warn: 1 workload did not reach the desired state yet; the server continues with it; \
                    'ank get workloads -w' follows it\n";
    assert_eq!(ran.err, expected);
}

/// An update of `storage`, which `web` needs, or its deletion; what the server does meanwhile is
/// `end`.
fn with_dependent(
    is_deletion: bool,
    terminal: Option<fn() -> (usize, usize)>,
    limit: u64,
    end: Vec<Step>,
) -> Played<ExitCode> {
    let mut now = state(
        &["A"],
        &[
            ("storage", "1", "A", Phase::Running),
            ("web", "1", "A", Phase::Running),
        ],
    );
    let_need(
        &mut now,
        "desiredState",
        "web",
        &[("storage", "ADD_COND_RUNNING")],
    );
    let accepted = accepted(
        if is_deletion { &[] } else { &["storage.2.A"] },
        &["storage.1.A"],
    );
    let begun = [
        Step::State(now.clone()),
        Step::Accept(accepted),
        Step::State(now),
    ];
    let end = begun.into_iter().chain(end).collect();
    let waiting = Waiting {
        limit: Some(Duration::from_secs(limit)),
        ..Waiting::default()
    };
    run_in(terminal, end, waiting, |context| {
        context.update_and_wait(update())
    })
}

#[test]
fn dependents_that_delay_an_update_are_named_once_after_5_s() {
    let waits = || {
        Step::Broadcast(vec![reported(
            "storage.1.A",
            Phase::StoppingWaitingToStop,
            "",
        )])
    };
    let after = |milliseconds| Step::Silence(Duration::from_millis(milliseconds));
    let begins = |err: &str| {
        err.lines()
            .filter(|line| line.contains("to end: "))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let text = "warn: 'storage' waits for 'web' to end: ";
    let advice = format!("{text}use 'ank restart storage', or delete or change what needs it");
    for (is_deletion, steps, expected) in [
        (false, vec![waits(), after(4_999)], None),
        (false, vec![waits(), after(5_001)], Some(advice.clone())),
        (
            false,
            vec![waits(), after(5_001), after(20_000), waits(), after(5_001)],
            Some(advice.clone()),
        ),
        (false, vec![after(8_000), waits(), after(1)], Some(advice)),
        (
            true,
            vec![waits(), after(5_001)],
            Some(format!("{text}delete or change what needs it")),
        ),
        (false, vec![after(8_000)], None),
        // Others have ended its dependents, or are about to.
        (
            false,
            vec![
                waits(),
                Step::Broadcast(vec![reported(
                    "web.1.A",
                    Phase::StoppingRequestedAtRuntime,
                    "",
                )]),
                after(8_000),
            ],
            None,
        ),
        (
            false,
            vec![
                waits(),
                Step::Broadcast(vec![reported("web.1.A", Phase::Succeeded, "")]),
                after(8_000),
            ],
            None,
        ),
    ] {
        let steps = steps.into_iter().chain([Step::Signal]).collect::<Vec<_>>();
        let played = with_dependent(is_deletion, None, 60, steps.clone());
        assert_eq!(begins(&played.err), Vec::from_iter(expected), "{steps:?}");
    }
}

#[test]
fn the_frame_is_drawn_anew_below_the_advice() {
    let waits = Step::Broadcast(vec![reported(
        "storage.1.A",
        Phase::StoppingWaitingToStop,
        "",
    )]);
    let steps = vec![waits, Step::Silence(Duration::from_secs(6)), Step::Signal];
    let played = with_dependent(false, Some(|| (80, 24)), 60, steps);
    assert!(
        played.err.contains("'storage' waits for 'web' to end: "),
        "{}",
        played.err
    );
    let (frames, replacing) = (
        played.out.matches("\u{1b}[1G").count(),
        played.out.matches("\u{1b}[1G\u{1b}[").count(),
    );
    assert_eq!(
        replacing,
        frames - 2,
        "the first one, and that after the advice, replace none"
    );
}

#[test]
fn who_gives_up_earlier_is_told_then() {
    let waits = Step::Broadcast(vec![reported(
        "storage.1.A",
        Phase::StoppingWaitingToStop,
        "",
    )]);
    let played = with_dependent(
        false,
        None,
        2,
        vec![waits, Step::Silence(Duration::from_secs(3))],
    );
    assert_eq!(played.result.unwrap(), ExitCode::GaveUp);
    assert!(
        played
            .err
            .starts_with("warn: 'storage' waits for 'web' to end: use "),
        "{}",
        played.err
    );
}

#[test]
fn what_the_update_ends_itself_is_no_reason_for_advice() {
    let mut now = state(
        &["A"],
        &[
            ("storage", "1", "A", Phase::Running),
            ("web", "1", "A", Phase::Running),
        ],
    );
    let_need(
        &mut now,
        "desiredState",
        "web",
        &[("storage", "ADD_COND_RUNNING")],
    );
    let accepted = accepted(&["storage.2.A", "web.2.A"], &["storage.1.A", "web.1.A"]);
    let waits = Step::Broadcast(vec![reported(
        "storage.1.A",
        Phase::StoppingWaitingToStop,
        "",
    )]);
    let end = [waits, Step::Silence(Duration::from_secs(8)), Step::Signal];
    let steps = [
        Step::State(now.clone()),
        Step::Accept(accepted),
        Step::State(now),
    ]
    .into_iter()
    .chain(end)
    .collect();
    let played = run(steps, Waiting::default(), |context| {
        context.update_and_wait(update())
    });
    assert!(!played.err.contains("to end: "), "{}", played.err);
}

#[test]
fn a_misspelt_agent_leads_to_the_name_of_a_connected_one() {
    let now = state(
        &["rear", "front"],
        &[("w", "1", "raer", Phase::PendingInitial)],
    );
    let steps = vec![
        Step::State(state(&["rear"], &[])),
        Step::Accept(accepted(&["w.1.raer"], &[])),
        Step::State(now),
    ];
    let ran = run(steps, Waiting::default(), |context| {
        context.update_and_wait(update())
    });
    let expected = "warn: agent 'raer' is not connected; when it connects, it starts 'w'\n\
                    hint: did you mean 'rear'?\n";
    assert_eq!(ran.err, expected);
}

#[test]
fn a_narrow_terminal_cuts_nothing_of_the_summary() {
    let info = "No more retries: cannot create the container, there is no image called nginx";
    let steps = || {
        running_after_update(vec![Step::Broadcast(vec![reported(
            "w.1.A",
            Phase::PendingStartingFailed,
            info,
        )])])
    };
    let head = "warn: 1 workload did not reach the desired state:\nw   A   podman   Pending(StartingFailed)\n";
    let ran = run_in(Some(|| (40, 24)), steps(), Waiting::default(), |context| {
        context.update_and_wait(update())
    });
    let words =
        "  No more retries: cannot create the\n  container, there is no image called\n  nginx\n";
    assert_eq!(ran.err, format!("{head}{words}"));
    let ran = run_in(Some(|| (80, 24)), steps(), Waiting::default(), |context| {
        context.update_and_wait(update())
    });
    assert_eq!(ran.err, format!("{head}  {info}\n"));
    let ran = run_in(Some(|| (120, 24)), steps(), Waiting::default(), |context| {
        context.update_and_wait(update())
    });
    let last_column: String = ran
        .err
        .lines()
        .skip(2)
        .map(|line| line[line.len() - 62..].trim())
        .collect();
    assert_eq!(
        last_column.replace(' ', ""),
        info.replace(' ', ""),
        "{}",
        ran.err
    );
}

#[test]
fn logs_are_recommended_only_of_what_had_a_container() {
    let waiting = Waiting {
        fail_on_error: true,
        ..Waiting::default()
    };
    let hint = |ended: &[(&str, Phase)]| {
        let names: Vec<&str> = ended.iter().map(|(name, _)| *name).collect();
        let now = state(&["A"], &[]);
        let states = ended
            .iter()
            .map(|(name, phase)| reported(name, *phase, ""))
            .collect();
        let steps = [
            Step::State(now.clone()),
            Step::Accept(accepted(&names, &[])),
            Step::State(now),
        ];
        let steps = steps.into_iter().chain([Step::Broadcast(states)]).collect();
        let ran = run(steps, waiting, |context| context.update_and_wait(update()));
        ran.err.lines().last().unwrap().to_owned()
    };
    let starting = ("a.1.A", Phase::PendingStartingFailed);
    assert_eq!(hint(&[starting]), "hint: see the additional info above");
    let ran = [starting, ("b.1.A", Phase::FailedExecFailed)];
    assert_eq!(
        hint(&ran),
        "hint: see the additional info above, and 'ank logs b'"
    );
}

#[test]
fn deleting_workloads_sends_their_masks_with_an_empty_state() {
    let update = delete_workloads(&["a".to_owned(), "b".to_owned()]).unwrap();
    assert_eq!(update.new_state, Node::empty());
    assert_eq!(
        update.masks,
        ["desiredState.workloads.a", "desiredState.workloads.b"]
    );
}

#[test]
fn deleting_configs_reports_which_existed() {
    let configs = Node::map([("a", Node::text("x")), ("c", Node::text("y"))]);
    let before = Node::map([("desiredState", Node::map([("configs", configs)]))]);
    let steps = vec![
        Step::State(before),
        Step::Accept(accepted(&["w.1.A"], &["w.2.A"])),
    ];
    let names = ["c", "b", "a", "c"].map(str::to_owned);
    let ran = run(steps, Waiting::default(), |context| {
        context.delete_configs(&names)
    });
    assert_eq!(ran.result.unwrap(), ExitCode::Success);
    assert_eq!(ran.out, "Deleted config 'a'.\nDeleted config 'c'.\n");
    assert_eq!(ran.err, "warn: config 'b' does not exist\n");
    let masks = ["c", "b", "a", "c"].map(|name| format!("desiredState.configs.{name}"));
    assert_eq!(ran.server.updates[0].1, masks);
    assert_eq!(
        ran.server.reads,
        [masks],
        "no more is read than the deletion is about"
    );
}

#[test]
fn unreadable_state_does_not_prevent_deletion_of_configs() {
    let steps = vec![Step::NoState("too large"), Step::Accept(accepted(&[], &[]))];
    let ran = run(steps, Waiting::default(), |context| {
        context.delete_configs(&["a".to_owned()])
    });
    assert_eq!(ran.result.unwrap(), ExitCode::Success);
    assert_eq!(ran.out, "The deletion of config 'a' was accepted.\n");
    assert_eq!(ran.server.updates[0].1, ["desiredState.configs.a"]);
}

#[test]
fn configs_are_not_deleted_after_ctrl_c() {
    let ran = run(vec![Step::Signal], Waiting::default(), |context| {
        context.delete_configs(&["a".to_owned()])
    });
    assert!(ran.result.unwrap_err().is_interrupted() && ran.server.updates.is_empty());
}

#[test]
fn names_of_parts_of_others_are_refused_before_sending() {
    for name in ["a.b", "a.b.c", "", "a b", "*"] {
        let ran = run(vec![], Waiting::default(), |context| {
            context.delete_configs(&["a".into(), name.into()])
        });
        let error = ran.result.unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("Invalid config name '{name}'")),
            "{error}"
        );
        assert!(ran.server.updates.is_empty() && ran.server.reads.is_empty());
        let error = delete_workloads(&["a".to_owned(), name.to_owned()])
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(&format!("Invalid workload name '{name}'")),
            "{error}"
        );
    }
}

#[test]
fn deleting_an_unknown_workload_names_the_similar_one() {
    for (no_wait, out) in [
        (false, "Apply successful. No workloads updated.\n"),
        (true, "Accepted: 0 added, 0 changed, 0 deleted.\n"),
    ] {
        let steps = vec![
            Step::State(state(&["A"], &[("web", "1", "A", Phase::Running)])),
            Step::Accept(accepted(&[], &[])),
        ];
        let update = delete_workloads(&["wbe".to_owned(), "web".to_owned()]).unwrap();
        let waiting = Waiting {
            no_wait,
            ..Waiting::default()
        };
        let ran = run(steps, waiting, |context| context.update_and_wait(update));
        assert_eq!(ran.result.unwrap(), ExitCode::Success);
        assert_eq!(ran.out, out);
        assert_eq!(
            ran.err,
            "warn: workload 'wbe' does not exist\nhint: did you mean 'web'?\n"
        );
    }
}

#[test]
fn an_agent_that_is_not_connected_leads_to_a_warning() {
    let now = state(&["A"], &[("w", "1", "B", Phase::PendingInitial)]);
    let steps = vec![
        Step::State(Node::empty()),
        Step::Accept(accepted(&["w.1.B"], &[])),
        Step::State(now),
    ];
    let ran = run(steps, Waiting::default(), |context| {
        context.update_and_wait(update())
    });
    assert_eq!(ran.result.unwrap(), ExitCode::Success);
    assert_eq!(
        ran.err,
        "warn: agent 'B' is not connected; when it connects, it starts 'w'\n"
    );
    assert!(
        !ran.out.contains("Waiting"),
        "nothing is waited for: {}",
        ran.out
    );
}

#[test]
fn missing_agent_is_waited_for_within_the_limit() {
    let begun = || {
        let now = state(&["A"], &[("w", "1", "B", Phase::PendingInitial)]);
        [
            Step::State(Node::empty()),
            Step::Accept(accepted(&["w.1.B"], &["v.1.B"])),
            Step::State(now),
        ]
        .into_iter()
    };
    let waiting = Waiting {
        limit: Some(Duration::from_secs(10)),
        ..Waiting::default()
    };
    let come = [
        Step::Broadcast(vec![reported("w.1.B", Phase::AgentDisconnected, "")]),
        Step::Broadcast(vec![reported("w.1.B", Phase::PendingStarting, "")]),
        Step::Broadcast(vec![reported("w.1.B", Phase::Running, "")]),
    ];
    let ran = run(begun().chain(come).collect(), waiting, |context| {
        context.update_and_wait(update())
    });
    assert_eq!(
        (ran.result.unwrap(), ran.err.as_str()),
        (ExitCode::Success, "")
    );
    assert!(
        ran.server.is_done() && ran.out.starts_with(WAITING),
        "{}",
        ran.out
    );
    let steps = begun()
        .chain([Step::Silence(Duration::from_secs(11))])
        .collect();
    let ran = run(steps, waiting, |context| context.update_and_wait(update()));
    assert_eq!(ran.result.unwrap(), ExitCode::GaveUp);
    assert!(
        ran.err
            .starts_with("warn: agent 'B' is not connected; when it connects, it starts 'w'\n"),
        "{}",
        ran.err
    );
}

#[test]
fn workloads_without_agent_are_not_awaited_within_the_limit() {
    let now = state(&["A"], &[("w", "1", "", Phase::NotScheduled)]);
    let steps = vec![
        Step::State(Node::empty()),
        Step::Accept(accepted(&["w.1."], &["v.1."])),
        Step::State(now),
    ];
    let waiting = Waiting {
        limit: Some(Duration::from_secs(10)),
        ..Waiting::default()
    };
    let ran = run(steps, waiting, |context| context.update_and_wait(update()));
    assert_eq!(
        (ran.result.unwrap(), ran.err.as_str()),
        (ExitCode::Success, "")
    );
}

fn named(name: &str) -> RunArguments {
    let [name, runtime, config, agent] = [name, "podman", "image: x\n", "A"].map(str::to_owned);
    let tags = [("a", "1"), ("b", ""), ("a", "2")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    RunArguments {
        name,
        runtime,
        config,
        agent,
        tags,
        ignore_modes: false,
    }
}

#[test]
fn the_update_holds_one_workload_and_names_it() {
    let CliUpdate {
        new_state: state,
        masks,
        ..
    } = run_workload(&named("w")).unwrap();
    assert_eq!(masks, ["desiredState.workloads.w"]);
    let workload = state.at(&["desiredState", "workloads", "w"]).unwrap();
    let text = |key: &str| workload.get(key).and_then(Node::as_text);
    assert_eq!(
        (text("agent"), text("runtime"), text("runtimeConfig")),
        (Some("A"), Some("podman"), Some("image: x"))
    );
    assert_eq!(
        workload.at(&["tags", "a"]).and_then(Node::as_text),
        Some("2")
    );
    assert_eq!(
        workload.at(&["tags", "b"]).and_then(Node::as_text),
        Some("")
    );
    assert_eq!(
        state.at(&["desiredState", "apiVersion"]),
        None,
        "what is sent without it is not checked"
    );
}

#[test]
fn name_with_a_dot_is_refused() {
    for name in ["web.agent", "a b", "", "ä"] {
        let error = run_workload(&named(name)).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("Invalid workload name '{name}'")),
            "{error}"
        );
    }
}

// [utest->swdd~cli-refuses-what-no-agent-can-run~1]
#[test]
fn config_of_run_that_no_agent_can_run_is_refused() {
    for (config, reason) in [
        ("imag: x", "missing field `image`"),
        ("image: x\nlifecycle: { redy: {} }", "redy"),
        (
            "image: {{c}}",
            "templates are rendered only in workloads with 'configs'",
        ),
    ] {
        let arguments = RunArguments {
            config: config.to_owned(),
            ..named("w")
        };
        let error = run_workload(&arguments).unwrap_err().to_string();
        assert!(error.starts_with("'--config' cannot be run: "), "{error}");
        assert!(error.contains(reason), "{error}");
        let foreign = RunArguments {
            runtime: "wasm".to_owned(),
            ..arguments
        };
        assert!(run_workload(&foreign).is_ok(), "agents of others have it");
    }
}

#[test]
fn restart_is_sent_without_state_and_awaits_ends_and_starts() {
    let running = || {
        state(
            &["A"],
            &[
                ("db", "1", "A", Phase::Running),
                ("web", "1", "A", Phase::Running),
            ],
        )
    };
    let both = ["db.1.A", "web.1.A"];
    let restarted = Accepted {
        restarted: both.map(instance).to_vec(),
        ..accepted(&both, &both)
    };
    let each = |phase| both.map(|name| Step::Broadcast(vec![reported(name, phase, "")]));
    let steps = [
        Step::State(running()),
        Step::State(running()),
        Step::Accept(restarted),
        Step::State(running()),
    ];
    let steps = steps
        .into_iter()
        .chain(each(Phase::Removed))
        .chain(each(Phase::Running))
        .collect();
    let ran = run(steps, Waiting::default(), |context| {
        let update = restart(&["db".to_owned()], context.link, context.output)?;
        context.update_and_wait(update)
    });
    assert_eq!(
        (ran.result.unwrap(), ran.err.as_str()),
        (ExitCode::Success, "")
    );
    let waiting = WAITING.split_once('\n').unwrap().1;
    assert!(
        ran.out
            .starts_with(&format!("Restarting 'db', 'web'.\n{waiting}")),
        "{}",
        ran.out
    );
    assert_eq!(ran.server.updates, [(Node::empty(), vec![])]);
    assert_eq!(
        (ran.server.restarts, ran.server.steps.len()),
        (vec![vec!["db".to_owned()]], 0)
    );
}

#[test]
fn what_a_restart_may_not_bring_back_is_said_before() {
    let mut now = state(
        &["A"],
        &[
            ("db", "1", "A", Phase::FailedExecFailed),
            ("web", "1", "A", Phase::Running),
        ],
    );
    let_need(
        &mut now,
        "desiredState",
        "web",
        &[("db", "ADD_COND_RUNNING")],
    );
    let ran = run(vec![Step::State(now)], Waiting::default(), |context| {
        restart(&["web".to_owned()], context.link, context.output)?;
        Ok(ExitCode::Success)
    });
    assert_eq!(
        ran.err,
        "warn: before it starts again, 'web' waits for 'db' to run: it is Failed(ExecFailed)\n"
    );
}

#[test]
fn refused_restart_or_rollback_is_one_error_with_a_hint() {
    let refused = |text: &str| {
        let error = super::refused(text.into(), "'ank get workloads' shows what runs");
        (error.to_string(), error.hint())
    };
    for (text, error, hint) in [
        (
            "Update rejected: ''db' is open; wait'",
            "'db' is open",
            "nothing was changed; wait",
        ),
        (
            "Update rejected: 'db has no agent'",
            "db has no agent",
            "nothing was changed; 'ank get workloads' shows what runs",
        ),
        (
            "other",
            "SetState failed with: other",
            "nothing was changed; correct what the server names and try again",
        ),
    ] {
        assert_eq!(refused(text), (error.to_owned(), hint.to_owned()));
    }
}

#[test]
fn end_of_connection_can_mean_a_server_without_restarts() {
    let waiting = Waiting {
        no_wait: true,
        ..Waiting::default()
    };
    let update = CliUpdate {
        restart: vec!["w".to_owned()],
        ..CliUpdate::default()
    };
    let ran = run(vec![], waiting, |context| context.update_and_wait(update));
    let hint = ran.result.unwrap_err().hint();
    assert!(
        hint.ends_with("an older server cannot restart workloads; see its log"),
        "{hint}"
    );
}

#[test]
fn an_unknown_workload_is_not_restarted() {
    let known = state(&[], &[("web", "1", "A", Phase::Running)]);
    let ran = run(vec![Step::State(known)], Waiting::default(), |context| {
        restart(&["wbe".to_owned()], context.link, context.output)?;
        Ok(ExitCode::Success)
    });
    let error = ran.result.unwrap_err();
    let shown = (error.to_string(), error.hint());
    assert_eq!(
        shown,
        (
            "Workload name 'wbe' does not exist.".to_owned(),
            "did you mean 'web'?".to_owned()
        )
    );
}

#[test]
fn server_without_restarts_is_named_when_an_update_replaces() {
    let waiting = || Waiting {
        no_wait: true,
        ..Waiting::default()
    };
    let sent = |deleted: &[&str]| {
        let update = CliUpdate {
            restart: vec!["w".to_owned()],
            ..update()
        };
        let steps = vec![Step::Accept(accepted(&["w.2.A"], deleted))];
        run(steps, waiting(), |context| context.update_and_wait(update)).err
    };
    let warning = "warn: this server cannot restart workloads: the dependents of the changed ones are not restarted\n";
    assert_eq!(sent(&["w.1.A"]), warning);
    assert_eq!((sent(&[]), sent(&["w.1."])), (String::new(), String::new()));
}

#[test]
fn repeated_apply_warns_of_an_agent_that_is_not_connected() {
    for (phase, warning) in [
        (
            Phase::PendingInitial,
            "warn: agent 'far' is not connected; when it connects, it starts 'w'\n",
        ),
        (
            Phase::AgentDisconnected,
            "warn: agent 'far' is not connected, so it is unknown whether 'w' runs\n",
        ),
    ] {
        let steps = vec![
            Step::State(state(&["A"], &[("w", "1", "far", phase)])),
            Step::Accept(accepted(&[], &[])),
        ];
        let update = CliUpdate {
            masks: vec!["desiredState.workloads.w".to_owned()],
            ..CliUpdate::default()
        };
        let ran = run(steps, Waiting::default(), |context| {
            context.update_and_wait(update)
        });
        assert_eq!(ran.result.unwrap(), ExitCode::Success);
        assert_eq!(ran.err, warning, "{phase}");
    }
}
