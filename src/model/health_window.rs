//! The health window of one guarded update: its healthy, pending and failed instances.
//!
//! A reported state costs one lookup for each open update.
//!
//! Thread: none, a plain value of `server` and of `main` of `ank`. Time is passed in.

use super::execution_state::{ExecutionState, Phase};
use super::guarded_update::{AGENT_PREFIX, CANNOT_BE_STAGED, LATE};
use super::lifecycle::{OnFailure, Terms};
use super::names::{InstanceName, Name};
use super::reason::Reason;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// An instance at the beginning of its health window.
#[derive(Debug, Clone)]
pub struct Member {
    pub instance: InstanceName,
    /// How long it must be healthy, and its deadline.
    pub terms: Terms,
    /// Reaction to its failure.
    pub on_failure: OnFailure,
    /// Whether its restart policy never restarts it, so that its first failure is final.
    pub is_never_restarted: bool,
    /// Whether it or its predecessor was running. If so, the update waits for it even while a
    /// condition blocks it.
    pub ran: bool,
    /// Its present state, if that is known to be its own and not a late one of an old instance of
    /// the same name.
    pub state: Option<ExecutionState>,
    /// Whether it replaces an instance of the same name, whose late states must be ignored.
    pub keeps_name: bool,
    /// Whether its agent is connected.
    pub is_present: bool,
}

/// Why an instance has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureCause {
    /// Its state is a failure, or agent or server were lost too often.
    State,
    /// It was not healthy within this time.
    Late(Duration),
    /// It could not be staged.
    NotStaged,
}

/// The failure of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub workload: Name,
    pub cause: FailureCause,
    /// Details of the cause for people: the state of the instance, for example.
    pub details: String,
    pub on_failure: OnFailure,
}

impl Failure {
    /// The cause for people, with these details.
    pub fn text_with(&self, details: &str) -> String {
        match self.cause {
            FailureCause::State => details.to_owned(),
            FailureCause::Late(deadline) => {
                format!("{LATE} {} s: {details}", deadline.as_secs_f64())
            }
            FailureCause::NotStaged => format!("{CANNOT_BE_STAGED}{details}"),
        }
    }

    /// The cause for people.
    pub fn text(&self) -> String {
        self.text_with(&self.details)
    }
}

/// The status of an instance in its health window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Not healthy yet; its clock runs.
    Waits,
    Healthy,
    /// Its agent is not connected.
    Away,
    /// It has failed, and the update is kept anyway.
    Kept,
    /// A condition blocks it, or it starts only after a failure.
    MayNotRun,
}

#[derive(Debug)]
struct MemberStatus {
    member: Member,
    /// Whether reported states are its own.
    counts: bool,
    /// Its last own state.
    state: ExecutionState,
    /// Whether it was started within the health window.
    is_started: bool,
    healthy_since: Option<Instant>,
    has_failed: bool,
    standing: Standing,
    /// Time on its clock when that was stopped last.
    spent: Duration,
    /// Start of its clock; `None` while that is stopped.
    runs_since: Option<Instant>,
}

impl MemberStatus {
    fn is_of(&self, agent: &str) -> bool {
        *self.member.instance.agent == *agent
    }

    /// Returns whether a condition blocks it, so that the update does not wait for it. A workload
    /// that was running is awaited anyway, unless nothing should wait for its start.
    fn may_not_run(&self) -> bool {
        if self.state.needs_no_start() {
            return true;
        }
        let is_blocked =
            self.state.phase == Phase::PendingWaitingToStart && self.state.reason.is_block();
        is_blocked && !self.member.ran
    }

    /// Its status at this moment: the first below that applies.
    fn standing(&self, now: Instant) -> Standing {
        if self.has_failed {
            Standing::Kept
        } else if !self.member.is_present {
            Standing::Away
        } else if self.may_not_run() {
            Standing::MayNotRun
        } else if self.is_healthy(now) {
            Standing::Healthy
        } else {
            Standing::Waits
        }
    }

    /// Takes a reported state of this instance. Notes whether it was started, and since when it is
    /// healthy.
    fn take(&mut self, state: &ExecutionState, now: Instant) {
        let before = std::mem::replace(&mut self.state, state.clone());
        self.is_started |= match state.phase {
            Phase::PendingStarting
            | Phase::PendingStartingFailed
            | Phase::Running
            | Phase::Succeeded => true,
            phase => phase.state() == "Failed",
        };
        match state.phase {
            Phase::Running | Phase::Succeeded => _ = self.healthy_since.get_or_insert(now),
            // A restart ends the health of an instance that was running, but not after a success.
            Phase::PendingStarting if before.phase != Phase::Running => {}
            _ => self.healthy_since = None,
        }
    }

    /// Updates the standing and the clock. Returns whether the instance has become healthy.
    fn refresh(&mut self, now: Instant) -> bool {
        let standing = self.standing(now);
        if standing == Standing::Waits {
            self.runs_since.get_or_insert(now);
        } else if let Some(since) = self.runs_since.take() {
            self.spent += now.saturating_duration_since(since);
        }
        let before = std::mem::replace(&mut self.standing, standing);
        if standing != Standing::Healthy {
            return false;
        }
        self.spent = Duration::ZERO; // It has its whole deadline if it becomes unhealthy later.
        before != Standing::Healthy
    }

