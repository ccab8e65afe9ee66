//! Event subscriptions: changes of the state become events for the subscribers whose masks they
//! match.
//!
//! Thread: `server`; plain values, and part of [`Subscriptions`]. Differences are computed only for
//! entries that changed, and each event once for all subscriptions with the same masks. The CPU
//! time of events is measured, and a requester that takes too much of it loses its subscription.

use super::{Subscription, SubscriptionContent, SubscriptionKind, Subscriptions};
use crate::effects::{Effect, Effects};
use crate::sessions::{RequestKey, Requester, Sessions};
use crate::state_view::{StateView, put_instance};
use crate::updates::DesiredChange;
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::complete_state::{
    AgentAttributes, DesiredState, Rendering, WorkloadStates, agent_node, config_node,
    execution_state_node, workload_node,
};
use ankaios_model::execution_state::ExecutionState;
use ankaios_model::mask_tree::{MaskTree, Wanted};
use ankaios_model::messages::AlteredFields;
use ankaios_model::names::InstanceName;
use ankaios_model::node::{Entries, Node};
use ankaios_model::workload::Workload;
use ankaios_wire::outbox::Encoded;
use ankaios_wire::peer::PeerId;
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The keys that lead to a node. A key may contain dots, so a path is more than its text.
pub(crate) type KeyPath = Vec<String>;

/// Parts of all changed paths of one change, and of the paths in the event for one subscriber: a
/// dozen fields of each of 5,000 workloads. The paths to many fields of a deep config take far more
/// memory than the update that changes them.
const PARTS_MAX: usize = 250_000;
/// CPU time for the events of one change and one requester, beside [`COST_OF_CHANGE`].
const COST_FREE: Duration = Duration::from_millis(100);
/// CPU time for the events of one change and one requester, as a multiple of the time of the
/// change.
const COST_OF_CHANGE: u32 = 3;
/// CPU time for all events of one change, as a multiple of the maximum for one requester. One half
/// is split into equal shares, so that every requester has a minimum. The other half is for those
/// that need more than their share, first come, first served.
const COST_OF_ALL: u32 = 4;
/// Keys that are compared between two checks of the time.
const CHECK_INTERVAL: u32 = 256;

/// The error for a subscriber whose event has too many paths, or takes too long to build.
const TOO_MANY_FIELDS: &str =
    "Too many fields changed at once; the event subscription ends, subscribe again";
/// The error for a subscriber that does not take its events.
const EVENTS_LOST: &str = "Events were not taken in time and are lost; the event subscription ends, subscribe again to \
                           get the state";

/// The event of a change for one subscriber.
enum EventDelivery {
    /// The masks match no changed path.
    Nothing,
    /// There is no room for the event.
    Lost,
    Event(Arc<Encoded>),
}

/// An event subscription that may be notified of a change.
struct EventSubscriber {
    key: RequestKey,
    requester: Requester,
    /// `None` stands for everything.
    masks: Option<Arc<MaskTree>>,
}

// --------------------------------------------------------------------- cost

/// CPU time that the thread of the server has used; does not advance by default.
pub(crate) struct CpuTime(pub Box<dyn Fn() -> Duration + Send>);

impl Default for CpuTime {
    fn default() -> Self {
        Self(Box::new(|| Duration::ZERO))
    }
}

impl fmt::Debug for CpuTime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.now().fmt(formatter)
    }
}

impl CpuTime {
    /// The CPU time of the thread that calls [`Self::now`].
    pub(crate) fn of_thread() -> Self {
        Self(Box::new(|| {
            let time = clock_gettime(ClockId::ThreadCPUTime);
            time.try_into().unwrap_or_default()
        }))
    }

    fn now(&self) -> Duration {
        (self.0)()
    }
}

/// The CPU time that the events of one change may still take.
struct EventBudget<'c> {
    cpu: &'c CpuTime,
    taken: BTreeMap<Requester, Duration>,
    /// Most time of one requester.
    most: Duration,
    /// Time that is reserved for each requester.
    share: Duration,
    /// Time that is left for requesters that have used up their share.
    common: Duration,
}

