//! `ank logs`: the output of workloads.
//!
//! Thread: `main`. Owns: which instances still send lines. For a workload that has no container and
//! is not about to get one there is a warning with the cause in place of its lines, and another
//! exit code.

use super::args::LogsArguments;
use super::error::{CliError, ExitCode, Result};
use super::output::{Output, one_line};
use super::rows::{self, Row};
use super::session::{Incoming, ServerLink};
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::log_entries;
use ankaios_model::messages::{LogEntry, LogsRequest};
use ankaios_model::names::InstanceName;
use std::collections::BTreeMap;
use std::time::Duration;

/// After so long without lines of a workload that is being started it is said what it waits for.
const EXPLAIN_AFTER: Duration = Duration::from_secs(5);

/// Prints the logs of the workloads that `arguments` name until all of them ended.
pub(crate) fn print(
    arguments: &LogsArguments,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<ExitCode> {
    let state = link.complete_state(&["workloadStates"])?;
    if state.get("workloadStates").is_none() {
        let text = "No workload states available to convert workload names to instance names.";
        return Err(CliError::input(
            text,
            "'ank get workloads' shows the workloads of the server",
        ));
    }
    let rows = rows::rows(&state);
    if arguments.names_before_lines
        && let Some(number) = arguments.names.iter().find(|name| is_number(name))
        && !rows.keys().any(|instance| *instance.workload == **number)
    {
        return Err(CliError::input(
            format!("Workload name '{number}' does not exist."),
            format!(
                "'-n' begins lines with names; '--tail {number}' prints the last {number} lines"
            ),
        ));
    }
    CliError::check_workloads(
        &arguments.names,
        rows.keys().map(|instance| &*instance.workload),
    )?;
    let mut missing = false;
    let mut open = BTreeMap::new();
    for (instance, row) in rows {
        if !arguments
            .names
            .iter()
            .any(|name| **name == *instance.workload)
        {
            continue;
        }
        match begin(&row) {
            Some(progress) => _ = open.insert(instance, progress),
            None => {
                missing = true;
                warn_of_missing(&instance, &format!("it is {}", shown(&row)), output);
            }
        }
    }
    if !open.is_empty() {
        missing |= follow(arguments, open, link, output)?;
    }
    Ok(if missing {
        ExitCode::Failed
    } else {
        ExitCode::Success
    })
}

fn is_number(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_digit())
}

/// How far the log of an instance is.
enum Progress {
    /// The container of the instance is about to come; what its state is meanwhile.
    Awaited(String),
    /// There is a container, as far as is known.
    Begun,
}

/// Whether an instance in this state has a container, as far as is known.
pub(crate) fn has_container(row: &Row) -> bool {
    matches!(begin(row), Some(Progress::Begun))
}

/// How the log of an instance in this state begins; `None` when it has no container and is not
/// about to get one.
fn begin(row: &Row) -> Option<Progress> {
    let Some(phase) = row.phase else {
        return Some(Progress::Begun);
    };
    match phase {
        Phase::PendingInitial | Phase::PendingStarting => Some(Progress::Awaited(shown(row))),
        Phase::PendingWaitingToStart
        | Phase::PendingStartingFailed
        | Phase::NotScheduled
        | Phase::AgentDisconnected
        | Phase::FailedLost
        | Phase::Removed => None,
        Phase::Running
        | Phase::Stopping
        | Phase::StoppingWaitingToStop
        | Phase::StoppingRequestedAtRuntime
        | Phase::StoppingDeleteFailed
        | Phase::Succeeded
        | Phase::FailedExecFailed
        | Phase::FailedUnknown => Some(Progress::Begun),
    }
}

fn shown(row: &Row) -> String {
    if row.info.is_empty() {
        row.state.clone()
    } else {
        format!("{}: {}", row.state, row.info)
    }
}

fn place(agent: &str) -> String {
    if agent.is_empty() {
        String::new()
    } else {
        format!(" on agent '{agent}'")
    }
}

fn warn_of_missing(
    InstanceName {
        workload, agent, ..
    }: &InstanceName,
    why: &str,
    output: &mut Output,
) {
    output.warn(format_args!(
        "no logs of workload '{workload}'{}: {why}",
        place(agent)
    ));
}

