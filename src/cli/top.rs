//! `ank top`: what workloads and nodes use, from two samples of each agent.
//!
//! Thread: `main`. Takes: complete states with samples. Gives: a table or data, once or again and
//! again.

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
use std::time::Duration;
use std::time::SystemTime;

/// Time between the two samples of `ank top`, and before the first frame of `ank top --watch`.
const TOP_INTERVAL_FIRST: Duration = Duration::from_secs(1);

/// What is shown of a workload or a node: the heading of each value, which is also the key to sort
/// by, and its cell.
const COLUMNS: [Measure; 8] = [
    ("CPU", |percent| format!("{percent:.1}%")),
    ("MEMORY", size),
    ("PEAK", size),
    ("PIDS", |count| count.to_string()),
    ("RESTARTS", |count| count.to_string()),
    ("UPTIME", duration),
    ("IMAGES", size),
    ("REMOVABLE", size),
];
/// The columns among them of `-o wide` only.
const WIDE: [&str; 2] = ["IMAGES", "REMOVABLE"];
/// Those of which a sum says nothing: peaks were at different times, and workloads share images.
const WITHOUT_SUM: [&str; 4] = ["PEAK", "UPTIME", "IMAGES", "REMOVABLE"];
type Measure = (&'static str, fn(f64) -> String);
/// The values of [`COLUMNS`], `None` where they are unknown: percent of one core; bytes without the
/// page cache that can be taken back at once; bytes with it; two counts; milliseconds; bytes of images,
/// and of those that can be removed.
type Values = [Option<f64>; 8];

/// Reads samples and shows the last one, and the shares since the one before; with `--watch` until
/// the connection ends. `now` is the time of each document. A name that does not exist is an error
/// at the end.
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
    // Time between two frames of `ank top --watch`.
    let usual = if *watch {
        Duration::from_secs(2)
    } else {
        TOP_INTERVAL_FIRST
    };
    let interval = interval.unwrap_or(usual);
    let mut before = read(filter, link)?;
    output.warn_of_storage(&before);
    let all_exist = filter.check_names(&before, &rows::rows(&before), output);
    let (mut frames, mut warned) = (LiveFrames::default(), BTreeSet::new());
    warn_of_missing(filter, &before, &mut warned, output); // Without it there are no shares.
    // Whoever watches sees something soon, however long the interval is.
    let mut pause = if *watch {
        interval.min(TOP_INTERVAL_FIRST)
    } else {
        interval
    };
    loop {
        let until = link.now() + pause;
        while link.next_states(Some(until))?.is_some() {}
        let state = read(filter, link)?;
        if warn_of_missing(filter, &state, &mut warned, output) {
            frames = LiveFrames::default(); // The next frame begins below the warnings.
        }
        let agents = state
            .entries("usage")
            .filter(|(agent, _)| filter.accepts_agent(agent));
        let agent = |(name, usage): (&'_ str, &Node)| {
            let values = known(Some(usage)).chain(known(usage.get("node")));
            (
                name.to_owned(),
                object(values.chain([percent_of(&of_node(&before, &state, name))])),
            )
        };
        let mut view = view(arguments, &before, &state);
        view.head.push(("time", timestamp(now()).into()));
        view.head.push(("agents", object(agents.map(agent))));
        let frames = watch.then_some(&mut frames);
        view.print("workloads", TooWide::Drop, frames, output)?;
        if !watch {
            if all_exist {
                return Ok(ExitCode::Success);
            }
            output.error(
                "not all names exist",
                "'ank get workloads' and 'ank get agents' list them",
            );
            return Ok(ExitCode::Failed);
        }
        (before, pause) = (state, interval);
    }
}

