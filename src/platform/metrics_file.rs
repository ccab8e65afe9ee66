//! A file with metrics in the text format of Prometheus, replaced at an interval.
//!
//! The textfile collector of node_exporter reads it, and `cat`. A file needs no listening socket
//! and no access rules of its own. It is renamed over the old one, so that a reader never finds
//! half of it; it is not synced to the disk.
//!
//! Thread: `metrics`, which may wait for the disk.

use crate::limits::STACK_SMALL;
use crate::settings::Number;
use crate::threads::{self, Thread};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The extension of files that node_exporter reads.
const EXTENSION: &str = "prom";
/// All users may read it: it has no secrets, and node_exporter has a user of its own.
const MODE: u32 = 0o644;

/// Value of the key `metrics`: an absolute path that ends in `.prom`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct MetricsPath(PathBuf);

impl TryFrom<String> for MetricsPath {
    type Error = String;

    fn try_from(path: String) -> Result<Self, String> {
        let path = PathBuf::from(path);
        if path.is_absolute() && path.extension() == Some(OsStr::new(EXTENSION)) {
            return Ok(Self(path));
        }
        Err(format!(
            "'{}' is no absolute path that ends in '.{EXTENSION}', as '/run/ankaios/ank.prom'",
            path.display()
        ))
    }
}

/// Value of the key `metrics_interval`, in whole seconds; by default what Prometheus is usually set
/// to.
pub type MetricsInterval = Number<1, 3600, 15>;

/// The file and its interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricsSettings {
    pub path: MetricsPath,
    /// Time from the end of a write to the next.
    pub interval: MetricsInterval,
}

// --------------------------------------------------------------------- text

/// A metric.
#[derive(Debug)]
pub struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
}

impl Family {
    /// A value that rises and falls.
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self {
            name,
            kind: "gauge",
            help,
        }
    }

    /// A value that only rises while its subject lives.
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Self {
            name,
            kind: "counter",
            help,
        }
    }
}

/// Metrics in the text format 0.0.4, sorted by name and labels.
#[derive(Debug, Default)]
pub struct MetricsText(BTreeMap<&'static str, Metric>);

/// A metric with its lines.
#[derive(Debug)]
struct Metric {
    family: &'static Family,
    lines: BTreeSet<String>,
}

impl MetricsText {
    /// Adds one series with `labels` in this order. Their values are names, so nothing is escaped.
    pub fn add(&mut self, family: &'static Family, labels: &[(&str, &str)], value: impl Display) {
        let mut series = family.name.to_owned();
        if !labels.is_empty() {
            let mut texts = Vec::new();
            for (name, text) in labels {
                texts.push(format!("{name}=\"{text}\""));
            }
            series.push_str(&format!("{{{}}}", texts.join(",")));
        }
        let metric = self.0.entry(family.name).or_insert_with(|| Metric {
            family,
            lines: BTreeSet::new(),
        });
        metric.lines.insert(format!("{series} {value}\n"));
    }

    /// The text of all metrics.
    pub fn finish(&self) -> String {
        let mut text = String::new();
        for Metric { family, lines } in self.0.values() {
            let Family { name, kind, help } = family;
            text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
            text.extend(lines.iter().map(String::as_str));
        }
        text
    }
}

/// Microseconds as seconds.
pub fn seconds(microseconds: u64) -> String {
    format!(
        "{}.{:06}",
        microseconds / 1_000_000,
        microseconds % 1_000_000
    )
}

// --------------------------------------------------------------------- file

/// Starts the thread that writes the result of `text` to the file, first at once. `None` writes
/// nothing. When the other end of `stop` is dropped, the thread removes the file and ends.
// [impl->swdd~metrics-file~1]
pub fn start(
    settings: MetricsSettings,
    stop: Receiver<()>,
    text: impl FnMut() -> Option<String> + Send + 'static,
) -> io::Result<Thread> {
    threads::spawn("metrics", STACK_SMALL, move || {
        write_all(&settings, &stop, text)
    })
}

/// Body of the thread `metrics`.
fn write_all(
    settings: &MetricsSettings,
    stop: &Receiver<()>,
    mut text: impl FnMut() -> Option<String>,
) {
    let MetricsSettings {
        path: MetricsPath(path),
        interval: Number(interval),
    } = settings;
    let interval = Duration::from_secs(*interval);
    let mut failure = String::new();
    loop {
        if let Some(text) = text() {
            match replace(path, &text) {
                Ok(()) => failure.clear(),
                Err(error) if error.to_string() == failure => {} // It was logged.
                Err(error) => {
                    failure = error.to_string();
                    let path = path.display();
                    log::error!("Cannot write the metrics to '{path}', trying again: {failure}.");
                }
            }
        }
        if stop.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
            break;
        }
    }
    let _ = fs::remove_file(path); // It may never have been written.
}

