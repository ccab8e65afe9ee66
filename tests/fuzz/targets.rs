//! Readers of any bytes: one function per fuzz target. None must panic.
//!
//! `./justw fuzz` runs them under cargo-fuzz, tests/fuzz_bounded.rs with a few thousand inputs from a
//! fixed seed. The inputs that both begin with stand here as well.

use std::collections::BTreeMap;
use std::time::Instant;

use ankaios_lite::agent::control_interface::session::{ControlSession, SessionEffect};
use ankaios_lite::model::access_rules::{AccessRule, ControlInterfaceAccess, Operation};
use ankaios_lite::model::authorizer::Authorizer;
use ankaios_lite::model::complete_state::{Rendering, desired_state_from_node};
use ankaios_lite::model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_lite::model::field_path;
use ankaios_lite::model::manifest::Manifest;
use ankaios_lite::model::mask_tree::MaskTree;
use ankaios_lite::model::messages::{
    AgentHello, AgentLoad, FromServer, FromWorkload, LogEntry, LogsRequest, ReadState, Request,
    RequestContent, Response, ResponseContent, ToServer, ToWorkload, UpdateState,
};
use ankaios_lite::model::names::InstanceName;
use ankaios_lite::model::node::Node;
use ankaios_lite::model::refusal::ErrorResponse;
use ankaios_lite::server::{ServerEvent, ServerLoop};
use ankaios_lite::wire::delimited::{frame, workload_side};
use ankaios_lite::wire::outbox::{OutboxReader, outbox};
use ankaios_lite::wire::peer::{MessagePermits, PeerEvent, PeerHello, PeerId};
use ankaios_lite::wire::raw;

#[path = "readers.rs"]
mod readers;
pub use readers::{
    configs, engines, files, hooks, logs, probes, records, settings, stored, templates, texts,
};

/// A function that takes any bytes.
pub type Target = fn(&[u8]);

/// All targets by name, with the inputs to begin with.
pub fn all() -> Vec<(&'static str, Target, Vec<Vec<u8>>)> {
    vec![
        (
            "manifest",
            manifest,
            MANIFESTS
                .iter()
                .map(|text| text.as_bytes().to_vec())
                .collect(),
        ),
        (
            "masks",
            masks,
            MASKS
                .iter()
                .map(|masks| format!("{masks}\n\n{}", MANIFESTS[0]).into_bytes())
                .collect(),
        ),
        ("messages", messages, message_seeds()),
        ("control", control, control_seeds()),
        ("engines", engines, readers::engine_seeds()),
        ("configs", configs, readers::config_seeds()),
        ("templates", templates, readers::template_seeds()),
        ("settings", settings, readers::setting_seeds()),
        ("hooks", hooks, readers::hook_seeds()),
        ("stored", stored, readers::stored_seeds()),
        ("probes", probes, readers::probe_seeds()),
        ("logs", logs, readers::log_seeds()),
        ("texts", texts, readers::text_seeds()),
        ("files", files, readers::file_seeds()),
        ("records", records, readers::record_seeds()),
    ]
}

// ----------------------------------------------------------------- manifest

/// A manifest: read, taken over by a server, read back.
pub fn manifest(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let manifest = match Manifest::parse(text) {
        Ok(manifest) => manifest,
        Err(error) => {
            assert!(!error.to_string().is_empty(), "an error without a word");
            return;
        }
    };
    assert!(
        manifest
            .warnings
            .iter()
            .all(|warning| !warning.to_string().is_empty())
    );
    let Ok(desired) = manifest.into_desired_state() else {
        return;
    };
    for rendering in [Rendering::Full, Rendering::Sparse] {
        let tree = desired.node(rendering);
        assert_eq!(
            desired_state_from_node(&tree).as_ref(),
            Ok(&desired),
            "the tree lost something"
        );
    }
    let mut server = ServerLoop::new();
    if server.start_with(desired.clone()).is_ok() {
        let tree = server.view().everything();
        let read = tree.get("desiredState").map(desired_state_from_node);
        assert_eq!(read, Some(Ok(desired)), "the server keeps something else");
    }
}

// -------------------------------------------------------------------- masks

