//! YAML texts of some hundred kilobytes that become gigabytes, also in stored states of earlier
//! versions: the programs refuse the text, say why and continue.
//!
//! Thread: the test's. Owns: one cluster per test.

use std::fs;

use crate::support::process::{exit_code, memory_peak_kib};
use crate::support::{Cluster, LIMIT, Output, workload};
use ankaios_lite::model::names::hash_id;
use serde_json::json;

/// What the server may take while it looks at such a text, in KiB.
const SERVER_MAX_KIB: u64 = 100 * 1024;
/// The same for an agent.
const AGENT_MAX_KIB: u64 = 50 * 1024;

const REASON: &str = "when its aliases are followed";

/// Lines with a text of 20 KB and more than 20,000 aliases of it: half a megabyte becomes half a
/// gigabyte.
fn bomb(key: &str) -> String {
    format!(
        "text: &a {}\n{key}: [{}]\n",
        "x".repeat(20_000),
        "*a, ".repeat(120_000)
    )
}

fn indented(text: &str, by: usize) -> String {
    text.lines()
        .map(|line| format!("{}{line}\n", " ".repeat(by)))
        .collect()
}

/// A complete state with one workload.
fn state(name: &str, runtime: &str, config: &str) -> String {
    let config = indented(config, 8);
    format!(
        "desiredState:\n  apiVersion: v1\n  workloads:\n    {name}:\n      agent: agent_A\n      runtime: {runtime}\n      \
         runtimeConfig: |\n{config}"
    )
}

#[track_caller]
fn set(cluster: &Cluster, name: &str, runtime: &str, config: &str) -> Output {
    let mask = format!("desiredState.workloads.{name}");
    cluster.ank_with_input(
        &["--no-wait", "set", "state", &mask, "-"],
        &state(name, runtime, config),
    )
}

#[test]
fn yaml_bombs_are_refused_by_ank_and_as_startup_manifest() {
    let cluster = Cluster::start(&[]);
    let text = format!("apiVersion: v1\n{}", bomb("configs"));
    for arguments in [&["apply", "-"][..], &["set", "state", "desiredState", "-"]] {
        let output = cluster.ank_with_input(arguments, &text);
        assert_eq!(output.code, 1, "{}", output.stderr);
        assert!(output.stderr.contains(REASON), "{}", output.stderr);
    }
    // A runtime configuration is looked at alone.
    let config = format!("image: run\nlifecycle: {{}}\n{}", bomb("commandArgs"));
    let text = format!(
        "apiVersion: v1\nworkloads:\n  web:\n    agent: agent_A\n    runtime: podman\n    runtimeConfig: |\n{}",
        indented(&config, 6)
    );
    let output = cluster.ank_with_input(&["apply", "-"], &text);
    assert_eq!(output.code, 1, "{}", output.stderr);
    assert!(
        output.stderr.contains("workload 'web'") && output.stderr.contains(REASON),
        "{}",
        output.stderr
    );

    let path = cluster.write("bomb.yaml", &format!("apiVersion: v1\n{}", bomb("configs")));
    let mut server = cluster.spawn_server(&["--startup-manifest", &path.display().to_string()]);
    assert_eq!(exit_code(server.wait(LIMIT).expect("the server ends")), 1);
    assert!(server.stderr().contains(REASON), "{}", server.stderr());
}

#[test]
fn server_refuses_a_yaml_bomb_within_its_memory() {
    let mut cluster = Cluster::start(&[]);
    let config = format!("image: run\nlifecycle: {{}}\n{}", bomb("commandArgs"));
    let output = set(&cluster, "web", "podman", &config);
    assert_eq!(output.code, 1, "{}", output.stderr);
    assert!(
        output.stderr.contains("Workload 'web'") && output.stderr.contains(REASON),
        "{}",
        output.stderr
    );
    // The largest allowed text is read.
    let config = format!(
        "image: run\nlifecycle: {{}}\nunknown: [{}]\n",
        "x, ".repeat(30_000)
    );
    let output = set(&cluster, "web", "podman", &config);
    assert_eq!(output.code, 0, "{}", output.stderr);
    let peak = memory_peak_kib(cluster.server().pid());
    assert!(peak < SERVER_MAX_KIB, "the server took {peak} KiB");
}

