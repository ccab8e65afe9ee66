//! Bounds what happens at the same time, so that a boot does not thrash a small machine: starts, preparations of starts
//! (only on cores that starts leave free), and containers that are initialised and wait.
//!
//! Thread: shared by all `wl:<name>`. A slot that comes back goes to the control loop that has waited longest and wakes no
//! other one: with a thousand workloads that would be a million wake-ups.

use crate::platform::sync::Mutex;
use crossbeam_channel::{Receiver, Sender, bounded};
use std::collections::VecDeque;
use std::sync::Arc;

/// What a slot is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// A start under way.
    Start,
    /// A preparation under way: none begins while a start waits, or starts and preparations occupy all cores.
    Prepare,
    /// A container that is initialised, or is going to be, until it is started or removed.
    Initialised,
}

const USES: [Use; 3] = [Use::Start, Use::Prepare, Use::Initialised];

/// The free slots of all uses.
#[derive(Clone)]
pub struct StartSlots {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    /// By use: most starts, cores, most initialised containers.
    limits: [usize; 3],
    taken: [usize; 3],
    /// Empty where a slot is free.
    waiting: [VecDeque<Waiting>; 3],
    requests: u64,
}

struct Waiting {
    number: u64,
    give: Sender<StartSlot>,
    wake: Box<dyn Fn() + Send>,
}

/// A right, given back when dropped.
pub struct StartSlot {
    shared: Arc<Mutex<Shared>>,
    of: Use,
}

/// A place in the queue for a slot, and then the slot; given up when dropped.
pub struct SlotRequest {
    shared: Arc<Mutex<Shared>>,
    of: Use,
    number: u64,
    given: Receiver<StartSlot>,
    slot: Option<StartSlot>,
}

impl StartSlots {
    /// At most `starts` at the same time; at least one, or nothing would ever start.
    pub fn new(starts: usize, cores: usize, initialised_max: usize) -> Self {
        let limits = [starts.max(1), cores, initialised_max];
        let shared = Shared { limits, taken: [0; 3], waiting: Default::default(), requests: 0 };
        Self { shared: Arc::new(Mutex::new(shared)) }
    }

    /// Requests a slot; `wake` is called when it can be taken.
    pub fn request(&self, of: Use, wake: Box<dyn Fn() + Send>) -> SlotRequest {
        let (give, given) = bounded(1);
        let number = {
            let mut shared = self.shared.lock();
            shared.requests += 1;
            let number = shared.requests;
            shared.waiting[of as usize].push_back(Waiting { number, give, wake });
            number
        };
        serve(&self.shared);
        SlotRequest { shared: self.shared.clone(), of, number, given, slot: None }
    }
}

impl Shared {
    fn is_free(&self, of: Use) -> bool {
        let [starts, preparations, _] = self.taken;
        let limit = self.limits[of as usize];
        match of {
            Use::Prepare => self.waiting[Use::Start as usize].is_empty() && starts + preparations < limit,
            Use::Start | Use::Initialised => self.taken[of as usize] < limit,
        }
    }
}

/// Gives what is free to who waits for it.
fn serve(shared: &Arc<Mutex<Shared>>) {
    let mut refused = Vec::new();
    let mut locked = shared.lock();
    for of in USES {
        while locked.is_free(of)
            && let Some(Waiting { give, wake, .. }) = locked.waiting[of as usize].pop_front()
        {
            locked.taken[of as usize] += 1;
            refused.extend(give.try_send(StartSlot { shared: shared.clone(), of }).err());
            wake();
        }
    }
    drop(locked);
    drop(refused); // Of requests that were given up just now: the slots go to others.
}

impl SlotRequest {
    /// The slot, once it is free.
    pub fn try_take(&self) -> Option<StartSlot> {
        self.given.try_recv().ok()
    }

    /// Whether it has the slot.
    pub fn is_given(&mut self) -> bool {
        self.slot = self.slot.take().or_else(|| self.try_take());
        self.slot.is_some()
    }
}

impl Drop for SlotRequest {
    fn drop(&mut self) {
        // A slot that has come already goes to the next one when the channel is dropped, after this.
        self.shared.lock().waiting[self.of as usize].retain(|waiting| waiting.number != self.number);
        serve(&self.shared);
    }
}

