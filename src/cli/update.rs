//! Sends an update and waits for its workloads: the common part of `apply`, `set state`, `delete`
//! and `run`. It waits until they have reached their states, and shows the states meanwhile.
//!
//! `ank get updates` and `ank rollback` are about the guarded updates that the server keeps.
//!
//! Thread: `main`. Owns: which instances are outstanding. Takes: broadcast states. Gives: frames,
//! and the exit code. Without a terminal a frame is written only when a state changed.

use super::apply::{cannot_be_run, check_agent};
use super::args::{Format, ListArguments, RunArguments};
use super::error::{
    CliError, ExitCode, Result, SERVER_STOPPED, counted, meant_or, reason_of_refusal, shown,
};
use super::get::check_listed;
use super::modes;
use super::output::{
    Column, LiveFrames, Output, Table, TooWide, View, WARNING, one_line, shortened, some_of, value,
};
use super::rows::{self, Reasons, Row, text};
use super::session::{Accepted, CliUpdate, Context, ServerLink};
use super::settings::AbsentAgents;
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::complete_state::{Rendering, workload_node};
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::field_path::parts;
use ankaios_model::guarded_update::{AGENT_PREFIX, UpdateCause, UpdatePhase};
use ankaios_model::limits::{MESSAGE_MAX, NAME_MAX};
use ankaios_model::messages::{RequestContent, UpdateState};
use ankaios_model::names::{InstanceName, Name, RUNTIMES, is_name, of_workload};
use ankaios_model::node::Node;
use ankaios_model::refusal::ErrorResponse;
use ankaios_model::workload::Workload;
use ankaios_platform::settings::read_limited;
use serde_yaml::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Period of the spinner of `ank` while it waits for workloads.
const SPINNER_INTERVAL: Duration = Duration::from_millis(100);
/// After this time the wait may be one without an end, so there is advice.
const ADVICE_AFTER: Duration = Duration::from_secs(5);
/// Pause between frames without a terminal, for each line above [`LINES_WITHOUT_PAUSE`].
const PAUSE_PER_LINE: Duration = Duration::from_millis(10);
/// Tables of up to this number of lines are written after each change.
const LINES_WITHOUT_PAUSE: u32 = 20;
/// Columns of the table of a frame.
const STATE_COLUMN: usize = 3;
const INFO_COLUMN: usize = 4;
/// Interval of reads of a guarded update while its end is awaited.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// The line before the first frame of a wait.
const WAITING: &str =
    "Waiting for workload(s) to reach desired states (press Ctrl+C to interrupt).\n";

mod named;
pub(crate) mod trial;

use named::Unchanged;
use trial::Earlier;

