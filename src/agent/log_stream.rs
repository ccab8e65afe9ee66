//! Reads the logs of containers for requests of the server: follow, tail, since, until.
//!
//! One stream per request and instance. A stream has at most one message waiting for the server; until that is sent it
//! reads nothing, so a flood waits in the pipe of the engine's program, costs bounded memory and delays no other
//! stream. Lines that a slow requester does not read in time are dropped and counted by the server.
//!
//! Thread: `log:<number>:<workload>`, one per stream: reads and sends. [`LogStreams`] belongs to `scheduler`.
//! Owns: the processes of the engine that print the log. Takes: [`LogOrder`], its end when [`LogStreams`] forgets it.
//! Gives: lines and their end to `uplink` (waits there for room).

use super::uplink_outbox::UplinkOutbox;
use crate::limits::{LOG_STOP_MAX, LOG_STREAMS_MAX, LOG_STREAMS_OF_WORKLOAD, STACK_LARGE};
use crate::model::log_entries;
use crate::model::messages::{LogEntry, LogsRequest, ToServer};
use crate::model::names::{InstanceName, excerpt, is_of_commander};
use crate::platform::logging::log_source;
use crate::platform::sync::EventFd;
use crate::platform::threads::{self, Thread};
use crate::runtime::RuntimeConnector;
use crate::runtime::log_reader::LogReader;
use log::{debug, info, warn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// The source of our log lines about requested logs; the requester is not known here.
const LOG_REQUESTS: &str = "log requests";

/// One instance whose log is wanted, and the engine that has its container; `None` when the workload is not known or has no
/// engine.
pub type LogOrder = (InstanceName, Option<Box<dyn RuntimeConnector>>);

/// The streams under way.
pub struct LogStreams {
    outbox: UplinkOutbox,
    running: Vec<Running>,
    started: u64,
}

/// A running stream. It ends when this is dropped.
struct Running {
    request_id: String,
    stop: EventFd,
    thread: Option<Thread>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.set();
    }
}

impl LogStreams {
    /// No stream yet. Lines go to `outbox`.
    pub fn new(outbox: UplinkOutbox) -> Self {
        Self { outbox, running: Vec::new(), started: 0 }
    }

    /// Starts to read; a request under the same id is replaced. What cannot be read ends at once, or the requester
    /// would wait for it for ever.
    pub fn start(&mut self, request_id: &str, wanted: &LogsRequest, orders: Vec<LogOrder>) {
        let _source = log_source(LOG_REQUESTS);
        self.cancel(request_id);
        self.forget_ended();
        for (instance, connector) in orders {
            let Some(connector) = connector else {
                info!("Could not find workload '{}'", excerpt(&instance.workload));
                self.refuse(request_id, instance, None);
                continue;
            };
            if let Some(text) = self.too_many(request_id) {
                self.refuse(request_id, instance, Some(text));
                continue;
            }
            if let Err(error) = self.start_one(request_id, wanted.clone(), instance.clone(), connector) {
                warn!("Did not get log fetcher for '{}': {error}", instance.workload);
                self.refuse(request_id, instance, Some(format!("[no log: {error}]")));
            }
        }
    }

    /// Why no further stream of this request can start, if so.
    fn too_many(&self, request_id: &str) -> Option<String> {
        if self.running.len() >= LOG_STREAMS_MAX {
            return Some(format!("[no log: this agent reads {LOG_STREAMS_MAX} others at the moment]"));
        }
        let workload = requesting_workload(request_id)?;
        let own = self.running.iter().filter(|one| requesting_workload(&one.request_id) == Some(workload));
        let full = own.count() >= LOG_STREAMS_OF_WORKLOAD;
        full.then(|| {
            format!("[no log: this agent reads {LOG_STREAMS_OF_WORKLOAD} others for this workload at the moment]")
        })
    }

    fn start_one(
        &mut self,
        request_id: &str,
        wanted: LogsRequest,
        instance: InstanceName,
        connector: Box<dyn RuntimeConnector>,
    ) -> io::Result<()> {
        self.started += 1;
        let (stop, room) = (EventFd::new()?, EventFd::new()?);
        let name = format!("log:{}:{}", self.started, instance.workload);
        let stream = LogStream {
            request_id: request_id.to_owned(),
            instance,
            wanted,
            outbox: self.outbox.clone(),
            stop: stop.clone(),
            room,
            sending: false,
            waiting: VecDeque::new(),
        };
        let thread = threads::spawn(name, STACK_LARGE, move || stream.run(connector))?;
        self.running.push(Running { request_id: request_id.to_owned(), stop, thread: Some(thread) });
        Ok(())
    }

    fn refuse(&self, request_id: &str, instance: InstanceName, why: Option<String>) {
        let lines = why.map(|message| vec![LogEntry { instance: instance.clone(), message }]);
        let lines = lines.map(|entries| ToServer::LogEntries { request_id: request_id.to_owned(), entries });
        let stop = ToServer::LogsStop { request_id: request_id.to_owned(), instance };
        for message in lines.into_iter().chain([stop]) {
            let _ = self.outbox.put_message(message, None); // Refused only when there is no server that could read it.
        }
    }

    /// Ends the streams of a request; an unknown one is no error.
    pub fn cancel(&mut self, request_id: &str) {
        self.running.retain(|one| one.request_id != request_id);
    }

