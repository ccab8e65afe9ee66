//! Tests of one session: every message, every reason, one call at a time.

use super::*;
use ankaios_fakes::log_lines::{lines_of, suppressed};
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::access_rules::{AccessRule, ControlInterfaceAccess, Operation};
use ankaios_model::messages::{ReadState, UpdateState};
use ankaios_model::node::Node;
use ankaios_model::refusal::ErrorResponse;
use ankaios_platform::clock::Clock;
use ankaios_platform::limits::{CONTROL_MESSAGE_MAX, LOG_SOURCE_LINES, STACK_LARGE};
use ankaios_wire::delimited::workload_side::frame;

/// What a session did, in order.
#[derive(Debug, Clone, PartialEq)]
enum Did {
    Greeted(ToWorkload),
    Answered(Response),
    Began,
    Forwarded(Request),
}

#[derive(Default)]
struct World {
    did: Vec<Did>,
    full: bool,
    /// How long the last request had waited.
    held: Duration,
}

struct Rig {
    session: ControlSession,
    world: World,
    clock: ManualClock,
}

impl Rig {
    fn new() -> Self {
        let rule = |operation, mask: &str| AccessRule::State {
            operation,
            filter_masks: vec![mask.to_owned()],
        };
        let allow_rules = vec![
            rule(Operation::Read, "agents"),
            rule(Operation::Write, "desiredState"),
        ];
        let authorizer = Authorizer::new(&ControlInterfaceAccess {
            allow_rules,
            deny_rules: vec![],
        });
        let session = ControlSession::new("web".into(), authorizer, CONTROL_MESSAGE_MAX);
        Self {
            session,
            world: World::default(),
            clock: ManualClock::new(),
        }
    }

    fn established() -> Self {
        let mut rig = Self::new();
        rig.hello("1.0.0");
        rig.did();
        rig
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.session.on_bytes(bytes);
        self.act();
    }

    fn act(&mut self) {
        let now = self.clock.now();
        while let Some(effect) = self.session.next(now) {
            let did = match effect {
                SessionEffect::Forward(held) if self.world.full => {
                    self.world.held = now.saturating_duration_since(held.since);
                    self.session.hold(held);
                    continue;
                }
                SessionEffect::Forward(held) => Did::Forwarded(held.request),
                SessionEffect::Greet(message) => Did::Greeted(message),
                SessionEffect::Answer(response) => Did::Answered(response),
                SessionEffect::Begin => Did::Began,
            };
            self.world.did.push(did);
        }
    }

    fn send(&mut self, message: FromWorkload) {
        let bytes = frame(message);
        self.bytes(&bytes);
    }

    fn hello(&mut self, version: &str) {
        self.send(FromWorkload::Hello {
            version: version.to_owned(),
        });
    }

    fn did(&mut self) -> Vec<Did> {
        std::mem::take(&mut self.world.did)
    }
}

fn read(id: &str, mask: &str) -> FromWorkload {
    let content = RequestContent::CompleteState(ReadState {
        masks: vec![mask.to_owned()],
        subscribe: false,
    });
    FromWorkload::Request(Request {
        id: id.to_owned(),
        content,
    })
}

fn forwarded(id: &str) -> Did {
    let content = RequestContent::CompleteState(ReadState {
        masks: vec!["agents".to_owned()],
        subscribe: false,
    });
    Did::Forwarded(Request {
        id: id.to_owned(),
        content,
    })
}

fn closed(reason: &str) -> Did {
    Did::Greeted(ToWorkload::Closed {
        reason: reason.to_owned(),
    })
}

fn error(id: &str, text: &str) -> Did {
    Did::Answered(Response {
        id: id.to_owned(),
        content: ResponseContent::Error(ErrorResponse::received(text.to_owned(), None)),
    })
}

const ACCEPTED: Did = Did::Greeted(ToWorkload::Accepted);

