//! The loop that serves all control interfaces: waits for bytes, room, readers and time, and lets
//! each session act.
//!
//! Thread: `control`, one for all workloads.
//! Owns: the open FIFOs, the sessions, the message being written to each workload.
//! Takes: new, restarted and ended interfaces of `wl:<name>`, responses of `rx:server`. Gives:
//! requests to `uplink`, never waiting for it. Reading and writing of a workload are independent of
//! each other and of other workloads, but for large messages: one at a time is read, until `uplink`
//! has taken it, and the next one waits in its pipe.

use super::mailbox::Frame;
use super::pipes::{PIPE_TURN, Pipes, ReadOutcome, WriteOutcome};
use super::session::{Effect, LARGE_TIME, Session};
use super::{Interface, Shared};
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

/// The next request of a workload waits this long for the response to the one before, or until
/// responses are read: some server may never respond, and some programs only write.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// First pause before a workload that does not read is tried again; it doubles. The kernel does not
/// report a new reader.
const READER_RETRY: Duration = Duration::from_millis(5);
/// Longest such pause for a workload that read lately.
const READER_RETRY_MAX: Duration = Duration::from_millis(100);
/// Longest such pause for a workload that has not read for [`READER_AWAY`]: each try wakes the
/// processor.
const READER_RETRY_AWAY: Duration = Duration::from_secs(1);
const READER_AWAY: Duration = Duration::from_secs(10);

/// Serves all control interfaces of an agent.
pub(crate) struct Poller<C> {
    shared: Arc<Shared>,
    clock: C,
    links: Vec<Link>,
    buffer: Vec<u8>,
}

/// One workload.
#[derive(Debug)]
pub(super) struct Link {
    interface: Arc<Interface>,
    session: Session,
    pipes: Pipes,
    sending: Option<Sending>,
    /// A large message is being read, or waits for its turn.
    large: Option<Large>,
    /// The pipe was full; `poll` reports when it is not.
    full: bool,
    /// No process reads now, and the kernel does not report a new reader; when to try again.
    absent: Option<Absent>,
    /// A pipe failed; only the end of the interface is waited for.
    broken: bool,
}

#[derive(Debug)]
struct Large {
    /// Which message of the session.
    number: u64,
    /// Waits since then, or is read.
    since: Instant,
    has_turn: bool,
    /// Others wait meanwhile.
    is_wanted: bool,
}

/// A message on its way.
#[derive(Debug)]
struct Sending {
    bytes: Vec<u8>,
    sent: usize,
}

#[derive(Debug)]
struct Absent {
    since: Instant,
    pause: Duration,
    next: Instant,
}

/// What `poll` reported about `output` and `input` of one link.
type Ready = [PollFlags; 2];

impl<C: Clock> Poller<C> {
    /// Serves what is opened in `shared`.
    pub(super) fn new(shared: Arc<Shared>, clock: C) -> Self {
        Self {
            shared,
            clock,
            links: Vec::new(),
            buffer: vec![0; PIPE_TURN],
        }
    }

    /// Serves until the other end of `stop` is closed.
    pub(crate) fn run(mut self, stop: &OwnedFd, heartbeat: &Heartbeat) {
        heartbeat.turn();
        while self.turn(Some(stop)) {
            heartbeat.turn();
        }
    }

    /// Waits for something and handles it; without `stop` it does not wait. Returns whether to go
    /// on.
    fn turn(&mut self, stop: Option<&OwnedFd>) -> bool {
        let now = self.clock.now();
        let timeout = if stop.is_some() {
            self.due(now).map(|at| at.saturating_duration_since(now))
        } else {
            Some(Duration::ZERO)
        };
        let ready = match self.wait(stop, timeout) {
            Ok(Some(ready)) => ready,
            Ok(None) => return false,
            Err(Errno::INTR) => return true,
            Err(errno) => {
                error!("Control interfaces cannot be served any more: '{errno}'");
                return false;
            }
        };
        let now = self.clock.now();
        for (link, ready) in self.links.iter_mut().zip(ready) {
            link.on_ready(ready, now, &self.shared, &mut self.buffer);
        }
        self.take_over(now);
        for link in &mut self.links {
            link.write(now); // A workload that has read what waited may send a held request.
            link.on_time(now, &self.shared);
            link.renew(&self.shared);
            link.write(now);
        }
        self.give_turn(now);
        true
    }

