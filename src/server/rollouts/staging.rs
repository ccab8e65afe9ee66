//! Staging: agents prepare the new instances of an update while the old ones still run, and the
//! server shows how far they are. The shown states are the server's own: no agent has the new
//! instances yet, so none receives these states, and the loss of an agent does not change them.
//!
//! Thread: `server`; plain values and the part of [`Rollouts`] that sends and shows them.

use super::change_set::{AffectedWorkload, InstanceStaging};
use super::{OpenUpdate, Rollouts, block_of};
use crate::effects::Effects;
use crate::limits::UPDATE_AGENT_AWAY;
use crate::updates::Updates;

use ankaios_model::guarded_update::{CANNOT_BE_STAGED, UpdatePhase};
use ankaios_model::health_window::{Failure, FailureCause};
use ankaios_model::lifecycle::{OnFailure, UpdateBlock};
use ankaios_model::limits::{BACKOFF_FIRST, BACKOFF_MAX, CREATE_AGE_INTERVAL};
use ankaios_model::messages::{AddedWorkload, FromServer, PreparedInstance};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::prepare_level::PrepareLevel;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Number of staged instances from which reports are shown together: each report may change the
/// shown texts of all other instances.
const MANY: usize = 64;
/// Interval in which reports about [`MANY`] instances are shown.
const MANY_INTERVAL: Duration = Duration::from_secs(1);

/// Longest pause of an agent before this retry.
fn backoff(retry: u32) -> Duration {
    let factor = 2_u32.saturating_pow(retry.saturating_sub(1));
    BACKOFF_FIRST.saturating_mul(factor).min(BACKOFF_MAX)
}

impl InstanceStaging {
    /// The reason why it cannot be staged, if its agent has given up.
    pub(crate) fn refusal(&self) -> Option<&str> {
        let report = self.report.as_ref()?;
        if !report.is_final {
            return None;
        }
        Some(report.reason.as_deref().unwrap_or_default())
    }

    /// Returns whether its agent has finished or has given up, and no condition is unmet. An
    /// instance that cannot be prepared does not delay the switch.
    fn is_ready(&self) -> bool {
        let Some(report) = &self.report else {
            return false;
        };
        let is_done = report.level.is_some() || report.is_final;
        is_done && report.unmet.is_none()
    }

    /// The shown text of an instance that is not ready, `age` after the request.
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
                // The age in whole intervals, so that the text seldom changes.
                let interval = CREATE_AGE_INTERVAL.as_secs().max(1);
                let seconds = age.as_secs() / interval * interval;
                format!("update: stages {}, {seconds} s", self.level)
            }
        }
    }
}

/// The targets of waiting that are shown for the instances of one update.
struct AwaitedTargets<'o> {
    /// At most two workloads whose agents are connected: an instance shows one of another workload.
    workloads: Vec<&'o Name>,
    /// The first disconnected agent, by name.
    agent: Option<&'o Name>,
}

// [impl->swdd~server-stages-updates~1]
impl OpenUpdate {
    pub(crate) fn is_staging(&self) -> bool {
        self.record.phase == UpdatePhase::Staging
    }

    /// The new instances that are not switched yet, with their preparation, if there is one.
    fn waiting(&self) -> impl Iterator<Item = (&AddedWorkload, Option<&InstanceStaging>)> {
        let workloads = self.record.change_set.workloads.values();
        workloads.filter_map(|affected| Some((affected.added()?, affected.stage.as_ref())))
    }

    /// The new instances that agents prepare.
    pub(crate) fn staged(&self) -> impl Iterator<Item = (&InstanceName, &InstanceStaging)> {
        self.waiting()
            .filter_map(|(added, stage)| Some((&added.instance, stage?)))
    }

    /// Returns whether the update has this as a new instance that is not switched yet. An instance
    /// of the same name may be active, or may still stop.
    pub(crate) fn is_waiting(&self, instance: &InstanceName) -> bool {
        let Some(affected) = self.record.change_set.workloads.get(&instance.workload) else {
            return false;
        };
        match affected.added() {
            Some(added) => added.instance == *instance,
            None => false,
        }
    }

