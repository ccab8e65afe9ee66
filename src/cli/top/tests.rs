//! What `ank top` reads, computes and prints, against a scripted server.

use super::*;
use crate::args::{Arguments, Verb};
use crate::tests::{Played, Step, play, reported, state};
use ankaios_model::execution_state::Phase;
use ankaios_model::usage::{AgentUsage, NO_ANSWER};
use std::time::{Duration, UNIX_EPOCH};

const MIB: u64 = 1024 * 1024;

/// A sample of `agent_A` after `usec` microseconds, in which `web` took 12.3 % of a core and the
/// node 150 %.
fn sample(usec: u64) -> AgentUsage {
    let web = WorkloadUsage {
        memory_bytes: Some(50 * MIB),
        inactive_file_bytes: Some(9 * MIB),
        memory_peak_bytes: Some(64 * MIB),
        cpu_usec: Some(5_000_000 + usec * 123 / 1000),
        pids: Some(4),
        uptime_ms: Some(3_723_000),
        restarts: Some(1),
        image_bytes: Some(120 * MIB),
        image_removable_bytes: Some(40 * MIB),
        missing: None,
    };
    let new = WorkloadUsage {
        memory_bytes: Some(2 * MIB),
        inactive_file_bytes: Some(0),
        cpu_usec: Some(200_000),
        uptime_ms: Some(400),
        restarts: Some(0),
        ..WorkloadUsage::default()
    };
    let done = WorkloadUsage {
        restarts: Some(0),
        ..WorkloadUsage::default()
    };
    let of = |usage| [("1".into(), usage)].into();
    AgentUsage {
        sampled_usec: Some(1_000 + usec),
        node: NodeUsage {
            cores: Some(2),
            cpu_busy_usec: Some(77 + usec * 3 / 2),
            memory_total_bytes: Some(2048 * MIB),
            memory_available_bytes: Some(512 * MIB),
        },
        workloads: [
            ("web".into(), of(web)),
            ("new".into(), of(new)),
            ("done".into(), of(done)),
        ]
        .into(),
        missing: None,
    }
}

/// What a server with these samples returns; `far` runs on another connected agent, `gone` on one
/// that is not.
fn cluster(usage: &[(&str, AgentUsage)]) -> Node {
    let mut cluster = state(
        &["agent_A", "agent_B"],
        &[
            ("web", "1", "agent_A", Phase::Running),
            ("new", "1", "agent_A", Phase::Running),
            ("done", "1", "agent_A", Phase::Succeeded),
            ("far", "1", "agent_B", Phase::Running),
            ("gone", "1", "agent_C", Phase::AgentDisconnected),
        ],
    );
    let usage = Node::map(usage.iter().map(|(agent, usage)| (*agent, usage.node())));
    cluster
        .as_map_mut()
        .unwrap()
        .insert("usage".to_owned(), usage);
    cluster
}

fn silence() -> Step {
    Step::Silence(Duration::from_secs(7200))
}

fn top(
    words: &str,
    terminal: Option<fn() -> (usize, usize)>,
    steps: impl IntoIterator<Item = Step>,
) -> Played<ExitCode> {
    let arguments =
        Arguments::read(["ank", "top"].into_iter().chain(words.split_whitespace())).unwrap();
    let Verb::Top(arguments) = arguments.command else {
        panic!("{words}")
    };
    play(terminal, steps, |server, output| {
        show(
            &arguments,
            || UNIX_EPOCH + Duration::from_secs(1),
            server,
            output,
        )
    })
}

/// Two samples of `agent_A`, a second apart; `agent_B` does not respond.
fn two() -> [Step; 3] {
    let at = |usec| {
        Step::State(cluster(&[
            ("agent_A", sample(usec)),
            ("agent_B", AgentUsage::missing(NO_ANSWER)),
        ]))
    };
    [at(0), silence(), at(1_000_000)]
}

fn shown(words: &str, steps: impl IntoIterator<Item = Step>) -> (String, String) {
    let played = top(words, None, steps);
    played.result.unwrap();
    (
        played
            .out
            .lines()
            .flat_map(|line| [line.trim_end(), "\n"])
            .collect(),
        played.err,
    )
}

