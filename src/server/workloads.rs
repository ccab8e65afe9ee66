//! What users asked for, what agents have to run, and what runs.
//!
//! Thread: `server`; a plain value owned by [`super::ServerLoop`].

use super::dependencies::{Users, needed_running};
use super::modes::Modes;
use super::plan::Difference;
use super::templates::Templates;
use super::unwanted::UnwantedInstances;
use crate::model::complete_state::{DesiredState, WorkloadStates};
use crate::model::execution_state::{ExecutionState, Phase};
use crate::model::messages::AddedWorkload;
use crate::model::names::{InstanceName, Name};
use std::collections::{BTreeMap, BTreeSet};

/// All workloads.
#[derive(Default)]
pub struct Workloads {
    /// What users asked for.
    pub desired: DesiredState,
    /// Which of these use which configs.
    pub config_users: Users<Name>,
    /// What agents have to run, by workload. Shares its workloads with `desired` as long as nothing is rendered.
    pub effective: BTreeMap<Name, AddedWorkload>,
    /// Which of these need which others running.
    pub dependents: Users<Name>,
    /// The rendered workloads as they were before hooks changed them; only kept when there are hooks.
    pub before_hooks: Option<BTreeMap<Name, AddedWorkload>>,
    /// The modes of the vehicle; only where the settings name their config item.
    pub modes: Option<Modes>,
    /// What runs.
    pub states: WorkloadStates,
    /// Which of these states are of instances that are not wanted.
    pub unwanted: UnwantedInstances,
    /// Renders desired workloads.
    pub templates: Templates,
}

impl Workloads {
    /// Whether an agent has to run this instance.
    pub fn is_wanted(&self, instance: &InstanceName) -> bool {
        self.effective.get(&instance.workload).is_some_and(|added| added.instance == *instance)
    }

    /// Whether the agent has to run a workload of this name.
    pub fn is_on(&self, agent: &Name, workload: &str) -> bool {
        self.effective.get(workload).is_some_and(|added| added.instance.agent == *agent)
    }

    /// The rendered workloads, as they were before hooks changed them.
    pub fn before_hooks(&self) -> &BTreeMap<Name, AddedWorkload> {
        self.before_hooks.as_ref().unwrap_or_else(|| self.before_modes())
    }

    /// The effective workloads with their own agents, in the current mode or not.
    pub fn before_modes(&self) -> &BTreeMap<Name, AddedWorkload> {
        self.modes.as_ref().map_or(&self.effective, Modes::workloads)
    }

    /// What `difference`, which is about workloads with their own agents, and the present mode mean for the effective
    /// workloads. Also returns the workloads for [`Self::refresh_infos`].
    pub fn in_mode(&mut self, difference: Difference) -> (Difference, BTreeSet<Name>) {
        let Some(modes) = &mut self.modes else { return (difference, BTreeSet::new()) };
        let item = self.desired.configs.get(modes.item());
        modes.switch(&difference, item, &self.effective)
    }

    /// A workload with its own agent as it is effective in the present mode.
    pub fn seen(&self, added: &AddedWorkload) -> AddedWorkload {
        self.modes.as_ref().map_or_else(|| added.clone(), |modes| modes.in_mode(added))
    }

    /// What `difference`, which is about workloads with their own agents, would change in the present mode.
    pub fn seen_in_mode(&self, difference: &Difference) -> Difference {
        let new = difference.by_name();
        let new = new.into_iter().map(|(name, added)| (name.clone(), added.map(|added| self.seen(added))));
        let new: BTreeMap<Name, Option<AddedWorkload>> = new.collect();
        Difference::to(&self.effective, new.iter().map(|(name, added)| (name, added.as_ref())))
    }

    /// The state of an instance that no agent has reported yet.
    pub fn first_state(&self, instance: &InstanceName) -> ExecutionState {
        match &self.modes {
            _ if !instance.agent.is_empty() => ExecutionState::plain(Phase::PendingInitial),
            Some(modes) => modes.unscheduled(&instance.workload),
            None => ExecutionState::plain(Phase::NotScheduled),
        }
    }

    /// Makes the infos of those among `names` that are not scheduled those of the present mode. Returns the instances that
    /// had another one, with their states before.
    pub fn refresh_infos(&mut self, names: &BTreeSet<Name>) -> Vec<(InstanceName, Option<ExecutionState>)> {
        let mut refreshed = Vec::new();
        for name in names {
            let Some(AddedWorkload { instance, .. }) = self.effective.get(name) else { continue };
            let is_unscheduled = |state: &&ExecutionState| state.phase == Phase::NotScheduled;
            let Some(old) = self.states.get(instance).filter(is_unscheduled) else { continue };
            let new = self.first_state(instance);
            if *old != new {
                let old = self.states.set(instance, new);
                refreshed.push((instance.clone(), old));
            }
        }
        refreshed
    }

    /// Makes a workload effective.
    pub fn begin(&mut self, added: &AddedWorkload) {
        let name = &added.instance.workload;
        self.dependents.add(name, needed_running(&added.workload));
        self.effective.insert(name.clone(), added.clone());
    }

    /// Ends the effective workload `name`.
    pub fn end(&mut self, name: &Name) -> Option<AddedWorkload> {
        let ended = self.effective.remove(name)?;
        self.dependents.remove(name, needed_running(&ended.workload));
        Some(ended)
    }
}
