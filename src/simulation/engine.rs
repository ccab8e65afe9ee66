//! The container engines of one node in virtual time: calls take their time, fail and hang, and
//! containers outlive the agent.
//!
//! Thread: the one of the test. A call is what one child process of the agent does: it acts at some
//! point and ends later; when its agent is killed it goes on. Two runtimes share a node and know
//! nothing of each other's containers.

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

/// A lie about a container is made good with the next listing, and what follows from it soon after.
const BELIEVED: Duration = Duration::from_secs(120);

/// How often calls go wrong, in percent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EngineFaults {
    /// A create or start does nothing and says so.
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
    /// A listing shows a container in a state that it has not.
    pub list_lies: u32,
    /// A container that ended is in an unknown state for a while.
    pub strange_ends: u32,
}

/// What a child process of the agent does.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    Run(NewContainer),
    Start(ContainerId, NewContainer),
    /// Gets the image.
    Image(Name),
    /// Creates without a start.
    Create(NewContainer),
    /// All of a start but the start itself.
    Init(ContainerId, NewContainer),
    Stop(ContainerId),
    Remove(ContainerId),
    /// All containers of the runtime.
    List,
}

impl Action {
    fn changes_something(&self) -> bool {
        !matches!(self, Self::List)
    }
}

/// What a call answers.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Done,
    Id(ContainerId),
    Listed(Vec<ListedContainer>),
}

/// Which agent process calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Number of its life; an agent that was killed has another one than its successor.
    pub life: u64,
    pub runtime: Name,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    Works,
    Fails,
    HalfDone,
}

#[derive(Debug)]
struct Call {
    caller: Caller,
    action: Action,
    plan: Plan,
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
        until: Option<(Instant, i64)>,
    },
    Ended {
        code: i64,
        shown_from: Instant,
    },
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
    /// Then it is gone.
    vanishes_at: Option<Instant>,
    /// Until then listings show an unknown state of its end.
    strange_until: Option<Instant>,
}

impl Container {
    /// It needs some time until it answers, each instance another one.
    fn answers(&self, instance: &InstanceName, now: Instant) -> bool {
        let takes = Duration::from_millis(
            instance
                .id
                .bytes()
                .take(2)
                .map(|byte| u64::from(byte % 16) * 150)
                .sum(),
        );
        self.instance == *instance
            && matches!(self.doing, Doing::Running { since, .. } if since + takes <= now)
    }

    /// Whether this life of the agent did not start it.
    pub(crate) fn is_of_another_life(&self, life: u64) -> bool {
        self.started_by != life
    }

    /// Whether this life of the agent stopped it: how it ended says nothing to it then.
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
    /// The disturbances have ended: containers that would be restarted without end stay.
    calm: bool,
    containers: BTreeMap<ContainerId, Container>,
    created: u32,
    calls: BTreeMap<u64, Call>,
    called: u64,
    watches: Vec<ExitWatch>,
    ended: Vec<(Caller, u64)>,
    started: Vec<(u64, InstanceName, Arc<Workload>)>,
    stopped: Vec<(Caller, InstanceName)>,
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
    /// Containers beside which a life has begun to start their workload because of that: the call
    /// that is under way when they become known goes on. After it the workload is not started again
    /// before they are removed.
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
        let (caller, key) = (&self.caller, self.key);
        self.engine
            .world()
            .watches
            .retain(|watch| watch.key != key || watch.caller != *caller);
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

    /// Starts a child process; answers its number.
    pub(crate) fn begin(&self, caller: &Caller, action: Action, limit: Option<Duration>) -> u64 {
        self.world().begin(caller.clone(), action, limit)
    }

    /// When there may be something new about a call.
    pub(crate) fn due_of(&self, call: u64) -> Option<Instant> {
        self.world().calls.get(&call).map(|call| call.ends_at)
    }

