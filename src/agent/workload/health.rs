//! What the `lifecycle:` block of a workload changes while it starts, runs and ends.
//!
//! Thread: `wl:<name>`; part of [`WorkloadControlLoop`].
//! Owns: whether the workload is ready, its deadlines, its notify socket. Takes:
//! [`ProbeReport`] from `probes`.
//! Gives: [`ProbeOrder`] to `probes`, states to the scheduler (may block there).

use super::status::StartProgress;
use super::{AfterDelete, Stage, WorkloadControlLoop};
use crate::backoff::{Ended, RestartBackoff};
use crate::events::Note;
use crate::state_checker::KnownEnd;
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::lifecycle::{AliveAction, Check, Lifecycle, OnDeadline, Pace, Ready};
use ankaios_model::reason::{ALIVE_PREFIX, GONE_PREFIX, NO_MORE_RESTARTS, READY_PREFIX, Reason};
use ankaios_platform::clock::Clock;
use ankaios_runtime::probes::prober::{notify_socket, notify_socket_path};
use ankaios_runtime::probes::{Outcome, ProbeOrder, ProbeReport, Purpose, short_info};
use ankaios_runtime::{ProbeTarget, RuntimeError};
use log::{info, warn};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Pause before the engine is asked again for the address of a workload.
const MISSING_TARGET_RETRY: Duration = Duration::from_secs(1);

/// Identifies the next probe of this process.
static NEXT_KEY: AtomicU64 = AtomicU64::new(1);

/// One instance from its start to its end: created, starting, ready (which stays), ended.
#[derive(Default)]
pub(super) struct InstanceLifecycle {
    spec: Arc<Lifecycle>,
    /// Why the block cannot be followed.
    pub(super) invalid: Option<String>,
    /// This control loop has started the container; it is not one that runs again, or ran when the
    /// agent started.
    just_started: bool,
    /// An earlier agent started the container, so no deadline ends it.
    pub(super) adopted: bool,
    started: Option<Instant>,
    is_ready: bool,
    /// When `ready` or `gone` should hold.
    pub(super) deadline: Option<Instant>,
    /// The phase that the state checker observed last.
    observed: Option<Phase>,
    /// What is shown beside the phase of the container.
    note: Note,
    /// The last result of the `ready` condition, without how often it was checked.
    ready_result: String,
    probe: Option<Probe>,
    notify: Option<NotifySocket>,
    /// There was a container that its `gone` condition is about.
    must_be_gone: bool,
}

/// The probe that is ordered.
struct Probe {
    key: u64,
    purpose: Purpose,
    /// The engine did not know where to probe.
    incomplete: bool,
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
    /// Whether the removed container has to be probed before what follows.
    pub(super) fn has_gone_condition(&self) -> bool {
        self.must_be_gone && self.spec.gone.is_some()
    }

    /// Whether the container was seen to have ended.
    pub(super) fn has_ended(&self) -> bool {
        self.observed.is_some_and(Phase::has_ended)
    }

    /// A stopping state as others have to see it: they wait for the end when there is a `gone`
    /// condition.
    pub(super) fn stopping(&self, state: ExecutionState) -> ExecutionState {
        let Some(gone) = self
            .spec
            .gone
            .as_ref()
            .filter(|_| self.has_gone_condition())
        else {
            return state;
        };
        let info = match &*state.additional_info {
            "" => format!("{GONE_PREFIX}{} must not be there any more", gone.check),
            info => format!("{GONE_PREFIX}not removed yet: {info}"),
        };
        Note::new(Reason::Gone, info).state(state.phase)
    }
}

impl<C: Clock> WorkloadControlLoop<C> {
    /// Reads the block of what is to run from now on. Nothing of an earlier instance counts.
    pub(super) fn take_lifecycle(&mut self) {
        self.stop_probe();
        let config = self.wanted.as_ref().map(|workload| workload.config());
        let (spec, invalid) = match config.as_ref().map(|config| &config.lifecycle) {
            Some(Ok(spec)) => (spec.clone().unwrap_or_default(), None),
            Some(Err(error)) => (Arc::default(), Some(error.to_string())),
            None => (Arc::default(), None),
        };
        self.restarts = RestartBackoff::new(self.context.restart_backoff, spec.restart);
        self.lifecycle = InstanceLifecycle {
            spec,
            invalid,
            ..InstanceLifecycle::default()
        };
    }

