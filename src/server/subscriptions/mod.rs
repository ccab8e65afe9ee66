//! Open subscriptions: events, logs, usage. Each of events and logs ends when its client cancels it
//! or disconnects; a usage read ends with its response. Each kind has bounds, of a workload and of
//! a stream: an agent could send requests in the names of any of its workloads.
//!
//! [`events`] notifies of changes, [`logs`] collects log lines, [`usage`] waits for samples.
//!
//! Thread: `server`; a plain value. Other parts of the server are passed in for reading, and
//! messages are returned as [`Effects`], except for events.

pub(crate) mod events;
mod logs;
mod usage;

pub(crate) use events::{ChangedPaths, CpuTime};
pub(crate) use logs::AgentAvailability;
pub(crate) use usage::USAGE;

use crate::effects::Effects;
use crate::limits::{
    LOG_COLLECTIONS_OF_WORKLOAD, LOG_COLLECTIONS_PER_PEER_MAX, SUBSCRIPTIONS_OF_WORKLOAD,
    SUBSCRIPTIONS_PER_PEER_MAX,
};
use crate::sessions::{RequestKey, Requester, Sessions};
use ankaios_model::mask_tree::MaskTree;
use ankaios_model::messages::{AddedWorkload, FromServer, RequestContent};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::usage::AgentUsage;
use ankaios_wire::peer::PeerId;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Usage reads of one workload that wait for samples. Our agents forward one at a time, agents of
/// Eclipse Ankaios have no bound.
pub(crate) const USAGE_READS_OF_WORKLOAD: usize = 4;
/// Usage reads of one stream that wait for samples.
const USAGE_READS_OF_STREAM: usize = 16;
/// All subscriptions of one kind and one stream, in bytes: room for some that name each of 5,000
/// workloads.
const BYTES_OF_STREAM: usize = 8 * 1024 * 1024;
/// All subscriptions of one kind and one workload, in bytes.
const BYTES_OF_WORKLOAD: usize = BYTES_OF_STREAM / 4;
/// Approximate memory of the name of an instance beside its text, in bytes.
const INSTANCE_ENTRY: usize = 32;

/// The kind of a subscription. One id may have one event subscription and one log collection, and
/// any number of usage reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SubscriptionKind {
    Events,
    Logs,
    /// Each read has a number.
    Usage(u64),
}

/// Numbers of subscriptions of one kind.
pub(crate) struct SubscriptionBounds {
    pub(crate) of_workload: usize,
    /// An agent's stream carries the subscriptions of all its workloads.
    pub(crate) of_stream: usize,
}

impl SubscriptionKind {
    pub(crate) fn bounds(self) -> SubscriptionBounds {
        match self {
            Self::Events => SubscriptionBounds {
                of_workload: SUBSCRIPTIONS_OF_WORKLOAD,
                of_stream: SUBSCRIPTIONS_PER_PEER_MAX,
            },
            Self::Logs => SubscriptionBounds {
                of_workload: LOG_COLLECTIONS_OF_WORKLOAD,
                of_stream: LOG_COLLECTIONS_PER_PEER_MAX,
            },
            Self::Usage(_) => SubscriptionBounds {
                of_workload: USAGE_READS_OF_WORKLOAD,
                of_stream: USAGE_READS_OF_STREAM,
            },
        }
    }

    /// Returns whether both are the same kind. The number of a usage read is ignored.
    fn is_like(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

impl fmt::Display for SubscriptionKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Events => "event subscriptions",
            Self::Logs => "requests for logs",
            Self::Usage(_) => "requests for usage",
        })
    }
}

/// Agents that still send lines, with the instances whose lines they send.
pub(crate) type Providers = BTreeMap<Name, BTreeSet<InstanceName>>;

