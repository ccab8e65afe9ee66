//! A whole agent without threads: scheduler, control loops and a state checker that a test steps.
//!
//! Thread: the one of the test.

use crate::control_interface::ControlHub;
use crate::engine_call::{CallContext, ContainerCall};
use crate::events::SchedulerEvent;
use crate::limits::STEPPED_INBOX;
use crate::resources::LoadSampler;
use crate::scheduler::Scheduler;
use crate::scheduler::conditions::NodeFacts;
use crate::scheduler::workloads::{StartLoop, WorkloadRecords};
use crate::state_checker::thread::WatchSender;
use crate::state_checker::{GoneReply, KnownEnd, ListReply, StateReply, WatchCommand};
use crate::uplink_outbox::{UplinkReader, uplink_outbox};
use crate::workload::inspection::{AfterTargets, after_each_target};
use crate::workload::start_slots::StartSlots;
use crate::workload::{
    Connector, EngineSource, Engines, LoopContext, LoopStep, WorkloadControlLoop,
};
use ankaios_fakes::fake_connector::FakeEngine;
use ankaios_fakes::fake_probes::{FakeProbes, ProbeAnswers};
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::messages::{AddedWorkload, DeletedWorkload, FromServer, ToServer, WorkloadPlan};
use ankaios_model::names::InstanceName;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::workload::{DeleteCondition, Workload};
use ankaios_platform::clock::Clock;
use ankaios_platform::limits::CONTROL_MESSAGE_MAX;
use ankaios_platform::service_manager::StatusBoard;
use ankaios_platform::sync::EventFd;
use ankaios_runtime::engine_children::EarlierCalls;
use ankaios_runtime::engine_version::EngineVersions;
use ankaios_runtime::{ContainerId, ListedContainer, RuntimeConnector};
use crossbeam_channel::{Receiver, bounded, unbounded};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Keeps control loops and steps them.
pub(crate) struct SteppedLoops {
    loops: Rc<RefCell<Loops>>,
    calls: Arc<Mutex<Calls>>,
    /// Engine calls do not begin.
    pub(crate) hold_calls: bool,
    refuse: Arc<AtomicBool>,
}

struct Loops {
    running: Vec<WorkloadControlLoop<ManualClock>>,
    started: Receiver<Box<WorkloadControlLoop<ManualClock>>>,
}

impl Loops {
    /// Runs one step of each loop. Returns whether any had something to do.
    fn step(&mut self) -> bool {
        let mut worked = false;
        self.running
            .extend(self.started.try_iter().map(|control_loop| *control_loop));
        self.running.retain_mut(|control_loop| {
            let step = control_loop.step();
            worked |= step != LoopStep::Idle;
            step != LoopStep::Ended
        });
        worked
    }
}

#[derive(Default)]
struct Calls {
    waiting: VecDeque<Box<ContainerCall>>,
    refuse: bool,
}

impl SteppedLoops {
    /// Returns an empty set of loops, and the function by which the agent starts them.
    fn new() -> (Self, StartLoop<ManualClock>) {
        let (start, started) = unbounded();
        let refuse = Arc::new(AtomicBool::new(false));
        let loops = Self {
            loops: Rc::new(RefCell::new(Loops {
                running: Vec::new(),
                started,
            })),
            calls: Arc::default(),
            hold_calls: false,
            refuse: refuse.clone(),
        };
        let start = move |_: &str, control_loop| {
            if refuse.load(Ordering::Relaxed) {
                return Err((io::ErrorKind::WouldBlock.into(), control_loop));
            }
            start
                .send(control_loop)
                .expect("the other end is part of the same agent");
            Ok(())
        };
        (loops, Box::new(start))
    }

    /// Makes the next starts of loops fail, as if the system had no threads left, or lets them
    /// succeed.
    pub(crate) fn refuse(&self, refuse: bool) {
        self.refuse.store(refuse, Ordering::Relaxed);
    }