/// Lines with masks, an empty line, a manifest: reads with these masks, and updates by them with
/// that state.
pub fn masks(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let (lines, manifest) = text.split_once("\n\n").unwrap_or((text, ""));
    let masks: Vec<String> = lines.lines().map(str::to_owned).collect();
    let mut cluster = Cluster::with_workloads();
    cluster.check_read(&masks);
    let new = Manifest::parse(manifest)
        .ok()
        .and_then(|manifest| manifest.into_desired_state().ok());
    let new = new.map_or_else(Node::empty, |desired| {
        Node::map([("desiredState", desired.node(Rendering::Full))])
    });
    cluster.update(&new, &masks);
    let once = cluster.server.view().everything();
    cluster.check_read(&masks);
    cluster.update(&new, &masks);
    assert_eq!(
        cluster.server.view().everything(),
        once,
        "the same update again made another state"
    );
}

type Leaves = BTreeMap<Vec<String>, Node>;

fn leaves(node: &Node, path: &mut Vec<String>, found: &mut Leaves) {
    match node {
        Node::Map(entries) => {
            for (key, child) in entries {
                path.push(key.to_owned());
                leaves(child, path, found);
                path.pop();
            }
        }
        other => {
            found.insert(path.clone(), other.clone());
        }
    }
}

fn all_leaves(node: &Node) -> Leaves {
    let mut found = Leaves::new();
    leaves(node, &mut Vec::new(), &mut found);
    found
}

/// A part of a read that no mask selects.
fn is_partner(path: &[String]) -> bool {
    let keys: Vec<&str> = path.iter().map(String::as_str).collect();
    matches!(
        keys.as_slice(),
        ["desiredState" | "effectiveState", "apiVersion"]
            | ["workloadStates", _, _, _, "state" | "subState"]
    )
}

// ----------------------------------------------------------------- messages

/// Bytes of messages, each after a byte for whom it is of and two for its length: conversion there
/// and back, and a server that gets them one after the other.
pub fn messages(mut bytes: &[u8]) {
    let mut cluster = Cluster::with_workloads();
    while let [who, low, high, rest @ ..] = bytes {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (message, after) = rest.split_at(length);
        bytes = after;
        from_server_and_back(message);
        let Some(message) = read_to_server(message) else {
            continue;
        };
        to_server_and_back(&message);
        cluster.say(usize::from(*who), message);
    }
    let whole = cluster.server.view().everything();
    assert_eq!(
        all_leaves(&whole)
            .keys()
            .filter(|path| path.len() > 256)
            .count(),
        0
    );
}

fn from_server_and_back(bytes: &[u8]) {
    let Ok(message) = raw::read_from_server(bytes) else {
        return;
    };
    assert_eq!(
        raw::read_from_server(raw::write_from_server(&message)),
        Ok(message)
    );
}

/// What the server makes of these bytes; `None` when they are refused before or by the decoder.
fn read_to_server(bytes: &[u8]) -> Option<ToServer> {
    raw::read_to_server(bytes, &mut raw::Left::of(bytes)).ok()
}

fn to_server_and_back(message: &ToServer) {
    if let ToServer::Request(Request {
        content: RequestContent::UpdateState(update),
        ..
    }) = message
        && matches!(update.new_state, Some(Err(_)))
    {
        return; // Only the receiver knows this one: what the sender meant cannot be told.
    }
    if matches!(message, ToServer::WorkloadStates(states) if states.is_empty()) {
        // All entries were incomplete; a list sent empty is another message, the end of a report.
        return;
    }
    let written = raw::write_to_server(message);
    assert_eq!(read_to_server(&written).as_ref(), Some(message));
}

/// A server with one peer of each kind, two of them agents.
struct Cluster {
    server: ServerLoop,
    peers: Vec<(PeerId, OutboxReader)>,
    opened: u64,
}

impl Cluster {
    fn with_workloads() -> Self {
        let desired = Manifest::parse(MANIFESTS[0])
            .expect("it is correct")
            .into_desired_state()
            .expect("it is correct");
        let mut cluster = Self {
            server: ServerLoop::new(),
            peers: Vec::new(),
            opened: 0,
        };
        cluster.server.start_with(desired).expect("it is correct");
        cluster.peers = (0..4).map(|index| cluster.open(index)).collect();
        let state = ExecutionState::with_info(Phase::Running, "fine");
        let states = ["web", "db"].map(|name| WorkloadState::new(instance(name), state.clone()));
        cluster.event(0, ToServer::WorkloadStates(states.into()));
        let load = AgentLoad {
            agent: "agent_A".to_owned(),
            cpu_usage: 3,
            free_memory: 4,
            engine: String::new(),
        };
        cluster.event(0, ToServer::AgentLoad(load));
        cluster
    }

