//! Why a workload does not start or stop yet: which others it waits for, and their states.
//!
//! Thread: `main`, plain values. The server reports only that a workload waits; the others follow from the dependencies.

use super::error::meant;
use super::rows::{self, Row};
use super::table::one_line;
use crate::model::execution_state::{INACTIVE_PREFIX, Phase, WorkloadState};
use crate::model::modes::NOT_IN_MODE;
use crate::model::names::InstanceName;
use crate::model::node::Node;
use crate::model::workload::AddCondition;
use std::collections::{BTreeMap, BTreeSet};

/// [`Phase::PendingWaitingToStart`] as in tables.
const WAITING_TO_START: &str = "Pending(WaitingToStart)";

/// The dependencies of each workload, with their conditions, for example `ADD_COND_RUNNING`.
pub type Needs = BTreeMap<String, BTreeMap<String, String>>;

/// The states and dependencies that the reasons follow from.
#[derive(Debug, Default)]
pub struct Reasons {
    /// The states of all instances, as in tables.
    phases: BTreeMap<InstanceName, String>,
    /// The dependencies of each workload.
    needs: Needs,
    /// The same before an update: a deleted workload waits for the end of those that needed it.
    needed_before: Needs,
    /// Instances that are not relevant on their nodes, or outside of the current mode.
    inactive: BTreeSet<InstanceName>,
    /// Why instances are not scheduled, where the server reports it.
    unscheduled: BTreeMap<InstanceName, String>,
}

impl Reasons {
    /// The reasons in `state`, a complete state as far as [`rows::MASKS`], whose rows are `rows`.
    #[must_use]
    pub fn new(state: &Node, rows: &BTreeMap<InstanceName, Row>) -> Self {
        let phases = rows.iter().map(|(instance, row)| (instance.clone(), row.state.clone())).collect();
        let outside = rows.iter().filter(|(_, row)| row.info.starts_with(NOT_IN_MODE));
        let unscheduled: BTreeMap<_, _> = outside.map(|(name, row)| (name.clone(), row.info.clone())).collect();
        let inactive = rows.iter().filter(|(_, row)| row.info.starts_with(INACTIVE_PREFIX)).map(|(name, _)| name);
        let inactive = inactive.chain(unscheduled.keys()).cloned().collect();
        Self { phases, needs: needs(state), needed_before: Needs::new(), inactive, unscheduled }
    }

    /// The same after an update, with the complete state before it.
    #[must_use]
    pub fn after_update(before: &Node, state: &Node, rows: &BTreeMap<InstanceName, Row>) -> Self {
        Self { needed_before: needs(before), ..Self::new(state, rows) }
    }

    /// Applies a reported state.
    pub fn on_state(&mut self, WorkloadState { instance, state }: &WorkloadState) {
        if state.phase == Phase::Removed {
            self.phases.remove(instance);
        } else {
            self.phases.insert(instance.clone(), state.phase.to_string());
        }
        let is_outside = state.phase == Phase::NotScheduled && state.additional_info.starts_with(NOT_IN_MODE);
        if is_outside {
            self.unscheduled.insert(instance.clone(), one_line(&state.additional_info));
        } else {
            self.unscheduled.remove(instance);
        }
        if is_outside || state.is_inactive() {
            self.inactive.insert(instance.clone());
        } else {
            self.inactive.remove(instance);
        }
    }

    /// Whether a workload waits for one that is not relevant on its node or outside of the current mode, directly or not:
    /// only an update, a switch of the mode or a new start of that agent can change this.
    #[must_use]
    pub fn waits_for_inactive(&self, name: &str) -> bool {
        let (mut open, mut seen) = (vec![name], BTreeSet::new());
        while let Some(name) = open.pop() {
            for (needed, condition) in self.needs.get(name).into_iter().flatten() {
                if self.phases_of(needed).any(|phase| fulfils(phase, condition)) {
                    continue;
                }
                if self.inactive.iter().any(|instance| *instance.workload == **needed) {
                    return true;
                }
                let waits = self.phases_of(needed).any(|phase| phase == WAITING_TO_START);
                if waits && seen.insert(needed) {
                    open.push(needed);
                }
            }
        }
        false
    }

