//! Requests: whether one is guarded, which open updates become one with it, and how an update is
//! switched once all of it is staged.
//!
//! Thread: `server`; part of [`Rollouts`].

use super::change_set::{AffectedConfig, AffectedWorkload, ChangeSet, config_hash};
use super::health_window::Member;
use super::{OpenUpdate, Rollouts, UpdateRecord, block_of};
use crate::limits::{STATE_OF_WORKLOADS_MAX, UPDATES_OPEN, UPDATES_OPEN_OF_WORKLOADS};
use crate::sessions::{Requester, Rights};
use crate::state_store::UPDATE_NUMBER_MAX;
use crate::updates::{
    AcceptedUpdate, CheckedUpdate, DesiredChange, EffectiveDiff, Modes, Revision, UpdateError,
    Updates,
};
use ankaios_model::complete_state::workload_bytes;
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::guarded_update::UpdatePhase;
use ankaios_model::lifecycle::OnFailure;
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::Name;
use ankaios_model::workload::RestartPolicy;
use ankaios_platform::logging::utc;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Instant, SystemTime};

/// What becomes of a checked request.
pub(crate) enum Decision {
    /// It is not guarded: commit it.
    Plain(CheckedUpdate),
    /// It sets back all of the open updates that it concerns: commit it, and nothing is staged any
    /// more.
    Withdrawn(CheckedUpdate),
    /// It is an open update now.
    Opened(Box<OpenedUpdate>),
}

/// An update that is switched or staged next.
pub(crate) struct OpenedUpdate {
    open: OpenUpdate,
    /// The change to commit, whether or not the update is staged.
    checked: CheckedUpdate,
    /// The workloads that have left the update, as they will be.
    left: BTreeMap<Name, Revision>,
}

impl OpenedUpdate {
    /// The number of the update.
    pub(crate) fn number(&self) -> u64 {
        self.open.record.number
    }

    /// What the request changes in the present mode.
    pub(crate) fn difference(&self, updates: &Updates) -> EffectiveDiff {
        updates.workloads().seen_in_mode(&self.checked.revisions)
    }
}

/// The committed change of an update, and its consequences.
pub(crate) struct Switch {
    pub(crate) commit: CheckedUpdate,
    /// Whether the state is stored before an agent receives anything of it.
    pub(crate) is_stored_first: bool,
    /// The health window that follows; `None` when the update is being staged.
    pub(crate) window: Option<Window>,
}

/// The switched part of an update, by which its health is evaluated.
pub(crate) struct Window {
    number: u64,
    /// Whether each instance that was switched continues as it is.
    switched: BTreeMap<Name, bool>,
    /// Workloads that need one of these, with what follows when they fail.
    dependents: BTreeMap<Name, OnFailure>,
    /// The workloads restarted with that change.
    restarted: BTreeSet<Name>,
}

// ------------------------------------------------------------------- requests

