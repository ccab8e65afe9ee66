//! Reads of what workloads and nodes use: the agents receive a request each, and the response waits for theirs.
//!
//! A read waits at most [`USAGE_WAIT_MAX`] for the agents, and then until its response would be sent soon, as every
//! response: no response is built before that. Each agent has at most one request under way, which all reads join that
//! need it meanwhile. Nothing is kept when no read waits.
//!
//! Thread: `server`; a plain value and the part of [`ServerLoop`] that uses it.

use super::ServerLoop;
use super::peers::Agent;
use super::requester::{RequestKey, Requester};
use crate::limits::{
    LASTING_REQUESTS_BYTES, USAGE_MISSING_MAX, USAGE_READS_OF_STREAM, USAGE_READS_OF_WORKLOAD, USAGE_WAIT_MAX,
};
use crate::model::mask_tree::MaskTree;
use crate::model::memory_size::MemorySize;
use crate::model::messages::{FromServer, ReadState, RequestContent, ResponseContent};
use crate::model::names::{InstanceName, Name};
use crate::model::node::Node;
use crate::model::usage::{AgentUsage, DISCONNECTED, NO_ANSWER, NOT_SUPPORTED};
use crate::wire::peer::PeerId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// The part of the complete state that samples are.
pub const USAGE: &str = "usage";

/// The error when too many reads of one stream wait.
const TOO_MANY: &str = "Too many requests for usage";

/// The reads that wait, and the requests to agents for them.
#[derive(Debug, Default)]
pub struct UsageReads {
    waiting: Vec<UsageRead>,
    /// The request under way of each agent.
    requested: BTreeMap<Name, Requested>,
    /// Number of the last request.
    last_number: u64,
}

#[derive(Debug)]
struct Requested {
    number: u64,
    /// The stream of the agent.
    peer: PeerId,
}

#[derive(Debug)]
struct UsageRead {
    requester: Requester,
    key: RequestKey,
    masks: MaskTree,
    /// What rights are compared with: they may change while it waits.
    content: RequestContent,
    /// How long it waits for agents; `None` when it does not any more.
    until: Option<Instant>,
    /// Agents without a sample yet.
    awaited: BTreeSet<Name>,
    /// Samples that have come; one may be for several reads.
    usage: BTreeMap<Name, Arc<AgentUsage>>,
}

impl UsageReads {
    /// When the first of them has waited long enough; `None` when none waits.
    pub fn until(&self) -> Option<Instant> {
        self.waiting.iter().filter_map(|read| read.until).min()
    }

    /// A stream has ended: its reads end with it, and no sample comes from it any more.
    pub fn remove_peer(&mut self, peer: PeerId) {
        self.waiting.retain(|read| read.key.peer != peer);
        let gone = self.requested.extract_if(.., |_, requested| requested.peer == peer).map(|(name, _)| name);
        for name in gone.collect::<Vec<_>>() {
            self.sampled(&name, &Arc::new(AgentUsage::missing(DISCONNECTED)));
        }
        self.forget_unneeded();
    }

    /// Forgets requests that no read waits for any more.
    fn forget_unneeded(&mut self) {
        let waiting = &self.waiting;
        self.requested.retain(|name, _| waiting.iter().any(|read| read.awaited.contains(name)));
    }

    /// How many reads wait, and how many requests to agents are under way.
    #[cfg(test)]
    pub fn sizes(&self) -> [usize; 2] {
        [self.waiting.len(), self.requested.len()]
    }

    fn has_room_for(&self, read: &UsageRead) -> bool {
        let of_stream = || self.waiting.iter().filter(|other| other.key.peer == read.key.peer);
        let of_workload = of_stream().filter(|other| other.requester == read.requester).count();
        let bytes: usize = of_stream().map(UsageRead::bytes).sum();
        of_stream().count() < USAGE_READS_OF_STREAM
            && (read.requester.workload.is_none() || of_workload < USAGE_READS_OF_WORKLOAD)
            && bytes + read.bytes() <= LASTING_REQUESTS_BYTES
    }

    /// Gives a sample to all reads that wait for it.
    fn sampled(&mut self, agent: &Name, usage: &Arc<AgentUsage>) {
        for read in self.waiting.iter_mut().filter(|read| read.awaited.contains(agent)) {
            read.awaited.remove(agent);
            read.usage.insert(agent.clone(), usage.clone());
        }
    }

    /// Takes the first read that waits for no agent any more and whose response would be sent soon.
    fn take_ready(&mut self, now: Instant, has_room: impl Fn(PeerId) -> bool) -> Option<UsageRead> {
        for read in &mut self.waiting {
            if read.awaited.is_empty() || read.until.is_some_and(|until| until <= now) {
                read.end_wait();
            }
        }
        self.forget_unneeded();
        let index = self.waiting.iter().position(|read| read.until.is_none() && has_room(read.key.peer))?;
        Some(self.waiting.remove(index))
    }
}