impl<'c> EventBudget<'c> {
    /// The budget of a change that itself took the time `change`, for this number of requesters.
    fn new(cpu: &'c CpuTime, change: Duration, requesters: usize) -> Self {
        let most = COST_FREE + COST_OF_CHANGE * change;
        let half = most * COST_OF_ALL / 2;
        let share = half / u32::try_from(requesters.max(1)).unwrap_or(u32::MAX);
        Self {
            cpu,
            taken: BTreeMap::new(),
            most,
            share,
            common: half,
        }
    }

    /// Does `work` on the budget of a requester. Returns `None` if the budget is used up, before or
    /// during the work.
    fn spend<T>(
        &mut self,
        requester: &Requester,
        work: impl FnOnce(&mut CpuGuard<'_>) -> Option<T>,
    ) -> Option<T> {
        let taken = self.taken.get(requester).copied().unwrap_or_default();
        // First, the time that is left: the rest of its share, then the common time.
        let share = self.share.saturating_sub(taken);
        let left = (share + self.common).min(self.most.saturating_sub(taken));
        if left.is_zero() {
            return None;
        }
        // Then, the work.
        let begin = self.cpu.now();
        let result = work(&mut CpuGuard {
            cpu: self.cpu,
            until: begin + left,
            keys: 0,
            parts: 0,
        });
        // Finally, the spent time. What exceeds the share is taken from the common time.
        let spent = self.cpu.now().saturating_sub(begin);
        self.common = self.common.saturating_sub(spent.saturating_sub(share));
        *self.taken.entry(requester.clone()).or_default() += spent;
        result
    }
}

/// Ends work that takes too long, or finds too many paths.
struct CpuGuard<'c> {
    cpu: &'c CpuTime,
    until: Duration,
    keys: u32,
    parts: usize,
}

impl CpuGuard<'_> {
    /// Counts a compared key; `None` when no time is left.
    fn count_key(&mut self) -> Option<()> {
        self.keys += 1;
        let is_over = self.keys.is_multiple_of(CHECK_INTERVAL) && self.cpu.now() > self.until;
        if is_over { None } else { Some(()) }
    }

    /// Adds a path to an event; `None` when that has too many parts.
    fn add(&mut self, path: &KeyPath, event: &mut Vec<KeyPath>) -> Option<()> {
        self.parts += path.len();
        event.push(path.clone());
        if self.parts > PARTS_MAX {
            return None;
        }
        Some(())
    }
}

/// The paths of one event as texts.
fn fields(altered: &[(PathChange, KeyPath)]) -> AlteredFields {
    let mut fields = AlteredFields::default();
    for (change, path) in altered {
        let list = match change {
            PathChange::Added => &mut fields.added,
            PathChange::Updated => &mut fields.updated,
            PathChange::Removed => &mut fields.removed,
        };
        list.push(path.join("."));
    }
    fields
}

// ------------------------------------------------------------------ changes

/// The changed paths of one event of the server.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangedPaths {
    /// Parts of all paths below. Above [`PARTS_MAX`] no further path is added, and no event is
    /// sent.
    parts: usize,
    /// The added or removed node is the highest one, with all nodes below it.
    all: Vec<(PathChange, KeyPath, Node)>,
}

/// The kind of a change of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PathChange {
    /// The highest new node.
    Added,
    /// The highest node that is gone.
    Removed,
    /// A leaf with another value.
    Updated,
}

fn path(parts: &[&str]) -> KeyPath {
    parts.iter().map(|part| (*part).to_owned()).collect()
}

impl ChangedPaths {
    fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns whether there are too many paths to send each of them.
    fn are_too_many(&self) -> bool {
        self.parts > PARTS_MAX
    }

