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
use ankaios_runtime::MainProcess;
use ankaios_runtime::engine_children::EarlierCalls;
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

/// How much control loops and calls do between two targets, at most.
const STEPS_MEANWHILE: usize = 6;

/// Control loops and engine calls that wait until they are stepped.
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
            if task.is_ready(now) {
                ready.push(index);
            }
        }
        ready
    }

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

/// A state checker's view of its engine.
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

struct SimChecker {
    checker: StateChecker<SimEnv, ManualClock>,
    commands: Receiver<WatchCommand>,
    listing: Rc<Cell<Option<u64>>>,
    engine: SimEngine,
    caller: Caller,
}

impl SimChecker {
    fn due(&self) -> Option<Instant> {
        let mut due = Vec::new();
        due.extend(self.checker.next_listing_at());
        if let Some(call) = self.listing.get() {
            due.extend(self.engine.due_of(call));
        }
        due.into_iter().min()
    }

    fn is_ready(&self, now: Instant) -> bool {
        if !self.commands.is_empty() || self.engine.has_exits(&self.caller) {
            return true;
        }
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
            let listed = result.map(|answer| match answer {
                Answer::Listed(listed) => listed,
                other => panic!("a listing answers {other:?}"),
            });
            self.checker.on_listed(listed);
        }
        for command in self.commands.try_iter() {
            self.checker.on_command(command);
        }
        for key in self.engine.take_exits(&self.caller) {
            self.checker.on_exit(key);
        }
        self.checker.list_if_due();
    }
}

struct Orphans {
    engine: SimEngine,
    life: u64,
}

impl EarlierCalls for Orphans {
    fn still_running(&mut self) -> usize {
        self.engine.orphans(self.life)
    }

    fn end(&mut self, by_force: bool) {
        self.engine.end_orphans(self.life, by_force);
    }
}

/// How an agent is configured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LifeOptions {
    pub parallel_starts: usize,
    pub create_timeout: Option<Duration>,
    pub pidfds: bool,
    pub seed: u64,
    /// How far starts are prepared, and how many containers may be initialised.
    pub prepare: (PrepareLevel, usize),
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
    /// Where answers of the server go.
    pub control: ControlHub,
    /// Where the control interface puts what workloads ask.
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
        let (mut engines, mut checkers) = (Engines::new(), Vec::new());
        for runtime in RUNTIMES {
            let (watch, commands) = bounded(STEPPED_INBOX);
            let caller = Caller {
                life: number,
                runtime: runtime.into(),
            };
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
            let checker = StateChecker::new(env, clock.clone(), settings);
            checkers.push(SimChecker {
                checker,
                commands,
                listing,
                engine: engine.clone(),
                caller: caller.clone(),
            });
            let (engine, clock) = (engine.clone(), clock.clone());
            let connect = move || {
                let (engine, caller, clock) = (engine.clone(), caller.clone(), clock.clone());
                Box::new(SimConnector {
                    engine,
                    caller,
                    clock,
                }) as Connector
            };
            engines.insert(
                runtime.into(),
                EngineSource {
                    connect: Box::new(connect),
                    watch,
                },
            );
        }
        let control = ControlHub::new(outbox.clone(), CONTROL_MESSAGE_MAX).expect("a descriptor");
        let for_checks = engine.clone();
        let probes = FakeProbes::new(
            clock,
            Box::new(move |order| for_checks.check(number, order)),
        );
        let (start, calls) = unbounded();
        let (level, max) = options.prepare;
        let context = LoopContext {
            clock: clock.clone(),
            engines: Arc::new(engines),
            reports,
            slots: StartSlots::new(options.parallel_starts, options.parallel_starts, max),
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
                paths
                    .iter()
                    .map(|path| ((*path).to_owned(), for_conditions.exists(path)))
                    .collect()
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
            Some(orphans),
            StatusBoard::default(),
        );
        let clock = clock.clone();
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
            clock,
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

    /// Lets control loops continue after `percent` of the targets of the scheduler, until the returned
    /// value is dropped.
    pub(crate) fn hurry(&self, percent: u32, mut random: fastrand::Rng) -> AfterTargets {
        let (tasks, clock) = (self.tasks.clone(), self.clock.clone());
        let (events_out, events_meanwhile) =
            (self.events_out.clone(), self.events_meanwhile.clone());
        after_each_target(move || {
            if random.u32(0..100) >= percent {
                return;
            }
            for _ in 0..random.usize(1..=STEPS_MEANWHILE) {
                // Statuses are checked after the event: an instance in `Running` must last until then.
                if events_meanwhile.borrow().iter().any(says_that_it_runs) {
                    return;
                }
                let mut tasks = tasks.borrow_mut();
                let ready = tasks.ready(clock.now());
                if ready.is_empty() {
                    return;
                }
                tasks.step(ready[random.usize(..ready.len())]);
                events_meanwhile.borrow_mut().extend(events_out.try_iter());
            }
        })
    }

    /// Lets the checks go on.
    pub(crate) fn step_probes(&self) {
        self.probes.step();
    }

    /// Lets a state checker go on.
    pub(crate) fn step_checker(&mut self, index: usize) {
        self.checkers[index].step();
    }

    /// How many control loops there are.
    pub(crate) fn loops(&mut self) -> usize {
        let mut tasks = self.tasks.borrow_mut();
        tasks.all().iter().filter(|task| task.is_loop()).count()
    }
}

fn says_that_it_runs(event: &SchedulerEvent) -> bool {
    let SchedulerEvent::Status { status, .. } = event else {
        return false;
    };
    let reports = status.changes_since(&Status::default());
    let mut phases = reports.iter().map(|report| report.state.phase);
    phases.any(|phase| phase == Phase::Running)
}
