//! Runs one workload: create, retry, restart, resume, update, delete.
//!
//! Thread: `wl:<name>`, one per workload. It reports when nothing of the workload is left and there
//! is nothing to do, and ends when the handle of its mailbox is dropped.
//! Owns: all containers of the workload, attempts, the time of the next attempt, the workload's
//! folders below the run folder, its control interface.
//! Takes: the newest target of the scheduler, states of the state checker, a free start slot.
//! Gives: its status to the scheduler (may block there), watch orders to the state checker (may
//! block there).
//!
//! The loop blocks in these two senders, in stops, removals and searches of containers, and in
//! removals of folders (at most [`REMOVAL_MAX`]). Longer engine calls (pull, create, init, start)
//! run on a thread of their own, and their ends are events of the loop.
//! [`WorkloadControlLoop::step`] handles one event without waiting, which is all that a simulation
//! needs.

use crate::backoff::{EndKind, RestartBackoff};
use crate::control_interface::pipes::PipeError;
use crate::control_interface::{self, ControlHub, ControlInterface};
use crate::engine_call::{CallContext, StartCall};
use crate::events::SchedulerEvent;
use crate::folder_removal::remove_folder;
use crate::limits::REMOVAL_MAX;
use crate::state_checker::thread::WatchSender;
use ankaios_model::access_rules::ControlInterfaceAccess;
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::workload::Workload;
use ankaios_platform::clock::Clock;
use ankaios_platform::limits::{ADDITIONAL_INFO_MAX, SETTLE_AFTER};
use ankaios_platform::logging::log_source;
use ankaios_platform::memory::{self, OwnStack};
use ankaios_platform::threads;
use ankaios_runtime::limits::STACK_WORKLOAD;
use ankaios_runtime::probes::Probes;
use ankaios_runtime::{ContainerId, MainProcess, RuntimeConnector};
use crossbeam_channel::{Select, Sender, never};
use health::InstanceLifecycle;
use log::{info, warn};
use mailbox::{FoundContainer, FoundPurpose, LoopEvent, Mailbox, RunTarget, Target};
use preparation::Prepared;
use removal::Removals;
use start::StartUnderWay;
use start_slots::{SlotRequest, StartSlots};
use status::{NewestStart, StartProgress, Status};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

mod health;
pub(crate) mod mailbox;
pub(crate) mod preparation;
mod removal;
mod restart;
mod start;
pub mod start_slots;
pub mod status;

/// Calls of one engine.
pub type Connector = Box<dyn RuntimeConnector>;

/// How to use an engine.
pub struct EngineSource {
    /// Makes a connector.
    pub connect: Box<dyn Fn() -> Connector + Send + Sync>,
    /// Reaches its state checker.
    pub watch: WatchSender,
}

/// The enabled engines by the name of the runtime.
// [impl->swdd~agent-supports-multiple-runtime-connectors~1]
pub type Engines = BTreeMap<Name, EngineSource>;

/// What all control loops of an agent have in common.
#[derive(Clone)]
pub struct LoopContext<C> {
    pub clock: C,
    pub engines: Arc<Engines>,
    /// The scheduler's inbox.
    pub reports: Sender<SchedulerEvent>,
    pub slots: StartSlots,
    pub calls: CallContext,
    pub start_call: StartCall,
    /// The number of retries of a failed create; `None` for no limit.
    pub retry_limit: Option<u32>,
    /// Whether restarts are delayed.
    pub restart_backoff: bool,
    /// Where control interfaces are opened.
    pub control: ControlHub,
    /// Where probes are ordered.
    pub probes: Arc<dyn Probes>,
}

impl<C> LoopContext<C> {
    /// Returns a new connector of this runtime.
    pub(crate) fn connector(&self, runtime: &Name) -> Option<Connector> {
        let source = self.engines.get(runtime)?;
        Some((source.connect)())
    }
}

