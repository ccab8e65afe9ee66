//! Event subscriptions and what changed: state changes to events.
//!
//! Thread: `server`; plain values and the part of [`ServerLoop`] that uses them. Differences are computed for the entries
//! that changed and for nothing else, and each event once for all subscriptions with the same masks.

use super::ServerLoop;
use super::peers::PeerClass;
use super::requester::{RequestKey, Requester};
use super::shares::{ByRequest, EventBudget, LastingRequest, TooMany, check_room, of_peer};
use super::update::StateChange;
use crate::limits::{
    CHANGES_PARTS_MAX, EVENT_NODE_STEPS, EVENT_PART_STEPS, EVENT_STEP_BYTES, SUBSCRIPTIONS_OF_WORKLOAD,
    SUBSCRIPTIONS_PER_PEER_MAX,
};
use crate::model::complete_state::{
    AgentAttributes, DesiredState, Rendering, WorkloadStates, agent_node, config_node, execution_state_node,
    workload_node,
};
use crate::model::execution_state::ExecutionState;
use crate::model::mask_tree::{MaskTree, Wanted};
use crate::model::messages::AlteredFields;
use crate::model::names::{InstanceName, Name};
use crate::model::node::{Entries, Node};
use crate::model::workload::Workload;
use crate::wire::outbox::Encoded;
use crate::wire::peer::PeerId;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;

/// The keys that lead to a node. A key may contain dots, so a path is more than its text.
pub type Path = Vec<String>;

/// The error for a subscriber when so much changed that an event with each path of it would keep everybody waiting.
const TOO_MANY_FIELDS: &str = "Too many fields changed at once; the event subscription ends, subscribe again";
/// The error for a subscriber that does not take its events.
const EVENTS_LOST: &str = "Events were not taken in time and are lost; the event subscription ends, subscribe again to \
                           get the state";

/// All subscriptions.
#[derive(Debug, Default)]
pub struct Subscriptions {
    by_request: ByRequest<Subscription>,
}

#[derive(Debug)]
struct Subscription {
    requester: Requester,
    /// `None` stands for everything. Equal masks are shared.
    masks: Option<Arc<MaskTree>>,
    /// The instance that subscribed through its agent: its successor has not.
    owner: Option<InstanceName>,
}

impl LastingRequest for Subscription {
    const NAME: &str = "event subscriptions";
    const OF_WORKLOAD: usize = SUBSCRIPTIONS_OF_WORKLOAD;
    const OF_STREAM: usize = SUBSCRIPTIONS_PER_PEER_MAX;

    fn bytes(&self) -> usize {
        self.masks.as_ref().map_or(0, |masks| masks.bytes())
    }
}

/// Subscriptions with the same masks, which get the same events.
#[derive(Debug)]
struct SameMasks {
    masks: Option<Arc<MaskTree>>,
    /// Each with the requester whose budget its events are charged to.
    subscriptions: Vec<(RequestKey, Requester)>,
}

