//! Sends the messages of all outboxes. One thread serves all peers because each state change goes
//! to every agent: a thread for each peer would be woken twice for every message, once to send it
//! and once when it was sent.
//!
//! Thread: `tx`; it waits for no peer, gRPC reports which of them can take more. A small response
//! is sent by `server` itself, when `tx` does nothing with that stream: its client waits for it.
//! Owns: the writing end of every stream. Takes: messages of the outboxes. A stream ends when its
//! outbox is dropped (status OK), when it fails, or when its peer takes nothing for [`PEER_STUCK`].

use super::outbox::{OutboxReader, Outgoing};
use super::peer::PeerId;
use crate::limits::{
    BURST_TRIM_AFTER, BURST_TRIM_FROM, PEER_SLOWEST, PEER_SMALL_MESSAGE, PEER_STUCK,
    PEER_STUCK_CROWDED, STATES_REST,
};
use ankaios_platform::clock::{Clock, SystemClock, patience};
use ankaios_platform::limits::STACK_LARGE;
use ankaios_platform::memory::give_back_after;
use ankaios_platform::sync::Mutex;
use ankaios_platform::threads;
use ankaios_platform::watchdog::{Heartbeat, WatchedThreads};
use crossbeam_channel::{Receiver, Sender, bounded};
use futures_util::Sink;
use grpcio::WriteFlags;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Messages sent to one peer in a row while other peers wait.
const MESSAGES_IN_A_ROW: u32 = 16;
/// Bytes that a stream leaves free when it ends, about: its queue and the buffers of gRPC.
const STREAM_BYTES: usize = BURST_TRIM_FROM / 16;

/// The sink for messages of one stream. Dropping it drops the call.
pub(crate) type Line = Box<dyn Sink<(Outgoing, WriteFlags), Error = grpcio::Error> + Unpin + Send>;

/// Gives streams to the writing thread. The thread ends after this was dropped and the last stream
/// has ended.
pub(crate) struct StreamWriter(Arc<Due>);

/// Streams that the thread has to look at.
struct Due {
    state: Mutex<DueState>,
    changed: Sender<()>,
}

#[derive(Default)]
struct DueState {
    added: Vec<Added>,
    woken: Vec<Arc<Woken>>,
    /// No stream will be added.
    is_closed: bool,
}

/// A stream that is given to the thread.
struct Added {
    peer: PeerId,
    stream: Arc<SharedStream>,
}

/// A stream that its thread advances. Another thread does so for a message that must not wait.
pub(crate) struct SharedStream {
    /// `None` when it has ended.
    stream: Mutex<Option<PeerStream>>,
    /// Wakes its thread.
    waker: Waker,
}

impl SharedStream {
    /// Sends the queued messages on the calling thread. Leaves them to the thread of the stream if
    /// that thread holds the stream at this moment.
    pub(crate) fn send_now(&self) {
        let Some(mut stream) = self.stream.try_lock() else {
            self.waker.wake_by_ref();
            return;
        };
        let next = self.advance(&mut stream, SystemClock.now());
        // Only the thread of the stream has timers, drops ended streams, and returns free memory
        // after a burst.
        let has_burst = match &*stream {
            Some(stream) => stream.sent >= BURST_TRIM_FROM,
            None => false,
        };
        drop(stream);
        if next != Next::Woken || has_burst {
            self.waker.wake_by_ref();
        }
    }

    fn advance(&self, stream: &mut Option<PeerStream>, now: Instant) -> Next {
        let Some(open) = stream else {
            return Next::Ended;
        };
        let next = open.advance(&mut Context::from_waker(&self.waker), now);
        if next == Next::Ended {
            *stream = None; // That ends the call.
        }
        next
    }
}

impl fmt::Debug for SharedStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SharedStream")
    }
}

/// The waker of one stream.
struct Woken {
    peer: PeerId,
    /// Whether it is in [`DueState::woken`] already.
    is_marked: AtomicBool,
    due: Arc<Due>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_marked.swap(true, Ordering::AcqRel) {
            self.due.change(|state| state.woken.push(self.clone()));
        }
    }
}

impl Due {
    fn change(&self, change: impl FnOnce(&mut DueState)) {
        change(&mut self.state.lock());
        let _ = self.changed.try_send(()); // Full: it looks again anyway.
    }
}

