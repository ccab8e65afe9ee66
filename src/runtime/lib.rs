//! The narrow waist to the container engines.
//!
//! Thread: the caller's: `call:<name>` for pull, create, init and start, `wl:<name>` for stop and
//! delete, `list:<runtime>` for listings.

#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod call_error;
mod command;
pub mod container_config;
pub mod container_engine;
pub mod container_list;
pub mod container_records;
pub mod containerd;
pub mod engine_children;
mod engine_cli;
pub mod engine_version;
pub mod exit_watch;
pub mod images;
pub mod limits;
pub mod log_reader;
mod masking;
mod out_of_memory;
pub mod podman;
pub mod podman_kube;
pub mod probes;
#[cfg(test)]
mod scripted_engine;

use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::messages::LogsRequest;
use ankaios_model::names::{InstanceName, has_name_characters};
use ankaios_model::workload::Workload;
pub use ankaios_platform::child::Cancel;
use call_error::{CallError, ErrorMeaning};
use images::{ImageRemoval, ImageStore};
use log_reader::LogCall;
pub use out_of_memory::OutOfMemory;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The engine's own name of a container: 64 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerId(pub Arc<str>);

impl ContainerId {
    /// An id that an engine printed; `None` if the text is no safe argument of a call, such as one
    /// that begins like an option.
    pub(crate) fn printed(text: &str) -> Option<Self> {
        let first = text.chars().next()?;
        if !first.is_ascii_alphanumeric() || !has_name_characters(text) {
            return None;
        }
        Some(Self(text.into()))
    }
}

/// A container that will be created.
#[derive(Debug, Clone)]
pub struct NewContainer {
    pub instance: InstanceName,
    pub workload: Arc<Workload>,
    /// Host folder with the FIFOs, if the workload has a control interface.
    pub control_interface: Option<PathBuf>,
    /// Host path and mount point of each file.
    pub files: Vec<(PathBuf, String)>,
    /// The socket that the workload notifies, if it does.
    pub notify_socket: Option<PathBuf>,
    /// The file to which the engine writes the pid of the main process, if it can. Its folder
    /// exists, and has no other files.
    pub pid_file: Option<PathBuf>,
}

/// The place to which probes of a workload are sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProbeTarget {
    /// The engine's program.
    pub program: &'static str,
    /// The container that commands run in.
    pub container: Option<String>,
    /// Its processes, whose network it has.
    pub processes: Vec<MainProcess>,
}

/// One container of this agent in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedContainer {
    pub id: ContainerId,
    /// The instance in its label.
    pub instance: InstanceName,
    /// Its state, as that of a workload.
    pub state: ExecutionState,
    /// Its main processes while they run: one of a container, one of each container of a pod.
    pub processes: Vec<MainProcess>,
    /// The time of its end, in seconds since 1970; `None` while it runs or if the engine does not
    /// print it. Clocks may be set, so it only distinguishes one end from another.
    pub ended_at: Option<u64>,
    /// Whether it belongs to a pod of the engine. The labels of such a container prove nothing, see
    /// [`container_records`].
    pub in_pod: bool,
    /// The containers of its pods if the workload consists of pods; `None` if it is one container.
    pub pods: Option<ListedPods>,
}

/// The progress of a container that was never started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeverStarted {
    Created,
    /// All steps of its start except the last are done.
    Initialised,
}

impl ListedContainer {
    /// The progress of a container that was never started, from the engine's word for its state.
    pub fn never_started(&self) -> Option<NeverStarted> {
        if self.state.phase != Phase::PendingStarting {
            return None;
        }
        match &*self.state.additional_info.to_ascii_lowercase() {
            "created" | "configured" => Some(NeverStarted::Created),
            "initialized" => Some(NeverStarted::Initialised),
            _ => None,
        }
    }
}

/// The containers of all pods of a workload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedPods {
    /// Each container that the engine lists.
    pub containers: Vec<ContainerId>,
    /// The container whose failure is the state of the workload, if that is a failure.
    pub failed: Option<ContainerId>,
}

/// The main process of a container as the engine lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MainProcess {
    pub container: ContainerId,
    /// It means something only if engine and agent share a pid namespace, see [`exit_watch`].
    pub pid: u32,
}

/// The failure of an engine call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeError {
    /// The workload can never run here: wrong configuration, unsupported feature. Not retried.
    #[error("{0}")]
    Unsupported(String),
    /// The engine's program does not exist, so nothing happened, and it has no containers.
    #[error("{0}")]
    NotInstalled(CallError),
    /// The engine's program could not be started, so nothing happened.
    #[error("{0}")]
    NotStarted(CallError),
    /// The engine failed.
    #[error("{0}")]
    Failed(CallError),
    /// The call did not end in time. Its effect may still happen.
    #[error("{0}")]
    TimedOut(CallError),
    /// The caller cancelled the call.
    #[error("cancelled")]
    Cancelled,
}

