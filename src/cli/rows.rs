//! Rows of workload tables: the instances of a complete state, and why they do not start or stop
//! yet. The server reports only that a workload waits. The workloads that it waits for follow from
//! the dependencies.
//!
//! Thread: `main`, plain values.

use super::args::Format;
use super::blame::{self, Known, Starts};
use super::events;
use super::output::{Column, View, one_line, optional, some_of};
use super::top::duration;
use ankaios_model::execution_state::{ExecutionState, PARTS_SEPARATOR, Phase, WorkloadState};
use ankaios_model::lifecycle;
use ankaios_model::names::{InstanceName, hash_id, of_workload};
use ankaios_model::nearest::meant;
use ankaios_model::node::Node;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::reason::Reason;
use ankaios_model::runtime_config::image_of;
use ankaios_model::workload::{AddCondition, DeleteCondition};
use ankaios_platform::logging::utc;
use serde_yaml::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The parts of the complete state that tables of workloads need. Everything else could be large.
pub(crate) const MASKS: [&str; 8] = [
    "workloadStates",
    "agents",
    "desiredState.workloads.*.agent",
    "desiredState.workloads.*.runtime",
    "effectiveState.workloads.*.agent",
    "effectiveState.workloads.*.runtime",
    "desiredState.workloads.*.dependencies",
    "effectiveState.workloads.*.dependencies",
];

/// The cells of one instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Row {
    /// Empty if it is unknown, for example of a deleted workload.
    pub(crate) runtime: String,
    /// `None` for a phase of a newer server.
    pub(crate) phase: Option<Phase>,
    /// The text for people, for example `Running(Ok)`.
    pub(crate) state: String,
    /// The reason of the state, for decisions of programs.
    pub(crate) reason: Reason,
    /// The prepared part of its start while it waits.
    pub(crate) prepared: PrepareLevel,
    /// One line of any length.
    pub(crate) info: String,
    /// Empty if it is unknown. Only [`Reasons::add_details`] sets this and the fields below.
    pub(crate) image: String,
    pub(crate) since: Since,
    /// Number of starts after the first one.
    pub(crate) restarts: Option<Known>,
}

/// Since when an instance has its state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Since {
    /// How many milliseconds it has the state.
    pub(crate) lasting: Option<Known>,
    /// The time at which it began, as UTC; empty if it is unknown. It is computed with the clock of
    /// this machine. Only the loss of an agent has the time of the clock of the server.
    pub(crate) time: String,
}

impl Since {
    /// The begin of a state that has lasted for `lasting` milliseconds at `now`.
    fn new(lasting: Option<Known>, now: SystemTime) -> Self {
        let Some(known) = lasting else {
            return Self::default();
        };
        let begin = now.checked_sub(Duration::from_millis(known.number()));
        Self {
            lasting,
            time: utc(begin.unwrap_or(UNIX_EPOCH)),
        }
    }

    /// The key for programs. With a lower bound, the key says that the state may be older.
    pub(crate) fn key(&self) -> &'static str {
        match self.lasting {
            Some(Known::AtLeast(_)) => "sinceAtLatest",
            Some(Known::Exactly(_)) | None => "since",
        }
    }
}

impl Row {
    /// Applies a reported state.
    pub(crate) fn update(&mut self, state: &ExecutionState) {
        self.phase = Some(state.phase);
        self.state = state.phase.to_string();
        self.reason = state.reason;
        self.prepared = state.prepared;
        self.info = one_line(&state.additional_info);
    }

    /// The state, unless it is one of a newer server.
    pub(crate) fn execution_state(&self) -> Option<ExecutionState> {
        let mut state = ExecutionState::with_info(self.phase?, self.info.as_str());
        state.reason = self.reason;
        state.prepared = self.prepared;
        Some(state)
    }

    /// The time since its start; empty if it is unknown, or it does not run.
    fn age(&self) -> String {
        match self.since.lasting {
            Some(known) if self.phase == Some(Phase::Running) => {
                known.cell(&duration(known.number() as f64))
            }
            _ => String::new(),
        }
    }

    /// The column with the number of restarts.
    fn restarts_column(&self) -> Column {
        let Some(known) = self.restarts else {
            return Column::new("RESTARTS", "restarts", String::new(), Value::Null);
        };
        let key = match known {
            Known::Exactly(_) => "restarts",
            Known::AtLeast(_) => "restartsAtLeast",
        };
        let number = known.number();
        Column::new("RESTARTS", key, known.cell(&number.to_string()), number)
    }

