//! `ank apply --rollback`: `ank` judges the update itself, by the states that the server
//! broadcasts, and puts back what was there when it fails. It is good when all its workloads are
//! healthy at once. Any server will do.
//!
//! Thread: `main`; the time is passed in. Owns: the trial. Takes: broadcast states. Gives: good, or
//! why it failed.

use super::{Progress, WaitState, wait};
use crate::error::{CliError, ExitCode, Result};
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

/// An accepted update while `ank` judges it.
#[derive(Debug)]
pub(crate) struct ClientTrial {
    trial: HealthWindow,
    /// Workloads of which an end was reported: of an older instance of the same name, of one that
    /// is made anew, or others have deleted or replaced it.
    doubtful: BTreeSet<Name>,
    /// The effective state that is judged.
    effective: Node,
    /// Agents that are not connected.
    away: BTreeSet<Name>,
    losses: u32,
    /// The longest time that one of the judged may be not healthy.
    pub(crate) longest_deadline: Duration,
    /// Why the update failed and is to be undone, as `<workload>: <why>`.
    pub(crate) failure: Option<String>,
    /// The failures of workloads that do not undo the update, likewise.
    pub(crate) kept: Vec<String>,
    /// The workloads that other requests have deleted or replaced; they are not judged.
    pub(crate) gone: BTreeSet<Name>,
}

impl ClientTrial {
    /// Begins at `now` with instances that ran before an update which was undone, as `wait` has
    /// them: each is healthy as soon as it runs, and no failure of it is kept.
    fn of_restored(
        instances: &[InstanceName],
        wait: &WaitState,
        effective: &Node,
        now: Instant,
    ) -> Self {
        let mut new = Self::empty(effective);
        for instance in instances {
            let keeps_name = wait
                .watched
                .get(instance)
                .is_some_and(|watched| watched.ends);
            let is_present = wait.connected.contains(&instance.agent);
            let mut candidate = Member {
                ran: true,
                keeps_name,
                is_present,
                ..candidate(instance, effective)
            };
            candidate.terms.healthy = Duration::ZERO;
            candidate.on_failure = OnFailure::Rollback;
            new.judge(candidate, now);
            new.take_present(instance, wait, now);
        }
        new
    }

    /// Judges an instance by the state that it has already: it may have failed for good, and will
    /// report nothing more.
    fn take_present(&mut self, instance: &InstanceName, wait: &WaitState, now: Instant) {
        let Some(state) = wait.state(instance) else {
            return;
        };
        let failure = self.trial.report(instance, &state, now);
        self.take(failure, wait);
    }

