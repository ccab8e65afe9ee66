//! A control loop as tests and the simulation step it. Only in development builds.
//!
//! Thread: `wl:<name>`, or that of a test.

use super::WorkloadControlLoop;
use ankaios_platform::clock::Clock;
use crossbeam_channel::Receiver;
use std::cell::RefCell;

type Action = Box<dyn FnMut()>;

thread_local! {
    /// What this thread does after each target that it sends.
    static AFTER_TARGET: RefCell<Option<Action>> = const { RefCell::new(None) };
}

/// Ends what [`after_each_target`] has begun when it is dropped.
pub struct AfterTargets(());

/// Calls `action` after each target that this thread sends to a control loop. There a real control
/// loop may already act on it, while the scheduler still handles the same event.
pub fn after_each_target(action: impl FnMut() + 'static) -> AfterTargets {
    AFTER_TARGET.set(Some(Box::new(action)));
    AfterTargets(())
}

impl Drop for AfterTargets {
    fn drop(&mut self) {
        AFTER_TARGET.set(None);
    }
}

/// Reports that this thread has sent a target.
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
