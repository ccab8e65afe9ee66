//! Prepared starts: which calls of the engine they take, what becomes of them, and what the next
//! agent does with them.
//!
//! Thread: the test's. Owns: one cluster with the fake engine per test.

use crate::support::log_client::everything;
use crate::support::manifest::{Workload, pod};
use crate::support::{Cluster, LogClient, Recorder, manifest, wait_until, workload};
use ankaios_lite::model::names::InstanceName;
use serde_json::json;
use std::fs;

/// No listing comes for its time alone.
pub const NO_REPAIR: &str = "listing_interval = 3600";

/// An agent that prepares so far, and `gate`, which runs and is not ready before it has its file.
fn start(level: &str) -> Cluster {
    let mut cluster = Cluster::prepare();
    cluster.agent_config = format!("prepare = \"{level}\"\n{NO_REPAIR}");
    cluster.start_all(&["agent_A"]);
    cluster
}

/// It runs when the gate is open.
fn gate(cluster: &Cluster) -> Workload {
    let file = cluster.folder().join("open");
    workload("gate", "run").config(&format!(
        "lifecycle: {{ ready: {{ file: {}, periodMs: 50, deadlineMs: 0 }} }}",
        file.display()
    ))
}

fn open(cluster: &Cluster) {
    cluster.write("open", "");
}

fn waiting(name: &str) -> Workload {
    workload(name, "run").after("gate", "ADD_COND_RUNNING")
}

/// Waits until the workload is shown with this info, behind which `ank` puts its conditions.
fn wait_for_info(cluster: &Cluster, name: &str, info: &str) {
    cluster.wait_for_row(name, info, |row| {
        let shown = row
            .info
            .split("waits for ")
            .next()
            .unwrap_or_default()
            .trim_end_matches("; ");
        row.state == "Pending(WaitingToStart)" && shown == info
    });
}

/// The calls that mention `text` or are about the container of `name`, without listings.
fn calls(cluster: &Cluster, name: &str) -> Vec<String> {
    let mut texts = vec![format!("{name}.")];
    for container in cluster.engine.containers_of(name) {
        texts.push(container["Id"].as_str().unwrap().to_owned());
    }
    let mut commands = Vec::new();
    for call in cluster.engine.calls() {
        let is_about = texts.iter().any(|text| call.mentions(text));
        if is_about && call.command() != "ps" {
            commands.push(call.command().to_owned());
        }
    }
    commands
}

// [itest->swdd~agent-prepares-starts~1]
#[test]
fn a_prepared_start_is_one_call_and_waiting_is_none() {
    for (level, steps, start_call) in [
        ("none", &[][..], "run"),
        ("image", &[], "run"),
        ("create", &["create"], "start"),
        ("init", &["create", "init"], "start"),
    ] {
        let cluster = start(level);
        let recorder = Recorder::start(&cluster);
        cluster.apply(&manifest(&[gate(&cluster), waiting("web")]));
        cluster.wait_for_row("gate", "probes", |row| row.info.starts_with("ready: "));
        let info = if level == "none" {
            String::new()
        } else {
            format!("prepared: {}", level.to_uppercase())
        };
        wait_for_info(&cluster, "web", &info);
        cluster.engine.wait_until_quiet();
        let before = calls(&cluster, "web");
        // The agent starts and ends others meanwhile, one after the other.
        for number in 0..3 {
            let other = format!("other_{number}");
            cluster.run(&[workload(&other, "run")]);
            cluster.remove(&other);
        }
        assert_eq!(
            calls(&cluster, "web"),
            before,
            "{level}: {}",
            cluster.engine.tail()
        );
        open(&cluster);
        cluster.wait_for_state("web", "Running(Ok)");
        assert_eq!(
            calls(&cluster, "web"),
            [steps, &[start_call]].concat(),
            "{level}"
        );
        let images = cluster
            .engine
            .calls()
            .iter()
            .filter(|call| call.command() == "image")
            .count();
        match level {
            "none" => assert_eq!(images, 0),
            "image" => assert_eq!(images, 1),
            // Until an agent has listed the containers, it gets the image only.
            _ => assert!(images <= 1, "{level}: {images}"),
        }
        let states = recorder.states_until("web", "Running(Ok)");
        assert_eq!(
            states,
            [
                "Pending(WaitingToStart)",
                "Pending(Starting)",
                "Running(Ok)"
            ],
            "{level}"
        );
    }
}

