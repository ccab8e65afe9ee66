//! The fuzz targets of single readers: what engines, hooks, probes and files say to the programs.
//! Those that drive a whole server or control interface stand in targets.rs.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use ankaios_lite::agent;
use ankaios_lite::agent::workload_files::{file_paths, write_files};
use ankaios_lite::cli::args::Arguments;
use ankaios_lite::cli::output::Output;
use ankaios_lite::cli::set;
use ankaios_lite::cli::settings::{CliSettings, known_contexts};
use ankaios_lite::model::complete_state::{DesiredState, Rendering};
use ankaios_lite::model::lifecycle;
use ankaios_lite::model::limits::LOG_MESSAGE_MAX;
use ankaios_lite::model::log_entries;
use ankaios_lite::model::manifest::Manifest;
use ankaios_lite::model::messages::{
    AddedWorkload, AgentHello, DeletedWorkload, FromServer, LogEntry, Request, RequestContent,
    ToServer, UpdateState, WorkloadPlan,
};
use ankaios_lite::model::names::{InstanceName, hash_id};
use ankaios_lite::model::node::Node;
use ankaios_lite::model::validation::check_workload_name;
use ankaios_lite::model::version::check_compatible;
use ankaios_lite::model::workload::{DeleteCondition, File, FileContent, Workload};
use ankaios_lite::runtime::container_config::{EngineArguments as _, config_of};
use ankaios_lite::runtime::engine_children::EngineChildren;
use ankaios_lite::runtime::exit_watch::main_process;
use ankaios_lite::runtime::log_reader::Lines;
use ankaios_lite::runtime::probes::{Outcome, sockets, table};
use ankaios_lite::runtime::{ContainerId, ListedContainer, NewContainer};
use ankaios_lite::runtime::{container_list, containerd, podman_kube};
use ankaios_lite::server::{self, ServerEvent, ServerLoop, state_store};
use ankaios_lite::wire::address::ServerUrl;
use ankaios_lite::wire::hooks::{read_plan, write_plan};
use ankaios_lite::wire::outbox::{OutboxReader, outbox};
use ankaios_lite::wire::peer::{MessagePermits, PeerEvent, PeerHello, PeerId};
use clap::Parser;

fn owned(seeds: &[&str]) -> Vec<Vec<u8>> {
    seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect()
}

/// A text in two parts, with an empty line between them.
fn halves(bytes: &[u8]) -> Option<(&str, &str)> {
    let text = std::str::from_utf8(bytes).ok()?;
    Some(text.split_once("\n\n").unwrap_or((text, "")))
}

/// A folder of this process alone, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("ankaios-fuzz-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).expect("the temporary folder is writable");
        Self(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // What is left is in the temporary folder.
    }
}

// ------------------------------------------------------------------ engines

/// What engines print: listings of podman and nerdctl, inspections, volumes, pods, and what the
/// kernel says of their processes, whose names are those of programs of containers.
pub fn engines(bytes: &[u8]) {
    let Some((first, second)) = halves(bytes) else {
        return;
    };
    let ours = |one: &ListedContainer| {
        assert_eq!(
            &*one.instance.agent, "agent_A",
            "a container of somebody else"
        );
        assert!(
            one.processes
                .iter()
                .all(|process| process.pid > 0 && process.container == one.id)
        );
    };
    if let Ok(containers) = container_list::parse(first) {
        for container in &containers {
            container.of_agent("agent_A").iter().for_each(ours);
            containerd::listed(container, "agent_A")
                .iter()
                .for_each(ours);
            assert_eq!(
                container.id().is_none(),
                container.id().is_none_or(|id| id.0.is_empty())
            );
            let _ = (
                container.name(),
                container.is_infra(),
                container.ended_at(),
                container.execution_state(),
            );
        }
        let pods = Ok(Some(podman_kube::parse_pods(second)));
        let listed = podman_kube::listed(instance(), &pods, &containers);
        assert_eq!(listed.instance, instance());
        assert!(
            listed.ended_at.is_none() || listed.processes.is_empty(),
            "it has ended and runs: {listed:?}"
        );
    }
    let _ = (
        podman_kube::volume_data(first),
        podman_kube::parse_pods(first),
    );
}

fn instance() -> InstanceName {
    InstanceName::with_id("web", "0123", "agent_A")
}

