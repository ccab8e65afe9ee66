//! What users asked for, what agents have to run, and what runs; who needs whom, and what runs
//! although nobody wants it.
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

/// Additional info stored of such an instance, in bytes.
pub(crate) const UNWANTED_INFO_MAX: usize = 256;
/// Instances of one agent that were never wanted, as long as it is connected. More can only be a
/// mistake or an attack.
pub(crate) const NEVER_WANTED: usize = 1_000;
/// Those of one workload among them: containers of a few earlier revisions may be left. Each is
/// compared with all known deletes.
pub(crate) const NEVER_WANTED_OF_WORKLOAD: usize = 16;
/// What those of all agents together take, in bytes of their names and the longest infos, so there
/// are at most 4,000: every client that reads the state gets them, and programs of other
/// implementations take 4 MiB.
const NEVER_WANTED_BYTES: usize = 4 * NEVER_WANTED * UNWANTED_INFO_MAX;
/// Longest name of one, in bytes of memory; no manifest can have a longer one.
const NAME_BYTES_MAX: usize = 512;
/// Instances of one agent that are being deleted, in bytes of their names, their infos and
/// [`STATE_BYTES`] each: 5,000 workloads that are replaced twice. What an agent leaves beyond that
/// counts as removed.
const DELETED_BYTES: usize = 10 * 1024 * 1024;
/// What a state takes beside the names and the text, about.
const STATE_BYTES: usize = 256;
/// Those of one workload among them: updates that follow each other faster than its agent carries
/// them out.
pub(crate) const DELETED_OF_WORKLOAD: usize = 256;

/// The info of a workload that is out of the effective state until its restart goes on.
const RESTARTS: &str = "being restarted";

/// The report of an instance that has no state any more.
pub(crate) fn removed(instance: InstanceName) -> WorkloadState {
    WorkloadState::new(instance, ExecutionState::plain(Phase::Removed))
}

/// Workloads that are restarted together.
#[derive(Debug)]
pub(crate) struct RestartGroup {
    /// All of them.
    pub(crate) names: BTreeSet<Name>,
    /// Instances whose ends it waits for.
    pub(crate) stopping: Vec<InstanceName>,
}

/// All workloads.
#[derive(Default)]
pub(crate) struct Workloads {
    /// What users asked for.
    pub(crate) desired: DesiredState,
    /// Which of these use which configs.
    pub(crate) config_users: Users<Name>,
    /// What agents have to run, by workload. Shares its workloads with `desired` as long as nothing
    /// is rendered.
    pub(crate) effective: BTreeMap<Name, AddedWorkload>,
    /// Which of these need which others running.
    pub(crate) dependents: Users<Name>,
    /// The rendered workloads as they were before hooks changed them; only kept when there are
    /// hooks.
    pub(crate) before_hooks: Option<BTreeMap<Name, AddedWorkload>>,
    /// The modes of the vehicle; only where the settings name their config item.
    pub(crate) modes: Option<Modes>,
    /// What is being restarted.
    pub(crate) restarts: Vec<RestartGroup>,
    /// Workloads that a client has stopped.
    pub(crate) stopped: BTreeSet<Name>,
    /// All workloads with their own agents; only kept with modes, during restarts and while some
    /// are stopped, when some of them are effective without.
    pub(crate) placed: Option<BTreeMap<Name, AddedWorkload>>,
    /// What runs.
    pub(crate) states: WorkloadStates,
    /// Instances that are staged and whose state is the server's own: no agent knows of them.
    pub(crate) placeholders: BTreeSet<InstanceName>,
    /// Which of these states are of instances that are not wanted.
    pub(crate) unwanted: UnwantedInstances,
    /// Renders desired workloads.
    pub(crate) templates: Templates,
    /// How often any of this was changed by an update, an undo or a switch.
    pub(crate) commits: u64,
}

