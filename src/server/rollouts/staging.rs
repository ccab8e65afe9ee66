//! What waits until everything of an update is staged: what agents are asked to prepare, how far
//! they are, and what is shown of the new instances. These states are the server's own: no agent
//! knows of the new instances, so none receives them, and the loss of an agent changes nothing.
//!
//! Thread: `server`; plain values and the part of [`Rollouts`] that sends and shows them.

use super::change_set::{AffectedWorkload, InstanceStaging};
use super::{OpenUpdate, Rollouts, block_of};
use crate::effects::Effects;
use crate::limits::UPDATE_AGENT_AWAY;
use crate::updates::Updates;
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::guarded_update::{CANNOT_BE_STAGED, UpdatePhase};
use ankaios_model::health_window::{Failure, FailureCause};
use ankaios_model::lifecycle::{self, OnFailure};
use ankaios_model::limits::{BACKOFF_FIRST, BACKOFF_MAX, CREATE_AGE_INTERVAL};
use ankaios_model::messages::{AddedWorkload, FromServer, PreparedInstance};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::prepare_level::PrepareLevel;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// From so many staged instances on not every report is shown at once, but all at most so often:
/// each may change the texts of all others.
const MANY: usize = 64;
const MANY_INTERVAL: Duration = Duration::from_secs(1);

/// Longest pause of an agent before this retry.
fn backoff(retry: u32) -> Duration {
    let factor = 2_u32.saturating_pow(retry.saturating_sub(1));
    BACKOFF_FIRST.saturating_mul(factor).min(BACKOFF_MAX)
}

impl InstanceStaging {
    /// Why it cannot be staged, if its agent has given up.
    pub(crate) fn refusal(&self) -> Option<&str> {
        let report = self.report.as_ref().filter(|report| report.is_final)?;
        Some(report.reason.as_deref().unwrap_or_default())
    }

    /// Whether its agent has done all it can, and nothing holds the update back. What cannot be
    /// staged takes the way without it.
    fn is_ready(&self) -> bool {
        match &self.report {
            Some(report) => {
                let is_done = report.level.is_some() || report.is_final;
                is_done && report.unmet.is_none()
            }
            None => false,
        }
    }

    fn info(&self, age: Duration) -> String {
        match &self.report {
            Some(PreparedInstance {
                is_final: true,
                reason,
                ..
            }) => {
                format!(
                    "update: {CANNOT_BE_STAGED}{}",
                    reason.as_deref().unwrap_or_default()
                )
            }
            Some(PreparedInstance {
                level: None,
                reason: Some(reason),
                tries,
                ..
            }) => {
                format!(
                    "update: {reason}, retry {tries} in {} s",
                    backoff(*tries).as_secs_f64().ceil()
                )
            }
            Some(PreparedInstance {
                unmet: Some(unmet), ..
            }) => format!("update: {unmet}"),
            _ if age < CREATE_AGE_INTERVAL => format!("update: stages {}", self.level),
            _ => {
                let step = CREATE_AGE_INTERVAL.as_secs().max(1);
                format!(
                    "update: stages {}, {} s",
                    self.level,
                    age.as_secs() / step * step
                )
            }
        }
    }
}

// [impl->swdd~server-stages-updates~1]
impl OpenUpdate {
    pub(crate) fn is_staging(&self) -> bool {
        self.record.phase == UpdatePhase::Staging
    }

    /// The new instances that wait, by workload, with how agents prepare them.
    fn waiting(&self) -> impl Iterator<Item = (&Name, &AddedWorkload, Option<&InstanceStaging>)> {
        let workloads = self.record.change_set.workloads.iter();
        workloads
            .filter_map(|(name, affected)| Some((name, affected.added()?, affected.stage.as_ref())))
    }

    /// Those of them that agents prepare.
    pub(crate) fn staged(&self) -> impl Iterator<Item = (&Name, &InstanceName, &InstanceStaging)> {
        self.waiting()
            .filter_map(|(name, added, stage)| Some((name, &added.instance, stage?)))
    }

