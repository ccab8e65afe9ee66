//! Messages that wait for one peer, as bytes: putting never blocks, what can be merged is merged,
//! and the memory is bounded. Log lines that find no room are dropped and counted, and the stream
//! reports how many. Whoever builds large responses can check first whether they would be sent
//! soon.
//!
//! Thread: [`Outbox`] belongs to the thread that decides, and encodes; [`OutboxReader`] to `tx`.

mod queue;

use super::convert::messages::{before_state, encode_state, encode_states, read_from_server};
use super::foreign::{fit, too_large, too_large_answer};
use super::semaphore::{Permit, Semaphore};
use crate::limits::{PEER_EVENTS_BYTES, PEER_OUTBOX_BYTES, RESPONSES_BYTES};
use ankaios_model::execution_state::WorkloadState;
use ankaios_model::messages::{AlteredFields, FromServer, Response, ResponseContent};
use ankaios_model::names::InstanceName;
use ankaios_model::node::Node;
use ankaios_platform::limits::ADDITIONAL_INFO_MAX;
use ankaios_platform::sync::Mutex;
use queue::{ANSWERS, Kind, OTHERS, Queue, STATES_MESSAGE_BYTES};
pub use queue::{OutboxError, Outgoing, PEER_RESPONSES_BYTES};
use std::sync::Arc;
use std::task::Waker;

/// While so many bytes of commands, first states and log lines wait for all peers, log lines are
/// dropped, no further agent is served, and a peer that takes nothing for
/// [`PEER_STUCK_CROWDED`](crate::limits::PEER_STUCK_CROWDED) is disconnected.
pub const OTHERS_BYTES: usize = 10 * 1024 * 1024;

/// Puts messages for one peer.
#[derive(Debug)]
pub struct Outbox {
    queue: Arc<Mutex<Queue>>,
    /// Woken when there is something to take, or when this end is gone.
    wake: Waker,
    /// Who the peer is, for the log.
    name: String,
    /// Largest message that it takes, in bytes.
    message_max: usize,
}

/// Takes messages for one peer.
#[derive(Debug)]
pub struct OutboxReader {
    queue: Arc<Mutex<Queue>>,
}

/// Bytes that one or more peers are sent. Those of a response count in the room of responses as
/// long as they live.
#[derive(Debug, Default)]
pub struct Encoded {
    bytes: Vec<u8>,
    /// Whose state it is, if it is that of one instance.
    instance: Option<InstanceName>,
    _room: Permit,
}

impl Encoded {
    /// A state that many peers are told of.
    pub fn of_state(state: &WorkloadState) -> Arc<Self> {
        let bytes = encode_states(std::slice::from_ref(state));
        Arc::new(Self {
            bytes,
            instance: Some(state.instance.clone()),
            _room: Permit::default(),
        })
    }

    /// Several of them, one behind the other.
    pub fn together(states: &[Arc<Self>]) -> Arc<Self> {
        Arc::new(
            states
                .iter()
                .flat_map(|state| &state.bytes)
                .copied()
                .collect::<Vec<u8>>()
                .into(),
        )
    }

    /// Whether it is the state of an instance on this agent.
    pub fn is_of_agent(&self, name: &str) -> bool {
        self.instance
            .as_ref()
            .is_some_and(|instance| *instance.agent == *name)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

impl From<Vec<u8>> for Encoded {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            ..Self::default()
        }
    }
}

/// Makes the two ends of a queue; nobody is woken.
pub fn outbox() -> (Outbox, OutboxReader) {
    outbox_waking(
        Waker::noop().clone(),
        Semaphore::new(RESPONSES_BYTES),
        Semaphore::new(OTHERS_BYTES),
    )
}

/// Makes the two ends of a queue. `wake` is woken when there is something to take; `answers` and
/// `others` are what all queues share.
pub fn outbox_waking(
    wake: Waker,
    answers: Arc<Semaphore>,
    others: Arc<Semaphore>,
) -> (Outbox, OutboxReader) {
    let queue = Arc::new(Mutex::new(Queue::new([answers, others])));
    let outbox = Outbox {
        queue: queue.clone(),
        wake,
        name: String::new(),
        message_max: usize::MAX,
    };
    (outbox, OutboxReader { queue })
}

