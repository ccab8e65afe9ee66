//! When probes are made and which results are reported, with a manual clock.

use super::*;
use crate::probes::probe_order::probe_order;
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::lifecycle::Pace;
use ankaios_platform::clock::Clock;
use crossbeam_channel::{Receiver, bounded};

#[derive(Default)]
struct Io {
    /// The result of a probe at once; `None` if it comes later.
    answer: Option<Outcome>,
    begun: u32,
    abandoned: u32,
}

impl ProbeIo for Io {
    fn begin(&mut self, _order: &ProbeOrder) -> Option<Outcome> {
        self.begun += 1;
        self.answer.clone()
    }

    fn abandon(&mut self, _key: u64) {
        self.abandoned += 1;
    }
}

struct Rig {
    table: ProbeTable<Io>,
    clock: ManualClock,
    reports: Receiver<ProbeReport>,
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

impl Rig {
    fn new(check: Check, change: impl FnOnce(&mut ProbeOrder)) -> Self {
        let (sender, reports) = bounded(1000);
        let pace = Pace {
            initial_delay: ms(0),
            period: ms(1_000),
            timeout: ms(200),
        };
        let mut order = ProbeOrder {
            failures: Some(2),
            ..probe_order(Purpose::Alive, check, pace, &sender)
        };
        change(&mut order);
        let clock = ManualClock::new();
        let mut table = ProbeTable::new(Io::default());
        table.watch(order, clock.now());
        Self {
            table,
            clock,
            reports,
        }
    }

    fn file(change: impl FnOnce(&mut ProbeOrder)) -> Self {
        Self::new(Check::File("/up".to_owned()), change)
    }

    fn pass(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds / 10 {
            self.clock.advance(ms(10));
            self.table.turn(self.clock.now());
        }
    }

    fn verdicts(&self) -> Vec<bool> {
        self.reports
            .try_iter()
            .filter(|report| report.is_verdict)
            .map(|report| report.outcome == Outcome::Holds)
            .collect()
    }
}

// [utest->swdd~agent-lifecycle-probes~1]
#[test]
fn probe_above_its_timeout_fails_and_never_overlaps_the_next() {
    let mut rig = Rig::file(|_| {});
    rig.pass(190);
    assert_eq!((rig.table.io.begun, rig.table.io.abandoned), (1, 0));
    rig.pass(30);
    assert_eq!((rig.table.io.begun, rig.table.io.abandoned), (1, 1));
    let report = rig.reports.try_recv().unwrap();
    assert_eq!(report.outcome, Outcome::fails("no answer within 200 ms"));
    // The period counts from the end.
    rig.pass(950);
    assert_eq!(rig.table.io.begun, 1);
    rig.pass(50);
    assert_eq!(rig.table.io.begun, 2);
}

#[test]
fn success_and_failure_reset_each_other_and_report_once() {
    let mut rig = Rig::file(|order| (order.successes, order.failures) = (2, Some(3)));
    let mut verdicts = Vec::new();
    for holds in [
        true, false, true, true, true, false, false, true, false, false, false, false, true, true,
    ] {
        rig.table.io.answer = Some(if holds {
            Outcome::Holds
        } else {
            Outcome::fails("refused")
        });
        rig.pass(1_000);
        verdicts.extend(rig.verdicts());
    }
    assert_eq!(verdicts, [true, false, true]);
}

#[test]
fn expected_result_is_not_reported_and_failures_at_intervals() {
    let mut rig = Rig::file(|order| order.pace.period = ms(100));
    rig.table.io.answer = Some(Outcome::Holds);
    rig.pass(60_000);
    assert_eq!(rig.reports.try_iter().count(), 1, "the first one");
    rig.table.io.answer = Some(Outcome::fails("refused"));
    let mut told = 0;
    for _ in 0..60 {
        rig.pass(1_000);
        told += rig.reports.try_iter().count();
    }
    assert!((10..=14).contains(&told), "{told}");
}

#[test]
fn commands_are_at_least_a_second_apart() {
    let mut rig = Rig::new(Check::Exec(vec!["true".to_owned()]), |order| {
        order.pace.period = ms(50)
    });
    rig.table.io.answer = Some(Outcome::Holds);
    rig.pass(10_000);
    assert!(
        (9..=11).contains(&rig.table.io.begun),
        "{}",
        rig.table.io.begun
    );
}

#[test]
fn any_answer_means_that_it_is_not_gone() {
    let mut rig = Rig::file(|order| (order.purpose, order.failures) = (Purpose::Gone, Some(1)));
    rig.table.io.answer = Some(Outcome::Fails {
        reason: "status 500".to_owned(),
        answered: true,
    });
    rig.pass(100);
    assert_eq!(rig.reports.try_recv().unwrap().outcome, Outcome::Holds);
    rig.table.io.answer = Some(Outcome::fails("refused"));
    rig.pass(2_000);
    assert_eq!(rig.verdicts(), [false]);
}

#[test]
fn watchdog_fails_if_late_and_waits_for_the_first_message() {
    for unarmed in [false, true] {
        let mut rig = Rig::new(Check::Notify, |order| {
            (order.unarmed, order.failures) = (unarmed, Some(1))
        });
        rig.pass(1_000);
        assert_eq!(rig.verdicts(), if unarmed { vec![] } else { vec![false] });
        rig.table.notified(1, b"WATCHDOG=1", rig.clock.now());
        rig.pass(150);
        rig.table
            .notified(1, b"STATUS=x\nWATCHDOG=1", rig.clock.now());
        rig.pass(150);
        assert_eq!(rig.verdicts(), [true]);
        rig.pass(100);
        assert_eq!(rig.verdicts(), [false]);
        assert_eq!(rig.table.io.begun, 0, "no probe is made");
    }
}

#[test]
fn what_is_not_wanted_any_more_is_not_asked_again() {
    let mut rig = Rig::file(|_| {});
    rig.pass(50);
    rig.table.unwatch(1);
    rig.table.ended(1, Outcome::Holds, rig.clock.now());
    rig.pass(5_000);
    assert_eq!(
        (
            rig.table.io.begun,
            rig.table.io.abandoned,
            rig.reports.len()
        ),
        (1, 1, 0)
    );
    assert_eq!(rig.table.due(), None);
}
