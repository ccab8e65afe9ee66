//! A whole cluster on one thread: server, agents, engines and the network between them, in virtual
//! time.
//!
//! Thread: the one of the test. Each part that can do something now is an [`Actor`]; a step lets one
//! of them, chosen by the seed, do one thing. Time passes only when none can.

use super::agent_expectations::AgentExpectations;
use super::disk::Disk;
use super::disturbances::Disturbances;
use super::engine::{Discarded, SimEngine};
use super::guarded_updates::{GuardedUpdates, StagingReports};
use super::life::{Life, LifeOptions, Part};
use super::modes::{self, OwnSwitches};
use super::network::{Network, StreamId, StreamWork};
use super::progress::Progress;
use super::server_expectations::{Before, ServerExpectations, not_in_force, to_restart};
use super::subscriber::Subscriber;
use super::trace::Trace;
use super::workload_requests::WorkloadRequests;
use ankaios_agent::events::SchedulerEvent;
use ankaios_agent::limits::RECONNECT_PAUSE;
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::complete_state::DesiredState;
use ankaios_model::execution_state::Phase;
use ankaios_model::messages::{
    AgentCapabilities, AgentHello, FromServer, Request, RequestContent, ResponseContent, ToServer,
};
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::refusal::ErrorResponse;
use ankaios_platform::clock::Clock;
use ankaios_server::{ServerEvent, ServerLoop};
use ankaios_wire::outbox::outbox;
use ankaios_wire::peer::{MessagePermits, PeerEvent, PeerHello, PeerId};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

mod checks;

/// One machine with an agent.
pub(crate) struct SimNode {
    pub name: Name,
    pub engine: SimEngine,
    pub life: Option<Life>,
    pub expectations: AgentExpectations,
    lives: u64,
    options: LifeOptions,
    start_at: Option<Instant>,
    connect_at: Option<Instant>,
    stream: Option<StreamId>,
    /// The first one of this life of its agent.
    first_stream: Option<StreamId>,
    /// Its agent is stopped until then, as by SIGSTOP.
    paused_until: Option<Instant>,
    /// The requests and subscriptions of its workloads on this connection.
    requests: WorkloadRequests,
    /// Its agent stages updates.
    stages: bool,
    /// Reports the progress of staged instances in place of the agent.
    preparing: Option<StagingReports>,
}

/// A part that can do something now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Actor {
    Part(usize, Part),
    Uplink(usize),
    Connect(usize),
    StartAgent(usize),
    Engine(usize),
    Stream(StreamId, StreamWork),
    Subscriber(usize),
    Disk,
    StartServer,
    WakeServer,
    Prepared(usize),
}

/// A pause of an agent that is longer may cost it its connection.
const PAUSE_UNNOTICED: Duration = Duration::from_secs(10);

/// The cluster.
pub(crate) struct Cluster {
    pub clock: ManualClock,
    pub random: fastrand::Rng,
    pub trace: Trace,
    /// `None` while it is down.
    pub server: Option<ServerLoop>,
    pub nodes: Vec<SimNode>,
    pub steps: u64,
    progress: Progress,
    pub violations: Vec<String>,
    /// The instances of a server that only uses the reports on a connection. Ours also forgets by
    /// itself the instances that an agent does not have any more, others do not.
    pub reported: BTreeSet<InstanceName>,
    expectations: ServerExpectations,
    /// Only where updates may be guarded.
    guarded: Option<GuardedUpdates>,
    /// The stream from which the server accepts messages of each agent. Messages of older ones mean
    /// nothing.
    current_streams: BTreeMap<usize, StreamId>,
    network: Network,
    /// The startup manifest of the next server, unless that has a disk.
    pub manifest: DesiredState,
    /// The server is stopped until then, as by SIGSTOP.
    server_paused_until: Option<Instant>,
    start_server_at: Option<Instant>,
    commanders: u64,
    /// Whether the server has modes, and a hook.
    pub has_modes: bool,
    own_switches: OwnSwitches,
    /// The workloads that the last accepted update of a commander changed.
    pub last_changed: BTreeSet<Name>,
    /// Workloads that the last requested restart should have ended.
    not_restarted: BTreeSet<Name>,
    subscribers: Vec<Subscriber>,
    /// Where the server keeps its state, if it does. Otherwise it is started with a manifest.
    disk: Option<Disk>,
    folder: PathBuf,
    /// The percentage of targets after which control loops continue before the scheduler.
    haste: u32,
    /// Decides about haste, so that the rest of a seed stays the same without it.
    hasty: fastrand::Rng,
}

