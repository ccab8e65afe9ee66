//! Who asked for which fields, and what changed: state changes to events (spec/server.md section 13).
//!
//! Thread: `server`; plain values. Differences are computed for the entries that changed and for nothing else.

use super::RequestKey;
use super::update::StateChange;
use crate::limits::{
    LASTING_REQUEST_PART, LASTING_REQUESTS_BYTES, LASTING_REQUESTS_OF_WORKLOAD_BYTES, SUBSCRIPTIONS_OF_WORKLOAD,
    SUBSCRIPTIONS_PER_PEER_MAX,
};
use crate::model::complete_state::{
    AgentAttributes, DesiredState, Rendering, WorkloadStates, agent_node, config_node, execution_state_node,
    workload_node,
};
use crate::model::execution_state::ExecutionState;
use crate::model::field_path::WILDCARD;
use crate::model::messages::AlteredFields;
use crate::model::names::{InstanceName, Name};
use crate::model::node::Node;
use crate::model::workload::Workload;
use crate::wire::server_endpoint::PeerId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The keys that lead to a node. A key may contain dots, so a path is more than its text.
pub type Path = Vec<String>;

/// Subscriptions by request, in the order of streams.
#[derive(Debug, Default)]
pub struct Subscriptions {
    by_request: BTreeMap<RequestKey, Subscription>,
}

#[derive(Debug)]
struct Subscription {
    masks: Vec<Path>,
    /// The instance that asked through its agent: its successor has not.
    owner: Option<InstanceName>,
}

/// A stream, or a workload, has as many subscriptions as it may have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("Too many event subscriptions of {whose}, at most {count} with field masks of {bytes} bytes are allowed")]
pub struct TooManySubscriptions {
    whose: &'static str,
    count: usize,
    bytes: usize,
}

/// What a subscription takes, about.
fn bytes(key: &RequestKey, paths: &[Path]) -> usize {
    let parts = paths.iter().flatten().map(|part| part.len() + LASTING_REQUEST_PART);
    key.id.len() + paths.len() * LASTING_REQUEST_PART + parts.sum::<usize>()
}

impl Subscriptions {
    /// Subscribes the request `key`; its earlier masks are replaced. No masks mean everything. `owner` is the instance
    /// that asks through its agent.
    ///
    /// # Errors
    /// [`TooManySubscriptions`].
    pub fn add(
        &mut self,
        key: RequestKey,
        masks: &[String],
        owner: Option<InstanceName>,
    ) -> Result<(), TooManySubscriptions> {
        let paths = masks.iter().filter(|mask| !mask.is_empty());
        let mut paths: Vec<Path> = paths.map(|mask| mask.split('.').map(str::to_owned).collect()).collect();
        if paths.is_empty() && !masks.is_empty() {
            paths.push(vec![String::new()]); // Only empty masks: they select nothing, which is not everything.
        }
        let has_room = |of: &dyn Fn(&RequestKey) -> bool, count_max: usize, bytes_max: usize| {
            let others = self.of_peer(key.peer).filter(|(other, _)| **other != key && of(other));
            let (count, taken) =
                others.fold((0, 0), |(count, taken), (key, other)| (count + 1, taken + bytes(key, &other.masks)));
            count < count_max && taken + bytes(&key, &paths) <= bytes_max
        };
        let (count, bytes) = (SUBSCRIPTIONS_OF_WORKLOAD, LASTING_REQUESTS_OF_WORKLOAD_BYTES);
        let is_of_workload = |other: &RequestKey| other.workload() == key.workload();
        if owner.is_some() && !has_room(&is_of_workload, count, bytes) {
            return Err(TooManySubscriptions { whose: "this workload", count, bytes });
        }
        let (count, bytes) = (SUBSCRIPTIONS_PER_PEER_MAX, LASTING_REQUESTS_BYTES);
        if !has_room(&|_| true, count, bytes) {
            return Err(TooManySubscriptions { whose: "this connection", count, bytes });
        }
        self.by_request.insert(key, Subscription { masks: paths, owner });
        Ok(())
    }