impl Context<'_> {
    /// Sends the update and, unless `no_wait` is set, waits until its workloads have reached their
    /// states.
    pub(crate) fn update_and_wait(&mut self, update: CliUpdate) -> Result<ExitCode> {
        // The same command again would be a second rollback, restart, stop or start.
        let is_repeatable =
            !update.is_rollback() && !update.is_restart() && !update.is_stop_or_start();
        match self.send_and_wait(update) {
            Err(CliError::Ended(end, SERVER_STOPPED)) if is_repeatable => {
                Err(CliError::Ended(end, REPEAT_UPDATE))
            }
            result => result,
        }
    }

    fn send_and_wait(&mut self, mut update: CliUpdate) -> Result<ExitCode> {
        // First check the update.
        self.check_modes(&mut update)?;
        if update.is_empty() {
            self.output.status("Nothing to update.")?;
            return Ok(ExitCode::Success);
        }
        let names = update.masks.join(", ");
        self.output.debug(format_args!("updating {names}"));

        // Then read the state before it. It has the parts to restore, the runtimes of the deleted
        // workloads, and the names that exist.
        let waits = !self.waiting.no_wait || update.rollback;
        let old = if update.rollback {
            Some(self.read(&update.masks)?)
        } else {
            None
        };
        let content = self.request_content(&mut update)?;
        let before = if waits || !update.deleted.is_empty() {
            self.link.complete_state(&state_masks())?
        } else {
            Node::empty()
        };
        let open = ids_of_updates(&before, &update.masks, UpdatePhase::is_open);

        // Then send it.
        let accepted = self.link.update(content);
        let accepted = accepted.map_err(|error| explained(error, &update))?;
        let known = rows::names(before.at(&["desiredState", "workloads"]));
        self.output
            .warn_of_unknown_workloads(&update.deleted, known);
        self.report_accepted(&update, &accepted)?;
        if !waits {
            return self.report_counts(&update, &accepted);
        }
        let give_up = self.waiting.give_up(self.link.now());
        if accepted.changes_nothing() {
            return self.conclude_without_change(&update, &accepted, open, &before, give_up);
        }
        if update.has_manifests() {
            self.output
                .status("Successfully applied the manifest(s).")?;
        }

        // Then wait for its result: the server evaluates a guarded update, this program one with
        // `--rollback`.
        let now = self.link.complete_state(&state_masks());
        if now.is_err() && update.rollback {
            self.output.warn(
                "the update is not watched any more: it stays active, whether it fails or not, unless the server guards it",
            );
        }
        let now = now?;
        let mut state = WaitState::new(&accepted, &before, &now, self.waiting.absent());
        let guarded = Guarded::of_request(&before, &now, &accepted, self.link.now());
        drop(now); // It may be large, and waiting may be long.
        let mut followed = None;
        let code = if let Some(mut guarded) = guarded {
            let earlier = Earlier::new(&before);
            drop(before);
            let code = self.follow(&mut guarded, state, &earlier, give_up, update.is_rollback())?;
            followed = Some(guarded.id);
            code
        } else if let Some(old) = &old {
            self.judge(&update.masks, old, &accepted, &before, state, give_up)?
        } else {
            drop(before);
            self.wait_until_settled(&mut state, give_up)?
        };
        self.warn_of_later_switch(&update)?;
        if code != ExitCode::Success || !self.waiting.judges() {
            return Ok(code);
        }

        // Finally wait for the workloads that it names and did not change.
        let unchanged = Unchanged {
            masks: &update.masks,
            changed: &accepted,
            open,
            followed,
            rollback: false,
        };
        self.judge_unchanged(unchanged, give_up)
    }

    /// Refuses an update that would switch the mode, or send workloads with modes to a server that
    /// has none.
    fn check_modes(&mut self, update: &mut CliUpdate) -> Result<()> {
        if let Some(text) = modes::apply_mode_rule(update, self.link)? {
            let hint = "nothing was changed; '--keep-mode' leaves the mode as it is, '--switch-mode' switches it";
            return Err(CliError::input(text, hint));
        }
        if update.checks_modes && !self.ignore_modes {
            modes::check(&update.new_state, self.link, self.output)?;
        }
        Ok(())
    }

    /// Makes the request of an update. Moves the new state into the request.
    fn request_content(&mut self, update: &mut CliUpdate) -> Result<RequestContent> {
        if let Some(id) = update.rollback_of {
            return Ok(RequestContent::RollBack(id));
        }
        if update.is_stop_or_start() {
            return Ok(RequestContent::StopAndStart(update.stop_and_start.clone()));
        }
        let mut masks = update.masks.clone();
        if update.force {
            masks.extend(masks_to_forget(self.link, &update.masks)?);
        }
        // Without masks the update only restarts workloads. A new state would replace the whole
        // desired state then.
        let mut new_state = None;
        if !update.masks.is_empty() {
            new_state = Some(Ok(std::mem::take(&mut update.new_state)));
        }
        Ok(RequestContent::UpdateState(UpdateState {
            new_state,
            masks,
            restart: update.restart.clone(),
        }))
    }

    /// Reports an update that starts and ends nothing. Waits for the workloads that it names if the
    /// exit code depends on them.
    fn conclude_without_change(
        &mut self,
        update: &CliUpdate,
        accepted: &Accepted,
        open: Vec<u64>,
        before: &Node,
        give_up: Option<Instant>,
    ) -> Result<ExitCode> {
        if update.is_rollback() {
            self.output
                .status("Rolled back. Nothing had to be stopped or started.")?;
        } else if update.accepted.is_empty() {
            self.output
                .status("Apply successful. No workloads updated.")?;
        }
        if !update.restart.is_empty() && !update.is_restart() {
            let text = "nothing was restarted, since nothing has changed; 'ank restart' restarts workloads";
            self.output.warn(text);
        }
        if self.waiting.judges() || update.rollback {
            let unchanged = Unchanged {
                masks: &update.masks,
                changed: accepted,
                open,
                followed: None,
                rollback: update.rollback,
            };
            return self.judge_unchanged(unchanged, give_up);
        }
        if update.is_rollback() {
            return Ok(ExitCode::Success); // The open update is the one that was rolled back.
        }
        for id in open {
            self.output.warn(format_args!(
                "update {id} of these workloads was open; see 'ank get updates'"
            ));
        }
        self.warn_of_absent(
            &workloads_of_absent_agents(&update.masks, before),
            &connected_agents(before),
        );
        Ok(ExitCode::Success)
    }

    /// Warns if the server itself has switched the mode again after this switch.
    fn warn_of_later_switch(&mut self, update: &CliUpdate) -> Result<()> {
        if !update.is_mode_switch() {
            return Ok(());
        }
        // The switch of this command has cleared the cause. If there is a cause now, the server has
        // set it by a later switch.
        let state = self.read(&[modes::PART])?;
        if let Some((modes, _)) = modes::of_server(&state) {
            modes::warn_of_cause(modes, self.output);
        }
        Ok(())
    }

    /// Waits until nothing is outstanding, and reports the workloads that did not reach their
    /// states.
    fn wait_until_settled(
        &mut self,
        state: &mut WaitState,
        give_up: Option<Instant>,
    ) -> Result<ExitCode> {
        match wait(state, settled, give_up, self) {
            Ok(reached) => Ok(self.conclude(state, reached, SERVER_CONTINUES)),
            Err(error) => {
                if error.is_interrupted() {
                    let left = counted(state.outstanding().len(), "workload");
                    self.output.warn(format_args!(
                        "{left} did not reach the desired state yet; the server continues with it; 'ank get workloads -w' follows it"
                    ));
                }
                Err(error)
            }
        }
    }

    /// Prints the text of an accepted update and the names of restarted workloads. Warns if this
    /// server cannot restart.
    fn report_accepted(&mut self, update: &CliUpdate, accepted: &Accepted) -> Result<()> {
        self.output.debug(format_args!(
            "the server accepted: {} instances start, {} end",
            accepted.added.len(),
            accepted.deleted.len()
        ));
        if !update.accepted.is_empty() {
            self.output.status(&update.accepted)?;
        }
        if !accepted.restarted.is_empty() {
            let mut names = Vec::new();
            for instance in &accepted.restarted {
                names.push(&*instance.workload);
            }
            let names = names.join("', '");
            return self.output.status(&format!("Restarting '{names}'."));
        }
        // An older server ignores the restart, and only ends what the update changes.
        let mut ended = accepted.deleted.iter();
        let ends_one = ended.any(|instance| !instance.agent.is_empty());
        if !update.restart.is_empty() && ends_one {
            let text = "this server cannot restart workloads: the dependents of the changed ones are not restarted";
            self.output.warn(text);
        }
        Ok(())
    }

    /// Prints the number of changed workloads, for an update without a wait.
    fn report_counts(&mut self, update: &CliUpdate, accepted: &Accepted) -> Result<ExitCode> {
        if update.has_manifests() {
            let starts = names_of(&accepted.added);
            let ends = names_of(&accepted.deleted);
            let changed = starts.intersection(&ends).count();
            let added = starts.len() - changed;
            let deleted = ends.len() - changed;
            self.output.status(&format!(
                "Accepted: {added} added, {changed} changed, {deleted} deleted."
            ))?;
        }
        Ok(ExitCode::Success)
    }

    /// Reads the parts of the complete state that `masks` select.
    pub(crate) fn read<M: AsRef<str>>(&mut self, masks: &[M]) -> Result<Node> {
        let masks: Vec<&str> = masks.iter().map(AsRef::as_ref).collect();
        self.link.complete_state(&masks)
    }

    /// Warns that the workloads of a wait will start when their agents connect.
    pub(crate) fn warn_of_absent_agents(&mut self, state: &WaitState) {
        self.warn_of_absent(&state.absent_agents(), &state.connected);
    }

    /// Warns that workloads wait for agents which are not connected, or that their states are
    /// unknown.
    fn warn_of_absent(
        &mut self,
        absent: &BTreeMap<&str, AbsentWorkloads<'_>>,
        connected: &BTreeSet<Name>,
    ) {
        for (agent, AbsentWorkloads { to_start, lost }) in absent {
            if !to_start.is_empty() {
                let workloads = to_start.join("', '");
                let text = format!(
                    "agent '{agent}' is not connected; when it connects, it starts '{workloads}'"
                );
                let hint = meant_or(agent, connected.iter().map(|name| &**name), "");
                self.output
                    .warn_with_hint(one_line(&text), &one_line(&hint));
            }
            if !lost.is_empty() {
                let workloads = lost.join("', '");
                let run = if lost.len() == 1 { "runs" } else { "run" };
                self.output.warn(one_line(&format!(
                    "agent '{agent}' is not connected, so it is unknown whether '{workloads}' {run}"
                )));
            }
        }
    }

    /// Reports the workloads that did not reach their states and decides the exit code. The hint
    /// after a wait that was given up is `late_hint`.
    pub(crate) fn conclude(
        &mut self,
        state: &WaitState,
        reached: bool,
        late_hint: &str,
    ) -> ExitCode {
        self.warn_of_absent_agents(state);
        let missed = self.warn_of_missed(state, reached);
        let mut code = ExitCode::Success;
        if !reached {
            let limit = shown(self.waiting.limit.unwrap_or_default());
            let counted = counted(missed.outstanding, "workload");
            let text = format!("gave up waiting after '{limit}' for {counted}");
            self.output.error(text, late_hint);
            code = ExitCode::GaveUp;
        }
        if self.waiting.fail_on_error && missed.failures > 0 {
            let failed = counted(missed.failures, "workload");
            let text = format!("the update was accepted, but {failed} failed");
            let mut hint = "see the additional info above".to_owned();
            if let Some(instance) = state.failure_with_logs() {
                hint.push_str(&format!(", and 'ank logs {}'", instance.workload));
            }
            self.output.error(text, &hint);
            code = ExitCode::WorkloadFailed;
        }
        code
    }

    /// Reports the workloads that failed, and the outstanding ones unless all `reached` their
    /// states.
    pub(crate) fn warn_of_missed(&mut self, state: &WaitState, reached: bool) -> Missed {
        let failures = state.failures();
        let mut outstanding = Vec::new();
        if !reached {
            outstanding = state.outstanding();
        }
        let mut all: BTreeSet<&InstanceName> = failures.iter().copied().collect_entries();
        all.extend(&outstanding);
        if !all.is_empty() {
            let number = counted(all.len(), "workload");
            self.output
                .warn(format_args!("{number} did not reach the desired state:"));
            let table = state.summary(all);
            let table = table.text(self.output.width(), TooWide::Whole);
            self.output.explain(&table);
        }
        Missed {
            failures: failures.len(),
            outstanding: outstanding.len(),
        }
    }

    /// Deletes configs by name. Reports for each whether it existed.
    pub(crate) fn delete_configs(&mut self, names: &[String]) -> Result<ExitCode> {
        let mut masks = Vec::new();
        for name in names {
            check_name("config", name)?;
            masks.push(format!("desiredState.configs.{name}"));
        }
        // First read which exist, only for the report: a server that refuses the read must not
        // prevent the deletion.
        let mut refusal = None;
        let before = match self.read(&masks) {
            Ok(before) => before,
            Err(error @ CliError::Response(_)) => {
                refusal = Some(error);
                Node::empty()
            }
            Err(error) => return Err(error),
        };
        // Then delete all of them.
        self.link.update_state(Node::empty(), masks)?;
        // Finally report each name, once.
        let names: BTreeSet<&String> = names.iter().collect_entries();
        for name in names {
            if let Some(error) = &refusal {
                self.output.debug(format_args!(
                    "it is unknown whether config '{name}' existed: {error}"
                ));
                self.output
                    .status(&format!("The deletion of config '{name}' was accepted."))?;
                continue;
            }
            if before.at(&["desiredState", "configs", name]).is_some() {
                self.output.status(&format!("Deleted config '{name}'."))?;
            } else {
                self.output
                    .warn(format_args!("config '{name}' does not exist"));
            }
        }
        Ok(ExitCode::Success)
    }
}

