//! Preconditions and activation conditions of workloads: who may not run at the moment, and who needs such a one
//! (spec/lifecycle.md rules 12 and 13).
//!
//! Thread: `scheduler`; part of [`RuntimeManager`]. Paths are looked at on another thread, at most once a second each; the
//! scheduler waits a moment for the answers, but never again for a path that did not answer.

use super::path_looks::{self, PathLooks};
use super::short_info;
use crate::agent::runtime_manager::{RuntimeManager, WorkloadThreads};
use crate::agent::workload_scheduler::Change;
use crate::agent::workload_state_store::WorkloadStateStore;
use crate::limits::PRECONDITION_INTERVAL;
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::lifecycle::{self, Condition};
use crate::model::messages::{AddedWorkload, DeletedWorkload};
use crate::model::names::Name;
use crate::model::workload::{AddCondition, DeleteCondition, RestartPolicy, Workload};
use crate::platform::clock::Clock;
use crate::platform::logging::may_log;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// Begins what is shown of a workload that is not relevant on its node; `ank` counts it as done.
pub use crate::model::execution_state::INACTIVE_PREFIX;

/// Which of these paths of the node exist, and which do not; nothing about those that do not answer.
pub type LookAtPaths = Box<dyn FnMut(&BTreeSet<&str>) -> BTreeMap<String, bool> + Send>;

/// What conditions are about.
pub struct NodeFacts {
    /// What the agent was started with.
    pub tags: BTreeMap<String, String>,
    /// Looks at paths.
    pub look: LookAtPaths,
}

impl Default for NodeFacts {
    fn default() -> Self {
        Self::new(BTreeMap::new())
    }
}

impl NodeFacts {
    /// The node that we run on.
    #[must_use]
    pub fn new(tags: BTreeMap<String, String>) -> Self {
        // Most agents never look at a path, and what is asked and answered takes room from the start.
        let mut paths = None;
        let look = move |wanted: &BTreeSet<&str>| match &mut paths {
            None if wanted.is_empty() => BTreeMap::new(),
            paths => paths.get_or_insert_with(|| PathLooks::new(Arc::new(|| ()), path_looks::node())).exist(wanted),
        };
        Self { tags, look: Box::new(look) }
    }
}

/// The conditions of all wanted workloads that have some.
#[derive(Default)]
pub struct Conditions {
    facts: NodeFacts,
    of: BTreeMap<Name, OfWorkload>,
    due: Option<Instant>,
}

struct OfWorkload {
    /// Looked at until its paths have answered, and not again.
    undecided: Option<Condition>,
    /// Why it is not relevant.
    inactive: Option<String>,
    precondition: Option<Condition>,
    /// Why it may not run now.
    unmet: Option<String>,
}

impl OfWorkload {
    /// What has to be looked at.
    fn open(&self) -> impl Iterator<Item = &Condition> {
        self.undecided.iter().chain(&self.precondition)
    }

    /// Takes note of what is known of paths. What does not answer leaves a workload that runs alone.
    fn look(&mut self, known: &BTreeMap<String, bool>, tags: &BTreeMap<String, String>) {
        let unmet = |condition: &Condition| condition.unmet(|path| known.get(path).copied(), tags);
        let answered = |condition: &&Condition| condition.paths().all(|path| known.contains_key(path));
        if let Some(condition) = self.undecided.as_ref().filter(answered) {
            self.inactive = unmet(condition);
            self.undecided = None;
        }
        if let Some(condition) = self.precondition.as_ref().filter(answered) {
            self.unmet = unmet(condition);
        }
    }
}

impl Conditions {
    /// No workload is wanted yet.
    #[must_use]
    pub fn new(facts: NodeFacts) -> Self {
        Self { facts, of: BTreeMap::new(), due: None }
    }

    /// How many workloads have some.
    #[cfg(test)]
    pub(in crate::agent) fn len(&self) -> usize {
        self.of.len()
    }

    /// Takes note of what is wanted; looks at its conditions.
    // [impl->swdd~agent-lifecycle-activation~1]
    fn wanted(&mut self, added: &AddedWorkload, now: Instant) {
        let workload = &added.workload;
        // What is wrong with the block is told when the workload is started.
        let lifecycle = lifecycle::of_config(&workload.runtime, &workload.runtime_config).ok().flatten();
        let name = &added.instance.workload;
        let Some(lifecycle) = lifecycle.filter(|found| found.activation.is_some() || found.precondition.is_some())
        else {
            self.of.remove(name);
            return;
        };
        // Until a path has answered, nothing is known to hold.
        let silent = |condition: &Option<Condition>| condition.as_ref()?.unmet(|_| None, &self.facts.tags);
        let (inactive, unmet) = (silent(&lifecycle.activation), silent(&lifecycle.precondition));
        let mut of =
            OfWorkload { undecided: lifecycle.activation, inactive, precondition: lifecycle.precondition, unmet };
        let paths = of.open().flat_map(Condition::paths).collect();
        let known = (self.facts.look)(&paths);
        of.look(&known, &self.facts.tags);
        if of.undecided.is_none() && of.inactive.is_some() {
            of.precondition = None; // It never runs.
        }
        if of.open().next().is_some() {
            self.due.get_or_insert(now + PRECONDITION_INTERVAL);
        }
        self.of.insert(name.clone(), of);
    }

