//! All removals of containers of the workload: that of the current instance, alone or as the first
//! half of an update or a restart, and those of all others.
//!
//! One list has the others, with one time of the next try. Before anything is started, all of them
//! that may run are removed or stopped.
//!
//! Thread: `wl:<name>`; part of [`WorkloadControlLoop`].
//! Gives: states to the scheduler (may block there).

use super::{AfterDelete, LoopStage, WorkloadControlLoop};
use crate::backoff::retry_delay;
use crate::engine_call::{CallDone, CallResult};
use crate::workload::mailbox::{FoundContainer, FoundPurpose};
use crate::workload::start_slots::SlotRequest;
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::reason::Reason;
use ankaios_model::workload::Workload;
use ankaios_platform::clock::Clock;
use ankaios_runtime::probes::prober::notify_socket_path;
use ankaios_runtime::{ContainerId, RuntimeConnector, RuntimeError};
use log::{debug, warn};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// Why a container is removed, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RemovalKind {
    /// It may run: it is orphaned, or a start that failed has left it. It is removed before
    /// anything of the workload is started.
    MayRun,
    /// It was prepared and never started. It is removed before anything of the workload is started.
    Unused,
    /// It was stopped for its successor. It is removed after the start of the successor, even if
    /// that failed, so that the removal does not delay the start.
    Stopped,
}

/// Whether the engine must list the containers of the instance, because their ids are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Search {
    No,
    /// Yes: a call that failed may have left one.
    Now,
    /// Yes, as late as possible: a cancelled call may still create one.
    Late,
}

/// A container that will be removed.
struct ContainerRemoval {
    runtime: Name,
    instance: InstanceName,
    kind: RemovalKind,
    /// Its definition, where that is known.
    workload: Option<Arc<Workload>>,
    id: Option<ContainerId>,
    search: Search,
    /// The number of the call under way that may make it.
    call: Option<u64>,
    /// The slot of an initialised container. It is given back when the container is removed.
    _initialised: Option<SlotRequest>,
}

/// The containers that will be removed.
#[derive(Default)]
pub(super) struct Removals {
    list: Vec<ContainerRemoval>,
    due: Option<Instant>,
    /// Failed removals and searches in a row.
    pub(super) failures: u32,
}

impl Removals {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether there is a container of the instance.
    pub(super) fn has(&self, instance: &InstanceName) -> bool {
        self.list
            .iter()
            .any(|container| container.instance == *instance)
    }

    /// Whether there is a container of the instance that was not stopped.
    fn has_unstopped(&self, instance: &InstanceName) -> bool {
        self.list.iter().any(|container| {
            container.instance == *instance && container.kind != RemovalKind::Stopped
        })
    }

    /// Whether a start must wait for removals.
    pub(super) fn block_start(&self) -> bool {
        self.list
            .iter()
            .any(|container| container.kind != RemovalKind::Stopped)
    }

    /// Whether a preparation must wait for removals: a workload has one prepared container at most.
    pub(super) fn block_preparation(&self) -> bool {
        self.list
            .iter()
            .any(|container| container.kind == RemovalKind::Unused)
    }
}

impl ContainerRemoval {
    /// The removal of a container with this id.
    fn of_container(
        runtime: Name,
        instance: InstanceName,
        kind: RemovalKind,
        id: ContainerId,
    ) -> Self {
        Self {
            runtime,
            instance,
            kind,
            workload: None,
            id: Some(id),
            search: Search::No,
            call: None,
            _initialised: None,
        }
    }

    /// The removal of the containers that a search finds.
    fn of_search(added: &AddedWorkload, kind: RemovalKind, search: Search) -> Self {
        Self {
            runtime: added.workload.runtime.clone(),
            instance: added.instance.clone(),
            kind,
            workload: Some(added.workload.clone()),
            id: None,
            search,
            call: None,
            _initialised: None,
        }
    }

