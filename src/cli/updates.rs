//! `ank get updates` and `ank rollback`: the guarded updates that the server keeps. It judges them itself, and undoes them
//! when they fail; `ank` waits for their ends.
//!
//! Thread: `main`.

use super::args::Format;
use super::error::{CliError, ExitCode, Result, shown};
use super::output::{Field, Output, TooWide, View, one_line, value};
use super::rows::{entries, text};
use super::session::{Accepted, Context, ServerLink, Update};
use super::wait::{self, Progress, WaitState};
use crate::model::guarded_update::{AGENT_PREFIX, CANNOT_BE_STAGED, UpdatePhase};
use crate::model::names::InstanceName;
use crate::model::node::Node;
use serde_yaml::Value;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

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

// ------------------------------------------------ updates that are followed

/// The parts of the complete state from which one learns that an update is guarded. Servers that guard none have none of
/// them and do not mind.
pub const MASKS: [&str; 2] = ["updates.*.phase", "updates.*.workloads"];

/// The phase of a guarded update; `None` for one of a newer server.
pub fn phase(update: &Node) -> Option<UpdatePhase> {
    UpdatePhase::parse(text(update, &["phase"]))
}

/// The guarded updates of a complete state with their numbers, oldest first.
pub fn updates(state: &Node) -> Vec<(u64, &Node)> {
    let mut updates: Vec<(u64, &Node)> =
        entries(state.get("updates")).filter_map(|(id, update)| Some((id.parse().ok()?, update))).collect();
    updates.sort_by_key(|(id, _)| *id);
    updates
}

/// The texts that an update waits for: names of workloads, and agents after [`AGENT_PREFIX`].
pub fn waits_for(update: &Node) -> impl Iterator<Item = &str> {
    update.get("waitsFor").and_then(Node::as_list).into_iter().flatten().filter_map(Node::as_text)
}

/// The guarded updates in one of these phases that are about workloads and configs that `masks` name as a whole.
pub fn about(state: &Node, masks: &[String], is_one: fn(UpdatePhase) -> bool) -> Vec<u64> {
    let masks: BTreeSet<&String> = masks.iter().collect();
    let is_about = |update: &Node| {
        ["workloads", "configs"].iter().any(|part| {
            entries(update.get(part)).any(|(name, _)| masks.contains(&format!("desiredState.{part}.{name}")))
        })
    };
    let found = updates(state).into_iter().filter(|(_, it)| phase(it).is_some_and(is_one) && is_about(it));
    found.map(|(id, _)| id).collect()
}

/// The masks that let the server try again what it has undone, of updates of what `masks` name.
pub fn masks_to_forget(link: &mut dyn ServerLink, masks: &[String]) -> Result<Vec<String>> {
    // The parts that say which updates are remembered as undone, and of what.
    let state = link.complete_state(&["updates.*.phase", "updates.*.workloads", "updates.*.configs"])?;
    let undone = about(&state, masks, |phase| phase == UpdatePhase::Undone);
    Ok(undone.iter().map(|id| format!("updates.{id}")).collect())
}

/// A guarded update that is followed to its end.
#[derive(Debug)]
pub struct Guarded {
    /// Its number, or that of the one that replaced it.
    id: u64,
    /// What the server last said of it; empty when it forgot it.
    update: Node,
    /// When to read it next.
    next: Instant,
}

impl Guarded {
    /// The update that the server made of a request; `None` when it does not guard it.
    pub fn of_request(before: &Node, now: &Node, accepted: &Accepted, next: Instant) -> Option<Self> {
        let known = updates(before).last().map_or(0, |(id, _)| *id);
        let names = |instances: &[InstanceName]| instances.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
        let (added, deleted) = (names(&accepted.added), names(&accepted.deleted));
        let is_one = |workload: &Node, key: &str, names: &BTreeSet<String>| names.contains(text(workload, &[key]));
        let is_ours = |update: &Node| {
            // What a request sets back is withdrawn, which is no failure of that request.
            phase(update) != Some(UpdatePhase::Withdrawn)
                && entries(update.get("workloads"))
                    .any(|(_, workload)| is_one(workload, "new", &added) || is_one(workload, "old", &deleted))
        };
        let (id, update) = updates(now).into_iter().rev().find(|(id, update)| *id > known && is_ours(update))?;
        Some(Self { id, update: update.clone(), next })
    }

    /// Reads how far it is, or the one that replaced it.
    fn read(&mut self, link: &mut dyn ServerLink) -> Result<()> {
        loop {
            let fields = ["phase", "reason", "waitsFor", "replacedBy"];
            let masks = fields.map(|field| format!("updates.{}.{field}", self.id));
            let mut state = link.complete_state(&masks.each_ref().map(String::as_str))?;
            let update = state.at_mut(&["updates", &self.id.to_string()]).map(std::mem::take);
            self.update = update.unwrap_or_default();
            let successor = text(&self.update, &["replacedBy"]).parse().ok();
            match successor {
                Some(successor) if phase(&self.update) == Some(UpdatePhase::Replaced) && successor > self.id => {
                    self.id = successor;
                }
                _ => return Ok(()),
            }
        }
    }

