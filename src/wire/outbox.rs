//! The queue of messages waiting for one peer: never blocks who puts, merges what may be merged, is bounded in the
//! memory that it takes. Log lines that find no room are dropped and counted, and the stream says so. Who builds large
//! answers can ask first whether they would be sent soon.
//!
//! Thread: [`Outbox`] belongs to the thread that decides, [`OutboxReader`] to `tx`.

use crate::limits::{
    PEER_ANSWERS_BYTES, PEER_DROPPED_LOGS, PEER_OUTBOX, PEER_OUTBOX_BYTES, PEER_OUTBOX_ENTRY, PEER_OUTBOX_LARGE,
    PEER_OUTBOX_LOG_BYTES, PEER_OUTBOX_STATES_BYTES, STATES_MESSAGE_BYTES,
};
use crate::model::execution_state::WorkloadState;
use crate::model::log_entries;
use crate::model::messages::{FromServer, LogEntry, Response, ResponseContent};
use crate::model::names::{InstanceName, Name};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
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

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Entry>,
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
    /// Encoded size of this batch of states from which on it is worth to look for outdated ones again.
    thin_out_at: usize,
}

#[derive(Debug)]
enum Content {
    Message(FromServer),
    Snapshot(Told),
}

impl Content {
    /// The next message, and what is left behind it.
    fn next(self) -> (Option<FromServer>, Option<Self>) {
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
                (Some(FromServer::WorkloadStates(states)), rest)
            }
            Self::Message(message) => (Some(message), None),
            Self::Snapshot(mut told) => {
                let message = told.next_message();
                let has_more = told.sent < told.snapshot.states.len();
                (message, has_more.then_some(Self::Snapshot(told)))
            }
        }
    }
}

/// All states of one moment, shared by all who are told of them.
#[derive(Debug)]
pub struct StatesSnapshot {
    states: Vec<WorkloadState>,
    /// Each agent with states, once.
    agents: Vec<Name>,
}

impl StatesSnapshot {
    /// A snapshot of `states`, which are sorted by agent.
    #[must_use]
    pub fn new(states: Vec<WorkloadState>) -> Arc<Self> {
        let mut agents: Vec<Name> = Vec::new();
        for state in &states {
            if agents.last() != Some(&state.instance.agent) {
                agents.push(state.instance.agent.clone());
            }
        }
        Arc::new(Self { states, agents })
    }
}

/// A snapshot for one peer.
#[derive(Debug)]
struct Told {
    snapshot: Arc<StatesSnapshot>,
    own: Name,
    /// Whose states are left out too.
    newcomer: Option<Name>,
    /// The peer knows what is in it, so a newer one can take its place.
    repeats: bool,
    /// How many of its states were sent.
    sent: usize,
}

impl Told {
    fn leaves_out(&self, agent: &Name) -> bool {
        *agent == self.own || self.newcomer.as_ref() == Some(agent)
    }

    /// The next states as a message that is not too large; `None` when all were sent.
    fn next_message(&mut self) -> Option<FromServer> {
        let rest = &self.snapshot.states[self.sent..];
        let mut own = Vec::new();
        let mut bytes = 0;
        for state in rest {
            if !self.leaves_out(&state.instance.agent) {
                bytes += state_bytes(state);
                if bytes > STATES_MESSAGE_BYTES && !own.is_empty() {
                    break;
                }
                own.push(state.clone());
            }
            self.sent += 1;
        }
        (!own.is_empty()).then_some(FromServer::WorkloadStates(own))
    }
}

/// Makes the two ends of a queue; nobody is woken.
#[must_use]
pub fn outbox() -> (Outbox, OutboxReader) {
    outbox_waking(Waker::noop().clone())
}

