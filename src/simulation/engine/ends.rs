//! The ends of containers, by themselves or by a stop, and the listings that show them. A container
//! that was started with `--rm` removes itself soon after.
//!
//! Thread: the one of the test.

use super::{Answer, Container, Doing, PlannedEnd, World};
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::workload::{RestartPolicy, Workload};
use ankaios_platform::clock::Clock;
use ankaios_runtime::{ContainerId, RuntimeError};
use std::time::Instant;

/// The end of the first line of a configuration that is started with `--rm`.
const REMOVES_ITSELF: &str = " rm";

/// Longest time until a container that removes itself is gone, in milliseconds.
const VANISHES_AFTER_MS: u64 = 600;

/// Longest time in which an engine shows an unknown state of a container that has ended, in
/// milliseconds.
const STRANGE_MS: u64 = 20_000;

/// Whether a workload is started with `--rm`.
pub(crate) fn removes_itself(runtime_config: &str) -> bool {
    match runtime_config.lines().next() {
        Some(line) => line.ends_with(REMOVES_ITSELF),
        None => false,
    }
}

impl World {
    /// Ends the program of a container, if it runs.
    pub(super) fn end(&mut self, id: &ContainerId, code: i64) {
        let lag = self.millis(0..400);
        if self.lose_process(id) {
            return;
        }
        let Some(container) = self.containers.get(id) else {
            return;
        };
        if container.phase() != Phase::Running {
            return;
        }
        let removes_itself = container.removes_itself;
        let now = self.clock.now();
        let mut strange_until = None;
        if self.happens(self.faults.strange_ends) {
            strange_until = Some(now + self.millis(0..STRANGE_MS));
        }
        let mut vanishes_at = None;
        if removes_itself {
            vanishes_at = Some(now + self.millis(0..VANISHES_AFTER_MS));
        }
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let short = container.instance.short();
        let pid = container.pid;
        container.doing = Doing::Ended {
            code,
            shown_from: now + lag,
        };
        container.strange_until = strange_until;
        container.vanishes_at = vanishes_at;
        self.trace
            .line(|| format!("engine: '{short}' ends with {code}"));
        let ended = self.watches.extract_if(.., |watch| watch.pid == pid);
        self.ended.extend(ended);
    }

    /// Ends the process of a container that was never started. If it had one, it was initialised,
    /// and is only created then, or removes itself. Returns whether it was never started.
    fn lose_process(&mut self, id: &ContainerId) -> bool {
        let now = self.clock.now();
        let Some(container) = self.containers.get_mut(id) else {
            return false;
        };
        let Doing::Created { initialised } = &mut container.doing else {
            return false;
        };
        if *initialised {
            *initialised = false;
            container.vanishes_at = None;
            if container.removes_itself {
                container.vanishes_at = Some(now);
            }
            self.trace.line(|| {
                format!(
                    "engine: '{}' is not initialised any more",
                    container.instance.short()
                )
            });
        }
        true
    }

    /// Removes a container that removes itself at this time. Returns whether there was one.
    pub(super) fn take_vanished(&mut self, at: Instant) -> bool {
        for (id, container) in &self.containers {
            if container.vanishes_at == Some(at) {
                let id = id.clone();
                let short = container.instance.short();
                self.trace
                    .line(|| format!("engine: '{short}' removes itself"));
                self.take_away(&id);
                return true;
            }
        }
        false
    }

    pub(super) fn remove(&mut self, id: &ContainerId) -> Result<Answer, RuntimeError> {
        if let Some(container) = self.containers.get(id)
            && container.phase() == Phase::Running
        {
            return Err(super::failed("the container is running"));
        }
        self.take_away(id);
        Ok(Answer::Done)
    }

    /// Removes a container. Its workload may respond for a while after that.
    fn take_away(&mut self, id: &ContainerId) {
        let Some(container) = self.containers.remove(id) else {
            return;
        };
        let mut until = self.clock.now();
        if !self.calm {
            until += self.millis(0..3_000);
        }
        self.lingers.insert(container.instance, until);
    }

    /// A program that starts now. The first word of the configuration says how it ends.
    pub(super) fn running(&mut self, workload: &Workload) -> Doing {
        let since = self.clock.now();
        let code = match workload.runtime_config.split(' ').next() {
            Some("exit0") => 0,
            Some("exit1") => 1,
            _ => return Doing::Running { since, end: None },
        };
        if self.calm && would_restart(workload, code) {
            return Doing::Running { since, end: None };
        }
        let at = since + self.millis(0..8_000);
        Doing::Running {
            since,
            end: Some(PlannedEnd { at, code }),
        }
    }
}

/// Returns whether a workload is restarted after an end with this code.
fn would_restart(workload: &Workload, code: i64) -> bool {
    if removes_itself(&workload.runtime_config) {
        return false; // How it ended is unknown.
    }
    match workload.restart_policy {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => code != 0,
        RestartPolicy::Never => false,
    }
}

impl Container {
    /// The state in a listing.
    pub(super) fn shown(&self, now: Instant) -> ExecutionState {
        match self.doing {
            Doing::Created { initialised: true } => {
                ExecutionState::with_info(Phase::PendingStarting, "initialized")
            }
            Doing::Created { initialised: false } => {
                ExecutionState::with_info(Phase::PendingStarting, "created")
            }
            Doing::Running { .. } => ExecutionState::plain(Phase::Running),
            Doing::Ended { code, shown_from } => {
                if shown_from > now {
                    return ExecutionState::plain(Phase::Running);
                }
                if let Some(until) = self.strange_until
                    && until > now
                {
                    return ExecutionState::with_info(Phase::FailedUnknown, "stopped");
                }
                self.exited(code)
            }
        }
    }

    /// The state after an end with this code. A container that removes itself is lost at any time.
    pub(super) fn exited(&self, code: i64) -> ExecutionState {
        if self.removes_itself {
            ExecutionState::plain(Phase::FailedLost)
        } else {
            ExecutionState::exited(code)
        }
    }
}
