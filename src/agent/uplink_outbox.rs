//! What waits for the server: states of own instances in order, requests of workloads, the newest load, and log lines
//! last. Putting never waits, and what is kept does not grow with the time without a server.
//!
//! Thread: [`UplinkOutbox`] belongs to `scheduler` and, for requests, to `control`; [`LogOutbox`] to each
//! `log:<number>`, [`UplinkReader`] to `uplink`. The connection is used by `uplink`, by `control` for a request that is
//! next, and by `scheduler` for a load that is. A thread that holds the lock of the connection may lock the slots, never
//! the other way round.

use super::request_queue::RequestQueue;
use crate::limits::{
    CONTROL_SMALL_REQUEST, REMOVED_MEMORY, REMOVED_SENDS, UPLINK_BATCH, UPLINK_REQUESTS_IN_A_ROW, UPLINK_STATES,
};
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::memory_size::MemorySize;
use crate::model::messages::{AgentLoad, PreparedInstance, Request, Response, ToServer};
use crate::model::names::{InstanceName, Name};
use crate::platform::clock::{Clock, SystemClock};
use crate::platform::sync::{EventFd, Mutex};
use crate::wire::client::{ClientSender, StreamEnd};
use crossbeam_channel::{Receiver, Sender, bounded};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// A connection that takes messages; never waits.
pub trait MessageSink: Send {
    /// Whether a message can be taken; when not, the waker is woken as soon as one can.
    ///
    /// # Errors
    /// How the connection ended.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StreamEnd>>;

    /// Takes a message, after [`Self::poll_ready`] has returned that it can.
    ///
    /// # Errors
    /// How the connection ended.
    fn start_send(&mut self, message: ToServer) -> Result<(), StreamEnd>;
}

impl MessageSink for ClientSender {
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StreamEnd>> {
        self.poll_ready(context)
    }

    fn start_send(&mut self, message: ToServer) -> Result<(), StreamEnd> {
        self.start_send(message)
    }
}

/// Puts messages for the server. Clones put into the same place.
#[derive(Debug, Clone)]
pub struct UplinkOutbox(Arc<Shared>);

/// Puts log lines. Clones put into the same place.
#[derive(Debug, Clone)]
pub struct LogOutbox(Arc<Shared>);

/// Takes messages for the server and sends them.
pub struct UplinkReader {
    shared: Arc<Shared>,
    woken: Receiver<()>,
}

struct Shared {
    slots: Mutex<Slots>,
    /// The connection, if there is one.
    sink: Mutex<Option<Box<dyn MessageSink>>>,
    wake: Sender<()>,
    /// Wakes `uplink` when the connection has room again.
    waker: Waker,
}

impl fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Shared").field("slots", &self.slots).finish_non_exhaustive()
    }
}

/// Wakes `uplink`, if it is still there.
struct WakeUplink(Sender<()>);

impl Wake for WakeUplink {
    fn wake(self: Arc<Self>) {
        let _ = self.0.try_send(()); // Full: it is being woken already.
    }
}

/// Too many requests of a workload are under way.
#[derive(Debug)]
pub struct NoRoom {
    /// The request that was not taken.
    pub request: Box<Request>,
    /// Whether there is a connection, so that there will be room soon.
    pub connected: bool,
}

#[derive(Debug)]
struct Slots {
    states: VecDeque<WorkloadState>,
    /// Length at which only the newest state of each instance is kept.
    thin_out_at: usize,
    /// All own states were put. After the last of them the server gets a message that these are all, and forgets
    /// instances that this agent does not have.
    complete: bool,
    /// The newest report of each instance that is staged.
    prepared: BTreeMap<InstanceName, PreparedInstance>,
    load: Option<AgentLoad>,
    requests: RequestQueue,
    /// Requests sent since load and logs were last considered.
    requests_in_a_row: u32,
    connected: bool,
    /// Removals that were sent and may not have arrived: when, and on how many connections so far.
    removed_sent: VecDeque<(Instant, InstanceName, u32)>,
    /// Removals that wait to be sent again, and on how many connections they were sent.
    removed_lost: BTreeMap<InstanceName, u32>,
    /// At most one message of lines of each log stream, so that no stream delays another for long; besides the ends of
    /// those that were refused.
    logs: VecDeque<LogMessage>,
}

