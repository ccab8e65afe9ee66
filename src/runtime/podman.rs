//! Containers through the `podman` command line (spec/agent.md section 15).
//!
//! Thread: the caller's: `wl:<name>` for create, start and delete, `watch:podman` for listings.
//! Owns: nothing that outlives a call; the engine keeps the containers. Gives: ids, listings, [`RuntimeError`].

use super::container_config::{filter_by_agent, filter_by_name, strings};
use super::container_engine::ContainerEngine;
use super::engine_children::EngineChildren;
use super::engine_cli::EngineCli;
use super::{CallWatch, ContainerId, ListedContainer, RuntimeError};
use crate::limits::{CONTAINER_STOP_DEFAULT, LISTING_MAX, REMOVE_MAX, STOP_GRACE};
use crate::model::names::{InstanceName, Name};
use std::time::Duration;

/// Name of the runtime in manifests, and of the program.
// [impl->swdd~podman-name-returns-podman~1]
pub const RUNTIME_NAME: &str = "podman";

/// Runs workloads with podman for one agent.
// [impl->swdd~podman-implements-runtime-connector~1]
// [impl->swdd~podman-uses-podman-cli~1]
#[derive(Debug, Clone)]
pub struct PodmanConnector {
    cli: EngineCli,
    agent: Name,
    stop_limit: Duration,
    left_out: usize,
}

impl PodmanConnector {
    /// A connector for the containers of `agent`, which records its calls in `children`.
    #[must_use]
    pub fn new(agent: &str, children: EngineChildren) -> Self {
        Self {
            cli: EngineCli::new(RUNTIME_NAME, children),
            agent: agent.into(),
            stop_limit: CONTAINER_STOP_DEFAULT + STOP_GRACE,
            left_out: 0,
        }
    }

    /// Stops a container. It may take its own stop timeout, which only the engine knows: it comes from the
    /// workload's options or from the engine's configuration, maybe of an earlier agent. Nearly all stops end
    /// within the default, so the engine is asked only when one does not.
    fn stop(&self, id: &ContainerId, watch: &mut dyn CallWatch) -> Result<(), RuntimeError> {
        let call = self.cli.change(strings(&["stop", "--ignore", &id.0])).limit(self.stop_limit);
        let more_time = || self.stop_timeout(id)?.checked_sub(CONTAINER_STOP_DEFAULT).filter(|extra| !extra.is_zero());
        call.run_extended(watch, more_time).map(drop)
    }

    /// A paused container does not notice a stop, and podman 4 refuses it; so it has to go on first.
    fn stop_paused(
        &self,
        id: &ContainerId,
        refusal: RuntimeError,
        watch: &mut dyn CallWatch,
    ) -> Result<(), RuntimeError> {
        if !matches!(&refusal, RuntimeError::Failed(text) if text.contains("paused")) {
            return Err(refusal);
        }
        log::info!("container '{}' is paused, letting it go on to stop it", id.0);
        self.cli.change(strings(&["unpause", &id.0])).limit(LISTING_MAX).run(watch)?;
        self.stop(id, watch)
    }

    /// How long the container may take to stop; `None` when the engine does not say.
    fn stop_timeout(&self, id: &ContainerId) -> Option<Duration> {
        let answer = self.cli.ask(&["container", "inspect", "--format={{.Config.StopTimeout}}", &id.0]).ok()?;
        Some(Duration::from_secs(answer.trim().parse().ok()?))
    }
}

impl ContainerEngine for PodmanConnector {
    fn runtime_name(&self) -> &'static str {
        RUNTIME_NAME
    }

    fn cli(&self) -> &EngineCli {
        &self.cli
    }

    // [impl->swdd~podman-get-workload-id-uses-label~1]
    fn find_watched(
        &self,
        instance: &InstanceName,
        in_pods: bool,
        watch: &mut dyn CallWatch,
    ) -> Result<Vec<ContainerId>, RuntimeError> {
        let containers = self.cli.containers_watched(Some(&filter_by_name(instance)), watch)?;
        let named = containers.iter().filter(|container| container.is_of(instance));
        // A container of a pod may have the labels of its image.
        let ours = named.filter_map(|container| {
            let id = container.id()?;
            (in_pods || container.pod().is_none() || self.cli.records().has(instance, &id)).then_some(id)
        });
        Ok(ours.collect())
    }

    fn stop_watched(&self, id: &ContainerId, watch: &mut dyn CallWatch) -> Result<(), RuntimeError> {
        self.stop(id, watch).or_else(|refusal| self.stop_paused(id, refusal, watch))
    }

    fn remove(&self, id: &ContainerId, watch: &mut dyn CallWatch) -> Result<(), RuntimeError> {
        let removal = self.cli.change(strings(&["rm", "--ignore", &id.0])).limit(REMOVE_MAX);
        removal.run(watch).map(drop)
    }

    // [impl->swdd~podman-list-of-existing-workloads-uses-labels~1]
    // [impl->swdd~podman-implements-runtime-state-getter~1]
    // [impl->swdd~podman-state-getter-uses-podmancli~1]
    fn list_all(&mut self) -> Result<Vec<ListedContainer>, RuntimeError> {
        let entries = self.cli.containers(Some(&filter_by_agent(&self.agent)))?;
        let listed: Vec<_> = entries.iter().filter_map(|entry| entry.of_agent(&self.agent)).collect();
        let left_out = entries.len() - listed.len();
        if left_out != self.left_out {
            // Said when the number changes, not once per listing.
            log::warn!("'{left_out}' containers with the label of agent '{}' have no valid name label", self.agent);
            self.left_out = left_out;
        }
        Ok(listed)
    }
}

#[cfg(test)]
mod tests;
