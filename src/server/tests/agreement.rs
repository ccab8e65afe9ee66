//! Reads, updates and events agree, for random states and random masks.
//!
//! A run is decided by its seed. After each of its steps, for every subscriber and its masks:
//! - a copy that is only changed by the altered fields of events equals a fresh read;
//! - an event is true, and has only paths that its subscriber requested;
//! - a read with masks is the part of a read without masks that they select;
//! - an accepted update did what the mask algorithm does on the whole tree, a refused one did
//!   nothing.
//!
//! What selects, applies and removes is written here once more, simple and slow, and not shared
//! with the server. Left out on purpose: keys with dots, which no client can tell from a path;
//! config items that change their kind, of which masks below them get no event. A partner that a
//! read brings along unasked (`apiVersion`, `state` with `subState`) is not part of what is
//! compared.
//!
//! `ANKAIOS_PROPERTY_SEED=7` repeats one run and shows its steps, `ANKAIOS_PROPERTY_SEEDS=5000`
//! takes more of them.

use super::*;
use ankaios_model::field_path::{parts, value_at};
use ankaios_model::messages::{AgentHello, AlteredFields};
use ankaios_model::names::hash_id;
use ankaios_model::node::Entries;
use ankaios_model::refusal::ErrorResponse;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Runs of the normal tests.
const SEEDS: u64 = 40;
/// Steps of each run.
const STEPS: usize = 60;
/// Subscribers at the same time.
const CLIENTS_MAX: usize = 5;

type Random = fastrand::Rng;
type Path = Vec<String>;
/// The values of a tree by their paths, as JSON. Agents have an entry of their own, because one
/// without load and tags has an entry as well.
type Leaves = BTreeMap<Path, String>;

const WORKLOADS: [&str; 3] = ["u", "v", "w"];
const AGENTS: [&str; 3] = ["A", "B", ""];
const KEYS: [&str; 3] = ["k1", "k2", "k3"];
const RUNTIME_CONFIGS: [&str; 3] = ["x", "y", "with {{alias}}"];

fn one_of<'a>(random: &mut Random, texts: &[&'a str]) -> &'a str {
    texts[random.usize(..texts.len())]
}

/// True in `percent` of 100 cases.
fn chance(random: &mut Random, percent: u8) -> bool {
    random.u8(..100) < percent
}

// -------------------------------------------------------- expected results

fn selected(path: &[String], masks: &[String]) -> bool {
    let selects = |mask: &String| {
        let parts: Vec<&str> = mask.split('.').collect();
        parts.len() <= path.len()
            && parts
                .iter()
                .zip(path)
                .all(|(part, key)| *part == "*" || part == key)
    };
    masks.is_empty() || masks.iter().any(selects)
}

fn leaves(tree: &Node) -> Leaves {
    fn walk(node: &Node, path: &mut Path, found: &mut Leaves) {
        match node {
            Node::Map(entries) => {
                if let [part, _] = path.as_slice()
                    && part == "agents"
                {
                    found.insert(path.clone(), "present".to_owned());
                }
                if entries.is_empty() {
                    found.entry(path.clone()).or_insert_with(|| "{}".to_owned());
                }
                for (key, child) in entries {
                    path.push(key.to_owned());
                    walk(child, path, found);
                    path.pop();
                }
            }
            other => {
                found.insert(path.clone(), serde_json::to_string(other).unwrap());
            }
        }
    }
    let mut found = Leaves::new();
    walk(tree, &mut Vec::new(), &mut found);
    found
}

/// An empty list or map means the same as none, for events too.
const EMPTY: [&str; 2] = ["[]", "{}"];

fn filled(leaves: Leaves) -> Leaves {
    leaves
        .into_iter()
        .filter(|(_, value)| !EMPTY.contains(&value.as_str()))
        .collect()
}

/// The values that `masks` select.
fn part(tree: &Node, masks: &[String]) -> Leaves {
    filled(
        leaves(tree)
            .into_iter()
            .filter(|(path, _)| selected(path, masks))
            .collect(),
    )
}

