//! Instances that are staged for an update: what is prepared of them beside what runs, and what the server is sent of it.
//!
//! Thread: `scheduler`; part of [`RuntimeManager`].

use super::{Existing, RuntimeManager, WorkloadThreads};
use crate::agent::events::PreparationReport;
use crate::agent::settings::unsupported_runtime;
use crate::agent::staging::stage_of;
use crate::agent::wish_slot::{Preparation, Surplus};
use crate::agent::workload_scheduler::Change;
use crate::agent::workload_state_store::WorkloadStateStore;
use crate::limits::{CONDITION_INFO_MAX, ENGINE_REASON_MAX};
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::guarded_update::CANNOT_BE_STAGED;
use crate::model::messages::{AddedWorkload, PreparedInstance};
use crate::model::names::{InstanceName, Name};
use crate::model::prepare_level::PrepareLevel;
use crate::platform::clock::Clock;
use crate::platform::logging::log_source;
use log::warn;
use std::collections::BTreeSet;
use std::time::Duration;

/// For so long the old instance runs on after the new one could not be staged, so that the server can undo the update.
const UNDONE_WITHIN: Duration = Duration::from_secs(60);

impl<C: Clock, T: WorkloadThreads<C>> RuntimeManager<C, T> {
    /// These are all instances to be staged from now on.
    // [impl->swdd~agent-stages-updates~1]
    pub fn stage(&mut self, list: Vec<AddedWorkload>) {
        let touched = self.staging.replace(list);
        self.staging_changed(&touched);
    }

    /// The server sends a hello: without a list before it nothing is to be staged any more.
    pub fn session_begins(&mut self) {
        let touched = self.staging.session_begins();
        self.staging_changed(&touched);
    }

    /// The connection is lost, which changes nothing of what is staged.
    pub fn session_ended(&mut self) {
        self.staging.session_ended();
    }

    fn staging_changed(&mut self, touched: &BTreeSet<Name>) {
        let now = self.context.clock.now();
        for name in touched {
            self.touched.insert(name.clone());
            match self.staging.get(name) {
                Some((added, _)) => self.conditions.stage(added, now),
                None => self.conditions.unstage(name),
            }
        }
    }

    /// What is to be reported of what is staged.
    pub fn staging_reports(&mut self) -> Vec<PreparedInstance> {
        if self.staging.awaits_hello() {
            return Vec::new();
        }
        let mut staging = std::mem::take(&mut self.staging);
        let reports = staging.news(|added, stage| self.progress(added, stage));
        self.staging = staging;
        for PreparedInstance { instance, reason, tries, is_final, .. } in &reports {
            if let Some(reason) = reason {
                let end = if *is_final { "given up" } else { "trying again" };
                let _source = log_source(instance.workload.clone());
                warn!(
                    "The update of workload '{}' cannot be staged, try {tries}, {end}: '{reason}'",
                    instance.workload
                );
            }
        }
        reports
    }

    /// How far an instance that is staged is.
    fn progress(&self, added: &AddedWorkload, stage: PrepareLevel) -> PreparedInstance {
        let AddedWorkload { instance, workload } = added;
        let target = self.staged_level(added, stage);
        let object = self.objects.get(&instance.workload);
        let report = object.and_then(|object| object.prepared.as_ref()).filter(|report| report.added == *added);
        // What runs or waits as it is needs nothing as long as it does.
        let is_there = self.is_carried_out(added) || target == Some(PrepareLevel::None);
        let done =
            if is_there { Some(stage.min(target.unwrap_or(stage))) } else { report.and_then(|report| report.done) };
        let level = done.filter(|_| is_there || target.is_some());
        let report = report.filter(|_| level.is_none());
        let mut failure = report.and_then(|report| report.failure.clone());
        let mut is_final = report.is_some_and(|report| report.is_final);
        if !self.context.engines.contains_key(&workload.runtime) {
            let mut reason = unsupported_runtime(&workload.runtime);
            reason.truncate(reason.floor_char_boundary(ENGINE_REASON_MAX));
            (failure, is_final) = (Some((reason, 0)), true);
        }
        let is_done = level.is_some() || is_final;
        let unmet = self.conditions.staged_unmet(&instance.workload).filter(|_| is_done);
        let unmet = unmet.map(|unmet| unmet[..unmet.floor_char_boundary(CONDITION_INFO_MAX)].to_owned());
        let (reason, tries) = failure.unzip();
        let (tries, instance) = (tries.unwrap_or(0), instance.clone());
        PreparedInstance { instance, level, reason, tries, is_final, unmet }
    }

