//! Sends an update and waits for its workloads: what `apply`, `set state`, `delete` and `run` have in common.
//!
//! Thread: `main`.

use super::error::{CliError, CommandError, ExitCode, meant, shown};
use super::output::Output;
use super::rows;
use super::session::ServerLink;
use super::settings::Waiting;
use super::table::{TooWide, one_line};
use super::wait::{self, WaitEnd, WaitState};
use crate::limits::{MANIFEST_MAX, NAME_MAX};
use crate::model::names::is_name;
use crate::model::node::Node;
use crate::platform::clock::Clock;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};

/// A change of the state, ready to be sent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Update {
    /// Parts of a complete state.
    pub new_state: Node,
    /// Which parts to take from it; what it lacks is deleted.
    pub masks: Vec<String>,
    /// Workloads that the command line names: one that does not exist may be a typing error.
    pub deleted: Vec<String>,
    /// What is printed first when the server has accepted it; may be empty.
    pub accepted: String,
    /// Whether a server without modes must not get workloads with the tag `modes`.
    pub checks_modes: bool,
}

/// What changing commands work with.
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
    /// Sends the update and, unless `no_wait` is set, waits until its workloads have reached their states.
    ///
    /// # Errors
    /// The server refused or did not respond, the connection ended, or standard output cannot be written. Workloads
    /// that fail and a wait that was given up are no errors but exit codes.
    pub fn update_and_wait(
        &mut self,
        Update { new_state, masks, deleted: typed, accepted: text, .. }: Update,
    ) -> Result<ExitCode, CliError> {
        self.output.debug(format_args!("updating {}", masks.join(", ")));
        if self.waiting.no_wait {
            self.link.update_state(new_state, masks)?;
            return Ok(ExitCode::Success);
        }
        // The state before has the runtimes of what the update deletes.
        let before = self.link.complete_state(&rows::MASKS)?;
        let accepted = self.link.update_state(new_state, masks)?;
        self.warn_of_unknown(&before, &typed);
        if !text.is_empty() {
            self.output.status(&text)?;
        }
        let (added, deleted) = (accepted.added.len(), accepted.deleted.len());
        self.output.debug(format_args!("the server accepted: {added} instances start, {deleted} end"));
        if accepted.added.is_empty() && accepted.deleted.is_empty() {
            self.output.status("Apply successful. No workloads updated.")?;
            return Ok(ExitCode::Success);
        }
        self.output.status("Successfully applied the manifest(s).")?;
        self.output.status("Waiting for workload(s) to reach desired states (press Ctrl+C to interrupt).\n")?;
        let now = self.link.complete_state(&rows::MASKS)?;
        let mut state = WaitState::new(&accepted, &before, &now);
        drop((before, now)); // They may be large, and waiting may be long.
        let end = wait::wait(&mut state, self.link, self.clock, self.waiting.limit, self.output)?;
        Ok(self.conclude(&state, end))
    }

    /// Warns about workloads to delete that do not exist.
    fn warn_of_unknown(&mut self, before: &Node, names: &[String]) {
        let known = || rows::entries(before.at(&["desiredState", "workloads"])).map(|(name, _)| name);
        for name in names.iter().filter(|name| !known().any(|known| known == *name)) {
            self.output.warn(format_args!("workload '{name}' does not exist{}", meant(name, known())));
        }
    }

    /// Reports what did not reach its state and decides the exit code.
    fn conclude(&mut self, state: &WaitState, end: WaitEnd) -> ExitCode {
        for (agent, workloads) in state.absent_agents() {
            let workloads = workloads.join("', '");
            let text = format!("agent '{agent}' is not connected; when it connects, it starts '{workloads}'");
            self.output.warn(one_line(&text));
        }
        let failures = state.failures();
        let outstanding = if end == WaitEnd::TimedOut { state.outstanding() } else { Vec::new() };
        let missed = failures.iter().chain(&outstanding).copied().collect::<BTreeSet<_>>();
        if !missed.is_empty() {
            self.output.warn(format_args!("{} did not reach the desired state:", counted(missed.len())));
            let table = state.summary(missed).text(self.output.width(), TooWide::Whole);
            self.output.explain(&table);
        }
        let mut code = ExitCode::Success;
        if end == WaitEnd::TimedOut {
            let limit = shown(self.waiting.limit.unwrap_or_default());
            let text = format!(
                "gave up waiting after '{limit}': {} did not reach the desired state",
                counted(outstanding.len())
            );
            self.output.error(text, Some("the update stays in force; follow it with 'ank get workloads -w'"));
            code = ExitCode::GaveUp;
        }
        if self.waiting.fail_on_error && !failures.is_empty() {
            let text = format!("the update was accepted, but {} failed", counted(failures.len()));
            let logs = state.failure_with_logs().map(|instance| format!(", and 'ank logs {}'", instance.workload));
            self.output.error(text, Some(&format!("see the additional info above{}", logs.unwrap_or_default())));
            code = ExitCode::WorkloadFailed;
        }
        code
    }

    /// Deletes configs by name, and reports which existed.
    ///
    /// # Errors
    /// As [`Self::update_and_wait`]; nothing is waited for.
    pub fn delete_configs(&mut self, names: &[String]) -> Result<ExitCode, CliError> {
        names.iter().try_for_each(|name| check_name("config", name))?;
        let masks: Vec<String> = names.iter().map(|name| format!("desiredState.configs.{name}")).collect();
        // Only for the report: a state that cannot be read must not prevent the deletion.
        let before = self.link.complete_state(&masks.iter().map(String::as_str).collect::<Vec<_>>());
        self.link.update_state(Node::empty(), masks)?;
        // As a set: each name is reported once, in order.
        for name in names.iter().collect::<BTreeSet<_>>() {
            match &before {
                Ok(before) if before.at(&["desiredState", "configs", name]).is_none() => {
                    self.output.warn(format_args!("config '{name}' does not exist"));
                }
                Ok(_) => self.output.status(&format!("Deleted config '{name}'."))?,
                Err(error) => {
                    self.output.debug(format_args!("it is unknown whether config '{name}' existed: {error}"));
                    self.output.status(&format!("The deletion of config '{name}' was accepted."))?;
                }
            }
        }
        Ok(ExitCode::Success)
    }
}

