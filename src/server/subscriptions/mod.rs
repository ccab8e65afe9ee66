//! Open subscriptions: events, logs, usage. Each of events and logs ends when its client cancels it
//! or disconnects; a usage read ends with its response. One registry with bounds for each kind, of
//! a workload and of a stream (all workloads of an agent together, since ids of requests can be
//! changed).
//!
//! [`events`] notifies of changes, [`logs`] collects log lines, [`usage`] waits for samples.
//!
//! Thread: `server`; a plain value. Sees the fields of no other part of the server: what it needs
//! of them is passed in, and messages are returned as [`Effects`], except for events.

pub(crate) mod events;
mod logs;
mod usage;

pub(crate) use events::{ChangedPaths, CpuTime};
pub(crate) use logs::LogAvailability;
pub(crate) use usage::USAGE;

use crate::effects::Effects;
use crate::limits::{
    LOG_CAMPAIGNS_OF_WORKLOAD, LOG_CAMPAIGNS_PER_PEER_MAX, SUBSCRIPTIONS_OF_WORKLOAD,
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

/// Usage reads of one workload that wait for samples. Our agents forward one at a time, others have
/// no bound.
pub(crate) const USAGE_READS_OF_WORKLOAD: usize = 4;
/// All requests of one kind and one stream, in bytes: room for some that name each of 5,000
/// workloads.
const BYTES_OF_STREAM: usize = 8 * 1024 * 1024;
/// Those of one workload.
const BYTES_OF_WORKLOAD: usize = BYTES_OF_STREAM / 4;

/// What is requested. One id may have one subscription and one collection, and any number of reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SubscriptionKind {
    Events,
    Logs,
    /// Each read has a number.
    Usage(u64),
}

