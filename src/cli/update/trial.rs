//! `ank apply --rollback`: `ank` evaluates the update itself, by the states that the server
//! broadcasts, and restores the earlier state when it fails. It succeeds when all its workloads are
//! healthy at once. Any server will do.
//!
//! Thread: `main`; the time is passed in. Owns: the health window. Takes: broadcast states. Gives:
//! success, or the reason of the failure.

use super::{GoalProgress, NOT_RESTORED_HINT, WaitState, wait};
use crate::error::{CliError, ExitCode, Result, reason_of_refusal};
use crate::output::one_line;
use crate::rows;
use crate::session::{Accepted, Context, ServerLink};
use crate::settings::AbsentAgents;
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::field_path::parts;
use ankaios_model::health_window::{Failure, FailureCause, HealthWindow, Member};
use ankaios_model::lifecycle::{self, OnFailure, Terms};
use ankaios_model::limits::UPDATE_LOSSES;
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::node::Node;
use ankaios_model::workload::{AddCondition, RestartPolicy};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// An accepted update while `ank` evaluates it.
#[derive(Debug)]
pub(crate) struct ClientTrial {
    trial: HealthWindow,
    /// Workloads whose instance was reported as removed. Either it is created again, or others have
    /// changed the workload.
    doubtful: BTreeSet<Name>,
    /// The effective state that is evaluated.
    effective: Node,
    /// Agents that are not connected.
    away: BTreeSet<Name>,
    /// How often an agent with started members was disconnected.
    losses: u32,
    /// The longest time in which a member must become healthy.
    pub(crate) longest_deadline: Duration,
    /// The failure for which the update will be rolled back, as `<workload>: <why>`.
    pub(crate) failure: Option<String>,
    /// The failures that do not roll back the update, likewise.
    pub(crate) kept: Vec<String>,
    /// The workloads that other requests have deleted or replaced; they are not evaluated.
    pub(crate) gone: BTreeSet<Name>,
}

impl ClientTrial {
    /// Begins at `now` with the instances that must run again after a rollback. Each is healthy as
    /// soon as it runs. It must not fail, even if its workload has `onFailure: KEEP`.
    fn of_restored(
        instances: &[InstanceName],
        wait: &WaitState,
        effective: &Node,
        now: Instant,
    ) -> Self {
        let mut new = Self::empty(effective);
        for instance in instances {
            let mut member = member(instance, effective);
            member.ran = true;
            member.keeps_name = wait.will_end(instance);
            member.is_present = wait.connected.contains(&instance.agent);
            member.terms.healthy = Duration::ZERO;
            member.on_failure = OnFailure::Rollback;
            new.add(member, now);
            new.take_present(instance, wait, now);
        }
        new
    }

    /// Evaluates the present state of an instance: an instance that has failed for good sends no
    /// further report.
    fn take_present(&mut self, instance: &InstanceName, wait: &WaitState, now: Instant) {
        let Some(state) = wait.state(instance) else {
            return;
        };
        let failure = self.trial.report(instance, &state, now);
        self.take(failure, wait);
    }

    /// The reason if not all members run; `None` if all do. In this order: a failure, a
    /// disconnected agent, a workload changed by others, the first awaited instance.
    fn why_not(&self, wait: &WaitState) -> Option<String> {
        if let Some(why) = &self.failure {
            return Some(why.clone());
        }
        if let Some(agent) = self.away.first() {
            return Some(format!("agent '{agent}' is not connected"));
        }
        if let Some(name) = self.gone.first() {
            return Some(format!("others deleted or replaced '{name}' meanwhile"));
        }
        let instance = self.first_awaited(wait)?;
        let state = wait.described(instance);
        Some(format!("{}: {state}", instance.workload))
    }

    /// The first member that does not run yet; without one, the first instance that has not ended
    /// yet.
    fn first_awaited<'a>(&'a self, wait: &'a WaitState) -> Option<&'a InstanceName> {
        if let Some(name) = self.trial.waits_for().first()
            && let Some(instance) = self.trial.instance(name)
        {
            return Some(instance);
        }
        let ending = wait.instances_where(|watched| watched.ends);
        ending.first().copied()
    }

    /// The names of the members: the workloads that `accepted` changes, and their direct and
    /// indirect dependents. `before` is the complete state before the update.
    pub(crate) fn names(accepted: &Accepted, before: &Node) -> BTreeSet<String> {
        with_dependents(changed_names(accepted), &rows::needs(before))
    }

