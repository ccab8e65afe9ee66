//! What happens to containers of real podman behind the agent's back, and what users see of it;
//! logs of containers.
//!
//! Thread: the test's. Owns: per test one cluster and one podman store (support/podman.rs).

use crate::store::{GREEDY, PATIENT, Podman, shell, shells};
use crate::support::log_client::everything;
use crate::support::process::{
    Identity, Process, children, is_alive, process_state, send_signal, write_program,
};
use crate::support::{Cluster, LogClient, Recorder, SmallDisk, wait_until};
use ankaios_lite::model::messages::{LogsRequest, ResponseContent};
use rustix::process::Signal;
use std::fs;
use std::path::Path;

/// A change without an event will be seen soon.
const SOON: &str = "listing_interval = 2";

// [stest->swdd~agent-reports-kills-out-of-memory~1]
#[test]
fn workload_that_exceeds_its_memory_limit_says_so() {
    let _ = fs::remove_file("oom"); // An earlier version has left it.
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], "");
    // runc itself needs up to 14 MB in the control group while it starts the container.
    let limit = "[\"--memory=64m\", \"--stop-timeout\"";
    cluster.apply(&shell("greedy", GREEDY).replace("[\"--stop-timeout\"", limit));
    let row = cluster.wait_for_row("greedy", "has failed", |row| {
        row.state == "Failed(ExecFailed)"
    });
    assert_eq!(row.info, "Exit code: '137', out of memory (limit 64 MiB)");
    let state = cluster.ank(&["get", "state", "-o", "json", "workloadStates"]);
    assert!(
        state.stdout.contains("\"OUT_OF_MEMORY\""),
        "{}",
        state.stdout
    );
    // A kill by hand is none, also after one that was.
    cluster.apply(&shell("patient", PATIENT));
    cluster.wait_for_state("patient", "Running(Ok)");
    podman.run(&["kill", &podman.only_container("patient").1]);
    let row = cluster.wait_for_row("patient", "has failed", |row| {
        row.state == "Failed(ExecFailed)"
    });
    assert_eq!(row.info, "Exit code: '137'");
    // Where the monitor of podman would leave its note otherwise.
    assert!(!Path::new("oom").exists(), "in the folder of the agent");
}

#[test]
fn a_container_without_a_log_is_an_error_of_ank_logs() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], "");
    let drivers = ["none", "passthrough"];
    for driver in drivers {
        let option = format!("[\"--log-driver={driver}\", \"--stop-timeout\"");
        cluster.apply(
            &shell(driver, &format!("echo hello; {PATIENT}"))
                .replace("[\"--stop-timeout\"", &option),
        );
    }
    cluster.wait_until_run(&drivers);
    for driver in drivers {
        for arguments in [&["logs", driver][..], &["logs", "-f", driver]] {
            let output = cluster.ank(arguments);
            assert_eq!((output.code, &*output.stdout), (1, ""), "{arguments:?}");
            let begin = format!("error: no logs of workload '{driver}' on agent 'agent_A': ");
            assert!(
                output.stderr.starts_with(&begin)
                    && output
                        .stderr
                        .contains(&format!("using the '{driver}' log driver")),
                "{}",
                output.stderr
            );
        }
        cluster.remove(driver);
    }
}

#[test]
fn logs_of_podman_have_times_and_can_be_limited_by_them() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], "");
    cluster.apply(&shell("job", &format!("echo hello; {PATIENT}")));
    cluster.wait_until_run(&["job"]);
    cluster.wait_for("the line is in the log", || {
        (cluster.ank(&["logs", "job"]).stdout == "hello\n").then_some(())
    });
    let line = cluster
        .ank(&["logs", "--timestamps", "-n", "1", "job"])
        .success();
    let (time, text) = line.split_once(' ').expect("a time and the text");
    assert!(text == "hello\n" && time.starts_with("20"), "{line}");
    for (option, expected) in [
        (["--since", "1d"], "hello\n"),
        (["--until", "1d"], ""),
        (["--since", "2000-01-01T00:00:00Z"], "hello\n"),
    ] {
        let arguments = ["logs", option[0], option[1], "job"];
        assert_eq!(cluster.ank(&arguments).success(), expected, "{option:?}");
    }
}

