//! Bounds how many containers are created at the same time, so that a boot does not thrash a small machine. What is
//! prepared uses only what starts leave of the cores.
//!
//! Thread: shared by all `wl:<name>`, `prep:<name>` and `scheduler`. A slot that comes back goes to the control loop that
//! has waited longest and wakes no other one: with a thousand workloads that would be a million wake-ups.

use crate::platform::sync::Mutex;
use crossbeam_channel::{Receiver, Sender, bounded};
use std::collections::VecDeque;
use std::sync::Arc;

/// The free slots; the setting `max_parallel_starts`.
#[derive(Clone)]
pub struct StartSlots {
    shared: Arc<Mutex<Shared>>,
    count: usize,
}

struct Shared {
    /// None as long as a request waits.
    free: usize,
    /// The requests that get the next ones.
    waiting: VecDeque<Waiting>,
    requests: u64,
    /// Preparations under way.
    preparing: usize,
    /// One was refused; the scheduler is notified as soon as there may be room for it.
    refused: bool,
    room: Option<Sender<()>>,
}

struct Waiting {
    number: u64,
    give: Sender<StartSlot>,
    wake: Box<dyn Fn() + Send>,
}

/// The right to create one container; given back when dropped.
pub struct StartSlot {
    shared: Arc<Mutex<Shared>>,
}

/// The right to prepare one container; given back when dropped.
pub struct PreparationSlot {
    shared: Arc<Mutex<Shared>>,
}

/// A place in the queue for a slot; given up when dropped.
pub struct SlotRequest {
    shared: Arc<Mutex<Shared>>,
    number: u64,
    given: Receiver<StartSlot>,
}

impl StartSlots {
    /// `count` free slots; at least one, or nothing would ever start.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let count = count.max(1);
        let shared =
            Shared { free: count, waiting: VecDeque::new(), requests: 0, preparing: 0, refused: false, room: None };
        Self { shared: Arc::new(Mutex::new(shared)), count }
    }

    /// Becomes ready when [`Self::try_prepare`] may succeed after it was refused.
    pub fn room_for_preparations(&self) -> Receiver<()> {
        let (room, notified) = bounded(1);
        self.shared.lock().room = Some(room);
        notified
    }

    /// The right to prepare one container now: when nobody waits for a start, and starts and preparations under way are
    /// fewer than `cores`.
    #[must_use]
    pub fn try_prepare(&self, cores: usize) -> Option<PreparationSlot> {
        let mut shared = self.shared.lock();
        let under_way = self.count - shared.free + shared.preparing;
        if !shared.waiting.is_empty() || under_way >= cores {
            shared.refused = true;
            return None;
        }
        shared.preparing += 1;
        Some(PreparationSlot { shared: self.shared.clone() })
    }

    /// A slot if one is free now.
    #[must_use]
    pub fn try_take(&self) -> Option<StartSlot> {
        self.take(&mut self.shared.lock())
    }

    fn take(&self, shared: &mut Shared) -> Option<StartSlot> {
        shared.free = shared.free.checked_sub(1)?;
        Some(StartSlot { shared: self.shared.clone() })
    }

    /// Requests a slot; `wake` is called when it can be taken.
    #[must_use]
    pub fn request(&self, wake: Box<dyn Fn() + Send>) -> SlotRequest {
        let (give, given) = bounded(1);
        let mut shared = self.shared.lock();
        let number = shared.requests;
        shared.requests += 1;
        match self.take(&mut shared) {
            Some(slot) => {
                let _ = give.try_send(slot); // There is room for one.
                wake();
            }
            None => shared.waiting.push_back(Waiting { number, give, wake }),
        }
        drop(shared);
        SlotRequest { shared: self.shared.clone(), number, given }
    }

    /// Whether something is being created.
    #[must_use]
    pub fn in_use(&self) -> bool {
        self.free() < self.count
    }

    /// How many are free.
    #[must_use]
    pub fn free(&self) -> usize {
        self.shared.lock().free
    }
}

impl Shared {
    /// There may be room for a preparation.
    fn notify_room(&mut self) {
        if std::mem::take(&mut self.refused) {
            let _ = self.room.as_ref().map(|room| room.try_send(())); // Full: it is notified already.
        }
    }
}

