//! What leaves one side arrives at the other as it was, through real bytes.
//!
//! Thread: the test's.

use super::messages::{
    encode_states, read_from_server, read_from_workload, read_plan, read_to_server,
    request_id_of_begin, write_from_server, write_plan, write_to_server,
};
use super::schema::grpc_api::from_server::FromServerEnum;
use super::schema::{ank_base as base, grpc_api, grpc_api as api};
use super::tree::writer::MessageWriter;
use super::tree::{Parts, StateParts};
use super::*;
use crate::limits::READ_MASKS_PARTS_MAX;
use ankaios_model::complete_state::{
    Rendering, desired_state_from_node, execution_state_node, workload_node,
};
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::limits::CONDITION_INFO_MAX;
use ankaios_model::log_entries;
use ankaios_model::messages::*;
use ankaios_model::names::InstanceName;
use ankaios_model::node::Node;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::reason::Reason;
use ankaios_model::refusal::{ErrorResponse, Refusal};
use ankaios_model::usage::{AgentUsage, NodeUsage, WorkloadUsage};
use ankaios_model::workload::DeleteCondition;
use protobuf::{EnumOrUnknown, Message, MessageField};
use std::sync::Arc;

fn instance() -> InstanceName {
    InstanceName::new("web", "image: x", "agent_A")
}

fn through_server(message: ToServer) -> ToServer {
    let bytes = write_to_server(&message);
    // The library skips nothing of it.
    let theirs = grpc_api::ToServer::parse_from_bytes(&bytes).unwrap();
    assert_eq!(
        read_to_server(&theirs.write_to_bytes().unwrap(), &mut Left::of(&bytes)),
        read(&bytes)
    );
    assert!(
        theirs
            .special_fields
            .unknown_fields()
            .iter()
            .next()
            .is_none()
    );
    read(&bytes).unwrap()
}

fn read(bytes: &[u8]) -> Decoded<ToServer> {
    read_to_server(bytes, &mut Left::of(bytes))
}

fn through_client(message: FromServer) -> FromServer {
    let bytes = write_from_server(&message);
    let theirs = grpc_api::FromServer::parse_from_bytes(&bytes).unwrap();
    assert_eq!(
        read_from_server(theirs.write_to_bytes().unwrap()),
        read_from_server(&bytes)
    );
    assert!(
        theirs
            .special_fields
            .unknown_fields()
            .iter()
            .next()
            .is_none()
    );
    read_from_server(&bytes).unwrap()
}

fn written(tree: &Node) -> base::CompleteState {
    base::CompleteState::parse_from_bytes(&tree::write_state(tree)).unwrap()
}

fn read_tree(state: &base::CompleteState, parts: Parts) -> Decoded<Node> {
    tree::read_state(
        &state.write_to_bytes().unwrap(),
        parts,
        &mut Left::unbounded(),
    )
}

/// A sample with every value that can be known, and one without any.
fn usage() -> AgentUsage {
    let all = WorkloadUsage {
        memory_bytes: Some(1),
        inactive_file_bytes: Some(2),
        memory_peak_bytes: Some(u64::MAX),
        cpu_usec: Some(0),
        pids: Some(5),
        uptime_ms: Some(6),
        restarts: Some(7),
        image_bytes: Some(8),
        image_removable_bytes: Some(0),
        missing: None,
    };
    let missing = WorkloadUsage {
        missing: Some("why".to_owned()),
        ..WorkloadUsage::default()
    };
    let node = NodeUsage {
        cores: Some(2),
        cpu_busy_usec: Some(3),
        memory_total_bytes: Some(4),
        memory_available_bytes: Some(0),
    };
    let ids = [
        ("1".into(), all),
        ("2".into(), missing),
        ("3".into(), WorkloadUsage::default()),
    ];
    AgentUsage {
        sampled_usec: Some(9),
        node,
        workloads: [("web".into(), ids.into())].into(),
        missing: None,
    }
}

fn states() -> Vec<WorkloadState> {
    Phase::ALL
        .iter()
        .map(|(phase, ..)| {
            WorkloadState::new(instance(), ExecutionState::with_info(*phase, "info"))
        })
        .collect()
}

fn prepared(level: Option<PrepareLevel>, tries: u32) -> PreparedInstance {
    let reason = (tries > 0).then(|| "no such image".to_owned());
    let unmet = level.map(|_| "/run/nav/lock exists".to_owned());
    let is_final = tries > 2;
    PreparedInstance {
        instance: instance(),
        level,
        reason,
        tries,
        is_final,
        unmet,
    }
}

/// The server keeps them and shows them to all clients.
#[test]
fn texts_about_preparations_are_cut() {
    let long = Some("ä".repeat(CONDITION_INFO_MAX));
    let sent = PreparedInstance {
        reason: long.clone(),
        unmet: long,
        ..prepared(None, 1)
    };
    let ToServer::Prepared(read) = through_server(ToServer::Prepared(vec![sent])) else {
        panic!()
    };
    for text in [&read[0].reason, &read[0].unmet] {
        assert!(
            text.as_ref()
                .is_some_and(|text| text.len() <= CONDITION_INFO_MAX),
            "{text:?}"
        );
    }
}

