//! Reads the logs of containers for requests of the server: follow, tail, since, until.
//!
//! There is one stream for each request and instance. At most one message of a stream waits for the
//! server, and meanwhile it reads nothing. So a flood of lines stays in the pipe of the engine's
//! program: it takes bounded memory and delays no other stream. Lines that a slow requester does
//! not read in time are dropped and counted by the server.
//!
//! A log may be requested before its container is started. It waits for the start without a thread,
//! and ends with a reason if there is none.
//!
//! Thread: `log:<number>:<workload>`, one per stream: reads and sends. [`LogStreams`] belongs to
//! `scheduler`.
//! Owns: the processes of the engine that print the log. Takes: a request, its end when
//! [`LogStreams`] forgets it.
//! Gives: lines and their end to `uplink` (waits there for room); to the scheduler, that there is
//! no container (may block there).

use super::events::SchedulerEvent;
use super::uplink_outbox::UplinkOutbox;
use crate::limits::{LOG_STOP_MAX, LOG_STREAMS_MAX, LOG_STREAMS_OF_WORKLOAD};
use ankaios_model::log_entries;
use ankaios_model::messages::{LogEntry, LogsRequest, ToServer};
use ankaios_model::names::{InstanceName, excerpt, is_of_commander};
use ankaios_platform::limits::STACK_LARGE;
use ankaios_platform::logging::log_source;
use ankaios_platform::sync::EventFd;
use ankaios_platform::threads::{self, Thread};
use ankaios_runtime::RuntimeConnector;
use ankaios_runtime::log_reader::{LogReader, LogReading};
use crossbeam_channel::Sender;
use log::{debug, info, warn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Most lines in one message. An empty line takes one byte in the pipe, but far more in memory.
const LINES_IN_MESSAGE: usize = 4096;

/// The source of log lines of the agent about requested logs. It does not know the requesters.
const LOG_REQUESTS: &str = "log requests";

/// Where the log of an instance can be read.
pub(crate) enum LogAccess {
    /// This engine has its container.
    Readable {
        engine: Box<dyn RuntimeConnector>,
        /// The number of the start of the container; `None` if this agent has not started it.
        start: Option<u64>,
    },
    /// It is being started for the first time, so it will have a container soon.
    Starting,
    /// It has no container yet for this reason, and may be started later.
    Later(String),
    /// It has no container for this reason, and will not have one.
    Never(String),
}

/// The streams under way, and the logs that wait for a container.
pub(crate) struct LogStreams {
    outbox: UplinkOutbox,
    scheduler: Sender<SchedulerEvent>,
    running: Vec<Running>,
    waiting: Vec<LogOrder>,
    started: u64,
}

/// The log of one instance, as it was requested.
#[derive(Clone)]
struct LogOrder {
    /// The full id of the request.
    request_id: String,
    instance: InstanceName,
    /// Which lines, without the instances.
    options: LogsRequest,
}

impl LogOrder {
    /// Whether it is the log of this instance for this request.
    fn is_of(&self, request_id: &str, instance: &InstanceName) -> bool {
        self.request_id == request_id && self.instance == *instance
    }

    /// Whether it waits even for a start that may be much later: only if it is followed.
    fn waits_for_later_start(&self) -> bool {
        self.options.follow == Some(true)
    }

    /// The event that the engine has no container for it.
    fn no_log(&self) -> SchedulerEvent {
        SchedulerEvent::NoLog {
            request_id: self.request_id.clone(),
            instance: self.instance.clone(),
        }
    }

    /// The message that ends the log.
    fn stop(&self) -> ToServer {
        ToServer::LogsStop {
            request_id: self.request_id.clone(),
            instance: self.instance.clone(),
        }
    }
}

/// A running stream. It ends when this is dropped.
struct Running {
    order: LogOrder,
    /// The number of the start of the container, as in [`LogAccess::Readable`].
    start: Option<u64>,
    /// It has found no container, so [`LogStreams::found_nothing`] will end it.
    has_nothing: Arc<AtomicBool>,
    stop: EventFd,
    thread: Option<Thread>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.set();
    }
}