/// Replaces the file as a whole.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut new = OsString::from(path);
    new.push(".new");
    let new = PathBuf::from(new);
    let _ = fs::remove_file(&new); // An earlier program may have left it.
    let written = write_new(&new, text).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

/// Creates a file. An existing one is an error, so that a link of another user is not followed.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(MODE).open(path)?;
    file.set_permissions(Permissions::from_mode(MODE))?; // Whatever the umask is.
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::bounded;

    const LEVEL: Family = Family::gauge("ankaios_test_level", "A level.");
    const COUNT: Family = Family::counter("ankaios_test_count_total", "A count.");

    #[test]
    fn families_and_series_are_sorted_and_have_help_and_type() {
        let mut text = MetricsText::default();
        text.add(&LEVEL, &[("agent", "B"), ("state", "x")], 2);
        text.add(&LEVEL, &[("agent", "A"), ("state", "x")], 1);
        text.add(&COUNT, &[], seconds(1_000_020));
        let expected = "# HELP ankaios_test_count_total A count.\n# TYPE ankaios_test_count_total counter\n\
                        ankaios_test_count_total 1.000020\n\
                        # HELP ankaios_test_level A level.\n# TYPE ankaios_test_level gauge\n\
                        ankaios_test_level{agent=\"A\",state=\"x\"} 1\nankaios_test_level{agent=\"B\",state=\"x\"} 2\n";
        assert_eq!(text.finish(), expected);
    }

    #[test]
    fn only_absolute_prom_paths_and_bounded_intervals_are_valid() {
        #[derive(Debug, Deserialize)]
        struct Keys {
            metrics: Option<MetricsPath>,
            metrics_interval: Option<MetricsInterval>,
        }
        let read = |text: &str| toml::from_str::<Keys>(text);
        let keys = read("metrics = '/run/a.prom'\nmetrics_interval = 3600").unwrap();
        assert_eq!(keys.metrics, Some(MetricsPath("/run/a.prom".into())));
        assert_eq!(keys.metrics_interval, Some(Number(3600)));
        for wrong in [
            "metrics = 'a.prom'",
            "metrics = '/run/a'",
            "metrics = '/run/.prom'",
            "metrics = 'unix:///run/a.prom'",
            "metrics = ''",
            "metrics = true",
            "metrics_interval = 0",
            "metrics_interval = 3601",
            "metrics_interval = -1",
            "metrics_interval = '15'",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    fn settings(path: &Path) -> MetricsSettings {
        MetricsSettings {
            path: MetricsPath(path.to_owned()),
            interval: Number(0),
        }
    }

    // [utest->swdd~metrics-file~1]
    #[test]
    fn file_is_written_at_once_and_removed_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.prom");
        let (running, stop) = bounded::<()>(0);
        let mut running = Some(running);
        let mut seen = Vec::new();
        write_all(&settings(&path), &stop, || {
            seen.push(fs::read_to_string(&path).unwrap_or_default());
            match seen.len() {
                2 => assert_eq!(
                    fs::metadata(&path).unwrap().permissions().mode() & 0o777,
                    MODE
                ),
                3 => running = None,
                _ => {}
            }
            (seen.len() < 3).then(|| format!("text {}", seen.len()))
        });
        assert_eq!(seen, ["", "text 1", "text 2"]);
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            0,
            "neither the file nor a new one is left"
        );
    }

    #[test]
    fn a_reader_never_finds_half_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.prom");
        let texts = ["x".repeat(60_000), "y".repeat(20)];
        replace(&path, &texts[0]).unwrap();
        let (read, written) = (path.clone(), texts.clone());
        let (running, stop) = bounded::<()>(0);
        let reader = threads::spawn("reader", STACK_SMALL, move || {
            while stop.try_recv() != Err(crossbeam_channel::TryRecvError::Disconnected) {
                let text = fs::read_to_string(&read).unwrap();
                assert!(written.contains(&text), "{} bytes", text.len());
            }
            fs::write(read.with_extension("good"), "").unwrap();
        });
        for rewrite in 0..10_000 {
            replace(&path, &texts[rewrite % 2]).unwrap();
        }
        drop(running);
        assert!(threads::join_all(reader, Duration::from_secs(180)).is_empty());
        assert!(
            path.with_extension("good").exists(),
            "the reader found something else"
        );
    }

    #[test]
    fn a_missing_folder_and_a_link_in_the_way_harm_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("below/a.prom");
        assert_eq!(
            replace(&path, "x").unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        fs::create_dir(folder.path().join("below")).unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, "untouched").unwrap();
        std::os::unix::fs::symlink(&victim, folder.path().join("below/a.prom.new")).unwrap();
        replace(&path, "x").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        assert_eq!(fs::read_to_string(&path).unwrap(), "x");
    }
}
