//! Stopped workloads: a client has taken them out of the effective state, until a client starts
//! them again. They stay in the desired state, and updates of them apply to their next start.
//!
//! Thread: `server`; part of [`Updates`]. Costs nothing without a stopped workload.

use super::Updates;
use super::checks::LIFECYCLE_BYTES_MAX;
use super::commit::AcceptedUpdate;
use super::desired_change::UpdateError;
use super::plan::EffectiveDiff;
use super::workloads::Workloads;
use crate::effects::{Effect, Effects};
use crate::rollouts::Rollouts;
use crate::subscriptions::ChangedPaths;
use ankaios_model::lifecycle;
use ankaios_model::messages::StopAndStart;
use ankaios_model::names::{Name, excerpt};
use std::collections::BTreeSet;
use std::time::Instant;

/// Names of workloads in one text; of more only the number is given.
const NAMES_IN_TEXT: usize = 10;

impl Updates {
    /// Checks a request. Returns the workloads that are stopped after it. A name that it both
    /// starts and stops is stopped.
    ///
    /// # Errors
    /// Why one of them cannot be stopped or started.
    // [impl->swdd~server-stops-workloads~1]
    pub(crate) fn stopped_after(
        &self,
        request: &StopAndStart,
        rollouts: &Rollouts,
    ) -> Result<BTreeSet<Name>, UpdateError> {
        let mut stopped = self.workloads.stopped.clone();
        for name in &request.start {
            stopped.remove(&self.existing(name)?);
        }
        for name in &request.stop {
            stopped.insert(self.existing(name)?);
        }
        for name in stopped.symmetric_difference(&self.workloads.stopped) {
            if let Some(number) = rollouts.open_update_of(name) {
                return Err(UpdateError::Other(format!(
                    "'{name}' is a part of update {number}, which is open; wait until that has ended, or use 'ank rollback {number}'"
                )));
            }
        }
        self.check_dependents(&stopped)?;
        Ok(stopped)
    }

    /// The workload `name` of the desired state.
    fn existing(&self, name: &str) -> Result<Name, UpdateError> {
        match self.workloads.desired.workloads.get_key_value(name) {
            Some((name, _)) => Ok(name.clone()),
            None => Err(UpdateError::Other(format!(
                "workload '{}' does not exist",
                excerpt(name)
            ))),
        }
    }

    /// Checks that each active dependent of the workloads that stop now stops as well: a workload
    /// cannot stop before its dependents have ended.
    fn check_dependents(&self, stopped: &BTreeSet<Name>) -> Result<(), UpdateError> {
        let mut stops: Vec<Name> = Vec::new();
        for name in stopped.difference(&self.workloads.stopped) {
            stops.push(name.clone());
        }
        let running = Vec::from_iter(self.running_dependents(&stops, stopped));
        if running.is_empty() {
            return Ok(());
        }
        // There may be as many as a manifest has workloads, so not all are named.
        let stops: Vec<&str> = stops.iter().map(|name| &**name).collect();
        if stops.len() + running.len() > NAMES_IN_TEXT {
            let first = &running[..running.len().min(NAMES_IN_TEXT)];
            return Err(UpdateError::Other(format!(
                "{} other workloads must end before these can, such as '{}'; stop them together ('ank graph' shows what needs what)",
                running.len(),
                first.join("', '")
            )));
        }
        Err(UpdateError::Other(format!(
            "'{}' must end before '{}' can; stop them together: 'ank stop {} {}'",
            running.join("', '"),
            stops.join("', '"),
            stops.join(" "),
            running.join(" ")
        )))
    }

    /// Returns the dependents of `stops`, direct or not, that would continue to run, since they are
    /// not `stopped`. A dependent that is restarted with its dependencies ends by itself, so it and
    /// its own dependents are left out.
    fn running_dependents(&self, stops: &[Name], stopped: &BTreeSet<Name>) -> BTreeSet<&str> {
        let mut running = BTreeSet::new();
        let mut bytes_left = LIFECYCLE_BYTES_MAX;
        let mut seen = BTreeSet::new();
        let mut next = stops.to_vec();
        while let Some(needed) = next.pop() {
            for name in self.workloads.dependents.of(&needed) {
                let is_new = seen.insert(name.clone());
                if !is_new || self.ends_by_itself(name, &mut bytes_left) {
                    continue;
                }
                if !stopped.contains(name) && self.is_active(name) {
                    running.insert(&**name);
                }
                next.push(name.clone()); // Even if it does not run, its dependents may.
            }
        }
        running
    }

