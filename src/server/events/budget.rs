//! What it may take to tell one change, in steps of some ten nanoseconds: of one who has subscribed, whatever its
//! subscriptions, and of all together. All others wait meanwhile.
//!
//! Thread: `server`; plain values.

use crate::limits::{EVENT_SENT_STEP_BYTES, EVENT_STEPS_MAX, EVENTS_STEPS_MAX};
use crate::model::names::Name;
use crate::wire::peer::PeerId;
use std::collections::BTreeMap;

/// Who pays for what its subscriptions are told: a workload, or a stream of a commander.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subscriber {
    /// The stream.
    pub peer: PeerId,
    /// The workload that asks through it.
    pub workload: Option<Name>,
}

/// So much changed that telling each path of it would keep everybody waiting.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("Too many fields changed at once; the event subscription ends, subscribe again")]
pub struct TooManyFields;

/// What is left of it for one change. Half of all is shared evenly, so that who needs little gets it however much others
/// need; the other half is for who comes first.
#[derive(Debug)]
pub struct EventBudget {
    taken: BTreeMap<Subscriber, usize>,
    share: usize,
    common: usize,
}

impl EventBudget {
    /// For a change that so many may be told of.
    #[must_use]
    pub fn new(subscribers: usize) -> Self {
        let half = EVENTS_STEPS_MAX / 2;
        Self { taken: BTreeMap::new(), share: half / subscribers.max(1), common: half }
    }

    /// Runs `work`, which takes from the steps that are left for this subscriber.
    pub fn spend<T>(&mut self, whose: &Subscriber, work: impl FnOnce(&mut usize) -> T) -> T {
        let taken = self.taken.get(whose).copied().unwrap_or_default();
        let share = self.share.saturating_sub(taken);
        let before = (share + self.common).min(EVENT_STEPS_MAX.saturating_sub(taken));
        let mut left = before;
        let result = work(&mut left);
        let spent = before - left;
        self.common -= spent.saturating_sub(share);
        *self.taken.entry(whose.clone()).or_default() += spent;
        result
    }

    /// Pays for sending so many bytes.
    ///
    /// # Errors
    /// [`TooManyFields`] when too much was told already.
    pub fn send(&mut self, whose: &Subscriber, bytes: usize) -> Result<(), TooManyFields> {
        let steps = bytes / EVENT_SENT_STEP_BYTES;
        self.spend(whose, |left| {
            *left = left.checked_sub(steps).ok_or(TooManyFields)?;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscriber(number: u64) -> Subscriber {
        Subscriber { peer: PeerId(number), workload: None }
    }

    /// How many steps it gets.
    fn takes_all(budget: &mut EventBudget, number: u64) -> usize {
        budget.spend(&subscriber(number), std::mem::take)
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
        assert_eq!(budget.send(&subscriber(1), EVENT_STEPS_MAX * EVENT_SENT_STEP_BYTES), Ok(()));
        assert_eq!(budget.send(&subscriber(1), EVENT_SENT_STEP_BYTES), Err(TooManyFields));
        assert_eq!(budget.send(&subscriber(2), EVENT_SENT_STEP_BYTES), Ok(()));
    }
}
