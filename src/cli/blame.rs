//! `ank blame`: how long the starts of workloads took and what they waited for, as a table, JSON or
//! a chart.
//!
//! Thread: `main`, plain functions. All times are in milliseconds since the start of the server,
//! which keeps them.

use super::args::{BlameArguments, Format};
use super::error::{CliError, Result};
use super::output::{Column, Output, TooWide, View, one_line, shortened, value};
use super::rows::{Needs, instances, needs};
use super::session::ServerLink;
use ankaios_model::names::InstanceName;
use ankaios_model::node::Node;
use ankaios_model::workload::AddCondition;
use serde::{Deserialize, Deserializer};
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

/// Prints the start times of all instances, or of those of the named workloads.
pub(crate) fn print(
    BlameArguments {
        output: format,
        names,
    }: &BlameArguments,
    link: &mut dyn ServerLink,
    output: &mut Output,
) -> Result<()> {
    let starts = Starts::of(&link.complete_state(&MASKS)?)?;
    CliError::check_workloads(
        names,
        starts.all.iter().map(|start| &*start.instance.workload),
    )?;
    let is_wanted = |start: &&Start| {
        names.is_empty() || names.iter().any(|name| **name == *start.instance.workload)
    };
    let mut wanted: Vec<&Start> = starts.all.iter().filter(is_wanted).collect();
    let total = |start: &Start| start.total().or(start.so_far(start.begin(), starts.now));
    wanted.sort_by_key(|start| (Reverse(total(start)), start.instance.clone()));
    if *format == Format::Svg {
        return output.result(&svg(&starts, &wanted));
    }
    let blank = Start::default();
    let rows = wanted.iter().map(|start| fields(start, starts.now));
    let mut view = View::new(*format, &fields(&blank, starts.now), rows);
    view.align(&["WAITED", "START", "READY", "TOTAL"]);
    view.head.push(("nowMs", starts.now.into()));
    view.head.push(("bootMs", starts.boot.into()));
    view.print("workloads", TooWide::Drop, None, output)
}

/// What is shown of a start at `now`.
fn fields(start: &Start, now: u64) -> Vec<Column> {
    // `>` marks what goes on, since `from`.
    let lasted = |heading, key: &str, time: Option<u64>, from: Option<u64>| {
        let so_far = || {
            start
                .so_far(from, now)
                .map_or_else(String::new, |so_far| format!(">{}", seconds(so_far)))
        };
        Column::new(heading, key, time.map_or_else(so_far, seconds), value(time))
    };
    let text = |heading, key: &str, text: &str| {
        Column::new(
            heading,
            key,
            one_line(text),
            value(Some(text).filter(|text| !text.is_empty())),
        )
    };
    let Start {
        instance,
        starts,
        waited_for,
        prepared,
        desired,
        waiting,
        starting,
        started,
        running,
        ended,
    } = start;
    let mut fields = vec![
        Column::text("WORKLOAD NAME", "workload", &instance.workload),
        Column::text("AGENT", "agent", &instance.agent),
        Column::text("ID", "id", &instance.id).wide(),
        Column::new("STARTS", "starts", starts.to_string(), *starts).wide(),
        lasted("WAITED", "waitedMs", start.waited(), *waiting),
        text("WAITED FOR", "waitedFor", waited_for),
        text("PREPARED", "prepared", prepared),
        lasted("START", "startMs", start.start(), *starting),
        lasted("READY", "readyMs", start.ready(), *started),
        lasted("TOTAL", "totalMs", start.total(), start.begin()),
    ];
    let moments = [
        ("desiredAtMs", desired),
        ("waitingAtMs", waiting),
        ("startingAtMs", starting),
        ("startedAtMs", started),
        ("runningAtMs", running),
        ("endedAtMs", ended),
    ];
    fields.extend(moments.map(|(key, at)| Column::data(key, value(*at))));
    fields
}

// ------------------------------------------------------------- start times

/// The part of the complete state with the start times.
pub(crate) const PART: &str = "timings";

/// The parts of the complete state that [`Starts::of`] needs.
pub(crate) const MASKS: [&str; 3] = [
    PART,
    "desiredState.workloads.*.dependencies",
    "effectiveState.workloads.*.dependencies",
];

