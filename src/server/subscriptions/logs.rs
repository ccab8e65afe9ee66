//! Log collections: requests of log lines from agents, whose lines are passed on to the requesters.
//!
//! Thread: `server`; part of [`Subscriptions`].

use super::{Providers, Subscription, SubscriptionContent, SubscriptionKind, Subscriptions};
use crate::effects::Effects;
use crate::sessions::{RequestKey, Requester};
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::log_entries;
use ankaios_model::messages::{FromServer, LogEntry, LogsRequest, ResponseContent};
use ankaios_model::names::{InstanceName, Name, excerpt};
use ankaios_wire::peer::PeerId;
use std::collections::BTreeMap;

/// Whether an agent can be sent a request for logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AgentAvailability {
    Ready,
    /// Its outbox is half full: requests of others must not cost it its connection.
    Busy,
    NotConnected,
}

impl AgentAvailability {
    /// The reason why there are no lines of instances on `agent`.
    fn reason(self, agent: &Name) -> String {
        if agent.is_empty() {
            return "it has no agent".to_owned();
        }
        if self == Self::Busy {
            return format!(
                "agent '{agent}' has too many messages waiting for it; try again later"
            );
        }
        format!("agent '{agent}' is not connected")
    }
}

impl Subscriptions {
    /// Requests the logs of instances from the agents that run them. `availability` returns whether
    /// an agent can be sent a request.
    ///
    /// The response names all instances. Those whose agent is disconnected or busy are reported as
    /// ended at once: a requester that does not follow the logs waits for the ends of all of them.
    pub(crate) fn collect_logs(
        &mut self,
        key: &RequestKey,
        requester: &Requester,
        owner: Option<InstanceName>,
        request: LogsRequest,
        availability: impl Fn(&Name) -> AgentAvailability,
        effects: &mut Effects,
    ) {
        // First, the agents of the instances, and whether these agents can be sent a request.
        let mut by_agent: BTreeMap<&Name, Vec<InstanceName>> = BTreeMap::new();
        for instance in &request.instances {
            by_agent
                .entry(&instance.agent)
                .or_default()
                .push(instance.clone());
        }
        let mut ready = Vec::new();
        let mut unavailable = Vec::new();
        for (agent, instances) in by_agent {
            match availability(agent) {
                AgentAvailability::Ready => ready.push((agent.clone(), instances)),
                other => unavailable.push((other.reason(agent), instances)),
            }
        }
        // Then, the collection, which may be refused.
        if !ready.is_empty() {
            let mut providers: Providers = BTreeMap::new();
            for (agent, instances) in &ready {
                providers.insert(agent.clone(), instances.iter().cloned().collect_entries());
            }
            // An earlier collection under the same id continues.
            for (agent, instances) in self.providers(key).cloned().unwrap_or_default() {
                providers.entry(agent).or_default().extend(instances);
            }
            let subscription = Subscription {
                requester: requester.clone(),
                owner,
                content: SubscriptionContent::Logs(providers),
            };
            if let Err(error) = self.add(SubscriptionKind::Logs, key, subscription) {
                return effects.refuse(key, error);
            }
        }
        // Finally, the requests, the response, and the ends of instances without lines.
        for (agent, instances) in ready {
            let request = LogsRequest {
                instances,
                ..request.clone()
            };
            let request_id = key.full_id();
            let message = FromServer::LogsRequest {
                request_id,
                request,
            };
            effects.send_to_agent(&agent, message);
        }
        effects.respond(key, ResponseContent::LogsAccepted(request.instances));
        for (reason, instances) in unavailable {
            stop_logs(key, instances, &reason, effects);
        }
    }

    fn providers(&mut self, key: &RequestKey) -> Option<&mut Providers> {
        match &mut self.get_mut(SubscriptionKind::Logs, key)?.content {
            SubscriptionContent::Logs(providers) => Some(providers),
            _ => None,
        }
    }

    /// Ends the log collection with this key. The response is the same if there is none.
    pub(crate) fn cancel_logs(&mut self, key: &RequestKey, effects: &mut Effects) {
        self.end(
            |kind, other, _| kind == SubscriptionKind::Logs && other == key,
            effects,
        );
        effects.respond(key, ResponseContent::LogsCancelAccepted);
    }

    /// Passes on the lines that were requested from `agent`. Others are dropped.
    pub(crate) fn log_entries(
        &mut self,
        agent: &str,
        key: &RequestKey,
        mut entries: Vec<LogEntry>,
        effects: &mut Effects,
    ) {
        let all = entries.len();
        let provided = self
            .providers(key)
            .and_then(|providers| providers.get(agent));
        entries.retain(|entry| provided.is_some_and(|provided| provided.contains(&entry.instance)));
        if entries.len() < all {
            log::debug!(
                "Dropping {} log lines that were not requested from '{agent}' for the request '{}'.",
                all - entries.len(),
                excerpt(&key.full_id())
            );
        }
        for entries in log_entries::split(entries) {
            effects.respond(key, ResponseContent::LogEntries(entries));
        }
    }

    /// Passes on the end of one instance's lines, if they were requested from `agent`. The
    /// collection ends with its last instance.
    pub(crate) fn logs_stopped(
        &mut self,
        agent: &str,
        key: &RequestKey,
        instance: InstanceName,
        effects: &mut Effects,
    ) {
        let mut is_provided = false;
        if let Some(providers) = self.providers(key) {
            if let Some(instances) = providers.get_mut(agent) {
                is_provided = instances.remove(&instance);
            }
            providers.retain(|_, instances| !instances.is_empty());
        }
        if !is_provided {
            return log::debug!(
                "Dropping an end of logs that were not requested from '{agent}' for the request '{}'.",
                excerpt(&key.full_id())
            );
        }
        self.end_logs_without_provider(key);
        effects.respond(key, ResponseContent::LogsStop(instance));
    }

    /// Ends a collection when no agent sends lines for it any more.
    fn end_logs_without_provider(&mut self, key: &RequestKey) {
        if let Some(providers) = self.providers(key)
            && providers.is_empty()
        {
            self.remove(SubscriptionKind::Logs, key);
        }
    }

    /// Ends the subscriptions of a stream that has ended, and the collections of lines from its
    /// agent `name`.
    pub(crate) fn end_of_peer(&mut self, peer: PeerId, name: &str, effects: &mut Effects) {
        // First, the subscriptions that were made through the stream.
        self.end(|_, key, _| key.peer == peer, effects);
        // Then, the lines from the agent: tell those that collect them that no more will come.
        let mut waiting = Vec::new();
        for (key, subscription) in self.of(SubscriptionKind::Logs) {
            if let SubscriptionContent::Logs(providers) = &subscription.content
                && providers.contains_key(name)
            {
                waiting.push(key.clone());
            }
        }
        let reason = format!("agent '{name}' is not connected any more");
        for key in waiting {
            let Some(providers) = self.providers(&key) else {
                continue;
            };
            let missing = providers.remove(name).unwrap_or_default();
            self.end_logs_without_provider(&key);
            stop_logs(&key, missing.into_iter().collect(), &reason, effects);
        }
    }
}

/// Reports the end of the logs of these instances, with the reason.
fn stop_logs(key: &RequestKey, instances: Vec<InstanceName>, reason: &str, effects: &mut Effects) {
    let reasons = instances
        .iter()
        .map(|instance| log_entries::no_log(instance.clone(), reason))
        .collect();
    for entries in log_entries::split(reasons) {
        effects.respond(key, ResponseContent::LogEntries(entries));
    }
    for instance in instances {
        effects.respond(key, ResponseContent::LogsStop(instance));
    }
}