fn read(filter: &Filter, link: &mut dyn ServerLink) -> Result<Node> {
    // One agent alone need not wait for the others.
    let named = filter
        .agent
        .as_ref()
        .filter(|agent| !agent.is_empty() && !agent.contains(['.', '*']));
    let usage = named.map_or_else(|| "usage".to_owned(), |agent| format!("usage.{agent}"));
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

/// Warns about agents without a sample, once for each reason; also those that are not connected but
/// have workloads. Returns whether it did.
fn warn_of_missing(
    filter: &Filter,
    state: &Node,
    warned: &mut BTreeSet<(String, String)>,
    output: &mut Output,
) -> bool {
    let before = warned.len();
    let missing = state
        .entries("usage")
        .filter_map(|(agent, usage)| Some((agent, usage.get("missing").and_then(Node::as_text)?)));
    let away = state
        .entries("workloadStates")
        .filter(|(agent, workloads)| {
            !workloads.is_empty_container() && state.at(&["agents", agent]).is_none()
        });
    for (agent, reason) in missing.chain(away.map(|(agent, _)| (agent, DISCONNECTED))) {
        if !agent.is_empty()
            && filter.accepts_agent(agent)
            && warned.insert((agent.to_owned(), reason.to_owned()))
        {
            output.warn(format_args!(
                "what agent '{agent}' uses is unknown: {reason}"
            ));
        }
    }
    warned.len() > before
}

/// The rows of workloads as sorted; below them the sums and the nodes, unless only some workloads
/// are wanted.
fn view(arguments: &TopArguments, before: &Node, state: &Node) -> View {
    let TopArguments {
        filter,
        output: format,
        ..
    } = arguments;
    let mut shown = Vec::new();
    for (instance, row) in rows::rows(state) {
        if !instance.agent.is_empty() && filter.accepts(&instance) {
            let path = [
                "usage",
                &*instance.agent,
                "workloads",
                &*instance.workload,
                &*instance.id,
            ];
            let usage = state.at(&path);
            let (before_usage, now) = (read_usage(before.at(&path)), read_usage(usage));
            let values = of_workload(&before_usage, &now, elapsed(before, state, &instance.agent));
            shown.push((instance, row.state, values, usage));
        }
    }
    // Highest first, an unknown value is lower than any other; those that are equal stay sorted by
    // name.
    if let Some(key) = COLUMNS
        .iter()
        .position(|(heading, _)| heading.eq_ignore_ascii_case(&arguments.sort))
    {
        shown.sort_by(|one, other| {
            other.2[key]
                .unwrap_or(-1.0)
                .total_cmp(&one.2[key].unwrap_or(-1.0))
        });
    }
    let blank = fields(
        &InstanceName::with_id("", "", ""),
        "",
        &Values::default(),
        None,
    );
    let rows = shown
        .iter()
        .map(|(instance, state, values, usage)| fields(instance, state, values, *usage));
    let mut view = View::new(*format, &blank, rows);
    view.table.least_wanted = &["EXECUTION STATE", "AGENT"];
    let agents = state.entries("agents").map(|(name, _)| name);
    for agent in agents.filter(|name| filter.names.is_empty() && filter.accepts_agent(name)) {
        let own = || {
            shown
                .iter()
                .filter(|(instance, ..)| *instance.agent == *agent)
                .map(|line| &line.2)
        };
        let sum = |at: usize| {
            own()
                .filter_map(|values| values[at])
                .reduce(|one, other| one + other)
        };
        let sums =
            std::array::from_fn(|at| sum(at).filter(|_| !WITHOUT_SUM.contains(&COLUMNS[at].0)));
        for (name, values) in [
            ("(workloads)", sums),
            ("(node)", of_node(before, state, agent)),
        ] {
            view.push_cells(&fields(
                &InstanceName::with_id(name, "", agent),
                "",
                &values,
                None,
            ));
        }
    }
    view
}

fn fields(
    instance: &InstanceName,
    state: &str,
    values: &Values,
    usage: Option<&Node>,
) -> Vec<Column> {
    let mut fields = instance_fields(instance, state);
    fields.extend(COLUMNS.iter().zip(values).map(|((heading, shown), value)| {
        let column = Column::new(
            heading,
            "",
            value.map_or_else(|| "-".to_owned(), shown),
            Value::Null,
        );
        if WIDE.contains(heading) {
            column.wide()
        } else {
            column
        }
    }));
    fields.extend(
        known(usage)
            .chain([percent_of(values)])
            .map(|(key, value)| Column::data(&key, value)),
    );
    fields
}

/// The numbers and texts of a map.
fn known(node: Option<&Node>) -> impl Iterator<Item = (String, Value)> {
    entries(node).filter_map(|(key, node)| Some((key.to_owned(), number_or_text(node)?)))
}

fn number_or_text(node: &Node) -> Option<Value> {
    match node.as_number() {
        Some(number) => Some(Value::from(number)),
        None => node.as_text().map(Value::from),
    }
}

/// The share of the CPU, with one digit as in the table.
fn percent_of(values: &Values) -> (String, Value) {
    (
        "cpuPercent".to_owned(),
        value(values[0].map(|percent| (percent * 10.0).round() / 10.0)),
    )
}

/// Microseconds between two samples of an agent.
fn elapsed(before: &Node, state: &Node, agent: &str) -> Option<u64> {
    let sampled = |state: &Node| state.at(&["usage", agent, "sampledUsec"])?.as_number();
    sampled(state)?.checked_sub(sampled(before)?)
}

fn percent(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 * 100.0 / whole as f64)
}

