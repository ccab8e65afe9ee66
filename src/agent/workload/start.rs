//! A start: the slot, the mounts of the container, the engine's calls, and the retry of one that
//! failed.
//!
//! Thread: `wl:<name>`; part of [`WorkloadControlLoop`].
//! Takes: a free start slot, ends of calls. Gives: states to the scheduler (may block there).

use super::preparation::CallUnderWay;
use super::removal::{RemovalKind, Search};
use super::status::StartProgress;
use super::{LoopStage, WorkloadControlLoop};
use crate::backoff::retry_delay;
use crate::engine_call::{CallDone, CallResult, CallStep};
use crate::limits::{REVIVAL_INTERVAL, START_SLOT_MAX};
use crate::settings::unsupported_runtime;
use crate::state_checker::KnownEnd;
use crate::workload::preparation::host_paths;
use crate::workload::preparation::record::{PreparedContainer, new_container};
use crate::workload::start_slots::{SlotRequest, SlotUse};
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::limits::CREATE_AGE_INTERVAL;
use ankaios_model::shown_text::with_sentence;
use ankaios_platform::clock::Clock;
use ankaios_platform::limits::ADDITIONAL_INFO_MAX;
use ankaios_platform::sync::EventFd;
use ankaios_runtime::{ContainerId, MainProcess, NewContainer, RuntimeError};
use log::{debug, error, info, warn};
use std::time::{Duration, Instant};

/// Longest wait for the facts of the host paths of a prepared container before its start. A disk
/// needs less. A container with slower paths is created again.
const START_PATHS_WAIT: Duration = Duration::from_millis(50);

/// The call of a start that is under way.
pub(super) struct StartUnderWay {
    /// The number of the call.
    number: u64,
    /// A prepared container is started.
    is_prepared: bool,
    /// The start slot. A start that takes too long gives it back to others.
    slot: Option<SlotRequest>,
    since: Instant,
    /// When to report the age of the call next.
    pub(super) due: Instant,
}

impl StartUnderWay {
    fn new(number: u64, is_prepared: bool, slot: Option<SlotRequest>, now: Instant) -> Self {
        Self {
            number,
            is_prepared,
            slot,
            since: now,
            due: now + CREATE_AGE_INTERVAL.min(START_SLOT_MAX),
        }
    }
}

impl<C: Clock> WorkloadControlLoop<C> {
    /// Begins the start of the current instance:
    /// - never, when its runtime is unknown or its `lifecycle:` block is invalid;
    /// - not now, when a newer target wants something else, which is followed instead;
    /// - not now, when other containers of the workload must be removed first;
    /// - otherwise as soon as a start slot is free.
    pub(super) fn begin_start(&mut self) {
        if self.engine().is_none() {
            // [impl->swdd~agent-skips-unknown-runtime~1]
            let cause = unsupported_runtime(&self.runtime);
            return self.fail_for_good(&cause);
        }
        if let Some(cause) = self.lifecycle.invalid.clone() {
            return self.fail_for_good(&cause);
        }
        self.read_target(); // A new one may contain containers that must be removed first.
        if !self.runs_target() {
            self.stage = LoopStage::Idle;
            return self.follow_target(false);
        }
        self.discard_stale_preparation();
        if self.removals.block_start() {
            self.stage = LoopStage::AwaitingCleanup;
            return;
        }
        let waker = self.mailbox.waker();
        let slot = self.context.slots.request(SlotUse::Start, waker);
        if slot.is_granted() {
            self.start(Some(slot));
        } else {
            self.stage = LoopStage::WaitingForSlot(slot);
        }
    }

    /// Starts the current instance. `slot` is `None` if the preparation, as a part of the start,
    /// took too long and gave it back.
    // [impl->swdd~agent-workload-control-loop-executes-create~3]
    pub(super) fn start(&mut self, slot: Option<SlotRequest>) {
        if self.removals.block_start() {
            return self.begin_start(); // Since the first check, other containers were found.
        }
        self.stage = LoopStage::Idle;
        let now = self.now();
        // First: a preparation under way becomes a part of the start, which continues after it.
        if let Some(next) = &self.next
            && next.joins_start
            && let Some(call) = &next.call
        {
            let cancel = call.cancel.clone();
            let start = StartUnderWay::new(call.number, false, slot, now);
            return self.await_call(start, cancel);
        }
        // Then: the prepared container becomes that of the current instance.
        let prepared = match self.next.take_if(|next| next.joins_start) {
            Some(next) => next.container,
            None => None,
        };
        let is_prepared = prepared.is_some();
        if let Some(prepared) = &prepared {
            self.container = Some(prepared.id.clone());
        }
        // Finally: the engine is called.
        self.forget_end();
        match self.call_start(prepared) {
            Ok(call) => {
                let start = StartUnderWay::new(call.number, is_prepared, slot, now);
                self.await_call(start, call.cancel);
            }
            Err(error) => self.on_start_ended(is_prepared, Err(error)),
        }
    }

