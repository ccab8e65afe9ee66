//! All containers of the workload: how the one that runs ends, alone or as the first half of an
//! update or a restart, and when the others go.
//!
//! One list has what goes, with one time of the next try. Before anything is started, all that may
//! run is gone or stopped.
//!
//! Thread: `wl:<name>`; part of [`WorkloadControlLoop`].
//! Gives: states to the scheduler (may block there).

use super::{AfterDelete, Stage, WorkloadControlLoop};
use crate::backoff::retry_delay;
use crate::engine_call::{CallDone, CallResult};
use crate::workload::mailbox::{FoundContainer, Purpose};
use crate::workload::start_slots::SlotRequest;
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::reason::Reason;
use ankaios_model::workload::Workload;
use ankaios_platform::clock::Clock;
use ankaios_runtime::probes::prober::notify_socket_path;
use ankaios_runtime::{ContainerId, RuntimeError};
use log::{debug, warn};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// Why a container goes, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It may run. It goes before anything of the workload is started.
    Surplus,
    /// It was prepared and never started. It goes before anything of the workload is started.
    Unused,
    /// It was stopped, so that nothing but the stop and the start lie between it and the new one.
    /// It goes after the start, whatever came of that.
    Old,
}

/// What to look for in the engine besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Search {
    Nothing,
    /// What a call has left that failed.
    Instance,
    /// What a call was to do that was ended may still happen, so it is searched as late as
    /// possible.
    InstanceLate,
}

/// A container that goes.
struct Owned {
    runtime: Name,
    instance: InstanceName,
    role: Role,
    /// What it was made from, where that is known.
    workload: Option<Arc<Workload>>,
    id: Option<ContainerId>,
    search: Search,
    /// The call that may be making it has not ended.
    call: Option<u64>,
    /// It counts as initialised until it is gone.
    _initialised: Option<SlotRequest>,
}

#[derive(Default)]
pub(super) struct Removal {
    list: Vec<Owned>,
    due: Option<Instant>,
    /// Of removals and searches, in a row.
    pub(super) failures: u32,
}

impl Removal {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether there is something of the instance.
    pub(super) fn has(&self, instance: &InstanceName) -> bool {
        self.list.iter().any(|owned| owned.instance == *instance)
    }

    /// Whether a start has to wait.
    pub(super) fn blocks_start(&self) -> bool {
        self.list.iter().any(|owned| owned.role != Role::Old)
    }

    /// Whether a preparation has to wait: only one container of a workload is prepared at a time.
    pub(super) fn has_unused(&self) -> bool {
        self.list.iter().any(|owned| owned.role == Role::Unused)
    }
}

impl Owned {
    fn new(runtime: &Name, instance: &InstanceName, role: Role, id: Option<ContainerId>) -> Self {
        let (runtime, instance, search) = (runtime.clone(), instance.clone(), Search::Nothing);
        Self {
            runtime,
            instance,
            role,
            workload: None,
            id,
            search,
            call: None,
            _initialised: None,
        }
    }

    fn searched(
        AddedWorkload { instance, workload }: &AddedWorkload,
        role: Role,
        search: Search,
    ) -> Self {
        Self {
            workload: Some(workload.clone()),
            search,
            ..Self::new(&workload.runtime, instance, role, None)
        }
    }
}

impl<C: Clock> WorkloadControlLoop<C> {
    // -------------------------------------------------------------- what goes

    fn remove_soon(&mut self, owned: impl IntoIterator<Item = Owned>) {
        self.removal.list.extend(owned);
        (self.removal.failures, self.removal.due) = (0, Some(self.now()));
    }

    /// Takes orphaned containers. They are removed as soon as the loop does nothing else.
    pub(super) fn remove_orphaned(&mut self, found: Vec<FoundContainer>) {
        let runtime = self
            .wanted
            .as_ref()
            .map(|workload| workload.runtime.clone());
        let mut orphaned = Vec::new();
        for FoundContainer {
            runtime: of,
            instance,
            id,
            purpose,
        } in found
        {
            // An old listing may show the container that is ours by now.
            if Some(&of) == runtime.as_ref() && self.container.as_ref() == Some(&id) {
                continue;
            }
            let role = match purpose {
                Purpose::RemoveUnused => Role::Unused,
                _ => Role::Surplus,
            };
            let state = ExecutionState::plain(Phase::StoppingRequestedAtRuntime);
            self.report_removal(&instance, role, state);
            orphaned.push(Owned::new(&of, &instance, role, Some(id)));
        }
        if orphaned.is_empty() {
            return;
        }
        self.remove_soon(orphaned);
        if matches!(self.stage, Stage::WaitingForSlot(_)) && self.removal.blocks_start() {
            self.stage = Stage::BehindRemoval; // Others may start meanwhile.
        }
    }