    /// One large message is read at a time, so that memory does not grow with the number of
    /// workloads, each of which may write one of `max_control_message_size`. The next one is that
    /// of the workload which has waited longest, and has no earlier request under way, since it
    /// could not be passed on. A workload's next one is behind those of others.
    fn give_turn(&mut self, now: Instant) {
        for link in &mut self.links {
            let (bytes, number) = link.session.in_hand();
            if link.broken || bytes <= LARGE_REQUEST {
                link.large = None;
            } else if link
                .large
                .as_ref()
                .is_none_or(|large| large.number != number)
            {
                link.large = Some(Large {
                    number,
                    since: now,
                    has_turn: false,
                    is_wanted: false,
                });
            }
        }
        let is_next = |link: &&mut Link| {
            let waited = link
                .large_since()
                .is_some_and(|since| since + ANSWER_MAX <= now);
            link.is_waiting() && (waited || !link.interface.mailbox.lock().is_under_way())
        };
        let is_taken =
            self.links.iter().any(Link::has_turn) || self.shared.uplink.has_large_request();
        if !is_taken
            && let Some(next) = self
                .links
                .iter_mut()
                .filter(is_next)
                .min_by_key(|link| link.large_since())
            && let Some(large) = &mut next.large
        {
            (large.has_turn, large.since) = (true, now);
            next.interface.mailbox.lock().wait_no_longer();
            next.session.on_resume(now);
        }
        let some_wait = self.links.iter().any(Link::is_waiting);
        for large in self.links.iter_mut().filter_map(|link| link.large.as_mut()) {
            large.is_wanted = some_wait;
        }
    }

    /// When the next thing is due without an event.
    fn due(&self, now: Instant) -> Option<Instant> {
        self.links.iter().filter_map(|link| link.due(now)).min()
    }

    /// `None` when the agent ends.
    fn wait(
        &self,
        stop: Option<&OwnedFd>,
        timeout: Option<Duration>,
    ) -> Result<Option<Vec<Ready>>, Errno> {
        let mut waits = Vec::with_capacity(2 + 2 * self.links.len());
        waits.push(PollFd::new(&self.shared.wake, PollFlags::IN));
        waits.extend(stop.map(|stop| PollFd::new(stop, PollFlags::IN)));
        let begin = waits.len();
        // Which link and which of its ends each further entry belongs to.
        let mut owners = Vec::with_capacity(2 * self.links.len());
        for (index, link) in self
            .links
            .iter()
            .enumerate()
            .filter(|(_, link)| !link.broken)
        {
            if link.session.paused_since().is_none() && !link.is_waiting() {
                waits.push(PollFd::from_borrowed_fd(link.pipes.output(), PollFlags::IN));
                owners.push((index, 0));
            }
            if let Some(input) = link.pipes.input() {
                let room = if link.full {
                    PollFlags::OUT
                } else {
                    PollFlags::empty()
                };
                // The end of the reader is reported in any case.
                waits.push(PollFd::from_borrowed_fd(input, room));
                owners.push((index, 1));
            }
        }
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        poll(&mut waits, timeout.as_ref())?;
        if !waits[0].revents().is_empty() {
            self.shared.wake.reset();
        }
        if stop.is_some() && !waits[1].revents().is_empty() {
            return Ok(None);
        }
        let mut ready = vec![[PollFlags::empty(); 2]; self.links.len()];
        for ((index, end), wait) in owners.into_iter().zip(&waits[begin..]) {
            ready[index][end] = wait.revents();
        }
        Ok(Some(ready))
    }

    /// Takes new interfaces over, lets go of those that ended, and begins anew where a container
    /// was restarted.
    fn take_over(&mut self, now: Instant) {
        self.links.append(&mut self.shared.registry.lock().opened);
        let shared = &self.shared;
        self.links.retain_mut(|link| {
            let ended = link.interface.ended.load(Ordering::Relaxed);
            if link.interface.restarted.swap(false, Ordering::Relaxed) && !ended {
                link.restart(now, shared);
            }
            !ended
        });
    }
}

