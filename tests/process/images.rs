//! Replaced images: the calls of the engine that remove them, and the images that stay.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use crate::support::manifest::Workload;
use crate::support::{Cluster, wait_until, workload};
use serde_json::json;
use std::fs;

/// How long nothing may have changed, in milliseconds. Only waited for.
const QUIET_MS: &str = "200";

/// A cluster whose agents have these lines, and an engine with an unused image.
pub fn start(agents: &[&str], lines: &str) -> Cluster {
    let mut cluster = Cluster::prepare();
    cluster.engine.set_images(&json!([
        { "Id": "aa".repeat(32), "Names": ["docker.io/library/by-hand:1"], "Bytes": 1 }
    ]));
    let state = cluster.folder().join("state");
    cluster.agent_config = format!("{lines}\nstate_dir = '{}'", state.display());
    let quiet = (
        "ANKAIOS_TEST_IMAGE_QUIET_MS".to_owned(),
        QUIET_MS.to_owned(),
    );
    cluster.agent_env.push(quiet);
    cluster.start_all(agents);
    cluster
}

fn nav(image: &str) -> Workload {
    workload("nav", image)
}

fn run(cluster: &Cluster, workload: &Workload, image: &str) {
    cluster.run(std::slice::from_ref(workload));
    cluster.wait_until_run(&[workload.name()]);
    let has_container = || {
        let containers = cluster.engine.containers_of(workload.name());
        containers.len() == 1 && containers[0]["Image"] == image
    };
    wait_until("only the new container is there", has_container);
}

fn wait_for_images(cluster: &Cluster, expected: &[&str]) {
    wait_until(&format!("the images are {expected:?}"), || {
        cluster.engine.image_names() == expected
    });
}

// [itest->swdd~agent-removes-replaced-images~1]
// [itest->swdd~agent-knows-images-before-their-use~1]
#[test]
fn replaced_images_are_removed_by_id_and_others_stay() {
    let mut cluster = start(&["agent_A"], "image_cleanup = 'replaced'");
    for image in ["run:v1", "run:v2", "run:v3"] {
        run(&cluster, &nav(image), image);
    }
    wait_for_images(&cluster, &["by-hand:1", "run:v2", "run:v3"]);
    let removals = cluster.engine.calls_of("rmi", "");
    assert_eq!(removals.len(), 1, "{removals:?}");
    assert_eq!(removals[0].argv[..2], ["rmi", "--no-prune"]);
    assert!(removals[0].argv.iter().all(|word| !word.contains("force")));
    // The knowledge outlives the agent.
    cluster.kill_agent("agent_A");
    cluster.start_agent("agent_A");
    cluster.wait_for_agents(&["agent_A"]);
    run(&cluster, &nav("run:v4"), "run:v4");
    wait_for_images(&cluster, &["by-hand:1", "run:v3", "run:v4"]);
    assert!(
        cluster
            .folder()
            .join("state/agent_A_agent/known-images.json")
            .is_file()
    );
}

// [itest->swdd~agent-removes-replaced-images~1]
#[test]
fn without_the_setting_there_is_no_thread_file_or_call() {
    for lines in ["", "image_cleanup = 'never'"] {
        let cluster = start(&["agent_A"], lines);
        for image in ["run:v1", "run:v2", "run:v3"] {
            run(&cluster, &nav(image), image);
        }
        cluster.engine.wait_until_quiet();
        assert_eq!(cluster.engine.image_names().len(), 4);
        for command in ["images", "rmi", "untag"] {
            assert!(cluster.engine.calls_of(command, "").is_empty(), "{command}");
        }
        assert!(!cluster.folder().join("state").exists());
        let tasks = format!("/proc/{}/task", cluster.agents["agent_A"].pid());
        for task in fs::read_dir(tasks).expect("the agent runs").flatten() {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            assert!(!name.starts_with("image"), "{name}");
        }
    }
}

// [itest->swdd~agent-keeps-needed-images~1]
// [itest->swdd~server-reports-open-updates-to-agents~1]
#[test]
fn open_update_keeps_all_images_until_it_has_ended() {
    let cluster = start(
        &["agent_A"],
        "image_cleanup = 'replaced'\nimage_history = 0",
    );
    let gate = cluster.folder().join("ready");
    let guarded = |image: &str| {
        nav(image).config(&format!(
            "lifecycle: {{ ready: {{ file: {}, periodMs: 50, deadlineMs: 0 }}, update: {{ stage: IMAGE, healthyMs: 100, \
             deadlineMs: 3600000, onFailure: ROLLBACK }} }}",
            gate.display()
        ))
    };
    run(&cluster, &nav("run:v1"), "run:v1");
    let output = cluster.ank_with_input(
        &["--no-wait", "apply", "-"],
        &crate::support::manifest(&[guarded("run:v2")]),
    );
    assert_eq!(output.code, 0, "{}", output.stderr);
    wait_until("the new one is started", || {
        let containers = cluster.engine.containers_of("nav");
        containers.len() == 1 && containers[0]["Image"] == "run:v2"
    });
    cluster.engine.wait_until_quiet();
    assert_eq!(
        cluster.engine.image_names(),
        ["by-hand:1", "run:v1", "run:v2"],
        "the rollback needs them"
    );
    fs::write(gate, "").expect("own folder is writable");
    wait_for_images(&cluster, &["by-hand:1", "run:v2"]);
}

// [itest->swdd~agent-removes-no-image-beside-a-start~1]
#[test]
fn agent_killed_in_a_removal_continues_and_starts_wait() {
    let mut cluster = start(
        &["agent_A"],
        "image_cleanup = 'replaced'\nimage_history = 0",
    );
    cluster
        .engine
        .script(&json!([{ "command": "rmi", "hold": "removal" }]));
    run(&cluster, &nav("run:v1"), "run:v1");
    run(&cluster, &nav("run:v2"), "run:v2");
    let removals = || cluster.engine.hanging_calls_of("rmi").len();
    wait_until("a removal is under way", || removals() == 1);
    let next = crate::support::manifest(&[workload("web", "run:v3")]);
    let output = cluster.ank_with_input(&["--no-wait", "apply", "-"], &next);
    assert_eq!(output.code, 0, "{}", output.stderr);
    cluster.wait_for_row("web", "its start begins", |row| {
        row.state == "Pending(Starting)"
    });
    cluster.engine.wait_until_quiet();
    assert!(
        cluster.engine.calls_of("run", "web.").is_empty(),
        "it waits"
    );
    cluster.kill_agent("agent_A");
    cluster.engine.release("removal");
    cluster.start_agent("agent_A");
    cluster.wait_until_run(&["web"]);
    wait_for_images(&cluster, &["by-hand:1", "run:v2", "run:v3"]);
}

// [itest->swdd~agent-leaves-images-of-other-agents~1]
#[test]
fn agents_on_one_store_keep_what_the_other_needs() {
    let cluster = start(
        &["agent_A", "agent_B"],
        "image_cleanup = 'replaced'\nimage_history = 0",
    );
    run(&cluster, &nav("run:v1"), "run:v1");
    let web = |image: &str| workload("web", image).on("agent_B");
    run(&cluster, &web("run:v1"), "run:v1");
    run(&cluster, &nav("run:v2"), "run:v2");
    // Its container has ended, so that only its agent needs the image.
    cluster.engine.finish("web", 0);
    cluster.wait_for_state("web", "Succeeded(Ok)");
    cluster.engine.remove_ended("web");
    cluster.engine.wait_until_quiet();
    assert_eq!(
        cluster.engine.image_names(),
        ["by-hand:1", "run:v1", "run:v2"]
    );
}
