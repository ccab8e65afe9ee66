//! `ank blame`: the durations of the starts of workloads and the dependencies that they waited for,
//! as a table, JSON or a chart.
//!
//! Thread: `main`, plain functions. All times are in milliseconds since the start of the server,
//! which keeps them.

use super::args::{BlameArguments, Format};
use super::error::{CliError, Result};
use super::events;
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
    let known = starts.all.iter().map(|start| &*start.instance.workload);
    CliError::check_workloads(names, known)?;
    let mut wanted: Vec<&Start> = starts.all.iter().collect();
    if !names.is_empty() {
        wanted.retain(|start| names.iter().any(|name| **name == *start.instance.workload));
    }
    // The longest first.
    wanted.sort_by_key(|start| {
        let so_far = start.so_far(start.begin(), starts.now);
        (Reverse(start.total().or(so_far)), start.instance.clone())
    });
    if *format == Format::Svg {
        return output.result(&Chart::new(&starts, &wanted).svg());
    }
    // An empty list has the headings of this one.
    let blank = Start::default();
    let rows = wanted.iter().map(|start| fields(start, starts.now));
    let mut view = View::new(*format, &fields(&blank, starts.now), rows);
    view.align(&["WAITED", "START", "READY", "TOTAL"]);
    view.table.least_wanted = &["PREPARED", "AGENT", "WAITED FOR"];
    view.table.most_wanted = &["TOTAL"];
    view.head.push(("nowMs", starts.now.into()));
    view.head.push(("bootMs", starts.boot.into()));
    view.print("workloads", TooWide::Drop, None, output)
}

/// The columns of a start at `now`.
fn fields(start: &Start, now: u64) -> Vec<Column> {
    let instance = &start.instance;
    let starts = start.starts;
    let waited = Lasted::new(start, start.waited(), start.waiting, now);
    let started = Lasted::new(start, start.start(), start.starting, now);
    let ready = Lasted::new(start, start.ready(), start.started, now);
    let total = Lasted::new(start, start.total(), start.begin(), now);
    vec![
        Column::text("WORKLOAD NAME", "workload", &instance.workload),
        Column::text("AGENT", "agent", &instance.agent),
        Column::text("ID", "id", &instance.id).wide(),
        Column::new("STARTS", "starts", starts.to_string(), starts).wide(),
        waited.column("WAITED", "waitedMs"),
        Column::optional_text("WAITED FOR", "waitedFor", &start.waited_for),
        Column::optional_text("PREPARED", "prepared", &start.prepared),
        started.column("START", "startMs"),
        ready.column("READY", "readyMs"),
        total.column("TOTAL", "totalMs"),
        Column::data("desiredAtMs", value(start.desired)),
        Column::data("waitingAtMs", value(start.waiting)),
        Column::data("startingAtMs", value(start.starting)),
        Column::data("startedAtMs", value(start.started)),
        Column::data("runningAtMs", value(start.running)),
        Column::data("endedAtMs", value(start.ended)),
    ]
}

/// The duration of a part of a start, which may continue.
struct Lasted {
    whole: Option<u64>,
    so_far: Option<u64>,
}

impl Lasted {
    /// A part of `start` that began at `from`. `whole` is its duration if it has ended.
    fn new(start: &Start, whole: Option<u64>, from: Option<u64>, now: u64) -> Self {
        Self {
            whole,
            so_far: start.so_far(from, now),
        }
    }