#[test]
fn what_podman_restarts_itself_is_soon_shown_to_run_again() {
    let podman = Podman::new();
    // So rarely that only the ends of the container lead to a listing.
    let cluster = Cluster::start_on(&podman, &["agent_A"], "listing_interval = 3600");
    let shared = cluster.folder().join("shared");
    fs::create_dir(&shared).expect("own folder is writable");
    let third =
        format!("if [ $(wc -l </shared/starts) -lt 3 ]; then sleep 0.3; exit 7; fi; {PATIENT}");
    let options = format!(
        "[\"--restart=on-failure:5\", \"--volume={}:/shared\"",
        shared.display()
    );
    let manifest = shell("web", &format!("echo >>/shared/starts; {third}"));
    let manifest = manifest.replace("[\"--stop-timeout\", \"1\"", &options);
    let applied = cluster.ank_with_input(&["--no-wait", "apply", "-"], &manifest);
    assert_eq!(
        (
            applied.code,
            applied
                .stderr
                .contains("by '--restart on-failure:5' the engine")
        ),
        (0, true)
    );
    let starts = || {
        fs::read_to_string(shared.join("starts"))
            .unwrap_or_default()
            .lines()
            .count()
    };
    wait_until("podman has restarted it twice", || starts() == 3);
    cluster.wait_for_state("web", "Running(Ok)");
    cluster.remove("web");
}

/// Stops `agent` while no call of the engine is on its way, which would go on and tell it later
/// what it has seen.
fn stop_between_calls(agent: &Process) {
    agent.signal(Signal::STOP);
    wait_until("the agent is stopped", || {
        process_state(agent.pid()) == Some('T')
    });
    wait_until("its calls of the engine have ended", || {
        let mut calls = children(agent.pid());
        calls.retain(|call| is_alive(*call) && !follows_events(*call));
        calls.is_empty()
    });
}

/// Whether this call of the engine tells what happens until it is ended.
fn follows_events(call: u32) -> bool {
    let arguments = fs::read(format!("/proc/{call}/cmdline")).unwrap_or_default();
    arguments
        .split(|byte| *byte == 0)
        .any(|argument| argument == b"events")
}

/// The names of four workloads of this kind.
fn four(kind: &str) -> Vec<String> {
    (0..4).map(|number| format!("{kind}{number}")).collect()
}

/// The process and the id of the container of each workload of this kind.
fn processes_of_four(podman: &Podman, kind: &str) -> Vec<(Identity, String)> {
    let mut processes = Vec::new();
    for name in four(kind) {
        let (pid, id) = podman.only_container(&name);
        processes.push((Identity::of(pid), id));
    }
    processes
}

/// Waits until all four workloads of this kind are in a state.
fn wait_for_four(cluster: &Cluster, kind: &str, state: &str, info: &str) {
    cluster.wait_for(&format!("'{kind}' are {state}"), || {
        let mut rows = cluster.workloads();
        rows.retain(|row| row.name.starts_with(kind) && row.state == state && row.info == info);
        (rows.len() == 4).then_some(())
    });
}