/// A usage read that waits.
#[derive(Debug)]
pub(crate) struct UsageRead {
    pub(crate) masks: MaskTree,
    /// The request, which is compared with the rights again before the response.
    pub(crate) content: RequestContent,
    /// How long it waits for agents; `None` when that is over.
    pub(crate) until: Option<Instant>,
    /// Agents without a sample yet, with the number of the request that was sent for it: of the
    /// first read that needed it.
    pub(crate) awaited: BTreeMap<Name, u64>,
    /// Samples that have come; several reads may share one.
    pub(crate) usage: BTreeMap<Name, Arc<AgentUsage>>,
}

#[derive(Debug)]
pub(crate) enum SubscriptionContent {
    /// The masks; `None` stands for everything. Equal masks are shared.
    Events(Option<Arc<MaskTree>>),
    Logs(Providers),
    Usage(UsageRead),
}

impl SubscriptionContent {
    /// Approximate memory, in bytes.
    fn bytes(&self) -> usize {
        match self {
            Self::Events(Some(masks)) => masks.bytes(),
            Self::Events(None) => 0,
            Self::Logs(providers) => {
                let mut bytes = 0;
                for instance in providers.values().flatten() {
                    bytes += instance.bytes() + INSTANCE_ENTRY;
                }
                bytes
            }
            Self::Usage(read) => read.masks.bytes() + read.content.memory_bytes(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) requester: Requester,
    /// The instance that requested it through its agent. Its successor does not inherit it.
    pub(crate) owner: Option<InstanceName>,
    pub(crate) content: SubscriptionContent,
}

impl Subscription {
    /// The masks of a subscription that does not stand for everything.
    pub(crate) fn masks(&self) -> Option<&Arc<MaskTree>> {
        match &self.content {
            SubscriptionContent::Events(masks) => masks.as_ref(),
            _ => None,
        }
    }
}

/// All open subscriptions.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    /// By kind and in the order of streams.
    open: BTreeMap<(SubscriptionKind, RequestKey), Subscription>,
    /// The number of the last usage read.
    last_read: u64,
    /// Changes that subscribers are notified of at the end of the present event of the server.
    unpublished: Vec<ChangedPaths>,
    cpu: CpuTime,
    /// The CPU time when the present event of the server began.
    event_begin: Duration,
}

/// Subscriptions that are counted together.
#[derive(Default)]
struct SubscriptionCount {
    count: usize,
    bytes: usize,
}

impl SubscriptionCount {
    fn add(&mut self, key: &RequestKey, subscription: &Subscription) {
        self.count += 1;
        self.bytes += key.id.len() + subscription.content.bytes();
    }

    /// Checks the bounds of all subscriptions of `whose`, "this workload" or "this connection".
    ///
    /// # Errors
    /// The text for the requester when there are too many.
    fn check(
        &self,
        kind: SubscriptionKind,
        whose: &str,
        most: usize,
        bytes_max: usize,
    ) -> Result<(), String> {
        if self.count <= most && self.bytes <= bytes_max {
            return Ok(());
        }
        Err(format!(
            "Too many {kind} of {whose}, at most {most} with {bytes_max} bytes are allowed; end some of them first"
        ))
    }
}

impl Subscriptions {
    /// Adds a subscription, which replaces an earlier one of the same kind and id.
    ///
    /// # Errors
    /// There is no room, and the earlier one stays.
    pub(crate) fn add(
        &mut self,
        kind: SubscriptionKind,
        key: &RequestKey,
        subscription: Subscription,
    ) -> Result<(), String> {
        self.check_room(kind, key, &subscription)?;
        self.open.insert((kind, key.clone()), subscription);
        Ok(())
    }

