//! Modes of the vehicle with the real programs: the effect of a switch on containers, the right to
//! switch, a failure and the kill of a server, and the output of `ank`.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::cluster::ank_config;
use crate::support::control_client::{folder, tree};
use crate::support::manifest::Workload;
use crate::support::process::exit_code;
use crate::support::{
    Cluster, ControlClient, LIMIT, Recorder, connection, manifest, wait_until, workload,
};
use ankaios_lite::model::messages::{FromServer, RequestContent, ResponseContent, UpdateState};
use ankaios_lite::model::node::Node;
use ankaios_lite::wire::client::Service;

const MODES: &str = "mode_config = 'mode'";
const ITEM: &str = "desiredState.configs.mode";

/// A cluster of `agent_A` whose server has modes and this configuration.
fn cluster(config: &str) -> Cluster {
    let mut cluster = Cluster::prepare();
    cluster.server_config = format!("{MODES}\n{config}");
    cluster.start_all(&["agent_A"]);
    cluster
}

/// A manifest with a mode.
fn in_mode(mode: &str, workloads: &[Workload]) -> String {
    format!("{}configs: {{mode: {mode}}}\n", manifest(workloads))
}

fn of(modes: &str, name: &str) -> Workload {
    workload(name, "run").tagged("modes", modes)
}

