//! When to ask each workload, and what the answers amount to: thresholds, time limits, what is worth telling.
//!
//! Thread: `probes`, which owns it; tests and simulations step it. Time is passed in; asking is behind [`ProbeIo`].

use super::{Outcome, ProbeOrder, ProbeReport, Purpose};
use crate::limits::{EXEC_SPACING, PROBE_REPORT_INTERVAL, PROBE_REPORT_PAUSE, PROBE_SLACK, PROBE_UNSENT_RETRY};
use crate::model::lifecycle::Check;
use crossbeam_channel::TrySendError;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Asks.
pub trait ProbeIo {
    /// Begins to ask. Answers what is known at once; `None` when the answer comes later.
    fn begin(&mut self, order: &ProbeOrder) -> Option<Outcome>;

    /// The answer is not wanted any more.
    fn abandon(&mut self, key: u64);
}

/// All checks of an agent.
#[derive(Debug)]
pub struct ProbeTable<I> {
    /// What asks.
    pub io: I,
    entries: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    order: ProbeOrder,
    /// When to ask next; `None` while the answer is awaited, or when nobody is asked.
    next: Option<Instant>,
    /// When the answer comes too late.
    overdue: Option<Instant>,
    began: Instant,
    attempts: u32,
    in_a_row: u32,
    /// Whether the last answers were successes.
    holds: Option<bool>,
    /// What was concluded last.
    verdict: Option<bool>,
    /// What was told last, and when.
    told: Option<(Outcome, Instant)>,
    unsent: Option<ProbeReport>,
}

impl<I: ProbeIo> ProbeTable<I> {
    /// Nothing to check yet.
    #[must_use]
    pub fn new(io: I) -> Self {
        Self { io, entries: BTreeMap::new() }
    }

    /// Takes an order.
    pub fn watch(&mut self, order: ProbeOrder, now: Instant) {
        let notified = order.check == Check::Notify;
        let entry = Entry {
            next: (!notified).then(|| now + order.pace.initial_delay),
            overdue: (notified && order.purpose == Purpose::Alive && !order.unarmed).then(|| now + order.pace.timeout),
            began: now,
            attempts: 0,
            in_a_row: 0,
            holds: None,
            verdict: None,
            told: None,
            unsent: None,
            order,
        };
        self.entries.insert(entry.order.key, entry);
    }

    /// Forgets an order.
    pub fn unwatch(&mut self, key: u64) {
        if self.entries.remove(&key).is_some() {
            self.io.abandon(key);
        }
    }

    /// The orders.
    pub fn orders(&self) -> impl Iterator<Item = &ProbeOrder> {
        self.entries.values().map(|entry| &entry.order)
    }

    /// When [`Self::turn`] has something to do.
    #[must_use]
    pub fn due(&self, now: Instant) -> Option<Instant> {
        let times = self
            .entries
            .values()
            .flat_map(|entry| [entry.next, entry.overdue, entry.unsent.as_ref().map(|_| now + PROBE_UNSENT_RETRY)]);
        times.flatten().min()
    }

    /// Does what is due: asks, gives up what takes too long, tells what could not be told.
    // [impl->swdd~agent-lifecycle-probes~1]
    pub fn turn(&mut self, now: Instant) {
        let io = &mut self.io;
        for entry in self.entries.values_mut() {
            if entry.unsent.is_some() {
                entry.send();
            }
            if entry.overdue.is_some_and(|at| at <= now) {
                let timeout = entry.order.pace.timeout.as_millis();
                let reason = if entry.order.check == Check::Notify {
                    format!("no WATCHDOG=1 for {timeout} ms")
                } else {
                    io.abandon(entry.order.key);
                    format!("no answer within {timeout} ms")
                };
                entry.ended(Outcome::fails(reason), now);
            }
            // What is nearly due is asked now: one waking of the processor serves many.
            if entry.next.is_some_and(|at| at <= now + PROBE_SLACK.min(entry.order.pace.period / 5)) {
                entry.begin(now);
                if let Some(outcome) = io.begin(&entry.order) {
                    entry.ended(outcome, now);
                }
            }
        }
    }

