//! `ank top`: the usage of workloads and nodes, from two samples of each agent.
//!
//! Thread: `main`. Takes: complete states with samples. Gives: a table or data, once or repeatedly.

use super::args::{Filter, TopArguments};
use super::error::{CliError, ExitCode, Result};
use super::output::{Column, LiveFrames, Output, TooWide, View, WARNING, object, timestamp, value};
use super::rows::{self, entries, instance_fields};
use super::session::ServerLink;
use ankaios_model::names::InstanceName;
use ankaios_model::node::Node;
use ankaios_model::usage::{DISCONNECTED, NodeUsage, WorkloadUsage};
use serde::de::DeserializeOwned;
use serde_yaml::Value;
use std::collections::BTreeSet;
use std::ops::Add;
use std::time::Duration;
use std::time::SystemTime;

/// Time between the two samples of `ank top`, and before the first frame of `ank top --watch`.
const TOP_INTERVAL_FIRST: Duration = Duration::from_secs(1);
/// Time between two further frames of `ank top --watch`, without `--interval`.
const TOP_INTERVAL: Duration = Duration::from_secs(2);

/// One value of a workload or a node.
struct Measure {
    /// Also the key to sort by.
    heading: &'static str,
    cell: fn(f64) -> String,
    /// Shown with `-o wide` only.
    is_wide: bool,
}

impl Measure {
    const fn new(heading: &'static str, cell: fn(f64) -> String) -> Self {
        Self {
            heading,
            cell,
            is_wide: false,
        }
    }

    const fn wide(self) -> Self {
        Self {
            is_wide: true,
            ..self
        }
    }
}

const COLUMNS: [Measure; 8] = [
    Measure::new("CPU", percent_text),
    Measure::new("MEMORY", size),
    Measure::new("PEAK", size),
    Measure::new("PIDS", count_text),
    Measure::new("RESTARTS", count_text),
    Measure::new("UPTIME", duration),
    Measure::new("IMAGES", size).wide(),
    Measure::new("REMOVABLE", size).wide(),
];

/// The values of [`COLUMNS`]; `None` if unknown.
#[derive(Debug, Clone, Copy, Default)]
struct Usage {
    /// Percent of one core.
    cpu: Option<f64>,
    /// Bytes without the page cache that can be reclaimed at once.
    memory: Option<u64>,
    /// Bytes with the page cache.
    peak: Option<u64>,
    pids: Option<u64>,
    restarts: Option<u64>,
    uptime_ms: Option<u64>,
    image_bytes: Option<u64>,
    removable_image_bytes: Option<u64>,
}

impl Usage {
    /// The values in the order of [`COLUMNS`].
    fn values(&self) -> [Option<f64>; COLUMNS.len()] {
        [
            self.cpu,
            as_float(self.memory),
            as_float(self.peak),
            as_float(self.pids),
            as_float(self.restarts),
            as_float(self.uptime_ms),
            as_float(self.image_bytes),
            as_float(self.removable_image_bytes),
        ]
    }

    /// The share of the CPU for programs, with one digit as in the table.
    fn cpu_percent(&self) -> Value {
        let rounded = self.cpu.map(|percent| (percent * 10.0).round() / 10.0);
        value(rounded)
    }
}

fn as_float(count: Option<u64>) -> Option<f64> {
    Some(count? as f64)
}

/// A row of the table.
struct ShownWorkload<'s> {
    instance: InstanceName,
    state: String,
    usage: Usage,
    /// The last sample.
    sample: Option<&'s Node>,
}