    /// The row, with what the instance waits for in its info.
    #[must_use]
    pub fn explained(&self, instance: &InstanceName, row: &Row) -> Row {
        let name = &*instance.workload;
        let waits = match row.state.as_str() {
            WAITING_TO_START => self.unmet(name),
            "Stopping(WaitingToStop)" => self.dependents(name),
            _ => Vec::new(),
        };
        let parts = std::iter::once(row.info.clone()).filter(|info| !info.is_empty()).chain(waits);
        Row { info: parts.collect::<Vec<_>>().join("; "), ..row.clone() }
    }

    /// The states of the instances of a workload.
    fn phases_of<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s str> {
        self.phases.iter().filter(move |(instance, _)| *instance.workload == *name).map(|(_, phase)| phase.as_str())
    }

    /// One text for each dependency of `name` that is not fulfilled.
    fn unmet(&self, name: &str) -> Vec<String> {
        let unmet = |(needed, condition): (&String, &String)| {
            let fulfilled = self.phases_of(needed).any(|phase| fulfils(phase, condition));
            let wanted = match condition.as_str() {
                "ADD_COND_RUNNING" => "to run",
                "ADD_COND_SUCCEEDED" => "to succeed",
                "ADD_COND_FAILED" => "to fail",
                _ => "",
            };
            let why = self.unscheduled.iter().find(|(instance, _)| *instance.workload == **needed);
            let why = why.map_or_else(String::new, |(_, info)| format!(" ({info})"));
            let phases = self.phases_of(needed).collect::<Vec<_>>().join(", ") + &why;
            let others = || self.phases.keys().map(|other| &*other.workload).filter(|other| *other != name);
            let now = match phases.is_empty() {
                true => format!("it does not exist{}", meant(needed, others())),
                false => format!("it is {phases}"),
            };
            (!fulfilled).then(|| one_line(&format!("waits for '{needed}' {wanted}, {now}")))
        };
        self.needs.get(name).into_iter().flatten().filter_map(unmet).collect()
    }

    /// One text for each workload that must end before `name` can.
    fn dependents(&self, name: &str) -> Vec<String> {
        let needed = |needs: &BTreeMap<String, String>| needs.get(name).is_some_and(|how| how == "ADD_COND_RUNNING");
        let both = self.needs.iter().chain(&self.needed_before);
        let needs_it: BTreeSet<&String> = both.filter(|(_, needs)| needed(needs)).map(|(name, _)| name).collect();
        let running = |dependent: &String| {
            let phase = self
                .phases_of(dependent)
                .find(|phase| !["Succeeded", "Failed"].iter().any(|end| phase.starts_with(end)))?;
            Some(one_line(&format!("waits for '{dependent}' to end, it is {phase}")))
        };
        needs_it.into_iter().filter_map(running).collect()
    }
}

/// The dependencies of each workload in a complete state. The effective state counts where it has a workload: the
/// agent runs that.
#[must_use]
pub fn needs(state: &Node) -> Needs {
    let mut all = Needs::new();
    for part in ["desiredState", "effectiveState"] {
        for (name, workload) in rows::entries(state.at(&[part, "workloads"])) {
            let needs = rows::entries(workload.get("dependencies"));
            let text = |(name, condition): (&str, &Node)| {
                (name.to_owned(), condition.as_text().unwrap_or_default().to_owned())
            };
            all.insert(name.to_owned(), needs.map(text).collect());
        }
    }
    all
}

/// Whether a phase, as text, fulfils a condition.
#[must_use]
pub fn fulfils(phase: &str, condition: &str) -> bool {
    let condition = AddCondition::ALL.iter().find(|known| known.as_str() == condition);
    let phase = Phase::ALL.iter().map(|row| row.0).find(|known| known.to_string() == phase);
    phase.zip(condition).is_some_and(|(phase, condition)| phase.fulfils_add(*condition))
}
