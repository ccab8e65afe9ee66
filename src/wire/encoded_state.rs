//! A state as bytes: what all are told who have asked for the same events, and an answer that waits although it is its
//! turn. As a tree it takes many times as much.
//!
//! Thread: `server` encodes events, `tx` other answers.

use super::answer_budget::{AnswerBudget, AnswerRoom};
use super::convert::to_client::{complete_state_response, encoded_response};
use super::schema::grpc_api;
use crate::model::messages::{AlteredFields, Response};
use crate::model::node::Node;
use protobuf::Message;
use std::sync::Arc;

/// The content of an answer without the id of its request.
#[derive(Debug)]
pub struct EncodedState {
    bytes: Vec<u8>,
    _room: AnswerRoom,
}

impl EncodedState {
    /// Encodes `state`, with what changed when it is an event; its bytes count in `budget` as long as it lives.
    pub(super) fn new(state: &Node, altered: Option<AlteredFields>, budget: &Arc<AnswerBudget>) -> Self {
        let message = complete_state_response(state, altered);
        let bytes = message.write_to_bytes().expect("no field is required, and a vector takes all bytes");
        Self { _room: budget.take(bytes.len()), bytes }
    }

    /// How many bytes it has.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The answer to the request `id` on the wire.
    #[must_use]
    pub(super) fn message(&self, id: String) -> grpc_api::FromServer {
        encoded_response(id, &self.bytes)
    }

    /// The same as its receiver reads it.
    #[must_use]
    pub(super) fn response(&self, id: String) -> Option<Response> {
        let bytes = self.message(id).write_to_bytes().ok()?;
        let message = grpc_api::FromServer::parse_from_bytes(&bytes).ok()?;
        let Some(grpc_api::from_server::FromServerEnum::Response(response)) = message.FromServerEnum else {
            return None;
        };
        super::convert::from_server::response(response).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::messages::{FromServer, ResponseContent};
    use crate::wire::convert::to_client::from_server;

    #[test]
    fn an_encoded_answer_is_read_as_the_answer_it_was() {
        let state = Node::map([("agents", Node::map([("A", Node::empty())]))]);
        let altered =
            AlteredFields { added: vec!["agents.A".to_owned()], updated: vec![], removed: vec!["x".to_owned()] };
        for altered in [None, Some(altered)] {
            let budget = Arc::default();
            let encoded = EncodedState::new(&state, altered.clone(), &budget);
            let content = ResponseContent::CompleteState { state: state.clone(), altered };
            let response = Response { id: "r".to_owned(), content };
            assert_eq!(encoded.response("r".to_owned()), Some(response.clone()));
            let plain = from_server(FromServer::Response(response)).write_to_bytes().unwrap();
            assert_eq!(encoded.message("r".to_owned()).write_to_bytes().unwrap(), plain);
        }
    }
}
