//! Dependencies between workloads: the cycle check of an update, and what a workload that is deleted waits for.
//!
//! Thread: `server`; plain values and functions.

use crate::model::complete_state::WorkloadStates;
use crate::model::messages::{AddedWorkload, DeletedWorkload};
use crate::model::names::{InstanceName, Name};
use crate::model::workload::{AddCondition, DeleteCondition, Workload};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Workloads = BTreeMap<Name, Arc<Workload>>;

/// A workload that waits for itself through workloads reachable from `starts`, or `None`.
///
/// Every condition counts, and so does only what exists. Names are followed in sorted order; the answer is the
/// first one that is reached again while it is still being followed, so the same graph always names the same.
/// A depth-first search with three colours: an iterative one, since the length of a chain is up to the user.
#[must_use]
pub fn find_cycle(workloads: &Workloads, starts: &BTreeSet<Name>) -> Option<Name> {
    let mut finished: BTreeSet<&str> = BTreeSet::new();
    let mut open: BTreeSet<&str> = BTreeSet::new();
    for start in starts {
        let Some((start, workload)) = workloads.get_key_value(start) else { continue };
        if finished.contains(&**start) {
            continue;
        }
        open.insert(start);
        let mut way = vec![(start, workload.dependencies.keys())];
        while let Some((name, rest)) = way.last_mut() {
            let Some(next) = rest.next() else {
                open.remove(&***name);
                finished.insert(name);
                way.pop();
                continue;
            };
            if open.contains(next.as_str()) {
                return Some(next.as_str().into());
            }
            if let Some((next, workload)) = workloads.get_key_value(next.as_str())
                && !finished.contains(&**next)
            {
                open.insert(next);
                way.push((next, workload.dependencies.keys()));
            }
        }
    }
    None
}

/// Workloads that were told to stop, with the workloads that they need until then.
#[derive(Debug, Default)]
pub struct StoppingDependents {
    needs: BTreeMap<InstanceName, Vec<Name>>,
}

impl StoppingDependents {
    /// `added` is about to stop on its agent.
    pub fn note(&mut self, stopped: &AddedWorkload) {
        let needs: Vec<Name> = needed_running(&stopped.workload).map(Name::from).collect();
        if !needs.is_empty() {
            self.needs.insert(stopped.instance.clone(), needs);
        }
    }

    /// `instance` is gone.
    pub fn forget(&mut self, instance: &InstanceName) {
        self.needs.remove(instance);
    }

    /// Number of instances that are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.needs.len()
    }

    /// Whether no instance is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.needs.is_empty()
    }
}

fn needed_running(workload: &Workload) -> impl Iterator<Item = &str> {
    let running = workload.dependencies.iter().filter(|(_, condition)| **condition == AddCondition::Running);
    running.map(|(name, _)| name.as_str())
}