/// Numbers of workloads of an update that did not reach their states.
pub(crate) struct Missed {
    failures: usize,
    /// They may still reach their states.
    outstanding: usize,
}

/// The hint after a wait for an update that was given up.
pub(crate) const SERVER_CONTINUES: &str =
    "the server continues with it; follow it with 'ank get workloads -w'";

/// The parts of the complete state that waiting for an update needs.
fn state_masks() -> Vec<&'static str> {
    [&rows::MASKS[..], &GUARDED_MASKS].concat()
}

fn names_of(instances: &[InstanceName]) -> BTreeSet<&Name> {
    let names = instances.iter().map(|instance| &instance.workload);
    names.collect_entries()
}

/// Workloads of an agent that is not connected.
#[derive(Debug, Default)]
struct AbsentWorkloads<'s> {
    /// The agent starts them when it connects.
    to_start: Vec<&'s str>,
    /// The server had states of them before it lost the agent.
    lost: Vec<&'s str>,
}

impl<'s> AbsentWorkloads<'s> {
    fn add(&mut self, workload: &'s str, is_lost: bool) {
        if is_lost {
            self.lost.push(workload);
        } else {
            self.to_start.push(workload);
        }
    }
}

/// The workloads in `masks` whose agent is not connected, by agent.
fn workloads_of_absent_agents<'s>(
    masks: &'s [String],
    state: &'s Node,
) -> BTreeMap<&'s str, AbsentWorkloads<'s>> {
    let connected = connected_agents(state);
    let rows = rows::rows(state);
    let mut absent: BTreeMap<&str, AbsentWorkloads<'_>> = BTreeMap::new();
    for mask in masks {
        let ["desiredState", "workloads", name, ..] = parts(mask)[..] else {
            continue;
        };
        let agent = rows::agent_of(state, name);
        if !agent.is_empty() && !connected.contains(agent) {
            let mut rows = of_workload(&rows, name);
            let is_lost = rows.any(|(_, row)| row.phase == Some(Phase::AgentDisconnected));
            absent.entry(agent).or_default().add(name, is_lost);
        }
    }
    absent
}

/// The way out when the server ends during an update. The repeated command follows the open update.
const REPEAT_UPDATE: &str = "start the server again if it was stopped, or see its log; then repeat the command with '--fail-on-error'";

/// The way out when a workload does not run again after a rollback.
const NOT_RESTORED_HINT: &str =
    "correct the cause on its node (load a missing image), then 'ank restart NAME'";

/// Adds a hint to the error of a server that did not accept an update.
fn explained(error: CliError, update: &CliUpdate) -> CliError {
    match error {
        CliError::Ended(end, _) if update.is_restart() => {
            CliError::Ended(end, "an older server cannot restart workloads; see its log")
        }
        CliError::Ended(end, _) if update.is_stop_or_start() => {
            CliError::Ended(end, "an older server cannot stop workloads; see its log")
        }
        CliError::Refused(error) if update.is_restart() || update.is_stop_or_start() => {
            refused(error, "'ank get workloads' shows what runs")
        }
        CliError::Refused(error) if update.is_rollback() => {
            refused(error, "'ank get updates' lists the updates")
        }
        error => error,
    }
}

/// Refuses a text that cannot be the name of a `kind`. In a mask a dot would select a part of
/// another object.
pub(crate) fn check_name(kind: &str, name: &str) -> Result<()> {
    if is_name(name) {
        return Ok(());
    }
    let text = format!(
        "Invalid {kind} name '{name}': Expected 1 to {NAME_MAX} characters in [a-zA-Z0-9_-]."
    );
    let hint = if name.contains('.') {
        format!("parts of a {kind} are changed and deleted with 'ank set state'")
    } else {
        format!("'ank get {kind}s' lists the names")
    };
    Err(CliError::input(text, hint))
}

/// Reads a file with a manifest or a state; `-` is standard input. It may have [`MESSAGE_MAX`]
/// bytes, as a message by default.
pub(crate) fn read_file(name: &str) -> io::Result<String> {
    let source: Box<dyn Read> = if name == "-" {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(name)?)
    };
    read_limited(source, MESSAGE_MAX)
}

/// The update that deletes workloads by name.
pub(crate) fn delete_workloads(names: &[String]) -> Result<CliUpdate> {
    let mut masks = Vec::new();
    for name in names {
        check_name("workload", name)?;
        masks.push(format!("desiredState.workloads.{name}"));
    }
    Ok(CliUpdate {
        masks,
        deleted: names.to_vec(),
        ..CliUpdate::default()
    })
}