pub fn engine_seeds() -> Vec<Vec<u8>> {
    owned(&[
        r#"{"Id":"c1","State":"running","ExitCode":0,"Exited":false,"Pid":7,"Pod":"p1","ExitedAt":-62135596800,"Name":"n","IsInfra":false,"Labels":{"name":"web.0123.agent_A","agent":"agent_A"}}{"Id":"c2","State":"exited","ExitCode":3,"Exited":true,"Pid":0,"Pod":"p1","ExitedAt":1700000000,"Labels":{"name":"db.1.agent_A","agent":"agent_A"}}

Pod:
p1
Container:
c1
"#,
        r#"{"Id":"c1","State":{"Status":"exited","ExitCode":2,"Pid":0,"FinishedAt":"2026-01-31T23:59:59.123+02:00"},"AutoRemove":"","Labels":{"name":"web.0123.agent_A","agent":"agent_A"}}{"Id":"c2","State":{"Status":"running","Pid":9},"Labels":{"name":"db.1.agent_A","agent":"agent_A"}}"#,
        r#"[{"Name":"web.0123.agent_A.config","Labels":{"data":"bWFuaWZlc3Q6IHg"}}]"#,
        "Pod:\n0a1b\n\nVolumes:\nv\nPod:\n2c",
        "4242 (a) b (c)) S 1 4242 4242 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 123456 1 1",
        "null",
    ])
}

// ------------------------------------------------------------------ configs

/// A `runtimeConfig` of each runtime, and the Kubernetes manifest in one of them.
pub fn configs(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    for runtime in ["podman", "containerd", "podman-kube"] {
        let workload = Arc::new(Workload::new("agent_A", runtime, text));
        let new = |control: Option<&str>| NewContainer {
            instance: workload.instance_name("web"),
            workload: workload.clone(),
            control_interface: control.map(PathBuf::from),
            files: Vec::new(),
            notify_socket: None,
            pid_file: None,
        };
        for control in [None, Some("/run/folder")] {
            let new = new(control);
            let arguments =
                config_of(&new.workload, runtime).and_then(|config| config.run_arguments(&new));
            if let Ok(arguments) = arguments {
                assert!(
                    arguments
                        .given
                        .contains(&format!("--label=name={}", new.instance)),
                    "{arguments:?}"
                );
            }
            let played = podman_kube::played_manifest(&new);
            if let Some(manifest) = played.ok().filter(|_| control.is_some()) {
                assert!(
                    manifest.contains("/run/folder"),
                    "a control interface without its folder: {manifest}"
                );
            }
        }
        let _ = lifecycle::of_config(runtime, text)
            .map_err(|error| assert!(!error.to_string().is_empty()));
    }
    for document in podman_kube::pod_documents(text) {
        let again = podman_kube::pod_documents(&document.text);
        assert_eq!(
            again,
            std::slice::from_ref(&document),
            "it changes when it is written"
        );
    }
    let _ = podman_kube::end_of_first_name(text);
}

pub fn config_seeds() -> Vec<Vec<u8>> {
    owned(&[
        "image: x\ngeneralOptions: [\"--a\"]\ncommandOptions: [\"-p\", \"1:2\", '--env', A=b]\ncommandArgs: [sh, -c, 1]\n",
        "image: x\nlifecycle:\n  ready: {http: {port: 80, path: /h, status: 204}, periodMs: 500, timeoutMs: 100}\n  alive: {exec: {command: [a, b]}}\n  run:\n    whenAll: [{pathExists: /a}, {tagEquals: {k: v}}]\n  restart: {backoffMs: 500, maxBackoffMs: 1000}\n",
        "manifest: |\n  apiVersion: v1\n  kind: Pod\n  metadata: {name: p}\n  spec:\n    containers:\n    - {name: c, image: i, volumeMounts: ~}\n    volumes: []\n  ---\n  kind: Deployment\n  metadata: {name: d}\n  spec: {template: {spec: {containers: [{name: c}]}}}\nplayOptions: [--a]\ndownOptions: ~\ncontrolInterfaceTarget: p/c\n",
        "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n---\nkind: Job\nmetadata: {name: j}\n---\n",
        "image: &a [x]\ncommandArgs: [*a, *a]\n",
    ])
}

// ---------------------------------------------------------------- templates

