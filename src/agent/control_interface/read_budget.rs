//! Room for the large messages that all workloads of an agent are writing. A workload without room is not read, so its
//! message waits in the pipe. Small messages need no room.
//!
//! Thread: `control`. Plain values, one for each workload.

use crate::limits::{CONTROL_READING_BYTES, CONTROL_READING_TIME, CONTROL_SMALL_REQUEST};
use std::time::Instant;

/// What one workload has of the room.
#[derive(Debug, Default)]
pub enum Place {
    /// Nothing, and needs nothing.
    #[default]
    None,
    /// Waits for room since then.
    Waiting(Instant),
    /// Has room.
    Taken {
        /// Which message has it.
        message: u64,
        since: Instant,
        /// Others wait for it.
        is_wanted: bool,
    },
}

impl Place {
    /// Whether nothing more may be read.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting(_))
    }

    /// When a message that takes room from others must be complete.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Taken { since, is_wanted: true, .. } => Some(*since + CONTROL_READING_TIME),
            _ => None,
        }
    }

    /// Whether reading may go on from `now` on.
    #[must_use]
    pub fn has_just_got_room(&self, now: Instant) -> bool {
        matches!(self, Self::Taken { since, .. } if *since == now)
    }
}

/// Gives room back that is not needed any more, and the rest to those who wait, the longest first. With each place come the
/// bytes that its workload has in hand, and the number of that message: the next one has to wait for its turn again.
pub fn share(places: Vec<((usize, u64), &mut Place)>, now: Instant) {
    let mut taken = 0;
    let mut waiting = Vec::new();
    let mut holding = Vec::new();
    for ((needed, message), place) in places {
        if needed <= CONTROL_SMALL_REQUEST {
            *place = Place::None;
            continue;
        }
        match place {
            Place::Taken { message: taken_by, .. } if *taken_by == message => {
                taken += needed;
                holding.push(place);
            }
            Place::Waiting(since) => waiting.push((*since, needed, message, place)),
            Place::None | Place::Taken { .. } => waiting.push((now, needed, message, place)),
        }
    }
    waiting.sort_by_key(|(since, ..)| *since); // Who came at the same time keeps the order.
    let mut some_wait = false;
    for (since, needed, message, place) in waiting {
        // Nobody is overtaken, or the largest would wait for ever.
        some_wait |= taken > 0 && taken + needed > CONTROL_READING_BYTES;
        if some_wait {
            *place = Place::Waiting(since);
        } else {
            taken += needed;
            *place = Place::Taken { message, since: now, is_wanted: false };
            holding.push(place);
        }
    }
    for place in holding {
        if let Place::Taken { is_wanted, .. } = place {
            *is_wanted = some_wait;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::CONTROL_MESSAGE_MAX;
    use crate::platform::clock::Clock;
    use crate::simulation::manual_clock::ManualClock;

    const HALF: usize = CONTROL_READING_BYTES / 2;

    /// Who waits with so many bytes in hand, each for the message of this number.
    fn share_of<const N: usize>(
        places: &mut [Place; N],
        in_hand: [(usize, u64); N],
        clock: &ManualClock,
    ) -> Vec<usize> {
        share(in_hand.into_iter().zip(&mut *places).collect(), clock.now());
        clock.advance(std::time::Duration::from_millis(1));
        (0..N).filter(|place| places[*place].is_waiting()).collect()
    }

    #[test]
    fn who_finds_no_room_waits_for_its_turn_and_small_messages_never_do() {
        let (mut places, clock) = ([const { Place::None }; 5], ManualClock::new());
        let mut share = |in_hand| share_of(&mut places, in_hand, &clock);
        let small = (CONTROL_SMALL_REQUEST, 1);
        assert_eq!(share([(HALF, 1), (0, 1), (0, 1), (0, 1), small]), [] as [usize; 0]);
        assert_eq!(share([(HALF, 1), (0, 1), (HALF + 1, 1), (0, 1), small]), [2]);
        assert_eq!(share([(HALF, 1), (HALF, 1), (HALF + 1, 1), (0, 1), small]), [1, 2], "nobody is overtaken");
        assert_eq!(share([(HALF, 2), (HALF, 1), (HALF + 1, 1), (0, 1), small]), [0, 1], "the next one is behind");
        assert_eq!(share([(HALF, 2), (HALF, 1), (0, 1), (0, 1), small]), [] as [usize; 0]);
    }

    #[test]
    fn a_message_that_is_larger_than_the_room_goes_alone() {
        let (mut places, clock) = ([const { Place::None }; 2], ManualClock::new());
        let huge = 10 * CONTROL_READING_BYTES;
        assert_eq!(share_of(&mut places, [(CONTROL_MESSAGE_MAX, 1), (huge, 1)], &clock), [1]);
        assert_eq!(share_of(&mut places, [(CONTROL_MESSAGE_MAX, 2), (huge, 1)], &clock), [0]);
        assert!(places[1].deadline().is_some(), "others wait for it");
        assert_eq!(share_of(&mut places, [(0, 2), (huge, 1)], &clock), [] as [usize; 0]);
        assert_eq!(places[1].deadline(), None);
    }
}
