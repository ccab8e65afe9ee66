//! Measured numbers beside those of Eclipse Ankaios and the promised share of them.
//!
//! Thread: `main` of the bench.

use std::io::Write as _;

/// One line: what, unit, ours, theirs and the promised share, if there are any.
struct Row {
    what: String,
    unit: &'static str,
    ours: f64,
    promise: Option<(f64, f64)>,
}

#[derive(Default)]
pub struct Table {
    rows: Vec<Row>,
}

impl Table {
    /// A number with a promise about it: `share` of `peer` at most.
    pub fn promised(&mut self, what: &str, unit: &'static str, ours: f64, peer: f64, share: f64) {
        self.rows.push(Row {
            what: what.to_owned(),
            unit,
            ours,
            promise: Some((peer, share)),
        });
    }

    /// A number that is only good to know.
    pub fn noted(&mut self, what: &str, unit: &'static str, ours: f64) {
        self.rows.push(Row {
            what: what.to_owned(),
            unit,
            ours,
            promise: None,
        });
    }

    /// Prints the table; appends its rows to the file that `BENCH_ROWS` names, where `bench report`
    /// finds them.
    pub fn print(&self) {
        if let Some(path) = std::env::var_os("BENCH_ROWS").filter(|path| !path.is_empty()) {
            let text =
                |promise: Option<f64>| promise.map(|value| value.to_string()).unwrap_or_default();
            let row = |row: &Row| {
                let (peer, share) = (
                    row.promise.map(|promise| promise.0),
                    row.promise.map(|promise| promise.1),
                );
                format!(
                    "{}\t{}\t{}\t{}\t{}\n",
                    row.what,
                    row.unit,
                    row.ours,
                    text(peer),
                    text(share)
                )
            };
            let rows: String = self.rows.iter().map(row).collect();
            let file = std::fs::File::options()
                .create(true)
                .append(true)
                .open(path);
            file.and_then(|mut file| file.write_all(rows.as_bytes()))
                .expect("the file of BENCH_ROWS is writable");
        }
        let line = |what: &str,
                    unit: &str,
                    ours: &str,
                    peer: &str,
                    ratio: &str,
                    share: &str,
                    met: &str| {
            println!("{what:<62}{unit:>6}{ours:>10}{peer:>10}{ratio:>8}{share:>9}  {met}");
        };
        line("", "", "MEASURED", "PEER", "RATIO", "PROMISE", "MET");
        for Row {
            what,
            unit,
            ours,
            promise,
        } in &self.rows
        {
            let ours_text = number(*ours);
            match promise {
                None => line(what, unit, &ours_text, "", "", "", ""),
                Some((peer, share)) => {
                    let ratio = ours / peer;
                    let met = if ratio <= *share { "yes" } else { "NO" };
                    line(
                        what,
                        unit,
                        &ours_text,
                        &number(*peer),
                        &format!("{ratio:.3}"),
                        &share.to_string(),
                        met,
                    );
                }
            }
        }
    }
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