/// The latest starts of all instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Starts {
    /// The time of the response.
    pub(crate) now: u64,
    /// From the boot of the server's node to the start of the server.
    pub(crate) boot: u64,
    /// In the order of agent, workload and id.
    pub(crate) all: Vec<Start>,
}

/// The latest start of one instance; what did not happen, or was not reported, is missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Start {
    /// Which instance.
    #[serde(skip)]
    pub(crate) instance: InstanceName,
    /// Accepted as a part of the desired state.
    #[serde(deserialize_with = "time")]
    pub(crate) desired: Option<u64>,
    /// First reported as waiting for others.
    #[serde(deserialize_with = "time")]
    pub(crate) waiting: Option<u64>,
    /// First reported as starting.
    #[serde(deserialize_with = "time")]
    pub(crate) starting: Option<u64>,
    /// First reported as started and not ready.
    #[serde(deserialize_with = "time")]
    pub(crate) started: Option<u64>,
    /// First reported as running, which is ready.
    #[serde(deserialize_with = "time")]
    pub(crate) running: Option<u64>,
    /// First reported as ended.
    #[serde(deserialize_with = "time")]
    pub(crate) ended: Option<u64>,
    /// How many starts of it were reported.
    pub(crate) starts: u64,
    /// How far its start was prepared; empty when it was not.
    pub(crate) prepared: String,
    /// The dependency that was met last while it waited; empty when there is none.
    #[serde(skip)]
    pub(crate) waited_for: String,
}

impl Starts {
    /// The starts in `state`, a complete state as far as [`MASKS`].
    // [impl->swdd~cli-shows-start-times~1]
    pub(crate) fn of(state: &Node) -> Result<Self> {
        let Some(timings) = state.get(PART) else {
            let hint = "an ank-server of Ankaios lite keeps them, if it is not older than this ank";
            return Err(CliError::start("the server keeps no start times", hint));
        };
        let number = |key: &str| {
            timings
                .get(key)
                .and_then(Node::as_number)
                .unwrap_or_default()
                .min(1 << 50)
        };
        let mut all = Vec::new();
        for (instance, times) in instances(timings.get("instances")) {
            let start: Start = times.read(PART).unwrap_or_default();
            all.push(Start { instance, ..start });
        }
        let needs = needs(state);
        let mut by_name: HashMap<&str, Vec<&Start>> = HashMap::new();
        for start in &all {
            let name = &*start.instance.workload;
            by_name.entry(name).or_default().push(start);
        }
        let mut waited_for = Vec::new();
        for start in &all {
            waited_for.push(met_last(start, &needs, &by_name));
        }
        for (start, name) in all.iter_mut().zip(waited_for) {
            start.waited_for = name;
        }
        Ok(Self {
            now: number("now"),
            boot: number("boot"),
            all,
        })
    }

    /// The start of each workload. Of several instances it is the one that was accepted last.
    pub(crate) fn by_workload(&self) -> HashMap<&str, &Start> {
        let mut all: Vec<&Start> = self.all.iter().collect();
        all.sort_by_key(|start| start.desired); // A later one replaces an earlier one.
        all.into_iter()
            .map(|start| (&*start.instance.workload, start))
            .collect()
    }

    /// The workload among those that pass `filter` which was ready last, the dependency that it
    /// waited for last, and so on.
    pub(crate) fn last_chain(&self, filter: impl Fn(&str) -> bool) -> BTreeSet<&str> {
        let among = self
            .all
            .iter()
            .filter(|start| filter(&start.instance.workload));
        let mut next = among
            .filter(|start| start.ready_at().is_some())
            .max_by_key(|start| start.ready_at());
        let (mut chain, by_workload) = (BTreeSet::new(), self.by_workload());
        while let Some(start) = next.filter(|start| chain.insert(&*start.instance.workload)) {
            next = by_workload.get(&*start.waited_for).copied();
        }
        chain
    }
}

fn time<'de, D: Deserializer<'de>>(time: D) -> Result<Option<u64>, D::Error> {
    // Later start times are taken for this one, in milliseconds (35,000 years): nothing that a
    // server sends overflows.
    Option::<u64>::deserialize(time).map(|time| time.map(|time| time.min(1 << 50)))
}

