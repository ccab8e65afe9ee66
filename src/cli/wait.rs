//! `ank wait`: until workloads run, have succeeded or are gone.
//!
//! Thread: `main`. Takes: broadcast states. Gives: frames meanwhile, and how it ended.

use super::args::{Awaited, WaitArguments};
use super::error::{CliError, ExitCode, Result, shown};
use super::output::WARNING;
use super::rows::{self, Reasons, Row};
use super::session::Context;
use super::settings::{AbsentAgents, Waiting};
use super::update::{GoalProgress, WaitState, wait};
use ankaios_model::execution_state::Phase;
use ankaios_model::names::InstanceName;

/// Waits for the workloads that `arguments` name.
// [impl->swdd~cli-waits-for-workloads~1]
pub(crate) fn run(arguments: &WaitArguments, context: &mut Context<'_>) -> Result<ExitCode> {
    let WaitArguments {
        state: awaited,
        timeout,
        names,
    } = arguments;
    // First, find the workloads.
    let masks = [&rows::MASKS[..], &[WARNING]].concat();
    let state = context.link.complete_state(&masks)?;
    context.output.warn_of_storage(&state);
    // A workload that does not exist is gone already, and would never run.
    if *awaited != Awaited::Gone {
        let known = rows::names(state.at(&["desiredState", "workloads"]));
        CliError::check_workloads(names, known)?;
    }
    let reasons = Reasons::new(&state);
    let mut instances: Vec<InstanceName> = reasons.rows.keys().cloned().collect();
    instances.retain(|instance| names.iter().any(|name| **name == *instance.workload));
    if *awaited == Awaited::Gone && instances.is_empty() {
        return report_success(names, "gone", context);
    }
    // Then, wait for them.
    let mut waiting = match awaited {
        Awaited::Gone => WaitState::of_present(&[], &instances, &state, AbsentAgents::Awaited),
        _ => WaitState::of_present(&instances, &[], &state, AbsentAgents::Awaited),
    };
    let settings = Waiting {
        limit: timeout.or(context.waiting.limit),
        ..context.waiting
    };
    let give_up = settings.give_up(context.link.now());
    let ends_at_failure = settings.fail_on_error && *awaited != Awaited::Gone;
    let is_in_time = wait(
        &mut waiting,
        |waiting, _, _| {
            let reasons = waiting.reasons();
            if unmet(names, *awaited, reasons).is_empty() {
                return Ok(GoalProgress::Break(()));
            }
            if ends_at_failure && first_failed(names, reasons).is_some() {
                return Ok(GoalProgress::Break(()));
            }
            Ok(GoalProgress::Continue(None))
        },
        give_up,
        context,
    )?;
    // Finally, report: all are there, one failed, or the time has passed.
    let reasons = waiting.reasons();
    let left = unmet(names, *awaited, reasons);
    if left.is_empty() {
        let what = match awaited {
            Awaited::Running => "running",
            Awaited::Succeeded => "done",
            Awaited::Gone => "gone",
        };
        return report_success(names, what, context);
    }
    context.warn_of_absent_agents(&waiting);
    for name in &left {
        for row in described(name, reasons) {
            context.output.warn(format_args!("'{name}' is {row}"));
        }
    }
    if is_in_time && let Some(name) = first_failed(names, reasons) {
        context.output.error(
            format_args!("workload '{name}' failed"),
            &format!("'ank logs {name}' may show why"),
        );
        return Ok(ExitCode::WorkloadFailed);
    }
    let limit = shown(settings.limit.unwrap_or_default());
    context.output.error(
        format_args!("gave up waiting after '{limit}'"),
        "'ank get workloads -w' follows them",
    );
    Ok(ExitCode::GaveUp)
}

fn report_success(names: &[String], what: &str, context: &mut Context<'_>) -> Result<ExitCode> {
    let names = names.join("', '");
    context.output.status(&format!("'{names}': {what}."))?;
    Ok(ExitCode::Success)
}

/// The `names` of workloads that are not in the awaited state.
fn unmet<'n>(names: &'n [String], awaited: Awaited, reasons: &Reasons) -> Vec<&'n String> {
    let mut unmet = Vec::new();
    for name in names {
        if !is_met(name, awaited, reasons) {
            unmet.push(name);
        }
    }
    unmet
}

/// Returns whether all instances of a workload are in the awaited state. A workload has two while
/// an update replaces its instance.
fn is_met(name: &str, awaited: Awaited, reasons: &Reasons) -> bool {
    let has_instance = reasons.rows_of(name).next().is_some();
    let wanted = match awaited {
        Awaited::Gone => return !has_instance,
        Awaited::Running => Phase::Running,
        Awaited::Succeeded => Phase::Succeeded,
    };
    let mut rows = reasons.rows_of(name);
    has_instance && rows.all(|row| row.phase == Some(wanted))
}

/// The first workload with an instance that failed.
fn first_failed<'n>(names: &'n [String], reasons: &Reasons) -> Option<&'n String> {
    let mut names = names.iter();
    names.find(|name| reasons.rows_of(name).any(has_failed))
}

fn has_failed(row: &Row) -> bool {
    row.state.starts_with("Failed") || row.phase == Some(Phase::PendingStartingFailed)
}