    /// Begins at `now`. `before` is the complete state before the update, `effective` the effective
    /// state after it.
    pub(crate) fn new(
        accepted: &Accepted,
        before: &Node,
        wait: &mut WaitState,
        effective: &Node,
        now: Instant,
    ) -> Self {
        let mut new = Self::empty(effective);
        let mut ran = rows::rows(before);
        ran.retain(|_, row| row.phase == Some(Phase::Running));
        let ran_names: BTreeSet<&Name> = ran
            .keys()
            .map(|instance| &instance.workload)
            .collect_entries();
        // First the added instances. If all of them keep their failures, so do their dependents.
        let mut added = 0;
        let mut keeping = 0;
        for instance in &accepted.added {
            if instance.agent.is_empty() {
                continue; // Without an agent it is never started.
            }
            let mut member = member(instance, effective);
            member.ran = ran_names.contains(&instance.workload);
            member.keeps_name = wait.will_end(instance);
            member.is_present = wait.connected.contains(&instance.agent);
            added += 1;
            if member.on_failure == OnFailure::Keep {
                keeping += 1;
            }
            new.add(member, now);
        }
        let mut on_failure = OnFailure::Rollback;
        if added > 0 && keeping == added {
            on_failure = OnFailure::Keep;
        }
        // Then the running dependents of all changed workloads.
        let changed = changed_names(accepted);
        let names = Self::names(accepted, before);
        for instance in ran.into_keys() {
            let name = &*instance.workload;
            if changed.contains(name) || !names.contains(name) {
                continue;
            }
            let mut member = member(&instance, effective);
            member.ran = true;
            member.state = Some(ExecutionState::plain(Phase::Running));
            member.on_failure = on_failure;
            new.add(member, now);
            wait.watched.entry(instance).or_default(); // It is shown, too.
        }
        new
    }

    /// Begins at `now` with instances that an earlier update has started, as `wait` has them.
    pub(crate) fn of_present(
        instances: &[InstanceName],
        wait: &WaitState,
        effective: &Node,
        now: Instant,
    ) -> Self {
        let mut new = Self::empty(effective);
        for instance in instances {
            let mut member = member(instance, effective);
            member.is_present = wait.connected.contains(&instance.agent);
            new.add(member, now);
            new.take_present(instance, wait, now);
        }
        new
    }

    /// Has no members yet.
    fn empty(effective: &Node) -> Self {
        Self {
            trial: HealthWindow::default(),
            doubtful: BTreeSet::new(),
            effective: effective.clone(),
            away: BTreeSet::new(),
            losses: 0,
            longest_deadline: Duration::ZERO,
            failure: None,
            kept: Vec::new(),
            gone: BTreeSet::new(),
        }
    }

    fn add(&mut self, member: Member, now: Instant) {
        if !member.is_present {
            self.away.insert(member.instance.agent.clone());
        }
        self.longest_deadline = self.longest_deadline.max(member.terms.deadline);
        self.trial.add(member, now);
    }

    /// Evaluates the states that were reported since the last call. Breaks when the outcome is
    /// decided.
    pub(crate) fn check(
        &mut self,
        wait: &mut WaitState,
        link: &mut dyn ServerLink,
        states: &[WorkloadState],
    ) -> Result<GoalProgress> {
        let now = link.now();
        // First the deadlines that were due before these states.
        let missed = self.trial.tick(now);
        self.take(missed, wait);
        // Then the states.
        for state in states {
            let failures = self.on_state(state, now);
            self.take(failures, wait);
        }
        self.remove_changed(link)?;
        // Finally the outcome.
        let is_settled = match wait.absent {
            AbsentAgents::Skipped => self.trial.is_settled(),
            AbsentAgents::Awaited => self.trial.is_over(),
        };
        if self.failure.is_some() || (is_settled && wait.has_ended()) {
            return Ok(GoalProgress::Break(()));
        }
        let names = self.trial.waits_for();
        wait.set_on_trial(&names.iter().map(String::as_str).collect_entries());
        Ok(GoalProgress::Continue(self.trial.next_change()))
    }

    /// Removes the doubtful workloads that another request has changed.
    fn remove_changed(&mut self, link: &mut dyn ServerLink) -> Result<()> {
        if self.doubtful.is_empty() {
            return Ok(());
        }
        let doubtful = std::mem::take(&mut self.doubtful);
        let masks: Vec<String> = doubtful.iter().map(|name| effective_mask(name)).collect();
        let masks: Vec<&str> = masks.iter().map(String::as_str).collect();
        let state = link.complete_state(&masks)?;
        for name in doubtful {
            let path = ["effectiveState", "workloads", &name];
            if state.at(&path) != self.effective.at(&path) {
                self.trial.remove(&name);
                self.gone.insert(name);
            }
        }
        Ok(())
    }

