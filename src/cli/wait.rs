//! Waits until the workloads of an accepted update have reached their states, and shows the states meanwhile.
//!
//! Thread: `main`. Owns: which instances are outstanding. Takes: broadcast states. Gives: frames, and how it ended.
//! Without a terminal a frame is written only when a state changed.

use super::args::Format;
use super::error::Result;
use super::output::{LiveFrames, Table, TooWide, shortened};
use super::rows::{self, Reasons, Row};
use super::session::{Accepted, Context, ServerLink};
use crate::limits::SPINNER_INTERVAL;
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::names::{InstanceName, Name};
use crate::model::node::Node;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

pub mod trial;

const SPINNER: [char; 4] = ['|', '/', '-', '\\'];

/// What a wait is for, asked after each report: it is reached, or when it is to be asked again although nothing was
/// reported. The wait has the reported states already.
pub type Progress = ControlFlow<(), Option<Instant>>;

/// The goal that nothing is outstanding.
pub fn settled(wait: &mut WaitState, _: &mut dyn ServerLink, _: &[WorkloadState]) -> Result<Progress> {
    Ok(if wait.is_settled() { Progress::Break(()) } else { Progress::Continue(None) })
}

/// The instances of one update and their progress.
#[derive(Debug)]
pub struct WaitState {
    watched: BTreeMap<InstanceName, Watched>,
    /// Agents that were connected after the update was accepted; instances of others are not waited for.
    connected: BTreeSet<Name>,
    /// The states of all instances, and what they wait for.
    reasons: Reasons,
}

#[derive(Debug, Default)]
struct Watched {
    is_added: bool,
    /// It is to start.
    starts: bool,
    /// It is to end, or an older one of the same name has to, first.
    ends: bool,
    /// It has started and must prove that it works.
    on_trial: bool,
    /// What was reported last.
    reported: Option<ExecutionState>,
}

impl Watched {
    fn is_outstanding(&self) -> bool {
        self.starts || self.ends || self.on_trial
    }

    fn phase(&self) -> Option<Phase> {
        self.reported.as_ref().map(|state| state.phase)
    }
}

impl WaitState {
    /// Begins with the complete states before the update and after it was accepted.
    pub fn new(accepted: &Accepted, before: &Node, now: &Node) -> Self {
        let (remembered, mut reasons) = (rows::rows(before), Reasons::after_update(before, now));
        let connected = rows::entries(now.get("agents")).map(|(name, _)| name.into()).collect();
        let earlier: BTreeMap<_, _> = accepted.earlier.iter().map(|it| (&it.instance, it.state.phase)).collect();
        let waiting = [Phase::PendingInitial, Phase::PendingWaitingToStart, Phase::Removed, Phase::AgentDisconnected];
        let added: BTreeSet<&InstanceName> = accepted.added.iter().collect();
        let (mut watched, mut gone) = (BTreeMap::new(), Vec::new());
        for instance in accepted.added.iter().chain(&accepted.deleted) {
            let before = remembered.get(instance);
            let is_added = added.contains(instance);
            // Whether the update replaces it, or an earlier one stops it still: one end is due of an older one of the same
            // name. One that had not begun to start has nothing to end.
            let ends = !is_added
                || match earlier.get(instance) {
                    Some(phase) => !waiting.contains(phase),
                    None => before.is_some_and(|row| row.phase.is_none_or(|phase| !waiting.contains(&phase))),
                };
            // An instance that the server does not list any more was removed before.
            if ends && !reasons.rows.contains_key(instance) {
                gone.push(WorkloadState::new(instance.clone(), ExecutionState::plain(Phase::Removed)));
            }
            let row = reasons.rows.entry(instance.clone()).or_insert_with(|| before.cloned().unwrap_or_default());
            if row.state.is_empty() {
                row.update(&ExecutionState::plain(Phase::PendingInitial)); // The server's state for new instances.
            }
            if row.runtime.is_empty() {
                row.runtime = before.map(|row| row.runtime.clone()).unwrap_or_default();
            }
            watched.insert(instance.clone(), Watched { is_added, starts: is_added, ends, ..Watched::default() });
        }
        let mut state = Self { watched, connected, reasons };
        state.on_states(&gone);
        state
    }

    /// Applies reported states; those of other instances count only as reasons.
    pub fn on_states(&mut self, states: &[WorkloadState]) {
        states.iter().for_each(|state| self.on_state(state));
        self.settle();
    }

