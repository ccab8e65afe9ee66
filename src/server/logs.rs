//! Log collections: which lines are requested of which agents, and passed on to whom.
//!
//! Thread: `server`; part of [`ServerLoop`].

use super::ServerLoop;
use super::lasting::{Content, Kind, Lasting, Providers};
use super::requester::{RequestKey, Requester};
use ankaios_model::log_entries;
use ankaios_model::messages::{FromServer, LogEntry, LogsRequest, ResponseContent};
use ankaios_model::names::{InstanceName, Name, excerpt};
use ankaios_wire::peer::PeerId;
use std::collections::BTreeMap;

impl ServerLoop {
    /// Requests the logs of workloads from the agents that run them; what is not in the effective
    /// state is left out.
    ///
    /// The response names what will be sent. Instances whose agent is away or busy are stopped at
    /// once, or a requester that does not follow would wait for them for ever.
    pub(super) fn logs(&mut self, requester: &Requester, key: &RequestKey, request: LogsRequest) {
        let LogsRequest {
            mut instances,
            follow,
            tail,
            since,
            until,
        } = request;
        instances.retain(|name| self.updates.workloads().is_wanted(name));
        if instances.len() > 2 * self.updates.workloads().effective.len() {
            return self.peers.refuse(
                key,
                "The request for logs names the same workloads again and again; name each once",
            );
        }
        // An agent that does not take what it is sent must not be disconnected because of the
        // requests of others.
        let is_there = |agent: &Name| {
            let stream = self
                .peers
                .of_agent(agent)
                .and_then(|peer| self.peers.get(peer));
            stream.is_some_and(|peer| peer.outbox.is_half_empty())
        };
        let mut by_agent: BTreeMap<Name, Vec<InstanceName>> = BTreeMap::new();
        for instance in &instances {
            by_agent
                .entry(instance.agent.clone())
                .or_default()
                .push(instance.clone());
        }
        let (by_agent, away): (BTreeMap<_, _>, BTreeMap<_, _>) =
            by_agent.into_iter().partition(|(agent, _)| is_there(agent));
        let mut providers: Providers = by_agent
            .iter()
            .map(|(agent, own)| (agent.clone(), own.iter().cloned().collect()))
            .collect();
        let is_served = !providers.is_empty();
        // What was requested under the same id before goes on.
        for (agent, instances) in self.providers(key).cloned().unwrap_or_default() {
            providers.entry(agent).or_default().extend(instances);
        }
        let content = Content::Logs(providers);
        let lasting = Lasting {
            requester: requester.clone(),
            owner: self.rights.owner(requester),
            content,
        };
        if is_served && let Err(error) = self.lasting.add(Kind::Logs, key, lasting) {
            return self.peers.refuse(key, error);
        }
        for (agent, instances) in by_agent {
            let request = LogsRequest {
                instances,
                follow,
                tail,
                since: since.clone(),
                until: until.clone(),
            };
            self.peers.send_to_agent(
                &agent,
                FromServer::LogsRequest {
                    request_id: key.full_id(),
                    request,
                },
            );
        }
        self.peers
            .respond(key, ResponseContent::LogsAccepted(instances));
        for (agent, instances) in away {
            let why = match self.peers.of_agent(&agent) {
                _ if agent.is_empty() => "it has no agent".to_owned(),
                None => format!("agent '{agent}' is not connected"),
                Some(_) => {
                    format!("agent '{agent}' has too many messages waiting for it, try again later")
                }
            };
            self.stop_logs(key, instances, &why);
        }
    }

    /// Ends the logs of these instances, of which no further lines can come for the reason `why`.
    fn stop_logs(
        &mut self,
        key: &RequestKey,
        instances: impl IntoIterator<Item = InstanceName>,
        why: &str,
    ) {
        let instances: Vec<InstanceName> = instances.into_iter().collect();
        let reasons = instances
            .iter()
            .map(|instance| log_entries::no_log(instance.clone(), why))
            .collect();
        for entries in log_entries::split(reasons) {
            self.peers
                .respond(key, ResponseContent::LogEntries(entries));
        }
        for instance in instances {
            self.peers.respond(key, ResponseContent::LogsStop(instance));
        }
    }

