//! What the scheduler reacts to.
//!
//! Thread: plain values; sent by `rx:server`, `uplink`, `wl:*`, `watch:*`, `metrics` and `images`,
//! received by `scheduler`.

use super::images::needs::ImageNeeds;
use super::state_checker::ListResult;
use super::workload::status::Status;
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::messages::{AddedWorkload, FromServer};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::reason::Reason;
use ankaios_runtime::probes::short_info;
use crossbeam_channel::Sender;

/// An event for the scheduler.
#[derive(Debug)]
pub enum SchedulerEvent {
    /// A message of the server.
    Server(FromServer),
    /// The connection to the server was lost.
    ServerGone,
    /// A control loop reports what there is of its workload.
    Status {
        /// Name of the workload.
        workload: Name,
        /// What there is of it.
        status: Status,
    },
    /// The containers of an engine.
    Listed {
        /// Name of the runtime.
        runtime: Name,
        /// The containers, or why the engine could not list them.
        result: ListResult,
    },
    /// A requested log has nothing to be read from: the engine has no container of the instance.
    NoLog {
        /// The full id of the request.
        request_id: String,
        /// Whose log is requested.
        instance: InstanceName,
    },
    /// The overview for the metrics is wanted there.
    Overview(Sender<Overview>),
    /// Which images workloads need is wanted there.
    ImageNeeds(Sender<ImageNeeds>),
}

/// How far something is prepared.
#[derive(Debug, Clone, PartialEq)]
pub struct PreparationReport {
    pub(crate) added: AddedWorkload,
    /// As far as it may be.
    pub(crate) done: Option<PrepareLevel>,
    /// Why the last try failed, and how many did.
    pub(crate) failure: Option<(String, u32)>,
    /// There is no further try.
    pub(crate) is_final: bool,
    /// What is shown of it while it waits.
    pub(crate) note: Note,
}

/// What is shown of an instance beside its phase.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) reason: Reason,
    pub(crate) prepared: PrepareLevel,
    pub(crate) text: String,
}

impl Note {
    pub(crate) fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self {
            reason,
            text: text.into(),
            ..Self::default()
        }
    }

    /// The state with this note; a long text is cut.
    pub(crate) fn state(self, phase: Phase) -> ExecutionState {
        let mut state = ExecutionState::with_info(phase, short_info(self.text));
        state.reason = self.reason;
        state.prepared = self.prepared;
        state
    }
}

/// What the scheduler knows for the metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overview {
    /// Whether the server has sent its hello on the present connection.
    pub(crate) connected: bool,
    /// The workloads that are to run.
    pub(crate) workloads: Vec<WorkloadOverview>,
}

/// One workload that is to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorkloadOverview {
    /// The instance that is to run.
    pub(crate) instance: InstanceName,
    /// The runtime that is to run it, as in its manifest.
    pub(crate) runtime: Name,
    /// The name of its state; `None` when it has none yet.
    pub(crate) state: Option<&'static str>,
    /// How often it was killed for want of memory.
    pub(crate) out_of_memory: u64,
}
