//! What waits for one peer, and how much of each kind.
//!
//! Thread: none, a plain value that both ends of an outbox lock.

use super::snapshot::PeerSnapshot;
use crate::limits::{
    PEER_ANSWERS_BYTES, PEER_DROPPED_LOGS, PEER_OUTBOX, PEER_OUTBOX_BYTES, PEER_OUTBOX_ENTRY, PEER_OUTBOX_LARGE,
    PEER_OUTBOX_LOG_BYTES, PEER_OUTBOX_STATES_BYTES, STATES_MESSAGE_BYTES,
};
use crate::model::log_entries;
use crate::model::memory_size::MemorySize;
use crate::model::messages::{FromServer, LogEntry, Response, ResponseContent};
use crate::model::names::InstanceName;
use crate::wire::budget::{Budget, Share};
use crate::wire::encoded_state::EncodedState;
use crate::wire::shared_state::{SharedState, SharedStates, shared};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::Waker;

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

/// The next message to send.
#[derive(Debug)]
pub enum Outgoing {
    /// Any message.
    Message(FromServer),
    /// New states of instances on other agents.
    States(SharedStates),
    /// The response to a request with this id, encoded.
    State(String, Arc<EncodedState>),
}

/// What waits for one peer.
#[derive(Debug)]
pub struct Queue {
    messages: VecDeque<Entry>,
    /// What responses to all peers take, and this one's among them.
    pub(super) answers: Arc<Budget>,
    /// How many messages are states as trees.
    pub(super) trees: usize,
    /// What the messages take, except for one large one.
    pub(super) bytes: usize,
    /// Whether a large one waits that is not counted.
    pub(super) has_large: bool,
    /// How much of `bytes` is log lines.
    pub(super) log_bytes: usize,
    /// What other responses take, the large one as well.
    pub(super) answer_bytes: usize,
    /// What the responses that are being sent took while they waited.
    pub(super) sending_bytes: usize,
    /// What they take now.
    pub(super) sending_room: Share,
    /// Woken when there is room for a response again.
    pub(super) wants_room: Option<Waker>,
    /// Log lines that were dropped, until the stream can report their number.
    pub(super) dropped: BTreeMap<(String, InstanceName), u64>,
    pub(super) outbox_gone: bool,
    pub(super) reader_gone: bool,
}

#[derive(Debug)]
struct Entry {
    content: Content,
    /// What it takes, in bytes.
    bytes: usize,
    /// Whether it is the large one that is not counted.
    is_large: bool,
    /// Its share of what responses to all peers take.
    room: Share,
    /// Encoded size of this batch of states from which on it is worth to look for outdated ones again.
    thin_out_at: usize,
}

#[derive(Debug)]
enum Content {
    Message(FromServer),
    States(SharedStates),
    State(String, Arc<EncodedState>),
    Snapshot(PeerSnapshot),
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
            Self::States(mut states) => {
                let mut bytes = 0;
                let count = states.iter().take_while(|state| {
                    bytes += state.bytes();
                    bytes <= STATES_MESSAGE_BYTES
                });
                let count = count.count().max(1);
                let rest = states.split_off(count.min(states.len()));
                (Some(Outgoing::States(states)), (!rest.is_empty()).then_some(Self::States(rest)))
            }
            Self::Message(message) => (Some(Outgoing::Message(message)), None),
            Self::State(id, state) => (Some(Outgoing::State(id, state)), None),
            Self::Snapshot(mut snapshot) => {
                let message = snapshot.next_states().map(Outgoing::States);
                let has_more = snapshot.has_more();
                (message, has_more.then_some(Self::Snapshot(snapshot)))
            }
        }
    }
}

impl Queue {
    /// With nothing in it; `answers` is shared by all peers.
    pub fn new(answers: Arc<Budget>) -> Self {
        Self {
            messages: VecDeque::new(),
            answers,
            trees: 0,
            bytes: 0,
            has_large: false,
            log_bytes: 0,
            answer_bytes: 0,
            sending_bytes: 0,
            sending_room: Share::default(),
            wants_room: None,
            dropped: BTreeMap::new(),
            outbox_gone: false,
            reader_gone: false,
        }
    }