    /// The column, with `>` before a part that continues.
    fn column(&self, heading: &'static str, key: &str) -> Column {
        let shown = match (self.whole, self.so_far) {
            (Some(whole), _) => seconds(whole),
            (None, Some(so_far)) => format!(">{}", seconds(so_far)),
            (None, None) => String::new(),
        };
        Column::new(heading, key, shown, value(self.whole))
    }
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

/// Latest time that is read, in milliseconds (35,000 years): nothing that a server sends overflows.
const TIME_MAX: u64 = 1 << 50;

/// The latest start of one instance. Its times are those of first reports; `None` for a state that
/// was not reported.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Start {
    #[serde(skip)]
    pub(crate) instance: InstanceName,
    /// Accepted as a part of the desired state.
    #[serde(deserialize_with = "time")]
    pub(crate) desired: Option<u64>,
    /// Waits for other workloads.
    #[serde(deserialize_with = "time")]
    pub(crate) waiting: Option<u64>,
    #[serde(deserialize_with = "time")]
    pub(crate) starting: Option<u64>,
    /// Started and not ready.
    #[serde(deserialize_with = "time")]
    pub(crate) started: Option<u64>,
    /// Running, which is ready.
    #[serde(deserialize_with = "time")]
    pub(crate) running: Option<u64>,
    #[serde(deserialize_with = "time")]
    pub(crate) ended: Option<u64>,
    /// Number of reported starts.
    pub(crate) starts: u64,
    /// The prepared part of its start; empty without one.
    pub(crate) prepared: String,
    /// The dependency that was met last while it waited; empty without one.
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
        // First read all starts.
        let mut all = Vec::new();
        for (instance, times) in instances(timings.get("instances")) {
            let start: Start = times.read(PART).unwrap_or_default();
            all.push(Start { instance, ..start });
        }
        // Then find the dependency that each waited for last.
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
            now: number(timings, "now"),
            boot: number(timings, "boot"),
            all,
        })
    }

    /// The start of each workload. Of several instances it is the one that was accepted last.
    pub(crate) fn by_workload(&self) -> HashMap<&str, &Start> {
        let mut all: Vec<&Start> = self.all.iter().collect();
        all.sort_by_key(|start| start.desired); // A later one replaces an earlier one.
        let mut by_workload = HashMap::new();
        for start in all {
            by_workload.insert(&*start.instance.workload, start);
        }
        by_workload
    }

    /// The workload that was ready last, the dependency that it waited for last, and so on. The
    /// chain begins with a workload that `filter` accepts.
    pub(crate) fn last_chain(&self, filter: impl Fn(&str) -> bool) -> BTreeSet<&str> {
        // First, find its begin.
        let mut next = None;
        let mut last_ready = None;
        for start in &self.all {
            let Some(ready_at) = start.ready_at() else {
                continue;
            };
            if Some(ready_at) >= last_ready && filter(&start.instance.workload) {
                last_ready = Some(ready_at);
                next = Some(start);
            }
        }
        // Then, follow the dependencies.
        let by_workload = self.by_workload();
        let mut chain = BTreeSet::new();
        while let Some(start) = next {
            if !chain.insert(&*start.instance.workload) {
                break; // Workloads that wait for each other.
            }
            next = by_workload.get(&*start.waited_for).copied();
        }
        chain
    }
}

fn number(timings: &Node, key: &str) -> u64 {
    let number = timings.get(key).and_then(Node::as_number);
    number.unwrap_or_default().min(TIME_MAX)
}

/// Reads a time of at most [`TIME_MAX`].
fn time<'de, D: Deserializer<'de>>(time: D) -> Result<Option<u64>, D::Error> {
    let time = Option::<u64>::deserialize(time)?;
    Ok(time.map(|time| time.min(TIME_MAX)))
}

/// The dependency of `start` that was met last while it waited; empty without one.
fn met_last(start: &Start, needs: &Needs, by_name: &HashMap<&str, Vec<&Start>>) -> String {
    let (Some(waiting), Some(starting)) = (start.waiting, start.starting) else {
        return String::new(); // It did not wait, or still waits.
    };
    let mut last_met = None;
    let mut last_name = "";
    for (name, condition) in needs.get(&*start.instance.workload).into_iter().flatten() {
        for other in by_name.get(name.as_str()).into_iter().flatten() {
            let Some(at) = other.met(condition) else {
                continue;
            };
            // Of several that were met at the same time, the last name is taken.
            if (waiting..=starting).contains(&at) && last_met <= Some(at) {
                last_met = Some(at);
                last_name = name;
            }
        }
    }
    last_name.to_owned()
}

/// The time between two moments; `None` if one of them is missing, or they are not in this order.
fn between(from: Option<u64>, to: Option<u64>) -> Option<u64> {
    to?.checked_sub(from?)
}

