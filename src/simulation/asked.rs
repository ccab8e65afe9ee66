//! Requests of workloads on one connection of their agent: each has one answer, events come after it when they were
//! asked for and until that is ended, and lead to what a fresh read says.
//!
//! Thread: the one of the test.

use super::subscriber::Followed;
use crate::model::messages::{Request, RequestContent, Response, ResponseContent};
use crate::model::node::Node;
use std::collections::BTreeMap;

/// What workloads asked on one connection.
#[derive(Default)]
pub struct Asked {
    /// Not answered yet, and the masks of which events are asked for.
    waiting: BTreeMap<String, Option<Vec<String>>>,
    following: BTreeMap<String, Followed>,
}

impl Asked {
    /// A request is on its way to the server.
    pub fn note(&mut self, Request { id, content }: Request) {
        let follows = match content {
            RequestContent::CompleteState(read) if read.subscribe => Some(read.masks),
            _ => None,
        };
        self.waiting.insert(id, follows);
    }

    /// Answers what is wrong with a response of the server.
    pub fn check(&mut self, Response { id, content }: &Response) -> Option<String> {
        if let (ResponseContent::CompleteState { altered: Some(_), .. }, Some(followed)) =
            (content, self.following.get_mut(id))
        {
            return followed.take(content.clone());
        }
        match content {
            ResponseContent::CompleteState { altered: Some(_), .. } => {}
            // The agent itself ends what nobody of its workloads follows any more, with each event that still comes.
            ResponseContent::EventsCancelAccepted => {
                self.following.remove(id);
                return None;
            }
            content => {
                if let Some(follows) = self.waiting.remove(id) {
                    if let Some(masks) = follows {
                        let mut followed = Followed::new(masks);
                        let wrong = followed.take(content.clone());
                        self.following.insert(id.clone(), followed);
                        return wrong;
                    }
                    return match content {
                        ResponseContent::Error(text) if !text.contains("cycle") => {
                            Some(format!("a valid request was refused: {text}"))
                        }
                        _ => None,
                    };
                }
            }
        }
        Some(format!("an answer to '{id}', which nobody waits for: {content:?}"))
    }

    /// How many follow something.
    pub fn following(&self) -> usize {
        self.following.len()
    }

    /// Answers what one of those that `are_told` differs in from a fresh read, when nothing is on its way.
    pub fn differs(&self, is_told: impl Fn(&str) -> bool, fresh: impl Fn(&[String]) -> Node) -> Option<String> {
        let followed = self.following.iter().filter(|(id, _)| is_told(id));
        followed.map(|(_, followed)| followed).find_map(|followed| followed.differs(&fresh(followed.masks())))
    }
}