    /// The reason of its state for programs; empty where the state says everything.
    fn reason_text(&self) -> &'static str {
        match self.reason {
            Reason::None => "",
            reason => reason.as_str(),
        }
    }

    /// The prepared part of its start for programs; empty if nothing is prepared.
    fn prepared_text(&self) -> &'static str {
        match self.prepared {
            PrepareLevel::None => "",
            level => level.as_str(),
        }
    }

    /// Returns whether it is scheduled and has not ended.
    fn may_run(&self) -> bool {
        let mut ends = ["Succeeded", "Failed", "NotScheduled"].iter();
        !ends.any(|end| self.state.starts_with(end))
    }

    /// Returns whether the phase fulfils a condition.
    pub(crate) fn fulfils(&self, condition: &str) -> bool {
        let Some(phase) = self.phase else {
            return false;
        };
        match AddCondition::parse(condition) {
            Some(condition) => phase.fulfils_add(condition),
            None => false,
        }
    }

    /// Returns whether it is stopped, not relevant on its node, outside of the current mode, or
    /// starts only after a failure of another workload.
    fn is_inactive(&self) -> bool {
        matches!(
            self.reason,
            Reason::Inactive | Reason::NotInMode | Reason::Stopped | Reason::AwaitsFailure
        )
    }

    /// Returns whether its dependencies must not stop yet.
    fn blocks_stop(&self) -> bool {
        match self.phase {
            Some(phase) => !phase.fulfils_delete(DeleteCondition::NotPendingNorRunning),
            None => false,
        }
    }
}

/// The rows of all instances below `workloadStates`.
pub(crate) fn rows(state: &Node) -> BTreeMap<InstanceName, Row> {
    let mut rows = BTreeMap::new();
    for (instance, execution_state) in instances(state.get("workloadStates")) {
        let mut row = row(execution_state);
        row.runtime = runtime(state, &instance.workload, &instance.agent);
        rows.insert(instance, row);
    }
    rows
}

/// The row of an instance with this execution state. It lacks the runtime.
fn row(state: &Node) -> Row {
    let name = text(state, &["state"]);
    let sub_state = text(state, &["subState"]);
    let info = one_line(text(state, &["additionalInfo"]));
    let Some(phase) = Phase::parse(name, sub_state) else {
        // States of a newer server are shown unchanged.
        let shown = if name == sub_state {
            name.to_owned()
        } else {
            format!("{name}({sub_state})")
        };
        return Row {
            state: shown,
            info,
            ..Row::default()
        };
    };
    // An older server sends no reason beside the text. Then the reason that the text names applies.
    let mut known = ExecutionState::from_text(phase, info);
    if let Some(reason) = Reason::parse(text(state, &["reason"])) {
        known.reason = reason;
    }
    if let Some(level) = PrepareLevel::parse(text(state, &["prepared"])) {
        known.prepared = level;
    }
    let mut row = Row::default();
    row.update(&known);
    row
}

/// The runtime of the workload called `name` on `agent`. The effective state comes first: there a
/// templated agent has its final name.
pub(crate) fn runtime(state: &Node, name: &str, agent: &str) -> String {
    for part in ["effectiveState", "desiredState"] {
        if let Some(workload) = state.at(&[part, "workloads", name])
            && text(workload, &["agent"]) == agent
        {
            return text(workload, &["runtime"]).to_owned();
        }
    }
    String::new()
}

/// The entries of a map; none when it is missing.
pub(crate) fn entries(node: Option<&Node>) -> impl Iterator<Item = (&str, &Node)> + Clone {
    node.and_then(Node::as_map).into_iter().flatten()
}

/// The keys of a map; none when it is missing.
pub(crate) fn names(node: Option<&Node>) -> impl Iterator<Item = &str> + Clone {
    entries(node).map(|(name, _)| name)
}

/// The agent of the workload called `name`; empty if the workload does not exist. The effective
/// state comes first: there a templated agent has its final name.
pub(crate) fn agent_of<'s>(state: &'s Node, name: &str) -> &'s str {
    for part in ["effectiveState", "desiredState"] {
        if let Some(agent) = state.at(&[part, "workloads", name, "agent"]) {
            return text(agent, &[]);
        }
    }
    ""
}

