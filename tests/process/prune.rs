//! `ank apply --prune` in the hands of the three programs, together with all that an update can be:
//! a diff, guarded, staged, rolled back at once or later, and one that a mode leaves out.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use crate::support::control_client::{ControlClient, folder, tree};
use crate::support::manifest::Workload;
use crate::support::{Cluster, Output, Recorder, manifest, wait_until, workload};
use ankaios_lite::model::messages::ResponseContent;
use ankaios_lite::model::node::Node;
use ankaios_lite::model::refusal::ErrorResponse;
use serde_json::json;
use std::process::Command;

const KEPT: &str = "configs: {used: a, unused: b}\n";

fn web(image: &str) -> Workload {
    workload("web", image).tagged("team", "one")
}

/// The workload that no later manifest names.
fn old() -> Workload {
    workload("old", "run").tagged("team", "one")
}

/// A workload whose updates are rolled back when they fail.
fn guarded(name: &str, image: &str) -> Workload {
    workload(name, image).config("lifecycle: { update: { healthyMs: 50, onFailure: ROLLBACK } }")
}

fn with_configs(workloads: &[Workload]) -> String {
    manifest(workloads) + KEPT
}

fn apply(cluster: &Cluster, options: &[&str], text: &str) -> Output {
    let words = [&["apply", "--prune"], options, &["-"]].concat();
    cluster.ank_with_input(&words, text)
}

fn desired(cluster: &Cluster) -> String {
    cluster
        .ank(&["get", "state", "-o", "json", "desiredState"])
        .success()
}

/// The names in the desired state.
fn names(cluster: &Cluster) -> Vec<String> {
    let state: serde_json::Value = serde_json::from_str(&desired(cluster)).expect("JSON");
    let mut names = Vec::new();
    for part in ["workloads", "configs"] {
        if let Some(objects) = state["desiredState"][part].as_object() {
            names.extend(objects.keys().cloned());
        }
    }
    names
}

/// A cluster in which `web` and `old` run.
fn cluster() -> Cluster {
    let cluster = Cluster::start(&["agent_A"]);
    cluster.apply(&with_configs(&[web("run"), old()]));
    cluster.wait_for_all(2, "Running(Ok)");
    cluster
}

// [stest->swdd~cli-prunes-what-manifests-do-not-name~1]
#[test]
fn prune_deletes_what_is_not_named_and_the_diff_shows_it() {
    let cluster = cluster();
    let new = manifest(&[web("run")]);
    cluster.write("new.yaml", &new);
    let before = desired(&cluster);
    let diff = cluster.ank(&["diff", "--prune", "new.yaml"]);
    let dry_run = cluster.ank(&["apply", "--dry-run", "--prune", "new.yaml"]);
    assert_eq!((diff.code, &diff.stdout), (6, &dry_run.stdout));
    assert!(
        diff.stdout.contains("--- workload old\n+++ /dev/null\n")
            && diff
                .stdout
                .ends_with("\n1 workload and 2 configs to delete.\n"),
        "{}",
        diff.stdout
    );
    assert_eq!(desired(&cluster), before, "nothing is changed");
    let (_, container) = cluster.engine.only_container("web");
    let output = apply(&cluster, &[], &new).success();
    let text =
        "Deleting what the manifests do not name: workload 'old' and configs 'unused', 'used'.\n";
    assert!(output.starts_with(text), "{output}");
    assert_eq!(names(&cluster), ["web"]);
    cluster.wait_until_gone("old");
    assert_eq!(cluster.engine.only_container("web").1, container);
    // The second time nothing is left to delete.
    let again = apply(&cluster, &[], &new).success();
    assert_eq!(again, "Apply successful. No workloads updated.\n");
    assert_eq!(
        cluster.ank(&["diff", "--prune", "new.yaml"]).success(),
        "No differences.\n"
    );
}

#[test]
fn prune_with_a_tag_leaves_workloads_of_others() {
    let cluster = cluster();
    cluster.run(&[workload("theirs", "run").tagged("team", "two")]);
    let new = manifest(&[web("run")]);
    apply(&cluster, &["--prune-tag", "team=one"], &new).success();
    assert_eq!(names(&cluster), ["theirs", "web", "unused", "used"]);
}