impl SubscriptionKind {
    /// How many a workload and a stream may have. An agent's stream carries those of all its
    /// workloads.
    pub(crate) fn most(self) -> (usize, usize) {
        match self {
            Self::Events => (SUBSCRIPTIONS_OF_WORKLOAD, SUBSCRIPTIONS_PER_PEER_MAX),
            Self::Logs => (LOG_CAMPAIGNS_OF_WORKLOAD, LOG_CAMPAIGNS_PER_PEER_MAX),
            Self::Usage(_) => (USAGE_READS_OF_WORKLOAD, 16),
        }
    }

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

/// Agents that still send lines, and of which instances.
pub(crate) type Providers = BTreeMap<Name, BTreeSet<InstanceName>>;

/// A read that waits.
#[derive(Debug)]
pub(crate) struct UsageRead {
    pub(crate) masks: MaskTree,
    /// What rights are compared with: they may change while it waits.
    pub(crate) content: RequestContent,
    /// How long it waits for agents; `None` when it does not any more.
    pub(crate) until: Option<Instant>,
    /// Agents without a sample yet, with the number of the request that each has: that of the first
    /// read that waits for it.
    pub(crate) awaited: BTreeMap<Name, u64>,
    /// Samples that have come; one may be for several reads.
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
    /// About what it takes.
    fn bytes(&self) -> usize {
        match self {
            Self::Events(masks) => masks.as_ref().map_or(0, |masks| masks.bytes()),
            // An entry takes some 32 bytes beside the text.
            Self::Logs(providers) => providers
                .values()
                .flatten()
                .map(|name| name.bytes() + 32)
                .sum(),
            Self::Usage(read) => read.masks.bytes() + read.content.memory_bytes(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) requester: Requester,
    /// The instance that requested it through its agent: its successor has not.
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
    /// Changes of which subscribers are notified at the end of the present event of the server.
    unpublished: Vec<ChangedPaths>,
    cpu: CpuTime,
    /// The CPU time when the present event of the server began.
    event_begin: Duration,
}

impl Subscriptions {
    /// Adds a request; an earlier one of the same kind and id is replaced, or stays when there is
    /// no room.
    pub(crate) fn add(
        &mut self,
        kind: SubscriptionKind,
        key: &RequestKey,
        subscription: Subscription,
    ) -> Result<(), String> {
        let place = (kind, key.clone());
        let earlier = self.open.remove(&place);
        let checked = self.check_room(kind, key, &subscription);
        let kept = if checked.is_ok() {
            Some(subscription)
        } else {
            earlier
        };
        self.open.extend(kept.map(|kept| (place, kept)));
        checked
    }

    fn check_room(
        &self,
        kind: SubscriptionKind,
        key: &RequestKey,
        subscription: &Subscription,
    ) -> Result<(), String> {
        let bytes = |(key, subscription): (&RequestKey, &Subscription)| {
            key.id.len() + subscription.content.bytes()
        };
        let fits = |is_beside: &dyn Fn(&RequestKey) -> bool, whose, most, bytes_max| {
            let others = self
                .of(kind)
                .filter(|(other, _)| other.peer == key.peer && is_beside(other));
            let start = (1, bytes((key, subscription)));
            let (count, sum) =
                others.fold(start, |(count, sum), other| (count + 1, sum + bytes(other)));
            if count <= most && sum <= bytes_max {
                return Ok(());
            }
            Err(format!(
                "Too many {kind} of {whose}, at most {most} with {bytes_max} bytes are allowed; end some of them first"
            ))
        };
        let (workload_max, stream_max) = kind.most();
        if subscription.requester.workload.is_some() {
            let is_own = |other: &RequestKey| other.workload() == key.workload();
            fits(&is_own, "this workload", workload_max, BYTES_OF_WORKLOAD)?;
        }
        fits(&|_| true, "this connection", stream_max, BYTES_OF_STREAM)
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

    /// Those of one kind; all reads are one.
    pub(crate) fn of(
        &self,
        kind: SubscriptionKind,
    ) -> impl Iterator<Item = (&RequestKey, &Subscription)> {
        let all = self
            .open
            .range(first(kind)..)
            .take_while(move |((other, _), _)| other.is_like(kind));
        all.map(|((_, key), subscription)| (key, subscription))
    }

    pub(crate) fn has_no(&self, kind: SubscriptionKind) -> bool {
        self.of(kind).next().is_none()
    }

    /// The reads of what workloads use, each with its kind.
    pub(crate) fn reads(
        &mut self,
    ) -> impl Iterator<Item = (SubscriptionKind, &RequestKey, &mut UsageRead)> {
        self.open
            .range_mut(first(SubscriptionKind::Usage(0))..)
            .filter_map(
                |((kind, key), subscription)| match &mut subscription.content {
                    SubscriptionContent::Usage(read) => Some((*kind, key, read)),
                    _ => None,
                },
            )
    }
}

/// Where those of a kind begin.
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
    /// Ends the selected subscriptions. Agents stop sending the lines of log collections.
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

    /// A stream has ended: ends its event subscriptions and usage reads. If it was that of an
    /// agent, no further sample comes from it.
    pub(crate) fn end_reads_of_peer(&mut self, peer: PeerId, name: &Name) {
        self.open
            .retain(|(kind, key), _| key.peer != peer || *kind == SubscriptionKind::Logs);
        self.end_usage_of_agent(name);
    }

    /// The effective workloads have changed: ends what the workloads must not have any more, and
    /// the log collections of those that were deleted.
    pub(crate) fn replaced(
        &mut self,
        added: &[AddedWorkload],
        deleted: &[InstanceName],
        sessions: &Sessions,
        effects: &mut Effects,
    ) {
        for instance in deleted {
            self.end_logs_of_workload(instance, sessions, effects);
        }
        // One that comes back to an agent keeps its subscriptions there until the older instance
        // has stopped.
        let begun = added.iter().map(|added| &added.instance);
        for instance in deleted.iter().chain(begun) {
            self.end_denied(instance, sessions, effects);
        }
    }

    /// An instance has no state any more: ends its subscriptions. When its agent has nothing of the
    /// workload any more, ends all of the workload: they belong to the last instance that was
    /// wanted, which may have gone first.
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
        if !sessions.rights().has(&gone.agent, &gone.workload) {
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
            return;
        };
        let mut denied = Vec::new();
        for (key, subscription) in self.of(SubscriptionKind::Events) {
            if key.peer != peer || key.workload() != Some(workload) {
                continue;
            }
            let masks = subscription.masks().map(|masks| &**masks);
            if let Err(reason) = sessions.rights().check_read(agent, workload, masks) {
                denied.push((key.clone(), reason));
            }
        }
        for (key, reason) in denied {
            let reason = format_args!("{reason}; the event subscription ends");
            self.end_events(&key, reason, effects);
        }
    }

    /// A workload is deleted or becomes another instance: nobody reads the logs that it requested
    /// on the stream of its agent.
    fn end_logs_of_workload(
        &mut self,
        instance: &InstanceName,
        sessions: &Sessions,
        effects: &mut Effects,
    ) {
        let Some(peer) = sessions.of_agent(&instance.agent) else {
            return;
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
                LogAvailability::Ready
            } else {
                LogAvailability::NotConnected
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