/// Runs one workload.
pub struct WorkloadControlLoop<C: Clock> {
    context: LoopContext<C>,
    random: fastrand::Rng,
    mailbox: Mailbox,
    /// The newest target that was taken.
    target: Target,
    /// All that there is of the workload.
    status: Status,
    /// The status that was sent last.
    reported: Arc<Status>,
    /// The current instance: the old one until a new one is started.
    instance: InstanceName,
    /// Nothing is left of the current instance, and its end was reported.
    is_empty: bool,
    /// The runtime of the current instance.
    runtime: Name,
    /// The use of the container that was found, until it was adopted, started again or replaced.
    found: Option<FoundPurpose>,
    /// The definition of the current instance; `None` for a container that was found.
    definition: Option<Arc<Workload>>,
    control: Option<ControlInterface>,
    container: Option<ContainerId>,
    /// The main process of its last start, if known.
    process: Option<MainProcess>,
    /// The state after its last kill, with the cause that the engine has given.
    kill_state: Option<ExecutionState>,
    /// Containers that will be removed.
    removals: Removals,
    /// The preparation of the next instance, or of the one that is about to be started.
    next: Option<Prepared>,
    /// The number of engine calls until now.
    calls: u64,
    is_watched: bool,
    /// The number of containers that were started or adopted until now.
    starts: u64,
    /// How often the current instance was started or adopted.
    instance_starts: u32,
    failed_creates: u32,
    /// Additional info of the start that is under way.
    start_info: String,
    restarts: RestartBackoff,
    lifecycle: InstanceLifecycle,
    stage: LoopStage,
}

/// The event that the loop waits for, beside targets.
enum LoopStage {
    /// None: the current instance runs, has ended for good, or cannot run.
    Idle,
    /// The start waits until other containers of the workload are removed.
    AwaitingCleanup,
    WaitingForSlot(SlotRequest),
    /// A call of the start is under way.
    Starting(StartUnderWay),
    RetryAt(Instant),
    RestartAt(Instant, EndKind),
    /// An adopted container is only created. It is replaced at this time if it still does not run.
    OnlyCreatedUntil(Instant),
    DeleteRetryAt(Instant, AfterDelete),
    /// The container is removed, and probed until its `gone` condition holds.
    AwaitingGone(AfterDelete),
}

impl LoopStage {
    /// Whether a start is under way, or follows when cleanup, a slot or the `gone` condition
    /// allows.
    fn is_starting(&self) -> bool {
        matches!(
            self,
            Self::AwaitingCleanup
                | Self::WaitingForSlot(_)
                | Self::Starting(_)
                | Self::AwaitingGone(_)
        )
    }
}

/// What follows when the container is removed.
enum AfterDelete {
    /// Follow the newest target.
    Target,
    /// Start the instance again: its container has ended.
    Restart,
    /// Start the instance again later: it did not become ready for this reason.
    NotReady(String),
    /// Report the failure, and restart as the policy says: its `alive` condition failed for this
    /// reason, and the container could not be stopped first.
    Failed(String),
}

/// The result of one step of the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoopStep {
    /// It handled an event.
    Worked,
    /// There was nothing to do.
    Idle,
    /// The handle of its mailbox is gone, so the loop has ended.
    Ended,
}

/// Why a wait has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoopWake {
    /// There may be something to do.
    Work,
    /// There was nothing to do for [`SETTLE_AFTER`].
    Quiet,
}

/// The name of the thread of a workload.
pub(crate) fn thread_name(workload: &str) -> String {
    format!("wl:{workload}")
}

impl<C: Clock> WorkloadControlLoop<C> {
    /// Returns a loop for the workload of `instance`. It has no container yet.
    pub(crate) fn new(
        instance: InstanceName,
        context: LoopContext<C>,
        random: fastrand::Rng,
        mailbox: Mailbox,
    ) -> Self {
        let restarts = RestartBackoff::new(context.restart_backoff, None);
        Self {
            context,
            random,
            mailbox,
            target: Target::default(),
            status: Status::default(),
            reported: Arc::default(),
            instance,
            is_empty: true,
            runtime: Name::default(),
            found: None,
            definition: None,
            control: None,
            container: None,
            process: None,
            kill_state: None,
            removals: Removals::default(),
            next: None,
            calls: 0,
            is_watched: false,
            starts: 0,
            instance_starts: 0,
            failed_creates: 0,
            start_info: String::new(),
            restarts,
            lifecycle: InstanceLifecycle::default(),
            stage: LoopStage::Idle,
        }
    }