#[test]
fn a_create_has_the_arguments_of_the_run_that_it_stands_for() {
    let cluster = start("create");
    let web = waiting("web")
        .config("generalOptions: [--log-level=error]")
        .config("commandArgs: [a, b]");
    cluster.apply(&manifest(&[gate(&cluster), web]));
    wait_for_info(&cluster, "web", "prepared: CREATE");
    let create = cluster.engine.calls_of("create", "web.").remove(0).argv;
    open(&cluster);
    cluster.wait_for_state("web", "Running(Ok)");
    let start = cluster.engine.calls_of("start", "").remove(0).argv;
    assert_eq!(
        start,
        [
            "--log-level=error",
            "start",
            &cluster.engine.only_container("web").1
        ]
    );
    // The same without a preparation.
    cluster
        .engine
        .script(&json!([{ "command": "start", "exit": 125, "stderr": "Error: no" }]));
    let file = cluster.folder().join("open");
    fs::remove_file(&file).unwrap();
    cluster.remove("web");
    cluster.remove("gate");
    let web = waiting("web")
        .config("generalOptions: [--log-level=error]")
        .config("commandArgs: [a, b]");
    cluster.apply(&manifest(&[gate(&cluster), web]));
    wait_for_info(&cluster, "web", "prepared: CREATE");
    open(&cluster);
    cluster.wait_for_state("web", "Running(Ok)");
    let mut run = cluster.engine.calls_of("run", "web.").remove(0).argv;
    run.retain(|word| word != "--detach");
    run[1] = "create".to_owned();
    assert_eq!(create, run);
}

#[test]
fn images_are_pulled_only_when_they_are_missing() {
    let cluster = start("image");
    cluster.engine.script(&json!([
        { "command": "image exists", "image": "run:after=1ms", "exit": 1 },
        { "command": "image exists", "image": "run:after=2ms", "exit": 1 },
    ]));
    let of = |name: &str, image: &str| workload(name, image).after("gate", "ADD_COND_RUNNING");
    let pulled = of("pulled", "run:after=1ms")
        .config("commandOptions: [--arch=arm64, --rm, --tls-verify=false]");
    let never = of("never", "run:after=2ms").config("commandOptions: [--pull=never]");
    let kube = pod("kube", "run").after("gate", "ADD_COND_RUNNING");
    cluster.apply(&manifest(&[
        gate(&cluster),
        of("there", "run"),
        pulled,
        never,
        kube,
        of("missing", "nothing"),
    ]));
    for name in ["there", "pulled", "kube"] {
        wait_for_info(&cluster, name, "prepared: IMAGE");
    }
    let row = cluster.wait_for_row("never", "fails", |row| row.info.starts_with("prepare: "));
    assert!(
        row.info
            .starts_with("prepare: run:after=2ms: image not known, retry in "),
        "{row:?}"
    );
    let row = cluster.wait_for_row("missing", "fails", |row| row.info.starts_with("prepare: "));
    assert!(
        row.info
            .starts_with("prepare: Error: initializing source docker://nothing:latest: "),
        "{row:?}"
    );
    let pulls: Vec<Vec<String>> = cluster
        .engine
        .calls_of("pull", "run")
        .into_iter()
        .map(|call| call.argv)
        .collect();
    assert_eq!(
        pulls,
        [[
            "pull",
            "--arch=arm64",
            "--tls-verify=false",
            "run:after=1ms"
        ]]
    );
}

