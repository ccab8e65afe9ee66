//! `ank top`: what workloads and nodes use, from two samples of each agent.
//!
//! Thread: `main`. Takes: complete states with samples. Gives: a table, or JSON, once or again and again.

use super::args::{SortKey, TopArguments, TopFormat, WorkloadArguments};
use super::error::CliError;
use super::get::shorten;
use super::live::LiveFrames;
use super::output::Output;
use super::rows::{self, Row, entries};
use super::session::ServerLink;
use super::state_output::timestamp;
use super::table::{Table, TooWide, one_line};
use crate::limits::{TOP_INTERVAL_FIRST, TOP_INTERVAL_WATCH};
use crate::model::names::InstanceName;
use crate::model::node::Node;
use crate::model::usage::DISCONNECTED;
use crate::platform::clock::Clock;
use serde::Serialize;
use serde_json::{Map, Value};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

/// What is shown for an unknown value.
const UNKNOWN: &str = "-";

/// The command.
pub struct Top<'a> {
    /// What is shown, and how.
    pub arguments: &'a TopArguments,
    /// The time of each document.
    pub now: fn() -> SystemTime,
}

/// What one row shows; `None` is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Values {
    /// Percent of one core.
    cpu: Option<f64>,
    /// Bytes, without the page cache that can be taken back at once.
    memory: Option<u64>,
    /// Bytes, with it.
    peak: Option<u64>,
    pids: Option<u64>,
    restarts: Option<u64>,
    /// Milliseconds.
    uptime: Option<u64>,
}

/// A workload instance that is assigned to an agent.
struct Line<'s> {
    instance: &'s InstanceName,
    row: &'s Row,
    /// What its agent has sent.
    usage: Option<&'s Node>,
    values: Values,
}

#[derive(Serialize)]
struct Document<'s> {
    time: String,
    agents: BTreeMap<&'s str, Map<String, Value>>,
    workloads: Vec<WorkloadDocument<'s>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WorkloadDocument<'s> {
    workload: &'s str,
    agent: &'s str,
    id: &'s str,
    state: &'s str,
    sub_state: &'s str,
    #[serde(flatten)]
    values: Map<String, Value>,
}