impl LogStreams {
    /// Returns a value without streams. Lines go to `outbox`; that a container is missing is
    /// reported to `scheduler`.
    pub(crate) fn new(outbox: UplinkOutbox, scheduler: Sender<SchedulerEvent>) -> Self {
        Self {
            outbox,
            scheduler,
            running: Vec::new(),
            waiting: Vec::new(),
            started: 0,
        }
    }

    /// Starts to read the logs of a request, or to wait for their containers. A log that cannot be
    /// read ends at once. An earlier request with the same id is replaced.
    pub(crate) fn start(
        &mut self,
        request_id: &str,
        request: &LogsRequest,
        source_of: impl Fn(&InstanceName) -> LogAccess,
    ) {
        self.cancel(request_id);
        self.forget_ended();
        for instance in &request.instances {
            let order = LogOrder {
                request_id: request_id.to_owned(),
                instance: instance.clone(),
                options: LogsRequest {
                    instances: Vec::new(),
                    ..request.clone()
                },
            };
            self.take(order, source_of(instance));
        }
    }

    /// Starts to read the waiting logs that have a container now, and ends those that will have
    /// none.
    pub(crate) fn update_waiting(&mut self, source_of: impl Fn(&InstanceName) -> LogAccess) {
        for order in std::mem::take(&mut self.waiting) {
            let source = source_of(&order.instance);
            self.take(order, source);
        }
    }

    /// Continues a log whose stream has found no container, if there was or will be another start
    /// (`source`). Otherwise ends the log with the reason `why`.
    pub(crate) fn found_nothing(
        &mut self,
        request_id: &str,
        instance: &InstanceName,
        source: LogAccess,
        why: String,
    ) {
        let index = self
            .running
            .iter()
            .position(|one| one.order.is_of(request_id, instance));
        let Some(index) = index else {
            return;
        };
        let ended = self.running.remove(index);
        match &source {
            LogAccess::Readable { start, .. } if *start == ended.start => {
                self.refuse(&ended.order, &why);
            }
            _ => self.take(ended.order.clone(), source),
        }
    }

    /// Reads a log, makes it wait for its container, or ends it with a reason.
    fn take(&mut self, order: LogOrder, source: LogAccess) {
        let _source = log_source(LOG_REQUESTS);
        if let Err(why) = self.read_or_wait(&order, source) {
            info!(
                "Did not get log fetcher for '{}': {}",
                excerpt(&order.instance.workload),
                excerpt(&why)
            );
            self.refuse(&order, &why);
        }
    }

    /// Reads a log, or makes it wait for its container.
    ///
    /// # Errors
    /// Why neither is possible.
    fn read_or_wait(&mut self, order: &LogOrder, source: LogAccess) -> Result<(), String> {
        match &source {
            LogAccess::Never(why) => return Err(why.clone()),
            LogAccess::Later(why) if !order.waits_for_later_start() => return Err(why.clone()),
            _ => {}
        }
        if let Some(why) = self.too_many(&order.request_id) {
            return Err(why);
        }
        if let LogAccess::Readable { engine, start } = source {
            let started = self.start_one(order.clone(), engine, start);
            return started.map_err(|error| error.to_string());
        }
        self.waiting.push(order.clone());
        Ok(())
    }

    /// Why no further log of this request can be read, if so: there are too many already.
    fn too_many(&self, request_id: &str) -> Option<String> {
        if self.running.len() + self.waiting.len() >= LOG_STREAMS_MAX {
            return Some(format!(
                "this agent reads {LOG_STREAMS_MAX} others at the moment"
            ));
        }
        let workload = requesting_workload(request_id)?;
        let running = self.running.iter().map(|one| &one.order);
        let mut own = 0;
        for order in running.chain(&self.waiting) {
            if requesting_workload(&order.request_id).as_ref() == Some(&workload) {
                own += 1;
            }
        }
        if own < LOG_STREAMS_OF_WORKLOAD {
            return None;
        }
        Some(format!(
            "this agent reads {LOG_STREAMS_OF_WORKLOAD} others for this workload at the moment"
        ))
    }

