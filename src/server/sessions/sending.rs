//! The sending side of [`Sessions`]: messages, responses, events and states for outboxes.
//!
//! Thread: `server`; part of [`Sessions`].

use super::{Denied, PeerSession, RequestKey, Sessions};
use ankaios_model::execution_state::WorkloadState;
use ankaios_model::messages::{AlteredFields, FromServer, Response, ResponseContent};
use ankaios_model::names::{Name, excerpt};
use ankaios_model::node::Node;
use ankaios_platform::logging::log_source;
use ankaios_wire::outbox::{Encoded, OutboxError};
use ankaios_wire::peer::{PeerId, Service};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;
use std::task::Waker;

/// The capacity for responses at one moment.
pub(crate) struct ResponseCapacity<'s> {
    sessions: &'s Sessions,
    waker: &'s Waker,
    /// Bytes of responses that wait for the peers of each source. Counted when they are needed
    /// first, since that reads all streams.
    unsent_by_source: Option<BTreeMap<&'s Name, usize>>,
}

impl ResponseCapacity<'_> {
    /// Returns whether a response for this peer would be sent soon. If not, the waker is woken as
    /// soon as that may have changed.
    pub(crate) fn poll_room(&mut self, peer: PeerId) -> bool {
        let sessions = self.sessions;
        let Some(PeerSession { peer, outbox }) = sessions.sessions.get(&peer) else {
            return true; // The stream has ended: its response is dropped at once.
        };
        let by_source = &mut self.unsent_by_source;
        outbox.poll_room_for_response(
            || {
                let by_source = by_source.get_or_insert_with(|| sessions.unsent_by_source());
                by_source.get(&peer.source).copied().unwrap_or_default()
            },
            self.waker,
        )
    }
}

impl Sessions {
    /// The capacity for responses. `waker` is woken when a peer that had no room may have some.
    pub(crate) fn response_capacity<'s>(&'s self, waker: &'s Waker) -> ResponseCapacity<'s> {
        ResponseCapacity {
            sessions: self,
            waker,
            unsent_by_source: None,
        }
    }

    /// Bytes of responses that wait for the peers of each source.
    fn unsent_by_source(&self) -> BTreeMap<&Name, usize> {
        let mut unsent = BTreeMap::new();
        for session in self.sessions.values() {
            *unsent.entry(&session.peer.source).or_default() += session.outbox.unsent_responses();
        }
        unsent
    }

    // --------------------------------------------------------------- messages

