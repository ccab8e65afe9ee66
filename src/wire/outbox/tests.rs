//! One queue with both ends on one thread.

use super::queue::{LARGE, LOGS, STATES};
use super::*;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::messages::{LogEntry, Response, ResponseContent};
use ankaios_model::names::InstanceName;
use ankaios_model::refusal::ErrorResponse;
use std::sync::atomic::{AtomicUsize, Ordering};

fn state(workload: &str, phase: Phase) -> WorkloadState {
    WorkloadState::new(
        InstanceName::with_id(workload, "id", "A"),
        ExecutionState::plain(phase),
    )
}

fn states(states: &[WorkloadState]) -> FromServer {
    FromServer::WorkloadStates(states.to_vec())
}

fn response(bytes: usize) -> FromServer {
    let content = ResponseContent::UpdateStateSuccess {
        added: vec!["x".repeat(bytes)],
        deleted: vec![],
        restarted: vec![],
        warning: None,
    };
    FromServer::Response(Response {
        id: String::new(),
        content,
    })
}

fn refusal() -> FromServer {
    FromServer::Response(Response {
        id: String::new(),
        content: ResponseContent::Error("no".into()),
    })
}

#[test]
fn waiting_states_travel_together_and_none_is_left_out() {
    let (outbox, reader) = outbox();
    let (first, second) = (
        state("a", Phase::PendingStarting),
        state("a", Phase::Running),
    );
    outbox
        .put(states(&[first.clone(), state("b", Phase::Running)]))
        .unwrap();
    outbox.put(states(std::slice::from_ref(&second))).unwrap();
    assert_eq!(
        reader.try_next(),
        Some(states(&[first, state("b", Phase::Running), second]))
    );
    assert_eq!(reader.try_next(), None);
}

#[test]
fn peer_that_is_behind_gets_the_newest_state_of_each_instance() {
    let (outbox, reader) = outbox();
    outbox.put(line("r", "a", &"x".repeat(STATES))).unwrap();
    let old = state("a", Phase::PendingStarting);
    let (new, other) = (state("a", Phase::Running), state("b", Phase::Running));
    for state in [&old, &other, &new] {
        outbox.put(states(std::slice::from_ref(state))).unwrap();
        outbox.put(response(1)).unwrap(); // Nothing is moved before it.
    }
    let told: Vec<FromServer> = std::iter::from_fn(|| reader.try_next()).skip(1).collect();
    assert_eq!(
        told,
        [
            response(1),
            states(&[other]),
            response(1),
            states(&[new]),
            response(1)
        ]
    );
    assert!(reader.queue.lock().bytes == 0);
}

#[test]
fn states_are_not_moved_before_another_message() {
    let (outbox, reader) = outbox();
    outbox
        .put(states(&[state("a", Phase::PendingStarting)]))
        .unwrap();
    outbox.put(response(1)).unwrap();
    outbox.put(states(&[state("a", Phase::Running)])).unwrap();
    drop(outbox);
    assert_eq!(
        reader.try_next(),
        Some(states(&[state("a", Phase::PendingStarting)]))
    );
    assert_eq!(reader.try_next(), Some(response(1)));
    assert_eq!(
        reader.try_next(),
        Some(states(&[state("a", Phase::Running)]))
    );
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
    assert!(queue.bytes <= 2 * STATES, "{}", queue.bytes);
}

#[test]
fn first_states_come_first_and_have_no_bound() {
    let (outbox, reader) = outbox();
    let all: Vec<_> = (0..20_000)
        .map(|workload| long_state(workload, ADDITIONAL_INFO_MAX))
        .collect();
    outbox.put_first_states(&all).unwrap();
    outbox.put(states(&all[..1])).unwrap();
    assert!(outbox.is_half_empty());
    assert_eq!(all_states(&reader).concat(), [&all[..], &all[..1]].concat());
    assert_eq!(reader.queue.lock().bytes, 0);
    outbox.put_first_states(&[]).unwrap();
    assert_eq!(reader.try_next(), None);
}

fn line(id: &str, workload: &str, text: &str) -> FromServer {
    let instance = InstanceName::with_id(workload, "id", "A");
    let entries = vec![LogEntry::line(instance, text.to_owned())];
    FromServer::Response(Response {
        id: id.to_owned(),
        content: ResponseContent::LogEntries(entries),
    })
}

