//! The chart of `ank blame`: a bar for each start, as SVG without scripts and without fonts of its own.
//!
//! Thread: `main`, plain functions.

use crate::cli::table::{one_line, shortened};
use crate::cli::timings::{Start, Starts, seconds};

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

/// What an instance does: its name in the legend, its colour, and the height of its bars. The colours differ in brightness
/// too. An instance that is accepted and not reported yet has a line in place of a bar.
type Stage = (&'static str, &'static str, f64);
const STAGES: [Stage; 5] = [
    ("accepted", "#8a8f98", 2.0),
    ("waits", "#c8ccd2", BAR),
    ("starts", "#3b76c4", BAR),
    ("not ready", "#edae49", BAR),
    ("running", "#5fa777", BAR),
];

/// The stages of a start with the moments at which they begin and end, `None` for the last one of what goes on.
fn stages(start: &Start) -> impl Iterator<Item = (Stage, u64, Option<u64>)> {
    let accepted = start.desired.filter(|_| start.begin() == start.desired);
    let begins = [accepted, start.waiting, start.starting, start.started, start.running];
    let mut begins: Vec<(u64, Stage)> = begins.into_iter().zip(STAGES).filter_map(|(at, it)| Some((at?, it))).collect();
    begins.sort_by_key(|(at, _)| *at);
    let ends: Vec<Option<u64>> = begins.iter().skip(1).map(|(at, _)| Some(*at)).chain([start.ended]).collect();
    begins.into_iter().zip(ends).map(|((from, stage), to)| (stage, from, to))
}

/// The chart of `wanted`, by the time at which they were accepted.
pub fn svg(starts: &Starts, wanted: &[&Start]) -> String {
    let mut rows = wanted.to_vec();
    let or_last = |at: Option<u64>| at.unwrap_or(u64::MAX);
    rows.sort_by_key(|start| (or_last(start.begin()), or_last(start.starting), start.instance.clone()));
    // From the first to the last event, and a little more; to now when something goes on.
    let moments: Vec<u64> =
        rows.iter().flat_map(|start| stages(start)).flat_map(|(_, from, to)| [Some(from), to]).flatten().collect();
    let from = moments.iter().min().copied().unwrap_or_default();
    let last = moments.iter().max().copied().unwrap_or_default().max(from + 1);
    let goes_on = rows.iter().any(|start| start.so_far(Some(0), starts.now).is_some());
    let to = if goes_on { starts.now.max(last) } else { last + (last - from).div_ceil(REST) };
    let x = |at: u64| LEFT + (RIGHT - LEFT) * (at.clamp(from, to) - from) as f64 / (to - from) as f64;

    let bottom = TOP + ROW * rows.len() as f64;
    // What stands below the rows: the axis.
    let height = bottom + 46.0;
    let mut lines = vec![format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\" fill=\"#22262b\">"
    )];
    lines.push(rectangle([0.0, 0.0, WIDTH, height], "#ffffff"));
    lines.push("<text x=\"10\" y=\"24\" font-size=\"15\" font-weight=\"bold\">Start times</text>".to_owned());
    for (column, (name, colour, height)) in STAGES.iter().enumerate() {
        let (x, height) = (LEFT + 90.0 * column as f64, height.min(10.0));
        lines.push(rectangle([x, 20.0 - height / 2.0, 18.0, height], colour));
        lines.push(format!("<text x=\"{:.1}\" y=\"24\">{name}</text>", x + 24.0));
    }
    let note =
        "Lines lead from what a start waited for. Bold: the chain that was ready last. Right: totals in seconds.";
    lines.push(format!("<text x=\"{LEFT}\" y=\"44\" font-size=\"11\" fill=\"#5b626b\">{note}</text>"));

    // The distance of lines across the chart is 1, 2 or 5 milliseconds, with zeros.
    let mut steps = (0..).flat_map(|zeros| [1, 2, 5].map(|digit| digit * 10_u64.pow(zeros)));
    // Lines across the chart, at most.
    let step = steps.find(|step| (to - from) / step <= 8).unwrap_or(1);
    for tick in (starts.boot + from).div_ceil(step)..=(starts.boot + to) / step {
        let at = tick * step;
        let (x, label) = (x(at - starts.boot), label(at, step));
        lines.push(format!("<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#e3e6ea\"/>"));
        lines.push(format!("<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>", bottom + 16.0));
    }
    let (middle, below) = ((LEFT + RIGHT) / 2.0, bottom + 36.0);
    lines.push(format!(
        "<text x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\" fill=\"#5b626b\">seconds since the boot of the server's node</text>"
    ));

    let chain = starts.last_chain(|name| rows.iter().any(|start| *start.instance.workload == *name));
    let middles = || (0..).map(|row| TOP + ROW / 2.0 + ROW * f64::from(row));
    for (start, y) in rows.iter().zip(middles()) {
        let bars = stages(start).map(|((_, colour, height), from, end)| {
            let (begin, end) = (x(from), x(end.unwrap_or(to)));
            // Bars that are shorter cannot be seen.
            rectangle([begin, y - height / 2.0, (end - begin).max(1.0), height], colour)
        });
        let [before, after] = labels(start, y + 4.0, chain.contains(&*start.instance.workload));
        lines.push(before);
        lines.extend(bars);
        lines.push(after);
    }
    // From the row of what a start waited for to its own, where it began.
    for (start, y) in rows.iter().zip(middles()) {
        let needed = rows.iter().zip(middles()).find(|(other, _)| *other.instance.workload == *start.waited_for);
        let Some(((_, needed_y), begin)) = needed.zip(start.starting) else { continue };
        let in_chain = chain.contains(&*start.instance.workload);
        let (colour, width) = if in_chain { ("#22262b", 1.6) } else { ("#8a8f98", 1.0) };
        let x = x(begin);
        lines.push(format!("<path d=\"M{x:.1} {needed_y}V{y}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"));
    }
    lines.join("\n") + "\n</svg>\n"
}

