//! The `lifecycle:` block of a workload: its checks, deadlines and restarts while it starts, runs
//! and ends.
//!
//! Thread: `wl:<name>`; part of [`WorkloadControlLoop`].
//! Owns: whether the workload is ready, its deadlines, its notify socket. Takes:
//! [`ProbeReport`] from `probes`.
//! Gives: [`ProbeOrder`] to `probes`, states to the scheduler (may block there).

use super::status::StartProgress;
use super::{AfterDelete, LoopStage, WorkloadControlLoop};
use crate::backoff::{EndKind, RestartBackoff};
use crate::events::Note;
use crate::state_checker::KnownEnd;
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::lifecycle::{AliveAction, Check, Lifecycle, OnDeadline, Pace};
use ankaios_model::reason::{ALIVE_PREFIX, GONE_PREFIX, NO_MORE_RESTARTS, READY_PREFIX, Reason};
use ankaios_platform::clock::Clock;
use ankaios_runtime::probes::prober::{notify_socket, notify_socket_path};
use ankaios_runtime::probes::{Outcome, ProbeOrder, ProbeReport, Purpose, short_info};
use ankaios_runtime::{ProbeTarget, RuntimeError};
use log::{info, warn};
use rustix::io::Errno;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// Pause before the engine is called again for the container or the processes that a check needs.
const MISSING_TARGET_RETRY: Duration = Duration::from_secs(1);

/// The key of the next probe of this process.
static NEXT_KEY: AtomicU64 = AtomicU64::new(1);

/// The block `lifecycle:` of a workload. All workloads without one share an empty one.
struct Block(Arc<Lifecycle>);

impl Default for Block {
    fn default() -> Self {
        static NONE: LazyLock<Arc<Lifecycle>> = LazyLock::new(Arc::default);
        Self(NONE.clone())
    }
}

impl Deref for Block {
    type Target = Lifecycle;

    fn deref(&self) -> &Lifecycle {
        &self.0
    }
}

/// The lifecycle of one instance: created, starting, ready (which stays), ended.
#[derive(Default)]
pub(super) struct InstanceLifecycle {
    spec: Block,
    /// The error in the block; with one the workload is not started.
    pub(super) invalid: Option<String>,
    /// This control loop has started the container. `false`: it ran already when the agent started,
    /// or others have started it again.
    just_started: bool,
    /// An earlier agent started the container, so no deadline ends it.
    pub(super) adopted: bool,
    /// When the present run began.
    started: Option<Instant>,
    is_ready: bool,
    /// When `ready` or `gone` must hold; `None` once it has passed.
    pub(super) deadline: Option<Instant>,
    /// The phase that the state checker observed last.
    observed: Option<Phase>,
    /// The note beside the phase of the container.
    note: Note,
    /// The text of the last `ready` result, without the number of the attempt.
    ready_result: String,
    probe: Option<Probe>,
    notify: Option<NotifySocket>,
    /// There was a container, so the `gone` condition has to hold before another one starts.
    must_be_gone: bool,
}

/// The probe that is ordered.
struct Probe {
    key: u64,
    purpose: Purpose,
    /// The check needs the container or its processes, and the engine has not found them.
    is_incomplete: bool,
}

/// The terms of a check in the `lifecycle:` block.
struct CheckTerms {
    check: Check,
    pace: Pace,
    /// How many successes in a row decide.
    successes: u32,
    /// How many failures in a row decide; `None` if none do.
    failures: Option<u32>,
}

struct NotifySocket {
    path: PathBuf,
    socket: Arc<OwnedFd>,
}

impl Drop for NotifySocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path); // The next start makes a new one in any case.
    }
}

impl InstanceLifecycle {
    /// Whether a `gone` condition must hold after the removal, before the next step.
    pub(super) fn has_gone_condition(&self) -> bool {
        self.must_be_gone && self.spec.gone.is_some()
    }

    /// Whether the container was seen to have ended.
    pub(super) fn has_ended(&self) -> bool {
        self.observed.is_some_and(Phase::has_ended)
    }

    /// Returns a stopping state as others must see it: its text names the `gone` condition that
    /// must hold.
    pub(super) fn stopping(&self, state: ExecutionState) -> ExecutionState {
        let Some(gone) = &self.spec.gone else {
            return state;
        };
        if !self.has_gone_condition() {
            return state;
        }
        let info = match &*state.additional_info {
            "" => format!("{GONE_PREFIX}{} must not be there any more", gone.check),
            info => format!("{GONE_PREFIX}not removed yet: {info}"),
        };
        Note::new(Reason::Gone, info).state(state.phase)
    }

