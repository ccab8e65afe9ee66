//! Mutating hooks of a real server: good ones, refusing ones, broken ones; the server always goes
//! on.
//!
//! Thread: the test's. Owns: one cluster per test.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use crate::support::process::{Identity, exit_code};
use crate::support::{Cluster, LIMIT, manifest, wait_until, workload};
use ankaios_lite::model::messages::{AddedWorkload, WorkloadPlan};
use ankaios_lite::model::workload::Workload;
use ankaios_lite::wire::hooks::{read_plan, write_plan};
use rustix::process::Signal;

/// A cluster that is not started yet, with these hooks in this order: name, seconds it may run,
/// lines of shell.
fn prepared(hooks: &[(&str, u32, &str)]) -> Cluster {
    let mut cluster = Cluster::prepare();
    let folder = cluster.folder().join("hooks");
    fs::create_dir(&folder).expect("own folder is writable");
    let mut config = String::new();
    for (name, timeout_s, script) in hooks {
        fs::write(folder.join(format!("{name}.script")), script).expect("own folder is writable");
        // A link, since a file that is written while another test forks cannot be executed.
        let program = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/src/server/mutating_hooks/hook.sh"
        );
        symlink(program, folder.join(name)).expect("own folder is writable");
        let path = folder.display();
        writeln!(
            config,
            "[[mutating_hooks]]\nname = '{name}'\npath = '{path}'\ntimeout_s = {timeout_s}"
        )
        .expect("writing to a String cannot fail");
    }
    cluster.server_config = config.clone();
    cluster
}

fn started(hooks: &[(&str, u32, &str)]) -> Cluster {
    let mut cluster = prepared(hooks);
    cluster.start_server(&[]);
    cluster
}

fn hook_file(cluster: &Cluster, name: &str) -> String {
    cluster
        .folder()
        .join("hooks")
        .join(name)
        .display()
        .to_string()
}

/// A hook that never ends and ignores SIGTERM; it writes its pid.
const HANGS: &str =
    "echo $$ >$0.pid.new; mv $0.pid.new $0.pid; trap '' TERM; while :; do sleep 600; done";

/// The pid of the running hook `hang`.
fn pid_of_hang(cluster: &Cluster) -> u32 {
    let path = hook_file(cluster, "hang.pid");
    wait_until("the hook runs", || Path::new(&path).exists());
    fs::read_to_string(&path)
        .expect("it is there")
        .trim()
        .parse()
        .expect("a pid")
}

/// The names of the workloads that users asked for.
fn desired(cluster: &Cluster) -> Vec<String> {
    let state = cluster
        .ank(&["get", "state", "-o", "json", "desiredState.workloads"])
        .stdout;
    let state: serde_json::Value = serde_json::from_str(&state).expect("the server answers");
    state["desiredState"]["workloads"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, _)| name.clone())
        .collect()
}

/// Applies a workload named `web`, which hooks refuse. Answers the error; nothing has changed and
/// the server answers.
#[track_caller]
fn refused(cluster: &Cluster) -> String {
    let output = cluster.ank_with_input(
        &["--no-wait", "apply", "-"],
        &manifest(&[workload("web", "run")]),
    );
    assert_eq!(
        (output.code, output.stdout.as_str()),
        (1, ""),
        "{}",
        output.stderr
    );
    assert_eq!(desired(cluster), [""; 0]);
    output.stderr
}

#[test]
fn hooks_that_accept_see_the_startup_manifest_and_updates() {
    let mut cluster = prepared(&[("a", 60, "tee $0.$$"), ("b", 60, "cat; echo noise >&2")]);
    cluster.start_with_manifest(&manifest(&[workload("first", "run")]));
    cluster.wait_for_state("first", "Running(Ok)");
    cluster.apply(&manifest(&[
        workload("first", "run"),
        workload("second", "run"),
    ]));
    cluster.wait_for_state("second", "Running(Ok)");
    let inputs: Vec<WorkloadPlan> = fs::read_dir(cluster.folder().join("hooks"))
        .expect("own folder")
        .flatten()
        .filter(|file| {
            file.path()
                .extension()
                .is_some_and(|end| end.to_string_lossy().parse::<u32>().is_ok())
        })
        .map(|file| read_plan(&fs::read(file.path()).expect("own file")).expect("an update"))
        .collect();
    let mut names: Vec<&str> = inputs
        .iter()
        .flat_map(|plan| &plan.added)
        .map(|added| &*added.instance.workload)
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["first", "second"], "each change is shown once");
}

