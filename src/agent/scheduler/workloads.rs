//! Keeps one record of each workload, what the server wants of it and what its control loop
//! reports, compares the two, and sets the target of the control loop as soon as other workloads
//! let it.
//!
//! Thread: `scheduler`, which owns it. Owns: the records, the engines. Takes: plans of the server,
//! listings, statuses. Gives: targets to `wl:<name>` (never waits), states to report.

use super::conditions::{Gate, NodeFacts};
use super::listings::Listings;
use super::staging::{Staged, StagingBeforeStop};
use super::states::WorkloadStateStore;
use crate::control_interface;
use crate::events::{Note, PreparationReport};
use crate::images::needs::{ImageNeeds, NeededInstances};
use crate::log_stream::LogSource;
use crate::workload::mailbox::{FoundContainer, MailboxHandle, Preparation, Run, Target, mailbox};
use crate::workload::status::{StartProgress, Status};
use crate::workload::{LoopContext, WorkloadControlLoop, thread_name};
use ankaios_model::execution_state::{ExecutionState, PARTS_SEPARATOR, Phase, WorkloadState};
use ankaios_model::guarded_update::CANNOT_BE_STAGED;
use ankaios_model::messages::{AddedWorkload, DeletedWorkload};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::reason::{self, PREPARE_PREFIX, Reason};
use ankaios_model::workload::{AddCondition, DeleteCondition, RestartPolicy};
use ankaios_platform::clock::Clock;
use ankaios_platform::logging::log_source;
use ankaios_platform::threads;
use ankaios_runtime::ListedContainer;
use ankaios_runtime::limits::STACK_WORKLOAD;
use log::{error, info, warn};
use std::collections::{BTreeMap, BTreeSet};
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
            thread_name(workload),
            STACK_WORKLOAD,
            control_loop,
            WorkloadControlLoop::run,
        )
    })
}

/// What the scheduler keeps of one workload.
pub(super) struct Record<C: Clock> {
    /// What the server wants of it.
    pub(super) wanted: Option<AddedWorkload>,
    /// The server has sent something about it that was not reconciled yet.
    pub(super) is_requested: bool,
    /// Instances of which the server may expect a state, since it has sent something about them.
    pub(super) must_show: BTreeSet<InstanceName>,
    /// Instances that the server has deleted and whose ends it was not sent yet.
    pub(super) deleted: BTreeSet<InstanceName>,
    /// What others must have reached before the current instance may stop.
    pub(super) stop_after: BTreeMap<String, DeleteCondition>,
    pub(super) waits: Waits,
    /// Why it is blocked whatever its dependencies do.
    pub(super) blocked: Option<Note>,
    /// The dependency that has ended and with which it is restarted, until it has stopped.
    pub(super) restarts_with: Option<Name>,
    /// Why it cannot be started yet: an engine has not listed its containers.
    pub(super) unlisted: Option<Note>,
    /// The dependencies that were not met when it was reconciled last.
    pub(super) unmet: BTreeMap<String, AddCondition>,
    /// The conditions of what is wanted.
    pub(super) conditions: Option<Gate>,
    /// The current instance does not stop before the new one is staged.
    pub(super) staging: Option<StagingBeforeStop>,
    /// What the server lets this agent stage for an update.
    pub(super) staged: Option<Staged>,
    /// Containers that engines have listed, of which it is not decided what becomes of them.
    pub(super) found: Vec<Existing>,
    /// Containers that the control loop gets with its next target.
    pub(super) adopt: Vec<FoundContainer>,
    pub(super) control_loop: Option<ControlLoop<C>>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    #[default]
    No,
    /// The current instance runs until others let it stop, or until its successor is staged.
    ToStop,
    /// Nothing may be started yet.
    ToStart,
}

/// A control loop: its newest target, and its newest status.
// [impl->swdd~agent-stores-running-workload~1]
pub(super) struct ControlLoop<C: Clock> {
    mailbox: MailboxHandle,
    pub(super) target: Target,
    /// The number of the first target with its present `next`.
    next_since: u64,
    /// Instances of earlier targets that the loop has taken, and may have begun to start: no status
    /// has said so yet.
    pub(super) may_have_begun: Vec<InstanceName>,
    pub(super) status: Arc<Status>,
    /// The container that it was started with, while that has to stay as it is.
    pub(super) kept: Option<KeptContainer>,
    /// The loop has no thread.
    unstarted: Option<Unstarted<C>>,
}

/// A container of an earlier agent that stays as it is for now.
pub(super) struct KeptContainer {
    pub(super) runtime: Name,
    pub(super) container: ListedContainer,
    /// What it is started again for, if it may be.
    pub(super) start_again_for: Option<AddedWorkload>,
    /// It is adopted when it is wanted again.
    pub(super) may_be_adopted: bool,
}

/// A control loop for which the system had no thread.
struct Unstarted<C: Clock> {
    control_loop: Box<WorkloadControlLoop<C>>,
    error: String,
}

impl<C: Clock> Default for Record<C> {
    fn default() -> Self {
        Self {
            wanted: None,
            is_requested: false,
            must_show: BTreeSet::new(),
            deleted: BTreeSet::new(),
            stop_after: BTreeMap::new(),
            waits: Waits::No,
            blocked: None,
            restarts_with: None,
            unlisted: None,
            unmet: BTreeMap::new(),
            conditions: None,
            staging: None,
            staged: None,
            found: Vec::new(),
            adopt: Vec::new(),
            control_loop: None,
        }
    }
}