    /// The terms of the check with this purpose; `None` when there is none.
    fn terms(&self, purpose: Purpose) -> Option<CheckTerms> {
        let terms = match purpose {
            Purpose::Ready => {
                let ready = self.spec.ready.as_ref()?;
                CheckTerms {
                    check: ready.check.clone(),
                    pace: ready.pace,
                    successes: ready.success_threshold,
                    failures: None,
                }
            }
            Purpose::Alive => {
                let alive = self.spec.alive.as_ref()?;
                CheckTerms {
                    check: alive.check.clone(),
                    pace: alive.pace,
                    successes: 1,
                    failures: Some(alive.failure_threshold),
                }
            }
            Purpose::Gone => {
                let gone = self.spec.gone.as_ref()?;
                CheckTerms {
                    check: gone.check.clone(),
                    pace: gone.pace,
                    successes: 1,
                    failures: Some(1),
                }
            }
        };
        Some(terms)
    }

    /// Whether liveness is probed over the notify socket.
    fn is_alive_by_notify(&self) -> bool {
        match &self.spec.alive {
            Some(alive) => alive.check == Check::Notify,
            None => false,
        }
    }

    fn is_probing(&self, purpose: Purpose) -> bool {
        match &self.probe {
            Some(probe) => probe.purpose == purpose,
            None => false,
        }
    }
}

impl<C: Clock> WorkloadControlLoop<C> {
    /// Reads the block of the current instance, and drops the lifecycle of an earlier one.
    pub(super) fn load_lifecycle(&mut self) {
        self.stop_probe();
        let mut lifecycle = InstanceLifecycle::default();
        if let Some(definition) = &self.definition {
            match definition.lifecycle() {
                Ok(Some(block)) => lifecycle.spec = Block(block),
                Ok(None) => {}
                Err(error) => lifecycle.invalid = Some(error.to_string()),
            }
        }
        self.restarts = RestartBackoff::new(self.context.restart_backoff, lifecycle.spec.restart);
        self.lifecycle = lifecycle;
    }

    // ------------------------------------------------------------------ start

    /// Makes the notify socket, if a check needs one.
    ///
    /// # Errors
    /// The socket cannot be made. `Unsupported`: its path is too long, so a retry does not help.
    pub(super) fn open_notify_socket(&mut self) -> Result<(), RuntimeError> {
        self.lifecycle.notify = None;
        if !self.lifecycle.spec.wants_notify() {
            return Ok(());
        }
        let path = notify_socket_path(&self.context.calls.folder, &self.instance);
        match notify_socket(&path) {
            Ok(socket) => {
                self.lifecycle.notify = Some(NotifySocket {
                    path,
                    socket: Arc::new(socket),
                });
                Ok(())
            }
            Err(error) => {
                let cause = format!(
                    "lifecycle.ready.notify: the socket '{}' cannot be made: {error}",
                    path.display()
                );
                if error.raw_os_error() == Some(Errno::NAMETOOLONG.raw_os_error()) {
                    let text = format!("{cause}; a shorter run folder may help");
                    return Err(RuntimeError::Unsupported(text));
                }
                Err(RuntimeError::NotStarted(cause.into()))
            }
        }
    }

    /// Begins the lifecycle of a container that runs, as far as this loop knows.
    pub(super) fn begin_lifecycle(&mut self, just_started: bool) {
        // First: a new run.
        let now = self.now();
        let lifecycle = &mut self.lifecycle;
        lifecycle.just_started = just_started;
        if just_started {
            lifecycle.adopted = false;
        }
        lifecycle.started = Some(now);
        lifecycle.observed = None;
        lifecycle.is_ready = false;
        lifecycle.note = Note::default();
        lifecycle.ready_result.clear();
        lifecycle.must_be_gone = true;
        // Then: without a check it is ready at once. So is one that notified an earlier agent: it
        // does not notify again.
        let ready = match &lifecycle.spec.ready {
            Some(ready) if just_started || ready.check != Check::Notify => ready.clone(),
            _ => {
                lifecycle.is_ready = true;
                self.restarts.running(now);
                return;
            }
        };
        // Finally: the check. An adopted container has no deadline; one that others have started
        // again has the whole time.
        lifecycle.deadline = match ready.deadline {
            Some(deadline) if !lifecycle.adopted => Some(now + deadline),
            _ => None,
        };
        let initial_delay = if just_started {
            ready.pace.initial_delay
        } else {
            Duration::ZERO
        };
        self.start_probe(Purpose::Ready, initial_delay);
    }

