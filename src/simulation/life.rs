//! One life of an agent: scheduler, control loops, state checkers and its end of the connection,
//! from start to kill.
//!
//! Thread: the one of the test; each part does one thing when the cluster says so.

use super::coroutine::Task;
use super::engine::{Action, Answer, Caller, SimEngine, WatchGuard};
use super::sim_connector::SimConnector;
use ankaios_agent::control_interface::ControlHub;
use ankaios_agent::engine_call::{CallContext, ContainerCall};
use ankaios_agent::events::SchedulerEvent;
use ankaios_agent::limits::{REPAIR_INTERVAL, STEPPED_INBOX};
use ankaios_agent::resources::LoadSampler;
use ankaios_agent::scheduler::Scheduler;
use ankaios_agent::scheduler::conditions::NodeFacts;
use ankaios_agent::scheduler::workloads::WorkloadRecords;
use ankaios_agent::state_checker::thread::WatchSender;
use ankaios_agent::state_checker::{CheckerSettings, StateChecker, SystemEnv, WatchCommand};
use ankaios_agent::uplink_outbox::{UplinkOutbox, UplinkReader, uplink_outbox};
use ankaios_agent::workload::inspection::{AfterTargets, after_each_target};
use ankaios_agent::workload::start_slots::StartSlots;
use ankaios_agent::workload::status::Status;
use ankaios_agent::workload::{Connector, EngineSource, Engines, LoopContext, WorkloadControlLoop};
use ankaios_fakes::fake_probes::FakeProbes;
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::execution_state::Phase;
use ankaios_model::names::Name;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_platform::clock::Clock;
use ankaios_platform::limits::CONTROL_MESSAGE_MAX;
use ankaios_platform::service_manager::StatusBoard;
use ankaios_platform::sync::EventFd;
use ankaios_runtime::MainProcess;
use ankaios_runtime::engine_children::EarlierCalls;
use ankaios_runtime::engine_version::EngineVersions;
use ankaios_runtime::exit_watch::NotWatched;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The runtimes of each node.
pub(crate) const RUNTIMES: [&str; 2] = ["podman", "containerd"];

/// Longest time for which a state checker gets no processor, in milliseconds. It is longer than a
/// usual listing, so that one ends meanwhile.
const LAG_MAX_MS: u64 = 500;

/// Most steps of control loops and calls between two targets.
const STEPS_MEANWHILE: usize = 6;

/// Control loops and engine calls. Each waits until it is stepped.
pub(crate) struct Tasks {
    tasks: Vec<Task>,
    /// Control loops that the scheduler has started since, with their workloads.
    loops: Receiver<(String, Box<WorkloadControlLoop<ManualClock>>)>,
    /// Calls that control loops have started since.
    calls: Receiver<Box<ContainerCall>>,
}

impl Tasks {
    /// Takes in new control loops and calls, and returns all.
    fn all(&mut self) -> &mut Vec<Task> {
        for (workload, control_loop) in self.loops.try_iter() {
            self.tasks.push(Task::new(&workload, control_loop));
        }
        for call in self.calls.try_iter() {
            self.tasks.push(Task::call(call));
        }
        &mut self.tasks
    }

    /// The indexes of the tasks that can continue now.
    fn ready(&mut self, now: Instant) -> Vec<usize> {
        let mut ready = Vec::new();
        for (index, task) in self.all().iter_mut().enumerate() {
            if task.poll_ready(now) {
                ready.push(index);
            }
        }
        ready
    }

    /// When a task can continue without an event.
    fn due(&mut self) -> Option<Instant> {
        self.all().iter().filter_map(Task::due).min()
    }

    /// Lets a task continue. Returns its workload.
    fn step(&mut self, index: usize) -> String {
        let task = &mut self.tasks[index];
        let workload = task.workload.clone();
        if task.resume() {
            self.tasks.remove(index);
        }
        workload
    }
}

/// The system of a state checker.
struct SimEnv {
    engine: SimEngine,
    caller: Caller,
    listing: Rc<Cell<Option<u64>>>,
    /// Whether ends of processes can be noticed.
    pidfds: bool,
}

impl SystemEnv for SimEnv {
    type Process = WatchGuard;

    fn start_listing(&mut self) {
        self.listing
            .set(Some(self.engine.begin(&self.caller, Action::List, None)));
    }

    fn watch_exit(&mut self, key: u64, process: &MainProcess) -> Result<WatchGuard, NotWatched> {
        if !self.pidfds {
            return Err(NotWatched::Unable);
        }
        Ok(self.engine.watch_exit(&self.caller, key, process.pid))
    }
}