    /// Adds the changes of the node at `path`. Both nodes have no empty containers.
    fn node(&mut self, path: &mut KeyPath, old: Option<&Node>, new: Option<&Node>) {
        if self.are_too_many() {
            return;
        }
        let (change, node) = match (old, new) {
            (None, None) => return,
            (None, Some(new)) => (PathChange::Added, new.clone()),
            (Some(old), None) => (PathChange::Removed, old.clone()),
            (Some(Node::Map(old)), Some(Node::Map(new))) => return self.each_entry(path, old, new),
            (Some(old), Some(new)) if old == new => return,
            // An empty list means the same as none.
            (Some(Node::List(old)), Some(new @ Node::List(_))) if old.is_empty() => {
                (PathChange::Added, new.clone())
            }
            (Some(old @ Node::List(_)), Some(Node::List(new))) if new.is_empty() => {
                (PathChange::Removed, old.clone())
            }
            (Some(_), Some(_)) => (PathChange::Updated, Node::empty()),
        };
        self.parts += path.len();
        self.all.push((change, path.clone(), node));
    }

    fn each_entry(&mut self, path: &mut KeyPath, old: &Entries, new: &Entries) {
        let keys: BTreeSet<&str> = old.keys().chain(new.keys()).collect_entries();
        for key in keys {
            path.push(key.to_owned());
            self.node(path, old.get(key), new.get(key));
            path.pop();
        }
    }

    /// Adds the changes of an agent; `None` stands for a disconnected one.
    pub(crate) fn agent(
        &mut self,
        name: &str,
        old: Option<&AgentAttributes>,
        new: Option<&AgentAttributes>,
    ) {
        let old = old.map(|agent| agent_node(agent, Rendering::Sparse));
        let new = new.map(|agent| agent_node(agent, Rendering::Sparse));
        let path = &mut path(&["agents", name]);
        self.node(path, old.as_ref(), new.as_ref());
    }

    /// Adds the changes of states of instances: `old` are the changed ones before, `states` all
    /// present ones.
    ///
    /// A new agent or workload is one addition, whatever the number of its instances.
    pub(crate) fn states(
        &mut self,
        old: &[(InstanceName, Option<ExecutionState>)],
        states: &WorkloadStates,
    ) {
        // First, the changed instances.
        let mut before = Entries::default();
        let mut now = Entries::default();
        let mut changed = BTreeSet::new();
        for (instance, old) in old {
            if let Some(old) = old {
                put_instance(&mut before, instance, execution_state_node(old));
            }
            if let Some(new) = states.get(instance) {
                put_instance(&mut now, instance, execution_state_node(new));
            }
            changed.insert(instance);
        }
        // Then, one unchanged instance of each agent and workload, if there is one: with it, the
        // agent or workload counts as neither new nor gone.
        let mut agents = BTreeSet::new();
        let mut workloads = BTreeSet::new();
        let mut unchanged = Vec::new();
        for instance in &changed {
            let InstanceName {
                agent, workload, ..
            } = *instance;
            if agents.insert(agent) {
                let mut of_agent = states.of_agent(agent);
                unchanged.extend(of_agent.find(|(other, _)| !changed.contains(other)));
            }
            if workloads.insert((agent, workload)) {
                let mut of_workload = states.of_agent_workload(agent, workload);
                unchanged.extend(of_workload.find(|(other, _)| !changed.contains(other)));
            }
        }
        for (instance, state) in unchanged {
            put_instance(&mut before, &instance, execution_state_node(state));
            put_instance(&mut now, &instance, execution_state_node(state));
        }
        // Finally, the difference.
        self.each_entry(&mut path(&["workloadStates"]), &before, &now);
    }

    /// Adds the changes of the desired state, whose version is also that of the effective state.
    /// `before` is the change that leads back, `now` the present state.
    pub(crate) fn desired(&mut self, before: &DesiredChange, now: &DesiredState) {
        if let Some(old) = &before.api_version {
            let old = Node::text(&**old);
            let new = Node::text(&*now.api_version);
            for part in ["desiredState", "effectiveState"] {
                self.node(&mut path(&[part, "apiVersion"]), Some(&old), Some(&new));
            }
        }
        for (name, workload) in &before.workloads {
            self.workload(
                "desiredState",
                name,
                workload.as_ref(),
                now.workloads.get(name),
            );
        }
        self.configs(before, now);
    }

