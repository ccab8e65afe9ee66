//! Instances that are staged for an update: what is prepared of them beside what runs, and what the server is sent of it.
//!
//! Thread: `scheduler`; part of [`RuntimeManager`].

use super::{Existing, RuntimeManager, WorkloadThreads};
use crate::agent::preparation::Wanted;
use crate::agent::preparation::levels::{self, Situation};
use crate::agent::settings::unsupported_runtime;
use crate::limits::{CONDITION_INFO_MAX, ENGINE_REASON_MAX};
use crate::model::messages::{AddedWorkload, PreparedInstance};
use crate::model::names::{InstanceName, Name};
use crate::model::prepare_level::PrepareLevel;
use crate::platform::clock::Clock;
use crate::platform::logging::log_source;
use log::warn;
use std::collections::BTreeSet;

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
            self.preparations.touch(name);
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
        let progress = self.preparations.progress(added);
        // What runs or waits as it is needs nothing as long as it does.
        let is_there = self.is_carried_out(added);
        let level = if is_there { Some(stage) } else { target.filter(|target| progress.level >= *target) };
        let mut failure = progress.failure.filter(|_| level.is_none());
        let mut is_final = progress.has_given_up && level.is_none();
        if !self.engines.contains_key(&workload.runtime) {
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

    /// What is to be prepared of a workload for an update, unless it was carried out meanwhile.
    pub(super) fn staged_preparation(&self, name: &Name) -> Option<Option<Wanted>> {
        let (added, stage) = self.staging.get(name)?;
        if self.is_carried_out(added) {
            return None;
        }
        let level = self.staged_level(added, stage).filter(|level| *level > PrepareLevel::None);
        let level = level.filter(|_| self.engines.contains_key(&added.workload.runtime));
        let retry_limit = Some(self.context.retry_limit.unwrap_or(u32::MAX));
        Some(level.map(|level| Wanted { added: added.clone(), level, retry_limit }))
    }

    /// Whether this is wanted already, exactly as it is.
    fn is_carried_out(&self, added: &AddedWorkload) -> bool {
        let name = &added.instance.workload;
        self.scheduler.new_of(name) == Some(added) || self.live(name).is_some_and(|object| object.runs(added))
    }

    /// How far a staged instance is to be prepared; `None` while that is not known.
    fn staged_level(&self, added: &AddedWorkload, stage: PrepareLevel) -> Option<PrepareLevel> {
        let AddedWorkload { instance, workload } = added;
        let name = &instance.workload;
        if self.staging.awaits_hello() || self.listings.is_missing(&workload.runtime) {
            return None;
        }
        if self.conditions.is_staged_inactive(name) {
            return Some(PrepareLevel::None); // It will not be created.
        }
        let object = self.objects.get(name);
        let waiting = || self.scheduler.new_of(name).map(|added| &added.instance);
        let situation = Situation {
            instance,
            old: object.map(|object| &object.instance).or_else(waiting),
            old_shares: self.may_remove(instance, &workload.runtime),
            may_run: self.conditions.may_staged_run(name),
        };
        Some(levels::allowed(workload, stage, situation))
    }

    /// Takes what an earlier agent has prepared of an instance that is still to be staged.
    pub(super) fn take_staged(&mut self, name: &Name, candidates: &mut Vec<Existing>) {
        let Some(added) = self.staging.get(name).map(|(added, _)| added.clone()) else { return };
        let is_staged = |instance: &InstanceName| *instance == added.instance;
        if self.objects.get(name).is_some_and(|object| is_staged(&object.instance)) {
            return; // Nothing is created of an instance that runs in another form.
        }
        let mut staged: Vec<Existing> =
            candidates.extract_if(.., |(_, container)| is_staged(&container.instance)).collect();
        self.take_prepared(&added, &mut staged);
        candidates.extend(staged);
    }
}

#[cfg(test)]
mod tests;
