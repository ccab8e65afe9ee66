//! The container engines of one node in virtual time: calls take their time, fail and hang, and
//! containers outlive the agent.
//!
//! Thread: the one of the test. A call is one child process of the agent. It acts at some time and
//! ends later, also when its agent is killed. Two runtimes share a node; neither lists the
//! containers of the other one.

mod creates;
mod ends;
mod starts;

use super::readiness::Readiness;
use super::trace::Trace;
use ankaios_fakes::manual_clock::ManualClock;
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::workload::Workload;
use ankaios_platform::clock::Clock;
use ankaios_runtime::limits::{LISTING_MAX, STOP_GRACE};
use ankaios_runtime::probes::{Outcome, ProbeOrder, Purpose};
use ankaios_runtime::{ContainerId, ListedContainer, MainProcess, NewContainer, RuntimeError};
pub(crate) use ends::removes_itself;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a listing with a wrong state of a container may have consequences. The next listing
/// corrects it.
const BELIEVED: Duration = Duration::from_secs(120);

/// How often calls go wrong, in percent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EngineFaults {
    /// A create or start does nothing and fails.
    pub start_fails: u32,
    /// A create stops in the middle: the container exists, the call fails.
    pub start_half_done: u32,
    /// A create takes up to two minutes.
    pub start_hangs: u32,
    /// A stop or removal fails.
    pub delete_fails: u32,
    /// A stop takes longer than it may.
    pub stop_hangs: u32,
    /// A listing fails.
    pub list_fails: u32,
    /// A listing takes longer than it may.
    pub list_hangs: u32,
    /// A listing right after a create misses the container.
    pub list_misses: u32,
    /// A check of a running workload fails.
    pub checks_fail: u32,
    /// A listing shows a container in a wrong state.
    pub list_lies: u32,
    /// A container that ended is in an unknown state for a while.
    pub strange_ends: u32,
}

/// The action of a call.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    Run(NewContainer),
    Start(ContainerId, NewContainer),
    /// Pulls the image.
    Image(Name),
    /// Creates without a start.
    Create(NewContainer),
    /// All of a start but the start itself.
    Init(ContainerId, NewContainer),
    Stop(ContainerId),
    Remove(ContainerId),
    /// Lists all containers of the runtime.
    List,
}

impl Action {
    fn changes_something(&self) -> bool {
        !matches!(self, Self::List)
    }

    fn starts(&self) -> bool {
        matches!(self, Self::Run(_) | Self::Start(..))
    }

    /// The container that the call makes, prepares or starts.
    fn container(&self) -> Option<&NewContainer> {
        match self {
            Self::Run(new) | Self::Start(_, new) | Self::Create(new) | Self::Init(_, new) => {
                Some(new)
            }
            Self::Image(_) | Self::Stop(_) | Self::Remove(_) | Self::List => None,
        }
    }

    /// A description for the trace.
    fn describe(&self) -> String {
        match self {
            Self::Run(new) => format!("run {}", new.instance.short()),
            Self::Start(_, new) => format!("start {}", new.instance.short()),
            Self::Image(workload) => format!("image of {workload}"),
            Self::Create(new) => format!("create {}", new.instance.short()),
            Self::Init(_, new) => format!("init {}", new.instance.short()),
            Self::Stop(id) => format!("stop {}", short_id(id)),
            Self::Remove(id) => format!("remove {}", short_id(id)),
            Self::List => "list".to_owned(),
        }
    }
}

/// The number in an id.
fn short_id(id: &ContainerId) -> &str {
    id.0.trim_start_matches('0')
}

/// The result of a call that has succeeded.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Done,
    Id(ContainerId),
    Listed(Vec<ListedContainer>),
}

/// The agent that makes a call, with the runtime that it calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The number of its life; its successor has the next one.
    pub life: u64,
    pub runtime: Name,
}

/// The start of a container that has begun.
pub(crate) struct BegunStart {
    /// The life of the agent.
    pub life: u64,
    pub instance: InstanceName,
    pub workload: Arc<Workload>,
}

/// The stop of a running container that has begun.
pub(crate) struct BegunStop {
    pub caller: Caller,
    /// The instance with the workload at the creation of the container.
    pub added: AddedWorkload,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    Works,
    Fails,
    HalfDone,
}