/// A state checker with its listing under way.
struct SimChecker {
    checker: StateChecker<SimEnv, ManualClock>,
    commands: Receiver<WatchCommand>,
    listing: Rc<Cell<Option<u64>>>,
    engine: SimEngine,
    caller: Caller,
    lag: CheckerLag,
    clock: ManualClock,
}

/// A state checker that gets no processor now and then. Its listings end meanwhile, and commands
/// wait.
struct CheckerLag {
    percent: u32,
    /// Draws for lags only, so that all else of a seed stays the same without them.
    random: fastrand::Rng,
    /// It does nothing before this time.
    until: Instant,
}

impl CheckerLag {
    /// Draws whether a lag follows the step that was made now.
    fn draw(&mut self, now: Instant) {
        if self.percent > 0 && self.random.u32(0..100) < self.percent {
            let lag_ms = self.random.u64(1..=LAG_MAX_MS);
            self.until = now + Duration::from_millis(lag_ms);
        }
    }
}

impl SimChecker {
    fn new(
        runtime: &'static str,
        caller: &Caller,
        engine: &SimEngine,
        clock: &ManualClock,
        options: LifeOptions,
        commands: Receiver<WatchCommand>,
    ) -> Self {
        let listing = Rc::new(Cell::new(None));
        let env = SimEnv {
            engine: engine.clone(),
            caller: caller.clone(),
            listing: listing.clone(),
            pidfds: options.pidfds,
        };
        let settings = CheckerSettings {
            runtime,
            unknown_info: "?",
            repair_interval: REPAIR_INTERVAL,
        };
        Self {
            checker: StateChecker::new(env, clock.clone(), settings),
            commands,
            listing,
            engine: engine.clone(),
            caller: caller.clone(),
            lag: CheckerLag {
                percent: options.lags,
                random: fastrand::Rng::with_seed(options.seed),
                until: clock.now(),
            },
            clock: clock.clone(),
        }
    }

    /// When it continues without another event.
    fn due(&self) -> Option<Instant> {
        let has_events = !self.commands.is_empty() || self.engine.has_exits(&self.caller);
        let mut due = Vec::new();
        if has_events {
            due.push(self.lag.until);
        }
        due.extend(self.checker.next_listing_at());
        if let Some(call) = self.listing.get() {
            due.extend(self.engine.due_of(call));
        }
        Some(due.into_iter().min()?.max(self.lag.until))
    }

    fn is_ready(&self, now: Instant) -> bool {
        match self.due() {
            Some(due) => due <= now,
            None => false,
        }
    }

    fn step(&mut self) {
        if let Some(call) = self.listing.get()
            && let Some(result) = self.engine.take_result(call)
        {
            self.listing.set(None);
            match result {
                Ok(Answer::Listed(listed)) => self.checker.on_listed(Ok(listed)),
                Ok(other) => panic!("the result of a listing is {other:?}"),
                Err(error) => self.checker.on_listed(Err(error)),
            }
        }
        for command in self.commands.try_iter() {
            self.checker.on_command(command);
        }
        for key in self.engine.take_exits(&self.caller) {
            self.checker.on_exit(key);
        }
        self.checker.list_if_due();
        self.lag.draw(self.clock.now());
    }
}

/// The calls of earlier lives.
struct Orphans {
    engine: SimEngine,
    life: u64,
}

impl EarlierCalls for Orphans {
    fn still_running(&mut self) -> usize {
        self.engine.forget_ended_orphans(self.life)
    }

    fn end(&mut self, by_force: bool) {
        self.engine.end_orphans(self.life, by_force);
    }
}

/// How starts are prepared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PrepareOptions {
    /// How far.
    pub level: PrepareLevel,
    /// How many containers may be initialised at the same time.
    pub initialised_max: usize,
}

/// How an agent is configured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LifeOptions {
    pub parallel_starts: usize,
    pub create_timeout: Option<Duration>,
    pub pidfds: bool,
    pub seed: u64,
    pub prepare: PrepareOptions,
    /// Steps of state checkers after which these lag, in percent.
    pub lags: u32,
    /// Counts the boots of the node.
    pub boot: u64,
}

/// A part of an agent that can do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Scheduler,
    Loop(usize),
    Checker(usize),
    Probes,
}

/// Returns a function that makes connectors for this caller.
fn connect_to(
    engine: &SimEngine,
    caller: &Caller,
    clock: &ManualClock,
) -> Box<dyn Fn() -> Connector + Send + Sync> {
    let engine = engine.clone();
    let caller = caller.clone();
    let clock = clock.clone();
    Box::new(move || {
        Box::new(SimConnector {
            engine: engine.clone(),
            caller: caller.clone(),
            clock: clock.clone(),
        })
    })
}

