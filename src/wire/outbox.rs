//! Messages that wait for one peer: putting never blocks, what can be merged is merged, and the memory is bounded. Log
//! lines that find no room are dropped and counted, and the stream reports how many. Whoever builds large responses can check
//! first whether they would be sent soon.
//!
//! Thread: [`Outbox`] belongs to the thread that decides, [`OutboxReader`] to `tx`.

mod queue;
mod snapshot;

use super::budget::{Budget, Share};
use super::encoded_state::EncodedState;
use super::shared_state::SharedStates;
use crate::limits::{ANSWERS_BYTES, FIRST_ANSWERS_BYTES, PEER_EVENTS_BYTES, PEER_OUTBOX_BYTES};
use crate::model::messages::{AlteredFields, FromServer};
use crate::model::names::Name;
use crate::model::node::Node;
use crate::platform::sync::Mutex;
use queue::Queue;
pub use queue::{OutboxError, Outgoing};
use snapshot::PeerSnapshot;
pub use snapshot::StatesSnapshot;
use std::sync::Arc;
use std::task::Waker;

/// Puts messages for one peer.
#[derive(Debug)]
pub struct Outbox {
    queue: Arc<Mutex<Queue>>,
    /// Woken when there is something to take, or when this end is gone.
    wake: Waker,
}

/// Takes messages for one peer.
#[derive(Debug)]
pub struct OutboxReader {
    queue: Arc<Mutex<Queue>>,
}

/// Makes the two ends of a queue; nobody is woken.
#[must_use]
pub fn outbox() -> (Outbox, OutboxReader) {
    outbox_waking(Waker::noop().clone(), Budget::new(ANSWERS_BYTES))
}

/// Makes the two ends of a queue. `wake` is woken when there is something to take; `answers` is what all queues share.
#[must_use]
pub fn outbox_waking(wake: Waker, answers: Arc<Budget>) -> (Outbox, OutboxReader) {
    let queue = Arc::new(Mutex::new(Queue::new(answers)));
    (Outbox { queue: queue.clone(), wake }, OutboxReader { queue })
}

impl Outbox {
    /// Puts `message`; never waits.
    ///
    /// # Errors
    /// [`OutboxError`] when the connection is of no use any more; the caller drops this outbox.
    pub fn put(&self, message: FromServer) -> Result<(), OutboxError> {
        self.put_with(|queue| queue.push(message))
    }

    /// Puts states that others are told of as well; never waits.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn put_states(&self, states: SharedStates) -> Result<(), OutboxError> {
        self.put_with(|queue| queue.push_states(states))
    }

    /// Puts all states except those of `own`, which is the peer, and of `newcomer`; never waits. Unless they are the
    /// `first` that this peer receives, they replace older ones that still wait.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn put_snapshot(
        &self,
        snapshot: &Arc<StatesSnapshot>,
        own: &Name,
        newcomer: &Name,
        first: bool,
    ) -> Result<(), OutboxError> {
        let (snapshot, own, newcomer) = (snapshot.clone(), own.clone(), Some(newcomer.clone()));
        let snapshot = PeerSnapshot { snapshot, own, newcomer, repeats: !first, sent: 0 };
        if snapshot.is_empty() {
            return Ok(());
        }
        self.put_with(|queue| queue.push_snapshot(snapshot))
    }

    /// Puts a response of little use; it is dropped when so much waits already that others would wait for it.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn put_or_drop(&self, message: FromServer) -> Result<(), OutboxError> {
        let is_busy = self.queue.lock().bytes > PEER_OUTBOX_BYTES / 8;
        if is_busy { Ok(()) } else { self.put(message) }
    }

    /// Encodes a state once for all who receive it; to be put with [`Self::put_state`].
    #[must_use]
    pub fn encode(&self, state: &Node, altered: Option<AlteredFields>) -> EncodedState {
        let answers = self.queue.lock().answers.clone();
        EncodedState::new(state, altered, &answers)
    }

    /// Puts a state for the request `id`.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn put_state(&self, id: String, state: &Arc<EncodedState>) -> Result<(), OutboxError> {
        self.put_with(|queue| queue.push_state(id, state.clone()))
    }

    /// Whether a response would be sent soon, however large it is: hardly any other waits or is being sent, and there is
    /// room in what all peers share, more of it for the first request of a peer that has none waiting. If not, `wake` is
    /// woken as soon as it would.
    #[must_use]
    pub fn has_room_for_answer(&self, is_first: bool, wake: &Waker) -> bool {
        let mut queue = self.queue.lock();
        if !queue.has_room_for_answer() {
            queue.wants_room = Some(wake.clone());
            return false;
        }
        let max = if is_first { FIRST_ANSWERS_BYTES } else { ANSWERS_BYTES };
        queue.reader_gone || queue.answers.has_room_below(max, wake)
    }

    /// Whether an event may be put: while answers take all the room that peers share, not for a peer that is behind.
    #[must_use]
    pub fn has_room_for_event(&self) -> bool {
        let queue = self.queue.lock();
        queue.bytes <= PEER_EVENTS_BYTES || queue.answers.has_room()
    }

    /// Whether less than half of the room for this peer is taken.
    #[must_use]
    pub fn is_half_empty(&self) -> bool {
        self.queue.lock().bytes <= PEER_OUTBOX_BYTES / 2
    }

    fn put_with(&self, push: impl FnOnce(&mut Queue) -> Result<(), OutboxError>) -> Result<(), OutboxError> {
        let mut queue = self.queue.lock();
        if queue.reader_gone {
            return Err(OutboxError::Closed);
        }
        push(&mut queue)?;
        drop(queue);
        self.wake.wake_by_ref();
        Ok(())
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.queue.lock().outbox_gone = true;
        self.wake.wake_by_ref();
    }
}

