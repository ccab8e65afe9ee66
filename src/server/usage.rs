//! Reads of what workloads and nodes use: the agents receive a request each, and the response waits
//! for theirs.
//!
//! A read waits at most [`USAGE_WAIT_MAX`] for the agents, and then until its response would be
//! sent soon, as every response: no response is built before that. Each agent has at most one
//! request under way, which all reads join that need it meanwhile. Nothing is kept when no read
//! waits.
//!
//! Thread: `server`; a plain value and the part of [`ServerLoop`] that uses it.

use super::ServerLoop;
use super::lasting::{Content, Kind, Lasting, UsageRead};
use super::requester::{RequestKey, Requester};
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

    /// Whether it does not wait for agents any more. What has not come until now counts as missing.
    fn has_waited(&mut self, now: Instant) -> bool {
        if self.awaited.is_empty() || self.until.is_some_and(|until| until <= now) {
            let missing = Arc::new(AgentUsage::missing(NO_ANSWER));
            self.usage.extend(
                std::mem::take(&mut self.awaited)
                    .into_keys()
                    .map(|name| (name, missing.clone())),
            );
            self.until = None;
        }
        self.until.is_none()
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

impl ServerLoop {
    /// When the first read has waited long enough; `None` when none waits.
    pub(super) fn usage_until(&self) -> Option<Instant> {
        let until = |lasting: &Lasting| {
            if let Content::Usage(read) = &lasting.content {
                read.until
            } else {
                None
            }
        };
        self.lasting
            .of(Kind::Usage(0))
            .filter_map(|(_, lasting)| until(lasting))
            .min()
    }

    /// The stream of this name has ended: no sample comes from it any more.
    pub(super) fn end_usage_of_peer(&mut self, name: &Name) {
        let missing = Arc::new(AgentUsage::missing(DISCONNECTED));
        self.lasting
            .reads()
            .for_each(|(_, _, read)| read.sampled(name, None, &missing));
    }

    /// Begins a read if its masks name [`USAGE`]. The response follows when all agents that they
    /// reach have responded. Returns whether it is such a read.
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
        let reached = self
            .peers
            .agents
            .iter()
            .filter(|(name, _)| !wanted.below(name).is_nothing());
        let (able, unable): (Vec<_>, Vec<_>) =
            reached.partition(|(_, agent)| agent.capabilities.tells_usage);
        // Why an agent has no sample: it is an older program, or one of another implementation.
        let missing = Arc::new(AgentUsage::missing("its agent does not tell"));
        self.last_read += 1;
        let number = self.last_read;
        let under_way: BTreeMap<Name, u64> = self
            .lasting
            .reads()
            .flat_map(|(_, _, read)| read.awaited.clone())
            .collect();
        let joined = |name: &Name| (name.clone(), under_way.get(name).copied().unwrap_or(number));
        let awaited: BTreeMap<Name, u64> = able.into_iter().map(|(name, _)| joined(name)).collect();
        let content = Content::Usage(UsageRead {
            masks: masks.clone(),
            content: RequestContent::CompleteState(read.clone()),
            until: Some(self.now() + USAGE_WAIT_MAX),
            awaited: awaited.clone(),
            usage: unable
                .into_iter()
                .map(|(name, _)| (name.clone(), missing.clone()))
                .collect(),
        });
        let lasting = Lasting {
            requester: requester.clone(),
            owner: None,
            content,
        };
        if let Err(error) = self.lasting.add(Kind::Usage(number), key, lasting) {
            self.peers.refuse(key, error);
            return true;
        }
        // The samples of the others are on the way.
        for (name, _) in awaited.iter().filter(|(_, awaited)| **awaited == number) {
            self.peers
                .send_to_agent(name, FromServer::UsageRequest { number });
        }
        true
    }

    /// An agent has sent a sample. One that nobody waits for any more, or never did, is ignored.
    pub(super) fn usage_reported(&mut self, name: &Name, number: u64, mut usage: AgentUsage) {
        usage.missing = None; // Only the server knows of a whole agent.
        for (workload, ids) in &mut usage.workloads {
            ids.retain(|id, usage| {
                if let Some(text) = &mut usage.missing {
                    // Bytes kept of an agent's text why a workload has no values.
                    text.truncate(text.floor_char_boundary(128));
                }
                let instance = InstanceName {
                    workload: (**workload).into(),
                    id: (**id).into(),
                    agent: name.clone(),
                };
                self.updates.workloads().states.get(&instance).is_some()
            });
        }
        usage.workloads.retain(|_, ids| !ids.is_empty());
        let usage = Arc::new(usage);
        self.lasting
            .reads()
            .for_each(|(_, _, read)| read.sampled(name, Some(number), &usage));
    }

    /// Responds to the reads that need not wait any more, the oldest first.
    pub(super) fn respond_with_usage(&mut self) {
        while !self.lasting.has_no(Kind::Usage(0)) {
            let begin = self.now();
            let Self {
                lasting,
                peers,
                room,
                ..
            } = self;
            let ready = lasting
                .reads()
                .filter_map(|(kind, key, read)| read.has_waited(begin).then_some((kind, key)));
            let ready: Vec<(Kind, RequestKey)> =
                ready.map(|(kind, key)| (kind, key.clone())).collect();
            let mut next = ready
                .into_iter()
                .filter(|(_, key)| peers.has_room_for_answer(key.peer, false, &room.0));
            let Some((kind, key)) = next.next() else {
                return;
            };
            let Some(Lasting {
                requester,
                content: Content::Usage(read),
                ..
            }) = lasting.remove(kind, &key)
            else {
                return;
            };
            self.respond_to_usage_read(&requester, &key, &read);
            self.waiting.charge(&requester, begin, self.now());
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