impl<C: Clock> ControlLoop<C> {
    /// The current instance: the one that must run, or that of the container that stays.
    pub(super) fn current(&self) -> Option<&InstanceName> {
        match &self.target.run {
            Run::Nothing => None,
            Run::Found => self.kept.as_ref().map(|kept| &kept.container.instance),
            Run::Instance(added) => Some(&added.instance),
        }
    }

    /// The runtime of the current instance.
    pub(super) fn runtime(&self) -> Option<&Name> {
        match &self.target.run {
            Run::Nothing => None,
            Run::Found => self.kept.as_ref().map(|kept| &kept.runtime),
            Run::Instance(added) => Some(&added.workload.runtime),
        }
    }

    /// Whether the container that was found is started again for this.
    fn starts_again_for(&self, run: &Run) -> bool {
        match &self.kept {
            Some(kept) => {
                kept.start_again_for.is_some() && kept.start_again_for.as_ref() == run.added()
            }
            None => false,
        }
    }

    /// Whether the status follows the newest target.
    fn is_up_to_date(&self) -> bool {
        self.status.target >= self.target.number
    }

    /// How far this is prepared.
    pub(super) fn report(&self, added: &AddedWorkload) -> Option<&PreparationReport> {
        if self.status.target < self.next_since {
            return None; // It is about an earlier preparation.
        }
        let report = self.status.prepared.as_ref()?;
        (report.added == *added).then_some(report)
    }

    fn put(
        &mut self,
        run: Run,
        is_retry: bool,
        next: Option<Preparation>,
        adopt: Vec<FoundContainer>,
    ) {
        let number = self.target.number + 1;
        let is_answered = self.is_up_to_date();
        let earlier = self.target.run.added().map(|added| added.instance.clone());
        if self.target.next != next {
            self.next_since = number;
        }
        self.target = Target {
            number,
            run,
            is_retry,
            next,
            adopt: Vec::new(),
        };
        let was_taken = self.mailbox.put(Target {
            adopt,
            ..self.target.clone()
        });
        if was_taken
            && !is_answered
            && let Some(earlier) = earlier
        {
            self.may_have_begun.push(earlier);
        }
    }
}

impl<C: Clock> Record<C> {
    pub(super) fn is_empty(&self) -> bool {
        self.wanted.is_none()
            && self.control_loop.is_none()
            && self.staged.is_none()
            && self.found.is_empty()
            && self.deleted.is_empty()
            && self.stop_after.is_empty()
    }

    /// The instance that runs until it is stopped or replaced.
    pub(super) fn current(&self) -> Option<&InstanceName> {
        self.control_loop.as_ref()?.current()
    }

    /// Whether exactly this was ordered last.
    pub(super) fn runs(&self, added: &AddedWorkload) -> bool {
        match &self.control_loop {
            Some(control_loop) => control_loop.target.run.added() == Some(added),
            None => false,
        }
    }

    pub(super) fn kept(&self) -> Option<&KeptContainer> {
        self.control_loop.as_ref()?.kept.as_ref()
    }

    /// Whether the container of an earlier agent is started again for what is wanted.
    pub(super) fn starts_again(&self) -> bool {
        let good_for = self.kept().and_then(|kept| kept.start_again_for.as_ref());
        good_for.is_some() && good_for == self.wanted.as_ref()
    }

    /// What is wanted and was not ordered yet.
    pub(super) fn waiting(&self) -> Option<&AddedWorkload> {
        self.wanted.as_ref().filter(|_| self.waits != Waits::No)
    }

    /// Whether a state of one of these other workloads may end its waiting.
    fn waits_for(&self, others: &BTreeSet<Name>) -> bool {
        if self.waits == Waits::No {
            return false;
        }
        if self.stop_after.keys().any(|name| others.contains(&**name)) {
            return true;
        }
        let Some(wanted) = &self.wanted else {
            return false;
        };
        let mut dependencies = wanted.workload.dependencies.keys();
        dependencies.any(|name| others.contains(&**name))
    }

    /// Whether what is wanted needs this other workload to run.
    pub(super) fn needs_running(&self, other: &str) -> bool {
        let Some(wanted) = &self.wanted else {
            return false;
        };
        wanted.workload.dependencies.get(other) == Some(&AddCondition::Running)
    }

    /// Whether its control loop has something of this instance, or has to start it.
    fn has(&self, instance: &InstanceName) -> bool {
        let Some(control_loop) = &self.control_loop else {
            return false;
        };
        control_loop.current() == Some(instance)
            || control_loop.status.instances.contains_key(instance)
            || control_loop.may_have_begun.contains(instance)
    }

    /// How far the wanted instance is prepared, as it is shown while it waits.
    fn preparation_note(&self) -> Option<Note> {
        let wanted = self.wanted.as_ref()?;
        let control_loop = self.control_loop.as_ref()?;
        if let Some(unstarted) = &control_loop.unstarted {
            let error = &unstarted.error;
            let text = format!("{PREPARE_PREFIX}no thread can be started: {error}");
            return Some(Note::new(Reason::PreparationFailed, text));
        }
        // What is staged is shown by the server.
        if self
            .staged()
            .is_some_and(|staged| !self.carries_out(staged))
        {
            return None;
        }
        let report = control_loop.report(wanted)?;
        (!report.note.text.is_empty()).then(|| report.note.clone())
    }

