//! Watches the states of the containers of one engine and reports changes.
//!
//! Events first: the end of a process wakes the checker, which then lists the containers once for
//! all that ended together. A slow listing repairs what no event shows, and only where an end
//! cannot be noticed the containers are listed every second. While nothing is watched, nothing is
//! listed.
//!
//! Thread: `watch:<engine>`, one per engine; it never waits for the engine: `list:<engine>` makes
//! one listing and ends, `exits:<engine>` waits for the ends of processes (runtime/exit_watch.rs).
//! Owns: which containers are watched, the state last reported of each, when to list next.
//! Takes: [`WatchCommand`] from the control loops and from the scheduler (existing containers).
//! Gives: states to the control loops (never waits), the listings of `ListAll` (may block).

use crate::limits::{POLL_INTERVAL, REPAIR_INTERVAL};
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::names::InstanceName;
use ankaios_platform::clock::{Clock, SystemClock};
use ankaios_platform::limits::STACK_LARGE;
use ankaios_platform::sync::Mutex;
use ankaios_platform::threads::{self, Thread};
use ankaios_platform::watchdog::Heartbeat;
use ankaios_runtime::exit_watch::{ExitWatch, NotWatched, WatchedProcess};
use ankaios_runtime::{ContainerId, ListedContainer, MainProcess, RuntimeConnector, RuntimeError};
use crossbeam_channel::{Receiver, Sender, bounded, never, select_biased};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause before a container that a listing misses is looked up again; only then it counts as lost.
const MISSING_RETRY: Duration = Duration::from_millis(100);

/// Pause before the engine is asked again for the exit code of an ended process.
const EXIT_RETRY: Duration = Duration::from_millis(50);

/// After an exit was noticed, podman may report the container as running for this long.
const EXIT_CODE_MAX: Duration = Duration::from_secs(1);

/// An engine that lists a container as running for so long after its process has ended never
/// notices that: what waited for the process (conmon, a shim) was killed as well. A disk that makes
/// conmon wait is faster than this.
const END_UNNOTICED_MAX: Duration = Duration::from_secs(30);

/// The containers of this agent, or why the engine could not list them.
pub(crate) type ListResult = Result<Vec<ListedContainer>, RuntimeError>;

/// Receives the containers of this agent; runs on the thread of the state checker and may block.
pub(crate) type ListReply = Box<dyn FnOnce(ListResult) + Send>;

/// Receives what a watched container does; runs on the thread of the state checker and must not
/// block.
pub(crate) type StateReply = Box<dyn Fn(ExecutionState) + Send>;

/// Receives that a prepared container is not what it was; runs on the thread of the state checker
/// and must not block.
pub(crate) type GoneReply = Box<dyn FnOnce() + Send>;

/// A command of a control loop or of the scheduler.
// [impl->swdd~agent-general-state-checker-interface~1]
pub enum WatchCommand {
    /// Report the state of this container of the instance from now on and of no other; a listing
    /// follows at once unless its process is known.
    Watch {
        /// The instance of the container.
        instance: InstanceName,
        /// Which container.
        id: ContainerId,
        /// Its main process, when it is known that it runs: nothing is listed then.
        process: Option<MainProcess>,
        /// How often this agent has started the instance after the first time.
        restarts: u32,
        /// Whether the engine starts the container again by itself when it has ended.
        engine_restarts: bool,
        /// How it ended in an earlier life of the agent.
        end: KnownEnd,
        /// Receives the state whenever it has changed.
        reply: StateReply,
    },
    /// Report nothing more of this instance. An unknown one is no error.
    Unwatch {
        /// The instance of the container.
        instance: InstanceName,
    },
    /// Reply when a listing, whatever it is for, lacks the prepared container of this instance or
    /// shows that it was started; `None` forgets it.
    WatchPrepared {
        /// The instance of the container.
        instance: InstanceName,
        /// Which container.
        container: Option<(ContainerId, GoneReply)>,
    },
    /// List all containers of this agent.
    ListAll {
        /// Receives the listing.
        reply: ListReply,
    },
    /// Send what is watched, without calling the engine.
    ListWatched {
        /// Receives it; has room for one message.
        reply: Sender<Vec<WatchedInstance>>,
    },
}

