//! Dependencies between workloads: the cycle check of an update, and what a workload that is deleted waits for.
//!
//! Thread: `server`; plain values and functions.

use crate::model::complete_state::WorkloadStates;
use crate::model::execution_state::{ExecutionState, Phase};
use crate::model::messages::{AddedWorkload, DeletedWorkload};
use crate::model::names::{InstanceName, Name};
use crate::model::workload::{AddCondition, DeleteCondition, Workload};
use std::collections::{BTreeMap, BTreeSet};

/// A workload that waits for itself through workloads reachable from `starts`, with those on the way, or `None`.
/// `workload` answers the workload of a name; nothing else is looked at.
///
/// Every condition counts, and so does only what exists. Names are followed in sorted order; the first of the answer
/// is the first one that is reached again while it is still being followed, so the same graph always names the same.
/// A depth-first search with three colours: an iterative one, since the length of a chain is up to the user.
#[must_use]
pub fn find_cycle<'w>(
    workload: impl Fn(&str) -> Option<&'w Workload>,
    starts: impl IntoIterator<Item = &'w Name>,
) -> Option<Vec<Name>> {
    let mut finished: BTreeSet<&str> = BTreeSet::new();
    let mut open: BTreeSet<&str> = BTreeSet::new();
    for start in starts {
        let start: &str = start;
        let Some(first) = workload(start).filter(|_| !finished.contains(start)) else { continue };
        open.insert(start);
        let mut way = vec![(start, first.dependencies.keys())];
        while let Some((name, rest)) = way.last_mut() {
            let Some(next) = rest.next().map(String::as_str) else {
                open.remove(*name);
                finished.insert(name);
                way.pop();
                continue;
            };
            if open.contains(next) {
                let cycle = way.iter().map(|(name, _)| *name).skip_while(|name| *name != next);
                return Some(cycle.map(Name::from).collect());
            }
            if !finished.contains(next)
                && let Some(workload) = workload(next)
            {
                open.insert(next);
                way.push((next, workload.dependencies.keys()));
            }
        }
    }
    None
}

/// Who needs whom running, by the name of the one that is needed. Kept up to date, so that a delete asks for its own
/// dependents and does not search all workloads.
#[derive(Debug)]
struct NeededBy<T> {
    by_needed: BTreeMap<String, BTreeSet<T>>,
}

impl<T> Default for NeededBy<T> {
    fn default() -> Self {
        Self { by_needed: BTreeMap::new() }
    }
}

impl<T: Ord + Clone> NeededBy<T> {
    fn add<'n>(&mut self, who: &T, needs: impl Iterator<Item = &'n str>) {
        for needed in needs {
            self.by_needed.entry(needed.to_owned()).or_default().insert(who.clone());
        }
    }

    fn remove<'n>(&mut self, who: &T, needs: impl Iterator<Item = &'n str>) {
        for needed in needs {
            if let Some(dependents) = self.by_needed.get_mut(needed) {
                dependents.remove(who);
                if dependents.is_empty() {
                    self.by_needed.remove(needed);
                }
            }
        }
    }

    fn of(&self, needed: &str) -> impl Iterator<Item = &T> {
        self.by_needed.get(needed).into_iter().flatten()
    }
}

/// Which of the effective workloads need others running.
#[derive(Debug, Default)]
pub struct Dependents {
    needed_by: NeededBy<Name>,
}

impl Dependents {
    /// `name` is an effective workload now.
    pub fn add(&mut self, name: &Name, workload: &Workload) {
        self.needed_by.add(name, needed_running(workload));
    }

    /// `name` was one.
    pub fn remove(&mut self, name: &Name, workload: &Workload) {
        self.needed_by.remove(name, needed_running(workload));
    }
}

/// Workloads that were told to stop, with the workloads that they need until then.
#[derive(Debug, Default)]
pub struct StoppingDependents {
    needs: BTreeMap<InstanceName, Vec<Name>>,
    needed_by: NeededBy<InstanceName>,
}

