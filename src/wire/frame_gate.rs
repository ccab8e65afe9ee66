//! Checks the lengths of messages before gRPC gets them, because gRPC takes a message of any length
//! into memory, one on each stream, before it compares the length with a limit. HTTP/2 frames are
//! parsed as far as the length of each message: a first message that is no hello, and one that is
//! too large, end the connection; a large one waits until there is capacity.
//!
//! gRPC applies its own limits (headers that unpack to at most 16 KiB, open calls) only once a
//! client has acknowledged them, which a hostile one never does. So the gate acknowledges them for
//! it.
//!
//! Thread: `listen`, one gate for each connection. [`super::stream`] reports each message that
//! it received.
//! Owns: how far the frames of a connection are. All connections share one [`Semaphore`].

use super::pump::Gate;
use super::semaphore::{Permit, Semaphore, Waiter};
use crate::limits::FIRST_MESSAGE_MAX;
use ankaios_platform::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes with which a client begins.
const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
const FRAME_HEADER: usize = 9;
/// One byte for whether a message is compressed, and four with its length.
const MESSAGE_PREFIX: usize = 5;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
/// The frame with which a client acknowledges the settings of gRPC.
const SETTINGS_ACKNOWLEDGED: [u8; FRAME_HEADER] = [0, 0, 0, SETTINGS, ACK, 0, 0, 0, 0];

/// Messages up to this size, in bytes, need no permit.
const SMALL_MESSAGE: usize = 32 * 1024;
/// Pause before a permit for an arriving message is tried again.
const RETRY: Duration = Duration::from_millis(10);
/// How often a message that has its permit is checked.
const CHECK: Duration = Duration::from_millis(250);
/// Bytes per second of a large message while others wait for permits (8 Mbit/s), and the time over
/// which that is measured.
const SLOWEST: u64 = 1024 * 1024;
const MEASURED: Duration = Duration::from_secs(2);
/// Longest time until a reader takes a complete message: its stream may have ended.
const TAKEN_MAX: Duration = Duration::from_secs(60);
/// A connection on which no hello was accepted ends after this time. It may have no stream at all.
const NO_HELLO_MAX: Duration = Duration::from_secs(60);
/// Frames that any message may have.
const FRAMES_ALWAYS: usize = 64;
/// Average bytes of each further frame, at least. A frame costs some hundred bytes; normal ones
/// have thousands.
const FRAME_BYTES_LEAST: usize = 512;
/// Streams of one connection whose messages are followed: open ones, and some that the other side
/// has ended.
const GATED_STREAMS: usize = 64;
/// Streams of one connection begin so far apart: each costs a thread and a call, also one that its
/// client resets at once, and a client needs one.
const STREAM_INTERVAL: Duration = Duration::from_millis(50);
/// Each KiB of the headers of a stream delays the next one by this. Normal headers have some
/// hundred bytes. gRPC reads them all, also those of a call that it refuses, which takes some 12 µs
/// a KiB.
const HEADERS_KIB: Duration = Duration::from_millis(10);
/// Cost of a PING, SETTINGS or GOAWAY frame: a connection has 100 of them per second. gRPC responds
/// to the first two and formats a text for the third. Clients send a PING every few seconds. Those
/// that measure the bandwidth send one after the other, and wait at most 10 ms for each.
const COSTLY_FRAME: Duration = Duration::from_millis(10);
/// Cost of any other frame without headers or a message: a connection has 1,000 of them per second.
const CONTROL_FRAME: Duration = Duration::from_millis(1);
/// Cost of each KiB of these frames, which have a few bytes normally. gRPC has larger buffers for a
/// connection that sends much at once.
const CONTROL_KIB: Duration = Duration::from_millis(10);
/// Bytes that were sent to a client for each WINDOW_UPDATE without a cost. Clients of gRPC send one
/// or two for each message, and the shortest message has 14 bytes with its frame.
const WINDOW_UPDATE_BYTES: usize = 7;
/// Most of these bytes that a connection has for later: 10,000 frames.
const WINDOW_CREDIT_MAX: usize = 10_000 * WINDOW_UPDATE_BYTES;
/// Costs that a connection may run up before its control frames wait, so that no client waits when
/// it connects, nor in a burst of responses.
const CONTROL_BURST: Duration = Duration::from_secs(1);
/// Bytes of the headers of one call, compressed. gRPC keeps 16 KiB of them and reads on without an
/// end, also when the call is refused already.
const HEADERS_MAX: usize = 64 * 1024;
/// Frames in which these headers may come. Each costs time however short it is, and two are enough
/// for what gRPC keeps.
const HEADERS_FRAMES_MAX: usize = 16;