    /// Looks at all preconditions again, and at what did not answer.
    fn look(&mut self) {
        let paths = self.of.values().flat_map(OfWorkload::open).flat_map(Condition::paths).collect();
        let known = (self.facts.look)(&paths);
        self.of.values_mut().for_each(|of| of.look(&known, &self.facts.tags));
    }

    /// Why each workload that may not run by itself may not.
    fn closed(&self) -> BTreeMap<Name, String> {
        let text = |of: &OfWorkload| match (&of.inactive, &of.unmet) {
            // It may be relevant.
            (Some(why), _) if of.undecided.is_some() => Some(format!("activation: {why}")),
            (Some(why), _) => Some(format!("{INACTIVE_PREFIX}{why}")),
            (None, Some(why)) => Some(format!("precondition: {why}")),
            (None, None) => None,
        };
        self.of.iter().filter_map(|(name, of)| Some((name.clone(), short_info(text(of)?)))).collect()
    }
}

impl<C: Clock, T: WorkloadThreads<C>> RuntimeManager<C, T> {
    /// Conditions are about this node.
    #[must_use]
    pub fn on_node(mut self, facts: NodeFacts) -> Self {
        self.conditions = Conditions::new(facts);
        self
    }

    /// When [`Self::look_at_preconditions`] wants to be called next.
    #[must_use]
    pub fn conditions_due(&self) -> Option<Instant> {
        self.conditions.due
    }

    /// Takes note of what is wanted now; it is not started while it may not run.
    pub(in crate::agent) fn note_wanted(&mut self, added: &AddedWorkload) {
        self.conditions.wanted(added, self.context.clock.now());
        if self.conditions.of.is_empty() && self.scheduler.withheld.is_empty() {
            return;
        }
        // At least this one must be right before it is decided about; who needs it follows.
        let name = &added.instance.workload;
        let withheld = &self.scheduler.withheld;
        let needs = |(other, condition): (&String, &AddCondition)| {
            (*condition == AddCondition::Running && withheld.contains_key(&**other)).then(|| waits_for(other))
        };
        let why = self.conditions.closed().remove(name);
        match why.or_else(|| added.workload.dependencies.iter().find_map(needs)) {
            Some(why) => _ = self.scheduler.withheld.insert(name.clone(), why),
            None => _ = self.scheduler.withheld.remove(name),
        }
    }

    /// The workload is not wanted any more.
    pub(in crate::agent) fn note_unwanted(&mut self, name: &Name) {
        self.conditions.of.remove(name);
        self.scheduler.withheld.remove(name);
    }

    /// Nobody looks any more at what a hello wanted and a plan or another hello took back before the engines had told
    /// what they have: no operation was ever about it. What needed it may run now; answers states to report.
    pub(in crate::agent) fn forget_unwanted_conditions(
        &mut self,
        store: &mut WorkloadStateStore,
    ) -> Vec<WorkloadState> {
        let Self { conditions, objects, scheduler, .. } = self;
        let live = objects.iter().filter(|(_, object)| !object.ending).map(|(name, _)| name);
        let wanted: BTreeSet<Name> = live.chain(scheduler.iter().map(|waiting| &waiting.name)).cloned().collect();
        conditions.of.retain(|name, _| wanted.contains(name));
        scheduler.withheld.retain(|name, _| wanted.contains(name));
        self.withhold(store)
    }

    /// Whether the workload is not relevant on this node.
    pub(in crate::agent) fn is_inactive(&self, name: &Name) -> bool {
        self.conditions.of.get(name).is_some_and(|of| of.inactive.is_some())
    }

    /// Looks whether the preconditions hold and does what follows. Answers states to report.
    pub fn look_at_preconditions(&mut self, store: &mut WorkloadStateStore) -> Vec<WorkloadState> {
        self.conditions.look();
        let some = self.conditions.of.values().any(|of| of.open().next().is_some());
        self.conditions.due = some.then(|| self.context.clock.now() + PRECONDITION_INTERVAL);
        self.withhold(store)
    }

    /// Stops who may not run any more, its dependents first, and lets those go on who may.
    pub(in crate::agent) fn withhold(&mut self, store: &mut WorkloadStateStore) -> Vec<WorkloadState> {
        if self.conditions.of.is_empty() && self.scheduler.withheld.is_empty() {
            return Vec::new();
        }
        let wanted = self.wanted_workloads();
        let withheld = with_dependents(self.conditions.closed(), &wanted);
        let before = std::mem::replace(&mut self.scheduler.withheld, withheld.clone());
        let mut reports = Vec::new();
        for (name, why) in &withheld {
            if let Some(added) = wanted.get(name) {
                reports.extend(self.withhold_one(added, why, &wanted, store));
            }
        }
        for name in before.keys().filter(|name| !withheld.contains_key(*name)) {
            reports.extend(self.release(name, store));
        }
        reports
    }

