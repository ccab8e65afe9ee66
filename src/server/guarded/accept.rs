//! Requests: whether one is guarded, which open updates become one with it, and how an update is
//! carried out once all of it is staged.
//!
//! Thread: `server`; part of [`ServerLoop`].

use super::trial::Candidate;
use super::unit::{Touched, TouchedConfig, Unit, config_hash};
use super::{Open, Record, block_of};
use crate::ServerLoop;
use crate::limits::{STATE_OF_WORKLOADS_MAX, UPDATES_OPEN, UPDATES_OPEN_OF_WORKLOADS};
use crate::modes::Modes;
use crate::plan::{Difference, Version};
use crate::prepare::PreparedUpdate;
use crate::requester::Requester;
use crate::state_store::UPDATE_NUMBER_MAX;
use crate::update::{StateChange, UpdateError};
use crate::updates::Accepted;
use ankaios_model::complete_state::workload_bytes;
use ankaios_model::execution_state::Phase;
use ankaios_model::guarded_update::UpdatePhase;
use ankaios_model::lifecycle::OnFailure;
use ankaios_model::messages::{AddedWorkload, RequestContent, UpdateState};
use ankaios_model::names::Name;
use ankaios_model::workload::RestartPolicy;
use ankaios_platform::logging::utc;
use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

impl ServerLoop {
    /// Carries out a checked update of a request, now or once everything of it is staged.
    ///
    /// # Errors
    /// It makes the state too large, it is the same as one that was undone, too many are open, or
    /// it would become a part of one that is also about what the requester may not write.
    pub(crate) fn accept(
        &mut self,
        prepared: PreparedUpdate,
        requester: &Requester,
    ) -> Result<Accepted, UpdateError> {
        let for_agents = self.updates.workloads().difference(&prepared.forms);
        if requester.workload.is_some() {
            self.check_size(&prepared.change, &for_agents)?;
        }
        let asks_for_guard = self.asks_for_guard(&for_agents);
        if self.guarded.open.is_empty() && !self.guarded.remembers_any() && !asks_for_guard {
            return Ok(self.commit(prepared));
        }
        let request = self.changes(&prepared);
        let joined = self
            .guarded
            .open
            .iter()
            .filter(|(_, open)| open.record.unit.is_touched_by(&request));
        let mut unit = Unit::default();
        let join = |(number, open): (&u64, &Open)| {
            let Unit { workloads, configs } = open.record.unit.clone();
            unit.workloads.extend(workloads);
            unit.configs.extend(configs);
            *number
        };
        let joined: Vec<u64> = joined.map(join).collect();
        // A workload may decide only about what it may write: if its request fails, all of the
        // update is put back.
        if let Some(number) = joined
            .last()
            .filter(|_| !self.may_write(requester, unit.masks()))
        {
            return Err(UpdateError::Other(format!(
                "it would become a part of update {number}, which is open and also about what this workload may not \
                 write; wait until that has ended"
            )));
        }
        let left = unit.join(request);
        let forgotten = &prepared.change.forgotten_updates;
        if self.guarded.remembers_any() && (!for_agents.is_empty() || !joined.is_empty()) {
            self.guarded.check_new(&unit, forgotten)?;
        }
        let mut is_guarded = asks_for_guard || !joined.is_empty();
        if is_guarded && !unit.is_empty() {
            let room = self.make_room(&joined, requester);
            if room.is_err() && joined.is_empty() && for_agents.added.is_empty() {
                is_guarded = false; // Whoever fills all places can be deleted.
            } else {
                room?;
            }
        }
        self.guarded.forget(forgotten);
        if !is_guarded {
            return Ok(self.commit(prepared));
        }
        let mut open = self.joined(&joined, unit, requester);
        if open.record.unit.is_empty() {
            let result = self.commit(prepared);
            self.send_lists();
            return Ok(result);
        }
        left.keys().for_each(|name| open.trial.remove(name));
        self.ask_agents(&mut open);
        let (number, waiting) = (
            open.record.number,
            self.updates.workloads().seen_in_mode(&prepared.forms),
        );
        let mut accepted = self.switch_or_stage(open, prepared, left);
        let Some(open) = self.guarded.open.get(&number) else {
            return Ok(accepted);
        };
        if open.is_staging() {
            for touched in open.record.unit.workloads.values() {
                if touched.restarts {
                    accepted.restarted.extend(touched.new.clone());
                }
            }
            let added = waiting.added.into_iter().map(|added| added.instance);
            accepted.added.extend(added);
            accepted.deleted.extend(waiting.deleted);
            for names in [&mut accepted.added, &mut accepted.deleted] {
                names.sort_unstable_by_key(ToString::to_string);
                names.dedup();
            }
        }
        Ok(accepted)
    }

