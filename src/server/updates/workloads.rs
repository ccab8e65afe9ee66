//! The desired state, the effective workloads, and the states of their instances, with the indexes
//! by which they are found: users of configs, dependents, and unwanted instances.
//!
//! A workload has up to four forms. It is desired as a client wrote it, and rendered after its
//! templates are filled in; hooks may change that. The result is placed: it has its own agent. It
//! is effective without that agent while it is stopped or restarted, and outside of the current
//! mode.
//!
//! Thread: `server`; a plain value owned by [`super::Updates`].

use super::modes::Modes;
use super::plan::{EffectiveDiff, Revision};
use super::templates::Templates;
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::complete_state::{DesiredState, WorkloadStates};
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::mask_tree::Wanted;
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::{InstanceName, Name, of_workload};
use ankaios_model::node::Node;
use ankaios_model::reason::{Reason, STOPPED};
use ankaios_model::workload::{AddCondition, Workload};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Additional info stored of an unwanted instance, in bytes.
pub(crate) const UNWANTED_INFO_MAX: usize = 256;
/// Limit of never wanted instances of one connected agent. More can only be a mistake or an attack.
pub(crate) const NEVER_WANTED: usize = 1_000;
/// Never wanted instances of one workload on one agent: containers of a few earlier revisions may
/// be left. Each is compared with all known deletes.
pub(crate) const NEVER_WANTED_OF_WORKLOAD: usize = 16;
/// Never wanted instances of all agents, in bytes of their names and the longest infos, so there
/// are at most 4,000: every client that reads the state gets them, and programs of other
/// implementations take 4 MiB.
const NEVER_WANTED_BYTES: usize = 4 * NEVER_WANTED * UNWANTED_INFO_MAX;
/// Longest name of a never wanted instance, in bytes of memory; no manifest can have a longer one.
const NAME_BYTES_MAX: usize = 512;
/// Instances of one agent that are being deleted, in bytes of their names, their infos and
/// [`STATE_BYTES`] each: 5,000 workloads that are replaced twice. Further ones count as removed.
const DELETED_BYTES: usize = 10 * 1024 * 1024;
/// Approximate memory of a state beside the names and the text, in bytes.
const STATE_BYTES: usize = 256;
/// Instances of one workload that are being deleted on one agent: updates that follow each other
/// faster than the agent stops containers.
pub(crate) const DELETED_OF_WORKLOAD: usize = 256;

/// The info of a workload that is being restarted and has left the effective state.
const RESTARTS: &str = "being restarted";

/// The report of an instance that has no state any more.
pub(crate) fn removed(instance: InstanceName) -> WorkloadState {
    WorkloadState::new(instance, ExecutionState::plain(Phase::Removed))
}

/// Workloads that are restarted together.
#[derive(Debug)]
pub(crate) struct RestartGroup {
    pub(crate) names: BTreeSet<Name>,
    /// Instances whose ends the restart waits for.
    pub(crate) stopping: Vec<InstanceName>,
}

/// All workloads.
#[derive(Default)]
pub(crate) struct Workloads {
    /// The state as clients wrote it.
    pub(crate) desired: DesiredState,
    /// The desired workloads that use each config.
    pub(crate) config_users: Users<Name>,
    /// The workloads as agents get them. They share memory with the desired ones unless templates
    /// or hooks change them.
    pub(crate) effective: BTreeMap<Name, AddedWorkload>,
    /// The effective workloads that need each other workload running.
    pub(crate) dependents: Users<Name>,
    /// The rendered workloads as they were before hooks changed them; only kept when there are
    /// hooks.
    pub(crate) before_hooks: Option<BTreeMap<Name, AddedWorkload>>,
    /// The modes of the vehicle; only where the settings name their config item.
    pub(crate) modes: Option<Modes>,
    /// Restarts that have begun and not ended.
    pub(crate) restarts: Vec<RestartGroup>,
    /// Workloads that a client has stopped.
    pub(crate) stopped: BTreeSet<Name>,
    /// The effective workloads with their own agents; only kept with modes, during restarts and
    /// while some are stopped, when some of them are effective without an agent.
    pub(crate) placed: Option<BTreeMap<Name, AddedWorkload>>,
    /// The execution states of all instances.
    pub(crate) states: WorkloadStates,
    /// Staged instances whose state is the server's own: no agent has them yet.
    pub(crate) placeholders: BTreeSet<InstanceName>,
    /// Instances that have a state and are not wanted.
    pub(crate) unwanted: UnwantedInstances,
    /// The renderer of desired workloads.
    pub(crate) templates: Templates,
    /// Number of changes of the desired or effective state: updates, rollbacks, switches.
    pub(crate) commits: u64,
}