/// Why a connection ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// The first message of a stream, which should be a hello.
    #[error("the first message of a stream has {0} bytes; a hello has at most {FIRST_MESSAGE_MAX}")]
    First(usize),
    /// A message above the limit.
    #[error("a message has {length} bytes, at most {max} are taken ('max_message_size')")]
    TooLarge {
        /// Bytes as announced.
        length: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// A frame of a message on a stream that was never opened.
    #[error("a message comes on stream {0}, which was not opened")]
    NotOpened(u32),
    /// Headers of a call without an end.
    #[error(
        "the headers of a call have more than {HEADERS_MAX} bytes or {HEADERS_FRAMES_MAX} frames"
    )]
    Headers,
    /// Each frame costs memory, however short it is.
    #[error("a message comes in frames of a few bytes each")]
    TinyFrames,
    /// Frames of a connection have an order, so one message cannot wait while another one goes on.
    #[error(
        "several large messages come at the same time and there is no room for all of them; send one after the other"
    )]
    Several,
    /// More streams than a connection may have.
    #[error("messages on too many streams")]
    Streams,
    /// The stream of a message has ended, or its reader hangs.
    #[error("nobody took a large message within {TAKEN_MAX:?}")]
    NotTaken,
    /// A peer without an accepted hello.
    #[error("no hello was accepted within {NO_HELLO_MAX:?}")]
    NoHello,
    /// Others wait for the permit of a message that does not come.
    #[error("a large message comes too slowly while others wait")]
    Slow,
}

/// What the gate of a connection and the readers of its streams share.
#[derive(Debug)]
pub(crate) struct InFlightMessages {
    /// Bytes of the large messages of all connections.
    arriving: Arc<Semaphore>,
    message_max: usize,
    state: Mutex<InFlightState>,
}

#[derive(Debug, Default)]
struct InFlightState {
    /// A hello was accepted.
    has_hello: bool,
    /// Streams with an accepted hello that have not ended.
    served: usize,
    /// Large messages that gRPC has, or gets now.
    in_flight: Vec<InFlight>,
}

#[derive(Debug)]
struct InFlight {
    stream: u32,
    bytes: usize,
    received: usize,
    /// When it was last fast enough, or complete.
    measured_at: Instant,
    /// Bytes that it had then.
    measured_bytes: usize,
    permit: Permit,
}

impl InFlight {
    fn is_complete(&self) -> bool {
        self.received == self.bytes
    }

    fn measure(&mut self, now: Instant) {
        self.measured_at = now;
        self.measured_bytes = self.received;
    }

    /// Checks that a complete message is taken, and that others do not wait for a slow one.
    fn check(&mut self, now: Instant) -> Result<(), Refused> {
        let time = now.saturating_duration_since(self.measured_at);
        if self.is_complete() {
            if time > TAKEN_MAX {
                return Err(Refused::NotTaken);
            }
            return Ok(());
        }
        if time < MEASURED {
            return Ok(());
        }
        let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let least = milliseconds.saturating_mul(SLOWEST) / 1000;
        let bytes = (self.received - self.measured_bytes) as u64;
        if bytes >= least {
            self.measure(now);
            return Ok(());
        }
        if self.permit.is_contended() {
            return Err(Refused::Slow);
        }
        Ok(())
    }
}

