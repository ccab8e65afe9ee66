//! What waits until everything of an update is staged: the new forms of its workloads, and how far agents are with those
//! that they prepare.
//!
//! Thread: `server`; a plain value. Time is passed in.

use super::unit::Form;
use crate::limits::{BACKOFF_FIRST, BACKOFF_MAX, CREATE_AGE_INTERVAL, UPDATE_AGENT_AWAY};
use crate::model::guarded_update::CANNOT_BE_STAGED;
use crate::model::lifecycle::OnFailure;
use crate::model::messages::{AddedWorkload, PreparedInstance};
use crate::model::names::{InstanceName, Name};
use crate::model::prepare_level::PrepareLevel;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How often the age of an instance that is being staged is shown.
const UPDATE_AGE_INTERVAL: Duration = CREATE_AGE_INTERVAL;

/// An instance that its agent prepares.
#[derive(Debug, Clone)]
pub struct StagedInstance {
    /// Up to which stage.
    pub stage: PrepareLevel,
    /// Whether the update is carried out under a condition of it only.
    pub has_condition: bool,
    /// What follows when it cannot be staged.
    pub on_failure: OnFailure,
    /// Since when.
    pub since: Instant,
    /// What its agent reported last, on its present connection.
    pub report: Option<PreparedInstance>,
}

impl StagedInstance {
    /// Why it cannot be staged, if its agent has given up.
    fn refusal(&self) -> Option<&str> {
        let report = self.report.as_ref().filter(|report| report.is_final)?;
        Some(report.reason.as_deref().unwrap_or_default())
    }

    /// Whether its agent has done all it can, and nothing holds the update back. What cannot be staged takes the way
    /// without it.
    fn is_ready(&self) -> bool {
        let is_done = |report: &PreparedInstance| (report.level.is_some() || report.is_final) && report.unmet.is_none();
        self.report.as_ref().is_some_and(is_done)
    }

    fn info(&self, now: Instant) -> String {
        let age = now.saturating_duration_since(self.since);
        match &self.report {
            Some(PreparedInstance { is_final: true, reason, .. }) => {
                format!("update: cannot be staged: {}", reason.as_deref().unwrap_or_default())
            }
            Some(PreparedInstance { level: None, reason: Some(reason), tries, .. }) => {
                format!("update: {reason}, retry {tries} in {} s", backoff(*tries).as_secs_f64().ceil())
            }
            Some(PreparedInstance { unmet: Some(unmet), .. }) => format!("update: {unmet}"),
            _ if age < UPDATE_AGE_INTERVAL => format!("update: stages {}", self.stage),
            _ => {
                let step = UPDATE_AGE_INTERVAL.as_secs().max(1);
                format!("update: stages {}, {} s", self.stage, age.as_secs() / step * step)
            }
        }
    }
}

/// Longest pause of an agent before this retry.
fn backoff(retry: u32) -> Duration {
    let factor = 2_u32.saturating_pow(retry.saturating_sub(1));
    BACKOFF_FIRST.saturating_mul(factor).min(BACKOFF_MAX)
}

/// A workload whose new form is not in force yet.
#[derive(Debug, Clone)]
pub struct Pending {
    /// Its new form.
    pub new: Form,
    /// The new instance is prepared by its agent.
    pub staged: Option<StagedInstance>,
}

impl Pending {
    /// The new instance as its agent gets it, if it has one.
    pub fn added(&self) -> Option<&AddedWorkload> {
        self.new.effective.as_ref().filter(|added| !added.instance.agent.is_empty())
    }

    /// What its agent has reported of exactly the same before counts.
    pub fn keep_report(&mut self, earlier: Option<&Self>) {
        let earlier = earlier.filter(|earlier| earlier.added() == self.added()).and_then(|it| it.staged.as_ref());
        if let (Some(staged), Some(earlier)) = (&mut self.staged, earlier) {
            (staged.since, staged.report) = (earlier.since, earlier.report.clone());
        }
    }

    fn agent(&self) -> Option<&Name> {
        self.added().map(|added| &added.instance.agent)
    }

    fn is_of(&self, instance: &InstanceName) -> bool {
        self.added().is_some_and(|added| added.instance == *instance)
    }
}

/// All that waits of one update.
// [impl->swdd~server-stages-updates~1]
#[derive(Debug, Default)]
pub struct Staging {
    /// By workload.
    pub pending: BTreeMap<Name, Pending>,
    /// Agents among those that stage which are away, and since when.
    away: BTreeMap<Name, Instant>,
}

impl Staging {
    /// Takes over what waits of another update.
    pub fn absorb(&mut self, other: Self) {
        self.pending.extend(other.pending);
        self.away.extend(other.away);
    }

    fn staged(&self) -> impl Iterator<Item = (&Name, &Name, &StagedInstance)> {
        let staged = |(name, pending)| Some((name, Pending::agent(pending)?, pending.staged.as_ref()?));
        self.pending.iter().filter_map(staged)
    }

    /// Whether it is the new instance of a workload that waits.
    pub fn has(&self, instance: &InstanceName) -> bool {
        self.pending.get(&instance.workload).is_some_and(|pending| pending.is_of(instance))
    }

    /// The instances that an agent shall prepare.
    pub fn list(&self, agent: &str) -> impl Iterator<Item = &AddedWorkload> {
        let staged = self.pending.values().filter(|pending| pending.staged.is_some());
        staged.filter_map(Pending::added).filter(move |added| *added.instance.agent == *agent)
    }