    /// Checks that the bounds hold with one more subscription.
    fn check_room(
        &self,
        kind: SubscriptionKind,
        key: &RequestKey,
        subscription: &Subscription,
    ) -> Result<(), String> {
        let mut of_stream = SubscriptionCount::default();
        let mut of_workload = SubscriptionCount::default();
        of_stream.add(key, subscription);
        of_workload.add(key, subscription);
        for (other_key, other) in self.of(kind) {
            // Usage reads never replace each other.
            let is_replaced = other_key == key && !matches!(kind, SubscriptionKind::Usage(_));
            if other_key.peer != key.peer || is_replaced {
                continue;
            }
            of_stream.add(other_key, other);
            if other_key.workload() == key.workload() {
                of_workload.add(other_key, other);
            }
        }
        let bounds = kind.bounds();
        if subscription.requester.workload.is_some() {
            of_workload.check(kind, "this workload", bounds.of_workload, BYTES_OF_WORKLOAD)?;
        }
        of_stream.check(kind, "this connection", bounds.of_stream, BYTES_OF_STREAM)
    }

    fn get_mut(&mut self, kind: SubscriptionKind, key: &RequestKey) -> Option<&mut Subscription> {
        self.open.get_mut(&(kind, key.clone()))
    }

    pub(crate) fn remove(
        &mut self,
        kind: SubscriptionKind,
        key: &RequestKey,
    ) -> Option<Subscription> {
        self.open.remove(&(kind, key.clone()))
    }

    /// All subscriptions of one kind. The number of a usage read is ignored.
    pub(crate) fn of(
        &self,
        kind: SubscriptionKind,
    ) -> impl Iterator<Item = (&RequestKey, &Subscription)> {
        let from_first = self.open.range(first(kind)..);
        let of_kind = from_first.take_while(move |((other, _), _)| other.is_like(kind));
        of_kind.map(|((_, key), subscription)| (key, subscription))
    }

    pub(crate) fn has_no(&self, kind: SubscriptionKind) -> bool {
        self.of(kind).next().is_none()
    }

    /// The usage reads, each with its kind.
    pub(crate) fn reads(
        &mut self,
    ) -> impl Iterator<Item = (SubscriptionKind, &RequestKey, &mut UsageRead)> {
        let from_first = self.open.range_mut(first(SubscriptionKind::Usage(0))..);
        from_first.filter_map(
            |((kind, key), subscription)| match &mut subscription.content {
                SubscriptionContent::Usage(read) => Some((*kind, key, read)),
                _ => None,
            },
        )
    }
}

/// The lowest key of a kind in the map of all subscriptions.
fn first(kind: SubscriptionKind) -> (SubscriptionKind, RequestKey) {
    let kind = if let SubscriptionKind::Usage(_) = kind {
        SubscriptionKind::Usage(0)
    } else {
        kind
    };
    (
        kind,
        RequestKey {
            peer: PeerId(0),
            id: String::new(),
        },
    )
}

impl Subscriptions {
    /// Ends the subscriptions that `ends` selects. Agents that send lines for one are notified.
    fn end(
        &mut self,
        ends: impl Fn(SubscriptionKind, &RequestKey, &Subscription) -> bool,
        effects: &mut Effects,
    ) {
        let ended = self.open.extract_if(.., |(kind, key), subscription| {
            ends(*kind, key, subscription)
        });
        for ((_, key), subscription) in ended {
            let SubscriptionContent::Logs(providers) = subscription.content else {
                continue;
            };
            for agent in providers.keys() {
                let request_id = key.full_id();
                effects.send_to_agent(agent, FromServer::LogsCancel { request_id });
            }
        }
    }

    /// Ends one event subscription and sends the reason.
    fn end_events(&mut self, key: &RequestKey, reason: impl fmt::Display, effects: &mut Effects) {
        self.remove(SubscriptionKind::Events, key);
        effects.refuse(key, reason.to_string());
    }

    /// Ends the event subscriptions and usage reads of a stream that has ended, and the wait for
    /// samples of its agent `name`. Its log collections end later, see [`Self::end_of_peer`].
    pub(crate) fn end_reads_of_peer(&mut self, peer: PeerId, name: &Name) {
        self.open
            .retain(|(kind, key), _| key.peer != peer || *kind == SubscriptionKind::Logs);
        self.end_usage_of_agent(name);
    }

