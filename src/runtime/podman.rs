//! Containers through the `podman` command line.
//!
//! Thread: the caller's, see [`super::container_engine`]. Owns: nothing.

use super::container_engine::{ContainerConnector, ContainerEngine};
use super::container_list::EngineContainer;
use super::engine_cli::EngineCli;
use super::{CallWatch, ListedContainer, RuntimeError};

/// Name of the runtime in manifests, and of the program.
// [impl->swdd~podman-name-returns-podman~1]
pub const RUNTIME_NAME: &str = "podman";

/// Runs workloads with podman for one agent.
// [impl->swdd~podman-implements-runtime-connector~1]
// [impl->swdd~podman-uses-podman-cli~1]
pub type PodmanConnector = ContainerConnector<Podman>;

/// What is particular of podman.
#[derive(Debug, Clone)]
pub struct Podman;

impl ContainerEngine for Podman {
    const RUNTIME_NAME: &'static str = RUNTIME_NAME;
    const PROGRAM: &'static str = RUNTIME_NAME;
    const STOP: &'static [&'static str] = &["stop", "--ignore"];
    const REMOVE: &'static [&'static str] = &["rm", "--ignore"];
    const REMOVE_UNUSED: &'static [&'static str] = &["rm", "--ignore", "--volumes"];
    const IMAGE_EXISTS: &'static [&'static str] = &["image", "exists"];
    const STOP_TIMEOUT: &'static [&'static str] = &["container", "inspect", "--format={{.Config.StopTimeout}}"];

    fn listing(cli: &EngineCli, filter: &str, watch: &mut dyn CallWatch) -> Result<Vec<EngineContainer>, RuntimeError> {
        cli.containers(Some(filter), watch)
    }

    fn listed(entry: &EngineContainer, agent: &str) -> Option<ListedContainer> {
        entry.of_agent(agent)
    }
}

#[cfg(test)]
mod tests;