/// What options allow, as calls before the start and for it.
#[test]
fn each_reason_to_prepare_less_shows_in_the_calls() {
    let mut cluster = Cluster::prepare();
    cluster.agent_config = "prepare = \"init\"\nprepare_max = 1".to_owned();
    cluster.start_all(&["agent_A"]);
    let key = cluster.folder().join("key");
    let precondition = format!(
        "lifecycle: {{ precondition: {{ pathExists: {} }} }}",
        key.display()
    );
    let with =
        |name: &str, options: &str| waiting(name).config(&format!("commandOptions: ['{options}']"));
    let rows = [
        (with("pull", "--pull=always"), ""),
        (with("replace", "--replace"), "IMAGE"),
        (with("restart", "--restart=always"), "IMAGE"),
        (with("podded", "--pod=p"), "IMAGE"),
        (with("requires", "--requires=x"), "IMAGE"),
        (with("volumes", "--volumes-from=x"), "IMAGE"),
        (with("shares", "--network=container:x"), "IMAGE"),
        (with("secret", "--secret=x"), "IMAGE"),
        (with("id-file", "--cidfile=/x"), "IMAGE"),
        (with("ids", "--userns=auto"), "IMAGE"),
        (with("detached", "-d"), "IMAGE"),
        (with("port", "-p=80:80"), "CREATE"),
        (with("all-ports", "--publish-all"), "CREATE"),
        (with("address", "--ip=10.0.0.1"), "CREATE"),
        (with("mac", "--mac-address=0"), "CREATE"),
        (with("net-ip", "--network=a:ip=10.0.0.1"), "CREATE"),
        (waiting("first"), "INIT"),
        (waiting("second"), "CREATE"),
    ];
    let conditional = waiting("conditional").config(&precondition);
    let before: Vec<Workload> = rows.iter().map(|(workload, _)| workload.clone()).collect();
    // The first one is initialised.
    cluster.apply(&manifest(&[gate(&cluster), waiting("first")]));
    wait_for_info(&cluster, "first", "prepared: INIT");
    cluster.apply(&manifest(
        &[&[gate(&cluster), conditional][..], &before].concat(),
    ));
    for (workload, level) in &rows {
        let info = if level.is_empty() {
            String::new()
        } else {
            format!("prepared: {level}")
        };
        wait_for_info(&cluster, workload.name(), &info);
    }
    cluster.wait_for_row("conditional", "has its image", |row| {
        row.info.contains("does not exist; prepared: IMAGE")
    });
    cluster.write("key", "");
    wait_for_info(&cluster, "conditional", "prepared: CREATE");
    open(&cluster);
    for (workload, level) in &rows {
        cluster.wait_for_state(workload.name(), "Running(Ok)");
        let expected: &[&str] = match *level {
            "INIT" => &["create", "init", "start"],
            "CREATE" => &["create", "start"],
            _ => &["run"],
        };
        // The second may be initialised as soon as the first is started.
        let mut calls = calls(&cluster, workload.name());
        calls.retain(|call| workload.name() == "first" || call != "init");
        assert_eq!(calls, expected, "{}", workload.name());
    }
}

#[test]
fn nerdctl_prepares_up_to_a_created_container() {
    let mut cluster = Cluster::prepare();
    cluster.engine.install_nerdctl();
    cluster.agent_config = "prepare = \"init\"".to_owned();
    cluster.start_all(&["agent_A"]);
    cluster.apply(&manifest(&[
        gate(&cluster),
        waiting("web").runtime("containerd"),
    ]));
    wait_for_info(&cluster, "web", "prepared: CREATE");
    open(&cluster);
    cluster.wait_for_state("web", "Running(Ok)");
    assert_eq!(
        calls(&cluster, "web")
            .iter()
            .filter(|call| *call != "inspect")
            .collect::<Vec<_>>(),
        ["create", "start"]
    );
}

