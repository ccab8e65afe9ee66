//! Keeps one record of each workload: its desired instance and the status of its control loop.
//! Compares the two, and sets the target of the control loop as soon as dependencies and conditions
//! allow.
//!
//! Thread: `scheduler`, which owns it. Owns: the records, the engines. Takes: plans of the server,
//! listings, statuses. Gives: targets to `wl:<name>` (never waits), states to report.

use super::conditions::{NodeFacts, StartConditions};
use super::listings::Listings;
use super::restart_with::has_ended;
use super::staging::{Staged, StagingBeforeStop};
use super::states::WorkloadStateStore;
use crate::control_interface;
use crate::events::{Note, PreparationReport};
use crate::images::needs::{ImageNeeds, NeededInstances};
use crate::log_stream::LogAccess;
use crate::workload::mailbox::{
    FoundContainer, MailboxHandle, Preparation, RunTarget, Target, mailbox,
};
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

/// How often conditions are evaluated.
const PRECONDITION_INTERVAL: Duration = Duration::from_secs(1);

/// A container that an engine has listed.
pub(crate) struct Existing {
    pub(super) runtime: Name,
    pub(super) container: ListedContainer,
}

/// Starts the control loop of a workload. It is returned when no thread can be started, since it
/// may have the only id of a container. Tests and simulations keep it and call
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

/// The record of one workload.
pub(super) struct WorkloadRecord<C: Clock> {
    /// The desired instance; `None` when the workload must not run.
    pub(super) desired: Option<AddedWorkload>,
    /// The server has sent something about it that was not reconciled yet.
    pub(super) is_requested: bool,
    /// Instances that the server has sent something about. It expects their states, even if these
    /// have not changed.
    pub(super) must_show: BTreeSet<InstanceName>,
    /// Instances that the server has deleted, and whose ends were not reported yet.
    pub(super) deleted: BTreeSet<InstanceName>,
    /// The states that dependents must have reached before the current instance may stop.
    pub(super) stop_after: BTreeMap<String, DeleteCondition>,
    pub(super) waits: Waits,
    pub(super) start_wait: StartWait,
    /// The conditions of the desired instance.
    pub(super) conditions: Option<StartConditions>,
    /// The current instance does not stop before the new one is staged.
    pub(super) staging: Option<StagingBeforeStop>,
    /// The instance that the server lets this agent stage for an update.
    pub(super) staged: Option<Staged>,
    /// Containers that engines have listed. Their use is not decided yet.
    pub(super) found: Vec<Existing>,
    /// Containers that the control loop gets with its next target.
    pub(super) adopt: Vec<FoundContainer>,
    pub(super) control_loop: Option<ControlLoop<C>>,
}

/// What a workload waits for.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    /// For nothing.
    #[default]
    No,
    /// The current instance runs until its dependents let it stop, or until its successor is
    /// staged.
    ToStop,
    /// The desired instance must not be started yet.
    ToStart,
}

/// The reasons for which the start of the desired instance waits.
#[derive(Default)]
pub(super) struct StartWait {
    /// Its conditions, or those of a dependency, do not hold.
    pub(super) blocked: Option<Note>,
    /// It is restarted with this dependency, which has ended, and it has not stopped yet.
    pub(super) restarts_with: Option<Name>,
    /// A runtime has not listed its containers, and may have one of this workload.
    pub(super) unlisted: Option<Note>,
    /// The dependencies that were not met at the last reconcile.
    pub(super) unmet: BTreeMap<String, AddCondition>,
}

impl StartWait {
    fn has_reason(&self) -> bool {
        self.blocked.is_some()
            || self.restarts_with.is_some()
            || self.unlisted.is_some()
            || !self.unmet.is_empty()
    }
}

/// A control loop: its newest target, and its newest status.
// [impl->swdd~agent-stores-running-workload~1]
pub(super) struct ControlLoop<C: Clock> {
    mailbox: MailboxHandle,
    pub(super) target: Target,
    /// The number of the first target with its present `run`.
    run_since: u64,
    /// The number of the first target with its present `next`.
    next_since: u64,
    /// Instances of earlier targets, whose starts the loop may have begun. Until a status follows
    /// the newest target they are treated as present, in the states that were shown last.
    pub(super) may_have_begun: Vec<InstanceName>,
    pub(super) status: Arc<Status>,
    /// The container of an earlier agent, while it stays as it is.
    pub(super) kept: Option<KeptContainer>,
    /// The loop has no thread.
    unstarted: Option<Unstarted<C>>,
}

/// A container of an earlier agent that stays as it is for now.
pub(super) struct KeptContainer {
    pub(super) runtime: Name,
    pub(super) container: ListedContainer,
    /// The instance that can be started again in it, if any.
    pub(super) start_again_for: Option<AddedWorkload>,
    /// It is adopted when its instance is desired again.
    pub(super) may_be_adopted: bool,
}

/// A control loop for which the system had no thread.
struct Unstarted<C: Clock> {
    control_loop: Box<WorkloadControlLoop<C>>,
    error: String,
}

impl<C: Clock> Default for WorkloadRecord<C> {
    fn default() -> Self {
        Self {
            desired: None,
            is_requested: false,
            must_show: BTreeSet::new(),
            deleted: BTreeSet::new(),
            stop_after: BTreeMap::new(),
            waits: Waits::No,
            start_wait: StartWait::default(),
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
            RunTarget::Nothing => None,
            RunTarget::Found => self.kept.as_ref().map(|kept| &kept.container.instance),
            RunTarget::Instance(added) => Some(&added.instance),
        }
    }

