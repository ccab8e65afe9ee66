//! What one requester may use, so that the others get their part: lasting requests, time of the server, and the steps
//! that the events of one change cost. Each bound holds for a workload, for a stream (all workloads of an agent together,
//! since ids of requests and connections can be changed), or for all.
//!
//! Thread: `server`; plain values and functions. Time is passed in.

use super::requester::{RequestKey, Requester};
use crate::limits::{
    EVENT_SENT_STEP_BYTES, EVENT_STEPS_MAX, EVENTS_STEPS_MAX, LASTING_REQUESTS_BYTES,
    LASTING_REQUESTS_OF_WORKLOAD_BYTES, REQUEST_TIME_PERIOD, REQUEST_TIME_SHARE,
};
use crate::wire::peer::PeerId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

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

// ------------------------------------------------------------ time of the server

/// What was taken, less what its share has given since then.
#[derive(Debug, Clone, Copy)]
struct Taken {
    time: Duration,
    at: Instant,
}

impl Taken {
    fn at(self, now: Instant) -> Duration {
        let shares = REQUEST_TIME_PERIOD.as_nanos() / REQUEST_TIME_SHARE.as_nanos();
        let given = now.saturating_duration_since(self.at) / u32::try_from(shares).unwrap_or(u32::MAX);
        self.time.saturating_sub(given)
    }
}

/// What a requester took beyond its share: that of its stream first, then its own. All requesters within their share are
/// equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Excess {
    stream: Duration,
    workload: Duration,
}

impl Excess {
    /// Whether it took no more than its share.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// The time that requesters took lately.
#[derive(Debug, Default)]
pub struct Shares {
    /// Only those whose share has not made up for it yet: as all of them take turns, there are few.
    taken: BTreeMap<Requester, Taken>,
}

impl Shares {
    /// The server has worked for `requester` from `begin` to `end`.
    pub fn charge(&mut self, requester: &Requester, begin: Instant, end: Instant) {
        let time = end.saturating_duration_since(begin);
        if time.is_zero() {
            return;
        }
        self.taken.retain(|_, taken| !taken.at(end).is_zero());
        for account in [requester.of_stream(), requester.clone()].into_iter().collect::<BTreeSet<_>>() {
            let taken = self.taken.entry(account).or_insert(Taken { time: Duration::ZERO, at: end });
            *taken = Taken { time: (taken.at(end) + time).min(REQUEST_TIME_PERIOD), at: end };
        }
    }

    /// What `requester` took beyond its share.
    pub fn excess(&self, requester: &Requester, now: Instant) -> Excess {
        if self.taken.is_empty() {
            return Excess::default();
        }
        let excess = |account: &Requester| {
            self.taken.get(account).map_or(Duration::ZERO, |taken| taken.at(now).saturating_sub(REQUEST_TIME_SHARE))
        };
        Excess { stream: excess(&requester.of_stream()), workload: excess(requester) }
    }
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
    use crate::platform::clock::Clock;
    use crate::server::requester::Stream;
    use crate::simulation::manual_clock::ManualClock;

    fn requester(peer: u64, agent: Option<&str>, workload: Option<&str>) -> Requester {
        let stream = agent.map_or(Stream::Commander(PeerId(peer)), |name| Stream::Agent(name.into()));
        Requester { stream, workload: workload.map(Into::into) }
    }

    fn take(shares: &mut Shares, clock: &ManualClock, requester: &Requester, time: Duration) {
        let begin = clock.now();
        clock.advance(time);
        shares.charge(requester, begin, clock.now());
    }

    #[test]
    fn what_is_beyond_the_share_is_made_up_for_in_time_and_forgotten() {
        let (mut shares, clock) = (Shares::default(), ManualClock::new());
        let (a, b) = (requester(1, None, None), requester(2, None, None));
        take(&mut shares, &clock, &a, REQUEST_TIME_SHARE);
        assert!(shares.excess(&a, clock.now()).is_none(), "it is within its share");
        take(&mut shares, &clock, &a, REQUEST_TIME_SHARE);
        assert!(!shares.excess(&a, clock.now()).is_none());
        assert!(shares.excess(&b, clock.now()).is_none());
        clock.advance(REQUEST_TIME_PERIOD);
        assert!(shares.excess(&a, clock.now()).is_none());
        clock.advance(2 * REQUEST_TIME_PERIOD);
        take(&mut shares, &clock, &b, Duration::from_millis(1));
        assert_eq!(shares.taken.len(), 1, "of what is made up for nothing is kept");
    }

    #[test]
    fn an_hour_of_work_is_made_up_for_within_ten_periods() {
        let (mut shares, clock, a) = (Shares::default(), ManualClock::new(), requester(1, None, None));
        take(&mut shares, &clock, &a, Duration::from_secs(3600));
        clock.advance(10 * REQUEST_TIME_PERIOD);
        assert!(shares.excess(&a, clock.now()).is_none());
    }

    #[test]
    fn an_agent_is_charged_for_its_workloads_whatever_ids_and_connections_it_uses() {
        let (mut shares, clock) = (Shares::default(), ManualClock::new());
        for number in 0..10 {
            let one = requester(number, Some("A"), Some(&format!("w{number}")));
            take(&mut shares, &clock, &one, REQUEST_TIME_SHARE / 2);
        }
        let excess = |peer, agent, workload| shares.excess(&requester(peer, Some(agent), Some(workload)), clock.now());
        assert!(!excess(99, "A", "other").is_none());
        assert!(excess(99, "B", "w0").is_none());
        let mut greedy = Shares::default();
        take(&mut greedy, &clock, &requester(1, Some("A"), Some("greedy")), REQUEST_TIME_PERIOD);
        let excess = |workload| greedy.excess(&requester(1, Some("A"), Some(workload)), clock.now());
        assert!(excess("modest") < excess("greedy"), "one of its workloads comes before the one that took the time");
    }

    fn commander(number: u64) -> Requester {
        requester(number, None, None)
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