    /// Runs one step of each loop, and one engine call. Returns whether any had something to do.
    pub(crate) fn step(&mut self) -> bool {
        let mut worked = self.loops.borrow_mut().step();
        let call = self.calls().waiting.pop_front_if(|_| !self.hold_calls);
        if let Some(call) = call {
            call.run();
            worked = true;
        }
        worked
    }

    /// How many loops have not ended.
    pub(crate) fn count(&self) -> usize {
        let loops = self.loops.borrow();
        loops.running.len() + loops.started.len()
    }

    /// How many engine calls have not begun.
    pub(crate) fn waiting_calls(&self) -> usize {
        self.calls().waiting.len()
    }

    /// Makes the next engine calls fail, as if the system had no more threads, or lets them
    /// succeed.
    pub(crate) fn refuse_calls(&self, refuse: bool) {
        self.calls().refuse = refuse;
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().expect("no thread panics with it")
    }

    /// When a loop has something to do without an event.
    fn due(&self) -> Option<Instant> {
        let loops = self.loops.borrow();
        loops
            .running
            .iter()
            .filter_map(WorkloadControlLoop::due)
            .min()
    }

    /// Runs all loops after each target, until the returned value is dropped.
    fn step_after_targets(&self) -> AfterTargets {
        let loops = self.loops.clone();
        after_each_target(move || {
            let mut loops = loops.borrow_mut();
            while loops.step() {}
        })
    }
}

/// A state checker that lists and reports at once.
struct SteppedChecker {
    engine: FakeEngine,
    /// Requests for listings that wait for a silent engine.
    waiting: Vec<ListReply>,
    commands: Receiver<WatchCommand>,
    connector: Box<dyn RuntimeConnector>,
    watched: BTreeMap<InstanceName, SteppedWatch>,
    prepared: BTreeMap<InstanceName, SteppedPreparedWatch>,
}

/// The watch of a container.
struct SteppedWatch {
    id: ContainerId,
    reply: StateReply,
    end: KnownEnd,
    reported: Option<ExecutionState>,
}

/// The watch of a prepared container.
struct SteppedPreparedWatch {
    id: ContainerId,
    reply: GoneReply,
}

impl SteppedChecker {
    fn new(engine: &FakeEngine, agent: &'static str, commands: Receiver<WatchCommand>) -> Self {
        Self {
            engine: engine.clone(),
            waiting: Vec::new(),
            commands,
            connector: Box::new(engine.connector(agent)),
            watched: BTreeMap::new(),
            prepared: BTreeMap::new(),
        }
    }

    /// Handles all commands, and reports changes of containers. Returns whether there were any.
    fn step(&mut self) -> bool {
        let mut worked = false;
        if !self.engine.is_silent() {
            for reply in self.waiting.drain(..) {
                worked = true;
                reply(self.connector.list());
            }
        }
        for command in self.commands.try_iter() {
            worked = true;
            match command {
                WatchCommand::Watch {
                    instance,
                    id,
                    end,
                    reply,
                    ..
                } => {
                    self.prepared.remove(&instance);
                    let watch = SteppedWatch {
                        id,
                        reply,
                        end,
                        reported: None,
                    };
                    self.watched.insert(instance, watch);
                }
                WatchCommand::WatchPrepared {
                    instance,
                    id,
                    reply,
                } => {
                    self.prepared
                        .insert(instance, SteppedPreparedWatch { id, reply });
                }
                WatchCommand::UnwatchPrepared { instance } => _ = self.prepared.remove(&instance),
                WatchCommand::Unwatch { instance } => _ = self.watched.remove(&instance),
                WatchCommand::ListAll { reply } if self.engine.is_silent() => {
                    self.waiting.push(reply);
                }
                WatchCommand::ListAll { reply } => reply(self.connector.list()),
                // Samples are taken by a thread, which is not there.
                WatchCommand::ListWatched { .. } => {}
            }
        }
        let containers = self.engine.containers();
        // Prepared containers are seen only when a listing is made for watched ones.
        if !self.watched.is_empty() {
            let gone = self.prepared.extract_if(.., |_, prepared| {
                let found = containers.get(&prepared.id);
                found.is_none_or(|container| !container.state.phase.is_pending())
            });
            for (_, gone) in gone {
                (gone.reply)();
                worked = true;
            }
        }
        for (instance, watched) in &mut self.watched {
            let container = containers.get(&watched.id);
            let lost = ExecutionState::plain(Phase::FailedLost);
            let state = watched.end.update(&ListedContainer {
                id: watched.id.clone(),
                instance: instance.clone(),
                state: container.map_or(lost, |container| container.state.clone()),
                processes: Vec::new(),
                ended_at: None,
                in_pod: false,
                pods: container.and_then(|container| container.pods.clone()),
            });
            if watched.reported.as_ref() != Some(&state) {
                watched.reported = Some(state.clone());
                (watched.reply)(state);
                worked = true;
            }
        }
        worked
    }
}