    /// Ends one subscription.
    pub fn remove(&mut self, key: &RequestKey) {
        self.by_request.remove(key);
    }

    /// Ends all subscriptions of a stream.
    pub fn remove_peer(&mut self, peer: PeerId) {
        self.by_request.retain(|key, _| key.peer != peer);
    }

    /// Ends all subscriptions of an instance that is gone.
    pub fn remove_owner(&mut self, instance: &InstanceName) {
        self.by_request.retain(|_, subscription| subscription.owner.as_ref() != Some(instance));
    }

    /// The subscriptions of a workload that speaks through the stream of its agent, with their masks.
    pub fn of_workload(&self, peer: PeerId, workload: &str) -> impl Iterator<Item = (&RequestKey, &[Path])> {
        let own = self.of_peer(peer).filter(move |(key, _)| key.workload() == Some(workload));
        own.map(|(key, subscription)| (key, &*subscription.masks))
    }

    fn of_peer(&self, peer: PeerId) -> impl Iterator<Item = (&RequestKey, &Subscription)> {
        let start = RequestKey { peer, id: String::new() };
        self.by_request.range(start..).take_while(move |(key, _)| key.peer == peer)
    }

    /// Whether that request is one.
    #[cfg(test)]
    pub fn contains(&self, key: &RequestKey) -> bool {
        self.by_request.contains_key(key)
    }

    /// How many each stream has.
    #[cfg(test)]
    pub fn by_peer(&self) -> BTreeMap<PeerId, usize> {
        let mut counts = BTreeMap::new();
        self.by_request.keys().for_each(|key| *counts.entry(key.peer).or_default() += 1);
        counts
    }

    /// Whether nobody listens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_request.is_empty()
    }

    /// The requests that `changes` concern, each with the paths that it is to be told.
    #[must_use]
    pub fn concerned(&self, changes: &Changes) -> Vec<(RequestKey, Altered)> {
        if changes.is_empty() {
            return Vec::new();
        }
        let matches = self.by_request.iter().map(|(key, one)| (key.clone(), changes.matching(&one.masks)));
        matches.filter(|(_, altered)| !altered.is_empty()).collect()
    }
}

/// Paths that one subscriber is told, sorted and each once.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Altered {
    added: BTreeSet<Path>,
    updated: BTreeSet<Path>,
    removed: BTreeSet<Path>,
}

impl Altered {
    fn is_empty(&self) -> bool {
        self.added.is_empty() && self.updated.is_empty() && self.removed.is_empty()
    }

    /// All paths, for the read that comes with an event.
    pub fn all(&self) -> impl Iterator<Item = &[String]> + Clone {
        self.added.iter().chain(&self.updated).chain(&self.removed).map(Vec::as_slice)
    }

    /// The paths as texts.
    #[must_use]
    pub fn fields(&self) -> AlteredFields {
        let texts = |paths: &BTreeSet<Path>| paths.iter().map(|path| path.join(".")).collect();
        AlteredFields { added: texts(&self.added), updated: texts(&self.updated), removed: texts(&self.removed) }
    }
}

// ------------------------------------------------------------------ changes

/// States that the instances of one workload had, by id.
type StatesById = BTreeMap<Name, Option<ExecutionState>>;
type StatesByWorkload = BTreeMap<Name, StatesById>;

/// What one trigger changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The highest new nodes, with everything below them.
    added: Vec<(Path, Node)>,
    /// The highest nodes that are gone, with everything that was below them.
    removed: Vec<(Path, Node)>,
    /// Leaves with another value.
    updated: Vec<Path>,
}

fn path(parts: &[&str]) -> Path {
    parts.iter().map(|part| (*part).to_owned()).collect()
}