/// The update that restarts workloads. Warns of those that will not start again at once.
pub(crate) fn restart(
    names: &[String],
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<CliUpdate> {
    let state = link.complete_state(&rows::MASKS)?;
    let known = rows::names(state.at(&["desiredState", "workloads"]));
    CliError::check_workloads(names, known)?;
    let reasons = Reasons::new(&state);
    for name in names {
        for text in reasons.unmet(name) {
            output.warn(format_args!("before it starts again, '{name}' {text}"));
        }
    }
    Ok(CliUpdate {
        restart: names.to_vec(),
        ..CliUpdate::default()
    })
}

/// The server's refusal of a restart or rollback. Its text may have a hint, after the last `; `.
fn refused(error: ErrorResponse, hint: &str) -> CliError {
    let Some(reason) = reason_of_refusal(&error.text) else {
        return CliError::Refused(error);
    };
    let (reason, remedy) = reason.rsplit_once("; ").unwrap_or((reason, hint));
    CliError::ActionRefused {
        text: reason.to_owned(),
        hint: format!("nothing was changed; {remedy}"),
        refusal: error.refusal,
    }
}

/// The update that creates or replaces the workload.
pub(crate) fn run_workload(arguments: &RunArguments) -> Result<CliUpdate> {
    let name = &arguments.name;
    // Unlike `check_name`, without the hint about existing names: this one is new.
    if !is_name(name) {
        let text = format!(
            "Invalid workload name '{name}': Expected 1 to {NAME_MAX} characters in [a-zA-Z0-9_-]."
        );
        return Err(CliError::input(text, "choose a name of these characters"));
    }
    check_agent(Some(&arguments.agent))?;
    let agent = arguments.agent.as_str();
    let mut workload = Workload::new(agent, &arguments.runtime, &arguments.config);
    check_config(&workload)?;
    // Of repeated keys the last one applies.
    workload.tags = arguments.tags.iter().cloned().collect_entries();
    let workloads = Node::map([(name.as_str(), workload_node(&workload, Rendering::Sparse))]);
    let state = Node::map([("desiredState", Node::map([("workloads", workloads)]))]);
    let masks = vec![format!("desiredState.workloads.{name}")];
    Ok(CliUpdate {
        new_state: state,
        masks,
        checks_modes: !arguments.ignore_modes,
        ..CliUpdate::default()
    })
}

/// Refuses the configuration of the command line if no agent can run it: an agent would stop the
/// earlier workload of this name before it finds that.
// [impl->swdd~cli-refuses-what-no-agent-can-run~1]
fn check_config(workload: &Workload) -> Result<()> {
    if !RUNTIMES.contains(&&*workload.runtime) {
        return Ok(()); // Agents of others may have it.
    }
    let mut reason = None;
    if let Err(error) = &workload.config().engine {
        reason = Some(error.clone());
    } else if let Err(error) = workload.lifecycle() {
        reason = Some(error.to_string());
    }
    let Some(reason) = reason else {
        return Ok(());
    };
    let text = cannot_be_run("--config", &reason);
    let hint = "nothing was changed; correct the text behind '--config'";
    Err(CliError::input(text, hint))
}

// ------------------------------------------------------------------ waiting

const SPINNER: [char; 4] = ['|', '/', '-', '\\'];

/// The result of the evaluation of a goal, which follows each report. `Break`: it is reached.
/// `Continue`: it is evaluated again at this time even without a report.
pub(crate) type GoalProgress = ControlFlow<(), Option<Instant>>;

/// The goal that nothing is outstanding.
pub(crate) fn settled(
    wait: &mut WaitState,
    _: &mut dyn ServerLink,
    _: &[WorkloadState],
) -> Result<GoalProgress> {
    if wait.is_settled() {
        return Ok(GoalProgress::Break(()));
    }
    Ok(GoalProgress::Continue(None))
}

/// The instances of one update and their progress.
#[derive(Debug)]
pub(crate) struct WaitState {
    watched: BTreeMap<InstanceName, WatchedInstance>,
    /// Agents that were connected after the update was accepted, or have reported states since.
    connected: BTreeSet<Name>,
    /// The states and dependencies of all instances.
    reasons: Reasons,
    /// The server refuses to restart the workloads of the update.
    is_guarded: bool,
    /// Whether the wait includes instances of agents that are not connected.
    absent: AbsentAgents,
}

#[derive(Debug, Default)]
struct WatchedInstance {
    is_added: bool,
    /// It will start.
    starts: bool,
    /// It will end, or an older one of the same name must end first.
    ends: bool,
    /// It has started and must prove that it works.
    on_trial: bool,
    /// The last report.
    reported: Option<ExecutionState>,
}

impl WatchedInstance {
    /// An instance that the update adds, or deletes unless `is_added`.
    fn new(is_added: bool, ends: bool) -> Self {
        Self {
            is_added,
            starts: is_added,
            ends,
            ..Self::default()
        }
    }

    fn is_outstanding(&self) -> bool {
        self.starts || self.ends || self.on_trial
    }

    fn phase(&self) -> Option<Phase> {
        Some(self.reported.as_ref()?.phase)
    }

    /// Returns whether it was reported to have begun.
    fn has_begun(&self) -> bool {
        !matches!(self.phase(), None | Some(Phase::PendingInitial))
    }

    fn has_failed(&self) -> bool {
        let Some(phase) = self.phase() else {
            return false;
        };
        phase.state() == "Failed" || phase == Phase::PendingStartingFailed
    }
}

impl WaitState {
    /// Begins with the complete states before the update and after it was accepted.
    pub(crate) fn new(
        accepted: &Accepted,
        before: &Node,
        now: &Node,
        absent: AbsentAgents,
    ) -> Self {
        let remembered = rows::rows(before);
        let mut reasons = Reasons::new(now);
        reasons.needed_before = rows::needs(before);
        let connected = connected_agents(now);
        let mut earlier = BTreeMap::new();
        for reported in &accepted.earlier {
            earlier.insert(&reported.instance, reported.state.phase);
        }
        let added: BTreeSet<&InstanceName> = accepted.added.iter().collect_entries();
        let mut watched = BTreeMap::new();
        let mut gone = Vec::new();
        for instance in accepted.added.iter().chain(&accepted.deleted) {
            // First, what the instance must do.
            let before = remembered.get(instance);
            let is_added = added.contains(instance);
            let ends = !is_added || has_predecessor(earlier.get(instance), before);
            // An instance that the server no longer lists was removed before.
            if ends && !reasons.rows.contains_key(instance) {
                let removed = ExecutionState::plain(Phase::Removed);
                gone.push(WorkloadState::new(instance.clone(), removed));
            }
            watched.insert(instance.clone(), WatchedInstance::new(is_added, ends));
            // Then, its row: as it is now, or was before the update, or as a new instance has it.
            let row = reasons.rows.entry(instance.clone());
            let row = row.or_insert_with(|| before.cloned().unwrap_or_default());
            if row.state.is_empty() {
                row.update(&ExecutionState::plain(Phase::PendingInitial));
            }
            if row.runtime.is_empty() {
                row.runtime = match before {
                    Some(before) => before.runtime.clone(),
                    None => rows::runtime(now, &instance.workload, &instance.agent),
                };
            }
        }
        let mut state = Self {
            watched,
            connected,
            reasons,
            is_guarded: false,
            absent,
        };
        state.on_states(&gone);
        state
    }

    /// Begins with existing instances, as they are in the complete state `now`. Waits for the start
    /// of `wanted` ones, and for the end of `unwanted` ones.
    pub(crate) fn of_present(
        wanted: &[InstanceName],
        unwanted: &[InstanceName],
        now: &Node,
        absent: AbsentAgents,
    ) -> Self {
        let mut state = Self {
            watched: BTreeMap::new(),
            connected: connected_agents(now),
            reasons: Reasons::new(now),
            is_guarded: false,
            absent,
        };
        let mut present = Vec::new();
        for instance in wanted.iter().chain(unwanted) {
            let is_wanted = wanted.contains(instance);
            let watched = WatchedInstance::new(is_wanted, !is_wanted);
            state.watched.insert(instance.clone(), watched);
            let row = state.reasons.rows.entry(instance.clone()).or_default();
            if row.runtime.is_empty() {
                row.runtime = rows::runtime(now, &instance.workload, &instance.agent);
            }
            match row.execution_state() {
                Some(state) => present.push(WorkloadState::new(instance.clone(), state)),
                // The server has no state of it yet.
                None if row.state.is_empty() => {
                    row.update(&ExecutionState::plain(Phase::PendingInitial))
                }
                // The meaning of a newer server's state is unknown, so the wait continues.
                None => {}
            }
        }
        state.on_states(&present);
        state
    }

    /// Applies reported states; the states of other instances are only reasons.
    pub(crate) fn on_states(&mut self, states: &[WorkloadState]) {
        for state in states {
            self.on_state(state);
        }
        self.stop_waiting_in_vain();
    }

    /// Applies a reported state. Notes what the instance need not be waited for any more.
    fn on_state(&mut self, reported: &WorkloadState) {
        let WorkloadState { instance, state } = reported;
        let Some(watched) = self.watched.get_mut(instance) else {
            self.reasons.on_state(reported);
            return;
        };
        if watched.phase() == Some(Phase::Removed) && state.phase.state() == "Stopping" {
            return; // Reported late: a removed instance cannot stop.
        }
        self.reasons.on_state(reported);
        watched.reported = Some(state.clone());
        match state.phase {
            Phase::AgentDisconnected if self.absent == AbsentAgents::Awaited => {
                self.connected.remove(&instance.agent);
                return;
            }
            Phase::AgentDisconnected => {}
            // These three states may come from the server.
            Phase::PendingInitial | Phase::NotScheduled | Phase::Removed => {}
            // All other states come from the agent.
            _ => _ = self.connected.insert(instance.agent.clone()),
        }
        if matches!(state.phase, Phase::Removed | Phase::AgentDisconnected) {
            watched.ends = false;
        }
        // Until an older instance of the same name has ended, the states are those of the older.
        if !watched.ends && (ends_start(state.phase) || state.needs_no_start()) {
            watched.starts = false;
        }
    }

    /// Stops waiting for instances that will not reach their states: instances of disconnected
    /// agents, and dependents of one that is not relevant on its node or awaits a failure.
    fn stop_waiting_in_vain(&mut self) {
        for (instance, watched) in &mut self.watched {
            let is_awaited = match self.absent {
                AbsentAgents::Skipped => self.connected.contains(&instance.agent),
                AbsentAgents::Awaited => !instance.agent.is_empty(),
            };
            if !is_awaited {
                watched.ends = false;
                watched.starts = false;
            }
            let waits = watched.phase() == Some(Phase::PendingWaitingToStart);
            if waits && self.reasons.waits_in_vain(&instance.workload) {
                watched.starts = false;
            }
        }
    }

    /// Returns whether nothing is outstanding.
    pub(crate) fn is_settled(&self) -> bool {
        self.has_ended() && self.watched.values().all(|watched| !watched.starts)
    }

    /// Returns whether all instances that the update ends have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.watched.values().all(|watched| !watched.ends)
    }

    /// Returns whether an instance, or an older one of the same name, will end.
    fn will_end(&self, instance: &InstanceName) -> bool {
        match self.watched.get(instance) {
            Some(watched) => watched.ends,
            None => false,
        }
    }

    /// The state of an instance as far as it is known.
    fn state(&self, instance: &InstanceName) -> Option<ExecutionState> {
        self.reasons.rows.get(instance)?.execution_state()
    }

    fn is_outstanding(&self, instance: &InstanceName) -> bool {
        match self.watched.get(instance) {
            Some(watched) => watched.is_outstanding(),
            None => false,
        }
    }

    /// The frame as at most `lines_max` lines, with `spinner` before the states that are not final.
    /// With too many instances the finished ones are left out first. Infos of outstanding instances
    /// that the table had to cut are repeated below it if there is room.
    pub(crate) fn frame(&self, spinner: char, columns: usize, lines_max: usize) -> Vec<String> {
        // First choose the instances. If there are too many, a line is for the number of the
        // others.
        let room = lines_max.saturating_sub(1).max(1); // Below the heading.
        let mut shown = self.without_replaced();
        let mut hidden = 0;
        if shown.len() > room {
            hidden = shown.len() - (room - 1);
            // Stable: names stay sorted.
            shown.sort_by_key(|instance| !self.is_outstanding(instance));
            shown.truncate(room - 1);
            shown.sort_unstable();
        }
        // Then the table, with the spinner.
        let mut table = self.table(&shown);
        table.headings[STATE_COLUMN] = "  EXECUTION STATE";
        for (instance, row) in shown.iter().zip(&mut table.rows) {
            let symbol = if self.is_outstanding(instance) {
                spinner
            } else {
                ' '
            };
            row[STATE_COLUMN].insert_str(0, &format!("{symbol} "));
        }
        let mut lines = table.lines(columns, TooWide::Shorten);
        // Finally the lines below it.
        let mut shown_open = 0;
        let mut cut = Vec::new();
        for (index, instance) in shown.iter().enumerate() {
            if !self.is_outstanding(instance) {
                continue;
            }
            shown_open += 1;
            let info = &table.rows[index][INFO_COLUMN];
            if !lines[index + 1].contains(info) {
                let text = format!("{}: {info}", instance.workload);
                cut.push(shortened(&text, columns));
            }
        }
        if hidden > 0 {
            let waiting = self.outstanding().len() - shown_open;
            lines.push(format!("and {hidden} more, {waiting} of them not finished"));
        }
        if !cut.is_empty() && lines.len() + 1 + cut.len() <= lines_max {
            lines.push(String::new());
            lines.extend(cut);
        }
        lines
    }

    /// All instances, without removed ones that another instance of their workload has replaced:
    /// beside the row of the new instance, that of the old one would only confuse.
    fn without_replaced(&self) -> Vec<&InstanceName> {
        let present = self.names_where(|watched| watched.phase() != Some(Phase::Removed));
        let mut shown = Vec::new();
        for (instance, watched) in &self.watched {
            let is_removed = watched.phase() == Some(Phase::Removed) && !watched.is_outstanding();
            if !is_removed || !present.contains(&*instance.workload) {
                shown.push(instance);
            }
        }
        shown
    }

    /// The pause between frames without a terminal. It is longer for many workloads: otherwise a
    /// thousand of them would write a thousand lines for each of a thousand changes.
    fn pause_between_frames(&self) -> Duration {
        let lines = u32::try_from(self.watched.len()).unwrap_or(u32::MAX);
        PAUSE_PER_LINE.saturating_mul(lines.saturating_sub(LINES_WITHOUT_PAUSE))
    }

    /// Marks the added instances of the workloads `names`, and no others, as outstanding: they must
    /// prove that they work.
    pub(crate) fn set_on_trial(&mut self, names: &BTreeSet<&str>) {
        for (instance, watched) in &mut self.watched {
            watched.on_trial = watched.is_added && names.contains(&*instance.workload);
        }
    }

    /// The states and dependencies of all instances.
    pub(crate) fn reasons(&self) -> &Reasons {
        &self.reasons
    }

    fn instances_where(&self, is_chosen: impl Fn(&WatchedInstance) -> bool) -> Vec<&InstanceName> {
        let mut chosen = Vec::new();
        for (instance, watched) in &self.watched {
            if is_chosen(watched) {
                chosen.push(instance);
            }
        }
        chosen
    }

    fn names_where(&self, is_chosen: impl Fn(&WatchedInstance) -> bool) -> BTreeSet<&str> {
        let mut names = BTreeSet::new();
        for instance in self.instances_where(is_chosen) {
            names.insert(&*instance.workload);
        }
        names
    }

    /// The added instances that failed.
    pub(crate) fn failures(&self) -> Vec<&InstanceName> {
        self.instances_where(|watched| watched.is_added && watched.has_failed())
    }

    /// A failed instance that had a container and so may have logs.
    pub(crate) fn failure_with_logs(&self) -> Option<&InstanceName> {
        let mut failures = self.failures();
        failures.retain(|instance| {
            self.watched[*instance].phase() != Some(Phase::PendingStartingFailed)
        });
        failures.first().copied()
    }

    /// The instances that are outstanding.
    pub(crate) fn outstanding(&self) -> Vec<&InstanceName> {
        self.instances_where(WatchedInstance::is_outstanding)
    }

    /// Agents that are not connected, with the workloads that they should start or keep.
    fn absent_agents(&self) -> BTreeMap<&str, AbsentWorkloads<'_>> {
        let mut absent: BTreeMap<&str, AbsentWorkloads<'_>> = BTreeMap::new();
        for instance in self.instances_where(|watched| watched.is_added) {
            let agent = &instance.agent;
            if !agent.is_empty() && !self.connected.contains(agent) {
                let phase = self.watched[instance].phase();
                let is_lost = phase == Some(Phase::AgentDisconnected);
                let workloads = absent.entry(agent).or_default();
                workloads.add(&instance.workload, is_lost);
            }
        }
        absent
    }

    /// State and info of an instance. Before it has begun, those of an older instance of the same
    /// name that ends.
    fn described(&self, instance: &InstanceName) -> String {
        let has_begun = match self.watched.get(instance) {
            Some(watched) => watched.has_begun(),
            None => false,
        };
        let mut shown = instance;
        if !has_begun && let Some(older) = self.ending_namesake(instance) {
            shown = older;
        }
        let Row { state, info, .. } = self.reasons.explained(shown);
        if info.is_empty() {
            return state;
        }
        format!("{state}: '{info}'")
    }

    /// Another instance of the same workload that will end.
    fn ending_namesake(&self, instance: &InstanceName) -> Option<&InstanceName> {
        let ending = self.instances_where(|watched| watched.ends);
        let mut others = ending.into_iter().filter(|other| *other != instance);
        others.find(|other| other.workload == instance.workload)
    }

    /// The text about workloads whose dependents block their stop, with a remedy; `None` if there
    /// are none.
    fn advice(&self) -> Option<String> {
        let waiting =
            self.names_where(|watched| watched.phase() == Some(Phase::StoppingWaitingToStop));
        let ending = self.names_where(|watched| watched.ends);
        let blocked = self.reasons.blocked_stops(&waiting, &ending)?;
        let starting = self.names_where(|watched| watched.starts);
        let replaced: Vec<&str> = waiting.intersection(&starting).copied().collect();
        if replaced.is_empty() {
            return Some(blocked.text("")); // They are deleted, so a restart does not help.
        }
        // To restart the replaced workloads or their dependents has the same effect. The server
        // refuses to restart a workload of a guarded update.
        let names = if self.is_guarded {
            blocked.dependents.join(" ")
        } else {
            replaced.join(" ")
        };
        Some(blocked.text(&format!("use 'ank restart {names}', or ")))
    }

    /// The table of `instances` after a wait. A deleted instance is above the one that replaced it.
    pub(crate) fn summary<'i>(
        &self,
        instances: impl IntoIterator<Item = &'i InstanceName>,
    ) -> Table {
        let mut instances: Vec<&InstanceName> = instances.into_iter().collect();
        instances.sort_by_key(|instance| {
            let is_added = match self.watched.get(*instance) {
                Some(watched) => watched.is_added,
                None => false,
            };
            (&instance.workload, is_added, *instance)
        });
        self.table(&instances)
    }

    fn table(&self, instances: &[&InstanceName]) -> Table {
        let mut rows = Vec::new();
        for instance in instances {
            rows.push((*instance, self.reasons.explained(instance)));
        }
        rows::view(Format::Table, rows).table
    }
}

