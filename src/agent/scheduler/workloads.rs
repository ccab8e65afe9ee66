//! Keeps one record of each workload, what the server wants of it and what it has, and turns that
//! into wishes for its control loop as soon as other workloads let it.
//!
//! Thread: `scheduler`, which owns it.
//! Owns: the records, the engines. Takes: plans of the server, listings, states. Gives: wishes to
//! `wl:<name>` (never waits), states to report.

use super::listings::Listings;
use super::staging::Staged;
use super::states::WorkloadStateStore;
use crate::control_interface;
use crate::events::{Note, PreparationReport};
use crate::log_stream::LogAvailability;
use crate::scheduler::conditions::{Gate, NodeFacts};
use crate::workload::mailbox::{Preparation, StartProgress, Wish, WishSender, wish_slot};
use crate::workload::preparation::record::PreparedContainer;
use crate::workload::{Held, LoopContext, WorkloadControlLoop};
use ankaios_model::execution_state::{ExecutionState, PARTS_SEPARATOR, Phase, WorkloadState};
use ankaios_model::messages::{AddedWorkload, DeletedWorkload};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::reason::{self, PREPARE_PREFIX, Reason};
use ankaios_model::workload::{AddCondition, DeleteCondition, RestartPolicy, Workload};
use ankaios_platform::clock::Clock;
use ankaios_platform::logging::log_source;
use ankaios_platform::threads;
use ankaios_runtime::ListedContainer;
use ankaios_runtime::limits::STACK_WORKLOAD;
use log::{error, info, warn};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often preconditions are evaluated.
const PRECONDITION_INTERVAL: Duration = Duration::from_secs(1);

/// A container with the name of its runtime.
pub(crate) type Existing = (Name, ListedContainer);

/// Lets the control loop of a workload run from now on. It comes back when no thread can be had,
/// since it may hold the only id of a container. Tests and simulations keep them and call
/// [`WorkloadControlLoop::step`] instead.
pub(crate) type StartLoop<C> = Box<
    dyn Fn(
            &str,
            Box<WorkloadControlLoop<C>>,
        ) -> Result<(), (io::Error, Box<WorkloadControlLoop<C>>)>
        + Send,
>;

/// Each control loop on a thread of its own.
pub(crate) fn on_threads<C: Clock>() -> StartLoop<C> {
    Box::new(|workload, control_loop| {
        threads::spawn_with(
            format!("wl:{workload}"),
            STACK_WORKLOAD,
            control_loop,
            |control_loop| control_loop.run(),
        )
    })
}

/// All about one workload.
#[derive(Default)]
pub(super) struct Record {
    pub(super) wanted: Option<AddedWorkload>,
    /// What others must have reached before what there is may go.
    pub(super) stop_after: BTreeMap<String, DeleteCondition>,
    pub(super) waits: Waits,
    /// Why it may not run whatever its dependencies do.
    pub(super) held_back: Option<Note>,
    /// Why it may not be started yet whatever its dependencies do.
    pub(super) unlisted: Option<Note>,
    /// The dependencies of what is wanted that were not met when it was decided last.
    pub(super) unmet: BTreeMap<String, AddCondition>,
    /// The conditions of what is wanted.
    pub(super) gate: Option<Gate>,
    /// What the server lets this agent stage for an update.
    pub(super) staged: Option<Staged>,
    /// How far it is prepared, as it is shown while it waits.
    pub(super) note: Note,
    pub(super) object: Option<WorkloadObject>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    #[default]
    No,
    /// What there is runs on until others let it stop, or until its successor is staged.
    ToStop,
    /// Nothing is wanted of its control loop.
    ToStart,
}

/// A control loop and its last wish.
// [impl->swdd~agent-stores-running-workload~1]
pub(super) struct WorkloadObject {
    pub(super) wishes: WishSender,
    /// The instance last ordered, or that of the container which the loop was started with.
    pub(super) instance: InstanceName,
    /// Where it was ordered. Another runtime may have a container of the same instance.
    pub(super) runtime: Name,
    /// What was last ordered; `None` for a container of an earlier life.
    pub(super) workload: Option<Arc<Workload>>,
    /// For which wish the container of an earlier life is started again.
    pub(super) start_again_for: Option<AddedWorkload>,
    /// The container of an earlier life that is to be replaced, as it was listed. It goes on when
    /// it is wanted again before anything else was ordered.
    pub(super) replaced: Option<ListedContainer>,
    /// Nothing is to run; the object stays until the loop has ended.
    pub(super) ending: bool,
    /// What is to be prepared beside it, and how far that is.
    pub(super) preparation: Option<Preparation>,
    pub(super) prepared: Option<PreparationReport>,
}

