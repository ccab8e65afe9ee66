//! What leaves one side arrives at the other as it was, through real bytes.
//!
//! Thread: the test's.

use super::tree::Parts;
use super::*;
use crate::limits::CONDITION_INFO_MAX;
use crate::model::complete_state::{Rendering, desired_state_from_node, workload_node};
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::manifest::tests::workload_with_everything;
use crate::model::messages::*;
use crate::model::names::InstanceName;
use crate::model::node::Node;
use crate::model::prepare_level::PrepareLevel;
use crate::model::usage::{AgentUsage, NodeUsage, WorkloadUsage};
use crate::model::workload::DeleteCondition;
use crate::wire::schema::{ank_base as base, grpc_api};
use protobuf::{EnumOrUnknown, Message, MessageField};
use std::sync::Arc;

fn instance() -> InstanceName {
    InstanceName::new("web", "image: x", "agent_A")
}

fn through_server(message: ToServer) -> ToServer {
    let bytes = to_server::write(message).write_to_bytes().unwrap();
    to_server::read(grpc_api::ToServer::parse_from_bytes(&bytes).unwrap())
}

fn through_client(message: FromServer) -> FromServer {
    let bytes = from_server::write(message).write_to_bytes().unwrap();
    from_server::read(grpc_api::FromServer::parse_from_bytes(&bytes).unwrap()).unwrap()
}

fn written(tree: &Node) -> base::CompleteState {
    base::CompleteState::parse_from_bytes(&tree::write_state(tree)).unwrap()
}

fn read(state: &base::CompleteState, parts: Parts) -> Result<Node, ConvertError> {
    tree::read_state(&state.write_to_bytes().unwrap(), parts)
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
        missing: None,
    };
    let missing = WorkloadUsage { missing: Some("why".to_owned()), ..WorkloadUsage::default() };
    let node = NodeUsage {
        cores: Some(2),
        cpu_busy_usec: Some(3),
        memory_total_bytes: Some(4),
        memory_available_bytes: Some(0),
    };
    let ids = [("1".into(), all), ("2".into(), missing), ("3".into(), WorkloadUsage::default())];
    AgentUsage { sampled_usec: Some(9), node, workloads: [("web".into(), ids.into())].into(), missing: None }
}

fn states() -> Vec<WorkloadState> {
    Phase::ALL
        .iter()
        .map(|(phase, ..)| WorkloadState::new(instance(), ExecutionState::with_info(*phase, "info")))
        .collect()
}

fn prepared(level: Option<PrepareLevel>, tries: u32) -> PreparedInstance {
    let reason = (tries > 0).then(|| "no such image".to_owned());
    let unmet = level.map(|_| "/run/nav/lock exists".to_owned());
    let is_final = tries > 2;
    PreparedInstance { instance: instance(), level, reason, tries, is_final, unmet }
}

/// The server keeps them and shows them to everybody, whoever sends them.
#[test]
fn texts_about_preparations_are_cut() {
    let long = Some("ä".repeat(CONDITION_INFO_MAX));
    let sent = PreparedInstance { reason: long.clone(), unmet: long, ..prepared(None, 1) };
    let ToServer::Prepared(read) = to_server::read(to_server::write(ToServer::Prepared(vec![sent]))) else { panic!() };
    for text in [&read[0].reason, &read[0].unmet] {
        assert!(text.as_ref().is_some_and(|text| text.len() <= CONDITION_INFO_MAX), "{text:?}");
    }
}