    /// What was prepared and is not wanted: this container, or what `call` is making, or what one
    /// has left that failed.
    pub(super) fn remove_unused(
        &mut self,
        added: &AddedWorkload,
        id: Option<ContainerId>,
        call: Option<u64>,
        initialised: Option<SlotRequest>,
    ) {
        let search = if id.is_none() && call.is_none() {
            Search::Instance
        } else {
            Search::Nothing
        };
        let owned = Owned::searched(added, Role::Unused, search);
        self.remove_soon([Owned {
            id,
            call,
            _initialised: initialised,
            ..owned
        }]);
    }

    /// A container of what is to run that goes.
    pub(super) fn remove_own(&mut self, role: Role) {
        if let Some(id) = self.container.take() {
            let runtime = self
                .wanted
                .as_ref()
                .map(|workload| workload.runtime.clone())
                .unwrap_or_default();
            self.remove_soon([Owned::new(&runtime, &self.instance, role, Some(id))]);
        }
    }

    /// A call of the start has failed or was ended, and may have left a container.
    // [impl->swdd~podman-create-workload-deletes-failed-container~1]
    pub(super) fn may_be_left(&mut self, search: Search) {
        let added = self.added();
        self.remove_soon(
            added
                .iter()
                .map(|added| Owned::searched(added, Role::Surplus, search)),
        );
    }

    /// A container of the instance that comes back must be gone before another one is created.
    pub(super) fn reclaim_old(&mut self) {
        let is_it = |owned: &&mut Owned| owned.role == Role::Old && owned.instance == self.instance;
        for owned in self.removal.list.iter_mut().filter(is_it) {
            owned.role = Role::Surplus;
            self.removal.due = Some(self.context.clock.now());
        }
    }

    /// A call that was not wanted any more has ended.
    pub(super) fn on_unwanted_call_ended(&mut self, number: u64, result: CallResult) {
        let Some(owned) = self
            .removal
            .list
            .iter_mut()
            .find(|owned| owned.call == Some(number))
        else {
            return;
        };
        owned.call = None;
        match result {
            Ok(CallDone::Prepared(container)) => owned.id = Some(container.id),
            Ok(_) => {}
            Err(error) if error.means_not_started() => {}
            Err(_) => owned.search = Search::Instance,
        }
        self.removal.due = Some(self.now());
    }

    pub(super) fn removal_due(&self) -> Option<Instant> {
        self.removal
            .due
            .filter(|_| self.removal.list.iter().any(|owned| self.may_remove(owned)))
    }

    fn may_remove(&self, owned: &Owned) -> bool {
        let calls = matches!(self.stage, Stage::Calling(_));
        // Nothing is started any more when what is wanted can never run.
        let is_late = || {
            matches!(self.stage, Stage::BehindRemoval | Stage::Idle)
                || !self.is_ours(&owned.instance)
        };
        owned.call.is_none()
            && match owned.role {
                Role::Unused => true,
                Role::Surplus => !calls && (owned.search != Search::InstanceLate || is_late()),
                Role::Old => !calls && !self.stage.leads_to_start(),
            }
    }

    /// Tries to remove all that may go now, and again later what could not be removed. A start that
    /// waits for it goes on.
    pub(super) fn remove_due(&mut self) {
        self.removal.due = None;
        let (mut gone, mut failed) = (BTreeSet::new(), None);
        for mut owned in std::mem::take(&mut self.removal.list) {
            if !self.may_remove(&owned) {
                self.removal.list.push(owned);
                continue;
            }
            let Err(error) = self.remove_one(&mut owned) else {
                gone.insert(owned.instance);
                continue;
            };
            let Owned {
                instance,
                role,
                runtime,
                ..
            } = &owned;
            let which = match role {
                Role::Surplus => "a container that is too many",
                Role::Unused => "a prepared container",
                Role::Old => "the stopped container",
            };
            warn!(
                "Could not remove {which} of workload '{}', trying again: '{error}'",
                instance.workload
            );
            if *role != Role::Old {
                let state = ExecutionState::with_info(Phase::StoppingDeleteFailed, error.reason());
                self.report_removal(instance, *role, state);
                failed = Some((runtime.clone(), error));
            }
            self.removal.list.push(owned);
        }
        gone.iter().for_each(|instance| self.released(instance));
        if self.removal.list.iter().any(|owned| self.may_remove(owned)) {
            self.removal.due = Some(self.after_failure());
        } else if !self.removal.is_empty() {
            self.removal.due = Some(self.now()); // As soon as they may.
        }
        if let Stage::BehindRemoval = self.stage {
            match failed {
                Some((runtime, error)) => self.report_waits_for(&runtime, &error),
                None if !self.removal.blocks_start() => self.begin_start(),
                None => {}
            }
        }
    }