impl InFlightMessages {
    /// For a connection whose messages may have `message_max` bytes.
    pub(crate) fn new(arriving: Arc<Semaphore>, message_max: usize) -> Arc<Self> {
        Arc::new(Self {
            arriving,
            message_max,
            state: Mutex::default(),
        })
    }

    /// A hello was accepted, so more than hellos may come.
    pub(crate) fn hello_accepted(&self) {
        let mut state = self.state.lock();
        state.has_hello = true;
        state.served += 1;
    }

    /// A stream whose hello was accepted has ended.
    pub(crate) fn stream_ended(&self) {
        self.state.lock().served -= 1;
    }

    /// Takes the permit of a message with this number of bytes, for the reader that has received
    /// it and keeps the permit as long as the bytes. The permit of a small message is empty.
    pub(crate) fn arrived(&self, bytes: usize) -> Permit {
        let mut state = self.state.lock();
        // Of two messages of the same length either will do: their permits are equal.
        let mut messages = state.in_flight.iter();
        let index = messages.position(|message| message.is_complete() && message.bytes == bytes);
        match index {
            Some(index) => state.in_flight.remove(index).permit,
            None => Permit::default(),
        }
    }
}

/// How far the messages of one stream are.
#[derive(Debug, Default)]
struct Stream {
    is_first_done: bool,
    prefix: [u8; MESSAGE_PREFIX],
    prefix_bytes: usize,
    /// Bytes of the message that are still to come.
    left: usize,
    received: usize,
    frames: usize,
}

impl Stream {
    fn next_message(&mut self) {
        *self = Self {
            is_first_done: true,
            frames: 1,
            ..Self::default()
        };
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Frame {
    left: usize,
    is_data: bool,
    ends_stream: bool,
    stream: u32,
}

/// How far the beginning of a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beginning {
    Preface,
    /// The first frame, with the settings of the client.
    Settings,
    /// gRPC gets [`SETTINGS_ACKNOWLEDGED`] before the next frame. Its own settings are set since
    /// the connection was made, so they apply to the first call.
    Acknowledgement,
    Over,
}

/// Parses what one client sends.
#[derive(Debug)]
pub(crate) struct FrameGate {
    in_flight: Arc<InFlightMessages>,
    beginning: Beginning,
    header: [u8; FRAME_HEADER],
    header_bytes: usize,
    /// The first one is the preface.
    frame: Frame,
    streams: BTreeMap<u32, Stream>,
    /// The stream that was opened last: clients open them in the order of their numbers.
    last_opened: u32,
    /// Bytes and frames of the headers that came last.
    headers_bytes: usize,
    headers_frames: usize,
    waiter: Option<Waiter>,
    is_waiting: bool,
    begun: Instant,
    /// When the next stream may begin; the first one may at any time.
    next_stream: Option<Instant>,
    /// Time until which the passed control frames use up the rate of the connection.
    control_paid: Instant,
    /// The client has taken all bytes that were sent to it.
    peer_reads: bool,
    /// Bytes that were sent, for which WINDOW_UPDATE frames may come.
    window_credit: usize,
}

impl FrameGate {
    /// For a connection that begins `now`.
    pub(crate) fn new(in_flight: Arc<InFlightMessages>, now: Instant) -> Self {
        Self {
            in_flight,
            beginning: Beginning::Preface,
            header: [0; FRAME_HEADER],
            header_bytes: 0,
            frame: Frame {
                left: PREFACE,
                ..Frame::default()
            },
            streams: BTreeMap::new(),
            last_opened: 0,
            headers_bytes: 0,
            headers_frames: 0,
            waiter: None,
            is_waiting: false,
            begun: now,
            next_stream: None,
            control_paid: now,
            peer_reads: true,
            window_credit: 0,
        }
    }

