//! The chart of `ank blame`: a bar for each start, as SVG without scripts and without fonts of its own.
//!
//! Thread: `main`, plain functions.

use crate::cli::table::one_line;
use crate::cli::timings::{Start, Starts, seconds};
use std::fmt::{Display, Write};

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
/// What stands below the rows: the axis.
const BOTTOM: f64 = 46.0;
/// Bars that are shorter cannot be seen.
const BAR_MIN: f64 = 1.0;
/// Characters of a name and its agent that fit before the bars.
const LABEL_MAX: usize = 28;
/// Lines across the chart, at most.
const TICKS_MAX: u64 = 8;
/// How much of the time axis follows the last event, as a part of the whole: room for what runs.
const REST: u64 = 20;

/// What an instance does: its name in the legend, and its colour. The colours differ in brightness too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Accepted,
    Waited,
    Start,
    Ready,
    Running,
}

impl Stage {
    const ALL: [(Self, &'static str, &'static str); 5] = [
        (Self::Accepted, "accepted", "#8a8f98"),
        (Self::Waited, "waits", "#c8ccd2"),
        (Self::Start, "starts", "#3b76c4"),
        (Self::Ready, "not ready", "#edae49"),
        (Self::Running, "running", "#5fa777"),
    ];

    fn colour(self) -> &'static str {
        Self::ALL[self as usize].2
    }

    /// An instance that is accepted and not reported yet has a line in place of a bar.
    fn height(self) -> f64 {
        if self == Self::Accepted { 2.0 } else { BAR }
    }
}

/// The stages of a start with the moments at which they begin and end, `None` for the last one of what goes on.
fn stages(start: &Start) -> Vec<(Stage, u64, Option<u64>)> {
    let accepted = start.desired.filter(|_| start.begin() == start.desired);
    let begins = [
        (Stage::Accepted, accepted),
        (Stage::Waited, start.waiting),
        (Stage::Start, start.starting),
        (Stage::Ready, start.started),
        (Stage::Running, start.running),
    ];
    let mut begins: Vec<(Stage, u64)> = begins.into_iter().filter_map(|(stage, at)| Some((stage, at?))).collect();
    begins.sort_by_key(|(_, at)| *at);
    let next = begins.iter().skip(1).map(|(_, at)| Some(*at)).chain([start.ended]);
    begins.iter().zip(next).map(|((stage, from), to)| (*stage, *from, to)).collect()
}

/// The time that the chart shows, and where on it a moment is.
struct Axis {
    from: u64,
    to: u64,
}

impl Axis {
    /// From the first to the last event of `starts`, and a little more; to `now` when one of them goes on.
    fn of(starts: &[&Start], now: u64) -> Self {
        let moments = || {
            let of_one = |start: &&Start| stages(start).into_iter().flat_map(|(_, from, to)| [Some(from), to]);
            starts.iter().flat_map(of_one).flatten()
        };
        let from = moments().min().unwrap_or_default();
        let to = moments().max().unwrap_or_default().max(from + 1);
        let goes_on = starts.iter().any(|start| start.so_far(Some(0), now).is_some());
        Self { from, to: if goes_on { now.max(to) } else { to + (to - from).div_ceil(REST) } }
    }

    fn x(&self, at: u64) -> f64 {
        let part = at.clamp(self.from, self.to) - self.from;
        LEFT + (RIGHT - LEFT) * part as f64 / (self.to - self.from) as f64
    }

    /// The distance of lines across the chart, in milliseconds: 1, 2 or 5 with zeros.
    fn step(&self) -> u64 {
        let mut power = 1;
        loop {
            for step in [power, 2 * power, 5 * power] {
                if (self.to - self.from) / step <= TICKS_MAX {
                    return step;
                }
            }
            power *= 10;
        }
    }
}

