//! What threads share: locks without poisoning, and a descriptor that wakes a thread from `poll`.
//!
//! A panic ends every program (`program::abort_on_panic`), so no thread finds a lock that a panic left behind, and callers
//! need not decide what to do then.
//!
//! Thread: any.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

/// A mutex that is never poisoned.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, if no thread holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}

/// A condition variable for a [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    /// Waits until notified, or longer than `limit` when there is one; may return without a reason, too.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>, limit: Option<Duration>) -> MutexGuard<'a, T> {
        match limit {
            Some(limit) => self.0.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner).0,
            None => self.0.wait(guard).unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Waits until `must_wait` returns false.
    pub fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        must_wait: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        self.0.wait_while(guard, must_wait).unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A descriptor that becomes readable when it is set. Clones are the same.
#[derive(Debug, Clone)]
pub struct EventFd(Arc<OwnedFd>);

impl EventFd {
    /// One that is not set.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Makes it readable; never waits.
    pub fn set(&self) {
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes()); // It fails only when it is readable already.
    }

    /// Makes it unreadable again; returns whether it was readable.
    pub fn reset(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
