//! Who asked for which fields, and what changed: state changes to events.
//!
//! Thread: `server`; plain values. Differences are computed for the entries that changed and for nothing else.

use super::RequestKey;
use super::update::StateChange;
use crate::limits::{
    CHANGES_PARTS_MAX, EVENT_PART_STEPS, EVENT_STEPS_MAX, LASTING_REQUESTS_BYTES, LASTING_REQUESTS_OF_WORKLOAD_BYTES,
    SUBSCRIPTIONS_OF_WORKLOAD, SUBSCRIPTIONS_PER_PEER_MAX,
};
use crate::model::complete_state::{
    AgentAttributes, DesiredState, Rendering, WorkloadStates, agent_node, config_node, execution_state_node,
    workload_node,
};
use crate::model::execution_state::ExecutionState;
use crate::model::mask_tree::{MaskTree, Wanted};
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
    /// `None` stands for everything.
    masks: Option<MaskTree>,
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

/// What a subscription takes, in bytes, about.
fn bytes(key: &RequestKey, masks: Option<&MaskTree>) -> usize {
    key.id.len() + masks.map_or(0, MaskTree::bytes)
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
        masks: Option<MaskTree>,
        owner: Option<InstanceName>,
    ) -> Result<(), TooManySubscriptions> {
        let has_room = |of: &dyn Fn(&RequestKey) -> bool, count_max: usize, bytes_max: usize| {
            let others = self.of_peer(key.peer).filter(|(other, _)| **other != key && of(other));
            let (count, taken) = others
                .fold((0, 0), |(count, taken), (key, other)| (count + 1, taken + bytes(key, other.masks.as_ref())));
            count < count_max && taken + bytes(&key, masks.as_ref()) <= bytes_max
        };
        let (count, most) = (SUBSCRIPTIONS_OF_WORKLOAD, LASTING_REQUESTS_OF_WORKLOAD_BYTES);
        let is_of_workload = |other: &RequestKey| other.workload() == key.workload();
        if owner.is_some() && !has_room(&is_of_workload, count, most) {
            return Err(TooManySubscriptions { whose: "this workload", count, bytes: most });
        }
        let (count, most) = (SUBSCRIPTIONS_PER_PEER_MAX, LASTING_REQUESTS_BYTES);
        if !has_room(&|_| true, count, most) {
            return Err(TooManySubscriptions { whose: "this connection", count, bytes: most });
        }
        self.by_request.insert(key, Subscription { masks, owner });
        Ok(())
    }

    /// Ends all subscriptions.
    pub fn take_all(&mut self) -> Vec<RequestKey> {
        std::mem::take(&mut self.by_request).into_keys().collect()
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
    pub fn of_workload(&self, peer: PeerId, workload: &str) -> impl Iterator<Item = (&RequestKey, Option<&MaskTree>)> {
        let own = self.of_peer(peer).filter(move |(key, _)| key.workload() == Some(workload));
        own.map(|(key, subscription)| (key, subscription.masks.as_ref()))
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

    /// The requests of all subscriptions.
    #[must_use]
    pub fn keys(&self) -> Vec<RequestKey> {
        self.by_request.keys().cloned().collect()
    }

    /// The paths that the subscription of `key` is to be told of `changes`. `budget` is that of these changes.
    ///
    /// # Errors
    /// [`TooManyFields`].
    pub fn altered(
        &self,
        key: &RequestKey,
        changes: &Changes,
        budget: &mut EventBudget,
    ) -> Result<Altered, TooManyFields> {
        let Some(Subscription { masks, owner }) = self.by_request.get(key) else { return Ok(Altered::default()) };
        let workload = owner.as_ref().and_then(|_| key.workload());
        let whose = (key.peer, workload.unwrap_or(&key.id).to_owned());
        changes.matching(masks.as_ref(), budget.left.entry(whose).or_insert(EVENT_STEPS_MAX)).ok_or(TooManyFields)
    }
}

/// What may still be compared with one change: of a workload for all its subscriptions together, of others for each.
#[derive(Debug, Default)]
pub struct EventBudget {
    left: BTreeMap<(PeerId, String), usize>,
}

/// So much changed that telling each path of it would keep everybody waiting.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("Too many fields changed at once; the event subscription ends, subscribe again")]
pub struct TooManyFields;

/// Paths that one subscriber is told, sorted and each once.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Altered {
    added: BTreeSet<Path>,
    updated: BTreeSet<Path>,
    removed: BTreeSet<Path>,
}