/// How a stepped agent differs from the usual.
pub(crate) struct AgentOptions {
    /// Its name.
    pub(crate) name: &'static str,
    /// Where it writes; lives as long as the test wants.
    pub(crate) folder: std::path::PathBuf,
    /// Decides all delays.
    pub(crate) seed: u64,
    /// Which finished workloads stay as they are.
    pub(crate) keeps_finished: bool,
    /// Calls of an earlier agent.
    pub(crate) earlier_calls: Option<Box<dyn EarlierCalls + Send>>,
    /// Creates at the same time.
    pub(crate) parallel_starts: usize,
    /// The facts of its node.
    pub(crate) facts: NodeFacts,
    /// Further runtimes, beside podman.
    pub(crate) others: Vec<(&'static str, FakeEngine)>,
    /// How starts are prepared.
    pub(crate) prepare: PrepareOptions,
}

/// How starts are prepared.
#[derive(Clone)]
pub(crate) struct PrepareOptions {
    /// How far, when a workload does not say it.
    pub(crate) level: PrepareLevel,
    /// Containers that are initialised at the same time, at most.
    pub(crate) max: usize,
    /// Starts and preparations at the same time are no more than this, or nothing is prepared.
    pub(crate) cores: usize,
    /// Identifies this boot of the node.
    pub(crate) boot: Arc<str>,
    /// Files of the node that engines copy into a container.
    pub(crate) copied: Arc<BTreeSet<String>>,
}

impl AgentOptions {
    /// An agent called `agent_A` which writes to `folder`.
    pub(crate) fn new(folder: &Path) -> Self {
        Self {
            name: "agent_A",
            folder: folder.to_owned(),
            seed: 1,
            keeps_finished: false,
            earlier_calls: None,
            parallel_starts: 100,
            facts: NodeFacts::new(BTreeMap::new()),
            others: Vec::new(),
            prepare: PrepareOptions {
                level: PrepareLevel::None,
                max: 4,
                cores: 8,
                boot: "boot 1".into(),
                copied: Arc::default(),
            },
        }
    }
}

/// An agent with podman as its runtime, and others if wanted.
pub(crate) struct SteppedAgent {
    /// Its scheduler.
    pub(crate) scheduler: Scheduler<ManualClock>,
    /// Its control loops.
    pub(crate) loops: SteppedLoops,
    /// Its end of the connection to the server.
    pub(crate) uplink: UplinkReader,
    /// Its checks.
    pub(crate) probes: Arc<FakeProbes>,
    /// The results of its checks.
    pub(crate) answers: ProbeAnswers,
    /// Its time.
    pub(crate) clock: ManualClock,
    /// Control loops act as soon as they have a target, even before the event is handled to its
    /// end.
    pub(crate) has_fast_loops: bool,
    events: Receiver<SchedulerEvent>,
    checkers: Vec<SteppedChecker>,
}

impl SteppedAgent {
    /// Starts an agent with this engine. It does nothing before the hello of the server.
    pub(crate) fn start(options: AgentOptions, engine: &FakeEngine, clock: &ManualClock) -> Self {
        let (inbox, events) = bounded(STEPPED_INBOX);
        let (outbox, uplink) = uplink_outbox();
        let name = options.name;
        let mut engines = Engines::new();
        let mut checkers = Vec::new();
        for (runtime, engine) in options
            .others
            .into_iter()
            .chain([("podman", engine.clone())])
        {
            let waker = EventFd::new().expect("a descriptor");
            let (watch, commands) = WatchSender::new(STEPPED_INBOX, waker);
            checkers.push(SteppedChecker::new(&engine, name, commands));
            let connect = Box::new(move || Box::new(engine.connector(name)) as Connector);
            engines.insert(runtime.into(), EngineSource { connect, watch });
        }
        let control = ControlHub::new(outbox.clone(), CONTROL_MESSAGE_MAX).expect("a descriptor");
        let (probes, answers) = FakeProbes::settable(clock);
        let (loops, start_loop) = SteppedLoops::new();
        let calls = loops.calls.clone();
        let prepare = options.prepare;
        let context = LoopContext {
            clock: clock.clone(),
            engines: Arc::new(engines),
            reports: inbox.clone(),
            slots: StartSlots::new(options.parallel_starts, prepare.cores, prepare.max),
            calls: CallContext {
                folder: options.folder.clone(),
                boot: prepare.boot,
                copied: prepare.copied,
                create_timeout: None,
                images: None,
            },
            start_call: Arc::new(move |call| {
                let mut calls = calls.lock().expect("no thread panics with it");
                if calls.refuse {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                calls.waiting.push_back(call);
                Ok(())
            }),
            retry_limit: Some(20),
            restart_backoff: true,
            control,
            probes: probes.clone(),
        };
        let random = fastrand::Rng::with_seed(options.seed);
        let workloads = WorkloadRecords::new(
            name.into(),
            context,
            random,
            start_loop,
            options.keeps_finished,
            prepare.level,
            options.facts,
        );
        let load = LoadSampler::new(&options.folder); // There is nothing to sample.
        let scheduler = Scheduler::new(
            inbox,
            workloads,
            outbox,
            load,
            EngineVersions::default(), // None is known.
            options.earlier_calls,
            StatusBoard::default(),
        );
        uplink.connected();
        Self {
            scheduler,
            loops,
            uplink,
            probes,
            answers,
            clock: clock.clone(),
            has_fast_loops: false,
            events,
            checkers,
        }
    }

    /// Passes a message of the server on, and runs the agent until it has nothing to do.
    pub(crate) fn receive(&mut self, message: FromServer) {
        self.handle(SchedulerEvent::Server(message));
        self.run();
    }

    fn handle(&mut self, event: SchedulerEvent) {
        let _fast = self.has_fast_loops.then(|| self.loops.step_after_targets());
        self.scheduler.on_event(event);
    }

    /// The server sends a hello with these desired workloads, which are all.
    pub(crate) fn hello(&mut self, added: &[AddedWorkload]) {
        self.receive(FromServer::ServerHello(added.to_vec()));
    }

    /// The server sends this plan.
    pub(crate) fn update(&mut self, plan: WorkloadPlan) {
        self.receive(FromServer::UpdateWorkload(plan));
    }

    /// Runs the agent until it has nothing to do at the present time.
    pub(crate) fn run(&mut self) {
        for _ in 0..10_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the agent does not come to rest");
    }

    /// Runs one step of each part of the agent. Returns whether any had something to do.
    pub(crate) fn step(&mut self) -> bool {
        let mut worked = self.loops.step();
        worked |= self.probes.step();
        for checker in &mut self.checkers {
            worked |= checker.step();
        }
        for event in self.events.try_iter().collect::<Vec<_>>() {
            self.handle(event);
            worked = true;
        }
        if self.scheduler.due() <= self.clock.now() {
            let _fast = self.has_fast_loops.then(|| self.loops.step_after_targets());
            self.scheduler.tick();
            worked = true;
        }
        worked
    }

    /// Advances the clock by `duration`, and runs the agent whenever something is due.
    pub(crate) fn pass(&mut self, duration: Duration) {
        let end = self.clock.now() + duration;
        self.run();
        while self.clock.now() < end {
            let mut next = end.min(self.scheduler.due());
            for due in [self.loops.due(), self.probes.due()] {
                next = due.map_or(next, |due| next.min(due));
            }
            self.clock.advance(self.clock.until(next));
            self.run();
        }
    }

    /// The states that were sent to the server since the last call.
    pub(crate) fn sent(&self) -> Vec<WorkloadState> {
        let mut sent = Vec::new();
        while let Some(message) = self.uplink.next() {
            if let ToServer::WorkloadStates(states) = message {
                sent.extend(states);
            }
        }
        sent
    }
}

/// An agent on a node of its own and one engine, with the steps of most tests.
pub(crate) struct AgentRig {
    /// Driven by the test.
    pub(crate) agent: SteppedAgent,
    /// Its engine, podman.
    pub(crate) engine: FakeEngine,
    /// Its time.
    pub(crate) clock: ManualClock,
    /// Its run folder.
    pub(crate) folder: TempDir,
    /// Paths of the node.
    pub(crate) paths: Arc<Mutex<BTreeSet<String>>>,
    /// How its starts are prepared.
    pub(crate) prepare: PrepareOptions,
    /// Which finished workloads stay as they are.
    pub(crate) keeps_finished: bool,
    /// How reports name an instance.
    pub(crate) label: fn(&InstanceName) -> String,
}

impl Default for AgentRig {
    fn default() -> Self {
        Self::with(|_| {})
    }
}

impl AgentRig {
    /// An agent that was greeted by the server, without workloads yet. Its calls for that are
    /// forgotten.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// As [`Self::new`], with other options.
    pub(crate) fn with(change: impl FnOnce(&mut AgentOptions)) -> Self {
        let mut rig = Self::silent_with(FakeEngine::new(), change);
        rig.agent.hello(&[]);
        rig.engine.take_calls();
        rig
    }

