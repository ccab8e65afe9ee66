//! Activations and preconditions: which workloads may not run on this node at the moment, and why.
//!
//! Thread: `scheduler`, which owns them. What follows for the workloads is in `runtime_manager.rs`.

use super::probes::paths::{self, PathProbes};
use super::probes::short_info;
use crate::limits::PRECONDITION_INTERVAL;
use crate::model::execution_state::INACTIVE_PREFIX;
use crate::model::lifecycle::Condition;
use crate::model::messages::AddedWorkload;
use crate::model::names::Name;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// Which of these paths of the node exist and which do not; without those that do not answer.
pub type CheckPaths = Box<dyn FnMut(&BTreeSet<&str>) -> BTreeMap<String, bool> + Send>;

/// What conditions are about.
pub struct NodeFacts {
    /// The tags that the agent was started with.
    pub tags: BTreeMap<String, String>,
    /// Checks paths.
    pub check_paths: CheckPaths,
}

impl Default for NodeFacts {
    fn default() -> Self {
        Self::new(BTreeMap::new())
    }
}

impl NodeFacts {
    /// The node of this process.
    #[must_use]
    pub fn new(tags: BTreeMap<String, String>) -> Self {
        // Most agents never check a path, and the queues take memory from the start.
        let mut probes = None;
        let check_paths = move |wanted: &BTreeSet<&str>| match &mut probes {
            None if wanted.is_empty() => BTreeMap::new(),
            probes => probes.get_or_insert_with(|| PathProbes::new(Arc::new(|| ()), paths::node())).exist(wanted),
        };
        Self { tags, check_paths: Box::new(check_paths) }
    }
}

/// The conditions of all wanted workloads that have some.
#[derive(Default)]
pub struct Conditions {
    facts: NodeFacts,
    workloads: BTreeMap<Name, WorkloadConditions>,
    /// Of instances that are staged for an update.
    staged: BTreeMap<Name, StagedConditions>,
    due: Option<Instant>,
}

/// Conditions under which a staged instance may replace the old one. A path that does not answer does not hold.
struct StagedConditions {
    /// Its activation, the condition of its update, and its precondition.
    conditions: [Option<Condition>; 3],
    /// What does not hold of each.
    unmet: [Option<String>; 3],
}

impl StagedConditions {
    fn paths(&self) -> impl Iterator<Item = &str> {
        self.conditions.iter().flatten().flat_map(Condition::paths)
    }

    fn evaluate(&mut self, known: &BTreeMap<String, bool>, tags: &BTreeMap<String, String>) {
        for (unmet, condition) in self.unmet.iter_mut().zip(&self.conditions) {
            *unmet = condition.as_ref().and_then(|condition| condition.unmet(|path| known.get(path).copied(), tags));
        }
    }
}

struct WorkloadConditions {
    /// The activation until its paths have answered once; it is not evaluated again.
    undecided: Option<Condition>,
    /// Why the workload is not relevant on this node.
    inactive: Option<String>,
    precondition: Option<Condition>,
    /// Why it may not run now.
    unmet: Option<String>,
}

impl WorkloadConditions {
    /// The conditions that have to be evaluated.
    fn open(&self) -> impl Iterator<Item = &Condition> {
        self.undecided.iter().chain(&self.precondition)
    }

    /// Evaluates the conditions whose paths have all answered. One that does not answer changes nothing.
    fn evaluate(&mut self, known: &BTreeMap<String, bool>, tags: &BTreeMap<String, String>) {
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

    /// Why the workload may not run.
    fn reason(&self) -> Option<String> {
        let text = match (&self.inactive, &self.unmet) {
            // It may be relevant.
            (Some(why), _) if self.undecided.is_some() => format!("activation: {why}"),
            (Some(why), _) => format!("{INACTIVE_PREFIX}{why}"),
            (None, why) => format!("precondition: {}", why.as_ref()?),
        };
        Some(short_info(text))
    }
}

impl Conditions {
    /// No workload is wanted yet.
    #[must_use]
    pub fn new(facts: NodeFacts) -> Self {
        Self { facts, workloads: BTreeMap::new(), staged: BTreeMap::new(), due: None }
    }

    /// How many workloads have some.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.workloads.len()
    }

