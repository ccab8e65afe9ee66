//! A control loop as tests and the simulation step it. Only in development builds.
//!
//! Thread: `wl:<name>`, or that of a test.

use super::WorkloadControlLoop;
use super::status::Status;
use ankaios_platform::clock::Clock;
use crossbeam_channel::Receiver;
use std::cell::RefCell;

type Action = Box<dyn FnMut()>;

thread_local! {
    /// The action of this thread after each target that it sends.
    static AFTER_TARGET: RefCell<Option<Action>> = const { RefCell::new(None) };
}

/// Ends the actions of [`after_each_target`] when it is dropped.
pub struct AfterTargets(());

/// Calls `action` after each target that this thread sends to a control loop. At that moment a real
/// control loop may act on the target, while the scheduler still handles its event.
pub fn after_each_target(action: impl FnMut() + 'static) -> AfterTargets {
    AFTER_TARGET.set(Some(Box::new(action)));
    AfterTargets(())
}

impl Drop for AfterTargets {
    fn drop(&mut self) {
        AFTER_TARGET.set(None);
    }
}

/// Calls the action of this thread, which has just sent a target. It is not called for targets that
/// it sends itself.
pub(super) fn target_was_sent() {
    let Some(mut action) = AFTER_TARGET.take() else {
        return;
    };
    action();
    AFTER_TARGET.set(Some(action));
}

impl<C: Clock> WorkloadControlLoop<C> {
    /// Becomes ready when there may be an event.
    pub fn woken(&self) -> Receiver<()> {
        self.mailbox.woken().clone()
    }
}

impl Status {
    /// The number of the newest target that the control loop has taken.
    pub fn target_number(&self) -> u64 {
        self.target
    }
}
