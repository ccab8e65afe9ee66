//! Log lines of server and agent on standard error, and fatal errors that no filter hides. Texts
//! from others are made harmless, and a source of too many lines is muted for a while.
//!
//! Thread: any; the logger is set once by `main`. `ank` prints for people instead and does not use
//! this.
//! Owns: the number of lines of each source, and the present source of each thread.

use crate::clock::{Clock, SystemClock};
use crate::limits::{ADDITIONAL_INFO_MAX, LOG_SOURCE_LINES};
use crate::sync::Mutex;
use ankaios_model::names::{Name, excerpt};
use ankaios_model::shown_text::printable;
use env_logger::{Builder, Target};
use log::{Level, Record};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::RefCell;
use std::collections::HashMap;
use std::error::Error;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Period in which the lines of one source are counted.
const LOG_SOURCE_TIME: Duration = Duration::from_secs(60);
/// Sources with a count of their own, more than a cluster has; all others share the lines of one.
const LOG_SOURCES: usize = 256;
/// How the modules of all programs begin: each of our crates is one of them.
const OWN_MODULES: &str = "ankaios_";

/// Levels without `RUST_LOG`. The gRPC library logs its own internals at level info.
const DEFAULT_FILTER: &str = "info,grpcio=warn";

/// The output for all records of the program.
static STANDARD_ERROR: Mutex<LogWriter<io::Stderr>> = Mutex::new(LogWriter::new(LOG_WAIT_MAX));

/// Starts logging at the levels of `RUST_LOG`, by default from level info on.
///
/// A filter written for `program` as a module (`ank_server=debug`) applies to all our modules.
pub fn init(program: &str) {
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) if !text.trim().is_empty() => own_modules(&text, program),
        _ => DEFAULT_FILTER.to_owned(),
    };
    let colours = wants_colours();
    let set = Builder::new()
        .target(Target::Pipe(Box::new(StandardError)))
        // The gRPC library logs too much at level info; a filter that names it shows all.
        .filter_module("grpcio", log::LevelFilter::Warn)
        .parse_filters(&filter)
        .format(move |out, record| write_record(out, record, colours))
        .try_init();
    debug_assert!(set.is_ok(), "the logger is set once");
}

/// Writes a record to `out`, unless its source has logged too much.
fn write_record(out: &mut impl Write, record: &Record<'_>, colours: bool) -> io::Result<()> {
    static SOURCES: LazyLock<Mutex<Sources>> = LazyLock::new(Mutex::default);
    let Ruling { is_written, note } = SOURCES.lock().rule(record, SystemClock.now());
    let now = SystemTime::now();
    if let Some(note) = note {
        let line = line(now, Level::Warn, module_path!(), &note, colours);
        out.write_all(line.as_bytes())?;
    }
    if !is_written {
        return Ok(());
    }
    let module = record.module_path().unwrap_or_default();
    let line = line(now, record.level(), module, record.args(), colours);
    out.write_all(line.as_bytes())
}

/// Writes the record that explains why the program ends. No filter hides it. The way out is in a
/// line of its own, unless `hint` is empty.
pub fn fatal(cause: &str, hint: &str) {
    let mut text = cause.to_owned();
    if !hint.is_empty() {
        text.push_str(&format!("\nhint: {hint}"));
    }
    let text = line(SystemTime::now(), Level::Error, "", &text, wants_colours());
    STANDARD_ERROR.lock().write(&io::stderr(), text.as_bytes());
}

fn wants_colours() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Adds a directive for our crates to each directive of a filter for the module `program`. Nearly
/// all code of the program is in these crates.
fn own_modules(filter: &str, program: &str) -> String {
    let mut directives = Vec::new();
    for text in filter.split(',') {
        directives.push(text.to_owned());
        if let Some(rest) = text.trim().strip_prefix(program)
            && (rest.is_empty() || rest.starts_with("::") || rest.starts_with('='))
        {
            // `ank_server::wire=debug` becomes `ankaios_wire=debug`.
            let rest = rest.trim_start_matches("::");
            directives.push(format!("{OWN_MODULES}{rest}"));
        }
    }
    directives.join(",")
}

