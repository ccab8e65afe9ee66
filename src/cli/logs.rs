//! `ank logs`: the output of workloads.
//!
//! Thread: `main`. Owns: which instances still send lines. For a workload that has no container and
//! is not about to get one there is an error with the cause in place of its lines.

use super::args::LogsArguments;
use super::error::{CliError, ExitCode, Result};
use super::output::{Output, one_line};
use super::rows::{self, Row};
use super::session::{Incoming, ServerLink};
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::log_entries;
use ankaios_model::messages::{LogEntry, LogsRequest};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::node::Node;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

/// After so long without lines of a workload that is being started it is said what it waits for.
const EXPLAIN_AFTER: Duration = Duration::from_secs(5);

/// What to do about a workload without a log.
const NO_LOG_HINT: &str =
    "'ank describe NAME' shows its state; a log driver such as 'none' keeps no log";

/// Prints the logs of the workloads that `arguments` name until all of them ended; `now` is the time
/// before which a relative one is.
pub(crate) fn print(
    arguments: &LogsArguments,
    now: fn() -> SystemTime,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<ExitCode> {
    let mut masks = vec!["workloadStates"];
    if !arguments.tags.is_empty() {
        masks.extend(TAG_MASKS);
    }
    let state = link.complete_state(&masks)?;
    if state.get("workloadStates").is_none() {
        let text = "No workload states available to convert workload names to instance names.";
        return Err(CliError::input(
            text,
            "'ank get workloads' shows the workloads of the server",
        ));
    }
    let rows = rows::rows(&state);
    let tagged = with_tags(&state, &arguments.tags)?;
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
        let name = &*instance.workload;
        let is_named = arguments.names.iter().any(|other| other == name);
        if !is_named && !tagged.contains(name) {
            continue;
        }
        match begin(&row) {
            Some(progress) => _ = open.insert(instance, progress),
            None => {
                missing = true;
                report_missing(&instance, &format!("it is {}", shown(&row)), output);
            }
        }
    }
    if !open.is_empty() {
        missing |= follow(arguments, now(), open, link, output)?;
    }
    Ok(if missing {
        ExitCode::Failed
    } else {
        ExitCode::Success
    })
}

/// The parts of the state with the tags of workloads.
const TAG_MASKS: [&str; 2] = [
    "desiredState.workloads.*.tags",
    "effectiveState.workloads.*.tags",
];

/// The workloads that have each of `tags`; none without tags. The effective state has rendered
/// ones.
fn with_tags<'s>(state: &'s Node, tags: &[(String, String)]) -> Result<BTreeSet<&'s str>> {
    let mut found = BTreeSet::new();
    if tags.is_empty() {
        return Ok(found);
    }
    for part in ["desiredState", "effectiveState"] {
        for (name, workload) in rows::entries(state.at(&[part, "workloads"])) {
            if rows::has_tags(workload, tags) {
                found.insert(name);
            }
        }
    }
    if !found.is_empty() {
        return Ok(found);
    }
    let mut shown = Vec::new();
    for (key, value) in tags {
        shown.push(format!("'{key}={value}'"));
    }
    Err(CliError::input(
        format!("No workload has the tag {}.", shown.join(" and ")),
        "\"ank get state 'desiredState.workloads.*.tags'\" shows the tags of workloads",
    ))
}

fn is_number(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_digit())
}

/// How far the log of an instance is.
enum LogProgress {
    /// The container of the instance is about to come; what its state is meanwhile.
    Awaited(String),
    /// There is a container, as far as is known.
    Begun,
}

/// Whether an instance in this state has a container, as far as is known.
pub(crate) fn has_container(row: &Row) -> bool {
    matches!(begin(row), Some(LogProgress::Begun))
}

