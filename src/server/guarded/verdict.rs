//! What follows from reports, time and losses: an update is carried out, is good, is kept, or is
//! rolled back.
//!
//! Thread: `server`; part of [`ServerLoop`].

use super::trial::{Failure, LATE};
use super::unit::{Unit, config_hash, desired_hash};
use super::{GuardedUpdates, Open, Record};
use crate::ServerLoop;
use crate::prepare::{Failed, PreparedUpdate};
use crate::requester::Requester;
use crate::templates::RenderError;
use crate::update::{StateChange, UpdateError};
use crate::updates::removed;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::guarded_update::UpdatePhase;
use ankaios_model::lifecycle::OnFailure;
use ankaios_model::limits::{CONDITION_INFO_MAX, UPDATE_LOSSES};
use ankaios_model::names::{InstanceName, Name};
use ankaios_platform::logging::log_source;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// What is to be done with an open update.
enum Step {
    Switch,
    Undo(Name, String),
    End(UpdatePhase),
}

impl Open {
    /// What is to be done now, if anything. The staging may be large, and is looked through only
    /// when it `has_news`.
    fn next_step(
        &mut self,
        away: &BTreeMap<Name, Instant>,
        now: Instant,
        has_news: bool,
    ) -> Option<Step> {
        let missed = self.trial.tick(now);
        self.failures.extend(missed);
        let is_looked_at = has_news && self.is_staging();
        if is_looked_at && let Some((workload, why)) = self.cannot_be_staged() {
            return Some(Step::Undo(workload, why));
        }
        for Failure {
            workload,
            why,
            on_failure,
        } in std::mem::take(&mut self.failures)
        {
            if on_failure == OnFailure::Rollback {
                return Some(Step::Undo(workload, why));
            }
            let why = cut_reason(&workload, &why);
            let Record {
                number,
                source,
                unit,
                reason,
                ..
            } = &mut self.record;
            let _source = log_source(Name::from(&**source));
            log::warn!(
                "Update {number} ({}) failed and is kept: {why}",
                unit.names()
            );
            reason.get_or_insert(why);
        }
        if self.is_staging() {
            return (is_looked_at && self.awaited(away, now).next().is_none())
                .then_some(Step::Switch);
        }
        let phase = if self.record.reason.is_some() {
            UpdatePhase::Kept
        } else {
            UpdatePhase::Good
        };
        self.trial.is_over().then_some(Step::End(phase))
    }

    /// Something was lost that may be the fault of the update.
    pub(super) fn count_loss(&mut self, what: &str, now: Instant) {
        self.record.losses = self.record.losses.saturating_add(1);
        if self.record.losses >= UPDATE_LOSSES {
            let failures = self
                .trial
                .fail_by_losses(&format!("{UPDATE_LOSSES} losses of {what}"), now);
            self.failures.extend(failures);
        }
    }
}

/// `<workload>: <why>`, not too long.
fn cut_reason(workload: &str, why: &str) -> String {
    let mut text = format!("{workload}: {why}");
    text.truncate(text.floor_char_boundary(CONDITION_INFO_MAX));
    text
}

impl GuardedUpdates {
    /// Whether a failure of this instance undoes an update.
    pub(crate) fn would_undo(&self, instance: &InstanceName) -> bool {
        self.open
            .values()
            .any(|open| open.trial.would_undo(instance))
    }

    /// An instance is not in force any more. A dependent is not judged then; a workload that the
    /// update touches has a new instance, which is judged as soon as it is in force.
    pub(crate) fn instance_ended(&mut self, instance: &InstanceName, now: Instant) {
        let name = &instance.workload;
        for open in self
            .open
            .values_mut()
            .filter(|open| open.trial.instance(name) == Some(instance))
        {
            open.trial.end(name, now);
            open.record.dependents.remove(name);
        }
    }
}

impl GuardedUpdates {
    /// States were reported, or follow from the loss of an agent. States of instances that are not
    /// staged change nothing of what is, which may be thousands.
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
                    .extend(open.trial.report(instance, state, now));
            }
        }
    }
}

