//! Prepares one workload, or removes what was prepared of it.
//!
//! Thread: `prep:<name>`, one at a time per workload; it ends with its job. What is prepared needs no thread.
//! Takes: what to do, with a right to do it while starts leave a core. Gives: [`JobReport`] to the scheduler (may block
//! there).

use super::host_paths::{look, named_paths};
use super::prepared::{JobDone, JobFailure, JobReport, PreparedContainer, Removal};
use super::record::{Record, new_container};
use crate::agent::control_interface::pipes;
use crate::agent::events::SchedulerEvent;
use crate::agent::folder_removal::remove_folder;
use crate::agent::probes::prober::{notify_socket, notify_socket_path};
use crate::agent::start_slots::PreparationSlot;
use crate::agent::workload_files::write_files;
use crate::limits::{PREPARING_PATHS_WAIT, REMOVAL_MAX, START_SLOT_MAX};
use crate::model::messages::AddedWorkload;
use crate::model::names::Name;
use crate::model::prepare_level::PrepareLevel;
use crate::model::runtime_config::EngineConfig;
use crate::platform::clock::Clock;
use crate::platform::logging::log_source;
use crate::platform::sync::EventFd;
use crate::runtime::{CallSequence, CallWatch, ContainerId, NewContainer, RuntimeConnector, RuntimeError, containerd};
use crossbeam_channel::Sender;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What a job does.
#[derive(Debug, Clone)]
pub enum Task {
    /// Prepares a start.
    Prepare {
        /// Of this.
        added: AddedWorkload,
        /// What is created already.
        container: Option<PreparedContainer>,
        /// How far.
        level: PrepareLevel,
    },
    /// Removes what was prepared.
    Remove {
        /// This.
        removal: Removal,
        /// With the folder of the instance, which nothing else uses.
        folder: bool,
    },
}

impl Task {
    /// Which runtime it needs.
    #[must_use]
    pub fn runtime(&self) -> &Name {
        match self {
            Self::Prepare { added, .. } => &added.workload.runtime,
            Self::Remove { removal, .. } => &removal.runtime,
        }
    }
}

/// Notifies a job that runs of what has changed. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct JobControl {
    /// `None` when no descriptor can be had; the call under way then goes on to its end.
    cancel: Option<EventFd>,
    no_more_steps: Arc<AtomicBool>,
}

impl JobControl {
    /// That of a job which is about to start.
    #[must_use]
    pub fn new() -> Self {
        Self { cancel: EventFd::new().ok(), no_more_steps: Arc::default() }
    }

    /// What it does is not wanted any more.
    pub fn cancel(&self) {
        self.no_more_steps.store(true, Ordering::Relaxed);
        self.cancel.iter().for_each(EventFd::set);
    }

    /// Whether it was notified of a change.
    #[cfg(test)]
    pub fn is_notified(&self) -> bool {
        self.no_more_steps.load(Ordering::Relaxed)
    }

    /// It ends with the step that it does now.
    pub fn end_after_step(&self) {
        self.no_more_steps.store(true, Ordering::Relaxed);
    }
}

/// Where a job works.
#[derive(Debug, Clone)]
pub struct JobContext<C> {
    /// Time.
    pub clock: C,
    /// The agent's folder, absolute.
    pub folder: PathBuf,
    /// Identifies this boot of the node.
    pub boot: Arc<str>,
    /// Files of the node that podman copies into a container when it initialises it, and nerdctl when it creates it.
    pub copied: Arc<BTreeSet<String>>,
    /// Longest call; `None` has no limit.
    pub create_timeout: Option<Duration>,
    /// The scheduler's inbox.
    pub reports: Sender<SchedulerEvent>,
}

