//! Rows of workload tables: what a complete state has about each instance, and why it does not
//! start or stop yet. The server reports only that a workload waits; which others it waits for
//! follows from the dependencies.
//!
//! Thread: `main`, plain values.

use super::args::Format;
use super::output::{Column, View, one_line, some_of};
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::execution_state::{ExecutionState, PARTS_SEPARATOR, Phase, WorkloadState};
use ankaios_model::lifecycle;
use ankaios_model::names::{InstanceName, of_workload};
use ankaios_model::nearest::meant;
use ankaios_model::node::Node;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::reason::Reason;
use ankaios_model::workload::{AddCondition, DeleteCondition};
use serde_yaml::Value;
use std::collections::{BTreeMap, BTreeSet};

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
    /// Empty when it is unknown, for example of a workload that was deleted.
    pub(crate) runtime: String,
    /// `None` for one of a newer server.
    pub(crate) phase: Option<Phase>,
    /// As it is shown, for example `Running(Ok)`.
    pub(crate) state: String,
    /// Why it is in this state, where programs decide by that.
    pub(crate) reason: Reason,
    /// How far its start is prepared while it waits.
    pub(crate) prepared: PrepareLevel,
    /// One line of any length.
    pub(crate) info: String,
    /// How long it has been running; empty when that is unknown.
    pub(crate) age: String,
    /// How often it was started after the first time; empty when that is unknown.
    pub(crate) restarts: String,
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

    /// Whether it has not ended, and is not left out.
    fn may_run(&self) -> bool {
        let mut ends = ["Succeeded", "Failed", "NotScheduled"].iter();
        !ends.any(|end| self.state.starts_with(end))
    }

    /// Whether the phase fulfils a condition.
    pub(crate) fn fulfils(&self, condition: &str) -> bool {
        let both = self.phase.zip(AddCondition::parse(condition));
        both.is_some_and(|(phase, condition)| phase.fulfils_add(condition))
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
    // A server without reasons sends only the text.
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

/// The text at `path`; empty where there is none.
pub(crate) fn text<'n>(node: &'n Node, path: &[&str]) -> &'n str {
    node.at(path).and_then(Node::as_text).unwrap_or_default()
}

/// Whether a workload has each of `tags` with this value.
pub(crate) fn has_tags(workload: &Node, tags: &[(String, String)]) -> bool {
    for (key, value) in tags {
        let tag = workload.at(&["tags", key]).and_then(Node::as_text);
        if tag != Some(value) {
            return false;
        }
    }
    true
}

/// What a part of the state has about each instance, below agent, workload and id.
pub(crate) fn instances(part: Option<&Node>) -> impl Iterator<Item = (InstanceName, &Node)> {
    entries(part).flat_map(|(agent, workloads)| {
        entries(Some(workloads)).flat_map(move |(workload, ids)| {
            entries(Some(ids))
                .map(move |(id, node)| (InstanceName::with_id(workload, id, agent), node))
        })
    })
}

/// What is shown of instances, in the order of `rows`.
pub(crate) fn view<'r>(
    format: Format,
    rows: impl IntoIterator<Item = (&'r InstanceName, Row)>,
) -> View {
    let blank = fields(&InstanceName::with_id("", "", ""), &Row::default());
    View::new(
        format,
        &blank,
        rows.into_iter()
            .map(|(instance, row)| fields(instance, &row)),
    )
}

fn fields(instance: &InstanceName, row: &Row) -> Vec<Column> {
    let mut fields = instance_fields(instance, &row.state);
    fields.insert(2, Column::text("RUNTIME", "runtime", &row.runtime));
    fields.push(Column::new("AGE", "", row.age.clone(), Value::Null).wide());
    fields.push(Column::new("RESTARTS", "", row.restarts.clone(), Value::Null).wide());
    fields.push(Column::text("ADDITIONAL INFO", "additionalInfo", &row.info));
    fields
}

