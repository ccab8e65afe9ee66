//! What waits until everything of an update is staged: what agents are asked to prepare, how far
//! they are, and what is shown of the new instances. These states are the server's own: no agent
//! knows of the new instances, so none receives them, and the loss of an agent changes nothing.
//!
//! Thread: `server`; plain values and the part of [`ServerLoop`] that sends and shows them.

use super::unit::{Stage, Touched};
use super::{GuardedUpdates, Open, block_of};
use crate::ServerLoop;
use crate::effects::Effects;
use crate::limits::UPDATE_AGENT_AWAY;
use ankaios_model::guarded_update::{CANNOT_BE_STAGED, UpdatePhase};
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

impl Stage {
    /// Why it cannot be staged, if its agent has given up.
    pub(crate) fn refusal(&self) -> Option<&str> {
        let report = self.report.as_ref().filter(|report| report.is_final)?;
        Some(report.reason.as_deref().unwrap_or_default())
    }

    /// Whether its agent has done all it can, and nothing holds the update back. What cannot be
    /// staged takes the way without it.
    fn is_ready(&self) -> bool {
        let is_done = |report: &PreparedInstance| {
            (report.level.is_some() || report.is_final) && report.unmet.is_none()
        };
        self.report.as_ref().is_some_and(is_done)
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
impl Open {
    pub(crate) fn is_staging(&self) -> bool {
        self.record.phase == UpdatePhase::Staging
    }

    /// The new instances that wait, by workload, with how agents prepare them.
    fn waiting(&self) -> impl Iterator<Item = (&Name, &AddedWorkload, Option<&Stage>)> {
        let workloads = self.record.unit.workloads.iter();
        workloads
            .filter_map(|(name, touched)| Some((name, touched.added()?, touched.stage.as_ref())))
    }

    /// Those of them that agents prepare.
    pub(crate) fn staged(&self) -> impl Iterator<Item = (&Name, &InstanceName, &Stage)> {
        self.waiting()
            .filter_map(|(name, added, stage)| Some((name, &added.instance, stage?)))
    }

    /// Whether this is a new instance that waits. One that is staged may be in force as well, or an
    /// earlier one still stops.
    pub(crate) fn is_waiting(&self, instance: &InstanceName) -> bool {
        let Some(touched) = self.record.unit.workloads.get(&instance.workload) else {
            return false;
        };
        touched
            .added()
            .is_some_and(|added| added.instance == *instance)
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
        for touched in self
            .record
            .unit
            .workloads
            .values_mut()
            .filter(|touched| is_its(&touched.new))
        {
            touched
                .stage
                .iter_mut()
                .for_each(|stage| stage.report = None);
            touched.stage.take_if(|_| !prepares);
        }
    }

    /// An agent reports how far it is with an instance. Returns whether that is one of this update.
    fn report(&mut self, report: &PreparedInstance) -> bool {
        let touched = self
            .record
            .unit
            .workloads
            .get_mut(&report.instance.workload);
        let touched = touched.filter(|touched| touched.new.as_ref() == Some(&report.instance));
        let Some(stage) = touched.and_then(|touched| touched.stage.as_mut()) else {
            return false;
        };
        stage.report = Some(report.clone());
        true
    }

    /// One that cannot be staged, and why, where that ends the update.
    pub(crate) fn cannot_be_staged(&self) -> Option<(Name, String)> {
        let failed = |(name, _, stage): (&Name, _, &Stage)| {
            let why = stage
                .refusal()
                .filter(|_| stage.on_failure == OnFailure::Rollback)?;
            Some((name.clone(), format!("{CANNOT_BE_STAGED}{why}")))
        };
        self.staged().find_map(failed)
    }

    /// It cannot be undone any more: what cannot be staged does not end it, and every condition is
    /// still waited for.
    pub(crate) fn keep_all(&mut self) {
        let stages = self
            .record
            .unit
            .workloads
            .values_mut()
            .filter_map(|touched| touched.stage.as_mut());
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
            .collect();
        if !given_up.is_empty() {
            let consents = self.staged().filter(|(_, _, stage)| stage.has_condition);
            consents.for_each(|(_, instance, _)| _ = given_up.remove(&instance.agent));
        }
        let is_awaited = move |agent: &Name, stage: &Stage| {
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
        let info = |(name, added, stage): (&Name, &AddedWorkload, Option<&Stage>)| {
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

impl GuardedUpdates {
    fn staging(&self) -> impl Iterator<Item = &Open> + Clone {
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
                "Agent '{agent}' cannot prepare instances: updates of its workloads are carried out at once, and \
                 'update.when' means nothing there."
            );
        }
    }

    /// All instances that an agent shall prepare.
    fn list_of(&self, agent: &str) -> Vec<AddedWorkload> {
        let waiting = self.staging().flat_map(Open::waiting);
        let own =
            waiting.filter(|(_, added, stage)| stage.is_some() && *added.instance.agent == *agent);
        own.map(|(_, added, _)| added.clone()).collect()
    }
}

impl ServerLoop {
    /// How a new instance is to be staged, if its block says so. Outside of the current mode
    /// nothing is to be started, but its condition counts as every other.
    pub(super) fn stage_of(&self, new: Option<&AddedWorkload>) -> Option<Stage> {
        let added = new.filter(|added| !added.instance.agent.is_empty())?;
        let block = block_of(&added.workload)?;
        let (level, has_condition) = (block.stage, block.when.is_some());
        let is_prepared = || {
            level != PrepareLevel::None
                && !self
                    .updates
                    .workloads()
                    .seen(added)
                    .instance
                    .agent
                    .is_empty()
        };
        let on_failure = self.guarded.on_failure_of(Some(&block));
        (has_condition || is_prepared()).then_some(Stage {
            level,
            has_condition,
            on_failure,
            report: None,
        })
    }

    /// Which agents are waited for by an update that is accepted now: those that are there and
    /// prepare. One that is away may prepare, which matters when nothing may happen without its
    /// consent.
    pub(super) fn ask_agents(&mut self, open: &mut Open) {
        let now = self.now();
        for Touched { new, stage, .. } in open.record.unit.workloads.values_mut() {
            let (Some(InstanceName { agent, .. }), Some(has_condition)) =
                (new, stage.as_ref().map(|it| it.has_condition))
            else {
                continue;
            };
            match self
                .peers
                .agents
                .get(agent)
                .map(|agent| agent.capabilities.prepares)
            {
                Some(true) => {}
                None if has_condition => _ = self.guarded.away.entry(agent.clone()).or_insert(now),
                None => *stage = None,
                Some(false) => {
                    self.guarded.warn_of_agent(agent);
                    *stage = None;
                }
            }
        }
    }

    /// Sends each agent what it shall prepare, where that has changed since it was sent last on its
    /// connection.
    pub(super) fn send_lists(&mut self) {
        let staged: BTreeSet<&Name> = self
            .guarded
            .staging()
            .flat_map(Open::staged)
            .map(|(_, instance, _)| &instance.agent)
            .collect();
        let connected = self.peers.agents.iter();
        let concerned =
            connected.filter(|(name, agent)| !agent.to_prepare.is_empty() || staged.contains(name));
        let agents: Vec<Name> = concerned.map(|(name, _)| name.clone()).collect();
        agents.iter().for_each(|agent| self.send_list(agent));
    }

    /// The same for one agent. A session begins with what it shall prepare, which may be nothing.
    pub(crate) fn send_list(&mut self, name: &Name) {
        let list = self.guarded.list_of(name);
        let Some(agent) = self.peers.agents.get_mut(name) else {
            return;
        };
        if agent.capabilities.prepares && agent.to_prepare != list {
            agent.to_prepare.clone_from(&list);
            self.peers.send_to_agent(name, FromServer::Prepare(list));
        }
    }

    /// The agent reports how far it is.
    pub(crate) fn prepared_reported(&mut self, agent: &Name, reports: &[PreparedInstance]) {
        for report in reports
            .iter()
            .filter(|report| report.instance.agent == *agent)
        {
            for open in self.guarded.open.values_mut() {
                self.guarded.is_outdated |= open.report(report);
            }
        }
    }

    // --------------------------------------------------------------- what is shown

    /// Shows how far all staged instances are, and those that are not staged any more as they are.
    /// If nothing but reports makes that necessary, not always at once.
    pub(super) fn show(&mut self, is_due: bool) {
        let (now, guarded) = (self.now(), &mut self.guarded);
        if let Some(until) = guarded.shown_until.filter(|until| !is_due && *until > now) {
            guarded.show_at = Some(guarded.show_at.map_or(until, |at| at.min(until)));
            return;
        }
        let GuardedUpdates { open, away, .. } = &mut *guarded;
        let asked: BTreeSet<&Name> = open
            .values()
            .flat_map(Open::staged)
            .map(|(_, it, _)| &it.agent)
            .collect();
        away.retain(|agent, _| asked.contains(agent));
        let infos: BTreeMap<InstanceName, String> = guarded
            .staging()
            .flat_map(|open| open.infos(&guarded.away, now))
            .collect();
        let gone = guarded
            .away
            .values()
            .map(|since| *since + UPDATE_AGENT_AWAY)
            .filter(|at| *at > now);
        let ages = guarded
            .staging()
            .filter(|open| open.staged().any(|(_, _, stage)| stage.report.is_none()))
            .map(|open| {
                let steps = now.saturating_duration_since(open.begun).as_millis()
                    / CREATE_AGE_INTERVAL.as_millis().max(1)
                    + 1;
                open.begun
                    + CREATE_AGE_INTERVAL.saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX))
            });
        let show_at = gone.chain(ages).min();
        guarded.show_at = show_at;
        guarded.shown_until = (infos.len() >= MANY).then_some(now + MANY_INTERVAL);
        let mut effects = Effects::default();
        self.updates.show_staged(&infos, &mut effects);
        self.apply(effects);
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
