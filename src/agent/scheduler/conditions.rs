//! Activations and preconditions: which workloads are blocked on this node at the moment, and why.
//!
//! Thread: `scheduler`, which owns them. `workloads.rs` blocks the workloads and their dependents.

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

/// Returns for each of these paths of the node whether it exists. Paths that do not answer are left
/// out.
pub(crate) type CheckPaths = Box<dyn FnMut(&BTreeSet<&str>) -> BTreeMap<String, bool> + Send>;

/// The facts of the node that conditions depend on.
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
        Self {
            tags,
            check_paths: Box::new(move |paths| {
                let mut exist = BTreeMap::new();
                let paths = paths.iter().map(|path| (*path).to_owned());
                for (path, facts) in probes.look(paths, PATH_WAIT) {
                    exist.insert(path, facts.is_some());
                }
                exist
            }),
        }
    }
}

/// The conditions of one instance.
pub(crate) struct StartConditions {
    activation: Evaluated,
    /// The condition of the update that stages it.
    update: Evaluated,
    precondition: Evaluated,
    /// The instance is staged: a path that does not answer is missing, since an update can wait.
    /// Otherwise such a path keeps the last result, and the activation is evaluated only once.
    is_staged: bool,
}

/// A condition with its last result.
struct Evaluated {
    /// `None` if there is none, or if its result is final.
    condition: Option<Condition>,
    /// The part that does not hold. A path that never answered does not hold.
    unmet: Option<String>,
}

impl Evaluated {
    /// Evaluates the condition before any path has answered.
    fn new(condition: Option<Condition>, tags: &BTreeMap<String, String>) -> Self {
        let unmet = match &condition {
            Some(condition) => condition.unmet(|_| None, tags),
            None => None,
        };
        Self { condition, unmet }
    }

    fn evaluate(&mut self, known: &BTreeMap<String, bool>, tags: &BTreeMap<String, String>) {
        if let Some(condition) = &self.condition {
            self.unmet = condition.unmet(|path| known.get(path).copied(), tags);
        }
    }

    /// Whether there is a condition, and all its paths have answered.
    fn has_answers(&self, known: &BTreeMap<String, bool>) -> bool {
        match &self.condition {
            Some(condition) => condition.paths().all(|path| known.contains_key(path)),
            None => false,
        }
    }
}

impl StartConditions {
    /// Returns the evaluated conditions of a desired or staged instance; `None` when it has none.
    // [impl->swdd~agent-lifecycle-activation~1]
    pub(crate) fn new(
        added: &AddedWorkload,
        is_staged: bool,
        facts: &mut NodeFacts,
    ) -> Option<Self> {
        let config = added.workload.config();
        let lifecycle = config.usable_lifecycle()?;
        let update = match &lifecycle.update {
            Some(update) if is_staged => update.when.clone(),
            _ => None,
        };
        let mut conditions = Self {
            activation: Evaluated::new(lifecycle.activation.clone(), &facts.tags),
            update: Evaluated::new(update, &facts.tags),
            precondition: Evaluated::new(lifecycle.precondition.clone(), &facts.tags),
            is_staged,
        };
        if !conditions.is_open() {
            return None;
        }
        let known = (facts.check_paths)(&conditions.paths().collect_entries());
        conditions.evaluate(&known, &facts.tags);
        Some(conditions)
    }

    fn all(&self) -> [&Evaluated; 3] {
        [&self.activation, &self.update, &self.precondition]
    }

