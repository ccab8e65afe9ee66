//! Bounds the number of starts, preparations and initialised containers at the same time, so that a
//! boot does not overload a small machine. Preparations use only cores that starts leave free.
//!
//! Thread: shared by all `wl:<name>`. A slot that is given back wakes only the control loop that
//! has waited longest. With a thousand workloads, waking all of them each time would be a million
//! wake-ups.

use ankaios_platform::sync::Mutex;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// The use of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotUse {
    /// A start under way.
    Start,
    /// A preparation under way. None begins while a start waits for a slot, or while starts and
    /// preparations use all cores.
    Prepare,
    /// A container that is initialised, or is being initialised, until it is started or removed.
    Initialised,
}

/// The order in which free slots are granted.
const USES: [SlotUse; 3] = [SlotUse::Start, SlotUse::Prepare, SlotUse::Initialised];

/// The slots of all uses.
#[derive(Clone)]
pub struct StartSlots {
    queues: Arc<Mutex<SlotQueues>>,
}

struct SlotQueues {
    starts: SlotQueue,
    preparations: SlotQueue,
    initialised: SlotQueue,
    /// The number of requests until now.
    requests: u64,
}

/// The slots of one use, and the requests for them.
struct SlotQueue {
    limit: usize,
    /// The numbers of the requests that have a slot.
    granted: BTreeSet<u64>,
    /// The requests that wait for a slot, the oldest first.
    waiting: VecDeque<WaitingRequest>,
}

struct WaitingRequest {
    number: u64,
    /// Wakes the control loop; never waits itself.
    wake: Box<dyn Fn() + Send>,
}

/// A request that waits for a slot or has one. Dropping it gives up either.
pub(crate) struct SlotRequest {
    queues: Arc<Mutex<SlotQueues>>,
    of: SlotUse,
    number: u64,
}

impl StartSlots {
    /// Returns slots for `starts` starts at the same time, for at least one. Starts and
    /// preparations together use the `cores`.
    pub fn new(starts: usize, cores: usize, initialised_max: usize) -> Self {
        let queues = SlotQueues {
            starts: SlotQueue::new(starts.max(1)),
            preparations: SlotQueue::new(cores),
            initialised: SlotQueue::new(initialised_max),
            requests: 0,
        };
        Self {
            queues: Arc::new(Mutex::new(queues)),
        }
    }

    /// Requests a slot. When it is granted, now or later, `wake` is called.
    pub(crate) fn request(&self, of: SlotUse, wake: Box<dyn Fn() + Send>) -> SlotRequest {
        let mut queues = self.queues.lock();
        queues.requests += 1;
        let number = queues.requests;
        let waiting = WaitingRequest { number, wake };
        queues.queue_mut(of).waiting.push_back(waiting);
        queues.grant_free_slots();
        SlotRequest {
            queues: self.queues.clone(),
            of,
            number,
        }
    }
}

impl SlotQueue {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            granted: BTreeSet::new(),
            waiting: VecDeque::new(),
        }
    }
}

impl SlotQueues {
    fn queue(&self, of: SlotUse) -> &SlotQueue {
        match of {
            SlotUse::Start => &self.starts,
            SlotUse::Prepare => &self.preparations,
            SlotUse::Initialised => &self.initialised,
        }
    }

    fn queue_mut(&mut self, of: SlotUse) -> &mut SlotQueue {
        match of {
            SlotUse::Start => &mut self.starts,
            SlotUse::Prepare => &mut self.preparations,
            SlotUse::Initialised => &mut self.initialised,
        }
    }

    /// Whether a slot of this use can be granted now. A preparation must leave cores to starts.
    fn has_free_slot(&self, of: SlotUse) -> bool {
        let queue = self.queue(of);
        let used = match of {
            SlotUse::Prepare if !self.starts.waiting.is_empty() => return false,
            SlotUse::Prepare => self.starts.granted.len() + queue.granted.len(),
            SlotUse::Start | SlotUse::Initialised => queue.granted.len(),
        };
        used < queue.limit
    }

    /// Grants free slots to the oldest requests, and wakes their control loops.
    fn grant_free_slots(&mut self) {
        for of in USES {
            while self.has_free_slot(of)
                && let Some(request) = self.queue_mut(of).waiting.pop_front()
            {
                self.queue_mut(of).granted.insert(request.number);
                (request.wake)();
            }
        }
    }
}

impl SlotRequest {
    /// Whether it has the slot.
    pub(crate) fn is_granted(&self) -> bool {
        let queues = self.queues.lock();
        queues.queue(self.of).granted.contains(&self.number)
    }
}

