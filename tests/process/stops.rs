//! `ank stop` and `ank start` with the real programs: what ends, what stays stopped, and what warns.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use std::fs;

use crate::support::{Cluster, manifest, wait_until, workload};

const WARNING: &str = "warn: workload 'web' is stopped until 'ank start web'";

/// A cluster of `agent_A` whose server keeps its state, in which `web` and `db` run.
fn cluster() -> Cluster {
    let mut cluster = Cluster::prepare();
    let folder = cluster.folder().join("state");
    cluster.server_config = format!("state_dir = '{}'", folder.display());
    cluster.start_all(&["agent_A"]);
    let web = workload("web", "run").after("db", "ADD_COND_RUNNING");
    cluster.apply(&manifest(&[workload("db", "run"), web]));
    cluster.wait_until_run(&["db", "web"]);
    cluster
}

fn state_of(cluster: &Cluster, name: &str) -> String {
    cluster
        .workload(name)
        .map(|row| row.state)
        .unwrap_or_default()
}

// [stest->swdd~server-stops-workloads~1]
// [stest->swdd~cli-stops-workloads~1]
#[test]
fn stopped_workload_has_no_container_until_started() {
    let cluster = cluster();
    let output = cluster.ank(&["stop", "web"]);
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.stdout.starts_with("Stopping 'web'.\n"), "{output:?}");
    assert!(output.stderr.contains(WARNING), "{output:?}");
    assert!(cluster.engine.containers_of("web").is_empty(), "ank waits");
    let row = cluster.workload("web").expect("it is shown");
    assert_eq!(
        (row.state.as_str(), row.info.as_str()),
        ("NotScheduled", "stopped on request")
    );
    for words in [
        &["get", "workloads"][..],
        &["get", "state", "agents"],
        &["describe", "web"],
        &["graph"],
        &["get", "agents"],
        &["get", "updates"],
        &["top", "--interval", "500ms"],
    ] {
        let output = cluster.ank(words);
        assert!(output.stderr.contains(WARNING), "{words:?}: {output:?}");
    }
    let output = cluster.ank(&["start", "web"]);
    assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{output:?}");
    assert_eq!(state_of(&cluster, "web"), "Running(Ok)", "ank waits");
    assert_eq!(cluster.ank(&["get", "workloads"]).stderr, "");
}

#[test]
fn stop_of_what_others_need_names_them() {
    let cluster = cluster();
    let output = cluster.ank(&["stop", "db"]);
    assert_eq!(output.code, 1, "{output:?}");
    let expected = "error: 'web' must end before 'db' can\n\
                    hint: nothing was changed; stop them together: 'ank stop db web'\n";
    assert_eq!(output.stderr, expected);
    let output = cluster.ank(&["stop", "dbb"]);
    assert_eq!(output.code, 1);
    assert!(
        output.stderr.contains("hint: did you mean 'db'?"),
        "{output:?}"
    );
    assert_eq!(cluster.ank(&["stop", "db", "web"]).code, 0);
    let output = cluster.ank(&["start", "web"]);
    assert!(
        output
            .stderr
            .contains("warn: before it starts, 'web' waits for 'db' to run"),
        "{output:?}"
    );
    assert_eq!(cluster.ank(&["start", "db"]).code, 0);
    cluster.wait_until_run(&["db", "web"]);
}

#[test]
fn apply_and_restarts_of_programs_do_not_start_it() {
    let mut cluster = cluster();
    assert_eq!(cluster.ank(&["stop", "web"]).code, 0);
    let changed = workload("web", "run")
        .tagged("new", "yes")
        .after("db", "ADD_COND_RUNNING");
    let file = cluster.write("new.yaml", &manifest(&[changed]));
    let file = file.display().to_string();
    let output = cluster.ank(&["diff", &file]);
    assert!(output.stderr.contains(WARNING), "{output:?}");
    let output = cluster.ank(&["apply", &file]);
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.stderr.contains(WARNING), "{output:?}");
    let state = cluster.folder().join("state").join("desired-state.json");
    wait_until("the state is stored", || {
        let stored = fs::read_to_string(&state).unwrap_or_default();
        stored.contains("\"new\"") && stored.contains("\"stopped\"")
    });
    cluster.kill_server();
    cluster.kill_agent("agent_A");
    cluster.start_server(&[]);
    cluster.start_agent("agent_A");
    cluster.wait_for_agents(&["agent_A"]);
    cluster.wait_until_run(&["db"]);
    assert_eq!(state_of(&cluster, "web"), "NotScheduled");
    assert!(cluster.engine.containers_of("web").is_empty());
    cluster.ank(&["start", "web"]).success();
    assert_eq!(state_of(&cluster, "web"), "Running(Ok)");
}

#[test]
fn server_without_state_dir_warns_that_it_forgets() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.apply(&manifest(&[workload("web", "run")]));
    cluster.wait_until_run(&["web"]);
    let output = cluster.ank(&["stop", "web"]);
    let expected = format!("{WARNING} or a restart of the server, which has no 'state_dir'\n");
    assert_eq!((output.code, output.stderr), (0, expected));
}