    /// Handles events until the workload is deleted or the agent ends. The loop stays in its box,
    /// since each thread would have a second copy of it on its stack.
    #[allow(clippy::boxed_local)] // See above.
    pub fn run(mut self: Box<Self>) {
        let stack = OwnStack::of_this_thread();
        let mut has_worked = false;
        loop {
            match self.step() {
                LoopStep::Worked => has_worked = true,
                LoopStep::Ended => return,
                LoopStep::Idle => {
                    if let Some(stack) = &stack {
                        stack.give_back_unused();
                    }
                    if self.wait(has_worked) == LoopWake::Work {
                        continue;
                    }
                    // The work is done for now, so give back the memory of this thread.
                    match self.continue_on_new_thread() {
                        Ok(()) => return,
                        Err(same) => self = same,
                    }
                    has_worked = false;
                }
            }
        }
    }

    /// Continues on a new thread: until a thread ends, the allocator keeps memory that it has
    /// freed, 9 KiB for each workload. Returns the loop if no thread can be started.
    fn continue_on_new_thread(self: Box<Self>) -> Result<(), Box<Self>> {
        let name = thread_name(&self.instance.workload);
        if let Err((_, same)) = threads::spawn_with(name, STACK_WORKLOAD, self, Self::run) {
            return Err(same);
        }
        memory::settle_again();
        Ok(())
    }

    /// Handles one event if there is one, else one thing that is due, else one step of the
    /// preparation.
    pub fn step(&mut self) -> LoopStep {
        let _source = log_source(self.instance.workload.clone());
        self.mailbox.take_wake_up();
        if self.mailbox.is_abandoned() {
            return LoopStep::Ended;
        }
        if let Some(event) = self.mailbox.next() {
            self.on_event(event);
        } else if self.is_due(self.stage_due()) {
            self.on_timer();
        } else if self.is_due(self.removals_due()) {
            self.remove_due();
        } else if self.is_due(self.lifecycle.deadline) {
            self.on_lifecycle_due();
        } else if !self.prepare() {
            return LoopStep::Idle;
        }
        self.status.is_idle = self.is_idle();
        self.publish();
        LoopStep::Worked
    }

    /// When the loop has something to do without an event.
    pub fn due(&self) -> Option<Instant> {
        let dues = [
            self.stage_due(),
            self.removals_due(),
            self.preparation_due(),
            self.lifecycle.deadline,
        ];
        dues.into_iter().flatten().min()
    }

    fn is_due(&self, at: Option<Instant>) -> bool {
        at.is_some_and(|at| at <= self.now())
    }

    /// When the stage has something to do; `None` when it waits for an event.
    fn stage_due(&self) -> Option<Instant> {
        match &self.stage {
            LoopStage::Idle | LoopStage::AwaitingCleanup | LoopStage::AwaitingGone(_) => None,
            LoopStage::WaitingForSlot(request) if request.is_granted() => Some(self.now()),
            LoopStage::WaitingForSlot(_) => None,
            LoopStage::Starting(start) => Some(start.due),
            LoopStage::RetryAt(at)
            | LoopStage::RestartAt(at, _)
            | LoopStage::OnlyCreatedUntil(at)
            | LoopStage::DeleteRetryAt(at, _) => Some(*at),
        }
    }

    /// Waits for something to do. After work it waits at most [`SETTLE_AFTER`].
    fn wait(&self, has_worked: bool) -> LoopWake {
        let alarm = match self.due() {
            Some(at) => self.context.clock.alarm(at),
            None => never(),
        };
        let settled = if has_worked {
            self.context.clock.alarm(self.now() + SETTLE_AFTER)
        } else {
            never()
        };
        let mut select = Select::new();
        select.recv(self.mailbox.woken());
        select.recv(&alarm);
        let settled_index = select.recv(&settled);
        if select.ready() == settled_index {
            LoopWake::Quiet
        } else {
            LoopWake::Work
        }
    }

    /// Handles an event of the mailbox.
    fn on_event(&mut self, event: LoopEvent) {
        match event {
            LoopEvent::Target => {
                let is_new_run = self.read_target();
                self.follow_target(is_new_run);
            }
            LoopEvent::Called(number, result) => self.on_called(number, result),
            LoopEvent::PreparedGone(id) => self.on_prepared_gone(&id),
            LoopEvent::Observed(state) => self.on_observed(state),
            LoopEvent::Probed(report) => self.on_probed(&report),
        }
    }

