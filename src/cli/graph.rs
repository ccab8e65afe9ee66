//! `ank graph`: the dependencies of workloads and whether they are met: as trees, for Graphviz, or
//! for Mermaid.
//!
//! Thread: `main`, plain functions.

use super::args::{Format, GraphArguments};
use super::blame::{self, Starts, seconds};
use super::error::{CliError, Result, meant_or};
use super::modes::named;
use super::output::{Column, Output, TooWide, View, WARNING, object, one_line, value};
use super::rows::{self, MASKS};
use super::session::ServerLink;
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::execution_state::PARTS_SEPARATOR;
use ankaios_model::modes::{MODES_TAG, NOT_IN_MODE, mode_names};
use ankaios_model::node::Node;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::reason;
use ankaios_model::workload::AddCondition;
use serde_yaml::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What is read besides for the graph of a mode.
const TAG_MASKS: [&str; 2] = [
    "desiredState.workloads.*.tags",
    "effectiveState.workloads.*.tags",
];

/// Prints the graph of all workloads, of those in a mode, or of the named ones and what they need.
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
    let of_mode = if mode.is_some() { &TAG_MASKS[..] } else { &[] };
    let masks: Vec<&str> = MASKS
        .iter()
        .chain(&rows::CONFIG_MASKS)
        .chain(of_mode)
        .copied()
        .chain(timing.then_some(blame::PART))
        .chain([WARNING])
        .collect();
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
        Format::Dot | Format::Mermaid => {
            output.result(&graph.drawing(*format == Format::Mermaid))?
        }
        format => {
            let mut view = View::new(*format, &fields(Row::default(), *timing), []);
            view.table.least_wanted = &["AGENT", "NEEDED", "MET", "EXECUTION STATE"];
            graph
                .trees(names)
                .into_iter()
                .for_each(|row| view.push_cells(&fields(row, *timing)));
            view.rows = graph
                .workloads
                .iter()
                .map(|(name, workload)| graph.data(name, workload))
                .collect();
            view.print("workloads", TooWide::Shorten, None, output)?;
        }
    }
    Ok(())
}

/// One workload.
#[derive(Debug, Default, PartialEq, Eq)]
struct Workload {
    agent: String,
    /// Its instances; one, except while an update replaces it.
    rows: Vec<rows::Row>,
    /// Names with the condition, for example `ADD_COND_RUNNING`.
    needs: BTreeMap<String, String>,
    /// It is restarted with those that it needs running.
    restarts: bool,
    /// When it was ready and how long that took, see [`Graph::add_timings`]; empty when that is
    /// unknown.
    timing: String,
    /// What is shown in place of its state: why it is not in the graph of a mode.
    outside: Option<String>,
}

impl Workload {
    fn state(&self) -> String {
        if let Some(outside) = &self.outside {
            return outside.clone();
        }
        let mut shown = Vec::from_iter(self.rows.iter().map(|row| row.state.clone()));
        if shown.is_empty() {
            return "does not exist".to_owned();
        }
        // The last results of their conditions stand behind the states.
        for row in &self.rows {
            if is_about_condition(row) {
                shown.push(self.without_dependencies(&row.info));
            }
        }
        shown.join(", ")
    }

    /// The needed state of a dependency, as people read it: `running`, `succeeded` or `failed`, and
    /// whether the workload is restarted with it.
    fn needed(&self, condition: &str) -> String {
        let needed = condition.trim_start_matches("ADD_COND_").to_lowercase();
        if self.is_restarted_with(condition) {
            format!("{needed}, restarts")
        } else {
            needed
        }
    }

    /// Whether the workload is restarted with a dependency under this condition.
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
        let parts: Vec<&str> = info
            .split(PARTS_SEPARATOR)
            .filter(|part| !named.contains(*part))
            .collect();
        parts.join(PARTS_SEPARATOR)
    }
}

/// Whether the info of an instance is about the workload's `lifecycle:` block: a condition, or how
/// far its start is prepared.
fn is_about_condition(row: &rows::Row) -> bool {
    row.reason.is_of_lifecycle() || row.prepared != PrepareLevel::None
}

/// A row of a tree: name, what of it is needed, whether that is so, agent, timing, state.
type Row = [String; 6];