#[test]
fn twenty_workloads_show_their_states_after_each_change() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A", "agent_B"], SOON);
    let kinds = ["killed", "paused", "removed", "updated", "moved"];
    let mut all = Vec::new();
    for kind in kinds {
        all.extend(four(kind));
    }
    cluster.apply(&shells("agent_A", &all, PATIENT));
    for kind in kinds {
        wait_for_four(&cluster, kind, "Running(Ok)", "");
    }
    assert_eq!(podman.containers().len(), 20);
    let updated = processes_of_four(&podman, "updated");
    let moved = processes_of_four(&podman, "moved");

    // First kill, pause and remove containers.
    for (process, _) in processes_of_four(&podman, "killed") {
        assert!(send_signal(process.pid, Signal::KILL));
    }
    for (_, id) in processes_of_four(&podman, "paused") {
        podman.pause(&id);
    }
    let removed = processes_of_four(&podman, "removed");
    let mut remove = vec!["rm", "--force", "--time=0"];
    for (_, id) in &removed {
        remove.push(id);
    }
    // Between the end of a container and its removal the agent could see its exit code.
    stop_between_calls(&cluster.agents["agent_A"]);
    podman.run(&remove);
    cluster.agents["agent_A"].signal(Signal::CONT);
    let killed_info = "Exit code: '137'";
    wait_for_four(&cluster, "killed", "Failed(ExecFailed)", killed_info);
    wait_for_four(&cluster, "paused", "Failed(Unknown)", "paused");
    wait_for_four(&cluster, "removed", "Failed(Lost)", "");
    wait_for_four(&cluster, "updated", "Running(Ok)", "");

    // Then update and move workloads.
    let changed = format!("A=1; {PATIENT}");
    cluster.apply(&shells("agent_A", &four("updated"), &changed));
    cluster.apply(&shells("agent_B", &four("moved"), PATIENT));
    for (kind, old) in [("updated", updated), ("moved", moved)] {
        wait_until(&format!("'{kind}' were replaced"), || {
            let mut containers = Vec::new();
            for name in four(kind) {
                containers.extend(podman.containers_of(&name));
            }
            let mut ids = old.iter();
            containers.len() == 4
                && ids.all(|(_, id)| containers.iter().all(|one| one["Id"] != **id))
        });
        assert!(old.iter().all(|(process, _)| !process.is_alive()));
        wait_for_four(&cluster, kind, "Running(Ok)", "");
    }
    for row in cluster.workloads() {
        assert!(!row.name.starts_with("moved") || row.agent == "agent_B");
    }

    // Finally delete all.
    let mut delete = vec!["--no-wait", "delete", "workload"];
    delete.extend(all.iter().map(String::as_str));
    assert_eq!(cluster.ank(&delete).code, 0);
    cluster.wait_for("all are gone", || {
        cluster.workloads().is_empty().then_some(())
    });
    assert_eq!(podman.containers().len(), 0);
}

#[test]
fn container_stopped_and_started_by_others_is_followed() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], SOON);
    cluster.apply_until_run(&shell("web", PATIENT), &["web"]);
    let (_, id) = podman.only_container("web");
    podman.pause(&id);
    cluster.wait_for_state("web", "Failed(Unknown)");
    podman.run(&["unpause", &id]);
    cluster.wait_for_state("web", "Running(Ok)");
    // It has no process then.
    podman.run(&["stop", &id]);
    cluster.wait_for_state("web", "Succeeded(Ok)");
    podman.run(&["start", &id]);
    cluster.wait_for_state("web", "Running(Ok)");
    let (pid, same) = podman.only_container("web");
    assert_eq!(same, id);
    assert!(send_signal(pid, Signal::KILL));
    cluster.wait_for_state("web", "Failed(ExecFailed)");
}

#[test]
fn created_container_waits_for_its_start() {
    let podman = Podman::new();
    let mut cluster = Cluster::start_on(&podman, &["agent_A"], SOON);
    cluster.apply_until_run(&shell("web", PATIENT), &["web"]);
    let container = podman.containers_of("web").remove(0);
    let labels = ["name", "agent"].map(|key| {
        format!(
            "--label={key}={}",
            container["Labels"][key].as_str().unwrap()
        )
    });
    let name = container["Names"][0].as_str().unwrap();
    cluster.kill_agent("agent_A");
    cluster.wait_for_state("web", "AgentDisconnected");
    // What an agent leaves that was killed between the creation of a container and its start.
    podman.run(&["rm", "--force", "--time=0", name]);
    podman.run(&[
        "create",
        "--name",
        name,
        &labels[0],
        &labels[1],
        "alpine:latest",
        "true",
    ]);
    cluster.start_agent("agent_A");
    cluster.wait_for_state("web", "Running(Ok)");
    let (pid, id) = podman.only_container("web");
    assert!(is_alive(pid) && container["Id"] != *id);
}