fn stop(id: &str, workload: &str) -> FromServer {
    let instance = InstanceName::with_id(workload, "id", "A");
    FromServer::Response(Response {
        id: id.to_owned(),
        content: ResponseContent::LogsStop(instance),
    })
}

#[test]
fn dropped_log_lines_are_reported_by_their_number() {
    let (outbox, reader) = outbox();
    let long = "x".repeat(LOGS / 32);
    for _ in 0..31 + 3 {
        outbox.put(line("r", "a", &long)).unwrap();
    }
    outbox.put(line("r", "b", &long)).unwrap();
    outbox.put(line("other", "a", &long)).unwrap();
    // Answers still find room, and so do states.
    outbox.put(response(1)).unwrap();
    outbox.put(states(&[state("a", Phase::Running)])).unwrap();
    for _ in 0..31 {
        assert_eq!(reader.try_next(), Some(line("r", "a", &long)));
    }
    assert_eq!(
        (reader.try_next(), reader.try_next().is_some()),
        (Some(response(1)), true)
    );
    outbox.put(line("r", "c", "new")).unwrap();
    let text = |lines: &str| format!("[{lines} not shown: they came faster than they were read]");
    assert_eq!(reader.try_next(), Some(line("r", "a", &text("3 lines"))));
    assert_eq!(reader.try_next(), Some(line("r", "b", &text("1 line"))));
    assert_eq!(reader.try_next(), Some(line("r", "c", "new")));
    // A stream that ends says it before its end, another one when its turn comes, and none twice.
    outbox.put(stop("r", "a")).unwrap();
    outbox.put(stop("other", "a")).unwrap();
    assert_eq!(reader.try_next(), Some(stop("r", "a")));
    assert_eq!(reader.try_next(), Some(line("other", "a", &text("1 line"))));
    assert_eq!(
        (reader.try_next(), reader.try_next()),
        (Some(stop("other", "a")), None)
    );
    assert_eq!(reader.queue.lock().bytes, 0);
}

#[test]
fn log_lines_release_their_bytes_when_they_are_read() {
    let (outbox, reader) = outbox();
    let long = "x".repeat(1024 * 1024);
    for _ in 0..100 {
        outbox.put(line("r", "a", &long)).unwrap();
    }
    let waiting = std::iter::from_fn(|| reader.try_next())
        .filter(|message| *message == line("r", "a", &long))
        .count();
    assert_eq!(waiting, LOGS / long.len() - 1);
    assert_eq!(reader.queue.lock().log_bytes, 0);
    outbox.put(line("r", "a", &long)).unwrap();
    assert_eq!(
        std::iter::from_fn(|| reader.try_next()).count(),
        2,
        "the note and the line"
    );
}

#[test]
fn a_burst_of_small_messages_does_not_drop_a_peer() {
    let (outbox, reader) = outbox();
    for _ in 0..50_000 {
        outbox.put(response(10)).unwrap();
    }
    assert_eq!(std::iter::from_fn(|| reader.try_next()).count(), 50_000);
    let flood = (0..2_000_000)
        .map(|_| outbox.put(response(10)))
        .find(Result::is_err);
    assert_eq!(flood, Some(Err(OutboxError::Overflow)), "but a flood does");
    while reader.try_next().is_some() {}
    for _ in 0..1_000_000 {
        outbox.put_or_drop(refusal()).unwrap();
    }
    assert!(
        outbox.is_half_empty() && outbox.poll_room_for_response(|| 0, Waker::noop()),
        "and refusals do not"
    );
    let put = std::iter::from_fn(|| reader.try_next()).count();
    assert!((1_000..100_000).contains(&put), "{put}");
}

#[test]
fn one_large_message_waits_beside_the_others() {
    let (outbox, reader) = outbox();
    outbox.put(response(2 * PEER_OUTBOX_BYTES)).unwrap();
    for _ in 0..3 {
        outbox.put(response(LARGE)).unwrap();
    }
    assert_eq!(outbox.put(response(LARGE)), Err(OutboxError::Overflow));
    outbox.put(response(1)).unwrap();
    assert_eq!(reader.try_next(), Some(response(2 * PEER_OUTBOX_BYTES)));
    outbox.put(response(2 * PEER_OUTBOX_BYTES)).unwrap();
    while reader.try_next().is_some() {}
    let queue = reader.queue.lock();
    assert_eq!(
        (queue.bytes, queue.responses.held(), queue.has_large),
        (0, 0, false)
    );
}

