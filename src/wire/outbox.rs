//! Messages that wait for one peer, as bytes. Putting one never blocks; states are merged, and the
//! memory is bounded. Log lines without room are dropped, and the stream reports their number.
//! [`Outbox::poll_room_for_response`] says before a large response is built whether it would be
//! sent soon.
//!
//! Thread: [`Outbox`] belongs to the thread that decides, and encodes; [`OutboxReader`] to `tx`,
//! which leaves small responses and hellos to the thread that decides.

mod queue;

use super::convert::messages::{before_state, encode_state, encode_states, read_from_server};
use super::foreign::{fit, log_too_large, too_large_answer};
use super::semaphore::{Permit, Semaphore};
use super::writer::SharedStream;
use crate::limits::{PEER_EVENTS_BYTES, PEER_OUTBOX_BYTES, PEER_SMALL_MESSAGE, RESPONSES_BYTES};
use ankaios_model::execution_state::WorkloadState;
use ankaios_model::messages::{AlteredFields, FromServer, Response, ResponseContent};
use ankaios_model::names::InstanceName;
use ankaios_model::node::Node;
use ankaios_platform::limits::ADDITIONAL_INFO_MAX;
use ankaios_platform::sync::Mutex;
use queue::{MessageKind, Queue, STATES_MESSAGE_BYTES, STATES_OVERHEAD};
pub use queue::{OutboxError, Outgoing, PEER_RESPONSES_BYTES};
use std::sync::Arc;
use std::task::Waker;

/// Bytes of commands, first states and log lines for all peers. Above it log lines are dropped, no
/// further agent is served, and a peer that takes nothing for
/// [`PEER_STUCK_CROWDED`](crate::limits::PEER_STUCK_CROWDED) is disconnected.
pub const OTHERS_BYTES: usize = 10 * 1024 * 1024;

/// Puts messages for one peer.
#[derive(Debug)]
pub struct Outbox {
    queue: Arc<Mutex<Queue>>,
    /// Woken when there is something to take, or when this end is gone.
    wake: Waker,
    /// Sends a small response at once.
    stream: Option<Arc<SharedStream>>,
    /// Name of the peer, for the log.
    name: String,
    /// Largest message that the peer accepts, in bytes.
    message_max: usize,
}

/// Who sends a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivery {
    /// The thread that sends to all peers: the thread that puts the message need not wait.
    ByThread,
    /// The thread that puts it, if it is small and the next: its receiver waits for it, and waking
    /// another thread would take longer than sending it.
    AtOnce,
}

/// Takes messages for one peer.
#[derive(Debug)]
pub struct OutboxReader {
    queue: Arc<Mutex<Queue>>,
}

/// Bytes for one or more peers. Those of a response hold a permit of the responses of all peers as
/// long as they live.
#[derive(Debug, Default)]
pub struct Encoded {
    bytes: Vec<u8>,
    /// The instance, when these bytes are its state.
    instance: Option<InstanceName>,
    _permit: Permit,
}

impl Encoded {
    /// A state that is sent to many peers.
    pub fn of_state(state: &WorkloadState) -> Arc<Self> {
        let bytes = encode_states(std::slice::from_ref(state));
        Arc::new(Self {
            bytes,
            instance: Some(state.instance.clone()),
            _permit: Permit::default(),
        })
    }

    /// Several states, one behind the other.
    pub fn together(states: &[Arc<Self>]) -> Arc<Self> {
        let mut bytes = Vec::new();
        for state in states {
            bytes.extend_from_slice(&state.bytes);
        }
        Arc::new(bytes.into())
    }

