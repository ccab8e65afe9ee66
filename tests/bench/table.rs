//! Measured numbers beside those of Eclipse Ankaios and the promised share of them.
//!
//! Thread: `main` of the bench.

use std::io::Write as _;

/// What a measured number is held against.
#[derive(Clone, Copy)]
enum Promise {
    /// Only good to know.
    None,
    /// At most `share` of what Eclipse Ankaios needs.
    OfPeer { peer: f64, share: f64 },
    /// At most `share`, if there is one, of the result beside it in the same run.
    Beside { base: f64, share: Option<f64> },
    /// A count that is so large at most.
    AtMost { most: f64 },
}

struct Row {
    what: String,
    unit: &'static str,
    ours: f64,
    promise: Promise,
}

#[derive(Default)]
pub struct Table {
    rows: Vec<Row>,
}

impl Table {
    fn add(&mut self, what: &str, unit: &'static str, ours: f64, promise: Promise) {
        self.rows.push(Row {
            what: what.to_owned(),
            unit,
            ours,
            promise,
        });
    }

    /// A number with a promise about it: `share` of `peer` at most.
    pub fn promised(&mut self, what: &str, unit: &'static str, ours: f64, peer: f64, share: f64) {
        self.add(what, unit, ours, Promise::OfPeer { peer, share });
    }

    /// A number that is only good to know.
    pub fn noted(&mut self, what: &str, unit: &'static str, ours: f64) {
        self.add(what, unit, ours, Promise::None);
    }

    /// A number beside another one of the same run, of which it is `share` at most.
    pub fn beside(
        &mut self,
        what: &str,
        unit: &'static str,
        ours: f64,
        base: f64,
        share: Option<f64>,
    ) {
        self.add(what, unit, ours, Promise::Beside { base, share });
    }

    /// A count that is `most` at most.
    pub fn counted(&mut self, what: &str, ours: f64, most: f64) {
        self.add(what, "", ours, Promise::AtMost { most });
    }

    /// Prints the table; appends its rows to the file that `BENCH_ROWS` names, where `bench report`
    /// finds them.
    pub fn print(&self) {
        let rows: String = self.rows.iter().map(Row::as_reported).collect();
        append_rows(&rows);
        let has_peer = self.rows.iter().any(Row::is_of_peer);
        let second = if has_peer { "PEER" } else { "BESIDE" };
        print_line(["", "", "MEASURED", second, "RATIO", "PROMISE", "MET"]);
        for row in &self.rows {
            row.print();
        }
    }
}

/// Appends lines to the file that `BENCH_ROWS` names, if there is one.
pub fn append_rows(rows: &str) {
    let Some(path) = std::env::var_os("BENCH_ROWS").filter(|path| !path.is_empty()) else {
        return;
    };
    let file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(path);
    let mut file = file.expect("the file of BENCH_ROWS is writable");
    file.write_all(rows.as_bytes())
        .expect("the file of BENCH_ROWS is writable");
}

fn print_line(cells: [&str; 7]) {
    let [what, unit, ours, peer, ratio, share, met] = cells;
    println!("{what:<74}{unit:>6}{ours:>10}{peer:>10}{ratio:>8}{share:>9}  {met}");
}

impl Row {
    fn is_of_peer(&self) -> bool {
        matches!(self.promise, Promise::OfPeer { .. })
    }

    /// One line for `bench report`: what, unit, value, known value of the peer, promised share. What
    /// was measured beside it is not of the peer.
    fn as_reported(&self) -> String {
        let known = match self.promise {
            Promise::OfPeer { peer, share } => format!("{peer}\t{share}"),
            _ => "\t".to_owned(),
        };
        format!("{}\t{}\t{}\t{known}\n", self.what, self.unit, self.ours)
    }

    fn print(&self) {
        let ours = number(self.ours);
        let (other, share) = match self.promise {
            Promise::None => {
                print_line([&self.what, self.unit, &ours, "", "", "", ""]);
                return;
            }
            Promise::AtMost { most } => {
                let met = met(self.ours <= most);
                let most = most.to_string();
                print_line([&self.what, self.unit, &ours, "", "", &most, met]);
                return;
            }
            Promise::OfPeer { peer, share } => (peer, Some(share)),
            Promise::Beside { base, share } => (base, share),
        };
        let ratio = self.ours / other;
        let ratio_text = format!("{ratio:.3}");
        let share_text = share.map_or_else(String::new, |share| share.to_string());
        let met = share.map_or("", |share| met(ratio <= share));
        print_line([
            &self.what,
            self.unit,
            &ours,
            &number(other),
            &ratio_text,
            &share_text,
            met,
        ]);
    }
}

fn met(is_met: bool) -> &'static str {
    if is_met { "yes" } else { "NO" }
}

/// Three digits that count.
pub fn number(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