    /// Checks that a request of a workload does not let the state grow beyond what everybody can
    /// read. What open updates would carry out or put back counts, too.
    fn check_size(&self, change: &StateChange, for_agents: &Difference) -> Result<(), UpdateError> {
        let open = self
            .guarded
            .open
            .values()
            .flat_map(|open| open.record.unit.workloads.values());
        let kept = open
            .flat_map(|touched| [&touched.before.effective, &touched.made.effective])
            .flatten();
        let kept: usize = kept.map(|added| workload_bytes(&added.workload)).sum();
        let sizes = self.updates.sizes(change, for_agents);
        let after = sizes.after + kept;
        if after <= STATE_OF_WORKLOADS_MAX || sizes.after <= sizes.before {
            return Ok(());
        }
        Err(UpdateError::Other(format!(
            "the desired and the effective state would take {after} bytes, and workloads may let them grow to \
             {STATE_OF_WORKLOADS_MAX}; use shorter texts, or apply it with 'ank', which has no such limit"
        )))
    }

    /// Whether `requester` may write all that these masks name.
    pub(crate) fn may_write(&self, requester: &Requester, masks: Vec<String>) -> bool {
        let update = RequestContent::UpdateState(UpdateState {
            masks,
            ..UpdateState::default()
        });
        requester.agent().is_none() || self.rights.authorize(requester, &update).is_ok()
    }

    /// Whether a change of workloads is to be guarded although it concerns no open update.
    fn asks_for_guard(&self, for_agents: &Difference) -> bool {
        let has_block = || {
            for_agents
                .added
                .iter()
                .any(|added| block_of(&added.workload).is_some())
        };
        !for_agents.is_empty() && (self.guarded.on_failure == OnFailure::Rollback || has_block())
    }

    /// What a request does to each workload and config that it touches. A workload that only uses a
    /// changed config is one of them when an open update has it: what waits of it may not be right
    /// any more.
    fn changes(&self, prepared: &PreparedUpdate) -> Unit {
        let PreparedUpdate {
            change,
            forms,
            restarted,
            ..
        } = prepared;
        let workloads = self.updates.workloads();
        let is_open = |name: &&Name| self.guarded.open_update_of(name).is_some();
        // The mode is no part of any update: a switch is not judged, and nothing that is put back
        // switches.
        let mode_item = workloads.modes.as_ref().map(Modes::item);
        let configs = || {
            change
                .configs
                .keys()
                .filter(|key| mode_item != Some(key.as_str()))
        };
        let users = configs()
            .flat_map(|key| workloads.config_users.of(key))
            .filter(is_open);
        let names = change
            .workloads
            .keys()
            .chain(forms.keys())
            .chain(users)
            .chain(restarted);
        let names: BTreeSet<&Name> = names.collect();
        let touched = |name: &Name| {
            let before = workloads.form(name);
            let as_it_is = || Version {
                desired: change.workload(&workloads.desired, name).cloned(),
                ..before.clone()
            };
            let made = forms.get(name).cloned().unwrap_or_else(as_it_is);
            let stage = self.stage_of(made.effective.as_ref());
            let touched = Touched::new(before, made, stage);
            let restarts = touched.in_force.is_none() && restarted.contains(name);
            (
                name.clone(),
                Touched {
                    restarts,
                    ..touched
                },
            )
        };
        let config = |key: &String| {
            let after = change.config(&workloads.desired, key).map(config_hash);
            (
                key.clone(),
                TouchedConfig {
                    before: workloads.desired.configs.get(key).cloned(),
                    after,
                },
            )
        };
        Unit {
            workloads: names.into_iter().map(touched).collect(),
            configs: configs().map(config).collect(),
        }
    }

