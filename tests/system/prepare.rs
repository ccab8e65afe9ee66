//! Prepared starts with real podman: containers that are created and initialised, started, removed,
//! and found by the next agent.
//!
//! Thread: the test's. Owns: per test one cluster and one podman store (store.rs).

use crate::store::{PATIENT, Podman};
use crate::support::{Cluster, wait_until};
use std::fs;

fn state(podman: &Podman, name: &str) -> Option<String> {
    let containers = podman.containers_of(name);
    assert!(containers.len() < 2, "{containers:?}");
    Some(
        containers.first()?["State"]
            .as_str()
            .expect("a state")
            .to_lowercase(),
    )
}

/// A workload that waits until `gate` is ready, which it is when the file `open` is there.
fn waiting(name: &str, options: &str, command: &str, rest: &str) -> String {
    format!(
        "  {name}:\n    agent: agent_A\n    runtime: podman\n    dependencies: {{gate: ADD_COND_RUNNING}}\n{rest}    \
         runtimeConfig: |\n      image: alpine:latest\n      commandOptions: [\"--stop-timeout\", \"1\"{options}]\n      \
         commandArgs: [sh, -c, {command:?}]\n"
    )
}

fn manifest(cluster: &Cluster, workloads: &[String]) -> String {
    let open = cluster.folder().join("open");
    let gate = format!(
        "  gate:\n    agent: agent_A\n    runtime: podman\n    runtimeConfig: |\n      image: alpine:latest\n      \
         commandOptions: [\"--stop-timeout\", \"1\"]\n      commandArgs: [sh, -c, {PATIENT:?}]\n      \
         lifecycle: {{ ready: {{ file: {}, periodMs: 50, deadlineMs: 0 }} }}\n",
        open.display()
    );
    format!("apiVersion: v1\nworkloads:\n{gate}{}", workloads.concat())
}

fn wait_for(cluster: &Cluster, name: &str, level: &str) {
    cluster.wait_for_row(name, level, |row| {
        row.info.starts_with(&format!("prepared: {level}"))
    });
}

// [stest->swdd~agent-prepares-starts~1]
#[test]
fn prepared_containers_run_as_if_run_at_once() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], "prepare = \"init\"");
    let shared = cluster.folder().join("shared");
    fs::create_dir(&shared).expect("own folder is writable");
    let notify = r#"/usr/bin/perl -MIO::Socket::UNIX -e 'my $s = IO::Socket::UNIX->new(Type => SOCK_DGRAM, Peer => $ENV{NOTIFY_SOCKET}) or die; print $s "READY=1"'"#;
    let volumes: String = ["/usr", "/lib", "/lib64"]
        .map(|it| format!(", \"--volume={it}:{it}:ro\""))
        .concat();
    let file = "    files:\n      - mountPoint: /etc/answer\n        data: forty-two\n";
    let access = "    controlInterfaceAccess:\n      allowRules:\n        - {type: StateRule, operation: Read, filterMasks: [\"*\"]}\n";
    let wrote = format!(", \"--volume={}:/shared\"", shared.display());
    let interface = format!("ls /run/ankaios/control_interface >/shared/interface; {PATIENT}");
    let workloads = [
        waiting(
            "plain",
            &wrote,
            &format!("cat /etc/answer >/shared/answer; {PATIENT}"),
            file,
        ),
        waiting("half", "", PATIENT, "") + "      lifecycle: { prepare: CREATE }\n",
        waiting("notifies", &volumes, &format!("{notify} && {PATIENT}"), "")
            + "      lifecycle: { ready: { notify: true, deadlineMs: 0 } }\n",
        waiting("talks", &wrote, &interface, access),
        waiting("ends", ", \"--rm\"", "exit 3", ""),
    ];
    cluster.apply(&manifest(&cluster, &workloads));
    for (name, level, expected) in [
        ("plain", "INIT", "initialized"),
        ("half", "CREATE", "created"),
        ("notifies", "INIT", "initialized"),
        ("talks", "INIT", "initialized"),
        ("ends", "INIT", "initialized"),
    ] {
        wait_for(&cluster, name, level);
        assert_eq!(state(&podman, name).as_deref(), Some(expected), "{name}");
    }
    let ids =
        ["plain", "notifies", "talks"].map(|name| podman.containers_of(name)[0]["Id"].clone());
    cluster.write("open", "");
    cluster.wait_until_run(&["plain", "notifies", "talks"]);
    cluster.wait_for_state("ends", "Failed(Lost)");
    assert_eq!(
        ids,
        ["plain", "notifies", "talks"].map(|name| podman.containers_of(name)[0]["Id"].clone())
    );
    wait_until("the file is there", || {
        fs::read(shared.join("answer")).is_ok_and(|text| text == b"forty-two")
    });
    let listed = || fs::read_to_string(shared.join("interface")).unwrap_or_default();
    wait_until("the control interface is there", || {
        listed() == "input\noutput\n"
    });
    for name in ["plain", "notifies", "talks"] {
        cluster.remove(name);
        assert_eq!(state(&podman, name), None);
    }
}

