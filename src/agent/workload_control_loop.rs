//! Runs one workload: create, retry, restart, resume, update, delete.
//!
//! Thread: `wl:<name>`, one per workload; ends after a delete or when the agent drops the sender of its commands.
//! Owns: the connector, the container's id, the number of its start, attempts, the time of the next attempt, the
//! workload's folder below the run folder, its control interface.
//! Takes: [`WorkloadCommand`] from the scheduler, one at a time and in order, and a free start slot.
//! Gives: states and its end to the scheduler (may block there), what to watch to the state checker (may block there).
//!
//! The loop blocks in engine calls and nowhere else. [`WorkloadControlLoop::step`] handles one event without waiting
//! for one, which is all that a simulation needs.

use super::agent_manager::SchedulerEvent;
use super::backoff::{Ended, RestartBackoff, retry_delay};
use super::control_interface::{self, ControlHub, ControlInterface};
use super::create_watch::{CreateObserver, CreateWatch};
use super::settings::unsupported_runtime;
use super::start_slots::{StartSlot, StartSlots};
use super::state_checker::WatchCommand;
use super::workload_command::{Engine, HeldContainer, OtherEngine, WorkloadCommand, WorkloadInbox, WorkloadOrder};
use super::workload_files::{remove_folder, write_files};
use crate::clock::Clock;
use crate::limits::{ADDITIONAL_INFO_MAX, REVIVAL_INTERVAL};
use crate::model::execution_state::{ExecutionState, Phase, WorkloadState};
use crate::model::names::{InstanceName, Name};
use crate::model::workload::{RestartPolicy, Workload};
use crate::runtime::{ContainerId, NewContainer, RuntimeError};
use crossbeam_channel::{Receiver, Select, Sender, never};
use log::{debug, error, info, warn};
pub use search::Answer;
use search::Search;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

mod search;

/// What all control loops of an agent have in common.
#[derive(Debug, Clone)]
pub struct LoopContext<C> {
    /// Time.
    pub clock: C,
    /// The agent's folder below the run folder, absolute.
    pub folder: PathBuf,
    /// The scheduler's inbox.
    pub reports: Sender<SchedulerEvent>,
    /// Bounds creates at the same time.
    pub slots: StartSlots,
    /// Longest create; `None` has no limit.
    pub create_timeout: Option<Duration>,
    /// Failed creates are retried this often; `None` has no limit.
    pub retry_limit: Option<u32>,
    /// Whether restarts are delayed.
    pub restart_backoff: bool,
    /// Where control interfaces are opened.
    pub control: ControlHub,
}

/// Tells loops apart; a name may get a new loop while the old one is just ending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopId {
    /// Under which the scheduler knows the loop: the name of the workload, or one with a dot when it only removes a
    /// container that is too many.
    pub name: Name,
    /// Counts the loops of this agent.
    pub number: u64,
}

/// Runs one workload.
pub struct WorkloadControlLoop<C: Clock> {
    id: LoopId,
    context: LoopContext<C>,
    random: fastrand::Rng,
    inbox: WorkloadInbox,
    /// Whose states are reported; stays that of the old instance until a new one is started.
    instance: InstanceName,
    engine: Option<Engine>,
    /// What to run; `None` when nothing shall run.
    wanted: Option<Arc<Workload>>,
    control: Option<ControlInterface>,
    container: Option<ContainerId>,
    leftovers: Leftovers,
    /// Engines of other runtimes where a container of the workload may be.
    others: Vec<OtherEngine>,
    /// Another loop runs the same instance; this one only removes a container that is too many.
    silent: bool,
    /// Counts starts, so that a late report of an earlier container is recognised (spec/agent.md FIX-16). Begins
    /// differently in each loop of the agent, since a name may get another loop.
    generation: u64,
    watching: bool,
    failed_creates: u32,
    failed_deletes: u32,
    /// Searches that failed because of engines of other runtimes.
    failed_searches: u32,
    /// Additional info of the start that is under way.
    shown: String,
    restarts: RestartBackoff,
    stage: Stage,
}

