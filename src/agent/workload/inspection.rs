//! A control loop as the simulation steps it. Only in development builds.
//!
//! Thread: `wl:<name>`, or that of a test.

use super::WorkloadControlLoop;
use ankaios_platform::clock::Clock;
use crossbeam_channel::Receiver;

impl<C: Clock> WorkloadControlLoop<C> {
    /// Becomes ready when there may be an event.
    pub fn woken(&self) -> Receiver<()> {
        self.mailbox.woken().clone()
    }
}