    /// Does what the stage has waited for: its time has come, or its slot is granted.
    fn on_timer(&mut self) {
        match std::mem::replace(&mut self.stage, LoopStage::Idle) {
            // [impl->swdd~agent-workload-control-loop-executes-retry~1]
            LoopStage::RetryAt(_) => self.begin_start(),
            LoopStage::RestartAt(_, ended) => self.restart(ended),
            LoopStage::OnlyCreatedUntil(_) => self.replace_only_created(),
            LoopStage::DeleteRetryAt(_, after) => self.try_delete(after),
            LoopStage::WaitingForSlot(slot) => self.start(Some(slot)),
            LoopStage::Starting(start) => self.on_call_age(start),
            stage @ (LoopStage::Idle | LoopStage::AwaitingCleanup | LoopStage::AwaitingGone(_)) => {
                self.stage = stage;
            }
        }
    }

    // ------------------------------------------------------------------ target

    /// Takes the newest target, and the containers that come with it. Returns whether another
    /// instance must run now, or a failed removal must be retried.
    fn read_target(&mut self) -> bool {
        let Some(mut target) = self.mailbox.take_target() else {
            return false;
        };
        let is_new_run = target.is_retry || target.run != self.target.run;
        let found = std::mem::take(&mut target.adopt);
        if target.next != self.target.next {
            self.status.prepared = None; // It is about an earlier preparation.
        }
        self.status.target = target.number;
        self.target = target;
        self.take_found(found);
        is_new_run
    }

    /// Takes over containers that an earlier agent has left.
    fn take_found(&mut self, found: Vec<FoundContainer>) {
        let mut orphaned = Vec::new();
        for container in found {
            match container.purpose {
                FoundPurpose::Adopt(..) | FoundPurpose::StartAgain(_) | FoundPurpose::Replace => {
                    self.take_occupant(container);
                }
                FoundPurpose::Start(added, prepared) => self.take_prepared(added, prepared),
                FoundPurpose::Remove | FoundPurpose::RemoveUnused => orphaned.push(container),
            }
        }
        self.remove_orphaned(orphaned);
    }

    /// Takes over the container of an earlier agent as that of the current instance. There is at
    /// most one: it comes with the first target, and again if its purpose changes.
    fn take_occupant(&mut self, found: FoundContainer) {
        let state = match &found.purpose {
            FoundPurpose::Adopt(_, state) => state.clone(),
            _ => ExecutionState::plain(Phase::PendingInitial),
        };
        self.status.instances.insert(found.instance.clone(), state);
        self.instance = found.instance;
        self.runtime = found.runtime;
        self.container = Some(found.id);
        self.found = Some(found.purpose);
        self.is_empty = false;
    }

    /// Does the next step from the current instance to the target:
    /// - None, if the current instance is the target, or if the container of an earlier agent must
    ///   stay as it is for now ([`RunTarget::Found`]).
    /// - Create the target, if the workload has no container.
    /// - Adopt the found container, or create its instance again, as the scheduler decided for this
    ///   target.
    /// - Otherwise delete the current instance first. A new run retries a failed delete at once.
    fn follow_target(&mut self, is_new_run: bool) {
        if matches!(self.stage, LoopStage::Starting(_)) && !self.preparation_joins_start() {
            return; // If the call has become pointless, it is cancelled, and its end leads here.
        }
        if self.target.run == RunTarget::Found || self.runs_target() {
            return;
        }
        let next = self.target.run.added().cloned();
        if self.is_empty {
            if let Some(added) = next {
                self.create(added);
            }
            return;
        }
        match (self.found.take(), next) {
            // [impl->swdd~agent-workload-control-loop-executes-resume~1]
            (Some(FoundPurpose::Adopt(found_for, _)), Some(added)) if found_for == added => {
                self.set_current(added);
                self.adopt();
            }
            (Some(FoundPurpose::StartAgain(found_for)), Some(added)) if found_for == added => {
                self.create(added);
            }
            _ if self.is_deleting_for_target(is_new_run) => {}
            // [impl->swdd~agent-workload-control-loop-executes-update~2]
            // [impl->swdd~agent-workload-control-loop-executes-update-delete-only~1]
            // [impl->swdd~agent-workload-control-loop-executes-delete~2]
            _ => self.delete(AfterDelete::Target),
        }
    }

    /// Whether the current instance is being deleted for the target already.
    fn is_deleting_for_target(&self, is_new_run: bool) -> bool {
        match &self.stage {
            LoopStage::AwaitingGone(AfterDelete::Target) => true,
            // A new run does not wait for the next try.
            LoopStage::DeleteRetryAt(_, AfterDelete::Target) => !is_new_run,
            _ => false,
        }
    }