/// How a container ended that was seen to end. Others may remove it afterwards, or a container of
/// its pod; its workload has ended anyway. Forgotten once the container was started again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownEnd {
    /// How all containers of the workload have ended; `None` while one may run.
    pub(crate) state: Option<ExecutionState>,
    /// The failure of one container of a pod, whatever the others do.
    failure: Option<Failure>,
}

/// How one container of a pod failed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failure {
    container: ContainerId,
    state: ExecutionState,
}

impl KnownEnd {
    /// The end of the container `id` in an earlier life of the agent.
    ///
    /// Of a pod `id` is the name of its workload, which no listing has, so its failure stays until
    /// the pod is seen to run. Where the engine restarts containers, one may have run and ended
    /// meanwhile: then a listing is right.
    pub(crate) fn of_earlier_life(
        id: &ContainerId,
        state: ExecutionState,
        engine_restarts: bool,
    ) -> Self {
        let is_failure = state.phase == Phase::FailedExecFailed && !engine_restarts;
        let failure = is_failure.then(|| Failure {
            container: id.clone(),
            state: state.clone(),
        });
        Self {
            state: Some(state),
            failure,
        }
    }

    /// Takes in the state in which the engine lists the container, and returns the one to show.
    // [impl->swdd~agent-keeps-observed-ends~1]
    pub fn update(&mut self, listed: &ListedContainer) -> ExecutionState {
        let phase = listed.state.phase;
        let is_started =
            !listed.processes.is_empty() || phase == Phase::Running || phase.is_pending();
        if is_started && self.state.is_some() {
            *self = Self::default();
        }
        let state = self.update_failure(listed);
        if !is_started && state.phase.has_ended() {
            self.state = Some(state.clone());
        }
        self.state.clone().unwrap_or(state)
    }

    /// Takes in an end that the engine does not notice, and returns it.
    fn note_unnoticed(&mut self, end: ExecutionState) -> ExecutionState {
        self.state = Some(end.clone());
        end
    }

    /// The listed state, or the failure of a container that is missing: the others say nothing
    /// about it.
    fn update_failure(&mut self, listed: &ListedContainer) -> ExecutionState {
        let Some(pods) = &listed.pods else {
            return listed.state.clone();
        };
        if let Some(failure) = &self.failure
            && !pods.containers.contains(&failure.container)
        {
            return failure.state.clone();
        }
        let failed = pods.failed.clone();
        self.failure = failed.map(|container| Failure {
            container,
            state: listed.state.clone(),
        });
        listed.state.clone()
    }
}

/// A watched instance, with its processes as the last listing had them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedInstance {
    /// Which instance.
    pub(crate) instance: InstanceName,
    /// How often this agent has started it after the first time.
    pub(crate) restarts: u32,
    /// The main process of each of its containers that was not seen to end.
    pub(crate) processes: Vec<MainProcess>,
}

/// How one engine is checked.
#[derive(Debug, Clone, Copy)]
pub struct CheckerSettings {
    /// Name of the engine, for threads and log lines.
    pub engine: &'static str,
    /// Additional info of `Failed(Unknown)` when the engine cannot list.
    pub unknown_info: &'static str,
    /// How often a listing repairs what events cannot show; [`REPAIR_INTERVAL`] unless configured.
    pub repair_interval: Duration,
}

// ------------------------------------------------------------------- the core

/// What a state checker needs from engine and operating system.
pub trait SystemEnv {
    /// Watches one process until it is dropped.
    type Process;

    /// Starts a listing, whose result goes to [`StateChecker::on_listed`]. Never called before the
    /// last one has ended.
    fn start_listing(&mut self);

    /// Lets [`StateChecker::on_exit`] be called with `key` when the process ends.
    fn watch_exit(&mut self, key: u64, process: &MainProcess) -> Result<Self::Process, NotWatched>;
}