/// How a call goes, as it is drawn when it begins.
struct CallCourse {
    plan: Plan,
    takes: Duration,
    /// Longer calls are ended by the agent.
    limit: Option<Duration>,
}

#[derive(Debug)]
struct Call {
    caller: Caller,
    action: Action,
    plan: Plan,
    /// `None` when it has acted, or never will.
    acts_at: Option<Instant>,
    ends_at: Instant,
    /// Its result at its end.
    result: Result<Answer, RuntimeError>,
    cancelled: bool,
}

#[derive(Debug, Clone)]
enum Doing {
    Created {
        initialised: bool,
    },
    Running {
        since: Instant,
        end: Option<PlannedEnd>,
    },
    Ended {
        code: i64,
        /// Listings show it as running before.
        shown_from: Instant,
    },
}

/// When and how a program will end by itself.
#[derive(Debug, Clone, Copy)]
struct PlannedEnd {
    at: Instant,
    code: i64,
}

/// One container.
#[derive(Debug, Clone)]
pub(crate) struct Container {
    pub runtime: Name,
    pub instance: InstanceName,
    doing: Doing,
    pid: u32,
    /// The life of the agent that started it last.
    started_by: u64,
    listed_from: Instant,
    /// Its create failed, so it may be unknown to its agent.
    leftover: bool,
    /// It was created to be started later, and no start of it has begun.
    prepared: bool,
    /// The workload at its creation.
    made_for: Arc<Workload>,
    /// The boot of the node in which it was created.
    boot: u32,
    /// Until then a listing that shows it as not running may be used.
    denied_until: Option<Instant>,
    /// The life of the agent that stopped it last, whether it still ran or not.
    stopped_by: Option<u64>,
    /// It was started with `--rm`.
    removes_itself: bool,
    /// It is gone from then on.
    vanishes_at: Option<Instant>,
    /// Until then listings show an unknown state of its end.
    strange_until: Option<Instant>,
}

impl Container {
    /// Whether it has been running for long enough to respond to checks of the instance. The time
    /// that this takes differs by instance.
    fn answers(&self, instance: &InstanceName, now: Instant) -> bool {
        let Doing::Running { since, .. } = self.doing else {
            return false;
        };
        let mut takes_ms = 0;
        for byte in instance.id.bytes().take(2) {
            takes_ms += u64::from(byte % 16) * 150;
        }
        self.instance == *instance && since + Duration::from_millis(takes_ms) <= now
    }

    fn planned_end(&self) -> Option<PlannedEnd> {
        match self.doing {
            Doing::Running { end, .. } => end,
            _ => None,
        }
    }

    /// Whether a listing that shows it as not running may be used.
    fn is_denied(&self, now: Instant) -> bool {
        match self.denied_until {
            Some(until) => now < until,
            None => false,
        }
    }

    /// Whether this life of the agent did not start it.
    pub(crate) fn is_of_another_life(&self, life: u64) -> bool {
        self.started_by != life
    }

    /// Whether this life of the agent stopped it. How it ended is of no use to that agent then.
    pub(crate) fn was_stopped_by(&self, life: u64) -> bool {
        self.stopped_by == Some(life)
    }

    /// Whether it ended because this life of the agent stopped it, and waits to be removed.
    pub(crate) fn is_only_stopped_by(&self, life: u64) -> bool {
        matches!(self.doing, Doing::Ended { .. }) && self.was_stopped_by(life)
    }

    /// Whether it waits to be started.
    pub(crate) fn is_prepared(&self) -> bool {
        self.prepared
    }

    /// Its true phase; a listing may lag behind.
    pub(crate) fn phase(&self) -> Phase {
        match self.doing {
            Doing::Created { .. } => Phase::PendingStarting,
            Doing::Running { .. } => Phase::Running,
            Doing::Ended { code: 0, .. } => Phase::Succeeded,
            Doing::Ended { .. } => Phase::FailedExecFailed,
        }
    }
}

/// A prepared container whose removal began.
pub(crate) struct Discarded {
    pub added: AddedWorkload,
    pub level: PrepareLevel,
}

struct ExitWatch {
    caller: Caller,
    key: u64,
    pid: u32,
}

