//! `ank blame`: how long the starts of workloads took and what they waited for, as a table, JSON or a chart.
//!
//! Thread: `main`, plain functions.

mod chart;

use super::args::{BlameArguments, BlameFormat};
use super::error::{CliError, CommandError};
use super::output::Output;
use super::session::ServerLink;
use super::table::{Table, TooWide, one_line};
use super::timings::{MASKS, Start, Starts, seconds};
use serde_json::{Map, Value, json};
use std::cmp::Reverse;

/// Prints the start times of all instances, or of those of the named workloads.
///
/// # Errors
/// No response, the server keeps no start times, an unknown name, or standard output cannot be written.
pub fn print(
    BlameArguments { output: format, names }: &BlameArguments,
    link: &mut impl ServerLink,
    output: &mut Output<'_>,
) -> Result<(), CliError> {
    let starts = Starts::of(&link.complete_state(&MASKS)?)?;
    let known = || starts.all.iter().map(|start| &*start.instance.workload);
    if let Some(unknown) = names.iter().find(|name| !known().any(|known| known == **name)) {
        return Err(CommandError::unknown_workload(unknown, known()).into());
    }
    let is_wanted = |start: &&Start| names.is_empty() || names.iter().any(|name| **name == *start.instance.workload);
    let mut wanted: Vec<&Start> = starts.all.iter().filter(is_wanted).collect();
    let total = |start: &Start| start.total().or(start.so_far(start.begin(), starts.now));
    wanted.sort_by_key(|start| (Reverse(total(start)), start.instance.clone()));
    let text = match format {
        BlameFormat::Table => table(&wanted, starts.now).text(output.width(), TooWide::Cut),
        BlameFormat::Json => json(&starts, &wanted),
        BlameFormat::Svg => chart::svg(&starts, &wanted),
    };
    Ok(output.result(&text)?)
}

fn table(wanted: &[&Start], now: u64) -> Table<8> {
    let waited = column(wanted, now, Start::waited, |start| start.waiting);
    let start = column(wanted, now, Start::start, |start| start.starting);
    let ready = column(wanted, now, Start::ready, |start| start.started);
    let total = column(wanted, now, Start::total, Start::begin);
    let durations = waited.into_iter().zip(start).zip(ready.into_iter().zip(total));
    let row = |(one, ((waited, start), (ready, total))): (&&Start, _)| {
        let (name, agent) = (one_line(&one.instance.workload), one_line(&one.instance.agent));
        [name, agent, waited, one_line(&one.waited_for), one.prepared.clone(), start, ready, total]
    };
    Table {
        headings: ["WORKLOAD NAME", "AGENT", "WAITED", "WAITED FOR", "PREPARED", "START", "READY", "TOTAL"],
        rows: wanted.iter().zip(durations).map(row).collect(),
    }
}

/// The cells of a column with durations: their points stand below each other. `>` marks what goes on at `now`, since `from`.
fn column(
    wanted: &[&Start],
    now: u64,
    duration: impl Fn(&Start) -> Option<u64>,
    from: impl Fn(&Start) -> Option<u64>,
) -> Vec<String> {
    let cell = |start: &&Start| match duration(start) {
        Some(duration) => seconds(duration),
        None => start.so_far(from(start), now).map_or_else(String::new, |so_far| format!(">{}", seconds(so_far))),
    };
    let cells: Vec<String> = wanted.iter().map(cell).collect();
    let widest = cells.iter().map(String::len).max().unwrap_or_default();
    cells.into_iter().map(|cell| format!("{cell:>widest$}")).collect()
}