/// The agents that are connected in a complete state.
fn connected_agents(state: &Node) -> BTreeSet<Name> {
    let agents = rows::names(state.get("agents"));
    agents.map(Name::from).collect_entries()
}

/// Returns whether an older instance of the same name must end before the added one can start.
/// `before` is its row before the update, and `earlier` its last state before the server accepted
/// the update, which is newer if there is one.
fn has_predecessor(earlier: Option<&Phase>, before: Option<&Row>) -> bool {
    if let Some(phase) = earlier {
        return may_have_container(*phase);
    }
    let Some(before) = before else {
        return false;
    };
    match before.phase {
        Some(phase) => may_have_container(phase),
        None => true, // A phase of a newer server, in which it may have a container.
    }
}

/// Returns whether an instance in this phase may have a container that ends when the update
/// replaces it.
fn may_have_container(phase: Phase) -> bool {
    !matches!(
        phase,
        Phase::PendingInitial
            | Phase::PendingWaitingToStart
            // It continues to run when the update that stops it is rolled back.
            | Phase::StoppingWaitingToStop
            | Phase::Removed
            | Phase::AgentDisconnected
    )
}

/// Returns whether a phase ends the wait for an instance that should start.
fn ends_start(phase: Phase) -> bool {
    match phase {
        Phase::NotScheduled | Phase::PendingStartingFailed | Phase::AgentDisconnected => true,
        _ => matches!(phase.state(), "Running" | "Succeeded" | "Failed"),
    }
}