fn fields(row: Row, timing: bool) -> Vec<Column> {
    let headings = [
        "WORKLOAD NAME",
        "NEEDED",
        "MET",
        "AGENT",
        if timing { "TIMING" } else { "" },
        "EXECUTION STATE",
    ];
    headings
        .into_iter()
        .zip(row)
        .map(|(heading, cell)| Column::new(heading, "", cell, Value::Null))
        .collect()
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Graph {
    workloads: BTreeMap<String, Workload>,
}

impl Graph {
    fn of(state: &Node) -> Self {
        let mut graph = Self::default();
        for (name, needs) in rows::needs(state) {
            needs
                .keys()
                .for_each(|needed| _ = graph.workloads.entry(needed.clone()).or_default());
            let agent_in = |part| state.at(&[part, "workloads", &name, "agent"]);
            let agent = agent_in("effectiveState").or_else(|| agent_in("desiredState"));
            let agent = agent.map_or("", |agent| rows::text(agent, &[])).to_owned();
            let restarts = rows::restarts_with_dependencies(state, &name);
            graph.workloads.insert(
                name,
                Workload {
                    agent,
                    needs,
                    restarts,
                    ..Workload::default()
                },
            );
        }
        for (instance, row) in rows::rows(state) {
            // Also deleted workloads that still exist: others may wait for their end.
            let workload = graph
                .workloads
                .entry(instance.workload.to_string())
                .or_default();
            if workload.agent.is_empty() {
                workload.agent = instance.agent.to_string();
            }
            workload.rows.push(row);
        }
        graph
    }

    /// The part of the graph in `mode`, by the tags in `state`: what is there would run, each on
    /// the agent that it is desired on. What is needed from outside is shown, but not what that
    /// needs.
    fn in_mode(mut self, mode: &str, state: &Node) -> Result<Self> {
        let mut known = BTreeSet::new();
        for part in ["effectiveState", "desiredState"] {
            known.extend(named(state, part).map(|(_, mode)| mode));
        }
        if !known.contains(mode) {
            let hint = meant_or(mode, known, "'ank mode' lists the modes");
            return Err(CliError::input(
                format!("No workload names mode '{mode}' in its tag 'modes'."),
                hint,
            ));
        }
        let mut needed = BTreeSet::new();
        for (name, entry) in &mut self.workloads {
            let [desired, effective] =
                ["desiredState", "effectiveState"].map(|part| state.at(&[part, "workloads", name]));
            if entry.agent.is_empty() {
                entry.agent = desired
                    .map_or("", |workload| rows::text(workload, &["agent"]))
                    .to_owned();
            }
            let Some(described) = effective.or(desired) else {
                // At most a deleted workload that still ends.
                entry.outside = Some("does not exist".to_owned());
                continue;
            };
            let tag = described.at(&["tags", MODES_TAG]).and_then(Node::as_text);
            if tag.is_none_or(|tag| mode_names(tag).any(|named| named == mode)) {
                needed.extend(entry.needs.keys().cloned());
            } else {
                entry.needs.clear();
                entry.outside = Some(format!("{NOT_IN_MODE}{mode}'"));
            }
        }
        self.workloads
            .retain(|name, workload| workload.outside.is_none() || needed.contains(name));
        Ok(self)
    }

    /// The part of the graph that `names` need; all of it without names.
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

    /// Notes when each workload was ready, in seconds since the boot of the server's node, how long
    /// that took, and which workloads are those of the chain that was ready last:
    /// `@<ready> +<total> *`.
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
    fn trees(&self, names: &[String]) -> Vec<Row> {
        let needed: BTreeSet<&String> = self
            .workloads
            .values()
            .flat_map(|workload| workload.needs.keys())
            .collect_entries();
        let (mut rows, mut shown) = (Vec::new(), BTreeSet::new());
        let is_root = |name: &String| {
            if names.is_empty() {
                !needed.contains(name)
            } else {
                names.contains(name)
            }
        };
        for root in self.workloads.keys().filter(|name| is_root(name)) {
            self.branch(root, None, ["", ""], &mut shown, &mut rows);
        }
        // Left are workloads that need each other; a server refuses these, but the tree must end
        // for any state.
        for left in self.workloads.keys() {
            if !shown.contains(left) {
                self.branch(left, None, ["", ""], &mut shown, &mut rows);
            }
        }
        rows
    }

    /// The rows of `name` and what it needs. `condition` is that of `user`, the workload of the row
    /// above. `first` stands before its name, `rest` before those of the others.
    fn branch(
        &self,
        name: &String,
        condition: Option<(&Workload, &str)>,
        [first, rest]: [&str; 2],
        shown: &mut BTreeSet<String>,
        rows: &mut Vec<Row>,
    ) {
        let Some(workload) = self.workloads.get(name) else {
            return;
        };
        let is_new = shown.insert(name.clone());
        let above = if is_new || workload.needs.is_empty() {
            ""
        } else {
            " (see above)"
        };
        let met = condition.map_or("", |(_, condition)| {
            if self.is_met(name, condition) {
                "yes"
            } else {
                "no"
            }
        });
        rows.push([
            format!("{first}{}{above}", one_line(name)),
            condition
                .map(|(user, condition)| user.needed(condition))
                .unwrap_or_default(),
            met.to_owned(),
            one_line(&workload.agent),
            workload.timing.clone(),
            workload.state(),
        ]);
        let mut needs = workload.needs.iter().filter(|_| is_new).peekable();
        while let Some((name, condition)) = needs.next() {
            let (corner, line) = if needs.peek().is_some() {
                ("|-- ", "|   ")
            } else {
                ("`-- ", "    ")
            };
            self.branch(
                name,
                Some((workload, condition)),
                [&format!("{rest}{corner}"), &format!("{rest}{line}")],
                shown,
                rows,
            );
        }
    }

    fn is_met(&self, needed: &str, condition: &str) -> bool {
        let workload = self
            .workloads
            .get(needed)
            .filter(|workload| workload.outside.is_none());
        workload.is_some_and(|workload| workload.rows.iter().any(|row| row.fulfils(condition)))
    }

    /// A workload for programs, with its dependencies as in the state and those of them that are
    /// not met, and those that it is restarted with.
    fn data(&self, name: &str, workload: &Workload) -> Value {
        let unmet = workload
            .needs
            .iter()
            .filter(|(needed, how)| !self.is_met(needed, how))
            .map(|(needed, _)| needed);
        let mut restarts_with = Vec::new();
        for (needed, condition) in &workload.needs {
            if workload.is_restarted_with(condition) {
                restarts_with.push(needed.clone());
            }
        }
        object([
            ("workload", name.into()),
            ("agent", workload.agent.as_str().into()),
            (
                "states",
                workload
                    .rows
                    .iter()
                    .map(|row| row.state.as_str())
                    .collect::<Vec<_>>()
                    .into(),
            ),
            ("dependencies", value(Some(&workload.needs))),
            ("unmet", unmet.cloned().collect::<Vec<_>>().into()),
            ("restartsWith", restarts_with.into()),
            (
                "timing",
                value(Some(&workload.timing).filter(|timing| !timing.is_empty())),
            ),
        ])
    }

    /// The graph for Mermaid, or for Graphviz.
    fn drawing(&self, mermaid: bool) -> String {
        let escaped = |text: &str| match mermaid {
            true => one_line(text).replace('"', "#quot;").replace('<', "#lt;"),
            false => one_line(text).replace('\\', "\\\\").replace('"', "\\\""),
        };
        let (begin, line_end, end) = match mermaid {
            true => ("flowchart LR\n", "<br/>", ""),
            false => (
                "digraph workloads {\n  rankdir=LR;\n  node [shape=box];\n",
                "\\n",
                "}\n",
            ),
        };
        // Mermaid reserves words such as `end`, so its nodes are numbered.
        let numbers: BTreeMap<&String, usize> = self.workloads.keys().zip(0..).collect_entries();
        let id = |name: &String| {
            if mermaid {
                format!("n{}", numbers[name])
            } else {
                format!("\"{}\"", escaped(name))
            }
        };
        let mut text = begin.to_owned();
        for (name, workload) in &self.workloads {
            let lines = [name, &workload.agent, &workload.state(), &workload.timing]
                .map(|line| escaped(line));
            let label = lines
                .iter()
                .filter(|line| !line.is_empty())
                .cloned()
                .collect::<Vec<_>>()
                .join(line_end);
            text.push_str(&match mermaid {
                true => format!("  {}[\"{label}\"]\n", id(name)),
                false => format!("  {} [label=\"{label}\"];\n", id(name)),
            });
        }
        for (name, workload) in &self.workloads {
            for (needs, condition) in &workload.needs {
                let label = escaped(&workload.needed(condition));
                let (from, to) = (id(name), id(needs));
                text.push_str(&match (mermaid, self.is_met(needs, condition)) {
                    (true, true) => format!("  {from} -->|{label}| {to}\n"),
                    (true, false) => format!("  {from} -.->|{label}| {to}\n"),
                    (false, met) => {
                        let style = if met { "solid" } else { "dashed" };
                        format!("  {from} -> {to} [label=\"{label}\", style={style}];\n")
                    }
                });
            }
        }
        text + end
    }
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
    fn timings_show_when_each_was_ready_and_mark_the_chain_that_was_last() {
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
    fn the_graph_of_a_mode_has_what_would_run_there_and_what_that_needs_from_outside() {
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
                Workload {
                    needs,
                    ..Workload::default()
                },
            );
        }
        let names: Vec<String> = graph
            .trees(&[])
            .into_iter()
            .map(|[name, ..]| name)
            .collect();
        assert_eq!(names, ["a", "`-- b", "    `-- a (see above)"]);
    }
}