/// How the log of an instance in this state begins; `None` when it has no container and is not
/// about to get one.
fn begin(row: &Row) -> Option<LogProgress> {
    let Some(phase) = row.phase else {
        return Some(LogProgress::Begun);
    };
    match phase {
        Phase::PendingInitial | Phase::PendingStarting => Some(LogProgress::Awaited(shown(row))),
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
        | Phase::FailedUnknown => Some(LogProgress::Begun),
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

/// Reports that an instance has no log, which makes the exit code.
fn report_missing(instance: &InstanceName, why: &str, output: &mut Output) {
    let place = place(&instance.agent);
    let text = format!("no logs of workload '{}'{place}: {why}", instance.workload);
    output.error(text, NO_LOG_HINT);
}

/// Prints lines until all instances ended. Returns whether one had none for a reason, or its agent
/// was disconnected.
fn follow(
    arguments: &LogsArguments,
    now: SystemTime,
    mut open: BTreeMap<InstanceName, LogProgress>,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<bool> {
    let names = Names::of(arguments, open.keys(), output);
    let mut without_times = BTreeSet::new();
    let request = LogsRequest {
        instances: open.keys().cloned().collect(),
        follow: arguments.follow.then_some(true),
        tail: (arguments.tail >= 0).then_some(arguments.tail),
        since: arguments.since.as_ref().map(|since| since.text(now)),
        until: arguments.until.as_ref().map(|until| until.text(now)),
        timestamps: arguments.timestamps,
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
    let is_awaited = |progress: &LogProgress| matches!(progress, LogProgress::Awaited(_));
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
                    report_missing(&entry.instance, log_entries::reason(entry), output);
                }
                for entry in &entries {
                    if let Some(progress) = open.get_mut(&entry.instance) {
                        *progress = LogProgress::Begun;
                    }
                    let is_timeless = arguments.timestamps && !begins_with_time(&entry.message);
                    if is_timeless && without_times.insert(entry.instance.agent.clone()) {
                        output.warn(format_args!(
                            "agent '{}' does not send the times of lines; a newer one does",
                            entry.instance.agent
                        ));
                    }
                }
                output.lines_of_workloads(&names.lines(&entries))?;
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
                    if let LogProgress::Awaited(state) = progress {
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
    open: &mut BTreeMap<InstanceName, LogProgress>,
    output: &mut Output,
) -> bool {
    if state.phase != Phase::AgentDisconnected {
        if let Some(LogProgress::Awaited(shown)) = open.get_mut(instance) {
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
    output.error(
        format_args!("logs of workload '{workload}' end: agent '{agent}' is disconnected"),
        "repeat it when the agent is connected again; 'ank get agents' shows it",
    );
    true
}

/// Whether a line begins with a time as engines print it: `2026-01-31T12:00:00`, then more of it.
/// Lines of a pod have the name of the container first, and the agent's own ones are in brackets.
fn begins_with_time(line: &str) -> bool {
    let mut words = line.split(' ').take(2);
    line.starts_with('[') || words.any(is_time)
}

fn is_time(word: &str) -> bool {
    let mut shape = word.chars().take(TIME_SHAPE.len());
    let mut expected = TIME_SHAPE.chars();
    word.len() > TIME_SHAPE.len()
        && shape.all(|c| match expected.next() {
            Some('0') => c.is_ascii_digit(),
            other => other == Some(c),
        })
}

/// The beginning of an RFC 3339 time, with 0 for each digit.
const TIME_SHAPE: &str = "0000-00-00T00:00:00";

/// Colours of names, each readable on dark and light terminals.
const COLOURS: [&str; 6] = [
    "\x1b[36m", "\x1b[33m", "\x1b[32m", "\x1b[35m", "\x1b[34m", "\x1b[31m",
];

/// What the lines of each instance begin with.
struct Names(BTreeMap<InstanceName, String>);

impl Names {
    /// The names of `instances`; of a single workload none, unless it is wanted. On a terminal with
    /// colours several workloads have different ones.
    fn of<'i>(
        arguments: &LogsArguments,
        instances: impl Iterator<Item = &'i InstanceName> + Clone,
        output: &Output,
    ) -> Self {
        let many = instances.clone().count() > 1;
        let workloads: BTreeSet<&Name> = instances.clone().map(|it| &it.workload).collect_entries();
        let mut names = BTreeMap::new();
        for instance in instances {
            let InstanceName {
                workload, agent, ..
            } = instance;
            let name = if arguments.agent_names {
                format!("{agent}/{workload}")
            } else if arguments.names_before_lines || many {
                workload.to_string()
            } else {
                names.insert(instance.clone(), String::new());
                continue;
            };
            let position = workloads.iter().position(|other| *other == workload);
            let name = match position {
                Some(position) if workloads.len() > 1 && output.result_colours => {
                    let colour = COLOURS[position % COLOURS.len()];
                    format!("{colour}{name}\x1b[0m ")
                }
                _ => format!("{name} "),
            };
            names.insert(instance.clone(), name);
        }
        Self(names)
    }

    /// The lines, each after what it begins with.
    fn lines(&self, entries: &[LogEntry]) -> String {
        let mut lines = String::new();
        for entry in entries {
            if let Some(name) = self.0.get(&entry.instance) {
                lines.push_str(name);
            }
            lines.push_str(&entry.message);
            lines.push('\n');
        }
        lines
    }
}

#[cfg(test)]
mod tests;
