//! Workloads that talk to the cluster from inside real containers: the SDKs for Python and Rust,
//! unmodified, with every call that they offer.
//!
//! A container sees the machine's libraries and interpreter through read-only mounts beside the
//! image of busybox, so no image is pulled and none is large.
//!
//! Thread: the test's. Owns: per test one cluster and one podman store (support/podman.rs).

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::store::{PATIENT, Podman, shell};
use crate::support::control_client::{folder, logs, read};
use crate::support::process::write_program;
use crate::support::python::{cache, interpreter, repository, succeeded};
use crate::support::{Cluster, ControlClient, poll, wait_until};
use ankaios_lite::model::messages::ResponseContent;
use ankaios_lite::model::names::InstanceName;

/// Longest run of a client that makes every call of its SDK.
const CLIENT_LIMIT: Duration = Duration::from_secs(1800);

const ALL: &str = "{allowRules: [{type: StateRule, operation: ReadWrite, filterMasks: ['*']}, \
                   {type: LogRule, workloadNames: ['*']}]}";
const AGENTS_ONLY: &str =
    "{allowRules: [{type: StateRule, operation: Read, filterMasks: [agents]}]}";

/// Folders of the machine that a program with shared libraries needs.
pub fn libraries() -> Vec<PathBuf> {
    ["/usr", "/lib", "/lib64"]
        .map(PathBuf::from)
        .into_iter()
        .filter(|folder| folder.exists())
        .collect()
}

/// The manifest of a workload that runs `command` and sees the machine's libraries and `folders`.
fn client(name: &str, access: &str, folders: &[PathBuf], command: &[&str]) -> String {
    let mut all: Vec<PathBuf> = libraries()
        .into_iter()
        .chain(folders.iter().cloned())
        .collect();
    all.dedup();
    let volumes: Vec<String> = all
        .iter()
        .map(|folder| format!("'--volume={0}:{0}:ro'", folder.display()))
        .collect();
    let command: Vec<String> = command.iter().map(|part| format!("'{part}'")).collect();
    format!(
        "apiVersion: v1\nworkloads:\n  {name}:\n    agent: agent_A\n    runtime: podman\n    \
         controlInterfaceAccess: {access}\n    runtimeConfig: |\n      image: alpine:latest\n      \
         commandOptions: [{}]\n      commandArgs: [{}]\n",
        volumes.join(", "),
        command.join(", ")
    )
}

/// Waits until the client has ended well.
#[track_caller]
fn ends_well(cluster: &Cluster, podman: &Podman, name: &str) {
    let state = poll(CLIENT_LIMIT, || {
        let state = cluster.workload(name)?.state;
        matches!(state.as_str(), "Succeeded(Ok)" | "Failed(ExecFailed)").then_some(state)
    });
    if state.as_deref() != Some("Succeeded(Ok)") {
        let containers = podman.containers_of(name);
        let id = containers
            .first()
            .and_then(|container| container["Id"].as_str())
            .unwrap_or("none");
        panic!("'{name}' is {state:?}:\n{}", podman.logs(id));
    }
}

/// A cluster whose server has modes, which are switched by a config item.
fn cluster_with_modes(podman: &Podman) -> Cluster {
    let mut cluster = Cluster::prepare_on(podman);
    cluster.server_config = "mode_config = 'mode'".to_owned();
    cluster.start_all(&["agent_A"]);
    cluster
}

// ------------------------------------------------------------------- Python

/// The interpreter with the SDK, and the folders that it needs.
fn python() -> (PathBuf, Vec<PathBuf>) {
    let program = interpreter("venv-sdk", "sdk_requirements.txt", "import ankaios_sdk");
    let prefix = Command::new(&program)
        .args(["-c", "import sys; print(sys.base_prefix)"])
        .output();
    let prefix = PathBuf::from(succeeded("python's folder", prefix).trim());
    let mut folders = vec![cache().join("venv-sdk"), repository("tests/python")];
    if !prefix.starts_with("/usr") {
        folders.push(prefix);
    }
    (program, folders)
}

fn python_workload(name: &str, access: &str, scenario: &str) -> String {
    let (program, folders) = python();
    let script = repository("tests/python/sdk_workload.py");
    let (program, script) = (program.display().to_string(), script.display().to_string());
    client(name, access, &folders, &[&program, "-B", &script, scenario])
}

