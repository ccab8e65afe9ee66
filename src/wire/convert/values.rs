//! What several messages contain: enumerations, instance names, execution states and logs.
//!
//! Thread: whichever reads or writes the stream.

use super::ConvertError;
use crate::limits::STATE_INFO_MAX;
use crate::model::access_rules::Operation;
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::messages::{LogEntry, LogsRequest};
use crate::model::names::InstanceName;
use crate::model::workload::{AddCondition, DeleteCondition, RestartPolicy};
use crate::wire::schema::ank_base as base;
use crate::wire::schema::grpc_api;
use base::execution_state::ExecutionStateEnum;
use protobuf::{Enum, EnumOrUnknown, MessageField};

// ------------------------------------------------------------ enumerations

/// The value of a field, unless it is a number without meaning.
pub fn known<E: Enum>(value: EnumOrUnknown<E>) -> Result<E, ConvertError> {
    value.enum_value().map_err(ConvertError::unknown_enum)
}

/// Both directions of an enumeration. The compiler checks that no value is missing on either side.
macro_rules! enumeration {
    ($ours:ty, $wire:ty: $($our:ident = $their:ident),+) => {
        impl From<$ours> for $wire {
            fn from(value: $ours) -> Self {
                type Ours = $ours;
                match value {
                    $(Ours::$our => Self::$their),+
                }
            }
        }

        impl From<$wire> for $ours {
            fn from(value: $wire) -> Self {
                type Wire = $wire;
                match value {
                    $(Wire::$their => Self::$our),+
                }
            }
        }
    };
}

enumeration!(AddCondition, base::AddCondition:
    Running = ADD_COND_RUNNING, Succeeded = ADD_COND_SUCCEEDED, Failed = ADD_COND_FAILED);
enumeration!(DeleteCondition, grpc_api::DeleteCondition:
    Running = DEL_COND_RUNNING, NotPendingNorRunning = DEL_COND_NOT_PENDING_NOR_RUNNING);
enumeration!(RestartPolicy, base::RestartPolicy: Never = NEVER, OnFailure = ON_FAILURE, Always = ALWAYS);
enumeration!(Operation, base::ReadWriteEnum:
    Nothing = RW_NOTHING, Read = RW_READ, Write = RW_WRITE, ReadWrite = RW_READ_WRITE);

/// Both directions of the phases: of each state of the schema, which sub-state is which phase.
macro_rules! phases {
    ($($state:ident { $($sub_state:ident = $phase:ident),+ })+) => {
        pub fn write_phase(phase: Phase) -> ExecutionStateEnum {
            match phase {
                $($(Phase::$phase => ExecutionStateEnum::$state(base::$state::$sub_state.into()),)+)+
            }
        }

        pub fn read_phase(state: &ExecutionStateEnum) -> Result<Phase, ConvertError> {
            Ok(match state {
                $(ExecutionStateEnum::$state(sub_state) => match known(*sub_state)? {
                    $(base::$state::$sub_state => Phase::$phase),+
                }),+
            })
        }
    };
}

phases! {
    AgentDisconnected { AGENT_DISCONNECTED = AgentDisconnected }
    Pending {
        PENDING_INITIAL = PendingInitial,
        PENDING_WAITING_TO_START = PendingWaitingToStart,
        PENDING_STARTING = PendingStarting,
        PENDING_STARTING_FAILED = PendingStartingFailed
    }
    Running { RUNNING_OK = Running }
    Stopping {
        STOPPING = Stopping,
        STOPPING_WAITING_TO_STOP = StoppingWaitingToStop,
        STOPPING_REQUESTED_AT_RUNTIME = StoppingRequestedAtRuntime,
        STOPPING_DELETE_FAILED = StoppingDeleteFailed
    }
    Succeeded { SUCCEEDED_OK = Succeeded }
    Failed { FAILED_EXEC_FAILED = FailedExecFailed, FAILED_UNKNOWN = FailedUnknown, FAILED_LOST = FailedLost }
    NotScheduled { NOT_SCHEDULED = NotScheduled }
    Removed { REMOVED = Removed }
}

