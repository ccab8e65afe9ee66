//! Which log stream belongs to which request.
//!
//! Thread: `server`; a plain value and the part of [`ServerLoop`] that uses it.

use super::requester::Requester;
use super::{PeerClass, RequestKey, ServerLoop};
use crate::limits::{
    LASTING_REQUEST_PART, LASTING_REQUESTS_BYTES, LASTING_REQUESTS_OF_WORKLOAD_BYTES, LOG_CAMPAIGNS_OF_WORKLOAD,
    LOG_CAMPAIGNS_PER_PEER_MAX,
};
use crate::model::log_entries;
use crate::model::memory_size::MemorySize;
use crate::model::messages::{FromServer, LogEntry, LogsRequest, ResponseContent};
use crate::model::names::{InstanceName, Name, excerpt};
use crate::platform::logging::may_log;
use crate::wire::peer::PeerId;
use std::collections::{BTreeMap, BTreeSet};

/// One request for logs that is being served.
#[derive(Debug, Default, PartialEq, Eq)]
struct Campaign {
    /// The id under which agents know it.
    full_id: String,
    /// The instance that asked through its agent: its successor has not.
    owner: Option<InstanceName>,
    /// Who still sends lines of what.
    providers: BTreeMap<Name, BTreeSet<InstanceName>>,
}

/// A campaign that ended before its providers were done: they are to be told.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    full_id: String,
    agents: Vec<Name>,
}

/// A stream, or a workload, has as many requests for logs as it may have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("Too many requests for logs of {whose}, at most {count} with names of {bytes} bytes are allowed")]
struct TooManyCampaigns {
    whose: &'static str,
    count: usize,
    bytes: usize,
}

/// The requests for logs that are being served.
#[derive(Debug, Default)]
pub struct LogCampaigns {
    by_request: BTreeMap<RequestKey, Campaign>,
}

impl LogCampaigns {
    /// `agent` sends lines of `instances` for the request `key` of `owner` from now on.
    fn add(
        &mut self,
        key: &RequestKey,
        owner: Option<&InstanceName>,
        full_id: &str,
        agent: Name,
        instances: &[InstanceName],
    ) {
        let campaign = self.by_request.entry(key.clone()).or_default();
        full_id.clone_into(&mut campaign.full_id);
        campaign.owner = owner.cloned();
        campaign.providers.entry(agent).or_default().extend(instances.iter().cloned());
    }

    /// Of what `agent` was asked to send lines for the request `key`, as long as it has not said that they ended.
    fn asked_of(&self, key: &RequestKey, agent: &str) -> Option<&BTreeSet<InstanceName>> {
        self.by_request.get(key)?.providers.get(agent)
    }

    /// Ends one campaign.
    fn end(&mut self, key: &RequestKey) -> Option<Ended> {
        self.by_request.remove(key).map(Ended::from)
    }

    /// Ends the campaigns that `which` selects by request and owner.
    fn end_all(&mut self, which: impl Fn(&RequestKey, Option<&InstanceName>) -> bool) -> Vec<Ended> {
        let selected = self.by_request.iter().filter(|(key, campaign)| which(key, campaign.owner.as_ref()));
        let keys: Vec<RequestKey> = selected.map(|(key, _)| key.clone()).collect();
        keys.iter().filter_map(|key| self.end(key)).collect()
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

    /// `agent` sends no more lines at all. Answers which requests miss which instances.
    fn provider_gone(&mut self, agent: &str) -> Vec<(RequestKey, InstanceName)> {
        let mut missing = Vec::new();
        self.by_request.retain(|key, campaign| {
            let instances = campaign.providers.remove(agent).unwrap_or_default();
            missing.extend(instances.into_iter().map(|instance| (key.clone(), instance)));
            !campaign.providers.is_empty()
        });
        missing
    }

    /// Whether a stream has room for one more campaign of `bytes` bytes; with a `workload` also whether that has.
    ///
    /// # Errors
    /// Whose share is used up.
    fn check_room(
        &self,
        key: &RequestKey,
        workload: Option<&str>,
        bytes_wanted: usize,
    ) -> Result<(), TooManyCampaigns> {
        let has_room = |workload: Option<&str>, count_max: usize, bytes_max: usize| {
            let start = RequestKey { peer: key.peer, id: String::new() };
            let own = self.by_request.range(start..).take_while(|(other, _)| other.peer == key.peer);
            let own = own.filter(|(other, _)| workload.is_none() || other.workload() == workload);
            let (count, taken) = own.fold((0, 0), |(count, taken), (key, campaign)| {
                (count + 1, taken + bytes(key, campaign.providers.values().flatten()))
            });
            count < count_max && taken + bytes_wanted <= bytes_max
        };
        let (count, bytes) = (LOG_CAMPAIGNS_OF_WORKLOAD, LASTING_REQUESTS_OF_WORKLOAD_BYTES);
        if workload.is_some() && !has_room(workload, count, bytes) {
            return Err(TooManyCampaigns { whose: "this workload", count, bytes });
        }
        let (count, bytes) = (LOG_CAMPAIGNS_PER_PEER_MAX, LASTING_REQUESTS_BYTES);
        if !has_room(None, count, bytes) {
            return Err(TooManyCampaigns { whose: "this connection", count, bytes });
        }
        Ok(())
    }

    /// Whether no campaign runs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_request.is_empty()
    }
}

