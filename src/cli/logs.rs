//! `ank logs`: the output of workloads.
//!
//! Thread: `main`. Owns: which instances still send lines. A workload without a container would never end, so there is
//! a warning with the cause in place of its lines, and another exit code.

use super::args::LogsArguments;
use super::error::{CliError, CommandError, ExitCode};
use super::output::Output;
use super::rows;
use super::session::{LogStep, ServerLink};
use super::table::one_line;
use crate::model::execution_state::Phase;
use crate::model::messages::{LogEntry, LogsRequest};
use crate::model::names::InstanceName;
use crate::model::node::Node;
use std::collections::{BTreeMap, BTreeSet};

/// Prints the logs of the workloads that `arguments` name until all of them ended.
///
/// # Errors
/// An unknown workload, a refusal, the end of the connection, a signal, or standard output cannot be written. A
/// workload without a container leads to a warning and [`ExitCode::Failed`].
pub fn print(
    arguments: &LogsArguments,
    link: &mut impl ServerLink,
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
fn instances_of(names: &[String], state: &Node) -> Result<Vec<(InstanceName, Option<String>)>, CommandError> {
    let Some(states) = state.get("workloadStates") else {
        let text = "No workload states available to convert workload names to instance names.";
        return Err(CommandError::input(text, "'ank get workloads' shows the workloads of the server"));
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
            None => return Err(CommandError::unknown_workload(name, known.keys().copied())),
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
    link: &mut impl ServerLink,
    output: &mut Output<'_>,
) -> Result<bool, CliError> {
    let prefix = Prefix::of(arguments, &instances);
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
        return Err(CommandError::input(text, "it may have ended in the meantime; see 'ank get workloads'").into());
    }
    let mut open: BTreeSet<InstanceName> = instances.into_iter().collect();
    let mut lost = false;
    while !open.is_empty() {
        match link.next_log() {
            Ok(LogStep::Entries(entries)) => output.lines_of_workloads(&prefix.lines(&entries))?,
            Ok(LogStep::Stopped(instance)) => {
                open.remove(&instance);
            }
            Ok(LogStep::States(states)) => {
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
            Err(error) => {
                link.cancel_logs();
                return Err(error.into());
            }
        }
    }
    Ok(lost)
}

/// The beginning of each line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prefix {
    Nothing,
    Workload,
    AgentAndWorkload,
}

impl Prefix {
    fn of(arguments: &LogsArguments, instances: &[InstanceName]) -> Self {
        if arguments.agent_names {
            Self::AgentAndWorkload
        } else if arguments.names_before_lines || instances.len() > 1 {
            Self::Workload
        } else {
            Self::Nothing
        }
    }

    fn lines(self, entries: &[LogEntry]) -> String {
        let line = |LogEntry { instance, message }: &LogEntry| match self {
            Self::Nothing => format!("{message}\n"),
            Self::Workload => format!("{} {message}\n", instance.workload),
            Self::AgentAndWorkload => format!("{}/{} {message}\n", instance.agent, instance.workload),
        };
        entries.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests;
