//! What must hold of a whole cluster at any time, or once nothing disturbs it any more.
//!
//! Thread: the one of the test.

use super::{Cluster, SimNode};
use ankaios_model::messages::Request;
use ankaios_wire::peer::PeerId;

impl SimNode {
    /// What its agent keeps although nothing explains it: each waiting operation and reason to wait
    /// belongs to a workload that it has.
    fn leaks(&self) -> Option<String> {
        let manager = &self.life.as_ref()?.manager;
        let [records, waiting, conditions] = manager.sizes();
        let most = self.expectations.workloads();
        let leaks = waiting > most || conditions > records;
        leaks.then(|| {
            let name = &self.name;
            format!("agent {name} has {records} records, {waiting} of what waits, {conditions} conditions")
        })
    }
}

impl Cluster {
    /// Returns a size that is too large: nothing must be left of instances that are gone.
    pub(crate) fn leaks(&self) -> Option<String> {
        let [peers, stopping, waiting, states, rights] = self.server.as_ref()?.sizes();
        let streams = self
            .nodes
            .iter()
            .filter(|node| node.stream.is_some())
            .count()
            + self.subscribers.len();
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
        let wrong = self.server.as_ref()?.wrong_unwanted();
        if !wrong.is_empty() {
            return Some(format!(
                "the server counts other states as unwanted than there are: {wrong:?}"
            ));
        }
        if !self.server.as_ref()?.timings_agree() {
            return Some("the server keeps start times of instances that are gone".to_owned());
        }
        self.forgotten_subscriptions()
            .or_else(|| self.nodes.iter().find_map(SimNode::leaks))
    }

    /// Each subscriber has one subscription; streams of agents have those that workloads asked for
    /// and did not end.
    fn forgotten_subscriptions(&self) -> Option<String> {
        let mut subscribed = self.server.as_ref()?.subscribed();
        for node in &self.nodes {
            let count = node
                .stream
                .and_then(|stream| subscribed.remove(&PeerId(stream.0)))
                .unwrap_or(0);
            let following = node.requests.following();
            if count > following {
                return Some(format!(
                    "{} has {count} subscriptions, its workloads follow {following}",
                    node.name
                ));
            }
        }
        let (others, there_are) = (subscribed.values().sum::<usize>(), self.subscribers.len());
        (others != there_are).then(|| format!("{there_are} commanders have {others} subscriptions"))
    }

    /// Returns a workload that follows parts without the right to read them any more.
    pub(super) fn forbidden_subscription(&self) -> Option<String> {
        let server = self.server.as_ref()?;
        self.nodes.iter().find_map(|node| {
            let peer = PeerId(node.stream?.0);
            let forbidden = |request: &Request| {
                self.expectations.may_request(server, &node.name, request) == Some(false)
            };
            let told = node
                .requests
                .first_of(|request| server.is_subscribed(peer, &request.id) && forbidden(request));
            told.map(|id| format!("'{id}' of {} has no right to what it follows", node.name))
        })
    }

    /// Returns the stored state if it is not the desired one while no write is under way.
    pub(crate) fn lost_state(&self) -> Option<String> {
        self.disk.as_ref()?.lost_state(self.server.as_ref()?)
    }

    /// Returns a workload with a subscription whose copy differs from a fresh read.
    pub(crate) fn misled_workload(&self) -> Option<String> {
        let server = self.server.as_ref()?;
        let fresh = |masks: &[String]| server.view().read(masks);
        self.nodes.iter().find_map(|node| {
            let peer = PeerId(node.stream?.0);
            node.requests
                .differs(|id| server.is_subscribed(peer, id), fresh)
        })
    }

    /// Returns a part that is not there, or still busy.
    pub(crate) fn busy(&self) -> Option<String> {
        let busy = |node: &SimNode| {
            let name = &node.name;
            match (&node.life, node.stream, node.engine.calls()) {
                (None, ..) => Some(format!("agent {name} is away")),
                (_, None, _) => Some(format!("agent {name} is not connected")),
                (_, _, 0) => None,
                (_, _, calls) => Some(format!("{calls} engine calls run on node {name}")),
            }
        };
        let node = self.nodes.iter().find_map(busy);
        let network =
            || (!self.network.is_settled()).then(|| "messages are on their way".to_owned());
        let server = self
            .server
            .is_none()
            .then(|| "the server is away".to_owned());
        server.or(node).or_else(network)
    }

    /// Returns a guarded update that is open without a reason.
    pub(crate) fn unfinished_update(&self) -> Option<String> {
        self.guarded.as_ref()?.unfinished(self.server.as_ref()?)
    }
}
