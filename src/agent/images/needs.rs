//! What the scheduler says about the workloads whose images must stay.
//!
//! Thread: plain values; made by `scheduler`, read by `images`.

use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::Name;
use std::collections::BTreeMap;

/// The needs of all workloads of the agent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ImageNeeds {
    /// What is desired is known: the server is connected, and engines have listed their containers.
    pub(crate) is_settled: bool,
    /// A guarded update is open, so each image may be needed for its rollback.
    pub(crate) is_update_open: bool,
    pub(crate) workloads: BTreeMap<Name, NeededInstances>,
}

/// The needs of one workload.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NeededInstances {
    pub(crate) desired: Option<AddedWorkload>,
    /// What is staged, prepared or there.
    pub(crate) others: Vec<AddedWorkload>,
    /// What has a container that was started.
    pub(crate) started: Vec<AddedWorkload>,
}
