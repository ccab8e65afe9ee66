//! The queue of messages waiting for one peer: never blocks who puts, merges what may be merged, is bounded in the
//! memory that it takes. Log lines that find no room are dropped and counted, and the stream says so. Who builds large
//! answers can ask first whether they would be sent soon.
//!
//! Thread: [`Outbox`] belongs to the thread that decides, [`OutboxReader`] to `tx`.

mod sizes;
mod snapshot;

use super::answer_budget::{AnswerBudget, AnswerRoom};
use super::encoded_state::EncodedState;
use crate::limits::{
    PEER_ANSWERS_BYTES, PEER_DROPPED_LOGS, PEER_EVENTS_BYTES, PEER_OUTBOX, PEER_OUTBOX_BYTES, PEER_OUTBOX_ENTRY,
    PEER_OUTBOX_LARGE, PEER_OUTBOX_LOG_BYTES, PEER_OUTBOX_STATES_BYTES, STATES_MESSAGE_BYTES,
};
use crate::model::execution_state::WorkloadState;
use crate::model::log_entries;
use crate::model::messages::{AlteredFields, FromServer, LogEntry, Response, ResponseContent};
use crate::model::names::{InstanceName, Name};
use crate::model::node::Node;
use crate::platform::sync::Mutex;
pub use sizes::approximate_bytes;
use sizes::{shared_bytes, state_answer_bytes, state_bytes, waiting_bytes};
pub use snapshot::StatesSnapshot;
use snapshot::Told;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::Waker;

/// Puts messages for one peer.
#[derive(Debug)]
pub struct Outbox {
    queue: Arc<Mutex<Queue>>,
    /// Tells the reader that there is something to take, or that this end is gone.
    wake: Waker,
}

/// Takes messages for one peer.
#[derive(Debug)]
pub struct OutboxReader {
    queue: Arc<Mutex<Queue>>,
}

/// Why a message was not taken: the connection must be closed, the peer resynchronises when it comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OutboxError {
    /// More bytes wait than the peer may have waiting.
    #[error("too much is waiting for it")]
    Overflow,
    /// The connection has ended already.
    #[error("its connection has ended")]
    Closed,
}

/// A message whose turn it is.
#[derive(Debug)]
pub enum Outgoing {
    /// Any message.
    Message(FromServer),
    /// The answer to a request, encoded.
    State(String, Arc<EncodedState>),
}

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Entry>,
    /// What all peers have to share.
    answers: Arc<AnswerBudget>,
    /// How many messages are states as trees.
    trees: usize,
    /// What the messages take, except for one large one.
    bytes: usize,
    /// Whether a large one waits that is not counted.
    has_large: bool,
    /// How much of `bytes` is log lines.
    log_bytes: usize,
    /// What other answers take, the large one as well.
    answer_bytes: usize,
    /// What the answers took that are being sent.
    sending_bytes: usize,
    /// And take now.
    sending_room: AnswerRoom,
    /// Told when there is room for an answer again.
    wants_room: Option<Waker>,
    /// Log lines that were dropped, until their reader can be told.
    dropped: BTreeMap<(String, InstanceName), u64>,
    outbox_gone: bool,
    reader_gone: bool,
}

#[derive(Debug)]
struct Entry {
    content: Content,
    /// What it takes, in bytes.
    bytes: usize,
    /// Whether it is the large one that is not counted.
    is_large: bool,
    /// What it takes of what all peers share.
    room: AnswerRoom,
    /// Encoded size of this batch of states from which on it is worth to look for outdated ones again.
    thin_out_at: usize,
}

#[derive(Debug)]
enum Content {
    Message(FromServer),
    State(String, Arc<EncodedState>),
    Snapshot(Told),
}

impl Content {
    /// Whether it is a state as a tree.
    fn is_tree(&self) -> bool {
        matches!(
            self,
            Self::Message(FromServer::Response(Response { content: ResponseContent::CompleteState { .. }, .. }))
        )
    }

