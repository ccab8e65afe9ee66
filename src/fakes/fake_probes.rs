//! Checks of workloads in virtual time: the real table of checks, and answers that a test or an
//! engine gives.
//!
//! Thread: the one of the test.

use super::manual_clock::ManualClock;
use ankaios_platform::clock::Clock;
use ankaios_runtime::probes::table::{ProbeIo, ProbeTable};
use ankaios_runtime::probes::{Outcome, ProbeOrder, Probes, Purpose};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// Says what a check comes to.
pub type Answers = Box<dyn FnMut(&ProbeOrder) -> Outcome + Send>;

/// Checks when it is stepped.
pub struct FakeProbes {
    clock: ManualClock,
    table: Mutex<ProbeTable<FakeIo>>,
}

struct FakeIo {
    answers: Answers,
}

impl ProbeIo for FakeIo {
    fn begin(&mut self, order: &ProbeOrder) -> Option<Outcome> {
        Some((self.answers)(order))
    }

    fn abandon(&mut self, _key: u64) {}
}

impl Probes for FakeProbes {
    fn watch(&self, order: ProbeOrder) {
        self.table().watch(order, self.clock.now());
    }

    fn unwatch(&self, key: u64) {
        self.table().unwatch(key);
    }
}

impl FakeProbes {
    /// Checks come to what `answers` says.
    pub fn new(clock: &ManualClock, answers: Answers) -> Arc<Self> {
        Arc::new(Self {
            clock: clock.clone(),
            table: Mutex::new(ProbeTable::new(FakeIo { answers })),
        })
    }

    /// Checks have the outcome that was set last for the workload.
    pub fn settable(clock: &ManualClock) -> (Arc<Self>, ProbeAnswers) {
        let answers = ProbeAnswers::default();
        let for_io = answers.clone();
        (
            Self::new(clock, Box::new(move |order| for_io.of(order))),
            answers,
        )
    }

    fn table(&self) -> MutexGuard<'_, ProbeTable<FakeIo>> {
        self.table.lock().unwrap()
    }

    /// When there is something to check.
    pub fn due(&self) -> Option<Instant> {
        self.table().due()
    }

    /// Makes the checks that are due. Returns whether there were any.
    pub fn step(&self) -> bool {
        let now = self.clock.now();
        let mut table = self.table();
        let is_due = table.due().is_some_and(|due| due <= now);
        if is_due {
            table.turn(now);
        }
        is_due
    }

    /// The workload says something on its notify socket.
    pub fn notify(&self, workload: &str, message: &str) {
        let mut table = self.table();
        let keys: Vec<u64> = table
            .orders()
            .filter(|order| *order.instance.workload == *workload)
            .map(|order| order.key)
            .collect();
        for key in keys {
            table.notified(key, message.as_bytes(), self.clock.now());
        }
    }

    /// The checks, for example `ready of db`.
    pub fn orders(&self) -> Vec<String> {
        let text = |order: &ProbeOrder| {
            format!(
                "{} of {}",
                format!("{:?}", order.purpose).to_lowercase(),
                order.instance.workload
            )
        };
        self.table().orders().map(text).collect()
    }
}

/// What checks come to. Until something was set, nothing answers.
#[derive(Clone, Default)]
pub struct ProbeAnswers {
    set: Arc<Mutex<BTreeMap<(String, Purpose), Outcome>>>,
}

impl ProbeAnswers {
    /// Sets the outcome of a check of this workload.
    pub fn set(&self, workload: &str, purpose: Purpose, outcome: Outcome) {
        self.set
            .lock()
            .unwrap()
            .insert((workload.to_owned(), purpose), outcome);
    }

    /// Sets whether a check of this workload holds.
    pub fn holds(&self, workload: &str, purpose: Purpose, holds: bool) {
        self.set(
            workload,
            purpose,
            if holds {
                Outcome::Holds
            } else {
                Outcome::fails("refused")
            },
        );
    }

    fn of(&self, order: &ProbeOrder) -> Outcome {
        let key = (order.instance.workload.to_string(), order.purpose);
        self.set
            .lock()
            .unwrap()
            .get(&key)
            .cloned()
            .unwrap_or_else(|| Outcome::fails("refused"))
    }
}

impl ProbeAnswers {
    /// Takes the outcomes over that were set for another agent.
    pub fn take_over(&self, other: &Self) {
        let set = other.set.lock().unwrap().clone();
        *self.set.lock().unwrap() = set;
    }
}