impl Record {
    pub(super) fn is_empty(&self) -> bool {
        self.wanted.is_none()
            && self.object.is_none()
            && self.staged.is_none()
            && self.stop_after.is_empty()
    }

    pub(super) fn live(&self) -> Option<&WorkloadObject> {
        self.object.as_ref().filter(|object| !object.ending)
    }

    pub(super) fn runs(&self, AddedWorkload { instance, workload }: &AddedWorkload) -> bool {
        self.live().is_some_and(|object| {
            object.instance == *instance && object.workload.as_ref() == Some(workload)
        })
    }

    /// Whether the container of an earlier life is started again for what is wanted.
    pub(super) fn starts_again(&self) -> bool {
        let object = self
            .live()
            .filter(|object| object.start_again_for.is_some());
        object.is_some_and(|object| object.start_again_for == self.wanted)
    }

    /// What is wanted and was not ordered yet.
    pub(super) fn waiting(&self) -> Option<&AddedWorkload> {
        self.wanted.as_ref().filter(|_| self.waits != Waits::No)
    }

    /// Whether a state of one of these other workloads may let it go on.
    fn waits_for(&self, others: &BTreeSet<Name>) -> bool {
        let needed = self
            .wanted
            .iter()
            .flat_map(|wanted| wanted.workload.dependencies.keys());
        self.waits != Waits::No
            && self
                .stop_after
                .keys()
                .chain(needed)
                .any(|name| others.contains(&**name))
    }

    pub(super) fn accounts_for(&self, instance: &InstanceName) -> bool {
        self.object
            .as_ref()
            .is_some_and(|object| object.wishes.accounts_for(instance))
    }

    /// What is shown of `instance`, which waits to be started.
    // [impl->swdd~agent-shows-unmet-dependencies~1]
    fn waiting_to_start(&self, instance: &InstanceName) -> WorkloadState {
        // The first reason decides whether the server waits for it. Programs without reasons take
        // the first part of the text.
        let mut notes: Vec<Note> = Vec::new();
        notes.extend(self.held_back.clone());
        notes.extend(self.unlisted.clone());
        if !self.note.text.is_empty() {
            notes.push(self.note.clone());
        }
        for (name, condition) in &self.unmet {
            let is_said = self.held_back.as_ref() == Some(&waits_for_blocked(name));
            if !is_said {
                let text = reason::waits_for(name, *condition);
                notes.push(Note::new(Reason::Dependency, text));
            }
        }
        let reasons = notes.iter().map(|note| note.reason);
        let texts: Vec<&str> = notes.iter().map(|note| &*note.text).collect();
        let all = Note {
            reason: reasons
                .into_iter()
                .find(|reason| *reason != Reason::None)
                .unwrap_or_default(),
            prepared: self.note.prepared,
            text: texts.join(PARTS_SEPARATOR),
        };
        WorkloadState::new(instance.clone(), all.state(Phase::PendingWaitingToStart))
    }
}

/// All workloads of this agent.
pub struct Workloads<C: Clock> {
    pub(crate) store: WorkloadStateStore,
    /// States to report, in order.
    pub(crate) reports: VecDeque<WorkloadState>,
    /// Which engines have listed their containers since the start of the agent.
    pub(crate) listings: Listings,
    /// Control loops without a thread.
    pub(super) unstarted: BTreeMap<Name, Box<WorkloadControlLoop<C>>>,
    pub(crate) context: LoopContext<C>,
    pub(super) facts: NodeFacts,
    /// When to evaluate conditions again.
    pub(super) gates_due: Option<Instant>,
    pub(super) random: fastrand::Rng,
    pub(super) run_loop: StartLoop<C>,
    pub(super) keeps_finished: bool,
    pub(super) records: BTreeMap<Name, Record>,
    /// How far starts are prepared, when a workload does not say it.
    pub(super) prepare_level: PrepareLevel,
    /// A list of what is to be staged has come since the session began.
    pub(super) has_stage_list: bool,
    /// A hello has come, and nothing is ordered before engines have listed their containers.
    pub(crate) awaits_listings: bool,
    /// The workloads of which something else is wanted since they were last decided about.
    pub(super) unsettled: BTreeSet<Name>,
    /// What was deleted while listings were awaited.
    pub(super) gone: BTreeSet<InstanceName>,
    /// The workloads whose old instance runs on until the new one is staged; from when on it does
    /// not, if that has failed.
    pub(super) unstaged: BTreeMap<Name, Option<Instant>>,
    /// Workloads of which something may have changed that decides what is prepared.
    pub(super) touched: BTreeSet<Name>,
    /// What engines have listed and was not taken in yet.
    pub(crate) existing: Vec<Existing>,
    /// What an earlier agent has prepared and no control loop has yet.
    pub(super) found: BTreeMap<Name, (AddedWorkload, PreparedContainer)>,
}