#[test]
fn too_many_bytes_are_refused_and_a_gone_reader_is_noticed() {
    let (outbox, reader) = outbox();
    for _ in 0..16 {
        outbox.put(response(PEER_OUTBOX_BYTES / 16 - 1000)).unwrap();
    }
    assert_eq!(outbox.put(response(100_000)), Err(OutboxError::Overflow));
    assert!(!outbox.poll_room_for_response(|| 0, Waker::noop()));
    drop(reader);
    assert_eq!(outbox.put(response(1)), Err(OutboxError::Closed));
    assert!(
        outbox.poll_room_for_response(|| 0, Waker::noop()),
        "nobody has to wait for it"
    );
}

#[derive(Default)]
pub(crate) struct Count(AtomicUsize);

impl Count {
    /// How often it was woken since the last call.
    pub(crate) fn woken(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

impl std::task::Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn large_response_has_room_once_the_one_before_is_sent() {
    let count = Arc::new(Count::default());
    let wake = Waker::from(count.clone());
    let (outbox, reader) = outbox();
    outbox
        .put(states(&vec![state("a", Phase::Running); 2000]))
        .unwrap();
    outbox
        .put(line("r", "a", &"x".repeat(2 * PEER_RESPONSES_BYTES)))
        .unwrap();
    assert!(
        outbox.poll_room_for_response(|| 0, &wake),
        "nothing that waits is an answer"
    );
    outbox.put(response(PEER_RESPONSES_BYTES)).unwrap();
    assert!(!outbox.poll_room_for_response(|| 0, &wake));
    for _ in 0..2 {
        reader.next_to_send().unwrap();
        reader.sent();
    }
    assert_eq!(count.woken(), 0);
    assert!(
        reader
            .next_to_send()
            .is_some_and(|message| message.size() > PEER_RESPONSES_BYTES)
    );
    assert_eq!(
        (count.woken(), outbox.poll_room_for_response(|| 0, &wake)),
        (0, false),
        "it is being sent"
    );
    reader.sent();
    assert_eq!(
        (count.woken(), outbox.poll_room_for_response(|| 0, &wake)),
        (1, true)
    );
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
fn long_texts_of_states_cut_nobody_off() {
    const LONG: usize = 2 * 1024;
    let peers: Vec<_> = (0..10).map(|_| outbox()).collect();
    let mut newest = Vec::new();
    for _ in 0..30 {
        newest = (0..1_000)
            .map(|workload| long_state(workload, LONG))
            .collect();
        for (outbox, _) in &peers {
            outbox.put(states(&newest)).unwrap();
            outbox.put(response(1)).unwrap(); // Nothing is merged across it.
        }
    }
    for (_, reader) in &peers {
        let held: Vec<_> = all_states(reader).concat();
        assert!(
            held.len() * LONG <= STATES + LONG + newest.len() * LONG,
            "{} states",
            held.len()
        );
        for state in &newest {
            assert_eq!(
                held.iter().rfind(|held| held.instance == state.instance),
                Some(state)
            );
        }
        assert_eq!(reader.queue.lock().bytes, 0);
    }
}

#[test]
fn states_are_sent_in_messages_of_bounded_size_and_none_is_lost() {
    const LONG: usize = 2 * 1024;
    let all: Vec<_> = (0..3_000)
        .map(|workload| long_state(workload, LONG))
        .collect();
    for max in [usize::MAX, 4096] {
        let (outbox, reader) = outbox();
        let outbox = outbox.limited_to(max, "B");
        if max == usize::MAX {
            outbox.put_first_states(&all).unwrap();
        }
        outbox.put(states(&all[..10])).unwrap();
        let (mut told, mut messages) = (Vec::new(), 0);
        while let Some(message) = reader.next_to_send() {
            assert!(
                message.size() <= max.min(STATES_MESSAGE_BYTES + 6),
                "{}",
                message.size()
            );
            let Ok(FromServer::WorkloadStates(states)) = read_from_server(message.bytes()) else {
                panic!()
            };
            told.extend(states);
            messages += 1;
        }
        let first = if max == usize::MAX { &all[..] } else { &[] };
        assert_eq!(told, [first, &all[..10]].concat());
        assert!(
            messages >= told.len() * LONG / max.min(STATES_MESSAGE_BYTES),
            "{messages}"
        );
        assert_eq!(reader.queue.lock().bytes, 0);
    }
}

#[test]
fn states_fill_a_message_and_one_too_large_costs_no_other() {
    const LIMIT: usize = 4096;
    let names = |all: &[WorkloadState]| -> Vec<Vec<String>> {
        let (outbox, reader) = outbox();
        outbox.limited_to(LIMIT, "A").put(states(all)).unwrap();
        let told = all_states(&reader);
        told.iter()
            .map(|states| {
                states
                    .iter()
                    .map(|state| state.instance.workload.to_string())
                    .collect()
            })
            .collect()
    };
    let all = [long_state(0, 0), long_state(1, LIMIT), long_state(2, 0)];
    assert_eq!(names(&all), [["w0", "w2"]]);
    let alone = encode_states(&[long_state(0, 1000)]).len();
    for (info, expected) in [(LIMIT - alone - 1000, 1), (LIMIT - alone, 2)] {
        assert_eq!(
            names(&[long_state(0, 1000), long_state(1, info)]).len(),
            expected,
            "{info}"
        );
    }
}

#[test]
fn message_of_merged_states_equals_one_written_as_a_whole() {
    let all: Vec<WorkloadState> = (0..3)
        .map(|number| long_state(number, 100 * number))
        .collect();
    let (outbox, reader) = outbox();
    outbox.put(states(&all)).unwrap();
    let whole = crate::convert::messages::write_from_server(&states(&all));
    assert_eq!(reader.next_to_send().unwrap().bytes(), whole);
}

#[test]
fn shared_state_equals_a_response_of_its_own() {
    let altered = AlteredFields {
        added: vec!["agents.A".to_owned()],
        updated: vec![],
        removed: vec!["x".to_owned()],
    };
    for altered in [None, Some(altered)] {
        let (outbox, reader) = outbox();
        let state = Arc::new(outbox.encode(&tree(10), altered.clone()));
        outbox.put_state("r".to_owned(), &state).unwrap();
        let content = ResponseContent::CompleteState {
            state: tree(10),
            altered,
        };
        let whole = crate::convert::messages::write_from_server(&FromServer::Response(Response {
            id: "r".to_owned(),
            content,
        }));
        assert_eq!(reader.next_to_send().unwrap().bytes(), whole);
        // A state that is too large for the peer is refused.
        let outbox = outbox.limited_to(state.bytes(), "A");
        outbox
            .put_state("r".repeat(3), &Arc::new(outbox.encode(&tree(1000), None)))
            .unwrap();
        let Some(FromServer::Response(Response {
            content: ResponseContent::Error(ErrorResponse { text, .. }),
            ..
        })) = reader.try_next()
        else {
            continue; // Nor does the refusal find room.
        };
        assert!(text.contains("field masks"));
    }
}

fn tree(bytes: usize) -> Node {
    Node::map([(
        "desiredState",
        Node::map([("apiVersion", Node::text("x".repeat(bytes)))]),
    )])
}

fn tree_answer(bytes: usize) -> FromServer {
    let content = ResponseContent::CompleteState {
        state: tree(bytes),
        altered: None,
    };
    FromServer::Response(Response {
        id: "r".to_owned(),
        content,
    })
}

#[test]
fn shared_state_counts_once_and_again_for_each_copy() {
    let answers = Semaphore::new(RESPONSES_BYTES);
    let peers: Vec<_> = (0..10)
        .map(|_| {
            outbox_waking(
                Waker::noop().clone(),
                answers.clone(),
                Semaphore::new(OTHERS_BYTES),
            )
        })
        .collect();
    let event = Arc::new(
        peers[0]
            .0
            .encode(&tree(RESPONSES_BYTES / 4), Some(AlteredFields::default())),
    );
    for (outbox, _) in &peers {
        outbox.put_state("r".to_owned(), &event).unwrap();
    }
    drop(event);
    assert!(
        answers.has_capacity() && !peers[0].0.poll_room_for_response(|| 0, Waker::noop()),
        "one is enough for one peer"
    );
    for (_, reader) in &peers[..4] {
        assert!(reader.next_to_send().is_some());
    }
    assert!(!answers.has_capacity() && peers[0].1.holds_capacity());
    for (_, reader) in &peers {
        reader.sent();
        while reader.try_next().is_some() {}
        assert!(!reader.holds_capacity());
        let queue = reader.queue.lock();
        assert_eq!((queue.bytes, queue.responses.held()), (0, 0));
    }
    assert!(answers.has_capacity());
}

#[test]
fn responses_share_capacity_that_a_gone_reader_releases() {
    let count = Arc::new(Count::default());
    let wake = Waker::from(count.clone());
    let answers = Semaphore::new(RESPONSES_BYTES);
    let peer = || {
        outbox_waking(
            Waker::noop().clone(),
            answers.clone(),
            Semaphore::new(OTHERS_BYTES),
        )
    };
    let (asking, _reader) = peer();
    let mut silent = Vec::new();
    while asking.poll_room_for_response(|| 0, &wake) {
        let (outbox, reader) = peer();
        outbox.put(tree_answer(RESPONSES_BYTES / 8)).unwrap();
        silent.push((outbox, reader));
    }
    assert_eq!(silent.len(), 8);
    assert!(
        silent
            .iter()
            .all(|(_, reader)| reader.holds_contended_capacity()),
        "somebody waits"
    );
    for (outbox, _) in &silent {
        while outbox.has_room_for_event() {
            outbox.put(response(PEER_EVENTS_BYTES / 4)).unwrap();
        }
        assert!(
            outbox.queue.lock().bytes < 2 * PEER_EVENTS_BYTES + RESPONSES_BYTES / 8,
            "who does not read has an end"
        );
    }
    assert!(asking.has_room_for_event(), "who reads goes on");
    assert_eq!(count.woken(), 0);
    silent.truncate(3);
    assert_eq!(count.woken(), 1);
    assert!(asking.poll_room_for_response(|| 0, &wake) && !silent[0].1.holds_contended_capacity());
}

#[test]
fn commands_for_silent_peers_have_one_bound_for_all() {
    let others = Semaphore::new(OTHERS_BYTES);
    let peer = || {
        outbox_waking(
            Waker::noop().clone(),
            Semaphore::new(RESPONSES_BYTES),
            others.clone(),
        )
    };
    let peers: Vec<_> = (0..48).map(|_| peer()).collect();
    let text = "x".repeat(LOGS / 8);
    for _ in 0..8 {
        peers
            .iter()
            .for_each(|(outbox, _)| outbox.put(line("r", "a", &text)).unwrap());
    }
    assert!(
        (OTHERS_BYTES..OTHERS_BYTES + LOGS).contains(&others.in_flight()),
        "{}",
        others.in_flight()
    );
    let (outbox, reader) = peer();
    assert!(!outbox.has_room_for_agent() && outbox.poll_room_for_response(|| 0, Waker::noop()));
    assert!(
        peers[0].1.holds_contended_capacity() && !reader.holds_contended_capacity(),
        "whoever has nothing waiting stays"
    );
    for (_, reader) in &peers[1..] {
        while reader.try_next().is_some() {}
    }
    assert!(others.has_capacity());
}

#[test]
fn states_that_come_together_are_one_entry() {
    let (outbox, reader) = outbox();
    let all: Vec<WorkloadState> = (0..100)
        .map(|number| state(&format!("w{number}"), Phase::Running))
        .collect();
    let each: Vec<_> = all.iter().map(Encoded::of_state).collect();
    let together = Encoded::together(&each);
    outbox
        .put_states(Some(&together), each.iter().cloned())
        .unwrap();
    assert_eq!(Arc::strong_count(&each[0]), 1, "it shares the one entry");
    assert!(reader.has_only_states());
    assert_eq!(reader.try_next(), Some(states(&all)));
    outbox.put(line("r", "a", &"x".repeat(STATES))).unwrap();
    outbox
        .put_states(Some(&together), each.iter().cloned())
        .unwrap();
    assert_eq!(
        Arc::strong_count(&each[0]),
        2,
        "of one that is behind each can be replaced"
    );
}