impl Workloads {
    /// Whether an agent has to run this instance.
    pub(crate) fn is_wanted(&self, instance: &InstanceName) -> bool {
        self.effective
            .get(&instance.workload)
            .is_some_and(|added| added.instance == *instance)
    }

    /// Whether an instance is one that its agent has although it shall not.
    pub(crate) fn is_unwanted(&self, instance: &InstanceName) -> bool {
        !self.is_wanted(instance) && !self.placeholders.contains(instance)
    }

    /// Whether a workload is effective on an agent, or an instance of it has a state there. What is
    /// only staged was never there.
    pub(crate) fn is_on_agent(&self, workload: &Name, agent: &Name) -> bool {
        if let Some(added) = self.effective.get(workload)
            && added.instance.agent == *agent
        {
            return true;
        }
        let mut states = self.states.of_agent_workload(agent, workload);
        states.any(|(instance, _)| !self.placeholders.contains(&instance))
    }

    /// All states that agents know.
    pub(crate) fn reported_states(&self) -> Vec<WorkloadState> {
        let mut states = self.states.reports();
        states.retain(|state| !self.placeholders.contains(&state.instance));
        states
    }

    /// These workloads and all that need them running, directly or not.
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
        self.before_hooks.as_ref().unwrap_or_else(|| self.placed())
    }

    /// The effective workloads with their own agents, also outside of the current mode and while
    /// they are restarted.
    pub(crate) fn placed(&self) -> &BTreeMap<Name, AddedWorkload> {
        self.placed.as_ref().unwrap_or(&self.effective)
    }

    /// Keeps all workloads with their own agents from now on.
    pub(super) fn keep_placed(&mut self) {
        if self.placed.is_none() {
            self.placed = Some(self.effective.clone());
        }
    }

    /// Keeps them no longer, once all are effective with their own agents.
    pub(super) fn drop_placed(&mut self) {
        if self.modes.is_none() && self.restarts.is_empty() && self.stopped.is_empty() {
            self.placed = None;
        }
    }

    /// Applies `difference`, which is about workloads with their own agents. Returns what that,
    /// the present mode and the begin or end of a restart or stop of the workloads `restarted` mean
    /// for the effective workloads, and the workloads for [`Self::refresh_infos`].
    pub(crate) fn in_mode(
        &mut self,
        difference: EffectiveDiff,
        restarted: &BTreeSet<Name>,
    ) -> (EffectiveDiff, BTreeSet<Name>) {
        let Some(placed) = &mut self.placed else {
            return (difference, BTreeSet::new());
        };
        let added = difference.added.iter().map(|added| &added.instance);
        let names = added
            .chain(&difference.deleted)
            .map(|instance| &instance.workload)
            .chain(restarted);
        let mut affected: BTreeSet<Name> = names.cloned().collect_entries();
        difference.apply(placed);
        if let Some(modes) = &mut self.modes {
            affected.extend(modes.switch(self.desired.configs.get(modes.item()), placed));
        }
        let effective = |added| {
            if self.is_restarting(added) {
                without_agent(added)
            } else {
                self.seen(added)
            }
        };
        let now = affected
            .iter()
            .map(|name| (name.clone(), self.placed().get(name).map(effective)));
        let difference = EffectiveDiff::to(&self.effective, now);
        if let Some(modes) = &mut self.modes {
            modes.forget_failures(&difference);
        }
        (difference, affected)
    }

    /// Whether a workload is out of the effective state until its restart goes on.
    fn is_restarting(&self, added: &AddedWorkload) -> bool {
        self.restarts
            .iter()
            .any(|restart| restart.names.contains(&added.instance.workload))
    }

    /// A workload with its own agent as it is effective in the present mode unless it is stopped,
    /// at the latest after a restart.
    // [impl->swdd~server-modes-outside-is-not-scheduled~1]
    pub(crate) fn seen(&self, added: &AddedWorkload) -> AddedWorkload {
        let is_inside = self
            .modes
            .as_ref()
            .is_none_or(|modes| modes.is_inside(&added.workload));
        if is_inside && !self.stopped.contains(&added.instance.workload) {
            added.clone()
        } else {
            without_agent(added)
        }
    }

    /// The workload `name`, as [`Self::seen`], if it has an agent then.
    pub(crate) fn scheduled(&self, name: &Name) -> Option<AddedWorkload> {
        self.placed()
            .get(name)
            .map(|added| self.seen(added))
            .filter(|added| !added.instance.agent.is_empty())
    }

    /// What these revisions would change in the present mode.
    pub(crate) fn seen_in_mode(&self, revisions: &BTreeMap<Name, Revision>) -> EffectiveDiff {
        let seen = revisions.iter().map(|(name, revision)| {
            (
                name.clone(),
                revision.effective.as_ref().map(|it| self.seen(it)),
            )
        });
        EffectiveDiff::to(&self.effective, seen)
    }

    /// A workload as it is by now.
    pub(crate) fn revision(&self, name: &Name) -> Revision {
        let [rendered, effective] =
            [self.before_hooks(), self.placed()].map(|all| all.get(name).cloned());
        Revision {
            desired: self.desired.workloads.get(name).cloned(),
            rendered,
            effective,
        }
    }

    /// What leads to these revisions, about workloads with their own agents.
    pub(crate) fn difference(&self, revisions: &BTreeMap<Name, Revision>) -> EffectiveDiff {
        EffectiveDiff::to(
            self.placed(),
            revisions
                .iter()
                .map(|(name, revision)| (name.clone(), revision.effective.clone())),
        )
    }

    /// These are the rendered revisions now. Returns what leads to them, about workloads with their
    /// own agents.
    pub(crate) fn render(&mut self, revisions: BTreeMap<Name, Revision>) -> EffectiveDiff {
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

    /// The state of an instance that no agent has reported yet.
    pub(crate) fn first_state(&self, instance: &InstanceName) -> ExecutionState {
        let added = self.placed().get(&instance.workload);
        match (&self.modes, added) {
            _ if !instance.agent.is_empty() => ExecutionState::plain(Phase::PendingInitial),
            _ if self.stopped.contains(&instance.workload) => {
                ExecutionState::with_info(Phase::NotScheduled, STOPPED).because(Reason::Stopped)
            }
            (Some(modes), Some(added)) if !modes.is_inside(&added.workload) => modes.outside(),
            (_, Some(added)) if self.is_restarting(added) => {
                ExecutionState::with_info(Phase::NotScheduled, RESTARTS)
            }
            _ => ExecutionState::plain(Phase::NotScheduled),
        }
    }

    /// Makes the infos of those among `names` that are not scheduled those of the present mode.
    pub(crate) fn refresh_infos(&mut self, names: &BTreeSet<Name>) {
        for AddedWorkload { instance, .. } in
            names.iter().filter_map(|name| self.effective.get(name))
        {
            if self
                .states
                .get(instance)
                .is_some_and(|state| state.phase == Phase::NotScheduled)
            {
                let state = self.first_state(instance);
                self.states.set(instance, state);
            }
        }
    }

    /// What is wanted of the modes; `None` when that is nothing or there are none.
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

/// A workload that is not scheduled for now.
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
    workload
        .dependencies
        .iter()
        .filter(|(_, condition)| **condition == AddCondition::Running)
        .map(|(name, _)| name)
}