    /// Puts a message for one stream. A stream that cannot take it is closed when the event is
    /// done.
    pub(crate) fn send(&mut self, id: PeerId, message: FromServer) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let result = session.outbox.put(message);
        self.note_result(id, result);
    }

    /// Puts a message for an agent, if it is connected.
    pub(crate) fn send_to_agent(&mut self, name: &str, message: FromServer) {
        if let Some(peer) = self.of_agent(name) {
            self.send(peer, message);
        }
    }

    /// Notes a stream as failed when its outbox did not take a message.
    pub(super) fn note_result(&mut self, id: PeerId, result: Result<(), OutboxError>) {
        if let Err(error) = result {
            self.fail(id, &error);
        }
    }

    /// Notes a stream as failed, which did not take a message for this reason.
    pub(crate) fn fail(&mut self, id: PeerId, error: &OutboxError) {
        let Some(PeerSession { peer, .. }) = self.sessions.get(&id) else {
            return;
        };
        if self.failed.contains(&id) {
            return; // It was logged with its first failure.
        }
        let _source = log_source(peer.source.clone());
        log::warn!("Closing the connection of '{}': {error}.", peer.name);
        self.failed.push(id);
    }

    // -------------------------------------------------------------- responses

    /// Sends a response. A request without an id has none, since no client could assign it.
    pub(crate) fn respond(&mut self, key: &RequestKey, content: ResponseContent) {
        if !key.id.is_empty() {
            self.send(key.peer, response(key, content));
            return;
        }
        if let Some(peer) = self.peer(key.peer) {
            let _source = log_source(peer.source.clone());
            log::warn!(
                "Dropping a response for '{}': its request has an empty id.",
                peer.name
            );
        }
    }

    /// Responds with an error.
    pub(crate) fn refuse(&mut self, key: &RequestKey, text: impl Display) {
        self.respond(key, ResponseContent::Error(text.to_string().into()));
    }

    /// Responds with a state.
    pub(crate) fn respond_with_state(&mut self, key: &RequestKey, state: Node) {
        let altered = None;
        self.respond(key, ResponseContent::CompleteState { state, altered });
    }

    /// Refuses a request that the requester must not send. Our agents refuse it before the server.
    pub(crate) fn deny(&mut self, key: &RequestKey, denied: Denied) {
        if let Some(peer) = self.peer(key.peer) {
            let id = excerpt(&key.id);
            log::warn!("Denied request '{id}' of agent '{}': {denied}", peer.name);
        }
        self.refuse_or_drop(key, denied);
    }

    /// Responds with an error. When much waits for the stream, the error is dropped: an endless
    /// flood of refused requests must not fill the outbox, which others on that stream need.
    pub(crate) fn refuse_or_drop(&mut self, key: &RequestKey, text: impl Display) {
        if key.id.is_empty() {
            return; // No client could assign the response.
        }
        let Some(session) = self.sessions.get(&key.peer) else {
            return; // The stream has ended.
        };
        let refusal = response(key, ResponseContent::Error(text.to_string().into()));
        let result = session.outbox.put_or_drop(refusal);
        self.note_result(key.peer, result);
    }

    // ----------------------------------------------------------------- events

    /// Returns whether an event may be put for a stream. Events of workloads use half of the outbox
    /// of their agent at most: they must not cost the agent its connection.
    pub(crate) fn has_room_for_event(&self, id: PeerId) -> bool {
        let Some(PeerSession { peer, outbox }) = self.sessions.get(&id) else {
            return false;
        };
        let is_busy = peer.is_agent() && !outbox.is_half_empty();
        !is_busy && outbox.has_room_for_event()
    }

    /// Encodes an event once for all its receivers. Its bytes count as responses of the stream
    /// `id`. Returns `None` when that stream has ended.
    pub(crate) fn encode_event(
        &self,
        id: PeerId,
        state: &Node,
        altered: AlteredFields,
    ) -> Option<Encoded> {
        let session = self.sessions.get(&id)?;
        Some(session.outbox.encode(state, Some(altered)))
    }

    /// Puts an event for a request. Put each event before the next one is made: the events of all
    /// subscribers together could fill the memory.
    ///
    /// # Errors
    /// The outbox does not take the event; the caller closes the stream.
    pub(crate) fn put_event(
        &self,
        key: &RequestKey,
        event: &Arc<Encoded>,
    ) -> Result<(), OutboxError> {
        let Some(session) = self.sessions.get(&key.peer) else {
            return Ok(()); // The stream has ended: the event has no receiver.
        };
        session.outbox.put_state(key.id.clone(), event)
    }

    // ----------------------------------------------------------------- states

    /// Sends `states` to every stream that receives broadcasts, and to no agent its own.
    pub(crate) fn broadcast_states(&mut self, states: &[WorkloadState]) {
        self.broadcast(states, &[Service::Agent, Service::Cli]);
    }

    /// Sends `states` to command lines of an earlier version only.
    pub(crate) fn broadcast_to_clis(&mut self, states: &[WorkloadState]) {
        self.broadcast(states, &[Service::Cli]);
    }

    /// Sends `states` to the streams of these services. Each state is encoded once for all of them.
    fn broadcast(&mut self, states: &[WorkloadState], services: &[Service]) {
        let mut receivers = Vec::new();
        for (id, session) in &self.sessions {
            if services.contains(&session.peer.service) {
                receivers.push(*id);
            }
        }
        if receivers.is_empty() {
            return;
        }
        // Most often this is only the agent that has reported all of the states.
        let agents: BTreeSet<&Name> = states.iter().map(|state| &state.instance.agent).collect();
        let each: Vec<Arc<Encoded>> = states.iter().map(Encoded::of_state).collect();
        let together = Encoded::together(&each);
        for id in receivers {
            let Some(PeerSession { peer, outbox }) = self.sessions.get(&id) else {
                continue;
            };
            let has_own = agents.contains(&peer.name);
            if has_own && agents.len() == 1 {
                continue; // All states are its own.
            }
            let foreign = each
                .iter()
                .filter(|state| !has_own || !state.is_of_agent(&peer.name));
            // If this stream gets all states, they are one entry of its outbox.
            let is_together = !has_own && each.len() > 1;
            let together = is_together.then_some(&together);
            let result = outbox.put_states(together, foreign.cloned());
            self.note_result(id, result);
        }
    }
}

fn response(key: &RequestKey, content: ResponseContent) -> FromServer {
    FromServer::Response(Response {
        id: key.id.clone(),
        content,
    })
}