    /// The paths of the conditions that are still evaluated.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        let conditions = self.all().map(|one| one.condition.as_ref());
        conditions.into_iter().flatten().flat_map(Condition::paths)
    }

    /// Evaluates the conditions again: `known` says which paths exist. A condition with a path that
    /// has not answered keeps its last result, unless the instance is staged.
    pub(crate) fn evaluate(
        &mut self,
        known: &BTreeMap<String, bool>,
        tags: &BTreeMap<String, String>,
    ) {
        let is_activation_known = self.activation.has_answers(known);
        let all = [
            &mut self.activation,
            &mut self.update,
            &mut self.precondition,
        ];
        for condition in all {
            if self.is_staged || condition.has_answers(known) {
                condition.evaluate(known, tags);
            }
        }
        if self.is_staged || !is_activation_known {
            return; // The activation is evaluated again.
        }
        self.activation.condition = None; // Its result is final.
        if self.is_inactive() {
            self.precondition.condition = None; // The workload never runs.
        }
    }

    /// Whether there is a condition to evaluate again.
    pub(crate) fn is_open(&self) -> bool {
        self.all().iter().any(|one| one.condition.is_some())
    }

    /// Why the workload is blocked, if it is.
    pub(crate) fn reason(&self) -> Option<Note> {
        if let Some(why) = &self.activation.unmet {
            let is_final = self.activation.condition.is_none();
            if is_final {
                return Some(note(Reason::Inactive, INACTIVE_PREFIX, why));
            }
            return Some(note(Reason::Activation, ACTIVATION_PREFIX, why));
        }
        let why = self.precondition.unmet.as_ref()?;
        Some(note(Reason::Precondition, PRECONDITION_PREFIX, why))
    }

    /// Whether the activation does not hold, so that the workload does not run on this node.
    pub(crate) fn is_inactive(&self) -> bool {
        self.activation.unmet.is_some()
    }

    /// Whether the precondition holds.
    pub(crate) fn may_run(&self) -> bool {
        self.precondition.unmet.is_none()
    }

    /// Why a staged instance must not replace the old one yet, if so.
    pub(crate) fn staged_unmet(&self) -> Option<&str> {
        if self.update.unmet.is_some() {
            return self.update.unmet.as_deref();
        }
        if self.is_inactive() {
            return None; // It will not run, so its precondition does not matter.
        }
        self.precondition.unmet.as_deref()
    }
}

fn note(reason: Reason, prefix: &str, why: &str) -> Note {
    Note::new(reason, short_info(format!("{prefix}{why}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stepped_agent::wanted_with;

    /// Conditions of a workload with this block, on a node where no path has answered.
    fn conditions(block: &str) -> StartConditions {
        let added = wanted_with("db", &format!("image: x\nlifecycle: {block}"), |_| {});
        let mut facts = NodeFacts {
            tags: BTreeMap::new(),
            check_paths: Box::new(|_| BTreeMap::new()),
        };
        StartConditions::new(&added, false, &mut facts).unwrap()
    }

    const BOTH: &str = "{ activation: { pathExists: /dev/x }, precondition: { pathExists: /key } }";

    fn evaluate(conditions: &mut StartConditions, paths: &[(&str, bool)]) {
        let known = paths
            .iter()
            .map(|(path, exists)| ((*path).to_owned(), *exists));
        conditions.evaluate(&known.collect_entries(), &BTreeMap::new());
    }

    #[test]
    fn precondition_is_evaluated_while_the_activation_is_unknown() {
        let mut both = conditions(BOTH);
        evaluate(&mut both, &[("/key", false)]);
        assert_eq!(both.reason().unwrap().reason, Reason::Activation);
        evaluate(&mut both, &[("/dev/x", true), ("/key", false)]);
        assert_eq!(both.reason().unwrap().reason, Reason::Precondition);
        assert!(both.is_open() && !both.may_run());
        evaluate(&mut both, &[("/key", true)]);
        assert!(both.reason().is_none() && both.may_run());
    }

    #[test]
    fn workload_that_is_not_relevant_is_evaluated_only_once() {
        let mut both = conditions(BOTH);
        evaluate(&mut both, &[("/dev/x", false), ("/key", true)]);
        assert_eq!(both.reason().unwrap().reason, Reason::Inactive);
        assert!(!both.is_open() && both.paths().next().is_none());
        let mut relevant = conditions("{ activation: { pathExists: /dev/x } }");
        assert!(relevant.is_open());
        evaluate(&mut relevant, &[("/dev/x", true)]);
        assert!(!relevant.is_open() && relevant.reason().is_none());
    }
}