#[test]
fn failed_preparation_is_shown_and_the_workload_starts() {
    for (command, left) in [("create", true), ("create", false), ("init", false)] {
        let cluster = start("init");
        let fails = |command: &str| json!({ "command": command, "workload": "web", "exit": 125, "stderr": "warning\nError: boom\n\n", "leaves_container": left });
        // A preparation is retried after a moment: what the failed step needs fails then too, or
        // the retry may win.
        let well_once = json!({ "command": "create", "workload": "web", "times": 1 });
        let rules = if command == "init" {
            vec![well_once, fails("create"), fails("init")]
        } else {
            vec![fails(command)]
        };
        cluster.engine.script(&json!(rules));
        cluster.apply(&manifest(&[gate(&cluster), waiting("web")]));
        let row = cluster.wait_for_row("web", "shows it", |row| row.info.starts_with("prepare: "));
        assert!(
            row.info.starts_with("prepare: Error: boom, retry in "),
            "{row:?}"
        );
        open(&cluster);
        cluster.wait_for_state("web", "Running(Ok)");
        let commands = calls(&cluster, "web");
        assert!(
            commands.contains(&"run".to_owned()) && !commands.contains(&"start".to_owned()),
            "{commands:?}"
        );
        assert_eq!(cluster.engine.containers_of("web").len(), 1);
    }
}

#[test]
fn a_start_that_fails_is_followed_by_a_run_at_once() {
    let mut cluster = start("create");
    cluster.engine.script(
        &json!([{ "command": "start", "workload": "web", "exit": 125, "stderr": "Error: boom" }]),
    );
    let recorder = Recorder::start(&cluster);
    cluster.apply(&manifest(&[gate(&cluster), waiting("web")]));
    wait_for_info(&cluster, "web", "prepared: CREATE");
    open(&cluster);
    cluster.wait_for_state("web", "Running(Ok)");
    assert_eq!(cluster.engine.containers_of("web").len(), 1);
    assert_eq!(cluster.engine.calls_of("run", "web.").len(), 1);
    let states = recorder.states_until("web", "Running(Ok)");
    assert_eq!(
        states,
        [
            "Pending(WaitingToStart)",
            "Pending(Starting)",
            "Running(Ok)"
        ]
    );
    let log = cluster.agent("agent_A").stderr();
    let line = "Workload 'web' is not started as it was prepared, its container is created again: 'Error: boom'";
    assert!(log.contains(line), "{log}");
}

#[test]
fn each_path_that_changed_since_the_create_causes_a_new_one() {
    let mut cluster = start("init");
    let folder = cluster.folder().to_owned();
    let at = |name: &str| folder.join(name).display().to_string();
    for name in ["env", "replaced"] {
        cluster.write(name, "A=1");
    }
    fs::create_dir(folder.join("mounted")).unwrap();
    let with =
        |name: &str, options: &str| waiting(name).config(&format!("commandOptions: [{options}]"));
    let workloads = [
        with("env", &format!("'--env-file={}'", at("env"))),
        with("moved", &format!("'-v', '{}:/x:ro'", at("mounted"))),
        with(
            "mount",
            &format!("'--mount=type=bind,source={},target=/x'", at("replaced")),
        ),
        with("same", &format!("'-v', '{}:/x'", at("kept"))),
    ];
    cluster.apply(&manifest(&[&[gate(&cluster)][..], &workloads].concat()));
    for workload in &workloads {
        wait_for_info(&cluster, workload.name(), "prepared: INIT");
    }
    cluster.write("env", "A=12");
    fs::rename(folder.join("mounted"), folder.join("gone")).unwrap();
    fs::create_dir(folder.join("mounted")).unwrap();
    fs::rename(folder.join("replaced"), folder.join("away")).unwrap();
    cluster.write("replaced", "A=1");
    open(&cluster);
    cluster.wait_until_run(&["env", "moved", "mount", "same"]);
    for (name, runs) in [("env", 1), ("moved", 1), ("mount", 1), ("same", 0)] {
        assert_eq!(
            cluster.engine.calls_of("run", &format!("{name}.")).len(),
            runs,
            "{name}"
        );
        assert_eq!(cluster.engine.containers_of(name).len(), 1, "{name}");
    }
    let log = cluster.agent("agent_A").stderr();
    assert!(
        log.contains(&format!(
            "'{}' has changed since the container was created",
            at("env")
        )),
        "{log}"
    );
}

