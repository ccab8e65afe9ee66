//! Outcomes: reports, time and losses make an open update switch, succeed, be kept although it
//! failed, or be rolled back.
//!
//! Thread: `server`; part of [`Rollouts`].

use super::change_set::{ChangeSet, config_hash, desired_hash};
use super::health_window::{Failure, FailureCause};
use super::{AgentStaging, OpenUpdate, Rollouts, UpdateRecord};
use crate::effects::Effects;
use crate::sessions::{Requester, Rights};
use crate::updates::{
    CheckedUpdate, DesiredChange, Failed, RenderError, UpdateError, Updates, removed,
};
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::complete_state::DesiredState;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::guarded_update::{UpdateCause, UpdatePhase};
use ankaios_model::lifecycle::OnFailure;
use ankaios_model::limits::{CONDITION_INFO_MAX, UPDATE_LOSSES};
use ankaios_model::messages::AgentCapabilities;
use ankaios_model::names::{InstanceName, Name};
use ankaios_platform::logging::log_source;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// The next step of an open update.
pub(crate) enum RolloutStep {
    /// Everything is staged: switch it.
    Switch,
    /// It has failed: roll it back.
    Undo(Failure),
    /// Its health window is over: end it as good or kept.
    End(UpdatePhase),
}

impl OpenUpdate {
    /// The next step, if there is one now. The staged instances may be many, so they are examined
    /// only when the update `has_news`.
    fn next_step(
        &mut self,
        away: &BTreeMap<Name, Instant>,
        now: Instant,
        has_news: bool,
    ) -> Option<RolloutStep> {
        // First, note the members that have missed their deadline; they are evaluated below.
        let missed = self.window.tick(now);
        self.failures.extend(missed);
        // Then, an instance that cannot be staged.
        let is_examined = has_news && self.is_staging();
        if is_examined && let Some(failure) = self.cannot_be_staged() {
            return Some(RolloutStep::Undo(failure));
        }
        // Then, failures in the health window: the first that demands a rollback, or the reason why
        // the update will be kept.
        for failure in std::mem::take(&mut self.failures) {
            if failure.on_failure == OnFailure::Rollback {
                return Some(RolloutStep::Undo(failure));
            }
            let why = cut_reason(&failure.workload, &failure.text());
            let UpdateRecord {
                number,
                source,
                change_set,
                reason,
                ..
            } = &mut self.record;
            let _source = log_source(Name::from(&**source));
            log::warn!(
                "Update {number} ({}) failed and is kept: {why}",
                change_set.names()
            );
            reason.get_or_insert(why);
        }
        // Finally, success.
        if self.is_staging() {
            if is_examined && self.is_all_staged(away, now) {
                return Some(RolloutStep::Switch);
            }
            return None;
        }
        if !self.window.is_over() {
            return None;
        }
        let phase = match self.record.reason {
            Some(_) => UpdatePhase::Kept,
            None => UpdatePhase::Good,
        };
        Some(RolloutStep::End(phase))
    }

    /// Counts the loss of an agent or of the server, which the update may have caused. After
    /// [`UPDATE_LOSSES`] it has failed.
    pub(super) fn count_loss(&mut self, what: &str, now: Instant) {
        self.record.losses = self.record.losses.saturating_add(1);
        if self.record.losses < UPDATE_LOSSES {
            return;
        }
        let why = format!("{UPDATE_LOSSES} losses of {what}");
        let failures = self.window.fail_by_losses(&why, now);
        self.failures.extend(failures);
    }
}

/// `<workload>: <why>`, cut to [`CONDITION_INFO_MAX`] bytes.
fn cut_reason(workload: &str, why: &str) -> String {
    let mut text = format!("{workload}: {why}");
    text.truncate(text.floor_char_boundary(CONDITION_INFO_MAX));
    text
}

impl Rollouts {
    /// Returns whether a failure of this instance causes a rollback.
    pub(crate) fn would_undo(&self, instance: &InstanceName) -> bool {
        self.open
            .values()
            .any(|open| open.window.would_undo(instance))
    }

    /// Ends the evaluation of an instance that is not active any more. A new instance of the
    /// workload is evaluated as soon as it is active.
    pub(crate) fn instance_ended(&mut self, instance: &InstanceName, now: Instant) {
        let name = &instance.workload;
        for open in self.open.values_mut() {
            if open.window.instance(name) == Some(instance) {
                open.window.end(name, now);
                open.record.dependents.remove(name);
            }
        }
    }

    /// Evaluates states that were reported, or follow from the loss of an agent. `was_staged`: one
    /// of them replaces the shown state of a staged instance.
    pub(crate) fn states_reported(
        &mut self,
        states: &[WorkloadState],
        was_staged: bool,
        now: Instant,
    ) {
        self.is_outdated |= was_staged;
        for open in self.open.values_mut() {
            for WorkloadState { instance, state } in states {
                self.is_outdated |= open.is_waiting(instance);
                open.failures
                    .extend(open.window.report(instance, state, now));
            }
        }
    }
}