#[test]
fn prune_with_an_empty_manifest_or_a_deletion_changes_nothing() {
    let cluster = cluster();
    let before = desired(&cluster);
    for text in ["apiVersion: v1\n", "apiVersion: v1\nconfigs: {a: b}\n"] {
        for options in [&[][..], &["--yes"], &["--dry-run"]] {
            let output = apply(&cluster, options, text);
            let expected = "error: The manifests name no workload, so '--prune' would delete all.\n\
                            hint: nothing was changed; 'ank delete workload NAME...' deletes workloads\n";
            assert_eq!((output.code, output.stderr.as_str()), (1, expected));
        }
    }
    let output = apply(&cluster, &["-d"], &manifest(&[web("run")]));
    assert_eq!(output.code, 2, "{}", output.stderr);
    assert_eq!(desired(&cluster), before);
}

/// The deletes are in the same request, so the server rolls them back with it.
#[test]
fn prune_in_a_guarded_update_that_fails_is_rolled_back() {
    let cluster = cluster();
    let before = desired(&cluster);
    let output = apply(&cluster, &[], &manifest(&[guarded("web", "exit3")]));
    assert_eq!(output.code, 5, "{}{}", output.stdout, output.stderr);
    assert_eq!(desired(&cluster), before);
    cluster.wait_for_all(2, "Running(Ok)");
    wait_until("only the old one of 'web' is left", || {
        let containers = cluster.engine.containers_of("web");
        containers.len() == 1 && containers[0]["Image"] == "run"
    });
}

#[test]
fn prune_in_an_update_that_cannot_be_staged_stops_nothing() {
    let mut cluster = Cluster::prepare();
    cluster.agent_config = "retry_limit = 1".to_owned();
    cluster.start_all(&["agent_A"]);
    cluster.apply(&with_configs(&[web("run"), old()]));
    cluster.wait_for_all(2, "Running(Ok)");
    let before = desired(&cluster);
    let pids = ["web", "old"].map(|name| cluster.engine.only_container(name).0);
    cluster.engine.script(&json!([
        { "command": "create", "image": "run:latest", "exit": 125, "stderr": "Error: no such image\n" }
    ]));
    let output = apply(&cluster, &[], &manifest(&[guarded("web", "run:latest")]));
    assert_eq!(output.code, 5, "{}{}", output.stdout, output.stderr);
    assert!(
        output.stderr.contains("nothing was stopped"),
        "{}",
        output.stderr
    );
    assert_eq!(desired(&cluster), before);
    let now = ["web", "old"].map(|name| cluster.engine.only_container(name).0);
    assert_eq!(now, pids);
}

#[test]
fn prune_in_a_good_update_is_rolled_back_later_as_well() {
    let cluster = cluster();
    let before = desired(&cluster);
    let output = apply(&cluster, &[], &manifest(&[guarded("web", "run")])).success();
    assert!(output.ends_with("\nUpdate 1 is good.\n"), "{output}");
    cluster.wait_until_gone("old");
    assert_eq!(names(&cluster), ["web"]);
    let output = cluster.ank(&["rollback", "1"]).success();
    let first = "Rolling back update 1: workloads 'old', 'web' and configs 'unused', 'used'.\n";
    assert!(output.starts_with(first), "{output}");
    assert_eq!(desired(&cluster), before);
    cluster.wait_for_all(2, "Running(Ok)");
}

#[test]
fn prune_with_rollback_by_ank_restores_what_it_deleted() {
    let cluster = cluster();
    let before = desired(&cluster);
    let output = apply(&cluster, &["--rollback"], &manifest(&[web("exit3")]));
    assert_eq!(output.code, 5, "{}{}", output.stdout, output.stderr);
    assert_eq!(desired(&cluster), before);
    cluster.wait_for_all(2, "Running(Ok)");
}

/// The item of the mode is in use by the server. Workloads outside of the mode are pruned as all
/// others.
#[test]
fn prune_with_modes_keeps_the_mode_and_deletes_in_all() {
    let mut cluster = Cluster::prepare();
    cluster.server_config = "mode_config = 'mode'".to_owned();
    cluster.start_all(&["agent_A"]);
    let all = manifest(&[
        workload("web", "run"),
        workload("parked", "run").tagged("modes", "park"),
    ]);
    cluster.apply(&(all + "configs: {mode: drive, unused: x}\n"));
    cluster.wait_for_state("web", "Running(Ok)");
    let new = manifest(&[workload("web", "run")]);
    apply(&cluster, &[], &new).success();
    assert_eq!(names(&cluster), ["web", "mode"]);
    // A manifest with another value of the item does not switch, and prunes nothing then.
    cluster.run(&[workload("extra", "run")]);
    let switching = new.clone() + "configs: {mode: park}\n";
    let refused = apply(&cluster, &[], &switching);
    assert_eq!(refused.code, 1, "{}", refused.stdout);
    assert_eq!(names(&cluster), ["extra", "web", "mode"]);
    apply(&cluster, &["--keep-mode"], &switching).success();
    assert_eq!(names(&cluster), ["web", "mode"]);
    let mode = cluster.ank(&["get", "state", "desiredState.configs.mode"]);
    assert!(mode.success().contains("mode: drive"));
}