impl Start {
    /// The number of starts after the first one; `None` without a start. The count began with the
    /// present process of the server, so there were more if an earlier process knew the instance.
    /// `state` is a complete state with the changes that the server keeps.
    pub(crate) fn restarts(&self, state: &Node) -> Option<Known> {
        let restarts = self.starts.checked_sub(1)?;
        if events::was_known_earlier(state, &self.instance) {
            return Some(Known::AtLeast(restarts));
        }
        Some(Known::Exactly(restarts))
    }

    /// The time at which a dependency with `condition` on this instance was met.
    fn met(&self, condition: &str) -> Option<u64> {
        match AddCondition::parse(condition)? {
            AddCondition::Running => self.running,
            AddCondition::Succeeded | AddCondition::Failed => self.ended,
        }
    }

    /// The time at which the workload was ready. `None` without a report that it starts: then it
    /// ran before the server knew of it.
    pub(crate) fn ready_at(&self) -> Option<u64> {
        self.starting?;
        self.running
    }

    /// The time at which the workload was ready, or at which it ended: a short job may end before
    /// it is reported to run.
    pub(crate) fn done_at(&self) -> Option<u64> {
        self.starting?;
        self.running.or(self.ended)
    }

    /// The begin of the start: the acceptance of the instance, or, after an earlier start, the
    /// first report.
    pub(crate) fn begin(&self) -> Option<u64> {
        if self.starts <= 1 {
            return self.desired;
        }
        let reports = [self.waiting, self.starting];
        reports.into_iter().flatten().min()
    }

    /// The time that it waited before it was started.
    pub(crate) fn waited(&self) -> Option<u64> {
        between(self.waiting, self.starting)
    }

    /// The time that its engine took to start it.
    pub(crate) fn start(&self) -> Option<u64> {
        between(self.starting, self.started.or(self.running).or(self.ended))
    }

    /// The time from the start of its container until it was ready.
    pub(crate) fn ready(&self) -> Option<u64> {
        between(self.started, self.running)
    }

    /// The whole time until it was ready.
    pub(crate) fn total(&self) -> Option<u64> {
        between(self.begin(), self.done_at())
    }

    /// The time since `from` if the start continues at `now`.
    pub(crate) fn so_far(&self, from: Option<u64>, now: u64) -> Option<u64> {
        if self.continues() {
            return between(from, Some(now));
        }
        None
    }

    /// Returns whether the start has begun and is not over.
    fn continues(&self) -> bool {
        let has_begun = self.waiting.is_some() || self.starting.is_some();
        let is_over = self.running.is_some() || self.ended.is_some();
        has_begun && !is_over
    }
}

/// A number that may be known as a lower bound only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    Exactly(u64),
    AtLeast(u64),
}

impl Known {
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Exactly(number) | Self::AtLeast(number) => number,
        }
    }

    /// The cell of a table that shows the number as `shown`, with `>` before a lower bound.
    pub(crate) fn cell(self, shown: &str) -> String {
        match self {
            Self::Exactly(_) => shown.to_owned(),
            Self::AtLeast(_) => format!(">{shown}"),
        }
    }
}

impl Start {
    /// How many milliseconds the instance is in the state `shown` at `now`; `None` without a
    /// report. `state` is a complete state with the changes that the server keeps.
    pub(crate) fn in_state(&self, now: u64, state: &Node, shown: &str) -> Option<Known> {
        if shown.starts_with("Stopping") {
            return None; // The server keeps no time of the begin of a stop.
        }
        let events = [
            self.desired,
            self.waiting,
            self.starting,
            self.started,
            self.running,
            self.ended,
        ];
        let last = events.into_iter().flatten().max()?;
        // First, a state from before the start of the server, if its change is kept. The time `now`
        // begins with the start of the server.
        if let Some(before) = events::before_server_start(state, &self.instance, shown) {
            return Some(Known::Exactly(now.saturating_add(before)));
        }
        // Then, the last report. Without a report that it starts, it ran before the server knew it.
        let since_report = now.saturating_sub(last);
        let has_run = self.running.is_some() || self.ended.is_some();
        if has_run && self.starting.is_none() {
            return Some(Known::AtLeast(since_report));
        }
        Some(Known::Exactly(since_report))
    }
}