/// What a campaign takes, about.
fn bytes<'i>(key: &RequestKey, instances: impl Iterator<Item = &'i InstanceName>) -> usize {
    let names = |name: &InstanceName| name.memory_bytes() + LASTING_REQUEST_PART;
    2 * key.id.len() + instances.map(names).sum::<usize>()
}

impl From<Campaign> for Ended {
    fn from(campaign: Campaign) -> Self {
        Self { full_id: campaign.full_id, agents: campaign.providers.into_keys().collect() }
    }
}

impl ServerLoop {
    /// Asks the agents that run them for the logs of workloads; what is not in the effective state is left out.
    ///
    /// The requester learns what it will get. Instances whose agent is away or busy are stopped at once, or a requester
    /// that does not follow would wait for them for ever.
    pub(super) fn logs(&mut self, requester: &Requester, key: RequestKey, request: LogsRequest) {
        let instances: Vec<InstanceName> =
            request.instances.iter().filter(|name| self.is_wanted(name)).cloned().collect();
        if instances.len() > 2 * self.effective.len() {
            let text = "The request for logs names the same workloads again and again; name each once";
            return self.answer(key.peer, key.id, ResponseContent::Error(text.to_owned()));
        }
        let checked = self.log_campaigns.check_room(&key, requester.workload.as_deref(), bytes(&key, instances.iter()));
        if let Err(error) = checked {
            return self.answer(key.peer, key.id, ResponseContent::Error(error.to_string()));
        }
        let mut by_agent: BTreeMap<Name, Vec<InstanceName>> = BTreeMap::new();
        for instance in &instances {
            by_agent.entry(instance.agent.clone()).or_default().push(instance.clone());
        }
        let (owner, full_id) = (self.owner(requester), self.full_id(&key));
        let mut away = Vec::new();
        for (agent, instances) in by_agent {
            let provider = self.agents.get(&agent).map(|agent| agent.peer);
            // One that does not take what it is sent must not be cut off for what others want of it.
            let is_there = |peer: &PeerId| self.peers.get(peer).is_some_and(|peer| peer.outbox.is_half_empty());
            let Some(provider) = provider.filter(is_there) else {
                away.extend(instances);
                continue;
            };
            self.log_campaigns.add(&key, owner.as_ref(), &full_id, agent, &instances);
            let LogsRequest { follow, tail, .. } = request;
            let (since, until) = (request.since.clone(), request.until.clone());
            let request = LogsRequest { instances, follow, tail, since, until };
            self.tell(provider, FromServer::LogsRequest { request_id: full_id.clone(), request });
        }
        self.answer(key.peer, key.id.clone(), ResponseContent::LogsAccepted(instances));
        for instance in away {
            self.answer(key.peer, key.id.clone(), ResponseContent::LogsStop(instance));
        }
    }

