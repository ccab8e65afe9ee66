//! Waits until the workloads of an accepted update have reached their states, and shows the states meanwhile.
//!
//! Thread: `main`. Owns: which instances are outstanding. Takes: broadcast states. Gives: frames, and how it ended.
//! Without a terminal a frame is written only when a state changed.

use super::error::CliError;
use super::live::LiveFrames;
use super::output::Output;
use super::reasons::Reasons;
use super::rows::{self, Row};
use super::session::{Accepted, ServerLink};
use super::table::{Table, TooWide, shortened};
use crate::limits::{FRAME_LINES_AT_ONCE, FRAME_PAUSE_PER_LINE, SPINNER_INTERVAL};
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::names::{InstanceName, Name};
use crate::model::node::Node;
use crate::platform::clock::Clock;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

pub mod trial;

const SPINNER: [char; 4] = ['|', '/', '-', '\\'];

/// How waiting ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitEnd {
    /// The goal was reached.
    Reached,
    /// The time limit passed.
    TimedOut,
}

/// What a wait is for.
pub trait Goal<L> {
    /// Applies states that were reported at `now`; `wait` has them already.
    fn on_states(&mut self, wait: &WaitState, states: &[WorkloadState], now: Instant);

    /// Whether it is reached at `now`.
    ///
    /// # Errors
    /// The server did not respond, or the connection ended.
    fn check(&mut self, wait: &mut WaitState, link: &mut L, now: Instant) -> Result<Progress, CliError>;
}

/// Whether a [`Goal`] is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It is.
    Reached,
    /// It is not.
    Open {
        /// When to check again although nothing was reported.
        again: Option<Instant>,
    },
}

/// The goal that nothing is outstanding.
#[derive(Debug, Clone, Copy)]
pub struct Settled;

impl<L> Goal<L> for Settled {
    fn on_states(&mut self, _: &WaitState, _: &[WorkloadState], _: Instant) {}

    fn check(&mut self, wait: &mut WaitState, _: &mut L, _: Instant) -> Result<Progress, CliError> {
        Ok(if wait.is_settled() { Progress::Reached } else { Progress::Open { again: None } })
    }
}

/// The instances of one update and their progress.
#[derive(Debug)]
pub struct WaitState {
    added: BTreeSet<InstanceName>,
    /// Added instances that are outstanding.
    starting: BTreeSet<InstanceName>,
    /// Deleted instances that are outstanding, and added ones of which an older one of the same name has to end first.
    ending: BTreeSet<InstanceName>,
    /// Instances that have started and must prove that they work.
    on_trial: BTreeSet<InstanceName>,
    /// Agents that were connected after the update was accepted; instances of others are not waited for.
    connected: BTreeSet<Name>,
    rows: BTreeMap<InstanceName, Row>,
    /// The last reported states.
    reported: BTreeMap<InstanceName, ExecutionState>,
    /// What the instances wait for.
    reasons: Reasons,
}

impl WaitState {
    /// Begins with the complete states before the update and after it was accepted.
    #[must_use]
    pub fn new(accepted: &Accepted, before: &Node, now: &Node) -> Self {
        let (remembered, mut current) = (rows::rows(before), rows::rows(now));
        let reasons = Reasons::after_update(before, now, &current);
        let there: BTreeSet<InstanceName> = current.keys().cloned().collect();
        let mut rows = BTreeMap::new();
        for instance in accepted.added.iter().chain(&accepted.deleted) {
            let before = remembered.get(instance);
            let mut row = current.remove(instance).or_else(|| before.cloned()).unwrap_or_default();
            if row.state.is_empty() {
                row.state = Phase::PendingInitial.to_string(); // The server's state for new instances.
            }
            if row.runtime.is_empty() {
                row.runtime = before.map(|row| row.runtime.clone()).unwrap_or_default();
            }
            rows.entry(instance.clone()).or_insert(row);
        }
        let mut state = Self {
            added: accepted.added.iter().cloned().collect(),
            starting: accepted.added.iter().cloned().collect(),
            ending: BTreeSet::new(),
            on_trial: BTreeSet::new(),
            connected: rows::entries(now.get("agents")).map(|(name, _)| name.into()).collect(),
            rows,
            reported: BTreeMap::new(),
            reasons,
        };
        // Whether the update replaces it, or an earlier one stops it still: one end is due of an older one of the same name.
        // One that had not begun to start has nothing to end.
        let earlier: BTreeMap<_, _> = accepted.earlier.iter().map(|it| (&it.instance, it.state.phase)).collect();
        let waiting = [Phase::PendingInitial, Phase::PendingWaitingToStart, Phase::Removed, Phase::AgentDisconnected];
        let has_older = |instance: &InstanceName| match earlier.get(instance) {
            Some(phase) => !waiting.contains(phase),
            None => remembered.get(instance).is_some_and(|row| waiting.iter().all(|it| it.to_string() != row.state)),
        };
        let ends = |instance: &InstanceName| !state.added.contains(instance) || has_older(instance);
        let ending = accepted.added.iter().chain(&accepted.deleted).filter(|instance| ends(instance)).cloned();
        state.ending = ending.collect();
        // An instance that the server does not list any more was removed before.
        for instance in state.ending.clone().into_iter().filter(|instance| !there.contains(instance)) {
            state.on_state(&WorkloadState::new(instance, ExecutionState::plain(Phase::Removed)));
        }
        state.settle();
        state
    }

