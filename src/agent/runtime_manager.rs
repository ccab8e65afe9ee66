//! Turns wanted workloads into operations, and operations into commands for control loops.
//!
//! Thread: `scheduler`, which owns it.
//! Owns: one object per workload (the sender of its control loop), the engines, the waiting operations.
//! Takes: plans of the server, listings, states. Gives: commands to `wl:<name>` (never waits), states to report.

use super::control_interface::{self, NoInterface};
use super::folder_removal::remove_folder;
use super::lifecycle::GONE_PREFIX;
use super::lifecycle::conditions::Conditions;
use super::state_checker::{WatchCommand, WatchReport};
use super::workload_command::{
    Engine, OtherEngine, WorkloadCommand, WorkloadCommandSender, WorkloadOrder, workload_inbox,
};
use super::workload_control_loop::{LoopContext, LoopId, WorkloadControlLoop};
use super::workload_scheduler::{Created, Decision, Operation, Updated, Waiting, WorkloadScheduler};
use super::workload_state_store::WorkloadStateStore;
use crate::clock::Clock;
use crate::limits::{REMOVAL_TURN_MAX, STACK_WORKLOAD};
use crate::logging::may_log;
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::lifecycle;
use crate::model::messages::{AddedWorkload, DeletedWorkload, Response, WorkloadPlan};
use crate::model::names::{InstanceName, Name, excerpt};
use crate::model::workload::Workload;
use crate::runtime::{RuntimeConnector, RuntimeError};
use crossbeam_channel::{Sender, bounded};
use log::{error, info, warn};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

/// Starts control loops. Tests and simulations keep them and call [`WorkloadControlLoop::step`] instead.
pub trait WorkloadThreads<C: Clock> {
    /// Lets `control_loop` run from now on.
    ///
    /// # Errors
    /// The control loop comes back when no thread can be had.
    fn start(&mut self, workload: &str, control_loop: Box<WorkloadControlLoop<C>>) -> Result<(), NoThread<C>>;
}

/// No thread can be had for a control loop, which is kept: it may hold the only id of a container.
pub struct NoThread<C: Clock> {
    /// The operating system's reason.
    pub error: io::Error,
    /// What could not be started.
    pub control_loop: Box<WorkloadControlLoop<C>>,
}

/// One thread per control loop, named `wl:<workload>`.
#[derive(Debug, Default)]
pub struct NamedThreads;

impl<C: Clock> WorkloadThreads<C> for NamedThreads {
    fn start(&mut self, workload: &str, control_loop: Box<WorkloadControlLoop<C>>) -> Result<(), NoThread<C>> {
        // What a thread that cannot be had was to run is dropped, so the loop is handed over afterwards.
        let (give, take) = bounded::<Box<WorkloadControlLoop<C>>>(1);
        let body = move || take.iter().for_each(|control_loop| control_loop.run());
        match crate::threads::spawn(format!("wl:{workload}"), STACK_WORKLOAD, body) {
            Ok(_) => _ = give.send(control_loop), // The other end waits for it.
            Err(error) => return Err(NoThread { error, control_loop }),
        }
        Ok(())
    }
}

/// How to use an engine.
pub struct EngineSource {
    /// Makes a connector; each control loop gets its own.
    pub connect: Box<dyn Fn() -> Box<dyn RuntimeConnector> + Send>,
    /// Its state checker.
    pub watch: Sender<WatchCommand>,
}

/// The enabled engines by the name of the runtime.
// [impl->swdd~agent-supports-multiple-runtime-connectors~1]
pub type Engines = BTreeMap<Name, EngineSource>;

/// What to do after an agent restart with workloads that have ended and are unchanged (DESIGN section 10).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RerunFinished {
    /// Run them again.
    Always,
    /// Leave those that ended at or after this time, in seconds since 1970.
    EndedBefore(u64),
}

/// One workload that has a control loop.
// [impl->swdd~agent-stores-running-workload~1]
pub(super) struct WorkloadObject {
    pub(super) sender: WorkloadCommandSender,
    number: u64,
    /// The instance last ordered.
    pub(super) instance: InstanceName,
    /// Where it was ordered. The same instance may have a container of another runtime, too: its id says nothing of it.
    pub(super) runtime: Name,
    /// What was last ordered; `None` for a container of an earlier life.
    workload: Option<Arc<Workload>>,
    /// The removal was ordered without anything new to start.
    pub(super) emptied: bool,
    /// Its delete was ordered; the object stays until the loop has ended.
    pub(super) deleting: bool,
}