    /// Makes room for one more open update, which takes the place of the `joined` ones. Workloads
    /// never take the place of others, nor all places.
    fn make_room(&mut self, joined: &[u64], requester: &Requester) -> Result<(), UpdateError> {
        let guarded = &mut self.guarded;
        if guarded.newest >= UPDATE_NUMBER_MAX {
            return Err(UpdateError::Other(
                "no number is left for a further guarded update; remove the key 'updates' from the stored state while the \
                 server is stopped"
                    .to_owned(),
            ));
        }
        let is_of_workload = requester.agent().is_some();
        let others =
            |(number, open): &(&u64, &Open)| open.record.is_of_workload && !joined.contains(number);
        if is_of_workload && guarded.open.iter().filter(others).count() >= UPDATES_OPEN_OF_WORKLOADS
        {
            return Err(UpdateError::Other(format!(
                "{UPDATES_OPEN_OF_WORKLOADS} guarded updates are open that workloads have requested; wait until one of \
                 them has ended"
            )));
        }
        if guarded.open.len() < UPDATES_OPEN + joined.len() {
            return Ok(());
        }
        let waits_for_absent_only = |(number, open): &(&u64, &Open)| {
            !is_of_workload
                && !open.is_staging()
                && open.trial.is_settled()
                && !joined.contains(number)
        };
        let oldest = guarded
            .open
            .iter()
            .find(waits_for_absent_only)
            .map(|(number, _)| *number);
        let open = oldest.and_then(|number| guarded.close(number)).ok_or_else(|| {
            UpdateError::Other(format!(
                "{UPDATES_OPEN} guarded updates are open; wait until one of them has ended, or roll one back"
            ))
        })?;
        let absent = open.trial.waits_for().join(", ");
        guarded.end(
            open.record,
            UpdatePhase::Kept,
            Some(format!("not waited for any more: {absent}")),
        );
        Ok(())
    }

    /// The update of `requester` that takes the place of these, with all that they judge.
    fn joined(&mut self, joined: &[u64], unit: Unit, requester: &Requester) -> Open {
        // At most one above the bound, of an update that is not kept.
        let number = self.guarded.newest + 1;
        let is_withdrawn = unit.is_empty();
        let record = Record {
            number,
            source: requester.log_source().to_string(),
            is_of_workload: requester.agent().is_some(),
            accepted: utc(SystemTime::now()),
            unit,
            ..Record::default()
        };
        let mut open = Open::new(record, self.now());
        for number in joined {
            let Some(Open {
                mut record,
                trial,
                failures,
                ..
            }) = self.guarded.close(*number)
            else {
                continue;
            };
            open.trial.absorb(trial);
            open.failures.extend(failures);
            let joining = &mut open.record;
            joining.losses = joining.losses.max(record.losses);
            joining.was_switched |= record.was_switched;
            joining.was_sent |= record.was_sent;
            judge_strictest(
                &mut joining.dependents,
                std::mem::take(&mut record.dependents),
            );
            joining.reason = joining.reason.take().or_else(|| record.reason.take());
            record.replaced_by = (!is_withdrawn).then(|| joining.number.to_string());
            let phase = if is_withdrawn {
                UpdatePhase::Withdrawn
            } else {
                UpdatePhase::Replaced
            };
            self.guarded.end(record, phase, None);
        }
        let Record {
            dependents, unit, ..
        } = &mut open.record;
        dependents.retain(|name, _| !unit.is_changed(name));
        open
    }

