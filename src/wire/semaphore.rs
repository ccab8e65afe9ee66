//! A semaphore: limits what many users have in flight together, in bytes or in messages. Each user
//! acquires a permit and releases it by dropping it. Waiters are served in the order of arrival, so
//! that a large one is not overtaken by smaller ones without end.
//!
//! One semaphore bounds each hop of a message: bytes of large messages from the socket to the
//! reader (frame_gate.rs), large messages that are decoded, messages of one stream in the inbox of
//! the server (stream.rs), bytes of responses and of other messages to all peers (outbox.rs).
//!
//! Thread: any. Owns: the amount in flight, and the waiters.

use ankaios_platform::sync::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::thread::Thread;

/// Limits the amount in flight.
#[derive(Debug, Default)]
pub struct Semaphore {
    capacity: usize,
    /// What must be free before a blocked thread goes on.
    free_to_wake: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    in_flight: usize,
    /// The waiters, in the order of arrival.
    waiters: VecDeque<Position>,
    next_number: u64,
    /// Woken when a permit is released and there is capacity.
    waker: Option<Waker>,
}

/// The position of a waiter.
#[derive(Debug)]
struct Position {
    number: u64,
    /// The thread that is blocked in [`Semaphore::acquire`], if one is.
    thread: Option<Thread>,
}

/// A position among the waiters; given up when dropped.
#[derive(Debug)]
pub(crate) struct Waiter {
    semaphore: Arc<Semaphore>,
    number: u64,
}

/// An amount in flight, until it is dropped. The default is none.
#[derive(Debug, Default)]
pub struct Permit {
    semaphore: Option<Arc<Semaphore>>,
    amount: usize,
}

impl State {
    /// Whether a permit can be acquired. A single one may be larger than the capacity.
    fn fits(&self, amount: usize, capacity: usize) -> bool {
        self.in_flight == 0 || self.in_flight.saturating_add(amount) <= capacity
    }

    /// Whether this is the first waiter.
    fn is_first(&self, number: u64) -> bool {
        match self.waiters.front() {
            Some(first) => first.number == number,
            None => false,
        }
    }
}

impl Semaphore {
    /// With this capacity; a single permit may be larger.
    pub fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            capacity,
            ..Self::default()
        })
    }

    /// As [`Self::new`], for a thread that acquires many small permits: once blocked, it goes on
    /// when a quarter of the capacity is free, so it is woken once for several permits.
    pub fn in_batches(capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            capacity,
            free_to_wake: capacity / 4,
            ..Self::default()
        })
    }

    fn permit(self: &Arc<Self>, amount: usize) -> Permit {
        Permit {
            semaphore: Some(self.clone()),
            amount,
        }
    }

    /// Acquires a permit. Without capacity, or while others wait, sets `waiter`: the caller tries
    /// again with it, for the same amount.
    pub(crate) fn try_acquire(
        self: &Arc<Self>,
        waiter: &mut Option<Waiter>,
        amount: usize,
    ) -> Option<Permit> {
        let mut state = self.state.lock();
        let is_next = match waiter {
            Some(waiter) => state.is_first(waiter.number),
            None => state.waiters.is_empty(),
        };
        if is_next && state.fits(amount, self.capacity) {
            state.in_flight += amount;
            drop(state);
            *waiter = None;
            return Some(self.permit(amount));
        }
        if waiter.is_none() {
            state.next_number += 1;
            let number = state.next_number;
            state.waiters.push_back(Position {
                number,
                thread: None,
            });
            *waiter = Some(Waiter {
                semaphore: self.clone(),
                number,
            });
        }
        None
    }

    /// Acquires a permit; blocks until there is capacity.
    pub fn acquire(self: &Arc<Self>, amount: usize) -> Permit {
        let mut waiter = None;
        if let Some(permit) = self.try_acquire(&mut waiter, amount) {
            return permit;
        }
        // From here on a release unparks this thread. An earlier one shows at the next try.
        if let Some(waiter) = &waiter {
            let mut state = self.state.lock();
            for position in &mut state.waiters {
                if position.number == waiter.number {
                    position.thread = Some(std::thread::current());
                }
            }
        }
        loop {
            if let Some(permit) = self.try_acquire(&mut waiter, amount) {
                return permit;
            }
            std::thread::park();
        }
    }

    /// Acquires a permit even without capacity, for callers that have checked the capacity before.
    pub(crate) fn acquire_anyway(self: &Arc<Self>, amount: usize) -> Permit {
        self.state.lock().in_flight += amount;
        self.permit(amount)
    }

    /// The thread to unpark: that of the first waiter, when enough is free. Only the first,
    /// since each later waiter waits for it.
    fn thread_to_wake<'s>(&self, state: &'s State) -> Option<&'s Thread> {
        let free = self.capacity.saturating_sub(state.in_flight);
        if free < self.free_to_wake {
            return None;
        }
        state.waiters.front()?.thread.as_ref()
    }

    /// Whether less than the capacity is in flight.
    pub(crate) fn has_capacity(&self) -> bool {
        self.free() > 0
    }

    /// Whether less than half of the capacity is in flight.
    pub(crate) fn is_half_free(&self) -> bool {
        self.free() > self.capacity / 2
    }

    /// The capacity that is left.
    fn free(&self) -> usize {
        self.capacity.saturating_sub(self.state.lock().in_flight)
    }

    /// Returns whether more than `amount` is free. If not, wakes `waker` once, as soon as a permit
    /// is released and there is capacity.
    pub(crate) fn poll_more_free_than(&self, amount: usize, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        let free = self.capacity.saturating_sub(state.in_flight);
        if free > amount {
            return true;
        }
        state.waker = Some(waker.clone());
        false
    }

    /// Whether anybody waits for a permit.
    pub(crate) fn is_contended(&self) -> bool {
        let state = self.state.lock();
        state.waker.is_some() || !state.waiters.is_empty()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut state = self.semaphore.state.lock();
        state
            .waiters
            .retain(|position| position.number != self.number);
        // The next waiter may fit as well.
        if let Some(thread) = self.semaphore.thread_to_wake(&state) {
            thread.unpark();
        }
    }
}

