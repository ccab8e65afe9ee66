//! Sends an update and waits for its workloads: what `apply`, `set state`, `delete` and `run` have in common
//! (spec/cli.md section 7).
//!
//! Thread: `main`.

use super::error::{CliError, ExitCode};
use super::output::Output;
use super::rows;
use super::session::ServerLink;
use super::settings::Waiting;
use super::wait::{WaitEnd, WaitState, wait};
use crate::clock::Clock;
use crate::model::node::Node;
use std::collections::BTreeMap;

/// A change of the state, ready to be sent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Update {
    /// Parts of a complete state.
    pub new_state: Node,
    /// Which parts to take from it; what it lacks is deleted.
    pub masks: Vec<String>,
}

/// What the commands work with.
pub struct Context<'c, 'w, L, C> {
    /// The server.
    pub link: &'c mut L,
    /// The time.
    pub clock: &'c C,
    /// The streams.
    pub output: &'c mut Output<'w>,
    /// Whether and how to wait after an update.
    pub waiting: Waiting,
}

impl<L: ServerLink, C: Clock> Context<'_, '_, L, C> {
    /// Sends the update and, unless told otherwise, waits until its workloads are where they should be.
    ///
    /// # Errors
    /// The server refused or did not answer, the connection ended, or standard output cannot be written. Workloads
    /// that fail and a wait that was given up are no errors but exit codes.
    pub fn update_and_wait(&mut self, Update { new_state, masks }: Update) -> Result<ExitCode, CliError> {
        self.output.debug(format_args!("updating {}", masks.join(", ")));
        if self.waiting.no_wait {
            self.link.update_state(new_state, masks)?;
            return Ok(ExitCode::Success);
        }
        // The state before knows the runtimes of what the update deletes.
        let before = rows::rows(&self.link.complete_state(&rows::MASKS)?);
        let accepted = self.link.update_state(new_state, masks)?;
        let (added, deleted) = (accepted.added.len(), accepted.deleted.len());
        self.output.debug(format_args!("the server accepted: {added} instances start, {deleted} end"));
        if accepted.added.is_empty() && accepted.deleted.is_empty() {
            self.output.status("Apply successful. No workloads updated.")?;
            return Ok(ExitCode::Success);
        }
        self.output.status("Successfully applied the manifest(s).")?;
        self.output.status("Waiting for workload(s) to reach desired states (press Ctrl+C to interrupt).\n")?;
        let now = self.link.complete_state(&rows::MASKS)?;
        let mut state = WaitState::new(&accepted, before, &now);
        let end = wait(&mut state, self.link, self.clock, self.waiting.limit, self.output)?;
        Ok(self.conclude(&state, end))
    }

    /// Tells what is not as it should be and decides the exit code.
    fn conclude(&mut self, state: &WaitState, end: WaitEnd) -> ExitCode {
        let failures = state.failures();
        failures.iter().for_each(|failure| self.output.warn(failure));
        let mut code = ExitCode::Success;
        if end == WaitEnd::TimedOut {
            let outstanding = state.outstanding();
            outstanding.iter().for_each(|text| self.output.warn(text));
            let limit = self.waiting.limit.unwrap_or_default();
            let text = format!("gave up waiting after '{limit:?}', not there yet: {}", counted(outstanding.len()));
            self.output.error(text, Some("the update stays in force; follow it with 'ank get workloads -w'"));
            code = ExitCode::GaveUp;
        }
        if self.waiting.fail_on_error && !failures.is_empty() {
            let text = format!("the update was accepted, but {} failed", counted(failures.len()));
            self.output.error(text, Some("see the additional info above, or the logs of the workload"));
            code = ExitCode::WorkloadFailed;
        }
        code
    }

    /// Deletes configs by name, and tells which were there.
    ///
    /// # Errors
    /// As [`Self::update_and_wait`]; nothing is waited for.
    pub fn delete_configs(&mut self, names: &[String]) -> Result<ExitCode, CliError> {
        let masks: Vec<String> = names.iter().map(|name| format!("desiredState.configs.{name}")).collect();
        let before = self.link.complete_state(&["desiredState.configs"])?;
        self.link.update_state(Node::empty(), masks)?;
        // The names as a map: each is told once, in order.
        let names: BTreeMap<&str, bool> =
            names.iter().map(|name| (name.as_str(), before.at(&["desiredState", "configs", name]).is_some())).collect();
        for (name, existed) in names {
            if existed {
                self.output.status(&format!("Deleted config '{name}'."))?;
            } else {
                self.output.warn(format_args!("config '{name}' does not exist"));
            }
        }
        Ok(ExitCode::Success)
    }
}

/// The update that deletes workloads by name.
#[must_use]
pub fn delete_workloads(names: &[String]) -> Update {
    let masks = names.iter().map(|name| format!("desiredState.workloads.{name}")).collect();
    Update { new_state: Node::empty(), masks }
}

fn counted(workloads: usize) -> String {
    if workloads == 1 { "1 workload".to_owned() } else { format!("{workloads} workloads") }
}

#[cfg(test)]
mod tests;