    /// Applies reported states; those of other instances count only as reasons.
    pub fn on_states(&mut self, states: &[WorkloadState]) {
        for state in states {
            self.on_state(state);
        }
        self.settle();
    }

    fn on_state(&mut self, reported: &WorkloadState) {
        let WorkloadState { instance, state } = reported;
        let is_gone = self.reported.get(instance).is_some_and(|last| last.phase == Phase::Removed);
        if is_gone && state.phase.state() == "Stopping" {
            return; // Reported late: a removed instance cannot stop.
        }
        self.reasons.on_state(reported);
        let Some(row) = self.rows.get_mut(instance) else { return };
        row.update(state);
        self.reported.insert(instance.clone(), state.clone());
        if matches!(state.phase, Phase::Removed | Phase::AgentDisconnected) {
            self.ending.remove(instance);
        }
        // Until the older one of the same name has ended, states are about that.
        if (ends_start(state.phase) || state.is_inactive()) && !self.ending.contains(instance) {
            self.starting.remove(instance);
        }
    }

    /// Stops waiting for instances that will not get there: those of disconnected agents, and those that need one which
    /// is not relevant on its node.
    fn settle(&mut self) {
        let (reasons, reported) = (&self.reasons, &self.reported);
        let waits =
            |instance: &InstanceName| reported.get(instance).is_some_and(|it| it.phase == Phase::PendingWaitingToStart);
        let stays = |instance: &InstanceName| waits(instance) && reasons.waits_for_inactive(&instance.workload);
        self.starting.retain(|instance| self.connected.contains(&instance.agent) && !stays(instance));
        self.ending.retain(|instance| self.connected.contains(&instance.agent));
    }

    /// Whether nothing is outstanding.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.starting.is_empty() && self.ending.is_empty()
    }

    /// Whether all that was to end has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ending.is_empty()
    }

    fn is_outstanding(&self, instance: &InstanceName) -> bool {
        [&self.starting, &self.ending, &self.on_trial].iter().any(|outstanding| outstanding.contains(instance))
    }

    /// The frame as lines, with `spinner` before the states that are not final. At most `lines_max` lines: when there are
    /// more instances, those that are done are left out first. Infos of outstanding instances that the table had to cut
    /// are repeated below it as far as there is room.
    #[must_use]
    pub fn frame(&self, spinner: char, columns: usize, lines_max: usize) -> Vec<String> {
        let room = lines_max.saturating_sub(1).max(1); // Below the heading.
        let mut shown: Vec<&InstanceName> = self.rows.keys().collect();
        let hidden = if shown.len() > room { shown.len() - (room - 1) } else { 0 };
        if hidden > 0 {
            shown.sort_by_key(|instance| !self.is_outstanding(instance)); // Stable: names stay sorted.
            shown.truncate(room - 1);
            shown.sort();
        }
        let mut table = rows::table(shown.iter().map(|instance| self.explained(instance)));
        table.headings[3] = "  EXECUTION STATE";
        for (instance, row) in shown.iter().zip(&mut table.rows) {
            let symbol = if self.is_outstanding(instance) { spinner } else { ' ' };
            row[3].insert_str(0, &format!("{symbol} "));
        }
        let mut lines = table.lines(columns, TooWide::Shorten);
        if hidden > 0 {
            let open = shown.iter().filter(|instance| self.is_outstanding(instance)).count();
            let waiting = self.rows.keys().filter(|instance| self.is_outstanding(instance)).count() - open;
            lines.push(format!("and {hidden} more, {waiting} of them not finished"));
        }
        let is_cut = |(index, instance): &(usize, &&InstanceName)| {
            self.is_outstanding(instance) && !lines[index + 1].contains(&table.rows[*index][4])
        };
        let cut: Vec<String> = (shown.iter().enumerate())
            .filter(is_cut)
            .map(|(index, instance)| shortened(&format!("{}: {}", instance.workload, table.rows[index][4]), columns))
            .collect();
        if !cut.is_empty() && lines.len() + 1 + cut.len() <= lines_max {
            lines.push(String::new());
            lines.extend(cut);
        }
        lines
    }

    /// Without a terminal: the output grows with the time and not with workloads times changes.
    fn pause_between_frames(&self) -> Duration {
        let lines = u32::try_from(self.rows.len()).unwrap_or(u32::MAX);
        FRAME_PAUSE_PER_LINE.saturating_mul(lines.saturating_sub(FRAME_LINES_AT_ONCE))
    }

    /// Marks the added instances of the named workloads as outstanding, and no others but those that were not reported
    /// to have reached their states.
    pub fn set_on_trial(&mut self, names: &BTreeSet<&str>) {
        self.on_trial = self.added.iter().filter(|instance| names.contains(&*instance.workload)).cloned().collect();
    }

    /// The added instances that failed.
    #[must_use]
    pub fn failures(&self) -> Vec<&InstanceName> {
        let failed = |instance: &&InstanceName| {
            self.reported.get(*instance).is_some_and(|state| {
                matches!(state.phase.state(), "Failed") || state.phase == Phase::PendingStartingFailed
            })
        };
        self.added.iter().filter(failed).collect()
    }

    pub fn connected_agents(&self) -> impl Iterator<Item = &str> {
        self.connected.iter().map(|name| &**name)
    }

    /// Agents that are not connected, with the workloads that they should start.
    #[must_use]
    pub fn absent_agents(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut absent: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for InstanceName { agent, workload, .. } in &self.added {
            if !agent.is_empty() && !self.connected.contains(agent) {
                absent.entry(agent).or_default().push(workload);
            }
        }
        absent
    }

    /// The instances that are outstanding.
    #[must_use]
    pub fn outstanding(&self) -> Vec<&InstanceName> {
        self.rows.keys().filter(|instance| self.is_outstanding(instance)).collect()
    }

    /// State and info of an instance. For one that waits until another with its name ends, those of the other.
    fn described(&self, instance: &InstanceName) -> String {
        let old = self.ending.iter().find(|old| old.workload == instance.workload && *old != instance);
        let begun = self.reported.get(instance).is_some_and(|state| state.phase != Phase::PendingInitial);
        let shown = old.filter(|_| !begun).unwrap_or(instance);
        let Some(row) = self.rows.get(shown) else {
            return self.reported.get(shown).map_or_else(String::new, ToString::to_string);
        };
        let Row { state, info, .. } = self.reasons.explained(shown, row);
        if info.is_empty() { state } else { format!("{state}: '{info}'") }
    }

    /// The table of `instances` for the end. A deleted instance stands above the one that replaced it.
    #[must_use]
    pub fn summary<'i>(&self, instances: impl IntoIterator<Item = &'i InstanceName>) -> Table<5> {
        let mut instances: Vec<&InstanceName> =
            instances.into_iter().filter(|instance| self.rows.contains_key(*instance)).collect();
        instances.sort_by_key(|instance| (&instance.workload, self.added.contains(*instance), *instance));
        rows::table(instances.into_iter().map(|instance| self.explained(instance)))
    }

    fn explained<'i>(&self, instance: &'i InstanceName) -> (&'i InstanceName, Row) {
        (instance, self.reasons.explained(instance, &self.rows[instance]))
    }

    /// A failed instance that had a container and so may have logs.
    #[must_use]
    pub fn failure_with_logs(&self) -> Option<&InstanceName> {
        let ran = |instance: &&InstanceName| self.reported[*instance].phase.state() == "Failed";
        self.failures().into_iter().find(ran)
    }
}

