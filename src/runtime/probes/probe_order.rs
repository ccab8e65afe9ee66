//! An order as the tests of this folder give it.
//!
//! Thread: the one of the test.

use super::{ProbeOrder, ProbeReport, Purpose};
use crate::ProbeTarget;
use ankaios_model::lifecycle::{Check, Pace};
use ankaios_model::names::InstanceName;
use crossbeam_channel::Sender;

/// An order to probe the workload `w`. One result is a verdict, and no process of its container is
/// known.
pub(crate) fn probe_order(
    purpose: Purpose,
    check: Check,
    pace: Pace,
    reports: &Sender<ProbeReport>,
) -> ProbeOrder {
    let reports = reports.clone();
    ProbeOrder {
        key: 1,
        instance: InstanceName::with_id("w", "id", "A"),
        purpose,
        check,
        pace,
        successes: 1,
        failures: Some(1),
        target: ProbeTarget::default(),
        notify: None,
        unarmed: false,
        reply: Box::new(move |report| _ = reports.send(report)),
    }
}