/// What `ank get state` prints as the mode.
fn mode(cluster: &Cluster) -> String {
    let state = cluster.ank(&["get", "state", "-o", "json", ITEM]).stdout;
    let state: serde_json::Value = serde_json::from_str(&state).expect("the server responds");
    state["desiredState"]["configs"]["mode"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn new_mode(mode: &str) -> Node {
    tree(ITEM, Node::text(mode))
}

// [stest->swdd~server-modes-outside-is-not-scheduled~1]
// [stest->swdd~server-modes-switch~1]
#[test]
fn mode_switch_changes_only_workloads_of_either_mode() {
    let cluster = cluster("");
    let nav = of("drive", "nav");
    let map = of("drive", "map").after("nav", "ADD_COND_RUNNING");
    cluster.apply(&in_mode(
        "park",
        &[workload("base", "run"), of("park", "guard"), nav, map],
    ));
    cluster.wait_until_run(&["base", "guard"]);
    let row = cluster.workload("nav").expect("it is shown");
    assert_eq!(
        (row.state.as_str(), row.info.as_str()),
        ("NotScheduled", "not in mode 'park'")
    );
    let (base, calls) = (cluster.engine.only_container("base"), || {
        cluster
            .engine
            .calls()
            .iter()
            .filter(|call| call.command() != "ps" && call.mentions("base."))
            .count()
    });
    let calls_before = calls();

    let output = cluster.ank(&["mode", "drive"]).success();
    assert!(
        output.starts_with("Switched from mode 'park' to 'drive'.\n"),
        "{output}"
    );
    let states: Vec<(String, String)> = cluster
        .workloads()
        .into_iter()
        .map(|row| (row.name, row.state))
        .collect();
    let expected = [
        ("base", "Running(Ok)"),
        ("guard", "NotScheduled"),
        ("map", "Running(Ok)"),
        ("nav", "Running(Ok)"),
    ];
    assert_eq!(
        states,
        expected.map(|(name, state)| (name.to_owned(), state.to_owned())),
        "ank has waited for all"
    );
    assert!(cluster.engine.containers_of("guard").is_empty());
    assert_eq!(
        (cluster.engine.only_container("base"), calls()),
        (base, calls_before)
    );
    assert!(
        cluster
            .ank(&["mode", "drive"])
            .success()
            .starts_with("Mode 'drive' is set already.\n")
    );
}

#[test]
fn ank_shows_modes_and_refuses_unknown_ones() {
    let cluster = cluster("mode_on_failure = 'limp'");
    cluster.apply(&in_mode(
        "park",
        &[
            of("park drive", "nav"),
            of("park", "guard"),
            workload("base", "run"),
        ],
    ));
    let table = "MODE    CURRENT   WORKLOADS\ndrive             1        \nlimp              0        \n\
                 park    yes       2        \n";
    assert_eq!(cluster.ank(&["mode"]).success(), table);
    let json: serde_json::Value =
        serde_json::from_str(&cluster.ank(&["mode", "-o", "json"]).success()).expect("JSON");
    let expected = serde_json::json!({
        "configItem": "mode", "current": "park", "known": ["drive", "limp", "park"], "onFailure": "limp",
        "workloads": {"drive": 1, "limp": 0, "park": 2}
    });
    assert_eq!(json, expected);
    let output = cluster.ank(&["mode", "drve"]);
    assert_eq!(
        (output.code, output.stdout.as_str(), mode(&cluster).as_str()),
        (1, "", "park")
    );
    assert!(
        output.stderr.contains("Mode 'drve' is not known.")
            && output.stderr.contains("did you mean 'drive'?")
    );
    cluster
        .ank(&["mode", "--new", "off", "--no-wait"])
        .success();
    assert_eq!(mode(&cluster), "off");
    wait_until("the server warns", || {
        cluster.ank(&["get", "agents"]).code == 0
            && server_log(&cluster).contains("No workload names mode 'off'")
    });
    // A read gets this part only by its name.
    for masks in [&[][..], &["*"], &["desiredState"]] {
        let arguments = [&["get", "state"][..], masks].concat();
        assert!(
            !cluster.ank(&arguments).success().contains("configItem"),
            "{masks:?}"
        );
    }
    assert!(
        cluster
            .ank(&["get", "state", "modes"])
            .success()
            .contains("current: off")
    );
}

/// As the update over the air of one workload does, when the item is in its manifest.
// [stest->swdd~cli-switches-no-mode-by-accident~1]
#[test]
fn a_manifest_that_is_applied_again_does_not_switch_the_mode() {
    let cluster = cluster("");
    let nav = |image: &str| workload("nav", image).tagged("modes", "drive");
    let text = |mode: &str, image: &str| in_mode(mode, &[workload("base", "run"), nav(image)]);
    cluster
        .ank_with_input(&["apply", "-"], &text("park", "run"))
        .success();
    cluster.ank(&["mode", "drive"]).success();
    let before = cluster.engine.only_container("nav");
    let refusal = "This would switch the mode from 'drive' to 'park'.";

    cluster.write("park.yaml", &text("park", "run:latest"));
    let output = cluster.ank(&["apply", "park.yaml"]);
    assert!(
        output.code == 1 && output.stderr.contains(refusal),
        "{}",
        output.stderr
    );
    assert_eq!(
        (
            cluster.engine.only_container("nav"),
            mode(&cluster).as_str()
        ),
        (before, "drive"),
        "nothing was changed"
    );
    for arguments in [
        &["diff", "park.yaml"][..],
        &["apply", "--dry-run", "park.yaml"],
    ] {
        let output = cluster.ank(arguments);
        assert!(
            output.code == 6 && output.stderr.contains(refusal),
            "{}",
            output.stderr
        );
        assert!(
            output.stdout.contains("--- config mode\n")
                && output.stdout.contains("-drive\n+park\n"),
            "{}",
            output.stdout
        );
    }
    let output = cluster.ank(&["apply", "--keep-mode", "park.yaml"]);
    assert_eq!(
        (output.code, mode(&cluster).as_str()),
        (0, "drive"),
        "{}",
        output.stderr
    );
    assert_eq!(
        cluster.engine.containers_of("nav")[0]["Image"],
        "run:latest"
    );
    cluster
        .ank_with_input(&["apply", "-"], &text("drive", "run"))
        .success();

    cluster.write(
        "state.yaml",
        &format!(
            "desiredState:\n  {}",
            text("park", "run").replace('\n', "\n  ")
        ),
    );
    for mask in ["desiredState", "desiredState.configs", ITEM] {
        let output = cluster.ank(&["set", "state", mask, "state.yaml"]);
        assert!(
            output.code == 1 && output.stderr.contains(refusal),
            "{mask}: {}",
            output.stderr
        );
        let output = cluster.ank(&["set", "state", mask, "--keep-mode", "state.yaml"]);
        assert_eq!(
            (output.code, mode(&cluster).as_str()),
            (0, "drive"),
            "{mask}: {}",
            output.stderr
        );
    }
    assert_eq!(
        cluster
            .ank(&["apply", "--keep-mode", "--switch-mode", "park.yaml"])
            .code,
        2
    );
    cluster
        .ank(&["apply", "--switch-mode", "park.yaml"])
        .success();
    assert_eq!(mode(&cluster), "park");
    let drive = "desiredState: {apiVersion: v1, configs: {mode: drive}}";
    cluster
        .ank_with_input(&["set", "state", ITEM, "--switch-mode", "-"], drive)
        .success();
    assert_eq!(mode(&cluster), "drive");
    cluster.ank(&["apply", "-d", "park.yaml"]).success();
    assert_eq!(mode(&cluster), "");
}

fn server_log(cluster: &Cluster) -> String {
    cluster.server.as_ref().expect("it was started").stderr()
}

#[test]
fn what_needs_a_workload_outside_of_the_mode_is_not_waited_for() {
    let cluster = cluster("");
    let web = workload("web", "run").after("db", "ADD_COND_RUNNING");
    let text = in_mode("park", &[of("drive", "db"), of("park", "guard"), web]);
    let output = cluster.ank_with_input(&["apply", "-"], &text);
    let warning = "workload 'web' is in mode 'park' without 'db', which it needs";
    assert!(
        output.code == 0 && output.stderr.contains(warning),
        "{}",
        output.stderr
    );
    let row = cluster.workload("web").expect("it is shown");
    assert_eq!(row.state, "Pending(WaitingToStart)");
    assert_eq!(
        row.info,
        "waits for 'db' to run: it is NotScheduled (not in mode 'park')"
    );
    let graph = cluster.ank(&["graph", "--mode", "park"]).success();
    assert!(
        graph.contains("`-- db          running   no    agent_A   not in mode 'park'"),
        "{graph}"
    );
    cluster.ank(&["mode", "drive"]).success();
    cluster.wait_until_run(&["db", "web"]);
}

// [stest->swdd~server-modes-failure~1]
#[test]
fn failed_essential_workload_leads_to_the_failure_mode() {
    let cluster = cluster("mode_on_failure = 'limp'");
    let brake = of("drive limp", "brake").tagged("essential", "\"true\"");
    cluster.apply(&in_mode(
        "drive",
        &[brake, of("drive", "radio"), of("limp", "lamp")],
    ));
    cluster.wait_until_run(&["brake", "radio"]);
    cluster.engine.finish("brake", 3);
    cluster.wait_until_run(&["lamp"]);
    wait_until("the radio has ended", || {
        cluster.engine.containers_of("radio").is_empty()
    });
    assert_eq!(mode(&cluster), "limp");
    let cause = "Essential workload 'brake' failed: 'Failed(ExecFailed): 'Exit code: '3'''; switched from mode \
                 'drive' to 'limp'.";
    let output = cluster.ank(&["mode"]);
    assert!(
        output.code == 0 && output.stderr.contains(cause),
        "{}",
        output.stderr
    );
    assert!(
        server_log(&cluster)
            .lines()
            .any(|line| line.contains("ERROR") && line.contains(cause))
    );
    // Going back is the decision of a client, whatever the agent reports again.
    cluster.ank(&["mode", "drive", "--no-wait"]).success();
    cluster.wait_until_run(&["radio"]);
    assert_eq!(
        (
            cluster.ank(&["mode"]).stderr.as_str(),
            mode(&cluster).as_str()
        ),
        ("", "drive")
    );
}

// [itest->swdd~agent-keeps-observed-ends~1]
#[test]
fn removed_container_of_a_finished_essential_is_no_failure() {
    for runtime in ["podman", "containerd"] {
        let mut cluster = Cluster::prepare();
        cluster.engine.install_nerdctl();
        cluster.server_config = format!("{MODES}\nmode_on_failure = 'limp'");
        cluster.agent_config =
            format!("runtimes = ['{runtime}']\nrerun_finished = 'boot'\nlisting_interval = 1");
        cluster.start_all(&["agent_A"]);
        let once = workload("once", "exit0")
            .runtime(runtime)
            .tagged("essential", "\"true\"");
        cluster.apply(&in_mode(
            "drive",
            &[once, of("limp", "lamp").runtime(runtime)],
        ));
        cluster.wait_for_state("once", "Succeeded(Ok)");

        let recorder = Recorder::start(&cluster);
        cluster.engine.remove_ended("once");
        let before = cluster.engine.listings();
        wait_until("the agent has missed the container", || {
            cluster.engine.listings() >= before + 3
        });
        cluster.run(&[workload("later", "run")
            .runtime(runtime)
            .after("once", "ADD_COND_SUCCEEDED")]);
        assert_eq!(recorder.states_of("once"), [""; 0], "its result stays");
        assert_eq!(mode(&cluster), "drive");

        cluster.kill_agent("agent_A");
        cluster.wait_for_state("once", "AgentDisconnected");
        cluster.start_agent("agent_A");
        cluster.wait_until_run(&["later"]);
        cluster.wait_for_state("once", "Succeeded(Ok)");
        assert_eq!(mode(&cluster), "drive");
        assert_eq!(
            cluster.engine.calls_of("run", "").len(),
            2,
            "nothing runs again in the same boot"
        );
        let ended = || {
            walk(&cluster.run_folder())
                .iter()
                .filter(|path| path.ends_with("ended"))
                .count()
        };
        assert_eq!(ended(), 1, "only for what has ended");
        cluster.remove("later");
        cluster.remove("once");
        assert_eq!(ended(), 0);
    }
}

/// All files below a folder.
fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(walk(&path))
        } else {
            files.push(path)
        }
    }
    files
}

