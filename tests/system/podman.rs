//! The programs with real podman: the storage example of the design document, and what only a real
//! engine can show.
//!
//! Thread: the test's. Owns: per test one cluster and one podman store (support/podman.rs).

use crate::store::{PATIENT, Podman, shell};
use crate::support::process::{Identity, children, is_alive, send_signal};
use crate::support::table::Row;
use crate::support::{Cluster, Recorder, wait_until};
use rustix::process::Signal;
use serde_json::Value;

const STORAGE: &str = include_str!("../../scripts/demo/storage.yaml");
const RESTART_SERVICE: &str = include_str!("../../scripts/demo/restart_service.yaml");

/// Whether a workload is shown with what its second start or a later one said.
pub fn is_retried_again(row: &Row) -> bool {
    row.info.starts_with("Retry ") && !row.info.starts_with("Retry 1:")
}

// [stest->swdd~agent-supports-podman~2]
// [stest->swdd~agent-enqueues-unfulfilled-create~1]
// [stest->swdd~agent-handles-workloads-with-fulfilled-dependencies~1]
#[test]
fn storage_example_goes_through_the_documented_states() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A", "agent_B"], "");
    let recorder = Recorder::start(&cluster);
    // On a busy machine a container that ends within seconds has ended before its `podman run` has.
    // These end when they have a file, which they get when they are seen to run.
    let ends = cluster.folder().join("ends");
    std::fs::create_dir(&ends).expect("own folder is writable");
    let volume = format!(", \"--volume={}:/ends\" ]", ends.display());
    let until = |name: &str| format!("until [ -e /ends/{name} ]; do sleep 0.1; done");
    let sleep = r#"[ "--entrypoint", "/bin/sleep" ]"#;
    let shell = format!(r#"[ "--entrypoint", "/bin/sh"{volume}"#);
    let mut patient = STORAGE
        .replace(r#"[ "--entrypoint", "/bin/sh" ]"#, &shell)
        .replace(sleep, &shell);
    for (in_example, instead) in [
        (r#"[ "3" ]"#, format!(r#"[ "-c", "{}" ]"#, until("logger"))),
        (
            r#"[ "2" ]"#,
            format!(r#"[ "-c", "{}" ]"#, until("init_storage")),
        ),
        ("sleep 5;", format!("{};", until("storage_provider"))),
    ] {
        assert!(patient.contains(in_example), "{in_example} in\n{patient}");
        patient = patient.replace(in_example, &instead);
    }
    cluster.apply(&patient);
    for name in ["init_storage", "logger", "storage_provider"] {
        cluster.wait_for_state(name, "Running(Ok)");
        std::fs::write(ends.join(name), "").expect("own folder is writable");
    }
    cluster.wait_for_state("error_handler", "Succeeded(Ok)");
    cluster.wait_for_state("logger", "Succeeded(Ok)");
    let row = cluster.wait_for_state("storage_provider", "Failed(ExecFailed)");
    assert_eq!(row.info, "Exit code: '1'");

    cluster.apply(RESTART_SERVICE);
    cluster.wait_for_state("restart_service", "Succeeded(Ok)");

    let init = recorder.states_until("init_storage", "Succeeded(Ok)");
    assert_eq!(init, ["Pending(Starting)", "Running(Ok)", "Succeeded(Ok)"]);
    let provider = recorder.states_until("storage_provider", "Failed(ExecFailed)");
    assert_eq!(
        provider,
        [
            "Pending(WaitingToStart)",
            "Pending(Starting)",
            "Running(Ok)",
            "Failed(ExecFailed)"
        ]
    );
    let logger = recorder.states_until("logger", "Succeeded(Ok)");
    assert_eq!(
        logger,
        [
            "Pending(WaitingToStart)",
            "Pending(Starting)",
            "Running(Ok)",
            "Succeeded(Ok)"
        ]
    );
    let at = |name, state| recorder.position(name, state);
    assert!(at("init_storage", "Succeeded(Ok)") < at("storage_provider", "Pending(Starting)"));
    assert!(at("storage_provider", "Running(Ok)") < at("logger", "Pending(Starting)"));
    assert!(
        at("storage_provider", "Failed(ExecFailed)") < at("error_handler", "Pending(Starting)")
    );
    assert!(
        at("error_handler", "Pending(WaitingToStart)") < at("error_handler", "Pending(Starting)")
    );
    assert!(at("error_handler", "Succeeded(Ok)") < at("restart_service", "Pending(Starting)"));
}

/// What the tour of the README and nearly every workload of others does.
#[test]
fn containers_have_a_network_ports_that_are_published_and_names() {
    let Some(podman) = Podman::with_networks() else {
        return;
    };
    podman.run(&["network", "create", "apps"]);
    let mut cluster = Cluster::prepare_on(&podman);
    // The agent is in another network than the server.
    let socket = cluster.folder().join("ank.sock");
    cluster.set_socket(&socket);
    let wrapper = podman.wrapper();
    cluster.set_wrapper(
        "ank-agent",
        &wrapper.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    cluster.start_all(&["agent_A"]);
    let serve = |text: &str| {
        format!("mkdir /www && echo {text} >/www/index.html && exec httpd -f -p 80 -h /www")
    };
    let one = |name: &str, options: &str, command: &str| {
        format!(
            "  {name}:\n    agent: agent_A\n    runtime: podman\n    runtimeConfig: |\n      image: alpine:latest\n      \
             commandOptions: [{options}]\n      commandArgs: [sh, -c, \"{command}\"]\n"
        )
    };
    let ask = "until wget -q -O - http://shop/ | grep -q apples; do sleep 0.1; done";
    let workloads = [
        one(
            "published",
            "--stop-timeout, '1', --publish, '127.0.0.1:8085:80'",
            &serve("default"),
        ),
        one(
            "shop",
            "--stop-timeout, '1', '--network=apps', '--network-alias=shop'",
            &serve("apples"),
        ),
        // Of two first containers of a network, started at once, podman's name server may never
        // learn one.
        one("customer", "'--network=apps'", ask) + "    dependencies: {shop: ADD_COND_RUNNING}\n",
    ];
    cluster.apply(&format!(
        "apiVersion: v1\nworkloads:\n{}",
        workloads.concat()
    ));
    cluster.wait_until_run(&["published", "shop"]);
    cluster.wait_for_state("customer", "Succeeded(Ok)");
    let fetch = || {
        let mut command = std::process::Command::new(&wrapper[0]);
        command.args(&wrapper[1..]).args([
            "/bin/busybox",
            "wget",
            "-q",
            "-O",
            "-",
            "http://127.0.0.1:8085/",
        ]);
        let output = command.output().expect("busybox is there");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    wait_until("the published port answers on loopback", || {
        fetch() == "default\n"
    });
    // The agent takes away what belongs to the networks.
    for name in ["published", "shop", "customer"] {
        cluster.remove(name);
    }
    assert!(podman.containers().is_empty());
}

// [stest->swdd~podman-create-workload-runs-workload~1]
// [stest->swdd~podman-create-workload-sets-optionally-container-name~1]
// [stest->swdd~podman-delete-workload-stops-and-removes-workload~1]
#[test]
fn apply_and_delete_wait_until_containers_are_as_desired() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], "");
    let apply = |arguments: &[&str], text: &str| cluster.ank_with_input(arguments, text).success();

    let first = shell("web", PATIENT);
    apply(&["apply", "-"], &first);
    let (pid, id) = podman.only_container("web");
    let old = Identity::of(pid);
    let name = podman.containers_of("web")[0]["Names"][0]
        .as_str()
        .expect("a name")
        .to_owned();
    assert!(
        name.starts_with("web.")
            && name.ends_with(".agent_A")
            && name.len() == "web.1234567.agent_A".len(),
        "{name}"
    );

    assert_eq!(
        apply(&["apply", "-"], &first),
        "Apply successful. No workloads updated.\n"
    );
    assert_eq!(podman.only_container("web"), (pid, id.clone()));

    apply(&["apply", "-"], &shell("web", &format!("A=1; {PATIENT}")));
    let (new_pid, new_id) = podman.only_container("web");
    assert!(new_id != id && is_alive(new_pid) && !old.is_alive());

    apply(&["delete", "workload", "web"], "");
    assert!(podman.containers().is_empty());
    assert_eq!(cluster.workloads(), []);
}

#[test]
fn image_that_does_not_exist_is_shown_with_the_engines_words() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], "");
    let text = shell("web", PATIENT).replace("alpine:latest", "localhost/nosuch:latest");
    cluster.apply(&text);
    let row = cluster.wait_for_row("web", "is retried", |row| row.info.starts_with("Retry "));
    assert_eq!(row.state, "Pending(Starting)");
    assert!(
        row.info.contains(": Error: ") && row.info.contains("localhost/nosuch:latest"),
        "{row:?}"
    );
    cluster.remove("web");
}

