//! One queue with both ends on one thread.

use super::*;
use crate::limits::{
    PEER_ANSWERS_BYTES, PEER_OUTBOX, PEER_OUTBOX_LARGE, PEER_OUTBOX_LOG_BYTES, PEER_OUTBOX_STATES_BYTES,
    STATES_MESSAGE_BYTES,
};
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::memory_size::MemorySize;
use crate::model::messages::{LogEntry, Response, ResponseContent};
use crate::model::names::InstanceName;
use crate::model::node::Entries;
use crate::wire::shared_state::shared;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

fn state(workload: &str, phase: Phase) -> WorkloadState {
    WorkloadState::new(InstanceName::with_id(workload, "id", "A"), ExecutionState::plain(phase))
}

fn states(states: &[WorkloadState]) -> FromServer {
    FromServer::WorkloadStates(states.to_vec())
}

fn response(bytes: usize) -> FromServer {
    let content = ResponseContent::UpdateStateSuccess { added: vec!["x".repeat(bytes)], deleted: vec![] };
    FromServer::Response(Response { id: String::new(), content })
}

fn refusal() -> FromServer {
    FromServer::Response(Response { id: String::new(), content: ResponseContent::Error("no".to_owned()) })
}

#[test]
fn waiting_states_travel_together_and_none_is_left_out() {
    let (outbox, reader) = outbox();
    let (first, second) = (state("a", Phase::PendingStarting), state("a", Phase::Running));
    outbox.put(states(&[first.clone(), state("b", Phase::Running)])).unwrap();
    outbox.put(states(std::slice::from_ref(&second))).unwrap();
    assert_eq!(reader.try_next(), Some(states(&[first, state("b", Phase::Running), second])));
    assert_eq!(reader.try_next(), None);
}

#[test]
fn outdated_states_are_merged_to_the_newest_of_each_instance() {
    let old = state("a", Phase::PendingStarting);
    let (new, other) = (state("a", Phase::Running), state("b", Phase::Running));
    let kept = queue::newest(shared(vec![old, other.clone(), new.clone()]), &mut BTreeSet::new());
    assert_eq!(kept.iter().map(|state| state.state()).collect::<Vec<_>>(), [&other, &new]);
}

#[test]
fn states_are_not_moved_before_another_message() {
    let (outbox, reader) = outbox();
    outbox.put(states(&[state("a", Phase::PendingStarting)])).unwrap();
    outbox.put(response(1)).unwrap();
    outbox.put(states(&[state("a", Phase::Running)])).unwrap();
    drop(outbox);
    assert_eq!(reader.try_next(), Some(states(&[state("a", Phase::PendingStarting)])));
    assert_eq!(reader.try_next(), Some(response(1)));
    assert_eq!(reader.try_next(), Some(states(&[state("a", Phase::Running)])));
    assert_eq!(reader.try_next(), None);
}

#[test]
fn a_flood_of_states_for_a_slow_peer_takes_bounded_room() {
    let (outbox, reader) = outbox();
    for round in 0..100_000 {
        let name = format!("w{}", round % 10);
        outbox.put(states(&[state(&name, Phase::Running)])).unwrap();
    }
    let queue = reader.queue.lock();
    assert!(queue.has_only_states(), "in one message");
    assert!(queue.bytes <= PEER_OUTBOX_STATES_BYTES, "{}", queue.bytes);
}

fn on(workload: &str, agent: &str) -> WorkloadState {
    WorkloadState::new(InstanceName::with_id(workload, "id", agent), ExecutionState::plain(Phase::Running))
}

fn name(text: &str) -> Name {
    text.into()
}

