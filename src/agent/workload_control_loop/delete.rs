//! A delete, alone or as the first half of an update or a restart, repeated until it worked.
//!
//! Thread: `wl:<name>`; part of [`WorkloadControlLoop`].
//! Gives: states and the loop's end to the scheduler (may block there).

use super::search::leave_strangers_of;
use super::{AfterDelete, Flow, Leftovers, Stage, Start, WorkloadControlLoop, send_state};
use crate::agent::agent_manager::SchedulerEvent;
use crate::agent::backoff::retry_delay;
use crate::clock::Clock;
use crate::model::execution_state::{ExecutionState, Phase};
use crate::runtime::RuntimeError;
use log::{debug, warn};

impl<C: Clock> WorkloadControlLoop<C> {
    /// Removes what is there, then does `after`. Ends all waiting, above all for a retry.
    // [impl->swdd~agent-workload-control-loop-prevents-retries-on-other-workload-commands~1]
    pub(super) fn delete(&mut self, after: AfterDelete) -> Flow {
        let stage = std::mem::replace(&mut self.stage, Stage::Idle);
        if let Stage::DeleteRetryAt(_, AfterDelete::Start(waiting)) | Stage::Gone(AfterDelete::Start(waiting)) = stage {
            let starts_after_all = matches!(&after, AfterDelete::Start(order) if order.instance == waiting.instance);
            if waiting.instance != self.instance && !starts_after_all {
                // It was never started, so nobody else will say so.
                send_state(&self.context.reports, &waiting.instance, ExecutionState::plain(Phase::Removed));
            }
        }
        self.failed_deletes = 0;
        self.end_control_interface_unless_kept(&after);
        self.lifecycle_ended();
        let stopping = self.life.stopping(ExecutionState::plain(Phase::StoppingRequestedAtRuntime));
        self.report(stopping);
        self.try_delete(after)
    }

    pub(super) fn try_delete(&mut self, after: AfterDelete) -> Flow {
        if let Err(error) = self.delete_container(&after) {
            self.on_delete_failed(after, &error.to_string());
            return Flow::Continue;
        }
        self.unwatch();
        self.container = None;
        self.leftovers = Leftovers::None;
        if self.must_wait_until_gone() {
            self.wait_until_gone(after);
            return Flow::Continue;
        }
        self.deleted(after)
    }

    /// Nothing is left of the container.
    pub(super) fn deleted(&mut self, after: AfterDelete) -> Flow {
        if let Some(control) = &self.control {
            control.forget_lasting(); // It is kept for another container, which has not asked for that.
        }
        let changed = match &after {
            AfterDelete::Start(order) => order.instance != self.instance,
            AfterDelete::End => true,
            AfterDelete::Restart | AfterDelete::Nothing | AfterDelete::NotReady(_) | AfterDelete::Failed(_) => false,
        };
        if !self.silent && !self.is_surplus() {
            self.remove_folder(&if changed { self.folder() } else { self.files_folder() });
            if self.control.is_none() {
                self.remove_folder(&self.control_folder(&self.instance));
            }
        }
        // What follows from these is told with the state that follows.
        if !matches!(after, AfterDelete::NotReady(_) | AfterDelete::Failed(_)) {
            self.report(ExecutionState::plain(Phase::Removed));
        }
        match after {
            AfterDelete::NotReady(cause) => return self.retry_not_ready(&cause),
            AfterDelete::Failed(cause) => {
                return self.on_failed(ExecutionState::with_info(Phase::FailedExecFailed, cause));
            }
            AfterDelete::Start(order) => self.take(*order),
            AfterDelete::Restart => self.restart_control_interface(),
            AfterDelete::Nothing => {
                self.wanted = None;
                return Flow::Continue;
            }
            AfterDelete::End => return self.end(),
        }
        self.report(ExecutionState::starting_triggered());
        self.begin_start(Start::New);
        Flow::Continue
    }

    // [impl->swdd~agent-workload-control-loop-delete-broken-allowed~1]
    // [impl->swdd~agent-workload-control-loop-update-broken-allowed~1]
    fn delete_container(&mut self, after: &AfterDelete) -> Result<(), RuntimeError> {
        let Some(engine) = &mut self.engine else { return Ok(()) };
        if let Some(id) = &self.container {
            match after {
                AfterDelete::Restart => engine.connector.delete_ended(id)?,
                AfterDelete::Start(_)
                | AfterDelete::Nothing
                | AfterDelete::End
                | AfterDelete::NotReady(_)
                | AfterDelete::Failed(_) => engine.connector.delete(id)?,
            }
        }
        // What may be left is never given up: it would run for ever without anybody knowing it.
        if self.leftovers != Leftovers::None {
            return self.delete_leftovers();
        }
        if self.container.is_none() {
            debug!("Workload '{}' already gone.", self.instance.workload);
        }
        Ok(())
    }

    pub(super) fn expect_leftovers(&mut self) {
        if self.leftovers != Leftovers::AnyInstance {
            self.leftovers = Leftovers::Likely;
        }
    }

    fn delete_leftovers(&mut self) -> Result<(), RuntimeError> {
        let Some(engine) = &mut self.engine else { return Ok(()) };
        let ids = if self.leftovers == Leftovers::AnyInstance {
            let mut found = match engine.connector.list() {
                // Its program is not there, so nothing can have been made with it.
                Err(RuntimeError::NotInstalled(_)) => Vec::new(),
                listed => listed?,
            };
            found.retain(|found| found.instance.workload == self.instance.workload);
            leave_strangers_of(engine, &mut found, self.wanted.as_deref());
            found.into_iter().map(|container| container.id).collect()
        } else {
            engine.connector.find(&self.instance, self.wanted.as_deref())?
        };
        for id in ids {
            if self.container.as_ref() != Some(&id) {
                engine.connector.delete(&id)?;
            }
        }
        self.leftovers = Leftovers::None;
        Ok(())
    }

    /// Keeps the container's id and what was to follow, and tries again later: a container that is left alone would
    /// run for ever without anybody knowing it (spec/agent.md FIX-12, FIX-13).
    // [impl->swdd~agent-workload-control-loop-delete-failed-allows-retry~1]
    // [impl->swdd~agent-workload-control-loop-update-delete-failed-allows-retry~1]
    fn on_delete_failed(&mut self, after: AfterDelete, cause: &str) {
        let verb = if matches!(after, AfterDelete::End) { "stop" } else { "update" };
        warn!("Could not {verb} workload '{}': '{cause}'", self.instance.workload);
        let state = self.life.stopping(ExecutionState::with_info(Phase::StoppingDeleteFailed, cause));
        self.report(state);
        self.failed_deletes = self.failed_deletes.saturating_add(1);
        let at = self.context.clock.now() + retry_delay(self.failed_deletes, &mut self.random);
        self.stage = Stage::DeleteRetryAt(at, after);
    }

    fn end(&mut self) -> Flow {
        self.wanted = None;
        if !self.inbox.close_if_empty() {
            return Flow::Continue; // A newer command arrived in the meantime; it finds nothing left to delete.
        }
        let _ = self.context.reports.send(SchedulerEvent::LoopEnded(self.id.clone())); // Gone only at the end.
        Flow::Stop
    }
}
