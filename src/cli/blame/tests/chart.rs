//! The chart of start times.

use super::*;
use ankaios_model::node::Node;

fn drawn(state: &Node) -> String {
    let starts = Starts::of(state).unwrap();
    Chart::new(&starts, &starts.all.iter().collect::<Vec<_>>()).svg()
}

/// Bars of one colour: where they begin, and how long they are.
fn bars(svg: &str, stage: &str) -> Vec<(f64, f64)> {
    let stage = STAGES.iter().find(|one| one.name == stage).unwrap();
    let bars = svg
        .lines()
        .filter(|line| line.starts_with("<rect") && line.contains(stage.colour));
    let number = |line: &str, key: &str| {
        let (_, rest) = line.split_once(&format!(" {key}=\"")).unwrap();
        rest.split_once('"').unwrap().0.parse::<f64>().unwrap()
    };
    bars.skip(1)
        .map(|line| (number(line, "x"), number(line, "width")))
        .collect() // The first is in the legend.
}

#[test]
fn each_stage_ends_where_the_next_one_begins() {
    let svg = drawn(&state(&[(
        "w",
        [Some(0), Some(100), Some(300), Some(600), Some(1_000), None],
    )]));
    // 1,000 ms and a twentieth of that are as wide as all bars.
    let x = |at: f64| LEFT + (RIGHT - LEFT) * at / 1_050.0;
    for (stage, from, to) in [
        ("accepted", 0.0, 100.0),
        ("waits", 100.0, 300.0),
        ("starts", 300.0, 600.0),
        ("not ready", 600.0, 1_000.0),
        ("running", 1_000.0, 1_050.0),
    ] {
        let [(begin, width)] = bars(&svg, stage)[..] else {
            panic!("{stage:?}: {svg}")
        };
        let (expected, end) = (x(from), x(to));
        assert!(
            (begin - expected).abs() < 0.1 && (begin + width - end).abs() < 0.2,
            "{stage:?}: {begin} {width}"
        );
    }
}

#[test]
fn the_chart_ended_at_the_last_event_although_something_waited() {
    let svg = drawn(&state(&[
        ("runs", [Some(0), None, Some(10), None, Some(1_000), None]),
        ("waits", [Some(0), Some(3_000), None, None, None, None]),
    ]));
    let [(begin, width)] = bars(&svg, "waits")[..] else {
        panic!("{svg}")
    };
    assert!(
        (begin - LEFT - (RIGHT - LEFT) / 3.0).abs() < 0.1,
        "now is at 9 s: {svg}"
    );
    assert!(
        (begin + width - RIGHT).abs() < 0.2 && svg.contains(">not ready<"),
        "{svg}"
    );
}

#[test]
fn what_ended_does_not_go_on_and_what_has_no_time_has_no_bar() {
    let svg = drawn(&state(&[
        ("job", [Some(0), None, Some(10), None, Some(200), Some(400)]),
        ("none", [None; 6]),
        ("runs", [Some(0), None, Some(10), None, Some(1_000), None]),
    ]));
    let running = bars(&svg, "running");
    assert_eq!(running.len(), 2);
    assert!(running[0].0 + running[0].1 < running[1].0, "{running:?}");
    assert_eq!(bars(&svg, "starts").len(), 2);
    assert!(svg.contains(">none <"), "{svg}");
}

#[test]
fn bars_are_in_order_and_linked_to_their_dependencies() {
    let svg = drawn(&chain());
    let names = ["disk", "setup", "lone", "db", "web", "late"];
    let places: Vec<usize> = names
        .map(|name| svg.find(&format!(">{name} <tspan")).expect(name))
        .into();
    assert!(places.is_sorted(), "{places:?}");
    assert_eq!(svg.matches("<path").count(), 2);
    assert_eq!(svg.matches("font-weight=\"bold\">disk").count(), 1);
    assert_eq!(svg.matches("font-weight=\"bold\">setup").count(), 0);
    assert!(
        svg.contains(
            "<title>web on A, waited 1.779 s for db, start 0.248 s, total 2.050 s</title>"
        ),
        "{svg}"
    );
}

#[test]
fn the_axis_has_a_few_round_labels_at_any_scale() {
    for (last, boot, expected) in [
        (2_050, 3_000, &["3.0", "3.5", "4.0", "4.5", "5.0"][..]),
        (
            40,
            1_234,
            &[
                "1.235", "1.240", "1.245", "1.250", "1.255", "1.260", "1.265", "1.270", "1.275",
            ],
        ),
        (9_999_999, 500, &["2000", "4000", "6000", "8000", "10000"]),
    ] {
        let mut state = state(&[("w", [Some(0), None, None, None, Some(last), None])]);
        *state.at_mut(&["timings", "boot"]).unwrap() = Node::Number(boot);
        let svg = drawn(&state);
        let labels = svg
            .lines()
            .filter(|line| line.contains("text-anchor=\"middle\">"));
        let labels: Vec<&str> = labels
            .map(|line| line.split(['>', '<']).nth(2).unwrap())
            .collect();
        assert_eq!(labels, expected);
    }
}

#[test]
fn names_of_any_kind_leave_the_chart_whole() {
    let long = "n".repeat(63);
    let svg = drawn(&state(&[
        ("<a&\"b\">\u{1b}", [Some(0); 6]),
        (&long, [Some(u64::MAX); 6]),
        ("", [None; 6]),
    ]));
    assert!(
        svg.contains("&lt;a&amp;&quot;b&quot;&gt;") && !svg.contains('\u{1b}'),
        "{svg}"
    );
    assert!(svg.contains(&format!(">{}... <", "n".repeat(25))), "{svg}");
    assert_eq!(svg.matches("<g>").count(), svg.matches("</g>").count());
}

#[test]
fn no_workloads_are_an_empty_chart() {
    let svg = drawn(&state(&[]));
    assert!(
        svg.starts_with("<svg") && svg.ends_with("</svg>\n") && !svg.contains("NaN"),
        "{svg}"
    );
}