/// The difference of the effective workloads in the present mode.
pub(crate) struct ModeDiff {
    pub(crate) difference: EffectiveDiff,
    /// The workloads whose infos may have changed, for [`Workloads::refresh_infos`].
    pub(crate) affected: BTreeSet<Name>,
}

impl Workloads {
    /// Returns whether an agent has to run this instance.
    pub(crate) fn is_wanted(&self, instance: &InstanceName) -> bool {
        match self.effective.get(&instance.workload) {
            Some(added) => added.instance == *instance,
            None => false,
        }
    }

    /// Returns whether this instance must end if its agent has it.
    pub(crate) fn is_unwanted(&self, instance: &InstanceName) -> bool {
        !self.is_wanted(instance) && !self.placeholders.contains(instance)
    }

    /// Returns whether a workload is effective on an agent, or an instance of it has a state there.
    /// A staged instance does not count: it was never there.
    pub(crate) fn is_on_agent(&self, workload: &Name, agent: &Name) -> bool {
        if let Some(added) = self.effective.get(workload)
            && added.instance.agent == *agent
        {
            return true;
        }
        let mut states = self.states.of_agent_workload(agent, workload);
        states.any(|(instance, _)| !self.placeholders.contains(&instance))
    }

    /// The states that agents receive: all except those of staged instances.
    pub(crate) fn reported_states(&self) -> Vec<WorkloadState> {
        let mut states = self.states.reports();
        states.retain(|state| !self.placeholders.contains(&state.instance));
        states
    }

    /// These workloads and their dependents, direct or not.
    pub(crate) fn with_dependents(&self, mut next: Vec<Name>) -> BTreeSet<Name> {
        let mut all = BTreeSet::new();
        while let Some(name) = next.pop() {
            if all.insert(name.clone()) {
                next.extend(self.dependents.of(&name).cloned());
            }
        }
        all
    }

    /// The rendered workloads, as they were before hooks changed them.
    pub(crate) fn before_hooks(&self) -> &BTreeMap<Name, AddedWorkload> {
        match &self.before_hooks {
            Some(before_hooks) => before_hooks,
            None => self.placed(),
        }
    }

    /// The effective workloads with their own agents, also outside of the current mode and while
    /// they are restarted.
    pub(crate) fn placed(&self) -> &BTreeMap<Name, AddedWorkload> {
        self.placed.as_ref().unwrap_or(&self.effective)
    }

    /// Begins to keep the workloads with their own agents, see [`Self::placed`].
    pub(super) fn keep_placed(&mut self) {
        if self.placed.is_none() {
            self.placed = Some(self.effective.clone());
        }
    }

    /// Drops the workloads of [`Self::keep_placed`] once all are effective with their own agents.
    pub(super) fn drop_placed(&mut self) {
        if self.modes.is_none() && self.restarts.is_empty() && self.stopped.is_empty() {
            self.placed = None;
        }
    }

    /// Applies `difference`, which is about workloads with their own agents. Returns the difference
    /// of the effective workloads that follows from it, from a switch of the mode, and from the
    /// workloads `restarted`, whose restart or stop begins or ends.
    pub(crate) fn apply_difference(
        &mut self,
        difference: EffectiveDiff,
        restarted: &BTreeSet<Name>,
    ) -> ModeDiff {
        let Some(placed) = &mut self.placed else {
            // All workloads are effective with their own agents.
            return ModeDiff {
                difference,
                affected: BTreeSet::new(),
            };
        };
        // First, the placed workloads and the mode.
        let mut affected = restarted.clone();
        for added in &difference.added {
            affected.insert(added.instance.workload.clone());
        }
        for deleted in &difference.deleted {
            affected.insert(deleted.workload.clone());
        }
        difference.apply(placed);
        if let Some(modes) = &mut self.modes {
            let item = self.desired.configs.get(modes.item());
            affected.extend(modes.switch(item, placed));
        }
        // Then, the effective workloads that follow from these.
        let mut difference = EffectiveDiff::default();
        for name in &affected {
            difference.compare(self.effective.get(name), self.present(name));
        }
        if let Some(modes) = &mut self.modes {
            modes.forget_failures(&difference);
        }
        ModeDiff {
            difference,
            affected,
        }
    }