    /// Returns whether an instance of this agent comes, changes or goes with the update.
    fn concerns(&self, agent: &str) -> bool {
        for affected in self.record.change_set.workloads.values() {
            for instance in [&affected.old, &affected.new].into_iter().flatten() {
                if *instance.agent == *agent {
                    return true;
                }
            }
        }
        false
    }

    /// Returns whether this agent prepares an instance of the update.
    pub(crate) fn has_staged(&self, agent: &str) -> bool {
        self.staged().any(|(instance, _)| *instance.agent == *agent)
    }

    /// Forgets the reports of an agent that has connected: they are outdated. If it cannot prepare
    /// instances, the update does not wait for them.
    pub(crate) fn agent_came(&mut self, agent: &Name, prepares: bool) {
        for affected in self.record.change_set.workloads.values_mut() {
            let Some(new) = &affected.new else { continue };
            if new.agent != *agent {
                continue;
            }
            if !prepares {
                affected.stage = None;
            } else if let Some(stage) = &mut affected.stage {
                stage.report = None;
            }
        }
    }

    /// Takes a report of an agent about its preparation of an instance. Returns whether the
    /// instance is staged by this update.
    fn report(&mut self, report: &PreparedInstance) -> bool {
        let workloads = &mut self.record.change_set.workloads;
        let Some(affected) = workloads.get_mut(&report.instance.workload) else {
            return false;
        };
        if affected.new.as_ref() != Some(&report.instance) {
            return false;
        }
        let Some(stage) = &mut affected.stage else {
            return false;
        };
        stage.report = Some(report.clone());
        true
    }

    /// Returns the failure of an instance that cannot be staged, if that failure ends the update.
    pub(crate) fn cannot_be_staged(&self) -> Option<Failure> {
        for (instance, stage) in self.staged() {
            if let Some(why) = stage.refusal()
                && stage.on_failure == OnFailure::Rollback
            {
                return Some(Failure {
                    workload: instance.workload.clone(),
                    cause: FailureCause::NotStaged,
                    details: why.to_owned(),
                    on_failure: stage.on_failure,
                });
            }
        }
        None
    }

    /// Notes that the update cannot be rolled back. From then on an instance that cannot be staged
    /// does not end it, but it still waits for every condition.
    pub(crate) fn keep_all(&mut self) {
        for affected in self.record.change_set.workloads.values_mut() {
            if let Some(stage) = &mut affected.stage {
                stage.on_failure = OnFailure::Keep;
            }
        }
    }

    /// Returns whether the update waits for no instance.
    pub(crate) fn is_all_staged(&self, away: &BTreeMap<Name, Instant>, now: Instant) -> bool {
        self.awaited(away, now).next().is_none()
    }

