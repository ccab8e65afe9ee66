//! What follows from start times, and the states with start times that other tests use.

mod chart;
mod printed;

use super::*;
use crate::tests::let_need;

/// A state with one instance `1` for each of `starts`: its agent and name (`agent/name`, agent `A`
/// without), and its times, those of [`Start`] in their order from `desired` to `ended`. The server
/// started three seconds after the boot.
pub(crate) fn state(starts: &[(&str, [Option<u64>; 6])]) -> Node {
    let keys = [
        "desired", "waiting", "starting", "started", "running", "ended",
    ];
    let mut instances = Node::empty();
    for (name, times) in starts {
        let (agent, name) = name.split_once('/').unwrap_or(("A", name));
        let times = keys.into_iter().zip(times);
        let times = times.filter_map(|(key, at)| Some((key, Node::Number((*at)?))));
        let instance = Node::map([("1", Node::map(times.chain([("starts", Node::Number(1))])))]);
        let workloads = instances.as_map_mut().unwrap().child(agent.to_owned());
        workloads
            .as_map_mut()
            .unwrap()
            .insert(name.to_owned(), instance);
    }
    let timings = [
        ("now", Node::Number(9_000)),
        ("boot", Node::Number(3_000)),
        ("instances", instances),
    ];
    Node::map([
        ("timings", Node::map(timings)),
        ("desiredState", Node::empty()),
    ])
}

/// The example of the documentation: ten workloads on two agents, five of them in a chain.
pub(crate) fn example() -> Node {
    let mut state = state(&[
        (
            "rear/settings",
            [Some(0), None, Some(312), None, Some(430), Some(880)],
        ),
        (
            "rear/storage",
            [Some(0), Some(305), Some(902), Some(985), Some(1_652), None],
        ),
        (
            "rear/bus",
            [Some(0), None, Some(310), None, Some(424), None],
        ),
        (
            "rear/logger",
            [Some(0), None, Some(340), None, Some(610), None],
        ),
        (
            "rear/updater",
            [Some(0), Some(306), Some(1_655), None, Some(1_905), None],
        ),
        (
            "front/camera",
            [Some(0), Some(330), Some(431), Some(512), Some(1_180), None],
        ),
        (
            "front/fusion",
            [
                Some(0),
                Some(332),
                Some(1_660),
                Some(1_785),
                Some(2_610),
                None,
            ],
        ),
        (
            "front/planner",
            [Some(0), Some(333), Some(2_614), None, Some(2_819), None],
        ),
        (
            "front/display",
            [
                Some(0),
                Some(334),
                Some(2_823),
                Some(2_904),
                Some(3_370),
                None,
            ],
        ),
        (
            "front/watchdog",
            [Some(0), None, Some(345), None, Some(501), None],
        ),
    ]);
    for (workload, needs) in [
        ("storage", &[("settings", "ADD_COND_SUCCEEDED")][..]),
        ("updater", &[("storage", "ADD_COND_RUNNING")]),
        ("camera", &[("bus", "ADD_COND_RUNNING")]),
        (
            "fusion",
            &[
                ("camera", "ADD_COND_RUNNING"),
                ("storage", "ADD_COND_RUNNING"),
            ],
        ),
        ("planner", &[("fusion", "ADD_COND_RUNNING")]),
        ("display", &[("planner", "ADD_COND_RUNNING")]),
    ] {
        let_need(&mut state, "desiredState", workload, needs);
    }
    for (agent, workload, level) in [
        ("rear", "storage", "INIT"),
        ("rear", "updater", "IMAGE"),
        ("front", "camera", "INIT"),
        ("front", "fusion", "CREATE"),
        ("front", "planner", "CREATE"),
        ("front", "display", "INIT"),
    ] {
        let times = state
            .at_mut(&["timings", "instances", agent, workload, "1"])
            .unwrap()
            .as_map_mut()
            .unwrap();
        times.insert("prepared".to_owned(), Node::text(level));
    }
    state
}

/// Compares `text` with the block of the page about starts that begins with `begin`;
/// `ANKAIOS_WRITE_GOLDEN` in the environment writes it there.
#[track_caller]
pub(crate) fn assert_documented(begin: &str, text: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/fast-boot.md");
    let page = std::fs::read_to_string(path).unwrap();
    let block = |page: &str| {
        let from = page.find(&format!("```text\n{begin}")).expect(begin) + "```text\n".len();
        from..from + page[from..].find("```").unwrap()
    };
    let trimmed: String = text
        .lines()
        .flat_map(|line| [line.trim_end(), "\n"])
        .collect();
    if std::env::var_os("ANKAIOS_WRITE_GOLDEN").is_some() {
        let mut page = page.clone();
        page.replace_range(block(&page), &trimmed);
        std::fs::write(path, page).unwrap();
        return;
    }
    assert_eq!(page[block(&page)], trimmed, "{path}");
}