/// Who uses what, by the name of what is used. Kept up to date, so that the users of one name are
/// found without a search of all workloads.
#[derive(Debug)]
pub(crate) struct Users<T>(BTreeMap<String, BTreeSet<T>>);

impl<T> Default for Users<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord + Clone> Users<T> {
    /// `user` uses `names`.
    pub(crate) fn add<'n>(&mut self, user: &T, names: impl IntoIterator<Item = &'n String>) {
        for name in names {
            self.0.entry(name.clone()).or_default().insert(user.clone());
        }
    }

    /// `user` does not use `names` any more.
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

/// Instances that have a state although nobody wants them, by agent: those that an agent has of
/// another manifest, and those that are being deleted. Agents must not fill the memory of the
/// server with such states.
///
/// Reports of further ones are ignored when there are too many, and the known ones stay: what an
/// agent reports first is what it really has, and each forgotten state would have to be sent to
/// everybody.
#[derive(Debug, Default)]
pub(crate) struct UnwantedInstances {
    never_wanted: BTreeMap<Name, Instances>,
    /// Those that were wanted and whose end is not reported.
    deleted: BTreeMap<Name, Instances>,
}

/// Instances of an agent, with what the state of each takes at most, in bytes.
#[derive(Debug, Default)]
struct Instances {
    all: BTreeMap<InstanceName, usize>,
    bytes: usize,
}

