//! Workloads, instance names and execution states.
//!
//! Thread: whichever reads or writes the stream.

use super::ConvertError;
use super::state::workload_tree;
use crate::limits::STATE_INFO_MAX;
use crate::model::access_rules::{AccessRule, Operation};
use crate::model::complete_state::workload_from_node;
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::names::InstanceName;
use crate::model::workload::{AddCondition, DeleteCondition, FileContent, RestartPolicy, Workload};
use crate::wire::schema::ank_base as base;
use crate::wire::schema::grpc_api;
use base::execution_state::ExecutionStateEnum;
use protobuf::{Enum, EnumOrUnknown, MessageField};

/// The number behind an enum field, or why it has no meaning.
pub(super) fn known<E: Enum>(value: EnumOrUnknown<E>) -> Result<E, ConvertError> {
    value.enum_value().map_err(ConvertError::unknown_enum)
}

pub(super) fn add_condition(condition: AddCondition) -> base::AddCondition {
    match condition {
        AddCondition::Running => base::AddCondition::ADD_COND_RUNNING,
        AddCondition::Succeeded => base::AddCondition::ADD_COND_SUCCEEDED,
        AddCondition::Failed => base::AddCondition::ADD_COND_FAILED,
    }
}

pub(super) fn add_condition_text(condition: base::AddCondition) -> &'static str {
    match condition {
        base::AddCondition::ADD_COND_RUNNING => AddCondition::Running.as_str(),
        base::AddCondition::ADD_COND_SUCCEEDED => AddCondition::Succeeded.as_str(),
        base::AddCondition::ADD_COND_FAILED => AddCondition::Failed.as_str(),
    }
}

pub(super) fn restart_policy(policy: RestartPolicy) -> base::RestartPolicy {
    match policy {
        RestartPolicy::Never => base::RestartPolicy::NEVER,
        RestartPolicy::OnFailure => base::RestartPolicy::ON_FAILURE,
        RestartPolicy::Always => base::RestartPolicy::ALWAYS,
    }
}

pub(super) fn restart_policy_text(policy: base::RestartPolicy) -> &'static str {
    match policy {
        base::RestartPolicy::NEVER => RestartPolicy::Never.as_str(),
        base::RestartPolicy::ON_FAILURE => RestartPolicy::OnFailure.as_str(),
        base::RestartPolicy::ALWAYS => RestartPolicy::Always.as_str(),
    }
}

pub(super) fn operation(operation: Operation) -> base::ReadWriteEnum {
    match operation {
        Operation::Nothing => base::ReadWriteEnum::RW_NOTHING,
        Operation::Read => base::ReadWriteEnum::RW_READ,
        Operation::Write => base::ReadWriteEnum::RW_WRITE,
        Operation::ReadWrite => base::ReadWriteEnum::RW_READ_WRITE,
    }
}

pub(super) fn operation_text(operation: base::ReadWriteEnum) -> &'static str {
    match operation {
        base::ReadWriteEnum::RW_NOTHING => Operation::Nothing.as_str(),
        base::ReadWriteEnum::RW_READ => Operation::Read.as_str(),
        base::ReadWriteEnum::RW_WRITE => Operation::Write.as_str(),
        base::ReadWriteEnum::RW_READ_WRITE => Operation::ReadWrite.as_str(),
    }
}

pub(super) fn delete_condition(condition: DeleteCondition) -> grpc_api::DeleteCondition {
    match condition {
        DeleteCondition::Running => grpc_api::DeleteCondition::DEL_COND_RUNNING,
        DeleteCondition::NotPendingNorRunning => grpc_api::DeleteCondition::DEL_COND_NOT_PENDING_NOR_RUNNING,
    }
}

pub(super) fn read_delete_condition(
    condition: EnumOrUnknown<grpc_api::DeleteCondition>,
) -> Result<DeleteCondition, ConvertError> {
    Ok(match known(condition)? {
        grpc_api::DeleteCondition::DEL_COND_RUNNING => DeleteCondition::Running,
        grpc_api::DeleteCondition::DEL_COND_NOT_PENDING_NOR_RUNNING => DeleteCondition::NotPendingNorRunning,
    })
}

// ---------------------------------------------------------- instance names

