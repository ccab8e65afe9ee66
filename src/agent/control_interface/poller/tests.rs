//! Tests of the loop with real FIFOs and a manual clock, one turn at a time, the test being the
//! workload.

use super::super::mailbox::{UNREAD_BYTES, WAITING_BYTES};
use super::super::{ControlHub, ControlInterface, FOLDER};
use super::*;
use crate::limits::CONTROL_MESSAGE_TIME;
use crate::uplink_outbox::{UplinkReader, uplink_outbox};
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::access_rules::{AccessRule, ControlInterfaceAccess, Operation};
use ankaios_model::messages::{
    FromWorkload, LogEntry, ReadState, RequestContent, ResponseContent, ToServer, ToWorkload,
};
use ankaios_model::names::InstanceName;
use ankaios_model::node::Node;
use ankaios_model::refusal::ErrorResponse;
use ankaios_wire::delimited::workload_side::{frame as to_agent, read_message};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{read, write};
use std::path::PathBuf;

struct Rig {
    poller: Poller<ManualClock>,
    clock: ManualClock,
    hub: ControlHub,
    uplink: UplinkReader,
    folder: tempfile::TempDir,
}

/// The test as a workload: never waits, whichever end it opens.
struct Client {
    output: Option<OwnedFd>,
    input: Option<OwnedFd>,
    folder: PathBuf,
    unread: Vec<u8>,
}