    /// An agent before the first hello, on an engine that may have containers.
    pub(crate) fn silent(engine: FakeEngine) -> Self {
        Self::silent_with(engine, |_| {})
    }

    /// As [`Self::silent`], with other options.
    pub(crate) fn silent_with(engine: FakeEngine, change: impl FnOnce(&mut AgentOptions)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let clock = ManualClock::new();
        let paths = Arc::default();
        let mut options = node_options(folder.path(), &paths);
        change(&mut options);
        let prepare = options.prepare.clone();
        let keeps_finished = options.keeps_finished;
        let agent = SteppedAgent::start(options, &engine, &clock);
        Self {
            agent,
            engine,
            clock,
            folder,
            paths,
            prepare,
            keeps_finished,
            label: |instance| instance.workload.to_string(),
        }
    }

    /// Reports name an instance as `web:a`, when its configuration is `a`, `b` or `c`.
    pub(crate) fn telling_configs(self) -> Self {
        let label = |instance: &InstanceName| {
            let (name, agent) = (&instance.workload, &instance.agent);
            let config = ["a", "b", "c"]
                .into_iter()
                .find(|config| *instance == InstanceName::new(name, config, agent));
            format!("{name}:{}", config.unwrap_or("?"))
        };
        Self { label, ..self }
    }