/// The text at `path`; empty where there is none.
pub(crate) fn text<'n>(node: &'n Node, path: &[&str]) -> &'n str {
    node.at(path).and_then(Node::as_text).unwrap_or_default()
}

/// Returns whether a workload has each of `tags` with this value.
pub(crate) fn has_tags(workload: &Node, tags: &[(String, String)]) -> bool {
    for (key, value) in tags {
        let tag = workload.at(&["tags", key]).and_then(Node::as_text);
        if tag != Some(value) {
            return false;
        }
    }
    true
}

/// The instances in a part of the state with their nodes, which are below agent, workload and id.
pub(crate) fn instances(part: Option<&Node>) -> impl Iterator<Item = (InstanceName, &Node)> {
    let mut instances = Vec::new();
    for (agent, workloads) in entries(part) {
        for (workload, ids) in entries(Some(workloads)) {
            for (id, node) in entries(Some(ids)) {
                instances.push((InstanceName::with_id(workload, id, agent), node));
            }
        }
    }
    instances.into_iter()
}

/// The view of instances, in the order of `rows`.
pub(crate) fn view<'r>(
    format: Format,
    rows: impl IntoIterator<Item = (&'r InstanceName, Row)>,
) -> View {
    // An empty list has the headings of this one.
    let blank = fields(&InstanceName::with_id("", "", ""), &Row::default());
    let mut shown = Vec::new();
    for (instance, row) in rows {
        shown.push(fields(instance, &row));
    }
    View::new(format, &blank, shown)
}

/// The columns of an instance, which are also its values for programs.
pub(crate) fn fields(instance: &InstanceName, row: &Row) -> Vec<Column> {
    let mut fields = instance_fields(instance, &row.state);
    let behind_agent = 2;
    fields.insert(
        behind_agent,
        Column::text("RUNTIME", "runtime", &row.runtime),
    );
    fields.push(Column::data("reason", optional(row.reason_text())));
    fields.push(Column::data("prepared", optional(row.prepared_text())));
    let since = optional(&row.since.time);
    fields.push(Column::new("AGE", row.since.key(), row.age(), since).wide());
    fields.push(row.restarts_column().wide());
    fields.push(Column::optional_text("IMAGE", "image", &row.image).wide());
    fields.push(Column::text("ADDITIONAL INFO", "additionalInfo", &row.info));
    fields
}

/// The first columns of all views of instances.
pub(crate) fn instance_fields(instance: &InstanceName, state: &str) -> Vec<Column> {
    // A state without a sub-state has its own name as the sub-state.
    let (name, sub_state) = state.split_once('(').unwrap_or((state, state));
    vec![
        Column::text("WORKLOAD NAME", "workload", &instance.workload),
        Column::text("AGENT", "agent", &instance.agent),
        Column::text("ID", "id", &instance.id).wide(),
        Column::new("EXECUTION STATE", "state", one_line(state), name),
        Column::data("subState", sub_state.trim_end_matches(')')),
    ]
}

// ------------------------------------------------------------ why an instance waits

/// The dependencies of each workload, with their conditions, for example `ADD_COND_RUNNING`.
pub(crate) type Needs = BTreeMap<String, BTreeMap<String, String>>;

/// The states and dependencies of all workloads, and the reasons of their waits.
#[derive(Debug, Default)]
pub(crate) struct Reasons {
    pub(crate) rows: BTreeMap<InstanceName, Row>,
    needs: Needs,
    /// Workloads that are restarted with their dependencies, so they block no stop. Empty if the
    /// configurations were not read.
    restarted: BTreeSet<String>,
    /// The dependencies before an update: a deleted workload waits for the end of its dependents.
    pub(crate) needed_before: Needs,
}

/// Workloads whose dependents block their stop.
pub(crate) struct BlockedStops<'s> {
    dependents_of: BTreeMap<&'s str, BTreeSet<&'s str>>,
    /// The dependents of all of them, sorted.
    pub(crate) dependents: Vec<&'s str>,
}

impl BlockedStops<'_> {
    /// The text for people. It ends with `remedy`, and with another remedy that always helps.
    pub(crate) fn text(&self, remedy: &str) -> String {
        let mut texts = Vec::new();
        for (name, dependents) in &self.dependents_of {
            let end = end_of(dependents.iter().copied());
            texts.push(format!("'{name}' waits for {end}"));
        }
        let text = some_of(texts.iter().map(String::as_str));
        format!("{text}: {remedy}delete or change what needs it")
    }
}

