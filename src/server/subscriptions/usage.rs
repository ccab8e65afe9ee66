//! Usage reads: the agents are sent a request for the resource usage of workloads and nodes, and
//! the response to the read waits for their samples.
//!
//! A read waits at most [`USAGE_WAIT_MAX`] for the agents, and then, as every read, until its
//! response would be sent soon. Each agent has at most one open request; a further read that needs
//! its sample waits for the same request. No sample is kept when no read waits.
//!
//! Thread: `server`; part of [`Subscriptions`].

use super::{Subscription, SubscriptionContent, SubscriptionKind, Subscriptions, UsageRead};
use crate::effects::Effects;
use crate::sessions::{ConnectedAgent, RequestKey, Requester};
use ankaios_model::limits::USAGE_WAIT_MAX;
use ankaios_model::mask_tree::MaskTree;
use ankaios_model::messages::{FromServer, RequestContent};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::node::{Entries, Node};
use ankaios_model::usage::{AgentUsage, DISCONNECTED, NO_ANSWER};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// The part of the complete state with the samples.
pub(crate) const USAGE: &str = "usage";

/// Text of an agent why a workload has no values, in bytes.
const MISSING_TEXT_MAX: usize = 128;

impl UsageRead {
    /// A read of the samples that `masks` select, which begins `now`.
    pub(crate) fn new(masks: MaskTree, content: RequestContent, now: Instant) -> Self {
        Self {
            masks,
            content,
            until: Some(now + USAGE_WAIT_MAX),
            awaited: BTreeMap::new(),
            usage: BTreeMap::new(),
        }
    }

    /// Takes the sample of an agent, if the read awaits it from the request `number`. `None` stands
    /// for every request: the agent has disconnected.
    fn take_sample(&mut self, agent: &Name, number: Option<u64>, usage: &Arc<AgentUsage>) {
        let Some(awaited) = self.awaited.get(agent) else {
            return;
        };
        if number.is_none() || number == Some(*awaited) {
            self.awaited.remove(agent);
            self.usage.insert(agent.clone(), usage.clone());
        }
    }

    /// Ends the wait of the read if all samples have come, or the time is over. Samples that have
    /// not come by then are missing.
    fn end_wait(&mut self, now: Instant) {
        let is_late = self.until.is_some_and(|until| until <= now);
        if !self.awaited.is_empty() && !is_late {
            return;
        }
        let missing = Arc::new(AgentUsage::missing(NO_ANSWER));
        for name in std::mem::take(&mut self.awaited).into_keys() {
            self.usage.insert(name, missing.clone());
        }
        self.until = None;
    }

    /// The samples that the masks of the read select.
    pub(crate) fn selected(&self) -> Node {
        let wanted = self.masks.named(USAGE);
        let mut agents = Entries::default();
        for (name, usage) in &self.usage {
            if let Some(selected) = wanted.below(name).take(usage.node()) {
                agents.insert(name.to_string(), selected);
            }
        }
        Node::Map(agents)
    }
}

impl Subscriptions {
    /// Returns whether there are usage reads.
    pub(crate) fn has_usage_reads(&self) -> bool {
        !self.has_no(SubscriptionKind::Usage(0))
    }

    /// When the wait of the first usage read ends; `None` when none waits.
    pub(crate) fn usage_until(&self) -> Option<Instant> {
        let mut first = None;
        for (_, subscription) in self.of(SubscriptionKind::Usage(0)) {
            if let SubscriptionContent::Usage(UsageRead {
                until: Some(until), ..
            }) = &subscription.content
                && first.is_none_or(|first| *until < first)
            {
                first = Some(*until);
            }
        }
        first
    }

    /// Ends the wait for samples of an agent whose stream has ended.
    pub(super) fn end_usage_of_agent(&mut self, name: &Name) {
        let missing = Arc::new(AgentUsage::missing(DISCONNECTED));
        for (_, _, read) in self.reads() {
            read.take_sample(name, None, &missing);
        }
    }

    /// Begins a usage read. Each agent that its masks name is sent a request for a sample, unless
    /// an earlier read awaits one: both reads share it.
    // [impl->swdd~usage-on-request~1]
    pub(crate) fn read_usage(
        &mut self,
        key: &RequestKey,
        requester: &Requester,
        mut read: UsageRead,
        agents: &BTreeMap<Name, ConnectedAgent>,
        effects: &mut Effects,
    ) {
        // First, the agents that the read awaits, each with the number of the request for its
        // sample.
        self.last_read += 1;
        let number = self.last_read;
        let mut open_requests = BTreeMap::new();
        for (_, _, read) in self.reads() {
            open_requests.extend(read.awaited.clone());
        }
        // An older program, or one of another implementation, has no samples.
        let missing = Arc::new(AgentUsage::missing("its agent cannot report usage"));
        let wanted = read.masks.named(USAGE);
        for (name, agent) in agents {
            if wanted.below(name).is_nothing() {
                continue;
            }
            if agent.capabilities.tells_usage {
                let request = open_requests.get(name).copied().unwrap_or(number);
                read.awaited.insert(name.clone(), request);
            } else {
                read.usage.insert(name.clone(), missing.clone());
            }
        }
        // Then, the read itself, which may be refused.
        let awaited = read.awaited.clone();
        let subscription = Subscription {
            requester: requester.clone(),
            owner: None,
            content: SubscriptionContent::Usage(read),
        };
        if let Err(error) = self.add(SubscriptionKind::Usage(number), key, subscription) {
            return effects.refuse(key, error);
        }
        // Finally, the requests with the number of this read. The others were sent for earlier
        // reads.
        for (name, awaited) in &awaited {
            if *awaited == number {
                effects.send_to_agent(name, FromServer::UsageRequest { number });
            }
        }
    }

    /// Takes a sample of an agent for the reads that await it. Values of instances without a state
    /// (`has_state`) are dropped.
    pub(crate) fn usage_reported(
        &mut self,
        name: &Name,
        number: u64,
        mut usage: AgentUsage,
        has_state: impl Fn(&InstanceName) -> bool,
    ) {
        usage.missing = None; // Only the server decides that a whole agent has no sample.
        for (workload, ids) in &mut usage.workloads {
            ids.retain(|id, _| {
                has_state(&InstanceName {
                    workload: (**workload).into(),
                    id: (**id).into(),
                    agent: name.clone(),
                })
            });
            for usage in ids.values_mut() {
                if let Some(text) = &mut usage.missing {
                    text.truncate(text.floor_char_boundary(MISSING_TEXT_MAX));
                }
            }
        }
        usage.workloads.retain(|_, ids| !ids.is_empty());
        let usage = Arc::new(usage);
        for (_, _, read) in self.reads() {
            read.take_sample(name, Some(number), &usage);
        }
    }

    /// Ends the waits that are over. Returns all reads that wait for no sample, the oldest first.
    pub(crate) fn end_waits(&mut self, now: Instant) -> Vec<(SubscriptionKind, RequestKey)> {
        let mut ready = Vec::new();
        for (kind, key, read) in self.reads() {
            read.end_wait(now);
            if read.until.is_none() {
                ready.push((kind, key.clone()));
            }
        }
        ready
    }

    /// Removes a read, to respond to it.
    pub(crate) fn take_read(
        &mut self,
        kind: SubscriptionKind,
        key: &RequestKey,
    ) -> Option<(Requester, UsageRead)> {
        let subscription = self.remove(kind, key)?;
        match subscription.content {
            SubscriptionContent::Usage(read) => Some((subscription.requester, read)),
            _ => None,
        }
    }
}