/// The dependency of `start` that was met last while it waited.
fn met_last(start: &Start, needs: &Needs, by_name: &HashMap<&str, Vec<&Start>>) -> String {
    let Some((waiting, starting)) = start.waiting.zip(start.starting) else {
        return String::new();
    };
    let mut last = None;
    for (name, condition) in needs.get(&*start.instance.workload).into_iter().flatten() {
        for other in by_name.get(name.as_str()).into_iter().flatten() {
            let Some(at) = other.met(condition) else {
                continue;
            };
            if (waiting..=starting).contains(&at) {
                last = last.max(Some((at, name)));
            }
        }
    }
    last.map(|(_, name)| name.clone()).unwrap_or_default()
}

/// The time between two moments; `None` when one of them is missing, or they are not in this order.
fn between(from: Option<u64>, to: Option<u64>) -> Option<u64> {
    to?.checked_sub(from?)
}

impl Start {
    /// When a dependency with `condition` on this instance was met.
    fn met(&self, condition: &str) -> Option<u64> {
        match AddCondition::parse(condition)? {
            AddCondition::Running => self.running,
            AddCondition::Succeeded | AddCondition::Failed => self.ended,
        }
    }

    /// When it was ready. Without a report that it starts, it ran before the server knew of it, and
    /// nobody knows when it was ready.
    pub(crate) fn ready_at(&self) -> Option<u64> {
        self.running.filter(|_| self.starting.is_some())
    }

    /// When it was ready; of what ended before it was reported to run, as a short job does, when it
    /// ended.
    pub(crate) fn done_at(&self) -> Option<u64> {
        self.ready_at().or(self
            .ended
            .filter(|_| self.starting.is_some() && self.running.is_none()))
    }

    /// When the start began: with the acceptance of the instance, or, if it had been started
    /// before, with the first report after that.
    pub(crate) fn begin(&self) -> Option<u64> {
        if self.starts > 1 {
            self.waiting.into_iter().chain(self.starting).min()
        } else {
            self.desired
        }
    }

    /// How long it waited before it was started.
    pub(crate) fn waited(&self) -> Option<u64> {
        between(self.waiting, self.starting)
    }

    /// How long its engine took to start it.
    pub(crate) fn start(&self) -> Option<u64> {
        between(self.starting, self.started.or(self.running).or(self.ended))
    }

    /// How long it took from there until it was ready.
    pub(crate) fn ready(&self) -> Option<u64> {
        between(self.started, self.running)
    }

    /// How long it took altogether.
    pub(crate) fn total(&self) -> Option<u64> {
        between(self.begin(), self.done_at())
    }

    /// How long it takes already at `now`, since `from`; `None` when it is done, or has not begun.
    pub(crate) fn so_far(&self, from: Option<u64>, now: u64) -> Option<u64> {
        let goes_on =
            self.waiting.or(self.starting).is_some() && self.running.or(self.ended).is_none();
        between(from.filter(|_| goes_on), Some(now))
    }
}

/// Milliseconds as seconds with three decimals.
pub(crate) fn seconds(milliseconds: u64) -> String {
    format!("{}.{:03}", milliseconds / 1000, milliseconds % 1000)
}

// --------------------- the chart: SVG without scripts and without fonts of its own

/// Width of the chart in pixels, as all lengths here.
const WIDTH: f64 = 800.0;
/// Where the bars begin, behind the names.
const LEFT: f64 = 225.0;
/// Where they end, before the totals.
const RIGHT: f64 = 730.0;
/// Where the first row begins, below the legend.
const TOP: f64 = 62.0;
/// From one row to the next.
const ROW: f64 = 24.0;
/// Height of a bar.
const BAR: f64 = 14.0;
/// Characters of a name and its agent that fit before the bars.
const LABEL_MAX: usize = 28;
/// How much of the time axis follows the last event, as a part of the whole: room for what runs.
const REST: u64 = 20;

/// What an instance does: its name in the legend, its colour, and the height of its bars. The
/// colours differ in brightness too. An instance that is accepted and not reported yet has a line
/// in place of a bar.
type Stage = (&'static str, &'static str, f64);
const STAGES: [Stage; 5] = [
    ("accepted", "#8a8f98", 2.0),
    ("waits", "#c8ccd2", BAR),
    ("starts", "#3b76c4", BAR),
    ("not ready", "#edae49", BAR),
    ("running", "#5fa777", BAR),
];