    /// Orders a probe in the place of the present one.
    fn start_probe(&mut self, purpose: Purpose, initial_delay: Duration) {
        let Some(terms) = self.lifecycle.terms(purpose) else {
            return;
        };
        self.stop_probe();
        // First: where to probe. For `gone` there is no container any more, so the network is that
        // of the node.
        let in_container = matches!(terms.check, Check::Exec(_));
        let in_network = purpose != Purpose::Gone
            && matches!(terms.check, Check::Tcp { .. } | Check::Http { .. });
        let target = self.probe_target(in_container, in_network);
        let is_incomplete = (in_container && target.container.is_none())
            || (in_network && target.processes.is_empty());
        let notify = match &self.lifecycle.notify {
            Some(notify) if terms.check == Check::Notify => Some(notify.socket.clone()),
            _ => None,
        };
        // Then: the order.
        let key = NEXT_KEY.fetch_add(1, Ordering::Relaxed);
        self.lifecycle.probe = Some(Probe {
            key,
            purpose,
            is_incomplete,
        });
        self.context.probes.watch(ProbeOrder {
            key,
            instance: self.instance.clone(),
            purpose,
            check: terms.check,
            pace: Pace {
                initial_delay,
                ..terms.pace
            },
            successes: terms.successes,
            failures: terms.failures,
            target,
            notify,
            unarmed: !self.lifecycle.just_started,
            reply: self.mailbox.probe_reply(),
        });
    }

    /// Returns the container or the processes that a check needs, if they can be found. Calls the
    /// engine, unless the main process of a container that was just started is enough.
    fn probe_target(&self, in_container: bool, in_network: bool) -> ProbeTarget {
        let mut target = ProbeTarget::default();
        if !in_container && !in_network {
            return target;
        }
        if let Some(process) = &self.process
            && in_network
            && self.lifecycle.just_started
        {
            target.processes.push(process.clone());
            return target;
        }
        let (Some(mut connector), Some(id)) = (self.connector(), &self.container) else {
            return target;
        };
        match connector.probe_target(id, in_network) {
            Ok(found) => found,
            Err(error) => {
                warn!(
                    "The container of workload '{}' cannot be found for probes, trying again: '{error}'",
                    self.instance.workload
                );
                target
            }
        }
    }

    /// Cancels the probe that is ordered, if any.
    fn stop_probe(&mut self) {
        if let Some(probe) = self.lifecycle.probe.take() {
            self.context.probes.unwatch(probe.key);
        }
    }

    /// Ends the lifecycle, since the container has ended or is about to be removed.
    pub(super) fn end_lifecycle(&mut self) {
        self.stop_probe();
        let lifecycle = &mut self.lifecycle;
        lifecycle.notify = None;
        lifecycle.deadline = None;
        lifecycle.is_ready = false;
        lifecycle.started = None;
        lifecycle.note = Note::default();
        lifecycle.ready_result.clear();
    }

    // ----------------------------------------------------------------- states

    /// Begins, continues or ends the lifecycle, as an observed state of the container says. Returns
    /// the state to show: a container that runs is shown as starting until it is ready.
    pub(super) fn apply_to_lifecycle(&mut self, state: ExecutionState) -> ExecutionState {
        self.lifecycle.observed = Some(state.phase);
        match state.phase {
            Phase::Running => {
                if self.lifecycle.started.is_none() {
                    // Others have started it, or its engine has listed it wrongly as ended.
                    self.begin_lifecycle(false);
                    self.lifecycle.observed = Some(Phase::Running); // `begin_lifecycle` resets it.
                }
                self.start_alive_probe();
                self.running_view()
            }
            Phase::Succeeded | Phase::FailedExecFailed | Phase::FailedLost => {
                self.end_lifecycle();
                state
            }
            _ => {
                if self.lifecycle.is_probing(Purpose::Alive) {
                    self.stop_probe(); // Paused or unknown: a result would mean nothing.
                }
                state
            }
        }
    }

