//! The ends of containers, by themselves or by a stop, and the listings that show them. A container
//! that was started with `--rm` removes itself soon after.
//!
//! Thread: the one of the test.

use super::{Answer, Container, Doing, PlannedEnd, World};
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::workload::{RestartPolicy, Workload};
use ankaios_platform::clock::Clock;
use ankaios_runtime::{ContainerId, RuntimeError};
use std::time::{Duration, Instant};

/// The end of the first line of a configuration that is started with `--rm`.
const REMOVES_ITSELF: &str = " rm";

/// Longest time until a container that removes itself is gone, in milliseconds.
const VANISHES_AFTER_MS: u64 = 600;

/// Longest time in which an engine says nothing that anybody understands of a container that ended,
/// in milliseconds.
const STRANGE_MS: u64 = 20_000;

/// Whether a workload is started with `--rm`.
pub(crate) fn removes_itself(runtime_config: &str) -> bool {
    runtime_config
        .lines()
        .next()
        .is_some_and(|line| line.ends_with(REMOVES_ITSELF))
}

impl World {
    pub(super) fn end(&mut self, id: &ContainerId, code: i64) {
        let lag = self.millis(0..400);
        if self.lose_process(id) {
            return;
        }
        if self
            .containers
            .get(id)
            .is_none_or(|container| container.phase() != Phase::Running)
        {
            return;
        }
        let now = self.clock.now();
        let strange = self
            .happens(self.faults.strange_ends)
            .then(|| now + self.millis(0..STRANGE_MS));
        let vanishes = self
            .containers
            .get(id)
            .is_some_and(|it| it.removes_itself)
            .then(|| now + self.millis(0..VANISHES_AFTER_MS));
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let (short, pid) = (container.instance.short(), container.pid);
        container.doing = Doing::Ended {
            code,
            shown_from: now + lag,
        };
        (container.strange_until, container.vanishes_at) = (strange, vanishes);
        self.trace
            .line(|| format!("engine: '{short}' ends with {code}"));
        let ended = self.watches.extract_if(.., |watch| watch.pid == pid);
        self.ended.extend(ended);
    }

    /// An initialised container has lost its process: it is only created then, or removes itself.
    /// Returns whether the container was never started, so that no start of it has ended.
    fn lose_process(&mut self, id: &ContainerId) -> bool {
        let now = self.clock.now();
        let Some(container) = self.containers.get_mut(id) else {
            return false;
        };
        let Doing::Created { initialised } = &mut container.doing else {
            return false;
        };
        if std::mem::take(initialised) {
            container.vanishes_at = container.removes_itself.then_some(now);
            self.trace.line(|| {
                format!(
                    "engine: '{}' is not initialised any more",
                    container.instance.short()
                )
            });
        }
        true
    }

    /// Whether a container that removes itself has done so now.
    pub(super) fn take_vanished(&mut self, at: Instant) -> bool {
        let vanished = self
            .containers
            .iter()
            .find(|(_, container)| container.vanishes_at == Some(at));
        let Some((id, short)) =
            vanished.map(|(id, container)| (id.clone(), container.instance.short()))
        else {
            return false;
        };
        self.trace
            .line(|| format!("engine: '{short}' removes itself"));
        self.take_away(&id);
        true
    }

    pub(super) fn remove(&mut self, id: &ContainerId) -> Result<Answer, RuntimeError> {
        if self
            .containers
            .get(id)
            .is_some_and(|container| container.phase() == Phase::Running)
        {
            return Err(super::failed("the container is running"));
        }
        self.take_away(id);
        Ok(Answer::Done)
    }

    fn take_away(&mut self, id: &ContainerId) {
        if let Some(container) = self.containers.remove(id) {
            let lingers = if self.calm {
                Duration::ZERO
            } else {
                self.millis(0..3_000)
            };
            self.lingers
                .insert(container.instance, self.clock.now() + lingers);
        }
    }

    /// The first word of the configuration says how the program ends.
    pub(super) fn running(&mut self, workload: &Workload) -> Doing {
        let since = self.clock.now();
        let restarts = |code| match workload.restart_policy {
            _ if removes_itself(&workload.runtime_config) => false, // It is lost.
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => code != 0,
            RestartPolicy::Never => false,
        };
        let code = match workload.runtime_config.split(' ').next() {
            Some("exit0") => 0,
            Some("exit1") => 1,
            _ => return Doing::Running { since, end: None },
        };
        if self.calm && restarts(code) {
            return Doing::Running { since, end: None };
        }
        let at = since + self.millis(0..8_000);
        Doing::Running {
            since,
            end: Some(PlannedEnd { at, code }),
        }
    }
}

impl Container {
    /// What a listing says.
    pub(super) fn shown(&self, now: Instant) -> ExecutionState {
        match self.doing {
            Doing::Created { initialised } => ExecutionState::with_info(
                Phase::PendingStarting,
                if initialised {
                    "initialized"
                } else {
                    "created"
                },
            ),
            Doing::Ended { shown_from, .. } if shown_from > now => {
                ExecutionState::plain(Phase::Running)
            }
            Doing::Ended { .. } if self.strange_until.is_some_and(|until| until > now) => {
                ExecutionState::with_info(Phase::FailedUnknown, "stopped")
            }
            Doing::Ended { code, .. } => self.exited(code),
            Doing::Running { .. } => ExecutionState::plain(Phase::Running),
        }
    }

    /// Who removes itself is lost whenever it is looked at.
    pub(super) fn exited(&self, code: i64) -> ExecutionState {
        if self.removes_itself {
            ExecutionState::plain(Phase::FailedLost)
        } else {
            ExecutionState::exited(code)
        }
    }
}