    fn providers(&mut self, key: &RequestKey) -> Option<&mut Providers> {
        match &mut self.lasting.get_mut(Kind::Logs, key)?.content {
            Content::Logs(providers) => Some(providers),
            _ => None,
        }
    }

    /// Ends the collection of logs under the same id; an unknown one has the same response.
    pub(super) fn logs_cancel(&mut self, key: &RequestKey) {
        self.end_lasting(|kind, other, _| kind == Kind::Logs && other == key);
        self.peers.respond(key, ResponseContent::LogsCancelAccepted);
    }

    /// Passes on the lines that were requested from `agent`. Others are late, or made up.
    pub(super) fn log_entries(
        &mut self,
        agent: &str,
        request_id: &str,
        mut entries: Vec<LogEntry>,
    ) {
        let Some(key) = self.log_request(request_id) else {
            return;
        };
        let (all, provided) = (
            entries.len(),
            self.providers(&key)
                .and_then(|providers| providers.get(agent)),
        );
        entries.retain(|entry| provided.is_some_and(|provided| provided.contains(&entry.instance)));
        if entries.len() < all {
            let (dropped, id) = (all - entries.len(), excerpt(request_id));
            log::debug!(
                "Dropping {dropped} log lines that '{agent}' is not to send for the request '{id}'."
            );
        }
        for entries in log_entries::split(entries) {
            self.peers
                .respond(&key, ResponseContent::LogEntries(entries));
        }
    }

    /// Passes on the end of one instance's lines, if they were requested from `agent`. Without any
    /// more the request is over.
    pub(super) fn logs_stopped(&mut self, agent: &str, request_id: &str, instance: InstanceName) {
        let Some(key) = self.log_request(request_id) else {
            return;
        };
        let is_provided = self.providers(&key).is_some_and(|providers| {
            let is_provided = providers
                .get_mut(agent)
                .is_some_and(|instances| instances.remove(&instance));
            providers.retain(|_, instances| !instances.is_empty());
            is_provided
        });
        if !is_provided {
            let id = excerpt(request_id);
            return log::debug!(
                "Dropping an end of logs that '{agent}' is not to send for the request '{id}'."
            );
        }
        if self
            .providers(&key)
            .is_some_and(|providers| providers.is_empty())
        {
            self.lasting.remove(Kind::Logs, &key);
        }
        self.peers
            .respond(&key, ResponseContent::LogsStop(instance));
    }

    /// A stream ended: nobody reads what was requested on it, and an agent sends no more lines.
    pub(super) fn end_logs_of_peer(&mut self, peer: PeerId, name: &str) {
        self.end_lasting(|_, key, _| key.peer == peer);
        let waits = |one: &Lasting| matches!(&one.content, Content::Logs(providers) if providers.contains_key(name));
        let waiting = self.lasting.of(Kind::Logs).filter(|(_, one)| waits(one));
        let keys: Vec<RequestKey> = waiting.map(|(key, _)| key.clone()).collect();
        for key in keys {
            let Some(providers) = self.providers(&key) else {
                continue;
            };
            let missing = providers.remove(name).unwrap_or_default();
            if providers.is_empty() {
                self.lasting.remove(Kind::Logs, &key);
            }
            self.stop_logs(
                &key,
                missing,
                &format!("agent '{name}' is not connected any more"),
            );
        }
    }

    /// A workload is deleted or becomes another instance: nobody reads what it requested.
    pub(super) fn end_logs_of_workload(&mut self, instance: &InstanceName) {
        let Some(peer) = self.peers.of_agent(&instance.agent) else {
            return;
        };
        self.end_lasting(|kind, key, _| {
            kind == Kind::Logs && key.peer == peer && key.workload() == Some(&instance.workload)
        });
    }

    /// The request with this full id. The id of the requester may contain the separator itself.
    fn log_request(&self, full_id: &str) -> Option<RequestKey> {
        let found = full_id.split_once('@').and_then(|(peer, id)| {
            let key = RequestKey {
                peer: PeerId(peer.parse().ok()?),
                id: id.to_owned(),
            };
            self.peers.get(key.peer).map(|_| key)
        });
        if found.is_none() {
            log::warn!(
                "Dropping logs for the unknown request '{}'.",
                excerpt(full_id)
            );
        }
        found
    }
}