    /// Whether it is the state of an instance on this agent.
    pub fn is_of_agent(&self, name: &str) -> bool {
        match &self.instance {
            Some(instance) => *instance.agent == *name,
            None => false,
        }
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

/// Makes the two ends of a queue that wakes no reader.
pub fn outbox() -> (Outbox, OutboxReader) {
    outbox_waking(
        Waker::noop().clone(),
        Semaphore::new(RESPONSES_BYTES),
        Semaphore::new(OTHERS_BYTES),
    )
}

/// Makes the two ends of a queue. `wake` is woken when there is something to take. All queues share
/// the capacities of `responses` and of `others`.
pub fn outbox_waking(
    wake: Waker,
    responses: Arc<Semaphore>,
    others: Arc<Semaphore>,
) -> (Outbox, OutboxReader) {
    let queue = Arc::new(Mutex::new(Queue::new(responses, others)));
    let outbox = Outbox {
        queue: queue.clone(),
        wake,
        stream: None,
        name: String::new(),
        message_max: usize::MAX,
    };
    (outbox, OutboxReader { queue })
}

impl Outbox {
    /// The outbox of the peer `name`, which accepts messages of at most `message_max` bytes.
    pub(crate) fn limited_to(mut self, message_max: usize, name: &str) -> Self {
        self.queue.lock().states_max = STATES_MESSAGE_BYTES.min(message_max);
        self.message_max = message_max;
        self.name = name.to_owned();
        self
    }

    /// Responses are sent through this stream, which takes the messages of this outbox.
    pub(crate) fn with_stream(mut self, stream: Arc<SharedStream>) -> Self {
        self.stream = Some(stream);
        self
    }

    /// Puts `message`; never waits.
    ///
    /// # Errors
    /// [`OutboxError`] when the connection is of no use any more; the caller drops this outbox.
    pub fn put(&self, message: FromServer) -> Result<(), OutboxError> {
        match message {
            FromServer::WorkloadStates(states) => {
                self.put_states(None, states.iter().map(Encoded::of_state))
            }
            FromServer::Response(response) => self.put_response(response),
            hello @ FromServer::ServerHello(_) => {
                self.put_whole(MessageKind::Command, hello, Delivery::AtOnce)
            }
            command => self.put_whole(MessageKind::Command, command, Delivery::ByThread),
        }
    }

    fn put_response(&self, response: Response) -> Result<(), OutboxError> {
        match response.content {
            ResponseContent::CompleteState { state, altered } => {
                let least = state.text_bytes();
                if least > self.message_max {
                    return self.put_too_large(response.id, least);
                }
                let encoded = Arc::new(self.encode(&state, altered));
                drop(state); // It may be as large as its encoding.
                self.put_encoded(response.id, &encoded, Delivery::AtOnce)
            }
            ResponseContent::LogEntries(entries) => {
                let of_entries = entries.iter().map(|entry| entry.instance.clone());
                let instances: Vec<InstanceName> = of_entries.collect();
                let id = response.id.clone();
                let content = ResponseContent::LogEntries(entries);
                let pieces = self.fit(Response {
                    content,
                    ..response
                });
                self.put_with(Delivery::ByThread, |queue| {
                    queue.push_logs(&id, &instances, pieces);
                    Ok(())
                })
            }
            ResponseContent::LogsStop(instance) => {
                let stream = (response.id.clone(), instance.clone());
                let content = ResponseContent::LogsStop(instance);
                let pieces = self.fit(Response {
                    content,
                    ..response
                });
                // The number of dropped lines comes before the end of the log.
                self.put_with(Delivery::ByThread, |queue| {
                    queue.push_missing(stream)?;
                    queue.push_pieces(MessageKind::Response, pieces)
                })
            }
            ResponseContent::Error(_) => {
                let message = FromServer::Response(response);
                self.put_whole(MessageKind::Refusal, message, Delivery::AtOnce)
            }
            _ => {
                let message = FromServer::Response(response);
                self.put_whole(MessageKind::Response, message, Delivery::AtOnce)
            }
        }
    }

    fn put_whole(
        &self,
        kind: MessageKind,
        message: FromServer,
        delivery: Delivery,
    ) -> Result<(), OutboxError> {
        let pieces = fit(message, self.message_max, &self.name);
        self.put_with(delivery, |queue| queue.push_pieces(kind, pieces))
    }

    /// The response as one or more messages that the peer accepts.
    fn fit(&self, response: Response) -> Vec<Vec<u8>> {
        fit(FromServer::Response(response), self.message_max, &self.name)
    }

    /// Puts states that are sent to other peers as well; never waits. A peer that keeps up gets all
    /// of them as one entry, `together`.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn put_states(
        &self,
        together: Option<&Arc<Encoded>>,
        states: impl Iterator<Item = Arc<Encoded>>,
    ) -> Result<(), OutboxError> {
        self.put_with(Delivery::ByThread, |queue| {
            if let Some(together) = together
                && queue.keeps_up(together.bytes())
            {
                return queue.push(MessageKind::States, Vec::new(), together.clone());
            }
            for state in states {
                if state.bytes() + STATES_OVERHEAD > self.message_max {
                    self.warn_too_large(&state);
                    continue;
                }
                queue.push(MessageKind::States, Vec::new(), state)?;
            }
            Ok(())
        })
    }

    fn warn_too_large(&self, state: &Encoded) {
        let instance = match &state.instance {
            Some(instance) => instance.short(),
            None => String::new(),
        };
        let what = format!("the state of '{instance}'");
        log_too_large(&self.name, &what, state.bytes(), self.message_max);
    }

    /// Puts all states that a new connection begins with; never waits. Their number is not bounded:
    /// no other message waits for this peer yet.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn put_first_states(&self, states: &[WorkloadState]) -> Result<(), OutboxError> {
        // As many as fit into one message when all have the longest texts.
        let parts = states.chunks(STATES_MESSAGE_BYTES / (2 * ADDITIONAL_INFO_MAX));
        self.put_with(Delivery::ByThread, |queue| {
            for part in parts {
                queue.push_bytes(MessageKind::FirstStates, encode_states(part))?;
            }
            Ok(())
        })
    }