pub(super) fn instance_name(name: &InstanceName) -> base::WorkloadInstanceName {
    base::WorkloadInstanceName {
        workloadName: name.workload.to_string(),
        agentName: name.agent.to_string(),
        id: name.id.to_string(),
        ..Default::default()
    }
}

pub(super) fn read_instance_name(name: &base::WorkloadInstanceName) -> InstanceName {
    InstanceName::with_id(&name.workloadName, &name.id, &name.agentName)
}

pub(super) fn required_instance_name(
    name: &MessageField<base::WorkloadInstanceName>,
) -> Result<InstanceName, ConvertError> {
    name.as_ref().map(read_instance_name).ok_or_else(|| ConvertError("No instance name".to_owned()))
}

// -------------------------------------------------------- execution states

pub(super) fn phase(phase: Phase) -> ExecutionStateEnum {
    use base::{Failed, Pending, Stopping};
    let pending = |pending: Pending| ExecutionStateEnum::Pending(pending.into());
    let stopping = |stopping: Stopping| ExecutionStateEnum::Stopping(stopping.into());
    let failed = |failed: Failed| ExecutionStateEnum::Failed(failed.into());
    match phase {
        Phase::AgentDisconnected => {
            ExecutionStateEnum::AgentDisconnected(base::AgentDisconnected::AGENT_DISCONNECTED.into())
        }
        Phase::PendingInitial => pending(Pending::PENDING_INITIAL),
        Phase::PendingWaitingToStart => pending(Pending::PENDING_WAITING_TO_START),
        Phase::PendingStarting => pending(Pending::PENDING_STARTING),
        Phase::PendingStartingFailed => pending(Pending::PENDING_STARTING_FAILED),
        Phase::Running => ExecutionStateEnum::Running(base::Running::RUNNING_OK.into()),
        Phase::Stopping => stopping(Stopping::STOPPING),
        Phase::StoppingWaitingToStop => stopping(Stopping::STOPPING_WAITING_TO_STOP),
        Phase::StoppingRequestedAtRuntime => stopping(Stopping::STOPPING_REQUESTED_AT_RUNTIME),
        Phase::StoppingDeleteFailed => stopping(Stopping::STOPPING_DELETE_FAILED),
        Phase::Succeeded => ExecutionStateEnum::Succeeded(base::Succeeded::SUCCEEDED_OK.into()),
        Phase::FailedExecFailed => failed(Failed::FAILED_EXEC_FAILED),
        Phase::FailedUnknown => failed(Failed::FAILED_UNKNOWN),
        Phase::FailedLost => failed(Failed::FAILED_LOST),
        Phase::NotScheduled => ExecutionStateEnum::NotScheduled(base::NotScheduled::NOT_SCHEDULED.into()),
        Phase::Removed => ExecutionStateEnum::Removed(base::Removed::REMOVED.into()),
    }
}

pub(super) fn read_phase(state: &ExecutionStateEnum) -> Result<Phase, ConvertError> {
    use base::{Failed, Pending, Stopping};
    Ok(match state {
        ExecutionStateEnum::AgentDisconnected(value) => known(*value).map(|_| Phase::AgentDisconnected)?,
        ExecutionStateEnum::Pending(value) => match known(*value)? {
            Pending::PENDING_INITIAL => Phase::PendingInitial,
            Pending::PENDING_WAITING_TO_START => Phase::PendingWaitingToStart,
            Pending::PENDING_STARTING => Phase::PendingStarting,
            Pending::PENDING_STARTING_FAILED => Phase::PendingStartingFailed,
        },
        ExecutionStateEnum::Running(value) => known(*value).map(|_| Phase::Running)?,
        ExecutionStateEnum::Stopping(value) => match known(*value)? {
            Stopping::STOPPING => Phase::Stopping,
            Stopping::STOPPING_WAITING_TO_STOP => Phase::StoppingWaitingToStop,
            Stopping::STOPPING_REQUESTED_AT_RUNTIME => Phase::StoppingRequestedAtRuntime,
            Stopping::STOPPING_DELETE_FAILED => Phase::StoppingDeleteFailed,
        },
        ExecutionStateEnum::Succeeded(value) => known(*value).map(|_| Phase::Succeeded)?,
        ExecutionStateEnum::Failed(value) => match known(*value)? {
            Failed::FAILED_EXEC_FAILED => Phase::FailedExecFailed,
            Failed::FAILED_UNKNOWN => Phase::FailedUnknown,
            Failed::FAILED_LOST => Phase::FailedLost,
        },
        ExecutionStateEnum::NotScheduled(value) => known(*value).map(|_| Phase::NotScheduled)?,
        ExecutionStateEnum::Removed(value) => known(*value).map(|_| Phase::Removed)?,
    })
}