/// Milliseconds as seconds with three decimals.
pub(crate) fn seconds(milliseconds: u64) -> String {
    format!("{}.{:03}", milliseconds / 1000, milliseconds % 1000)
}

// --------------------- the chart: SVG without scripts and without fonts of its own

/// Width of the chart in pixels, as all lengths here.
const WIDTH: f64 = 800.0;
/// Left end of the bars, behind the names.
const LEFT: f64 = 225.0;
/// Right end of the bars, before the totals.
const RIGHT: f64 = 730.0;
/// Top of the first row, below the legend.
const TOP: f64 = 62.0;
/// Distance of two rows.
const ROW: f64 = 24.0;
/// Height of a bar.
const BAR: f64 = 14.0;
/// Height of the axis and its caption, below the rows.
const AXIS: f64 = 46.0;
/// Distance of two entries of the legend.
const LEGEND_COLUMN: f64 = 90.0;
/// Characters of a name and its agent that fit before the bars.
const LABEL_MAX: usize = 28;
/// The part of the time axis after the last event, one twentieth: room for running instances.
const REST: u64 = 20;
/// Largest number of lines across the chart.
const AXIS_LINES_MAX: u64 = 8;

/// A part of a start. The colours differ in brightness too. An accepted instance without a report
/// has a line in place of a bar.
#[derive(Clone, Copy)]
struct StartStage {
    /// The name in the legend.
    name: &'static str,
    colour: &'static str,
    height: f64,
}

const STAGES: [StartStage; 5] = [
    StartStage::new("accepted", "#8a8f98", 2.0),
    StartStage::new("waits", "#c8ccd2", BAR),
    StartStage::new("starts", "#3b76c4", BAR),
    StartStage::new("not ready", "#edae49", BAR),
    StartStage::new("running", "#5fa777", BAR),
];

impl StartStage {
    const fn new(name: &'static str, colour: &'static str, height: f64) -> Self {
        Self {
            name,
            colour,
            height,
        }
    }
}

/// A stage of one start, between two moments.
struct Bar {
    stage: StartStage,
    from: u64,
    /// `None` if it continues.
    to: Option<u64>,
}

/// The bars of a start, in the order of time.
fn bars_of(start: &Start) -> Vec<Bar> {
    let mut accepted = None;
    if start.begin() == start.desired {
        accepted = start.desired;
    }
    let begins = [
        accepted,
        start.waiting,
        start.starting,
        start.started,
        start.running,
    ];
    let mut bars = Vec::new();
    for (from, stage) in begins.into_iter().zip(STAGES) {
        if let Some(from) = from {
            bars.push(Bar {
                stage,
                from,
                to: None,
            });
        }
    }
    bars.sort_by_key(|bar| bar.from);
    // Each ends where the next one begins.
    let mut end = start.ended;
    for bar in bars.iter_mut().rev() {
        bar.to = end;
        end = Some(bar.from);
    }
    bars
}

/// The rows and the scale of a chart.
struct Chart<'s> {
    starts: &'s Starts,
    /// By the time at which they were accepted.
    rows: Vec<&'s Start>,
    /// The first and the last moment of the time axis.
    from: u64,
    to: u64,
    /// The workloads of the chain that was ready last.
    chain: BTreeSet<&'s str>,
}