#[test]
fn a_snapshot_leaves_out_the_peers_own_states_and_those_of_the_newcomer() {
    let snapshot = StatesSnapshot::new(vec![on("u", ""), on("a", "A"), on("a2", "A"), on("b", "B")]);
    for (own, newcomer, expected) in [
        ("A", "B", vec![on("u", "")]),
        ("B", "B", vec![on("u", ""), on("a", "A"), on("a2", "A")]),
        ("C", "D", vec![on("u", ""), on("a", "A"), on("a2", "A"), on("b", "B")]),
    ] {
        let (outbox, reader) = outbox();
        outbox.put_snapshot(&snapshot, &name(own), &name(newcomer), true).unwrap();
        assert_eq!(reader.try_next(), Some(states(&expected)), "{own} {newcomer}");
    }
    let (outbox, reader) = outbox();
    for all in [vec![], vec![on("a", "A"), on("b", "B")]] {
        outbox.put_snapshot(&StatesSnapshot::new(all), &name("A"), &name("B"), true).unwrap();
    }
    assert_eq!(reader.try_next(), None);
}

#[test]
fn of_snapshots_that_wait_only_the_first_and_the_newest_are_told() {
    let (outbox, reader) = outbox();
    let snapshot = |count: usize| {
        StatesSnapshot::new(["A", "B", "C"].iter().map(|agent| on(&format!("w{count}"), agent)).collect())
    };
    outbox.put_snapshot(&snapshot(0), &name("own"), &name("own"), true).unwrap();
    for count in 1..1000 {
        outbox.put_snapshot(&snapshot(count), &name("own"), &name("C"), false).unwrap();
        outbox.put(states(&[state(&format!("{count}"), Phase::Running)])).unwrap();
    }
    outbox.put_snapshot(&snapshot(1000), &name("own"), &name("B"), false).unwrap();
    assert_eq!(reader.try_next(), Some(states(&[on("w0", "A"), on("w0", "B"), on("w0", "C")])));
    let between: Vec<WorkloadState> = (1..1000).map(|count| state(&count.to_string(), Phase::Running)).collect();
    let mut told = Vec::new();
    while told.len() < between.len()
        && let Some(FromServer::WorkloadStates(states)) = reader.try_next()
    {
        told.extend(states);
    }
    assert_eq!(told, between);
    // The older ones would have told of B, the newest tells of C.
    assert_eq!(reader.try_next(), Some(states(&[on("w1000", "A"), on("w1000", "B"), on("w1000", "C")])));
    assert_eq!((reader.try_next(), reader.queue.lock().bytes), (None, 0));
}

fn line(id: &str, workload: &str, text: &str) -> FromServer {
    let instance = InstanceName::with_id(workload, "id", "A");
    let entries = vec![LogEntry { instance, message: text.to_owned() }];
    FromServer::Response(Response { id: id.to_owned(), content: ResponseContent::LogEntries(entries) })
}

fn stop(id: &str, workload: &str) -> FromServer {
    let instance = InstanceName::with_id(workload, "id", "A");
    FromServer::Response(Response { id: id.to_owned(), content: ResponseContent::LogsStop(instance) })
}

#[test]
fn log_lines_without_room_are_dropped_and_the_stream_says_how_many() {
    let (outbox, reader) = outbox();
    for _ in 0..PEER_OUTBOX + 3 {
        outbox.put(line("r", "a", "x")).unwrap();
    }
    outbox.put(line("r", "b", "x")).unwrap();
    outbox.put(line("other", "a", "x")).unwrap();
    // Answers still find room, and so do states.
    outbox.put(response(1)).unwrap();
    outbox.put(states(&[state("a", Phase::Running)])).unwrap();
    for _ in 0..PEER_OUTBOX {
        assert_eq!(reader.try_next(), Some(line("r", "a", "x")));
    }
    assert_eq!((reader.try_next(), reader.try_next().is_some()), (Some(response(1)), true));
    outbox.put(line("r", "c", "new")).unwrap();
    let text = |lines: &str| format!("[{lines} not shown: they came faster than they were read]");
    assert_eq!(reader.try_next(), Some(line("r", "a", &text("3 lines"))));
    assert_eq!(reader.try_next(), Some(line("r", "b", &text("1 line"))));
    assert_eq!(reader.try_next(), Some(line("r", "c", "new")));
    // A stream that ends says it before its end, another one when its turn comes, and nobody twice.
    outbox.put(stop("r", "a")).unwrap();
    outbox.put(stop("other", "a")).unwrap();
    assert_eq!(reader.try_next(), Some(stop("r", "a")));
    assert_eq!(reader.try_next(), Some(line("other", "a", &text("1 line"))));
    assert_eq!((reader.try_next(), reader.try_next()), (Some(stop("other", "a")), None));
    assert_eq!(reader.queue.lock().bytes, 0);
}

