//! A start: the slot, the files, the engine's call, and what follows when it failed.
//!
//! Thread: `wl:<name>`; part of [`WorkloadControlLoop`].
//! Takes: a free start slot. Gives: states to the scheduler (may block there).

use super::prepared::{NotStarted, Undecided};
use super::readiness::{Origin, Unprepared};
use super::{Leftovers, Stage, Start, WorkloadControlLoop};
use crate::agent::backoff::retry_delay;
use crate::agent::create_watch::{CreateObserver, CreateWatch};
use crate::agent::settings::unsupported_runtime;
use crate::agent::start_slots::StartSlot;
use crate::agent::workload_files::write_files;
use crate::limits::REVIVAL_INTERVAL;
use crate::model::execution_state::{ExecutionState, Phase};
use crate::model::workload::Workload;
use crate::platform::clock::Clock;
use crate::runtime::{ContainerId, NewContainer, RuntimeError};
use log::{debug, error, info, warn};
use std::sync::Arc;

impl<C: Clock> WorkloadControlLoop<C> {
    pub(super) fn begin_start(&mut self, start: Start) {
        if self.engine.is_none() {
            // [impl->swdd~agent-skips-unknown-runtime~1]
            let runtime = self.wanted.as_ref().map_or("", |workload| &workload.runtime);
            self.fail_for_good(&unsupported_runtime(runtime));
            return;
        }
        if let Some(cause) = self.lifecycle.invalid().map(str::to_owned) {
            return self.fail_for_good(&cause);
        }
        self.add_strays(self.slot.take_strays()); // They may have come while an engine call was under way.
        if !self.strays.is_empty() {
            self.stage = Stage::BehindStrays(start);
            return;
        }
        self.give_up_others();
        if self.must_search() {
            return self.search(start);
        }
        match self.context.slots.try_take() {
            Some(slot) => self.start(start, Some(slot)),
            None => self.stage = Stage::WaitingForSlot(start, self.context.slots.request(self.slot.waker())),
        }
    }

    /// Starts what is wanted; without a slot when a part of the start took so long that it was given back.
    pub(super) fn start(&mut self, start: Start, mut slot: Option<StartSlot>) {
        self.stage = Stage::Idle;
        let Some(workload) = self.wanted.clone() else { return };
        let container = match self.take_prepared() {
            Ok(container) => container,
            Err(Undecided) => return self.await_preparation(start, slot),
        };
        if let Some(container) = container {
            match self.start_prepared(start, container, &workload, slot) {
                Ok(id) => return self.on_started(id),
                Err(NotStarted::Cancelled) => return self.expect_leftovers(),
                Err(NotStarted::CreateAnew(kept)) => slot = kept,
            }
        }
        let new = match self.prepare(workload) {
            Ok(new) => new,
            Err(Unprepared::ForGood(cause)) => return self.fail_for_good(&cause),
            Err(Unprepared::ForNow(cause)) => return self.on_create_failed(start, &cause, &cause),
        };
        self.restarts.starting(self.context.clock.now());
        match self.call_engine(start, &new, slot) {
            Ok(id) => self.on_started(id),
            Err(RuntimeError::Cancelled) => {
                // The command that cancelled it comes next; whatever was created until now must go then.
                self.expect_leftovers();
            }
            // The engine was not called, so a container that was to be started again is still there to be removed.
            Err(RuntimeError::Unsupported(cause)) => self.fail_for_good(&cause),
            // The engine did nothing, so a container that was to be started again is still there to be started.
            Err(error @ (RuntimeError::NotInstalled(_) | RuntimeError::NotStarted(_))) => {
                self.on_create_failed(start, &error.to_string(), &error.reason());
            }
            Err(error) => {
                match error {
                    RuntimeError::TimedOut(_) => self.expect_leftovers(),
                    _ if self.leftovers == Leftovers::None => self.leftovers = Leftovers::Unlikely,
                    _ => {}
                }
                self.container = None;
                self.on_create_failed(start, &error.to_string(), &error.reason());
            }
        }
    }

