//! A call of an engine that may take minutes: pull, create, init, run or start. The control loop
//! waits for it together with its other events.
//!
//! Thread: `call:<name>` for each call; it ends with the call. Takes: one step to make. Gives: its
//! result to the control loop (never waits).

use super::control_interface::pipes;
use super::images::{ImageUses, UseOutcome};
use super::workload::preparation::host_paths::{look, named_paths};
use super::workload::preparation::record::{PreparedContainer, PreparedRecord};
use super::workload_files::write_files;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::runtime_config::EngineConfig;
use ankaios_platform::logging::log_source;
use ankaios_platform::private_folder::PrivateFolder;
use ankaios_platform::sync::EventFd;
use ankaios_platform::threads;
use ankaios_runtime::exit_watch::main_process;
use ankaios_runtime::limits::STACK_WORKLOAD;
use ankaios_runtime::probes::prober::notify_socket;
use ankaios_runtime::{
    Cancel, ContainerId, MainProcess, NewContainer, RuntimeConnector, RuntimeError, containerd,
};
use log::{debug, error};
use rustix::fs::Mode;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for the facts of host paths before a container is created or initialised in
/// advance. No start waits for this, but meanwhile the preparation occupies a slot.
const PREPARING_PATHS_WAIT: Duration = Duration::from_secs(1);

/// Starts calls. Tests and simulations run them when they want.
pub(crate) type StartCall = Arc<dyn Fn(Box<ContainerCall>) -> io::Result<()> + Send + Sync>;

/// Runs each call on a thread of its own.
pub(crate) fn on_threads() -> StartCall {
    Arc::new(|call| {
        let name = format!("call:{}", call.new.instance.workload);
        threads::spawn(name, STACK_WORKLOAD, move || call.run())?;
        Ok(())
    })
}

/// The step of a start that a call does.
pub(crate) enum CallStep {
    /// Pulls the image.
    Image,
    /// Creates a container and does not start it.
    Create,
    /// Initialises this container: the whole start except its process.
    Init(PreparedContainer),
    /// Creates and starts a container.
    Run,
    /// Starts this prepared container.
    Start(ContainerId),
    /// Starts this ended container again.
    StartAgain(ContainerId),
}

impl CallStep {
    /// Whether it is the first step of a start that needs the files of the workload.
    fn begins(&self) -> bool {
        matches!(self, Self::Create | Self::Run | Self::StartAgain(_))
    }
}

/// The result of a call that succeeded.
#[derive(Debug)]
pub(crate) enum CallDone {
    /// The image is there.
    Image,
    /// This container is prepared.
    Prepared(PreparedContainer),
    /// This container was started, with its main process if that is known.
    Started(ContainerId, Option<MainProcess>),
}

/// The result of a call. `NotStarted`: the engine was not called.
pub(crate) type CallResult = Result<CallDone, RuntimeError>;

/// The values that all calls of an agent share.
#[derive(Debug, Clone)]
pub struct CallContext {
    /// The agent's folder below the run folder, absolute.
    pub folder: PathBuf,
    /// Identifies this boot of the node.
    pub boot: Arc<str>,
    /// Files of the node that podman copies into a container when it initialises it, and nerdctl
    /// when it creates it.
    pub copied: Arc<BTreeSet<String>>,
    /// Longest create; `None` has no limit.
    pub create_timeout: Option<Duration>,
    /// Where uses of images are noted; `None` when images are not cleaned up.
    pub images: Option<ImageUses>,
}

/// One call.
pub struct ContainerCall {
    pub(crate) step: CallStep,
    /// The container that it creates or starts.
    pub new: NewContainer,
    pub(crate) connector: Box<dyn RuntimeConnector>,
    pub(crate) context: CallContext,
    /// Readable when the call is cancelled; `None` when the system had no descriptor.
    pub cancel: Option<EventFd>,
    pub(crate) reply: Box<dyn FnOnce(CallResult) + Send>,
}

impl ContainerCall {
    /// Does the step, and reports its result to the control loop.
    pub fn run(mut self) {
        let _source = log_source(self.new.instance.workload.clone());
        let stop = self.cancel.take();
        let cancel = stop.as_ref().map(AsFd::as_fd);
        // First: begin the use of the image, and call the engine.
        let images = self.context.images.as_ref();
        let image_use = images.map(|images| images.begin(&self.new));
        self.make_pid_folder();
        let new = self.new.clone();
        let result = self.call(&new, cancel);
        // Then: end the use, before the result can cause the next call of the workload.
        if let Some(mut image_use) = image_use {
            image_use.outcome = match &result {
                Ok(CallDone::Started(..)) => UseOutcome::Started,
                Ok(CallDone::Image | CallDone::Prepared(_)) => UseOutcome::Prepared,
                Err(_) => UseOutcome::Failed,
            };
        }
        // Finally: the result.
        (self.reply)(result);
    }

    /// Writes the files of the workload if this is the first step, then calls the engine.
    fn call(&mut self, new: &NewContainer, cancel: Cancel<'_>) -> CallResult {
        if self.step.begins() {
            write_container_files(&self.context, new)?;
        }
        let limit = self.context.create_timeout;
        match &self.step {
            CallStep::Image => {
                self.connector.prepare_image(&new.workload, limit, cancel)?;
                Ok(CallDone::Image)
            }
            CallStep::Create => Ok(CallDone::Prepared(self.create(new, cancel)?)),
            CallStep::Init(container) => {
                let container = container.clone();
                Ok(CallDone::Prepared(self.init(container, new, cancel)?))
            }
            CallStep::Run => {
                let id = self.connector.create(new, limit, cancel)?;
                Ok(started(new, id))
            }
            CallStep::Start(id) | CallStep::StartAgain(id) => {
                let id = self.connector.start(id, new, limit, cancel)?;
                Ok(started(new, id))
            }
        }
    }