pub(super) fn execution_state(state: &ExecutionState) -> base::ExecutionState {
    base::ExecutionState {
        additionalInfo: Some(state.additional_info.to_string()),
        ExecutionStateEnum: Some(phase(state.phase)),
        ..Default::default()
    }
}

pub(super) fn workload_states(states: &[WorkloadState]) -> grpc_api::UpdateWorkloadState {
    let state = |state: &WorkloadState| base::WorkloadState {
        instanceName: MessageField::some(instance_name(&state.instance)),
        executionState: MessageField::some(execution_state(&state.state)),
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
pub(super) fn read_workload_states(states: &grpc_api::UpdateWorkloadState) -> Vec<WorkloadState> {
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

// --------------------------------------------------------------- workloads

/// A complete workload, every part present.
pub(super) fn workload(workload: &Workload) -> base::Workload {
    let dependencies =
        workload.dependencies.iter().map(|(name, condition)| (name.clone(), add_condition(*condition).into()));
    let rules = |rules: &[AccessRule]| rules.iter().map(access_rule).collect();
    base::Workload {
        agent: Some(workload.agent.to_string()),
        restartPolicy: Some(restart_policy(workload.restart_policy).into()),
        dependencies: MessageField::some(base::Dependencies {
            dependencies: dependencies.collect(),
            ..Default::default()
        }),
        tags: MessageField::some(tags(&workload.tags)),
        runtime: Some(workload.runtime.to_string()),
        runtimeConfig: Some(workload.runtime_config.to_string()),
        controlInterfaceAccess: MessageField::some(base::ControlInterfaceAccess {
            allowRules: rules(&workload.control_interface_access.allow_rules),
            denyRules: rules(&workload.control_interface_access.deny_rules),
            ..Default::default()
        }),
        configs: MessageField::some(base::ConfigMappings {
            configs: workload.configs.clone().into_iter().collect(),
            ..Default::default()
        }),
        files: MessageField::some(base::Files {
            files: workload.files.iter().map(|file| file_to_wire(&file.mount_point, &file.content)).collect(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub(super) fn tags(tags: &std::collections::BTreeMap<String, String>) -> base::Tags {
    base::Tags { tags: tags.clone().into_iter().collect(), ..Default::default() }
}

pub(super) fn file_to_wire(mount_point: &str, content: &FileContent) -> base::File {
    use base::file::FileContent as Wire;
    base::File {
        mountPoint: mount_point.to_owned(),
        FileContent: Some(match content {
            FileContent::Data(data) => Wire::Data(data.clone()),
            FileContent::BinaryData(data) => Wire::BinaryData(data.clone()),
        }),
        ..Default::default()
    }
}

pub(super) fn access_rule(rule: &AccessRule) -> base::AccessRightsRule {
    use base::access_rights_rule::AccessRightsRuleEnum;
    let rule = match rule {
        AccessRule::State { operation: allowed, filter_masks } => AccessRightsRuleEnum::StateRule(base::StateRule {
            operation: operation(*allowed).into(),
            filterMasks: filter_masks.clone(),
            ..Default::default()
        }),
        AccessRule::Log { workload_names } => {
            AccessRightsRuleEnum::LogRule(base::LogRule { workloadNames: workload_names.clone(), ..Default::default() })
        }
    };
    base::AccessRightsRule { AccessRightsRuleEnum: Some(rule), ..Default::default() }
}

/// Reads a complete workload; the field names in errors are those of the peer.
pub(super) fn read_workload(workload: &base::Workload) -> Result<Workload, ConvertError> {
    for (present, field) in [
        (workload.agent.is_some(), "agent"),
        (workload.runtime.is_some(), "runtime"),
        (workload.runtimeConfig.is_some(), "runtime_config"),
    ] {
        if !present {
            return Err(ConvertError::missing(field));
        }
    }
    workload_from_node(&workload_tree(workload)?, "workload").map_err(|error| ConvertError(error.to_string()))
}
