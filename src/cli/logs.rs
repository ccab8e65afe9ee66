//! `ank logs`: the output of workloads.
//!
//! Thread: `main`. Owns: which instances still send lines. A workload without a container would never end, so there is
//! a warning with the cause in place of its lines, and another exit code.

use super::args::LogsArguments;
use super::error::{CliError, ExitCode};
use super::output::Output;
use super::rows;
use super::session::{Incoming, ServerLink};
use super::table::one_line;
use crate::model::execution_state::Phase;
use crate::model::messages::{LogEntry, LogsRequest};
use crate::model::names::InstanceName;
use crate::model::node::Node;
use std::collections::{BTreeMap, BTreeSet};

/// Prints the logs of the workloads that `arguments` name until all of them ended.
pub fn print(
    arguments: &LogsArguments,
    link: &mut dyn ServerLink,
    output: &mut Output<'_>,
) -> Result<ExitCode, CliError> {
    let state = link.complete_state(&["workloadStates"])?;
    let mut missing = false;
    let mut instances = Vec::new();
    for (instance, obstacle) in instances_of(&arguments.names, &state)? {
        match obstacle {
            None => instances.push(instance),
            Some(obstacle) => {
                missing = true;
                let InstanceName { workload, agent, .. } = instance;
                let place = if agent.is_empty() { String::new() } else { format!(" on agent '{agent}'") };
                output.warn(format_args!("no logs of workload '{workload}'{place}: it is {obstacle}"));
            }
        }
    }
    if !instances.is_empty() {
        missing |= follow(arguments, instances, link, output)?;
    }
    Ok(if missing { ExitCode::Failed } else { ExitCode::Success })
}

/// All instances of the workloads `names`; for those without logs, the cause.
fn instances_of(names: &[String], state: &Node) -> Result<Vec<(InstanceName, Option<String>)>, CliError> {
    let Some(states) = state.get("workloadStates") else {
        let text = "No workload states available to convert workload names to instance names.";
        return Err(CliError::input(text, "'ank get workloads' shows the workloads of the server"));
    };
    let mut known: BTreeMap<&str, Vec<(InstanceName, Option<String>)>> = BTreeMap::new();
    for (agent, workloads) in rows::entries(Some(states)) {
        for (workload, ids) in rows::entries(Some(workloads)) {
            let instances = rows::entries(Some(ids))
                .map(|(id, state)| (InstanceName::with_id(workload, id, agent), obstacle(state)));
            known.entry(workload).or_default().extend(instances);
        }
    }
    let mut found = Vec::new();
    for name in names.iter().collect::<BTreeSet<_>>() {
        match known.remove(name.as_str()) {
            Some(instances) => found.extend(instances),
            None => return Err(CliError::unknown_workload(name, known.keys().copied())),
        }
    }
    Ok(found)
}

/// Why an instance in this state has no container whose logs could be read.
fn obstacle(state: &Node) -> Option<String> {
    let text = |key: &str| state.get(key).and_then(Node::as_text).unwrap_or_default();
    let phase = Phase::parse(text("state"), text("subState"))?;
    let without_container =
        phase.is_pending() || matches!(phase, Phase::NotScheduled | Phase::AgentDisconnected | Phase::FailedLost);
    without_container.then(|| match one_line(text("additionalInfo")) {
        info if info.is_empty() => phase.to_string(),
        info => format!("{phase}: {info}"),
    })
}

/// Prints lines until all instances ended. Returns whether one ended because its agent was disconnected.
fn follow(
    arguments: &LogsArguments,
    instances: Vec<InstanceName>,
    link: &mut dyn ServerLink,
    output: &mut Output<'_>,
) -> Result<bool, CliError> {
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
        return Err(CliError::input(text, "it may have ended in the meantime; see 'ank get workloads'").into());
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
                return Err(error.into());
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