    /// The state to show of a container that runs.
    fn running_view(&self) -> ExecutionState {
        let phase = if self.lifecycle.is_ready {
            Phase::Running
        } else {
            Phase::PendingStarting
        };
        let mut note = self.lifecycle.note.clone();
        if note.text.is_empty()
            && !self.lifecycle.is_ready
            && let Some(ready) = &self.lifecycle.spec.ready
        {
            let text = format!("{READY_PREFIX}waits for {}", ready.check);
            note = Note::new(Reason::Ready, text);
        }
        note.state(phase)
    }

    /// Sets the note about a probe, and reports it if the container runs.
    fn show_note(&mut self, note: Note) {
        self.lifecycle.note = note;
        if self.lifecycle.observed == Some(Phase::Running) {
            let state = self.running_view();
            self.report(state);
        }
    }

    /// Starts the liveness probe, if the workload is ready and has one.
    fn start_alive_probe(&mut self) {
        if !self.lifecycle.is_ready || self.lifecycle.probe.is_some() {
            return;
        }
        let Some(alive) = self.lifecycle.spec.alive.clone() else {
            return;
        };
        // An adopted container has no socket yet. Without one no notification would arrive.
        let needs_socket = alive.check == Check::Notify && self.lifecycle.notify.is_none();
        if needs_socket && self.open_notify_socket().is_err() {
            return;
        }
        self.start_probe(Purpose::Alive, alive.pace.period);
    }

    // ----------------------------------------------------------------- results

    /// Takes the result of a probe. A verdict decides that the workload is ready, failed or gone;
    /// any other result is only shown.
    pub(super) fn on_probed(&mut self, report: &ProbeReport) {
        let Some(Probe {
            key,
            purpose,
            is_incomplete,
        }) = self.lifecycle.probe
        else {
            return;
        };
        if key != report.key {
            return; // Of an earlier probe.
        }
        let holds = report.outcome == Outcome::Holds;
        match purpose {
            Purpose::Ready if holds && report.is_verdict => return self.on_ready(report),
            Purpose::Alive if !holds && report.is_verdict => return self.on_not_alive(report),
            // The check finds what must be gone, so a failed check is the success.
            Purpose::Gone if !holds => return self.on_gone(),
            Purpose::Ready => self.show_ready_result(report),
            Purpose::Alive => self.show_alive_result(report),
            Purpose::Gone => self.report_not_gone(report.attempts),
        }
        if is_incomplete && !holds {
            // The engine may find the container or its processes by now.
            self.start_probe(purpose, MISSING_TARGET_RETRY);
        }
    }

    /// Shows the workload as ready, and begins to probe whether it is alive.
    // [impl->swdd~agent-lifecycle-ready~1]
    fn on_ready(&mut self, report: &ProbeReport) {
        self.stop_probe();
        self.lifecycle.is_ready = true;
        self.lifecycle.deadline = None;
        self.restarts.running(self.now());
        info!("Workload '{}' is ready.", self.instance.workload);
        if !self.lifecycle.is_alive_by_notify() {
            self.lifecycle.notify = None; // No probe would read it.
        }
        if let Some(ready) = &self.lifecycle.spec.ready {
            let mut text = format!("{READY_PREFIX}{} answered", ready.check);
            if ready.check != Check::Notify {
                text += &format!(", attempt {}", report.attempts);
            }
            self.show_note(Note::new(Reason::Ready, text));
        }
        if self.lifecycle.observed == Some(Phase::Running) {
            self.start_alive_probe();
        }
    }

    /// Shows a result that does not make the workload ready. Keeps its text, which is repeated when
    /// the deadline has passed.
    fn show_ready_result(&mut self, report: &ProbeReport) {
        let Some(ready) = &self.lifecycle.spec.ready else {
            return self.show_note(Note::default());
        };
        let result = match &report.outcome {
            Outcome::Holds => {
                let times = ready.success_threshold;
                format!("answered {} of {times} times", report.in_a_row)
            }
            Outcome::Fails { reason, .. } => reason.clone(),
        };
        let result = format!("{READY_PREFIX}{} {result}", ready.check);
        let now = self.now();
        let began = self.lifecycle.started.unwrap_or(now);
        let waited = now.saturating_duration_since(began).as_secs();
        let limit = match ready.deadline {
            Some(deadline) if !self.lifecycle.adopted => {
                format!("{waited} of {} s", deadline.as_secs_f32())
            }
            _ => format!("{waited} s"),
        };
        let text = format!("{result}, attempt {}, {limit}", report.attempts);
        self.lifecycle.ready_result = result;
        self.show_note(Note::new(Reason::Ready, text));
    }