    /// The runtime of the current instance.
    pub(super) fn runtime(&self) -> Option<&Name> {
        match &self.target.run {
            RunTarget::Nothing => None,
            RunTarget::Found => self.kept.as_ref().map(|kept| &kept.runtime),
            RunTarget::Instance(added) => Some(&added.workload.runtime),
        }
    }

    /// Whether the container that was found is started again for this target.
    fn starts_again_for(&self, run: &RunTarget) -> bool {
        let Some(added) = run.added() else {
            return false;
        };
        match &self.kept {
            Some(kept) => kept.start_again_for.as_ref() == Some(added),
            None => false,
        }
    }

    /// Whether the status follows the newest target.
    fn is_up_to_date(&self) -> bool {
        self.status.target >= self.target.number
    }

    /// Whether the instance that must run was started and has not ended, so that others may use it.
    fn is_in_use(&self) -> bool {
        let Some(added) = self.target.run.added() else {
            return false;
        };
        if self.status.target < self.run_since {
            return false; // The status is about an earlier target, maybe of the same instance.
        }
        match self.status.state_of(&added.instance) {
            Some(state) => !has_ended(state),
            None => false,
        }
    }

    /// The newest report about the preparation of this instance.
    pub(super) fn report(&self, added: &AddedWorkload) -> Option<&PreparationReport> {
        if self.status.target < self.next_since {
            return None; // It is about an earlier preparation.
        }
        let report = self.status.prepared.as_ref()?;
        if report.added != *added {
            return None;
        }
        Some(report)
    }

    /// Sets the target of the loop. The containers to `adopt` belong to the loop from then on.
    fn put(
        &mut self,
        run: RunTarget,
        is_retry: bool,
        next: Option<Preparation>,
        adopt: Vec<FoundContainer>,
    ) {
        // First: since when `run` and `next` are as they are now.
        let number = self.target.number + 1;
        let is_earlier_followed = self.is_up_to_date();
        let earlier = self.target.run.added().map(|added| added.instance.clone());
        if self.target.run != run {
            self.run_since = number;
        }
        if self.target.next != next {
            self.next_since = number;
        }
        // Then: the target.
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
        // Finally: the earlier instance. If the loop has taken that target, and has sent no status
        // since, it may have begun to start the instance.
        if was_taken
            && !is_earlier_followed
            && let Some(earlier) = earlier
        {
            self.may_have_begun.push(earlier);
        }
    }
}