impl Subscriptions {
    /// Subscribes the request `key`; its earlier masks are replaced. No masks mean everything. `owner` is the instance
    /// that subscribes through its agent.
    ///
    /// # Errors
    /// [`TooMany`]; an earlier subscription under `key` stays.
    pub fn add(
        &mut self,
        requester: &Requester,
        key: &RequestKey,
        masks: Option<MaskTree>,
        owner: Option<InstanceName>,
    ) -> Result<(), TooMany> {
        let masks = masks.map(|masks| {
            let mut others = self.by_request.values().filter_map(|other| other.masks.as_ref());
            others.find(|other| ***other == masks).cloned().unwrap_or_else(|| Arc::new(masks))
        });
        let subscription = Subscription { requester: requester.clone(), masks, owner };
        let earlier = self.by_request.remove(key);
        let checked = check_room(&self.by_request, requester, key, &subscription);
        let kept = if checked.is_ok() { Some(subscription) } else { earlier };
        self.by_request.extend(kept.map(|kept| (key.clone(), kept)));
        checked
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

    /// The subscriptions of a workload on the stream of its agent, with their masks.
    pub fn of_workload(&self, peer: PeerId, workload: &str) -> impl Iterator<Item = (&RequestKey, Option<&MaskTree>)> {
        let own = of_peer(&self.by_request, peer).filter(move |(key, _)| key.workload() == Some(workload));
        own.map(|(key, subscription)| (key, subscription.masks.as_deref()))
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

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_request.is_empty()
    }

    /// All subscriptions, those with the same masks together, in the order of the first of them.
    fn by_masks(&self) -> Vec<SameMasks> {
        let mut all: Vec<SameMasks> = Vec::new();
        let mut index = BTreeMap::new();
        for (key, Subscription { masks, requester, .. }) in &self.by_request {
            let place = *index.entry(masks.as_ref().map(Arc::as_ptr)).or_insert(all.len());
            if place == all.len() {
                all.push(SameMasks { masks: masks.clone(), subscriptions: Vec::new() });
            }
            all[place].subscriptions.push((key.clone(), requester.clone()));
        }
        all
    }
}

/// The paths of one event, sorted and each once.
#[derive(Debug, Default, PartialEq, Eq)]
struct Altered {
    added: BTreeSet<Path>,
    updated: BTreeSet<Path>,
    removed: BTreeSet<Path>,
}

impl Altered {
    fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }

    /// All paths, for the read that comes with an event.
    fn all(&self) -> impl Iterator<Item = &[String]> + Clone {
        self.added.iter().chain(&self.updated).chain(&self.removed).map(Vec::as_slice)
    }

    /// The paths as texts.
    fn fields(&self) -> AlteredFields {
        let texts = |paths: &BTreeSet<Path>| paths.iter().map(|path| path.join(".")).collect();
        AlteredFields { added: texts(&self.added), updated: texts(&self.updated), removed: texts(&self.removed) }
    }
}

// ------------------------------------------------------------------ changes

/// States that the instances of one workload had, by id.
type StatesById = BTreeMap<Name, Option<ExecutionState>>;

/// What one trigger changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Parts of all paths below. When there are too many, no event has them.
    parts: usize,
    /// The highest new nodes, with everything below them, and the steps to send that.
    added: Vec<(Path, Node, usize)>,
    /// The highest nodes that are gone, with everything that was below them.
    removed: Vec<(Path, Node)>,
    /// Leaves with another value, and the steps to send that.
    updated: Vec<(Path, usize)>,
}

fn path(parts: &[&str]) -> Path {
    parts.iter().map(|part| (*part).to_owned()).collect()
}