    /// Returns how many of these bytes may pass now: fewer than all if a frame or message has to
    /// wait, or if gRPC gets something before. Bytes that have passed must not be given again.
    ///
    /// # Errors
    /// The connection has to end.
    pub(crate) fn admit(&mut self, bytes: &[u8], now: Instant) -> Result<usize, Refused> {
        self.is_waiting = false;
        let mut admitted = 0;
        while admitted < bytes.len() && self.beginning != Beginning::Acknowledgement {
            let count = self.step(&bytes[admitted..], now)?;
            self.is_waiting = count == 0;
            if self.is_waiting {
                break;
            }
            admitted += count;
        }
        Ok(admitted)
    }

    /// Checks that a hello was accepted in time, and that no large message is stuck.
    ///
    /// # Errors
    /// The connection has to end.
    pub(crate) fn check(&self, now: Instant) -> Result<(), Refused> {
        let mut state = self.in_flight.state.lock();
        if !state.has_hello && now.saturating_duration_since(self.begun) >= NO_HELLO_MAX {
            return Err(Refused::NoHello);
        }
        for message in &mut state.in_flight {
            message.check(now)?;
        }
        Ok(())
    }

    /// Takes some of the bytes and returns their number: 0 if a frame or message has to wait.
    fn step(&mut self, bytes: &[u8], now: Instant) -> Result<usize, Refused> {
        if self.frame.left == 0 {
            return self.take_header(bytes, now);
        }
        let most = bytes.len().min(self.frame.left);
        let count = if self.frame.is_data {
            self.take_data(&bytes[..most], now)?
        } else {
            most
        };
        self.frame.left -= count;
        if self.frame.left == 0 && count > 0 {
            self.frame_ended();
        }
        Ok(count)
    }

    /// Takes bytes of the header of a frame. The last byte begins the frame.
    fn take_header(&mut self, bytes: &[u8], now: Instant) -> Result<usize, Refused> {
        // First take the bytes: the last one alone, since gRPC does not see a frame without it.
        let mut count = bytes.len().min(FRAME_HEADER - self.header_bytes);
        let is_end = self.header_bytes + count == FRAME_HEADER;
        if count > 1 && is_end {
            count -= 1;
        } else if is_end && !self.begin_frame(now) {
            return Ok(0);
        }
        self.header[self.header_bytes..][..count].copy_from_slice(&bytes[..count]);
        self.header_bytes += count;
        if self.header_bytes < FRAME_HEADER {
            return Ok(count);
        }
        // Then read the header.
        self.header_bytes = 0;
        let [a, b, c, kind, flags, id @ ..] = self.header;
        let stream = u32::from_be_bytes(id) & 0x7fff_ffff;
        let is_data = kind == DATA;
        self.frame = Frame {
            left: u32::from_be_bytes([0, a, b, c]) as usize,
            is_data,
            ends_stream: is_data && flags & END_STREAM != 0,
            stream,
        };
        // Finally note what the frame means for its stream.
        if kind == RST_STREAM {
            self.forget(stream);
        }
        if kind == HEADERS {
            self.last_opened = self.last_opened.max(stream);
        }
        self.count_headers(kind)?;
        if is_data {
            if stream == 0 || stream > self.last_opened {
                return Err(Refused::NotOpened(stream));
            }
            self.make_place(stream)?;
            let state = self.streams.entry(stream).or_default();
            state.frames += 1;
            if state.frames > FRAMES_ALWAYS + state.received / FRAME_BYTES_LEAST {
                return Err(Refused::TinyFrames);
            }
        }
        if self.frame.left == 0 {
            self.frame_ended();
        }
        Ok(count)
    }

