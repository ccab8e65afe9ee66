//! Pods from Kubernetes manifests with real podman: play, states, update, delete, logs, and
//! adoption by a new agent.
//!
//! Thread: the test's. Owns: per test one cluster and one podman store (support/podman.rs).

use crate::podman::is_retried_again;
use crate::store::{GREEDY, PATIENT, Podman, shell};
use crate::support::log_client::everything;
use crate::support::process::{is_alive, send_signal};
use crate::support::{Cluster, LogClient, Recorder, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// A change without an event will be seen soon.
const SOON: &str = "listing_interval = 2";

/// The documents of a Pod whose containers run these commands in a shell.
fn pod(name: &str, containers: &[(&str, &str)]) -> String {
    let mut text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  hostNetwork: true\n  restartPolicy: Never\n  \
         terminationGracePeriodSeconds: 1\n  containers:\n"
    );
    for (container, command) in containers {
        text += &format!(
            "  - {{name: {container}, image: 'alpine:latest', command: [sh, -c, \"{command}\"]}}\n"
        );
    }
    text
}

/// A Deployment with one container that runs until it is stopped.
fn deployment(name: &str) -> String {
    let labels = format!("{{app: {name}}}");
    format!(
        "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  selector: {{matchLabels: {labels}}}\n  \
         template:\n    metadata: {{labels: {labels}}}\n    spec:\n      hostNetwork: true\n      containers:\n      \
         - {{name: main, image: 'alpine:latest', command: [sh, -c, \"{PATIENT}\"]}}\n"
    )
}

/// The Ankaios manifest of a workload with these documents; `lines` come beside its runtime.
fn workload(name: &str, lines: &str, documents: &str) -> String {
    let config = format!(
        "manifest: |\n  {}",
        documents.trim_end().replace('\n', "\n  ")
    );
    format!(
        "apiVersion: v1\nworkloads:\n  {name}:\n    agent: agent_A\n    runtime: podman-kube\n{lines}    \
         runtimeConfig: |\n      {}\n",
        config.replace('\n', "\n      ")
    )
}

/// Runs another pod until it has failed, which a later listing shows.
fn fails_later(cluster: &Cluster, name: &str) {
    cluster.apply(&workload(name, "", &pod(name, &[("main", "exit 3")])));
    cluster.wait_for_state(name, "Failed(ExecFailed)");
}

fn pods(podman: &Podman) -> Vec<Value> {
    serde_json::from_str(&podman.run(&["pod", "ps", "--format=json"]))
        .expect("podman lists pods as JSON")
}

fn volumes(podman: &Podman) -> Vec<String> {
    podman
        .run(&["volume", "ls", "--format={{.Name}}"])
        .lines()
        .map(str::to_owned)
        .collect()
}

/// Ids and pids of the containers whose name ends like this.
fn containers(podman: &Podman, end: &str) -> Vec<(String, u32)> {
    let mut found = Vec::new();
    for container in podman.containers() {
        let name = container["Names"][0].as_str().unwrap_or_default();
        if name.ends_with(end) {
            let id = container["Id"].as_str().unwrap_or_default();
            let pid = container["Pid"].as_u64().expect("a pid");
            found.push((id.to_owned(), u32::try_from(pid).expect("a pid")));
        }
    }
    found
}

// [stest->swdd~agent-supports-podman-kube-runtime~1]
// [stest->swdd~podman-kube-create-workload-apply-manifest~1]
// [stest->swdd~podman-kube-create-workload-creates-config-volume~1]
// [stest->swdd~podman-kube-create-workload-creates-pods-volume~1]
// [stest->swdd~podman-kube-delete-workload-downs-manifest-file~1]
// [stest->swdd~podman-kube-delete-removes-volumes~1]
#[test]
fn pods_are_played_updated_and_deleted_with_volumes() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], SOON);
    let recorder = Recorder::start(&cluster);
    let two = pod(
        "web",
        &[
            ("one", &format!("echo 1; {PATIENT}")),
            ("two", &format!("echo 2 >&2; {PATIENT}")),
        ],
    );
    cluster.apply_until_run(&workload("web", "", &(two + &deployment("db"))), &["web"]);
    let instance = recorder.instance("web");
    assert_eq!(pods(&podman).len(), 2);
    assert_eq!(
        volumes(&podman),
        [format!("{instance}.config"), format!("{instance}.pods")]
    );
    let mut client = LogClient::new(&cluster);
    let mut lines = client.read_all(everything(&instance));
    lines.sort();
    assert_eq!(lines, ["[web-one] 1", "[web-two] 2"]);

    cluster.apply(&workload(
        "web",
        "",
        &pod("web", &[("one", &format!("echo new; {PATIENT}"))]),
    ));
    wait_until("the new instance is another", || {
        recorder.instance("web") != instance
    });
    cluster.wait_for_state("web", "Running(Ok)");
    let new = recorder.instance("web");
    assert_eq!(pods(&podman).len(), 1);
    assert_eq!(
        volumes(&podman),
        [format!("{new}.config"), format!("{new}.pods")]
    );
    assert_eq!(
        client.read_all(everything(&new)),
        ["new"],
        "a single container needs no name before its lines"
    );

    cluster.remove("web");
    assert_eq!(
        (
            pods(&podman).len(),
            podman.containers().len(),
            volumes(&podman)
        ),
        (0, 0, vec![])
    );
}