/// Prepares a text for a record: cuts a long one, and escapes characters that act on a terminal.
fn harmless(text: &str) -> String {
    let kept = &text[..text.floor_char_boundary(LOG_RECORD_MAX)];
    // Lines of a source are counted, so a record of a source is one line.
    let line_end = if source().is_empty() { "\n    " } else { "\\n" };
    let mut shown = printable(kept).replace('\n', line_end);
    if kept.len() < text.len() {
        shown.push_str(&format!("... ({} bytes)", text.len()));
    }
    shown
}

// ---------------------------------------------------------------- standard error

/// Longest wait of a line for standard error. A busy journal is faster; one that hangs must not
/// stop the program.
const LOG_WAIT_MAX: Duration = Duration::from_secs(1);
/// Bytes that a writable output takes without waiting: `PIPE_BUF` of the system.
const WRITTEN_AT_ONCE: usize = 4096;

/// The standard error that all threads share, for the logger.
struct StandardError;

impl Write for StandardError {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        STANDARD_ERROR.lock().write(&io::stderr(), record);
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes records to an output whose reader may hang. Until it reads again, records are left out
/// and counted.
// [impl->swdd~programs-go-on-when-logs-are-not-read~1]
struct LogWriter<W> {
    wait_max: Duration,
    /// Records left out since the reader hangs.
    left_out: u64,
    output: PhantomData<W>,
}

impl<W: AsFd> LogWriter<W>
where
    for<'a> &'a W: Write,
{
    const fn new(wait_max: Duration) -> Self {
        Self {
            wait_max,
            left_out: 0,
            output: PhantomData,
        }
    }

    /// Writes a record. Waits for the reader, but not again while it still hangs.
    fn write(&mut self, output: &W, record: &[u8]) {
        if self.left_out > 0 {
            if !can_take(output, Duration::ZERO) {
                self.left_out += 1;
                return;
            }
            let note = format!(
                "{} log lines were left out: nobody read standard error.",
                self.left_out
            );
            self.left_out = 0;
            let note = line(SystemTime::now(), Level::Warn, module_path!(), &note, false);
            self.write_parts(output, note.as_bytes());
        }
        self.write_parts(output, record);
    }

    /// Writes a record in parts that a ready output takes at once. Counts it if the reader hangs.
    fn write_parts(&mut self, mut output: &W, record: &[u8]) {
        for part in record.chunks(WRITTEN_AT_ONCE) {
            if !can_take(output, self.wait_max) {
                self.left_out += 1;
                return;
            }
            if output.write_all(part).is_err() {
                return; // It is closed, or its disk is full: there is no other place to report that.
            }
        }
    }
}

/// Waits until a write to `output` would return at once, at most for `wait`. Returns whether it
/// would.
fn can_take(output: &impl AsFd, wait: Duration) -> bool {
    let Ok(wait) = Timespec::try_from(wait) else {
        return true; // The wait is practically endless: the write itself waits.
    };
    let mut polled = [PollFd::new(output, PollFlags::OUT)];
    match poll(&mut polled, Some(&wait)) {
        Ok(ready) => ready > 0,
        Err(_) => true, // The write will report the error at once.
    }
}

// ---------------------------------------------------------- lines of one source

thread_local! {
    /// What [`log_source`] has set.
    static SOURCE: RefCell<Name> = RefCell::new(Name::default());
}

/// Sets the source of the lines that this thread logs until the returned value is dropped: an
/// address, an agent or a workload. Without one, the place in the code is the source.
///
/// A source can cause any number of lines, so [`LOG_SOURCE_LINES`] of them are written in a minute,
/// and a note that the others are left out. Levels that are off by default are not counted.
pub fn log_source(name: impl Into<Name>) -> LogSource {
    LogSource {
        outer: SOURCE.replace(name.into()),
        of_thread: PhantomData,
    }
}

fn source() -> Name {
    // Values that are dropped at the end of a thread may log after this one is gone.
    SOURCE
        .try_with(|source| source.borrow().clone())
        .unwrap_or_default()
}

/// See [`log_source`].
#[must_use = "lines count for the source only as long as this is kept"]
#[derive(Debug)]
pub struct LogSource {
    outer: Name,
    of_thread: PhantomData<*const ()>,
}

impl Drop for LogSource {
    fn drop(&mut self) {
        SOURCE.set(std::mem::take(&mut self.outer));
    }
}

/// The decision about a line.
#[derive(Debug, PartialEq, Eq)]
pub struct Ruling {
    pub is_written: bool,
    /// A line before it, or in its place.
    pub note: Option<String>,
}

/// The lines of all sources, counted for each of at most [`LOG_SOURCES`], and for all others
/// together.
#[derive(Debug, Default)]
pub struct Sources {
    of: HashMap<String, LineCount>,
    others: LineCount,
}

/// The number of lines in the present period.
#[derive(Debug, Default)]
struct LineCount {
    since: Option<Instant>,
    count: u64,
}

impl Sources {
    /// Decides whether to write a record of this thread.
    pub fn rule(&mut self, record: &Record<'_>, now: Instant) -> Ruling {
        let module = record.module_path().unwrap_or_default();
        let is_of_library = module.starts_with("grpcio");
        let default_level = if is_of_library {
            Level::Warn
        } else {
            Level::Info
        };
        // A user who asks for more than the default levels gets all of that.
        if record.level() > default_level {
            return Ruling {
                is_written: true,
                note: None,
            };
        }
        // Lines of the gRPC library do not name their cause, so all are of one source.
        if is_of_library {
            return self.count("the gRPC library", now);
        }
        let source = source();
        if source.is_empty() {
            let place = format!("{module}:{}", record.line().unwrap_or_default());
            return self.count(&place, now);
        }
        self.count(&source, now)
    }

