//! Who asked for which fields, and what changed: state changes to events.
//!
//! Thread: `server`; plain values. Differences are computed for the entries that changed and for nothing else, what is
//! told once for all who have asked for the same.

mod budget;

use super::RequestKey;
use super::update::StateChange;
use crate::limits::{
    CHANGES_PARTS_MAX, EVENT_NODE_STEPS, EVENT_PART_STEPS, EVENT_STEP_BYTES, LASTING_REQUESTS_BYTES,
    LASTING_REQUESTS_OF_WORKLOAD_BYTES, SUBSCRIPTIONS_OF_WORKLOAD, SUBSCRIPTIONS_PER_PEER_MAX,
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
use crate::wire::peer::PeerId;
pub use budget::{EventBudget, Subscriber, TooManyFields};
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
    /// `None` stands for everything. Equal masks are shared.
    masks: Option<Arc<MaskTree>>,
    /// The instance that asked through its agent: its successor has not.
    owner: Option<InstanceName>,
}

/// Subscriptions with the same masks, which are told the same.
#[derive(Debug)]
pub struct SameMasks {
    /// `None` stands for everything.
    pub masks: Option<Arc<MaskTree>>,
    /// Each with who pays for what it is told.
    pub subscriptions: Vec<(RequestKey, Subscriber)>,
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
                .fold((0, 0), |(count, taken), (key, other)| (count + 1, taken + bytes(key, other.masks.as_deref())));
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
        let masks = masks.map(|masks| {
            let others = self.by_request.values().filter_map(|other| other.masks.as_ref());
            others.into_iter().find(|other| ***other == masks).cloned().unwrap_or_else(|| Arc::new(masks))
        });
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
        own.map(|(key, subscription)| (key, subscription.masks.as_deref()))
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

    /// All subscriptions, those with the same masks together, in the order of the first of them.
    #[must_use]
    pub fn by_masks(&self) -> Vec<SameMasks> {
        let mut all: Vec<SameMasks> = Vec::new();
        let mut index = BTreeMap::new();
        for (key, Subscription { masks, owner }) in &self.by_request {
            let place = *index.entry(masks.as_ref().map(Arc::as_ptr)).or_insert(all.len());
            if place == all.len() {
                all.push(SameMasks { masks: masks.clone(), subscriptions: Vec::new() });
            }
            let workload = owner.as_ref().and_then(|_| key.workload()).map(Name::from);
            all[place].subscriptions.push((key.clone(), Subscriber { peer: key.peer, workload }));
        }
        all
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
    /// The highest new nodes, with everything below them, and what it takes to tell that.
    added: Vec<(Path, Node, usize)>,
    /// The highest nodes that are gone, with everything that was below them.
    removed: Vec<(Path, Node)>,
    /// Leaves with another value, and what it takes to tell that.
    updated: Vec<(Path, usize)>,
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
            (None, Some(new)) => self.added.push((path.clone(), new.clone(), value_steps(new))),
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
                let new = Node::List(new.clone());
                let steps = value_steps(&new);
                self.added.push((path.clone(), new, steps));
            }
            (Some(Node::List(old)), Some(Node::List(new))) if !old.is_empty() && new.is_empty() => {
                self.removed.push((path.clone(), Node::List(old.clone())));
            }
            (Some(old), Some(new)) if old == new => {}
            (Some(_), Some(new)) => self.updated.push((path.clone(), value_steps(new))),
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
            for part in ["desiredState", "effectiveState"] {
                self.updated.push((path(&[part, "apiVersion"]), EVENT_NODE_STEPS));
            }
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

    /// What a subscriber with `masks` is told, which takes from the steps that are `left`: to compare each changed path with
    /// all masks at once, and to read, encode and send what is told.
    ///
    /// # Errors
    /// [`TooManyFields`] when it takes more.
    pub fn matching(&self, masks: Option<&MaskTree>, left: &mut usize) -> Result<Altered, TooManyFields> {
        self.matched(masks, left).ok_or(TooManyFields)
    }

    fn matched(&self, masks: Option<&MaskTree>, left: &mut usize) -> Option<Altered> {
        let Altered { mut added, mut updated, mut removed } = Altered::default();
        for (path, tree, steps) in &self.added {
            find(tree, *steps, masks, path, &mut added, left)?;
        }
        for (path, tree) in &self.removed {
            find(tree, 0, masks, path, &mut removed, left)?; // Nothing is there that could be read.
        }
        for (path, steps) in &self.updated {
            if follow(masks, path, left)?.0 {
                tell(path, *steps, &mut updated, left)?;
            }
        }
        Some(Altered { added, updated, removed })
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

/// What it takes to read and encode a value.
fn value_steps(node: &Node) -> usize {
    EVENT_NODE_STEPS
        + match node {
            Node::Text(text) => text.len() / EVENT_STEP_BYTES,
            Node::Number(_) => 0,
            Node::List(items) => items.iter().map(value_steps).sum(),
            Node::Map(entries) => entries.values().map(|child| EVENT_NODE_STEPS + value_steps(child)).sum(),
        }
}

/// Adds a path to what is told.
fn tell(path: &Path, value_steps: usize, told: &mut BTreeSet<Path>, left: &mut usize) -> Option<()> {
    take(left, EVENT_PART_STEPS * path.len() + value_steps)?;
    told.insert(path.clone());
    Some(())
}

/// The paths that are told of the new or removed `node` at `path`, whose value takes `value_steps`.
fn find(
    node: &Node,
    value_steps: usize,
    masks: Option<&MaskTree>,
    path: &Path,
    found: &mut BTreeSet<Path>,
    left: &mut usize,
) -> Option<()> {
    let (is_wanted, below) = follow(masks, path, left)?;
    if is_wanted {
        tell(path, value_steps, found, left)?;
    }
    // What is told as a whole is read once, however many masks lead to its parts.
    let reads = value_steps > 0 && !is_wanted;
    below.map_or(Some(()), |below| collect_below(node, reads, &below, &mut path.clone(), found, left))
}

/// Whether a mask ends on the way to the node at `path` or there, and where the others go on below it. Without masks
/// everything is wanted.
fn follow<'m>(masks: Option<&'m MaskTree>, path: &Path, left: &mut usize) -> Option<(bool, Option<Wanted<'m>>)> {
    let Some(masks) = masks else { return Some((true, None)) };
    let (is_wanted, below) = path.iter().try_fold((false, masks.wanted()), |(is_wanted, wanted), key| {
        take(left, 1 + wanted.count())?;
        let wanted = wanted.on(key);
        Some((is_wanted || wanted.is_whole(), wanted))
    })?;
    Some((is_wanted, Some(below)))
}

/// The concrete paths that masks lead to below an added or removed node, whose values are read with `reads`.
fn collect_below(
    node: &Node,
    reads: bool,
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
        let is_whole = below.is_whole();
        if is_whole {
            tell(path, if reads { value_steps(child) } else { 0 }, found, left)?;
        }
        collect_below(child, reads && !is_whole, &below, path, found, left)?;
        path.pop();
    }
    Some(())
}