/// A running agent.
pub(crate) struct Life {
    pub number: u64,
    pub manager: Scheduler<ManualClock>,
    tasks: Rc<RefCell<Tasks>>,
    pub events: Receiver<SchedulerEvent>,
    pub inbox: Sender<SchedulerEvent>,
    /// Events of control loops, before they go into the inbox.
    events_out: Receiver<SchedulerEvent>,
    /// Statuses sent while the scheduler handled an event.
    events_meanwhile: Rc<RefCell<Vec<SchedulerEvent>>>,
    pub uplink: UplinkReader,
    /// Takes the responses of the server for workloads.
    pub control: ControlHub,
    /// Takes the requests of workloads.
    pub requests: UplinkOutbox,
    clock: ManualClock,
    checkers: Vec<SimChecker>,
    probes: Arc<FakeProbes>,
}

impl Life {
    /// Starts the agent `name` on a node. `folder` is never written to.
    pub(crate) fn start(
        name: &Name,
        number: u64,
        engine: &SimEngine,
        clock: &ManualClock,
        folder: &Path,
        options: LifeOptions,
    ) -> Self {
        let (inbox, events) = bounded(STEPPED_INBOX);
        let (reports, events_out) = bounded(STEPPED_INBOX);
        let (outbox, uplink) = uplink_outbox();
        let mut engines = Engines::new();
        let mut checkers = Vec::new();
        for runtime in RUNTIMES {
            let caller = Caller {
                life: number,
                runtime: runtime.into(),
            };
            let waker = EventFd::new().expect("a descriptor");
            let (watch, commands) = WatchSender::new(STEPPED_INBOX, waker);
            checkers.push(SimChecker::new(
                runtime, &caller, engine, clock, options, commands,
            ));
            let source = EngineSource {
                connect: connect_to(engine, &caller, clock),
                watch,
            };
            engines.insert(runtime.into(), source);
        }
        let control = ControlHub::new(outbox.clone(), CONTROL_MESSAGE_MAX).expect("a descriptor");
        let for_checks = engine.clone();
        let probes = FakeProbes::new(
            clock,
            Box::new(move |order| for_checks.check(number, order)),
        );
        let (start, calls) = unbounded();
        let PrepareOptions {
            level,
            initialised_max,
        } = options.prepare;
        let context = LoopContext {
            clock: clock.clone(),
            engines: Arc::new(engines),
            reports,
            slots: StartSlots::new(
                options.parallel_starts,
                options.parallel_starts,
                initialised_max,
            ),
            calls: CallContext {
                folder: folder.to_owned(),
                boot: format!("{}", options.boot).into(),
                copied: Arc::default(),
                create_timeout: options.create_timeout,
                images: None,
            },
            start_call: Arc::new(move |call| {
                start
                    .send(call)
                    .expect("the other end is part of the same life");
                Ok(())
            }),
            retry_limit: Some(20),
            restart_backoff: true,
            control: control.clone(),
            probes: probes.clone(),
        };
        let random = fastrand::Rng::with_seed(options.seed);
        let (started, loops) = unbounded();
        let start_loop = Box::new(move |workload: &str, control_loop| {
            started
                .send((workload.to_owned(), control_loop))
                .expect("the other end is part of the same life");
            Ok(())
        });
        let tasks = Rc::new(RefCell::new(Tasks {
            tasks: Vec::new(),
            loops,
            calls,
        }));
        let for_conditions = engine.clone();
        let facts = NodeFacts {
            tags: BTreeMap::from([("zone".to_owned(), "a".to_owned())]),
            check_paths: Box::new(move |paths| {
                let mut known = BTreeMap::new();
                for path in paths {
                    known.insert((*path).to_owned(), for_conditions.exists(path));
                }
                known
            }),
        };
        let runtime = WorkloadRecords::new(
            name.clone(),
            context,
            random,
            start_loop,
            false,
            level,
            facts,
        );
        let requests = outbox.clone();
        let orphans = Box::new(Orphans {
            engine: engine.clone(),
            life: number,
        });
        let load = LoadSampler::new(folder); // There is nothing to sample.
        let manager = Scheduler::new(
            inbox.clone(),
            runtime,
            outbox,
            load,
            EngineVersions::default(), // None is known.
            Some(orphans),
            StatusBoard::default(),
        );
        Self {
            number,
            manager,
            tasks,
            events,
            inbox,
            events_out,
            events_meanwhile: Rc::default(),
            uplink,
            control,
            requests,
            clock: clock.clone(),
            checkers,
            probes,
        }
    }