/// What a read brings along although no mask selects it.
fn is_partner(path: &[String]) -> bool {
    let keys: Vec<&str> = path.iter().map(String::as_str).collect();
    matches!(
        keys.as_slice(),
        ["desiredState" | "effectiveState", "apiVersion"]
            | ["workloadStates", _, _, _, "state" | "subState"]
    )
}

fn split(text: &str) -> Path {
    text.split('.').map(str::to_owned).collect()
}

fn node_at<'n>(tree: &'n Node, path: &[String]) -> Option<&'n Node> {
    path.iter().try_fold(tree, |node, key| node.get(key))
}

/// The way of an update: sets what `new` has at the path, removes it otherwise. False when there is
/// no way.
fn change(tree: &mut Node, new: &Node, path: &[String]) -> bool {
    apply_one(tree, new, &path.join(".")).is_some()
}

// ---------------------------------------------------------------- a client

struct Client {
    peer: PeerId,
    id: String,
    masks: Vec<String>,
    copy: Node,
    /// Lists that were reported as removed when they became empty: they are reported once more when
    /// they go.
    emptied: BTreeSet<String>,
}

impl Client {
    /// Takes an event over, which must be right in every word.
    fn take_event(
        &mut self,
        state: &Node,
        altered: &AlteredFields,
        fresh: &Leaves,
        everything: &Leaves,
    ) {
        let before = leaves(&self.copy);
        let below = |leaves: &Leaves, path: &Path| {
            let all = leaves.iter().filter(|(leaf, _)| leaf.starts_with(path));
            all.map(|(leaf, value)| (leaf.clone(), value.clone()))
                .collect::<Leaves>()
        };
        let all: Vec<&String> = altered
            .added
            .iter()
            .chain(&altered.updated)
            .chain(&altered.removed)
            .collect();
        assert!(!all.is_empty(), "an event about nothing");
        let unique: BTreeSet<&&String> = all.iter().collect();
        assert_eq!(unique.len(), all.len(), "a path is told twice: {altered:?}");
        for text in &altered.added {
            let before = filled(below(&before, &split(text)));
            assert_eq!(
                before,
                Leaves::new(),
                "'{text}' is told as added and was there"
            );
            self.emptied.remove(text);
        }
        for text in &altered.updated {
            let (old, new) = (below(&before, &split(text)), below(fresh, &split(text)));
            assert!(
                old != new && !old.is_empty() && !new.is_empty(),
                "'{text}' is told as updated: {old:?}, {new:?}"
            );
        }
        for text in &altered.removed {
            let was_there = self.emptied.remove(text) || !below(&before, &split(text)).is_empty();
            assert!(was_there, "'{text}' is told as removed and was not there");
            if everything
                .get(&split(text))
                .is_some_and(|now| now == EMPTY[0])
            {
                self.emptied.insert(text.clone());
            }
            assert_eq!(
                below(fresh, &split(text)),
                Leaves::new(),
                "'{text}' is told as removed and is there"
            );
        }
        let told: Vec<Path> = altered
            .added
            .iter()
            .chain(&altered.updated)
            .map(|text| split(text))
            .collect();
        for (path, value) in filled(leaves(state)) {
            let asked = told.iter().any(|told| path.starts_with(told));
            let agent = path.len() == 2 && path[0] == "agents"; // The way to something below it.
            assert!(
                asked || agent || is_partner(&path),
                "'{path:?}' comes with an event that does not tell of it"
            );
            assert_eq!(
                everything.get(&path),
                Some(&value),
                "an event holds another value than a read: {path:?}"
            );
        }
        for path in &told {
            assert!(
                change(&mut self.copy, state, path),
                "the copy has no place for {path:?}"
            );
        }
        for text in &altered.removed {
            // Of overlapping masks the shorter one may have taken the way to it.
            change(&mut self.copy, &Node::empty(), &split(text));
        }
    }
}

// -------------------------------------------------------------- a random run

