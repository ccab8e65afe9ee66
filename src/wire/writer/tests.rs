//! One stream on one thread with a line that the test controls; the thread with lines that take
//! everything.

use super::*;
use crate::convert::messages::read_from_server;
use crate::limits::RESPONSES_BYTES;
use crate::outbox::{OTHERS_BYTES, Outbox, OutboxError, outbox_waking};
use crate::semaphore::Semaphore;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::messages::{FromServer, Response, ResponseContent};
use ankaios_model::names::InstanceName;
use ankaios_model::node::Node;
use ankaios_platform::limits::STOP_DEADLINE;
use ankaios_platform::sync::MutexGuard;
use crossbeam_channel::{Receiver, Sender, unbounded};

/// How a peer treats its messages.
#[derive(Default)]
struct Peer {
    sent: Vec<String>,
    /// A message is under way that it has not taken.
    in_flight: bool,
    /// It takes nothing.
    stuck: bool,
    failed: bool,
    closed: bool,
    /// How often it was polled for whether it can take more.
    looks: usize,
    /// Receives each message, beside `sent`.
    told: Option<Sender<String>>,
}

#[derive(Clone, Default)]
struct FakeLine(Arc<Mutex<Peer>>);

impl FakeLine {
    fn peer(&self) -> MutexGuard<'_, Peer> {
        self.0.lock()
    }
}

fn text(message: &Outgoing) -> String {
    match read_from_server(message.bytes()).unwrap() {
        FromServer::WorkloadStates(states) => {
            let names: Vec<&str> = states
                .iter()
                .map(|state| &*state.instance.workload)
                .collect();
            names.join(" ")
        }
        FromServer::Response(response) => format!("answer {}", response.id),
        FromServer::ServerHello(_) => "hello".to_owned(),
        other => panic!("{other:?}"),
    }
}

impl Sink<(Outgoing, WriteFlags)> for FakeLine {
    type Error = grpcio::Error;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let mut peer = self.peer();
        peer.looks += 1;
        if peer.failed {
            return Poll::Ready(Err(grpcio::Error::RemoteStopped));
        }
        if peer.in_flight && peer.stuck {
            return Poll::Pending;
        }
        peer.in_flight = false;
        Poll::Ready(Ok(()))
    }

    fn start_send(
        self: Pin<&mut Self>,
        (message, _): (Outgoing, WriteFlags),
    ) -> Result<(), Self::Error> {
        let mut peer = self.peer();
        assert!(!peer.in_flight, "the one before was not taken yet");
        peer.in_flight = true;
        peer.sent.push(text(&message));
        peer.told
            .iter()
            .try_for_each(|told| told.send(text(&message)))
            .map_err(|_| grpcio::Error::RemoteStopped)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        panic!("nobody waits for this")
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let mut peer = self.peer();
        if peer.stuck {
            return Poll::Pending;
        }
        peer.closed = true;
        Poll::Ready(Ok(()))
    }
}

/// A stream, its line and the other end of its outbox.
struct Bench {
    line: FakeLine,
    outbox: Option<Outbox>,
    answers: Arc<Semaphore>,
    stream: PeerStream,
    now: Instant,
}

fn state(workload: &str) -> FromServer {
    let instance = InstanceName::with_id(workload, "id", "A");
    FromServer::WorkloadStates(vec![WorkloadState::new(
        instance,
        ExecutionState::plain(Phase::Running),
    )])
}

fn answer(id: &str, bytes: usize) -> FromServer {
    FromServer::Response(Response {
        id: id.to_owned(),
        content: ResponseContent::Error("x".repeat(bytes).into()),
    })
}

impl Bench {
    fn new(bundles_states: bool) -> Self {
        let line = FakeLine::default();
        let answers = Semaphore::new(RESPONSES_BYTES);
        let (outbox, reader) = outbox_waking(
            Waker::noop().clone(),
            answers.clone(),
            Semaphore::new(OTHERS_BYTES),
        );
        let stream = PeerStream::new(
            "peer".to_owned(),
            Box::new(line.clone()),
            reader,
            bundles_states,
        );
        Self {
            line,
            outbox: Some(outbox),
            answers,
            stream,
            now: SystemClock.now(),
        }
    }