#[test]
fn messages_to_the_server_arrive_unchanged() {
    let tree = Node::map([(
        "desiredState",
        Node::map([
            ("apiVersion", Node::text("v1")),
            (
                "workloads",
                Node::map([(
                    "web",
                    workload_node(&workload_with_everything(), Rendering::Full),
                )]),
            ),
            (
                "configs",
                Node::map([(
                    "c",
                    Node::List(vec![Node::text("x"), Node::map([("k", Node::text("v"))])]),
                )]),
            ),
        ]),
    )]);
    let request = |content| {
        ToServer::Request(Request {
            id: "a@b".into(),
            content,
        })
    };
    let logs = LogsRequest {
        instances: vec![instance()],
        follow: Some(false),
        tail: Some(-1),
        since: Some("s".into()),
        until: None,
        timestamps: true,
    };
    for message in [
        ToServer::AgentHello(AgentHello {
            agent: "A".into(),
            version: "1.1.0".into(),
            tags: [("k".into(), "v".into())].into(),
            capabilities: AgentCapabilities {
                tells_usage: true,
                prepares: true,
                removes_images: true,
            },
        }),
        ToServer::CommanderHello {
            version: "1.1.0".into(),
        },
        ToServer::WorkloadStates(states()),
        ToServer::StatesComplete,
        ToServer::Prepared(vec![
            prepared(Some(PrepareLevel::Create), 0),
            prepared(None, 3),
        ]),
        ToServer::AgentLoad(AgentLoad {
            agent: "A".into(),
            cpu_usage: 42,
            free_memory: u64::MAX,
            engine: "podman 4.3.1".into(),
        }),
        request(RequestContent::UpdateState(UpdateState {
            new_state: Some(Ok(tree)),
            masks: vec!["m".into()],
            restart: vec!["a".into(), "b".into()],
        })),
        request(RequestContent::UpdateState(UpdateState {
            new_state: None,
            masks: vec![],
            ..Default::default()
        })),
        request(RequestContent::RollBack(7)),
        request(RequestContent::StopAndStart(StopAndStart {
            stop: vec!["a".into(), "b".into()],
            start: vec!["c".into()],
        })),
        request(RequestContent::CompleteState(ReadState {
            masks: vec!["m".into()],
            subscribe: true,
        })),
        request(RequestContent::Logs(logs)),
        request(RequestContent::LogsCancel),
        request(RequestContent::EventsCancel),
        request(RequestContent::Missing),
        ToServer::LogEntries {
            request_id: "r".into(),
            entries: vec![LogEntry::line(instance(), "line")],
        },
        ToServer::LogsStop {
            request_id: "r".into(),
            instance: instance(),
        },
        ToServer::UsageResponse {
            number: u64::MAX,
            usage: usage(),
        },
        ToServer::UsageResponse {
            number: 0,
            usage: AgentUsage::missing("x"),
        },
        ToServer::Goodbye,
        ToServer::Empty,
    ] {
        assert_eq!(through_server(message.clone()), message);
    }
}