// [stest->swdd~podman-kube-state-getter-combines-states~2]
#[test]
fn the_state_of_a_workload_follows_all_containers_of_its_pods() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], SOON);
    cluster.apply_until_run(
        &workload(
            "web",
            "",
            &pod("web", &[("one", PATIENT), ("two", PATIENT)]),
        ),
        &["web"],
    );
    let (one, _) = containers(&podman, "-one").remove(0);
    podman.run(&["stop", &one]);
    cluster.wait_for("one of them ended well", || {
        let state = cluster.workload("web")?.state;
        (podman
            .containers()
            .iter()
            .any(|one| one["State"] == "exited")
            && state == "Running(Ok)")
            .then_some(())
    });
    let (two_id, two) = containers(&podman, "-two").remove(0);
    assert!(send_signal(two, Signal::KILL));
    let row = cluster.wait_for_state("web", "Failed(ExecFailed)");
    assert_eq!(row.info, "Exit code: '137'");
    let failure = (row.state, row.info);
    let id = pods(&podman)[0]["Id"].as_str().expect("an id").to_owned();
    // How it ended is known, and stays so: first without the container that failed, then without
    // any.
    podman.run(&["rm", &two_id]);
    fails_later(&cluster, "first");
    assert_eq!(
        cluster.workload("web").map(|row| (row.state, row.info)),
        Some(failure.clone())
    );
    podman.run(&["pod", "rm", "--force", "--time=0", &id]);
    fails_later(&cluster, "second");
    assert_eq!(
        cluster.workload("web").map(|row| (row.state, row.info)),
        Some(failure)
    );
    ["web", "first", "second"]
        .iter()
        .for_each(|name| cluster.remove(name));
    assert_eq!(volumes(&podman), [""; 0]);
}

// [stest->swdd~agent-reports-kills-out-of-memory~1]
#[test]
fn pod_that_exceeds_its_memory_limit_says_so() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], SOON);
    let limited = "alpine:latest', resources: {limits: {memory: 64Mi}}, ";
    let greedy = pod("greedy", &[("main", GREEDY), ("other", "exit 0")]).replacen(
        "alpine:latest', ",
        limited,
        1,
    );
    cluster.apply(&workload("greedy", "", &greedy));
    let row = cluster.wait_for_state("greedy", "Failed(ExecFailed)");
    assert_eq!(row.info, "Exit code: '137', out of memory (limit 64 MiB)");
    // Where the monitor of podman would leave its note otherwise.
    assert!(!Path::new("oom").exists(), "in the folder of the agent");
}

#[test]
fn pods_that_ended_are_played_again_when_the_policy_says_always() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], SOON);
    let recorder = Recorder::start(&cluster);
    cluster.apply(&workload(
        "job",
        "    restartPolicy: ALWAYS\n",
        &pod("job", &[("main", "sleep 1")]),
    ));
    let rounds = || {
        recorder
            .states_of("job")
            .iter()
            .filter(|state| *state == "Succeeded(Ok)")
            .count()
    };
    wait_until("it ended well twice", || rounds() >= 2);
    cluster.remove("job");
    let states = recorder.states_of("job");
    assert!(
        states
            .iter()
            .all(|state| !state.starts_with("Failed") && state != "Pending(StartingFailed)"),
        "{states:?}"
    );
    assert_eq!((pods(&podman).len(), volumes(&podman)), (0, vec![]));
}

// [stest->swdd~podman-kube-list-existing-workloads-using-config-volumes~1]
#[test]
fn a_new_agent_takes_over_pods_that_run_and_notices_their_end() {
    let podman = Podman::new();
    let mut cluster = Cluster::prepare_on(&podman);
    cluster.start_with_manifest(&workload("web", "", &pod("web", &[("main", PATIENT)])));
    cluster.wait_for_state("web", "Running(Ok)");
    let before = containers(&podman, "-main");
    cluster.kill_agent("agent_A");
    cluster.wait_for_state("web", "AgentDisconnected");
    cluster.start_agent("agent_A");
    cluster.wait_for_state("web", "Running(Ok)");
    assert_eq!(containers(&podman, "-main"), before);
    assert!(is_alive(before[0].1));

    assert!(send_signal(before[0].1, Signal::KILL));
    cluster.wait_for_state("web", "Failed(ExecFailed)");
    cluster.remove("web");
    assert_eq!((pods(&podman).len(), volumes(&podman)), (0, vec![]));
}