#[test]
fn a_workload_with_the_right_to_write_the_item_switches() {
    let cluster = cluster("");
    let keeper = workload("keeper", "run").allow("Write", ITEM);
    cluster.apply(&in_mode("park", &[keeper, of("drive", "nav")]));
    cluster.wait_until_run(&["keeper"]);
    let mut client = ControlClient::connect(&folder(&cluster, "agent_A", "keeper"));
    let denied = client.update(
        "1",
        tree("desiredState.configs.other", Node::text("x")),
        &["desiredState.configs.other"],
    );
    assert!(matches!(denied, ResponseContent::Error(_)), "{denied:?}");
    let accepted = client.update("2", new_mode("drive"), &[ITEM]);
    assert!(
        matches!(&accepted, ResponseContent::UpdateStateSuccess { added, .. } if added.len() == 1),
        "{accepted:?}"
    );
    cluster.wait_until_run(&["nav"]);
}

// [stest->swdd~cli-modes-need-a-server-with-modes~1]
#[test]
fn a_server_without_modes_gets_no_workload_that_names_one() {
    let cluster = Cluster::start(&["agent_A"]);
    let text = in_mode(
        "park",
        &[
            of("drive", "nav"),
            of("park", "map"),
            workload("base", "run"),
        ],
    );
    let output = cluster.ank_with_input(&["apply", "-"], &text);
    let refusal =
        "Workloads with the tag 'modes' ('map', 'nav') would all run: this server has no modes.";
    assert!(
        output.code == 1 && output.stderr.contains(refusal),
        "{}",
        output.stderr
    );
    assert!(cluster.workloads().is_empty());
    let run = [
        "run",
        "workload",
        "nav",
        "--runtime",
        "podman",
        "--config",
        "image: run",
        "--agent",
        "agent_A",
    ];
    let output = cluster.ank(&[&run[..], &["--tags", "modes=drive"]].concat());
    assert!(
        output.code == 1 && output.stderr.contains("('nav') would all run"),
        "{}",
        output.stderr
    );
    let output = cluster.ank(&["mode", "park"]);
    assert!(
        output.code == 1 && output.stderr.contains("This server has no modes."),
        "{}",
        output.stderr
    );
    assert!(
        output
            .stderr
            .contains("hint: set 'mode_config' in ank-server.conf"),
        "{}",
        output.stderr
    );
    let output = cluster.ank_with_input(&["apply", "--ignore-modes", "-"], &text);
    assert_eq!(output.code, 0, "{}", output.stderr);
    cluster.wait_until_run(&["base", "map", "nav"]);
    let config = cluster.write("ignore.conf", &(ank_config() + "ignore_modes = true\n"));
    let mut command = cluster.bare_ank_command();
    command
        .args(["-k", "--server-url", &cluster.url(), "--ank-config"])
        .arg(config)
        .args(["apply", "-"]);
    assert_eq!(cluster.finish(command, &text).code, 0);
    let output = cluster.ank_with_input(&["apply", "-d", "-"], &text);
    assert_eq!(
        output.code, 0,
        "deleting them needs no modes: {}",
        output.stderr
    );
}

