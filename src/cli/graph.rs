//! `ank graph`: the dependencies of workloads and whether they are met: as trees, for Graphviz, or
//! for Mermaid.
//!
//! Thread: `main`, plain functions.

use super::args::{Format, GraphArguments};
use super::blame::{self, Starts, seconds};
use super::error::{CliError, Result, meant_or};
use super::modes::{NamedMode, named};
use super::output::{Column, Output, TooWide, View, WARNING, object, one_line, value};
use super::rows::{self, MASKS};
use super::session::ServerLink;
use ankaios_model::execution_state::PARTS_SEPARATOR;
use ankaios_model::modes::{MODES_TAG, NOT_IN_MODE, mode_names};
use ankaios_model::node::Node;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::reason;
use ankaios_model::workload::AddCondition;
use serde_yaml::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The parts that the graph of a mode needs in addition.
const TAG_MASKS: [&str; 2] = [
    "desiredState.workloads.*.tags",
    "effectiveState.workloads.*.tags",
];

/// Prints the graph of all workloads, of those in a mode, or of the named ones with all that they
/// need.
pub(crate) fn print(
    GraphArguments {
        output: format,
        timing,
        mode,
        names,
    }: &GraphArguments,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<()> {
    let mut masks = MASKS.to_vec();
    masks.extend(rows::CONFIG_MASKS);
    if mode.is_some() {
        masks.extend(TAG_MASKS);
    }
    if *timing {
        masks.push(blame::PART);
    }
    masks.push(WARNING);
    let state = link.complete_state(&masks)?;
    output.warn_of_storage(&state);
    let mut graph = Graph::of(&state);
    if let Some(mode) = mode {
        graph = graph.in_mode(mode, &state)?;
    }
    let mut graph = graph.only(names)?;
    if *timing {
        graph.add_timings(&Starts::of(&state)?);
    }
    match format {
        Format::Dot => output.result(&graph.graphviz())?,
        Format::Mermaid => output.result(&graph.mermaid())?,
        format => {
            let mut view = View::new(*format, &TreeRow::default().fields(*timing), []);
            view.table.least_wanted = &["AGENT", "NEEDED", "MET", "EXECUTION STATE"];
            for row in graph.trees(names) {
                view.push_cells(&row.fields(*timing));
            }
            for (name, workload) in &graph.workloads {
                view.rows.push(graph.data(name, workload));
            }
            view.print("workloads", TooWide::Shorten, None, output)?;
        }
    }
    Ok(())
}

/// One workload.
#[derive(Debug, Default, PartialEq, Eq)]
struct GraphNode {
    agent: String,
    /// Its instances; one, except while an update replaces it.
    rows: Vec<rows::Row>,
    /// Names with the condition, for example `ADD_COND_RUNNING`.
    needs: BTreeMap<String, String>,
    /// Whether it is restarted with the dependencies that it needs running.
    restarts: bool,
    /// The time at which it was ready and the duration of its start, see [`Graph::add_timings`];
    /// empty if that is unknown.
    timing: String,
    /// The reason why it is not in the graph of a mode, shown in place of its state.
    outside: Option<String>,
}

impl GraphNode {
    /// The states of its instances, for people.
    fn state(&self) -> String {
        if let Some(outside) = &self.outside {
            return outside.clone();
        }
        let mut shown: Vec<String> = self.rows.iter().map(|row| row.state.clone()).collect();
        if shown.is_empty() {
            return "does not exist".to_owned();
        }
        // The last results of their conditions follow the states.
        for row in &self.rows {
            if is_about_condition(row) {
                shown.push(self.without_dependencies(&row.info));
            }
        }
        shown.join(", ")
    }

    /// The condition of a dependency for people, for example `running`, or `running, restarts` if
    /// the workload is restarted with the dependency.
    fn needed(&self, condition: &str) -> String {
        let needed = condition.trim_start_matches("ADD_COND_").to_lowercase();
        if self.is_restarted_with(condition) {
            format!("{needed}, restarts")
        } else {
            needed
        }
    }

    /// Returns whether the workload is restarted with a dependency that has this condition.
    fn is_restarted_with(&self, condition: &str) -> bool {
        self.restarts && condition == AddCondition::Running.as_str()
    }

    /// An additional info without the dependencies that it names: the graph has a row for each.
    fn without_dependencies(&self, info: &str) -> String {
        let mut named = BTreeSet::new();
        for (name, condition) in &self.needs {
            if let Some(condition) = AddCondition::parse(condition) {
                named.insert(reason::waits_for(name, condition));
            }
        }
        let mut parts: Vec<&str> = info.split(PARTS_SEPARATOR).collect();
        parts.retain(|part| !named.contains(*part));
        parts.join(PARTS_SEPARATOR)
    }
}

/// Returns whether the info of an instance is about the workload's `lifecycle:` block: a condition,
/// or the prepared part of its start.
fn is_about_condition(row: &rows::Row) -> bool {
    row.reason.is_of_lifecycle() || row.prepared != PrepareLevel::None
}

/// A row of a tree.
#[derive(Default)]
struct TreeRow {
    name: String,
    /// The condition on it.
    needed: String,
    /// Whether the condition is met.
    met: &'static str,
    agent: String,
    timing: String,
    state: String,
}

impl TreeRow {
    fn fields(self, has_timing: bool) -> Vec<Column> {
        let timing_heading = if has_timing { "TIMING" } else { "" };
        vec![
            cell("WORKLOAD NAME", self.name),
            cell("NEEDED", self.needed),
            cell("MET", self.met.to_owned()),
            cell("AGENT", self.agent),
            cell(timing_heading, self.timing),
            cell("EXECUTION STATE", self.state),
        ]
    }
}

fn cell(heading: &'static str, text: String) -> Column {
    Column::new(heading, "", text, Value::Null)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Graph {
    workloads: BTreeMap<String, GraphNode>,
}

impl Graph {
    fn of(state: &Node) -> Self {
        let mut graph = Self::default();
        for (name, needs) in rows::needs(state) {
            for needed in needs.keys() {
                graph.workloads.entry(needed.clone()).or_default();
            }
            let node = GraphNode {
                agent: rows::agent_of(state, &name).to_owned(),
                needs,
                restarts: rows::restarts_with_dependencies(state, &name),
                ..GraphNode::default()
            };
            graph.workloads.insert(name, node);
        }
        for (instance, row) in rows::rows(state) {
            // Also deleted workloads that still exist: others may wait for their end.
            let name = instance.workload.to_string();
            let workload = graph.workloads.entry(name).or_default();
            if workload.agent.is_empty() {
                workload.agent = instance.agent.to_string();
            }
            workload.rows.push(row);
        }
        graph
    }

    /// The part of the graph in `mode`, by the tags in `state`. Dependencies outside of the mode
    /// are in it, too, but not what they need.
    fn in_mode(mut self, mode: &str, state: &Node) -> Result<Self> {
        // First, refuse an unknown mode.
        let mut known = BTreeSet::new();
        for part in ["effectiveState", "desiredState"] {
            for NamedMode { mode, .. } in named(state, part) {
                known.insert(mode);
            }
        }
        if !known.contains(mode) {
            let hint = meant_or(mode, known, "'ank mode' lists the modes");
            return Err(CliError::input(
                format!("No workload names mode '{mode}' in its tag 'modes'."),
                hint,
            ));
        }
        // Then, mark the workloads outside of it.
        let mut needed = BTreeSet::new();
        for (name, workload) in &mut self.workloads {
            // A workload outside of the current mode has no agent in the effective state.
            if workload.agent.is_empty()
                && let Some(desired) = state.at(&["desiredState", "workloads", name])
            {
                workload.agent = rows::text(desired, &["agent"]).to_owned();
            }
            workload.outside = why_outside(name, mode, state);
            if workload.outside.is_none() {
                needed.extend(workload.needs.keys().cloned());
            } else {
                workload.needs.clear();
            }
        }
        // Finally, leave out those that no other needs.
        self.workloads
            .retain(|name, workload| workload.outside.is_none() || needed.contains(name));
        Ok(self)
    }

    /// The part of the graph with `names` and their dependencies; all of it without names.
    fn only(mut self, names: &[String]) -> Result<Self> {
        let mut wanted = BTreeSet::new();
        let mut open: Vec<String> = names.to_vec();
        CliError::check_workloads(names, self.workloads.keys().map(String::as_str))?;
        while let Some(name) = open.pop() {
            if let Some(workload) = self.workloads.get(&name)
                && wanted.insert(name)
            {
                open.extend(workload.needs.keys().cloned());
            }
        }
        if !names.is_empty() {
            self.workloads.retain(|name, _| wanted.contains(name));
        }
        Ok(self)
    }

    /// Adds the text of its start to each workload, as `@12.345 +0.678 *`: the time at which it was
    /// ready, in seconds since the boot of the server's node; the duration; and a mark if it is in
    /// the chain that was ready last.
    fn add_timings(&mut self, starts: &Starts) {
        let chain = starts.last_chain(|name| self.workloads.contains_key(name));
        let by_workload = starts.by_workload();
        for (name, workload) in &mut self.workloads {
            let Some(start) = by_workload.get(name.as_str()) else {
                continue;
            };
            let mut parts = Vec::new();
            if let Some(at) = start.done_at() {
                parts.push(format!("@{}", seconds(starts.boot + at)));
            }
            if let Some(total) = start.total() {
                parts.push(format!("+{}", seconds(total)));
            }
            if chain.contains(name.as_str()) {
                parts.push("*".to_owned());
            }
            workload.timing = parts.join(" ");
        }
    }

    /// A tree for each of `names`; without names for each workload that no other needs.
    fn trees(&self, names: &[String]) -> Vec<TreeRow> {
        let mut needed = BTreeSet::new();
        for workload in self.workloads.values() {
            needed.extend(workload.needs.keys());
        }
        let mut trees = Trees {
            graph: self,
            rows: Vec::new(),
            shown: BTreeSet::new(),
        };
        // First the roots.
        for name in self.workloads.keys() {
            let is_root = if names.is_empty() {
                !needed.contains(name)
            } else {
                names.contains(name)
            };
            if is_root {
                trees.add(name, None, "", "");
            }
        }
        // Then workloads that need each other, which have no root. Servers refuse them, but the
        // graph of any state must have all workloads.
        for left in self.workloads.keys() {
            if !trees.shown.contains(left) {
                trees.add(left, None, "", "");
            }
        }
        trees.rows
    }

    fn is_met(&self, needed: &str, condition: &str) -> bool {
        match self.workloads.get(needed) {
            Some(workload) if workload.outside.is_none() => {
                workload.rows.iter().any(|row| row.fulfils(condition))
            }
            _ => false,
        }
    }

    /// A workload for programs.
    fn data(&self, name: &str, workload: &GraphNode) -> Value {
        let mut unmet = Vec::new();
        let mut restarts_with = Vec::new();
        for (needed, condition) in &workload.needs {
            if !self.is_met(needed, condition) {
                unmet.push(needed.as_str());
            }
            if workload.is_restarted_with(condition) {
                restarts_with.push(needed.as_str());
            }
        }
        let states: Vec<&str> = workload.rows.iter().map(|row| row.state.as_str()).collect();
        let mut timing = None;
        if !workload.timing.is_empty() {
            timing = Some(&workload.timing);
        }
        object([
            ("workload", name.into()),
            ("agent", workload.agent.as_str().into()),
            ("states", states.into()),
            ("dependencies", value(Some(&workload.needs))),
            ("unmet", unmet.into()),
            ("restartsWith", restarts_with.into()),
            ("timing", value(timing)),
        ])
    }

    /// The graph for Mermaid.
    fn mermaid(&self) -> String {
        let mut text = "flowchart LR\n".to_owned();
        // Words such as `end` are reserved, so the nodes are numbered.
        let mut numbers = BTreeMap::new();
        for (number, (name, workload)) in self.workloads.iter().enumerate() {
            numbers.insert(name, number);
            let label = workload.label(name, mermaid_text, "<br/>");
            text.push_str(&format!("  n{number}[\"{label}\"]\n"));
        }
        for (name, workload) in &self.workloads {
            for (needed, condition) in &workload.needs {
                let from = numbers[name];
                let to = numbers[needed];
                let label = mermaid_text(&workload.needed(condition));
                let arrow = if self.is_met(needed, condition) {
                    "-->"
                } else {
                    "-.->"
                };
                text.push_str(&format!("  n{from} {arrow}|{label}| n{to}\n"));
            }
        }
        text
    }

    /// The graph for Graphviz.
    fn graphviz(&self) -> String {
        let mut text = "digraph workloads {\n  rankdir=LR;\n  node [shape=box];\n".to_owned();
        for (name, workload) in &self.workloads {
            let label = workload.label(name, graphviz_text, "\\n");
            let name = graphviz_text(name);
            text.push_str(&format!("  \"{name}\" [label=\"{label}\"];\n"));
        }
        for (name, workload) in &self.workloads {
            for (needed, condition) in &workload.needs {
                let from = graphviz_text(name);
                let to = graphviz_text(needed);
                let label = graphviz_text(&workload.needed(condition));
                let style = if self.is_met(needed, condition) {
                    "solid"
                } else {
                    "dashed"
                };
                text.push_str(&format!(
                    "  \"{from}\" -> \"{to}\" [label=\"{label}\", style={style}];\n"
                ));
            }
        }
        text + "}\n"
    }
}

/// The reason why a workload would not run in `mode`; `None` if it would.
fn why_outside(name: &str, mode: &str, state: &Node) -> Option<String> {
    let Some(definition) = rows::definition(state, name) else {
        // Others need it, or it is deleted and has not ended.
        return Some("does not exist".to_owned());
    };
    // Without the tag, it is in every mode.
    let tag = definition.at(&["tags", MODES_TAG])?.as_text()?;
    if mode_names(tag).any(|named| named == mode) {
        return None;
    }
    Some(format!("{NOT_IN_MODE}{mode}'"))
}

/// The dependency that leads to a row of a tree.
struct Dependency<'g> {
    user: &'g GraphNode,
    condition: &'g str,
}

/// The rows of trees that are being made.
struct Trees<'g> {
    graph: &'g Graph,
    rows: Vec<TreeRow>,
    /// The workloads whose dependencies have rows.
    shown: BTreeSet<String>,
}