/// Decides when to list and what to report; reaches the outside through [`SystemEnv`].
// [impl->swdd~agent-provides-generic-state-checker-implementation~1]
pub struct StateChecker<S: SystemEnv, C: Clock> {
    env: S,
    clock: C,
    settings: CheckerSettings,
    watched: BTreeMap<InstanceName, Watched<S::Process>>,
    /// Prepared containers, with the first listing that counts.
    prepared: BTreeMap<InstanceName, (u64, ContainerId, GoneReply)>,
    /// The replies that wait for a listing with at least this number.
    replies: Vec<(u64, ListReply)>,
    next_key: u64,
    /// Number of the next listing. What began later than a listing is not judged by it.
    next_listing: u64,
    /// When the listing under way began.
    began: Option<Instant>,
    /// When the next listing should begin, whatever each container needs; `None` while nothing
    /// needs one.
    wanted: Option<Instant>,
    /// The engine rests until then.
    rest_until: Instant,
    /// Listings that failed since the last good one.
    failures: u32,
    /// A process was found to be one of its container, so the pids of the engine are those of this
    /// node.
    shares_pids: bool,
}

struct Watched<P> {
    id: ContainerId,
    restarts: u32,
    engine_restarts: bool,
    /// When the engine last listed it as ended, in seconds since 1970.
    ended_at: Option<u64>,
    reply: StateReply,
    valid_from: u64,
    reported: Option<ExecutionState>,
    end: KnownEnd,
    /// The last listing did not show it.
    missed: bool,
    processes: Vec<Process<P>>,
    /// When a process ended whose exit code is not known yet.
    exit_seen: Option<Instant>,
    /// When it is to be listed again, as long as it is watched.
    again: Option<Instant>,
    /// Pause before a passing state, which no event ends, is listed again.
    passing_pause: Duration,
}

struct Process<P> {
    key: u64,
    what: MainProcess,
    /// `None`: its end cannot be noticed.
    watch: Option<P>,
    /// When it was not there any more although the engine listed it.
    gone: Option<Instant>,
    /// When its end was noticed.
    ended: Option<Instant>,
}

impl<S: SystemEnv, C: Clock> StateChecker<S, C> {
    /// A checker that watches nothing yet.
    pub fn new(env: S, clock: C, settings: CheckerSettings) -> Self {
        let rest_until = clock.now();
        Self {
            env,
            clock,
            settings,
            watched: BTreeMap::new(),
            prepared: BTreeMap::new(),
            replies: Vec::new(),
            next_key: 0,
            next_listing: 0,
            began: None,
            wanted: None,
            rest_until,
            failures: 0,
            shares_pids: false,
        }
    }

    /// Takes in a command. Call [`Self::list_if_due`] after all that happened together.
    pub fn on_command(&mut self, command: WatchCommand) {
        match command {
            WatchCommand::Watch {
                instance,
                id,
                process,
                restarts,
                engine_restarts,
                end,
                reply,
            } => {
                let watched = Watched {
                    id,
                    restarts,
                    engine_restarts,
                    ended_at: None,
                    reply,
                    valid_from: self.next_listing,
                    reported: None,
                    end,
                    missed: false,
                    processes: Vec::new(),
                    exit_seen: None,
                    again: None,
                    passing_pause: POLL_INTERVAL,
                };
                self.watch(instance, watched, process);
            }
            WatchCommand::Unwatch { instance } => _ = self.watched.remove(&instance),
            WatchCommand::WatchPrepared {
                instance,
                container: Some((id, reply)),
            } => {
                self.prepared
                    .insert(instance, (self.next_listing, id, reply));
            }
            WatchCommand::WatchPrepared { instance, .. } => _ = self.prepared.remove(&instance),
            WatchCommand::ListAll { reply } => {
                self.replies.push((self.next_listing, reply));
                self.want_at(self.clock.now());
            }
            WatchCommand::ListWatched { reply } => {
                let _ = reply.try_send(self.watched_instances()); // Nobody waits for it any more.
            }
        }
    }

