//! Reads of what workloads and nodes use: the agents receive a request each, and the response waits
//! for theirs.
//!
//! A read waits at most [`USAGE_WAIT_MAX`] for the agents, and then until its response would be
//! sent soon, as every response: no response is built before that. Each agent has at most one
//! request under way, which all reads join that need it meanwhile. Nothing is kept when no read
//! waits.
//!
//! Thread: `server`; the reads of [`Subscriptions`], and the part of [`ServerLoop`] that passes in
//! what they need of others.

use super::ServerLoop;
use super::effects::Effects;
use super::peers::Agent;
use super::requester::{RequestKey, Requester};
use super::subscriptions::{Content, Kind, Subscription, Subscriptions, UsageRead};
use ankaios_model::limits::USAGE_WAIT_MAX;
use ankaios_model::mask_tree::MaskTree;
use ankaios_model::messages::{FromServer, ReadState, RequestContent, ResponseContent};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::node::Node;
use ankaios_model::usage::{AgentUsage, DISCONNECTED, NO_ANSWER};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// The part of the complete state that samples are.
pub(crate) const USAGE: &str = "usage";

impl UsageRead {
    /// The sample of an agent has come, as the response to the request `number`, or will never
    /// come.
    fn sampled(&mut self, agent: &Name, number: Option<u64>, usage: &Arc<AgentUsage>) {
        if self
            .awaited
            .get(agent)
            .is_some_and(|awaited| number.is_none_or(|number| number == *awaited))
        {
            self.awaited.remove(agent);
            self.usage.insert(agent.clone(), usage.clone());
        }
    }

    /// Ends its wait if all samples have come or the time is over. Then the others are missing.
    fn end_wait(&mut self, now: Instant) {
        if !self.awaited.is_empty() && self.until.is_none_or(|until| until > now) {
            return;
        }
        let missing = Arc::new(AgentUsage::missing(NO_ANSWER));
        for name in std::mem::take(&mut self.awaited).into_keys() {
            self.usage.insert(name, missing.clone());
        }
        self.until = None;
    }

    /// The samples that its masks select.
    fn selected(&self) -> Node {
        let wanted = self.masks.named(USAGE);
        let of_agent = |(name, usage): (&Name, &Arc<AgentUsage>)| {
            Some((name.to_string(), wanted.below(name).take(usage.node())?))
        };
        Node::Map(self.usage.iter().filter_map(of_agent).collect())
    }
}

impl Subscriptions {
    /// When the first usage read has waited long enough; `None` when none waits.
    pub(super) fn usage_until(&self) -> Option<Instant> {
        let mut first = None;
        for (_, subscription) in self.of(Kind::Usage(0)) {
            if let Content::Usage(UsageRead {
                until: Some(until), ..
            }) = &subscription.content
                && first.is_none_or(|first| *until < first)
            {
                first = Some(*until);
            }
        }
        first
    }

    /// The stream of this agent has ended: no sample comes from it any more.
    pub(super) fn end_usage_of_agent(&mut self, name: &Name) {
        let missing = Arc::new(AgentUsage::missing(DISCONNECTED));
        for (_, _, read) in self.reads() {
            read.sampled(name, None, &missing);
        }
    }