impl Link {
    pub(super) fn new(interface: Arc<Interface>, pipes: Pipes, session: Session) -> Self {
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

    /// Does what the session wants.
    fn act(&mut self, now: Instant, shared: &Shared) {
        while let Some(effect) = self.session.next(now) {
            match effect {
                Effect::Greet(message) => self.interface.mailbox.lock().put_first(message),
                Effect::Answer(response) => self.answer(response, shared),
                Effect::Begin => {
                    shared.begin_generation(&self.interface);
                    let begun = self.sending.take().is_some_and(|sending| sending.sent > 0);
                    if !self.pipes.discard_unread() && begun {
                        self.pipes.close_input();
                    }
                    self.full = false;
                }
                Effect::Forward(request, since) => self.forward(request, since, now, shared),
            }
        }
    }

    fn answer(&self, response: Response, shared: &Shared) {
        let cancels = self.interface.mailbox.lock().put(Frame::new(response));
        shared.cancel(&self.interface, cancels);
    }

    fn forward(
        &mut self,
        Request { id, content }: Request,
        since: Instant,
        now: Instant,
        shared: &Shared,
    ) {
        let uplink = &shared.uplink;
        let is_connected = uplink.is_connected();
        let is_large = content.memory_bytes() > LARGE_REQUEST;
        // Locked until it is sent: the answer may come at once, and the generation may end.
        let mut mailbox = self.interface.mailbox.lock();
        let error = if !is_connected && (is_large || mailbox.is_under_way()) {
            "The agent has no connection to the server; try again later".to_owned()
        } else if now < since + ANSWER_MAX && mailbox.must_wait(&content)
            || is_large && uplink.has_large_request()
        {
            drop(mailbox);
            return self.session.hold(Request { id, content }, since);
        } else if let Err(error) = mailbox.ask(id.clone(), &content) {
            error
        } else {
            let request = Request {
                id: mailbox.full_id(&id),
                content,
            };
            return uplink.put_request(request, is_large.then(|| shared.wake.clone()));
        };
        drop(mailbox);
        self.answer(
            Response {
                id,
                content: ResponseContent::Error(error.into()),
            },
            shared,
        );
    }

    /// Subscribes again to the next of what was lost with an earlier connection. The response wakes
    /// this thread.
    fn renew(&mut self, shared: &Shared) {
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
        uplink.put_request(request, is_large.then(|| shared.wake.clone()));
    }

    fn due(&self, now: Instant) -> Option<Instant> {
        if self.broken {
            return None;
        }
        let reader = self
            .absent
            .as_ref()
            .filter(|_| self.has_something())
            .map(|absent| absent.next);
        let deadline = match self.session.paused_since() {
            // What waits for something else is tried again when that happens.
            Some(since) => Some(since + ANSWER_MAX).filter(|at| *at > now),
            None if self.is_waiting() => self
                .large_since()
                .map(|since| since + ANSWER_MAX)
                .filter(|at| *at > now),
            None => self
                .session
                .deadline()
                .into_iter()
                .chain(self.slow_at())
                .min(),
        };
        reader.into_iter().chain(deadline).min()
    }

    fn is_waiting(&self) -> bool {
        self.large.as_ref().is_some_and(|large| !large.has_turn)
    }

    fn has_turn(&self) -> bool {
        self.large.as_ref().is_some_and(|large| large.has_turn)
    }

    fn large_since(&self) -> Option<Instant> {
        self.large.as_ref().map(|large| large.since)
    }

    /// When a large message must be complete, since others wait.
    fn slow_at(&self) -> Option<Instant> {
        self.large
            .as_ref()
            .filter(|large| large.is_wanted)
            .map(|large| large.since + LARGE_TIME)
    }

    fn has_something(&self) -> bool {
        self.sending.is_some()
            || self
                .interface
                .mailbox
                .lock()
                .has_any(self.session.is_established())
    }

    fn restart(&mut self, now: Instant, shared: &Shared) {
        if self.broken {
            return;
        }
        self.pipes.start_anew();
        self.absent = None;
        self.session.on_restart();
        self.act(now, shared);
        self.write(now);
    }

    fn on_ready(&mut self, [output, input]: Ready, now: Instant, shared: &Shared, room: &mut [u8]) {
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
        let (writer_gone, has_bytes) = (
            output.contains(PollFlags::HUP),
            output.contains(PollFlags::IN),
        );
        if writer_gone && !has_bytes {
            self.session.on_close();
        }
        match self.pipes.read(room) {
            Ok(ReadOutcome::Bytes(count)) => {
                self.absent = None; // A workload that writes will read as well.
                self.session.on_bytes(&room[..count]);
                self.act(now, shared);
                if writer_gone && has_bytes && count < room.len() {
                    self.session.on_close(); // All that was left is read.
                }
            }
            Ok(ReadOutcome::Closed) => self.session.on_close(),
            Ok(ReadOutcome::Nothing) => {}
            Err(error) => self.fail(&error),
        }
    }

    fn on_time(&mut self, now: Instant, shared: &Shared) {
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
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let (is_late, is_slow) = (is_due(self.session.deadline()), is_due(self.slow_at()));
        if is_late || is_slow {
            self.session.on_late(!is_late);
            self.act(now, shared);
        }
    }

    /// Writes what waits, as far as the workload reads it.
    fn write(&mut self, now: Instant) {
        if self.broken || self.full || self.absent.as_ref().is_some_and(|absent| absent.next > now)
        {
            return;
        }
        let mut budget = PIPE_TURN;
        while budget > 0 {
            if self.sending.is_none() && self.has_something() && !self.pipes.is_drained() {
                return self.wait_until_drained(now);
            }
            let Some(sending) = self.sending.take().or_else(|| self.next_message()) else {
                return;
            };
            match self.pipes.write(&sending.bytes, sending.sent) {
                Ok(WriteOutcome::Bytes(count)) => {
                    self.absent = None;
                    budget = budget.saturating_sub(count);
                    let sent = sending.sent + count;
                    self.sending =
                        (sent < sending.bytes.len()).then_some(Sending { sent, ..sending });
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
        // Other workloads come first; `poll` reports at once whether there is room.
        self.full = self.has_something();
    }

    /// What was written last is not read yet.
    fn wait_until_drained(&mut self, now: Instant) {
        if self.pipes.reports_drained() {
            self.full = true;
        } else {
            self.wait_for_reader(now);
        }
    }

    fn next_message(&mut self) -> Option<Sending> {
        let bytes = self
            .interface
            .mailbox
            .lock()
            .pop(self.session.is_established())?;
        Some(Sending { bytes, sent: 0 })
    }

    /// The next reader shall not begin in the middle of a message.
    fn forget_begun(&mut self) {
        self.sending = self.sending.take().filter(|sending| sending.sent == 0);
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