/// A template, an empty line, and configs as YAML: rendered by a server.
pub fn templates(bytes: &[u8]) {
    let Some((template, configs)) = halves(bytes) else {
        return;
    };
    let Ok(manifest) = Manifest::parse(&format!(
        "apiVersion: v1\nworkloads: {{}}\nconfigs:\n{configs}"
    )) else {
        return;
    };
    let Ok(DesiredState { configs, .. }) = manifest.into_desired_state() else {
        return;
    };
    let mut workload = Workload::new(template, "podman", template);
    workload.configs = configs
        .keys()
        .map(|key| (key.clone(), key.clone()))
        .collect();
    workload.files = vec![File {
        mount_point: "/a".to_owned(),
        content: FileContent::Data(template.to_owned()),
    }];
    let workloads = [("w".into(), Arc::new(workload))].into();
    let desired = DesiredState {
        workloads,
        configs,
        ..DesiredState::default()
    };
    if let Err(error) = ServerLoop::new().start_with(desired) {
        assert!(!error.to_string().is_empty());
    }
}

pub fn template_seeds() -> Vec<Vec<u8>> {
    let configs = "  a: text\n  b: [x, y, {z: '1'}]\n  c: {k: v, l: [m]}\n";
    let templates = [
        "image: {{a}} {{c.k}} {{b.[2].z}} {{{a}}} {{&a}}",
        "{{#each b}}{{@index}}{{this}}{{#if @last}}.{{else}},{{/if}}{{/each}}{{#with c}}{{k}}{{../a}}{{/with}}",
        "{{#unless a}}x{{/unless}}{{lookup c 'k'}}{{> indent content=a}}{{!-- c --}}{{#each c as |v k|}}{{k}}{{v}}{{/each}}",
        "{{#> x}}{{a}}{{/x}}{{#*inline \"x\"}}{{a}}{{/inline}}{{> x}}{{> @partial-block}}",
        "{{raw}} {{#if (eq a \"text\")}}1{{/if}}\\{{a}} {{~a~}} {{len b}} {{log a}}",
    ];
    templates
        .map(|template| format!("{template}\n\n{configs}").into_bytes())
        .to_vec()
}

// ----------------------------------------------------------------- settings

/// A config file of each program.
pub fn settings(bytes: &[u8]) {
    let scratch = Scratch::new("settings");
    let path = scratch.0.join("file.conf");
    fs::write(&path, bytes).expect("the folder is writable");
    let words = |words: [&str; 2]| {
        words
            .map(Into::into)
            .into_iter()
            .chain([path.clone().into_os_string()])
    };
    let _ = server::settings::read(words(["ank-server", "--server-config"]));
    let machine = agent::settings::Machine {
        temporary: scratch.0.clone(),
        cores: 1,
    };
    let _ = agent::settings::read(words(["ank-agent", "--agent-config"]), &machine);
    for context in ["", "car"] {
        let shown = path.display().to_string();
        let words = [
            "ank",
            "--ank-config",
            &shown,
            "--context",
            context,
            "get",
            "state",
        ];
        let arguments = Arguments::try_parse_from(words).expect("these are arguments");
        let mut output = Output::to(io::sink(), io::sink(), None);
        let _ = CliSettings::load(None, &arguments.common, &mut output);
        let _ = known_contexts(&arguments.common);
    }
}

pub fn setting_seeds() -> Vec<Vec<u8>> {
    owned(&[
        "version = 'v1'\naddress = '127.0.0.1:1'\ninsecure = true\ncommander_names = ['a']\nmax_message_size = '8MiB'\n[[mutating_hooks]]\nname = 'h'\ntimeout = 5\n",
        "version = 'v1'\nname = 'agent_A'\nserver_url = 'http://127.0.0.1:1'\ninsecure = true\nruntimes = ['podman']\nretry_limit = 3\n[tags]\nk = 'v'\n",
        "version = 'v1'\nresponse_timeout = 5\n[default]\nserver_url = 'https://[::1]:5'\nquiet = true\n[contexts.car]\ninsecure = true\nserver_url = 'unix:///run/a'\n",
        "version = \"v1\"\ncrt_pem_content = '''\n-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----'''\nkey_pem_content = 'x'\nca_pem_content = 'y'\n",
    ])
}

// -------------------------------------------------------------------- hooks

/// What a mutating hook writes.
pub fn hooks(bytes: &[u8]) {
    if let Ok(plan) = read_plan(bytes) {
        assert_eq!(
            read_plan(&write_plan(&plan)),
            Ok(plan),
            "the way there and back changes it"
        );
    }
}

