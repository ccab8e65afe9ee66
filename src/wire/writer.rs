//! Sends what waits for all peers. One thread serves all of them because each state change goes to
//! every agent: a thread for each peer would be woken twice for every message, once to send it and
//! once when it was sent.
//!
//! Thread: `tx`; it waits for no peer, gRPC reports which of them can take more.
//! Owns: the writing end of every stream. Takes: what the outboxes hold. A stream ends when its
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
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Where messages of one stream go; the end of it drops the call.
pub(crate) type Line = Box<dyn Sink<(Outgoing, WriteFlags), Error = grpcio::Error> + Unpin + Send>;

/// Gives streams to the writing thread, which ends after this was dropped and the last stream has
/// ended.
pub(crate) struct Writer(Arc<Due>);

/// Streams for which there is something to do.
struct Due {
    state: Mutex<DueState>,
    changed: Sender<()>,
}

struct DueState {
    added: Vec<(PeerId, PeerStream, Waker)>,
    peers: Vec<Arc<Woken>>,
    no_more: bool,
}

/// Marks that a stream can go on.
struct Woken {
    peer: PeerId,
    /// Whether it is marked already.
    marked: AtomicBool,
    due: Arc<Due>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.marked.swap(true, Ordering::AcqRel) {
            self.due.change(|state| state.peers.push(self.clone()));
        }
    }
}

impl Due {
    fn change(&self, change: impl FnOnce(&mut DueState)) {
        change(&mut self.state.lock());
        let _ = self.changed.try_send(()); // Full: it looks again anyway.
    }
}

impl Writer {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn start(watched: &mut WatchedThreads) -> io::Result<Self> {
        let (changed, changes) = bounded(1);
        let state = DueState {
            added: Vec::new(),
            peers: Vec::new(),
            no_more: false,
        };
        let due = Arc::new(Due {
            state: Mutex::new(state),
            changed: changed.clone(),
        });
        let heartbeat = watched.add_woken_by("tx", move || _ = changed.try_send(()));
        let owned = due.clone();
        threads::spawn("tx", STACK_LARGE, move || {
            Streams::default().serve(&owned, &changes, &heartbeat)
        })?;
        Ok(Self(due))
    }

    /// Wakes the thread for this stream.
    pub(crate) fn waker(&self, peer: PeerId) -> Waker {
        Waker::from(Arc::new(Woken {
            peer,
            marked: AtomicBool::new(false),
            due: self.0.clone(),
        }))
    }

    /// Gives a stream to the thread; `waker` is the one that was made for it.
    pub(crate) fn add(&self, peer: PeerId, stream: PeerStream, waker: Waker) {
        self.0
            .change(|state| state.added.push((peer, stream, waker)));
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.change(|state| state.no_more = true);
    }
}

// ------------------------------------------------------------------ the thread

#[derive(Default)]
struct Streams {
    streams: HashMap<PeerId, Slot>,
    /// Bytes sent since free memory was given back, approximately.
    sent: usize,
    /// When to give it back.
    trim_at: Option<Instant>,
}

struct Slot {
    stream: PeerStream,
    waker: Waker,
    /// When to continue although nobody wakes it.
    alarm: Option<Instant>,
}

impl Streams {
    fn serve(mut self, due: &Due, changes: &Receiver<()>, heartbeat: &Heartbeat) {
        loop {
            heartbeat.turn();
            let alarm = self.streams.values().filter_map(|slot| slot.alarm).min();
            let at = alarm.into_iter().chain(self.trim_at).min();
            let _ = at.map_or_else(|| changes.recv().ok(), |at| changes.recv_deadline(at).ok());
            let mut state = due.state.lock();
            let (added, woken) = (
                std::mem::take(&mut state.added),
                std::mem::take(&mut state.peers),
            );
            if state.no_more && self.streams.is_empty() && added.is_empty() {
                return;
            }
            drop(state);
            for (peer, stream, waker) in added {
                self.streams.insert(
                    peer,
                    Slot {
                        stream,
                        waker,
                        alarm: None,
                    },
                );
                self.advance(peer);
            }
            for woken in woken {
                // Before it goes on, so that what comes meanwhile marks it again.
                woken.marked.store(false, Ordering::Release);
                self.advance(woken.peer);
            }
            let now = SystemClock.now();
            if alarm.is_some_and(|at| at <= now) {
                let is_due = |(_, slot): &(&PeerId, &Slot)| slot.alarm.is_some_and(|at| at <= now);
                let due: Vec<PeerId> = self
                    .streams
                    .iter()
                    .filter(is_due)
                    .map(|(peer, _)| *peer)
                    .collect();
                due.into_iter().for_each(|peer| self.advance(peer));
            }
            self.give_back(now);
        }
    }

    /// A burst of many small messages leaves free memory behind like a large one does. Giving it
    /// back takes milliseconds, so it waits until most bursts are over, but not for a pause: where
    /// somebody always sends there is none.
    fn give_back(&mut self, now: Instant) {
        if self.trim_at.is_none() && self.sent >= BURST_TRIM_FROM {
            self.trim_at = Some(now + BURST_TRIM_AFTER);
        } else if self.trim_at.is_some_and(|at| at <= now) {
            (self.sent, self.trim_at) = (0, None);
            give_back_after(BURST_TRIM_FROM);
        }
    }