/// A guarded update with all its fields.
fn guarded_update() -> Node {
    let texts = |keys: &[&'static str]| Node::map(keys.iter().map(|key| (*key, Node::text(*key))));
    let mut update = texts(&[
        "phase",
        "reason",
        "accepted",
        "ended",
        "replacedBy",
        "keptIn",
        "cause",
    ]);
    update.as_map_mut().unwrap().extend([
        ("losses".into(), Node::Number(2)),
        (
            "waitsFor".into(),
            Node::List(vec![Node::text("web"), Node::text("agent B")]),
        ),
        (
            "before".into(),
            Node::map([("apiVersion", Node::text("v1")), ("configs", texts(&["k"]))]),
        ),
        (
            "workloads".into(),
            Node::map([
                ("web", texts(&["old", "new", "after"])),
                ("gone", Node::empty()),
            ]),
        ),
        (
            "configs".into(),
            Node::map([("k", texts(&["after"])), ("gone", Node::empty())]),
        ),
    ]);
    update
}

#[test]
fn messages_from_the_server_arrive_unchanged() {
    let added = AddedWorkload {
        instance: instance(),
        workload: Arc::new(workload_with_everything()),
    };
    let deleted = DeletedWorkload {
        instance: instance(),
        dependencies: [
            ("a".into(), DeleteCondition::NotPendingNorRunning),
            ("b".into(), DeleteCondition::Running),
        ]
        .into(),
    };
    let state = Node::map([
        (
            "workloadStates",
            Node::map([(
                "",
                Node::map([(
                    "w",
                    Node::map([("id", Node::map([("additionalInfo", Node::text(""))]))]),
                )]),
            )]),
        ),
        (
            "agents",
            Node::map([(
                "A",
                Node::map([("status", Node::map([("cpuUsage", Node::Number(1))]))]),
            )]),
        ),
        (
            "updates",
            Node::map([("1", guarded_update()), ("2", Node::empty())]),
        ),
        (
            "usage",
            Node::map([
                ("A", usage().node()),
                ("B", AgentUsage::missing("late").node()),
            ]),
        ),
        ("modes", modes()),
        ("timings", timings()),
        ("warning", Node::text("of the start")),
        ("history", history()),
        ("programs", programs()),
    ]);
    let response = |content| {
        FromServer::Response(Response {
            id: "id".into(),
            content,
        })
    };
    for message in [
        FromServer::ServerHello(vec![added.clone()]),
        FromServer::Prepare(vec![added.clone()]),
        FromServer::UpdateWorkload(WorkloadPlan {
            added: vec![added],
            deleted: vec![deleted],
        }),
        FromServer::WorkloadStates(states()),
        FromServer::LogsRequest {
            request_id: "r".into(),
            request: LogsRequest::default(),
        },
        FromServer::LogsCancel {
            request_id: "r".into(),
        },
        FromServer::UsageRequest { number: 7 },
        FromServer::UpdateOpen(true),
        FromServer::UpdateOpen(false),
        response(ResponseContent::Error("no".into())),
        response(ResponseContent::CompleteState {
            state: state.clone(),
            altered: None,
        }),
        response(ResponseContent::CompleteState {
            state,
            altered: Some(AlteredFields {
                added: vec!["a".into()],
                ..Default::default()
            }),
        }),
        response(ResponseContent::UpdateStateSuccess {
            added: vec!["a".into()],
            deleted: vec![],
            restarted: vec!["a".into()],
            warning: Some("w".into()),
        }),
        response(ResponseContent::LogsAccepted(vec![instance()])),
        response(ResponseContent::LogEntries(vec![LogEntry::line(
            instance(),
            "x",
        )])),
        response(ResponseContent::LogEntries(vec![log_entries::no_log(
            instance(),
            "x",
        )])),
        response(ResponseContent::LogsStop(instance())),
        response(ResponseContent::LogsCancelAccepted),
        response(ResponseContent::EventsCancelAccepted),
    ] {
        assert_eq!(through_client(message.clone()), message);
    }
}

/// Modes with all that they can have.
fn modes() -> Node {
    let known = Node::List(["drive", "park"].map(Node::text).into());
    let texts = ["configItem", "current", "onFailure", "cause"].map(|key| (key, Node::text(key)));
    Node::map(texts.into_iter().chain([("known", known)]))
}

/// Versions and certificates of a server and an agent.
fn programs() -> Node {
    let program = || {
        vec![
            ("version", Node::text("1.1.0")),
            ("certificateExpires", Node::Number(7)),
        ]
    };
    let mut agent = program();
    agent.push(("connectedAt", Node::Number(9)));
    agent.push(("engine", Node::text("podman 4.3.1")));
    let agents = Node::map([("A", Node::map(agent)), ("B", Node::empty())]);
    let mut server = program();
    server.push(("agents", agents));
    Node::map(server)
}

/// A change with all that it can have, and one with the time only.
fn history() -> Node {
    let texts = ["agent", "workload", "id", "state", "info"].map(|key| (key, Node::text(key)));
    let at = ("at", Node::Number(u64::MAX));
    let whole = Node::map(texts.into_iter().chain([at.clone()]));
    Node::List(vec![whole, Node::map([at])])
}

/// Times of one instance, with each of them.
fn timings() -> Node {
    let keys = [
        "desired", "waiting", "starting", "started", "running", "ended", "starts",
    ];
    let mut times: Vec<(&str, Node)> = keys
        .into_iter()
        .zip(0..)
        .map(|(key, at)| (key, Node::Number(at)))
        .collect();
    times.push(("prepared", Node::text("INIT")));
    let workloads = Node::map([(
        "w",
        Node::map([("id", Node::map(times)), ("new", Node::empty())]),
    )]);
    let instances = Node::map([("A", workloads), ("", Node::empty())]);
    Node::map([
        ("now", Node::Number(u64::MAX)),
        ("boot", Node::Number(0)),
        ("instances", instances),
    ])
}

#[test]
fn parts_on_request_are_unknown_in_new_states() {
    let sent = Node::map([
        ("modes", modes()),
        ("timings", timings()),
        ("agents", Node::empty()),
    ]);
    let message = written(&sent);
    assert_eq!(read_tree(&message, Parts::Sent), Ok(sent));
    assert_eq!(
        read_tree(&message, Parts::New),
        Ok(Node::map([("agents", Node::empty())]))
    );
}

#[test]
fn a_zero_sub_state_is_on_the_wire() {
    // Field 1 (text, present though empty), then field 4 as a varint 0.
    assert_eq!(
        StateParts::of(&ExecutionState::plain(Phase::Running)).write(),
        [0x0a, 0x00, 0x20, 0x00]
    );
}

/// A state as an agent sends it whose program has no reasons, but one with this number.
fn foreign_state(phase: Phase, info: &str, reason: Option<u64>) -> WorkloadState {
    let parts = StateParts {
        info: Some(info),
        phase: Some(phase),
        reason,
        prepared: None,
    };
    let state = base::WorkloadState {
        instanceName: MessageField::some(base::WorkloadInstanceName {
            workloadName: "web".to_owned(),
            ..Default::default()
        }),
        executionState: Some(parts.write()),
        ..Default::default()
    };
    let states = api::UpdateWorkloadState {
        workloadStates: vec![state],
        ..Default::default()
    };
    let message = api::ToServer {
        ToServerEnum: Some(api::to_server::ToServerEnum::UpdateWorkloadState(states)),
        ..Default::default()
    };
    match read(&message.write_to_bytes().unwrap()) {
        Ok(ToServer::WorkloadStates(mut states)) => states.remove(0),
        other => panic!("{other:?}"),
    }
}

/// Texts by which programs without reasons decide.
const TEXTS: [&str; 9] = [
    "",
    "info",
    "gone: /lock exists",
    "inactive: no camera",
    "ready: tcp 80 refused",
    "No more restarts: Exit code: '1'",
    "not in mode 'park'",
    "precondition: /key does not exist; prepared: INIT; waits for 'db' to run",
    "waits for 'db', which may not run",
];

// [utest->swdd~api-reasons-of-workload-states~1]
#[test]
fn state_with_any_reason_and_text_arrives_as_it_was() {
    for (phase, ..) in Phase::ALL {
        let mut states = Vec::new();
        for text in TEXTS {
            for reason in Reason::ALL {
                for level in PrepareLevel::ALL {
                    let mut state = ExecutionState::with_info(phase, text).because(*reason);
                    state.prepared = *level;
                    states.push(WorkloadState::new(instance(), state));
                }
            }
        }
        for state in &states {
            let tree = Node::map([("1", execution_state_node(&state.state))]);
            let tree = Node::map([("A", Node::map([("w", tree)]))]);
            let tree = Node::map([("workloadStates", tree)]);
            assert_eq!(read_tree(&written(&tree), Parts::Sent), Ok(tree));
        }
        let message = FromServer::WorkloadStates(states.clone());
        assert_eq!(through_client(message.clone()), message);
        let message = ToServer::WorkloadStates(states);
        assert_eq!(through_server(message.clone()), message);
    }
}

// [utest->swdd~api-reasons-of-workload-states~1]
#[test]
fn state_without_a_known_reason_has_that_of_its_text() {
    for (phase, ..) in Phase::ALL {
        for text in TEXTS {
            let expected = ExecutionState::from_text(phase, text);
            for unknown in [None, Some(Reason::ALL.len() as u64), Some(u64::MAX)] {
                let read = foreign_state(phase, text, unknown);
                assert_eq!(read.state, expected, "{unknown:?}");
            }
            let typed = foreign_state(phase, text, Some(Reason::Alive.number()));
            assert_eq!(typed.state.reason, Reason::Alive, "{phase}: {text}");
        }
    }
    let gone = foreign_state(Phase::Stopping, "gone: /lock exists", None);
    assert_eq!(gone.state.reason, Reason::Gone);
}

#[test]
fn reason_costs_three_bytes_and_none_costs_nothing() {
    let plain = ExecutionState::with_info(Phase::Stopping, "info");
    let bytes = StateParts::of(&plain).write();
    assert_eq!(bytes, [0x0a, 4, b'i', b'n', b'f', b'o', 0x28, 0]);
    let gone = plain.because(Reason::Gone);
    assert_eq!(StateParts::of(&gone).write().len(), bytes.len() + 3);
}

// [utest->swdd~api-reasons-of-refusals~1]
#[test]
fn refusal_arrives_as_it_was_and_as_older_servers_mean_it() {
    let text = "Update rejected: 'it is the same as update 3, which was rolled back: x'";
    let response = |refusal| {
        let error = ErrorResponse {
            text: text.to_owned(),
            refusal,
        };
        FromServer::Response(Response {
            id: "a".to_owned(),
            content: ResponseContent::Error(error),
        })
    };
    for refusal in Refusal::ALL {
        let message = response(*refusal);
        assert_eq!(through_client(message.clone()), message);
    }
    // An older server sends the text alone.
    let older = base::Error {
        message: text.to_owned(),
        ..base::Error::default()
    };
    let older = grpc_api::FromServer {
        FromServerEnum: Some(FromServerEnum::Response(base::Response {
            requestId: "a".to_owned(),
            ResponseContent: Some(base::response::ResponseContent::Error(older)),
            ..base::Response::default()
        })),
        ..grpc_api::FromServer::default()
    };
    let read = read_from_server(older.write_to_bytes().unwrap());
    assert_eq!(read, Ok(response(Refusal::RolledBackBefore)));
}

#[test]
fn reason_of_a_refusal_costs_three_bytes_and_none_nothing() {
    let bytes = |refusal| {
        let text = "no".to_owned();
        write_from_server(&FromServer::Response(Response {
            id: "a".to_owned(),
            content: ResponseContent::Error(ErrorResponse { text, refusal }),
        }))
    };
    let none = bytes(Refusal::None);
    assert_eq!(bytes(Refusal::NoModeItem).len(), none.len() + 3);
    assert_eq!(none, [0x1a, 9, 0x0a, 1, b'a', 0x1a, 4, 0x0a, 2, b'n', b'o']);
}

#[test]
fn newer_reason_in_a_state_that_was_sent_is_shown_and_passed_on() {
    let state = Node::map([
        ("state", Node::text("Running")),
        ("subState", Node::text("Ok")),
        ("reason", Node::text("77")),
        ("prepared", Node::text("78")),
    ]);
    let tree = Node::map([("A", Node::map([("w", Node::map([("1", state)]))]))]);
    let tree = Node::map([("workloadStates", tree)]);
    assert_eq!(read_tree(&written(&tree), Parts::Sent), Ok(tree));
}

#[test]
fn incomplete_and_malformed_states_are_skipped_one_by_one() {
    let running = WorkloadState::new(instance(), ExecutionState::plain(Phase::Running));
    let good =
        base::WorkloadState::parse_from_bytes(&encode_states(std::slice::from_ref(&running))[2..])
            .unwrap();
    let with = |change: &dyn Fn(&mut base::ExecutionState)| {
        let mut execution =
            base::ExecutionState::parse_from_bytes(good.executionState.as_ref().unwrap()).unwrap();
        change(&mut execution);
        base::WorkloadState {
            executionState: Some(execution.write_to_bytes().unwrap()),
            ..good.clone()
        }
    };
    let number = EnumOrUnknown::from_i32(77);
    let unknown = with(&|state| {
        state.ExecutionStateEnum = Some(base::execution_state::ExecutionStateEnum::Pending(number));
    });
    let without_info = with(&|state| state.additionalInfo = None);
    // Field 1 with a byte that is no UTF-8, and one that ends too early; both Running(Ok).
    let [no_text, cut] = [
        &[0x0a, 0x01, 0xff, 0x20, 0x00][..],
        &[0x20, 0x00, 0x0a, 0x09],
    ]
    .map(|bytes| base::WorkloadState {
        executionState: Some(bytes.to_vec()),
        ..good.clone()
    });
    let states = vec![
        good.clone(),
        unknown,
        base::WorkloadState::default(),
        no_text,
        cut,
        without_info,
    ];
    let update = grpc_api::UpdateWorkloadState {
        workloadStates: states,
        ..Default::default()
    };
    let content = Some(grpc_api::to_server::ToServerEnum::UpdateWorkloadState(
        update,
    ));
    let message = grpc_api::ToServer {
        ToServerEnum: content,
        ..Default::default()
    };
    let ToServer::WorkloadStates(read) = read(&message.write_to_bytes().unwrap()).unwrap() else {
        panic!()
    };
    let info = "unknown enumeration value 77, which only a newer program knows";
    let newer = WorkloadState::new(
        instance(),
        ExecutionState::with_info(Phase::FailedUnknown, info),
    );
    assert_eq!(read, [running.clone(), newer, running]);
}

#[test]
fn unknown_numbers_and_open_choices_make_a_new_state_unreadable() {
    let mut bad_enum = base::Workload::new();
    bad_enum.restartPolicy = Some(EnumOrUnknown::from_i32(9));
    let mut bad_file = base::Workload::new();
    bad_file.files = MessageField::some(base::Files {
        files: vec![base::File::new()],
        ..Default::default()
    });
    for (workload, message) in [
        (bad_enum, "unknown enumeration value 9"),
        (bad_file, "Missing field 'file_content'"),
    ] {
        let mut state = base::CompleteState::new();
        let map = base::WorkloadMap {
            workloads: [("w".to_owned(), workload)].into(),
            ..Default::default()
        };
        state.desiredState = MessageField::some(base::State {
            workloads: MessageField::some(map),
            ..Default::default()
        });
        assert_eq!(
            read_tree(&state, Parts::New).unwrap_err().to_string(),
            message
        );
    }
}

#[test]
fn a_workload_for_an_agent_must_be_complete() {
    let bytes = tree::write_workload(&workload_with_everything());
    let complete = base::Workload::parse_from_bytes(&bytes).unwrap();
    let read = |workload: &base::Workload| {
        tree::read_workload(&workload.write_to_bytes().unwrap(), &mut Left::unbounded())
    };
    assert_eq!(read(&complete).as_ref(), Ok(&workload_with_everything()));
    for (clear, message) in [
        (
            (|w: &mut base::Workload| w.agent = None) as fn(&mut base::Workload),
            "Missing field 'agent'",
        ),
        (|w| w.runtime = None, "Missing field 'runtime'"),
        (|w| w.runtimeConfig = None, "Missing field 'runtime_config'"),
    ] {
        let mut incomplete = complete.clone();
        clear(&mut incomplete);
        assert_eq!(read(&incomplete).unwrap_err().to_string(), message);
    }
}

#[test]
fn presence_survives_the_tree() {
    let message = base::CompleteState {
        desiredState: MessageField::some(base::State {
            workloads: MessageField::some(base::WorkloadMap::default()),
            ..Default::default()
        }),
        ..Default::default()
    };
    let tree = read_tree(&message, Parts::New).unwrap();
    assert_eq!(
        serde_json::to_string(&tree).unwrap(),
        r#"{"desiredState":{"apiVersion":"","workloads":{}}}"#
    );
    assert!(written(&tree).desiredState.workloads.is_some());
    assert!(written(&tree).desiredState.configs.is_none());
    assert!(desired_state_from_node(tree.get("desiredState").unwrap()).is_ok());
}

#[test]
fn what_an_update_without_masks_ignores_cannot_refuse_it() {
    let rule = base::AccessRightsRule {
        AccessRightsRuleEnum: Some(base::access_rights_rule::AccessRightsRuleEnum::StateRule(
            base::StateRule {
                operation: EnumOrUnknown::from_i32(77),
                ..Default::default()
            },
        )),
        ..Default::default()
    };
    let access = base::ControlInterfaceAccess {
        allowRules: vec![rule],
        ..Default::default()
    };
    let workload = base::Workload {
        controlInterfaceAccess: MessageField::some(access),
        ..Default::default()
    };
    let workloads = base::WorkloadMap {
        workloads: [("w".to_owned(), workload)].into(),
        ..Default::default()
    };
    let strange = base::State {
        workloads: MessageField::some(workloads),
        ..Default::default()
    };
    let state = |desired: &base::State, effective: &base::State| base::CompleteState {
        desiredState: MessageField::some(desired.clone()),
        effectiveState: MessageField::some(effective.clone()),
        ..Default::default()
    };
    let plain = base::State {
        apiVersion: "v1".to_owned(),
        ..Default::default()
    };
    let read = |state: base::CompleteState, masks: &[&str]| {
        let update = base::UpdateStateRequest {
            newState: Some(state.write_to_bytes().unwrap()),
            updateMask: masks.iter().map(|mask| (*mask).to_owned()).collect(),
            ..Default::default()
        };
        let content = Some(base::request::RequestContent::UpdateStateRequest(update));
        let request = base::Request {
            RequestContent: content,
            ..Default::default()
        };
        let content = Some(grpc_api::to_server::ToServerEnum::Request(request));
        let message = grpc_api::ToServer {
            ToServerEnum: content,
            ..Default::default()
        };
        match self::read(&message.write_to_bytes().unwrap()) {
            Ok(ToServer::Request(Request {
                content: RequestContent::UpdateState(update),
                ..
            })) => update,
            other => panic!("{other:?}"),
        }
    };
    let ignored = read(state(&plain, &strange), &[]);
    assert!(
        ignored
            .new_state
            .is_some_and(|state| state.is_ok_and(|state| state.get("desiredState").is_some()))
    );
    assert!(
        read(state(&strange, &plain), &[])
            .new_state
            .is_some_and(|state| state.is_err())
    );
    let masked = read(state(&plain, &strange), &["desiredState"]);
    assert!(
        masked.new_state.is_some_and(|state| state.is_err()) && masked.masks == ["desiredState"]
    );
}

/// The length of a message stands before it and takes one to five bytes.
#[test]
fn messages_of_any_length_arrive_unchanged() {
    for length in [0, 1, 100, 127, 128, 129, 16_383, 16_384, 3_000_000] {
        let text = Node::text("x".repeat(length));
        let config = |node| {
            Node::map([
                ("configs", Node::map([("c", node)])),
                ("apiVersion", Node::text("v1")),
            ])
        };
        for node in [
            text.clone(),
            Node::map([("k", Node::List(vec![text.clone(), text.clone()]))]),
        ] {
            let state = Node::map([
                ("desiredState", config(node.clone())),
                ("effectiveState", config(node)),
            ]);
            assert_eq!(
                read_tree(&written(&state), Parts::New),
                Ok(state),
                "{length}"
            );
        }
    }
}

#[test]
fn what_a_tree_has_in_another_shape_is_left_out() {
    let agent = |status| {
        Node::map([(
            "agents",
            Node::map([("A", Node::map([("status", status), ("x", modes())]))]),
        )])
    };
    let status = Node::map([
        ("cpuUsage", Node::text("1")),
        ("freeMemory", Node::Number(5)),
    ]);
    let (written, expected) = (
        written(&agent(status)),
        Node::map([("freeMemory", Node::Number(5))]),
    );
    let read = read_tree(&written, Parts::New).unwrap();
    assert_eq!(
        read.at(&["agents", "A", "status", "freeMemory"]),
        expected.get("freeMemory")
    );
    assert!(read.at(&["agents", "A", "x"]).is_none());
}

// ------------------------------------------------- what messages may take in memory

fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut writer = MessageWriter::default();
    writer.bytes(number, content);
    writer.bytes
}

