//! Log lines of server and agent on standard error, and fatal errors that no filter hides.
//!
//! Thread: any; the logger is set once by `main`. `ank` prints for people instead and does not use this.

use env_logger::Builder;
use log::Level;
use std::error::Error;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Levels shown when `RUST_LOG` says nothing. What the gRPC library calls info is about its own insides.
const DEFAULT_FILTER: &str = "info,grpcio=warn";
/// How the modules of all programs begin.
const OWN_MODULES: &str = env!("CARGO_CRATE_NAME");

/// Starts logging as `RUST_LOG` says, by default from level info on (spec/server.md section 2).
///
/// A filter written for `program` as a module (`ank_server=debug`) applies to all our modules.
pub fn init(program: &str) {
    let filter = std::env::var("RUST_LOG").ok().filter(|text| !text.trim().is_empty());
    let filter = filter.map_or_else(|| DEFAULT_FILTER.to_owned(), |text| own_modules(&text, program));
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let set = Builder::new()
        // The gRPC library tells more than anybody wants at level info; a filter that names it shows all.
        .filter_module("grpcio", log::LevelFilter::Warn)
        .parse_filters(&filter)
        .format(move |out, record| {
            let module = record.module_path().unwrap_or_default();
            out.write_all(line(SystemTime::now(), record.level(), module, record.args(), colours).as_bytes())
        })
        .try_init();
    debug_assert!(set.is_ok(), "the logger is set once");
}

/// Writes the one record that explains why the program ends: `<what>: '<detail>'`, whatever the filter says.
pub fn fatal(what: &str, detail: impl Display) {
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let text = line(SystemTime::now(), Level::Error, "", &format_args!("{what}: '{detail}'"), colours);
    let _ = io::stderr().write_all(text.as_bytes()); // Nobody is left to tell when standard error is closed.
}

/// Repeats what a filter says of the module `program` for the library, where nearly all of the program is.
fn own_modules(filter: &str, program: &str) -> String {
    let directive = |text: &str| match text.trim().strip_prefix(program) {
        Some(rest) if rest.is_empty() || rest.starts_with("::") || rest.starts_with('=') => {
            format!("{text},{OWN_MODULES}{rest}")
        }
        _ => text.to_owned(),
    };
    filter.split(',').map(directive).collect::<Vec<_>>().join(",")
}

/// An error with all its causes in one line.
#[must_use]
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
    let text = text.to_string().replace('\n', "\n    ");
    let time = utc(now);
    if module.is_empty() {
        format!("[{time} {colour}{level}{plain}] {text}\n")
    } else {
        format!("[{time} {colour}{level:<5}{plain} {module}] {text}\n")
    }
}

/// `YYYY-MM-DDThh:mm:ssZ`; a clock before 1970 shows as 1970.
#[must_use]
pub fn utc(now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // The civil calendar in years that begin on 1 March, so that the leap day comes last. Eras have 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), text, "{seconds}");
        }
        assert_eq!(utc(UNIX_EPOCH - Duration::from_secs(5)), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn lines_have_the_documented_layout() {
        let at = UNIX_EPOCH;
        assert_eq!(line(at, Level::Info, "a::b", &"x\ny", false), "[1970-01-01T00:00:00Z INFO  a::b] x\n    y\n");
        assert_eq!(line(at, Level::Error, "", &"what: 'why'", false), "[1970-01-01T00:00:00Z ERROR] what: 'why'\n");
        assert!(line(at, Level::Warn, "m", &"x", true).contains("\x1b[33mWARN \x1b[0m m] x"));
    }

    #[test]
    fn causes_are_told_outermost_first() {
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
            ("warn,ank_server::x=trace", format!("warn,ank_server::x=trace,{ours}::x=trace")),
            ("ank_server", format!("ank_server,{ours}")),
            ("ank_servers=info", "ank_servers=info".to_owned()),
        ] {
            assert_eq!(own_modules(filter, "ank_server"), expected);
        }
    }
}