fn rectangle([x, y, width, height]: [f64; 4], colour: &str) -> String {
    format!("<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>")
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
    let decimals = if step >= 1000 { 0 } else { 3_usize.saturating_sub(step.ilog10() as usize) };
    text[..text.len() - 3 + decimals].trim_end_matches('.').to_owned()
}

/// What a viewer shows beside the pointer.
fn described(start: &Start) -> String {
    let mut text = format!("{} on {}", one_line(&start.instance.workload), one_line(&start.instance.agent));
    let reason = one_line(&start.waited_for);
    let reason = if reason.is_empty() { reason } else { format!(" for {reason}") };
    for (what, duration, why) in [
        ("waited", start.waited(), &*reason),
        ("start", start.start(), ""),
        ("ready", start.ready(), ""),
        ("total", start.total(), ""),
    ] {
        text.extend(duration.map(|duration| format!(", {what} {} s{why}", seconds(duration))));
    }
    if !start.prepared.is_empty() {
        text.push_str(&format!(", prepared {}", start.prepared));
    }
    text
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
    fn bars(svg: &str, stage: &str) -> Vec<(f64, f64)> {
        let (_, colour, _) = STAGES.iter().find(|(name, ..)| *name == stage).unwrap();
        let bars = svg.lines().filter(|line| line.starts_with("<rect") && line.contains(colour));
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
            ("accepted", 0.0, 100.0),
            ("waits", 100.0, 300.0),
            ("starts", 300.0, 600.0),
            ("not ready", 600.0, 1_000.0),
            ("running", 1_000.0, 1_050.0),
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
        let [(begin, width)] = bars(&svg, "waits")[..] else { panic!("{svg}") };
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
        let running = bars(&svg, "running");
        assert_eq!(running.len(), 2);
        assert!(running[0].0 + running[0].1 < running[1].0, "{running:?}");
        assert_eq!(bars(&svg, "starts").len(), 2);
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