    /// Follows a change of the effective workloads: ends event subscriptions that workloads must
    /// not have any more, and the log collections of deleted workloads.
    pub(crate) fn replaced(
        &mut self,
        added: &[AddedWorkload],
        deleted: &[InstanceName],
        sessions: &Sessions,
        effects: &mut Effects,
    ) {
        // First, the log collections of deleted workloads.
        for instance in deleted {
            self.end_logs_of_workload(instance, sessions, effects);
        }
        // Then, event subscriptions that the rules deny now. The rules of a deleted workload apply
        // until its last instance on the agent has stopped, so its subscriptions stay until then.
        for instance in deleted {
            self.end_denied(instance, sessions, effects);
        }
        for added in added {
            self.end_denied(&added.instance, sessions, effects);
        }
    }

    /// Ends the subscriptions of an instance that has no state any more. With the last instance of
    /// a workload on the agent, all its subscriptions there end.
    pub(crate) fn instance_gone(
        &mut self,
        gone: &InstanceName,
        sessions: &Sessions,
        effects: &mut Effects,
    ) {
        self.end(
            |_, _, subscription| subscription.owner.as_ref() == Some(gone),
            effects,
        );
        let was_last = !sessions.rights().has(&gone.agent, &gone.workload);
        if was_last {
            self.end_denied(gone, sessions, effects);
            self.end_logs_of_workload(gone, sessions, effects);
        }
    }

    /// Ends the event subscriptions that a workload must not have any more, with the reason.
    fn end_denied(&mut self, instance: &InstanceName, sessions: &Sessions, effects: &mut Effects) {
        let InstanceName {
            workload, agent, ..
        } = instance;
        let Some(peer) = sessions.of_agent(agent) else {
            return; // The subscriptions have ended with the stream of the agent.
        };
        let mut denied = Vec::new();
        for (key, subscription) in self.of(SubscriptionKind::Events) {
            if key.peer != peer || key.workload() != Some(workload) {
                continue;
            }
            let masks = subscription.masks().map(Arc::as_ref);
            if let Err(reason) = sessions.rights().check_read(agent, workload, masks) {
                denied.push((key.clone(), reason));
            }
        }
        for (key, reason) in denied {
            let reason = format_args!("{reason}; the event subscription ends");
            self.end_events(&key, reason, effects);
        }
    }

