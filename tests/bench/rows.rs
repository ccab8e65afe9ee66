//! Times that are measured several times, each under a key; a table has their medians.
//!
//! Thread: `main` of the bench.

use std::collections::BTreeMap;

use super::table::{Table, median};

#[derive(Default)]
pub struct Rows {
    values: BTreeMap<String, Vec<f64>>,
}

impl Rows {
    /// Adds a value: seconds, or a count.
    pub fn note(&mut self, key: &str, value: f64) {
        self.values.entry(key.to_owned()).or_default().push(value);
    }

    /// `None` when nothing was measured under this key.
    fn median(&self, key: &str) -> Option<f64> {
        self.values.get(key).cloned().map(median)
    }

    /// A line in seconds, without anything beside it.
    pub fn noted(&self, table: &mut Table, what: &str, key: &str) {
        if let Some(value) = self.median(key) {
            table.noted(what, "s", value);
        }
    }

    /// A line in seconds beside those of another key, of which it is `share` at most.
    pub fn beside(&self, table: &mut Table, what: &str, key: &str, base: &str, share: Option<f64>) {
        self.beside_in(table, what, "s", key, base, share);
    }

    /// As `beside`, in another unit: `s`, `ms`, or none for counts.
    pub fn beside_in(
        &self,
        table: &mut Table,
        what: &str,
        unit: &'static str,
        key: &str,
        base: &str,
        share: Option<f64>,
    ) {
        let factor = if unit == "ms" { 1000.0 } else { 1.0 };
        let Some(value) = self.median(key) else {
            return;
        };
        match self.median(base) {
            Some(base) => table.beside(what, unit, value * factor, base * factor, share),
            None => table.noted(what, unit, value * factor),
        }
    }

    /// A line with a count, which is `most` at most.
    pub fn count(&self, table: &mut Table, what: &str, key: &str, most: f64) {
        if let Some(value) = self.median(key) {
            table.counted(what, value, most);
        }
    }

    /// The largest value under a key.
    pub fn largest(&self, key: &str) -> Option<f64> {
        let values = self.values.get(key)?;
        Some(values.iter().copied().fold(f64::MIN, f64::max))
    }
}