/// The stages of a start with the moments at which they begin and end, `None` for the last one of
/// what goes on.
fn stages(start: &Start) -> impl Iterator<Item = (Stage, u64, Option<u64>)> {
    let accepted = start.desired.filter(|_| start.begin() == start.desired);
    let begins = [
        accepted,
        start.waiting,
        start.starting,
        start.started,
        start.running,
    ];
    let mut begins: Vec<(u64, Stage)> = begins
        .into_iter()
        .zip(STAGES)
        .filter_map(|(at, it)| Some((at?, it)))
        .collect();
    begins.sort_by_key(|(at, _)| *at);
    let ends: Vec<Option<u64>> = begins
        .iter()
        .skip(1)
        .map(|(at, _)| Some(*at))
        .chain([start.ended])
        .collect();
    begins
        .into_iter()
        .zip(ends)
        .map(|((from, stage), to)| (stage, from, to))
}

/// The chart of `wanted`, by the time at which they were accepted.
fn svg(starts: &Starts, wanted: &[&Start]) -> String {
    let mut rows = wanted.to_vec();
    let or_last = |at: Option<u64>| at.unwrap_or(u64::MAX);
    rows.sort_by_key(|start| {
        (
            or_last(start.begin()),
            or_last(start.starting),
            start.instance.clone(),
        )
    });
    // From the first to the last event, and a little more; to now when something goes on.
    let moments: Vec<u64> = rows
        .iter()
        .flat_map(|start| stages(start))
        .flat_map(|(_, from, to)| [Some(from), to])
        .flatten()
        .collect();
    let from = moments.iter().min().copied().unwrap_or_default();
    let last = moments
        .iter()
        .max()
        .copied()
        .unwrap_or_default()
        .max(from + 1);
    let goes_on = rows
        .iter()
        .any(|start| start.so_far(Some(0), starts.now).is_some());
    let to = if goes_on {
        starts.now.max(last)
    } else {
        last + (last - from).div_ceil(REST)
    };
    let x =
        |at: u64| LEFT + (RIGHT - LEFT) * (at.clamp(from, to) - from) as f64 / (to - from) as f64;

    let bottom = TOP + ROW * rows.len() as f64;
    // What stands below the rows: the axis.
    let height = bottom + 46.0;
    let mut lines = vec![format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\" fill=\"#22262b\">"
    )];
    lines.push(rectangle([0.0, 0.0, WIDTH, height], "#ffffff"));
    lines.push(
        "<text x=\"10\" y=\"24\" font-size=\"15\" font-weight=\"bold\">Start times</text>"
            .to_owned(),
    );
    for (column, (name, colour, height)) in STAGES.iter().enumerate() {
        let (x, height) = (LEFT + 90.0 * column as f64, height.min(10.0));
        lines.push(rectangle([x, 20.0 - height / 2.0, 18.0, height], colour));
        lines.push(format!(
            "<text x=\"{:.1}\" y=\"24\">{name}</text>",
            x + 24.0
        ));
    }
    let note = "Lines lead from what a start waited for. Bold: the chain that was ready last. Right: totals in seconds.";
    lines.push(format!(
        "<text x=\"{LEFT}\" y=\"44\" font-size=\"11\" fill=\"#5b626b\">{note}</text>"
    ));

    // The distance of lines across the chart is 1, 2 or 5 milliseconds, with zeros.
    let mut steps = (0..).flat_map(|zeros| [1, 2, 5].map(|digit| digit * 10_u64.pow(zeros)));
    // Lines across the chart, at most.
    let step = steps.find(|step| (to - from) / step <= 8).unwrap_or(1);
    for tick in (starts.boot + from).div_ceil(step)..=(starts.boot + to) / step {
        let at = tick * step;
        let (x, label) = (x(at - starts.boot), label(at, step));
        lines.push(format!(
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#e3e6ea\"/>"
        ));
        lines.push(format!(
            "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            bottom + 16.0
        ));
    }
    let (middle, below) = ((LEFT + RIGHT) / 2.0, bottom + 36.0);
    lines.push(format!(
        "<text x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\" fill=\"#5b626b\">seconds since the boot of the server's node</text>"
    ));

    let chain =
        starts.last_chain(|name| rows.iter().any(|start| *start.instance.workload == *name));
    let middles = || (0..).map(|row| TOP + ROW / 2.0 + ROW * f64::from(row));
    for (start, y) in rows.iter().zip(middles()) {
        let bars = stages(start).map(|((_, colour, height), from, end)| {
            let (begin, end) = (x(from), x(end.unwrap_or(to)));
            // Bars that are shorter cannot be seen.
            rectangle(
                [begin, y - height / 2.0, (end - begin).max(1.0), height],
                colour,
            )
        });
        let [before, after] = labels(start, y + 4.0, chain.contains(&*start.instance.workload));
        lines.push(before);
        lines.extend(bars);
        lines.push(after);
    }
    // From the row of what a start waited for to its own, where it began.
    for (start, y) in rows.iter().zip(middles()) {
        let needed = rows
            .iter()
            .zip(middles())
            .find(|(other, _)| *other.instance.workload == *start.waited_for);
        let Some(((_, needed_y), begin)) = needed.zip(start.starting) else {
            continue;
        };
        let in_chain = chain.contains(&*start.instance.workload);
        let (colour, width) = if in_chain {
            ("#22262b", 1.6)
        } else {
            ("#8a8f98", 1.0)
        };
        let x = x(begin);
        lines.push(format!(
            "<path d=\"M{x:.1} {needed_y}V{y}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"
        ));
    }
    lines.join("\n") + "\n</svg>\n"
}