impl Outbox {
    /// For a peer with this name that takes messages of at most `message_max` bytes.
    pub(crate) fn limited_to(mut self, message_max: usize, name: &str) -> Self {
        self.queue.lock().states_max = STATES_MESSAGE_BYTES.min(message_max);
        (self.message_max, self.name) = (message_max, name.to_owned());
        self
    }

    /// Puts `message`; never waits.
    ///
    /// # Errors
    /// [`OutboxError`] when the connection is of no use any more; the caller drops this outbox.
    pub fn put(&self, message: FromServer) -> Result<(), OutboxError> {
        if let FromServer::Response(Response {
            id,
            content: ResponseContent::CompleteState { state, altered },
        }) = message
        {
            let least = state.text_bytes();
            if least > self.message_max {
                return self.put_too_large(id, least);
            }
            let encoded = Arc::new(self.encode(&state, altered));
            drop(state); // It may be large, as what is sent of it.
            return self.put_state(id, &encoded);
        }
        let (kind, lines, ended) = match &message {
            FromServer::WorkloadStates(states) => {
                return self.put_states(None, states.iter().map(Encoded::of_state));
            }
            FromServer::Response(Response { id, content }) => match content {
                ResponseContent::LogEntries(entries) => {
                    let instances: Vec<_> =
                        entries.iter().map(|entry| entry.instance.clone()).collect();
                    (Kind::Log, Some((id.clone(), instances)), None)
                }
                ResponseContent::LogsStop(instance) => {
                    (Kind::Answer, None, Some((id.clone(), instance.clone())))
                }
                ResponseContent::Error(_) => (Kind::Refusal, None, None),
                _ => (Kind::Answer, None, None),
            },
            _ => (Kind::Command, None, None),
        };
        let pieces = fit(message, self.message_max, &self.name);
        self.put_with(|queue| {
            if let Some((id, instances)) = lines {
                queue.push_logs(&id, &instances, pieces);
                return Ok(());
            }
            if let Some(stream) = ended {
                queue.push_missing(stream)?;
            }
            pieces
                .into_iter()
                .try_for_each(|bytes| queue.push_bytes(kind, bytes))
        })
    }

