//! What an update names and does not change: whoever repeats a command, for example after it was
//! interrupted, gets the result of its workloads, and not only that nothing changed.
//!
//! Thread: `main`. Takes: the complete state, broadcast states. Gives: how it ended.

use super::trial::{ClientTrial, Earlier, effective_mask};
use super::{GUARDED_MASKS, Guarded, SERVER_CONTINUES, WaitState, wait};
use crate::error::{ExitCode, Result};
use crate::modes::PART;
use crate::rows::{self, entries, text};
use crate::session::{Accepted, Context, ServerLink};
use ankaios_model::field_path::parts;
use ankaios_model::modes::MODES_TAG;
use ankaios_model::names::InstanceName;
use ankaios_model::node::Node;
use std::collections::BTreeSet;
use std::time::Instant;

/// More workloads than this are read at once and not one by one: a read has few field masks then.
const SINGLE_READS_MAX: usize = 100;

/// An accepted update, as far as it left workloads that it names as they were.
pub(crate) struct Unchanged<'u> {
    /// What the update names.
    pub(crate) masks: &'u [String],
    /// What it changed, which has been judged already.
    pub(crate) changed: &'u Accepted,
    /// The guarded updates of what it names that were open before it.
    pub(crate) open: Vec<u64>,
    /// The guarded update that it became and that was followed.
    pub(crate) followed: Option<u64>,
    /// Whether a failure is an error in any case.
    pub(crate) rollback: bool,
}

impl Context<'_> {
    /// Waits for the workloads that an update names and does not change, and judges them as if it
    /// had started them.
    // [impl->swdd~cli-repeated-command-has-the-same-result~1]
    pub(crate) fn judge_unchanged(
        &mut self,
        unchanged: Unchanged<'_>,
        give_up: Option<Instant>,
    ) -> Result<ExitCode> {
        let Unchanged {
            masks,
            changed,
            open,
            followed,
            rollback,
        } = unchanged;
        let mut names = workloads(masks, self.link)?;
        for instance in changed.added.iter().chain(&changed.deleted) {
            names.remove(&*instance.workload);
        }
        // First the updates that the server still judges: they may change what is desired.
        for id in open {
            let mut update = Guarded {
                id,
                update: Node::empty(),
                next: self.link.now(),
            };
            update.read(self.link)?;
            if Some(update.id) == followed {
                continue;
            }
            let state = self.present(&names)?.state;
            // What ran before that update is unknown, so all that it replaced has to run again.
            let code = self.follow(&mut update, state, &Earlier::default(), give_up, false)?;
            if code != ExitCode::Success {
                return Ok(code);
            }
        }
        if names.is_empty() {
            return Ok(ExitCode::Success);
        }
        let Present {
            wanted,
            mut state,
            effective,
        } = self.present(&names)?;
        if rollback && !wanted.is_empty() {
            return self.judge_present(&wanted, state, &effective, give_up);
        }
        if state.is_settled() {
            return Ok(self.conclude(&state, true, SERVER_CONTINUES));
        }
        self.wait_until_settled(&mut state, give_up)
    }

    /// Judges `instances`, which are there already, as `ank apply --rollback` does. What was there
    /// before them is unknown, so nothing is rolled back.
    fn judge_present(
        &mut self,
        instances: &[InstanceName],
        mut state: WaitState,
        effective: &Node,
        give_up: Option<Instant>,
    ) -> Result<ExitCode> {
        let mut trial = ClientTrial::of_present(instances, &state, effective, self.link.now());
        let goal = |wait: &mut WaitState, link: &mut dyn ServerLink, states: &[_]| {
            trial.check(wait, link, states)
        };
        let reached = wait(&mut state, goal, give_up, self)?;
        let code = self.conclude(&state, reached, SERVER_CONTINUES);
        let failure = trial.failure.or_else(|| trial.kept.into_iter().next());
        let Some(why) = failure else { return Ok(code) };
        self.output.error(
            format_args!("the workloads are as the manifests say, but one failed: {why}"),
            "this command changed nothing, so it rolls nothing back; apply an earlier manifest",
        );
        Ok(ExitCode::WorkloadFailed)
    }

    /// Reads the instances of `names`.
    fn present(&mut self, names: &BTreeSet<String>) -> Result<Present> {
        let mut masks: Vec<String> = rows::MASKS
            .iter()
            .chain(&GUARDED_MASKS)
            .map(ToString::to_string)
            .collect();
        if names.len() > SINGLE_READS_MAX {
            masks.push("effectiveState.workloads".to_owned());
        } else {
            masks.extend(names.iter().map(|name| effective_mask(name)));
        }
        let now = self.read(&masks)?;
        let mut wanted = Vec::new();
        let mut unwanted = Vec::new();
        for name in names {
            let instance = desired_instance(&now, name);
            let listed = rows::instances(now.get("workloadStates")).map(|(listed, _)| listed);
            let others = listed
                .filter(|listed| *listed.workload == **name && Some(listed) != instance.as_ref());
            unwanted.extend(others);
            wanted.extend(instance);
        }
        let state = WaitState::of_present(&wanted, &unwanted, &now, self.waiting.absent());
        Ok(Present {
            wanted,
            state,
            effective: now,
        })
    }
}

/// The instances of named workloads.
struct Present {
    /// Those that are desired.
    wanted: Vec<InstanceName>,
    /// The wait for their starts, and for the ends of all others.
    state: WaitState,
    /// A complete state with their workloads as the agents get them.
    effective: Node,
}

/// The instance of a workload that is desired. `None` when the workload does not exist.
fn desired_instance(state: &Node, name: &str) -> Option<InstanceName> {
    let workload = state.at(&["effectiveState", "workloads", name])?;
    Some(InstanceName::new(
        name,
        text(workload, &["runtimeConfig"]),
        text(workload, &["agent"]),
    ))
}

/// The names of the workloads that `masks` of an update are about: named themselves, by a config
/// that they use, or by the item of the mode that switches them.
fn workloads(masks: &[String], link: &mut dyn ServerLink) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let mut configs = BTreeSet::new();
    let (mut all_workloads, mut all_configs) = (false, false);
    for mask in masks {
        match parts(mask)[..] {
            ["desiredState"] => (all_workloads, all_configs) = (true, true),
            ["desiredState", "workloads"] => all_workloads = true,
            ["desiredState", "workloads", name, ..] => _ = names.insert(name.to_owned()),
            ["desiredState", "configs"] => all_configs = true,
            ["desiredState", "configs", name, ..] => _ = configs.insert(name.to_owned()),
            _ => {}
        }
    }
    if !all_workloads && !all_configs && configs.is_empty() {
        return Ok(names);
    }
    let state = link.complete_state(&[
        PART,
        "desiredState.workloads.*.configs",
        "desiredState.workloads.*.tags",
    ])?;
    let mode_item = text(&state, &[PART, "configItem"]);
    let is_changed = |config: &str| all_configs || configs.contains(config);
    for (name, workload) in entries(state.at(&["desiredState", "workloads"])) {
        let uses_one = workload
            .entries("configs")
            .any(|(_, config)| is_changed(text(config, &[])));
        let is_switched = is_changed(mode_item) && workload.at(&["tags", MODES_TAG]).is_some();
        if all_workloads || uses_one || is_switched {
            names.insert(name.to_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests;
