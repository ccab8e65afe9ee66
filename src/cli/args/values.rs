//! Values of options: texts that become paths, times and pairs, with the error for each that cannot be read.
//!
//! Thread: `main`, plain functions.

use super::{Format, Until};

use crate::model::execution_state::Phase;
use crate::model::field_path::parts;
use crate::model::fields::table::selects_nothing;
use crate::model::nearest::meant;
use clap::ValueEnum;
use clap::builder::{OsStringValueParser, PossibleValuesParser, TypedValueParser};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Any path, also an empty one: opening it then fails with an error that names the option's file.
pub(super) fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// One of the formats `names`.
pub(super) fn formats(names: &'static [&'static str]) -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(names).map(|name| Format::from_str(&name, false).unwrap_or_default())
}

/// A whole number, with an error that names no type of the language.
pub(super) fn parse_number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "expected a whole number".to_owned())
}

/// Splits `key=value` at the first `=`; both may be empty.
pub(super) fn parse_tag(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("invalid KEY=value: no `=` found in `{text}`"))?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Splits `<mask>=<value>` at the first `=`.
pub(super) fn parse_until(text: &str) -> Result<Until, String> {
    match text.split_once('=') {
        Some((mask, value)) if !mask.is_empty() => {
            check_until(&parts(mask), value)?;
            Ok(Until { mask: mask.to_owned(), value: value.to_owned() })
        }
        _ => Err("expected a field and a value, for example 'workloadStates.*.web.*.state=Running'".to_owned()),
    }
}

/// Refuses a field that no state has, and a state that no workload has: the wait for it would never end.
fn check_until(path: &[&str], value: &str) -> Result<(), String> {
    if let Some(reason) = selects_nothing(path) {
        return Err(reason);
    }
    let known =
        || Phase::ALL.into_iter().map(|(_, state, sub_state)| if path[4] == "state" { state } else { sub_state });
    match path {
        ["workloadStates", _, _, _, "state" | "subState"] if !known().any(|known| known == value) => {
            Err(format!("no workload has the {} '{value}'{}", path[4], meant(value, known())))
        }
        _ => Ok(()),
    }
}

/// A whole number with `ms`, `s`, `m` or `h`; seconds without.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let milliseconds = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err("expected a whole number of seconds, or one with ms, s, m or h".to_owned()),
    };
    let number: u64 = parse_number(number)?;
    number.checked_mul(milliseconds).map(Duration::from_millis).ok_or_else(|| "too long".to_owned())
}

/// The time between two samples.
pub(super) fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    // The counters of the CPU are updated in steps of some milliseconds.
    if (Duration::from_millis(500)..=Duration::from_secs(3600)).contains(&interval) {
        return Ok(interval);
    }
    Err("expected a time from 500ms to 1h".to_owned())
}

/// A time that the runtimes accept: RFC 3339, for example `2026-01-31T12:00:00Z`.
pub(super) fn parse_time(text: &str) -> Result<String, String> {
    // TOML's offset date-time is the same, but the seconds may be missing.
    let time: Option<toml::value::Datetime> = text.parse().ok();
    let has_seconds = text.get(16..17) == Some(":");
    if has_seconds && time.is_some_and(|time| time.date.is_some() && time.offset.is_some()) {
        return Ok(text.to_owned());
    }
    let example = "2026-01-31T12:00:00Z or 2026-01-31T13:00:00.5+01:00";
    Err(format!("expected a time as in RFC 3339, for example {example}"))
}