    // ------------------------------------------------------------------ start

    /// Makes the socket that the workload notifies, if it does.
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
                let is_too_long = error.raw_os_error() == Some(Errno::NAMETOOLONG.raw_os_error());
                Err(if is_too_long {
                    RuntimeError::Unsupported(format!("{cause}; a shorter run folder may help"))
                } else {
                    RuntimeError::NotStarted(cause.into())
                })
            }
        }
    }

    /// The container runs, as far as is known.
    pub(super) fn lifecycle_started(&mut self, just_started: bool) {
        let now = self.now();
        let lifecycle = &mut self.lifecycle;
        lifecycle.just_started = just_started;
        lifecycle.adopted &= !just_started;
        (lifecycle.started, lifecycle.observed, lifecycle.is_ready) = (Some(now), None, false);
        lifecycle.note = Note::default();
        lifecycle.ready_result.clear();
        lifecycle.must_be_gone = true;
        // One that runs already does not notify again.
        let waits = |ready: &Ready| just_started || ready.check != Check::Notify;
        let Some(ready) = lifecycle.spec.ready.clone().filter(waits) else {
            lifecycle.is_ready = true;
            return self.restarts.running(now);
        };
        // No deadline ends a container of an earlier agent. One of ours that runs again has all its
        // time.
        lifecycle.deadline = ready
            .deadline
            .filter(|_| !lifecycle.adopted)
            .map(|deadline| now + deadline);
        let initial_delay = if just_started {
            ready.pace.initial_delay
        } else {
            Duration::ZERO
        };
        self.start_probe(Purpose::Ready, initial_delay);
    }

    /// Orders a probe; it replaces the one before.
    fn start_probe(&mut self, purpose: Purpose, initial_delay: Duration) {
        let spec = &self.lifecycle.spec;
        let ordered = match purpose {
            Purpose::Ready => spec
                .ready
                .as_ref()
                .map(|one| (&one.check, one.pace, one.success_threshold, None)),
            Purpose::Alive => spec
                .alive
                .as_ref()
                .map(|one| (&one.check, one.pace, 1, Some(one.failure_threshold))),
            Purpose::Gone => spec
                .gone
                .as_ref()
                .map(|one| (&one.check, one.pace, 1, Some(1))),
        };
        let Some((check, pace, successes, failures)) = ordered else {
            return;
        };
        let (check, pace) = (
            check.clone(),
            Pace {
                initial_delay,
                ..pace
            },
        );
        self.stop_probe();
        let in_container = matches!(check, Check::Exec(_));
        let in_network =
            matches!(check, Check::Tcp { .. } | Check::Http { .. }) && purpose != Purpose::Gone;
        let mut target = ProbeTarget::default();
        let mut incomplete = false;
        let process = self
            .process
            .clone()
            .filter(|_| in_network && self.lifecycle.just_started);
        if let Some(process) = process {
            target.processes.push(process); // No call of the engine is needed.
        } else if (in_container || in_network)
            && let (Some(mut connector), Some(id)) = (self.connector(), &self.container)
        {
            match connector.probe_target(id, in_network) {
                Ok(found) => target = found,
                Err(error) => {
                    warn!(
                        "The container of workload '{}' cannot be found for probes, trying again: '{error}'",
                        self.instance.workload
                    );
                }
            }
            incomplete = (in_container && target.container.is_none())
                || (in_network && target.processes.is_empty());
        }
        let notify = self
            .lifecycle
            .notify
            .as_ref()
            .filter(|_| check == Check::Notify)
            .map(|notify| notify.socket.clone());
        let key = NEXT_KEY.fetch_add(1, Ordering::Relaxed);
        self.lifecycle.probe = Some(Probe {
            key,
            purpose,
            incomplete,
        });
        self.context.probes.watch(ProbeOrder {
            key,
            instance: self.instance.clone(),
            purpose,
            check,
            pace,
            successes,
            failures,
            target,
            notify,
            unarmed: !self.lifecycle.just_started,
            reply: self.mailbox.probe_reply(),
        });
    }

    fn stop_probe(&mut self) {
        if let Some(Probe { key, .. }) = self.lifecycle.probe.take() {
            self.context.probes.unwatch(key);
        }
    }

    /// The container ends or is removed: neither readiness nor its absence means anything any more.
    pub(super) fn lifecycle_ended(&mut self) {
        self.stop_probe();
        (
            self.lifecycle.notify,
            self.lifecycle.deadline,
            self.lifecycle.is_ready,
        ) = (None, None, false);
        self.lifecycle.started = None;
        self.lifecycle.note = Note::default();
        self.lifecycle.ready_result.clear();
    }

    // ----------------------------------------------------------------- states

    /// The state to show for that of the container: one that runs and is not ready is still
    /// starting.
    pub(super) fn lifecycle_view(&mut self, state: ExecutionState) -> ExecutionState {
        self.lifecycle.observed = Some(state.phase);
        match state.phase {
            Phase::Running => {
                if self.lifecycle.started.is_none() {
                    // It was started by others, or its engine listed it wrongly as ended.
                    self.lifecycle_started(false);
                    self.lifecycle.observed = Some(Phase::Running);
                }
                self.check_alive();
                self.running_view()
            }
            Phase::Succeeded | Phase::FailedExecFailed | Phase::FailedLost => {
                self.lifecycle_ended();
                state
            }
            _ => {
                if self
                    .lifecycle
                    .probe
                    .as_ref()
                    .is_some_and(|probe| probe.purpose == Purpose::Alive)
                {
                    self.stop_probe(); // Paused or unknown: a result would mean nothing.
                }
                state
            }
        }
    }

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

    /// Shows the result of a probe in the state of a running container.
    fn show_note(&mut self, note: Note) {
        self.lifecycle.note = note;
        if self.lifecycle.observed == Some(Phase::Running) {
            let state = self.running_view();
            self.report(state);
        }
    }

    /// Starts the liveness probe once the workload is ready.
    fn check_alive(&mut self) {
        if !self.lifecycle.is_ready || self.lifecycle.probe.is_some() {
            return;
        }
        let Some(alive) = self.lifecycle.spec.alive.clone() else {
            return;
        };
        if alive.check == Check::Notify
            && self.lifecycle.notify.is_none()
            && self.open_notify_socket().is_err()
        {
            return; // After a restart of the agent only; without the socket nothing arrives.
        }
        self.start_probe(Purpose::Alive, alive.pace.period);
    }

    // ----------------------------------------------------------------- results

    pub(super) fn on_probed(&mut self, report: &ProbeReport) {
        let Some(Probe {
            key,
            purpose,
            incomplete,
        }) = self.lifecycle.probe
        else {
            return;
        };
        if key != report.key {
            return; // Of a probe that is not wanted any more.
        }
        let holds = report.outcome == Outcome::Holds;
        match purpose {
            Purpose::Ready if holds && report.is_verdict => return self.on_ready(report),
            Purpose::Alive if !holds && report.is_verdict => return self.on_not_alive(report),
            Purpose::Gone if !holds => return self.on_gone(),
            Purpose::Ready => {
                let note = self.take_ready_result(report);
                self.show_note(note);
            }
            Purpose::Alive => {
                let note = if holds {
                    Note::default()
                } else {
                    self.alive_note(report)
                };
                let shows_failure = self.lifecycle.note.reason == Reason::Alive;
                if note != self.lifecycle.note && (!holds || shows_failure) {
                    self.show_note(note);
                }
            }
            Purpose::Gone => {
                let overdue = self.lifecycle.deadline.is_none() && self.gone_deadline().is_some();
                let phase = if overdue {
                    Phase::StoppingDeleteFailed
                } else {
                    Phase::StoppingRequestedAtRuntime
                };
                self.report_not_gone(phase, report.attempts);
            }
        }
        if incomplete && !holds {
            // The engine may know now where to probe.
            self.start_probe(purpose, MISSING_TARGET_RETRY);
        }
    }

    // [impl->swdd~agent-lifecycle-ready~1]
    fn on_ready(&mut self, report: &ProbeReport) {
        self.stop_probe();
        (self.lifecycle.is_ready, self.lifecycle.deadline) = (true, None);
        self.restarts.running(self.now());
        info!("Workload '{}' is ready.", self.instance.workload);
        let watched = self
            .lifecycle
            .spec
            .alive
            .as_ref()
            .is_some_and(|alive| alive.check == Check::Notify);
        if !watched {
            self.lifecycle.notify = None; // No probe would read it.
        }
        let check = self
            .lifecycle
            .spec
            .ready
            .as_ref()
            .map(|ready| ready.check.to_string())
            .unwrap_or_default();
        let attempt = if check == "notify" {
            String::new()
        } else {
            format!(", attempt {}", report.attempts)
        };
        let text = format!("{READY_PREFIX}{check} answered{attempt}");
        self.show_note(Note::new(Reason::Ready, text));
        if self.lifecycle.observed == Some(Phase::Running) {
            self.check_alive();
        }
    }

    /// Keeps a result that does not make the workload ready, and returns what is shown of it.
    fn take_ready_result(&mut self, report: &ProbeReport) -> Note {
        let Some(ready) = &self.lifecycle.spec.ready else {
            return Note::default();
        };
        let began = self.lifecycle.started.unwrap_or_else(|| self.now());
        let waited = self.now().saturating_duration_since(began).as_secs();
        let limit = match ready.deadline {
            Some(deadline) if !self.lifecycle.adopted => {
                format!("{waited} of {} s", deadline.as_secs_f32())
            }
            _ => format!("{waited} s"),
        };
        let result = match &report.outcome {
            Outcome::Holds => format!(
                "answered {} of {} times",
                report.in_a_row, ready.success_threshold
            ),
            Outcome::Fails { reason, .. } => reason.clone(),
        };
        let result = format!("{READY_PREFIX}{} {result}", ready.check);
        let text = format!("{result}, attempt {}, {limit}", report.attempts);
        self.lifecycle.ready_result = result;
        Note::new(Reason::Ready, text)
    }

    fn alive_note(&self, report: &ProbeReport) -> Note {
        let Some(alive) = &self.lifecycle.spec.alive else {
            return Note::default();
        };
        let result = match &report.outcome {
            Outcome::Holds => "answered".to_owned(),
            Outcome::Fails { reason, .. } => reason.clone(),
        };
        let text = format!(
            "{ALIVE_PREFIX}{} {result}, {} of {}",
            alive.check, report.in_a_row, alive.failure_threshold
        );
        Note::new(Reason::Alive, text)
    }

    // [impl->swdd~agent-lifecycle-alive~1]
    fn on_not_alive(&mut self, report: &ProbeReport) {
        let note = self.alive_note(report);
        warn!(
            "Workload '{}' does not work any more: '{}'",
            self.instance.workload, note.text
        );
        if self
            .lifecycle
            .spec
            .alive
            .as_ref()
            .is_some_and(|alive| alive.action == AliveAction::Report)
        {
            return self.show_note(note);
        }
        if self.has_ended_unnoticed()
            && let Some(id) = self.container.clone()
        {
            self.stop_probe();
            // The state checker reports how it ended. If it runs after all, it is probed again.
            return self.watch(id, None, KnownEnd::default());
        }
        self.unwatch(); // How it ends now does not count.
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
                self.delete_unshown(AfterDelete::Failed(note.text))
            }
        }
    }

    /// Whether the container has ended and its state checker has not reported it yet: the end
    /// counts, not the probe.
    fn has_ended_unnoticed(&self) -> bool {
        let (Some(mut connector), Some(id), true) =
            (self.connector(), self.container.as_ref(), self.watching)
        else {
            return false;
        };
        let Ok(listed) = connector.list() else {
            return false;
        }; // The result of the probe counts then.
        let found = listed.into_iter().find(|found| found.id == *id);
        found.is_some_and(|found| found.state.phase.has_ended())
    }

    /// The workload failed and has ended: its restart policy decides.
    pub(super) fn on_failed(&mut self, state: ExecutionState) {
        let phase = state.phase;
        self.report_ended(state, self.needs_restart(phase))
    }

    /// Reports the end of a workload and starts it again if its policy and its limit of restarts
    /// allow.
    // [impl->swdd~agent-lifecycle-restarts~1]
    pub(super) fn report_ended(&mut self, mut state: ExecutionState, restart: Option<Ended>) {
        let now = self.now();
        let at = restart
            .and_then(|ended| Some((ended, self.restarts.next(ended, now, &mut self.random)?)));
        if at.is_none() {
            self.note_end(&state);
        }
        if restart.is_some() && at.is_none() {
            let last = if state.additional_info.is_empty() {
                "it failed"
            } else {
                &state.additional_info
            };
            state.additional_info = short_info(format!("{NO_MORE_RESTARTS}{last}")).into();
            state.reason = Reason::NoMoreRestarts;
            warn!(
                "No more restarts of workload '{}': '{}'",
                self.instance.workload, state.additional_info
            );
        }
        self.report(state);
        match at {
            Some((ended, at)) if at <= now => self.restart(ended),
            Some((ended, at)) => self.stage = Stage::RestartAt(at, ended),
            None => {}
        }
    }

    // --------------------------------------------------------------- deadlines

    pub(super) fn on_lifecycle_due(&mut self) {
        self.lifecycle.deadline = None;
        match self.lifecycle.probe {
            Some(Probe {
                purpose: Purpose::Gone,
                ..
            }) => {
                let limit = self.gone_deadline().unwrap_or_default().as_secs_f32();
                warn!(
                    "Workload '{}' is not gone {limit} s after it was removed",
                    self.instance.workload
                );
                self.report_not_gone(Phase::StoppingDeleteFailed, 0);
            }
            Some(Probe {
                purpose: Purpose::Ready,
                ..
            }) => self.on_ready_deadline(),
            _ => {}
        }
    }

    fn on_ready_deadline(&mut self) {
        let Some(ready) = self.lifecycle.spec.ready.clone() else {
            return;
        };
        let limit = ready.deadline.unwrap_or_default().as_secs_f32();
        if ready.on_deadline == OnDeadline::Wait {
            warn!(
                "Workload '{}' is not ready after {limit} s, waiting on",
                self.instance.workload
            );
            return;
        }
        let mut last = self.lifecycle.ready_result.clone();
        if last.is_empty() {
            last = format!("{READY_PREFIX}{}", ready.check);
        }
        let cause = short_info(format!("{last}, not ready within {limit} s"));
        self.delete_unshown(AfterDelete::NotReady(cause))
    }

    /// The container that did not become ready is removed.
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
        self.stage = Stage::RetryAt(at);
    }

    // -------------------------------------------------------------------- gone

    fn gone_deadline(&self) -> Option<Duration> {
        self.lifecycle.spec.gone.as_ref()?.deadline
    }

    // [impl->swdd~agent-lifecycle-gone~1]
    pub(super) fn wait_until_gone(&mut self, after: AfterDelete) {
        let Some(gone) = self.lifecycle.spec.gone.clone() else {
            return;
        };
        self.lifecycle.deadline = gone.deadline.map(|deadline| self.now() + deadline);
        self.stage = Stage::Gone(after);
        self.start_probe(Purpose::Gone, gone.pace.initial_delay);
    }

    fn on_gone(&mut self) {
        self.stop_probe();
        (self.lifecycle.must_be_gone, self.lifecycle.deadline) = (false, None);
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Gone(after) => self.deleted(after),
            other => self.stage = other,
        }
    }

    fn report_not_gone(&mut self, phase: Phase, attempts: u32) {
        let Some(gone) = &self.lifecycle.spec.gone else {
            return;
        };
        let limit = gone
            .deadline
            .map_or_else(String::new, |limit| format!("{} s", limit.as_secs_f32()));
        let info = match phase {
            Phase::StoppingDeleteFailed => {
                format!("{GONE_PREFIX}{} is still there after {limit}", gone.check)
            }
            _ => format!(
                "{GONE_PREFIX}{} is still there, attempt {attempts}",
                gone.check
            ),
        };
        self.report(Note::new(Reason::Gone, info).state(phase));
    }
}