/// Shows the usage between two samples. With `--watch` it continues until the connection ends, and
/// names that do not exist are allowed. `now` is the time of each document.
pub(crate) fn show(
    arguments: &TopArguments,
    now: fn() -> SystemTime,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<ExitCode> {
    let TopArguments {
        filter,
        watch,
        interval,
        ..
    } = arguments;
    let interval = match interval {
        Some(interval) => *interval,
        None if *watch => TOP_INTERVAL,
        None => TOP_INTERVAL_FIRST,
    };
    // First take a sample.
    let mut before = read(filter, link)?;
    output.warn_of_storage(&before);
    let rows = rows::rows(&before);
    if *watch {
        filter.warn_of_unknown_names(&before, &rows, output); // The workload may exist later.
    } else {
        filter.refuse_unknown(&before, &rows)?;
    }
    let mut frames = LiveFrames::default();
    let mut warned = BTreeSet::new();
    warn_of_missing(filter, &before, &mut warned, output);
    // With `--watch` the first frame comes soon, even if the interval is long.
    let mut pause = interval;
    if *watch {
        pause = interval.min(TOP_INTERVAL_FIRST);
    }
    loop {
        // Then wait, and take another one.
        let until = link.now() + pause;
        while link.next_states(Some(until))?.is_some() {}
        let state = read(filter, link)?;
        if warn_of_missing(filter, &state, &mut warned, output) {
            frames = LiveFrames::default(); // The next frame begins below the warnings.
        }
        // Finally show both.
        let mut view = view(arguments, &before, &state);
        view.head.push(("time", timestamp(now()).into()));
        let agents = agents_data(filter, &before, &state);
        view.head.push(("agents", agents));
        if *watch {
            view.print("workloads", TooWide::Drop, Some(&mut frames), output)?;
            before = state;
            pause = interval;
            continue;
        }
        view.print("workloads", TooWide::Drop, None, output)?;
        return Ok(ExitCode::Success);
    }
}

/// The samples of all agents for programs.
fn agents_data(filter: &Filter, before: &Node, state: &Node) -> Value {
    let mut agents = Vec::new();
    for (name, sample) in state.entries("usage") {
        if filter.accepts_agent(name) {
            let mut fields = plain_fields(Some(sample));
            fields.extend(plain_fields(sample.get("node")));
            let cpu = of_node(before, state, name).cpu_percent();
            fields.push(("cpuPercent".to_owned(), cpu));
            agents.push((name.to_owned(), object(fields)));
        }
    }
    object(agents)
}

/// Reads a sample of each agent, and the states of all workloads.
fn read(filter: &Filter, link: &mut dyn ServerLink) -> Result<Node> {
    let mut usage = "usage".to_owned();
    // The sample of one agent does not wait for the others. A name with a dot or `*` would be
    // another mask.
    if let Some(agent) = &filter.agent
        && !agent.is_empty()
        && !agent.contains(['.', '*'])
    {
        usage = format!("usage.{agent}");
    }
    let state = link.complete_state(&[usage.as_str(), "workloadStates", "agents", WARNING])?;
    if state.get("usage").is_none() {
        let hint = "it is an older server, or one of Eclipse Ankaios; 'ank get agents' shows the load of the nodes";
        return Err(CliError::start(
            "The server cannot tell what workloads use.",
            hint,
        ));
    }
    Ok(state)
}

/// Warns about agents without a sample, and about disconnected ones that have workloads. Returns
/// whether it has warned. `warned` has the agents with the reasons that were printed before.
fn warn_of_missing(
    filter: &Filter,
    state: &Node,
    warned: &mut BTreeSet<(String, String)>,
    output: &mut Output,
) -> bool {
    // First find the agents.
    let mut missing = Vec::new();
    for (agent, usage) in state.entries("usage") {
        if let Some(reason) = usage.get("missing").and_then(Node::as_text) {
            missing.push((agent, reason));
        }
    }
    for (agent, workloads) in state.entries("workloadStates") {
        if !workloads.is_empty_container() && state.at(&["agents", agent]).is_none() {
            missing.push((agent, DISCONNECTED));
        }
    }
    // Then print each reason once.
    let before = warned.len();
    for (agent, reason) in missing {
        // Workloads that are not scheduled have an empty agent.
        if agent.is_empty() || !filter.accepts_agent(agent) {
            continue;
        }
        let is_new = warned.insert((agent.to_owned(), reason.to_owned()));
        if is_new {
            output.warn(format_args!(
                "what agent '{agent}' uses is unknown: {reason}"
            ));
        }
    }
    warned.len() > before
}

/// The sorted rows of workloads. Below them are the sums and the nodes, unless the command names
/// workloads.
fn view(arguments: &TopArguments, before: &Node, state: &Node) -> View {
    let filter = &arguments.filter;
    let mut shown = shown_workloads(filter, before, state);
    sort(&mut shown, &arguments.sort);
    let nothing = InstanceName::with_id("", "", "");
    let blank = fields(&nothing, "", &Usage::default(), None);
    let mut lines = Vec::new();
    for one in &shown {
        lines.push(fields(&one.instance, &one.state, &one.usage, one.sample));
    }
    let mut view = View::new(arguments.output, &blank, lines);
    view.table.least_wanted = &["EXECUTION STATE", "AGENT"];
    view.table.most_wanted = &["CPU", "MEMORY"];
    if !filter.names.is_empty() {
        return view;
    }
    for agent in rows::names(state.get("agents")) {
        if !filter.accepts_agent(agent) {
            continue;
        }
        let workloads = InstanceName::with_id("(workloads)", "", agent);
        let sums = sums_of(&shown, agent);
        view.push_cells(&fields(&workloads, "", &sums, None));
        let node = InstanceName::with_id("(node)", "", agent);
        let usage = of_node(before, state, agent);
        view.push_cells(&fields(&node, "", &usage, None));
    }
    view
}

/// The workloads that `filter` accepts, with their usage between two samples.
fn shown_workloads<'s>(filter: &Filter, before: &Node, state: &'s Node) -> Vec<ShownWorkload<'s>> {
    let mut shown = Vec::new();
    for (instance, row) in rows::rows(state) {
        if instance.agent.is_empty() || !filter.accepts(&instance) {
            continue;
        }
        let path = [
            "usage",
            &*instance.agent,
            "workloads",
            &*instance.workload,
            &*instance.id,
        ];
        let sample = state.at(&path);
        let earlier = read_sample(before.at(&path));
        let elapsed = elapsed(before, state, &instance.agent);
        let usage = of_workload(&earlier, &read_sample(sample), elapsed);
        shown.push(ShownWorkload {
            instance,
            state: row.state,
            usage,
            sample,
        });
    }
    shown
}