pub(super) fn removed(instance: &InstanceName) -> WorkloadState {
    WorkloadState::new(instance.clone(), ExecutionState::plain(Phase::Removed))
}

impl<C: Clock> Workloads<C> {
    /// No workload of `agent` yet.
    pub fn new(
        agent: Name,
        context: LoopContext<C>,
        random: fastrand::Rng,
        run_loop: StartLoop<C>,
        keeps_finished: bool,
        prepare_level: PrepareLevel,
        facts: NodeFacts,
    ) -> Self {
        Self {
            store: WorkloadStateStore::new(agent),
            reports: VecDeque::new(),
            listings: Listings::new(&context.engines),
            unstarted: BTreeMap::new(),
            has_stage_list: false,
            awaits_listings: false,
            unsettled: BTreeSet::new(),
            gone: BTreeSet::new(),
            unstaged: BTreeMap::new(),
            prepare_level,
            touched: BTreeSet::new(),
            existing: Vec::new(),
            found: BTreeMap::new(),
            context,
            facts,
            gates_due: None,
            random,
            run_loop,
            keeps_finished,
            records: BTreeMap::new(),
        }
    }

    // ------------------------------------------------------ what is wanted

    /// Takes in what is to run of a workload from now on, and what has to go first;
    /// [`Self::settle`] does what may be done of it.
    // [impl->swdd~agent-handles-new-workload-operations]
    // [impl->swdd~agent-update-on-add-known-workload~1]
    // [impl->swdd~agent-add-on-update-missing-workload~1]
    pub(crate) fn submit(
        &mut self,
        name: Name,
        new: Option<AddedWorkload>,
        deleted: Option<DeletedWorkload>,
    ) {
        let _source = log_source(name.clone());
        let gate = new.as_ref().and_then(|new| self.gate(new, false));
        let record = self.records.entry(name.clone()).or_default();
        record.gate = gate;
        let waited = record.waiting().map(|added| added.instance.clone());
        if record.wanted != new {
            record.wanted.clone_from(&new);
            record.note = Note::default();
            self.unstaged.remove(&name);
        }
        if let Some(new) = &new {
            self.listings
                .want(|runtime| *runtime == *new.workload.runtime);
        }
        let mut named = deleted.as_ref().map(|deleted| deleted.instance.clone());
        if let Some(object) = &mut record.object
            && named.as_ref() == Some(&object.instance)
        {
            object.replaced = None; // It goes, even if the same instance comes in its place.
        }
        let knows_of_old = named.is_some();
        match deleted {
            Some(deleted) => record.stop_after = deleted.dependencies,
            None if record.waits != Waits::ToStop && !self.awaits_listings => {
                record.stop_after.clear()
            }
            None => {} // It goes on waiting for them, or may turn out to be there.
        }
        match &new {
            Some(new)
                if !knows_of_old
                    && record.live().is_some()
                    && !record.runs(new)
                    && !record.starts_again() =>
            {
                warn!(
                    "Added workload '{name}' already exists. Updating without considering delete dependencies."
                );
            }
            None if record.live().is_none() => {
                // A new delete retries a failed one at once.
                record
                    .object
                    .iter()
                    .for_each(|object| _ = object.wishes.put(Wish::End));
            }
            _ => {}
        }
        if self.awaits_listings {
            self.gone.extend(named.take());
        }
        self.reports
            .extend(record.gone(new.as_ref(), waited, named));
        self.unsettled.insert(name);
    }

    /// Does what may be done when all that is wanted now is known: what is replaced together is
    /// started in the order of its dependencies. Decides again about what waits for listings.
    pub(crate) fn settle(&mut self) {
        if self.awaits_listings {
            return;
        }
        let names = std::mem::take(&mut self.unsettled);
        for name in &names {
            if self.is_to_be_staged(name) {
                self.unstaged.entry(name.clone()).or_insert(None);
            }
        }
        let mut others = self.update_withheld();
        names.iter().for_each(|name| self.decide(name, true));
        let unlisted = self
            .records
            .iter()
            .filter(|(_, record)| record.unlisted.is_some());
        others.extend(unlisted.map(|(name, _)| name.clone()));
        self.decide_all(&others);
    }

    // ------------------------------------------------------- from wanted to orders

    pub(super) fn decide_all(&mut self, names: &[Name]) {
        names.iter().for_each(|name| self.decide(name, false));
    }

