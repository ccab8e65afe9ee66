//! Containers of the workload that go: those that are too many, those that were prepared and are not wanted, and old ones
//! that were only stopped for a new one.
//!
//! Thread: `wl:<name>`; part of [`WorkloadControlLoop`].
//! Owns: one list, and one time of the next try. Gives: states to the scheduler (may block there).

use super::preparation::Place;
use super::{Stage, WorkloadControlLoop};
use crate::agent::backoff::retry_delay;
use crate::agent::engine_call::{CallDone, CallResult};
use crate::agent::events::send_state;
use crate::agent::preparation::record::PreparedContainer;
use crate::agent::probes::prober::notify_socket_path;
use crate::agent::wish_slot::Surplus;
use crate::model::execution_state::{ExecutionState, Phase};
use crate::model::messages::AddedWorkload;
use crate::model::names::{InstanceName, Name};
use crate::model::workload::Workload;
use crate::platform::clock::Clock;
use crate::runtime::{ContainerId, RuntimeError};
use log::warn;
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
    /// It was stopped, so that nothing but the stop and the start lie between it and the new one. It goes after the start,
    /// whatever came of that.
    Old,
}

/// A container that goes.
struct Owned {
    runtime: Name,
    instance: InstanceName,
    role: Role,
    /// What it was made from, where that is known.
    workload: Option<Arc<Workload>>,
    id: Option<ContainerId>,
    /// Others of the instance may be there, since a call that makes one failed or was cut short.
    search: bool,
    /// The call that may be making it has not ended.
    call: Option<u64>,
    /// It counts as initialised until it is gone.
    _initialised: Option<Place>,
}

#[derive(Default)]
pub(super) struct Removal {
    list: Vec<Owned>,
    due: Option<Instant>,
    failures: u32,
}

impl Removal {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether there is something of the instance.
    pub(super) fn has(&self, instance: &InstanceName) -> bool {
        self.list.iter().any(|owned| owned.instance == *instance)
    }

    /// Whether something of the instance goes whose end is not reported yet.
    pub(super) fn counts_for(&self, instance: &InstanceName) -> bool {
        self.list.iter().any(|owned| owned.instance == *instance && owned.role != Role::Old)
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
        let (runtime, instance) = (runtime.clone(), instance.clone());
        Self { runtime, instance, role, workload: None, id, search: false, call: None, _initialised: None }
    }
}

impl<C: Clock> WorkloadControlLoop<C> {
    fn remove_soon(&mut self, owned: impl IntoIterator<Item = Owned>) {
        self.removal.list.extend(owned);
        (self.removal.failures, self.removal.due) = (0, Some(self.context.clock.now()));
    }

    /// Containers that are too many. They are removed as soon as the loop does nothing else.
    pub(super) fn add_surplus(&mut self, mut found: Vec<Surplus>) {
        let runtime = self.wanted.as_ref().map(|workload| &workload.runtime);
        // An old listing may show the container that is ours by now.
        found.retain(|one| Some(&one.runtime) != runtime || self.container.as_ref() != Some(&one.id));
        if found.is_empty() {
            return;
        }
        for surplus in &found {
            self.report_removal(&surplus.instance, ExecutionState::plain(Phase::StoppingRequestedAtRuntime));
        }
        let owned = |Surplus { runtime, instance, id, is_unused }| {
            let role = if is_unused { Role::Unused } else { Role::Surplus };
            Owned::new(&runtime, &instance, role, Some(id))
        };
        self.remove_soon(found.into_iter().map(owned));
    }

    /// What was prepared and is not wanted; `call` may be making it.
    pub(super) fn remove_unused(
        &mut self,
        AddedWorkload { instance, workload }: &AddedWorkload,
        container: Option<PreparedContainer>,
        search: bool,
        call: Option<u64>,
        initialised: Option<Place>,
    ) {
        let owned = Owned::new(&workload.runtime, instance, Role::Unused, container.map(|container| container.id));
        let workload = Some(workload.clone());
        self.remove_soon([Owned { workload, search, call, _initialised: initialised, ..owned }]);
    }