impl Top<'_> {
    /// Reads samples and shows the last one, and the shares since the one before; with `--watch` until the connection ends.
    ///
    /// # Errors
    /// No response, a server without samples, or standard output cannot be written.
    pub fn show(
        &self,
        link: &mut impl ServerLink,
        clock: &impl Clock,
        output: &mut Output<'_>,
    ) -> Result<(), CliError> {
        let usual = if self.arguments.watch { TOP_INTERVAL_WATCH } else { TOP_INTERVAL_FIRST };
        let interval = self.arguments.interval.unwrap_or(usual);
        let mut before = self.read(link)?;
        self.filter().warn_of_unknown(&before, &rows::rows(&before), output);
        let mut frames = LiveFrames::default();
        let mut warned = BTreeSet::new();
        self.warn_of_missing(&before, &mut warned, output); // Without it there are no shares.
        // Whoever watches sees something soon, however long the interval is.
        let mut pause = if self.arguments.watch { interval.min(TOP_INTERVAL_FIRST) } else { interval };
        loop {
            let until = clock.now() + pause;
            while link.next_states(Some(until))?.is_some() {}
            let state = self.read(link)?;
            if self.warn_of_missing(&state, &mut warned, output) {
                frames = LiveFrames::default(); // The next frame begins below the warnings.
            }
            self.print(&before, &state, &mut frames, output)?;
            if !self.arguments.watch {
                return Ok(());
            }
            (before, pause) = (state, interval);
        }
    }

    /// The rows that are wanted.
    fn filter(&self) -> WorkloadArguments {
        let TopArguments { agent, names, watch, .. } = self.arguments;
        WorkloadArguments { agent: agent.clone(), names: names.clone(), watch: *watch, state: None }
    }

    fn read(&self, link: &mut impl ServerLink) -> Result<Node, CliError> {
        // One agent alone need not wait for the others.
        let named = self.arguments.agent.as_ref().filter(|agent| !agent.is_empty() && !agent.contains(['.', '*']));
        let usage = named.map_or_else(|| "usage".to_owned(), |agent| format!("usage.{agent}"));
        let state = link.complete_state(&[usage.as_str(), "workloadStates", "agents"])?;
        if state.get("usage").is_none() {
            let hint = "it is an older server, or one of Eclipse Ankaios; 'ank get agents' shows the load of the nodes";
            let text = "The server cannot tell what workloads use.".to_owned();
            return Err(CliError::Start { text, hint: Some(hint.to_owned()) });
        }
        Ok(state)
    }

    fn is_shown(&self, agent: &str) -> bool {
        self.arguments.agent.as_ref().is_none_or(|wanted| wanted == agent)
    }

    /// Warns about agents without a sample, once for each reason; also those that are not connected but have workloads.
    /// Returns whether it did.
    fn warn_of_missing(&self, state: &Node, warned: &mut BTreeSet<(String, String)>, output: &mut Output<'_>) -> bool {
        let before = warned.len();
        let missing = entries(state.get("usage"))
            .filter_map(|(agent, usage)| Some((agent, usage.get("missing").and_then(Node::as_text)?)));
        let away = entries(state.get("workloadStates"))
            .filter(|(agent, workloads)| !workloads.is_empty_container() && state.at(&["agents", agent]).is_none());
        for (agent, reason) in missing.chain(away.map(|(agent, _)| (agent, DISCONNECTED))) {
            if !agent.is_empty() && self.is_shown(agent) && warned.insert((agent.to_owned(), reason.to_owned())) {
                output.warn(format_args!("what agent '{agent}' uses is unknown: {reason}"));
            }
        }
        warned.len() > before
    }

    fn print(
        &self,
        before: &Node,
        state: &Node,
        frames: &mut LiveFrames,
        output: &mut Output<'_>,
    ) -> Result<(), CliError> {
        let rows = rows::rows(state);
        let lines = self.lines(before, state, &rows);
        if self.arguments.output == TopFormat::Json {
            return Ok(output.result(&self.json(before, state, &lines))?);
        }
        let table = self.table(before, state, &lines);
        if !self.arguments.watch {
            return Ok(output.result(&table.text(output.width(), TooWide::Cut))?);
        }
        let mut lines = table.lines(output.width(), TooWide::Cut);
        if let Some((_, height)) = output.terminal() {
            shorten(&mut lines, height.saturating_sub(1)); // The cursor stands below.
        }
        Ok(frames.show(lines, output)?)
    }

    /// The instances that are shown, in their order.
    fn lines<'s>(&self, before: &Node, state: &'s Node, rows: &'s BTreeMap<InstanceName, Row>) -> Vec<Line<'s>> {
        let filter = self.filter();
        let shown = rows.iter().filter(|(one, row)| !one.agent.is_empty() && filter.accepts(one, row));
        let line = |(instance, row): (&'s InstanceName, &'s Row)| {
            let path = ["usage", &*instance.agent, "workloads", &*instance.workload, &*instance.id];
            let usage = state.at(&path);
            let elapsed = elapsed(before, state, &instance.agent);
            Line { instance, row, usage, values: Values::of_workload(before.at(&path), usage, elapsed) }
        };
        let mut lines: Vec<Line<'s>> = shown.map(line).collect();
        lines.sort_by(|one, other| self.order(one, other)); // Those that are equal stay sorted by name.
        lines
    }

    fn order(&self, one: &Line<'_>, other: &Line<'_>) -> Ordering {
        let (one, other) = (&one.values, &other.values);
        // Highest first; an unknown value is lower than any other.
        match self.arguments.sort {
            SortKey::Cpu => other.cpu.unwrap_or(-1.0).total_cmp(&one.cpu.unwrap_or(-1.0)),
            SortKey::Memory => other.memory.cmp(&one.memory),
            SortKey::Peak => other.peak.cmp(&one.peak),
            SortKey::Pids => other.pids.cmp(&one.pids),
            SortKey::Restarts => other.restarts.cmp(&one.restarts),
            SortKey::Uptime => other.uptime.cmp(&one.uptime),
            SortKey::Name => Ordering::Equal,
        }
    }

    fn table(&self, before: &Node, state: &Node, lines: &[Line<'_>]) -> Table<9> {
        let of_line = |line: &Line<'_>| {
            cells(&one_line(&line.instance.workload), &one_line(&line.instance.agent), &line.row.state, &line.values)
        };
        let mut rows: Vec<[String; 9]> = lines.iter().map(of_line).collect();
        if self.arguments.names.is_empty() {
            for agent in entries(state.get("agents")).map(|(name, _)| name).filter(|name| self.is_shown(name)) {
                let own = lines.iter().filter(|line| *line.instance.agent == *agent).map(|line| line.values);
                rows.push(cells("(workloads)", &one_line(agent), "", &Values::sum(own)));
                rows.push(cells("(node)", &one_line(agent), "", &Values::of_node(before, state, agent)));
            }
        }
        let headings =
            ["WORKLOAD NAME", "AGENT", "EXECUTION STATE", "CPU", "MEMORY", "PEAK", "PIDS", "RESTARTS", "UPTIME"];
        Table { headings, rows }
    }

    fn json(&self, before: &Node, state: &Node, lines: &[Line<'_>]) -> String {
        let agents = entries(state.get("usage")).filter(|(agent, _)| self.is_shown(agent));
        let agent = |(name, usage): (&'_ str, &'_ Node)| {
            let mut values = known(Some(usage));
            values.extend(known(usage.get("node")));
            with_percent(values, Values::of_node(before, state, name).cpu)
        };
        let document = Document {
            time: timestamp((self.now)()),
            agents: agents.map(|entry| (entry.0, agent(entry))).collect(),
            workloads: lines.iter().map(|line| line.document(state)).collect(),
        };
        let text = if self.arguments.watch { serde_json::to_string } else { serde_json::to_string_pretty };
        text(&document).unwrap_or_default() + "\n" // Texts and numbers always become JSON.
    }
}

