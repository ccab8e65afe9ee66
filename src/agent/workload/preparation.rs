//! What is prepared beside what runs: the image is got, the container created and initialised, so
//! that its start is short.
//!
//! Each step is an engine call that the loop waits for together with its other events, so what runs
//! is never kept waiting. What is prepared costs nothing until it is started or not wanted any
//! more. Whatever goes wrong, a plain create follows.
//!
//! Thread: `wl:<name>`; part of [`WorkloadControlLoop`].
//! Takes: what must be prepared, slots for it. Gives: [`PreparationReport`]s in the status.

use super::WorkloadControlLoop;
use crate::backoff::retry_delay;
use crate::engine_call::{CallDone, CallResult, CallStep, EngineCall};
use crate::events::{Note, PreparationReport};
use crate::limits::START_SLOT_MAX;
use crate::settings::unsupported_runtime;
use crate::state_checker::WatchCommand;
use crate::workload::mailbox::Preparation;
use crate::workload::preparation::levels::Old;
use crate::workload::preparation::record::{PreparedContainer, new_container};
use crate::workload::start_slots::{SlotRequest, Use};
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
pub(super) struct Call {
    /// Identifies its result.
    pub(super) number: u64,
    pub(super) cancel: Option<EventFd>,
    pub(super) since: Instant,
    makes_container: bool,
}