#[test]
fn the_first_message_must_be_a_hello_that_fits() {
    let unsupported = |version: &str| {
        format!("Unsupported protocol version '{version}'. Currently supported '1'")
    };
    let hello = |version: &str| {
        frame(FromWorkload::Hello {
            version: version.to_owned(),
        })
    };
    for (bytes, expected) in [
        (hello("1.0.0"), ACCEPTED),
        (hello("1.9.0"), ACCEPTED),
        (hello("1.0.0+b"), ACCEPTED),
        (hello("1.1.0-pre"), ACCEPTED),
        (hello("1"), closed(&unsupported("1"))),
        (hello("1.0"), closed(&unsupported("1.0"))),
        (hello("abc"), closed(&unsupported("abc"))),
        (hello(""), closed(&unsupported(""))),
        (hello("0.7.0"), closed(&unsupported("0.7.0"))),
        (hello("2.0.0"), closed(&unsupported("2.0.0"))),
        (frame(read("a", "agents")), closed("Initial Hello missing!")),
        (vec![0], closed("Initial Hello missing!")),
        (vec![2, 0x18, 1], closed("Initial Hello missing!")),
        (vec![1, 0xff], closed("Could not decode protobuf data")),
        (vec![0x80; 10], closed("Could not decode protobuf data")),
        (
            vec![0x80, 0x80, 0x80, 0x80, 0x80, 2],
            closed("Could not decode protobuf data"),
        ),
    ] {
        let mut rig = Rig::new();
        rig.bytes(&bytes);
        assert_eq!(rig.did(), [expected], "{bytes:?}");
    }
}

#[test]
fn what_is_not_allowed_is_answered_here() {
    let mut rig = Rig::established();
    let update = |new_state, mask: &str| {
        let content = RequestContent::UpdateState(UpdateState {
            new_state,
            masks: vec![mask.to_owned()],
            ..Default::default()
        });
        FromWorkload::Request(Request {
            id: "u".to_owned(),
            content,
        })
    };
    let no_state = "The UpdateStateRequest does not contain a new state";
    for (message, expected) in [
        (read("a@b", "desiredState"), error("a@b", "Access denied")),
        (
            FromWorkload::Request(Request {
                id: "m".to_owned(),
                content: RequestContent::Missing,
            }),
            error("m", "Access denied"),
        ),
        (update(None, "desiredState"), error("u", no_state)),
        (update(None, "agents"), error("u", "Access denied")),
        (
            update(Some(Ok(Node::empty())), "agents"),
            error("u", "Access denied"),
        ),
    ] {
        rig.send(message.clone());
        assert_eq!(rig.did(), [expected], "{message:?}");
    }
}

/// A field of a protobuf message: its tag, its length and these bytes.
fn wrap(tag: u8, bytes: &[u8]) -> Vec<u8> {
    let (mut framed, mut length) = (vec![tag], bytes.len());
    while length >= 0x80 {
        framed.push(0x80 | u8::try_from(length & 0x7f).unwrap());
        length >>= 7;
    }
    framed.push(u8::try_from(length).unwrap());
    framed.extend_from_slice(bytes);
    framed
}

#[test]
fn a_state_that_cannot_be_read_is_answered_here() {
    let mut rig = Rig::established();
    // newState { desiredState { workloads { "w": { restartPolicy: 9 } } } }, mask desiredState
    let workload = [0x0a, 0x01, b'w', 0x12, 0x02, 0x10, 0x09];
    let state = wrap(0x0a, &wrap(0x0a, &wrap(0x12, &wrap(0x0a, &workload))));
    let update = [state, wrap(0x12, b"desiredState")].concat();
    let request = [wrap(0x0a, b"id"), wrap(0x12, &update)].concat();
    rig.bytes(&wrap(0, &wrap(0x1a, &request))[1..]);
    let [
        Did::Answered(Response {
            id,
            content: ResponseContent::Error(ErrorResponse { text, .. }),
        }),
    ] = &rig.did()[..]
    else {
        panic!("an error is expected")
    };
    assert_eq!(id, "id");
    assert!(text.starts_with("Update rejected: '"), "{text}");
}

#[test]
fn an_established_session_survives_what_it_cannot_read() {
    let mut rig = Rig::established();
    rig.bytes(&[1, 0xff]);
    rig.send(FromWorkload::Empty);
    rig.send(read("a", "agents"));
    assert_eq!(rig.did(), [forwarded("a")]);
}

#[test]
fn a_request_of_tiny_parts_is_answered_and_not_decoded() {
    let instance = ankaios_model::names::InstanceName::with_id("", "", "");
    let instances = vec![instance; 500_000];
    let logs = ankaios_model::messages::LogsRequest {
        instances,
        ..Default::default()
    };
    let dense = || {
        FromWorkload::Request(Request {
            id: "dense".to_owned(),
            content: RequestContent::Logs(logs.clone()),
        })
    };
    let mut rig = Rig::established();
    rig.send(dense());
    let [
        Did::Answered(Response {
            id,
            content: ResponseContent::Error(ErrorResponse { text, .. }),
        }),
    ] = &rig.did()[..]
    else {
        panic!("an error is expected")
    };
    assert_eq!(id, "dense");
    assert!(
        text.starts_with("Request refused: a message of 100")
            && text.ends_with("when it is decoded"),
        "{text}"
    );
    rig.send(read("a", "agents"));
    assert_eq!(rig.did(), [forwarded("a")], "the session goes on");
    let mut rig = Rig::new();
    rig.send(dense());
    assert_eq!(rig.did(), [closed("Initial Hello missing!")]);
}

