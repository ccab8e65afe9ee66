//! A whole cluster on one thread: server, agents, engines and the network between them, in virtual
//! time.
//!
//! Thread: the one of the test. Each part that can do something now is an [`Actor`]. A step lets
//! one of them do one thing; the seed chooses which. Time passes only when none can do anything.

use super::agent_expectations::AgentExpectations;
use super::disk::Disk;
use super::disturbances::Disturbances;
use super::engine::{Discarded, SimEngine};
use super::guarded_updates::{GuardedUpdates, StagingReports};
use super::life::{Life, LifeOptions, Part};
use super::modes::{self, OwnSwitches};
use super::network::{Network, StreamId, StreamStep, StreamWork, is_reached};
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
use ankaios_wire::outbox::{Outbox, outbox};
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
    /// The first stream of this life of its agent.
    first_stream: Option<StreamId>,
    /// Its agent is paused until then, as by SIGSTOP.
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
    Stream(StreamStep),
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
    /// The instances of a server that only uses the reports on a connection. Our server also
    /// forgets instances that an agent does not have any more; other servers do not.
    pub reported: BTreeSet<InstanceName>,
    pub expectations: ServerExpectations,
    /// The guarded updates, if there may be any.
    guarded: Option<GuardedUpdates>,
    /// The stream from which the server accepts messages of each agent. It ignores older ones.
    current_streams: BTreeMap<usize, StreamId>,
    network: Network,
    /// The startup manifest of the next server, unless that has a disk.
    pub manifest: DesiredState,
    /// The server is paused until then, as by SIGSTOP.
    server_paused_until: Option<Instant>,
    start_server_at: Option<Instant>,
    /// The peer id of the last commander. These ids begin above those of streams.
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
    /// Targets after which control loops continue before the scheduler, in percent.
    haste: u32,
    /// Draws for `haste` only, so that all else of a seed stays the same without it.
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
        Actor::Stream(_)
        | Actor::Subscriber(_)
        | Actor::Disk
        | Actor::StartServer
        | Actor::WakeServer => format!("{actor:?}"),
    }
}

impl SimNode {
    /// A node whose agent is about to start.
    fn new(
        name: &str,
        clock: &ManualClock,
        random: &mut fastrand::Rng,
        trace: &Trace,
        disturbances: &Disturbances,
    ) -> Self {
        let engine = SimEngine::new(clock, random.fork(), trace.clone(), disturbances.engine);
        let parallel_starts = random.usize(1..=4);
        let create_timeout = if random.bool() {
            Some(Duration::from_secs(30))
        } else {
            None
        };
        let options = LifeOptions {
            parallel_starts,
            create_timeout,
            pidfds: random.u8(0..4) > 0,
            seed: random.u64(..),
            prepare: disturbances.preparation(name),
            lags: disturbances.lags,
            boot: 0,
        };
        let mut stages = false;
        let mut preparing = None;
        if disturbances.guards > 0 {
            // Of four agents one does not stage, and one does so by these reports alone.
            let kind = options.seed % 4;
            stages = kind != 0;
            if kind == 1 {
                preparing = Some(StagingReports::new(clock, options.seed));
            }
        }
        Self {
            name: name.into(),
            engine,
            life: None,
            expectations: AgentExpectations::new(name.into(), 0),
            lives: 0,
            options,
            start_at: Some(clock.now()),
            connect_at: None,
            stream: None,
            first_stream: None,
            paused_until: None,
            requests: WorkloadRequests::default(),
            stages,
            preparing,
        }
    }

    /// Whether the agent takes another message.
    fn has_room(&self) -> bool {
        if self.paused_until.is_some() {
            return false;
        }
        match &self.life {
            Some(life) => !life.events.is_full(),
            None => true,
        }
    }

    /// When the next report about staged instances is due.
    fn staging_report_due(&self) -> Option<Instant> {
        self.stream?;
        self.preparing.as_ref()?.due()
    }