    /// The container that was stopped for the new one.
    pub(super) fn remove_later(&mut self, id: ContainerId) {
        let runtime = self.wanted.as_ref().map(|workload| workload.runtime.clone()).unwrap_or_default();
        self.remove_soon([Owned::new(&runtime, &self.instance, Role::Old, Some(id))]);
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
        let Some(owned) = self.removal.list.iter_mut().find(|owned| owned.call == Some(number)) else { return };
        owned.call = None;
        match result {
            Ok(CallDone::Prepared(container)) => owned.id = Some(container.id),
            Ok(_) => {}
            Err(_) => owned.search = true,
        }
        self.removal.due = Some(self.context.clock.now());
    }

    pub(super) fn removal_due(&self) -> Option<Instant> {
        self.removal.due.filter(|_| self.removal.list.iter().any(|owned| self.may_remove(owned)))
    }

    fn may_remove(&self, owned: &Owned) -> bool {
        let calls = matches!(self.stage, Stage::Calling(_));
        owned.call.is_none()
            && match owned.role {
                Role::Unused => true,
                Role::Surplus => !calls,
                Role::Old => !calls && !self.stage.leads_to_start(),
            }
    }

    /// Tries to remove all that may go now, and again later what could not be removed. A start that waits for it goes on.
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
            let Owned { instance, role, runtime, .. } = &owned;
            let which = match role {
                Role::Surplus => "a container that is too many",
                Role::Unused => "a prepared container",
                Role::Old => "the stopped container",
            };
            warn!("Could not remove {which} of workload '{}', trying again: '{error}'", instance.workload);
            if *role != Role::Old {
                self.report_removal(instance, ExecutionState::with_info(Phase::StoppingDeleteFailed, error.reason()));
                failed = Some((runtime.clone(), error));
            }
            self.removal.failures = self.removal.failures.saturating_add(1);
            self.removal.list.push(owned);
        }
        gone.iter().for_each(|instance| self.released(instance));
        if self.removal.list.iter().any(|owned| self.may_remove(owned)) {
            let delay = retry_delay(self.removal.failures, &mut self.random);
            self.removal.due = Some(self.context.clock.now() + delay);
        } else if !self.removal.is_empty() {
            self.removal.due = Some(self.context.clock.now()); // As soon as they may.
        }
        if let Stage::BehindRemoval(start) = self.stage {
            match failed {
                Some((runtime, error)) => self.report_waits_for(start, &runtime, &error),
                None if !self.removal.blocks_start() => self.begin_start(start),
                None => {}
            }
        }
    }

    fn remove_one(&self, owned: &mut Owned) -> Result<(), RuntimeError> {
        let Some(source) = self.context.engines.get(&owned.runtime) else { return Ok(()) };
        let mut connector = (source.connect)();
        if let Some(id) = &owned.id {
            match owned.role {
                Role::Surplus => connector.delete(id)?,
                Role::Unused => connector.delete_unused(id)?,
                Role::Old => connector.delete_ended(id)?,
            }
            owned.id = None;
        }
        if owned.search {
            let found = match connector.find(&owned.instance, owned.workload.as_deref()) {
                Err(RuntimeError::NotInstalled(_)) => Vec::new(), // Then nothing was created.
                found => found?,
            };
            found.iter().try_for_each(|id| connector.delete_unused(id))?;
        }
        Ok(())
    }

    /// Something of the instance is gone. With the last of it go its folders, and its end is reported if somebody counts
    /// on it.
    pub(super) fn released(&mut self, instance: &InstanceName) {
        let is_prepared = self.next.as_ref().is_some_and(|next| next.added.instance == *instance);
        if is_prepared || self.removal.has(instance) || self.is_ours(instance) {
            return;
        }
        let _ = std::fs::remove_file(notify_socket_path(&self.context.calls.folder, instance)); // Mostly there is none.
        self.remove_folder(&self.context.calls.folder.join(instance.folder()));
        if self.slot.release(instance) {
            send_state(&self.context.reports, instance, ExecutionState::plain(Phase::Removed));
        }
    }

    /// What is to run has states of its own, and of what nobody counts on there is none.
    fn report_removal(&self, instance: &InstanceName, state: ExecutionState) {
        if self.slot.holds(instance) && !self.is_ours(instance) && !self.slot.wants(instance) {
            send_state(&self.context.reports, instance, state);
        }
    }

    fn is_ours(&self, instance: &InstanceName) -> bool {
        !self.is_empty && self.instance == *instance
    }
}