    /// The time on its clock, which counts towards its deadline.
    fn clock(&self, now: Instant) -> Duration {
        match self.runs_since {
            Some(since) => self.spent + now.saturating_duration_since(since),
            None => self.spent,
        }
    }

    fn healthy_at(&self) -> Option<Instant> {
        let since = self.healthy_since?;
        Some(since + self.member.terms.healthy)
    }

    fn is_healthy(&self, now: Instant) -> bool {
        self.healthy_at().is_some_and(|at| at <= now)
    }

    fn deadline_at(&self) -> Option<Instant> {
        let since = self.runs_since?;
        Some(since + self.member.terms.deadline.saturating_sub(self.spent))
    }

    /// When its status changes without a report; `None` unless it waits.
    fn alarm(&self) -> Option<Instant> {
        if self.standing != Standing::Waits {
            return None;
        }
        earliest(self.healthy_at(), self.deadline_at())
    }

    /// Returns whether its state alone is a final failure.
    fn is_failure(&self) -> bool {
        match self.state.phase {
            Phase::PendingStartingFailed => true,
            Phase::FailedExecFailed => {
                self.member.is_never_restarted || self.state.reason == Reason::NoMoreRestarts
            }
            _ => false,
        }
    }

    /// Marks the instance as failed. Returns `None` if it was marked already.
    fn fail(&mut self, cause: FailureCause, details: String) -> Option<Failure> {
        if self.has_failed {
            return None;
        }
        self.has_failed = true;
        Some(Failure {
            workload: self.member.instance.workload.clone(),
            cause,
            details,
            on_failure: self.member.on_failure,
        })
    }
}

/// Returns the earlier of two times, where `None` is never.
fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

/// All instances of one update, by workload.
// [impl->swdd~server-judges-guarded-updates~1]
#[derive(Debug, Default)]
pub struct HealthWindow {
    members: BTreeMap<Name, MemberStatus>,
    /// Times on the clocks of former instances that have no successor yet.
    clocks: BTreeMap<Name, Duration>,
    /// When the first status changes without a report, or earlier.
    due: Option<Instant>,
    /// Whether an instance has become healthy since the last [`Self::take_recovery`].
    has_improved: bool,
}

impl HealthWindow {
    /// Adds an instance. It replaces an earlier one of the same workload and continues its clock.
    pub fn add(&mut self, member: Member, now: Instant) {
        let name = member.instance.workload.clone();
        // An earlier instance is still a member, or its clock was kept when it ended.
        let kept = self.clocks.remove(&name).unwrap_or_default();
        let spent = match self.members.remove(&name) {
            Some(status) => status.clock(now),
            None => kept,
        };
        let mut status = MemberStatus {
            counts: !member.keeps_name,
            state: ExecutionState::plain(Phase::PendingInitial),
            is_started: false,
            healthy_since: None,
            has_failed: false,
            standing: Standing::MayNotRun,
            spent,
            runs_since: None,
            member,
        };
        if let Some(state) = status.member.state.take() {
            status.take(&state, now);
        }
        self.members.insert(name.clone(), status);
        self.refresh(&name, now);
    }

    /// Merges the health window of another update. For an instance of both, the stricter reaction
    /// and the earlier deadline apply.
    pub fn merge(&mut self, other: Self) {
        for (name, mut status) in other.members {
            if let Some(known) = self.members.remove(&name) {
                let member = &mut status.member;
                member.on_failure = member.on_failure.min(known.member.on_failure);
                if let (Some(at), Some(later)) = (known.deadline_at(), status.deadline_at())
                    && at < later
                {
                    status.spent = known.spent;
                    status.runs_since = known.runs_since;
                }
            }
            self.members.insert(name, status);
        }
        self.due = earliest(self.due, other.due);
        // Of two clocks, the one that has run longer has the earlier deadline.
        for (name, clock) in other.clocks {
            let known = self.clocks.entry(name).or_default();
            *known = clock.max(*known);
        }
    }

    /// Removes a workload from the update.
    pub fn remove(&mut self, name: &Name) {
        self.members.remove(name);
        self.clocks.remove(name);
    }

    /// Removes an instance that is no longer active. A successor would continue its clock.
    pub fn end(&mut self, name: &Name, now: Instant) {
        if let Some(status) = self.members.remove(name) {
            self.clocks.insert(name.clone(), status.clock(now));
        }
    }

    /// The instance of a workload.
    pub fn instance(&self, name: &str) -> Option<&InstanceName> {
        let status = self.members.get(name)?;
        Some(&status.member.instance)
    }

    /// Returns whether a failure of this instance rolls the update back.
    pub fn would_undo(&self, instance: &InstanceName) -> bool {
        let Some(MemberStatus { member, .. }) = self.members.get(&instance.workload) else {
            return false;
        };
        member.instance == *instance && member.on_failure == OnFailure::Rollback
    }