/// One job.
pub struct PreparationJob<C> {
    /// Of which workload.
    pub workload: Name,
    /// Its number among the jobs of the agent.
    pub number: u64,
    /// What it does.
    pub task: Task,
    /// With which engine.
    pub connector: Box<dyn RuntimeConnector>,
    /// Where.
    pub context: JobContext<C>,
    /// What the scheduler changes meanwhile.
    pub control: JobControl,
    /// The right to prepare; given back when the job ends or takes long.
    pub slot: Option<PreparationSlot>,
}

impl<C: Clock> PreparationJob<C> {
    /// Does it, and reports how it ended.
    pub fn run(mut self) {
        let _source = log_source(self.workload.clone());
        let result = match self.task.clone() {
            Task::Prepare { added, container, level } => self.prepare(&added, container, level),
            Task::Remove { removal, folder } => self.remove(&removal, folder),
        };
        self.slot = None;
        if let Err(JobFailure { cause, cancelled: false, .. }) = &result {
            log::info!("The preparation of workload '{}' failed. Error: '{cause}'", self.workload);
        }
        let report = JobReport { workload: self.workload, number: self.number, result };
        let _ = self.context.reports.send(SchedulerEvent::Prepared(report)); // Gone only at the end.
    }

    // ---------------------------------------------------------------- prepare

    fn prepare(
        &mut self,
        added: &AddedWorkload,
        container: Option<PreparedContainer>,
        level: PrepareLevel,
    ) -> Result<JobDone, JobFailure> {
        let cancel = self.control.cancel.clone();
        let mut watch = JobWatch { cancel: cancel.as_ref(), slot: self.slot.take() };
        let mut watch = CallSequence::new(&mut watch);
        if level == PrepareLevel::Image {
            let limit = self.context.create_timeout;
            let pulled = self.connector.prepare_image(&added.workload, limit, &mut watch);
            return pulled.map(|()| JobDone::Prepared { level, container: None }).map_err(|error| failure(&error));
        }
        let new = new_container(&self.context.folder, added).map_err(wrong_file)?;
        let mut container = match container {
            Some(container) => container,
            None => self.create(added, &new, watch.next_call())?,
        };
        if level == PrepareLevel::Init && !self.control.no_more_steps.load(Ordering::Relaxed) {
            let unanswered = |cause| JobFailure { search: true, ..JobFailure::for_now(cause) };
            let copied = BTreeSet::clone(&self.context.copied);
            container.paths.extend(look(copied, PREPARING_PATHS_WAIT).map_err(unanswered)?);
            let limit = self.context.create_timeout;
            let done = self.connector.init(&container.id, &new, limit, watch.next_call());
            done.map_err(|error| failure(&error))?;
            container.level = PrepareLevel::Init;
            self.note(added, &new, &container)?;
        }
        Ok(JobDone::Prepared { level: container.level, container: Some(container) })
    }

    fn create(
        &mut self,
        added: &AddedWorkload,
        new: &NewContainer,
        watch: &mut dyn CallWatch,
    ) -> Result<PreparedContainer, JobFailure> {
        self.make_folders(added, new)?;
        let mut paths = match &added.workload.config().engine {
            Ok(EngineConfig::Container(config)) => named_paths(config, new),
            _ => return Err(failure(&RuntimeError::Unsupported("it has no steps".to_owned()))),
        };
        if *added.workload.runtime == *containerd::RUNTIME_NAME {
            paths.extend(self.context.copied.iter().cloned()); // It copies them when it creates the container.
        }
        // Looked at before the create, which may read them: what changes meanwhile is noticed then, too.
        let paths = look(paths, PREPARING_PATHS_WAIT).map_err(JobFailure::for_now)?;
        self.connector.note_prepared(&added.instance, &Record::of_create(&self.context.boot).text());
        let created = self.connector.create_only(new, self.context.create_timeout, watch);
        let id = created.map_err(|error| failure(&error))?;
        let container = PreparedContainer { id, level: PrepareLevel::Create, paths };
        self.note(added, new, &container)?;
        Ok(container)
    }

