//! What happens while an engine creates a container: cancelling, giving the start slot back, showing the age.
//!
//! Thread: `wl:<name>`, inside the engine call.

use super::events::{SchedulerEvent, send_state};
use super::start_slots::StartSlot;
use crate::limits::{ADDITIONAL_INFO_MAX, CREATE_AGE_INTERVAL, START_SLOT_MAX};
use crate::model::execution_state::{ExecutionState, Phase};
use crate::model::names::InstanceName;
use crate::runtime::CallWatch;
use crossbeam_channel::Sender;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Watches one create or start.
pub struct CreateWatch<'a> {
    cancel: Option<BorrowedFd<'a>>,
    slot: Option<StartSlot>,
    /// `None` reports nothing.
    observer: Option<CreateObserver<'a>>,
    next_age: Duration,
    /// Another call follows a failed one and needs what this one has.
    is_repeated: bool,
}

/// Where and how to report the age of a create.
#[derive(Debug, Clone, Copy)]
pub struct CreateObserver<'a> {
    /// What is created.
    pub instance: &'a InstanceName,
    /// The additional info that is shown already, for example why the last attempt failed. The age is put behind it.
    pub shown: &'a str,
    /// The scheduler's inbox.
    pub reports: &'a Sender<SchedulerEvent>,
}

impl<'a> CreateWatch<'a> {
    /// `cancel` becomes readable when the call is not wanted any more.
    #[must_use]
    pub fn new(
        cancel: Option<BorrowedFd<'a>>,
        slot: impl Into<Option<StartSlot>>,
        observer: Option<CreateObserver<'a>>,
    ) -> Self {
        Self { cancel, slot: slot.into(), observer, next_age: CREATE_AGE_INTERVAL, is_repeated: false }
    }

    /// When the call fails, another one follows in the same slot.
    #[must_use]
    pub fn repeated(self) -> Self {
        Self { is_repeated: true, ..self }
    }

    /// The slot, unless it was given back.
    #[must_use]
    pub fn into_slot(self) -> Option<StartSlot> {
        self.slot
    }
}

impl CreateObserver<'_> {
    /// Reports that the create has been running for `age`.
    pub fn report(&self, age: Duration) {
        let age = format!(" The create has been running for {} s.", age.as_secs());
        let mut info = self.shown.to_owned();
        info.truncate(info.floor_char_boundary(ADDITIONAL_INFO_MAX - age.len()));
        send_state(self.reports, self.instance, ExecutionState::with_info(Phase::PendingStarting, info + &age));
    }
}

impl CallWatch for CreateWatch<'_> {
    fn cancel_fd(&self) -> Option<BorrowedFd<'_>> {
        self.cancel
    }

    fn next_progress(&self) -> Option<Duration> {
        let slot = self.slot.as_ref().map(|_| START_SLOT_MAX);
        let age = self.observer.map(|_| self.next_age);
        slot.into_iter().chain(age).min()
    }

    fn still_running(&mut self, age: Duration) {
        if age >= START_SLOT_MAX {
            self.slot = None;
        }
        if age < self.next_age {
            return;
        }
        while self.next_age <= age {
            self.next_age += CREATE_AGE_INTERVAL;
        }
        if let Some(observer) = self.observer {
            observer.report(age);
        }
    }

    fn cleaning_up(&mut self) {
        if !self.is_repeated {
            (self.slot, self.observer) = (None, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::start_slots::StartSlots;
    use super::*;
    use crossbeam_channel::bounded;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_age_of_a_retry_does_not_hide_why_the_last_attempt_failed() {
        let slots = StartSlots::new(1);
        let (reports, events) = bounded(8);
        let instance = InstanceName::with_id("w", "id", "A");
        let long = format!("Retry 3: {}", "\u{fc}".repeat(ADDITIONAL_INFO_MAX));
        for shown in ["Retry 3: no such image.", &long] {
            let observer = CreateObserver { instance: &instance, shown, reports: &reports };
            let mut watch = CreateWatch::new(None, slots.try_take().unwrap(), Some(observer));
            watch.still_running(seconds(10));
            let SchedulerEvent::State(report) = events.try_recv().unwrap() else { panic!("a state is expected") };
            let info = report.state.additional_info;
            assert!(info.starts_with(&shown[..19]), "{info}");
            assert!(info.ends_with(" The create has been running for 10 s."), "{info}");
            assert!(info.len() <= ADDITIONAL_INFO_MAX);
        }
    }

    #[test]
    fn cleaning_up_after_a_create_needs_no_slot() {
        let slots = StartSlots::new(1);
        let mut watch = CreateWatch::new(None, slots.try_take().unwrap(), None);
        watch.cleaning_up();
        assert!(slots.try_take().is_some());
    }

    #[test]
    fn a_silent_watch_only_gives_the_slot_back() {
        let slots = StartSlots::new(1);
        let mut watch = CreateWatch::new(None, slots.try_take().unwrap(), None);
        assert_eq!(watch.next_progress(), Some(START_SLOT_MAX));
        watch.still_running(START_SLOT_MAX - seconds(1));
        assert!(slots.try_take().is_none());
        watch.still_running(START_SLOT_MAX);
        assert_eq!(watch.next_progress(), None);
        assert!(slots.try_take().is_some());
    }
}
