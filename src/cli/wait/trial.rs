//! Judges an update by the states that the server broadcasts: it is good when all its workloads are healthy at once.
//!
//! Thread: `main`; the time is passed in. Owns: what is known of each judged instance. Gives: good, or why it failed.

use super::{Goal, Progress, WaitState};
use crate::cli::error::CliError;
use crate::cli::reasons;
use crate::cli::rows;
use crate::cli::session::Accepted;
use crate::limits::UPDATE_LOSSES;
use crate::model::execution_state::{ExecutionState, NO_MORE_RESTARTS_PREFIX, Phase, WorkloadState};
use crate::model::lifecycle::{self, OnFailure, Terms};
use crate::model::names::{InstanceName, Name};
use crate::model::node::Node;
use crate::model::workload::RestartPolicy;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// [`Phase::Running`] as in tables.
const RUNNING: &str = "Running(Ok)";

/// How an instance is judged.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rules {
    terms: Terms,
    /// Its failure does not undo the update.
    keep: bool,
    /// It is not started again when it has failed.
    never: bool,
}

impl Rules {
    /// The rules of a workload of the effective state.
    fn of(workload: Option<&Node>) -> Self {
        let text = |key: &str| workload.and_then(|workload| workload.get(key)?.as_text()).unwrap_or_default();
        let lifecycle = lifecycle::of_config(text("runtime"), text("runtimeConfig")).ok().flatten();
        let update = lifecycle.and_then(|lifecycle| lifecycle.update);
        Self {
            terms: update.as_ref().map(|update| update.terms).unwrap_or_default(),
            keep: update.is_some_and(|update| update.on_failure == Some(OnFailure::Keep)),
            never: text("restartPolicy") == RestartPolicy::Never.as_str(),
        }
    }
}

/// An instance that the update adds, or one that needs a changed workload.
#[derive(Debug)]
struct Judged {
    rules: Rules,
    /// A workload of this name ran before.
    ran: bool,
    /// Whether reports are about this instance: until its end is reported they are about the one with the same name
    /// before the update.
    counts: bool,
    /// The agent is not connected.
    away: bool,
    /// The last report that counts.
    phase: Option<Phase>,
    /// It ended well and may be on the way to its next start.
    succeeded: bool,
    /// Since when it is in a good state.
    good_since: Option<Instant>,
    /// How long it was not healthy, without the time that its agent was away.
    unhealthy: Duration,
    /// It failed, and is kept.
    failed: bool,
    /// Another request has deleted or replaced it.
    gone: bool,
}

impl Judged {
    fn new(rules: Rules) -> Self {
        Self {
            rules,
            ran: false,
            counts: true,
            away: false,
            phase: None,
            succeeded: false,
            good_since: None,
            unhealthy: Duration::ZERO,
            failed: false,
            gone: false,
        }
    }

    fn is_healthy(&self, now: Instant) -> bool {
        self.good_since.is_some_and(|since| now.saturating_duration_since(since) >= self.rules.terms.healthy)
    }

    fn has_started(&self) -> bool {
        self.phase.is_some_and(|phase| !matches!(phase, Phase::PendingInitial | Phase::PendingWaitingToStart))
    }

    fn on_state(&mut self, phase: Phase, now: Instant) {
        self.away = phase == Phase::AgentDisconnected;
        self.gone = phase == Phase::Removed && self.counts;
        if matches!(phase, Phase::AgentDisconnected | Phase::Removed) {
            self.counts = true; // What is reported from now on is about the instance as it is wanted.
            (self.phase, self.good_since, self.succeeded) = (None, None, false);
            return;
        }
        if !self.counts {
            return;
        }
        self.phase = Some(phase);
        match phase {
            Phase::Running | Phase::Succeeded => {
                self.good_since.get_or_insert(now);
                self.succeeded = phase == Phase::Succeeded;
            }
            Phase::PendingStarting if self.succeeded => {} // Its restart policy starts it again.
            _ => (self.good_since, self.succeeded) = (None, false),
        }
    }

