//! Deletes: the dependents that each waits for, and the orders that agents were sent.
//!
//! Thread: `server`; a plain value owned by [`super::Updates`].

use super::reports::AgentConnection;
use super::workloads::{Users, Workloads, needed_running};
use crate::effects::Effects;
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::complete_state::WorkloadStates;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::messages::{AddedWorkload, DeletedWorkload, FromServer, WorkloadPlan};
use ankaios_model::names::{InstanceName, Name, of_workload};
use ankaios_model::workload::DeleteCondition;
use std::collections::{BTreeMap, BTreeSet};

/// Length of a chain of waiting deletes that is followed to find a circle. A circle over several
/// agents comes from a few updates. A chain in a manifest may have thousands of workloads, and is
/// followed for each of them.
const DELETE_CIRCLE_MAX: usize = 100;

/// Workloads that earlier revisions of one stopping instance needed and that wait for its end, at
/// most. If its agent is stuck, each update adds some.
const EARLIER_NEEDS_MAX: usize = 256;

/// The one condition of deletes that the server sends.
const CONDITION: DeleteCondition = DeleteCondition::NotPendingNorRunning;

/// Names of workloads by instance, and the instances by name. An instance without names is not
/// kept.
#[derive(Debug, Default)]
struct NamesByInstance {
    names: BTreeMap<InstanceName, BTreeSet<String>>,
    instances: Users<InstanceName>,
}

impl NamesByInstance {
    fn set(&mut self, instance: InstanceName, names: BTreeSet<String>) {
        self.remove(&instance);
        if !names.is_empty() {
            self.instances.add(&instance, &names);
            self.names.insert(instance, names);
        }
    }

    fn remove(&mut self, instance: &InstanceName) {
        if let Some(names) = self.names.remove(instance) {
            self.instances.remove(instance, &names);
        }
    }
}

/// Deletes that have not ended.
#[derive(Debug, Default)]
pub(crate) struct Deletes {
    /// Instances that agents have to stop, with the workloads that they need until their end.
    stopping: NamesByInstance,
    /// Deletes that were sent with conditions, by their instances.
    sent: BTreeMap<InstanceName, SentDelete>,
    /// The instances in `sent` that wait for each workload.
    waiting: Users<InstanceName>,
}

/// A delete as an agent was sent it. It waits for the instances that were there and needed the
/// deleted one. Its conditions name workloads, which may have other instances since. When only
/// those are left, the server removes the condition, see [`Deletes::relieve`].
#[derive(Debug, Clone, Default)]
struct SentDelete {
    /// The workloads that it waits for. Empty after all conditions were removed.
    conditions: BTreeSet<String>,
    /// The instances that it waits for, as far as they are not known to have ended.
    awaited: BTreeMap<InstanceName, Awaited>,
    /// The agent has connected again since, so it may have an earlier order.
    may_be_lost: bool,
}

/// An instance that a delete waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    /// The present revision of its workload. It runs until it is replaced or deleted.
    Present,
    /// An earlier revision, which its agent stops. A later one may have the same instance name.
    Earlier,
}

impl Deletes {
    /// Notes that `stopped` will stop on its agent, with the workloads that it needs running. An
    /// earlier revision of the same instance may still run there, so its needs are kept as well.
    pub(crate) fn note_stopping(&mut self, stopped: AddedWorkload) {
        let mut needs = BTreeSet::new();
        if let Some(earlier) = self.stopping.names.get(&stopped.instance) {
            needs.extend(earlier.iter().take(EARLIER_NEEDS_MAX).cloned());
        }
        needs.extend(needed_running(&stopped.workload).cloned());
        self.stopping.set(stopped.instance, needs);
    }

    /// Forgets that `instance` stops: it does not exist.
    pub(crate) fn forget_stopping(&mut self, instance: &InstanceName) {
        self.stopping.remove(instance);
    }

    /// Notes that the end of `instance` is reported. If the instance is wanted, an earlier revision
    /// may have ended, and the present one still waits for the workloads that were sent last.
    pub(crate) fn note_end(&mut self, instance: &InstanceName, is_wanted: bool) {
        self.stopping.remove(instance);
        let Some(sent) = self.sent.get(instance) else {
            return;
        };
        if !is_wanted || sent.conditions.is_empty() {
            self.forget_sent(instance);
        }
    }

    /// Notes that these instances were replaced or deleted. Earlier deletes that wait for one of
    /// them do not wait for its successor.
    pub(crate) fn note_replaced(&mut self, replaced: &[InstanceName]) {
        for instance in replaced {
            for waiting in self.waiting.of(&instance.workload) {
                if let Some(sent) = self.sent.get_mut(waiting)
                    && let Some(awaited) = sent.awaited.get_mut(instance)
                {
                    *awaited = Awaited::Earlier;
                }
            }
        }
    }

