//! Guarded updates as tests and the simulation inspect them. Only in development builds.
//!
//! Thread: that of a test.

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
    pub phase: UpdatePhase,
    /// The reason of its outcome; of an open one, why it will be kept although it failed.
    pub reason: Option<String>,
    /// Names of its workloads.
    pub names: BTreeSet<Name>,
    /// The workloads and agents that it waits for.
    pub waits_for: Vec<String>,
    /// Workloads whose new revision is not active.
    pub pending: BTreeSet<Name>,
    /// The desired workloads from before it; `None` where it has added one.
    pub ways_back: BTreeMap<Name, Option<Arc<Workload>>>,
}

impl ServerLoop {
    /// All updates by number.
    pub fn seen_updates(&self) -> BTreeMap<u64, SeenUpdate> {
        let mut all = BTreeMap::new();
        for (record, open) in self.rollouts.records() {
            let mut update = SeenUpdate {
                phase: record.phase,
                reason: record.reason.clone(),
                names: BTreeSet::new(),
                waits_for: Vec::new(),
                pending: BTreeSet::new(),
                ways_back: BTreeMap::new(),
            };
            for (name, affected) in &record.change_set.workloads {
                update.names.insert(name.clone());
                let before = affected.before.desired.clone();
                update.ways_back.insert(name.clone(), before);
                if affected.active.is_some() {
                    update.pending.insert(name.clone());
                }
            }
            if let Some(open) = open {
                update.waits_for = self.rollouts.waits_for(open, self.now());
            }
            all.insert(record.number, update);
        }
        all
    }

    /// The states of all instances, except for those that only this server has set.
    pub fn reported_states(&self) -> Vec<WorkloadState> {
        self.updates.workloads().reported_states()
    }
}