/// The steps that are due for all open updates.
pub(crate) struct DueSteps {
    pub(crate) steps: Vec<DueStep>,
    /// Whether an event since the last call may concern an open update.
    pub(crate) has_news: bool,
    /// Whether staged instances must be shown, even shortly after the last time.
    pub(crate) is_show_due: bool,
}

/// A step of one open update.
pub(crate) struct DueStep {
    pub(crate) number: u64,
    /// The source of its log lines: the requester of the update.
    pub(crate) source: Name,
    pub(crate) step: RolloutStep,
}

/// The change that restores the state from before an update.
pub(crate) struct WayBack {
    pub(crate) change: DesiredChange,
    pub(crate) restarted: BTreeSet<Name>,
}

/// The consequence of a failure of an update.
pub(crate) enum Undo {
    /// It is rolled back by this commit. Command lines of earlier versions receive these states.
    RolledBack {
        commit: CheckedUpdate,
        states: Vec<WorkloadState>,
    },
    /// It has ended and its changes stay, since it cannot be rolled back. Failures of these
    /// workloads apply now.
    Stuck(Vec<Name>),
    /// It stays open, or was not open.
    Kept,
}

impl Rollouts {
    /// When an open update has a step, or is shown, without an event.
    pub(crate) fn due(&self) -> Option<Instant> {
        let windows = self.open.values().filter_map(|open| open.window.due());
        windows.chain(self.show_at).min()
    }

    /// Sends an agent that has connected the instances that it has to prepare, and whether an
    /// update of its workloads is open.
    pub(crate) fn agent_connected(
        &mut self,
        agent: &Name,
        capabilities: AgentCapabilities,
        now: Instant,
        effects: &mut Effects,
    ) {
        // First, the messages. Without one the agent assumes that nothing is prepared or open.
        let prepares = capabilities.prepares;
        let session = AgentStaging {
            prepares,
            sent_open: capabilities.removes_images.then_some(false),
            to_prepare: Vec::new(),
        };
        self.agents.insert(agent.clone(), session);
        self.send_list(agent, effects);
        self.send_open(effects);
        // Then, the open updates, which may have waited for it.
        self.away.remove(agent);
        if !prepares && self.open.values().any(|open| open.has_staged(agent)) {
            self.warn_of_agent(agent);
        }
        for open in self.open.values_mut() {
            open.agent_came(agent, prepares);
            // It receives its part of the update now.
            if open.window.agent_came(agent, now) && !open.record.was_sent {
                open.record.was_sent = true;
                self.is_unsaved = true;
            }
        }
        if !self.open.is_empty() {
            self.note_change();
        }
    }

    /// Notes the loss of an agent.
    pub(crate) fn agent_gone(&mut self, agent: &Name, now: Instant) {
        self.agents.remove(agent);
        for open in self.open.values_mut() {
            // If the agent has nothing to prepare, `take_infos` removes it again.
            self.away.entry(agent.clone()).or_insert(now);
            if open.window.agent_left(agent, now) {
                open.count_loss(&format!("agent '{agent}'"), now);
            }
        }
        if !self.open.is_empty() {
            self.note_change();
        }
    }

    /// Takes the steps that are due after all events so far.
    pub(crate) fn take_due(&mut self, now: Instant) -> DueSteps {
        let is_show_due = self.show_at.is_some_and(|at| at <= now);
        let has_news = std::mem::take(&mut self.is_outdated) || is_show_due;
        let mut steps = Vec::new();
        for (number, open) in &mut self.open {
            if let Some(step) = open.next_step(&self.away, now, has_news) {
                steps.push(DueStep {
                    number: *number,
                    source: Name::from(&*open.record.source),
                    step,
                });
            }
            if open.window.take_recovery() && open.record.losses > 0 {
                open.record.losses = 0; // The update was not the reason of the losses.
                self.is_unsaved = true;
            }
        }
        DueSteps {
            steps,
            has_news,
            is_show_due,
        }
    }

    /// Ends an update that is good or kept.
    pub(crate) fn end_window(&mut self, number: u64, phase: UpdatePhase, now: Instant) {
        let Some(open) = self.close(number) else {
            return;
        };
        if phase == UpdatePhase::Good {
            let seconds = now.saturating_duration_since(open.begun).as_secs();
            log::info!(
                "Update {number} ({}) passed its health window after {seconds} s.",
                open.record.change_set.names()
            );
        }
        self.end(open.record, phase, None);
    }

    // ------------------------------------------------------------------- undo

