//! `bench report`: the measured rows of several parts and rounds as one table and one drawing, ours beside those of
//! another folder with programs, or beside what Eclipse Ankaios measured elsewhere.
//!
//! Thread: `main` of the bench. Takes: files with rows of `what`, unit, value, the known value of Eclipse Ankaios and
//! the promised share, separated by tabs. Gives: the table on standard output, the drawing as an SVG file.

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
        let [what, unit, value, peer, share] = fields[..] else { continue };
        let Ok(value) = value.parse() else { continue };
        if !values.contains_key(what) {
            let (peer, share) = (peer.parse().ok(), share.parse().ok());
            order.push(Row { what: what.to_owned(), unit: unit.to_owned(), ours: value, peer, share });
        }
        values.entry(what.to_owned()).or_default().push(value);
    }
    for row in &mut order {
        row.ours = median(values.remove(&row.what).unwrap_or_default());
    }
    order
}

/// Ours beside what was measured of the peer at the same time, if it was.
fn side_by_side(ours: &str, peer: Option<&str>) -> Vec<Row> {
    let mut rows = medians(ours);
    if let Some(peer) = peer {
        let measured: BTreeMap<String, f64> = medians(peer).into_iter().map(|row| (row.what, row.ours)).collect();
        rows.iter_mut().for_each(|row| row.peer = measured.get(&row.what).copied());
    }
    rows
}

fn verdict(row: &Row) -> (String, &'static str) {
    let (Some(peer), Some(share)) = (row.peer.filter(|peer| *peer > 0.0), row.share) else {
        let ratio = row.peer.filter(|peer| *peer > 0.0).map(|peer| format!("{:.3}", row.ours / peer));
        return (ratio.unwrap_or_default(), "");
    };
    let ratio = row.ours / peer;
    (format!("{ratio:.3}"), if ratio <= share { "yes" } else { "NO" })
}

fn table(rows: &[Row], measured: bool) -> String {
    let mut text = String::new();
    let peer = if measured { "PEER" } else { "PEER*" };
    let mut line = |fields: [&str; 7]| {
        let [what, unit, ours, peer, ratio, share, met] = fields;
        let _ = writeln!(text, "{what:<66}{unit:>6}{ours:>10}{peer:>10}{ratio:>8}{share:>9}  {met}");
    };
    line(["", "", "MEASURED", peer, "RATIO", "PROMISE", "MET"]);
    for row in rows {
        let (ratio, met) = verdict(row);
        let known = row.peer.map(number).unwrap_or_default();
        let share = row.share.map(|share| share.to_string()).unwrap_or_default();
        line([&row.what, &row.unit, &number(row.ours), &known, &ratio, &share, met]);
    }
    if !measured {
        text.push_str("* as Eclipse Ankaios was measured elsewhere; PEER_BIN=<folder> measures its programs here\n");
    }
    text
}

/// Bars of the ratios on a logarithmic axis, with a mark where the promise is.
fn svg(rows: &[Row]) -> String {
    const LEFT: f64 = 430.0;
    const WIDTH: f64 = 420.0;
    const LINE: f64 = 22.0;
    /// Ratios from a thousandth to ten.
    fn x(ratio: f64) -> f64 {
        LEFT + WIDTH * ((ratio.clamp(0.001, 10.0).log10() + 3.0) / 4.0)
    }
    let rows: Vec<&Row> = rows.iter().filter(|row| row.peer.is_some_and(|peer| peer > 0.0)).collect();
    let height = 60.0 + LINE * f64::from(u32::try_from(rows.len()).unwrap_or(u32::MAX));
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"980\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"10\" y=\"20\" font-size=\"14\">ours / peer: less is better</text>\n"
    );
    for ratio in [0.001, 0.01, 0.1, 1.0, 10.0] {
        let (at, bottom) = (x(ratio), height - 10.0);
        let _ = writeln!(text, "<line x1=\"{at}\" y1=\"34\" x2=\"{at}\" y2=\"{bottom}\" stroke=\"#ccc\"/>");
        let _ = writeln!(text, "<text x=\"{at}\" y=\"30\" text-anchor=\"middle\">{ratio}</text>");
    }
    let mut y = 40.0;
    for row in rows {
        let ratio = row.ours / row.peer.unwrap_or(1.0);
        let met = row.share.is_none_or(|share| ratio <= share);
        let colour = if met { "#4a7" } else { "#c54" };
        let (label, begin, wide) = (escaped(&row.what), x(0.001), x(ratio) - x(0.001));
        let _ = writeln!(text, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{label}</text>", LEFT - 8.0, y + 13.0);
        let _ = writeln!(text, "<rect x=\"{begin}\" y=\"{y}\" width=\"{wide:.1}\" height=\"15\" fill=\"{colour}\"/>");
        let _ = writeln!(text, "<text x=\"{:.1}\" y=\"{}\">{ratio:.3}</text>", x(ratio) + 4.0, y + 12.0);
        if let Some(share) = row.share {
            let at = x(share);
            let _ = writeln!(
                text,
                "<line x1=\"{at:.1}\" y1=\"{}\" x2=\"{at:.1}\" y2=\"{}\" stroke=\"black\" stroke-width=\"2\"/>",
                y - 1.0,
                y + 16.0
            );
        }
        y += LINE;
    }
    text.push_str("</svg>\n");
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Prints the table and writes the drawing. Answers false when there is nothing to show.
pub fn run(ours: &Path, peer: Option<&Path>, drawing: &Path) -> bool {
    let Ok(own) = fs::read_to_string(ours) else { return false };
    let others = peer.and_then(|path| fs::read_to_string(path).ok());
    let rows = side_by_side(&own, others.as_deref());
    print!("{}", table(&rows, others.is_some()));
    fs::write(drawing, svg(&rows)).is_ok() && !rows.is_empty()
}

/// A small file of rows through table and drawing, so that a mistake there shows before hours of measuring.
pub fn check() -> bool {
    let ours = "a & b\tms\t1\t10\t0.2\na & b\tms\t3\t10\t0.2\na & b\tms\t2\t10\t0.2\nnoted\tMiB\t5\t\t\n";
    let alone = side_by_side(ours, None);
    let beside = side_by_side(ours, Some("a & b\tms\t4\t10\t0.2\nnoted\tMiB\t10\t\t\n"));
    let (ratio, met) = verdict(&alone[0]);
    let measured = verdict(&beside[0]);
    (ratio.as_str(), met) == ("0.200", "yes")
        && (measured.0.as_str(), measured.1) == ("0.500", "NO")
        && verdict(&beside[1]) == ("0.500".to_owned(), "")
        && table(&alone, false).contains("PEER*")
        && svg(&beside).matches("<rect").count() == 3
        && svg(&alone).contains("a &amp; b")
}