    /// Begins the frame whose header has come except for its last byte. Returns false if the frame
    /// has to wait, mostly because frames of its kind come faster than the rate of the connection.
    ///
    /// While the client does not read, no frame begins that causes a response. gRPC keeps these
    /// responses; its limit of 10,000 for each connection is too high for many connections.
    fn begin_frame(&mut self, now: Instant) -> bool {
        let [a, b, c, kind, flags, ..] = self.header;
        let cost = match kind {
            DATA | CONTINUATION => return true,
            HEADERS => {
                if !self.peer_reads || self.next_stream.is_some_and(|next| now < next) {
                    return false;
                }
                self.next_stream = Some(now + STREAM_INTERVAL);
                return true;
            }
            PING | SETTINGS if flags & ACK == 0 => {
                if !self.peer_reads {
                    return false;
                }
                COSTLY_FRAME
            }
            GOAWAY => COSTLY_FRAME,
            WINDOW_UPDATE if self.window_credit >= WINDOW_UPDATE_BYTES => {
                self.window_credit -= WINDOW_UPDATE_BYTES;
                return true;
            }
            _ => CONTROL_FRAME,
        };
        if self.control_paid > now + CONTROL_BURST {
            return false;
        }
        let length_kib = u32::from_be_bytes([0, a, b, c]) / 1024;
        self.control_paid = self.control_paid.max(now) + cost + CONTROL_KIB * length_kib;
        true
    }

    /// Counts the bytes of a frame of this kind if it has headers. The headers of one call come in
    /// one or more frames, one after the other.
    fn count_headers(&mut self, kind: u8) -> Result<(), Refused> {
        if kind == HEADERS {
            self.headers_bytes = 0;
            self.headers_frames = 0;
        } else if kind != CONTINUATION {
            return Ok(());
        }
        let kib_before = self.headers_bytes / 1024;
        self.headers_bytes += self.frame.left;
        self.headers_frames += 1;
        if self.headers_bytes > HEADERS_MAX || self.headers_frames > HEADERS_FRAMES_MAX {
            return Err(Refused::Headers);
        }
        let kib = u32::try_from(self.headers_bytes / 1024 - kib_before).unwrap_or(u32::MAX);
        if let Some(next) = &mut self.next_stream {
            *next += HEADERS_KIB * kib;
        }
        Ok(())
    }

    /// Makes a place for a stream. If there is none, forgets a stream that is between two messages:
    /// it may have ended without a frame of the client.
    fn make_place(&mut self, stream: u32) -> Result<(), Refused> {
        if self.streams.len() < GATED_STREAMS || self.streams.contains_key(&stream) {
            return Ok(());
        }
        for (id, state) in &self.streams {
            let is_between_messages = state.prefix_bytes == 0;
            if is_between_messages {
                let unused = *id;
                self.streams.remove(&unused);
                return Ok(());
            }
        }
        Err(Refused::Streams)
    }

    fn frame_ended(&mut self) {
        self.beginning = match self.beginning {
            Beginning::Preface => Beginning::Settings,
            Beginning::Settings => Beginning::Acknowledgement,
            later => later,
        };
        if self.frame.ends_stream {
            self.forget(self.frame.stream);
        }
    }

    /// The client has ended a stream, or has reset it.
    fn forget(&mut self, stream: u32) {
        self.streams.remove(&stream);
        self.in_flight
            .state
            .lock()
            .in_flight
            .retain(|message| message.stream != stream || message.is_complete());
    }

    /// Takes bytes of a data frame and returns their number: 0 if a message has to wait.
    fn take_data(&mut self, bytes: &[u8], now: Instant) -> Result<usize, Refused> {
        let id = self.frame.stream;
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(bytes.len());
        };
        if stream.prefix_bytes == MESSAGE_PREFIX {
            return Ok(self.take_content(bytes, now));
        }
        // Take one byte of the prefix. The last one begins the message.
        let Some(first) = bytes.first() else {
            return Ok(0);
        };
        stream.prefix[stream.prefix_bytes] = *first;
        if stream.prefix_bytes + 1 < MESSAGE_PREFIX {
            stream.prefix_bytes += 1;
            return Ok(1);
        }
        let [_, length @ ..] = stream.prefix;
        let length = u32::from_be_bytes(length) as usize;
        if !self.begin_message(id, length, now)? {
            return Ok(0);
        }
        let stream = self.streams.entry(id).or_default();
        stream.prefix_bytes = MESSAGE_PREFIX;
        stream.left = length;
        if length == 0 {
            stream.next_message();
        }
        Ok(1)
    }

