//! `ank get state|workload|agent|config`: what the server says, as text (spec/cli.md sections 6.1 to 6.5).
//!
//! Thread: `main`.

use super::args::Format;
use super::error::CliError;
use super::live::LiveFrames;
use super::output::Output;
use super::rows::{self, Row};
use super::session::ServerLink;
use super::state_output::state_text;
use super::state_shape::Kind;
use super::table::{Table, TooWide, one_line};
use crate::model::execution_state::{Phase, WorkloadState};
use crate::model::field_path::{WILDCARD, parts};
use crate::model::names::InstanceName;
use crate::model::nearest::nearest;
use crate::model::node::Node;
use std::collections::BTreeMap;

/// Which rows `get workload` shows; all conditions must hold.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Exactly this agent.
    pub agent: Option<String>,
    /// This state, with or without the sub-state, in any case.
    pub state: Option<String>,
    /// One of these workloads; all when empty.
    pub names: Vec<String>,
}

impl Filter {
    fn accepts(&self, instance: &InstanceName, row: &Row) -> bool {
        let state = |wanted: &String| {
            let (shown, wanted) = (row.state.to_lowercase(), wanted.to_lowercase());
            shown == wanted || shown.split('(').next() == Some(wanted.as_str())
        };
        self.agent.as_ref().is_none_or(|agent| **agent == *instance.agent)
            && self.state.as_ref().is_none_or(state)
            && (self.names.is_empty() || self.names.iter().any(|name| **name == *instance.workload))
    }

    fn table(&self, rows: &BTreeMap<InstanceName, Row>) -> Table<5> {
        rows::table(rows.iter().filter(|(instance, row)| self.accepts(instance, row)))
    }
}

/// Prints the parts of the state that `masks` select.
///
/// # Errors
/// No answer, or standard output cannot be written.
pub fn state(
    link: &mut impl ServerLink,
    masks: &[String],
    format: Format,
    output: &mut Output<'_>,
) -> Result<(), CliError> {
    warn_of_unknown_parts(masks, output);
    let masks: Vec<&str> = masks.iter().map(String::as_str).collect();
    let state = link.complete_state(&masks)?;
    Ok(output.result(&state_text(&state, format))?)
}

/// Warns about masks that can never lead to anything: the server takes them without a word.
pub fn warn_of_unknown_parts(masks: &[String], output: &mut Output<'_>) {
    let known = || Kind::CompleteState.fields().iter().map(|field| field.name);
    for mask in masks {
        let part = parts(mask)[0];
        if part != WILDCARD && !known().any(|known| known == part) {
            let meant = nearest(part, known()).map_or_else(String::new, |name| format!(", did you mean '{name}'?"));
            output.warn(format_args!("mask '{mask}' leads nowhere: no part of the state is called '{part}'{meant}"));
        }
    }
}

/// Prints the table of workloads once.
///
/// # Errors
/// As [`state`].
pub fn workloads(link: &mut impl ServerLink, filter: &Filter, output: &mut Output<'_>) -> Result<(), CliError> {
    let state = link.complete_state(&rows::MASKS)?;
    let rows = rows::rows(&state);
    let known = || rows.keys().map(|instance| &*instance.workload);
    for name in filter.names.iter().filter(|name| !known().any(|known| known == **name)) {
        let meant = nearest(name, known()).map_or_else(String::new, |name| format!(", did you mean '{name}'?"));
        output.warn(format_args!("workload '{name}' does not exist{meant}"));
    }
    let table = filter.table(&rows);
    Ok(output.result(&table.text(output.width(), TooWide::Wrap))?)
}

/// Keeps the table of workloads up to date until the connection ends.
///
/// # Errors
/// As [`state`]; the end of the connection is one.
pub fn watch_workloads(link: &mut impl ServerLink, filter: &Filter, output: &mut Output<'_>) -> Result<(), CliError> {
    let mut rows = rows::rows(&link.complete_state(&rows::MASKS)?);
    let mut frames = LiveFrames::default();
    loop {
        let mut lines = filter.table(&rows).lines(output.width(), TooWide::Wrap);
        if let Some((_, height)) = output.terminal() {
            shorten(&mut lines, height.saturating_sub(1)); // The cursor stands below.
        }
        frames.show(lines, output)?;
        let Some(states) = link.next_states(None)? else { continue };
        if !update_rows(&mut rows, &states) {
            rows = rows::rows(&link.complete_state(&rows::MASKS)?);
        }
    }
}

/// Leaves at most `lines_max` lines, the last one counting the rest: what scrolled away cannot be redrawn.
fn shorten(lines: &mut Vec<String>, lines_max: usize) {
    let lines_max = lines_max.max(2);
    if lines.len() > lines_max {
        let hidden = lines.len() - (lines_max - 1);
        lines.truncate(lines_max - 1);
        lines.push(format!("and {hidden} more lines"));
    }
}

/// Takes over reported states. Answers whether all instances were known; only the server knows the runtime of others.
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