#[test]
fn a_hook_may_move_a_workload_to_another_agent() {
    let mut cluster = prepared(&[("move", 60, "cat >/dev/null; cat $0.out")]);
    let moved = Arc::new(Workload::new("agent_B", "podman", "image: run"));
    let plan = WorkloadPlan {
        added: vec![AddedWorkload {
            instance: moved.instance_name("web"),
            workload: moved,
        }],
        deleted: vec![],
    };
    fs::write(hook_file(&cluster, "move.out"), write_plan(&plan)).expect("own folder is writable");
    cluster.start_all(&["agent_A"]);
    cluster.start_agent("agent_B");
    cluster.wait_for_agents(&["agent_A", "agent_B"]);
    cluster.apply(&manifest(&[workload("web", "run")]));
    let row = cluster.wait_for_state("web", "Running(Ok)");
    assert_eq!(row.agent, "agent_B");
    // And it is deleted from there.
    fs::write(hook_file(&cluster, "move.script"), "cat").expect("own folder is writable");
    cluster.remove("web");
}

#[test]
fn a_veto_refuses_an_update_and_a_start() {
    let mut cluster = started(&[("no", 60, "cat >/dev/null; echo not today >&2; exit 1")]);
    let error = refused(&cluster);
    let reason = "Hook 'no' rejected the change: not today";
    assert!(
        error.contains(&format!(
            "Update rejected by mutating hook 'no': '{reason}'"
        )),
        "{error}"
    );
    cluster.kill_server();
    let startup = cluster.write("startup.yaml", &manifest(&[workload("first", "run")]));
    let mut server = cluster.spawn_server(&[
        "--startup-manifest",
        startup.to_str().expect("a plain name"),
    ]);
    let status = server.wait(LIMIT).expect("the server ends");
    let log = server.stderr();
    assert_eq!(exit_code(status), 1, "{log}");
    assert!(
        log.contains(&format!(
            "server error: Mutating hook 'no' vetoed the state change: '{reason}' (startup manifest '"
        )),
        "{log}"
    );
}

#[test]
fn broken_hooks_refuse_updates_and_the_server_goes_on() {
    for (timeout_s, script, expected) in [
        (600, "kill -SEGV $$", "it ended with signal: 11"),
        (1, HANGS, "did not end within 1s and was ended"),
    ] {
        let cluster = started(&[("hook", timeout_s, script)]);
        let error = refused(&cluster);
        assert!(error.contains(expected), "{script}: {error}");
    }
}

#[test]
fn others_are_served_while_a_hook_hangs() {
    let mut cluster = prepared(&[(
        "wait",
        60,
        "echo $$ >$0.pid.new; mv $0.pid.new $0.pid; read line <$0.go; cat",
    )]);
    let go = hook_file(&cluster, "wait.go");
    rustix::fs::mkfifoat(rustix::fs::CWD, &go, rustix::fs::Mode::RWXU)
        .expect("own folder is writable");
    cluster.start_all(&["agent_A"]);
    // The agent is greeted before the update comes, its states and the reads below go on while it
    // waits.
    cluster.wait_for_agents(&["agent_A"]);
    let text = cluster.write("web.yaml", &manifest(&[workload("web", "run")]));
    let mut apply =
        cluster.start_ank(&["--no-wait", "apply", text.to_str().expect("a plain name")]);
    wait_until("the hook runs", || {
        Path::new(&hook_file(&cluster, "wait.pid")).exists()
    });
    assert_eq!(desired(&cluster), [""; 0]);
    cluster.start_agent("agent_B");
    cluster.wait_for_agents(&["agent_A", "agent_B"]);
    assert!(apply.is_running());
    fs::write(&go, "go\n").expect("the hook waits for it");
    let status = apply.wait(LIMIT).expect("the update is answered");
    assert_eq!(exit_code(status), 0, "{}", apply.stderr());
    cluster.wait_for_state("web", "Running(Ok)");
}

#[test]
fn a_server_that_ends_ends_its_hook() {
    let mut cluster = started(&[("hang", 600, HANGS)]);
    let text = cluster.write("web.yaml", &manifest(&[workload("web", "run")]));
    let _apply = cluster.start_ank(&["--no-wait", "apply", text.to_str().expect("a plain name")]);
    let hook = Identity::of(pid_of_hang(&cluster));
    cluster.server().signal(Signal::TERM);
    let status = cluster.server().wait(LIMIT).expect("the server ends");
    assert_eq!(exit_code(status), 0);
    wait_until("the hook is gone", || !hook.is_alive());
}

#[test]
fn signal_during_a_startup_hook_ends_the_server_in_order() {
    for signal in [Signal::TERM, Signal::INT] {
        let cluster = prepared(&[("hang", 600, HANGS)]);
        let startup = cluster.write("startup.yaml", &manifest(&[workload("first", "run")]));
        let mut server = cluster.spawn_server(&[
            "-m",
            startup.to_str().expect("temp folders have plain names"),
        ]);
        let hook = Identity::of(pid_of_hang(&cluster));
        server.signal(signal);
        let status = server.wait(LIMIT).expect("the server ends");
        assert_eq!(exit_code(status), 0, "{}", server.stderr());
        assert!(
            server.stderr().contains("Stopping because of SIG"),
            "{}",
            server.stderr()
        );
        assert!(!server.stderr().contains("error"), "{}", server.stderr());
        wait_until("the hook is gone", || !hook.is_alive());
    }
}