struct World {
    clock: ManualClock,
    random: fastrand::Rng,
    trace: Trace,
    faults: EngineFaults,
    /// The disturbances have ended. Programs that would be restarted without end keep running.
    calm: bool,
    containers: BTreeMap<ContainerId, Container>,
    created: u32,
    calls: BTreeMap<u64, Call>,
    called: u64,
    watches: Vec<ExitWatch>,
    /// Watches of processes that have ended.
    ended: Vec<ExitWatch>,
    started: Vec<BegunStart>,
    stopped: Vec<BegunStop>,
    /// Prepared containers whose removal began.
    discarded: Vec<Discarded>,
    removed_by_hand: BTreeSet<InstanceName>,
    /// The times until which removed workloads still respond.
    lingers: BTreeMap<InstanceName, Instant>,
    /// Starts of instances that were found ready.
    ready: Readiness,
    /// Paths of the node that do not exist at the moment.
    missing: BTreeSet<String>,
    /// Instances that the agent must stage.
    staged: BTreeSet<InstanceName>,
    /// Lives that have a listing of the containers of a runtime.
    listed: BTreeSet<(u64, Name)>,
    /// The time of the first listing call of each life.
    asked: BTreeMap<u64, Instant>,
    /// Containers of runtimes that have not listed for too long. A life has begun to start their
    /// workloads beside them. When they become known, the call that is under way continues. After
    /// it the workload is not started again before they are removed.
    given_up: BTreeSet<(u64, ContainerId)>,
    /// The records of agents about prepared containers.
    records: BTreeMap<InstanceName, String>,
    boots: u32,
    violations: Vec<String>,
}

/// The engines; clones are the same engines.
#[derive(Clone)]
pub(crate) struct SimEngine {
    world: Arc<Mutex<World>>,
}

/// Ends the watching of one process when it is dropped.
pub(crate) struct WatchGuard {
    engine: SimEngine,
    caller: Caller,
    key: u64,
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        let mut world = self.engine.world();
        world
            .watches
            .retain(|watch| watch.key != self.key || watch.caller != self.caller);
    }
}

