//! The workloads whose images must stay, as the scheduler reports them.
//!
//! Thread: plain values; made by `scheduler`, read by `images`.

use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::Name;
use std::collections::BTreeMap;

/// The needs of all workloads of the agent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ImageNeeds {
    /// The desired workloads are known: the server is connected, and engines have listed their
    /// containers.
    pub(crate) is_settled: bool,
    /// A guarded update is open, so each image may be needed for its rollback.
    pub(crate) is_update_open: bool,
    pub(crate) workloads: BTreeMap<Name, NeededInstances>,
}

/// The needs of one workload.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NeededInstances {
    pub(crate) desired: Option<AddedWorkload>,
    /// Instances that are staged, prepared or present.
    pub(crate) others: Vec<AddedWorkload>,
    /// Instances with a container that was started.
    pub(crate) started: Vec<AddedWorkload>,
}