    /// Orders what may be done of a workload. What keeps waiting is reported again only when it was
    /// `requested`.
    pub(super) fn decide(&mut self, name: &Name, requested: bool) {
        if !self.awaits_listings {
            self.resume_replaced(name);
        }
        let Some(record) = self.records.get(name).filter(|_| !self.awaits_listings) else {
            return;
        };
        let _source = log_source(name.clone());
        self.touched.insert(name.clone());
        let (before, wanted) = (record.waits, record.wanted.clone());
        let unmet = wanted
            .as_ref()
            .map(|wanted| self.unmet(wanted))
            .unwrap_or_default();
        let Some(record) = self.records.get_mut(name) else {
            return;
        };
        record.unmet = unmet;
        let runtime = wanted.as_ref().map(|wanted| &*wanted.workload.runtime);
        record.unlisted = runtime.and_then(|runtime| self.listings.hold_up(runtime));
        let record = &self.records[name];
        let is_again = record.starts_again();
        let runs = wanted.as_ref().filter(|wanted| record.runs(wanted));
        if let Some(runs) =
            runs.filter(|runs| record.held_back.is_none() || has_finished(runs, &self.store))
        {
            if before == Waits::ToStop
                && let Some(state) = self.store.cancel_stop(&runs.instance)
            {
                self.reports
                    .push_back(WorkloadState::new(runs.instance.clone(), state));
            }
            return self.wait(name, Waits::No, BTreeMap::new());
        }
        let old = record
            .live()
            .filter(|_| !is_again)
            .map(|object| object.instance.clone());
        if let Some(old) = &old {
            // Its end must not hurt those that need it, when it goes only for a while.
            let (users, may_stop) = if runs.is_some() {
                let users = self.users(name);
                let may_stop = users.keys().all(|user| self.store.has_no_container(user));
                (users, may_stop)
            } else {
                (record.stop_after.clone(), self.may_stop(name))
            };
            let is_news = requested || before != Waits::ToStop;
            if !may_stop || self.unstaged.contains_key(name) {
                // [impl->swdd~agent-enqueues-unfulfilled-delete~1]
                // [impl->swdd~agent-enqueues-update-with-unfulfilled-delete~1]
                self.reports
                    .extend((is_news && !may_stop).then(|| waiting_to_stop(old)));
                let new = wanted.filter(|new| {
                    is_news && new.instance != *old && !record.accounts_for(&new.instance)
                });
                let shown = new.map(|new| record.waiting_to_start(&new.instance));
                self.reports
                    .extend(shown.or_else(|| record.renewed(&self.store)));
                // Those that it went after let it stop, whatever comes in their places.
                let users = if may_stop { BTreeMap::new() } else { users };
                return self.wait(name, Waits::ToStop, users);
            }
        }
        let may_start =
            record.held_back.is_none() && record.unlisted.is_none() && record.unmet.is_empty();
        match wanted {
            None => {
                self.wait(name, Waits::No, BTreeMap::new());
                old.iter().for_each(|_| self.end(name));
            }
            Some(new) if may_start => {
                self.wait(name, Waits::No, BTreeMap::new());
                self.start(new);
            }
            Some(new) => {
                // Of the same instance this is shown when the old container is gone.
                let is_shown = is_again
                    || (old.as_ref() != Some(&new.instance) && !record.accounts_for(&new.instance));
                let is_news = requested || before != Waits::ToStart;
                let news = is_shown && is_news;
                let waiting = news.then(|| record.waiting_to_start(&new.instance));
                self.reports
                    .extend(waiting.or_else(|| record.renewed(&self.store)));
                // [impl->swdd~agent-enqueues-unfulfilled-create~1]
                self.wait(name, Waits::ToStart, BTreeMap::new());
                // [impl->swdd~agent-handles-update-with-fulfilled-delete~1]
                // [impl->swdd~agent-shall-not-enqueue-update-delete-only-workload-operation~1]
                old.iter().for_each(|_| self.end(name));
            }
        }
    }

    /// The dependencies of what is wanted that are not met.
    fn unmet(
        &self,
        AddedWorkload { workload, .. }: &AddedWorkload,
    ) -> BTreeMap<String, AddCondition> {
        self.store
            .unmet(&workload.dependencies, |instance| self.counts(instance))
    }

    /// Whether what depends on this instance may be started. One of ours that is about to be
    /// replaced would go while that starts, unless it is not known yet whether it will be.
    fn counts(&self, instance: &InstanceName) -> bool {
        let wanted = self
            .records
            .get(&instance.workload)
            .and_then(|record| record.wanted.as_ref());
        let replaces =
            |new: &AddedWorkload| new.instance != *instance && new.instance.agent == instance.agent;
        !wanted.is_some_and(replaces) || self.unstaged.contains_key(&instance.workload)
    }