#[test]
fn messages_to_the_server_arrive_unchanged() {
    let tree = Node::map([(
        "desiredState",
        Node::map([
            ("apiVersion", Node::text("v1")),
            ("workloads", Node::map([("web", workload_node(&workload_with_everything(), Rendering::Full))])),
            ("configs", Node::map([("c", Node::List(vec![Node::text("x"), Node::map([("k", Node::text("v"))])]))])),
        ]),
    )]);
    let request = |content| ToServer::Request(Request { id: "a@b".into(), content });
    let logs = LogsRequest {
        instances: vec![instance()],
        follow: Some(false),
        tail: Some(-1),
        since: Some("s".into()),
        until: None,
    };
    for message in [
        ToServer::AgentHello {
            agent: "A".into(),
            version: "1.1.0".into(),
            tags: [("k".into(), "v".into())].into(),
            capabilities: AgentCapabilities { tells_usage: true, prepares: true },
        },
        ToServer::CommanderHello { version: "1.1.0".into() },
        ToServer::WorkloadStates(states()),
        ToServer::StatesComplete,
        ToServer::Prepared(vec![prepared(Some(PrepareLevel::Create), 0), prepared(None, 3)]),
        ToServer::AgentLoad(AgentLoad { agent: "A".into(), cpu_usage: 42, free_memory: u64::MAX }),
        request(RequestContent::UpdateState(UpdateState { new_state: Some(Ok(tree)), masks: vec!["m".into()] })),
        request(RequestContent::UpdateState(UpdateState { new_state: None, masks: vec![] })),
        request(RequestContent::RollBack(7)),
        request(RequestContent::CompleteState(ReadState { masks: vec!["m".into()], subscribe: true })),
        request(RequestContent::Logs(logs)),
        request(RequestContent::LogsCancel),
        request(RequestContent::EventsCancel),
        request(RequestContent::Missing),
        ToServer::LogEntries {
            request_id: "r".into(),
            entries: vec![LogEntry { instance: instance(), message: "line".into() }],
        },
        ToServer::LogsStop { request_id: "r".into(), instance: instance() },
        ToServer::UsageResponse { number: u64::MAX, usage: usage() },
        ToServer::UsageResponse { number: 0, usage: AgentUsage::missing("x") },
        ToServer::Goodbye,
        ToServer::Empty,
    ] {
        assert_eq!(through_server(message.clone()), message);
    }
}

