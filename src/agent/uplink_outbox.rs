//! The messages that wait for the server: states of own instances in order, requests of workloads,
//! the newest load, and log lines last. Putting never waits, and their number does not grow with
//! the time without a server.
//!
//! Thread: [`UplinkOutbox`] belongs to `scheduler`, to `control` for requests, to `usage` for
//! samples, and to each `log:<number>:<name>` for lines; [`UplinkReader`] to `uplink`. The
//! connection is used by `uplink`, by `control` for a request that is next, and by `scheduler` for
//! a load that is. A thread that holds the lock of the connection may lock the slots, never the
//! other way round.

use ankaios_model::collect::CollectEntries as _;
use ankaios_model::execution_state::{Phase, WorkloadState};
use ankaios_model::limits::FOREIGN_MESSAGE_MAX;
use ankaios_model::messages::{AgentLoad, PreparedInstance, Request, ToServer};
use ankaios_model::names::InstanceName;
use ankaios_platform::limits::ADDITIONAL_INFO_MAX;
use ankaios_platform::sync::{EventFd, Mutex};
use ankaios_wire::client::{ClientSender, StreamEnd};
use crossbeam_channel::{Receiver, Sender, bounded};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

/// States that wait. If there are more, only the newest of each instance is kept.
const STATES: usize = 1024;
/// States in one message. With the longest texts they still fit.
const BATCH: usize = 256;
const _: () = assert!(BATCH * ADDITIONAL_INFO_MAX < FOREIGN_MESSAGE_MAX);
/// Requests of workloads that are sent in a row while the load or a log waits.
const REQUESTS_IN_A_ROW: u32 = 16;
/// Cancellations that wait. A dozen workloads cannot have more subscriptions. A connection that
/// takes none of them is about to be lost, and the subscriptions end with it.
const CANCELS: usize = 2048;
/// A request that takes more memory than this, in bytes, is large. Encoding it takes longer than
/// waking another thread.
pub(super) const LARGE_REQUEST: usize = 32 * 1024;

/// A connection that takes messages; never waits.
pub(crate) trait MessageSink: Send {
    /// Returns whether a message can be taken now. If not, the waker is woken as soon as one can.
    ///
    /// # Errors
    /// How the connection ended.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StreamEnd>>;

    /// Takes a message. Call [`Self::poll_ready`] first.
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
#[derive(Clone)]
pub struct UplinkOutbox(Arc<OutboxState>);

/// Takes messages for the server and sends them.
pub struct UplinkReader {
    shared: Arc<OutboxState>,
    woken: Receiver<()>,
}

struct OutboxState {
    slots: Mutex<Slots>,
    /// The connection, if there is one.
    sink: Mutex<Option<Box<dyn MessageSink>>>,
    wake: Sender<()>,
    /// Wakes `uplink` when the connection has room again.
    waker: Waker,
}

/// Wakes `uplink`, if it is still there.
struct WakeUplink(Sender<()>);

impl Wake for WakeUplink {
    fn wake(self: Arc<Self>) {
        let _ = self.0.try_send(()); // Full: it is being woken already.
    }
}

#[derive(Debug, Default)]
struct Slots {
    states: VecDeque<WorkloadState>,
    /// The number of states at which only the newest one of each instance is kept.
    thin_out_at: usize,
    /// The waiting states contain all own instances. A message that says so follows them, and the
    /// server then forgets other instances of this agent.
    complete: bool,
    /// The newest report of each staged instance.
    prepared: BTreeMap<InstanceName, PreparedInstance>,
    load: Option<AgentLoad>,
    /// Requests of workloads.
    requests: VecDeque<WaitingMessage<Request>>,
    /// Cancellations of subscriptions that workloads do not read or need any more. They are sent
    /// before requests: the request that a cancellation ends was sent earlier.
    cancels: VecDeque<Request>,
    /// The number of requests that were sent since the load and logs had their last chance.
    requests_in_a_row: u32,
    connected: bool,
    /// Lines of logs, ends of logs, and samples of the usage. A log stream has one message here at
    /// most, so that it does not delay others for long.
    logs: VecDeque<WaitingMessage<ToServer>>,
}

/// A message that waits.
#[derive(Debug)]
struct WaitingMessage<T> {
    message: T,
    /// Set when the message is about to be sent.
    taken: Option<EventFd>,
}

impl<T> WaitingMessage<T> {
    /// Takes the message to send it, and reports that.
    fn take(self) -> T {
        if let Some(taken) = &self.taken {
            taken.set();
        }
        self.message
    }
}

/// Makes the two ends of an outbox.
pub fn uplink_outbox() -> (UplinkOutbox, UplinkReader) {
    let slots = Slots {
        thin_out_at: STATES,
        ..Slots::default()
    };
    let (wake, woken) = bounded(1);
    let waker = Waker::from(Arc::new(WakeUplink(wake.clone())));
    let shared = Arc::new(OutboxState {
        slots: Mutex::new(slots),
        sink: Mutex::default(),
        wake,
        waker,
    });
    (UplinkOutbox(shared.clone()), UplinkReader { shared, woken })
}

impl UplinkOutbox {
    /// Puts a state behind those that wait; never waits. As long as there are few, all are sent, in
    /// this order.
    pub(crate) fn put(&self, state: WorkloadState) {
        self.0.slots.lock().put(state);
        self.0.wake();
    }

