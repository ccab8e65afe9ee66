//! The preparation of the next instance beside the current one: its image is pulled, its container
//! created and initialised, so that its start is short.
//!
//! Each step is an engine call that the loop waits for together with its other events, so the
//! current instance never waits. A prepared container costs nothing until it is started or
//! discarded. When a preparation fails, the start creates the container.
//!
//! Thread: `wl:<name>`; part of [`WorkloadControlLoop`].
//! Takes: the instance to prepare, slots. Gives: [`PreparationReport`]s in the status.

use super::WorkloadControlLoop;
use crate::backoff::retry_delay;
use crate::engine_call::{CallDone, CallResult, CallStep, ContainerCall};
use crate::events::{Note, PreparationReport};
use crate::limits::START_SLOT_MAX;
use crate::settings::unsupported_runtime;
use crate::state_checker::WatchCommand;
use crate::workload::mailbox::Preparation;
use crate::workload::preparation::levels::PresentContainers;
use crate::workload::preparation::record::{PreparedContainer, new_container};
use crate::workload::start_slots::{SlotRequest, SlotUse};
use ankaios_model::messages::AddedWorkload;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::reason::{PREPARE_PREFIX, PREPARED_PREFIX, Reason};
use ankaios_platform::clock::Clock;
use ankaios_platform::sync::EventFd;
use ankaios_runtime::{ContainerId, NewContainer, RuntimeError};
use log::info;
use std::time::Instant;

pub(crate) mod host_paths;
pub(crate) mod levels;
pub(crate) mod record;

/// An engine call under way.
pub(super) struct CallUnderWay {
    /// Identifies its result.
    pub(super) number: u64,
    pub(super) cancel: Option<EventFd>,
    pub(super) since: Instant,
    makes_container: bool,
}

/// An instance that is, or is being, prepared.
#[derive(Default)]
pub(super) struct Prepared {
    pub(super) added: AddedWorkload,
    /// The level that is reached.
    level: PrepareLevel,
    pub(super) container: Option<PreparedContainer>,
    pub(super) call: Option<CallUnderWay>,
    failures: u32,
    /// Why the last try failed.
    reason: String,
    retry_at: Option<Instant>,
    /// Only an update helps.
    has_given_up: bool,
    /// The note beside its phase while it waits.
    note: Note,
    /// The slot for the call under way, or the request for it.
    cpu: Option<SlotRequest>,
    /// The slot for an initialised container, or the request for it.
    initialised: Option<SlotRequest>,
    /// It is a part of the start of the current instance.
    pub(super) joins_start: bool,
}

impl Prepared {
    fn new(added: AddedWorkload) -> Self {
        Self {
            added,
            ..Self::default()
        }
    }

    /// Whether a container is there, or is being made.
    pub(super) fn has_container(&self) -> bool {
        let is_being_made = match &self.call {
            Some(call) => call.makes_container,
            None => false,
        };
        self.container.is_some() || is_being_made
    }

    /// Whether it waits for the call with this number.
    pub(super) fn awaits(&self, number: u64) -> bool {
        match &self.call {
            Some(call) => call.number == number,
            None => false,
        }
    }

    /// Whether it waits for its start in this container.
    fn waits_in(&self, id: &ContainerId) -> bool {
        match &self.container {
            Some(container) => container.id == *id && self.call.is_none() && !self.joins_start,
            None => false,
        }
    }

    /// Notes that this level is reached.
    fn set_reached(&mut self, level: PrepareLevel, container: Option<PreparedContainer>) {
        self.level = level;
        self.container = container;
        self.failures = 0;
        self.reason.clear();
        self.note = Note {
            prepared: level,
            text: format!("{PREPARED_PREFIX}{level}"),
            ..Note::default()
        };
    }

