//! Bytes, or places, that many users share: each takes a share and gives it back by dropping it.
//! Whoever finds no room waits in the order of arrival, so that the largest share is not overtaken
//! for ever.
//!
//! Four things are bounded by it: large messages from their first byte until they are served
//! (frame_gate.rs, stream.rs), the messages of one stream that wait for the server, answers that
//! wait for all peers, and what waits for them that nobody asked for (outbox.rs).
//!
//! Thread: any. Owns: the count, and who waits.

use ankaios_platform::sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

/// An amount that is shared.
#[derive(Debug, Default)]
pub struct Budget {
    max: usize,
    state: Mutex<State>,
    /// Something was given back while somebody waits.
    freed: Condvar,
    /// Whose turn it is to be decoded.
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    /// Shares of messages that were decoded.
    decoded: usize,
    /// Threads that wait.
    waiting: usize,
    /// Numbers of those who wait, in the order of arrival.
    queue: VecDeque<u64>,
    next: u64,
    /// Woken when less than all is taken.
    waker: Option<Waker>,
}

/// A place among those who wait; given up when dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    budget: Arc<Budget>,
    number: u64,
}

/// What one user has taken; dropping it gives it back. The default takes nothing.
#[derive(Debug, Default)]
pub struct Share {
    budget: Option<Arc<Budget>>,
    amount: usize,
    is_decoded: bool,
}

impl Budget {
    /// With room for `max`; a single share may be larger.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            ..Self::default()
        })
    }

    fn fits(&self, state: &State, amount: usize) -> bool {
        state.taken == 0 || state.taken.saturating_add(amount) <= self.max
    }

    /// Takes a share, or gives a `ticket` with which to try again for the same amount.
    pub(crate) fn try_take(
        self: &Arc<Self>,
        ticket: &mut Option<Ticket>,
        amount: usize,
    ) -> Option<Share> {
        let mut state = self.state.lock();
        let is_next = match ticket {
            Some(ticket) => state.queue.front() == Some(&ticket.number),
            None => state.queue.is_empty(),
        };
        if is_next && self.fits(&state, amount) {
            state.taken += amount;
            drop(state);
            *ticket = None;
            return Some(Share {
                budget: Some(self.clone()),
                amount,
                is_decoded: false,
            });
        }
        if ticket.is_none() {
            state.next += 1;
            let number = state.next;
            state.queue.push_back(number);
            *ticket = Some(Ticket {
                budget: self.clone(),
                number,
            });
        }
        None
    }

    /// Takes a share; waits for it.
    pub fn take(self: &Arc<Self>, amount: usize) -> Share {
        let mut ticket = None;
        loop {
            if let Some(share) = self.try_take(&mut ticket, amount) {
                return share;
            }
            let number = ticket.as_ref().map(|ticket| ticket.number);
            self.wait_while(|state| {
                state.queue.front().copied() != number || !self.fits(state, amount)
            });
        }
    }

    fn wait_while(&self, must_wait: impl Fn(&State) -> bool) {
        let mut state = self.state.lock();
        state.waiting += 1;
        self.freed.wait_while(&mut state, |state| must_wait(state));
        state.waiting -= 1;
    }

    /// Decodes a message, which grows `share` to what it takes then. One message is decoded at a
    /// time, and only while there is room or no other is decoded; so the share of one that is not
    /// decoded keeps none of those waiting.
    pub(crate) fn decode<T>(
        self: &Arc<Self>,
        share: &mut Share,
        decode: impl FnOnce() -> (T, usize),
    ) -> T {
        let _turn = self.turn.lock();
        self.wait_while(|state| state.decoded > 0 && state.taken >= self.max);
        let (decoded, amount) = decode();
        self.state.lock().decoded += 1;
        *share = self.overdraw(amount);
        share.is_decoded = true;
        decoded
    }

    /// Takes a share whether there is room or not; for users that have checked [`Self::has_room`]
    /// before.
    pub(crate) fn overdraw(self: &Arc<Self>, amount: usize) -> Share {
        self.state.lock().taken += amount;
        Share {
            budget: Some(self.clone()),
            amount,
            is_decoded: false,
        }
    }

    /// Whether less than all is taken.
    pub(crate) fn has_room(&self) -> bool {
        self.state.lock().taken < self.max
    }

    /// Whether less than `max` is taken. If not, `waker` is woken as soon as less than all is.
    pub(crate) fn has_room_below(&self, max: usize, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        let has_room = state.taken < max;
        if !has_room {
            state.waker = Some(waker.clone());
        }
        has_room
    }

    /// Whether somebody waits.
    pub(crate) fn is_wanted(&self) -> bool {
        let state = self.state.lock();
        state.waker.is_some() || !state.queue.is_empty() || state.waiting > 0
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.budget.state.lock();
        state.queue.retain(|number| *number != self.number);
        if state.waiting > 0 {
            self.budget.freed.notify_all(); // The next one may fit as well.
        }
    }
}

