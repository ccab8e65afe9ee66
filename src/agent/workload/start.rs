//! A start: the slot, what the container mounts, the engine's calls, and what follows when one
//! failed.
//!
//! Thread: `wl:<name>`; part of [`WorkloadControlLoop`].
//! Takes: a free start slot, ends of calls. Gives: states to the scheduler (may block there).

use super::preparation::{Call, Prepared};
use super::removal::{Role, Search};
use super::status::StartProgress;
use super::{Stage, WorkloadControlLoop};
use crate::backoff::retry_delay;
use crate::engine_call::{CallDone, CallResult, CallStep};
use crate::limits::{REVIVAL_INTERVAL, START_SLOT_MAX};
use crate::settings::unsupported_runtime;
use crate::state_checker::KnownEnd;
use crate::workload::preparation::host_paths;
use crate::workload::preparation::record::{PreparedContainer, new_container};
use crate::workload::start_slots::{SlotRequest, Use};
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::limits::CREATE_AGE_INTERVAL;
use ankaios_model::shown_text::with_sentence;
use ankaios_platform::clock::Clock;
use ankaios_platform::limits::ADDITIONAL_INFO_MAX;
use ankaios_platform::sync::EventFd;
use ankaios_runtime::{ContainerId, MainProcess, NewContainer, RuntimeError};
use log::{debug, error, info, warn};
use std::time::{Duration, Instant};

/// The call of a start that is under way.
pub(super) struct Calling {
    number: u64,
    /// A prepared container is started.
    is_prepared: bool,
    /// Until the start has taken so long that others need it.
    slot: Option<SlotRequest>,
    since: Instant,
    /// When to report next for how long it has been running.
    pub(super) due: Instant,
}

impl<C: Clock> WorkloadControlLoop<C> {
    pub(super) fn begin_start(&mut self) {
        if self.source().is_none() {
            // [impl->swdd~agent-skips-unknown-runtime~1]
            let runtime = self
                .wanted
                .as_ref()
                .map_or("", |workload| &workload.runtime);
            self.fail_for_good(&unsupported_runtime(runtime));
            return;
        }
        if let Some(cause) = self.lifecycle.invalid.clone() {
            return self.fail_for_good(&cause);
        }
        self.read_target(); // It may have come just now, with containers that go first.
        if !self.runs_target() {
            self.stage = Stage::Idle;
            return self.follow_target(false);
        }
        self.discard_stale_preparation();
        if self.removal.blocks_start() {
            self.stage = Stage::BehindRemoval;
            return;
        }
        let request = self.context.slots.request(Use::Start, self.mailbox.waker());
        if request.is_given() {
            self.start(Some(request));
        } else {
            self.stage = Stage::WaitingForSlot(request);
        }
    }

    /// Starts what is wanted; without a slot when a part of the start took so long that it was
    /// given back.
    // [impl->swdd~agent-workload-control-loop-executes-create~3]
    pub(super) fn start(&mut self, slot: Option<SlotRequest>) {
        if self.removal.blocks_start() {
            return self.begin_start(); // What has to go first came meanwhile.
        }
        self.stage = Stage::Idle;
        let given = self.next.as_ref().filter(|next| next.is_started);
        if let Some(call) = given.and_then(|given| given.call.as_ref()) {
            // What was being prepared is a part of the start.
            let (number, cancel) = (call.number, call.cancel.clone());
            return self.await_call(Calling::new(number, false, slot, self.now()), cancel);
        }
        let given = self
            .next
            .take_if(|next| next.is_started)
            .and_then(|given| given.container);
        // A disk needs less; what takes longer is created anew.
        let is_same = |given: &PreparedContainer| {
            host_paths::compare(&given.paths, Duration::from_millis(50))
        };
        let checked = given
            .as_ref()
            .map_or(Ok(()), is_same)
            .map_err(|cause| RuntimeError::NotStarted(cause.into()));
        let is_prepared = given.is_some();
        let step = match given {
            Some(given) => {
                self.container = Some(given.id.clone());
                CallStep::Start(given.id)
            }
            None => self
                .container
                .clone()
                .map_or(CallStep::Run, CallStep::StartAgain),
        };
        let now = self.now();
        self.forget_end();
        let call = checked
            .and_then(|()| self.make_ready(is_prepared))
            .and_then(|new| {
                self.restarts.starting(now);
                self.call(step, new)
            });
        match call {
            Ok(Call { number, cancel, .. }) => {
                self.await_call(Calling::new(number, is_prepared, slot, now), cancel)
            }
            Err(error) => self.on_start_ended(is_prepared, Err(error)),
        }
    }

    /// Opens what the container has mounted, and returns what to start: without a control interface
    /// where none could be opened.
    fn make_ready(&mut self, is_prepared: bool) -> Result<NewContainer, RuntimeError> {
        self.open_control_interface(false).map_err(|error| {
            let text = format!("Failed to create control interface: '{error}'");
            RuntimeError::NotStarted(text.into())
        })?;
        self.open_notify_socket()?;
        let new = new_container(
            &self.context.calls.folder,
            &self.added().ok_or(RuntimeError::Cancelled)?,
        )?;
        if is_prepared && new.control_interface.is_some() && self.control.is_none() {
            return Err(RuntimeError::NotStarted(
                "it would have no control interface".into(),
            ));
        }
        let control_interface = new.control_interface.filter(|_| self.control.is_some());
        Ok(NewContainer {
            control_interface,
            ..new
        })
    }

    /// Whether a container that is prepared is being started, and only waits yet as far as anybody
    /// knows.
    pub(super) fn starts_prepared(&self) -> bool {
        matches!(&self.stage, Stage::Calling(calling) if calling.is_prepared)
    }