struct Run {
    cluster: Cluster,
    random: Random,
    agents: Vec<(String, PeerId)>,
    clients: Vec<Client>,
    numbers: usize,
    /// Steps so far, for the message of a failure.
    steps: Vec<String>,
    accepted: usize,
    events: usize,
}

impl Run {
    fn new(seed: u64) -> Self {
        Self {
            cluster: Cluster::default(),
            random: Random::with_seed(seed),
            agents: Vec::new(),
            clients: Vec::new(),
            numbers: 0,
            steps: Vec::new(),
            accepted: 0,
            events: 0,
        }
    }

    fn step(&mut self) {
        match self.random.u8(..100) {
            0..8 => self.agent_comes(),
            8..13 => self.agent_goes(),
            13..38 => self.agent_reports(),
            38..44 => self.agent_load(),
            44..80 => self.update(),
            80..92 if self.clients.len() < CLIENTS_MAX => self.client_comes(),
            _ => self.client_goes(),
        }
    }

    fn note(&mut self, step: String) {
        self.steps.push(step);
    }

    fn any_agent(&mut self) -> Option<(String, PeerId)> {
        let index = self.random.usize(..self.agents.len().max(1));
        self.agents.get(index).cloned()
    }

    fn agent_comes(&mut self) {
        let name = one_of(&mut self.random, &AGENTS[..2]).to_owned();
        let tags: BTreeMap<String, String> = if self.random.bool() {
            [("k1".to_owned(), "1".to_owned())].into()
        } else {
            BTreeMap::new()
        };
        self.note(format!("agent '{name}' comes with {tags:?}"));
        if let Some(index) = self.agents.iter().position(|(known, _)| *known == name) {
            let (_, old) = self.agents.remove(index);
            self.clients.retain(|client| client.peer != old);
        }
        let peer = self.cluster.open(PeerHello::Agent(AgentHello {
            agent: name.clone(),
            tags,
            ..AgentHello::default()
        }));
        self.agents.push((name, peer));
    }

    fn agent_goes(&mut self) {
        let Some((name, peer)) = self.any_agent() else {
            return;
        };
        self.note(format!("agent '{name}' goes"));
        self.agents.retain(|(_, other)| *other != peer);
        self.clients.retain(|client| client.peer != peer);
        if self.random.bool() {
            self.cluster.close(peer);
        } else {
            self.cluster.send(peer, ToServer::Goodbye);
        }
    }

    fn agent_reports(&mut self) {
        let Some((name, peer)) = self.any_agent() else {
            return;
        };
        let states: Vec<WorkloadState> = (0..=self.random.usize(..3))
            .map(|_| self.random_state(&name))
            .collect();
        self.note(format!("agent '{name}' reports {states:?}"));
        let known: Vec<InstanceName> = self.instances_of(&name);
        let removed = states
            .iter()
            .filter(|state| state.state.phase == Phase::Removed && *state.instance.agent == *name);
        let mut gone: BTreeSet<Name> = removed
            .map(|state| state.instance.workload.clone())
            .collect();
        self.cluster.send(peer, ToServer::WorkloadStates(states));
        // A first report also tells what the agent has lost.
        let left = self.instances_of(&name);
        gone.extend(
            known
                .into_iter()
                .filter(|instance| !left.contains(instance))
                .map(|instance| instance.workload),
        );
        // What a removed workload asked for ends with it.
        let ended = |id: &str| {
            id.split_once('@')
                .is_some_and(|(workload, _)| gone.contains(workload))
        };
        self.clients
            .retain(|client| client.peer != peer || !ended(&client.id));
    }

    fn instances_of(&self, agent: &str) -> Vec<InstanceName> {
        self.cluster
            .server
            .updates
            .workloads()
            .states
            .of_agent(agent)
            .map(|(instance, _)| instance)
            .collect()
    }