    /// Ends an update that has failed. Returns the commit that restores the desired, rendered and
    /// effective workloads from before it. Neither templates nor hooks run: these workloads were
    /// accepted once, and a refusal must not leave the cluster with the failed ones. The rollback
    /// is not evaluated, so that it always ends.
    // [impl->swdd~server-undoes-failed-updates~1]
    pub(crate) fn undo(&mut self, number: u64, failure: &Failure, updates: &Updates) -> Undo {
        let Some(open) = self.open.get(&number) else {
            return Undo::Kept;
        };
        // First, the reason, and whether the rollback is possible.
        let change = rollback_change(&open.record.change_set, updates);
        let reason = rollback_reason(failure, updates);
        let why = cut_reason(&failure.workload, &reason.text);
        if let Err(error) = check_rollback(&change, updates) {
            return self
                .fail_without_rollback(number, &format!("{why}; cannot be rolled back: {error}"));
        }
        // Then, the end of the update.
        let Some(OpenUpdate { mut record, .. }) = self.close(number) else {
            return Undo::Kept;
        };
        let change_set = record.change_set.clone();
        log::warn!(
            "Update {number} ({}) failed and is rolled back: {why}",
            change_set.names()
        );
        // The same update is refused later. But if none of it was started, the reason may have been
        // a lost connection, so it may be tried again.
        if record.was_switched {
            record.remembered = Some(change_set.fingerprint());
        }
        let restarted = record.restarted();
        record.cause = Some(reason.cause);
        self.end(record, UpdatePhase::Undone, Some(why.clone()));
        // Finally, the commit.
        let states = undone_states(&change_set, &why, updates);
        let mut revisions = BTreeMap::new();
        for (name, affected) in change_set.workloads {
            revisions.insert(name, affected.before);
        }
        Undo::RolledBack {
            commit: CheckedUpdate {
                change,
                revisions,
                restarted,
                ..CheckedUpdate::default()
            },
            states,
        }
    }

    /// Handles the failure of an update that cannot be rolled back. While it is staged it stays
    /// open, and is switched once its conditions are met. Otherwise it ends as stuck, and its
    /// workloads stay as they are.
    fn fail_without_rollback(&mut self, number: u64, why: &str) -> Undo {
        let Some(open) = self.open.get_mut(&number) else {
            return Undo::Kept;
        };
        let names = open.record.change_set.names();
        log::error!("Update {number} ({names}) failed: {why}");
        // First, an update that is not switched yet: its workloads stay desired.
        if open.is_staging() {
            open.keep_all();
            if open.record.reason.is_none() {
                open.record.reason = Some(why.to_owned());
            }
            self.note_change();
            return Undo::Kept;
        }
        // Otherwise it ends. Failures of its workloads and of their dependents apply now.
        let Some(OpenUpdate { record, .. }) = self.close(number) else {
            return Undo::Kept;
        };
        let mut workloads: Vec<Name> = record.change_set.workloads.keys().cloned().collect();
        workloads.extend(record.dependents.keys().cloned());
        self.end(record, UpdatePhase::Stuck, Some(why.to_owned()));
        Undo::Stuck(workloads)
    }

    /// Returns the change that restores the desired state from before update `number`.
    ///
    /// # Errors
    /// The update does not exist, the requester must not write all of it, or the state from before
    /// it cannot be restored any more.
    // [impl->swdd~server-rolls-back-updates~1]
    pub(crate) fn way_back(
        &self,
        number: u64,
        requester: &Requester,
        rights: &Rights,
        updates: &Updates,
    ) -> Result<WayBack, UpdateError> {
        let mut records = self.records().map(|(record, _)| record);
        let Some(record) = records.find(|record| record.number == number) else {
            return Err(UpdateError::Other(format!(
                "update {number} does not exist"
            )));
        };
        if !rights.may_write(requester, record.change_set.masks()) {
            return Err(UpdateError::Other(format!(
                "update {number} has parts that this workload must not write"
            )));
        }
        if let Some(reason) = record.lost_way_back(&updates.workloads().desired) {
            return Err(UpdateError::Other(reason));
        }
        Ok(WayBack {
            change: rollback_change(&record.change_set, updates),
            restarted: record.restarted(),
        })
    }
}

impl UpdateRecord {
    /// The reason why the state from before it cannot be restored, if there is one.
    fn lost_way_back(&self, desired: &DesiredState) -> Option<String> {
        let number = self.number;
        if self.phase == UpdatePhase::Undone {
            return Some(format!(
                "update {number} was rolled back: what was there before it is active"
            ));
        }
        if let Some(successor) = &self.replaced_by {
            return Some(format!(
                "update {number} has become a part of update {successor} and cannot be rolled back by itself"
            ));
        }
        if self.has_lost_way_back || self.change_set.is_empty() {
            return Some(format!(
                "the server no longer has the state from before update {number}"
            ));
        }
        for (name, affected) in &self.change_set.workloads {
            if desired_hash(desired.workloads.get(name)) != affected.after {
                return Some(format!(
                    "workload '{name}' was changed after update {number}"
                ));
            }
        }
        for (key, affected) in &self.change_set.configs {
            if desired.configs.get(key).map(config_hash) != affected.after {
                return Some(format!("config '{key}' was changed after update {number}"));
            }
        }
        None
    }
}

