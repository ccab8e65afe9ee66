//! Updates that fail in every way, on each engine: all end as before, and a failure while an update
//! is staged stops nothing.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use crate::support::manifest::{Workload, pod};
use crate::support::{Cluster, manifest, wait_until, workload};
use serde_json::{Value, json};

/// A new definition that does not work.
struct Bad {
    what: &'static str,
    image: &'static str,
    restart: &'static str,
    /// The parts of the `lifecycle:` block except `update`.
    lifecycle: &'static str,
    /// The levels at which staging finds it.
    found_by: &'static [&'static str],
    /// `healthyMs` and `deadlineMs` of the update: ample where the failure shows before, short
    /// where they show it.
    times: [u32; 2],
}

const AMPLE: [u32; 2] = [600_000, 1_200_000];
/// Many times as long as the worst of them live, so that one that is noticed late is not well
/// meanwhile.
const SHORT: [u32; 2] = [9_000, 10_000];

const BAD: [Bad; 6] = [
    Bad {
        what: "no such image",
        image: "nothing",
        restart: "NEVER",
        lifecycle: "",
        found_by: &["CREATE", "IMAGE"],
        times: AMPLE,
    },
    Bad {
        what: "an option that the engine refuses",
        image: "refused",
        restart: "NEVER",
        lifecycle: "",
        found_by: &["CREATE"],
        times: AMPLE,
    },
    Bad {
        what: "exits at once",
        image: "exit3",
        restart: "NEVER",
        lifecycle: "",
        found_by: &[],
        times: AMPLE,
    },
    Bad {
        what: "exits at once and is restarted some times",
        image: "exit3",
        restart: "ON_FAILURE",
        lifecycle: "restart: { maxRestarts: 1, backoffMs: 100 },",
        found_by: &[],
        times: AMPLE,
    },
    Bad {
        what: "never ready",
        image: "run",
        restart: "NEVER",
        lifecycle: "ready: { file: /nowhere/ready, periodMs: 50, deadlineMs: 0 },",
        found_by: &[],
        times: SHORT,
    },
    Bad {
        what: "dies again and again before it is healthy",
        image: "exit3:after=300ms",
        restart: "ALWAYS",
        lifecycle: "",
        found_by: &[],
        times: SHORT,
    },
];

fn on_runtime(runtime: &str, image: &str) -> Workload {
    match runtime {
        "podman-kube" => pod("web", image),
        _ => workload("web", image).runtime(runtime),
    }
}

fn bad(runtime: &str, bad: &Bad, stage: &str) -> Workload {
    let [healthy, deadline] = bad.times;
    let update = format!(
        "stage: {stage}, healthyMs: {healthy}, deadlineMs: {deadline}, onFailure: ROLLBACK"
    );
    let block = format!("lifecycle: {{ {} update: {{ {update} }} }}", bad.lifecycle);
    on_runtime(runtime, bad.image)
        .restart(bad.restart)
        .config(&block)
}

fn updates(cluster: &Cluster) -> Value {
    let output = cluster.ank(&["get", "state", "-o", "json", "updates"]);
    serde_json::from_str::<Value>(&output.stdout).unwrap_or_default()["updates"].take()
}

fn desired(cluster: &Cluster) -> String {
    cluster
        .ank(&["get", "state", "-o", "json", "desiredState"])
        .success()
}

/// Ids and images of all containers that run.
fn running(cluster: &Cluster) -> Vec<(String, String)> {
    let mut running = Vec::new();
    for container in cluster.engine.containers() {
        if container["State"] == "running" {
            let id = container["Id"].as_str().unwrap_or_default();
            let image = container["Image"].as_str().unwrap_or_default();
            running.push((id.to_owned(), image.to_owned()));
        }
    }
    running
}

/// The images of all containers that run.
fn running_images(cluster: &Cluster) -> Vec<String> {
    let mut images = Vec::new();
    for (_, image) in running(cluster) {
        images.push(image);
    }
    images
}

/// What the engine refuses, as it says it.
fn refusals() -> Value {
    let refuse = |command: &str| json!({ "command": command, "image": "refused", "exit": 125, "stderr": "Error: unknown flag: --nonsense\n" });
    json!([refuse("create"), refuse("run")])
}