#[test]
fn another_hello_is_answered_and_a_wrong_one_ends_the_session() {
    let mut rig = Rig::established();
    rig.hello("1.5.0");
    assert_eq!(rig.did(), [ACCEPTED]);
    rig.hello("3.0.0");
    assert_eq!(
        rig.did(),
        [closed(
            "Unsupported protocol version '3.0.0'. Currently supported '1'"
        )]
    );
    rig.hello("1.0.0");
    rig.send(read("a", "agents"));
    assert_eq!(
        rig.did(),
        [],
        "what comes before the pipe is closed is ignored"
    );
    assert!(!rig.session.is_established());
    rig.session.on_close();
    rig.hello("1.0.0");
    assert_eq!(rig.did(), [Did::Began, ACCEPTED]);
}

#[test]
fn a_pipe_that_is_closed_and_opened_again_goes_on_without_hello() {
    let mut rig = Rig::established();
    let request = frame(read("half", "agents"));
    rig.bytes(&request[..5]);
    rig.session.on_close();
    assert_eq!(rig.session.deadline(), None);
    rig.send(read("a", "agents"));
    assert_eq!(rig.did(), [forwarded("a")]);
    rig.hello("1.0.0");
    assert_eq!(
        rig.did(),
        [Did::Began, ACCEPTED],
        "it may be another process"
    );
    rig.hello("1.0.0");
    assert_eq!(rig.did(), [ACCEPTED], "the pipe was not closed in between");
}

#[test]
fn a_restarted_container_has_to_send_a_hello() {
    let mut rig = Rig::established();
    rig.bytes(&[50, 1, 2]);
    rig.session.on_restart();
    rig.act();
    assert_eq!(rig.did(), [Did::Began]);
    assert!(!rig.session.is_established());
    rig.hello("1.0.0");
    assert_eq!(rig.did(), [ACCEPTED]);
}

#[test]
fn a_message_has_to_be_complete_in_time_from_its_first_byte() {
    for established in [false, true] {
        let mut rig = if established {
            Rig::established()
        } else {
            Rig::new()
        };
        let started = rig.clock.now();
        rig.bytes(&[100]);
        for _ in 0..3 {
            assert_eq!(
                rig.session.deadline(),
                Some(started + CONTROL_MESSAGE_TIME),
                "not from the last byte"
            );
            rig.clock.advance(CONTROL_MESSAGE_TIME / 4);
            rig.bytes(&[0]);
        }
        rig.session.on_late(false);
        rig.act();
        let reason = if established {
            "A message was not complete within 30 s"
        } else {
            "Could not decode protobuf data"
        };
        assert_eq!(rig.did(), [closed(reason)]);
        assert_eq!(rig.session.deadline(), None);
    }
    let mut rig = Rig::established();
    let request = frame(read("a", "agents"));
    rig.bytes(&request[..3]);
    rig.clock.advance(CONTROL_MESSAGE_TIME / 2);
    rig.bytes(&[&request[3..], &request[..3]].concat());
    assert_eq!(
        rig.session.deadline(),
        Some(rig.clock.now() + CONTROL_MESSAGE_TIME),
        "the next message is another one"
    );
}

#[test]
fn lengths_above_the_limit_end_a_session_with_a_reason() {
    let mut rig = Rig::established();
    rig.bytes(&[0x80, 0x80, 0x80, 0x80, 0x80, 2]);
    assert_eq!(
        rig.did(),
        [closed(
            "Could not decode protobuf data: a message of 68719476736 bytes, at most 4194304 are allowed"
        )]
    );
}

#[test]
fn requests_without_room_wait_in_order_and_nothing_else_is_read() {
    let mut rig = Rig::established();
    rig.world.full = true;
    let bytes: Vec<u8> = ["a", "b", "c"]
        .iter()
        .flat_map(|id| frame(read(id, "agents")))
        .collect();
    rig.bytes(&bytes);
    assert!(rig.session.paused_since().is_some());
    for _ in 0..2 {
        rig.clock.advance(Duration::from_secs(1));
        rig.session.retry_held();
        rig.act();
        assert!(rig.session.paused_since().is_some());
    }
    assert_eq!(
        (rig.did(), rig.world.held),
        (vec![], Duration::from_secs(2))
    );
    rig.world.full = false;
    rig.session.retry_held();
    rig.act();
    assert!(rig.session.paused_since().is_none());
    assert_eq!(rig.did(), ["a", "b", "c"].map(forwarded));
}