impl StreamWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn start(watched: &mut WatchedThreads) -> io::Result<Self> {
        let (changed, changes) = bounded(1);
        let due = Arc::new(Due {
            state: Mutex::default(),
            changed: changed.clone(),
        });
        let heartbeat = watched.add_woken_by("tx", move || _ = changed.try_send(()));
        let owned = due.clone();
        threads::spawn("tx", STACK_LARGE, move || {
            WriterStreams::default().serve(&owned, &changes, &heartbeat)
        })?;
        Ok(Self(due))
    }

    /// Wakes the thread for this stream.
    pub(crate) fn waker(&self, peer: PeerId) -> Waker {
        Waker::from(Arc::new(Woken {
            peer,
            is_marked: AtomicBool::new(false),
            due: self.0.clone(),
        }))
    }

    /// Gives a stream to the thread. `waker` is that of [`Self::waker`] for this peer.
    pub(crate) fn add(&self, peer: PeerId, stream: PeerStream, waker: Waker) -> Arc<SharedStream> {
        let shared = Arc::new(SharedStream {
            stream: Mutex::new(Some(stream)),
            waker,
        });
        let stream = shared.clone();
        // The thread takes it when it is woken, at the latest for a message of this stream.
        self.0.state.lock().added.push(Added { peer, stream });
        shared
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        self.0.change(|state| state.is_closed = true);
    }
}

// ------------------------------------------------------------------ the thread

/// All streams of the thread.
#[derive(Default)]
struct WriterStreams {
    streams: HashMap<PeerId, Slot>,
    /// Bytes sent since free memory was given back, approximately.
    sent: usize,
    /// When to give it back.
    trim_at: Option<Instant>,
}

struct Slot {
    stream: Arc<SharedStream>,
    /// When to continue without being woken.
    alarm: Option<Instant>,
}

impl WriterStreams {
    /// Serves streams until the [`StreamWriter`] was dropped and the last stream has ended.
    fn serve(mut self, due: &Due, changes: &Receiver<()>, heartbeat: &Heartbeat) {
        loop {
            heartbeat.turn();
            self.wait(changes);
            // First take the changes.
            let mut state = due.state.lock();
            let added = std::mem::take(&mut state.added);
            let woken = std::mem::take(&mut state.woken);
            if state.is_closed && self.streams.is_empty() && added.is_empty() {
                return;
            }
            drop(state);
            // Then advance the streams that are new, woken or due.
            for stream in added {
                self.add(stream);
            }
            for stream in woken {
                // Unmark it first, so that a message that comes meanwhile marks it again.
                stream.is_marked.store(false, Ordering::Release);
                self.advance(stream.peer);
            }
            let now = SystemClock.now();
            self.advance_due(now);
            self.give_back(now);
        }
    }

    /// Waits for a change, an alarm of a stream, or the time to give memory back.
    fn wait(&self, changes: &Receiver<()>) {
        let alarms = self.streams.values().filter_map(|slot| slot.alarm);
        match alarms.chain(self.trim_at).min() {
            Some(at) => _ = changes.recv_deadline(at),
            None => _ = changes.recv(),
        }
    }

    fn add(&mut self, added: Added) {
        let slot = Slot {
            stream: added.stream,
            alarm: None,
        };
        self.streams.insert(added.peer, slot);
        self.advance(added.peer);
    }

    /// Advances the streams whose alarms are due.
    fn advance_due(&mut self, now: Instant) {
        let mut due = Vec::new();
        for (peer, slot) in &self.streams {
            if slot.alarm.is_some_and(|at| at <= now) {
                due.push(*peer);
            }
        }
        for peer in due {
            self.advance(peer);
        }
    }

    /// Gives free memory back after a burst of many small messages. That takes milliseconds, so it
    /// waits until most bursts are over, but not for a pause: some peer may always receive.
    fn give_back(&mut self, now: Instant) {
        let Some(at) = self.trim_at else {
            if self.sent >= BURST_TRIM_FROM {
                self.trim_at = Some(now + BURST_TRIM_AFTER);
            }
            return;
        };
        if at <= now {
            self.sent = 0;
            self.trim_at = None;
            give_back_after(BURST_TRIM_FROM);
        }
    }

    fn advance(&mut self, peer: PeerId) {
        let Some(slot) = self.streams.get_mut(&peer) else {
            return;
        };
        let mut stream = slot.stream.stream.lock();
        let next = slot.stream.advance(&mut stream, SystemClock.now());
        if let Some(stream) = &mut *stream {
            let sent = std::mem::take(&mut stream.sent);
            self.sent = self.sent.saturating_add(sent);
        }
        drop(stream);
        match next {
            Next::Woken => slot.alarm = None,
            Next::At(at) => slot.alarm = Some(at),
            Next::Ended => {
                self.streams.remove(&peer);
                self.sent = self.sent.saturating_add(STREAM_BYTES);
            }
        }
    }
}

// ------------------------------------------------------------------ one stream

/// When a stream must be advanced again.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// When it is woken.
    Woken,
    /// When it is woken, and at this time at the latest.
    At(Instant),
    /// Never.
    Ended,
}