    /// Removes the container with the known id, if any. If others may exist, searches all
    /// containers of the instance, and removes them except `current`.
    fn remove(
        &mut self,
        connector: &mut dyn RuntimeConnector,
        current: Option<&ContainerId>,
    ) -> Result<(), RuntimeError> {
        if let Some(id) = &self.id {
            self.remove_one(connector, id)?;
            self.id = None; // If the search fails, the next try only repeats the search.
        }
        if self.search == Search::No {
            return Ok(());
        }
        let found = connector.find(&self.instance, self.workload.as_deref())?;
        for id in found {
            if current != Some(&id) {
                self.remove_one(connector, &id)?;
            }
        }
        Ok(())
    }

    /// Removes one container. Only one that may run is stopped first, which takes one more call.
    fn remove_one(
        &self,
        connector: &mut dyn RuntimeConnector,
        id: &ContainerId,
    ) -> Result<(), RuntimeError> {
        match self.kind {
            RemovalKind::MayRun => connector.delete(id),
            RemovalKind::Unused | RemovalKind::Stopped => connector.delete_ended(id),
        }
    }
}

impl<C: Clock> WorkloadControlLoop<C> {
    // --------------------------------------------------------- other containers

    /// Adds a removal to the list. [`Self::remove_due`] does it.
    fn remove_soon(&mut self, container: ContainerRemoval) {
        self.removals.list.push(container);
        self.removals.failures = 0;
        self.removals.due = Some(self.now());
    }

    /// Takes orphaned containers. They are removed as soon as the loop does nothing else.
    pub(super) fn remove_orphaned(&mut self, found: Vec<FoundContainer>) {
        for orphaned in found {
            if self.is_own(&orphaned) {
                continue; // The listing is older than the start of the current instance.
            }
            let kind = match orphaned.purpose {
                FoundPurpose::RemoveUnused => RemovalKind::Unused,
                _ => RemovalKind::MayRun,
            };
            let state = ExecutionState::plain(Phase::StoppingRequestedAtRuntime);
            self.report_removal(&orphaned.instance, kind, state);
            self.remove_soon(ContainerRemoval::of_container(
                orphaned.runtime,
                orphaned.instance,
                kind,
                orphaned.id,
            ));
            if matches!(self.stage, LoopStage::WaitingForSlot(_)) {
                self.stage = LoopStage::AwaitingCleanup; // Other workloads get the slot meanwhile.
            }
        }
    }

    /// Whether this is the container of the current instance.
    fn is_own(&self, found: &FoundContainer) -> bool {
        let Some(definition) = &self.definition else {
            return false;
        };
        definition.runtime == found.runtime && self.container.as_ref() == Some(&found.id)
    }

    /// Removes the container of a preparation that is not needed: the one with this id, or the one
    /// that `call` makes. Without both, a search follows: a failed call may have left a container.
    pub(super) fn remove_unused(
        &mut self,
        added: &AddedWorkload,
        id: Option<ContainerId>,
        call: Option<u64>,
        initialised: Option<SlotRequest>,
    ) {
        let search = if id.is_none() && call.is_none() {
            Search::Now
        } else {
            Search::No
        };
        self.remove_soon(ContainerRemoval {
            id,
            call,
            _initialised: initialised,
            ..ContainerRemoval::of_search(added, RemovalKind::Unused, search)
        });
    }

    /// Moves the container of the current instance to the removals.
    pub(super) fn remove_own(&mut self, kind: RemovalKind) {
        let Some(id) = self.container.take() else {
            return;
        };
        let runtime = match &self.definition {
            Some(definition) => definition.runtime.clone(),
            None => Name::default(),
        };
        let instance = self.instance.clone();
        self.remove_soon(ContainerRemoval::of_container(runtime, instance, kind, id));
    }

    /// Removes the container that a failed or cancelled call of the start may have left.
    // [impl->swdd~podman-create-workload-deletes-failed-container~1]
    pub(super) fn remove_leaked(&mut self, search: Search) {
        if let Some(current) = self.current() {
            let leaked = ContainerRemoval::of_search(&current, RemovalKind::MayRun, search);
            self.remove_soon(leaked);
        }
    }

    /// Makes the start wait for the removal of stopped containers of the same instance. There are
    /// some when the current instance is an earlier one that has come back.
    pub(super) fn reclaim_stopped(&mut self) {
        for container in &mut self.removals.list {
            if container.kind == RemovalKind::Stopped && container.instance == self.instance {
                container.kind = RemovalKind::MayRun;
                self.removals.due = Some(self.context.clock.now());
            }
        }
    }