/// Wraps `content` into fields, the last number being the innermost.
fn within(path: &[u32], content: &[u8]) -> Vec<u8> {
    path.iter()
        .rev()
        .fold(content.to_vec(), |bytes, number| field(*number, &bytes))
}

/// A message whose `parts` are all tiny, each of them another way to take memory.
fn dense(kind: usize, parts: usize) -> Vec<u8> {
    let state = |path: &[u32], content: &[u8]| within(&[&[3, 2, 1, 1], path].concat(), content);
    let names = || (0..parts).map(|number| field(1, number.to_string().as_bytes()));
    match kind {
        0 => within(&[3, 4], &field(1, &[]).repeat(parts)), // names of workloads
        1 => within(&[3, 2], &field(2, &[]).repeat(parts)), // masks
        2 => state(&[3, 1, 2, 2], &within(&[1, 1], &[]).repeat(parts)), // items of a config
        3 => state(&[2, 1, 2, 7], &within(&[1, 1], &[]).repeat(parts)), // rules of a workload
        4 => state(&[2, 1, 2, 9], &within(&[1, 2], &[]).repeat(parts)), // files of a workload
        5 => {
            // workloads without anything
            let names = names().flat_map(|name| field(1, &[name, field(2, &[])].concat()));
            state(&[2], &names.collect::<Vec<u8>>())
        }
        6 => within(&[7, 2], &field(1, &[]).repeat(parts)), // log lines
        7 => within(&[1001], &field(1, &[]).repeat(parts)), // preparations
        _ => {
            // values of workloads
            let ids = names()
                .flat_map(|id| field(1, &[id, field(2, &[])].concat()))
                .collect::<Vec<u8>>();
            within(
                &[1000, 2, 3],
                &[field(1, b"w"), within(&[2], &ids)].concat(),
            )
        }
    }
}

