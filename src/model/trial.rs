//! The judging of one update: which of its instances are healthy, which are waited for, and which
//! have failed.
//!
//! Each state of an instance costs one search among the judged ones of each open update; nothing is
//! done for the others.
//!
//! Thread: none, a plain value; `server` judges with it, and `main` of `ank`. Time is passed in.

use super::execution_state::{ExecutionState, Phase};
use super::guarded_update::AGENT_PREFIX;
use super::lifecycle::{OnFailure, Terms};
use super::names::{InstanceName, Name};
use super::reason::Reason;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Begins the reason of an instance that has missed its deadline.
pub const LATE: &str = "not healthy within";

/// What is known of an instance when its judging begins.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Which.
    pub instance: InstanceName,
    /// When it is healthy, and until when it has to be.
    pub terms: Terms,
    /// What follows when it fails.
    pub on_failure: OnFailure,
    /// Its restart policy does not start it again, so its first failure is its last one.
    pub is_never_restarted: bool,
    /// What it replaces was running, or it was itself: it is waited for even while a condition does
    /// not let it run.
    pub ran: bool,
    /// Its present state counts already; otherwise states may be late ones of an old instance of
    /// the same name.
    pub state: Option<ExecutionState>,
    /// It replaces an instance of the same name, whose late states must not count.
    pub keeps_name: bool,
    /// Its agent is connected.
    pub is_present: bool,
}

/// An instance has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its workload.
    pub workload: Name,
    /// Why, for people.
    pub why: String,
    /// What follows.
    pub on_failure: OnFailure,
}

/// How an instance stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It has to become healthy; its clock runs.
    Waits,
    /// It is healthy.
    Healthy,
    /// Its agent is away.
    Away,
    /// It has failed and the update is kept all the same.
    Kept,
    /// It may not run.
    MayNotRun,
}

#[derive(Debug)]
struct Judged {
    candidate: Candidate,
    /// Whether states count.
    counts: bool,
    /// The last that counted.
    state: ExecutionState,
    /// It was started since the judging began.
    is_started: bool,
    healthy_since: Option<Instant>,
    has_failed: bool,
    standing: Standing,
    /// What its clock showed when it was stopped last.
    spent: Duration,
    runs_since: Option<Instant>,
}

impl Judged {
    fn is_of(&self, agent: &str) -> bool {
        *self.candidate.instance.agent == *agent
    }

    fn may_not_run(&self) -> bool {
        if self.state.phase != Phase::PendingWaitingToStart || !self.state.reason.is_block() {
            return false;
        }
        !self.candidate.ran || self.state.is_inactive()
    }

    fn standing(&self, now: Instant) -> Standing {
        match () {
            () if self.has_failed => Standing::Kept,
            () if !self.candidate.is_present => Standing::Away,
            () if self.may_not_run() => Standing::MayNotRun,
            () if self.is_healthy(now) => Standing::Healthy,
            () => Standing::Waits,
        }
    }

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
            // After success it is only started again.
            Phase::PendingStarting if before.phase != Phase::Running => {}
            _ => self.healthy_since = None,
        }
    }

    /// Sets what follows from what is known of it, by how it stands. Returns whether it has become
    /// healthy.
    fn refresh(&mut self, now: Instant) -> bool {
        let standing = self.standing(now);
        if standing == Standing::Waits {
            self.runs_since.get_or_insert(now);
        } else if let Some(since) = self.runs_since.take() {
            self.spent += now.saturating_duration_since(since);
        }
        let before = std::mem::replace(&mut self.standing, standing);
        if standing == Standing::Healthy {
            self.spent = Duration::ZERO;
        }
        standing == Standing::Healthy && before != standing
    }

    fn clock(&self, now: Instant) -> Duration {
        self.spent
            + self
                .runs_since
                .map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    fn healthy_at(&self) -> Option<Instant> {
        self.healthy_since
            .map(|since| since + self.candidate.terms.healthy)
    }

    fn is_healthy(&self, now: Instant) -> bool {
        self.healthy_at().is_some_and(|at| at <= now)
    }

    fn deadline_at(&self) -> Option<Instant> {
        self.runs_since
            .map(|since| since + self.candidate.terms.deadline.saturating_sub(self.spent))
    }

    /// When something changes by itself: of each that waits, and of no other.
    fn alarm(&self) -> Option<Instant> {
        let alarm = self
            .healthy_at()
            .into_iter()
            .chain(self.deadline_at())
            .min();
        alarm.filter(|_| self.standing == Standing::Waits)
    }

    /// Why it has failed, by its state alone.
    fn failure(&self) -> Option<String> {
        let has_failed = match self.state.phase {
            Phase::PendingStartingFailed => true,
            Phase::FailedExecFailed => {
                self.candidate.is_never_restarted || self.state.reason == Reason::NoMoreRestarts
            }
            _ => false,
        };
        has_failed.then(|| self.state.to_string())
    }

    /// It has failed. `None` when that was known.
    fn fail(&mut self, why: String) -> Option<Failure> {
        let Candidate {
            instance,
            on_failure,
            ..
        } = &self.candidate;
        let failure = Failure {
            workload: instance.workload.clone(),
            why,
            on_failure: *on_failure,
        };
        (!std::mem::replace(&mut self.has_failed, true)).then_some(failure)
    }
}