/// All that is known about each start. Unknown times are left out.
fn json(starts: &Starts, wanted: &[&Start]) -> String {
    let workload = |start: &&Start| {
        let mut entries = Map::new();
        entries.insert("workload".to_owned(), json!(&*start.instance.workload));
        entries.insert("agent".to_owned(), json!(&*start.instance.agent));
        entries.insert("id".to_owned(), json!(&*start.instance.id));
        entries.insert("starts".to_owned(), json!(start.starts));
        for (key, text) in [("waitedFor", &start.waited_for), ("prepared", &start.prepared)] {
            if !text.is_empty() {
                entries.insert(key.to_owned(), json!(text));
            }
        }
        let times = [
            ("waitedMs", start.waited()),
            ("startMs", start.start()),
            ("readyMs", start.ready()),
            ("totalMs", start.total()),
            ("desiredAtMs", start.desired),
            ("waitingAtMs", start.waiting),
            ("startingAtMs", start.starting),
            ("startedAtMs", start.started),
            ("runningAtMs", start.running),
            ("endedAtMs", start.ended),
        ];
        entries.extend(times.into_iter().filter_map(|(key, time)| Some((key.to_owned(), json!(time?)))));
        Value::Object(entries)
    };
    let workloads: Vec<Value> = wanted.iter().map(workload).collect();
    let document = json!({ "nowMs": starts.now, "bootMs": starts.boot, "workloads": workloads });
    format!("{document:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::{Step, play};
    use crate::cli::timings::tests::{assert_documented, chain, example, state};
    use crate::model::node::Node;

    fn printed(names: &[&str], format: BlameFormat, state: Node) -> Result<String, String> {
        let arguments = BlameArguments { output: format, names: names.iter().map(ToString::to_string).collect() };
        let played = play(None, [Step::State(state)], |server, _, output| print(&arguments, server, output));
        assert_eq!(played.server.reads, [MASKS]);
        played.result.map(|()| played.out).map_err(|error| error.to_string())
    }

    #[test]
    fn the_table_has_the_longest_start_first_and_unknown_times_empty() {
        let mut state = chain();
        let place = state.at_mut(&["timings", "instances", "A", "db", "1"]).unwrap();
        place.as_map_mut().unwrap().insert("prepared".to_owned(), Node::text("INIT"));
        let expected = "\
WORKLOAD NAME   AGENT   WAITED   WAITED FOR   PREPARED   START    READY   TOTAL
web             A       1.779    db                       0.248            2.050
db              A       0.499    disk         INIT        0.279   1.000    1.800
late            A                                        >0.990           >1.000
disk            A                                         0.500            0.520
lone            A                                         0.370            0.400
setup           A                                         0.275            0.300
";
        let text = printed(&[], BlameFormat::Table, state).unwrap();
        assert_eq!(text.lines().flat_map(|line| [line.trim_end(), "\n"]).collect::<String>(), expected);
        let text = printed(&["disk", "late"], BlameFormat::Table, chain()).unwrap();
        assert_eq!(text.lines().map(|line| &line[..4]).collect::<Vec<_>>(), ["WORK", "late", "disk"]);
    }

    #[test]
    fn what_waits_or_is_not_ready_had_no_time_and_was_the_last() {
        let state = state(&[
            ("accepted", [Some(0), None, None, None, None, None]),
            ("runs", [Some(0), None, Some(20), None, Some(520), None]),
            ("unready", [Some(0), None, Some(4_000), Some(4_500), None, None]),
            ("waits", [Some(0), Some(1_000), None, None, None, None]),
        ]);
        let text = printed(&[], BlameFormat::Table, state).unwrap();
        let expected = "\
WORKLOAD NAME   AGENT   WAITED   WAITED FOR   PREPARED   START   READY    TOTAL
unready         A                                        0.500   >4.500   >9.000
waits           A       >8.000                                            >9.000
runs            A                                        0.500             0.520
accepted        A
";
        assert_eq!(text.lines().flat_map(|line| [line.trim_end(), "\n"]).collect::<String>(), expected);
    }

    #[test]
    fn the_documentation_shows_what_is_printed() {
        assert_documented("WORKLOAD NAME   AGENT   WAITED", &printed(&[], BlameFormat::Table, example()).unwrap());
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/start_times.svg");
        let svg = printed(&[], BlameFormat::Svg, example()).unwrap();
        if std::env::var_os("ANKAIOS_WRITE_GOLDEN").is_some() {
            std::fs::write(path, &svg).unwrap();
        }
        assert!(std::fs::read_to_string(path).unwrap() == svg, "{path} is another chart");
    }

    #[test]
    fn durations_of_different_lengths_end_below_each_other() {
        let mut state = chain();
        let place = state.at_mut(&["timings", "instances", "A", "disk", "1"]).unwrap();
        place.as_map_mut().unwrap().insert("running".to_owned(), Node::Number(12_020));
        let text = printed(&["disk", "web"], BlameFormat::Table, state).unwrap();
        assert!(text.contains("12.000") && text.contains(" 0.248 "), "{text}");
        assert!(text.lines().nth(2).unwrap().trim_end().ends_with(" 2.050"), "{text}");
    }

    #[test]
    fn json_has_all_times_and_leaves_out_what_is_unknown() {
        let text = printed(&["db", "late"], BlameFormat::Json, chain()).unwrap();
        let expected = json!({
            "nowMs": 9_000,
            "bootMs": 3_000,
            "workloads": [
                {
                    "workload": "db", "agent": "A", "id": "1", "starts": 1, "waitedFor": "disk",
                    "waitedMs": 499, "startMs": 279, "readyMs": 1_000, "totalMs": 1_800,
                    "desiredAtMs": 0, "waitingAtMs": 22, "startingAtMs": 521, "startedAtMs": 800, "runningAtMs": 1_800,
                },
                {
                    "workload": "late", "agent": "A", "id": "1", "starts": 1, "desiredAtMs": 8_000, "startingAtMs": 8_010,
                },
            ],
        });
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
        assert!(text.starts_with("{\n  \"") && text.ends_with("}\n"), "{text}");
    }

    #[test]
    fn an_unknown_name_is_an_error() {
        let error = printed(&["dsik"], BlameFormat::Table, chain()).unwrap_err();
        assert_eq!(error, "Command failed: 'Workload name 'dsik' does not exist.'");
    }

    #[test]
    fn a_server_that_keeps_no_start_times_is_an_error() {
        let error = printed(&["web"], BlameFormat::Svg, Node::empty()).unwrap_err();
        assert_eq!(error, "the server keeps no start times");
    }
}
