//! Probes of workloads in virtual time: the real table of probes, with outcomes of a test or of an
//! engine.
//!
//! Thread: the one of the test.

use super::manual_clock::ManualClock;
use ankaios_platform::clock::Clock;
use ankaios_runtime::probes::table::{ProbeIo, ProbeTable};
use ankaios_runtime::probes::{Outcome, ProbeOrder, Probes, Purpose};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// Returns the outcome of a probe.
pub type Answers = Box<dyn FnMut(&ProbeOrder) -> Outcome + Send>;

/// Probes when it is stepped.
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
    /// Probes with the outcomes that `answers` returns.
    pub fn new(clock: &ManualClock, answers: Answers) -> Arc<Self> {
        Arc::new(Self {
            clock: clock.clone(),
            table: Mutex::new(ProbeTable::new(FakeIo { answers })),
        })
    }

    /// Probes with the outcomes that are set in the returned answers.
    pub fn settable(clock: &ManualClock) -> (Arc<Self>, ProbeAnswers) {
        let answers = ProbeAnswers::default();
        let of_probes = answers.clone();
        let probes = Self::new(clock, Box::new(move |order| of_probes.of(order)));
        (probes, answers)
    }

    fn table(&self) -> MutexGuard<'_, ProbeTable<FakeIo>> {
        self.table.lock().unwrap()
    }

    /// The time of the next probe.
    pub fn due(&self) -> Option<Instant> {
        self.table().due()
    }

    /// Makes the probes that are due. Returns whether there were any.
    pub fn step(&self) -> bool {
        let now = self.clock.now();
        let mut table = self.table();
        let Some(due) = table.due() else {
            return false;
        };
        if due > now {
            return false;
        }
        table.turn(now);
        true
    }

    /// Sends a message of the workload to its notify socket.
    pub fn notify(&self, workload: &str, message: &str) {
        let mut table = self.table();
        let mut keys = Vec::new();
        for order in table.orders() {
            if *order.instance.workload == *workload {
                keys.push(order.key);
            }
        }
        for key in keys {
            table.notified(key, message.as_bytes(), self.clock.now());
        }
    }

    /// The orders, for example `ready of db`.
    pub fn orders(&self) -> Vec<String> {
        let mut texts = Vec::new();
        for order in self.table().orders() {
            let purpose = format!("{:?}", order.purpose).to_lowercase();
            texts.push(format!("{purpose} of {}", order.instance.workload));
        }
        texts
    }
}

/// The outcomes of probes. A probe whose outcome was not set fails.
#[derive(Clone, Default)]
pub struct ProbeAnswers {
    set: Arc<Mutex<BTreeMap<(String, Purpose), Outcome>>>,
}

impl ProbeAnswers {
    /// Sets the outcome of probes of this workload.
    pub fn set(&self, workload: &str, purpose: Purpose, outcome: Outcome) {
        let mut set = self.set.lock().unwrap();
        set.insert((workload.to_owned(), purpose), outcome);
    }

    /// Sets whether probes of this workload succeed.
    pub fn holds(&self, workload: &str, purpose: Purpose, holds: bool) {
        let outcome = if holds {
            Outcome::Holds
        } else {
            Outcome::fails("refused")
        };
        self.set(workload, purpose, outcome);
    }

    fn of(&self, order: &ProbeOrder) -> Outcome {
        let key = (order.instance.workload.to_string(), order.purpose);
        match self.set.lock().unwrap().get(&key) {
            Some(outcome) => outcome.clone(),
            None => Outcome::fails("refused"),
        }
    }

    /// Copies the outcomes that were set for another agent.
    pub fn take_over(&self, other: &Self) {
        let set = other.set.lock().unwrap().clone();
        *self.set.lock().unwrap() = set;
    }
}