impl Altered {
    /// Whether it is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
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
    /// Parts of all paths below. When there are too many, none of them is told.
    parts: usize,
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

    /// Whether too much changed to tell each path of it.
    #[must_use]
    pub fn are_too_many(&self) -> bool {
        self.parts > CHANGES_PARTS_MAX
    }

    /// The node at `path` changed. Both are sparse: empty containers are not there.
    fn node(&mut self, path: &Path, old: Option<&Node>, new: Option<&Node>) {
        self.compare(&mut path.clone(), old, new);
    }

    fn compare(&mut self, path: &mut Path, old: Option<&Node>, new: Option<&Node>) {
        let before = self.added.len() + self.removed.len() + self.updated.len();
        match (old, new) {
            _ if self.are_too_many() => return,
            (None, None) => {}
            (None, Some(new)) => self.added.push((path.clone(), new.clone())),
            (Some(old), None) => self.removed.push((path.clone(), old.clone())),
            (Some(Node::Map(old)), Some(Node::Map(new))) => {
                let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
                for key in keys {
                    path.push(key.clone());
                    self.compare(path, old.get(key), new.get(key));
                    path.pop();
                }
                return;
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
        self.parts += path.len() * (self.added.len() + self.removed.len() + self.updated.len() - before);
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

    /// What a subscriber with `masks` is told, which takes from the steps that are `left`; `None` when it takes more. Each
    /// changed path is compared with all of them at once.
    fn matching(&self, masks: Option<&MaskTree>, left: &mut usize) -> Option<Altered> {
        let mut altered = Altered::default();
        let Some(masks) = masks else {
            altered.added.extend(self.added.iter().map(|(path, _)| path.clone()));
            altered.removed.extend(self.removed.iter().map(|(path, _)| path.clone()));
            altered.updated.extend(self.updated.iter().cloned());
            return Some(altered);
        };
        for (found, changes) in [(&mut altered.added, &self.added), (&mut altered.removed, &self.removed)] {
            for (path, tree) in changes {
                let (is_wanted, below) = follow(masks, path, left)?;
                if is_wanted {
                    found.insert(path.clone());
                }
                collect_below(tree, &below, &mut path.clone(), found, left)?;
            }
        }
        for path in &self.updated {
            if follow(masks, path, left)?.0 {
                altered.updated.insert(path.clone());
            }
        }
        Some(altered)
    }
}

/// Takes `steps` from those that are `left`; `None` when there are not so many.
fn take(left: &mut usize, steps: usize) -> Option<()> {
    *left = left.checked_sub(steps)?;
    Some(())
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

/// Whether a mask ends on the way to the node at `path` or there, and where the others go on below it.
fn follow<'m>(masks: &'m MaskTree, path: &Path, left: &mut usize) -> Option<(bool, Wanted<'m>)> {
    path.iter().try_fold((false, masks.wanted()), |(is_wanted, wanted), key| {
        take(left, 1 + wanted.count())?;
        let wanted = wanted.on(key);
        Some((is_wanted || wanted.is_whole(), wanted))
    })
}

/// The concrete paths that masks lead to below an added or removed node.
fn collect_below(
    node: &Node,
    wanted: &Wanted<'_>,
    path: &mut Path,
    found: &mut BTreeSet<Path>,
    left: &mut usize,
) -> Option<()> {
    let Node::Map(entries) = node else { return Some(()) };
    if wanted.is_nothing() {
        return Some(());
    }
    for (key, child) in entries {
        take(left, 1 + wanted.count())?;
        let below = wanted.on(key);
        if below.is_nothing() {
            continue;
        }
        path.push(key.clone());
        if below.is_whole() {
            take(left, EVENT_PART_STEPS * path.len())?;
            found.insert(path.clone());
        }
        collect_below(child, &below, path, found, left)?;
        path.pop();
    }
    Some(())
}