#[derive(Debug)]
struct LogMessage {
    message: ToServer,
    /// Set when the message is about to be sent.
    taken: Option<EventFd>,
}

/// Makes the two ends.
#[must_use]
pub fn uplink_outbox() -> (UplinkOutbox, UplinkReader) {
    let slots = Slots {
        states: VecDeque::new(),
        thin_out_at: UPLINK_STATES,
        complete: false,
        prepared: BTreeMap::new(),
        load: None,
        requests: RequestQueue::default(),
        requests_in_a_row: 0,
        connected: false,
        removed_sent: VecDeque::new(),
        removed_lost: BTreeMap::new(),
        logs: VecDeque::new(),
    };
    let (wake, woken) = bounded(1);
    let waker = Waker::from(Arc::new(WakeUplink(wake.clone())));
    let shared = Arc::new(Shared { slots: Mutex::new(slots), sink: Mutex::default(), wake, waker });
    (UplinkOutbox(shared.clone()), UplinkReader { shared, woken })
}

impl UplinkOutbox {
    /// Puts a state behind those that wait; never waits. All are sent in order as long as there are few.
    pub fn put(&self, state: WorkloadState) {
        self.0.slots.lock().put(state);
        self.0.wake();
    }

    /// Puts the newest load. Without a connection it is dropped, since it would be old when there is one.
    pub fn put_load(&self, load: AgentLoad) {
        let mut slots = self.0.slots.lock();
        if slots.connected {
            let is_next = slots.is_empty();
            slots.load = Some(load);
            drop(slots);
            // It comes every two seconds, and an idle node need not wake `uplink` for it.
            if !(is_next && self.0.send_unless_busy()) {
                self.0.wake();
            }
        }
    }

    /// Puts how far instances are that are staged. Without a connection that is dropped: each connection gets all.
    pub fn put_prepared(&self, reports: Vec<PreparedInstance>) {
        if reports.is_empty() {
            return;
        }
        let mut slots = self.0.slots.lock();
        if slots.connected {
            slots.prepared.extend(reports.into_iter().map(|report| (report.instance.clone(), report)));
            drop(slots);
            self.0.wake();
        }
    }

    /// Puts the states of all own instances; what waits is then out of date, except for removals. With `complete`
    /// no other instances exist, and the server forgets what it remembers of this agent beside these.
    pub fn resynchronise(&self, own: Vec<WorkloadState>, complete: bool) {
        let mut slots = self.0.slots.lock();
        slots.thin_out();
        let existing: BTreeSet<&InstanceName> = own.iter().map(|state| &state.instance).collect();
        slots.states.retain(|state| state.state.phase == Phase::Removed && !existing.contains(&state.instance));
        slots.states.extend(own);
        slots.complete = complete;
        drop(slots);
        self.0.wake();
    }

    /// Those of `instances` whose removal was the last state sent, or will be, and may not have reached the server yet.
    #[must_use]
    pub fn pending_removals(&self, instances: Vec<InstanceName>, now: Instant) -> Vec<InstanceName> {
        if instances.is_empty() {
            return instances;
        }
        let mut slots = self.0.slots.lock();
        slots.forget_delivered(now);
        let waiting = slots.states.iter().map(|state| (&state.instance, state.state.phase == Phase::Removed));
        // In the order in which the server reads them, so the last one of an instance counts.
        let sent = slots.removed_sent.iter().map(|(_, instance, _)| (instance, true));
        let is_removed: BTreeMap<&InstanceName, bool> = sent.chain(waiting).collect();
        instances.into_iter().filter(|instance| is_removed.get(instance) == Some(&true)).collect()
    }

    /// Puts a request of a workload; never waits. Without a connection requests wait for one. `held` is how long the
    /// request found no room before.
    ///
    /// # Errors
    /// The request, when too many of this workload are under way.
    pub fn put_request(&self, workload: &Name, request: Request, held: Duration) -> Result<(), NoRoom> {
        let mut slots = self.0.slots.lock();
        if !slots.requests.has_room_for(workload, &request, held) {
            return Err(NoRoom { request: Box::new(request), connected: slots.connected });
        }
        let is_small = request.memory_bytes() <= CONTROL_SMALL_REQUEST;
        let is_next = slots.is_request_next();
        slots.requests.put(workload, request);
        drop(slots);
        // Waking `uplink` to send it made a round trip 1.3 times as long in `just bench control`. A large request is
        // encoded by `uplink` all the same, since `control` serves all workloads.
        if !(is_next && is_small && self.0.send_unless_busy()) {
            self.0.wake();
        }
        Ok(())
    }

