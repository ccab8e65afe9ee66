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

/// Longest time until an end notices that the other one has vanished, as with TCP and HTTP/2
/// keepalive.
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

struct Stream {
    node: usize,
    opens_at: Option<Instant>,
    up: VecDeque<(Instant, ToServer)>,
    down: VecDeque<(Instant, FromServer)>,
    reader: Option<OutboxReader>,
    /// The server may have put something for it.
    spoken: bool,
    server_notices_at: Option<Instant>,
    client_notices_at: Option<Instant>,
    server_open: bool,
    client_open: bool,
}

/// All streams.
pub(crate) struct Network {
    clock: ManualClock,
    random: fastrand::Rng,
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

    fn arrival(&mut self, after: Option<Instant>) -> Instant {
        let slow = self.slow > 0 && self.random.u32(0..100) < self.slow;
        let latency = self.random.u64(if slow { 100..5_000 } else { 1..30 });
        let at = self.clock.now() + Duration::from_millis(latency);
        after.map_or(at, |after| at.max(after))
    }

    /// An agent connects.
    pub(crate) fn open(&mut self, node: usize) -> StreamId {
        self.opened += 1;
        let opens_at = Some(self.arrival(None));
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
            (stream.server_open, stream.client_notices_at) = (false, Some(self.clock.now()));
            stream.up.clear();
        }
        stream.reader = reader;
    }

    pub(crate) fn send_up(&mut self, id: StreamId, message: ToServer) {
        let Some(stream) = self.streams.get(&id).filter(|stream| stream.server_open) else {
            return;
        };
        let last = stream.up.back().map(|(at, _)| *at).or(stream.opens_at);
        let at = self.arrival(last);
        if let Some(stream) = self
            .streams
            .get_mut(&id)
            .filter(|stream| stream.server_notices_at.is_none())
        {
            stream.up.push_back((at, message));
        }
    }

    pub(crate) fn take_up(&mut self, id: StreamId) -> Option<ToServer> {
        Some(self.streams.get_mut(&id)?.up.pop_front()?.1)
    }

    pub(crate) fn take_down(&mut self, id: StreamId) -> Option<FromServer> {
        Some(self.streams.get_mut(&id)?.down.pop_front()?.1)
    }

    /// The server handled an event and may have put messages.
    pub(crate) fn server_spoke(&mut self) {
        self.streams
            .values_mut()
            .filter(|stream| stream.reader.is_some())
            .for_each(|stream| stream.spoken = true);
    }

    /// Moves what the server has put onto the wire.
    pub(crate) fn pump(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.spoken = false;
        let Some(reader) = &stream.reader else { return };
        let ended = reader.ended();
        let messages: Vec<FromServer> = std::iter::from_fn(|| reader.try_next()).collect();
        let mut last = stream.down.back().map(|(at, _)| *at);
        let mut timed = Vec::new();
        for message in messages {
            let at = self.arrival(last);
            last = Some(at);
            timed.push((at, message));
        }
        let end = self.arrival(last);
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let lost = stream.client_notices_at.is_some() || !stream.client_open;
        if !lost {
            stream.down.extend(timed);
        }
        if ended {
            // What the agent has sent until it notices arrives, and the end of the stream after it.
            stream.reader = None;
            stream.client_notices_at.get_or_insert(end);
            stream.server_notices_at.get_or_insert(end);
        }
    }

    /// Loses all messages on their way. Both ends notice it later.
    pub(crate) fn cut(&mut self, id: StreamId) {
        let server = self.random.u64(0..NOTICED_AFTER_MS);
        let client = self.random.u64(0..NOTICED_AFTER_MS);
        let now = self.clock.now();
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.up.clear();
        stream.down.clear();
        if stream.opens_at.take().is_some() {
            stream.server_open = false; // It never heard of it.
        }
        stream
            .server_notices_at
            .get_or_insert(now + Duration::from_millis(server));
        stream
            .client_notices_at
            .get_or_insert(now + Duration::from_millis(client));
        self.forget_closed();
    }

    /// Delays the messages on their way. The client may give up in the meantime and connect with
    /// another stream, so that messages of this one arrive after messages of that.
    pub(crate) fn stall(&mut self, id: StreamId) {
        let late = Duration::from_millis(self.random.u64(0..NOTICED_AFTER_MS));
        let gives_up = self
            .random
            .bool()
            .then(|| Duration::from_millis(self.random.u64(0..NOTICED_AFTER_MS)));
        let now = self.clock.now();
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.opens_at = stream.opens_at.map(|at| at + late);
        stream.up.iter_mut().for_each(|(at, _)| *at += late);
        stream.down.iter_mut().for_each(|(at, _)| *at += late);
        if let Some(after) = gives_up {
            stream.client_notices_at.get_or_insert(now + after);
        }
    }

    /// Stops the server for this time: agents without messages give up, and messages to it arrive
    /// afterwards.
    pub(crate) fn server_pauses(&mut self, until: Duration) {
        let now = self.clock.now();
        for stream in self.streams.values_mut() {
            if !stream.client_open {
                continue;
            }
            let after =
                Duration::from_millis(self.random.u64(NOTICED_AFTER_MS / 2..NOTICED_AFTER_MS));
            if after < until {
                stream.client_notices_at.get_or_insert(now + after);
            }
        }
    }

    /// Ends the agent's process: its messages arrive, then its end.
    pub(crate) fn client_dies(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        let last = stream.up.back().map(|(at, _)| *at).or(stream.opens_at);
        let at = self.arrival(last);
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.client_open = false;
        stream.down.clear();
        stream.server_notices_at.get_or_insert(at);
        self.forget_closed();
    }

    /// Ends the server's process: its messages arrive, then its end.
    pub(crate) fn server_dies(&mut self) {
        let ids: Vec<StreamId> = self.streams.keys().copied().collect();
        for id in ids {
            let last = self.streams[&id].down.back().map(|(at, _)| *at);
            let at = self.arrival(last);
            let Some(stream) = self.streams.get_mut(&id) else {
                continue;
            };
            stream.up.clear();
            (stream.reader, stream.server_open, stream.opens_at) = (None, false, None);
            stream.client_notices_at.get_or_insert(at);
        }
        self.forget_closed();
    }

    pub(crate) fn close_server_end(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            (stream.server_open, stream.reader, stream.opens_at) = (false, None, None);
            stream.up.clear();
            if stream.client_open && stream.client_notices_at.is_none() {
                stream.client_notices_at = Some(self.clock.now());
            }
        }
        self.forget_closed();
    }

    pub(crate) fn close_client_end(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.client_open = false;
            stream.down.clear();
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
        self.streams.values().all(|stream| {
            stream.up.is_empty()
                && stream.down.is_empty()
                && !stream.spoken
                && stream.opens_at.is_none()
                && stream.server_open
                && stream.client_open
                && stream.server_notices_at.is_none()
                && stream.client_notices_at.is_none()
        })
    }

    /// The steps that are possible now. The server does nothing while it is stopped, and `room`
    /// returns whether the agent of a node takes another message.
    pub(crate) fn ready(
        &self,
        now: Instant,
        server_runs: bool,
        room: impl Fn(usize) -> bool,
        mut found: impl FnMut(StreamId, StreamWork),
    ) {
        for (id, stream) in &self.streams {
            let reached = |at: Option<Instant>| at.is_some_and(|at| at <= now);
            if server_runs && reached(stream.opens_at) {
                found(*id, StreamWork::Open);
            }
            let up = stream.up.front().map(|(at, _)| *at);
            if server_runs && stream.server_open && stream.opens_at.is_none() && reached(up) {
                found(*id, StreamWork::Up);
            }
            if server_runs && stream.spoken {
                found(*id, StreamWork::Pump);
            }
            if reached(stream.down.front().map(|(at, _)| *at)) && room(stream.node) {
                found(*id, StreamWork::Down);
            }
            let heard_all = up.is_none() && stream.opens_at.is_none();
            if server_runs && stream.server_open && heard_all && reached(stream.server_notices_at) {
                found(*id, StreamWork::ServerNotices);
            }
            let client_ends =
                stream.client_open && stream.down.is_empty() && reached(stream.client_notices_at);
            if client_ends && room(stream.node) {
                found(*id, StreamWork::ClientNotices);
            }
        }
    }

    /// When something can be done next.
    pub(crate) fn due(&self) -> Option<Instant> {
        let times = self.streams.values().flat_map(|stream| {
            let ends = [
                stream.server_notices_at.filter(|_| stream.server_open),
                stream.client_notices_at.filter(|_| stream.client_open),
            ];
            let messages = [
                stream.up.front().map(|(at, _)| *at),
                stream.down.front().map(|(at, _)| *at),
            ];
            ends.into_iter().chain(messages).chain([stream.opens_at])
        });
        // An overdue message waits for something else.
        times.flatten().filter(|at| *at > self.clock.now()).min()
    }
}
