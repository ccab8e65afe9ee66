//! Restarts workloads with those that they need (`restartWith`): a dependent is stopped when one of
//! its dependencies ends, and started when that is ready again.
//!
//! Thread: `scheduler`; part of [`WorkloadRecords`]. It is decided from the states that the agent
//! has anyway, so it needs no server for dependencies on the same node. A dependent that is not
//! started has nothing to stop, so it is restarted at most once for each new start of a dependency.

use super::workloads::{WorkloadRecord, WorkloadRecords};
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::reason::Reason;
use ankaios_model::workload::AddCondition;
use ankaios_platform::clock::Clock;
use ankaios_platform::logging::log_source;
use log::info;
use std::collections::BTreeSet;

/// Whether an instance in this state has ended, is about to end, or is being started again.
///
/// If its agent is disconnected or was restarted, or its engine does not respond, its container may
/// still run. So such a state is no end.
pub(super) fn has_ended(state: &ExecutionState) -> bool {
    match state.phase {
        Phase::Running
        | Phase::AgentDisconnected
        | Phase::FailedUnknown
        | Phase::PendingInitial
        | Phase::NotScheduled => false,
        // A restarted agent probes the containers that it has adopted.
        Phase::PendingStarting => state.reason != Reason::Ready,
        // An engine that has not listed its containers may have one that runs.
        Phase::PendingWaitingToStart => state.reason != Reason::EngineUnlisted,
        Phase::PendingStartingFailed
        | Phase::Stopping
        | Phase::StoppingWaitingToStop
        | Phase::StoppingRequestedAtRuntime
        | Phase::StoppingDeleteFailed
        | Phase::Succeeded
        | Phase::FailedExecFailed
        | Phase::FailedLost
        | Phase::Removed => true,
    }
}

/// Whether an instance may have run in its state `before`, and has ended in its state `now`.
pub(super) fn ends_run(before: Option<&ExecutionState>, now: Option<&ExecutionState>) -> bool {
    let Some(before) = before else {
        return false;
    };
    if has_ended(before) || matches!(before.phase, Phase::PendingInitial | Phase::NotScheduled) {
        return false;
    }
    now.is_none_or(has_ended)
}

/// Whether the workload is restarted with the workloads that it needs to run.
fn restarts_with_dependencies(added: &AddedWorkload) -> bool {
    let config = added.workload.config();
    let lifecycle = config.usable_lifecycle();
    lifecycle.is_some_and(|lifecycle| lifecycle.restarts_with_dependencies())
}

impl<C: Clock> WorkloadRecords<C> {
    /// Notes whether the desired workload is restarted with its dependencies.
    pub(super) fn note_restart_with(&mut self, name: &Name, desired: Option<&AddedWorkload>) {
        if desired.is_some_and(restarts_with_dependencies) {
            self.restarted_with.insert(name.clone());
        } else {
            self.restarted_with.remove(name);
        }
    }

    /// Restarts the started workloads with `restartWith` that need one of these, which have ended.
    /// Then restarts those that need a restarted one, since that ends as well.
    // [impl->swdd~agent-restarts-with-dependencies~1]
    pub(super) fn restart_dependents(&mut self, ended: BTreeSet<Name>) {
        if self.restarted_with.is_empty() {
            return;
        }
        let mut open = Vec::from_iter(ended);
        while let Some(needed) = open.pop() {
            for name in &self.restarted_with {
                let Some(record) = self.records.get_mut(name) else {
                    continue;
                };
                let is_noted = record.start_wait.restarts_with.is_some();
                if is_noted || !record.is_started() || !record.needs_running(&needed) {
                    continue;
                }
                let _source = log_source(name.clone());
                info!("Restarting workload '{name}' with '{needed}', which has ended.");
                record.start_wait.restarts_with = Some(needed.clone());
                self.dirty.insert(name.clone());
                open.push(name.clone());
            }
        }
    }

    /// Updates whether a workload must be restarted:
    /// - it must, if all instances of a dependency have ended. An agent that was restarted has not
    ///   seen the end itself;
    /// - it must not any more, if it has stopped.
    pub(super) fn update_restart(&mut self, name: &Name) {
        if !self.restarted_with.contains(name) {
            return;
        }
        let Some(record) = self.records.get_mut(name) else {
            return;
        };
        let Some(desired) = &record.desired else {
            return;
        };
        if record.start_wait.restarts_with.is_some() {
            if record.has_stopped(&desired.instance) {
                record.start_wait.restarts_with = None;
            }
            return;
        }
        if !record.is_started() {
            return;
        }
        let mut ended = BTreeSet::new();
        for (needed, condition) in &desired.workload.dependencies {
            if *condition == AddCondition::Running && self.store.has_ended(needed) {
                ended.insert(Name::from(needed.as_str()));
            }
        }
        self.restart_dependents(ended);
    }

    /// Whether the workload is restarted with one of these others. Then their states matter even
    /// while it runs.
    pub(super) fn follows_one_of(&self, name: &Name, others: &BTreeSet<Name>) -> bool {
        if !self.restarted_with.contains(name) {
            return false;
        }
        let record = self.records.get(name);
        record.is_some_and(|record| others.iter().any(|other| record.needs_running(other)))
    }
}

impl<C: Clock> WorkloadRecord<C> {
    /// Whether the desired instance is the target of the control loop, even if its start fails.
    fn is_started(&self) -> bool {
        match &self.desired {
            Some(desired) => self.runs(desired),
            None => false,
        }
    }

    /// Whether this agent neither runs this instance, nor may have begun to start it.
    fn has_stopped(&self, instance: &InstanceName) -> bool {
        let Some(control_loop) = &self.control_loop else {
            return true;
        };
        control_loop.current() != Some(instance)
            && control_loop.status.state_of(instance).is_none()
            && !control_loop.may_have_begun.contains(instance)
    }
}

#[cfg(test)]
mod tests;