impl SimEngine {
    pub(crate) fn new(
        clock: &ManualClock,
        random: fastrand::Rng,
        trace: Trace,
        faults: EngineFaults,
    ) -> Self {
        let world = World {
            clock: clock.clone(),
            random,
            trace,
            faults,
            calm: false,
            containers: BTreeMap::new(),
            created: 0,
            calls: BTreeMap::new(),
            called: 0,
            watches: Vec::new(),
            ended: Vec::new(),
            started: Vec::new(),
            stopped: Vec::new(),
            discarded: Vec::new(),
            removed_by_hand: BTreeSet::new(),
            lingers: BTreeMap::new(),
            ready: Readiness::default(),
            missing: BTreeSet::new(),
            staged: BTreeSet::new(),
            listed: BTreeSet::new(),
            asked: BTreeMap::new(),
            given_up: BTreeSet::new(),
            records: BTreeMap::new(),
            boots: 0,
            violations: Vec::new(),
        };
        Self {
            world: Arc::new(Mutex::new(world)),
        }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    // ------------------------------------------------------- what agents see

    /// Begins a call. Returns its number.
    pub(crate) fn begin(&self, caller: &Caller, action: Action, limit: Option<Duration>) -> u64 {
        self.world().begin(caller.clone(), action, limit)
    }

    /// When a call ends.
    pub(crate) fn due_of(&self, call: u64) -> Option<Instant> {
        self.world().calls.get(&call).map(|call| call.ends_at)
    }

    /// Takes the result of a call that has ended.
    pub(crate) fn take_result(&self, call: u64) -> Option<Result<Answer, RuntimeError>> {
        let mut world = self.world();
        if world.calls.get(&call)?.ends_at > world.clock.now() {
            return None;
        }
        world.take_due(); // It acts before it ends.
        let ended = world.calls.remove(&call)?;
        if ended.cancelled {
            world.show_all();
        }
        match (&ended.action, &ended.result) {
            (Action::Start(id, _), Err(_)) => world.set_leftover(id, true),
            (Action::Run(_) | Action::Start(..), Ok(Answer::Id(id))) => {
                world.set_leftover(id, false);
            }
            _ => {}
        }
        Some(ended.result)
    }

    /// Takes a listing that the scheduler of this life handles.
    pub(crate) fn note_listed(&self, life: u64, runtime: &Name) {
        self.world().listed.insert((life, runtime.clone()));
    }

    /// Keeps the record of an agent about a prepared container.
    pub(crate) fn keep_record(&self, instance: &InstanceName, record: &str) {
        self.world()
            .records
            .insert(instance.clone(), record.to_owned());
    }

    /// Removes the record: the container is not a prepared one any more.
    pub(crate) fn forget_record(&self, instance: &InstanceName) {
        self.world().records.remove(instance);
    }

    pub(crate) fn record(&self, instance: &InstanceName) -> Option<String> {
        self.world().records.get(instance).cloned()
    }

    /// Ends a call within two seconds. It may still act.
    pub(crate) fn cancel(&self, call: u64) {
        let mut world = self.world();
        let late = world.random.u64(0..2_000);
        let acts = world.random.u8(0..3);
        let now = world.clock.now();
        let Some(call) = world.calls.get_mut(&call) else {
            return;
        };
        if call.cancelled {
            return;
        }
        call.cancelled = true;
        call.ends_at = call.ends_at.min(now + Duration::from_millis(late));
        call.result = Err(RuntimeError::Cancelled);
        match acts {
            0 => call.acts_at = None,
            1 => call.plan = Plan::HalfDone,
            _ => {}
        }
        let ends_at = call.ends_at;
        call.acts_at.take_if(|at| *at > ends_at);
    }

    /// Watches a process. The end of one that has ended already is reported at once.
    pub(crate) fn watch_exit(&self, caller: &Caller, key: u64, pid: u32) -> WatchGuard {
        let watch = ExitWatch {
            caller: caller.clone(),
            key,
            pid,
        };
        let mut world = self.world();
        if world.runs(pid) {
            world.watches.push(watch);
        } else {
            world.ended.push(watch);
        }
        drop(world);
        WatchGuard {
            engine: self.clone(),
            caller: caller.clone(),
            key,
        }
    }

    /// Whether [`Self::take_exits`] has something.
    pub(crate) fn has_exits(&self, caller: &Caller) -> bool {
        let world = self.world();
        let mut ended = world.ended.iter();
        ended.any(|watch| watch.caller == *caller)
    }

    /// Takes the keys of watched processes that have ended.
    pub(crate) fn take_exits(&self, caller: &Caller) -> Vec<u64> {
        let mut world = self.world();
        let mut keys = Vec::new();
        for watch in world.ended.extract_if(.., |watch| watch.caller == *caller) {
            keys.push(watch.key);
        }
        keys
    }

    // ----------------------------------------------------------------- checks

    /// The outcome of a check of a workload by one life of an agent.
    pub(crate) fn check(&self, life: u64, order: &ProbeOrder) -> Outcome {
        let mut world = self.world();
        let holds = match order.purpose {
            Purpose::Gone => world.still_responds(&order.instance),
            Purpose::Ready | Purpose::Alive if order.check.to_string().contains("never") => false,
            Purpose::Ready => {
                let holds = world.answers(&order.instance) && !world.draw_check_failure();
                world.ready.note(life, order, holds);
                holds
            }
            Purpose::Alive => !world.draw_check_failure(),
        };
        if holds {
            Outcome::Holds
        } else {
            Outcome::fails("refused")
        }
    }

    /// Whether that life of the agent has found the instance ready since its last start, as often
    /// in a row as its block demands.
    pub(crate) fn is_ready(&self, life: u64, instance: &InstanceName) -> bool {
        self.world().ready.is_ready(life, instance)
    }

    /// Whether a path of the node exists.
    pub(crate) fn exists(&self, path: &str) -> bool {
        !self.world().missing.contains(path)
    }

    /// Creates a path of the node, or removes it.
    pub(crate) fn toggle(&self, path: &str) {
        let mut world = self.world();
        world.trace.line(|| format!("engine: {path} comes or goes"));
        if !world.missing.remove(path) {
            world.missing.insert(path.to_owned());
        }
    }

    // -------------------------------------------------------- agents and nodes

    /// The agent was killed. Its calls that change something continue.
    pub(crate) fn orphan(&self, life: u64) {
        let mut world = self.world();
        world
            .calls
            .retain(|_, call| call.caller.life != life || call.action.changes_something());
        world.watches.retain(|watch| watch.caller.life != life);
        world.ended.retain(|watch| watch.caller.life != life);
    }

    /// Forgets ended calls of earlier lives. Returns how many still run.
    pub(crate) fn forget_ended_orphans(&self, life: u64) -> usize {
        self.world().forget_ended(life)
    }

    /// Ends calls of earlier lives.
    pub(crate) fn end_orphans(&self, life: u64, by_force: bool) {
        let mut numbers = Vec::new();
        for (number, call) in &self.world().calls {
            if call.caller.life < life {
                numbers.push(*number);
            }
        }
        for number in numbers {
            if by_force || self.world().random.bool() {
                self.cancel(number);
            }
        }
    }

    /// The node loses its power: nothing runs any more.
    pub(crate) fn reboot(&self) {
        let mut world = self.world();
        let now = world.clock.now();
        world.calls.clear();
        world.watches.clear();
        world.ended.clear();
        world.boots += 1;
        if world.boots.is_multiple_of(2) {
            world.records.clear(); // As if they were kept in memory.
        }
        for container in world.containers.values_mut() {
            if let Doing::Created { initialised } = &mut container.doing {
                *initialised = false;
            }
            if container.phase() == Phase::Running {
                container.doing = Doing::Ended {
                    code: 255,
                    shown_from: now,
                };
                container.vanishes_at = None;
                if container.removes_itself {
                    container.vanishes_at = Some(now);
                }
            }
        }
    }

    // ---------------------------------------------------------- from outside

    /// Ends a process, if there is one; an initialised container has one as well.
    pub(crate) fn crash_one(&self) {
        let mut world = self.world();
        let running = world.ids(|container| {
            matches!(
                container.doing,
                Doing::Running { .. } | Doing::Created { initialised: true }
            )
        });
        if running.is_empty() {
            return;
        }
        let index = world.random.usize(..running.len());
        let code = [0, 1, 137, -1][world.random.usize(..4)];
        world.end(&running[index], code);
    }

    /// Removes a container as a user would, if there is one.
    pub(crate) fn remove_one(&self) {
        let mut world = self.world();
        let ids = world.ids(|_| true);
        if ids.is_empty() {
            return;
        }
        let id = ids[world.random.usize(..ids.len())].clone();
        world.end(&id, 137);
        if let Some(container) = world.containers.remove(&id) {
            let short = container.instance.short();
            world
                .trace
                .line(|| format!("engine: '{short}' is removed by hand"));
            world.removed_by_hand.insert(container.instance);
        }
    }

    /// Ends all faults.
    pub(crate) fn calm_down(&self) {
        let mut world = self.world();
        world.faults = EngineFaults::default();
        world.calm = true;
        world.missing.clear();
    }

    /// The time of the next act of a call, or end of a process.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.world().due()
    }

