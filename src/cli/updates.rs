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
use crate::model::fields::{Kind, WORKLOAD, omit_empty};
use crate::model::guarded_update::{UpdatePhase, definition_hash};
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

/// Sends what was there before update `id`, or before the newest that can be rolled back, and waits.
///
/// # Errors
/// There is no such update, something was changed since, the server refused or did not respond.
pub fn roll_back<L: ServerLink, C: Clock>(
    id: Option<u64>,
    context: &mut Context<'_, '_, L, C>,
) -> Result<ExitCode, CliError> {
    let state = read(context.link)?;
    let (id, update) = choose(id, &updates(&state))?;
    if phase(update) == Some(UpdatePhase::Undone) {
        let text = format!("update {id} was undone: what was there before it is in force");
        return Err(CommandError::input(text, "'ank apply --force' tries it again").into());
    }
    let Some(before) = update.get("before") else {
        let text = format!("the server does not keep any more what was there before update {id}");
        return Err(CommandError::input(text, "apply a manifest with what you want").into());
    };
    let objects = |part: &'static str| entries(update.get(part)).map(move |(name, object)| (part, name, object));
    let objects: Vec<(&str, &str, &Node)> = objects("configs").chain(objects("workloads")).collect();
    if objects.is_empty() {
        let text = format!("nothing of update {id} is left: {}", info(update));
        return Err(
            CommandError::input(text.trim_end_matches(": "), "'ank get updates' lists all that are kept").into()
        );
    }
    let masks: Vec<String> = objects.iter().map(|(part, name, _)| format!("desiredState.{part}.{name}")).collect();
    let now = context.link.complete_state(&masks.iter().map(String::as_str).collect::<Vec<_>>())?;
    for (part, name, object) in objects {
        let after = object.get("after").and_then(Node::as_text).map(str::to_owned);
        if hash(&now, part, name) != after {
            let kind = part.trim_end_matches('s');
            let text = format!("{kind} '{name}' was changed after update {id}");
            return Err(CommandError::input(text, "apply a manifest with what you want; nothing was changed").into());
        }
    }
    context.output.status(&format!("Rolling back update {id}."))?;
    let new_state = Node::map([("desiredState", before.clone())]);
    context.update_and_wait(Update { new_state, masks, ..Update::default() })
}

/// The update with this number, or the newest that is open, or else the newest that is in force.
fn choose<'u>(id: Option<u64>, updates: &[(u64, &'u Node)]) -> Result<(u64, &'u Node), CommandError> {
    let newest = |wanted: fn(UpdatePhase) -> bool| {
        updates.iter().rev().find(|(_, update)| phase(update).is_some_and(wanted)).copied()
    };
    let found = match id {
        Some(id) => updates.iter().find(|(found, _)| *found == id).copied(),
        None => newest(UpdatePhase::is_open)
            .or_else(|| newest(|phase| matches!(phase, UpdatePhase::Good | UpdatePhase::Kept))),
    };
    found.ok_or_else(|| match id {
        Some(id) => CommandError::input(format!("update {id} does not exist"), "'ank get updates' lists them"),
        None => {
            CommandError::input("there is no update to roll back", "none in 'ank get updates' is open, GOOD or KEPT")
        }
    })
}

/// The hash of an object of the desired state; `None` when it does not exist.
fn hash(state: &Node, part: &str, name: &str) -> Option<String> {
    let mut definition = state.at(&["desiredState", part, name])?.clone();
    if part == "workloads" {
        omit_empty(&mut definition, Kind::Object(&WORKLOAD));
    }
    Some(definition_hash(&definition))
}

#[cfg(test)]
mod tests;