impl<C: Clock> WorkloadRecord<C> {
    /// Whether there is nothing to record any more.
    pub(super) fn is_empty(&self) -> bool {
        self.desired.is_none()
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

    /// Whether the control loop must run exactly this instance now.
    pub(super) fn runs(&self, added: &AddedWorkload) -> bool {
        match &self.control_loop {
            Some(control_loop) => control_loop.target.run.added() == Some(added),
            None => false,
        }
    }

    /// Whether the current instance will be replaced, since `new` is desired.
    fn replaces_with(&self, new: &AddedWorkload) -> bool {
        let starts_again = match self.kept() {
            Some(kept) => kept.start_again_for.as_ref() == Some(new),
            None => false,
        };
        self.current().is_some() && !self.runs(new) && !starts_again
    }

    /// Notes that the server has deleted an instance. `new` is desired in its place, if anything.
    fn delete(&mut self, deleted: DeletedWorkload, new: Option<&AddedWorkload>) {
        let instance = deleted.instance;
        self.stop_after = deleted.dependencies;
        if let Some(control_loop) = &mut self.control_loop
            && let Some(kept) = &mut control_loop.kept
            && kept.container.instance == instance
        {
            // The container is removed, even if the same instance comes back.
            kept.may_be_adopted = false;
        }
        // The server waits for the end of the deleted instance, but for two cases. An instance that
        // is desired again has no end. If the control loop has `new` as target already, its status
        // has shown the end, or will show it.
        let must_report_end = match new {
            Some(new) => new.instance != instance && !self.runs(new),
            None => true,
        };
        if must_report_end {
            self.deleted.insert(instance);
        }
    }

    /// The container of an earlier agent, while it stays as it is.
    pub(super) fn kept(&self) -> Option<&KeptContainer> {
        self.control_loop.as_ref()?.kept.as_ref()
    }

    /// Whether the desired instance is started again in the container of an earlier agent.
    pub(super) fn starts_again(&self) -> bool {
        match (self.kept(), &self.desired) {
            (Some(kept), Some(desired)) => kept.start_again_for.as_ref() == Some(desired),
            _ => false,
        }
    }

    /// The desired instance, while it waits to be started.
    pub(super) fn waiting(&self) -> Option<&AddedWorkload> {
        match self.waits {
            Waits::No => None,
            Waits::ToStop | Waits::ToStart => self.desired.as_ref(),
        }
    }

    /// Whether the workload waits, and a new state of one of the `others` may end the wait.
    fn waits_for(&self, others: &BTreeSet<Name>) -> bool {
        if self.waits == Waits::No {
            return false;
        }
        if self.stop_after.keys().any(|name| others.contains(&**name)) {
            return true;
        }
        let Some(desired) = &self.desired else {
            return false;
        };
        let mut dependencies = desired.workload.dependencies.keys();
        dependencies.any(|name| others.contains(&**name))
    }

    /// Whether the desired instance needs this other workload to run.
    pub(super) fn needs_running(&self, other: &str) -> bool {
        let Some(desired) = &self.desired else {
            return false;
        };
        desired.workload.dependencies.get(other) == Some(&AddCondition::Running)
    }

    /// Whether the control loop of the workload has something of this instance, or must run it.
    fn has(&self, instance: &InstanceName) -> bool {
        let Some(control_loop) = &self.control_loop else {
            return false;
        };
        control_loop.current() == Some(instance)
            || control_loop.status.instances.contains_key(instance)
            || control_loop.may_have_begun.contains(instance)
    }

    /// The note about the preparation of the desired instance while it waits.
    fn preparation_note(&self) -> Option<Note> {
        let desired = self.desired.as_ref()?;
        let control_loop = self.control_loop.as_ref()?;
        if let Some(unstarted) = &control_loop.unstarted {
            let error = &unstarted.error;
            let text = format!("{PREPARE_PREFIX}no thread can be started: {error}");
            return Some(Note::new(Reason::PreparationFailed, text));
        }
        // The server shows how far a staged instance is. Once it is switched, this agent does.
        if let Some(staged) = self.staged()
            && !self.runs_or_awaits(staged)
        {
            return None;
        }
        let report = control_loop.report(desired)?;
        if report.note.text.is_empty() {
            return None;
        }
        Some(report.note.clone())
    }

    /// The state of the desired instance while it waits to be started.
    // [impl->swdd~agent-shows-unmet-dependencies~1]
    fn waiting_to_start(&self) -> ExecutionState {
        if let Some(StagingBeforeStop::Failed { reason, .. }) = &self.staging {
            let info = format!("{CANNOT_BE_STAGED}{reason}");
            return ExecutionState::with_info(Phase::PendingStartingFailed, info)
                .because(Reason::CannotBeStaged);
        }
        // First: all reasons. Programs decide by the first of them, and older programs by the
        // beginning of the text.
        let mut notes: Vec<Note> = Vec::new();
        let wait = &self.start_wait;
        notes.extend(wait.blocked.clone());
        notes.extend(wait.unlisted.clone());
        let preparation = self.preparation_note();
        let prepared = match &preparation {
            Some(note) => note.prepared,
            None => PrepareLevel::None,
        };
        notes.extend(preparation);
        let mut conditions = wait.unmet.values();
        let awaits_only_failures = conditions.all(|condition| *condition == AddCondition::Failed);
        let reason_of_unmet = if awaits_only_failures {
            Reason::AwaitsFailure
        } else {
            Reason::Dependency
        };
        for (name, condition) in &wait.unmet {
            // The first note names a dependency that is blocked itself.
            let is_named_already = wait.blocked.as_ref() == Some(&waits_for_blocked(name));
            if !is_named_already {
                let text = reason::waits_for(name, *condition);
                notes.push(Note::new(reason_of_unmet, text));
            }
        }
        // Then: one note with all reasons.
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

    /// Returns the states of all instances of the workload, as others must see them. `before` are
    /// the states that were shown last.
    fn shown(
        &self,
        before: &BTreeMap<InstanceName, ExecutionState>,
        are_containers_known: bool,
    ) -> BTreeMap<InstanceName, ExecutionState> {
        let mut shown = BTreeMap::new();
        if let Some(control_loop) = &self.control_loop {
            // First: the states that the control loop has reported.
            for (instance, state) in &control_loop.status.instances {
                let state = self.shown_state(control_loop, instance, state, before);
                if let Some(state) = state {
                    shown.insert(instance.clone(), state);
                }
            }
            // Then: the states that it has not reported yet, or cannot report.
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
        // Finally: the desired instance, which may wait to be started.
        self.show_desired(before, are_containers_known, &mut shown);
        shown
    }

    /// The state that others must see of an instance in the status; `None` if it is not shown.
    fn shown_state(
        &self,
        control_loop: &ControlLoop<C>,
        instance: &InstanceName,
        state: &ExecutionState,
        before: &BTreeMap<InstanceName, ExecutionState>,
    ) -> Option<ExecutionState> {
        let before = before.get(instance);
        if state.phase == Phase::PendingInitial {
            return self.shown_unstarted_state(instance, state, before);
        }
        let Some(before) = before else {
            return Some(state.clone());
        };
        // It may stop by now, but the loop has not followed that target yet.
        let is_about_to_stop = before.phase == Phase::StoppingWaitingToStop
            && state.phase.state() != "Stopping"
            && !control_loop.is_up_to_date();
        // The loop had no thread until now, and has not reported anything yet.
        let was_unwatched = before.phase == Phase::FailedUnknown && control_loop.status.target == 0;
        if is_about_to_stop || was_unwatched {
            return Some(before.clone());
        }
        Some(state.clone())
    }

    /// The state that others must see of an instance whose container this agent has not started;
    /// `None` if it is not shown.
    fn shown_unstarted_state(
        &self,
        instance: &InstanceName,
        state: &ExecutionState,
        before: Option<&ExecutionState>,
    ) -> Option<ExecutionState> {
        // Others see the desired instance instead, if there is one.
        if self.desired.is_some() {
            return None;
        }
        let before = before?;
        // The container was prepared for the deleted instance, which had not started, and stays
        // for the staged one of the same name.
        let is_staged = self
            .staged()
            .is_some_and(|staged| staged.instance == *instance);
        if is_staged && before.phase == Phase::PendingWaitingToStart {
            return None;
        }
        // A text says why the container could not be removed.
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

    /// Shows the desired instance while its control loop has no state of it.
    fn show_desired(
        &self,
        before: &BTreeMap<InstanceName, ExecutionState>,
        are_containers_known: bool,
        shown: &mut BTreeMap<InstanceName, ExecutionState>,
    ) {
        let Some(AddedWorkload { instance, .. }) = &self.desired else {
            return;
        };
        let is_current = self.waits == Waits::ToStop && self.current() == Some(instance);
        let is_reported = match &self.control_loop {
            Some(control_loop) => control_loop.status.state_of(instance).is_some(),
            None => false,
        };
        if is_current || is_reported {
            return;
        }
        let earlier = before.get(instance);
        if self.waits != Waits::No {
            // Before all engines have listed, a new instance may turn out to run already.
            if are_containers_known || earlier.is_some() {
                shown.insert(instance.clone(), self.waiting_to_start());
            }
            return;
        }
        if let Some(control_loop) = &self.control_loop
            && let Some(unstarted) = &control_loop.unstarted
            && control_loop.status.instances.is_empty()
        {
            shown.insert(instance.clone(), unstarted.state(Phase::PendingStarting));
            return;
        }
        // The loop will report its start. Until then the earlier state is shown.
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
pub struct WorkloadRecords<C: Clock> {
    pub(crate) store: WorkloadStateStore,
    /// States that were not sent to the server yet, in order.
    pub(super) changes: Vec<WorkloadState>,
    /// The listings of all runtimes since the start of the agent.
    pub(crate) listings: Listings,
    pub(crate) context: LoopContext<C>,
    pub(super) facts: NodeFacts,
    /// When to evaluate conditions again, or to stop waiting for an instance to be staged.
    pub(super) conditions_due: Option<Instant>,
    random: fastrand::Rng,
    run_loop: StartLoop<C>,
    pub(super) keeps_finished: bool,
    /// Boxed, since a map has unused places of the whole size beside its values.
    pub(super) records: BTreeMap<Name, Box<WorkloadRecord<C>>>,
    /// How far starts are prepared if the `lifecycle:` block does not say it.
    pub(super) prepare_level: PrepareLevel,
    /// In this session a list of instances to stage was received.
    pub(super) has_stage_list: bool,
    /// A hello was received, and no target is set until engines have listed their containers.
    pub(crate) awaits_listings: bool,
    /// Workloads that must be reconciled.
    pub(super) dirty: BTreeSet<Name>,
    /// Conditions or their results have changed.
    pub(super) is_blocked_outdated: bool,
    /// The desired workloads that are restarted with their dependencies.
    pub(super) restarted_with: BTreeSet<Name>,
}

/// The state of an instance that has ended.
pub(super) fn removed(instance: &InstanceName) -> WorkloadState {
    WorkloadState::new(instance.clone(), ExecutionState::plain(Phase::Removed))
}

impl<C: Clock> WorkloadRecords<C> {
    /// Returns the records of an agent that has no workload yet.
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

    // ------------------------------------------------------ desired instances

    /// Takes the desired instance of a workload, and the delete of another one.
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
        self.dirty.insert(name.clone());
        // First: the conditions and the listing that the desired instance needs.
        let mut conditions = None;
        if let Some(new) = &new {
            conditions = self.evaluate(new, false);
            self.listings.need(&new.workload.runtime);
        }
        self.note_restart_with(&name, new.as_ref());
        self.is_blocked_outdated = true;
        // Then: the delete.
        let record = self.records.entry(name.clone()).or_default();
        record.conditions = conditions;
        record.is_requested = true;
        if let Some(new) = &new
            && deleted.is_none()
            && record.replaces_with(new)
        {
            warn!(
                "Added workload '{name}' already exists. Updating without considering delete dependencies."
            );
        }
        if let Some(deleted) = deleted {
            record.delete(deleted, new.as_ref());
        } else if record.waits != Waits::ToStop && !self.awaits_listings {
            // No instance waits for these dependents, and no listing can show another instance.
            record.stop_after.clear();
        }
        // Finally: the desired instance itself.
        if record.desired != new {
            record.desired = new;
            record.staging = None;
            record.start_wait.restarts_with = None; // It is replaced anyway.
        }
    }

    // --------------------------------------------------------------- reconcile

    /// Compares the desired instances of all dirty workloads with their statuses: sets the targets
    /// of their control loops, and stores the states that others must see. Returns the states that
    /// are new.
    pub(crate) fn reconcile(&mut self) -> Vec<WorkloadState> {
        // First: listed containers may be those of desired instances.
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
        // Finally: targets and states. If all engines have listed just now, this call sets no
        // targets: `on_listings_known` and a second call follow. Targets of this call would not
        // name the instances to start, so control loops would remove containers prepared for them.
        let is_decided_next = self.awaits_listings && !self.listings.must_hello_wait();
        while let Some(name) = self.dirty.pop_first() {
            let _source = log_source(name.clone());
            if !is_decided_next {
                let run = self.decide(&name);
                self.direct(&name, run);
            }
            self.show(&name);
            if let Some(record) = self.records.get(&name)
                && record.is_empty()
            {
                self.records.remove(&name);
            }
        }
        std::mem::take(&mut self.changes)
    }

    /// Decides which instance the control loop of a workload must run now:
    /// - the present one, when that is desired, or when it must not stop yet;
    /// - none, when none is desired, or the desired one must not start yet;
    /// - otherwise the desired one.
    fn decide(&mut self, name: &Name) -> RunTarget {
        let Some(record) = self.records.get(name) else {
            return RunTarget::Nothing;
        };
        let present = match &record.control_loop {
            Some(control_loop) => control_loop.target.run.clone(),
            None => RunTarget::Nothing,
        };
        if self.awaits_listings {
            return present;
        }
        // First: changes since the last decision.
        self.follow_staging_before_stop(name);
        if let Some(run) = self.adopt_kept(name) {
            self.set_waits(name, Waits::No, BTreeMap::new());
            return run;
        }
        self.update_restart(name);
        self.update_waiting(name);
        let Some(record) = self.records.get(name) else {
            return RunTarget::Nothing;
        };
        // Then: the present instance may be the desired one.
        let desired = record.desired.clone();
        let runs_desired = desired.as_ref().is_some_and(|desired| record.runs(desired));
        if runs_desired && !self.must_pause(record) {
            self.set_waits(name, Waits::No, BTreeMap::new());
            return present;
        }
        // Otherwise it must stop, and may have to wait for its dependents, then for the staging of
        // its successor.
        let starts_again = record.starts_again();
        if runs_desired {
            let dependents = self.dependents_to_pause_before(name);
            if !dependents.is_empty() {
                self.set_waits(name, Waits::ToStop, dependents);
                return present;
            }
        } else if record.current().is_some() && !starts_again {
            if !self.may_stop(name) {
                // [impl->swdd~agent-enqueues-unfulfilled-delete~1]
                // [impl->swdd~agent-enqueues-update-with-unfulfilled-delete~1]
                let dependents = record.stop_after.clone();
                self.set_waits(name, Waits::ToStop, dependents);
                return present;
            }
            if record.staging.is_some() {
                // From here on it waits for no dependents, not even for new ones.
                self.set_waits(name, Waits::ToStop, BTreeMap::new());
                return present;
            }
        }
        // Finally: the desired instance may have to wait before it starts.
        let Some(desired) = desired else {
            self.set_waits(name, Waits::No, BTreeMap::new());
            return RunTarget::Nothing;
        };
        if record.start_wait.has_reason() {
            // [impl->swdd~agent-enqueues-unfulfilled-create~1]
            // [impl->swdd~agent-handles-update-with-fulfilled-delete~1]
            // [impl->swdd~agent-shall-not-enqueue-update-delete-only-workload-operation~1]
            self.set_waits(name, Waits::ToStart, BTreeMap::new());
            return if starts_again {
                present
            } else {
                RunTarget::Nothing
            };
        }
        self.set_waits(name, Waits::No, BTreeMap::new());
        RunTarget::Instance(desired)
    }

    /// Updates the reasons for which the start of a workload has to wait.
    fn update_waiting(&mut self, name: &Name) {
        let Some(record) = self.records.get(name) else {
            return;
        };
        let Some(desired) = record.desired.clone() else {
            return;
        };
        let unmet = self.unmet(&desired);
        let unlisted = self.listings.unlisted_note(&desired.workload.runtime);
        if let Some(record) = self.records.get_mut(name) {
            record.start_wait.unmet = unmet;
            record.start_wait.unlisted = unlisted;
        }
    }

    /// The dependencies of an instance that are not met.
    fn unmet(
        &self,
        AddedWorkload { workload, .. }: &AddedWorkload,
    ) -> BTreeMap<String, AddCondition> {
        self.store
            .unmet(&workload.dependencies, |instance| self.fulfils(instance))
    }

    /// Whether dependents of this instance may be started, as far as this agent plans. Not if it is
    /// about to be restarted or replaced: it would stop while they start.
    fn fulfils(&self, instance: &InstanceName) -> bool {
        let Some(record) = self.records.get(&instance.workload) else {
            return true; // This agent plans nothing for it.
        };
        let Some(desired) = &record.desired else {
            return true; // Nothing restarts or replaces it.
        };
        if record.start_wait.restarts_with.is_some() {
            return false;
        }
        let is_replaced = desired.instance != *instance && desired.instance.agent == instance.agent;
        // During the staging, the replacement may still be rolled back.
        !is_replaced || record.staging.is_some()
    }

    /// Sets the wait of a workload, and the `dependents` that must stop before its current
    /// instance.
    fn set_waits(
        &mut self,
        name: &Name,
        waits: Waits,
        dependents: BTreeMap<String, DeleteCondition>,
    ) {
        let Some(record) = self.records.get_mut(name) else {
            return;
        };
        if waits != Waits::ToStop {
            record.staging = None;
        }
        if waits == Waits::No {
            record.start_wait.unmet.clear();
        }
        record.waits = waits;
        record.stop_after = dependents;
    }

    /// Whether the dependents of the current instance have reached the states that it must wait for
    /// before it stops. A dependent that waits for this instance itself is left out, or the waits
    /// would never end.
    fn may_stop(&self, name: &Name) -> bool {
        let Some(record) = self.records.get(name) else {
            return true;
        };
        for (dependent, condition) in &record.stop_after {
            if self.store.may_stop(dependent, *condition) {
                continue;
            }
            let is_in_circle =
                self.store.is_stopping(dependent, *condition) && self.goes_after(dependent, name);
            if !is_in_circle {
                return false;
            }
        }
        true
    }

    /// Whether `name` waits for `other` before it stops, directly or through other workloads.
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
        let are_containers_known = !self.awaits_listings;
        let shown = record.shown(&before, are_containers_known);
        // First: the ends of instances.
        for instance in before.keys() {
            if !shown.contains_key(instance) {
                self.changes.push(removed(instance));
                record.deleted.remove(instance);
            }
        }
        if are_containers_known {
            // A deleted instance that is not there has ended.
            for instance in record.deleted.clone() {
                if !shown.contains_key(&instance) && !record.has(&instance) {
                    record.deleted.remove(&instance);
                    self.changes.push(removed(&instance));
                }
            }
        }
        // A status that does not follow the newest target does not show what the server expects.
        let is_up_to_date = match &record.control_loop {
            Some(control_loop) => control_loop.is_up_to_date() || control_loop.unstarted.is_some(),
            None => true,
        };
        // Then: the states that are new, or that the server expects. That of the desired instance
        // is last, since it replaces the others.
        let desired = record.desired.as_ref().map(|desired| &desired.instance);
        let mut in_order: Vec<_> = shown.iter().collect();
        in_order.sort_by_key(|(instance, _)| Some(*instance) == desired);
        for (instance, state) in in_order {
            let waits_to_stop = state.phase == Phase::StoppingWaitingToStop;
            let is_desired = Some(instance) == desired && state.phase.state() != "Stopping";
            if record.is_requested && are_containers_known && (waits_to_stop || is_desired) {
                record.must_show.insert(instance.clone());
            }
            let is_expected = is_up_to_date && record.must_show.contains(instance);
            if is_expected || before.get(instance) != Some(state) {
                let change = WorkloadState::new(instance.clone(), state.clone());
                self.changes.push(change);
                record.must_show.remove(instance);
            }
        }
        if is_up_to_date {
            record.must_show.clear();
        }
        if are_containers_known {
            record.is_requested = false;
        }
        // Finally: an end may restart dependents.
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

    /// Marks the workloads that wait for a new state of one of these as dirty. Thousands may change
    /// at once, so one search handles all of them.
    // [impl->swdd~agent-handles-workloads-with-fulfilled-dependencies~1]
    // [impl->swdd~agent-keeps-workloads-with-unfulfilled-workload-dependencies-in-queue~1]
    pub(crate) fn states_changed(&mut self, workloads: &BTreeSet<Name>) {
        for (name, record) in &self.records {
            if record.waits_for(workloads) || self.follows_one_of(name, workloads) {
                self.dirty.insert(name.clone());
            }
        }
    }

    /// Takes the newest status of a control loop. An instance that it does not list any more has
    /// ended.
    // [impl->swdd~agent-manager-receives-workload-states-of-its-workloads~1]
    pub(crate) fn take_status(&mut self, name: &Name, status: Arc<Status>) {
        let Some(record) = self.records.get_mut(name) else {
            return;
        };
        let Some(control_loop) = &mut record.control_loop else {
            return;
        };
        // First: the ends of instances.
        let mut has_ended = false;
        for instance in status.ended_since(&control_loop.status) {
            record.deleted.remove(&instance);
            has_ended |= self.store.forget(&instance);
            self.changes.push(removed(&instance));
        }
        // Then: the new status.
        control_loop.status = status.with_stops_of(&control_loop.status);
        if control_loop.is_up_to_date() {
            control_loop.may_have_begun.clear();
        }
        let is_done = control_loop.status.is_idle && control_loop.is_up_to_date();
        if is_done {
            record.control_loop = None; // Without the handle of its mailbox the loop ends.
        }
        // Finally: what follows for this workload and for others.
        self.dirty.insert(name.clone());
        if has_ended {
            self.restart_dependents(BTreeSet::from([name.clone()]));
        }
    }

    // ------------------------------------------------------------- conditions

    /// Returns the evaluated conditions of an instance that is desired, or that is staged; `None`
    /// when it has none. They are evaluated again until their results are final.
    pub(super) fn evaluate(
        &mut self,
        added: &AddedWorkload,
        is_staged: bool,
    ) -> Option<StartConditions> {
        let conditions = StartConditions::new(added, is_staged, &mut self.facts);
        if let Some(conditions) = &conditions
            && conditions.is_open()
        {
            self.evaluate_by(self.context.clock.now() + PRECONDITION_INTERVAL);
        }
        conditions
    }

    /// Plans to evaluate the conditions again, at this time at the latest.
    pub(super) fn evaluate_by(&mut self, at: Instant) {
        self.conditions_due = Some(match self.conditions_due {
            Some(due) => due.min(at),
            None => at,
        });
    }

    /// Sets which workloads are blocked: those whose conditions do not hold, and those that need
    /// one of these to run.
    // [impl->swdd~agent-lifecycle-precondition~1]
    fn update_blocked(&mut self) {
        if !self.is_blocked_outdated {
            return;
        }
        self.is_blocked_outdated = false;
        // First: workloads with conditions.
        let mut blocked: BTreeMap<Name, Note> = BTreeMap::new();
        for (name, record) in &self.records {
            if let Some(conditions) = &record.conditions
                && let Some(reason) = conditions.reason()
            {
                blocked.insert(name.clone(), reason);
            }
        }
        // Then: the workloads that need them.
        let mut open: Vec<Name> = blocked.keys().cloned().collect();
        while let Some(name) = open.pop() {
            for (user, record) in &self.records {
                if !blocked.contains_key(user) && record.needs_running(&name) {
                    blocked.insert(user.clone(), waits_for_blocked(&name));
                    open.push(user.clone());
                }
            }
        }
        // Finally: all workloads that are blocked now, or were before.
        for (name, record) in &mut self.records {
            let _source = log_source(name.clone());
            let reason = blocked.remove(name);
            match (&record.start_wait.blocked, &reason) {
                (None, None) => continue,
                (None, Some(reason)) => info!("Workload '{name}' is blocked: {}", reason.text),
                (Some(_), None) => info!("Workload '{name}' is not blocked any more."),
                (Some(_), Some(_)) => {}
            }
            record.start_wait.blocked = reason;
            self.dirty.insert(name.clone());
        }
    }

    /// Whether a workload that runs as desired must stop for a while: it is restarted with a
    /// dependency, or it is blocked and has not ended for good.
    fn must_pause(&self, record: &WorkloadRecord<C>) -> bool {
        if record.start_wait.restarts_with.is_some() {
            return true;
        }
        let Some(desired) = &record.desired else {
            return false;
        };
        record.start_wait.blocked.is_some() && !has_finished(desired, &self.store)
    }

    /// The workloads that must stop before the workload `name` is paused: they need it to run, must
    /// be paused as well, and may have a container. Empty if `name` is not in use: then a wait for
    /// others would protect nothing, and the start of `name` could begin meanwhile.
    fn dependents_to_pause_before(&self, name: &Name) -> BTreeMap<String, DeleteCondition> {
        let mut dependents = BTreeMap::new();
        let Some(record) = self.records.get(name) else {
            return dependents;
        };
        let is_in_use = match &record.control_loop {
            Some(control_loop) => control_loop.is_in_use(),
            None => false,
        };
        if !is_in_use {
            return dependents;
        }
        for (dependent, record) in &self.records {
            let stops = self.must_pause(record) && record.needs_running(name);
            if stops && !self.store.has_no_container(dependent) {
                dependents.insert(dependent.to_string(), DeleteCondition::NotPendingNorRunning);
            }
        }
        dependents
    }

    /// Evaluates the conditions again if they are due.
    pub(crate) fn refresh_conditions(&mut self, now: Instant) {
        if self.conditions_due.is_none_or(|at| now < at) {
            return;
        }
        // First: the paths of all conditions, in one check.
        let mut paths = BTreeSet::new();
        for record in self.records.values() {
            let staged = record.staged_conditions();
            for conditions in record.conditions.iter().chain(staged) {
                paths.extend(conditions.paths());
            }
        }
        let known = (self.facts.check_paths)(&paths);
        // Then: the conditions.
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
                // Whether it can be created may have changed.
                self.dirty.insert(name.clone());
                if let Some(conditions) = &mut staged.conditions {
                    conditions.evaluate(&known, &self.facts.tags);
                    if conditions.is_open() {
                        due.push(now + PRECONDITION_INTERVAL);
                    }
                }
            }
        }
        // Finally: the next time.
        for at in due {
            self.evaluate_by(at);
        }
    }

    // ------------------------------------------------------------------ views

    /// The desired instances, even if others of the same workloads still run.
    pub(crate) fn desired(&self) -> impl Iterator<Item = &AddedWorkload> {
        self.records
            .values()
            .filter_map(|record| record.desired.as_ref())
    }

    /// The instances whose images are needed. An update is open while an instance is staged.
    pub(crate) fn image_needs(&self) -> ImageNeeds {
        let mut needs = ImageNeeds::default();
        for (name, record) in &self.records {
            let mut instances = NeededInstances {
                desired: record.desired.clone(),
                ..NeededInstances::default()
            };
            if let Some(staged) = record.staged() {
                needs.is_update_open = true;
                instances.others.push(staged.clone());
            }
            if let Some(control_loop) = &record.control_loop {
                if let Some(next) = &control_loop.target.next {
                    instances.others.push(next.added.clone());
                }
                if let Some(run) = control_loop.target.run.added() {
                    instances.others.push(run.clone());
                    if self.was_started(&run.instance) {
                        instances.started.push(run.clone());
                    }
                }
            }
            needs.workloads.insert(name.clone(), instances);
        }
        needs
    }

    /// Whether this instance has a container that was started, by this agent or an earlier one.
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

    /// How often the workload was killed because memory ran out.
    pub(crate) fn out_of_memory(&self, name: &Name) -> u64 {
        if let Some(record) = self.records.get(name)
            && let Some(control_loop) = &record.control_loop
        {
            return control_loop.status.out_of_memory;
        }
        0
    }

    /// Whether this instance waits to be started, is staged, or is present.
    pub(crate) fn keeps(&self, instance: &InstanceName) -> bool {
        let Some(record) = self.records.get(&instance.workload) else {
            return false;
        };
        for added in [record.waiting(), record.staged()].into_iter().flatten() {
            if added.instance == *instance {
                return true;
            }
        }
        record.has(instance)
    }

    // ---------------------------------------------------------------- targets

    /// Sets the target of the control loop of a workload, if it is new. Starts the loop if there is
    /// none and it has something to do.
    // [impl->swdd~agent-executes-create-workload-operation~1]
    // [impl->swdd~agent-executes-update-workload-operation~1]
    // [impl->swdd~agent-executes-delete-workload-operation~1]
    // [impl->swdd~agent-executes-update-delete-only-workload-operation~1]
    // [impl->swdd~agent-workload-obj-update-command~1]
    // [impl->swdd~agent-workload-obj-delete-command~1]
    fn direct(&mut self, name: &Name, run: RunTarget) {
        let next = self.next_of(name);
        let Some(record) = self.records.get_mut(name) else {
            return;
        };
        let adopt = std::mem::take(&mut record.adopt);
        // A new delete retries a failed one at once.
        let is_retry = record.is_requested && record.desired.is_none() && !self.awaits_listings;
        // First: the control loop.
        let is_known = record.control_loop.is_some();
        if !is_known {
            let first = if let Some(added) = run.added() {
                added.instance.clone()
            } else if let Some(next) = &next {
                next.added.instance.clone()
            } else if let Some(found) = adopt.first() {
                found.instance.clone()
            } else {
                return; // It has nothing to do.
            };
            self.start_loop(first);
        }
        let Some(record) = self.records.get_mut(name) else {
            return;
        };
        let Some(control_loop) = &mut record.control_loop else {
            return;
        };
        // Then: whether the target is new.
        let is_new = control_loop.target.run != run;
        let is_same = !is_new && control_loop.target.next == next && adopt.is_empty();
        if is_same && !is_retry {
            return;
        }
        if is_new && run == RunTarget::Nothing {
            info!("Deleting workload '{name}'.");
        }
        if is_new && is_known && run.added().is_some() && !control_loop.starts_again_for(&run) {
            info!("Updating workload '{name}'.");
        }
        // Finally: the target. It decides about the kept container, if there is one.
        if run != RunTarget::Found {
            control_loop.kept = None;
        }
        control_loop.put(run.clone(), is_retry, next, adopt);
        if let RunTarget::Instance(added) = &run
            && is_new
        {
            self.log_start(added);
        }
    }

    /// Whether the log of an instance can be read now, or when it is started, or never.
    pub(crate) fn log_of(&self, instance: &InstanceName) -> LogAccess {
        let Some(record) = self.records.get(&instance.workload) else {
            return no_log_here(instance);
        };
        // First: the container that this agent has started or adopted.
        let control_loop = record.control_loop.as_ref();
        let progress = match control_loop {
            Some(control_loop) => control_loop.status.progress_of(instance),
            None => StartProgress::UnderWay,
        };
        if let (StartProgress::Started(number), Some(control_loop)) = (progress, control_loop) {
            return self.readable(control_loop, Some(number), instance);
        }
        // Then: without one its state decides.
        let is_desired = match &record.desired {
            Some(desired) => desired.instance == *instance,
            None => false,
        };
        let state = self.store.get(instance);
        match state.map(|state| state.phase) {
            // It is about to be started or adopted.
            None | Some(Phase::PendingInitial | Phase::PendingStarting) if is_desired => {
                match progress {
                    StartProgress::Failed => LogAccess::Later(self.why_without_log(instance)),
                    StartProgress::UnderWay | StartProgress::Started(_) => LogAccess::Starting,
                }
            }
            // Its start was cancelled.
            Some(Phase::PendingInitial | Phase::PendingStarting) => {
                let name = &instance.workload;
                LogAccess::Never(format!("workload '{name}' is deleted or replaced"))
            }
            None | Some(Phase::Removed) => no_log_here(instance),
            Some(Phase::PendingWaitingToStart) => match control_loop {
                // The container of an earlier agent has a log.
                Some(control_loop) if record.starts_again() => {
                    self.readable(control_loop, None, instance)
                }
                // If it has a container, that was never started.
                _ => LogAccess::Later(self.why_without_log(instance)),
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
                None => LogAccess::Never(self.why_without_log(instance)),
            },
        }
    }

    /// The access to the log of the current instance, since its start with this number if that is
    /// known.
    fn readable(
        &self,
        control_loop: &ControlLoop<C>,
        start: Option<u64>,
        instance: &InstanceName,
    ) -> LogAccess {
        let runtime = control_loop.runtime();
        match runtime.and_then(|runtime| self.context.connector(runtime)) {
            Some(engine) => LogAccess::Readable { engine, start },
            None => LogAccess::Never(self.why_without_log(instance)),
        }
    }

    /// The reason why an instance has no container.
    pub(crate) fn why_without_log(&self, instance: &InstanceName) -> String {
        match self.store.get(instance) {
            Some(state) => format!("it has no container; it is {state}"),
            None => "it has no container".to_owned(),
        }
    }

    /// Logs that a new target cannot be started, or has no control interface.
    // [impl->swdd~agent-uses-specified-runtime~1]
    fn log_start(&self, AddedWorkload { instance, workload }: &AddedWorkload) {
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

    /// Starts the control loop of a workload, with the first `instance` that it handles.
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
            run_since: 0,
            next_since: 0,
            may_have_begun: Vec::new(),
            status: Arc::default(),
            kept: None,
            unstarted,
        })
    }

    /// Retries the start of the control loops that have no thread. Stops at the first failure.
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

fn no_log_here(instance: &InstanceName) -> LogAccess {
    let InstanceName {
        workload, agent, ..
    } = instance;
    LogAccess::Never(format!("workload '{workload}' is not on agent '{agent}'"))
}

/// The note of a workload that needs this blocked one, and so is blocked as well.
fn waits_for_blocked(name: &str) -> Note {
    Note::new(Reason::BlockedDependency, reason::waits_for_blocked(name))
}

/// Whether the workload has ended, and its policy does not restart it.
fn has_finished(
    AddedWorkload { instance, workload }: &AddedWorkload,
    store: &WorkloadStateStore,
) -> bool {
    let Some(state) = store.get(instance) else {
        return false;
    };
    match state.phase {
        Phase::Succeeded => workload.restart_policy != RestartPolicy::Always,
        Phase::FailedExecFailed => workload.restart_policy == RestartPolicy::Never,
        _ => false,
    }
}

#[cfg(debug_assertions)]
mod inspection;
#[cfg(test)]
mod tests;
