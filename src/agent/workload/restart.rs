//! What follows from the states of the container: it is watched, reported, and restarted as its
//! policy says.
//!
//! Thread: `wl:<name>`; part of [`WorkloadControlLoop`].
//! Takes: what the state checker saw. Gives: what to watch to the state checker, states to the
//! scheduler (may block at both).

use super::status::StartProgress;
use super::{AfterDelete, Stage, WorkloadControlLoop};
use crate::backoff::Ended;
use crate::end_record;
use crate::limits::CREATED_MAX;
use crate::state_checker::{KnownEnd, WatchCommand};
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::workload::RestartPolicy;
use ankaios_platform::clock::Clock;
use ankaios_runtime::{ContainerId, MainProcess};
use log::{debug, info, warn};

impl<C: Clock> WorkloadControlLoop<C> {
    /// `process`: known to run. `end`: how it ended in an earlier life of the agent.
    pub(super) fn watch(&mut self, id: ContainerId, process: Option<MainProcess>, end: KnownEnd) {
        self.container = Some(id.clone());
        self.killed = None;
        self.started += 1;
        self.note_start(StartProgress::Started(self.started));
        let Some(source) = self.context.engines.get(&self.runtime) else {
            return;
        };
        (source.connect)().note(&self.instance, &id);
        (self.watching, self.process) = (true, process.clone());
        let (instance, reply) = (self.instance.clone(), self.mailbox.begin_watch());
        let restarts = self.starts.saturating_sub(1);
        let engine_restarts = self.engine_restarts();
        let command = WatchCommand::Watch {
            instance,
            id,
            process,
            restarts,
            engine_restarts,
            end,
            reply,
        };
        let _ = source.watch.send(command); // Gone only when the agent ends.
    }

    /// Whether the engine starts the container again by itself when it has ended.
    fn engine_restarts(&self) -> bool {
        let wanted = self.wanted.as_ref();
        wanted.is_some_and(|workload| workload.config().engine_restarts().is_some())
    }

    pub(super) fn unwatch(&mut self) {
        self.lifecycle_ended();
        self.status.start = None;
        if std::mem::take(&mut self.watching)
            && let Some(source) = self.source()
        {
            self.mailbox.end_watch();
            let command = WatchCommand::Unwatch {
                instance: self.instance.clone(),
            };
            let _ = source.watch.send(command); // Gone only when the agent ends.
        }
    }

    // [impl->swdd~workload-control-loop-receives-workload-states~1]
    pub(super) fn on_observed(&mut self, state: ExecutionState) {
        if matches!(self.stage, Stage::DeleteRetryAt(..) | Stage::Gone(_)) {
            debug!(
                "Ignoring state '{state}' of workload '{}', which is past.",
                self.instance.workload
            );
            return;
        }
        let state = self.with_cause(state);
        self.note_only_created(state.phase);
        let ended = self.needs_restart(state.phase);
        let runs = state.phase == Phase::Running;
        let state = self.lifecycle_view(state);
        let is_repeated = matches!((&self.stage, ended), (Stage::RestartAt(_, waiting), Some(ended)) if *waiting == ended);
        if ended.is_some() && !is_repeated {
            // [impl->swdd~workload-control-loop-handles-workload-restarts~2]
            return self.report_ended(state, ended);
        }
        if ended.is_none() && state.phase.has_ended() {
            self.note_end(&state);
        }
        // [impl->swdd~workload-control-loop-sends-workload-states~2]
        self.report(state);
        if runs && matches!(self.stage, Stage::RestartAt(..)) {
            self.stage = Stage::Idle; // It was started again by others.
        }
    }

    /// The state with the cause of the end, if the workload was killed: its engine is called once
    /// for each such end.
    // [impl->swdd~agent-reports-kills-out-of-memory~1]
    fn with_cause(&mut self, state: ExecutionState) -> ExecutionState {
        if state != ExecutionState::killed() {
            return state;
        }
        if let Some(known) = &self.killed {
            return known.clone();
        }
        let (Some(mut connector), Some(id)) = (self.connector(), &self.container) else {
            return state;
        };
        let state = match connector.out_of_memory(id) {
            Ok(Some(found)) => {
                let name = &self.instance.workload;
                let found = ExecutionState::out_of_memory(found.limit);
                warn!("Workload '{name}' was killed: {found}");
                self.status.out_of_memory += 1;
                found
            }
            Ok(None) => state,
            Err(error) => {
                let name = &self.instance.workload;
                info!("The engine does not say why workload '{name}' was killed: '{error}'");
                state
            }
        };
        self.killed = Some(state.clone());
        state
    }

    // ---------------------------------------------------------- kept ends

    /// Keeps how the container ended, since nothing starts it again: others may remove it.
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

    /// How this container ended in an earlier life of the agent.
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

    /// The workload is about to be started or removed, so its last end does not count any more.
    pub(super) fn forget_end(&self) {
        if let Some(mut connector) = self.connector() {
            connector.forget_end(&self.instance);
        }
    }

    /// A container that was running when it was taken over and is only created now was listed
    /// wrongly and never started; it is replaced. One that its engine restarts by itself is in this
    /// state, too, but not for long.
    fn note_only_created(&mut self, phase: Phase) {
        match phase {
            Phase::PendingStarting
                if self.lifecycle.adopted && matches!(self.stage, Stage::Idle) =>
            {
                self.stage = Stage::CreatedUntil(self.now() + CREATED_MAX);
            }
            Phase::Running | Phase::Succeeded | Phase::FailedExecFailed | Phase::FailedLost
                if matches!(self.stage, Stage::CreatedUntil(_)) =>
            {
                self.stage = Stage::Idle;
            }
            _ => {}
        }
    }

    pub(super) fn replace_only_created(&mut self) {
        info!(
            "The container of workload '{}' was created and never started, replacing it.",
            self.instance.workload
        );
        self.delete(AfterDelete::Restart);
    }

    /// How the workload ended if its policy wants it to run again.
    // [impl->swdd~agent-supports-restart-policies~1]
    // [impl->swdd~workload-control-loop-restarts-workload-with-enabled-restart-policy~2]
    pub(super) fn needs_restart(&self, phase: Phase) -> Option<Ended> {
        let policy = self.wanted.as_ref()?.restart_policy;
        match (policy, phase) {
            (RestartPolicy::Always | RestartPolicy::OnFailure, Phase::FailedExecFailed) => {
                Some(Ended::Badly)
            }
            (RestartPolicy::Always, Phase::Succeeded) => Some(Ended::Well),
            _ => None,
        }
    }

    pub(super) fn can_start_again(&self) -> bool {
        self.connector()
            .is_some_and(|connector| connector.can_start_again())
    }

    pub(super) fn restart(&mut self, ended: Ended) {
        match ended {
            Ended::Well if self.can_start_again() => {
                self.unwatch();
                self.restart_control_interface();
                self.report(ExecutionState::starting_triggered());
                self.begin_start();
            }
            // [impl->swdd~workload-control-loop-restarts-workloads-using-update~1]
            Ended::Badly | Ended::Well => self.delete(AfterDelete::Restart),
        }
    }
}