/// The writing end of one stream.
pub(crate) struct PeerStream {
    name: String,
    line: Line,
    reader: OutboxReader,
    /// Whether states wait for [`STATES_REST`] after some were sent.
    bundles_states: bool,
    /// Until when states wait.
    states_rest_until: Option<Instant>,
    /// Bytes of the large message that is being sent.
    sending: Option<usize>,
    /// Bytes that were sent since [`WriterStreams::advance`] took the number.
    sent: usize,
    /// Since when the peer takes nothing although something is to send.
    blocked_since: Option<Instant>,
    is_closing: bool,
}

impl PeerStream {
    /// A stream to `name`. With `bundles_states`, states that follow each other closely are sent in
    /// one message.
    pub(crate) fn new(
        name: String,
        line: Line,
        reader: OutboxReader,
        bundles_states: bool,
    ) -> Self {
        Self {
            name,
            line,
            reader,
            bundles_states,
            states_rest_until: None,
            sending: None,
            sent: 0,
            blocked_since: None,
            is_closing: false,
        }
    }

    /// Sends messages until the peer takes no more, none is left, or it is another peer's turn.
    fn advance(&mut self, context: &mut Context<'_>, now: Instant) -> Next {
        for _ in 0..MESSAGES_IN_A_ROW {
            if self.is_closing {
                return match Pin::new(&mut *self.line).poll_close(context) {
                    Poll::Ready(_) => Next::Ended,
                    Poll::Pending => self.blocked(now),
                };
            }
            if self.is_idle() {
                return Next::Woken;
            }
            match Pin::new(&mut *self.line).poll_ready(context) {
                Poll::Pending => return self.blocked(now),
                // The reader of this stream notices the end and reports it.
                Poll::Ready(Err(_)) => return Next::Ended,
                Poll::Ready(Ok(())) => self.was_sent(),
            }
            if let Some(at) = self.states_rest_until
                && now < at
                && self.reader.has_only_states()
            {
                return Next::At(at);
            }
            if !self.send_next(now) {
                return Next::Ended;
            }
        }
        // Continue after the other peers had their turn.
        context.waker().wake_by_ref();
        Next::Woken
    }

    /// Whether no message waits, and no large one is being sent.
    fn is_idle(&self) -> bool {
        self.sending.is_none() && !self.reader.ended() && self.reader.is_empty()
    }

    /// The peer has taken all messages that were sent.
    fn was_sent(&mut self) {
        self.blocked_since = None;
        if let Some(bytes) = self.sending.take() {
            self.reader.sent();
            give_back_after(bytes);
        }
    }

    /// Sends one message, or begins to close. Returns whether the stream is still open.
    fn send_next(&mut self, now: Instant) -> bool {
        let has_only_states = self.reader.has_only_states();
        // Asked before the next message is taken: a message added in between is then not missed.
        let has_ended = self.reader.ended();
        let Some(message) = self.reader.next_to_send() else {
            self.is_closing = has_ended;
            return true;
        };
        // States that did not fit into the message follow at once.
        self.states_rest_until = None;
        if has_only_states && self.bundles_states && self.reader.is_empty() {
            self.states_rest_until = Some(now + STATES_REST);
        }
        let bytes = message.size();
        self.sent = self.sent.saturating_add(bytes);
        let is_large = bytes > PEER_SMALL_MESSAGE;
        let sent = Pin::new(&mut *self.line).start_send((message, WriteFlags::default()));
        if is_large {
            self.sending = Some(bytes);
        } else {
            // gRPC takes it at once; waking up to see that would cost as much as sending it.
            self.sending = None;
            self.reader.sent();
        }
        sent.is_ok()
    }

    /// Ends the stream of a peer that has taken nothing for too long. While the messages for it
    /// hold capacity that other peers wait for, it has less time.
    fn blocked(&mut self, now: Instant) -> Next {
        let since = *self.blocked_since.get_or_insert(now);
        let bytes = self.sending.unwrap_or(0) as u64;
        let transfer = Duration::from_secs(bytes / PEER_SLOWEST);
        let until = since + patience(PEER_STUCK) + transfer;
        let crowded_at = since + PEER_STUCK_CROWDED;
        let is_late = now >= until;
        let is_crowded = now >= crowded_at && self.reader.holds_contended_capacity();
        if !is_late && !is_crowded {
            if !self.reader.holds_capacity() {
                return Next::At(until);
            }
            // Nothing wakes the stream when others begin to wait for the capacity: look again.
            let look_at = if now < crowded_at {
                crowded_at
            } else {
                now + PEER_STUCK_CROWDED
            };
            return Next::At(look_at.min(until));
        }
        if !self.is_closing {
            let name = &self.name;
            let time = now.saturating_duration_since(since);
            let crowd = if is_late { "" } else { ", and others wait" };
            log::warn!(
                "'{name}' took nothing for {time:.0?}{crowd}; closing the stream; the peer resynchronises when it reconnects."
            );
        }
        Next::Ended
    }
}

#[cfg(test)]
mod tests;