    fn open(&mut self, index: usize) -> (PeerId, OutboxReader) {
        self.opened += 1;
        let peer = PeerId(self.opened);
        let (outbox, reader) = outbox();
        let agent = |name: &str| {
            PeerHello::Agent(AgentHello {
                agent: name.to_owned(),
                tags: [("k".to_owned(), "v".to_owned())].into(),
                ..AgentHello::default()
            })
        };
        let hello = match index {
            0 => agent("agent_A"),
            1 => agent("agent_B"),
            2 => PeerHello::Cli,
            _ => PeerHello::Commander,
        };
        self.server.on_event(ServerEvent::Peer(PeerEvent::Opened {
            peer,
            hello,
            source: String::new(),
            certificate_expires: None,
            outbox,
        }));
        (peer, reader)
    }

    fn event(&mut self, index: usize, message: ToServer) {
        let peer = self.peers[index].0;
        self.server.on_event(ServerEvent::Peer(PeerEvent::Message {
            peer,
            message,
            permits: MessagePermits::default(),
        }));
    }

    /// Everything that waits for a peer; each message must have bytes.
    fn take(&self, index: usize) -> Vec<FromServer> {
        let messages: Vec<FromServer> =
            std::iter::from_fn(|| self.peers[index].1.try_next()).collect();
        for message in &messages {
            assert!(
                !raw::write_from_server(message).is_empty(),
                "it cannot be written: {message:?}"
            );
        }
        messages
    }

    fn say(&mut self, who: usize, message: ToServer) {
        let index = who % self.peers.len();
        (0..self.peers.len()).for_each(|index| drop(self.take(index)));
        let asked = match &message {
            ToServer::Request(request) if !request.id.is_empty() => Some(request.id.clone()),
            _ => None,
        };
        let leaves = message == ToServer::Goodbye;
        self.event(index, message);
        let answers = self.take(index);
        if let Some(id) = asked {
            let answered = answers.iter().any(
                |answer| matches!(answer, FromServer::Response(response) if response.id == id),
            );
            assert!(answered, "request '{id}' got no answer but {answers:?}");
        }
        if leaves {
            self.peers[index] = self.open(index);
        }
    }

    fn ask(&mut self, content: RequestContent) -> ResponseContent {
        (0..self.peers.len()).for_each(|index| drop(self.take(index)));
        self.event(
            3,
            ToServer::Request(Request {
                id: "q".to_owned(),
                content,
            }),
        );
        match self.take(3).pop() {
            Some(FromServer::Response(Response { content, .. })) => content,
            other => panic!("no answer but {other:?}"),
        }
    }

    /// An update changes something or is refused and changes nothing.
    fn update(&mut self, new: &Node, masks: &[String]) {
        let before = self.server.view().everything();
        let update = UpdateState {
            new_state: Some(Ok(new.clone())),
            masks: masks.to_vec(),
            ..Default::default()
        };
        match self.ask(RequestContent::UpdateState(update)) {
            ResponseContent::UpdateStateSuccess { .. } => {}
            ResponseContent::Error(ErrorResponse { text, .. }) => {
                assert!(!text.is_empty());
                assert_eq!(
                    self.server.view().everything(),
                    before,
                    "a refused update changed something"
                );
            }
            other => panic!("{other:?}"),
        }
    }