    fn on_state(&mut self, reported: &WorkloadState) {
        let WorkloadState { instance, state } = reported;
        let watched = self.watched.get_mut(instance);
        let is_gone = watched.as_ref().is_some_and(|watched| watched.phase() == Some(Phase::Removed));
        if is_gone && state.phase.state() == "Stopping" {
            return; // Reported late: a removed instance cannot stop.
        }
        self.reasons.on_state(reported);
        let Some(watched) = watched else { return };
        watched.reported = Some(state.clone());
        watched.ends &= !matches!(state.phase, Phase::Removed | Phase::AgentDisconnected);
        // Until the older one of the same name has ended, states are about that.
        watched.starts &= watched.ends || !(ends_start(state.phase) || state.is_inactive());
    }

    /// Stops waiting for instances that will not get there: those of disconnected agents, and those that need one which
    /// is not relevant on its node.
    fn settle(&mut self) {
        for (instance, watched) in &mut self.watched {
            let waits = watched.phase() == Some(Phase::PendingWaitingToStart);
            let is_connected = self.connected.contains(&instance.agent);
            watched.ends &= is_connected;
            watched.starts =
                watched.starts && is_connected && !(waits && self.reasons.waits_for_inactive(&instance.workload));
        }
    }

    /// Whether nothing is outstanding.
    pub fn is_settled(&self) -> bool {
        self.has_ended() && self.watched.values().all(|watched| !watched.starts)
    }

    /// Whether all that was to end has ended.
    pub fn has_ended(&self) -> bool {
        self.watched.values().all(|watched| !watched.ends)
    }

    fn is_outstanding(&self, instance: &InstanceName) -> bool {
        self.watched.get(instance).is_some_and(Watched::is_outstanding)
    }

    /// The frame as lines, with `spinner` before the states that are not final. At most `lines_max` lines: when there are
    /// more instances, those that are done are left out first. Infos of outstanding instances that the table had to cut
    /// are repeated below it as far as there is room.
    pub fn frame(&self, spinner: char, columns: usize, lines_max: usize) -> Vec<String> {
        let room = lines_max.saturating_sub(1).max(1); // Below the heading.
        let mut shown: Vec<&InstanceName> = self.watched.keys().collect();
        let hidden = if shown.len() > room { shown.len() - (room - 1) } else { 0 };
        if hidden > 0 {
            shown.sort_by_key(|instance| !self.is_outstanding(instance)); // Stable: names stay sorted.
            shown.truncate(room - 1);
            shown.sort();
        }
        let mut table = self.table(&shown);
        table.headings[3] = "  EXECUTION STATE";
        for (instance, row) in shown.iter().zip(&mut table.rows) {
            let symbol = if self.is_outstanding(instance) { spinner } else { ' ' };
            row[3].insert_str(0, &format!("{symbol} "));
        }
        let mut lines = table.lines(columns, TooWide::Shorten);
        if hidden > 0 {
            let open = shown.iter().filter(|instance| self.is_outstanding(instance)).count();
            let waiting = self.outstanding().len() - open;
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
        let lines = u32::try_from(self.watched.len()).unwrap_or(u32::MAX);
        // Each change of a table with few lines; a thousand workloads would write their thousand lines thousands of times.
        Duration::from_millis(10).saturating_mul(lines.saturating_sub(20))
    }

    /// Marks the added instances of the named workloads as outstanding, and no others but those that were not reported
    /// to have reached their states.
    pub fn set_on_trial(&mut self, names: &BTreeSet<&str>) {
        for (instance, watched) in &mut self.watched {
            watched.on_trial = watched.is_added && names.contains(&*instance.workload);
        }
    }

    fn those(&self, are: impl Fn(&Watched) -> bool) -> Vec<&InstanceName> {
        self.watched.iter().filter(|(_, watched)| are(watched)).map(|(instance, _)| instance).collect()
    }

    /// The added instances that failed.
    pub fn failures(&self) -> Vec<&InstanceName> {
        let failed = |phase: Phase| phase.state() == "Failed" || phase == Phase::PendingStartingFailed;
        self.those(|watched| watched.is_added && watched.phase().is_some_and(failed))
    }

    /// A failed instance that had a container and so may have logs.
    pub fn failure_with_logs(&self) -> Option<&InstanceName> {
        self.failures()
            .into_iter()
            .find(|instance| self.watched[*instance].phase() != Some(Phase::PendingStartingFailed))
    }

    /// The instances that are outstanding.
    pub fn outstanding(&self) -> Vec<&InstanceName> {
        self.those(Watched::is_outstanding)
    }

    pub fn connected_agents(&self) -> impl Iterator<Item = &str> {
        self.connected.iter().map(|name| &**name)
    }

    /// Agents that are not connected, with the workloads that they should start.
    pub fn absent_agents(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut absent: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for InstanceName { agent, workload, .. } in self.those(|watched| watched.is_added) {
            if !agent.is_empty() && !self.connected.contains(agent) {
                absent.entry(agent).or_default().push(workload);
            }
        }
        absent
    }

    /// State and info of an instance. For one that waits until another with its name ends, those of the other.
    fn described(&self, instance: &InstanceName) -> String {
        let begun =
            self.watched.get(instance).and_then(Watched::phase).is_some_and(|phase| phase != Phase::PendingInitial);
        let ending = self.those(|watched| watched.ends && !begun);
        let old = ending.into_iter().find(|old| old.workload == instance.workload && *old != instance);
        let Row { state, info, .. } = self.reasons.explained(old.unwrap_or(instance));
        if info.is_empty() { state } else { format!("{state}: '{info}'") }
    }

    /// The table of `instances` for the end. A deleted instance stands above the one that replaced it.
    pub fn summary<'i>(&self, instances: impl IntoIterator<Item = &'i InstanceName>) -> Table {
        let mut instances: Vec<&InstanceName> = instances.into_iter().collect();
        let is_added = |instance: &InstanceName| self.watched.get(instance).is_some_and(|watched| watched.is_added);
        instances.sort_by_key(|instance| (&instance.workload, is_added(instance), *instance));
        self.table(&instances)
    }

