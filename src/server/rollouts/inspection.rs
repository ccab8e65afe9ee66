//! Guarded updates as tests and the simulation inspect them. Only in development builds.
//!
//! Thread: that of a test.

use super::{OpenUpdate, UpdateRecord};
use crate::ServerLoop;
use ankaios_model::execution_state::WorkloadState;
use ankaios_model::guarded_update::UpdatePhase;
use ankaios_model::names::Name;
use ankaios_model::workload::Workload;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// An update as tests and the simulation inspect it.
#[derive(Debug, Clone)]
pub struct SeenUpdate {
    /// How far it is.
    pub phase: UpdatePhase,
    /// Its workloads.
    pub names: BTreeSet<Name>,
    /// Workloads and agents.
    pub waits_for: Vec<String>,
    /// Workloads whose new revision is not active.
    pub pending: BTreeSet<Name>,
    /// What was desired before.
    pub ways_back: BTreeMap<Name, Option<Arc<Workload>>>,
}

impl ServerLoop {
    /// All updates by number.
    pub fn seen_updates(&self) -> BTreeMap<u64, SeenUpdate> {
        let seen = |(record, open): (&UpdateRecord, Option<&OpenUpdate>)| {
            let workloads = &record.change_set.workloads;
            let ways_back = workloads
                .iter()
                .map(|(name, affected)| (name.clone(), affected.before.desired.clone()));
            let pending = workloads
                .iter()
                .filter(|(_, affected)| affected.active.is_some());
            let waits_for = |open| self.rollouts.waits_for(open, self.now());
            let update = SeenUpdate {
                phase: record.phase,
                names: workloads.keys().cloned().collect(),
                waits_for: open.map(waits_for).unwrap_or_default(),
                pending: pending.map(|(name, _)| name.clone()).collect(),
                ways_back: ways_back.collect(),
            };
            (record.number, update)
        };
        self.rollouts.records().map(seen).collect()
    }

    /// All states as agents know them.
    pub fn reported_states(&self) -> Vec<WorkloadState> {
        self.updates.workloads().reported_states()
    }
}
