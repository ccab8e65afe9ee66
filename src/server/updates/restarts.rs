//! Restarts: workloads and their dependents leave the effective state together, and come back when
//! the ends of all of them are reported. For agents these are deletes and adds, so workloads stop
//! and start in the order of their dependencies. Restarts are not stored: a restart of the server
//! ends them.
//!
//! Thread: `server`; part of [`Updates`]. Costs nothing without a restart.

use super::Updates;
use super::desired_change::UpdateError;
use super::plan::{EffectiveDiff, Revision};
use super::workloads::RestartGroup;
use crate::effects::Effects;
use crate::rollouts::Rollouts;
use crate::subscriptions::ChangedPaths;
use ankaios_model::execution_state::Phase;
use ankaios_model::names::{InstanceName, Name, excerpt};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

impl Updates {
    /// The workloads that a request restarts: `names` and their dependents, direct or not. A
    /// request with a new state restarts only those of `names` that it changes; `revisions` are the
    /// changed workloads. A workload without an agent is not restarted.
    ///
    /// # Errors
    /// One of them cannot be restarted.
    // [impl->swdd~server-restarts-workloads~1]
    pub(crate) fn to_restart(
        &self,
        names: &[String],
        revisions: Option<&BTreeMap<Name, Revision>>,
    ) -> Result<BTreeSet<Name>, UpdateError> {
        let workloads = &self.workloads;
        let mut next: Vec<Name> = Vec::new();
        for name in names {
            match revisions {
                Some(revisions) => {
                    let placed = workloads.placed().get(name.as_str());
                    if let Some(added) = placed
                        && revisions.contains_key(name.as_str())
                    {
                        next.push(added.instance.workload.clone());
                    }
                }
                None => next.push(self.scheduled_name(name)?),
            }
        }
        let mut restarted = workloads.with_dependents(next);
        restarted.retain(|name| workloads.scheduled(name).is_some());
        Ok(restarted)
    }

    /// The workload `name`, if it is scheduled.
    ///
    /// # Errors
    /// The reason why it does not run.
    fn scheduled_name(&self, name: &str) -> Result<Name, UpdateError> {
        let Some(added) = self.workloads.placed().get(name) else {
            let name = excerpt(name);
            return Err(UpdateError::Other(format!(
                "workload '{name}' does not exist"
            )));
        };
        let instance = &added.instance;
        let reason = if instance.agent.is_empty() {
            "it has no agent".to_owned()
        } else if self.workloads.stopped.contains(name) {
            format!("it is stopped; 'ank start {name}' starts it")
        } else if self.workloads.scheduled(&instance.workload).is_none() {
            "it is outside of the current mode".to_owned()
        } else {
            return Ok(instance.workload.clone());
        };
        Err(UpdateError::Other(format!(
            "workload '{name}' does not run: {reason}"
        )))
    }

    /// Checks that the agent of a workload is connected, so that it can be restarted.
    pub(crate) fn check_agent_of(&self, name: &Name) -> Result<(), UpdateError> {
        let agent = match self.workloads.scheduled(name) {
            Some(added) => added.instance.agent,
            None => Name::default(),
        };
        if self.is_connected(&agent) {
            return Ok(());
        }
        Err(UpdateError::Other(format!(
            "agent '{agent}' is not connected, so '{name}' cannot be restarted; try again when it is connected"
        )))
    }

    /// Begins a restart of these workloads. Other restarts of some of them become a part of it.
    /// Returns the workloads that leave the effective state.
    pub(super) fn begin_restart(&mut self, restarted: &BTreeSet<Name>) -> BTreeSet<Name> {
        // First, the workloads that leave.
        let mut names = BTreeSet::new();
        for name in restarted {
            // A workload that waits to start does not leave: it starts anyway, and agents of other
            // implementations may never report the end of an instance that has not started.
            if let Some(added) = self.workloads.effective.get(name)
                && self.has_started(&added.instance)
            {
                names.insert(name.clone());
            }
        }
        if names.is_empty() {
            return names;
        }
        let workloads = &mut self.workloads;
        workloads.keep_placed();
        // Then, add those of the restarts that become a part of this one.
        for other in std::mem::take(&mut workloads.restarts) {
            if other.names.is_disjoint(restarted) {
                workloads.restarts.push(other);
            } else {
                names.extend(other.names);
            }
        }
        workloads.restarts.push(RestartGroup {
            names: names.clone(),
            stopping: Vec::new(),
        });
        names
    }

