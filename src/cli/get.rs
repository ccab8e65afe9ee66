//! `ank get state|workload|agent|config`: states as text, tables of workloads, agents and configs.
//!
//! Thread: `main`.

use super::args::{Format, WorkloadArguments};
use super::error::{CliError, meant};
use super::live::LiveFrames;
use super::output::Output;
use super::reasons::Reasons;
use super::rows::{self, Row};
use super::session::ServerLink;
use super::state_output::state_text;
use super::table::{Table, TooWide, one_line};
use crate::model::execution_state::{Phase, WorkloadState};
use crate::model::field_path::{WILDCARD, parts};
use crate::model::fields::{COMPLETE_STATE, PARTS_ON_REQUEST, selects_nothing};
use crate::model::names::InstanceName;
use crate::model::node::Node;
use std::collections::BTreeMap;

impl WorkloadArguments {
    /// Whether all conditions hold. A state matches with and without its sub-state, in upper and lower case.
    pub(super) fn accepts(&self, instance: &InstanceName, row: &Row) -> bool {
        let state = |wanted: &String| {
            let (shown, wanted) = (row.state.to_lowercase(), wanted.to_lowercase());
            shown == wanted || shown.split('(').next() == Some(wanted.as_str())
        };
        self.agent.as_ref().is_none_or(|agent| **agent == *instance.agent)
            && self.state.as_ref().is_none_or(state)
            && (self.names.is_empty() || self.names.iter().any(|name| **name == *instance.workload))
    }

    fn table(&self, rows: &BTreeMap<InstanceName, Row>, reasons: &Reasons) -> Table<5> {
        let accepted = rows.iter().filter(|(instance, row)| self.accepts(instance, row));
        rows::table(accepted.map(|(instance, row)| (instance, reasons.explained(instance, row))))
    }

    /// Warns about names and states that do not exist: they are probably typing errors.
    pub(super) fn warn_of_unknown(&self, state: &Node, rows: &BTreeMap<InstanceName, Row>, output: &mut Output<'_>) {
        let known = || rows.keys().map(|instance| &*instance.workload);
        for name in self.names.iter().filter(|name| !known().any(|known| known == **name)) {
            output.warn(format_args!("workload '{name}' does not exist{}", meant(name, known())));
        }
        // Workloads that are not scheduled are on an agent without a name.
        if let Some(agent) = self.agent.as_ref().filter(|agent| !agent.is_empty()) {
            let connected = || rows::entries(state.get("agents")).map(|(name, _)| name);
            let known = || connected().chain(rows.keys().map(|instance| &*instance.agent));
            if !known().any(|known| known == agent) {
                output.warn(format_args!("agent '{agent}' does not exist{}", meant(agent, known())));
            }
        }
        if let Some(state) = &self.state {
            let names = Phase::ALL.iter().map(|(phase, state, _)| (phase.to_string(), *state));
            let known: Vec<(String, &str)> = names.collect();
            let known = || known.iter().flat_map(|(whole, state)| [whole.as_str(), state]);
            if !known().any(|known| known.eq_ignore_ascii_case(state)) {
                output.warn(format_args!("no state is called '{state}'{}", meant(state, known())));
            }
        }
    }
}

/// Prints the parts of the state that `masks` select.
///
/// # Errors
/// No response, or standard output cannot be written.
pub fn state(
    link: &mut impl ServerLink,
    masks: &[String],
    format: Format,
    output: &mut Output<'_>,
) -> Result<(), CliError> {
    warn_of_unknown_parts(masks, PARTS_ON_REQUEST, output);
    let masks: Vec<&str> = masks.iter().map(String::as_str).collect();
    let state = link.complete_state(&masks)?;
    for mask in masks {
        warn_of_missing_part(mask, &state, output);
    }
    // In a read of its own, because servers of other implementations have no such part.
    if let Ok(part) = link.complete_state(&["warning"])
        && let Some(text) = part.get("warning").and_then(Node::as_text)
    {
        output.warn(text);
    }
    Ok(output.result(&state_text(&state, format))?)
}

/// Warns about a mask for an object, or a part of one, that does not exist: the response lacks it without an error.
fn warn_of_missing_part(mask: &str, state: &Node, output: &mut Output<'_>) {
    let path = parts(mask);
    // What is unknown at the top was reported before the read.
    if COMPLETE_STATE.field(path[0]).is_some()
        && let Some(reason) = selects_nothing(&path)
    {
        output.warn(format_args!("mask '{mask}' selects nothing: {reason}"));
        return;
    }
    let (kind, length) = match path[..] {
        ["desiredState" | "effectiveState", "workloads", ..] => ("workload", 3),
        ["desiredState" | "effectiveState", "configs", ..] => ("config", 3),
        ["agents", ..] => ("agent", 2),
        [part] if PARTS_ON_REQUEST.contains(&part) => ("part", 1),
        _ => return,
    };
    let named = path.split(|part| *part == WILDCARD).next().unwrap_or_default();
    if named.len() < length || state.at(named).is_some() {
        return;
    }
    // The response to a longer mask does not show whether the object lacks this part or does not exist.
    match path.len() == length {
        true => output.warn(format_args!("{kind} '{}' does not exist", path[length - 1])),
        false => output.warn(format_args!("mask '{mask}' selects nothing")),
    }
}

