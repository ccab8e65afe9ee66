//! The part without a server.

use super::*;
use ankaios_model::access_rules::{AccessRule, Operation};
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::messages::{FromServer, ReadState, RequestContent, Response, ResponseContent};
use ankaios_model::workload::Workload;
use ankaios_wire::outbox::{OutboxReader, outbox};
use std::sync::Arc;

fn hello(agent: &str) -> AgentHello {
    AgentHello {
        agent: agent.to_owned(),
        ..AgentHello::default()
    }
}

fn open_agent(sessions: &mut Sessions, id: u64, name: &str) -> OutboxReader {
    let (outbox, reader) = outbox();
    sessions.open_agent(PeerId(id), hello(name), None, &[], outbox);
    reader
}

pub(crate) fn open_client(sessions: &mut Sessions, id: u64, service: Service) -> OutboxReader {
    let (outbox, reader) = outbox();
    let peer = Peer {
        service,
        name: format!("client-{id}").into(),
        source: "host".into(),
    };
    sessions.open_client(PeerId(id), peer, outbox);
    reader
}

pub(crate) fn key(peer: u64, id: &str) -> RequestKey {
    RequestKey {
        peer: PeerId(peer),
        id: id.to_owned(),
    }
}

fn running(workload: &str, agent: &str) -> WorkloadState {
    let instance = InstanceName::new(workload, "x", agent);
    WorkloadState::new(instance, ExecutionState::plain(Phase::Running))
}

/// The workloads of all states that were sent.
fn received_states(reader: &OutboxReader) -> Vec<String> {
    let mut workloads = Vec::new();
    while let Some(message) = reader.try_next() {
        let FromServer::WorkloadStates(states) = message else {
            panic!("{message:?}")
        };
        for state in states {
            workloads.push(state.instance.workload.to_string());
        }
    }
    workloads
}

#[test]
fn newest_connection_of_an_agent_replaces_older_ones() {
    let mut sessions = Sessions::default();
    let (unused, _reader) = outbox();
    let first = sessions.arrival(PeerId(2), "A", &unused);
    assert_eq!(first, Arrival::First);
    let _first = open_agent(&mut sessions, 2, "A");
    let late = sessions.arrival(PeerId(1), "A", &unused);
    assert_eq!(late, Arrival::Outdated);
    let next = sessions.arrival(PeerId(3), "A", &unused);
    assert_eq!(next, Arrival::Replaces(PeerId(2)));
    assert_eq!(sessions.of_agent("A"), Some(PeerId(2)), "a question");
}

#[test]
fn states_are_sent_to_all_but_their_own_agent() {
    let mut sessions = Sessions::default();
    let a = open_agent(&mut sessions, 1, "A");
    let b = open_agent(&mut sessions, 2, "B");
    let cli = open_client(&mut sessions, 3, Service::Cli);
    let commander = open_client(&mut sessions, 4, Service::Command);
    sessions.broadcast_states(&[running("web", "A"), running("db", "B")]);
    assert_eq!(received_states(&a), ["db"]);
    assert_eq!(received_states(&b), ["web"]);
    assert_eq!(received_states(&cli), ["web", "db"]);
    assert_eq!(received_states(&commander), [""; 0]);
    sessions.broadcast_to_clis(&[running("web", "A")]);
    assert_eq!(received_states(&b), [""; 0]);
    assert_eq!(received_states(&cli), ["web"]);
}

#[test]
fn failed_stream_is_taken_once() {
    let mut sessions = Sessions::default();
    let _works = open_client(&mut sessions, 1, Service::Command);
    drop(open_client(&mut sessions, 2, Service::Command));
    for peer in [1, 2, 2] {
        sessions.refuse(&key(peer, "r"), "no");
    }
    assert_eq!(sessions.take_failed(), Some(PeerId(2)));
    assert_eq!(sessions.take_failed(), None);
}

#[test]
fn response_without_an_id_is_dropped() {
    let mut sessions = Sessions::default();
    let client = open_client(&mut sessions, 1, Service::Command);
    sessions.refuse(&key(1, ""), "nobody could assign it");
    sessions.refuse_or_drop(&key(1, ""), "nobody could assign it");
    sessions.refuse(&key(1, "r"), "no");
    let content = ResponseContent::Error("no".into());
    let id = "r".to_owned();
    let expected = FromServer::Response(Response { id, content });
    assert_eq!(client.try_next(), Some(expected));
    assert_eq!(client.try_next(), None);
}