    /// Does all due acts.
    pub(crate) fn step(&self) {
        self.world().take_due();
    }

    // ------------------------------------------------------------ for checks

    pub(crate) fn containers(&self) -> Vec<Container> {
        self.world().containers.values().cloned().collect()
    }

    /// The container of an instance.
    #[cfg(test)]
    pub(crate) fn id_of(&self, instance: &InstanceName) -> Option<ContainerId> {
        let ids = self
            .world()
            .ids(|container| container.instance == *instance);
        ids.into_iter().next()
    }

    pub(crate) fn is_removed_by_hand(&self, instance: &InstanceName) -> bool {
        self.world().removed_by_hand.contains(instance)
    }

    /// How many calls that change something are under way.
    pub(crate) fn calls(&self) -> usize {
        let world = self.world();
        let calls = world.calls.values();
        calls.filter(|call| call.action.changes_something()).count()
    }

    pub(crate) fn take_violations(&self) -> Vec<String> {
        std::mem::take(&mut self.world().violations)
    }

    /// Takes the creates and starts that have begun.
    pub(crate) fn take_started(&self) -> Vec<BegunStart> {
        std::mem::take(&mut self.world().started)
    }

    /// Takes the prepared containers that could be started, and whose removal has begun.
    pub(crate) fn take_discarded(&self) -> Vec<Discarded> {
        std::mem::take(&mut self.world().discarded)
    }