    /// When [`Self::list_if_due`] has something to do; `None` when only an event can change that.
    pub fn next_listing_at(&self) -> Option<Instant> {
        let idle = self.watched.is_empty() && self.replies.is_empty();
        if self.began.is_some() || idle {
            return None;
        }
        let wanted = self
            .watched
            .values()
            .filter_map(|watched| watched.again)
            .chain(self.wanted)
            .min();
        wanted.map(|at| at.max(self.rest_until))
    }

    /// Starts a listing when one is due.
    // [impl->swdd~podmancli-container-state-cache-refresh~1]
    pub fn list_if_due(&mut self) {
        let now = self.clock.now();
        if self.next_listing_at().is_some_and(|at| at <= now) {
            self.began = Some(now);
            self.wanted = None;
            self.watched
                .values_mut()
                .for_each(|watched| watched.again = None);
            self.next_listing += 1;
            self.env.start_listing();
        }
    }

    /// Watches a container. Only a listing that begins after this counts, so an old one cannot hide
    /// it.
    // [impl->swdd~podman-state-getter-reset-cache~1]
    fn watch(
        &mut self,
        instance: InstanceName,
        mut watched: Watched<S::Process>,
        process: Option<MainProcess>,
    ) {
        let now = self.clock.now();
        watched.follow(process.as_slice(), &mut self.next_key, &mut self.env, now);
        if watched
            .processes
            .iter()
            .any(|process| process.watch.is_some())
        {
            self.shares_pids = true;
            watched.report(Some(ExecutionState::plain(Phase::Running)));
            self.want_at(now + self.settings.repair_interval);
        } else {
            self.want_at(now);
        }
        self.prepared.remove(&instance);
        self.watched.insert(instance, watched);
    }

    fn watched_instances(&self) -> Vec<WatchedInstance> {
        let of_one = |(instance, watched): (&InstanceName, &Watched<S::Process>)| {
            let running = watched
                .processes
                .iter()
                .filter(|process| process.ended.is_none());
            let processes = running.map(|process| process.what.clone()).collect();
            WatchedInstance {
                instance: instance.clone(),
                restarts: watched.restarts,
                processes,
            }
        };
        self.watched.iter().map(of_one).collect()
    }

    fn want_at(&mut self, at: Instant) {
        self.wanted = Some(self.wanted.map_or(at, |wanted| wanted.min(at)));
    }

    /// The process watched under this key has ended.
    pub fn on_exit(&mut self, key: u64) {
        let now = self.clock.now();
        for watched in self.watched.values_mut() {
            if let Some(process) = watched
                .processes
                .iter_mut()
                .find(|process| process.key == key)
            {
                process.ended = Some(now);
                process.watch = None;
                watched.exit_seen.get_or_insert(now);
                return self.want_at(now);
            }
        }
    }

    // --------------------------------------------------------------- listings

    /// The listing that was started has ended.
    pub fn on_listed(&mut self, result: ListResult) {
        match result {
            Ok(listed) => self.judge_all(listed),
            Err(error) => self.on_listing_failed(&error),
        }
    }

    // [impl->swdd~podmancli-uses-container-state-cache~1]
    fn judge_all(&mut self, listed: Vec<ListedContainer>) {
        let (number, now) = self.end_listing();
        if std::mem::take(&mut self.failures) > 0 {
            log::info!(
                "'{}' lists the states of workloads again.",
                self.settings.engine
            );
        }
        let by_id: BTreeMap<&ContainerId, &ListedContainer> = listed
            .iter()
            .map(|found| (&found.id, found))
            .collect_entries();
        let engine = self.settings.engine;
        for watched in self.watched.values_mut() {
            if watched.valid_from > number {
                continue;
            }
            let (state, list_again) = match by_id.get(&watched.id) {
                Some(found) => {
                    watched.missed = false;
                    watched.follow(&found.processes, &mut self.next_key, &mut self.env, now);
                    watched.note_end(found);
                    self.shares_pids |= watched
                        .processes
                        .iter()
                        .any(|process| process.watch.is_some());
                    let state = if watched.has_unnoticed_end(&found.state, self.shares_pids, now) {
                        watched.end.note_unnoticed(unnoticed_end(engine))
                    } else {
                        watched.end.update(found)
                    };
                    watched.judge(&state, now)
                }
                None => watched.judge_missing(),
            };
            watched.again = list_again.map(|pause| now + pause);
            watched.report(state);
        }
        let is_gone =
            |_: &InstanceName, (valid_from, id, _): &mut (u64, ContainerId, GoneReply)| {
                *valid_from <= number
                    && by_id
                        .get(id)
                        .is_none_or(|found| !found.state.phase.is_pending())
            };
        self.prepared
            .extract_if(.., is_gone)
            .for_each(|(_, (.., gone))| gone());
        self.want_at(now + self.settings.repair_interval);
        self.reply(number, &Ok(listed));
    }

