//! What the next agent has to know of a prepared container to start it.
//!
//! Thread: `call:<name>` writes, `scheduler` reads when the agent starts. Owns: nothing; the
//! connector keeps the text.

use super::host_paths::HostPaths;
use crate::control_interface;
use crate::workload_files::file_paths;
use ankaios_model::messages::AddedWorkload;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::runtime_config::{EngineConfig, ReadConfig};
use ankaios_model::workload::Workload;
use ankaios_runtime::probes::prober::notify_socket_path;
use ankaios_runtime::{ContainerId, NewContainer, RuntimeConnector, RuntimeError};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io::Write as _;
use std::path::Path;

/// A container that was created and not started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PreparedContainer {
    pub(crate) id: ContainerId,
    /// `CREATE` or `INIT`.
    pub(crate) level: PrepareLevel,
    /// The host paths that its arguments name, as they were when it was created.
    pub(crate) paths: HostPaths,
}

/// The record of one container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// `None` while it is being created.
    container: Option<String>,
    level: String,
    /// The boot in which it was prepared: another one has nothing of what was initialised, and
    /// other devices.
    boot: String,
    /// Digest of the workload and of the arguments of the create.
    definition: String,
    paths: HostPaths,
}

impl Record {
    /// The record of a container that was created with `arguments` since this `boot`.
    pub(crate) fn new(
        container: &PreparedContainer,
        workload: &Workload,
        arguments: &[String],
        boot: &str,
    ) -> Self {
        Self {
            container: Some(container.id.0.to_string()),
            level: container.level.as_str().to_owned(),
            boot: boot.to_owned(),
            definition: definition(workload, arguments),
            paths: container.paths.clone(),
        }
    }

    /// The record of a create that has not ended: it may have made a container, which the next
    /// agent removes.
    pub(crate) fn of_create(boot: &str) -> Self {
        let (level, definition) = (PrepareLevel::None.as_str().to_owned(), String::new());
        Self {
            container: None,
            level,
            boot: boot.to_owned(),
            definition,
            paths: HostPaths::new(),
        }
    }

    /// The text to keep.
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() // Texts and numbers always can be written.
    }

    /// Reads a text that was kept; `None` for anything else.
    pub(crate) fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Whether it is, or may be, about this container.
    pub(crate) fn may_be_of(&self, id: &ContainerId) -> bool {
        self.container
            .as_ref()
            .is_none_or(|container| *container == *id.0)
    }

    /// The container as it was prepared, when that is what is wanted of it now.
    pub(crate) fn container(
        self,
        added: &AddedWorkload,
        agent_folder: &Path,
        connector: &dyn RuntimeConnector,
        boot: &str,
    ) -> Option<PreparedContainer> {
        let level =
            PrepareLevel::parse(&self.level).filter(|level| *level >= PrepareLevel::Create)?;
        let new = new_container(agent_folder, added).ok()?;
        let arguments = connector.create_arguments(&new).ok()?;
        let fits = self.boot == boot
            && !boot.is_empty()
            && self.definition == definition(&added.workload, &arguments);
        let id = ContainerId(self.container.filter(|_| fits)?.into());
        Some(PreparedContainer {
            id,
            level,
            paths: self.paths,
        })
    }
}

/// What an instance is created with, when its folders and files have been made.
pub(crate) fn new_container(
    agent_folder: &Path,
    AddedWorkload { instance, workload }: &AddedWorkload,
) -> Result<NewContainer, RuntimeError> {
    // [impl->swdd~agent-refuses-unreadable-workload~1]
    if let Some(why) = &workload.unreadable {
        return Err(RuntimeError::Unsupported(why.to_string()));
    }
    let folder = agent_folder.join(instance.folder());
    let has_interface = control_interface::is_wanted(&workload.control_interface_access);
    let config = workload.config();
    let notifies = config
        .usable_lifecycle()
        .is_some_and(|lifecycle| lifecycle.wants_notify());
    Ok(NewContainer {
        instance: instance.clone(),
        workload: workload.clone(),
        control_interface: has_interface.then(|| folder.join(control_interface::FOLDER)),
        files: file_paths(&folder.join("files"), &workload.files).map_err(|error| {
            RuntimeError::Unsupported(format!("Failed to create workload file: '{error}'"))
        })?,
        notify_socket: notifies.then(|| notify_socket_path(agent_folder, instance)),
        pid_file: keeps_pid(&config).then(|| folder.join("start/pid")),
    })
}

/// Whether the engine shall write the pid of the main process. It could not start again by itself,
/// after a boot for example, what has its file in a folder that is gone.
fn keeps_pid(config: &ReadConfig) -> bool {
    let Ok(EngineConfig::Container(container)) = &config.engine else {
        return false;
    };
    container.restart_option().is_none()
}

/// SHA-256 of all that a workload says, and of the arguments that follow from it.
fn definition(workload: &Workload, arguments: &[String]) -> String {
    let mut digest = Sha256::new();
    let _ = write!(digest, "{workload:?} {arguments:?}"); // It cannot fail.
    format!("{:x}", digest.finalize())
}

#[cfg(test)]
mod tests;