    /// Makes the folder of the pid file, empty at the first step of a start. If it cannot be made,
    /// the container starts without a pid file: the state checker then finds its process by a
    /// listing.
    fn make_pid_folder(&mut self) {
        let Some(path) = &self.new.pid_file else {
            return;
        };
        let Some(folder) = path.parent() else { return };
        let made = if self.step.begins() {
            empty_folder(folder)
        } else {
            PrivateFolder::open(folder).map(drop) // An `init` may have written the file already.
        };
        if let Err(error) = made {
            let name = &self.new.instance.workload;
            debug!(
                "Workload '{name}' is started without a pid file in '{}': '{error}'",
                folder.display()
            );
            self.new.pid_file = None;
        }
    }

    /// Creates a container in advance.
    fn create(
        &mut self,
        new: &NewContainer,
        cancel: Cancel<'_>,
    ) -> Result<PreparedContainer, RuntimeError> {
        self.make_folders(new)?;
        // First: the host paths whose changes would make the container outdated.
        let config = new.workload.config();
        let mut paths = match &config.engine {
            Ok(EngineConfig::Container(config)) => named_paths(config, new),
            _ => BTreeSet::new(),
        };
        if *new.workload.runtime == *containerd::RUNTIME_NAME {
            // It copies these files when it creates the container.
            paths.extend(self.context.copied.iter().cloned());
        }
        // Then: their facts. Before the create, so that a change during it is noticed as well.
        let paths = look(&paths, PREPARING_PATHS_WAIT)
            .map_err(|cause| RuntimeError::NotStarted(cause.into()))?;
        // Finally: the container. A record comes first, by which the next agent can remove the
        // container if this agent ends during the create.
        let under_way = PreparedRecord::of_create(&self.context.boot);
        self.connector
            .note_prepared(&new.instance, &under_way.text());
        let id = self
            .connector
            .create_only(new, self.context.create_timeout, cancel)?;
        let container = PreparedContainer {
            id,
            level: PrepareLevel::Create,
            paths,
        };
        self.note(new, &container)?;
        Ok(container)
    }

    /// Initialises a container that was created in advance. The engine copies files of the node
    /// into it, so their facts belong to it from then on.
    fn init(
        &mut self,
        mut container: PreparedContainer,
        new: &NewContainer,
        cancel: Cancel<'_>,
    ) -> Result<PreparedContainer, RuntimeError> {
        let copied = look(&self.context.copied, PREPARING_PATHS_WAIT)
            .map_err(|cause| RuntimeError::TimedOut(cause.into()))?;
        container.paths.extend(copied);
        self.connector
            .init(&container.id, new, self.context.create_timeout, cancel)?;
        container.level = PrepareLevel::Init;
        self.note(new, &container)?;
        Ok(container)
    }

    /// Makes the pipes and the socket that the container mounts. They are only used after its
    /// start.
    fn make_folders(&self, new: &NewContainer) -> Result<(), RuntimeError> {
        if let Some(folder) = &new.control_interface {
            pipes::create(folder, false).map_err(|error| {
                let text = format!("Failed to create control interface: '{error}'");
                RuntimeError::NotStarted(text.into())
            })?;
        }
        if let Some(path) = &new.notify_socket {
            // The socket is closed again, since no program writes to it before the start.
            notify_socket(path).map_err(|error| {
                let path = path.display();
                let text = format!("the notify socket '{path}' cannot be made: {error}");
                RuntimeError::NotStarted(text.into())
            })?;
        }
        Ok(())
    }

    /// Records the prepared container for the next agent.
    fn note(
        &mut self,
        new: &NewContainer,
        container: &PreparedContainer,
    ) -> Result<(), RuntimeError> {
        let arguments = self.connector.create_arguments(new)?;
        let record = PreparedRecord::new(container, &new.workload, &arguments, &self.context.boot);
        self.connector.note_prepared(&new.instance, &record.text());
        Ok(())
    }
}

/// Makes `folder` empty, and checks that it has space for a pid. A file of a failed start must go:
/// runc, for example, fails if its temporary file is there already.
fn empty_folder(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let made = PrivateFolder::open(folder)?;
    let test_file = Path::new("room");
    let written = made
        .write_anew(test_file, Mode::RUSR | Mode::WUSR)
        .and_then(|mut file| file.write_all(b"1234567890\n")); // Longer than any pid.
    fs::remove_file(folder.join(test_file))?;
    written
}

/// The result of a start, with the main process if the engine has written its pid.
fn started(new: &NewContainer, id: ContainerId) -> CallDone {
    let process = match &new.pid_file {
        Some(path) => main_process(path, &id),
        None => None,
    };
    CallDone::Started(id, process)
}

/// Writes the files that the container mounts.
///
/// # Errors
/// `Unsupported`: they can never be written. `NotStarted`: a retry may succeed.
fn write_container_files(context: &CallContext, new: &NewContainer) -> Result<(), RuntimeError> {
    let folder = context.folder.join(new.instance.folder()).join("files");
    let files = &new.workload.files;
    write_files(&folder, files).map_err(|error| {
        error!(
            "Failed to create workload files for workload '{}': '{error}'",
            new.instance
        );
        let cause = format!("Failed to create workload file: '{error}'");
        if error.is_final(files) {
            RuntimeError::Unsupported(cause)
        } else {
            RuntimeError::NotStarted(cause.into())
        }
    })
}
