//! Restarts: workloads, and all that need them running, leave the effective state together, and
//! come back when the ends of all of them are reported. For agents these are deletes and adds, so
//! all of them stop and start in the order of their dependencies. Nothing of it is stored: a
//! restart of the server ends it.
//!
//! Thread: `server`; part of [`ServerLoop`]. Without a restart there is nothing to look at.

use super::ServerLoop;
use super::events::Changes;
use super::plan::{Difference, Version};
use super::requester::Requester;
use super::update::UpdateError;
use super::workloads::{Restart, Workloads};
use ankaios_model::execution_state::Phase;
use ankaios_model::names::{InstanceName, Name, excerpt};
use std::collections::{BTreeMap, BTreeSet};

impl ServerLoop {
    /// The workloads `names` and all that need them running, directly or not. With an update only
    /// those of `names` count that have other `forms` by it. Nothing that has no agent now is
    /// restarted.
    ///
    /// # Errors
    /// Why one of them cannot be restarted, or may not by this requester.
    // [impl->swdd~server-restarts-workloads~1]
    pub(super) fn to_restart(
        &self,
        names: &[String],
        forms: Option<&BTreeMap<Name, Version>>,
        requester: &Requester,
    ) -> Result<BTreeSet<Name>, UpdateError> {
        let refused = |reason: String| Err(UpdateError::Other(reason));
        let workloads = &self.workloads;
        let mut next: Vec<Name> = Vec::new();
        for name in names {
            match workloads.placed().get(name.as_str()) {
                _ if forms.is_some_and(|forms| !forms.contains_key(name.as_str())) => {}
                Some(added)
                    if forms.is_some() || !workloads.seen(added).instance.agent.is_empty() =>
                {
                    next.push(added.instance.workload.clone());
                }
                _ if forms.is_some() => {}
                None => return refused(format!("workload '{}' does not exist", excerpt(name))),
                Some(added) if added.instance.agent.is_empty() => {
                    return refused(format!("workload '{name}' does not run: it has no agent"));
                }
                Some(_) => {
                    let reason = format!(
                        "workload '{name}' does not run: it is outside of the current mode"
                    );
                    return refused(reason);
                }
            }
        }
        let mut restarted = workloads.with_dependents(next);
        restarted.retain(|name| workloads.scheduled(name).is_some());
        for name in &restarted {
            if !self.may_write(requester, vec![format!("desiredState.workloads.{name}")]) {
                return refused(format!(
                    "it would restart '{name}', too, which this workload may not write"
                ));
            }
            let agent = workloads
                .scheduled(name)
                .map(|added| added.instance.agent)
                .unwrap_or_default();
            if self.peers.of_agent(&agent).is_none() {
                return refused(format!(
                    "agent '{agent}' is not connected, so '{name}' cannot be restarted; try again when it is connected"
                ));
            }
            if let Some(number) = self.guarded.open_update_of(name) {
                return refused(format!(
                    "'{name}' is a part of update {number}, which is open; wait until that has ended, or roll it back"
                ));
            }
        }
        Ok(restarted)
    }

    /// A restart of these workloads begins; another one of some of them becomes a part of it.
    /// Returns those that leave the effective state: what waits to start is left alone, since it
    /// starts anyway. To delete it would confuse agents of other implementations, which may never
    /// report its end.
    pub(super) fn begin_restart(&mut self, restarted: &BTreeSet<Name>) -> BTreeSet<Name> {
        let effective = |name: &&Name| {
            self.workloads
                .effective
                .get(*name)
                .map(|added| &added.instance)
        };
        let has_started =
            |name: &&Name| effective(name).is_some_and(|instance| self.has_started(instance));
        let mut names: BTreeSet<Name> = restarted.iter().filter(has_started).cloned().collect();
        if names.is_empty() {
            return names;
        }
        let Workloads {
            restarts,
            placed,
            effective,
            ..
        } = &mut self.workloads;
        placed.get_or_insert_with(|| effective.clone());
        restarts.retain(|other| {
            let stays = other.names.is_disjoint(restarted);
            names.extend(other.names.iter().filter(|_| !stays).cloned());
            stays
        });
        restarts.push(Restart {
            names: names.clone(),
            stopping: Vec::new(),
        });
        names
    }