    /// Ends the log collections that a workload requested on the stream of its agent, after it was
    /// deleted or became another instance.
    fn end_logs_of_workload(
        &mut self,
        instance: &InstanceName,
        sessions: &Sessions,
        effects: &mut Effects,
    ) {
        let Some(peer) = sessions.of_agent(&instance.agent) else {
            return; // The collections have ended with the stream of the agent.
        };
        self.end(
            |kind, key, _| {
                kind == SubscriptionKind::Logs
                    && key.peer == peer
                    && key.workload() == Some(&instance.workload)
            },
            effects,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effects::Effect;
    use ankaios_model::messages::{LogEntry, LogsRequest, ResponseContent};
    use ankaios_model::refusal::ErrorResponse;

    fn commander() -> Requester {
        Requester {
            is_agent: false,
            source: "c".into(),
            peer: Some(PeerId(1)),
            workload: None,
        }
    }

    fn key(id: &str) -> RequestKey {
        RequestKey {
            peer: PeerId(1),
            id: id.to_owned(),
        }
    }

    fn instance(workload: &str, agent: &str) -> InstanceName {
        InstanceName::new(workload, "x", agent)
    }

    /// What the effects of a call say: to whom, and what.
    fn effects_of(call: impl FnOnce(&mut Effects)) -> Vec<String> {
        let mut effects = Effects::default();
        call(&mut effects);
        let mut texts = Vec::new();
        for effect in effects {
            texts.push(match effect {
                Effect::SendToAgent { agent, message } => match message {
                    FromServer::LogsRequest { request, .. } => {
                        format!("{agent}: logs of {}", request.instances.len())
                    }
                    FromServer::LogsCancel { .. } => format!("{agent}: cancel"),
                    other => panic!("{other:?}"),
                },
                Effect::Respond { key, content } => match content {
                    ResponseContent::LogsAccepted(all) => format!("{}: {} logs", key.id, all.len()),
                    ResponseContent::LogEntries(entries) => {
                        format!("{}: '{}'", key.id, entries[0].message)
                    }
                    ResponseContent::LogsStop(instance) => {
                        format!("{}: end of {}", key.id, instance.workload)
                    }
                    ResponseContent::Error(ErrorResponse { text, .. }) => {
                        format!("{}: {text}", key.id)
                    }
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            });
        }
        texts
    }

    /// A collection of the logs of `web` on A, which is ready, and of `db` on B, which is not
    /// connected.
    fn with_logs() -> (Subscriptions, Vec<String>) {
        let mut subscriptions = Subscriptions::default();
        let request = LogsRequest {
            instances: vec![instance("web", "A"), instance("db", "B")],
            ..LogsRequest::default()
        };
        let availability = |agent: &Name| {
            if **agent == *"A" {
                AgentAvailability::Ready
            } else {
                AgentAvailability::NotConnected
            }
        };
        let effects = effects_of(|effects| {
            let key = key("r");
            subscriptions.collect_logs(&key, &commander(), None, request, availability, effects);
        });
        (subscriptions, effects)
    }

    #[test]
    fn logs_of_unavailable_agents_are_stopped_at_once() {
        let (subscriptions, effects) = with_logs();
        let reason = &effects[2];
        assert!(reason.contains("agent 'B' is not connected"), "{reason}");
        assert_eq!(effects[..2], ["A: logs of 1", "r: 2 logs"]);
        assert_eq!(effects[3..], ["r: end of db"]);
        assert!(!subscriptions.has_no(SubscriptionKind::Logs));
    }

    #[test]
    fn log_lines_pass_from_the_requested_agent_only() {
        let (mut subscriptions, _) = with_logs();
        let line = LogEntry {
            instance: instance("web", "A"),
            message: "hello".to_owned(),
            is_reason: false,
        };
        for (agent, id, expected) in [("A", "r", 1), ("B", "r", 0), ("A", "other", 0)] {
            let lines = vec![line.clone()];
            let passed = effects_of(|effects| {
                subscriptions.log_entries(agent, &key(id), lines, effects);
            });
            assert_eq!(passed.len(), expected, "{agent} {id}");
        }
        let made_up = effects_of(|effects| {
            subscriptions.logs_stopped("B", &key("r"), instance("web", "A"), effects);
        });
        assert_eq!(made_up, [""; 0]);
        let end = effects_of(|effects| {
            subscriptions.logs_stopped("A", &key("r"), instance("web", "A"), effects);
        });
        assert_eq!(end, ["r: end of web"]);
        assert!(
            subscriptions.has_no(SubscriptionKind::Logs),
            "it had no others"
        );
    }

    #[test]
    fn logs_end_with_their_client_and_stop_with_their_agent() {
        let (mut subscriptions, _) = with_logs();
        let end = effects_of(|effects| subscriptions.end_of_peer(PeerId(1), "c", effects));
        assert_eq!(end, ["A: cancel"]);
        let (mut subscriptions, _) = with_logs();
        let end = effects_of(|effects| subscriptions.end_of_peer(PeerId(7), "A", effects));
        assert_eq!(end.len(), 2);
        assert!(end[0].contains("not connected any more"), "{}", end[0]);
        assert_eq!(end[1], "r: end of web");
        assert!(subscriptions.has_no(SubscriptionKind::Logs));
    }
}