    /// Puts any message.
    ///
    /// # Errors
    /// [`OutboxError::Overflow`].
    pub fn push(&mut self, message: FromServer) -> Result<(), OutboxError> {
        let bytes = message.memory_bytes() + PEER_OUTBOX_ENTRY;
        match message {
            FromServer::WorkloadStates(states) => self.push_states(shared(states)),
            FromServer::Response(Response { id, content: ResponseContent::LogEntries(entries) }) => {
                self.push_logs(id, entries, bytes);
                Ok(())
            }
            FromServer::Response(Response { id, content: ResponseContent::LogsStop(instance) }) => {
                // The last chance to report what is missing.
                if let Some(lines) = self.dropped.remove(&(id.clone(), instance.clone())) {
                    self.push_entry(Content::Message(note(&id, &instance, lines)), PEER_OUTBOX_ENTRY)?;
                }
                let stop = FromServer::Response(Response { id, content: ResponseContent::LogsStop(instance) });
                self.push_entry(Content::Message(stop), bytes)
            }
            other => self.push_entry(Content::Message(other), bytes),
        }
    }

    /// Whether hardly any response waits or is being sent.
    pub fn has_room_for_answer(&self) -> bool {
        self.reader_gone || self.answer_bytes + self.sending_bytes < PEER_ANSWERS_BYTES
    }

    /// One large message always finds room: the hello of an agent, or the state that was requested. Only the writer
    /// can see whether it can be cut to what the peer takes.
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
            Kind::Refusal | Kind::States | Kind::Command => {}
        }
        self.trees += usize::from(content.is_tree());
        // What is encoded takes room by itself, once for all who wait for it.
        let takes = kind == Kind::Answer && !matches!(content, Content::State(..));
        let room = if takes { self.answers.overdraw(bytes) } else { Share::default() };
        self.messages.push_back(Entry { content, bytes, is_large, room, thin_out_at: PEER_OUTBOX_STATES_BYTES });
        Ok(())
    }

    /// Encodes states that wait as trees. Returns how many bytes they took.
    pub fn encode_waiting(&mut self) -> usize {
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
            (entry.bytes, entry.room) = (bytes, Share::default());
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
            Kind::Refusal | Kind::States | Kind::Command => {}
        }
        self.trees -= usize::from(content.is_tree());
    }

    /// Puts a state for the request `id`.
    ///
    /// # Errors
    /// [`OutboxError::Overflow`].
    pub fn push_state(&mut self, id: String, state: Arc<EncodedState>) -> Result<(), OutboxError> {
        let bytes = state_answer_bytes(&id, &state);
        self.push_entry(Content::State(id, state), bytes)
    }

    /// Puts a snapshot. One that repeats what the peer has received replaces an older such one: what came between them is
    /// as true before the newer one. So a peer that does not keep up does not get everything for each agent that comes.
    ///
    /// # Errors
    /// [`OutboxError::Overflow`].
    pub fn push_snapshot(&mut self, mut snapshot: PeerSnapshot) -> Result<(), OutboxError> {
        let repeats = |entry: &Entry| matches!(&entry.content, Content::Snapshot(old) if old.repeats);
        if snapshot.repeats
            && let Some(index) = self.messages.iter().position(repeats)
            && let Some(entry) = self.messages.remove(index)
        {
            self.forget(&entry);
            // States that only one of them leaves out are in the other.
            if let Content::Snapshot(old) = entry.content
                && old.newcomer != snapshot.newcomer
            {
                snapshot.newcomer = None;
            }
        }
        self.push_entry(Content::Snapshot(snapshot), PEER_OUTBOX_ENTRY) // All receivers share the states.
    }

    /// The next message, and the room that it takes. States that are too many for one stay at the front.
    pub fn take(&mut self) -> Option<(Outgoing, Share)> {
        loop {
            let entry = self.messages.pop_front()?;
            self.forget(&entry);
            let thin_out_at = entry.thin_out_at;
            let (message, rest) = entry.content.next();
            if let Some(content) = rest {
                // Texts that receivers share were counted less, and the peer must not seem busier the more it takes.
                let rest_bytes = |states| waiting_bytes(states).min(entry.bytes);
                let bytes = if let Content::States(states) = &content { rest_bytes(states) } else { entry.bytes };
                self.bytes += bytes;
                let room = Share::default();
                self.messages.push_front(Entry { content, bytes, is_large: false, room, thin_out_at });
            }
            if let Some(message) = message {
                return Some((message, entry.room));
            }
        }
    }

    /// Wakes who waits for room for a response if there is some.
    pub fn notify_room(&mut self) {
        if self.wants_room.is_some() && self.has_room_for_answer() {
            self.wants_room.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Lines that find no room are dropped and counted; the next ones that find some come after a line with the number of missing ones.
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
    ///
    /// # Errors
    /// [`OutboxError::Overflow`].
    pub fn push_states(&mut self, states: SharedStates) -> Result<(), OutboxError> {
        let bytes = waiting_bytes(&states);
        if self.bytes + bytes > PEER_OUTBOX_BYTES {
            self.thin_out();
        }
        match self.messages.back_mut() {
            Some(Entry { content: Content::States(waiting), bytes: before, thin_out_at, .. })
                if self.bytes + bytes <= PEER_OUTBOX_BYTES =>
            {
                waiting.extend(states);
                let mut after = *before + bytes;
                // A long batch is thinned out whenever it doubles, so that the cost stays linear.
                if after >= *thin_out_at {
                    *waiting = newest(std::mem::take(waiting), &mut BTreeSet::new());
                    after = shared_bytes(waiting);
                    *thin_out_at = PEER_OUTBOX_STATES_BYTES.max(2 * after);
                }
                self.bytes = self.bytes - *before + after;
                *before = after;
                Ok(())
            }
            _ => self.push_entry(Content::States(states), bytes),
        }
    }

    /// Keeps of all states that wait the newest of each instance.
    fn thin_out(&mut self) {
        let mut seen = BTreeSet::new();
        for entry in self.messages.iter_mut().rev() {
            let Content::States(states) = &mut entry.content else { continue };
            *states = newest(std::mem::take(states), &mut seen);
            self.bytes -= entry.bytes;
            entry.bytes = shared_bytes(states);
            self.bytes += entry.bytes;
        }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether nothing waits but a batch of states, which further ones would join.
    pub fn has_only_states(&self) -> bool {
        let mut entries = self.messages.iter();
        let states = |entry: &Entry| matches!(entry.content, Content::States(_));
        entries.next().is_some_and(states) && entries.next().is_none()
    }

    /// Forgets all messages, which gives their room back.
    pub fn clear(&mut self) {
        self.messages.clear();
        (self.bytes, self.log_bytes, self.sending_room) = (0, 0, Share::default());
        self.dropped.clear();
    }
}

/// What is counted separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Log,
    /// Any other response that is no refusal: those are small, and of little use to a flood of requests.
    Answer,
    Refusal,
    /// States of others; they are merged, and cut into several messages.
    States,
    /// Workloads and log requests for an agent.
    Command,
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
            Content::States(_) | Content::Snapshot(_) => Self::States,
            Content::Message(_) => Self::Command,
        }
    }
}

