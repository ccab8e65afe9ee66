//! Requests: whether one is guarded, which open update it becomes a part of, what has to be staged for it.
//!
//! Thread: `server`; part of [`ServerLoop`].

use super::staging::{Pending, StagedInstance};
use super::trial::Candidate;
use super::unit::{Form, Touch, Unit};
use super::{Open, Record, block_of};
use crate::limits::{UPDATES_OPEN, UPDATES_OPEN_OF_WORKLOADS};
use crate::model::execution_state::Phase;
use crate::model::guarded_update::UpdatePhase;
use crate::model::lifecycle::OnFailure;
use crate::model::messages::{AddedWorkload, RequestContent, ResponseContent, UpdateState};
use crate::model::names::{InstanceName, Name};
use crate::model::prepare_level::PrepareLevel;
use crate::model::workload::RestartPolicy;
use crate::platform::logging::utc;
use crate::server::ServerLoop;
use crate::server::events::Changes;
use crate::server::modes::Modes;
use crate::server::plan::Difference;
use crate::server::prepare::PreparedUpdate;
use crate::server::requester::Requester;
use crate::server::update::{StateChange, UpdateError};
use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

/// The response to an update with this difference, of which a part was carried out at once with this response.
fn answer(difference: &Difference, at_once: ResponseContent) -> ResponseContent {
    let mut added: BTreeSet<String> = difference.added.iter().map(|added| added.instance.to_string()).collect();
    let mut deleted: BTreeSet<String> = difference.deleted.iter().map(ToString::to_string).collect();
    if let ResponseContent::UpdateStateSuccess { added: begun, deleted: ended } = at_once {
        added.extend(begun);
        deleted.extend(ended);
    }
    ResponseContent::UpdateStateSuccess { added: added.into_iter().collect(), deleted: deleted.into_iter().collect() }
}

impl ServerLoop {
    /// Carries out a checked update of a request, now or once everything of it is staged.
    ///
    /// # Errors
    /// It is the same as one that was undone, too many are open, or it would become a part of one that is also about what
    /// the requester may not write.
    pub(in crate::server) fn accept(
        &mut self,
        prepared: PreparedUpdate,
        requester: &Requester,
    ) -> Result<(ResponseContent, Changes), UpdateError> {
        if self.guarded.is_idle() && !self.asks_for_guard(&prepared.for_agents) {
            return Ok(self.commit(prepared));
        }
        let touch = self.touch(&prepared);
        let joined: Vec<u64> = self
            .guarded
            .open
            .iter()
            .filter(|(_, open)| open.record.unit.is_touched_by(&touch))
            .map(|(number, _)| *number)
            .collect();
        let mut unit = Unit::default();
        for open in joined.iter().filter_map(|number| self.guarded.open.get(number)) {
            unit.absorb(open.record.unit.clone());
        }
        self.check_joined(requester, &unit, &joined)?;
        let left = unit.touch(&touch);
        let forgotten = &prepared.change.forgotten_updates;
        if self.guarded.remembers_any() && (!prepared.for_agents.is_empty() || !joined.is_empty()) {
            self.guarded.check_new(&unit, forgotten)?;
        }
        let is_guarded = !joined.is_empty() || self.asks_for_guard(&prepared.for_agents);
        let is_delete = joined.is_empty() && prepared.for_agents.added.is_empty();
        let room = if is_guarded && !unit.is_empty() { self.make_room(&joined, requester) } else { Ok(()) };
        let has_room = match room {
            Ok(()) => true,
            Err(_) if is_delete => false, // Whoever fills all places can be deleted.
            Err(error) => return Err(error),
        };
        self.guarded.forget(forgotten);
        if !is_guarded || !has_room {
            return Ok(self.commit(prepared));
        }
        let open = self.joined(&joined, unit, requester);
        Ok(self.accept_guarded(prepared, &touch, open, &left))
    }

    /// A workload may decide only about what it may write: if its request fails, all of the update is put back.
    fn check_joined(&self, requester: &Requester, unit: &Unit, joined: &[u64]) -> Result<(), UpdateError> {
        match joined.last() {
            Some(number) if !self.may_write(requester, unit) => Err(UpdateError::PartOfOther { number: *number }),
            _ => Ok(()),
        }
    }

    /// Whether `requester` may write all that `unit` is about.
    pub(super) fn may_write(&self, requester: &Requester, unit: &Unit) -> bool {
        let workloads = unit.workloads.keys().map(|name| format!("desiredState.workloads.{name}"));
        let configs = unit.configs.keys().map(|key| format!("desiredState.configs.{key}"));
        let update = || UpdateState { new_state: None, masks: workloads.chain(configs).collect() };
        requester.agent().is_none() || self.rights.authorize(requester, &RequestContent::UpdateState(update())).is_ok()
    }