    /// What the workload waits for from now on; `users` are those that its old instance goes after.
    fn wait(&mut self, name: &Name, waits: Waits, users: BTreeMap<String, DeleteCondition>) {
        let Some(record) = self.records.get_mut(name) else {
            return;
        };
        if waits != Waits::ToStop {
            self.unstaged.remove(name);
        }
        if waits == Waits::No {
            record.unmet.clear();
        }
        (record.waits, record.stop_after) = (waits, users);
    }

    /// Whether the users of the old instance have reached what its end waits for. One that waits
    /// for this end itself does not count, or both would wait for ever.
    fn may_stop(&self, name: &Name) -> bool {
        let users = self
            .records
            .get(name)
            .into_iter()
            .flat_map(|record| &record.stop_after);
        users.into_iter().all(|(user, condition)| {
            let in_circle =
                || self.store.is_stopping(user, *condition) && self.goes_after(user, name);
            self.store.may_stop(user, *condition) || in_circle()
        })
    }

    /// Whether the end of `name` waits for that of `other`, directly or not.
    fn goes_after(&self, name: &str, other: &str) -> bool {
        let (mut open, mut seen) = (vec![name], BTreeSet::new());
        while let Some(name) = open.pop() {
            let Some(next) = self
                .records
                .get(name)
                .filter(|record| record.waits == Waits::ToStop)
            else {
                continue;
            };
            if next.stop_after.contains_key(other) {
                return true;
            }
            open.extend(
                next.stop_after
                    .keys()
                    .map(String::as_str)
                    .filter(|name| seen.insert(*name)),
            );
        }
        false
    }

    /// These workloads have a new state: executes what waited for that. Thousands may change at
    /// once, so all that wait are looked at once.
    // [impl->swdd~agent-handles-workloads-with-fulfilled-dependencies~1]
    // [impl->swdd~agent-keeps-workloads-with-unfulfilled-workload-dependencies-in-queue~1]
    pub(crate) fn states_changed(&mut self, workloads: &BTreeSet<Name>) {
        let waiting = self
            .records
            .iter()
            .filter(|(_, record)| record.waits_for(workloads));
        let waiting: Vec<Name> = waiting.map(|(name, _)| name.clone()).collect();
        self.decide_all(&waiting);
    }

    // ------------------------------------------------------------- conditions

    /// Evaluates the conditions of an instance that is wanted, or staged, from now on.
    pub(super) fn gate(&mut self, added: &AddedWorkload, is_staged: bool) -> Option<Gate> {
        let gate = Gate::new(added, is_staged, &mut self.facts);
        if gate.as_ref().is_some_and(Gate::is_open) {
            self.gates_due
                .get_or_insert_with(|| self.context.clock.now() + PRECONDITION_INTERVAL);
        }
        gate
    }

    /// Sets which workloads may not run because of conditions, and returns those of which a
    /// decision is due.
    // [impl->swdd~agent-lifecycle-precondition~1]
    fn update_withheld(&mut self) -> Vec<Name> {
        let closed = |(name, record): (&Name, &Record)| {
            Some((name.clone(), record.gate.as_ref()?.reason()?))
        };
        let mut held_back: BTreeMap<Name, Note> = self.records.iter().filter_map(closed).collect();
        if held_back.is_empty()
            && self
                .records
                .values()
                .all(|record| record.held_back.is_none())
        {
            return Vec::new();
        }
        let mut open: Vec<Name> = held_back.keys().cloned().collect();
        while let Some(name) = open.pop() {
            for (user, record) in &self.records {
                let needs = |added: &AddedWorkload| {
                    added.workload.dependencies.get(&*name) == Some(&AddCondition::Running)
                };
                if !held_back.contains_key(user) && record.wanted.as_ref().is_some_and(needs) {
                    held_back.insert(user.clone(), waits_for_blocked(&name));
                    open.push(user.clone());
                }
            }
        }
        let mut due = Vec::new();
        for (name, record) in &mut self.records {
            let (_source, why) = (log_source(name.clone()), held_back.remove(name));
            match (&record.held_back, &why) {
                (None, None) => continue,
                (None, Some(why)) => info!("Workload '{name}' may not run: {}", why.text),
                (Some(_), None) => info!("Workload '{name}' may run again."),
                (Some(_), Some(_)) => {}
            }
            record.held_back = why;
            due.push(name.clone());
        }
        due
    }

    /// The workloads that need this one to run, and may not run either.
    fn users(&self, name: &str) -> BTreeMap<String, DeleteCondition> {
        let needs_it = |added: &AddedWorkload| {
            added.workload.dependencies.get(name) == Some(&AddCondition::Running)
                && !has_finished(added, &self.store)
        };
        let held_back = self
            .records
            .iter()
            .filter(|(_, record)| record.held_back.is_some());
        let users = held_back.filter(|(_, record)| record.wanted.as_ref().is_some_and(needs_it));
        users
            .map(|(user, _)| (user.to_string(), DeleteCondition::NotPendingNorRunning))
            .collect()
    }

