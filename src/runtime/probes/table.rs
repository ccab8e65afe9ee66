//! When each workload is probed, and which results are reported: thresholds and time limits.
//!
//! Thread: `probes`, which owns it; tests and simulations step it. Time is passed in; probing is
//! behind [`ProbeIo`].

use super::{Outcome, ProbeOrder, ProbeReport, Purpose};
use ankaios_model::lifecycle::Check;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Probes that are due within this time are made together, so that many of them wake the processor
/// once. With a short period it is [`TOGETHER_SHARE`] of that.
const TOGETHER: Duration = Duration::from_millis(20);
/// The part of a period by which a probe may be early: one fifth.
const TOGETHER_SHARE: u32 = 5;
/// Shortest time between two probes of one workload by a command: each is a process, and one of the
/// engine's.
const COMMAND_SPACING: Duration = Duration::from_secs(1);
/// Shortest time between two reports of different results: each goes to the whole cluster.
const REPORT_SPACING: Duration = Duration::from_secs(1);
/// Time between two reports of the same failure, with the number of attempts.
const REPEATED_REPORT: Duration = Duration::from_secs(5);

/// Makes the probes for a table.
pub trait ProbeIo {
    /// Starts a probe. Returns the result if it is known at once; otherwise it comes later.
    fn begin(&mut self, order: &ProbeOrder) -> Option<Outcome>;

    /// Ends the wait for the result.
    fn abandon(&mut self, key: u64);
}

/// All probes of an agent.
pub struct ProbeTable<I> {
    pub(crate) io: I,
    entries: BTreeMap<u64, ProbeEntry>,
}

struct ProbeEntry {
    order: ProbeOrder,
    /// Time of the next probe; `None` while a result is awaited, or if the workload notifies.
    next: Option<Instant>,
    /// Time after which the result is too late.
    overdue: Option<Instant>,
    began: Instant,
    attempts: u32,
    in_a_row: u32,
    /// Whether the last results were successes.
    holds: Option<bool>,
    /// The last result that reached its threshold.
    verdict: Option<bool>,
    reported: Option<LastReport>,
}

/// The last report of an order.
struct LastReport {
    outcome: Outcome,
    at: Instant,
}

impl<I: ProbeIo> ProbeTable<I> {
    /// No order yet.
    pub fn new(io: I) -> Self {
        Self {
            io,
            entries: BTreeMap::new(),
        }
    }

    /// Adds an order.
    pub fn watch(&mut self, order: ProbeOrder, now: Instant) {
        let mut next = None;
        let mut overdue = None;
        if order.check != Check::Notify {
            next = Some(now + order.pace.initial_delay);
        } else if order.purpose == Purpose::Alive && !order.unarmed {
            // A watchdog that is armed: the workload must notify in time.
            overdue = Some(now + order.pace.timeout);
        }
        let entry = ProbeEntry {
            next,
            overdue,
            began: now,
            attempts: 0,
            in_a_row: 0,
            holds: None,
            verdict: None,
            reported: None,
            order,
        };
        self.entries.insert(entry.order.key, entry);
    }

    /// Removes an order.
    pub fn unwatch(&mut self, key: u64) {
        if self.entries.remove(&key).is_some() {
            self.io.abandon(key);
        }
    }

    pub fn orders(&self) -> impl Iterator<Item = &ProbeOrder> {
        self.entries.values().map(|entry| &entry.order)
    }

    /// The time at which [`Self::turn`] has something to do.
    pub fn due(&self) -> Option<Instant> {
        let entries = self.entries.values();
        let times = entries.flat_map(|entry| [entry.next, entry.overdue]);
        times.flatten().min()
    }

    /// Starts due probes and ends those above their timeout.
    // [impl->swdd~agent-lifecycle-probes~1]
    pub fn turn(&mut self, now: Instant) {
        for entry in self.entries.values_mut() {
            if let Some(overdue) = entry.overdue
                && overdue <= now
            {
                let timeout = entry.order.pace.timeout.as_millis();
                let reason = if entry.order.check == Check::Notify {
                    format!("no WATCHDOG=1 for {timeout} ms")
                } else {
                    self.io.abandon(entry.order.key);
                    format!("no answer within {timeout} ms")
                };
                entry.ended(Outcome::fails(reason), now);
            }
            let early = TOGETHER.min(entry.order.pace.period / TOGETHER_SHARE);
            if let Some(next) = entry.next
                && next <= now + early
            {
                entry.begin(now);
                if let Some(outcome) = self.io.begin(&entry.order) {
                    entry.ended(outcome, now);
                }
            }
        }
    }