    fn table(&self, instances: &[&InstanceName]) -> Table {
        rows::view(Format::Table, instances.iter().map(|instance| (*instance, self.reasons.explained(instance)))).table
    }
}

/// Whether a phase ends the wait for an instance that should start.
fn ends_start(phase: Phase) -> bool {
    matches!(phase.state(), "Running" | "Succeeded" | "Failed")
        || matches!(phase, Phase::NotScheduled | Phase::PendingStartingFailed | Phase::AgentDisconnected)
}

/// Follows the states that `link` broadcasts until `goal` is reached or `limit` has passed, and shows frames. Returns
/// whether the goal was reached.
pub fn wait(
    state: &mut WaitState,
    mut goal: impl FnMut(&mut WaitState, &mut dyn ServerLink, &[WorkloadState]) -> Result<Progress>,
    limit: Option<Duration>,
    Context { link, output, .. }: &mut Context<'_>,
) -> Result<bool> {
    let give_up = limit.and_then(|limit| link.now().checked_add(limit));
    let animated = output.redraws && !output.quiet;
    let mut frames = LiveFrames::default();
    let begin = link.now();
    let mut next_frame = begin;
    let mut states = Vec::new();
    loop {
        let turn = link.now().saturating_duration_since(begin).div_duration_f64(SPINNER_INTERVAL) as u32;
        let (columns, lines) = output.terminal().unwrap_or((output.width(), usize::MAX));
        let Progress::Continue(again) = goal(state, *link, &states)? else {
            // The last frame stays on the screen, so it is complete even when it scrolls.
            state.set_on_trial(&BTreeSet::new());
            frames.show(state.frame(' ', columns, usize::MAX), output)?;
            return Ok(true);
        };
        let due = animated || link.now() >= next_frame;
        if due {
            // The cursor stands below the frame, so one line less than the terminal has can be redrawn.
            frames
                .show(state.frame(SPINNER[turn as usize % SPINNER.len()], columns, lines.saturating_sub(1)), output)?;
            next_frame = link.now() + state.pause_between_frames();
        }
        let turns = if animated { Some(begin + SPINNER_INTERVAL * (turn + 1)) } else { (!due).then_some(next_frame) };
        let until = turns.into_iter().chain(give_up).chain(again).min();
        let next = link.next_states(until)?;
        if next.is_none() && give_up.is_some_and(|at| link.now() >= at) {
            return Ok(false);
        }
        states = next.unwrap_or_default();
        state.on_states(&states);
    }
}

#[cfg(test)]
mod tests;