impl StoppingDependents {
    /// `added` is about to stop on its agent.
    pub fn note(&mut self, stopped: &AddedWorkload) {
        self.forget(&stopped.instance); // It may have needed others in an earlier form.
        let needs: Vec<Name> = needed_running(&stopped.workload).map(Name::from).collect();
        if !needs.is_empty() {
            self.needed_by.add(&stopped.instance, needs.iter().map(|needed| &**needed));
            self.needs.insert(stopped.instance.clone(), needs);
        }
    }

    /// `instance` is gone.
    pub fn forget(&mut self, instance: &InstanceName) {
        if let Some(needs) = self.needs.remove(instance) {
            self.needed_by.remove(instance, needs.iter().map(|needed| &**needed));
        }
    }

    /// Those that need `needed` and still have a state; the others are forgotten.
    fn still_needing(&mut self, needed: &str, states: &WorkloadStates) -> Vec<InstanceName> {
        let all: Vec<InstanceName> = self.needed_by.of(needed).cloned().collect();
        let (stopping, stopped): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|instance| states.get(instance).is_some());
        stopped.iter().for_each(|instance| self.forget(instance));
        stopping
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

/// Deletes that agents were told with conditions, until their instances are gone. A condition names a workload, so it
/// would hold for ever when that workload goes on in a form that needs nothing of the deleted one any more.
#[derive(Debug, Default)]
pub struct WaitingDeletes {
    told: BTreeMap<InstanceName, BTreeMap<String, DeleteCondition>>,
    by_dependent: NeededBy<InstanceName>,
}

impl WaitingDeletes {
    /// An agent is told this delete. What it was told before of the same workload counts no more: an agent has one order
    /// of a workload at a time, and the newest one names an instance that was perhaps never started while an older one
    /// goes on waiting, for this now.
    pub fn note(&mut self, deleted: &DeletedWorkload) {
        let DeletedWorkload { instance: InstanceName { workload, agent, .. }, dependencies } = deleted;
        let first = InstanceName::with_id(workload, "", "");
        let told = self.told.range(first..).map(|(told, _)| told).take_while(|told| told.workload == *workload);
        let mut waiting: Vec<InstanceName> = told.filter(|told| told.agent == *agent).cloned().collect();
        if !waiting.contains(&deleted.instance) {
            waiting.push(deleted.instance.clone());
        }
        for instance in waiting {
            self.forget(&instance);
            if !dependencies.is_empty() {
                self.by_dependent.add(&instance, dependencies.keys().map(String::as_str));
                self.told.insert(instance, dependencies.clone());
            }
        }
    }

    /// `instance` is gone and not wanted.
    pub fn forget(&mut self, instance: &InstanceName) {
        if let Some(conditions) = self.told.remove(instance) {
            self.by_dependent.remove(instance, conditions.keys().map(String::as_str));
        }
    }

    /// What the delete of `instance` waits for, if that was told.
    #[cfg(test)]
    pub fn conditions(&self, instance: &InstanceName) -> Option<&BTreeMap<String, DeleteCondition>> {
        self.told.get(instance)
    }

    /// An agent connects: what it was told before may not have arrived. What it lets wait it will say.
    pub fn forget_agent(&mut self, agent: &str) {
        let of_agent: Vec<InstanceName> = self.told.keys().filter(|told| *told.agent == *agent).cloned().collect();
        of_agent.iter().for_each(|instance| self.forget(instance));
    }

    /// Whether the delete of `instance` waits as it was told.
    #[must_use]
    pub fn has_told(&self, instance: &InstanceName) -> bool {
        self.told.contains_key(instance)
    }

    /// Number of deletes that are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.told.len()
    }

