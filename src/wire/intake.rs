//! Room for large messages that come, in bytes: from the first one that gRPC gets until a reader has decoded the message or
//! refused it. Those up to the size that workloads send share some room, larger ones come one after the other.
//!
//! Thread: the gates of all connections take room and come back when there is none; `rx:<peer>` gives it back by dropping
//! it. Owns: the counts, and who is the next one.

use crate::limits::{AGENT_REQUEST_MAX, INTAKE_BYTES};
use crate::platform::sync::Mutex;
use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};

/// Room that all connections share.
#[derive(Debug)]
pub struct Intake {
    /// For messages up to [`AGENT_REQUEST_MAX`], and for larger ones.
    lanes: [Mutex<Lane>; 2],
}

#[derive(Debug, Default)]
struct Lane {
    /// A single message may take more.
    bytes_max: usize,
    bytes: usize,
    /// Who waits, in the order in which they came, so that nobody is overtaken for ever.
    queue: VecDeque<u64>,
    next: u64,
}

/// A place among those who wait; given up when dropped.
#[derive(Debug)]
pub struct Ticket {
    intake: Arc<Intake>,
    lane: usize,
    number: u64,
}

/// Room of one message; dropping it gives it back.
#[derive(Debug)]
pub struct IntakeRoom {
    intake: Arc<Intake>,
    lane: usize,
    bytes: usize,
}

impl Intake {
    /// With nothing taken.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let lane = |bytes_max| Mutex::new(Lane { bytes_max, ..Lane::default() });
        Arc::new(Self { lanes: [lane(INTAKE_BYTES), lane(0)] })
    }

    fn lock(&self, lane: usize) -> MutexGuard<'_, Lane> {
        self.lanes[lane].lock()
    }

    /// Room for a message of `bytes`, or a `ticket` to come back with for the same message.
    #[must_use]
    pub fn try_take(self: &Arc<Self>, ticket: &mut Option<Ticket>, bytes: usize) -> Option<IntakeRoom> {
        let number = usize::from(bytes > AGENT_REQUEST_MAX);
        let taken = {
            let mut lane = self.lock(number);
            let is_next = match ticket {
                Some(ticket) => lane.queue.front() == Some(&ticket.number),
                None => lane.queue.is_empty(),
            };
            let fits = is_next && (lane.bytes == 0 || lane.bytes + bytes <= lane.bytes_max);
            if fits {
                lane.bytes += bytes;
            } else if ticket.is_none() {
                lane.next += 1;
                let next = lane.next;
                lane.queue.push_back(next);
                *ticket = Some(Ticket { intake: self.clone(), lane: number, number: next });
            }
            fits
        };
        if !taken {
            return None;
        }
        *ticket = None;
        Some(IntakeRoom { intake: self.clone(), lane: number, bytes })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.intake.lock(self.lane).queue.retain(|number| *number != self.number);
    }
}

impl IntakeRoom {
    /// Whether others wait for it.
    #[must_use]
    pub fn others_wait(&self) -> bool {
        !self.intake.lock(self.lane).queue.is_empty()
    }
}

impl Drop for IntakeRoom {
    fn drop(&mut self) {
        self.intake.lock(self.lane).bytes -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_messages_come_one_after_the_other_and_smaller_ones_share_room_beside_them() {
        let intake = Intake::new();
        let take = |ticket: &mut Option<Ticket>, bytes| intake.try_take(ticket, bytes);
        let largest = take(&mut None, 100 * AGENT_REQUEST_MAX).unwrap();
        let mut tickets: [Option<Ticket>; 3] = [None, None, None];
        assert!(take(&mut tickets[0], AGENT_REQUEST_MAX + 1).is_none() && largest.others_wait());
        assert!(take(&mut tickets[1], AGENT_REQUEST_MAX + 1).is_none());
        let rooms: Vec<IntakeRoom> =
            std::iter::from_fn(|| take(&mut tickets[2], AGENT_REQUEST_MAX)).take(100).collect();
        assert_eq!(rooms.len(), INTAKE_BYTES / AGENT_REQUEST_MAX);
        drop(largest);
        assert!(take(&mut tickets[1], AGENT_REQUEST_MAX + 1).is_none(), "it came later");
        assert!(take(&mut None, AGENT_REQUEST_MAX + 1).is_none(), "and so did this one");
        tickets[1] = None;
        let first = take(&mut tickets[0], AGENT_REQUEST_MAX + 1).unwrap();
        assert!(tickets[0].is_none() && !first.others_wait());
        drop((first, rooms, tickets));
        assert!((0..2).all(|lane| intake.lock(lane).bytes == 0 && intake.lock(lane).queue.is_empty()));
    }
}
