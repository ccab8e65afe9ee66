//! `ank get updates` and `ank rollback`: the guarded updates that the server keeps.
//!
//! Thread: `main`.

use super::error::{CliError, CommandError, ExitCode};
use super::output::Output;
use super::rows::entries;
use super::session::ServerLink;
use super::table::{Table, TooWide, one_line};
use super::update::guarded::{phase, updates, waits_for};
use super::update::{Context, Update};
use crate::model::guarded_update::UpdatePhase;
use crate::model::node::Node;
use crate::platform::clock::Clock;

/// Names in one cell of the table.
const NAMES_SHOWN: usize = 3;
/// [`keptIn`](self) of updates that a restart of the server forgets.
const IN_MEMORY: &str = "MEMORY";

/// Prints the table of updates, the oldest first.
///
/// # Errors
/// No response, the server keeps none, or standard output cannot be written.
pub fn print(link: &mut impl ServerLink, output: &mut Output<'_>) -> Result<(), CliError> {
    let state = read(link)?;
    let updates = updates(&state);
    let rows = updates.iter().map(|(id, update)| {
        let text = |key: &str| one_line(update.get(key).and_then(Node::as_text).unwrap_or_default());
        [id.to_string(), text("phase"), text("accepted"), names(update), info(update)]
    });
    let table = Table { headings: ["ID", "PHASE", "ACCEPTED", "WORKLOADS", "INFO"], rows: rows.collect() };
    output.result(&table.text(output.width(), TooWide::Wrap))?;
    if updates.iter().any(|(_, update)| update.get("keptIn").and_then(Node::as_text) == Some(IN_MEMORY)) {
        output.warn("the server keeps updates in memory: a restart forgets them; with 'state_dir' in ank-server.conf it keeps them on disk");
    }
    Ok(())
}

/// All updates with all their parts.
fn read(link: &mut impl ServerLink) -> Result<Node, CommandError> {
    let state = link.complete_state(&["updates"])?;
    if state.get("updates").is_none() {
        return Err(CommandError::input("the server keeps no updates", "'ank apply --rollback' works with any server"));
    }
    Ok(state)
}

/// Names; of many the first ones.
fn some_of<'n>(names: impl Iterator<Item = &'n str>) -> String {
    let names: Vec<String> = names.map(one_line).collect();
    let shown = names[..names.len().min(NAMES_SHOWN)].join(", ");
    if names.len() > NAMES_SHOWN { format!("{shown} and {} more", names.len() - NAMES_SHOWN) } else { shown }
}

/// The names of the workloads that an update changes.
fn names(update: &Node) -> String {
    some_of(entries(update.get("workloads")).map(|(name, _)| name))
}

/// Why it ended, or what it waits for.
fn info(update: &Node) -> String {
    let text = |key: &str| update.get(key).and_then(Node::as_text);
    let waits = some_of(waits_for(update));
    match (text("reason"), text("replacedBy")) {
        (Some(reason), _) if !reason.is_empty() => one_line(reason),
        (_, Some(successor)) => one_line(&format!("part of update {successor}")),
        _ if waits.is_empty() => String::new(),
        _ => format!("waits for {waits}"),
    }
}

/// Has the server bring back what was there before update `id`, or before the newest that can be rolled back, and waits.
pub fn roll_back<L: ServerLink, C: Clock>(
    id: Option<u64>,
    context: &mut Context<'_, '_, L, C>,
) -> Result<ExitCode, CliError> {
    let state = read(context.link)?;
    let updates = updates(&state);
    let (id, update) = match id {
        Some(id) => updates.iter().find(|(found, _)| *found == id).copied().ok_or_else(|| {
            CommandError::input(format!("update {id} does not exist"), "'ank get updates' lists them")
        })?,
        None => choose(&updates)?,
    };
    context.output.status(&format!("Rolling back update {id}: {}.", objects(update)))?;
    let masks = ["configs", "workloads"]
        .into_iter()
        .flat_map(|part| entries(update.get(part)).map(move |(name, _)| format!("desiredState.{part}.{name}")));
    context.update_and_wait(Update { masks: masks.collect(), rollback_of: Some(id), ..Update::default() })
}

/// The newest update that is open, or else the newest that is in force. When the newest of all was undone, users may
/// mean that one, and the one before it is none that they expect.
fn choose<'u>(updates: &[(u64, &'u Node)]) -> Result<(u64, &'u Node), CommandError> {
    use UpdatePhase::{Good, Kept, Replaced, Undone, Withdrawn};
    let newest = |wanted: fn(UpdatePhase) -> bool| {
        updates.iter().rev().find(|(_, update)| phase(update).is_some_and(wanted)).copied()
    };
    if let Some(open) = newest(UpdatePhase::is_open) {
        return Ok(open);
    }
    let in_force = newest(|phase| matches!(phase, Good | Kept));
    match newest(|phase| !matches!(phase, Replaced | Withdrawn)).filter(|(_, it)| phase(it) == Some(Undone)) {
        Some((id, _)) => {
            let hint = match in_force {
                Some((earlier, update)) => {
                    format!(
                        "'ank rollback {earlier}' sets {} back to what was there before update {earlier}",
                        objects(update)
                    )
                }
                None => "no update in 'ank get updates' is open, GOOD or KEPT".to_owned(),
            };
            let text = format!("the newest update, {id}, was undone: what was there before it is in force");
            Err(CommandError::input(text, hint))
        }
        None => in_force.ok_or_else(|| {
            CommandError::input("there is no update to roll back", "none in 'ank get updates' is open, GOOD or KEPT")
        }),
    }
}

/// All workloads and configs that an update changes.
fn objects(update: &Node) -> String {
    let kind = |part: &str, kind: &str| {
        let names: Vec<String> = entries(update.get(part)).map(|(name, _)| format!("'{}'", one_line(name))).collect();
        let plural = if names.len() == 1 { "" } else { "s" };
        (!names.is_empty()).then(|| format!("{kind}{plural} {}", names.join(", ")))
    };
    let kinds: Vec<String> = [kind("workloads", "workload"), kind("configs", "config")].into_iter().flatten().collect();
    if kinds.is_empty() { "nothing".to_owned() } else { kinds.join(" and ") }
}

#[cfg(test)]
mod tests;
