//! Sends an update and waits for its workloads: what `apply`, `set state`, `delete` and `run` have in common.
//!
//! Thread: `main`.

use super::args::RunArguments;
use super::error::{CliError, ExitCode, Result, counted, shown};
use super::modes;
use super::output::{TooWide, one_line};
use super::rows;
use super::session::{Context, ServerLink, Update};
use super::updates::{self, Guarded};
use super::wait::{self, WaitState, settled};
use crate::limits::{MESSAGE_MAX, NAME_MAX};
use crate::model::complete_state::{Rendering, workload_node};
use crate::model::guarded_update::UpdatePhase;
use crate::model::names::is_name;
use crate::model::nearest::meant;
use crate::model::node::Node;
use crate::model::workload::Workload;
use crate::platform::settings::read_limited;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};

impl Context<'_> {
    /// Sends the update and, unless `no_wait` is set, waits until its workloads have reached their states.
    pub fn update_and_wait(&mut self, update: Update) -> Result<ExitCode> {
        if update.checks_modes && !self.ignore_modes {
            modes::check(&update.new_state, self.link, self.output)?;
        }
        let Update { new_state, masks, deleted: typed, force, rollback, rollback_of, accepted: text, .. } = update;
        if masks.is_empty() && rollback_of.is_none() {
            self.output.status("Nothing to update.")?;
            return Ok(ExitCode::Success);
        }
        self.output.debug(format_args!("updating {}", masks.join(", ")));
        let old = if rollback { Some(self.read(&masks)?) } else { None };
        let forgotten = if force { updates::masks_to_forget(self.link, &masks)? } else { Vec::new() };
        let sent = masks.iter().cloned().chain(forgotten).collect();
        let send = |link: &mut dyn ServerLink, masks| match rollback_of {
            Some(update) => link.roll_back(update),
            None => link.update_state(new_state, masks),
        };
        if self.waiting.no_wait && !rollback {
            send(self.link, sent)?;
            return Ok(ExitCode::Success);
        }
        let state_masks = [&rows::MASKS[..], &updates::MASKS].concat();
        // The state before has the runtimes of what the update deletes.
        let before = self.link.complete_state(&state_masks)?;
        let open = updates::about(&before, &masks, UpdatePhase::is_open);
        let accepted = send(self.link, sent)?;
        let known = rows::entries(before.at(&["desiredState", "workloads"])).map(|(name, _)| name);
        self.output.warn_of_unknown_workloads(&typed, known);
        if !text.is_empty() {
            self.output.status(&text)?;
        }
        let (added, deleted) = (accepted.added.len(), accepted.deleted.len());
        self.output.debug(format_args!("the server accepted: {added} instances start, {deleted} end"));
        if accepted.added.is_empty() && accepted.deleted.is_empty() {
            self.output.status("Apply successful. No workloads updated.")?;
            for id in open {
                self.output.warn(format_args!("update {id} of these workloads was open; see 'ank get updates'"));
            }
            return Ok(ExitCode::Success);
        }
        self.output.status("Successfully applied the manifest(s).")?;
        self.output.status("Waiting for workload(s) to reach desired states (press Ctrl+C to interrupt).\n")?;
        let now = self.link.complete_state(&state_masks)?;
        let mut state = WaitState::new(&accepted, &before, &now);
        let guarded = Guarded::of_request(&before, &now, &accepted, self.link.now());
        drop(now); // It may be large, and waiting may be long.
        if let (None, Some(old)) = (&guarded, &old) {
            return self.judge(&masks, old, &accepted, &before, state);
        }
        drop(before);
        if let Some(update) = guarded {
            return self.follow(update, state);
        }
        let end = wait::wait(&mut state, settled, self.waiting.limit, self);
        if end.as_ref().is_err_and(CliError::is_interrupted) {
            let left = counted(state.outstanding().len(), "workload");
            self.output.warn(format_args!(
                "{left} did not reach the desired state yet; the update stays in force, 'ank get workloads -w' follows it"
            ));
        }
        Ok(self.conclude(&state, end?))
    }

    /// Reads the parts of the complete state that `masks` select.
    pub fn read<M: AsRef<str>>(&mut self, masks: &[M]) -> Result<Node> {
        self.link.complete_state(&masks.iter().map(AsRef::as_ref).collect::<Vec<_>>())
    }

    /// Reports what did not reach its state and decides the exit code.
    pub fn conclude(&mut self, state: &WaitState, reached: bool) -> ExitCode {
        for (agent, workloads) in state.absent_agents() {
            let workloads = workloads.join("', '");
            let meant = meant(agent, state.connected_agents());
            let when = if meant.is_empty() { "; when" } else { " When" };
            let text = format!("agent '{agent}' is not connected{meant}{when} it connects, it starts '{workloads}'");
            self.output.warn(one_line(&text));
        }
        let (failures, outstanding) = self.warn_of_missed(state, reached);
        let mut code = ExitCode::Success;
        if !reached {
            let limit = shown(self.waiting.limit.unwrap_or_default());
            let counted = counted(outstanding, "workload");
            let text = format!("gave up waiting after '{limit}': {counted} did not reach the desired state");
            self.output.error(text, "the update stays in force; follow it with 'ank get workloads -w'");
            code = ExitCode::GaveUp;
        }
        if self.waiting.fail_on_error && failures > 0 {
            let text = format!("the update was accepted, but {} failed", counted(failures, "workload"));
            let logs = state.failure_with_logs().map(|instance| format!(", and 'ank logs {}'", instance.workload));
            self.output.error(text, &format!("see the additional info above{}", logs.unwrap_or_default()));
            code = ExitCode::WorkloadFailed;
        }
        code
    }

    /// Reports the workloads that did not reach their states. Returns how many of them failed, and how many are outstanding.
    pub fn warn_of_missed(&mut self, state: &WaitState, reached: bool) -> (usize, usize) {
        let failures = state.failures();
        let outstanding = if reached { Vec::new() } else { state.outstanding() };
        let missed = failures.iter().chain(&outstanding).copied().collect::<BTreeSet<_>>();
        if !missed.is_empty() {
            self.output.warn(format_args!("{} did not reach the desired state:", counted(missed.len(), "workload")));
            let table = state.summary(missed).text(self.output.width(), TooWide::Whole);
            self.output.explain(&table);
        }
        (failures.len(), outstanding.len())
    }

    /// Deletes configs by name, and reports which existed.
    pub fn delete_configs(&mut self, names: &[String]) -> Result<ExitCode> {
        names.iter().try_for_each(|name| check_name("config", name))?;
        let masks: Vec<String> = names.iter().map(|name| format!("desiredState.configs.{name}")).collect();
        // Only for the report: a server that refuses the read must not prevent the deletion.
        let before = match self.read(&masks) {
            Err(error @ CliError::Response(_)) => Err(error),
            before => Ok(before?),
        };
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
pub fn check_name(kind: &str, name: &str) -> Result<()> {
    if is_name(name) {
        return Ok(());
    }
    let text = format!("Invalid {kind} name '{name}': Expected 1 to {NAME_MAX} characters in [a-zA-Z0-9_-].");
    let hint = if name.contains('.') {
        format!("parts of a {kind} are changed and deleted with 'ank set state'")
    } else {
        format!("'ank get {kind}s' lists the names")
    };
    Err(CliError::input(text, hint))
}

/// Reads a whole manifest or state of at most [`MESSAGE_MAX`] bytes, which fit into a message of the size that is the
/// default; `-` is standard input.
pub fn read_file(name: &str) -> io::Result<String> {
    let source: Box<dyn Read> = if name == "-" { Box::new(io::stdin().lock()) } else { Box::new(File::open(name)?) };
    read_limited(source, MESSAGE_MAX)
}

/// The update that deletes workloads by name.
pub fn delete_workloads(names: &[String]) -> Result<Update> {
    names.iter().try_for_each(|name| check_name("workload", name))?;
    let masks = names.iter().map(|name| format!("desiredState.workloads.{name}")).collect();
    Ok(Update { masks, deleted: names.to_vec(), ..Update::default() })
}

/// The update that creates or replaces the workload.
pub fn run_workload(arguments: &RunArguments) -> Result<Update> {
    let RunArguments { name, runtime, config, agent, tags, ignore_modes } = arguments;
    check_name("workload", name)?;
    let mut workload = Workload::new(agent.as_str(), runtime, config);
    workload.tags = tags.iter().cloned().collect(); // Of repeated keys the last one counts.
    let workloads = Node::map([(name.as_str(), workload_node(&workload, Rendering::Sparse))]);
    let state = Node::map([("desiredState", Node::map([("workloads", workloads)]))]);
    let masks = vec![format!("desiredState.workloads.{name}")];
    Ok(Update { new_state: state, masks, checks_modes: !ignore_modes, ..Update::default() })
}

#[cfg(test)]
mod tests;
