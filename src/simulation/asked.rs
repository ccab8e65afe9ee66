//! Requests of workloads on one connection of their agent: each has one answer, events come after
//! it when they were asked for and until that is ended, and lead to what a fresh read says. What
//! may not be asked is denied.
//!
//! Thread: the one of the test.

use super::scenario::{MANY_OPEN, SAME_AS};
use super::subscriber::Followed;
use ankaios_model::messages::{ReadState, Request, RequestContent, Response, ResponseContent};
use ankaios_model::node::Node;
use ankaios_model::refusal::ErrorResponse;
use std::collections::BTreeMap;

/// How denials begin.
const DENIED: &str = "Access denied";

/// What workloads asked on one connection.
#[derive(Default)]
pub(crate) struct Asked {
    waiting: BTreeMap<String, Waiting>,
    following: BTreeMap<String, Followed>,
}

/// A request that is not answered yet.
struct Waiting {
    /// The masks of which events are asked for.
    follows: Option<Vec<String>>,
    /// Whether it was allowed when the server read it.
    allowed: Option<bool>,
}

impl Asked {
    /// A request is on its way to the server.
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

    /// The server reads a request now, which is `allowed` or not.
    pub(crate) fn judged(&mut self, id: &str, allowed: bool) {
        if let Some(waiting) = self.waiting.get_mut(id) {
            waiting.allowed = Some(allowed);
        }
    }

    /// Answers what is wrong with a response of the server.
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
            // The agent itself ends what nobody of its workloads follows any more, with each event
            // that still comes.
            ResponseContent::EventsCancelAccepted => {
                self.following.remove(id);
                return None;
            }
            // Rules have changed, and the workload is told that it follows nothing any more.
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
            "an answer to '{id}', which nobody waits for: {content:?}"
        ))
    }

    /// The id of one of those that follow something and are as asked.
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

    /// How many follow something.
    pub(crate) fn following(&self) -> usize {
        self.following.len()
    }

    /// Answers what one of those that `are_told` differs in from a fresh read, when nothing is on
    /// its way.
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
