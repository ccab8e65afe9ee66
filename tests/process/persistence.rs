//! The desired state survives the server when `state_dir` is set, whenever the server is killed.
//!
//! Thread: the test's. Owns: one cluster per test.

use std::fs;
use std::path::PathBuf;

use crate::support::process::exit_code;
use crate::support::{Cluster, LIMIT, manifest, wait_until, workload};
use rustix::process::Signal;

/// A cluster that is not started yet, whose server keeps its state.
fn prepared() -> Cluster {
    let mut cluster = Cluster::prepare();
    let folder = cluster.folder().join("state");
    cluster.server_config = format!("state_dir = '{}'", folder.display());
    cluster
}

fn file(cluster: &Cluster, name: &str) -> PathBuf {
    cluster.folder().join("state").join(name)
}

fn stored(cluster: &Cluster) -> String {
    fs::read_to_string(file(cluster, "desired-state.json")).unwrap_or_default()
}

/// A startup manifest with one workload; the arguments that name it.
fn startup(cluster: &Cluster) -> [String; 2] {
    let path = cluster.write("startup.yaml", &manifest(&[workload("startup", "run")]));
    ["--startup-manifest".to_owned(), path.display().to_string()]
}

fn start(cluster: &mut Cluster, arguments: &[String]) {
    cluster.start_server(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
}

/// The names of the workloads that users asked for.
fn desired(cluster: &Cluster) -> Vec<String> {
    let state = cluster.ank(&["get", "state", "-o", "json", "desiredState.workloads"]).stdout;
    let state: serde_json::Value = serde_json::from_str(&state).expect("the server answers");
    state["desiredState"]["workloads"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect()
}

#[test]
fn the_stored_state_replaces_the_startup_manifest() {
    let mut cluster = prepared();
    let arguments = startup(&cluster);
    start(&mut cluster, &arguments);
    assert_eq!(stored(&cluster), "", "a manifest is on the disk already");
    cluster.apply(&manifest(&[workload("applied", "run")]));
    cluster.delete("startup");
    // The end of the server waits for the last write.
    cluster.server().signal(Signal::TERM);
    let status = cluster.server().wait(LIMIT).expect("the server ends");
    assert_eq!(exit_code(status), 0);
    start(&mut cluster, &arguments);
    assert_eq!(desired(&cluster), ["applied"]);
    // An agent gets its workloads as if nothing had happened.
    cluster.start_agent("agent_A");
    cluster.wait_for_state("applied", "Running(Ok)");
}

#[test]
fn without_a_folder_nothing_is_stored() {
    let mut cluster = Cluster::start(&[]);
    cluster.apply(&manifest(&[workload("applied", "run")]));
    cluster.kill_server();
    cluster.start_server(&[]);
    assert_eq!(desired(&cluster), [""; 0]);
}

/// A cluster whose server stored an update and was killed, and the arguments that it was started with.
fn killed_with_a_stored_state() -> (Cluster, [String; 2]) {
    let mut cluster = prepared();
    let arguments = startup(&cluster);
    start(&mut cluster, &arguments);
    cluster.apply(&manifest(&[workload("applied", "run")]));
    wait_until("the state is stored", || stored(&cluster).contains("applied"));
    cluster.kill_server();
    (cluster, arguments)
}

#[test]
fn a_damaged_file_is_set_aside_and_the_manifest_counts() {
    let (mut cluster, arguments) = killed_with_a_stored_state();
    let damaged = stored(&cluster).replace("applied", "appl1ed");
    fs::write(file(&cluster, "desired-state.json"), &damaged).expect("own folder is writable");
    start(&mut cluster, &arguments);
    assert_eq!(desired(&cluster), ["startup"]);
    let aside = file(&cluster, "desired-state.json.damaged");
    assert_eq!(fs::read_to_string(&aside).expect("it was set aside"), damaged);
    let log = cluster.server().stderr();
    let error = log.lines().find(|line| line.contains("cannot be used: its checksum is wrong"));
    assert!(error.is_some_and(|line| line.contains("ERROR") && line.contains(&aside.display().to_string())), "{log}");
}

/// A hook that spoils the state must not make the server forget it: agents would delete all workloads.
#[test]
fn a_stored_state_that_is_refused_at_the_start_ends_it_and_is_kept() {
    let (mut cluster, arguments) = killed_with_a_stored_state();
    let kept = stored(&cluster);
    let state = cluster.folder().join("state");
    let hook = "[[mutating_hooks]]\nname = 'base64'\npath = '/usr/bin'"; // Its output is no plan.
    cluster.server_config = format!("state_dir = '{}'\n{hook}", state.display());
    let mut server = cluster.spawn_server(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(exit_code(server.wait(LIMIT).expect("the server ends")), 1);
    let (said, path) = (server.stderr(), file(&cluster, "desired-state.json"));
    assert!(
        said.contains(&path.display().to_string()) && said.contains("hook 'base64'") && said.contains("move"),
        "{said}"
    );
    assert_eq!(stored(&cluster), kept);
    assert!(!file(&cluster, "desired-state.json.damaged").exists());
}

#[test]
fn a_folder_that_cannot_be_used_ends_the_start() {
    let cluster = prepared();
    cluster.write("state", "a file");
    let mut server = cluster.spawn_server(&[]);
    let status = server.wait(LIMIT).expect("the server ends");
    assert_eq!(exit_code(status), 1);
    assert!(server.stderr().contains("server error: 'cannot use state_dir '"), "{}", server.stderr());
}

#[test]
fn a_second_server_of_a_folder_ends_with_an_error_and_leaves_what_is_stored() {
    let mut cluster = prepared();
    start(&mut cluster, &[]);
    cluster.apply(&manifest(&[workload("applied", "run")]));
    wait_until("it is stored", || stored(&cluster).contains("applied"));
    let kept = stored(&cluster);
    let mut rival = cluster.spawn_server(&["--address", "127.0.0.1:0"]);
    assert_eq!(rival.wait(LIMIT).map(exit_code), Some(1), "{}", rival.stderr());
    assert!(rival.stderr().contains("': another server uses it. End that one"), "{}", rival.stderr());
    assert_eq!((stored(&cluster), desired(&cluster)), (kept, vec!["applied".to_owned()]));
}

/// Kills the server again and again while updates come. After each kill the file is whole, holds a state that was
/// asked for and is not older than what was stored before; the next server starts with exactly that.
#[test]
fn a_server_killed_at_any_moment_starts_with_a_whole_state() {
    let mut cluster = prepared();
    // Large enough for a write to take a while.
    let padding = "x".repeat(300_000);
    let number_in = |text: &str| -> Option<u32> {
        let (_, rest) = text.split_once("number: ")?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    let (mut next, mut acknowledged, mut last_stored) = (0_u32, None, None);
    for round in 0..12 {
        cluster.start_server(&[]);
        let state = cluster.ank(&["get", "state", "-o", "json", "desiredState.workloads"]).stdout;
        assert_eq!(number_in(&state), last_stored, "round {round}");
        let mut manifest_of = |cluster: &Cluster| {
            next += 1;
            let web = workload("web", "run").config(&format!("number: {next}")).config(&format!("padding: {padding}"));
            (next, cluster.write(&format!("{next}.yaml"), &manifest(&[web])))
        };
        for _ in 0..round % 3 + 1 {
            let (number, path) = manifest_of(&cluster);
            cluster.ank(&["--no-wait", "apply", &path.display().to_string()]).success();
            acknowledged = Some(number);
        }
        if round % 4 == 3 {
            // What was acknowledged and written is never lost again.
            wait_until("the state is stored", || number_in(&stored(&cluster)) == acknowledged);
            last_stored = acknowledged;
        }
        // One more is under way when the server is killed.
        let (_, path) = manifest_of(&cluster);
        let mut apply = cluster.start_ank(&["--no-wait", "apply", &path.display().to_string()]);
        for _ in 0..round * 20_000 {
            std::hint::spin_loop();
        }
        cluster.kill_server();
        apply.kill();
        let found = number_in(&stored(&cluster));
        assert!(found >= last_stored && found <= Some(next), "{found:?} after {last_stored:?}, round {round}");
        last_stored = found;
        assert!(!file(&cluster, "desired-state.json.damaged").exists());
    }
    assert!(last_stored.is_some());
}