/// Sorts by the column `key`, the highest value first. An unknown value is lower than any other;
/// equal ones stay sorted by name.
fn sort(shown: &mut [ShownWorkload<'_>], key: &str) {
    let mut columns = COLUMNS.iter();
    let Some(index) = columns.position(|column| column.heading.eq_ignore_ascii_case(key)) else {
        return;
    };
    shown.sort_by(|one, other| {
        let one = one.usage.values()[index].unwrap_or(-1.0);
        let other = other.usage.values()[index].unwrap_or(-1.0);
        other.total_cmp(&one)
    });
}

/// The sums of the known values of the workloads of an agent. Other values have no sum: peaks were
/// at different times, and workloads share images.
fn sums_of(shown: &[ShownWorkload<'_>], agent: &str) -> Usage {
    let mut sums = Usage::default();
    for one in shown {
        if *one.instance.agent == *agent {
            add(&mut sums.cpu, one.usage.cpu);
            add(&mut sums.memory, one.usage.memory);
            add(&mut sums.pids, one.usage.pids);
            add(&mut sums.restarts, one.usage.restarts);
        }
    }
    sums
}

/// Adds a value if it is known.
fn add<T: Add<Output = T> + Default + Copy>(sum: &mut Option<T>, value: Option<T>) {
    if let Some(value) = value {
        *sum = Some(sum.unwrap_or_default() + value);
    }
}

fn fields(
    instance: &InstanceName,
    state: &str,
    usage: &Usage,
    sample: Option<&Node>,
) -> Vec<Column> {
    let mut fields = instance_fields(instance, state);
    for (measure, value) in COLUMNS.iter().zip(usage.values()) {
        let cell = match value {
            Some(value) => (measure.cell)(value),
            None => "-".to_owned(),
        };
        let column = Column::new(measure.heading, "", cell, Value::Null);
        fields.push(if measure.is_wide {
            column.wide()
        } else {
            column
        });
    }
    for (key, value) in plain_fields(sample) {
        fields.push(Column::data(&key, value));
    }
    fields.push(Column::data("cpuPercent", usage.cpu_percent()));
    fields
}

/// The numbers and texts of a map, for programs.
fn plain_fields(map: Option<&Node>) -> Vec<(String, Value)> {
    let mut fields = Vec::new();
    for (key, node) in entries(map) {
        if let Some(value) = number_or_text(node) {
            fields.push((key.to_owned(), value));
        }
    }
    fields
}

fn number_or_text(node: &Node) -> Option<Value> {
    match node.as_number() {
        Some(number) => Some(Value::from(number)),
        None => node.as_text().map(Value::from),
    }
}

/// Microseconds between two samples of an agent.
fn elapsed(before: &Node, state: &Node, agent: &str) -> Option<u64> {
    let path = ["usage", agent, "sampledUsec"];
    let from = before.at(&path)?.as_number()?;
    let to = state.at(&path)?.as_number()?;
    to.checked_sub(from)
}

/// The percentage of `part` in `whole`; `None` if `whole` is zero.
fn percent(part: u64, whole: u64) -> Option<f64> {
    if whole == 0 {
        return None;
    }
    Some(part as f64 * 100.0 / whole as f64)
}

/// Reads a sample; values that cannot be read are unknown.
fn read_sample<T: DeserializeOwned + Default>(sample: Option<&Node>) -> T {
    let Some(sample) = sample else {
        return T::default();
    };
    sample.read("usage").unwrap_or_default()
}

/// The usage of a workload between two samples, which are `elapsed` microseconds apart.
fn of_workload(before: &WorkloadUsage, now: &WorkloadUsage, elapsed: Option<u64>) -> Usage {
    Usage {
        cpu: cpu_of_workload(before, now, elapsed),
        memory: difference(now.memory_bytes, now.inactive_file_bytes),
        peak: now.memory_peak_bytes,
        pids: now.pids,
        restarts: now.restarts,
        uptime_ms: now.uptime_ms,
        image_bytes: now.image_bytes,
        removable_image_bytes: now.image_removable_bytes,
    }
}

/// The CPU usage of a workload between two samples, in percent of one core.
fn cpu_of_workload(
    before: &WorkloadUsage,
    now: &WorkloadUsage,
    elapsed: Option<u64>,
) -> Option<f64> {
    let cpu = now.cpu_usec?;
    let elapsed = elapsed?;
    if let Some(uptime) = now.uptime_ms {
        let since_start = uptime.saturating_mul(1000);
        if since_start < elapsed {
            return percent(cpu, since_start); // It was started between the samples.
        }
    }
    percent(cpu.checked_sub(before.cpu_usec?)?, elapsed)
}

/// The part of `whole` without `part`, if both are known.
fn difference(whole: Option<u64>, part: Option<u64>) -> Option<u64> {
    Some(whole?.saturating_sub(part?))
}

/// The usage in one sample of a workload, for people: `memory 41.2MiB, pids 3`. The CPU would take
/// two samples.
pub(crate) fn sample_text(sample: &Node) -> String {
    let sample: WorkloadUsage = read_sample(Some(sample));
    let values = of_workload(&WorkloadUsage::default(), &sample, None).values();
    let mut parts = Vec::new();
    for (measure, value) in COLUMNS.iter().zip(values) {
        if let Some(value) = value {
            let name = measure.heading.to_lowercase();
            parts.push(format!("{name} {}", (measure.cell)(value)));
        }
    }
    parts.join(", ")
}

/// The usage of the node of an agent between two samples.
fn of_node(before: &Node, state: &Node, agent: &str) -> Usage {
    let path = ["usage", agent, "node"];
    let earlier: NodeUsage = read_sample(before.at(&path));
    let now: NodeUsage = read_sample(state.at(&path));
    Usage {
        cpu: cpu_of_node(&earlier, &now, elapsed(before, state, agent)),
        memory: difference(now.memory_total_bytes, now.memory_available_bytes),
        ..Usage::default()
    }
}

fn cpu_of_node(before: &NodeUsage, now: &NodeUsage, elapsed: Option<u64>) -> Option<f64> {
    let busy = now.cpu_busy_usec?.checked_sub(before.cpu_busy_usec?)?;
    percent(busy, elapsed?)
}

fn percent_text(percent: f64) -> String {
    format!("{percent:.1}%")
}

fn count_text(count: f64) -> String {
    count.to_string()
}

/// Bytes with one digit: `41.2MiB`.
pub(crate) fn size(bytes: f64) -> String {
    let mut size = bytes;
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        // 1023.96 would be shown as 1024.0.
        if size < 1023.95 {
            break;
        }
        size /= 1024.0;
        unit = larger;
    }
    if unit == "B" {
        return format!("{size:.0}B");
    }
    format!("{size:.1}{unit}")
}

/// Milliseconds as the two highest units: `3d4h`, `12m3s`, `45s`.
pub(crate) fn duration(milliseconds: f64) -> String {
    let seconds = (milliseconds / 1000.0) as u64;
    let minutes = seconds / 60;
    let hours = minutes / 60;
    let days = hours / 24;
    if days > 0 {
        return format!("{days}d{}h", hours % 24);
    }
    if hours > 0 {
        return format!("{hours}h{}m", minutes % 60);
    }
    if minutes > 0 {
        return format!("{minutes}m{}s", seconds % 60);
    }
    format!("{seconds}s")
}

#[cfg(test)]
mod tests;