/// Warns about masks that can never select anything: the server accepts them without an error. Parts `on_request` are
/// known beside those of each complete state.
pub fn warn_of_unknown_parts(masks: &[String], on_request: &[&'static str], output: &mut Output<'_>) {
    let known = || COMPLETE_STATE.names().chain(on_request.iter().copied());
    for mask in masks {
        let part = parts(mask)[0];
        if part != WILDCARD && !known().any(|known| known == part) {
            let meant = meant(part, known());
            output.warn(format_args!("mask '{mask}' selects nothing: no part of the state is called '{part}'{meant}"));
        }
    }
}

/// Prints the table of workloads once.
///
/// # Errors
/// As [`state`].
pub fn workloads(
    link: &mut impl ServerLink,
    filter: &WorkloadArguments,
    output: &mut Output<'_>,
) -> Result<(), CliError> {
    let state = link.complete_state(&rows::MASKS)?;
    let rows = rows::rows(&state);
    filter.warn_of_unknown(&state, &rows, output);
    let table = filter.table(&rows, &Reasons::new(&state, &rows));
    Ok(output.result(&table.text(output.width(), TooWide::Wrap))?)
}

/// Keeps the table of workloads up to date until the connection ends.
///
/// # Errors
/// As [`state`]; the end of the connection is one.
pub fn watch_workloads(
    link: &mut impl ServerLink,
    filter: &WorkloadArguments,
    output: &mut Output<'_>,
) -> Result<(), CliError> {
    let read = |link: &mut _| -> Result<_, CliError> {
        let state = ServerLink::complete_state(link, &rows::MASKS)?;
        let rows = rows::rows(&state);
        let reasons = Reasons::new(&state, &rows);
        Ok((state, rows, reasons))
    };
    let (state, mut rows, mut reasons) = read(link)?;
    filter.warn_of_unknown(&state, &rows, output);
    drop(state); // It may be large, and watching may take long.
    let mut frames = LiveFrames::default();
    loop {
        let mut lines = filter.table(&rows, &reasons).lines(output.width(), TooWide::Wrap);
        if let Some((_, height)) = output.terminal() {
            shorten(&mut lines, height.saturating_sub(1)); // The cursor stands below.
        }
        frames.show(lines, output)?;
        let Some(states) = link.next_states(None)? else { continue };
        if update_rows(&mut rows, &states) {
            states.iter().for_each(|state| reasons.on_state(state));
        } else {
            (_, rows, reasons) = read(link)?;
        }
    }
}

/// Leaves at most `lines_max` lines, the last one with the number of the others: lines that scrolled away cannot be
/// redrawn.
pub(super) fn shorten(lines: &mut Vec<String>, lines_max: usize) {
    let lines_max = lines_max.max(2);
    if lines.len() > lines_max {
        let hidden = lines.len() - (lines_max - 1);
        lines.truncate(lines_max - 1);
        lines.push(format!("and {hidden} more lines"));
    }
}

/// Applies reported states. Returns whether all instances were known; the runtime of others must be read.
fn update_rows(rows: &mut BTreeMap<InstanceName, Row>, states: &[WorkloadState]) -> bool {
    let mut all_known = true;
    for WorkloadState { instance, state } in states {
        if state.phase == Phase::Removed {
            rows.remove(instance);
        } else if let Some(row) = rows.get_mut(instance) {
            row.update(state);
        } else {
            all_known = false;
        }
    }
    all_known
}

/// Prints the table of agents.
///
/// # Errors
/// As [`state`].
pub fn agents(link: &mut impl ServerLink, output: &mut Output<'_>) -> Result<(), CliError> {
    let state = link.complete_state(&["agents", "workloadStates"])?;
    let rows = rows::entries(state.get("agents")).map(|(name, agent)| {
        let load = |key: &str| agent.at(&["status", key]).and_then(Node::as_number);
        let workloads = rows::entries(state.at(&["workloadStates", name]));
        let instances: usize = workloads.map(|(_, ids)| rows::entries(Some(ids)).count()).sum();
        [
            one_line(name),
            instances.to_string(),
            load("cpuUsage").map_or_else(String::new, |percent| format!("{percent}%")),
            load("freeMemory").map_or_else(String::new, |bytes| format!("{bytes}B")),
        ]
    });
    let table = Table { headings: ["NAME", "WORKLOADS", "CPU USAGE", "FREE MEMORY"], rows: rows.collect() };
    Ok(output.result(&table.text(output.width(), TooWide::Cut))?)
}

/// Prints the names of configs.
///
/// # Errors
/// As [`state`].
pub fn configs(link: &mut impl ServerLink, output: &mut Output<'_>) -> Result<(), CliError> {
    let state = link.complete_state(&["desiredState.configs"])?;
    let names = rows::entries(state.at(&["desiredState", "configs"])).map(|(name, _)| [one_line(name)]);
    let table = Table { headings: ["CONFIG"], rows: names.collect() };
    Ok(output.result(&table.text(output.width(), TooWide::Cut))?)
}

#[cfg(test)]
mod tests;