/// The chart of `wanted`, by the time at which they were accepted.
pub fn svg(starts: &Starts, wanted: &[&Start]) -> String {
    let mut rows = wanted.to_vec();
    let or_last = |at: Option<u64>| at.unwrap_or(u64::MAX);
    rows.sort_by_key(|start| (or_last(start.begin()), or_last(start.starting), start.instance.clone()));
    let axis = Axis::of(&rows, starts.now);
    let bottom = TOP + ROW * rows.len() as f64;
    let mut chart = Chart { text: String::new(), axis, bottom };
    let height = bottom + BOTTOM;
    let _ = writeln!(
        chart.text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\" fill=\"#22262b\">"
    );
    chart.rectangle(0.0, 0.0, WIDTH, height, "#ffffff");
    chart.legend();
    chart.time_axis(starts);
    let chain = starts.last_chain(|name| rows.iter().any(|start| *start.instance.workload == *name));
    for (start, y) in rows.iter().zip(middles()) {
        chart.row(start, y, chain.contains(&*start.instance.workload));
    }
    for (start, y) in rows.iter().zip(middles()) {
        let needed = rows.iter().zip(middles()).find(|(other, _)| *other.instance.workload == *start.waited_for);
        if let Some(((_, needed_y), begin)) = needed.zip(start.starting) {
            chart.link(needed_y, y, begin, chain.contains(&*start.instance.workload));
        }
    }
    chart.text + "</svg>\n"
}

/// The middles of the rows.
fn middles() -> impl Iterator<Item = f64> {
    std::iter::successors(Some(TOP + ROW / 2.0), |y| Some(y + ROW))
}

/// The text so far.
struct Chart {
    text: String,
    axis: Axis,
    /// Where the rows end.
    bottom: f64,
}

impl Chart {
    fn rectangle(&mut self, x: f64, y: f64, width: f64, height: f64, colour: &str) {
        self.line(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>"
        ));
    }

    fn line(&mut self, text: impl Display) {
        let _ = writeln!(self.text, "{text}"); // Writing to a String cannot fail.
    }

    fn legend(&mut self) {
        self.line("<text x=\"10\" y=\"24\" font-size=\"15\" font-weight=\"bold\">Start times</text>");
        let mut x = LEFT;
        for (stage, name, colour) in Stage::ALL {
            let height = stage.height().min(10.0);
            self.rectangle(x, 20.0 - height / 2.0, 18.0, height, colour);
            self.line(format_args!("<text x=\"{:.1}\" y=\"24\">{name}</text>", x + 24.0));
            x += 90.0;
        }
        let note =
            "Lines lead from what a start waited for. Bold: the chain that was ready last. Right: totals in seconds.";
        self.line(format_args!("<text x=\"{LEFT}\" y=\"44\" font-size=\"11\" fill=\"#5b626b\">{note}</text>"));
    }

    fn time_axis(&mut self, starts: &Starts) {
        let step = self.axis.step();
        let (from, to) = (starts.since_boot(self.axis.from), starts.since_boot(self.axis.to));
        let bottom = self.bottom;
        let mut at = from.div_ceil(step) * step;
        while at <= to {
            let x = self.axis.x(at - starts.boot);
            self.line(format_args!(
                "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#e3e6ea\"/>"
            ));
            let label = label(at, step);
            self.line(format_args!("<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>", bottom + 16.0));
            at += step;
        }
        let (x, y) = ((LEFT + RIGHT) / 2.0, bottom + 36.0);
        self.line(format_args!(
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" fill=\"#5b626b\">seconds since the boot of the server's node</text>"
        ));
    }

    fn row(&mut self, start: &Start, y: f64, in_chain: bool) {
        self.line(format_args!("<g><title>{}</title>", escaped(&described(start))));
        let (name, agent) = (one_line(&start.instance.workload), one_line(&start.instance.agent));
        let name_shown = shortened(&name, LABEL_MAX);
        // The agent only where there is room for a part of it that is of use.
        let agent_room = LABEL_MAX.saturating_sub(name_shown.chars().count() + 1);
        let agent = if agent_room < 4 { String::new() } else { shortened(&agent, agent_room) };
        let (weight, baseline) = (if in_chain { "bold" } else { "normal" }, y + 4.0);
        self.line(format_args!(
            "<text x=\"10\" y=\"{baseline}\" font-weight=\"{weight}\">{} \
             <tspan fill=\"#5b626b\" font-size=\"11\" font-weight=\"normal\">{}</tspan></text>",
            escaped(&name_shown),
            escaped(&agent)
        ));
        for (stage, from, to) in stages(start) {
            let (x, end) = (self.axis.x(from), self.axis.x(to.unwrap_or(self.axis.to)));
            let height = stage.height();
            self.rectangle(x, y - height / 2.0, (end - x).max(BAR_MIN), height, stage.colour());
        }
        if let Some(total) = start.total() {
            let (x, total) = (WIDTH - 10.0, seconds(total));
            self.line(format_args!(
                "<text x=\"{x}\" y=\"{baseline}\" text-anchor=\"end\" font-weight=\"{weight}\">{total}</text>"
            ));
        }
        self.line("</g>");
    }

    /// A line from the row of what a start waited for to that of the start, which began at `begin`.
    fn link(&mut self, needed_y: f64, y: f64, begin: u64, in_chain: bool) {
        let x = self.axis.x(begin);
        let (colour, width) = if in_chain { ("#22262b", 1.6) } else { ("#8a8f98", 1.0) };
        self.line(format_args!("<path d=\"M{x:.1} {needed_y}V{y}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"));
    }
}

