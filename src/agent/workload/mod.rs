//! Runs one workload: create, retry, restart, resume, update, delete.
//!
//! Thread: `wl:<name>`, one per workload; says when nothing of the workload is left and nothing is
//! wanted, and ends when the sender of its wishes is dropped.
//! Owns: all containers of the workload, attempts, the time of the next attempt, the
//! workload's folders below the run folder, its control interface.
//! Takes: the newest wish of the scheduler, states of the state checker, a free start slot.
//! Gives: states and its end to the scheduler (may block there), what to watch to the state checker
//! (may block there).
//!
//! Beside the two senders above, the loop blocks in stops, removals and searches of containers, in
//! removals of folders (at most [`REMOVAL_MAX`]) and nowhere else: what may take minutes (pull,
//! create, init, start) is a call on a thread of its own, which it waits for together with its
//! other events. [`WorkloadControlLoop::step`] handles one event without waiting for one, which is
//! all that a simulation needs.

use crate::backoff::{Ended, RestartBackoff};
use crate::control_interface::pipes::PipeError;
use crate::control_interface::{self, ControlHub, ControlInterface};
use crate::engine_call::{CallContext, StartCall};
use crate::events::{PreparationReport, SchedulerEvent, send_state};
use crate::folder_removal::remove_folder;
use crate::limits::REMOVAL_MAX;
use crate::state_checker::WatchCommand;
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::messages::AddedWorkload;
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::workload::Workload;
use ankaios_platform::clock::Clock;
use ankaios_platform::logging::log_source;
use ankaios_platform::memory::OwnStack;
use ankaios_runtime::probes::Probes;
use ankaios_runtime::{ContainerId, MainProcess, RuntimeConnector};
use crossbeam_channel::{Select, Sender, never};
use health::InstanceLifecycle;
use log::{info, warn};
use mailbox::{Preparation, SlotEvent, WishSlot};
use preparation::Prepared;
use removal::Removal;
use start::Calling;
use start_slots::{SlotRequest, StartSlots};
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

/// A container of an earlier life of the agent.
pub(crate) struct Held {
    pub(crate) id: ContainerId,
    /// For what it is not removed when that is to run: it goes on as it is (`true`), or has ended
    /// and is started again.
    pub(crate) serves: Option<(AddedWorkload, bool)>,
}

/// Runs one workload.
pub struct WorkloadControlLoop<C: Clock> {
    context: LoopContext<C>,
    random: fastrand::Rng,
    slot: WishSlot,
    /// The instance whose states are reported: the old one until a new one is started.
    instance: InstanceName,
    /// Nothing is left of the instance, and it was reported as removed.
    is_empty: bool,
    /// The runtime of what is, or shall be, there.
    runtime: Name,
    /// As [`Held::serves`], until there is a wish.
    serves: Option<(AddedWorkload, bool)>,
    /// What to run; `None` when nothing shall run.
    wanted: Option<Arc<Workload>>,
    control: Option<ControlInterface>,
    container: Option<ContainerId>,
    /// The main process that its last start had, where that is known.
    process: Option<MainProcess>,
    /// Containers that go.
    removal: Removal,
    /// What is to be prepared beside what runs.
    preparation: Option<Preparation>,
    /// What is prepared of that, or of what is about to be started.
    next: Option<Prepared>,
    /// What was last reported of `next`.
    told: Option<PreparationReport>,
    /// Engine calls until now.
    calls: u64,
    watching: bool,
    /// How often what is wanted was started, or taken over from an earlier life of the agent.
    starts: u32,
    failed_creates: u32,
    /// Additional info of the start that is under way.
    shown: String,
    restarts: RestartBackoff,
    lifecycle: InstanceLifecycle,
    stage: Stage,
}

/// What the loop waits for besides wishes.
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
    /// What is wanted by then.
    Wish,
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
    /// The sender of its wishes is gone, so the loop has ended.
    Ended,
}