impl Rollouts {
    /// Decides what becomes of a checked update of a request.
    ///
    /// # Errors
    /// It makes the state too large, it is the same as one that was undone, too many are open, or
    /// it would become a part of one that is also about what the requester may not write.
    pub(crate) fn accept(
        &mut self,
        checked: CheckedUpdate,
        requester: &Requester,
        rights: &Rights,
        updates: &Updates,
        now: Instant,
    ) -> Result<Decision, UpdateError> {
        let for_agents = updates.workloads().difference(&checked.revisions);
        if requester.workload.is_some() {
            self.check_size(&checked.change, &for_agents, updates)?;
        }
        let has_guard = self.has_guard(&for_agents);
        if self.open.is_empty() && !self.remembers_any() && !has_guard {
            return Ok(Decision::Plain(checked));
        }
        // First, find the open updates that it joins, and their union.
        let request = self.change_set_of(&checked, updates);
        let joined = self.concerned_by(&request);
        let mut change_set = self.union_of(&joined);
        // A workload may decide only about what it may write: if its request fails, all of the
        // update is put back.
        if let Some(number) = joined.last()
            && !rights.may_write(requester, change_set.masks())
        {
            return Err(UpdateError::Other(format!(
                "it would become a part of update {number}, which is open and also about what this workload may not \
                 write; wait until that has ended"
            )));
        }
        let left = change_set.merge(request);
        // Then, whether there may be such an update.
        let forgotten = &checked.change.forgotten_updates;
        if self.remembers_any() && (!for_agents.is_empty() || !joined.is_empty()) {
            self.check_new(&change_set, forgotten)?;
        }
        let mut is_guarded = has_guard || !joined.is_empty();
        if is_guarded && !change_set.is_empty() {
            let room = self.make_room(&joined, requester);
            if room.is_err() && joined.is_empty() && for_agents.added.is_empty() {
                is_guarded = false; // Whoever fills all places can be deleted.
            } else {
                room?;
            }
        }
        self.forget(forgotten);
        if !is_guarded {
            return Ok(Decision::Plain(checked));
        }
        // Finally, it takes the place of those that it joins.
        let mut open = self.take_places(&joined, change_set, requester, now);
        if open.record.change_set.is_empty() {
            return Ok(Decision::Withdrawn(checked));
        }
        for name in left.keys() {
            open.window.remove(name);
        }
        self.choose_agents(&mut open, now);
        Ok(Decision::Opened(Box::new(OpenedUpdate {
            open,
            checked,
            left,
        })))
    }

    /// Checks that a request of a workload does not let the state grow beyond what everybody can
    /// read. What open updates would switch or put back is part of it.
    fn check_size(
        &self,
        change: &DesiredChange,
        for_agents: &EffectiveDiff,
        updates: &Updates,
    ) -> Result<(), UpdateError> {
        let mut kept = 0;
        for open in self.open.values() {
            for affected in open.record.change_set.workloads.values() {
                for version in [&affected.before, &affected.made] {
                    if let Some(added) = &version.effective {
                        kept += workload_bytes(&added.workload);
                    }
                }
            }
        }
        let sizes = updates.sizes(change, for_agents);
        let after = sizes.after + kept;
        if after <= STATE_OF_WORKLOADS_MAX || sizes.after <= sizes.before {
            return Ok(());
        }
        Err(UpdateError::Other(format!(
            "the desired and the effective state would take {after} bytes, and workloads may let them grow to \
             {STATE_OF_WORKLOADS_MAX}; use shorter texts, or apply it with 'ank', which has no such limit"
        )))
    }

    /// Whether a change of workloads is guarded although it concerns no open update.
    fn has_guard(&self, for_agents: &EffectiveDiff) -> bool {
        if for_agents.is_empty() {
            return false;
        }
        if self.on_failure == OnFailure::Rollback {
            return true;
        }
        let mut added = for_agents.added.iter();
        added.any(|added| block_of(&added.workload).is_some())
    }

    /// What a request does to each workload and config that it touches.
    fn change_set_of(&self, checked: &CheckedUpdate, updates: &Updates) -> ChangeSet {
        let workloads = updates.workloads();
        // The mode is no part of any update: a switch is not evaluated, and nothing that is put
        // back switches.
        let mode_item = workloads.modes.as_ref().map(Modes::item);
        let mut change_set = ChangeSet::default();
        for (key, after) in &checked.change.configs {
            if mode_item == Some(key.as_str()) {
                continue;
            }
            let affected = AffectedConfig {
                before: workloads.desired.configs.get(key).cloned(),
                after: after.as_ref().map(config_hash),
            };
            change_set.configs.insert(key.clone(), affected);
        }
        for name in self.names_of(checked, &change_set, updates) {
            let affected = self.affected(&name, checked, updates);
            change_set.workloads.insert(name, affected);
        }
        change_set
    }

