//! Turns what the server wants into wishes for control loops.
//!
//! Thread: `scheduler`, which owns it.
//! Owns: the last wish of each control loop, the engines, the changes that wait.
//! Takes: plans of the server, listings, states. Gives: wishes to `wl:<name>` (never waits), states to report.

use super::conditions::Conditions;
use super::control_interface;
use super::events::{PreparationReport, SchedulerEvent};
use super::settings::RerunFinished;
use super::staging::Staging;
use super::wish_slot::{OnExisting, Preparation, Surplus, Wish, WishSender, WorkloadOrder, wish_slot};
use super::workload_control_loop::{Connector, Engines, LoopContext, WorkloadControlLoop};
use super::workload_scheduler::{Change, Decision, Order, WorkloadScheduler};
use super::workload_state_store::WorkloadStateStore;
use crate::agent::preparation::record::PreparedContainer;
use crate::limits::STACK_WORKLOAD;
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::messages::{AddedWorkload, DeletedWorkload, WorkloadPlan};
use crate::model::names::{InstanceName, Name};
use crate::model::prepare_level::{PREPARE_PREFIX, PrepareLevel};
use crate::model::workload::Workload;
use crate::platform::clock::Clock;
use crate::platform::logging::log_source;
use crate::runtime::{ContainerId, ListedContainer};
use crossbeam_channel::{Sender, bounded};
use log::{error, info, warn};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

mod existing;
mod listings;
mod preparing;
mod staged;
mod withhold;

use listings::Listings;
pub use preparing::COPIED_FILES;

/// A container with the name of its runtime.
pub type Existing = (Name, ListedContainer);

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
        match crate::platform::threads::spawn(format!("wl:{workload}"), STACK_WORKLOAD, body) {
            Ok(_) => _ = give.send(control_loop), // The other end waits for it.
            Err(error) => return Err(NoThread { error, control_loop }),
        }
        Ok(())
    }
}

/// A control loop and its last wish.
// [impl->swdd~agent-stores-running-workload~1]
struct WorkloadObject {
    wishes: WishSender,
    /// The instance last ordered, or that of the container which the loop was started with.
    instance: InstanceName,
    /// Where it was ordered. Another runtime may have a container of the same instance.
    runtime: Name,
    /// What was last ordered; `None` for a container of an earlier life.
    workload: Option<Arc<Workload>>,
    /// For which wish the container of an earlier life is started again.
    start_again_for: Option<AddedWorkload>,
    /// Nothing is to run; the object stays until the loop has ended.
    ending: bool,
    /// What is to be prepared beside it, and how far that is.
    preparation: Option<Preparation>,
    prepared: Option<PreparationReport>,
}

impl WorkloadObject {
    fn runs(&self, added: &AddedWorkload) -> bool {
        !self.ending && self.instance == added.instance && self.workload.as_ref() == Some(&added.workload)
    }

    fn is_started_again_for(&self, added: &AddedWorkload) -> bool {
        self.start_again_for.as_ref() == Some(added)
    }
}

/// All workloads of this agent.
pub struct RuntimeManager<C: Clock, T> {
    /// Which of them have listed their containers since the start of the agent.
    pub listings: Listings,
    /// Control loops without a thread.
    unstarted: BTreeMap<Name, Box<WorkloadControlLoop<C>>>,
    context: LoopContext<C>,
    conditions: Conditions,
    random: fastrand::Rng,
    threads: T,
    rerun: RerunFinished,
    objects: BTreeMap<Name, WorkloadObject>,
    scheduler: WorkloadScheduler,
    loops_started: u64,
    /// How far starts are prepared, when a workload does not say it.
    prepare_level: PrepareLevel,
    staging: Staging,
    /// Workloads of which something may have changed that decides what is prepared.
    touched: BTreeSet<Name>,
    /// What an earlier agent has prepared and no control loop has yet.
    found: BTreeMap<Name, (AddedWorkload, PreparedContainer)>,
}

fn removed(instance: &InstanceName) -> WorkloadState {
    WorkloadState::new(instance.clone(), ExecutionState::plain(Phase::Removed))
}