/// Whether containers of the instance may exist that the loop has no id of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Leftovers {
    /// No create was tried.
    None,
    /// A create failed; its connector cleaned up as well as it could. Look before the loop ends.
    Unlikely,
    /// A create was cut short: look before the next create.
    Likely,
    /// The engine could not tell what an earlier agent left: look for any instance of the workload before the next
    /// create, or there would be two.
    AnyInstance,
}

/// What the loop waits for besides commands.
enum Stage {
    Idle,
    /// Engines were asked for their containers. No start slot is held meanwhile, and any command ends the waiting.
    Searching(Search),
    WaitingForSlot(Start),
    RetryAt(Instant, Start),
    /// The retry limit was reached.
    ReviveAt(Instant),
    RestartAt(Instant, Ended),
    DeleteRetryAt(Instant, AfterDelete),
}

/// How to start.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    /// Make a new container.
    New,
    /// As `New`, but a failure is not reported again.
    Revival,
    /// Start the container that ended.
    Existing,
}

/// What follows when the old container is gone.
enum AfterDelete {
    Start(Box<WorkloadOrder>),
    Restart,
    Nothing,
    End,
}

/// Something to react to.
enum Event {
    Command(WorkloadCommand),
    SlotFree(StartSlot),
    Listed(Answer),
    TimerDue,
}

#[derive(Debug, PartialEq, Eq)]
enum Flow {
    Continue,
    Stop,
}

/// What a step of the loop did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It handled an event.
    Worked,
    /// There was nothing to do.
    Idle,
    /// The loop has ended.
    Ended,
}

impl<C: Clock> WorkloadControlLoop<C> {
    /// A loop that holds nothing yet. Its first command says what to do.
    #[must_use]
    pub fn new(
        id: LoopId,
        instance: InstanceName,
        context: LoopContext<C>,
        random: fastrand::Rng,
        inbox: WorkloadInbox,
    ) -> Self {
        let restarts = RestartBackoff::new(context.restart_backoff);
        let generation = id.number << 32;
        Self {
            id,
            context,
            random,
            inbox,
            instance,
            engine: None,
            wanted: None,
            control: None,
            container: None,
            leftovers: Leftovers::None,
            others: Vec::new(),
            silent: false,
            generation,
            watching: false,
            failed_creates: 0,
            failed_deletes: 0,
            failed_searches: 0,
            shown: String::new(),
            restarts,
            stage: Stage::Idle,
        }
    }

    /// Handles events until the workload is deleted or the agent ends.
    pub fn run(mut self) {
        loop {
            match self.step() {
                Step::Worked => {}
                Step::Ended => return,
                Step::Idle => {
                    self.wait();
                    if self.inbox.owner_gone() {
                        return;
                    }
                }
            }
        }
    }

    /// Handles one event if there is one. Commands come first: a delete must not lose to a retry.
    pub fn step(&mut self) -> Step {
        let event = if let Some(command) = self.inbox.pop() {
            Event::Command(command)
        } else if let Some(slot) = self.wanted_slot() {
            Event::SlotFree(slot)
        } else if let Some(answer) = self.answers().and_then(|answers| answers.try_recv().ok()) {
            Event::Listed(answer)
        } else if self.due().is_some_and(|at| at <= self.context.clock.now()) {
            Event::TimerDue
        } else {
            return Step::Idle;
        };
        match self.on_event(event) {
            Flow::Continue => Step::Worked,
            Flow::Stop => Step::Ended,
        }
    }

