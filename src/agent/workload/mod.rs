//! Runs one workload: create, retry, restart, resume, update, delete.
//!
//! Thread: `wl:<name>`, one per workload; reports when nothing of the workload is left and nothing
//! has to be done, and ends when the handle of its mailbox is dropped.
//! Owns: all containers of the workload, attempts, the time of the next attempt, the
//! workload's folders below the run folder, its control interface.
//! Takes: the newest target of the scheduler, states of the state checker, a free start slot.
//! Gives: its status to the scheduler (may block there), what to watch to the state checker (may
//! block there).
//!
//! Beside these two senders, the loop blocks in stops, removals and searches of containers, in
//! removals of folders (at most [`REMOVAL_MAX`]) and nowhere else: what may take minutes (pull,
//! create, init, start) is a call on a thread of its own, which it waits for together with its
//! other events. [`WorkloadControlLoop::step`] handles one event without waiting for one, which is
//! all that a simulation needs.

use crate::backoff::{Ended, RestartBackoff};
use crate::control_interface::pipes::PipeError;
use crate::control_interface::{self, ControlHub, ControlInterface};
use crate::engine_call::{CallContext, StartCall};
use crate::events::SchedulerEvent;
use crate::folder_removal::remove_folder;
use crate::limits::REMOVAL_MAX;
use crate::state_checker::WatchCommand;
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::workload::Workload;
use ankaios_platform::clock::Clock;
use ankaios_platform::limits::ADDITIONAL_INFO_MAX;
use ankaios_platform::logging::log_source;
use ankaios_platform::memory::OwnStack;
use ankaios_runtime::probes::Probes;
use ankaios_runtime::{ContainerId, MainProcess, RuntimeConnector};
use crossbeam_channel::{Select, Sender, never};
use health::InstanceLifecycle;
use log::{info, warn};
use mailbox::{FoundContainer, LoopEvent, Mailbox, Purpose, Run, Target};
use preparation::Prepared;
use removal::Removal;
use start::Calling;
use start_slots::{SlotRequest, StartSlots};
use status::{Start, StartProgress, Status};
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
    /// Its state checker.
    pub watch: Sender<WatchCommand>,
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
    /// Failed creates are retried this often; `None` has no limit.
    pub retry_limit: Option<u32>,
    /// Whether restarts are delayed.
    pub restart_backoff: bool,
    /// Where control interfaces are opened.
    pub control: ControlHub,
    /// Where probes are ordered.
    pub probes: Arc<dyn Probes>,
}

impl<C> LoopContext<C> {
    /// What makes the calls of the engine that has the containers of this runtime.
    pub(crate) fn connector(&self, runtime: &Name) -> Option<Connector> {
        self.engines.get(runtime).map(|source| (source.connect)())
    }
}

/// Runs one workload.
pub struct WorkloadControlLoop<C: Clock> {
    context: LoopContext<C>,
    random: fastrand::Rng,
    mailbox: Mailbox,
    /// The newest target that was taken.
    target: Target,
    /// What there is, and as it was reported last.
    status: Status,
    reported: Status,
    /// The current instance: the old one until a new one is started.
    instance: InstanceName,
    /// Nothing is left of the current instance, and its end was reported.
    is_empty: bool,
    /// The runtime of the current instance.
    runtime: Name,
    /// What the container that was found is good for, until it was adopted, started again or
    /// replaced.
    found: Option<Purpose>,
    /// The definition of the current instance; `None` for a container that was found.
    wanted: Option<Arc<Workload>>,
    control: Option<ControlInterface>,
    container: Option<ContainerId>,
    /// The main process that its last start had, where that is known.
    process: Option<MainProcess>,
    /// The state after its last kill, once the engine was asked for the cause.
    killed: Option<ExecutionState>,
    /// Containers that go.
    removal: Removal,
    /// What is prepared of the next instance, or of the one that is about to be started.
    next: Option<Prepared>,
    /// Engine calls until now.
    calls: u64,
    watching: bool,
    /// Successful starts of this loop until now.
    started: u64,
    /// How often the current instance was started or adopted.
    starts: u32,
    failed_creates: u32,
    /// Additional info of the start that is under way.
    shown: String,
    restarts: RestartBackoff,
    lifecycle: InstanceLifecycle,
    stage: Stage,
}

/// What the loop waits for besides targets.
enum Stage {
    Idle,
    /// Nothing is started before all that is too many is removed.
    BehindRemoval,
    WaitingForSlot(SlotRequest),
    /// A call of the start is under way.
    Calling(Calling),
    RetryAt(Instant),
    RestartAt(Instant, Ended),
    /// A container that was taken over is only created. It is replaced then if it still does not
    /// run.
    CreatedUntil(Instant),
    DeleteRetryAt(Instant, AfterDelete),
    /// The container is removed, and probed until it does not answer any more.
    Gone(AfterDelete),
}