#[test]
fn messages_of_tiny_parts_are_refused_within_bounded_memory() {
    for kind in 0..9 {
        let weight = |parts| {
            let bytes = dense(kind, parts);
            let mut left = Left::of(&bytes);
            let message = read_to_server(&bytes, &mut left);
            (message, left)
        };
        let (message, left) = weight(1_000);
        assert!(
            message.is_ok() && left.refused().is_none() && left.taken() >= 1_000 * PART,
            "kind {kind}: {left:?}"
        );
        let (message, left) = weight(if kind < 8 { 800_000 } else { 300_000 });
        let reason = left
            .refused()
            .unwrap_or_else(|| panic!("kind {kind}: {left:?}"));
        assert!(reason.contains("bytes of memory"), "{reason}");
        let is_request = kind < 6;
        assert_eq!(message.is_ok(), is_request, "kind {kind}");
    }
}

/// The library keeps it, our reader does not.
#[test]
fn what_is_unknown_counts_where_the_library_reads_it() {
    let unknown: Vec<u8> = (0..1_000_000)
        .flat_map(|number| field(2000 + number, &[]))
        .collect();
    for (path, is_counted) in [
        (&[3, 3][..], true),
        (&[3, 4, 1], true),
        (&[7, 2, 1, 1], true),
        (&[3, 2], false),
    ] {
        let bytes = within(path, &unknown);
        let mut left = Left::of(&bytes);
        let _ = read_to_server(&bytes, &mut left);
        assert_eq!(left.refused().is_some(), is_counted, "{path:?}: {left:?}");
    }
}