#[test]
fn ended_pods_of_this_boot_stay_when_configured() {
    let podman = Podman::new();
    for (rerun, same) in [("boot", true), ("always", false)] {
        let mut cluster = Cluster::prepare_on(&podman);
        cluster.agent_config = format!("rerun_finished = \"{rerun}\"");
        cluster.start_with_manifest(&workload("job", "", &pod("job", &[("main", "exit 0")])));
        cluster.wait_for_state("job", "Succeeded(Ok)");
        let before = containers(&podman, "-main");
        cluster.kill_agent("agent_A");
        cluster.wait_for_state("job", "AgentDisconnected");
        let recorder = Recorder::start(&cluster);
        cluster.start_agent("agent_A");
        recorder.states_until("job", "Succeeded(Ok)");
        assert_eq!(containers(&podman, "-main") == before, same, "{rerun}");
        cluster.remove("job");
    }
}

/// A Pod with this time to stop, whose container runs `command` and has `folder` as `/shared`.
fn pod_that_shares(name: &str, seconds: u32, folder: &Path, command: &str) -> String {
    let volume = format!(
        "  volumes: [{{name: shared, hostPath: {{path: {}}}}}]\n",
        folder.display()
    );
    let mount = "volumeMounts: [{name: shared, mountPath: /shared}], name: main,";
    let text = pod(name, &[("main", command)]).replace("name: main,", mount);
    text.replace("Seconds: 1\n", &format!("Seconds: {seconds}\n")) + &volume
}

// [stest->swdd~podman-kube-delete-stops-in-order~1]
#[test]
fn pods_are_stopped_with_their_signal_before_they_are_removed() {
    let podman = Podman::new();
    let mut cluster = Cluster::prepare_on(&podman);
    cluster.server_config = "mode_config = \"mode\"\n".to_owned();
    cluster.start_all(&["agent_A"]);
    let shared = cluster.folder().join("shared");
    fs::create_dir(&shared).expect("own folder is writable");
    // Ending takes a while, so that a kill that follows the signal at once is noticed.
    let patient =
        "trap 'sleep 0.5; echo $NAME >>/shared/ended; exit 0' TERM; while true; do sleep 0.1; done";
    let of = |name: &str, version: u32| {
        let command = patient.replace("$NAME", &format!("{name}{version}"));
        pod_that_shares(name, 600, &shared, &command)
    };
    let ended = || fs::read_to_string(shared.join("ended")).unwrap_or_default();
    // Two pods of one workload, of which one ignores the signal: that delays neither the other nor
    // another workload.
    let stubborn = "trap '' TERM; while true; do sleep 0.1; done";
    let both = of("web", 1) + "---\n" + &pod_that_shares("deaf", 1, &shared, stubborn);
    cluster.apply("apiVersion: v1\nconfigs: {mode: drive}\n");
    cluster.apply_until_run(
        &workload("web", "    tags: {modes: drive}\n", &both),
        &["web"],
    );

    cluster.apply_until_run(
        &workload("web", "    tags: {modes: drive}\n", &of("web", 2)),
        &["web"],
    );
    wait_until("the update has stopped the first", || ended() == "web1\n");
    wait_until("the second runs", || {
        pods(&podman).len() == 1
            && cluster
                .workload("web")
                .is_some_and(|row| row.state == "Running(Ok)")
    });
    assert_eq!(cluster.ank(&["restart", "web"]).code, 0);
    wait_until("the restart has stopped the second", || {
        ended() == "web1\nweb2\n"
    });
    cluster.wait_for_state("web", "Running(Ok)");
    assert_eq!(cluster.ank(&["mode", "park", "--new"]).code, 0);
    wait_until("the switch has stopped it", || {
        ended() == "web1\nweb2\nweb2\n"
    });
    assert_eq!(cluster.ank(&["mode", "drive"]).code, 0);
    cluster.wait_for_state("web", "Running(Ok)");
    cluster.remove("web");
    assert_eq!(ended(), "web1\nweb2\nweb2\nweb2\n");
    assert_eq!((pods(&podman).len(), volumes(&podman)), (0, vec![]));
}

#[test]
fn a_paused_pod_is_stopped_and_removed() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], SOON);
    cluster.apply_until_run(
        &workload("web", "", &pod("web", &[("main", PATIENT)])),
        &["web"],
    );
    podman.pause(&containers(&podman, "-main")[0].0);
    cluster.remove("web");
    assert_eq!((pods(&podman).len(), volumes(&podman)), (0, vec![]));
}