    /// All that is to run here, whether it runs or waits.
    fn wanted_workloads(&self) -> BTreeMap<Name, AddedWorkload> {
        let mut wanted: BTreeMap<Name, AddedWorkload> = BTreeMap::new();
        for (name, object) in self.objects.iter().filter(|(_, object)| !object.ending) {
            let added = |workload: &Arc<Workload>| (object.instance.clone(), workload.clone());
            let added = object.workload.as_ref().map(added);
            wanted.extend(added.map(|(instance, workload)| (name.clone(), AddedWorkload { instance, workload })));
        }
        for Change { name, new, .. } in self.scheduler.iter() {
            match new {
                Some(added) => _ = wanted.insert(name.clone(), added.clone()),
                None => _ = wanted.remove(name),
            }
        }
        wanted
    }

    // [impl->swdd~agent-lifecycle-precondition~1]
    fn withhold_one(
        &mut self,
        added: &AddedWorkload,
        why: &str,
        wanted: &BTreeMap<Name, AddedWorkload>,
        store: &mut WorkloadStateStore,
    ) -> Vec<WorkloadState> {
        let AddedWorkload { instance, .. } = added;
        let name = &instance.workload;
        match self.scheduler.get(name) {
            // It does not run: only the reason may be a new one.
            Some(Change { deleted: None, .. }) => {
                let shown = store.get(instance);
                let stale = shown
                    .is_some_and(|shown| shown.phase == Phase::PendingWaitingToStart && &*shown.additional_info != why);
                let state = ExecutionState::with_info(Phase::PendingWaitingToStart, why);
                return if stale { vec![WorkloadState::new(instance.clone(), state)] } else { Vec::new() };
            }
            Some(_) => return Vec::new(),
            None => {}
        }
        let running = self.live(name).is_some_and(|object| object.workload.is_some());
        if !running || has_finished(added, store) {
            return Vec::new();
        }
        let needs_it = |other: &&AddedWorkload| {
            other.workload.dependencies.get(&**name) == Some(&AddCondition::Running)
                && self.scheduler.withheld.contains_key(&other.instance.workload)
                && !has_finished(other, store)
        };
        let dependents = wanted.values().filter(needs_it);
        let dependencies = dependents
            .map(|other| (other.instance.workload.to_string(), DeleteCondition::NotPendingNorRunning))
            .collect();
        if may_log(name) {
            log::info!("Workload '{name}' may not run: {why}");
        }
        let deleted = DeletedWorkload { instance: instance.clone(), dependencies };
        let change = Change { withheld: true, ..Change::replace(deleted, Some(added.clone())) };
        let decision = self.scheduler.decide(change, store);
        self.execute_all(decision)
    }

    fn release(&mut self, name: &Name, store: &mut WorkloadStateStore) -> Vec<WorkloadState> {
        if self.scheduler.get(name).is_some_and(|waiting| waiting.withheld)
            && let Some(instance) =
                self.scheduler.take(name).and_then(|waiting| waiting.new).map(|added| added.instance)
        {
            // It was not stopped yet, and may go on.
            return store.cancel_stop(&instance).map(|state| WorkloadState::new(instance, state)).into_iter().collect();
        }
        if may_log(name) {
            log::info!("Workload '{name}' may run again.");
        }
        let decision = self.scheduler.recheck(name, store);
        self.execute_all(decision)
    }
}

/// Whether it ended and stays so: there is nothing to stop, and it is not to run again because a path came back.
fn has_finished(AddedWorkload { instance, workload }: &AddedWorkload, store: &WorkloadStateStore) -> bool {
    match (store.get(instance).map(|state| state.phase), workload.restart_policy) {
        (Some(Phase::Succeeded), policy) => policy != RestartPolicy::Always,
        (Some(Phase::FailedExecFailed), policy) => policy == RestartPolicy::Never,
        _ => false,
    }
}

fn waits_for(name: &str) -> String {
    short_info(format!("waits for '{name}', which may not run"))
}

/// Adds all who need one of these to run, directly or not.
fn with_dependents(closed: BTreeMap<Name, String>, wanted: &BTreeMap<Name, AddedWorkload>) -> BTreeMap<Name, String> {
    let mut all = closed;
    let mut open: BTreeSet<Name> = all.keys().cloned().collect();
    while let Some(name) = open.pop_first() {
        for (dependent, added) in wanted {
            let needs = added.workload.dependencies.get(&*name) == Some(&AddCondition::Running);
            if needs && !all.contains_key(dependent) {
                all.insert(dependent.clone(), waits_for(&name));
                open.insert(dependent.clone());
            }
        }
    }
    all
}

#[cfg(test)]
mod tests;