    /// Whether a change of workloads is to be guarded although it concerns no open update.
    fn asks_for_guard(&self, for_agents: &Difference) -> bool {
        let has_block = || for_agents.added.iter().any(|added| block_of(&added.workload).is_some());
        !for_agents.is_empty() && (self.guarded.on_failure == OnFailure::Rollback || has_block())
    }

    /// What an update does to each workload and config that it touches. A workload that only uses a changed config is one
    /// of them when an open update has it: what waits of it may not be right any more.
    fn touch(&self, prepared: &PreparedUpdate) -> Touch {
        let PreparedUpdate { change, rendered, for_agents, .. } = prepared;
        let workloads = &self.workloads;
        let is_open =
            |name: &&Name| self.guarded.open.values().any(|open| open.record.unit.workloads.contains_key(*name));
        // The mode is no part of any update: a switch is not judged, and nothing that is put back switches.
        let mode_item = workloads.modes.as_ref().map(Modes::item);
        let configs = || change.configs.keys().filter(|key| mode_item != Some(key.as_str()));
        let users = configs().flat_map(|key| workloads.config_users.of(key)).filter(is_open);
        let names: BTreeSet<&Name> =
            change.workloads.keys().chain(rendered.names()).chain(for_agents.names()).chain(users).collect();
        let (rendered, for_agents) = (rendered.by_name(), for_agents.by_name());
        let forms = |name: &Name| {
            let (old, effective) = (workloads.before_hooks().get(name), workloads.before_modes().get(name));
            let desired = workloads.desired.workloads.get(name).cloned();
            let before = Form { desired, rendered: old.cloned(), effective: effective.cloned() };
            let after = Form {
                desired: change.workload(&workloads.desired, name).cloned(),
                rendered: rendered.get(name).copied().unwrap_or(old).cloned(),
                effective: for_agents.get(name).copied().unwrap_or(effective).cloned(),
            };
            (name.clone(), (before, after))
        };
        let config = |key: &String| {
            let before = workloads.desired.configs.get(key).cloned();
            (key.clone(), (before, change.config(&workloads.desired, key).cloned()))
        };
        Touch { workloads: names.into_iter().map(forms).collect(), configs: configs().map(config).collect() }
    }

    /// Makes room for one more open update, which takes the place of the `joined` ones. Workloads never take the place of
    /// others, nor all places.
    fn make_room(&mut self, joined: &[u64], requester: &Requester) -> Result<(), UpdateError> {
        let guarded = &mut self.guarded;
        let is_of_workload = requester.agent().is_some();
        let others = |(number, open): &(&u64, &Open)| open.record.is_of_workload && !joined.contains(number);
        if is_of_workload && guarded.open.iter().filter(others).count() >= UPDATES_OPEN_OF_WORKLOADS {
            return Err(UpdateError::TooManyOfWorkloads);
        }
        if guarded.open.len() < UPDATES_OPEN + joined.len() {
            return Ok(());
        }
        if is_of_workload {
            return Err(UpdateError::TooManyOpen);
        }
        let waits_for_absent_only = |(number, open): (&u64, &Open)| {
            let is_free = !open.is_staging() && open.trial.is_quiet() && !joined.contains(number);
            is_free.then_some(*number)
        };
        let Some(oldest) = guarded.open.iter().find_map(waits_for_absent_only) else {
            return Err(UpdateError::TooManyOpen);
        };
        if let Some(open) = guarded.close(oldest) {
            let absent = open.trial.waits_for().join(", ");
            guarded.end(open.record, UpdatePhase::Kept, Some(format!("not waited for any more: {absent}")));
        }
        Ok(())
    }