    /// Notes that a try has failed. Another one follows later, unless the error is final or the
    /// limit is reached.
    fn set_failed(
        &mut self,
        error: &RuntimeError,
        retry_limit: Option<u32>,
        now: Instant,
        random: &mut fastrand::Rng,
    ) {
        self.level = PrepareLevel::None;
        self.failures = self.failures.saturating_add(1);
        self.reason = error.reason();
        let text = format!("{PREPARE_PREFIX}{}", self.reason);
        self.note = Note::new(Reason::PreparationFailed, text);
        let is_last = match retry_limit {
            Some(limit) => self.failures > limit,
            None => false,
        };
        self.has_given_up = error.is_final() || is_last;
        if !self.has_given_up {
            let delay = retry_delay(self.failures, random);
            self.note.text += &format!(", retry in {} s", delay.as_millis().div_ceil(1_000));
            self.retry_at = Some(now + delay);
        }
    }
}

impl<C: Clock> WorkloadControlLoop<C> {
    /// Takes over a container that an earlier agent has prepared.
    pub(super) fn take_prepared(&mut self, added: AddedWorkload, container: PreparedContainer) {
        let id = container.id.clone();
        let mut found = Prepared::new(added);
        found.set_reached(container.level, Some(container));
        if self.preparation_joins_start() {
            self.discard(found); // It has come too late for the start.
            return;
        }
        if let Some(earlier) = self.next.take() {
            self.discard(earlier);
        }
        self.watch_prepared(&found.added, &id);
        self.next = Some(found);
    }

    /// When [`Self::prepare`] has something to do without an event.
    pub(super) fn preparation_due(&self) -> Option<Instant> {
        self.instance_to_prepare()?; // Without one there is nothing to do.
        let next = self.next.as_ref()?;
        let slot_due = match &next.call {
            Some(call) if next.cpu.is_some() => Some(call.since + START_SLOT_MAX),
            _ => None,
        };
        [next.retry_at, slot_due].into_iter().flatten().min()
    }

    /// Does the next step of the preparation, and reports how far it is. Returns whether anything
    /// was done.
    pub(super) fn prepare(&mut self) -> bool {
        let now = self.now();
        // First: a preparation that is not needed any more goes.
        if self.discard_stale_preparation() {
            return true;
        }
        let level = self.allowed_level();
        let Some(desired) = self.instance_to_prepare().cloned() else {
            return false;
        };
        let mut next = match self.next.take() {
            Some(next) => next,
            None => Prepared::new(desired.added.clone()),
        };
        // Then: the next step, if there is one that need not wait.
        let mut has_worked = false;
        if let Some(step) = self.choose_step(&mut next, level, now) {
            has_worked = true;
            match self.call_preparation(step, &next.added) {
                Ok(call) => next.call = Some(call),
                Err(error) => {
                    next.set_failed(&error, desired.retry_limit, now, &mut self.random);
                }
            }
        }
        // Finally: the report. While a call is under way there is nothing new.
        if next.call.is_none() && self.report_preparation(&next, level) {
            has_worked = true;
        }
        self.next = Some(next);
        has_worked
    }

    /// Starts the engine call of a step.
    fn call_preparation(
        &mut self,
        step: CallStep,
        added: &AddedWorkload,
    ) -> Result<CallUnderWay, RuntimeError> {
        let new = new_container(&self.context.calls.folder, added)?;
        self.call(step, new)
    }

    /// The instance to prepare now. `None` if the target has none, and while a start uses a
    /// preparation or is about to use it.
    fn instance_to_prepare(&self) -> Option<&Preparation> {
        let desired = self.target.next.as_ref()?;
        if self.preparation_joins_start()
            || self.starts_prepared()
            || self.is_about_to_start(&desired.added)
        {
            return None;
        }
        match &self.next {
            // That one is about to be started, or will be discarded first.
            Some(next) if next.added != desired.added => None,
            _ => Some(desired),
        }
    }

    /// Whether the preparation is a part of the start of the current instance.
    pub(super) fn preparation_joins_start(&self) -> bool {
        match &self.next {
            Some(next) => next.joins_start,
            None => false,
        }
    }

    /// How far the next instance may be prepared, beside the present containers of the workload.
    fn allowed_level(&self) -> PrepareLevel {
        let Some(Preparation { added, level, .. }) = &self.target.next else {
            return PrepareLevel::None;
        };
        let present = if self.is_current(&added.instance) || self.removals.has(&added.instance) {
            PresentContainers::SameInstance
        } else if self.is_empty {
            PresentContainers::Nothing
        } else {
            PresentContainers::OtherInstance
        };
        levels::allowed(&added.workload, *level, present)
    }

