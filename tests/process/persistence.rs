//! The desired state survives the server when `state_dir` is set, whenever the server is killed.
//!
//! Thread: the test's. Owns: one cluster per test.

use std::fs;
use std::path::PathBuf;

use crate::support::process::exit_code;
use crate::support::{Cluster, LIMIT, manifest, wait_until, workload};
use ankaios_lite::server::state_store;
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

/// A cluster whose server stored an update and was killed, and the arguments that it was started
/// with.
fn killed_with_a_stored_state() -> (Cluster, [String; 2]) {
    let mut cluster = prepared();
    let arguments = startup(&cluster);
    start(&mut cluster, &arguments);
    cluster.apply(&manifest(&[workload("applied", "run")]));
    wait_until("the state is stored", || {
        stored(&cluster).contains("applied")
    });
    cluster.kill_server();
    (cluster, arguments)
}

fn damage(cluster: &Cluster, name: &str) {
    let path = file(cluster, name);
    let damaged = fs::read_to_string(&path)
        .expect("it was stored")
        .replace("applied", "appl1ed");
    fs::write(path, damaged).expect("own folder is writable");
}

/// The warnings of `ank get state`.
fn warnings(cluster: &Cluster) -> Vec<String> {
    let said = cluster.ank(&["get", "state"]).stderr;
    said.lines().map(str::to_owned).collect()
}

/// Two states are stored: with the workload `applied`, and with `newest` as well. The server was
/// killed, the agent runs on.
fn killed_with_two_stored_states() -> Cluster {
    let mut cluster = prepared();
    cluster.start_all(&["agent_A"]);
    for name in ["applied", "newest"] {
        cluster.run(&[workload(name, "run")]);
        wait_until("the state is stored", || {
            stored(&cluster).contains(&format!("\"{name}\""))
        });
    }
    cluster.kill_server();
    cluster
}

// [stest->swdd~server-keeps-two-states~1]
#[test]
fn a_newest_state_that_is_damaged_costs_only_the_newest_update() {
    let mut cluster = killed_with_two_stored_states();
    let kept = cluster.engine.only_container("applied");
    damage(&cluster, "desired-state.json");
    cluster.start_server(&[]);
    assert_eq!(desired(&cluster), ["applied"]);
    let [warning] = &warnings(&cluster)[..] else {
        panic!("{:?}", warnings(&cluster))
    };
    assert!(
        warning.contains("its checksum is wrong")
            && warning.contains("the last update may be lost"),
        "{warning}"
    );
    let log = cluster.server().stderr();
    assert_eq!(
        log.lines()
            .filter(|line| line.contains("the last update may be lost"))
            .count(),
        1,
        "{log}"
    );
    assert!(file(&cluster, "desired-state.json.damaged").exists());
    cluster.wait_until_gone("newest");
    assert_eq!(cluster.engine.only_container("applied"), kept);
    // The warning is about this state, until an update was stored.
    cluster.kill_server();
    cluster.start_server(&[]);
    assert_eq!(
        (desired(&cluster), warnings(&cluster)),
        (vec!["applied".to_owned()], vec![warning.clone()])
    );
    let corrected = cluster.write("corrected.yaml", &manifest(&[workload("corrected", "run")]));
    assert_eq!(
        cluster
            .ank(&["--no-wait", "apply", &corrected.display().to_string()])
            .code,
        0
    );
    wait_until("the update is stored and ends the warning", || {
        warnings(&cluster).is_empty()
    });
    assert!(stored(&cluster).contains("corrected"));
    cluster.kill_server();
    cluster.start_server(&[]);
    assert_eq!(warnings(&cluster), [""; 0]);
}