    /// Notes that a delete is sent to an agent, with an update that has replaced or deleted the
    /// `replaced` workloads.
    pub(crate) fn note_sent(
        &mut self,
        deleted: &DeletedWorkload,
        replaced: &BTreeSet<Name>,
        workloads: &Workloads,
    ) {
        let needed = &deleted.instance.workload;
        let mut sent = SentDelete {
            conditions: deleted.dependencies.keys().cloned().collect_entries(),
            ..SentDelete::default()
        };
        for instance in self.stopping.instances.of(needed) {
            if sent.conditions.contains(&*instance.workload) {
                sent.awaited.insert(instance.clone(), Awaited::Earlier);
            }
        }
        for name in workloads.dependents.of(needed) {
            let Some(present) = workloads.effective.get(name) else {
                continue;
            };
            let was_there = !replaced.contains(name);
            if was_there && sent.conditions.contains(&**name) {
                let instance = present.instance.clone();
                sent.awaited.insert(instance, Awaited::Present);
            }
        }
        for instance in self.of_order(&deleted.instance) {
            // One that may wait already is kept without conditions: the message may be lost.
            if !sent.conditions.is_empty() || self.sent.contains_key(&instance) {
                self.keep_sent(instance, sent.clone());
            }
        }
    }

    /// The instances that an order about `own` applies to. An agent has one order for a workload at
    /// a time: `own` may never have started, and then the conditions are for an older instance that
    /// still waits to stop.
    fn of_order(&self, own: &InstanceName) -> Vec<InstanceName> {
        let mut instances = vec![own.clone()];
        for (earlier, _) in of_workload(&self.sent, &own.workload) {
            if earlier.agent == own.agent && earlier != own {
                instances.push(earlier.clone());
            }
        }
        instances
    }

    /// Keeps a delete that is sent, in place of an earlier one.
    fn keep_sent(&mut self, instance: InstanceName, sent: SentDelete) {
        self.forget_sent(&instance);
        self.waiting.add(&instance, &sent.conditions);
        self.sent.insert(instance, sent);
    }

    fn forget_sent(&mut self, instance: &InstanceName) {
        if let Some(sent) = self.sent.remove(instance) {
            self.waiting.remove(instance, &sent.conditions);
        }
    }

    /// Notes that an agent has connected again: deletes that it was sent before may be lost. Those
    /// of instances without a state are forgotten, since it may never report an end of these.
    pub(crate) fn agent_connected(&mut self, agent: &str, states: &WorkloadStates) {
        let mut forgotten = Vec::new();
        for (instance, sent) in &mut self.sent {
            if *instance.agent != *agent {
                continue;
            }
            sent.may_be_lost = true;
            if states.get(instance).is_none() {
                forgotten.push(instance.clone());
            }
        }
        for instance in &forgotten {
            self.forget_sent(instance);
        }
    }

    /// Returns whether `instance` is being deleted.
    pub(crate) fn contain(&self, instance: &InstanceName) -> bool {
        self.sent.contains_key(instance) || self.stopping.names.contains_key(instance)
    }

    /// The workloads that the delete of `instance` waits for, as it was sent last; empty without
    /// conditions.
    pub(crate) fn conditions(&self, instance: &InstanceName) -> BTreeSet<String> {
        match self.sent.get(instance) {
            Some(sent) => sent.conditions.clone(),
            None => BTreeSet::new(),
        }
    }

    /// The deletes of these instances with their conditions: each waits for the workloads that need
    /// it running. Call it before an update changes `workloads`.
    pub(crate) fn with_conditions(
        &mut self,
        deleted: Vec<InstanceName>,
        workloads: &Workloads,
    ) -> Vec<DeletedWorkload> {
        let mut with_conditions = Vec::new();
        for instance in deleted {
            self.forget_stopped_users(&instance.workload, &workloads.states);
            let mut dependencies = BTreeMap::new();
            for name in workloads.dependents.of(&instance.workload) {
                dependencies.insert(name.to_string(), CONDITION);
            }
            // Also for earlier dependents that still stop, but not if a workload of the same name
            // exists again: a condition names the workload, and its new instance may never end.
            for stopping in self.stopping.instances.of(&instance.workload) {
                if !workloads.effective.contains_key(&stopping.workload) {
                    dependencies.insert(stopping.workload.to_string(), CONDITION);
                }
            }
            with_conditions.push(DeletedWorkload {
                instance,
                dependencies,
            });
        }
        with_conditions
    }

