//! Named threads with an explicit stack, and a join with a deadline.
//!
//! Thread: called by `main` and by owners of threads; the only file that may spawn one.

use crate::clock::{Clock, SystemClock};
use crate::memory::give_back_stack;
use crate::sync::Mutex;
use crossbeam_channel::{Receiver, TryRecvError, bounded};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A running thread: its name and a channel that closes when it ends.
#[derive(Debug)]
pub struct Thread {
    name: String,
    ended: Receiver<()>,
}

impl Thread {
    /// Returns whether it has ended.
    pub fn has_ended(&self) -> bool {
        matches!(self.ended.try_recv(), Err(TryRecvError::Disconnected))
    }
}

/// Starts a thread called `name` with `stack_bytes` of stack.
#[allow(clippy::disallowed_methods)] // The one place that spawns.
pub fn spawn(
    name: impl Into<String>,
    stack_bytes: usize,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<Thread> {
    let name = name.into();
    let (alive, ended) = bounded::<()>(0);
    std::thread::Builder::new()
        .name(name.clone())
        .stack_size(stack_bytes)
        .spawn(move || {
            let _alive = alive; // Dropped on return and on panic alike.
            #[cfg(debug_assertions)]
            panic_if_asked();
            body();
            // Otherwise the C library keeps the used pages of the stack for the next thread.
            give_back_stack();
        })?;
    Ok(Thread { name, ended })
}

/// Starts a thread as [`spawn`] does, and passes it `value`.
///
/// # Errors
/// The system has no thread: the error, and `value` again.
pub fn spawn_with<T: Send + 'static>(
    name: String,
    stack_bytes: usize,
    value: T,
    body: impl FnOnce(T) + Send + 'static,
) -> Result<(), (io::Error, T)> {
    // A failed start drops the closure, so `value` is outside of it, in a place that both share. A
    // channel would cost the thread more than half a KiB.
    let place = Arc::new(Mutex::new(Some(value)));
    let own = place.clone();
    let started = spawn(name, stack_bytes, move || {
        let value = own.lock().take();
        drop(own);
        if let Some(value) = value {
            body(value);
        }
    });
    let Err(error) = started else {
        return Ok(());
    };
    let value = place.lock().take();
    Err((error, value.expect("only the thread takes it")))
}

/// Panics in a thread that the environment variable `ANKAIOS_TEST_PANIC` names. Only in builds for
/// tests.
#[cfg(debug_assertions)]
fn panic_if_asked() {
    let thread = std::thread::current();
    let asked = std::env::var("ANKAIOS_TEST_PANIC").ok();
    assert!(
        asked.is_none() || asked.as_deref() != thread.name(),
        "a test wants thread '{}' to panic",
        asked.unwrap_or_default()
    );
}

/// Waits for all threads, at most `limit` in total. Returns the names of those still running.
pub fn join_all(threads: impl IntoIterator<Item = Thread>, limit: Duration) -> Vec<String> {
    let deadline = SystemClock.now() + limit;
    let mut running = Vec::new();
    for thread in threads {
        // Nothing is ever sent, so only the end of the thread or the deadline wakes us.
        if let Err(crossbeam_channel::RecvTimeoutError::Timeout) =
            thread.ended.recv_deadline(deadline)
        {
            running.push(thread.name);
        }
    }
    running
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn join_names_the_threads_that_do_not_end() {
        let (hold, held) = bounded::<()>(0);
        let ends = spawn("ends", crate::limits::STACK_SMALL, || {}).unwrap();
        let stays = spawn("stays", crate::limits::STACK_SMALL, move || {
            let _ = held.recv();
        })
        .unwrap();
        // Its turn may come late, and the limit is for both.
        while !ends.has_ended() {
            std::thread::yield_now();
        }
        let limit = Duration::from_millis(200);
        assert_eq!(join_all([ends, stays], limit), ["stays"]);
        drop(hold);
    }

    #[test]
    fn a_panicking_thread_counts_as_ended() {
        let thread = spawn("panics", crate::limits::STACK_SMALL, || {
            panic!("on purpose")
        })
        .unwrap();
        assert!(join_all([thread], Duration::from_secs(180)).is_empty());
    }
}