    /// Puts the newest load in the place of an older one. Without a connection it is dropped, since
    /// it would be outdated on the next one.
    pub(crate) fn put_load(&self, load: AgentLoad) {
        let mut slots = self.0.slots.lock();
        if !slots.connected {
            return;
        }
        let is_next = slots.is_empty();
        slots.load = Some(load);
        drop(slots);
        // If possible it is sent here: it comes every two seconds, and on an idle node `uplink`
        // need not be woken for it.
        if is_next && self.0.send_unless_busy() {
            return;
        }
        self.0.wake();
    }

    /// Puts reports of staged instances. Without a connection they are dropped, since the scheduler
    /// repeats all of them on the next one.
    pub(crate) fn put_prepared(&self, reports: Vec<PreparedInstance>) {
        let mut slots = self.0.slots.lock();
        if reports.is_empty() || !slots.connected {
            return;
        }
        for report in reports {
            slots.prepared.insert(report.instance.clone(), report);
        }
        drop(slots);
        self.0.wake();
    }

    /// Puts the states of all own instances in the place of those that wait; only removals of other
    /// instances stay. `complete`: there are no other instances, so the server must forget them.
    pub(crate) fn resynchronise(&self, own: Vec<WorkloadState>, complete: bool) {
        let mut slots = self.0.slots.lock();
        slots.thin_out();
        let existing: BTreeSet<&InstanceName> =
            own.iter().map(|state| &state.instance).collect_entries();
        slots.states.retain(|state| {
            state.state.phase == Phase::Removed && !existing.contains(&state.instance)
        });
        slots.states.extend(own);
        slots.complete = complete;
        drop(slots);
        self.0.wake();
    }

    /// Puts a request of a workload; never waits. Without a connection it stays until there is one.
    /// A large request has a descriptor `taken`, which is set when it is about to be sent.
    pub fn put_request(&self, request: Request, taken: Option<EventFd>) {
        let is_large = taken.is_some();
        let mut slots = self.0.slots.lock();
        let is_next = slots.is_request_next();
        slots.requests.push_back(WaitingMessage {
            message: request,
            taken,
        });
        drop(slots);
        // If possible it is sent here: waking `uplink` for it made a round trip 1.3 times as long
        // in `./justw bench control`. Encoding a large one would keep `control` from other
        // workloads.
        if is_next && !is_large && self.0.send_unless_busy() {
            return;
        }
        self.0.wake();
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.0.slots.lock().connected
    }

    /// Whether the request with this id waits for the connection.
    pub(crate) fn has_request(&self, id: &str) -> bool {
        let slots = self.0.slots.lock();
        let mut requests = slots.requests.iter();
        requests.any(|waiting| waiting.message.id == id)
    }

