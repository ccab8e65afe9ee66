//! The observed states of the container: it is watched, its states are reported, and it is
//! restarted by its policy.
//!
//! Thread: `wl:<name>`; part of [`WorkloadControlLoop`].
//! Takes: observed states of the state checker. Gives: watch orders to the state checker, states to
//! the scheduler (may block at both).

use super::status::StartProgress;
use super::{AfterDelete, LoopStage, WorkloadControlLoop};
use crate::backoff::EndKind;
use crate::end_record;
use crate::limits::CREATED_MAX;
use crate::state_checker::{KnownEnd, WatchCommand};
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::workload::RestartPolicy;
use ankaios_platform::clock::Clock;
use ankaios_runtime::{ContainerId, MainProcess};
use log::{debug, info, warn};

impl<C: Clock> WorkloadControlLoop<C> {
    /// Orders the state checker to watch the container of the current instance. `process` is its
    /// main process, if known; `end` is the end that an earlier agent has seen, if any.
    pub(super) fn watch(&mut self, id: ContainerId, process: Option<MainProcess>, end: KnownEnd) {
        self.container = Some(id.clone());
        self.kill_state = None;
        self.starts += 1;
        self.note_start(StartProgress::Started(self.starts));
        let Some(engine) = self.context.engines.get(&self.runtime) else {
            return;
        };
        (engine.connect)().note(&self.instance, &id); // Later agents read it.
        self.is_watched = true;
        self.process = process.clone();
        let command = WatchCommand::Watch {
            instance: self.instance.clone(),
            id,
            process,
            restarts: self.instance_starts.saturating_sub(1),
            engine_restarts: self.engine_restarts(),
            end,
            reply: self.mailbox.begin_watch(),
        };
        engine.watch.send(command);
    }

    /// Whether the engine starts the container again by itself when it has ended.
    fn engine_restarts(&self) -> bool {
        match &self.definition {
            Some(workload) => workload.config().engine_restarts().is_some(),
            None => false,
        }
    }

    /// Ends the watch of the container, and the lifecycle with it.
    pub(super) fn unwatch(&mut self) {
        self.end_lifecycle();
        self.status.start = None; // Its log cannot be read any more.
        if !self.is_watched {
            return;
        }
        self.is_watched = false;
        if let Some(engine) = self.engine() {
            self.mailbox.end_watch();
            let command = WatchCommand::Unwatch {
                instance: self.instance.clone(),
            };
            engine.watch.send(command);
        }
    }

    /// Takes an observed state of the container. Reports it, and restarts the workload if it has
    /// ended and its policy says so.
    // [impl->swdd~workload-control-loop-receives-workload-states~1]
    pub(super) fn on_observed(&mut self, observed: ExecutionState) {
        if matches!(
            self.stage,
            LoopStage::DeleteRetryAt(..) | LoopStage::AwaitingGone(_)
        ) {
            debug!(
                "Ignoring state '{observed}' of workload '{}', whose container is being removed.",
                self.instance.workload
            );
            return;
        }
        // First: the meaning of the state. The shown one may differ from that of the container.
        let observed = self.find_kill_cause(observed);
        self.note_only_created(observed.phase);
        let restart = self.restart_kind(observed.phase);
        let runs = observed.phase == Phase::Running;
        let shown = self.apply_to_lifecycle(observed);
        // Then: an end with a restart. A repeated state does not restart again.
        if let Some(ended) = restart
            && !self.awaits_restart_after(ended)
        {
            // [impl->swdd~workload-control-loop-handles-workload-restarts~2]
            return self.report_ended(shown, restart);
        }
        // Finally: any other state.
        if restart.is_none() && shown.phase.has_ended() {
            self.note_end(&shown);
        }
        // [impl->swdd~workload-control-loop-sends-workload-states~2]
        self.report(shown);
        if runs && matches!(self.stage, LoopStage::RestartAt(..)) {
            self.stage = LoopStage::Idle; // Others have started the container again.
        }
    }

    /// Whether the loop waits for the restart after an end of this kind already.
    fn awaits_restart_after(&self, ended: EndKind) -> bool {
        matches!(self.stage, LoopStage::RestartAt(_, earlier) if earlier == ended)
    }