    /// The parts that can do something now.
    pub(crate) fn ready(&mut self, ready: &mut Vec<Part>) {
        let now = self.clock.now();
        if !self.events.is_empty() || self.manager.due() <= now {
            ready.push(Part::Scheduler);
        }
        if let Some(due) = self.probes.due()
            && due <= now
        {
            ready.push(Part::Probes);
        }
        for (index, checker) in self.checkers.iter().enumerate() {
            if checker.is_ready(now) {
                ready.push(Part::Checker(index));
            }
        }
        for index in self.tasks.borrow_mut().ready(now) {
            ready.push(Part::Loop(index));
        }
    }

    /// The time at which a part continues without an event.
    pub(crate) fn due(&mut self) -> Instant {
        let mut earliest = self.manager.due();
        for checker in &self.checkers {
            if let Some(due) = checker.due() {
                earliest = earliest.min(due);
            }
        }
        if let Some(due) = self.tasks.borrow_mut().due() {
            earliest = earliest.min(due);
        }
        if let Some(due) = self.probes.due() {
            earliest = earliest.min(due);
        }
        earliest
    }

    /// Lets a control loop continue. Returns its workload and its events for the scheduler.
    pub(crate) fn step_loop(&mut self, index: usize) -> (String, Vec<SchedulerEvent>) {
        let workload = self.tasks.borrow_mut().step(index);
        (workload, self.take_events())
    }

    /// The workload of a control loop or call.
    pub(crate) fn workload_of(&mut self, index: usize) -> String {
        self.tasks.borrow_mut().all()[index].workload.clone()
    }

    /// Takes the statuses of control loops on their way to the scheduler.
    pub(crate) fn take_events(&self) -> Vec<SchedulerEvent> {
        let mut events = std::mem::take(&mut *self.events_meanwhile.borrow_mut());
        events.extend(self.events_out.try_iter());
        events
    }

    /// Lets control loops continue after `percent` of the targets of the scheduler, until the
    /// returned value is dropped.
    pub(crate) fn hurry(&self, percent: u32, mut random: fastrand::Rng) -> AfterTargets {
        let hasty = HastyLoops {
            tasks: self.tasks.clone(),
            clock: self.clock.clone(),
            events_out: self.events_out.clone(),
            events_meanwhile: self.events_meanwhile.clone(),
        };
        after_each_target(move || {
            if random.u32(0..100) < percent {
                hasty.step_some(&mut random);
            }
        })
    }

    /// Lets the checks continue.
    pub(crate) fn step_probes(&self) {
        self.probes.step();
    }

    /// Lets a state checker continue.
    pub(crate) fn step_checker(&mut self, index: usize) {
        self.checkers[index].step();
    }

    /// How many control loops there are.
    pub(crate) fn loops(&mut self) -> usize {
        let mut tasks = self.tasks.borrow_mut();
        tasks.all().iter().filter(|task| task.is_loop()).count()
    }
}

/// Control loops that continue while the scheduler handles an event.
struct HastyLoops {
    tasks: Rc<RefCell<Tasks>>,
    clock: ManualClock,
    events_out: Receiver<SchedulerEvent>,
    events_meanwhile: Rc<RefCell<Vec<SchedulerEvent>>>,
}

impl HastyLoops {
    /// Does some steps, as the seed decides.
    fn step_some(&self, random: &mut fastrand::Rng) {
        for _ in 0..random.usize(1..=STEPS_MEANWHILE) {
            // Statuses are checked after the event: an instance that runs must do so until then.
            if self.has_running() {
                return;
            }
            let mut tasks = self.tasks.borrow_mut();
            let ready = tasks.ready(self.clock.now());
            if ready.is_empty() {
                return;
            }
            tasks.step(ready[random.usize(..ready.len())]);
            let events = self.events_out.try_iter();
            self.events_meanwhile.borrow_mut().extend(events);
        }
    }

    /// Whether a status that was sent meanwhile has an instance that runs.
    fn has_running(&self) -> bool {
        let events = self.events_meanwhile.borrow();
        events.iter().any(has_running_instance)
    }
}

fn has_running_instance(event: &SchedulerEvent) -> bool {
    let SchedulerEvent::Status { status, .. } = event else {
        return false;
    };
    let reports = status.changes_since(&Status::default());
    let mut phases = reports.iter().map(|report| report.state.phase);
    phases.any(|phase| phase == Phase::Running)
}