/// Follows the states that `link` broadcasts until `goal` is reached or it is time to `give_up`,
/// and shows frames. Returns whether the goal was reached. Prints [`WAITING`], unless the goal is
/// reached at once.
pub(crate) fn wait(
    state: &mut WaitState,
    mut goal: impl FnMut(&mut WaitState, &mut dyn ServerLink, &[WorkloadState]) -> Result<GoalProgress>,
    give_up: Option<Instant>,
    Context { link, output, .. }: &mut Context<'_>,
) -> Result<bool> {
    let is_animated = output.redraws && !output.quiet;
    let mut frames = LiveFrames::default();
    let mut turn = 0;
    let mut next_frame = link.now();
    let mut states = Vec::new();
    let mut advice_at = Some(next_frame + ADVICE_AFTER);
    let mut has_waited = false;
    loop {
        let columns = output.width();
        let lines = match output.terminal() {
            Some(size) => size.lines,
            None => usize::MAX,
        };
        // First check the goal.
        let GoalProgress::Continue(again) = goal(state, *link, &states)? else {
            // The last frame stays on the screen, so it is complete even when it scrolls.
            state.set_on_trial(&BTreeSet::new());
            frames.show(state.frame(' ', columns, usize::MAX), output)?;
            return Ok(true);
        };
        if !has_waited {
            output.status(WAITING)?;
            has_waited = true;
        }
        // Then show the next frame. Without an animation it differs only after a state has changed.
        let mut frame_at = Some(next_frame);
        if link.now() >= next_frame {
            let spinner = SPINNER[turn % SPINNER.len()];
            // The cursor is below the frame, so one line less can be redrawn.
            let frame = state.frame(spinner, columns, lines.saturating_sub(1));
            frames.show(frame, output)?;
            if is_animated {
                turn += 1;
                next_frame = link.now() + SPINNER_INTERVAL;
                frame_at = Some(next_frame);
            } else {
                next_frame = link.now() + state.pause_between_frames();
                frame_at = None;
            }
        }
        // Then wait for states, at most until something is due.
        let advice_due = advice_at.filter(|at| *at > link.now());
        let due = [frame_at, give_up, again, advice_due];
        let next = link.next_states(due.into_iter().flatten().min())?;
        let is_late = next.is_none() && has_passed(give_up, link.now());
        states = next.unwrap_or_default();
        state.on_states(&states);
        // Finally give advice, once, after a long wait.
        if advice_at.is_some()
            && (is_late || has_passed(advice_at, link.now()))
            && let Some(advice) = state.advice()
        {
            output.warn(advice);
            advice_at = None;
            if is_animated {
                frames = LiveFrames::default(); // The next one is drawn below.
            }
        }
        if is_late {
            return Ok(false);
        }
    }
}

/// Returns whether there is such a time, and it has passed.
fn has_passed(at: Option<Instant>, now: Instant) -> bool {
    match at {
        Some(at) => now >= at,
        None => false,
    }
}

// ------- guarded updates: the server evaluates them itself, and rolls them back if they fail

/// Prints the updates, the oldest first.
pub(crate) fn print(
    arguments: &ListArguments,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<()> {
    let state = read(link)?;
    output.warn_of_storage(&state);
    check_listed(
        "update",
        &arguments.names,
        rows::names(state.get("updates")),
    )?;
    let mut rows = Vec::new();
    let mut is_kept_in_memory = false;
    for update in updates(&state) {
        if arguments.accepts(&update.id.to_string()) {
            rows.push(fields(update.id, update.node));
        }
        is_kept_in_memory |= text(update.node, &["keptIn"]) == "MEMORY";
    }
    let view = View::new(arguments.output, &fields(0, &Node::empty()), rows);
    view.print("updates", TooWide::Wrap, None, output)?;
    if is_kept_in_memory {
        output.warn("the server keeps updates in memory: a restart forgets them; with 'state_dir' in ank-server.conf it keeps them on disk");
    }
    Ok(())
}

/// The columns of an update, which are also its values for programs.
pub(crate) fn fields(id: u64, update: &Node) -> Vec<Column> {
    let mut columns = vec![
        Column::new("ID", "id", id.to_string(), id),
        Column::text("PHASE", "phase", text(update, &["phase"])),
        Column::text("ACCEPTED", "accepted", text(update, &["accepted"])),
        names_column("WORKLOADS", "workloads", update),
        names_column("CONFIGS", "configs", update).wide(),
        Column::text("KEPT IN", "keptIn", text(update, &["keptIn"])).wide(),
        Column::new("INFO", "", info(update), Value::Null),
    ];
    for key in ["reason", "waitsFor", "replacedBy"] {
        columns.push(Column::data(key, value(update.get(key))));
    }
    columns
}

fn names_column(heading: &'static str, key: &str, update: &Node) -> Column {
    let names = some_of(rows::names(update.get(key)));
    Column::new(heading, key, names, value(update.get(key)))
}

/// All updates with all their parts.
fn read(link: &mut dyn ServerLink) -> Result<Node> {
    let state = link.complete_state(&["updates", WARNING])?;
    if state.get("updates").is_none() {
        return Err(CliError::input(
            "the server keeps no updates",
            "'ank apply --rollback' works with any server",
        ));
    }
    Ok(state)
}

/// The reason of its end, the update that it became a part of, or the names that it waits for.
fn info(update: &Node) -> String {
    let reason = text(update, &["reason"]);
    if !reason.is_empty() {
        return one_line(reason);
    }
    let successor = text(update, &["replacedBy"]);
    if !successor.is_empty() {
        return one_line(&format!("part of update {successor}"));
    }
    let waits = some_of(waits_for(update));
    if waits.is_empty() {
        return String::new();
    }
    format!("waits for {waits}")
}

/// Lets the server roll back update `id`, or the newest one that can be rolled back, and waits.
pub(crate) fn roll_back(id: Option<u64>, context: &mut Context<'_>) -> Result<ExitCode> {
    let state = read(context.link)?;
    let updates = updates(&state);
    let KnownUpdate { id, node } = match id {
        Some(id) => named(&updates, id)?,
        None => choose(&updates)?,
    };
    let mut masks = Vec::new();
    for part in ["configs", "workloads"] {
        for name in rows::names(node.get(part)) {
            masks.push(format!("desiredState.{part}.{name}"));
        }
    }
    if !masks.is_empty() {
        let text = format!("Rolling back update {id}: {}.", objects(node));
        context.output.status(&text)?;
    }
    context.update_and_wait(CliUpdate {
        masks,
        rollback_of: Some(id),
        ..CliUpdate::default()
    })
}

/// The update with the number `id`.
fn named<'u>(updates: &[KnownUpdate<'u>], id: u64) -> Result<KnownUpdate<'u>> {
    for update in updates {
        if update.id == id {
            return Ok(*update);
        }
    }
    Err(CliError::input(
        format!("update {id} does not exist"),
        "'ank get updates' lists them",
    ))
}