impl<C: Clock, T: WorkloadThreads<C>> RuntimeManager<C, T> {
    /// No workload yet.
    #[must_use]
    pub fn new(
        context: LoopContext<C>,
        random: fastrand::Rng,
        threads: T,
        rerun: RerunFinished,
        prepare_level: PrepareLevel,
    ) -> Self {
        Self {
            listings: Listings::new(&context.engines),
            unstarted: BTreeMap::new(),
            staging: Staging::default(),
            prepare_level,
            touched: BTreeSet::new(),
            found: BTreeMap::new(),
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
        &self.context.engines
    }

    /// The threads of the control loops.
    pub fn threads(&mut self) -> &mut T {
        &mut self.threads
    }

    /// Requests the listings that are due.
    pub fn request_listings(&mut self, inbox: &Sender<SchedulerEvent>) {
        self.listings.request(&self.context.engines, inbox, self.context.clock.now());
    }

    // ------------------------------------------------------ plans to changes

    /// The changes of a plan, deletes first.
    // [impl->swdd~agent-transforms-update-workload-message-to-workload-operations~1]
    // [impl->swdd~agent-handle-deleted-before-added-workloads~1]
    #[must_use]
    pub fn changes(plan: WorkloadPlan) -> Vec<Change> {
        let names = plan.added.iter().map(|added| added.instance.workload.clone());
        let mut added: BTreeMap<Name, AddedWorkload> = names.zip(plan.added.iter().cloned()).collect();
        // [impl->swdd~agent-updates-deleted-and-added-workloads~1]
        // [impl->swdd~agent-deletes-workload~1]
        let deleted = plan.deleted.into_iter();
        let mut changes: Vec<Change> = deleted
            .map(|deleted| {
                let new = added.remove(&deleted.instance.workload);
                Change::replace(deleted, new)
            })
            .collect();
        // [impl->swdd~agent-added-creates-workload~1]
        changes.extend(plan.added.into_iter().filter_map(|new| added.remove(&new.instance.workload)).map(Change::run));
        changes
    }

    // -------------------------------------------------------- changes to loops

    fn live(&self, name: &str) -> Option<&WorkloadObject> {
        self.objects.get(name).filter(|object| !object.ending)
    }

    /// Takes in what is wanted now and does what may be done already. Returns states to report.
    // [impl->swdd~agent-handles-new-workload-operations]
    pub fn submit(&mut self, change: Change, store: &mut WorkloadStateStore) -> Vec<WorkloadState> {
        if change.deleted.is_some() && change.new.as_ref().is_some_and(|new| self.is_withheld_as_it_is(new)) {
            return Vec::new(); // The server does not know that it is withheld, and repeats what is wanted.
        }
        let _source = log_source(change.name.clone());
        let replaced = self.scheduler.take(&change.name);
        self.touched.insert(change.name.clone());
        if replaced.as_ref().is_none_or(|replaced| replaced.new != change.new) {
            let _ = self.scheduler.note(&change.name, String::new()); // It is decided about, which reports it.
        }
        match &change.new {
            Some(added) => self.note_wanted(added),
            None => self.note_unwanted(&change.name),
        }
        let is_new = replaced.as_ref().is_none_or(|replaced| replaced.new != change.new);
        if is_new {
            self.scheduler.unstaged.remove(&change.name);
        }
        let mut reports = self.gone(&change, replaced.as_ref());
        if let Some(change) = self.refine(change, replaced, store, &mut reports) {
            if is_new && self.is_to_be_staged(&change) {
                self.scheduler.unstaged.insert(change.name.clone(), None);
            }
            let decision = self.scheduler.decide(change, store);
            reports.extend(self.execute_all(decision));
        }
        reports.extend(self.withhold(store));
        reports
    }

    /// Reports the end of what waited to run and of what the server names, unless it is wanted again or a control loop
    /// will report it.
    fn gone(&mut self, Change { new, deleted, .. }: &Change, replaced: Option<&Change>) -> Vec<WorkloadState> {
        let new = new.as_ref();
        let before = replaced.and_then(|waiting| waiting.new.as_ref()).map(|added| &added.instance);
        // The end of its predecessor was reported before it was started.
        let runs = new.is_some_and(|new| self.live(&new.instance.workload).is_some_and(|object| object.runs(new)));
        let named = deleted.as_ref().map(|deleted| &deleted.instance);
        let named = named.filter(|named| !runs && Some(*named) != before);
        let is_gone = |instance: &&InstanceName| {
            new.is_none_or(|new| new.instance != **instance) && !self.is_accounted_for(instance)
        };
        let gone: Vec<&InstanceName> = before.into_iter().chain(named).filter(is_gone).collect();
        let is_pending = |new: &&AddedWorkload| {
            self.objects.get(&new.instance.workload).is_some_and(|object| object.wishes.forget_end(&new.instance))
        };
        let came_back = new.filter(is_pending).map(|new| removed(&new.instance));
        // The end of what was prepared is reported by its control loop, unless a new one takes its place.
        let is_prepared = |instance: &&InstanceName| {
            let object = self.objects.get(&instance.workload).filter(|_| new.is_none());
            object.is_some_and(|object| object.wishes.report_end(instance))
        };
        let ended = gone.into_iter().filter(|instance| !is_prepared(instance)).map(removed);
        came_back.into_iter().chain(ended).collect()
    }

    /// What is to be decided about, after an earlier change was `replaced`: what has to go is what the control loop
    /// has.
    // [impl->swdd~agent-update-on-add-known-workload~1]
    // [impl->swdd~agent-add-on-update-missing-workload~1]
    fn refine(
        &self,
        mut change: Change,
        replaced: Option<Change>,
        store: &mut WorkloadStateStore,
        reports: &mut Vec<WorkloadState>,
    ) -> Option<Change> {
        let Change { name, new, deleted, .. } = &mut change;
        let Some(object) = self.live(name) else {
            if new.is_none()
                && let Some(object) = self.objects.get(name)
            {
                let _ = object.wishes.put(Wish::End); // A new delete retries a failed one at once. Ended means deleted.
            }
            return new.take().map(Change::run);
        };
        if let Some(new) = new {
            // The server repeats an update when it has to wait for less; it may have been carried out by then.
            let repeated = deleted.as_ref().is_some_and(|deleted| deleted.instance != object.instance);
            if (replaced.is_some() || repeated) && object.runs(new) {
                // What waited to be replaced or deleted is wanted as it is after all.
                let shown = store.cancel_stop(&new.instance);
                reports.extend(shown.map(|state| WorkloadState::new(new.instance.clone(), state)));
                return None;
            }
            if object.is_started_again_for(new) {
                return Some(Change::run(new.clone()));
            }
            if deleted.is_none() {
                warn!("Added workload '{name}' already exists. Updating without considering delete dependencies.");
            }
        }
        // What waits for others already goes on waiting for them.
        let waited = || replaced.filter(|waiting| !waiting.withheld)?.deleted;
        let dependencies = deleted.take().or_else(waited).map(|deleted| deleted.dependencies).unwrap_or_default();
        *deleted = Some(DeletedWorkload { instance: object.instance.clone(), dependencies });
        Some(change)
    }

    /// Whether it runs as wanted and waits to stop because it may not run at the moment.
    fn is_withheld_as_it_is(&self, added: &AddedWorkload) -> bool {
        let name = &added.instance.workload;
        let is_same = |waiting: &Change| waiting.withheld && waiting.new.as_ref() == Some(added);
        self.scheduler.get(name).is_some_and(is_same) && self.live(name).is_some_and(|object| object.runs(added))
    }

    /// A workload has a new state: executes what waited for it. Returns states to report.
    // [impl->swdd~agent-handles-workloads-with-fulfilled-dependencies~1]
    pub fn state_changed(&mut self, workload: &str, store: &WorkloadStateStore) -> Vec<WorkloadState> {
        let decision = self.scheduler.state_changed(workload, store);
        self.execute_all(decision)
    }

    /// The old container of an instance is gone: whether the same instance waits to be started.
    #[must_use]
    pub fn waits_to_start(&self, instance: &InstanceName) -> bool {
        self.scheduler.new_of(&instance.workload).is_some_and(|added| added.instance == *instance)
    }

    /// The instances whose predecessors wait for others before they stop.
    pub fn waits_behind_another(&self) -> impl Iterator<Item = &InstanceName> {
        let behind = self.scheduler.iter().filter(|waiting| waiting.deleted.is_some());
        behind.filter_map(|waiting| waiting.new.as_ref()).map(|added| &added.instance)
    }

    /// Whether this instance waits for others before it is deleted or replaced.
    #[must_use]
    pub fn waits_to_stop(&self, instance: &InstanceName) -> bool {
        let deleted = self.scheduler.get(&instance.workload).and_then(|waiting| waiting.deleted.as_ref());
        deleted.is_some_and(|deleted| deleted.instance == *instance)
    }

    /// The instance of each workload that is to run, and its runtime, whatever else of the workload there is still.
    #[must_use]
    pub fn effective(&self) -> BTreeMap<Name, (InstanceName, Name)> {
        let ordered = self.objects.iter().filter(|(_, object)| !object.ending && object.workload.is_some());
        let ordered = ordered.map(|(name, object)| (name.clone(), (object.instance.clone(), object.runtime.clone())));
        let mut effective: BTreeMap<_, _> = ordered.collect();
        for waiting in self.scheduler.iter() {
            match &waiting.new {
                Some(AddedWorkload { instance, workload }) => {
                    effective.insert(waiting.name.clone(), (instance.clone(), workload.runtime.clone()));
                }
                None => _ = effective.remove(&waiting.name),
            }
        }
        effective
    }

    /// Whether this instance waits to be started, or its control loop will report its end.
    #[must_use]
    pub fn has(&self, instance: &InstanceName) -> bool {
        self.is_accounted_for(instance) || self.waits_to_start(instance)
    }

    fn is_accounted_for(&self, instance: &InstanceName) -> bool {
        self.objects.get(&instance.workload).is_some_and(|object| object.wishes.accounts_for(instance))
    }

    /// A control loop of this name has ended; there may be a newer one already.
    pub fn loop_ended(&mut self, name: &Name) {
        if self.objects.get(name).is_some_and(|object| object.wishes.is_closed()) {
            self.objects.remove(name);
            self.touched.insert(name.clone());
        }
    }

    /// What is shown of an instance that waits to be started.
    #[must_use]
    pub fn waiting_to_start(&self, instance: &InstanceName) -> WorkloadState {
        self.scheduler.waiting_to_start(instance)
    }

    fn execute_all(&mut self, decision: Decision) -> Vec<WorkloadState> {
        let mut reports = decision.reports;
        for order in decision.ready {
            reports.extend(match order {
                Order::Run(added) => self.start(added),
                Order::End(name) => self.end(&name),
            });
        }
        reports
    }

    // [impl->swdd~agent-executes-delete-workload-operation~1]
    // [impl->swdd~agent-executes-update-delete-only-workload-operation~1]
    // [impl->swdd~agent-workload-obj-delete-command~1]
    fn end(&mut self, name: &Name) -> Option<WorkloadState> {
        let _source = log_source(name.clone());
        self.touched.insert(name.clone());
        let object = self.objects.get_mut(name)?;
        info!("Deleting workload '{name}'.");
        object.ending = true;
        let skipped = object.wishes.put(Wish::End).ok()??; // Ended means deleted.
        Some(removed(&skipped))
    }

    /// Starts an instance; an existing loop of the workload removes first what it has.
    // [impl->swdd~agent-executes-create-workload-operation~1]
    // [impl->swdd~agent-executes-update-workload-operation~1]
    // [impl->swdd~agent-workload-obj-update-command~1]
    fn start(&mut self, added: AddedWorkload) -> Option<WorkloadState> {
        let (name, runtime) = (added.instance.workload.clone(), added.workload.runtime.clone());
        let _source = log_source(name.clone());
        let mut order = self.order(&added);
        self.touched.insert(name.clone());
        let found = self.found.remove(&name);
        if let Some(object) = self.objects.get_mut(&name) {
            if !object.ending && object.is_started_again_for(&added) {
                order.existing = OnExisting::StartAgain;
            } else {
                info!("Updating workload '{name}'.");
            }
            let found =
                found.as_ref().map(|(added, container)| object.wishes.put_found(added.clone(), container.clone()));
            if found.is_none_or(|put| put.is_ok())
                && let Ok(skipped) = object.wishes.put(Wish::Run(Box::new(order)))
            {
                (object.ending, object.start_again_for) = (false, None);
                (object.instance, object.runtime, object.workload) = (added.instance, runtime, Some(added.workload));
                return skipped.as_ref().map(removed);
            }
            order = self.order(&added); // The loop ended just now; its last event is on the way.
        }
        self.found.extend(found.map(|found| (name, found)));
        self.start_loop(added.instance, runtime, None, Vec::new(), Some(Wish::Run(Box::new(order))))
    }

    /// A connector to the engine that has the containers of a workload; `None` when no such workload was ordered or
    /// its runtime is not known.
    #[must_use]
    pub fn connector_of(&self, instance: &InstanceName) -> Option<Connector> {
        let object = self.objects.get(&instance.workload)?;
        if object.wishes.has_prepared(instance) {
            return None; // It has only one that was never started.
        }
        self.context.engines.get(&object.runtime).map(|source| (source.connect)())
    }

    // [impl->swdd~agent-uses-specified-runtime~1]
    fn order(&self, added: &AddedWorkload) -> WorkloadOrder {
        let AddedWorkload { instance, workload } = added;
        let name = &instance.workload;
        if !self.context.engines.contains_key(&workload.runtime) {
            warn!("Could not find runtime '{}'. Workload '{name}' not scheduled.", workload.runtime);
        } else if !control_interface::is_wanted(&workload.control_interface_access) {
            info!("No control interface access specified for workload '{name}'");
        }
        // Its runtime may have been another one.
        let others = self.listings.missing_besides(&workload.runtime, self.context.clock.now());
        WorkloadOrder {
            added: added.clone(),
            existing: OnExisting::Replace,
            search_first: self.listings.is_missing(&workload.runtime),
            others: others.map(|(name, until)| (name.clone(), until)).collect(),
        }
    }

    /// Starts the control loop of a workload. Returns the state to report when it has to wait for a thread.
    // [impl->swdd~agent-create-workload~1]
    // [impl->swdd~agent-resume-workload~2]
    fn start_loop(
        &mut self,
        instance: InstanceName,
        runtime: Name,
        held: Option<ContainerId>,
        surplus: Vec<Surplus>,
        wish: Option<Wish>,
    ) -> Option<WorkloadState> {
        self.loops_started += 1;
        let (wishes, slot) = wish_slot();
        let workload = match &wish {
            Some(Wish::Run(order)) => Some(order.added.workload.clone()),
            Some(Wish::End) | None => None,
        };
        let (context, random, creates) = (self.context.clone(), self.random.fork(), held.is_none());
        let ending = matches!(wish, Some(Wish::End)) || (wish.is_none() && creates);
        let held = held.map(|id| (runtime.clone(), id));
        let control_loop = WorkloadControlLoop::new(self.loops_started, instance.clone(), held, context, random, slot);
        let name = instance.workload.clone();
        // The other end is still here.
        let _ = wishes.put_surplus(surplus);
        self.found.remove(&name).into_iter().for_each(|(added, container)| _ = wishes.put_found(added, container));
        wish.into_iter().for_each(|wish| _ = wishes.put(wish));
        let started = self.threads.start(&name, Box::new(control_loop));
        let shown = instance.clone();
        let (start_again_for, preparation, prepared) = (None, None, None);
        let object =
            WorkloadObject { wishes, instance, runtime, workload, start_again_for, ending, preparation, prepared };
        self.objects.insert(name.clone(), object);
        let NoThread { error, control_loop } = started.err()?;
        error!("No thread can be started for workload '{name}', trying again: '{error}'");
        self.unstarted.insert(name.clone(), control_loop);
        if self.objects.get(&name).is_some_and(|object| object.ending) && creates {
            let _ = self.scheduler.note(&name, format!("{PREPARE_PREFIX}no thread can be started: {error}"));
            return self.waits_to_start(&shown).then(|| self.waiting_to_start(&shown));
        }
        // The container of an adopted workload may be in any state; no loop controls it.
        let phase = if creates { Phase::PendingStarting } else { Phase::FailedUnknown };
        let info = format!("No thread can be started for it, trying again: {error}");
        Some(WorkloadState::new(shown, ExecutionState::with_info(phase, info)))
    }

    /// Tries again to get threads for the control loops that have none, and for checks.
    pub fn start_waiting_loops(&mut self) {
        self.context.probes.retry();
        while let Some((name, control_loop)) = self.unstarted.pop_first() {
            let _source = log_source(name.clone());
            match self.threads.start(&name, control_loop) {
                Ok(()) => info!("Workload '{name}' has got a thread."),
                Err(NoThread { control_loop, .. }) => {
                    self.unstarted.insert(name, control_loop);
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