impl<'s> Line<'s> {
    fn document(&self, state: &'s Node) -> WorkloadDocument<'s> {
        let Self { instance, usage, values, .. } = self;
        let path = ["workloadStates", &*instance.agent, &*instance.workload, &*instance.id];
        let text = |key: &str| state.at(&path).and_then(|one| one.get(key)?.as_text()).unwrap_or_default();
        WorkloadDocument {
            workload: &instance.workload,
            agent: &instance.agent,
            id: &instance.id,
            state: text("state"),
            sub_state: text("subState"),
            values: with_percent(known(*usage), values.cpu),
        }
    }
}

/// The numbers and texts of a map.
fn known(node: Option<&Node>) -> Map<String, Value> {
    let value = |node: &Node| node.as_number().map(Value::from).or_else(|| node.as_text().map(Value::from));
    entries(node).filter_map(|(key, node)| Some((key.to_owned(), value(node)?))).collect()
}

/// Adds the share of the CPU, with one digit as in the table.
fn with_percent(mut values: Map<String, Value>, cpu: Option<f64>) -> Map<String, Value> {
    values.extend(cpu.map(|percent| ("cpuPercent".to_owned(), Value::from((percent * 10.0).round() / 10.0))));
    values
}

fn number(node: Option<&Node>, key: &str) -> Option<u64> {
    node?.get(key)?.as_number()
}

/// Microseconds between two samples of an agent.
fn elapsed(before: &Node, state: &Node, agent: &str) -> Option<u64> {
    let sampled = |state: &Node| number(state.at(&["usage", agent]), "sampledUsec");
    sampled(state)?.checked_sub(sampled(before)?).filter(|elapsed| *elapsed > 0)
}

#[allow(clippy::cast_precision_loss)] // Of a share, digits beyond the tenth mean nothing.
fn percent(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 * 100.0 / whole as f64)
}