// [stest->swdd~server-modes-are-checked~1]
#[test]
fn state_that_modes_do_not_allow_ends_the_start() {
    let mut cluster = Cluster::prepare();
    let state = cluster.folder().join("state");
    cluster.server_config = format!("state_dir = '{}'", state.display());
    cluster.start_server(&[]);
    let text = manifest(&[of("'a,b'", "nav")]);
    cluster
        .ank_with_input(&["--no-wait", "apply", "--ignore-modes", "-"], &text)
        .success();
    wait_until("it is stored", || {
        std::fs::read_to_string(state.join("desired-state.json"))
            .is_ok_and(|text| text.contains("a,b"))
    });
    cluster.kill_server();
    cluster.server_config.push_str(&format!("\n{MODES}"));
    let mut server = cluster.spawn_server(&[]);
    assert_eq!(exit_code(server.wait(LIMIT).expect("it ends")), 1);
    let text =
        "Unsupported mode 'a,b' in tag 'modes' of workload 'nav'; blanks separate modes. Only a-z";
    assert!(
        server
            .stderr()
            .contains("cannot start with the stored state")
            && server.stderr().contains(text)
    );
    cluster.server_config = MODES.to_owned();
    let path = cluster
        .write("bad.yaml", &manifest(&[of("drive", "nav")]))
        .display()
        .to_string();
    let mut server = cluster.spawn_server(&["-m", &path]);
    assert_eq!(exit_code(server.wait(LIMIT).expect("it ends")), 1);
    let text = "server error: Resulting State is invalid, reason: 'Workload 'nav' has the tag 'modes', but config item \
                'mode' does not exist' (startup manifest '";
    assert!(server.stderr().contains(text), "{}", server.stderr());
}