    /// Records failures. Only the first one that rolls the update back is kept.
    fn take(&mut self, failures: impl IntoIterator<Item = Failure>, wait: &WaitState) {
        for failure in failures {
            let workload = &failure.workload;
            let mut why = failure.text();
            // The reason of a wait follows from the states of other workloads.
            if let FailureCause::Late(_) = failure.cause
                && let Some(instance) = self.trial.instance(workload)
            {
                why = failure.text_with(&wait.described(instance));
            }
            let why = format!("{workload}: {why}");
            match failure.on_failure {
                OnFailure::Rollback => _ = self.failure.get_or_insert(why),
                OnFailure::Keep => self.kept.push(why),
            }
        }
    }

    /// Evaluates a reported state. Returns the failures that it causes.
    fn on_state(
        &mut self,
        WorkloadState { instance, state }: &WorkloadState,
        now: Instant,
    ) -> Vec<Failure> {
        if self.trial.instance(&instance.workload) != Some(instance) {
            return Vec::new(); // It is no member.
        }
        let agent = &instance.agent;
        if state.phase == Phase::AgentDisconnected {
            return self.agent_left(agent, now);
        }
        if self.away.remove(agent) {
            self.trial.agent_came(agent, now);
        }
        if state.phase == Phase::Removed {
            self.doubtful.insert(instance.workload.clone());
        }
        Vec::from_iter(self.trial.report(instance, state, now))
    }

    /// Notes that an agent is not connected any more. After several losses the update fails.
    fn agent_left(&mut self, agent: &Name, now: Instant) -> Vec<Failure> {
        let is_new = self.away.insert(agent.clone());
        if !is_new {
            return Vec::new(); // Each of its instances reports it.
        }
        let had_started_one = self.trial.agent_left(agent, now);
        if !had_started_one {
            return Vec::new();
        }
        self.losses += 1;
        if self.losses < UPDATE_LOSSES {
            return Vec::new();
        }
        let why = format!("{} losses of agent '{agent}'", self.losses);
        self.trial.fail_by_losses(&why, now)
    }
}

/// The instances before an update.
#[derive(Debug, Default)]
pub(crate) struct Earlier {
    phases: BTreeMap<InstanceName, Option<Phase>>,
    needs: rows::Needs,
}

impl Earlier {
    /// The instances in `before`, the complete state before the update.
    pub(crate) fn new(before: &Node) -> Self {
        let mut phases = BTreeMap::new();
        for (instance, row) in rows::rows(before) {
            phases.insert(instance, row.phase);
        }
        Self {
            phases,
            needs: rows::needs(before),
        }
    }

    /// Returns whether an instance must run after the rollback: it ran before, or may have run
    /// before it was stopped, or its state was unknown.
    pub(crate) fn may_have_run(&self, instance: &InstanceName) -> bool {
        match self.phases.get(instance) {
            Some(Some(phase)) => {
                ran(*phase) || phase.state() == "Stopping" || *phase == Phase::Removed
            }
            Some(None) | None => true,
        }
    }

    /// The instances that ran and that need one of `names` to run, directly or not.
    pub(crate) fn dependents(&self, names: BTreeSet<String>) -> Vec<InstanceName> {
        let all = with_dependents(names.clone(), &self.needs);
        let mut dependents = Vec::new();
        for (instance, phase) in &self.phases {
            let name = &*instance.workload;
            if all.contains(name) && !names.contains(name) && phase.is_some_and(ran) {
                dependents.push(instance.clone());
            }
        }
        dependents
    }
}

/// The names of the workloads that an update adds, changes or deletes.
fn changed_names(accepted: &Accepted) -> BTreeSet<String> {
    let instances = accepted.added.iter().chain(&accepted.deleted);
    let names = instances.map(|instance| instance.workload.to_string());
    names.collect_entries()
}

/// Returns whether a workload in this phase runs or has done its work.
fn ran(phase: Phase) -> bool {
    matches!(phase, Phase::Running | Phase::Succeeded)
}

