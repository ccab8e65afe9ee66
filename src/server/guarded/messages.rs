//! The lists that agents are sent, and what they report about them.
//!
//! Thread: `server`; part of [`ServerLoop`].

use super::GuardedUpdates;
use crate::model::messages::{AddedWorkload, FromServer, PreparedInstance};
use crate::model::names::Name;
use crate::server::ServerLoop;
use crate::wire::peer::PeerId;
use std::collections::BTreeSet;

impl GuardedUpdates {
    /// Warns once of an agent that cannot prepare what a block wants to be staged.
    pub(super) fn warn_of_agent(&mut self, agent: &Name) {
        if self.warned.insert(agent.clone()) {
            log::warn!(
                "Agent '{agent}' cannot prepare instances: updates of its workloads are carried out at once, and \
                 'update.when' means nothing there."
            );
        }
    }

    /// All instances that an agent shall prepare.
    fn list_of(&self, agent: &str) -> Vec<AddedWorkload> {
        let staging = self.open.values().filter(|open| open.is_staging());
        staging.flat_map(|open| open.staging.list(agent)).cloned().collect()
    }
}

impl ServerLoop {
    /// Sends each agent what it shall prepare, where that has changed since it was sent last on its connection.
    pub(super) fn send_lists(&mut self) {
        let guarded = &self.guarded;
        let staging = guarded.open.values().filter(|open| open.is_staging());
        let agents: BTreeSet<Name> =
            staging.flat_map(|open| open.staging.agents()).chain(guarded.lists.keys()).cloned().collect();
        for agent in agents {
            let Some(connected) = self.peers.agents.get(&agent).filter(|agent| agent.capabilities.prepares) else {
                continue;
            };
            let (peer, list) = (connected.peer, self.guarded.list_of(&agent));
            if self.guarded.lists.get(&agent).map_or(&[][..], Vec::as_slice) != list {
                self.send_list(&agent, peer, list);
            }
        }
    }

    fn send_list(&mut self, agent: &Name, peer: PeerId, list: Vec<AddedWorkload>) {
        self.peers.send(peer, FromServer::Prepare(list.clone()));
        if list.is_empty() {
            self.guarded.lists.remove(agent);
        } else {
            self.guarded.lists.insert(agent.clone(), list);
        }
    }

    /// An agent has connected and is about to be sent its workloads: its session begins with what it shall prepare, which
    /// may be nothing.
    pub(in crate::server) fn send_first_list(&mut self, agent: &Name, peer: PeerId, prepares: bool) {
        self.guarded.lists.remove(agent);
        if self.guarded.is_quiet() || !prepares {
            return;
        }
        let list = self.guarded.list_of(agent);
        if !list.is_empty() {
            self.send_list(agent, peer, list);
        }
    }

    /// The agent reports how far it is.
    pub(in crate::server) fn prepared_reported(&mut self, peer: PeerId, agent: &Name, reports: &[PreparedInstance]) {
        if self.peers.agent_on(peer, agent).is_none() {
            return; // Late messages of a replaced stream mean nothing.
        }
        for report in reports.iter().filter(|report| report.instance.agent == *agent) {
            for open in self.guarded.open.values_mut().filter(|open| open.is_staging()) {
                self.guarded.has_progress |= open.staging.report(report);
            }
        }
    }
}