    fn random_state(&mut self, agent: &str) -> WorkloadState {
        let random = &mut self.random;
        let workload = one_of(random, &WORKLOADS);
        let id = [hash_id("x"), hash_id("y"), "1".to_owned()][random.usize(..3)].clone();
        // Sometimes of another agent, which the server has to ignore.
        let agent = if chance(random, 5) {
            one_of(random, &AGENTS)
        } else {
            agent
        };
        let (phase, ..) = if chance(random, 25) {
            Phase::ALL[15]
        } else {
            Phase::ALL[random.usize(..16)]
        };
        let info = one_of(
            random,
            &["", "info", "Triggered at runtime.", "inactive: no camera"],
        );
        WorkloadState::new(
            InstanceName::with_id(workload, &id, agent),
            ExecutionState::from_text(phase, info),
        )
    }

    fn agent_load(&mut self) {
        let Some((agent, peer)) = self.any_agent() else {
            return;
        };
        let (cpu_usage, free_memory) = (self.random.u32(..2), self.random.u64(1..3));
        self.note(format!("load of '{agent}': {cpu_usage} {free_memory}"));
        self.cluster.send(
            peer,
            ToServer::AgentLoad(AgentLoad {
                agent,
                cpu_usage,
                free_memory,
                engine: String::new(),
            }),
        );
    }

    // ---------------------------------------------------------- subscribers

    fn client_comes(&mut self) {
        let masks: Vec<String> = (0..self.random.usize(..4))
            .map(|_| random_mask(&mut self.random, true))
            .collect();
        self.numbers += 1;
        let replaced = self.random.usize(..self.clients.len().max(1));
        let agent = self.any_agent().filter(|_| chance(&mut self.random, 25));
        let (peer, id) = match (self.clients.get(replaced), agent) {
            // Other masks under the same id replace the old ones.
            (Some(known), _) if chance(&mut self.random, 30) => (known.peer, known.id.clone()),
            (_, Some((_, peer))) => (
                peer,
                format!("{}@{}", one_of(&mut self.random, &WORKLOADS), self.numbers),
            ),
            _ => (self.cluster.commander(), self.numbers.to_string()),
        };
        self.note(format!("{peer:?} subscribes '{id}' to {masks:?}"));
        self.clients
            .retain(|client| (client.peer, &client.id) != (peer, &id));
        self.cluster.take(peer);
        let may_ask = self.may_ask(peer, &id);
        let read = ReadState {
            masks: masks.clone(),
            subscribe: true,
        };
        self.cluster
            .send_request(peer, &id, RequestContent::CompleteState(read));
        let messages = self.cluster.take(peer);
        let state = match messages.as_slice() {
            [
                FromServer::Response(Response {
                    content: ResponseContent::Error(ErrorResponse { text, .. }),
                    ..
                }),
            ] if may_ask != Some(true) && text.starts_with("Access denied") => {
                return;
            }
            [
                FromServer::Response(Response {
                    content:
                        ResponseContent::CompleteState {
                            state,
                            altered: None,
                        },
                    ..
                }),
            ] if may_ask != Some(false) => state,
            other => panic!("{other:?}, {may_ask:?}"),
        };
        self.clients.push(Client {
            peer,
            id,
            masks,
            copy: state.clone(),
            emptied: BTreeSet::new(),
        });
    }

    /// Whether a client may read: a workload does so by its rules, on the agent that it is for.
    /// `None` when it is for another one and has not stopped on this, which its last rules decide.
    fn may_ask(&self, peer: PeerId, id: &str) -> Option<bool> {
        let Some((agent, _)) = self.agents.iter().find(|(_, other)| *other == peer) else {
            return Some(true);
        };
        let workload = id.split_once('@').unwrap().0;
        let view = self.cluster.server.view();
        match view
            .effective
            .get(workload)
            .filter(|added| *added.instance.agent == **agent)
        {
            Some(added) => Some(
                !added
                    .workload
                    .control_interface_access
                    .allow_rules
                    .is_empty(),
            ),
            None if view
                .states
                .of_agent_workload(agent, workload)
                .next()
                .is_none() =>
            {
                Some(false)
            }
            None => None,
        }
    }

