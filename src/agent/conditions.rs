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

/// The conditions of all workloads that have some.
#[derive(Default)]
pub struct Conditions {
    facts: NodeFacts,
    /// Of those that are wanted.
    workloads: BTreeMap<Name, Gate>,
    /// Of instances that are staged for an update.
    staged: BTreeMap<Name, Gate>,
    due: Option<Instant>,
}

/// The conditions of one instance.
struct Gate {
    /// Its activation, the condition of its update, and its precondition.
    conditions: [Option<Condition>; 3],
    /// What does not hold of each. Until a path has answered, nothing is known to hold.
    unmet: [Option<String>; 3],
    /// A path that does not answer counts as missing: it is about an update, which can wait. Otherwise it changes nothing, and
    /// the activation is evaluated once.
    is_staged: bool,
}

impl Gate {
    fn new(conditions: [Option<Condition>; 3], is_staged: bool, facts: &mut NodeFacts) -> Self {
        let unknown = |condition: &Option<Condition>| condition.as_ref()?.unmet(|_| None, &facts.tags);
        let unmet = conditions.each_ref().map(unknown);
        let mut gate = Self { conditions, unmet, is_staged };
        let known = (facts.check_paths)(&gate.paths().collect());
        gate.evaluate(&known, &facts.tags);
        gate
    }

    fn paths(&self) -> impl Iterator<Item = &str> {
        self.conditions.iter().flatten().flat_map(Condition::paths)
    }

    fn evaluate(&mut self, known: &BTreeMap<String, bool>, tags: &BTreeMap<String, String>) {
        for (condition, unmet) in self.conditions.iter().zip(&mut self.unmet) {
            let Some(condition) = condition else { continue };
            if self.is_staged || condition.paths().all(|path| known.contains_key(path)) {
                *unmet = condition.unmet(|path| known.get(path).copied(), tags);
            }
        }
        let has_answered = |condition: &mut Condition| condition.paths().all(|path| known.contains_key(path));
        if !self.is_staged && self.conditions[0].take_if(has_answered).is_some() && self.unmet[0].is_some() {
            self.conditions[2] = None; // It never runs.
        }
    }

    /// Whether there is something to evaluate again.
    fn is_open(&self) -> bool {
        self.conditions.iter().any(Option::is_some)
    }

    /// Why the workload may not run.
    fn reason(&self) -> Option<String> {
        let text = match &self.unmet {
            // It may be relevant.
            [Some(why), ..] if self.conditions[0].is_some() => format!("activation: {why}"),
            [Some(why), ..] => format!("{INACTIVE_PREFIX}{why}"),
            [None, _, why] => format!("precondition: {}", why.as_ref()?),
        };
        Some(short_info(text))
    }
}

impl Conditions {
    pub fn new(facts: NodeFacts) -> Self {
        Self { facts, ..Self::default() }
    }

    /// How many workloads have some.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.workloads.len()
    }

    /// When [`Self::refresh`] wants to be called next.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Evaluates the conditions of a workload that is wanted from now on.
    // [impl->swdd~agent-lifecycle-activation~1]
    pub fn insert(&mut self, added: &AddedWorkload, now: Instant) {
        self.put(added, false, now);
    }

    /// Evaluates the conditions under which an instance that is staged from now on may replace the old one.
    pub fn stage(&mut self, added: &AddedWorkload, now: Instant) {
        self.put(added, true, now);
    }

    fn put(&mut self, added: &AddedWorkload, is_staged: bool, now: Instant) {
        let config = added.workload.config();
        let conditions = config.usable_lifecycle().map_or_else(Default::default, |lifecycle| {
            let update = lifecycle.update.as_ref().filter(|_| is_staged);
            let when = update.and_then(|update| update.when.clone());
            [lifecycle.activation.clone(), when, lifecycle.precondition.clone()]
        });
        let (name, gates) = (&added.instance.workload, if is_staged { &mut self.staged } else { &mut self.workloads });
        if conditions.iter().all(Option::is_none) {
            gates.remove(name);
            return;
        }
        let gate = Gate::new(conditions, is_staged, &mut self.facts);
        if gate.is_open() {
            self.due.get_or_insert(now + PRECONDITION_INTERVAL);
        }
        gates.insert(name.clone(), gate);
    }

    /// The workload is not wanted any more.
    pub fn remove(&mut self, name: &Name) {
        self.workloads.remove(name);
    }

    /// Nothing of the workload is staged any more.
    pub fn unstage(&mut self, name: &Name) {
        self.staged.remove(name);
    }

    /// Forgets the workloads that are not wanted.
    pub fn retain(&mut self, is_wanted: impl Fn(&Name) -> bool) {
        self.workloads.retain(|name, _| is_wanted(name));
    }

    /// Evaluates all preconditions again, what is staged, and activations whose paths did not answer.
    pub fn refresh(&mut self, now: Instant) {
        let gates = self.workloads.values().chain(self.staged.values());
        let known = (self.facts.check_paths)(&gates.flat_map(Gate::paths).collect());
        let mut is_open = false;
        for gate in self.workloads.values_mut().chain(self.staged.values_mut()) {
            gate.evaluate(&known, &self.facts.tags);
            is_open |= gate.is_open();
        }
        self.due = is_open.then(|| now + PRECONDITION_INTERVAL);
    }

    /// Whether what is staged of the workload is not relevant on this node.
    pub fn is_staged_inactive(&self, name: &Name) -> bool {
        self.staged.get(name).is_some_and(|staged| staged.unmet[0].is_some())
    }

    /// Whether the precondition of what is staged of the workload holds.
    pub fn may_staged_run(&self, name: &Name) -> bool {
        self.staged.get(name).is_none_or(|staged| staged.unmet[2].is_none())
    }

    /// Why what is staged of the workload may not replace the old instance yet. One that is not relevant on this node
    /// need not run.
    pub fn staged_unmet(&self, name: &Name) -> Option<&str> {
        let [inactive, when, precondition] = &self.staged.get(name)?.unmet;
        when.as_deref().or_else(|| precondition.as_deref().filter(|_| inactive.is_none()))
    }

    /// Whether the workload is not relevant on this node.
    pub fn is_inactive(&self, name: &Name) -> bool {
        self.workloads.get(name).is_some_and(|conditions| conditions.unmet[0].is_some())
    }

    /// Why the workload may not run because of its own conditions.
    pub fn reason(&self, name: &Name) -> Option<String> {
        self.workloads.get(name)?.reason()
    }

    /// Each workload that may not run because of its own conditions, and why.
    pub fn closed(&self) -> BTreeMap<Name, String> {
        let reasons = self.workloads.iter().map(|(name, conditions)| Some((name.clone(), conditions.reason()?)));
        reasons.flatten().collect()
    }
}