pub fn hook_seeds() -> Vec<Vec<u8>> {
    let workload = Arc::new(Workload::new("agent_A", "podman", "image: x"));
    let added = AddedWorkload {
        instance: workload.instance_name("web"),
        workload,
    };
    let dependencies = [("web".to_owned(), DeleteCondition::NotPendingNorRunning)].into();
    let deleted = DeletedWorkload {
        instance: instance(),
        dependencies,
    };
    let plan = WorkloadPlan {
        added: vec![added],
        deleted: vec![deleted],
    };
    vec![write_plan(&plan), write_plan(&WorkloadPlan::default())]
}

// ------------------------------------------------------------- stored state

/// The body of a stored state, with the right checksum before it: without that nothing is read.
pub fn stored(bytes: &[u8]) {
    let Ok(body) = std::str::from_utf8(bytes) else {
        return;
    };
    let _ = state_store::parse(body);
    let own = state_store::text(&state_store::Stored::default()).expect("it can be written");
    let header = own.lines().next().expect("it has a first line");
    let header = &header[..header.len() - hash_id("").len()];
    if let Ok(state) = state_store::parse(&format!("{header}{}\n{body}", hash_id(body))) {
        let written = state_store::text(&state).expect("it can be written");
        assert_eq!(
            state_store::parse(&written).as_ref(),
            Ok(&state),
            "another state is read than was written"
        );
        start_and_update(state);
    }
}

fn open_peer(server: &mut ServerLoop, peer: PeerId, hello: PeerHello) -> OutboxReader {
    let (outbox, reader) = outbox();
    server.on_event(ServerEvent::Peer(PeerEvent::Opened {
        peer,
        hello,
        source: String::new(),
        certificate_expires: None,
        outbox,
    }));
    reader
}

/// A server that starts with this state responds to an update that it guards, and its next start
/// can read the result.
fn start_and_update(state: state_store::Stored) {
    let mut server = ServerLoop::new();
    server.set_update_on_failure(lifecycle::OnFailure::Rollback);
    if server.start_again_with(state).is_err() {
        return;
    }
    // An agent that prepares nothing, so that updates which are staged are carried out.
    let agent = PeerHello::Agent(AgentHello {
        agent: "agent_A".to_owned(),
        ..AgentHello::default()
    });
    let _agent = open_peer(&mut server, PeerId(1), agent);
    let peer = PeerId(2);
    let reader = open_peer(&mut server, peer, PeerHello::Commander);
    let manifest = "{apiVersion: v1, workloads: {new: {agent: A, runtime: podman, runtimeConfig: 'image: x'}}}";
    let desired = Manifest::parse(manifest)
        .expect("it is correct")
        .into_desired_state()
        .expect("it is correct");
    let update = UpdateState {
        new_state: Some(Ok(Node::map([(
            "desiredState",
            desired.node(Rendering::Full),
        )]))),
        masks: vec!["desiredState.workloads.new".to_owned()],
        ..UpdateState::default()
    };
    let request = Request {
        id: "q".to_owned(),
        content: RequestContent::UpdateState(update),
    };
    let message = ToServer::Request(request);
    server.on_event(ServerEvent::Peer(PeerEvent::Message {
        peer,
        message,
        permits: MessagePermits::default(),
    }));
    let has_response =
        std::iter::from_fn(|| reader.try_next()).any(|it| matches!(it, FromServer::Response(_)));
    assert!(has_response, "an update gets no response");
    let stored = state_store::text(&server.stored()).expect("it can be written");
    assert!(
        state_store::parse(&stored).is_ok(),
        "the next server cannot read it: {stored}"
    );
}

