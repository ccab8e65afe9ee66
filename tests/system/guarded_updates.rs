//! Guarded updates with real podman: staging beside the running containers, the switch, and bad
//! updates, which all end as before.
//!
//! Thread: the test's. Owns: per test one cluster and one podman store (store.rs).

use crate::store::{PATIENT, Podman};
use crate::support::{Cluster, wait_until};
use serde_json::Value;

/// A workload that ends within a second on SIGTERM.
fn web(image: &str, options: &str, command: &str, policy: &str, lifecycle: &str) -> String {
    format!(
        "apiVersion: v1\nworkloads:\n  web:\n    agent: agent_A\n    runtime: podman\n    restartPolicy: {policy}\n    \
         runtimeConfig: |\n      image: {image}\n      commandOptions: [\"--stop-timeout\", \"1\"{options}]\n      \
         commandArgs: [sh, -c, {command:?}]\n      lifecycle: {lifecycle}\n"
    )
}

/// `healthyMs` and `deadlineMs` with ample time for a failure before them, in milliseconds.
const AMPLE: [u32; 2] = [600_000, 1_200_000];
/// The deadline is how the failure is found out. The new one is healthy so late that its end is
/// noticed before.
const SHORT: [u32; 2] = [11_900, 12_000];

fn guarded(stage: &str, [healthy, deadline]: [u32; 2], rest: &str) -> String {
    let times = format!("healthyMs: {healthy}, deadlineMs: {deadline}");
    format!("{{ {rest} update: {{ stage: {stage}, {times}, onFailure: ROLLBACK }} }}")
}

fn update_of(cluster: &Cluster, number: usize) -> Value {
    let output = cluster.ank(&["get", "state", "-o", "json", "updates"]);
    serde_json::from_str::<Value>(&output.stdout).unwrap_or_default()["updates"][number.to_string()]
        .take()
}

fn wait_for_phase(cluster: &Cluster, number: usize, phase: &str) -> Value {
    let ended = || Some(update_of(cluster, number)).filter(|update| update["phase"] == phase);
    cluster.wait_for(&format!("update {number} is {phase}"), ended)
}

fn desired(cluster: &Cluster) -> String {
    cluster
        .ank(&["get", "state", "-o", "json", "desiredState"])
        .success()
}

// [stest->swdd~agent-stages-updates~1]
// [stest->swdd~agent-switches-to-prepared~1]
#[test]
fn good_update_is_staged_beside_the_running_instance() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], "");
    let lock = cluster.write("lock", "");
    cluster.apply_until_run(&web("alpine:latest", "", PATIENT, "NEVER", "{}"), &["web"]);
    let (old, _) = podman.only_container("web");
    let when = format!(
        "{{ update: {{ when: {{ pathMissing: {} }}, healthyMs: 500, deadlineMs: 1200000 }} }}",
        lock.display()
    );
    cluster.apply(&web(
        "alpine:latest",
        "",
        &format!("true; {PATIENT}"),
        "NEVER",
        &when,
    ));
    let state = |one: &Value| one["State"].as_str().unwrap_or_default().to_lowercase();
    let states = || {
        podman
            .containers_of("web")
            .iter()
            .map(state)
            .collect::<Vec<_>>()
    };
    wait_until("it is created", || states().contains(&"created".to_owned()));
    assert!(
        states().contains(&"running".to_owned()) && update_of(&cluster, 1)["phase"] == "STAGING"
    );
    let created = podman
        .containers_of("web")
        .into_iter()
        .find(|one| state(one) == "created")
        .expect("it is created");
    std::fs::remove_file(lock).expect("own folder is writable");
    wait_for_phase(&cluster, 1, "GOOD");
    wait_until("the old one is removed", || {
        podman.containers_of("web").len() == 1
    });
    assert_eq!(podman.containers_of("web")[0]["Id"], created["Id"]);
    assert_ne!(podman.only_container("web").0, old);
}

// [stest->swdd~server-undoes-failed-updates~1]
#[test]
fn each_bad_update_is_rolled_back_or_stops_nothing() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], "retry_limit = 2");
    cluster.apply_until_run(&web("alpine:latest", "", PATIENT, "NEVER", "{}"), &["web"]);
    let (before, mut container) = (desired(&cluster), podman.only_container("web"));
    let never_ready = "ready: { file: /nowhere/ready, periodMs: 100, deadlineMs: 0 },";
    let rows = [
        (
            "no such image",
            "localhost/nosuch:1",
            "",
            PATIENT,
            "NEVER",
            "",
            AMPLE,
            true,
        ),
        (
            "an option that podman refuses",
            "alpine:latest",
            ", \"--nonsense\"",
            PATIENT,
            "NEVER",
            "",
            AMPLE,
            true,
        ),
        (
            "exits at once",
            "alpine:latest",
            "",
            "exit 3",
            "NEVER",
            "",
            AMPLE,
            false,
        ),
        (
            "exits again and again",
            "alpine:latest",
            "",
            "exit 3",
            "ALWAYS",
            "",
            SHORT,
            false,
        ),
        (
            "never ready",
            "alpine:latest",
            "",
            PATIENT,
            "NEVER",
            never_ready,
            SHORT,
            false,
        ),
        (
            "dies before it is healthy",
            "alpine:latest",
            "",
            "sleep 1; exit 4",
            "ON_FAILURE",
            "",
            SHORT,
            false,
        ),
    ];
    let mut number = 0;
    for (what, image, options, command, policy, rest, times, is_found) in rows {
        for stage in ["CREATE", "NONE"] {
            number += 1;
            let what = format!("{what}, {stage}");
            let update = web(
                image,
                options,
                command,
                policy,
                &guarded(stage, times, rest),
            );
            cluster.apply(&update);
            let ended = wait_for_phase(&cluster, number, "UNDONE");
            let is_found = is_found && stage == "CREATE";
            let reason = ended["reason"].as_str().unwrap_or_default();
            assert_eq!(
                reason.starts_with("web: cannot be staged: "),
                is_found,
                "{what}: {reason}"
            );
            assert_eq!(desired(&cluster), before, "{what}");
            wait_until("only the old one is there", || {
                let containers = podman.containers_of("web");
                containers.len() == 1
                    && containers[0]["State"]
                        .as_str()
                        .is_some_and(|it| it.eq_ignore_ascii_case("running"))
            });
            cluster.wait_for_state("web", "Running(Ok)");
            if is_found {
                assert_eq!(
                    podman.only_container("web"),
                    container,
                    "{what}: it was never stopped"
                );
                continue;
            }
            container = podman.only_container("web");
            let again = cluster.ank_with_input(&["--no-wait", "apply", "-"], &update);
            assert!(
                again.stderr.contains("which was rolled back"),
                "{what}: {}",
                again.stderr
            );
        }
    }
}