    /// Tries once more at once. When that fails too, the states are unknown.
    fn on_listing_failed(&mut self, error: &RuntimeError) {
        let (number, now) = self.end_listing();
        self.failures = self.failures.saturating_add(1);
        if self.failures == 1 {
            log::debug!(
                "Listing the containers of '{}' failed, trying once more: '{error}'",
                self.settings.engine
            );
            self.rest_until = now;
            return self.want_at(now);
        }
        if self.failures == 2
            && !(self.watched.is_empty() && matches!(error, RuntimeError::NotInstalled(_)))
        {
            let engine = self.settings.engine;
            log::warn!(
                "Could not get the state of workloads from '{engine}': '{error}'. Returning unknown."
            );
        }
        // [impl->swdd~podman-state-getter-returns-unknown-state~1]
        let unknown = ExecutionState::with_info(Phase::FailedUnknown, self.settings.unknown_info);
        for watched in self.watched.values_mut() {
            if watched.valid_from <= number && watched.end.state.is_none() {
                watched.report(Some(unknown.clone()));
            }
        }
        let doublings = (self.failures - 2).min(8);
        self.want_at(
            now + (POLL_INTERVAL * 2_u32.pow(doublings)).min(self.settings.repair_interval),
        );
        self.reply(number, &Err(error.clone()));
    }

    /// The number of the listing that has ended, and the time.
    fn end_listing(&mut self) -> (u64, Instant) {
        let now = self.clock.now();
        let took = self
            .began
            .take()
            .map_or(Duration::ZERO, |began| now.saturating_duration_since(began));
        // The engine rests as long as it took, at most this long, so that listings never take all
        // of a core.
        self.rest_until = now + took.min(Duration::from_millis(100));
        (self.next_listing.saturating_sub(1), now)
    }

    fn reply(&mut self, number: u64, result: &ListResult) {
        for (_, reply) in self
            .replies
            .extract_if(.., |(valid_from, _)| *valid_from <= number)
        {
            reply(result.clone());
        }
    }
}

impl<P> Watched<P> {
    /// Watches the processes that the listing shows, and no others.
    fn follow<S: SystemEnv<Process = P>>(
        &mut self,
        listed: &[MainProcess],
        next_key: &mut u64,
        env: &mut S,
        now: Instant,
    ) {
        self.processes
            .retain(|process| listed.contains(&process.what));
        for what in listed {
            if !self.processes.iter().any(|process| process.what == *what) {
                *next_key += 1;
                self.processes.push(Process {
                    key: *next_key,
                    what: what.clone(),
                    watch: None,
                    gone: None,
                    ended: None,
                });
            }
        }
        for process in self
            .processes
            .iter_mut()
            .filter(|process| process.watch.is_none() && process.ended.is_none())
        {
            match env.watch_exit(process.key, &process.what) {
                Ok(watch) => process.watch = Some(watch),
                Err(NotWatched::Gone) => _ = process.gone.get_or_insert(now),
                Err(NotWatched::Unable) => {}
            }
        }
    }

    /// Another end is that of a start by the engine that no listing has shown, so the next one may
    /// come soon.
    fn note_end(&mut self, found: &ListedContainer) {
        if self.ended_at != found.ended_at {
            self.ended_at = found.ended_at;
            self.passing_pause = POLL_INTERVAL;
        }
    }