    fn client_goes(&mut self) {
        if self.clients.is_empty() {
            return;
        }
        let client = self
            .clients
            .swap_remove(self.random.usize(..self.clients.len()));
        self.note(format!("'{}' of {:?} ends", client.id, client.peer));
        let of_agent = self.agents.iter().any(|(_, peer)| *peer == client.peer);
        let others = self.clients.iter().any(|other| other.peer == client.peer);
        if of_agent || others || self.random.bool() {
            self.cluster
                .send_request(client.peer, &client.id, RequestContent::EventsCancel);
        } else {
            self.cluster.close(client.peer);
        }
    }

    /// Gives every client its events and compares its copy with a fresh read.
    fn compare(&mut self) {
        let whole = self.cluster.server.view().read(&[]);
        let everything = leaves(&whole);
        let mut messages: BTreeMap<PeerId, Vec<FromServer>> = BTreeMap::new();
        for client in &mut self.clients {
            let inbox = messages
                .entry(client.peer)
                .or_insert_with(|| self.cluster.take(client.peer));
            let read = self.cluster.server.view().read(&client.masks);
            let fresh = part(&read, &client.masks);
            assert_eq!(
                fresh,
                part(&whole, &client.masks),
                "a read with {:?} differs from the whole",
                client.masks
            );
            for path in filled(leaves(&read)).keys() {
                let way = path.len() == 2 && path[0] == "agents";
                assert!(
                    selected(path, &client.masks) || way || is_partner(path),
                    "{path:?} is not in {:?}",
                    client.masks
                );
            }
            let events = inbox.iter().filter_map(|message| match message {
                FromServer::Response(Response {
                    id,
                    content:
                        ResponseContent::CompleteState {
                            state,
                            altered: Some(altered),
                        },
                }) if *id == client.id => Some((state, altered)),
                _ => None,
            });
            let events: Vec<(&Node, &AlteredFields)> = events.collect();
            assert!(
                events.len() <= 1,
                "one trigger, several events for '{}': {events:?}",
                client.id
            );
            for (state, altered) in &events {
                client.take_event(state, altered, &fresh, &everything);
            }
            self.events += events.len();
            let copy = part(&client.copy, &client.masks);
            assert_eq!(
                copy, fresh,
                "the copy of '{}' with masks {:?} after {inbox:?}",
                client.id, client.masks
            );
        }
        self.cluster.take_all();
    }

    // -------------------------------------------------------------- updates

    /// Forgets the subscriptions of workloads whose rules were taken away, and only these.
    fn forget_denied(&mut self) {
        for client in std::mem::take(&mut self.clients) {
            let may_ask = self.may_ask(client.peer, &client.id);
            let follows = self.cluster.server.is_subscribed(client.peer, &client.id);
            assert!(
                may_ask.is_none_or(|may_ask| may_ask == follows),
                "'{}' follows: {follows}",
                client.id
            );
            if follows {
                self.clients.push(client);
            }
        }
    }

    fn update(&mut self) {
        let new = random_new_state(&mut self.random);
        let masks: Vec<String> = (0..self.random.usize(..4))
            .map(|_| random_mask(&mut self.random, false))
            .collect();
        self.note(format!(
            "update {} with masks {masks:?}",
            serde_json::to_string(&new).unwrap()
        ));
        let before = self.cluster.server.view().read(&[]);
        let commander = self.cluster.commander();
        let update = UpdateState {
            new_state: Some(Ok(new.clone())),
            masks: masks.clone(),
            ..Default::default()
        };
        let answer = self
            .cluster
            .request(commander, RequestContent::UpdateState(update));
        self.cluster.send(commander, ToServer::Goodbye);
        self.forget_denied();
        let after = self.cluster.server.view().read(&[]);
        let expected = if masks.is_empty() {
            Ok(new)
        } else {
            by_masks(&before, &sparse(new), &masks)
        };
        match (answer, expected) {
            (ResponseContent::Error(ErrorResponse { text, .. }), Err(mask)) => {
                assert_eq!(
                    text,
                    format!("Update rejected: 'Could not find field {mask}'")
                );
                assert_eq!(before, after, "a refused update changed something");
            }
            (ResponseContent::Error(_), _) => {
                assert_eq!(before, after, "a refused update changed something")
            }
            (ResponseContent::UpdateStateSuccess { .. }, Ok(tree)) => {
                self.accepted += 1;
                let desired = |tree: &Node| part(tree, &["desiredState".to_owned()]);
                assert_eq!(
                    desired(&after),
                    desired(&with_defaults(tree.clone())),
                    "masks {masks:?}"
                );
                for name in after.get("agents").and_then(Node::as_map).unwrap().keys() {
                    let tags = [format!("agents.{name}.tags")];
                    let asked = node_at(&tree, &split(&format!("agents.{name}"))).is_some();
                    let expected = part(if asked { &tree } else { &before }, &tags);
                    assert_eq!(part(&after, &tags), expected, "masks {masks:?}");
                }
            }
            (answer, expected) => panic!("{answer:?} where {expected:?} is right"),
        }
    }
}