/// Names an actor, for people who look for the reason of a failure.
fn name_of(actor: Actor, nodes: &mut [SimNode]) -> String {
    match actor {
        Actor::Part(index, Part::Loop(task)) => {
            let node = &mut nodes[index];
            let workload = node.life.as_mut().map(|life| life.workload_of(task));
            format!("{}: wl:{}", node.name, workload.unwrap_or_default())
        }
        Actor::Part(index, part) => format!("{}: {part:?}", nodes[index].name),
        Actor::Uplink(index)
        | Actor::Connect(index)
        | Actor::StartAgent(index)
        | Actor::Engine(index)
        | Actor::Prepared(index) => format!("{}: {actor:?}", nodes[index].name),
        Actor::Stream(..)
        | Actor::Subscriber(_)
        | Actor::Disk
        | Actor::StartServer
        | Actor::WakeServer => format!("{actor:?}"),
    }
}

impl Cluster {
    /// A server without workloads, and agents that are about to connect.
    pub(crate) fn new(
        mut random: fastrand::Rng,
        trace: Trace,
        clock: ManualClock,
        disturbances: &Disturbances,
    ) -> Self {
        let count = random.usize(1..=5);
        let nodes = ["A", "B", "C", "D", "E"].into_iter().take(count);
        let nodes = nodes
            .map(|name| SimNode {
                name: name.into(),
                engine: SimEngine::new(&clock, random.fork(), trace.clone(), disturbances.engine),
                life: None,
                expectations: AgentExpectations::new(name.into(), 0),
                lives: 0,
                options: LifeOptions {
                    parallel_starts: random.usize(1..=4),
                    create_timeout: random.bool().then_some(Duration::from_secs(30)),
                    pidfds: random.u8(0..4) > 0,
                    seed: random.u64(..),
                    prepare: disturbances.preparation(name),
                    boot: 0,
                },
                start_at: Some(clock.now()),
                connect_at: None,
                stream: None,
                first_stream: None,
                paused_until: None,
                requests: WorkloadRequests::default(),
                stages: false,
                preparing: None,
            })
            .collect();
        let mut disk = random.bool().then(|| Disk::new(&clock));
        let (mut nodes, is_guarded): (Vec<SimNode>, bool) = (nodes, disturbances.guards > 0);
        for node in nodes
            .iter_mut()
            .filter(|node| is_guarded && node.options.seed % 4 > 0)
        {
            node.stages = true;
            node.preparing = (node.options.seed % 4 == 1)
                .then(|| StagingReports::new(&clock, node.options.seed));
        }
        let foreign = nodes
            .iter()
            .filter(|node| !node.stages)
            .map(|node| node.name.clone())
            .collect();
        let has_modes = disturbances.modes > 0;
        let mut server = modes::new_server(has_modes);
        server.set_clock(clock.clone());
        if let Some(disk) = &mut disk {
            disk.start(&mut server);
        }
        let subscribers = random.usize(0..=3);
        let mut cluster = Self {
            network: Network::new(&clock, random.fork(), disturbances.slow_network),
            progress: Progress::new(clock.now()),
            clock,
            random,
            trace,
            server: Some(server),
            nodes,
            steps: 0,
            violations: Vec::new(),
            reported: BTreeSet::new(),
            expectations: ServerExpectations::new(is_guarded),
            guarded: is_guarded.then(|| GuardedUpdates::new(foreign)),
            current_streams: BTreeMap::new(),
            manifest: DesiredState::default(),
            server_paused_until: None,
            start_server_at: None,
            commanders: 1 << 32,
            has_modes,
            own_switches: OwnSwitches::default(),
            last_changed: BTreeSet::new(),
            not_restarted: BTreeSet::new(),
            subscribers: Vec::new(),
            disk,
            // Nothing can be created there, so workloads have no pipes: their requests are put where
            // these would.
            folder: "/proc/nowhere/ankaios-simulation".into(),
            haste: disturbances.haste,
            hasty: fastrand::Rng::with_seed(u64::from(disturbances.haste)),
        };
        for _ in 0..subscribers {
            cluster.subscribe();
        }
        cluster
    }

    // --------------------------------------------------------------- stepping