    /// Returns whether a workload ends with the workloads that it needs running, because it is
    /// restarted with them. `bytes_left` is what may still be read of [`LIFECYCLE_BYTES_MAX`]; when
    /// nothing is left, returns `false`.
    fn ends_by_itself(&self, name: &Name, bytes_left: &mut usize) -> bool {
        let Some(added) = self.workloads.effective.get(name) else {
            return false;
        };
        let workload = &added.workload;
        let config = &workload.runtime_config;
        match lifecycle::of_config_within(&workload.runtime, config, bytes_left) {
            Ok(Some(lifecycle)) => lifecycle.restarts_with_dependencies(),
            Ok(None) | Err(_) => false,
        }
    }

    /// Returns whether a workload runs or will run on its agent.
    fn is_active(&self, name: &Name) -> bool {
        let Some(added) = self.workloads.effective.get(name) else {
            return false;
        };
        let Some(state) = self.workloads.states.get(&added.instance) else {
            return false;
        };
        matches!(state.phase.state(), "Pending" | "Running")
    }

    /// Stops and starts workloads, so that exactly these are stopped.
    pub(crate) fn set_stopped(
        &mut self,
        stopped: BTreeSet<Name>,
        now: Instant,
        effects: &mut Effects,
    ) -> AcceptedUpdate {
        let workloads = &mut self.workloads;
        let mut changed = BTreeSet::new();
        for name in workloads.stopped.symmetric_difference(&stopped) {
            let verb = if stopped.contains(name) {
                "Stopping"
            } else {
                "Starting"
            };
            log::info!("{verb} workload '{name}' on request.");
            changed.insert(name.clone());
        }
        if changed.is_empty() {
            return AcceptedUpdate::default();
        }
        workloads.keep_placed();
        workloads.stopped = stopped;
        effects.push(Effect::Store);
        let difference = EffectiveDiff::default();
        let changes = ChangedPaths::default();
        let accepted = self.make_effective(difference, &changed, changes, now, effects);
        self.workloads.drop_placed();
        accepted
    }

    /// Takes over the workloads that an earlier server had stopped. Call it before the first
    /// update.
    pub(crate) fn restore_stopped(&mut self, stopped: BTreeSet<Name>) {
        if stopped.is_empty() {
            return;
        }
        self.workloads.keep_placed();
        self.workloads.stopped = stopped;
    }

    /// Forgets stopped workloads that do not exist any more: if one is created again, it runs. One
    /// that an open update has deleted is kept, since a rollback may restore it.
    pub(crate) fn forget_stopped(&mut self, rollouts: &Rollouts) {
        if self.workloads.stopped.is_empty() {
            return;
        }
        let Workloads {
            stopped, desired, ..
        } = &mut self.workloads;
        stopped.retain(|name| {
            desired.workloads.contains_key(name) || rollouts.open_update_of(name).is_some()
        });
        self.workloads.drop_placed();
    }

    /// The warning for users that workloads are stopped, with the command that starts them; `None`
    /// if none is stopped.
    pub(crate) fn stop_warning(&self, is_stored: bool) -> Option<String> {
        let names: Vec<&str> = self.workloads.stopped.iter().map(|name| &**name).collect();
        if names.is_empty() {
            return None;
        }
        let (first, rest) = names.split_at(names.len().min(NAMES_IN_TEXT));
        let listed = first.join("', '");
        let arguments = first.join(" ");
        let mut text = if names.len() == 1 {
            format!("workload '{listed}' is stopped until 'ank start {arguments}'")
        } else if rest.is_empty() {
            format!("workloads '{listed}' are stopped until 'ank start {arguments}'")
        } else {
            let more = rest.len();
            format!("workloads '{listed}' and {more} more are stopped until 'ank start NAME'")
        };
        if !is_stored {
            text.push_str(" or a restart of the server, which has no 'state_dir'");
        }
        Some(text)
    }
}