fn rectangle([x, y, width, height]: [f64; 4], colour: &str) -> String {
    format!(
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>"
    )
}

/// What stands before and behind the bars of a start.
fn labels(start: &Start, baseline: f64, in_chain: bool) -> [String; 2] {
    let name = shortened(&one_line(&start.instance.workload), LABEL_MAX);
    // The agent only where there is room for a part of it that is of use.
    let agent = match LABEL_MAX.saturating_sub(name.chars().count() + 1) {
        0..4 => String::new(),
        room => shortened(&one_line(&start.instance.agent), room),
    };
    let (weight, right) = (if in_chain { "bold" } else { "normal" }, WIDTH - 10.0);
    let before = format!(
        "<g><title>{}</title>\n<text x=\"10\" y=\"{baseline}\" font-weight=\"{weight}\">{} \
         <tspan fill=\"#5b626b\" font-size=\"11\" font-weight=\"normal\">{}</tspan></text>",
        escaped(&described(start)),
        escaped(&name),
        escaped(&agent)
    );
    let total = start.total().map_or_else(String::new, |total| {
        let total = seconds(total);
        format!("<text x=\"{right}\" y=\"{baseline}\" text-anchor=\"end\" font-weight=\"{weight}\">{total}</text>\n")
    });
    [before, total + "</g>"]
}

/// A moment on the axis, with as many decimals as the distance of its lines needs.
fn label(at: u64, step: u64) -> String {
    let text = seconds(at);
    let decimals = if step >= 1000 {
        0
    } else {
        3_usize.saturating_sub(step.ilog10() as usize)
    };
    text[..text.len() - 3 + decimals]
        .trim_end_matches('.')
        .to_owned()
}

/// What a viewer shows beside the pointer.
fn described(start: &Start) -> String {
    let mut text = format!(
        "{} on {}",
        one_line(&start.instance.workload),
        one_line(&start.instance.agent)
    );
    let reason = one_line(&start.waited_for);
    let reason = if reason.is_empty() {
        reason
    } else {
        format!(" for {reason}")
    };
    for (what, duration, why) in [
        ("waited", start.waited(), &*reason),
        ("start", start.start(), ""),
        ("ready", start.ready(), ""),
        ("total", start.total(), ""),
    ] {
        text.extend(duration.map(|duration| format!(", {what} {} s{why}", seconds(duration))));
    }
    if !start.prepared.is_empty() {
        text.push_str(&format!(", prepared {}", one_line(&start.prepared)));
    }
    text
}

/// Text as XML has it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
pub(crate) mod tests;