/// Text is no message, whatever its characters would be in one.
#[test]
fn log_lines_of_any_text_are_never_too_heavy() {
    for text in [
        " ".repeat(200_000),
        "a1 b2\tc3 ".repeat(20_000),
        "größer als".repeat(20_000),
    ] {
        let lines = (0..10)
            .flat_map(|_| within(&[1, 2], text.as_bytes()))
            .collect::<Vec<u8>>();
        assert!(read(&within(&[7, 2], &lines)).is_ok(), "{}", &text[..20]);
    }
    let short = (0..20_000).flat_map(|_| {
        within(
            &[1],
            &[
                within(&[1], &[field(1, b"w"), field(3, b"id")].concat()),
                field(2, &[b'x'; 80]),
            ]
            .concat(),
        )
    });
    assert!(read(&within(&[7, 2], &short.collect::<Vec<u8>>())).is_ok());
}

#[test]
fn messages_of_long_texts_and_usual_states_are_never_too_heavy() {
    let text = within(&[3, 2, 1, 1, 2, 1, 2, 6], &vec![b'x'; 8_000_000]);
    let workload = |number: usize| {
        let texts = [(1, "agent_A"), (5, "podman"), (6, "image: alpine:latest")]
            .map(|(n, text)| field(n, text.as_bytes()));
        let tags = within(&[4, 1], &[field(1, b"owner"), field(2, b"me")].concat());
        let workload = [&texts.concat(), tags.as_slice()].concat();
        field(
            1,
            &[
                field(1, format!("workload_{number}").as_bytes()),
                field(2, &workload),
            ]
            .concat(),
        )
    };
    let workloads = within(
        &[3, 2, 1, 1, 2],
        &(0..20_000).flat_map(workload).collect::<Vec<u8>>(),
    );
    for bytes in [text, workloads] {
        let mut left = Left::of(&bytes);
        read_to_server(&bytes, &mut left).unwrap();
        assert!(left.refused().is_none() && left.taken() > bytes.len());
    }
}

fn id_of(message: Decoded<ToServer>) -> Option<String> {
    match message {
        Ok(ToServer::Request(request)) => Some(request.id),
        _ => None,
    }
}