/// The tree that `masks` make of the current one, or the first mask that leads nowhere.
fn by_masks(before: &Node, new: &Node, masks: &[String]) -> Result<Node, String> {
    let Node::Map(mut tree) = before.clone() else {
        panic!("a state is a map")
    };
    tree.insert("workloadStates".to_owned(), Node::empty());
    let nothing = [
        ("apiVersion", Node::text("v1")),
        ("workloads", Node::empty()),
        ("configs", Node::empty()),
    ];
    tree.insert("effectiveState".to_owned(), Node::map(nothing));
    let mut tree = Node::Map(tree);
    for mask in masks {
        if !change(&mut tree, new, &split(mask)) {
            return Err(mask.clone());
        }
    }
    Ok(tree)
}

/// Without the containers that mean the same as none when they are empty.
fn sparse(mut new: Node) -> Node {
    fn without_empty(node: Option<&mut Node>, keys: &[&str]) {
        if let Some(Node::Map(entries)) = node {
            entries.retain(|key, child| !(keys.contains(&&**key) && child.is_empty_container()));
        }
    }
    let parts = new.as_map_mut().unwrap();
    for agent in parts
        .get_mut("agents")
        .and_then(Node::as_map_mut)
        .into_iter()
        .flat_map(Entries::values_mut)
    {
        without_empty(Some(agent), &["tags"]);
    }
    without_empty(parts.get_mut("desiredState"), &["configs"]);
    let desired = parts.get_mut("desiredState").and_then(Node::as_map_mut);
    let workloads = desired
        .and_then(|state| state.get_mut("workloads"))
        .and_then(Node::as_map_mut);
    for workload in workloads.into_iter().flat_map(Entries::values_mut) {
        without_empty(
            Some(workload),
            &["tags", "dependencies", "configs", "files"],
        );
    }
    new
}

/// Adds the fields that a state has by default.
fn with_defaults(mut tree: Node) -> Node {
    let parts = tree.as_map_mut().unwrap();
    if !parts.contains_key("desiredState") {
        parts.insert(
            "desiredState",
            Node::map([("apiVersion", Node::text("v1"))]),
        );
    }
    let workloads = parts
        .child("desiredState")
        .as_map_mut()
        .and_then(|state| state.get_mut("workloads"))
        .and_then(Node::as_map_mut);
    for workload in workloads
        .into_iter()
        .flat_map(Entries::values_mut)
        .filter_map(Node::as_map_mut)
    {
        if !workload.contains_key("restartPolicy") {
            workload.insert("restartPolicy", Node::text("NEVER"));
        }
        if let Some(Node::Text(config)) = workload.get_mut("runtimeConfig") {
            *config = config.trim().into();
        }
    }
    tree
}

// ---------------------------------------------------------- random contents

