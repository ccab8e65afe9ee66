//! The loop that serves all control interfaces: waits for bytes, room, readers and time, and lets each session act.
//!
//! Thread: `control`, one for all workloads.
//! Owns: the open FIFOs, the sessions, the message being written to each workload.
//! Takes: new, restarted and ended interfaces of `wl:<name>`, responses of `rx:server`. Gives: requests to `uplink`,
//! never waiting for it. Reading and writing of a workload are independent of each other and of other workloads.

use super::outbox::Frame;
use super::pipes::{Pipes, ReadOutcome, WriteOutcome};
use super::read_budget::{self, Place};
use super::session::{Forwarded, Outside, Session};
use super::{Interface, Opened, Shared};
use crate::agent::uplink_outbox::NoRoom;
use crate::limits::{
    CONTROL_READER_AWAY, CONTROL_READER_RETRY, CONTROL_READER_RETRY_AWAY, CONTROL_READER_RETRY_MAX, CONTROL_ROOM_RETRY,
    CONTROL_TURN, CONTROL_UNREAD_MAX,
};
use crate::model::messages::{Request, Response, ToWorkload};
use crate::platform::clock::Clock;
use crate::platform::logging::log_source;
use crate::platform::vital::Pulse;
use log::{error, warn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Serves all control interfaces of an agent.
pub struct Poller<C> {
    shared: Arc<Shared>,
    clock: C,
    links: Vec<Link>,
    room: Vec<u8>,
}

/// One workload.
struct Link {
    interface: Arc<Interface>,
    session: Session,
    pipes: Pipes,
    sending: Option<Sending>,
    /// Of the room that all share for large messages.
    place: Place,
    /// The pipe was full; `poll` reports when it is not.
    full: bool,
    /// No process reads now, and the kernel does not report a new reader; when to try again.
    absent: Option<Absent>,
    /// A pipe failed; only the end of the interface is waited for.
    broken: bool,
}

/// A message on its way.
struct Sending {
    bytes: Vec<u8>,
    sent: usize,
}

struct Absent {
    since: Instant,
    pause: Duration,
    next: Instant,
}

/// What `poll` reported about one link.
#[derive(Debug, Clone, Copy, Default)]
struct Ready {
    output: bool,
    /// No process has `output` open for writing. A next writer may open it before it is read, and reading does not show
    /// the end of the one before.
    writer_gone: bool,
    /// There was something in `output`.
    bytes: bool,
    room: bool,
    reader_gone: bool,
}

impl<C: Clock> Poller<C> {
    /// Serves what is opened in `shared`.
    pub(super) fn new(shared: Arc<Shared>, clock: C) -> Self {
        Self { shared, clock, links: Vec::new(), room: vec![0; CONTROL_TURN] }
    }

    /// Serves until the other end of `stop` is closed.
    pub fn run(mut self, stop: &OwnedFd, pulse: &Pulse) {
        pulse.turn();
        while self.turn(Some(stop)) {
            pulse.turn();
        }
    }

    /// Waits for something and handles it; without `stop` it does not wait. Returns whether to go on.
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
            link.on_ready(ready, now, &self.shared, &mut self.room);
        }
        self.take_over(now);
        for link in &mut self.links {
            link.write(now); // A workload that has read what waited may send a held request.
            link.on_time(now, &self.shared);
            link.write(now);
        }
        self.share_room(now);
        true
    }

    /// Large messages are read as far as there is room for all of them.
    fn share_room(&mut self, now: Instant) {
        let needs = |link: &Link| if link.broken { (0, 0) } else { link.session.in_hand() };
        let places = self.links.iter_mut().map(|link| (needs(link), &mut link.place));
        read_budget::share(places.collect(), now);
        for link in &mut self.links {
            if link.place.has_just_got_room(now) {
                link.session.on_resume(now);
            }
        }
    }

    /// When the next thing is due without an event.
    fn due(&self, now: Instant) -> Option<Instant> {
        self.links.iter().filter_map(|link| link.due(now)).min()
    }

    /// `None` when the agent ends.
    fn wait(&self, stop: Option<&OwnedFd>, timeout: Option<Duration>) -> Result<Option<Vec<Ready>>, Errno> {
        let mut waits = Vec::with_capacity(2 + 2 * self.links.len());
        waits.push(PollFd::new(&self.shared.wake, PollFlags::IN));
        waits.extend(stop.map(|stop| PollFd::new(stop, PollFlags::IN)));
        let begin = waits.len();
        // Which link and which of its ends each further entry belongs to.
        let mut owners = Vec::with_capacity(2 * self.links.len());
        for (index, link) in self.links.iter().enumerate().filter(|(_, link)| !link.broken) {
            if !link.session.is_paused() && !link.place.is_waiting() {
                waits.push(PollFd::from_borrowed_fd(link.pipes.output(), PollFlags::IN));
                owners.push((index, true));
            }
            if let Some(input) = link.pipes.input() {
                let room = if link.full { PollFlags::OUT } else { PollFlags::empty() };
                waits.push(PollFd::from_borrowed_fd(input, room)); // The end of the reader is reported in any case.
                owners.push((index, false));
            }
        }
        let timeout = timeout.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        poll(&mut waits, timeout.as_ref())?;
        if !waits[0].revents().is_empty() {
            self.shared.wake.reset();
        }
        if stop.is_some() && !waits[1].revents().is_empty() {
            return Ok(None);
        }
        let mut ready = vec![Ready::default(); self.links.len()];
        for ((index, is_output), wait) in owners.into_iter().zip(&waits[begin..]) {
            let events = wait.revents();
            if is_output {
                ready[index].output = !events.is_empty();
                ready[index].writer_gone = events.contains(PollFlags::HUP);
                ready[index].bytes = events.contains(PollFlags::IN);
            } else {
                ready[index].room = events.contains(PollFlags::OUT);
                ready[index].reader_gone = events.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
            }
        }
        Ok(Some(ready))
    }

    /// Takes new interfaces over, lets go of those that ended, and begins anew where a container was restarted.
    fn take_over(&mut self, now: Instant) {
        let opened = std::mem::take(&mut self.shared.registry.lock().opened);
        self.links.extend(opened.into_iter().map(Link::new));
        let shared = &self.shared;
        self.links.retain_mut(|link| {
            let mut mailbox = link.interface.mailbox.lock();
            let (ended, restarted) = (mailbox.ended, std::mem::take(&mut mailbox.restarted));
            drop(mailbox);
            if restarted && !ended {
                link.restart(now, shared);
            }
            !ended
        });
    }
}