/// A moment on the axis, with as many decimals as the distance of its lines needs.
fn label(at: u64, step: u64) -> String {
    let text = seconds(at);
    let decimals = if step >= 1000 { 0 } else { 3_usize.saturating_sub(step.ilog10() as usize) };
    text[..text.len() - 3 + decimals].trim_end_matches('.').to_owned()
}

/// What a viewer shows beside the pointer.
fn described(start: &Start) -> String {
    let mut text = format!("{} on {}", one_line(&start.instance.workload), one_line(&start.instance.agent));
    for (what, duration) in
        [("waited", start.waited()), ("start", start.start()), ("ready", start.ready()), ("total", start.total())]
    {
        let reason = if what == "waited" && !start.waited_for.is_empty() {
            format!(" for {}", one_line(&start.waited_for))
        } else {
            String::new()
        };
        text.extend(duration.map(|duration| format!(", {what} {} s{reason}", seconds(duration))));
    }
    if !start.prepared.is_empty() {
        text.push_str(&format!(", prepared {}", start.prepared));
    }
    text
}

fn shortened(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_owned();
    }
    text.chars().take(characters.saturating_sub(3)).collect::<String>() + "..."
}

/// Text as XML has it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::timings::tests::{chain, state};
    use crate::model::node::Node;

    fn drawn(state: &Node) -> String {
        let starts = Starts::of(state).unwrap();
        svg(&starts, &starts.all.iter().collect::<Vec<_>>())
    }

    /// Bars of one colour: where they begin, and how long they are.
    fn bars(svg: &str, stage: Stage) -> Vec<(f64, f64)> {
        let bars = svg.lines().filter(|line| line.starts_with("<rect") && line.contains(stage.colour()));
        let number = |line: &str, key: &str| {
            let (_, rest) = line.split_once(&format!(" {key}=\"")).unwrap();
            rest.split_once('"').unwrap().0.parse::<f64>().unwrap()
        };
        bars.skip(1).map(|line| (number(line, "x"), number(line, "width"))).collect() // The first is in the legend.
    }

    #[test]
    fn each_stage_ends_where_the_next_one_begins() {
        let svg = drawn(&state(&[("w", [Some(0), Some(100), Some(300), Some(600), Some(1_000), None])]));
        // 1,000 ms and a twentieth of that are as wide as all bars.
        let x = |at: f64| LEFT + (RIGHT - LEFT) * at / 1_050.0;
        for (stage, from, to) in [
            (Stage::Accepted, 0.0, 100.0),
            (Stage::Waited, 100.0, 300.0),
            (Stage::Start, 300.0, 600.0),
            (Stage::Ready, 600.0, 1_000.0),
            (Stage::Running, 1_000.0, 1_050.0),
        ] {
            let [(begin, width)] = bars(&svg, stage)[..] else { panic!("{stage:?}: {svg}") };
            let (expected, end) = (x(from), x(to));
            assert!((begin - expected).abs() < 0.1 && (begin + width - end).abs() < 0.2, "{stage:?}: {begin} {width}");
        }
    }

    #[test]
    fn the_chart_ended_at_the_last_event_although_something_waited() {
        let svg = drawn(&state(&[
            ("runs", [Some(0), None, Some(10), None, Some(1_000), None]),
            ("waits", [Some(0), Some(3_000), None, None, None, None]),
        ]));
        let [(begin, width)] = bars(&svg, Stage::Waited)[..] else { panic!("{svg}") };
        assert!((begin - LEFT - (RIGHT - LEFT) / 3.0).abs() < 0.1, "now is at 9 s: {svg}");
        assert!((begin + width - RIGHT).abs() < 0.2 && svg.contains(">not ready<"), "{svg}");
    }

    #[test]
    fn what_ended_does_not_go_on_and_what_has_no_time_has_no_bar() {
        let svg = drawn(&state(&[
            ("job", [Some(0), None, Some(10), None, Some(200), Some(400)]),
            ("none", [None; 6]),
            ("runs", [Some(0), None, Some(10), None, Some(1_000), None]),
        ]));
        let running = bars(&svg, Stage::Running);
        assert_eq!(running.len(), 2);
        assert!(running[0].0 + running[0].1 < running[1].0, "{running:?}");
        assert_eq!(bars(&svg, Stage::Start).len(), 2);
        assert!(svg.contains(">none <"), "{svg}");
    }

    #[test]
    fn bars_are_in_the_order_of_acceptance_and_linked_to_what_they_waited_for() {
        let svg = drawn(&chain());
        let names = ["disk", "setup", "lone", "db", "web", "late"];
        let places: Vec<usize> = names.map(|name| svg.find(&format!(">{name} <tspan")).expect(name)).into();
        assert!(places.is_sorted(), "{places:?}");
        assert_eq!(svg.matches("<path").count(), 2);
        assert_eq!(svg.matches("font-weight=\"bold\">disk").count(), 1);
        assert_eq!(svg.matches("font-weight=\"bold\">setup").count(), 0);
        assert!(svg.contains("<title>web on A, waited 1.779 s for db, start 0.248 s, total 2.050 s</title>"), "{svg}");
    }

    #[test]
    fn the_axis_has_a_few_round_labels_at_any_scale() {
        for (last, boot, expected) in [
            (2_050, 3_000, &["3.0", "3.5", "4.0", "4.5", "5.0"][..]),
            (40, 1_234, &["1.235", "1.240", "1.245", "1.250", "1.255", "1.260", "1.265", "1.270", "1.275"]),
            (9_999_999, 500, &["2000", "4000", "6000", "8000", "10000"]),
        ] {
            let mut state = state(&[("w", [Some(0), None, None, None, Some(last), None])]);
            *state.at_mut(&["timings", "boot"]).unwrap() = Node::Number(boot);
            let svg = drawn(&state);
            let labels = svg.lines().filter(|line| line.contains("text-anchor=\"middle\">"));
            let labels: Vec<&str> = labels.map(|line| line.split(['>', '<']).nth(2).unwrap()).collect();
            assert_eq!(labels, expected);
        }
    }

    #[test]
    fn names_of_any_kind_leave_the_chart_whole() {
        let long = "n".repeat(63);
        let svg = drawn(&state(&[("<a&\"b\">\u{1b}", [Some(0); 6]), (&long, [Some(u64::MAX); 6]), ("", [None; 6])]));
        assert!(svg.contains("&lt;a&amp;&quot;b&quot;&gt;") && !svg.contains('\u{1b}'), "{svg}");
        assert!(svg.contains(&format!(">{}... <", "n".repeat(25))), "{svg}");
        assert_eq!(svg.matches("<g>").count(), svg.matches("</g>").count());
    }

    #[test]
    fn no_workloads_are_an_empty_chart() {
        let svg = drawn(&state(&[]));
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && !svg.contains("NaN"), "{svg}");
    }
}