/// What an object is made for.
pub(super) struct Identity {
    pub(super) instance: InstanceName,
    pub(super) runtime: Name,
    /// `None` for a container of an earlier life.
    pub(super) workload: Option<Arc<Workload>>,
}

impl Identity {
    pub(super) fn of(added: &AddedWorkload) -> Self {
        let AddedWorkload { instance, workload } = added;
        Self { instance: instance.clone(), runtime: workload.runtime.clone(), workload: Some(workload.clone()) }
    }
}

impl WorkloadObject {
    pub(super) fn workload(&self) -> Option<&Arc<Workload>> {
        self.workload.as_ref()
    }

    fn is_to_run(&self, instance: &InstanceName) -> bool {
        self.instance == *instance && !self.emptied && !self.deleting
    }

    pub(super) fn runs(&self, added: &AddedWorkload) -> bool {
        !self.emptied && self.instance == added.instance && self.workload.as_ref() == Some(&added.workload)
    }
}

/// All workloads of this agent.
pub struct RuntimeManager<C: Clock, T> {
    engines: Engines,
    /// Engines that have not said since the agent's start which containers they have.
    unlisted: BTreeSet<Name>,
    /// Those of them whose programs do not exist.
    absent: BTreeSet<Name>,
    /// Until then workloads of other runtimes wait for them, too.
    others_until: Option<Instant>,
    /// Control loops without a thread.
    unstarted: BTreeMap<Name, Box<WorkloadControlLoop<C>>>,
    pub(super) context: LoopContext<C>,
    pub(super) conditions: Conditions,
    random: fastrand::Rng,
    threads: T,
    pub(super) rerun: RerunFinished,
    pub(super) objects: BTreeMap<Name, WorkloadObject>,
    pub(super) scheduler: WorkloadScheduler,
    loops_started: u64,
}

fn removed(instance: &InstanceName) -> WorkloadState {
    WorkloadState::new(instance.clone(), ExecutionState::plain(Phase::Removed))
}

fn report_gone(instance: &InstanceName, reports: &mut Vec<WorkloadState>) {
    if !reports.iter().any(|report| report.instance == *instance) {
        reports.push(removed(instance));
    }
}

impl<C: Clock, T: WorkloadThreads<C>> RuntimeManager<C, T> {
    /// No workload yet.
    #[must_use]
    pub fn new(
        engines: Engines,
        context: LoopContext<C>,
        random: fastrand::Rng,
        threads: T,
        rerun: RerunFinished,
    ) -> Self {
        Self {
            unlisted: engines.keys().cloned().collect(),
            engines,
            absent: BTreeSet::new(),
            others_until: None,
            unstarted: BTreeMap::new(),
            context,
            conditions: Conditions::default(),
            random,
            threads,
            rerun,
            objects: BTreeMap::new(),
            scheduler: WorkloadScheduler::default(),
            loops_started: 0,
        }
    }