/// Makes the two ends of a queue. `wake` is woken when there is something to take.
#[must_use]
pub fn outbox_waking(wake: Waker) -> (Outbox, OutboxReader) {
    let queue = Arc::new(Mutex::new(Queue::default()));
    (Outbox { queue: queue.clone(), wake }, OutboxReader { queue })
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    // A poisoned queue is still a queue: no operation leaves it half changed.
    queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
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
        let is_busy = lock(&self.queue).bytes > PEER_OUTBOX_BYTES / 8;
        if is_busy { Ok(()) } else { self.put(message) }
    }

    /// Whether an answer would be sent soon, however large it is: hardly any other waits or is being sent. If not, `wake`
    /// is woken as soon as one would.
    #[must_use]
    pub fn has_room_for_answer(&self, wake: &Waker) -> bool {
        let mut queue = lock(&self.queue);
        let has_room = queue.has_room_for_answer();
        if !has_room {
            queue.wants_room = Some(wake.clone());
        }
        has_room
    }

    /// Whether less than half of the room for this peer is taken.
    #[must_use]
    pub fn is_half_empty(&self) -> bool {
        lock(&self.queue).bytes <= PEER_OUTBOX_BYTES / 2
    }

    fn put_with(&self, push: impl FnOnce(&mut Queue) -> Result<(), OutboxError>) -> Result<(), OutboxError> {
        let mut queue = lock(&self.queue);
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
        lock(&self.queue).outbox_gone = true;
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
        self.messages.push_back(Entry { content, bytes, is_large, thin_out_at: PEER_OUTBOX_STATES_BYTES });
        Ok(())
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

    /// The next message. States that are too many for one stay at the front.
    fn take(&mut self) -> Option<FromServer> {
        loop {
            let entry = self.messages.pop_front()?;
            self.forget(&entry);
            let thin_out_at = entry.thin_out_at;
            let (message, rest) = entry.content.next();
            if let Some(content) = rest {
                let bytes = if let Content::Message(message) = &content { waiting_bytes(message) } else { entry.bytes };
                self.bytes += bytes;
                self.messages.push_front(Entry { content, bytes, is_large: false, thin_out_at });
            }
            if message.is_some() {
                return message;
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
            Content::Message(FromServer::Response(_)) => Self::Answer,
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
    /// The next message if there is one.
    pub fn try_next(&self) -> Option<FromServer> {
        let message = self.next_to_send();
        self.sent();
        message
    }

    /// The next message if there is one. If it is an answer it counts as waiting until [`Self::sent`].
    pub fn next_to_send(&self) -> Option<FromServer> {
        let mut queue = lock(&self.queue);
        let before = queue.answer_bytes;
        let message = queue.take();
        queue.sending_bytes += before - queue.answer_bytes;
        queue.tell_room();
        message
    }

    /// What was taken before is sent.
    pub fn sent(&self) {
        let mut queue = lock(&self.queue);
        queue.sending_bytes = 0;
        queue.tell_room();
    }

    /// Whether the other end was dropped; what it has put before can still be taken.
    #[must_use]
    pub fn ended(&self) -> bool {
        lock(&self.queue).outbox_gone
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        lock(&self.queue).messages.is_empty()
    }

    /// Whether nothing waits but a batch of states, which further ones would join.
    #[must_use]
    pub fn has_only_states(&self) -> bool {
        let queue = lock(&self.queue);
        let mut entries = queue.messages.iter();
        let states = |entry: &Entry| matches!(entry.content, Content::Message(FromServer::WorkloadStates(_)));
        !queue.outbox_gone && entries.next().is_some_and(states) && entries.next().is_none()
    }
}

impl Drop for OutboxReader {
    fn drop(&mut self) {
        let mut queue = lock(&self.queue);
        queue.reader_gone = true;
        queue.messages.clear();
        (queue.bytes, queue.log_bytes) = (0, 0);
        queue.dropped.clear();
    }
}

// ------------------------------------------------------------------- sizes

const OVERHEAD: usize = 16;

fn name_bytes(name: &InstanceName) -> usize {
    name.workload.len() + name.id.len() + name.agent.len() + OVERHEAD
}

fn state_bytes(state: &WorkloadState) -> usize {
    name_bytes(&state.instance) + state.state.additional_info.len() + OVERHEAD
}

/// What states take while they wait if each is the newest of its instance, in bytes, roughly: their texts are those in
/// the state of the cluster then, and nobody has a copy.
fn shared_bytes(states: &[WorkloadState]) -> usize {
    let own = states.iter().map(|state| size_of::<WorkloadState>() + name_bytes(&state.instance));
    own.sum::<usize>() + PEER_OUTBOX_ENTRY
}

/// What a message takes in memory while it waits, in bytes, roughly. A state as a tree takes many times what it takes
/// encoded.
fn waiting_bytes(message: &FromServer) -> usize {
    let content = match message {
        FromServer::WorkloadStates(states) => {
            states.iter().map(|state| size_of::<WorkloadState>() + state_bytes(state)).sum()
        }
        FromServer::Response(Response { id, content: ResponseContent::CompleteState { state, altered } }) => {
            let paths = altered.iter().flat_map(|a| a.added.iter().chain(&a.updated).chain(&a.removed));
            id.len() + state.memory_bytes() + paths.map(|path| path.len() + size_of::<String>()).sum::<usize>()
        }
        other => approximate_bytes(other),
    };
    content + PEER_OUTBOX_ENTRY
}

/// Roughly the encoded size of a message, in bytes. A bound needs no exact number.
#[must_use]
pub fn approximate_bytes(message: &FromServer) -> usize {
    use crate::model::access_rules::AccessRule;
    use crate::model::messages::AddedWorkload;
    fn added_bytes(added: &AddedWorkload) -> usize {
        let workload = &added.workload;
        let files: usize = workload
            .files
            .iter()
            .map(|file| match &file.content {
                crate::model::workload::FileContent::Data(text)
                | crate::model::workload::FileContent::BinaryData(text) => file.mount_point.len() + text.len(),
            })
            .sum();
        let tags: usize = workload.tags.iter().map(|(key, text)| key.len() + text.len() + OVERHEAD).sum();
        let dependencies: usize = workload.dependencies.keys().map(|name| name.len() + OVERHEAD).sum();
        let access = &workload.control_interface_access;
        let rules = access.allow_rules.iter().chain(&access.deny_rules);
        let texts = rules.flat_map(|rule| match rule {
            AccessRule::State { filter_masks, .. } => filter_masks,
            AccessRule::Log { workload_names } => workload_names,
        });
        let access: usize = texts.map(|text| text.len() + OVERHEAD).sum();
        let runtime = workload.runtime.len() + workload.runtime_config.len();
        name_bytes(&added.instance) + runtime + files + tags + dependencies + access + 8 * OVERHEAD
    }
    match message {
        FromServer::ServerHello(added) => added.iter().map(added_bytes).sum::<usize>() + OVERHEAD,
        FromServer::UpdateWorkload(plan) => {
            let deleted = plan.deleted.iter().map(|entry| {
                let dependencies = entry.dependencies.keys().map(|name| name.len() + OVERHEAD);
                name_bytes(&entry.instance) + dependencies.sum::<usize>()
            });
            plan.added.iter().map(added_bytes).sum::<usize>() + deleted.sum::<usize>() + OVERHEAD
        }
        FromServer::WorkloadStates(states) => states.iter().map(state_bytes).sum::<usize>() + OVERHEAD,
        FromServer::Response(response) => {
            response.id.len()
                + OVERHEAD
                + match &response.content {
                    ResponseContent::Error(text) => text.len(),
                    ResponseContent::CompleteState { state, altered } => {
                        let paths = altered.iter().flat_map(|a| a.added.iter().chain(&a.updated).chain(&a.removed));
                        state.approximate_bytes() + paths.map(|path| path.len() + 4).sum::<usize>()
                    }
                    ResponseContent::UpdateStateSuccess { added, deleted } => {
                        added.iter().chain(deleted).map(|name| name.len() + 4).sum()
                    }
                    ResponseContent::LogsAccepted(names) => names.iter().map(name_bytes).sum(),
                    ResponseContent::LogEntries(entries) => {
                        entries.iter().map(|entry| name_bytes(&entry.instance) + entry.message.len()).sum()
                    }
                    ResponseContent::LogsStop(name) => name_bytes(name),
                    ResponseContent::LogsCancelAccepted | ResponseContent::EventsCancelAccepted => 0,
                }
        }
        FromServer::LogsRequest { request_id, request } => {
            let times: usize = [&request.since, &request.until].into_iter().flatten().map(String::len).sum();
            request_id.len() + times + request.instances.iter().map(name_bytes).sum::<usize>() + OVERHEAD
        }
        FromServer::LogsCancel { request_id } => request_id.len() + OVERHEAD,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::execution_state::{ExecutionState, Phase};

    fn state(workload: &str, phase: Phase) -> WorkloadState {
        WorkloadState::new(InstanceName::with_id(workload, "id", "A"), ExecutionState::plain(phase))
    }

    fn states(states: &[WorkloadState]) -> FromServer {
        FromServer::WorkloadStates(states.to_vec())
    }

    fn response(bytes: usize) -> FromServer {
        let content = ResponseContent::UpdateStateSuccess { added: vec!["x".repeat(bytes)], deleted: vec![] };
        FromServer::Response(Response { id: String::new(), content })
    }

    fn refusal() -> FromServer {
        FromServer::Response(Response { id: String::new(), content: ResponseContent::Error("no".to_owned()) })
    }

    #[test]
    fn waiting_states_travel_together_and_none_is_left_out() {
        let (outbox, reader) = outbox();
        let (first, second) = (state("a", Phase::PendingStarting), state("a", Phase::Running));
        outbox.put(states(&[first.clone(), state("b", Phase::Running)])).unwrap();
        outbox.put(states(std::slice::from_ref(&second))).unwrap();
        assert_eq!(reader.try_next(), Some(states(&[first, state("b", Phase::Running), second])));
        assert_eq!(reader.try_next(), None);
    }

    #[test]
    fn outdated_states_are_merged_to_the_newest_of_each_instance() {
        let old = state("a", Phase::PendingStarting);
        let (new, other) = (state("a", Phase::Running), state("b", Phase::Running));
        assert_eq!(newest(vec![old, other.clone(), new.clone()]), [other, new]);
    }

    #[test]
    fn states_are_not_moved_before_another_message() {
        let (outbox, reader) = outbox();
        outbox.put(states(&[state("a", Phase::PendingStarting)])).unwrap();
        outbox.put(response(1)).unwrap();
        outbox.put(states(&[state("a", Phase::Running)])).unwrap();
        drop(outbox);
        assert_eq!(reader.try_next(), Some(states(&[state("a", Phase::PendingStarting)])));
        assert_eq!(reader.try_next(), Some(response(1)));
        assert_eq!(reader.try_next(), Some(states(&[state("a", Phase::Running)])));
        assert_eq!(reader.try_next(), None);
    }

    #[test]
    fn a_flood_of_states_for_a_slow_peer_takes_bounded_room() {
        let (outbox, reader) = outbox();
        for round in 0..100_000 {
            let name = format!("w{}", round % 10);
            outbox.put(states(&[state(&name, Phase::Running)])).unwrap();
        }
        let queue = lock(&reader.queue);
        assert_eq!(queue.messages.len(), 1);
        assert!(queue.bytes <= PEER_OUTBOX_STATES_BYTES, "{}", queue.bytes);
    }

    fn on(workload: &str, agent: &str) -> WorkloadState {
        WorkloadState::new(InstanceName::with_id(workload, "id", agent), ExecutionState::plain(Phase::Running))
    }

    fn name(text: &str) -> Name {
        text.into()
    }

    #[test]
    fn a_snapshot_leaves_out_the_peers_own_states_and_those_of_the_newcomer() {
        let snapshot = StatesSnapshot::new(vec![on("u", ""), on("a", "A"), on("a2", "A"), on("b", "B")]);
        for (own, newcomer, expected) in [
            ("A", "B", vec![on("u", "")]),
            ("B", "B", vec![on("u", ""), on("a", "A"), on("a2", "A")]),
            ("C", "D", vec![on("u", ""), on("a", "A"), on("a2", "A"), on("b", "B")]),
        ] {
            let (outbox, reader) = outbox();
            outbox.put_snapshot(&snapshot, &name(own), &name(newcomer), true).unwrap();
            assert_eq!(reader.try_next(), Some(states(&expected)), "{own} {newcomer}");
        }
        let (outbox, reader) = outbox();
        for all in [vec![], vec![on("a", "A"), on("b", "B")]] {
            outbox.put_snapshot(&StatesSnapshot::new(all), &name("A"), &name("B"), true).unwrap();
        }
        assert_eq!(reader.try_next(), None);
    }

    #[test]
    fn of_snapshots_that_wait_only_the_first_and_the_newest_are_told() {
        let (outbox, reader) = outbox();
        let snapshot = |count: usize| {
            StatesSnapshot::new(["A", "B", "C"].iter().map(|agent| on(&format!("w{count}"), agent)).collect())
        };
        outbox.put_snapshot(&snapshot(0), &name("own"), &name("own"), true).unwrap();
        for count in 1..1000 {
            outbox.put_snapshot(&snapshot(count), &name("own"), &name("C"), false).unwrap();
            outbox.put(states(&[state(&format!("{count}"), Phase::Running)])).unwrap();
        }
        outbox.put_snapshot(&snapshot(1000), &name("own"), &name("B"), false).unwrap();
        assert_eq!(reader.try_next(), Some(states(&[on("w0", "A"), on("w0", "B"), on("w0", "C")])));
        let between: Vec<WorkloadState> = (1..1000).map(|count| state(&count.to_string(), Phase::Running)).collect();
        let mut told = Vec::new();
        while told.len() < between.len()
            && let Some(FromServer::WorkloadStates(states)) = reader.try_next()
        {
            told.extend(states);
        }
        assert_eq!(told, between);
        // The older ones would have told of B, the newest tells of C.
        assert_eq!(reader.try_next(), Some(states(&[on("w1000", "A"), on("w1000", "B"), on("w1000", "C")])));
        assert_eq!((reader.try_next(), lock(&reader.queue).bytes), (None, 0));
    }

    fn line(id: &str, workload: &str, text: &str) -> FromServer {
        let instance = InstanceName::with_id(workload, "id", "A");
        let entries = vec![LogEntry { instance, message: text.to_owned() }];
        FromServer::Response(Response { id: id.to_owned(), content: ResponseContent::LogEntries(entries) })
    }

    fn stop(id: &str, workload: &str) -> FromServer {
        let instance = InstanceName::with_id(workload, "id", "A");
        FromServer::Response(Response { id: id.to_owned(), content: ResponseContent::LogsStop(instance) })
    }

    #[test]
    fn log_lines_without_room_are_dropped_and_the_stream_says_how_many() {
        let (outbox, reader) = outbox();
        for _ in 0..PEER_OUTBOX + 3 {
            outbox.put(line("r", "a", "x")).unwrap();
        }
        outbox.put(line("r", "b", "x")).unwrap();
        outbox.put(line("other", "a", "x")).unwrap();
        // Answers still find room, and so do states.
        outbox.put(response(1)).unwrap();
        outbox.put(states(&[state("a", Phase::Running)])).unwrap();
        for _ in 0..PEER_OUTBOX {
            assert_eq!(reader.try_next(), Some(line("r", "a", "x")));
        }
        assert_eq!((reader.try_next(), reader.try_next().is_some()), (Some(response(1)), true));
        outbox.put(line("r", "c", "new")).unwrap();
        let text = |lines: &str| format!("[{lines} not shown: they came faster than they were read]");
        assert_eq!(reader.try_next(), Some(line("r", "a", &text("3 lines"))));
        assert_eq!(reader.try_next(), Some(line("r", "b", &text("1 line"))));
        assert_eq!(reader.try_next(), Some(line("r", "c", "new")));
        // A stream that ends says it before its end, another one when its turn comes, and nobody twice.
        outbox.put(stop("r", "a")).unwrap();
        outbox.put(stop("other", "a")).unwrap();
        assert_eq!(reader.try_next(), Some(stop("r", "a")));
        assert_eq!(reader.try_next(), Some(line("other", "a", &text("1 line"))));
        assert_eq!((reader.try_next(), reader.try_next()), (Some(stop("other", "a")), None));
        assert_eq!(lock(&reader.queue).bytes, 0);
    }

    #[test]
    fn log_lines_have_a_share_of_the_bytes_that_comes_back_when_they_are_read() {
        let (outbox, reader) = outbox();
        let long = "x".repeat(1024 * 1024);
        for _ in 0..100 {
            outbox.put(line("r", "a", &long)).unwrap();
        }
        let waiting =
            std::iter::from_fn(|| reader.try_next()).filter(|message| *message == line("r", "a", &long)).count();
        assert_eq!(waiting, PEER_OUTBOX_LOG_BYTES / long.len() - 1);
        assert_eq!(lock(&reader.queue).log_bytes, 0);
        outbox.put(line("r", "a", &long)).unwrap();
        assert_eq!(std::iter::from_fn(|| reader.try_next()).count(), 2, "the note and the line");
    }

    #[test]
    fn a_burst_of_small_messages_does_not_drop_a_peer() {
        let (outbox, reader) = outbox();
        for _ in 0..50_000 {
            outbox.put(response(10)).unwrap();
        }
        assert_eq!(std::iter::from_fn(|| reader.try_next()).count(), 50_000);
        let flood = (0..2_000_000).map(|_| outbox.put(response(10))).find(Result::is_err);
        assert_eq!(flood, Some(Err(OutboxError::Overflow)), "but a flood does");
        while reader.try_next().is_some() {}
        for _ in 0..1_000_000 {
            outbox.put_or_drop(refusal()).unwrap();
        }
        assert!(outbox.is_half_empty() && outbox.has_room_for_answer(Waker::noop()), "and refusals do not");
        let put = std::iter::from_fn(|| reader.try_next()).count();
        assert!((1_000..100_000).contains(&put), "{put}");
    }

    #[test]
    fn one_large_message_waits_beside_the_others() {
        let (outbox, reader) = outbox();
        outbox.put(response(100 * PEER_OUTBOX_BYTES)).unwrap();
        for _ in 0..3 {
            outbox.put(response(PEER_OUTBOX_LARGE)).unwrap();
        }
        assert_eq!(outbox.put(response(PEER_OUTBOX_LARGE)), Err(OutboxError::Overflow));
        outbox.put(response(1)).unwrap();
        assert_eq!(reader.try_next(), Some(response(100 * PEER_OUTBOX_BYTES)));
        outbox.put(response(100 * PEER_OUTBOX_BYTES)).unwrap();
        while reader.try_next().is_some() {}
        let queue = lock(&reader.queue);
        assert_eq!((queue.bytes, queue.answer_bytes, queue.has_large), (0, 0, false));
    }

    #[test]
    fn too_many_bytes_are_refused_and_a_gone_reader_is_noticed() {
        let (outbox, reader) = outbox();
        for _ in 0..16 {
            outbox.put(response(PEER_OUTBOX_BYTES / 16 - 1000)).unwrap();
        }
        assert_eq!(outbox.put(response(100_000)), Err(OutboxError::Overflow));
        assert!(!outbox.has_room_for_answer(Waker::noop()));
        drop(reader);
        assert_eq!(outbox.put(response(1)), Err(OutboxError::Closed));
        assert!(outbox.has_room_for_answer(Waker::noop()), "nobody has to wait for it");
    }

    #[derive(Default)]
    struct Count(std::sync::atomic::AtomicUsize);

    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    #[test]
    fn the_next_large_answer_has_room_once_the_one_before_it_is_sent() {
        let count = Arc::new(Count::default());
        let woken = || count.0.swap(0, std::sync::atomic::Ordering::Relaxed);
        let wake = Waker::from(count.clone());
        let (outbox, reader) = outbox();
        outbox.put(states(&vec![state("a", Phase::Running); 2000])).unwrap();
        outbox.put(line("r", "a", &"x".repeat(2 * PEER_ANSWERS_BYTES))).unwrap();
        assert!(outbox.has_room_for_answer(&wake), "nothing that waits is an answer");
        outbox.put(response(PEER_ANSWERS_BYTES)).unwrap();
        assert!(!outbox.has_room_for_answer(&wake));
        for _ in 0..2 {
            reader.next_to_send().unwrap();
            reader.sent();
        }
        assert_eq!(woken(), 0);
        assert_eq!(reader.next_to_send(), Some(response(PEER_ANSWERS_BYTES)));
        assert_eq!((woken(), outbox.has_room_for_answer(&wake)), (0, false), "it is being sent");
        reader.sent();
        assert_eq!((woken(), outbox.has_room_for_answer(&wake)), (1, true));
        reader.sent();
        assert_eq!(woken(), 0, "only who waits is woken");
    }

    fn told(workload: usize, bytes: usize) -> WorkloadState {
        let info = "x".repeat(bytes);
        WorkloadState::new(
            InstanceName::with_id(&format!("w{workload}"), "id", "A"),
            ExecutionState::with_info(Phase::Running, info),
        )
    }

    fn all_states(reader: &OutboxReader) -> Vec<Vec<WorkloadState>> {
        let messages = std::iter::from_fn(|| reader.try_next()).filter_map(|message| match message {
            FromServer::WorkloadStates(states) => Some(states),
            _ => None,
        });
        messages.collect()
    }

    #[test]
    fn long_texts_of_states_are_shared_by_all_who_wait_for_them_and_cut_nobody_off() {
        const LONG: usize = 16 * 1024;
        let peers: Vec<_> = (0..10).map(|_| outbox()).collect();
        let mut newest = Vec::new();
        for _ in 0..30 {
            newest = (0..200).map(|workload| told(workload, LONG)).collect();
            for (outbox, _) in &peers {
                outbox.put(states(&newest)).unwrap();
                outbox.put(response(1)).unwrap(); // Nothing is merged across it.
            }
        }
        for (_, reader) in &peers {
            let held: Vec<_> = all_states(reader).concat();
            assert!(held.len() * LONG <= PEER_OUTBOX_BYTES + newest.len() * LONG, "{} states", held.len());
            for state in &newest {
                let last = held.iter().rfind(|held| held.instance == state.instance).unwrap();
                assert!(Arc::ptr_eq(&last.state.additional_info, &state.state.additional_info));
            }
            assert_eq!(lock(&reader.queue).bytes, 0);
        }
    }

    #[test]
    fn states_are_told_in_messages_of_bounded_size() {
        const LONG: usize = 16 * 1024;
        let all: Vec<_> = (0..1_000).map(|workload| told(workload, LONG)).collect();
        let (outbox, reader) = outbox();
        outbox.put_snapshot(&StatesSnapshot::new(all.clone()), &name("B"), &name("B"), true).unwrap();
        outbox.put(states(&all[..10])).unwrap();
        let messages = all_states(&reader);
        for message in &messages {
            let bytes: usize = message.iter().map(state_bytes).sum();
            assert!(bytes <= STATES_MESSAGE_BYTES, "{bytes}");
        }
        assert_eq!(messages.concat(), [&all[..], &all[..10]].concat());
        assert_eq!(lock(&reader.queue).bytes, 0);
    }
}