    /// The workload `name` as it must be effective now: without its agent while it is restarted,
    /// stopped or outside of the current mode.
    fn present(&self, name: &Name) -> Option<AddedWorkload> {
        let added = self.placed().get(name)?;
        if self.is_restarting(added) {
            Some(without_agent(added))
        } else {
            Some(self.in_present_mode(added))
        }
    }

    /// Returns whether a workload has left the effective state for its restart.
    fn is_restarting(&self, added: &AddedWorkload) -> bool {
        let name = &added.instance.workload;
        let mut restarts = self.restarts.iter();
        restarts.any(|restart| restart.names.contains(name))
    }

    /// Returns whether a workload is in the current mode, or there are no modes.
    fn is_in_mode(&self, added: &AddedWorkload) -> bool {
        match &self.modes {
            Some(modes) => modes.is_inside(&added.workload),
            None => true,
        }
    }

    /// The workload `added` as it is effective while it does not restart: without its agent if it
    /// is stopped or outside of the current mode.
    // [impl->swdd~server-modes-outside-is-not-scheduled~1]
    pub(crate) fn in_present_mode(&self, added: &AddedWorkload) -> AddedWorkload {
        let is_stopped = self.stopped.contains(&added.instance.workload);
        if self.is_in_mode(added) && !is_stopped {
            added.clone()
        } else {
            without_agent(added)
        }
    }

    /// The workload `name` with its agent. `None` if it is stopped, outside of the current mode, or
    /// has no agent. A restart is ignored.
    pub(crate) fn scheduled(&self, name: &Name) -> Option<AddedWorkload> {
        let added = self.in_present_mode(self.placed().get(name)?);
        if added.instance.agent.is_empty() {
            return None;
        }
        Some(added)
    }

    /// The changes of these revisions to the effective workloads of the present mode.
    pub(crate) fn difference_in_mode(&self, revisions: &BTreeMap<Name, Revision>) -> EffectiveDiff {
        let mut difference = EffectiveDiff::default();
        for (name, revision) in revisions {
            let effective = revision.effective.as_ref();
            let new = effective.map(|added| self.in_present_mode(added));
            difference.compare(self.effective.get(name), new);
        }
        difference
    }

    /// The present revision of a workload.
    pub(crate) fn revision(&self, name: &Name) -> Revision {
        Revision {
            desired: self.desired.workloads.get(name).cloned(),
            rendered: self.before_hooks().get(name).cloned(),
            effective: self.placed().get(name).cloned(),
        }
    }

    /// The changes of these revisions to the workloads with their own agents.
    pub(crate) fn difference(&self, revisions: &BTreeMap<Name, Revision>) -> EffectiveDiff {
        let placed = self.placed();
        let mut difference = EffectiveDiff::default();
        for (name, revision) in revisions {
            difference.compare(placed.get(name), revision.effective.clone());
        }
        difference
    }

    /// Takes over the rendered workloads of these revisions. Returns their changes to the workloads
    /// with their own agents.
    pub(crate) fn take_rendered(&mut self, revisions: BTreeMap<Name, Revision>) -> EffectiveDiff {
        let difference = self.difference(&revisions);
        if let Some(before_hooks) = &mut self.before_hooks {
            for (name, Revision { rendered, .. }) in revisions {
                match rendered {
                    Some(rendered) => _ = before_hooks.insert(name, rendered),
                    None => _ = before_hooks.remove(&name),
                }
            }
        }
        difference
    }