impl Changes {
    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.updated.is_empty()
    }

    /// Notes how the node at `path` changed (section 13.3). Both are sparse: empty containers are not there.
    fn node(&mut self, path: &Path, old: Option<&Node>, new: Option<&Node>) {
        match (old, new) {
            (None, None) => {}
            (None, Some(new)) => self.added.push((path.clone(), new.clone())),
            (Some(old), None) => self.removed.push((path.clone(), old.clone())),
            (Some(Node::Map(old)), Some(Node::Map(new))) => {
                let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
                for key in keys {
                    let mut below = path.clone();
                    below.push(key.clone());
                    self.node(&below, old.get(key), new.get(key));
                }
            }
            (Some(Node::List(old)), Some(Node::List(new))) if old.is_empty() && !new.is_empty() => {
                self.added.push((path.clone(), Node::List(new.clone())));
            }
            (Some(Node::List(old)), Some(Node::List(new))) if !old.is_empty() && new.is_empty() => {
                self.removed.push((path.clone(), Node::List(old.clone())));
            }
            (Some(old), Some(new)) if old == new => {}
            (Some(_), Some(_)) => self.updated.push(path.clone()),
        }
    }

    /// An agent came, went or changed.
    pub fn agent(&mut self, name: &str, old: Option<&AgentAttributes>, new: Option<&AgentAttributes>) {
        let node = |agent: Option<&AgentAttributes>| agent.map(|agent| agent_node(agent, Rendering::Sparse));
        self.node(&path(&["agents", name]), node(old).as_ref(), node(new).as_ref());
    }

    /// States of instances changed: `old` are the states that they had before, `states` all as they are now.
    ///
    /// A new agent or workload is one addition, however many instances came with it; so the siblings that were there
    /// before decide which path is the highest.
    pub fn states(&mut self, old: Vec<(InstanceName, Option<ExecutionState>)>, states: &WorkloadStates) {
        // By agent, workload and id. What changed twice has the oldest state as its old one.
        let mut before: BTreeMap<Name, StatesByWorkload> = BTreeMap::new();
        for (InstanceName { workload, id, agent }, state) in old {
            before.entry(agent).or_default().entry(workload).or_default().entry(id).or_insert(state);
        }
        for (agent, workloads) in &before {
            let touched = |instance: &InstanceName| {
                workloads.get(&instance.workload).is_some_and(|ids| ids.contains_key(&instance.id))
            };
            let way = path(&["workloadStates", agent]);
            if states.of_agent(agent).any(|(instance, _)| !touched(&instance)) {
                workloads.iter().for_each(|(workload, ids)| self.workload_states(&way, agent, workload, ids, states));
                continue;
            }
            let (mut old, mut new) = (BTreeMap::new(), BTreeMap::new());
            for (workload, ids) in workloads {
                let (old_ids, new_ids) = old_and_new(states, agent, workload, ids);
                old.extend(old_ids.map(|ids| (workload.to_string(), ids)));
                new.extend(new_ids.map(|ids| (workload.to_string(), ids)));
            }
            self.node(&way, filled(old).as_ref(), filled(new).as_ref());
        }
    }

    /// The same one level below: the agent had and has other states.
    fn workload_states(
        &mut self,
        way: &Path,
        agent: &Name,
        workload: &Name,
        ids: &StatesById,
        states: &WorkloadStates,
    ) {
        let mut way = way.clone();
        way.push(workload.to_string());
        let others = states.of_agent_workload(agent, workload).any(|(instance, _)| !ids.contains_key(&instance.id));
        if !others {
            let (old, new) = old_and_new(states, agent, workload, ids);
            self.node(&way, old.as_ref(), new.as_ref());
            return;
        }
        for (id, state) in ids {
            let mut way = way.clone();
            way.push(id.to_string());
            let old = state.as_ref().map(execution_state_node);
            self.node(&way, old.as_ref(), current(states, agent, workload, id).as_ref());
        }
    }

    /// The desired state became `now`, and with its version that of the effective state; `before` leads back.
    pub fn desired(&mut self, before: &StateChange, now: &DesiredState) {
        if before.api_version != now.api_version {
            self.updated.push(path(&["desiredState", "apiVersion"]));
            self.updated.push(path(&["effectiveState", "apiVersion"]));
        }
        for (name, workload) in &before.workloads {
            self.workload("desiredState", name, workload.as_ref(), now.workloads.get(name));
        }
        let way = path(&["desiredState", "configs"]);
        let old = before.configs.iter().filter_map(|(key, item)| Some((key.clone(), config_node(item.as_ref()?))));
        let new = before.configs.keys().filter_map(|key| Some((key.clone(), config_node(now.configs.get(key)?))));
        let (old, new): (BTreeMap<String, Node>, BTreeMap<String, Node>) = (old.collect(), new.collect());
        if now.configs.len() == new.len() {
            // There are and were no others, so the first one brings the map itself and the last one takes it along.
            self.node(&way, filled(old).as_ref(), filled(new).as_ref());
            return;
        }
        for key in before.configs.keys() {
            let mut way = way.clone();
            way.push(key.clone());
            self.node(&way, old.get(key), new.get(key));
        }
    }

    /// A workload of the desired or effective state, named by `part`, came, went or changed.
    pub fn workload(&mut self, part: &str, name: &str, old: Option<&Arc<Workload>>, new: Option<&Arc<Workload>>) {
        let node =
            |workload: Option<&Arc<Workload>>| workload.map(|workload| workload_node(workload, Rendering::Sparse));
        self.node(&path(&[part, "workloads", name]), node(old).as_ref(), node(new).as_ref());
    }

    // -------------------------------------------------------------- matching

    /// What a subscriber with `masks` is told (section 13.4).
    fn matching(&self, masks: &[Path]) -> Altered {
        let mut altered = Altered::default();
        if masks.is_empty() {
            altered.added.extend(self.added.iter().map(|(path, _)| path.clone()));
            altered.removed.extend(self.removed.iter().map(|(path, _)| path.clone()));
            altered.updated.extend(self.updated.iter().cloned());
        }
        for mask in masks {
            for (found, changes) in [(&mut altered.added, &self.added), (&mut altered.removed, &self.removed)] {
                for (path, tree) in changes {
                    if leads_along(mask, path) {
                        let below = mask.get(path.len()..).unwrap_or_default();
                        collect_below(tree, below, path, found);
                    }
                }
            }
            let concerned = self.updated.iter().filter(|path| mask.len() <= path.len() && leads_along(mask, path));
            altered.updated.extend(concerned.cloned());
        }
        altered
    }
}