    /// The workloads that a request touches. One that only uses a changed config is one of them
    /// when an open update has it: what waits of it may not be right any more.
    fn names_of(
        &self,
        checked: &CheckedUpdate,
        change_set: &ChangeSet,
        updates: &Updates,
    ) -> BTreeSet<Name> {
        let mut names: BTreeSet<Name> = checked.restarted.clone();
        names.extend(checked.change.workloads.keys().cloned());
        names.extend(checked.revisions.keys().cloned());
        for key in change_set.configs.keys() {
            for user in updates.workloads().config_users.of(key) {
                if self.open_update_of(user).is_some() {
                    names.insert(user.clone());
                }
            }
        }
        names
    }

    /// What a request does to a workload.
    fn affected(
        &self,
        name: &Name,
        checked: &CheckedUpdate,
        updates: &Updates,
    ) -> AffectedWorkload {
        let workloads = updates.workloads();
        let before = workloads.revision(name);
        let made = match checked.revisions.get(name) {
            Some(revision) => revision.clone(),
            None => Revision {
                desired: checked.change.workload(&workloads.desired, name).cloned(),
                ..before.clone()
            },
        };
        let stage = self.stage_of(made.effective.as_ref(), updates);
        let mut affected = AffectedWorkload::new(before, made, stage);
        affected.restarts = affected.active.is_none() && checked.restarted.contains(name);
        affected
    }

    /// The open updates that a request becomes one with.
    fn concerned_by(&self, request: &ChangeSet) -> Vec<u64> {
        let mut joined = Vec::new();
        for (number, open) in &self.open {
            if open.record.change_set.is_affected_by(request) {
                joined.push(*number);
            }
        }
        joined
    }

    /// What these open updates are about.
    fn union_of(&self, numbers: &[u64]) -> ChangeSet {
        let mut all = ChangeSet::default();
        for number in numbers {
            if let Some(open) = self.open.get(number) {
                let ChangeSet { workloads, configs } = open.record.change_set.clone();
                all.workloads.extend(workloads);
                all.configs.extend(configs);
            }
        }
        all
    }

    /// Makes room for one more open update, which takes the place of the `joined` ones. Workloads
    /// never take the place of others, nor all places.
    fn make_room(&mut self, joined: &[u64], requester: &Requester) -> Result<(), UpdateError> {
        if self.newest >= UPDATE_NUMBER_MAX {
            return Err(UpdateError::Other(
                "no number is left for a further guarded update; remove the key 'updates' from the stored state while the \
                 server is stopped"
                    .to_owned(),
            ));
        }
        let is_of_workload = requester.agent().is_some();
        let mut of_workloads = 0;
        let mut oldest_settled = None;
        for (number, open) in &self.open {
            if joined.contains(number) {
                continue;
            }
            if open.record.is_of_workload {
                of_workloads += 1;
            }
            // It waits for absent agents only.
            if oldest_settled.is_none() && !open.is_staging() && open.window.is_settled() {
                oldest_settled = Some(*number);
            }
        }
        if is_of_workload && of_workloads >= UPDATES_OPEN_OF_WORKLOADS {
            return Err(UpdateError::Other(format!(
                "{UPDATES_OPEN_OF_WORKLOADS} guarded updates are open that workloads have requested; wait until one of \
                 them has ended"
            )));
        }
        if self.open.len() < UPDATES_OPEN + joined.len() {
            return Ok(());
        }
        if !is_of_workload
            && let Some(number) = oldest_settled
            && let Some(open) = self.close(number)
        {
            let absent = open.window.waits_for().join(", ");
            let reason = format!("not waited for any more: {absent}");
            self.end(open.record, UpdatePhase::Kept, Some(reason));
            return Ok(());
        }
        Err(UpdateError::Other(format!(
            "{UPDATES_OPEN} guarded updates are open; wait until one of them has ended, or roll one back"
        )))
    }