    /// Whether no delete is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    /// Deletes to be told again with fewer conditions, now that there is news of these instances: those that wait as
    /// their agents say, for a workload that exists in a form which does not need them. Old instances of that workload
    /// that do need them are waited for until they stop: what else is known of them may be past, one that waited to start
    /// or had ended may run again before its agent hears that it is not wanted any more.
    pub fn relieved<'n>(
        &mut self,
        news: impl Iterator<Item = &'n InstanceName>,
        effective: &BTreeMap<Name, AddedWorkload>,
        dependents: &Dependents,
        stopping: &StoppingDependents,
        states: &WorkloadStates,
    ) -> Vec<DeletedWorkload> {
        if self.told.is_empty() {
            return Vec::new();
        }
        let mut concerned: BTreeSet<InstanceName> = BTreeSet::new();
        for instance in news {
            concerned.extend(self.told.get_key_value(instance).map(|(told, _)| told.clone()));
            concerned.extend(self.by_dependent.of(&instance.workload).cloned());
        }
        let waits = |state: &ExecutionState| state.phase == Phase::StoppingWaitingToStop;
        concerned.retain(|instance| states.get(instance).is_some_and(waits));
        let mut relieved = Vec::new();
        for instance in concerned {
            let Some(conditions) = self.told.get(&instance) else { continue };
            let needed = &*instance.workload;
            let holds = |(name, condition): &(&String, &DeleteCondition)| {
                let Some(present) = effective.get(name.as_str()).map(|added| &added.instance) else { return true };
                let ends = |state: &ExecutionState| state.fulfils_delete(**condition);
                let old_runs = |old: &InstanceName| {
                    let may_run = |state: &ExecutionState| !(ends(state) && is_last(state.phase));
                    old.workload == present.workload && old != present && states.get(old).is_some_and(may_run)
                };
                dependents.needed_by.of(needed).any(|dependent| *dependent == present.workload)
                    || stopping.needed_by.of(needed).any(old_runs)
                    || states.get(present).is_none_or(ends)
            };
            let left: BTreeMap<String, DeleteCondition> =
                conditions.iter().filter(holds).map(|(name, condition)| (name.clone(), *condition)).collect();
            if left.len() < conditions.len() {
                let fewer = DeletedWorkload { instance, dependencies: left };
                self.note(&fewer);
                relieved.push(fewer);
            }
        }
        relieved
    }
}