/// A write may be lost with the server that has just accepted it, and no earlier one.
#[test]
fn killed_server_keeps_the_last_mode_or_the_one_before() {
    let mut cluster = Cluster::prepare();
    let state = cluster.folder().join("state");
    cluster.server_config = format!("{MODES}\nstate_dir = '{}'", state.display());
    cluster.start_server(&[]);
    cluster.apply(&in_mode("m0", &[of("m0", "nav").on("nobody")]));
    wait_until("it is stored", || state.join("desired-state.json").exists());
    let mut before = "m0".to_owned();
    for number in 1..=100_u64 {
        let next = format!("m{number}");
        let (mut sender, mut receiver, _hangup) =
            connection::commander(&cluster.url(), Service::Command);
        let update = UpdateState {
            new_state: Some(Ok(new_mode(&next))),
            masks: vec![ITEM.to_owned()],
            ..Default::default()
        };
        connection::request(&mut sender, "switch", RequestContent::UpdateState(update));
        if !number.is_multiple_of(4) {
            let accepted = receiver.receive().expect("the server responds");
            let FromServer::Response(response) = accepted else {
                panic!("{accepted:?}")
            };
            assert!(
                matches!(response.content, ResponseContent::UpdateStateSuccess { .. }),
                "{response:?}"
            );
        }
        std::thread::sleep(Duration::from_micros(number % 10 * 300));
        cluster.kill_server();
        cluster.start_server(&[]);
        let now = mode(&cluster);
        assert!(
            [&before, &next].contains(&&now),
            "it was {before}, {next} was set, it is {now}"
        );
        before = now;
    }
}
