//! `ank logs`: the output of workloads (spec/cli.md section 11).
//!
//! Thread: `main`. Owns: which instances still send lines. A workload that has no container would let us wait for
//! ever, so it is told why there is nothing to print, and the exit code says that something is missing.

use super::args::LogsArguments;
use super::error::{CliError, CommandError, ExitCode};
use super::output::Output;
use super::rows;
use super::session::{LogStep, ServerLink};
use super::table::one_line;
use crate::model::execution_state::Phase;
use crate::model::messages::{LogEntry, LogsRequest};
use crate::model::names::InstanceName;
use crate::model::nearest::nearest;
use crate::model::node::Node;
use std::collections::{BTreeMap, BTreeSet};

/// Prints the logs of the workloads that `arguments` name, until all of them ended.
///
/// # Errors
/// An unknown workload, a refusal, the end of the connection, a signal, or standard output cannot be written. A
/// workload without a container is a warning, and [`ExitCode::Failed`] in the end.
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

/// All instances of the workloads `names`, and why one has no logs.
fn instances_of(names: &[String], state: &Node) -> Result<Vec<(InstanceName, Option<String>)>, CommandError> {
    let Some(states) = state.get("workloadStates") else {
        let text = "No workload states available to convert workload names to instance names.";
        return Err(CommandError::input(text, "'ank get workloads' shows what the server knows"));
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
            None => {
                let hint = nearest(name, known.keys().copied()).map_or_else(
                    || "'ank get workloads' lists the names".to_owned(),
                    |nearest| format!("did you mean '{nearest}'?"),
                );
                return Err(CommandError::input(format!("Workload name '{name}' does not exist."), hint));
            }
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

/// Prints what comes until all instances ended. Answers whether one ended because its agent went away.
fn follow(
    arguments: &LogsArguments,
    instances: Vec<InstanceName>,
    link: &mut impl ServerLink,
    output: &mut Output<'_>,
) -> Result<bool, CliError> {
    let names = Prefix::of(arguments, &instances);
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
        return Err(CommandError::input(text, "it may have ended meanwhile; see 'ank get workloads'").into());
    }
    let mut open: BTreeSet<InstanceName> = instances.into_iter().collect();
    let mut lost = false;
    while !open.is_empty() {
        match link.next_log() {
            Ok(LogStep::Entries(entries)) => output.lines_of_workloads(&names.lines(&entries))?,
            Ok(LogStep::Stopped(instance)) => {
                open.remove(&instance);
            }
            Ok(LogStep::States(states)) => {
                // Nobody would ever tell the end of these logs.
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

/// What stands before each line.
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

/// A time that the runtimes understand: RFC 3339, for example `2026-01-31T12:00:00Z`.
///
/// # Errors
/// What such a time looks like.
pub fn parse_time(text: &str) -> Result<String, String> {
    if is_rfc3339(text) {
        Ok(text.to_owned())
    } else {
        Err("expected a time as in RFC 3339, for example 2026-01-31T12:00:00Z or 2026-01-31T13:00:00.5+01:00"
            .to_owned())
    }
}

fn is_rfc3339(text: &str) -> bool {
    let (Some(date_time), Some(rest)) = (text.get(..19), text.get(19..)) else { return false };
    let separators = [(4, "-"), (7, "-"), (10, "Tt "), (13, ":"), (16, ":")];
    let bytes = date_time.as_bytes();
    if !separators.iter().all(|(at, allowed)| allowed.as_bytes().contains(&bytes[*at])) {
        return false;
    }
    let number = |text: &str, from: usize, to: usize| match text.get(from..to) {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse::<u32>().ok(),
        _ => None,
    };
    let within = |text: &str, from: usize, range: std::ops::RangeInclusive<u32>| {
        number(text, from, from + 2).is_some_and(|number| range.contains(&number))
    };
    let (Some(year), Some(month)) = (number(text, 0, 4), number(text, 5, 7)) else { return false };
    let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let days = match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    // A leap second may be.
    let fields = within(text, 5, 1..=12)
        && within(text, 8, 1..=days)
        && within(text, 11, 0..=23)
        && within(text, 14, 0..=59)
        && within(text, 17, 0..=60);
    let zone = match rest.strip_prefix('.') {
        Some(fraction) => match fraction.trim_start_matches(|c: char| c.is_ascii_digit()) {
            zone if zone.len() == fraction.len() => return false,
            zone => zone,
        },
        None => rest,
    };
    let offset = zone.len() == 6
        && zone.starts_with(['+', '-'])
        && zone.as_bytes()[3] == b':'
        && within(zone, 1, 0..=23)
        && within(zone, 4, 0..=59);
    fields && (zone.eq_ignore_ascii_case("z") || offset)
}

#[cfg(test)]
mod tests;