pub fn stored_seeds() -> Vec<Vec<u8>> {
    let (_, guarded) = include_str!("../stored/version-1.1.json")
        .split_once('\n')
        .expect("it has a header");
    // The update in it is carried out as soon as its agent is there.
    let unconditional = guarded.replace(r", when: {pathExists: /run/parked}", "");
    owned(&[
        r#"{"apiVersion":"v1","configs":{"c":{"k":["v",{"x":"y"}]}},"workloads":{"w":{"agent":"A","configs":{"a":"c"},"controlInterfaceAccess":{"allowRules":[{"type":"StateRule","operation":"Read","filterMasks":["*"]},{"type":"LogRule","workloadNames":["*"]}]},"dependencies":{"x":"ADD_COND_RUNNING"},"files":[{"mountPoint":"/a","data":"d"},{"mountPoint":"/b","binaryData":"AA=="}],"restartPolicy":"ALWAYS","runtime":"podman","runtimeConfig":"image: x","tags":{"k":"v"}}}}"#,
        r#"{"apiVersion":"v0.1","workloads":{}}"#,
        r#"{"apiVersion":"v1","updates":{"list":[],"newest":18446744073709551615},"workloads":{}}"#,
        r#"{"apiVersion":"v1","updates":{"list":[],"newest":9007199254740992},"workloads":{}}"#,
        &unconditional.replacen("\"number\":2", "\"number\":18446744073709551615", 1),
        &unconditional,
        &guarded.replacen("\"losses\":0", "\"losses\":4294967295", 1),
        guarded,
        &format!(
            "{{\"apiVersion\":\"v1\",\"configs\":{{\"c\":{}\"x\"{}}}}}",
            "[".repeat(5000),
            "]".repeat(5000)
        ),
    ])
}

// ------------------------------------------------------------------- probes

/// What a checked workload says: the first line of an HTTP answer, a notification, the error of a
/// command.
pub fn probes(bytes: &[u8]) {
    for expected in [None, Some(204)] {
        if let Outcome::Fails { reason, answered } = sockets::evaluate(bytes, expected) {
            assert!(answered && !reason.is_empty());
        }
    }
    assert!(!table::has_line(bytes, "READY=1") || bytes.windows(7).any(|part| part == b"READY=1"));
    let _ = (
        table::has_line(bytes, "WATCHDOG=1"),
        table::has_line(bytes, "WATCHDOG=trigger"),
    );
    let said = sockets::last_line(&String::from_utf8_lossy(bytes));
    assert!(!said.contains('\n'), "more than a line: {said:?}");
}

pub fn probe_seeds() -> Vec<Vec<u8>> {
    owned(&[
        "HTTP/1.1 200 OK\r",
        "HTTP/1.0 99999 x",
        "STATUS=up\nREADY=1\nWATCHDOG=1",
        "WATCHDOG=trigger",
        "Error: OCI\nlast line. Execution of 'podman exec'",
    ])
}

// --------------------------------------------------------------------- logs

/// What a container writes, in pieces whose size the first byte tells.
pub fn logs(bytes: &[u8]) {
    let Some((size, rest)) = bytes.split_first() else {
        return;
    };
    let (mut reader, mut lines) = (Lines::default(), Vec::new());
    for piece in rest.chunks(usize::from(*size) + 1) {
        assert!(!reader.take(piece, &mut lines), "an end is in sight");
    }
    reader.finish(&mut lines);
    let text = String::from_utf8_lossy(rest);
    let expected: Vec<&str> = text.split_terminator('\n').collect();
    assert_eq!(lines, expected, "other lines than were written");
    let entries = |message: String| LogEntry::line(instance(), message);
    let messages = log_entries::split(lines.into_iter().map(entries).collect());
    assert!(messages.iter().all(|message| {
        message
            .iter()
            .map(|entry| entry.message.len())
            .sum::<usize>()
            <= LOG_MESSAGE_MAX
    }));
}

pub fn log_seeds() -> Vec<Vec<u8>> {
    vec![
        b"\x05first\nsecond\r\n\n\xff\xfe third".to_vec(),
        b"\x00a\nb".to_vec(),
        b"\xffend\n".to_vec(),
    ]
}

// -------------------------------------------------------------------- texts

/// Short texts of others: names, addresses, versions, and files for `ank`.
pub fn texts(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Some(name) = InstanceName::parse(text) {
        assert_eq!(name.to_string(), text);
        let _ = (name.short(), name.folder());
    }
    if check_workload_name(text).is_ok() {
        assert!(
            !text.contains(['/', '.', ' ', '\n']) && !text.is_empty(),
            "{text:?} becomes part of a path"
        );
    }
    let _ = (ServerUrl::parse(text), check_compatible(text));
    match set::read("-", text) {
        Ok(input) => assert!(input.unknown.iter().all(|key| !key.path.is_empty())),
        Err(error) => assert!(!error.to_string().ends_with(": ''") && !error.hint().is_empty()),
    }
}

