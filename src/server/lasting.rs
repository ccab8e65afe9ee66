//! Requests that last longer than their response, event subscriptions and collections of logs: bounded for each stream,
//! and for each workload on the stream of its agent.
//!
//! Thread: `server`; plain functions.

use super::requester::{RequestKey, Requester};
use crate::limits::{LASTING_REQUESTS_BYTES, LASTING_REQUESTS_OF_WORKLOAD_BYTES};
use crate::wire::server_endpoint::PeerId;
use std::collections::BTreeMap;

/// What is kept of such a request.
pub trait LastingRequest {
    /// How the requests are called in messages.
    const NAME: &str;
    /// How many a workload may have.
    const OF_WORKLOAD: usize;
    /// How many a stream may have.
    const OF_STREAM: usize;

    /// What it takes, in bytes, about.
    fn bytes(&self) -> usize;
}

/// Requests of one kind, in the order of streams.
pub type ByRequest<T> = BTreeMap<RequestKey, T>;

/// A stream, or a workload, has as many requests of a kind as it may have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("Too many {name} of {whose}, at most {count} with {bytes} bytes are allowed; end some of them first")]
pub struct TooMany {
    name: &'static str,
    whose: &'static str,
    count: usize,
    bytes: usize,
}

/// Whether one more thing of `bytes` bytes fits beside others, whose sizes are `taken`.
pub fn has_room(taken: impl Iterator<Item = usize>, bytes: usize, count_max: usize, bytes_max: usize) -> bool {
    let (count, taken) = taken.fold((0, 0), |(count, sum), one| (count + 1, sum + one));
    count < count_max && taken + bytes <= bytes_max
}

/// The requests of one stream.
pub fn of_peer<T>(requests: &ByRequest<T>, peer: PeerId) -> impl Iterator<Item = (&RequestKey, &T)> {
    let start = RequestKey { peer, id: String::new() };
    requests.range(start..).take_while(move |(key, _)| key.peer == peer)
}

/// Checks that there is room for another request.
///
/// # Errors
/// Whose share is used up.
pub fn check_room<T: LastingRequest>(
    requests: &ByRequest<T>,
    requester: &Requester,
    key: &RequestKey,
    request: &T,
) -> Result<(), TooMany> {
    let bytes = |key: &RequestKey, request: &T| key.id.len() + request.bytes();
    let wanted = bytes(key, request);
    let own = || of_peer(requests, key.peer);
    let of_workload = own().filter(|(other, _)| other.workload() == key.workload()).map(|(key, one)| bytes(key, one));
    let too_many = |whose, count, bytes| Err(TooMany { name: T::NAME, whose, count, bytes });
    let (count, bytes_max) = (T::OF_WORKLOAD, LASTING_REQUESTS_OF_WORKLOAD_BYTES);
    if requester.workload.is_some() && !has_room(of_workload, wanted, count, bytes_max) {
        return too_many("this workload", count, bytes_max);
    }
    let (count, bytes_max) = (T::OF_STREAM, LASTING_REQUESTS_BYTES);
    if !has_room(own().map(|(key, one)| bytes(key, one)), wanted, count, bytes_max) {
        return too_many("this connection", count, bytes_max);
    }
    Ok(())
}