    /// Ends all streams: whoever wanted them is gone.
    pub fn cancel_all(&mut self) {
        self.running.clear();
    }

    /// Forgets the streams that have ended by themselves.
    pub fn forget_ended(&mut self) {
        self.running.retain(|one| one.thread.as_ref().is_some_and(|thread| !thread.has_ended()));
    }
}

impl Drop for LogStreams {
    /// The agent ends: the processes of the engine end with their streams.
    fn drop(&mut self) {
        let running: Vec<Thread> = self.running.iter_mut().filter_map(|stream| stream.thread.take()).collect();
        self.cancel_all();
        for name in threads::join_all(running, LOG_STOP_MAX) {
            debug!("Not waiting for thread '{name}'.");
        }
    }
}

/// The stream, or agent, and the workload that requested a log, by the full id of the request; `None` for a commander whose
/// id tells that.
fn requesting_workload(request_id: &str) -> Option<(&str, &str)> {
    let mut parts = request_id.splitn(3, '@');
    let (stream, workload) = (parts.next()?, parts.next()?);
    (!is_of_commander(stream) && parts.next().is_some()).then_some((stream, workload))
}

/// One log on its way.
struct LogStream {
    /// The full id of the request.
    request_id: String,
    instance: InstanceName,
    wanted: LogsRequest,
    outbox: UplinkOutbox,
    /// Readable when the log is not wanted any more.
    stop: EventFd,
    /// Readable when the message that waited for the server is being sent.
    room: EventFd,
    /// Whether a message waits for the server.
    sending: bool,
    /// What comes after it.
    waiting: VecDeque<ToServer>,
}

/// The log is not wanted any more.
struct Stopped;

impl LogStream {
    fn run(mut self, connector: Box<dyn RuntimeConnector>) {
        let _source = log_source(LOG_REQUESTS);
        let _ = self.send_all(connector); // Who has stopped it knows.
    }

    fn send_all(&mut self, connector: Box<dyn RuntimeConnector>) -> Result<(), Stopped> {
        let mut readers = self.open(connector);
        while !readers.is_empty() {
            self.send()?;
            self.until_sent()?;
            let limit = readers.iter().filter_map(|reader| reader.child.wait_max()).min();
            self.wait_for(readers.iter().flat_map(|reader| reader.child.descriptors()), limit)?;
            let mut lines = Vec::new();
            readers.retain_mut(|reader| !reader.read(&mut lines));
            self.queue(lines);
        }
        let (request_id, instance) = (self.request_id.clone(), self.instance.clone());
        self.waiting.push_back(ToServer::LogsStop { request_id, instance });
        self.send()
    }

    /// Starts the calls that print the log. What goes wrong becomes its lines.
    fn open(&mut self, mut connector: Box<dyn RuntimeConnector>) -> Vec<LogReader> {
        let calls = match connector.log_calls(&self.instance, &self.wanted) {
            Ok(calls) => calls,
            Err(error) => {
                warn!("Did not get log fetcher for '{}': {error}", self.instance.workload);
                self.queue(vec![format!("[no log: {error}]")]);
                return Vec::new();
            }
        };
        if calls.is_empty() {
            info!("Did not get log fetcher for '{}': it has no container", self.instance.workload);
        }
        let mut readers = Vec::new();
        for call in calls {
            let program = call.program.clone();
            match call.start() {
                Ok(reader) => readers.push(reader),
                Err(error) => self.queue(vec![format!("[no log: cannot start '{program}': {error}]")]),
            }
        }
        readers
    }

    /// Puts lines behind what waits, in messages that every peer takes.
    fn queue(&mut self, lines: Vec<String>) {
        let mut entries = lines.into_iter().map(|message| LogEntry { instance: self.instance.clone(), message });
        loop {
            // Lines read before they are sent. Empty lines cost far more in memory and on the wire than in the pipe.
            let some: Vec<LogEntry> = entries.by_ref().take(4096).collect();
            if some.is_empty() {
                return;
            }
            let request_id = &self.request_id;
            let message = |entries| ToServer::LogEntries { request_id: request_id.clone(), entries };
            self.waiting.extend(log_entries::split(some).into_iter().map(message));
        }
    }

    /// Hands over what waits, one message at a time; the last one may still wait for the server then.
    fn send(&mut self) -> Result<(), Stopped> {
        while let Some(message) = self.waiting.pop_front() {
            self.until_sent()?;
            if !self.outbox.put_message(message, Some(self.room.clone())) {
                return Err(Stopped); // There is no server; the scheduler is notified as well.
            }
            self.sending = true;
        }
        Ok(())
    }

    /// Waits until no message waits for the server.
    fn until_sent(&mut self) -> Result<(), Stopped> {
        while self.sending {
            self.wait_for([self.room.as_fd()], None)?;
            self.sending = !self.room.reset();
        }
        Ok(())
    }

    /// Waits until one of the descriptors is readable, at most `limit`.
    fn wait_for<'a>(
        &'a self,
        descriptors: impl IntoIterator<Item = BorrowedFd<'a>>,
        limit: Option<Duration>,
    ) -> Result<(), Stopped> {
        let descriptors = descriptors.into_iter().chain([self.stop.as_fd()]);
        let mut polled: Vec<PollFd<'_>> = descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // An error, EINTR for one, reports nothing ready; the caller checks again.
        let _ = poll(&mut polled, limit.as_ref());
        if self.stop.reset() { Err(Stopped) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