#[test]
fn command_that_does_not_exist_is_cleaned_up_before_each_retry() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], "");
    let text = shell("web", PATIENT).replace("[sh, -c,", "[nosuchcommand,");
    cluster.apply(&text);
    let row = cluster.wait_for_row("web", "is retried twice", is_retried_again);
    assert!(
        row.info.contains("nosuchcommand"),
        "the engine's cause, not that the name is in use: {row:?}"
    );
    cluster.remove("web");
    assert!(podman.containers().is_empty());
}

#[test]
fn killed_container_is_restarted_by_its_policy() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], "");
    let restarted = shell("restarted", PATIENT).replace(
        "runtime: podman",
        "runtime: podman\n    restartPolicy: ON_FAILURE",
    );
    cluster.apply_until_run(&restarted, &["restarted"]);
    let (pid, _) = podman.only_container("restarted");
    assert!(send_signal(pid, Signal::KILL));
    wait_until("another container runs", || {
        let containers = podman.containers_of("restarted");
        let new = containers
            .first()
            .and_then(|container| container["Pid"].as_u64());
        containers.len() == 1 && new.is_some_and(|new| new != 0 && new != u64::from(pid))
    });
    cluster.wait_for_state("restarted", "Running(Ok)");
}

// [stest->swdd~agent-existing-workloads-replace-updated~2]
#[test]
fn containers_survive_restarts_of_agent_and_server() {
    let podman = Podman::new();
    let mut cluster = Cluster::prepare_on(&podman);
    let both = format!(
        "{}{}",
        shell("web", PATIENT),
        shell("job", "exit 0")
            .split_once("workloads:\n")
            .expect("a map")
            .1
    );
    let file = cluster.start_with_manifest(&both);
    cluster.wait_for_state("web", "Running(Ok)");
    cluster.wait_for_state("job", "Succeeded(Ok)");
    let (web, job) = (podman.only_container("web"), podman.only_container("job").1);

    cluster.kill_agent("agent_A");
    cluster.wait_for_state("web", "AgentDisconnected");
    assert!(is_alive(web.0));
    cluster.start_agent("agent_A");
    cluster.wait_for_state("web", "Running(Ok)");
    cluster.wait_for_state("job", "Succeeded(Ok)");
    assert_eq!(podman.only_container("web"), web);
    assert_eq!(
        podman.only_container("job").1,
        job,
        "a finished one is started again, not made anew"
    );

    cluster.kill_server();
    cluster.start_server(&["-m", &file]);
    cluster.wait_for_state("web", "Running(Ok)");
    cluster.wait_for_state("job", "Succeeded(Ok)");
    assert_eq!(podman.only_container("web"), web);
}