    /// Starts the stream of one log.
    fn start_one(
        &mut self,
        order: LogOrder,
        engine: Box<dyn RuntimeConnector>,
        start: Option<u64>,
    ) -> io::Result<()> {
        self.started += 1;
        let stop = EventFd::new()?;
        let room = EventFd::new()?;
        let has_nothing = Arc::new(AtomicBool::new(false));
        let name = format!("log:{}:{}", self.started, order.instance.workload);
        let stream = LogStream {
            order: order.clone(),
            outbox: self.outbox.clone(),
            scheduler: self.scheduler.clone(),
            has_nothing: has_nothing.clone(),
            stop: stop.clone(),
            room,
            sending: false,
            waiting: VecDeque::new(),
        };
        let thread = threads::spawn(name, STACK_LARGE, move || stream.run(engine))?;
        self.running.push(Running {
            order,
            start,
            has_nothing,
            stop,
            thread: Some(thread),
        });
        Ok(())
    }

    /// Ends a log that cannot be read, with the reason.
    fn refuse(&self, order: &LogOrder, why: &str) {
        let reason = ToServer::LogEntries {
            request_id: order.request_id.clone(),
            entries: vec![log_entries::no_log(order.instance.clone(), why)],
        };
        for message in [reason, order.stop()] {
            // It fails only without a connection, and then no requester is left.
            let _ = self.outbox.put_message(message, None);
        }
    }

    /// Ends the logs of a request; an unknown one is no error.
    pub(crate) fn cancel(&mut self, request_id: &str) {
        self.running
            .retain(|one| one.order.request_id != request_id);
        self.waiting.retain(|one| one.request_id != request_id);
    }

    /// Ends all logs, since the connection to their requesters is lost.
    pub(crate) fn cancel_all(&mut self) {
        self.running.clear();
        self.waiting.clear();
    }

    /// Forgets the streams that have ended by themselves. One that has found no container is kept,
    /// until [`Self::found_nothing`] is called for it.
    pub(crate) fn forget_ended(&mut self) {
        self.running.retain(|one| {
            let has_ended = match &one.thread {
                Some(thread) => thread.has_ended(),
                None => true,
            };
            !has_ended || one.has_nothing.load(Ordering::Acquire)
        });
    }
}

impl Drop for LogStreams {
    /// Ends all streams at the end of the agent, and waits a moment for their engine processes.
    fn drop(&mut self) {
        let mut running = Vec::new();
        for stream in &mut self.running {
            running.extend(stream.thread.take());
        }
        self.cancel_all();
        for name in threads::join_all(running, LOG_STOP_MAX) {
            debug!("Not waiting for thread '{name}'.");
        }
    }
}

/// A workload that requested a log, on this agent or another one.
#[derive(PartialEq, Eq)]
struct RequestingWorkload<'i> {
    agent: &'i str,
    workload: &'i str,
}

/// The workload that has sent the request with this full id; `None` for a client.
fn requesting_workload(request_id: &str) -> Option<RequestingWorkload<'_>> {
    let (agent, rest) = request_id.split_once('@')?;
    let (workload, _) = rest.split_once('@')?;
    if is_of_commander(agent) {
        return None;
    }
    Some(RequestingWorkload { agent, workload })
}

/// The log of one instance, on its own thread.
struct LogStream {
    order: LogOrder,
    outbox: UplinkOutbox,
    scheduler: Sender<SchedulerEvent>,
    /// It has found no container, as in [`Running`].
    has_nothing: Arc<AtomicBool>,
    /// Readable when the log was cancelled.
    stop: EventFd,
    /// Readable when the message in the outbox is being sent.
    room: EventFd,
    /// A message waits in the outbox.
    sending: bool,
    /// The messages after it.
    waiting: VecDeque<ToServer>,
}

/// The log was cancelled.
struct Stopped;

impl LogStream {
    fn run(mut self, connector: Box<dyn RuntimeConnector>) {
        let _source = log_source(LOG_REQUESTS);
        let _ = self.send_all(connector); // Its requester has cancelled it.
    }