    /// Calls the engine to start the prepared container, else the one that has ended, else a new
    /// one.
    fn call_start(
        &mut self,
        prepared: Option<PreparedContainer>,
    ) -> Result<CallUnderWay, RuntimeError> {
        if let Some(prepared) = &prepared {
            host_paths::compare(&prepared.paths, START_PATHS_WAIT)
                .map_err(|cause| RuntimeError::NotStarted(cause.into()))?;
        }
        let new = self.open_mounts(prepared.is_some())?;
        self.restarts.starting(self.now());
        let step = match (prepared, &self.container) {
            (Some(prepared), _) => CallStep::Start(prepared.id),
            (None, Some(id)) => CallStep::StartAgain(id.clone()),
            (None, None) => CallStep::Run,
        };
        self.call(step, new)
    }

    /// Opens the control interface and the notify socket. Returns the container to start, which
    /// mounts those that could be opened.
    ///
    /// # Errors
    /// The start must be retried, or the prepared container cannot be used.
    fn open_mounts(&mut self, is_prepared: bool) -> Result<NewContainer, RuntimeError> {
        if let Err(error) = self.open_control_interface(false) {
            let text = format!("Failed to create control interface: '{error}'");
            return Err(RuntimeError::NotStarted(text.into()));
        }
        self.open_notify_socket()?;
        let Some(current) = self.current() else {
            return Err(RuntimeError::Cancelled); // Without a definition there is nothing to start.
        };
        let mut new = new_container(&self.context.calls.folder, &current)?;
        if self.control.is_none() && new.control_interface.is_some() {
            if is_prepared {
                // It was created with the mount.
                let text = "it would have no control interface";
                return Err(RuntimeError::NotStarted(text.into()));
            }
            new.control_interface = None;
        }
        Ok(new)
    }

    /// Whether a prepared container is being started. Until that has ended it is shown as prepared.
    pub(super) fn starts_prepared(&self) -> bool {
        matches!(&self.stage, LoopStage::Starting(start) if start.is_prepared)
    }

    /// Begins to wait for the call. The mailbox cancels it as soon as another instance must run.
    fn await_call(&mut self, start: StartUnderWay, cancel: Option<EventFd>) {
        self.stage = LoopStage::Starting(start);
        if let (Some(current), Some(cancel)) = (self.current(), cancel) {
            self.mailbox.begin_start(current, cancel);
        }
    }

    /// Reports how long the call of the start has been running. A call that takes too long gives
    /// its slot back.
    pub(super) fn on_call_age(&mut self, mut start: StartUnderWay) {
        let now = self.now();
        let age = now.saturating_duration_since(start.since);
        if age >= START_SLOT_MAX {
            start.slot = None;
        }
        while start.due <= now {
            start.due += CREATE_AGE_INTERVAL;
        }
        // After the last retry, the state with its error is not replaced any more.
        if !self.has_given_up() {
            let sentence = format!("The create has been running for {} s.", age.as_secs());
            let info = with_sentence(&self.start_info, &sentence, ADDITIONAL_INFO_MAX);
            let state = ExecutionState::with_info(Phase::PendingStarting, info);
            // Not `report`: this text must not become the next `start_info`.
            self.report_of(self.instance.clone(), state);
        }
        self.stage = LoopStage::Starting(start);
    }

    /// Takes the result of an engine call:
    /// - of the preparation, which may be a part of the start: then the start continues;
    /// - of the start;
    /// - otherwise of a call whose result is not needed any more.
    pub(super) fn on_called(&mut self, number: u64, result: CallResult) {
        let start = self.take_ended_start(number);
        if let Some(next) = self.next.take_if(|next| next.awaits(number)) {
            self.on_prepared(next, result);
            if let Some(start) = start {
                self.start(start.slot);
            }
        } else if let Some(start) = start {
            self.on_start_called(start, result);
        } else {
            self.on_unneeded_call_ended(number, result);
        }
    }

    /// Ends the wait of the stage for this call. Returns the start that waited for it; `None` if
    /// none did.
    fn take_ended_start(&mut self, number: u64) -> Option<StartUnderWay> {
        match std::mem::replace(&mut self.stage, LoopStage::Idle) {
            LoopStage::Starting(start) if start.number == number => {
                self.mailbox.end_start();
                Some(start)
            }
            stage => {
                self.stage = stage;
                None
            }
        }
    }

    /// Takes the result of the start, then follows the target that came meanwhile, if any.
    fn on_start_called(&mut self, start: StartUnderWay, result: CallResult) {
        let is_cancelled = matches!(result, Err(RuntimeError::Cancelled));
        self.on_start_ended(start.is_prepared, result);
        drop(start); // Gives back its slot before the next step, which may take long.
        let is_new_run = self.read_target();
        if is_cancelled && self.runs_target() {
            self.begin_start(); // The newest target wants it again.
        } else {
            self.follow_target(is_new_run);
        }
    }