    /// Shows a failure that is no verdict yet, or hides it after a success.
    fn show_alive_result(&mut self, report: &ProbeReport) {
        if report.outcome == Outcome::Holds {
            if self.lifecycle.note.reason == Reason::Alive {
                self.show_note(Note::default());
            }
            return;
        }
        let note = self.alive_note(report);
        if note != self.lifecycle.note {
            self.show_note(note);
        }
    }

    /// The note about failed `alive` probes: the last reason, and how many failed in a row.
    fn alive_note(&self, report: &ProbeReport) -> Note {
        let Some(alive) = &self.lifecycle.spec.alive else {
            return Note::default();
        };
        let Outcome::Fails { reason, .. } = &report.outcome else {
            return Note::default();
        };
        let text = format!(
            "{ALIVE_PREFIX}{} {reason}, {} of {}",
            alive.check, report.in_a_row, alive.failure_threshold
        );
        Note::new(Reason::Alive, text)
    }

    /// Stops the workload, whose `alive` condition has failed, and restarts it by its policy. If
    /// its `alive` block says so, the failure is only shown.
    // [impl->swdd~agent-lifecycle-alive~1]
    fn on_not_alive(&mut self, report: &ProbeReport) {
        let note = self.alive_note(report);
        warn!(
            "Workload '{}' does not work any more: '{}'",
            self.instance.workload, note.text
        );
        if let Some(alive) = &self.lifecycle.spec.alive
            && alive.action == AliveAction::Report
        {
            return self.show_note(note);
        }
        if self.has_ended_unnoticed()
            && let Some(id) = self.container.clone()
        {
            self.stop_probe();
            // The state checker will report how it ended. If it runs after all, it is probed again.
            return self.watch(id, None, KnownEnd::default());
        }
        self.unwatch(); // The state checker must not report the stop as a failure of its own.
        let stopped = match (self.connector(), &self.container) {
            (Some(mut connector), Some(id)) => connector.stop(id),
            _ => Ok(()),
        };
        match stopped {
            Ok(()) => self.on_failed(note.state(Phase::FailedExecFailed)),
            Err(error) => {
                warn!(
                    "Could not stop workload '{}': '{error}'",
                    self.instance.workload
                );
                self.delete_unshown(AfterDelete::Failed(note.text));
            }
        }
    }

    /// Whether the container has ended, and the state checker has not reported that yet. Then the
    /// end is the reason to show, and the failed probe only follows from it.
    fn has_ended_unnoticed(&self) -> bool {
        if !self.is_watched {
            return false; // No report of an end is outstanding.
        }
        let (Some(mut connector), Some(id)) = (self.connector(), &self.container) else {
            return false;
        };
        let Ok(listed) = connector.list() else {
            return false; // Unknown, so the failed probe is the reason to show.
        };
        for found in listed {
            if found.id == *id {
                return found.state.phase.has_ended();
            }
        }
        false
    }

    /// Reports that the workload has failed and its container has ended. Restarts it by its policy.
    pub(super) fn on_failed(&mut self, state: ExecutionState) {
        let phase = state.phase;
        self.report_ended(state, self.restart_kind(phase));
    }

    /// Reports the end of a workload. Restarts it, now or later, if its policy (`restart`) and its
    /// limit of restarts allow.
    // [impl->swdd~agent-lifecycle-restarts~1]
    pub(super) fn report_ended(&mut self, state: ExecutionState, restart: Option<EndKind>) {
        let Some(ended) = restart else {
            self.note_end(&state);
            return self.report(state);
        };
        let now = self.now();
        let Some(at) = self.restarts.next(ended, now, &mut self.random) else {
            return self.report_last_end(state);
        };
        self.report(state);
        if at <= now {
            self.restart(ended);
        } else {
            self.stage = LoopStage::RestartAt(at, ended);
        }
    }

    /// Reports an end after which the limit of restarts is reached.
    fn report_last_end(&mut self, mut state: ExecutionState) {
        self.note_end(&state);
        let last = match &*state.additional_info {
            "" => "it failed",
            info => info,
        };
        state.additional_info = short_info(format!("{NO_MORE_RESTARTS}{last}")).into();
        state.reason = Reason::NoMoreRestarts;
        warn!(
            "No more restarts of workload '{}': '{}'",
            self.instance.workload, state.additional_info
        );
        self.report(state);
    }