    /// The state of the wanted instance while it waits to be started.
    // [impl->swdd~agent-shows-unmet-dependencies~1]
    fn waiting_to_start(&self) -> ExecutionState {
        if let Some(StagingBeforeStop::Failed { reason, .. }) = &self.staging {
            let info = format!("{CANNOT_BE_STAGED}{reason}");
            return ExecutionState::with_info(Phase::PendingStartingFailed, info)
                .because(Reason::CannotBeStaged);
        }
        // The first reason decides whether the server waits for it. Programs without reasons take
        // the first part of the text.
        let mut notes: Vec<Note> = Vec::new();
        notes.extend(self.blocked.clone());
        notes.extend(self.unlisted.clone());
        let preparation = self.preparation_note();
        let prepared = match &preparation {
            Some(note) => note.prepared,
            None => PrepareLevel::None,
        };
        notes.extend(preparation);
        for (name, condition) in &self.unmet {
            if self.blocked.as_ref() != Some(&waits_for_blocked(name)) {
                let text = reason::waits_for(name, *condition);
                notes.push(Note::new(Reason::Dependency, text));
            }
        }
        let mut reasons = notes.iter().map(|note| note.reason);
        let reason = reasons.find(|reason| *reason != Reason::None);
        let texts: Vec<&str> = notes.iter().map(|note| &*note.text).collect();
        let all = Note {
            reason: reason.unwrap_or_default(),
            prepared,
            text: texts.join(PARTS_SEPARATOR),
        };
        all.state(Phase::PendingWaitingToStart)
    }

    /// The states of all instances of the workload, as others must see them: those that its control
    /// loop reports, and those of instances that wait for others. `before` are those that were
    /// shown last.
    fn shown(
        &self,
        before: &BTreeMap<InstanceName, ExecutionState>,
        is_settled: bool,
    ) -> BTreeMap<InstanceName, ExecutionState> {
        let mut shown = BTreeMap::new();
        if let Some(control_loop) = &self.control_loop {
            for (instance, state) in &control_loop.status.instances {
                let state = self.shown_state(control_loop, instance, state, before);
                if let Some(state) = state {
                    shown.insert(instance.clone(), state);
                }
            }
            for instance in &control_loop.may_have_begun {
                if let Some(state) = before.get(instance) {
                    shown.entry(instance.clone()).or_insert(state.clone());
                }
            }
            if let (Some(unstarted), Some(current)) =
                (&control_loop.unstarted, control_loop.current())
                && control_loop.status.instances.contains_key(current)
            {
                // No loop watches the container, which may be in any state.
                shown.insert(current.clone(), unstarted.state(Phase::FailedUnknown));
            }
            self.show_waiting_to_stop(control_loop, &mut shown);
        }
        self.show_wanted(before, is_settled, &mut shown);
        shown
    }

    /// The state that others must see of an instance in the status.
    fn shown_state(
        &self,
        control_loop: &ControlLoop<C>,
        instance: &InstanceName,
        state: &ExecutionState,
        before: &BTreeMap<InstanceName, ExecutionState>,
    ) -> Option<ExecutionState> {
        let before = before.get(instance);
        if state.phase != Phase::PendingInitial {
            // What it waited for has come, and the loop has not followed that yet.
            let was_to_stop = before.is_some_and(|it| it.phase == Phase::StoppingWaitingToStop);
            let is_about_to_stop =
                was_to_stop && state.phase.state() != "Stopping" && !control_loop.is_up_to_date();
            // The loop has a thread now, and has not reported anything yet.
            let was_unwatched = before.is_some_and(|it| it.phase == Phase::FailedUnknown)
                && control_loop.status.target == 0;
            return match before {
                Some(before) if is_about_to_stop || was_unwatched => Some(before.clone()),
                _ => Some(state.clone()),
            };
        }
        // It is only prepared. Whatever comes in its place is shown instead of it.
        let before = before.filter(|_| self.wanted.is_none())?;
        if state.additional_info.is_empty() {
            return Some(before.clone());
        }
        let why = state.additional_info.to_string();
        Some(ExecutionState::with_info(Phase::StoppingDeleteFailed, why))
    }

    /// Shows that the current instance waits for others before it stops.
    fn show_waiting_to_stop(
        &self,
        control_loop: &ControlLoop<C>,
        shown: &mut BTreeMap<InstanceName, ExecutionState>,
    ) {
        if self.waits != Waits::ToStop || self.stop_after.is_empty() {
            return;
        }
        let Some(current) = control_loop.current() else {
            return;
        };
        let is_stopping = match control_loop.status.state_of(current) {
            Some(state) => state.phase.state() == "Stopping",
            None => false,
        };
        if !is_stopping {
            let state = ExecutionState::plain(Phase::StoppingWaitingToStop);
            shown.insert(current.clone(), state);
        }
    }

    /// Shows the wanted instance while its control loop has no state of it.
    fn show_wanted(
        &self,
        before: &BTreeMap<InstanceName, ExecutionState>,
        is_settled: bool,
        shown: &mut BTreeMap<InstanceName, ExecutionState>,
    ) {
        let Some(AddedWorkload { instance, .. }) = &self.wanted else {
            return;
        };
        let control_loop = self.control_loop.as_ref();
        let is_current = self.waits == Waits::ToStop && self.current() == Some(instance);
        let is_reported = control_loop.is_some_and(|one| one.status.state_of(instance).is_some());
        if is_current || is_reported {
            return;
        }
        let earlier = before.get(instance);
        if self.waits != Waits::No {
            if is_settled || earlier.is_some() {
                shown.insert(instance.clone(), self.waiting_to_start());
            }
            return;
        }
        if let Some(control_loop) = control_loop
            && let Some(unstarted) = &control_loop.unstarted
            && control_loop.status.instances.is_empty()
        {
            shown.insert(instance.clone(), unstarted.state(Phase::PendingStarting));
            return;
        }
        // Its start was ordered.
        if let Some(state) = earlier {
            shown.insert(instance.clone(), state.clone());
        }
    }
}

impl<C: Clock> Unstarted<C> {
    fn state(&self, phase: Phase) -> ExecutionState {
        let error = &self.error;
        let info = format!("No thread can be started for it, trying again: {error}");
        ExecutionState::with_info(phase, info)
    }
}