    /// Ends the collection of logs under the same id; an unknown one is answered like any other.
    pub(super) fn logs_cancel(&mut self, key: &RequestKey) {
        let ended = self.log_campaigns.end(key);
        self.cancel_logs(ended);
        self.answer(key.peer, key.id.clone(), ResponseContent::LogsCancelAccepted);
    }

    /// Passes on the lines that `agent` was asked for. Others are late ones of what has ended, or made up.
    pub(super) fn log_entries(&mut self, agent: &str, request_id: &str, mut entries: Vec<LogEntry>) {
        let Some(key) = self.requester(request_id) else { return };
        let (all, asked) = (entries.len(), self.log_campaigns.asked_of(&key, agent));
        entries.retain(|entry| asked.is_some_and(|asked| asked.contains(&entry.instance)));
        if entries.len() < all {
            let (dropped, id) = (all - entries.len(), excerpt(request_id));
            log::debug!("Dropping {dropped} log lines that '{agent}' is not to send for the request '{id}'.");
        }
        for entries in log_entries::split(entries) {
            self.answer(key.peer, key.id.clone(), ResponseContent::LogEntries(entries));
        }
    }

    /// Passes on the end of one instance's lines, if `agent` was asked for them.
    pub(super) fn logs_stopped(&mut self, agent: &str, request_id: &str, instance: InstanceName) {
        let Some(key) = self.requester(request_id) else { return };
        if !self.log_campaigns.asked_of(&key, agent).is_some_and(|asked| asked.contains(&instance)) {
            let id = excerpt(request_id);
            return log::debug!("Dropping an end of logs that '{agent}' is not to send for the request '{id}'.");
        }
        self.log_campaigns.stopped(&key, &instance);
        self.answer(key.peer, key.id, ResponseContent::LogsStop(instance));
    }

    /// A stream ended: nobody reads what it asked for, and an agent sends no more lines.
    pub(super) fn end_logs_of_peer(&mut self, peer: PeerId, class: PeerClass, name: &str) {
        let ended = self.log_campaigns.end_all(|key, _| key.peer == peer);
        self.cancel_logs(ended);
        if class == PeerClass::Agent {
            for (key, instance) in self.log_campaigns.provider_gone(name) {
                self.answer(key.peer, key.id, ResponseContent::LogsStop(instance));
            }
        }
    }

    /// A workload is deleted or becomes another instance: nobody reads what it asked for.
    pub(super) fn end_logs_of_workload(&mut self, instance: &InstanceName) {
        let Some(peer) = self.agents.get(&instance.agent).map(|agent| agent.peer) else { return };
        let own = |key: &RequestKey| key.peer == peer && key.workload() == Some(&instance.workload);
        let ended = self.log_campaigns.end_all(|key, _| own(key));
        self.cancel_logs(ended);
    }

    /// An instance is gone: nobody reads what it asked for.
    pub(super) fn end_logs_of_instance(&mut self, instance: &InstanceName) {
        let ended = self.log_campaigns.end_all(|_, owner| owner == Some(instance));
        self.cancel_logs(ended);
    }

    fn cancel_logs(&mut self, ended: impl IntoIterator<Item = Ended>) {
        for Ended { full_id, agents } in ended {
            for agent in agents {
                if let Some(provider) = self.agents.get(&agent).map(|agent| agent.peer) {
                    self.tell(provider, FromServer::LogsCancel { request_id: full_id.clone() });
                }
            }
        }
    }

    /// The id that is unique in the cluster: with the name of the stream before it (section 11).
    fn full_id(&self, key: &RequestKey) -> String {
        let name = self.peers.get(&key.peer).map(|peer| &*peer.name).unwrap_or_default();
        format!("{name}@{}", key.id)
    }

    /// Whose request has this full id. The id of the requester may contain the separator itself.
    fn requester(&self, full_id: &str) -> Option<RequestKey> {
        let found = full_id.split_once('@').and_then(|(name, id)| {
            let peer = *self.names.get(name)?;
            Some(RequestKey { peer, id: id.to_owned() })
        });
        if found.is_none() && may_log("unknown log requests") {
            log::warn!("Dropping logs for the unknown request '{}'.", excerpt(full_id));
        }
        found
    }
}