impl Stage {
    /// Whether nothing but the start is waited for.
    fn leads_to_start(&self) -> bool {
        matches!(
            self,
            Self::BehindRemoval | Self::WaitingForSlot(_) | Self::Calling(_) | Self::Gone(_)
        )
    }
}

/// What follows when the old container is gone.
enum AfterDelete {
    /// What the target says by then.
    Target,
    /// It has ended by itself.
    Restart,
    /// It did not become ready for this reason: start again later.
    NotReady(String),
    /// It does not work any more for this reason, and could not be stopped first.
    Failed(String),
}

/// What a step of the loop did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It handled an event.
    Worked,
    /// There was nothing to do.
    Idle,
    /// The handle of its mailbox is gone, so the loop has ended.
    Ended,
}

impl<C: Clock> WorkloadControlLoop<C> {
    /// Has nothing of the workload yet. `instance` is the first that it will have something of.
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
            reported: Status::default(),
            instance,
            is_empty: true,
            runtime: Name::default(),
            found: None,
            wanted: None,
            control: None,
            container: None,
            process: None,
            killed: None,
            removal: Removal::default(),
            next: None,
            calls: 0,
            watching: false,
            started: 0,
            starts: 0,
            failed_creates: 0,
            shown: String::new(),
            restarts,
            lifecycle: InstanceLifecycle::default(),
            stage: Stage::Idle,
        }
    }

    /// Handles events until the workload is deleted or the agent ends.
    pub fn run(mut self) {
        let stack = OwnStack::of_this_thread();
        loop {
            match self.step() {
                Step::Worked => {}
                Step::Ended => return,
                Step::Idle => {
                    stack.iter().for_each(OwnStack::give_back_unused);
                    self.wait();
                }
            }
        }
    }

    /// Handles one event if there is one, else does what there is to do for the next start.
    pub fn step(&mut self) -> Step {
        let _source = log_source(self.instance.workload.clone());
        let is_due = |due: Option<Instant>| due.is_some_and(|at| at <= self.now());
        self.mailbox.take_wake_up();
        if self.mailbox.is_abandoned() {
            return Step::Ended;
        }
        if let Some(event) = self.mailbox.next() {
            self.on_event(event);
        } else if is_due(self.stage_due()) {
            self.on_timer();
        } else if is_due(self.removal_due()) {
            self.remove_due();
        } else if is_due(self.lifecycle.deadline) {
            self.on_lifecycle_due();
        } else if !self.prepare() {
            return Step::Idle;
        }
        self.status.is_idle = self.is_idle();
        self.publish();
        Step::Worked
    }

    /// When the loop wants to act by itself.
    pub fn due(&self) -> Option<Instant> {
        let others = self
            .removal_due()
            .into_iter()
            .chain(self.preparation_due())
            .chain(self.lifecycle.deadline);
        self.stage_due().into_iter().chain(others).min()
    }

    fn stage_due(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Idle | Stage::BehindRemoval | Stage::Gone(_) => None,
            Stage::WaitingForSlot(request) => request.is_given().then(|| self.now()),
            Stage::Calling(calling) => Some(calling.due),
            Stage::RetryAt(at)
            | Stage::RestartAt(at, _)
            | Stage::CreatedUntil(at)
            | Stage::DeleteRetryAt(at, _) => Some(*at),
        }
    }

    fn wait(&self) {
        let alarm = self
            .due()
            .map_or_else(never, |at| self.context.clock.alarm(at));
        let mut select = Select::new();
        select.recv(self.mailbox.woken());
        select.recv(&alarm);
        select.ready();
    }

    fn on_event(&mut self, event: LoopEvent) {
        match event {
            LoopEvent::Target => {
                let is_order = self.read_target();
                self.follow_target(is_order);
            }
            LoopEvent::Called(number, result) => self.on_called(number, result),
            LoopEvent::PreparedGone(id) => self.on_prepared_gone(&id),
            LoopEvent::Observed(state) => self.on_observed(state),
            LoopEvent::Probed(report) => self.on_probed(&report),
        }
    }

    fn on_timer(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            // [impl->swdd~agent-workload-control-loop-executes-retry~1]
            Stage::RetryAt(_) => self.begin_start(),
            Stage::RestartAt(_, ended) => self.restart(ended),
            Stage::CreatedUntil(_) => self.replace_only_created(),
            Stage::DeleteRetryAt(_, after) => self.try_delete(after),
            Stage::WaitingForSlot(slot) => self.start(Some(slot)),
            Stage::Calling(calling) => self.on_call_age(calling),
            stage @ (Stage::Idle | Stage::BehindRemoval | Stage::Gone(_)) => {
                self.stage = stage;
            }
        }
    }

    // ------------------------------------------------------------------ target

    /// Takes the newest target, and the containers that come with it. Returns whether it orders
    /// anything about what must run.
    fn read_target(&mut self) -> bool {
        let Some(mut target) = self.mailbox.take_target() else {
            return false;
        };
        let is_order = target.is_retry || target.run != self.target.run;
        let found = std::mem::take(&mut target.adopt);
        if target.next != self.target.next {
            self.status.prepared = None;
        }
        self.status.target = target.number;
        self.target = target;
        self.take_found(found);
        is_order
    }

    /// Takes over containers that an earlier agent has left.
    fn take_found(&mut self, found: Vec<FoundContainer>) {
        let mut orphaned = Vec::new();
        for container in found {
            match container.purpose {
                Purpose::Adopt(..) | Purpose::StartAgain(_) | Purpose::Replace => {
                    self.take_occupant(container);
                }
                Purpose::Start(added, prepared) => self.take_prepared(added, prepared),
                Purpose::Remove | Purpose::RemoveUnused => orphaned.push(container),
            }
        }
        self.remove_orphaned(orphaned);
    }

    /// Takes over the container that the workload has. The scheduler hands over one, with the first
    /// target; a later purpose of the same one replaces the first.
    fn take_occupant(&mut self, found: FoundContainer) {
        let state = match &found.purpose {
            Purpose::Adopt(_, state) => state.clone(),
            _ => ExecutionState::plain(Phase::PendingInitial),
        };
        self.status.instances.insert(found.instance.clone(), state);
        self.instance = found.instance;
        self.runtime = found.runtime;
        self.container = Some(found.id);
        self.found = Some(found.purpose);
        self.is_empty = false;
    }

    /// Compares what there is with the target, and does what leads there:
    /// - nothing, when the current instance is the one that must run, or has to stay as it is;
    /// - it starts the instance, when there is nothing of the workload;
    /// - it adopts the container that was found, or starts it again, when it is good for that;
    /// - otherwise it removes the current instance first. An order retries a failed removal at once.
    fn follow_target(&mut self, is_order: bool) {
        if matches!(self.stage, Stage::Calling(_)) && !self.starts_next() {
            return; // A call that has become pointless is cancelled; its end leads here.
        }
        if self.target.run == Run::Found || self.runs_target() {
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
            (Some(Purpose::Adopt(good_for, _)), Some(added)) if good_for == added => {
                self.take(added);
                self.adopt();
            }
            (Some(Purpose::StartAgain(good_for)), Some(added)) if good_for == added => {
                self.create(added);
            }
            // It is being removed for the target already.
            _ if matches!(self.stage, Stage::Gone(AfterDelete::Target)) => {}
            _ if matches!(self.stage, Stage::DeleteRetryAt(_, AfterDelete::Target))
                && !is_order => {}
            // [impl->swdd~agent-workload-control-loop-executes-update~2]
            // [impl->swdd~agent-workload-control-loop-executes-update-delete-only~1]
            // [impl->swdd~agent-workload-control-loop-executes-delete~2]
            _ => self.delete(AfterDelete::Target),
        }
    }

    /// Whether the current instance is the one that must run.
    fn runs_target(&self) -> bool {
        let Some(added) = self.target.run.added() else {
            return false;
        };
        !self.is_empty
            && self.instance == added.instance
            && self.wanted.as_ref() == Some(&added.workload)
    }

    /// Whether this is the instance that the loop will start next.
    fn is_about_to_start(&self, added: &AddedWorkload) -> bool {
        self.target.run.added() == Some(added) && !self.runs_target()
    }

    /// Starts what is wanted; nothing of the workload is there.
    // [impl->swdd~agent-workload-control-loop-executes-create~3]
    fn create(&mut self, added: AddedWorkload) {
        self.take(added);
        self.report(ExecutionState::starting_triggered());
        self.begin_start();
    }

    /// Continues with the container that was found.
    fn adopt(&mut self) {
        let Some(id) = self.container.take() else {
            return;
        };
        let _ = self.open_control_interface(true); // What fails is logged.
        self.starts = self.starts.saturating_add(1);
        let end = self.known_end(&id);
        self.watch(id, None, end);
        self.lifecycle.adopted = true;
        self.lifecycle_started(false);
    }

    /// This becomes the current instance. Nothing of an earlier one applies any more.
    // [impl->swdd~agent-workload-control-loop-reset-retry-attempts-on-update~1]
    fn take(&mut self, added: AddedWorkload) {
        self.status.start = None;
        self.found = None;
        self.next
            .iter_mut()
            .for_each(|next| next.is_started = next.added == added);
        self.runtime = added.workload.runtime.clone();
        (self.instance, self.wanted) = (added.instance, Some(added.workload));
        (self.starts, self.failed_creates, self.removal.failures) = (0, 0, 0);
        (self.stage, self.is_empty) = (Stage::Idle, false);
        self.reclaim_old();
        self.take_lifecycle();
    }

    // ------------------------------------------------------ control interface

    /// Gives the workload its control interface if it wants one and has none yet. It goes on
    /// without one when that is not possible.
    ///
    /// # Errors
    /// Errors that may pass, or that go away when a file of others is removed, unless the container
    /// runs and has it mounted.
    fn open_control_interface(&mut self, is_mounted: bool) -> Result<(), PipeError> {
        if !is_mounted {
            self.end_missing_control_interface();
        }
        let Some(workload) = self.wanted.clone().filter(|_| self.control.is_none()) else {
            return Ok(());
        };
        let (access, folder) = (
            &workload.control_interface_access,
            self.control_folder(&self.instance),
        );
        if !control_interface::is_wanted(access) || self.source().is_none() {
            return Ok(());
        }
        let name = &self.instance.workload;
        let open = || {
            self.context
                .control
                .open(name, folder.clone(), access, is_mounted)
        };
        let mut opened = open();
        if let Err(foreign) = opened.as_ref()
            && foreign.is_foreign()
            && !is_mounted
        {
            // No container has it any more, so it can be made anew.
            warn!("The control interface of workload '{name}' is made anew: {foreign}");
            self.remove_folder(&folder);
            opened = open();
        }
        match opened {
            Err(error) if !is_mounted && (error.may_pass() || error.is_foreign()) => {
                return Err(error);
            }
            Err(error) => {
                warn!(
                    "Could not create control interface when creating workload '{name}': '{error}'"
                );
            }
            Ok(control) => {
                info!("Successfully created control interface for workload '{name}'.");
                self.control = Some(control);
            }
        }
        Ok(())
    }

    /// What cleans old files up, as systemd does in `/tmp`, may have removed what the next
    /// container mounts.
    // [impl->swdd~agent-makes-removed-files-anew~1]
    fn end_missing_control_interface(&mut self) {
        if let Some(control) = self.control.take_if(|control| !control.is_in_its_folder()) {
            let name = &self.instance.workload;
            warn!(
                "The control interface of workload '{name}' was removed from the run folder; it is made anew."
            );
            control.end();
        }
    }

    /// A control interface ends before its container, unless the next one may go on with it.
    fn end_control_interface_unless(&mut self, is_kept: bool) {
        if !is_kept && let Some(control) = self.control.take() {
            control.end();
        }
    }

    fn keeps_control_interface(&self, next: &AddedWorkload) -> bool {
        let (folder, access) = (
            self.control_folder(&next.instance),
            &next.workload.control_interface_access,
        );
        self.control
            .as_ref()
            .is_some_and(|control| control.serves(&folder, access))
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

    /// What is to run, with its instance.
    fn added(&self) -> Option<AddedWorkload> {
        Some(AddedWorkload {
            instance: self.instance.clone(),
            workload: self.wanted.clone()?,
        })
    }

    /// The engine of what runs.
    fn source(&self) -> Option<&EngineSource> {
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
            self.shown = state.additional_info.to_string();
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
        if let Some(next) = &self.next {
            let instance = next.added.instance.clone();
            let state = ExecutionState::plain(Phase::PendingInitial);
            self.status.instances.entry(instance).or_insert(state);
        }
        if self.status == self.reported {
            return;
        }
        self.reported = self.status.clone();
        let event = SchedulerEvent::Status {
            workload: self.instance.workload.clone(),
            status: self.status.clone(),
        };
        let _ = self.context.reports.send(event); // Gone only when the agent ends.
    }

    /// Whether there is nothing, and nothing has to be done.
    fn is_idle(&self) -> bool {
        let has_something = !self.is_empty || !self.removal.is_empty() || self.next.is_some();
        let has_to_do = self.target.run != Run::Nothing || self.target.next.is_some();
        !has_something && !has_to_do && !self.mailbox.has_target()
    }

    /// Notes in the status how far the start of the current instance is.
    fn note_start(&mut self, progress: StartProgress) {
        self.status.start = Some(Start {
            instance: self.instance.clone(),
            progress,
        });
    }
}

#[cfg(debug_assertions)]
pub mod inspection;
#[cfg(test)]
mod tests;