/// Whether what is not wanted any more does not run again after this, as far as anybody can know.
fn is_last(phase: Phase) -> bool {
    phase.state() == "Stopping" || phase == Phase::AgentDisconnected
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
    dependents: &Dependents,
    stopping: &mut StoppingDependents,
    states: &WorkloadStates,
) -> Vec<DeletedWorkload> {
    let with_conditions = |instance: InstanceName| {
        let stopping = stopping.still_needing(&instance.workload, states).into_iter().map(|other| other.workload);
        let stopping = stopping.filter(|name| !before.contains_key(name));
        let waits_for = dependents.needed_by.of(&instance.workload).cloned().chain(stopping);
        let condition = DeleteCondition::NotPendingNorRunning;
        let dependencies = waits_for.map(|name| (name.to_string(), condition)).collect();
        DeletedWorkload { instance, dependencies }
    };
    deleted.into_iter().map(with_conditions).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::execution_state::GONE_PREFIX;
    use std::sync::Arc;

    type Workloads = BTreeMap<Name, Arc<Workload>>;

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
        let names = find_from(&workloads, workloads.keys())?;
        Some(names.iter().map(|name| &**name).collect::<Vec<_>>().join(" "))
    }

    fn find_from<'w>(workloads: &'w Workloads, starts: impl IntoIterator<Item = &'w Name>) -> Option<Vec<Name>> {
        find_cycle(|name| workloads.get(name).map(|workload| &**workload), starts)
    }

    #[test]
    fn cycles_are_found_and_always_named_by_the_same_workload() {
        for (edges, expected) in [
            (vec![("a", &[][..])], None),
            (vec![("a", &["a"][..])], Some("a")),
            (vec![("a", &["b"][..]), ("b", &["a"])], Some("a b")),
            (vec![("a", &["b"][..]), ("b", &["c"]), ("c", &["b"])], Some("b c")),
            (vec![("a", &["missing"][..]), ("b", &["a", "other"])], None),
            // A node that is reachable twice hides no cycle, and is none by itself.
            (vec![("a", &["b", "c", "d"][..]), ("b", &["a"]), ("d", &["c"])], Some("a b")),
            (vec![("a", &["b", "c"][..]), ("b", &["d"]), ("c", &["d"]), ("d", &[])], None),
        ] {
            assert_eq!(cycle(&edges).as_deref(), expected, "{edges:?}");
        }
    }

    #[test]
    fn only_what_the_starts_reach_is_looked_at() {
        let workloads = graph(&[("a", &["b"]), ("b", &[]), ("x", &["x"])]);
        assert_eq!(find_from(&workloads, &["a".into()]), None);
        assert_eq!(find_from(&workloads, &["nobody".into()]), None);
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
        assert_eq!(find_from(&workloads, &[names[0].as_str().into()]), None);
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
        let mut dependents = Dependents::default();
        dependents.add(&"a".into(), &added("a", &[("x", AddCondition::Running)]).workload);
        dependents.remove(&"a".into(), &added("a", &[("x", AddCondition::Running)]).workload);
        before.iter().for_each(|(name, added)| dependents.add(name, &added.workload));
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
            let deleted = with_delete_conditions(vec![instance], &before, &dependents, stopping, &states);
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

    /// `db` on A waits to be deleted until `web` has stopped, which needs it. Answers what is told again once `web` has
    /// come back in another form: as `id`, with these dependencies, in this state.
    fn relieved(
        id: &str,
        needs: &[(&str, AddCondition)],
        phase: Phase,
        old: Option<ExecutionState>,
    ) -> Vec<Vec<String>> {
        let db = InstanceName::with_id("db", "id", "A");
        let conditions = [("web".to_owned(), DeleteCondition::NotPendingNorRunning)].into();
        let mut waiting = WaitingDeletes::default();
        waiting.note(&DeletedWorkload { instance: db.clone(), dependencies: conditions });
        let mut stopping = StoppingDependents::default();
        stopping.note(&added("web", &[("db", AddCondition::Running)]));
        let mut web = added("web", needs);
        web.instance = InstanceName::with_id("web", id, "A");
        let mut dependents = Dependents::default();
        dependents.add(&"web".into(), &web.workload);
        let mut states = WorkloadStates::default();
        states.set(&db, ExecutionState::plain(Phase::StoppingWaitingToStop));
        states.set(&web.instance, ExecutionState::plain(phase));
        if let Some(old) = old {
            states.set(&InstanceName::with_id("web", "id", "A"), old);
        }
        let effective = [("web".into(), web.clone())].into();
        let mut told = |news: &InstanceName| {
            let again = waiting.relieved([news].into_iter(), &effective, &dependents, &stopping, &states);
            again.into_iter().map(|deleted| deleted.dependencies.into_keys().collect()).collect::<Vec<Vec<String>>>()
        };
        assert!(told(&InstanceName::with_id("other", "id", "A")).is_empty(), "news of others changes nothing");
        let first = told(&web.instance);
        assert!(told(&db).is_empty(), "nothing is told a third time");
        first
    }

    #[test]
    fn a_delete_does_not_wait_for_ever_for_a_dependent_that_no_longer_depends_on_it() {
        let nothing: [Vec<String>; 0] = [];
        let waits_for_nobody = [Vec::<String>::new()];
        assert_eq!(relieved("new", &[], Phase::Running, None), waits_for_nobody);
        assert_eq!(relieved("id", &[], Phase::PendingStarting, None), waits_for_nobody, "the same instance");
        // It still depends on it; it has stopped, which its agent sees by itself; its old form has not.
        assert_eq!(relieved("new", &[("db", AddCondition::Running)], Phase::Running, None), nothing);
        assert_eq!(relieved("new", &[], Phase::Succeeded, None), nothing);
        let stopping = Phase::StoppingRequestedAtRuntime;
        for (old, is_waited_for) in [
            (ExecutionState::plain(Phase::Running), true),
            // It may have been started since then (seeds 1202390 and 770985 of the simulation).
            (ExecutionState::plain(Phase::PendingWaitingToStart), true),
            (ExecutionState::plain(Phase::Succeeded), true),
            (ExecutionState::with_info(stopping, format!("{GONE_PREFIX}still answers")), true),
            (ExecutionState::plain(stopping), false),
            (ExecutionState::plain(Phase::AgentDisconnected), false),
        ] {
            let expected = if is_waited_for { &nothing[..] } else { &waits_for_nobody[..] };
            assert_eq!(relieved("new", &[], Phase::Running, Some(old.clone())), expected, "{old}");
        }
    }

    /// Seed 70979 of the simulation: the agent let the older instance wait for what it was told of a newer one, which it
    /// had never started. When it no longer had to, nobody told it.
    #[test]
    fn an_older_instance_waits_for_what_was_told_last_of_its_workload() {
        let instance = |id: &str, agent: &str| InstanceName::with_id("db", id, agent);
        let delete = |instance: &InstanceName, dependents: &[&str]| {
            let dependents = dependents.iter().map(|name| ((*name).to_owned(), DeleteCondition::NotPendingNorRunning));
            DeletedWorkload { instance: instance.clone(), dependencies: dependents.collect() }
        };
        let (old, unstarted, elsewhere) = (instance("2", "A"), instance("1", "A"), instance("2", "B"));
        let mut waiting = WaitingDeletes::default();
        waiting.note(&delete(&elsewhere, &["web"]));
        waiting.note(&delete(&old, &["web"]));
        waiting.note(&delete(&InstanceName::with_id("db2", "2", "A"), &["web"]));
        waiting.note(&delete(&unstarted, &["web", "log"]));
        waiting.forget(&unstarted); // The agent says that it does not exist.
        let told = |waiting: &WaitingDeletes, instance: &InstanceName| -> Vec<String> {
            waiting.conditions(instance).map(|told| told.keys().cloned().collect()).unwrap_or_default()
        };
        assert_eq!(
            (told(&waiting, &old), told(&waiting, &elsewhere)),
            (vec!["log".into(), "web".into()], vec!["web".into()])
        );
        let log = added("log", &[]); // It needs nothing of it any more.
        let mut states = WorkloadStates::default();
        states.set(&old, ExecutionState::plain(Phase::StoppingWaitingToStop));
        states.set(&log.instance, ExecutionState::plain(Phase::Running));
        let (dependents, stopping) = (Dependents::default(), StoppingDependents::default());
        let effective = [("log".into(), log.clone())].into();
        let again = waiting.relieved([&log.instance].into_iter(), &effective, &dependents, &stopping, &states);
        assert_eq!(again, [delete(&old, &["web"])]);
        waiting.note(&delete(&unstarted, &[]));
        assert_eq!((told(&waiting, &old), waiting.len()), (vec![], 2), "it goes at once now");
    }

    #[test]
    fn a_delete_that_its_agent_does_not_let_wait_is_not_told_again() {
        let db = InstanceName::with_id("db", "id", "A");
        let mut waiting = WaitingDeletes::default();
        let conditions = [("web".to_owned(), DeleteCondition::NotPendingNorRunning)].into();
        waiting.note(&DeletedWorkload { instance: db.clone(), dependencies: conditions });
        let web = added("web", &[]);
        let effective = [("web".into(), web.clone())].into();
        let mut states = WorkloadStates::default();
        states.set(&web.instance, ExecutionState::plain(Phase::Running));
        let (dependents, stopping) = (Dependents::default(), StoppingDependents::default());
        for phase in [Phase::Running, Phase::StoppingRequestedAtRuntime, Phase::StoppingDeleteFailed] {
            states.set(&db, ExecutionState::plain(phase));
            let news = [&db, &web.instance].into_iter();
            assert!(waiting.relieved(news, &effective, &dependents, &stopping, &states).is_empty(), "{phase}");
        }
        waiting.forget_agent("B");
        assert_eq!(waiting.len(), 1);
        waiting.forget_agent("A");
        assert!(waiting.is_empty() && waiting.by_dependent.by_needed.is_empty());
    }
}