#[test]
fn log_lines_have_a_share_of_the_bytes_that_comes_back_when_they_are_read() {
    let (outbox, reader) = outbox();
    let long = "x".repeat(1024 * 1024);
    for _ in 0..100 {
        outbox.put(line("r", "a", &long)).unwrap();
    }
    let waiting = std::iter::from_fn(|| reader.try_next()).filter(|message| *message == line("r", "a", &long)).count();
    assert_eq!(waiting, PEER_OUTBOX_LOG_BYTES / long.len() - 1);
    assert_eq!(reader.queue.lock().log_bytes, 0);
    outbox.put(line("r", "a", &long)).unwrap();
    assert_eq!(std::iter::from_fn(|| reader.try_next()).count(), 2, "the note and the line");
}

#[test]
fn a_burst_of_small_messages_does_not_drop_a_peer() {
    let (outbox, reader) = outbox();
    for _ in 0..50_000 {
        outbox.put(response(10)).unwrap();
    }
    assert_eq!(std::iter::from_fn(|| reader.try_next()).count(), 50_000);
    let flood = (0..2_000_000).map(|_| outbox.put(response(10))).find(Result::is_err);
    assert_eq!(flood, Some(Err(OutboxError::Overflow)), "but a flood does");
    while reader.try_next().is_some() {}
    for _ in 0..1_000_000 {
        outbox.put_or_drop(refusal()).unwrap();
    }
    assert!(outbox.is_half_empty() && outbox.has_room_for_answer(false, Waker::noop()), "and refusals do not");
    let put = std::iter::from_fn(|| reader.try_next()).count();
    assert!((1_000..100_000).contains(&put), "{put}");
}

#[test]
fn one_large_message_waits_beside_the_others() {
    let (outbox, reader) = outbox();
    outbox.put(response(100 * PEER_OUTBOX_BYTES)).unwrap();
    for _ in 0..3 {
        outbox.put(response(PEER_OUTBOX_LARGE)).unwrap();
    }
    assert_eq!(outbox.put(response(PEER_OUTBOX_LARGE)), Err(OutboxError::Overflow));
    outbox.put(response(1)).unwrap();
    assert_eq!(reader.try_next(), Some(response(100 * PEER_OUTBOX_BYTES)));
    outbox.put(response(100 * PEER_OUTBOX_BYTES)).unwrap();
    while reader.try_next().is_some() {}
    let queue = reader.queue.lock();
    assert_eq!((queue.bytes, queue.answer_bytes, queue.has_large), (0, 0, false));
}

#[test]
fn too_many_bytes_are_refused_and_a_gone_reader_is_noticed() {
    let (outbox, reader) = outbox();
    for _ in 0..16 {
        outbox.put(response(PEER_OUTBOX_BYTES / 16 - 1000)).unwrap();
    }
    assert_eq!(outbox.put(response(100_000)), Err(OutboxError::Overflow));
    assert!(!outbox.has_room_for_answer(false, Waker::noop()));
    drop(reader);
    assert_eq!(outbox.put(response(1)), Err(OutboxError::Closed));
    assert!(outbox.has_room_for_answer(false, Waker::noop()), "nobody has to wait for it");
}

#[derive(Default)]
pub(in crate::wire) struct Count(AtomicUsize);