    /// When [`Self::refresh_conditions`] wants to be called next.
    pub(crate) fn conditions_due(&self) -> Option<Instant> {
        self.unstaged
            .values()
            .copied()
            .flatten()
            .chain(self.gates_due)
            .min()
    }

    /// Evaluates the conditions again and does what follows.
    pub(crate) fn refresh_conditions(&mut self) {
        let gates = self
            .records
            .values()
            .flat_map(|record| record.gate.iter().chain(record.staged_gate()));
        let known = (self.facts.check_paths)(&gates.flat_map(Gate::paths).collect());
        let mut is_open = false;
        for (name, record) in &mut self.records {
            let staged = record.staged.as_mut();
            // It may be created now, or not any more.
            self.touched.extend(staged.as_ref().map(|_| name.clone()));
            for gate in record
                .gate
                .iter_mut()
                .chain(staged.and_then(|staged| staged.gate.as_mut()))
            {
                gate.evaluate(&known, &self.facts.tags);
                is_open |= gate.is_open();
            }
        }
        self.gates_due = is_open.then(|| self.context.clock.now() + PRECONDITION_INTERVAL);
        self.release_unstaged();
        let due = self.update_withheld();
        self.decide_all(&due);
    }

    // ------------------------------------------------------------------ views

    /// The old container of an instance is gone: what is shown of the same instance, which waits to
    /// be started.
    pub(crate) fn waits_to_start(&self, instance: &InstanceName) -> Option<WorkloadState> {
        let record = self.records.get(&instance.workload)?;
        record
            .waiting()
            .filter(|added| added.instance == *instance)
            .map(|_| record.waiting_to_start(instance))
    }

    /// What is shown of this instance if it waits for others before it is deleted or replaced.
    pub(crate) fn waits_to_stop(&self, instance: &InstanceName) -> Option<WorkloadState> {
        let record = self
            .records
            .get(&instance.workload)
            .filter(|record| record.waits == Waits::ToStop)?;
        record
            .live()
            .filter(|object| object.instance == *instance)
            .map(|_| waiting_to_stop(instance))
    }