impl Instances {
    /// Adds one, unless there are `most` of the same workload.
    fn add(&mut self, instance: &InstanceName, bytes: usize, most: usize) -> bool {
        let has_place = of_workload(&self.all, &instance.workload)
            .take(most)
            .count()
            < most;
        if has_place {
            self.bytes += bytes;
            self.bytes -= self.all.insert(instance.clone(), bytes).unwrap_or_default();
        }
        has_place
    }
}

impl UnwantedInstances {
    /// A connected agent reports a state of an instance that is not wanted, with a text of at most
    /// [`UNWANTED_INFO_MAX`] bytes. Returns `false` when it cannot be kept: there are too many.
    pub(crate) fn report(&mut self, instance: &InstanceName) -> bool {
        if self
            .deleted
            .get(&instance.agent)
            .is_some_and(|deleted| deleted.all.contains_key(instance))
        {
            return true;
        }
        let bytes = instance.bytes() + UNWANTED_INFO_MAX;
        let sum = bytes
            + self
                .never_wanted
                .values()
                .map(|own| own.bytes)
                .sum::<usize>();
        let own = self.never_wanted.entry(instance.agent.clone()).or_default();
        own.all.contains_key(instance)
            || own.all.len() < NEVER_WANTED
                && sum <= NEVER_WANTED_BYTES
                && instance.bytes() <= NAME_BYTES_MAX
                && own.add(instance, bytes, NEVER_WANTED_OF_WORKLOAD)
    }

    /// An instance that has a state with a text of `info` bytes is not wanted any more. Returns
    /// `false` when its state cannot be kept until the agent reports its end: there are too many of
    /// this agent.
    pub(crate) fn delete(&mut self, instance: &InstanceName, info: usize) -> bool {
        let bytes = instance.bytes() + info.max(UNWANTED_INFO_MAX) + STATE_BYTES;
        let own = self.deleted.entry(instance.agent.clone()).or_default();
        own.bytes + bytes <= DELETED_BYTES && own.add(instance, bytes, DELETED_OF_WORKLOAD)
    }

    /// The instance has no state any more, or is wanted now. Returns whether it was counted.
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

    /// An agent is gone. Returns its instances that were never wanted: nothing is kept of them, and
    /// it reports them again when it comes back.
    pub(crate) fn agent_gone(&mut self, name: &Name) -> BTreeSet<InstanceName> {
        self.never_wanted
            .remove(name)
            .unwrap_or_default()
            .all
            .into_keys()
            .collect_entries()
    }
}

/// What tests of other files and crates look at.
#[cfg(debug_assertions)]
impl<T> Users<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What tests of other files and crates look at.
#[cfg(debug_assertions)]
impl UnwantedInstances {
    /// All of them; sums that do not agree with the entries end the test.
    pub(crate) fn instances(&self) -> BTreeSet<&InstanceName> {
        let all = || self.deleted.iter().chain(&self.never_wanted);
        for (name, own) in all() {
            assert_eq!(own.bytes, own.all.values().sum::<usize>(), "{name}");
        }
        all().flat_map(|(_, own)| own.all.keys()).collect()
    }
}
