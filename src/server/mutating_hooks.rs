//! Mutating hooks: outside programs that change or veto the plan of an update.
//!
//! Thread: `hook` runs the programs one after the other; [`MutatingHooks`] belongs to `server`,
//! which never waits for them, and to `main` at the start, which does.
//! Owns: the running program. Takes: one [`WorkloadPlan`] at a time. Gives: a [`HookOutcome`] for
//! each.

use super::settings::HookEntry;
use crate::limits::HOOK_KILL_GRACE;
use crate::updates::UpdateError;
use ankaios_model::messages::WorkloadPlan;
use ankaios_platform::child::{Cancel, ChildCall, Ending, OutputBounds, reap_later};
use ankaios_platform::limits::STACK_LARGE;
use ankaios_platform::memory::give_back_after;
use ankaios_platform::threads::{self, Thread};
use ankaios_wire::hooks::{self, ConvertError};
use crossbeam_channel::{Receiver, Sender, bounded};
use rustix::pipe::{PipeFlags, pipe_with};
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

/// Standard error kept of a hook, in bytes. It becomes part of a response.
const HOOK_ERROR_MAX: usize = 4 * 1024;

/// The plan as the hooks have changed it; `None` when they left it unchanged.
pub type HookOutcome = Result<Option<WorkloadPlan>, UpdateError>;

/// The ends of the channels that the `hook` thread has.
pub(crate) struct HookThreadEnds {
    pub(crate) plans: Receiver<WorkloadPlan>,
    pub(crate) outcomes: Sender<HookOutcome>,
    /// Readable once a running program must end.
    pub(crate) stopped: OwnedFd,
}

/// The server's end of the `hook` thread. At most one plan is with the hooks at any time.
#[derive(Debug)]
pub struct MutatingHooks {
    plans: Sender<WorkloadPlan>,
    outcomes: Receiver<HookOutcome>,
    /// Dropping it ends a program that runs.
    stop: OwnedFd,
}

impl MutatingHooks {
    /// Starts the thread of the hooks, which run in the order of `entries`. Each may write
    /// `output_max` bytes: more could not be sent to agents either.
    ///
    /// # Errors
    /// The operating system's reason when no thread or pipe can be had.
    pub fn start(entries: Vec<HookEntry>, output_max: usize) -> io::Result<(Self, Thread)> {
        let (hooks, ends) = Self::without_thread()?;
        let thread = threads::spawn("hook", STACK_LARGE, move || {
            for plan in &ends.plans {
                let outcome = run_all(&entries, output_max, &plan, Some(ends.stopped.as_fd()));
                if ends.outcomes.send(outcome).is_err() {
                    return; // The server has ended.
                }
            }
        })?;
        Ok((hooks, thread))
    }

    /// Returns a pipe for the handler of signals: these come also while `main` waits for the hooks.
    /// A byte that is written to it ends the running program and every later one.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub fn interrupt(&self) -> io::Result<OwnedFd> {
        self.stop.try_clone()
    }

    /// Makes the hooks and the channel ends of their thread, but starts no thread.
    pub(crate) fn without_thread() -> io::Result<(Self, HookThreadEnds)> {
        let (plans, thread_plans) = bounded(1);
        let (thread_outcomes, outcomes) = bounded(1);
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)?;
        let hooks = Self {
            plans,
            outcomes,
            stop,
        };
        let ends = HookThreadEnds {
            plans: thread_plans,
            outcomes: thread_outcomes,
            stopped,
        };
        Ok((hooks, ends))
    }

    /// Gives the hooks a plan. Its outcome comes later; until then no other plan may be given.
    pub(crate) fn start_plan(&self, plan: WorkloadPlan) {
        if self.plans.try_send(plan).is_err() {
            log::error!("The mutating hooks do not take an update.");
        }
    }

    /// Gives the hooks a plan and waits for the outcome.
    ///
    /// # Errors
    /// As a hook refuses or fails.
    pub(crate) fn run(&self, plan: WorkloadPlan) -> HookOutcome {
        self.start_plan(plan);
        match self.outcomes.recv() {
            Ok(outcome) => outcome,
            Err(_) => Err(failed("", "the thread of the hooks ended")),
        }
    }

    /// The channel of outcomes, which come in the order of the plans.
    pub(crate) fn outcomes(&self) -> &Receiver<HookOutcome> {
        &self.outcomes
    }
}