    /// Whether a large request waits for the connection.
    pub(crate) fn has_large_request(&self) -> bool {
        let slots = self.0.slots.lock();
        let mut requests = slots.requests.iter();
        requests.any(|waiting| waiting.taken.is_some())
    }

    /// Ends the requests with this prefix: drops those that were not sent, and puts the `cancels`
    /// of those that were.
    pub(crate) fn end_requests(&self, prefix: &str, cancels: Vec<Request>) {
        let mut slots = self.0.slots.lock();
        slots
            .requests
            .retain(|waiting| !waiting.message.id.starts_with(prefix));
        drop(slots);
        for cancel in cancels {
            self.put_cancel(cancel);
        }
    }

    /// Puts the cancellation of a subscription that was sent; never waits. Without a connection
    /// there is nothing to cancel.
    pub(crate) fn put_cancel(&self, request: Request) {
        let mut slots = self.0.slots.lock();
        if !slots.connected {
            return;
        }
        if slots.cancels.len() >= CANCELS {
            slots.cancels.pop_front(); // The connection is about to be lost, see `CANCELS`.
        }
        slots.cancels.push_back(request);
        self.0.wake();
    }

    /// Puts lines or the end of a log, or a sample; never waits. `taken` is set when the next
    /// message may be put. Returns whether there is a connection; without one no log is requested
    /// any more.
    pub(crate) fn put_message(&self, message: ToServer, taken: Option<EventFd>) -> bool {
        let mut slots = self.0.slots.lock();
        if slots.connected {
            slots.logs.push_back(WaitingMessage { message, taken });
            self.0.wake();
        }
        slots.connected
    }
}

impl OutboxState {
    fn wake(&self) {
        let _ = self.wake.try_send(()); // Full: `uplink` is being woken already.
    }

    /// Sends the next message if no other thread uses the connection. Returns whether `uplink` need
    /// not be woken. If another thread uses the connection, it may have missed this message.
    fn send_unless_busy(&self) -> bool {
        let Some(mut sink) = self.sink.try_lock() else {
            return false;
        };
        let Some(sink) = sink.as_mut() else {
            return false;
        };
        // If the connection is full, it wakes `uplink` itself. If it is lost, its reader notices.
        matches!(self.send_next(sink.as_mut()), Ok(Sent::One | Sent::Full))
    }

    /// Sends the next message, if there is one and the connection takes it.
    fn send_next(&self, sink: &mut dyn MessageSink) -> Result<Sent, StreamEnd> {
        if self.slots.lock().is_empty() {
            return Ok(Sent::Nothing);
        }
        match sink.poll_ready(&mut Context::from_waker(&self.waker)) {
            Poll::Pending => return Ok(Sent::Full),
            Poll::Ready(ready) => ready?,
        }
        let Some(message) = self.slots.lock().next() else {
            return Ok(Sent::Nothing);
        };
        sink.start_send(message)?;
        Ok(Sent::One)
    }
}

/// The result of an attempt to send one message.
enum Sent {
    One,
    /// Nothing waits.
    Nothing,
    /// The connection is full; `uplink` is woken when it takes messages again.
    Full,
}

impl Slots {
    /// Puts a state. When too many wait, drops all but the newest one of each instance.
    fn put(&mut self, state: WorkloadState) {
        self.states.push_back(state);
        if self.states.len() >= self.thin_out_at {
            self.thin_out();
            // The next time at twice as many, so that this does not happen for each state.
            self.thin_out_at = STATES.max(2 * self.states.len());
        }
    }

    /// Keeps only the newest state of each instance, in their order.
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

    /// Whether a request that is put now would be the next message.
    fn is_request_next(&self) -> bool {
        self.states.is_empty()
            && !self.complete
            && self.prepared.is_empty()
            && self.requests.is_empty()
            && self.cancels.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.is_request_next() && self.load.is_none() && self.logs.is_empty()
    }