impl<'s> Chart<'s> {
    fn new(starts: &'s Starts, wanted: &[&'s Start]) -> Self {
        let mut rows = wanted.to_vec();
        rows.sort_by_key(|start| {
            let begin = start.begin().unwrap_or(u64::MAX);
            let starting = start.starting.unwrap_or(u64::MAX);
            (begin, starting, start.instance.clone())
        });
        // From the first to the last event, and a little more; to now if a start continues.
        let mut moments = BTreeSet::new();
        let mut continues = false;
        for start in &rows {
            for bar in bars_of(start) {
                moments.insert(bar.from);
                moments.extend(bar.to);
            }
            continues |= start.continues();
        }
        let from = moments.first().copied().unwrap_or_default();
        let last = moments.last().copied().unwrap_or_default().max(from + 1);
        let to = if continues {
            starts.now.max(last)
        } else {
            last + (last - from).div_ceil(REST)
        };
        let chain =
            starts.last_chain(|name| rows.iter().any(|start| *start.instance.workload == *name));
        Self {
            starts,
            rows,
            from,
            to,
            chain,
        }
    }

    fn svg(&self) -> String {
        let mut lines = self.head();
        lines.extend(self.axis());
        lines.extend(self.bars());
        lines.extend(self.links());
        lines.join("\n") + "\n</svg>\n"
    }

    /// The horizontal place of a moment.
    fn x(&self, at: u64) -> f64 {
        let since_from = at.clamp(self.from, self.to) - self.from;
        LEFT + (RIGHT - LEFT) * since_from as f64 / (self.to - self.from) as f64
    }

    /// The middle of a row.
    fn y(row: usize) -> f64 {
        TOP + ROW / 2.0 + ROW * row as f64
    }

    /// The lower end of the rows.
    fn bottom(&self) -> f64 {
        TOP + ROW * self.rows.len() as f64
    }

    fn is_in_chain(&self, start: &Start) -> bool {
        self.chain.contains(&*start.instance.workload)
    }

    /// The title and the legend.
    fn head(&self) -> Vec<String> {
        let height = self.bottom() + AXIS;
        let mut lines = vec![format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" font-size=\"12\" fill=\"#22262b\">"
        )];
        lines.push(rectangle([0.0, 0.0, WIDTH, height], "#ffffff"));
        lines.push(
            "<text x=\"10\" y=\"24\" font-size=\"15\" font-weight=\"bold\">Start times</text>"
                .to_owned(),
        );
        for (column, stage) in STAGES.iter().enumerate() {
            let name = stage.name;
            let x = LEFT + LEGEND_COLUMN * column as f64;
            let height = stage.height.min(10.0);
            let sample = [x, 20.0 - height / 2.0, 18.0, height];
            lines.push(rectangle(sample, stage.colour));
            let x = x + 24.0;
            lines.push(format!("<text x=\"{x:.1}\" y=\"24\">{name}</text>"));
        }
        let note = "Lines lead from what a start waited for. Bold: the chain that was ready last. Right: totals in seconds.";
        lines.push(format!(
            "<text x=\"{LEFT}\" y=\"44\" font-size=\"11\" fill=\"#5b626b\">{note}</text>"
        ));
        lines
    }

    /// The lines across the chart, and the axis below it.
    fn axis(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let bottom = self.bottom();
        let boot = self.starts.boot;
        let step = axis_step(self.to - self.from);
        // The lines are at the multiples of `step` since the boot.
        for tick in (boot + self.from).div_ceil(step)..=(boot + self.to) / step {
            let at = tick * step;
            let x = self.x(at - boot);
            let label = label(at, step);
            let label_y = bottom + 16.0;
            lines.push(format!(
                "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#e3e6ea\"/>"
            ));
            lines.push(format!(
                "<text x=\"{x:.1}\" y=\"{label_y}\" text-anchor=\"middle\">{label}</text>"
            ));
        }
        let middle = (LEFT + RIGHT) / 2.0;
        let caption_y = bottom + 36.0;
        lines.push(format!(
            "<text x=\"{middle}\" y=\"{caption_y}\" text-anchor=\"middle\" fill=\"#5b626b\">seconds since the boot of the server's node</text>"
        ));
        lines
    }

    /// The rows: the name, the bars, and the total.
    fn bars(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (row, start) in self.rows.iter().enumerate() {
            let y = Self::y(row);
            let baseline = y + 4.0;
            let weight = if self.is_in_chain(start) {
                "bold"
            } else {
                "normal"
            };
            lines.push(label_before(start, baseline, weight));
            for Bar { stage, from, to } in bars_of(start) {
                let begin = self.x(from);
                let end = self.x(to.unwrap_or(self.to));
                let width = (end - begin).max(1.0); // A shorter bar cannot be seen.
                let height = stage.height;
                let place = [begin, y - height / 2.0, width, height];
                lines.push(rectangle(place, stage.colour));
            }
            lines.push(label_after(start, baseline, weight));
        }
        lines
    }

    /// The lines from the row of a dependency to that of the start that waited for it, at its
    /// begin.
    fn links(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (row, start) in self.rows.iter().enumerate() {
            let mut rows = self.rows.iter();
            let needed = rows.position(|other| *other.instance.workload == *start.waited_for);
            let (Some(needed_row), Some(begin)) = (needed, start.starting) else {
                continue;
            };
            let style = if self.is_in_chain(start) {
                "stroke=\"#22262b\" stroke-width=\"1.6\""
            } else {
                "stroke=\"#8a8f98\" stroke-width=\"1\""
            };
            let x = self.x(begin);
            let needed_y = Self::y(needed_row);
            let y = Self::y(row);
            lines.push(format!("<path d=\"M{x:.1} {needed_y}V{y}\" {style}/>"));
        }
        lines
    }
}