    /// Takes the stops of running containers that have begun.
    pub(crate) fn take_stopped(&self) -> Vec<BegunStop> {
        std::mem::take(&mut self.world().stopped)
    }
}

fn failed(text: &str) -> RuntimeError {
    RuntimeError::Failed(text.into())
}

impl World {
    /// The ids of the containers that are `wanted`.
    fn ids(&self, wanted: impl Fn(&Container) -> bool) -> Vec<ContainerId> {
        let mut ids = Vec::new();
        for (id, container) in &self.containers {
            if wanted(container) {
                ids.push(id.clone());
            }
        }
        ids
    }

    /// Whether a running container has this process.
    fn runs(&self, pid: u32) -> bool {
        let mut containers = self.containers.values();
        containers.any(|container| container.pid == pid && container.phase() == Phase::Running)
    }

    /// Whether a container responds to checks of the instance.
    fn answers(&self, instance: &InstanceName) -> bool {
        let now = self.clock.now();
        let mut containers = self.containers.values();
        containers.any(|container| container.answers(instance, now))
    }

    /// Whether a removed workload still responds.
    fn still_responds(&self, instance: &InstanceName) -> bool {
        match self.lingers.get(instance) {
            Some(until) => *until > self.clock.now(),
            None => false,
        }
    }

    fn set_leftover(&mut self, id: &ContainerId, leftover: bool) {
        if let Some(container) = self.containers.get_mut(id) {
            container.leftover = leftover;
        }
    }

    /// Draws whether a check fails.
    fn draw_check_failure(&mut self) -> bool {
        self.happens(self.faults.checks_fail)
    }

    /// Draws whether something happens.
    fn happens(&mut self, percent: u32) -> bool {
        percent > 0 && self.random.u32(0..100) < percent
    }