impl Reasons {
    /// The reasons in `state`, a complete state as far as [`MASKS`].
    pub(crate) fn new(state: &Node) -> Self {
        Self {
            rows: rows(state),
            needs: needs(state),
            restarted: restarted_with_dependencies(state),
            needed_before: Needs::new(),
        }
    }

    /// Adds images, times and numbers of restarts, as far as `state` has them: a complete state as
    /// far as [`DETAIL_MASKS`]. `now` is the present time.
    pub(crate) fn add_details(&mut self, state: &Node, now: SystemTime) {
        for (instance, row) in &mut self.rows {
            row.image = image(state, instance);
            if row.phase == Some(Phase::AgentDisconnected) {
                // Its start was before the loss of the agent. This state began with the loss.
                row.since.time = events::lost_at(state, &instance.agent);
            }
        }
        let Ok(starts) = Starts::of(state) else {
            return; // Not every server keeps the times of starts.
        };
        for start in &starts.all {
            let Some(row) = self.rows.get_mut(&start.instance) else {
                continue;
            };
            row.restarts = start.restarts(state);
            if row.phase != Some(Phase::AgentDisconnected) {
                let lasting = start.in_state(starts.now, state, &row.state);
                row.since = Since::new(lasting, now);
            }
        }
    }

    /// Applies a reported state. Returns whether the instance was known, or is gone now.
    pub(crate) fn on_state(&mut self, WorkloadState { instance, state }: &WorkloadState) -> bool {
        let is_known = self.rows.contains_key(instance) || state.phase == Phase::Removed;
        self.rows.entry(instance.clone()).or_default().update(state);
        is_known
    }

    /// Returns whether a workload waits, directly or not, for one that is stopped, not relevant on
    /// its node, not in the mode, or that starts only after a failure. Such a wait does not end by
    /// itself.
    pub(crate) fn waits_in_vain(&self, name: &str) -> bool {
        let mut open = vec![name];
        let mut seen = BTreeSet::new();
        while let Some(name) = open.pop() {
            for (needed, condition) in self.needs_of(name) {
                if self.is_met(needed, condition) {
                    continue;
                }
                for row in self.rows_of(needed) {
                    if row.is_inactive() {
                        return true;
                    }
                    if row.phase == Some(Phase::PendingWaitingToStart) && seen.insert(needed) {
                        open.push(needed);
                    }
                }
            }
        }
        false
    }

    /// The row of an instance. Its info names the workloads that it waits for, with their states.
    pub(crate) fn explained(&self, instance: &InstanceName) -> Row {
        let name = &*instance.workload;
        let mut row = self.rows.get(instance).cloned().unwrap_or_default();
        let waits = match row.phase {
            Some(Phase::PendingWaitingToStart) => self.unmet(name),
            Some(Phase::StoppingWaitingToStop) => Vec::from_iter(self.awaited_end(name)),
            _ => Vec::new(),
        };
        // First, the info of the agent. A part is left out if one of our texts begins with it and
        // adds the state.
        let mut parts = Vec::new();
        for part in row.info.split(PARTS_SEPARATOR) {
            let is_repeated = waits.iter().any(|text| text.starts_with(part));
            if !is_repeated {
                parts.push(part);
            }
        }
        let of_agent = parts.join(PARTS_SEPARATOR);
        // Then, our texts about workloads that the info does not name.
        let mut texts = Vec::new();
        if !of_agent.is_empty() {
            texts.push(of_agent.clone());
        }
        for text in waits {
            if !names_awaited(&of_agent, &text) {
                texts.push(text);
            }
        }
        row.info = texts.join(PARTS_SEPARATOR);
        row
    }

    /// The text about the dependents that must end before `name` can; `None` without any.
    fn awaited_end(&self, name: &str) -> Option<String> {
        let dependents = self.dependents(&BTreeSet::from([name]));
        let (_, first) = dependents.first_key_value()?;
        let end = end_of(dependents.keys().map(|(_, dependent)| *dependent));
        if dependents.len() > 1 {
            return Some(format!("waits for {end}"));
        }
        let text = format!("waits for {end}: it is {}", first.state);
        Some(one_line(&text))
    }

