//! The messages that wait for one peer, and how many bytes there are of each kind.
//!
//! Thread: none, a plain value that both ends of an outbox lock.

use super::{Encoded, OTHERS_BYTES};
use crate::convert::messages::{before_state_entries, write_from_server};
use crate::limits::{PEER_OUTBOX_BYTES, PEER_SMALL_MESSAGE};
use crate::semaphore::{Permit, Semaphore};
use ankaios_model::limits::LOG_MESSAGE_MAX;
use ankaios_model::log_entries;
use ankaios_model::messages::{FromServer, Response, ResponseContent};
use ankaios_model::names::InstanceName;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

/// Size of a large message, in bytes. One large message may wait beyond the bound: the hello of an
/// agent with thousands of workloads, or the state of all of them.
pub(crate) const LARGE: usize = PEER_OUTBOX_BYTES / 4;
/// Bytes of responses that wait for one peer before no further request of it is processed. Many
/// small responses fit, and a large one is built only after the one before it was sent.
pub const PEER_RESPONSES_BYTES: usize = 128 * 1024;
/// Bytes of log lines that wait for one peer. Further lines are dropped.
pub(crate) const LOGS: usize = 3 * LOG_MESSAGE_MAX;
// A slow reader of a log cannot hold all of the capacity that others wait for.
const _: () = assert!(LOGS + LOG_MESSAGE_MAX < OTHERS_BYTES);
/// Bytes that wait for one peer before only the newest state of each instance is kept.
pub(crate) const STATES: usize = 512 * 1024;
/// Bytes of states in one message, about. All receivers may be sent a copy of one at the same time,
/// so it must be small; the library takes a smaller one at once, and the next one would follow it.
pub(crate) const STATES_MESSAGE_BYTES: usize = 2 * PEER_SMALL_MESSAGE;
/// Bytes of the tag and the length around a list of states.
pub(crate) const STATES_OVERHEAD: usize = 6;
/// Bytes that a waiting message is accounted beside its own: about its entry in the queue.
pub(crate) const ENTRY: usize = 256;
/// Log collections of one peer whose dropped lines are counted and reported.
const DROPPED_LOGS: usize = 1024;

/// Why a message was not taken. The connection must be closed; the peer gets all it needs when it
/// connects again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OutboxError {
    /// More bytes than [`PEER_OUTBOX_BYTES`] would wait.
    #[error("too much is waiting for it")]
    Overflow,
    /// The connection has ended already.
    #[error("its connection has ended")]
    Closed,
}

/// The next message to send.
#[derive(Debug, Default)]
pub struct Outgoing {
    head: Vec<u8>,
    rest: Vec<Arc<Encoded>>,
}

impl Outgoing {
    /// An empty list of states, a message without effect.
    pub(crate) fn no_states() -> Self {
        Self {
            head: before_state_entries(0),
            rest: Vec::new(),
        }
    }

    pub fn size(&self) -> usize {
        let rest: usize = self.rest.iter().map(|piece| piece.bytes()).sum();
        self.head.len() + rest
    }

    /// In one piece.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.size());
        bytes.extend_from_slice(&self.head);
        for piece in &self.rest {
            bytes.extend_from_slice(&piece.bytes);
        }
        bytes
    }
}

/// The kinds of messages that are accounted separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageKind {
    Log,
    /// A response except a refusal.
    Response,
    /// An error response. It is small, so a flood of requests gains little by it.
    Refusal,
    /// Workloads and log requests for an agent.
    Command,
    /// States of other agents' instances, one or several. They are merged into one message.
    States,
    /// States that a new connection begins with.
    FirstStates,
}

impl MessageKind {
    fn has_states(self) -> bool {
        matches!(self, Self::States | Self::FirstStates)
    }
}

/// A capacity that all peers share, and the bytes of it that the messages of one peer hold.
#[derive(Debug, Default)]
pub(crate) struct Share {
    pub(crate) capacity: Arc<Semaphore>,
    /// Bytes of waiting messages, the large one included.
    waiting: usize,
    /// The copy of the message that is being sent.
    pub(crate) sending: Permit,
}

impl Share {
    fn of(capacity: Arc<Semaphore>) -> Self {
        Self {
            capacity,
            ..Self::default()
        }
    }

    /// Bytes that wait or are being sent.
    pub(crate) fn held(&self) -> usize {
        self.waiting + self.sending.amount()
    }

    fn clear(&mut self) {
        self.waiting = 0;
        self.sending = Permit::default();
    }
}