impl Values {
    fn of_workload(before: Option<&Node>, now: Option<&Node>, elapsed: Option<u64>) -> Self {
        let of_now = |key| number(now, key);
        let uptime = of_now("uptimeMs");
        let cpu = of_now("cpuUsec").zip(elapsed).and_then(|(cpu, elapsed)| {
            match uptime.map(|ms| ms.saturating_mul(1000)) {
                Some(since_start) if since_start < elapsed => percent(cpu, since_start), // Started in between.
                _ => percent(cpu.checked_sub(number(before, "cpuUsec")?)?, elapsed),
            }
        });
        let memory = of_now("memoryBytes").zip(of_now("inactiveFileBytes"));
        Self {
            cpu,
            memory: memory.map(|(all, cache)| all.saturating_sub(cache)),
            peak: of_now("memoryPeakBytes"),
            pids: of_now("pids"),
            restarts: of_now("restarts"),
            uptime,
        }
    }

    fn of_node(before: &Node, state: &Node, agent: &str) -> Self {
        let path = ["usage", agent, "node"];
        let of_now = |key| number(state.at(&path), key);
        let busy = of_now("cpuBusyUsec").zip(number(before.at(&path), "cpuBusyUsec"));
        let busy = busy.and_then(|(now, before)| now.checked_sub(before)).zip(elapsed(before, state, agent));
        let memory = of_now("memoryTotalBytes").zip(of_now("memoryAvailableBytes"));
        Self {
            cpu: busy.and_then(|(busy, elapsed)| percent(busy, elapsed)),
            memory: memory.map(|(total, available)| total.saturating_sub(available)),
            ..Self::default()
        }
    }

    /// The sum of what is known; peaks were at different times.
    fn sum(values: impl Iterator<Item = Self>) -> Self {
        let add = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).reduce(u64::saturating_add);
        values.fold(Self::default(), |sum, one| Self {
            cpu: sum.cpu.into_iter().chain(one.cpu).reduce(|a, b| a + b),
            memory: add(sum.memory, one.memory),
            pids: add(sum.pids, one.pids),
            restarts: add(sum.restarts, one.restarts),
            ..Self::default()
        })
    }
}

fn cells(name: &str, agent: &str, state: &str, values: &Values) -> [String; 9] {
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| UNKNOWN.to_owned());
    let count = |number: Option<u64>| or_unknown(number.map(|number| number.to_string()));
    [
        name.to_owned(),
        agent.to_owned(),
        state.to_owned(),
        or_unknown(values.cpu.map(|percent| format!("{percent:.1}%"))),
        or_unknown(values.memory.map(size)),
        or_unknown(values.peak.map(size)),
        count(values.pids),
        count(values.restarts),
        or_unknown(values.uptime.map(|ms| duration(Duration::from_millis(ms)))),
    ]
}

/// Bytes with one digit: `41.2MiB`.
#[allow(clippy::cast_precision_loss)] // One digit is shown.
fn size(bytes: u64) -> String {
    let mut size = bytes as f64;
    let mut units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].into_iter().peekable();
    while let Some(unit) = units.next() {
        // 1023.96 would be shown as 1024.0.
        if size < 1023.95 || units.peek().is_none() {
            return if unit == "B" { format!("{bytes}B") } else { format!("{size:.1}{unit}") };
        }
        size /= 1024.0;
    }
    String::new()
}

/// The two highest units: `3d4h`, `12m3s`, `45s`.
fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, ..) => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

#[cfg(test)]
mod tests;