#[test]
fn requester_on_the_stream_of_an_agent_is_a_workload() {
    let mut sessions = Sessions::default();
    let _agent = open_agent(&mut sessions, 1, "A");
    let _client = open_client(&mut sessions, 2, Service::Command);
    let workload = sessions.requester(&key(1, "web@1@x"));
    assert_eq!(workload.agent(), Some(&"A".into()));
    assert_eq!(workload.workload, Some("web".into()));
    let client = sessions.requester(&key(2, "web@1@x"));
    assert_eq!(client.agent(), None);
    assert_eq!(client.workload, None);
    let request = key(2, "web@1@x");
    assert_eq!(sessions.request_of(&request.full_id()), Some(request));
    assert_eq!(sessions.request_of(&key(3, "r").full_id()), None);
}

#[test]
fn load_and_tags_are_those_of_connected_agents_only() {
    let mut sessions = Sessions::default();
    let _agent = open_agent(&mut sessions, 1, "A");
    let load = AgentLoad {
        agent: "A".to_owned(),
        cpu_usage: 7,
        free_memory: 8,
        engine: "podman 4.3.1".to_owned(),
    };
    let tags: Tags = [("k".to_owned(), "v".to_owned())].into();
    let changes = sessions.load_reported(&"B".into(), &load);
    assert_eq!(changes, ChangedPaths::default(), "another one reports it");
    let changes = sessions.set_agent_tags([("B".into(), tags.clone())].into());
    assert_eq!(changes, ChangedPaths::default(), "it is not connected");
    assert_ne!(
        sessions.load_reported(&"A".into(), &load),
        ChangedPaths::default()
    );
    sessions.set_agent_tags([("A".into(), tags.clone())].into());
    let agent = &sessions.agents()["A"];
    assert_eq!(agent.engine, "podman 4.3.1");
    assert_eq!(agent.attributes.load, Some((7, 8)));
    assert_eq!(agent.attributes.tags, tags);
    let load = AgentLoad {
        engine: "x".repeat(4096),
        ..load
    };
    sessions.load_reported(&"A".into(), &load);
    let kept = sessions.agents()["A"].engine.len();
    assert!(kept < 256, "only the begin of a long text is kept: {kept}");
    let gone = sessions.remove_agent(&"A".into());
    assert_ne!(gone, ChangedPaths::default());
    assert!(sessions.agents().is_empty());
}

#[test]
fn rules_of_a_workload_apply_until_its_last_state_is_gone() {
    let mut sessions = Sessions::default();
    let _agent = open_agent(&mut sessions, 1, "A");
    let mut workload = Workload::new("A", "podman", "x");
    let rule = AccessRule::State {
        operation: Operation::Read,
        filter_masks: vec!["agents".to_owned()],
    };
    workload.control_interface_access.allow_rules.push(rule);
    let instance = InstanceName::new("web", "x", "A");
    let added = AddedWorkload {
        instance: instance.clone(),
        workload: Arc::new(workload),
    };
    let mut workloads = Workloads::default();
    let requester = sessions.requester(&key(1, "web@1"));
    let read = RequestContent::CompleteState(ReadState {
        masks: vec!["agents".to_owned()],
        subscribe: false,
    });
    let is_allowed = |sessions: &Sessions| sessions.rights().authorize(&requester, &read).is_ok();
    assert!(!is_allowed(&sessions));
    sessions.replaced(&[added], &[], &workloads);
    assert!(is_allowed(&sessions));
    let state = ExecutionState::plain(Phase::Running);
    workloads.states.set(&instance, state);
    sessions.replaced(&[], std::slice::from_ref(&instance), &workloads);
    assert!(is_allowed(&sessions), "it has a state");
    workloads.placeholders.insert(instance.clone());
    sessions.end_rights(&instance, &workloads);
    assert!(!is_allowed(&sessions), "what is staged was never there");
}
