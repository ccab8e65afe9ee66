//! The comparison of a cluster without disturbances with the desired state, as seen by the engines,
//! the agents and the server.
//!
//! Thread: the one of the test.

use super::agent_expectations::{has_ended, meets};
use super::cluster::{Cluster, SimNode};
use super::engine::{Container, removes_itself};
use super::guarded_updates::pending;
use super::life::RUNTIMES;
use super::server_expectations::not_in_force;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::reason::Reason;
use ankaios_model::workload::{AddCondition, RestartPolicy, Workload};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type States = BTreeMap<InstanceName, ExecutionState>;
type Effective = BTreeMap<Name, AddedWorkload>;

/// Returns the first difference from the desired state; `None` if there is none.
pub(crate) fn unsettled(cluster: &mut Cluster) -> Option<String> {
    if let Some(reason) = cluster.busy() {
        return Some(reason);
    }
    if let Some(reason) = cluster
        .leaks()
        .or_else(|| cluster.lost_state())
        .or_else(|| cluster.misled_workload())
    {
        return Some(reason);
    }
    let server = cluster.server.as_ref()?;
    if let Some(wrong) = not_in_force(server) {
        return Some(wrong);
    }
    let restarting = server.restarting();
    if !restarting.is_empty() {
        return Some(format!("the restart of {restarting:?} does not end"));
    }
    let view = server.view();
    let effective: Effective = view.effective.clone();
    let pending = pending(server);
    let states: States = server
        .reported_states()
        .into_iter()
        .map(|WorkloadState { instance, state }| (instance, state))
        .collect();
    if let Some(reason) = cluster.unfinished_update() {
        return Some(reason);
    }
    if let Some(instance) = cluster
        .reported
        .iter()
        .find(|instance| !states.contains_key(*instance))
    {
        return Some(format!(
            "the removal of '{instance}' was never reported to the server"
        ));
    }
    let nodes = &cluster.nodes;
    states_of_the_gone(nodes, &effective, &states)
        .or_else(|| {
            effective
                .values()
                .find_map(|added| workload(nodes, added, &effective, &states))
        })
        .or_else(|| {
            nodes
                .iter()
                .find_map(|node| unwanted_container(nodes, node, &effective, &states, &pending))
        })
        .or_else(|| nodes.iter().find_map(|node| agents_view(node, &states)))
        .or_else(|| {
            cluster
                .nodes
                .iter_mut()
                .find_map(|node| too_many_loops(node, &effective, &pending))
        })
}

/// Returns whether an instance continues to exist because others need it, by the messages to its
/// agent and by the desired state.
fn waits_to_stop(
    nodes: &[SimNode],
    instance: &InstanceName,
    effective: &Effective,
    states: &States,
) -> bool {
    waits_behind(nodes, instance, effective, states, &mut BTreeSet::new())
}

/// As [`waits_to_stop`]; `seen` are the instances that were visited already.
fn waits_behind<'s>(
    nodes: &[SimNode],
    instance: &'s InstanceName,
    effective: &Effective,
    states: &'s States,
    seen: &mut BTreeSet<&'s InstanceName>,
) -> bool {
    if !seen.insert(instance) {
        return false; // A wait in a circle is no reason.
    }
    let Some(node) = nodes.iter().find(|node| node.name == instance.agent) else {
        return false;
    };
    let Some(conditions) = node.expectations.delete_conditions.get(&instance.workload) else {
        return false;
    };
    states
        .get(instance)
        .is_some_and(|state| state.phase == Phase::StoppingWaitingToStop)
        && conditions.iter().any(|(name, condition)| {
            // One that waits for others itself, or for its `gone` condition, keeps what it needs
            // until then.
            let mut stopping = states.iter().filter(|(other, state)| {
                *other.workload == **name
                    && state.phase.state() == "Stopping"
                    && !state.fulfils_delete(*condition)
            });
            if stopping.any(|(other, _)| waits_behind(nodes, other, effective, states, seen)) {
                return true;
            }
            let needed = &*instance.workload;
            let dependent = effective.get(name.as_str()).map(|added| &added.workload);
            let needs_it =
                |it: &Arc<Workload>| it.dependencies.get(needed) == Some(&AddCondition::Running);
            if !dependent.is_some_and(needs_it) {
                return false;
            }
            let mut of_dependent = states.iter().filter(|(other, _)| *other.workload == **name);
            !of_dependent.all(|(_, state)| {
                state.phase.state() == "Stopping" || state.phase.fulfils_delete(*condition)
            })
        })
}