/// Adds to `names` their direct and indirect dependents.
fn with_dependents(mut names: BTreeSet<String>, needs: &rows::Needs) -> BTreeSet<String> {
    loop {
        let before = names.len();
        for (dependent, needs) in needs {
            for (needed, condition) in needs {
                if condition == AddCondition::Running.as_str() && names.contains(needed) {
                    names.insert(dependent.clone());
                }
            }
        }
        if names.len() == before {
            return names;
        }
    }
}

/// The mask of a workload in the effective state.
pub(crate) fn effective_mask(name: &str) -> String {
    format!("effectiveState.workloads.{name}")
}

/// The member for an instance, with the terms of its workload in the effective state.
fn member(instance: &InstanceName, effective: &Node) -> Member {
    let mut member = Member {
        instance: instance.clone(),
        terms: Terms::default(),
        on_failure: OnFailure::Rollback,
        is_never_restarted: false,
        ran: false,
        state: None,
        keeps_name: false,
        is_present: true,
    };
    let Some(workload) = effective.at(&["effectiveState", "workloads", &instance.workload]) else {
        return member;
    };
    let restart_policy = rows::text(workload, &["restartPolicy"]);
    member.is_never_restarted = restart_policy == RestartPolicy::Never.as_str();
    let runtime = rows::text(workload, &["runtime"]);
    let config = rows::text(workload, &["runtimeConfig"]);
    if let Ok(Some(lifecycle)) = lifecycle::of_config(runtime, config)
        && let Some(update) = lifecycle.update
    {
        member.terms = update.terms;
        member.on_failure = update.on_failure.unwrap_or(OnFailure::Rollback);
    }
    member
}