    /// The server has answered a request of a workload; the id is the one that the workload has given it.
    pub fn answered(&self, workload: &str, response: &Response) {
        self.0.slots.lock().requests.answered(workload, &response.id, &response.content);
    }

    /// The workload does not wait for answers any more.
    pub fn forget_requests(&self, workload: &str) {
        self.0.slots.lock().requests.forget(workload);
    }

    /// Puts the cancellation of something that a workload asked for; never waits and never fails.
    pub fn put_cancel(&self, request: Request) {
        self.0.slots.lock().requests.put_cancel(request);
        self.0.wake();
    }

    /// Where log lines are put.
    #[must_use]
    pub fn logs(&self) -> LogOutbox {
        LogOutbox(self.0.clone())
    }
}

impl LogOutbox {
    /// Puts a message; never waits. `taken` is set when the next one may be put. Returns false without a connection:
    /// the server has ended all log requests with it.
    #[must_use]
    pub fn put(&self, message: ToServer, taken: Option<EventFd>) -> bool {
        let mut slots = self.0.slots.lock();
        if slots.connected {
            slots.logs.push_back(LogMessage { message, taken });
            self.0.wake();
        }
        slots.connected
    }
}

impl Shared {
    fn wake(&self) {
        let _ = self.wake.try_send(()); // Full: `uplink` is being woken already.
    }

    /// Sends the next message if no other thread uses the connection. Returns whether nothing more is to be done now;
    /// a thread that uses the connection may not see what was just put.
    fn send_unless_busy(&self) -> bool {
        let Some(mut sink) = self.sink.try_lock() else { return false };
        let Some(sink) = sink.as_mut() else { return false };
        // When the connection is full `uplink` is woken later; when it is lost, its reader notices.
        matches!(self.send_next(sink.as_mut(), SystemClock.now()), Ok(Sent::One | Sent::Full))
    }

    fn send_next(&self, sink: &mut dyn MessageSink, now: Instant) -> Result<Sent, StreamEnd> {
        if self.slots.lock().is_empty() {
            return Ok(Sent::Nothing);
        }
        match sink.poll_ready(&mut Context::from_waker(&self.waker)) {
            Poll::Pending => return Ok(Sent::Full),
            Poll::Ready(ready) => ready?,
        }
        let Some(message) = self.slots.lock().next(now) else { return Ok(Sent::Nothing) };
        sink.start_send(message)?;
        Ok(Sent::One)
    }
}

/// What became of an attempt to send one message.
enum Sent {
    One,
    /// Nothing waits.
    Nothing,
    /// The connection takes no more; `uplink` is woken when it does.
    Full,
}

impl Slots {
    fn put(&mut self, state: WorkloadState) {
        self.states.push_back(state);
        if self.states.len() >= self.thin_out_at {
            self.thin_out();
            self.thin_out_at = UPLINK_STATES.max(2 * self.states.len());
        }
    }

    /// Keeps the newest state of each instance, in the order of these.
    fn thin_out(&mut self) {
        let mut seen = BTreeSet::new();
        let mut newest: VecDeque<WorkloadState> = VecDeque::new();
        while let Some(state) = self.states.pop_back() {
            if seen.insert(state.instance.clone()) {
                newest.push_front(state);
            }
        }
        self.states = newest;
    }

    /// Whether a request would be the next message.
    fn is_request_next(&self) -> bool {
        self.states.is_empty() && !self.complete && self.prepared.is_empty() && self.requests.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.is_request_next() && self.load.is_none() && self.logs.is_empty()
    }