    /// Removes the container that this call has made, since its result is not needed any more.
    pub(super) fn on_unneeded_call_ended(&mut self, number: u64, result: CallResult) {
        let now = self.now();
        for container in &mut self.removals.list {
            if container.call != Some(number) {
                continue;
            }
            container.call = None;
            match result {
                Ok(CallDone::Prepared(prepared)) => container.id = Some(prepared.id),
                Ok(_) => {}
                Err(error) if error.means_not_started() => {}
                Err(_) => container.search = Search::Now,
            }
            self.removals.due = Some(now);
            return;
        }
    }

    /// When to call [`Self::remove_due`] next.
    pub(super) fn removals_due(&self) -> Option<Instant> {
        if self.can_remove_any() {
            self.removals.due
        } else {
            None
        }
    }

    fn can_remove_any(&self) -> bool {
        self.removals
            .list
            .iter()
            .any(|container| self.can_remove(container))
    }

    /// Whether the container can be removed now: no call is making it, and
    /// - it was prepared and is not needed, or
    /// - it may run, and no start is under way (a late search waits longer), or
    /// - it was stopped, and no start is under way or waits.
    fn can_remove(&self, container: &ContainerRemoval) -> bool {
        if container.call.is_some() {
            return false;
        }
        let is_call_under_way = matches!(self.stage, LoopStage::Starting(_));
        match container.kind {
            RemovalKind::Unused => true,
            RemovalKind::MayRun if is_call_under_way => false,
            RemovalKind::MayRun => {
                container.search != Search::Late || self.is_late_enough(&container.instance)
            }
            RemovalKind::Stopped => !is_call_under_way && !self.stage.is_starting(),
        }
    }

    /// Whether a late search for containers of the instance must be done now: the next start waits
    /// for it, or no start of the instance follows.
    fn is_late_enough(&self, instance: &InstanceName) -> bool {
        matches!(self.stage, LoopStage::AwaitingCleanup | LoopStage::Idle)
            || !self.is_current(instance)
    }

    /// Removes all containers that can be removed now, then begins the start that waits for this,
    /// if any. A failed removal is retried later.
    pub(super) fn remove_due(&mut self) {
        self.removals.due = None;
        // First: remove, and keep those that must wait or could not be removed.
        let mut gone = BTreeSet::new();
        let mut failed = None;
        for mut container in std::mem::take(&mut self.removals.list) {
            if !self.can_remove(&container) {
                self.removals.list.push(container);
                continue;
            }
            match self.try_remove(&mut container) {
                Ok(()) => {
                    gone.insert(container.instance);
                }
                Err(error) => {
                    if container.kind != RemovalKind::Stopped {
                        failed = Some((container.runtime.clone(), error));
                    }
                    self.removals.list.push(container);
                }
            }
        }
        // Then: report the ends of instances.
        for instance in &gone {
            self.forget_if_gone(instance);
        }
        // Finally: the next try, and the start that waits. If a container can be removed and is
        // still in the list, its removal has failed.
        if self.can_remove_any() {
            self.removals.due = Some(self.after_failure());
        } else if !self.removals.is_empty() {
            self.removals.due = Some(self.now()); // See `removals_due`: when one can be removed.
        }
        if !matches!(self.stage, LoopStage::AwaitingCleanup) {
            return;
        }
        if let Some((runtime, error)) = failed {
            self.report_cleanup_failed(&runtime, &error);
        } else if !self.removals.block_start() {
            self.begin_start();
        }
    }

    /// Removes a container. Logs and reports a failure.
    fn try_remove(&mut self, container: &mut ContainerRemoval) -> Result<(), RuntimeError> {
        let Some(mut connector) = self.context.connector(&container.runtime) else {
            return Ok(()); // An unknown runtime has no containers.
        };
        let removed = container.remove(&mut *connector, self.container.as_ref());
        if let Err(error) = &removed {
            let which = match container.kind {
                RemovalKind::MayRun => "an orphaned container",
                RemovalKind::Unused => "a prepared container",
                RemovalKind::Stopped => "the stopped container",
            };
            warn!(
                "Could not remove {which} of workload '{}', trying again: '{error}'",
                container.instance.workload
            );
            let state = ExecutionState::with_info(Phase::StoppingDeleteFailed, error.reason());
            self.report_removal(&container.instance, container.kind, state);
        }
        removed
    }

