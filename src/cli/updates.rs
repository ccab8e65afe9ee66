//! `ank get updates` and `ank rollback`: the guarded updates that the server keeps.
//!
//! Thread: `main`.

use super::args::Format;
use super::error::{CliError, ExitCode, Result};
use super::output::Output;
use super::rows::{entries, text};
use super::session::{Context, ServerLink, Update};
use super::state_output::value;
use super::table::{Field, TooWide, View, one_line};
use super::update::guarded::{phase, updates, waits_for};
use crate::model::guarded_update::UpdatePhase;
use crate::model::node::Node;
use serde_yaml::Value;

/// Names in one cell of the table.
const NAMES_SHOWN: usize = 3;

/// Prints the updates, the oldest first.
pub fn print(format: Format, link: &mut dyn ServerLink, output: &mut Output) -> Result<()> {
    let state = read(link)?;
    let updates = updates(&state);
    let view = View::new(format, &fields(0, &Node::empty()), updates.iter().map(|(id, update)| fields(*id, update)));
    view.print(("updates", []), TooWide::Wrap, None, output)?;
    // `keptIn` of updates that a restart of the server forgets.
    if updates.iter().any(|(_, update)| text(update, &["keptIn"]) == "MEMORY") {
        output.warn("the server keeps updates in memory: a restart forgets them; with 'state_dir' in ank-server.conf it keeps them on disk");
    }
    Ok(())
}

fn fields(id: u64, update: &Node) -> Vec<Field> {
    let text = |heading, key: &str| Field::text(heading, key, text(update, &[key]));
    let names = |heading, key: &str| {
        Field::new(heading, key, some_of(entries(update.get(key)).map(|(name, _)| name)), value(update.get(key)))
    };
    let mut fields = vec![
        Field::new("ID", "id", id.to_string(), id),
        text("PHASE", "phase"),
        text("ACCEPTED", "accepted"),
        names("WORKLOADS", "workloads"),
        names("CONFIGS", "configs").wide(),
        text("KEPT IN", "keptIn").wide(),
        Field::new("INFO", "", info(update), Value::Null),
    ];
    fields.extend(["reason", "waitsFor", "replacedBy"].map(|key| Field::data(key, value(update.get(key)))));
    fields
}

/// All updates with all their parts.
fn read(link: &mut dyn ServerLink) -> Result<Node> {
    let state = link.complete_state(&["updates"])?;
    if state.get("updates").is_none() {
        return Err(CliError::input("the server keeps no updates", "'ank apply --rollback' works with any server"));
    }
    Ok(state)
}

/// Names; of many the first ones.
fn some_of<'n>(names: impl Iterator<Item = &'n str>) -> String {
    let names: Vec<String> = names.map(one_line).collect();
    let shown = names[..names.len().min(NAMES_SHOWN)].join(", ");
    if names.len() > NAMES_SHOWN { format!("{shown} and {} more", names.len() - NAMES_SHOWN) } else { shown }
}

/// Why it ended, or what it waits for.
fn info(update: &Node) -> String {
    let waits = some_of(waits_for(update));
    match (text(update, &["reason"]), text(update, &["replacedBy"])) {
        ("", "") if waits.is_empty() => String::new(),
        ("", "") => format!("waits for {waits}"),
        ("", successor) => one_line(&format!("part of update {successor}")),
        (reason, _) => one_line(reason),
    }
}

/// Has the server bring back what was there before update `id`, or before the newest that can be rolled back, and waits.
pub fn roll_back(id: Option<u64>, context: &mut Context<'_>) -> Result<ExitCode> {
    let state = read(context.link)?;
    let updates = updates(&state);
    let (id, update) =
        match id {
            Some(id) => updates.iter().find(|(found, _)| *found == id).copied().ok_or_else(|| {
                CliError::input(format!("update {id} does not exist"), "'ank get updates' lists them")
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
fn choose<'u>(updates: &[(u64, &'u Node)]) -> Result<(u64, &'u Node)> {
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
            Err(CliError::input(text, hint))
        }
        None => in_force.ok_or_else(|| {
            CliError::input("there is no update to roll back", "none in 'ank get updates' is open, GOOD or KEPT")
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