    /// Discards the preparation unless it is still needed. Returns whether it was discarded.
    pub(super) fn discard_stale_preparation(&mut self) -> bool {
        let Some(next) = self.next.take() else {
            return false;
        };
        if self.is_still_needed(&next) {
            self.next = Some(next);
            return false;
        }
        self.discard(next);
        true
    }

    /// Whether a start uses this preparation or is about to, or the target still has it and allows
    /// the level that it has reached.
    fn is_still_needed(&self, next: &Prepared) -> bool {
        if next.joins_start || self.is_about_to_start(&next.added) {
            return true;
        }
        let Some(desired) = &self.target.next else {
            return false;
        };
        let mut level = next.level;
        if next.has_container() {
            level = level.max(PrepareLevel::Create);
        }
        desired.added == next.added && level <= self.allowed_level()
    }

    /// Returns the next step of the preparation; `None` if there is none, or if it must wait for a
    /// call, a retry, a removal or a slot. Requests and gives back the slots of the preparation.
    fn choose_step(
        &self,
        next: &mut Prepared,
        level: PrepareLevel,
        now: Instant,
    ) -> Option<CallStep> {
        if let Some(call) = &next.call {
            if call.since + START_SLOT_MAX <= now {
                next.cpu = None; // The slot of a long call would delay others.
            }
            return None;
        }
        // First: an initialised container needs a slot for as long as it waits.
        let mut may_init = false;
        if level == PrepareLevel::Init {
            may_init = self
                .slot(&mut next.initialised, SlotUse::Initialised)
                .is_granted();
        } else {
            next.initialised = None;
        }
        // Then: the step that is missing.
        let step = match &next.container {
            _ if next.level >= level => None,
            Some(container) if may_init => Some(CallStep::Init(container.clone())),
            Some(_) => None,
            None if level == PrepareLevel::Image => Some(CallStep::Image),
            None => Some(CallStep::Create),
        };
        // Finally: it may have to wait.
        if let Some(at) = next.retry_at
            && at <= now
        {
            next.retry_at = None;
        }
        let awaits_retry = next.has_given_up || next.retry_at.is_some();
        if step.is_none() || awaits_retry || self.removals.block_preparation() {
            next.cpu = None;
            return None;
        }
        if !self.slot(&mut next.cpu, SlotUse::Prepare).is_granted() {
            return None;
        }
        step
    }

