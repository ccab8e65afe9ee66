//! Bounds what happens at the same time, so that a boot does not thrash a small machine: starts,
//! preparations of starts (only on cores that starts leave free), and containers that are
//! initialised and wait.
//!
//! Thread: shared by all `wl:<name>`. A slot that comes back goes to the control loop that has
//! waited longest and wakes no other one: with a thousand workloads that would be a million
//! wake-ups.

use ankaios_platform::sync::Mutex;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// What a slot is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// A start under way.
    Start,
    /// A preparation under way: none begins while a start waits, or starts and preparations occupy
    /// all cores.
    Prepare,
    /// A container that is initialised, or is going to be, until it is started or removed.
    Initialised,
}

/// Wakes a control loop; does not wait.
type WakeLoop = Box<dyn Fn() + Send>;

const USES: [Use; 3] = [Use::Start, Use::Prepare, Use::Initialised];

/// The free slots of all uses.
#[derive(Clone)]
pub struct StartSlots {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    /// By use: most starts, cores, most initialised containers.
    limits: [usize; 3],
    /// The numbers of the requests that have a slot.
    taken: [BTreeSet<u64>; 3],
    /// Those that wait for one, with what wakes them. Empty where a slot is free.
    waiting: [VecDeque<(u64, WakeLoop)>; 3],
    requests: u64,
}

/// A place in the queue for a slot, and then the slot; given up when dropped.
pub(crate) struct SlotRequest {
    shared: Arc<Mutex<Shared>>,
    of: Use,
    number: u64,
}

impl StartSlots {
    /// At most `starts` at the same time; at least one, or nothing would ever start.
    pub fn new(starts: usize, cores: usize, initialised_max: usize) -> Self {
        let limits = [starts.max(1), cores, initialised_max];
        let shared = Shared {
            limits,
            taken: Default::default(),
            waiting: Default::default(),
            requests: 0,
        };
        Self {
            shared: Arc::new(Mutex::new(shared)),
        }
    }

    /// Requests a slot; `wake` is called when it is given.
    pub(crate) fn request(&self, of: Use, wake: WakeLoop) -> SlotRequest {
        let mut shared = self.shared.lock();
        shared.requests += 1;
        let number = shared.requests;
        shared.waiting[of as usize].push_back((number, wake));
        shared.serve();
        SlotRequest {
            shared: self.shared.clone(),
            of,
            number,
        }
    }
}

impl Shared {
    fn is_free(&self, of: Use) -> bool {
        let [starts, preparations, _] = self.taken.each_ref().map(BTreeSet::len);
        let limit = self.limits[of as usize];
        match of {
            Use::Prepare => {
                self.waiting[Use::Start as usize].is_empty() && starts + preparations < limit
            }
            Use::Start | Use::Initialised => self.taken[of as usize].len() < limit,
        }
    }

    /// Gives what is free to who waits for it.
    fn serve(&mut self) {
        for of in USES {
            while self.is_free(of)
                && let Some((number, wake)) = self.waiting[of as usize].pop_front()
            {
                self.taken[of as usize].insert(number);
                wake();
            }
        }
    }
}

impl SlotRequest {
    /// Whether it has the slot.
    pub(crate) fn is_given(&self) -> bool {
        self.shared.lock().taken[self.of as usize].contains(&self.number)
    }
}

impl Drop for SlotRequest {
    fn drop(&mut self) {
        let (mut shared, of) = (self.shared.lock(), self.of as usize);
        shared.taken[of].remove(&self.number);
        shared.waiting[of].retain(|(number, _)| *number != self.number);
        shared.serve();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl StartSlots {
        /// How many starts are free.
        pub(crate) fn free(&self) -> usize {
            let shared = self.shared.lock();
            shared.limits[Use::Start as usize] - shared.taken[Use::Start as usize].len()
        }
    }

    impl StartSlots {
        /// A slot if one is free now.
        pub(crate) fn try_take(&self, of: Use) -> Option<SlotRequest> {
            Some(self.request(of, Box::new(|| ()))).filter(SlotRequest::is_given)
        }
    }

    fn request(slots: &StartSlots) -> SlotRequest {
        slots.request(Use::Start, Box::new(|| ()))
    }

    #[test]
    fn no_more_slots_are_taken_than_there_are_and_each_comes_back() {
        for count in [1, 4] {
            let slots = StartSlots::new(count, 8, 8);
            let mut taken: Vec<SlotRequest> =
                std::iter::from_fn(|| slots.try_take(Use::Start)).collect();
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
        let mut taken = vec![request(&slots), request(&slots)];
        let woken = Arc::new(Mutex::new(Vec::new()));
        let wait = |index: usize| {
            let woken = woken.clone();
            slots.request(Use::Start, Box::new(move || woken.lock().push(index)))
        };
        let mut waiting: Vec<SlotRequest> = (0..5).map(wait).collect();
        let with_slot =
            |waiting: &[SlotRequest]| waiting.iter().filter(|request| request.is_given()).count();
        assert_eq!(with_slot(&waiting), 0);
        taken.pop();
        assert_eq!((with_slot(&waiting), woken.lock().clone()), (1, vec![0]));
        assert!(slots.try_take(Use::Start).is_none(), "nobody overtakes");
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
        let prepare = || slots.request(Use::Prepare, Box::new(|| ()));
        let first = prepare();
        let start = slots.try_take(Use::Start).unwrap();
        let [second, third] = [prepare(), prepare()];
        assert!(!second.is_given(), "both cores are taken");
        drop(first);
        assert_eq!(
            (second.is_given(), third.is_given()),
            (true, false),
            "who waits longest is next"
        );
        let other = slots.try_take(Use::Start).unwrap();
        let waiting = request(&slots);
        drop(second);
        assert!(!third.is_given() && !waiting.is_given());
        drop(start);
        assert!(!third.is_given() && waiting.is_given(), "starts come first");
        drop((other, waiting));
        assert!(third.is_given());
        assert!(StartSlots::new(2, 0, 1).try_take(Use::Prepare).is_none());
    }

    #[test]
    fn a_preparation_begins_when_a_start_is_not_waited_for_any_more() {
        let slots = StartSlots::new(1, 8, 8);
        let held = slots.try_take(Use::Start).unwrap();
        let start = request(&slots);
        let preparation = slots.request(Use::Prepare, Box::new(|| ()));
        assert!(!preparation.is_given());
        drop(start);
        assert!(preparation.is_given());
        drop(held);
    }

    #[test]
    fn a_slot_for_who_does_not_wait_any_more_goes_to_the_next_one() {
        let slots = StartSlots::new(1, 8, 8);
        let taken = slots.try_take(Use::Start).unwrap();
        let [first, second, third] = [request(&slots), request(&slots), request(&slots)];
        drop(second);
        drop(taken);
        drop(first); // It has got the slot by now.
        assert!(third.is_given());
        drop(third);
        assert_eq!((slots.free(), slots.shared.lock().waiting[0].len()), (1, 0));
    }
}
