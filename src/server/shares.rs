//! How long the server has worked for whom, so that nobody keeps it from others: each workload, each agent and each
//! connection of a commander has a share of its time. What is asked beyond that waits (waiting_requests.rs).
//!
//! An agent is charged for all its workloads together, under its name: ids of requests and connections can be changed.
//!
//! Thread: `server`; a plain value. Time is passed in.

use super::requester::Requester;
use crate::limits::{REQUEST_TIME_PERIOD, REQUEST_TIME_SHARE};
use crate::model::names::Name;
use crate::wire::peer::PeerId;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Whose time is counted together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Account {
    Commander(PeerId),
    Agent(Name),
    Workload { agent: Name, workload: Name },
}

impl Account {
    fn of_stream(requester: &Requester) -> Self {
        requester.agent.clone().map_or(Self::Commander(requester.peer), Self::Agent)
    }

    fn of_workload(requester: &Requester) -> Option<Self> {
        let (agent, workload) = (requester.agent.clone()?, requester.workload.clone()?);
        Some(Self::Workload { agent, workload })
    }
}

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

/// What a requester took beyond its share: that of its stream first, then its own. Whoever took less comes first; all
/// that are within their share are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Excess {
    stream: Duration,
    workload: Duration,
}

impl Excess {
    /// Whether it took no more than its share.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// The time that requesters took lately.
#[derive(Debug, Default)]
pub struct Shares {
    /// Only those whose share has not made up for it yet: as all of them take turns, there are few.
    taken: BTreeMap<Account, Taken>,
}

impl Shares {
    /// The server has worked for `requester` from `begin` to `end`.
    pub fn charge(&mut self, requester: &Requester, begin: Instant, end: Instant) {
        let time = end.saturating_duration_since(begin);
        if time.is_zero() {
            return;
        }
        self.taken.retain(|_, taken| !taken.at(end).is_zero());
        for account in [Some(Account::of_stream(requester)), Account::of_workload(requester)].into_iter().flatten() {
            let taken = self.taken.entry(account).or_insert(Taken { time: Duration::ZERO, at: end });
            *taken = Taken { time: (taken.at(end) + time).min(REQUEST_TIME_PERIOD), at: end };
        }
    }

    /// What `requester` took beyond its share.
    #[must_use]
    pub fn excess(&self, requester: &Requester, now: Instant) -> Excess {
        if self.taken.is_empty() {
            return Excess::default();
        }
        let excess = |account: &Account| {
            self.taken.get(account).map_or(Duration::ZERO, |taken| taken.at(now).saturating_sub(REQUEST_TIME_SHARE))
        };
        let stream = excess(&Account::of_stream(requester));
        Excess { stream, workload: Account::of_workload(requester).map_or(Duration::ZERO, |own| excess(&own)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::clock::Clock;
    use crate::simulation::manual_clock::ManualClock;

    fn requester(peer: u64, agent: Option<&str>, workload: Option<&str>) -> Requester {
        Requester { peer: PeerId(peer), agent: agent.map(Into::into), workload: workload.map(Into::into) }
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
}
