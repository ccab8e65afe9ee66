//! `ank logs`: the output of workloads.
//!
//! Thread: `main`. Owns: which instances still send lines. A workload without a container would never end, so there is
//! a warning with the cause in place of its lines, and another exit code.

use super::args::LogsArguments;
use super::error::{CliError, ExitCode, Result};
use super::output::Output;
use super::rows::{self, Row};
use super::session::{Incoming, ServerLink};
use crate::model::execution_state::Phase;
use crate::model::messages::{LogEntry, LogsRequest};
use crate::model::names::InstanceName;
use std::collections::BTreeSet;

/// Prints the logs of the workloads that `arguments` name until all of them ended.
pub fn print(arguments: &LogsArguments, link: &mut dyn ServerLink, output: &mut Output) -> Result<ExitCode> {
    let state = link.complete_state(&["workloadStates"])?;
    if state.get("workloadStates").is_none() {
        let text = "No workload states available to convert workload names to instance names.";
        return Err(CliError::input(text, "'ank get workloads' shows the workloads of the server"));
    }
    let rows = rows::rows(&state);
    CliError::check_workloads(&arguments.names, rows.keys().map(|instance| &*instance.workload))?;
    let mut missing = false;
    let mut instances = Vec::new();
    for (instance, row) in
        rows.iter().filter(|(instance, _)| arguments.names.iter().any(|name| **name == *instance.workload))
    {
        if !is_without_container(row) {
            instances.push(instance.clone());
            continue;
        }
        missing = true;
        let InstanceName { workload, agent, .. } = instance;
        let place = if agent.is_empty() { String::new() } else { format!(" on agent '{agent}'") };
        let info = if row.info.is_empty() { String::new() } else { format!(": {}", row.info) };
        output.warn(format_args!("no logs of workload '{workload}'{place}: it is {}{info}", row.state));
    }
    if !instances.is_empty() {
        missing |= follow(arguments, instances, link, output)?;
    }
    Ok(if missing { ExitCode::Failed } else { ExitCode::Success })
}

/// Whether an instance in this state has no container whose logs could be read.
fn is_without_container(row: &Row) -> bool {
    let is_one = |phase: Phase| {
        phase.is_pending() || matches!(phase, Phase::NotScheduled | Phase::AgentDisconnected | Phase::FailedLost)
    };
    row.phase.is_some_and(is_one)
}

/// Prints lines until all instances ended. Returns whether one ended because its agent was disconnected.
fn follow(
    arguments: &LogsArguments,
    instances: Vec<InstanceName>,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<bool> {
    let many = instances.len() > 1;
    let request = LogsRequest {
        instances: instances.clone(),
        follow: arguments.follow.then_some(true),
        tail: (arguments.tail >= 0).then_some(arguments.tail),
        since: arguments.since.clone(),
        until: arguments.until.clone(),
    };
    let accepted = link.request_logs(request)?;
    if let Some(refused) = instances.iter().find(|instance| !accepted.contains(instance)) {
        link.cancel_logs();
        let text = format!("Workload '{}' is not accepted by the server to receive logs from.", refused.workload);
        return Err(CliError::input(text, "it may have ended in the meantime; see 'ank get workloads'"));
    }
    let mut open: BTreeSet<InstanceName> = instances.into_iter().collect();
    let mut lost = false;
    while !open.is_empty() {
        match link.next(None) {
            Ok(Some(Incoming::Lines(entries))) => output.lines_of_workloads(&lines(arguments, many, &entries))?,
            Ok(Some(Incoming::Stopped(instance))) => {
                open.remove(&instance);
            }
            Ok(Some(Incoming::States(states))) => {
                // The server sends no end of these logs.
                let gone = states.iter().filter(|state| state.state.phase == Phase::AgentDisconnected);
                for instance in gone.map(|state| &state.instance) {
                    if open.remove(instance) {
                        lost = true;
                        let InstanceName { workload, agent, .. } = instance;
                        output.warn(format_args!("logs of workload '{workload}' end: agent '{agent}' is disconnected"));
                    }
                }
            }
            Ok(_) => {}
            Err(error) => {
                link.cancel_logs();
                return Err(error);
            }
        }
    }
    Ok(lost)
}

/// The lines, each after what it begins with; of `many` instances the name of the workload.
fn lines(arguments: &LogsArguments, many: bool, entries: &[LogEntry]) -> String {
    let line = |LogEntry { instance: InstanceName { workload, agent, .. }, message }: &LogEntry| match arguments {
        LogsArguments { agent_names: true, .. } => format!("{agent}/{workload} {message}\n"),
        LogsArguments { names_before_lines, .. } if *names_before_lines || many => format!("{workload} {message}\n"),
        _ => format!("{message}\n"),
    };
    entries.iter().map(line).collect()
}

#[cfg(test)]
mod tests;