    /// Replaces the agent by a new one, as if it was killed. The server desires the `wanted`
    /// workloads.
    pub(crate) fn restart_agent(&mut self, wanted: &[AddedWorkload]) {
        self.restart_agent_with(wanted, |_| {});
    }

    /// As [`Self::restart_agent`], with the step `first` before the hello.
    pub(crate) fn restart_agent_with(
        &mut self,
        wanted: &[AddedWorkload],
        first: impl FnOnce(&mut SteppedAgent),
    ) {
        let answers = self.agent.answers.clone();
        let mut options = node_options(self.folder.path(), &self.paths);
        options.prepare = self.prepare.clone();
        options.keeps_finished = self.keeps_finished;
        self.agent = SteppedAgent::start(options, &self.engine, &self.clock);
        self.agent.answers.take_over(&answers);
        // Several steps of one event decide about left containers. Loops may act between them.
        self.agent.has_fast_loops = true;
        first(&mut self.agent);
        self.agent.hello(wanted);
    }

    /// The server desires these workloads as well.
    pub(crate) fn add(&mut self, added: &[AddedWorkload]) {
        self.change(added, &[]);
    }

    /// The server sends a plan with these workloads.
    pub(crate) fn change(&mut self, added: &[AddedWorkload], deleted: &[DeletedWorkload]) {
        self.agent.update(WorkloadPlan {
            added: added.to_vec(),
            deleted: deleted.to_vec(),
        });
    }

