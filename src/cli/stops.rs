//! `ank stop` and `ank start`: the updates that stop workloads until a client starts them again.
//!
//! Thread: `main`. Takes: the complete state. Gives: an update.

use super::error::{CliError, ExitCode, Result};
use super::output::{Output, one_line};
use super::rows::{self, Reasons, Row};
use super::session::{CliUpdate, Context, ServerLink};
use ankaios_model::messages::StopAndStart;
use ankaios_model::reason::Reason;

/// The update that stops those of the workloads `names` that are not stopped yet.
// [impl->swdd~cli-stops-workloads~1]
pub(crate) fn stop(
    names: &[String],
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<CliUpdate> {
    let reasons = read(names, link)?;
    let mut stop = Vec::new();
    for name in names {
        if is_stopped(name, &reasons) {
            output.status(&format!("'{name}' is stopped already."))?;
        } else {
            stop.push(name.clone());
        }
    }
    let accepted = accepted_text("Stopping", &stop);
    let start = Vec::new();
    Ok(update(accepted, StopAndStart { stop, start }))
}

/// The update that starts those of the workloads `names` that are stopped. Warns of those that will
/// not start at once.
pub(crate) fn start(
    names: &[String],
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<CliUpdate> {
    let reasons = read(names, link)?;
    let mut start = Vec::new();
    for name in names {
        if is_stopped(name, &reasons) {
            start.push(name.clone());
            continue;
        }
        check_not_ended(name, &reasons)?;
        output.status(&format!("'{name}' is not stopped."))?;
    }
    for name in &start {
        for text in reasons.unmet(name) {
            output.warn(format_args!("before it starts, '{name}' {text}"));
        }
    }
    let accepted = accepted_text("Starting", &start);
    let stop = Vec::new();
    Ok(update(accepted, StopAndStart { stop, start }))
}

fn update(accepted: String, stop_and_start: StopAndStart) -> CliUpdate {
    CliUpdate {
        accepted,
        stop_and_start,
        ..CliUpdate::default()
    }
}

/// Sends the update and waits, unless it stops and starts nothing.
pub(crate) fn send(update: CliUpdate, context: &mut Context<'_>) -> Result<ExitCode> {
    if update.is_stop_or_start() {
        return context.update_and_wait(update);
    }
    Ok(ExitCode::Success)
}

/// Reads the states, and refuses a name that no workload has.
fn read(names: &[String], link: &mut dyn ServerLink) -> Result<Reasons> {
    let state = link.complete_state(&rows::MASKS)?;
    let known = rows::names(state.at(&["desiredState", "workloads"]));
    CliError::check_workloads(names, known)?;
    Ok(Reasons::new(&state))
}

fn is_stopped(name: &str, reasons: &Reasons) -> bool {
    let mut rows = reasons.rows_of(name);
    rows.any(|row| row.reason == Reason::Stopped)
}

/// Refuses a workload that is not stopped and does not run either: a start would change nothing.
fn check_not_ended(name: &str, reasons: &Reasons) -> Result<()> {
    let Some(first) = reasons.rows_of(name).next() else {
        return Ok(()); // Without an instance there is no state to show; the server decides.
    };
    if reasons.rows_of(name).any(is_active) {
        return Ok(());
    }
    let mut state = first.state.clone();
    if !first.info.is_empty() {
        state.push_str(&format!(", {}", first.info));
    }
    let text = format!("Workload '{name}' is not stopped: it is {state}");
    let hint = if first.reason == Reason::NotInMode {
        "'ank mode NAME' switches to another mode".to_owned()
    } else if first.state.starts_with("NotScheduled") {
        "no agent is set for it; 'ank apply' a manifest with one".to_owned()
    } else {
        format!("'ank restart {name}' runs it again")
    };
    Err(CliError::input(one_line(&text), hint))
}

/// Returns whether an instance runs, or will start or end.
fn is_active(row: &Row) -> bool {
    let mut active = ["Pending", "Running", "Stopping"].iter();
    active.any(|state| row.state.starts_with(state))
}

/// The text for an accepted update of `names`; empty without names.
fn accepted_text(verb: &str, names: &[String]) -> String {
    if names.is_empty() {
        String::new()
    } else {
        format!("{verb} '{}'.", names.join("', '"))
    }
}

#[cfg(test)]
mod tests;
