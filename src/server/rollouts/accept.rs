//! Requests: whether one is guarded, which open updates it joins, and how an update is switched
//! once all of it is staged.
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

/// The decision about a checked request.
pub(crate) enum RequestDecision {
    /// It is not guarded: commit it.
    Plain(CheckedUpdate),
    /// It sets back all of the open updates that it joins: commit it, and end their staging.
    Withdrawn(CheckedUpdate),
    /// It is an open update now.
    Opened(Box<OpenedUpdate>),
}

/// An update that is switched or staged next.
pub(crate) struct OpenedUpdate {
    open: OpenUpdate,
    /// The change to commit, whether or not the update is staged.
    checked: CheckedUpdate,
    /// The new revisions of workloads that have left the update.
    left: BTreeMap<Name, Revision>,
}

impl OpenedUpdate {
    /// The number of the update.
    pub(crate) fn number(&self) -> u64 {
        self.open.record.number
    }

    /// The changes of the request to the effective workloads of the present mode.
    pub(crate) fn difference(&self, updates: &Updates) -> EffectiveDiff {
        updates
            .workloads()
            .difference_in_mode(&self.checked.revisions)
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
    /// Workloads that were switched, with whether the instance continues unchanged.
    switched: BTreeMap<Name, bool>,
    /// Workloads that need one of these, with the consequence of their failure.
    dependents: BTreeMap<Name, OnFailure>,
    /// The workloads restarted with that change.
    restarted: BTreeSet<Name>,
}

// ------------------------------------------------------------------- requests

impl Rollouts {
    /// Decides whether a checked request is committed or becomes an open update.
    ///
    /// # Errors
    /// It makes the state too large, the same update was rolled back, too many are open, or it
    /// would join an update with workloads that the requester must not write.
    pub(crate) fn accept(
        &mut self,
        checked: CheckedUpdate,
        requester: &Requester,
        rights: &Rights,
        updates: &Updates,
        now: Instant,
    ) -> Result<RequestDecision, UpdateError> {
        let for_agents = updates.workloads().difference(&checked.revisions);
        if requester.workload.is_some() {
            self.check_size(&checked.change, &for_agents, updates)?;
        }
        let has_guard = self.has_guard(&for_agents);
        if self.open.is_empty() && !self.remembers_any() && !has_guard {
            // It is not guarded, and there is no update to join or to compare it with.
            return Ok(RequestDecision::Plain(checked));
        }
        // First, find the open updates that it joins, and their union.
        let request = self.change_set_of(&checked, updates);
        let joined = self.joined_by(&request);
        let mut change_set = self.union_of(&joined);
        // A workload must be allowed to write all of the update: if its request fails, all of the
        // update is rolled back.
        if let Some(number) = joined.last()
            && !rights.may_write(requester, change_set.masks())
        {
            return Err(UpdateError::Other(format!(
                "it would become a part of update {number}, which is open and has parts that this workload must not \
                 write; wait until that has ended"
            )));
        }
        let left = change_set.merge(request);
        // Then, check that this update is allowed.
        let forgotten = &checked.change.forgotten_updates;
        let changes_instances = !for_agents.is_empty() || !joined.is_empty();
        if self.remembers_any() && changes_instances {
            self.check_new(&change_set, forgotten)?;
        }
        let mut is_guarded = has_guard || !joined.is_empty();
        if is_guarded && !change_set.is_empty() {
            let only_deletes = joined.is_empty() && for_agents.added.is_empty();
            match self.make_room(&joined, requester) {
                Ok(()) => {}
                // A delete must be possible even if all places are taken.
                Err(_) if only_deletes => is_guarded = false,
                Err(error) => return Err(error),
            }
        }
        self.forget(forgotten);
        if !is_guarded {
            return Ok(RequestDecision::Plain(checked));
        }
        // Finally, replace the joined updates by this one.
        let mut open = self.take_places(&joined, change_set, requester, now);
        if open.record.change_set.is_empty() {
            return Ok(RequestDecision::Withdrawn(checked));
        }
        for name in left.keys() {
            open.window.remove(name);
        }
        self.drop_stages_not_awaited(&mut open, now);
        Ok(RequestDecision::Opened(Box::new(OpenedUpdate {
            open,
            checked,
            left,
        })))
    }

