//! Which instances were found ready. The results of their checks are counted here once more, apart
//! from the agents.
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
    pub(crate) fn starts_anew(&mut self, new: &NewContainer) {
        self.found.remove(&new.instance);
        let mut wanted = 1;
        if new.workload.runtime_config.contains("successThreshold: 2") {
            wanted = 2;
        }
        self.wanted.insert(new.instance.clone(), wanted);
    }

    /// Takes the result of a probe that one life of an agent has ordered.
    pub(crate) fn note(&mut self, life: u64, order: &ProbeOrder, holds: bool) {
        let found = self.found.entry(order.instance.clone()).or_default();
        if found.life != life {
            *found = Found {
                life,
                ..Found::default()
            };
        }
        let wanted = self.wanted.get(&order.instance).copied().unwrap_or(1);
        found.in_a_row = if holds { found.in_a_row + 1 } else { 0 };
        if found.in_a_row >= wanted {
            found.is_ready = true;
        }
    }

    /// Returns whether that life has found the instance ready since its last start.
    pub(crate) fn is_ready(&self, life: u64, instance: &InstanceName) -> bool {
        match self.found.get(instance) {
            Some(found) => found.life == life && found.is_ready,
            None => false,
        }
    }
}
