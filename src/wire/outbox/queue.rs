//! What waits for one peer, and how much of each kind.
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

/// From this size on, in bytes, a message is large, of which one may wait beside the others: the
/// hello of an agent with thousands of workloads, or the state of all of them.
pub(crate) const LARGE: usize = PEER_OUTBOX_BYTES / 4;
/// While responses of this many bytes wait for one peer, no further request of it is processed.
/// Room for many small ones at once, and no large one is built before the one before it is sent.
pub const PEER_RESPONSES_BYTES: usize = 128 * 1024;
/// Bytes of log lines that wait for one peer. More are dropped.
pub(crate) const LOGS: usize = 3 * LOG_MESSAGE_MAX;
// One reader of a log that does not keep up takes no room that others wait for.
const _: () = assert!(LOGS + LOG_MESSAGE_MAX < OTHERS_BYTES);
/// When so many bytes wait for one peer, only the newest state of each instance is kept.
pub(crate) const STATES: usize = 512 * 1024;
/// Bytes of states in one message, about. Each receiver has a copy while it is being sent, and all
/// of them may be sent one at the same time; a smaller one would count as sent at once, and the
/// next one follow it.
pub(crate) const STATES_MESSAGE_BYTES: usize = 2 * PEER_SMALL_MESSAGE;
/// What a waiting message counts beside its own bytes: about its entry in the queue.
pub(crate) const ENTRY: usize = 256;
/// Log collections of one peer whose dropped lines are counted and reported.
const DROPPED_LOGS: usize = 1024;

/// Why a message was not taken: the connection must be closed, the peer resynchronises when it
/// comes back.
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
#[derive(Debug, Default)]
pub struct Outgoing {
    head: Vec<u8>,
    rest: Vec<Arc<Encoded>>,
}

impl Outgoing {
    /// A message that tells nobody anything: an empty list of states.
    pub(crate) fn no_states() -> Self {
        Self {
            head: before_state_entries(0),
            rest: Vec::new(),
        }
    }

    pub fn size(&self) -> usize {
        self.head.len() + self.rest.iter().map(|piece| piece.bytes()).sum::<usize>()
    }

    /// In one piece.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.size());
        bytes.extend_from_slice(&self.head);
        self.rest
            .iter()
            .for_each(|piece| bytes.extend_from_slice(&piece.bytes));
        bytes
    }
}

/// What is counted separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Log,
    /// Any other response that is no refusal: those are small, and of little use to a flood of
    /// requests.
    Answer,
    Refusal,
    /// Workloads and log requests for an agent.
    Command,
    /// States of others, of which several are sent in one message: one of an instance, or some that
    /// came together.
    States,
    /// States with which a newcomer begins.
    FirstStates,
}

impl Kind {
    fn has_states(self) -> bool {
        matches!(self, Self::States | Self::FirstStates)
    }

    /// In which room it counts.
    pub(crate) fn room(self) -> Option<usize> {
        match self {
            Self::Answer => Some(ANSWERS),
            Self::Log | Self::Command | Self::FirstStates => Some(OTHERS),
            Self::Refusal | Self::States => None,
        }
    }
}

/// The rooms that all peers share: that of responses, and that of commands, first states and log
/// lines.
pub(crate) const ANSWERS: usize = 0;
pub(crate) const OTHERS: usize = 1;

/// What waits for one peer.
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
    /// What waits for all peers takes there, and for this one among them.
    pub(crate) rooms: [Arc<Semaphore>; 2],
    /// What the messages take, except for one large one.
    pub(crate) bytes: usize,
    /// Whether a large one waits that is not counted.
    pub(crate) has_large: bool,
    /// How much of `bytes` is log lines.
    pub(crate) log_bytes: usize,
    /// What counts in each room, the large one as well.
    counted: [usize; 2],
    /// What the message that is being sent takes there.
    pub(crate) sending: [Permit; 2],
    /// Woken when there is room for a response again.
    pub(crate) wants_room: Option<Waker>,
    /// Log lines that were dropped, until the stream can report their number.
    dropped: BTreeMap<(String, InstanceName), u64>,
    pub(crate) outbox_gone: bool,
    pub(crate) reader_gone: bool,
}