#[test]
fn files_of_a_container_exist_before_it_is_created() {
    let cluster = start("create");
    let web = waiting("web")
        .allow("Read", "*")
        .config("lifecycle: { ready: { notify: true } }");
    cluster.apply(&manifest(&[gate(&cluster), web]));
    wait_for_info(&cluster, "web", "prepared: CREATE");
    let create = cluster.engine.calls_of("create", "web.").remove(0);
    let mount = create
        .argv
        .iter()
        .find_map(|word| word.strip_prefix("--mount=type=bind,source="))
        .unwrap();
    let interface = std::path::PathBuf::from(mount.split(',').next().unwrap());
    assert!(interface.join("input").exists() && interface.join("output").exists());
    assert!(create.mentions("--sdnotify=container"));
    open(&cluster);
    cluster.wait_for_row("web", "starts", |row| {
        row.info.starts_with("ready: waits for notify")
    });
    assert_eq!(calls(&cluster, "web"), ["create", "start"]);
}

#[test]
fn delete_removes_a_prepared_start_also_under_way() {
    let cluster = start("init");
    cluster.engine.script(&json!([
        { "command": "create", "workload": "slow", "hang": true, "perform": true },
        { "command": "rm", "workload": "stuck", "times": 2, "exit": 1, "stderr": "Error: busy" },
    ]));
    cluster.apply(&manifest(&[
        gate(&cluster),
        waiting("web"),
        waiting("stuck"),
    ]));
    wait_for_info(&cluster, "web", "prepared: INIT");
    wait_for_info(&cluster, "stuck", "prepared: INIT");
    let recorder = Recorder::start(&cluster);
    cluster.remove("web");
    assert!(cluster.engine.containers_of("web").is_empty());
    assert_eq!(recorder.states_until("web", "Removed"), ["Removed"]);
    cluster.delete("stuck");
    cluster.wait_until_gone("stuck");
    assert_eq!(
        recorder.states_until("stuck", "Removed"),
        ["Stopping(DeleteFailed)", "Removed"]
    );
    cluster.apply(&manifest(&[waiting("slow")]));
    wait_until("it is being created", || {
        !cluster.engine.hanging_calls_of("create").is_empty()
    });
    cluster.remove("slow");
    assert_eq!(cluster.engine.containers().len(), 1);
    wait_until("its call is ended", || {
        cluster.engine.hanging_calls_of("create").is_empty()
    });
    let names = ["web.", "stuck.", "slow."];
    let folders = fs::read_dir(cluster.run_folder().join("agent_A_io"))
        .unwrap()
        .flatten();
    let left: Vec<_> = folders
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    assert!(
        !left
            .iter()
            .any(|folder| names.iter().any(|name| folder.starts_with(name))),
        "{left:?}"
    );
}

#[test]
fn start_waits_only_for_its_own_preparation_step() {
    let cluster = start("init");
    cluster
        .engine
        .script(&json!([{ "command": "create", "workload": "web", "hold": "created" }]));
    cluster.apply(&manifest(&[gate(&cluster), waiting("web")]));
    wait_until("it is being created", || {
        !cluster.engine.hanging_calls_of("create").is_empty()
    });
    open(&cluster);
    cluster.wait_for_state("web", "Pending(Starting)");
    cluster.engine.release("created");
    cluster.wait_for_state("web", "Running(Ok)");
    assert_eq!(calls(&cluster, "web"), ["create", "start"]);
}

/// The reads of a workload without a started container.
#[track_caller]
fn assert_no_log(cluster: &Cluster, instance: &InstanceName) {
    let lines = LogClient::new(cluster).read_all(everything(instance));
    assert!(
        lines.len() == 1 && lines[0].starts_with("[no log: it has no container; it is "),
        "{lines:?}"
    );
    assert!(cluster.engine.calls_of("logs", "").is_empty());
}

