//! `ank apply --rollback`: `ank` judges the update itself, by the states that the server broadcasts, and puts back what was
//! there when it fails. It is good when all its workloads are healthy at once. Any server will do.
//!
//! Thread: `main`; the time is passed in. Owns: the trial. Takes: broadcast states. Gives: good, or why it failed.

use super::{Progress, WaitState, settled, wait};
use crate::cli::error::{CliError, ExitCode, Result};
use crate::cli::rows;
use crate::cli::session::{Accepted, Context, ServerLink};
use crate::cli::settings::AbsentAgents;
use crate::limits::UPDATE_LOSSES;
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::field_path::parts;
use crate::model::lifecycle::{self, OnFailure, Terms};
use crate::model::names::{InstanceName, Name};
use crate::model::node::Node;
use crate::model::trial::{Candidate, Failure, LATE, Trial};
use crate::model::workload::{AddCondition, RestartPolicy};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// An accepted update while `ank` judges it.
#[derive(Debug)]
pub struct ClientTrial {
    trial: Trial,
    /// Workloads of which an end was reported: of an older instance of the same name, of one that is made anew, or others
    /// have deleted or replaced it.
    doubtful: BTreeSet<Name>,
    /// The effective state that is judged.
    effective: Node,
    /// Agents that are not connected.
    away: BTreeSet<Name>,
    losses: u32,
    /// The longest time that one of the judged may be not healthy.
    pub longest_deadline: Duration,
    /// Why the update failed and is to be undone, as `<workload>: <why>`.
    pub failure: Option<String>,
    /// The failures of workloads that do not undo the update, likewise.
    pub kept: Vec<String>,
    /// The workloads that other requests have deleted or replaced; they are not judged.
    pub gone: BTreeSet<Name>,
}

impl ClientTrial {
    /// The names of the workloads that are judged when `accepted` came to `before`: those that change, and those that
    /// need one of them to run, directly or not.
    pub fn names(accepted: &Accepted, before: &Node) -> BTreeSet<String> {
        let needs = rows::needs(before);
        let changed = accepted.added.iter().chain(&accepted.deleted).map(|instance| instance.workload.to_string());
        let mut names: BTreeSet<String> = changed.collect();
        loop {
            let needs_one = |needs: &BTreeMap<String, String>| {
                needs.iter().any(|(name, how)| how == AddCondition::Running.as_str() && names.contains(name))
            };
            let more = needs.iter().filter(|(name, needs)| !names.contains(*name) && needs_one(needs));
            let more: Vec<String> = more.map(|(name, _)| name.clone()).collect();
            if more.is_empty() {
                return names;
            }
            names.extend(more);
        }
    }

    /// Begins at `now`, with the complete state before the update, the wait for it, and the effective state after it.
    pub fn new(accepted: &Accepted, before: &Node, wait: &mut WaitState, effective: &Node, now: Instant) -> Self {
        let mut new = Self::empty(effective);
        let mut ran = rows::rows(before);
        ran.retain(|_, row| row.phase == Some(Phase::Running));
        let names: BTreeSet<Name> = ran.keys().map(|instance| instance.workload.clone()).collect();
        let added = accepted.added.iter().filter(|instance| !instance.agent.is_empty()).map(|instance| Candidate {
            ran: names.contains(&instance.workload),
            keeps_name: wait.watched.get(instance).is_some_and(|watched| watched.ends),
            is_present: wait.connected.contains(&instance.agent),
            ..candidate(instance, effective)
        });
        let added: Vec<Candidate> = added.collect();
        let keep = !added.is_empty() && added.iter().all(|candidate| candidate.on_failure == OnFailure::Keep);
        let on_failure = if keep { OnFailure::Keep } else { OnFailure::Rollback };
        added.into_iter().for_each(|candidate| new.judge(candidate, now));
        let changed: BTreeSet<&Name> =
            accepted.added.iter().chain(&accepted.deleted).map(|instance| &instance.workload).collect();
        let names = Self::names(accepted, before);
        ran.retain(|instance, _| !changed.contains(&instance.workload) && names.contains(&*instance.workload));
        for (instance, _) in ran {
            let state = Some(ExecutionState::plain(Phase::Running));
            new.judge(Candidate { ran: true, state, on_failure, ..candidate(&instance, effective) }, now);
            wait.watched.entry(instance).or_default(); // It is shown, too.
        }
        new
    }