    /// The agents that shall prepare something.
    pub fn agents(&self) -> impl Iterator<Item = &Name> {
        self.staged().map(|(_, agent, _)| agent)
    }

    /// An agent is away from now on.
    pub fn agent_left(&mut self, agent: &Name, now: Instant) {
        if self.agents().any(|other| other == agent) {
            self.away.entry(agent.clone()).or_insert(now);
        }
    }

    /// An agent has connected. What it reported before is outdated; one that does not prepare takes the way without.
    pub fn agent_came(&mut self, agent: &Name, prepares: bool) {
        self.away.remove(agent);
        for pending in self.pending.values_mut().filter(|pending| pending.agent() == Some(agent)) {
            if let Some(staged) = &mut pending.staged {
                staged.report = None;
            }
            if !prepares {
                pending.staged = None;
            }
        }
    }

    /// An agent reports how far it is with an instance. Returns whether that is one of this update.
    pub fn report(&mut self, report: &PreparedInstance) -> bool {
        let pending = self.pending.get_mut(&report.instance.workload).filter(|pending| pending.is_of(&report.instance));
        let Some(staged) = pending.and_then(|pending| pending.staged.as_mut()) else { return false };
        staged.report = Some(report.clone());
        true
    }

    /// One that cannot be staged, and why, where that ends the update.
    pub fn failure(&self) -> Option<(&Name, String)> {
        let failed = |(name, _, staged): (_, _, &StagedInstance)| {
            let why = staged.refusal().filter(|_| staged.on_failure == OnFailure::Rollback)?;
            Some((name, format!("{CANNOT_BE_STAGED}{why}")))
        };
        self.staged().find_map(failed)
    }

    /// It cannot be undone any more: what cannot be staged does not end it, and every condition is still waited for.
    pub fn keep_all(&mut self) {
        let staged = self.pending.values_mut().filter_map(|pending| pending.staged.as_mut());
        staged.for_each(|staged| staged.on_failure = OnFailure::Keep);
    }

    /// Agents that have been away for so long that they are not waited for any more.
    fn given_up(&self, now: Instant) -> BTreeSet<&Name> {
        let is_long = |since: &Instant| now.saturating_duration_since(*since) >= UPDATE_AGENT_AWAY;
        let mut given_up: BTreeSet<&Name> =
            self.away.iter().filter(|(_, since)| is_long(since)).map(|(agent, _)| agent).collect();
        if !given_up.is_empty() {
            for (_, agent, _) in self.staged().filter(|(_, _, staged)| staged.has_condition) {
                given_up.remove(agent);
            }
        }
        given_up
    }

    /// What is waited for.
    fn waiting(&self, now: Instant) -> impl Iterator<Item = (&Name, &Name)> {
        let given_up = self.given_up(now);
        self.staged()
            .filter(
                move |(_, agent, staged)| {
                    if self.away.contains_key(*agent) { !given_up.contains(*agent) } else { !staged.is_ready() }
                },
            )
            .map(|(name, agent, _)| (name, agent))
    }

    /// Whether everything is staged that is waited for, and every condition holds.
    pub fn is_complete(&self, now: Instant) -> bool {
        self.waiting(now).next().is_none()
    }

    /// The workloads, and agents that are away, that are waited for.
    pub fn waits_for(&self, now: Instant) -> (Vec<&Name>, Vec<&Name>) {
        let waiting = self.waiting(now);
        let (away, there): (Vec<_>, Vec<_>) = waiting.partition(|(_, agent)| self.away.contains_key(*agent));
        let away: BTreeSet<&Name> = away.into_iter().map(|(_, agent)| agent).collect();
        (there.into_iter().map(|(name, _)| name).collect(), away.into_iter().collect())
    }

    /// When something changes by itself: an agent has been away for long, or an age is to be shown.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        let away = self.away.values().map(|since| *since + UPDATE_AGENT_AWAY).filter(|at| *at > now);
        let ages = self.staged().filter(|(_, _, staged)| staged.report.is_none()).map(|(_, _, staged)| {
            let age = now.saturating_duration_since(staged.since).as_millis();
            let steps = age / UPDATE_AGE_INTERVAL.as_millis().max(1) + 1;
            staged.since + UPDATE_AGE_INTERVAL.saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX))
        });
        away.chain(ages).min()
    }

    /// What is shown of each new instance.
    pub fn infos(&self, now: Instant) -> Vec<(InstanceName, String)> {
        let (waiting, away) = self.waits_for(now);
        let info = |(name, pending): (&Name, &Pending)| {
            let instance = pending.added()?.instance.clone();
            let own = pending.staged.as_ref().filter(|staged| !staged.is_ready());
            let other =
                || waiting.iter().find(|other| **other != name).map(|other| format!("update: waits for {other}"));
            let agent = || away.first().map(|agent| format!("update: waits for agent {agent}"));
            let text = own.map(|staged| staged.info(now)).or_else(other).or_else(agent);
            Some((instance, text.unwrap_or_else(|| "update: is staged".to_owned())))
        };
        self.pending.iter().filter_map(info).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_before_a_retry_doubles_up_to_a_bound() {
        for (retry, seconds) in [(0, 0.5), (1, 0.5), (2, 1.0), (5, 8.0), (99, 300.0)] {
            assert_eq!(backoff(retry).as_secs_f64(), seconds, "{retry}");
        }
    }
}