impl Trees<'_> {
    /// Adds the rows of `name` and of its dependencies. `above` is the dependency that leads to it.
    /// Its own row begins with `first`, the rows below it with `rest`.
    fn add(&mut self, name: &String, above: Option<Dependency<'_>>, first: &str, rest: &str) {
        let graph = self.graph;
        let Some(workload) = graph.workloads.get(name) else {
            return;
        };
        let is_new = self.shown.insert(name.clone());
        let mut row = TreeRow {
            name: format!("{first}{}", one_line(name)),
            agent: one_line(&workload.agent),
            timing: workload.timing.clone(),
            state: workload.state(),
            ..TreeRow::default()
        };
        if let Some(Dependency { user, condition }) = above {
            row.needed = user.needed(condition);
            row.met = if graph.is_met(name, condition) {
                "yes"
            } else {
                "no"
            };
        }
        if !is_new {
            if !workload.needs.is_empty() {
                row.name.push_str(" (see above)");
            }
            self.rows.push(row);
            return;
        }
        self.rows.push(row);
        let last = workload.needs.keys().next_back();
        for (name, condition) in &workload.needs {
            let is_last = Some(name) == last;
            let corner = if is_last { "`-- " } else { "|-- " };
            let line = if is_last { "    " } else { "|   " };
            let first = format!("{rest}{corner}");
            let rest = format!("{rest}{line}");
            let dependency = Dependency {
                user: workload,
                condition,
            };
            self.add(name, Some(dependency), &first, &rest);
        }
    }
}

