//! Which log stream belongs to which request.
//!
//! Thread: `server`; a plain value and the part of [`ServerLoop`] that uses it.

use super::ServerLoop;
use super::peers::PeerClass;
use super::requester::{RequestKey, Requester};
use super::shares::{ByRequest, LastingRequest, check_room};
use crate::limits::{LASTING_REQUEST_PART, LOG_CAMPAIGNS_OF_WORKLOAD, LOG_CAMPAIGNS_PER_PEER_MAX};
use crate::model::log_entries;
use crate::model::messages::{FromServer, LogEntry, LogsRequest, ResponseContent};
use crate::model::names::{InstanceName, Name, excerpt};
use crate::wire::peer::PeerId;
use std::collections::{BTreeMap, BTreeSet};

/// One request for logs that is being served.
#[derive(Debug, Default, PartialEq, Eq)]
struct Campaign {
    /// The id under which agents know it.
    full_id: String,
    /// The instance that requested it through its agent: its successor has not.
    owner: Option<InstanceName>,
    /// Agents that still send lines, and of which instances.
    providers: BTreeMap<Name, BTreeSet<InstanceName>>,
}

impl LastingRequest for Campaign {
    const NAME: &str = "requests for logs";
    const OF_WORKLOAD: usize = LOG_CAMPAIGNS_OF_WORKLOAD;
    const OF_STREAM: usize = LOG_CAMPAIGNS_PER_PEER_MAX;

    fn bytes(&self) -> usize {
        let names = |name: &InstanceName| name.workload.len() + name.id.len() + name.agent.len() + LASTING_REQUEST_PART;
        self.full_id.len() + self.providers.values().flatten().map(names).sum::<usize>()
    }
}

/// The requests for logs that are being served.
#[derive(Debug, Default)]
pub struct LogCampaigns {
    by_request: ByRequest<Campaign>,
}

impl LogCampaigns {
    /// The instances whose lines were requested from `agent` for `key`, and whose end it has not reported.
    fn provided(&self, key: &RequestKey, agent: &str) -> Option<&BTreeSet<InstanceName>> {
        self.by_request.get(key)?.providers.get(agent)
    }

    /// `instance` sends no more lines for `key`. A campaign without providers is over.
    fn stopped(&mut self, key: &RequestKey, instance: &InstanceName) {
        let Some(campaign) = self.by_request.get_mut(key) else { return };
        campaign.providers.retain(|_, instances| {
            instances.remove(instance);
            !instances.is_empty()
        });
        if campaign.providers.is_empty() {
            self.by_request.remove(key);
        }
    }

    /// `agent` sends no more lines at all. Returns which requests miss which instances.
    fn provider_gone(&mut self, agent: &str) -> Vec<(RequestKey, InstanceName)> {
        let mut missing = Vec::new();
        self.by_request.retain(|key, campaign| {
            let instances = campaign.providers.remove(agent).unwrap_or_default();
            missing.extend(instances.into_iter().map(|instance| (key.clone(), instance)));
            !campaign.providers.is_empty()
        });
        missing
    }

    /// Whether no campaign runs.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.by_request.is_empty()
    }
}

impl ServerLoop {
    /// Requests the logs of workloads from the agents that run them; what is not in the effective state is left out.
    ///
    /// The response names what will be sent. Instances whose agent is away or busy are stopped at once, or a requester
    /// that does not follow would wait for them for ever.
    pub(super) fn logs(&mut self, requester: &Requester, key: &RequestKey, request: LogsRequest) {
        let LogsRequest { mut instances, follow, tail, since, until } = request;
        instances.retain(|name| self.workloads.is_wanted(name));
        if instances.len() > 2 * self.workloads.effective.len() {
            return self
                .peers
                .refuse(key, "The request for logs names the same workloads again and again; name each once");
        }
        // An agent that does not take what it is sent must not be disconnected because of the requests of others.
        let is_there = |agent: &Name| {
            let stream = self.peers.of_agent(agent).and_then(|peer| self.peers.get(peer));
            stream.is_some_and(|peer| peer.outbox.is_half_empty())
        };
        let mut by_agent: BTreeMap<Name, Vec<InstanceName>> = BTreeMap::new();
        for instance in &instances {
            by_agent.entry(instance.agent.clone()).or_default().push(instance.clone());
        }
        let (by_agent, away): (BTreeMap<_, _>, BTreeMap<_, _>) =
            by_agent.into_iter().partition(|(agent, _)| is_there(agent));
        let providers = by_agent.iter().map(|(agent, own)| (agent.clone(), own.iter().cloned().collect())).collect();
        let campaign = Campaign { full_id: self.full_id(key), owner: self.rights.owner(requester), providers };
        if let Err(error) = check_room(&self.log_campaigns.by_request, requester, key, &campaign) {
            return self.peers.refuse(key, error);
        }
        for (agent, instances) in by_agent {
            let request = LogsRequest { instances, follow, tail, since: since.clone(), until: until.clone() };
            if let Some(provider) = self.peers.of_agent(&agent) {
                let request_id = campaign.full_id.clone();
                self.peers.send(provider, FromServer::LogsRequest { request_id, request });
            }
        }
        if !campaign.providers.is_empty() {
            let known = self.log_campaigns.by_request.entry(key.clone()).or_default();
            let earlier = std::mem::replace(known, campaign).providers;
            for (agent, instances) in earlier {
                known.providers.entry(agent).or_default().extend(instances);
            }
        }
        self.peers.respond(key, ResponseContent::LogsAccepted(instances));
        for instance in away.into_values().flatten() {
            self.peers.respond(key, ResponseContent::LogsStop(instance));
        }
    }