    /// Counts a failed removal. Returns when to retry.
    fn after_failure(&mut self) -> Instant {
        self.removals.failures = self.removals.failures.saturating_add(1);
        self.now() + retry_delay(self.removals.failures, &mut self.random)
    }

    /// Reports the end of an instance and removes its folders, if nothing is left of it. A prepared
    /// instance keeps its folders.
    pub(super) fn forget_if_gone(&mut self, instance: &InstanceName) {
        if self.is_current(instance) || self.removals.has(instance) {
            return;
        }
        let is_next = match &self.next {
            Some(next) => next.added.instance == *instance,
            None => false,
        };
        if !is_next {
            // Most instances have no notify socket, so a failure is normal.
            let _ = std::fs::remove_file(notify_socket_path(&self.context.calls.folder, instance));
            self.remove_folder(&self.folder(instance));
        }
        self.report_end(instance);
    }

    /// Reports the state of a removal, unless the instance has another one to report or its end was
    /// reported at its stop. Of a prepared container only the text about a failure is shown.
    fn report_removal(
        &mut self,
        instance: &InstanceName,
        kind: RemovalKind,
        mut state: ExecutionState,
    ) {
        if self.is_current(instance) {
            return;
        }
        match kind {
            RemovalKind::Stopped => return,
            RemovalKind::Unused => state.phase = Phase::PendingInitial,
            RemovalKind::MayRun => {}
        }
        self.report_of(instance.clone(), state);
    }

    /// Reports that the start waits, because the engine could not remove or list a container.
    fn report_cleanup_failed(&mut self, runtime: &Name, error: &RuntimeError) {
        let name = &self.instance.workload;
        debug!(
            "Workload '{name}' waits for '{runtime}', which may have a container of it: '{error}'"
        );
        if self.has_given_up() {
            return; // The state with the error of the last retry stays.
        }
        let info = format!(
            "Waiting for '{runtime}', which may have a container of it: {}",
            error.reason()
        );
        self.report(ExecutionState::with_info(Phase::PendingStarting, info));
    }

    // -------------------------------------------- container of the current instance

    /// Removes the current instance, then does `after`. Whatever the loop has waited for, such as a
    /// retry, is dropped.
    // [impl->swdd~agent-workload-control-loop-prevents-retries-on-other-workload-commands~1]
    pub(super) fn delete(&mut self, after: AfterDelete) {
        self.stage = LoopStage::Idle;
        if let Some(next) = self.next.take_if(|next| next.joins_start) {
            self.discard(next);
        }
        if matches!(after, AfterDelete::Target) {
            let next = self.target.run.added().cloned();
            self.end_control_interface_unless_kept_for(next.as_ref());
        }
        let state = ExecutionState::plain(Phase::StoppingRequestedAtRuntime);
        self.report(self.lifecycle.stopping(state));
        self.delete_unshown(after);
    }

    /// Removes the container and does not report that it stops, because that was reported, or
    /// because the removal is a part of a start or restart.
    pub(super) fn delete_unshown(&mut self, after: AfterDelete) {
        self.end_lifecycle();
        self.removals.failures = 0;
        self.try_delete(after);
    }

    /// Removes the container, waits for its `gone` condition if it has one, then does `after`. A
    /// failed removal is retried later.
    pub(super) fn try_delete(&mut self, after: AfterDelete) {
        self.forget_end();
        if let Err(error) = self.end_container(&after) {
            return self.on_delete_failed(after, &error);
        }
        self.unwatch();
        self.container = None;
        if self.lifecycle.has_gone_condition() {
            return self.wait_until_gone(after);
        }
        self.on_deleted(after);
    }