    /// See `AgentManager::sizes`.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 5] {
        let [waiting, waiters] = self.scheduler.sizes();
        [self.objects.len(), waiting, waiters, self.scheduler.withheld.len(), self.conditions.len()]
    }

    /// The enabled engines.
    #[must_use]
    pub fn engines(&self) -> &Engines {
        &self.engines
    }

    /// The threads of the control loops.
    pub fn threads(&mut self) -> &mut T {
        &mut self.threads
    }

    /// The engines were asked for their containers for the first time; until `at` all workloads wait for all of them.
    pub fn wait_for_others_until(&mut self, at: Instant) {
        self.others_until = Some(at);
    }

    /// Notes what an engine answered to the question which containers it has.
    pub fn note_listing<L>(&mut self, runtime: &Name, result: &Result<L, RuntimeError>) {
        match result {
            Ok(_) => _ = self.unlisted.remove(runtime),
            Err(RuntimeError::NotInstalled(_)) => _ = self.absent.insert(runtime.clone()),
            Err(_) => {}
        }
    }

    // ------------------------------------------------- wishes to operations

    /// The operations of a plan, deletes first (spec/agent.md section 7).
    // [impl->swdd~agent-transforms-update-workload-message-to-workload-operations~1]
    // [impl->swdd~agent-handle-deleted-before-added-workloads~1]
    #[must_use]
    pub fn operations(plan: WorkloadPlan) -> Vec<Operation> {
        let names = plan.added.iter().map(|added| added.instance.workload.clone());
        let mut added: BTreeMap<Name, AddedWorkload> = names.zip(plan.added.iter().cloned()).collect();
        let mut operations = Vec::new();
        for deleted in plan.deleted {
            operations.push(match added.remove(&deleted.instance.workload) {
                // [impl->swdd~agent-updates-deleted-and-added-workloads~1]
                Some(new) => Operation::Update(Updated { new, deleted }),
                // [impl->swdd~agent-deletes-workload~1]
                None => Operation::Delete(deleted),
            });
        }
        // [impl->swdd~agent-added-creates-workload~1]
        let rest = plan.added.into_iter().filter_map(|new| added.remove(&new.instance.workload));
        operations.extend(rest.map(|added| Operation::Create(Created { added, reuse: false })));
        operations
    }

    // --------------------------------------------------- operations to loops

    pub(super) fn live(&self, name: &str) -> Option<&WorkloadObject> {
        self.objects.get(name).filter(|object| !object.deleting)
    }

    /// Decides about an operation and executes what is ready. Answers states to report.
    // [impl->swdd~agent-handles-new-workload-operations]
    pub fn submit(&mut self, operation: Operation, store: &mut WorkloadStateStore) -> Vec<WorkloadState> {
        let name = operation.workload().clone();
        if matches!(&operation, Operation::Update(updated) if self.is_withheld_as_it_is(&updated.new)) {
            return Vec::new(); // The server cannot know for what it waits, and says once more what is wanted.
        }
        let replaced = self.scheduler.take(&name);
        let before = replaced.as_ref().and_then(Waiting::new_instance).map(|added| added.instance.clone());
        let ordered = |before: &InstanceName| self.objects.get(&name).is_some_and(|object| object.is_to_run(before));
        // Its control loop will say what becomes of it. Asked before the operation changes what is ordered.
        let held = before.as_ref().is_some_and(ordered);
        match &operation {
            Operation::Create(Created { added, .. }) => self.note_wanted(added),
            Operation::Update(updated) => self.note_wanted(&updated.new),
            Operation::Delete(_) => self.note_unwanted(&name),
            Operation::UpdateDeleteOnly(_) | Operation::Withhold(_) => {}
        }
        let mut reports = Vec::new();
        let refined = match operation {
            Operation::Create(created) => self.refine_create(created, replaced.as_ref(), store, &mut reports),
            Operation::Update(updated) => self.refine_update(updated, replaced.as_ref(), store, &mut reports),
            Operation::Delete(deleted) => self.refine_delete(deleted, replaced.as_ref(), &mut reports),
            Operation::UpdateDeleteOnly(_) | Operation::Withhold(_) => Some(operation),
        };
        if let Some(operation) = refined {
            let decision = self.scheduler.decide(operation, store);
            reports.extend(self.execute_all(decision));
        }
        if let Some(before) = before.filter(|_| !held) {
            let is_reported =
                |report: &WorkloadState| report.instance == before && report.state.phase == Phase::Removed;
            if self.never_starts(&name, &before, store) && !reports.iter().any(is_reported) {
                reports.insert(0, removed(&before));
            }
        }
        reports.iter_mut().for_each(|report| self.await_gone(report));
        reports.extend(self.withhold(store));
        reports
    }

    /// Whether it runs as wanted and waits to stop because it may not run at the moment.
    fn is_withheld_as_it_is(&self, added: &AddedWorkload) -> bool {
        let name = &added.instance.workload;
        matches!(self.scheduler.get(name), Some(Waiting::Withhold(updated)) if updated.new == *added)
            && self.live(name).is_some_and(|object| object.runs(added))
    }

    /// What waits to stop and has a `gone` condition also keeps what it depends on until it is gone (rule 14).
    pub(super) fn await_gone(&self, report: &mut WorkloadState) {
        let WorkloadState { instance, state } = report;
        let has_condition = |workload: &Arc<Workload>| {
            let lifecycle = lifecycle::of_config(&workload.runtime, &workload.runtime_config).ok().flatten();
            lifecycle.is_some_and(|lifecycle| lifecycle.gone.is_some())
        };
        let object = self.objects.get(&instance.workload).filter(|object| object.instance == *instance);
        let waits = state.phase == Phase::StoppingWaitingToStop;
        if waits && object.and_then(WorkloadObject::workload).is_some_and(has_condition) {
            state.additional_info = format!("{GONE_PREFIX}waits for those that depend on it").into();
        }
    }

    /// Whether nobody else will report `before`, which waited to be started until something else was ordered. What was
    /// last ordered says little: its control loop may still be busy with an earlier instance.
    fn never_starts(&self, name: &Name, before: &InstanceName, store: &WorkloadStateStore) -> bool {
        let ordered = |object: &WorkloadObject| object.is_to_run(before);
        let starts = self.waits_to_start(before) || self.objects.get(name).is_some_and(ordered);
        let shown = store.get(before).map(|state| state.phase);
        !starts && matches!(shown, None | Some(Phase::PendingWaitingToStart))
    }

    // [impl->swdd~agent-update-on-add-known-workload~1]
    fn refine_create(
        &mut self,
        created: Created,
        replaced: Option<&Waiting>,
        store: &mut WorkloadStateStore,
        reports: &mut Vec<WorkloadState>,
    ) -> Option<Operation> {
        let name = &created.added.instance.workload;
        let Some(object) = self.live(name).filter(|_| !created.reuse) else {
            return Some(Operation::Create(created));
        };
        warn!("Added workload '{name}' already exists. Updating without considering delete dependencies.");
        // What waits for others already goes on waiting for them.
        let dependencies = match replaced {
            Some(Waiting::Delete(deleted)) => deleted.dependencies.clone(),
            Some(Waiting::UpdateDelete(updated)) => updated.deleted.dependencies.clone(),
            _ => BTreeMap::new(),
        };
        let deleted = DeletedWorkload { instance: object.instance.clone(), dependencies };
        self.refine_update(Updated { new: created.added, deleted }, replaced, store, reports)
    }

    fn refine_update(
        &mut self,
        mut updated: Updated,
        replaced: Option<&Waiting>,
        store: &mut WorkloadStateStore,
        reports: &mut Vec<WorkloadState>,
    ) -> Option<Operation> {
        let name = updated.new.instance.workload.clone();
        let Some(object) = self.live(&name) else {
            // [impl->swdd~agent-add-on-update-missing-workload~1]
            if replaced.is_none() && !self.objects.contains_key(&name) {
                warn!("Workload for update '{name}' not found. Recreating.");
            }
            if updated.deleted.instance != updated.new.instance {
                report_gone(&updated.deleted.instance, reports);
            }
            return Some(Operation::Create(Created { added: updated.new, reuse: false }));
        };
        // The server tells an update again when it has to wait for less; it may have been carried out in the meantime.
        let repeated = updated.deleted.instance != object.instance;
        if (replaced.is_some() || repeated) && object.runs(&updated.new) {
            // What waited to be replaced or deleted is wanted as it is after all.
            let shown = store.cancel_stop(&updated.new.instance);
            reports.extend(shown.map(|state| WorkloadState::new(updated.new.instance, state)));
            return None;
        }
        self.correct_deleted(&mut updated.deleted, replaced, Some(&updated.new.instance), reports);
        Some(Operation::Update(updated))
    }

    fn refine_delete(
        &mut self,
        mut deleted: DeletedWorkload,
        replaced: Option<&Waiting>,
        reports: &mut Vec<WorkloadState>,
    ) -> Option<Operation> {
        let name = &deleted.instance.workload;
        match self.objects.get(name) {
            // A new delete command retries a failed delete at once.
            Some(object) if object.deleting && object.instance == deleted.instance => {
                let _ = object.sender.send(WorkloadCommand::Delete); // Ended means deleted.
                None
            }
            Some(object) if !object.deleting => {
                self.correct_deleted(&mut deleted, replaced, None, reports);
                Some(Operation::Delete(deleted))
            }
            _ => {
                if replaced.is_none() {
                    warn!("Workload '{name}' already gone.");
                }
                report_gone(&deleted.instance, reports);
                None
            }
        }
    }

    /// The server may name an instance that was never started; what must go is what the object has.
    fn correct_deleted(
        &self,
        deleted: &mut DeletedWorkload,
        replaced: Option<&Waiting>,
        new: Option<&InstanceName>,
        reports: &mut Vec<WorkloadState>,
    ) {
        let Some(object) = self.objects.get(&deleted.instance.workload) else { return };
        if deleted.instance != object.instance {
            if Some(&deleted.instance) != new {
                report_gone(&deleted.instance, reports);
            }
            deleted.instance = object.instance.clone();
        }
        if matches!(replaced, Some(Waiting::UpdateCreate(_))) {
            deleted.dependencies.clear(); // The old instance is being removed already.
        }
    }

    /// A workload has a new state: executes what waited for it. Answers states to report.
    // [impl->swdd~agent-handles-workloads-with-fulfilled-dependencies~1]
    pub fn state_changed(&mut self, workload: &str, store: &WorkloadStateStore) -> Vec<WorkloadState> {
        let decision = self.scheduler.state_changed(workload, store);
        self.execute_all(decision)
    }

    /// The old container of an instance is gone: whether the same instance waits to be started.
    #[must_use]
    pub fn waits_to_start(&self, instance: &InstanceName) -> bool {
        let waiting = self.scheduler.get(&instance.workload);
        waiting.and_then(Waiting::new_instance).is_some_and(|added| added.instance == *instance)
    }

    /// The instances whose predecessors wait for others before they go.
    pub fn waits_behind_another(&self) -> impl Iterator<Item = &InstanceName> {
        self.scheduler.names().filter_map(|name| match self.scheduler.get(name) {
            Some(Waiting::UpdateDelete(updated)) => Some(&updated.new.instance),
            _ => None,
        })
    }

    /// Whether this instance waits for others before it is deleted or replaced.
    #[must_use]
    pub fn waits_to_stop(&self, instance: &InstanceName) -> bool {
        match self.scheduler.get(&instance.workload) {
            Some(Waiting::Delete(deleted)) => deleted.instance == *instance,
            Some(Waiting::UpdateDelete(updated) | Waiting::Withhold(updated)) => updated.deleted.instance == *instance,
            Some(Waiting::Create(_) | Waiting::UpdateCreate(_)) | None => false,
        }
    }

    /// Whether some object or waiting operation is about this instance.
    #[must_use]
    pub fn has(&self, instance: &InstanceName) -> bool {
        self.is_current(instance) || self.waits_to_start(instance)
    }

    /// Whether this is the instance last ordered of its workload.
    #[must_use]
    pub fn is_current(&self, instance: &InstanceName) -> bool {
        self.objects.get(&instance.workload).is_some_and(|object| object.instance == *instance)
    }

    /// Hands a state to the control loop, which alone knows whether it is still true.
    pub fn observed(&self, report: WatchReport) {
        let WatchReport { instance, generation, state } = report;
        if let Some(object) = self.objects.get(&instance.workload) {
            // Ended means deleted, then the state is of no interest.
            let _ = object.sender.send(WorkloadCommand::Observed { generation, state });
        }
    }

    /// Passes an answer of the server to the workload that its id names.
    // [impl->swdd~agent-uses-id-prefix-forward-control-interface-response-correct-workload~1]
    // [impl->swdd~agent-remove-id-prefix-forwarding-control-interface-response~1]
    pub fn deliver(&self, response: Response) {
        let Some((workload, id)) = response.id.split_once('@') else {
            if may_log("answers of the server") {
                warn!("Could not forward response: its id '{}' names no workload", excerpt(&response.id));
            }
            return;
        };
        let for_workload = Response { id: id.to_owned(), content: response.content };
        match self.context.control.deliver(workload, for_workload) {
            Ok(()) => {}
            Err(NoInterface) if !may_log(workload) => {}
            Err(NoInterface) if !self.objects.contains_key(workload) => {
                warn!("Could not forward response for unknown workload: '{}'", excerpt(workload));
            }
            Err(error @ NoInterface) => {
                warn!(
                    "Could not forward response to workload '{workload}': 'Could not forward complete state '{error}''"
                );
            }
        }
    }

    /// A control loop has ended. The folder of an instance that only had a container too many goes now, unless the
    /// instance has come back: its own loop uses the folder then.
    pub fn loop_ended(&mut self, id: &LoopId) {
        if self.objects.get(&id.name).is_none_or(|object| object.number != id.number) {
            return;
        }
        let Some(WorkloadObject { instance, .. }) = self.objects.remove(&id.name) else { return };
        if instance.workload != id.name && !self.is_current(&instance) {
            remove_folder(&self.context.folder.join(instance.folder()), &self.context.clock, REMOVAL_TURN_MAX);
        }
    }

    /// What is shown of an instance that waits to be started.
    #[must_use]
    pub fn waiting_to_start(&self, instance: &InstanceName) -> WorkloadState {
        self.scheduler.waiting_to_start(instance)
    }

    pub(super) fn execute_all(&mut self, decision: Decision) -> Vec<WorkloadState> {
        let mut reports = decision.reports;
        for operation in decision.ready {
            reports.extend(self.execute(operation));
        }
        reports
    }

    fn execute(&mut self, operation: Operation) -> Vec<WorkloadState> {
        match operation {
            // [impl->swdd~agent-executes-create-workload-operation~1]
            Operation::Create(Created { added, reuse }) => self.start(&added, reuse),
            // [impl->swdd~agent-executes-update-workload-operation~1]
            Operation::Update(Updated { new, .. }) => {
                info!("Updating workload '{}'.", new.instance.workload);
                self.start(&new, false)
            }
            // [impl->swdd~agent-executes-update-delete-only-workload-operation~1]
            Operation::UpdateDeleteOnly(name) => {
                let Some(object) = self.objects.get_mut(&name).filter(|object| !object.emptied) else {
                    return Vec::new();
                };
                object.emptied = true;
                let replaced = object.sender.send(WorkloadCommand::Update(None));
                replaced.ok().flatten().iter().map(removed).collect() // Ended means deleted.
            }
            Operation::Withhold(_) => Vec::new(), // Never ready as such.
            // [impl->swdd~agent-executes-delete-workload-operation~1]
            Operation::Delete(deleted) => {
                let name = &deleted.instance.workload;
                info!("Deleting workload '{name}'.");
                if let Some(object) = self.objects.get_mut(name) {
                    object.deleting = true;
                    // [impl->swdd~agent-workload-obj-delete-command~1]
                    if let Ok(replaced) = object.sender.send(WorkloadCommand::Delete) {
                        return replaced.iter().map(removed).collect();
                    }
                }
                vec![removed(&deleted.instance)]
            }
        }
    }

    /// Starts an instance; an existing loop of the workload removes first what it has.
    fn start(&mut self, added: &AddedWorkload, reuse: bool) -> Vec<WorkloadState> {
        let name = &added.instance.workload;
        let order = self.order(added);
        let Some(object) = self.objects.get_mut(name) else {
            return self.start_loop(name, Identity::of(added), vec![WorkloadCommand::Create(order)]);
        };
        // [impl->swdd~agent-workload-obj-update-command~1]
        let reuse = reuse && !object.deleting;
        let command = if reuse { WorkloadCommand::Create(order) } else { WorkloadCommand::Update(Some(order)) };
        let Ok(replaced) = object.sender.send(command) else {
            // It ended just now; its last message is on the way.
            self.objects.remove(name);
            return self.start(added, false);
        };
        object.instance = added.instance.clone();
        object.runtime = added.workload.runtime.clone();
        object.workload = Some(added.workload.clone());
        (object.emptied, object.deleting) = (false, false);
        replaced.iter().filter(|instance| **instance != added.instance).map(removed).collect()
    }

    /// A connector to the engine that has the containers of a workload; `None` when no such workload was ordered or
    /// its runtime is not known.
    #[must_use]
    pub fn connector_of(&self, instance: &InstanceName) -> Option<Box<dyn RuntimeConnector>> {
        let workload = self.objects.get(&instance.workload)?.workload.as_ref()?;
        self.engines.get(&workload.runtime).map(|source| (source.connect)())
    }

    // [impl->swdd~agent-uses-specified-runtime~1]
    pub(super) fn engine(&self, runtime: &str) -> Option<Engine> {
        let source = self.engines.get(runtime)?;
        Some(Engine { connector: (source.connect)(), watch: source.watch.clone() })
    }

    pub(super) fn order(&self, added: &AddedWorkload) -> WorkloadOrder {
        self.order_beside(added, &self.runtimes_with_surplus(&added.instance.workload))
    }

    /// The runtimes with containers of this workload that are too many and being removed, each by a loop of its own.
    fn runtimes_with_surplus(&self, name: &Name) -> BTreeSet<Name> {
        let own = format!("{name}.");
        let from = (Bound::Included(own.as_str()), Bound::Unbounded);
        let loops = self.objects.range::<str, _>(from).take_while(|(key, _)| key.starts_with(&own));
        loops.map(|(_, object)| object.runtime.clone()).collect()
    }

    /// As [`Self::order`] while containers of the workload are removed from these runtimes: nothing is started beside
    /// them.
    pub(super) fn order_beside(&self, added: &AddedWorkload, surplus: &BTreeSet<Name>) -> WorkloadOrder {
        let AddedWorkload { instance, workload } = added;
        let engine = self.engine(&workload.runtime);
        let name = &instance.workload;
        if engine.is_none() {
            warn!("Could not find runtime '{}'. Workload '{name}' not scheduled.", workload.runtime);
        } else if !control_interface::is_wanted(&workload.control_interface_access) {
            info!("No control interface access specified for workload '{name}'");
        }
        WorkloadOrder {
            instance: instance.clone(),
            workload: workload.clone(),
            engine,
            search_first: self.unlisted.contains(&workload.runtime) || surplus.contains(&workload.runtime),
            others: self.others(&workload.runtime, surplus),
        }
    }

    /// Engines where a container of a workload of `runtime` may be, since its runtime may have been another one. Those
    /// that have one for sure are waited for without end.
    fn others(&self, runtime: &Name, surplus: &BTreeSet<Name>) -> Vec<OtherEngine> {
        let until = self.others_until.filter(|until| self.context.clock.now() < *until);
        let maybe = self.unlisted.iter().filter(|other| until.is_some() && !self.absent.contains(*other));
        let names: BTreeSet<&Name> = maybe.chain(surplus).filter(|other| *other != runtime).collect();
        let other = |other: &Name| {
            let until = until.filter(|_| !surplus.contains(other));
            Some(OtherEngine { runtime: other.clone(), engine: self.engine(other)?, until })
        };
        names.into_iter().filter_map(other).collect()
    }

    /// Starts a control loop which gets these commands. Answers the state to report when it has to wait for a thread.
    // [impl->swdd~agent-create-workload~1]
    // [impl->swdd~agent-resume-workload~2]
    pub(super) fn start_loop(
        &mut self,
        key: &Name,
        Identity { instance, runtime, workload }: Identity,
        commands: Vec<WorkloadCommand>,
    ) -> Vec<WorkloadState> {
        let creates = matches!(commands.first(), Some(WorkloadCommand::Create(_)));
        let silent = matches!(commands.first(), Some(WorkloadCommand::Hold(held)) if held.silent);
        self.loops_started += 1;
        let number = self.loops_started;
        let (sender, inbox) = workload_inbox();
        for command in commands {
            let _ = sender.send(command); // The other end is still here.
        }
        let id = LoopId { name: key.clone(), number };
        let random = self.random.fork();
        let control_loop = WorkloadControlLoop::new(id, instance.clone(), self.context.clone(), random, inbox);
        let started = self.threads.start(&instance.workload, Box::new(control_loop));
        let named = instance.clone();
        let object = WorkloadObject { sender, number, instance, runtime, workload, emptied: false, deleting: false };
        self.objects.insert(key.clone(), object);
        let Err(NoThread { error, control_loop }) = started else { return Vec::new() };
        error!("No thread can be started for workload '{}', trying again: '{error}'", named.workload);
        self.unstarted.insert(key.clone(), control_loop);
        // What has a container may be doing anything; nobody can look after it.
        let phase = if creates { Phase::PendingStarting } else { Phase::FailedUnknown };
        let info = format!("No thread can be started for it, trying again: {error}");
        let shown = WorkloadState::new(named, ExecutionState::with_info(phase, info));
        if silent { Vec::new() } else { vec![shown] }
    }

    /// Tries again to get threads for the control loops that have none, and for checks.
    pub fn start_waiting_loops(&mut self) {
        self.context.probes.try_again();
        while let Some((key, control_loop)) = self.unstarted.pop_first() {
            let name = self.objects.get(&key).map_or(&key, |object| &object.instance.workload);
            match self.threads.start(name, control_loop) {
                Ok(()) => info!("Workload '{name}' has got a thread."),
                Err(NoThread { control_loop, .. }) => {
                    self.unstarted.insert(key, control_loop);
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