    /// Whether the engine goes on listing it as running although a process of it has ended. A
    /// process that is just not there proves that only where the engine has the pids of this node.
    // [impl->swdd~agent-sees-ends-that-no-engine-notices~1]
    fn has_unnoticed_end(&self, listed: &ExecutionState, shares_pids: bool, now: Instant) -> bool {
        if !matches!(listed.phase, Phase::Running | Phase::Stopping) {
            return false;
        }
        self.processes.iter().any(|process| {
            let end = process.ended.or(process.gone.filter(|_| shares_pids));
            end.is_some_and(|end| now.saturating_duration_since(end) >= END_UNNOTICED_MAX)
        })
    }

    /// What to report of a listed state, and after which pause to list again at the latest.
    fn judge(
        &mut self,
        state: &ExecutionState,
        now: Instant,
    ) -> (Option<ExecutionState>, Option<Duration>) {
        // Podman may not have noticed an end that we have; it gets a little time to report the exit
        // code.
        let behind = self.processes.iter().any(|process| process.ended.is_some())
            || state.phase == Phase::Stopping;
        if let Some(seen) = self.exit_seen.filter(|_| behind)
            && now.saturating_duration_since(seen) < EXIT_CODE_MAX
        {
            return (None, Some(EXIT_RETRY));
        }
        // It may be removed as well (`podman rm --force`, `run --rm`), which no event shows.
        let just_ended = self.exit_seen.take().is_some();
        // An unknown state may pass as well, and an end that the engine follows up.
        let passing = state.phase.is_pending()
            || matches!(state.phase, Phase::Stopping | Phase::FailedUnknown)
            || (self.engine_restarts && state.phase.has_ended());
        if self.reported.as_ref() != Some(state) || !passing {
            self.passing_pause = POLL_INTERVAL;
        }
        let noticed = !self.processes.is_empty()
            && self.processes.iter().all(|process| process.watch.is_some());
        // It ended before it could be watched, or is in another pid namespace; a listing will show
        // which.
        let just_gone =
            |process: &Process<P>| process.gone.is_some_and(|gone| now - gone < EXIT_CODE_MAX);
        let pause = match state.phase {
            Phase::Running if self.processes.iter().any(just_gone) => Some(EXIT_RETRY),
            Phase::Running if !noticed => Some(POLL_INTERVAL),
            _ if just_ended => Some(POLL_INTERVAL),
            _ if passing => Some(self.passing_pause),
            _ => None,
        };
        if passing {
            // A container may stay like this for ever, so list less and less often.
            self.passing_pause = self.passing_pause.saturating_mul(2).min(REPAIR_INTERVAL);
        }
        (Some(state.clone()), pause)
    }

    /// A listing right after a create can miss the container, so only the second one in a row is
    /// believed. Only what was not seen to end is lost.
    // [impl->swdd~podman-state-getter-returns-lost-state~1]
    // [impl->swdd~agent-keeps-observed-ends~1]
    fn judge_missing(&mut self) -> (Option<ExecutionState>, Option<Duration>) {
        if let Some(end) = &self.end.state {
            self.processes.clear();
            self.exit_seen = None;
            return (Some(end.clone()), None);
        }
        if !std::mem::replace(&mut self.missed, true) {
            return (None, Some(MISSING_RETRY));
        }
        self.processes.clear();
        self.exit_seen = None;
        (Some(ExecutionState::plain(Phase::FailedLost)), None)
    }

    /// Reports `state` when it differs from what was reported last.
    // [impl->swdd~generic-state-checker-sends-workload-state~2]
    fn report(&mut self, state: Option<ExecutionState>) {
        if let Some(state) = state
            && self.reported.as_ref() != Some(&state)
        {
            self.reported = Some(state.clone());
            (self.reply)(state);
        }
    }
}

/// The state of a container whose process has ended, which `engine` does not notice.
fn unnoticed_end(engine: &str) -> ExecutionState {
    let info =
        format!("its process has ended, which '{engine}' does not notice: exit code unknown");
    ExecutionState::with_info(Phase::FailedExecFailed, info)
}