#[test]
fn logs_keep_their_order_and_follow_the_options() {
    let podman = Podman::new();
    let mut cluster = Cluster::start_on(&podman, &["agent_A"], SOON);
    let recorder = Recorder::start(&cluster);
    // The engine's monitor reads both outputs at once, so that a line has an order only if the one
    // before is in the log.
    let next = cluster.folder().join("next");
    std::fs::create_dir(&next).expect("own folder is writable");
    let wait = |line: &str| format!("until [ -e /next/{line} ]; do sleep 0.1; done");
    let script = format!(
        "echo 1; {}; echo 2 >&2; {}; echo 3; {}; echo 4 >&2; {}; echo 5; exit 7",
        wait("2"),
        wait("3"),
        wait("4"),
        wait("5")
    );
    let volume = format!("commandOptions: [\"--volume={}:/next\", ", next.display());
    cluster.apply(&shell("job", &script).replace("commandOptions: [", &volume));
    cluster.wait_for_state("job", "Running(Ok)");
    let (_, id) = podman.only_container("job");
    for line in 1..5 {
        wait_until("the line is in the log", || {
            podman.logs(&id).lines().count() == line
        });
        std::fs::write(next.join((line + 1).to_string()), "").expect("own folder is writable");
    }
    cluster.apply(&shell("web", &format!("echo begun; {PATIENT}")));
    cluster.wait_for_state("job", "Failed(ExecFailed)");
    cluster.wait_for_state("web", "Running(Ok)");
    let (job, web) = (recorder.instance("job"), recorder.instance("web"));
    let mut client = LogClient::new(&cluster);
    let all = || everything(&job);
    let (future, past) = (
        Some("2100-01-01T00:00:00Z".to_owned()),
        Some("2000-01-01T00:00:00Z".to_owned()),
    );
    for (wanted, expected) in [
        (all(), &["1", "2", "3", "4", "5"][..]),
        (
            LogsRequest {
                follow: Some(true),
                ..all()
            },
            &["1", "2", "3", "4", "5"],
        ),
        (
            LogsRequest {
                tail: Some(2),
                ..all()
            },
            &["4", "5"],
        ),
        (
            LogsRequest {
                tail: Some(-1),
                ..all()
            },
            &["1", "2", "3", "4", "5"],
        ),
        (
            LogsRequest {
                since: past.clone(),
                until: future.clone(),
                ..all()
            },
            &["1", "2", "3", "4", "5"],
        ),
        (
            LogsRequest {
                since: future,
                ..all()
            },
            &[],
        ),
        (
            LogsRequest {
                until: past,
                ..all()
            },
            &[],
        ),
    ] {
        assert_eq!(client.read_all(wanted.clone()), expected, "{wanted:?}");
    }
    let bad = client.read_all(LogsRequest {
        since: Some("yesterday evening".into()),
        ..all()
    });
    assert!(
        bad.iter().any(|line| line.contains("yesterday evening")),
        "{bad:?}"
    );

    let agent = cluster.agent("agent_A").pid();
    client.request(
        "follow",
        LogsRequest {
            follow: Some(true),
            ..everything(&web)
        },
    );
    client.accepted("follow");
    assert_eq!(client.lines("follow"), ["begun"]);
    // A listing may still run.
    wait_until("only the log is being read", || children(agent).len() == 1);
    let mut other = LogClient::new(&cluster);
    other.request(
        "cancelled",
        LogsRequest {
            follow: Some(true),
            ..everything(&web)
        },
    );
    other.accepted("cancelled");
    assert_eq!(other.lines("cancelled"), ["begun"]);
    other.cancel("cancelled");
    assert_eq!(
        other.next(),
        ("cancelled".to_owned(), ResponseContent::LogsCancelAccepted)
    );
    let (pid, _) = podman.only_container("web");
    assert!(send_signal(pid, Signal::TERM));
    assert_eq!(
        client.next(),
        ("follow".to_owned(), ResponseContent::LogsStop(web))
    );
    cluster.wait_for_state("web", "Succeeded(Ok)");
    wait_until("no process that reads logs is left", || {
        children(agent).is_empty()
    });
}

/// Stands before podman: with a file `miss` no `run` says the pid of its container, so a listing
/// follows, and the first one misses everything. Every process in a listing has the pid that is in
/// the file `pid`.
const WRAPPER: &str = r#"#!/bin/sh
here=$(dirname "$0")
case " $* " in
*" ps "*)
    if rm "$here/hide" 2>/dev/null; then : >"$here/missed"; echo '[]'; exit 0; fi
    if [ -e "$here/pid" ]; then podman_path "$@" | sed "s/\"Pid\": [1-9][0-9]*/\"Pid\": $(cat "$here/pid")/"; exit 0; fi
    ;;
esac
podman_path "$@"
code=$?
case " $* " in
*" run "*)
    if [ -e "$here/miss" ]; then
        : >"$here/hide"
        for word; do case $word in --pidfile=*) rm -f "${word#*=}" ;; esac; done
    fi
    ;;