    /// The next message to send, if any: some states, each of another instance; that these were all; how far staged
    /// instances are; a request; the load; or lines of a log.
    fn next(&mut self, now: Instant) -> Option<ToServer> {
        if let Some(states) = self.next_states(now) {
            return Some(ToServer::WorkloadStates(states));
        }
        if std::mem::take(&mut self.complete) {
            return Some(ToServer::StatesComplete);
        }
        if !self.prepared.is_empty() {
            let reports = std::iter::from_fn(|| self.prepared.pop_first());
            return Some(ToServer::Prepared(reports.map(|(_, report)| report).take(UPLINK_BATCH).collect()));
        }
        // A workload that never stops asking must not keep everything else from the server.
        let others_wait = self.load.is_some() || !self.logs.is_empty();
        let may_ask = self.requests_in_a_row < UPLINK_REQUESTS_IN_A_ROW || !others_wait;
        if let Some(request) = may_ask.then(|| self.requests.pop()).flatten() {
            self.requests_in_a_row = self.requests_in_a_row.saturating_add(1);
            return Some(ToServer::Request(request));
        }
        self.requests_in_a_row = 0;
        self.load.take().map(ToServer::AgentLoad).or_else(|| self.next_log())
    }

    fn next_states(&mut self, now: Instant) -> Option<Vec<WorkloadState>> {
        self.forget_delivered(now);
        let mut batch: Vec<WorkloadState> = Vec::new();
        let mut instances = BTreeSet::new();
        // A second state of the same instance goes into the next message, so that the server sees both.
        while batch.len() < UPLINK_BATCH
            && self.states.front().is_some_and(|state| instances.insert(state.instance.clone()))
            && let Some(state) = self.states.pop_front()
        {
            if state.state.phase == Phase::Removed {
                let before = self.removed_lost.remove(&state.instance).unwrap_or(0);
                self.removed_sent.push_back((now, state.instance.clone(), before + 1));
            }
            batch.push(state);
        }
        // The removal of an instance that exists again is not repeated: its state is sent after the next hello.
        let exists =
            |one: &InstanceName| batch.iter().any(|it| it.instance == *one && it.state.phase != Phase::Removed);
        self.removed_sent.retain(|(_, instance, _)| !instances.contains(instance) || !exists(instance));
        (!batch.is_empty()).then_some(batch)
    }

    fn next_log(&mut self) -> Option<ToServer> {
        let LogMessage { message, taken } = self.logs.pop_front()?;
        taken.iter().for_each(EventFd::set);
        Some(message)
    }

    fn forget_delivered(&mut self, now: Instant) {
        while self.removed_sent.front().is_some_and(|(at, ..)| now.saturating_duration_since(*at) >= REMOVED_MEMORY) {
            self.removed_sent.pop_front();
        }
    }

    /// Puts the removals again that may not have arrived over the connection that is lost.
    fn repeat_removals(&mut self, now: Instant) {
        self.forget_delivered(now);
        while let Some((_, instance, sends)) = self.removed_sent.pop_back() {
            if sends < REMOVED_SENDS {
                self.removed_lost.insert(instance.clone(), sends);
                self.states.push_front(WorkloadState::new(instance, ExecutionState::plain(Phase::Removed)));
            }
        }
        self.thin_out(); // A newer state of the same instance wins.
        let waiting: BTreeSet<_> = self.states.iter().map(|state| &state.instance).collect();
        self.removed_lost.retain(|instance, _| waiting.contains(instance));
    }
}

impl UplinkReader {
    /// The next message to send, taken by tests and the simulation, which have no connection.
    #[cfg(test)]
    #[must_use]
    pub fn next(&self, now: Instant) -> Option<ToServer> {
        self.shared.slots.lock().next(now)
    }

    /// Becomes ready when there may be something to send.
    #[must_use]
    pub fn woken(&self) -> &Receiver<()> {
        &self.woken
    }

    /// How many messages of logs wait.
    #[cfg(test)]
    #[must_use]
    pub fn log_messages(&self) -> usize {
        self.shared.slots.lock().logs.len()
    }

    /// Sends what waits, as far as the connection takes it; [`Self::woken`] becomes ready when it takes more.
    ///
    /// # Errors
    /// How the connection ended.
    pub fn send_waiting(&self, now: Instant) -> Result<(), StreamEnd> {
        let mut sink = self.shared.sink.lock();
        let Some(sink) = sink.as_mut() else { return Ok(()) };
        while matches!(self.shared.send_next(sink.as_mut(), now)?, Sent::One) {}
        Ok(())
    }

