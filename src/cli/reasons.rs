//! Why a workload does not start or stop yet: which others it waits for, and what those are doing.
//!
//! Thread: `main`, plain values. The server says only that a workload waits; who for follows from the dependencies.

use super::rows::{self, Row};
use super::table::one_line;
use crate::model::execution_state::{INACTIVE_PREFIX, Phase, WorkloadState};
use crate::model::names::InstanceName;
use crate::model::node::Node;
use crate::model::workload::AddCondition;
use std::collections::{BTreeMap, BTreeSet};

/// [`Phase::PendingWaitingToStart`] as in tables.
const WAITING_TO_START: &str = "Pending(WaitingToStart)";

/// [`rows::MASKS`] and the dependencies.
pub const MASKS: [&str; 8] = [
    rows::MASKS[0],
    rows::MASKS[1],
    rows::MASKS[2],
    rows::MASKS[3],
    rows::MASKS[4],
    rows::MASKS[5],
    "desiredState.workloads.*.dependencies",
    "effectiveState.workloads.*.dependencies",
];

/// Which workload needs which other, and how.
type Needs = BTreeMap<String, BTreeMap<String, String>>;

/// What is needed to tell the reasons.
#[derive(Debug, Default)]
pub struct Reasons {
    /// What all instances are doing, as in tables.
    phases: BTreeMap<InstanceName, String>,
    /// What each workload needs to start.
    needs: Needs,
    /// The same before an update: only what is deleted still waits for the end of what needed it.
    needed_before: Needs,
    /// Instances that are not relevant on their nodes.
    inactive: BTreeSet<InstanceName>,
}

impl Reasons {
    /// The reasons in `state`, a complete state as far as [`MASKS`], whose rows are `rows`.
    #[must_use]
    pub fn new(state: &Node, rows: &BTreeMap<InstanceName, Row>) -> Self {
        let phases = rows.iter().map(|(instance, row)| (instance.clone(), row.state.clone())).collect();
        let inactive =
            rows.iter().filter(|(_, row)| row.info.starts_with(INACTIVE_PREFIX)).map(|(name, _)| name.clone());
        Self { phases, needs: needs(state), needed_before: Needs::new(), inactive: inactive.collect() }
    }

    /// Learns which workload needed which other before an update: what is deleted waits for the end of those.
    pub fn learn_old_dependencies(&mut self, before: &Node) {
        self.needed_before = needs(before);
    }

    /// Takes over a reported state.
    pub fn on_state(&mut self, WorkloadState { instance, state }: &WorkloadState) {
        if state.phase == Phase::Removed {
            self.phases.remove(instance);
        } else {
            self.phases.insert(instance.clone(), state.phase.to_string());
        }
        if state.is_inactive() {
            self.inactive.insert(instance.clone());
        } else {
            self.inactive.remove(instance);
        }
    }

    /// Whether a workload waits for one that is not relevant on its node, directly or not: only an update or a new
    /// start of that agent can change this.
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

    /// What was reported about an instance, and what it waits for.
    #[must_use]
    pub fn info(&self, instance: &InstanceName, row: &Row) -> String {
        let name = &*instance.workload;
        let waits = match row.state.as_str() {
            WAITING_TO_START => self.unmet(name),
            "Stopping(WaitingToStop)" => self.dependents(name),
            _ => Vec::new(),
        };
        let parts = std::iter::once(row.info.clone()).filter(|info| !info.is_empty()).chain(waits);
        parts.collect::<Vec<_>>().join("; ")
    }

    /// The row with all that is known.
    #[must_use]
    pub fn explained(&self, instance: &InstanceName, row: &Row) -> Row {
        Row { info: self.info(instance, row), ..row.clone() }
    }

    /// What the instances of a workload are doing.
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
            let phases = self.phases_of(needed).collect::<Vec<_>>().join(", ");
            let now = if phases.is_empty() { "it does not exist".to_owned() } else { format!("it is {phases}") };
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

/// What each workload of a complete state needs. Where the effective state has a workload, its agent goes by that.
fn needs(state: &Node) -> Needs {
    let mut all = Needs::new();
    for part in ["desiredState", "effectiveState"] {
        for (name, workload) in rows::entries(state.at(&[part, "workloads"])) {
            let needs = rows::entries(workload.get("dependencies"));
            let text = |(name, condition): (&String, &Node)| {
                (name.clone(), condition.as_text().unwrap_or_default().to_owned())
            };
            all.insert(name.clone(), needs.map(text).collect());
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