#[test]
fn who_sent_what_is_too_heavy_is_told_so() {
    let heavy = within(&[4], &field(1, &[]).repeat(1_000_000));
    for (begin, id) in [
        (field(1, b"id"), Some("id")),
        (
            [field(1, b"first"), field(3, b""), field(1, b"last")].concat(),
            Some("last"),
        ),
        (vec![], Some("")),
        (field(1, &[0xff]), None),
    ] {
        let bytes = field(3, &[begin, heavy.clone()].concat());
        let message = read(&bytes);
        if let Ok(ToServer::Request(Request { content, .. })) = &message {
            let RequestContent::UpdateState(UpdateState {
                new_state: Some(Err(reason)),
                ..
            }) = content
            else {
                panic!("{content:?}")
            };
            assert!(reason.contains("bytes of memory"), "{reason}");
        }
        assert_eq!(id_of(message).as_deref(), id);
        let of_workload = read_from_workload(&bytes);
        assert_eq!(
            matches!(of_workload, Ok(FromWorkload::TooHeavy { id: found, .. }) if Some(&*found) == id),
            id.is_some()
        );
    }
}

#[test]
fn what_is_no_request_may_not_be_too_large_for_others() {
    let info = "x".repeat(ankaios_model::limits::FOREIGN_MESSAGE_MAX);
    let log = within(&[7, 2, 1, 2], info.as_bytes());
    let request = within(&[3, 1], info.as_bytes());
    assert!(read(&log).is_err() && read(&request).is_ok());
    // Of several parts the last one counts.
    assert!(
        read(&[request.clone(), log.clone()].concat()).is_err()
            && read(&[log, request].concat()).is_ok()
    );
}

#[test]
fn what_is_malformed_is_refused_however_deep_it_nests() {
    for bytes in [
        &[0xff; 20][..],
        &[0x1a],
        &[0x1a, 5, 0x12],
        &[0x1a, 0xff, 0xff, 0xff, 0xff, 0x0f],
        &[0x0b, 0x0c, 9, 1],
    ] {
        assert!(
            read(bytes).is_err_and(|error| error.is_malformed()),
            "{bytes:?}"
        );
    }
    // Config items within config items.
    let nested = (0..5_000).fold(vec![], |inner, _| within(&[2, 1], &inner));
    let deep = within(&[3, 2, 1, 1, 3, 1, 2], &nested);
    let Ok(ToServer::Request(Request {
        content: RequestContent::UpdateState(update),
        ..
    })) = read(&deep)
    else {
        panic!()
    };
    assert_eq!(
        update.new_state,
        Some(Err("messages that nest too deep".to_owned()))
    );
}

#[test]
fn masks_are_counted_before_decoding_only_for_reads() {
    let masks = |number: u32, count: usize| field(number, b"a.b").repeat(count);
    let request = |content: Vec<u8>| field(3, &[field(1, b"id"), content].concat());
    let read_of = |count| request(field(3, &masks(1, count)));
    let most = READ_MASKS_PARTS_MAX / 2;
    let refusal = |bytes: &[u8]| match read(bytes) {
        Ok(ToServer::Request(Request { content, .. })) => match content {
            RequestContent::UpdateState(UpdateState {
                new_state: Some(Err(reason)),
                ..
            }) => Some(reason),
            _ => None,
        },
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal(&read_of(most)), None);
    let reason = refusal(&read_of(most + 1)).unwrap();
    assert!(
        reason.contains(&format!("have {} parts", 2 * most + 2)),
        "{reason}"
    );
    assert_eq!(refusal(&request(field(2, &masks(2, most + 1)))), None);
}

#[test]
fn the_id_of_a_request_is_found_in_its_first_bytes() {
    let request = field(3, &[field(1, b"w@7"), field(3, &[7; 10_000])].concat());
    assert_eq!(request_id_of_begin(&request[..100]).as_deref(), Some("w@7"));
    assert_eq!(request_id_of_begin(&request[..5]), None);
    assert_eq!(request_id_of_begin(&field(2, b"states")), None);
    assert_eq!(request_id_of_begin(&field(3, &field(3, &[7; 100]))), None);
    assert_eq!(request_id_of_begin(&[]), None);
}

// -------------------------------------------------------------------- hooks

#[test]
fn a_plan_that_is_cut_short_is_refused_wherever_it_ends() {
    let workload = Arc::new(workload_with_everything());
    let plan = WorkloadPlan {
        added: vec![AddedWorkload {
            instance: instance(),
            workload,
        }],
        deleted: vec![],
    };
    let bytes = write_plan(&plan);
    assert_eq!(
        (read_plan(&bytes), read_plan(&[])),
        (Ok(plan), Ok(WorkloadPlan::default()))
    );
    for end in 1..bytes.len() {
        assert!(
            read_plan(&bytes[..end]).is_err(),
            "{end} of {} bytes",
            bytes.len()
        );
    }
}

#[test]
fn a_plan_that_cannot_be_used_says_why() {
    assert!(read_plan(b"garbage").is_err_and(|error| error.is_malformed()));
    let name = |writer: &mut MessageWriter| writer.bytes(1, &within(&[1], b"web"));
    let added = |body: &dyn Fn(&mut MessageWriter)| {
        let mut writer = MessageWriter::default();
        writer.nested(1, body);
        writer.bytes
    };
    for (bytes, reason) in [
        (
            added(&|writer| writer.bytes(2, &tree::write_workload(&workload_with_everything()))),
            "No instance name",
        ),
        (added(&name), "No workload"),
        // A name of another type is none.
        (added(&|writer| writer.number(1, 0)), "No instance name"),
        (
            added(&|writer| {
                name(writer);
                writer.bytes(2, &[]);
            }),
            "Missing field 'agent'",
        ),
    ] {
        let error = read_plan(&bytes).unwrap_err();
        assert!(error.0 == reason && !error.is_malformed(), "{error}");
    }
}

/// Field 2 of a workload, the restart policy, with a number of a newer program.
const NEWER_POLICY: [u8; 2] = [0x10, 9];