    /// The state of an effective instance that no agent has reported yet.
    pub(crate) fn first_state(&self, instance: &InstanceName) -> ExecutionState {
        if !instance.agent.is_empty() {
            return ExecutionState::plain(Phase::PendingInitial);
        }
        if self.stopped.contains(&instance.workload) {
            return ExecutionState::with_info(Phase::NotScheduled, STOPPED)
                .because(Reason::Stopped);
        }
        if let Some(added) = self.placed().get(&instance.workload) {
            if let Some(modes) = &self.modes
                && !modes.is_inside(&added.workload)
            {
                return modes.outside();
            }
            if self.is_restarting(added) {
                return ExecutionState::with_info(Phase::NotScheduled, RESTARTS);
            }
        }
        ExecutionState::plain(Phase::NotScheduled)
    }

    /// Updates the infos of those of `names` that are not scheduled: an info names the reason.
    pub(crate) fn refresh_infos(&mut self, names: &BTreeSet<Name>) {
        for name in names {
            let Some(added) = self.effective.get(name) else {
                continue;
            };
            let instance = &added.instance;
            let Some(state) = self.states.get(instance) else {
                continue;
            };
            if state.phase == Phase::NotScheduled {
                let state = self.first_state(instance);
                self.states.set(instance, state);
            }
        }
    }

    /// The part of the state with modes that masks select; `None` if they select nothing, or there
    /// are no modes.
    pub(crate) fn modes_node(&self, wanted: &Wanted<'_>) -> Option<Node> {
        let modes = self.modes.as_ref()?;
        wanted.take(modes.node(self.placed()))
    }

    /// Makes a workload effective.
    pub(crate) fn begin(&mut self, added: &AddedWorkload) {
        let name = &added.instance.workload;
        self.dependents.add(name, needed_running(&added.workload));
        self.effective.insert(name.clone(), added.clone());
    }

    /// Ends the effective workload `name`.
    pub(crate) fn end(&mut self, name: &Name) -> Option<AddedWorkload> {
        let ended = self.effective.remove(name)?;
        self.dependents
            .remove(name, needed_running(&ended.workload));
        Some(ended)
    }
}

/// A workload without its agent, so that it is not scheduled.
fn without_agent(AddedWorkload { instance, workload }: &AddedWorkload) -> AddedWorkload {
    let agent = Name::default();
    let workload = Arc::new(Workload {
        agent: agent.clone(),
        ..Workload::clone(workload)
    });
    AddedWorkload {
        instance: InstanceName {
            agent,
            ..instance.clone()
        },
        workload,
    }
}

// ------------------------------------------------------------ dependencies

/// The names of workloads that `workload` needs running.
pub(crate) fn needed_running(workload: &Workload) -> impl Iterator<Item = &String> {
    let dependencies = workload.dependencies.iter();
    dependencies
        .filter(|(_, condition)| **condition == AddCondition::Running)
        .map(|(name, _)| name)
}

/// The users of each name: of a config, or of a workload. Kept up to date, so that they are found
/// without a search of all workloads.
#[derive(Debug)]
pub(crate) struct Users<T>(BTreeMap<String, BTreeSet<T>>);

impl<T> Default for Users<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord + Clone> Users<T> {
    /// Notes that `user` uses `names`.
    pub(crate) fn add<'n>(&mut self, user: &T, names: impl IntoIterator<Item = &'n String>) {
        for name in names {
            self.0.entry(name.clone()).or_default().insert(user.clone());
        }
    }

    /// Notes that `user` does not use `names` any more.
    pub(crate) fn remove<'n>(&mut self, user: &T, names: impl IntoIterator<Item = &'n String>) {
        for name in names {
            if let Some(users) = self.0.get_mut(name) {
                users.remove(user);
                if users.is_empty() {
                    self.0.remove(name);
                }
            }
        }
    }

    /// The users of `name`.
    pub(crate) fn of(&self, name: &str) -> impl Iterator<Item = &T> {
        self.0.get(name).into_iter().flatten()
    }
}

// ------------------------------------------------------ unwanted instances

/// Instances that have a state and are not wanted, by agent: left by another manifest, or being
/// deleted. Agents must not fill the memory of the server with such states.
///
/// When there are too many, reports of further ones are ignored and the known ones stay: an agent
/// reports its real containers first, and each forgotten state would have to be sent to all peers.
#[derive(Debug, Default)]
pub(crate) struct UnwantedInstances {
    never_wanted: BTreeMap<Name, CountedInstances>,
    /// Instances that were wanted and whose end is not reported.
    deleted: BTreeMap<Name, CountedInstances>,
}

