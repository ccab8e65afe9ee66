//! Anonymous volumes with real podman: those that an image makes with `VOLUME` go with their
//! container, whatever ends it.
//!
//! Thread: the test's. Owns: per test one cluster and one podman store (store.rs).

use crate::store::{PATIENT, Podman};
use crate::support::{Cluster, Recorder, wait_until};

/// An image with `VOLUME /data`.
const IMAGE: &str = "docker.io/library/voluminous:1";

fn podman_with_image() -> Podman {
    let podman = Podman::new();
    let changes = ["--change", "ENV PATH=/bin", "--change", "VOLUME /data"];
    podman.run(
        &[
            &["import", "--quiet"],
            &changes[..],
            &[&podman.image_archive(), IMAGE],
        ]
        .concat(),
    );
    podman
}

/// A workload of the image, with a named volume as well.
fn workload(name: &str, lines: &str, options: &str, command: &str) -> String {
    format!(
        "apiVersion: v1\nworkloads:\n  {name}:\n    agent: agent_A\n    runtime: podman\n{lines}    runtimeConfig: |\n      \
         image: {IMAGE}\n      commandOptions: [\"--stop-timeout=1\", \"--volume=named:/named\"{options}]\n      \
         commandArgs: {command}\n"
    )
}

fn shell(command: &str) -> String {
    format!("[sh, -c, {command:?}]")
}

fn volumes(podman: &Podman) -> Vec<String> {
    podman
        .run(&["volume", "ls", "--format={{.Name}}"])
        .lines()
        .map(str::to_owned)
        .collect()
}

/// How many there are beside the one that has a name.
fn anonymous(podman: &Podman) -> usize {
    let volumes = volumes(podman);
    assert!(volumes.contains(&"named".to_owned()), "{volumes:?}");
    volumes.len() - 1
}

// [stest->swdd~agent-removes-anonymous-volumes~1]
#[test]
fn restarts_and_updates_left_the_volumes_of_each_container() {
    let podman = podman_with_image();
    let cluster = Cluster::start_on(&podman, &["agent_A"], "restart_backoff = false");
    let recorder = Recorder::start(&cluster);
    let restarts = "    restartPolicy: ON_FAILURE\n";
    cluster.apply(&workload("web", restarts, "", &shell("sleep 0.2; exit 1")));
    let failures = || {
        recorder
            .states_of("web")
            .iter()
            .filter(|state| *state == "Failed(ExecFailed)")
            .count()
    };
    wait_until("it was restarted", || failures() >= 3);
    assert!(anonymous(&podman) <= 1, "{:?}", volumes(&podman));

    cluster.apply_until_run(&workload("web", restarts, "", &shell(PATIENT)), &["web"]);
    wait_until("the old ones are gone", || anonymous(&podman) == 1);
    assert_eq!(cluster.ank(&["restart", "web"]).code, 0);
    cluster.wait_until_run(&["web"]);
    wait_until("the old one is gone", || anonymous(&podman) == 1);
    cluster.remove("web");
    assert_eq!(anonymous(&podman), 0);
}

#[test]
fn containers_that_never_ran_left_their_volumes() {
    let podman = podman_with_image();
    let cluster = Cluster::start_on(&podman, &["agent_A"], "prepare = \"init\"");
    cluster.apply(&workload("broken", "", "", "[nosuch]"));
    cluster.wait_for_row("broken", "is retried twice", |row| {
        row.info.starts_with("Retry 2")
    });
    cluster.remove("broken");
    assert_eq!(anonymous(&podman), 0);

    cluster.apply(&workload(
        "waits",
        "    dependencies: {broken: ADD_COND_RUNNING}\n",
        "",
        &shell(PATIENT),
    ));
    cluster.wait_for_row("waits", "is prepared", |row| {
        row.info.starts_with("prepared: INIT")
    });
    assert_eq!(anonymous(&podman), 1);
    cluster.remove("waits");
    assert_eq!(anonymous(&podman), 0);

    cluster.apply(&workload("once", "", ", --rm", &shell("exit 0")));
    cluster.wait_for_state("once", "Failed(Lost)");
    cluster.remove("once");
    assert_eq!(anonymous(&podman), 0);
}

#[test]
fn volumes_of_an_earlier_agents_containers_go_with_them() {
    let podman = podman_with_image();
    let mut cluster = Cluster::start_on(&podman, &["agent_A"], "");
    cluster.apply_until_run(&workload("web", "", "", &shell(PATIENT)), &["web"]);
    cluster.apply(&workload("job", "", "", &shell("exit 0")));
    cluster.wait_for_state("job", "Succeeded(Ok)");
    cluster.kill_agent("agent_A");
    cluster.wait_for_state("web", "AgentDisconnected");
    assert_eq!(anonymous(&podman), 2);
    assert_eq!(
        cluster
            .ank(&["--no-wait", "delete", "workload", "web", "job"])
            .code,
        0
    );
    cluster.start_agent("agent_A");
    wait_until("the new agent has removed both", || {
        podman.containers().is_empty()
    });
    assert_eq!(anonymous(&podman), 0);
}

#[test]
fn volumes_of_a_pod_go_with_it() {
    let podman = podman_with_image();
    let cluster = Cluster::start_on(&podman, &["agent_A"], "");
    let pod = format!(
        "apiVersion: v1\nworkloads:\n  pods:\n    agent: agent_A\n    runtime: podman-kube\n    runtimeConfig: |\n      \
         manifest: |\n        apiVersion: v1\n        kind: Pod\n        metadata: {{name: pods}}\n        spec:\n          \
         hostNetwork: true\n          containers: [{{name: main, image: '{IMAGE}', command: {}}}]\n",
        shell(PATIENT)
    );
    cluster.apply_until_run(&pod, &["pods"]);
    assert_eq!(
        volumes(&podman).len(),
        3,
        "beside those with its configuration and ids"
    );
    cluster.remove("pods");
    assert_eq!(volumes(&podman), [""; 0]);
}