    /// Ends the collection of logs under the same id; an unknown one has the same response.
    pub(super) fn logs_cancel(&mut self, key: &RequestKey) {
        self.end_logs(|other, _| other == key);
        self.peers.respond(key, ResponseContent::LogsCancelAccepted);
    }

    /// Passes on the lines that were requested from `agent`. Others are late, or made up.
    pub(super) fn log_entries(&mut self, agent: &str, request_id: &str, mut entries: Vec<LogEntry>) {
        let Some(key) = self.log_request(request_id) else { return };
        let (all, provided) = (entries.len(), self.log_campaigns.provided(&key, agent));
        entries.retain(|entry| provided.is_some_and(|provided| provided.contains(&entry.instance)));
        if entries.len() < all {
            let (dropped, id) = (all - entries.len(), excerpt(request_id));
            log::debug!("Dropping {dropped} log lines that '{agent}' is not to send for the request '{id}'.");
        }
        for entries in log_entries::split(entries) {
            self.peers.respond(&key, ResponseContent::LogEntries(entries));
        }
    }

    /// Passes on the end of one instance's lines, if they were requested from `agent`.
    pub(super) fn logs_stopped(&mut self, agent: &str, request_id: &str, instance: InstanceName) {
        let Some(key) = self.log_request(request_id) else { return };
        if !self.log_campaigns.provided(&key, agent).is_some_and(|provided| provided.contains(&instance)) {
            let id = excerpt(request_id);
            return log::debug!("Dropping an end of logs that '{agent}' is not to send for the request '{id}'.");
        }
        self.log_campaigns.stopped(&key, &instance);
        self.peers.respond(&key, ResponseContent::LogsStop(instance));
    }

    /// A stream ended: nobody reads what was requested on it, and an agent sends no more lines.
    pub(super) fn end_logs_of_peer(&mut self, peer: PeerId, class: PeerClass, name: &str) {
        self.end_logs(|key, _| key.peer == peer);
        if class == PeerClass::Agent {
            for (key, instance) in self.log_campaigns.provider_gone(name) {
                self.peers.respond(&key, ResponseContent::LogsStop(instance));
            }
        }
    }

    /// A workload is deleted or becomes another instance: nobody reads what it requested.
    pub(super) fn end_logs_of_workload(&mut self, instance: &InstanceName) {
        let Some(peer) = self.peers.of_agent(&instance.agent) else { return };
        self.end_logs(|key, _| key.peer == peer && key.workload() == Some(&instance.workload));
    }

    /// An instance is gone: nobody reads what it requested.
    pub(super) fn end_logs_of_instance(&mut self, instance: &InstanceName) {
        self.end_logs(|_, owner| owner == Some(instance));
    }

    /// Ends the campaigns that `which` selects by request and owner, and notifies their providers.
    fn end_logs(&mut self, which: impl Fn(&RequestKey, Option<&InstanceName>) -> bool) {
        let peers = &mut self.peers;
        self.log_campaigns.by_request.retain(|key, Campaign { full_id, owner, providers }| {
            let ends = which(key, owner.as_ref());
            for agent in providers.keys().filter(|_| ends) {
                if let Some(provider) = peers.of_agent(agent) {
                    peers.send(provider, FromServer::LogsCancel { request_id: full_id.clone() });
                }
            }
            !ends
        });
    }

    /// The id that is unique in the cluster: with the name of the stream before it.
    fn full_id(&self, key: &RequestKey) -> String {
        let name = self.peers.get(key.peer).map(|peer| &*peer.name).unwrap_or_default();
        format!("{name}@{}", key.id)
    }

    /// The request with this full id. The id of the requester may contain the separator itself.
    fn log_request(&self, full_id: &str) -> Option<RequestKey> {
        let found = full_id.split_once('@').and_then(|(name, id)| {
            let peer = *self.peers.ids.get(name)?;
            Some(RequestKey { peer, id: id.to_owned() })
        });
        if found.is_none() {
            log::warn!("Dropping logs for the unknown request '{}'.", excerpt(full_id));
        }
        found
    }
}