impl UsageRead {
    fn bytes(&self) -> usize {
        self.masks.bytes() + self.content.memory_bytes()
    }

    /// What has not come until now counts as missing.
    fn end_wait(&mut self) {
        let missing = Arc::new(AgentUsage::missing(NO_ANSWER));
        self.usage.extend(std::mem::take(&mut self.awaited).into_iter().map(|name| (name, missing.clone())));
        self.until = None;
    }

    /// The samples that its masks select.
    fn selected(&self) -> Node {
        let wanted = self.masks.named(USAGE);
        let of_agent =
            |(name, usage): (&Name, &Arc<AgentUsage>)| Some((name.to_string(), wanted.below(name).take(usage.node())?));
        Node::Map(self.usage.iter().filter_map(of_agent).collect())
    }
}

impl ServerLoop {
    /// Begins a read if its masks name [`USAGE`]. The response follows when all agents that they reach have responded.
    /// Returns whether it is such a read.
    // [impl->swdd~usage-on-request~1]
    pub(super) fn read_usage(
        &mut self,
        requester: &Requester,
        key: &RequestKey,
        read: &ReadState,
        masks: &MaskTree,
    ) -> bool {
        let wanted = masks.named(USAGE);
        if wanted.is_nothing() {
            return false;
        }
        let reached = self.peers.agents.iter().filter(|(name, _)| !wanted.below(name).is_nothing());
        let (able, unable): (Vec<_>, Vec<_>) = reached.partition(|(_, agent)| agent.capabilities.tells_usage);
        let missing = Arc::new(AgentUsage::missing(NOT_SUPPORTED));
        let names = |agents: &[(&Name, &Agent)]| agents.iter().map(|(name, _)| (*name).clone()).collect::<Vec<_>>();
        let peers: Vec<(Name, PeerId)> = able.iter().map(|(name, agent)| ((*name).clone(), agent.peer)).collect();
        let read = UsageRead {
            requester: requester.clone(),
            key: key.clone(),
            masks: masks.clone(),
            content: RequestContent::CompleteState(read.clone()),
            until: Some(self.now() + USAGE_WAIT_MAX),
            awaited: names(&able).into_iter().collect(),
            usage: names(&unable).into_iter().map(|name| (name, missing.clone())).collect(),
        };
        if !self.usage.has_room_for(&read) {
            self.peers.refuse(key, TOO_MANY);
            return true;
        }
        self.usage.waiting.push(read);
        for (name, peer) in peers {
            if self.usage.requested.contains_key(&name) {
                continue; // Its sample is on the way.
            }
            self.usage.last_number += 1;
            let number = self.usage.last_number;
            self.usage.requested.insert(name, Requested { number, peer });
            self.peers.send(peer, FromServer::UsageRequest { number });
        }
        true
    }

    /// An agent has sent a sample. One that nobody waits for any more, or never did, is ignored.
    pub(super) fn usage_reported(&mut self, peer: PeerId, name: &Name, number: u64, mut usage: AgentUsage) {
        let is_requested = |requested: &Requested| requested.number == number && requested.peer == peer;
        if !self.usage.requested.get(name).is_some_and(is_requested) {
            return;
        }
        self.usage.requested.remove(name);
        usage.missing = None; // Only the server knows of a whole agent.
        for (workload, ids) in &mut usage.workloads {
            ids.retain(|id, usage| {
                if let Some(text) = &mut usage.missing {
                    text.truncate(text.floor_char_boundary(USAGE_MISSING_MAX));
                }
                let instance = InstanceName { workload: workload.clone(), id: id.clone(), agent: name.clone() };
                self.workloads.states.get(&instance).is_some()
            });
        }
        usage.workloads.retain(|_, ids| !ids.is_empty());
        self.usage.sampled(name, &Arc::new(usage));
    }

    /// Responds to the reads that need not wait any more.
    pub(super) fn respond_with_usage(&mut self) {
        if self.usage.waiting.is_empty() {
            return;
        }
        loop {
            let begin = self.now();
            let Self { usage, peers, room, .. } = self;
            let has_room = |peer| peers.has_room_for_answer(peer, false, &room.0);
            let Some(read) = usage.take_ready(begin, has_room) else { return };
            self.respond_to_usage_read(&read);
            self.waiting.charge(&read.requester, begin, self.now());
        }
    }

    fn respond_to_usage_read(&mut self, read: &UsageRead) {
        // What was allowed when the request came may not be so any more.
        if let Err(denied) = self.rights.authorize(&read.requester, &read.content) {
            return self.deny(&read.key, denied);
        }
        let mut state = self.view().select(&read.masks);
        self.add_parts_on_request(&read.requester, &read.masks, &mut state);
        if let Node::Map(parts) = &mut state {
            parts.insert(USAGE.to_owned(), read.selected());
        }
        self.peers.respond(&read.key, ResponseContent::CompleteState { state, altered: None });
    }
}