/// The trees of one workload's changed instances before and now; `None` when there was or is no state.
fn old_and_new(
    states: &WorkloadStates,
    agent: &Name,
    workload: &Name,
    ids: &StatesById,
) -> (Option<Node>, Option<Node>) {
    let before = ids.iter().filter_map(|(id, state)| Some((id.to_string(), execution_state_node(state.as_ref()?))));
    let now = ids.keys().filter_map(|id| Some((id.to_string(), current(states, agent, workload, id)?)));
    (filled(before.collect()), filled(now.collect()))
}

fn filled(entries: BTreeMap<String, Node>) -> Option<Node> {
    Some(Node::Map(entries)).filter(|node| !node.is_empty_container())
}

fn current(states: &WorkloadStates, agent: &Name, workload: &Name, id: &Name) -> Option<Node> {
    let instance = InstanceName { workload: workload.clone(), id: id.clone(), agent: agent.clone() };
    states.get(&instance).map(execution_state_node)
}

/// Whether mask and path agree as far as both go.
fn leads_along(mask: &[String], path: &[String]) -> bool {
    mask.iter().zip(path).all(|(part, key)| part == WILDCARD || part == key)
}

/// The concrete paths that the rest of a mask leads to below an added or removed node; the node's own when the mask
/// ends there or above.
fn collect_below(node: &Node, mask: &[String], path: &Path, found: &mut BTreeSet<Path>) {
    let Some((part, rest)) = mask.split_first() else {
        found.insert(path.clone());
        return;
    };
    let Node::Map(entries) = node else { return };
    for (key, child) in entries.iter().filter(|(key, _)| part == WILDCARD || part == *key) {
        let mut below = path.clone();
        below.push(key.clone());
        collect_below(child, rest, &below, found);
    }
}
