//! What answers of all peers together take in memory, from when they are put until they are sent: so many peers that ask
//! and never read do not fill it, each with what one peer may have.
//!
//! Thread: `server` and `tx` count; whoever gives room back wakes `server`, which waits for no one.

use crate::limits::{ANSWERS_BYTES, FIRST_ANSWERS_BYTES};
use crate::platform::sync::Mutex;
use std::sync::Arc;
use std::task::Waker;

/// What all outboxes share.
#[derive(Debug, Default)]
pub struct AnswerBudget(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    bytes: usize,
    /// Told when there is room again.
    wants_room: Option<Waker>,
}

impl Counts {
    fn has_room(&self) -> bool {
        self.bytes < ANSWERS_BYTES
    }
}

impl AnswerBudget {
    /// Counts an answer; whether there was room is asked before.
    #[must_use]
    pub fn take(self: &Arc<Self>, bytes: usize) -> AnswerRoom {
        self.0.lock().bytes += bytes;
        AnswerRoom { budget: Some(self.clone()), bytes }
    }

    /// Whether there is room for one more answer, however large.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.0.lock().has_room()
    }

    /// The same; if not, `wake` is woken as soon as there is. With `is_first` nothing waits that the same asked before, and
    /// there is room kept for it.
    #[must_use]
    pub fn has_room_or_wakes(&self, is_first: bool, wake: &Waker) -> bool {
        let mut counts = self.0.lock();
        let has_room = counts.has_room() || is_first && counts.bytes < FIRST_ANSWERS_BYTES;
        if !has_room {
            counts.wants_room = Some(wake.clone());
        }
        has_room
    }

    /// Whether somebody waits for room.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.0.lock().wants_room.is_some()
    }
}

/// What one answer takes; dropping it gives that back. The default takes nothing.
#[derive(Debug, Default)]
pub struct AnswerRoom {
    budget: Option<Arc<AnswerBudget>>,
    bytes: usize,
}

impl AnswerRoom {
    /// The answer takes less from now on.
    pub fn shrink_to(&mut self, bytes: usize) {
        let surplus = self.bytes.saturating_sub(bytes);
        self.bytes -= surplus;
        let Some(budget) = self.budget.as_ref().filter(|_| surplus > 0) else { return };
        let mut counts = budget.0.lock();
        counts.bytes -= surplus;
        let waker = if counts.has_room() { counts.wants_room.take() } else { None };
        drop(counts);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Whether it takes anything.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.bytes > 0
    }
}

impl Drop for AnswerRoom {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_waits_is_woken_once_when_what_was_taken_is_given_back_or_shrinks() {
        let count = Arc::new(Count::default());
        let wake = Waker::from(count.clone());
        let budget: Arc<AnswerBudget> = Arc::default();
        let small = budget.take(1);
        assert!(budget.has_room_or_wakes(false, &wake) && !budget.is_wanted(), "nobody has to wait");
        let mut large = budget.take(3 * ANSWERS_BYTES);
        assert!(!budget.has_room_or_wakes(false, &wake) && budget.is_wanted() && !budget.has_room());
        assert!(!budget.has_room_or_wakes(true, &wake));
        drop(small);
        large.shrink_to(ANSWERS_BYTES);
        assert!(budget.has_room_or_wakes(true, &wake), "who asks one thing at a time");
        assert_eq!((count.0.load(Ordering::Relaxed), budget.is_wanted()), (0, true));
        large.shrink_to(ANSWERS_BYTES - 1);
        assert_eq!((count.0.load(Ordering::Relaxed), budget.is_wanted(), budget.has_room()), (1, false, true));
        large.shrink_to(ANSWERS_BYTES);
        drop(large);
        assert_eq!((count.0.load(Ordering::Relaxed), budget.0.lock().bytes), (1, 0));
    }
}
