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
    pub rows: BTreeMap<InstanceName, Row>,
    needs: Needs,
    /// Those before an update: a deleted workload waits for the end of those that needed it.
    needed_before: Needs,
}

impl Reasons {
    /// The reasons in `state`, a complete state as far as [`rows::MASKS`].
    pub fn new(state: &Node) -> Self {
        Self { rows: rows::rows(state), needs: needs(state), needed_before: Needs::new() }
    }

    /// The same after an update, with the complete state before it.
    pub fn after_update(before: &Node, state: &Node) -> Self {
        Self { needed_before: needs(before), ..Self::new(state) }
    }

    /// Applies a reported state. Returns whether the instance was known, or has gone.
    pub fn on_state(&mut self, WorkloadState { instance, state }: &WorkloadState) -> bool {
        let is_known = self.rows.contains_key(instance) || state.phase == Phase::Removed;
        self.rows.entry(instance.clone()).or_default().update(state);
        is_known
    }

    /// Whether a workload waits for one that is not relevant on its node or outside of the current mode, directly or not:
    /// only an update, a switch of the mode or a new start of that agent can change this.
    pub fn waits_for_inactive(&self, name: &str) -> bool {
        let (mut open, mut seen) = (vec![name], BTreeSet::new());
        while let Some(name) = open.pop() {
            for (needed, condition) in self.needs.get(name).into_iter().flatten() {
                if self.phases_of(needed).any(|phase| fulfils(phase, condition)) {
                    continue;
                }
                let is_inactive =
                    |row: &Row| row.info.starts_with(INACTIVE_PREFIX) || row.info.starts_with(NOT_IN_MODE);
                if self.rows_of(needed).any(is_inactive) {
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

    /// The row of an instance, with what it waits for in its info.
    pub fn explained(&self, instance: &InstanceName) -> Row {
        let (name, row) = (&*instance.workload, self.rows.get(instance).cloned().unwrap_or_default());
        let waits = match row.state.as_str() {
            WAITING_TO_START => self.unmet(name),
            "Stopping(WaitingToStop)" => self.dependents(name),
            _ => Vec::new(),
        };
        let parts = std::iter::once(row.info.clone()).filter(|info| !info.is_empty()).chain(waits);
        Row { info: parts.collect::<Vec<_>>().join("; "), ..row }
    }

    fn rows_of<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s Row> {
        let of_name = self.rows.iter().filter(move |(instance, _)| *instance.workload == *name);
        of_name.map(|(_, row)| row).filter(|row| row.state != "Removed")
    }

    /// The states of the instances of a workload.
    fn phases_of<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s str> {
        self.rows_of(name).map(|row| row.state.as_str())
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
            let why = self.rows_of(needed).find(|row| row.info.starts_with(NOT_IN_MODE));
            let why = why.map_or_else(String::new, |row| format!(" ({})", row.info));
            let phases = self.phases_of(needed).collect::<Vec<_>>().join(", ") + &why;
            let others = || self.rows.keys().map(|other| &*other.workload).filter(|other| *other != name);
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
pub fn fulfils(phase: &str, condition: &str) -> bool {
    let condition = AddCondition::ALL.iter().find(|known| known.as_str() == condition);
    let phase = Phase::ALL.iter().map(|row| row.0).find(|known| known.to_string() == phase);
    phase.zip(condition).is_some_and(|(phase, condition)| phase.fulfils_add(*condition))
}