pub fn text_seeds() -> Vec<Vec<u8>> {
    owned(&[
        "web.0123456789.agent_A",
        "https://user@[::1%lo]:65535/path",
        "unix:///run/ankaios/server.sock",
        "1.1.0-rc.1+build",
        "{\"desiredState\": {\"apiVersion\": \"v1\", \"workloads\": {\"w\": {\"agent\": \"A\", \"tags\": {\"k\": 1}}}}}",
        "desiredState:\n  apiVersion: v1\n  configs: {c: [1, ~, {d: 0x10}]}\nagents: {a: {tags: {}}}\n",
    ])
}

// -------------------------------------------------------------------- files

/// Files of a workload, a mount point and its content on each two lines. With any name they lie in
/// the folder of the workload.
pub fn files(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let lines: Vec<&str> = text.split('\n').take(16).collect();
    let content = |number: usize, text: &str| {
        if number.is_multiple_of(2) {
            FileContent::Data(text.to_owned())
        } else {
            FileContent::BinaryData(text.to_owned())
        }
    };
    let file = |(number, lines): (usize, &[&str])| {
        let content = content(number, lines.get(1).copied().unwrap_or_default());
        File {
            mount_point: lines[0].to_owned(),
            content,
        }
    };
    let files: Vec<File> = lines.chunks(2).enumerate().map(file).collect();
    let scratch = Scratch::new("files");
    let folder = scratch.0.join("workload");
    let written = write_files(&folder, &files)
        .and_then(|()| file_paths(&folder, &files))
        .unwrap_or_default();
    for (path, _) in &written {
        let below = path.strip_prefix(&folder).expect("it lies in the folder");
        assert!(
            below
                .components()
                .all(|part| matches!(part, Component::Normal(_))),
            "{below:?}"
        );
    }
    mounted(written);
    let found: Vec<PathBuf> = entries(&scratch.0);
    assert!(
        found.iter().all(|path| *path == folder),
        "something was written beside the folder: {found:?}"
    );
}

/// Each mount has the options that it is meant to have, whatever the mount point is called.
fn mounted(files: Vec<(PathBuf, String)>) {
    let workload = Arc::new(Workload::new("agent_A", "podman", "image: x"));
    let (instance, count) = (workload.instance_name("web"), files.len());
    let new = NewContainer {
        instance,
        workload,
        control_interface: None,
        files,
        notify_socket: None,
        pid_file: None,
    };
    let arguments =
        config_of(&new.workload, "podman").and_then(|config| config.run_arguments(&new));
    let Ok(arguments) = arguments else { return };
    let mounts: Vec<&String> = arguments
        .given
        .iter()
        .filter(|argument| argument.starts_with("--mount="))
        .collect();
    assert_eq!(mounts.len(), count, "{arguments:?}");
    assert!(
        mounts.iter().all(|mount| mount.split(',').count() == 4),
        "{mounts:?}"
    );
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect()
}

pub fn file_seeds() -> Vec<Vec<u8>> {
    owned(&[
        "/etc/a\ntext\n/etc/b.bin\naGk=\n",
        "/a/../b\nx\n//\ny\n/.\nz",
        "/a\nx\n/a/b\nAA==",
        "/x,source=/,destination=/host\nx\n/\"q\"\nAA==",
        "relative\nx\n../up\ny",
    ])
}

// ------------------------------------------------------------------ records

/// The record of an engine's call that an earlier agent left, of this boot.
pub fn records(bytes: &[u8]) {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let scratch = Scratch::new("records");
    let path = scratch.0.join("call");
    for record in [bytes.to_vec(), [boot.as_bytes(), bytes].concat()] {
        fs::write(&path, record).expect("the folder is writable");
        EngineChildren::open(&scratch.0)
            .map(drop)
            .expect("whatever stands there is no reason not to start");
    }
    // What stands in place of the pid that an engine writes.
    fs::write(&path, bytes).expect("the folder is writable");
    let process = main_process(&path, &ContainerId("no-such-container".into()));
    assert_eq!(process, None, "this is a process of no container");
    let _ = fs::remove_file(&path);
}

pub fn record_seeds() -> Vec<Vec<u8>> {
    owned(&[
        "podman\n",
        "podman\n999999999 123\n",
        "podman\n-5 18446744073709551616\n",
        "-5\n",
        "0",
        "4194304\n",
    ])
}