impl Context<'_> {
    /// Evaluates an accepted update of the objects that `masks` name. Rolls it back to `old` if it
    /// fails. `before` is the complete state before the update.
    pub(crate) fn judge(
        &mut self,
        masks: &[String],
        old: &Node,
        accepted: &Accepted,
        before: &Node,
        mut state: WaitState,
        give_up: Option<Instant>,
    ) -> Result<ExitCode> {
        // First, read the objects and the effective workloads as the update has left them.
        let mut parts = masks.to_vec();
        for name in ClientTrial::names(accepted, before) {
            parts.push(effective_mask(&name));
        }
        let sent = self.read(&parts);
        let sent = self.warned_if_unwatched(sent)?;
        // Then, evaluate the workloads until the outcome is decided.
        let mut trial = ClientTrial::new(accepted, before, &mut state, &sent, self.link.now());
        let end = wait(
            &mut state,
            |wait, link, states| trial.check(wait, link, states),
            give_up,
            self,
        );
        let reached = self.warned_if_unwatched(end)?;
        // Finally, roll the update back, or report it.
        if let Some(why) = &trial.failure {
            self.output.warn(format_args!("the update failed: {why}"));
            return self.undo(masks, old, &sent, &Earlier::new(before), give_up);
        }
        for why in &trial.kept {
            self.output.warn(format_args!(
                "failed, and stays because of 'onFailure: KEEP': {why}"
            ));
        }
        if reached && !trial.gone.is_empty() {
            let names: Vec<&str> = trial.gone.iter().map(|name| &**name).collect();
            let names = names.join("', '");
            let text = format!(
                "others deleted or replaced '{names}' meanwhile; all else of the update is active"
            );
            self.output
                .error(text, "'ank diff' shows what is not as the manifests say");
            return Ok(ExitCode::Failed);
        }
        let late_hint = "nothing evaluates the update any more, so nothing rolls it back; follow it with 'ank get workloads -w', or apply \
                    the earlier manifest";
        let code = self.conclude(&state, reached, late_hint);
        let has_failed = self.waiting.fail_on_error && !trial.kept.is_empty();
        if has_failed && code == ExitCode::Success {
            return Ok(ExitCode::WorkloadFailed);
        }
        Ok(code)
    }

    /// Returns `result`. Warns of an error: after it the update cannot be rolled back any more.
    fn warned_if_unwatched<T>(&mut self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.output.warn(
                "the update is not watched any more: it stays active, whether it fails or not, and nothing rolls it back",
            );
        }
        result
    }

    /// Sends the `old` objects, unless others have changed them since they were `sent`, and waits
    /// until the `earlier` instances run again.
    fn undo(
        &mut self,
        masks: &[String],
        old: &Node,
        sent: &Node,
        earlier: &Earlier,
        give_up: Option<Instant>,
    ) -> Result<ExitCode> {
        // First find the objects that others have changed.
        let before = self.read(&rows::MASKS);
        let before = self.warned_if_unwatched(before)?;
        let present = self.read(masks);
        let present = self.warned_if_unwatched(present)?;
        let mut ours = Vec::new();
        let mut changed_by_others = Vec::new();
        for mask in masks {
            let path = parts(mask);
            if present.at(&path) == sent.at(&path) {
                ours.push(mask.clone());
            } else {
                changed_by_others.extend(path.last().copied());
            }
        }
        // Then send the other ones, and wait for the earlier instances.
        self.output.status("Rolling back the update.")?;
        let mut missing = None;
        if !ours.is_empty() {
            let accepted = match self.link.update_state(old.clone(), ours) {
                Err(CliError::Refused(error)) => {
                    let reason = reason_of_refusal(&error.text).unwrap_or(&error.text);
                    let text = format!("the update failed and cannot be rolled back: {reason}");
                    self.output
                        .error(text, "the update stays active; see 'ank get workloads'");
                    return Ok(ExitCode::Failed);
                }
                accepted => accepted?,
            };
            let mut restored = accepted.added.clone();
            restored.retain(|added| earlier.may_have_run(added));
            restored.extend(earlier.dependents(changed_names(&accepted)));
            let after = self.read_restored(&restored)?;
            let state = WaitState::new(&accepted, &before, &after, AbsentAgents::Skipped);
            missing = self.wait_until_restored(&restored, state, &after, give_up)?;
        }
        // Finally report the result.
        if let Some(why) = missing {
            let text =
                format!("the update failed and was rolled back, but not all is as before: {why}");
            self.output.error(one_line(&text), NOT_RESTORED_HINT);
            return Ok(ExitCode::NotRestored);
        }
        if changed_by_others.is_empty() {
            let hint =
                "the desired state is as it was before; correct the manifest and apply it again";
            self.output
                .error("the update failed and was rolled back", hint);
            return Ok(ExitCode::Undone);
        }
        let text = format!(
            "the update failed; '{}' stayed because others changed it meanwhile",
            changed_by_others.join("', '")
        );
        self.output.error(
            text,
            "all else that the update names is as it was before; see 'ank diff'",
        );
        Ok(ExitCode::Failed)
    }

    /// Waits until the `restored` instances run again, after the server has rolled an update back.
    /// Returns the reason if not all of them do.
    pub(crate) fn wait_for_restored(
        &mut self,
        restored: Vec<InstanceName>,
        give_up: Option<Instant>,
    ) -> Result<Option<String>> {
        if restored.is_empty() {
            return Ok(None);
        }
        // All other instances of the same workloads must end.
        let now = self.read_restored(&restored)?;
        let names: BTreeSet<&Name> = restored
            .iter()
            .map(|instance| &instance.workload)
            .collect_entries();
        let mut others = Vec::new();
        for (listed, _) in rows::instances(now.get("workloadStates")) {
            if names.contains(&listed.workload) && !restored.contains(&listed) {
                others.push(listed);
            }
        }
        let state = WaitState::of_present(&restored, &others, &now, AbsentAgents::Skipped);
        self.wait_until_restored(&restored, state, &now, give_up)
    }

    /// Reads the states of all instances, and the effective state of the workloads of `restored`
    /// ones.
    fn read_restored(&mut self, restored: &[InstanceName]) -> Result<Node> {
        let mut masks: Vec<String> = rows::MASKS.map(str::to_owned).to_vec();
        for instance in restored {
            masks.push(effective_mask(&instance.workload));
        }
        self.read(&masks)
    }

    /// Waits until the `restored` instances run again. Ends at their longest deadline, or at
    /// `give_up`. Returns the reason if not all of them do. `state` is the wait for them, and `now`
    /// the complete state at its begin.
    fn wait_until_restored(
        &mut self,
        restored: &[InstanceName],
        mut state: WaitState,
        now: &Node,
        give_up: Option<Instant>,
    ) -> Result<Option<String>> {
        let mut trial = ClientTrial::of_restored(restored, &state, now, self.link.now());
        if !state.has_ended() || !trial.trial.is_settled() {
            // Instances that only end have no deadline of their own.
            let limit = trial.longest_deadline.max(Terms::default().deadline);
            let last = self.link.now().checked_add(limit);
            wait(
                &mut state,
                |wait, link, states| trial.check(wait, link, states),
                [give_up, last].into_iter().flatten().min(),
                self,
            )?;
        }
        Ok(trial.why_not(&state))
    }
}

#[cfg(test)]
mod tests;