    /// A read with masks is their selection of the whole state, unless too many of them overlap.
    fn check_read(&mut self, masks: &[String]) {
        if masks.is_empty() {
            return;
        }
        let everything = self.server.view().select(&MaskTree::new(["*"]));
        let expected = all_leaves(&select(&everything, masks.iter().map(String::as_str)));
        let read = ReadState {
            masks: masks.to_vec(),
            subscribe: false,
        };
        let state = match self.ask(RequestContent::CompleteState(read)) {
            ResponseContent::CompleteState { state, .. } => state,
            ResponseContent::Error(ErrorResponse { text, .. }) => {
                assert!(
                    text.contains("lead to the same field") && masks.len() > 64,
                    "{text}"
                );
                return;
            }
            other => panic!("a read is answered, but with {other:?}"),
        };
        let found = all_leaves(&state);
        for (path, node) in &expected {
            assert_eq!(found.get(path), Some(node), "{path:?} is selected");
        }
        // A message does not say that a list has no entries, so both lists of access rules are
        // there when one is.
        let is_empty_list = |path: &[String], node: &Node| {
            matches!(path, [.., access, _] if access == "controlInterfaceAccess")
                && matches!(node, Node::List(entries) if entries.is_empty())
        };
        let mut others = found
            .iter()
            .filter(|(path, node)| !is_partner(path) && !is_empty_list(path, node));
        let surplus = others.find(|(path, _)| !expected.contains_key(*path));
        assert_eq!(surplus, None, "not selected");
    }
}

/// What `masks` select from `tree`, one after the other: what the server does at once must be the
/// same.
fn select<'m>(tree: &Node, masks: impl IntoIterator<Item = &'m str>) -> Node {
    let mut selected = Node::empty();
    for mask in masks.into_iter().filter(|mask| !mask.is_empty()) {
        copy_matches(tree, &mut selected, &field_path::parts(mask));
    }
    selected
}

/// Copies every node that `path` leads to from `source` to the same place in `target`.
fn copy_matches(source: &Node, target: &mut Node, path: &[&str]) {
    let Some((key, rest)) = path.split_first() else {
        *target = source.clone();
        return;
    };
    let Node::Map(entries) = source else { return };
    let matches: Vec<(&str, &Node)> = if *key == field_path::WILDCARD {
        entries.iter().collect()
    } else {
        entries
            .get(*key)
            .map(|node| (*key, node))
            .into_iter()
            .collect()
    };
    for (name, node) in matches {
        if !leads_somewhere(node, rest) {
            continue; // Or the target would get empty maps on the way to nothing.
        }
        if !matches!(target, Node::Map(_)) {
            return; // A shorter mask has copied a list or scalar here already.
        }
        if let Node::Map(map) = target {
            copy_matches(node, map.child(name.to_owned()), rest);
        }
    }
}

/// Whether `path` leads to at least one node below `node`.
fn leads_somewhere(node: &Node, path: &[&str]) -> bool {
    let Some((key, rest)) = path.split_first() else {
        return true;
    };
    let Node::Map(entries) = node else {
        return false;
    };
    if *key == field_path::WILDCARD {
        entries.values().any(|child| leads_somewhere(child, rest))
    } else {
        entries
            .get(*key)
            .is_some_and(|child| leads_somewhere(child, rest))
    }
}

// ---------------------------------------------------------- where to begin

fn instance(workload: &str) -> InstanceName {
    InstanceName::new(workload, "image: x", "agent_A")
}

const MANIFESTS: [&str; 4] = [
    r#"apiVersion: v1
workloads:
  web:
    agent: agent_A
    runtime: podman
    runtimeConfig: "image: x"
    restartPolicy: ON_FAILURE
    tags: {owner: me, k: v}
    dependencies: {db: ADD_COND_RUNNING}
    configs: {alias: key}
    files:
    - {mountPoint: /etc/a, data: "text {{alias}}"}
    - {mountPoint: /etc/b, binaryData: "aGk="}
    controlInterfaceAccess:
      allowRules:
      - {type: StateRule, operation: Read, filterMasks: ["desiredState.workloads.*"]}
      - {type: LogRule, workloadNames: ["web*"]}
      denyRules: []
  db: {agent: agent_A, runtime: podman, runtimeConfig: "image: x"}
  spare: {agent: "", runtime: podman, runtimeConfig: "image: y"}
configs:
  key: "value"
  list: [a, {b: c}]
  map: {x: {y: z}}
"#,
    "apiVersion: v0.1\nworkloads:\n  a: {agent: '{{n.[0]}}', runtime: podman, runtimeConfig: '  {{#each n}}<{{this}}|{{@index}}>{{/each}}', tags: [{key: k, value: v}], configs: {n: c}}\nconfigs: {c: [m, n]}\n",
    "apiVersion: v1\nworkloads: &w\n  a: &a {agent: x, runtime: r, runtimeConfig: |\n      {{> indent content=n}}\n    , configs: {n: c}}\n  b: *a\nconfigs: {c: \"l1\\nl2\"}\n",
    "apiVersion: v1\nworkloads: null\nconfigs: ~\n",
];