impl GraphNode {
    /// The lines of its node in a drawing.
    fn label(&self, name: &str, escape: fn(&str) -> String, line_end: &str) -> String {
        let mut lines = Vec::new();
        for line in [name, &self.agent, &self.state(), &self.timing] {
            if !line.is_empty() {
                lines.push(escape(line));
            }
        }
        lines.join(line_end)
    }
}

fn mermaid_text(text: &str) -> String {
    one_line(text).replace('"', "#quot;").replace('<', "#lt;")
}

fn graphviz_text(text: &str) -> String {
    one_line(text).replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blame::tests::assert_documented;
    use crate::tests::{Step, let_need, play, state};
    use ankaios_model::execution_state::Phase;
    use ankaios_model::reason::Reason;

    /// The cluster of the demo: `logger` needs `storage`, which needs `init`; `handler` waits for
    /// its failure.
    fn cluster() -> Node {
        let mut cluster = state(
            &["A", "B"],
            &[
                ("storage", "1", "A", Phase::Running),
                ("init", "1", "A", Phase::Succeeded),
                ("logger", "1", "B", Phase::PendingStarting),
                ("handler", "1", "A", Phase::PendingWaitingToStart),
                ("alone", "1", "A", Phase::Running),
            ],
        );
        for (name, needs) in [
            ("storage", &[("init", "ADD_COND_SUCCEEDED")][..]),
            (
                "logger",
                &[
                    ("gone", "ADD_COND_RUNNING"),
                    ("storage", "ADD_COND_RUNNING"),
                ],
            ),
            ("handler", &[("storage", "ADD_COND_FAILED")]),
        ] {
            let_need(&mut cluster, "desiredState", name, needs);
        }
        cluster
    }

    fn printed(names: &[&str], format: Format) -> Result<String, String> {
        print_of(cluster(), false, names, format)
    }

    fn print_of(
        state: Node,
        timing: bool,
        names: &[&str],
        format: Format,
    ) -> Result<String, String> {
        let names = names.iter().map(ToString::to_string).collect();
        let arguments = GraphArguments {
            output: format,
            timing,
            mode: None,
            names,
        };
        let played = play(None, [Step::State(state)], |server, output| {
            print(&arguments, server, output)
        });
        assert_eq!(
            played.server.reads[0].iter().any(|mask| mask == "timings"),
            timing
        );
        played
            .result
            .map(|()| played.out)
            .map_err(|error| error.to_string())
    }

    fn trimmed(text: &str) -> String {
        text.lines()
            .flat_map(|line| [line.trim_end(), "\n"])
            .collect()
    }

    #[test]
    fn trees_show_what_each_workload_needs_and_whether_it_is_met() {
        let expected = "\
WORKLOAD NAME             NEEDED      MET   AGENT   EXECUTION STATE
alone                                       A       Running(Ok)
handler                                     A       Pending(WaitingToStart)
`-- storage               failed      no    A       Running(Ok)
    `-- init              succeeded   yes   A       Succeeded(Ok)
logger                                      B       Pending(Starting)
|-- gone                  running     no            does not exist
`-- storage (see above)   running     yes   A       Running(Ok)
";
        assert_eq!(trimmed(&printed(&[], Format::Table).unwrap()), expected);
        let expected = "\
WORKLOAD NAME   NEEDED      MET   AGENT   EXECUTION STATE
storage                           A       Running(Ok)
`-- init        succeeded   yes   A       Succeeded(Ok)
";
        assert_eq!(
            trimmed(&printed(&["storage"], Format::Table).unwrap()),
            expected
        );
        let error = printed(&["storag"], Format::Table).unwrap_err();
        assert_eq!(error, "Workload name 'storag' does not exist.");
    }

    #[test]
    fn the_documentation_shows_timings_as_they_are_printed() {
        let example = blame::tests::example();
        let instances = [
            ("settings", "1", "rear", Phase::Succeeded),
            ("storage", "1", "rear", Phase::Running),
            ("updater", "1", "rear", Phase::Running),
            ("bus", "1", "rear", Phase::Running),
            ("camera", "1", "front", Phase::Running),
            ("fusion", "1", "front", Phase::Running),
            ("planner", "1", "front", Phase::Running),
            ("display", "1", "front", Phase::Running),
        ];
        let mut cluster = state(&["front", "rear"], &instances);
        for (name, needs) in rows::needs(&example) {
            let needs: Vec<(&str, &str)> = needs
                .iter()
                .map(|(name, how)| (name.as_str(), how.as_str()))
                .collect();
            let_need(&mut cluster, "desiredState", &name, &needs);
        }
        cluster.as_map_mut().unwrap().insert(
            "timings".to_owned(),
            example.get("timings").unwrap().clone(),
        );
        let text = print_of(cluster, true, &["display"], Format::Table).unwrap();
        assert_documented("WORKLOAD NAME              NEEDED", &text);
    }

    #[test]
    fn timings_show_ready_times_and_mark_the_last_chain() {
        let mut state = blame::tests::chain();
        for part in ["db", "disk", "late", "lone", "setup", "web"] {
            let place = state
                .at_mut(&["desiredState", "workloads"])
                .unwrap()
                .as_map_mut()
                .unwrap();
            let workload = place.child(part.to_owned()).as_map_mut().unwrap();
            workload.insert("agent".to_owned(), Node::text("A"));
        }
        let expected = "\
WORKLOAD NAME   NEEDED      MET   AGENT   TIMING            EXECUTION STATE
late                              A                         does not exist
lone                              A       @3.400 +0.400     does not exist
web                               A       @5.050 +2.050 *   does not exist
|-- db          running     no    A       @4.800 +1.800 *   does not exist
|   `-- disk    running     no    A       @3.520 +0.520 *   does not exist
`-- setup       succeeded   no    A       @3.300 +0.300     does not exist
";
        let text = print_of(state.clone(), true, &[], Format::Table).unwrap();
        assert_eq!(trimmed(&text), expected);
        let text = print_of(state.clone(), true, &["db"], Format::Dot).unwrap();
        assert!(
            text.contains("[label=\"db\\nA\\ndoes not exist\\n@4.800 +1.800 *\"]"),
            "{text}"
        );
        state.as_map_mut().unwrap().remove("timings");
        let error = print_of(state, true, &[], Format::Mermaid).unwrap_err();
        assert_eq!(error, "the server keeps no start times");
    }

    #[test]
    fn graph_of_a_mode_has_its_workloads_and_their_dependencies() {
        let mut cluster = cluster();
        for (name, tag) in [
            ("storage", "drive"),
            ("init", "park"),
            ("logger", "drive limp"),
            ("alone", "park"),
        ] {
            let place = ["desiredState", "workloads", name, "tags"].into_iter();
            let tags = place.fold(&mut cluster, |place, key| {
                place.as_map_mut().unwrap().child(key.to_owned())
            });
            *tags = Node::map([(MODES_TAG, Node::text(tag))]);
        }
        // Outside of the current mode it has no agent.
        let mut storage = cluster
            .at(&["desiredState", "workloads", "storage"])
            .unwrap()
            .clone();
        storage
            .as_map_mut()
            .unwrap()
            .insert("agent".to_owned(), Node::text(""));
        let part = Node::map([("workloads", Node::map([("storage", storage)]))]);
        cluster
            .as_map_mut()
            .unwrap()
            .insert("effectiveState".to_owned(), part);
        let print = |mode: &str| {
            let arguments = GraphArguments {
                output: Format::Table,
                timing: false,
                mode: Some(mode.to_owned()),
                names: Vec::new(),
            };
            let played = play(None, [Step::State(cluster.clone())], |server, output| {
                print(&arguments, server, output)
            });
            (
                played
                    .result
                    .map(|()| trimmed(&played.out))
                    .map_err(|error| (error.to_string(), error.hint())),
                played.server,
            )
        };
        let expected = "\
WORKLOAD NAME             NEEDED      MET   AGENT   EXECUTION STATE
handler                                     A       Pending(WaitingToStart)
`-- storage               failed      no    A       Running(Ok)
    `-- init              succeeded   no    A       not in mode 'drive'
logger                                      B       Pending(Starting)
|-- gone                  running     no            does not exist
`-- storage (see above)   running     yes   A       Running(Ok)
";
        let (printed, server) = print("drive");
        assert_eq!(printed.unwrap(), expected);
        assert!(server.reads[0].contains(&TAG_MASKS[1].to_owned()));
        let error = "No workload names mode 'prk' in its tag 'modes'.".to_owned();
        assert_eq!(
            print("prk").0,
            Err((error, "did you mean 'park'?".to_owned()))
        );
    }

    #[test]
    fn graphviz_and_mermaid_get_labelled_nodes_and_edges() {
        let expected = "\
digraph workloads {
  rankdir=LR;
  node [shape=box];
  \"init\" [label=\"init\\nA\\nSucceeded(Ok)\"];
  \"storage\" [label=\"storage\\nA\\nRunning(Ok)\"];
  \"storage\" -> \"init\" [label=\"succeeded\", style=solid];
}
";
        assert_eq!(printed(&["storage"], Format::Dot).unwrap(), expected);
        let expected = "\
flowchart LR
  n0[\"handler<br/>A<br/>Pending(WaitingToStart)\"]
  n1[\"init<br/>A<br/>Succeeded(Ok)\"]
  n2[\"storage<br/>A<br/>Running(Ok)\"]
  n0 -.->|failed| n2
  n2 -->|succeeded| n1
";
        assert_eq!(printed(&["handler"], Format::Mermaid).unwrap(), expected);
    }

    #[test]
    fn edges_that_restart_a_workload_are_marked() {
        let mut cluster = cluster();
        let needs = [
            ("init", "ADD_COND_SUCCEEDED"),
            ("storage", "ADD_COND_RUNNING"),
        ];
        let_need(&mut cluster, "desiredState", "logger", &needs);
        let place = cluster.at_mut(&["desiredState", "workloads", "logger"]);
        let logger = place.unwrap().as_map_mut().unwrap();
        logger.insert("runtime".to_owned(), Node::text("podman"));
        let config = "image: x\nlifecycle: { restartWith: DEPENDENCIES }";
        logger.insert("runtimeConfig".to_owned(), Node::text(config));
        let print = |format| print_of(cluster.clone(), false, &["logger"], format).unwrap();
        let expected = "\
WORKLOAD NAME                      NEEDED              MET   AGENT   EXECUTION STATE
logger                                                       B       Pending(Starting)
|-- init                           succeeded           yes   A       Succeeded(Ok)
`-- storage                        running, restarts   yes   A       Running(Ok)
    `-- init                       succeeded           yes   A       Succeeded(Ok)
";
        assert_eq!(
            trimmed(&print(Format::Table)).replace(' ', ""),
            expected.replace(' ', "")
        );
        assert!(print(Format::Dot).contains("[label=\"running, restarts\", style=solid]"));
        assert!(print(Format::Mermaid).contains("-->|running, restarts|"));
        let data = print(Format::Json);
        let data: Value = serde_yaml::from_str(&data).unwrap();
        let workloads = data["workloads"].as_sequence().unwrap();
        let logger = workloads.iter().find(|one| one["workload"] == "logger");
        let with = &logger.unwrap()["restartsWith"];
        assert_eq!(with.as_sequence().unwrap().len(), 1);
        assert_eq!(with[0], "storage");
    }

    #[test]
    fn results_of_conditions_are_shown_and_other_infos_are_not() {
        let mut state = cluster();
        for (workload, agent, info) in [
            ("storage", "A", "ready: tcp 5432 refused, attempt 7"),
            ("init", "A", "Exit code: '0'"),
            (
                "handler",
                "A",
                "prepared: INIT; waits for 'storage' to fail",
            ),
            ("logger", "B", "there is no such image, retry in 4 s"),
        ] {
            let at = ["workloadStates", agent, workload, "1"];
            let place = at.iter().fold(&mut state, |place, key| {
                place.as_map_mut().unwrap().get_mut(*key).unwrap()
            });
            place
                .as_map_mut()
                .unwrap()
                .insert("additionalInfo".to_owned(), Node::text(info));
        }
        let logger = ["workloadStates", "B", "logger", "1"];
        let place = logger.iter().fold(&mut state, |place, key| {
            place.as_map_mut().unwrap().get_mut(*key).unwrap()
        });
        let reason = Reason::PreparationFailed.as_str();
        place
            .as_map_mut()
            .unwrap()
            .insert("reason".to_owned(), Node::text(reason));
        let graph = Graph::of(&state);
        assert_eq!(
            graph.workloads["storage"].state(),
            "Running(Ok), ready: tcp 5432 refused, attempt 7"
        );
        assert_eq!(graph.workloads["init"].state(), "Succeeded(Ok)");
        assert_eq!(
            graph.workloads["handler"].state(),
            "Pending(WaitingToStart), prepared: INIT"
        );
        assert!(
            graph.workloads["logger"]
                .state()
                .ends_with(", there is no such image, retry in 4 s")
        );
    }

    #[test]
    fn a_tree_of_workloads_that_need_each_other_ends() {
        let mut graph = Graph::default();
        for (name, needs) in [("a", "b"), ("b", "a")] {
            let needs = BTreeMap::from([(needs.to_owned(), "ADD_COND_RUNNING".to_owned())]);
            graph.workloads.insert(
                name.to_owned(),
                GraphNode {
                    needs,
                    ..GraphNode::default()
                },
            );
        }
        let names: Vec<String> = graph.trees(&[]).into_iter().map(|row| row.name).collect();
        assert_eq!(names, ["a", "`-- b", "    `-- a (see above)"]);
    }
}