fn states_of_the_gone(nodes: &[SimNode], effective: &Effective, states: &States) -> Option<String> {
    for (instance, state) in states {
        let is_desired = match effective.get(&instance.workload) {
            Some(added) => added.instance == *instance,
            None => false,
        };
        if !is_desired && !waits_to_stop(nodes, instance, effective, states) {
            return Some(format!(
                "the server shows '{instance}' as {state}, which is not desired any more"
            ));
        }
    }
    None
}

fn container<'a>(
    node: &SimNode,
    found: &'a [Container],
    added: &AddedWorkload,
) -> Option<&'a Container> {
    debug_assert_eq!(node.name, added.instance.agent);
    found
        .iter()
        .find(|found| found.instance == added.instance && found.runtime == added.workload.runtime)
}

/// Returns the difference if a desired workload is in a wrong state.
fn workload(
    nodes: &[SimNode],
    added: &AddedWorkload,
    effective: &Effective,
    states: &States,
) -> Option<String> {
    let AddedWorkload { instance, workload } = added;
    let wrong = |why: &str| {
        Some(format!(
            "'{instance}' ({}): {why}",
            &*workload.runtime_config
        ))
    };
    let Some(state) = states.get(instance) else {
        return wrong("the server shows no state");
    };
    let phase = state.phase;
    if waits_to_stop(nodes, instance, effective, states) {
        return None;
    }
    let of_same_name = states
        .keys()
        .filter(|other| other.workload == instance.workload && *other != instance);
    let mut blocked = of_same_name.filter(|other| other.agent == instance.agent);
    if matches!(phase, Phase::PendingInitial | Phase::PendingWaitingToStart)
        && blocked.any(|other| waits_to_stop(nodes, other, effective, states))
    {
        return None;
    }
    let Some(node) = nodes.iter().find(|node| node.name == instance.agent) else {
        let expected = if instance.agent.is_empty() {
            Phase::NotScheduled
        } else {
            Phase::PendingInitial
        };
        return if phase == expected {
            None
        } else {
            wrong(&format!("is {state} without agent"))
        };
    };
    if let Some(ended) = outlived(added, states)
        && phase == Phase::Running
    {
        return wrong(&format!("runs although '{ended}' has ended"));
    }
    let found = node.engine.containers();
    let policy = workload.restart_policy;
    let config = &*workload.runtime_config;
    let there = container(node, &found, added);
    // No deadline ends what an earlier life of the agent started.
    let is_taken_over = |found: &Container| {
        node.life
            .as_ref()
            .is_some_and(|life| found.is_of_another_life(life.number))
    };
    // A workload that does not respond has failed, even if it has just ended with success and its
    // engine had not reported that in time.
    let was_given_up = |found: &Container| {
        let by_check = phase == Phase::FailedExecFailed && state.reason == Reason::Alive;
        by_check
            && node
                .life
                .as_ref()
                .is_some_and(|life| found.was_stopped_by(life.number))
    };
    let right = match there.map(Container::phase) {
        Some(Phase::Running) if config.contains("/never") => {
            phase == Phase::PendingStarting && there.is_some_and(is_taken_over)
        }
        Some(Phase::Running) => phase == Phase::Running,
        // One of an earlier life is kept until it may be started again.
        Some(Phase::Succeeded) if phase == Phase::PendingWaitingToStart => {
            !may_start(added, states)
        }
        Some(Phase::Succeeded) if there.is_some_and(was_given_up) => policy == RestartPolicy::Never,
        Some(Phase::Succeeded) => phase == Phase::Succeeded && policy != RestartPolicy::Always,
        Some(Phase::FailedExecFailed) => {
            phase == Phase::FailedExecFailed
                && (policy == RestartPolicy::Never || config.contains("maxRestarts"))
        }
        // It is only prepared.
        Some(Phase::PendingStarting) => {
            phase == Phase::PendingWaitingToStart && !may_start(added, states)
        }
        Some(_) => false,
        None => match phase {
            Phase::PendingWaitingToStart => {
                !may_start(added, states) || config.contains("activation")
            }
            // It was stopped and removed because its checks failed, and is not to be started again.
            Phase::FailedExecFailed => {
                let stays = policy == RestartPolicy::Never || config.contains("maxRestarts");
                config.contains("/never")
                    || (config.contains("alive") && policy == RestartPolicy::Never)
                    || (stays && node.engine.is_removed_by_hand(instance))
            }
            Phase::PendingStartingFailed => {
                workload.runtime_config.starts_with("bad")
                    || !RUNTIMES.contains(&&*workload.runtime)
            }
            Phase::FailedLost => node.engine.is_removed_by_hand(instance) || removes_itself(config),
            // It was seen to end before it was removed by hand.
            Phase::Succeeded => {
                node.engine.is_removed_by_hand(instance) && policy != RestartPolicy::Always
            }
            _ => false,
        },
    };
    if right {
        return None;
    }
    wrong(&format!(
        "is {state} while there is {:?}",
        container(node, &found, added)
    ))
}

