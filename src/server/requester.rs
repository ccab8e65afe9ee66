//! Whose a request is: a stream and, where the stream is that of an agent, one of its workloads.
//!
//! Thread: `server`; a plain value and the part of [`ServerLoop`] that makes it.

use super::{PeerClass, RequestKey, ServerLoop};
use crate::model::names::Name;
use crate::wire::server_endpoint::PeerId;

/// Who asks: a stream, and on that of an agent the workload. Answers to one requester keep their order, and what one
/// requester takes is counted together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requester {
    /// The stream.
    pub peer: PeerId,
    /// On the stream of an agent the name before the first `@` of the request id, not yet known to be a workload of
    /// that agent; `None` on other streams, and where the id names nobody.
    pub workload: Option<Name>,
}

impl ServerLoop {
    /// Who sent a request. Costs a look-up and a short copy.
    pub(super) fn requester_of(&self, key: &RequestKey) -> Requester {
        let shared = self.peers.get(&key.peer).is_some_and(|peer| peer.class == PeerClass::Agent);
        let workload = key.workload().filter(|_| shared).map(Name::from);
        Requester { peer: key.peer, workload }
    }
}
