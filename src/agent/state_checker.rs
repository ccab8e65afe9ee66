//! Watches the states of the containers of one runtime and reports changes.
//!
//! After the end of a process the checker lists the containers, once for all that ended together.
//! Another listing at a long interval shows changes that no event reports. Where the end of a
//! process cannot be noticed, the containers are listed every second. While nothing is watched,
//! nothing is listed.
//!
//! Thread: `watch`, which never waits for an engine; see [`thread`].
//! Owns: the watched containers, the state last reported of each, the time of the next listing.
//! Takes: [`WatchCommand`] from the control loops and from the scheduler (existing containers).
//! Gives: states to the control loops (never waits), the listings of `ListAll` (may block).

pub mod thread;

use crate::limits::{POLL_INTERVAL, REPAIR_INTERVAL};
use ankaios_model::collect::CollectEntries as _;
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::names::InstanceName;
use ankaios_platform::clock::Clock;
use ankaios_runtime::exit_watch::NotWatched;
use ankaios_runtime::{ContainerId, ListedContainer, MainProcess, RuntimeError};
use crossbeam_channel::Sender;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Pause before the second listing when one misses a container. It is lost if both miss it.
const MISSING_RETRY: Duration = Duration::from_millis(100);

/// Pause before the containers are listed again for the exit code of an ended process.
const EXIT_RETRY: Duration = Duration::from_millis(50);

/// After an exit was noticed, podman may report the container as running for this long.
const EXIT_CODE_MAX: Duration = Duration::from_secs(1);

/// If the engine still lists a container as running this long after its process has ended, it will
/// never notice the end: the program that waits for the process (conmon, a shim) was killed as
/// well. A slow disk delays conmon for less.
const END_UNNOTICED_MAX: Duration = Duration::from_secs(30);

/// Longest pause after a listing. The pause is as long as the listing took, so that listings use at
/// most half of a core.
const LISTING_PAUSE_MAX: Duration = Duration::from_millis(100);

/// The containers of this agent, or why the engine could not list them.
pub(crate) type ListResult = Result<Vec<ListedContainer>, RuntimeError>;

/// Receives the containers of this agent; runs on the thread of the state checker and may block.
pub(crate) type ListReply = Box<dyn FnOnce(ListResult) + Send>;

/// Receives the states of a watched container; runs on the thread of the state checker and must not
/// block.
pub(crate) type StateReply = Box<dyn Fn(ExecutionState) + Send>;

/// Called when a prepared container is gone or was started; runs on the thread of the state checker
/// and must not block.
pub(crate) type GoneReply = Box<dyn FnOnce() + Send>;

/// A command of a control loop or of the scheduler.
// [impl->swdd~agent-general-state-checker-interface~1]
pub enum WatchCommand {
    /// Report the states of this container of the instance. An earlier watch of the instance ends.
    Watch {
        /// The instance of the container.
        instance: InstanceName,
        /// Which container.
        id: ContainerId,
        /// Its main process, if that is known to run. Otherwise a listing follows at once.
        process: Option<MainProcess>,
        /// How often this agent has started the instance after the first time.
        restarts: u32,
        /// Whether the engine starts the container again by itself when it has ended.
        engine_restarts: bool,
        /// The end that an earlier agent has recorded, if any.
        end: KnownEnd,
        /// Receives the state whenever it has changed.
        reply: StateReply,
    },
    /// Report nothing more of this instance. An unknown one is no error.
    Unwatch {
        /// The instance of the container.
        instance: InstanceName,
    },
    /// Reply when any listing lacks this prepared container of the instance, or shows that it was
    /// started.
    WatchPrepared {
        /// The instance of the container.
        instance: InstanceName,
        /// Which container.
        id: ContainerId,
        /// Called when it is gone or was started.
        reply: GoneReply,
    },
    /// Forget the prepared container of this instance. An unknown one is no error.
    UnwatchPrepared {
        /// The instance of the container.
        instance: InstanceName,
    },
    /// List all containers of this agent.
    ListAll {
        /// Receives the listing.
        reply: ListReply,
    },
    /// Send the watched instances, without calling the engine.
    ListWatched {
        /// Receives it; has room for one message.
        reply: Sender<Vec<InstanceProcesses>>,
    },
}