// ---------------------------------------------------------- instance names

pub fn write_instance_name(name: &InstanceName) -> base::WorkloadInstanceName {
    base::WorkloadInstanceName {
        workloadName: name.workload.to_string(),
        agentName: name.agent.to_string(),
        id: name.id.to_string(),
        ..Default::default()
    }
}

pub fn read_instance_name(name: &base::WorkloadInstanceName) -> InstanceName {
    InstanceName::with_id(&name.workloadName, &name.id, &name.agentName)
}

pub fn required_instance_name(name: &MessageField<base::WorkloadInstanceName>) -> Result<InstanceName, ConvertError> {
    name.as_ref().map(read_instance_name).ok_or_else(|| ConvertError("No instance name".to_owned()))
}

// -------------------------------------------------------- execution states

pub fn write_execution_state(state: &ExecutionState) -> base::ExecutionState {
    base::ExecutionState {
        additionalInfo: Some(state.additional_info.to_string()),
        ExecutionStateEnum: Some(write_phase(state.phase)),
        ..Default::default()
    }
}

pub fn write_workload_states(states: &[WorkloadState]) -> grpc_api::UpdateWorkloadState {
    let state = |state: &WorkloadState| base::WorkloadState {
        instanceName: MessageField::some(write_instance_name(&state.instance)),
        executionState: MessageField::some(write_execution_state(&state.state)),
        ..Default::default()
    };
    grpc_api::UpdateWorkloadState { workloadStates: states.iter().map(state).collect(), ..Default::default() }
}

fn read_workload_state(state: &base::WorkloadState) -> Result<WorkloadState, ConvertError> {
    let instance = required_instance_name(&state.instanceName)?;
    let execution = state.executionState.as_ref().ok_or_else(|| ConvertError::missing("execution_state"))?;
    let kind = execution.ExecutionStateEnum.as_ref().ok_or_else(|| ConvertError::missing("execution_state_enum"))?;
    let info = execution.additionalInfo.as_deref().unwrap_or_default();
    let info = &info[..info.floor_char_boundary(STATE_INFO_MAX)];
    let phase = read_phase(kind)?;
    let state = if info.is_empty() { ExecutionState::plain(phase) } else { ExecutionState::with_info(phase, info) };
    Ok(WorkloadState::new(instance, state))
}

/// Reads the entries that are complete; the others are skipped one by one.
pub fn read_workload_states(states: &grpc_api::UpdateWorkloadState) -> Vec<WorkloadState> {
    states
        .workloadStates
        .iter()
        .filter_map(|state| {
            read_workload_state(state)
                .inspect_err(|error| log::debug!("Skipping an incomplete workload state: '{error}'"))
                .ok()
        })
        .collect()
}

// -------------------------------------------------------------------- logs

pub fn write_logs_request(request: LogsRequest) -> base::LogsRequest {
    base::LogsRequest {
        workloadNames: request.instances.iter().map(write_instance_name).collect(),
        follow: request.follow,
        tail: request.tail,
        since: request.since,
        until: request.until,
        ..Default::default()
    }
}

pub fn read_logs_request(request: base::LogsRequest) -> LogsRequest {
    LogsRequest {
        instances: request.workloadNames.iter().map(read_instance_name).collect(),
        follow: request.follow,
        tail: request.tail,
        since: request.since,
        until: request.until,
    }
}

pub fn write_log_entries(entries: Vec<LogEntry>) -> base::LogEntriesResponse {
    let entry = |entry: LogEntry| base::LogEntry {
        workloadName: MessageField::some(write_instance_name(&entry.instance)),
        message: entry.message,
        ..Default::default()
    };
    base::LogEntriesResponse { logEntries: entries.into_iter().map(entry).collect(), ..Default::default() }
}

pub fn read_log_entries(entries: base::LogEntriesResponse) -> Vec<LogEntry> {
    let entry =
        |entry: base::LogEntry| LogEntry { instance: read_instance_name(&entry.workloadName), message: entry.message };
    entries.logEntries.into_iter().map(entry).collect()
}
