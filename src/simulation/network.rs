//! Streams between agents and the server: messages take time and stay in order, connections break,
//! and both ends notice that later.
//!
//! Thread: the one of the test.

use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::messages::{FromServer, ToServer};
use ankaios_platform::clock::Clock;
use ankaios_wire::outbox::OutboxReader;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Longest time until an end notices that the other one has vanished, in milliseconds. TCP and the
/// keepalive of HTTP/2 take as long.
const NOTICED_AFTER_MS: u64 = 20_000;

/// Number of a stream, which is also that of the peer for the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamId(pub u64);

/// The next step of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamWork {
    Open,
    Up,
    Pump,
    Down,
    ServerNotices,
    ClientNotices,
}

/// A message that is on its way until `at`.
struct Timed<M> {
    at: Instant,
    message: M,
}

/// The arrival of the first message.
fn first_arrival<M>(messages: &VecDeque<Timed<M>>) -> Option<Instant> {
    messages.front().map(|timed| timed.at)
}

/// The arrival of the last message.
fn last_arrival<M>(messages: &VecDeque<Timed<M>>) -> Option<Instant> {
    messages.back().map(|timed| timed.at)
}

/// A stream that can do something, and what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamStep {
    pub stream: StreamId,
    pub work: StreamWork,
}

impl StreamStep {
    fn new(stream: StreamId, work: StreamWork) -> Self {
        Self { stream, work }
    }
}

struct Stream {
    node: usize,
    /// When the hello of the agent arrives; `None` afterwards.
    opens_at: Option<Instant>,
    up: VecDeque<Timed<ToServer>>,
    down: VecDeque<Timed<FromServer>>,
    reader: Option<OutboxReader>,
    /// The server may have put messages into the outbox.
    spoken: bool,
    server_notices_at: Option<Instant>,
    client_notices_at: Option<Instant>,
    server_open: bool,
    client_open: bool,
}

impl Stream {
    /// The arrival of the last message to the server, the hello among them.
    fn last_up(&self) -> Option<Instant> {
        last_arrival(&self.up).or(self.opens_at)
    }

    /// Whether all messages of the agent have arrived.
    fn is_up_empty(&self) -> bool {
        self.up.is_empty() && self.opens_at.is_none()
    }

    /// Closes the end of the server, which does not receive or send anything any more.
    fn close_server_end(&mut self) {
        self.server_open = false;
        self.opens_at = None;
        self.reader = None;
        self.up.clear();
    }

    /// Closes the end of the agent.
    fn close_client_end(&mut self) {
        self.client_open = false;
        self.down.clear();
    }

    /// Whether no message is on its way and no end is about to be noticed.
    fn is_settled(&self) -> bool {
        self.is_up_empty()
            && self.down.is_empty()
            && !self.spoken
            && self.server_open
            && self.client_open
            && self.server_notices_at.is_none()
            && self.client_notices_at.is_none()
    }
}

/// Whether there is a time and it has come.
pub(crate) fn is_reached(at: Option<Instant>, now: Instant) -> bool {
    match at {
        Some(at) => at <= now,
        None => false,
    }
}

/// All streams.
pub(crate) struct Network {
    clock: ManualClock,
    random: fastrand::Rng,
    /// Messages that may take seconds, in percent.
    slow: u32,
    streams: BTreeMap<StreamId, Stream>,
    opened: u64,
}

impl Network {
    pub(crate) fn new(clock: &ManualClock, random: fastrand::Rng, slow: u32) -> Self {
        Self {
            clock: clock.clone(),
            random,
            slow,
            streams: BTreeMap::new(),
            opened: 0,
        }
    }

    /// Draws when a message arrives that is sent now, not before the one `after` which it is sent.
    fn draw_arrival(&mut self, after: Option<Instant>) -> Instant {
        let is_slow = self.slow > 0 && self.random.u32(0..100) < self.slow;
        let latency_ms = if is_slow { 100..5_000 } else { 1..30 };
        let latency = Duration::from_millis(self.random.u64(latency_ms));
        let at = self.clock.now() + latency;
        match after {
            Some(after) => at.max(after),
            None => at,
        }
    }

    /// Draws when an end notices that the other one has vanished now.
    fn draw_notice(&mut self) -> Instant {
        let late = Duration::from_millis(self.random.u64(0..NOTICED_AFTER_MS));
        self.clock.now() + late
    }

