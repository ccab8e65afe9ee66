//! What was prepared of a start, and how a preparation ended.
//!
//! Thread: none, plain values; made by `prep:<name>`, kept by `scheduler`, used up by `wl:<name>`.

use super::host_paths::HostPaths;
use crate::model::names::{InstanceName, Name};
use crate::model::prepare_level::PrepareLevel;
use crate::model::workload::Workload;
use crate::runtime::ContainerId;
use crate::runtime::command::reason;
use std::sync::Arc;

/// A container that was created and not started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedContainer {
    /// Which one.
    pub id: ContainerId,
    /// `CREATE` or `INIT`.
    pub level: PrepareLevel,
    /// The host paths that its arguments name, as they were when it was created.
    pub paths: HostPaths,
}

/// What a control loop gets of what was prepared.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// The container to start.
    pub container: Option<PreparedContainer>,
    /// A create failed, so something of it may be left.
    pub unsure: bool,
}

/// What has to be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// Whose container it is.
    pub instance: InstanceName,
    /// Which runtime has it.
    pub runtime: Name,
    /// What it was created from, if that is known.
    pub workload: Option<Arc<Workload>>,
    /// Which one; `None` when it is not known whether there is one.
    pub container: Option<ContainerId>,
    /// Others of the instance may be there: a create was cut short.
    pub search: bool,
}

/// How a job ended.
#[derive(Debug)]
pub struct JobReport {
    /// Of which workload.
    pub workload: Name,
    /// Which of its jobs.
    pub number: u64,
    /// What came of it.
    pub result: Result<JobDone, JobFailure>,
}

/// What a job has reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobDone {
    /// This much is prepared.
    Prepared {
        /// The level.
        level: PrepareLevel,
        /// The container, from `CREATE` on.
        container: Option<PreparedContainer>,
    },
    /// What was to be removed is gone.
    Removed,
}

/// Why a job failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFailure {
    /// The whole text, for the log.
    pub cause: String,
    /// The reason in it, for states: see [`reason`].
    pub reason: String,
    /// Only an update helps.
    pub is_final: bool,
    /// It was cancelled, so this is no failure.
    pub cancelled: bool,
    /// Whatever was created must be searched and removed.
    pub search: bool,
}

impl JobFailure {
    /// Another try may succeed.
    #[must_use]
    pub fn for_now(cause: String) -> Self {
        Self { reason: reason(&cause), cause, is_final: false, cancelled: false, search: false }
    }
}