    /// Why not all runs; `None` when everything does.
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
        let waits_for = self.trial.waits_for().into_iter().next();
        let missing = waits_for.and_then(|name| self.trial.instance(&name));
        let instance = missing.or_else(|| wait.those(|watched| watched.ends).into_iter().next())?;
        Some(format!(
            "{}: {}",
            instance.workload,
            wait.described(instance)
        ))
    }

    /// The names of the workloads that are judged when `accepted` came to `before`: those that
    /// change, and those that need one of them to run, directly or not.
    pub(crate) fn names(accepted: &Accepted, before: &Node) -> BTreeSet<String> {
        let needs = rows::needs(before);
        let changed = accepted
            .added
            .iter()
            .chain(&accepted.deleted)
            .map(|instance| instance.workload.to_string());
        with_dependents(changed.collect_entries(), &needs)
    }

    /// Begins at `now`, with the complete state before the update, the wait for it, and the
    /// effective state after it.
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
        let names: BTreeSet<Name> = ran
            .keys()
            .map(|instance| instance.workload.clone())
            .collect_entries();
        let added = accepted
            .added
            .iter()
            .filter(|instance| !instance.agent.is_empty())
            .map(|instance| Member {
                ran: names.contains(&instance.workload),
                keeps_name: wait
                    .watched
                    .get(instance)
                    .is_some_and(|watched| watched.ends),
                is_present: wait.connected.contains(&instance.agent),
                ..candidate(instance, effective)
            });
        let added: Vec<Member> = added.collect();
        let keep = !added.is_empty()
            && added
                .iter()
                .all(|candidate| candidate.on_failure == OnFailure::Keep);
        let on_failure = if keep {
            OnFailure::Keep
        } else {
            OnFailure::Rollback
        };
        added
            .into_iter()
            .for_each(|candidate| new.judge(candidate, now));
        let changed: BTreeSet<&Name> = accepted
            .added
            .iter()
            .chain(&accepted.deleted)
            .map(|instance| &instance.workload)
            .collect_entries();
        let names = Self::names(accepted, before);
        ran.retain(|instance, _| {
            !changed.contains(&instance.workload) && names.contains(&*instance.workload)
        });
        for (instance, _) in ran {
            let state = Some(ExecutionState::plain(Phase::Running));
            new.judge(
                Member {
                    ran: true,
                    state,
                    on_failure,
                    ..candidate(&instance, effective)
                },
                now,
            );
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
            let is_present = wait.connected.contains(&instance.agent);
            new.judge(
                Member {
                    is_present,
                    ..candidate(instance, effective)
                },
                now,
            );
            new.take_present(instance, wait, now);
        }
        new
    }

    /// Judges nothing yet.
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

    fn judge(&mut self, candidate: Member, now: Instant) {
        if !candidate.is_present {
            self.away.insert(candidate.instance.agent.clone());
        }
        self.longest_deadline = self.longest_deadline.max(candidate.terms.deadline);
        self.trial.add(candidate, now);
    }

    /// Whether it is decided, with the states that were reported since it was asked last.
    pub(crate) fn check(
        &mut self,
        wait: &mut WaitState,
        link: &mut dyn ServerLink,
        states: &[WorkloadState],
    ) -> Result<Progress> {
        let now = link.now();
        let missed = self.trial.tick(now); // What was due before these states.
        self.take(missed, wait);
        for state in states {
            let failures = self.on_state(state, now);
            self.take(failures, wait);
        }
        if !self.doubtful.is_empty() {
            let doubtful = std::mem::take(&mut self.doubtful);
            let masks: Vec<String> = doubtful.iter().map(|name| effective_mask(name)).collect();
            let state =
                link.complete_state(&masks.iter().map(String::as_str).collect::<Vec<_>>())?;
            for name in doubtful {
                let path = ["effectiveState", "workloads", &name];
                if state.at(&path) != self.effective.at(&path) {
                    self.trial.remove(&name);
                    self.gone.insert(name);
                }
            }
        }
        let is_settled = match wait.absent {
            AbsentAgents::Skipped => self.trial.is_settled(),
            AbsentAgents::Awaited => self.trial.is_over(),
        };
        if self.failure.is_some() || (is_settled && wait.has_ended()) {
            return Ok(Progress::Break(()));
        }
        let names = self.trial.waits_for();
        wait.set_on_trial(&names.iter().map(String::as_str).collect_entries());
        Ok(Progress::Continue(self.trial.next_change()))
    }

    fn take(&mut self, failures: impl IntoIterator<Item = Failure>, wait: &WaitState) {
        for failure in failures {
            let workload = &failure.workload;
            let why = match (failure.cause, self.trial.instance(workload)) {
                // What an instance waits for follows from the states of others.
                (FailureCause::Late(_), Some(instance)) => {
                    failure.text_with(&wait.described(instance))
                }
                _ => failure.text(),
            };
            let why = format!("{workload}: {why}");
            match failure.on_failure {
                OnFailure::Rollback => _ = self.failure.get_or_insert(why),
                OnFailure::Keep => self.kept.push(why),
            }
        }
    }

    fn on_state(
        &mut self,
        WorkloadState { instance, state }: &WorkloadState,
        now: Instant,
    ) -> Vec<Failure> {
        if self.trial.instance(&instance.workload) != Some(instance) {
            return Vec::new();
        }
        let agent = &instance.agent;
        if state.phase == Phase::AgentDisconnected {
            if self.away.insert(agent.clone()) && self.trial.agent_left(agent, now) {
                self.losses += 1;
                if self.losses >= UPDATE_LOSSES {
                    return self.trial.fail_by_losses(
                        &format!("{} losses of agent '{agent}'", self.losses),
                        now,
                    );
                }
            }
            return Vec::new();
        }
        if self.away.remove(agent) {
            self.trial.agent_came(agent, now);
        }
        if state.phase == Phase::Removed {
            self.doubtful.insert(instance.workload.clone());
        }
        self.trial
            .report(instance, state, now)
            .into_iter()
            .collect()
    }
}

/// What ran before an update.
#[derive(Debug, Default)]
pub(crate) struct Earlier {
    phases: BTreeMap<InstanceName, Option<Phase>>,
    needs: rows::Needs,
}