    /// Begins at `now` with instances that an earlier update has started, as `wait` has them.
    pub fn of_present(instances: &[InstanceName], wait: &WaitState, effective: &Node, now: Instant) -> Self {
        let mut new = Self::empty(effective);
        for instance in instances {
            let state = wait.watched.get(instance).and_then(|watched| watched.reported.clone());
            let is_present = wait.connected.contains(&instance.agent);
            new.judge(Candidate { state, is_present, ..candidate(instance, effective) }, now);
        }
        new
    }

    /// Judges nothing yet.
    fn empty(effective: &Node) -> Self {
        Self {
            trial: Trial::default(),
            doubtful: BTreeSet::new(),
            effective: effective.clone(),
            away: BTreeSet::new(),
            losses: 0,
            longest_deadline: Duration::ZERO,
            failure: None,
            kept: Vec::new(),
            gone: BTreeSet::new(),
        }
    }

    fn judge(&mut self, candidate: Candidate, now: Instant) {
        if !candidate.is_present {
            self.away.insert(candidate.instance.agent.clone());
        }
        self.longest_deadline = self.longest_deadline.max(candidate.terms.deadline);
        self.trial.judge(candidate, now);
    }

    /// Whether it is decided, with the states that were reported since it was asked last.
    pub fn check(
        &mut self,
        wait: &mut WaitState,
        link: &mut dyn ServerLink,
        states: &[WorkloadState],
    ) -> Result<Progress> {
        let now = link.now();
        let missed = self.trial.tick(now); // What was due before these states.
        self.take(missed, wait);
        for state in states {
            let failures = self.on_state(state, now);
            self.take(failures, wait);
        }
        if !self.doubtful.is_empty() {
            let doubtful = std::mem::take(&mut self.doubtful);
            let masks: Vec<String> = doubtful.iter().map(|name| effective_mask(name)).collect();
            let state = link.complete_state(&masks.iter().map(String::as_str).collect::<Vec<_>>())?;
            for name in doubtful {
                let path = ["effectiveState", "workloads", &name];
                if state.at(&path) != self.effective.at(&path) {
                    self.trial.remove(&name);
                    self.gone.insert(name);
                }
            }
        }
        let is_settled = match wait.absent {
            AbsentAgents::Skipped => self.trial.is_settled(),
            AbsentAgents::Awaited => self.trial.is_over(),
        };
        if self.failure.is_some() || (is_settled && wait.has_ended()) {
            return Ok(Progress::Break(()));
        }
        let names = self.trial.waits_for();
        wait.set_on_trial(&names.iter().map(String::as_str).collect());
        Ok(Progress::Continue(self.trial.next_change()))
    }

    fn take(&mut self, failures: impl IntoIterator<Item = Failure>, wait: &WaitState) {
        for Failure { workload, why, on_failure } in failures {
            let why = match (why.split_once(": "), self.trial.instance(&workload)) {
                // What an instance waits for follows from the states of others.
                (Some((head, _)), Some(instance)) if head.starts_with(LATE) => {
                    format!("{workload}: {head}: {}", wait.described(instance))
                }
                _ => format!("{workload}: {why}"),
            };
            match on_failure {
                OnFailure::Rollback => _ = self.failure.get_or_insert(why),
                OnFailure::Keep => self.kept.push(why),
            }
        }
    }

    fn on_state(&mut self, WorkloadState { instance, state }: &WorkloadState, now: Instant) -> Vec<Failure> {
        if self.trial.instance(&instance.workload) != Some(instance) {
            return Vec::new();
        }
        let agent = &instance.agent;
        if state.phase == Phase::AgentDisconnected {
            if self.away.insert(agent.clone()) && self.trial.agent_left(agent, now) {
                self.losses += 1;
                if self.losses >= UPDATE_LOSSES {
                    return self.trial.fail_by_losses(&format!("{} losses of agent '{agent}'", self.losses), now);
                }
            }
            return Vec::new();
        }
        if self.away.remove(agent) {
            self.trial.agent_came(agent, now);
        }
        if state.phase == Phase::Removed {
            self.doubtful.insert(instance.workload.clone());
        }
        self.trial.report(instance, state, now).into_iter().collect()
    }
}

/// The mask of a workload as its agent gets it.
pub fn effective_mask(name: &str) -> String {
    format!("effectiveState.workloads.{name}")
}