#[test]
fn pruned_pod_of_a_finished_workload_changes_no_state() {
    let podman = Podman::new();
    let mut cluster = Cluster::prepare_on(&podman);
    cluster.agent_config = format!("rerun_finished = \"boot\"\n{SOON}");
    cluster.start_with_manifest(&workload("job", "", &pod("job", &[("main", "exit 3")])));
    cluster.wait_for_state("job", "Failed(ExecFailed)");
    let recorder = Recorder::start(&cluster);
    wait_until("its pod can be pruned", || {
        podman.run(&["pod", "prune", "--force"]);
        pods(&podman).is_empty()
    });
    for name in ["first", "second"] {
        cluster.apply(&workload(name, "", &pod(name, &[("main", "exit 0")])));
        cluster.wait_for_state(name, "Succeeded(Ok)");
    }
    assert_eq!(recorder.states_of("job"), [""; 0]);
    cluster.kill_agent("agent_A");
    cluster.wait_for_state("job", "AgentDisconnected");
    cluster.start_agent("agent_A");
    assert_eq!(
        cluster.wait_for_state("job", "Failed(ExecFailed)").info,
        "Exit code: '3'"
    );
    cluster.wait_for_state("second", "Succeeded(Ok)");
    assert_eq!(
        recorder.states_until("job", "Failed(ExecFailed)"),
        ["AgentDisconnected", "Failed(ExecFailed)"]
    );
    ["job", "first", "second"]
        .iter()
        .for_each(|name| cluster.remove(name));
    assert_eq!((pods(&podman).len(), volumes(&podman)), (0, vec![]));
}

#[test]
fn a_play_that_fails_half_way_leaves_nothing_and_is_retried() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], SOON);
    let broken = pod("web", &[("one", PATIENT), ("two", PATIENT)]).replacen(
        "alpine:latest",
        "localhost/nosuch",
        1,
    );
    let broken = broken.replace("{name: one", "{name: one, imagePullPolicy: Never");
    // The first pod is made before the second fails.
    let documents = pod("good", &[("main", PATIENT)]) + "---\n" + &broken;
    cluster.apply(&workload("web", "", &documents));
    let row = cluster.wait_for_row("web", "is retried twice", is_retried_again);
    assert!(
        row.info.contains("localhost/nosuch"),
        "the engine's cause, not that a pod exists: {row:?}"
    );
    cluster.remove("web");
    assert_eq!(
        (
            pods(&podman).len(),
            podman.containers().len(),
            volumes(&podman)
        ),
        (0, 0, vec![])
    );
}

#[test]
fn image_with_labels_of_a_workload_stops_no_container() {
    let podman = Podman::new();
    let mut cluster = Cluster::start_on(&podman, &["agent_A"], SOON);
    let recorder = Recorder::start(&cluster);
    cluster.apply_until_run(&shell("web", PATIENT), &["web"]);
    let forged = "docker.io/library/forged:1";
    let name = format!("LABEL name={}", recorder.instance("web"));
    podman.run(&["create", "--name", "base", "alpine:latest"]);
    podman.run(&[
        "commit",
        "--quiet",
        "--change",
        &name,
        "--change",
        "LABEL agent=agent_A",
        "base",
        forged,
    ]);
    podman.run(&["rm", "base"]);
    let documents = pod("evil", &[("main", PATIENT)]).replace("alpine:latest", forged);
    cluster.apply_until_run(&workload("evil", "", &documents), &["evil"]);
    podman.run(&[
        "run", "--detach", "--name", "stranger", forged, "sh", "-c", PATIENT,
    ]);

    let ids = || {
        podman
            .containers()
            .iter()
            .map(|one| one["Id"].to_string())
            .collect::<std::collections::BTreeSet<_>>()
    };
    let (before, labelled) = (ids(), podman.containers_of("web"));
    assert_eq!(
        labelled.len(),
        3,
        "the genuine one, one in a pod, one that somebody runs"
    );
    cluster.kill_agent("agent_A");
    cluster.wait_for_state("web", "AgentDisconnected");
    cluster.start_agent("agent_A");
    cluster.wait_until_run(&["web", "evil"]);
    cluster.remove("web");
    let gone: Vec<_> = before.difference(&ids()).cloned().collect();
    let genuine = labelled.iter().find(|one| {
        one["Names"][0]
            .as_str()
            .is_some_and(|name| name.starts_with("web."))
    });
    assert_eq!(
        gone,
        [genuine.expect("there is one")["Id"].to_string()],
        "nothing else was touched"
    );
    cluster.wait_for_state("evil", "Running(Ok)");
}
