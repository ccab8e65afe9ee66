//! What workloads use: `ank top` against all three programs, and the metrics files. Containers of
//! the fake engine have no control group of their own, so their values are unknown; tests/system
//! has real ones.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::busy_cluster::Held;
use crate::support::{
    Cluster, LIMIT, SmallDisk, connection, leave_out, manifest, poll, table, wait_until, workload,
};
use rustix::process::Signal;
use serde_json::Value;

const AGENTS: [&str; 3] = ["agent_A", "agent_B", "agent_C"];

/// Three agents with a workload each.
fn cluster() -> Cluster {
    let cluster = Cluster::start(&AGENTS);
    cluster.run(&AGENTS.map(|agent| workload(&format!("on_{agent}"), "run").on(agent)));
    cluster.wait_until_run(&AGENTS.map(|agent| format!("on_{agent}")));
    cluster
}

/// What `ank top` prints when it has these warnings. On a busy machine any agent may take longer
/// than a read waits.
fn top(cluster: &Cluster, arguments: &[&str], warnings: &str) -> String {
    cluster.wait_for("exactly these warnings", || {
        let output = cluster.ank(&[&["top"], arguments].concat());
        assert_eq!(output.code, 0, "{output:?}");
        (output.stderr == warnings).then_some(output.stdout)
    })
}

fn top_json(cluster: &Cluster, arguments: &[&str], warnings: &str) -> Value {
    let shown = top(cluster, &[&["-o", "json"], arguments].concat(), warnings);
    serde_json::from_str(&shown).expect("it is JSON")
}

// [itest->swdd~usage-on-request~1]
#[test]
fn top_shows_all_agents_and_names_a_hanging_one() {
    let mut cluster = cluster();
    let shown = top(&cluster, &["--interval", "500ms"], "");
    let rows = table::parse(&shown);
    assert!(
        shown.starts_with("WORKLOAD NAME   AGENT     EXECUTION STATE   CPU "),
        "{shown}"
    );
    assert_eq!(rows.len(), 3 + 3 * 2, "{shown}");
    let node = rows
        .iter()
        .find(|row| row[0] == "(node)" && row[1] == "agent_B")
        .expect("each agent has a node");
    assert!(node[3].ends_with('%') && node[4].ends_with("iB"), "{shown}");
    // A state checker that is late for a sample is left out of it.
    let document = cluster.wait_for("the sample of the container", || {
        let document = top_json(&cluster, &["on_agent_A"], "");
        (document["workloads"][0]["missing"] == "no cgroup of its own").then_some(document)
    });
    let agent = &document["agents"]["agent_C"];
    assert!(
        document["workloads"][0].get("memoryBytes").is_none() && agent["cores"].as_u64() > Some(0),
        "{document}"
    );

    cluster.agent("agent_B").signal(Signal::STOP);
    let begin = Instant::now();
    let late = "warn: what agent 'agent_B' uses is unknown: no answer within 1 s\n";
    let document = top_json(&cluster, &["--interval", "500ms"], late);
    assert!(
        begin.elapsed() >= Duration::from_secs(2),
        "both reads wait for it"
    );
    assert_eq!(
        document["agents"]["agent_B"],
        serde_json::json!({"missing": "no answer within 1 s"})
    );
    assert!(
        document["agents"]["agent_A"]["cpuPercent"].is_number(),
        "{document}"
    );
    top(&cluster, &["-a", "agent_C"], ""); // Nothing is requested from the one that hangs.
    cluster.agent("agent_B").signal(Signal::CONT);
    let document = top_json(&cluster, &[], "");
    assert!(
        document["agents"]["agent_B"]["cores"].is_number(),
        "{document}"
    );
}

#[test]
fn agent_without_usage_is_named_at_once() {
    let cluster = Cluster::start(&["agent_A"]);
    let (_sender, mut receiver, hangup) = connection::agent(&cluster.url(), "other");
    wait_until("the other agent to be connected", || {
        cluster.ank(&["get", "agents"]).stdout.contains("other")
    });
    let unable = "warn: what agent 'other' uses is unknown: its agent cannot report usage\n";
    let document = top_json(&cluster, &["--interval", "500ms"], unable);
    assert!(
        document["agents"]["agent_A"]["cores"].is_number(),
        "{document}"
    );
    hangup.hang_up();
    while let Ok(message) = receiver.receive() {
        assert!(
            !format!("{message:?}").contains("UsageRequest"),
            "{message:?}"
        );
    }
}

// [itest->swdd~usage-on-request~1]
#[test]
fn usage_leaves_no_trace_between_samples() {
    let mut cluster = Cluster::start(&["agent_A"]);
    let pids = [cluster.server().pid(), cluster.agent("agent_A").pid()];
    for held in pids.map(Held::of) {
        assert_eq!(
            (held.count("usage"), held.count("metrics")),
            (0, 0),
            "{held:?}"
        );
    }
    // The first connections leave something behind in gRPC.
    top(&cluster, &["--interval", "500ms"], "");
    cluster.engine.wait_until_quiet();
    let before = pids.map(Held::of);
    for _ in 0..4 {
        top(&cluster, &["--interval", "500ms"], "");
    }
    let is_within = |(pid, before)| Held::of(pid).is_within(before);
    let settled = poll(LIMIT, || {
        pids.into_iter().zip(&before).all(is_within).then_some(())
    });
    assert!(
        settled.is_some(),
        "held {before:?}, now {:?}",
        pids.map(Held::of)
    );
}