    /// Lets time pass until `end`, one step after the other. Stops early at a violation.
    pub(crate) fn run_until(&mut self, end: Instant) {
        let mut ready = Vec::new();
        while self.violations.is_empty() {
            ready.clear();
            self.ready(&mut ready);
            if ready.is_empty() {
                let due = self.due().map_or(end, |due| due.min(end));
                if due >= end {
                    self.clock.advance(self.clock.until(end));
                    return;
                }
                self.clock.advance(self.clock.until(due));
                continue;
            }
            let actor = ready[self.random.usize(..ready.len())];
            let name = || name_of(actor, &mut self.nodes);
            if let Err(violation) = self.progress.count(self.clock.now(), name) {
                self.violations.push(violation);
                return;
            }
            self.step(actor);
        }
    }

    fn ready(&mut self, ready: &mut Vec<Actor>) {
        let now = self.clock.now();
        let reached = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if reached(self.start_server_at) {
            ready.push(Actor::StartServer);
        }
        if reached(self.server_paused_until) {
            self.server_paused_until = None;
        }
        let server_runs = self.server_paused_until.is_none();
        if server_runs && reached(self.disk.as_ref().and_then(Disk::due)) {
            ready.push(Actor::Disk);
        }
        if server_runs && reached(self.server.as_ref().and_then(ServerLoop::due)) {
            ready.push(Actor::WakeServer);
        }
        for (index, subscriber) in self.subscribers.iter().enumerate() {
            if subscriber.reads_at <= now {
                ready.push(Actor::Subscriber(index));
            }
        }
        let mut parts = Vec::new();
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if reached(node.engine.due()) {
                ready.push(Actor::Engine(index));
            }
            if reached(node.start_at) {
                ready.push(Actor::StartAgent(index));
            }
            let Some(life) = &mut node.life else {
                continue;
            };
            if let Some(until) = node.paused_until
                && until > now
            {
                continue;
            }
            node.paused_until = None;
            if reached(node.connect_at) {
                ready.push(Actor::Connect(index));
            }
            if node.stream.is_some() && !life.uplink.woken().is_empty() {
                ready.push(Actor::Uplink(index));
            }
            if node.stream.is_some()
                && reached(node.preparing.as_ref().and_then(StagingReports::due))
            {
                ready.push(Actor::Prepared(index));
            }
            life.ready(&mut parts);
            ready.extend(parts.drain(..).map(|part| Actor::Part(index, part)));
        }
        let room = |node: usize| {
            let node = &self.nodes[node];
            node.paused_until.is_none()
                && node.life.as_ref().is_none_or(|life| !life.events.is_full())
        };
        self.network.ready(now, server_runs, room, |stream, work| {
            ready.push(Actor::Stream(stream, work))
        });
    }

    fn due(&mut self) -> Option<Instant> {
        let mut due = Vec::new();
        due.extend(self.network.due());
        due.extend(self.start_server_at);
        match self.server_paused_until {
            Some(until) => due.push(until),
            None => {
                due.extend(self.disk.as_ref().and_then(Disk::due));
                due.extend(self.server.as_ref().and_then(ServerLoop::due));
            }
        }
        for subscriber in &self.subscribers {
            due.push(subscriber.reads_at);
        }
        for node in &mut self.nodes {
            due.extend(node.engine.due());
            due.extend(node.start_at);
            if let Some(until) = node.paused_until {
                due.push(until);
                continue;
            }
            if let Some(life) = &mut node.life {
                due.extend(node.connect_at);
                due.push(life.due());
            }
            if node.stream.is_some()
                && let Some(preparing) = &node.preparing
            {
                due.extend(preparing.due());
            }
        }
        due.into_iter().min()
    }

    fn step(&mut self, actor: Actor) {
        self.steps += 1;
        match actor {
            Actor::Part(node, part) => self.step_part(node, part),
            Actor::Uplink(node) => self.send_up(node),
            Actor::Connect(node) => self.connect(node),
            Actor::StartAgent(node) => self.start_agent(node),
            Actor::Engine(node) => self.nodes[node].engine.step(),
            Actor::Stream(stream, work) => self.step_stream(stream, work),
            Actor::Subscriber(index) => self.follow(index),
            Actor::Disk => {
                if let Some(disk) = &mut self.disk {
                    disk.step(&mut self.random);
                }
                self.violations.extend(self.lost_state());
            }
            Actor::StartServer => self.start_server(),
            Actor::WakeServer => self.server_event(ServerEvent::Due, false, false),
            Actor::Prepared(index) => {
                let node = &mut self.nodes[index];
                if let Some(preparing) = &mut node.preparing
                    && let Some(report) = preparing.next()
                    && let Some(stream) = node.stream
                {
                    self.network
                        .send_up(stream, ToServer::Prepared(vec![report]));
                }
            }
        }
        let now = self.clock.now();
        for node in &mut self.nodes {
            self.violations.extend(node.engine.take_violations());
            let number = node.life.as_ref().map(|life| life.number);
            for (life, instance, workload) in node.engine.take_started() {
                if number == Some(life) {
                    self.violations
                        .extend(node.expectations.check_start(&instance, &workload, now));
                }
            }
            for (caller, instance) in node.engine.take_stopped() {
                if number == Some(caller.life) {
                    self.violations
                        .extend(node.expectations.check_stop(&instance, &caller.runtime));
                }
            }
        }
    }

    fn step_part(&mut self, index: usize, part: Part) {
        let node = &mut self.nodes[index];
        let Some(life) = &mut node.life else { return };
        match part {
            Part::Scheduler => {
                let event = life.events.try_recv().ok();
                if let Some(event) = &event {
                    self.trace
                        .line(|| format!("{}: {}", node.name, Trace::event(event)));
                }
                if let Some(SchedulerEvent::Listed {
                    runtime,
                    result: Ok(_),
                }) = &event
                {
                    node.engine.note_listed(life.number, runtime);
                }
                node.expectations
                    .before(event.as_ref(), &life.manager, &node.engine);
                let had_loop = life.manager.loops();
                node.engine.take_discarded();
                let hurry = (self.haste > 0).then(|| life.hurry(self.haste, self.hasty.fork()));
                match event {
                    Some(event) => life.manager.on_event(event),
                    None => life.manager.tick(),
                }
                drop(hurry);
                for Discarded { added, level } in node.engine.take_discarded() {
                    let is_new = !had_loop.contains(&added.instance.workload);
                    if is_new && life.manager.prepares(&added, level) {
                        let instance = added.instance;
                        self.violations.push(format!(
                            "'{instance}' was prepared, is removed and prepared again"
                        ));
                    }
                }
                node.expectations
                    .after(&life.manager, &node.engine, self.clock.now());
                let events = life.take_events();
                self.pass_on(index, events);
            }
            Part::Loop(task) => {
                let (workload, events) = life.step_loop(task);
                self.trace.line(|| format!("{}: wl:{workload}", node.name));
                self.pass_on(index, events);
            }
            Part::Checker(index) => life.step_checker(index),
            Part::Probes => life.step_probes(),
        }
    }

    /// Passes statuses of control loops on to the scheduler of their node.
    fn pass_on(&mut self, index: usize, events: Vec<SchedulerEvent>) {
        let node = &mut self.nodes[index];
        let Some(life) = &node.life else { return };
        for event in events {
            // Now: the container may be another one when the scheduler comes to it.
            for report in node.expectations.reported(&event) {
                let early = node
                    .expectations
                    .check_ready(&report, life.number, &node.engine);
                self.violations.extend(early);
                self.violations.extend(node.expectations.check_end(&report));
            }
            let _ = life.inbox.send(event); // The other end is part of the same life.
        }
    }

    // ---------------------------------------------------------------- network

    fn connect(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let Some(life) = &node.life else { return };
        if self.server.is_none() {
            node.connect_at = Some(self.clock.now() + RECONNECT_PAUSE);
            return;
        }
        node.connect_at = None;
        life.uplink.connected();
        let stream = self.network.open(index);
        self.trace
            .line(|| format!("{}: connects with stream {}", node.name, stream.0));
        node.stream = Some(stream);
        node.first_stream.get_or_insert(stream);
        node.requests = WorkloadRequests::default();
        node.preparing.iter_mut().for_each(StagingReports::reset);
        self.send_up(index);
    }

    fn send_up(&mut self, index: usize) {
        let node = &self.nodes[index];
        let (Some(life), Some(stream)) = (&node.life, node.stream) else {
            return;
        };
        let _ = life.uplink.woken().try_recv();
        let mut asked = Vec::new();
        while let Some(message) = life.uplink.next() {
            if let ToServer::Request(request) = &message {
                asked.push(request.clone());
            }
            self.network.send_up(stream, message);
        }
        for request in asked {
            self.nodes[index].requests.note(request);
        }
    }

    fn step_stream(&mut self, stream: StreamId, work: StreamWork) {
        let peer = PeerId(stream.0);
        match work {
            StreamWork::Open => {
                let node = &self.nodes[self.network.node(stream)];
                let name = node.name.to_string();
                let capabilities = AgentCapabilities {
                    prepares: node.stages,
                    ..Default::default()
                };
                let (outbox, reader) = outbox();
                let hello = PeerHello::Agent(AgentHello {
                    agent: name,
                    capabilities,
                    ..AgentHello::default()
                });
                self.note_opened(stream);
                self.network
                    .opened(stream, self.server.is_some().then_some(reader));
                self.send_to_server(PeerEvent::Opened {
                    peer,
                    hello,
                    source: String::new(),
                    certificate_expires: None,
                    outbox,
                });
            }
            StreamWork::Up => {
                if let Some(message) = self.network.take_up(stream) {
                    self.trace.line(|| {
                        format!(
                            "server: stream {} says {}",
                            stream.0,
                            Trace::message(&message)
                        )
                    });
                    self.note_reported(stream, &message);
                    let node = self.network.node(stream);
                    let heard = self.current_streams.get(&node) == Some(&stream);
                    match (&message, &mut self.guarded) {
                        (ToServer::Prepared(reports), Some(guarded)) if heard => {
                            guarded.reported(reports)
                        }
                        (ToServer::WorkloadStates(states), _) if heard => {
                            self.expectations.reported(states)
                        }
                        _ => {}
                    }
                    self.send_checked(heard, peer, Some(node), message);
                }
            }
            StreamWork::Pump => self.network.pump(stream),
            StreamWork::Down => {
                let node = &mut self.nodes[self.network.node(stream)];
                if let (Some(message), Some(life)) = (self.network.take_down(stream), &node.life) {
                    if let FromServer::Prepare(list) = &message {
                        node.engine.note_staged(list);
                    }
                    if let FromServer::Response(response) = message {
                        self.violations.extend(node.requests.check(&response));
                        life.control.deliver(response);
                    } else if let (FromServer::Prepare(list), Some(preparing)) =
                        (&message, &mut node.preparing)
                    {
                        preparing.list(list);
                    } else {
                        life.inbox.send(SchedulerEvent::Server(message)).unwrap();
                    }
                }
            }
            StreamWork::ServerNotices => {
                self.trace
                    .line(|| format!("server: stream {} has ended", stream.0));
                let node = self.network.node(stream);
                if self.current_streams.get(&node) == Some(&stream) {
                    self.current_streams.remove(&node);
                    if let Some(guarded) = &mut self.guarded {
                        guarded.disconnected(&self.nodes[node].name);
                    }
                }
                self.network.close_server_end(stream);
                self.send_to_server(PeerEvent::Closed { peer });
            }
            StreamWork::ClientNotices => {
                let index = self.network.node(stream);
                self.network.close_client_end(stream);
                let node = &mut self.nodes[index];
                if node.stream == Some(stream)
                    && let Some(life) = &node.life
                {
                    self.trace
                        .line(|| format!("{}: stream {} has ended", node.name, stream.0));
                    node.stream = None;
                    life.uplink.disconnected();
                    life.inbox.send(SchedulerEvent::ServerGone).unwrap();
                    node.connect_at = Some(self.clock.now() + RECONNECT_PAUSE);
                }
            }
        }
    }

    /// Notes a stream that opens. It means nothing if the server already accepts messages from a
    /// newer one of the agent.
    fn note_opened(&mut self, stream: StreamId) {
        let node = self.network.node(stream);
        if self.server.is_some()
            && self
                .current_streams
                .get(&node)
                .is_none_or(|speaking| *speaking < stream)
        {
            self.current_streams.insert(node, stream);
            // A removal that was lost with the connection before is not repeated.
            let name = &self.nodes[node].name;
            self.reported.retain(|instance| instance.agent != *name);
            if let Some(guarded) = &mut self.guarded {
                guarded.disconnected(&self.nodes[node].name);
            }
        }
    }

    fn note_reported(&mut self, stream: StreamId, message: &ToServer) {
        let ToServer::WorkloadStates(states) = message else {
            return;
        };
        let node = self.network.node(stream);
        // The last reports of one life are unknown to the next one.
        let is_of_this_life = match self.nodes[node].first_stream {
            Some(first) => first <= stream,
            None => false,
        };
        if self.server.is_none()
            || !is_of_this_life
            || self.current_streams.get(&node) != Some(&stream)
        {
            return;
        }
        for state in states {
            if state.state.phase == Phase::Removed {
                self.reported.remove(&state.instance);
            } else {
                self.reported.insert(state.instance.clone());
            }
        }
    }

    fn send_to_server(&mut self, event: PeerEvent) {
        let mut is_request = false;
        let mut may_switch = false;
        if let PeerEvent::Message { message, .. } = &event {
            is_request = matches!(message, ToServer::Request(_));
            may_switch = matches!(message, ToServer::WorkloadStates(_));
        }
        self.server_event(ServerEvent::Peer(event), is_request, may_switch);
    }

    /// Lets the server handle an event, which `is_request` or not. Only one that `may_switch` may
    /// let it switch the mode by itself.
    fn server_event(&mut self, event: ServerEvent, is_request: bool, may_switch: bool) {
        let Some(server) = &mut self.server else {
            return;
        };
        let mode = |server: &ServerLoop| modes::mode(server.view().desired).map(str::to_owned);
        let was = mode(server).filter(|_| may_switch);
        let before = (was.is_some() || self.guarded.is_some()).then(|| Before::of(server));
        server.on_event(event);
        server.serve_all_waiting();
        if let (Some(guarded), Some(before)) = (&mut self.guarded, &before) {
            let known = guarded.updates().clone();
            self.violations
                .extend(guarded.check(before, is_request, server));
            for line in guarded.news(&known) {
                self.trace.line(|| format!("server: {line}"));
            }
        }
        if may_switch {
            if mode(server) != was {
                self.trace
                    .line(|| "server: switches because of a failure".to_owned());
            }
            self.violations.extend(
                self.own_switches
                    .note(was.as_deref(), mode(server).as_deref()),
            );
        }
        if !is_request && let Some(before) = before {
            // An update was switched or rolled back, or the mode was switched.
            self.expectations.note_ended(&before, server);
        }
        self.expectations.forget_gone(server);
        self.network.server_spoke();
    }

    /// Sends a message to the server, which accepts it if it is `heard`, and checks the result. It
    /// comes through the agent of `node`, or from a commander.
    fn send_checked(&mut self, heard: bool, peer: PeerId, node: Option<usize>, message: ToServer) {
        let ToServer::Request(request) = &message else {
            return self.send_to_server(PeerEvent::Message {
                peer,
                message,
                permits: MessagePermits::default(),
            });
        };
        // First the due work of the server, so that all later changes are requested.
        self.server_event(ServerEvent::Due, false, false);
        let allowed = match (node, &self.server) {
            (Some(node), Some(server)) => {
                let node = &mut self.nodes[node];
                let allowed = self.expectations.may_request(server, &node.name, request);
                if let Some(allowed) = allowed
                    && let Some(stream) = node.stream
                    && stream.0 == peer.0
                {
                    node.requests.decided(&request.id, allowed);
                }
                allowed.unwrap_or(true)
            }
            _ => true,
        };
        let update = match &request.content {
            RequestContent::UpdateState(update) => {
                Some(update.clone()).filter(|update| update.new_state.is_some())
            }
            // Only commanders ask for it here.
            RequestContent::RollBack(number) => {
                let known = self.server.as_ref().zip(self.guarded.as_ref());
                known.and_then(|(server, guarded)| guarded.rollback_of(*number, server))
            }
            _ => {
                return self.send_to_server(PeerEvent::Message {
                    peer,
                    message,
                    permits: MessagePermits::default(),
                });
            }
        };
        let update = update.filter(|_| heard && allowed);
        if update.as_ref().is_some_and(modes::writes_mode) {
            self.own_switches.client_wrote();
        }
        let before = self.server.as_ref().map(Before::of);
        let to_restart = match &self.server {
            Some(server) => to_restart(&request.content, server),
            None => BTreeSet::new(),
        };
        self.send_to_server(PeerEvent::Message {
            peer,
            message,
            permits: MessagePermits::default(),
        });
        if let (Some(server), Some(before)) = (&self.server, before) {
            self.not_restarted = &to_restart - &server.restarting();
            self.violations
                .extend(self.expectations.check(&before, update.as_ref(), server));
            self.violations.extend(self.forbidden_subscription());
        }
    }

    /// Lets a commander connect, request a change of the state and disconnect. Returns the error if
    /// it is refused; `None` without a server.
    pub(crate) fn ask(&mut self, content: RequestContent) -> Option<Result<(), String>> {
        if self.server.is_none() || self.server_paused_until.is_some() {
            return None;
        }
        self.commanders += 1;
        let peer = PeerId(self.commanders);
        let (outbox, reader) = outbox();
        self.send_to_server(PeerEvent::Opened {
            peer,
            hello: PeerHello::Commander,
            source: String::new(),
            certificate_expires: None,
            outbox,
        });
        let request = Request {
            id: "r".to_owned(),
            content,
        };
        self.send_checked(true, peer, None, ToServer::Request(request));
        let answer = std::iter::from_fn(|| reader.try_next()).last();
        self.send_to_server(PeerEvent::Message {
            peer,
            message: ToServer::Goodbye,
            permits: MessagePermits::default(),
        });
        match answer {
            Some(ankaios_model::messages::FromServer::Response(response)) => {
                match response.content {
                    ResponseContent::UpdateStateSuccess { added, deleted, .. } => {
                        if !self.not_restarted.is_empty() {
                            self.violations
                                .push(format!("a restart leaves {:?} running", self.not_restarted));
                        }
                        let names = added
                            .iter()
                            .chain(&deleted)
                            .filter_map(|text| InstanceName::parse(text));
                        self.last_changed = names.map(|instance| instance.workload).collect();
                        Some(Ok(()))
                    }
                    ResponseContent::Error(ErrorResponse { text, .. }) => Some(Err(text)),
                    other => panic!("{other:?}"),
                }
            }
            other => panic!("no answer but {other:?}"),
        }
    }

    /// Lets a workload of a node send a request through its agent, which does not check its rules
    /// here: the server must. The response is checked; while the agent is not connected, requests
    /// wait.
    pub(crate) fn send_workload_request(
        &mut self,
        index: usize,
        workload: &str,
        content: RequestContent,
    ) {
        self.commanders += 1;
        let node = &mut self.nodes[index];
        let Some(life) = &node.life else { return };
        let request = Request {
            id: format!("{workload}@{}", self.commanders),
            content,
        };
        self.trace
            .line(|| format!("{}: a workload asks '{}'", node.name, request.id));
        life.requests.put_request(request, None);
    }

    // ------------------------------------------------------------- subscribers

    fn subscribe(&mut self) {
        self.commanders += 1;
        let peer = PeerId(self.commanders);
        let (outbox, reader) = outbox();
        let kind = self.random.usize(..5);
        let kind = if self.commanders.is_multiple_of(3) {
            5 + kind % 2
        } else {
            kind
        };
        let subscriber = Subscriber::new(reader, peer, kind, self.clock.now());
        let request = subscriber.request();
        self.subscribers.push(subscriber);
        self.send_to_server(PeerEvent::Opened {
            peer,
            hello: PeerHello::Commander,
            source: String::new(),
            certificate_expires: None,
            outbox,
        });
        self.send_to_server(PeerEvent::Message {
            peer,
            message: ToServer::Request(request),
            permits: MessagePermits::default(),
        });
    }

    fn follow(&mut self, index: usize) {
        let wait = Duration::from_millis(self.random.u64(1..20_000));
        let subscriber = &mut self.subscribers[index];
        subscriber.reads_at = self.clock.now() + wait;
        let Some(server) = &self.server else { return };
        self.violations
            .extend(subscriber.follow(|masks| server.view().read(masks)));
    }

    // ---------------------------------------------------------- start and kill

    fn start_agent(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        node.start_at = None;
        node.lives += 1;
        let mut options = node.options;
        options.seed = options.seed.wrapping_add(node.lives);
        let (name, number) = (node.name.clone(), node.lives);
        self.trace.line(|| format!("{name}: life {number} starts"));
        node.life = Some(Life::start(
            &name,
            number,
            &node.engine,
            &self.clock,
            &self.folder,
            options,
        ));
        node.expectations = AgentExpectations::new(name, number);
        node.connect_at = Some(self.clock.now());
    }

    /// Kills an agent; its calls and containers continue unless the whole node is restarted.
    pub(crate) fn kill_agent(&mut self, index: usize, back_after: Duration, reboot: bool) {
        let node = &mut self.nodes[index];
        let Some(life) = node.life.take() else { return };
        self.trace.line(|| {
            format!(
                "{}: killed{}",
                node.name,
                if reboot { " with its node" } else { "" }
            )
        });
        let number = life.number;
        drop(life);
        // It is unknown which of its removals arrived.
        self.reported.retain(|instance| instance.agent != node.name);
        node.first_stream = None;
        node.engine.orphan(number);
        if reboot {
            node.engine.reboot();
            node.options.boot += 1;
        }
        (node.connect_at, node.paused_until) = (None, None);
        node.start_at = Some(self.clock.now() + back_after);
        if let Some(stream) = node.stream.take() {
            if reboot {
                self.network.cut(stream);
            } else {
                self.network.client_dies(stream);
            }
        }
    }

    /// Kills the server; its successor starts with the last desired state.
    pub(crate) fn kill_server(&mut self, back_after: Duration) {
        self.violations.extend(self.lost_state());
        let Some(server) = self.server.take() else {
            return;
        };
        self.trace.line(|| "server: killed".to_owned());
        self.expectations.server_killed();
        self.manifest = server.view().desired.clone();
        drop(server);
        if let Some(disk) = &mut self.disk {
            disk.killed();
        }
        self.reported.clear();
        self.current_streams.clear();
        self.network.server_dies();
        self.server_paused_until = None;
        self.start_server_at = Some(self.clock.now() + back_after);
    }

    /// Makes the newest state on the disk of the server unreadable, while that is not running.
    pub(crate) fn damage_disk(&mut self) {
        if self.server.is_none()
            && let Some(disk) = &mut self.disk
        {
            disk.damage();
        }
    }

    fn start_server(&mut self) {
        self.start_server_at = None;
        self.trace.line(|| "server: starts".to_owned());
        let mut server = modes::new_server(self.has_modes);
        server.set_clock(self.clock.clone());
        self.own_switches.client_wrote(); // Failures are reported to it again.
        if let Some(disk) = &mut self.disk {
            self.violations.extend(disk.start(&mut server));
        } else {
            server
                .start_with(self.manifest.clone())
                .expect("it was accepted before");
            if *server.view().desired != self.manifest {
                self.violations
                    .push("the server does not start with its manifest".to_owned());
            }
        }
        self.violations.extend(not_in_force(&server));
        if let Some(guarded) = &mut self.guarded {
            guarded.restarted(&server);
        }
        self.server = Some(server);
        let subscribers = std::mem::take(&mut self.subscribers).len();
        for _ in 0..subscribers {
            self.subscribe();
        }
    }

    /// Stops the process of an agent for a while. The server drops its connection when that takes
    /// long.
    pub(crate) fn pause(&mut self, index: usize, until: Duration) {
        let node = &mut self.nodes[index];
        if node.life.is_none() {
            return;
        }
        self.trace
            .line(|| format!("{}: paused for {until:?}", node.name));
        node.paused_until = Some(self.clock.now() + until);
        if until > PAUSE_UNNOTICED
            && let Some(stream) = node.stream
        {
            self.network.cut(stream);
        }
    }

    /// Stops the process of the server for a while. Agents give up their connections when that
    /// takes long.
    pub(crate) fn pause_server(&mut self, until: Duration) {
        if self.server.is_some() {
            self.trace.line(|| format!("server: paused for {until:?}"));
            self.server_paused_until = Some(self.clock.now() + until);
            self.network.server_pauses(until);
        }
    }

    /// Replaces a commander that follows events, with a goodbye or without.
    pub(crate) fn change_subscriber(&mut self) {
        if self.subscribers.is_empty()
            || self.server.is_none()
            || self.server_paused_until.is_some()
        {
            return;
        }
        let index = self.random.usize(..self.subscribers.len());
        let peer = self.subscribers.swap_remove(index).peer;
        self.trace.line(|| format!("commander: {} goes", peer.0));
        if self.random.bool() {
            self.send_to_server(PeerEvent::Message {
                peer,
                message: ToServer::Goodbye,
                permits: MessagePermits::default(),
            });
        }
        self.send_to_server(PeerEvent::Closed { peer });
        self.subscribe();
    }

    /// Delays the messages between an agent and the server.
    pub(crate) fn stall(&mut self, index: usize) {
        if let Some(stream) = self.nodes[index].stream {
            self.trace.line(|| {
                format!(
                    "network: stream {} of {} stalls",
                    stream.0, self.nodes[index].name
                )
            });
            self.network.stall(stream);
        }
    }

    /// Breaks the connection of an agent; both ends notice it later.
    pub(crate) fn cut(&mut self, index: usize) {
        if let Some(stream) = self.nodes[index].stream {
            self.trace.line(|| {
                format!(
                    "network: stream {} of {} is cut",
                    stream.0, self.nodes[index].name
                )
            });
            self.network.cut(stream);
        }
    }

    /// Ends all disturbances.
    pub(crate) fn calm_down(&mut self) {
        for node in &mut self.nodes {
            node.paused_until = None;
        }
        self.server_paused_until = None;
        self.trace.line(|| "nothing disturbs any more".to_owned());
        self.network.calm_down();
        for node in &self.nodes {
            node.engine.calm_down();
        }
    }
}