    /// Opens the update of `requester` in place of these, with their health windows.
    fn take_places(
        &mut self,
        joined: &[u64],
        change_set: ChangeSet,
        requester: &Requester,
        now: Instant,
    ) -> OpenUpdate {
        // At most one above the bound, of an update that is not kept.
        let number = self.newest + 1;
        let is_withdrawn = change_set.is_empty();
        let record = UpdateRecord {
            number,
            source: requester.log_source().to_string(),
            is_of_workload: requester.agent().is_some(),
            accepted: utc(SystemTime::now()),
            change_set,
            ..UpdateRecord::default()
        };
        let mut open = OpenUpdate::new(record, now);
        for joined in joined {
            let Some(earlier) = self.close(*joined) else {
                continue;
            };
            let mut ended = open.merge(earlier);
            let mut phase = UpdatePhase::Withdrawn;
            if !is_withdrawn {
                ended.replaced_by = Some(number.to_string());
                phase = UpdatePhase::Replaced;
            }
            self.end(ended, phase, None);
        }
        let UpdateRecord {
            dependents,
            change_set,
            ..
        } = &mut open.record;
        dependents.retain(|name, _| !change_set.is_changed(name));
        open
    }
}

impl OpenUpdate {
    /// Takes over the health window of an earlier update. Returns the rest of its record.
    fn merge(&mut self, earlier: Self) -> UpdateRecord {
        let mut record = earlier.record;
        self.window.merge(earlier.window);
        self.failures.extend(earlier.failures);
        let own = &mut self.record;
        own.losses = own.losses.max(record.losses);
        own.was_switched |= record.was_switched;
        own.was_sent |= record.was_sent;
        merge_strictest(&mut own.dependents, std::mem::take(&mut record.dependents));
        if own.reason.is_none() {
            own.reason = record.reason.take();
        }
        record
    }
}

// --------------------------------------------------------------------- switch

impl Rollouts {
    /// Takes all that waits in an update if nothing blocks it, together with what is checked with
    /// it and with the workloads that have left it: as one change, so that nothing is started in
    /// between which is not wanted any more. Otherwise only that, and the update is being staged.
    pub(crate) fn switch_or_stage(
        &mut self,
        opened: OpenedUpdate,
        updates: &Updates,
        now: Instant,
    ) -> Switch {
        let OpenedUpdate {
            mut open,
            checked,
            left,
        } = opened;
        let was_staging = open.is_staging();
        let is_ready =
            open.cannot_be_staged().is_none() && open.awaited(&self.away, now).next().is_none();
        let mut commit = CheckedUpdate {
            revisions: left,
            restarted: BTreeSet::new(),
            ..checked
        };
        let mut window = None;
        if is_ready {
            window = Some(self.switch(&mut open, &mut commit, updates));
        } else {
            open.record.phase = UpdatePhase::Staging;
            log::info!(
                "Update {} ({}) is being staged.",
                open.record.number,
                open.record.change_set.names()
            );
        }
        self.newest = self.newest.max(open.record.number);
        self.open.insert(open.record.number, open);
        self.is_unsaved = true;
        self.changed();
        Switch {
            commit,
            is_stored_first: is_ready && was_staging,
            window,
        }
    }