    /// Carries out an update that is guarded, or lets it wait until everything is staged.
    fn accept_guarded(
        &mut self,
        prepared: PreparedUpdate,
        touch: &Touch,
        mut open: Open,
        left: &BTreeSet<Name>,
    ) -> (ResponseContent, Changes) {
        let answered = self.workloads.seen_in_mode(&prepared.for_agents);
        left.iter().for_each(|name| open.trial.remove(name));
        if open.record.unit.is_empty() {
            let result = self.commit(prepared);
            self.send_lists();
            return result;
        }
        let names = prepared.rendered.names().chain(prepared.for_agents.names());
        let changed: BTreeSet<Name> = names.filter(|name| !left.contains(*name)).cloned().collect();
        let mut staged = self.staged_of(&prepared.for_agents, left);
        for (name, (_, after)) in &touch.workloads {
            let earlier = open.staging.pending.remove(name);
            if changed.contains(name) {
                let mut pending = Pending { new: after.clone(), staged: staged.remove(name) };
                pending.keep_report(earlier.as_ref()); // Its agent is not sent the same again.
                open.staging.pending.insert(name.clone(), pending);
            }
        }
        self.note_absent(&mut open);
        if open.staging.failure().is_none() && open.staging.is_complete(self.now()) {
            let left = left.iter().filter_map(|name| Some((name, &touch.workloads.get(name)?.1)));
            return self.carry_out_update(open, prepared, &left.collect());
        }
        open.record.phase = UpdatePhase::Staging;
        log::info!("Update {} ({}) is being staged.", open.record.number, open.record.unit.names());
        self.open_update(open);
        // What has left the update is carried out at once.
        let PreparedUpdate { rendered, for_agents, .. } = prepared;
        let (rendered, for_agents) =
            (rendered.of_names(|name| left.contains(name)), for_agents.of_names(|name| left.contains(name)));
        let (at_once, changes) = self.commit(PreparedUpdate { rendered, for_agents, ..prepared });
        self.send_lists();
        (answer(&answered, at_once), changes)
    }

    /// Notes which of the agents that stage something are away.
    fn note_absent(&self, open: &mut Open) {
        let agents: BTreeSet<Name> = open.staging.agents().cloned().collect();
        for agent in agents.iter().filter(|agent| self.peers.of_agent(agent).is_none()) {
            open.staging.agent_left(agent, self.now());
        }
    }

    /// Carries out all that waits in an update, together with what is `prepared` and the workloads that have `left` the
    /// update with that: as one change, so that nothing is started in between which is not wanted any more.
    fn carry_out_update(
        &mut self,
        mut open: Open,
        prepared: PreparedUpdate,
        left: &BTreeMap<&Name, &Form>,
    ) -> (ResponseContent, Changes) {
        let pending = std::mem::take(&mut open.staging).pending;
        let on_failures: BTreeMap<Name, OnFailure> = pending
            .iter()
            .map(|(name, pending)| (name.clone(), self.on_failure_of(pending.new.effective.as_ref())))
            .collect();
        let replaced = self.replaced(&mut open.record.unit, &on_failures);
        let dependents = self.dependents(&open.record.unit, &on_failures);
        open.record.dependents.extend(dependents.clone());
        let was_staging = open.is_staging();
        open.record.phase = UpdatePhase::Trial;
        let number = self.open_update(open);
        if was_staging {
            self.store_and_wait(); // Before an agent receives anything of it.
        }
        let mut forms = left.clone();
        forms.extend(pending.iter().map(|(name, pending)| (name, &pending.new)));
        let rendered = forms.iter().map(|(name, form)| (*name, form.rendered.as_ref()));
        let rendered = Difference::to(self.workloads.before_hooks(), rendered);
        let effective = forms.iter().map(|(name, form)| (*name, form.effective.as_ref()));
        let for_agents = Difference::to(self.workloads.before_modes(), effective);
        let result = self.commit(PreparedUpdate { rendered, for_agents, ..prepared });
        self.begin_trial(number, on_failures.keys(), &replaced, &dependents);
        self.send_lists(); // After its plan, so that no agent takes what is prepared for unwanted.
        result
    }

    /// The update of `requester` that takes the place of these, with all that they wait for and judge.
    fn joined(&mut self, joined: &[u64], unit: Unit, requester: &Requester) -> Open {
        let number = self.guarded.newest + 1;
        let record = Record {
            number,
            source: self.peers.source_of(requester).to_string(),
            is_of_workload: requester.agent().is_some(),
            accepted: utc(SystemTime::now()),
            unit,
            ..Record::default()
        };
        let now = self.now();
        let mut open = Open::new(record, now);
        for number in joined {
            let Some(Open { mut record, trial, staging, failures, .. }) = self.guarded.close(*number) else { continue };
            open.trial.absorb(trial);
            open.staging.absorb(staging);
            open.failures.extend(failures);
            let joining = &mut open.record;
            joining.losses = joining.losses.max(record.losses);
            joining.was_switched |= record.was_switched;
            joining.was_sent |= record.was_sent;
            joining.dependents.append(&mut record.dependents.clone());
            joining.reason = joining.reason.take().or_else(|| record.reason.take());
            let is_withdrawn = joining.unit.is_empty();
            record.replaced_by = (!is_withdrawn).then(|| joining.number.to_string());
            let phase = if is_withdrawn { UpdatePhase::Withdrawn } else { UpdatePhase::Replaced };
            self.guarded.end(record, phase, None);
        }
        let Record { dependents, unit, .. } = &mut open.record;
        dependents.retain(|name, _| !unit.workloads.contains_key(name));
        open
    }