    fn on_started(&mut self, id: ContainerId) {
        self.failed_creates = 0;
        self.leftovers = Leftovers::None;
        if self.lifecycle.is_ready_when_created() {
            self.restarts.running(self.context.clock.now());
        }
        info!("Successfully created workload '{}'.", self.instance.workload);
        self.starts = self.starts.saturating_add(1);
        self.watch(id);
        self.lifecycle_started(Origin::Created);
    }

    /// Opens the control interface, writes the files and returns what to create.
    fn prepare(&mut self, workload: Arc<Workload>) -> Result<NewContainer, Unprepared> {
        self.open_control_interface()
            .map_err(|error| Unprepared::ForNow(format!("Failed to create control interface: '{error}'")))?;
        let notify_socket = self.open_notify_socket()?;
        let files = write_files(&self.files_folder(), &workload.files).map_err(|error| {
            error!("Failed to create workload files for workload '{}': '{error}'", self.instance);
            let cause = format!("Failed to create workload file: '{error}'");
            if error.is_final(&workload.files) { Unprepared::ForGood(cause) } else { Unprepared::ForNow(cause) }
        })?;
        Ok(NewContainer {
            instance: self.instance.clone(),
            workload,
            control_interface: self.control.as_ref().map(|control| control.folder().to_owned()),
            files,
            notify_socket,
        })
    }

    fn call_engine(
        &mut self,
        start: Start,
        new: &NewContainer,
        slot: Option<StartSlot>,
    ) -> Result<ContainerId, RuntimeError> {
        let Some(engine) = &mut self.engine else {
            return Err(RuntimeError::Unsupported("Unsupported Runtime".into()));
        };
        let call = self.slot.begin_call();
        let (instance, shown, reports) = (&self.instance, self.shown.as_str(), &self.context.reports);
        let observer = (start != Start::Revival).then_some(CreateObserver { instance, shown, reports });
        let mut watch = CreateWatch::new(call.as_ref().map(|call| call.fd()), slot, observer);
        let limit = self.context.create_timeout;
        match &self.container {
            Some(id) => engine.connector.start(id, new, limit, &mut watch),
            None => engine.connector.create(new, limit, &mut watch),
        }
    }

    /// The log gets the whole `cause`, the state the `reason` in it.
    // [impl->swdd~agent-workload-control-loop-retries-workload-creation-on-create-failure~1]
    // [impl->swdd~agent-workload-control-loop-update-create-failed-allows-retry~1]
    pub(super) fn on_create_failed(&mut self, start: Start, cause: &str, reason: &str) {
        self.remove_folder(&self.files_folder());
        let now = self.context.clock.now();
        if start == Start::Revival {
            debug!("Workload '{}' still cannot be created: '{cause}'", self.instance.workload);
            self.stage = Stage::RetryAt(now + REVIVAL_INTERVAL, Start::Revival);
            return;
        }
        self.failed_creates = self.failed_creates.saturating_add(1);
        let retry = self.failed_creates;
        // [impl->swdd~agent-workload-control-loop-limits-retry-attempts~1]
        if self.context.retry_limit.is_some_and(|limit| retry > limit) {
            warn!("No more retries to create workload '{}'. Error: '{cause}'", self.instance.workload);
            // [impl->swdd~agent-workload-control-loop-retry-limit-set-execution-state~2]
            self.report(ExecutionState::no_more_retries(reason));
            self.stage = Stage::RetryAt(now + REVIVAL_INTERVAL, Start::Revival);
            return;
        }
        info!("Retrying workload creation for: '{}'. Error: '{cause}'", self.instance.workload);
        self.report(ExecutionState::retry_starting(retry, reason));
        self.stage = Stage::RetryAt(now + retry_delay(retry, &mut self.random), Start::New);
    }

    /// The workload can never run as it is; only an update helps.
    fn fail_for_good(&mut self, cause: &str) {
        error!("Failed to create workload with error: '{cause}'");
        if self.engine.is_some() {
            self.remove_folder(&self.files_folder());
        }
        self.report(ExecutionState::with_info(Phase::PendingStartingFailed, cause));
    }
}