    /// Makes what the container mounts. The control interface is served from the start on.
    fn make_folders(&self, added: &AddedWorkload, new: &NewContainer) -> Result<(), JobFailure> {
        if let Some(folder) = &new.control_interface {
            let failed = |error| JobFailure::for_now(format!("Failed to create control interface: '{error}'"));
            pipes::create(folder).map_err(failed)?;
        }
        if let Some(path) = &new.notify_socket {
            let failed = |error| format!("the notify socket '{}' cannot be made: {error}", path.display());
            notify_socket(path).map_err(|error| JobFailure::for_now(failed(error)))?; // Nobody writes to it before the start.
        }
        let folder = self.context.folder.join(added.instance.folder()).join("files");
        let written = write_files(&folder, &added.workload.files);
        written.map(drop).map_err(|error| {
            let cause = format!("Failed to create workload file: '{error}'");
            JobFailure { is_final: error.is_final(&added.workload.files), ..JobFailure::for_now(cause) }
        })
    }

    fn note(
        &mut self,
        added: &AddedWorkload,
        new: &NewContainer,
        container: &PreparedContainer,
    ) -> Result<(), JobFailure> {
        let arguments = self.connector.create_arguments(new).map_err(|error| failure(&error))?;
        let record = Record::new(container, &added.workload, &arguments, &self.context.boot);
        self.connector.note_prepared(&added.instance, &record.text());
        Ok(())
    }

    // ----------------------------------------------------------------- remove

    fn remove(&mut self, removal: &Removal, folder: bool) -> Result<JobDone, JobFailure> {
        self.remove_containers(removal).map_err(|error| failure(&error))?;
        if folder {
            let agent_folder = &self.context.folder;
            let _ = std::fs::remove_file(notify_socket_path(agent_folder, &removal.instance)); // Mostly there is none.
            remove_folder(&agent_folder.join(removal.instance.folder()), &self.context.clock, REMOVAL_MAX);
        }
        Ok(JobDone::Removed)
    }

    /// It was never started, so there is nothing to stop.
    fn remove_containers(&mut self, removal: &Removal) -> Result<(), RuntimeError> {
        let mut ids: Vec<ContainerId> = removal.container.iter().cloned().collect();
        if removal.search {
            let found = match self.connector.find(&removal.instance, removal.workload.as_deref()) {
                Err(RuntimeError::NotInstalled(_)) => Vec::new(), // Then nothing was created.
                found => found?,
            };
            ids.extend(found.into_iter().filter(|id| removal.container.as_ref() != Some(id)));
        }
        ids.iter().try_for_each(|id| self.connector.delete_unused(id))
    }
}

/// Watches the calls of a job.
struct JobWatch<'a> {
    cancel: Option<&'a EventFd>,
    slot: Option<PreparationSlot>,
}

impl CallWatch for JobWatch<'_> {
    fn cancel_fd(&self) -> Option<BorrowedFd<'_>> {
        self.cancel.map(AsFd::as_fd)
    }

    fn next_progress(&self) -> Option<Duration> {
        self.slot.as_ref().map(|_| START_SLOT_MAX)
    }

    fn still_running(&mut self, age: Duration) {
        if age >= START_SLOT_MAX {
            self.slot = None;
        }
    }

    fn cleaning_up(&mut self) {
        self.slot = None;
    }
}

fn wrong_file(cause: String) -> JobFailure {
    JobFailure { is_final: true, ..JobFailure::for_now(format!("Failed to create workload file: '{cause}'")) }
}

fn failure(error: &RuntimeError) -> JobFailure {
    JobFailure {
        is_final: matches!(error, RuntimeError::Unsupported(_)),
        cancelled: *error == RuntimeError::Cancelled,
        search: matches!(error, RuntimeError::Cancelled | RuntimeError::TimedOut(_)),
        ..JobFailure::for_now(error.to_string())
    }
}