impl Count {
    /// How often it was woken since the last call.
    pub(in crate::wire) fn woken(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

impl std::task::Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn the_next_large_answer_has_room_once_the_one_before_it_is_sent() {
    let count = Arc::new(Count::default());
    let wake = Waker::from(count.clone());
    let (outbox, reader) = outbox();
    outbox.put(states(&vec![state("a", Phase::Running); 2000])).unwrap();
    outbox.put(line("r", "a", &"x".repeat(2 * PEER_ANSWERS_BYTES))).unwrap();
    assert!(outbox.has_room_for_answer(false, &wake), "nothing that waits is an answer");
    outbox.put(response(PEER_ANSWERS_BYTES)).unwrap();
    assert!(!outbox.has_room_for_answer(false, &wake));
    for _ in 0..2 {
        reader.next_to_send().unwrap();
        reader.sent();
    }
    assert_eq!(count.woken(), 0);
    assert!(
        matches!(reader.next_to_send(), Some(Outgoing::Message(message)) if message == response(PEER_ANSWERS_BYTES))
    );
    assert_eq!((count.woken(), outbox.has_room_for_answer(false, &wake)), (0, false), "it is being sent");
    reader.sent();
    assert_eq!((count.woken(), outbox.has_room_for_answer(false, &wake)), (1, true));
    reader.sent();
    assert_eq!(count.woken(), 0, "only who waits is woken");
}

fn long_state(workload: usize, bytes: usize) -> WorkloadState {
    let info = "x".repeat(bytes);
    WorkloadState::new(
        InstanceName::with_id(&format!("w{workload}"), "id", "A"),
        ExecutionState::with_info(Phase::Running, info),
    )
}

fn all_states(reader: &OutboxReader) -> Vec<Vec<WorkloadState>> {
    let messages = std::iter::from_fn(|| reader.try_next()).filter_map(|message| match message {
        FromServer::WorkloadStates(states) => Some(states),
        _ => None,
    });
    messages.collect()
}

#[test]
fn long_texts_of_states_are_shared_by_all_who_wait_for_them_and_cut_nobody_off() {
    const LONG: usize = 16 * 1024;
    let peers: Vec<_> = (0..10).map(|_| outbox()).collect();
    let mut newest = Vec::new();
    for _ in 0..30 {
        newest = (0..200).map(|workload| long_state(workload, LONG)).collect();
        for (outbox, _) in &peers {
            outbox.put(states(&newest)).unwrap();
            outbox.put(response(1)).unwrap(); // Nothing is merged across it.
        }
    }
    for (_, reader) in &peers {
        let held: Vec<_> = all_states(reader).concat();
        assert!(held.len() * LONG <= PEER_OUTBOX_BYTES + newest.len() * LONG, "{} states", held.len());
        for state in &newest {
            let last = held.iter().rfind(|held| held.instance == state.instance).unwrap();
            assert!(Arc::ptr_eq(&last.state.additional_info, &state.state.additional_info));
        }
        assert_eq!(reader.queue.lock().bytes, 0);
    }
}

#[test]
fn states_are_sent_in_messages_of_bounded_size() {
    const LONG: usize = 16 * 1024;
    let all: Vec<_> = (0..1_000).map(|workload| long_state(workload, LONG)).collect();
    let (outbox, reader) = outbox();
    outbox.put_snapshot(&StatesSnapshot::new(all.clone()), &name("B"), &name("B"), true).unwrap();
    outbox.put(states(&all[..10])).unwrap();
    let messages = all_states(&reader);
    for message in &messages {
        let bytes: usize = message.iter().map(|state| size_of::<WorkloadState>() + state.memory_bytes()).sum();
        assert!(bytes <= STATES_MESSAGE_BYTES, "{bytes}");
    }
    assert_eq!(messages.concat(), [&all[..], &all[..10]].concat());
    assert_eq!(reader.queue.lock().bytes, 0);
}

fn tree(bytes: usize) -> Node {
    Node::map([("desiredState", Node::map([("apiVersion", Node::text("x".repeat(bytes)))]))])
}

fn tree_answer(bytes: usize) -> FromServer {
    let content = ResponseContent::CompleteState { state: tree(bytes), altered: None };
    FromServer::Response(Response { id: "r".to_owned(), content })
}

#[test]
fn a_state_for_many_counts_once_for_all_and_for_each_who_is_sent_it() {
    let answers = Budget::new(ANSWERS_BYTES);
    let peers: Vec<_> = (0..10).map(|_| outbox_waking(Waker::noop().clone(), answers.clone())).collect();
    let event = Arc::new(peers[0].0.encode(&tree(ANSWERS_BYTES / 4), Some(AlteredFields::default())));
    for (outbox, _) in &peers {
        outbox.put_state("r".to_owned(), &event).unwrap();
    }
    drop(event);
    assert!(answers.has_room() && !peers[0].0.has_room_for_answer(false, Waker::noop()), "one is enough for one peer");
    for (_, reader) in &peers[..4] {
        assert!(matches!(reader.next_to_send(), Some(Outgoing::State(id, _)) if id == "r"));
    }
    assert!(!answers.has_room() && peers[0].1.has_answers());
    for (_, reader) in &peers {
        reader.sent();
        while reader.try_next().is_some() {}
        assert!(!reader.has_answers());
        let queue = reader.queue.lock();
        assert_eq!((queue.bytes, queue.answer_bytes), (0, 0));
    }
    assert!(answers.has_room());
}

#[test]
fn answers_of_all_peers_have_room_in_common_and_a_gone_reader_gives_its_part_back() {
    let count = Arc::new(Count::default());
    let wake = Waker::from(count.clone());
    let answers = Budget::new(ANSWERS_BYTES);
    let peer = || outbox_waking(Waker::noop().clone(), answers.clone());
    let (asking, _reader) = peer();
    let mut silent = Vec::new();
    while asking.has_room_for_answer(false, &wake) {
        let (outbox, reader) = peer();
        outbox.put(tree_answer(ANSWERS_BYTES / 8)).unwrap();
        silent.push((outbox, reader));
    }
    assert_eq!(silent.len(), 8);
    assert!(silent.iter().all(|(_, reader)| reader.takes_wanted_room()), "somebody waits");
    for (outbox, _) in &silent {
        while outbox.has_room_for_event() {
            outbox.put(response(PEER_EVENTS_BYTES / 4)).unwrap();
        }
        assert!(outbox.queue.lock().bytes < 2 * PEER_EVENTS_BYTES + ANSWERS_BYTES / 8, "who does not read has an end");
    }
    assert!(asking.has_room_for_event(), "who reads goes on");
    assert_eq!(count.woken(), 0);
    silent.truncate(3);
    assert_eq!(count.woken(), 1);
    assert!(asking.has_room_for_answer(false, &wake) && !silent[0].1.takes_wanted_room());
}

#[test]
fn a_state_that_waits_for_longer_is_encoded_and_takes_less() {
    let (outbox, reader) = outbox();
    let many = || Node::map((0..1_000).map(|number| (format!("w{number}"), Node::map([("agent", Node::text("A"))]))));
    let state = || Node::map([("desiredState", Node::map([("workloads", many())]))]);
    let content = || ResponseContent::CompleteState { state: state(), altered: None };
    let answer = || FromServer::Response(Response { id: "r".to_owned(), content: content() });
    outbox.put(response(1)).unwrap();
    outbox.put(answer()).unwrap();
    let before = reader.queue.lock().bytes;
    assert!(reader.encode_waiting() > 0 && reader.queue.lock().bytes < before / 4);
    outbox.put(tree_answer(2 * PEER_OUTBOX_LARGE)).unwrap();
    assert!(reader.encode_waiting() > 0);
    assert_eq!(reader.encode_waiting(), 0, "once");
    assert_eq!(reader.try_next(), Some(response(1)));
    let read = reader.try_next();
    let names = |message: &FromServer| match message {
        FromServer::Response(Response { id, content: ResponseContent::CompleteState { state, altered: None } }) => {
            assert_eq!(id, "r");
            state.at(&["desiredState", "workloads"]).and_then(Node::as_map).map_or(0, Entries::len)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(read.as_ref().map(names), Some(1_000));
    assert!(reader.try_next().is_some_and(|large| large.memory_bytes() > 2 * PEER_OUTBOX_LARGE));
    let queue = reader.queue.lock();
    assert_eq!((queue.bytes, queue.answer_bytes, queue.has_large, queue.trees), (0, 0, false, 0));
    assert!(queue.answers.has_room());
}