/// How an instance is judged, by its workload in the effective state.
fn candidate(instance: &InstanceName, effective: &Node) -> Candidate {
    let workload = effective.at(&["effectiveState", "workloads", &instance.workload]);
    let text = |key: &str| workload.map_or("", |workload| rows::text(workload, &[key]));
    let lifecycle = lifecycle::of_config(text("runtime"), text("runtimeConfig")).ok().flatten();
    let update = lifecycle.and_then(|lifecycle| lifecycle.update);
    Candidate {
        instance: instance.clone(),
        terms: update.as_ref().map_or_else(Terms::default, |update| update.terms),
        on_failure: update.and_then(|update| update.on_failure).unwrap_or(OnFailure::Rollback),
        is_never_restarted: text("restartPolicy") == RestartPolicy::Never.as_str(),
        ran: false,
        state: None,
        keeps_name: false,
        is_present: true,
    }
}

impl Context<'_> {
    /// Judges an accepted update of what `masks` name, which was `old` and came to the complete state `before`. Undoes it
    /// when it fails.
    pub fn judge(
        &mut self,
        masks: &[String],
        old: &Node,
        accepted: &Accepted,
        before: &Node,
        mut state: WaitState,
        give_up: Option<Instant>,
    ) -> Result<ExitCode> {
        let effective = ClientTrial::names(accepted, before).into_iter().map(|name| effective_mask(&name));
        let sent = self.read(&masks.iter().cloned().chain(effective).collect::<Vec<_>>())?;
        let mut trial = ClientTrial::new(accepted, before, &mut state, &sent, self.link.now());
        let goal = |wait: &mut WaitState, link: &mut dyn ServerLink, states: &[_]| trial.check(wait, link, states);
        let reached = wait(&mut state, goal, give_up, self).inspect_err(|_| {
            self.output.warn("the update is not watched any more: it stays in force, whether it fails or not");
        })?;
        if let Some(why) = &trial.failure {
            self.output.warn(format_args!("the update failed: {why}"));
            return self.undo(masks, old, &sent, trial.longest_deadline);
        }
        for why in &trial.kept {
            self.output.warn(format_args!("failed, and stays because of 'onFailure: KEEP': {why}"));
        }
        if reached && !trial.gone.is_empty() {
            let names = trial.gone.iter().map(|name| &**name).collect::<Vec<_>>().join("', '");
            let text = format!("others deleted or replaced '{names}' meanwhile; all else of the update is in force");
            self.output.error(text, "'ank diff' shows what is not as the manifests say");
            return Ok(ExitCode::Failed);
        }
        let code = self.conclude(&state, reached);
        let failed = self.waiting.fail_on_error && !trial.kept.is_empty();
        Ok(if failed && code == ExitCode::Success { ExitCode::WorkloadFailed } else { code })
    }

    /// Sends what was `old` there, but for those that are not as they were `sent`, and waits at most for `limit`.
    fn undo(&mut self, masks: &[String], old: &Node, sent: &Node, limit: Duration) -> Result<ExitCode> {
        let before = self.read(&rows::MASKS)?;
        let now = self.read(masks)?;
        let is_as_sent = |mask: &String| now.at(&parts(mask)) == sent.at(&parts(mask));
        let (ours, others): (Vec<String>, Vec<String>) = masks.iter().cloned().partition(is_as_sent);
        self.output.status("Rolling back the update.")?;
        if !ours.is_empty() {
            let accepted = match self.link.update_state(old.clone(), ours) {
                Err(CliError::Refused(text)) => {
                    let text = format!("the update failed and cannot be rolled back: '{text}'");
                    self.output.error(text, "the update stays in force; see 'ank get workloads'");
                    return Ok(ExitCode::Failed);
                }
                accepted => accepted?,
            };
            let now = self.link.complete_state(&rows::MASKS)?;
            let mut state = WaitState::new(&accepted, &before, &now, AbsentAgents::Skipped);
            let give_up = self.link.now().checked_add(limit);
            let reached = wait(&mut state, settled, give_up, self)?;
            self.warn_of_missed(&state, reached);
        }
        if others.is_empty() {
            let hint = "the desired state is as it was before; correct the manifest and apply it again";
            self.output.error("the update failed and was rolled back", hint);
            return Ok(ExitCode::Undone);
        }
        let names: Vec<&str> = others.iter().filter_map(|mask| parts(mask).last().copied()).collect();
        let text = format!("the update failed; '{}' stayed because others changed it meanwhile", names.join("', '"));
        self.output.error(text, "all else that the update names is as it was before; see 'ank diff'");
        Ok(ExitCode::Failed)
    }
}

#[cfg(test)]
mod tests;
