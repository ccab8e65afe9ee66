//! The comparison of a cluster without disturbances with the desired state, as seen by the engines,
//! the agents and the server.
//!
//! Thread: the one of the test.

use super::agent_expectations::{has_ended, meets};
use super::cluster::{Cluster, SimNode};
use super::engine::{Container, removes_itself};
use super::guarded_updates::pending;
use super::life::RUNTIMES;
use super::server_expectations::{ServerExpectations, not_in_force};
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::reason::Reason;
use ankaios_model::workload::{AddCondition, RestartPolicy};
use std::collections::{BTreeMap, BTreeSet};

type States = BTreeMap<InstanceName, ExecutionState>;
type Effective = BTreeMap<Name, AddedWorkload>;

/// What the engines, the agents and the server show.
struct Observed<'o> {
    nodes: &'o [SimNode],
    effective: &'o Effective,
    states: &'o States,
    expectations: &'o ServerExpectations,
}

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
    let mut states = States::new();
    for WorkloadState { instance, state } in server.reported_states() {
        states.insert(instance, state);
    }
    if let Some(reason) = cluster.unfinished_update() {
        return Some(reason);
    }
    for instance in &cluster.reported {
        if !states.contains_key(instance) {
            return Some(format!(
                "the removal of '{instance}' was never reported to the server"
            ));
        }
    }
    let observed = Observed {
        nodes: &cluster.nodes,
        effective: &effective,
        states: &states,
        expectations: &cluster.expectations,
    };
    if let Some(wrong) = states_of_the_gone(&observed) {
        return Some(wrong);
    }
    for added in effective.values() {
        if let Some(wrong) = workload(&observed, added) {
            return Some(wrong);
        }
    }
    for node in &cluster.nodes {
        if let Some(wrong) = unwanted_container(&observed, node, &pending) {
            return Some(wrong);
        }
    }
    for node in &cluster.nodes {
        if let Some(wrong) = agents_view(node, &states) {
            return Some(wrong);
        }
    }
    for node in &mut cluster.nodes {
        if let Some(wrong) = too_many_loops(node, &effective, &pending) {
            return Some(wrong);
        }
    }
    None
}

impl Observed<'_> {
    /// Returns whether an instance still exists because others need it. The messages to its agent
    /// and the desired state say which do.
    fn waits_to_stop(&self, instance: &InstanceName) -> bool {
        self.waits_behind(instance, &mut BTreeSet::new())
    }

    /// As [`Self::waits_to_stop`]; `seen` are the instances that were visited already.
    fn waits_behind<'o>(
        &'o self,
        instance: &'o InstanceName,
        seen: &mut BTreeSet<&'o InstanceName>,
    ) -> bool {
        if !seen.insert(instance) {
            return false; // A wait in a circle is no reason.
        }
        let mut nodes = self.nodes.iter();
        let Some(node) = nodes.find(|node| node.name == instance.agent) else {
            return false;
        };
        let Some(conditions) = node.expectations.delete_conditions.get(&instance.workload) else {
            return false;
        };
        let Some(state) = self.states.get(instance) else {
            return false;
        };
        if state.phase != Phase::StoppingWaitingToStop {
            return false;
        }
        for (dependent, condition) in conditions {
            // A dependent that waits for others itself, or for its `gone` condition, keeps its
            // dependencies until then.
            for (other, state) in self.states {
                if *other.workload == **dependent
                    && state.phase.state() == "Stopping"
                    && !state.fulfils_delete(*condition)
                    && self.waits_behind(other, seen)
                {
                    return true;
                }
            }
            // A desired dependent that is not stopping keeps it as well, if it was there when the
            // delete was sent.
            let Some(desired) = self.effective.get(dependent.as_str()) else {
                continue;
            };
            let needs = desired.workload.dependencies.get(&*instance.workload);
            if needs != Some(&AddCondition::Running)
                || !self.expectations.may_keep(dependent, instance)
            {
                continue;
            }
            for (other, state) in self.states {
                if *other.workload == **dependent
                    && state.phase.state() != "Stopping"
                    && !state.phase.fulfils_delete(*condition)
                {
                    return true;
                }
            }
        }
        false
    }
}

