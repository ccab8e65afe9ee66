//! The record of a prepared container, with which the next agent can start it.
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
pub(crate) struct PreparedRecord {
    /// `None` while it is being created.
    container: Option<String>,
    level: String,
    /// The boot in which the container was prepared. After another boot nothing is initialised, and
    /// devices may have changed.
    boot: String,
    /// Digest of the workload and of the arguments of the create.
    definition: String,
    paths: HostPaths,
}

impl PreparedRecord {
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

    /// The record of a create that is under way. If this agent ends before the create does, the
    /// next agent removes the container that the create may have made.
    pub(crate) fn of_create(boot: &str) -> Self {
        Self {
            container: None,
            level: PrepareLevel::None.as_str().to_owned(),
            boot: boot.to_owned(),
            definition: String::new(),
            paths: HostPaths::new(),
        }
    }

    /// The text to keep.
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() // Texts and numbers always can be written.
    }

    /// Reads a text that was kept; `None` for any other text.
    pub(crate) fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Whether this container may be the recorded one.
    pub(crate) fn may_be_of(&self, id: &ContainerId) -> bool {
        match &self.container {
            Some(container) => **container == *id.0,
            None => true, // The create had not ended.
        }
    }

    /// Returns the prepared container if it can still be started: its create had ended, the node
    /// has not booted since, and a create now would make the same container.
    pub(crate) fn container(
        self,
        added: &AddedWorkload,
        agent_folder: &Path,
        connector: &dyn RuntimeConnector,
        boot: &str,
    ) -> Option<PreparedContainer> {
        // First, its create has to have ended, in this boot. An empty `boot` is unknown, so it may
        // be another one.
        let level = PrepareLevel::parse(&self.level)?;
        if level < PrepareLevel::Create || self.boot != boot || boot.is_empty() {
            return None;
        }
        // Then, a create now has to make the same container. If none is possible, the workload has
        // changed since.
        let new = new_container(agent_folder, added).ok()?;
        let arguments = connector.create_arguments(&new).ok()?;
        if self.definition != definition(&added.workload, &arguments) {
            return None;
        }
        Some(PreparedContainer {
            id: ContainerId(self.container?.into()),
            level,
            paths: self.paths,
        })
    }
}

/// Returns the container to create for an instance. Its folders and files are made later.
pub(crate) fn new_container(
    agent_folder: &Path,
    AddedWorkload { instance, workload }: &AddedWorkload,
) -> Result<NewContainer, RuntimeError> {
    // [impl->swdd~agent-refuses-unreadable-workload~1]
    if let Some(why) = &workload.unreadable {
        return Err(RuntimeError::Unsupported(why.to_string()));
    }
    let folder = agent_folder.join(instance.folder());
    let config = workload.config();
    let files = file_paths(&folder.join("files"), &workload.files).map_err(|error| {
        RuntimeError::Unsupported(format!("Failed to create workload file: '{error}'"))
    })?;
    let mut new = NewContainer {
        instance: instance.clone(),
        workload: workload.clone(),
        control_interface: None,
        files,
        notify_socket: None,
        pid_file: None,
    };
    if control_interface::is_needed(&workload.control_interface_access) {
        new.control_interface = Some(folder.join(control_interface::FOLDER));
    }
    if let Some(lifecycle) = config.usable_lifecycle()
        && lifecycle.wants_notify()
    {
        new.notify_socket = Some(notify_socket_path(agent_folder, instance));
    }
    if keeps_pid(&config) {
        new.pid_file = Some(folder.join("start/pid"));
    }
    Ok(new)
}

/// Whether the engine must write the pid of the main process to a file. Not if it restarts the
/// container by itself: after a boot the folder of the file is gone, so that start would fail.
fn keeps_pid(config: &ReadConfig) -> bool {
    let Ok(EngineConfig::Container(container)) = &config.engine else {
        return false;
    };
    container.restart_option().is_none()
}

/// SHA-256 of the definition of a workload, and of the arguments that follow from it.
fn definition(workload: &Workload, arguments: &[String]) -> String {
    let mut digest = Sha256::new();
    let _ = write!(digest, "{workload:?} {arguments:?}"); // It cannot fail.
    format!("{:x}", digest.finalize())
}

#[cfg(test)]
mod tests;