    /// Forgets stopping instances that need `needed` and have no state any more: they have stopped.
    fn forget_stopped_users(&mut self, needed: &str, states: &WorkloadStates) {
        let mut stopped = Vec::new();
        for instance in self.stopping.instances.of(needed) {
            if states.get(instance).is_none() {
                stopped.push(instance.clone());
            }
        }
        for instance in &stopped {
            self.stopping.remove(instance);
        }
    }

    /// Notes the new state of a wanted instance. If an earlier revision had the same instance name,
    /// the state may show that this revision has ended.
    pub(crate) fn note_state(&mut self, instance: &InstanceName, state: &ExecutionState) {
        let shows_end = state.phase.is_pending()
            || state.phase == Phase::Removed
            || !may_run_again(Some(state));
        if !shows_end {
            return;
        }
        for waiting in self.waiting.of(&instance.workload) {
            if let Some(sent) = self.sent.get_mut(waiting)
                && sent.awaited.get(instance) == Some(&Awaited::Earlier)
            {
                sent.awaited.remove(instance);
            }
        }
    }

    /// Removes conditions that deletes need not wait for any more, after states of the `changed`
    /// instances were reported. A delete that has fewer conditions is sent again, and so is one
    /// that may be lost.
    pub(super) fn relieve<'n>(
        &mut self,
        changed: impl Iterator<Item = &'n InstanceName>,
        workloads: &Workloads,
        agents: &BTreeMap<Name, AgentConnection>,
        effects: &mut Effects,
    ) {
        if self.sent.is_empty() {
            return;
        }
        for instance in self.waiting_for(changed, &workloads.states) {
            let Some(sent) = self.sent.get(&instance) else {
                continue;
            };
            let mut dependencies = BTreeMap::new();
            for name in &sent.conditions {
                let needed = &instance.workload;
                if self.must_wait_for(name, sent, needed, workloads, agents) {
                    dependencies.insert(name.clone(), CONDITION);
                }
            }
            if dependencies.len() == sent.conditions.len() && !sent.may_be_lost {
                continue; // All are still waited for, so the order stays.
            }
            log::debug!("The delete of '{instance}' is sent again with its present conditions.");
            let sent = SentDelete {
                conditions: dependencies.keys().cloned().collect_entries(),
                awaited: sent.awaited.clone(),
                may_be_lost: false,
            };
            for of_order in self.of_order(&instance) {
                self.keep_sent(of_order, sent.clone());
            }
            let deleted = DeletedWorkload {
                instance,
                dependencies,
            };
            send_again(deleted, workloads, effects);
        }
    }

    /// The instances that wait to stop and may wait for less now: the `changed` ones, and instances
    /// whose deletes wait for a changed workload.
    fn waiting_for<'n>(
        &self,
        changed: impl Iterator<Item = &'n InstanceName>,
        states: &WorkloadStates,
    ) -> BTreeSet<InstanceName> {
        let mut concerned = BTreeSet::new();
        for instance in changed {
            if let Some((sent, _)) = self.sent.get_key_value(instance) {
                concerned.insert(sent.clone());
            }
            concerned.extend(self.waiting.of(&instance.workload).cloned());
        }
        concerned.retain(|instance| states.get(instance).is_some_and(is_waiting));
        concerned
    }

    /// Returns whether the delete of an instance of `needed` still has to wait for the workload
    /// `name`. The cases, in this order:
    /// - The present revision needs `needed` and was there when the delete was sent: yes.
    /// - Its end waits for `needed` in turn: no.
    /// - It does not exist any more, so its agent reports the end of all its instances: yes.
    /// - An earlier instance that needs `needed` may still run: yes.
    /// - Otherwise only later instances are left. The agent does not wait for one that has not
    ///   started, so the order can stay: yes. For one that has started: no.
    fn must_wait_for(
        &self,
        name: &str,
        sent: &SentDelete,
        needed: &str,
        workloads: &Workloads,
        agents: &BTreeMap<Name, AgentConnection>,
    ) -> bool {
        let mut awaited = of_workload(&sent.awaited, name);
        if awaited.any(|(_, awaited)| *awaited == Awaited::Present) {
            return true;
        }
        if self.waits_for(name, needed, &workloads.states) {
            return false;
        }
        let Some(present) = workloads.effective.get(name) else {
            return true;
        };
        let present = &present.instance;
        let present_state = workloads.states.get(present);
        for (earlier, _) in of_workload(&sent.awaited, name) {
            let may_run = if earlier == present {
                // Its end removes it from `awaited`. No agent has it yet in the first state.
                present_state.is_some_and(|state| state.phase != Phase::PendingInitial)
            } else {
                may_run_again(workloads.states.get(earlier))
            };
            if may_run {
                return true;
            }
        }
        match present_state {
            // Agents do not receive this state. Without its agent, no report follows.
            Some(state) if state.phase == Phase::PendingInitial => {
                agents.contains_key(&present.agent)
            }
            Some(state) => state.fulfils_delete(CONDITION),
            None => true,
        }
    }

    /// Sends orders again for instances that wait to stop because of an order that this server does
    /// not know: an earlier server sent it, or the end of the instance was reported before it
    /// started again. The instance then waits for all present dependents, since it is not known
    /// which of them were there.
    ///
    /// A wanted instance may wait as well, to be replaced by another revision of itself. Its order
    /// is sent again once, unless this connection has had one: a late report may repeat the wait
    /// although the agent was sent that it waits for less. The wait may be shown only after the
    /// first report, since the old revision is restarted by its policy meanwhile.
    pub(super) fn resend_unknown(
        &mut self,
        states: &[WorkloadState],
        workloads: &Workloads,
        agents: &mut BTreeMap<Name, AgentConnection>,
        effects: &mut Effects,
    ) {
        let mut unknown = Vec::new();
        for WorkloadState { instance, state } in states {
            if !is_waiting(state) || self.sent.contains_key(instance) {
                continue;
            }
            if !workloads.is_wanted(instance) {
                unknown.push(instance.clone());
                continue;
            }
            if let Some(agent) = agents.get_mut(&instance.agent) {
                let is_first = agent.note_ordered(instance);
                if is_first {
                    unknown.push(instance.clone());
                }
            }
        }
        for deleted in self.with_conditions(unknown, workloads) {
            self.note_sent(&deleted, &BTreeSet::new(), workloads);
            send_again(deleted, workloads, effects);
        }
    }

    /// Returns whether the end of `name` waits for the end of `other`, directly or not, as agents
    /// report. An agent finds a circle of its own workloads by itself. At most
    /// [`DELETE_CIRCLE_MAX`] workloads are followed.
    fn waits_for(&self, name: &str, other: &str, states: &WorkloadStates) -> bool {
        let mut next = vec![name];
        let mut seen = BTreeSet::new();
        while let Some(waiting) = next.pop() {
            if seen.len() > DELETE_CIRCLE_MAX {
                return false;
            }
            for (instance, sent) in of_workload(&self.sent, waiting) {
                if !states.get(instance).is_some_and(is_waiting) {
                    continue;
                }
                if sent.conditions.contains(other) {
                    return true;
                }
                for name in &sent.conditions {
                    let is_new = seen.insert(name.as_str());
                    if is_new {
                        next.push(name);
                    }
                }
            }
        }
        false
    }
}