    /// An agent connects.
    pub(crate) fn open(&mut self, node: usize) -> StreamId {
        self.opened += 1;
        let opens_at = Some(self.draw_arrival(None));
        let stream = Stream {
            node,
            opens_at,
            up: VecDeque::new(),
            down: VecDeque::new(),
            reader: None,
            spoken: false,
            server_notices_at: None,
            client_notices_at: None,
            server_open: true,
            client_open: true,
        };
        self.streams.insert(StreamId(self.opened), stream);
        StreamId(self.opened)
    }

    pub(crate) fn node(&self, stream: StreamId) -> usize {
        self.streams[&stream].node
    }

    /// The hello has arrived; without a reader the server is not there.
    pub(crate) fn opened(&mut self, id: StreamId, reader: Option<OutboxReader>) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.opens_at = None;
        if reader.is_none() {
            stream.close_server_end();
            stream.client_notices_at = Some(self.clock.now());
        }
        stream.reader = reader;
    }

    /// Sends a message of an agent, unless the server has closed its end. It is lost when the
    /// server is about to notice the end of the stream.
    pub(crate) fn send_up(&mut self, id: StreamId, message: ToServer) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        if !stream.server_open {
            return;
        }
        let last = stream.last_up();
        let at = self.draw_arrival(last);
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.server_notices_at.is_none()
        {
            stream.up.push_back(Timed { at, message });
        }
    }

    /// Takes the next message to the server.
    pub(crate) fn take_up(&mut self, id: StreamId) -> Option<ToServer> {
        let stream = self.streams.get_mut(&id)?;
        Some(stream.up.pop_front()?.message)
    }

    /// Takes the next message to the agent.
    pub(crate) fn take_down(&mut self, id: StreamId) -> Option<FromServer> {
        let stream = self.streams.get_mut(&id)?;
        Some(stream.down.pop_front()?.message)
    }

    /// The server handled an event and may have put messages into outboxes.
    pub(crate) fn server_spoke(&mut self) {
        for stream in self.streams.values_mut() {
            if stream.reader.is_some() {
                stream.spoken = true;
            }
        }
    }

    /// Sends the messages in the outbox of the server.
    pub(crate) fn pump(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.spoken = false;
        let Some(reader) = &stream.reader else { return };
        let has_ended = reader.ended();
        let mut messages = Vec::new();
        while let Some(message) = reader.try_next() {
            messages.push(message);
        }
        let mut last = last_arrival(&stream.down);
        let mut timed = Vec::new();
        for message in messages {
            let at = self.draw_arrival(last);
            last = Some(at);
            timed.push(Timed { at, message });
        }
        let end = self.draw_arrival(last);
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let are_lost = stream.client_notices_at.is_some() || !stream.client_open;
        if !are_lost {
            stream.down.extend(timed);
        }
        if has_ended {
            // Messages that the agent sends until it notices this arrive before the end does.
            stream.reader = None;
            stream.client_notices_at.get_or_insert(end);
            stream.server_notices_at.get_or_insert(end);
        }
    }

    /// Loses all messages on their way. Both ends notice it later.
    pub(crate) fn cut(&mut self, id: StreamId) {
        let server_notices_at = self.draw_notice();
        let client_notices_at = self.draw_notice();
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.up.clear();
        stream.down.clear();
        if stream.opens_at.take().is_some() {
            stream.server_open = false; // The hello was lost.
        }
        stream.server_notices_at.get_or_insert(server_notices_at);
        stream.client_notices_at.get_or_insert(client_notices_at);
        self.forget_closed();
    }

    /// Delays the messages on their way. The agent may give up in the meantime and connect with
    /// another stream. Messages of this stream arrive after those of the new one then.
    pub(crate) fn stall(&mut self, id: StreamId) {
        let late = Duration::from_millis(self.random.u64(0..NOTICED_AFTER_MS));
        let mut gives_up_at = None;
        if self.random.bool() {
            gives_up_at = Some(self.draw_notice());
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if let Some(opens_at) = &mut stream.opens_at {
            *opens_at += late;
        }
        for timed in &mut stream.up {
            timed.at += late;
        }
        for timed in &mut stream.down {
            timed.at += late;
        }
        if let Some(at) = gives_up_at {
            stream.client_notices_at.get_or_insert(at);
        }
    }

    /// Pauses the server for this time: agents without messages give up, and messages to the server
    /// arrive afterwards.
    pub(crate) fn server_pauses(&mut self, pause: Duration) {
        let now = self.clock.now();
        for stream in self.streams.values_mut() {
            if !stream.client_open {
                continue;
            }
            let after_ms = self.random.u64(NOTICED_AFTER_MS / 2..NOTICED_AFTER_MS);
            let after = Duration::from_millis(after_ms);
            if after < pause {
                stream.client_notices_at.get_or_insert(now + after);
            }
        }
    }

    /// Ends the agent's process: its messages arrive, then its end.
    pub(crate) fn client_dies(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        let last = stream.last_up();
        let at = self.draw_arrival(last);
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.close_client_end();
        stream.server_notices_at.get_or_insert(at);
        self.forget_closed();
    }

    /// Ends the server's process: its messages arrive, then its end.
    pub(crate) fn server_dies(&mut self) {
        let ids: Vec<StreamId> = self.streams.keys().copied().collect();
        for id in ids {
            let last = last_arrival(&self.streams[&id].down);
            let at = self.draw_arrival(last);
            let Some(stream) = self.streams.get_mut(&id) else {
                continue;
            };
            stream.close_server_end();
            stream.client_notices_at.get_or_insert(at);
        }
        self.forget_closed();
    }

    pub(crate) fn close_server_end(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.close_server_end();
            if stream.client_open && stream.client_notices_at.is_none() {
                stream.client_notices_at = Some(self.clock.now());
            }
        }
        self.forget_closed();
    }

    pub(crate) fn close_client_end(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.close_client_end();
            if stream.server_open {
                stream.server_notices_at.get_or_insert(self.clock.now());
            }
        }
        self.forget_closed();
    }

    fn forget_closed(&mut self) {
        self.streams
            .retain(|_, stream| stream.server_open || stream.client_open);
    }

    /// Makes messages fast.
    pub(crate) fn calm_down(&mut self) {
        self.slow = 0;
    }

    /// Returns whether no message is on its way and no end is about to be noticed.
    pub(crate) fn is_settled(&self) -> bool {
        self.streams.values().all(Stream::is_settled)
    }

    /// Adds the steps that are possible now. The server does nothing while it is paused. `has_room`
    /// is whether the agent of each node takes another message.
    pub(crate) fn ready(
        &self,
        now: Instant,
        server_runs: bool,
        has_room: &[bool],
        ready: &mut Vec<StreamStep>,
    ) {
        for (id, stream) in &self.streams {
            if server_runs {
                if is_reached(stream.opens_at, now) {
                    ready.push(StreamStep::new(*id, StreamWork::Open));
                }
                let has_message = is_reached(first_arrival(&stream.up), now);
                if stream.server_open && stream.opens_at.is_none() && has_message {
                    ready.push(StreamStep::new(*id, StreamWork::Up));
                }
                if stream.spoken {
                    ready.push(StreamStep::new(*id, StreamWork::Pump));
                }
            }
            let has_room = has_room[stream.node];
            if has_room && is_reached(first_arrival(&stream.down), now) {
                ready.push(StreamStep::new(*id, StreamWork::Down));
            }
            let server_ends = stream.server_open && stream.is_up_empty();
            if server_runs && server_ends && is_reached(stream.server_notices_at, now) {
                ready.push(StreamStep::new(*id, StreamWork::ServerNotices));
            }
            let client_ends = stream.client_open && stream.down.is_empty();
            if has_room && client_ends && is_reached(stream.client_notices_at, now) {
                ready.push(StreamStep::new(*id, StreamWork::ClientNotices));
            }
        }
    }

    /// The time of the next step. Overdue messages wait for something else.
    pub(crate) fn due(&self) -> Option<Instant> {
        let now = self.clock.now();
        let mut earliest: Option<Instant> = None;
        for stream in self.streams.values() {
            let server_end = if stream.server_open {
                stream.server_notices_at
            } else {
                None
            };
            let client_end = if stream.client_open {
                stream.client_notices_at
            } else {
                None
            };
            let times = [
                stream.opens_at,
                first_arrival(&stream.up),
                first_arrival(&stream.down),
                server_end,
                client_end,
            ];
            for at in times.into_iter().flatten() {
                if at > now && earliest.is_none_or(|earliest| at < earliest) {
                    earliest = Some(at);
                }
            }
        }
        earliest
    }
}