    /// Whether the old instance runs on until the new one is staged. It is already when the server has let this agent stage
    /// it; an agent that was away then does it now.
    // [impl->swdd~agent-stages-updates~1]
    pub(super) fn is_to_be_staged(&self, Change { name, new, deleted, withheld }: &Change) -> bool {
        let Some(added) = new.as_ref().filter(|_| deleted.is_some() && !withheld) else { return false };
        let object = self.live(name);
        let report = object.and_then(|object| object.prepared.as_ref()).filter(|report| report.added == *added);
        stage_of(added) > PrepareLevel::None
            && object.is_some()
            && report.is_none_or(|report| report.done.is_none() && !report.is_final)
            && self.may_prepare(added)
            && !self.conditions.is_inactive(name)
    }

    /// What follows from a report about what is to be staged before the old instance stops. Returns states to report.
    pub(super) fn stages_before_stop(
        &mut self,
        report: &PreparationReport,
        store: &WorkloadStateStore,
    ) -> Vec<WorkloadState> {
        let instance = &report.added.instance;
        let name = &instance.workload;
        let Some(until) = self.scheduler.unstaged.get_mut(name) else { return Vec::new() };
        if report.done.is_some() {
            let decision = self.scheduler.release_unstaged(name, store);
            return self.execute_all(decision);
        }
        if !report.is_final || until.is_some() {
            return Vec::new();
        }
        *until = Some(self.context.clock.now() + UNDONE_WITHIN);
        let reason = report.failure.as_ref().map(|(reason, _)| reason.as_str()).unwrap_or_default();
        let state = ExecutionState::with_info(Phase::PendingStartingFailed, format!("{CANNOT_BE_STAGED}{reason}"));
        vec![WorkloadState::new(instance.clone(), state)]
    }

    /// Lets old instances stop whose new ones could not be staged, which nobody has taken back. Returns states to report.
    pub(super) fn release_unstaged(&mut self, store: &WorkloadStateStore) -> Vec<WorkloadState> {
        let now = self.context.clock.now();
        let due = self.scheduler.unstaged.iter().filter(|(_, until)| until.is_some_and(|until| until <= now));
        let due: Vec<Name> = due.map(|(name, _)| name.clone()).collect();
        let mut reports = Vec::new();
        for name in due {
            let _source = log_source(name.clone());
            warn!("Replacing workload '{name}' although its new instance cannot be prepared.");
            let decision = self.scheduler.release_unstaged(&name, store);
            self.touched.insert(name);
            reports.extend(self.execute_all(decision));
        }
        reports
    }

    /// What is to be prepared of a workload for an update, unless it was carried out meanwhile.
    pub(super) fn staged_preparation(&self, name: &Name) -> Option<Option<Preparation>> {
        let (added, stage) = self.staging.get(name)?;
        if self.is_carried_out(added) {
            return None;
        }
        let level = self.staged_level(added, stage).filter(|level| *level > PrepareLevel::None);
        let retry_limit = Some(self.context.retry_limit.unwrap_or(u32::MAX));
        Some(level.map(|level| Preparation { added: added.clone(), level, retry_limit }))
    }

    /// Whether this is wanted already, exactly as it is.
    fn is_carried_out(&self, added: &AddedWorkload) -> bool {
        let name = &added.instance.workload;
        self.scheduler.new_of(name) == Some(added) || self.live(name).is_some_and(|object| object.runs(added))
    }

    /// How far a staged instance is to be prepared; `None` while that is not known.
    fn staged_level(&self, added: &AddedWorkload, stage: PrepareLevel) -> Option<PrepareLevel> {
        let name = &added.instance.workload;
        if self.conditions.is_staged_inactive(name) {
            return Some(PrepareLevel::None); // It will not be created.
        }
        // A create would fail without the paths of a precondition.
        let most = if self.conditions.may_staged_run(name) { stage } else { PrepareLevel::Image };
        (!self.staging.awaits_hello() && self.may_prepare(added)).then(|| stage.min(most))
    }

    /// Takes what an earlier agent has prepared of an instance that is still to be staged.
    pub(super) fn take_staged(&mut self, name: &Name, candidates: &mut Vec<Existing>) -> Vec<Surplus> {
        let Some(added) = self.staging.get(name).map(|(added, _)| added.clone()) else { return Vec::new() };
        let is_staged = |instance: &InstanceName| *instance == added.instance;
        if self.objects.get(name).is_some_and(|object| is_staged(&object.instance)) {
            return Vec::new(); // Nothing is created of an instance that runs in another form.
        }
        let mut staged: Vec<Existing> =
            candidates.extract_if(.., |(_, container)| is_staged(&container.instance)).collect();
        let unused = self.take_prepared(&added, &mut staged);
        candidates.extend(staged);
        unused
    }
}

#[cfg(test)]
mod tests;