    fn refresh(&mut self, name: &Name, now: Instant) {
        let Some(status) = self.members.get_mut(name) else {
            return;
        };
        self.has_improved |= status.refresh(now);
        self.due = earliest(status.alarm(), self.due);
    }

    /// Changes all instances that `is_affected` selects, and updates their status.
    fn change(
        &mut self,
        now: Instant,
        is_affected: impl Fn(&MemberStatus) -> bool,
        mut change: impl FnMut(&mut MemberStatus),
    ) {
        for status in self.members.values_mut() {
            if is_affected(status) {
                change(status);
                self.has_improved |= status.refresh(now);
                self.due = earliest(status.alarm(), self.due);
            }
        }
    }

    /// Takes a reported state of an instance. Returns its failure if it is the first one.
    pub fn report(
        &mut self,
        instance: &InstanceName,
        state: &ExecutionState,
        now: Instant,
    ) -> Option<Failure> {
        let status = self.members.get_mut(&instance.workload)?;
        if status.member.instance != *instance {
            return None;
        }
        let mut failure = None;
        if state.phase == Phase::Removed {
            status.counts = true; // The next states are those of the new instance.
            status.healthy_since = None;
        } else if status.counts {
            status.take(state, now);
            if status.is_failure() {
                failure = status.fail(FailureCause::State, status.state.to_string());
            }
        }
        self.refresh(&instance.workload, now);
        failure
    }

    /// Notes that an agent has connected: its next states are about the instances that the server
    /// sends it now. Returns whether the update has an instance of it.
    pub fn agent_came(&mut self, agent: &str, now: Instant) -> bool {
        let mut is_affected = false;
        self.change(
            now,
            |status| status.is_of(agent),
            |status| {
                status.counts = true;
                status.member.is_present = true;
                is_affected = true;
            },
        );
        is_affected
    }

    /// Notes the loss of an agent. Returns whether it had started an instance of the update.
    pub fn agent_left(&mut self, agent: &str, now: Instant) -> bool {
        let mut is_loss = false;
        self.change(
            now,
            |status| status.is_of(agent),
            |status| {
                is_loss |= status.is_started;
                status.member.is_present = false;
                status.state = ExecutionState::plain(Phase::AgentDisconnected);
                status.healthy_since = None;
            },
        );
        is_loss
    }

    /// Fails all instances that may run and are not healthy: the update may be the reason of too
    /// many losses.
    pub fn fail_by_losses(&mut self, why: &str, now: Instant) -> Vec<Failure> {
        let mut failures = Vec::new();
        self.change(
            now,
            |status| !matches!(status.standing, Standing::Healthy | Standing::MayNotRun),
            |status| failures.extend(status.fail(FailureCause::State, why.to_owned())),
        );
        failures
    }

    /// When to call [`Self::tick`]; may be too early.
    pub fn due(&self) -> Option<Instant> {
        if self.is_settled() { None } else { self.due }
    }

    /// When the first status changes without a report. Visits each instance.
    pub fn next_change(&self) -> Option<Instant> {
        self.members.values().filter_map(MemberStatus::alarm).min()
    }

    /// Updates all status if one is due. Returns the instances that missed their deadline.
    pub fn tick(&mut self, now: Instant) -> Vec<Failure> {
        let mut failures = Vec::new();
        if self.due.is_none_or(|at| at > now) {
            return failures;
        }
        self.due = None;
        self.change(
            now,
            |_| true,
            |status| {
                if status.alarm().is_some_and(|at| at <= now) && !status.is_healthy(now) {
                    let cause = FailureCause::Late(status.member.terms.deadline);
                    failures.extend(status.fail(cause, status.state.to_string()));
                }
            },
        );
        failures
    }

    fn has(&self, standing: Standing) -> bool {
        self.members
            .values()
            .any(|status| status.standing == standing)
    }

    /// Returns whether no instance of a connected agent is pending.
    pub fn is_settled(&self) -> bool {
        !self.has(Standing::Waits)
    }

    /// Returns whether no instance is pending and no agent is missing.
    pub fn is_over(&self) -> bool {
        self.is_settled() && !self.has(Standing::Away)
    }

    /// Takes the mark that an instance has become healthy. Returns whether it was set and no
    /// instance of a connected agent is pending.
    pub fn take_recovery(&mut self) -> bool {
        std::mem::take(&mut self.has_improved) && self.is_settled()
    }

    /// The pending workloads, then the missing agents.
    pub fn waits_for(&self) -> Vec<String> {
        let mut pending = Vec::new();
        let mut agents = BTreeSet::new();
        for (name, status) in &self.members {
            match status.standing {
                Standing::Waits => pending.push(name.to_string()),
                Standing::Away => _ = agents.insert(&status.member.instance.agent),
                _ => {}
            }
        }
        for agent in agents {
            pending.push(format!("{AGENT_PREFIX}{agent}"));
        }
        pending
    }
}

#[cfg(test)]
mod tests;