    /// The instances of a workload that are not removed.
    pub(crate) fn rows_of<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s Row> {
        let rows = of_workload(&self.rows, name).map(|(_, row)| row);
        rows.filter(|row| row.phase != Some(Phase::Removed))
    }

    /// The dependencies of `name` with their conditions.
    fn needs_of(&self, name: &str) -> impl Iterator<Item = (&String, &String)> {
        self.needs.get(name).into_iter().flatten()
    }

    fn is_met(&self, needed: &str, condition: &str) -> bool {
        self.rows_of(needed).any(|row| row.fulfils(condition))
    }

    /// One text for each dependency of `name` that is not fulfilled.
    pub(crate) fn unmet(&self, name: &str) -> Vec<String> {
        let mut unmet = Vec::new();
        for (needed, condition) in self.needs_of(name) {
            if self.is_met(needed, condition) {
                continue;
            }
            let wanted = match AddCondition::parse(condition) {
                Some(condition) => condition.awaited(),
                None => "to meet a condition that only a newer 'ank' knows",
            };
            let now = self.shown_state(name, needed);
            unmet.push(one_line(&format!(
                "waits for '{needed}' {wanted}: it {now}"
            )));
        }
        unmet
    }

    /// The state of the workload `needed`, for a text about `name` that needs it.
    fn shown_state(&self, name: &str, needed: &str) -> String {
        let mut states = Vec::new();
        let mut why_left_out = None;
        for row in self.rows_of(needed) {
            states.push(row.state.as_str());
            if matches!(row.reason, Reason::NotInMode | Reason::Stopped) && why_left_out.is_none() {
                why_left_out = Some(&row.info);
            }
        }
        if !states.is_empty() {
            let states = states.join(", ");
            return match why_left_out {
                Some(why) => format!("is {states} ({why})"),
                None => format!("is {states}"),
            };
        }
        // All its instances are removed, or there are none.
        let mut others = Vec::new();
        for instance in self.rows.keys() {
            if *instance.workload != *name {
                others.push(&*instance.workload);
            }
        }
        if others.contains(&needed) {
            return "has ended".to_owned();
        }
        format!("does not exist{}", meant(needed, others))
    }

    /// The workloads that need the one called `name`, with their conditions.
    pub(crate) fn users(&self, name: &str) -> Vec<(&str, &str)> {
        let mut users = Vec::new();
        for (user, needs) in &self.needs {
            if let Some(condition) = needs.get(name) {
                users.push((user.as_str(), condition.as_str()));
            }
        }
        users
    }

    /// The dependents that must end before one of `names` can stop, each with the row of an
    /// instance. A key is the name and its dependent.
    fn dependents(&self, names: &BTreeSet<&str>) -> BTreeMap<(&str, &str), &Row> {
        let mut found = BTreeMap::new();
        for (dependent, needs) in self.needs.iter().chain(&self.needed_before) {
            for (name, condition) in needs {
                if !names.contains(&**name) || condition != "ADD_COND_RUNNING" {
                    continue;
                }
                if let Some(row) = self.rows_of(dependent).find(|row| row.may_run()) {
                    found.insert((&**name, &**dependent), row);
                }
            }
        }
        found
    }

    /// The `names` whose dependents block their stop; `None` if there are none. Dependents in
    /// `ending` block nothing, since they end as well.
    pub(crate) fn blocked_stops(
        &self,
        names: &BTreeSet<&str>,
        ending: &BTreeSet<&str>,
    ) -> Option<BlockedStops<'_>> {
        let mut dependents_of: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut all = BTreeSet::new();
        for ((name, dependent), row) in self.dependents(names) {
            let ends = ending.contains(dependent) || self.restarted.contains(dependent);
            if row.blocks_stop() && !ends {
                dependents_of.entry(name).or_default().insert(dependent);
                all.insert(dependent);
            }
        }
        if dependents_of.is_empty() {
            return None;
        }
        Some(BlockedStops {
            dependents_of,
            dependents: all.into_iter().collect(),
        })
    }
}

/// Returns whether the info of an agent already names the awaited workload of `text`.
fn names_awaited(info: &str, text: &str) -> bool {
    let Some((_, behind)) = text.split_once("waits for '") else {
        return false;
    };
    let Some((name, _)) = behind.split_once('\'') else {
        return false;
    };
    info.contains(&format!("waits for '{name}'"))
}