    /// Checks that a request of a workload does not let the state grow beyond the size that every
    /// client can read. The revisions that open updates would switch or restore are a part of it.
    fn check_size(
        &self,
        change: &DesiredChange,
        for_agents: &EffectiveDiff,
        updates: &Updates,
    ) -> Result<(), UpdateError> {
        let mut kept = 0;
        for open in self.open.values() {
            for affected in open.record.change_set.workloads.values() {
                for revision in [&affected.before, &affected.made] {
                    if let Some(added) = &revision.effective {
                        kept += workload_bytes(&added.workload);
                    }
                }
            }
        }
        let sizes = updates.sizes(change, for_agents);
        let after = sizes.after + kept;
        if after <= STATE_OF_WORKLOADS_MAX || sizes.after <= sizes.before {
            return Ok(()); // A state that is too large already may always become smaller.
        }
        Err(UpdateError::Other(format!(
            "the desired and the effective state would take {after} bytes, but a request of a workload may let them take \
             at most {STATE_OF_WORKLOADS_MAX}; use shorter texts, or apply it with 'ank', which has no such limit"
        )))
    }

    /// Returns whether a change of workloads is guarded by itself, without joining an open update.
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

    /// The change set of a request.
    fn change_set_of(&self, checked: &CheckedUpdate, updates: &Updates) -> ChangeSet {
        let workloads = updates.workloads();
        // The mode is no part of any update: a switch of the mode is not evaluated, and no rollback
        // causes one.
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

    /// The workloads that a request affects: restarted, changed and differently rendered ones. It
    /// also affects users of a changed config that are in an open update: their staged instances
    /// may be outdated.
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

    /// The part of a change set for one workload.
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
        // A changed workload is replaced, and not only restarted.
        affected.restarts = affected.active.is_none() && checked.restarted.contains(name);
        affected
    }

    /// The open updates that a request joins.
    fn joined_by(&self, request: &ChangeSet) -> Vec<u64> {
        let mut joined = Vec::new();
        for (number, open) in &self.open {
            if open.record.change_set.is_affected_by(request) {
                joined.push(*number);
            }
        }
        joined
    }

    /// The change sets of these open updates together.
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