    /// Takes bytes of a message behind its prefix, and returns their number.
    fn take_content(&mut self, bytes: &[u8], now: Instant) -> usize {
        let id = self.frame.stream;
        let Some(stream) = self.streams.get_mut(&id) else {
            return bytes.len();
        };
        let count = bytes.len().min(stream.left);
        stream.left -= count;
        stream.received += count;
        // Count them for the large message of this stream, if it is one. An earlier message of the
        // stream may be complete and not taken yet.
        let mut state = self.in_flight.state.lock();
        let mut messages = state.in_flight.iter_mut();
        let message = messages.find(|message| message.stream == id && !message.is_complete());
        if let Some(message) = message {
            message.received += count;
            if message.is_complete() {
                message.measure(now);
            }
        }
        if stream.left == 0 {
            stream.next_message();
        }
        count
    }

    /// Begins a message of this length on a stream; a large one acquires its permit. Returns false
    /// if the message has to wait.
    fn begin_message(&mut self, stream: u32, length: usize, now: Instant) -> Result<bool, Refused> {
        let max = self.in_flight.message_max;
        if length > max {
            return Err(Refused::TooLarge { length, max });
        }
        let is_first = match self.streams.get(&stream) {
            Some(stream) => !stream.is_first_done,
            None => false,
        };
        if is_first && length > FIRST_MESSAGE_MAX {
            return Err(Refused::First(length));
        }
        if length <= SMALL_MESSAGE {
            return Ok(true);
        }
        let mut state = self.in_flight.state.lock();
        if !is_first && !state.has_hello {
            return Ok(false);
        }
        // A complete message has to be taken first: before that gRPC takes no further one of its
        // stream.
        if state.in_flight.iter().any(InFlight::is_complete) {
            return Ok(false);
        }
        let arriving = &self.in_flight.arriving;
        if let Some(permit) = arriving.try_acquire(&mut self.waiter, length) {
            state.in_flight.push(InFlight {
                stream,
                bytes: length,
                received: 0,
                measured_at: now,
                measured_bytes: 0,
                permit,
            });
            return Ok(true);
        }
        // Frames have an order: while this message waited, the one under way could not continue.
        if !state.in_flight.is_empty() {
            return Err(Refused::Several);
        }
        Ok(false)
    }
}

impl Gate for FrameGate {
    fn admit(&mut self, bytes: &[u8], peer_reads: bool, now: Instant) -> Result<usize, String> {
        self.peer_reads = peer_reads;
        self.check(now).map_err(|refused| refused.to_string())?;
        let admitted = self.admit(bytes, now);
        admitted.map_err(|refused| refused.to_string())
    }

    fn take_insertion(&mut self) -> &'static [u8] {
        if self.beginning != Beginning::Acknowledgement {
            return &[];
        }
        self.beginning = Beginning::Over;
        &SETTINGS_ACKNOWLEDGED
    }

    fn sent(&mut self, bytes: usize) {
        let credit = self.window_credit.saturating_add(bytes);
        self.window_credit = credit.min(WINDOW_CREDIT_MAX);
    }

    fn check_again_at(&self, now: Instant) -> Option<Instant> {
        if self.is_waiting {
            return Some(now + RETRY);
        }
        let state = self.in_flight.state.lock();
        if !state.in_flight.is_empty() {
            return Some(now + CHECK);
        }
        if !state.has_hello {
            return Some(self.begun + NO_HELLO_MAX);
        }
        None
    }

    fn is_served(&self) -> bool {
        self.in_flight.state.lock().served > 0
    }
}

impl Drop for FrameGate {
    fn drop(&mut self) {
        // gRPC drops its part of them with the connection.
        self.in_flight.state.lock().in_flight.clear();
    }
}

#[cfg(test)]
mod tests;