impl Share {
    pub(crate) fn amount(&self) -> usize {
        self.amount
    }

    /// Whether others wait for it.
    pub(crate) fn is_wanted(&self) -> bool {
        self.budget
            .as_ref()
            .is_some_and(|budget| budget.is_wanted())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Some(budget) = &self.budget else { return };
        let mut state = budget.state.lock();
        state.taken -= self.amount;
        state.decoded -= usize::from(self.is_decoded);
        if state.waiting > 0 {
            budget.freed.notify_all();
        }
        let waker = if state.taken < budget.max {
            state.waker.take()
        } else {
            None
        };
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// What tests of other files and crates look at.
#[cfg(debug_assertions)]
impl Budget {
    /// How much is taken.
    pub fn taken(&self) -> usize {
        self.state.lock().taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::tests::Count;
    use crossbeam_channel::{Receiver, unbounded};
    use std::time::{Duration, Instant};

    const LIMIT: Duration = Duration::from_secs(180);

    /// Takes `amount` on a thread of its own, which waits before this returns; what is received is
    /// the share.
    fn waiting(budget: &Arc<Budget>, amount: usize) -> Receiver<Share> {
        let (got, gets) = unbounded();
        let (own, before) = (budget.clone(), budget.state.lock().queue.len());
        std::thread::spawn(move || got.send(own.take(amount)));
        let begin = Instant::now();
        while budget.state.lock().queue.len() == before {
            assert!(begin.elapsed() < LIMIT);
            std::thread::yield_now();
        }
        gets
    }

    #[test]
    fn a_single_share_may_be_larger_and_the_largest_is_not_overtaken_by_others_that_would_fit() {
        let budget = Budget::new(10);
        drop(budget.take(100));
        let first = budget.take(5);
        let largest = waiting(&budget, 11);
        let fits = waiting(&budget, 1);
        assert!(first.is_wanted() && largest.try_recv().is_err() && fits.try_recv().is_err());
        drop(first);
        let largest = largest.recv_timeout(LIMIT).unwrap();
        assert!(fits.try_recv().is_err());
        drop(largest);
        drop(fits.recv_timeout(LIMIT).unwrap());
        assert_eq!((budget.taken(), budget.is_wanted()), (0, false));
    }

    #[test]
    fn a_ticket_keeps_a_place_among_those_who_wait_until_it_is_dropped() {
        let budget = Budget::new(10);
        let first = budget.take(10);
        let (mut second, mut third) = (None, None);
        assert!(
            budget.try_take(&mut second, 1).is_none() && budget.try_take(&mut third, 1).is_none()
        );
        drop(first);
        assert!(budget.try_take(&mut third, 1).is_none(), "it came later");
        assert!(
            budget.try_take(&mut None, 1).is_none(),
            "and so did this one"
        );
        second = None;
        let share = budget.try_take(&mut third, 1).unwrap();
        assert!(second.is_none() && third.is_none() && !share.is_wanted());
    }

    #[test]
    fn who_left_a_waker_is_woken_once_when_what_was_overdrawn_is_given_back() {
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let budget = Budget::new(10);
        let small = budget.overdraw(1);
        assert!(
            budget.has_room_below(10, &waker) && !budget.is_wanted(),
            "nobody has to wait"
        );
        let (large, rest) = (budget.overdraw(20), budget.overdraw(10));
        assert!(!budget.has_room_below(20, &waker) && budget.is_wanted() && !budget.has_room());
        drop((small, large));
        assert!(budget.has_room_below(20, &waker), "with a higher bound");
        assert_eq!((count.woken(), budget.is_wanted()), (0, true));
        drop(rest);
        assert_eq!(
            (count.woken(), budget.is_wanted(), budget.taken()),
            (1, false, 0)
        );
    }

    #[test]
    fn what_is_decoded_takes_its_share_and_keeps_those_who_come_later_waiting_but_not_itself() {
        let budget = Budget::new(10);
        let arrived = [4, 6].map(|amount| budget.take(amount));
        let [mut first, mut second] = arrived;
        assert_eq!(budget.decode(&mut first, || ("decoded", 100)), "decoded");
        assert_eq!((first.amount(), budget.taken()), (100, 106));
        let (own, (got, gets)) = (budget.clone(), unbounded());
        std::thread::spawn(move || {
            own.decode(&mut second, || ((), 1));
            got.send(second)
        });
        assert!(gets.recv_timeout(Duration::from_millis(50)).is_err() && budget.is_wanted());
        drop(first);
        let second = gets.recv_timeout(LIMIT).unwrap();
        assert_eq!(budget.taken(), 1);
        let mut third = Share::default();
        budget.decode(&mut third, || ((), 0));
        drop((second, third));
        assert_eq!((budget.taken(), budget.state.lock().decoded), (0, 0));
    }
}
