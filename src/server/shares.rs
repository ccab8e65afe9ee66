//! What one requester may use, so that the others get their part: lasting requests, and the steps that the events of one change cost. Each bound holds for a workload, for a stream (all workloads of an agent together,
//! since ids of requests and connections can be changed), or for all.
//!
//! Thread: `server`; plain values and functions.

use super::requester::{RequestKey, Requester};
use crate::limits::{
    EVENT_SENT_STEP_BYTES, EVENT_STEPS_MAX, EVENTS_STEPS_MAX, LASTING_REQUESTS_BYTES,
    LASTING_REQUESTS_OF_WORKLOAD_BYTES,
};
use crate::wire::peer::PeerId;
use std::collections::BTreeMap;

// --------------------------------------- requests that last longer than their response

/// What is kept of an event subscription, or of a request for logs.
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

// ------------------------------------------------------------- cost of events

/// The steps that are left for one change. Half of all is shared evenly, so that a requester that needs few gets them
/// however many others need; the other half goes to those who come first.
#[derive(Debug)]
pub struct EventBudget {
    taken: BTreeMap<Requester, usize>,
    share: usize,
    common: usize,
}

impl EventBudget {
    /// For a change that so many have subscribed to.
    pub fn new(requesters: usize) -> Self {
        let half = EVENTS_STEPS_MAX / 2;
        Self { taken: BTreeMap::new(), share: half / requesters.max(1), common: half }
    }

    /// Runs `work`, which takes from the steps that are left for this requester.
    pub fn spend<T>(&mut self, requester: &Requester, work: impl FnOnce(&mut usize) -> T) -> T {
        let taken = self.taken.get(requester).copied().unwrap_or_default();
        let share = self.share.saturating_sub(taken);
        let before = (share + self.common).min(EVENT_STEPS_MAX.saturating_sub(taken));
        let mut left = before;
        let result = work(&mut left);
        let spent = before - left;
        self.common -= spent.saturating_sub(share);
        *self.taken.entry(requester.clone()).or_default() += spent;
        result
    }

    /// Pays for sending so many bytes; returns `false` when too much was sent already.
    #[must_use]
    pub fn pay_for_sending(&mut self, requester: &Requester, bytes: usize) -> bool {
        let steps = bytes / EVENT_SENT_STEP_BYTES;
        self.spend(requester, |left| left.checked_sub(steps).map(|rest| *left = rest).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::requester::Stream;

    fn commander(number: u64) -> Requester {
        Requester { stream: Stream::Commander(PeerId(number)), workload: None }
    }

    /// How many steps it gets.
    fn takes_all(budget: &mut EventBudget, number: u64) -> usize {
        budget.spend(&commander(number), std::mem::take)
    }

    #[test]
    fn one_takes_no_more_than_its_most_and_all_no_more_than_there_is() {
        let mut budget = EventBudget::new(100);
        assert_eq!(takes_all(&mut budget, 0), EVENT_STEPS_MAX);
        assert_eq!(takes_all(&mut budget, 0), 0, "whatever its subscriptions");
        let others: Vec<usize> = (1..100).map(|number| takes_all(&mut budget, number)).collect();
        assert!(EVENT_STEPS_MAX + others.iter().sum::<usize>() <= EVENTS_STEPS_MAX);
        let share = EVENTS_STEPS_MAX / 2 / 100;
        assert!(others.iter().all(|taken| *taken >= share), "the last one gets its share: {others:?}");
    }

    #[test]
    fn what_is_sent_is_paid_for() {
        let mut budget = EventBudget::new(1);
        assert!(budget.pay_for_sending(&commander(1), EVENT_STEPS_MAX * EVENT_SENT_STEP_BYTES));
        assert!(!budget.pay_for_sending(&commander(1), EVENT_SENT_STEP_BYTES));
        assert!(budget.pay_for_sending(&commander(2), EVENT_SENT_STEP_BYTES));
    }
}