/// A dependency that has ended, and with which the workload is restarted.
fn outlived<'a>(added: &'a AddedWorkload, states: &States) -> Option<&'a str> {
    if !added.workload.runtime_config.contains("restartWith") {
        return None;
    }
    for (name, condition) in &added.workload.dependencies {
        let mut of_name = states
            .iter()
            .filter(|(instance, _)| *instance.workload == **name)
            .peekable();
        let is_known = of_name.peek().is_some();
        if *condition == AddCondition::Running
            && is_known
            && of_name.all(|(_, state)| has_ended(state))
        {
            return Some(name);
        }
    }
    None
}

fn may_start(added: &AddedWorkload, states: &States) -> bool {
    for (name, condition) in &added.workload.dependencies {
        let mut states = states.iter();
        let is_met = states.any(|(instance, state)| {
            *instance.workload == **name && meets(state.phase, *condition)
        });
        if !is_met {
            return false;
        }
    }
    true
}

/// Returns a container that is not desired. A `pending` workload may be staged while its update
/// waits for agents that are not connected.
fn unwanted_container(
    nodes: &[SimNode],
    node: &SimNode,
    effective: &Effective,
    states: &States,
    pending: &BTreeSet<Name>,
) -> Option<String> {
    for found in node.engine.containers() {
        let instance = &found.instance;
        let is_of_node = node.name == instance.agent;
        let is_desired = match effective.get(&instance.workload) {
            Some(added) => {
                added.instance == *instance && added.workload.runtime == found.runtime && is_of_node
            }
            None => false,
        };
        let waits = is_of_node && waits_to_stop(nodes, instance, effective, states);
        let is_staged = pending.contains(&instance.workload) && node.engine.is_staged(instance);
        if !is_desired && !waits && !is_staged {
            let name = &node.name;
            return Some(format!("node {name}: nothing needs {found:?}"));
        }
    }
    None
}

/// Returns a state that the agent has in another version than the server. Some states are not sent
/// to agents, and of the texts of other agents' states only those for decisions.
fn agents_view(node: &SimNode, states: &States) -> Option<String> {
    let manager = &node.life.as_ref()?.manager;
    let known: States = manager
        .known_states()
        .map(|(instance, state)| (instance.clone(), state.clone()))
        .collect();
    let is_sent = |phase| !matches!(phase, Phase::PendingInitial | Phase::NotScheduled);
    let is_known = |instance: &InstanceName, state: &ExecutionState| {
        let own = instance.agent == node.name;
        known.get(instance)
            == Some(&if own {
                state.clone()
            } else {
                state.without_text()
            })
    };
    let missing = states
        .iter()
        .find(|(instance, state)| is_sent(state.phase) && !is_known(instance, state));
    if let Some((instance, state)) = missing {
        let own = known
            .get(instance)
            .map(ToString::to_string)
            .unwrap_or_default();
        return Some(format!(
            "agent {} knows '{instance}' as '{own}', the server as '{state}'",
            node.name
        ));
    }
    let more = known
        .iter()
        .find(|(instance, _)| !states.contains_key(instance));
    more.map(|(instance, state)| format!("agent {} still knows '{instance}' as {state}", node.name))
}

/// Returns the difference if an agent has more control loops than workloads. A `pending` workload has
/// one where it is prepared.
fn too_many_loops(
    node: &mut SimNode,
    effective: &Effective,
    pending: &BTreeSet<Name>,
) -> Option<String> {
    let waiting = node.expectations.delete_conditions.len() + pending.len();
    let mut desired = 0;
    for added in effective.values() {
        if added.instance.agent == node.name {
            desired += 1;
        }
    }
    let loops = node.life.as_mut()?.loops();
    if loops <= desired + waiting {
        return None;
    }
    let name = &node.name;
    Some(format!(
        "agent {name}: {loops} control loops for {desired} workloads"
    ))
}