impl Drop for StartSlot {
    fn drop(&mut self) {
        self.shared.lock().taken[self.of as usize] -= 1;
        serve(&self.shared);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl StartSlots {
        /// How many starts are free.
        pub fn free(&self) -> usize {
            let shared = self.shared.lock();
            shared.limits[Use::Start as usize] - shared.taken[Use::Start as usize]
        }
    }

    impl StartSlots {
        /// A slot if one is free now.
        pub fn try_take(&self, of: Use) -> Option<StartSlot> {
            self.request(of, Box::new(|| ())).try_take()
        }
    }

    fn request(slots: &StartSlots) -> SlotRequest {
        slots.request(Use::Start, Box::new(|| ()))
    }

    #[test]
    fn no_more_slots_are_taken_than_there_are_and_each_comes_back() {
        for count in [1, 4] {
            let slots = StartSlots::new(count, 8, 8);
            let mut taken: Vec<StartSlot> = std::iter::from_fn(|| slots.try_take(Use::Start)).collect();
            assert_eq!((taken.len(), slots.free()), (count, 0));
            taken.pop();
            assert_eq!(slots.free(), 1);
            assert!(slots.try_take(Use::Start).is_some());
        }
        assert!(StartSlots::new(0, 8, 8).try_take(Use::Start).is_some());
    }

    #[test]
    fn a_slot_that_comes_back_wakes_who_waited_longest_and_nobody_else() {
        let slots = StartSlots::new(2, 2, 1);
        let mut held = vec![request(&slots), request(&slots)];
        let mut taken: Vec<StartSlot> = held.drain(..).map(|request| request.try_take().unwrap()).collect();
        let waiting: Vec<SlotRequest> = (0..5).map(|_| request(&slots)).collect();
        let with_slot = || -> Vec<usize> { (0..5).filter(|index| !waiting[*index].given.is_empty()).collect() };
        assert!(with_slot().is_empty());
        taken.pop();
        assert_eq!(with_slot(), [0]);
        assert!(slots.try_take(Use::Start).is_none(), "nobody overtakes");
        taken.pop();
        assert_eq!((with_slot(), slots.free()), (vec![0, 1], 0));
        drop(waiting[0].try_take().unwrap());
        assert_eq!(with_slot(), [1, 2]);
    }

    #[test]
    fn preparations_use_what_starts_leave_of_the_cores() {
        let slots = StartSlots::new(2, 2, 1);
        let prepare = || slots.request(Use::Prepare, Box::new(|| ()));
        let first = prepare().try_take().unwrap();
        let start = slots.try_take(Use::Start).unwrap();
        let [second, third] = [prepare(), prepare()];
        assert!(second.given.is_empty(), "both cores are taken");
        drop(first);
        assert_eq!((second.given.len(), third.given.len()), (1, 0), "who waits longest is next");
        let other = slots.try_take(Use::Start).unwrap();
        let waiting = request(&slots);
        drop(second);
        assert!(third.given.is_empty() && waiting.given.is_empty());
        drop(start);
        assert!(third.given.is_empty() && !waiting.given.is_empty(), "starts come first");
        drop((other, waiting));
        assert!(!third.given.is_empty());
        assert!(StartSlots::new(2, 0, 1).try_take(Use::Prepare).is_none());
    }

    #[test]
    fn a_preparation_begins_when_a_start_is_not_waited_for_any_more() {
        let slots = StartSlots::new(1, 8, 8);
        let held = slots.try_take(Use::Start).unwrap();
        let start = request(&slots);
        let preparation = slots.request(Use::Prepare, Box::new(|| ()));
        assert!(preparation.given.is_empty());
        drop(start);
        assert!(!preparation.given.is_empty());
        drop(held);
    }

    #[test]
    fn a_slot_for_who_does_not_wait_any_more_goes_to_the_next_one() {
        let slots = StartSlots::new(1, 8, 8);
        let taken = slots.try_take(Use::Start).unwrap();
        let [first, second, third] = [request(&slots), request(&slots), request(&slots)];
        drop(second);
        drop(taken);
        drop(first); // It was given the slot and did not take it.
        assert!(!third.given.is_empty());
        drop(third);
        assert_eq!((slots.free(), slots.shared.lock().waiting[0].len()), (1, 0));
    }
}