/// The reason of a rollback, for programs and for people.
struct RollbackReason {
    cause: UpdateCause,
    text: String,
}

/// The reason of a rollback. If an instance is late because dependents have kept its predecessor
/// from stopping, the reason names these dependents.
// [impl->swdd~server-says-why-updates-failed~1]
fn rollback_reason(failure: &Failure, updates: &Updates) -> RollbackReason {
    let cause = match failure.cause {
        FailureCause::State => UpdateCause::Unhealthy,
        FailureCause::NotStaged => UpdateCause::CannotBeStaged,
        FailureCause::Late(_) => {
            if let Some(held) = held_by_dependents(&failure.workload, updates) {
                return RollbackReason {
                    cause: UpdateCause::AwaitsDependents,
                    text: failure.text_with(&held),
                };
            }
            UpdateCause::Unhealthy
        }
    };
    RollbackReason {
        cause,
        text: failure.text(),
    }
}

/// Names the dependents that keep the earlier instance of a workload from stopping, if any do.
fn held_by_dependents(workload: &Name, updates: &Updates) -> Option<String> {
    let placed = updates.workloads().placed().get(workload)?;
    let agent = &placed.instance.agent;
    let states = &updates.workloads().states;
    let mut others = Vec::new();
    for (instance, state) in states.of_agent_workload(agent, workload) {
        if state.phase == Phase::StoppingWaitingToStop {
            for name in updates.deletes().conditions(&instance) {
                others.push(format!("'{name}'"));
            }
        }
    }
    if others.is_empty() {
        return None;
    }
    Some(format!("waits for {} to stop", others.join(", ")))
}

/// The change that restores the desired state from before `change_set`.
fn rollback_change(change_set: &ChangeSet, updates: &Updates) -> DesiredChange {
    let desired = &updates.workloads().desired;
    let mut change = DesiredChange::default();
    for (name, affected) in &change_set.workloads {
        let before = &affected.before.desired;
        if desired.workloads.get(name) != before.as_ref() {
            change.workloads.insert(name.clone(), before.clone());
        }
    }
    for (key, affected) in &change_set.configs {
        if desired.configs.get(key) != affected.before.as_ref() {
            change.configs.insert(key.clone(), affected.before.clone());
        }
    }
    change
}

/// Checks a rollback as a request with the same change.
fn check_rollback(change: &DesiredChange, updates: &Updates) -> Result<(), UpdateError> {
    let workloads = updates.workloads();
    let desired = &workloads.desired;
    let mut names: BTreeSet<&Name> = change.workloads.keys().collect_entries();
    for key in change.configs.keys() {
        names.extend(workloads.config_users.of(key));
    }
    for name in names {
        let Some(workload) = change.workload(desired, name) else {
            continue;
        };
        for key in workload.configs.values() {
            if change.config(desired, key).is_none() {
                let error = RenderError::MissingConfig(key.clone());
                return Err(UpdateError::invalid(format_args!(
                    "{error} (workload '{name}')"
                )));
            }
        }
    }
    workloads.check_together(change, &Failed::new())
}

/// The states of a rollback for command lines of an earlier version: these wait until the new
/// instances in the response to their request have a result, and the old ones have ended.
fn undone_states(change_set: &ChangeSet, why: &str, updates: &Updates) -> Vec<WorkloadState> {
    let workloads = updates.workloads();
    let mut ends = Vec::new();
    // First, the new instances: those without a result have failed.
    for affected in change_set.workloads.values() {
        let Some(new) = &affected.new else { continue };
        let state = workloads.states.get(new);
        if new.agent.is_empty() || state.is_some_and(has_result) {
            continue; // The command line does not wait for it.
        }
        let text = format!("rolled back: {why}");
        let state = ExecutionState::with_info(Phase::FailedExecFailed, text);
        ends.push(WorkloadState::new(new.clone(), state));
    }
    // Then, the old instances: each ends for the command line, and continues with its state.
    for affected in change_set.workloads.values() {
        let Some(old) = &affected.old else { continue };
        let Some(state) = workloads.states.get(old) else {
            continue;
        };
        if !workloads.placeholders.contains(old) {
            ends.push(removed(old.clone()));
            ends.push(WorkloadState::new(old.clone(), state.clone()));
        }
    }
    ends
}

fn has_result(state: &ExecutionState) -> bool {
    ["Failed", "Succeeded", "Running"].contains(&state.phase.state())
}
