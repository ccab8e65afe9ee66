//! When to probe each workload, and what the results amount to: thresholds, time limits, which of
//! them to report.
//!
//! Thread: `probes`, which owns it; tests and simulations step it. Time is passed in; probing is
//! behind [`ProbeIo`].

use super::{Outcome, ProbeOrder, ProbeReport, Purpose};

use ankaios_model::lifecycle::Check;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Probes.
pub trait ProbeIo {
    /// Starts a probe. Returns the result if it is known at once, `None` when it comes later.
    fn begin(&mut self, order: &ProbeOrder) -> Option<Outcome>;

    /// The result is not wanted any more.
    fn abandon(&mut self, key: u64);
}

/// All probes of an agent.
pub struct ProbeTable<I> {
    /// Probes for it.
    pub(crate) io: I,
    entries: BTreeMap<u64, Entry>,
}

struct Entry {
    order: ProbeOrder,
    /// When to probe next; `None` while a result is awaited, or when the workload notifies.
    next: Option<Instant>,
    /// When the result comes too late.
    overdue: Option<Instant>,
    began: Instant,
    attempts: u32,
    in_a_row: u32,
    /// Whether the last results were successes.
    holds: Option<bool>,
    /// The last result that reached its threshold.
    verdict: Option<bool>,
    /// The last report and its time.
    reported: Option<(Outcome, Instant)>,
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
        let notified = order.check == Check::Notify;
        let entry = Entry {
            next: (!notified).then(|| now + order.pace.initial_delay),
            overdue: (notified && order.purpose == Purpose::Alive && !order.unarmed)
                .then(|| now + order.pace.timeout),
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

    /// The orders.
    pub fn orders(&self) -> impl Iterator<Item = &ProbeOrder> {
        self.entries.values().map(|entry| &entry.order)
    }

    /// When [`Self::turn`] has something to do.
    pub fn due(&self) -> Option<Instant> {
        self.entries
            .values()
            .flat_map(|entry| [entry.next, entry.overdue])
            .flatten()
            .min()
    }

    /// Starts due probes and ends those above their timeout.
    // [impl->swdd~agent-lifecycle-probes~1]
    pub fn turn(&mut self, now: Instant) {
        let io = &mut self.io;
        for entry in self.entries.values_mut() {
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
            // Checks that are due within this time are made together, so that many of them wake the
            // processor once.
            if entry.next.is_some_and(|at| {
                at <= now + Duration::from_millis(20).min(entry.order.pace.period / 5)
            }) {
                entry.begin(now);
                if let Some(outcome) = io.begin(&entry.order) {
                    entry.ended(outcome, now);
                }
            }
        }
    }

    /// A result came.
    pub(crate) fn ended(&mut self, key: u64, outcome: Outcome, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.ended(outcome, now);
        }
    }

    /// A workload sent a message to its notify socket.
    pub fn notified(&mut self, key: u64, message: &[u8], now: Instant) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        let has = |line: &str| has_line(message, line);
        match entry.order.purpose {
            Purpose::Ready if has("READY=1") => entry.ended(Outcome::Holds, now),
            Purpose::Alive if has("WATCHDOG=trigger") => {
                entry.ended(Outcome::fails("WATCHDOG=trigger"), now)
            }
            Purpose::Alive if has("WATCHDOG=1") => entry.ended(Outcome::Holds, now),
            _ => {}
        }
    }
}

/// Whether a notification has this line.
pub fn has_line(message: &[u8], line: &str) -> bool {
    message
        .split(|byte| *byte == b'\n')
        .any(|other| other == line.as_bytes())
}

impl Entry {
    fn begin(&mut self, now: Instant) {
        (self.next, self.began) = (None, now);
        // The time of a command is limited where it runs.
        let limited = !matches!(self.order.check, Check::Exec(_));
        self.overdue = limited.then(|| now + self.order.pace.timeout);
    }

    fn ended(&mut self, outcome: Outcome, now: Instant) {
        let polled = self.order.check != Check::Notify;
        self.overdue = (!polled && self.order.purpose == Purpose::Alive)
            .then(|| now + self.order.pace.timeout);
        self.next = polled.then(|| self.next_at(now));
        let outcome = match outcome {
            // What is gone does not answer at all.
            Outcome::Fails { answered: true, .. } if self.order.purpose == Purpose::Gone => {
                Outcome::Holds
            }
            outcome => outcome,
        };
        let holds = outcome == Outcome::Holds;
        self.attempts = self.attempts.saturating_add(1);
        self.in_a_row = if self.holds == Some(holds) {
            self.in_a_row.saturating_add(1)
        } else {
            1
        };
        self.holds = Some(holds);
        let enough = if holds {
            Some(self.order.successes)
        } else {
            self.order.failures
        };
        let is_verdict =
            enough.is_some_and(|enough| self.in_a_row >= enough) && self.verdict != Some(holds);
        if is_verdict {
            self.verdict = Some(holds);
        }
        if is_verdict || self.is_worth_reporting(&outcome, now) {
            self.reported = Some((outcome.clone(), now));
            let (in_a_row, attempts) = (self.in_a_row, self.attempts);
            (self.order.reply)(ProbeReport {
                key: self.order.key,
                outcome,
                in_a_row,
                attempts,
                is_verdict,
            });
        }
    }

    fn next_at(&self, now: Instant) -> Instant {
        // Checks of one workload by a command are at least this far apart: each is a process, and
        // one of the engine's.
        let spacing = if matches!(self.order.check, Check::Exec(_)) {
            Duration::from_secs(1)
        } else {
            Duration::ZERO
        };
        (now + self.order.pace.period).max(self.began + spacing)
    }

    /// Whether the result is new, or a failure that lasts. Lasting success is not reported.
    fn is_worth_reporting(&self, outcome: &Outcome, now: Instant) -> bool {
        let repeats = *outcome != Outcome::Holds || self.order.purpose == Purpose::Gone;
        let Some((reported, at)) = &self.reported else {
            return repeats;
        };
        let age = now.saturating_duration_since(*at);
        // A new result at once, but each report goes to the whole cluster; the same failure again
        // with the number of attempts.
        (reported != outcome && age >= Duration::from_secs(1))
            || (repeats && age >= Duration::from_secs(5))
    }
}

#[cfg(test)]
mod tests;