    /// Takes the next message to send. In this order: states, the message that they are complete,
    /// reports of staged instances, a request, the load, a message of a log.
    fn next(&mut self) -> Option<ToServer> {
        if let Some(states) = self.next_states() {
            return Some(ToServer::WorkloadStates(states));
        }
        if self.complete {
            self.complete = false;
            return Some(ToServer::StatesComplete);
        }
        if !self.prepared.is_empty() {
            return Some(ToServer::Prepared(self.next_prepared()));
        }
        // After some requests in a row the load and logs come first: a workload that sends requests
        // all the time must not block them.
        let others_wait = self.load.is_some() || !self.logs.is_empty();
        if (self.requests_in_a_row < REQUESTS_IN_A_ROW || !others_wait)
            && let Some(request) = self.next_request()
        {
            self.requests_in_a_row = self.requests_in_a_row.saturating_add(1);
            return Some(ToServer::Request(request));
        }
        self.requests_in_a_row = 0;
        if let Some(load) = self.load.take() {
            return Some(ToServer::AgentLoad(load));
        }
        Some(self.logs.pop_front()?.take())
    }

    /// Takes some states, each of another instance.
    fn next_states(&mut self) -> Option<Vec<WorkloadState>> {
        let mut batch: Vec<WorkloadState> = Vec::new();
        let mut instances = BTreeSet::new();
        while let Some(next) = self.states.front()
            && batch.len() < BATCH
        {
            // A second state of an instance goes into the next message: of one message the server
            // would use only the last.
            if !instances.insert(next.instance.clone()) {
                break;
            }
            batch.extend(self.states.pop_front());
        }
        if batch.is_empty() {
            return None;
        }
        Some(batch)
    }

    /// Takes some reports of staged instances.
    fn next_prepared(&mut self) -> Vec<PreparedInstance> {
        let mut reports = Vec::new();
        while reports.len() < BATCH
            && let Some((_, report)) = self.prepared.pop_first()
        {
            reports.push(report);
        }
        reports
    }

    /// Takes the next cancellation, or else the next request.
    fn next_request(&mut self) -> Option<Request> {
        if let Some(cancel) = self.cancels.pop_front() {
            return Some(cancel);
        }
        Some(self.requests.pop_front()?.take())
    }
}

impl UplinkReader {
    /// Becomes ready when there may be a message to send.
    pub fn woken(&self) -> &Receiver<()> {
        &self.woken
    }

    /// Sends waiting messages until the connection takes no more. When it does again,
    /// [`Self::woken`] becomes ready.
    ///
    /// # Errors
    /// How the connection ended.
    pub(crate) fn send_waiting(&self) -> Result<(), StreamEnd> {
        let mut sink = self.shared.sink.lock();
        let Some(sink) = sink.as_mut() else {
            return Ok(());
        };
        while matches!(self.shared.send_next(sink.as_mut())?, Sent::One) {}
        Ok(())
    }

    /// Sets the connection.
    pub(crate) fn connected_by(&self, sink: Box<dyn MessageSink>) {
        *self.shared.sink.lock() = Some(sink);
        self.shared.slots.lock().connected = true;
    }

    /// Removes the lost connection. States and requests wait for the next one, all other messages
    /// are dropped.
    pub fn disconnected(&self) {
        *self.shared.sink.lock() = None;
        let mut slots = self.shared.slots.lock();
        slots.connected = false;
        slots.complete = false;
        slots.load = None;
        slots.prepared.clear();
        slots.logs.clear();
        slots.cancels.clear();
    }
}

/// For tests of other files and crates.
#[cfg(debug_assertions)]
impl UplinkReader {
    /// The next message to send, taken by tests and the simulation, which have no connection.
    pub fn next(&self) -> Option<ToServer> {
        self.shared.slots.lock().next()
    }

    /// How many messages of logs wait.
    #[cfg(test)]
    pub(crate) fn log_messages(&self) -> usize {
        self.shared.slots.lock().logs.len()
    }