/// The newest update in one of the wanted phases.
fn newest<'u>(
    updates: &[KnownUpdate<'u>],
    is_wanted: fn(UpdatePhase) -> bool,
) -> Option<KnownUpdate<'u>> {
    for update in updates.iter().rev() {
        if let Some(phase) = phase(update.node)
            && is_wanted(phase)
        {
            return Some(*update);
        }
    }
    None
}

/// The newest update that is open, or else the newest that is active. If the newest of all was
/// rolled back or withdrawn, users may mean it, so no earlier update is chosen.
fn choose<'u>(updates: &[KnownUpdate<'u>]) -> Result<KnownUpdate<'u>> {
    use UpdatePhase::{Good, Kept, Replaced, Undone, Withdrawn};
    if updates.is_empty() {
        return Err(CliError::input(
            "there is no guarded update to roll back",
            "only updates of workloads with a block 'update' in 'lifecycle:' are guarded, or all with 'update_on_failure' in \
             ank-server.conf; to go back otherwise, apply the earlier manifest",
        ));
    }
    if let Some(open) = newest(updates, UpdatePhase::is_open) {
        return Ok(open);
    }
    let active = newest(updates, |phase| matches!(phase, Good | Kept));
    if let Some(last) = newest(updates, |phase| phase != Replaced) {
        let end = match phase(last.node) {
            Some(Undone) => "rolled back: what was there before it is active",
            Some(Withdrawn) => "withdrawn: nothing of it is active",
            _ => "",
        };
        if !end.is_empty() {
            let id = last.id;
            let text = format!("the newest update, {id}, was {end}");
            return Err(CliError::input(text, hint_of_earlier(active)));
        }
    }
    active.ok_or_else(|| {
        CliError::input(
            "there is no update to roll back",
            "none in 'ank get updates' is open, GOOD or KEPT",
        )
    })
}

fn hint_of_earlier(active: Option<KnownUpdate<'_>>) -> String {
    let Some(KnownUpdate { id, node }) = active else {
        return "no update in 'ank get updates' is open, GOOD or KEPT".to_owned();
    };
    let objects = objects(node);
    format!("'ank rollback {id}' rolls back update {id}, of {objects}")
}

/// All workloads and configs that an update changes.
fn objects(update: &Node) -> String {
    let mut kinds = Vec::new();
    for (part, kind) in [("workloads", "workload"), ("configs", "config")] {
        let names: Vec<String> = rows::names(update.get(part)).map(one_line).collect();
        if !names.is_empty() {
            let plural = if names.len() == 1 { "" } else { "s" };
            kinds.push(format!("{kind}{plural} '{}'", names.join("', '")));
        }
    }
    kinds.join(" and ")
}

// ------------------------------------------------ updates that are followed

/// The parts of the complete state that show whether an update is guarded. A server without guarded
/// updates has none of them, which is no error.
const GUARDED_MASKS: [&str; 2] = ["updates.*.phase", "updates.*.workloads"];

/// The phase of a guarded update; `None` for one of a newer server.
pub(crate) fn phase(update: &Node) -> Option<UpdatePhase> {
    UpdatePhase::parse(text(update, &["phase"]))
}

/// The cause of a rollback. A server without causes has only the reason.
fn cause(update: &Node) -> UpdateCause {
    match UpdateCause::parse(text(update, &["cause"])) {
        Some(cause) => cause,
        None => UpdateCause::from_reason(text(update, &["reason"])),
    }
}

/// A guarded update in a complete state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KnownUpdate<'u> {
    pub(crate) id: u64,
    pub(crate) node: &'u Node,
}

/// The guarded updates of a complete state, oldest first.
pub(crate) fn updates(state: &Node) -> Vec<KnownUpdate<'_>> {
    let mut updates = Vec::new();
    for (id, node) in state.entries("updates") {
        if let Ok(id) = id.parse() {
            updates.push(KnownUpdate { id, node });
        }
    }
    updates.sort_by_key(|update| update.id);
    updates
}

/// The texts that an update waits for: names of workloads, and agents after [`AGENT_PREFIX`].
pub(crate) fn waits_for(update: &Node) -> impl Iterator<Item = &str> {
    let texts = update.get("waitsFor").and_then(Node::as_list);
    texts.unwrap_or_default().iter().filter_map(Node::as_text)
}

/// The ids of the guarded updates of the objects that `masks` name, in a wanted phase. Masks of
/// parts of an object name none.
pub(crate) fn ids_of_updates(
    state: &Node,
    masks: &[String],
    is_wanted: fn(UpdatePhase) -> bool,
) -> Vec<u64> {
    let masks: BTreeSet<&String> = masks.iter().collect_entries();
    let mut found = Vec::new();
    for KnownUpdate { id, node } in updates(state) {
        if let Some(phase) = phase(node)
            && is_wanted(phase)
            && is_about(node, &masks)
        {
            found.push(id);
        }
    }
    found
}

/// Returns whether an update changes an object that one of `masks` names.
fn is_about(update: &Node, masks: &BTreeSet<&String>) -> bool {
    for part in ["workloads", "configs"] {
        for name in rows::names(update.get(part)) {
            if masks.contains(&format!("desiredState.{part}.{name}")) {
                return true;
            }
        }
    }
    false
}

/// The masks that delete the rolled back updates of the objects that `masks` name. Without them the
/// server accepts the same update again.
pub(crate) fn masks_to_forget(link: &mut dyn ServerLink, masks: &[String]) -> Result<Vec<String>> {
    let state = link.complete_state(&[
        "updates.*.phase",
        "updates.*.workloads",
        "updates.*.configs",
    ])?;
    let undone = ids_of_updates(&state, masks, |phase| phase == UpdatePhase::Undone);
    Ok(undone.iter().map(|id| format!("updates.{id}")).collect())
}

/// A guarded update that is followed to its end.
#[derive(Debug)]
pub(crate) struct Guarded {
    /// Its number, or that of the one that replaced it.
    id: u64,
    /// Its last state; empty if the server has forgotten it.
    update: Node,
    /// The time of the next read.
    next: Instant,
}

impl Guarded {
    /// The update that the server made of a request; `None` if it does not guard it.
    pub(crate) fn of_request(
        before: &Node,
        now: &Node,
        accepted: &Accepted,
        next: Instant,
    ) -> Option<Self> {
        let last_before = match updates(before).last() {
            Some(update) => update.id,
            None => 0,
        };
        let added = full_names(&accepted.added);
        let deleted = full_names(&accepted.deleted);
        for KnownUpdate { id, node } in updates(now).into_iter().rev() {
            // A withdrawn update is one that this request has reverted, not one that it has made.
            if id <= last_before || phase(node) == Some(UpdatePhase::Withdrawn) {
                continue;
            }
            for (_, workload) in node.entries("workloads") {
                let starts_one = added.contains(text(workload, &["new"]));
                if starts_one || deleted.contains(text(workload, &["old"])) {
                    return Some(Self {
                        id,
                        update: node.clone(),
                        next,
                    });
                }
            }
        }
        None
    }

    /// Reads its state, or that of the update that replaced it.
    fn read(&mut self, link: &mut dyn ServerLink) -> Result<()> {
        loop {
            let fields = ["phase", "reason", "cause", "waitsFor", "replacedBy"];
            let masks = fields.map(|field| format!("updates.{}.{field}", self.id));
            let mut state = link.complete_state(&masks.each_ref().map(String::as_str))?;
            self.update = match state.at_mut(&["updates", &self.id.to_string()]) {
                Some(update) => std::mem::take(update),
                None => Node::empty(),
            };
            if phase(&self.update) != Some(UpdatePhase::Replaced) {
                return Ok(());
            }
            match text(&self.update, &["replacedBy"]).parse() {
                // Only a newer one, so that the loop ends.
                Ok(successor) if successor > self.id => self.id = successor,
                _ => return Ok(()),
            }
        }
    }