    /// Whether the current instance is the one that must run.
    fn runs_target(&self) -> bool {
        let Some(added) = self.target.run.added() else {
            return false;
        };
        self.is_current(&added.instance) && self.definition.as_ref() == Some(&added.workload)
    }

    /// Whether this is the instance that the loop will start next.
    fn is_about_to_start(&self, added: &AddedWorkload) -> bool {
        self.target.run.added() == Some(added) && !self.runs_target()
    }

    /// Makes this the current instance, and begins its start.
    // [impl->swdd~agent-workload-control-loop-executes-create~3]
    fn create(&mut self, added: AddedWorkload) {
        self.set_current(added);
        self.report(ExecutionState::starting_triggered());
        self.begin_start();
    }

    /// Adopts the container that was found: it is watched and probed as if this agent had started
    /// it.
    fn adopt(&mut self) {
        let Some(id) = self.container.take() else {
            return;
        };
        let _ = self.open_control_interface(true); // With `true` it logs its errors.
        self.instance_starts = self.instance_starts.saturating_add(1);
        let end = self.known_end(&id);
        self.watch(id, None, end);
        self.lifecycle.adopted = true;
        self.begin_lifecycle(false);
    }

    /// Makes this the current instance, and resets all that is about an earlier one.
    // [impl->swdd~agent-workload-control-loop-reset-retry-attempts-on-update~1]
    fn set_current(&mut self, added: AddedWorkload) {
        self.status.start = None;
        self.found = None;
        if let Some(next) = &mut self.next {
            next.joins_start = next.added == added;
        }
        self.runtime = added.workload.runtime.clone();
        self.instance = added.instance;
        self.definition = Some(added.workload);
        self.instance_starts = 0;
        self.failed_creates = 0;
        self.removals.failures = 0;
        self.stage = LoopStage::Idle;
        self.is_empty = false;
        self.reclaim_stopped();
        self.load_lifecycle();
    }

    // ------------------------------------------------------ control interface

    /// Opens the control interface of the workload if its rules allow one and it has none yet.
    /// `is_mounted`: the container runs already, and has the files mounted.
    ///
    /// # Errors
    /// A retry of the start may succeed. All other errors are logged, and the workload runs without
    /// a control interface.
    fn open_control_interface(&mut self, is_mounted: bool) -> Result<(), PipeError> {
        if !is_mounted {
            self.end_missing_control_interface();
        }
        if self.control.is_some() || self.engine().is_none() {
            return Ok(());
        }
        let Some(workload) = self.definition.clone() else {
            return Ok(());
        };
        let access = &workload.control_interface_access;
        if !control_interface::is_needed(access) {
            return Ok(());
        }
        let name = &self.instance.workload;
        match self.open_pipes(access, is_mounted) {
            Ok(control) => {
                info!("Successfully created control interface for workload '{name}'.");
                self.control = Some(control);
                Ok(())
            }
            Err(error) if !is_mounted && (error.may_pass() || error.is_foreign()) => Err(error),
            Err(error) => {
                warn!(
                    "Could not create control interface when creating workload '{name}': '{error}'"
                );
                Ok(())
            }
        }
    }

    /// Opens the pipes of the current instance. A file of others in their place is removed first,
    /// unless a container may have it mounted.
    fn open_pipes(
        &self,
        access: &ControlInterfaceAccess,
        is_mounted: bool,
    ) -> Result<ControlInterface, PipeError> {
        let hub = &self.context.control;
        let name = &self.instance.workload;
        let folder = self.control_folder(&self.instance);
        match hub.open(name, folder.clone(), access, is_mounted) {
            Err(error) if error.is_foreign() && !is_mounted => {
                warn!("The control interface of workload '{name}' is made again: {error}");
                self.remove_folder(&folder);
                hub.open(name, folder, access, is_mounted)
            }
            opened => opened,
        }
    }

    /// Ends the control interface if its files are gone, so that it is made again. A cleaner of old
    /// files, such as systemd in `/tmp`, may have removed them.
    // [impl->swdd~agent-makes-removed-files-anew~1]
    fn end_missing_control_interface(&mut self) {
        if let Some(control) = self.control.take_if(|control| !control.is_in_its_folder()) {
            let name = &self.instance.workload;
            warn!(
                "The control interface of workload '{name}' was removed from the run folder; it is made again."
            );
            control.end();
        }
    }

