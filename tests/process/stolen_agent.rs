//! An agent with the certificate of another node: it can make no other agent restart workloads,
//! remove images or delete what others want.
//!
//! Thread: the test's. Owns: one cluster with the fake engine, and a connection as the stolen agent.

use crate::images::start;
use crate::support::connection;
use crate::support::{Cluster, Recorder, workload};
use ankaios_lite::model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_lite::model::messages::{RequestContent, ToServer, UpdateState};
use ankaios_lite::model::names::InstanceName;
use ankaios_lite::model::node::Node;

fn ids(cluster: &Cluster) -> Vec<String> {
    let names = ["storage", "web"];
    names
        .iter()
        .map(|name| cluster.engine.only_container(name).1)
        .collect()
}

#[test]
fn stolen_agent_restarts_removes_and_deletes_nothing_elsewhere() {
    let cluster = start(&["agent_A"], "image_cleanup = 'replaced'");
    let web = workload("web", "run:v1")
        .after("storage", "ADD_COND_RUNNING")
        .config("lifecycle: { restartWith: DEPENDENCIES }");
    let updater = workload("updater", "run").allow("ReadWrite", "desiredState.workloads.own");
    cluster.run(&[workload("storage", "run:v1"), web, updater]);
    cluster.wait_until_run(&["storage", "web", "updater"]);
    let recorder = Recorder::start(&cluster);
    let before = (ids(&cluster), cluster.engine.image_names());
    let storage = InstanceName::new("storage", "image: run:v1", "agent_A");
    let own = InstanceName::with_id("storage", "id", "agent_B");
    let (mut sender, mut receiver, _hangup) = connection::agent(&cluster.url(), "agent_B");
    std::thread::spawn(move || while receiver.receive().is_ok() {});
    // First states: of the other agent's instance, and of one that it claims to have.
    for instance in [storage, own] {
        for phase in [
            Phase::Running,
            Phase::FailedExecFailed,
            Phase::Running,
            Phase::Removed,
        ] {
            let state = WorkloadState::new(instance.clone(), ExecutionState::plain(phase));
            let message = ToServer::WorkloadStates(vec![state]);
            sender.send(message).expect("the stream is open");
        }
    }
    // Then requests: in the name of the other agent's workload, of none, and of its own.
    for (number, requester) in ["updater", "storage", "", "stray"].iter().enumerate() {
        for masks in [&["desiredState.workloads.storage"][..], &["desiredState"]] {
            let update = UpdateState {
                new_state: Some(Ok(Node::empty())),
                masks: masks.iter().map(|mask| (*mask).to_owned()).collect(),
                ..UpdateState::default()
            };
            let id = format!("{requester}@{number}");
            connection::request(&mut sender, &id, RequestContent::UpdateState(update));
        }
    }
    // A message after them in the same stream arrives after them.
    let last = InstanceName::with_id("marker", "id", "agent_B");
    let state = WorkloadState::new(last, ExecutionState::plain(Phase::FailedUnknown));
    sender
        .send(ToServer::WorkloadStates(vec![state]))
        .expect("the stream is open");
    cluster.wait_for_state("marker", "Failed(Unknown)");
    // A restart by a client shows that the agent has seen the messages before it.
    cluster.ank(&["restart", "updater"]).success();
    cluster.wait_until_run(&["storage", "web", "updater"]);
    assert_eq!((ids(&cluster), cluster.engine.image_names()), before);
    assert!(
        recorder.states_of("web").is_empty(),
        "{:?}",
        recorder.states_of("web")
    );
    for command in ["rmi", "untag"] {
        assert!(cluster.engine.calls_of(command, "").is_empty(), "{command}");
    }
    let state = cluster.ank(&["get", "state", "-o", "json", "desiredState"]);
    for name in ["\"storage\"", "\"web\"", "\"updater\""] {
        assert!(state.stdout.contains(name), "{}", state.stdout);
    }
}