    /// There is a connection.
    pub fn connected_by(&self, sink: Box<dyn MessageSink>) {
        *self.shared.sink.lock() = Some(sink);
        self.shared.slots.lock().connected = true;
    }

    /// There is a connection, and the test takes what waits for it.
    #[cfg(test)]
    pub fn connected(&self) {
        self.shared.slots.lock().connected = true;
    }

    /// The connection is lost. Removals that may not have arrived will be sent again. Returns what workloads get for
    /// the requests that were sent and will not be answered.
    pub fn disconnected(&self, now: Instant) -> Vec<Response> {
        *self.shared.sink.lock() = None;
        let mut slots = self.shared.slots.lock();
        (slots.connected, slots.complete) = (false, false);
        slots.load = None;
        slots.prepared.clear();
        slots.logs.clear();
        slots.repeat_removals(now);
        slots.requests.lost()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::manual_clock::ManualClock;

    fn state(workload: &str, phase: Phase) -> WorkloadState {
        WorkloadState::new(InstanceName::with_id(workload, "id", "A"), ExecutionState::plain(phase))
    }

    fn load(cpu_usage: u32) -> AgentLoad {
        AgentLoad { agent: "A".to_owned(), cpu_usage, free_memory: 1 }
    }

    fn connected() -> (UplinkOutbox, UplinkReader, Instant) {
        let (outbox, reader) = uplink_outbox();
        reader.connected();
        (outbox, reader, ManualClock::new().now())
    }

    fn sent(reader: &UplinkReader, now: Instant) -> Vec<Vec<WorkloadState>> {
        std::iter::from_fn(|| reader.next(now))
            .map(|message| match message {
                ToServer::WorkloadStates(states) => states,
                other => panic!("states are expected, not {other:?}"),
            })
            .collect()
    }

    // [utest->swdd~agent-sends-workload-states-of-its-workloads-to-server~2]
    #[test]
    fn every_state_is_sent_in_order_as_long_as_there_are_few() {
        let (outbox, reader) = uplink_outbox();
        let (a, b) = (state("a", Phase::PendingStarting), state("b", Phase::FailedExecFailed));
        let (a2, b2) = (state("a", Phase::Running), state("b", Phase::StoppingRequestedAtRuntime));
        for state in [&a, &b, &b2, &a2] {
            outbox.put(state.clone());
        }
        assert_eq!(sent(&reader, ManualClock::new().now()), [vec![a, b], vec![b2, a2]]);
    }

    #[test]
    fn a_long_absence_of_the_server_takes_bounded_room_and_keeps_the_newest() {
        let (outbox, reader) = uplink_outbox();
        outbox.put(state("gone", Phase::Removed));
        for round in 0..100_000 {
            outbox.put(state(&format!("w{}", round % 10), Phase::PendingStarting));
            outbox.put(state(&format!("w{}", round % 10), Phase::Running));
        }
        assert!(reader.shared.slots.lock().states.len() <= UPLINK_STATES);
        let all: Vec<WorkloadState> = sent(&reader, ManualClock::new().now()).concat();
        assert!(all.contains(&state("gone", Phase::Removed)));
        for number in 0..10 {
            let name = format!("w{number}");
            let newest = all.iter().rfind(|state| &*state.instance.workload == name.as_str()).unwrap();
            assert_eq!(newest.state.phase, Phase::Running);
        }
    }

    #[test]
    fn only_the_newest_load_is_sent_and_none_is_kept_while_disconnected() {
        let now = ManualClock::new().now();
        let (outbox, reader) = uplink_outbox();
        outbox.put_load(load(1));
        assert_eq!(reader.next(now), None);
        reader.connected();
        outbox.put_load(load(2));
        outbox.put_load(load(3));
        outbox.put(state("a", Phase::Running));
        assert_eq!(reader.next(now), Some(ToServer::WorkloadStates(vec![state("a", Phase::Running)])));
        assert_eq!(reader.next(now), Some(ToServer::AgentLoad(load(3))));
        outbox.put_load(load(4));
        reader.disconnected(now);
        reader.connected();
        assert_eq!(reader.next(now), None);
    }

    #[test]
    fn a_removal_that_may_not_have_arrived_is_sent_again() {
        let clock = ManualClock::new();
        let (outbox, reader) = uplink_outbox();
        reader.connected();
        outbox.put(state("old", Phase::Removed));
        assert_eq!(sent(&reader, clock.now()).len(), 1);
        clock.advance(REMOVED_MEMORY);
        outbox.put(state("lost", Phase::Removed));
        outbox.put(state("back", Phase::Removed));
        assert_eq!(sent(&reader, clock.now()).len(), 1);
        outbox.put(state("back", Phase::Running));
        clock.advance(Duration::from_secs(1));
        reader.disconnected(clock.now());
        let expected = [state("lost", Phase::Removed), state("back", Phase::Running)];
        assert_eq!(sent(&reader, clock.now()), [expected.to_vec()]);
    }

    #[test]
    fn removals_added_up_for_ever_on_a_connection_that_broke_again_and_again() {
        let clock = ManualClock::new();
        let (outbox, reader) = uplink_outbox();
        let mut sent_in_all = 0;
        for number in 0..200 {
            reader.connected();
            outbox.put(state(&number.to_string(), Phase::Removed));
            sent_in_all +=
                sent(&reader, clock.now()).concat().iter().filter(|it| *it.instance.workload == *"7").count();
            clock.advance(Duration::from_secs(1));
            reader.disconnected(clock.now());
        }
        assert_eq!(sent_in_all, REMOVED_SENDS as usize);
        let slots = outbox.0.slots.lock();
        let held = [slots.states.len(), slots.removed_sent.len(), slots.removed_lost.len()];
        assert!(held.iter().all(|count| *count < REMOVED_SENDS as usize), "{held:?}");
    }

    #[test]
    fn an_instance_that_came_back_was_reported_as_removed_when_the_connection_was_lost() {
        let (outbox, reader, now) = connected();
        // A restart of a workload that failed: the same instance goes and comes.
        for phase in [Phase::Removed, Phase::PendingStarting, Phase::Running] {
            outbox.put(state("restarted", phase));
        }
        outbox.put(state("gone", Phase::Running));
        outbox.put(state("gone", Phase::Removed));
        assert_eq!(sent(&reader, now).len(), 4);
        reader.disconnected(now);
        assert_eq!(sent(&reader, now), [[state("gone", Phase::Removed)]]);
    }

    #[test]
    fn after_a_reconnect_all_own_states_and_removals_are_sent_once() {
        let now = ManualClock::new().now();
        let (outbox, reader) = uplink_outbox();
        outbox.put(state("gone", Phase::Running));
        outbox.put(state("gone", Phase::Removed));
        outbox.put(state("a", Phase::PendingStarting));
        outbox.put(state("a", Phase::Removed));
        outbox.resynchronise(vec![state("a", Phase::Running), state("b", Phase::Succeeded)], false);
        let expected = [state("gone", Phase::Removed), state("a", Phase::Running), state("b", Phase::Succeeded)];
        assert_eq!(sent(&reader, now), [expected.to_vec()]);
    }

    #[test]
    fn the_end_of_the_report_after_a_hello_is_sent_once_and_after_all_states() {
        let now = ManualClock::new().now();
        let (outbox, reader) = uplink_outbox();
        for count in [0, 1, UPLINK_BATCH + 1] {
            let own: Vec<WorkloadState> = (0..count).map(|n| state(&n.to_string(), Phase::Running)).collect();
            reader.connected();
            outbox.resynchronise(own.clone(), true);
            let mut states_sent = Vec::new();
            let end = std::iter::from_fn(|| reader.next(now)).find(|message| match message {
                ToServer::WorkloadStates(states) => {
                    states_sent.extend(states.clone());
                    false
                }
                _ => true,
            });
            assert_eq!((states_sent.len(), end), (count, Some(ToServer::StatesComplete)));
            assert_eq!(reader.next(now), None);
            reader.disconnected(now);
        }
        outbox.resynchronise(vec![], true);
        reader.disconnected(now);
        reader.connected();
        assert_eq!(reader.next(now), None, "the next hello is answered anew");
    }

    #[test]
    fn states_before_the_report_after_a_hello_do_not_end_it() {
        let (outbox, reader, now) = connected();
        outbox.put(state("a", Phase::Running));
        assert_eq!(sent(&reader, now), [vec![state("a", Phase::Running)]]);
        for (complete, end) in [(false, None), (true, Some(ToServer::StatesComplete))] {
            outbox.resynchronise(vec![state("a", Phase::Running)], complete);
            assert_eq!(reader.next(now), Some(ToServer::WorkloadStates(vec![state("a", Phase::Running)])));
            assert_eq!(reader.next(now), end);
        }
    }

    // [utest->swdd~agent-forward-request-from-control-interface-pipe-to-server~1]
    #[test]
    fn requests_of_workloads_wait_for_a_connection_and_then_come_after_states() {
        use crate::limits::CONTROL_REQUESTS;
        use crate::model::messages::{RequestContent, ResponseContent};
        let now = ManualClock::new().now();
        let (outbox, reader) = uplink_outbox();
        let cancel = Request { id: "cancel".to_owned(), content: RequestContent::LogsCancel };
        let put = |id: &str| outbox.put_request(&"w".into(), ask(id), Duration::ZERO);
        for number in 0..CONTROL_REQUESTS {
            put(&number.to_string()).unwrap();
        }
        let refused = put("more").unwrap_err();
        assert_eq!((*refused.request, refused.connected), (ask("more"), false));
        reader.connected();
        assert!(put("more").unwrap_err().connected);
        outbox.put(state("a", Phase::Running));
        outbox.put_cancel(cancel.clone());
        assert!(matches!(reader.next(now), Some(ToServer::WorkloadStates(_))));
        assert_eq!(reader.next(now), Some(ToServer::Request(cancel)));
        assert_eq!(reader.next(now), Some(ToServer::Request(ask("0"))));
        assert!(put("more").is_err(), "it is not answered");
        let content = ResponseContent::Error(String::new());
        outbox.answered("w", &Response { id: "0".to_owned(), content });
        put("more").unwrap();
    }

    #[test]
    fn a_workload_that_never_stopped_asking_kept_load_and_logs_from_the_server() {
        let (outbox, reader, now) = connected();
        outbox.put_load(load(1));
        let stop = ToServer::LogsStop { request_id: "logs".to_owned(), instance: state("a", Phase::Running).instance };
        assert!(outbox.logs().put(stop.clone(), None));
        let sent: Vec<ToServer> = (0..1000)
            .filter_map(|number| {
                outbox.put_request(&format!("w{number}").into(), ask(&number.to_string()), Duration::ZERO).unwrap();
                reader.next(now)
            })
            .collect();
        for waiting in [ToServer::AgentLoad(load(1)), stop] {
            assert!(sent.contains(&waiting), "{waiting:?}");
        }
    }

    #[test]
    fn a_large_number_of_states_is_split() {
        let (outbox, reader) = uplink_outbox();
        outbox.resynchronise((0..UPLINK_BATCH + 1).map(|n| state(&n.to_string(), Phase::Running)).collect(), false);
        let lengths: Vec<usize> = sent(&reader, ManualClock::new().now()).iter().map(Vec::len).collect();
        assert_eq!(lengths, [UPLINK_BATCH, 1]);
    }

    /// Takes messages as long as it has room.
    #[derive(Clone, Default)]
    struct FakeSink(Arc<Mutex<Taken>>);

    #[derive(Default)]
    struct Taken {
        room: usize,
        messages: Vec<ToServer>,
        waker: Option<Waker>,
    }

    impl FakeSink {
        fn give_room(&self, room: usize) {
            let mut line = self.0.lock();
            line.room = room;
            line.waker.take().into_iter().for_each(Waker::wake);
        }

        fn taken(&self) -> Vec<ToServer> {
            std::mem::take(&mut self.0.lock().messages)
        }
    }

    impl MessageSink for FakeSink {
        fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StreamEnd>> {
            let mut line = self.0.lock();
            if line.room > 0 {
                return Poll::Ready(Ok(()));
            }
            line.waker = Some(context.waker().clone());
            Poll::Pending
        }

        fn start_send(&mut self, message: ToServer) -> Result<(), StreamEnd> {
            let mut line = self.0.lock();
            line.room -= 1;
            line.messages.push(message);
            Ok(())
        }
    }

    fn ask(id: &str) -> Request {
        let masks = vec!["agents".to_owned()];
        let read = crate::model::messages::ReadState { masks, subscribe: false };
        Request { id: id.to_owned(), content: crate::model::messages::RequestContent::CompleteState(read) }
    }

    #[test]
    fn a_load_is_sent_without_waking_another_thread_unless_something_is_before_it_or_the_connection_is_full() {
        let (outbox, reader, now) = connected();
        let sink = FakeSink::default();
        reader.connected_by(Box::new(sink.clone()));
        sink.give_room(1);
        outbox.put_load(load(1));
        assert_eq!(sink.taken(), [ToServer::AgentLoad(load(1))]);
        outbox.put_load(load(2));
        assert_eq!(sink.taken(), []);
        assert!(reader.woken().try_recv().is_err(), "`uplink` is not woken before there is room");
        sink.give_room(3);
        assert!(reader.woken().try_recv().is_ok());
        outbox.put(state("a", Phase::Running));
        outbox.put_load(load(3));
        assert!(reader.woken().try_recv().is_ok(), "`uplink` sends it behind the state");
        reader.send_waiting(now).unwrap();
        assert_eq!(
            sink.taken(),
            [ToServer::WorkloadStates(vec![state("a", Phase::Running)]), ToServer::AgentLoad(load(3))]
        );
    }

    #[test]
    fn a_request_is_sent_at_once_unless_something_is_before_it_or_the_connection_is_full() {
        let (outbox, reader, now) = connected();
        let sink = FakeSink::default();
        reader.connected_by(Box::new(sink.clone()));
        sink.give_room(2);
        outbox.put_request(&"w".into(), ask("w@1"), Duration::ZERO).unwrap();
        assert_eq!(sink.taken(), [ToServer::Request(ask("w@1"))]);
        assert!(reader.woken().try_recv().is_err(), "`uplink` is not woken for it");

        let running = state("a", Phase::Running);
        outbox.put(running.clone());
        outbox.put_request(&"w".into(), ask("w@2"), Duration::ZERO).unwrap();
        assert_eq!(sink.taken(), [], "the state comes before it");
        reader.woken().try_recv().unwrap();
        reader.send_waiting(now).unwrap();
        assert_eq!(sink.taken(), [ToServer::WorkloadStates(vec![running])]);

        outbox.put_request(&"w".into(), ask("w@3"), Duration::ZERO).unwrap();
        while reader.woken().try_recv().is_ok() {}
        sink.give_room(10);
        reader.woken().try_recv().expect("the connection wakes when it has room");
        reader.send_waiting(now).unwrap();
        assert_eq!(sink.taken(), [ToServer::Request(ask("w@2")), ToServer::Request(ask("w@3"))]);

        let large = ask(&format!("w@{}", "x".repeat(CONTROL_SMALL_REQUEST)));
        outbox.put_request(&"w".into(), large.clone(), Duration::ZERO).unwrap();
        assert_eq!(sink.taken(), [], "`control`, which serves all workloads, does not encode it");
        reader.send_waiting(now).unwrap();
        assert_eq!(sink.taken(), [ToServer::Request(large)]);
    }

    #[test]
    fn requests_without_answer_are_answered_when_the_connection_is_lost_and_others_wait_for_the_next_one() {
        let (outbox, reader, now) = connected();
        let sink = FakeSink::default();
        reader.connected_by(Box::new(sink.clone()));
        sink.give_room(3);
        for id in ["w@1", "w@2", "w@3", "w@4"] {
            outbox.put_request(&"w".into(), ask(id), Duration::ZERO).unwrap();
        }
        let content = crate::model::messages::ResponseContent::Error(String::new());
        outbox.answered("w", &Response { id: "2".to_owned(), content });
        let lost: Vec<String> = reader.disconnected(now).into_iter().map(|response| response.id).collect();
        assert_eq!(lost, ["w@1", "w@3"]);
        assert!(reader.disconnected(now).is_empty());
        sink.give_room(10);
        reader.send_waiting(now).unwrap();
        sink.taken();
        assert_eq!(reader.next(now), Some(ToServer::Request(ask("w@4"))), "nothing goes to the lost connection");
    }
}