#[test]
fn output_of_a_container_and_its_end_do_not_depend_on_the_agent() {
    let podman = Podman::new();
    let mut cluster = Cluster::start_on(&podman, &["agent_A"], "");
    cluster.apply(&shell(
        "job",
        "trap 'echo done; exit 7' TERM; while true; do sleep 0.1; done",
    ));
    cluster.wait_for_state("job", "Running(Ok)");
    cluster.kill_agent("agent_A");
    let (pid, _) = podman.only_container("job");
    let job = Identity::of(pid);
    // Until the shell has set its trap, the first process of a container gets no signal.
    wait_until("it ended", || {
        if job.is_alive() {
            send_signal(job.pid, Signal::TERM);
        }
        podman.containers_of("job")[0]["State"] == "exited"
    });
    assert_eq!(podman.containers_of("job")[0]["ExitCode"], 7);
    let (_, id) = podman.only_container("job");
    assert_eq!(podman.run(&["logs", &id]), "done\n");
}

#[test]
fn agent_killed_while_creating_leaves_one_container_each() {
    const ROUNDS: u64 = 3;
    const WORKLOADS: usize = 4;
    let podman = Podman::new();
    let mut cluster = Cluster::start_on(&podman, &["agent_A"], "");
    for round in 0..ROUNDS {
        let names: Vec<String> = (0..WORKLOADS).map(|number| format!("w{number}")).collect();
        let workloads = names.iter().map(|name| {
            let one = shell(name, &format!("R={round}; {PATIENT}"));
            one.split_once("workloads:\n")
                .expect("a manifest")
                .1
                .to_owned()
        });
        cluster.apply(&format!(
            "apiVersion: v1\nworkloads:\n{}",
            workloads.collect::<String>()
        ));
        // A create is under way, with or without a container yet.
        let pids = |cluster: &mut Cluster| children(cluster.agent("agent_A").pid());
        let mut listed = Vec::new();
        wait_until("podman creates", || {
            let is_create = |pid: &u32| {
                let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                let line = String::from_utf8_lossy(&line).into_owned();
                line.split('\0').any(|word| word == "run") && line.contains(&format!("R={round};"))
            };
            // A create that was too short to be seen has left its container.
            let command = format!("R={round};");
            let is_new = |one: &Value| one["Command"].to_string().contains(&command);
            let creates = pids(&mut cluster).iter().any(is_create);
            if !creates {
                listed = podman.containers();
            }
            creates || listed.iter().any(is_new)
        });
        cluster.kill_agent("agent_A");
        cluster.start_agent("agent_A");
        cluster.wait_for_all(WORKLOADS, "Running(Ok)");
        assert_eq!(
            podman.containers().len(),
            WORKLOADS,
            "round {round}: {:#?}",
            podman.containers()
        );
        for name in &names {
            assert!(
                is_alive(podman.only_container(name).0),
                "'{name}' in round {round}"
            );
        }
    }
}
