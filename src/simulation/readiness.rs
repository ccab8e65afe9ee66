//! Which instances were found ready, counted as their blocks say and whatever the agents count.
//!
//! Thread: the one of the test.

use ankaios_model::names::InstanceName;
use ankaios_runtime::NewContainer;
use ankaios_runtime::probes::ProbeOrder;
use std::collections::BTreeMap;

/// What the checks of instances have found since their last starts.
#[derive(Default)]
pub(crate) struct Readiness {
    found: BTreeMap<InstanceName, Found>,
    /// Successes in a row that each needs.
    wanted: BTreeMap<InstanceName, u32>,
}

#[derive(Default)]
struct Found {
    life: u64,
    in_a_row: u32,
    is_ready: bool,
}

impl Readiness {
    /// Forgets the results before a start.
    pub(crate) fn starts_anew(
        &mut self,
        NewContainer {
            instance, workload, ..
        }: &NewContainer,
    ) {
        self.found.remove(instance);
        let wanted = if workload.runtime_config.contains("successThreshold: 2") {
            2
        } else {
            1
        };
        self.wanted.insert(instance.clone(), wanted);
    }

    /// One life of an agent has asked.
    pub(crate) fn note(&mut self, life: u64, order: &ProbeOrder, holds: bool) {
        let found = self.found.entry(order.instance.clone()).or_default();
        if found.life != life {
            *found = Found {
                life,
                ..Found::default()
            };
        }
        found.in_a_row = if holds { found.in_a_row + 1 } else { 0 };
        found.is_ready |= found.in_a_row >= self.wanted.get(&order.instance).copied().unwrap_or(1);
    }

    /// Whether that life has found the instance ready since its last start.
    pub(crate) fn is_ready(&self, life: u64, instance: &InstanceName) -> bool {
        self.found
            .get(instance)
            .is_some_and(|found| found.life == life && found.is_ready)
    }
}
