//! `bench report`: the measured rows of several parts and rounds as one table and one drawing, ours
//! beside those of another folder with programs, or beside what Eclipse Ankaios measured elsewhere.
//!
//! Thread: `main` of the bench. Takes: files with rows of `what`, unit, value, the known value of
//! Eclipse Ankaios and the promised share, separated by tabs. Gives: the table on standard output,
//! the drawing as an SVG file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::table::{median, number};

#[derive(Debug, Clone, PartialEq)]
struct Row {
    what: String,
    unit: String,
    ours: f64,
    /// As measured here, or as known.
    peer: Option<f64>,
    share: Option<f64>,
}

/// Medians by row in the order of their first appearance, with the known value and the promise.
fn medians(text: &str) -> Vec<Row> {
    let mut order: Vec<Row> = Vec::new();
    let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [what, unit, value, peer, share] = fields[..] else {
            continue;
        };
        let Ok(value) = value.parse() else { continue };
        if !values.contains_key(what) {
            let (peer, share) = (peer.parse().ok(), share.parse().ok());
            order.push(Row {
                what: what.to_owned(),
                unit: unit.to_owned(),
                ours: value,
                peer,
                share,
            });
        }
        values.entry(what.to_owned()).or_default().push(value);
    }
    for row in &mut order {
        row.ours = median(values.remove(&row.what).unwrap_or_default());
    }
    order
}

/// Our result beside that of the peer at the same time, if there is one.
fn side_by_side(ours: &str, peer: Option<&str>) -> Vec<Row> {
    let mut rows = medians(ours);
    if let Some(peer) = peer {
        let measured: BTreeMap<String, f64> = medians(peer)
            .into_iter()
            .map(|row| (row.what, row.ours))
            .collect();
        rows.iter_mut()
            .for_each(|row| row.peer = measured.get(&row.what).copied());
    }
    rows
}

/// The ratio to the peer, and whether the promise is met; both empty without a value of the peer.
fn verdict(row: &Row) -> (String, &'static str) {
    let Some(peer) = row.peer.filter(|peer| *peer > 0.0) else {
        return (String::new(), "");
    };
    let ratio = row.ours / peer;
    let met = match row.share {
        Some(share) if ratio <= share => "yes",
        Some(_) => "NO",
        None => "",
    };
    (format!("{ratio:.3}"), met)
}

fn table(rows: &[Row], measured: bool) -> String {
    let mut text = String::new();
    let peer = if measured { "PEER" } else { "PEER*" };
    let mut line = |fields: [&str; 7]| {
        let [what, unit, ours, peer, ratio, share, met] = fields;
        let _ = writeln!(
            text,
            "{what:<66}{unit:>6}{ours:>10}{peer:>10}{ratio:>8}{share:>9}  {met}"
        );
    };
    line(["", "", "MEASURED", peer, "RATIO", "PROMISE", "MET"]);
    for row in rows {
        let (ratio, met) = verdict(row);
        let known = row.peer.map(number).unwrap_or_default();
        let share = row.share.map(|share| share.to_string()).unwrap_or_default();
        line([
            &row.what,
            &row.unit,
            &number(row.ours),
            &known,
            &ratio,
            &share,
            met,
        ]);
    }
    if !measured {
        text.push_str("* as Eclipse Ankaios was measured elsewhere; PEER_BIN=<folder> measures its programs here\n");
    }
    text
}

/// The rows that the drawing always shows: flash, memory, CPU and delay of the programs of each
/// kind. Each row in which we are behind is shown as well.
const DRAWN: [(&str, &str); 7] = [
    ("ank-agent: stripped binary", "flash, agent"),
    ("ank-server: stripped binary", "flash, server"),
    (
        "agent: memory, workloads: 20",
        "memory, agent with 20 workloads",
    ),
    ("agent: anonymous memory, workloads: 20", "of it in no file"),
    (
        "1000 workloads on 50 agents: memory",
        "memory, server with 1,000 workloads",
    ),
    (
        "agent and podman: CPU of an idle minute, workloads: 20",
        "CPU, idle agent and podman with 20 workloads",
    ),
    (
        "exit of a container until ank get workloads shows it (median)",
        "delay, exit of a container until it is shown",
    ),
];