    /// Why it has failed, with its last state in words; `None` when it has not.
    fn failure(&self, reported: Option<&ExecutionState>, described: impl Fn() -> String) -> Option<String> {
        let gave_up = || reported.is_some_and(|state| state.additional_info.starts_with(NO_MORE_RESTARTS_PREFIX));
        match self.phase {
            Some(Phase::PendingStartingFailed) => Some(described()),
            Some(Phase::FailedExecFailed) if self.rules.never || gave_up() => Some(described()),
            _ if self.unhealthy >= self.rules.terms.deadline => {
                Some(format!("not healthy within {} s: {}", self.rules.terms.deadline.as_secs_f32(), described()))
            }
            _ => None,
        }
    }
}

/// An accepted update while it is judged.
#[derive(Debug)]
pub struct Trial {
    judged: BTreeMap<InstanceName, Judged>,
    /// Until when the times of [`Judged::unhealthy`] are counted.
    at: Instant,
    /// Agents that were lost while they had a started instance.
    away: BTreeSet<Name>,
    losses: u32,
    failure: Option<String>,
    /// Failures that do not undo the update.
    kept: Vec<String>,
}

impl Trial {
    /// The names of the workloads that are judged when `accepted` came to `before`: those that change, and those that
    /// need one of them to run, directly or not.
    #[must_use]
    pub fn names(accepted: &Accepted, before: &Node) -> BTreeSet<String> {
        let needs = reasons::needs(before);
        let mut names: BTreeSet<String> =
            accepted.added.iter().chain(&accepted.deleted).map(|instance| instance.workload.to_string()).collect();
        loop {
            let needs_one = |needs: &BTreeMap<String, String>| {
                needs.iter().any(|(name, how)| how == "ADD_COND_RUNNING" && names.contains(name))
            };
            let more: Vec<String> = (needs.iter())
                .filter(|(name, needs)| !names.contains(*name) && needs_one(needs))
                .map(|(name, _)| name.clone())
                .collect();
            if more.is_empty() {
                return names;
            }
            names.extend(more);
        }
    }

    /// Begins at `now`, with the complete state before the update, the wait for it, and the effective state after it.
    #[must_use]
    pub fn new(accepted: &Accepted, before: &Node, wait: &mut WaitState, effective: &Node, now: Instant) -> Self {
        let rules = |name: &str| Rules::of(effective.at(&["effectiveState", "workloads", name]));
        let mut ran = rows::rows(before);
        ran.retain(|_, row| row.state == RUNNING);
        let mut judged = BTreeMap::new();
        for instance in accepted.added.iter().filter(|instance| !instance.agent.is_empty()) {
            let new = Judged {
                ran: ran.keys().any(|other| other.workload == instance.workload),
                counts: !wait.ending.contains(instance),
                away: !wait.connected.contains(&instance.agent),
                ..Judged::new(rules(&instance.workload))
            };
            judged.insert(instance.clone(), new);
        }
        let keep = !judged.is_empty() && judged.values().all(|new: &Judged| new.rules.keep);
        let names = Self::names(accepted, before);
        let changed: BTreeSet<&Name> =
            accepted.added.iter().chain(&accepted.deleted).map(|instance| &instance.workload).collect();
        ran.retain(|instance, _| !changed.contains(&instance.workload) && names.contains(&*instance.workload));
        for (instance, row) in ran {
            let rules = Rules { keep, ..rules(&instance.workload) };
            let (phase, good_since) = (Some(Phase::Running), Some(now));
            judged.insert(instance.clone(), Judged { ran: true, phase, good_since, ..Judged::new(rules) });
            wait.rows.insert(instance, row); // It is shown, too.
        }
        Self { judged, at: now, away: BTreeSet::new(), losses: 0, failure: None, kept: Vec::new() }
    }