    /// When the loop wants to act by itself.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Idle | Stage::WaitingForSlot(_) => None,
            Stage::Searching(_) => self.others.iter().filter_map(|other| other.until).min(),
            Stage::RetryAt(at, _) | Stage::ReviveAt(at) | Stage::RestartAt(at, _) | Stage::DeleteRetryAt(at, _) => {
                Some(*at)
            }
        }
    }

    /// Whether a free start slot is all that it waits for.
    #[cfg(test)]
    pub fn waits_for_slot(&self) -> bool {
        matches!(self.stage, Stage::WaitingForSlot(_))
    }

    /// Where the answers come from while it searches.
    fn answers(&self) -> Option<&Receiver<Answer>> {
        match &self.stage {
            Stage::Searching(search) => Some(&search.answers),
            _ => None,
        }
    }

    /// What else wakes it while it searches.
    #[cfg(test)]
    pub fn searching(&self) -> Option<Receiver<Answer>> {
        self.answers().cloned()
    }

    /// Where its commands come from.
    #[cfg(test)]
    pub fn inbox(&self) -> &WorkloadInbox {
        &self.inbox
    }

    fn wanted_slot(&self) -> Option<StartSlot> {
        matches!(self.stage, Stage::WaitingForSlot(_)).then(|| self.context.slots.try_take())?
    }

    fn wait(&self) {
        let alarm = self.due().map_or_else(never, |at| self.context.clock.alarm(at));
        let mut select = Select::new();
        select.recv(self.inbox.woken());
        select.recv(&alarm);
        if matches!(self.stage, Stage::WaitingForSlot(_)) {
            select.recv(self.context.slots.free());
        }
        if let Some(answers) = self.answers() {
            select.recv(answers);
        }
        select.ready();
    }

    fn on_event(&mut self, event: Event) -> Flow {
        match event {
            Event::Command(command) => return self.on_command(command),
            Event::SlotFree(slot) => {
                if let Stage::WaitingForSlot(start) = self.stage {
                    self.start(start, slot);
                }
            }
            Event::Listed(answer) => {
                if let Stage::Searching(search) = &mut self.stage {
                    search.answered.push(answer);
                    self.end_search();
                }
            }
            Event::TimerDue => match std::mem::replace(&mut self.stage, Stage::Idle) {
                Stage::Searching(search) => {
                    self.stage = Stage::Searching(search);
                    self.give_up_others();
                    self.end_search();
                }
                // [impl->swdd~agent-workload-control-loop-executes-retry~1]
                Stage::RetryAt(_, start) => self.begin_start(start),
                Stage::ReviveAt(_) => self.begin_start(Start::Revival),
                Stage::RestartAt(_, ended) => return self.restart(ended),
                Stage::DeleteRetryAt(_, after) => return self.try_delete(after),
                Stage::Idle | Stage::WaitingForSlot(_) => {}
            },
        }
        Flow::Continue
    }

    fn on_command(&mut self, command: WorkloadCommand) -> Flow {
        match command {
            // [impl->swdd~agent-workload-control-loop-executes-create~3]
            WorkloadCommand::Create(order) => {
                let reuse = self.container.is_some() && self.instance == order.instance && self.can_start_again();
                if self.container.is_some() && !reuse {
                    return self.delete(AfterDelete::Start(Box::new(order)));
                }
                self.take(order);
                self.report(ExecutionState::starting_triggered());
                self.begin_start(if reuse { Start::Existing } else { Start::New });
            }
            // [impl->swdd~agent-workload-control-loop-executes-update~2]
            WorkloadCommand::Update(Some(order)) => return self.delete(AfterDelete::Start(Box::new(order))),
            // [impl->swdd~agent-workload-control-loop-executes-update-delete-only~1]
            WorkloadCommand::Update(None) => return self.delete(AfterDelete::Nothing),
            // [impl->swdd~agent-workload-control-loop-executes-delete~2]
            WorkloadCommand::Delete => return self.delete(AfterDelete::End),
            // [impl->swdd~agent-workload-control-loop-executes-resume~1]
            WorkloadCommand::Resume(order, id) => {
                self.take(order);
                self.open_control_interface();
                self.restarts.running(self.context.clock.now());
                self.watch(id);
            }
            WorkloadCommand::Hold(HeldContainer { instance, id, engine, silent }) => {
                (self.instance, self.engine, self.wanted) = (instance, Some(engine), None);
                (self.container, self.silent) = (Some(id), silent);
            }
            WorkloadCommand::Observed { generation, state } => return self.on_observed(generation, state),
        }
        Flow::Continue
    }

    /// Makes `order` the one to run. Nothing of an earlier one counts any more (spec/lifecycle.md rule 10).
    // [impl->swdd~agent-workload-control-loop-reset-retry-attempts-on-update~1]
    fn take(&mut self, order: WorkloadOrder) {
        let WorkloadOrder { instance, workload, engine, search_first, others } = order;
        (self.instance, self.engine, self.others) = (instance, engine, others);
        self.wanted = Some(workload);
        self.leftovers = if search_first { Leftovers::AnyInstance } else { Leftovers::None };
        (self.failed_creates, self.failed_searches) = (0, 0);
        self.restarts.reset();
        (self.stage, self.silent) = (Stage::Idle, false);
    }

    // ------------------------------------------------------------------ start

    fn begin_start(&mut self, start: Start) {
        if self.engine.is_none() {
            // [impl->swdd~agent-skips-unknown-runtime~1]
            let runtime = self.wanted.as_ref().map_or("", |workload| &workload.runtime);
            self.fail_for_good(&unsupported_runtime(runtime));
            return;
        }
        self.give_up_others();
        if self.must_search() {
            return self.search(start);
        }
        match self.context.slots.try_take() {
            Some(slot) => self.start(start, slot),
            None => self.stage = Stage::WaitingForSlot(start),
        }
    }

    fn start(&mut self, start: Start, slot: StartSlot) {
        self.stage = Stage::Idle;
        let Some(new) = self.prepare() else { return };
        self.restarts.starting(self.context.clock.now());
        match self.call_engine(start, &new, slot) {
            Ok(id) => {
                self.failed_creates = 0;
                self.leftovers = Leftovers::None;
                self.restarts.running(self.context.clock.now());
                info!("Successfully created workload '{}'.", self.instance.workload);
                self.watch(id);
            }
            Err(RuntimeError::Cancelled) => {
                // The command that cancelled it comes next; whatever was created until now must go then.
                self.expect_leftovers();
            }
            Err(RuntimeError::Unsupported(cause)) => {
                self.container = None;
                self.fail_for_good(&cause);
            }
            Err(error) => {
                match error {
                    RuntimeError::TimedOut(_) => self.expect_leftovers(),
                    RuntimeError::NotInstalled(_) | RuntimeError::NotStarted(_) if self.container.is_none() => {}
                    _ if self.leftovers == Leftovers::None => self.leftovers = Leftovers::Unlikely,
                    _ => {}
                }
                self.container = None;
                self.on_create_failed(start, &error.to_string());
            }
        }
    }

    /// Opens the control interface, writes the files and says what to create; `None` when that failed for good.
    fn prepare(&mut self) -> Option<NewContainer> {
        self.open_control_interface();
        let workload = self.wanted.clone()?;
        match write_files(&self.files_folder(), &workload.files) {
            Ok(files) => Some(NewContainer {
                instance: self.instance.clone(),
                workload,
                control_interface: self.control.as_ref().map(|control| control.folder().to_owned()),
                files,
            }),
            Err(error) => {
                error!("Failed to create workload files for workload '{}': '{error}'", self.instance);
                let cause = format!("Failed to create workload file: '{error}'");
                remove_folder(&self.files_folder());
                self.report(ExecutionState::with_info(Phase::PendingStartingFailed, cause));
                None
            }
        }
    }

    fn call_engine(&mut self, start: Start, new: &NewContainer, slot: StartSlot) -> Result<ContainerId, RuntimeError> {
        let Some(engine) = &mut self.engine else {
            return Err(RuntimeError::Unsupported("Unsupported Runtime".into()));
        };
        let call = self.inbox.begin_call();
        let (instance, shown, reports) = (&self.instance, self.shown.as_str(), &self.context.reports);
        let observer = (start != Start::Revival).then_some(CreateObserver { instance, shown, reports });
        let mut watch = CreateWatch::new(call.as_ref().map(|call| call.fd()), slot, observer);
        let limit = self.context.create_timeout;
        match &self.container {
            Some(id) => engine.connector.start(id, new, limit, &mut watch),
            None => engine.connector.create(new, limit, &mut watch),
        }
    }

    // [impl->swdd~agent-workload-control-loop-retries-workload-creation-on-create-failure~1]
    // [impl->swdd~agent-workload-control-loop-update-create-failed-allows-retry~1]
    fn on_create_failed(&mut self, start: Start, cause: &str) {
        remove_folder(&self.files_folder());
        let now = self.context.clock.now();
        if start == Start::Revival {
            debug!("Workload '{}' still cannot be created: '{cause}'", self.instance.workload);
            self.stage = Stage::ReviveAt(now + REVIVAL_INTERVAL);
            return;
        }
        self.failed_creates = self.failed_creates.saturating_add(1);
        let retry = self.failed_creates;
        // [impl->swdd~agent-workload-control-loop-limits-retry-attempts~1]
        if self.context.retry_limit.is_some_and(|limit| retry > limit) {
            warn!("No more retries to create workload '{}'. Error: '{cause}'", self.instance.workload);
            // [impl->swdd~agent-workload-control-loop-retry-limit-set-execution-state~2]
            self.report(ExecutionState::no_more_retries(cause));
            self.stage = Stage::ReviveAt(now + REVIVAL_INTERVAL);
            return;
        }
        info!("Retrying workload creation for: '{}'. Error: '{cause}'", self.instance.workload);
        self.report(ExecutionState::retry_starting(retry, cause));
        self.stage = Stage::RetryAt(now + retry_delay(retry, &mut self.random), Start::New);
    }

    /// The workload can never run as it is; only an update helps.
    fn fail_for_good(&mut self, cause: &str) {
        error!("Failed to create workload with error: '{cause}'");
        if self.engine.is_some() {
            remove_folder(&self.files_folder());
        }
        self.report(ExecutionState::with_info(Phase::PendingStartingFailed, cause));
    }

    fn watch(&mut self, id: ContainerId) {
        self.container = Some(id.clone());
        let Some(engine) = &self.engine else { return };
        self.generation += 1;
        self.watching = true;
        let in_burst = self.context.slots.in_use();
        let command =
            WatchCommand::Watch { instance: self.instance.clone(), id, generation: self.generation, in_burst };
        let _ = engine.watch.send(command); // Gone only when the agent ends.
    }

    fn unwatch(&mut self) {
        if let Some(engine) = &self.engine
            && std::mem::take(&mut self.watching)
        {
            let command = WatchCommand::Unwatch { instance: self.instance.clone(), generation: self.generation };
            let _ = engine.watch.send(command); // Gone only when the agent ends.
        }
    }

    // ---------------------------------------------------------------- restart

    // [impl->swdd~workload-control-loop-receives-workload-states~1]
    fn on_observed(&mut self, generation: u64, state: ExecutionState) -> Flow {
        // [impl->swdd~workload-control-loop-checks-workload-state-validity~1]
        let stale = generation != self.generation || !self.watching;
        if stale || matches!(self.stage, Stage::DeleteRetryAt(..)) {
            debug!("Ignoring state '{state}' of workload '{}', which is past.", self.instance.workload);
            return Flow::Continue;
        }
        let ended = self.needs_restart(state.phase);
        let runs = state.phase == Phase::Running;
        // [impl->swdd~workload-control-loop-sends-workload-states~2]
        self.report(state);
        if let Some(ended) = ended {
            // [impl->swdd~workload-control-loop-handles-workload-restarts~2]
            let now = self.context.clock.now();
            let at = self.restarts.restart_at(ended, now, &mut self.random);
            if at <= now {
                return self.restart(ended);
            }
            self.stage = Stage::RestartAt(at, ended);
        } else if runs && matches!(self.stage, Stage::RestartAt(..)) {
            self.stage = Stage::Idle; // Somebody else started it again.
        }
        Flow::Continue
    }

    /// How the workload ended if its policy wants it to run again (spec/agent.md section 10).
    // [impl->swdd~agent-supports-restart-policies~1]
    // [impl->swdd~workload-control-loop-restarts-workload-with-enabled-restart-policy~2]
    fn needs_restart(&self, phase: Phase) -> Option<Ended> {
        let policy = self.wanted.as_ref()?.restart_policy;
        match (policy, phase) {
            (RestartPolicy::Always | RestartPolicy::OnFailure, Phase::FailedExecFailed) => Some(Ended::Badly),
            (RestartPolicy::Always, Phase::Succeeded) => Some(Ended::Well),
            _ => None,
        }
    }

    fn can_start_again(&self) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.connector.can_start_again())
    }

    fn restart(&mut self, ended: Ended) -> Flow {
        match ended {
            Ended::Well if self.can_start_again() => {
                self.unwatch();
                self.restart_control_interface();
                self.report(ExecutionState::starting_triggered());
                self.begin_start(Start::Existing);
                Flow::Continue
            }
            // [impl->swdd~workload-control-loop-restarts-workloads-using-update~1]
            Ended::Badly | Ended::Well => self.delete(AfterDelete::Restart),
        }
    }

    // ----------------------------------------------------------------- delete

    /// Removes what is there, then does `after`. Ends all waiting, above all for a retry.
    // [impl->swdd~agent-workload-control-loop-prevents-retries-on-other-workload-commands~1]
    fn delete(&mut self, after: AfterDelete) -> Flow {
        let stage = std::mem::replace(&mut self.stage, Stage::Idle);
        if let Stage::DeleteRetryAt(_, AfterDelete::Start(waiting)) = stage {
            let starts_after_all = matches!(&after, AfterDelete::Start(order) if order.instance == waiting.instance);
            if waiting.instance != self.instance && !starts_after_all {
                // It was never started, so nobody else will say so.
                send_state(&self.context.reports, &waiting.instance, ExecutionState::plain(Phase::Removed));
            }
        }
        self.failed_deletes = 0;
        self.end_control_interface_unless_kept(&after);
        self.report(ExecutionState::plain(Phase::StoppingRequestedAtRuntime));
        self.try_delete(after)
    }

    fn try_delete(&mut self, after: AfterDelete) -> Flow {
        if let Err(error) = self.delete_container() {
            self.on_delete_failed(after, &error.to_string());
            return Flow::Continue;
        }
        self.unwatch();
        self.container = None;
        self.leftovers = Leftovers::None;
        let changed = match &after {
            AfterDelete::Start(order) => order.instance != self.instance,
            AfterDelete::End => true,
            AfterDelete::Restart | AfterDelete::Nothing => false,
        };
        if !self.silent && !self.is_surplus() {
            remove_folder(&if changed { self.folder() } else { self.files_folder() });
        }
        self.report(ExecutionState::plain(Phase::Removed));
        match after {
            AfterDelete::Start(order) => self.take(*order),
            AfterDelete::Restart => self.restart_control_interface(),
            AfterDelete::Nothing => {
                self.wanted = None;
                return Flow::Continue;
            }
            AfterDelete::End => return self.end(),
        }
        self.report(ExecutionState::starting_triggered());
        self.begin_start(Start::New);
        Flow::Continue
    }

    // [impl->swdd~agent-workload-control-loop-delete-broken-allowed~1]
    // [impl->swdd~agent-workload-control-loop-update-broken-allowed~1]
    fn delete_container(&mut self) -> Result<(), RuntimeError> {
        let Some(engine) = &mut self.engine else { return Ok(()) };
        if let Some(id) = &self.container {
            engine.connector.delete(id)?;
        }
        // What may be left is never given up: it would run for ever without anybody knowing it.
        if self.leftovers != Leftovers::None {
            return self.delete_leftovers();
        }
        if self.container.is_none() {
            debug!("Workload '{}' already gone.", self.instance.workload);
        }
        Ok(())
    }

    fn expect_leftovers(&mut self) {
        if self.leftovers != Leftovers::AnyInstance {
            self.leftovers = Leftovers::Likely;
        }
    }

    fn delete_leftovers(&mut self) -> Result<(), RuntimeError> {
        let Some(engine) = &mut self.engine else { return Ok(()) };
        let ids = if self.leftovers == Leftovers::AnyInstance {
            let listed = match engine.connector.list() {
                // Its program is not there, so nothing can have been made with it.
                Err(RuntimeError::NotInstalled(_)) => Vec::new(),
                listed => listed?,
            };
            let ours = listed.into_iter().filter(|found| found.instance.workload == self.instance.workload);
            ours.map(|container| container.id).collect()
        } else {
            engine.connector.find(&self.instance)?
        };
        for id in ids {
            if self.container.as_ref() != Some(&id) {
                engine.connector.delete(&id)?;
            }
        }
        self.leftovers = Leftovers::None;
        Ok(())
    }

    /// Keeps the container's id and what was to follow, and tries again later: a container that is left alone would
    /// run for ever without anybody knowing it (spec/agent.md FIX-12, FIX-13).
    // [impl->swdd~agent-workload-control-loop-delete-failed-allows-retry~1]
    // [impl->swdd~agent-workload-control-loop-update-delete-failed-allows-retry~1]
    fn on_delete_failed(&mut self, after: AfterDelete, cause: &str) {
        let verb = if matches!(after, AfterDelete::End) { "stop" } else { "update" };
        warn!("Could not {verb} workload '{}': '{cause}'", self.instance.workload);
        self.report(ExecutionState::with_info(Phase::StoppingDeleteFailed, cause));
        self.failed_deletes = self.failed_deletes.saturating_add(1);
        let at = self.context.clock.now() + retry_delay(self.failed_deletes, &mut self.random);
        self.stage = Stage::DeleteRetryAt(at, after);
    }

    fn end(&mut self) -> Flow {
        self.wanted = None;
        if !self.inbox.close_if_empty() {
            return Flow::Continue; // A newer command arrived in the meantime; it finds nothing left to delete.
        }
        let _ = self.context.reports.send(SchedulerEvent::LoopEnded(self.id.clone())); // Gone only at the end.
        Flow::Stop
    }

    // ------------------------------------------------------ control interface

    /// Gives the workload its control interface if it wants one and has none yet. It runs without one when that is
    /// not possible (spec/control-interface.md section 1).
    fn open_control_interface(&mut self) {
        let Some(workload) = self.wanted.as_ref().filter(|_| self.engine.is_some()) else { return };
        let access = &workload.control_interface_access;
        if self.control.is_some() || !control_interface::is_wanted(access) {
            return;
        }
        let name = &self.instance.workload;
        match self.context.control.open(name, self.control_folder(&self.instance), access) {
            Ok(control) => {
                info!("Successfully created control interface for workload '{name}'.");
                self.control = Some(control);
            }
            Err(error) => {
                warn!("Could not create control interface when creating workload '{name}': '{error}'");
            }
        }
    }

    /// A control interface ends before its container, unless the next one may go on with it.
    fn end_control_interface_unless_kept(&mut self, after: &AfterDelete) {
        let kept = |control: &ControlInterface| match after {
            AfterDelete::Start(order) => {
                control.serves(&self.control_folder(&order.instance), &order.workload.control_interface_access)
            }
            AfterDelete::Restart => true,
            AfterDelete::Nothing | AfterDelete::End => false,
        };
        if !self.control.as_ref().is_some_and(kept)
            && let Some(control) = self.control.take()
        {
            control.end();
        }
    }

    fn restart_control_interface(&self) {
        if let Some(control) = &self.control {
            control.restart();
        }
    }

    fn control_folder(&self, instance: &InstanceName) -> PathBuf {
        self.context.folder.join(instance.folder()).join(control_interface::FOLDER)
    }

    // ---------------------------------------------------------------- helpers

    fn folder(&self) -> PathBuf {
        self.context.folder.join(self.instance.folder())
    }

    fn files_folder(&self) -> PathBuf {
        self.folder().join("files")
    }

    fn report(&mut self, state: ExecutionState) {
        if state.phase == Phase::PendingStarting {
            self.shown.clone_from(&state.additional_info);
        }
        if self.silent {
            return;
        }
        if !self.is_surplus() {
            return send_state(&self.context.reports, &self.instance, state);
        }
        let event = SchedulerEvent::SurplusState(short_report(&self.instance, state));
        let _ = self.context.reports.send(event); // The scheduler is gone only when the agent ends.
    }

    /// Whether the workload has another loop, which may come back to the instance of this one. The scheduler then
    /// knows whose states and whose folder those of the instance are.
    fn is_surplus(&self) -> bool {
        self.id.name != self.instance.workload
    }
}

/// Cuts a text to at most `bytes`, between two characters.
pub(super) fn cut(text: &mut String, bytes: usize) {
    if text.len() > bytes {
        let end = (0..=bytes).rev().find(|index| text.is_char_boundary(*index));
        text.truncate(end.unwrap_or_default());
    }
}

/// Reports a state; a long engine message is cut.
pub(super) fn send_state(reports: &Sender<SchedulerEvent>, instance: &InstanceName, state: ExecutionState) {
    let report = short_report(instance, state);
    let _ = reports.send(SchedulerEvent::State(report)); // The scheduler is gone only when the agent ends.
}

fn short_report(instance: &InstanceName, mut state: ExecutionState) -> WorkloadState {
    cut(&mut state.additional_info, ADDITIONAL_INFO_MAX);
    WorkloadState::new(instance.clone(), state)
}

#[cfg(test)]
mod tests;