    /// Puts a response of little use; it is dropped when other messages would wait behind it.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn put_or_drop(&self, message: FromServer) -> Result<(), OutboxError> {
        let is_busy = self.queue.lock().bytes > PEER_OUTBOX_BYTES / 8;
        if is_busy {
            return Ok(());
        }
        self.put(message)
    }

    /// Encodes a state once for all its receivers, for [`Self::put_state`].
    pub fn encode(&self, state: &Node, altered: Option<AlteredFields>) -> Encoded {
        let bytes = encode_state(state, altered.as_ref());
        let responses = self.queue.lock().responses.capacity.clone();
        Encoded {
            _permit: responses.acquire_anyway(bytes.len()),
            bytes,
            instance: None,
        }
    }

    /// Puts a state for the request `id`.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn put_state(&self, id: String, state: &Arc<Encoded>) -> Result<(), OutboxError> {
        self.put_encoded(id, state, Delivery::ByThread)
    }

    fn put_encoded(
        &self,
        id: String,
        state: &Arc<Encoded>,
        delivery: Delivery,
    ) -> Result<(), OutboxError> {
        let head = before_state(&id, state.bytes());
        let size = head.len() + state.bytes();
        if size > self.message_max {
            return self.put_too_large(id, size);
        }
        self.put_with(delivery, |queue| {
            queue.push(MessageKind::Response, head, state.clone())
        })
    }

    fn put_too_large(&self, id: String, size: usize) -> Result<(), OutboxError> {
        let pieces = too_large_answer(id, size, self.message_max, &self.name);
        self.put_with(Delivery::ByThread, |queue| {
            queue.push_pieces(MessageKind::Refusal, pieces)
        })
    }

    /// Returns whether a response of any size may be built. If not, wakes `wake` as soon as that
    /// may have changed. Two things must hold:
    ///
    /// - Hardly any response waits for this peer.
    /// - The source of the peer holds fewer bytes of responses than are free for all peers, so that
    ///   a source that reads nothing leaves capacity to the others. `unsent_of_source` returns these
    ///   bytes, of all peers of the source.
    pub fn poll_room_for_response(
        &self,
        unsent_of_source: impl FnOnce() -> usize,
        wake: &Waker,
    ) -> bool {
        let mut queue = self.queue.lock();
        if !queue.has_room_for_response() {
            queue.wants_room = Some(wake.clone());
            return false;
        }
        if queue.reader_gone {
            return true; // The stream has ended: a response is dropped at once.
        }
        let responses = queue.responses.capacity.clone();
        drop(queue); // `unsent_of_source` locks the queues of the source.
        let mut unsent = 0;
        // While half of the capacity is free, no source can hold more than is free.
        if !responses.is_half_free() {
            unsent = unsent_of_source();
        }
        responses.poll_more_free_than(unsent, wake)
    }

    /// Bytes of responses that wait or are being sent.
    pub fn unsent_responses(&self) -> usize {
        self.queue.lock().responses.held()
    }

    /// Returns whether an event may be put. While responses hold half of their capacity, a peer
    /// that is behind gets none: the other half is left to responses.
    pub fn has_room_for_event(&self) -> bool {
        let queue = self.queue.lock();
        queue.bytes <= PEER_EVENTS_BYTES || queue.responses.capacity.is_half_free()
    }

    /// Whether there is capacity for the first messages of an agent.
    pub fn has_room_for_agent(&self) -> bool {
        self.queue.lock().others.capacity.has_capacity()
    }

    /// Whether at most half of the bytes for this peer are in use.
    pub fn is_half_empty(&self) -> bool {
        self.queue.lock().bytes <= PEER_OUTBOX_BYTES / 2
    }

    /// Puts messages with `push`. Sends them on the calling thread if they are small and nothing
    /// waits before them; a large message would hold up that thread, so the thread of the stream
    /// sends it.
    fn put_with(
        &self,
        delivery: Delivery,
        push: impl FnOnce(&mut Queue) -> Result<(), OutboxError>,
    ) -> Result<(), OutboxError> {
        let mut queue = self.queue.lock();
        if queue.reader_gone {
            return Err(OutboxError::Closed);
        }
        let is_next = queue.is_empty();
        push(&mut queue)?;
        if queue.is_empty() {
            return Ok(()); // It had nothing to put.
        }
        let is_small = queue.bytes <= PEER_SMALL_MESSAGE && !queue.has_large;
        drop(queue);
        match &self.stream {
            Some(stream) if delivery == Delivery::AtOnce && is_next && is_small => {
                stream.send_now();
            }
            _ => self.wake.wake_by_ref(),
        }
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
    /// The next message, decoded as its receiver does it.
    pub fn try_next(&self) -> Option<FromServer> {
        let message = self.next_to_send()?;
        self.sent();
        read_from_server(message.bytes()).ok()
    }

    /// The next message. It holds capacity until [`Self::sent`].
    pub fn next_to_send(&self) -> Option<Outgoing> {
        let mut queue = self.queue.lock();
        let (message, kind) = queue.take()?;
        if let Some(share) = queue.share_mut(kind) {
            // The stream copies the message.
            share.sending = share.capacity.acquire_anyway(message.size());
        }
        queue.notify_room();
        Some(message)
    }

    /// The message of [`Self::next_to_send`] was sent.
    pub(crate) fn sent(&self) {
        let mut queue = self.queue.lock();
        queue.responses.sending = Permit::default();
        queue.others.sending = Permit::default();
        queue.notify_room();
    }

    /// Whether its messages hold capacity that other peers wait for.
    pub(crate) fn holds_contended_capacity(&self) -> bool {
        let queue = self.queue.lock();
        if queue.responses.held() > 0 && queue.responses.capacity.is_contended() {
            return true;
        }
        queue.others.held() > 0 && !queue.others.capacity.has_capacity()
    }

    /// Whether its messages, with the one that is being sent, hold shared capacity.
    pub(crate) fn holds_capacity(&self) -> bool {
        let queue = self.queue.lock();
        queue.responses.held() > 0 || queue.others.held() > 0
    }

    /// Whether the other end was dropped. Messages that it has put before can still be taken.
    pub fn ended(&self) -> bool {
        self.queue.lock().outbox_gone
    }

    pub fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }

    /// Whether only states of instances wait, which further ones would join.
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
