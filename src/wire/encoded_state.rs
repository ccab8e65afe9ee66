//! A state as bytes: an event for all who have subscribed to the same, or a response whose peer takes nothing at the moment.
//! As a tree it takes many times as much.
//!
//! Thread: `server` encodes events, `tx` other responses.

use super::budget::{Budget, Share};
use super::convert::from_server::{read_response, response_of_encoded, write_complete_state_response};
use super::schema::grpc_api;
use crate::model::messages::{AlteredFields, Response};
use crate::model::node::Node;
use protobuf::Message;
use std::sync::Arc;

/// The content of a response without the id of its request.
#[derive(Debug)]
pub struct EncodedState {
    bytes: Vec<u8>,
    _room: Share,
}

impl EncodedState {
    /// Encodes `state`, with what changed when it is an event; its bytes count in `budget` as long as it lives.
    pub(super) fn new(state: &Node, altered: Option<AlteredFields>, budget: &Arc<Budget>) -> Self {
        let message = write_complete_state_response(state, altered);
        let bytes = message.write_to_bytes().expect("no field is required, and a vector takes all bytes");
        Self { _room: budget.overdraw(bytes.len()), bytes }
    }

    /// How many bytes it has.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The response to the request `id` on the wire.
    #[must_use]
    pub(super) fn message(&self, id: String) -> grpc_api::FromServer {
        response_of_encoded(id, &self.bytes)
    }

    /// The same as its receiver reads it.
    #[must_use]
    pub(super) fn response(&self, id: String) -> Option<Response> {
        let bytes = self.message(id).write_to_bytes().ok()?;
        let message = grpc_api::FromServer::parse_from_bytes(&bytes).ok()?;
        let Some(grpc_api::from_server::FromServerEnum::Response(response)) = message.FromServerEnum else {
            return None;
        };
        read_response(response).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::messages::{FromServer, ResponseContent};
    use crate::wire::convert::from_server;

    #[test]
    fn an_encoded_answer_is_read_as_the_answer_it_was() {
        let state = Node::map([("agents", Node::map([("A", Node::empty())]))]);
        let altered =
            AlteredFields { added: vec!["agents.A".to_owned()], updated: vec![], removed: vec!["x".to_owned()] };
        for altered in [None, Some(altered)] {
            let budget = Budget::new(0);
            let encoded = EncodedState::new(&state, altered.clone(), &budget);
            let content = ResponseContent::CompleteState { state: state.clone(), altered };
            let response = Response { id: "r".to_owned(), content };
            assert_eq!(encoded.response("r".to_owned()), Some(response.clone()));
            let plain = from_server::write(FromServer::Response(response)).write_to_bytes().unwrap();
            assert_eq!(encoded.message("r".to_owned()).write_to_bytes().unwrap(), plain);
        }
    }
}
