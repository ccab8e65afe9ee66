//! A whole agent without threads: scheduler, control loops and a state checker that run when a test says so.
//!
//! Thread: the one of the test.

use super::fake_connector::FakeEngine;
use super::fake_probes::{FakeProbes, ProbeAnswers};
use super::manual_clock::ManualClock;
use crate::agent::agent_manager::{AgentManager, EarlierCalls, SchedulerEvent};
use crate::agent::control_interface::ControlHub;
use crate::agent::lifecycle::conditions::NodeFacts;
use crate::agent::resources::LoadSampler;
use crate::agent::runtime_manager::{EngineSource, Engines, NoThread, RerunFinished, RuntimeManager, WorkloadThreads};
use crate::agent::start_slots::StartSlots;
use crate::agent::state_checker::{ListReply, StateReply, WatchCommand};
use crate::agent::uplink_outbox::{UplinkReader, uplink_outbox};
use crate::agent::workload_control_loop::{LoopContext, Step, WorkloadControlLoop};
use crate::clock::Clock;
use crate::limits::{CONTROL_MESSAGE_MAX, SCHEDULER_INBOX, WATCH_INBOX};
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::messages::{AddedWorkload, FromServer, ToServer, WorkloadPlan};
use crate::model::names::InstanceName;
use crate::runtime::{ContainerId, RuntimeConnector};
use crossbeam_channel::{Receiver, bounded};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Keeps control loops and steps them.
#[derive(Default)]
pub struct SteppedLoops {
    loops: Vec<WorkloadControlLoop<ManualClock>>,
    /// Makes the next starts fail, as if the system had no more threads.
    pub refuse: bool,
}

impl WorkloadThreads<ManualClock> for SteppedLoops {
    fn start(
        &mut self,
        _workload: &str,
        control_loop: Box<WorkloadControlLoop<ManualClock>>,
    ) -> Result<(), NoThread<ManualClock>> {
        if self.refuse {
            return Err(NoThread { error: io::ErrorKind::WouldBlock.into(), control_loop });
        }
        self.loops.push(*control_loop);
        Ok(())
    }
}

impl SteppedLoops {
    /// Lets each loop handle one event; answers whether there was any.
    pub fn step(&mut self) -> bool {
        let mut worked = false;
        self.loops.retain_mut(|control_loop| {
            let step = control_loop.step();
            worked |= step != Step::Idle;
            step != Step::Ended
        });
        worked
    }

    /// How many loops have not ended.
    #[must_use]
    pub fn count(&self) -> usize {
        self.loops.len()
    }

    fn due(&self) -> Option<Instant> {
        self.loops.iter().filter_map(WorkloadControlLoop::due).min()
    }
}

/// Answers and reports at once what the engine says.
struct SteppedChecker {
    engine: FakeEngine,
    /// Who waits for a silent engine.
    waiting: Vec<ListReply>,
    commands: Receiver<WatchCommand>,
    connector: Box<dyn RuntimeConnector>,
    watched: BTreeMap<InstanceName, Watched>,
}

struct Watched {
    id: ContainerId,
    reply: StateReply,
    reported: Option<ExecutionState>,
}

impl SteppedChecker {
    fn new(engine: &FakeEngine, agent: &'static str, commands: Receiver<WatchCommand>) -> Self {
        let connector = Box::new(engine.connector(agent));
        let (waiting, watched) = (Vec::new(), BTreeMap::new());
        Self { engine: engine.clone(), waiting, commands, connector, watched }
    }

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
                WatchCommand::Watch { instance, id, reply, .. } => {
                    self.watched.insert(instance, Watched { id, reply, reported: None });
                }
                WatchCommand::Unwatch { instance } => _ = self.watched.remove(&instance),
                WatchCommand::ListAll { reply } if self.engine.is_silent() => self.waiting.push(reply),
                WatchCommand::ListAll { reply } => reply(self.connector.list()),
            }
        }
        let containers = self.engine.containers();
        for watched in self.watched.values_mut() {
            let lost = || ExecutionState::plain(Phase::FailedLost);
            let state = containers.get(&watched.id).map_or_else(lost, |container| container.state.clone());
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
pub struct AgentOptions {
    /// Its name.
    pub name: &'static str,
    /// Where it writes; lives as long as the test wants.
    pub folder: std::path::PathBuf,
    /// Decides all delays.
    pub seed: u64,
    /// What to do with finished workloads.
    pub rerun: RerunFinished,
    /// Calls of an earlier agent.
    pub earlier_calls: Option<Box<dyn EarlierCalls + Send>>,
    /// Creates at the same time.
    pub parallel_starts: usize,
    /// What conditions are about.
    pub facts: NodeFacts,
    /// Runtimes besides podman.
    pub others: Vec<(&'static str, FakeEngine)>,
}

impl AgentOptions {
    /// An agent called `agent_A` which writes to `folder`.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self {
            name: "agent_A",
            folder: folder.to_owned(),
            seed: 1,
            rerun: RerunFinished::Always,
            earlier_calls: None,
            parallel_starts: 100,
            facts: NodeFacts::default(),
            others: Vec::new(),
        }
    }
}