    /// Adds everything pending in an update to `commit`. Returns the health window that begins.
    fn switch(
        &self,
        open: &mut OpenUpdate,
        commit: &mut CheckedUpdate,
        updates: &Updates,
    ) -> Window {
        let mut switched = BTreeMap::new();
        let mut failing = BTreeMap::new();
        for (name, affected) in &mut open.record.change_set.workloads {
            let Some(before) = affected.active.take() else {
                continue;
            };
            let made = std::mem::take(&mut affected.made);
            affected.ran |= runs(name, updates);
            affected.stage = None;
            let block = match &made.effective {
                Some(added) => block_of(&added.workload),
                None => None,
            };
            failing.insert(name.clone(), self.on_failure_of(block.as_ref()));
            switched.insert(name.clone(), before.effective == made.effective);
            commit.revisions.insert(name.clone(), made);
        }
        let mut dependents = dependents(&open.record.change_set, failing, updates);
        let restarted = restarted(&open.record.change_set, &commit.revisions, updates);
        commit.restarted.clone_from(&restarted);
        for affected in open.record.change_set.workloads.values() {
            if let Some(new) = &affected.new {
                open.record.was_sent |= updates.is_connected(&new.agent);
            }
        }
        merge_strictest(&mut open.record.dependents, dependents.clone());
        for (name, on_failure) in &mut dependents {
            *on_failure = open.record.dependents[name];
        }
        open.record.phase = UpdatePhase::Trial;
        open.record.was_switched = true;
        Window {
            number: open.record.number,
            switched,
            dependents,
            restarted,
        }
    }

    /// Begins the health window of an update that has switched, and of what needs its workloads.
    /// What was restarted is evaluated by its next start.
    pub(crate) fn begin_window(&mut self, window: &Window, updates: &Updates, now: Instant) {
        let Some(mut open) = self.open.remove(&window.number) else {
            return;
        };
        for (name, goes_on) in &window.switched {
            let affected = open.record.change_set.workloads.get(name);
            let ran = affected.is_some_and(|affected| affected.ran);
            match self.member(name, ran, None, updates) {
                Some(member) => {
                    let member = with_state(member, *goes_on, updates);
                    open.window.add(member, now);
                }
                None => open.window.remove(name),
            }
        }
        for (name, on_failure) in &window.dependents {
            let Some(mut member) = self.member(name, true, Some(*on_failure), updates) else {
                open.window.remove(name);
                continue;
            };
            if window.restarted.contains(name) {
                member.keeps_name = true;
                member.state = None;
            }
            open.window.add(member, now);
        }
        open.begun = now;
        log::info!(
            "Update {} ({}) is on trial.",
            window.number,
            open.record.change_set.names()
        );
        self.open.insert(window.number, open);
    }

    /// The member of the health window for a workload; `None` without an agent. `dependent` is what
    /// follows when one fails that the update does not touch, whose present state applies.
    pub(super) fn member(
        &self,
        name: &Name,
        ran: bool,
        dependent: Option<OnFailure>,
        updates: &Updates,
    ) -> Option<Member> {
        let AddedWorkload { instance, workload } = updates.workloads().scheduled(name)?;
        let block = block_of(&workload);
        let on_failure = match dependent {
            Some(on_failure) => on_failure,
            None => self.on_failure_of(block.as_ref()),
        };
        let state = match dependent {
            Some(_) => updates.workloads().states.get(&instance).cloned(),
            None => None,
        };
        Some(Member {
            terms: block.map(|block| block.terms).unwrap_or_default(),
            on_failure,
            is_never_restarted: workload.restart_policy == RestartPolicy::Never,
            ran,
            state,
            keeps_name: false,
            is_present: updates.is_connected(&instance.agent),
            instance,
        })
    }

    /// Takes an update of which everything is staged, to be switched.
    pub(crate) fn take_staged(&mut self, number: u64) -> Option<OpenedUpdate> {
        let open = self.close(number)?;
        for (name, _, stage) in open.staged() {
            if let Some(reason) = stage.refusal() {
                log::warn!(
                    "Update {number} replaces '{name}' although it cannot be staged: {reason}"
                );
            }
        }
        Some(OpenedUpdate {
            open,
            checked: CheckedUpdate::default(),
            left: BTreeMap::new(),
        })
    }