/// The first columns of all views of instances.
pub(crate) fn instance_fields(instance: &InstanceName, state: &str) -> Vec<Column> {
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

/// The states and dependencies that the reasons follow from.
#[derive(Debug, Default)]
pub(crate) struct Reasons {
    pub(crate) rows: BTreeMap<InstanceName, Row>,
    needs: Needs,
    /// Workloads that are restarted with those that they need, so far as their configurations are
    /// in the state: they end by themselves.
    restarted: BTreeSet<String>,
    /// Those before an update: a deleted workload waits for the end of those that needed it.
    pub(crate) needed_before: Needs,
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

    /// Applies a reported state. Returns whether the instance was known, or has gone.
    pub(crate) fn on_state(&mut self, WorkloadState { instance, state }: &WorkloadState) -> bool {
        let is_known = self.rows.contains_key(instance) || state.phase == Phase::Removed;
        self.rows.entry(instance.clone()).or_default().update(state);
        is_known
    }

    /// Whether a workload waits for one that is stopped, not relevant on its node or outside of the
    /// current mode, directly or not: only a client or a new start of that agent can change this.
    pub(crate) fn waits_for_inactive(&self, name: &str) -> bool {
        let mut open = vec![name];
        let mut seen = BTreeSet::new();
        while let Some(name) = open.pop() {
            for (needed, condition) in self.needs.get(name).into_iter().flatten() {
                if self.rows_of(needed).any(|row| row.fulfils(condition)) {
                    continue;
                }
                let is_inactive = |row: &Row| {
                    matches!(
                        row.reason,
                        Reason::Inactive | Reason::NotInMode | Reason::Stopped
                    )
                };
                if self.rows_of(needed).any(is_inactive) {
                    return true;
                }
                let waits = self
                    .rows_of(needed)
                    .any(|row| row.phase == Some(Phase::PendingWaitingToStart));
                if waits && seen.insert(needed) {
                    open.push(needed);
                }
            }
        }
        false
    }

    /// The row of an instance, with what it waits for in its info.
    pub(crate) fn explained(&self, instance: &InstanceName) -> Row {
        let name = &*instance.workload;
        let row = self.rows.get(instance).cloned().unwrap_or_default();
        let mut waits = match row.phase {
            Some(Phase::PendingWaitingToStart) => self.unmet(name),
            Some(Phase::StoppingWaitingToStop) => {
                let dependents = Vec::from_iter(self.dependents(&BTreeSet::from([name])));
                let end = end_of(dependents.iter().map(|((_, name), _)| *name));
                match dependents[..] {
                    [] => Vec::new(),
                    [(_, row)] => vec![one_line(&format!("waits for {end}: it is {}", row.state))],
                    _ => vec![format!("waits for {end}")],
                }
            }
            _ => Vec::new(),
        };
        // Its agent names what it waits for as well, but not how that is.
        let mut parts: Vec<&str> = row.info.split(PARTS_SEPARATOR).collect();
        parts.retain(|part| !waits.iter().any(|text| text.starts_with(part)));
        let said = parts.join(PARTS_SEPARATOR);
        waits.retain(|text| !says_whom(&said, text));
        if !said.is_empty() {
            waits.insert(0, said);
        }
        Row {
            info: waits.join(PARTS_SEPARATOR),
            ..row
        }
    }

    /// The instances of a workload that are not removed.
    pub(crate) fn rows_of<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s Row> {
        of_workload(&self.rows, name)
            .map(|(_, row)| row)
            .filter(|row| row.phase != Some(Phase::Removed))
    }

    /// One text for each dependency of `name` that is not fulfilled.
    pub(crate) fn unmet(&self, name: &str) -> Vec<String> {
        let mut unmet = Vec::new();
        for (needed, condition) in self.needs.get(name).into_iter().flatten() {
            if self.rows_of(needed).any(|row| row.fulfils(condition)) {
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

    /// How the workload is that `name` needs.
    fn shown_state(&self, name: &str, needed: &str) -> String {
        let states = Vec::from_iter(self.rows_of(needed).map(|row| row.state.as_str()));
        if !states.is_empty() {
            let mut shown = format!("is {}", states.join(", "));
            let mut rows = self.rows_of(needed);
            let is_left_out =
                |row: &&Row| matches!(row.reason, Reason::NotInMode | Reason::Stopped);
            if let Some(row) = rows.find(is_left_out) {
                shown.push_str(&format!(" ({})", row.info));
            }
            return shown;
        }
        let others = self.rows.keys().map(|other| &*other.workload);
        let mut others = others.filter(|other| *other != name);
        if others.clone().any(|other| other == needed) {
            return "has ended".to_owned();
        }
        format!("does not exist{}", meant(needed, others.by_ref()))
    }

    /// The workloads that need the one called `name`, with their conditions.
    pub(crate) fn users<'s>(&'s self, name: &'s str) -> impl Iterator<Item = (&'s str, &'s str)> {
        self.needs.iter().filter_map(move |(user, needs)| {
            let condition = needs.get(name)?;
            Some((user.as_str(), condition.as_str()))
        })
    }

    /// The workloads that must end before one of `names` can, each after that name.
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

    /// That some of `names` wait for workloads which go on, and what to do: the `remedy` for these,
    /// or another update. What is in `ending` ends anyway.
    pub(crate) fn held_up(
        &self,
        names: &BTreeSet<&str>,
        ending: &BTreeSet<&str>,
        remedy: impl FnOnce(String) -> String,
    ) -> Option<String> {
        let mut held: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut holders = BTreeSet::new();
        for ((name, dependent), row) in self.dependents(names) {
            let holds = row
                .phase
                .is_some_and(|phase| !phase.fulfils_delete(DeleteCondition::NotPendingNorRunning));
            let ends = ending.contains(dependent) || self.restarted.contains(dependent);
            if holds && !ends {
                held.entry(name).or_default().insert(dependent);
                holders.insert(dependent);
            }
        }
        if held.is_empty() {
            return None;
        }
        let mut texts = Vec::new();
        for (name, dependents) in held {
            texts.push(format!(
                "'{name}' waits for {}",
                end_of(dependents.into_iter())
            ));
        }
        let text = some_of(texts.iter().map(String::as_str));
        let remedy = remedy(Vec::from_iter(holders).join(" "));
        Some(format!("{text}: {remedy}delete or change what needs it"))
    }
}

/// Whether the info of an agent says already that it waits for the workload that `text` is about.
fn says_whom(info: &str, text: &str) -> bool {
    let Some(begin) = text.find("waits for '") else {
        return false;
    };
    let name_at = begin + "waits for '".len();
    let Some(length) = text[name_at..].find('\'') else {
        return false;
    };
    info.contains(&text[begin..=name_at + length])
}

/// What is waited for when these workloads must end.
fn end_of<'n>(names: impl Iterator<Item = &'n str>) -> String {
    let quoted: Vec<String> = names.map(|name| format!("'{name}'")).collect();
    format!("{} to end", some_of(quoted.iter().map(String::as_str)))
}

/// The dependencies of each workload in a complete state. The effective state counts where it has a
/// workload: the agent runs that.
pub(crate) fn needs(state: &Node) -> Needs {
    let mut all = Needs::new();
    for part in ["desiredState", "effectiveState"] {
        for (name, workload) in entries(state.at(&[part, "workloads"])) {
            let needs = workload.entries("dependencies");
            let text = |(name, condition): (&str, &Node)| {
                (name.to_owned(), text(condition, &[]).to_owned())
            };
            all.insert(name.to_owned(), needs.map(text).collect_entries());
        }
    }
    all
}

/// The workloads in a complete state that are restarted with those that they need.
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

/// Whether a workload in a complete state is restarted with those that it needs running. As for
/// [`needs`], the effective state counts where it has the workload.
pub(crate) fn restarts_with_dependencies(state: &Node, name: &str) -> bool {
    let of = |part| state.at(&[part, "workloads", name]);
    let Some(workload) = of("effectiveState").or_else(|| of("desiredState")) else {
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
    fn the_runtime_belongs_to_name_and_agent_and_the_effective_state_comes_first() {
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
            assert_eq!(says_whom(said, text), is_said, "{text}");
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
    fn states_are_written_with_their_sub_state_unless_they_have_none() {
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