    /// Carries out all that waits in an update if nothing holds it back, together with what is
    /// `prepared` and with the workloads that have `left` it: as one change, so that nothing is
    /// started in between which is not wanted any more. Otherwise only that, and the update goes on
    /// being staged.
    pub(super) fn switch_or_stage(
        &mut self,
        mut open: Open,
        prepared: PreparedUpdate,
        mut forms: BTreeMap<Name, Version>,
    ) -> Accepted {
        let (number, was_staging) = (open.record.number, open.is_staging());
        let is_ready = open.cannot_be_staged().is_none()
            && open
                .awaited(&self.guarded.away, self.now())
                .next()
                .is_none();
        // Whether an instance goes on as it is, and what follows when one fails, of what is carried
        // out.
        let mut carried_out: BTreeMap<Name, bool> = BTreeMap::new();
        let mut failing: BTreeMap<Name, OnFailure> = BTreeMap::new();
        for (name, touched) in open.record.unit.workloads.iter_mut().filter(|_| is_ready) {
            let Some(before) = touched.in_force.take() else {
                continue;
            };
            let made = std::mem::take(&mut touched.made);
            (touched.ran, touched.stage) = (touched.ran || self.runs(name), None);
            let block = made
                .effective
                .as_ref()
                .and_then(|added| block_of(&added.workload));
            failing.insert(name.clone(), self.guarded.on_failure_of(block.as_ref()));
            carried_out.insert(name.clone(), before.effective == made.effective);
            forms.insert(name.clone(), made);
        }
        let mut dependents = self.dependents(&open.record.unit, failing);
        let restarted = if is_ready {
            self.restarted(&open.record.unit, &forms)
        } else {
            BTreeSet::new()
        };
        if is_ready {
            let mut new = open
                .record
                .unit
                .workloads
                .values()
                .filter_map(|touched| touched.new.as_ref());
            open.record.was_sent |=
                new.any(|instance| self.peers.of_agent(&instance.agent).is_some());
            judge_strictest(&mut open.record.dependents, dependents.clone());
            dependents
                .iter_mut()
                .for_each(|(name, it)| *it = open.record.dependents[name]);
            (open.record.phase, open.record.was_switched) = (UpdatePhase::Trial, true);
        } else {
            open.record.phase = UpdatePhase::Staging;
            log::info!(
                "Update {number} ({}) is being staged.",
                open.record.unit.names()
            );
        }
        self.guarded.newest = self.guarded.newest.max(number);
        self.guarded.open.insert(number, open);
        self.guarded.is_unsaved = true;
        self.guarded.changed();
        if is_ready && was_staging {
            self.store_and_wait(); // Before an agent receives anything of it.
        }
        let result = self.commit(PreparedUpdate {
            forms,
            restarted: restarted.clone(),
            ..prepared
        });
        if is_ready {
            self.begin_trial(number, &carried_out, &dependents, &restarted);
        }
        self.send_lists(); // After its plan, so that no agent takes what is prepared for unwanted.
        result
    }

    /// What is restarted with a part of an update that changes these `forms`: the dependents that
    /// the update restarts and that need one of them, together with those of it that change. What
    /// an earlier part has changed runs on.
    fn restarted(&self, unit: &Unit, forms: &BTreeMap<Name, Version>) -> BTreeSet<Name> {
        let mut all = self
            .updates
            .workloads()
            .with_dependents(forms.keys().cloned().collect());
        all.retain(|name| {
            unit.workloads
                .get(name)
                .is_some_and(|it| it.restarts || forms.contains_key(name))
        });
        if all.iter().any(|name| unit.workloads[name].restarts) {
            all
        } else {
            BTreeSet::new()
        }
    }

    fn runs(&self, name: &Name) -> bool {
        let state = self
            .updates
            .workloads()
            .effective
            .get(name)
            .and_then(|added| self.updates.workloads().states.get(&added.instance));
        state.is_some_and(|state| state.phase == Phase::Running)
    }