    /// Puts states that others are told of as well; never waits. A peer that keeps up gets those
    /// that come together as one entry, `together`.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn put_states(
        &self,
        together: Option<&Arc<Encoded>>,
        mut states: impl Iterator<Item = Arc<Encoded>>,
    ) -> Result<(), OutboxError> {
        self.put_with(|queue| {
            if let Some(together) = together.filter(|all| queue.keeps_up(all.bytes())) {
                return queue.push(Kind::States, Vec::new(), together.clone());
            }
            states.try_for_each(|state| {
                // With tag and length around it.
                if state.bytes() + 6 > self.message_max {
                    let instance = state
                        .instance
                        .as_ref()
                        .map(InstanceName::short)
                        .unwrap_or_default();
                    let what = format!("the state of '{instance}'");
                    too_large(&self.name, &what, state.bytes(), self.message_max);
                    return Ok(());
                }
                queue.push(Kind::States, Vec::new(), state)
            })
        })
    }

    /// Puts all states with which a newcomer begins; never waits. They do not count, however many
    /// there are: nothing else waits for it yet.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn put_first_states(&self, states: &[WorkloadState]) -> Result<(), OutboxError> {
        // So many with the longest texts fit into one message.
        let mut parts = states.chunks(STATES_MESSAGE_BYTES / (2 * ADDITIONAL_INFO_MAX));
        self.put_with(|queue| {
            parts.try_for_each(|part| queue.push_bytes(Kind::FirstStates, encode_states(part)))
        })
    }

    /// Puts a response of little use; it is dropped when so much waits already that others would
    /// wait for it.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn put_or_drop(&self, message: FromServer) -> Result<(), OutboxError> {
        let is_busy = self.queue.lock().bytes > PEER_OUTBOX_BYTES / 8;
        if is_busy { Ok(()) } else { self.put(message) }
    }

    /// Encodes a state once for all who receive it; to be put with [`Self::put_state`].
    pub fn encode(&self, state: &Node, altered: Option<AlteredFields>) -> Encoded {
        let bytes = encode_state(state, altered.as_ref());
        let _room = self.queue.lock().rooms[ANSWERS].acquire_anyway(bytes.len());
        Encoded {
            bytes,
            instance: None,
            _room,
        }
    }

    /// Puts a state for the request `id`.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn put_state(&self, id: String, state: &Arc<Encoded>) -> Result<(), OutboxError> {
        let head = before_state(&id, state.bytes());
        let size = head.len() + state.bytes();
        if size > self.message_max {
            return self.put_too_large(id, size);
        }
        self.put_with(|queue| queue.push(Kind::Answer, head, state.clone()))
    }

    fn put_too_large(&self, id: String, size: usize) -> Result<(), OutboxError> {
        let pieces = too_large_answer(id, size, self.message_max, &self.name);
        self.put_with(|queue| {
            pieces
                .into_iter()
                .try_for_each(|bytes| queue.push_bytes(Kind::Refusal, bytes))
        })
    }

    /// Whether a response may be built, however large it is: hardly any other waits for this peer,
    /// and fewer bytes of responses wait for the peers of its source, as `unsent_of_source` returns,
    /// than are free for all peers. So a source that reads nothing leaves capacity to every other
    /// one. If not, `wake` is woken as soon as that may have changed.
    pub fn has_room_for_response(
        &self,
        unsent_of_source: impl FnOnce() -> usize,
        wake: &Waker,
    ) -> bool {
        let mut queue = self.queue.lock();
        if !queue.has_room_for_answer() {
            queue.wants_room = Some(wake.clone());
            return false;
        }
        if queue.reader_gone {
            return true;
        }
        let responses = queue.rooms[ANSWERS].clone();
        drop(queue); // The function locks the queues of the source.
        // No source can have more than half of the capacity then.
        let unsent = if responses.is_half_free() {
            0
        } else {
            unsent_of_source()
        };
        responses.has_more_free_than(unsent, wake)
    }

    /// Bytes of responses that wait or are being sent.
    pub fn unsent_responses(&self) -> usize {
        self.queue.lock().takes(ANSWERS)
    }

    /// Whether an event may be put: while responses take half of their capacity, not for a peer that
    /// is behind. The other half is left to responses.
    pub fn has_room_for_event(&self) -> bool {
        let queue = self.queue.lock();
        queue.bytes <= PEER_EVENTS_BYTES || queue.rooms[ANSWERS].is_half_free()
    }

    /// Whether there is room for all that an agent is sent first.
    pub fn has_room_for_agent(&self) -> bool {
        self.queue.lock().rooms[OTHERS].has_capacity()
    }

    /// Whether less than half of the room for this peer is taken.
    pub fn is_half_empty(&self) -> bool {
        self.queue.lock().bytes <= PEER_OUTBOX_BYTES / 2
    }

    fn put_with(
        &self,
        push: impl FnOnce(&mut Queue) -> Result<(), OutboxError>,
    ) -> Result<(), OutboxError> {
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
        read_from_server(message.bytes()).ok()
    }

    /// The next message. A response counts as waiting until [`Self::sent`].
    pub fn next_to_send(&self) -> Option<Outgoing> {
        let mut queue = self.queue.lock();
        let (message, kind) = queue.take()?;
        // Each stream sends a copy of it.
        if let Some(room) = kind.room() {
            queue.sending[room] = queue.rooms[room].acquire_anyway(message.size());
        }
        queue.notify_room();
        Some(message)
    }

    /// What was taken before is sent.
    pub(crate) fn sent(&self) {
        let mut queue = self.queue.lock();
        queue.sending = Default::default();
        queue.notify_room();
    }

    /// Whether what waits for it takes room that others wait for.
    pub(crate) fn takes_contended_capacity(&self) -> bool {
        let queue = self.queue.lock();
        let [answers, others] = &queue.rooms;
        queue.takes(ANSWERS) > 0 && answers.is_contended()
            || queue.takes(OTHERS) > 0 && !others.has_capacity()
    }

    /// Whether something waits, or is being sent, that takes such room.
    pub(crate) fn takes_capacity(&self) -> bool {
        let queue = self.queue.lock();
        queue.takes(ANSWERS) + queue.takes(OTHERS) > 0
    }

    /// Whether the other end was dropped; what it has put before can still be taken.
    pub fn ended(&self) -> bool {
        self.queue.lock().outbox_gone
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }

    /// Whether nothing waits but states of instances, which further ones would join.
    pub(crate) fn has_only_states(&self) -> bool {
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
pub(crate) mod tests;