/// The values of a metrics file without labels, and whether it ends with a whole line.
fn value(text: &str, series: &str) -> Option<String> {
    text.lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
        .map(str::to_owned)
}

fn wait_for_value(path: &Path, series: &str, expected: &str) -> String {
    let text = poll(LIMIT, || {
        let text = fs::read_to_string(path).ok()?;
        (value(&text, series)? == expected).then_some(text)
    });
    text.unwrap_or_else(|| panic!("no {series} {expected} in {:?}", fs::read_to_string(path)))
}

// [itest->swdd~metrics-file~1]
#[test]
fn metrics_files_are_removed_at_an_orderly_stop() {
    let mut cluster = Cluster::prepare();
    let file = |cluster: &Cluster, name: &str| cluster.folder().join(name);
    let (of_agent, of_server) = (file(&cluster, "agent.prom"), file(&cluster, "server.prom"));
    cluster.agent_config = format!("metrics = '{}'\nmetrics_interval = 1\n", of_agent.display());
    cluster.server_config = format!(
        "metrics = '{}'\nmetrics_interval = 1\n",
        of_server.display()
    );
    cluster.start_all(&["agent_A"]);
    cluster.apply(&manifest(&[
        workload("web", "run"),
        workload("odd", "run").runtime("odd"),
    ]));
    let web = r#"{agent="agent_A",workload="web",runtime="podman",state="Running"}"#;
    let odd = r#"{agent="agent_A",workload="odd",runtime="unsupported",state="Pending"}"#;
    wait_for_value(&of_agent, &format!("ankaios_workload_state{odd}"), "1");
    let text = wait_for_value(&of_agent, &format!("ankaios_workload_state{web}"), "1");
    assert_eq!(
        value(&text, r#"ankaios_agent_server_connected{agent="agent_A"}"#).as_deref(),
        Some("1")
    );
    assert!(!text.contains("memory_bytes{"), "{text}");
    assert_eq!(
        fs::metadata(&of_agent)
            .expect("it is there")
            .permissions()
            .mode()
            & 0o777,
        0o644
    );
    wait_for_value(
        &of_server,
        r#"ankaios_server_workloads{agent="agent_A",state="Running"}"#,
        "1",
    );
    let text = wait_for_value(&of_server, "ankaios_server_agents", "1");
    assert_eq!(
        value(&text, r#"ankaios_server_updates_total{result="accepted"}"#).as_deref(),
        Some("1")
    );
    cluster.server().signal(Signal::TERM);
    wait_until("the file of the server to be removed", || {
        !of_server.exists()
    });
    wait_for_value(
        &of_agent,
        r#"ankaios_agent_server_connected{agent="agent_A"}"#,
        "0",
    );
    cluster.agent("agent_A").signal(Signal::TERM);
    wait_until("the file of the agent to be removed", || !of_agent.exists());
}

// [itest->swdd~metrics-file~1]
#[test]
fn missing_folder_or_full_disk_costs_only_the_metrics() {
    let mut cluster = Cluster::prepare();
    let folder = cluster.folder().join("metrics");
    let path = folder.join("agent.prom");
    cluster.agent_config = format!("metrics = '{}'\nmetrics_interval = 1\n", path.display());
    cluster.start_all(&["agent_A"]);
    let failures = |cluster: &mut Cluster, reason: &str| {
        let log = cluster.agent("agent_A").stderr();
        log.lines()
            .filter(|line| line.contains("Cannot write the metrics to") && line.contains(reason))
            .count()
    };
    wait_until("the missing folder to be named", || {
        failures(&mut cluster, "No such file") == 1
    });
    fs::create_dir(&folder).expect("own folder is writable");
    wait_until("the file", || path.exists());
    assert_eq!(failures(&mut cluster, "No such file"), 1, "once per reason");
    let Some(disk) = SmallDisk::mount(&folder, 64) else {
        return leave_out("a full disk", "only root can mount one");
    };
    wait_until("the full disk to be named", || {
        disk.fill(); // Again: the file that was replaced meanwhile leaves room.
        failures(&mut cluster, "No space left") == 1
    });
    wait_until("what was begun to be removed", || {
        !folder.join("agent.prom.new").exists()
    });
    cluster.run(&[workload("web", "run")]);
    cluster.wait_until_run(&["web"]);
    disk.clear();
    let web = r#"ankaios_workload_state{agent="agent_A",workload="web",runtime="podman",state="Running"}"#;
    wait_for_value(&path, web, "1");
    assert_eq!(
        failures(&mut cluster, "No space left"),
        1,
        "once per reason"
    );
}