    fn put(&self, message: FromServer) {
        self.outbox.as_ref().unwrap().put(message).unwrap();
    }

    fn advance(&mut self) -> Next {
        self.stream
            .advance(&mut Context::from_waker(Waker::noop()), self.now)
    }

    #[track_caller]
    fn expect_sent(&mut self, expected: &[&str]) {
        assert_eq!(std::mem::take(&mut self.line.peer().sent), expected);
    }
}

#[test]
fn messages_keep_their_order_and_the_end_closes_the_stream() {
    let mut bench = Bench::new(false);
    assert_eq!(bench.advance(), Next::Woken);
    for message in [state("a"), answer("1", 1), state("b"), answer("2", 1)] {
        bench.put(message);
    }
    drop(bench.outbox.take());
    assert_eq!(bench.advance(), Next::Ended);
    bench.expect_sent(&["a", "answer 1", "b", "answer 2"]);
    assert!(bench.line.peer().closed);
}

#[test]
fn states_in_close_sequence_are_sent_together() {
    let mut bench = Bench::new(true);
    bench.put(state("a"));
    assert_eq!(bench.advance(), Next::Woken);
    bench.expect_sent(&["a"]);
    let rested = bench.now + STATES_REST;
    bench.put(state("b"));
    assert_eq!(bench.advance(), Next::At(rested));
    bench.put(state("c"));
    assert_eq!(bench.advance(), Next::At(rested));
    bench.expect_sent(&[]);
    bench.now = rested;
    assert_eq!(bench.advance(), Next::Woken);
    bench.expect_sent(&["b c"]);
    bench.now += STATES_REST;
    bench.put(state("d"));
    assert_eq!(bench.advance(), Next::Woken);
    bench.expect_sent(&["d"]);
}

#[test]
fn nothing_but_states_rests_and_an_end_does_not() {
    let mut bench = Bench::new(true);
    bench.put(state("a"));
    bench.advance();
    bench.put(state("b"));
    bench.put(answer("1", 1));
    assert_eq!(bench.advance(), Next::Woken);
    bench.expect_sent(&["a", "b", "answer 1"]);
    bench.put(state("c"));
    drop(bench.outbox.take());
    assert_eq!(bench.advance(), Next::Ended);
    bench.expect_sent(&["c"]);
}

#[test]
fn commanders_are_told_each_state_at_once() {
    let mut bench = Bench::new(false);
    for name in ["a", "b"] {
        bench.put(state(name));
        assert_eq!(bench.advance(), Next::Woken);
        bench.expect_sent(&[name]);
    }
}

#[test]
fn only_the_end_of_a_large_message_wakes_the_thread() {
    let mut bench = Bench::new(false);
    bench.line.peer().stuck = true;
    bench.put(answer("small", 1));
    assert_eq!(bench.advance(), Next::Woken);
    assert_eq!(bench.line.peer().looks, 1);
    bench.line.peer().stuck = false;
    bench.put(answer("large", PEER_SMALL_MESSAGE + 1));
    bench.advance();
    bench.expect_sent(&["answer small", "answer large"]);
    assert_eq!(bench.line.peer().looks, 3, "one more after the large one");
}

#[test]
fn peer_that_takes_nothing_is_disconnected_alone() {
    for bytes in [1, PEER_SMALL_MESSAGE + 1] {
        let mut bench = Bench::new(false);
        bench.line.peer().stuck = true;
        bench.put(answer("1", bytes));
        bench.put(answer("2", 1));
        let until = bench.now + PEER_STUCK;
        assert_eq!(bench.advance(), Next::At(until));
        bench.now = until - Duration::from_millis(1);
        assert_eq!(bench.advance(), Next::At(until));
        bench.line.peer().stuck = false;
        assert_eq!(bench.advance(), Next::Woken);
        bench.line.peer().stuck = true;
        bench.put(answer("3", 1));
        let until = bench.now + PEER_STUCK;
        assert_eq!(bench.advance(), Next::At(until));
        bench.now = until;
        assert_eq!(bench.advance(), Next::Ended);
        bench.expect_sent(&["answer 1", "answer 2"]);
    }
}