    /// Whether this is a new instance that waits. One that is staged may be active as well, or an
    /// earlier one still stops.
    pub(crate) fn is_waiting(&self, instance: &InstanceName) -> bool {
        let Some(affected) = self.record.change_set.workloads.get(&instance.workload) else {
            return false;
        };
        affected
            .added()
            .is_some_and(|added| added.instance == *instance)
    }

    /// Whether a workload of this agent comes, changes or goes with the update.
    fn concerns(&self, agent: &str) -> bool {
        let is_its = |instance: &Option<InstanceName>| match instance {
            Some(instance) => *instance.agent == *agent,
            None => false,
        };
        let mut workloads = self.record.change_set.workloads.values();
        workloads.any(|affected| is_its(&affected.old) || is_its(&affected.new))
    }

    pub(crate) fn asks(&self, agent: &str) -> bool {
        self.staged()
            .any(|(_, instance, _)| *instance.agent == *agent)
    }

    /// An agent has connected. What it reported before is outdated; one that does not prepare takes
    /// the way without.
    pub(crate) fn agent_came(&mut self, agent: &Name, prepares: bool) {
        let is_its =
            |new: &Option<InstanceName>| new.as_ref().is_some_and(|new| new.agent == *agent);
        for affected in self
            .record
            .change_set
            .workloads
            .values_mut()
            .filter(|affected| is_its(&affected.new))
        {
            affected
                .stage
                .iter_mut()
                .for_each(|stage| stage.report = None);
            affected.stage.take_if(|_| !prepares);
        }
    }

    /// An agent reports how far it is with an instance. Returns whether that is one of this update.
    fn report(&mut self, report: &PreparedInstance) -> bool {
        let affected = self
            .record
            .change_set
            .workloads
            .get_mut(&report.instance.workload);
        let affected = affected.filter(|affected| affected.new.as_ref() == Some(&report.instance));
        let Some(stage) = affected.and_then(|affected| affected.stage.as_mut()) else {
            return false;
        };
        stage.report = Some(report.clone());
        true
    }

    /// One that cannot be staged, and why, where that ends the update.
    pub(crate) fn cannot_be_staged(&self) -> Option<Failure> {
        for (name, _, stage) in self.staged() {
            if let Some(why) = stage.refusal()
                && stage.on_failure == OnFailure::Rollback
            {
                return Some(Failure {
                    workload: name.clone(),
                    cause: FailureCause::NotStaged,
                    details: why.to_owned(),
                    on_failure: stage.on_failure,
                });
            }
        }
        None
    }

    /// It cannot be undone any more: what cannot be staged does not end it, and every condition is
    /// still waited for.
    pub(crate) fn keep_all(&mut self) {
        let stages = self
            .record
            .change_set
            .workloads
            .values_mut()
            .filter_map(|affected| affected.stage.as_mut());
        stages.for_each(|stage| stage.on_failure = OnFailure::Keep);
    }