esac
exit "$code"
"#;

/// A cluster of `agent_A`, which calls podman through the wrapper in the folder that is answered.
fn behind_a_wrapper(podman: &Podman) -> (Cluster, std::path::PathBuf) {
    let mut cluster = Cluster::prepare_on(podman);
    let folder = cluster.folder().join("wrapper");
    std::fs::create_dir(&folder).expect("own folder is writable");
    let path = std::env::var("PATH").expect("PATH is set");
    let program = path
        .split(':')
        .map(|one| std::path::Path::new(one).join("podman"))
        .find(|file| file.is_file());
    let program = program.expect("podman is installed");
    write_program(
        &folder.join("podman"),
        &WRAPPER.replace("podman_path", &program.to_string_lossy()),
    );
    let mut environment = podman.environment();
    environment.push(("PATH".to_owned(), format!("{}:{path}", folder.display())));
    cluster.agent_env = environment;
    cluster.start_all(&["agent_A"]);
    (cluster, folder)
}

#[test]
fn listing_without_a_fresh_container_does_not_lose_it() {
    let podman = Podman::new();
    let (cluster, wrapper) = behind_a_wrapper(&podman);
    std::fs::write(wrapper.join("miss"), "").expect("own folder is writable");
    let recorder = Recorder::start(&cluster);
    cluster.apply(&shell("web", PATIENT));
    assert_eq!(
        recorder.states_until("web", "Running(Ok)"),
        ["Pending(Starting)", "Running(Ok)"]
    );
    assert!(wrapper.join("missed").exists(), "a listing missed it");
    assert_eq!(podman.containers_of("web").len(), 1);
}

#[test]
fn reused_pid_says_nothing_about_the_container() {
    let podman = Podman::new();
    let (cluster, wrapper) = behind_a_wrapper(&podman);
    let mut other = std::process::Command::new("sleep")
        .arg("600")
        .spawn()
        .expect("sleep starts");
    std::fs::write(wrapper.join("pid"), other.id().to_string()).expect("own folder is writable");
    let recorder = Recorder::start(&cluster);
    cluster.apply_until_run(&shell("web", PATIENT), &["web"]);
    other.kill().expect("it is our child");
    other.wait().expect("it is our child");
    // A listing, which comes every second where nothing else tells, is what ends this.
    let (pid, _) = podman.only_container("web");
    assert!(send_signal(pid, Signal::KILL));
    let states = recorder.states_until("web", "Failed(ExecFailed)");
    assert_eq!(
        states,
        ["Pending(Starting)", "Running(Ok)", "Failed(ExecFailed)"]
    );
    assert_eq!(
        cluster.workload("web").map(|row| row.info).as_deref(),
        Some("Exit code: '137'")
    );
}

#[test]
fn full_run_folder_is_named_and_left_behind_once_there_is_room() {
    let podman = Podman::new();
    let mut cluster = Cluster::prepare_on(&podman);
    let Some(disk) = SmallDisk::mount(&cluster.run_folder(), 512) else {
        return;
    };
    cluster.start_all(&["agent_A"]);
    disk.fill();
    cluster.apply(&shell("plain", PATIENT));
    let file = format!(
        "    files: [{{mountPoint: /etc/x, data: \"{}\"}}]\n    runtime:",
        "x".repeat(9_000)
    );
    cluster.apply(&shell("file", PATIENT).replacen("    runtime:", &file, 1));
    cluster.wait_for_row("file", "it names the cause", |row| {
        row.info.contains("No space left on device")
    });
    cluster.wait_until_run(&["plain"]);
    disk.clear();
    cluster.wait_until_run(&["plain", "file"]);
    ["plain", "file"]
        .iter()
        .for_each(|name| cluster.remove(name));
    assert_eq!(podman.containers().len(), 0);
}

/// The file in which a workload with [`with_shared_folder`] counts its runs.
const RUNS: &str = "runs";

/// The shell workload with this folder as `/shared`.
fn with_shared_folder(manifest: &str, folder: &Path) -> String {
    let option = format!(
        "[\"--volume={}:/shared\", \"--stop-timeout\"",
        folder.display()
    );
    manifest.replacen("[\"--stop-timeout\"", &option, 1)
}

