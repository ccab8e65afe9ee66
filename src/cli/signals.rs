//! Signals that end `get events` and `logs` with exit code 0, and those that end a wait.
//!
//! Thread: `cli:signals` waits for them; everything else on `main`. Gives: a message for each signal. All other commands
//! keep the default action of signals.

use super::error::CliError;
use crate::limits::{STACK_SMALL, STOP_DEADLINE};
use crate::platform::threads::{self, Thread};
use crossbeam_channel::{Receiver, bounded};
use signal_hook::iterator::{Handle, Signals};
use std::ffi::c_int;

/// Catches signals until it is dropped.
pub struct Interrupts {
    handle: Handle,
    thread: Option<Thread>,
    received: Receiver<()>,
}

impl Interrupts {
    /// Begins to catch these signals.
    ///
    /// # Errors
    /// The operating system does not allow it.
    pub fn catch(signals: &[c_int]) -> Result<Self, CliError> {
        let failed = |error| CliError::Start { text: format!("cannot catch signals: {error}"), hint: None };
        let mut signals = Signals::new(signals).map_err(failed)?;
        let handle = signals.handle();
        let (give, received) = bounded(1);
        let wait = move || {
            for _ in signals.forever() {
                let _ = give.try_send(()); // Full: one is waiting already.
            }
        };
        let thread = threads::spawn("cli:signals", STACK_SMALL, wait).map_err(failed)?;
        Ok(Self { handle, thread: Some(thread), received })
    }

    /// Where the signals arrive.
    #[must_use]
    pub fn receiver(&self) -> Receiver<()> {
        self.received.clone()
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        self.handle.close();
        let _ = threads::join_all(self.thread.take(), STOP_DEADLINE); // The program ends anyway.
    }
}