impl ServerLoop {
    /// When [`ServerLoop::on_event`] has something to do without an event.
    pub fn due(&self) -> Option<Instant> {
        let GuardedUpdates { open, show_at, .. } = &self.guarded;
        open.values()
            .filter_map(|open| open.trial.due())
            .chain(*show_at)
            .chain(self.subscriptions.usage_until())
            .min()
    }

    /// An agent has connected, and was sent its workloads.
    pub(crate) fn judge_connected(&mut self, agent: &Name, prepares: bool) {
        let (now, guarded) = (self.now(), &mut self.guarded);
        guarded.away.remove(agent);
        if !prepares && guarded.open.values().any(|open| open.asks(agent)) {
            guarded.warn_of_agent(agent);
        }
        for open in guarded.open.values_mut() {
            open.agent_came(agent, prepares);
            // It may start something of it from now on.
            guarded.is_unsaved |= open.trial.agent_came(agent, now)
                && !std::mem::replace(&mut open.record.was_sent, true);
        }
        if !guarded.open.is_empty() {
            guarded.changed();
        }
    }

    /// An agent is lost.
    pub(crate) fn judge_lost(&mut self, agent: &Name) {
        let (now, guarded) = (self.now(), &mut self.guarded);
        for open in guarded.open.values_mut() {
            // Until it is shown that nothing of it is staged.
            guarded.away.entry(agent.clone()).or_insert(now);
            if open.trial.agent_left(agent, now) {
                open.count_loss(&format!("agent '{agent}'"), now);
            }
        }
        if !guarded.open.is_empty() {
            guarded.changed();
        }
    }

    /// Does what follows for open updates from all that has happened. Returns whether anything did;
    /// then more may follow.
    pub(crate) fn settle_updates(&mut self) -> bool {
        let (now, guarded) = (self.now(), &mut self.guarded);
        let is_due = guarded.show_at.is_some_and(|at| at <= now);
        let has_news = std::mem::take(&mut guarded.is_outdated) || is_due;
        let mut steps = Vec::new();
        for (number, open) in &mut guarded.open {
            steps.extend(
                open.next_step(&guarded.away, now, has_news)
                    .map(|step| (*number, step)),
            );
            if open.trial.take_recovery() && open.record.losses > 0 {
                (open.record.losses, guarded.is_unsaved) = (0, true);
            }
        }
        let is_done = steps.is_empty();
        for (number, step) in steps {
            let _source = self
                .guarded
                .open
                .get(&number)
                .map(|open| log_source(Name::from(&*open.record.source)));
            match step {
                Step::Switch => self.switch_staged(number),
                Step::Undo(workload, why) => self.undo(number, &workload, &why),
                Step::End(phase) => self.end_update(number, phase),
            }
        }
        if is_done && has_news {
            self.show(is_due);
        }
        if self.guarded.is_unsaved {
            self.store_state();
        }
        !is_done
    }

    /// As [`Self::store_state`], and waits for the disk as long as a sound one may take, and as the
    /// server may. A server that ends just after agents have begun to switch would else begin with
    /// the staging again, and again if the switch is the reason.
    pub(super) fn store_and_wait(&mut self) {
        let Some(mut store) = self.store.take() else {
            return;
        };
        store.store_and_wait(self.stored());
        self.store = Some(store);
        self.guarded.is_unsaved = false;
    }

    /// Gives the desired state and all updates to the disk.
    pub(crate) fn store_state(&mut self) {
        // During the start there is no store yet; what has to be stored then is asked for after it.
        let Some(mut store) = self.store.take() else {
            return;
        };
        store.store(self.stored());
        self.store = Some(store);
        self.guarded.is_unsaved = false;
    }

    fn end_update(&mut self, number: u64, phase: UpdatePhase) {
        let now = self.now();
        let Some(open) = self.guarded.close(number) else {
            return;
        };
        if phase == UpdatePhase::Good {
            let seconds = now.saturating_duration_since(open.begun).as_secs();
            log::info!(
                "Update {number} ({}) is good after {seconds} s.",
                open.record.unit.names()
            );
        }
        self.guarded.end(open.record, phase, None);
    }

