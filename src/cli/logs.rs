//! `ank logs`: the output of workloads.
//!
//! Thread: `main`. Owns: which instances still send lines. For a workload that has no container and
//! is not about to get one there is an error with the cause in place of its lines.

use super::args::{LogsArguments, NAMESPACE_TIP};
use super::error::{CliError, ExitCode, Result};
use super::output::{Output, one_line};
use super::rows::{self, Row};
use super::session::{Incoming, ServerLink};
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::execution_state::{Phase, WorkloadState};
use ankaios_model::log_entries;
use ankaios_model::messages::{LogEntry, LogsRequest};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::node::Node;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

/// Time without lines after which a warning names the workloads that are not started yet.
const EXPLAIN_AFTER: Duration = Duration::from_secs(5);

/// Prints the logs of the workloads that `arguments` name, until all of them have ended. Relative
/// times count from `now`.
pub(crate) fn print(
    arguments: &LogsArguments,
    now: fn() -> SystemTime,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<ExitCode> {
    // First, find the instances.
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
    let known = rows.keys().map(|instance| &*instance.workload);
    check_number(arguments, known.clone())?;
    check_namespace(arguments, known.clone())?;
    CliError::check_workloads(&arguments.names, known)?;
    // Then, leave out those that have no log.
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
                let why = format!("it is {}", shown(&row));
                report_missing(&instance, &why, &hint_without_container(name), output);
            }
        }
    }
    // Finally, print the lines of the workloads that have logs.
    if !open.is_empty() {
        missing |= follow(arguments, now(), open, link, output)?;
    }
    if missing {
        return Ok(ExitCode::Failed);
    }
    Ok(ExitCode::Success)
}

/// Refuses a number behind `-n`, which other tools have for the number of lines.
fn check_number<'k>(
    arguments: &LogsArguments,
    mut known: impl Iterator<Item = &'k str>,
) -> Result<()> {
    if !arguments.names_before_lines {
        return Ok(());
    }
    let Some(number) = arguments.names.iter().find(|name| is_number(name)) else {
        return Ok(());
    };
    if known.any(|name| name == number) {
        return Ok(());
    }
    Err(CliError::input(
        format!("Workload name '{number}' does not exist."),
        format!("'-n' begins lines with names; '--tail {number}' prints the last {number} lines"),
    ))
}

/// Refuses a namespace behind `-n`: the first of several names, if no workload has it.
fn check_namespace<'k>(
    arguments: &LogsArguments,
    mut known: impl Iterator<Item = &'k str>,
) -> Result<()> {
    let [first, _, ..] = &*arguments.names else {
        return Ok(());
    };
    if !arguments.names_before_lines || known.any(|name| name == first) {
        return Ok(());
    }
    Err(CliError::input(
        format!("Workload name '{first}' does not exist."),
        format!("'-n' begins lines with names; if '{first}' is a namespace, {NAMESPACE_TIP}"),
    ))
}

/// The parts of the state with the tags of workloads.
const TAG_MASKS: [&str; 2] = [
    "desiredState.workloads.*.tags",
    "effectiveState.workloads.*.tags",
];

/// The workloads that have all of `tags`; none without tags. In the effective state tags are
/// rendered.
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

/// The progress of the log of an instance.
enum LogProgress {
    /// The instance will have a container soon. This is its state meanwhile.
    Awaited(String),
    /// The instance probably has a container.
    Begun,
}

/// Returns whether an instance probably has a container.
pub(crate) fn has_container(row: &Row) -> bool {
    matches!(begin(row), Some(LogProgress::Begun))
}

/// The progress of a log at its begin; `None` if the instance has no container, and will not have
/// one soon.
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

/// Reports that an instance has no log.
fn report_missing(instance: &InstanceName, why: &str, hint: &str, output: &mut Output) {
    let place = place(&instance.agent);
    let text = format!("no logs of workload '{}'{place}: {why}", instance.workload);
    output.error(text, hint);
}

/// The way to the cause of a log that is missing because there is no container.
fn hint_without_container(workload: &str) -> String {
    format!("'ank describe {workload}' shows its state")
}

/// The way to the cause of a log that the engine did not give.
fn hint_without_lines(workload: &str) -> String {
    format!("'ank describe {workload}' shows its state; a log driver such as 'none' keeps no log")
}

