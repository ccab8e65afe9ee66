//! Bounds how many containers are created at the same time, so that a boot does not thrash a small machine.
//!
//! Thread: shared by all `wl:<name>`; nobody owns it, a free slot is a token in a channel.

use crossbeam_channel::{Receiver, Sender, bounded};

/// The free slots (DESIGN section 10, `max_parallel_starts`).
#[derive(Debug, Clone)]
pub struct StartSlots {
    free: Receiver<()>,
    back: Sender<()>,
}

/// The right to create one container; given back when dropped.
#[derive(Debug)]
pub struct StartSlot {
    back: Sender<()>,
}

impl StartSlots {
    /// `count` free slots; at least one, or nothing would ever start.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let count = count.max(1);
        let (back, free) = bounded(count);
        for _ in 0..count {
            let _ = back.try_send(()); // There is room for exactly `count`.
        }
        Self { free, back }
    }

    /// A slot if one is free now.
    #[must_use]
    pub fn try_take(&self) -> Option<StartSlot> {
        self.free.try_recv().ok().map(|()| StartSlot { back: self.back.clone() })
    }

    /// Whether something is being created.
    #[must_use]
    pub fn in_use(&self) -> bool {
        !self.free.is_full()
    }

    /// Ready when a slot is free. Only for waiting: take the slot with [`Self::try_take`].
    #[must_use]
    pub fn free(&self) -> &Receiver<()> {
        &self.free
    }
}

impl Drop for StartSlot {
    fn drop(&mut self) {
        let _ = self.back.try_send(()); // Never full: each slot comes back once.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_slots_are_taken_than_there_are_and_each_comes_back() {
        for count in [1, 4] {
            let slots = StartSlots::new(count);
            assert!(!slots.in_use());
            let mut taken: Vec<StartSlot> = std::iter::from_fn(|| slots.try_take()).collect();
            assert_eq!((taken.len(), slots.in_use()), (count, true));
            taken.pop();
            assert_eq!(slots.free().len(), 1);
            assert!(slots.try_take().is_some());
        }
        assert!(StartSlots::new(0).try_take().is_some());
    }
}