    /// Keeps an open update, before it is stored with the desired state.
    fn open_update(&mut self, mut open: Open) -> u64 {
        if open.record.phase == UpdatePhase::Trial {
            open.record.was_switched = true;
            open.record.was_sent |= self.may_start(&open.record.unit);
        }
        for (name, touched) in &mut open.record.unit.workloads {
            touched.in_force = open.staging.pending.contains_key(name).then(|| self.form_in_force(name));
        }
        let number = open.record.number;
        self.guarded.newest = self.guarded.newest.max(number);
        self.guarded.open.insert(number, open);
        (self.guarded.is_unsaved, self.guarded.is_outdated) = (true, true);
        number
    }

    /// Whether an agent that is there starts something of it.
    fn may_start(&self, unit: &Unit) -> bool {
        let mut new = unit.workloads.values().filter_map(|touched| touched.new.as_ref());
        new.any(|instance| self.peers.of_agent(&instance.agent).is_some())
    }

    fn on_failure_of(&self, new: Option<&AddedWorkload>) -> OnFailure {
        self.guarded.on_failure(new.and_then(|added| block_of(&added.workload)).as_ref())
    }

    fn runs(&self, name: &Name) -> bool {
        let state = self.workloads.effective.get(name).and_then(|added| self.workloads.states.get(&added.instance));
        state.is_some_and(|state| state.phase == Phase::Running)
    }

    /// What is about to be replaced, unless hooks leave it as it is. Notes what of it runs.
    fn replaced(&self, unit: &mut Unit, changed: &BTreeMap<Name, OnFailure>) -> BTreeMap<Name, AddedWorkload> {
        for name in changed.keys().filter(|name| self.runs(name)) {
            unit.workloads.get_mut(name).into_iter().for_each(|touched| touched.ran = true);
        }
        let in_force = |name: &Name| Some((name.clone(), self.workloads.effective.get(name)?.clone()));
        changed.keys().filter_map(in_force).collect()
    }

    /// Running workloads that need one of what is about to be replaced, with what follows when they fail.
    fn dependents(&self, unit: &Unit, changed: &BTreeMap<Name, OnFailure>) -> BTreeMap<Name, OnFailure> {
        let mut dependents: BTreeMap<Name, OnFailure> = BTreeMap::new();
        let mut next: Vec<(Name, OnFailure)> = changed.clone().into_iter().collect();
        while let Some((needed, on_failure)) = next.pop() {
            for name in self.workloads.dependents.of(&needed).filter(|name| !unit.workloads.contains_key(*name)) {
                let known = dependents.get(name).copied();
                // One that needs several follows the strictest.
                if known.is_none_or(|known| known == OnFailure::Keep && known != on_failure) {
                    dependents.insert(name.clone(), on_failure);
                    next.push((name.clone(), on_failure));
                }
            }
        }
        dependents.retain(|name, _| self.runs(name));
        dependents
    }

