//! Requesters: a stream and, if the stream is that of an agent, one of its workloads.
//!
//! Thread: `server`; plain values.

use ankaios_model::names::Name;
use ankaios_wire::peer::PeerId;

/// The key of a request: its stream and its id on that stream.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestKey {
    /// The stream that it came on.
    pub(crate) peer: PeerId,
    /// As it came on that stream.
    pub(crate) id: String,
}

impl RequestKey {
    /// The workload that sent it through its agent: the part that the agent put before the
    /// workload's own id.
    pub(crate) fn workload(&self) -> Option<&str> {
        self.id.split_once('@').map(|(workload, _)| workload)
    }

    /// The id by which agents know the request. It begins with the number of the stream, so it is
    /// unique in the cluster.
    pub(crate) fn full_id(&self) -> String {
        format!("{}@{}", self.peer.0, self.id)
    }

    /// The request with this full id. The id on its stream may contain the separator itself.
    pub(crate) fn from_full_id(full_id: &str) -> Option<Self> {
        let (peer, id) = full_id.split_once('@')?;
        Some(Self {
            peer: PeerId(peer.parse().ok()?),
            id: id.to_owned(),
        })
    }
}

/// The sender of requests. Responses to one requester keep their order, and all requests of one
/// requester count together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Requester {
    /// Whether it sends them on the stream of an agent.
    pub(crate) is_agent: bool,
    /// The agent, under whose name all its connections count; of a commander its certificate,
    /// address or user.
    pub(crate) source: Name,
    /// The connection of a commander; `None` stands for all of that source.
    pub(crate) peer: Option<PeerId>,
    /// The workload that sends through its agent: the name before the first `@` of the request id.
    /// Only an accepted request has proved that the agent has such a workload. `None` for
    /// commanders, and for an id without that part.
    pub(crate) workload: Option<Name>,
}

impl Requester {
    /// The agent whose stream it is; `None` for commanders.
    pub(crate) fn agent(&self) -> Option<&Name> {
        self.is_agent.then_some(&self.source)
    }

    /// The stream of an agent.
    pub(crate) fn of_agent(name: &Name) -> Self {
        Self {
            is_agent: true,
            source: name.clone(),
            peer: None,
            workload: None,
        }
    }

    /// The token buckets that its requests are debited to.
    pub(crate) fn token_buckets(&self) -> TokenBuckets {
        let mut stream = self.clone();
        stream.workload = None;
        let mut source = stream.clone();
        source.peer = None;
        TokenBuckets {
            source,
            stream,
            own: self.clone(),
        }
    }

    /// The source of its log lines. On the stream of an agent, each workload is a source.
    pub(crate) fn log_source(&self) -> Name {
        let source = &self.source;
        match &self.workload {
            // Shown between quotes: 'web' of 'agent_A'.
            Some(workload) => format!("{workload}' of '{source}").into(),
            None => source.clone(),
        }
    }
}

/// The token buckets of one requester. Some of them may be the same.
#[derive(Debug)]
pub(crate) struct TokenBuckets {
    /// That of its agent, certificate, address or user.
    pub(crate) source: Requester,
    /// That of its stream.
    pub(crate) stream: Requester,
    /// Its own: on the stream of an agent that of one workload.
    pub(crate) own: Requester,
}