/// The messages that wait for one peer.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// By number, which increases.
    entries: BTreeMap<u64, Entry>,
    next: u64,
    /// Number of the newest state of each instance; empty for a peer that keeps up.
    newest: BTreeMap<InstanceName, u64>,
    /// How many entries are states of an instance.
    states: usize,
    /// Largest message with states, in bytes.
    pub(crate) states_max: usize,
    /// Share of the responses to all peers.
    pub(crate) responses: Share,
    /// Share of the commands, first states and log lines for all peers.
    pub(crate) others: Share,
    /// Bytes of all entries but the large one.
    pub(crate) bytes: usize,
    /// Whether a large message waits, which is not part of `bytes`.
    pub(crate) has_large: bool,
    /// Bytes of log lines, part of `bytes`.
    pub(crate) log_bytes: usize,
    /// Woken when there is room for a response again.
    pub(crate) wants_room: Option<Waker>,
    /// Number of dropped lines of each log, until the stream can report it.
    dropped: BTreeMap<(String, InstanceName), u64>,
    pub(crate) outbox_gone: bool,
    pub(crate) reader_gone: bool,
}

#[derive(Debug)]
struct Entry {
    kind: MessageKind,
    /// Sent before `bytes`.
    head: Vec<u8>,
    bytes: Arc<Encoded>,
    /// Accounted bytes.
    size: usize,
    /// Whether it is the large message, which may exceed the bound.
    is_large: bool,
}

impl Queue {
    /// An empty queue.
    pub(crate) fn new(responses: Arc<Semaphore>, others: Arc<Semaphore>) -> Self {
        Self {
            states_max: STATES_MESSAGE_BYTES,
            responses: Share::of(responses),
            others: Share::of(others),
            ..Self::default()
        }
    }

    /// Returns whether `bytes` of states fit into one message, and the peer keeps up with them.
    pub(crate) fn keeps_up(&self, bytes: usize) -> bool {
        self.bytes + bytes <= STATES && bytes + STATES_OVERHEAD <= self.states_max
    }

    /// Whether hardly any response waits or is being sent.
    pub(crate) fn has_room_for_response(&self) -> bool {
        self.reader_gone || self.responses.held() < PEER_RESPONSES_BYTES
    }

    /// The share that messages of this kind hold. `None`: only the bytes of the queue bound them.
    pub(crate) fn share_mut(&mut self, kind: MessageKind) -> Option<&mut Share> {
        match kind {
            MessageKind::Response => Some(&mut self.responses),
            MessageKind::Log | MessageKind::Command | MessageKind::FirstStates => {
                Some(&mut self.others)
            }
            MessageKind::Refusal | MessageKind::States => None,
        }
    }