impl Drop for PreparationSlot {
    fn drop(&mut self) {
        let mut shared = self.shared.lock();
        shared.preparing -= 1;
        shared.notify_room();
    }
}

impl SlotRequest {
    /// The slot, once it is free.
    #[must_use]
    pub fn try_take(&self) -> Option<StartSlot> {
        self.given.try_recv().ok()
    }
}

impl Drop for SlotRequest {
    fn drop(&mut self) {
        // A slot that has come already goes to the next one when the channel is dropped, after this.
        let mut shared = self.shared.lock();
        shared.waiting.retain(|waiting| waiting.number != self.number);
        shared.notify_room();
    }
}

impl Drop for StartSlot {
    fn drop(&mut self) {
        let mut shared = self.shared.lock();
        let refused = match shared.waiting.pop_front() {
            Some(Waiting { give, wake, .. }) => {
                let refused = give.try_send(Self { shared: self.shared.clone() }).err();
                wake();
                refused
            }
            None => {
                shared.free += 1;
                shared.notify_room();
                None
            }
        };
        drop(shared);
        drop(refused); // A request has room for one; else it would go to the next one now.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(slots: &StartSlots) -> SlotRequest {
        slots.request(Box::new(|| ()))
    }

    #[test]
    fn no_more_slots_are_taken_than_there_are_and_each_comes_back() {
        for count in [1, 4] {
            let slots = StartSlots::new(count);
            assert!(!slots.in_use());
            let mut taken: Vec<StartSlot> = std::iter::from_fn(|| slots.try_take()).collect();
            assert_eq!((taken.len(), slots.in_use()), (count, true));
            taken.pop();
            assert_eq!(slots.free(), 1);
            assert!(slots.try_take().is_some());
        }
        assert!(StartSlots::new(0).try_take().is_some());
    }

    #[test]
    fn a_slot_that_comes_back_wakes_who_waited_longest_and_nobody_else() {
        let slots = StartSlots::new(2);
        let mut held = vec![request(&slots), request(&slots)];
        let mut taken: Vec<StartSlot> = held.drain(..).map(|request| request.try_take().unwrap()).collect();
        let waiting: Vec<SlotRequest> = (0..5).map(|_| request(&slots)).collect();
        let with_slot = || -> Vec<usize> { (0..5).filter(|index| !waiting[*index].given.is_empty()).collect() };
        assert!(with_slot().is_empty());
        taken.pop();
        assert_eq!(with_slot(), [0]);
        assert!(slots.try_take().is_none(), "nobody overtakes");
        taken.pop();
        assert_eq!((with_slot(), slots.free(), slots.in_use()), (vec![0, 1], 0, true));
        drop(waiting[0].try_take().unwrap());
        assert_eq!(with_slot(), [1, 2]);
    }

    #[test]
    fn preparations_use_what_starts_leave_of_the_cores() {
        let slots = StartSlots::new(2);
        let room = slots.room_for_preparations();
        let first = slots.try_prepare(2).unwrap();
        let start = slots.try_take().unwrap();
        assert!(slots.try_prepare(2).is_none() && room.is_empty());
        drop(first);
        assert!(room.try_recv().is_ok());
        drop(slots.try_prepare(2).unwrap());
        assert!(room.is_empty(), "nobody was refused since");
        let other = slots.try_take().unwrap();
        let waiting = request(&slots);
        assert!(slots.try_prepare(8).is_none(), "somebody waits for a start");
        drop((other, start));
        assert!(slots.try_prepare(8).is_some() && waiting.try_take().is_some());
        let gone = request(&slots);
        let held: Vec<StartSlot> = std::iter::from_fn(|| slots.try_take()).collect();
        assert!(slots.try_prepare(0).is_none());
        drop((gone, held));
        assert!(room.try_recv().is_ok());
    }

    #[test]
    fn a_slot_for_who_does_not_wait_any_more_goes_to_the_next_one() {
        let slots = StartSlots::new(1);
        let taken = slots.try_take().unwrap();
        let [first, second, third] = [request(&slots), request(&slots), request(&slots)];
        drop(second);
        drop(taken);
        drop(first); // It was given the slot and did not take it.
        assert!(!third.given.is_empty());
        drop(third);
        assert_eq!((slots.free(), slots.shared.lock().waiting.len()), (1, 0));
    }
}