    /// Does `after`: the container is removed, and its `gone` condition holds.
    pub(super) fn on_deleted(&mut self, after: AfterDelete) {
        if let Some(control) = &self.control {
            // The next container must not get the responses of this one.
            control.container_gone();
        }
        match after {
            AfterDelete::Target => self.on_instance_removed(),
            AfterDelete::Restart => {
                self.remove_files();
                self.report_end(&self.instance.clone());
                self.restart_control_interface();
                self.report(ExecutionState::starting_triggered());
                self.begin_start();
            }
            AfterDelete::NotReady(cause) => {
                self.remove_files();
                self.retry_not_ready(&cause);
            }
            AfterDelete::Failed(cause) => {
                self.remove_files();
                let state = ExecutionState::with_info(Phase::FailedExecFailed, cause);
                self.on_failed(state.because(Reason::Alive));
            }
        }
    }

    /// Reports the end of the current instance, then starts the one of the newest target, if any.
    fn on_instance_removed(&mut self) {
        self.read_target();
        let next = self.target.run.added().cloned();
        self.end_control_interface_unless_kept_for(next.as_ref());
        let comes_back = match &next {
            Some(added) => added.instance == self.instance,
            None => false,
        };
        // Another container of the instance keeps the folder: an engine may still write into it.
        let has_leftover = !comes_back && self.removals.has_unstopped(&self.instance);
        // First: the folders.
        if comes_back {
            self.remove_files();
        } else if !has_leftover {
            self.remove_folder(&self.folder(&self.instance));
        }
        // Then: the end. It is reported when the last container of the instance is removed.
        self.is_empty = true;
        if has_leftover {
            self.remove_due();
        } else {
            self.report_end(&self.instance.clone());
        }
        // Finally: the next instance.
        match next {
            Some(added) => self.create(added),
            None => self.definition = None,
        }
    }

    /// Removes the files of the current instance, except those of an open control interface.
    fn remove_files(&self) {
        self.remove_folder(&self.files_folder());
        if self.control.is_none() {
            self.remove_folder(&self.control_folder(&self.instance));
        }
    }

    /// Removes the container. If that of the next instance is there already, it is only stopped,
    /// and removed after the start of the next one.
    // [impl->swdd~agent-workload-control-loop-delete-broken-allowed~1]
    // [impl->swdd~agent-workload-control-loop-update-broken-allowed~1]
    // [impl->swdd~agent-switches-to-prepared~1]
    fn end_container(&mut self, after: &AfterDelete) -> Result<(), RuntimeError> {
        let has_successor = self.has_successor();
        let (Some(mut connector), Some(id)) = (self.connector(), &self.container) else {
            debug!("Workload '{}' already gone.", self.instance.workload);
            return Ok(());
        };
        match after {
            AfterDelete::Restart => connector.delete_ended(id),
            AfterDelete::Target if has_successor => {
                connector.stop(id)?;
                self.remove_own(RemovalKind::Stopped);
                Ok(())
            }
            // This saves the call that stops it. If it runs again after all, it is stopped.
            AfterDelete::Target if self.lifecycle.has_ended() => connector.delete_ended(id),
            AfterDelete::Target | AfterDelete::NotReady(_) | AfterDelete::Failed(_) => {
                connector.delete(id)
            }
        }
    }

    /// Whether the instance that is about to be started has a container, and the current one was
    /// started by this agent or adopted.
    fn has_successor(&self) -> bool {
        let Some(next) = &self.next else {
            return false;
        };
        self.instance_starts > 0 && next.has_container() && self.is_about_to_start(&next.added)
    }

    /// Reports that the container could not be removed, and retries later. It stays the current
    /// one: without its id it would run unnoticed.
    // [impl->swdd~agent-workload-control-loop-delete-failed-allows-retry~1]
    // [impl->swdd~agent-workload-control-loop-update-delete-failed-allows-retry~1]
    fn on_delete_failed(&mut self, after: AfterDelete, error: &RuntimeError) {
        let is_replaced =
            !matches!(after, AfterDelete::Target) || self.target.run.added().is_some();
        let verb = if is_replaced { "update" } else { "stop" };
        warn!(
            "Could not {verb} workload '{}': '{error}'",
            self.instance.workload
        );
        let state = ExecutionState::with_info(Phase::StoppingDeleteFailed, error.reason());
        self.report(self.lifecycle.stopping(state));
        self.stage = LoopStage::DeleteRetryAt(self.after_failure(), after);
    }
}