    /// Adds the changes of configs, see [`Self::desired`].
    fn configs(&mut self, before: &DesiredChange, now: &DesiredState) {
        let mut old = Entries::default();
        let mut new = Entries::default();
        for (key, item) in &before.configs {
            if let Some(item) = item {
                old.insert(key.clone(), config_node(item));
            }
            if let Some(item) = now.configs.get(key) {
                new.insert(key.clone(), config_node(item));
            }
        }
        // Without unchanged configs, the first one adds the map itself and the last one removes it.
        let has_unchanged = now.configs.len() > new.len();
        let existed = has_unchanged || !old.is_empty();
        let exists = has_unchanged || !new.is_empty();
        let old = existed.then_some(Node::Map(old));
        let new = exists.then_some(Node::Map(new));
        let path = &mut path(&["desiredState", "configs"]);
        self.node(path, old.as_ref(), new.as_ref());
    }

    /// Adds the changes of a workload of the desired or effective state, which `part` names.
    pub(crate) fn workload(
        &mut self,
        part: &str,
        name: &str,
        old: Option<&Arc<Workload>>,
        new: Option<&Arc<Workload>>,
    ) {
        let old = old.map(|workload| workload_node(workload, Rendering::Sparse));
        let new = new.map(|workload| workload_node(workload, Rendering::Sparse));
        let path = &mut path(&[part, "workloads", name]);
        self.node(path, old.as_ref(), new.as_ref());
    }

    // -------------------------------------------------------------- matching

    /// The sorted paths of the event for a subscriber with `masks`; `None` when they take too long
    /// to find, or are too many.
    fn matching(
        &self,
        masks: Option<&MaskTree>,
        guard: &mut CpuGuard<'_>,
    ) -> Option<Vec<(PathChange, KeyPath)>> {
        let mut altered = Vec::new();
        for (change, path, tree) in &self.all {
            let mut found = Vec::new();
            find(tree, masks, path, &mut found, guard)?;
            for path in found {
                altered.push((*change, path));
            }
        }
        altered.sort_unstable();
        Some(altered)
    }
}

/// Finds the paths of an event about a change of the `node` at `path`: this path, if a mask ends at
/// it or above it, and each path below it at which a mask ends. Without masks, this path.
///
/// Returns `None` when `guard` has ended the search.
fn find(
    node: &Node,
    masks: Option<&MaskTree>,
    path: &KeyPath,
    found: &mut Vec<KeyPath>,
    guard: &mut CpuGuard<'_>,
) -> Option<()> {
    let Some(masks) = masks else {
        return guard.add(path, found);
    };
    let mut wanted = masks.wanted();
    let mut is_wanted = false;
    for key in path {
        guard.count_key()?;
        wanted = wanted.on(key);
        is_wanted |= wanted.is_whole();
    }
    if is_wanted {
        guard.add(path, found)?;
    }
    collect_below(node, &wanted, &mut path.clone(), found, guard)
}

/// Finds the paths below an added or removed node at which masks end.
fn collect_below(
    node: &Node,
    wanted: &Wanted<'_>,
    path: &mut KeyPath,
    found: &mut Vec<KeyPath>,
    guard: &mut CpuGuard<'_>,
) -> Option<()> {
    let Node::Map(entries) = node else {
        return Some(());
    };
    if wanted.is_nothing() {
        return Some(());
    }
    for (key, child) in entries {
        guard.count_key()?;
        let below = wanted.on(key);
        if below.is_nothing() {
            continue;
        }
        path.push(key.to_owned());
        if below.is_whole() {
            guard.add(path, found)?;
        }
        collect_below(child, &below, path, found, guard)?;
        path.pop();
    }
    Some(())
}

impl Subscriptions {
    /// Subscribes the request `key` to events, in place of its earlier masks. No masks stand for
    /// everything.
    pub(crate) fn subscribe(
        &mut self,
        key: &RequestKey,
        requester: &Requester,
        owner: Option<InstanceName>,
        masks: Option<MaskTree>,
    ) -> Result<(), String> {
        let masks = masks.map(|masks| self.shared_masks(masks));
        let subscription = Subscription {
            requester: requester.clone(),
            owner,
            content: SubscriptionContent::Events(masks),
        };
        self.add(SubscriptionKind::Events, key, subscription)
    }