    /// What the call said, when it has ended.
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
        if let (Action::Start(id, _), Err(_)) = (&ended.action, &ended.result)
            && let Some(container) = world.containers.get_mut(id)
        {
            container.leftover = true;
        }
        if let (Action::Run(_) | Action::Start(..), Ok(Answer::Id(id))) =
            (&ended.action, &ended.result)
            && let Some(container) = world.containers.get_mut(id)
        {
            container.leftover = false;
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

    /// Ends a child process within two seconds. Its effect may still happen.
    pub(crate) fn cancel(&self, call: u64) {
        let mut world = self.world();
        let late = world.random.u64(0..2_000);
        let acts = world.random.u8(0..3);
        let now = world.clock.now();
        if let Some(call) = world.calls.get_mut(&call).filter(|call| !call.cancelled) {
            call.cancelled = true;
            call.ends_at = call.ends_at.min(now + Duration::from_millis(late));
            call.result = Err(RuntimeError::Cancelled);
            match acts {
                0 => call.acts_at = None,
                1 => call.plan = Plan::HalfDone,
                _ => {}
            }
            call.acts_at = call.acts_at.filter(|at| *at <= call.ends_at);
        }
    }

    /// Watches a process. The end of one that has ended already is reported at once.
    pub(crate) fn watch_exit(&self, caller: &Caller, key: u64, pid: u32) -> WatchGuard {
        let mut world = self.world();
        let runs =
            |container: &Container| container.pid == pid && container.phase() == Phase::Running;
        if world.containers.values().any(runs) {
            world.watches.push(ExitWatch {
                caller: caller.clone(),
                key,
                pid,
            });
        } else {
            world.ended.push((caller.clone(), key));
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
        self.world()
            .ended
            .iter()
            .any(|(for_whom, _)| for_whom == caller)
    }

    /// Keys of watched processes that have ended.
    pub(crate) fn take_exits(&self, caller: &Caller) -> Vec<u64> {
        let mut world = self.world();
        world
            .ended
            .extract_if(.., |(for_whom, _)| for_whom == caller)
            .map(|(_, key)| key)
            .collect()
    }

    // ----------------------------------------------------------------- checks

    /// What a check of a workload by one life of an agent comes to.
    pub(crate) fn check(&self, life: u64, order: &ProbeOrder) -> Outcome {
        let mut world = self.world();
        let now = world.clock.now();
        let faults = world.faults.checks_fail;
        let holds = match order.purpose {
            Purpose::Gone => world
                .lingers
                .get(&order.instance)
                .is_some_and(|until| *until > now),
            Purpose::Ready | Purpose::Alive if order.check.to_string().contains("never") => false,
            Purpose::Ready => {
                let up = world
                    .containers
                    .values()
                    .any(|found| found.answers(&order.instance, now));
                let holds = up && !world.happens(faults);
                world.ready.note(life, order, holds);
                holds
            }
            Purpose::Alive => !world.happens(faults),
        };
        if holds {
            Outcome::Holds
        } else {
            Outcome::fails("refused")
        }
    }

    /// Whether that life of the agent has found the instance ready since it was started last, as
    /// often in a row as its block wants.
    pub(crate) fn is_ready(&self, life: u64, instance: &InstanceName) -> bool {
        self.world().ready.is_ready(life, instance)
    }

    /// Whether a path of the node exists.
    pub(crate) fn exists(&self, path: &str) -> bool {
        !self.world().missing.contains(path)
    }

    /// A path comes or goes.
    pub(crate) fn toggle(&self, path: &str) {
        let mut world = self.world();
        world.trace.line(|| format!("engine: {path} comes or goes"));
        if !world.missing.remove(path) {
            world.missing.insert(path.to_owned());
        }
    }

    // -------------------------------------------------------- agents and nodes

    /// The agent was killed: calls that change something go on.
    pub(crate) fn orphan(&self, life: u64) {
        let mut world = self.world();
        world
            .calls
            .retain(|_, call| call.caller.life != life || call.action.changes_something());
        world.watches.retain(|watch| watch.caller.life != life);
        world.ended.retain(|(caller, _)| caller.life != life);
    }

    /// How many calls of earlier lives still run.
    pub(crate) fn orphans(&self, life: u64) -> usize {
        self.world().forget_ended(life)
    }

    /// Ends calls of earlier lives.
    pub(crate) fn end_orphans(&self, life: u64, by_force: bool) {
        let numbers: Vec<u64> = {
            let world = self.world();
            world
                .calls
                .iter()
                .filter(|(_, call)| call.caller.life < life)
                .map(|(number, _)| *number)
                .collect()
        };
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
        (world.calls, world.watches, world.ended) = (BTreeMap::new(), Vec::new(), Vec::new());
        world.boots += 1;
        if world.boots.is_multiple_of(2) {
            world.records.clear(); // They were kept in memory.
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
                container.vanishes_at = container.removes_itself.then_some(now);
            }
        }
    }

    // ---------------------------------------------------------- from outside

    /// A process ends by itself, if there is one; also the one that an initialised container has.
    pub(crate) fn crash_one(&self) {
        let mut world = self.world();
        let has_process = |container: &Container| {
            matches!(
                container.doing,
                Doing::Running { .. } | Doing::Created { initialised: true }
            )
        };
        let running: Vec<ContainerId> = world.ids(has_process);
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
            world.trace.line(|| {
                format!(
                    "engine: '{}' is removed by hand",
                    container.instance.short()
                )
            });
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
        let world = self.world();
        let mut found = world
            .containers
            .iter()
            .filter(|(_, container)| container.instance == *instance);
        found.next().map(|(id, _)| id.clone())
    }

    pub(crate) fn is_removed_by_hand(&self, instance: &InstanceName) -> bool {
        self.world().removed_by_hand.contains(instance)
    }

    pub(crate) fn calls(&self) -> usize {
        let world = self.world();
        world
            .calls
            .values()
            .filter(|call| call.action.changes_something())
            .count()
    }

    pub(crate) fn take_violations(&self) -> Vec<String> {
        std::mem::take(&mut self.world().violations)
    }

    /// Creates and starts that have begun, with the life of their agent.
    pub(crate) fn take_started(&self) -> Vec<(u64, InstanceName, Arc<Workload>)> {
        std::mem::take(&mut self.world().started)
    }

    /// Prepared containers that fit, and whose removal began since the last call.
    pub(crate) fn take_discarded(&self) -> Vec<Discarded> {
        std::mem::take(&mut self.world().discarded)
    }

    /// Running containers whose stop began, with its caller.
    pub(crate) fn take_stopped(&self) -> Vec<(Caller, InstanceName)> {
        std::mem::take(&mut self.world().stopped)
    }
}

fn failed(text: &str) -> RuntimeError {
    RuntimeError::Failed(text.into())
}

impl World {
    fn ids(&self, wanted: impl Fn(&Container) -> bool) -> Vec<ContainerId> {
        self.containers
            .iter()
            .filter(|(_, container)| wanted(container))
            .map(|(id, _)| id.clone())
            .collect()
    }