    /// There is a connection, whose waiting messages the test takes.
    pub fn connected(&self) {
        self.shared.slots.lock().connected = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ankaios_model::execution_state::ExecutionState;
    use ankaios_model::messages::{ReadState, RequestContent};

    fn state(workload: &str, phase: Phase) -> WorkloadState {
        WorkloadState::new(
            InstanceName::with_id(workload, "id", "A"),
            ExecutionState::plain(phase),
        )
    }

    fn load(cpu_usage: u32) -> AgentLoad {
        AgentLoad {
            agent: "A".to_owned(),
            cpu_usage,
            free_memory: 1,
            engine: String::new(),
        }
    }

    fn connected() -> (UplinkOutbox, UplinkReader) {
        let (outbox, reader) = uplink_outbox();
        reader.connected();
        (outbox, reader)
    }

    fn sent(reader: &UplinkReader) -> Vec<Vec<WorkloadState>> {
        std::iter::from_fn(|| reader.next())
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
        let (a, b) = (
            state("a", Phase::PendingStarting),
            state("b", Phase::FailedExecFailed),
        );
        let (a2, b2) = (
            state("a", Phase::Running),
            state("b", Phase::StoppingRequestedAtRuntime),
        );
        for state in [&a, &b, &b2, &a2] {
            outbox.put(state.clone());
        }
        assert_eq!(sent(&reader), [vec![a, b], vec![b2, a2]]);
    }

    #[test]
    fn long_absence_of_the_server_takes_bounded_memory() {
        let (outbox, reader) = uplink_outbox();
        outbox.put(state("gone", Phase::Removed));
        for round in 0..100_000 {
            outbox.put(state(&format!("w{}", round % 10), Phase::PendingStarting));
            outbox.put(state(&format!("w{}", round % 10), Phase::Running));
        }
        assert!(reader.shared.slots.lock().states.len() <= STATES);
        let all: Vec<WorkloadState> = sent(&reader).concat();
        assert!(all.contains(&state("gone", Phase::Removed)));
        for number in 0..10 {
            let name = format!("w{number}");
            let newest = all
                .iter()
                .rfind(|state| &*state.instance.workload == name.as_str())
                .unwrap();
            assert_eq!(newest.state.phase, Phase::Running);
        }
    }

    #[test]
    fn newest_load_alone_is_sent_and_none_while_disconnected() {
        let (outbox, reader) = uplink_outbox();
        outbox.put_load(load(1));
        assert_eq!(reader.next(), None);
        reader.connected();
        outbox.put_load(load(2));
        outbox.put_load(load(3));
        outbox.put(state("a", Phase::Running));
        assert_eq!(
            reader.next(),
            Some(ToServer::WorkloadStates(vec![state("a", Phase::Running)]))
        );
        assert_eq!(reader.next(), Some(ToServer::AgentLoad(load(3))));
        outbox.put_load(load(4));
        reader.disconnected();
        reader.connected();
        assert_eq!(reader.next(), None);
    }

    #[test]
    fn after_a_reconnect_all_own_states_and_removals_are_sent_once() {
        let (outbox, reader) = uplink_outbox();
        outbox.put(state("gone", Phase::Running));
        outbox.put(state("gone", Phase::Removed));
        outbox.put(state("a", Phase::PendingStarting));
        outbox.put(state("a", Phase::Removed));
        outbox.resynchronise(
            vec![state("a", Phase::Running), state("b", Phase::Succeeded)],
            false,
        );
        let expected = [
            state("gone", Phase::Removed),
            state("a", Phase::Running),
            state("b", Phase::Succeeded),
        ];
        assert_eq!(sent(&reader), [expected.to_vec()]);
    }

    #[test]
    fn complete_report_after_a_hello_follows_all_states_once() {
        let (outbox, reader) = uplink_outbox();
        for count in [0, 1, BATCH + 1] {
            let own: Vec<WorkloadState> = (0..count)
                .map(|n| state(&n.to_string(), Phase::Running))
                .collect();
            reader.connected();
            outbox.resynchronise(own.clone(), true);
            let mut states_sent = Vec::new();
            let end = std::iter::from_fn(|| reader.next()).find(|message| match message {
                ToServer::WorkloadStates(states) => {
                    states_sent.extend(states.clone());
                    false
                }
                _ => true,
            });
            assert_eq!(
                (states_sent.len(), end),
                (count, Some(ToServer::StatesComplete))
            );
            assert_eq!(reader.next(), None);
            reader.disconnected();
        }
        outbox.resynchronise(vec![], true);
        reader.disconnected();
        reader.connected();
        assert_eq!(reader.next(), None, "the next hello is answered anew");
    }

    #[test]
    fn states_before_the_report_after_a_hello_do_not_end_it() {
        let (outbox, reader) = connected();
        outbox.put(state("a", Phase::Running));
        assert_eq!(sent(&reader), [vec![state("a", Phase::Running)]]);
        for (complete, end) in [(false, None), (true, Some(ToServer::StatesComplete))] {
            outbox.resynchronise(vec![state("a", Phase::Running)], complete);
            assert_eq!(
                reader.next(),
                Some(ToServer::WorkloadStates(vec![state("a", Phase::Running)]))
            );
            assert_eq!(reader.next(), end);
        }
    }

    // [utest->swdd~agent-forward-request-from-control-interface-pipe-to-server~1]
    #[test]
    fn requests_wait_for_a_connection_and_follow_the_states() {
        let (outbox, reader) = uplink_outbox();
        let cancel = |id: &str| Request {
            id: id.to_owned(),
            content: RequestContent::LogsCancel,
        };
        outbox.put_request(ask("w@1@a"), None);
        outbox.put_request(ask("v@2@a"), None);
        outbox.put_cancel(cancel("w@1@old"));
        assert!(outbox.has_request("v@2@a") && !outbox.has_request("v@2@b"));
        reader.connected();
        outbox.put(state("a", Phase::Running));
        outbox.put_cancel(cancel("w@1@b"));
        assert!(matches!(reader.next(), Some(ToServer::WorkloadStates(_))));
        for request in [cancel("w@1@b"), ask("w@1@a"), ask("v@2@a")] {
            assert_eq!(reader.next(), Some(ToServer::Request(request)));
        }
        assert!(!outbox.has_request("v@2@a"));
        for number in 0..2 * CANCELS {
            outbox.put_cancel(cancel(&number.to_string()));
        }
        assert_eq!(std::iter::from_fn(|| reader.next()).count(), CANCELS);
    }

    #[test]
    fn what_nobody_waits_for_any_more_is_not_sent_or_is_cancelled() {
        let (outbox, reader) = connected();
        for id in ["w@1@a", "w@2@a", "w@12@a"] {
            outbox.put_request(ask(id), None);
        }
        let cancel = Request {
            id: "w@1@e".to_owned(),
            content: RequestContent::EventsCancel,
        };
        outbox.end_requests("w@1@", vec![cancel.clone()]);
        let sent: Vec<ToServer> = std::iter::from_fn(|| reader.next()).collect();
        assert_eq!(
            sent,
            [cancel, ask("w@2@a"), ask("w@12@a")].map(ToServer::Request)
        );
    }

    #[test]
    fn workload_that_always_requests_leaves_room_for_load_and_logs() {
        let (outbox, reader) = connected();
        outbox.put_load(load(1));
        let stop = ToServer::LogsStop {
            request_id: "logs".to_owned(),
            instance: state("a", Phase::Running).instance,
        };
        assert!(outbox.put_message(stop.clone(), None));
        let sent: Vec<ToServer> = (0..1000)
            .filter_map(|number| {
                outbox.put_request(ask(&number.to_string()), None);
                reader.next()
            })
            .collect();
        for waiting in [ToServer::AgentLoad(load(1)), stop] {
            assert!(sent.contains(&waiting), "{waiting:?}");
        }
    }

    #[test]
    fn a_large_number_of_states_is_split() {
        let (outbox, reader) = uplink_outbox();
        outbox.resynchronise(
            (0..BATCH + 1)
                .map(|n| state(&n.to_string(), Phase::Running))
                .collect(),
            false,
        );
        let lengths: Vec<usize> = sent(&reader).iter().map(Vec::len).collect();
        assert_eq!(lengths, [BATCH, 1]);
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
        let read = ReadState {
            masks: vec!["agents".to_owned()],
            subscribe: false,
        };
        Request {
            id: id.to_owned(),
            content: RequestContent::CompleteState(read),
        }
    }

    #[test]
    fn load_is_sent_by_its_own_thread_unless_others_are_first() {
        let (outbox, reader) = connected();
        let sink = FakeSink::default();
        reader.connected_by(Box::new(sink.clone()));
        sink.give_room(1);
        outbox.put_load(load(1));
        assert_eq!(sink.taken(), [ToServer::AgentLoad(load(1))]);
        outbox.put_load(load(2));
        assert_eq!(sink.taken(), []);
        assert!(
            reader.woken().try_recv().is_err(),
            "`uplink` is not woken before there is room"
        );
        sink.give_room(3);
        assert!(reader.woken().try_recv().is_ok());
        outbox.put(state("a", Phase::Running));
        outbox.put_load(load(3));
        assert!(
            reader.woken().try_recv().is_ok(),
            "`uplink` sends it behind the state"
        );
        reader.send_waiting().unwrap();
        assert_eq!(
            sink.taken(),
            [
                ToServer::WorkloadStates(vec![state("a", Phase::Running)]),
                ToServer::AgentLoad(load(3))
            ]
        );
    }

    #[test]
    fn request_is_sent_by_its_own_thread_unless_others_are_first() {
        let (outbox, reader) = connected();
        let sink = FakeSink::default();
        reader.connected_by(Box::new(sink.clone()));
        sink.give_room(2);
        outbox.put_request(ask("w@1"), None);
        assert_eq!(sink.taken(), [ToServer::Request(ask("w@1"))]);
        assert!(
            reader.woken().try_recv().is_err(),
            "`uplink` is not woken for it"
        );

        let running = state("a", Phase::Running);
        outbox.put(running.clone());
        outbox.put_request(ask("w@2"), None);
        assert_eq!(sink.taken(), [], "the state comes before it");
        reader.woken().try_recv().unwrap();
        reader.send_waiting().unwrap();
        assert_eq!(sink.taken(), [ToServer::WorkloadStates(vec![running])]);

        outbox.put_request(ask("w@3"), None);
        while reader.woken().try_recv().is_ok() {}
        sink.give_room(10);
        reader
            .woken()
            .try_recv()
            .expect("the connection wakes when it has room");
        reader.send_waiting().unwrap();
        assert_eq!(
            sink.taken(),
            [ToServer::Request(ask("w@2")), ToServer::Request(ask("w@3"))]
        );

        let taken = EventFd::new().unwrap();
        outbox.put_request(ask("w@large"), Some(taken.clone()));
        assert_eq!(
            sink.taken(),
            [],
            "`control`, which serves all workloads, does not encode it"
        );
        assert!(outbox.has_large_request() && !taken.reset());
        reader.send_waiting().unwrap();
        assert_eq!(sink.taken(), [ToServer::Request(ask("w@large"))]);
        assert!(!outbox.has_large_request() && taken.reset());
    }

    #[test]
    fn requests_that_were_not_sent_wait_for_the_next_connection() {
        let (outbox, reader) = connected();
        let sink = FakeSink::default();
        reader.connected_by(Box::new(sink.clone()));
        sink.give_room(1);
        for id in ["w@1", "w@2"] {
            outbox.put_request(ask(id), None);
        }
        reader.disconnected();
        sink.give_room(10);
        reader.send_waiting().unwrap();
        assert_eq!(
            sink.taken(),
            [ToServer::Request(ask("w@1"))],
            "nothing goes to the lost connection"
        );
        assert_eq!(reader.next(), Some(ToServer::Request(ask("w@2"))));
    }
}