/// Instances of one agent, with the memory that the state of each takes at most, in bytes.
#[derive(Debug, Default)]
struct CountedInstances {
    all: BTreeMap<InstanceName, usize>,
    /// The sum of all.
    bytes: usize,
}

impl CountedInstances {
    /// Adds an instance, unless there are `most` of the same workload. Returns whether it was
    /// added.
    fn add(&mut self, instance: &InstanceName, bytes: usize, most: usize) -> bool {
        let of_workload = of_workload(&self.all, &instance.workload);
        if of_workload.take(most).count() == most {
            return false;
        }
        let before = self.all.insert(instance.clone(), bytes);
        self.bytes += bytes;
        self.bytes -= before.unwrap_or_default();
        true
    }
}

impl UnwantedInstances {
    /// Notes that a connected agent reports a state of an unwanted instance, with an info of at
    /// most [`UNWANTED_INFO_MAX`] bytes. Returns `false` when there are too many to keep this one.
    pub(crate) fn report(&mut self, instance: &InstanceName) -> bool {
        if let Some(deleted) = self.deleted.get(&instance.agent)
            && deleted.all.contains_key(instance)
        {
            return true;
        }
        let bytes = instance.bytes() + UNWANTED_INFO_MAX;
        let mut sum = bytes;
        for own in self.never_wanted.values() {
            sum += own.bytes;
        }
        let own = self.never_wanted.entry(instance.agent.clone()).or_default();
        if own.all.contains_key(instance) {
            return true;
        }
        let are_too_many = own.all.len() >= NEVER_WANTED || sum > NEVER_WANTED_BYTES;
        if are_too_many || instance.bytes() > NAME_BYTES_MAX {
            return false;
        }
        own.add(instance, bytes, NEVER_WANTED_OF_WORKLOAD)
    }

    /// Notes that an instance is not wanted any more. Its state, with an info of `info` bytes, is
    /// kept until its agent reports the end. Returns `false` when this agent has too many to keep
    /// this one.
    pub(crate) fn add_deleted(&mut self, instance: &InstanceName, info: usize) -> bool {
        // A later report may have a longer info, up to this bound.
        let bytes = instance.bytes() + info.max(UNWANTED_INFO_MAX) + STATE_BYTES;
        let own = self.deleted.entry(instance.agent.clone()).or_default();
        if own.bytes + bytes > DELETED_BYTES {
            return false;
        }
        own.add(instance, bytes, DELETED_OF_WORKLOAD)
    }

    /// Removes an instance that has no state any more, or is wanted now. Returns whether it was
    /// there.
    pub(crate) fn remove(&mut self, instance: &InstanceName) -> bool {
        let mut was_known = false;
        for agents in [&mut self.never_wanted, &mut self.deleted] {
            let Some(own) = agents.get_mut(&instance.agent) else {
                continue;
            };
            let bytes = own.all.remove(instance);
            was_known |= bytes.is_some();
            own.bytes -= bytes.unwrap_or_default();
            if own.all.is_empty() {
                agents.remove(&instance.agent);
            }
        }
        was_known
    }

    /// Removes and returns the never wanted instances of an agent that has disconnected. It reports
    /// them again when it comes back.
    pub(crate) fn agent_gone(&mut self, name: &Name) -> BTreeSet<InstanceName> {
        match self.never_wanted.remove(name) {
            Some(own) => own.all.into_keys().collect_entries(),
            None => BTreeSet::new(),
        }
    }
}

/// For tests of other files and crates.
#[cfg(debug_assertions)]
impl<T> Users<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// For tests of other files and crates.
#[cfg(debug_assertions)]
impl UnwantedInstances {
    /// All unwanted instances. A sum that does not agree with its entries ends the test.
    pub(crate) fn instances(&self) -> BTreeSet<&InstanceName> {
        let mut all = BTreeSet::new();
        for (name, own) in self.deleted.iter().chain(&self.never_wanted) {
            assert_eq!(own.bytes, own.all.values().sum::<usize>(), "{name}");
            all.extend(own.all.keys());
        }
        all
    }
}