/// All judged instances of one update, by workload.
// [impl->swdd~server-judges-guarded-updates~1]
#[derive(Debug, Default)]
pub struct Trial {
    judged: BTreeMap<Name, Judged>,
    /// What the clocks of those showed that are not judged at present.
    clocks: BTreeMap<Name, Duration>,
    /// When the first of those that wait changes by itself, or before.
    due: Option<Instant>,
    /// Whether one has become healthy since that was asked last.
    has_improved: bool,
}

impl Trial {
    /// Judges an instance. One of the same workload that was judged before is forgotten, but its
    /// clock goes on.
    pub fn judge(&mut self, candidate: Candidate, now: Instant) {
        let name = candidate.instance.workload.clone();
        let earlier = self.clocks.remove(&name);
        let spent = self
            .judged
            .remove(&name)
            .map(|judged| judged.clock(now))
            .or(earlier)
            .unwrap_or_default();
        let mut judged = Judged {
            counts: !candidate.keeps_name,
            state: ExecutionState::plain(Phase::PendingInitial),
            is_started: false,
            healthy_since: None,
            has_failed: false,
            standing: Standing::MayNotRun,
            spent,
            runs_since: None,
            candidate,
        };
        if let Some(state) = judged.candidate.state.take() {
            judged.take(&state, now);
        }
        self.judged.insert(name.clone(), judged);
        self.refresh(&name, now);
    }

    /// Takes over what another update judges. Of what both judge, the strictest and the earliest
    /// deadline count.
    pub fn absorb(&mut self, other: Self) {
        for (name, mut judged) in other.judged {
            if let Some(known) = self.judged.remove(&name) {
                let of = &mut judged.candidate;
                of.on_failure = of.on_failure.min(known.candidate.on_failure);
                if known
                    .deadline_at()
                    .is_some_and(|at| judged.deadline_at().is_some_and(|other| at < other))
                {
                    (judged.spent, judged.runs_since) = (known.spent, known.runs_since);
                }
            }
            self.judged.insert(name, judged);
        }
        self.due = self.due.into_iter().chain(other.due).min();
        for (name, clock) in other.clocks {
            let known = self.clocks.entry(name).or_default();
            *known = clock.max(*known);
        }
    }

    /// A workload is not judged any more.
    pub fn remove(&mut self, name: &Name) {
        (_, _) = (self.judged.remove(name), self.clocks.remove(name));
    }

    /// The instance of a workload is not in force any more. The clock of its successor, if there is
    /// one, goes on from there.
    pub fn end(&mut self, name: &Name, now: Instant) {
        if let Some(judged) = self.judged.remove(name) {
            self.clocks.insert(name.clone(), judged.clock(now));
        }
    }

    /// The judged instance of a workload.
    pub fn instance(&self, name: &str) -> Option<&InstanceName> {
        self.judged
            .get(name)
            .map(|judged| &judged.candidate.instance)
    }

    /// Whether a failure of this instance is one of the update, which is undone then.
    pub fn would_undo(&self, instance: &InstanceName) -> bool {
        self.judged
            .get(&instance.workload)
            .is_some_and(|Judged { candidate, .. }| {
                candidate.instance == *instance && candidate.on_failure == OnFailure::Rollback
            })
    }

    fn refresh(&mut self, name: &Name, now: Instant) {
        let Some(judged) = self.judged.get_mut(name) else {
            return;
        };
        self.has_improved |= judged.refresh(now);
        self.due = judged.alarm().into_iter().chain(self.due).min();
    }

    /// Changes those that are one, and sets what follows from what is known of them then.
    fn change(
        &mut self,
        now: Instant,
        is_one: impl Fn(&Judged) -> bool,
        mut change: impl FnMut(&mut Judged),
    ) {
        for judged in self.judged.values_mut().filter(|judged| is_one(judged)) {
            change(judged);
            self.has_improved |= judged.refresh(now);
            self.due = judged.alarm().into_iter().chain(self.due).min();
        }
    }