/// Gives `plan` to the first hook, its output to the second, and so on. Returns the last output, if
/// it differs from `plan`.
fn run_all(
    entries: &[HookEntry],
    output_max: usize,
    plan: &WorkloadPlan,
    cancel: Cancel<'_>,
) -> HookOutcome {
    let original = hooks::write_plan(plan);
    let mut changed: Option<ChangedPlan> = None;
    for entry in entries {
        let input = match &changed {
            Some(changed) => &changed.bytes,
            None => &original,
        };
        let bytes = run_one(entry, output_max, input, cancel)?;
        if bytes == *input {
            continue; // This hook has changed nothing.
        }
        log::debug!("Hook '{}' changed the update.", entry.name);
        // The output is read before the next hook gets it, so that an error names the hook that
        // made it.
        let plan = hooks::read_plan(&bytes).map_err(|error| unreadable(&entry.name, &error))?;
        changed = Some(ChangedPlan { bytes, plan });
    }
    let size = original.len();
    // A later hook may have undone the change of an earlier one.
    let outcome = match changed {
        Some(changed) if changed.bytes != original => Some(changed.plan),
        _ => None,
    };
    drop(original);
    give_back_after(size);
    Ok(outcome)
}

/// A plan that hooks have changed, with its form for the next hook.
struct ChangedPlan {
    bytes: Vec<u8>,
    plan: WorkloadPlan,
}

fn unreadable(name: &str, error: &ConvertError) -> UpdateError {
    let failed = if error.is_malformed() {
        "decode protobuf"
    } else {
        "convert"
    };
    UpdateError::invalid(format_args!(
        "Failed to {failed} output from hook '{name}': {error}"
    ))
}

/// The error of a hook that did not run to its end.
fn failed(hook: &str, reason: &str) -> UpdateError {
    UpdateError::Other(format!(
        "Mutating hook '{hook}' execution failed: '{reason}'"
    ))
}

/// Runs one hook and returns its output.
fn run_one(
    entry: &HookEntry,
    output_max: usize,
    input: &[u8],
    cancel: Cancel<'_>,
) -> Result<Vec<u8>, UpdateError> {
    let file: PathBuf = entry.path.join(&entry.name);
    log::debug!(
        "Running hook '{}' with {} bytes.",
        file.display(),
        input.len()
    );
    let call = ChildCall {
        program: file.as_os_str(),
        arguments: vec![],
        folder: None,
        variables: vec![],
        input,
        limit: Some(Duration::from_secs(entry.timeout_s.0)),
        bounds: OutputBounds {
            output_max,
            error_max: HOOK_ERROR_MAX,
            end_when_exceeded: true,
        },
        kill_grace: HOOK_KILL_GRACE,
    };
    let file = file.display();
    let end = match call.run(cancel, || None) {
        Ok(end) => end,
        Err(error) => {
            let reason = format!("Failed to execute hook '{file}': {error}");
            return Err(failed(&entry.name, &reason));
        }
    };
    if let Some(child) = end.left_over {
        reap_later(child, ());
    }
    let error_output = if end.error_output.is_empty() {
        String::new()
    } else {
        format!(". Its error output: '{}'", end.error_output)
    };
    let reason = match end.ending {
        Ending::Itself => {
            let has_succeeded = end.status.is_some_and(|status| status.success());
            if !has_succeeded {
                return Err(rejected(&entry.name, end.error_output, end.status));
            }
            let Some(error) = end.input_error else {
                log::debug!("Hook '{}' accepted the update{error_output}.", entry.name);
                return Ok(end.output);
            };
            format!("Failed to write to hook '{file}' stdin: {error}")
        }
        Ending::TimedOut(limit) => {
            format!("Hook '{file}' did not end within {limit:?} and was ended{error_output}")
        }
        Ending::TooMuchOutput => {
            format!("Hook '{file}' wrote more than {output_max} bytes and was ended")
        }
        Ending::Cancelled => "The server is ending".to_owned(),
    };
    Err(failed(&entry.name, &reason))
}

/// The error of a hook that has ended with another exit status than 0.
fn rejected(hook: &str, error_output: String, status: Option<impl Display>) -> UpdateError {
    let mut reason = error_output;
    if reason.is_empty() {
        reason = match status {
            Some(status) => format!("it ended with {status} and without error output"),
            None => "it ended without error output and with an unknown exit status".to_owned(),
        };
    }
    UpdateError::Veto {
        hook: hook.to_owned(),
        reason: format!("Hook '{hook}' rejected the change: {reason}"),
    }
}

#[cfg(test)]
mod tests;