    /// Makes room for one more open update, which replaces the `joined` ones. If all places are
    /// taken, ends the oldest update that waits only for disconnected agents. Workloads must
    /// neither end updates of others nor take all places.
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
            // A settled window waits for disconnected agents only.
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
            let reason = format!("no longer awaited: {absent}");
            self.end(open.record, UpdatePhase::Kept, Some(reason));
            return Ok(());
        }
        Err(UpdateError::Other(format!(
            "{UPDATES_OPEN} guarded updates are open; wait until one of them has ended, or roll one back"
        )))
    }

    /// Opens an update of `requester`. It takes the places of the `joined` updates, with their
    /// health windows.
    fn take_places(
        &mut self,
        joined: &[u64],
        change_set: ChangeSet,
        requester: &Requester,
        now: Instant,
    ) -> OpenUpdate {
        // One above `UPDATE_NUMBER_MAX` is possible for a withdrawn update, which is not kept.
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
        // A dependent that this request changes is a part of the update itself.
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
    /// Switches an update if all of it is staged, otherwise begins its staging.
    ///
    /// The returned commit has the checked change and the new revisions of workloads that have left
    /// the update. A switch adds the new revisions of the update: with two commits an agent could
    /// start an outdated instance in between.
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
        let is_ready = open.cannot_be_staged().is_none() && open.is_all_staged(&self.away, now);
        // Only the switch restarts workloads, and adds them.
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
        self.note_change();
        // The disk has a staged update as one that is still being staged. A server that ends during
        // the switch must not begin with the staging again.
        let is_stored_first = is_ready && was_staging;
        Switch {
            commit,
            is_stored_first,
            window,
        }
    }

    /// Adds the new revisions of an update to `commit`. Returns the health window that begins.
    fn switch(
        &self,
        open: &mut OpenUpdate,
        commit: &mut CheckedUpdate,
        updates: &Updates,
    ) -> Window {
        // First, its workloads.
        let mut switched = BTreeMap::new();
        let mut reactions = BTreeMap::new();
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
            reactions.insert(name.clone(), self.on_failure_of(block.as_ref()));
            let continues = before.effective == made.effective;
            switched.insert(name.clone(), continues);
            commit.revisions.insert(name.clone(), made);
        }
        // Then, the workloads that need one of these.
        let mut dependents = dependents(&open.record.change_set, reactions, updates);
        let restarted = restarted(&open.record.change_set, &commit.revisions, updates);
        commit.restarted.clone_from(&restarted);
        merge_strictest(&mut open.record.dependents, dependents.clone());
        // An earlier switch of the update may have noted a stricter consequence.
        for (name, on_failure) in &mut dependents {
            *on_failure = open.record.dependents[name];
        }
        // Finally, the record.
        for affected in open.record.change_set.workloads.values() {
            if let Some(new) = &affected.new {
                open.record.was_sent |= updates.is_connected(&new.agent);
            }
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

    /// Begins the health window of an update that has switched. Its members are the workloads of
    /// the update and their dependents. A restarted member is evaluated by its next start.
    pub(crate) fn begin_window(&mut self, window: &Window, updates: &Updates, now: Instant) {
        let Some(mut open) = self.open.remove(&window.number) else {
            return;
        };
        for (name, continues) in &window.switched {
            let affected = open.record.change_set.workloads.get(name);
            let ran = affected.is_some_and(|affected| affected.ran);
            let Some(member) = self.member(name, ran, None, updates) else {
                open.window.remove(name); // It has no agent, so nothing of it can be observed.
                continue;
            };
            let member = with_state(member, *continues, updates);
            open.window.add(member, now);
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
            "Update {} ({}) switched; its health window has begun.",
            window.number,
            open.record.change_set.names()
        );
        self.open.insert(window.number, open);
    }

    /// The member of the health window for a workload; `None` if it has no agent.
    ///
    /// `dependent` is for a workload that only depends on one of the update: the consequence of its
    /// failure. Such a member begins with its present state.
    pub(super) fn member(
        &self,
        name: &Name,
        ran: bool,
        dependent: Option<OnFailure>,
        updates: &Updates,
    ) -> Option<Member> {
        let AddedWorkload { instance, workload } = updates.workloads().scheduled(name)?;
        let block = block_of(&workload);
        let mut on_failure = self.on_failure_of(block.as_ref());
        let mut state = None;
        if let Some(of_dependent) = dependent {
            on_failure = of_dependent;
            state = updates.workloads().states.get(&instance).cloned();
        }
        let terms = match block {
            Some(block) => block.terms,
            None => Default::default(),
        };
        Some(Member {
            terms,
            on_failure,
            is_never_restarted: workload.restart_policy == RestartPolicy::Never,
            ran,
            state,
            keeps_name: false,
            is_present: updates.is_connected(&instance.agent),
            instance,
        })
    }

    /// Takes an update that is completely staged and is switched next.
    pub(crate) fn take_staged(&mut self, number: u64) -> Option<OpenedUpdate> {
        let open = self.close(number)?;
        for (instance, stage) in open.staged() {
            if let Some(reason) = stage.refusal() {
                let name = &instance.workload;
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

    /// Adds the instances of an update that is being staged to the response to its request. They
    /// are not active yet: `difference` is the change of the request.
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
        for added in difference.added {
            accepted.added.push(added.instance);
        }
        accepted.deleted.extend(difference.deleted);
        for names in [&mut accepted.added, &mut accepted.deleted] {
            names.sort_unstable_by_key(ToString::to_string);
            names.dedup();
        }
    }
}

/// A switched workload as member of its health window. If its instance `continues` unchanged, the
/// member begins with its present state.
fn with_state(member: Member, continues: bool, updates: &Updates) -> Member {
    let state = updates.workloads().states.get(&member.instance);
    if continues {
        return Member {
            state: state.cloned(),
            ..member
        };
    }
    // A present state belongs to an older instance of the same name, which this update replaces or
    // an earlier update still stops. If the older instance has started, its end is reported first.
    Member {
        keeps_name: state.is_some_and(is_of_older_instance),
        ..member
    }
}

/// Returns whether this is the state of an instance that has started, whose end its agent reports.
fn is_of_older_instance(state: &ExecutionState) -> bool {
    !matches!(
        state.phase,
        Phase::PendingInitial | Phase::PendingWaitingToStart | Phase::AgentDisconnected
    )
}

/// The workloads that are restarted when an update switches these `revisions`: the workloads of the
/// revisions, and the workloads that need one of them and that the update restarts. Workloads that
/// an earlier switch of the update has changed continue to run. Empty if the update restarts none.
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

/// Returns whether the present instance of a workload is running.
fn runs(name: &Name, updates: &Updates) -> bool {
    let workloads = updates.workloads();
    let Some(added) = workloads.effective.get(name) else {
        return false;
    };
    match workloads.states.get(&added.instance) {
        Some(state) => state.phase == Phase::Running,
        None => false,
    }
}

/// The running dependents of the `changed` workloads, direct or not, which the update itself does
/// not change. Each has the consequence of its failure.
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
                continue; // It belongs to the update itself.
            }
            // If a dependent needs several of the workloads, the strictest consequence applies.
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

/// Adds consequences of failures; of two for one workload, the stricter applies.
fn merge_strictest(reactions: &mut BTreeMap<Name, OnFailure>, more: BTreeMap<Name, OnFailure>) {
    for (name, on_failure) in more {
        let known = reactions.entry(name).or_insert(on_failure);
        *known = (*known).min(on_failure);
    }
}