// [stest->swdd~agent-forward-responses-to-control-interface-pipe~1]
#[test]
fn python_sdk_makes_every_call() {
    let podman = Podman::new();
    let cluster = cluster_with_modes(&podman);
    cluster.apply(&python_workload("sdk", ALL, "all"));
    ends_well(&cluster, &podman, "sdk");
}

#[test]
fn python_sdk_is_denied_what_no_rule_allows() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], "");
    cluster.apply(&python_workload("limited", AGENTS_ONLY, "denied"));
    ends_well(&cluster, &podman, "limited");
}

// --------------------------------------------------------------------- Rust

/// A program with the SDK: the package in `folder` of the repository. Both share their dependencies
/// in the cache, so only the first build takes minutes.
pub fn rust_program(folder: &str, name: &str) -> PathBuf {
    let target = cache().join("sdk-rust");
    std::fs::create_dir_all(&target).expect("the cache folder is writable");
    // The SDK generates code with the protobuf compiler, which the tools for Python's gRPC bring
    // along.
    let python = interpreter("venv", "requirements.txt", "import grpc, grpc_tools.protoc");
    let compiler = target.join("protoc");
    let script = format!(
        "#!/bin/sh\nexec '{}' -m grpc_tools.protoc \"$@\"\n",
        python.display()
    );
    // A program that runs cannot be written.
    if std::fs::read_to_string(&compiler).ok().as_ref() != Some(&script) {
        write_program(&compiler, &script);
    }
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build
        .args(["build", "--locked", "--quiet", "--manifest-path"])
        .arg(repository(folder).join("Cargo.toml"));
    build
        .arg("--target-dir")
        .arg(&target)
        .env("PROTOC", &compiler);
    succeeded(&format!("cargo build of {folder}"), build.output());
    target.join("debug").join(name)
}

// [stest->swdd~agent-forward-responses-to-control-interface-pipe~1]
#[test]
fn rust_sdk_makes_every_call() {
    let program = rust_program("tests/sdk_rust", "sdk-workload");
    let podman = Podman::new();
    let cluster = cluster_with_modes(&podman);
    let folder = program.parent().expect("it is in a folder").to_owned();
    cluster.apply(&client(
        "sdk",
        ALL,
        &[folder],
        &[&program.display().to_string()],
    ));
    ends_well(&cluster, &podman, "sdk");
}

// --------------------------------------------------------------------- pods

/// Says hello with the tools of busybox, and `accepted` when the agent says so, too.
const HELLO: &str = "cd /run/ankaios/control_interface\n\
    head -c 3 input >/tmp/answer &\n\
    printf '\\011\\012\\007\\022\\0051.0.0' >output\n\
    wait\n\
    [ \"$(od -An -tx1 /tmp/answer)\" = ' 02 22 00' ] && echo accepted\n\
    trap 'exit 0' TERM\n\
    while true; do sleep 0.1; done";

#[test]
fn only_the_named_container_of_a_pod_has_the_interface() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], "");
    let command = |text: &str| format!("[sh, -c, {}]", serde_json::Value::from(text));
    let other =
        "ls /run/ankaios || echo nothing; trap 'exit 0' TERM; while true; do sleep 0.1; done";
    let pod = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: ci}}\nspec:\n  hostNetwork: true\n  restartPolicy: Never\n  \
         terminationGracePeriodSeconds: 1\n  containers:\n  - {{name: main, image: 'alpine:latest', command: {}}}\n  \
         - {{name: other, image: 'alpine:latest', command: {}}}\n",
        command(HELLO),
        command(other)
    );
    let config = format!(
        "controlInterfaceTarget: ci/main\nmanifest: |\n  {}",
        pod.trim_end().replace('\n', "\n  ")
    );
    cluster.apply(&format!(
        "apiVersion: v1\nworkloads:\n  pods:\n    agent: agent_A\n    runtime: podman-kube\n    \
         controlInterfaceAccess: {AGENTS_ONLY}\n    runtimeConfig: |\n      {}\n",
        config.replace('\n', "\n      ")
    ));
    cluster.wait_for_state("pods", "Running(Ok)");
    wait_until("the container is accepted", || {
        podman.logs("ci-main").contains("accepted")
    });
    wait_until("the other one has looked", || {
        podman.logs("ci-other").contains("nothing")
    });
    cluster.remove("pods");
}