/// The states of all instances of a workload, with their infos.
fn described(name: &str, reasons: &Reasons) -> Vec<String> {
    let mut described = Vec::new();
    for instance in reasons.rows.keys() {
        if *instance.workload != *name {
            continue;
        }
        let row = reasons.explained(instance);
        if row.phase == Some(Phase::Removed) {
            continue;
        }
        described.push(if row.info.is_empty() {
            row.state
        } else {
            format!("{}: {}", row.state, row.info)
        });
    }
    if described.is_empty() {
        described.push("not there yet".to_owned());
    }
    described
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Waiting;
    use crate::tests::{Played, Step, play, state};
    use ankaios_model::execution_state::{ExecutionState, WorkloadState};
    use std::time::Duration;

    fn waited(
        awaited: Awaited,
        name: &str,
        fail_on_error: bool,
        steps: Vec<Step>,
    ) -> Played<ExitCode> {
        let arguments = WaitArguments {
            state: awaited,
            timeout: Some(Duration::from_secs(5)),
            names: vec![name.to_owned()],
        };
        let waiting = Waiting {
            fail_on_error,
            ..Waiting::default()
        };
        play(None, steps, |link, output| {
            run(
                &arguments,
                &mut Context {
                    link,
                    output,
                    waiting,
                    ignore_modes: false,
                },
            )
        })
    }

    fn cluster(phase: Phase) -> Step {
        let mut cluster = state(&["A"], &[("web", "1", "A", phase)]);
        crate::tests::let_need(&mut cluster, "desiredState", "web", &[]);
        Step::State(cluster)
    }

    fn report(phase: Phase) -> Step {
        let web = InstanceName::with_id("web", "1", "A");
        Step::Broadcast(vec![WorkloadState::new(web, ExecutionState::plain(phase))])
    }

    // [utest->swdd~cli-waits-for-workloads~1]
    #[test]
    fn wait_ends_when_the_state_is_reached() {
        for (awaited, now, later) in [
            (Awaited::Running, Phase::Running, None),
            (
                Awaited::Running,
                Phase::PendingStarting,
                Some(Phase::Running),
            ),
            (
                Awaited::Running,
                Phase::FailedExecFailed,
                Some(Phase::Running),
            ),
            (Awaited::Succeeded, Phase::Running, Some(Phase::Succeeded)),
            (Awaited::Gone, Phase::Running, Some(Phase::Removed)),
        ] {
            let mut steps = vec![cluster(now)];
            steps.extend(later.map(report));
            let played = waited(awaited, "web", false, steps);
            assert_eq!(
                played.result.unwrap(),
                ExitCode::Success,
                "{awaited:?} {now:?}"
            );
            assert!(played.out.ends_with(".\n"), "{}", played.out);
        }
    }

    #[test]
    fn wait_for_the_end_of_an_unknown_workload_is_over_at_once() {
        let played = waited(Awaited::Gone, "other", false, vec![cluster(Phase::Running)]);
        assert_eq!(played.result.unwrap(), ExitCode::Success);
        assert_eq!(played.out, "'other': gone.\n");
        let played = waited(
            Awaited::Running,
            "wbe",
            false,
            vec![cluster(Phase::Running)],
        );
        let error = played.result.unwrap_err();
        assert_eq!(error.to_string(), "Workload name 'wbe' does not exist.");
        assert_eq!(error.hint(), "did you mean 'web'?");
    }

    #[test]
    fn wait_is_given_up_with_the_state_at_that_time() {
        let steps = vec![
            cluster(Phase::PendingStarting),
            Step::Silence(Duration::from_secs(9)),
        ];
        let played = waited(Awaited::Running, "web", false, steps);
        assert_eq!(played.result.unwrap(), ExitCode::GaveUp);
        let expected = "warn: 'web' is Pending(Starting)\nerror: gave up waiting after '5s'\n";
        assert!(played.err.contains(expected), "{}", played.err);
    }

    #[test]
    fn wait_for_a_lost_agent_does_not_promise_a_start() {
        let lost = [("web", "1", "B", Phase::AgentDisconnected)];
        let steps = vec![
            Step::State(state(&["A"], &lost)),
            Step::Silence(Duration::from_secs(9)),
        ];
        let played = waited(Awaited::Running, "web", false, steps);
        let expected =
            "warn: agent 'B' is not connected, so it is unknown whether 'web' runs\nwarn: 'web' is";
        assert!(played.err.starts_with(expected), "{}", played.err);
    }

    #[test]
    fn wait_for_an_absent_agent_names_it_when_it_is_given_up() {
        let steps = vec![
            Step::State(state(&["A"], &[("web", "1", "B", Phase::PendingInitial)])),
            Step::Silence(Duration::from_secs(9)),
        ];
        let played = waited(Awaited::Running, "web", false, steps);
        assert_eq!(played.result.unwrap(), ExitCode::GaveUp);
        let expected = "warn: agent 'B' is not connected; when it connects, it starts 'web'\n";
        assert!(played.err.contains(expected), "{}", played.err);
    }

    #[test]
    fn wait_with_fail_on_error_ends_at_the_first_failure() {
        let steps = vec![
            cluster(Phase::PendingStarting),
            report(Phase::FailedExecFailed),
        ];
        let played = waited(Awaited::Running, "web", true, steps);
        assert_eq!(played.result.unwrap(), ExitCode::WorkloadFailed);
        assert!(
            played.err.contains("error: workload 'web' failed\n"),
            "{}",
            played.err
        );
    }
}
