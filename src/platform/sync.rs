//! What threads share: locks, and a descriptor that wakes a thread from `poll`.
//!
//! A panic ends every program (`program::abort_on_panic`), so no thread finds a lock that a panic
//! left behind: these locks know of none, and callers need not decide what to do then.
//!
//! Thread: any.

pub use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A descriptor that becomes readable when it is set. Clones are the same.
#[derive(Debug, Clone)]
pub struct EventFd(Arc<OwnedFd>);

impl EventFd {
    /// One that is not set.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?)))
    }

    /// Makes it readable; never waits.
    pub fn set(&self) {
        // It fails only when it is readable already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
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