const MASKS: [&str; 6] = [
    "desiredState.workloads.web.tags.k\ndesiredState.configs.map.x.y",
    "*.workloads.*.agent\nworkloadStates.*.*.*.state\nagents.agent_A.status.cpuUsage",
    "desiredState\n",
    "desiredState.workloads.web\ndesiredState.workloads.new",
    "agents.agent_A.tags\nworkloadStates..spare\neffectiveState.workloads.web.files.0",
    "*\n*.*\n\ndesiredState.configs.list",
];

fn message_seeds() -> Vec<Vec<u8>> {
    let tree = Node::map([(
        "desiredState",
        Node::map([("apiVersion", Node::text("v1"))]),
    )]);
    let request = |id: &str, content| {
        ToServer::Request(Request {
            id: id.to_owned(),
            content,
        })
    };
    let masks = |masks: &[&str]| {
        masks
            .iter()
            .map(|mask| (*mask).to_owned())
            .collect::<Vec<_>>()
    };
    let new = Manifest::parse(MANIFESTS[0])
        .expect("it is correct")
        .into_desired_state()
        .expect("it is correct");
    let new = Node::map([("desiredState", new.node(Rendering::Full))]);
    let logs = LogsRequest {
        instances: vec![instance("web"), instance("db")],
        follow: Some(true),
        tail: Some(3),
        since: Some("2026-01-01T00:00:00Z".to_owned()),
        until: None,
        timestamps: true,
    };
    let state =
        |phase| WorkloadState::new(instance("web"), ExecutionState::with_info(phase, "info"));
    let told: Vec<(u8, ToServer)> = vec![
        (
            3,
            request(
                "a",
                RequestContent::CompleteState(ReadState {
                    masks: masks(&["*"]),
                    subscribe: true,
                }),
            ),
        ),
        (
            0,
            request(
                "web@a",
                RequestContent::CompleteState(ReadState {
                    masks: Vec::new(),
                    subscribe: true,
                }),
            ),
        ),
        (
            3,
            request(
                "b",
                RequestContent::UpdateState(UpdateState {
                    new_state: Some(Ok(new)),
                    masks: Vec::new(),
                    ..Default::default()
                }),
            ),
        ),
        (
            2,
            request(
                "c",
                RequestContent::UpdateState(UpdateState {
                    new_state: Some(Ok(tree)),
                    masks: masks(&["desiredState.workloads.db", "agents.agent_A.tags"]),
                    restart: masks(&["db"]),
                }),
            ),
        ),
        (
            0,
            ToServer::WorkloadStates(vec![state(Phase::Succeeded), state(Phase::Removed)]),
        ),
        (
            0,
            ToServer::AgentLoad(AgentLoad {
                agent: "agent_A".to_owned(),
                cpu_usage: 1,
                free_memory: u64::MAX,
                engine: String::new(),
            }),
        ),
        (3, request("l", RequestContent::Logs(logs))),
        (
            0,
            ToServer::LogEntries {
                request_id: "1@l".to_owned(), // Of the stream with this number.
                entries: vec![LogEntry::line(instance("web"), "line")],
            },
        ),
        (
            0,
            ToServer::LogsStop {
                request_id: "l".to_owned(),
                instance: instance("web"),
            },
        ),
        (3, request("l", RequestContent::LogsCancel)),
        (3, request("a", RequestContent::EventsCancel)),
        (1, ToServer::Goodbye),
        (3, request("m", RequestContent::Missing)),
        (
            2,
            ToServer::CommanderHello {
                version: "1.1.0".to_owned(),
            },
        ),
    ];
    let framed = |(who, message): &(u8, ToServer)| {
        let bytes = raw::write_to_server(message);
        let length = u16::try_from(bytes.len())
            .expect("it is short")
            .to_le_bytes();
        [vec![*who], length.to_vec(), bytes].concat()
    };
    let mut seeds: Vec<Vec<u8>> = told.iter().map(framed).collect();
    seeds.push(seeds.concat());
    seeds
}