    /// Notes the instances whose ends the newest restart waits for, after its workloads have left
    /// the effective state: their own instances, and instances that stop only after these.
    pub(super) fn restart_begun(&mut self, names: &BTreeSet<Name>) {
        if names.is_empty() {
            return; // No restart has begun.
        }
        let mut stopping = Vec::new();
        for (instance, _) in self.workloads.states.iter() {
            let is_awaited =
                names.contains(&instance.workload) || self.waits_only_for(&instance, names);
            if is_awaited && self.is_ending(&instance) && self.has_started(&instance) {
                stopping.push(instance);
            }
        }
        if let Some(restart) = self.workloads.restarts.last_mut() {
            restart.stopping = stopping;
        }
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        log::info!("Restarting {}.", names.join(", "));
    }

    /// Returns whether the delete of an instance waits for one of `names`, and for no other
    /// workload with an agent. The other workload may never end, so the restart must not wait for
    /// it.
    fn waits_only_for(&self, instance: &InstanceName, names: &BTreeSet<Name>) -> bool {
        let mut waits_for_one = false;
        for name in self.deletes.conditions(instance) {
            if names.contains(name.as_str()) {
                waits_for_one = true;
                continue;
            }
            let other = self.workloads.effective.get(name.as_str());
            if other.is_some_and(|other| !other.instance.agent.is_empty()) {
                return false;
            }
        }
        waits_for_one
    }

    /// Returns whether its agent has begun to start an instance.
    fn has_started(&self, instance: &InstanceName) -> bool {
        match self.workloads.states.get(instance) {
            Some(state) => !matches!(
                state.phase,
                Phase::PendingInitial | Phase::PendingWaitingToStart
            ),
            None => false,
        }
    }

    /// Returns whether the end of an instance is awaited. A disconnected agent reports no end.
    fn is_ending(&self, instance: &InstanceName) -> bool {
        let Some(state) = self.workloads.states.get(instance) else {
            return false;
        };
        if state.phase == Phase::AgentDisconnected {
            return false;
        }
        self.workloads.is_unwanted(instance) || state.phase.state() == "Stopping"
    }

    /// The dependents that have started during a restart of a workload that they need, with these
    /// workloads. Such a dependent waited to start when the restart began. It must be restarted as
    /// well: the delete of the workload that it needs waits for its end.
    fn started_since(&self, rollouts: &Rollouts) -> BTreeSet<Name> {
        let mut late = BTreeSet::new();
        for restart in &self.workloads.restarts {
            for name in &restart.names {
                for user in self.workloads.dependents.of(name) {
                    // A workload of an open update must not be restarted.
                    if self.runs(user) && rollouts.open_update_of(user).is_none() {
                        late.insert(name.clone());
                        late.insert(user.clone());
                    }
                }
            }
        }
        late
    }

    /// Returns whether a workload has started and has not ended.
    fn runs(&self, name: &Name) -> bool {
        let Some(added) = self.workloads.effective.get(name) else {
            return false;
        };
        let Some(state) = self.workloads.states.get(&added.instance) else {
            return false;
        };
        self.has_started(&added.instance) && matches!(state.phase.state(), "Pending" | "Running")
    }

    /// Continues the restarts: adds dependents that have started meanwhile; if there are none,
    /// brings back the workloads of each restart whose instances have ended. Returns whether it did
    /// either.
    pub(crate) fn settle_restarts(
        &mut self,
        rollouts: &Rollouts,
        now: Instant,
        effects: &mut Effects,
    ) -> bool {
        // First, dependents that have started since the restart began.
        let late = self.started_since(rollouts);
        if !late.is_empty() {
            let names = self.begin_restart(&late);
            self.switch_restarted(&names, now, effects);
            self.restart_begun(&names);
            return true;
        }
        // Then, restarts that are over.
        let mut over = BTreeSet::new();
        for mut restart in std::mem::take(&mut self.workloads.restarts) {
            // Examine the last instance only, until it has ended: this runs at each event, and a
            // restart may stop thousands of instances.
            while let Some(last) = restart.stopping.last()
                && !self.is_ending(last)
            {
                restart.stopping.pop();
            }
            if restart.stopping.is_empty() {
                over.extend(restart.names);
            } else {
                self.workloads.restarts.push(restart);
            }
        }
        if over.is_empty() {
            return false;
        }
        self.switch_restarted(&over, now, effects);
        self.workloads.drop_placed();
        true
    }

    /// Removes workloads that are being restarted from the effective state, and brings the others
    /// among `names` back.
    fn switch_restarted(&mut self, names: &BTreeSet<Name>, now: Instant, effects: &mut Effects) {
        let difference = EffectiveDiff::default();
        let changes = ChangedPaths::default();
        self.make_effective(difference, names, changes, now, effects);
    }
}