/// What `usage` says; what cannot be read is unknown.
fn read_usage<T: DeserializeOwned + Default>(usage: Option<&Node>) -> T {
    usage
        .and_then(|usage| usage.read("usage").ok())
        .unwrap_or_default()
}

fn of_workload(before: &WorkloadUsage, now: &WorkloadUsage, elapsed: Option<u64>) -> Values {
    let cpu = now.cpu_usec.zip(elapsed).and_then(|(cpu, elapsed)| {
        match now.uptime_ms.map(|ms| ms.saturating_mul(1000)) {
            // Started in between.
            Some(since_start) if since_start < elapsed => percent(cpu, since_start),
            _ => percent(cpu.checked_sub(before.cpu_usec?)?, elapsed),
        }
    });
    let memory = now.memory_bytes.zip(now.inactive_file_bytes);
    let memory = memory.map(|(all, cache)| all.saturating_sub(cache));
    let others = [
        memory,
        now.memory_peak_bytes,
        now.pids,
        now.restarts,
        now.uptime_ms,
        now.image_bytes,
        now.image_removable_bytes,
    ];
    let [memory, peak, pids, restarts, uptime, images, removable] =
        others.map(|number| number.map(|number| number as f64));
    [cpu, memory, peak, pids, restarts, uptime, images, removable]
}

/// One sample of a workload for people, without its CPU, which takes two: `memory 41.2MiB, 3 pids`.
pub(crate) fn sample_text(usage: &Node) -> String {
    let sample: WorkloadUsage = read_usage(Some(usage));
    let values = of_workload(&WorkloadUsage::default(), &sample, None);
    let mut parts = Vec::new();
    for ((heading, shown), value) in COLUMNS.iter().zip(values) {
        if let Some(value) = value {
            parts.push(format!("{} {}", heading.to_lowercase(), shown(value)));
        }
    }
    parts.join(", ")
}

fn of_node(before: &Node, state: &Node, agent: &str) -> Values {
    let [before_usage, now]: [NodeUsage; 2] =
        [before, state].map(|state| read_usage(state.at(&["usage", agent, "node"])));
    let cpu = || {
        let busy = now
            .cpu_busy_usec?
            .checked_sub(before_usage.cpu_busy_usec?)?;
        percent(busy, elapsed(before, state, agent)?)
    };
    let memory = now.memory_total_bytes.zip(now.memory_available_bytes);
    let memory = memory.map(|(total, available)| total.saturating_sub(available) as f64);
    [cpu(), memory, None, None, None, None, None, None]
}

/// Bytes with one digit: `41.2MiB`.
pub(crate) fn size(bytes: f64) -> String {
    // 1023.96 would be shown as 1024.0.
    let (mut size, mut unit, mut larger) = (
        bytes,
        "B",
        ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].into_iter(),
    );
    while size >= 1023.95
        && let Some(next) = larger.next()
    {
        (size, unit) = (size / 1024.0, next);
    }
    if unit == "B" {
        format!("{size:.0}B")
    } else {
        format!("{size:.1}{unit}")
    }
}

/// Milliseconds as the two highest units: `3d4h`, `12m3s`, `45s`.
pub(crate) fn duration(milliseconds: f64) -> String {
    let seconds = (milliseconds / 1000.0) as u64;
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