/// A path of some depth, sometimes with wildcards or beside everything that exists.
fn random_mask(random: &mut Random, reading: bool) -> String {
    let (workload, agent, key) = (
        one_of(random, &WORKLOADS),
        one_of(random, &AGENTS),
        one_of(random, &KEYS),
    );
    let id = if random.bool() {
        hash_id("x")
    } else {
        hash_id("y")
    };
    let field = one_of(
        random,
        &[
            "agent",
            "restartPolicy",
            "runtimeConfig",
            "tags.",
            "tags.",
            "dependencies.",
            "configs.alias",
            "files",
        ],
    );
    let field = match field {
        "tags." => format!("tags.{key}"),
        "dependencies." => format!("dependencies.{}", one_of(random, &WORKLOADS)),
        other => other.to_owned(),
    };
    let state = one_of(
        random,
        &[
            "desiredState",
            "desiredState",
            "desiredState",
            "effectiveState",
        ],
    );
    let path = match random.u8(..if reading { 10 } else { 7 }) {
        // Into a list of the new state, and a field that only a map has.
        0 if !reading && random.bool() => format!(
            "{state}.configs.k2.{}",
            one_of(random, &["0", "1", "1.x", "0.x"])
        ),
        0 => format!("{state}.configs.k3.{}", one_of(random, &["x", "y.z"])),
        1 => format!("{state}.configs.{key}"),
        2 => format!("{state}.apiVersion"),
        3 => format!(
            "agents.{agent}.{}",
            one_of(random, &["tags.k1", "tags.k2", "status.cpuUsage"])
        ),
        4..7 => format!("{state}.workloads.{workload}.{field}"),
        _ => {
            let field = one_of(random, &["state", "subState", "additionalInfo", "reason"]);
            format!("workloadStates.{agent}.{workload}.{id}.{field}")
        }
    };
    let mut parts = split(&path);
    // Updates mostly name something, reads may end anywhere.
    let shortest = if reading { 1 } else { 3.min(parts.len()) };
    let kept = if chance(random, 5) {
        1
    } else {
        random.usize(shortest..=parts.len())
    };
    parts.truncate(kept);
    for part in &mut parts {
        if reading && chance(random, 25) {
            "*".clone_into(part);
        } else if chance(random, 2) {
            "nothing".clone_into(part);
        }
    }
    if chance(random, 4) {
        parts.push(one_of(random, &["0", "*", "", "x"]).to_owned());
    }
    parts.join(".")
}

/// A state as users send it: often partial, sometimes wrong.
fn random_new_state(random: &mut Random) -> Node {
    let mut workloads = Entries::default();
    for name in WORKLOADS {
        if chance(random, 60) {
            workloads.insert(name.to_owned(), random_workload(random));
        }
    }
    let version = if chance(random, 90) { "v1" } else { "v0.1" };
    let mut desired = vec![
        ("apiVersion", Node::text(version)),
        ("workloads", Node::Map(workloads)),
    ];
    if chance(random, 80) {
        desired.push(("configs", random_configs(random)));
    }
    let mut parts = vec![("desiredState", Node::map(desired))];
    if chance(random, 70) {
        let mut agents = Vec::new();
        for name in &AGENTS[..2] {
            if chance(random, 70) {
                agents.push((
                    *name,
                    Node::map([("tags", random_texts(random, &KEYS[..2]))]),
                ));
            }
        }
        parts.push(("agents", Node::map(agents)));
    }
    Node::map(parts)
}

fn random_workload(random: &mut Random) -> Node {
    let mut fields = vec![
        ("agent", Node::text(one_of(random, &AGENTS))),
        ("runtime", Node::text("podman")),
        (
            "runtimeConfig",
            Node::text(one_of(random, &RUNTIME_CONFIGS)),
        ),
        ("tags", random_texts(random, &KEYS)),
        ("configs", Node::map([("alias", Node::text("k1"))])),
    ];
    if chance(random, 80) {
        let rule = [
            ("type", Node::text("StateRule")),
            ("operation", Node::text("Read")),
            ("filterMasks", Node::List(vec![Node::text("*")])),
        ];
        let rules = Node::map([("allowRules", Node::List(vec![Node::map(rule)]))]);
        fields.push(("controlInterfaceAccess", rules));
    }
    if random.bool() {
        fields.push((
            "restartPolicy",
            Node::text(one_of(random, &["NEVER", "ALWAYS", "ON_FAILURE"])),
        ));
    }
    if chance(random, 20) {
        let other = one_of(random, &WORKLOADS);
        fields.push((
            "dependencies",
            Node::map([(other, Node::text("ADD_COND_RUNNING"))]),
        ));
    }
    if chance(random, 20) {
        let file = [
            ("mountPoint", Node::text("/f")),
            ("data", Node::text(one_of(random, &["1", "{{alias}}"]))),
        ];
        fields.push(("files", Node::List(vec![Node::map(file)])));
    }
    if chance(random, 3) {
        fields.swap_remove(random.usize(..3)); // Something that has to be there.
    }
    Node::map(fields)
}