    fn millis(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.random.u64(range))
    }

    /// Draws a time from one of these ranges, in milliseconds: `hanging` with this probability.
    fn draw_time(
        &mut self,
        percent: u32,
        usual: std::ops::Range<u64>,
        hanging: std::ops::Range<u64>,
    ) -> Duration {
        if self.happens(percent) {
            self.millis(hanging)
        } else {
            self.millis(usual)
        }
    }

    fn begin(&mut self, caller: Caller, action: Action, limit: Option<Duration>) -> u64 {
        self.note_begin(&caller, &action);
        let CallCourse { plan, takes, limit } = self.draw_course(&action, limit);
        let now = self.clock.now();
        let mut acts_at = Some(now + takes.mul_f64(self.random.f64()));
        let mut ends_at = now + takes;
        let mut result = Ok(Answer::Done);
        if let Some(limit) = limit
            && limit < takes
        {
            ends_at = now + limit;
            result = Err(RuntimeError::TimedOut("it took too long".into()));
        }
        acts_at.take_if(|at| *at > ends_at);
        self.called += 1;
        let call = Call {
            caller,
            action,
            plan,
            acts_at,
            ends_at,
            result,
            cancelled: false,
        };
        self.calls.insert(self.called, call);
        self.called
    }

    /// Checks a call that begins, and notes it for the expectations.
    fn note_begin(&mut self, caller: &Caller, action: &Action) {
        match action {
            Action::Run(new) => {
                self.note_start(caller, action, new);
                // From this start on, containers of the instance are those of a start.
                for container in self.containers.values_mut() {
                    if container.instance == new.instance {
                        container.prepared = false;
                    }
                }
            }
            Action::Start(id, new) => {
                self.note_start(caller, action, new);
                self.begin_start(id);
            }
            Action::Create(new) | Action::Init(_, new) => {
                self.check_preparation(caller, action, new);
                self.check_relevance(new);
            }
            Action::Stop(id) => {
                self.note_discarded(id);
                self.note_stop(caller, id);
            }
            Action::List => {
                let now = self.clock.now();
                self.asked.entry(caller.life).or_insert(now);
            }
            Action::Image(_) | Action::Remove(_) => {}
        }
    }

    fn note_start(&mut self, caller: &Caller, action: &Action, new: &NewContainer) {
        self.check_start(caller, action, new);
        self.check_relevance(new);
        self.started.push(BegunStart {
            life: caller.life,
            instance: new.instance.clone(),
            workload: new.workload.clone(),
        });
    }

    /// Notes the stop of a running container, if its agent knows that it runs.
    fn note_stop(&mut self, caller: &Caller, id: &ContainerId) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let runs = container.phase() == Phase::Running;
        if runs && !container.leftover && !container.is_denied(self.clock.now()) {
            self.stopped.push(BegunStop {
                caller: caller.clone(),
                added: AddedWorkload {
                    instance: container.instance.clone(),
                    workload: container.made_for.clone(),
                },
            });
        }
    }

    /// Draws how a call goes. The order of the draws stays, so that seeds do the same as before.
    fn draw_course(&mut self, action: &Action, limit: Option<Duration>) -> CallCourse {
        let faults = self.faults;
        match action {
            Action::Run(_) | Action::Start(..) => {
                let plan = self.draw_plan(matches!(action, Action::Run(_)));
                let takes = self.draw_time(faults.start_hangs, 20..3_000, 3_000..120_000);
                CallCourse { plan, takes, limit }
            }
            Action::Image(_) => {
                let takes = self.draw_time(faults.start_hangs, 20..1_000, 3_000..120_000);
                let plan = self.works_unless(faults.start_fails);
                CallCourse { plan, takes, limit }
            }
            Action::Create(_) | Action::Init(..) => {
                let plan = self.draw_plan(matches!(action, Action::Create(_)));
                let takes = self.draw_time(faults.start_hangs, 20..1_000, 3_000..120_000);
                CallCourse { plan, takes, limit }
            }
            Action::Stop(_) => {
                let takes = self.draw_time(faults.stop_hangs, 10..2_000, 10_000..60_000);
                CallCourse {
                    plan: self.works_unless(faults.delete_fails),
                    takes,
                    limit: Some(STOP_GRACE * 2),
                }
            }
            Action::Remove(_) => {
                let plan = self.works_unless(faults.delete_fails);
                CallCourse {
                    plan,
                    takes: self.millis(10..500),
                    limit: Some(Duration::from_secs(30)),
                }
            }
            Action::List => {
                let takes = self.draw_time(faults.list_hangs, 5..200, 5_000..60_000);
                CallCourse {
                    plan: self.works_unless(faults.list_fails),
                    takes,
                    limit: Some(LISTING_MAX),
                }
            }
        }
    }

    /// Draws whether a create or start works. Only a call that makes a container can stop in the
    /// middle.
    fn draw_plan(&mut self, makes_container: bool) -> Plan {
        if makes_container && self.happens(self.faults.start_half_done) {
            return Plan::HalfDone;
        }
        self.works_unless(self.faults.start_fails)
    }

    fn works_unless(&mut self, percent: u32) -> Plan {
        if self.happens(percent) {
            Plan::Fails
        } else {
            Plan::Works
        }
    }

    fn due(&self) -> Option<Instant> {
        let mut due = None;
        for call in self.calls.values() {
            due = earlier(due, call.acts_at);
        }
        for container in self.containers.values() {
            due = earlier(due, container.planned_end().map(|end| end.at));
            due = earlier(due, container.vanishes_at);
        }
        due
    }

    /// Does all due acts, in their order.
    fn take_due(&mut self) {
        while let Some(at) = self.due() {
            if at > self.clock.now() {
                return;
            }
            let has_acted = self.take_act(at) || self.take_end(at) || self.take_vanished(at);
            if !has_acted {
                return;
            }
        }
    }

    /// Lets a call act whose time has come. Returns whether there was one.
    fn take_act(&mut self, at: Instant) -> bool {
        for (number, call) in &self.calls {
            if call.acts_at == Some(at) {
                let number = *number;
                self.act(number);
                return true;
            }
        }
        false
    }

    /// Ends a program whose time has come. Returns whether there was one.
    fn take_end(&mut self, at: Instant) -> bool {
        for (id, container) in &self.containers {
            if let Some(end) = container.planned_end()
                && end.at == at
            {
                let id = id.clone();
                self.end(&id, end.code);
                return true;
            }
        }
        false
    }

    /// Lets listings show all containers: a listing may miss the container of a call that still
    /// runs, but not that of a call that was ended.
    fn show_all(&mut self) {
        let now = self.clock.now();
        for container in self.containers.values_mut() {
            container.listed_from = container.listed_from.min(now);
        }
    }

    /// Forgets ended calls of earlier lives. Returns how many still run.
    fn forget_ended(&mut self, life: u64) -> usize {
        let now = self.clock.now();
        self.take_due();
        let before = self.calls.len();
        self.calls
            .retain(|_, call| call.caller.life >= life || call.ends_at > now);
        if self.calls.len() < before {
            self.show_all();
        }
        let calls = self.calls.values();
        calls.filter(|call| call.caller.life < life).count()
    }

    // ------------------------------------------------------------------- acts

    fn act(&mut self, number: u64) {
        let Some(call) = self.calls.get_mut(&number) else {
            return;
        };
        call.acts_at = None;
        let caller = call.caller.clone();
        let action = call.action.clone();
        let plan = call.plan;
        let answer = self.do_action(&caller, &action, plan);
        if action.changes_something() {
            self.trace.line(|| {
                let result = match &answer {
                    Ok(Answer::Id(id)) => short_id(id).to_owned(),
                    Ok(_) => "done".to_owned(),
                    Err(error) => error.to_string(),
                };
                let what = action.describe();
                format!("engine: {what} of life {}: {result}", caller.life)
            });
        }
        // A call that takes too long or is cancelled fails anyway.
        if let Some(call) = self.calls.get_mut(&number)
            && call.result.is_ok()
        {
            call.result = answer;
        }
    }

    fn do_action(
        &mut self,
        caller: &Caller,
        action: &Action,
        plan: Plan,
    ) -> Result<Answer, RuntimeError> {
        let is_half_done = plan == Plan::HalfDone;
        match (action, plan) {
            // A start that fails may have changed the container.
            (Action::Start(id, new), _) => self.start(caller, id, new, plan != Plan::Works),
            (_, Plan::Fails) => Err(failed("the engine says no")),
            (Action::Run(new), _) => self.run(caller, new, is_half_done),
            (Action::Image(_), _) => Ok(Answer::Done),
            (Action::Create(new), _) => self.create(caller, new, is_half_done),
            (Action::Init(id, _), _) => self.init(id),
            (Action::Stop(id), _) => {
                self.end(id, 137);
                if let Some(container) = self.containers.get_mut(id) {
                    container.stopped_by = Some(caller.life);
                }
                Ok(Answer::Done)
            }
            (Action::Remove(id), _) => self.remove(id),
            (Action::List, _) => Ok(Answer::Listed(self.list(&caller.runtime))),
        }
    }

    fn list(&mut self, runtime: &Name) -> Vec<ListedContainer> {
        let mut listed = self.list_truly(runtime);
        for container in &mut listed {
            if self.happens(self.faults.list_lies) {
                self.lie_about(container);
            }
        }
        listed
    }

    /// Replaces the listed state of a container by another one.
    fn lie_about(&mut self, listed: &mut ListedContainer) {
        let ended = match self.containers.get(&listed.id) {
            Some(container) => container.exited(1),
            None => ExecutionState::exited(1),
        };
        let lies = [
            ExecutionState::plain(Phase::Running),
            ended,
            ExecutionState::with_info(Phase::FailedUnknown, "?"),
        ];
        listed.state = lies[self.random.usize(..lies.len())].clone();
        if listed.state.phase == Phase::Running {
            return;
        }
        listed.processes.clear();
        let until = self.clock.now() + BELIEVED;
        if let Some(container) = self.containers.get_mut(&listed.id) {
            container.denied_until = Some(until);
        }
    }

    fn list_truly(&self, runtime: &Name) -> Vec<ListedContainer> {
        let now = self.clock.now();
        let mut listed = Vec::new();
        for (id, container) in &self.containers {
            if container.runtime != *runtime || container.listed_from > now {
                continue;
            }
            let state = container.shown(now);
            let mut processes = Vec::new();
            if state.phase == Phase::Running {
                processes.push(MainProcess {
                    container: id.clone(),
                    pid: container.pid,
                });
            }
            listed.push(ListedContainer {
                id: id.clone(),
                instance: container.instance.clone(),
                processes,
                state,
                ended_at: None,
                in_pod: false,
                pods: None,
            });
        }
        listed
    }
}

/// The earlier of two times.
fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (at, None) | (None, at) => at,
    }
}