#[test]
fn logs_of_what_was_never_started_say_so_and_ask_no_engine() {
    let cluster = start("create");
    let recorder = Recorder::start(&cluster);
    cluster.apply(&manifest(&[
        gate(&cluster),
        waiting("web").config("commandArgs: [text]"),
    ]));
    wait_for_info(&cluster, "web", "prepared: CREATE");
    let instance = recorder.instance("web");
    assert_no_log(&cluster, &instance);
}

#[test]
fn logs_of_a_new_instance_say_that_it_waits_for_the_old_one() {
    let cluster = start("create");
    let web = |image: &str| workload("web", image).config("commandArgs: [text]");
    let user = workload("user", "run").after("web", "ADD_COND_RUNNING");
    cluster.run(&[web("run"), user]);
    // The old one waits until its user is gone, and the new one is created beside it.
    cluster.apply(&manifest(&[web("run:latest")]));
    wait_until("both are there", || {
        cluster.engine.containers_of("web").len() == 2
    });
    let containers = cluster.engine.containers_of("web");
    let new = containers
        .iter()
        .find(|one| one["Image"] == "run:latest")
        .expect("the new one");
    assert_eq!(new["State"], "created");
    let label = new["Labels"]["name"].as_str().unwrap();
    let instance = InstanceName::with_id("web", label.split('.').nth(1).unwrap(), "agent_A");
    assert_no_log(&cluster, &instance);
    cluster.engine.finish("user", 0);
    wait_until("the new one runs", || {
        cluster.engine.containers_of("web").len() == 1
    });
    cluster.wait_for_state("web", "Running(Ok)");
    assert_eq!(
        LogClient::new(&cluster).read_all(everything(&instance)),
        ["text"]
    );
    assert_eq!(
        cluster.engine.only_container("web").1,
        new["Id"].as_str().unwrap(),
        "it was only started"
    );
}

// --------------------------------------------------------------- agent restart

/// The agent is killed while a step is under way, and comes again. The gate opens before that, or
/// after.
#[test]
fn an_agent_killed_at_any_step_leaves_one_container_at_the_end() {
    for command in ["create", "init", "start"] {
        for perform in [true, false] {
            let mut cluster = start("init");
            let rule = json!([{ "command": command, "workload": "web", "times": 1, "hold": "step", "perform": perform, "exit": if perform { 0 } else { 125 } }]);
            cluster.engine.script(&rule);
            cluster.apply(&manifest(&[gate(&cluster), waiting("web")]));
            if command == "start" {
                wait_for_info(&cluster, "web", "prepared: INIT");
                open(&cluster);
            }
            wait_until("the call is under way", || {
                !cluster.engine.hanging_calls_of(command).is_empty()
            });
            cluster.kill_agent("agent_A");
            cluster.wait_for_state("web", "AgentDisconnected");
            cluster.start_agent("agent_A");
            cluster.engine.release("step");
            if command != "start" {
                wait_for_info(&cluster, "web", "prepared: INIT");
                open(&cluster);
            }
            cluster.wait_for_state("web", "Running(Ok)");
            assert_eq!(
                cluster.engine.containers_of("web").len(),
                1,
                "{command} {perform}"
            );
        }
    }
}

