//! The loop that serves all control interfaces: it waits for bytes, space, readers and time, and
//! lets each session act.
//!
//! Thread: `control`, one for all workloads.
//! Owns: the open FIFOs, the sessions, the message being written to each workload.
//! Takes: new, restarted and ended interfaces of `wl:<name>`, responses of `rx:server`. Gives:
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

/// Longest wait of a request for the response to the one before, or until responses are read: some
/// servers never respond, and some programs only write.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// First pause before a workload that does not read is tried again; it doubles. The kernel does not
/// report a new reader.
const READER_RETRY: Duration = Duration::from_millis(5);
/// Longest such pause for a workload that read within [`READER_AWAY`].
const READER_RETRY_MAX: Duration = Duration::from_millis(100);
/// Longest such pause for a workload that has not read for [`READER_AWAY`]: each try wakes the
/// processor.
const READER_RETRY_AWAY: Duration = Duration::from_secs(1);
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
    /// The pipe was full; `poll` reports when it is not.
    full: bool,
    /// No process reads now.
    absent: Option<Absent>,
    /// A pipe failed: nothing happens until the interface ends.
    broken: bool,
}

/// A large message, which is read only when no other one is under way.
#[derive(Debug)]
struct Large {
    /// The number of the message in its session.
    number: u64,
    /// When it began to wait, or to be read.
    since: Instant,
    /// It is being read.
    has_turn: bool,
    /// Those of other workloads wait meanwhile.
    is_waited_for: bool,
}

/// A message that is being written.
#[derive(Debug)]
struct Sending {
    bytes: Vec<u8>,
    sent: usize,
}