    /// Takes the starts and stops that its engine has begun for the present agent. Returns those
    /// that are against the expectations.
    fn check_engine(&mut self, now: Instant) -> Vec<String> {
        let mut violations = self.engine.take_violations();
        let started = self.engine.take_started();
        let stopped = self.engine.take_stopped();
        let Some(life) = &self.life else {
            return violations;
        };
        for start in started {
            if start.life == life.number {
                let violation =
                    self.expectations
                        .check_start(&start.instance, &start.workload, now);
                violations.extend(violation);
            }
        }
        for stop in stopped {
            if stop.caller.life == life.number {
                let runtime = &stop.caller.runtime;
                violations.extend(self.expectations.check_stop(&stop.added, runtime));
            }
        }
        violations
    }
}

/// A message of a peer to the server.
fn message_of(peer: PeerId, message: ToServer) -> PeerEvent {
    PeerEvent::Message {
        peer,
        message,
        permits: MessagePermits::default(),
    }
}

/// The connection of a commander.
fn opened_by_commander(peer: PeerId, outbox: Outbox) -> PeerEvent {
    PeerEvent::Opened {
        peer,
        hello: PeerHello::Commander,
        source: String::new(),
        certificate_expires: None,
        outbox,
    }
}

/// The mode that is desired of a server.
fn mode_of(server: &ServerLoop) -> Option<String> {
    modes::mode(server.view().desired).map(str::to_owned)
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
        let mut nodes = Vec::new();
        for name in &["A", "B", "C", "D", "E"][..count] {
            let node = SimNode::new(name, &clock, &mut random, &trace, disturbances);
            nodes.push(node);
        }
        let mut disk = None;
        if random.bool() {
            disk = Some(Disk::new(&clock));
        }
        let is_guarded = disturbances.guards > 0;
        let mut guarded = None;
        if is_guarded {
            let mut foreign = BTreeSet::new();
            for node in &nodes {
                if !node.stages {
                    foreign.insert(node.name.clone());
                }
            }
            guarded = Some(GuardedUpdates::new(foreign));
        }
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
            guarded,
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
            // Nothing can be created there, so workloads have no pipes: the simulation puts their
            // requests into the outbox of the agent.
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
                let next = match self.due() {
                    Some(due) if due < end => due,
                    _ => end,
                };
                self.clock.advance(self.clock.until(next));
                if next == end {
                    return;
                }
                continue;
            }
            let actor = ready[self.random.usize(..ready.len())];
            let now = self.clock.now();
            let counted = self.progress.count(now, || name_of(actor, &mut self.nodes));
            if let Err(violation) = counted {
                self.violations.push(violation);
                return;
            }
            self.step(actor);
        }
    }

    /// Adds the parts that can do something now.
    fn ready(&mut self, ready: &mut Vec<Actor>) {
        let now = self.clock.now();
        self.ready_of_server(now, ready);
        for (index, subscriber) in self.subscribers.iter().enumerate() {
            if subscriber.reads_at <= now {
                ready.push(Actor::Subscriber(index));
            }
        }
        for index in 0..self.nodes.len() {
            self.ready_of_node(index, now, ready);
        }
        let mut has_room = Vec::new();
        for node in &self.nodes {
            has_room.push(node.has_room());
        }
        let mut steps = Vec::new();
        let server_runs = self.server_paused_until.is_none();
        self.network.ready(now, server_runs, &has_room, &mut steps);
        for step in steps {
            ready.push(Actor::Stream(step));
        }
    }

    fn ready_of_server(&mut self, now: Instant, ready: &mut Vec<Actor>) {
        if is_reached(self.start_server_at, now) {
            ready.push(Actor::StartServer);
        }
        if is_reached(self.server_paused_until, now) {
            self.server_paused_until = None;
        }
        if self.server_paused_until.is_some() {
            return;
        }
        if let Some(disk) = &self.disk
            && is_reached(disk.due(), now)
        {
            ready.push(Actor::Disk);
        }
        if let Some(server) = &self.server
            && is_reached(server.due(), now)
        {
            ready.push(Actor::WakeServer);
        }
    }

    fn ready_of_node(&mut self, index: usize, now: Instant, ready: &mut Vec<Actor>) {
        let node = &mut self.nodes[index];
        if is_reached(node.engine.due(), now) {
            ready.push(Actor::Engine(index));
        }
        if is_reached(node.start_at, now) {
            ready.push(Actor::StartAgent(index));
        }
        let is_report_due = is_reached(node.staging_report_due(), now);
        let Some(life) = &mut node.life else {
            return;
        };
        if let Some(until) = node.paused_until
            && until > now
        {
            return;
        }
        node.paused_until = None;
        if is_reached(node.connect_at, now) {
            ready.push(Actor::Connect(index));
        }
        if node.stream.is_some() && !life.uplink.woken().is_empty() {
            ready.push(Actor::Uplink(index));
        }
        if is_report_due {
            ready.push(Actor::Prepared(index));
        }
        let mut parts = Vec::new();
        life.ready(&mut parts);
        for part in parts {
            ready.push(Actor::Part(index, part));
        }
    }

    /// When a part continues without an event.
    fn due(&mut self) -> Option<Instant> {
        let mut due = Vec::new();
        due.extend(self.network.due());
        due.extend(self.start_server_at);
        match self.server_paused_until {
            Some(until) => due.push(until),
            None => {
                if let Some(disk) = &self.disk {
                    due.extend(disk.due());
                }
                if let Some(server) = &self.server {
                    due.extend(server.due());
                }
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
            due.extend(node.staging_report_due());
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
            Actor::Stream(step) => self.step_stream(step),
            Actor::Subscriber(index) => self.follow(index),
            Actor::Disk => {
                if let Some(disk) = &mut self.disk {
                    disk.step(&mut self.random);
                }
                self.violations.extend(self.lost_state());
            }
            Actor::StartServer => self.start_server(),
            Actor::WakeServer => self.server_event(ServerEvent::Due, false, false),
            Actor::Prepared(node) => self.report_staging(node),
        }
        let now = self.clock.now();
        for node in &mut self.nodes {
            self.violations.extend(node.check_engine(now));
        }
    }

    fn report_staging(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let (Some(preparing), Some(stream)) = (&mut node.preparing, node.stream) else {
            return;
        };
        if let Some(report) = preparing.next() {
            let message = ToServer::Prepared(vec![report]);
            self.network.send_up(stream, message);
        }
    }

    fn step_part(&mut self, index: usize, part: Part) {
        let node = &mut self.nodes[index];
        let Some(life) = &mut node.life else { return };
        match part {
            Part::Scheduler => self.step_scheduler(index),
            Part::Loop(task) => {
                let (workload, events) = life.step_loop(task);
                self.trace.line(|| format!("{}: wl:{workload}", node.name));
                self.pass_on(index, events);
            }
            Part::Checker(index) => life.step_checker(index),
            Part::Probes => life.step_probes(),
        }
    }

    /// Lets the scheduler of a node handle an event or its due work, and checks the consequences.
    fn step_scheduler(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let Some(life) = &mut node.life else { return };
        // First: the expectations take the event.
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
        // Then: the scheduler handles it. Control loops may continue meanwhile.
        let had_loop = life.manager.loops();
        node.engine.take_discarded();
        let mut hurry = None;
        if self.haste > 0 {
            hurry = Some(life.hurry(self.haste, self.hasty.fork()));
        }
        match event {
            Some(event) => life.manager.on_event(event),
            None => life.manager.tick(),
        }
        drop(hurry);
        // Finally: the consequences.
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

    /// Passes statuses of control loops on to the scheduler of their node.
    fn pass_on(&mut self, index: usize, events: Vec<SchedulerEvent>) {
        let node = &mut self.nodes[index];
        let Some(life) = &node.life else { return };
        for event in events {
            // Checked now: the container may be another one when the scheduler handles the report.
            for report in node.expectations.reported(&event, self.clock.now()) {
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
        if let Some(preparing) = &mut node.preparing {
            preparing.reset();
        }
        self.send_up(index);
    }

    /// Sends the messages in the outbox of an agent.
    fn send_up(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let (Some(life), Some(stream)) = (&node.life, node.stream) else {
            return;
        };
        let _ = life.uplink.woken().try_recv(); // All messages that are there are sent now.
        while let Some(message) = life.uplink.next() {
            if let ToServer::Request(request) = &message {
                node.requests.note(request.clone());
            }
            self.network.send_up(stream, message);
        }
    }

    fn step_stream(&mut self, StreamStep { stream, work }: StreamStep) {
        match work {
            StreamWork::Open => self.open_at_server(stream),
            StreamWork::Up => self.receive_at_server(stream),
            StreamWork::Pump => self.network.pump(stream),
            StreamWork::Down => self.receive_at_agent(stream),
            StreamWork::ServerNotices => self.end_at_server(stream),
            StreamWork::ClientNotices => self.end_at_agent(stream),
        }
    }

    /// The hello of an agent arrives.
    fn open_at_server(&mut self, stream: StreamId) {
        let node = &self.nodes[self.network.node(stream)];
        let hello = AgentHello {
            agent: node.name.to_string(),
            capabilities: AgentCapabilities {
                prepares: node.stages,
                ..AgentCapabilities::default()
            },
            ..AgentHello::default()
        };
        let (outbox, reader) = outbox();
        self.note_opened(stream);
        let mut server_reader = None;
        if self.server.is_some() {
            server_reader = Some(reader);
        }
        self.network.opened(stream, server_reader);
        self.send_to_server(PeerEvent::Opened {
            peer: PeerId(stream.0),
            hello: PeerHello::Agent(hello),
            source: String::new(),
            certificate_expires: None,
            outbox,
        });
    }

    /// A message of an agent arrives.
    fn receive_at_server(&mut self, stream: StreamId) {
        let Some(message) = self.network.take_up(stream) else {
            return;
        };
        self.trace.line(|| {
            let text = Trace::message(&message);
            format!("server: stream {} says {text}", stream.0)
        });
        self.note_reported(stream, &message);
        let node = self.network.node(stream);
        let is_accepted = self.current_streams.get(&node) == Some(&stream);
        if is_accepted {
            if let (ToServer::Prepared(reports), Some(guarded)) = (&message, &mut self.guarded) {
                guarded.reported(reports);
            }
            if let ToServer::WorkloadStates(states) = &message {
                self.expectations.reported(states);
            }
        }
        self.send_checked(is_accepted, PeerId(stream.0), Some(node), message);
    }

    /// A message of the server arrives.
    fn receive_at_agent(&mut self, stream: StreamId) {
        let node = &mut self.nodes[self.network.node(stream)];
        let Some(message) = self.network.take_down(stream) else {
            return;
        };
        let Some(life) = &node.life else {
            return;
        };
        if let FromServer::Prepare(list) = &message {
            node.engine.note_staged(list);
            if let Some(preparing) = &mut node.preparing {
                preparing.list(list);
                return; // The agent itself does not stage then.
            }
        }
        match message {
            FromServer::Response(response) => {
                self.violations.extend(node.requests.check(&response));
                life.control.deliver(response);
            }
            message => life.inbox.send(SchedulerEvent::Server(message)).unwrap(),
        }
    }

    /// The server notices the end of a stream.
    fn end_at_server(&mut self, stream: StreamId) {
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
        let peer = PeerId(stream.0);
        self.send_to_server(PeerEvent::Closed { peer });
    }

    /// An agent notices the end of its stream.
    fn end_at_agent(&mut self, stream: StreamId) {
        let index = self.network.node(stream);
        self.network.close_client_end(stream);
        let node = &mut self.nodes[index];
        if node.stream != Some(stream) {
            return;
        }
        let Some(life) = &node.life else {
            return;
        };
        self.trace
            .line(|| format!("{}: stream {} has ended", node.name, stream.0));
        node.stream = None;
        life.uplink.disconnected();
        life.inbox.send(SchedulerEvent::ServerGone).unwrap();
        node.connect_at = Some(self.clock.now() + RECONNECT_PAUSE);
    }

    /// Notes a stream that opens. It means nothing if the server already accepts messages from a
    /// newer one of the agent.
    fn note_opened(&mut self, stream: StreamId) {
        let node = self.network.node(stream);
        let is_newest = match self.current_streams.get(&node) {
            Some(current) => *current < stream,
            None => true,
        };
        if self.server.is_none() || !is_newest {
            return;
        }
        self.current_streams.insert(node, stream);
        // A removal that was lost with the connection before is not repeated.
        let name = &self.nodes[node].name;
        self.reported.retain(|instance| instance.agent != *name);
        if let Some(guarded) = &mut self.guarded {
            guarded.disconnected(name);
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
        let is_accepted = self.current_streams.get(&node) == Some(&stream);
        if self.server.is_none() || !is_of_this_life || !is_accepted {
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

    /// Lets the server handle an event. With `is_request` it is a request of a client. The server
    /// may switch the mode by itself only with an event that `may_switch`.
    fn server_event(&mut self, event: ServerEvent, is_request: bool, may_switch: bool) {
        let Some(server) = &mut self.server else {
            return;
        };
        let mut mode = None;
        if may_switch {
            mode = mode_of(server);
        }
        let before = Before::of(server);
        server.on_event(event);
        server.serve_all_waiting();
        if let Some(guarded) = &mut self.guarded {
            let known = guarded.updates().clone();
            self.violations
                .extend(guarded.check(&before, is_request, server));
            for line in guarded.news(&known) {
                self.trace.line(|| format!("server: {line}"));
            }
        }
        if may_switch {
            let new_mode = mode_of(server);
            if new_mode != mode {
                self.trace
                    .line(|| "server: switches because of a failure".to_owned());
            }
            let violation = self.own_switches.note(mode.as_deref(), new_mode.as_deref());
            self.violations.extend(violation);
        }
        if !is_request {
            // An update was switched or rolled back, the mode was switched, or a restart has begun,
            // grown or ended.
            self.expectations.note_ended(&before, server);
        }
        self.expectations.forget_gone(server);
        self.network.server_spoke();
    }

    /// Sends a message to the server, which accepts it or not, and checks the result. It comes
    /// through the agent of `node`, or from a commander.
    fn send_checked(
        &mut self,
        is_accepted: bool,
        peer: PeerId,
        node: Option<usize>,
        message: ToServer,
    ) {
        let ToServer::Request(request) = &message else {
            return self.send_to_server(message_of(peer, message));
        };
        // First: the due work of the server, so that all later changes are requested.
        self.server_event(ServerEvent::Due, false, false);
        // Then: the expected update.
        let is_allowed = match node {
            Some(node) => self.may_request(peer, node, request),
            None => true,
        };
        let mut update = match &request.content {
            RequestContent::UpdateState(update) if update.new_state.is_some() => {
                Some(update.clone())
            }
            RequestContent::UpdateState(_) => None,
            // Only commanders request it here.
            RequestContent::RollBack(number) => match (&self.server, &self.guarded) {
                (Some(server), Some(guarded)) => guarded.rollback_of(*number, server),
                _ => None,
            },
            _ => return self.send_to_server(message_of(peer, message)),
        };
        if !is_accepted || !is_allowed {
            update = None;
        }
        if let Some(update) = &update
            && modes::writes_mode(update)
        {
            self.own_switches.client_wrote();
        }
        let mut before = None;
        let mut restarts = BTreeSet::new();
        if let Some(server) = &self.server {
            before = Some(Before::of(server));
            restarts = to_restart(&request.content, server);
        }
        // Finally: the server handles it, and the result is compared.
        self.send_to_server(message_of(peer, message));
        if let (Some(server), Some(before)) = (&self.server, before) {
            self.not_restarted = &restarts - &server.restarting();
            self.violations
                .extend(self.expectations.check(&before, update.as_ref(), server));
            self.violations.extend(self.forbidden_subscription());
        }
    }

    /// Returns whether the workload that makes this request has the rights for it, and notes the
    /// expected response.
    fn may_request(&mut self, peer: PeerId, node: usize, request: &Request) -> bool {
        let Some(server) = &self.server else {
            return true;
        };
        let node = &mut self.nodes[node];
        let Some(is_allowed) = self.expectations.may_request(server, &node.name, request) else {
            return true;
        };
        if node.stream == Some(StreamId(peer.0)) {
            node.requests.decided(&request.id, is_allowed);
        }
        is_allowed
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
        self.send_to_server(opened_by_commander(peer, outbox));
        let request = Request {
            id: "r".to_owned(),
            content,
        };
        self.send_checked(true, peer, None, ToServer::Request(request));
        let mut answer = None;
        while let Some(message) = reader.try_next() {
            answer = Some(message);
        }
        self.send_to_server(message_of(peer, ToServer::Goodbye));
        let Some(FromServer::Response(response)) = answer else {
            panic!("no response but {answer:?}");
        };
        match response.content {
            ResponseContent::UpdateStateSuccess { added, deleted, .. } => {
                if !self.not_restarted.is_empty() {
                    self.violations
                        .push(format!("a restart leaves {:?} running", self.not_restarted));
                }
                if self.expectations.is_ignored() {
                    self.violations
                        .push("an accepted update has changed nothing".to_owned());
                }
                self.last_changed.clear();
                for text in added.iter().chain(&deleted) {
                    if let Some(instance) = InstanceName::parse(text) {
                        self.last_changed.insert(instance.workload);
                    }
                }
                Some(Ok(()))
            }
            ResponseContent::Error(ErrorResponse { text, .. }) => Some(Err(text)),
            other => panic!("{other:?}"),
        }
    }

    /// Lets a workload of a node send a request through its agent. The agent does not check its
    /// rules here, so the server must. The response is checked. While the agent is not connected,
    /// requests wait.
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
        let mut kind = self.random.usize(..5);
        // The last two kinds came later. They take no draw of their own, so old seeds do the same.
        if self.commanders.is_multiple_of(3) {
            kind = 5 + kind % 2;
        }
        let subscriber = Subscriber::new(reader, peer, kind, self.clock.now());
        let request = subscriber.request();
        self.subscribers.push(subscriber);
        self.send_to_server(opened_by_commander(peer, outbox));
        self.send_to_server(message_of(peer, ToServer::Request(request)));
    }

    /// Lets a subscriber read its messages and compare its copy.
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
        let name = node.name.clone();
        let number = node.lives;
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

    /// Kills an agent. Its calls and containers continue unless its node is restarted as well.
    pub(crate) fn kill_agent(&mut self, index: usize, back_after: Duration, reboot: bool) {
        let node = &mut self.nodes[index];
        let Some(life) = node.life.take() else { return };
        let with_node = if reboot { " with its node" } else { "" };
        self.trace
            .line(|| format!("{}: killed{with_node}", node.name));
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
        node.connect_at = None;
        node.paused_until = None;
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
        // Failures are reported to it again, so it may switch the mode once more.
        self.own_switches.client_wrote();
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

    /// Pauses the process of an agent. The server closes its connection when that takes long.
    pub(crate) fn pause(&mut self, index: usize, pause: Duration) {
        let node = &mut self.nodes[index];
        if node.life.is_none() {
            return;
        }
        self.trace
            .line(|| format!("{}: paused for {pause:?}", node.name));
        node.paused_until = Some(self.clock.now() + pause);
        if pause > PAUSE_UNNOTICED
            && let Some(stream) = node.stream
        {
            self.network.cut(stream);
        }
    }

    /// Pauses the process of the server. Agents close their connections when that takes long.
    pub(crate) fn pause_server(&mut self, pause: Duration) {
        if self.server.is_some() {
            self.trace.line(|| format!("server: paused for {pause:?}"));
            self.server_paused_until = Some(self.clock.now() + pause);
            self.network.server_pauses(pause);
        }
    }

    /// Replaces a subscriber. It ends its connection with a goodbye or without.
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
            self.send_to_server(message_of(peer, ToServer::Goodbye));
        }
        self.send_to_server(PeerEvent::Closed { peer });
        self.subscribe();
    }

    /// Delays the messages between an agent and the server.
    pub(crate) fn stall(&mut self, index: usize) {
        if let Some(stream) = self.nodes[index].stream {
            let name = &self.nodes[index].name;
            self.trace
                .line(|| format!("network: stream {} of {name} stalls", stream.0));
            self.network.stall(stream);
        }
    }

    /// Breaks the connection of an agent; both ends notice it later.
    pub(crate) fn cut(&mut self, index: usize) {
        if let Some(stream) = self.nodes[index].stream {
            let name = &self.nodes[index].name;
            self.trace
                .line(|| format!("network: stream {} of {name} is cut", stream.0));
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