/// Prints the lines of the `open` instances until all of them have ended. Returns whether lines are
/// missing: an agent gave a reason in place of lines, or its connection was lost.
fn follow(
    arguments: &LogsArguments,
    now: SystemTime,
    mut open: BTreeMap<InstanceName, LogProgress>,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<bool> {
    // First, request the lines.
    let names = Names::of(arguments, open.keys(), output);
    let request = LogsRequest {
        instances: open.keys().cloned().collect(),
        follow: arguments.follow.then_some(true),
        tail: (arguments.tail >= 0).then_some(arguments.tail), // -1 means all.
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
    // Then, print them until the last log has ended.
    let mut is_missing = false;
    let mut without_times = BTreeSet::new();
    let mut explain_at = None;
    let mut begins = open.values();
    if begins.any(|progress| matches!(progress, LogProgress::Awaited(_))) {
        explain_at = Some(link.now() + EXPLAIN_AFTER);
    }
    while !open.is_empty() {
        match link.next(explain_at) {
            Ok(Some(Incoming::Lines(entries))) => {
                let mut lines = Vec::new();
                for entry in entries {
                    if !entry.is_reason {
                        lines.push(entry);
                    } else if open.contains_key(&entry.instance) {
                        is_missing = true;
                        let why = log_entries::reason(&entry);
                        let hint = hint_without_lines(&entry.instance.workload);
                        report_missing(&entry.instance, why, &hint, output);
                    }
                }
                for line in &lines {
                    if let Some(progress) = open.get_mut(&line.instance) {
                        *progress = LogProgress::Begun;
                    }
                    if arguments.timestamps {
                        warn_of_missing_time(line, &mut without_times, output);
                    }
                }
                output.lines_of_workloads(&names.lines(&lines))?;
            }
            Ok(Some(Incoming::Stopped(instance))) => _ = open.remove(&instance),
            Ok(Some(Incoming::States(states))) => {
                for state in &states {
                    is_missing |= take_state(state, &mut open, output);
                }
            }
            Ok(Some(Incoming::Event(..))) => {}
            Ok(None) => {
                explain_at = None; // Once is enough.
                warn_of_awaited(&open, output);
            }
            Err(error) => {
                link.cancel_logs();
                return Err(error);
            }
        }
    }
    Ok(is_missing)
}

/// Warns of the instances whose logs have not begun.
fn warn_of_awaited(open: &BTreeMap<InstanceName, LogProgress>, output: &mut Output) {
    for (instance, progress) in open {
        if let LogProgress::Awaited(state) = progress {
            let workload = &instance.workload;
            let place = place(&instance.agent);
            output.warn(format_args!(
                "no logs of workload '{workload}'{place} yet: it is {state}"
            ));
        }
    }
}

/// Warns of an agent that sends lines without times, once. `warned` has the agents that were named.
fn warn_of_missing_time(line: &LogEntry, warned: &mut BTreeSet<Name>, output: &mut Output) {
    let agent = &line.instance.agent;
    if !begins_with_time(&line.message) && warned.insert(agent.clone()) {
        output.warn(format_args!(
            "agent '{agent}' does not send the times of lines; a newer one does"
        ));
    }
}

/// Applies a reported state. Returns whether it ends a log: when an agent is disconnected, the
/// server sends no other end.
fn take_state(
    WorkloadState { instance, state }: &WorkloadState,
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

/// Returns whether a line begins with a time.
fn begins_with_time(line: &str) -> bool {
    if line.starts_with('[') {
        return true; // A line of the agent itself.
    }
    // In a pod the name of the container is the first word.
    let mut words = line.split(' ').take(2);
    words.any(is_time)
}

/// The begin of a time as engines print it, with 0 for each digit. A fraction and a zone follow.
const TIME_SHAPE: &str = "0000-00-00T00:00:00";

/// Returns whether a word is a time as engines print it.
fn is_time(word: &str) -> bool {
    if word.len() <= TIME_SHAPE.len() {
        return false;
    }
    for (c, shape) in word.chars().zip(TIME_SHAPE.chars()) {
        let is_right = match shape {
            '0' => c.is_ascii_digit(),
            other => c == other,
        };
        if !is_right {
            return false;
        }
    }
    true
}

/// Colours of names, each readable on dark and light terminals.
const COLOURS: [&str; 6] = [
    "\x1b[36m", "\x1b[33m", "\x1b[32m", "\x1b[35m", "\x1b[34m", "\x1b[31m",
];

/// The text before the lines of each instance.
struct Names(BTreeMap<InstanceName, String>);

impl Names {
    /// The names of `instances`. A single instance has no name, unless the command line wants it.
    /// Several workloads have different colours.
    fn of<'i>(
        arguments: &LogsArguments,
        instances: impl Iterator<Item = &'i InstanceName> + Clone,
        output: &Output,
    ) -> Self {
        let has_several = instances.clone().count() > 1;
        if !has_several && !arguments.agent_names && !arguments.names_before_lines {
            return Self(BTreeMap::new());
        }
        let workloads = instances.clone().map(|instance| &instance.workload);
        let workloads: BTreeSet<&Name> = workloads.collect_entries();
        let has_colours = workloads.len() > 1 && output.result_colours;
        let mut names = BTreeMap::new();
        for instance in instances {
            let workload = &instance.workload;
            let mut name = workload.to_string();
            if arguments.agent_names {
                name = format!("{}/{workload}", instance.agent);
            }
            if has_colours {
                let position = workloads.iter().position(|other| *other == workload);
                let colour = COLOURS[position.unwrap_or_default() % COLOURS.len()];
                name = format!("{colour}{name}\x1b[0m");
            }
            names.insert(instance.clone(), format!("{name} "));
        }
        Self(names)
    }

    /// The lines, each behind the name of its instance.
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