#[derive(Debug)]
struct Entry {
    kind: Kind,
    /// What stands before `bytes`.
    head: Vec<u8>,
    bytes: Arc<Encoded>,
    /// What it counts, in bytes.
    counts: usize,
    /// Whether it is the large one that is not counted.
    is_large: bool,
}

impl Queue {
    /// With nothing in it.
    pub(crate) fn new(rooms: [Arc<Semaphore>; 2]) -> Self {
        Self {
            states_max: STATES_MESSAGE_BYTES,
            rooms,
            ..Self::default()
        }
    }

    /// Whether `bytes` of states would leave it one of a peer that keeps up, and fit into one
    /// message.
    pub(crate) fn keeps_up(&self, bytes: usize) -> bool {
        // With tag and length around them.
        self.bytes + bytes <= STATES && bytes + 6 <= self.states_max
    }

    /// Whether hardly any response waits or is being sent.
    pub(crate) fn has_room_for_answer(&self) -> bool {
        self.reader_gone || self.takes(ANSWERS) < PEER_RESPONSES_BYTES
    }

    /// What waits, or is being sent, takes in a room.
    pub(crate) fn takes(&self, room: usize) -> usize {
        self.counted[room] + self.sending[room].amount()
    }

    /// Puts a message that nobody else is sent.
    ///
    /// # Errors
    /// [`OutboxError::Overflow`].
    pub(crate) fn push_bytes(&mut self, kind: Kind, bytes: Vec<u8>) -> Result<(), OutboxError> {
        let _room = kind
            .room()
            .map(|room| self.rooms[room].acquire_anyway(bytes.len()))
            .unwrap_or_default();
        self.push(
            kind,
            Vec::new(),
            Arc::new(Encoded {
                bytes,
                instance: None,
                _room,
            }),
        )
    }

    /// Puts a message that others may be sent as well, behind a `head` of its own. Of the states of
    /// an instance a peer that keeps up gets every one; for one that does not only the newest is
    /// kept.
    ///
    /// One large message always finds room: the hello of an agent, or the state that was requested.
    ///
    /// # Errors
    /// [`OutboxError::Overflow`].
    pub(crate) fn push(
        &mut self,
        kind: Kind,
        head: Vec<u8>,
        bytes: Arc<Encoded>,
    ) -> Result<(), OutboxError> {
        let is_behind = self.bytes > STATES;
        // A copy of a name that two threads use costs more than all the rest.
        let instance = bytes.instance.as_ref().filter(|_| is_behind).cloned();
        match &instance {
            Some(instance) => self.remove_older(instance),
            None if is_behind => {}
            None => self.newest.clear(),
        }
        let counts = if kind == Kind::FirstStates {
            ENTRY
        } else {
            head.len() + bytes.bytes() + ENTRY
        };
        let is_large = counts >= LARGE && !self.has_large && !kind.has_states();
        if !is_large && self.bytes + counts > PEER_OUTBOX_BYTES {
            return Err(OutboxError::Overflow);
        }
        let entry = Entry {
            kind,
            head,
            bytes,
            counts,
            is_large,
        };
        self.count(&entry, usize::wrapping_add);
        self.has_large |= is_large;
        self.newest
            .extend(instance.map(|instance| (instance, self.next)));
        self.entries.insert(self.next, entry);
        self.next += 1;
        Ok(())
    }

    /// Removes the state of `instance` that waits.
    fn remove_older(&mut self, instance: &InstanceName) {
        if self.newest.is_empty() {
            let state =
                |(number, entry): (&u64, &Entry)| Some((entry.bytes.instance.clone()?, *number));
            self.newest = self.entries.iter().filter_map(state).collect();
        }
        if let Some(number) = self.newest.get(instance).copied() {
            self.remove(number);
        }
    }