/// A reader that is not there. The kernel does not report a new one, so it is tried again.
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
    /// A poller that serves the interfaces that are opened in `shared`.
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
        let timeout = match (stop, self.due(now)) {
            (None, _) => Some(Duration::ZERO),
            (Some(_), Some(due)) => Some(due.saturating_duration_since(now)),
            (Some(_), None) => None,
        };
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

    /// Lets the next large message be read. One at a time is read, so that memory does not grow
    /// with the number of workloads, each of which may write one of `max_control_message_size`. The
    /// next one is that of the workload which has waited longest and has no earlier request under
    /// way, since it could not be forwarded. A workload's next one is behind those of others.
    fn give_turn(&mut self, now: Instant) {
        // First: which links have a large message.
        for link in &mut self.links {
            link.note_large(now);
        }
        // Then: the next one, when no other is read or waits for `uplink`.
        let is_busy =
            self.links.iter().any(PipeLink::has_turn) || self.shared.uplink.has_large_request();
        if !is_busy && let Some(next) = self.next_large(now) {
            next.begin_turn(now);
        }
        // Finally: the one that is read has less time while others wait.
        let others_wait = self.links.iter().any(PipeLink::is_waiting);
        for link in &mut self.links {
            if let Some(large) = &mut link.large {
                large.is_waited_for = others_wait;
            }
        }
    }

    /// The link whose large message is read next.
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
                // The end of the reader is reported in any case.
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

    /// Adds links of new interfaces, removes those of ended ones, and restarts the session where a
    /// container was restarted.
    fn update_links(&mut self, now: Instant) {
        self.links.append(&mut self.shared.registry.lock().opened);
        let shared = &self.shared;
        self.links.retain_mut(|link| {
            let has_ended = link.interface.ended.load(Ordering::Relaxed);
            let was_restarted = link.interface.restarted.swap(false, Ordering::Relaxed);
            if was_restarted && !has_ended {
                link.restart(now, shared);
            }
            !has_ended
        });
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

    /// Carries the effects of the session out.
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

    /// Discards the responses to an earlier user of the pipes. The next one must not begin in the
    /// middle of a message.
    fn discard_unread(&mut self) {
        let is_begun = match self.sending.take() {
            Some(sending) => sending.sent > 0,
            None => false,
        };
        let was_discarded = self.pipes.discard_unread();
        if is_begun && !was_discarded {
            self.pipes.close_input();
        }
        self.full = false;
    }

    fn answer(&self, response: Response, shared: &HubState) {
        let response = EncodedResponse::new(response);
        let cancels = self.interface.mailbox.lock().put(response);
        shared.cancel(&self.interface, cancels);
    }

    /// Forwards a request to the server:
    /// - not at all, when there is no connection and it cannot wait for one;
    /// - later, when an earlier request, unread responses or a large request must be waited for;
    /// - not at all, when the workload has too many subscriptions;
    /// - otherwise now.
    fn forward(&mut self, held: HeldRequest, now: Instant, shared: &HubState) {
        let uplink = &shared.uplink;
        let is_connected = uplink.is_connected();
        let content = &held.request.content;
        let is_large = content.memory_bytes() > LARGE_REQUEST;
        // Locked until it is sent: the response may come at once, and the generation may end.
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
        // Locked until it is sent, as for other requests.
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
        let reader_due = match &self.absent {
            Some(absent) if self.has_something() => Some(absent.next),
            _ => None,
        };
        let retry_due = match (self.session.paused_since(), self.large_since()) {
            (Some(since), _) => since + ANSWER_MAX,
            (None, Some(since)) if self.is_waiting() => since + ANSWER_MAX,
            _ => {
                let dues = [reader_due, self.session.deadline(), self.slow_at()];
                return dues.into_iter().flatten().min();
            }
        };
        // Later it is tried again with each event.
        let retry_due = Some(retry_due).filter(|at| *at > now);
        [reader_due, retry_due].into_iter().flatten().min()
    }

    /// Notes whether a large message is being read, or waits.
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

    /// Whether its large message waits, and could be forwarded once it is read: no request is under
    /// way, or has been for too long.
    fn can_have_turn(&self, now: Instant) -> bool {
        let Some(large) = &self.large else {
            return false;
        };
        if large.has_turn {
            return false;
        }
        large.since + ANSWER_MAX <= now || !self.interface.mailbox.lock().must_await_response()
    }

    /// Lets its large message be read.
    fn begin_turn(&mut self, now: Instant) {
        if let Some(large) = &mut self.large {
            large.has_turn = true;
            large.since = now;
        }
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

    /// Begins again for the restarted container.
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

    fn on_events(&mut self, events: LinkEvents, now: Instant, shared: &HubState, room: &mut [u8]) {
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
        // No process has it open for writing. A next writer may open it before it is read, and
        // reading does not show the end of the one before.
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
                    self.session.on_close(); // All bytes of it are read.
                }
            }
            Ok(ReadOutcome::Closed) => self.session.on_close(),
            Ok(ReadOutcome::Nothing) => {}
            Err(error) => self.fail(&error),
        }
    }

    fn on_time(&mut self, now: Instant, shared: &HubState) {
        if self.broken {
            return;
        }
        if self.session.paused_since().is_some() {
            self.session.retry_held();
            self.act(now, shared);
        }
        if self.is_waiting() || self.session.paused_since().is_some() {
            return;
        }
        let is_late = self.session.deadline().is_some_and(|at| at <= now);
        let is_slow = self.slow_at().is_some_and(|at| at <= now);
        if is_late || is_slow {
            self.session.on_late(!is_late);
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
            return;
        }
        let mut budget = PIPE_TURN;
        while budget > 0 {
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
        // Other workloads come first; `poll` reports at once whether there is space.
        self.full = self.has_something();
    }

    /// Leaves the pipe to the next response until the next turn, when this link has nothing to do
    /// with it and waits for nothing else.
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

    /// Waits until the message that was written last is read.
    fn wait_until_drained(&mut self, now: Instant) {
        if self.pipes.reports_drained() {
            self.full = true;
        } else {
            self.wait_for_reader(now);
        }
    }

    fn next_message(&mut self) -> Option<Sending> {
        let is_established = self.session.is_established();
        let bytes = self.interface.mailbox.lock().pop(is_established)?;
        Some(Sending { bytes, sent: 0 })
    }

    /// Forgets a message that was begun: the next reader must not begin in the middle of it.
    fn forget_begun(&mut self) {
        self.sending.take_if(|sending| sending.sent > 0);
        self.full = false;
    }

    fn wait_for_reader(&mut self, now: Instant) {
        let absent = self.absent.get_or_insert(Absent {
            since: now,
            pause: READER_RETRY / 2,
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
