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
        if let (
            ResponseContent::CompleteState {
                altered: Some(_), ..
            },
            Some(followed),
        ) = (content, self.following.get_mut(id))
        {
            return followed.take(content.clone());
        }
        match content {
            ResponseContent::CompleteState {
                altered: Some(_), ..
            } => {}
            // The agent itself cancels a subscription of a workload that has ended, with each event
            // that still arrives.
            ResponseContent::EventsCancelAccepted => {
                self.following.remove(id);
                return None;
            }
            // Rules have changed, and the error ends the subscription of the workload.
            ResponseContent::Error(ErrorResponse { text, .. })
                if text.starts_with(DENIED) && self.following.remove(id).is_some() =>
            {
                return None;
            }
            content => {
                if let Some(Waiting { follows, allowed }) = self.waiting.remove(id) {
                    let denied = matches!(content, ResponseContent::Error(ErrorResponse { text, .. }) if text.starts_with(DENIED));
                    if allowed == Some(denied) {
                        return Some(format!(
                            "'{id}' is allowed: {denied}, and answered with {content:?}"
                        ));
                    }
                    if denied {
                        return None;
                    }
                    if let Some(masks) = follows {
                        let mut followed = Followed::new(masks);
                        let wrong = followed.take(content.clone());
                        self.following.insert(id.clone(), followed);
                        return wrong;
                    }
                    return match content {
                        // Another update came before it.
                        ResponseContent::Error(ErrorResponse { text, .. })
                            if ["cycle", "has the tag 'modes'", SAME_AS, MANY_OPEN]
                                .iter()
                                .any(|by_now| text.contains(by_now)) =>
                        {
                            None
                        }
                        ResponseContent::Error(ErrorResponse { text, .. }) => {
                            Some(format!("a valid request was refused: {text}"))
                        }
                        _ => None,
                    };
                }
            }
        }
        Some(format!(
            "a response to '{id}', which is no open request: {content:?}"
        ))
    }

    /// The id of a subscription that matches.
    pub(crate) fn first_of(&self, which: impl Fn(&Request) -> bool) -> Option<&str> {
        let request = |id: &str, followed: &Followed| {
            let read = ReadState {
                masks: followed.masks().to_vec(),
                subscribe: true,
            };
            Request {
                id: id.to_owned(),
                content: RequestContent::CompleteState(read),
            }
        };
        self.following
            .iter()
            .find(|(id, followed)| which(&request(id, followed)))
            .map(|(id, _)| id.as_str())
    }

    /// Number of subscriptions.
    pub(crate) fn following(&self) -> usize {
        self.following.len()
    }

    /// Returns a difference between one of these subscriptions and a fresh read, when no message is
    /// on its way.
    pub(crate) fn differs(
        &self,
        is_told: impl Fn(&str) -> bool,
        fresh: impl Fn(&[String]) -> Node,
    ) -> Option<String> {
        let followed = self.following.iter().filter(|(id, _)| is_told(id));
        followed
            .map(|(_, followed)| followed)
            .find_map(|followed| followed.differs(&fresh(followed.masks())))
    }
}