    /// The server reports the state of a workload of another agent.
    pub(crate) fn foreign(&mut self, name: &str, phase: Phase) {
        let instance = InstanceName::with_id(name, "id", "agent_B");
        let state = WorkloadState::new(instance, ExecutionState::plain(phase));
        self.agent.receive(FromServer::WorkloadStates(vec![state]));
    }

    /// The container of a workload that has one.
    pub(crate) fn container_of(&self, name: &str) -> ContainerId {
        let mut containers = self.engine.containers().into_iter();
        containers
            .find(|(_, container)| &*container.instance.workload == name)
            .expect("it has a container")
            .0
    }

    /// The container of a workload ends with this code.
    pub(crate) fn ends(&mut self, name: &str, code: i64) {
        self.engine
            .set_state(&self.container_of(name), ExecutionState::exited(code));
        self.agent.run();
    }

    /// The states that were sent since the last call.
    pub(crate) fn sent(&self) -> Vec<String> {
        self.agent
            .sent()
            .iter()
            .map(|report| format!("{} {}", (self.label)(&report.instance), report.state))
            .collect()
    }
}

/// The options of an agent on a node with these paths, in the zone `a`. Paths below `/mnt` answer
/// only when that is there.
fn node_options(folder: &Path, paths: &Arc<Mutex<BTreeSet<String>>>) -> AgentOptions {
    let paths = paths.clone();
    let facts = NodeFacts {
        tags: BTreeMap::from([("zone".to_owned(), "a".to_owned())]),
        check_paths: Box::new(move |wanted| {
            let paths = paths.lock().expect("no thread panics with it");
            let answering = wanted
                .iter()
                .filter(|path| !path.starts_with("/mnt") || paths.contains("/mnt"));
            answering
                .map(|path| ((*path).to_owned(), paths.contains(*path)))
                .collect()
        }),
    };
    AgentOptions {
        facts,
        ..AgentOptions::new(folder)
    }
}

/// A delete that waits for these dependents of the workload.
pub(crate) fn deleted_after(instance: &InstanceName, users: &[&str]) -> DeletedWorkload {
    let mut dependencies = BTreeMap::new();
    for user in users {
        dependencies.insert((*user).to_owned(), DeleteCondition::NotPendingNorRunning);
    }
    DeletedWorkload {
        instance: instance.clone(),
        dependencies,
    }
}

/// A desired workload of `agent_A` with the runtime podman.
pub(crate) fn wanted_with(
    name: &str,
    config: &str,
    change: impl FnOnce(&mut Workload),
) -> AddedWorkload {
    let mut workload = Workload::new("agent_A", "podman", config);
    change(&mut workload);
    AddedWorkload {
        instance: workload.instance_name(name),
        workload: Arc::new(workload),
    }
}