    /// An answer came.
    pub fn ended(&mut self, key: u64, outcome: Outcome, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.ended(outcome, now);
        }
    }

    /// A workload said something on its notify socket.
    pub fn notified(&mut self, key: u64, message: &[u8], now: Instant) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let says = |what: &str| says(message, what);
        match entry.order.purpose {
            Purpose::Ready if says("READY=1") => entry.ended(Outcome::Holds, now),
            Purpose::Alive if says("WATCHDOG=trigger") => entry.ended(Outcome::fails("WATCHDOG=trigger"), now),
            Purpose::Alive if says("WATCHDOG=1") => entry.ended(Outcome::Holds, now),
            _ => {}
        }
    }
}

/// Whether a notification has the line `what`.
#[must_use]
pub fn says(message: &[u8], what: &str) -> bool {
    message.split(|byte| *byte == b'\n').any(|line| line == what.as_bytes())
}

impl Entry {
    fn begin(&mut self, now: Instant) {
        (self.next, self.began) = (None, now);
        // A command is limited by whoever runs it.
        let limited = !matches!(self.order.check, Check::Exec(_));
        self.overdue = limited.then(|| now + self.order.pace.timeout);
    }

    fn ended(&mut self, outcome: Outcome, now: Instant) {
        let asked = self.order.check != Check::Notify;
        self.overdue = (!asked && self.order.purpose == Purpose::Alive).then(|| now + self.order.pace.timeout);
        self.next = asked.then(|| self.next_at(now));
        let outcome = match outcome {
            // To be gone it must not answer at all.
            Outcome::Fails { answered: true, .. } if self.order.purpose == Purpose::Gone => Outcome::Holds,
            outcome => outcome,
        };
        let holds = outcome == Outcome::Holds;
        self.attempts = self.attempts.saturating_add(1);
        self.in_a_row = if self.holds == Some(holds) { self.in_a_row.saturating_add(1) } else { 1 };
        self.holds = Some(holds);
        let enough = if holds { Some(self.order.successes) } else { self.order.failures };
        let is_verdict = enough.is_some_and(|enough| self.in_a_row >= enough) && self.verdict != Some(holds);
        if is_verdict {
            self.verdict = Some(holds);
        }
        // A verdict that nobody has heard yet must not be replaced by less: it would never come again.
        let is_unheard = self.unsent.as_ref().is_some_and(|report| report.is_verdict);
        if is_verdict || (!is_unheard && self.is_worth_telling(&outcome, now)) {
            self.told = Some((outcome.clone(), now));
            let (in_a_row, attempts) = (self.in_a_row, self.attempts);
            self.unsent = Some(ProbeReport { key: self.order.key, outcome, in_a_row, attempts, is_verdict });
            self.send();
        }
    }

    fn next_at(&self, now: Instant) -> Instant {
        let spacing = if matches!(self.order.check, Check::Exec(_)) { EXEC_SPACING } else { Duration::ZERO };
        (now + self.order.pace.period).max(self.began + spacing)
    }

    /// Something new, or the same for long. What is as it should be all the time is not told.
    fn is_worth_telling(&self, outcome: &Outcome, now: Instant) -> bool {
        let expected = Outcome::Holds;
        match &self.told {
            None => *outcome != expected || self.order.purpose == Purpose::Gone,
            Some((told, at)) => {
                let age = now.saturating_duration_since(*at);
                let repeats = *outcome != expected || self.order.purpose == Purpose::Gone;
                (told != outcome && age >= PROBE_REPORT_PAUSE) || (repeats && age >= PROBE_REPORT_INTERVAL)
            }
        }
    }

    fn send(&mut self) {
        let Some(report) = self.unsent.take() else { return };
        if let Err(TrySendError::Full(report)) = self.order.reports.try_send(report) {
            self.unsent = Some(report); // It is in an engine's call.
        }
    }
}

#[cfg(test)]
mod tests;