    fn advance(&mut self, peer: PeerId) {
        let Some(slot) = self.streams.get_mut(&peer) else {
            return;
        };
        let next = slot
            .stream
            .advance(&mut Context::from_waker(&slot.waker), SystemClock.now());
        self.sent = self
            .sent
            .saturating_add(std::mem::take(&mut slot.stream.sent));
        match next {
            Next::Woken => slot.alarm = None,
            Next::At(at) => slot.alarm = Some(at),
            Next::Ended => {
                self.streams.remove(&peer);
                self.sent = self.sent.saturating_add(BURST_TRIM_FROM / 16); // What waited for it.
            }
        }
    }
}

// ------------------------------------------------------------------ one stream

/// When a stream goes on.
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
    /// Whether states for it wait a little after some were sent.
    bundles_states: bool,
    rest_until: Option<Instant>,
    /// Bytes of the message that is being sent, until it was.
    sending: Option<usize>,
    /// Bytes of the messages that were sent since [`Streams::advance`] took the count.
    sent: usize,
    /// Since when the peer takes nothing although it should.
    blocked_since: Option<Instant>,
    closing: bool,
}

impl PeerStream {
    /// A stream to `name`; with `bundles_states` states that follow each other closely are sent
    /// together.
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
            rest_until: None,
            sending: None,
            sent: 0,
            blocked_since: None,
            closing: false,
        }
    }

    /// Sends what can be sent.
    fn advance(&mut self, context: &mut Context<'_>, now: Instant) -> Next {
        // Messages sent to one peer in a row while others wait.
        for _ in 0..16 {
            if self.closing {
                return match Pin::new(&mut *self.line).poll_close(context) {
                    Poll::Ready(_) => Next::Ended,
                    Poll::Pending => self.blocked(now),
                };
            }
            if self.has_nothing_to_do() {
                return Next::Woken;
            }
            match Pin::new(&mut *self.line).poll_ready(context) {
                Poll::Pending => return self.blocked(now),
                // The reader of this stream notices and reports it.
                Poll::Ready(Err(_)) => return Next::Ended,
                Poll::Ready(Ok(())) => self.was_sent(),
            }
            if let Some(at) = self.rest_until.filter(|at| now < *at)
                && self.reader.has_only_states()
            {
                return Next::At(at);
            }
            if !self.send_next(now) {
                return Next::Ended;
            }
        }
        context.waker().wake_by_ref();
        Next::Woken
    }

    /// Whether nothing waits for it, and nothing is being sent whose end matters.
    fn has_nothing_to_do(&self) -> bool {
        self.sending.is_none() && !self.reader.ended() && self.reader.is_empty()
    }

    /// The peer took everything that was sent.
    fn was_sent(&mut self) {
        self.blocked_since = None;
        if let Some(bytes) = self.sending.take() {
            self.reader.sent();
            give_back_after(bytes);
        }
    }

    /// Sends one message, or begins to close. Returns whether the stream lives.
    fn send_next(&mut self, now: Instant) -> bool {
        let states = self.reader.has_only_states();
        let ended = self.reader.ended(); // Read first, so that the last message is not missed.
        let Some(message) = self.reader.next_to_send() else {
            self.closing = ended;
            return true;
        };
        // What did not fit into the message follows at once.
        self.rest_until = Some(now + STATES_REST)
            .filter(|_| states && self.bundles_states && self.reader.is_empty());
        let bytes = message.size();
        self.sent = self.sent.saturating_add(bytes);
        // A small one goes out at once, and waking up just to see that would cost as much as
        // sending it.
        self.sending = Some(bytes).filter(|bytes| *bytes > PEER_SMALL_MESSAGE);
        let sent = Pin::new(&mut *self.line).start_send((message, WriteFlags::default()));
        if self.sending.is_none() {
            self.reader.sent();
        }
        sent.is_ok()
    }

    /// The peer takes nothing at the moment. While others wait for the room of its responses, it
    /// has less time.
    fn blocked(&mut self, now: Instant) -> Next {
        let since = *self.blocked_since.get_or_insert(now);
        let transfer =
            Duration::from_secs(self.sending.map_or(0, |bytes| bytes as u64 / PEER_SLOWEST));
        let until = since + patience(PEER_STUCK) + transfer;
        let crowded_at = since + PEER_STUCK_CROWDED;
        if now < until && (now < crowded_at || !self.reader.takes_contended_capacity()) {
            let look_at = if now < crowded_at {
                crowded_at
            } else {
                now + PEER_STUCK_CROWDED
            };
            return Next::At(if self.reader.takes_capacity() {
                look_at.min(until)
            } else {
                until
            });
        }
        if !self.closing {
            let (took, crowd) = (
                now.saturating_duration_since(since),
                if now < until { ", and others wait" } else { "" },
            );
            log::warn!(
                "'{}' took nothing for {took:.0?}{crowd}; closing, it resynchronises on reconnect.",
                self.name
            );
        }
        Next::Ended
    }
}

#[cfg(test)]
mod tests;
