//! The loop that serves all control interfaces: it waits for bytes, space, readers and time, and
//! lets each session act.
//!
//! Thread: `control`, one for all workloads.
//! Owns: the open FIFOs, the sessions, the message being written to each workload.
//! Takes: new, restarted and ended interfaces of `wl:<name>`, responses of the server. Gives:
//! requests to `uplink` (never waits). Reading and writing of a workload are independent of each
//! other and of other workloads, except for large messages: one at a time is read, until `uplink`
//! has taken it, and the next one waits in its pipe.

use super::mailbox::EncodedResponse;
use super::pipes::{PIPE_TURN, Pipes, ReadOutcome, WriteOutcome};
use super::session::{ControlSession, HeldRequest, LARGE_TIME, SessionEffect};
use super::{HubState, Interface};
use crate::uplink_outbox::LARGE_REQUEST;
use ankaios_model::messages::{Request, Response, ResponseContent};
use ankaios_platform::clock::Clock;
use ankaios_platform::logging::log_source;
use ankaios_platform::watchdog::Heartbeat;
use log::{error, warn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Longest wait of a request until the earlier one has its response and responses are read. Some
/// servers never respond, and some programs never read.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// First pause before the next try to write to a workload that does not read; it doubles. The
/// kernel does not report a new reader.
const READER_RETRY: Duration = Duration::from_millis(5);
/// Longest such pause for a workload that read within [`READER_AWAY`].
const READER_RETRY_MAX: Duration = Duration::from_millis(100);
/// Longest such pause after that: each try wakes the processor.
const READER_RETRY_AWAY: Duration = Duration::from_secs(1);
/// A workload that has not read for this time is tried less often.
const READER_AWAY: Duration = Duration::from_secs(10);

/// Serves all control interfaces of an agent.
pub(crate) struct Poller<C> {
    shared: Arc<HubState>,
    clock: C,
    links: Vec<PipeLink>,
    buffer: Vec<u8>,
}

/// The pipes and the session of one workload.
#[derive(Debug)]
pub(super) struct PipeLink {
    interface: Arc<Interface>,
    session: ControlSession,
    pipes: Pipes,
    sending: Option<Sending>,
    /// A large message is being read, or waits for its turn.
    large: Option<Large>,
    /// The pipe was full. `poll` reports when there is space.
    full: bool,
    /// Set while no process reads.
    absent: Option<Absent>,
    /// A pipe has failed, so the interface is not served any more.
    broken: bool,
}

/// A large message, which is read only when no other one is under way.
#[derive(Debug)]
struct Large {
    /// The number of the message in its session.
    number: u64,
    /// When it began to wait, or to be read.
    since: Instant,
    /// It is being read. Otherwise it waits.
    has_turn: bool,
    /// Large messages of other workloads wait for it.
    is_waited_for: bool,
}

/// A message that is being written.
#[derive(Debug)]
struct Sending {
    bytes: Vec<u8>,
    sent: usize,
}

/// The wait for a reader.
#[derive(Debug)]
struct Absent {
    since: Instant,
    pause: Duration,
    next: Instant,
}

/// The events that `poll` reported for one link.
#[derive(Debug, Clone, Copy)]
struct LinkEvents {
    output: PollFlags,
    input: PollFlags,
}

/// A descriptor of a link in the list for `poll`.
enum PolledEnd {
    /// `output` of the link with this index.
    Output(usize),
    /// `input` of the link with this index.
    Input(usize),
}

impl<C: Clock> Poller<C> {
    /// Returns a poller for the interfaces that are opened in `shared`.
    pub(super) fn new(shared: Arc<HubState>, clock: C) -> Self {
        Self {
            shared,
            clock,
            links: Vec::new(),
            buffer: Vec::new(),
        }
    }

    /// Serves until the other end of `stop` is closed.
    pub(crate) fn run(mut self, stop: &OwnedFd, heartbeat: &Heartbeat) {
        heartbeat.turn();
        while self.turn(Some(stop)) {
            heartbeat.turn();
        }
    }

    /// Waits for events and handles them; without `stop` it does not wait. Returns whether to
    /// continue.
    fn turn(&mut self, stop: Option<&OwnedFd>) -> bool {
        // First: wait.
        let now = self.clock.now();
        let mut timeout = Some(Duration::ZERO);
        if stop.is_some() {
            timeout = self.due(now).map(|due| due.saturating_duration_since(now));
        }
        let events = match self.wait(stop, timeout) {
            Ok(Some(events)) => events,
            Ok(None) => return false,
            Err(Errno::INTR) => return true,
            Err(errno) => {
                error!("Control interfaces cannot be served any more: '{errno}'");
                return false;
            }
        };
        // Then: read, and take new interfaces.
        let now = self.clock.now();
        if self.buffer.is_empty() && !self.links.is_empty() {
            self.buffer = vec![0; PIPE_TURN]; // Most agents have no workload that needs it.
        }
        for (link, events) in self.links.iter_mut().zip(events) {
            link.interface.mailbox.lock().set_direct(None);
            link.on_events(events, now, &self.shared, &mut self.buffer);
        }
        self.update_links(now);
        // Finally: write, and handle times.
        for link in &mut self.links {
            link.write(now); // A held request may be sent once waiting responses are read.
            link.on_time(now, &self.shared);
            link.renew(&self.shared);
            link.write(now);
        }
        self.give_turn(now);
        for link in &self.links {
            link.leave_pipe();
        }
        true
    }

    /// Chooses the large message that is read next. Only one is read at a time, so that memory does
    /// not grow with the number of workloads.
    fn give_turn(&mut self, now: Instant) {
        // First: which links have a large message.
        for link in &mut self.links {
            link.note_large(now);
        }
        // Then: the next one, unless another one is read or waits for `uplink`.
        let is_busy =
            self.links.iter().any(PipeLink::has_turn) || self.shared.uplink.has_large_request();
        if !is_busy && let Some(next) = self.next_large(now) {
            next.begin_turn(now);
        }
        // Finally: the link that is read has less time if other links wait.
        let others_wait = self.links.iter().any(PipeLink::is_waiting);
        for link in &mut self.links {
            if let Some(large) = &mut link.large {
                large.is_waited_for = others_wait;
            }
        }
    }

    /// The link whose large message is read next: the one that has waited longest.
    fn next_large(&mut self, now: Instant) -> Option<&mut PipeLink> {
        let mut next: Option<&mut PipeLink> = None;
        for link in &mut self.links {
            if !link.can_have_turn(now) {
                continue;
            }
            let is_earlier = match &next {
                Some(next) => link.large_since() < next.large_since(),
                None => true,
            };
            if is_earlier {
                next = Some(link);
            }
        }
        next
    }

    /// When there is something to do without an event.
    fn due(&self, now: Instant) -> Option<Instant> {
        self.links.iter().filter_map(|link| link.due(now)).min()
    }

    /// Waits for events of the links. Returns `None` when the agent ends.
    fn wait(
        &self,
        stop: Option<&OwnedFd>,
        timeout: Option<Duration>,
    ) -> Result<Option<Vec<LinkEvents>>, Errno> {
        // First: the descriptors.
        let mut waits = Vec::with_capacity(2 + 2 * self.links.len());
        waits.push(PollFd::new(&self.shared.wake, PollFlags::IN));
        if let Some(stop) = stop {
            waits.push(PollFd::new(stop, PollFlags::IN));
        }
        let begin = waits.len();
        let mut ends = Vec::with_capacity(2 * self.links.len());
        for (index, link) in self.links.iter().enumerate() {
            if link.broken {
                continue;
            }
            if link.session.paused_since().is_none() && !link.is_waiting() {
                waits.push(PollFd::from_borrowed_fd(link.pipes.output(), PollFlags::IN));
                ends.push(PolledEnd::Output(index));
            }
            if let Some(input) = link.pipes.input() {
                // `poll` reports the end of the reader even without flags.
                let flags = if link.full {
                    PollFlags::OUT
                } else {
                    PollFlags::empty()
                };
                waits.push(PollFd::from_borrowed_fd(input, flags));
                ends.push(PolledEnd::Input(index));
            }
        }
        // Then: the wait.
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        poll(&mut waits, timeout.as_ref())?;
        if !waits[0].revents().is_empty() {
            self.shared.wake.reset();
        }
        if stop.is_some() && !waits[1].revents().is_empty() {
            return Ok(None);
        }
        // Finally: the events, by link.
        let none = LinkEvents {
            output: PollFlags::empty(),
            input: PollFlags::empty(),
        };
        let mut events = vec![none; self.links.len()];
        for (end, wait) in ends.into_iter().zip(&waits[begin..]) {
            match end {
                PolledEnd::Output(index) => events[index].output = wait.revents(),
                PolledEnd::Input(index) => events[index].input = wait.revents(),
            }
        }
        Ok(Some(events))
    }

    /// Adds the links of new interfaces, removes those of ended ones, and restarts those of
    /// restarted containers.
    fn update_links(&mut self, now: Instant) {
        self.links.append(&mut self.shared.registry.lock().opened);
        self.links
            .retain(|link| !link.interface.ended.load(Ordering::Relaxed));
        for link in &mut self.links {
            if link.interface.restarted.swap(false, Ordering::Relaxed) {
                link.restart(now, &self.shared);
            }
        }
    }
}

impl PipeLink {
    pub(super) fn new(interface: Arc<Interface>, pipes: Pipes, session: ControlSession) -> Self {
        Self {
            interface,
            session,
            pipes,
            sending: None,
            large: None,
            full: false,
            absent: None,
            broken: false,
        }
    }

    /// Carries out the effects of the session.
    fn act(&mut self, now: Instant, shared: &HubState) {
        while let Some(effect) = self.session.next(now) {
            match effect {
                SessionEffect::Greet(message) => self.interface.mailbox.lock().put_first(message),
                SessionEffect::Answer(response) => self.answer(response, shared),
                SessionEffect::Begin => {
                    shared.begin_generation(&self.interface);
                    self.discard_unread();
                }
                SessionEffect::Forward(held) => self.forward(held, now, shared),
            }
        }
    }

    /// Discards the responses to an earlier user of the pipes. The next user must not begin in the
    /// middle of a message.
    fn discard_unread(&mut self) {
        let is_begun = match self.sending.take() {
            Some(sending) => sending.sent > 0,
            None => false,
        };
        let was_discarded = self.pipes.discard_unread();
        if is_begun && !was_discarded {
            // A part of a message was read already, so its reader must see an end.
            self.pipes.close_input();
        }
        self.full = false;
    }

    /// Puts a response of the agent itself behind those that wait.
    fn answer(&self, response: Response, shared: &HubState) {
        let response = EncodedResponse::new(response);
        let cancels = self.interface.mailbox.lock().put(response);
        shared.cancel(&self.interface, cancels);
    }

    /// Forwards a request to the server:
    /// - it is refused, if there is no connection and it cannot wait for one;
    /// - it is held, if it must wait for an earlier response, unread responses or a large request;
    /// - it is refused, if the workload has too many subscriptions;
    /// - otherwise it is sent.
    fn forward(&mut self, held: HeldRequest, now: Instant, shared: &HubState) {
        let uplink = &shared.uplink;
        let is_connected = uplink.is_connected();
        let content = &held.request.content;
        let is_large = content.memory_bytes() > LARGE_REQUEST;
        // The lock is held until the request is sent: a response must not come before it is added.
        let mut mailbox = self.interface.mailbox.lock();
        if !is_connected && (is_large || mailbox.must_await_response()) {
            drop(mailbox);
            let error = "The agent has no connection to the server; try again later";
            return self.answer_error(held.request.id, error.to_owned(), shared);
        }
        let may_wait = now < held.since + ANSWER_MAX;
        if (may_wait && mailbox.must_wait(content)) || (is_large && uplink.has_large_request()) {
            drop(mailbox);
            return self.session.hold(held);
        }
        if let Err(error) = mailbox.add_request(held.request.id.clone(), content) {
            drop(mailbox);
            return self.answer_error(held.request.id, error, shared);
        }
        let request = Request {
            id: mailbox.full_id(&held.request.id),
            content: held.request.content,
        };
        uplink.put_request(request, shared.waker_for(is_large));
    }

    fn answer_error(&self, id: String, error: String, shared: &HubState) {
        let content = ResponseContent::Error(error.into());
        self.answer(Response { id, content }, shared);
    }

    /// Renews the next subscription that was lost with an earlier connection. The response wakes
    /// this thread.
    fn renew(&mut self, shared: &HubState) {
        let uplink = &shared.uplink;
        if self.broken
            || !self.session.is_established()
            || !uplink.is_connected()
            || uplink.has_large_request()
        {
            return;
        }
        // The lock is held until it is sent, as for other requests.
        let mut mailbox = self.interface.mailbox.lock();
        let Some(request) = mailbox.next_renewal() else {
            return;
        };
        let is_large = request.content.memory_bytes() > LARGE_REQUEST;
        uplink.put_request(request, shared.waker_for(is_large));
    }

    /// When there is something to do without an event.
    fn due(&self, now: Instant) -> Option<Instant> {
        if self.broken {
            return None;
        }
        // First: the next look for a reader, if there is something to write.
        let reader_due = match &self.absent {
            Some(absent) if self.has_something() => Some(absent.next),
            _ => None,
        };
        // Then: the retry of a message that waits.
        let waits_since = match self.session.paused_since() {
            Some(since) => Some(since),
            None if self.is_waiting() => self.large_since(),
            None => None,
        };
        if let Some(since) = waits_since {
            let retry_due = since + ANSWER_MAX;
            if retry_due <= now {
                return reader_due; // It is retried with each event by now.
            }
            return Some(retry_due.min(reader_due.unwrap_or(retry_due)));
        }
        // Finally: the end of the time for a message that is read. No message is read while one
        // waits.
        let dues = [reader_due, self.session.deadline(), self.slow_at()];
        dues.into_iter().flatten().min()
    }

    /// Notes whether the message in hand is large. A new one begins to wait.
    fn note_large(&mut self, now: Instant) {
        let message = self.session.in_hand();
        if self.broken || message.bytes <= LARGE_REQUEST {
            self.large = None;
            return;
        }
        if let Some(large) = &self.large
            && large.number == message.number
        {
            return;
        }
        self.large = Some(Large {
            number: message.number,
            since: now,
            has_turn: false,
            is_waited_for: false,
        });
    }

    /// Whether its large message waits and could be forwarded: no earlier request is under way, or
    /// it has waited too long for that.
    fn can_have_turn(&self, now: Instant) -> bool {
        let Some(large) = &self.large else {
            return false;
        };
        if large.has_turn {
            return false;
        }
        large.since + ANSWER_MAX <= now || !self.interface.mailbox.lock().must_await_response()
    }

    /// Begins to read its large message.
    fn begin_turn(&mut self, now: Instant) {
        if let Some(large) = &mut self.large {
            large.has_turn = true;
            large.since = now;
        }
        // An earlier request without a response has been waited for long enough.
        self.interface.mailbox.lock().wait_no_longer();
        self.session.on_resume(now);
    }

    /// Whether its large message waits.
    fn is_waiting(&self) -> bool {
        match &self.large {
            Some(large) => !large.has_turn,
            None => false,
        }
    }

    /// Whether its large message is being read.
    fn has_turn(&self) -> bool {
        match &self.large {
            Some(large) => large.has_turn,
            None => false,
        }
    }

    /// Since when its large message has waited, or has been read.
    fn large_since(&self) -> Option<Instant> {
        self.large.as_ref().map(|large| large.since)
    }

    /// When a large message must be complete, since others wait.
    fn slow_at(&self) -> Option<Instant> {
        match &self.large {
            Some(large) if large.is_waited_for => Some(large.since + LARGE_TIME),
            _ => None,
        }
    }

    /// Whether there is something to write.
    fn has_something(&self) -> bool {
        let is_established = self.session.is_established();
        self.sending.is_some() || self.interface.mailbox.lock().has_any(is_established)
    }

    /// Begins a new session for the restarted container.
    fn restart(&mut self, now: Instant, shared: &HubState) {
        if self.broken {
            return;
        }
        self.pipes.reset();
        self.absent = None;
        self.session.on_restart();
        self.act(now, shared);
        self.write(now);
    }

    /// Handles the events of `poll`: reads the bytes of the workload, and notes the closed ends of
    /// the pipes.
    fn on_events(&mut self, events: LinkEvents, now: Instant, shared: &HubState, room: &mut [u8]) {
        // First: the pipe that the workload reads.
        let LinkEvents { output, input } = events;
        if input.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            self.pipes.close_input();
            self.forget_begun();
        }
        if input.contains(PollFlags::OUT) {
            self.full = false;
        }
        if output.is_empty() {
            return;
        }
        // Then: the pipe that it writes. The next writer may open it before this thread reads, and
        // then a read does not show that the earlier one has closed it. So the event decides.
        let writer_gone = output.contains(PollFlags::HUP);
        let has_bytes = output.contains(PollFlags::IN);
        if writer_gone && !has_bytes {
            self.session.on_close();
        }
        match self.pipes.read(room) {
            Ok(ReadOutcome::Bytes(count)) => {
                self.absent = None; // A workload that writes will read as well.
                self.session.on_bytes(&room[..count]);
                self.act(now, shared);
                if writer_gone && has_bytes && count < room.len() {
                    self.session.on_close(); // All bytes of the earlier writer are read.
                }
            }
            Ok(ReadOutcome::Closed) => self.session.on_close(),
            Ok(ReadOutcome::Nothing) => {}
            Err(error) => self.fail(&error),
        }
    }

    /// Retries a held request, and ends the session if a message takes too long.
    fn on_time(&mut self, now: Instant, shared: &HubState) {
        if self.broken {
            return;
        }
        if self.session.paused_since().is_some() {
            self.session.retry_held();
            self.act(now, shared);
        }
        if self.is_waiting() || self.session.paused_since().is_some() {
            return; // Nothing is read, so nothing is late.
        }
        let is_late = self.session.deadline().is_some_and(|at| at <= now);
        let is_slow = self.slow_at().is_some_and(|at| at <= now);
        if is_late || is_slow {
            let others_wait = !is_late;
            self.session.on_late(others_wait);
            self.act(now, shared);
        }
    }

    /// Writes waiting messages, as far as the workload reads them.
    fn write(&mut self, now: Instant) {
        if self.broken || self.full {
            return;
        }
        if let Some(absent) = &self.absent
            && absent.next > now
        {
            return; // No reader yet, and the next look for one is not due.
        }
        let mut budget = PIPE_TURN;
        while budget > 0 {
            // First: the message. A new one begins only when the earlier one was read.
            if self.sending.is_none() && self.has_something() && !self.pipes.is_drained() {
                return self.wait_until_drained(now);
            }
            let next = match self.sending.take() {
                Some(sending) => Some(sending),
                None => self.next_message(),
            };
            let Some(mut sending) = next else {
                return;
            };
            // Then: as much of it as the pipe takes.
            match self.pipes.write(&sending.bytes, sending.sent) {
                Ok(WriteOutcome::Bytes(count)) => {
                    self.absent = None;
                    budget = budget.saturating_sub(count);
                    sending.sent += count;
                    if sending.sent < sending.bytes.len() {
                        self.sending = Some(sending);
                    }
                }
                Ok(WriteOutcome::Full) => {
                    self.full = true;
                    self.sending = Some(sending);
                    return;
                }
                Ok(WriteOutcome::NoReader) => {
                    self.sending = Some(sending);
                    self.forget_begun();
                    self.wait_for_reader(now);
                    return;
                }
                Err(error) => return self.fail(&error),
            }
        }
        // Other workloads come first. `poll` will report at once that there is space.
        self.full = self.has_something();
    }

    /// Leaves the pipe to the next response until the next turn, if the link is idle. The thread
    /// that receives the response can then write it without waking this one.
    fn leave_pipe(&self) {
        let is_idle = !self.broken
            && !self.full
            && self.sending.is_none()
            && self.absent.is_none()
            && self.large.is_none()
            && self.session.is_established()
            && self.session.paused_since().is_none();
        if is_idle {
            self.interface
                .mailbox
                .lock()
                .set_direct(self.pipes.direct());
        }
    }

    /// Begins to wait until the workload has read the last message.
    fn wait_until_drained(&mut self, now: Instant) {
        if self.pipes.reports_drained() {
            self.full = true; // `poll` wakes this thread.
        } else {
            self.wait_for_reader(now); // `poll` would report a drained pipe too early.
        }
    }

    /// Takes the next message out of the mailbox.
    fn next_message(&mut self) -> Option<Sending> {
        let is_established = self.session.is_established();
        let bytes = self.interface.mailbox.lock().pop(is_established)?;
        Some(Sending { bytes, sent: 0 })
    }

    /// Drops a message that was begun: the next reader must not begin in the middle of it.
    fn forget_begun(&mut self) {
        if let Some(sending) = &self.sending
            && sending.sent > 0
        {
            self.sending = None;
        }
        self.full = false;
    }

    /// Begins or continues to wait for a reader, with a longer pause each time.
    fn wait_for_reader(&mut self, now: Instant) {
        let absent = self.absent.get_or_insert(Absent {
            since: now,
            pause: READER_RETRY / 2, // It is doubled below.
            next: now,
        });
        let away = now.saturating_duration_since(absent.since) >= READER_AWAY;
        let longest = if away {
            READER_RETRY_AWAY
        } else {
            READER_RETRY_MAX
        };
        absent.pause = (absent.pause * 2).min(longest);
        absent.next = now + absent.pause;
    }

    /// Stops serving the interface, since a pipe has failed.
    fn fail(&mut self, error: &std::io::Error) {
        let _source = log_source(self.interface.workload.clone());
        warn!(
            "The control interface of workload '{}' cannot be used any more: '{error}'",
            self.interface.workload
        );
        self.broken = true;
        self.pipes.close_input();
        self.sending = None;
        self.interface.mailbox.lock().clear();
    }
}

#[cfg(test)]
mod tests;