/// Refuses a text that cannot be the name of a `kind`. In a mask a dot would select a part of another object.
///
/// # Errors
/// The rule for names.
pub fn check_name(kind: &str, name: &str) -> Result<(), CommandError> {
    if is_name(name) {
        return Ok(());
    }
    let text = format!("Invalid {kind} name '{name}': Expected 1 to {NAME_MAX} characters in [a-zA-Z0-9_-].");
    let hint = if name.contains('.') {
        format!("parts of a {kind} are changed and deleted with 'ank set state'")
    } else {
        format!("'ank get {kind}s' lists the names")
    };
    Err(CommandError::input(text, hint))
}

/// Reads a whole manifest or state of at most [`MANIFEST_MAX`] bytes; `-` is standard input.
///
/// # Errors
/// It cannot be opened or read, is too large or no UTF-8.
pub fn read_file(name: &str) -> io::Result<String> {
    let source: Box<dyn Read> = if name == "-" { Box::new(io::stdin().lock()) } else { Box::new(File::open(name)?) };
    let mut text = String::new();
    source.take(MANIFEST_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MANIFEST_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is larger than {MANIFEST_MAX} bytes")));
    }
    Ok(text)
}

/// The update that deletes workloads by name.
///
/// # Errors
/// A name is none that a workload can have.
pub fn delete_workloads(names: &[String]) -> Result<Update, CommandError> {
    names.iter().try_for_each(|name| check_name("workload", name))?;
    let masks = names.iter().map(|name| format!("desiredState.workloads.{name}")).collect();
    Ok(Update { new_state: Node::empty(), masks, deleted: names.to_vec(), ..Update::default() })
}

fn counted(workloads: usize) -> String {
    if workloads == 1 { "1 workload".to_owned() } else { format!("{workloads} workloads") }
}

#[cfg(test)]
mod tests;