/// Adds to each of `deleted` what it must wait for: the workloads that need it running.
///
/// These are the ones of `before`, the effective workloads when the update came, and those in `stopping` that still
/// have a state. A stopped workload that exists again is judged by its present form alone: its name would stand for
/// the new instance, and waiting for that to end could last for ever.
#[must_use]
pub fn with_delete_conditions(
    deleted: Vec<InstanceName>,
    before: &BTreeMap<Name, AddedWorkload>,
    stopping: &mut StoppingDependents,
    states: &WorkloadStates,
) -> Vec<DeletedWorkload> {
    stopping.needs.retain(|instance, _| states.get(instance).is_some());
    let mut dependents: BTreeMap<&str, Vec<&Name>> = BTreeMap::new();
    if !deleted.is_empty() {
        for (name, added) in before {
            for needed in needed_running(&added.workload) {
                dependents.entry(needed).or_default().push(name);
            }
        }
        for (instance, needs) in &stopping.needs {
            if !before.contains_key(&instance.workload) {
                needs.iter().for_each(|needed| dependents.entry(needed).or_default().push(&instance.workload));
            }
        }
    }
    let with_conditions = |instance: InstanceName| {
        let waits_for = dependents.get(&*instance.workload).into_iter().flatten();
        let condition = DeleteCondition::NotPendingNorRunning;
        let dependencies = waits_for.map(|name| (name.to_string(), condition)).collect();
        DeletedWorkload { instance, dependencies }
    };
    deleted.into_iter().map(with_conditions).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::execution_state::{ExecutionState, Phase};

    fn graph(edges: &[(&str, &[&str])]) -> Workloads {
        let workload = |dependencies: &&[&str]| {
            let mut workload = Workload::new("A", "r", "c");
            workload.dependencies =
                dependencies.iter().map(|name| ((*name).to_owned(), AddCondition::Failed)).collect();
            Arc::new(workload)
        };
        edges.iter().map(|(name, dependencies)| (Name::from(*name), workload(dependencies))).collect()
    }

    fn cycle(edges: &[(&str, &[&str])]) -> Option<String> {
        let workloads = graph(edges);
        find_cycle(&workloads, &workloads.keys().cloned().collect()).map(|name| name.to_string())
    }

    #[test]
    fn cycles_are_found_and_always_named_by_the_same_workload() {
        for (edges, expected) in [
            (vec![("a", &[][..])], None),
            (vec![("a", &["a"][..])], Some("a")),
            (vec![("a", &["b"][..]), ("b", &["a"])], Some("a")),
            (vec![("a", &["b"][..]), ("b", &["c"]), ("c", &["b"])], Some("b")),
            (vec![("a", &["missing"][..]), ("b", &["a", "other"])], None),
            // A node that is reachable twice hides no cycle, and is none by itself.
            (vec![("a", &["b", "c", "d"][..]), ("b", &["a"]), ("d", &["c"])], Some("a")),
            (vec![("a", &["b", "c"][..]), ("b", &["d"]), ("c", &["d"]), ("d", &[])], None),
        ] {
            assert_eq!(cycle(&edges).as_deref(), expected, "{edges:?}");
        }
    }

    #[test]
    fn only_what_the_starts_reach_is_looked_at() {
        let workloads = graph(&[("a", &["b"]), ("b", &[]), ("x", &["x"])]);
        assert_eq!(find_cycle(&workloads, &["a".into()].into()), None);
        assert_eq!(find_cycle(&workloads, &["nobody".into()].into()), None);
    }

    #[test]
    fn a_chain_of_any_length_needs_no_stack() {
        let names: Vec<String> = (0..100_000).map(|index| format!("w{index:06}")).collect();
        let mut workloads = Workloads::new();
        for pair in names.windows(2) {
            let mut workload = Workload::new("A", "r", "c");
            workload.dependencies.insert(pair[1].clone(), AddCondition::Running);
            workloads.insert(pair[0].as_str().into(), Arc::new(workload));
        }
        assert_eq!(find_cycle(&workloads, &[names[0].as_str().into()].into()), None);
    }

    fn added(name: &str, needs: &[(&str, AddCondition)]) -> AddedWorkload {
        let mut workload = Workload::new("A", "r", "c");
        workload.dependencies = needs.iter().map(|(name, condition)| ((*name).to_owned(), *condition)).collect();
        AddedWorkload { instance: InstanceName::with_id(name, "id", "A"), workload: Arc::new(workload) }
    }

    #[test]
    fn a_deleted_workload_waits_for_those_that_need_it_running() {
        let before: BTreeMap<Name, AddedWorkload> = [
            ("a", added("a", &[("b", AddCondition::Running)])),
            ("b", added("b", &[])),
            ("c", added("c", &[("b", AddCondition::Succeeded), ("x", AddCondition::Running)])),
        ]
        .map(|(name, workload)| (name.into(), workload))
        .into();
        let mut states = WorkloadStates::default();
        let mut stopping = StoppingDependents::default();
        // Gone from the state but still stopping; gone and stopped; back in another form.
        for (name, has_state) in [("d", true), ("e", false), ("c", true)] {
            let stopped = added(name, &[("b", AddCondition::Running)]);
            if has_state {
                states.set(&stopped.instance, ExecutionState::plain(Phase::Running));
            }
            stopping.note(&stopped);
        }
        stopping.note(&added("nothing_needed", &[("b", AddCondition::Failed)]));
        let waits = |name: &str, stopping: &mut StoppingDependents| {
            let instance = InstanceName::with_id(name, "id", "A");
            let deleted = with_delete_conditions(vec![instance], &before, stopping, &states);
            deleted[0].dependencies.clone()
        };
        let expected = |names: &[&str]| -> BTreeMap<String, DeleteCondition> {
            names.iter().map(|name| ((*name).to_owned(), DeleteCondition::NotPendingNorRunning)).collect()
        };
        assert_eq!(waits("b", &mut stopping), expected(&["a", "d"]));
        assert_eq!(waits("x", &mut stopping), expected(&["c"]));
        assert_eq!(waits("a", &mut stopping), expected(&[]));
        assert_eq!(stopping.len(), 2, "what has no state any more is forgotten");
        stopping.forget(&InstanceName::with_id("d", "id", "A"));
        assert_eq!(waits("b", &mut stopping), expected(&["a"]));
    }
}