/// A stop ends with the workload: one with its name that comes later starts.
#[test]
fn prune_deletes_a_stopped_workload_and_its_stop() {
    let cluster = cluster();
    assert_eq!(cluster.ank(&["stop", "old"]).code, 0);
    cluster.wait_for_state("old", "NotScheduled");
    apply(&cluster, &[], &manifest(&[web("run")])).success();
    assert_eq!(names(&cluster), ["web"]);
    cluster.wait_until_gone("old");
    assert_eq!(cluster.ank(&["get", "workloads"]).stderr, "");
    cluster.run(&[old()]);
}

/// Dependents are pruned first, as with any delete.
#[test]
fn prune_of_a_workload_with_a_dependent_stops_that_first() {
    let cluster = Cluster::start(&["agent_A"]);
    let needs_db = workload("user", "run").after("db", "ADD_COND_RUNNING");
    cluster.run(&[web("run"), workload("db", "run"), needs_db]);
    let recorder = Recorder::start(&cluster);
    let new = manifest(&[web("run:latest")]);
    apply(&cluster, &["--restart-dependents"], &new).success();
    assert_eq!(names(&cluster), ["web"]);
    recorder.states_until("db", "Removed");
    let stop_of = |name| recorder.position(name, "Stopping(RequestedAtRuntime)");
    assert!(stop_of("user") < stop_of("db"));
}

/// Two of three workloads are more than half of them.
#[test]
fn prune_of_much_on_a_terminal_waits_for_yes() {
    let cluster = Cluster::start(&["agent_A"]);
    let all = ["a", "b", "c"].map(|name| workload(name, "run"));
    cluster.run(&all);
    cluster.write("new.yaml", &manifest(&all[..1]));
    let ank = cluster.ank_command();
    let words = [ank.get_program()].into_iter().chain(ank.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    let line = format!("exec {} apply --prune new.yaml", words.join(" "));
    for (answer, code, left) in [("n\n", 1, &["a", "b", "c"][..]), ("y\n", 0, &["a"])] {
        let mut shell = Command::new("script"); // Gives its child a terminal.
        shell.args(["-qec", &line, "/dev/null"]);
        shell.envs(
            ank.get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        shell.current_dir(cluster.folder());
        let output = cluster.finish(shell, answer);
        let question = "This deletes 2 of 3 workloads. Delete them? [y/N] ";
        assert!(output.stdout.contains(question), "{}", output.stdout);
        assert_eq!(output.code, code, "{}", output.stdout);
        assert_eq!(names(&cluster), left);
    }
}

/// The masks of the request decide about its rights: a workload that prunes with it needs the right
/// to write each of them, and nothing of the request is done without it.
#[test]
fn prune_by_a_workload_without_the_right_is_refused_as_a_whole() {
    let cluster = Cluster::start(&["agent_A"]);
    let own = "desiredState.workloads.own";
    let updater = workload("updater", "run").allow("ReadWrite", own);
    cluster.run(&[updater, old()]);
    let before = desired(&cluster);
    let mut client = ControlClient::connect(&folder(&cluster, "agent_A", "updater"));
    let new = || {
        let fields = [
            ("agent", "agent_A"),
            ("runtime", "podman"),
            ("runtimeConfig", "image: run"),
        ];
        let fields = fields.map(|(key, text)| (key, Node::text(text)));
        tree(own, Node::map(fields))
    };
    for masks in [
        &[own, "desiredState.workloads.old"][..],
        &["desiredState.workloads"],
        &["desiredState.workloads.*"],
        &["desiredState"],
        &[],
    ] {
        let response = client.update("prune", new(), masks);
        let ResponseContent::Error(ErrorResponse { text, .. }) = response else {
            panic!("{masks:?}: {response:?}");
        };
        assert_eq!(text, "Access denied", "{masks:?}");
        assert_eq!(desired(&cluster), before, "{masks:?}");
    }
    let response = client.update("own", new(), &[own]);
    assert!(
        matches!(response, ResponseContent::UpdateStateSuccess { .. }),
        "{response:?}"
    );
}
