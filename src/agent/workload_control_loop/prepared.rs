//! The start of a container that was prepared while the workload waited.
//!
//! Thread: `wl:<name>`; part of [`WorkloadControlLoop`]. It waits for a preparation under way as for a wish, so that a
//! delete need not wait for an engine that hangs.
//! Takes: what the scheduler hands over. Gives: states to the scheduler (may block there).

use super::{Leftovers, Stage, Start, WorkloadControlLoop};
use crate::agent::control_interface;
use crate::agent::create_watch::{CreateObserver, CreateWatch};
use crate::agent::preparation::handover::{Remains, Taker};
use crate::agent::preparation::host_paths;
use crate::agent::preparation::prepared::PreparedContainer;
use crate::agent::start_slots::StartSlot;
use crate::agent::workload_files::file_paths;
use crate::limits::{CREATE_AGE_INTERVAL, PREPARED_PATHS_WAIT, START_SLOT_MAX};
use crate::model::workload::Workload;
use crate::platform::clock::Clock;
use crate::runtime::{ContainerId, NewContainer, RuntimeError};
use log::info;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A start whose preparation has not ended.
pub(super) struct Preparing {
    start: Start,
    /// Until it has been waiting for so long that others need it.
    slot: Option<StartSlot>,
    since: Instant,
    /// The age that is reported next.
    next_age: Duration,
}

impl Preparing {
    pub(super) fn next_age_at(&self) -> Instant {
        self.since + self.next_age
    }
}

/// It is not known yet what was prepared.
pub(super) struct Undecided;

/// Why a prepared container was not started.
pub(super) enum NotStarted {
    /// A newer wish has made it pointless.
    Cancelled,
    /// It is removed; another one is created in the same slot.
    CreateAnew(Option<StartSlot>),
}

impl<C: Clock> WorkloadControlLoop<C> {
    /// Takes the container that was prepared, if there is one. That is done once: a start that is tried again creates a
    /// new one.
    pub(super) fn take_prepared(&mut self) -> Result<Option<PreparedContainer>, Undecided> {
        let Some(prepared) = &self.prepared else { return Ok(None) };
        let given = prepared.take(self.slot.waker()).ok_or(Undecided)?;
        self.prepared = None;
        if given.unsure && self.leftovers == Leftovers::None {
            self.leftovers = Leftovers::Unlikely;
        }
        Ok(given.container)
    }

    pub(super) fn await_preparation(&mut self, start: Start, slot: Option<StartSlot>) {
        let (since, next_age) = (self.context.clock.now(), CREATE_AGE_INTERVAL.min(START_SLOT_MAX));
        self.stage = Stage::Preparing(Preparing { start, slot, since, next_age });
    }

    /// Whether the loop waits for what was prepared, and need not any longer.
    pub(super) fn preparation_is_decided(&self) -> bool {
        let waits = matches!(self.stage, Stage::Preparing(_) | Stage::Releasing(_));
        waits && self.prepared.as_ref().is_none_or(Taker::is_decided)
    }