impl RuntimeError {
    /// The text without the call.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Unsupported(text) => text,
            Self::NotInstalled(error)
            | Self::NotStarted(error)
            | Self::Failed(error)
            | Self::TimedOut(error) => &error.text,
            Self::Cancelled => "cancelled",
        }
    }

    /// The cause for states, in one line of at most [`limits::ENGINE_REASON_MAX`] bytes.
    pub fn reason(&self) -> String {
        call_error::reason(self.text())
    }

    /// The meaning of the engine's error; [`ErrorMeaning::Failure`] if the error is not the
    /// engine's.
    pub(crate) fn meaning(&self) -> &ErrorMeaning {
        match self {
            Self::Failed(error) => &error.meaning,
            _ => &ErrorMeaning::Failure,
        }
    }

    /// Returns whether nothing happened: the engine's program was not, or could not be, started.
    pub fn means_not_started(&self) -> bool {
        matches!(
            self,
            Self::Unsupported(_) | Self::NotInstalled(_) | Self::NotStarted(_)
        )
    }

    /// Returns whether the call failed because its container does not exist.
    pub fn means_gone(&self) -> bool {
        *self.meaning() == ErrorMeaning::NoSuchContainer
    }

    /// Returns whether the same call fails each time: it can never work, or has an option that the
    /// engine does not know.
    pub fn is_final(&self) -> bool {
        match self.meaning() {
            ErrorMeaning::NoPidFileOption | ErrorMeaning::UnknownOption => true,
            _ => matches!(self, Self::Unsupported(_)),
        }
    }
}