fn newer_workload() -> Vec<u8> {
    [
        tree::write_workload(&workload_with_everything()),
        NEWER_POLICY.to_vec(),
    ]
    .concat()
}

// [utest->swdd~agent-refuses-unreadable-workload~1]
#[test]
fn newer_value_in_a_workload_refuses_it_alone() {
    let named = |name: &str| base::WorkloadInstanceName {
        workloadName: name.to_owned(),
        ..Default::default()
    };
    let added = |name: &str, workload: Vec<u8>| api::AddedWorkload {
        instanceName: MessageField::some(named(name)),
        workload: Some(workload),
        ..Default::default()
    };
    let good = tree::write_workload(&workload_with_everything());
    let condition = EnumOrUnknown::from_i32(7);
    let deleted = api::DeletedWorkload {
        instanceName: MessageField::some(named("gone")),
        dependencies: [("user".to_owned(), condition)].into(),
        ..Default::default()
    };
    let plan = api::UpdateWorkload {
        addedWorkloads: vec![added("newer", newer_workload()), added("good", good)],
        deletedWorkloads: vec![deleted],
        ..Default::default()
    };
    let bytes = plan.write_to_bytes().unwrap();
    let message = api::FromServer {
        FromServerEnum: Some(api::from_server::FromServerEnum::UpdateWorkload(plan)),
        ..Default::default()
    };
    let read = read_from_server(message.write_to_bytes().unwrap());
    let Ok(FromServer::UpdateWorkload(plan)) = read else {
        panic!("{read:?}")
    };
    let [newer, good] = &plan.added[..] else {
        panic!("{plan:?}")
    };
    let why = newer.workload.unreadable.as_deref().unwrap_or_default();
    assert!(
        why.contains("unknown enumeration value 9. The server is probably newer"),
        "{why}"
    );
    assert_eq!(newer.workload.runtime, workload_with_everything().runtime);
    assert_eq!(*good.workload, workload_with_everything());
    assert_eq!(
        plan.deleted[0].dependencies["user"],
        DeleteCondition::NotPendingNorRunning
    );
    // A hook of ours has to write what the server knows.
    assert!(read_plan(&bytes).is_err());
}

#[test]
fn newer_state_of_a_workload_is_unknown_and_the_others_are_read() {
    let state = |name: &str, bytes: Vec<u8>| base::WorkloadState {
        instanceName: MessageField::some(base::WorkloadInstanceName {
            workloadName: name.to_owned(),
            ..Default::default()
        }),
        executionState: Some(bytes),
        ..Default::default()
    };
    // Running with an unknown sub-state.
    let states = vec![state("newer", vec![0x20, 9]), state("good", vec![0x20, 0])];
    let states = api::UpdateWorkloadState {
        workloadStates: states,
        ..Default::default()
    };
    let message = api::FromServer {
        FromServerEnum: Some(api::from_server::FromServerEnum::UpdateWorkloadState(
            states,
        )),
        ..Default::default()
    };
    let read = read_from_server(message.write_to_bytes().unwrap());
    let Ok(FromServer::WorkloadStates(read)) = read else {
        panic!("{read:?}")
    };
    let phases: Vec<Phase> = read.iter().map(|state| state.state.phase).collect();
    assert_eq!(phases, [Phase::FailedUnknown, Phase::Running]);
    assert!(
        read[0]
            .state
            .additional_info
            .contains("unknown enumeration value 9"),
        "{read:?}"
    );
}

#[test]
fn newer_values_in_a_sent_state_are_shown_and_passed_on() {
    let mut state = base::CompleteState::new();
    let newer = base::Workload {
        restartPolicy: Some(EnumOrUnknown::from_i32(9)),
        ..Default::default()
    };
    let map = base::WorkloadMap {
        workloads: [("w".to_owned(), newer)].into(),
        ..Default::default()
    };
    state.desiredState = MessageField::some(base::State {
        workloads: MessageField::some(map),
        ..Default::default()
    });
    let tree = read_tree(&state, Parts::Sent).unwrap();
    let policy = tree.at(&["desiredState", "workloads", "w", "restartPolicy"]);
    assert_eq!(policy.and_then(Node::as_text), Some("9"));
    assert_eq!(read_tree(&written(&tree), Parts::Sent), Ok(tree));
}

/// A workload with a value in each of its fields.
fn workload_with_everything() -> ankaios_model::workload::Workload {
    use ankaios_model::access_rules::{AccessRule, Operation};
    use ankaios_model::workload::{AddCondition, File, FileContent, RestartPolicy, Workload};
    let mut workload = Workload::new("agent_A", "podman", "image: x");
    workload.restart_policy = RestartPolicy::OnFailure;
    workload.tags = texts(&[("owner", "me")]);
    let dependencies = [
        ("db", AddCondition::Running),
        ("init", AddCondition::Succeeded),
        ("bad", AddCondition::Failed),
    ];
    workload.dependencies = dependencies
        .map(|(name, condition)| (name.to_owned(), condition))
        .into();
    workload.configs = texts(&[("alias", "key")]);
    let file = |mount_point: &str, content| File {
        mount_point: mount_point.into(),
        content,
    };
    workload.files = vec![
        file("/etc/a", FileContent::Data("text".into())),
        file("/etc/b", FileContent::BinaryData("aGk=".into())),
        file("/etc/c", FileContent::Data(String::new())),
    ];
    let state_rule = |operation, mask: &str| AccessRule::State {
        operation,
        filter_masks: vec![mask.into()],
    };
    let log_rule = |name: &str| AccessRule::Log {
        workload_names: vec![name.into()],
    };
    let access = &mut workload.control_interface_access;
    access.allow_rules = vec![
        state_rule(Operation::Read, "desiredState.workloads.*"),
        log_rule("web*"),
    ];
    access.deny_rules = vec![state_rule(Operation::Nothing, "*"), log_rule("*")];
    workload
}

fn texts(entries: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
    entries
        .iter()
        .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()))
        .collect()
}
