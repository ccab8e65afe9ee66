//! What the scheduler keeps, as the simulation inspects it. Only in development builds.
//!
//! Thread: `scheduler`, or that of a test.

use super::{Waits, WorkloadRecords};
use crate::workload::mailbox::RunTarget;
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::Name;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_platform::clock::Clock;
use std::collections::BTreeSet;

impl<C: Clock> WorkloadRecords<C> {
    /// The numbers of records, of waiting workloads, and of workloads with conditions.
    pub(crate) fn sizes(&self) -> [usize; 3] {
        let mut waiting = 0;
        let mut with_conditions = 0;
        for record in self.records.values() {
            if record.waits != Waits::No {
                waiting += 1;
            }
            if record.conditions.is_some() {
                with_conditions += 1;
            }
        }
        [self.records.len(), waiting, with_conditions]
    }

    /// The workloads that have a control loop.
    pub(crate) fn loops(&self) -> BTreeSet<Name> {
        let mut loops = BTreeSet::new();
        for (name, record) in &self.records {
            if record.control_loop.is_some() {
                loops.insert(name.clone());
            }
        }
        loops
    }

    /// Whether a control loop has to start this, or to prepare it at least this far.
    pub(crate) fn prepares(&self, added: &AddedWorkload, level: PrepareLevel) -> bool {
        let Some(record) = self.records.get(&added.instance.workload) else {
            return false;
        };
        let Some(control_loop) = &record.control_loop else {
            return false;
        };
        let target = &control_loop.target;
        let is_next = match &target.next {
            Some(next) => next.added == *added && next.level >= level,
            None => false,
        };
        is_next || target.run.added() == Some(added)
    }

    /// Whether the control loop of a workload has to run this instance, or keeps a found container.
    pub(crate) fn may_run(&self, added: &AddedWorkload) -> bool {
        let Some(record) = self.records.get(&added.instance.workload) else {
            return false;
        };
        let Some(control_loop) = &record.control_loop else {
            return false;
        };
        match &control_loop.target.run {
            RunTarget::Nothing => false,
            RunTarget::Found => true,
            RunTarget::Instance(runs) => runs == added,
        }
    }

    /// The number of the newest target of a control loop.
    pub(crate) fn target_number(&self, workload: &Name) -> Option<u64> {
        let control_loop = self.records.get(workload)?.control_loop.as_ref()?;
        Some(control_loop.target.number)
    }
}