/// A line in place of `lines` dropped ones.
fn note(id: &str, instance: &InstanceName, lines: u64) -> FromServer {
    let content = ResponseContent::LogEntries(vec![log_entries::dropped(instance.clone(), lines)]);
    FromServer::Response(Response { id: id.to_owned(), content })
}

/// What states take while they wait.
fn waiting_bytes(states: &[Arc<SharedState>]) -> usize {
    states.iter().map(|state| state.bytes()).sum::<usize>() + PEER_OUTBOX_ENTRY
}

/// What an encoded state takes for one who waits for it.
fn state_answer_bytes(id: &str, state: &EncodedState) -> usize {
    id.len() + state.bytes() + PEER_OUTBOX_ENTRY
}

/// What states take while they wait if each is the newest of its instance: they share their texts with the state of the
/// cluster then.
fn shared_bytes(states: &[Arc<SharedState>]) -> usize {
    let own = states.iter().map(|state| state.newest_bytes());
    own.sum::<usize>() + PEER_OUTBOX_ENTRY
}

/// Keeps the last state of each instance that was not `seen`, in the order in which these were reported.
pub(super) fn newest(mut states: SharedStates, seen: &mut BTreeSet<InstanceName>) -> SharedStates {
    states.reverse();
    states.retain(|state| seen.insert(state.state().instance.clone()));
    states.reverse();
    states
}