// --------------------------------------------------------------- the threads

type Connector = Box<dyn RuntimeConnector>;

/// The operating system and the engine.
struct System {
    engine: &'static str,
    /// Takes the keys of ended processes.
    exits: Sender<u64>,
    /// Notices the ends, from the first process on; `None` where the system gives nothing to notice
    /// them with.
    exit_watch: OnceCell<Option<ExitWatch>>,
    /// Locked during a listing.
    connector: Arc<Mutex<Connector>>,
    listings: Sender<ListResult>,
}

impl SystemEnv for System {
    type Process = WatchedProcess;

    /// A hanging engine hangs this one thread only.
    // [impl->swdd~agent-facade-forwards-list-reusable-workloads-call~1]
    fn start_listing(&mut self) {
        let (connector, listings) = (self.connector.clone(), self.listings.clone());
        let thread = threads::spawn(format!("list:{}", self.engine), STACK_LARGE, move || {
            let result = connector.lock().list();
            let _ = listings.send(result); // Fails only when the agent ends.
        });
        if let Err(error) = thread {
            let text = format!("no thread for a listing: {error}");
            let _ = self
                .listings
                .try_send(Err(RuntimeError::Failed(text.into())));
        }
    }

    fn watch_exit(
        &mut self,
        key: u64,
        process: &MainProcess,
    ) -> Result<WatchedProcess, NotWatched> {
        let exit_watch = self.exit_watch.get_or_init(|| {
            let started = ExitWatch::start(format!("exits:{}", self.engine), self.exits.clone());
            let log = |error: &io::Error| {
                log::warn!(
                    "Ends of containers of '{}' are noticed by polling only: {error}",
                    self.engine
                );
            };
            started.inspect_err(log).ok().map(|(watch, _)| watch) // Its thread ends with it.
        });
        exit_watch
            .as_ref()
            .ok_or(NotWatched::Unable)?
            .watch(key, process)
    }
}

/// Starts the thread that checks the containers behind `connector`. It ends when the sender of
/// `commands` is gone.
// [impl->swdd~podman-start-checker-starts-podman-state-checker~1]
pub(crate) fn start(
    settings: CheckerSettings,
    connector: Connector,
    commands: Receiver<WatchCommand>,
    heartbeat: Heartbeat,
) -> io::Result<Thread> {
    let engine = settings.engine;
    // Ended processes waiting for one state checker; their watcher waits when it is full.
    let (exits_sender, exits) = bounded(64);
    let (listings, results) = bounded(1);
    let connector = Arc::new(Mutex::new(connector));
    let system = System {
        engine,
        exits: exits_sender,
        exit_watch: OnceCell::new(),
        connector,
        listings,
    };
    threads::spawn(format!("watch:{engine}"), STACK_LARGE, move || {
        run(
            StateChecker::new(system, SystemClock, settings),
            &commands,
            &exits,
            &results,
            &heartbeat,
        );
    })
}

fn run<S: SystemEnv, C: Clock>(
    mut checker: StateChecker<S, C>,
    commands: &Receiver<WatchCommand>,
    exits: &Receiver<u64>,
    results: &Receiver<ListResult>,
    heartbeat: &Heartbeat,
) {
    loop {
        heartbeat.turn();
        checker.list_if_due();
        let due = checker
            .next_listing_at()
            .map_or_else(never, |at| checker.clock.alarm(at));
        select_biased! {
            recv(commands) -> command => match command {
                Ok(command) => checker.on_command(command),
                Err(_) => return,
            },
            recv(exits) -> key => key.into_iter().for_each(|key| checker.on_exit(key)),
            recv(results) -> result => result.into_iter().for_each(|result| checker.on_listed(result)),
            recv(due) -> _ => {}
            recv(heartbeat.woken()) -> _ => {}
        }
        // What happened together is served by one listing.
        commands
            .try_iter()
            .for_each(|command| checker.on_command(command));
        exits.try_iter().for_each(|key| checker.on_exit(key));
    }
}

#[cfg(test)]
mod tests;