    /// The same masks as another subscription has them, if there is one.
    fn shared_masks(&self, masks: MaskTree) -> Arc<MaskTree> {
        for (_, other) in self.of(SubscriptionKind::Events) {
            if let Some(shared) = other.masks()
                && **shared == masks
            {
                return shared.clone();
            }
        }
        Arc::new(masks)
    }

    /// Event subscriptions with the same masks, which get the same events.
    fn groups_of_events(&self) -> Vec<Vec<EventSubscriber>> {
        let mut groups: Vec<Vec<EventSubscriber>> = Vec::new();
        let mut group_of_masks = BTreeMap::new();
        for (key, subscription) in self.of(SubscriptionKind::Events) {
            let masks = subscription.masks();
            // The index of its group. The first subscription with these masks begins a new one.
            let group = *group_of_masks
                .entry(masks.map(Arc::as_ptr))
                .or_insert(groups.len());
            if group == groups.len() {
                groups.push(Vec::new());
            }
            groups[group].push(EventSubscriber {
                key: key.clone(),
                requester: subscription.requester.clone(),
                masks: masks.cloned(),
            });
        }
        groups
    }
}

impl Subscriptions {
    /// Sets the clock for the CPU time of events.
    pub(crate) fn set_cpu_time(&mut self, cpu: CpuTime) {
        self.cpu = cpu;
    }

    /// Begins an event of the server. Its CPU time decides about the budget of notifications.
    pub(crate) fn begin_event(&mut self) {
        self.event_begin = self.cpu.now();
    }

    /// Returns whether there are event subscriptions.
    pub(crate) fn are_observed(&self) -> bool {
        !self.has_no(SubscriptionKind::Events)
    }

    /// Keeps changes for the end of the present event of the server.
    pub(crate) fn publish_later(&mut self, changes: ChangedPaths) {
        self.unpublished.push(changes);
    }

    pub(crate) fn take_unpublished(&mut self) -> Vec<ChangedPaths> {
        std::mem::take(&mut self.unpublished)
    }

    /// Notifies subscribers of `changes`, each in one message with the new values of `view`. Events
    /// must not cost an agent its connection: a subscriber that does not take them in time gets an
    /// error, and its subscription ends.
    ///
    /// Events are put at once, and are no effects: see [`Sessions::put_event`].
    pub(crate) fn publish(
        &mut self,
        changes: &ChangedPaths,
        view: StateView<'_>,
        sessions: &Sessions,
        effects: &mut Effects,
    ) {
        if changes.is_empty() || !self.are_observed() {
            return;
        }
        let groups = self.groups_of_events();
        if changes.are_too_many() {
            for subscriber in groups.into_iter().flatten() {
                self.end_events(&subscriber.key, TOO_MANY_FIELDS, effects);
            }
            return;
        }
        // First, the budget: it depends on the cost of the change itself and on the requesters.
        let mut requesters = BTreeSet::new();
        for subscriber in groups.iter().flatten() {
            requesters.insert(&subscriber.requester);
        }
        let cost = self.cpu.now().saturating_sub(self.event_begin);
        let mut publication = Publication {
            changes,
            view,
            sessions,
            budget: EventBudget::new(&self.cpu, cost, requesters.len()),
            ended: Vec::new(),
        };
        // Then, the events, and the ends of subscriptions that could not get theirs.
        for group in groups {
            publication.notify(group, effects);
        }
        for (key, reason) in publication.ended {
            self.end_events(&key, reason, effects);
        }
    }
}

/// The notification of all subscribers of one change.
struct Publication<'p> {
    changes: &'p ChangedPaths,
    view: StateView<'p>,
    sessions: &'p Sessions,
    budget: EventBudget<'p>,
    /// Subscriptions that end, with the reason.
    ended: Vec<(RequestKey, &'static str)>,
}