fn whole_state(id: &str) -> FromServer {
    let version = Node::text("x".repeat(PEER_SMALL_MESSAGE + 1));
    let state = Node::map([("desiredState", Node::map([("apiVersion", version)]))]);
    FromServer::Response(Response {
        id: id.to_owned(),
        content: ResponseContent::CompleteState {
            state,
            altered: None,
        },
    })
}

#[test]
fn blocked_peer_has_less_time_while_others_need_capacity() {
    for is_wanted in [false, true] {
        let mut bench = Bench::new(false);
        bench.line.peer().stuck = true;
        for id in ["1", "2", "3"] {
            bench.put(whole_state(id));
        }
        let begin = bench.now;
        assert_eq!(bench.advance(), Next::At(begin + PEER_STUCK_CROWDED));
        let _others = bench.answers.acquire_anyway(RESPONSES_BYTES);
        assert!(!is_wanted || !bench.answers.poll_more_free_than(0, Waker::noop()));
        bench.now = begin + PEER_STUCK_CROWDED - Duration::from_millis(1);
        assert_eq!(bench.advance(), Next::At(begin + PEER_STUCK_CROWDED));
        bench.now = begin + PEER_STUCK_CROWDED;
        let later = Next::At(begin + 2 * PEER_STUCK_CROWDED);
        assert_eq!(bench.advance(), if is_wanted { Next::Ended } else { later });
        bench.expect_sent(&["answer 1"]);
        if !is_wanted {
            bench.line.peer().stuck = false;
            assert_eq!(bench.advance(), Next::Woken);
            bench.expect_sent(&["answer 2", "answer 3"]);
        }
    }
}

#[test]
fn a_large_message_on_a_slow_link_is_given_the_time_it_takes() {
    let mut bench = Bench::new(false);
    bench.line.peer().stuck = true;
    bench.put(answer("large", 15 * PEER_SLOWEST as usize));
    let Next::At(until) = bench.advance() else {
        panic!("it waits")
    };
    assert_eq!(
        (until - bench.now).as_secs(),
        (PEER_STUCK + Duration::from_secs(15)).as_secs()
    );
    bench.now = until - Duration::from_millis(1);
    assert_eq!(bench.advance(), Next::At(until));
    bench.now = until;
    assert_eq!(bench.advance(), Next::Ended);
}

#[test]
fn a_small_message_that_went_out_long_ago_makes_no_peer_stuck() {
    let mut bench = Bench::new(false);
    bench.put(answer("1", 1));
    assert_eq!(bench.advance(), Next::Woken);
    bench.now += 10 * PEER_STUCK;
    bench.put(answer("2", 1));
    assert_eq!(bench.advance(), Next::Woken);
    bench.expect_sent(&["answer 1", "answer 2"]);
}

#[test]
fn a_stream_that_failed_ends_and_its_outbox_says_so() {
    let mut bench = Bench::new(false);
    bench.line.peer().failed = true;
    bench.put(answer("1", 1));
    assert_eq!(bench.advance(), Next::Ended);
    let Bench { outbox, stream, .. } = bench;
    drop(stream);
    assert_eq!(
        outbox.unwrap().put(answer("2", 1)),
        Err(OutboxError::Closed)
    );
}

#[test]
fn a_peer_with_much_to_take_leaves_the_others_their_turn() {
    let mut bench = Bench::new(false);
    for _ in 0..3 * 16 {
        bench.put(answer("1", 1));
    }
    bench.advance();
    assert_eq!(bench.line.peer().sent.len(), 16);
}

fn open(writer: &StreamWriter, number: u64) -> (Outbox, Receiver<String>) {
    let (told, received) = unbounded();
    let line = FakeLine::default();
    line.peer().told = Some(told);
    let waker = writer.waker(PeerId(number));
    let (outbox, reader) = outbox_waking(
        waker.clone(),
        Semaphore::new(RESPONSES_BYTES),
        Semaphore::new(OTHERS_BYTES),
    );
    writer.add(
        PeerId(number),
        PeerStream::new(number.to_string(), Box::new(line), reader, true),
        waker,
    );
    (outbox, received)
}