impl Drop for SlotRequest {
    /// Gives the slot back, or ends the wait for it.
    fn drop(&mut self) {
        let mut queues = self.queues.lock();
        let queue = queues.queue_mut(self.of);
        queue.granted.remove(&self.number);
        queue
            .waiting
            .retain(|waiting| waiting.number != self.number);
        queues.grant_free_slots();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl StartSlots {
        /// How many starts are free.
        pub(crate) fn free(&self) -> usize {
            let queues = self.queues.lock();
            queues.starts.limit - queues.starts.granted.len()
        }
    }

    impl StartSlots {
        /// A slot if one is free now.
        pub(crate) fn try_take(&self, of: SlotUse) -> Option<SlotRequest> {
            Some(self.request(of, Box::new(|| ()))).filter(SlotRequest::is_granted)
        }
    }

    fn request(slots: &StartSlots) -> SlotRequest {
        slots.request(SlotUse::Start, Box::new(|| ()))
    }

    #[test]
    fn no_more_slots_are_taken_than_there_are_and_each_comes_back() {
        for count in [1, 4] {
            let slots = StartSlots::new(count, 8, 8);
            let mut taken: Vec<SlotRequest> =
                std::iter::from_fn(|| slots.try_take(SlotUse::Start)).collect();
            assert_eq!((taken.len(), slots.free()), (count, 0));
            taken.pop();
            assert_eq!(slots.free(), 1);
            assert!(slots.try_take(SlotUse::Start).is_some());
        }
        assert!(StartSlots::new(0, 8, 8).try_take(SlotUse::Start).is_some());
    }

    #[test]
    fn returned_slot_wakes_the_longest_waiting_loop_only() {
        let slots = StartSlots::new(2, 2, 1);
        let mut taken = vec![request(&slots), request(&slots)];
        let woken = Arc::new(Mutex::new(Vec::new()));
        let wait = |index: usize| {
            let woken = woken.clone();
            slots.request(SlotUse::Start, Box::new(move || woken.lock().push(index)))
        };
        let mut waiting: Vec<SlotRequest> = (0..5).map(wait).collect();
        let with_slot = |waiting: &[SlotRequest]| {
            waiting
                .iter()
                .filter(|request| request.is_granted())
                .count()
        };
        assert_eq!(with_slot(&waiting), 0);
        taken.pop();
        assert_eq!((with_slot(&waiting), woken.lock().clone()), (1, vec![0]));
        assert!(slots.try_take(SlotUse::Start).is_none(), "nobody overtakes");
        taken.pop();
        assert_eq!(
            (with_slot(&waiting), slots.free(), woken.lock().clone()),
            (2, 0, vec![0, 1])
        );
        drop(waiting.remove(0));
        assert_eq!(
            (with_slot(&waiting), woken.lock().clone()),
            (2, vec![0, 1, 2])
        );
    }

    #[test]
    fn preparations_use_what_starts_leave_of_the_cores() {
        let slots = StartSlots::new(2, 2, 1);
        let prepare = || slots.request(SlotUse::Prepare, Box::new(|| ()));
        let first = prepare();
        let start = slots.try_take(SlotUse::Start).unwrap();
        let [second, third] = [prepare(), prepare()];
        assert!(!second.is_granted(), "both cores are taken");
        drop(first);
        assert_eq!(
            (second.is_granted(), third.is_granted()),
            (true, false),
            "who waits longest is next"
        );
        let other = slots.try_take(SlotUse::Start).unwrap();
        let waiting = request(&slots);
        drop(second);
        assert!(!third.is_granted() && !waiting.is_granted());
        drop(start);
        assert!(
            !third.is_granted() && waiting.is_granted(),
            "starts come first"
        );
        drop((other, waiting));
        assert!(third.is_granted());
        assert!(
            StartSlots::new(2, 0, 1)
                .try_take(SlotUse::Prepare)
                .is_none()
        );
    }

    #[test]
    fn a_preparation_begins_when_a_start_is_not_waited_for_any_more() {
        let slots = StartSlots::new(1, 8, 8);
        let held = slots.try_take(SlotUse::Start).unwrap();
        let start = request(&slots);
        let preparation = slots.request(SlotUse::Prepare, Box::new(|| ()));
        assert!(!preparation.is_granted());
        drop(start);
        assert!(preparation.is_granted());
        drop(held);
    }

    #[test]
    fn a_slot_for_who_does_not_wait_any_more_goes_to_the_next_one() {
        let slots = StartSlots::new(1, 8, 8);
        let taken = slots.try_take(SlotUse::Start).unwrap();
        let [first, second, third] = [request(&slots), request(&slots), request(&slots)];
        drop(second);
        drop(taken);
        drop(first); // It has got the slot by now.
        assert!(third.is_granted());
        drop(third);
        assert_eq!(
            (slots.free(), slots.queues.lock().starts.waiting.len()),
            (1, 0)
        );
    }
}