/// Prints lines until all instances ended. Returns whether one had none for a reason, or its agent
/// was disconnected.
fn follow(
    arguments: &LogsArguments,
    mut open: BTreeMap<InstanceName, Progress>,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<bool> {
    let many = open.len() > 1;
    let request = LogsRequest {
        instances: open.keys().cloned().collect(),
        follow: arguments.follow.then_some(true),
        tail: (arguments.tail >= 0).then_some(arguments.tail),
        since: arguments.since.clone(),
        until: arguments.until.clone(),
    };
    let accepted = link.request_logs(request)?;
    if let Some(refused) = open.keys().find(|instance| !accepted.contains(instance)) {
        link.cancel_logs();
        let text = format!(
            "Workload '{}' is not accepted by the server to receive logs from.",
            refused.workload
        );
        return Err(CliError::input(
            text,
            "it may have ended in the meantime; see 'ank get workloads'",
        ));
    }
    let mut lost = false;
    let is_awaited = |progress: &Progress| matches!(progress, Progress::Awaited(_));
    let mut explain_at = open
        .values()
        .any(is_awaited)
        .then(|| link.now() + EXPLAIN_AFTER);
    while !open.is_empty() {
        match link.next(explain_at) {
            Ok(Some(Incoming::Lines(entries))) => {
                let (reasons, entries): (Vec<_>, Vec<_>) =
                    entries.into_iter().partition(|entry| entry.is_reason);
                for entry in reasons
                    .iter()
                    .filter(|entry| open.contains_key(&entry.instance))
                {
                    lost = true;
                    warn_of_missing(&entry.instance, log_entries::reason(entry), output);
                }
                for entry in &entries {
                    if let Some(progress) = open.get_mut(&entry.instance) {
                        *progress = Progress::Begun;
                    }
                }
                output.lines_of_workloads(&lines(arguments, many, &entries))?;
            }
            Ok(Some(Incoming::Stopped(instance))) => _ = open.remove(&instance),
            Ok(Some(Incoming::States(states))) => {
                for WorkloadState { instance, state } in &states {
                    lost |= take_state(instance, state, &mut open, output);
                }
            }
            Ok(Some(Incoming::Event(..))) => {}
            Ok(None) => {
                explain_at = None;
                for (
                    InstanceName {
                        workload, agent, ..
                    },
                    progress,
                ) in &open
                {
                    if let Progress::Awaited(state) = progress {
                        let place = place(agent);
                        output.warn(format_args!(
                            "no logs of workload '{workload}'{place} yet: it is {state}"
                        ));
                    }
                }
            }
            Err(error) => {
                link.cancel_logs();
                return Err(error);
            }
        }
    }
    Ok(lost)
}

/// Notes the state of an instance. Returns whether its log ends: the server sends no end when the
/// agent is gone.
fn take_state(
    instance: &InstanceName,
    state: &ExecutionState,
    open: &mut BTreeMap<InstanceName, Progress>,
    output: &mut Output,
) -> bool {
    if state.phase != Phase::AgentDisconnected {
        if let Some(Progress::Awaited(shown)) = open.get_mut(instance) {
            *shown = one_line(&state.to_string());
        }
        return false;
    }
    if open.remove(instance).is_none() {
        return false;
    }
    let InstanceName {
        workload, agent, ..
    } = instance;
    output.warn(format_args!(
        "logs of workload '{workload}' end: agent '{agent}' is disconnected"
    ));
    true
}

/// The lines, each after what it begins with; of `many` instances the name of the workload.
fn lines(arguments: &LogsArguments, many: bool, entries: &[LogEntry]) -> String {
    let line = |LogEntry {
                    instance:
                        InstanceName {
                            workload, agent, ..
                        },
                    message,
                    ..
                }: &LogEntry| match arguments {
        LogsArguments {
            agent_names: true, ..
        } => format!("{agent}/{workload} {message}\n"),
        LogsArguments {
            names_before_lines, ..
        } if *names_before_lines || many => format!("{workload} {message}\n"),
        _ => format!("{message}\n"),
    };
    entries.iter().map(line).collect()
}

#[cfg(test)]
mod tests;