impl Earlier {
    /// Takes it from the complete state before the update.
    pub(crate) fn new(before: &Node) -> Self {
        let phases = rows::rows(before)
            .into_iter()
            .map(|(instance, row)| (instance, row.phase))
            .collect_entries();
        Self {
            phases,
            needs: rows::needs(before),
        }
    }

    /// Whether an instance has to run after the update was undone: it ran before, or what it did is
    /// unknown.
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

/// Whether a workload in this phase runs or has done its work.
fn ran(phase: Phase) -> bool {
    matches!(phase, Phase::Running | Phase::Succeeded)
}

/// Adds to `names` those that need one of them to run, directly or not.
fn with_dependents(mut names: BTreeSet<String>, needs: &rows::Needs) -> BTreeSet<String> {
    loop {
        let before = names.len();
        for (name, needs) in needs {
            let needs_one = needs
                .iter()
                .any(|(name, how)| how == AddCondition::Running.as_str() && names.contains(name));
            if needs_one {
                names.insert(name.clone());
            }
        }
        if names.len() == before {
            return names;
        }
    }
}

/// The mask of a workload as its agent gets it.
pub(crate) fn effective_mask(name: &str) -> String {
    format!("effectiveState.workloads.{name}")
}

/// How an instance is judged, by its workload in the effective state.
fn candidate(instance: &InstanceName, effective: &Node) -> Member {
    let workload = effective.at(&["effectiveState", "workloads", &instance.workload]);
    let text = |key: &str| workload.map_or("", |workload| rows::text(workload, &[key]));
    let mut candidate = Member {
        instance: instance.clone(),
        terms: Terms::default(),
        on_failure: OnFailure::Rollback,
        is_never_restarted: text("restartPolicy") == RestartPolicy::Never.as_str(),
        ran: false,
        state: None,
        keeps_name: false,
        is_present: true,
    };
    let lifecycle = lifecycle::of_config(text("runtime"), text("runtimeConfig"));
    if let Ok(Some(lifecycle)) = lifecycle
        && let Some(update) = lifecycle.update
    {
        candidate.terms = update.terms;
        candidate.on_failure = update.on_failure.unwrap_or(OnFailure::Rollback);
    }
    candidate
}

impl Context<'_> {
    /// Judges an accepted update of what `masks` name, which was `old` and came to the complete
    /// state `before`. Undoes it when it fails.
    pub(crate) fn judge(
        &mut self,
        masks: &[String],
        old: &Node,
        accepted: &Accepted,
        before: &Node,
        mut state: WaitState,
        give_up: Option<Instant>,
    ) -> Result<ExitCode> {
        let effective = ClientTrial::names(accepted, before)
            .into_iter()
            .map(|name| effective_mask(&name));
        let sent = self.read(&masks.iter().cloned().chain(effective).collect::<Vec<_>>())?;
        let mut trial = ClientTrial::new(accepted, before, &mut state, &sent, self.link.now());
        let goal = |wait: &mut WaitState, link: &mut dyn ServerLink, states: &[_]| {
            trial.check(wait, link, states)
        };
        let reached = wait(&mut state, goal, give_up, self).inspect_err(|_| {
            self.output.warn(
                "the update is not watched any more: it stays in force, whether it fails or not",
            );
        })?;
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
            let names = trial
                .gone
                .iter()
                .map(|name| &**name)
                .collect::<Vec<_>>()
                .join("', '");
            let text = format!(
                "others deleted or replaced '{names}' meanwhile; all else of the update is in force"
            );
            self.output
                .error(text, "'ank diff' shows what is not as the manifests say");
            return Ok(ExitCode::Failed);
        }
        let late = "nothing judges the update any more, so nothing rolls it back; follow it with 'ank get workloads -w', or apply \
                    the earlier manifest";
        let code = self.conclude(&state, reached, late);
        let failed = self.waiting.fail_on_error && !trial.kept.is_empty();
        Ok(if failed && code == ExitCode::Success {
            ExitCode::WorkloadFailed
        } else {
            code
        })
    }

    /// Sends what was `old` there, but for those that are not as they were `sent`, and waits until
    /// what ran `earlier` runs again.
    fn undo(
        &mut self,
        masks: &[String],
        old: &Node,
        sent: &Node,
        earlier: &Earlier,
        give_up: Option<Instant>,
    ) -> Result<ExitCode> {
        let before = self.read(&rows::MASKS)?;
        let now = self.read(masks)?;
        let is_as_sent = |mask: &String| now.at(&parts(mask)) == sent.at(&parts(mask));
        let (ours, others): (Vec<String>, Vec<String>) =
            masks.iter().cloned().partition(is_as_sent);
        self.output.status("Rolling back the update.")?;
        let mut missing = None;
        if !ours.is_empty() {
            let accepted = match self.link.update_state(old.clone(), ours) {
                Err(CliError::Refused(error)) => {
                    let reason = error.text;
                    let text = format!("the update failed and cannot be rolled back: '{reason}'");
                    self.output
                        .error(text, "the update stays in force; see 'ank get workloads'");
                    return Ok(ExitCode::Failed);
                }
                accepted => accepted?,
            };
            let mut restored: Vec<InstanceName> = accepted
                .added
                .iter()
                .filter(|added| earlier.may_have_run(added))
                .cloned()
                .collect();
            let changed = accepted
                .added
                .iter()
                .chain(&accepted.deleted)
                .map(|instance| instance.workload.to_string());
            restored.extend(earlier.dependents(changed.collect_entries()));
            let now = self.read_restored(&restored)?;
            let state = WaitState::new(&accepted, &before, &now, AbsentAgents::Skipped);
            missing = self.wait_until_restored(&restored, state, &now, give_up)?;
        }
        if let Some(why) = missing {
            let text =
                format!("the update failed and was rolled back, but not all is as before: {why}");
            self.output
                .error(one_line(&text), "'ank get workloads' shows what runs");
            return Ok(ExitCode::NotRestored);
        }
        if others.is_empty() {
            let hint =
                "the desired state is as it was before; correct the manifest and apply it again";
            self.output
                .error("the update failed and was rolled back", hint);
            return Ok(ExitCode::Undone);
        }
        let names: Vec<&str> = others
            .iter()
            .filter_map(|mask| parts(mask).last().copied())
            .collect();
        let text = format!(
            "the update failed; '{}' stayed because others changed it meanwhile",
            names.join("', '")
        );
        self.output.error(
            text,
            "all else that the update names is as it was before; see 'ank diff'",
        );
        Ok(ExitCode::Failed)
    }

    /// Waits until these instances, which ran before an update that the server has rolled back, run
    /// again. Returns why not all of them do.
    pub(crate) fn wait_for_restored(
        &mut self,
        restored: Vec<InstanceName>,
        give_up: Option<Instant>,
    ) -> Result<Option<String>> {
        if restored.is_empty() {
            return Ok(None);
        }
        let now = self.read_restored(&restored)?;
        let names: BTreeSet<&Name> = restored
            .iter()
            .map(|instance| &instance.workload)
            .collect_entries();
        let listed = rows::instances(now.get("workloadStates")).map(|(instance, _)| instance);
        let others =
            listed.filter(|listed| names.contains(&listed.workload) && !restored.contains(listed));
        let others: Vec<InstanceName> = others.collect();
        let state = WaitState::of_present(&restored, &others, &now, AbsentAgents::Skipped);
        self.wait_until_restored(&restored, state, &now, give_up)
    }

    /// Reads the states of all instances and the workloads of `restored` ones as their agents get
    /// them.
    fn read_restored(&mut self, restored: &[InstanceName]) -> Result<Node> {
        let masks = rows::MASKS.iter().map(ToString::to_string);
        let workloads = restored
            .iter()
            .map(|instance| effective_mask(&instance.workload));
        self.read(&masks.chain(workloads).collect::<Vec<_>>())
    }

    /// The same with the wait for them, and the complete state `now`. Each has its own deadline; a
    /// limit of the command that is earlier holds as well.
    fn wait_until_restored(
        &mut self,
        restored: &[InstanceName],
        mut state: WaitState,
        now: &Node,
        give_up: Option<Instant>,
    ) -> Result<Option<String>> {
        let mut trial = ClientTrial::of_restored(restored, &state, now, self.link.now());
        if !state.has_ended() || !trial.trial.is_settled() {
            // What is only deleted has no deadline of its own.
            let limit = trial.longest_deadline.max(Terms::default().deadline);
            let last = self.link.now().checked_add(limit);
            let goal = |wait: &mut WaitState, link: &mut dyn ServerLink, states: &[_]| {
                trial.check(wait, link, states)
            };
            wait(
                &mut state,
                goal,
                give_up.into_iter().chain(last).min(),
                self,
            )?;
        }
        Ok(trial.why_not(&state))
    }
}

#[cfg(test)]
mod tests;