    /// Judges what an update has changed, and what needs that.
    fn begin_trial<'n>(
        &mut self,
        number: u64,
        changed: impl Iterator<Item = &'n Name>,
        replaced: &BTreeMap<Name, AddedWorkload>,
        dependents: &BTreeMap<Name, OnFailure>,
    ) {
        let now = self.now();
        let Some(open) = self.guarded.open.get(&number) else { return };
        let ran = |name: &Name| open.record.unit.workloads.get(name).is_some_and(|touched| touched.ran);
        let mut candidates = Vec::new();
        for name in changed {
            let candidate = self.candidate(name, ran(name), None).map(|candidate| {
                let (old, state) = (replaced.get(name), self.workloads.states.get(&candidate.instance));
                if old.is_some_and(|old| self.workloads.effective.get(name) == Some(old)) {
                    return Candidate { state: state.cloned(), ..candidate }; // It goes on.
                }
                // A state that it has already is that of an older one of the same name, which this update replaces or an earlier
                // one stops still. The end of one that was never started is not reported when it goes on waiting, and an agent
                // that comes back begins with what it has.
                let phase = state.map_or(Phase::PendingInitial, |state| state.phase);
                let is_of_none = [Phase::PendingInitial, Phase::PendingWaitingToStart, Phase::AgentDisconnected];
                Candidate { keeps_name: !is_of_none.contains(&phase), ..candidate }
            });
            candidates.push((name.clone(), candidate));
        }
        for (name, on_failure) in dependents {
            candidates.push((name.clone(), self.candidate(name, true, Some(*on_failure))));
        }
        let Some(open) = self.guarded.open.get_mut(&number) else { return };
        for (name, candidate) in candidates {
            match candidate {
                Some(candidate) => open.trial.judge(candidate, now),
                None => open.trial.remove(&name),
            }
        }
        open.begun = now;
        log::info!("Update {number} ({}) is on trial.", open.record.unit.names());
    }

    /// What is judged of a workload; nothing without an agent. `dependent` is what follows when one fails that the update
    /// does not touch, whose present state counts.
    pub(super) fn candidate(&self, name: &Name, ran: bool, dependent: Option<OnFailure>) -> Option<Candidate> {
        let AddedWorkload { instance, workload } =
            self.workloads.effective.get(name).filter(|added| !added.instance.agent.is_empty())?;
        let block = block_of(workload);
        Some(Candidate {
            instance: instance.clone(),
            terms: block.as_ref().map(|block| block.terms).unwrap_or_default(),
            on_failure: dependent.unwrap_or_else(|| self.guarded.on_failure(block.as_ref())),
            is_never_restarted: workload.restart_policy == RestartPolicy::Never,
            ran,
            state: dependent.and_then(|_| self.workloads.states.get(instance).cloned()),
            keeps_name: false,
            is_present: self.peers.of_agent(&instance.agent).is_some(),
        })
    }

    // ---------------------------------------------------------------- staging

    /// How a new instance is to be staged, if its agent can and its block says so. Outside of the current mode nothing is
    /// to be started, but its condition counts as every other.
    fn stage_of(&self, added: &AddedWorkload) -> Option<StagedInstance> {
        let AddedWorkload { instance, workload } = added;
        let block = block_of(workload).filter(|_| !instance.agent.is_empty())?;
        let (stage, has_condition) = (block.stage, block.when.is_some());
        let is_prepared = || stage != PrepareLevel::None && !self.workloads.seen(added).instance.agent.is_empty();
        let on_failure = self.guarded.on_failure(Some(&block));
        let instance = StagedInstance { stage, has_condition, on_failure, since: self.now(), report: None };
        (has_condition || is_prepared()).then_some(instance)
    }

    /// After a start, these new forms wait again. All agents are away, and those that prepare are known with their hello.
    pub(super) fn stage_again(&self, open: &mut Open, new: BTreeMap<Name, Form>) {
        for (name, new) in new {
            let staged = new.effective.as_ref().and_then(|added| self.stage_of(added));
            open.staging.pending.insert(name, Pending { new, staged });
        }
        self.note_absent(open);
    }

    /// The added instances that are to be staged, as far as their agents prepare.
    fn staged_of(&mut self, for_agents: &Difference, left: &BTreeSet<Name>) -> BTreeMap<Name, StagedInstance> {
        let mut staged = BTreeMap::new();
        for added in for_agents.added.iter().filter(|added| !left.contains(&added.instance.workload)) {
            let Some(instance) = self.stage_of(added) else { continue };
            let InstanceName { workload, agent, .. } = &added.instance;
            match self.peers.agents.get(agent).map(|agent| agent.capabilities.prepares) {
                Some(false) => self.guarded.warn_of_agent(agent),
                // One that is away may prepare, which matters when nothing may happen without its consent.
                None if !instance.has_condition => {}
                _ => _ = staged.insert(workload.clone(), instance),
            }
        }
        staged
    }

    /// Everything of an update is staged: carries it out.
    pub(super) fn carry_out_staged(&mut self, number: u64) {
        let Some(open) = self.guarded.close(number) else { return };
        for (name, Pending { staged, .. }) in &open.staging.pending {
            if let Some(report) = staged.as_ref().and_then(|staged| staged.report.as_ref()).filter(|it| it.is_final) {
                let reason = report.reason.as_deref().unwrap_or_default();
                log::warn!("Update {number} replaces '{name}' although it cannot be staged: {reason}");
            }
        }
        let api_version = self.workloads.desired.api_version.clone();
        let change = StateChange { api_version, ..StateChange::default() };
        let prepared = PreparedUpdate { change, ..PreparedUpdate::default() };
        let (_, changes) = self.carry_out_update(open, prepared, &BTreeMap::new());
        self.publish(&changes);
        self.guarded.has_changed = true;
    }
}