fn states_of_the_gone(observed: &Observed) -> Option<String> {
    for (instance, state) in observed.states {
        let is_desired = match observed.effective.get(&instance.workload) {
            Some(added) => added.instance == *instance,
            None => false,
        };
        if !is_desired && !observed.waits_to_stop(instance) {
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
fn workload(observed: &Observed, added: &AddedWorkload) -> Option<String> {
    let Observed { nodes, states, .. } = *observed;
    let AddedWorkload { instance, workload } = added;
    let config = &*workload.runtime_config;
    let Some(state) = states.get(instance) else {
        return Some(format!(
            "'{instance}' ({config}): the server shows no state"
        ));
    };
    let phase = state.phase;
    if observed.waits_to_stop(instance) {
        return None;
    }
    // An instance starts when the earlier ones on its agent have ended.
    if matches!(phase, Phase::PendingInitial | Phase::PendingWaitingToStart) {
        for other in states.keys() {
            if other.workload == instance.workload
                && other.agent == instance.agent
                && other != instance
                && observed.waits_to_stop(other)
            {
                return None;
            }
        }
    }
    let Some(node) = nodes.iter().find(|node| node.name == instance.agent) else {
        let expected = if instance.agent.is_empty() {
            Phase::NotScheduled
        } else {
            Phase::PendingInitial
        };
        if phase == expected {
            return None;
        }
        return Some(format!("'{instance}' ({config}): is {state} without agent"));
    };
    if let Some(ended) = outlived(added, states)
        && phase == Phase::Running
    {
        return Some(format!(
            "'{instance}' ({config}): runs although '{ended}' has ended"
        ));
    }
    let found = node.engine.containers();
    let found = container(node, &found, added);
    let is_right = match found {
        Some(found) => is_state_of(node, found, added, state, states),
        None => is_state_without_container(node, added, phase, states),
    };
    if is_right {
        return None;
    }
    Some(format!(
        "'{instance}' ({config}): is {state} while there is {found:?}"
    ))
}

/// Returns whether a state is right for a workload with this container.
fn is_state_of(
    node: &SimNode,
    found: &Container,
    added: &AddedWorkload,
    state: &ExecutionState,
    states: &States,
) -> bool {
    let phase = state.phase;
    let policy = added.workload.restart_policy;
    let config = &*added.workload.runtime_config;
    match found.phase() {
        // A container of an earlier life of the agent has no deadline.
        Phase::Running if config.contains("/never") => {
            let is_of_earlier_life = match &node.life {
                Some(life) => found.is_of_another_life(life.number),
                None => false,
            };
            phase == Phase::PendingStarting && is_of_earlier_life
        }
        Phase::Running => phase == Phase::Running,
        // One of an earlier life is kept until it may be started again.
        Phase::Succeeded if phase == Phase::PendingWaitingToStart => !may_start(added, states),
        // A workload that does not respond has failed, even if it succeeded before its engine
        // reported that.
        Phase::Succeeded if was_given_up(node, found, state) => policy == RestartPolicy::Never,
        Phase::Succeeded => phase == Phase::Succeeded && policy != RestartPolicy::Always,
        Phase::FailedExecFailed => {
            phase == Phase::FailedExecFailed
                && (policy == RestartPolicy::Never || config.contains("maxRestarts"))
        }
        // It is only prepared.
        Phase::PendingStarting => {
            phase == Phase::PendingWaitingToStart && !may_start(added, states)
        }
        _ => false,
    }
}

/// Returns whether the running agent has stopped the container because a check failed.
fn was_given_up(node: &SimNode, found: &Container, state: &ExecutionState) -> bool {
    if state.phase != Phase::FailedExecFailed || state.reason != Reason::Alive {
        return false;
    }
    match &node.life {
        Some(life) => found.was_stopped_by(life.number),
        None => false,
    }
}

/// Returns whether a phase is right for a workload without container.
fn is_state_without_container(
    node: &SimNode,
    added: &AddedWorkload,
    phase: Phase,
    states: &States,
) -> bool {
    let AddedWorkload { instance, workload } = added;
    let policy = workload.restart_policy;
    let config = &*workload.runtime_config;
    match phase {
        Phase::PendingWaitingToStart => !may_start(added, states) || config.contains("activation"),
        // It was stopped and removed because its checks failed, and must not be started again.
        Phase::FailedExecFailed => {
            let stays = policy == RestartPolicy::Never || config.contains("maxRestarts");
            config.contains("/never")
                || (config.contains("alive") && policy == RestartPolicy::Never)
                || (stays && node.engine.is_removed_by_hand(instance))
        }
        Phase::PendingStartingFailed => {
            config.starts_with("bad") || !RUNTIMES.contains(&&*workload.runtime)
        }
        Phase::FailedLost => node.engine.is_removed_by_hand(instance) || removes_itself(config),
        // It was seen to end before it was removed by hand.
        Phase::Succeeded => {
            node.engine.is_removed_by_hand(instance) && policy != RestartPolicy::Always
        }
        _ => false,
    }
}

/// A dependency that has ended, and with which the workload is restarted.
fn outlived<'a>(added: &'a AddedWorkload, states: &States) -> Option<&'a str> {
    if !added.workload.runtime_config.contains("restartWith") {
        return None;
    }
    for (name, condition) in &added.workload.dependencies {
        if *condition != AddCondition::Running {
            continue;
        }
        let mut of_name = Vec::new();
        for (instance, state) in states {
            if *instance.workload == **name {
                of_name.push(state);
            }
        }
        if !of_name.is_empty() && of_name.into_iter().all(has_ended) {
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
    observed: &Observed,
    node: &SimNode,
    pending: &BTreeSet<Name>,
) -> Option<String> {
    for found in node.engine.containers() {
        let instance = &found.instance;
        let is_of_node = node.name == instance.agent;
        let is_desired = match observed.effective.get(&instance.workload) {
            Some(added) => {
                added.instance == *instance && added.workload.runtime == found.runtime && is_of_node
            }
            None => false,
        };
        let waits = is_of_node && observed.waits_to_stop(instance);
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
    let name = &node.name;
    for (instance, state) in states {
        if matches!(state.phase, Phase::PendingInitial | Phase::NotScheduled) {
            continue;
        }
        let expected = if instance.agent == *name {
            state.clone()
        } else {
            state.without_text()
        };
        let own = known.get(instance);
        if own != Some(&expected) {
            let own = own.map(ToString::to_string).unwrap_or_default();
            return Some(format!(
                "agent {name} knows '{instance}' as '{own}', the server as '{state}'"
            ));
        }
    }
    for (instance, state) in known {
        if !states.contains_key(&instance) {
            return Some(format!("agent {name} still knows '{instance}' as {state}"));
        }
    }
    None
}

/// Returns the difference if an agent has more control loops than workloads. A `pending` workload
/// has one where it is prepared.
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