const HEADING: &str = "WORKLOAD NAME   AGENT     EXECUTION STATE     CPU      MEMORY    PEAK      PIDS   RESTARTS   UPTIME\n";
const AWAY: &str = "warn: what agent 'agent_C' uses is unknown: disconnected\n";
const LATE: &str = "warn: what agent 'agent_B' uses is unknown: no answer within 1 s\n";

#[test]
fn the_table_shows_shares_between_two_samples_sums_and_nodes() {
    let (out, err) = shown("", two());
    let rows = "\
new             agent_A   Running(Ok)         50.0%    2.0MiB    -         -      0          0s
web             agent_A   Running(Ok)         12.3%    41.0MiB   64.0MiB   4      1          1h2m
done            agent_A   Succeeded(Ok)       -        -         -         -      0          -
far             agent_B   Running(Ok)         -        -         -         -      -          -
gone            agent_C   AgentDisconnected   -        -         -         -      -          -
(workloads)     agent_A                       62.3%    43.0MiB   -         4      1          -
(node)          agent_A                       150.0%   1.5GiB    -         -      -          -
(workloads)     agent_B                       -        -         -         -      -          -
(node)          agent_B                       -        -         -         -      -          -
";
    assert_eq!(out, format!("{HEADING}{rows}"));
    assert_eq!(err, format!("{LATE}{AWAY}"));
    let read = &top("", None, two()).server.reads;
    assert_eq!(
        *read,
        vec![["usage", "workloadStates", "agents", "warning"]; 2]
    );
}

#[test]
fn narrow_terminal_keeps_cpu_and_memory() {
    for (terminal, name) in [
        ((|| (40, 24)) as fn() -> (usize, usize), "web"),
        (|| (28, 24), "web"),
    ] {
        let out = top("", Some(terminal), two()).out;
        let columns = terminal().0;
        let row = out.lines().find(|line| line.starts_with(name));
        let row = row.unwrap_or_else(|| panic!("{out}"));
        assert!(row.contains("12.3%") && row.contains("41.0MiB"), "{out}");
        assert!(out.lines().all(|line| line.len() <= columns), "{out}");
    }
}

#[test]
fn workloads_of_a_disconnected_agent_are_named() {
    for (words, warning) in [("gone", AWAY), ("-a agent_C", AWAY), ("-a agent_A", "")] {
        let (out, err) = shown(words, two());
        assert_eq!(
            out.contains("gone            agent_C   AgentDisconnected   -"),
            !warning.is_empty(),
            "{words}: {out}"
        );
        assert!(
            err.ends_with(warning) && (err.is_empty() == warning.is_empty()),
            "{words}: {err}"
        );
    }
}

#[test]
fn filters_and_keys_choose_rows_and_their_order() {
    let order = |words: &str| {
        let (out, _) = shown(words, two());
        let names = out
            .lines()
            .skip(1)
            .filter_map(|line| line.split_whitespace().next());
        names
            .filter(|name| !name.starts_with('('))
            .collect::<Vec<_>>()
            .join(" ")
    };
    for (words, expected) in [
        ("-s cpu", "new web done far gone"),
        ("-s memory", "web new done far gone"),
        ("--sort peak", "web done far gone new"),
        ("-s pids", "web done far gone new"),
        ("-s restarts", "web done new far gone"),
        ("-s uptime", "web new done far gone"),
        ("-s name", "done far gone new web"),
        ("-a agent_B", "far"),
        ("web far", "web far"),
        ("-a agent_C", "gone"),
    ] {
        assert_eq!(order(words), expected, "{words}");
    }
    for (words, text, hint) in [
        (
            "wep -a agent_A",
            "Workload name 'wep' does not exist.",
            "did you mean 'web'?",
        ),
        (
            "-a agent_X",
            "agent 'agent_X' does not exist",
            "did you mean 'agent_A'?",
        ),
    ] {
        let played = top(words, None, two());
        let error = played.result.unwrap_err();
        assert_eq!(
            (error.to_string().as_str(), error.hint().as_str()),
            (text, hint)
        );
        assert_eq!((played.out, played.err), (String::new(), String::new()));
    }
    let played = top("-a agent_A", None, two());
    assert_eq!(
        played.server.reads[0],
        ["usage.agent_A", "workloadStates", "agents", "warning"]
    );
    assert!(
        !played.out.contains("agent_B") && played.err.is_empty(),
        "{}{}",
        played.out,
        played.err
    );
}