/// `web` needs `db` and `setup`, `db` needs `disk`; `lone` needs nothing and `late` is starting.
pub(crate) fn chain() -> Node {
    let mut state = state(&[
        ("disk", [Some(0), None, Some(20), None, Some(520), None]),
        (
            "setup",
            [Some(0), None, Some(25), None, Some(300), Some(700)],
        ),
        (
            "db",
            [Some(0), Some(22), Some(521), Some(800), Some(1_800), None],
        ),
        (
            "web",
            [Some(0), Some(23), Some(1_802), None, Some(2_050), None],
        ),
        ("lone", [Some(0), None, Some(30), None, Some(400), None]),
        ("late", [Some(8_000), None, Some(8_010), None, None, None]),
    ]);
    let_need(
        &mut state,
        "desiredState",
        "db",
        &[("disk", "ADD_COND_RUNNING")],
    );
    let needs = [("db", "ADD_COND_RUNNING"), ("setup", "ADD_COND_SUCCEEDED")];
    let_need(&mut state, "desiredState", "web", &needs);
    state
}

// [utest->swdd~cli-shows-start-times~1]
#[test]
fn instance_waited_for_the_dependency_that_was_met_last() {
    let starts = Starts::of(&chain()).unwrap();
    let waited_for = |name| starts.by_workload()[name].waited_for.as_str();
    assert_eq!(
        ["web", "db", "disk", "lone", "late"].map(waited_for),
        ["db", "disk", "", "", ""]
    );
    // Dependencies that were met before it waited, or after it had started, were no reason.
    for (needed, expected) in [(99, ""), (100, "needed"), (200, "needed"), (201, "")] {
        let mut state = state(&[
            ("needed", [Some(0), None, None, None, Some(needed), None]),
            ("one", [Some(0), Some(100), Some(200), None, None, None]),
        ]);
        let_need(
            &mut state,
            "desiredState",
            "one",
            &[("needed", "ADD_COND_RUNNING")],
        );
        let starts = Starts::of(&state).unwrap();
        assert_eq!(starts.by_workload()["one"].waited_for, expected, "{needed}");
    }
}

#[test]
fn durations_are_missing_where_a_moment_is() {
    let starts = Starts::of(&chain()).unwrap();
    let durations = |name| {
        let start = starts.by_workload()[name];
        [start.waited(), start.start(), start.ready(), start.total()]
    };
    assert_eq!(
        durations("db"),
        [Some(499), Some(279), Some(1_000), Some(1_800)]
    );
    assert_eq!(
        durations("web"),
        [Some(1_779), Some(248), None, Some(2_050)]
    );
    assert_eq!(durations("late"), [None; 4]);
}

#[test]
fn job_that_was_never_seen_to_run_took_until_its_end() {
    let starts = Starts::of(&state(&[
        ("job", [Some(0), None, Some(10), None, None, Some(250)]),
        ("earlier", [Some(0), None, None, None, None, Some(250)]),
        ("runs", [Some(0), None, Some(20), None, Some(100), None]),
    ]));
    let starts = starts.unwrap();
    let of = |name| {
        starts
            .by_workload()
            .get(name)
            .map(|start| (start.start(), start.total(), start.done_at()))
            .unwrap()
    };
    assert_eq!(of("job"), (Some(240), Some(250), Some(250)));
    assert_eq!(of("earlier"), (None, None, None));
    assert_eq!(
        starts.last_chain(|_| true),
        ["runs"].into(),
        "only what is ready is the last"
    );
}

#[test]
fn a_restarted_instance_counts_from_its_last_start() {
    let mut starts = Starts::of(&state(&[(
        "w",
        [
            Some(0),
            Some(60_000),
            Some(61_000),
            None,
            Some(61_500),
            None,
        ],
    )]));
    let start = &mut starts.as_mut().unwrap().all[0];
    assert_eq!((start.begin(), start.total()), (Some(0), Some(61_500)));
    start.starts = 2;
    assert_eq!((start.begin(), start.total()), (Some(60_000), Some(1_500)));
}

#[test]
fn what_ran_before_the_server_was_there_has_no_durations() {
    let starts = Starts::of(&state(&[
        ("adopted", [Some(0), None, None, None, Some(1_000), None]),
        ("started", [Some(0), None, Some(10), None, Some(500), None]),
    ]));
    let starts = starts.unwrap();
    let adopted = starts.by_workload()["adopted"];
    assert_eq!((adopted.total(), adopted.ready_at()), (None, None));
    assert_eq!(starts.last_chain(|_| true), ["started"].into());
}

#[test]
fn the_last_chain_goes_back_over_what_was_waited_for() {
    let mut starts = Starts::of(&chain()).unwrap();
    assert_eq!(starts.last_chain(|_| true), ["db", "disk", "web"].into());
    assert_eq!(
        starts.last_chain(|name| name != "web"),
        ["db", "disk"].into()
    );
    assert_eq!(starts.last_chain(|name| name == "late"), [].into());
    for start in &mut starts.all {
        start.waited_for = if *start.instance.workload == *"disk" {
            "db"
        } else {
            "disk"
        }
        .to_owned();
    }
    assert_eq!(
        starts.last_chain(|name| name == "db"),
        ["db", "disk"].into(),
        "it ends"
    );
}

#[test]
fn a_server_without_start_times_is_an_error_with_a_hint() {
    let error = Starts::of(&Node::map([("desiredState", Node::empty())])).unwrap_err();
    assert_eq!(
        error.text_for(Some("print the start times")),
        "the server keeps no start times"
    );
    assert!(!error.hint().is_empty());
}