    /// Begins a usage read of these agents. Each that can is sent a request, unless one is under
    /// way. The response follows when all of them have responded, or its time is over.
    // [impl->swdd~usage-on-request~1]
    pub(super) fn read_usage<'a>(
        &mut self,
        key: &RequestKey,
        requester: &Requester,
        mut read: UsageRead,
        agents: impl Iterator<Item = (&'a Name, &'a Agent)>,
        effects: &mut Effects,
    ) {
        self.last_read += 1;
        let number = self.last_read;
        let under_way: BTreeMap<Name, u64> = self
            .reads()
            .flat_map(|(_, _, read)| read.awaited.clone())
            .collect();
        // Why an agent has no sample: it is an older program, or one of another implementation.
        let missing = Arc::new(AgentUsage::missing("its agent does not tell"));
        for (name, agent) in agents {
            if agent.capabilities.tells_usage {
                let joined = under_way.get(name).copied().unwrap_or(number);
                read.awaited.insert(name.clone(), joined);
            } else {
                read.usage.insert(name.clone(), missing.clone());
            }
        }
        let awaited = read.awaited.clone();
        let subscription = Subscription {
            requester: requester.clone(),
            owner: None,
            content: Content::Usage(read),
        };
        if let Err(error) = self.add(Kind::Usage(number), key, subscription) {
            return effects.refuse(key, error);
        }
        // The samples of the others are on the way.
        for (name, awaited) in &awaited {
            if *awaited == number {
                effects.send_to_agent(name, FromServer::UsageRequest { number });
            }
        }
    }

    /// An agent has sent a sample. One that no read waits for is ignored. `has_state` returns
    /// whether an instance is known.
    pub(super) fn usage_reported(
        &mut self,
        name: &Name,
        number: u64,
        mut usage: AgentUsage,
        has_state: impl Fn(&InstanceName) -> bool,
    ) {
        usage.missing = None; // Only the server knows of a whole agent.
        for (workload, ids) in &mut usage.workloads {
            ids.retain(|id, usage| {
                if let Some(text) = &mut usage.missing {
                    // Bytes kept of an agent's text why a workload has no values.
                    text.truncate(text.floor_char_boundary(128));
                }
                has_state(&InstanceName {
                    workload: (**workload).into(),
                    id: (**id).into(),
                    agent: name.clone(),
                })
            });
        }
        usage.workloads.retain(|_, ids| !ids.is_empty());
        let usage = Arc::new(usage);
        for (_, _, read) in self.reads() {
            read.sampled(name, Some(number), &usage);
        }
    }

    /// Ends the wait of the reads for which all samples have come or the time is over. Returns
    /// them, the oldest first.
    fn end_waits(&mut self, now: Instant) -> Vec<(Kind, RequestKey)> {
        let mut ready = Vec::new();
        for (kind, key, read) in self.reads() {
            read.end_wait(now);
            if read.until.is_none() {
                ready.push((kind, key.clone()));
            }
        }
        ready
    }

    /// Takes a read to respond to it.
    fn take_read(&mut self, kind: Kind, key: &RequestKey) -> Option<(Requester, UsageRead)> {
        let subscription = self.remove(kind, key)?;
        match subscription.content {
            Content::Usage(read) => Some((subscription.requester, read)),
            _ => None,
        }
    }
}

impl ServerLoop {
    /// Begins a read if its masks name [`USAGE`]. Returns whether it is such a read.
    pub(super) fn begin_usage_read(
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
        let usage_read = UsageRead {
            masks: masks.clone(),
            content: RequestContent::CompleteState(read.clone()),
            until: Some(self.now() + USAGE_WAIT_MAX),
            awaited: BTreeMap::new(),
            usage: BTreeMap::new(),
        };
        let agents = self.peers.agents.iter();
        let reached = agents.filter(|(name, _)| !wanted.below(name).is_nothing());
        let mut effects = Effects::default();
        self.subscriptions
            .read_usage(key, requester, usage_read, reached, &mut effects);
        self.apply(effects);
        true
    }

    /// Responds to the reads that need not wait any more, the oldest first, each as soon as its
    /// response would be sent.
    pub(super) fn respond_with_usage(&mut self) {
        while !self.subscriptions.has_no(Kind::Usage(0)) {
            let begin = self.now();
            let ready = self.subscriptions.end_waits(begin);
            let mut capacity = self.peers.response_capacity(&self.admission.waker);
            let next = ready
                .into_iter()
                .find(|(_, key)| capacity.has_room(key.peer));
            let Some((kind, key)) = next else {
                return;
            };
            let Some((requester, read)) = self.subscriptions.take_read(kind, &key) else {
                return;
            };
            self.respond_to_usage_read(&requester, &key, &read);
            self.admission.debit(&requester, begin, self.now());
        }
    }

    fn respond_to_usage_read(&mut self, requester: &Requester, key: &RequestKey, read: &UsageRead) {
        // What was allowed when the request came may not be so any more.
        if let Err(denied) = self.rights.authorize(requester, &read.content) {
            return self.deny(key, denied);
        }
        let mut state = self.view().select(&read.masks);
        self.add_parts_on_request(requester, &read.masks, &mut state);
        if let Node::Map(parts) = &mut state {
            parts.insert(USAGE.to_owned(), read.selected());
        }
        self.peers.respond(
            key,
            ResponseContent::CompleteState {
                state,
                altered: None,
            },
        );
    }
}