fn random_texts(random: &mut Random, keys: &[&str]) -> Node {
    let kept: Vec<&&str> = keys.iter().filter(|_| random.bool()).collect();
    Node::map(
        kept.into_iter()
            .map(|key| (*key, Node::text(one_of(random, &["1", "2"]))))
            .collect::<Vec<_>>(),
    )
}

/// Each key has a kind of its own and keeps it. `k1` is what workloads refer to, so it is seldom
/// missing.
fn random_configs(random: &mut Random) -> Node {
    let mut items = Vec::new();
    if chance(random, 90) {
        items.push(("k1", Node::text(one_of(random, &["1", "2"]))));
    }
    if random.bool() {
        let entry = |index: usize| match index {
            1 => Node::map([("x", Node::text("1"))]),
            _ => Node::text(index.to_string()),
        };
        items.push((
            "k2",
            Node::List((0..random.usize(..3)).map(entry).collect()),
        ));
    }
    if random.bool() {
        let mut inner = vec![("x", Node::text(one_of(random, &["1", "2"])))];
        if random.bool() {
            inner.push((
                "y",
                Node::map([("z", Node::text(one_of(random, &["1", "2"])))]),
            ));
        }
        items.push(("k3", Node::map(inner)));
    }
    Node::map(items)
}

// ------------------------------------------------------------------ the test

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable)
        .ok()
        .filter(|text| !text.is_empty())?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is a number, not '{text}'")),
    )
}

/// Runs one seed. Answers accepted updates and events.
#[allow(clippy::print_stderr)] // Belongs to the failure.
fn run(seed: u64) -> (usize, usize) {
    let mut run = Run::new(seed);
    let result = catch_unwind(AssertUnwindSafe(|| {
        for _ in 0..STEPS {
            run.step();
            run.compare();
        }
    }));
    if let Err(panic) = result {
        eprintln!(
            "--- ANKAIOS_PROPERTY_SEED={seed} repeats this run; its steps:\n{}",
            run.steps.join("\n")
        );
        resume_unwind(panic);
    }
    (run.accepted, run.events)
}

#[test]
fn reads_updates_and_events_agree_for_random_states_and_masks() {
    if let Some(seed) = number("ANKAIOS_PROPERTY_SEED") {
        run(seed);
        return;
    }
    let seeds = number("ANKAIOS_PROPERTY_SEEDS").unwrap_or(SEEDS);
    let (mut accepted, mut events) = (0, 0);
    for (updates, told) in (0..seeds).map(run) {
        accepted += updates;
        events += told;
    }
    // Or the runs would show nothing.
    let runs = usize::try_from(seeds).unwrap();
    assert!(
        accepted >= runs && events >= 5 * runs,
        "{accepted} accepted updates and {events} events in {seeds} runs"
    );
}

/// What an update does for one mask, without regard to others.
fn apply_one(tree: &mut Node, new: &Node, mask: &str) -> Option<()> {
    let path = parts(mask);
    let (last, parents) = path.split_last().filter(|_| !mask.is_empty())?;
    let value = value_at(new, &path);
    let mut place = tree;
    for key in parents {
        let entries = place.as_map_mut()?;
        place = if value.is_some() {
            entries.child((*key).to_owned())
        } else {
            entries.get_mut(*key)?
        };
    }
    let entries = place.as_map_mut()?;
    match value {
        Some(node) => drop(entries.insert((*last).to_owned(), node.clone())),
        None => drop(entries.remove(*last)),
    }
    Some(())
}
