//! Streams whose engine is a shell script: what reaches the server, in which order, and what ends
//! them.

use super::super::uplink_outbox::{UplinkOutbox, UplinkReader, uplink_outbox};
use super::*;
use ankaios_fakes::fake_connector::FakeEngine;
use ankaios_model::limits::LOG_MESSAGE_MAX;
use ankaios_platform::clock::{Clock as _, SystemClock};
use ankaios_runtime::RuntimeError;
use ankaios_runtime::engine_children::EngineChildren;
use ankaios_runtime::log_reader::LogCall;
use crossbeam_channel::{Receiver, bounded};
use std::cell::RefCell;
use std::path::Path;

/// Longest wait for anything a test expects.
const AMPLE: Duration = Duration::from_secs(180);

fn instance(name: &str) -> InstanceName {
    InstanceName::with_id(name, "1", "agent_A")
}

/// An instance and whether its log can be read.
type Order = (InstanceName, LogAccess);

struct Fixture {
    streams: LogStreams,
    reader: UplinkReader,
    scheduler: Receiver<SchedulerEvent>,
    children: EngineChildren,
    _outbox: UplinkOutbox,
    _folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let (outbox, reader) = uplink_outbox();
        reader.connected();
        let folder = tempfile::tempdir().unwrap();
        let children = EngineChildren::open(folder.path()).unwrap().0;
        let (to_scheduler, scheduler) = bounded(4);
        let streams = LogStreams::new(outbox.clone(), to_scheduler);
        Self {
            streams,
            reader,
            scheduler,
            children,
            _outbox: outbox,
            _folder: folder,
        }
    }

    fn call(&self, program: &str, script: &str, prefix: &str) -> LogCall {
        let arguments = vec!["-c".to_owned(), script.to_owned()];
        LogCall {
            program: program.to_owned(),
            arguments,
            prefix: prefix.to_owned(),
            children: self.children.clone(),
        }
    }

    fn readable(calls: Result<Vec<LogCall>, RuntimeError>, start: Option<u64>) -> LogAccess {
        let engine = FakeEngine::new();
        engine.set_log_calls(calls);
        LogAccess::Readable {
            engine: Box::new(engine.connector("agent_A")),
            start,
        }
    }

    fn order(&self, name: &str, calls: Result<Vec<LogCall>, RuntimeError>) -> Order {
        (instance(name), Self::readable(calls, Some(1)))
    }

    /// Requests these logs under `id`.
    fn start_all(&mut self, id: &str, follow: bool, orders: Vec<Order>) {
        let (instances, availabilities): (Vec<_>, VecDeque<_>) = orders.into_iter().unzip();
        let availabilities = RefCell::new(availabilities);
        let wanted = LogsRequest {
            instances,
            follow: Some(follow),
            ..LogsRequest::default()
        };
        self.streams.start(id, &wanted, |_| {
            availabilities.borrow_mut().pop_front().unwrap()
        });
    }

    /// A call that prints one line.
    fn one_line(&self) -> Result<Vec<LogCall>, RuntimeError> {
        Ok(vec![self.call("sh", "echo line", "")])
    }

    /// Starts one stream under the id `logs`.
    fn start(&mut self, name: &str, script: &str) {
        let order = self.order(name, Ok(vec![self.call("sh", script, "")]));
        self.start_all("logs", false, vec![order]);
    }

    /// The next message, which has to come.
    fn message(&self) -> ToServer {
        loop {
            if let Some(message) = self.reader.next() {
                return message;
            }
            self.reader
                .woken()
                .recv_timeout(AMPLE)
                .expect("a message comes");
        }
    }

    /// All lines until the stream of `name` ends.
    fn lines_until_stop(&self, name: &str) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            match self.message() {
                ToServer::LogEntries {
                    request_id,
                    entries,
                } => {
                    assert_eq!(request_id, "logs");
                    assert!(entries.iter().all(|entry| entry.instance == instance(name)));
                    lines.extend(entries.into_iter().map(|entry| entry.message));
                }
                ToServer::LogsStop {
                    request_id,
                    instance: ended,
                } => {
                    assert_eq!((request_id.as_str(), ended), ("logs", instance(name)));
                    return lines;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// The only line of the next message.
    fn line(&self) -> String {
        match self.message() {
            ToServer::LogEntries { mut entries, .. } => {
                assert_eq!(entries.len(), 1);
                entries.remove(0).message
            }
            other => panic!("{other:?}"),
        }
    }

    /// Waits until all threads have ended; nothing is forgotten.
    fn wait_for_threads(&self) {
        let begin = SystemClock.now();
        let goes_on = |one: &Running| {
            one.thread
                .as_ref()
                .is_some_and(|thread| !thread.has_ended())
        };
        while self.streams.running.iter().any(goes_on) {
            assert!(SystemClock.now() - begin < AMPLE, "a stream goes on");
            std::thread::yield_now();
        }
    }

    /// Waits until no stream runs any more.
    fn ended(&mut self) {
        let begin = SystemClock.now();
        while !self.streams.running.is_empty() {
            assert!(SystemClock.now() - begin < AMPLE, "a stream goes on");
            std::thread::yield_now();
            self.streams.forget_ended();
        }
    }
}

fn wait_until_gone(pid: &str) {
    let begin = SystemClock.now();
    while Path::new("/proc").join(pid.trim()).exists() {
        assert!(SystemClock.now() - begin < AMPLE, "process {pid} lives on");
        std::thread::yield_now();
    }
}

#[test]
fn lines_of_both_outputs_come_in_order_and_their_end_after_them() {
    let mut fixture = Fixture::new();
    fixture.start(
        "web",
        "echo 1; echo 2 >&2; printf '3\\n\\n\\377\\n'; printf end",
    );
    assert_eq!(
        fixture.lines_until_stop("web"),
        ["1", "2", "3", "", "\u{fffd}", "end"]
    );
    fixture.ended();
    assert!(fixture.streams.running.is_empty());
}

#[test]
fn containers_of_a_pod_are_told_apart() {
    let mut fixture = Fixture::new();
    let calls = vec![
        fixture.call("sh", "echo 1; echo 2", "[a] "),
        fixture.call("sh", "echo 3", "[b] "),
    ];
    let order = fixture.order("web", Ok(calls));
    fixture.start_all("logs", false, vec![order]);
    let mut lines = fixture.lines_until_stop("web");
    lines.sort();
    assert_eq!(lines, ["[a] 1", "[a] 2", "[b] 3"]);
}

#[test]
fn what_cannot_be_read_ends_at_once_and_says_why() {
    let mut fixture = Fixture::new();
    let unknown = (
        instance("web"),
        LogAccess::Never("it is unknown".to_owned()),
    );
    let failed = Err(RuntimeError::Failed("database is locked".into()));
    let missing = Ok(vec![fixture.call("/no/such/program", "", "")]);
    let orders = [
        unknown,
        fixture.order("web", failed),
        fixture.order("web", missing),
    ];
    let expected = [
        "[no log: it is unknown]",
        "[no log: database is locked]",
        "[no log: cannot start '/no/such/program': No such file or directory (os error 2)]",
    ];
    for (order, expected) in orders.into_iter().zip(expected) {
        fixture.start_all("logs", false, vec![order]);
        assert_eq!(fixture.lines_until_stop("web"), [expected]);
    }
}

/// Both engines' errors, after lines or without any, and a program that writes the same.
#[test]
fn what_an_engine_says_instead_of_a_log_is_a_reason() {
    let none = "Error: this container is using the 'none' log driver, cannot read logs";
    let fatal = "time=\"2026-01-01T00:00:00Z\" level=fatal msg=\"no such container: x\"";
    let refusal = |text: &str| format!("echo '{}' >&2; exit 125", text.replace('\'', "'\\''"));
    for (script, expected) in [
        (refusal(none), vec![format!("[no log: {none}]")]),
        (refusal(fatal), vec![format!("[no log: {fatal}]")]),
        (
            format!("echo 1; {}", refusal(none)),
            vec!["1".to_owned(), format!("[no log: {none}]")],
        ),
        (
            "echo 1; exit 3".to_owned(),
            vec![
                "1".to_owned(),
                "[no log: 'sh logs' ended with exit status: 3]".to_owned(),
            ],
        ),
        (
            "echo 'Error: mine'; echo 'Error: last'".to_owned(),
            vec!["Error: mine".to_owned(), "Error: last".to_owned()],
        ),
    ] {
        let mut fixture = Fixture::new();
        fixture.start("web", &script);
        let mut entries = Vec::new();
        while let ToServer::LogEntries { entries: some, .. } = fixture.message() {
            entries.extend(some);
        }
        let messages: Vec<&str> = entries.iter().map(|entry| &*entry.message).collect();
        assert_eq!(messages, expected, "{script}");
        for entry in &entries {
            assert_eq!(
                entry.is_reason,
                entry.message.starts_with("[no log: "),
                "{script}"
            );
        }
    }
}

#[test]
fn an_error_of_a_program_that_goes_on_is_a_line_of_its_log() {
    let mut fixture = Fixture::new();
    fixture.start("web", "echo 'Error: mine'; exec sleep 600");
    assert_eq!(fixture.line(), "Error: mine");
}

#[test]
fn one_container_of_a_pod_without_a_log_hides_no_other() {
    let mut fixture = Fixture::new();
    let refused = "echo 'Error: no log driver' >&2; exit 125";
    let calls = vec![
        fixture.call("sh", refused, "[a] "),
        fixture.call("sh", "echo 3", "[b] "),
    ];
    let order = fixture.order("web", Ok(calls));
    fixture.start_all("logs", false, vec![order]);
    let mut lines = fixture.lines_until_stop("web");
    lines.sort();
    assert_eq!(lines, ["[b] 3", "[no log: [a] Error: no log driver]"]);
}

#[test]
fn a_log_waits_for_its_container_while_the_start_is_under_way() {
    for follow in [false, true] {
        let mut fixture = Fixture::new();
        fixture.start_all("logs", follow, vec![(instance("web"), LogAccess::Starting)]);
        fixture.streams.update_waiting(|_| LogAccess::Starting);
        assert!(fixture.streams.running.is_empty() && fixture.reader.next().is_none());
        let calls = fixture.one_line();
        let calls = RefCell::new(Some(calls));
        fixture
            .streams
            .update_waiting(|_| Fixture::readable(calls.borrow_mut().take().unwrap(), Some(1)));
        assert_eq!(fixture.lines_until_stop("web"), ["line"]);
        fixture
            .streams
            .update_waiting(|_| panic!("nothing waits any more"));
    }
}

#[test]
fn a_start_that_waits_is_awaited_by_those_who_follow() {
    let later = || LogAccess::Later("it waits for 'db'".to_owned());
    let mut fixture = Fixture::new();
    fixture.start_all("logs", false, vec![(instance("web"), later())]);
    assert_eq!(
        fixture.lines_until_stop("web"),
        ["[no log: it waits for 'db']"]
    );
    // The same when its start was under way first.
    fixture.start_all("logs", false, vec![(instance("web"), LogAccess::Starting)]);
    fixture.streams.update_waiting(|_| later());
    assert_eq!(
        fixture.lines_until_stop("web"),
        ["[no log: it waits for 'db']"]
    );
    fixture.start_all("logs", true, vec![(instance("web"), later())]);
    fixture.streams.update_waiting(|_| later());
    assert!(fixture.reader.next().is_none());
    fixture
        .streams
        .update_waiting(|_| LogAccess::Never("it was deleted".to_owned()));
    assert_eq!(
        fixture.lines_until_stop("web"),
        ["[no log: it was deleted]"]
    );
}

#[test]
fn a_log_that_waits_ends_silently_with_its_request() {
    type End = fn(&mut LogStreams);
    let ends: [End; 2] = [|streams| streams.cancel("logs"), LogStreams::cancel_all];
    for end in ends {
        let mut fixture = Fixture::new();
        fixture.start_all("logs", true, vec![(instance("web"), LogAccess::Starting)]);
        fixture.streams.cancel("another");
        end(&mut fixture.streams);
        fixture
            .streams
            .update_waiting(|_| panic!("nothing waits any more"));
        assert!(fixture.reader.next().is_none());
    }
}

/// The containers of a workload that is restarted go at any time, so a stream may find none.
#[test]
fn a_log_without_container_waits_for_the_next_start_or_ends() {
    let mut fixture = Fixture::new();
    let next_start: fn(&Fixture) -> LogAccess =
        |fixture| Fixture::readable(fixture.one_line(), Some(2));
    let none: fn(&Fixture) -> LogAccess = |_| LogAccess::Never("it ended".to_owned());
    let same_start: fn(&Fixture) -> LogAccess =
        |fixture| Fixture::readable(fixture.one_line(), Some(1));
    let later: fn(&Fixture) -> LogAccess = |_| LogAccess::Starting;
    for (now, expected) in [
        (next_start, "line"),
        (none, "[no log: it ended]"),
        (same_start, "[no log: it has no container]"),
        (later, "line"),
    ] {
        let order = fixture.order("web", Ok(vec![]));
        fixture.start_all("logs", true, vec![order]);
        let event = fixture.scheduler.recv_timeout(AMPLE).unwrap();
        let SchedulerEvent::NoLog {
            request_id,
            instance: found,
        } = event
        else {
            panic!("{event:?}")
        };
        let available = now(&fixture);
        fixture.streams.found_nothing(
            &request_id,
            &found,
            available,
            "it has no container".to_owned(),
        );
        let calls = RefCell::new(Some(fixture.one_line()));
        fixture
            .streams
            .update_waiting(|_| Fixture::readable(calls.borrow_mut().take().unwrap(), Some(2)));
        assert_eq!(fixture.lines_until_stop("web"), [expected]);
        // A request that was cancelled meanwhile stays so.
        fixture.streams.cancel("logs");
        let late = LogAccess::Never("late".to_owned());
        fixture
            .streams
            .found_nothing(&request_id, &found, late, String::new());
        assert!(fixture.reader.next().is_none());
    }
}

/// The thread of a stream may be seen to have ended before its event is handled.
#[test]
fn stream_without_container_is_kept_until_that_is_heard() {
    let mut fixture = Fixture::new();
    let order = fixture.order("web", Ok(vec![]));
    fixture.start_all("logs", false, vec![order]);
    fixture.wait_for_threads();
    // Another request comes first.
    let other = (instance("db"), LogAccess::Never("it is unknown".to_owned()));
    fixture.start_all("other", false, vec![other]);
    fixture.streams.forget_ended();
    while fixture.reader.next().is_some() {}
    let event = fixture.scheduler.recv_timeout(AMPLE).unwrap();
    let SchedulerEvent::NoLog {
        request_id,
        instance: found,
    } = event
    else {
        panic!("{event:?}")
    };
    let none = LogAccess::Never("it ended".to_owned());
    fixture
        .streams
        .found_nothing(&request_id, &found, none, String::new());
    assert_eq!(fixture.lines_until_stop("web"), ["[no log: it ended]"]);
    assert!(fixture.streams.running.is_empty());
}

#[test]
fn a_cancelled_stream_ends_its_process_and_says_nothing_more() {
    type End = fn(&mut LogStreams);
    let again: End = |streams| {
        streams.start("logs", &LogsRequest::default(), |_| {
            panic!("nothing is requested")
        })
    };
    let ends: [End; 3] = [
        |streams| streams.cancel("logs"),
        LogStreams::cancel_all,
        again,
    ];
    for end in ends {
        let mut fixture = Fixture::new();
        fixture.start(
            "web",
            "trap '' TERM; echo $$; while true; do sleep 600; done",
        );
        let pid = fixture.line();
        fixture.streams.cancel("another");
        assert_eq!(fixture.streams.running.len(), 1);
        end(&mut fixture.streams);
        wait_until_gone(&pid);
        assert!(fixture.streams.running.is_empty());
        assert!(fixture.reader.next().is_none());
    }
}

#[test]
fn the_end_of_the_agent_ends_the_processes_and_waits_for_that() {
    let mut fixture = Fixture::new();
    fixture.start("web", "echo $$; exec sleep 600");
    let pid = fixture.line();
    drop(fixture.streams);
    wait_until_gone(&pid);
}

#[test]
fn unread_flood_takes_bounded_memory_and_delays_no_other() {
    let mut fixture = Fixture::new();
    let flood = fixture.order("flood", Ok(vec![fixture.call("sh", "yes x", "")]));
    let calm = fixture.order("web", Ok(vec![fixture.call("sh", "echo 1", "")]));
    fixture.start_all("flood", false, vec![flood]);
    // One message of the flood waits and nothing more is read, so that the other is next whatever
    // the flood does.
    while fixture.reader.log_messages() == 0 {
        fixture.reader.woken().recv_timeout(AMPLE).unwrap();
    }
    fixture.start_all("logs", false, vec![calm]);
    while fixture.reader.log_messages() < 2 {
        fixture.reader.woken().recv_timeout(AMPLE).unwrap();
    }
    let ToServer::LogEntries {
        request_id,
        entries,
    } = fixture.message()
    else {
        panic!("lines come")
    };
    assert!(
        request_id == "flood" && entries.len() <= 4096,
        "{} lines",
        entries.len()
    );
    assert_eq!(fixture.line(), "1");
    // Nothing is lost: unread lines wait in the pipe.
    for _ in 0..100 {
        if let ToServer::LogEntries { entries, .. } = fixture.message() {
            assert!(
                entries
                    .iter()
                    .all(|entry| entry.message == "x" && entry.instance == instance("flood"))
            );
        }
        assert!(fixture.reader.log_messages() <= 2);
    }
}

#[test]
fn without_a_server_streams_end_by_themselves() {
    let mut fixture = Fixture::new();
    fixture.start("web", "echo $$; exec yes x");
    let ToServer::LogEntries { entries, .. } = fixture.message() else {
        panic!("lines come")
    };
    fixture.reader.disconnected();
    fixture.streams.cancel_all(); // As the scheduler does when it hears of it.
    wait_until_gone(&entries[0].message);
    assert_eq!(fixture.reader.log_messages(), 0);
    fixture.start("web", "echo 1");
    assert!(fixture.reader.next().is_none());
}

#[test]
fn a_line_that_is_too_long_is_cut_and_said_to_be_cut() {
    let mut fixture = Fixture::new();
    fixture.start(
        "web",
        "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo next",
    );
    let lines = fixture.lines_until_stop("web");
    assert_eq!(lines.len(), 3);
    assert!(lines[0].ends_with(" [truncated]") && lines[0].len() <= LOG_MESSAGE_MAX);
    assert!(
        lines[1].contains("truncated due to exceeding the maximum 2 MB size"),
        "{}",
        lines[1]
    );
    assert_eq!(lines[2], "next");
}

#[test]
fn streams_at_the_same_time_have_a_bound() {
    for waits in [false, true] {
        let mut fixture = Fixture::new();
        let order = |fixture: &Fixture| match waits {
            true => (instance("web"), LogAccess::Starting),
            false => fixture.order("web", Ok(vec![fixture.call("sh", "sleep 600", "")])),
        };
        let orders = (0..=LOG_STREAMS_MAX).map(|_| order(&fixture)).collect();
        fixture.start_all("logs", true, orders);
        assert_eq!(
            fixture.streams.running.len() + fixture.streams.waiting.len(),
            LOG_STREAMS_MAX
        );
        assert_eq!(
            fixture.lines_until_stop("web"),
            [format!(
                "[no log: this agent reads {LOG_STREAMS_MAX} others at the moment]"
            )]
        );
    }
}

#[test]
fn one_workload_has_a_share_of_the_log_streams() {
    let mut fixture = Fixture::new();
    let mut start = |id: &str, count: usize| {
        // Every second one waits for its container.
        let order = |number: usize| match number % 2 {
            0 => fixture.order("web", Ok(vec![fixture.call("sh", "sleep 600", "")])),
            _ => (instance("web"), LogAccess::Starting),
        };
        let orders = (0..count).map(order).collect();
        let before = fixture.streams.running.len() + fixture.streams.waiting.len();
        fixture.start_all(id, true, orders);
        fixture.streams.running.len() + fixture.streams.waiting.len() - before
    };
    for number in 0..LOG_STREAMS_OF_WORKLOAD {
        assert_eq!(start(&format!("agent_B@greedy@{number}@x"), 1), 1);
    }
    assert_eq!(start("agent_B@greedy@more", 2), 0);
    assert_eq!(start("agent_B@modest@1", 1), 1);
    assert_eq!(start("agent_C@greedy@1", 1), 1, "of another node");
    let left = LOG_STREAMS_MAX - LOG_STREAMS_OF_WORKLOAD - 2;
    assert_eq!(start("commander-conn-1@logs@x@y", LOG_STREAMS_MAX), left);
}