    /// What is waited for until it is carried out, each with its agent, which may be `away`. One
    /// that has been away for long is only waited for where its consent is needed.
    pub(crate) fn awaited<'o>(
        &'o self,
        away: &'o BTreeMap<Name, Instant>,
        now: Instant,
    ) -> impl Iterator<Item = (&'o Name, &'o Name)> {
        let is_long = |since: &Instant| now.saturating_duration_since(*since) >= UPDATE_AGENT_AWAY;
        let mut given_up: BTreeSet<&Name> = away
            .iter()
            .filter(|(_, since)| is_long(since))
            .map(|(agent, _)| agent)
            .collect_entries();
        if !given_up.is_empty() {
            let consents = self.staged().filter(|(_, _, stage)| stage.has_condition);
            consents.for_each(|(_, instance, _)| _ = given_up.remove(&instance.agent));
        }
        let is_awaited = move |agent: &Name, stage: &InstanceStaging| {
            if away.contains_key(agent) {
                !given_up.contains(agent)
            } else {
                !stage.is_ready()
            }
        };
        let awaited = self
            .staged()
            .filter(move |(_, instance, stage)| is_awaited(&instance.agent, stage));
        awaited.map(|(name, instance, _)| (name, &instance.agent))
    }

    /// When its age grows by the next interval.
    fn next_age(&self, now: Instant) -> Instant {
        let age = now.saturating_duration_since(self.begun);
        let intervals = age.as_millis() / CREATE_AGE_INTERVAL.as_millis().max(1) + 1;
        let intervals = u32::try_from(intervals).unwrap_or(u32::MAX);
        self.begun + CREATE_AGE_INTERVAL.saturating_mul(intervals)
    }

    /// What is shown of each new instance.
    fn infos(&self, away: &BTreeMap<Name, Instant>, now: Instant) -> Vec<(InstanceName, String)> {
        let (there, age) = (
            |agent: &Name| !away.contains_key(agent),
            now.saturating_duration_since(self.begun),
        );
        let awaited: Vec<(&Name, &Name)> = self.awaited(away, now).collect();
        let workloads: Vec<&Name> = awaited
            .iter()
            .filter(|(_, agent)| there(agent))
            .map(|(name, _)| *name)
            .take(2)
            .collect();
        let agent = awaited
            .iter()
            .map(|(_, agent)| *agent)
            .filter(|agent| !there(agent))
            .min();
        let info = |(name, added, stage): (&Name, &AddedWorkload, Option<&InstanceStaging>)| {
            let own = stage
                .filter(|stage| !stage.is_ready())
                .map(|stage| stage.info(age));
            let other = workloads
                .iter()
                .find(|other| **other != name)
                .map(|other| format!("update: waits for {other}"));
            let text = own
                .or(other)
                .or_else(|| agent.map(|agent| format!("update: waits for agent {agent}")));
            (
                added.instance.clone(),
                text.unwrap_or_else(|| "update: is staged".to_owned()),
            )
        };
        self.waiting().map(info).collect()
    }
}

impl Rollouts {
    fn staging(&self) -> impl Iterator<Item = &OpenUpdate> + Clone {
        self.open.values().filter(|open| open.is_staging())
    }

    /// What follows when an instance with this block fails.
    pub(crate) fn on_failure_of(&self, block: Option<&lifecycle::Update>) -> OnFailure {
        block
            .and_then(|block| block.on_failure)
            .unwrap_or(self.on_failure)
    }

    /// Warns once of an agent that cannot prepare what a block wants to be staged.
    pub(crate) fn warn_of_agent(&mut self, agent: &Name) {
        if self.warned.insert(agent.clone()) {
            log::warn!(
                "AgentStaging '{agent}' cannot prepare instances: updates of its workloads are carried out at once, and \
                 'update.when' means nothing there."
            );
        }
    }

    /// All instances that an agent has to prepare.
    fn list_of(&self, agent: &str) -> Vec<AddedWorkload> {
        let mut list = Vec::new();
        for open in self.staging() {
            for (_, added, stage) in open.waiting() {
                if stage.is_some() && *added.instance.agent == *agent {
                    list.push(added.clone());
                }
            }
        }
        list
    }

    /// How a new instance is staged, if its block says so. Outside of the current mode nothing will
    /// be started, but its condition applies as every other.
    pub(super) fn stage_of(
        &self,
        new: Option<&AddedWorkload>,
        updates: &Updates,
    ) -> Option<InstanceStaging> {
        let added = new.filter(|added| !added.instance.agent.is_empty())?;
        let block = block_of(&added.workload)?;
        let level = block.stage;
        let has_condition = block.when.is_some();
        let is_inside = !updates.workloads().seen(added).instance.agent.is_empty();
        let is_prepared = level != PrepareLevel::None && is_inside;
        if !has_condition && !is_prepared {
            return None;
        }
        Some(InstanceStaging {
            level,
            has_condition,
            on_failure: self.on_failure_of(Some(&block)),
            report: None,
        })
    }

