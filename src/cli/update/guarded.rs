//! Updates that the server judges itself, and undoes when they fail: `ank` waits for their ends.
//!
//! Thread: `main`.

use crate::cli::error::{CliError, ExitCode, Result, shown};
use crate::cli::rows::{entries, text};
use crate::cli::session::{Accepted, Context, ServerLink};
use crate::cli::table::one_line;
use crate::cli::wait::{self, Progress, WaitState};
use std::time::Duration;

use crate::model::guarded_update::{AGENT_PREFIX, CANNOT_BE_STAGED, UpdatePhase};
use crate::model::names::InstanceName;
use crate::model::node::Node;
use std::collections::BTreeSet;
use std::time::Instant;

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
    pub(super) fn follow(&mut self, mut update: Guarded, mut state: WaitState) -> Result<ExitCode> {
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