/// The names of workloads that must end, for a text.
fn end_of<'n>(names: impl Iterator<Item = &'n str>) -> String {
    let quoted: Vec<String> = names.map(|name| format!("'{name}'")).collect();
    format!("{} to end", some_of(quoted.iter().map(String::as_str)))
}

/// The dependencies of each workload in a complete state. Those of the effective state apply where
/// it has the workload, since agents run it.
pub(crate) fn needs(state: &Node) -> Needs {
    let mut all = Needs::new();
    for part in ["desiredState", "effectiveState"] {
        for (name, workload) in entries(state.at(&[part, "workloads"])) {
            let mut needs = BTreeMap::new();
            for (needed, condition) in workload.entries("dependencies") {
                needs.insert(needed.to_owned(), text(condition, &[]).to_owned());
            }
            all.insert(name.to_owned(), needs);
        }
    }
    all
}

/// The workloads in a complete state that are restarted with their dependencies.
fn restarted_with_dependencies(state: &Node) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for part in ["desiredState", "effectiveState"] {
        for (name, _) in entries(state.at(&[part, "workloads"])) {
            if restarts_with_dependencies(state, name) {
                names.insert(name.to_owned());
            }
        }
    }
    names
}

/// Further masks, for [`restarts_with_dependencies`].
pub(crate) const CONFIG_MASKS: [&str; 2] = [
    "desiredState.workloads.*.runtimeConfig",
    "effectiveState.workloads.*.runtimeConfig",
];

/// Further masks, for [`Reasons::add_details`].
pub(crate) const DETAIL_MASKS: [&str; 4] = [
    CONFIG_MASKS[0],
    CONFIG_MASKS[1],
    blame::PART,
    events::HISTORY,
];

/// The image of an instance; empty if it is unknown. While an update replaces the instance, `state`
/// has the configuration of its successor. So the id must be that of the configuration.
fn image(state: &Node, instance: &InstanceName) -> String {
    for part in ["effectiveState", "desiredState"] {
        if let Some(workload) = state.at(&[part, "workloads", &instance.workload]) {
            let config = text(workload, &["runtimeConfig"]);
            if hash_id(config) == *instance.id {
                return image_of(config);
            }
        }
    }
    String::new()
}

/// The definition of a workload: that of the effective state, or the desired one.
pub(crate) fn definition<'s>(state: &'s Node, name: &str) -> Option<&'s Node> {
    let effective = state.at(&["effectiveState", "workloads", name]);
    effective.or_else(|| state.at(&["desiredState", "workloads", name]))
}