impl Permit {
    pub(crate) fn amount(&self) -> usize {
        self.amount
    }

    /// Returns whether others wait for a permit of the same semaphore.
    pub(crate) fn is_contended(&self) -> bool {
        match &self.semaphore {
            Some(semaphore) => semaphore.is_contended(),
            None => false,
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(semaphore) = &self.semaphore else {
            return; // A permit of no semaphore holds nothing.
        };
        let mut state = semaphore.state.lock();
        state.in_flight -= self.amount;
        if let Some(thread) = semaphore.thread_to_wake(&state) {
            thread.unpark();
        }
        if state.in_flight >= semaphore.capacity {
            return; // Still too much is in flight.
        }
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// What tests of other files and crates look at.
#[cfg(debug_assertions)]
impl Semaphore {
    /// The amount in flight.
    pub fn in_flight(&self) -> usize {
        self.state.lock().in_flight
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::tests::Count;
    use crossbeam_channel::{Receiver, unbounded};
    use std::time::{Duration, Instant};

    const LIMIT: Duration = Duration::from_secs(180);

    /// Acquires `amount` on a thread of its own, which is blocked when this returns; the permit is
    /// received once it is acquired.
    fn blocked(semaphore: &Arc<Semaphore>, amount: usize) -> Receiver<Permit> {
        let (sender, receiver) = unbounded();
        let own = semaphore.clone();
        let before = semaphore.state.lock().waiters.len();
        std::thread::spawn(move || sender.send(own.acquire(amount)));
        let begin = Instant::now();
        while semaphore.state.lock().waiters.len() == before {
            assert!(begin.elapsed() < LIMIT);
            std::thread::yield_now();
        }
        receiver
    }

    #[test]
    fn large_permit_is_not_overtaken_by_smaller_ones() {
        let semaphore = Semaphore::new(10);
        drop(semaphore.acquire(100));
        let first = semaphore.acquire(5);
        let largest = blocked(&semaphore, 11);
        let fits = blocked(&semaphore, 1);
        assert!(first.is_contended() && largest.try_recv().is_err() && fits.try_recv().is_err());
        drop(first);
        let largest = largest.recv_timeout(LIMIT).unwrap();
        assert!(fits.try_recv().is_err());
        drop(largest);
        drop(fits.recv_timeout(LIMIT).unwrap());
        assert_eq!(semaphore.in_flight(), 0);
        assert!(!semaphore.is_contended());
    }

    #[test]
    fn waiter_keeps_its_position_until_dropped() {
        let semaphore = Semaphore::new(10);
        let first = semaphore.acquire(10);
        let (mut second, mut third) = (None, None);
        assert!(semaphore.try_acquire(&mut second, 1).is_none());
        assert!(semaphore.try_acquire(&mut third, 1).is_none());
        drop(first);
        assert!(
            semaphore.try_acquire(&mut third, 1).is_none(),
            "it came later"
        );
        assert!(
            semaphore.try_acquire(&mut None, 1).is_none(),
            "and so did this one"
        );
        second = None;
        let permit = semaphore.try_acquire(&mut third, 1).unwrap();
        assert!(second.is_none() && third.is_none() && !permit.is_contended());
    }

    #[test]
    fn blocked_thread_goes_on_when_a_quarter_is_free() {
        let semaphore = Semaphore::in_batches(8);
        let mut permits: Vec<Permit> = (0..8).map(|_| semaphore.acquire(1)).collect();
        let next = blocked(&semaphore, 1);
        let wakes = |in_flight| {
            let position = Position {
                number: 0,
                thread: Some(std::thread::current()),
            };
            let state = State {
                in_flight,
                waiters: VecDeque::from([position]),
                ..State::default()
            };
            semaphore.thread_to_wake(&state).is_some()
        };
        assert!(!wakes(7) && wakes(6));
        permits.truncate(6);
        drop(next.recv_timeout(LIMIT).unwrap());
    }

    #[test]
    fn waker_is_woken_once_when_capacity_is_released() {
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let semaphore = Semaphore::new(10);
        let small = semaphore.acquire_anyway(1);
        assert!(semaphore.is_half_free() && !semaphore.is_contended());
        let (large, rest) = (semaphore.acquire_anyway(20), semaphore.acquire_anyway(10));
        assert!(!semaphore.has_capacity() && !semaphore.is_half_free());
        assert!(!semaphore.poll_more_free_than(0, &waker) && semaphore.is_contended());
        drop((small, large));
        assert_eq!(count.woken(), 0, "there is no capacity yet");
        assert!(semaphore.is_contended());
        drop(rest);
        assert_eq!(count.woken(), 1);
        assert!(!semaphore.is_contended());
        assert!(semaphore.poll_more_free_than(9, &waker));
        assert!(!semaphore.poll_more_free_than(10, &waker));
        drop(semaphore.acquire_anyway(1));
        assert_eq!(count.woken(), 1);
        drop(semaphore.acquire_anyway(1));
        assert_eq!(count.woken(), 0);
    }
}