/// The observed end of a container. It stays the end of its workload if others remove the
/// container, or one of its pod. It is forgotten when the container was started again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownEnd {
    /// The end of the whole workload; `None` while a container of it may run.
    pub(crate) state: Option<ExecutionState>,
    /// The failure of one container of a pod, while others may still run.
    failure: Option<ContainerFailure>,
}

/// How one container of a pod failed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ContainerFailure {
    container: ContainerId,
    state: ExecutionState,
}

impl KnownEnd {
    /// The end of the container `id` that an earlier agent has recorded. If the engine restarts
    /// containers by itself, the container may have run again since, so its failure is not kept.
    pub(crate) fn of_earlier_life(
        id: &ContainerId,
        state: ExecutionState,
        engine_restarts: bool,
    ) -> Self {
        let mut failure = None;
        if state.phase == Phase::FailedExecFailed && !engine_restarts {
            // For a pod, `id` names the workload, and no listing has a container with this id. So
            // this failure is shown until the pod runs again.
            failure = Some(ContainerFailure {
                container: id.clone(),
                state: state.clone(),
            });
        }
        Self {
            state: Some(state),
            failure,
        }
    }

    /// Updates the end with a listing of the container. Returns the state to show.
    // [impl->swdd~agent-keeps-observed-ends~1]
    pub fn update(&mut self, listed: &ListedContainer) -> ExecutionState {
        let phase = listed.state.phase;
        let is_started =
            !listed.processes.is_empty() || phase == Phase::Running || phase.is_pending();
        // First: a container that was started again has no end any more.
        if is_started && self.state.is_some() {
            *self = Self::default();
        }
        // Then: the listed end, or else the one that was observed before.
        let state = self.update_failure(listed);
        if !is_started && state.phase.has_ended() {
            self.state = Some(state.clone());
        }
        self.state.clone().unwrap_or(state)
    }

    /// Sets an end that the engine does not notice, and returns it.
    fn note_unnoticed(&mut self, end: ExecutionState) -> ExecutionState {
        self.state = Some(end.clone());
        end
    }

    /// Updates the failure of one container of a pod. Returns the listed state. If the failed
    /// container is missing in the listing, returns the failure, which the listed state of the
    /// others does not show.
    fn update_failure(&mut self, listed: &ListedContainer) -> ExecutionState {
        let Some(pods) = &listed.pods else {
            return listed.state.clone();
        };
        if let Some(failure) = &self.failure
            && !pods.containers.contains(&failure.container)
        {
            return failure.state.clone();
        }
        self.failure = None;
        if let Some(container) = &pods.failed {
            self.failure = Some(ContainerFailure {
                container: container.clone(),
                state: listed.state.clone(),
            });
        }
        listed.state.clone()
    }
}

/// A watched instance, with its processes in the last listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceProcesses {
    /// Which instance.
    pub(crate) instance: InstanceName,
    /// How often this agent has started it after the first time.
    pub(crate) restarts: u32,
    /// The main process of each of its containers that was not seen to end.
    pub(crate) processes: Vec<MainProcess>,
}

/// How the containers of one runtime are checked.
#[derive(Debug, Clone, Copy)]
pub struct CheckerSettings {
    /// Name of the runtime, for threads and log lines.
    pub runtime: &'static str,
    /// Additional info of `Failed(Unknown)` when the engine cannot list.
    pub unknown_info: &'static str,
    /// Interval of listings that show changes without an event; by default [`REPAIR_INTERVAL`].
    pub repair_interval: Duration,
}

// ------------------------------------------------------------------- the core

/// The engine and the operating system, as a state checker uses them.
pub trait SystemEnv {
    /// Watches one process until it is dropped.
    type Process;

    /// Starts a listing. Its result goes to [`StateChecker::on_listed`], and the next one is
    /// started only after that.
    fn start_listing(&mut self);

    /// Watches a process. When it ends, [`StateChecker::on_exit`] is called with `key`.
    fn watch_exit(&mut self, key: u64, process: &MainProcess) -> Result<Self::Process, NotWatched>;
}

