//! Requests of workloads on one connection of their agent: each gets one response, events follow it
//! if they were requested and until that is cancelled, and lead to the result of a fresh read.
//! Requests without the right are denied.
//!
//! Thread: the one of the test.

use super::scenario::{MANY_OPEN, SAME_AS};
use super::subscriber::Followed;
use ankaios_model::messages::{ReadState, Request, RequestContent, Response, ResponseContent};
use ankaios_model::node::Node;
use ankaios_model::refusal::ErrorResponse;
use std::collections::BTreeMap;

/// The first words of denials.
const DENIED: &str = "Access denied";

/// The requests of workloads on one connection.
#[derive(Default)]
pub(crate) struct WorkloadRequests {
    waiting: BTreeMap<String, Waiting>,
    following: BTreeMap<String, Followed>,
}

/// A request without a response.
struct Waiting {
    /// The masks of a requested subscription.
    follows: Option<Vec<String>>,
    /// Whether it was allowed when the server read it.
    allowed: Option<bool>,
}

impl WorkloadRequests {
    /// Takes a request that is sent to the server.
    pub(crate) fn note(&mut self, Request { id, content }: Request) {
        let follows = match content {
            RequestContent::CompleteState(read) if read.subscribe => Some(read.masks),
            _ => None,
        };
        self.waiting.insert(
            id,
            Waiting {
                follows,
                allowed: None,
            },
        );
    }

    /// Takes a request that the server reads now, which is `allowed` or not.
    pub(crate) fn decided(&mut self, id: &str, allowed: bool) {
        if let Some(waiting) = self.waiting.get_mut(id) {
            waiting.allowed = Some(allowed);
        }
    }

    /// Returns the violation in a response of the server.
    pub(crate) fn check(&mut self, Response { id, content }: &Response) -> Option<String> {
        let is_denied = match content {
            ResponseContent::Error(ErrorResponse { text, .. }) => text.starts_with(DENIED),
            _ => false,
        };
        match content {
            // An event.
            ResponseContent::CompleteState {
                altered: Some(_), ..
            } => {
                if let Some(followed) = self.following.get_mut(id) {
                    return followed.take(content.clone());
                }
                return Some(not_requested(id, content));
            }
            // The agent itself cancels a subscription of a workload that has ended, with each event
            // that still arrives.
            ResponseContent::EventsCancelAccepted => {
                self.following.remove(id);
                return None;
            }
            _ => {}
        }
        // Rules have changed, and the error ends the subscription of the workload.
        if is_denied && self.following.remove(id).is_some() {
            return None;
        }
        let Some(Waiting { follows, allowed }) = self.waiting.remove(id) else {
            return Some(not_requested(id, content));
        };
        if let Some(is_allowed) = allowed
            && is_allowed == is_denied
        {
            return Some(format!(
                "'{id}' is allowed: {is_allowed}, and answered with {content:?}"
            ));
        }
        if is_denied {
            return None;
        }
        if let Some(masks) = follows {
            let mut followed = Followed::new(masks);
            let wrong = followed.take(content.clone());
            self.following.insert(id.clone(), followed);
            return wrong;
        }
        let ResponseContent::Error(ErrorResponse { text, .. }) = content else {
            return None;
        };
        // Another update may have made it invalid meanwhile.
        let mut reasons = ["cycle", "has the tag 'modes'", SAME_AS, MANY_OPEN].iter();
        if reasons.any(|reason| text.contains(reason)) {
            return None;
        }
        Some(format!("a valid request was refused: {text}"))
    }

    /// The id of the first subscription whose request matches.
    pub(crate) fn first_of(&self, matches: impl Fn(&Request) -> bool) -> Option<&str> {
        for (id, followed) in &self.following {
            let read = ReadState {
                masks: followed.masks().to_vec(),
                subscribe: true,
            };
            let request = Request {
                id: id.clone(),
                content: RequestContent::CompleteState(read),
            };
            if matches(&request) {
                return Some(id);
            }
        }
        None
    }

    /// Number of subscriptions.
    pub(crate) fn following(&self) -> usize {
        self.following.len()
    }

    /// Returns a difference between a subscription that the server still has and a fresh read,
    /// while no message is on its way.
    pub(crate) fn differs(
        &self,
        is_open: impl Fn(&str) -> bool,
        fresh: impl Fn(&[String]) -> Node,
    ) -> Option<String> {
        for (id, followed) in &self.following {
            if !is_open(id) {
                continue;
            }
            let difference = followed.differs(&fresh(followed.masks()));
            if difference.is_some() {
                return difference;
            }
        }
        None
    }
}

fn not_requested(id: &str, content: &ResponseContent) -> String {
    format!("a response to '{id}', which is no open request: {content:?}")
}