#[test]
fn one_thread_serves_all_streams_and_ends_each_with_its_outbox() {
    let writer = StreamWriter::start(&mut WatchedThreads::new(|_| {})).unwrap();
    let streams: Vec<(Outbox, Receiver<String>)> =
        (0..20).map(|number| open(&writer, number)).collect();
    for round in 0..50 {
        for (outbox, _) in &streams {
            outbox.put(answer(&round.to_string(), 1)).unwrap();
        }
    }
    drop(writer);
    for (outbox, received) in streams {
        drop(outbox);
        let all: Vec<String> =
            std::iter::from_fn(|| received.recv_timeout(STOP_DEADLINE).ok()).collect();
        assert_eq!(
            all,
            (0..50)
                .map(|round| format!("answer {round}"))
                .collect::<Vec<_>>()
        );
    }
}

#[test]
fn states_that_rested_are_told_although_nothing_else_happens() {
    let writer = StreamWriter::start(&mut WatchedThreads::new(|_| {})).unwrap();
    let (outbox, received) = open(&writer, 1);
    let mut names = Vec::new();
    for round in 0..10 {
        outbox.put(state(&format!("w{round}"))).unwrap();
    }
    while names.len() < 10 {
        let told = received
            .recv_timeout(STOP_DEADLINE)
            .expect("all states are told");
        names.extend(told.split(' ').map(str::to_owned));
    }
    assert_eq!(
        names,
        (0..10).map(|round| format!("w{round}")).collect::<Vec<_>>()
    );
}

#[test]
fn awaited_response_needs_no_other_thread() {
    let line = FakeLine::default();
    let noop = Waker::noop();
    let (outbox, reader) = outbox_waking(
        noop.clone(),
        Semaphore::new(RESPONSES_BYTES),
        Semaphore::new(OTHERS_BYTES),
    );
    let stream = PeerStream::new("peer".to_owned(), Box::new(line.clone()), reader, false);
    let shared = Arc::new(SharedStream {
        stream: Mutex::new(Some(stream)),
        waker: noop.clone(),
    });
    let outbox = outbox.with_stream(shared.clone());
    let sent = || std::mem::take(&mut line.peer().sent);
    outbox.put(answer("1", 1)).unwrap();
    assert_eq!(sent(), ["answer 1"]);
    outbox.put(answer("large", PEER_SMALL_MESSAGE)).unwrap();
    outbox.put(answer("2", 1)).unwrap();
    assert!(sent().is_empty(), "one waits before it");
    shared.send_now();
    assert_eq!(sent(), ["answer large", "answer 2"]);
    outbox.put(state("a")).unwrap();
    assert!(sent().is_empty(), "others get this state as well");
    line.peer().failed = true;
    shared.send_now();
    assert_eq!(outbox.put(answer("3", 1)), Err(OutboxError::Closed));
}

#[test]
fn hello_of_an_agent_needs_no_other_thread() {
    let (changed, changes) = bounded(1);
    let due = Due {
        state: Mutex::default(),
        changed,
    };
    let writer = StreamWriter(Arc::new(due));
    let peer = PeerId(1);
    let waker = writer.waker(peer);
    let (outbox, reader) = outbox_waking(
        waker.clone(),
        Semaphore::new(RESPONSES_BYTES),
        Semaphore::new(OTHERS_BYTES),
    );
    let line = FakeLine::default();
    let stream = PeerStream::new("agent".to_owned(), Box::new(line.clone()), reader, true);
    let outbox = outbox.with_stream(writer.add(peer, stream, waker));
    outbox.put_first_states(&[]).unwrap();
    outbox.put(FromServer::ServerHello(Vec::new())).unwrap();
    assert_eq!(line.peer().sent, ["hello"]);
    assert!(changes.is_empty(), "the thread was not woken");
    outbox.put(state("a")).unwrap();
    assert!(!changes.is_empty(), "others get this state as well");
}