/// Decides when to list and what to report; reaches the outside through [`SystemEnv`].
// [impl->swdd~agent-provides-generic-state-checker-implementation~1]
pub struct StateChecker<S: SystemEnv, C: Clock> {
    env: S,
    clock: C,
    settings: CheckerSettings,
    watched: BTreeMap<InstanceName, WatchedContainer<S::Process>>,
    prepared: BTreeMap<InstanceName, PreparedWatch>,
    replies: Vec<PendingList>,
    next_key: u64,
    /// Number of the next listing. A watch that began after a listing ignores its result.
    next_listing: u64,
    /// When the listing under way began.
    began: Option<Instant>,
    /// When the next listing must begin, beside the times of single containers; `None` while
    /// nothing needs one.
    due: Option<Instant>,
    /// No listing begins before this time.
    pause_until: Instant,
    /// The number of listings that failed in a row.
    failures: u32,
    /// The engine uses the pids of this node: one of its pids was that of a container's process.
    shares_pids: bool,
}

/// The watch of a prepared container.
struct PreparedWatch {
    /// The first listing that applies.
    valid_from: u64,
    id: ContainerId,
    reply: GoneReply,
}

/// A request for a listing.
struct PendingList {
    /// The first listing that applies.
    valid_from: u64,
    reply: ListReply,
}

/// What follows from a listing for one watched container.
struct Judgement {
    /// The state to report, if any.
    state: Option<ExecutionState>,
    /// The pause after which to list again at the latest, if any.
    list_again: Option<Duration>,
}

struct WatchedContainer<P> {
    id: ContainerId,
    restarts: u32,
    engine_restarts: bool,
    /// When the engine last listed it as ended, in seconds since 1970.
    ended_at: Option<u64>,
    reply: StateReply,
    /// The first listing that applies.
    valid_from: u64,
    reported: Option<ExecutionState>,
    end: KnownEnd,
    /// The last listing did not show it.
    missed: bool,
    processes: Vec<FollowedProcess<P>>,
    /// When a process ended whose exit code is not known yet.
    exit_seen: Option<Instant>,
    /// When to list again because of this container.
    again: Option<Instant>,
    /// The pause before the next listing while it is in a passing state, whose end no event
    /// reports.
    passing_pause: Duration,
}

struct FollowedProcess<P> {
    key: u64,
    what: MainProcess,
    /// `None`: its end cannot be noticed.
    watch: Option<P>,
    /// When the engine listed it first and it did not exist.
    gone: Option<Instant>,
    /// When its end was noticed.
    ended: Option<Instant>,
}