/// A guarded update with all its fields.
fn guarded_update() -> Node {
    let texts = |keys: &[&'static str]| Node::map(keys.iter().map(|key| (*key, Node::text(*key))));
    let mut update = texts(&["phase", "reason", "accepted", "ended", "replacedBy", "keptIn"]);
    update.as_map_mut().unwrap().extend([
        ("losses".to_owned(), Node::Number(2)),
        ("waitsFor".to_owned(), Node::List(vec![Node::text("web"), Node::text("agent B")])),
        ("before".to_owned(), Node::map([("apiVersion", Node::text("v1")), ("configs", texts(&["k"]))])),
        ("workloads".to_owned(), Node::map([("web", texts(&["old", "new", "after"])), ("gone", Node::empty())])),
        ("configs".to_owned(), Node::map([("k", texts(&["after"])), ("gone", Node::empty())])),
    ]);
    update
}

#[test]
fn messages_from_the_server_arrive_unchanged() {
    let added = AddedWorkload { instance: instance(), workload: Arc::new(workload_with_everything()) };
    let deleted = DeletedWorkload {
        instance: instance(),
        dependencies: [("a".into(), DeleteCondition::NotPendingNorRunning), ("b".into(), DeleteCondition::Running)]
            .into(),
    };
    let state = Node::map([
        (
            "workloadStates",
            Node::map([("", Node::map([("w", Node::map([("id", Node::map([("additionalInfo", Node::text(""))]))]))]))]),
        ),
        ("agents", Node::map([("A", Node::map([("status", Node::map([("cpuUsage", Node::Number(1))]))]))])),
        ("updates", Node::map([("1", guarded_update()), ("2", Node::empty())])),
        ("usage", Node::map([("A", usage().node()), ("B", AgentUsage::missing("late").node())])),
        ("modes", modes()),
        ("timings", timings()),
        ("warning", Node::text("of the start")),
    ]);
    let response = |content| FromServer::Response(Response { id: "id".into(), content });
    for message in [
        FromServer::ServerHello(vec![added.clone()]),
        FromServer::Prepare(vec![added.clone()]),
        FromServer::UpdateWorkload(WorkloadPlan { added: vec![added], deleted: vec![deleted] }),
        FromServer::WorkloadStates(states()),
        FromServer::LogsRequest { request_id: "r".into(), request: LogsRequest::default() },
        FromServer::LogsCancel { request_id: "r".into() },
        FromServer::UsageRequest { number: 7 },
        response(ResponseContent::Error("no".into())),
        response(ResponseContent::CompleteState { state: state.clone(), altered: None }),
        response(ResponseContent::CompleteState {
            state,
            altered: Some(AlteredFields { added: vec!["a".into()], ..Default::default() }),
        }),
        response(ResponseContent::UpdateStateSuccess { added: vec!["a".into()], deleted: vec![] }),
        response(ResponseContent::LogsAccepted(vec![instance()])),
        response(ResponseContent::LogEntries(vec![LogEntry { instance: instance(), message: "x".into() }])),
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

/// Times of one instance, with each of them.
fn timings() -> Node {
    let keys = ["desired", "waiting", "starting", "started", "running", "ended", "starts"];
    let mut times: Vec<(&str, Node)> = keys.into_iter().zip(0..).map(|(key, at)| (key, Node::Number(at))).collect();
    times.push(("prepared", Node::text("INIT")));
    let workloads = Node::map([("w", Node::map([("id", Node::map(times)), ("new", Node::empty())]))]);
    let instances = Node::map([("A", workloads), ("", Node::empty())]);
    Node::map([("now", Node::Number(u64::MAX)), ("boot", Node::Number(0)), ("instances", instances)])
}

#[test]
fn parts_on_request_are_unknown_in_new_states() {
    let sent = Node::map([("modes", modes()), ("timings", timings()), ("agents", Node::empty())]);
    let message = written(&sent);
    assert_eq!(read(&message, Parts::Sent), Ok(sent));
    assert_eq!(read(&message, Parts::New), Ok(Node::map([("agents", Node::empty())])));
}

#[test]
fn a_zero_sub_state_is_on_the_wire() {
    let message = values::write_execution_state(&ExecutionState::plain(Phase::Running));
    // Field 1 (text, present though empty), then field 4 as a varint 0.
    assert_eq!(message.write_to_bytes().unwrap(), [0x0a, 0x00, 0x20, 0x00]);
}

#[test]
fn incomplete_states_are_skipped_one_by_one() {
    let good = values::write_workload_states(&[WorkloadState::new(instance(), ExecutionState::plain(Phase::Running))]);
    let mut states = good.clone();
    let mut unknown = good.workloadStates[0].clone();
    unknown.executionState.mut_or_insert_default().ExecutionStateEnum =
        Some(base::execution_state::ExecutionStateEnum::Pending(EnumOrUnknown::from_i32(77)));
    states.workloadStates.push(unknown);
    states.workloadStates.push(base::WorkloadState::default());
    let mut without_info = good.workloadStates[0].clone();
    without_info.executionState.mut_or_insert_default().additionalInfo = None;
    states.workloadStates.push(without_info);
    assert_eq!(values::read_workload_states(&states).len(), 2);
}

#[test]
fn unknown_numbers_and_open_choices_make_a_new_state_unreadable() {
    let mut bad_enum = base::Workload::new();
    bad_enum.restartPolicy = Some(EnumOrUnknown::from_i32(9));
    let mut bad_file = base::Workload::new();
    bad_file.files = MessageField::some(base::Files { files: vec![base::File::new()], ..Default::default() });
    for (workload, message) in [(bad_enum, "unknown enumeration value 9"), (bad_file, "Missing field 'file_content'")] {
        let mut state = base::CompleteState::new();
        let map = base::WorkloadMap { workloads: [("w".to_owned(), workload)].into(), ..Default::default() };
        state.desiredState =
            MessageField::some(base::State { workloads: MessageField::some(map), ..Default::default() });
        assert_eq!(read(&state, Parts::New).unwrap_err().to_string(), message);
    }
}

#[test]
fn a_workload_for_an_agent_must_be_complete() {
    let bytes = tree::write_workload(&workload_with_everything());
    let complete = base::Workload::parse_from_bytes(&bytes).unwrap();
    let read = |workload: &base::Workload| tree::read_workload(&workload.write_to_bytes().unwrap());
    assert_eq!(read(&complete).as_ref(), Ok(&workload_with_everything()));
    for (clear, message) in [
        ((|w: &mut base::Workload| w.agent = None) as fn(&mut base::Workload), "Missing field 'agent'"),
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
    let tree = read(&message, Parts::New).unwrap();
    assert_eq!(serde_json::to_string(&tree).unwrap(), r#"{"desiredState":{"apiVersion":"","workloads":{}}}"#);
    assert!(written(&tree).desiredState.workloads.is_some());
    assert!(written(&tree).desiredState.configs.is_none());
    assert!(desired_state_from_node(tree.get("desiredState").unwrap()).is_ok());
}

#[test]
fn what_an_update_without_masks_ignores_cannot_refuse_it() {
    let rule = base::AccessRightsRule {
        AccessRightsRuleEnum: Some(base::access_rights_rule::AccessRightsRuleEnum::StateRule(base::StateRule {
            operation: EnumOrUnknown::from_i32(77),
            ..Default::default()
        })),
        ..Default::default()
    };
    let access = base::ControlInterfaceAccess { allowRules: vec![rule], ..Default::default() };
    let workload = base::Workload { controlInterfaceAccess: MessageField::some(access), ..Default::default() };
    let workloads = base::WorkloadMap { workloads: [("w".to_owned(), workload)].into(), ..Default::default() };
    let strange = base::State { workloads: MessageField::some(workloads), ..Default::default() };
    let state = |desired: &base::State, effective: &base::State| base::CompleteState {
        desiredState: MessageField::some(desired.clone()),
        effectiveState: MessageField::some(effective.clone()),
        ..Default::default()
    };
    let plain = base::State { apiVersion: "v1".to_owned(), ..Default::default() };
    let read = |state: base::CompleteState, masks: &[&str]| {
        let update = base::UpdateStateRequest {
            newState: Some(state.write_to_bytes().unwrap()),
            updateMask: masks.iter().map(|mask| (*mask).to_owned()).collect(),
            ..Default::default()
        };
        let content = Some(base::request::RequestContent::UpdateStateRequest(update));
        let request = base::Request { RequestContent: content, ..Default::default() };
        match to_server::read_request(request).content {
            RequestContent::UpdateState(update) => update,
            other => panic!("{other:?}"),
        }
    };
    let ignored = read(state(&plain, &strange), &[]);
    assert!(ignored.new_state.is_some_and(|state| state.is_ok_and(|state| state.get("desiredState").is_some())));
    assert!(read(state(&strange, &plain), &[]).new_state.is_some_and(|state| state.is_err()));
    let masked = read(state(&plain, &strange), &["desiredState"]);
    assert!(masked.new_state.is_some_and(|state| state.is_err()) && masked.masks == ["desiredState"]);
}

/// The length of a message stands before it and takes one to five bytes.
#[test]
fn messages_of_any_length_arrive_unchanged() {
    for length in [0, 1, 100, 127, 128, 129, 16_383, 16_384, 3_000_000] {
        let text = Node::text("x".repeat(length));
        let config = |node| Node::map([("configs", Node::map([("c", node)])), ("apiVersion", Node::text("v1"))]);
        for node in [text.clone(), Node::map([("k", Node::List(vec![text.clone(), text.clone()]))])] {
            let state = Node::map([("desiredState", config(node.clone())), ("effectiveState", config(node))]);
            assert_eq!(read(&written(&state), Parts::New), Ok(state), "{length}");
        }
    }
}

#[test]
fn what_a_tree_has_in_another_shape_is_left_out() {
    let agent = |status| Node::map([("agents", Node::map([("A", Node::map([("status", status), ("x", modes())]))]))]);
    let status = Node::map([("cpuUsage", Node::text("1")), ("freeMemory", Node::Number(5))]);
    let (written, expected) = (written(&agent(status)), Node::map([("freeMemory", Node::Number(5))]));
    let read = read(&written, Parts::New).unwrap();
    assert_eq!(read.at(&["agents", "A", "status", "freeMemory"]), expected.get("freeMemory"));
    assert!(read.at(&["agents", "A", "x"]).is_none());
}