impl Publication<'_> {
    /// Notifies subscribers with the same masks. The event is built once, on the budget of the
    /// first subscriber that has enough left for it.
    fn notify(&mut self, group: Vec<EventSubscriber>, effects: &mut Effects) {
        let mut event: Option<Arc<Encoded>> = None;
        for subscriber in group {
            let peer = subscriber.key.peer;
            if self.sessions.peer(peer).is_none() {
                continue;
            }
            match self.delivery(&subscriber, event.as_ref()) {
                // The other subscribers of this group have the same masks, so there is no event for
                // them either.
                Some(EventDelivery::Nothing) => return,
                Some(EventDelivery::Lost) => self.ended.push((subscriber.key, EVENTS_LOST)),
                None => self.ended.push((subscriber.key, TOO_MANY_FIELDS)),
                Some(EventDelivery::Event(encoded)) => {
                    if let Err(error) = self.sessions.put_event(&subscriber.key, &encoded) {
                        effects.push(Effect::Close { peer, error });
                    }
                    event = Some(encoded);
                }
            }
        }
    }

    /// The event for one subscriber; `built` is the event if it was made for an earlier one
    /// already. Returns `None` when the budget of the requester is used up.
    fn delivery(
        &mut self,
        subscriber: &EventSubscriber,
        built: Option<&Arc<Encoded>>,
    ) -> Option<EventDelivery> {
        let peer = subscriber.key.peer;
        let changes = self.changes;
        let view = self.view;
        let sessions = self.sessions;
        let has_room = sessions.has_room_for_event(peer);
        self.budget.spend(&subscriber.requester, |guard| {
            if let Some(event) = built {
                return Some(if has_room {
                    EventDelivery::Event(event.clone())
                } else {
                    EventDelivery::Lost
                });
            }
            let altered = changes.matching(subscriber.masks.as_deref(), guard)?;
            if altered.is_empty() {
                return Some(EventDelivery::Nothing);
            }
            if !has_room {
                return Some(EventDelivery::Lost);
            }
            Some(encode(peer, &altered, view, sessions))
        })
    }
}