/// The rows of the drawing with their labels.
fn drawn(rows: &[Row]) -> Vec<(&Row, &str)> {
    let mut shown = Vec::new();
    for (what, label) in DRAWN {
        if let Some(row) = rows.iter().find(|row| row.what == what) {
            shown.push((row, label));
        }
    }
    for row in rows {
        let is_behind = row.peer.is_some_and(|peer| peer > 0.0 && row.ours > peer);
        if is_behind && !DRAWN.iter().any(|(what, _)| *what == row.what) {
            shown.push((row, &row.what));
        }
    }
    shown
}

/// Bars from zero: ours in front of that of Eclipse Ankaios, which is as long for each, with the
/// values beside them.
fn svg(rows: &[Row]) -> String {
    const LEFT: f64 = 410.0;
    const WIDTH: f64 = 400.0;
    const LINE: f64 = 30.0;
    let mut bars = String::new();
    let mut y = 44.0;
    for (row, label) in drawn(rows) {
        let Some(peer) = row.peer.filter(|peer| *peer > 0.0) else {
            continue;
        };
        let (ratio, baseline) = (row.ours / peer, y + 15.0);
        let values = format!("{} / {} {}", number(row.ours), number(peer), row.unit);
        let own = WIDTH * ratio;
        let beside = LEFT + own.max(WIDTH) + 8.0;
        let _ = writeln!(
            bars,
            "<text x=\"{}\" y=\"{baseline}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            escaped(label)
        );
        let _ = writeln!(
            bars,
            "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{WIDTH}\" height=\"20\" fill=\"#ddd\"/>"
        );
        let _ = writeln!(
            bars,
            "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{own:.1}\" height=\"20\" fill=\"#4a7\"/>"
        );
        let _ = writeln!(
            bars,
            "<text x=\"{beside:.1}\" y=\"{baseline}\">{values}</text>"
        );
        y += LINE;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"980\" height=\"{y}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"26\" font-size=\"14\">green: ankaios-lite, grey: Eclipse Ankaios; shorter is better</text>\n\
         {bars}</svg>\n"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Prints the table and writes the drawing. Returns false when there is nothing to show.
pub fn run(ours: &Path, peer: Option<&Path>, drawing: &Path) -> bool {
    let Ok(own) = fs::read_to_string(ours) else {
        return false;
    };
    let others = peer.and_then(|path| fs::read_to_string(path).ok());
    let rows = side_by_side(&own, others.as_deref());
    print!("{}", table(&rows, others.is_some()));
    fs::write(drawing, svg(&rows)).is_ok() && !rows.is_empty()
}

/// A small file of rows through table and drawing, so that a mistake there shows before hours of
/// measuring.
pub fn check() -> bool {
    let ours =
        "a & b\tms\t1\t10\t0.2\na & b\tms\t3\t10\t0.2\na & b\tms\t2\t10\t0.2\nnoted\tMiB\t5\t\t\n";
    let alone = side_by_side(ours, None);
    let beside = side_by_side(ours, Some("a & b\tms\t4\t10\t0.2\nnoted\tMiB\t10\t\t\n"));
    let drawn = side_by_side(
        "ank-agent: stripped binary\tMB\t2\t4\t0.6\nother\tms\t1\t2\t\nbehind\tms\t3\t2\t\n",
        None,
    );
    let (ratio, met) = verdict(&alone[0]);
    let measured = verdict(&beside[0]);
    (ratio.as_str(), met) == ("0.200", "yes")
        && (measured.0.as_str(), measured.1) == ("0.500", "NO")
        && verdict(&beside[1]) == ("0.500".to_owned(), "")
        && table(&alone, false).contains("PEER*")
        && table(&beside, true).contains("a & b")
        && svg(&drawn).matches("<rect").count() == 5
        && svg(&drawn).contains(">behind<")
        && svg(&drawn).contains(">2.00 / 4.00 MB<")
}
