//! The part without a server: calls, and the effects that they add.

use super::*;
use crate::effects::Effect;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::mask_tree::MaskTree;
use ankaios_model::messages::FromServer;
use ankaios_model::names::InstanceName;
use ankaios_model::node::Node;
use ankaios_model::workload::{ConfigItem, Workload};
use ankaios_platform::clock::{Clock, SystemClock};
use std::sync::Arc;

fn workload(config: &str) -> Option<Arc<Workload>> {
    Some(Arc::new(Workload::new("A", "podman", config)))
}

fn instance(config: &str) -> InstanceName {
    InstanceName::new("web", config, "A")
}

fn change_of_web(workload: Option<Arc<Workload>>) -> DesiredChange {
    DesiredChange {
        workloads: BTreeMap::from([("web".into(), workload)]),
        ..DesiredChange::default()
    }
}

/// Commits a change and returns its effects.
fn commit(updates: &mut Updates, change: DesiredChange) -> Vec<Effect> {
    let checked = updates
        .workloads
        .check(change, UpdateSource::Update)
        .unwrap();
    let mut effects = Effects::default();
    updates.commit(
        checked,
        ChangedPaths::default(),
        SystemClock.now(),
        &mut effects,
    );
    effects.into_iter().collect()
}

/// Reports one state of an agent and returns the effects.
fn report(
    updates: &mut Updates,
    agent: &str,
    instance: &InstanceName,
    phase: Phase,
) -> Vec<Effect> {
    let state = WorkloadState::new(instance.clone(), ExecutionState::plain(phase));
    let mut effects = Effects::default();
    updates.states_reported(&agent.into(), vec![state], SystemClock.now(), &mut effects);
    effects.into_iter().collect()
}

/// The names of effects.
fn kinds(effects: &[Effect]) -> Vec<&'static str> {
    let mut kinds = Vec::new();
    for effect in effects {
        kinds.push(match effect {
            Effect::SendToAgent { .. } => "send",
            Effect::Respond { .. } => "respond",
            Effect::Broadcast(_) => "broadcast",
            Effect::BroadcastToClis(_) => "broadcast to clis",
            Effect::Publish(_) => "publish",
            Effect::PublishLater(_) => "publish later",
            Effect::Store => "store",
            Effect::Replaced { .. } => "replaced",
            Effect::Reported { .. } => "reported",
            Effect::InstanceGone(_) => "gone",
            Effect::ShowStaged => "show staged",
            Effect::EssentialFailed(_) => "essential failed",
            Effect::Close { .. } => "close",
        });
    }
    kinds
}

fn with_running_web() -> Updates {
    let mut updates = Updates::default();
    updates.agent_connected(&"A".into());
    commit(&mut updates, change_of_web(workload("1")));
    report(&mut updates, "A", &instance("1"), Phase::Running);
    updates
}

#[test]
fn commit_stores_and_publishes_before_agents_receive_it() {
    let mut updates = Updates::default();
    updates.agent_connected(&"A".into());
    let effects = commit(&mut updates, change_of_web(workload("1")));
    assert_eq!(
        kinds(&effects),
        ["store", "replaced", "publish", "broadcast", "send"]
    );
    let Some(Effect::SendToAgent {
        agent,
        message: FromServer::UpdateWorkload(plan),
    }) = effects.last()
    else {
        panic!("{effects:?}")
    };
    assert_eq!((&**agent, &plan.added[0].instance), ("A", &instance("1")));
}

#[test]
fn commit_sends_nothing_to_an_agent_that_is_away() {
    let mut updates = Updates::default();
    let effects = commit(&mut updates, change_of_web(workload("1")));
    assert!(!kinds(&effects).contains(&"send"), "{effects:?}");
    updates.agent_connected(&"A".into());
    let effects = commit(&mut updates, change_of_web(workload("2")));
    assert!(kinds(&effects).contains(&"send"), "{effects:?}");
}

#[test]
fn change_of_a_config_alone_is_published_after_the_response() {
    let mut updates = Updates::default();
    let change = DesiredChange {
        configs: BTreeMap::from([("k".into(), Some(ConfigItem::Text("v".into())))]),
        ..DesiredChange::default()
    };
    let effects = commit(&mut updates, change);
    assert!(kinds(&effects).contains(&"publish later"), "{effects:?}");
    assert!(!kinds(&effects).contains(&"publish"), "{effects:?}");
}

#[test]
fn commit_of_the_state_as_it_is_stores_nothing() {
    let mut updates = with_running_web();
    let effects = commit(&mut updates, DesiredChange::default());
    assert!(!kinds(&effects).contains(&"store"), "{effects:?}");
}

#[test]
fn report_about_the_workload_of_another_agent_is_ignored() {
    let mut updates = with_running_web();
    updates.agent_connected(&"B".into());
    report(&mut updates, "B", &instance("1"), Phase::FailedLost);
    let state = updates.workloads().states.get(&instance("1")).unwrap();
    assert_eq!(state.phase, Phase::Running);
}

#[test]
fn deleted_instance_keeps_its_state_until_its_end_is_reported() {
    let mut updates = with_running_web();
    commit(&mut updates, change_of_web(None));
    assert!(updates.workloads().states.get(&instance("1")).is_some());
    let effects = report(&mut updates, "A", &instance("1"), Phase::Removed);
    assert_eq!(kinds(&effects), ["reported"]);
    assert!(updates.workloads().states.get(&instance("1")).is_none());
}

#[test]
fn lost_agent_makes_the_states_of_its_instances_unknown() {
    let mut updates = with_running_web();
    let mut effects = Effects::default();
    updates.agent_gone(
        &"A".into(),
        ChangedPaths::default(),
        SystemClock.now(),
        &mut effects,
    );
    let state = updates.workloads().states.get(&instance("1")).unwrap();
    assert_eq!(state.phase, Phase::AgentDisconnected);
    assert!(!updates.is_connected(&"A".into()));
}

#[test]
fn instance_lost_with_its_agent_is_gone_after_first_report() {
    let mut updates = with_running_web();
    commit(&mut updates, change_of_web(None));
    updates.agent_connected(&"A".into());
    let mut effects = Effects::default();
    updates.all_states_reported(&"A".into(), SystemClock.now(), &mut effects);
    assert!(updates.workloads().states.get(&instance("1")).is_none());
}

#[test]
fn change_of_the_version_alone_changes_the_state() {
    let desired = DesiredState::default();
    let of_version = |version: &str| DesiredChange {
        api_version: Some(version.to_owned()),
        ..DesiredChange::default()
    };
    assert!(DesiredChange::default().keeps(&desired));
    assert!(of_version(&desired.api_version).keeps(&desired));
    assert!(!of_version("v0.1").keeps(&desired));
    assert!(!change_of_web(workload("1")).keeps(&desired));
}

#[test]
fn history_has_what_the_part_and_the_server_note_in_it() {
    let mut updates = Updates::default();
    updates.agent_connected(&"A".into());
    updates.history_mut().server_started();
    let masks = MaskTree::new(["history"]);
    let Some(Node::List(changes)) = updates.history().read(&masks.named("history")) else {
        panic!("no list of changes")
    };
    assert_eq!(changes.len(), 2);
    let lines = updates.history_mut().take_unstored();
    assert_eq!(lines.lines().count(), 2, "{lines}");
    assert_eq!(updates.history_mut().take_unstored(), "");
}