impl Changes {
    fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.updated.is_empty()
    }

    /// Whether too much changed to send each path of it.
    fn are_too_many(&self) -> bool {
        self.parts > CHANGES_PARTS_MAX
    }

    /// The node at `path` changed. Both are sparse: empty containers are not there.
    fn node(&mut self, path: &mut Path, old: Option<&Node>, new: Option<&Node>) {
        let before = self.added.len() + self.removed.len() + self.updated.len();
        match (old, new) {
            _ if self.are_too_many() => return,
            (None, None) => {}
            (None, Some(new)) => self.added.push((path.clone(), new.clone(), value_steps(new))),
            (Some(old), None) => self.removed.push((path.clone(), old.clone())),
            (Some(Node::Map(old)), Some(Node::Map(new))) => return self.each_entry(path, old, new),
            (Some(old), Some(new)) if old == new => {}
            // An empty list means the same as none.
            (Some(Node::List(old)), Some(new @ Node::List(_))) if old.is_empty() => {
                self.added.push((path.clone(), new.clone(), value_steps(new)));
            }
            (Some(old @ Node::List(_)), Some(Node::List(new))) if new.is_empty() => {
                self.removed.push((path.clone(), old.clone()));
            }
            (Some(_), Some(new)) => self.updated.push((path.clone(), value_steps(new))),
        }
        self.parts += path.len() * (self.added.len() + self.removed.len() + self.updated.len() - before);
    }

    fn each_entry(&mut self, way: &mut Path, old: &Entries, new: &Entries) {
        let keys: BTreeSet<&str> = old.keys().chain(new.keys()).collect();
        for key in keys {
            way.push(key.to_owned());
            self.node(way, old.get(key), new.get(key));
            way.pop();
        }
    }

    /// An agent came, went or changed.
    pub fn agent(&mut self, name: &str, old: Option<&AgentAttributes>, new: Option<&AgentAttributes>) {
        let node = |agent: Option<&AgentAttributes>| agent.map(|agent| agent_node(agent, Rendering::Sparse));
        self.node(&mut path(&["agents", name]), node(old).as_ref(), node(new).as_ref());
    }

    /// Entries of the map at `way` changed. The first one adds the map itself and the last one removes it, unless the map
    /// has other entries.
    fn entries(&mut self, way: &mut Path, old: Entries, new: Entries, has_others: bool) {
        if has_others {
            self.each_entry(way, &old, &new);
        } else {
            self.node(way, filled(old).as_ref(), filled(new).as_ref());
        }
    }

    /// States of instances changed: `old` are the states that they had before, `states` all as they are now.
    ///
    /// A new agent or workload is one addition, however many instances came with it.
    pub fn states(&mut self, old: Vec<(InstanceName, Option<ExecutionState>)>, states: &WorkloadStates) {
        // By agent, workload and id. What changed twice has the oldest state as its old one.
        let mut before: BTreeMap<Name, BTreeMap<Name, StatesById>> = BTreeMap::new();
        for (InstanceName { workload, id, agent }, state) in old {
            before.entry(agent).or_default().entry(workload).or_default().entry(id).or_insert(state);
        }
        for (agent, workloads) in &before {
            let is_touched = |instance: &InstanceName| {
                workloads.get(&instance.workload).is_some_and(|ids| ids.contains_key(&instance.id))
            };
            let has_others = states.of_agent(agent).any(|(instance, _)| !is_touched(&instance));
            let mut way = path(&["workloadStates", agent]);
            let (mut all_old, mut all_new) = (Entries::default(), Entries::default());
            for (workload, ids) in workloads {
                let (old, new) = old_and_new(states, agent, workload, ids);
                if has_others {
                    let mut ids_now = states.of_agent_workload(agent, workload);
                    let has_other_ids = ids_now.any(|(instance, _)| !ids.contains_key(&instance.id));
                    way.push(workload.to_string());
                    self.entries(&mut way, old, new, has_other_ids);
                    way.pop();
                } else {
                    all_old.extend(filled(old).map(|ids| (workload.to_string(), ids)));
                    all_new.extend(filled(new).map(|ids| (workload.to_string(), ids)));
                }
            }
            self.entries(&mut way, all_old, all_new, has_others);
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
        let old = before.configs.iter().filter_map(|(key, item)| Some((key.clone(), config_node(item.as_ref()?))));
        let new = before.configs.keys().filter_map(|key| Some((key.clone(), config_node(now.configs.get(key)?))));
        let (old, new): (Entries, Entries) = (old.collect(), new.collect());
        let has_others = now.configs.len() > new.len();
        self.entries(&mut path(&["desiredState", "configs"]), old, new, has_others);
    }

    /// A workload of the desired or effective state, named by `part`, came, went or changed.
    pub fn workload(&mut self, part: &str, name: &str, old: Option<&Arc<Workload>>, new: Option<&Arc<Workload>>) {
        let node =
            |workload: Option<&Arc<Workload>>| workload.map(|workload| workload_node(workload, Rendering::Sparse));
        self.node(&mut path(&[part, "workloads", name]), node(old).as_ref(), node(new).as_ref());
    }

    // -------------------------------------------------------------- matching

    /// The event for a subscriber with `masks`. Takes from the steps that are `left`: to compare each changed path with all
    /// masks at once, and to read, encode and send the event. `None` when these are not enough.
    fn matching(&self, masks: Option<&MaskTree>, left: &mut usize) -> Option<Altered> {
        let Altered { mut added, mut updated, mut removed } = Altered::default();
        for (path, tree, steps) in &self.added {
            find(tree, *steps, masks, path, &mut added, left)?;
        }
        for (path, tree) in &self.removed {
            find(tree, 0, masks, path, &mut removed, left)?; // Nothing is there that could be read.
        }
        for (path, steps) in &self.updated {
            if follow(masks, path, left)?.0 {
                add_path(path, *steps, &mut updated, left)?;
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

/// The changed instances of one workload before and now, by id.
fn old_and_new(states: &WorkloadStates, agent: &Name, workload: &Name, ids: &StatesById) -> (Entries, Entries) {
    let before = ids.iter().filter_map(|(id, state)| Some((id.to_string(), execution_state_node(state.as_ref()?))));
    let now = ids.keys().filter_map(|id| Some((id.to_string(), current(states, agent, workload, id)?)));
    (before.collect(), now.collect())
}

fn filled(entries: Entries) -> Option<Node> {
    (!entries.is_empty()).then_some(Node::Map(entries))
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

/// Adds a path to an event.
fn add_path(path: &Path, value_steps: usize, event: &mut BTreeSet<Path>, left: &mut usize) -> Option<()> {
    take(left, EVENT_PART_STEPS * path.len() + value_steps)?;
    event.insert(path.clone());
    Some(())
}

/// The paths of an event for the new or removed `node` at `path`, whose value takes `value_steps`.
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
        add_path(path, value_steps, found, left)?;
    }
    // What is sent as a whole is read once, however many masks lead to its parts.
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
        path.push(key.to_owned());
        let is_whole = below.is_whole();
        if is_whole {
            add_path(path, if reads { value_steps(child) } else { 0 }, found, left)?;
        }
        collect_below(child, reads && !is_whole, &below, path, found, left)?;
        path.pop();
    }
    Some(())
}

impl ServerLoop {
    /// Notifies subscribers of what changed, each in one message with the new values. Events must not cost an agent its
    /// connection: a subscriber that does not take them in time gets an error, and its subscription ends.
    pub(super) fn publish(&mut self, changes: &Changes) {
        if changes.are_too_many() {
            for key in self.subscriptions.take_all() {
                self.peers.refuse(&key, TOO_MANY_FIELDS);
            }
            return;
        }
        if changes.is_empty() {
            return;
        }
        let groups = self.subscriptions.by_masks();
        let requesters: BTreeSet<&Requester> =
            groups.iter().flat_map(|group| &group.subscriptions).map(|(_, requester)| requester).collect();
        let mut budget = EventBudget::new(requesters.len());
        // One after the other: the events of all groups together could fill the memory.
        for group in groups {
            self.send_event(group, changes, &mut budget);
        }
    }

    /// Notifies subscriptions with the same masks. The event is found, read and encoded once, at the cost of the first of
    /// them that can pay for that.
    fn send_event(&mut self, group: SameMasks, changes: &Changes, budget: &mut EventBudget) {
        let mut event: Option<Arc<Encoded>> = None;
        for (key, requester) in group.subscriptions {
            let Some(peer) = self.peers.get(key.peer) else { continue };
            let mut altered = None;
            if event.is_none() {
                altered = budget.spend(&requester, |left| changes.matching(group.masks.as_deref(), left));
                match &altered {
                    Some(found) if found.is_empty() => return,
                    Some(_) => {}
                    None => {
                        self.end_subscription(&key, TOO_MANY_FIELDS);
                        continue;
                    }
                }
            }
            let is_busy = peer.class == PeerClass::Agent && !peer.outbox.is_half_empty();
            if is_busy || !peer.outbox.has_room_for_event() {
                self.end_subscription(&key, EVENTS_LOST);
                continue;
            }
            if let Some(altered) = altered {
                let state = self.view().read_paths(altered.all());
                event = Some(Arc::new(peer.outbox.encode(&state, Some(altered.fields()))));
            }
            let Some(event) = &event else { continue };
            if budget.pay_for_sending(&requester, event.bytes()) {
                let result = peer.outbox.put_state(key.id, event);
                self.peers.check(key.peer, result);
            } else {
                self.end_subscription(&key, TOO_MANY_FIELDS);
            }
        }
    }

    /// Ends a subscription and sends the reason.
    pub(super) fn end_subscription(&mut self, key: &RequestKey, reason: impl Display) {
        self.subscriptions.remove(key);
        self.peers.refuse(key, reason);
    }
}