    /// Returns the state with the cause of the end, if the workload was killed. The engine is
    /// called once for each such end.
    // [impl->swdd~agent-reports-kills-out-of-memory~1]
    fn find_kill_cause(&mut self, state: ExecutionState) -> ExecutionState {
        if state != ExecutionState::killed() {
            return state;
        }
        if let Some(known) = &self.kill_state {
            return known.clone();
        }
        let (Some(mut connector), Some(id)) = (self.connector(), &self.container) else {
            return state;
        };
        let name = &self.instance.workload;
        let state = match connector.out_of_memory(&self.instance, id) {
            Ok(Some(found)) => {
                let found = ExecutionState::out_of_memory(found.limit);
                warn!("Workload '{name}' was killed: {found}");
                self.status.out_of_memory += 1;
                found
            }
            Ok(None) => state,
            Err(error) => {
                info!("The engine does not say why workload '{name}' was killed: '{error}'");
                state
            }
        };
        self.kill_state = Some(state.clone());
        state
    }

    // ---------------------------------------------------------- kept ends

    /// Keeps the end of the container for later agents, since others may remove the container. Only
    /// called when the workload is not restarted.
    // [impl->swdd~agent-keeps-observed-ends~1]
    pub(super) fn note_end(&self, state: &ExecutionState) {
        if let (Some(mut connector), Some(id)) = (self.connector(), &self.container) {
            end_record::keep(
                &mut *connector,
                &self.instance,
                id,
                &self.context.calls.boot,
                state,
            );
        }
    }

    /// The end of this container that an earlier agent has kept, if any.
    pub(super) fn known_end(&self, id: &ContainerId) -> KnownEnd {
        let Some(connector) = self.connector() else {
            return KnownEnd::default();
        };
        match end_record::kept(&*connector, &self.instance, &self.context.calls.boot) {
            Some((container, state)) if container == *id => {
                KnownEnd::of_earlier_life(id, state, self.engine_restarts())
            }
            _ => KnownEnd::default(),
        }
    }

    /// Removes the kept end, since the workload is about to be started or removed.
    pub(super) fn forget_end(&self) {
        if let Some(mut connector) = self.connector() {
            connector.forget_end(&self.instance);
        }
    }

    /// Notes whether the adopted container is created but not started. This lasts for a moment if
    /// its engine restarts it. It lasts forever if the container was listed wrongly as running, so
    /// the container is replaced after [`CREATED_MAX`].
    fn note_only_created(&mut self, phase: Phase) {
        match phase {
            Phase::PendingStarting
                if self.lifecycle.adopted && matches!(self.stage, LoopStage::Idle) =>
            {
                self.stage = LoopStage::OnlyCreatedUntil(self.now() + CREATED_MAX);
            }
            Phase::Running | Phase::Succeeded | Phase::FailedExecFailed | Phase::FailedLost
                if matches!(self.stage, LoopStage::OnlyCreatedUntil(_)) =>
            {
                self.stage = LoopStage::Idle;
            }
            _ => {}
        }
    }

    /// Replaces the adopted container, which was not started in time.
    pub(super) fn replace_only_created(&mut self) {
        info!(
            "The container of workload '{}' was created and never started, replacing it.",
            self.instance.workload
        );
        self.delete(AfterDelete::Restart);
    }

    /// Returns how the workload ended, if its policy restarts it.
    // [impl->swdd~agent-supports-restart-policies~1]
    // [impl->swdd~workload-control-loop-restarts-workload-with-enabled-restart-policy~2]
    pub(super) fn restart_kind(&self, phase: Phase) -> Option<EndKind> {
        let policy = self.definition.as_ref()?.restart_policy;
        match (policy, phase) {
            (RestartPolicy::Always | RestartPolicy::OnFailure, Phase::FailedExecFailed) => {
                Some(EndKind::Badly)
            }
            (RestartPolicy::Always, Phase::Succeeded) => Some(EndKind::Well),
            _ => None,
        }
    }

    /// Whether the engine can start an ended container again.
    pub(super) fn can_start_again(&self) -> bool {
        match self.connector() {
            Some(connector) => connector.can_start_again(),
            None => false,
        }
    }

    /// Restarts the workload: after a success in the same container if the engine can do that,
    /// otherwise in a new one.
    pub(super) fn restart(&mut self, ended: EndKind) {
        match ended {
            EndKind::Well if self.can_start_again() => {
                self.unwatch();
                self.restart_control_interface();
                self.report(ExecutionState::starting_triggered());
                self.begin_start();
            }
            // [impl->swdd~workload-control-loop-restarts-workloads-using-update~1]
            EndKind::Badly | EndKind::Well => self.delete(AfterDelete::Restart),
        }
    }
}