#[test]
fn next_agent_starts_prepared_containers_of_this_boot() {
    let mut cluster = start("init");
    cluster.apply(&manifest(&[
        gate(&cluster),
        waiting("kept"),
        waiting("booted"),
        waiting("unwanted"),
    ]));
    for name in ["kept", "booted", "unwanted"] {
        wait_for_info(&cluster, name, "prepared: INIT");
    }
    let [kept, booted] =
        ["kept", "booted"].map(|name| cluster.engine.containers_of(name)[0]["Id"].clone());
    cluster.kill_agent("agent_A");
    cluster.wait_for_state("kept", "AgentDisconnected");
    let folders = fs::read_dir(cluster.run_folder().join("agent_A_io"))
        .unwrap()
        .flatten();
    let folder = folders
        .into_iter()
        .find(|entry| entry.file_name().to_string_lossy().starts_with("booted."))
        .unwrap();
    let record = folder.path().join("prepared");
    let mut text: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&record).unwrap()).unwrap();
    text["boot"] = json!("another");
    fs::write(&record, text.to_string()).unwrap();
    cluster.delete("unwanted");
    cluster.start_agent("agent_A");
    for name in ["kept", "booted"] {
        wait_for_info(&cluster, name, "prepared: INIT");
    }
    cluster.wait_until_gone("unwanted");
    wait_until("it is removed", || {
        cluster.engine.containers_of("unwanted").is_empty()
    });
    assert_eq!(cluster.engine.containers_of("kept")[0]["Id"], kept);
    assert_ne!(cluster.engine.containers_of("booted")[0]["Id"], booted);
    open(&cluster);
    cluster.wait_until_run(&["kept", "booted"]);
    assert_eq!(
        cluster.engine.only_container("kept").1,
        kept.as_str().unwrap()
    );
    assert!(
        cluster.engine.calls_of("run", "kept.").is_empty()
            && cluster.engine.calls_of("run", "booted.").is_empty()
    );
}

/// The note of a prepared container by an agent from before engines wrote pid files, with
/// `CONTAINER` and `BOOT` in their places.
const EARLIER_NOTE: &str = r#"{"container":"CONTAINER","level":"INIT","boot":"BOOT","definition":"e3e4bee50ff3405368f37a24fe2ea20f01cb3bfa0ee9472147138307481f69db","paths":{"/etc/hosts":{"device":65024,"inode":612,"number":0,"content":[49,1795620894,146195892]},"/run/systemd/resolve/resolv.conf":null}}"#;

#[test]
fn notes_of_an_earlier_agent_are_understood() {
    let mut cluster = start("init");
    cluster.apply(&manifest(&[
        gate(&cluster),
        workload("web", "run"),
        waiting("waits"),
    ]));
    cluster.wait_for_state("web", "Running(Ok)");
    wait_for_info(&cluster, "waits", "prepared: INIT");
    let [web, gate] = ["web", "gate"].map(|name| cluster.engine.only_container(name));
    let prepared = cluster.engine.containers_of("waits")[0]["Id"]
        .as_str()
        .unwrap()
        .to_owned();
    cluster.kill_agent("agent_A");
    cluster.wait_for_state("web", "AgentDisconnected");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    for folder in fs::read_dir(cluster.run_folder().join("agent_A_io"))
        .unwrap()
        .flatten()
    {
        let name = folder.file_name().into_string().unwrap();
        let (note, text) = match name.split('.').next().unwrap() {
            "web" => ("container", web.1.clone()),
            "gate" => ("container", gate.1.clone()),
            "waits" => (
                "prepared",
                EARLIER_NOTE
                    .replace("CONTAINER", &prepared)
                    .replace("BOOT", boot.trim()),
            ),
            _ => continue,
        };
        fs::remove_dir_all(folder.path()).unwrap();
        fs::create_dir(folder.path()).unwrap();
        fs::write(folder.path().join(note), text).unwrap();
    }
    cluster.start_agent("agent_A");
    cluster.wait_for_state("web", "Running(Ok)");
    wait_for_info(&cluster, "waits", "prepared: INIT");
    assert_eq!(
        ["web", "gate"].map(|name| cluster.engine.only_container(name)),
        [web, gate]
    );
    // Its arguments are others now, so it is made again, and nothing of the old one is left.
    wait_until("one of it is left", || {
        cluster.engine.containers_of("waits").len() == 1
    });
    assert_ne!(
        cluster.engine.containers_of("waits")[0]["Id"],
        prepared.as_str()
    );
    open(&cluster);
    cluster.wait_until_run(&["waits"]);
    cluster.remove("web");
    assert!(cluster.engine.containers_of("web").is_empty());
}
