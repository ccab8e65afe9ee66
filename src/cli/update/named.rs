//! Workloads that an update names and does not change: a repeated command, for example after it was
//! interrupted, returns the result of its workloads, and not only that nothing changed.
//!
//! Thread: `main`. Takes: the complete state, broadcast states. Gives: the exit code.

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

/// Most workloads that a read names one by one. For more it reads all, so that it has few masks.
const SINGLE_READS_MAX: usize = 100;

/// An accepted update with workloads that it names and did not change.
pub(crate) struct Unchanged<'u> {
    pub(crate) masks: &'u [String],
    /// Its changes, whose result is known already.
    pub(crate) changed: &'u Accepted,
    /// The guarded updates of the same objects that were open before it.
    pub(crate) open: Vec<u64>,
    /// The guarded update that it became and that was followed.
    pub(crate) followed: Option<u64>,
    /// Whether a failure is an error in any case.
    pub(crate) rollback: bool,
}

impl Context<'_> {
    /// Waits for the workloads that an update names and does not change. Evaluates them as if the
    /// update had started them.
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
        // First wait for open updates: they may change the desired state.
        for id in open {
            let mut update = Guarded {
                id,
                update: Node::empty(),
                next: self.link.now(),
            };
            update.read(self.link)?;
            if Some(update.id) == followed {
                continue; // This command has followed it to its end already.
            }
            let state = self.present(&names)?.state;
            // After a rollback all must run again, since it is unknown which of them ran before.
            let code = self.follow(&mut update, state, &Earlier::default(), give_up, false)?;
            if code != ExitCode::Success {
                return Ok(code);
            }
        }
        if names.is_empty() {
            return Ok(ExitCode::Success);
        }
        // Then wait for the workloads.
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

    /// Evaluates existing `instances` as `ank apply --rollback` does. The instances before them are
    /// unknown, so nothing is rolled back.
    fn judge_present(
        &mut self,
        instances: &[InstanceName],
        mut state: WaitState,
        effective: &Node,
        give_up: Option<Instant>,
    ) -> Result<ExitCode> {
        let mut trial = ClientTrial::of_present(instances, &state, effective, self.link.now());
        let reached = wait(
            &mut state,
            |wait, link, states| trial.check(wait, link, states),
            give_up,
            self,
        )?;
        let code = self.conclude(&state, reached, SERVER_CONTINUES);
        let Some(why) = trial.failure.as_ref().or(trial.kept.first()) else {
            return Ok(code);
        };
        self.output.error(
            format_args!("the workloads are as the manifests say, but one failed: {why}"),
            "this command changed nothing, so it rolls nothing back; apply an earlier manifest",
        );
        Ok(ExitCode::WorkloadFailed)
    }

    /// Reads the instances of `names`.
    fn present(&mut self, names: &BTreeSet<String>) -> Result<Present> {
        let mut masks: Vec<String> = rows::MASKS.map(str::to_owned).to_vec();
        masks.extend(GUARDED_MASKS.map(str::to_owned));
        if names.len() > SINGLE_READS_MAX {
            masks.push("effectiveState.workloads".to_owned());
        } else {
            masks.extend(names.iter().map(|name| effective_mask(name)));
        }
        let now = self.read(&masks)?;
        let mut wanted = Vec::new();
        let mut unwanted = Vec::new();
        for name in names {
            let desired = desired_instance(&now, name);
            for (listed, _) in rows::instances(now.get("workloadStates")) {
                if *listed.workload == **name && Some(&listed) != desired.as_ref() {
                    unwanted.push(listed);
                }
            }
            wanted.extend(desired);
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
    /// The desired instances.
    wanted: Vec<InstanceName>,
    /// The wait for the starts of the desired instances, and for the ends of all other instances.
    state: WaitState,
    /// A complete state with their workloads as the agents get them.
    effective: Node,
}

/// The desired instance of a workload; `None` if the workload does not exist.
fn desired_instance(state: &Node, name: &str) -> Option<InstanceName> {
    let workload = state.at(&["effectiveState", "workloads", name])?;
    Some(InstanceName::new(
        name,
        text(workload, &["runtimeConfig"]),
        text(workload, &["agent"]),
    ))
}

/// The names of the workloads that `masks` of an update concern: by their names, by a config that
/// they use, or by the item of the mode that switches them.
fn workloads(masks: &[String], link: &mut dyn ServerLink) -> Result<BTreeSet<String>> {
    // First read the masks.
    let mut names = BTreeSet::new();
    let mut configs = BTreeSet::new();
    let mut all_workloads = false;
    let mut all_configs = false;
    for mask in masks {
        match parts(mask)[..] {
            ["desiredState"] => {
                all_workloads = true;
                all_configs = true;
            }
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
    // Then the workloads that use one of the configs.
    let mode_item = text(&state, &[PART, "configItem"]);
    let switches_mode = all_configs || configs.contains(mode_item);
    for (name, workload) in entries(state.at(&["desiredState", "workloads"])) {
        let mut uses_one = false;
        for (_, config) in workload.entries("configs") {
            uses_one |= all_configs || configs.contains(text(config, &[]));
        }
        let is_switched = switches_mode && workload.at(&["tags", MODES_TAG]).is_some();
        if all_workloads || uses_one || is_switched {
            names.insert(name.to_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests;
