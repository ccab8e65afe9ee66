//! What the events of one change may cost, in steps of some ten nanoseconds: for one requester, whatever its
//! subscriptions, and for all together. All others wait meanwhile.
//!
//! Thread: `server`; plain values.

use crate::limits::{EVENT_SENT_STEP_BYTES, EVENT_STEPS_MAX, EVENTS_STEPS_MAX};
use crate::server::requester::Requester;
use std::collections::BTreeMap;

/// So much changed that an event with each path of it would keep everybody waiting.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("Too many fields changed at once; the event subscription ends, subscribe again")]
pub struct TooManyFields;

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
    #[must_use]
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
    use crate::wire::server_endpoint::PeerId;

    fn requester(number: u64) -> Requester {
        Requester { stream: Stream::Commander(PeerId(number)), workload: None }
    }

    /// How many steps it gets.
    fn takes_all(budget: &mut EventBudget, number: u64) -> usize {
        budget.spend(&requester(number), std::mem::take)
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
        assert!(budget.pay_for_sending(&requester(1), EVENT_STEPS_MAX * EVENT_SENT_STEP_BYTES));
        assert!(!budget.pay_for_sending(&requester(1), EVENT_SENT_STEP_BYTES));
        assert!(budget.pay_for_sending(&requester(2), EVENT_SENT_STEP_BYTES));
    }
}