impl Link {
    fn new(Opened { interface, pipes, session }: Opened) -> Self {
        Self {
            interface,
            session,
            pipes,
            sending: None,
            place: Place::default(),
            full: false,
            absent: None,
            broken: false,
        }
    }

    fn parts<'a>(&'a mut self, shared: &'a Shared) -> (&'a mut Session, Reach<'a>) {
        let Self { interface, session, pipes, sending, full, .. } = self;
        (session, Reach { shared, interface, pipes, sending, full })
    }

    fn due(&self, now: Instant) -> Option<Instant> {
        if self.broken {
            return None;
        }
        let retry = self.session.is_paused().then(|| now + CONTROL_ROOM_RETRY);
        let reader = self.absent.as_ref().filter(|_| self.has_something()).map(|absent| absent.next);
        let message = if self.place.is_waiting() { None } else { self.session.deadline() };
        let slow = if self.session.is_paused() { None } else { self.place.deadline() };
        retry.into_iter().chain(reader).chain(message).chain(slow).min()
    }

    fn has_something(&self) -> bool {
        self.sending.is_some() || self.interface.mailbox.lock().outbox.has_any(self.session.is_established())
    }

    fn restart(&mut self, now: Instant, shared: &Shared) {
        if self.broken {
            return;
        }
        self.pipes.start_anew();
        self.absent = None;
        let (session, mut reach) = self.parts(shared);
        session.on_restart(&mut reach);
        let mut mailbox = self.interface.mailbox.lock();
        mailbox.outbox.clear();
        mailbox.outbox.forget_lasting();
        drop(mailbox);
        self.write(now);
    }

    fn on_ready(&mut self, ready: Ready, now: Instant, shared: &Shared, room: &mut [u8]) {
        if ready.reader_gone {
            self.pipes.close_input();
            self.forget_begun();
        }
        if ready.room {
            self.full = false;
        }
        if !ready.output {
            return;
        }
        if ready.writer_gone && !ready.bytes {
            self.session.on_close();
        }
        match self.pipes.read(room) {
            Ok(ReadOutcome::Bytes(count)) => {
                self.absent = None; // A workload that writes will read as well.
                let (session, mut reach) = self.parts(shared);
                session.on_bytes(&room[..count], now, &mut reach);
                if ready.writer_gone && ready.bytes && count < room.len() {
                    session.on_close(); // All that was left is read.
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
        if self.session.is_paused() {
            let (session, mut reach) = self.parts(shared);
            session.on_room(now, &mut reach);
        }
        if self.place.is_waiting() || self.session.is_paused() {
            return;
        }
        if self.session.deadline().is_some_and(|at| at <= now) {
            let (session, mut reach) = self.parts(shared);
            session.on_deadline(&mut reach);
        } else if self.place.deadline().is_some_and(|at| at <= now) {
            let (session, mut reach) = self.parts(shared);
            session.on_slow(&mut reach);
        }
    }

    /// Writes what waits, as far as the workload reads it.
    fn write(&mut self, now: Instant) {
        if self.broken || self.full || self.absent.as_ref().is_some_and(|absent| absent.next > now) {
            return;
        }
        let mut budget = CONTROL_TURN;
        while budget > 0 {
            if self.sending.is_none() && self.has_something() && !self.pipes.is_drained() {
                return self.wait_until_drained(now);
            }
            let Some(sending) = self.sending.take().or_else(|| self.next_message()) else { return };
            match self.pipes.write(&sending.bytes, sending.sent) {
                Ok(WriteOutcome::Bytes(count)) => {
                    self.absent = None;
                    budget = budget.saturating_sub(count);
                    let sent = sending.sent + count;
                    self.sending = (sent < sending.bytes.len()).then_some(Sending { sent, ..sending });
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
        self.full = self.has_something(); // Other workloads come first; `poll` reports at once whether there is room.
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
        let bytes = self.interface.mailbox.lock().outbox.pop(self.session.is_established())?;
        Some(Sending { bytes, sent: 0 })
    }

    /// The next reader shall not begin in the middle of a message.
    fn forget_begun(&mut self) {
        self.sending = self.sending.take().filter(|sending| sending.sent == 0);
        self.full = false;
    }

    fn wait_for_reader(&mut self, now: Instant) {
        let absent = self.absent.get_or_insert(Absent { since: now, pause: CONTROL_READER_RETRY / 2, next: now });
        let away = now.saturating_duration_since(absent.since) >= CONTROL_READER_AWAY;
        let longest = if away { CONTROL_READER_RETRY_AWAY } else { CONTROL_READER_RETRY_MAX };
        absent.pause = (absent.pause * 2).min(longest);
        absent.next = now + absent.pause;
    }

    fn fail(&mut self, error: &std::io::Error) {
        let _source = log_source(self.interface.workload.clone());
        warn!("The control interface of workload '{}' cannot be used any more: '{error}'", self.interface.workload);
        self.broken = true;
        self.pipes.close_input();
        self.sending = None;
        self.interface.mailbox.lock().outbox.clear();
    }
}

/// How a session reaches the outside.
struct Reach<'a> {
    shared: &'a Shared,
    interface: &'a Interface,
    pipes: &'a mut Pipes,
    sending: &'a mut Option<Sending>,
    full: &'a mut bool,
}

impl Outside for Reach<'_> {
    fn greet(&mut self, message: ToWorkload) {
        self.interface.mailbox.lock().outbox.put_first(message);
    }

    fn answer(&mut self, response: Response) {
        for cancel in self.interface.put(Frame::of_agent(response)) {
            self.shared.cancel(&self.interface.workload, cancel);
        }
    }

    fn discard_unsent(&mut self) {
        self.interface.mailbox.lock().outbox.clear();
        let begun = self.sending.take().is_some_and(|sending| sending.sent > 0);
        if !self.pipes.discard_unread() && begun {
            self.pipes.close_input();
        }
        *self.full = false;
    }

    fn forward(&mut self, own_id: &str, request: Request, held: Duration) -> Forwarded {
        let mut mailbox = self.interface.mailbox.lock();
        if mailbox.outbox.is_behind() && !request.content.is_cancel() && held < CONTROL_UNREAD_MAX {
            return Forwarded::Later(request);
        }
        // Before it is sent, since the answer may come at once.
        if mailbox.outbox.ask(own_id, &request.content).is_err() {
            return Forwarded::TooMany;
        }
        drop(mailbox);
        let workload = &self.interface.workload;
        let Err(NoRoom { request, connected }) = self.shared.uplink.put_request(workload, request, held) else {
            return Forwarded::Yes;
        };
        self.interface.mailbox.lock().outbox.take_back(own_id, &request.content);
        if connected { Forwarded::Later(*request) } else { Forwarded::NoServer }
    }
}

#[cfg(test)]
mod tests;