#[test]
fn deeply_nested_messages_are_no_danger() {
    let nested = std::thread::Builder::new()
        .stack_size(STACK_LARGE)
        .spawn(|| {
            // Config items within config items: { array { values { array { values ... } } } }
            let mut inner = Vec::new();
            for depth in 0..2_000 {
                inner = wrap(if depth % 2 == 0 { 0x0a } else { 0x12 }, &inner);
            }
            let configs = wrap(0x0a, &[wrap(0x0a, b"k"), wrap(0x12, &inner)].concat());
            let update = wrap(0x0a, &wrap(0x0a, &wrap(0x1a, &configs)));
            let message = wrap(0x1a, &wrap(0x12, &update));
            let mut rig = Rig::established();
            let bytes = wrap(0, &message);
            rig.bytes(&bytes[1..]);
            rig.did()
        });
    let _ = nested.unwrap().join().unwrap();
}

#[test]
fn id_that_fills_a_message_is_refused_and_cut() {
    let mut rig = Rig::established();
    let prefix = "web".len() + PREFIX_MAX;
    let longest = "ä".repeat((REQUEST_ID_MAX - prefix) / 2);
    rig.send(read(&longest, "agents"));
    assert_eq!(rig.did(), [forwarded(&longest)]);
    rig.send(read(&"ä".repeat(1_000_000), "agents"));
    let did = rig.did();
    let [
        Did::Answered(Response {
            id,
            content: ResponseContent::Error(ErrorResponse { text, .. }),
        }),
    ] = did.as_slice()
    else {
        panic!()
    };
    assert_eq!(*id, "ä".repeat(REQUEST_ID_MAX / 2));
    assert!(text.contains("the request id has 2000015 bytes"), "{text}");
    rig.send(read("b", "agents"));
    assert_eq!(rig.did(), [forwarded("b")]);
}

#[test]
fn a_partial_message_has_another_number_than_the_next_one() {
    let mut rig = Rig::established();
    let bytes = frame(read(&"x".repeat(500), "agents"));
    let number = rig.session.in_hand().number;
    rig.bytes(&bytes[..100]);
    let partial = rig.session.in_hand();
    assert_eq!((partial.bytes, partial.number), (bytes.len(), number));
    rig.bytes(&bytes[100..]);
    let next = rig.session.in_hand();
    assert_eq!((next.bytes, next.number), (0, number + 1));
}

#[test]
fn workload_that_writes_anything_does_not_fill_the_log() {
    let kinds = [
        FromWorkload::Hello {
            version: "1.0.0".to_owned(),
        },
        FromWorkload::Hello {
            version: "0.7.0".to_owned(),
        },
        read("x", "agents"),
        read("x", "desiredState"),
        read(&"x".repeat(REQUEST_ID_MAX), "agents"),
        FromWorkload::TooHeavy {
            id: "x".to_owned(),
            reason: "x".to_owned(),
        },
        FromWorkload::Empty,
    ];
    let number_of = |message: &FromWorkload| match message {
        FromWorkload::Hello { .. } => 0,
        FromWorkload::Request(_) => 1,
        FromWorkload::TooHeavy { .. } => 2,
        FromWorkload::Empty => 3,
    };
    assert_eq!(
        kinds
            .iter()
            .map(number_of)
            .collect::<std::collections::BTreeSet<_>>(),
        (0..4).collect()
    );
    let mut rig = Rig::new();
    let lines = lines_of(|| {
        for message in kinds.iter().cycle().take(100 * kinds.len()) {
            rig.session.on_message(Ok(message.clone()), rig.clock.now());
            rig.act();
            rig.session
                .on_message(Err(read_message(&[0xff]).unwrap_err()), rig.clock.now());
            rig.act();
            rig.session.on_close();
            rig.hello("1.0.0");
            rig.session.on_message(Ok(message.clone()), rig.clock.now());
            rig.act();
            rig.session.on_late(false);
            rig.act();
            rig.session.on_close();
            rig.bytes(&[1, 0xff]);
            rig.session.on_late(true);
            rig.act();
        }
    });
    assert_eq!(
        suppressed(&lines),
        std::collections::BTreeSet::from(["web"]),
        "{lines:#?}"
    );
    assert_eq!(lines.len(), LOG_SOURCE_LINES as usize + 1, "{lines:#?}");
}