    /// Ends the control interface, unless the container of `next` can use it as it is.
    fn end_control_interface_unless_kept_for(&mut self, next: Option<&AddedWorkload>) {
        if let Some(next) = next
            && self.can_keep_control_interface_for(next)
        {
            return;
        }
        if let Some(control) = self.control.take() {
            control.end();
        }
    }

    /// Whether `next` has the same folder and the same rules of access.
    fn can_keep_control_interface_for(&self, next: &AddedWorkload) -> bool {
        let Some(control) = &self.control else {
            return false;
        };
        let folder = self.control_folder(&next.instance);
        control.serves(&folder, &next.workload.control_interface_access)
    }

    fn restart_control_interface(&self) {
        if let Some(control) = &self.control {
            control.restart();
        }
    }

    fn control_folder(&self, instance: &InstanceName) -> PathBuf {
        self.folder(instance).join(control_interface::FOLDER)
    }

    // ---------------------------------------------------------------- helpers

    fn now(&self) -> Instant {
        self.context.clock.now()
    }

    /// The current instance with its definition.
    fn current(&self) -> Option<AddedWorkload> {
        Some(AddedWorkload {
            instance: self.instance.clone(),
            workload: self.definition.clone()?,
        })
    }

    /// Whether this is the current instance, and there is something of it.
    fn is_current(&self, instance: &InstanceName) -> bool {
        !self.is_empty && self.instance == *instance
    }

    /// The engine of the current instance.
    fn engine(&self) -> Option<&EngineSource> {
        self.context.engines.get(&self.runtime)
    }

    fn connector(&self) -> Option<Connector> {
        self.context.connector(&self.runtime)
    }

    fn folder(&self, instance: &InstanceName) -> PathBuf {
        self.context.calls.folder.join(instance.folder())
    }

    fn files_folder(&self) -> PathBuf {
        self.folder(&self.instance).join("files")
    }

    fn remove_folder(&self, folder: &Path) {
        remove_folder(folder, &self.context.clock, REMOVAL_MAX);
    }

    // ------------------------------------------------------------------ status

    /// Reports a state of the current instance.
    fn report(&mut self, state: ExecutionState) {
        if state.phase == Phase::PendingStarting {
            // A long start repeats it, with its age.
            self.start_info = state.additional_info.to_string();
        }
        let instance = self.instance.clone();
        self.report_of(instance, state);
    }

    /// Reports a state of an instance; a long message of an engine is cut.
    fn report_of(&mut self, instance: InstanceName, mut state: ExecutionState) {
        state.cut_info(ADDITIONAL_INFO_MAX);
        self.status.instances.insert(instance, state);
        self.status.is_idle = false;
        self.publish();
    }

    /// Reports that there is nothing of this instance any more.
    fn report_end(&mut self, instance: &InstanceName) {
        if self.status.instances.remove(instance).is_some() {
            self.status.is_idle = false;
            self.publish();
        }
    }

    /// Sends the status to the scheduler if it has changed.
    fn publish(&mut self) {
        // List the prepared instance as well: there may be a container of it.
        if let Some(next) = &self.next {
            let instance = next.added.instance.clone();
            let state = ExecutionState::plain(Phase::PendingInitial);
            self.status.instances.entry(instance).or_insert(state);
        }
        if self.status == *self.reported {
            return;
        }
        self.reported = Arc::new(self.status.clone());
        let event = SchedulerEvent::Status {
            workload: self.instance.workload.clone(),
            status: self.reported.clone(),
        };
        let _ = self.context.reports.send(event); // Gone only when the agent ends.
    }

    /// Whether there is nothing of the workload, and nothing to do.
    fn is_idle(&self) -> bool {
        let has_container = !self.is_empty || !self.removals.is_empty() || self.next.is_some();
        let has_to_do = self.target.run != RunTarget::Nothing || self.target.next.is_some();
        !has_container && !has_to_do && !self.mailbox.has_target()
    }

    /// Notes in the status how far the start of the current instance is.
    fn note_start(&mut self, progress: StartProgress) {
        self.status.start = Some(NewestStart {
            instance: self.instance.clone(),
            progress,
        });
    }
}

#[cfg(debug_assertions)]
pub mod inspection;
#[cfg(test)]
mod tests;