// ----------------------------------------------------- a server that restarts

// [stest->swdd~agent-renews-event-subscriptions~1]
#[test]
fn logs_end_and_events_go_on_when_the_server_restarts() {
    let podman = Podman::new();
    let mut cluster = Cluster::prepare_on(&podman);
    let access = format!("    controlInterfaceAccess: {ALL}\n    runtime:");
    let web = shell("web", &format!("echo hello; {PATIENT}")).replacen("    runtime:", &access, 1);
    let file = cluster.start_with_manifest(&web);
    cluster.wait_for_state("web", "Running(Ok)");
    let name = podman.containers_of("web")[0]["Labels"]["name"].clone();
    let instance = name
        .as_str()
        .and_then(InstanceName::parse)
        .expect("the label has the full name");
    let container = podman.only_container("web");
    let mut client = ControlClient::connect(&folder(&cluster, "agent_A", "web"));
    client.request("e", read(&["desiredState.workloads"], true));
    assert!(matches!(
        client.answer("e"),
        ResponseContent::CompleteState { altered: None, .. }
    ));
    let follows = |client: &mut ControlClient, id: &str| {
        client.request(id, logs(vec![instance.clone()]));
        assert_eq!(
            client.answer(id),
            ResponseContent::LogsAccepted(vec![instance.clone()])
        );
        let ResponseContent::LogEntries(lines) = client.answer(id) else {
            panic!("its line is expected")
        };
        assert_eq!(
            lines
                .iter()
                .map(|line| line.message.as_str())
                .collect::<Vec<_>>(),
            ["hello"]
        );
    };
    follows(&mut client, "before");
    cluster.kill_server();
    assert_eq!(
        client.answer("before"),
        ResponseContent::LogsStop(instance.clone())
    );
    cluster.start_server(&["-m", &file]);
    assert!(matches!(
        client.answer("e"),
        ResponseContent::CompleteState {
            altered: Some(_),
            ..
        }
    ));
    follows(&mut client, "after");
    cluster.apply(&shell("job", "exit 0"));
    let ResponseContent::CompleteState {
        altered: Some(altered),
        ..
    } = client.answer("e")
    else {
        panic!("an event is expected")
    };
    assert_eq!(altered.added, ["desiredState.workloads.job"]);
    assert_eq!(
        podman.only_container("web"),
        container,
        "it ran all the time"
    );
}

// -------------------------------------------------------------- users of containers

/// Sends an empty message, which is no hello, and waits for the answer to it; shows a file.
const USES_EVERYTHING: &str = "cat /etc/app/file && cd /run/ankaios/control_interface && printf '\\000' >output && \
                               head -c 1 input | wc -c | grep -x 1";

#[test]
fn whoever_a_container_runs_as_has_its_pipes_and_files() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], "");
    let mapped = "'--uidmap=0:200000:65536', '--gidmap=0:200000:65536'";
    let users = [
        ("root", String::new()),
        ("user", "'--user=1000:1000'".to_owned()),
        ("mapped", mapped.to_owned()),
        ("both", format!("{mapped}, '--user=1000:1000'")),
        ("powerless", "'--cap-drop=all'".to_owned()),
    ];
    let mut manifest = "apiVersion: v1\nworkloads:\n".to_owned();
    for (name, options) in &users {
        let script = USES_EVERYTHING.replace('\'', "''");
        manifest += &format!(
            "  {name}:\n    agent: agent_A\n    runtime: podman\n    controlInterfaceAccess: {AGENTS_ONLY}\n    \
             files: [{{mountPoint: /etc/app/file, data: it is read}}]\n    runtimeConfig: |\n      image: alpine:latest\n      \
             commandOptions: [{options}]\n      commandArgs: [sh, -c, '{script}']\n"
        );
    }
    cluster.apply(&manifest);
    for (name, _) in users {
        ends_well(&cluster, &podman, name);
    }
}