/// An agent with podman as its runtime, and others if wanted.
pub struct SteppedAgent {
    /// Its scheduler.
    pub manager: AgentManager<ManualClock, SteppedLoops>,
    /// Its end of the connection to the server.
    pub uplink: UplinkReader,
    /// Its checks.
    pub probes: Arc<FakeProbes>,
    /// What they come to.
    pub answers: ProbeAnswers,
    /// Its time.
    pub clock: ManualClock,
    events: Receiver<SchedulerEvent>,
    checkers: Vec<SteppedChecker>,
}

impl SteppedAgent {
    /// A new life of an agent on `engine`. It does nothing before the server says hello.
    #[must_use]
    pub fn start(options: AgentOptions, engine: &FakeEngine, clock: &ManualClock) -> Self {
        let (inbox, events) = bounded(SCHEDULER_INBOX);
        let (outbox, uplink) = uplink_outbox();
        let name = options.name;
        let (mut engines, mut checkers) = (Engines::new(), Vec::new());
        for (runtime, engine) in options.others.into_iter().chain([("podman", engine.clone())]) {
            let (watch, commands) = bounded(WATCH_INBOX);
            checkers.push(SteppedChecker::new(&engine, name, commands));
            let connect = Box::new(move || Box::new(engine.connector(name)) as Box<dyn RuntimeConnector>);
            engines.insert(runtime.into(), EngineSource { connect, watch });
        }
        let control = ControlHub::new(outbox.clone(), CONTROL_MESSAGE_MAX).expect("a descriptor");
        let (probes, answers) = FakeProbes::settable(clock);
        let context = LoopContext {
            clock: clock.clone(),
            folder: options.folder.clone(),
            reports: inbox.clone(),
            slots: StartSlots::new(options.parallel_starts),
            create_timeout: None,
            retry_limit: Some(20),
            restart_backoff: true,
            control,
            probes: probes.clone(),
        };
        let random = fastrand::Rng::with_seed(options.seed);
        let runtime = RuntimeManager::new(engines, context, random, SteppedLoops::default(), options.rerun)
            .on_node(options.facts);
        let load = LoadSampler::new(&options.folder); // There is nothing to sample.
        let manager =
            AgentManager::new(name.into(), clock.clone(), inbox, runtime, outbox, load, options.earlier_calls);
        uplink.connected();
        Self { manager, uplink, probes, answers, clock: clock.clone(), events, checkers }
    }

    /// Passes a message of the server on and lets the agent do all it can do now.
    pub fn receive(&mut self, message: FromServer) {
        self.manager.on_event(SchedulerEvent::Server(message));
        self.run();
    }

    /// The server wants these workloads, as a whole.
    pub fn hello(&mut self, added: &[AddedWorkload]) {
        self.receive(FromServer::ServerHello(added.to_vec()));
    }

    /// The server wants this change.
    pub fn update(&mut self, plan: WorkloadPlan) {
        self.receive(FromServer::UpdateWorkload(plan));
    }

    /// Lets the agent do all it can do without the time going on.
    pub fn run(&mut self) {
        for _ in 0..10_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the agent does not come to rest");
    }

    /// Lets each part of the agent do one thing; answers whether there was any.
    pub fn step(&mut self) -> bool {
        let mut worked = self.manager.threads().step();
        worked |= self.probes.step();
        for checker in &mut self.checkers {
            worked |= checker.step();
        }
        for event in self.events.try_iter().collect::<Vec<_>>() {
            self.manager.on_event(event);
            worked = true;
        }
        if self.manager.due() <= self.clock.now() {
            self.manager.tick();
            worked = true;
        }
        worked
    }

    /// Lets `duration` pass, stopping whenever something is due.
    pub fn pass(&mut self, duration: Duration) {
        let end = self.clock.now() + duration;
        self.run();
        while self.clock.now() < end {
            let loops_due = self.manager.threads().due();
            let probes_due = self.probes.due();
            let next = loops_due.into_iter().chain(probes_due).chain([self.manager.due(), end]).min().unwrap_or(end);
            self.clock.advance(self.clock.until(next.min(end)));
            self.run();
        }
    }

    /// What was sent to the server since the last call.
    #[must_use]
    pub fn sent(&self) -> Vec<WorkloadState> {
        let messages = std::iter::from_fn(|| self.uplink.next(self.clock.now()));
        let states = messages.filter_map(|message| match message {
            ToServer::WorkloadStates(states) => Some(states),
            _ => None,
        });
        states.flatten().collect()
    }
}