/// Makes what the agent has noted a note of another boot, as a reboot does.
fn reboot_in_notes(run_folder: &Path) {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("Linux tells the boot");
    let other = "00000000-0000-4000-8000-000000000000";
    let instances = fs::read_dir(run_folder.join("agent_A_io"))
        .expect("the agent has made it")
        .flatten();
    let notes = instances.flat_map(|instance| {
        fs::read_dir(instance.path())
            .into_iter()
            .flatten()
            .flatten()
    });
    let mut changed = 0;
    for note in notes {
        let Ok(text) = fs::read_to_string(note.path()) else {
            continue;
        };
        if text.contains(boot.trim()) {
            fs::write(note.path(), text.replace(boot.trim(), other)).expect("own file");
            changed += 1;
        }
    }
    assert!(changed > 0, "it is noted in which boot it ran");
}

// [stest->swdd~agent-tells-boots-apart-by-id~1]
#[test]
fn finished_workload_runs_again_after_a_boot_only() {
    let podman = Podman::new();
    let mut cluster = Cluster::prepare_on(&podman);
    cluster.agent_config = "rerun_finished = 'boot'".to_owned();
    let shared = cluster.folder().join("shared");
    fs::create_dir(&shared).expect("own folder is writable");
    let runs = || {
        fs::read_to_string(shared.join(RUNS))
            .unwrap_or_default()
            .lines()
            .count()
    };
    let job = with_shared_folder(&shell("job", &format!("echo x >>/shared/{RUNS}")), &shared);
    cluster.start_with_manifest(&job);
    cluster.wait_for_state("job", "Succeeded(Ok)");
    assert_eq!(runs(), 1);
    for (reboots, expected) in [(false, 1), (true, 2), (false, 2)] {
        cluster.kill_agent("agent_A");
        cluster.wait_for_state("job", "AgentDisconnected");
        if reboots {
            reboot_in_notes(&cluster.run_folder());
        }
        cluster.start_agent("agent_A");
        cluster.wait_for_state("job", "Succeeded(Ok)");
        assert_eq!(runs(), expected, "after another boot: {reboots}");
    }
}

/// The log is read without a wait: the workload is still pending, or runs, or has ended.
#[test]
fn logs_right_after_an_apply_have_all_lines() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], "");
    let pod = "apiVersion: v1\nworkloads:\n  pods:\n    agent: agent_A\n    runtime: podman-kube\n    runtimeConfig: |\n      \
               manifest: |\n        apiVersion: v1\n        kind: Pod\n        metadata: {name: pods}\n        spec:\n          \
               hostNetwork: true\n          restartPolicy: Never\n          containers:\n          - {name: main, image: \
               'alpine:latest', command: [sh, -c, 'echo one; sleep 1; echo two']}\n";
    for (name, text) in [
        ("job", shell("job", "echo one; sleep 1; echo two").as_str()),
        ("pods", pod),
    ] {
        for follow in [true, false] {
            cluster.apply(text);
            let arguments = if follow {
                vec!["logs", "-f", name]
            } else {
                vec!["logs", name]
            };
            let output = cluster.ank(&arguments);
            assert_eq!(output.code, 0, "{arguments:?}: {}", output.stderr);
            let expected: &[&str] = if follow {
                &["one\ntwo\n"]
            } else {
                &["", "one\n", "one\ntwo\n"]
            };
            assert!(
                expected.contains(&output.stdout.as_str()),
                "{arguments:?}: {}",
                output.stdout
            );
            cluster.remove(name);
        }
    }
}