    /// Counts a line of `source`.
    fn count(&mut self, source: &str, now: Instant) -> Ruling {
        let source = excerpt(source);
        if !self.of.contains_key(&*source) {
            if self.of.len() >= LOG_SOURCES {
                self.of.retain(|_, lines| !lines.is_over(now));
            }
            if self.of.len() >= LOG_SOURCES {
                return self.others.count("many others", now);
            }
        }
        let lines = self.of.entry(source.to_string()).or_default();
        lines.count(&source, now)
    }
}

impl LineCount {
    /// Returns whether the period of the count is over.
    fn is_over(&self, now: Instant) -> bool {
        match self.since {
            Some(since) => now.saturating_duration_since(since) >= LOG_SOURCE_TIME,
            None => true,
        }
    }

    /// Counts a line of `source`. Notes when the first line is left out, and in the next period how
    /// many were.
    fn count(&mut self, source: &str, now: Instant) -> Ruling {
        let mut note = None;
        if self.is_over(now) {
            let left_out = self.count.saturating_sub(LOG_SOURCE_LINES);
            if left_out > 0 {
                note = Some(format!(
                    "{left_out} log lines about '{source}' were left out."
                ));
            }
            *self = Self {
                since: Some(now),
                count: 0,
            };
        }
        self.count = self.count.saturating_add(1);
        if self.count == LOG_SOURCE_LINES + 1 {
            note = Some(format!(
                "Many log lines are about '{source}': further ones are left out for {LOG_SOURCE_TIME:?}."
            ));
        }
        Ruling {
            is_written: self.count <= LOG_SOURCE_LINES,
            note,
        }
    }
}

/// An error with all its causes in one line.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// One record as text, with continuation lines indented by four blanks.
fn line(now: SystemTime, level: Level, module: &str, text: &dyn Display, colours: bool) -> String {
    let colour = match level {
        _ if !colours => "",
        Level::Error => "\x1b[1;31m",
        Level::Warn => "\x1b[33m",
        Level::Info => "\x1b[32m",
        Level::Debug => "\x1b[34m",
        Level::Trace => "\x1b[36m",
    };
    let plain = if colour.is_empty() { "" } else { "\x1b[0m" };
    let text = harmless(&text.to_string());
    let time = utc(now);
    if module.is_empty() {
        format!("[{time} {colour}{level}{plain}] {text}\n")
    } else {
        format!("[{time} {colour}{level:<5}{plain} {module}] {text}\n")
    }
}

/// `YYYY-MM-DDThh:mm:ssZ`; a clock before 1970 shows as 1970.
pub fn utc(now: SystemTime) -> String {
    let since_1970 = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    utc_of(since_1970.as_secs())
}

/// [`utc`] of a time in seconds since 1970. A number that a peer has sent may lie beyond the year
/// 9999, which has no such form: it is shown as it is.
pub fn utc_of(seconds: u64) -> String {
    if let Ok(number) = i64::try_from(seconds)
        && let Ok(time) = OffsetDateTime::from_unix_timestamp(number)
        && let Ok(text) = time.format(&Rfc3339)
    {
        return text;
    }
    seconds.to_string()
}

/// Longest text of a log line, in bytes; the rest is cut. Text of an engine has half of it.
const LOG_RECORD_MAX: usize = 8 * 1024;
const _: () = assert!(2 * ADDITIONAL_INFO_MAX <= LOG_RECORD_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_lines::lines_of;

    /// Takes the written bytes, without waiting for more.
    fn read_all(pipe: &std::os::fd::OwnedFd) -> String {
        rustix::fs::fcntl_setfl(pipe, rustix::fs::OFlags::NONBLOCK).unwrap();
        let (mut text, mut room) = (Vec::new(), [0; 64 * 1024]);
        while let Ok(count) = rustix::io::read(pipe, &mut room) {
            text.extend_from_slice(&room[..count]);
        }
        String::from_utf8(text).unwrap()
    }

    // [utest->swdd~programs-go-on-when-logs-are-not-read~1]
    #[test]
    fn lines_that_nobody_reads_are_left_out_and_counted() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let writer = std::fs::File::from(writer);
        let mut log = LogWriter::new(Duration::from_millis(1));
        let record = "x".repeat(3 * WRITTEN_AT_ONCE) + "\n";
        let mut written = 0;
        while log.left_out == 0 {
            log.write(&writer, record.as_bytes());
            written += 1;
            assert!(written < 10_000, "a pipe holds only so much");
        }
        log.write(&writer, b"left out\n");
        assert_eq!(log.left_out, 2);
        assert!(read_all(&reader).starts_with(&record));

        log.write(&writer, b"read again\n");
        let text = read_all(&reader);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(
            lines[0].ends_with("2 log lines were left out: nobody read standard error."),
            "{text}"
        );
        assert_eq!((lines[1], log.left_out), ("read again", 0));
    }