fn start(runtime: &str) -> Cluster {
    let mut cluster = Cluster::prepare();
    if runtime == "containerd" {
        cluster.engine.install_nerdctl();
    }
    cluster.agent_config = "retry_limit = 2".to_owned();
    cluster.start_all(&["agent_A"]);
    cluster.engine.script(&refusals());
    cluster.run(&[on_runtime(runtime, "run")]);
    cluster
}

/// Waits until the update with this number was rolled back, and returns it.
fn wait_for_rollback(cluster: &Cluster, what: &str, number: &str) -> Value {
    cluster.wait_for(what, || {
        let update = updates(cluster)[number].take();
        (update["phase"] == "UNDONE").then_some(update)
    })
}

/// Applies each bad update and asserts that it ends as before.
fn all_end_as_before(runtime: &str, rows: &[Bad]) {
    let cluster = start(runtime);
    let before = desired(&cluster);
    let images_before = running_images(&cluster);
    let mut number = 0;
    for row in rows {
        for stage in ["CREATE", "NONE"] {
            number += 1;
            let what = format!("{}, {runtime}, {stage}", row.what);
            let most = if runtime == "podman-kube" && stage == "CREATE" {
                "IMAGE"
            } else {
                stage
            };
            let is_found = row.found_by.contains(&most);
            // First the update is rolled back, for the right reason.
            let containers = running(&cluster);
            let update = manifest(&[bad(runtime, row, stage)]);
            cluster.apply(&update);
            let key = number.to_string();
            let ended = wait_for_rollback(&cluster, &what, &key);
            let reason = ended["reason"].as_str().unwrap_or_default();
            assert_eq!(
                reason.starts_with("web: cannot be staged: "),
                is_found,
                "{what}: {reason}"
            );
            assert_eq!(desired(&cluster), before, "{what}");
            if is_found {
                assert_eq!(running(&cluster), containers, "{what}: nothing was stopped");
            }
            // Then all is as before, and nothing is left of the new container.
            cluster.wait_for_all(1, "Running(Ok)");
            wait_until(&what, || {
                running_images(&cluster) == images_before
                    && cluster.engine.containers().len() == containers.len()
            });
            // Finally the same update is refused, except if its container was never started: it may
            // work the next time.
            let again = cluster.ank_with_input(&["--no-wait", "apply", "-"], &update);
            let is_refused = again.stderr.contains(&format!(
                "it is the same as update {key}, which was rolled back"
            ));
            assert_eq!(is_refused, !is_found, "{what}: {}", again.stderr);
            if is_found {
                number += 1;
                wait_for_rollback(&cluster, &what, &number.to_string());
            }
        }
    }
}

// [stest->swdd~server-undoes-failed-updates~1]
#[test]
fn bad_updates_of_podman_workloads_end_as_before() {
    all_end_as_before("podman", &BAD);
}

#[test]
fn bad_updates_of_containerd_workloads_end_as_before() {
    all_end_as_before("containerd", &BAD);
}

/// Which options there are is no matter of the call that plays a pod.
#[test]
fn bad_updates_of_pods_end_as_before() {
    let rows: Vec<Bad> = BAD
        .into_iter()
        .filter(|row| row.image != "refused")
        .collect();
    all_end_as_before("podman-kube", &rows);
}

#[test]
fn failing_dependent_rolls_back_an_update_of_its_dependency() {
    let cluster = Cluster::start(&["agent_A", "agent_B"]);
    let web = workload("web", "run")
        .on("agent_B")
        .restart("NEVER")
        .after("db", "ADD_COND_RUNNING");
    cluster.run(&[workload("db", "run"), web]);
    let before = desired(&cluster);
    let update = "lifecycle: { update: { stage: NONE, healthyMs: 600000, deadlineMs: 1200000, onFailure: ROLLBACK } }";
    cluster.apply(&manifest(&[workload("db", "run:latest").config(update)]));
    cluster.wait_for("it is on trial", || {
        (updates(&cluster)["1"]["phase"] == "TRIAL").then_some(())
    });
    cluster.engine.finish("web", 7);
    cluster.wait_for("it is undone", || {
        (updates(&cluster)["1"]["phase"] == "UNDONE").then_some(())
    });
    assert_eq!(
        updates(&cluster)["1"]["reason"],
        "web: Failed(ExecFailed): 'Exit code: '7''"
    );
    assert_eq!(desired(&cluster), before);
    cluster.wait_for_state("db", "Running(Ok)");
}