    /// The instances that the update waits for: instances that are not ready, and instances of
    /// agents that are `away` and not given up.
    pub(crate) fn awaited<'o>(
        &'o self,
        away: &'o BTreeMap<Name, Instant>,
        now: Instant,
    ) -> impl Iterator<Item = &'o InstanceName> {
        let given_up = self.given_up(away, now);
        self.staged().filter_map(move |(instance, stage)| {
            let is_awaited = if away.contains_key(&instance.agent) {
                !given_up.contains(&instance.agent)
            } else {
                !stage.is_ready()
            };
            is_awaited.then_some(instance)
        })
    }

    /// The disconnected agents that the update does not wait for any more. It waits without end for
    /// an agent whose instances have a condition, which must be met.
    fn given_up<'o>(&self, away: &'o BTreeMap<Name, Instant>, now: Instant) -> BTreeSet<&'o Name> {
        let mut given_up = BTreeSet::new();
        for (agent, since) in away {
            if now.saturating_duration_since(*since) >= UPDATE_AGENT_AWAY {
                given_up.insert(agent);
            }
        }
        if given_up.is_empty() {
            return given_up;
        }
        for (instance, stage) in self.staged() {
            if stage.has_condition {
                given_up.remove(&instance.agent);
            }
        }
        given_up
    }

    /// When the shown age grows by the next interval.
    fn next_age(&self, now: Instant) -> Instant {
        let age = now.saturating_duration_since(self.begun);
        let intervals = age.as_millis() / CREATE_AGE_INTERVAL.as_millis().max(1) + 1;
        let intervals = u32::try_from(intervals).unwrap_or(u32::MAX);
        self.begun + CREATE_AGE_INTERVAL.saturating_mul(intervals)
    }

    /// Adds the shown text of each new instance to `infos`.
    fn add_infos(
        &self,
        infos: &mut BTreeMap<InstanceName, String>,
        away: &BTreeMap<Name, Instant>,
        now: Instant,
    ) {
        let age = now.saturating_duration_since(self.begun);
        let targets = self.awaited_targets(away, now);
        for (added, stage) in self.waiting() {
            let instance = added.instance.clone();
            let text = match stage {
                Some(stage) if !stage.is_ready() => stage.info(age),
                _ => targets.info(&instance.workload),
            };
            infos.insert(instance, text);
        }
    }

    /// The targets that are shown while the update waits.
    fn awaited_targets<'o>(
        &'o self,
        away: &'o BTreeMap<Name, Instant>,
        now: Instant,
    ) -> AwaitedTargets<'o> {
        let mut targets = AwaitedTargets {
            workloads: Vec::new(),
            agent: None,
        };
        for instance in self.awaited(away, now) {
            let agent = &instance.agent;
            if away.contains_key(agent) {
                if targets.agent.is_none_or(|first| agent < first) {
                    targets.agent = Some(agent);
                }
            } else if targets.workloads.len() < 2 {
                targets.workloads.push(&instance.workload);
            }
        }
        targets
    }
}

impl AwaitedTargets<'_> {
    /// The shown text of an instance of `workload` that is ready itself.
    fn info(&self, workload: &Name) -> String {
        for other in &self.workloads {
            if *other != workload {
                return format!("update: waits for {other}");
            }
        }
        match self.agent {
            Some(agent) => format!("update: waits for agent {agent}"),
            None => "update: is staged".to_owned(),
        }
    }
}

impl Rollouts {
    fn staging(&self) -> impl Iterator<Item = &OpenUpdate> + Clone {
        self.open.values().filter(|open| open.is_staging())
    }

    /// The consequence when an instance with this block fails.
    pub(crate) fn on_failure_of(&self, block: Option<&UpdateBlock>) -> OnFailure {
        match block {
            Some(block) => block.on_failure.unwrap_or(self.on_failure),
            None => self.on_failure,
        }
    }

    /// Warns once about an agent that has to prepare instances and cannot do so.
    pub(crate) fn warn_of_agent(&mut self, agent: &Name) {
        if self.warned.insert(agent.clone()) {
            log::warn!(
                "Agent '{agent}' cannot prepare instances: updates of its workloads are switched at once, and \
                 'update.when' has no effect there."
            );
        }
    }

    /// All instances that an agent has to prepare.
    fn list_of(&self, agent: &str) -> Vec<AddedWorkload> {
        let mut list = Vec::new();
        for open in self.staging() {
            for (added, stage) in open.waiting() {
                if stage.is_some() && *added.instance.agent == *agent {
                    list.push(added.clone());
                }
            }
        }
        list
    }