    fn happens(&mut self, percent: u32) -> bool {
        percent > 0 && self.random.u32(0..100) < percent
    }

    fn millis(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.random.u64(range))
    }

    fn begin(&mut self, caller: Caller, action: Action, limit: Option<Duration>) -> u64 {
        let now = self.clock.now();
        let faults = self.faults;
        let (plan, takes, limit) = match &action {
            Action::Run(new) | Action::Start(_, new) => {
                self.check_start(&caller, &action, new);
                self.check_relevance(new);
                self.started
                    .push((caller.life, new.instance.clone(), new.workload.clone()));
                match &action {
                    Action::Start(id, _) => self.begin_start(id),
                    // What a preparation has left of the instance is the control loop's from now
                    // on.
                    _ => self
                        .containers
                        .values_mut()
                        .filter(|it| it.instance == new.instance)
                        .for_each(|it| it.prepared = false),
                }
                let half_done =
                    matches!(action, Action::Run(_)) && self.happens(faults.start_half_done);
                let plan = if half_done {
                    Plan::HalfDone
                } else {
                    self.works_unless(faults.start_fails)
                };
                let hangs = self.happens(faults.start_hangs);
                (
                    plan,
                    if hangs {
                        self.millis(3_000..120_000)
                    } else {
                        self.millis(20..3_000)
                    },
                    limit,
                )
            }
            Action::Image(_) => {
                let hangs = self.happens(faults.start_hangs);
                let takes = if hangs {
                    self.millis(3_000..120_000)
                } else {
                    self.millis(20..1_000)
                };
                (self.works_unless(faults.start_fails), takes, limit)
            }
            Action::Create(new) | Action::Init(_, new) => {
                self.check_preparation(&caller, &action, new);
                self.check_relevance(new);
                let half_done =
                    matches!(action, Action::Create(_)) && self.happens(faults.start_half_done);
                let plan = if half_done {
                    Plan::HalfDone
                } else {
                    self.works_unless(faults.start_fails)
                };
                let hangs = self.happens(faults.start_hangs);
                (
                    plan,
                    if hangs {
                        self.millis(3_000..120_000)
                    } else {
                        self.millis(20..1_000)
                    },
                    limit,
                )
            }
            Action::Stop(id) => {
                self.note_discarded(id);
                let denied =
                    |found: &Container| found.denied_until.is_some_and(|until| now < until);
                let runs = |found: &&Container| {
                    found.phase() == Phase::Running && !found.leftover && !denied(found)
                };
                let stopped = self
                    .containers
                    .get(id)
                    .filter(runs)
                    .map(|found| (caller.clone(), found.instance.clone()));
                self.stopped.extend(stopped);
                let hangs = self.happens(faults.stop_hangs);
                let takes = if hangs {
                    self.millis(10_000..60_000)
                } else {
                    self.millis(10..2_000)
                };
                (
                    self.works_unless(faults.delete_fails),
                    takes,
                    Some(STOP_GRACE * 2),
                )
            }
            Action::Remove(_) => (
                self.works_unless(faults.delete_fails),
                self.millis(10..500),
                Some(Duration::from_secs(30)),
            ),
            Action::List => {
                self.asked.entry(caller.life).or_insert(now);
                let hangs = self.happens(faults.list_hangs);
                let takes = if hangs {
                    self.millis(5_000..60_000)
                } else {
                    self.millis(5..200)
                };
                (
                    self.works_unless(faults.list_fails),
                    takes,
                    Some(LISTING_MAX),
                )
            }
        };
        let acts_at = now + takes.mul_f64(self.random.f64());
        let (ends_at, result) = match limit.filter(|limit| *limit < takes) {
            Some(limit) => (
                now + limit,
                Err(RuntimeError::TimedOut("it took too long".into())),
            ),
            None => (now + takes, Ok(Answer::Done)),
        };
        let acts_at = Some(acts_at).filter(|at| *at <= ends_at);
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

    fn works_unless(&mut self, percent: u32) -> Plan {
        if self.happens(percent) {
            Plan::Fails
        } else {
            Plan::Works
        }
    }

    fn due(&self) -> Option<Instant> {
        let acts = self.calls.values().filter_map(|call| call.acts_at);
        let ends = self
            .containers
            .values()
            .filter_map(|container| match container.doing {
                Doing::Running {
                    until: Some((at, _)),
                    ..
                } => Some(at),
                _ => None,
            });
        let vanish = self
            .containers
            .values()
            .filter_map(|container| container.vanishes_at);
        acts.chain(ends).chain(vanish).min()
    }

    fn take_due(&mut self) {
        while let Some(at) = self.due().filter(|at| *at <= self.clock.now()) {
            let call = self
                .calls
                .iter()
                .find(|(_, call)| call.acts_at == Some(at))
                .map(|(number, _)| *number);
            if let Some(number) = call {
                self.act(number);
                continue;
            }
            let ends = |container: &Container| match container.doing {
                Doing::Running {
                    until: Some((until, code)),
                    ..
                } if until == at => Some(code),
                _ => None,
            };
            let found = self
                .containers
                .iter()
                .find_map(|(id, container)| Some((id.clone(), ends(container)?)));
            match found {
                Some((id, code)) => self.end(&id, code),
                None if self.take_vanished(at) => {}
                None => return,
            }
        }
    }

    /// A listing may miss what a call is just creating, but not what a dead one has created.
    fn show_all(&mut self) {
        let now = self.clock.now();
        self.containers
            .values_mut()
            .for_each(|container| container.listed_from = container.listed_from.min(now));
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
        self.calls
            .values()
            .filter(|call| call.caller.life < life)
            .count()
    }

    // ------------------------------------------------------------------- acts

    fn act(&mut self, number: u64) {
        let Some(call) = self.calls.get_mut(&number) else {
            return;
        };
        call.acts_at = None;
        let (caller, action, plan) = (call.caller.clone(), call.action.clone(), call.plan);
        let answer = match (&action, plan) {
            (Action::Start(id, new), Plan::Fails) => self.start(&caller, id, new, true),
            (_, Plan::Fails) => Err(failed("the engine says no")),
            (Action::Run(new), plan) => self.run(&caller, new, plan == Plan::HalfDone),
            (Action::Start(id, new), plan) => self.start(&caller, id, new, plan == Plan::HalfDone),
            (Action::Image(_), _) => Ok(Answer::Done),
            (Action::Create(new), plan) => self.create(&caller, new, plan == Plan::HalfDone),
            (Action::Init(id, _), _) => self.init(id),
            (Action::Stop(id), _) => {
                self.end(id, 137);
                self.containers
                    .get_mut(id)
                    .into_iter()
                    .for_each(|it| it.stopped_by = Some(caller.life));
                Ok(Answer::Done)
            }
            (Action::Remove(id), _) => self.remove(id),
            (Action::List, _) => Ok(Answer::Listed(self.list(&caller.runtime))),
        };
        if !matches!(action, Action::List) {
            self.trace.line(|| {
                let what = match &action {
                    Action::Run(new) => format!("run {}", new.instance.short()),
                    Action::Start(_, new) => format!("start {}", new.instance.short()),
                    Action::Image(workload) => format!("image of {workload}"),
                    Action::Create(new) => format!("create {}", new.instance.short()),
                    Action::Init(_, new) => format!("init {}", new.instance.short()),
                    Action::Stop(id) => format!("stop {}", id.0.trim_start_matches('0')),
                    Action::Remove(id) => format!("remove {}", id.0.trim_start_matches('0')),
                    Action::List => "list".to_owned(),
                };
                let said = match &answer {
                    Ok(Answer::Id(id)) => id.0.trim_start_matches('0').to_string(),
                    Ok(_) => "done".to_owned(),
                    Err(error) => error.to_string(),
                };
                format!("engine: {what} of life {}: {said}", caller.life)
            });
        }
        if let Some(call) = self
            .calls
            .get_mut(&number)
            .filter(|call| call.result.is_ok())
        {
            call.result = answer;
        }
    }

    fn list(&mut self, runtime: &Name) -> Vec<ListedContainer> {
        let mut listed = self.list_truly(runtime);
        for container in &mut listed {
            if self.happens(self.faults.list_lies) {
                let ended = self
                    .containers
                    .get(&container.id)
                    .map(|container| container.exited(1));
                let lies = [
                    ExecutionState::plain(Phase::Running),
                    ended.unwrap_or_else(|| ExecutionState::exited(1)),
                    ExecutionState::with_info(Phase::FailedUnknown, "?"),
                ];
                container.state = lies[self.random.usize(..lies.len())].clone();
                if container.state.phase != Phase::Running {
                    container.processes.clear();
                    let until = self.clock.now() + BELIEVED;
                    self.containers
                        .get_mut(&container.id)
                        .into_iter()
                        .for_each(|denied| denied.denied_until = Some(until));
                }
            }
        }
        listed
    }

    fn list_truly(&self, runtime: &Name) -> Vec<ListedContainer> {
        let now = self.clock.now();
        let shown = self
            .containers
            .iter()
            .filter(|(_, found)| found.runtime == *runtime && found.listed_from <= now);
        shown
            .map(|(id, container)| {
                let state = container.shown(now);
                let process = MainProcess {
                    container: id.clone(),
                    pid: container.pid,
                };
                ListedContainer {
                    id: id.clone(),
                    instance: container.instance.clone(),
                    processes: if state.phase == Phase::Running {
                        vec![process]
                    } else {
                        Vec::new()
                    },
                    state,
                    ended_at: None,
                    in_pod: false,
                    pods: None,
                }
            })
            .collect()
    }
}