impl OutboxReader {
    /// The next message, as its receiver reads it.
    pub fn try_next(&self) -> Option<FromServer> {
        let message = self.next_to_send()?;
        self.sent();
        match message {
            Outgoing::Message(message) => Some(message),
            Outgoing::States(states) => {
                Some(FromServer::WorkloadStates(states.iter().map(|state| state.state().clone()).collect()))
            }
            Outgoing::State(id, state) => state.response(id).map(FromServer::Response),
        }
    }

    /// The next message. A response counts as waiting until [`Self::sent`].
    pub fn next_to_send(&self) -> Option<Outgoing> {
        let mut queue = self.queue.lock();
        let before = queue.answer_bytes;
        let (message, room) = queue.take()?;
        queue.sending_bytes += before - queue.answer_bytes;
        queue.sending_room = match &message {
            Outgoing::State(_, state) => queue.answers.overdraw(state.bytes()), // Each stream sends a copy of it.
            Outgoing::Message(_) | Outgoing::States(_) => room,
        };
        queue.notify_room();
        Some(message)
    }

    /// What was taken before takes so many bytes from now on.
    pub fn encoded(&self, bytes: usize) {
        self.queue.lock().sending_room.shrink_to(bytes);
    }

    /// What was taken before is sent.
    pub fn sent(&self) {
        let mut queue = self.queue.lock();
        (queue.sending_bytes, queue.sending_room) = (0, Share::default());
        queue.notify_room();
    }

    /// Encodes states that wait, which takes less memory; for a peer that takes nothing. Returns how much they took.
    pub fn encode_waiting(&self) -> usize {
        self.queue.lock().encode_waiting()
    }

    /// Whether responses to it take room that others wait for.
    pub fn takes_wanted_room(&self) -> bool {
        self.has_answers() && self.queue.lock().answers.is_wanted()
    }

    /// Whether answers wait or are being sent.
    pub fn has_answers(&self) -> bool {
        let queue = self.queue.lock();
        queue.sending_room.is_taken() || queue.answer_bytes > 0
    }

    /// Whether the other end was dropped; what it has put before can still be taken.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.queue.lock().outbox_gone
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }

    /// Whether nothing waits but a batch of states, which further ones would join.
    #[must_use]
    pub fn has_only_states(&self) -> bool {
        let queue = self.queue.lock();
        !queue.outbox_gone && queue.has_only_states()
    }
}

impl Drop for OutboxReader {
    fn drop(&mut self) {
        let mut queue = self.queue.lock();
        queue.reader_gone = true;
        queue.clear();
    }
}

#[cfg(test)]
pub(in crate::wire) mod tests;