    /// The preparation of a new instance, if its block has one. An instance that will not start in
    /// the current mode is not prepared, but its condition applies.
    pub(super) fn stage_of(
        &self,
        new: Option<&AddedWorkload>,
        updates: &Updates,
    ) -> Option<InstanceStaging> {
        let added = new?;
        if added.instance.agent.is_empty() {
            return None; // No agent could prepare it.
        }
        let block = block_of(&added.workload)?;
        let level = block.stage;
        let has_condition = block.when.is_some();
        let present = updates.workloads().in_present_mode(added);
        let will_start = !present.instance.agent.is_empty();
        let is_prepared = level != PrepareLevel::None && will_start;
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

    /// Drops the stage of each workload whose preparation an accepted update does not wait for. It
    /// waits for a connected agent that can prepare. It waits for a disconnected one only if the
    /// workload has a condition: the update must not be switched before it is met, and only the
    /// agent can tell.
    pub(super) fn drop_stages_not_awaited(&mut self, open: &mut OpenUpdate, now: Instant) {
        for AffectedWorkload { new, stage, .. } in open.record.change_set.workloads.values_mut() {
            let (Some(new), Some(staging)) = (new, &stage) else {
                continue; // It is not staged.
            };
            let agent = &new.agent;
            match self.agents.get(agent) {
                Some(connected) if connected.prepares => {}
                Some(_) => {
                    self.warn_of_agent(agent);
                    *stage = None;
                }
                None if staging.has_condition => {
                    self.away.entry(agent.clone()).or_insert(now);
                }
                None => *stage = None,
            }
        }
    }

    /// Sends each agent the list of the instances that it has to prepare, unless it was sent the
    /// same list before.
    pub(crate) fn send_lists(&mut self, effects: &mut Effects) {
        // First, the agents that have a list now, or had one before.
        let mut names = BTreeSet::new();
        for (name, agent) in &self.agents {
            if !agent.to_prepare.is_empty() {
                names.insert(name.clone());
            }
        }
        for open in self.staging() {
            for (instance, _) in open.staged() {
                names.insert(instance.agent.clone());
            }
        }
        // Then, their lists.
        for name in names {
            self.send_list(&name, effects);
        }
    }

    /// Sends one agent its list, if that has changed. A connection begins with an empty list.
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

    /// Notifies agents when the first update of their workloads opens, and when the last one ends.
    /// Agents that remove images keep them meanwhile, for a rollback.
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

    /// Takes reports of an agent about its preparation of instances.
    pub(crate) fn prepared_reported(&mut self, agent: &Name, reports: &[PreparedInstance]) {
        for report in reports {
            if report.instance.agent != *agent {
                continue; // An agent may only report its own instances.
            }
            for open in self.open.values_mut() {
                self.is_outdated |= open.report(report);
            }
        }
    }

    // ---------------------------------------------------------------- shown texts

    /// Returns the shown texts of all staged instances. `None` if they were shown shortly before
    /// and only reports have changed them (`is_due` is false): then they are shown later.
    pub(crate) fn take_infos(
        &mut self,
        is_due: bool,
        now: Instant,
    ) -> Option<BTreeMap<InstanceName, String>> {
        if !is_due
            && let Some(until) = self.shown_until
            && until > now
        {
            let planned = self.show_at.unwrap_or(until);
            self.show_at = Some(planned.min(until));
            return None;
        }
        self.forget_agents_without_staged();
        let mut infos = BTreeMap::new();
        for open in self.staging() {
            open.add_infos(&mut infos, &self.away, now);
        }
        self.show_at = self.next_show(now);
        self.shown_until = if infos.len() >= MANY {
            Some(now + MANY_INTERVAL)
        } else {
            None
        };
        Some(infos)
    }

    /// Forgets disconnected agents that have nothing to prepare.
    fn forget_agents_without_staged(&mut self) {
        let mut preparing: BTreeSet<&Name> = BTreeSet::new();
        for open in self.open.values() {
            for (instance, _) in open.staged() {
                preparing.insert(&instance.agent);
            }
        }
        self.away.retain(|agent, _| preparing.contains(agent));
    }

    /// When staged instances are shown next in any case: when an agent is given up, or a shown age
    /// grows.
    fn next_show(&self, now: Instant) -> Option<Instant> {
        let mut times = Vec::new();
        for since in self.away.values() {
            let given_up = *since + UPDATE_AGENT_AWAY;
            if given_up > now {
                times.push(given_up);
            }
        }
        for open in self.staging() {
            if open.staged().any(|(_, stage)| stage.report.is_none()) {
                times.push(open.next_age(now));
            }
        }
        times.into_iter().min()
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