    /// The start has succeeded or failed. A failure leads to:
    /// - nothing, when the start was cancelled: the target that cancelled it is followed next;
    /// - a new container, when a prepared one could not be started, or others have removed the one
    ///   to be started again;
    /// - the end of all tries, when the engine can never start it;
    /// - a retry later otherwise. After a call that did something, its container is removed first.
    fn on_start_ended(&mut self, is_prepared: bool, result: CallResult) {
        let error = match result {
            Ok(CallDone::Started(id, process)) => return self.on_started(id, process),
            Ok(_) => return,
            Err(error) => error,
        };
        let name = &self.instance.workload;
        match &error {
            RuntimeError::Cancelled => self.remove_leaked(Search::Late),
            _ if is_prepared => {
                let reason = error.reason();
                info!(
                    "Workload '{name}' is not started as it was prepared, its container is created again: '{reason}'"
                );
                let may_run = matches!(error, RuntimeError::TimedOut(_) | RuntimeError::Failed(_));
                let kind = if may_run {
                    RemovalKind::MayRun
                } else {
                    RemovalKind::Unused
                };
                self.remove_own(kind);
                self.begin_start();
            }
            _ if self.container.is_some() && error.means_gone() => {
                info!(
                    "The container of workload '{name}' was removed by others; it is created again."
                );
                self.container = None;
                self.begin_start();
            }
            // The engine was not called, so a container that was to be started again is still there
            // to be removed.
            RuntimeError::Unsupported(cause) => self.fail_for_good(cause),
            // The engine did nothing, so a container that was to be started again is still there to
            // be started.
            RuntimeError::NotInstalled(what) | RuntimeError::NotStarted(what) => {
                // Without a call the text is ours, and the state gets all of it.
                let reason = match what.call {
                    Some(_) => error.reason(),
                    None => what.text.clone(),
                };
                self.on_create_failed(&what.to_string(), &reason);
            }
            RuntimeError::TimedOut(_) | RuntimeError::Failed(_) => {
                match self.container {
                    Some(_) => self.remove_own(RemovalKind::MayRun),
                    None => self.remove_leaked(Search::Now),
                }
                if matches!(error, RuntimeError::TimedOut(_)) {
                    self.remove_leaked(Search::Late);
                }
                self.on_create_failed(&error.to_string(), &error.reason());
            }
        }
    }

    /// Watches and probes the container that was started.
    fn on_started(&mut self, id: ContainerId, process: Option<MainProcess>) {
        self.failed_creates = 0;
        info!(
            "Successfully created workload '{}'.",
            self.instance.workload
        );
        self.instance_starts = self.instance_starts.saturating_add(1);
        self.watch(id, process, KnownEnd::default());
        self.begin_lifecycle(true);
    }

    /// Retries the create later; after the last retry only rarely. The log gets the whole `cause`,
    /// the state only its `reason`.
    // [impl->swdd~agent-workload-control-loop-retries-workload-creation-on-create-failure~1]
    // [impl->swdd~agent-workload-control-loop-update-create-failed-allows-retry~1]
    pub(super) fn on_create_failed(&mut self, cause: &str, reason: &str) {
        self.remove_folder(&self.files_folder());
        self.note_start(StartProgress::Failed);
        let now = self.now();
        // A rare retry after the limit: its failure is not reported again.
        if self.has_given_up() {
            debug!(
                "Workload '{}' still cannot be created: '{cause}'",
                self.instance.workload
            );
            self.stage = LoopStage::RetryAt(now + REVIVAL_INTERVAL);
            return;
        }
        self.failed_creates = self.failed_creates.saturating_add(1);
        let retry = self.failed_creates;
        // [impl->swdd~agent-workload-control-loop-limits-retry-attempts~1]
        if self.has_given_up() {
            warn!(
                "No more retries to create workload '{}'. Error: '{cause}'",
                self.instance.workload
            );
            // [impl->swdd~agent-workload-control-loop-retry-limit-set-execution-state~2]
            self.report(ExecutionState::no_more_retries(reason));
            self.stage = LoopStage::RetryAt(now + REVIVAL_INTERVAL);
            return;
        }
        info!(
            "Retrying workload creation for: '{}'. Error: '{cause}'",
            self.instance.workload
        );
        self.report(ExecutionState::retry_starting(retry, reason));
        self.stage = LoopStage::RetryAt(now + retry_delay(retry, &mut self.random));
    }

    /// Whether the retry limit was reached. Further tries are rare, and their failures are not
    /// reported again.
    pub(super) fn has_given_up(&self) -> bool {
        match self.context.retry_limit {
            Some(limit) => self.failed_creates > limit,
            None => false,
        }
    }

    /// Reports that the workload cannot run until an update changes it.
    fn fail_for_good(&mut self, cause: &str) {
        error!("Failed to create workload with error: '{cause}'");
        self.note_start(StartProgress::Failed);
        // Without an engine no files were written.
        if self.engine().is_some() {
            self.remove_folder(&self.files_folder());
        }
        self.report(ExecutionState::with_info(
            Phase::PendingStartingFailed,
            cause,
        ));
    }
}