    fn check(&mut self, wait: &mut WaitState, link: &mut dyn ServerLink) -> Result<Progress> {
        let now = link.now();
        if now >= self.next {
            match self.read(link) {
                Err(CliError::TimedOut(_)) => {} // A server with much to do; only the end of the connection counts.
                read => read?,
            }
            // How often `ank` reads how far a guarded update is while it waits for the end.
            self.next = now + Duration::from_secs(1);
            wait.set_on_trial(&waits_for(&self.update).collect());
        }
        // One that is in force for good is done when all that it deletes has gone, too.
        let is_in_force = matches!(phase(&self.update), Some(UpdatePhase::Good | UpdatePhase::Kept));
        let ended = !self.is_open() && (!is_in_force || wait.has_ended()) || self.absent_agents().is_some();
        Ok(if ended { Progress::Break(()) } else { Progress::Continue(Some(self.next)) })
    }

    fn is_open(&self) -> bool {
        phase(&self.update).is_some_and(UpdatePhase::is_open)
    }

    /// The agents that are away, when it waits for nothing else.
    fn absent_agents(&self) -> Option<Vec<&str>> {
        let agents: Option<Vec<&str>> = waits_for(&self.update).map(|text| text.strip_prefix(AGENT_PREFIX)).collect();
        agents.filter(|agents| self.is_open() && !agents.is_empty())
    }
}

impl Context<'_> {
    /// Waits until the server has decided about `update`, or waits for nothing but agents that are away.
    pub fn follow(&mut self, mut update: Guarded, mut state: WaitState) -> Result<ExitCode> {
        let first = update.id;
        self.output.debug(format_args!("the server judges it as update {first}"));
        let limit = self.waiting.limit;
        let goal = |wait: &mut WaitState, link: &mut dyn ServerLink, _: &[_]| update.check(wait, link);
        let reached = wait::wait(&mut state, goal, limit, self).inspect_err(|_| {
            self.output.warn(format_args!("the server goes on with update {first}; see 'ank get updates'"));
        })?;
        let id = update.id;
        if id != first {
            self.output.warn(format_args!("update {first} became a part of update {id}"));
        }
        if !reached {
            self.warn_of_missed(&state, reached);
            let text = format!("gave up waiting after '{}': update {id} is open", shown(limit.unwrap_or_default()));
            self.output.error(text, "the update goes on; follow it with 'ank get updates'");
            return Ok(ExitCode::GaveUp);
        }
        self.conclude_guarded(&update)
    }

    /// Reports how a guarded update ended and decides the exit code.
    fn conclude_guarded(&mut self, update: &Guarded) -> Result<ExitCode> {
        let id = update.id;
        let reason = text(&update.update, &["reason"]);
        let because = if reason.is_empty() { String::new() } else { format!(": {}", one_line(reason)) };
        let (text, hint, code) = match phase(&update.update) {
            Some(UpdatePhase::Good) => {
                self.output.status(&format!("Update {id} is good."))?;
                return Ok(ExitCode::Success);
            }
            Some(UpdatePhase::Kept) => {
                let text = format!("update {id} is kept, though not all of it is healthy{because}");
                if !self.waiting.fail_on_error {
                    self.output.warn(text);
                    return Ok(ExitCode::Success);
                }
                (text, "'ank rollback' puts back what was there before", ExitCode::WorkloadFailed)
            }
            Some(UpdatePhase::Staging | UpdatePhase::Trial) => {
                for agent in update.absent_agents().unwrap_or_default() {
                    let text = format!(
                        "agent '{agent}' is not connected; update {id} stays open until its workloads are healthy there"
                    );
                    self.output.warn(one_line(&text));
                }
                return Ok(ExitCode::Success);
            }
            Some(UpdatePhase::Undone) => {
                let text = format!("update {id} failed and was undone{because}");
                let hint = if reason.contains(CANNOT_BE_STAGED) {
                    "nothing was stopped; correct it and send it again"
                } else {
                    "correct it and send it again; 'ank apply --force' tries the same again"
                };
                (text, hint, ExitCode::Undone)
            }
            Some(UpdatePhase::Stuck) => {
                let text = format!("update {id} failed and cannot be undone{because}");
                (text, "the update stays in force; see 'ank get workloads'", ExitCode::Failed)
            }
            Some(UpdatePhase::Withdrawn) => {
                let text = format!("update {id} is withdrawn: other requests put back or deleted what it changed");
                (text, "see 'ank get updates'", ExitCode::Failed)
            }
            Some(UpdatePhase::Replaced) | None => {
                let text = match one_line(text(&update.update, &["phase"])) {
                    phase if phase.is_empty() => {
                        format!("how update {id} ended is unknown, the server has no such update any more")
                    }
                    phase => format!("how update {id} ended is unknown, its phase is '{phase}'"),
                };
                (text, "see 'ank get workloads' and 'ank get updates'", ExitCode::Failed)
            }
        };
        self.output.error(text, hint);
        Ok(code)
    }
}

#[cfg(test)]
mod tests;