    /// What is to run of each workload, whatever else of it there is still.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = &AddedWorkload> {
        self.records
            .values()
            .filter_map(|record| record.wanted.as_ref())
    }

    /// Whether this instance waits to be started, or its control loop will report its end.
    pub(crate) fn has(&self, instance: &InstanceName) -> bool {
        let record = self.records.get(&instance.workload);
        record.is_some_and(|record| record.accounts_for(instance))
            || self.waits_to_start(instance).is_some()
    }

    /// The control loop of this name has nothing: it ends, unless something was put meanwhile.
    pub(crate) fn loop_done(&mut self, name: &Name) {
        let Some(record) = self.records.get_mut(name) else {
            return;
        };
        if record
            .object
            .take_if(|object| object.wishes.is_done())
            .is_some()
        {
            self.touched.insert(name.clone());
        }
    }

    // -------------------------------------------------------- orders to loops

    // [impl->swdd~agent-executes-delete-workload-operation~1]
    // [impl->swdd~agent-executes-update-delete-only-workload-operation~1]
    // [impl->swdd~agent-workload-obj-delete-command~1]
    fn end(&mut self, name: &Name) {
        let Some(object) = self.object(name) else {
            return;
        };
        info!("Deleting workload '{name}'.");
        object.ending = true;
        let skipped = object.wishes.put(Wish::End);
        self.reports.extend(skipped.as_ref().map(removed));
    }

    /// Starts an instance; an existing loop of the workload removes first what it has.
    // [impl->swdd~agent-executes-create-workload-operation~1]
    // [impl->swdd~agent-executes-update-workload-operation~1]
    // [impl->swdd~agent-workload-obj-update-command~1]
    pub(super) fn start(&mut self, added: AddedWorkload) {
        let (name, runtime) = (
            added.instance.workload.clone(),
            added.workload.runtime.clone(),
        );
        self.check_order(&added);
        let known = self.object(&name);
        if known
            .is_some_and(|object| object.ending || object.start_again_for.as_ref() != Some(&added))
        {
            info!("Updating workload '{name}'.");
        }
        let found = self.found.remove(&name);
        let Some(object) = self.object_for(&added.instance, &runtime) else {
            return;
        };
        let skipped = object.wishes.put_with(Wish::Run(added.clone()), found);
        (object.ending, object.start_again_for) = (false, None);
        (object.instance, object.runtime, object.workload) =
            (added.instance, runtime, Some(added.workload));
        self.reports.extend(skipped.as_ref().map(removed));
    }

    pub(super) fn object(&mut self, name: &Name) -> Option<&mut WorkloadObject> {
        self.records.get_mut(name)?.object.as_mut()
    }

    /// That of the workload; a control loop is started for this instance when there is none.
    pub(super) fn object_for(
        &mut self,
        instance: &InstanceName,
        runtime: &Name,
    ) -> Option<&mut WorkloadObject> {
        if self.object(&instance.workload).is_none() {
            self.start_loop(instance.clone(), runtime.clone(), None);
        }
        self.object(&instance.workload)
    }

    /// Whether the log of an instance can be read, now or when it is started.
    pub(crate) fn log_of(&self, instance: &InstanceName) -> LogAvailability {
        let InstanceName {
            workload, agent, ..
        } = instance;
        let unknown =
            || LogAvailability::Never(format!("workload '{workload}' is not on agent '{agent}'"));
        let Some(record) = self.records.get(workload) else {
            return unknown();
        };
        let object = record.object.as_ref();
        let progress = object
            .map(|object| object.wishes.start_of(instance))
            .unwrap_or_default();
        if let (StartProgress::Started(number), Some(object)) = (progress, object) {
            return self.readable(object, Some(number), instance);
        }
        let is_wanted = record
            .wanted
            .as_ref()
            .is_some_and(|wanted| wanted.instance == *instance);
        let state = self.store.get(instance);
        match state.map(|state| state.phase) {
            // A container of an earlier agent is taken over, or the start was ordered.
            None | Some(Phase::PendingInitial | Phase::PendingStarting) if is_wanted => {
                match progress {
                    StartProgress::Failed => LogAvailability::Later(self.why_without_log(instance)),
                    StartProgress::UnderWay | StartProgress::Started(_) => {
                        LogAvailability::Starting
                    }
                }
            }
            // Its start was cancelled.
            Some(Phase::PendingInitial | Phase::PendingStarting) => {
                LogAvailability::Never(format!("workload '{workload}' is deleted or replaced"))
            }
            None | Some(Phase::Removed) => unknown(),
            Some(Phase::PendingWaitingToStart) => match object {
                Some(object) if object.start_again_for.is_some() => {
                    self.readable(object, None, instance)
                }
                // What it may have was never started.
                _ => LogAvailability::Later(self.why_without_log(instance)),
            },
            Some(
                Phase::AgentDisconnected
                | Phase::NotScheduled
                | Phase::PendingStartingFailed
                | Phase::Running
                | Phase::Stopping
                | Phase::StoppingWaitingToStop
                | Phase::StoppingRequestedAtRuntime
                | Phase::StoppingDeleteFailed
                | Phase::Succeeded
                | Phase::FailedExecFailed
                | Phase::FailedUnknown
                | Phase::FailedLost,
            ) => match object {
                Some(object) => self.readable(object, None, instance),
                None => LogAvailability::Never(self.why_without_log(instance)),
            },
        }
    }

    pub(super) fn readable(
        &self,
        object: &WorkloadObject,
        start: Option<u64>,
        instance: &InstanceName,
    ) -> LogAvailability {
        match self.context.connector(&object.runtime) {
            Some(engine) => LogAvailability::Readable { engine, start },
            None => LogAvailability::Never(self.why_without_log(instance)),
        }
    }

    /// Why an instance without a container has none.
    pub(crate) fn why_without_log(&self, instance: &InstanceName) -> String {
        match self.store.get(instance) {
            Some(state) => format!("it has no container, it is {state}"),
            None => "it has no container".to_owned(),
        }
    }

    // [impl->swdd~agent-uses-specified-runtime~1]
    fn check_order(&self, AddedWorkload { instance, workload }: &AddedWorkload) {
        let name = &instance.workload;
        if !self.context.engines.contains_key(&workload.runtime) {
            warn!(
                "Could not find runtime '{}'. Workload '{name}' not scheduled.",
                workload.runtime
            );
        } else if !control_interface::is_wanted(&workload.control_interface_access) {
            info!("No control interface access specified for workload '{name}'");
        }
    }

    /// Starts the control loop of a workload, with a container of an earlier life if there is one.
    // [impl->swdd~agent-create-workload~1]
    // [impl->swdd~agent-resume-workload~2]
    pub(super) fn start_loop(&mut self, instance: InstanceName, runtime: Name, held: Option<Held>) {
        let (wishes, slot) = wish_slot();
        let start_again_for = held
            .as_ref()
            .and_then(|held| held.serves.clone())
            .map(|(added, _)| added);
        let (context, random, ending) = (self.context.clone(), self.random.fork(), held.is_none());
        let control_loop = WorkloadControlLoop::new(
            instance.clone(),
            runtime.clone(),
            held,
            context,
            random,
            slot,
        );
        let name = instance.workload.clone();
        let started = (self.run_loop)(&name, Box::new(control_loop));
        let shown = instance.clone();
        let object = WorkloadObject {
            wishes,
            instance,
            runtime,
            workload: None,
            start_again_for,
            replaced: None,
            ending,
            preparation: None,
            prepared: None,
        };
        let record = self.records.entry(name.clone()).or_default();
        record.object = Some(object);
        let Err((error, control_loop)) = started else {
            return;
        };
        error!("No thread can be started for workload '{name}', trying again: '{error}'");
        self.unstarted.insert(name.clone(), control_loop);
        let is_to_run = record
            .wanted
            .as_ref()
            .is_some_and(|wanted| wanted.instance == shown);
        let phase = match record.waits {
            Waits::No if ending && is_to_run => Phase::PendingStarting,
            _ if ending => {
                let text = format!("{PREPARE_PREFIX}no thread can be started: {error}");
                record.note = Note::new(Reason::PreparationFailed, text);
                return self.reports.extend(self.waits_to_start(&shown));
            }
            // The container of an adopted workload may be in any state; no loop controls it.
            _ => Phase::FailedUnknown,
        };
        let info = format!("No thread can be started for it, trying again: {error}");
        self.reports.push_back(WorkloadState::new(
            shown,
            ExecutionState::with_info(phase, info),
        ));
    }

    /// Tries again to get threads for the control loops that have none.
    pub(crate) fn start_waiting_loops(&mut self) {
        while let Some((name, control_loop)) = self.unstarted.pop_first() {
            let _source = log_source(name.clone());
            match (self.run_loop)(&name, control_loop) {
                Ok(()) => info!("Workload '{name}' has got a thread."),
                Err((_, control_loop)) => {
                    self.unstarted.insert(name, control_loop);
                    return;
                }
            }
        }
    }
}