    /// Returns the request for a slot. Makes one if there is none.
    fn slot<'r>(&self, request: &'r mut Option<SlotRequest>, of: SlotUse) -> &'r SlotRequest {
        request.get_or_insert_with(|| self.context.slots.request(of, self.mailbox.waker()))
    }

    /// Notes in the status how far the preparation is. Returns whether that is new.
    fn report_preparation(&mut self, next: &Prepared, level: PrepareLevel) -> bool {
        let done = if next.level >= level {
            Some(level)
        } else {
            None
        };
        let report = PreparationReport {
            added: next.added.clone(),
            done,
            failures: next.failures,
            failure: next.reason.clone(),
            is_final: next.has_given_up,
            note: next.note.clone(),
        };
        if self.status.prepared.as_ref() == Some(&report) {
            return false;
        }
        self.status.prepared = Some(report);
        true
    }

    /// Takes the result of a call for the preparation.
    pub(super) fn on_prepared(&mut self, mut next: Prepared, result: CallResult) {
        self.take_call_result(&mut next, result);
        let instance = next.added.instance.clone();
        self.next = Some(next);
        self.forget_if_gone(&instance);
    }

    /// Notes the level that the call has reached, or its failure. Removes the container that a
    /// failed call may have left.
    fn take_call_result(&mut self, next: &mut Prepared, result: CallResult) {
        let Some(call) = next.call.take() else {
            return;
        };
        let error = match result {
            Ok(CallDone::Image) => return next.set_reached(PrepareLevel::Image, None),
            Ok(CallDone::Prepared(container)) => {
                self.watch_prepared(&next.added, &container.id);
                return next.set_reached(container.level, Some(container));
            }
            Ok(CallDone::Started(..)) => return, // No step of a preparation starts a container.
            Err(error) => error,
        };
        // If the engine was called, there may be a container with an unknown id.
        if call.makes_container {
            let container = next.container.take().map(|container| container.id);
            if container.is_some() || !error.means_not_started() {
                self.remove_unused(&next.added, container, None, None);
            }
        }
        if error != RuntimeError::Cancelled {
            let name = &next.added.instance.workload;
            info!("The preparation of workload '{name}' failed. Error: '{error}'");
        }
        let retry_limit = match &self.target.next {
            Some(desired) => desired.retry_limit,
            None => None,
        };
        next.set_failed(&error, retry_limit, self.now(), &mut self.random);
    }

    /// Orders the state checker to report if others remove or start this prepared container.
    fn watch_prepared(&self, added: &AddedWorkload, id: &ContainerId) {
        let Some(engine) = self.context.engines.get(&added.workload.runtime) else {
            return;
        };
        let command = WatchCommand::WatchPrepared {
            instance: added.instance.clone(),
            id: id.clone(),
            reply: self.mailbox.gone_reply(id.clone()),
        };
        engine.watch.send(command);
    }

    /// Ends the watch of the prepared container.
    fn unwatch_prepared(&self, added: &AddedWorkload) {
        let Some(engine) = self.context.engines.get(&added.workload.runtime) else {
            return;
        };
        let instance = added.instance.clone();
        let command = WatchCommand::UnwatchPrepared { instance };
        engine.watch.send(command);
    }

    /// Prepares the next instance again, since others have removed or started its container `id`.
    pub(super) fn on_prepared_gone(&mut self, id: &ContainerId) {
        let Some(gone) = self.next.take_if(|next| next.waits_in(id)) else {
            return;
        };
        let name = &gone.added.instance.workload;
        info!(
            "The prepared container of workload '{name}' was removed or started by others; it is prepared again."
        );
        let again = Prepared::new(gone.added.clone());
        self.report_preparation(&again, self.allowed_level());
        self.next = Some(again);
        self.discard(gone);
    }

    /// Discards a preparation: its call is cancelled, its container removed.
    pub(super) fn discard(&mut self, prepared: Prepared) {
        if prepared.container.is_some() {
            self.unwatch_prepared(&prepared.added);
        }
        let mut call = None;
        if let Some(under_way) = prepared.call {
            if let Some(cancel) = &under_way.cancel {
                cancel.set();
            }
            if under_way.makes_container {
                // It may still make one, which is removed when the call has ended.
                call = Some(under_way.number);
            }
        }
        let container = prepared.container.map(|container| container.id);
        if container.is_some() || call.is_some() {
            self.remove_unused(&prepared.added, container, call, prepared.initialised);
        } else {
            self.forget_if_gone(&prepared.added.instance);
        }
    }

    /// Starts an engine call. Its end is an event of the loop.
    ///
    /// # Errors
    /// The runtime is unknown, or no thread can be started.
    pub(super) fn call(
        &mut self,
        step: CallStep,
        new: NewContainer,
    ) -> Result<CallUnderWay, RuntimeError> {
        let runtime = &new.workload.runtime;
        let Some(connector) = self.context.connector(runtime) else {
            return Err(RuntimeError::Unsupported(unsupported_runtime(runtime)));
        };
        self.calls += 1;
        let number = self.calls;
        let makes_container = !matches!(step, CallStep::Image);
        let cancel = EventFd::new().ok();
        let call = ContainerCall {
            step,
            new,
            connector,
            context: self.context.calls.clone(),
            cancel: cancel.clone(),
            reply: self.mailbox.call_reply(number),
        };
        (self.context.start_call)(Box::new(call)).map_err(|error| {
            let text = format!("no thread can be started: {error}");
            RuntimeError::NotStarted(text.into())
        })?;
        Ok(CallUnderWay {
            number,
            cancel,
            since: self.now(),
            makes_container,
        })
    }
}

#[cfg(test)]
mod tests;