    // --------------------------------------------------------------- deadlines

    /// Acts on the passed deadline of the `gone` or the `ready` condition.
    pub(super) fn on_lifecycle_due(&mut self) {
        self.lifecycle.deadline = None;
        if self.lifecycle.is_probing(Purpose::Gone) {
            let limit = self.gone_deadline().unwrap_or_default().as_secs_f32();
            warn!(
                "Workload '{}' is not gone {limit} s after it was removed",
                self.instance.workload
            );
            self.report_not_gone(0); // After the deadline, no number of attempts is shown.
        } else if self.lifecycle.is_probing(Purpose::Ready) {
            self.on_ready_deadline();
        }
    }

    /// Removes the container, which did not become ready in time, and starts the workload again. If
    /// its block says so, it continues to wait instead.
    fn on_ready_deadline(&mut self) {
        let Some(ready) = self.lifecycle.spec.ready.clone() else {
            return;
        };
        let limit = ready.deadline.unwrap_or_default().as_secs_f32();
        if ready.on_deadline == OnDeadline::Wait {
            warn!(
                "Workload '{}' is not ready after {limit} s, still waiting",
                self.instance.workload
            );
            return;
        }
        let mut last = self.lifecycle.ready_result.clone();
        if last.is_empty() {
            last = format!("{READY_PREFIX}{}", ready.check);
        }
        let cause = short_info(format!("{last}, not ready within {limit} s"));
        self.delete_unshown(AfterDelete::NotReady(cause));
    }

    /// Starts the workload again later. Its container did not become ready and is removed.
    pub(super) fn retry_not_ready(&mut self, cause: &str) {
        let now = self.now();
        self.note_start(StartProgress::Failed);
        self.restart_control_interface();
        let Some(at) = self.restarts.next_start(now, &mut self.random) else {
            warn!(
                "No more restarts of workload '{}': '{cause}'",
                self.instance.workload
            );
            let note = Note::new(Reason::NoMoreRestarts, format!("{NO_MORE_RESTARTS}{cause}"));
            self.report(note.state(Phase::FailedExecFailed));
            return;
        };
        let retry = self.restarts.unsuccessful();
        info!(
            "Retrying workload creation for: '{}'. Error: '{cause}'",
            self.instance.workload
        );
        self.report(ExecutionState::retry_starting(retry, cause));
        self.stage = LoopStage::RetryAt(at);
    }

    // -------------------------------------------------------------------- gone

    fn gone_deadline(&self) -> Option<Duration> {
        self.lifecycle.spec.gone.as_ref()?.deadline
    }

    /// Probes the `gone` condition of the removed container. When it holds, `after` follows.
    // [impl->swdd~agent-lifecycle-gone~1]
    pub(super) fn wait_until_gone(&mut self, after: AfterDelete) {
        let Some(gone) = self.lifecycle.spec.gone.clone() else {
            return;
        };
        self.lifecycle.deadline = gone.deadline.map(|deadline| self.now() + deadline);
        self.stage = LoopStage::AwaitingGone(after);
        self.start_probe(Purpose::Gone, gone.pace.initial_delay);
    }

    /// Does what follows the removal, since the `gone` condition holds.
    fn on_gone(&mut self) {
        self.stop_probe();
        self.lifecycle.must_be_gone = false;
        self.lifecycle.deadline = None;
        match std::mem::replace(&mut self.stage, LoopStage::Idle) {
            LoopStage::AwaitingGone(after) => self.on_deleted(after),
            other => self.stage = other,
        }
    }

    /// Reports that the `gone` condition does not hold yet. After its deadline this is a failed
    /// delete.
    fn report_not_gone(&mut self, attempts: u32) {
        let Some(gone) = &self.lifecycle.spec.gone else {
            return;
        };
        let mut info = format!("{GONE_PREFIX}{} is still there", gone.check);
        let phase;
        if let Some(limit) = gone.deadline
            && self.lifecycle.deadline.is_none()
        {
            phase = Phase::StoppingDeleteFailed;
            info += &format!(" after {} s", limit.as_secs_f32());
        } else {
            phase = Phase::StoppingRequestedAtRuntime;
            info += &format!(", attempt {attempts}");
        }
        self.report(Note::new(Reason::Gone, info).state(phase));
    }
}

#[cfg(test)]
mod tests;