    /// Counts an entry, or takes that back.
    fn count(&mut self, entry: &Entry, change: impl Fn(usize, usize) -> usize) {
        if !entry.is_large {
            self.bytes = change(self.bytes, entry.counts);
        }
        if let Some(room) = entry.kind.room() {
            self.counted[room] = change(self.counted[room], entry.counts);
        }
        match entry.kind {
            Kind::Log => self.log_bytes = change(self.log_bytes, entry.counts),
            Kind::States => self.states = change(self.states, 1),
            _ => {}
        }
    }

    fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        self.count(&entry, usize::wrapping_sub);
        self.has_large &= !entry.is_large;
        if let Some(instance) = entry
            .bytes
            .instance
            .as_ref()
            .filter(|instance| self.newest.get(*instance) == Some(&number))
        {
            self.newest.remove(instance);
        }
        Some(entry)
    }

    /// The next message, and of which kind it is. States that follow each other are sent together.
    pub(crate) fn take(&mut self) -> Option<(Outgoing, Kind)> {
        let (first, entry) = self
            .entries
            .first_key_value()
            .map(|(number, entry)| (*number, entry))?;
        if !entry.kind.has_states() {
            let entry = self.remove(first)?;
            return Some((
                Outgoing {
                    head: entry.head,
                    rest: vec![entry.bytes],
                },
                entry.kind,
            ));
        }
        let kind = entry.kind;
        let mut message = Outgoing::default();
        let mut bytes = 0;
        while let Some((
            number,
            Entry {
                kind, bytes: entry, ..
            },
        )) = self.entries.first_key_value()
            && kind.has_states()
        {
            // With tag and length around them.
            if bytes > 0 && bytes + entry.bytes() + 6 > self.states_max {
                break;
            }
            bytes += entry.bytes();
            let number = *number;
            message
                .rest
                .extend(self.remove(number).map(|entry| entry.bytes));
        }
        message.head = before_state_entries(bytes);
        Some((message, kind))
    }

    /// Wakes who waits for room for a response if there is some.
    pub(crate) fn notify_room(&mut self) {
        if self.wants_room.is_some() && self.has_room_for_answer() {
            self.wants_room.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Puts log lines. Those that find no room are dropped and counted; the next ones that find
    /// some come after a line with the number of missing ones.
    pub(crate) fn push_logs(&mut self, id: &str, instances: &[InstanceName], pieces: Vec<Vec<u8>>) {
        let bytes = pieces
            .iter()
            .map(|piece| piece.len() + ENTRY)
            .sum::<usize>();
        if self.log_bytes + bytes > LOGS
            || self.bytes + bytes > PEER_OUTBOX_BYTES
            || !self.rooms[OTHERS].has_capacity()
        {
            for instance in instances {
                let key = (id.to_owned(), instance.clone());
                if let Some(lines) = self.dropped.get_mut(&key) {
                    *lines += 1;
                } else if self.dropped.len() < DROPPED_LOGS {
                    self.dropped.insert(key, 1);
                }
            }
            return;
        }
        // Notes are short and few, and what follows them has been given room already.
        let missing: Vec<(String, InstanceName)> = self
            .dropped
            .keys()
            .filter(|(request, _)| request == id)
            .cloned()
            .collect();
        for stream in missing {
            let _ = self.push_missing(stream);
        }
        for piece in pieces {
            let _ = self.push_bytes(Kind::Log, piece);
        }
    }

    /// Puts a line in place of those that were dropped of a log, if there are any.
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
        self.push_bytes(Kind::Log, note)
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether nothing waits but states of instances, which further ones would join.
    pub(crate) fn has_only_states(&self) -> bool {
        self.states > 0 && self.states == self.entries.len()
    }

    /// Forgets all messages, which gives their room back.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.newest.clear();
        self.dropped.clear();
        (self.bytes, self.log_bytes, self.states) = (0, 0, 0);
        (self.counted, self.sending) = Default::default();
    }
}