    /// Adds what waits in an update to the response to its request, whose `difference` is not in
    /// force as long as it is being staged.
    pub(crate) fn add_staged(
        &self,
        number: u64,
        difference: EffectiveDiff,
        accepted: &mut AcceptedUpdate,
    ) {
        let Some(open) = self.open.get(&number) else {
            return;
        };
        if !open.is_staging() {
            return;
        }
        for affected in open.record.change_set.workloads.values() {
            if affected.restarts {
                accepted.restarted.extend(affected.new.clone());
            }
        }
        let added = difference.added.into_iter().map(|added| added.instance);
        accepted.added.extend(added);
        accepted.deleted.extend(difference.deleted);
        for names in [&mut accepted.added, &mut accepted.deleted] {
            names.sort_unstable_by_key(ToString::to_string);
            names.dedup();
        }
    }
}

/// A workload that was switched, with the state by which it is evaluated.
///
/// A state that it has already is that of an older instance of the same name, which this update
/// replaces or an earlier one stops still, unless it `goes_on` as it is. The end of one that was
/// never started is not reported when it still waits, and an agent that comes back begins with what
/// it has.
fn with_state(member: Member, goes_on: bool, updates: &Updates) -> Member {
    let state = updates.workloads().states.get(&member.instance);
    if goes_on {
        return Member {
            state: state.cloned(),
            ..member
        };
    }
    Member {
        keeps_name: state.is_some_and(is_of_older_instance),
        ..member
    }
}

fn is_of_older_instance(state: &ExecutionState) -> bool {
    !matches!(
        state.phase,
        Phase::PendingInitial | Phase::PendingWaitingToStart | Phase::AgentDisconnected
    )
}

/// What is restarted with a part of an update that changes these `revisions`: the dependents that
/// the update restarts and that need one of them, together with those of it that change. What an
/// earlier part has changed runs on.
fn restarted(
    change_set: &ChangeSet,
    revisions: &BTreeMap<Name, Revision>,
    updates: &Updates,
) -> BTreeSet<Name> {
    let changed = revisions.keys().cloned().collect();
    let mut all = BTreeSet::new();
    let mut restarts_any = false;
    for name in updates.workloads().with_dependents(changed) {
        let Some(affected) = change_set.workloads.get(&name) else {
            continue;
        };
        restarts_any |= affected.restarts;
        if affected.restarts || revisions.contains_key(&name) {
            all.insert(name);
        }
    }
    if restarts_any { all } else { BTreeSet::new() }
}

fn runs(name: &Name, updates: &Updates) -> bool {
    let workloads = updates.workloads();
    let Some(added) = workloads.effective.get(name) else {
        return false;
    };
    let state = workloads.states.get(&added.instance);
    state.is_some_and(|state| state.phase == Phase::Running)
}

/// Running workloads that need one of `changed` and that `change_set` does not change, with what
/// follows when they fail.
fn dependents(
    change_set: &ChangeSet,
    changed: BTreeMap<Name, OnFailure>,
    updates: &Updates,
) -> BTreeMap<Name, OnFailure> {
    let mut dependents: BTreeMap<Name, OnFailure> = BTreeMap::new();
    let mut next: Vec<(Name, OnFailure)> = changed.into_iter().collect();
    while let Some((needed, on_failure)) = next.pop() {
        for name in updates.workloads().dependents.of(&needed) {
            if change_set.is_changed(name) {
                continue;
            }
            // One that needs several follows the strictest.
            let is_stricter = match dependents.get(name) {
                Some(known) => *known == OnFailure::Keep && on_failure != OnFailure::Keep,
                None => true,
            };
            if is_stricter {
                dependents.insert(name.clone(), on_failure);
                next.push((name.clone(), on_failure));
            }
        }
    }
    dependents.retain(|name, _| runs(name, updates));
    dependents
}

/// Adds members to a health window; for members that it has already, the strictest rule applies.
fn merge_strictest(reactions: &mut BTreeMap<Name, OnFailure>, more: BTreeMap<Name, OnFailure>) {
    for (name, on_failure) in more {
        let known = reactions.entry(name).or_insert(on_failure);
        *known = (*known).min(on_failure);
    }
}