/// As `podman container prune` in a cron job does.
// [stest->swdd~agent-keeps-observed-ends~1]
#[test]
fn pruned_container_of_a_finished_workload_changes_no_state() {
    let podman = Podman::new();
    let mut cluster = Cluster::prepare_on(&podman);
    cluster.server_config = "mode_config = 'mode'\nmode_on_failure = 'limp'".to_owned();
    cluster.agent_config = format!("rerun_finished = 'boot'\n{SOON}");
    cluster.start_all(&["agent_A"]);
    let essential = |name: &str, command: &str, more: &str| {
        let text = shell(name, command).replacen("    runtime:", &format!("{more}    runtime:"), 1);
        text.replacen(
            "    runtime:",
            "    tags: {essential: \"true\"}\n    runtime:",
            1,
        )
    };
    let policy = "    restartPolicy: ON_FAILURE\n";
    cluster.apply(&format!(
        "{}configs: {{mode: drive}}\n",
        essential("once", "true", policy)
    ));
    cluster.apply(&shell("broken", "exit 3"));
    let expect = |cluster: &Cluster| {
        cluster.wait_for_state("once", "Succeeded(Ok)");
        let row = cluster.wait_for_state("broken", "Failed(ExecFailed)");
        assert_eq!(row.info, "Exit code: '3'");
    };
    expect(&cluster);

    let recorder = Recorder::start(&cluster);
    podman.run(&["container", "prune", "--force"]);
    assert_eq!(podman.containers().len(), 0);
    // The start and the end of each make listings.
    for number in 0..3 {
        let needs =
            "    dependencies: {once: ADD_COND_SUCCEEDED, broken: ADD_COND_FAILED}\n    runtime:";
        let name = format!("later{number}");
        cluster.apply(&shell(&name, "true").replacen("    runtime:", needs, 1));
        cluster.wait_for_state(&name, "Succeeded(Ok)");
    }
    expect(&cluster);
    assert_eq!(
        (recorder.states_of("once"), recorder.states_of("broken")),
        (vec![], vec![])
    );
    podman.run(&["container", "prune", "--force"]);

    cluster.kill_agent("agent_A");
    cluster.wait_for_state("once", "AgentDisconnected");
    cluster.start_agent("agent_A");
    expect(&cluster);
    cluster.wait_for_state("later2", "Succeeded(Ok)");
    assert_eq!(podman.containers().len(), 0, "nothing runs again");
    let mode = cluster
        .ank(&["get", "state", "-o", "json", "desiredState.configs.mode"])
        .success();
    assert!(mode.contains("\"drive\""), "{mode}");
    for name in ["later0", "later1", "later2", "broken", "once"] {
        cluster.remove(name);
    }
}

#[test]
fn a_container_that_removes_itself_is_lost_however_it_ended() {
    let podman = Podman::new();
    let cluster = Cluster::start_on(&podman, &["agent_A"], SOON);
    let recorder = Recorder::start(&cluster);
    let names: Vec<String> = (0..4).map(|number| format!("w{number}")).collect();
    let text = shells("agent_A", &names, "sleep 1")
        .replace("commandOptions: [", "commandOptions: [--rm, ");
    cluster.apply(&text);
    for name in &names {
        cluster.wait_for_state(name, "Failed(Lost)");
        let states = recorder.states_until(name, "Failed(Lost)");
        let ends =
            |state: &&String| state.starts_with("Succeeded") || state.starts_with("Failed(Exec");
        assert_eq!(states.iter().find(ends), None, "{states:?}");
    }
    wait_until("all are gone", || podman.containers().is_empty());
    for name in &names {
        cluster.wait_for_state(name, "Failed(Lost)");
    }
}

/// Podman's listing has all labels of all containers, so it would have 18 MB here.
#[test]
fn sixteen_megabytes_of_labels_hid_all_workloads() {
    let podman = Podman::new();
    let label = |number: usize| {
        [
            "--change".to_owned(),
            format!("LABEL large{number}={}", "y".repeat(120_000)),
        ]
    };
    let labels: Vec<String> = (0..10).flat_map(label).collect();
    let mut import: Vec<&str> = vec!["import", "--quiet", "--change", "CMD /bin/sh"];
    import.extend(labels.iter().map(String::as_str));
    let archive = podman.image_archive();
    import.extend([archive.as_str(), "docker.io/library/large:latest"]);
    podman.run(&import);
    for number in 0..15 {
        let name = format!("large{number}");
        podman.run(&[
            "create",
            "--name",
            &name,
            "--label=agent=agent_A",
            "--label=name=\u{e9}\"\n\\",
            "large",
        ]);
    }
    let cluster = Cluster::start_on(&podman, &["agent_A"], SOON);
    cluster.apply_until_run(&shell("web", PATIENT), &["web"]);
    let (pid, _) = podman.only_container("web");
    assert!(send_signal(pid, Signal::KILL));
    cluster.wait_for_state("web", "Failed(ExecFailed)");
}