    /// Takes the result of a probe.
    pub(crate) fn ended(&mut self, key: u64, outcome: Outcome, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.ended(outcome, now);
        }
    }

    /// Takes a message that a workload sent to its notify socket.
    pub fn notified(&mut self, key: u64, message: &[u8], now: Instant) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        match entry.order.purpose {
            Purpose::Ready if has_line(message, "READY=1") => entry.ended(Outcome::Holds, now),
            Purpose::Alive if has_line(message, "WATCHDOG=trigger") => {
                entry.ended(Outcome::fails("WATCHDOG=trigger"), now);
            }
            Purpose::Alive if has_line(message, "WATCHDOG=1") => entry.ended(Outcome::Holds, now),
            _ => {}
        }
    }
}

/// Returns whether a notification has this line.
pub fn has_line(message: &[u8], line: &str) -> bool {
    let mut lines = message.split(|byte| *byte == b'\n');
    lines.any(|other| other == line.as_bytes())
}

impl ProbeEntry {
    /// Notes that a probe begins, and when its result would be too late.
    fn begin(&mut self, now: Instant) {
        self.next = None;
        self.began = now;
        self.overdue = match self.order.check {
            Check::Exec(_) => None, // The time of a command is limited where it runs.
            _ => Some(now + self.order.pace.timeout),
        };
    }

    /// Takes a result: first plans the next probe, then counts, then reports.
    fn ended(&mut self, outcome: Outcome, now: Instant) {
        self.plan_next(now);
        let mut outcome = outcome;
        if self.order.purpose == Purpose::Gone
            && let Outcome::Fails { answered: true, .. } = outcome
        {
            outcome = Outcome::Holds; // Any answer shows that the workload has not ended.
        }
        let is_verdict = self.count(outcome == Outcome::Holds);
        if is_verdict || self.is_worth_reporting(&outcome, now) {
            self.reported = Some(LastReport {
                outcome: outcome.clone(),
                at: now,
            });
            (self.order.reply)(ProbeReport {
                key: self.order.key,
                outcome,
                in_a_row: self.in_a_row,
                attempts: self.attempts,
                is_verdict,
            });
        }
    }

    /// Plans the next probe, or for a watchdog the end of its time limit.
    fn plan_next(&mut self, now: Instant) {
        self.next = None;
        self.overdue = None;
        if self.order.check != Check::Notify {
            self.next = Some(self.next_at(now));
        } else if self.order.purpose == Purpose::Alive {
            self.overdue = Some(now + self.order.pace.timeout);
        }
    }

    fn next_at(&self, now: Instant) -> Instant {
        let next = now + self.order.pace.period;
        match self.order.check {
            Check::Exec(_) => next.max(self.began + COMMAND_SPACING),
            _ => next,
        }
    }

    /// Counts a result. Returns whether it is a new verdict: it reaches the threshold, and differs
    /// from the last verdict.
    fn count(&mut self, holds: bool) -> bool {
        self.attempts = self.attempts.saturating_add(1);
        if self.holds == Some(holds) {
            self.in_a_row = self.in_a_row.saturating_add(1);
        } else {
            self.in_a_row = 1;
            self.holds = Some(holds);
        }
        let threshold = if holds {
            Some(self.order.successes)
        } else {
            self.order.failures
        };
        let Some(threshold) = threshold else {
            return false;
        };
        if self.in_a_row < threshold || self.verdict == Some(holds) {
            return false;
        }
        self.verdict = Some(holds);
        true
    }

    /// Returns whether a result that is no verdict is reported: another one than before, or one
    /// that blocks something for long. Lasting success blocks nothing, except in a probe for an
    /// end.
    fn is_worth_reporting(&self, outcome: &Outcome, now: Instant) -> bool {
        let blocks = *outcome != Outcome::Holds || self.order.purpose == Purpose::Gone;
        let Some(last) = &self.reported else {
            return blocks;
        };
        let age = now.saturating_duration_since(last.at);
        if last.outcome != *outcome && age >= REPORT_SPACING {
            return true;
        }
        blocks && age >= REPEATED_REPORT
    }
}

#[cfg(test)]
mod tests;