    /// Chooses which agents are waited for by an update that is accepted now: those that are there
    /// and prepare. One that is away may prepare, which matters when nothing may happen without its
    /// consent.
    pub(super) fn choose_agents(&mut self, open: &mut OpenUpdate, now: Instant) {
        for AffectedWorkload { new, stage, .. } in open.record.change_set.workloads.values_mut() {
            let (Some(new), Some(known)) = (new, &stage) else {
                continue;
            };
            let agent = &new.agent;
            match self.agents.get(agent).map(|agent| agent.prepares) {
                Some(true) => {}
                Some(false) => {
                    self.warn_of_agent(agent);
                    *stage = None;
                }
                None if known.has_condition => {
                    self.away.entry(agent.clone()).or_insert(now);
                }
                None => *stage = None,
            }
        }
    }

    /// Sends each agent what it has to prepare, where that has changed since it was sent last on
    /// its connection.
    pub(crate) fn send_lists(&mut self, effects: &mut Effects) {
        let mut concerned = BTreeSet::new();
        for (name, agent) in &self.agents {
            if !agent.to_prepare.is_empty() {
                concerned.insert(name.clone());
            }
        }
        for open in self.staging() {
            for (_, instance, _) in open.staged() {
                concerned.insert(instance.agent.clone());
            }
        }
        for name in concerned {
            self.send_list(&name, effects);
        }
    }

    /// The same for one agent. A session begins with what it has to prepare, which may be nothing.
    pub(super) fn send_list(&mut self, name: &Name, effects: &mut Effects) {
        let list = self.list_of(name);
        let Some(agent) = self.agents.get_mut(name) else {
            return;
        };
        if agent.prepares && agent.to_prepare != list {
            agent.to_prepare.clone_from(&list);
            effects.send_to_agent(name, FromServer::Prepare(list));
        }
    }

    /// Sends each agent that removes images whether an update of it is open, where that has changed
    /// since it was sent last: the rollback may need images that nothing else needs.
    // [impl->swdd~server-reports-open-updates-to-agents~1]
    pub(crate) fn send_open(&mut self, effects: &mut Effects) {
        let Self { agents, open, .. } = self;
        for (name, agent) in agents {
            let Some(sent) = &mut agent.sent_open else {
                continue;
            };
            let is_open = open.values().any(|open| open.concerns(name));
            if *sent != is_open {
                *sent = is_open;
                effects.send_to_agent(name, FromServer::UpdateOpen(is_open));
            }
        }
    }

    /// The agent reports how far it is.
    pub(crate) fn prepared_reported(&mut self, agent: &Name, reports: &[PreparedInstance]) {
        for report in reports {
            if report.instance.agent != *agent {
                continue;
            }
            for open in self.open.values_mut() {
                self.is_outdated |= open.report(report);
            }
        }
    }

    // --------------------------------------------------------------- what is shown

    /// Takes what is shown of all staged instances. `None` when nothing but reports makes that
    /// necessary and it was shown shortly before: it follows later.
    pub(crate) fn take_infos(
        &mut self,
        is_due: bool,
        now: Instant,
    ) -> Option<BTreeMap<InstanceName, String>> {
        if !is_due
            && let Some(until) = self.shown_until
            && until > now
        {
            self.show_at = Some(self.show_at.map_or(until, |at| at.min(until)));
            return None;
        }
        self.forget_agents_without_staged();
        let mut infos = BTreeMap::new();
        for open in self.staging() {
            infos.extend(open.infos(&self.away, now));
        }
        self.show_at = self.next_show(now);
        self.shown_until = (infos.len() >= MANY).then_some(now + MANY_INTERVAL);
        Some(infos)
    }

    /// Only agents that have to prepare something are waited for.
    fn forget_agents_without_staged(&mut self) {
        let mut asked: BTreeSet<&Name> = BTreeSet::new();
        for open in self.open.values() {
            for (_, instance, _) in open.staged() {
                asked.insert(&instance.agent);
            }
        }
        self.away.retain(|agent, _| asked.contains(agent));
    }

    /// When what is staged is shown next in any case: when an agent has been away for long, and
    /// when an age that is shown grows.
    fn next_show(&self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for since in self.away.values() {
            let gone = *since + UPDATE_AGENT_AWAY;
            if gone > now {
                next = Some(next.map_or(gone, |next| next.min(gone)));
            }
        }
        for open in self.staging() {
            if open.staged().any(|(_, _, stage)| stage.report.is_none()) {
                let at = open.next_age(now);
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        next
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