#[test]
fn agent_refuses_yaml_bombs_within_its_memory() {
    let mut cluster = Cluster::start(&["agent_A"]);
    let pods = format!("kind: Pod\nmetadata: {{name: pod}}\n{}", bomb("spec"));
    let bombs = [
        (
            "podman",
            "podman",
            format!("image: run\n{}", bomb("commandArgs")),
        ),
        (
            "kube",
            "podman-kube",
            format!("manifest: x\n{}", bomb("playOptions")),
        ),
        (
            "pods",
            "podman-kube",
            format!("manifest: |\n{}", indented(&pods, 2)),
        ),
    ];
    for (name, runtime, config) in &bombs {
        let output = set(&cluster, name, runtime, config);
        assert_eq!(output.code, 0, "{}", output.stderr);
    }
    let failed = |cluster: &Cluster| {
        for (name, ..) in &bombs {
            cluster.wait_for_state(name, "Pending(StartingFailed)");
            let states = cluster
                .ank(&["get", "state", "-o", "json", "workloadStates"])
                .stdout;
            assert!(states.contains(REASON), "{states}");
        }
    };
    failed(&cluster);
    // The largest allowed text is read, by several control loops at the same time.
    let allowed = format!(
        "image: run\nunknown: [{}]\ncommandArgs: [{}]",
        "x, ".repeat(15_000),
        "x, ".repeat(15_000)
    );
    for number in 0..4 {
        let output = set(&cluster, &format!("large{number}"), "podman", &allowed);
        assert_eq!(output.code, 0, "{}", output.stderr);
    }
    for number in 0..4 {
        cluster.wait_for_state(&format!("large{number}"), "Running(Ok)");
    }
    let peak = memory_peak_kib(cluster.agent("agent_A").pid());
    assert!(peak < AGENT_MAX_KIB, "the agent took {peak} KiB");
    // The next one finds the same workloads.
    cluster.kill_agent("agent_A");
    cluster.start_agent("agent_A");
    cluster.wait_for_agents(&["agent_A"]);
    failed(&cluster);
    let peak = memory_peak_kib(cluster.agent("agent_A").pid());
    assert!(peak < AGENT_MAX_KIB, "the agent took {peak} KiB");
}

/// A state as an earlier version stored it, which knew none of today's refusals.
#[test]
fn what_was_stored_and_is_refused_today_fails_alone() {
    let mut cluster = Cluster::prepare();
    let folder = cluster.folder().join("state");
    cluster.server_config = format!("state_dir = '{}'", folder.display());
    fs::create_dir(&folder).expect("own folder is writable");
    let workload_of =
        |config: &str| json!({"agent": "agent_A", "runtime": "podman", "runtimeConfig": config});
    let templated = |config: &str| {
        let mut workload = workload_of(config);
        workload["configs"] = json!({"list": "list"});
        workload
    };
    let loops = format!(
        "image: {}x{}",
        "{{#each @root/list}}".repeat(20),
        "{{/each}}".repeat(20)
    );
    let body = json!({
        "apiVersion": "v1",
        "configs": {"list": ["a", "b", "c"]},
        "workloads": {
            "bomb": workload_of(&format!("image: run\nlifecycle: {{}}\n{}", bomb("commandArgs"))),
            "block": templated("image: {{#> indent content=list}}x{{/indent}}"),
            "loops": templated(&loops),
            "fine": workload_of("image: run"),
            "rendered": templated("image: run\ncommandArgs: [{{#each list}}{{this}}, {{/each}}]"),
        },
    })
    .to_string();
    let text = format!(
        "ankaios-lite desired state 1 sha256:{}\n{body}",
        hash_id(&body)
    );
    fs::write(folder.join("desired-state.json"), text).expect("own folder is writable");
    cluster.start_all(&["agent_A"]);
    cluster.wait_until_run(&["fine", "rendered"]);
    for (name, reason) in [
        ("bomb", REASON),
        ("block", "partial blocks"),
        ("loops", "too many steps"),
    ] {
        cluster.wait_for_state(name, "Pending(StartingFailed)");
        let states = cluster
            .ank(&[
                "get",
                "state",
                "-o",
                "json",
                &format!("workloadStates.*.{name}"),
            ])
            .stdout;
        assert!(states.contains(reason), "{name}: {states}");
    }
    // An update of one is a new try, a delete removes it.
    cluster.run(&[workload("loops", "run")]);
    cluster.remove("block");
    let peak = memory_peak_kib(cluster.server().pid());
    assert!(peak < SERVER_MAX_KIB, "the server took {peak} KiB");
}