    /// Whether no workload has any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.workloads.is_empty()
    }

    /// When [`Self::refresh`] wants to be called next.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Evaluates the conditions of a workload that is wanted from now on.
    // [impl->swdd~agent-lifecycle-activation~1]
    pub fn insert(&mut self, added: &AddedWorkload, now: Instant) {
        let (config, name) = (added.workload.config(), &added.instance.workload);
        let Some(lifecycle) =
            config.usable_lifecycle().filter(|found| found.activation.is_some() || found.precondition.is_some())
        else {
            self.workloads.remove(name);
            return;
        };
        // Until a path has answered, nothing is known to hold.
        let unknown = |condition: &Option<Condition>| condition.as_ref()?.unmet(|_| None, &self.facts.tags);
        let mut conditions = WorkloadConditions {
            inactive: unknown(&lifecycle.activation),
            unmet: unknown(&lifecycle.precondition),
            undecided: lifecycle.activation.clone(),
            precondition: lifecycle.precondition.clone(),
        };
        let known = (self.facts.check_paths)(&conditions.open().flat_map(Condition::paths).collect());
        conditions.evaluate(&known, &self.facts.tags);
        if conditions.undecided.is_none() && conditions.inactive.is_some() {
            conditions.precondition = None; // It never runs.
        }
        if conditions.open().next().is_some() {
            self.due.get_or_insert(now + PRECONDITION_INTERVAL);
        }
        self.workloads.insert(name.clone(), conditions);
    }

    /// The workload is not wanted any more.
    pub fn remove(&mut self, name: &Name) {
        self.workloads.remove(name);
    }

    /// Forgets the workloads that are not wanted.
    pub fn retain(&mut self, is_wanted: impl Fn(&Name) -> bool) {
        self.workloads.retain(|name, _| is_wanted(name));
    }

    /// Evaluates all preconditions again, what is staged, and activations whose paths did not answer.
    pub fn refresh(&mut self, now: Instant) {
        let own = self.workloads.values().flat_map(WorkloadConditions::open).flat_map(Condition::paths);
        let paths: BTreeSet<&str> = own.chain(self.staged.values().flat_map(StagedConditions::paths)).collect();
        let known = (self.facts.check_paths)(&paths);
        self.workloads.values_mut().for_each(|conditions| conditions.evaluate(&known, &self.facts.tags));
        self.staged.values_mut().for_each(|staged| staged.evaluate(&known, &self.facts.tags));
        let some = self.workloads.values().any(|conditions| conditions.open().next().is_some());
        self.due = (some || !self.staged.is_empty()).then(|| now + PRECONDITION_INTERVAL);
    }

    // ---------------------------------------------------------------- updates

    /// Evaluates the conditions of an instance that is staged for an update from now on.
    pub fn stage(&mut self, added: &AddedWorkload, now: Instant) {
        let (config, name) = (added.workload.config(), &added.instance.workload);
        let conditions = config.usable_lifecycle().map_or_else(Default::default, |lifecycle| {
            let when = lifecycle.update.as_ref().and_then(|update| update.when.clone());
            [lifecycle.activation.clone(), when, lifecycle.precondition.clone()]
        });
        if conditions.iter().all(Option::is_none) {
            return self.unstage(name);
        }
        let mut staged = StagedConditions { conditions, unmet: Default::default() };
        let known = (self.facts.check_paths)(&staged.paths().collect());
        staged.evaluate(&known, &self.facts.tags);
        self.staged.insert(name.clone(), staged);
        self.due.get_or_insert(now + PRECONDITION_INTERVAL);
    }

    /// Nothing of the workload is staged any more.
    pub fn unstage(&mut self, name: &Name) {
        self.staged.remove(name);
    }

    /// Whether what is staged of the workload is not relevant on this node.
    #[must_use]
    pub fn is_staged_inactive(&self, name: &Name) -> bool {
        self.staged.get(name).is_some_and(|staged| staged.unmet[0].is_some())
    }

    /// Whether the precondition of what is staged of the workload holds.
    #[must_use]
    pub fn may_staged_run(&self, name: &Name) -> bool {
        self.staged.get(name).is_none_or(|staged| staged.unmet[2].is_none())
    }

    /// Why what is staged of the workload may not replace the old instance yet. One that is not relevant on this node
    /// need not run.
    #[must_use]
    pub fn staged_unmet(&self, name: &Name) -> Option<&str> {
        let [inactive, when, precondition] = &self.staged.get(name)?.unmet;
        when.as_deref().or_else(|| precondition.as_deref().filter(|_| inactive.is_none()))
    }

    /// Whether the workload is not relevant on this node.
    #[must_use]
    pub fn is_inactive(&self, name: &Name) -> bool {
        self.workloads.get(name).is_some_and(|conditions| conditions.inactive.is_some())
    }

    /// Why the workload may not run because of its own conditions.
    #[must_use]
    pub fn reason(&self, name: &Name) -> Option<String> {
        self.workloads.get(name)?.reason()
    }

    /// Each workload that may not run because of its own conditions, and why.
    #[must_use]
    pub fn closed(&self) -> BTreeMap<Name, String> {
        let reasons = self.workloads.iter().map(|(name, conditions)| Some((name.clone(), conditions.reason()?)));
        reasons.flatten().collect()
    }
}
