//! Checks of a whole cluster: at any time, or once the disturbances have ended.
//!
//! Thread: the one of the test.

use super::{Cluster, SimNode};
use ankaios_model::messages::Request;
use ankaios_wire::peer::PeerId;

impl SimNode {
    /// Returns what its agent keeps without need: each waiting operation and each reason to wait
    /// belongs to a workload that it has.
    fn leaks(&self) -> Option<String> {
        let manager = &self.life.as_ref()?.manager;
        let [records, waiting, conditions] = manager.sizes();
        let most = self.expectations.workloads();
        if waiting <= most && conditions <= records {
            return None;
        }
        let name = &self.name;
        Some(format!(
            "agent {name} has {records} records, {waiting} of what waits, {conditions} conditions"
        ))
    }

    /// Returns why it is not idle.
    fn busy(&self) -> Option<String> {
        let name = &self.name;
        if self.life.is_none() {
            return Some(format!("agent {name} is away"));
        }
        if self.stream.is_none() {
            return Some(format!("agent {name} is not connected"));
        }
        match self.engine.calls() {
            0 => None,
            calls => Some(format!("{calls} engine calls run on node {name}")),
        }
    }
}

impl Cluster {
    /// Returns a size that is too large: nothing must be left of instances that are gone.
    pub(crate) fn leaks(&self) -> Option<String> {
        let server = self.server.as_ref()?;
        let [peers, stopping, waiting, states, rights] = server.sizes();
        let mut streams = self.subscribers.len();
        for node in &self.nodes {
            if node.stream.is_some() {
                streams += 1;
            }
        }
        if peers != streams {
            return Some(format!(
                "the server knows {peers} streams, there are {streams}"
            ));
        }
        if stopping > states || waiting > states || rights > states {
            return Some(format!(
                "the server remembers {stopping} stops, {waiting} deletes and {rights} rights of {states} states"
            ));
        }
        let wrong = server.wrong_unwanted();
        if !wrong.is_empty() {
            return Some(format!(
                "the server counts other states as unwanted than there are: {wrong:?}"
            ));
        }
        if !server.timings_agree() {
            return Some("the server keeps start times of instances that are gone".to_owned());
        }
        self.forgotten_subscriptions()
            .or_else(|| self.nodes.iter().find_map(SimNode::leaks))
    }

    /// Returns a stream with more subscriptions than its clients have. Each subscriber has one;
    /// streams of agents have those that workloads requested and did not end.
    fn forgotten_subscriptions(&self) -> Option<String> {
        let mut subscribed = self.server.as_ref()?.subscribed();
        for node in &self.nodes {
            let mut count = 0;
            if let Some(stream) = node.stream {
                count = subscribed.remove(&PeerId(stream.0)).unwrap_or(0);
            }
            let following = node.requests.following();
            if count > following {
                return Some(format!(
                    "{} has {count} subscriptions, its workloads follow {following}",
                    node.name
                ));
            }
        }
        let count: usize = subscribed.values().sum();
        let subscribers = self.subscribers.len();
        if count == subscribers {
            return None;
        }
        Some(format!(
            "{subscribers} commanders have {count} subscriptions"
        ))
    }

    /// Returns a workload that subscribes to parts without the right to read them any more.
    pub(super) fn forbidden_subscription(&self) -> Option<String> {
        self.nodes
            .iter()
            .find_map(|node| self.forbidden_subscription_of(node))
    }

    fn forbidden_subscription_of(&self, node: &SimNode) -> Option<String> {
        let server = self.server.as_ref()?;
        let peer = PeerId(node.stream?.0);
        let forbidden = node.requests.first_of(|request: &Request| {
            server.is_subscribed(peer, &request.id)
                && self.expectations.may_request(server, &node.name, request) == Some(false)
        });
        let id = forbidden?;
        Some(format!(
            "'{id}' of {} has no right to what it follows",
            node.name
        ))
    }

    /// Returns the stored state if it is not the desired one while no write is under way.
    pub(crate) fn lost_state(&self) -> Option<String> {
        self.disk.as_ref()?.lost_state(self.server.as_ref()?)
    }

    /// Returns a workload with a subscription whose copy differs from a fresh read.
    pub(crate) fn misled_workload(&self) -> Option<String> {
        self.nodes
            .iter()
            .find_map(|node| self.misled_workload_of(node))
    }

    fn misled_workload_of(&self, node: &SimNode) -> Option<String> {
        let server = self.server.as_ref()?;
        let peer = PeerId(node.stream?.0);
        node.requests.differs(
            |id| server.is_subscribed(peer, id),
            |masks: &[String]| server.view().read(masks),
        )
    }

    /// Returns a part that is not there, or still busy.
    pub(crate) fn busy(&self) -> Option<String> {
        if self.server.is_none() {
            return Some("the server is away".to_owned());
        }
        let node = self.nodes.iter().find_map(SimNode::busy);
        if node.is_none() && !self.network.is_settled() {
            return Some("messages are on their way".to_owned());
        }
        node
    }

    /// Returns a guarded update that is open without a reason.
    pub(crate) fn unfinished_update(&self) -> Option<String> {
        self.guarded.as_ref()?.unfinished(self.server.as_ref()?)
    }
}