    /// The update of these workloads, whose failures led to nothing while they would undo it, could
    /// not be undone: what has finally failed of them applies now.
    fn essential_failed_for_good(&mut self, names: &[Name]) {
        for name in names {
            if let Some(failure) = self.updates.noted_failure(name) {
                self.essential_failed(&failure);
            }
        }
    }

    // ------------------------------------------------------------------- undo

    /// Puts back all that an update has changed: what is desired, rendered and in force. Neither
    /// templates nor hooks are asked: it was accepted once, and a refusal must not leave the
    /// cluster with what has failed. What is put back is not judged, so that an undo always ends.
    // [impl->swdd~server-undoes-failed-updates~1]
    fn undo(&mut self, number: u64, workload: &Name, why: &str) {
        let Some(open) = self.guarded.open.get(&number) else {
            return;
        };
        let unit = open.record.unit.clone();
        let change = self.rollback_change(&unit);
        let why = cut_reason(workload, &self.with_dependents(workload, why));
        if let Err(error) = self.check_rollback(&change) {
            log::error!(
                "Update {number} ({}) cannot be rolled back: {error}",
                unit.names()
            );
            if open.is_staging() {
                // It stays desired, so it comes into force as one that may stay, when its
                // conditions hold.
                let Some(open) = self.guarded.open.get_mut(&number) else {
                    return;
                };
                open.keep_all();
                open.record
                    .reason
                    .get_or_insert(format!("{why}; cannot be rolled back: {error}"));
                return self.guarded.changed();
            }
            let Some(Open { record, .. }) = self.guarded.close(number) else {
                return;
            };
            let names: Vec<Name> = unit
                .workloads
                .keys()
                .chain(record.dependents.keys())
                .cloned()
                .collect();
            self.guarded.end(
                record,
                UpdatePhase::Stuck,
                Some(format!("{why}; cannot be rolled back: {error}")),
            );
            self.send_lists();
            return self.essential_failed_for_good(&names);
        }
        log::warn!(
            "Update {number} ({}) failed and is rolled back: {why}",
            unit.names()
        );
        let Some(Open { mut record, .. }) = self.guarded.close(number) else {
            return;
        };
        // A link that was down proves nothing about what was never started.
        record.remembered = record.was_switched.then(|| unit.fingerprint());
        let restarted = record.restarted();
        self.guarded
            .end(record, UpdatePhase::Undone, Some(why.clone()));
        let ends = self.undone_states(&unit, &why);
        self.peers.broadcast_to_clis(&ends);
        self.show(true);
        let forms = unit
            .workloads
            .into_iter()
            .map(|(name, touched)| (name, touched.before))
            .collect();
        self.commit(PreparedUpdate {
            change,
            forms,
            restarted,
            ..PreparedUpdate::default()
        });
        self.send_lists();
    }

    /// A workload that is late because others keep its old instance from stopping names those.
    fn with_dependents(&self, workload: &Name, why: &str) -> String {
        let agent = self
            .updates
            .workloads()
            .placed()
            .get(workload)
            .map(|added| added.instance.agent.clone())
            .unwrap_or_default();
        let instances = self
            .updates
            .workloads()
            .states
            .of_agent_workload(&agent, workload);
        let waiting = instances.filter(|(_, state)| state.phase == Phase::StoppingWaitingToStop);
        let others = waiting.flat_map(|(instance, _)| self.updates.deletes().conditions(&instance));
        let others: Vec<String> = others.map(|name| format!("'{name}'")).collect();
        match why
            .split_once(": ")
            .filter(|(late, _)| late.starts_with(LATE) && !others.is_empty())
        {
            Some((late, _)) => format!("{late}: waits for {} to stop", others.join(", ")),
            None => why.to_owned(),
        }
    }