    /// Running workloads that need one of `changed` and that `unit` does not change, with what
    /// follows when they fail.
    fn dependents(
        &self,
        unit: &Unit,
        changed: BTreeMap<Name, OnFailure>,
    ) -> BTreeMap<Name, OnFailure> {
        let mut dependents: BTreeMap<Name, OnFailure> = BTreeMap::new();
        let mut next: Vec<(Name, OnFailure)> = changed.into_iter().collect();
        while let Some((needed, on_failure)) = next.pop() {
            for name in self
                .updates
                .workloads()
                .dependents
                .of(&needed)
                .filter(|name| !unit.is_changed(name))
            {
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

    /// Judges what an update has changed, and what needs that. What is `restarted` is judged by its
    /// next start.
    fn begin_trial(
        &mut self,
        number: u64,
        carried_out: &BTreeMap<Name, bool>,
        dependents: &BTreeMap<Name, OnFailure>,
        restarted: &BTreeSet<Name>,
    ) {
        let now = self.now();
        let Some(mut open) = self.guarded.open.remove(&number) else {
            return;
        };
        for (name, goes_on) in carried_out {
            let ran = open
                .record
                .unit
                .workloads
                .get(name)
                .is_some_and(|touched| touched.ran);
            let Some(candidate) = self.candidate(name, ran, None) else {
                open.trial.remove(name);
                continue;
            };
            let state = self
                .updates
                .workloads()
                .states
                .get(&candidate.instance)
                .cloned();
            // A state that it has already is that of an older one of the same name, which this
            // update replaces or an earlier one stops still. The end of one that was never started
            // is not reported when it goes on waiting, and an agent that comes back begins with
            // what it has.
            let is_of_none = [
                Phase::PendingInitial,
                Phase::PendingWaitingToStart,
                Phase::AgentDisconnected,
            ];
            let keeps_name = !goes_on
                && state
                    .as_ref()
                    .is_some_and(|state| !is_of_none.contains(&state.phase));
            open.trial.judge(
                Candidate {
                    keeps_name,
                    state: state.filter(|_| *goes_on),
                    ..candidate
                },
                now,
            );
        }
        for (name, on_failure) in dependents {
            let keeps_name = restarted.contains(name);
            match self.candidate(name, true, Some(*on_failure)) {
                Some(candidate) if keeps_name => {
                    open.trial.judge(
                        Candidate {
                            keeps_name,
                            state: None,
                            ..candidate
                        },
                        now,
                    );
                }
                Some(candidate) => open.trial.judge(candidate, now),
                None => open.trial.remove(name),
            }
        }
        open.begun = now;
        log::info!(
            "Update {number} ({}) is on trial.",
            open.record.unit.names()
        );
        self.guarded.open.insert(number, open);
    }

    /// What is judged of a workload; nothing without an agent. `dependent` is what follows when one
    /// fails that the update does not touch, whose present state counts.
    pub(super) fn candidate(
        &self,
        name: &Name,
        ran: bool,
        dependent: Option<OnFailure>,
    ) -> Option<Candidate> {
        let AddedWorkload { instance, workload } = self.updates.workloads().scheduled(name)?;
        let block = block_of(&workload);
        Some(Candidate {
            terms: block.as_ref().map(|block| block.terms).unwrap_or_default(),
            on_failure: dependent.unwrap_or_else(|| self.guarded.on_failure_of(block.as_ref())),
            is_never_restarted: workload.restart_policy == RestartPolicy::Never,
            ran,
            state: dependent.and_then(|_| self.updates.workloads().states.get(&instance).cloned()),
            keeps_name: false,
            is_present: self.peers.of_agent(&instance.agent).is_some(),
            instance,
        })
    }

    /// Everything of an update is staged: carries it out.
    pub(super) fn switch_staged(&mut self, number: u64) {
        let Some(open) = self.guarded.close(number) else {
            return;
        };
        for (name, _, stage) in open.staged() {
            if let Some(reason) = stage.refusal() {
                log::warn!(
                    "Update {number} replaces '{name}' although it cannot be staged: {reason}"
                );
            }
        }
        self.switch_or_stage(open, PreparedUpdate::default(), BTreeMap::new());
    }
}

/// Adds to what an update judges besides; of what is judged already, the strictest counts.
fn judge_strictest(judged: &mut BTreeMap<Name, OnFailure>, more: BTreeMap<Name, OnFailure>) {
    for (name, on_failure) in more {
        let known = judged.entry(name).or_insert(on_failure);
        *known = (*known).min(on_failure);
    }
}