    /// When to try again what has failed once more.
    fn after_failure(&mut self) -> Instant {
        self.removal.failures = self.removal.failures.saturating_add(1);
        self.now() + retry_delay(self.removal.failures, &mut self.random)
    }

    fn remove_one(&self, owned: &mut Owned) -> Result<(), RuntimeError> {
        let Some(source) = self.context.engines.get(&owned.runtime) else {
            return Ok(());
        };
        let mut connector = (source.connect)();
        let role = owned.role;
        let mut remove = |id: &ContainerId| match role {
            Role::Surplus => connector.delete(id),
            Role::Unused | Role::Old => connector.delete_ended(id),
        };
        if let Some(id) = &owned.id {
            remove(id)?;
            owned.id = None;
        }
        if owned.search == Search::Nothing {
            return Ok(());
        }
        let found = (source.connect)().find(&owned.instance, owned.workload.as_deref())?;
        found
            .iter()
            .filter(|id| self.container.as_ref() != Some(id))
            .try_for_each(remove)
    }

    /// Something of the instance is gone. With the last of it go its folders, and its end is
    /// reported.
    pub(super) fn released(&mut self, instance: &InstanceName) {
        if self.is_ours(instance) || self.removal.has(instance) {
            return;
        }
        let is_next = match &self.next {
            Some(next) => next.added.instance == *instance,
            None => false,
        };
        if !is_next {
            // Mostly there is none.
            let _ = std::fs::remove_file(notify_socket_path(&self.context.calls.folder, instance));
            self.remove_folder(&self.folder(instance));
        }
        self.report_end(instance);
    }

    /// Reports how a removal goes. The current instance has states of its own. What was prepared
    /// has none; of that only why it cannot be removed is of interest.
    fn report_removal(&mut self, instance: &InstanceName, role: Role, mut state: ExecutionState) {
        if self.is_ours(instance) {
            return;
        }
        if role == Role::Unused {
            state.phase = Phase::PendingInitial;
        }
        self.report_of(instance.clone(), state);
    }

    pub(super) fn is_ours(&self, instance: &InstanceName) -> bool {
        !self.is_empty && self.instance == *instance
    }

    fn report_waits_for(&mut self, runtime: &Name, error: &RuntimeError) {
        let name = &self.instance.workload;
        debug!(
            "Workload '{name}' waits for '{runtime}', which may have a container of it: '{error}'"
        );
        let info = format!(
            "Waiting for '{runtime}', which may have a container of it: {}",
            error.reason()
        );
        if !self.has_given_up() && self.shown != info {
            self.report(ExecutionState::with_info(Phase::PendingStarting, info));
        }
    }

    // ------------------------------------------------------------ what runs ends

    /// Removes what is there, then does `after`. Ends all waiting, above all for a retry.
    // [impl->swdd~agent-workload-control-loop-prevents-retries-on-other-workload-commands~1]
    pub(super) fn delete(&mut self, after: AfterDelete) {
        self.stage = Stage::Idle;
        self.next
            .take_if(|next| next.is_started)
            .into_iter()
            .for_each(|next| self.discard(next));
        let is_kept = match after {
            AfterDelete::Target => match self.target.run.added() {
                Some(next) => self.keeps_control_interface(next),
                None => false,
            },
            _ => true,
        };
        self.end_control_interface_unless(is_kept);
        let stopping = self
            .lifecycle
            .stopping(ExecutionState::plain(Phase::StoppingRequestedAtRuntime));
        self.report(stopping);
        self.delete_unshown(after);
    }