    /// Puts messages for this peer alone.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub(crate) fn push_pieces(
        &mut self,
        kind: MessageKind,
        pieces: Vec<Vec<u8>>,
    ) -> Result<(), OutboxError> {
        for piece in pieces {
            self.push_bytes(kind, piece)?;
        }
        Ok(())
    }

    /// Puts a message for this peer alone.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub(crate) fn push_bytes(
        &mut self,
        kind: MessageKind,
        bytes: Vec<u8>,
    ) -> Result<(), OutboxError> {
        let permit = match self.share_mut(kind) {
            Some(share) => share.capacity.acquire_anyway(bytes.len()),
            None => Permit::default(),
        };
        let encoded = Encoded {
            bytes,
            instance: None,
            _permit: permit,
        };
        self.push(kind, Vec::new(), Arc::new(encoded))
    }

    /// Puts a message of a `head` for this peer and `bytes` that other peers may be sent as well.
    ///
    /// - A state replaces the one of the same instance that waits, unless the peer keeps up.
    /// - One large message always finds room: the hello of an agent, or a state that was requested.
    ///
    /// # Errors
    /// [`OutboxError::Overflow`].
    pub(crate) fn push(
        &mut self,
        kind: MessageKind,
        head: Vec<u8>,
        bytes: Arc<Encoded>,
    ) -> Result<(), OutboxError> {
        // First remove an older state of the instance. For a peer that keeps up this is not done,
        // and `newest` is empty: to copy names that two threads use would cost more than the rest.
        let mut replaceable = None;
        if self.bytes <= STATES {
            self.newest.clear();
        } else if let Some(instance) = &bytes.instance {
            self.remove_older(instance);
            replaceable = Some(instance.clone());
        }
        // Then check that there is room.
        let size = if kind == MessageKind::FirstStates {
            ENTRY
        } else {
            head.len() + bytes.bytes() + ENTRY
        };
        let is_large = size >= LARGE && !self.has_large && !kind.has_states();
        if !is_large && self.bytes + size > PEER_OUTBOX_BYTES {
            return Err(OutboxError::Overflow);
        }
        // Finally add the entry.
        let entry = Entry {
            kind,
            head,
            bytes,
            size,
            is_large,
        };
        self.account(&entry, usize::wrapping_add);
        self.has_large |= is_large;
        if let Some(instance) = replaceable {
            self.newest.insert(instance, self.next);
        }
        self.entries.insert(self.next, entry);
        self.next += 1;
        Ok(())
    }

    /// Removes the waiting state of `instance`.
    fn remove_older(&mut self, instance: &InstanceName) {
        if self.newest.is_empty() {
            // The peer does not keep up any more, so the waiting states are entered first.
            for (number, entry) in &self.entries {
                if let Some(instance) = &entry.bytes.instance {
                    self.newest.insert(instance.clone(), *number);
                }
            }
        }
        if let Some(number) = self.newest.get(instance) {
            self.remove(*number);
        }
    }

    /// Adds the bytes of an entry to the accounts, or subtracts them.
    fn account(&mut self, entry: &Entry, change: impl Fn(usize, usize) -> usize) {
        if !entry.is_large {
            self.bytes = change(self.bytes, entry.size);
        }
        if let Some(share) = self.share_mut(entry.kind) {
            share.waiting = change(share.waiting, entry.size);
        }
        match entry.kind {
            MessageKind::Log => self.log_bytes = change(self.log_bytes, entry.size),
            MessageKind::States => self.states = change(self.states, 1),
            _ => {}
        }
    }

    fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        self.account(&entry, usize::wrapping_sub);
        if entry.is_large {
            self.has_large = false; // The queue holds at most one.
        }
        if let Some(instance) = &entry.bytes.instance
            && self.newest.get(instance) == Some(&number)
        {
            self.newest.remove(instance);
        }
        Some(entry)
    }

    /// Takes the next message, with its kind. Consecutive states become one message.
    pub(crate) fn take(&mut self) -> Option<(Outgoing, MessageKind)> {
        let (number, first) = self.entries.first_key_value()?;
        let kind = first.kind;
        if kind.has_states() {
            return Some((self.take_states(), kind));
        }
        let entry = self.remove(*number)?;
        let message = Outgoing {
            head: entry.head,
            rest: vec![entry.bytes],
        };
        Some((message, kind))
    }

    /// Takes the states before the first other entry, as many as fit into one message.
    fn take_states(&mut self) -> Outgoing {
        let mut message = Outgoing::default();
        let mut bytes = 0;
        while let Some((number, entry)) = self.entries.first_key_value() {
            let size = entry.bytes.bytes();
            let is_full = bytes > 0 && bytes + size + STATES_OVERHEAD > self.states_max;
            if is_full || !entry.kind.has_states() {
                break;
            }
            bytes += size;
            let taken = self.remove(*number);
            message.rest.extend(taken.map(|entry| entry.bytes));
        }
        message.head = before_state_entries(bytes);
        message
    }

    /// Wakes the waiter for a response when there is room.
    pub(crate) fn notify_room(&mut self) {
        if !self.has_room_for_response() {
            return;
        }
        if let Some(waker) = self.wants_room.take() {
            waker.wake();
        }
    }

    /// Puts log lines of these instances. Without room they are dropped and counted; the next lines
    /// that have room follow a line with the number of dropped ones.
    pub(crate) fn push_logs(&mut self, id: &str, instances: &[InstanceName], pieces: Vec<Vec<u8>>) {
        let bytes: usize = pieces.iter().map(|piece| piece.len() + ENTRY).sum();
        if !self.has_room_for_logs(bytes) {
            self.count_dropped(id, instances);
            return;
        }
        // First the numbers of dropped lines. They are short and few, so their room is not checked.
        // Without room one is lost, as the lines would be.
        let mut streams = Vec::new();
        for stream in self.dropped.keys() {
            let (request, _) = stream;
            if request == id {
                streams.push(stream.clone());
            }
        }
        for stream in streams {
            let _ = self.push_missing(stream);
        }
        // Then the lines, whose room was checked.
        for piece in pieces {
            let _ = self.push_bytes(MessageKind::Log, piece);
        }
    }

    fn has_room_for_logs(&self, bytes: usize) -> bool {
        self.log_bytes + bytes <= LOGS
            && self.bytes + bytes <= PEER_OUTBOX_BYTES
            && self.others.capacity.has_capacity()
    }

    fn count_dropped(&mut self, id: &str, instances: &[InstanceName]) {
        for instance in instances {
            let stream = (id.to_owned(), instance.clone());
            if let Some(lines) = self.dropped.get_mut(&stream) {
                *lines += 1;
            } else if self.dropped.len() < DROPPED_LOGS {
                self.dropped.insert(stream, 1);
            }
        }
    }

    /// Puts a line with the number of dropped lines of a log, if there are any.
    ///
    /// # Errors
    /// [`OutboxError::Overflow`].
    pub(crate) fn push_missing(
        &mut self,
        stream: (String, InstanceName),
    ) -> Result<(), OutboxError> {
        let Some(lines) = self.dropped.remove(&stream) else {
            return Ok(());
        };
        let (id, instance) = stream;
        let content = ResponseContent::LogEntries(vec![log_entries::dropped(instance, lines)]);
        let note = write_from_server(&FromServer::Response(Response { id, content }));
        self.push_bytes(MessageKind::Log, note)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether only states of instances wait, which further ones would join.
    pub(crate) fn has_only_states(&self) -> bool {
        self.states > 0 && self.states == self.entries.len()
    }

    /// Removes all messages and releases their capacity.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.newest.clear();
        self.dropped.clear();
        self.bytes = 0;
        self.log_bytes = 0;
        self.states = 0;
        self.responses.clear();
        self.others.clear();
    }
}