impl Record {
    /// States to report of what waited to run until now, and of what the server has `named` as
    /// deleted: their end, unless they are wanted again or a control loop will report it.
    fn gone(
        &self,
        new: Option<&AddedWorkload>,
        waited: Option<InstanceName>,
        named: Option<InstanceName>,
    ) -> Vec<WorkloadState> {
        // The end of its predecessor was reported before it was started.
        let runs = new.is_some_and(|new| self.runs(new));
        let named = named.filter(|named| !runs && Some(named) != waited.as_ref());
        let is_gone = |instance: &InstanceName| {
            new.is_none_or(|new| new.instance != *instance) && !self.accounts_for(instance)
        };
        // The end of what was to be prepared is reported by its control loop, unless a new one
        // takes its place.
        let ordered = self.object.as_ref().filter(|_| new.is_none());
        let is_prepared = |gone: &InstanceName| {
            let prepares = |object: &&WorkloadObject| {
                object.preparation.as_ref().map(|one| &one.added.instance) == Some(gone)
            };
            ordered
                .filter(prepares)
                .map(|object| object.wishes.report_end(gone))
                .is_some()
        };
        let ended = waited
            .into_iter()
            .chain(named)
            .filter(|gone| is_gone(gone) && !is_prepared(gone));
        ended.map(|ended| removed(&ended)).collect()
    }

    /// What is to be shown of what waits to be started, if that has changed.
    pub(super) fn renewed(&self, store: &WorkloadStateStore) -> Option<WorkloadState> {
        let state = self.waiting_to_start(&self.waiting()?.instance);
        let shown = store.get(&state.instance)?;
        (shown.phase == Phase::PendingWaitingToStart && *shown != state.state).then_some(state)
    }
}

/// Why a workload is held back that needs this one, which is held back itself.
fn waits_for_blocked(name: &str) -> Note {
    Note::new(Reason::BlockedDependency, reason::waits_for_blocked(name))
}

fn waiting_to_stop(instance: &InstanceName) -> WorkloadState {
    WorkloadState::new(
        instance.clone(),
        ExecutionState::plain(Phase::StoppingWaitingToStop),
    )
}

/// Whether the workload ended for good: there is nothing to stop, and a path that comes back does
/// not run it again.
fn has_finished(
    AddedWorkload { instance, workload }: &AddedWorkload,
    store: &WorkloadStateStore,
) -> bool {
    match (
        store.get(instance).map(|state| state.phase),
        workload.restart_policy,
    ) {
        (Some(Phase::Succeeded), policy) => policy != RestartPolicy::Always,
        (Some(Phase::FailedExecFailed), policy) => policy == RestartPolicy::Never,
        _ => false,
    }
}

#[cfg(debug_assertions)]
mod inspection;
#[cfg(test)]
mod tests;