impl<C: Clock> WorkloadControlLoop<C> {
    /// It holds nothing of `instance` yet, or a container of an earlier life.
    pub(crate) fn new(
        instance: InstanceName,
        runtime: Name,
        held: Option<Held>,
        context: LoopContext<C>,
        random: fastrand::Rng,
        slot: WishSlot,
    ) -> Self {
        let restarts = RestartBackoff::new(context.restart_backoff, None);
        let is_empty = held.is_none();
        let (mut container, mut serves) = (None, None);
        if let Some(held) = held {
            slot.hold(&instance);
            (container, serves) = (Some(held.id), held.serves);
        }
        Self {
            context,
            random,
            slot,
            instance,
            is_empty,
            runtime,
            serves,
            wanted: None,
            control: None,
            container,
            process: None,
            removal: Removal::default(),
            preparation: None,
            next: None,
            told: None,
            calls: 0,
            watching: false,
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
        if self.slot.owner_gone() {
            return Step::Ended;
        }
        if let Some(event) = self.slot.next() {
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
        let has_containers = !self.is_empty || !self.removal.is_empty() || self.next.is_some();
        if !has_containers && self.slot.done_if_empty() {
            let name = self.instance.workload.clone();
            // Gone only at the end.
            let _ = self.context.reports.send(SchedulerEvent::LoopDone(name));
        }
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
        select.recv(self.slot.woken());
        select.recv(&alarm);
        select.ready();
    }

    fn on_event(&mut self, event: SlotEvent) {
        match event {
            SlotEvent::Wish => self.on_wish(),
            SlotEvent::Preparation => self.on_preparation(),
            SlotEvent::Surplus => self.take_surplus(),
            SlotEvent::Called(number, result) => self.on_called(number, result),
            SlotEvent::PreparedGone(id) => self.on_prepared_gone(&id),
            SlotEvent::Observed(state) => self.on_observed(state),
            SlotEvent::Probed(report) => self.on_probed(&report),
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

    /// Follows the newest wish. What is there is removed first, unless the wish is about that.
    fn on_wish(&mut self) {
        if matches!(self.stage, Stage::Calling(_)) && !self.starts_next() {
            return; // It has cancelled the call, and is followed when that ends.
        }
        if self.is_empty {
            if let Some(added) = self.slot.take(None) {
                self.create(added);
            }
            return;
        }
        if let Some(resumed) = self.slot.take_resumed() {
            self.serves = Some((resumed, true));
        }
        if let Some((served, goes_on)) = self.serves.take()
            && let Some(added) = self
                .slot
                .take_if(Some(&self.instance), |wish| wish.added() == Some(&served))
        {
            self.take(added);
            return match self.container.take_if(|_| goes_on) {
                // [impl->swdd~agent-workload-control-loop-executes-resume~1]
                Some(id) => self.adopt(id),
                None => {
                    self.report(ExecutionState::starting_triggered());
                    self.begin_start();
                }
            };
        }
        // [impl->swdd~agent-workload-control-loop-executes-update~2]
        // [impl->swdd~agent-workload-control-loop-executes-update-delete-only~1]
        // [impl->swdd~agent-workload-control-loop-executes-delete~2]
        self.delete(AfterDelete::Wish);
    }

    /// Starts what is wanted; nothing of the workload is there.
    // [impl->swdd~agent-workload-control-loop-executes-create~3]
    fn create(&mut self, added: AddedWorkload) {
        self.take(added);
        self.report(ExecutionState::starting_triggered());
        self.begin_start();
    }

    /// Goes on with a container of an earlier life of the agent.
    fn adopt(&mut self, id: ContainerId) {
        let _ = self.open_control_interface(true); // What fails is logged.
        self.starts = self.starts.saturating_add(1);
        let end = self.known_end(&id);
        self.watch(id, None, end);
        self.lifecycle.adopted = true;
        self.lifecycle_started(false);
    }

    /// This is to run. Nothing of an earlier one counts any more.
    // [impl->swdd~agent-workload-control-loop-reset-retry-attempts-on-update~1]
    fn take(&mut self, added: AddedWorkload) {
        // An older container of the same instance may have gone since the wish was taken.
        self.slot.hold(&added.instance);
        self.slot.note_not_started();
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

    fn report(&mut self, state: ExecutionState) {
        if state.phase == Phase::PendingStarting {
            self.shown = state.additional_info.to_string();
        }
        send_state(&self.context.reports, &self.instance, state);
    }
}

#[cfg(debug_assertions)]
mod inspection;
#[cfg(test)]
mod tests;