    /// Reads and sends the log until its end.
    fn send_all(&mut self, connector: Box<dyn RuntimeConnector>) -> Result<(), Stopped> {
        let Some(mut readers) = self.open(connector) else {
            self.has_nothing.store(true, Ordering::Release);
            let _ = self.scheduler.send(self.order.no_log()); // Gone only when the agent ends.
            return Ok(());
        };
        while !readers.is_empty() {
            // First: send all lines until now.
            self.send()?;
            self.until_sent()?;
            // Then: wait for more.
            let limit = readers.iter().filter_map(LogReader::wait_max).min();
            let descriptors = readers.iter().flat_map(|reader| reader.child.descriptors());
            self.wait_for(descriptors, limit)?;
            // Finally: read them.
            let mut lines = Vec::new();
            let mut failures = Vec::new();
            readers.retain_mut(|reader| match reader.read(&mut lines) {
                LogReading::Continues => true,
                LogReading::Ended => false,
                LogReading::Failed(why) => {
                    failures.push(why);
                    false
                }
            });
            self.queue_lines(lines);
            for why in &failures {
                self.queue_reason(why);
            }
        }
        self.waiting.push_back(self.order.stop());
        self.send()
    }

    /// Starts the engine calls that print the log; `None` when there is no container. If a call
    /// fails, its reason is sent in place of lines.
    fn open(&mut self, mut connector: Box<dyn RuntimeConnector>) -> Option<Vec<LogReader>> {
        let LogOrder {
            instance, options, ..
        } = &self.order;
        let calls = match connector.log_calls(instance, options) {
            Ok(calls) => calls,
            Err(error) => {
                self.queue_reason(&error.to_string());
                return Some(Vec::new());
            }
        };
        if calls.is_empty() {
            return None;
        }
        let mut readers = Vec::new();
        for call in calls {
            let program = call.program.clone();
            match call.start() {
                Ok(reader) => readers.push(reader),
                Err(error) => self.queue_reason(&format!("cannot start '{program}': {error}")),
            }
        }
        Some(readers)
    }

    /// Puts a reason behind the waiting messages, in place of lines.
    fn queue_reason(&mut self, why: &str) {
        let instance = self.order.instance.clone();
        warn!("Did not get log fetcher for '{}': {why}", instance.workload);
        self.queue(vec![log_entries::no_log(instance, why)]);
    }

    /// Puts lines behind the waiting messages.
    fn queue_lines(&mut self, lines: Vec<String>) {
        let mut entries = Vec::new();
        for line in lines {
            entries.push(LogEntry::line(self.order.instance.clone(), line));
        }
        self.queue(entries);
    }

    /// Puts entries behind the waiting messages, in messages that are small enough for every peer.
    fn queue(&mut self, entries: Vec<LogEntry>) {
        let mut entries = entries.into_iter();
        loop {
            let some: Vec<LogEntry> = entries.by_ref().take(LINES_IN_MESSAGE).collect();
            if some.is_empty() {
                return;
            }
            for entries in log_entries::split(some) {
                let request_id = self.order.request_id.clone();
                self.waiting.push_back(ToServer::LogEntries {
                    request_id,
                    entries,
                });
            }
        }
    }

    /// Puts the waiting messages into the outbox, one after the other. The last one may still wait
    /// there afterwards.
    fn send(&mut self) -> Result<(), Stopped> {
        while let Some(message) = self.waiting.pop_front() {
            self.until_sent()?;
            if !self.outbox.put_message(message, Some(self.room.clone())) {
                return Err(Stopped); // The connection is lost, which cancels all logs.
            }
            self.sending = true;
        }
        Ok(())
    }

    /// Waits until the message in the outbox is sent.
    fn until_sent(&mut self) -> Result<(), Stopped> {
        while self.sending {
            self.wait_for([self.room.as_fd()], None)?;
            self.sending = !self.room.reset();
        }
        Ok(())
    }

    /// Waits until one of the descriptors is readable, at most `limit`.
    ///
    /// # Errors
    /// The log was cancelled.
    fn wait_for<'a>(
        &'a self,
        descriptors: impl IntoIterator<Item = BorrowedFd<'a>>,
        limit: Option<Duration>,
    ) -> Result<(), Stopped> {
        let descriptors = descriptors.into_iter().chain([self.stop.as_fd()]);
        let mut polled: Vec<PollFd<'_>> = descriptors
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // An error such as EINTR reports nothing as readable, so the caller waits again.
        let _ = poll(&mut polled, limit.as_ref());
        if self.stop.reset() {
            Err(Stopped)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