    /// Reads the update if that is due. Breaks when the update has ended.
    fn check(&mut self, wait: &mut WaitState, link: &mut dyn ServerLink) -> Result<GoalProgress> {
        let now = link.now();
        if now >= self.next {
            match self.read(link) {
                // A server with much to do: only the end of the connection ends the wait.
                Err(CliError::TimedOut(_)) => {}
                read => read?,
            }
            self.next = now + READ_INTERVAL;
            wait.set_on_trial(&waits_for(&self.update).collect_entries());
        }
        if self.has_ended(wait) {
            return Ok(GoalProgress::Break(()));
        }
        Ok(GoalProgress::Continue(Some(self.next)))
    }

    /// Returns whether the wait for the update is over.
    fn has_ended(&self, wait: &WaitState) -> bool {
        if wait.absent == AbsentAgents::Skipped && !self.absent_agents().is_empty() {
            return true; // It waits only for agents that may never connect.
        }
        match phase(&self.update) {
            // It is active, and ends when all instances that it deletes have ended.
            Some(UpdatePhase::Good | UpdatePhase::Kept) => wait.has_ended(),
            _ => !self.is_open(),
        }
    }

    fn is_open(&self) -> bool {
        match phase(&self.update) {
            Some(phase) => phase.is_open(),
            None => false,
        }
    }

    /// The agents that are not connected, if it waits for nothing else; otherwise none.
    fn absent_agents(&self) -> Vec<&str> {
        let mut agents = Vec::new();
        if !self.is_open() {
            return agents;
        }
        for text in waits_for(&self.update) {
            match text.strip_prefix(AGENT_PREFIX) {
                Some(agent) => agents.push(agent),
                None => return Vec::new(),
            }
        }
        agents
    }
}

fn full_names(instances: &[InstanceName]) -> BTreeSet<String> {
    instances.iter().map(ToString::to_string).collect_entries()
}

impl Context<'_> {
    /// Waits until the server has decided about `update`, or waits only for agents that are not
    /// connected.
    fn follow(
        &mut self,
        update: &mut Guarded,
        mut state: WaitState,
        earlier: &Earlier,
        give_up: Option<Instant>,
        is_rollback: bool,
    ) -> Result<ExitCode> {
        let first = update.id;
        self.output
            .debug(format_args!("the server evaluates it as update {first}"));
        state.is_guarded = true;
        let end = wait(
            &mut state,
            |wait, link, _| update.check(wait, link),
            give_up,
            self,
        );
        if end.is_err() {
            self.output.warn(format_args!(
                "the server continues with update {first}; see 'ank get updates'"
            ));
        }
        let reached = end?;
        let id = update.id;
        if id != first {
            self.output
                .warn(format_args!("update {first} became a part of update {id}"));
        }
        if !reached {
            for agent in update.absent_agents() {
                self.output
                    .warn(one_line(&format!("agent '{agent}' is not connected")));
            }
            self.warn_of_missed(&state, reached);
            let limit = shown(self.waiting.limit.unwrap_or_default());
            let text = format!("gave up waiting after '{limit}': update {id} is open");
            self.output.error(
                text,
                "the update continues; follow it with 'ank get updates'",
            );
            return Ok(ExitCode::GaveUp);
        }
        self.conclude_guarded(update, earlier, give_up, is_rollback)
    }

    /// Reports the outcome of a guarded update and decides the exit code.
    fn conclude_guarded(
        &mut self,
        update: &Guarded,
        earlier: &Earlier,
        give_up: Option<Instant>,
        is_rollback: bool,
    ) -> Result<ExitCode> {
        let id = update.id;
        let reason = text(&update.update, &["reason"]);
        let because = if reason.is_empty() {
            String::new()
        } else {
            format!(": {}", one_line(reason))
        };
        match phase(&update.update) {
            Some(UpdatePhase::Good) => {
                self.output.status(&format!("Update {id} is good."))?;
                Ok(ExitCode::Success)
            }
            Some(UpdatePhase::Kept) => {
                let text = format!("update {id} is kept, though not all of it is healthy{because}");
                if !self.waiting.fail_on_error {
                    self.output.warn(text);
                    return Ok(ExitCode::Success);
                }
                self.output.error(text, "'ank rollback' rolls it back");
                Ok(ExitCode::WorkloadFailed)
            }
            Some(UpdatePhase::Staging | UpdatePhase::Trial) => {
                for agent in update.absent_agents() {
                    let text = format!(
                        "agent '{agent}' is not connected; update {id} stays open until its workloads are healthy there"
                    );
                    self.output.warn(one_line(&text));
                }
                if self.waiting.fail_on_error {
                    return Ok(ExitCode::GaveUp);
                }
                Ok(ExitCode::Success)
            }
            Some(UpdatePhase::Undone) => {
                self.conclude_undone(update, &because, earlier, give_up, is_rollback)
            }
            Some(UpdatePhase::Stuck) => {
                let text = format!("update {id} failed and cannot be rolled back{because}");
                let hint = "the update stays active; see 'ank get workloads'";
                self.output.error(text, hint);
                Ok(ExitCode::Failed)
            }
            Some(UpdatePhase::Withdrawn) => {
                let text = format!(
                    "update {id} is withdrawn: other requests restored or deleted what it changed"
                );
                self.output.error(text, "see 'ank get updates'");
                Ok(ExitCode::Failed)
            }
            Some(UpdatePhase::Replaced) | None => {
                let phase = one_line(text(&update.update, &["phase"]));
                let why = if phase.is_empty() {
                    "the server no longer has this update".to_owned()
                } else {
                    format!("its phase is '{phase}'")
                };
                let text = format!("how update {id} ended is unknown: {why}");
                self.output
                    .error(text, "see 'ank get workloads' and 'ank get updates'");
                Ok(ExitCode::Failed)
            }
        }
    }

    /// Reports an update that was rolled back, after the earlier instances run again.
    fn conclude_undone(
        &mut self,
        update: &Guarded,
        because: &str,
        earlier: &Earlier,
        give_up: Option<Instant>,
        is_rollback: bool,
    ) -> Result<ExitCode> {
        let id = update.id;
        if let Some(why) = self.wait_after_rollback(id, earlier, give_up)? {
            let text =
                format!("update {id} failed and was rolled back, but not all is as before: {why}");
            let hint = format!("{NOT_RESTORED_HINT}; the update failed{because}");
            self.output.error(one_line(&text), &hint);
            return Ok(ExitCode::NotRestored);
        }
        let hint = match cause(&update.update) {
            UpdateCause::CannotBeStaged => "nothing was stopped; correct it and send it again",
            // The same rollback would be refused.
            UpdateCause::AwaitsDependents if is_rollback => {
                "apply the earlier manifest with '--restart-dependents', which restarts what needs it, too"
            }
            UpdateCause::AwaitsDependents => {
                "'ank apply --restart-dependents' restarts what needs it, too"
            }
            UpdateCause::Unhealthy => {
                "correct it and send it again; 'ank apply --force' tries the same again"
            }
        };
        let text = format!("update {id} failed and was rolled back{because}");
        self.output.error(text, hint);
        Ok(ExitCode::Undone)
    }

    /// Waits until the instances before update `id` run again, after the server has rolled it back.
    /// Returns the reason if not all of them do.
    fn wait_after_rollback(
        &mut self,
        id: u64,
        earlier: &Earlier,
        give_up: Option<Instant>,
    ) -> Result<Option<String>> {
        let path = ["updates", &id.to_string(), "workloads"];
        let state = self.read(&[path.join(".")])?;
        let mut names = BTreeSet::new();
        let mut restored = BTreeSet::new();
        for (name, workload) in rows::entries(state.at(&path)) {
            names.insert(name.to_owned());
            if let Some(old) = InstanceName::parse(text(workload, &["old"]))
                && !old.agent.is_empty()
                && earlier.may_have_run(&old)
            {
                restored.insert(old);
            }
        }
        restored.extend(earlier.dependents(names));
        self.wait_for_restored(restored.into_iter().collect(), give_up)
    }
}

#[cfg(test)]
mod tests;
