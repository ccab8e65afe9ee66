//! What users asked for, what agents have to run, and what runs.
//!
//! Thread: `server`; a plain value owned by [`super::ServerLoop`].

use super::dependencies::{Users, needed_running};
use super::strays::Strays;
use super::templates::Templates;
use crate::model::complete_state::{DesiredState, WorkloadStates};
use crate::model::messages::AddedWorkload;
use crate::model::names::{InstanceName, Name};
use std::collections::BTreeMap;

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
    /// What runs.
    pub states: WorkloadStates,
    /// Which of these states are of instances that are not wanted.
    pub strays: Strays,
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
        self.before_hooks.as_ref().unwrap_or(&self.effective)
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