/// Encodes the event with these paths and their present values.
fn encode(
    peer: PeerId,
    altered: &[(PathChange, KeyPath)],
    view: StateView<'_>,
    sessions: &Sessions,
) -> EventDelivery {
    let state = view.read_paths(altered.iter().map(|(_, path)| path.as_slice()));
    match sessions.encode_event(peer, &state, fields(altered)) {
        Some(encoded) => EventDelivery::Event(Arc::new(encoded)),
        None => EventDelivery::Lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::tests::{key, open_client};
    use ankaios_model::messages::{AgentHello, FromServer, Response, ResponseContent};
    use ankaios_model::names::Name;
    use ankaios_wire::outbox::outbox;
    use ankaios_wire::peer::Service;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn commander(number: u64) -> Requester {
        Requester {
            is_agent: false,
            source: Name::default(),
            peer: Some(PeerId(number)),
            workload: None,
        }
    }

    /// CPU time in milliseconds that the test decides.
    fn cpu() -> (CpuTime, Arc<AtomicU64>) {
        let time = Arc::new(AtomicU64::new(0));
        let read = time.clone();
        (
            CpuTime(Box::new(move || {
                Duration::from_millis(read.load(Ordering::Relaxed))
            })),
            time,
        )
    }

    #[test]
    fn requester_takes_at_most_its_budget_and_others_their_share() {
        let (cpu, time) = cpu();
        let most = COST_FREE + COST_OF_CHANGE * Duration::from_millis(50);
        let mut budget = EventBudget::new(&cpu, Duration::from_millis(50), 20);
        let mut takes = |number: u64, milliseconds: u64| {
            budget.spend(&commander(number), |guard| {
                let begin = time.fetch_add(milliseconds, Ordering::Relaxed);
                (Duration::from_millis(begin + milliseconds) <= guard.until).then_some(())
            })
        };
        assert_eq!(
            (takes(0, 250), takes(0, 1)),
            (Some(()), None),
            "{most:?}, whatever its subscriptions"
        );
        (1..10).for_each(|number| _ = takes(number, 250));
        let share = most * COST_OF_ALL / 2 / 20;
        assert_eq!(share, Duration::from_millis(25));
        assert!(
            (10..20).all(|number| takes(number, 25).is_some()),
            "those who need little get it"
        );
        assert!((10..20).all(|number| takes(number, 1).is_none()));
    }

    #[test]
    fn work_ends_when_its_time_is_over_or_an_event_is_too_large() {
        let (cpu, time) = cpu();
        let mut guard = CpuGuard {
            cpu: &cpu,
            until: Duration::from_millis(10),
            keys: 0,
            parts: 0,
        };
        assert!((0..10 * CHECK_INTERVAL).all(|_| guard.count_key().is_some()));
        time.store(11, Ordering::Relaxed);
        assert!((0..CHECK_INTERVAL).any(|_| guard.count_key().is_none()));
        let path: KeyPath = vec!["x".to_owned(); PARTS_MAX / 2];
        let mut event = Vec::new();
        assert!(guard.add(&path, &mut event).is_some() && guard.add(&path, &mut event).is_some());
        assert!(guard.add(&path, &mut event).is_none());
    }

    /// A change that adds the agent A.
    fn added_agent() -> ChangedPaths {
        let mut changes = ChangedPaths::default();
        let attributes = AgentAttributes {
            load: Some((7, 8)),
            tags: BTreeMap::new(),
        };
        changes.agent("A", None, Some(&attributes));
        changes
    }

    /// A subscription of each of these streams, without masks.
    fn subscribed(peers: &[u64]) -> Subscriptions {
        let mut subscriptions = Subscriptions::default();
        for peer in peers {
            let key = key(*peer, "r");
            subscriptions
                .subscribe(&key, &commander(*peer), None, None)
                .unwrap();
        }
        subscriptions
    }

    /// Publishes the change; returns the effects as texts.
    fn published(subscriptions: &mut Subscriptions, sessions: &Sessions) -> Vec<String> {
        let (desired, effective) = (DesiredState::default(), BTreeMap::new());
        let states = WorkloadStates::default();
        let view = StateView {
            desired: &desired,
            effective: &effective,
            states: &states,
            agents: sessions.agents(),
        };
        let mut effects = Effects::default();
        subscriptions.publish(&added_agent(), view, sessions, &mut effects);
        let mut texts = Vec::new();
        for effect in effects {
            texts.push(match effect {
                Effect::Close { peer, .. } => format!("close {}", peer.0),
                Effect::Respond { key, .. } => format!("refuse {}", key.peer.0),
                other => panic!("{other:?}"),
            });
        }
        texts
    }

    #[test]
    fn event_that_a_stream_does_not_take_closes_that_stream() {
        let mut sessions = Sessions::default();
        drop(open_client(&mut sessions, 1, Service::Command));
        let works = open_client(&mut sessions, 2, Service::Command);
        let mut subscriptions = subscribed(&[1, 2, 3]);
        assert_eq!(published(&mut subscriptions, &sessions), ["close 1"]);
        let message = works.try_next();
        let Some(FromServer::Response(Response { id, content })) = message else {
            panic!("{message:?}")
        };
        let ResponseContent::CompleteState { altered, .. } = content else {
            panic!("{content:?}")
        };
        assert_eq!((&*id, altered.unwrap().added.len()), ("r", 1));
    }

    #[test]
    fn subscription_ends_when_the_stream_has_no_room() {
        let mut sessions = Sessions::default();
        let (outbox, reader) = outbox();
        let hello = AgentHello {
            agent: "A".to_owned(),
            ..AgentHello::default()
        };
        sessions.open_agent(PeerId(1), hello, None, &[], outbox);
        let _client = open_client(&mut sessions, 2, Service::Command);
        let mut subscriptions = subscribed(&[1, 2]);
        assert_eq!(published(&mut subscriptions, &sessions), [""; 0]);
        while sessions.has_room_for_event(PeerId(1)) {
            let text = "x".repeat(1024 * 1024);
            sessions.refuse(&key(1, "other"), text);
        }
        assert_eq!(published(&mut subscriptions, &sessions), ["refuse 1"]);
        assert_eq!(
            subscriptions.of(SubscriptionKind::Events).count(),
            1,
            "the other stays"
        );
        drop(reader);
    }
}