    /// Waits for the call, which ends as soon as something else must run.
    fn await_call(&mut self, calling: Calling, cancel: Option<EventFd>) {
        self.stage = Stage::Calling(calling);
        if let (Some(added), Some(cancel)) = (self.added(), cancel) {
            self.mailbox.begin_start(added, cancel);
        }
    }

    /// A call of the start has been running for some time.
    pub(super) fn on_call_age(&mut self, mut calling: Calling) {
        let age = self.now().saturating_duration_since(calling.since);
        if age >= START_SLOT_MAX {
            calling.slot = None;
        }
        while calling.due <= calling.since + age {
            calling.due += CREATE_AGE_INTERVAL;
        }
        if !self.has_given_up() {
            let age = format!("The create has been running for {} s.", age.as_secs());
            let info = with_sentence(&self.shown, &age, ADDITIONAL_INFO_MAX);
            let state = ExecutionState::with_info(Phase::PendingStarting, info);
            self.report_of(self.instance.clone(), state);
        }
        self.stage = Stage::Calling(calling);
    }

    pub(super) fn on_called(&mut self, number: u64, result: CallResult) {
        let started = match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Calling(calling) if calling.number == number => {
                self.mailbox.end_start();
                Some(calling)
            }
            stage => {
                self.stage = stage;
                None
            }
        };
        let is_it = |prepared: &mut Prepared| {
            prepared
                .call
                .as_ref()
                .is_some_and(|call| call.number == number)
        };
        if let Some(mut next) = self.next.take_if(is_it) {
            self.on_prepared(&mut next, result);
            let instance = next.added.instance.clone();
            self.next = Some(next);
            self.released(&instance);
            if let Some(calling) = started {
                self.start(calling.slot);
            }
        } else if let Some(calling) = started {
            let is_cancelled = matches!(result, Err(RuntimeError::Cancelled));
            self.on_start_ended(calling.is_prepared, result);
            drop(calling); // Its slot is for others, whatever takes its time now.
            let is_order = self.read_target();
            if is_cancelled && self.runs_target() {
                self.begin_start(); // It must run after all.
            } else {
                self.follow_target(is_order);
            }
        } else {
            self.on_unwanted_call_ended(number, result);
        }
    }

    fn on_start_ended(&mut self, is_prepared: bool, result: CallResult) {
        let error = match result {
            Ok(CallDone::Started(id, process)) => return self.on_started(id, process),
            Ok(_) => return,
            Err(error) => error,
        };
        match &error {
            // The target that cancelled it comes next; whatever was created until now must go then.
            RuntimeError::Cancelled => self.may_be_left(Search::InstanceLate),
            // Preparing never prevents a start: the prepared container is removed and another one
            // is created.
            _ if is_prepared => {
                let (name, reason) = (&self.instance.workload, error.reason());
                info!(
                    "Workload '{name}' is not started as it was prepared, its container is created anew: '{reason}'"
                );
                let may_run = matches!(error, RuntimeError::TimedOut(_) | RuntimeError::Failed(_));
                self.remove_own(if may_run { Role::Surplus } else { Role::Unused });
                self.begin_start();
            }
            _ if self.container.is_some() && error.means_gone() => {
                let name = &self.instance.workload;
                info!(
                    "The container of workload '{name}' was removed by others; it is created anew."
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
                    Some(_) => self.remove_own(Role::Surplus),
                    None => self.may_be_left(Search::Instance),
                }
                if matches!(error, RuntimeError::TimedOut(_)) {
                    self.may_be_left(Search::InstanceLate);
                }
                self.on_create_failed(&error.to_string(), &error.reason());
            }
        }
    }

    fn on_started(&mut self, id: ContainerId, process: Option<MainProcess>) {
        self.failed_creates = 0;
        info!(
            "Successfully created workload '{}'.",
            self.instance.workload
        );
        self.starts = self.starts.saturating_add(1);
        self.watch(id, process, KnownEnd::default());
        self.lifecycle_started(true);
    }

    /// The log gets the whole `cause`, the state the `reason` in it.
    // [impl->swdd~agent-workload-control-loop-retries-workload-creation-on-create-failure~1]
    // [impl->swdd~agent-workload-control-loop-update-create-failed-allows-retry~1]
    pub(super) fn on_create_failed(&mut self, cause: &str, reason: &str) {
        self.remove_folder(&self.files_folder());
        self.note_start(StartProgress::Failed);
        let now = self.now();
        if self.has_given_up() {
            debug!(
                "Workload '{}' still cannot be created: '{cause}'",
                self.instance.workload
            );
            self.stage = Stage::RetryAt(now + REVIVAL_INTERVAL);
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
            self.stage = Stage::RetryAt(now + REVIVAL_INTERVAL);
            return;
        }
        info!(
            "Retrying workload creation for: '{}'. Error: '{cause}'",
            self.instance.workload
        );
        self.report(ExecutionState::retry_starting(retry, reason));
        self.stage = Stage::RetryAt(now + retry_delay(retry, &mut self.random));
    }

    /// Whether the retry limit was reached. It is tried on from time to time, and failures are not
    /// reported again.
    pub(super) fn has_given_up(&self) -> bool {
        self.context
            .retry_limit
            .is_some_and(|limit| self.failed_creates > limit)
    }

    /// The workload can never run as it is; only an update helps.
    fn fail_for_good(&mut self, cause: &str) {
        error!("Failed to create workload with error: '{cause}'");
        self.note_start(StartProgress::Failed);
        if self.source().is_some() {
            self.remove_folder(&self.files_folder());
        }
        self.report(ExecutionState::with_info(
            Phase::PendingStartingFailed,
            cause,
        ));
    }
}

impl Calling {
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