/// Sends a delete again, together with the successor of the instance on the same agent: both are
/// one order.
fn send_again(deleted: DeletedWorkload, workloads: &Workloads, effects: &mut Effects) {
    let agent = deleted.instance.agent.clone();
    let mut plan = WorkloadPlan::default();
    if let Some(successor) = workloads.effective.get(&deleted.instance.workload)
        && successor.instance.agent == agent
    {
        plan.added.push(successor.clone());
    }
    plan.deleted.push(deleted);
    effects.send_to_agent(&agent, FromServer::UpdateWorkload(plan));
}

/// Returns whether an instance waits for the end of other workloads before its own.
fn is_waiting(state: &ExecutionState) -> bool {
    state.phase == Phase::StoppingWaitingToStop
}

/// Returns whether an old instance with this last reported state may still run, or run again: its
/// agent may start it before it receives the delete.
fn may_run_again(state: Option<&ExecutionState>) -> bool {
    let Some(state) = state else { return false };
    let is_stopping = state.phase.state() == "Stopping" || state.phase == Phase::AgentDisconnected;
    let is_over = is_stopping && state.fulfils_delete(CONDITION);
    !is_over
}

/// For tests of other files and crates.
#[cfg(debug_assertions)]
impl Deletes {
    /// Number of stopping instances and of deletes with conditions.
    pub(crate) fn len(&self) -> [usize; 2] {
        assert!(!self.sent.is_empty() || self.waiting.is_empty());
        [self.stopping.names.len(), self.sent.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effects::Effect;
    use ankaios_model::reason::Reason;
    use ankaios_model::workload::{AddCondition, Workload};
    use std::sync::Arc;

    fn added(name: &str, needs: &[(&str, AddCondition)]) -> AddedWorkload {
        let mut workload = Workload::new("A", "r", "c");
        workload.dependencies = needs
            .iter()
            .map(|(name, condition)| ((*name).to_owned(), *condition))
            .collect();
        AddedWorkload {
            instance: InstanceName::with_id(name, "id", "A"),
            workload: Arc::new(workload),
        }
    }

    const NEEDS_B: &[(&str, AddCondition)] = &[("b", AddCondition::Running)];
    const NEEDS_DB: &[(&str, AddCondition)] = &[("db", AddCondition::Running)];

    fn instance(name: &str) -> InstanceName {
        InstanceName::with_id(name, "id", "A")
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// A delete that waits for `dependents`.
    fn delete(instance: &InstanceName, dependents: &[&str]) -> DeletedWorkload {
        let dependencies = names(dependents)
            .into_iter()
            .map(|name| (name, CONDITION))
            .collect();
        DeletedWorkload {
            instance: instance.clone(),
            dependencies,
        }
    }

    /// Effective workloads, and states of instances.
    fn workloads(effective: &[AddedWorkload], states: &[(&InstanceName, Phase)]) -> Workloads {
        let mut workloads = Workloads::default();
        effective.iter().for_each(|added| workloads.begin(added));
        for (instance, phase) in states {
            workloads
                .states
                .set(instance, ExecutionState::plain(*phase));
        }
        workloads
    }

    /// Notes a delete that is sent while no workload is effective.
    fn note_sent(deletes: &mut Deletes, deleted: &DeletedWorkload) {
        deletes.note_sent(deleted, &BTreeSet::new(), &Workloads::default());
    }

    /// The deletes that are sent again when the states of `changed` are known.
    fn sent_again<'n>(
        deletes: &mut Deletes,
        changed: impl IntoIterator<Item = &'n InstanceName>,
        workloads: &Workloads,
    ) -> Vec<DeletedWorkload> {
        let mut effects = Effects::default();
        let agents = BTreeMap::new();
        deletes.relieve(changed.into_iter(), workloads, &agents, &mut effects);
        let mut sent = Vec::new();
        for effect in effects {
            let Effect::SendToAgent {
                message: FromServer::UpdateWorkload(plan),
                ..
            } = effect
            else {
                panic!("{effect:?}")
            };
            sent.extend(plan.deleted);
        }
        sent
    }

    #[test]
    fn a_deleted_workload_waits_for_those_that_need_it_running() {
        let c = added(
            "c",
            &[("b", AddCondition::Succeeded), ("x", AddCondition::Running)],
        );
        let d = instance("d");
        let states = [(&d, Phase::Running), (&c.instance, Phase::Running)];
        let mut workloads = workloads(&[added("a", NEEDS_B), added("b", &[]), c.clone()], &states);
        workloads.begin(&added("gone", NEEDS_B));
        workloads.end(&"gone".into());
        let mut deletes = Deletes::default();
        // Gone from the state but still stopping; gone and stopped; back in another revision.
        ["d", "e", "c"]
            .into_iter()
            .for_each(|name| deletes.note_stopping(added(name, NEEDS_B)));
        deletes.note_stopping(added("nothing_needed", &[("b", AddCondition::Failed)]));
        let waits = |deletes: &mut Deletes, name: &str| {
            let deleted = deletes.with_conditions(vec![instance(name)], &workloads);
            deleted[0]
                .dependencies
                .keys()
                .cloned()
                .collect::<BTreeSet<String>>()
        };
        assert_eq!(waits(&mut deletes, "b"), names(&["a", "d"]));
        assert_eq!(waits(&mut deletes, "x"), names(&["c"]));
        assert_eq!(waits(&mut deletes, "a"), names(&[]));
        assert_eq!(
            deletes.len(),
            [2, 0],
            "what has no state any more is forgotten"
        );
        deletes.forget_stopping(&d);
        assert_eq!(waits(&mut deletes, "b"), names(&["a"]));
    }

    /// Seed 9915876 of the simulation: an update gave a workload that was to run other dependencies
    /// and was undone at once. Its agent heard late of both, and may have started the first
    /// revision meanwhile.
    #[test]
    fn needs_of_all_revisions_of_a_stopping_instance_wait() {
        let mut deletes = Deletes::default();
        for needs in [NEEDS_B, NEEDS_DB, &[]] {
            deletes.note_stopping(added("web", needs));
        }
        let workloads = workloads(&[], &[(&instance("web"), Phase::PendingWaitingToStart)]);
        let both = ["b", "db"].map(instance).to_vec();
        let waiting = ["b", "db"].map(|name| delete(&instance(name), &["web"]));
        assert_eq!(deletes.with_conditions(both.clone(), &workloads), waiting);
        deletes.forget_stopping(&instance("web"));
        let free = ["b", "db"].map(|name| delete(&instance(name), &[]));
        assert_eq!(
            (deletes.with_conditions(both, &workloads), deletes.len()),
            (free.to_vec(), [0, 0])
        );
    }

    const WEB: &str = "web";

    /// `db` waits to be deleted until `web` has stopped, which needs it and was replaced with the
    /// same update: by `id`, with these dependencies. Returns the deletes that are sent again when
    /// that has come to this state, and the old one of another name to `old`.
    fn relieved(
        id: &str,
        needs: &[(&str, AddCondition)],
        phase: Phase,
        old: Option<ExecutionState>,
    ) -> Vec<DeletedWorkload> {
        let db = instance("db");
        let mut web = added(WEB, needs);
        web.instance = InstanceName::with_id(WEB, id, "A");
        let states = [(&db, Phase::StoppingWaitingToStop), (&web.instance, phase)];
        let mut workloads = workloads(std::slice::from_ref(&web), &states);
        if let Some(old) = old {
            workloads.states.set(&instance(WEB), old);
        }
        let mut deletes = Deletes::default();
        deletes.note_stopping(added(WEB, NEEDS_DB));
        let replaced = BTreeSet::from([Name::from(WEB)]);
        deletes.note_sent(&delete(&db, &[WEB]), &replaced, &workloads);
        deletes.note_state(&web.instance, &ExecutionState::plain(phase));
        let mut sent = |changed: &InstanceName| sent_again(&mut deletes, [changed], &workloads);
        assert!(
            sent(&instance("other")).is_empty(),
            "states of others change nothing"
        );
        let first = sent(&web.instance);
        assert!(sent(&db).is_empty(), "nothing is sent a third time");
        first
    }

    /// Whether the new revision needs the deleted workload does not matter: it was not there.
    #[test]
    fn delete_waits_until_a_replaced_dependent_has_ended() {
        let waits_for_nobody = [delete(&instance("db"), &[])];
        for needs in [&[], NEEDS_DB] {
            let relieved = |id, phase, old| relieved(id, needs, phase, old);
            assert_eq!(relieved("new", Phase::Running, None), waits_for_nobody);
            // The agent of the deleted one sees by itself that it need not wait.
            for phase in [
                Phase::Succeeded,
                Phase::PendingWaitingToStart,
                Phase::StoppingRequestedAtRuntime,
            ] {
                assert_eq!(relieved("new", phase, None), [], "{phase}");
                assert_eq!(relieved("id", phase, None), [], "{phase}");
            }
            // Both revisions have the same instance name.
            assert_eq!(
                relieved("id", Phase::PendingStarting, None),
                waits_for_nobody,
                "the later one starts"
            );
            for phase in [Phase::Running, Phase::StoppingWaitingToStop] {
                assert_eq!(
                    relieved("id", phase, None),
                    [],
                    "{phase}: it may be the earlier one"
                );
            }
            let stopping = Phase::StoppingRequestedAtRuntime;
            for (old, is_waited_for) in [
                (ExecutionState::plain(Phase::Running), true),
                // It may have been started since then (seeds 1202390 and 770985 of the simulation).
                (ExecutionState::plain(Phase::PendingWaitingToStart), true),
                (ExecutionState::plain(Phase::Succeeded), true),
                (
                    ExecutionState::with_info(stopping, "still there").because(Reason::Gone),
                    true,
                ),
                (ExecutionState::plain(Phase::StoppingWaitingToStop), true),
                (ExecutionState::plain(stopping), false),
                (ExecutionState::plain(Phase::AgentDisconnected), false),
            ] {
                let expected = if is_waited_for {
                    &[][..]
                } else {
                    &waits_for_nobody
                };
                assert_eq!(
                    relieved("new", Phase::Running, Some(old.clone())),
                    expected,
                    "{old}"
                );
            }
        }
    }

    #[test]
    fn delete_waits_for_a_dependent_until_it_is_replaced() {
        let (db, web) = (instance("db"), added(WEB, NEEDS_DB));
        let running = [
            (&db, Phase::StoppingWaitingToStop),
            (&web.instance, Phase::Running),
        ];
        let workloads = workloads(std::slice::from_ref(&web), &running);
        let mut deletes = Deletes::default();
        deletes.note_sent(&delete(&db, &[WEB]), &BTreeSet::new(), &workloads);
        // Its checks may restart it, but it needs the workload afterwards.
        for phase in [
            Phase::StoppingRequestedAtRuntime,
            Phase::PendingStarting,
            Phase::Running,
        ] {
            deletes.note_state(&web.instance, &ExecutionState::plain(phase));
            assert_eq!(sent_again(&mut deletes, [&web.instance], &workloads), []);
        }
        // Another revision of the same instance name replaces it, and comes to the same state.
        deletes.note_replaced(std::slice::from_ref(&web.instance));
        assert_eq!(sent_again(&mut deletes, [&web.instance], &workloads), []);
        for phase in [Phase::StoppingRequestedAtRuntime, Phase::Running] {
            deletes.note_state(&web.instance, &ExecutionState::plain(phase));
        }
        assert_eq!(
            sent_again(&mut deletes, [&web.instance], &workloads),
            [delete(&db, &[])]
        );
    }

    #[test]
    fn delete_that_may_be_lost_is_sent_again_as_it_was() {
        let (db, web) = (instance("db"), added(WEB, NEEDS_DB));
        let waits = [
            (&db, Phase::StoppingWaitingToStop),
            (&web.instance, Phase::Running),
        ];
        let workloads = workloads(std::slice::from_ref(&web), &waits);
        let mut deletes = Deletes::default();
        let replaced = BTreeSet::from([Name::from(WEB)]);
        deletes.note_sent(&delete(&db, &[WEB]), &BTreeSet::new(), &workloads);
        deletes.agent_connected("B", &workloads.states);
        assert_eq!(sent_again(&mut deletes, [&db], &workloads), []);
        deletes.agent_connected("A", &workloads.states);
        let again = [delete(&db, &[WEB])];
        assert_eq!(sent_again(&mut deletes, [&db], &workloads), again);
        assert_eq!(sent_again(&mut deletes, [&db], &workloads), []);
        // The message that removes the condition may be lost as well.
        deletes.note_sent(&delete(&db, &[WEB]), &replaced, &workloads);
        let relieved = [delete(&db, &[])];
        assert_eq!(sent_again(&mut deletes, [&db], &workloads), relieved);
        deletes.agent_connected("A", &workloads.states);
        assert_eq!(sent_again(&mut deletes, [&db], &workloads), relieved);
        // So may be a later delete without conditions (seed 10162806 of the simulation).
        deletes.note_sent(&delete(&db, &[WEB]), &BTreeSet::new(), &workloads);
        deletes.note_sent(&delete(&db, &[]), &BTreeSet::new(), &workloads);
        deletes.agent_connected("A", &workloads.states);
        assert_eq!(sent_again(&mut deletes, [&db], &workloads), relieved);
        deletes.note_end(&db, true);
        assert_eq!(deletes.len(), [0, 0]);
    }

    /// Seed 70979 of the simulation: the agent let the older instance wait for the conditions of a
    /// newer one, which it had never started, and was not sent that it had to wait for less.
    #[test]
    fn older_instance_waits_for_the_conditions_sent_last() {
        let instance = |id: &str, agent: &str| InstanceName::with_id("db", id, agent);
        let (old, unstarted, elsewhere) =
            (instance("2", "A"), instance("1", "A"), instance("2", "B"));
        let mut deletes = Deletes::default();
        note_sent(&mut deletes, &delete(&elsewhere, &["web"]));
        note_sent(&mut deletes, &delete(&old, &["web"]));
        note_sent(
            &mut deletes,
            &delete(&InstanceName::with_id("db2", "2", "A"), &["web"]),
        );
        note_sent(&mut deletes, &delete(&unstarted, &["web", "log"]));
        deletes.note_end(&unstarted, false); // The agent reports that it does not exist.
        assert_eq!(deletes.conditions(&old), names(&["log", "web"]));
        assert_eq!(deletes.conditions(&elsewhere), names(&["web"]));
        let log = added("log", &[]); // It needs nothing of it any more.
        let states = [
            (&old, Phase::StoppingWaitingToStop),
            (&log.instance, Phase::Running),
        ];
        let workloads = workloads(std::slice::from_ref(&log), &states);
        assert_eq!(
            sent_again(&mut deletes, [&log.instance], &workloads),
            [delete(&old, &["web"])]
        );
        note_sent(&mut deletes, &delete(&unstarted, &[]));
        assert_eq!(
            (deletes.conditions(&old), deletes.len()),
            (names(&[]), [0, 3]),
            "it is deleted at once now"
        );
    }

    /// Each agent knows only what its own workloads wait for.
    #[test]
    fn circle_of_waiting_deletes_over_agents_is_broken() {
        let instance = |name: &str, agent: &str| InstanceName::with_id(name, "id", agent);
        let all =
            [("a", "b"), ("b", "c"), ("c", "a")].map(|(name, next)| (instance(name, name), next));
        let waits = |effective: &[AddedWorkload], waiting: usize| {
            let phase = |number| {
                if number < waiting {
                    Phase::StoppingWaitingToStop
                } else {
                    Phase::Running
                }
            };
            let states: Vec<_> = all
                .iter()
                .enumerate()
                .map(|(number, (one, _))| (one, phase(number)))
                .collect();
            let workloads = workloads(effective, &states);
            let mut deletes = Deletes::default();
            for (one, next) in &all {
                deletes.note_sent(&delete(one, &[next]), &BTreeSet::new(), &workloads);
            }
            let changed = all.iter().map(|(one, _)| one);
            sent_again(&mut deletes, changed, &workloads)
        };
        assert_eq!(
            waits(&[], 3),
            [delete(&all[0].0, &[])],
            "one of them is enough"
        );
        assert_eq!(waits(&[], 2), [], "the third is not known to wait");
        let needs_a = added("b", &[("a", AddCondition::Running)]);
        assert_eq!(
            waits(&[needs_a], 3),
            [delete(&all[1].0, &[])],
            "what is wanted and needs it is waited for"
        );
    }

    /// A manifest decides how long a chain is, and each of it reports that it waits.
    #[test]
    fn chain_of_deletes_is_followed_up_to_a_bound() {
        let circle = |length: usize| {
            let names: Vec<String> = (0..length).map(|number| format!("w{number:05}")).collect();
            let all: Vec<InstanceName> = names.iter().map(|name| instance(name)).collect();
            let mut deletes = Deletes::default();
            for (number, one) in all.iter().enumerate() {
                note_sent(&mut deletes, &delete(one, &[&names[(number + 1) % length]]));
            }
            let states: Vec<_> = all
                .iter()
                .map(|one| (one, Phase::StoppingWaitingToStop))
                .collect();
            sent_again(&mut deletes, [&all[0]], &workloads(&[], &states)).len()
        };
        assert_eq!(
            (circle(DELETE_CIRCLE_MAX), circle(DELETE_CIRCLE_MAX + 10)),
            (1, 0)
        );
    }

    #[test]
    fn a_delete_that_its_agent_does_not_let_wait_is_not_sent_again() {
        let (db, web) = (instance("db"), added("web", &[]));
        let mut deletes = Deletes::default();
        note_sent(&mut deletes, &delete(&db, &["web"]));
        for phase in [
            Phase::Running,
            Phase::StoppingRequestedAtRuntime,
            Phase::StoppingDeleteFailed,
        ] {
            let workloads = workloads(
                std::slice::from_ref(&web),
                &[(&web.instance, Phase::Running), (&db, phase)],
            );
            let again = sent_again(&mut deletes, [&db, &web.instance], &workloads);
            assert!(again.is_empty(), "{phase}");
        }
        let states = WorkloadStates::default(); // It has none, so it may never have an end.
        deletes.agent_connected("B", &states);
        assert_eq!(deletes.len(), [0, 1]);
        deletes.agent_connected("A", &states);
        assert_eq!(deletes.len(), [0, 0]);
    }

    #[test]
    fn deletes_contain_what_was_sent_or_awaits_its_end() {
        let mut deletes = Deletes::default();
        assert!(!deletes.contain(&instance("db")));
        note_sent(&mut deletes, &delete(&instance("db"), &["web"]));
        let stopped = added("web", NEEDS_DB);
        deletes.note_stopping(stopped.clone());
        assert!(deletes.contain(&instance("db")));
        assert!(deletes.contain(&stopped.instance));
        assert!(!deletes.contain(&instance("other")));
    }

    #[test]
    fn circle_of_deletes_with_many_conditions_is_bounded() {
        let is_found = |length: usize| {
            let names: Vec<String> = (0..length).map(|number| format!("w{number:05}")).collect();
            let all: Vec<InstanceName> = names.iter().map(|name| instance(name)).collect();
            let mut deletes = Deletes::default();
            for (number, one) in all.iter().enumerate() {
                // The next one of the circle, and two that wait for nothing.
                let next = &names[(number + 1) % length];
                let others = [format!("x{number}"), format!("y{number}")];
                note_sent(&mut deletes, &delete(one, &[next, &others[0], &others[1]]));
            }
            let mut states = Vec::new();
            for one in &all {
                states.push((one, Phase::StoppingWaitingToStop));
            }
            !sent_again(&mut deletes, [&all[0]], &workloads(&[], &states)).is_empty()
        };
        assert!(is_found(DELETE_CIRCLE_MAX / 3));
        assert!(!is_found(DELETE_CIRCLE_MAX));
    }
}
