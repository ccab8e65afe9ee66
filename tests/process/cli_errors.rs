//! The form of all errors of `ank`: the cause in `error:`, what to do in `hint:`, one level of
//! quotes, and no words of the layers below.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use crate::support::cluster::Output;
use crate::support::{Cluster, manifest, workload};

/// Words that mean nothing to users of `ank`.
const LAYERS_BELOW: [&str; 8] = [
    "Command failed",
    "Cancelling all calls",
    "UNAUTHENTICATED",
    "UNAVAILABLE",
    "ExecutionError",
    "RPC",
    "gRPC",
    "Some(",
];

/// How deep quotes are nested. A quote after a letter ends one, or is an apostrophe.
fn quote_depth(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut deepest = 0;
    let mut before = ' ';
    for letter in text.chars() {
        if letter == '\'' {
            // After a quote inside of quotes, one ends the outer ones.
            let follows_quote = before == '\'' && depth == 0;
            if follows_quote || matches!(before, ' ' | '(' | '\n' | '=') {
                depth += 1;
                deepest = deepest.max(depth);
            } else {
                depth = depth.saturating_sub(1);
            }
        }
        before = letter;
    }
    deepest
}

#[test]
fn nested_quotes_are_counted() {
    for (text, depth) in [
        ("no quote, the server's", 0),
        ("one 'a' and 'b', 'c'", 1),
        ("Failed: 'Wrong: 'x''", 2),
        ("a: '' is empty, 'b:' is not", 1),
    ] {
        assert_eq!(quote_depth(text), depth, "{text}");
    }
}

/// Checks the form of an error that ends a command.
#[track_caller]
fn check(words: &[&str], output: &Output) {
    assert_eq!(output.code, 1, "{words:?}: {output:?}");
    let error = output.stderr.find("error: ");
    let error = error.unwrap_or_else(|| panic!("{words:?}: {output:?}"));
    let shown = &output.stderr[error..];
    assert!(shown.contains("\nhint: "), "{words:?}: {shown}");
    for line in shown.lines() {
        assert!(quote_depth(line) <= 1, "{words:?}: {line}");
    }
    for word in LAYERS_BELOW {
        assert!(!shown.contains(word), "{words:?}: {shown}");
    }
}

#[test]
fn errors_of_requests_have_cause_and_hint() {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.apply(&manifest(&[workload("web", "run")]));
    cluster.wait_until_run(&["web"]);
    let cycle = manifest(&[
        workload("a", "run").after("b", "ADD_COND_RUNNING"),
        workload("b", "run").after("a", "ADD_COND_RUNNING"),
    ]);
    let files = [
        ("cycle.yaml", cycle.as_str()),
        ("tab.yaml", "apiVersion: v1\nworkloads:\n\tweb: {}\n"),
        ("twice.yaml", "apiVersion: v1\nconfigs: {}\nconfigs: {}\n"),
        ("version.yaml", "apiVersion: v7\n"),
        (
            "types.yaml",
            "apiVersion: v1\nworkloads: {web: {agent: [a], runtime: podman, runtimeConfig: x}}\n",
        ),
        (
            "config.yaml",
            "apiVersion: v1\nworkloads: {web: {agent: '{{x.y}}', runtime: podman, runtimeConfig: 'image: x', configs: {x: nope}}}\n",
        ),
        (
            "state.yaml",
            "desiredState: {apiVersion: v1, workloads: {web: {agent: agent_A}}}\n",
        ),
    ];
    let mut paths = Vec::new();
    for (name, text) in files {
        paths.push(cluster.write(name, text).display().to_string());
    }
    let [cycle, tab, twice, version, types, config, state] = &paths[..] else {
        panic!("{paths:?}");
    };
    for words in [
        &["apply", cycle][..],
        &["apply", tab],
        &["apply", twice],
        &["apply", version],
        &["apply", types],
        &["apply", config],
        &["apply", "/nowhere/web.yaml"],
        &["apply", "--agent", "a b", cycle],
        &["validate", tab],
        &["diff", twice],
        &["set", "state", "desiredState.workloads.nix", state],
        &["set", "state", "desiredState.workloads.web", state],
        &["set", "state", "desiredState", cycle],
        &[
            "run",
            "workload",
            "a.b",
            "--runtime",
            "podman",
            "--config",
            "x",
            "--agent",
            "agent_A",
        ],
        &[
            "run",
            "workload",
            "a",
            "--runtime",
            "podman",
            "--config",
            "x",
            "--agent",
            "no de",
        ],
        &["delete", "workload", "a.b"],
        &["delete", "config", "a.b"],
        &["restart", "wbe"],
        &["stop", "wbe"],
        &["start", "wbe"],
        &["rollback"],
        &["rollback", "9"],
        &["mode"],
        &["mode", "drive"],
        &["logs", "wbe"],
        &["wait", "wbe"],
        &["describe", "wbe"],
        &["graph", "wbe"],
        &["blame", "wbe"],
        &["top", "wbe"],
        &["top", "-a", "agent_B"],
        &["get", "agents", "agent_B"],
        &["get", "configs", "port"],
        &["get", "updates", "9"],
        &["get", "state", "-o", "manifest", "workloadStates"],
        &["get", "events", "timings"],
    ] {
        check(words, &cluster.ank(words));
    }
}

#[test]
fn errors_of_settings_and_connections_have_cause_and_hint() {
    let mut cluster = Cluster::start(&[]);
    let url = cluster.url();
    let version = cluster.write("version.conf", "version = 'v2'\n");
    let wrong_type = cluster.write("type.conf", "version = 'v1'\n[default]\ninsecure = 'x'\n");
    let pem = cluster.write(
        "pem.conf",
        "version = 'v1'\n[default]\nca_pem = '/nowhere/ca.pem'\n",
    );
    let address = cluster.write(
        "url.conf",
        "version = 'v1'\n[default]\nserver_url = 'ftp://x'\n",
    );
    let files = [&version, &wrong_type, &pem, &address].map(|path| path.display().to_string());
    let [version, wrong_type, pem, address] = &files;
    for words in [
        &["-k", "-x", version, "get", "agents"][..],
        &["-k", "-x", wrong_type, "get", "agents"],
        &["-x", pem, "get", "agents"],
        &["-k", "-x", address, "get", "agents"],
        &["-k", "-x", "/nowhere/ank.conf", "get", "agents"],
        &["-k", "--context", "car", "get", "agents"],
        &["-k", "-s", "ftp://x", "get", "agents"],
        &["-s", &url, "get", "agents"],
        &["--ca_pem", "/nowhere/ca.pem", "-s", &url, "get", "agents"],
        &["-k", "-s", "unix:///nowhere/ank.sock", "get", "agents"],
        &["-k", "-s", "http://nowhere.invalid:1", "get", "agents"],
    ] {
        check(words, &cluster.bare_ank(words));
    }
    cluster.kill_server();
    for words in [
        &["get", "state"][..],
        &["get", "workloads"],
        &["get", "events"],
        &["logs", "web"],
        &["version"],
        &["top"],
        &["stop", "web"],
        &["delete", "workload", "web"],
    ] {
        check(words, &cluster.ank(words));
    }
}