    /// Why the update failed and is to be undone, as `<workload>: <why>`.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// The failures of workloads that do not undo the update, as `<workload>: <why>`.
    #[must_use]
    pub fn kept(&self) -> &[String] {
        &self.kept
    }

    /// The workloads that another request has deleted or replaced; they are not judged.
    #[must_use]
    pub fn gone(&self) -> BTreeSet<&str> {
        self.judged.iter().filter(|(_, judged)| judged.gone).map(|(instance, _)| &*instance.workload).collect()
    }

    /// The longest time that one of the judged may be not healthy.
    #[must_use]
    pub fn longest_deadline(&self) -> Duration {
        self.judged.values().map(|judged| judged.rules.terms.deadline).max().unwrap_or_default()
    }

    /// Whether the instance is not waited for: it is not relevant on its node, or may not run and did not before.
    fn is_exempt(instance: &InstanceName, judged: &Judged, wait: &WaitState) -> bool {
        judged.failed
            || judged.gone
            || wait.reasons.is_inactive(instance)
            || (!judged.ran && wait.reasons.may_not_run(instance))
    }

    /// Counts the time until `now`.
    fn advance(&mut self, wait: &WaitState, now: Instant) {
        let passed = now.saturating_duration_since(self.at);
        self.at = now;
        for (instance, judged) in &mut self.judged {
            if judged.is_healthy(now) {
                judged.unhealthy = Duration::ZERO;
            } else if !judged.away && !Self::is_exempt(instance, judged, wait) {
                judged.unhealthy += passed;
            }
        }
    }

    /// Takes the failures into account.
    fn judge(&mut self, wait: &WaitState) {
        for (instance, judged) in &mut self.judged {
            if Self::is_exempt(instance, judged, wait) {
                continue;
            }
            let described = || wait.described(instance);
            let Some(why) = judged.failure(wait.reported.get(instance), described) else { continue };
            let why = format!("{}: {why}", instance.workload);
            if judged.rules.keep {
                judged.failed = true;
                self.kept.push(why);
            } else {
                self.failure.get_or_insert(why);
            }
        }
    }
}

impl<L> Goal<L> for Trial {
    fn on_states(&mut self, wait: &WaitState, states: &[WorkloadState], now: Instant) {
        self.advance(wait, now);
        for WorkloadState { instance, state } in states {
            let Some(judged) = self.judged.get_mut(instance) else { continue };
            if state.phase != Phase::AgentDisconnected {
                self.away.remove(&instance.agent);
            } else if judged.has_started() && self.away.insert(instance.agent.clone()) {
                self.losses += 1;
                if self.losses >= UPDATE_LOSSES && !judged.rules.keep {
                    let why = format!("{}: {} losses of agent '{}'", instance.workload, self.losses, instance.agent);
                    self.failure.get_or_insert(why);
                }
            }
            judged.on_state(state.phase, now);
        }
    }

    fn check(&mut self, wait: &mut WaitState, _: &mut L, now: Instant) -> Result<Progress, CliError> {
        self.advance(wait, now);
        self.judge(wait);
        let open = |(instance, judged): &(&InstanceName, &Judged)| {
            !judged.away && !Self::is_exempt(instance, judged, wait) && !judged.is_healthy(now)
        };
        let open: Vec<(&InstanceName, &Judged)> = self.judged.iter().filter(open).collect();
        if self.failure.is_some() || (open.is_empty() && wait.ending.is_empty()) {
            return Ok(Progress::Reached);
        }
        let again = open.iter().flat_map(|(_, judged)| {
            let healthy = judged.good_since.map(|since| since + judged.rules.terms.healthy);
            [Some(now + judged.rules.terms.deadline.saturating_sub(judged.unhealthy)), healthy]
        });
        let again = again.flatten().min();
        let open = open.into_iter().map(|(instance, _)| instance.clone()).collect();
        wait.on_trial = open;
        Ok(Progress::Open { again })
    }
}

#[cfg(test)]
mod tests;