impl Rig {
    fn new() -> Self {
        let (outbox, uplink) = uplink_outbox();
        let hub = ControlHub::new(outbox, 1 << 20).unwrap();
        let clock = ManualClock::new();
        let poller = Poller::new(hub.shared.clone(), clock.clone());
        uplink.connected();
        Self {
            poller,
            clock,
            hub,
            uplink,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn open(&mut self, workload: &str) -> ControlInterface {
        let rule = AccessRule::State {
            operation: Operation::Read,
            filter_masks: vec!["*".to_owned()],
        };
        let access = ControlInterfaceAccess {
            allow_rules: vec![rule],
            deny_rules: vec![],
        };
        let folder = self.folder.path().join(workload).join(FOLDER);
        let interface = self
            .hub
            .open(&workload.into(), folder, &access, false)
            .unwrap();
        self.turns();
        interface
    }

    fn client(&self, workload: &str) -> Client {
        let folder = self.folder.path().join(workload).join(FOLDER);
        let mut client = Client {
            output: None,
            input: None,
            folder,
            unread: Vec::new(),
        };
        client.open_input();
        client.open_output();
        client
    }

    /// A workload that has sent a hello.
    fn greeted(&mut self, workload: &str) -> (ControlInterface, Client) {
        let interface = self.open(workload);
        let mut client = self.client(workload);
        self.send(&mut client, hello());
        assert_eq!(client.received(), [ToWorkload::Accepted]);
        (interface, client)
    }

    fn send(&mut self, client: &mut Client, message: FromWorkload) {
        client.send(message);
        self.turns();
    }

    /// Runs the loop until it has nothing to do at the present time.
    fn turns(&mut self) {
        for _ in 0..8 {
            assert!(self.poller.turn(None));
        }
    }

    /// Advances the clock until nothing is due within `limit`.
    fn pass(&mut self, limit: Duration) {
        let end = self.clock.now() + limit;
        for _ in 0..10_000 {
            self.turns();
            let now = self.clock.now();
            match self.poller.due(now).filter(|due| *due <= end) {
                Some(due) => self.clock.advance(due.saturating_duration_since(now)),
                None => return self.clock.advance(end.saturating_duration_since(now)),
            }
        }
        panic!("the loop finds no rest");
    }

    /// All messages that `client` receives when it reads until none is left.
    fn received(&mut self, client: &mut Client) -> Vec<ToWorkload> {
        for _ in 0..1_000 {
            let before = client.unread.len();
            self.pass(Duration::from_millis(200));
            client.read();
            if client.unread.len() == before {
                return client.received();
            }
        }
        panic!("there is no end");
    }

    /// Delivers log lines to `w`, for its open requests with these ids.
    fn deliver(&mut self, ids: &[&str], bytes: usize) {
        ids.iter().for_each(|id| self.hub.follow("w", id));
        ids.iter()
            .for_each(|id| self.deliver_to("w", lines(id, bytes)));
        self.turns();
    }

    /// A response for the present generation of a workload.
    fn deliver_to(&self, workload: &str, response: Response) {
        let id = self.hub.full_id(workload, &response.id);
        self.hub.deliver(Response { id, ..response });
    }

    /// The ids of all requests that were sent, without the generation.
    fn requests(&self) -> Vec<String> {
        self.full_requests()
            .iter()
            .map(|id| without_generation(id))
            .collect()
    }

    fn full_requests(&self) -> Vec<String> {
        std::iter::from_fn(|| self.uplink.next())
            .map(|message| match message {
                ToServer::Request(request) => request.id,
                other => panic!("a request is expected, not {other:?}"),
            })
            .collect()
    }
}

impl Client {
    fn open_output(&mut self) {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK;
        self.output = Some(open(self.folder.join("output"), flags, Mode::empty()).unwrap());
    }

    fn open_input(&mut self) {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        self.input = Some(open(self.folder.join("input"), flags, Mode::empty()).unwrap());
    }

    fn send(&mut self, message: FromWorkload) {
        let bytes = to_agent(message);
        assert_eq!(
            write(self.output.as_ref().unwrap(), &bytes),
            Ok(bytes.len())
        );
    }

    fn read(&mut self) {
        let mut room = vec![0; 1 << 20];
        while let Ok(count @ 1..) = read(self.input.as_ref().unwrap(), &mut room) {
            self.unread.extend_from_slice(&room[..count]);
        }
    }

    /// All messages that were received. Panics if one is incomplete.
    fn received(&mut self) -> Vec<ToWorkload> {
        self.read();
        let messages = split(&self.unread);
        self.unread.clear();
        messages
            .into_iter()
            .map(|bytes| read_message(&bytes).unwrap())
            .collect()
    }
}

fn without_generation(id: &str) -> String {
    let (workload, rest) = id.split_once('@').unwrap();
    format!("{workload}@{}", rest.split_once('@').unwrap().1)
}

fn split(stream: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    let mut rest = stream;
    while !rest.is_empty() {
        let prefix = rest
            .iter()
            .position(|byte| byte & 0x80 == 0)
            .expect("a whole length")
            + 1;
        let length = rest[..prefix]
            .iter()
            .rev()
            .fold(0, |length, byte| length << 7 | usize::from(byte & 0x7f));
        messages.push(rest[prefix..prefix + length].to_vec());
        rest = &rest[prefix + length..];
    }
    messages
}

fn hello() -> FromWorkload {
    FromWorkload::Hello {
        version: "1.0.0".to_owned(),
    }
}

fn ask(id: &str) -> FromWorkload {
    let content = RequestContent::CompleteState(ReadState {
        masks: vec!["agents".to_owned()],
        subscribe: false,
    });
    FromWorkload::Request(Request {
        id: id.to_owned(),
        content,
    })
}

fn lines(id: &str, bytes: usize) -> Response {
    let entry = LogEntry::line(InstanceName::with_id("w", "1", "A"), "x".repeat(bytes));
    Response {
        id: id.to_owned(),
        content: ResponseContent::LogEntries(vec![entry]),
    }
}

fn answer(id: &str) -> Response {
    Response {
        id: id.to_owned(),
        content: ResponseContent::Error("no".into()),
    }
}

#[test]
fn hello_right_after_a_reopened_pipe_is_not_lost() {
    // It is sent before or after the agent reads, with something left unread or not.
    for (early, left) in [(false, &[][..]), (true, &[]), (false, &[0xff; 3])] {
        let mut rig = Rig::new();
        let _interface = rig.open("w");
        let mut client = rig.client("w");
        rig.send(&mut client, FromWorkload::Empty);
        assert!(matches!(client.received()[..], [ToWorkload::Closed { .. }]));
        assert_eq!(write(client.output.as_ref().unwrap(), left), Ok(left.len()));
        client.output = None;
        let ready = rig
            .poller
            .wait(None, Some(Duration::ZERO))
            .unwrap()
            .unwrap();
        client.open_output();
        if early {
            client.send(hello());
        }
        let shared = rig.poller.shared.clone();
        for (link, ready) in rig.poller.links.iter_mut().zip(ready) {
            link.on_events(ready, rig.clock.now(), &shared, &mut rig.poller.buffer);
        }
        if !early {
            client.send(hello());
        }
        rig.turns();
        assert_eq!(
            client.received(),
            [ToWorkload::Accepted],
            "early: {early}, left: {left:?}"
        );
    }
}

// [utest->swdd~agent-listens-for-requests-from-pipe~1]
// [utest->swdd~agent-forward-responses-to-control-interface-pipe~1]
// [utest->swdd~agent-uses-id-prefix-forward-control-interface-response-correct-workload~1]
// [utest->swdd~agent-remove-id-prefix-forwarding-control-interface-response~1]
#[test]
fn requests_go_out_and_answers_come_back() {
    let mut rig = Rig::new();
    let (_one, mut client) = rig.greeted("one");
    let (_two, mut other) = rig.greeted("two");
    client.send(ask("a@b"));
    rig.send(&mut other, ask("a"));
    assert_eq!(rig.requests(), ["one@a@b", "two@a"]);
    rig.deliver_to("one", answer("a@b"));
    rig.turns();
    assert_eq!(client.received(), [ToWorkload::Response(answer("a@b"))]);
    assert_eq!(other.received(), []);
    assert_eq!(
        rig.poller.due(rig.clock.now()),
        None,
        "an idle interface costs nothing"
    );
}

#[test]
fn response_to_the_only_request_needs_no_turn_of_the_loop() {
    let mut rig = Rig::new();
    let (_interface, mut client) = rig.greeted("w");
    for id in ["a", "b", "c"] {
        rig.send(&mut client, ask(id));
        rig.deliver_to("w", answer(id));
        if id == "a" {
            assert_eq!(client.received(), [ToWorkload::Response(answer("a"))]);
        }
    }
    // The workload has not read the one before it.
    assert_eq!(client.received(), [ToWorkload::Response(answer("b"))]);
    rig.turns();
    assert_eq!(client.received(), [ToWorkload::Response(answer("c"))]);
}

// [utest->swdd~agent-handles-control-interface-input-pipe-not-read~1]
#[test]
fn frame_that_was_cut_is_continued_or_forgotten() {
    let mut rig = Rig::new();
    let (_interface, mut client) = rig.greeted("w");
    let large = 3_000_000;
    rig.deliver(&["a", "b"], large);
    let ids = |messages: Vec<ToWorkload>| -> Vec<String> {
        messages
            .into_iter()
            .map(|message| {
                if let ToWorkload::Response(answer) = message {
                    answer.id
                } else {
                    panic!()
                }
            })
            .collect()
    };
    // A slow reader gets everything, in order.
    assert_eq!(ids(rig.received(&mut client)), ["a", "b"]);
    // One that goes in the middle of a message is followed by one that begins with the next.
    rig.deliver(&["c", "d"], large);
    client.input = None;
    rig.turns();
    client.open_input();
    assert_eq!(ids(rig.received(&mut client)), ["d"]);
}

// [utest->swdd~agent-handles-control-interface-input-pipe-not-read~1]
#[test]
fn requests_are_read_while_the_workload_reads_no_answers() {
    let mut rig = Rig::new();
    let (_interface, mut client) = rig.greeted("w");
    rig.deliver(&["0", "1", "2", "3", "4", "5", "6", "7"], WAITING_BYTES / 9);
    let bytes = to_agent(ask("half"));
    write(client.output.as_ref().unwrap(), &bytes[..4]).unwrap();
    rig.turns();
    rig.deliver_to("w", answer("between"));
    rig.turns();
    write(client.output.as_ref().unwrap(), &bytes[4..]).unwrap();
    rig.turns();
    assert_eq!(
        rig.requests(),
        ["w@half"],
        "what was read before the answer came is not lost"
    );
    assert_eq!(rig.received(&mut client).len(), 9);
}

/// Clients may take all that the pipe holds and then wait for the pipe although they have messages
/// left.
#[test]
fn second_message_is_written_after_the_first_was_read() {
    for bytes in [10, 100_000] {
        let mut rig = Rig::new();
        let (_interface, mut client) = rig.greeted("w");
        rig.deliver(&["a", "b", "c"], bytes);
        for id in ["a", "b", "c"] {
            rig.pass(Duration::from_millis(200));
            assert_eq!(client.received(), [ToWorkload::Response(lines(id, bytes))]);
        }
        assert_eq!(rig.poller.due(rig.clock.now()), None);
    }
}

#[test]
fn a_reader_that_comes_late_gets_what_waited() {
    let mut rig = Rig::new();
    let _interface = rig.open("w");
    let mut client = rig.client("w");
    client.input = None;
    rig.send(&mut client, hello());
    rig.deliver_to("w", answer("a"));
    rig.pass(Duration::from_millis(350));
    let due = rig.poller.due(rig.clock.now()).unwrap();
    assert!(
        due <= rig.clock.now() + READER_RETRY_MAX,
        "a reader that blocks in open() waits for this"
    );
    rig.pass(2 * READER_AWAY);
    let due = rig.poller.due(rig.clock.now()).unwrap();
    assert!(
        due > rig.clock.now() + READER_RETRY_MAX,
        "a workload that never reads is tried seldom"
    );
    client.open_input();
    rig.pass(READER_RETRY_AWAY);
    assert_eq!(
        rig.received(&mut client),
        [ToWorkload::Accepted, ToWorkload::Response(answer("a"))]
    );
    assert_eq!(rig.poller.due(rig.clock.now()), None);
}

#[test]
fn a_new_user_of_the_pipes_gets_nothing_of_the_earlier_one() {
    let mut rig = Rig::new();
    let (_interface, mut client) = rig.greeted("w");
    rig.deliver(&["a", "b", "c"], 900_000);
    client.output = None;
    rig.turns();
    client.input = None;
    client.open_input();
    client.open_output();
    rig.deliver_to("w", answer("stale"));
    client.send(hello());
    rig.pass(Duration::from_millis(200));
    assert_eq!(client.received(), [ToWorkload::Accepted]);
    rig.deliver_to("w", answer("new"));
    rig.turns();
    assert_eq!(client.received(), [ToWorkload::Response(answer("new"))]);
}

#[test]
fn restarted_container_gets_clean_pipes_and_must_send_a_hello() {
    let mut rig = Rig::new();
    let (interface, mut client) = rig.greeted("w");
    rig.hub.follow("w", "kept");
    rig.deliver(&["old"], 1000);
    rig.send(&mut client, ask("a"));
    client.send(ask("unread"));
    (client.output, client.input) = (None, None);
    rig.requests();
    let stale = ["kept", "stale"].map(|id| rig.hub.full_id("w", id));
    interface.restart();
    rig.turns();
    let cancelled = ["w@kept", "w@kept", "w@old", "w@old"];
    assert_eq!(
        rig.requests(),
        cancelled,
        "what the earlier one asked for, logs and events"
    );
    rig.hub.deliver(lines(&stale[0], 10));
    rig.hub.deliver(answer(&stale[1]));
    let mut next = rig.client("w");
    rig.send(&mut next, ask("without hello"));
    assert_eq!(
        next.received(),
        [ToWorkload::Closed {
            reason: "Initial Hello missing!".to_owned()
        }]
    );
    assert_eq!(rig.requests(), [] as [&str; 0]);
}

#[test]
fn garbage_ends_one_session_until_its_user_closes_and_no_other() {
    let mut rig = Rig::new();
    let (_other, mut other) = rig.greeted("other");
    let _interface = rig.open("w");
    for bytes in [
        &[0xff; 12][..],
        &[0x80, 0x80, 0x80, 0x80, 0x80, 2],
        &[1, 0xff],
    ] {
        let mut client = rig.client("w");
        write(client.output.as_ref().unwrap(), bytes).unwrap();
        rig.turns();
        assert_eq!(
            client.received(),
            [ToWorkload::Closed {
                reason: "Could not decode protobuf data".to_owned()
            }]
        );
        rig.send(&mut client, hello());
        assert_eq!(
            client.received(),
            [],
            "everything is ignored until the pipe is closed"
        );
        drop(client);
        rig.turns();
    }
    let mut client = rig.client("w");
    client.send(hello());
    rig.send(&mut other, ask("fine"));
    assert_eq!(client.received(), [ToWorkload::Accepted]);
    assert_eq!(rig.requests(), ["other@fine"]);
}

#[test]
fn thousands_of_opens_and_closes_leave_nothing_behind() {
    let mut rig = Rig::new();
    let _interface = rig.open("w");
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    for round in 0..2_000 {
        let mut client = rig.client("w");
        match round % 3 {
            0 => client.send(hello()),
            1 => drop(write(client.output.as_ref().unwrap(), &[40, 1, 2])),
            _ => {}
        }
        assert!(rig.poller.turn(None));
    }
    rig.turns();
    // Other tests of this process open and close as well.
    assert!(descriptors() < before + 200, "{before} {}", descriptors());
    let mut client = rig.client("w");
    rig.turns();
    rig.send(&mut client, hello());
    assert_eq!(client.received(), [ToWorkload::Accepted]);
}

#[test]
fn a_message_that_is_never_finished_ends_the_session() {
    let mut rig = Rig::new();
    let (_interface, mut client) = rig.greeted("w");
    write(client.output.as_ref().unwrap(), &[100, 1]).unwrap();
    rig.turns();
    rig.pass(CONTROL_MESSAGE_TIME);
    rig.turns();
    let reason = "A message was not complete within 30 s".to_owned();
    assert_eq!(client.received(), [ToWorkload::Closed { reason }]);
}

/// The server answers each request that was sent. Returns the ids.
fn answer_all(rig: &Rig, bytes: usize) -> Vec<String> {
    let requests = rig.full_requests();
    for id in &requests {
        let content = ResponseContent::Error("x".repeat(bytes).into());
        rig.hub.deliver(Response {
            id: id.clone(),
            content,
        });
    }
    requests.iter().map(|id| without_generation(id)).collect()
}

// [utest->swdd~agent-adds-workload-prefix-id-control-interface-request~1]
#[test]
fn full_id_begins_with_the_workload_whatever_it_writes() {
    let mut rig = Rig::new();
    let (_interface, mut client) = rig.greeted("web");
    for id in ["a", "", "other@a", "@", "agent_A@other@a", "web@web", "1@a"] {
        rig.send(&mut client, ask(id));
        assert_eq!(answer_all(&rig, 1), [format!("web@{id}")]);
        let [ToWorkload::Response(response)] = &rig.received(&mut client)[..] else {
            panic!("one is expected")
        };
        assert_eq!(response.id, id);
    }
}

#[test]
fn flood_of_requests_waits_in_the_pipe_and_delays_no_other() {
    let mut rig = Rig::new();
    let (_greedy, mut greedy) = rig.greeted("greedy");
    let (_modest, mut modest) = rig.greeted("modest");
    for number in 0..50 {
        greedy.send(ask(&number.to_string()));
    }
    rig.turns();
    rig.send(&mut modest, ask("a"));
    assert_eq!(rig.requests(), ["greedy@0", "modest@a"]);
    rig.pass(ANSWER_MAX / 2);
    assert_eq!(rig.requests(), [""; 0], "nothing is answered");
    rig.deliver_to("greedy", answer("0"));
    rig.turns();
    assert_eq!(rig.requests(), ["greedy@1"], "as soon as one is answered");
    rig.pass(ANSWER_MAX);
    assert_eq!(rig.requests(), ["greedy@2"], "some server may never answer");
    rig.deliver_to("greedy", answer("2"));
    rig.deliver_to("greedy", answer("1"));
    rig.turns();
    assert_eq!(
        rig.requests(),
        ["greedy@3"],
        "what is overdue delays nothing"
    );
    rig.pass(Duration::from_millis(200));
    let ids = rig
        .received(&mut greedy)
        .into_iter()
        .map(|message| match message {
            ToWorkload::Response(response) => response.id,
            other => panic!("{other:?}"),
        });
    assert_eq!(ids.collect::<Vec<_>>(), ["0", "2", "1"], "and is passed on");
}

#[test]
fn one_request_waits_without_a_server_and_others_fail() {
    let mut rig = Rig::new();
    let (_interface, mut client) = rig.greeted("w");
    rig.send(&mut client, ask("sent"));
    assert_eq!(rig.requests(), ["w@sent"]);
    rig.uplink.disconnected();
    rig.hub.connection_lost();
    let text = |message: ToWorkload| match message {
        ToWorkload::Response(Response {
            id,
            content: ResponseContent::Error(ErrorResponse { text, .. }),
        }) => (id, text),
        other => panic!("an error is expected, not {other:?}"),
    };
    let mut errors = |rig: &mut Rig| {
        rig.received(&mut client)
            .into_iter()
            .map(text)
            .collect::<Vec<_>>()
    };
    let lost = errors(&mut rig);
    assert!(
        lost.len() == 1 && lost[0].0 == "sent" && lost[0].1.contains("was lost before"),
        "{lost:?}"
    );
    let mut other = rig.client("w");
    rig.send(&mut other, large("large", LARGE_REQUEST));
    for id in ["waits", "next"] {
        rig.send(&mut other, ask(id));
    }
    let refused = errors(&mut rig);
    assert_eq!(
        refused.iter().map(|(id, _)| &**id).collect::<Vec<_>>(),
        ["large", "next"]
    );
    assert!(
        refused
            .iter()
            .all(|(_, text)| text.contains("no connection to the server")),
        "{refused:?}"
    );
    rig.uplink.connected();
    assert_eq!(rig.requests(), ["w@waits"]);
}

// [utest->swdd~agent-renews-event-subscriptions~1]
#[test]
fn subscriptions_after_a_reconnect_are_renewed_one_by_one() {
    let mut rig = Rig::new();
    let (_interface, mut client) = rig.greeted("w");
    let ids = ["a", "b", "c"];
    ids.iter().for_each(|id| rig.hub.follow("w", id));
    rig.uplink.disconnected();
    rig.hub.connection_lost();
    let ended = rig.received(&mut client);
    assert_eq!(ended.len(), ids.len(), "logs end: {ended:?}");
    assert!(rig.requests().is_empty(), "there is no connection");
    rig.uplink.connected();
    rig.hub.connected();
    for id in ids {
        rig.received(&mut client);
        assert_eq!(rig.requests(), [format!("w@{id}")]);
        rig.received(&mut client);
        assert!(
            rig.requests().is_empty(),
            "the next one waits for the response"
        );
        let content = ResponseContent::CompleteState {
            state: Node::empty(),
            altered: None,
        };
        rig.hub.deliver(Response {
            id: rig.hub.full_id("w", id),
            content,
        });
        let events = rig.received(&mut client);
        let is_event = |message: &ToWorkload| {
            matches!(
                message,
                ToWorkload::Response(Response {
                    content: ResponseContent::CompleteState {
                        altered: Some(_),
                        ..
                    },
                    ..
                })
            )
        };
        assert!(events.len() == 1 && is_event(&events[0]), "{events:?}");
    }
    rig.received(&mut client);
    assert!(rig.requests().is_empty());
}

fn large(id: &str, bytes: usize) -> FromWorkload {
    let content = RequestContent::CompleteState(ReadState {
        masks: vec!["x".repeat(bytes)],
        subscribe: false,
    });
    FromWorkload::Request(Request {
        id: id.to_owned(),
        content,
    })
}

/// Writes what the pipe takes, and returns the rest.
fn write_some(client: &Client, bytes: &[u8]) -> usize {
    write(client.output.as_ref().unwrap(), bytes).unwrap_or(0)
}

#[test]
fn large_messages_are_read_in_turn_and_small_ones_pass() {
    const BYTES: usize = 300_000;
    let mut rig = Rig::new();
    let names = ["one", "two", "three"];
    let mut clients: Vec<_> = names.iter().map(|name| rig.greeted(name)).collect();
    let (_small, mut small) = rig.greeted("small");
    // Each has a second one behind its first.
    let bytes = [to_agent(large("1", BYTES)), to_agent(large("2", BYTES))].concat();
    let mut written = [0; 3];
    let mut sent = Vec::new();
    let step = |rig: &mut Rig, written: &mut [usize; 3]| {
        for (done, (_, client)) in written.iter_mut().zip(&clients) {
            *done += write_some(client, &bytes[*done..]);
            assert!(rig.poller.turn(None));
            rig.clock.advance(Duration::from_millis(1));
        }
    };
    for _ in 0..40 {
        step(&mut rig, &mut written);
    }
    let begun = written.iter().filter(|done| **done > 3 * PIPE_TURN).count();
    assert_eq!(begun, 1, "{written:?}");
    assert!(
        rig.hub.shared.uplink.has_large_request(),
        "until it is taken"
    );
    rig.send(&mut small, ask("a"));
    for _ in 0..200 {
        let requests = answer_all(&rig, 1);
        assert!(
            requests
                .iter()
                .filter(|id| !id.starts_with("small"))
                .count()
                <= 1,
            "{requests:?}"
        );
        sent.extend(requests);
        step(&mut rig, &mut written);
    }
    let order = [
        "one@1", "small@a", "two@1", "three@1", "one@2", "two@2", "three@2",
    ];
    assert_eq!(sent, order);
    drop(clients.drain(..));
}

#[test]
fn slow_large_message_ends_its_session_while_others_wait() {
    let mut rig = Rig::new();
    let (_slow, mut slow) = rig.greeted("slow");
    let (_other, mut other) = rig.greeted("other");
    let bytes = to_agent(large("1", 200_000));
    write_some(&slow, &bytes[..100]);
    rig.pass(3 * LARGE_TIME);
    assert_eq!(slow.received(), []);
    let mut written = 0;
    for _ in 0..3 {
        written += write_some(&other, &bytes[written..]);
        rig.turns();
    }
    let reason = "A large message was not complete within 2 s while other workloads waited; write it as a whole";
    assert_eq!(
        slow.received(),
        [ToWorkload::Closed {
            reason: reason.to_owned()
        }]
    );
    while written < bytes.len() {
        written += write_some(&other, &bytes[written..]);
        rig.turns();
    }
    assert_eq!(rig.requests(), ["other@1"]);
    assert_eq!(other.received(), []);
}

#[test]
fn requests_of_a_workload_that_does_not_read_wait_until_it_does() {
    const LARGE: usize = UNREAD_BYTES / 2;
    let mut rig = Rig::new();
    let (_interface, mut client) = rig.greeted("w");
    for number in 0..50 {
        client.send(ask(&number.to_string()));
    }
    let mut sent = 0;
    for _ in 0..100 {
        rig.turns();
        sent += answer_all(&rig, LARGE).len();
    }
    // One more is being written.
    assert!((2..=4).contains(&sent), "{sent}");
    let mut received = Vec::new();
    for _ in 0..100 {
        received.extend(rig.received(&mut client));
        answer_all(&rig, LARGE);
    }
    let ids = received.into_iter().map(|message| match message {
        ToWorkload::Response(response) => response.id,
        other => panic!("{other:?}"),
    });
    assert_eq!(
        ids.collect::<Vec<_>>(),
        (0..50).map(|number| number.to_string()).collect::<Vec<_>>(),
        "none is lost"
    );
}

#[test]
fn a_workload_that_only_writes_is_slowed_down_and_not_stopped() {
    let mut rig = Rig::new();
    let (_interface, mut client) = rig.greeted("w");
    client.input = None;
    for number in 0..50 {
        client.send(ask(&number.to_string()));
    }
    let mut sent = Vec::new();
    for _ in 0..100 {
        rig.pass(ANSWER_MAX);
        sent.extend(answer_all(&rig, UNREAD_BYTES));
    }
    assert_eq!(
        sent,
        (0..50)
            .map(|number| format!("w@{number}"))
            .collect::<Vec<_>>()
    );
}

#[test]
fn an_interface_that_ended_is_let_go() {
    let mut rig = Rig::new();
    let (interface, client) = rig.greeted("w");
    interface.end();
    rig.turns();
    assert!(rig.poller.links.is_empty());
    assert!(!client.folder.exists());
    let wrote = write(client.output.as_ref().unwrap(), b"x");
    assert_eq!(wrote, Err(Errno::PIPE));
}

#[test]
fn the_thread_ends_when_the_agent_does() {
    let (outbox, _uplink) = uplink_outbox();
    let hub = ControlHub::new(outbox, 1 << 20).unwrap();
    let (stop, running) = rustix::pipe::pipe().unwrap();
    let thread = hub
        .start(
            ankaios_platform::clock::SystemClock,
            stop,
            &mut ankaios_platform::watchdog::WatchedThreads::new(|_| {}),
        )
        .unwrap();
    drop(running);
    assert!(ankaios_platform::threads::join_all([thread], Duration::from_secs(180)).is_empty());
}
