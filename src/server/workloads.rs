//! What users asked for, what agents have to run, and what runs.
//!
//! Thread: `server`; a plain value owned by [`super::ServerLoop`].

use super::dependencies::{Users, needed_running};
use super::modes::Modes;
use super::plan::{Difference, Form};
use super::templates::Templates;
use super::unwanted::UnwantedInstances;
use crate::model::complete_state::{DesiredState, WorkloadStates};
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
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
    /// Instances that are staged and whose state is the server's own: no agent knows of them.
    pub placeholders: BTreeSet<InstanceName>,
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

    /// Whether an instance is one that its agent has although it shall not.
    pub fn is_unwanted(&self, instance: &InstanceName) -> bool {
        !self.is_wanted(instance) && !self.placeholders.contains(instance)
    }

    /// All states that agents know.
    pub fn reported_states(&self) -> Vec<WorkloadState> {
        let mut states = self.states.reports();
        states.retain(|state| !self.placeholders.contains(&state.instance));
        states
    }

    /// The states of a lost agent become unknown. Returns the instances.
    pub fn agent_disconnected(&mut self, agent: &Name) -> Vec<InstanceName> {
        let lost = self.states.of_agent(agent).map(|(instance, _)| instance);
        let lost: Vec<InstanceName> = lost.filter(|one| !self.placeholders.contains(one)).collect();
        lost.iter().for_each(|one| self.states.set(one, ExecutionState::plain(Phase::AgentDisconnected)));
        lost
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

    /// What these forms would change in the present mode.
    pub fn seen_in_mode(&self, forms: &BTreeMap<Name, Form>) -> Difference {
        let seen = forms.iter().map(|(name, form)| (name.clone(), form.effective.as_ref().map(|it| self.seen(it))));
        Difference::to(&self.effective, seen)
    }

    /// A workload as it is by now.
    pub fn form(&self, name: &Name) -> Form {
        let [rendered, effective] = [self.before_hooks(), self.before_modes()].map(|all| all.get(name).cloned());
        Form { desired: self.desired.workloads.get(name).cloned(), rendered, effective }
    }

    /// What leads to these forms, about workloads with their own agents.
    pub fn difference(&self, forms: &BTreeMap<Name, Form>) -> Difference {
        Difference::to(self.before_modes(), forms.iter().map(|(name, form)| (name.clone(), form.effective.clone())))
    }

    /// These are the rendered forms now. Returns what leads to them, about workloads with their own agents.
    pub fn render(&mut self, forms: BTreeMap<Name, Form>) -> Difference {
        let difference = self.difference(&forms);
        if let Some(before_hooks) = &mut self.before_hooks {
            for (name, Form { rendered, .. }) in forms {
                match rendered {
                    Some(rendered) => _ = before_hooks.insert(name, rendered),
                    None => _ = before_hooks.remove(&name),
                }
            }
        }
        difference
    }

    /// The state of an instance that no agent has reported yet.
    pub fn first_state(&self, instance: &InstanceName) -> ExecutionState {
        match &self.modes {
            _ if !instance.agent.is_empty() => ExecutionState::plain(Phase::PendingInitial),
            Some(modes) => modes.unscheduled(&instance.workload),
            None => ExecutionState::plain(Phase::NotScheduled),
        }
    }

    /// Makes the infos of those among `names` that are not scheduled those of the present mode.
    pub fn refresh_infos(&mut self, names: &BTreeSet<Name>) {
        for AddedWorkload { instance, .. } in names.iter().filter_map(|name| self.effective.get(name)) {
            if self.states.get(instance).is_some_and(|state| state.phase == Phase::NotScheduled) {
                let state = self.first_state(instance);
                self.states.set(instance, state);
            }
        }
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
