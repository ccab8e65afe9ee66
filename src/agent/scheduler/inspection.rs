//! The agent as the simulation inspects it. Only in development builds.
//!
//! Thread: `scheduler`, or that of a test.

use super::Scheduler;
use ankaios_model::execution_state::ExecutionState;
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_platform::clock::Clock;
use std::collections::BTreeSet;

impl<C: Clock> Scheduler<C> {
    /// The numbers of workloads, of waiting ones, and of those with conditions.
    pub fn sizes(&self) -> [usize; 3] {
        self.workloads.sizes()
    }

    /// The states of all workloads known to this agent.
    pub fn known_states(&self) -> impl Iterator<Item = (&InstanceName, &ExecutionState)> {
        self.workloads.store.iter()
    }

    /// The workloads that have a control loop.
    pub fn loops(&self) -> BTreeSet<Name> {
        self.workloads.loops()
    }

    /// Whether a control loop has to start this, or to prepare it at least this far.
    pub fn prepares(&self, added: &AddedWorkload, level: PrepareLevel) -> bool {
        self.workloads.prepares(added, level)
    }

    /// Whether the control loop of a workload has to run this instance, or keeps a found container.
    pub fn may_run(&self, added: &AddedWorkload) -> bool {
        self.workloads.may_run(added)
    }

    /// The number of the newest target of a control loop.
    pub fn target_number(&self, workload: &Name) -> Option<u64> {
        self.workloads.target_number(workload)
    }

    /// Whether listed containers wait until all engines have listed.
    pub fn awaits_listings(&self) -> bool {
        self.workloads.awaits_listings
    }
}