/// One container engine. Each thread has its own connector; they share nothing but the engine.
// [impl->swdd~functions-required-by-runtime-connector~1]
// [impl->swdd~agent-general-runtime-state-getter-interface~1]
pub trait RuntimeConnector: Send {
    /// Creates and starts a container. It may pull an image, so the `limit` is the caller's
    /// (`create_timeout`).
    ///
    /// A call that fails may leave a container, which the caller removes. This applies to all calls
    /// that make or start one.
    ///
    /// # Errors
    /// `Unsupported` for a configuration that can never work, `Cancelled` by `cancel`. After any
    /// other error the create may be retried.
    fn create(
        &mut self,
        new: &NewContainer,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<ContainerId, RuntimeError>;

    /// Pulls the missing images of the workload, as [`Self::create`] would. `limit` bounds each
    /// call.
    ///
    /// # Errors
    /// As [`Self::create`]; `Failed` if an image is missing and its options forbid a pull.
    fn prepare_image(
        &mut self,
        workload: &Workload,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<(), RuntimeError>;

    /// The arguments of [`Self::create_only`].
    ///
    /// # Errors
    /// `Unsupported` for a configuration that can never work, and where the engine knows no such
    /// step.
    fn create_arguments(&self, _new: &NewContainer) -> Result<Vec<String>, RuntimeError> {
        Err(RuntimeError::Unsupported(
            "it can only be created and started at once".to_owned(),
        ))
    }

    /// Creates a container as [`Self::create`] does, for a later [`Self::start`].
    ///
    /// # Errors
    /// As [`Self::create`] and [`Self::create_arguments`].
    fn create_only(
        &mut self,
        new: &NewContainer,
        _limit: Option<Duration>,
        _cancel: Cancel<'_>,
    ) -> Result<ContainerId, RuntimeError> {
        Err(RuntimeError::Unsupported(format!(
            "'{}' can only be created and started at once",
            new.instance.workload
        )))
    }

    /// Does all steps of a start of the created container `id` of `new` except the last.
    ///
    /// # Errors
    /// As [`Self::create_only`].
    fn init(
        &mut self,
        _id: &ContainerId,
        _new: &NewContainer,
        _limit: Option<Duration>,
        _cancel: Cancel<'_>,
    ) -> Result<(), RuntimeError> {
        Err(RuntimeError::Unsupported(
            "it can only be created and started at once".to_owned(),
        ))
    }

    /// Returns whether an ended container can be started again. Otherwise it is deleted and created
    /// again.
    fn can_start_again(&self) -> bool {
        true
    }

    /// Starts the existing, ended container `id` of `new` again; same limits and errors as
    /// [`Self::create`].
    ///
    /// # Errors
    /// As [`Self::create`].
    fn start(
        &mut self,
        id: &ContainerId,
        new: &NewContainer,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<ContainerId, RuntimeError>;

    /// Stops and removes a container with its anonymous volumes. Already gone counts as done.
    /// Bounded by the container's own stop timeout and [`crate::limits::STOP_GRACE`], then 30 s for
    /// the removal.
    ///
    /// # Errors
    /// `TimedOut`: the container may still exist, so try again. `Failed`: the engine's own message.
    fn delete(&mut self, id: &ContainerId) -> Result<(), RuntimeError>;

    /// Stops a container with its stop signal and keeps it, within the limits of [`Self::delete`].
    /// An engine that cannot keep it deletes it.
    ///
    /// # Errors
    /// As [`Self::delete`].
    fn stop(&mut self, id: &ContainerId) -> Result<(), RuntimeError>;

    /// The target for probes of the workload behind `id`, with its processes or without.
    ///
    /// # Errors
    /// `Failed` or `TimedOut` when the engine could not be called.
    fn probe_target(
        &mut self,
        id: &ContainerId,
        with_processes: bool,
    ) -> Result<ProbeTarget, RuntimeError>;

    /// Describes how the ended instance behind `id` was killed for want of memory; `None` if it
    /// ended in another way.
    ///
    /// # Errors
    /// `Failed` or `TimedOut` when the engine could not be called.
    fn out_of_memory(
        &mut self,
        _instance: &InstanceName,
        _id: &ContainerId,
    ) -> Result<Option<OutOfMemory>, RuntimeError> {
        Ok(None)
    }

    /// Deletes a container that has ended or was never started. That needs fewer calls of the
    /// engine than [`Self::delete`].
    ///
    /// # Errors
    /// As [`Self::delete`].
    fn delete_ended(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.delete(id)
    }

    /// The containers labelled with exactly this instance, normally none or one. A container in a
    /// pod must be noted, or the `wanted` workload must have the option `--pod`.
    ///
    /// # Errors
    /// `Failed` or `TimedOut` when the engine could not be called.
    fn find(
        &mut self,
        instance: &InstanceName,
        wanted: Option<&Workload>,
    ) -> Result<Vec<ContainerId>, RuntimeError>;

    /// Notes for this and later agents that the container runs the instance. It is then no longer
    /// recorded as prepared.
    fn note(&mut self, _instance: &InstanceName, _id: &ContainerId) {}

    /// Returns whether the last note of the instance names this container.
    fn is_noted(&self, _instance: &InstanceName, _id: &ContainerId) -> bool {
        false
    }

    /// Returns whether `id` is known to have run the instance since the node booted.
    fn ran_in_this_boot(&self, _instance: &InstanceName, _id: &ContainerId) -> bool {
        false
    }

    /// Keeps a record of the prepared container of the instance for this and later agents.
    fn note_prepared(&mut self, _instance: &InstanceName, _record: &str) {}

    /// The last record of the prepared container of the instance.
    fn prepared_record(&self, _instance: &InstanceName) -> Option<String> {
        None
    }

    /// Keeps a record of the end of the instance's container, for later agents.
    fn note_end(&mut self, _instance: &InstanceName, _record: &str) {}

    /// The last record of the end of the instance's container.
    fn end_record(&self, _instance: &InstanceName) -> Option<String> {
        None
    }

    /// Removes the record of the end: the container will be started again, or deleted.
    fn forget_end(&mut self, _instance: &InstanceName) {}

    /// All containers of this agent, ended ones too. Entries that cannot be read are left out with
    /// a warning.
    ///
    /// # Errors
    /// `Failed` or `TimedOut` when the engine could not be called; its output makes no sense.
    fn list(&mut self) -> Result<Vec<ListedContainer>, RuntimeError>;

    /// The name and the version of the engine, for people; `None` when they are unknown.
    fn version(&mut self) -> Option<String> {
        None
    }

    /// The calls that print the logs of this instance's containers; none if it has no container.
    ///
    /// # Errors
    /// `Failed` or `TimedOut` when the engine could not be called.
    fn log_calls(
        &mut self,
        instance: &InstanceName,
        wanted: &LogsRequest,
    ) -> Result<Vec<LogCall>, RuntimeError>;

    /// The images of the engine's store, and those that containers use.
    ///
    /// # Errors
    /// `Failed` or `TimedOut` when the engine could not be called; its output makes no sense.
    fn image_store(&mut self) -> Result<ImageStore, RuntimeError> {
        Ok(ImageStore::default())
    }

    /// Removes one image, or one name of it; never forced. Already gone counts as done.
    ///
    /// # Errors
    /// As [`Self::image_store`]; `Failed` also when a container uses it.
    fn remove_image(&mut self, _removal: &ImageRemoval) -> Result<(), RuntimeError> {
        Err(RuntimeError::Unsupported("it has no images".to_owned()))
    }
}