    pub(super) fn on_preparation_decided(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            // They came meanwhile, and go first.
            Stage::Preparing(Preparing { start, .. }) if !self.strays.is_empty() => self.begin_start(start),
            Stage::Preparing(Preparing { start, slot, .. }) => self.start(start, slot),
            Stage::Releasing(after) => self.released(after),
            other => self.stage = other,
        }
    }

    /// As of a create that takes long.
    pub(super) fn on_preparing_age(&mut self, mut preparing: Preparing) {
        let age = self.context.clock.now().saturating_duration_since(preparing.since);
        if age >= START_SLOT_MAX {
            preparing.slot = None;
        }
        while preparing.next_age <= age {
            preparing.next_age += CREATE_AGE_INTERVAL;
        }
        if let Some(observer) = self.observer(preparing.start) {
            observer.report(age);
        }
        self.stage = Stage::Preparing(preparing);
    }

    pub(super) fn observer(&self, start: Start) -> Option<CreateObserver<'_>> {
        let (instance, shown, reports) = (&self.instance, self.shown.as_str(), &self.context.reports);
        (start != Start::Revival).then_some(CreateObserver { instance, shown, reports })
    }

    /// What has to be done about what was prepared before the instance counts as removed.
    pub(super) fn release_prepared(&mut self) -> Remains {
        let remains = self.prepared.as_ref().map_or(Remains::Nothing, |prepared| prepared.remains(self.slot.waker()));
        if remains != Remains::Wait {
            self.prepared = None;
        }
        remains
    }

    /// Starts the container that was prepared. Whatever goes wrong, it is removed and another one is created: preparing
    /// never prevents a start.
    pub(super) fn start_prepared(
        &mut self,
        start: Start,
        container: PreparedContainer,
        workload: &Arc<Workload>,
        slot: Option<StartSlot>,
    ) -> Result<ContainerId, NotStarted> {
        let (mut slot, id) = (slot, container.id.clone());
        self.container = Some(id.clone());
        let reason = match self.check_prepared(&container, workload) {
            Err(reason) => {
                self.remove_prepared(&id);
                reason
            }
            Ok(new) => match self.call_start(start, &id, &new, &mut slot) {
                Ok(started) => return Ok(started),
                Err(RuntimeError::Cancelled) => return Err(NotStarted::Cancelled),
                Err(error) => {
                    match error {
                        RuntimeError::NotInstalled(_) | RuntimeError::NotStarted(_) => self.remove_prepared(&id),
                        RuntimeError::TimedOut(_) => self.expect_leftovers(),
                        _ => {} // The connector has removed it.
                    }
                    error.reason()
                }
            },
        };
        let name = &self.instance.workload;
        info!("Workload '{name}' is not started as it was prepared, its container is created anew: '{reason}'");
        self.container = None;
        Err(NotStarted::CreateAnew(slot))
    }

    /// Opens what the container has mounted, and checks that all of it is what it was.
    fn check_prepared(
        &mut self,
        container: &PreparedContainer,
        workload: &Arc<Workload>,
    ) -> Result<NewContainer, String> {
        host_paths::compare(&container.paths, PREPARED_PATHS_WAIT)?;
        self.open_control_interface().map_err(|error| format!("Failed to create control interface: '{error}'"))?;
        let control_interface = self.control.as_ref().map(|control| control.folder().to_owned());
        if control_interface.is_none() && control_interface::is_wanted(&workload.control_interface_access) {
            return Err("it would have no control interface".to_owned());
        }
        let notify_socket = self.open_notify_socket().map_err(|unprepared| unprepared.cause())?;
        let files = file_paths(&self.files_folder(), &workload.files).map_err(|error| error.to_string())?;
        Ok(NewContainer {
            instance: self.instance.clone(),
            workload: workload.clone(),
            control_interface,
            files,
            notify_socket,
        })
    }

    fn call_start(
        &mut self,
        start: Start,
        id: &ContainerId,
        new: &NewContainer,
        slot: &mut Option<StartSlot>,
    ) -> Result<ContainerId, RuntimeError> {
        self.restarts.starting(self.context.clock.now());
        let Some(mut engine) = self.engine.take() else {
            return Err(RuntimeError::NotStarted("Unsupported Runtime".into()));
        };
        let call = self.slot.begin_call();
        let cancel = call.as_ref().map(|call| call.fd());
        let mut watch = CreateWatch::new(cancel, slot.take(), self.observer(start)).repeated();
        let result = engine.connector.start(id, new, self.context.create_timeout, &mut watch);
        *slot = watch.into_slot();
        drop(call);
        self.engine = Some(engine);
        result
    }

    /// It was never started. What cannot be removed now is searched before the next attempt.
    fn remove_prepared(&mut self, id: &ContainerId) {
        let removed = self.engine.as_mut().is_some_and(|engine| engine.connector.delete_unused(id).is_ok());
        if !removed {
            self.expect_leftovers();
        }
    }
}