    /// What leads back to the desired state before update `number`, for a requester that may write
    /// all of it, and what is restarted with that.
    ///
    /// # Errors
    /// Why not.
    // [impl->swdd~server-rolls-back-updates~1]
    pub(crate) fn change_before(
        &self,
        number: u64,
        requester: &Requester,
    ) -> Result<(StateChange, BTreeSet<Name>), UpdateError> {
        let refused = |reason: String| Err(UpdateError::Other(reason));
        let known = self
            .guarded
            .records()
            .map(|(record, _)| record)
            .find(|record| record.number == number);
        let Some(record) = known else {
            return refused(format!("update {number} does not exist"));
        };
        let unit = &record.unit;
        if !self.may_write(requester, unit.masks()) {
            return refused(format!(
                "update {number} is also about what this workload may not write"
            ));
        }
        if record.phase == UpdatePhase::Undone {
            return refused(format!(
                "update {number} was rolled back: what was there before it is in force"
            ));
        }
        if let Some(successor) = &record.replaced_by {
            return refused(format!(
                "nothing of update {number} is left: it is a part of update {successor}"
            ));
        }
        if record.has_lost_way_back || unit.is_empty() {
            return refused(format!(
                "the server does not keep any more what was there before update {number}"
            ));
        }
        let desired = &self.updates.workloads().desired;
        let changed = |name: &&Name| {
            desired_hash(desired.workloads.get(*name)) != unit.workloads[*name].after
        };
        if let Some(name) = unit.workloads.keys().find(changed) {
            return refused(format!(
                "workload '{name}' was changed after update {number}"
            ));
        }
        let changed =
            |key: &&String| desired.configs.get(*key).map(config_hash) != unit.configs[*key].after;
        if let Some(key) = unit.configs.keys().find(changed) {
            return refused(format!("config '{key}' was changed after update {number}"));
        }
        Ok((self.rollback_change(unit), record.restarted()))
    }

    /// What leads back to the desired state before `unit`.
    fn rollback_change(&self, unit: &Unit) -> StateChange {
        let desired = &self.updates.workloads().desired;
        let workloads = unit
            .workloads
            .iter()
            .map(|(name, touched)| (name.clone(), touched.before.desired.clone()));
        let configs = unit
            .configs
            .iter()
            .map(|(key, touched)| (key.clone(), touched.before.clone()));
        StateChange {
            workloads: workloads
                .filter(|(name, before)| desired.workloads.get(name) != before.as_ref())
                .collect(),
            configs: configs
                .filter(|(key, before)| desired.configs.get(key) != before.as_ref())
                .collect(),
            ..StateChange::default()
        }
    }

    /// Whether a request could lead back.
    fn check_rollback(&self, change: &StateChange) -> Result<(), UpdateError> {
        let desired = &self.updates.workloads().desired;
        let users = change
            .configs
            .keys()
            .flat_map(|key| self.updates.workloads().config_users.of(key));
        for name in change.workloads.keys().chain(users) {
            let Some(workload) = change.workload(desired, name) else {
                continue;
            };
            if let Some(missing) = workload
                .configs
                .values()
                .find(|key| change.config(desired, key).is_none())
            {
                let error = RenderError::MissingConfig(missing.clone());
                return Err(UpdateError::invalid(format_args!(
                    "{error} (workload '{name}')"
                )));
            }
        }
        self.updates
            .workloads()
            .check_together(change, &Failed::new())
    }

    /// What command lines of an earlier version receive, which wait for the instances in the
    /// response to a request: those that have not failed by themselves have failed now, and those
    /// that were to end and have not are as they are.
    fn undone_states(&self, unit: &Unit, why: &str) -> Vec<WorkloadState> {
        let states = &self.updates.workloads().states;
        let mut ends = Vec::new();
        let touched = unit.workloads.values();
        for instance in touched
            .clone()
            .filter_map(|it| it.new.as_ref())
            .filter(|new| !new.agent.is_empty())
        {
            let has_ended = |state: &ExecutionState| {
                ["Failed", "Succeeded", "Running"].contains(&state.phase.state())
            };
            if !states.get(instance).is_some_and(has_ended) {
                let state = ExecutionState::with_info(
                    Phase::FailedExecFailed,
                    format!("rolled back: {why}"),
                );
                ends.push(WorkloadState::new(instance.clone(), state));
            }
        }
        for instance in touched.filter_map(|it| it.old.as_ref()) {
            if let Some(state) = states
                .get(instance)
                .filter(|_| !self.updates.workloads().placeholders.contains(instance))
            {
                ends.push(removed(instance.clone()));
                ends.push(WorkloadState::new(instance.clone(), state.clone()));
            }
        }
        ends
    }
}
