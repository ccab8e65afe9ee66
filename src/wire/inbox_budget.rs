//! What messages that wait for the server take in memory (weight.rs): large ones need room before they are passed on,
//! so that many peers with large messages do not fill the memory with all that they send. Who waits for room reads
//! nothing more of its stream, so the peer is slowed down. Not counted is the one message that each reader holds while
//! it waits.
//!
//! Messages of one stream have a share of the places in the inbox besides, so that one that never stops sending does not
//! keep all others waiting.
//!
//! Thread: `rx:<peer>` takes room and may wait; `server` gives it back by dropping it with the message.
//! Owns: the count of bytes. Nobody who holds room waits for anything but the server, which never waits for a reader.

use crate::limits::{INBOX_SMALL_MESSAGE, SERVER_INBOX_OF_STREAM};
use crate::platform::sync::{Condvar, Mutex};
use std::sync::Arc;

/// What all readers share.
#[derive(Debug)]
pub struct InboxBudget {
    bytes_max: usize,
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    bytes: usize,
    /// Large messages get room in the order in which they came, so that the largest is not overtaken for ever.
    next_turn: u64,
    turn: u64,
}

/// Messages of one stream that wait for the server.
#[derive(Debug, Default)]
pub struct StreamShare {
    waiting: Mutex<usize>,
    changed: Condvar,
}

impl StreamShare {
    /// A place for one more; waits for it.
    fn take(&self) {
        let is_full = |waiting: &mut usize| *waiting >= SERVER_INBOX_OF_STREAM;
        *self.changed.wait_while(self.waiting.lock(), is_full) += 1;
    }

    fn give_back(&self) {
        let mut waiting = self.waiting.lock();
        *waiting -= 1;
        let was_full = *waiting + 1 == SERVER_INBOX_OF_STREAM;
        drop(waiting);
        if was_full {
            self.changed.notify_one(); // Its reader.
        }
    }
}

/// Room of one message; dropping it gives the room back. The default takes none.
#[derive(Debug, Default)]
pub struct Room {
    taken: Option<(Arc<InboxBudget>, usize)>,
    share: Option<Arc<StreamShare>>,
}

impl InboxBudget {
    /// Room for `bytes_max` bytes of large messages; a single one always finds room.
    #[must_use]
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { bytes_max, counts: Mutex::default(), changed: Condvar::default() })
    }

    /// Room for a message of `bytes` of the stream that has `share`; waits for it. Small messages need no room for their
    /// bytes: the number of messages bounds them.
    #[must_use]
    pub fn take(self: &Arc<Self>, bytes: usize, share: &Arc<StreamShare>) -> Room {
        share.take();
        let share = Some(share.clone());
        if bytes <= INBOX_SMALL_MESSAGE {
            return Room { taken: None, share };
        }
        let mut counts = self.counts.lock();
        let turn = counts.next_turn;
        counts.next_turn += 1;
        let must_wait = |counts: &mut Counts| {
            counts.turn != turn || (counts.bytes > 0 && counts.bytes.saturating_add(bytes) > self.bytes_max)
        };
        counts = self.changed.wait_while(counts, must_wait);
        counts.turn += 1;
        counts.bytes += bytes;
        drop(counts);
        self.changed.notify_all(); // The next one may fit as well.
        Room { taken: Some((self.clone(), bytes)), share }
    }
}

impl Room {
    /// Gives the room for the bytes back, and keeps the place among the messages of the stream.
    pub fn give_bytes_back(&mut self) {
        if let Some((budget, bytes)) = self.taken.take() {
            budget.counts.lock().bytes -= bytes;
            budget.changed.notify_all();
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.give_bytes_back();
        if let Some(share) = self.share.take() {
            share.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::bounded;
    use std::time::Duration;

    const LIMIT: Duration = Duration::from_secs(30);
    const LARGE: usize = 2 * INBOX_SMALL_MESSAGE;

    /// That of a stream which has nothing else waiting.
    fn share() -> Arc<StreamShare> {
        Arc::default()
    }

    #[test]
    fn a_stream_that_never_stops_sending_leaves_places_to_others() {
        let (budget, flood) = (InboxBudget::new(LARGE), share());
        let mut rooms: Vec<Room> = (0..SERVER_INBOX_OF_STREAM).map(|_| budget.take(1, &flood)).collect();
        let (got, gets) = bounded(0);
        let (waiting, own) = (budget.clone(), flood.clone());
        let thread = std::thread::spawn(move || got.send(waiting.take(1, &own)).unwrap());
        rooms.push(budget.take(1, &share()));
        assert!(gets.try_recv().is_err());
        rooms.remove(0);
        rooms.push(gets.recv_timeout(LIMIT).unwrap());
        thread.join().unwrap();
        drop(rooms);
        assert_eq!(*flood.waiting.lock(), 0);
    }

    fn bytes(budget: &InboxBudget) -> usize {
        budget.counts.lock().bytes
    }

    /// Waits until `count` readers wait for room.
    fn until_waiting(budget: &InboxBudget, count: u64) {
        let waiting = || {
            let counts = budget.counts.lock();
            counts.next_turn - counts.turn
        };
        let begin = std::time::Instant::now();
        while waiting() < count {
            assert!(begin.elapsed() < LIMIT);
            std::thread::yield_now();
        }
    }

    #[test]
    fn room_comes_back_with_the_message_and_one_message_always_finds_some() {
        let (budget, stream) = (InboxBudget::new(2 * LARGE), share());
        let mut rooms = [budget.take(LARGE, &share()), budget.take(LARGE, &stream)];
        assert_eq!(bytes(&budget), 2 * LARGE);
        rooms[1].give_bytes_back();
        assert_eq!((bytes(&budget), *stream.waiting.lock()), (LARGE, 1), "its place is kept");
        drop(rooms);
        assert_eq!(*stream.waiting.lock(), 0);
        drop(budget.take(100 * LARGE, &share()));
        assert_eq!(bytes(&budget), 0);
    }

    #[test]
    fn small_messages_pass_while_large_ones_wait() {
        let budget = InboxBudget::new(LARGE);
        let room = budget.take(LARGE, &share());
        let (got, gets) = bounded(0);
        let waiting = budget.clone();
        let thread = std::thread::spawn(move || got.send(waiting.take(LARGE, &share())).unwrap());
        until_waiting(&budget, 1);
        for _ in 0..10_000 {
            std::mem::forget(budget.take(INBOX_SMALL_MESSAGE, &share()));
        }
        assert!(gets.try_recv().is_err());
        drop(room);
        drop(gets.recv_timeout(LIMIT).unwrap());
        thread.join().unwrap();
        assert_eq!(bytes(&budget), 0);
    }

    #[test]
    fn the_largest_message_is_not_overtaken_by_others_that_would_fit() {
        let budget = InboxBudget::new(10 * LARGE);
        let room = budget.take(5 * LARGE, &share());
        let (got, gets) = bounded(0);
        let reader = |bytes: usize| {
            let (budget, got) = (budget.clone(), got.clone());
            std::thread::spawn(move || {
                let room = budget.take(bytes, &share());
                got.send(bytes).unwrap();
                drop(room);
            })
        };
        let largest = reader(10 * LARGE);
        until_waiting(&budget, 1);
        let fits = reader(LARGE);
        until_waiting(&budget, 2);
        assert!(gets.try_recv().is_err());
        drop(room);
        assert_eq!(gets.recv_timeout(LIMIT), Ok(10 * LARGE));
        assert_eq!(gets.recv_timeout(LIMIT), Ok(LARGE));
        largest.join().unwrap();
        fits.join().unwrap();
    }
}