// [stest->swdd~server-keeps-two-states~1]
#[test]
fn server_without_readable_state_does_not_start() {
    let mut cluster = killed_with_two_stored_states();
    let running = ["applied", "newest"].map(|name| cluster.engine.only_container(name));
    let kept = stored(&cluster);
    ["desired-state.json", "desired-state.json.previous"]
        .iter()
        .for_each(|name| damage(&cluster, name));
    let damaged = stored(&cluster);
    let arguments = startup(&cluster);
    let mut server =
        cluster.spawn_server(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(server.wait(LIMIT).map(exit_code), Some(1));
    let said = server.stderr();
    assert!(
        said.contains("desired-state.json")
            && said.contains("backup")
            && said.contains("move both away"),
        "{said}"
    );
    assert_eq!(stored(&cluster), damaged, "it stays to be inspected");
    // As it says.
    fs::write(file(&cluster, "desired-state.json"), kept).expect("own folder is writable");
    cluster.start_server(&[]);
    cluster.wait_for_agents(&["agent_A"]);
    cluster.wait_for_all(2, "Running(Ok)");
    assert_eq!(
        ["applied", "newest"].map(|name| cluster.engine.only_container(name)),
        running
    );
}

/// A hook that spoils the state must not make the server forget it: agents would delete all
/// workloads.
#[test]
fn refused_stored_state_ends_the_start_and_is_kept() {
    let (mut cluster, arguments) = killed_with_a_stored_state();
    let kept = stored(&cluster);
    let state = cluster.folder().join("state");
    let hook = "[[mutating_hooks]]\nname = 'base64'\npath = '/usr/bin'"; // Its output is no plan.
    cluster.server_config = format!("state_dir = '{}'\n{hook}", state.display());
    let mut server =
        cluster.spawn_server(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(exit_code(server.wait(LIMIT).expect("the server ends")), 1);
    let (said, path) = (server.stderr(), file(&cluster, "desired-state.json"));
    assert!(
        said.contains(&path.display().to_string())
            && said.contains("hook 'base64'")
            && said.contains("hint: remove the cause, or move"),
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
    let expected = format!(
        " ERROR] server error: cannot use state_dir '{}': File exists (os error 17)\n    \
         hint: it or a part of its path is a file: move that away, or name another folder with 'state_dir' in the config \
         file\n",
        cluster.folder().join("state").display()
    );
    let said = server.stderr();
    assert!(said.ends_with(&expected), "{said}");
    assert!(!said.contains("WARN"), "the cause is named once: {said}");
}

#[test]
fn second_server_of_a_state_dir_ends_and_leaves_it_alone() {
    let mut cluster = prepared();
    start(&mut cluster, &[]);
    cluster.apply(&manifest(&[workload("applied", "run")]));
    wait_until("it is stored", || stored(&cluster).contains("applied"));
    let kept = stored(&cluster);
    let mut rival = cluster.spawn_server(&["--address", "127.0.0.1:0"]);
    assert_eq!(
        rival.wait(LIMIT).map(exit_code),
        Some(1),
        "{}",
        rival.stderr()
    );
    assert!(
        rival
            .stderr()
            .contains("': another server uses it\n    hint: end that one"),
        "{}",
        rival.stderr()
    );
    assert_eq!(
        (stored(&cluster), desired(&cluster)),
        (kept, vec!["applied".to_owned()])
    );
}

/// The number that [`a_server_killed_at_any_moment_starts_with_a_whole_state`] has put into a
/// state.
fn number_in(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once("number: ")?;
    rest.split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

/// The state from which the next server starts.
struct LeftState {
    number: Option<u32>,
    /// Whether a newer state is lost, of which the server warns.
    is_loss: bool,
}

/// Damages the newest state as a loss of power may do. Returns the state that is left.
fn lose_power(cluster: &Cluster, round: usize) -> LeftState {
    let path = file(cluster, "desired-state.json");
    let newest = fs::read(&path).expect("it was stored");
    let previous = fs::read(file(cluster, "desired-state.json.previous"));
    let previous = previous.expect("the one before is kept");
    let left = match round % 4 {
        0 => newest,
        1 => newest[..newest.len() / 2].to_vec(),
        2 => vec![0; newest.len()],
        _ => previous.clone(),
    };
    fs::write(&path, &left).expect("own folder is writable");
    // A server that was killed between a write and its renames has left a whole newer file.
    let new = fs::read(file(cluster, "desired-state.json.new")).unwrap_or_default();
    for bytes in [&new, &left] {
        let text = String::from_utf8_lossy(bytes);
        if state_store::parse(&text).is_ok() {
            return LeftState {
                number: number_in(&text),
                is_loss: false,
            };
        }
    }
    LeftState {
        number: number_in(&String::from_utf8_lossy(&previous)),
        is_loss: true,
    }
}

/// Writes a manifest whose only workload has this number. It is large enough for a write of the
/// state to take a while.
fn write_update(cluster: &Cluster, number: u32) -> String {
    let padding = "x".repeat(100_000);
    let config = format!("commandArgs: ['number: {number}', {padding}]");
    let web = workload("web", "run").config(&config);
    let path = cluster.write("next.yaml", &manifest(&[web]));
    path.display().to_string()
}

/// The number in the newest state that can be read.
fn number_of_newest(cluster: &Cluster) -> Option<u32> {
    for name in ["desired-state.json.new", "desired-state.json"] {
        if let Ok(text) = fs::read_to_string(file(cluster, name))
            && state_store::parse(&text).is_ok()
        {
            return number_in(&text);
        }
    }
    None
}

/// Kills the server a hundred times while updates come. After each kill the file is whole, and holds
/// a requested state that is not older than the one stored before; the next server starts with
/// exactly that. If the newest file is damaged as well, only that state is lost.
#[test]
fn a_server_killed_at_any_moment_starts_with_a_whole_state() {
    let mut cluster = prepared();

    let mut next = 0_u32;
    let mut acknowledged = None;
    let mut last_stored = None;
    let mut is_warned = false; // A warning stays until an update was stored.
    let mut damages = 0;
    for round in 0..100 {
        cluster.start_server(&[]);
        let output = cluster.ank(&["get", "state", "-o", "json", "desiredState.workloads"]);
        assert_eq!(number_in(&output.stdout), last_stored, "round {round}");
        assert_eq!(
            output.stderr.lines().count(),
            usize::from(is_warned),
            "round {round}: {}",
            output.stderr
        );
        for _ in 0..round % 3 + 1 {
            next += 1;
            let path = write_update(&cluster, next);
            let output = cluster.ank(&["--no-wait", "apply", &path]);
            assert_eq!(output.code, 0, "round {round}: {}", output.stderr);
            acknowledged = Some(next);
        }
        let before = last_stored;
        if round % 4 == 3 {
            // An acknowledged and written state is never lost again.
            wait_until("the state is stored", || {
                number_in(&stored(&cluster)) == acknowledged
            });
            last_stored = acknowledged;
        }
        // One more is under way when the server is killed.
        next += 1;
        let path = write_update(&cluster, next);
        let mut apply = cluster.start_ank(&["--no-wait", "apply", &path]);
        for _ in 0..round % 12 * 20_000 {
            std::hint::spin_loop();
        }
        cluster.kill_server();
        apply.kill();
        let found = number_of_newest(&cluster);
        assert!(
            found >= last_stored && found <= Some(next),
            "{found:?} after {last_stored:?}, round {round}"
        );
        is_warned &= found == before;
        last_stored = found;
        // Two were written since the start, so one of them or the state of the start is there when
        // the newest is lost.
        if found > before && before.is_some() && file(&cluster, "desired-state.json").exists() {
            let left = lose_power(&cluster, round / 3);
            last_stored = left.number;
            is_warned = left.is_loss;
            damages += usize::from(is_warned);
            assert!(
                last_stored >= before,
                "{last_stored:?} after {before:?}, round {round}"
            );
        }
    }
    assert!(
        last_stored.is_some() && damages > 10,
        "{damages} of the newest states were damaged"
    );
}

/// The table of the last changes, without their times.
fn last_changes(cluster: &Cluster, names: &[&str]) -> Vec<String> {
    let words = [&["get", "events", "--since", "1d"], names].concat();
    let table = cluster.ank(&words).success();
    let mut changes = Vec::new();
    for line in table.lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        changes.push(words.join(" "));
    }
    changes
}

// [stest->swdd~server-keeps-last-changes~1]
// [stest->swdd~cli-shows-last-changes~1]
#[test]
fn last_changes_are_kept_over_a_kill_of_the_server() {
    let mut cluster = Cluster::prepare();
    let folder = cluster.folder().join("state");
    cluster.server_config = format!("state_dir = '{}'", folder.display());
    cluster.start_all(&["agent_A"]);
    cluster.apply(&manifest(&[
        workload("web", "run"),
        workload("job", "exit3"),
    ]));
    cluster.wait_for_state("web", "Running(Ok)");
    cluster.wait_for_state("job", "Failed(ExecFailed)");
    let of_job = last_changes(&cluster, &["job"]);
    assert_eq!(
        of_job.last().map(String::as_str),
        Some("agent_A job Failed(ExecFailed) Exit code: '3'")
    );
    let description = cluster.ank(&["describe", "job"]).success();
    assert!(
        description.contains("Z Failed(ExecFailed) Exit code: "),
        "{description}"
    );
    let before = last_changes(&cluster, &[]);
    assert_eq!(before[0], "ServerStarted");
    let file = folder.join("state-changes.jsonl");
    wait_until("all changes are in the file", || {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        text.lines().filter(|line| !line.is_empty()).count() == before.len()
    });
    cluster.kill_server();
    cluster.start_server(&[]);
    cluster.wait_for_agents(&["agent_A"]);
    cluster.wait_for_state("web", "Running(Ok)");
    let after = last_changes(&cluster, &[]);
    // The states that the agent reports again are no changes.
    let expected = [
        &before[..],
        &["ServerStarted".into(), "agent_A AgentConnected".into()],
    ]
    .concat();
    assert_eq!(after, expected);
}