/// The distance of lines across a chart of `span` milliseconds: 1, 2 or 5, with zeros.
fn axis_step(span: u64) -> u64 {
    let mut power = 1;
    loop {
        for digit in [1, 2, 5] {
            let step = digit * power;
            if span / step <= AXIS_LINES_MAX {
                return step;
            }
        }
        power *= 10;
    }
}

/// The rectangle with the left and upper end, width and height of `place`.
fn rectangle(place: [f64; 4], colour: &str) -> String {
    let [x, y, width, height] = place;
    format!(
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>"
    )
}

/// The name before the bars of a start, and the text that a viewer shows beside the pointer. Begins
/// the group of the row, which [`label_after`] ends.
fn label_before(start: &Start, baseline: f64, weight: &str) -> String {
    let name = shortened(&one_line(&start.instance.workload), LABEL_MAX);
    // The agent only if there is room for a useful part of it.
    let agent = match LABEL_MAX.saturating_sub(name.chars().count() + 1) {
        0..4 => String::new(),
        room => shortened(&one_line(&start.instance.agent), room),
    };
    let title = escaped(&described(start));
    let name = escaped(&name);
    let agent = escaped(&agent);
    format!(
        "<g><title>{title}</title>\n<text x=\"10\" y=\"{baseline}\" font-weight=\"{weight}\">{name} \
         <tspan fill=\"#5b626b\" font-size=\"11\" font-weight=\"normal\">{agent}</tspan></text>"
    )
}

/// The total behind the bars of a start, if it is known, and the end of the group of the row.
fn label_after(start: &Start, baseline: f64, weight: &str) -> String {
    let Some(total) = start.total() else {
        return "</g>".to_owned();
    };
    let total = seconds(total);
    let right = WIDTH - 10.0;
    format!(
        "<text x=\"{right}\" y=\"{baseline}\" text-anchor=\"end\" font-weight=\"{weight}\">{total}</text>\n</g>"
    )
}

/// A moment on the axis, with the decimals that the distance of its lines needs.
fn label(at: u64, step: u64) -> String {
    let text = seconds(at); // With three decimals.
    let decimals = if step >= 1000 {
        0
    } else {
        3_usize.saturating_sub(step.ilog10() as usize)
    };
    let shown = &text[..text.len() - 3 + decimals];
    shown.trim_end_matches('.').to_owned()
}

/// The text that a viewer shows beside the pointer.
fn described(start: &Start) -> String {
    let workload = one_line(&start.instance.workload);
    let agent = one_line(&start.instance.agent);
    let mut text = format!("{workload} on {agent}");
    if let Some(waited) = start.waited() {
        text.push_str(&format!(", waited {} s", seconds(waited)));
        if !start.waited_for.is_empty() {
            text.push_str(&format!(" for {}", one_line(&start.waited_for)));
        }
    }
    let durations = [
        ("start", start.start()),
        ("ready", start.ready()),
        ("total", start.total()),
    ];
    for (name, duration) in durations {
        if let Some(duration) = duration {
            text.push_str(&format!(", {name} {} s", seconds(duration)));
        }
    }
    if !start.prepared.is_empty() {
        text.push_str(&format!(", prepared {}", one_line(&start.prepared)));
    }
    text
}

/// The text with the characters of XML replaced.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
pub(crate) mod tests;