    /// A state of an instance was reported.
    pub fn report(
        &mut self,
        instance: &InstanceName,
        state: &ExecutionState,
        now: Instant,
    ) -> Option<Failure> {
        let judged = self
            .judged
            .get_mut(&instance.workload)
            .filter(|judged| judged.candidate.instance == *instance)?;
        let failure = if state.phase == Phase::Removed {
            judged.counts = true; // What comes now is of the new one.
            judged.healthy_since = None;
            None
        } else if judged.counts {
            judged.take(state, now);
            judged.failure().and_then(|why| judged.fail(why))
        } else {
            None
        };
        self.refresh(&instance.workload, now);
        failure
    }

    /// An agent has connected; what it reports from now on is of the instances that its hello
    /// names. Returns whether one of them is judged.
    pub fn agent_came(&mut self, agent: &str, now: Instant) -> bool {
        let mut is_judged = false;
        self.change(
            now,
            |judged| judged.is_of(agent),
            |judged| {
                (judged.counts, judged.candidate.is_present) = (true, true);
                is_judged = true;
            },
        );
        is_judged
    }

    /// An agent is lost. Returns whether a judged instance of it had been started.
    pub fn agent_left(&mut self, agent: &str, now: Instant) -> bool {
        let mut is_loss = false;
        self.change(
            now,
            |judged| judged.is_of(agent),
            |judged| {
                is_loss |= judged.is_started;
                judged.candidate.is_present = false;
                judged.state = ExecutionState::plain(Phase::AgentDisconnected);
                judged.healthy_since = None;
            },
        );
        is_loss
    }

    /// All that are not healthy fail: too often something was lost, which may be their doing.
    pub fn fail_by_losses(&mut self, why: &str, now: Instant) -> Vec<Failure> {
        let mut failures = Vec::new();
        let is_concerned =
            |judged: &Judged| !matches!(judged.standing, Standing::Healthy | Standing::MayNotRun);
        self.change(now, is_concerned, |judged| {
            failures.extend(judged.fail(why.to_owned()))
        });
        failures
    }

    /// When [`Self::tick`] has something to do, or before.
    pub fn due(&self) -> Option<Instant> {
        self.due.filter(|_| !self.is_settled())
    }

    /// When the first of those that wait changes by itself: looks at each of them.
    pub fn next_change(&self) -> Option<Instant> {
        self.judged.values().filter_map(Judged::alarm).min()
    }

    /// Does what is due. Returns those that have missed their deadline.
    pub fn tick(&mut self, now: Instant) -> Vec<Failure> {
        let mut failures = Vec::new();
        if self.due.is_none_or(|at| at > now) {
            return failures;
        }
        self.due = None;
        self.change(
            now,
            |_| true,
            |judged| {
                if judged.alarm().is_some_and(|at| at <= now) && !judged.is_healthy(now) {
                    let seconds = judged.candidate.terms.deadline.as_secs_f64();
                    let why = format!("{LATE} {seconds} s: {}", judged.state);
                    failures.extend(judged.fail(why));
                }
            },
        );
        failures
    }

    fn has(&self, standing: Standing) -> bool {
        self.judged
            .values()
            .any(|judged| judged.standing == standing)
    }

    /// Whether nobody who is there is waited for.
    pub fn is_settled(&self) -> bool {
        !self.has(Standing::Waits)
    }

    /// Whether nobody is waited for at all.
    pub fn is_over(&self) -> bool {
        self.is_settled() && !self.has(Standing::Away)
    }

    /// Whether one has become healthy since the last call, and all others that are there are.
    pub fn has_recovered(&mut self) -> bool {
        std::mem::take(&mut self.has_improved) && self.is_settled()
    }

    /// What is waited for: workloads, and agents that are away.
    pub fn waits_for(&self) -> Vec<String> {
        let standing = |standing| {
            self.judged
                .iter()
                .filter(move |(_, judged)| judged.standing == standing)
        };
        let workloads = standing(Standing::Waits).map(|(name, _)| name.to_string());
        let agents = standing(Standing::Away).map(|(_, judged)| &judged.candidate.instance.agent);
        let agents: BTreeSet<&Name> = agents.collect();
        workloads
            .chain(
                agents
                    .into_iter()
                    .map(|agent| format!("{AGENT_PREFIX}{agent}")),
            )
            .collect()
    }
}

#[cfg(test)]
mod tests;