/// What is, or is being, prepared.
#[derive(Default)]
pub(super) struct Prepared {
    pub(super) added: AddedWorkload,
    /// What is reached.
    level: PrepareLevel,
    pub(super) container: Option<PreparedContainer>,
    pub(super) call: Option<Call>,
    failures: u32,
    /// Why the last try failed.
    reason: String,
    retry_at: Option<Instant>,
    /// Only an update helps.
    has_given_up: bool,
    /// What is shown of it while it waits.
    note: Note,
    cpu: Option<SlotRequest>,
    initialised: Option<SlotRequest>,
    /// It is what is to run, and takes part in the start of that.
    pub(super) is_started: bool,
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
        self.container.is_some() || self.call.as_ref().is_some_and(|call| call.makes_container)
    }

    /// Whether this container is prepared and waits.
    fn waits_in(&self, id: &ContainerId) -> bool {
        let container = self.container.as_ref();
        container.is_some_and(|container| container.id == *id)
            && self.call.is_none()
            && !self.is_started
    }

    fn reached(&mut self, level: PrepareLevel, container: Option<PreparedContainer>) {
        (self.level, self.container, self.failures) = (level, container, 0);
        self.note = Note {
            prepared: level,
            text: format!("{PREPARED_PREFIX}{level}"),
            ..Note::default()
        };
    }

    fn failed(
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
        let is_final = error.is_final();
        self.has_given_up = is_final || retry_limit.is_some_and(|limit| self.failures > limit);
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
        let mut found = Prepared::new(added);
        found.reached(container.level, Some(container));
        if self.starts_next() {
            self.discard(found);
            return;
        }
        if let Some(earlier) = self.next.take() {
            self.discard(earlier);
        }
        self.watch_prepared(&found.added, found.container.as_ref());
        self.next = Some(found);
    }

    /// When [`Self::prepare`] has something to do by itself.
    pub(super) fn preparation_due(&self) -> Option<Instant> {
        self.prepared_now()?;
        let next = self.next.as_ref()?;
        let call = next.call.as_ref().filter(|_| next.cpu.is_some());
        next.retry_at
            .into_iter()
            .chain(call.map(|call| call.since + START_SLOT_MAX))
            .min()
    }

    /// Brings the preparation one step nearer to what the target says. Returns whether anything
    /// was done.
    pub(super) fn prepare(&mut self) -> bool {
        let now = self.now();
        if self.discard_stale_preparation() {
            return true;
        }
        let level = self.allowed_level();
        let Some(wanted) = self.prepared_now().cloned() else {
            return false;
        };
        let mut next = match self.next.take() {
            Some(next) => next,
            None => Prepared::new(wanted.added.clone()),
        };
        let step = self.next_step(&mut next, level, now);
        let mut has_worked = step.is_some();
        if let Some(step) = step {
            let new = new_container(&self.context.calls.folder, &wanted.added);
            match new.and_then(|new| self.call(step, new)) {
                Ok(call) => next.call = Some(call),
                Err(error) => next.failed(&error, wanted.retry_limit, now, &mut self.random),
            }
        }
        if next.call.is_none() {
            has_worked |= self.report_preparation(&next, level);
        }
        self.next = Some(next);
        has_worked
    }

    /// What must be prepared, unless its start comes first, or that of another instance.
    fn prepared_now(&self) -> Option<&Preparation> {
        let wanted = self.target.next.as_ref()?;
        if self.starts_next() || self.starts_prepared() || self.is_about_to_start(&wanted.added) {
            return None;
        }
        match &self.next {
            Some(next) if next.added != wanted.added => None,
            _ => Some(wanted),
        }
    }

    /// Whether what is prepared takes part in a start.
    pub(super) fn starts_next(&self) -> bool {
        self.next.as_ref().is_some_and(|next| next.is_started)
    }

    /// How far the next instance may be prepared, beside what there is.
    fn allowed_level(&self) -> PrepareLevel {
        let Some(Preparation { added, level, .. }) = &self.target.next else {
            return PrepareLevel::None;
        };
        let old = if self.is_ours(&added.instance) || self.removal.has(&added.instance) {
            Old::Same
        } else if self.is_empty {
            Old::Nothing
        } else {
            Old::Instance
        };
        levels::allowed(&added.workload, *level, old)
    }

    /// Discards what is prepared unless it is still needed. Returns whether it was discarded.
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

    /// Whether this is being started, is about to be, or is prepared no further than it must be.
    fn is_still_needed(&self, next: &Prepared) -> bool {
        if next.is_started || self.is_about_to_start(&next.added) {
            return true;
        }
        let Some(wanted) = &self.target.next else {
            return false;
        };
        let mut level = next.level;
        if next.has_container() {
            level = level.max(PrepareLevel::Create);
        }
        wanted.added == next.added && level <= self.allowed_level()
    }

    fn next_step(
        &self,
        next: &mut Prepared,
        level: PrepareLevel,
        now: Instant,
    ) -> Option<CallStep> {
        if let Some(call) = &next.call {
            if call.since + START_SLOT_MAX <= now {
                next.cpu = None; // It would delay others.
            }
            return None;
        }
        if level < PrepareLevel::Init {
            next.initialised = None;
        }
        let may_init =
            level == PrepareLevel::Init && self.has_slot(&mut next.initialised, Use::Initialised);
        let step = match &next.container {
            _ if next.level >= level => None,
            Some(container) => may_init.then(|| CallStep::Init(container.clone())),
            None if level == PrepareLevel::Image => Some(CallStep::Image),
            None => Some(CallStep::Create),
        };
        next.retry_at.take_if(|at| *at <= now);
        let waits = next.has_given_up || next.retry_at.is_some();
        let Some(step) = step.filter(|_| !waits && !self.removal.has_unused()) else {
            next.cpu = None;
            return None;
        };
        self.has_slot(&mut next.cpu, Use::Prepare).then_some(step)
    }

    /// Returns whether the slot is granted; requests it first if that was not done.
    fn has_slot(&self, request: &mut Option<SlotRequest>, of: Use) -> bool {
        request
            .get_or_insert_with(|| self.context.slots.request(of, self.mailbox.waker()))
            .is_given()
    }

    /// Notes in the status how far the preparation is. Returns whether that is new.
    fn report_preparation(&mut self, next: &Prepared, level: PrepareLevel) -> bool {
        let report = PreparationReport {
            added: next.added.clone(),
            done: (next.level >= level).then_some(level),
            failure: (next.failures > 0).then(|| (next.reason.clone(), next.failures)),
            is_final: next.has_given_up,
            note: next.note.clone(),
        };
        if self.status.prepared.as_ref() == Some(&report) {
            return false;
        }
        self.status.prepared = Some(report);
        true
    }

    /// A call for `prepared`, which is the next one or is being started, has ended.
    pub(super) fn on_prepared(&mut self, prepared: &mut Prepared, result: CallResult) {
        let Some(call) = prepared.call.take() else {
            return;
        };
        let error = match result {
            Ok(CallDone::Image) => return prepared.reached(PrepareLevel::Image, None),
            Ok(CallDone::Prepared(container)) => {
                self.watch_prepared(&prepared.added, Some(&container));
                return prepared.reached(container.level, Some(container));
            }
            Ok(CallDone::Started(..)) => return,
            Err(error) => error,
        };
        if call.makes_container {
            let container = prepared.container.take().map(|container| container.id);
            if container.is_some() || !error.means_not_started() {
                self.remove_unused(&prepared.added, container, None, None);
            }
        }
        if error != RuntimeError::Cancelled {
            let name = &prepared.added.instance.workload;
            info!("The preparation of workload '{name}' failed. Error: '{error}'");
        }
        let retry_limit = self
            .target
            .next
            .as_ref()
            .and_then(|wanted| wanted.retry_limit);
        prepared.failed(&error, retry_limit, self.now(), &mut self.random);
    }

    /// Lets the state checker report when others remove or start this container.
    fn watch_prepared(
        &self,
        AddedWorkload { instance, workload }: &AddedWorkload,
        container: Option<&PreparedContainer>,
    ) {
        let Some(engine) = self.context.engines.get(&workload.runtime) else {
            return;
        };
        let container = container.map(|container| {
            (
                container.id.clone(),
                self.mailbox.gone_reply(container.id.clone()),
            )
        });
        let command = WatchCommand::WatchPrepared {
            instance: instance.clone(),
            container,
        };
        let _ = engine.watch.send(command); // Gone only when the agent ends.
    }

    /// Somebody else has removed or started this container. It is prepared anew; its start would do
    /// so otherwise.
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

    /// What was prepared is not wanted any more.
    pub(super) fn discard(&mut self, prepared: Prepared) {
        if prepared.container.is_some() {
            self.watch_prepared(&prepared.added, None);
        }
        let Prepared {
            added,
            container,
            call,
            initialised,
            ..
        } = prepared;
        call.iter()
            .filter_map(|call| call.cancel.as_ref())
            .for_each(EventFd::set);
        let call = call
            .filter(|call| call.makes_container)
            .map(|call| call.number);
        if container.is_some() || call.is_some() {
            self.remove_unused(
                &added,
                container.map(|container| container.id),
                call,
                initialised,
            );
        } else {
            self.released(&added.instance);
        }
    }

    /// Starts an engine call.
    pub(super) fn call(&mut self, step: CallStep, new: NewContainer) -> Result<Call, RuntimeError> {
        let Some(connector) = self.context.connector(&new.workload.runtime) else {
            return Err(RuntimeError::Unsupported(unsupported_runtime(
                &new.workload.runtime,
            )));
        };
        self.calls += 1;
        let makes_container = !matches!(step, CallStep::Image);
        let (number, cancel) = (self.calls, EventFd::new().ok());
        let (reply, context) = (self.mailbox.call_reply(number), self.context.calls.clone());
        let call = EngineCall {
            step,
            new,
            connector,
            context,
            cancel: cancel.clone(),
            reply,
        };
        let started = (self.context.start_call)(Box::new(call));
        started.map_err(|error| {
            let text = format!("no thread can be started: {error}");
            RuntimeError::NotStarted(text.into())
        })?;
        Ok(Call {
            number,
            cancel,
            since: self.now(),
            makes_container,
        })
    }
}

#[cfg(test)]
mod tests;