    /// The next message, and what is left behind it.
    fn next(self) -> (Option<Outgoing>, Option<Self>) {
        match self {
            Self::Message(FromServer::WorkloadStates(mut states)) => {
                let mut bytes = 0;
                let count = states.iter().take_while(|state| {
                    bytes += state_bytes(state);
                    bytes <= STATES_MESSAGE_BYTES
                });
                let count = count.count().max(1);
                let rest = states.split_off(count.min(states.len()));
                let rest = (!rest.is_empty()).then_some(Self::Message(FromServer::WorkloadStates(rest)));
                (Some(Outgoing::Message(FromServer::WorkloadStates(states))), rest)
            }
            Self::Message(message) => (Some(Outgoing::Message(message)), None),
            Self::State(id, state) => (Some(Outgoing::State(id, state)), None),
            Self::Snapshot(mut told) => {
                let message = told.next_message().map(Outgoing::Message);
                let has_more = told.sent < told.snapshot.states.len();
                (message, has_more.then_some(Self::Snapshot(told)))
            }
        }
    }
}

/// Makes the two ends of a queue; nobody is woken.
#[must_use]
pub fn outbox() -> (Outbox, OutboxReader) {
    outbox_waking(Waker::noop().clone(), Arc::default())
}

/// Makes the two ends of a queue. `wake` is woken when there is something to take; `answers` is what all queues share.
#[must_use]
pub fn outbox_waking(wake: Waker, answers: Arc<AnswerBudget>) -> (Outbox, OutboxReader) {
    let queue = Arc::new(Mutex::new(Queue { answers, ..Queue::default() }));
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

    /// Puts all states except those of `own`, which is the peer, and of `newcomer`; never waits. Unless they are the
    /// `first` that this peer hears of them, they take the place of older ones that still wait.
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
        let told = Told { snapshot, own, newcomer, repeats: !first, sent: 0 };
        if told.snapshot.agents.iter().all(|agent| told.leaves_out(agent)) {
            return Ok(());
        }
        self.put_with(|queue| queue.push_snapshot(told))
    }

    /// Puts an answer that is of little worth: it is dropped when so much waits already that others would wait for it.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn put_or_drop(&self, message: FromServer) -> Result<(), OutboxError> {
        let is_busy = self.queue.lock().bytes > PEER_OUTBOX_BYTES / 8;
        if is_busy { Ok(()) } else { self.put(message) }
    }

    /// Encodes a state once for all who are told the same; to be put with [`Self::put_state`].
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
        let bytes = state_answer_bytes(&id, state);
        self.put_with(|queue| queue.push_entry(Content::State(id, state.clone()), bytes))
    }

    /// Whether an answer would be sent soon, however large it is: hardly any other waits or is being sent, and there is
    /// room in what all peers share, more of it for the first request of one who has none waiting. If not, `wake` is woken
    /// as soon as one would.
    #[must_use]
    pub fn has_room_for_answer(&self, is_first: bool, wake: &Waker) -> bool {
        let mut queue = self.queue.lock();
        if !queue.has_room_for_answer() {
            queue.wants_room = Some(wake.clone());
            return false;
        }
        queue.reader_gone || queue.answers.has_room_or_wakes(is_first, wake)
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

impl Queue {
    fn push(&mut self, message: FromServer) -> Result<(), OutboxError> {
        let bytes = waiting_bytes(&message);
        match message {
            FromServer::WorkloadStates(states) => self.push_states(states, bytes),
            FromServer::Response(Response { id, content: ResponseContent::LogEntries(entries) }) => {
                self.push_logs(id, entries, bytes);
                Ok(())
            }
            FromServer::Response(Response { id, content: ResponseContent::LogsStop(instance) }) => {
                // The last chance to tell what is missing.
                if let Some(lines) = self.dropped.remove(&(id.clone(), instance.clone())) {
                    self.push_entry(Content::Message(note(&id, &instance, lines)), PEER_OUTBOX_ENTRY)?;
                }
                let stop = FromServer::Response(Response { id, content: ResponseContent::LogsStop(instance) });
                self.push_entry(Content::Message(stop), bytes)
            }
            other => self.push_entry(Content::Message(other), bytes),
        }
    }

    fn has_room_for_answer(&self) -> bool {
        self.reader_gone || self.answer_bytes + self.sending_bytes < PEER_ANSWERS_BYTES
    }

    /// One large message always finds room: the hello of an agent, or the state that somebody asked for. Only the writer
    /// knows whether it can be cut to what the peer takes.
    fn push_entry(&mut self, content: Content, bytes: usize) -> Result<(), OutboxError> {
        let kind = Kind::of(&content);
        let is_large = bytes >= PEER_OUTBOX_LARGE && !self.has_large && kind != Kind::States;
        if is_large {
            self.has_large = true;
        } else if self.bytes + bytes > PEER_OUTBOX_BYTES {
            return Err(OutboxError::Overflow);
        } else {
            self.bytes += bytes;
        }
        match kind {
            Kind::Log => self.log_bytes += bytes,
            Kind::Answer => self.answer_bytes += bytes,
            Kind::Refusal | Kind::States | Kind::Order => {}
        }
        self.trees += usize::from(content.is_tree());
        // What is encoded takes room by itself, once for all who wait for it.
        let takes = kind == Kind::Answer && !matches!(content, Content::State(..));
        let room = if takes { self.answers.take(bytes) } else { AnswerRoom::default() };
        self.messages.push_back(Entry { content, bytes, is_large, room, thin_out_at: PEER_OUTBOX_STATES_BYTES });
        Ok(())
    }

    /// Encodes states that wait as trees. Answers how many bytes they took.
    fn encode_waiting(&mut self) -> usize {
        if self.trees == 0 {
            return 0;
        }
        let mut before = 0;
        for entry in &mut self.messages {
            let Content::Message(FromServer::Response(Response {
                id,
                content: ResponseContent::CompleteState { state, altered },
            })) = &mut entry.content
            else {
                continue;
            };
            let id = std::mem::take(id);
            let encoded = EncodedState::new(state, altered.take(), &self.answers);
            let bytes = state_answer_bytes(&id, &encoded).min(entry.bytes);
            if !entry.is_large {
                self.bytes -= entry.bytes - bytes;
            }
            self.answer_bytes -= entry.bytes - bytes;
            before += entry.bytes;
            (entry.bytes, entry.room) = (bytes, AnswerRoom::default());
            entry.content = Content::State(id, Arc::new(encoded));
        }
        self.trees = 0;
        before
    }

    /// Takes back what [`Self::push_entry`] has counted.
    fn forget(&mut self, Entry { content, bytes, is_large, .. }: &Entry) {
        if *is_large {
            self.has_large = false;
        } else {
            self.bytes -= bytes;
        }
        match Kind::of(content) {
            Kind::Log => self.log_bytes -= bytes,
            Kind::Answer => self.answer_bytes -= bytes,
            Kind::Refusal | Kind::States | Kind::Order => {}
        }
        self.trees -= usize::from(content.is_tree());
    }

    /// A snapshot that repeats what the peer knows takes the place of an older such one: what came between them is as
    /// true before the newer one. So a peer that does not keep up is not told everything for each agent that comes.
    fn push_snapshot(&mut self, mut told: Told) -> Result<(), OutboxError> {
        let repeats = |entry: &Entry| matches!(&entry.content, Content::Snapshot(old) if old.repeats);
        if told.repeats
            && let Some(index) = self.messages.iter().position(repeats)
            && let Some(entry) = self.messages.remove(index)
        {
            self.forget(&entry);
            // States that only one of them leaves out were to be told by the other.
            if let Content::Snapshot(old) = entry.content
                && old.newcomer != told.newcomer
            {
                told.newcomer = None;
            }
        }
        self.push_entry(Content::Snapshot(told), PEER_OUTBOX_ENTRY) // All who are told share the states.
    }

    /// The next message, and the room that it takes. States that are too many for one stay at the front.
    fn take(&mut self) -> Option<(Outgoing, AnswerRoom)> {
        loop {
            let entry = self.messages.pop_front()?;
            self.forget(&entry);
            let thin_out_at = entry.thin_out_at;
            let (message, rest) = entry.content.next();
            if let Some(content) = rest {
                let bytes = if let Content::Message(message) = &content { waiting_bytes(message) } else { entry.bytes };
                self.bytes += bytes;
                let room = AnswerRoom::default();
                self.messages.push_front(Entry { content, bytes, is_large: false, room, thin_out_at });
            }
            if let Some(message) = message {
                return Some((message, entry.room));
            }
        }
    }

    /// Tells who waits for room for an answer that there is some.
    fn tell_room(&mut self) {
        if self.wants_room.is_some() && self.has_room_for_answer() {
            self.wants_room.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Lines that find no room are dropped and counted; the next ones that find some say how many are missing.
    fn push_logs(&mut self, id: String, entries: Vec<LogEntry>, bytes: usize) {
        let no_room = self.log_bytes + bytes > PEER_OUTBOX_LOG_BYTES
            || self.bytes + bytes > PEER_OUTBOX_BYTES
            || self.messages.len() >= PEER_OUTBOX;
        if no_room {
            for entry in entries {
                let key = (id.clone(), entry.instance);
                if let Some(lines) = self.dropped.get_mut(&key) {
                    *lines += 1;
                } else if self.dropped.len() < PEER_DROPPED_LOGS {
                    self.dropped.insert(key, 1);
                }
            }
            return;
        }
        // Notes are short and few, and what follows them has been given room already.
        let missing: Vec<InstanceName> =
            self.dropped.keys().filter(|(request, _)| *request == id).map(|(_, instance)| instance.clone()).collect();
        for instance in missing {
            if let Some(lines) = self.dropped.remove(&(id.clone(), instance.clone())) {
                let _ = self.push_entry(Content::Message(note(&id, &instance, lines)), PEER_OUTBOX_ENTRY);
            }
        }
        let lines = FromServer::Response(Response { id, content: ResponseContent::LogEntries(entries) });
        let _ = self.push_entry(Content::Message(lines), bytes);
    }

    /// States join the batch that waits at the end of the queue. A peer that keeps up gets every one of them; for one
    /// that does not only the newest state of each instance is kept.
    fn push_states(&mut self, states: Vec<WorkloadState>, bytes: usize) -> Result<(), OutboxError> {
        if self.bytes + bytes > PEER_OUTBOX_BYTES {
            self.thin_out();
        }
        match self.messages.back_mut() {
            Some(Entry {
                content: Content::Message(FromServer::WorkloadStates(waiting)),
                bytes: before,
                thin_out_at,
                ..
            }) if self.bytes + bytes <= PEER_OUTBOX_BYTES => {
                waiting.extend(states);
                let mut after = *before + bytes;
                // A long batch is thinned out whenever it doubles, so that the cost stays linear.
                if after >= *thin_out_at {
                    *waiting = newest(std::mem::take(waiting));
                    after = shared_bytes(waiting);
                    *thin_out_at = PEER_OUTBOX_STATES_BYTES.max(2 * after);
                }
                self.bytes = self.bytes - *before + after;
                *before = after;
                Ok(())
            }
            _ => self.push_entry(Content::Message(FromServer::WorkloadStates(states)), bytes),
        }
    }

    /// Keeps of all states that wait the newest of each instance.
    fn thin_out(&mut self) {
        let mut seen = BTreeSet::new();
        for entry in self.messages.iter_mut().rev() {
            let Content::Message(FromServer::WorkloadStates(states)) = &mut entry.content else { continue };
            let before = std::mem::take(states);
            let mut kept: Vec<_> = before.into_iter().rev().filter(|it| seen.insert(it.instance.clone())).collect();
            kept.reverse();
            self.bytes -= entry.bytes;
            entry.bytes = shared_bytes(&kept);
            self.bytes += entry.bytes;
            *states = kept;
        }
    }
}

/// What counts apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Log,
    /// Any other response that is no refusal: those are small, and of little worth to who asks without end.
    Answer,
    Refusal,
    /// States of others; they are merged, and cut into several messages.
    States,
    /// What an agent is to do.
    Order,
}

impl Kind {
    fn of(content: &Content) -> Self {
        match content {
            Content::Message(FromServer::Response(Response { content: ResponseContent::LogEntries(_), .. })) => {
                Self::Log
            }
            Content::Message(FromServer::Response(Response { content: ResponseContent::Error(_), .. })) => {
                Self::Refusal
            }
            Content::Message(FromServer::Response(_)) | Content::State(..) => Self::Answer,
            Content::Message(FromServer::WorkloadStates(_)) | Content::Snapshot(_) => Self::States,
            Content::Message(_) => Self::Order,
        }
    }
}

/// A line that stands where others are missing.
fn note(id: &str, instance: &InstanceName, lines: u64) -> FromServer {
    let content = ResponseContent::LogEntries(vec![log_entries::dropped(instance.clone(), lines)]);
    FromServer::Response(Response { id: id.to_owned(), content })
}

/// Keeps the last state of each instance, in the order in which these were reported.
fn newest(states: Vec<WorkloadState>) -> Vec<WorkloadState> {
    let mut last: BTreeMap<InstanceName, usize> = BTreeMap::new();
    for (index, state) in states.iter().enumerate() {
        last.insert(state.instance.clone(), index);
    }
    let mut index = 0;
    let mut kept = states;
    kept.retain(|state| {
        let keep = last.get(&state.instance) == Some(&index);
        index += 1;
        keep
    });
    kept
}

impl OutboxReader {
    /// The next message if there is one, as its receiver reads it.
    pub fn try_next(&self) -> Option<FromServer> {
        let message = self.next_to_send()?;
        self.sent();
        match message {
            Outgoing::Message(message) => Some(message),
            Outgoing::State(id, state) => state.response(id).map(FromServer::Response),
        }
    }

    /// The next message if there is one. If it is an answer it counts as waiting until [`Self::sent`].
    pub fn next_to_send(&self) -> Option<Outgoing> {
        let mut queue = self.queue.lock();
        let before = queue.answer_bytes;
        let (message, room) = queue.take()?;
        queue.sending_bytes += before - queue.answer_bytes;
        queue.sending_room = match &message {
            Outgoing::State(_, state) => queue.answers.take(state.bytes()), // Each stream sends a copy of it.
            Outgoing::Message(_) => room,
        };
        queue.tell_room();
        Some(message)
    }

    /// What was taken before takes so many bytes from now on.
    pub fn encoded(&self, bytes: usize) {
        self.queue.lock().sending_room.shrink_to(bytes);
    }

    /// What was taken before is sent.
    pub fn sent(&self) {
        let mut queue = self.queue.lock();
        (queue.sending_bytes, queue.sending_room) = (0, AnswerRoom::default());
        queue.tell_room();
    }

    /// What waits will wait for longer: states are encoded, which takes less memory. Answers how much they took.
    pub fn encode_waiting(&self) -> usize {
        self.queue.lock().encode_waiting()
    }

    /// Whether it has some of the room for answers that others wait for.
    pub fn crowds_others(&self) -> bool {
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
        self.queue.lock().messages.is_empty()
    }

    /// Whether nothing waits but a batch of states, which further ones would join.
    #[must_use]
    pub fn has_only_states(&self) -> bool {
        let queue = self.queue.lock();
        let mut entries = queue.messages.iter();
        let states = |entry: &Entry| matches!(entry.content, Content::Message(FromServer::WorkloadStates(_)));
        !queue.outbox_gone && entries.next().is_some_and(states) && entries.next().is_none()
    }
}

impl Drop for OutboxReader {
    fn drop(&mut self) {
        let mut queue = self.queue.lock();
        queue.reader_gone = true;
        queue.messages.clear(); // And all room is given back.
        (queue.bytes, queue.log_bytes, queue.sending_room) = (0, 0, AnswerRoom::default());
        queue.dropped.clear();
    }
}

#[cfg(test)]
mod tests;