#[test]
fn decreased_counter_or_missing_sample_gives_no_share() {
    let at = |usec, cpu_usec| {
        let mut usage = sample(usec);
        usage
            .workloads
            .get_mut("web")
            .unwrap()
            .get_mut("1")
            .unwrap()
            .cpu_usec = cpu_usec;
        Step::State(cluster(&[("agent_A", usage)]))
    };
    let cpu = |first: Step, second: Step| {
        let (out, _) = shown("web", [first, silence(), second]);
        out.lines()
            .nth(1)
            .unwrap()
            .split_whitespace()
            .nth(3)
            .unwrap()
            .to_owned()
    };
    assert_eq!(cpu(at(0, Some(10)), at(1_000_000, Some(250_010))), "25.0%");
    assert_eq!(cpu(at(0, Some(10)), at(1_000_000, Some(9))), "-");
    assert_eq!(cpu(at(0, None), at(1_000_000, Some(9))), "-");
    assert_eq!(
        cpu(at(5, Some(1)), at(5, Some(9))),
        "-",
        "no time has passed"
    );
    assert_eq!(
        cpu(at(9_000_000, Some(1)), at(5, Some(9))),
        "-",
        "the node was restarted"
    );
    let missing = || Step::State(cluster(&[("agent_A", AgentUsage::missing(NO_ANSWER))]));
    assert_eq!(cpu(missing(), at(5, Some(9))), "-");
    let (_, err) = shown("web", [missing(), silence(), at(5, Some(9))]);
    assert_eq!(
        err,
        format!("warn: what agent 'agent_A' uses is unknown: no answer within 1 s\n{AWAY}")
    );
}

// [utest->swdd~agent-shows-bytes-of-images~1]
#[test]
fn wide_table_has_images_and_what_can_be_removed_of_them() {
    let (out, _) = shown("-o wide", two());
    let cells = |name: &str| {
        let line = out.lines().find(|line| line.starts_with(name));
        let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
        words[words.len().saturating_sub(2)..].join(" ")
    };
    assert_eq!(cells("WORKLOAD NAME"), "IMAGES REMOVABLE", "{out}");
    assert_eq!(cells("web"), "120.0MiB 40.0MiB", "{out}");
    assert_eq!(cells("new"), "- -", "{out}");
    assert_eq!(cells("(workloads)"), "- -", "images may be shared: {out}");
    let (narrow, _) = shown("", two());
    assert!(!narrow.contains("IMAGES"), "{narrow}");
}

#[test]
fn json_has_the_values_as_they_were_sent_and_the_share() {
    let (out, err) = shown("-o json", two());
    let document: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(document["time"], "1970-01-01T00:00:01.000000000+00:00");
    let node = &document["agents"]["agent_A"];
    assert_eq!(
        (&node["cpuPercent"], &node["cores"], &node["sampledUsec"]),
        (&150.0.into(), &2.into(), &1_001_000.into())
    );
    assert_eq!(
        document["agents"]["agent_B"],
        serde_json::json!({"missing": NO_ANSWER})
    );
    let web = &document["workloads"][1];
    let expected = serde_json::json!({
        "workload": "web", "agent": "agent_A", "id": "1", "state": "Running", "subState": "Ok",
        "memoryBytes": 50 * MIB, "inactiveFileBytes": 9 * MIB, "memoryPeakBytes": 64 * MIB, "cpuUsec": 5_123_000,
        "pids": 4, "uptimeMs": 3_723_000, "restarts": 1, "cpuPercent": 12.3,
        "imageBytes": 120 * MIB, "imageRemovableBytes": 40 * MIB,
    });
    assert_eq!(*web, expected);
    assert!(
        document["workloads"][3].get("memoryBytes").is_none(),
        "{out}"
    );
    assert!(err.starts_with("warn: "), "{err}");
    let watched = top(
        "-w -o json web",
        None,
        two().into_iter().chain(two().into_iter().skip(1)),
    );
    assert!(watched.result.is_err(), "the script ends");
    let documents: Vec<serde_json::Value> = watched
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(documents.len(), 2);
}

