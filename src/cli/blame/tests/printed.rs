//! What `ank blame` prints, against a scripted server.

use super::*;
use crate::tests::{Step, play};
use serde_json::{Value, json};

fn printed(names: &[&str], format: Format, state: Node) -> Result<String, String> {
    let arguments = BlameArguments {
        output: format,
        names: names.iter().map(ToString::to_string).collect(),
    };
    let played = play(None, [Step::State(state)], |server, output| {
        print(&arguments, server, output)
    });
    assert_eq!(played.server.reads, [MASKS]);
    played
        .result
        .map(|()| played.out)
        .map_err(|error| error.to_string())
}

#[test]
fn table_has_longest_start_first_and_unknown_times_empty() {
    let mut state = chain();
    let place = state
        .at_mut(&["timings", "instances", "A", "db", "1"])
        .unwrap();
    place
        .as_map_mut()
        .unwrap()
        .insert("prepared".to_owned(), Node::text("INIT"));
    let expected = "\
WORKLOAD NAME   AGENT   WAITED   WAITED FOR   PREPARED   START    READY   TOTAL
web             A       1.779    db                       0.248            2.050
db              A       0.499    disk         INIT        0.279   1.000    1.800
late            A                                        >0.990           >1.000
disk            A                                         0.500            0.520
lone            A                                         0.370            0.400
setup           A                                         0.275            0.300
";
    let text = printed(&[], Format::Table, state).unwrap();
    assert_eq!(
        text.lines()
            .flat_map(|line| [line.trim_end(), "\n"])
            .collect::<String>(),
        expected
    );
    let text = printed(&["disk", "late"], Format::Table, chain()).unwrap();
    assert_eq!(
        text.lines().map(|line| &line[..4]).collect::<Vec<_>>(),
        ["WORK", "late", "disk"]
    );
}

#[test]
fn what_waits_or_is_not_ready_had_no_time_and_was_the_last() {
    let state = state(&[
        ("accepted", [Some(0), None, None, None, None, None]),
        ("runs", [Some(0), None, Some(20), None, Some(520), None]),
        (
            "unready",
            [Some(0), None, Some(4_000), Some(4_500), None, None],
        ),
        ("waits", [Some(0), Some(1_000), None, None, None, None]),
    ]);
    let text = printed(&[], Format::Table, state).unwrap();
    let expected = "\
WORKLOAD NAME   AGENT   WAITED   WAITED FOR   PREPARED   START   READY    TOTAL
unready         A                                        0.500   >4.500   >9.000
waits           A       >8.000                                            >9.000
runs            A                                        0.500             0.520
accepted        A
";
    assert_eq!(
        text.lines()
            .flat_map(|line| [line.trim_end(), "\n"])
            .collect::<String>(),
        expected
    );
}

#[test]
fn the_documentation_shows_what_is_printed() {
    assert_documented(
        "WORKLOAD NAME   AGENT   WAITED",
        &printed(&[], Format::Table, example()).unwrap(),
    );
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/start_times.svg");
    let svg = printed(&[], Format::Svg, example()).unwrap();
    if std::env::var_os("ANKAIOS_WRITE_GOLDEN").is_some() {
        std::fs::write(path, &svg).unwrap();
    }
    assert!(
        std::fs::read_to_string(path).unwrap() == svg,
        "{path} is another chart"
    );
}

#[test]
fn durations_of_different_lengths_end_below_each_other() {
    let mut state = chain();
    let place = state
        .at_mut(&["timings", "instances", "A", "disk", "1"])
        .unwrap();
    place
        .as_map_mut()
        .unwrap()
        .insert("running".to_owned(), Node::Number(12_020));
    let text = printed(&["disk", "web"], Format::Table, state).unwrap();
    assert!(
        text.contains("12.000") && text.contains(" 0.248 "),
        "{text}"
    );
    assert!(
        text.lines().nth(2).unwrap().trim_end().ends_with(" 2.050"),
        "{text}"
    );
}

#[test]
fn json_has_all_times_and_leaves_out_what_is_unknown() {
    let text = printed(&["db", "late"], Format::Json, chain()).unwrap();
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
    assert!(
        text.starts_with("{\n  \"") && text.ends_with("}\n"),
        "{text}"
    );
}

#[test]
fn an_unknown_name_is_an_error() {
    let error = printed(&["dsik"], Format::Table, chain()).unwrap_err();
    assert_eq!(error, "Workload name 'dsik' does not exist.");
}

#[test]
fn a_server_that_keeps_no_start_times_is_an_error() {
    let error = printed(&["web"], Format::Svg, Node::empty()).unwrap_err();
    assert_eq!(error, "the server keeps no start times");
}