// ------------------------------------------------------------------ control

/// What a workload may write to its control interface, in pieces whose size the first byte tells:
/// framing, decoding, authorisation. Whatever it writes, the server gets only what the rules allow.
pub fn control(bytes: &[u8]) {
    let Some((size, rest)) = bytes.split_first() else {
        return;
    };
    let world = Workload {
        authorizer: Authorizer::new(&control_rules()),
    };
    let mut session = ControlSession::new("w".into(), world.authorizer.clone(), 4096);
    let now = Instant::now();
    for piece in rest.chunks(usize::from(*size) + 1) {
        session.on_bytes(piece);
        world.act(&mut session, now);
    }
    if session.deadline().is_some() {
        session.on_late(false);
        world.act(&mut session, now);
    }
    session.on_close();
    let hello = FromWorkload::Hello {
        version: "1.0.0".to_owned(),
    };
    let hello = workload_side::frame(hello);
    session.on_bytes(&hello);
    world.act(&mut session, now);
    assert!(
        session.is_established(),
        "the next user of the pipe is not heard"
    );
}

struct Workload {
    authorizer: Authorizer,
}

impl Workload {
    /// Does what the session wants.
    fn act(&self, session: &mut ControlSession, now: Instant) {
        while let Some(effect) = session.next(now) {
            match effect {
                SessionEffect::Greet(message) => assert!(!frame(message).is_empty()),
                SessionEffect::Answer(response) => {
                    assert!(!frame(ToWorkload::Response(response)).is_empty())
                }
                SessionEffect::Begin => {}
                SessionEffect::Forward(held) => self.forward(held.request),
            }
        }
    }

    fn forward(&self, request: Request) {
        assert!(
            self.authorizer.check(&request.content).is_ok(),
            "{request:?} is not allowed"
        );
        let again = FromWorkload::Request(request);
        let bytes = workload_side::frame(again);
        assert!(!bytes.is_empty());
    }
}

fn control_rules() -> ControlInterfaceAccess {
    let rule = |operation, masks: &[&str]| AccessRule::State {
        operation,
        filter_masks: masks.iter().map(|mask| (*mask).to_owned()).collect(),
    };
    ControlInterfaceAccess {
        allow_rules: vec![
            rule(Operation::ReadWrite, &["desiredState.workloads", "agents"]),
            AccessRule::Log {
                workload_names: vec!["w*".to_owned()],
            },
        ],
        deny_rules: vec![rule(Operation::Read, &["desiredState.workloads.*.configs"])],
    }
}

fn control_seeds() -> Vec<Vec<u8>> {
    let hello = FromWorkload::Hello {
        version: "1.0.0".to_owned(),
    };
    let masks = |masks: &[&str]| {
        masks
            .iter()
            .map(|mask| (*mask).to_owned())
            .collect::<Vec<_>>()
    };
    let logs = LogsRequest {
        instances: vec![InstanceName::with_id("w1", "1", "A")],
        ..LogsRequest::default()
    };
    let contents = [
        RequestContent::CompleteState(ReadState {
            masks: masks(&["agents"]),
            subscribe: true,
        }),
        RequestContent::CompleteState(ReadState {
            masks: masks(&["desiredState.workloads.a.tags"]),
            subscribe: false,
        }),
        RequestContent::UpdateState(UpdateState {
            new_state: Some(Ok(Node::map([("agents", Node::empty())]))),
            masks: masks(&["agents.A.tags"]),
            restart: vec![],
        }),
        RequestContent::Logs(logs),
        RequestContent::LogsCancel,
        RequestContent::EventsCancel,
        RequestContent::Missing,
    ];
    let requests = contents.map(|content| {
        FromWorkload::Request(Request {
            id: "id@x".to_owned(),
            content,
        })
    });
    let written = |message: &FromWorkload| workload_side::frame(message.clone());
    let all: Vec<u8> = std::iter::once(&hello)
        .chain(&requests)
        .flat_map(written)
        .collect();
    let mut seeds = vec![
        [&[255], all.as_slice()].concat(),
        [&[3], all.as_slice()].concat(),
    ];
    seeds.extend(
        requests
            .iter()
            .map(|request| [vec![63], written(&hello), written(request)].concat()),
    );
    seeds
}