#[test]
fn a_watched_table_is_redrawn_and_each_warning_comes_once() {
    let at = |usec, missing: &[&str]| {
        let missing = missing
            .iter()
            .map(|agent| (*agent, AgentUsage::missing(NO_ANSWER)));
        Step::State(cluster(
            &[("agent_A", sample(usec))]
                .into_iter()
                .chain(missing)
                .collect::<Vec<_>>(),
        ))
    };
    let steps = [
        at(0, &[]),
        Step::Broadcast(vec![reported("web.1.agent_A", Phase::Running, "")]),
        Step::Silence(Duration::from_secs(5)), // The first frame comes sooner than the others.
        at(1_000_000, &[]),
        silence(),
        at(31_000_000, &["agent_B"]),
        silence(),
        at(61_000_000, &["agent_B"]),
    ];
    let played = top("-w --interval 30s", Some(|| (200, 50)), steps);
    assert!(played.result.is_err(), "the script ends");
    assert_eq!(played.err, format!("{AWAY}{LATE}"));
    assert_eq!(played.out.matches("WORKLOAD NAME").count(), 3);
    assert_eq!(
        played.out.matches("\x1b[10A").count(),
        1,
        "below the warning the frame begins anew: {:?}",
        played.out
    );
    let small = top("-w", Some(|| (40, 5)), two());
    assert!(
        small.out.contains("and 7 more lines\x1b[K\n"),
        "{:?}",
        small.out
    );
    assert!(
        small.out.lines().all(|line| line.len() < 50),
        "{:?}",
        small.out
    );
}

#[test]
fn a_server_without_samples_is_an_error_with_a_way_out() {
    let played = top("", None, [Step::State(state(&["A"], &[]))]);
    let error = played.result.unwrap_err();
    assert_eq!(
        error.text_for(Some("show usage")),
        "The server cannot tell what workloads use."
    );
    assert!(error.hint().contains("Eclipse Ankaios"));
}

#[test]
fn options_are_checked() {
    for (words, good) in [
        ("--interval 500ms", true),
        ("--interval 1h", true),
        ("--interval 499ms", false),
        ("--interval 3601", false),
        ("--interval x", false),
        ("-s size", false),
        ("-o yaml", true),
        ("-o svg", false),
        ("-q", true),
        ("-w", true),
        ("-q -w", false),
    ] {
        let read = Arguments::read(["ank", "top"].into_iter().chain(words.split(' ')));
        assert_eq!(read.is_ok(), good, "{words}");
        if words == "-q -w" {
            assert!(
                read.unwrap_err()
                    .render()
                    .to_string()
                    .contains("Usage: ank top"),
                "{words}"
            );
        }
    }
}

#[test]
fn sizes_and_times_are_short() {
    for (bytes, expected) in [
        (0_u64, "0B"),
        (1023, "1023B"),
        (1024, "1.0KiB"),
        (1024 * 1024 - 1, "1.0MiB"),
        (43_200_000, "41.2MiB"),
        (3 << 30, "3.0GiB"),
        (u64::MAX, "16.0EiB"),
    ] {
        assert_eq!(size(bytes as f64), expected, "{bytes}");
    }
    for (seconds, expected) in [
        (0_u32, "0s"),
        (59, "59s"),
        (60, "1m0s"),
        (3_599, "59m59s"),
        (3_600, "1h0m"),
        (86_399, "23h59m"),
        (273_600, "3d4h"),
    ] {
        assert_eq!(duration(f64::from(seconds) * 1_000.0), expected);
    }
}

#[test]
fn unknown_name_ends_with_1() {
    let running = || state(&["agent_A"], &[("web", "1", "agent_A", Phase::Running)]);
    for (words, code) in [
        ("web", ExitCode::Success),
        ("-a agent_A", ExitCode::Success),
        ("web nope", ExitCode::Failed),
        ("-a nope", ExitCode::Failed),
    ] {
        let read = || {
            let mut state = running();
            state
                .as_map_mut()
                .unwrap()
                .insert("usage".to_owned(), Node::empty());
            Step::State(state)
        };
        let played = top(words, None, [read(), silence(), read()]);
        let found = match played.result {
            Ok(code) => code,
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("'nope' does not exist"), "{words}: {text}");
                error.exit_code()
            }
        };
        assert_eq!(found, code, "{words}: {}", played.err);
    }
}