/// Whether a phase ends the wait for an instance that should start.
fn ends_start(phase: Phase) -> bool {
    matches!(phase.state(), "Running" | "Succeeded" | "Failed")
        || matches!(phase, Phase::NotScheduled | Phase::PendingStartingFailed | Phase::AgentDisconnected)
}

/// Follows the states that `link` broadcasts until `goal` is reached or `limit` has passed, and shows frames.
///
/// # Errors
/// The connection ended, the goal cannot be checked, or standard output cannot be written.
pub fn wait<L: ServerLink>(
    state: &mut WaitState,
    goal: &mut impl Goal<L>,
    link: &mut L,
    clock: &impl Clock,
    limit: Option<Duration>,
    output: &mut Output<'_>,
) -> Result<WaitEnd, CliError> {
    let give_up = limit.and_then(|limit| clock.now().checked_add(limit));
    let animated = output.redraws() && !output.is_quiet();
    let mut frames = LiveFrames::default();
    let (mut turn, mut next_turn) = (0, clock.now() + SPINNER_INTERVAL);
    let mut next_frame = clock.now();
    loop {
        let (columns, lines) = output.terminal().unwrap_or((output.width(), usize::MAX));
        let Progress::Open { again } = goal.check(state, link, clock.now())? else {
            // The last frame stays on the screen, so it is complete even when it scrolls.
            state.on_trial.clear();
            frames.show(state.frame(' ', columns, usize::MAX), output)?;
            return Ok(WaitEnd::Reached);
        };
        let due = animated || clock.now() >= next_frame;
        if due {
            // The cursor stands below the frame, so one line less than the terminal has can be redrawn.
            frames.show(state.frame(SPINNER[turn % SPINNER.len()], columns, lines.saturating_sub(1)), output)?;
            next_frame = clock.now() + state.pause_between_frames();
        }
        let turns = if animated { Some(next_turn) } else { (!due).then_some(next_frame) };
        let until = turns.into_iter().chain(give_up).chain(again).min();
        match link.next_states(until)? {
            Some(states) => {
                state.on_states(&states);
                goal.on_states(state, &states, clock.now());
            }
            None if give_up.is_some_and(|at| clock.now() >= at) => return Ok(WaitEnd::TimedOut),
            None => {}
        }
        if animated && clock.now() >= next_turn {
            turn += 1;
            next_turn = clock.now() + SPINNER_INTERVAL;
        }
    }
}

#[cfg(test)]
mod tests;