#[test]
fn prepared_container_is_removed_or_created_again_if_stale() {
    let podman = Podman::new();
    let mut cluster = Cluster::start_on(&podman, &["agent_A"], "prepare = \"init\"");
    let mounted = cluster.folder().join("mounted");
    fs::create_dir(&mounted).expect("own folder is writable");
    let volume = format!(", \"--volume={}:/mounted\"", mounted.display());
    let workloads = [
        waiting("deleted", "", PATIENT, ""),
        waiting("lost", "", PATIENT, ""),
        waiting(
            "moved",
            &volume,
            &format!("test -e /mounted/new && {PATIENT}"),
            "",
        ),
    ];
    cluster.apply(&manifest(&cluster, &workloads));
    for name in ["deleted", "lost", "moved"] {
        wait_for(&cluster, name, "INIT");
    }
    cluster.remove("deleted");
    assert_eq!(state(&podman, "deleted"), None);
    podman.run(&[
        "rm",
        "--force",
        podman.containers_of("lost")[0]["Id"]
            .as_str()
            .expect("an id"),
    ]);
    fs::rename(&mounted, cluster.folder().join("away")).expect("own folder is writable");
    fs::create_dir(&mounted).expect("own folder is writable");
    fs::write(mounted.join("new"), "").expect("own folder is writable");
    cluster.write("open", "");
    cluster.wait_until_run(&["lost", "moved"]);
    let log = cluster.agent("agent_A").stderr();
    let anew = |name: &str| {
        log.contains(&format!(
            "Workload '{name}' is not started as it was prepared"
        ))
    };
    assert!(anew("lost") && anew("moved"), "{log}");
}

#[test]
fn next_agent_starts_the_prepared_containers() {
    let podman = Podman::new();
    let mut cluster = Cluster::start_on(&podman, &["agent_A"], "prepare = \"init\"");
    let workloads = [
        waiting("kept", "", PATIENT, ""),
        waiting("unwanted", "", PATIENT, ""),
    ];
    cluster.apply(&manifest(&cluster, &workloads));
    wait_for(&cluster, "kept", "INIT");
    wait_for(&cluster, "unwanted", "INIT");
    let id = podman.containers_of("kept")[0]["Id"].clone();
    cluster.kill_agent("agent_A");
    cluster.wait_for_state("kept", "AgentDisconnected");
    cluster.delete("unwanted");
    cluster.start_agent("agent_A");
    wait_for(&cluster, "kept", "INIT");
    wait_until("it is removed", || state(&podman, "unwanted").is_none());
    cluster.write("open", "");
    cluster.wait_until_run(&["kept"]);
    assert_eq!(podman.containers_of("kept")[0]["Id"], id);
}