    /// These workloads, of the newest restart, are out of the effective state: it waits for the
    /// ends of their instances, and of those that agents stop only when these have ended.
    pub(super) fn restart_begun(&mut self, names: &BTreeSet<Name>) {
        if names.is_empty() {
            return;
        }
        // What others keep from being stopped as well may never end.
        let waits_for_one = |instance: &InstanceName| {
            let conditions = self.deletes.conditions(instance);
            let runs = |name: &str| {
                self.workloads
                    .effective
                    .get(name)
                    .is_some_and(|it| !it.instance.agent.is_empty())
            };
            let mut others = conditions
                .iter()
                .filter(|name| runs(name) && !names.contains(name.as_str()));
            conditions.iter().any(|name| names.contains(name.as_str())) && others.next().is_none()
        };
        let all = self.workloads.states.iter().map(|(instance, _)| instance);
        let ending = all.filter(|one| self.is_ending(one) && self.has_started(one));
        let stopping = ending
            .filter(|one| names.contains(&one.workload) || waits_for_one(one))
            .collect();
        if let Some(restart) = self.workloads.restarts.last_mut() {
            restart.stopping = stopping;
        }
        log::info!(
            "Restarting {}.",
            names
                .iter()
                .map(|name| &**name)
                .collect::<Vec<_>>()
                .join(", ")
        );
    }

    fn has_started(&self, instance: &InstanceName) -> bool {
        let waits = |phase| matches!(phase, Phase::PendingInitial | Phase::PendingWaitingToStart);
        self.workloads
            .states
            .get(instance)
            .is_some_and(|state| !waits(state.phase))
    }

    /// Whether the end of an instance is to come. Nobody waits for that of an agent that is away.
    fn is_ending(&self, instance: &InstanceName) -> bool {
        let ends =
            |phase: Phase| self.workloads.is_unwanted(instance) || phase.state() == "Stopping";
        let state = self.workloads.states.get(instance);
        state.is_some_and(|state| state.phase != Phase::AgentDisconnected && ends(state.phase))
    }

    /// What runs although it needs a workload that is being restarted, with that: it waited to
    /// start when the restart began, and started before its agent was told. What it needs would
    /// wait for its end for ever.
    fn started_since(&self) -> BTreeSet<Name> {
        let Workloads {
            restarts,
            dependents,
            effective,
            states,
            ..
        } = &self.workloads;
        let runs = |name: &&Name| {
            let instance = effective.get(*name).map(|added| &added.instance);
            let state = instance
                .filter(|instance| self.has_started(instance))
                .and_then(|instance| states.get(instance));
            state.is_some_and(|state| matches!(state.phase.state(), "Pending" | "Running"))
                && self.guarded.open_update_of(name).is_none()
        };
        let all = restarts.iter().flat_map(|restart| &restart.names);
        all.flat_map(|name| {
            dependents
                .of(name)
                .filter(runs)
                .flat_map(|user| [name.clone(), user.clone()])
        })
        .collect()
    }

    /// Brings back the workloads of restarts that wait for no end any more. Returns whether there
    /// were some.
    pub(super) fn settle_restarts(&mut self) -> bool {
        let late = self.started_since();
        if !late.is_empty() {
            let names = self.begin_restart(&late);
            self.carry_out_in_mode(Difference::default(), &names, Changes::default());
            self.restart_begun(&names);
            return true;
        }
        let mut restarts = std::mem::take(&mut self.workloads.restarts);
        for Restart { stopping, .. } in &mut restarts {
            // One at a time: there may be many, and each event looks for ends.
            while stopping.pop_if(|last| !self.is_ending(last)).is_some() {}
        }
        let (over, others): (Vec<Restart>, _) = restarts
            .into_iter()
            .partition(|restart| restart.stopping.is_empty());
        self.workloads.restarts = others;
        if over.is_empty() {
            return false;
        }
        let names = over.into_iter().flat_map(|restart| restart.names).collect();
        self.carry_out_in_mode(Difference::default(), &names, Changes::default());
        if self.workloads.restarts.is_empty() && self.workloads.modes.is_none() {
            self.workloads.placed = None;
        }
        true
    }
}