/// Returns whether a workload in a complete state is restarted with the dependencies that it needs
/// running.
pub(crate) fn restarts_with_dependencies(state: &Node, name: &str) -> bool {
    let Some(workload) = definition(state, name) else {
        return false;
    };
    let runtime = text(workload, &["runtime"]);
    let config = text(workload, &["runtimeConfig"]);
    match lifecycle::of_config(runtime, config) {
        Ok(Some(lifecycle)) => lifecycle.restarts_with_dependencies(),
        Ok(None) | Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::state;

    #[test]
    fn runtime_is_by_name_and_agent_from_the_effective_state_first() {
        let workload = |agent: &str, runtime: &str| {
            Node::map([(
                "w",
                Node::map([
                    ("agent", Node::text(agent)),
                    ("runtime", Node::text(runtime)),
                ]),
            )])
        };
        let part = |workloads: Node| Node::map([("workloads", workloads)]);
        let empty = Node::empty;
        for (desired, effective, runtime) in [
            (workload("A", "podman"), empty(), "podman"),
            (workload("{{agent}}", "podman"), empty(), ""),
            (
                workload("{{agent}}", "podman"),
                workload("A", "podman"),
                "podman",
            ),
            (workload("B", "podman"), workload("B", "podman"), ""),
            (workload("A", "new"), workload("A", "hooked"), "hooked"),
            (empty(), empty(), ""),
        ] {
            let mut tree = state(&[], &[("w", "1", "A", Phase::Running)]);
            let map = tree.as_map_mut().unwrap();
            map.insert("desiredState", part(desired.clone()));
            map.insert("effectiveState", part(effective.clone()));
            let rows = rows(&tree);
            assert_eq!(
                rows[&InstanceName::with_id("w", "1", "A")].runtime,
                runtime,
                "{desired:?} {effective:?}"
            );
        }
    }

    #[test]
    fn what_an_agent_says_it_waits_for_is_said_once() {
        let said = "waits for 'gate', which may not run; prepared: CREATE";
        for (text, is_said) in [
            (
                "waits for 'gate' to run: it is Pending(WaitingToStart)",
                true,
            ),
            ("waits for 'gat' to run: it does not exist", false),
            ("waits for 'web' to fail: it is Running(Ok)", false),
        ] {
            assert_eq!(names_awaited(said, text), is_said, "{text}");
        }
        let gate = InstanceName::with_id("gate", "1", "A");
        let web = InstanceName::with_id("web", "1", "A");
        let waits = |info: &str| Row {
            phase: Some(Phase::PendingWaitingToStart),
            state: "Pending(WaitingToStart)".to_owned(),
            info: info.to_owned(),
            ..Row::default()
        };
        let condition = "ADD_COND_RUNNING".to_owned();
        let needed = BTreeMap::from([
            ("gate".to_owned(), condition.clone()),
            ("other".to_owned(), condition),
        ]);
        let reasons = Reasons {
            rows: BTreeMap::from([
                (gate, waits("precondition: /x is missing")),
                (web.clone(), waits(said)),
            ]),
            needs: BTreeMap::from([("web".to_owned(), needed)]),
            restarted: BTreeSet::new(),
            needed_before: Needs::new(),
        };
        let mut reasons = reasons;
        let other = "waits for 'other' to run: it does not exist";
        let expected = format!("{said}; {other}");
        assert_eq!(reasons.explained(&web).info, expected);
        // Which dependencies are not met is said by `ank`, which knows how they are; the end of a
        // long info is cut off.
        for by_agent in ["waits for 'other' to run", "waits for 'oth", ""] {
            reasons
                .rows
                .insert(web.clone(), waits(&format!("{said}; {by_agent}")));
            assert_eq!(reasons.explained(&web).info, expected, "{by_agent}");
        }
        let gate = "waits for 'gate' to run: it is Pending(WaitingToStart)";
        for (by_agent, expected) in [
            (
                "waits for 'gate' to run; waits for 'other' to run",
                format!("{gate}; {other}"),
            ),
            (
                "prepared: INIT; waits for 'gate' to run",
                format!("prepared: INIT; {gate}; {other}"),
            ),
            (
                "waits for 'else' to fail",
                format!("waits for 'else' to fail; {gate}; {other}"),
            ),
        ] {
            reasons.rows.insert(web.clone(), waits(by_agent));
            assert_eq!(reasons.explained(&web).info, expected, "{by_agent}");
        }
    }

    // [utest->swdd~api-reasons-of-workload-states~1]
    #[test]
    fn reason_of_a_row_comes_from_the_text_only_without_a_field() {
        for (reason, info, expected) in [
            (None, "inactive: no camera", Reason::Inactive),
            (Some("INACTIVE"), "there is no camera", Reason::Inactive),
            (Some("NONE"), "inactive: no camera", Reason::None),
            (Some("77"), "inactive: no camera", Reason::Inactive),
            (None, "", Reason::None),
        ] {
            let mut texts = vec![
                ("state", "Pending"),
                ("subState", "WaitingToStart"),
                ("additionalInfo", info),
            ];
            texts.extend(reason.map(|reason| ("reason", reason)));
            let node = Node::map(texts.into_iter().map(|(key, text)| (key, Node::text(text))));
            let row = row(&node);
            assert_eq!(row.reason, expected, "{reason:?}: {info}");
            let state = row.execution_state().unwrap();
            assert_eq!((state.reason, &*state.additional_info), (expected, info));
        }
    }

    #[test]
    fn states_are_written_with_their_sub_state_if_any() {
        for (name, sub_state, expected) in [
            ("Running", "Ok", "Running(Ok)"),
            ("Pending", "WaitingToStart", "Pending(WaitingToStart)"),
            ("NotScheduled", "NotScheduled", "NotScheduled"),
            (
                "AgentDisconnected",
                "AgentDisconnected",
                "AgentDisconnected",
            ),
            ("Hibernating", "Deep", "Hibernating(Deep)"),
        ] {
            let node = Node::map([
                ("state", Node::text(name)),
                ("subState", Node::text(sub_state)),
            ]);
            assert_eq!(row(&node).state, expected);
        }
    }
}