    /// Removes the container without reporting that it stops: that is done, or it is a part of a
    /// start or restart.
    pub(super) fn delete_unshown(&mut self, after: AfterDelete) {
        self.lifecycle_ended();
        self.removal.failures = 0;
        self.try_delete(after);
    }

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
        self.deleted(after);
    }

    /// Nothing is left of the container.
    pub(super) fn deleted(&mut self, after: AfterDelete) {
        if let Some(control) = &self.control {
            // It is kept for another container, which has asked nothing yet.
            control.container_gone();
        }
        if matches!(after, AfterDelete::Target) {
            return self.removed();
        }
        self.remove_files();
        match after {
            AfterDelete::Target => {}
            AfterDelete::Restart => {
                self.report_end(&self.instance.clone());
                self.restart_control_interface();
                self.report(ExecutionState::starting_triggered());
                self.begin_start();
            }
            // What follows from these is reported with the state that follows.
            AfterDelete::NotReady(cause) => self.retry_not_ready(&cause),
            AfterDelete::Failed(cause) => {
                let state = ExecutionState::with_info(Phase::FailedExecFailed, cause);
                self.on_failed(state.because(Reason::Alive))
            }
        }
    }

    /// The current instance is gone, and what the newest target says comes in its place.
    fn removed(&mut self) {
        self.read_target();
        let next = self.target.run.added().cloned();
        self.end_control_interface_unless(
            next.as_ref()
                .is_some_and(|next| self.keeps_control_interface(next)),
        );
        let comes_back = next
            .as_ref()
            .is_some_and(|added| added.instance == self.instance);
        let is_left = |owned: &Owned| owned.instance == self.instance && owned.role != Role::Old;
        let is_left = !comes_back && self.removal.list.iter().any(is_left);
        if comes_back {
            self.remove_files();
        } else if !is_left {
            // An engine that is still making a container may write into it.
            self.remove_folder(&self.folder(&self.instance));
        }
        self.is_empty = true;
        if is_left {
            self.remove_due(); // Its end is reported with that of the last container.
        } else {
            self.report_end(&self.instance.clone());
        }
        match next {
            Some(added) => self.create(added),
            None => self.wanted = None,
        }
    }

    fn remove_files(&self) {
        self.remove_folder(&self.files_folder());
        if self.control.is_none() {
            self.remove_folder(&self.control_folder(&self.instance));
        }
    }

    /// Removes the container. It is only stopped when that of the new instance is there already;
    /// from then on it is none of the instance any more.
    // [impl->swdd~agent-workload-control-loop-delete-broken-allowed~1]
    // [impl->swdd~agent-workload-control-loop-update-broken-allowed~1]
    // [impl->swdd~agent-switches-to-prepared~1]
    fn end_container(&mut self, after: &AfterDelete) -> Result<(), RuntimeError> {
        let next = self
            .next
            .as_ref()
            .filter(|next| self.starts > 0 && next.has_container());
        let has_successor = next.is_some_and(|next| self.is_about_to_start(&next.added));
        let (Some(mut connector), Some(id)) = (self.connector(), &self.container) else {
            debug!("Workload '{}' already gone.", self.instance.workload);
            return Ok(());
        };
        match after {
            AfterDelete::Restart => connector.delete_ended(id),
            AfterDelete::Target if has_successor => {
                connector.stop(id)?;
                self.remove_own(Role::Old);
                Ok(())
            }
            // One call less; if it runs again all the same, it is stopped.
            AfterDelete::Target if self.lifecycle.has_ended() => connector.delete_ended(id),
            AfterDelete::Target | AfterDelete::NotReady(_) | AfterDelete::Failed(_) => {
                connector.delete(id)
            }
        }
    }

    /// Keeps the container's id and what was to follow, and tries again later: a container that is
    /// left alone would run for ever unnoticed.
    // [impl->swdd~agent-workload-control-loop-delete-failed-allows-retry~1]
    // [impl->swdd~agent-workload-control-loop-update-delete-failed-allows-retry~1]
    fn on_delete_failed(&mut self, after: AfterDelete, error: &RuntimeError) {
        let replaced = !matches!(after, AfterDelete::Target) || self.target.run.added().is_some();
        let verb = if replaced { "update" } else { "stop" };
        warn!(
            "Could not {verb} workload '{}': '{error}'",
            self.instance.workload
        );
        let state = self.lifecycle.stopping(ExecutionState::with_info(
            Phase::StoppingDeleteFailed,
            error.reason(),
        ));
        self.report(state);
        self.stage = Stage::DeleteRetryAt(self.after_failure(), after);
    }
}