/// All workloads of this agent.
pub struct Workloads<C: Clock> {
    pub(crate) store: WorkloadStateStore,
    /// States that were not sent to the server yet, in order.
    pub(super) changes: Vec<WorkloadState>,
    /// Which engines have listed their containers since the start of the agent.
    pub(crate) listings: Listings,
    pub(crate) context: LoopContext<C>,
    pub(super) facts: NodeFacts,
    /// When to evaluate conditions again, or to stop waiting for an instance to be staged.
    pub(super) conditions_due: Option<Instant>,
    random: fastrand::Rng,
    run_loop: StartLoop<C>,
    pub(super) keeps_finished: bool,
    /// Boxed, since a map keeps room for several beside each other.
    pub(super) records: BTreeMap<Name, Box<Record<C>>>,
    /// How far starts are prepared, when a workload does not say it.
    pub(super) prepare_level: PrepareLevel,
    /// A list of instances to stage has come since the session began.
    pub(super) has_stage_list: bool,
    /// A hello has come, and nothing is ordered before engines have listed their containers.
    pub(crate) awaits_listings: bool,
    /// Workloads that must be reconciled.
    pub(super) dirty: BTreeSet<Name>,
    /// Conditions, or what they are about, have changed.
    pub(super) is_blocked_outdated: bool,
    /// The wanted workloads that are restarted with their dependencies.
    pub(super) restarted_with: BTreeSet<Name>,
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
            changes: Vec::new(),
            listings: Listings::new(&context.engines),
            has_stage_list: false,
            awaits_listings: false,
            prepare_level,
            dirty: BTreeSet::new(),
            is_blocked_outdated: false,
            restarted_with: BTreeSet::new(),
            context,
            facts,
            conditions_due: None,
            random,
            run_loop,
            keeps_finished,
            records: BTreeMap::new(),
        }
    }

    // ------------------------------------------------------ what is wanted

    /// Takes in what the server wants of a workload, and what has to go first.
    // [impl->swdd~agent-handles-new-workload-operations]
    // [impl->swdd~agent-update-on-add-known-workload~1]
    // [impl->swdd~agent-add-on-update-missing-workload~1]
    pub(crate) fn request(
        &mut self,
        name: Name,
        new: Option<AddedWorkload>,
        deleted: Option<DeletedWorkload>,
    ) {
        let _source = log_source(name.clone());
        let conditions = match &new {
            Some(new) => self.evaluate(new, false),
            None => None,
        };
        if let Some(new) = &new {
            self.listings.need(&new.workload.runtime);
        }
        self.dirty.insert(name.clone());
        self.note_restart_with(&name, new.as_ref());
        let record = self.records.entry(name.clone()).or_default();
        self.is_blocked_outdated = true;
        record.conditions = conditions;
        record.is_requested = true;
        if let Some(new) = &new
            && deleted.is_none()
            && record.current().is_some()
            && !record.runs(new)
            && !(record
                .kept()
                .is_some_and(|kept| kept.start_again_for.as_ref() == Some(new)))
        {
            warn!(
                "Added workload '{name}' already exists. Updating without considering delete dependencies."
            );
        }
        match deleted {
            Some(DeletedWorkload {
                instance,
                dependencies,
            }) => {
                record.stop_after = dependencies;
                if let Some(control_loop) = &mut record.control_loop
                    && let Some(kept) = &mut control_loop.kept
                    && kept.container.instance == instance
                {
                    // It goes, even if the same instance comes in its place.
                    kept.may_be_adopted = false;
                }
                let is_replaced_by = |new: &AddedWorkload| {
                    // The end of its predecessor was reported before it was started.
                    new.instance == instance || record.runs(new)
                };
                if !new.as_ref().is_some_and(is_replaced_by) {
                    record.deleted.insert(instance);
                }
            }
            // It still waits for them, or may turn out to be there.
            None if record.waits == Waits::ToStop || self.awaits_listings => {}
            None => record.stop_after.clear(),
        }
        if record.wanted != new {
            record.wanted = new;
            record.staging = None;
            record.restarts_with = None; // It is replaced anyway.
        }
    }

    // --------------------------------------------------------------- reconcile

    /// Compares, for all workloads of which something has changed, what is wanted with what there
    /// is: sets the targets of their control loops, and stores the states that others must see.
    /// What is replaced together is started in the order of its dependencies, so all that is wanted
    /// is known before anything is decided. Returns the states that are new.
    pub(crate) fn reconcile(&mut self) -> Vec<WorkloadState> {
        // First: what engines have listed may be what is wanted.
        for name in self.dirty.clone() {
            self.adopt(&name);
        }
        // Then: which instances must be staged before others stop.
        if !self.awaits_listings {
            for name in self.dirty.clone() {
                self.begin_staging_before_stop(&name);
            }
            self.update_blocked();
        }
        // Finally: targets and states. When the last engine has listed, all workloads are decided
        // on right after their states are known. A target before that would not say yet what is to
        // start, and a control loop that is fast would remove what was prepared for it.
        let is_decided_next = self.awaits_listings && !self.listings.hold_up_hello();
        while let Some(name) = self.dirty.pop_first() {
            let _source = log_source(name.clone());
            if !is_decided_next {
                let run = self.decide(&name);
                self.direct(&name, run);
            }
            self.show(&name);
            if self
                .records
                .get(&name)
                .is_some_and(|record| record.is_empty())
            {
                self.records.remove(&name);
            }
        }
        std::mem::take(&mut self.changes)
    }

    /// What the control loop of a workload must run now:
    /// - what it runs, when that is wanted, or when it must not stop yet;
    /// - nothing, when nothing is wanted, or what is wanted must not start yet;
    /// - otherwise what is wanted.
    fn decide(&mut self, name: &Name) -> Run {
        let Some(record) = self.records.get(name) else {
            return Run::Nothing;
        };
        let present = match &record.control_loop {
            Some(control_loop) => control_loop.target.run.clone(),
            None => Run::Nothing,
        };
        if self.awaits_listings {
            return present;
        }
        self.follow_staging_before_stop(name);
        if let Some(run) = self.adopt_kept(name) {
            self.set_waits(name, Waits::No, BTreeMap::new());
            return run;
        }
        self.update_restart(name);
        self.update_waiting(name);
        let Some(record) = self.records.get(name) else {
            return Run::Nothing;
        };
        let wanted = record.wanted.clone();
        let runs_wanted = wanted.as_ref().is_some_and(|wanted| record.runs(wanted));
        if runs_wanted && !self.must_pause(record) {
            self.set_waits(name, Waits::No, BTreeMap::new());
            return present;
        }
        let starts_again = record.starts_again();
        if record.current().is_some() && !starts_again {
            // Its end must not hurt those that need it, when it stops only for a while.
            let (users, may_stop) = if runs_wanted {
                let users = self.pausing_users(name);
                let may_stop = users.keys().all(|user| self.store.has_no_container(user));
                (users, may_stop)
            } else {
                (record.stop_after.clone(), self.may_stop(name))
            };
            if !may_stop {
                // [impl->swdd~agent-enqueues-unfulfilled-delete~1]
                // [impl->swdd~agent-enqueues-update-with-unfulfilled-delete~1]
                self.set_waits(name, Waits::ToStop, users);
                return present;
            }
            if record.staging.is_some() {
                // Those that it waited for let it stop, whatever comes in their places.
                self.set_waits(name, Waits::ToStop, BTreeMap::new());
                return present;
            }
        }
        let Some(wanted) = wanted else {
            self.set_waits(name, Waits::No, BTreeMap::new());
            return Run::Nothing;
        };
        let is_held_up = record.blocked.is_some()
            || record.restarts_with.is_some()
            || record.unlisted.is_some()
            || !record.unmet.is_empty();
        if is_held_up {
            // [impl->swdd~agent-enqueues-unfulfilled-create~1]
            // [impl->swdd~agent-handles-update-with-fulfilled-delete~1]
            // [impl->swdd~agent-shall-not-enqueue-update-delete-only-workload-operation~1]
            self.set_waits(name, Waits::ToStart, BTreeMap::new());
            return if starts_again { present } else { Run::Nothing };
        }
        self.set_waits(name, Waits::No, BTreeMap::new());
        Run::Instance(wanted)
    }

    /// Updates what the start of a workload has to wait for.
    fn update_waiting(&mut self, name: &Name) {
        let Some(wanted) = self
            .records
            .get(name)
            .and_then(|record| record.wanted.clone())
        else {
            return;
        };
        let unmet = self.unmet(&wanted);
        let unlisted = self.listings.hold_up(&wanted.workload.runtime);
        if let Some(record) = self.records.get_mut(name) {
            record.unmet = unmet;
            record.unlisted = unlisted;
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

    /// Whether dependents of this instance may be started. One of ours that is about to be replaced
    /// or restarted would go while they start, unless it is not known yet whether it will be.
    fn counts(&self, instance: &InstanceName) -> bool {
        let Some(record) = self.records.get(&instance.workload) else {
            return true;
        };
        let Some(wanted) = &record.wanted else {
            return true;
        };
        if record.restarts_with.is_some() {
            return false;
        }
        let is_replaced = wanted.instance != *instance && wanted.instance.agent == instance.agent;
        !is_replaced || record.staging.is_some()
    }

    /// Sets what the workload waits for; `users` are those after which its current instance stops.
    fn set_waits(&mut self, name: &Name, waits: Waits, users: BTreeMap<String, DeleteCondition>) {
        let Some(record) = self.records.get_mut(name) else {
            return;
        };
        if waits != Waits::ToStop {
            record.staging = None;
        }
        if waits == Waits::No {
            record.unmet.clear();
        }
        record.waits = waits;
        record.stop_after = users;
    }

    /// Whether the users of the current instance have reached what its end waits for. One that
    /// waits for this end itself is left out, or both would wait for ever.
    fn may_stop(&self, name: &Name) -> bool {
        let Some(record) = self.records.get(name) else {
            return true;
        };
        for (user, condition) in &record.stop_after {
            let in_circle =
                || self.store.is_stopping(user, *condition) && self.goes_after(user, name);
            if !self.store.may_stop(user, *condition) && !in_circle() {
                return false;
            }
        }
        true
    }

    /// Whether the end of `name` waits for that of `other`, directly or not.
    fn goes_after(&self, name: &str, other: &str) -> bool {
        let mut open = vec![name];
        let mut seen = BTreeSet::new();
        while let Some(name) = open.pop() {
            let Some(next) = self.records.get(name) else {
                continue;
            };
            if next.waits != Waits::ToStop {
                continue;
            }
            if next.stop_after.contains_key(other) {
                return true;
            }
            for name in next.stop_after.keys() {
                if seen.insert(name.as_str()) {
                    open.push(name);
                }
            }
        }
        false
    }

    /// Stores the states of a workload that others must see.
    fn show(&mut self, name: &Name) {
        let Some(record) = self.records.get_mut(name) else {
            return;
        };
        let before = self.store.own_of(name);
        let is_settled = !self.awaits_listings;
        let shown = record.shown(&before, is_settled);
        for instance in before.keys() {
            if !shown.contains_key(instance) {
                self.changes.push(removed(instance));
                record.deleted.remove(instance);
            }
        }
        if is_settled {
            // What was deleted and is not there has ended.
            for instance in record.deleted.clone() {
                if !shown.contains_key(&instance) && !record.has(&instance) {
                    record.deleted.remove(&instance);
                    self.changes.push(removed(&instance));
                }
            }
        }
        let is_answered = match &record.control_loop {
            Some(control_loop) => control_loop.is_up_to_date() || control_loop.unstarted.is_some(),
            None => true,
        };
        // The wanted instance comes in the place of the others.
        let wanted = record.wanted.as_ref().map(|wanted| &wanted.instance);
        let (last, first): (Vec<_>, Vec<_>) = shown
            .iter()
            .partition(|(instance, _)| Some(*instance) == wanted);
        for (instance, state) in first.into_iter().chain(last) {
            let waits_to_stop = state.phase == Phase::StoppingWaitingToStop;
            let is_wanted = Some(instance) == wanted && state.phase.state() != "Stopping";
            if record.is_requested && is_settled && (waits_to_stop || is_wanted) {
                record.must_show.insert(instance.clone());
            }
            let is_expected = is_answered && record.must_show.contains(instance);
            if is_expected || before.get(instance) != Some(state) {
                let change = WorkloadState::new(instance.clone(), state.clone());
                self.changes.push(change);
                record.must_show.remove(instance);
            }
        }
        if is_answered {
            record.must_show.clear();
        }
        record.is_requested &= !is_settled;
        if self.store.replace_own(name, shown) {
            self.restart_dependents(BTreeSet::from([name.clone()]));
        }
    }

    /// Takes states of instances on other agents.
    pub(crate) fn take_foreign(&mut self, states: Vec<WorkloadState>) {
        let mut names = BTreeSet::new();
        let mut ended = BTreeSet::new();
        for state in states {
            let name = state.instance.workload.clone();
            if self.store.set_foreign(state) {
                ended.insert(name.clone());
            }
            names.insert(name);
        }
        self.states_changed(&names);
        self.restart_dependents(ended);
    }

    /// These workloads have a new state: those that wait for it must be reconciled. Thousands may
    /// change at once, so all that wait are looked at once.
    // [impl->swdd~agent-handles-workloads-with-fulfilled-dependencies~1]
    // [impl->swdd~agent-keeps-workloads-with-unfulfilled-workload-dependencies-in-queue~1]
    pub(crate) fn states_changed(&mut self, workloads: &BTreeSet<Name>) {
        for (name, record) in &self.records {
            if record.waits_for(workloads) || self.follows_one_of(name, workloads) {
                self.dirty.insert(name.clone());
            }
        }
    }

    /// Takes the newest status of a control loop. An instance that is not in it any more has ended.
    // [impl->swdd~agent-manager-receives-workload-states-of-its-workloads~1]
    pub(crate) fn take_status(&mut self, name: &Name, status: Arc<Status>) {
        let Some(record) = self.records.get_mut(name) else {
            return;
        };
        let Some(control_loop) = &mut record.control_loop else {
            return;
        };
        let mut has_ended = false;
        for instance in status.ended_since(&control_loop.status) {
            record.deleted.remove(&instance);
            has_ended |= self.store.forget_own(&instance);
            self.changes.push(removed(&instance));
        }
        let status = status.with_stops_of(&control_loop.status);
        let is_done = status.is_idle && status.target >= control_loop.target.number;
        if status.target >= control_loop.target.number {
            control_loop.may_have_begun.clear();
        }
        control_loop.status = status;
        if is_done {
            record.control_loop = None;
        }
        self.dirty.insert(name.clone());
        if has_ended {
            self.restart_dependents(BTreeSet::from([name.clone()]));
        }
    }

    // ------------------------------------------------------------- conditions

    /// Evaluates the conditions of an instance that is wanted, or staged, for the first time.
    pub(super) fn evaluate(&mut self, added: &AddedWorkload, is_staged: bool) -> Option<Gate> {
        let conditions = Gate::new(added, is_staged, &mut self.facts);
        if conditions.as_ref().is_some_and(Gate::is_open) {
            self.evaluate_until(self.context.clock.now() + PRECONDITION_INTERVAL);
        }
        conditions
    }

    /// Evaluates the conditions again at this time at the latest.
    pub(super) fn evaluate_until(&mut self, at: Instant) {
        self.conditions_due = Some(match self.conditions_due {
            Some(due) => due.min(at),
            None => at,
        });
    }

    /// Sets which workloads are blocked by conditions: those whose own do not hold, and those that
    /// need one of these to run.
    // [impl->swdd~agent-lifecycle-precondition~1]
    fn update_blocked(&mut self) {
        if !std::mem::take(&mut self.is_blocked_outdated) {
            return;
        }
        let mut blocked: BTreeMap<Name, Note> = BTreeMap::new();
        for (name, record) in &self.records {
            if let Some(reason) = record.conditions.as_ref().and_then(Gate::reason) {
                blocked.insert(name.clone(), reason);
            }
        }
        let mut open: Vec<Name> = blocked.keys().cloned().collect();
        while let Some(name) = open.pop() {
            for (user, record) in &self.records {
                if !blocked.contains_key(user) && record.needs_running(&name) {
                    blocked.insert(user.clone(), waits_for_blocked(&name));
                    open.push(user.clone());
                }
            }
        }
        for (name, record) in &mut self.records {
            let _source = log_source(name.clone());
            let reason = blocked.remove(name);
            match (&record.blocked, &reason) {
                (None, None) => continue,
                (None, Some(reason)) => info!("Workload '{name}' may not run: {}", reason.text),
                (Some(_), None) => info!("Workload '{name}' may run again."),
                (Some(_), Some(_)) => {}
            }
            record.blocked = reason;
            self.dirty.insert(name.clone());
        }
    }

    /// Whether a workload that runs as wanted must stop for a while: it is restarted with a
    /// dependency, or is blocked. One that has ended for good has nothing to stop for a condition.
    fn must_pause(&self, record: &Record<C>) -> bool {
        let Some(wanted) = &record.wanted else {
            return false;
        };
        let must_stop = record.blocked.is_some() && !has_finished(wanted, &self.store);
        must_stop || record.restarts_with.is_some()
    }

    /// The workloads that need this one to run, and must stop for a while as well.
    fn pausing_users(&self, name: &str) -> BTreeMap<String, DeleteCondition> {
        let mut users = BTreeMap::new();
        for (user, record) in &self.records {
            if self.must_pause(record) && record.needs_running(name) {
                users.insert(user.to_string(), DeleteCondition::NotPendingNorRunning);
            }
        }
        users
    }

    /// Evaluates the conditions again if they are due.
    pub(crate) fn refresh_conditions(&mut self, now: Instant) {
        if self.conditions_due.is_none_or(|at| now < at) {
            return;
        }
        let mut paths = BTreeSet::new();
        for record in self.records.values() {
            let staged = record.staged_conditions();
            for conditions in record.conditions.iter().chain(staged) {
                paths.extend(conditions.paths());
            }
        }
        let known = (self.facts.check_paths)(&paths);
        self.conditions_due = None;
        self.is_blocked_outdated = true;
        let mut due = self.end_staging_before_stop(now);
        for (name, record) in &mut self.records {
            if let Some(conditions) = &mut record.conditions {
                conditions.evaluate(&known, &self.facts.tags);
                if conditions.is_open() {
                    due.push(now + PRECONDITION_INTERVAL);
                }
            }
            if let Some(staged) = &mut record.staged {
                // It may be created now, or not any more.
                self.dirty.insert(name.clone());
                if let Some(conditions) = &mut staged.conditions {
                    conditions.evaluate(&known, &self.facts.tags);
                    if conditions.is_open() {
                        due.push(now + PRECONDITION_INTERVAL);
                    }
                }
            }
        }
        for at in due {
            self.evaluate_until(at);
        }
    }

    // ------------------------------------------------------------------ views

    /// What must run of each workload, whatever else of it there is still.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = &AddedWorkload> {
        self.records
            .values()
            .filter_map(|record| record.wanted.as_ref())
    }

    /// Which images workloads need. An update is open as long as anything is staged.
    pub(crate) fn image_needs(&self) -> ImageNeeds {
        let mut needs = ImageNeeds::default();
        for (name, record) in &self.records {
            let mut instances = NeededInstances {
                desired: record.wanted.clone(),
                ..NeededInstances::default()
            };
            if let Some(staged) = record.staged() {
                needs.is_update_open = true;
                instances.others.push(staged.clone());
            }
            if let Some(control_loop) = &record.control_loop {
                let next = control_loop.target.next.as_ref();
                instances.others.extend(next.map(|next| next.added.clone()));
                let run = control_loop.target.run.added();
                instances.others.extend(run.cloned());
                let is_started = |added: &&AddedWorkload| self.was_started(&added.instance);
                instances.started.extend(run.filter(is_started).cloned());
            }
            needs.workloads.insert(name.clone(), instances);
        }
        needs
    }

    /// Whether there is a container of this instance that was started, by an earlier agent maybe.
    fn was_started(&self, instance: &InstanceName) -> bool {
        let Some(state) = self.store.get(instance) else {
            return false;
        };
        match state.phase {
            Phase::Running
            | Phase::Succeeded
            | Phase::FailedExecFailed
            | Phase::FailedUnknown
            | Phase::FailedLost => true,
            phase => phase.state() == "Stopping",
        }
    }

    /// How often the workload was killed for want of memory.
    pub(crate) fn out_of_memory(&self, name: &Name) -> u64 {
        let record = self.records.get(name);
        match record.and_then(|record| record.control_loop.as_ref()) {
            Some(control_loop) => control_loop.status.out_of_memory,
            None => 0,
        }
    }

    /// Whether this instance is wanted, staged or there.
    pub(crate) fn keeps(&self, instance: &InstanceName) -> bool {
        let Some(record) = self.records.get(&instance.workload) else {
            return false;
        };
        let is_it = |added: &AddedWorkload| added.instance == *instance;
        record.has(instance)
            || record.waiting().is_some_and(is_it)
            || record.staged().is_some_and(is_it)
    }

    // -------------------------------------------------------- orders to loops

    /// Sets the target of the control loop of a workload, which is started if there is none.
    // [impl->swdd~agent-executes-create-workload-operation~1]
    // [impl->swdd~agent-executes-update-workload-operation~1]
    // [impl->swdd~agent-executes-delete-workload-operation~1]
    // [impl->swdd~agent-executes-update-delete-only-workload-operation~1]
    // [impl->swdd~agent-workload-obj-update-command~1]
    // [impl->swdd~agent-workload-obj-delete-command~1]
    fn direct(&mut self, name: &Name, run: Run) {
        let next = self.next_of(name);
        let Some(record) = self.records.get_mut(name) else {
            return;
        };
        let adopt = std::mem::take(&mut record.adopt);
        // A new delete retries a failed one at once.
        let is_retry = record.is_requested && record.wanted.is_none() && !self.awaits_listings;
        let first = match (&run, &next, adopt.first()) {
            (Run::Instance(added), ..) => Some(&added.instance),
            (_, Some(next), _) => Some(&next.added.instance),
            (_, None, Some(found)) => Some(&found.instance),
            (_, None, None) => None,
        };
        let is_known = record.control_loop.is_some();
        if !is_known {
            let Some(first) = first.cloned() else {
                return;
            };
            self.start_loop(first);
        }
        let Some(record) = self.records.get_mut(name) else {
            return;
        };
        let Some(control_loop) = &mut record.control_loop else {
            return;
        };
        let is_new = control_loop.target.run != run;
        let is_same = !is_new && control_loop.target.next == next && adopt.is_empty();
        if is_same && !is_retry {
            return;
        }
        if is_new && run == Run::Nothing {
            info!("Deleting workload '{name}'.");
        }
        if is_new && is_known && run.added().is_some() && !control_loop.starts_again_for(&run) {
            info!("Updating workload '{name}'.");
        }
        if run != Run::Found {
            control_loop.kept = None;
        }
        control_loop.put(run.clone(), is_retry, next, adopt);
        if let Run::Instance(added) = &run
            && is_new
        {
            self.check_order(added);
        }
    }

    /// Whether the log of an instance can be read, now or when it is started.
    pub(crate) fn log_of(&self, instance: &InstanceName) -> LogSource {
        let InstanceName {
            workload, agent, ..
        } = instance;
        let unknown =
            || LogSource::Never(format!("workload '{workload}' is not on agent '{agent}'"));
        let Some(record) = self.records.get(workload) else {
            return unknown();
        };
        let control_loop = record.control_loop.as_ref();
        let progress = match control_loop {
            Some(control_loop) => control_loop.status.progress_of(instance),
            None => StartProgress::UnderWay,
        };
        if let (StartProgress::Started(number), Some(control_loop)) = (progress, control_loop) {
            return self.readable(control_loop, Some(number), instance);
        }
        let is_wanted = record
            .wanted
            .as_ref()
            .is_some_and(|wanted| wanted.instance == *instance);
        let state = self.store.get(instance);
        match state.map(|state| state.phase) {
            // A container of an earlier agent is adopted, or the start was ordered.
            None | Some(Phase::PendingInitial | Phase::PendingStarting) if is_wanted => {
                match progress {
                    StartProgress::Failed => LogSource::Later(self.why_without_log(instance)),
                    StartProgress::UnderWay | StartProgress::Started(_) => LogSource::Starting,
                }
            }
            // Its start was cancelled.
            Some(Phase::PendingInitial | Phase::PendingStarting) => {
                LogSource::Never(format!("workload '{workload}' is deleted or replaced"))
            }
            None | Some(Phase::Removed) => unknown(),
            Some(Phase::PendingWaitingToStart) => match control_loop {
                Some(control_loop) if record.starts_again() => {
                    self.readable(control_loop, None, instance)
                }
                // What it may have was never started.
                _ => LogSource::Later(self.why_without_log(instance)),
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
            ) => match control_loop {
                Some(control_loop) => self.readable(control_loop, None, instance),
                None => LogSource::Never(self.why_without_log(instance)),
            },
        }
    }

    fn readable(
        &self,
        control_loop: &ControlLoop<C>,
        start: Option<u64>,
        instance: &InstanceName,
    ) -> LogSource {
        let runtime = control_loop.runtime();
        match runtime.and_then(|runtime| self.context.connector(runtime)) {
            Some(engine) => LogSource::Readable { engine, start },
            None => LogSource::Never(self.why_without_log(instance)),
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
        } else if !control_interface::is_needed(&workload.control_interface_access) {
            info!("No control interface access specified for workload '{name}'");
        }
    }

    /// Starts the control loop of a workload; this is the first instance that it will have
    /// something of.
    // [impl->swdd~agent-create-workload~1]
    // [impl->swdd~agent-resume-workload~2]
    pub(super) fn start_loop(&mut self, instance: InstanceName) -> &mut ControlLoop<C> {
        let name = instance.workload.clone();
        let (handle, mailbox) = mailbox();
        let context = self.context.clone();
        let random = self.random.fork();
        let control_loop = WorkloadControlLoop::new(instance, context, random, mailbox);
        let started = (self.run_loop)(&name, Box::new(control_loop));
        let unstarted = match started {
            Ok(()) => None,
            Err((error, control_loop)) => {
                error!("No thread can be started for workload '{name}', trying again: '{error}'");
                let error = error.to_string();
                Some(Unstarted {
                    control_loop,
                    error,
                })
            }
        };
        let record = self.records.entry(name).or_default();
        record.control_loop.insert(ControlLoop {
            mailbox: handle,
            target: Target::default(),
            next_since: 0,
            may_have_begun: Vec::new(),
            status: Arc::default(),
            kept: None,
            unstarted,
        })
    }

    /// Tries again to get threads for the control loops that have none.
    pub(crate) fn start_waiting_loops(&mut self) {
        for (name, record) in &mut self.records {
            let Some(control_loop) = &mut record.control_loop else {
                continue;
            };
            let Some(unstarted) = control_loop.unstarted.take() else {
                continue;
            };
            let _source = log_source(name.clone());
            match (self.run_loop)(name, unstarted.control_loop) {
                Ok(()) => {
                    info!("Started the control loop of workload '{name}' after retrying.");
                    self.dirty.insert(name.clone());
                }
                Err((error, again)) => {
                    control_loop.unstarted = Some(Unstarted {
                        control_loop: again,
                        error: error.to_string(),
                    });
                    return;
                }
            }
        }
    }
}

/// Why a workload is blocked that needs this one, which is blocked itself.
fn waits_for_blocked(name: &str) -> Note {
    Note::new(Reason::BlockedDependency, reason::waits_for_blocked(name))
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
