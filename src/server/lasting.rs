//! Requests that last longer than a moment: event subscriptions and log collections, which end when
//! somebody says so, and reads of what workloads use, which wait for agents. One registry with
//! bounds for each kind, of a workload and of a stream (all workloads of an agent together, since
//! ids of requests can be changed).
//!
//! Thread: `server`; a plain value and the part of [`ServerLoop`] that ends them.

use super::ServerLoop;
use super::requester::{Denied, RequestKey, Requester, denied};
use crate::limits::{
    LOG_CAMPAIGNS_OF_WORKLOAD, LOG_CAMPAIGNS_PER_PEER_MAX, SUBSCRIPTIONS_OF_WORKLOAD,
    SUBSCRIPTIONS_PER_PEER_MAX,
};
use ankaios_model::mask_tree::MaskTree;
use ankaios_model::messages::{FromServer, RequestContent};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::usage::AgentUsage;
use ankaios_wire::peer::PeerId;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

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
pub(crate) enum Kind {
    Events,
    Logs,
    /// Each read has a number.
    Usage(u64),
}

impl Kind {
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

impl fmt::Display for Kind {
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
pub(crate) enum Content {
    /// The masks; `None` stands for everything. Equal masks are shared.
    Events(Option<Arc<MaskTree>>),
    Logs(Providers),
    Usage(UsageRead),
}

impl Content {
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
pub(crate) struct Lasting {
    pub(crate) requester: Requester,
    /// The instance that requested it through its agent: its successor has not.
    pub(crate) owner: Option<InstanceName>,
    pub(crate) content: Content,
}

impl Lasting {
    /// The masks of a subscription that does not stand for everything.
    pub(crate) fn masks(&self) -> Option<&Arc<MaskTree>> {
        match &self.content {
            Content::Events(masks) => masks.as_ref(),
            _ => None,
        }
    }
}

/// All of them, by kind and in the order of streams.
#[derive(Debug, Default)]
pub(crate) struct LastingRequests(BTreeMap<(Kind, RequestKey), Lasting>);

impl LastingRequests {
    /// Adds a request; an earlier one of the same kind and id is replaced, or stays when there is
    /// no room.
    pub(crate) fn add(
        &mut self,
        kind: Kind,
        key: &RequestKey,
        lasting: Lasting,
    ) -> Result<(), String> {
        let place = (kind, key.clone());
        let earlier = self.0.remove(&place);
        let checked = self.check_room(kind, key, &lasting);
        let kept = if checked.is_ok() {
            Some(lasting)
        } else {
            earlier
        };
        self.0.extend(kept.map(|kept| (place, kept)));
        checked
    }

    fn check_room(&self, kind: Kind, key: &RequestKey, lasting: &Lasting) -> Result<(), String> {
        let bytes =
            |(key, lasting): (&RequestKey, &Lasting)| key.id.len() + lasting.content.bytes();
        let fits = |is_beside: &dyn Fn(&RequestKey) -> bool, whose, most, bytes_max| {
            let others = self
                .of(kind)
                .filter(|(other, _)| other.peer == key.peer && is_beside(other));
            let start = (1, bytes((key, lasting)));
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
        if lasting.requester.workload.is_some() {
            let is_own = |other: &RequestKey| other.workload() == key.workload();
            fits(&is_own, "this workload", workload_max, BYTES_OF_WORKLOAD)?;
        }
        fits(&|_| true, "this connection", stream_max, BYTES_OF_STREAM)
    }

    pub(crate) fn get(&self, kind: Kind, key: &RequestKey) -> Option<&Lasting> {
        self.0.get(&(kind, key.clone()))
    }

    pub(crate) fn get_mut(&mut self, kind: Kind, key: &RequestKey) -> Option<&mut Lasting> {
        self.0.get_mut(&(kind, key.clone()))
    }

    pub(crate) fn remove(&mut self, kind: Kind, key: &RequestKey) -> Option<Lasting> {
        self.0.remove(&(kind, key.clone()))
    }

    /// Those of one kind; all reads are one.
    pub(crate) fn of(&self, kind: Kind) -> impl Iterator<Item = (&RequestKey, &Lasting)> {
        let all = self
            .0
            .range(first(kind)..)
            .take_while(move |((other, _), _)| other.is_like(kind));
        all.map(|((_, key), lasting)| (key, lasting))
    }

    pub(crate) fn has_no(&self, kind: Kind) -> bool {
        self.of(kind).next().is_none()
    }

    /// The reads of what workloads use, each with its kind.
    pub(crate) fn reads(&mut self) -> impl Iterator<Item = (Kind, &RequestKey, &mut UsageRead)> {
        self.0
            .range_mut(first(Kind::Usage(0))..)
            .filter_map(|((kind, key), lasting)| match &mut lasting.content {
                Content::Usage(read) => Some((*kind, key, read)),
                _ => None,
            })
    }
}

/// Where those of a kind begin.
fn first(kind: Kind) -> (Kind, RequestKey) {
    let kind = if let Kind::Usage(_) = kind {
        Kind::Usage(0)
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

impl ServerLoop {
    /// Ends the requests that are selected. Agents are told whose lines nobody reads any more.
    pub(super) fn end_lasting(&mut self, ends: impl Fn(Kind, &RequestKey, &Lasting) -> bool) {
        let Self { lasting, peers, .. } = self;
        for ((_, key), ended) in lasting
            .0
            .extract_if(.., |(kind, key), lasting| ends(*kind, key, lasting))
        {
            let Content::Logs(providers) = ended.content else {
                continue;
            };
            for agent in providers.keys() {
                peers.send_to_agent(
                    agent,
                    FromServer::LogsCancel {
                        request_id: key.full_id(),
                    },
                );
            }
        }
    }

    /// An instance has no state any more: its requests end. When its agent has nothing of the
    /// workload any more, so do all requests of the workload: they belong to the last instance that
    /// was wanted, which may have gone first.
    pub(super) fn end_requests_of_gone(&mut self, gone: &InstanceName) {
        self.rights.end(gone, self.updates.workloads());
        self.end_lasting(|_, _, lasting| lasting.owner.as_ref() == Some(gone));
        if self.rights.of(&gone.agent, &gone.workload).is_none() {
            self.end_denied_subscriptions(gone);
            self.end_logs_of_workload(gone);
        }
    }

    /// A workload was added, updated or deleted: subscriptions that it may not have any more end
    /// with the reason.
    pub(super) fn end_denied_subscriptions(
        &mut self,
        InstanceName {
            workload, agent, ..
        }: &InstanceName,
    ) {
        let Some(peer) = self.peers.of_agent(agent) else {
            return;
        };
        let check = |masks: Option<&MaskTree>| {
            self.rights
                .authorizer(agent, workload)?
                .check_read(masks)
                .map_err(|denial| denied(workload, &denial))
        };
        let own = self
            .lasting
            .of(Kind::Events)
            .filter(|(key, _)| key.peer == peer && key.workload() == Some(workload));
        let ended: Vec<(RequestKey, Denied)> = own
            .filter_map(|(key, lasting)| {
                Some((
                    key.clone(),
                    check(lasting.masks().map(|masks| &**masks)).err()?,
                ))
            })
            .collect();
        for (key, denied) in ended {
            self.end_subscription(&key, format_args!("{denied}; the event subscription ends"));
        }
    }
}
