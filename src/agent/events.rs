//! The events of the scheduler.
//!
//! Thread: plain values; sent by `rx:server`, `uplink`, `wl:*`, `watch`, `metrics` and `images`,
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
use std::sync::Arc;

/// An event for the scheduler.
#[derive(Debug)]
pub enum SchedulerEvent {
    /// A message of the server.
    Server(FromServer),
    /// The connection to the server was lost.
    ServerGone,
    /// The status of a control loop.
    Status {
        /// Name of the workload.
        workload: Name,
        /// All that there is of it. The control loop shares it, to compare the next one with it.
        status: Arc<Status>,
    },
    /// The containers of an engine.
    Listed {
        /// Name of the runtime.
        runtime: Name,
        /// The containers, or why the engine could not list them.
        result: ListResult,
    },
    /// A requested log cannot be read: the engine has no container of the instance.
    NoLog {
        /// The full id of the request.
        request_id: String,
        /// The instance whose log is requested.
        instance: InstanceName,
    },
    /// A request of `metrics` for the overview.
    Overview(Sender<Overview>),
    /// A request of `images` for the images that workloads need.
    ImageNeeds(Sender<ImageNeeds>),
}

/// How far an instance is prepared.
#[derive(Debug, Clone, PartialEq)]
pub struct PreparationReport {
    pub(crate) added: AddedWorkload,
    /// The highest allowed level, if it is reached.
    pub(crate) done: Option<PrepareLevel>,
    /// The number of tries that failed since the last success.
    pub(crate) failures: u32,
    /// Why the last of them failed.
    pub(crate) failure: String,
    /// No further try follows.
    pub(crate) is_final: bool,
    /// The note beside its phase while it waits.
    pub(crate) note: Note,
}

/// The part of a shown state beside its phase.
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

/// The state of the agent for the metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overview {
    /// Whether the server has sent its hello on the present connection.
    pub(crate) connected: bool,
    /// The desired workloads.
    pub(crate) workloads: Vec<WorkloadOverview>,
}

/// One desired workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorkloadOverview {
    /// The desired instance.
    pub(crate) instance: InstanceName,
    /// The runtime in its manifest.
    pub(crate) runtime: Name,
    /// The name of its state; `None` when it has none yet.
    pub(crate) state: Option<&'static str>,
    /// How often it was killed because memory ran out.
    pub(crate) out_of_memory: u64,
}