impl<S: SystemEnv, C: Clock> StateChecker<S, C> {
    /// A checker that watches nothing yet.
    pub fn new(env: S, clock: C, settings: CheckerSettings) -> Self {
        let pause_until = clock.now();
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
            due: None,
            pause_until,
            failures: 0,
            shares_pids: false,
        }
    }

    /// Handles a command. Call [`Self::list_if_due`] after all events that came together.
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
                let watched = WatchedContainer {
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
                id,
                reply,
            } => {
                let watch = PreparedWatch {
                    valid_from: self.next_listing,
                    id,
                    reply,
                };
                self.prepared.insert(instance, watch);
            }
            WatchCommand::UnwatchPrepared { instance } => _ = self.prepared.remove(&instance),
            WatchCommand::ListAll { reply } => {
                self.replies.push(PendingList {
                    valid_from: self.next_listing,
                    reply,
                });
                self.list_at(self.clock.now());
            }
            WatchCommand::ListWatched { reply } => {
                // It fails if the requester does not wait any more.
                let _ = reply.try_send(self.watched_instances());
            }
        }
    }

    /// When [`Self::list_if_due`] has something to do; `None` when only an event can change that.
    pub fn next_listing_at(&self) -> Option<Instant> {
        let is_idle = self.watched.is_empty() && self.replies.is_empty();
        if self.began.is_some() || is_idle {
            return None;
        }
        let mut due = self.due;
        for watched in self.watched.values() {
            due = earliest(due, watched.again);
        }
        Some(due?.max(self.pause_until))
    }

    /// Starts a listing when one is due.
    // [impl->swdd~podmancli-container-state-cache-refresh~1]
    pub fn list_if_due(&mut self) {
        let now = self.clock.now();
        if self.next_listing_at().is_none_or(|at| now < at) {
            return;
        }
        self.began = Some(now);
        self.due = None;
        for watched in self.watched.values_mut() {
            watched.again = None;
        }
        self.next_listing += 1;
        self.env.start_listing();
    }

    /// Watches a container. A listing that began earlier does not apply, since it may miss the
    /// container.
    // [impl->swdd~podman-state-getter-reset-cache~1]
    fn watch(
        &mut self,
        instance: InstanceName,
        mut watched: WatchedContainer<S::Process>,
        process: Option<MainProcess>,
    ) {
        let now = self.clock.now();
        watched.follow(process.as_slice(), &mut self.next_key, &mut self.env, now);
        if watched.has_watched_process() {
            self.shares_pids = true;
            watched.report(ExecutionState::plain(Phase::Running));
            self.list_at(now + self.settings.repair_interval);
        } else {
            self.list_at(now);
        }
        self.prepared.remove(&instance);
        self.watched.insert(instance, watched);
    }

    /// The watched instances with their processes that have not ended.
    fn watched_instances(&self) -> Vec<InstanceProcesses> {
        let mut instances = Vec::new();
        for (instance, watched) in &self.watched {
            let mut processes = Vec::new();
            for process in &watched.processes {
                if process.ended.is_none() {
                    processes.push(process.what.clone());
                }
            }
            instances.push(InstanceProcesses {
                instance: instance.clone(),
                restarts: watched.restarts,
                processes,
            });
        }
        instances
    }

    /// Plans a listing at this time, or earlier if one is planned for then.
    fn list_at(&mut self, at: Instant) {
        self.due = earliest(self.due, Some(at));
    }

    /// Notes the end of the process that is watched under this key, and plans a listing.
    pub fn on_exit(&mut self, key: u64) {
        let now = self.clock.now();
        for watched in self.watched.values_mut() {
            if watched.note_exit(key, now) {
                return self.list_at(now);
            }
        }
    }

    // --------------------------------------------------------------- listings

    /// Takes the result of the listing that was started.
    pub fn on_listed(&mut self, result: ListResult) {
        match result {
            Ok(listed) => self.judge_all(listed),
            Err(error) => self.on_listing_failed(&error),
        }
    }

    /// Judges all watched and prepared containers by a listing, and replies with it to requests.
    // [impl->swdd~podmancli-uses-container-state-cache~1]
    fn judge_all(&mut self, listed: Vec<ListedContainer>) {
        let now = self.clock.now();
        let number = self.end_listing(now);
        let runtime = self.settings.runtime;
        if self.failures > 0 {
            self.failures = 0;
            log::info!("'{runtime}' lists the states of workloads again.");
        }
        let by_id: BTreeMap<&ContainerId, &ListedContainer> = listed
            .iter()
            .map(|found| (&found.id, found))
            .collect_entries();
        // First: the watched containers.
        for watched in self.watched.values_mut() {
            if watched.valid_from > number {
                continue; // This listing began before the watch.
            }
            let judgement = match by_id.get(&watched.id) {
                Some(found) => {
                    watched.missed = false;
                    watched.follow(&found.processes, &mut self.next_key, &mut self.env, now);
                    watched.note_end(found);
                    self.shares_pids |= watched.has_watched_process();
                    let state = if watched.has_unnoticed_end(&found.state, self.shares_pids, now) {
                        watched.end.note_unnoticed(unnoticed_end(runtime))
                    } else {
                        watched.end.update(found)
                    };
                    watched.judge(state, now)
                }
                None => watched.judge_missing(),
            };
            watched.again = judgement.list_again.map(|pause| now + pause);
            if let Some(state) = judgement.state {
                watched.report(state);
            }
        }
        // Then: the prepared ones that are gone or were started.
        let no_longer_prepared = self.prepared.extract_if(.., |_, prepared| {
            prepared.valid_from <= number && !is_still_prepared(&prepared.id, &by_id)
        });
        for (_, prepared) in no_longer_prepared {
            (prepared.reply)();
        }
        // Finally: the pending requests.
        self.list_at(now + self.settings.repair_interval);
        self.reply(number, &Ok(listed));
    }

    /// Handles a failed listing. The first one is repeated at once; after further ones the states
    /// are unknown.
    fn on_listing_failed(&mut self, error: &RuntimeError) {
        let now = self.clock.now();
        let number = self.end_listing(now);
        let runtime = self.settings.runtime;
        self.failures = self.failures.saturating_add(1);
        if self.failures == 1 {
            log::debug!(
                "Listing the containers of '{runtime}' failed, trying once more: '{error}'"
            );
            self.pause_until = now;
            return self.list_at(now);
        }
        // An engine that is not installed is no problem as long as no workload uses it.
        let is_unused = self.watched.is_empty() && matches!(error, RuntimeError::NotInstalled(_));
        if self.failures == 2 && !is_unused {
            log::warn!(
                "Could not get the state of workloads from '{runtime}': '{error}'. Returning unknown."
            );
        }
        // [impl->swdd~podman-state-getter-returns-unknown-state~1]
        let unknown = ExecutionState::with_info(Phase::FailedUnknown, self.settings.unknown_info);
        for watched in self.watched.values_mut() {
            if watched.valid_from <= number && watched.end.state.is_none() {
                watched.report(unknown.clone());
            }
        }
        // The pause doubles with each further failure.
        let doublings = (self.failures - 2).min(8);
        let pause = POLL_INTERVAL * 2_u32.pow(doublings);
        self.list_at(now + pause.min(self.settings.repair_interval));
        self.reply(number, &Err(error.clone()));
    }

    /// Ends the listing under way, and begins the pause after it. Returns its number.
    fn end_listing(&mut self, now: Instant) -> u64 {
        let took = match self.began.take() {
            Some(began) => now.saturating_duration_since(began),
            None => Duration::ZERO,
        };
        self.pause_until = now + took.min(LISTING_PAUSE_MAX);
        self.next_listing.saturating_sub(1)
    }

    /// Replies to all requests that came before the listing with this number.
    fn reply(&mut self, number: u64, result: &ListResult) {
        let due = self
            .replies
            .extract_if(.., |pending| pending.valid_from <= number);
        for pending in due {
            (pending.reply)(result.clone());
        }
    }
}