    #[test]
    fn lines_for_a_reader_that_has_gone_cost_no_wait() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        drop(reader);
        let mut log = LogWriter::new(Duration::from_secs(3600));
        log.write(&std::fs::File::from(writer), b"x\n");
        assert_eq!(log.left_out, 0);
    }

    #[test]
    fn times_are_utc() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_164_799, "2024-02-28T23:59:59Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_735_689_600, "2025-01-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(
                utc(UNIX_EPOCH + Duration::from_secs(seconds)),
                text,
                "{seconds}"
            );
        }
        assert_eq!(
            utc(UNIX_EPOCH - Duration::from_secs(5)),
            "1970-01-01T00:00:00Z"
        );
    }

    #[test]
    fn lines_have_the_documented_layout() {
        let at = UNIX_EPOCH;
        assert_eq!(
            line(at, Level::Info, "a::b", &"x\ny", false),
            "[1970-01-01T00:00:00Z INFO  a::b] x\n    y\n"
        );
        let counted = log_source("a");
        assert_eq!(
            line(at, Level::Info, "a::b", &"x\ny", false),
            "[1970-01-01T00:00:00Z INFO  a::b] x\\ny\n"
        );
        drop(counted);
        assert_eq!(
            line(at, Level::Error, "", &"what: 'why'", false),
            "[1970-01-01T00:00:00Z ERROR] what: 'why'\n"
        );
        assert!(line(at, Level::Warn, "m", &"x", true).contains("\x1b[33mWARN \x1b[0m m] x"));
    }

    #[test]
    fn texts_of_others_do_nothing_in_a_line_and_are_not_endless() {
        let shown = |text: &str| line(UNIX_EPOCH, Level::Info, "m", &text, false);
        let begin = "[1970-01-01T00:00:00Z INFO  m] ";
        for (text, expected) in [
            ("\x1b[2J\x07", "\\u{1b}[2J\\u{7}"),
            (
                "a\r\n[1970-01-01T00:00:00Z ERROR m] b",
                "a\\r\n    [1970-01-01T00:00:00Z ERROR m] b",
            ),
            ("\u{9b}31m\u{202e}\u{2028}", "\\u{9b}31m\\u{202e}\\u{2028}"),
            ("ä\t🦀 \"'\\", "ä\t🦀 \"'\\"),
        ] {
            assert_eq!(shown(text), format!("{begin}{expected}\n"));
        }
        for text in [
            "x".repeat(10_000_000),
            "\n".repeat(10_000_000),
            "\x1b".repeat(10_000_000),
            "ä".repeat(5_000_000),
        ] {
            let shown = shown(&text);
            assert!(
                shown.len() < 10 * LOG_RECORD_MAX && shown.ends_with("... (10000000 bytes)\n"),
                "{}",
                shown.len()
            );
        }
    }

    #[test]
    fn flooding_source_is_muted_for_a_while_and_others_are_not() {
        let (mut sources, start) = (Sources::default(), SystemClock.now());
        let mut flood = |after: Duration| -> (usize, Vec<String>) {
            let rulings: Vec<Ruling> = (0..1000)
                .map(|_| sources.count("10.0.0.1", start + after))
                .collect();
            let written = rulings.iter().filter(|ruling| ruling.is_written).count();
            (
                written,
                rulings
                    .into_iter()
                    .filter_map(|ruling| ruling.note)
                    .collect(),
            )
        };
        let many =
            "Many log lines are about '10.0.0.1': further ones are left out for 60s.".to_owned();
        assert_eq!(
            flood(Duration::ZERO),
            (LOG_SOURCE_LINES as usize, vec![many.clone()])
        );
        assert_eq!(flood(LOG_SOURCE_TIME / 2), (0, vec![]));
        let left_out = "1980 log lines about '10.0.0.1' were left out.".to_owned();
        assert_eq!(
            flood(LOG_SOURCE_TIME),
            (LOG_SOURCE_LINES as usize, vec![left_out, many])
        );
        assert_eq!(
            sources.count("10.0.0.2", start + LOG_SOURCE_TIME),
            Ruling {
                is_written: true,
                note: None
            }
        );
    }

    #[test]
    fn lines_count_for_their_source_and_without_one_for_their_place() {
        let most = LOG_SOURCE_LINES as usize + 1; // With the note.
        let lines = lines_of(|| {
            for _ in 0..1000 {
                log::info!("nowhere");
                let _outer = log_source("outer");
                log::warn!("outer");
                {
                    let _inner = log_source("inner");
                    log::error!("inner");
                    let _nobody = log_source("");
                    log::error!("elsewhere");
                }
                log::info!("outer");
                log::debug!("not on by default");
            }
        });
        for text in ["nowhere", "outer", "inner", "elsewhere"] {
            assert_eq!(
                lines.iter().filter(|line| *line == text).count(),
                most - 1,
                "{text}"
            );
        }
        let place = format!("Many log lines are about '{}:", module_path!());
        let notes = [
            "Many log lines are about 'outer'",
            "Many log lines are about 'inner'",
            &place,
            &place,
        ];
        assert!(
            notes
                .iter()
                .all(|note| lines.iter().any(|line| line.starts_with(note))),
            "{lines:?}"
        );
        assert_eq!(lines.len(), notes.len() * most);
    }

    #[test]
    fn new_sources_above_the_bound_share_the_lines_of_one() {
        let (mut sources, now) = (Sources::default(), SystemClock.now());
        assert!(sources.count("known", now).is_written);
        let new = |number: i32| format!("{number} {}", "x".repeat(1000));
        let written = (0..100_000)
            .filter(|number| sources.count(&new(*number), now).is_written)
            .count();
        assert_eq!(written, LOG_SOURCES - 1 + LOG_SOURCE_LINES as usize);
        assert!(sources.of.len() <= LOG_SOURCES && sources.of.keys().all(|key| key.len() < 300));
        assert!(sources.count("known", now).is_written);
        // Sources that are silent for a while make room.
        assert!(sources.count("new", now + LOG_SOURCE_TIME).is_written);
        assert_eq!(sources.of.len(), 1);
    }

    #[test]
    fn causes_are_listed_outermost_first() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot read 'x'")]
        struct Outer(#[source] io::Error);
        let error = Outer(io::Error::other("no such file"));
        assert_eq!(with_causes(&error), "cannot read 'x': no such file");
    }

    #[test]
    fn a_filter_for_the_program_means_our_modules() {
        let ours = OWN_MODULES;
        for (filter, expected) in [
            ("debug", "debug".to_owned()),
            ("ank_server=debug", format!("ank_server=debug,{ours}=debug")),
            (
                "warn,ank_server::x=trace",
                format!("warn,ank_server::x=trace,{ours}x=trace"),
            ),
            ("ank_server", format!("ank_server,{ours}")),
            ("ank_servers=info", "ank_servers=info".to_owned()),
        ] {
            assert_eq!(own_modules(filter, "ank_server"), expected);
        }
    }
}
