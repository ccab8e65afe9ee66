//! Activations and preconditions: which workloads may not run on this node at the moment, and why.
//!
//! Thread: `scheduler`, which owns them. What follows for the workloads is in `workloads.rs`.

use crate::events::Note;
use crate::limits::PATH_WAIT;
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::lifecycle::Condition;
use ankaios_model::messages::AddedWorkload;
use ankaios_model::reason::{ACTIVATION_PREFIX, INACTIVE_PREFIX, PRECONDITION_PREFIX, Reason};
use ankaios_runtime::probes::paths::{self, PathProbes};
use ankaios_runtime::probes::short_info;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Which of these paths of the node exist and which do not; without those that do not answer.
pub(crate) type CheckPaths = Box<dyn FnMut(&BTreeSet<&str>) -> BTreeMap<String, bool> + Send>;

/// What conditions are about.
pub struct NodeFacts {
    /// The tags that the agent was started with.
    pub tags: BTreeMap<String, String>,
    /// Checks paths.
    pub check_paths: CheckPaths,
}

impl NodeFacts {
    /// The node of this process.
    pub fn new(tags: BTreeMap<String, String>) -> Self {
        let mut probes = PathProbes::new(Arc::new(|| ()), paths::node());
        let check_paths = move |wanted: &BTreeSet<&str>| {
            let found = probes.look(wanted.iter().map(|path| (*path).to_owned()), PATH_WAIT);
            found
                .into_iter()
                .map(|(path, facts)| (path, facts.is_some()))
                .collect_entries()
        };
        Self {
            tags,
            check_paths: Box::new(check_paths),
        }
    }
}

/// The conditions of one instance.
pub(crate) struct Gate {
    /// Its activation, the condition of its update, and its precondition.
    conditions: [Option<Condition>; 3],
    /// What does not hold of each. Until a path has answered, nothing is known to hold.
    unmet: [Option<String>; 3],
    /// A path that does not answer counts as missing: it is about an update, which can wait.
    /// Otherwise it changes nothing, and the activation is evaluated once.
    is_staged: bool,
}

impl Gate {
    /// Those of an instance that is wanted from now on, or `is_staged`; `None` when it has none.
    // [impl->swdd~agent-lifecycle-activation~1]
    pub(crate) fn new(
        added: &AddedWorkload,
        is_staged: bool,
        facts: &mut NodeFacts,
    ) -> Option<Self> {
        let config = added.workload.config();
        let lifecycle = config.usable_lifecycle()?;
        let update = lifecycle.update.as_ref().filter(|_| is_staged);
        let when = update.and_then(|update| update.when.clone());
        let conditions = [
            lifecycle.activation.clone(),
            when,
            lifecycle.precondition.clone(),
        ];
        if conditions.iter().all(Option::is_none) {
            return None;
        }
        let unknown =
            |condition: &Option<Condition>| condition.as_ref()?.unmet(|_| None, &facts.tags);
        let unmet = conditions.each_ref().map(unknown);
        let mut gate = Self {
            conditions,
            unmet,
            is_staged,
        };
        let known = (facts.check_paths)(&gate.paths().collect_entries());
        gate.evaluate(&known, &facts.tags);
        Some(gate)
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.conditions.iter().flatten().flat_map(Condition::paths)
    }

    pub(crate) fn evaluate(
        &mut self,
        known: &BTreeMap<String, bool>,
        tags: &BTreeMap<String, String>,
    ) {
        for (condition, unmet) in self.conditions.iter().zip(&mut self.unmet) {
            let Some(condition) = condition else { continue };
            if self.is_staged || condition.paths().all(|path| known.contains_key(path)) {
                *unmet = condition.unmet(|path| known.get(path).copied(), tags);
            }
        }
        let has_answered =
            |condition: &mut Condition| condition.paths().all(|path| known.contains_key(path));
        if !self.is_staged
            && self.conditions[0].take_if(has_answered).is_some()
            && self.unmet[0].is_some()
        {
            self.conditions[2] = None; // It never runs.
        }
    }

    /// Whether there is something to evaluate again.
    pub(crate) fn is_open(&self) -> bool {
        self.conditions.iter().any(Option::is_some)
    }

    /// Why the workload may not run.
    pub(crate) fn reason(&self) -> Option<Note> {
        let (reason, text) = match &self.unmet {
            // It may be relevant.
            [Some(why), ..] if self.conditions[0].is_some() => {
                (Reason::Activation, format!("{ACTIVATION_PREFIX}{why}"))
            }
            [Some(why), ..] => (Reason::Inactive, format!("{INACTIVE_PREFIX}{why}")),
            [None, _, why] => {
                let text = format!("{PRECONDITION_PREFIX}{}", why.as_ref()?);
                (Reason::Precondition, text)
            }
        };
        Some(Note::new(reason, short_info(text)))
    }

    /// Whether the workload is not relevant on this node.
    pub(crate) fn is_inactive(&self) -> bool {
        self.unmet[0].is_some()
    }

    /// Whether the precondition holds.
    pub(crate) fn may_run(&self) -> bool {
        self.unmet[2].is_none()
    }

    /// Why what is staged may not replace the old instance yet. One that is not relevant on this
    /// node need not run.
    pub(crate) fn staged_unmet(&self) -> Option<&str> {
        let [inactive, when, precondition] = &self.unmet;
        when.as_deref()
            .or_else(|| precondition.as_deref().filter(|_| inactive.is_none()))
    }
}