/// The earlier of two times that may be missing.
fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Whether the listing shows this container, and as not started.
fn is_still_prepared(id: &ContainerId, listed: &BTreeMap<&ContainerId, &ListedContainer>) -> bool {
    match listed.get(id) {
        Some(found) => found.state.phase.is_pending(),
        None => false,
    }
}

impl<P> WatchedContainer<P> {
    /// Watches the processes that a listing shows, and ends the watch of all others.
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
                self.processes.push(FollowedProcess {
                    key: *next_key,
                    what: what.clone(),
                    watch: None,
                    gone: None,
                    ended: None,
                });
            }
        }
        for process in &mut self.processes {
            if process.watch.is_some() || process.ended.is_some() {
                continue;
            }
            match env.watch_exit(process.key, &process.what) {
                Ok(watch) => process.watch = Some(watch),
                Err(NotWatched::Gone) => {
                    process.gone.get_or_insert(now);
                }
                Err(NotWatched::Unable) => {}
            }
        }
    }

    /// Whether the end of at least one process will be noticed.
    fn has_watched_process(&self) -> bool {
        self.processes.iter().any(|process| process.watch.is_some())
    }

    /// Notes the end of the process with this key. Returns whether it is one of this container.
    fn note_exit(&mut self, key: u64, now: Instant) -> bool {
        for process in &mut self.processes {
            if process.key == key {
                process.ended = Some(now);
                process.watch = None;
                self.exit_seen.get_or_insert(now);
                return true;
            }
        }
        false
    }

    /// Notes when the container has ended. If the time is new, the engine has restarted it between
    /// two listings and may do so again soon.
    fn note_end(&mut self, found: &ListedContainer) {
        if self.ended_at != found.ended_at {
            self.ended_at = found.ended_at;
            self.passing_pause = POLL_INTERVAL;
        }
    }

    /// Whether the engine still lists the container as running, long after a process of it has
    /// ended. A missing process is a proof only if the engine uses the pids of this node.
    // [impl->swdd~agent-sees-ends-that-no-engine-notices~1]
    fn has_unnoticed_end(&self, listed: &ExecutionState, shares_pids: bool, now: Instant) -> bool {
        if !matches!(listed.phase, Phase::Running | Phase::Stopping) {
            return false;
        }
        for process in &self.processes {
            let mut end = process.ended;
            if end.is_none() && shares_pids {
                end = process.gone;
            }
            if let Some(end) = end
                && now.saturating_duration_since(end) >= END_UNNOTICED_MAX
            {
                return true;
            }
        }
        false
    }

    /// Judges a listed state:
    /// - it is not reported yet, if the engine has not noticed an end that this checker has;
    /// - otherwise it is reported. If no event will show its next change, a listing follows soon.
    fn judge(&mut self, state: ExecutionState, now: Instant) -> Judgement {
        // First: give podman some time to report the exit code. It may notice an end late.
        let lags_behind = state.phase == Phase::Stopping
            || self.processes.iter().any(|process| process.ended.is_some());
        if let Some(seen) = self.exit_seen
            && lags_behind
            && now.saturating_duration_since(seen) < EXIT_CODE_MAX
        {
            return Judgement {
                state: None,
                list_again: Some(EXIT_RETRY),
            };
        }
        // Then: when to list again. An ended container may be removed soon (`podman rm --force`,
        // `run --rm`), which no event shows.
        let has_just_ended = self.exit_seen.take().is_some();
        // Some states pass without an event: so does an end if the engine restarts the container.
        let is_passing = state.phase.is_pending()
            || matches!(state.phase, Phase::Stopping | Phase::FailedUnknown)
            || (self.engine_restarts && state.phase.has_ended());
        if self.reported.as_ref() != Some(&state) || !is_passing {
            self.passing_pause = POLL_INTERVAL;
        }
        let list_again = match state.phase {
            Phase::Running if self.has_process_just_gone(now) => Some(EXIT_RETRY),
            Phase::Running if !self.has_only_watched_processes() => Some(POLL_INTERVAL),
            _ if has_just_ended => Some(POLL_INTERVAL),
            _ if is_passing => Some(self.passing_pause),
            _ => None,
        };
        if is_passing {
            // A container may stay in this state, so list less and less often.
            self.passing_pause = self.passing_pause.saturating_mul(2).min(REPAIR_INTERVAL);
        }
        Judgement {
            state: Some(state),
            list_again,
        }
    }

    /// Whether a process could not be watched a moment ago, because it did not exist: it has ended,
    /// or has a pid of another namespace. The next listings show which.
    fn has_process_just_gone(&self, now: Instant) -> bool {
        for process in &self.processes {
            if let Some(gone) = process.gone
                && now - gone < EXIT_CODE_MAX
            {
                return true;
            }
        }
        false
    }

    /// Whether there are processes, and the end of each will be noticed.
    fn has_only_watched_processes(&self) -> bool {
        !self.processes.is_empty() && self.processes.iter().all(|process| process.watch.is_some())
    }

    /// Judges a container that a listing does not show: it is lost, unless it was seen to end. A
    /// listing right after a create may miss it, so two in a row are needed.
    // [impl->swdd~podman-state-getter-returns-lost-state~1]
    // [impl->swdd~agent-keeps-observed-ends~1]
    fn judge_missing(&mut self) -> Judgement {
        let known = self.end.state.clone();
        if known.is_none() && !self.missed {
            self.missed = true;
            return Judgement {
                state: None,
                list_again: Some(MISSING_RETRY),
            };
        }
        self.processes.clear();
        self.exit_seen = None;
        Judgement {
            state: Some(known.unwrap_or(ExecutionState::plain(Phase::FailedLost))),
            list_again: None,
        }
    }

    /// Reports `state` when it differs from the one that was reported last.
    // [impl->swdd~generic-state-checker-sends-workload-state~2]
    fn report(&mut self, state: ExecutionState) {
        if self.reported.as_ref() != Some(&state) {
            self.reported = Some(state.clone());
            (self.reply)(state);
        }
    }
}

/// The state of a container whose process has ended, which `runtime` does not notice.
fn unnoticed_end(runtime: &str) -> ExecutionState {
    let info =
        format!("its process has ended, which '{runtime}' does not notice: exit code unknown");
    ExecutionState::with_info(Phase::FailedExecFailed, info)
}

#[cfg(test)]
mod tests;
