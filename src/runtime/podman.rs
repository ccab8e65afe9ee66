//! Containers through the `podman` command line (spec/agent.md section 15).
//!
//! Thread: the caller's: `wl:<name>` for create, start and delete, `watch:podman` for listings.
//! Owns: nothing that outlives a call; the engine keeps the containers. Gives: ids, listings, [`RuntimeError`].

use super::command::{CallError, EngineCall, EngineOutput};
use super::container_config::{ContainerConfig, filter_by_agent, filter_by_name};
use super::container_list::{self, EngineContainer};
use super::engine_children::EngineChildren;
use super::{CallWatch, ContainerId, ListedContainer, NewContainer, RuntimeConnector, RuntimeError, Unwatched};
use crate::limits::{CONTAINER_STOP_DEFAULT, LISTING_MAX, REMOVE_MAX, STOP_GRACE};
use crate::model::names::{InstanceName, Name};
use std::time::Duration;

/// Name of the runtime in manifests.
// [impl->swdd~podman-name-returns-podman~1]
pub const RUNTIME_NAME: &str = "podman";
/// Digits of a container id.
const ID_DIGITS: usize = 64;

/// Runs workloads with podman for one agent.
// [impl->swdd~podman-implements-runtime-connector~1]
// [impl->swdd~podman-uses-podman-cli~1]
#[derive(Debug, Clone)]
pub struct PodmanConnector {
    program: String,
    agent: Name,
    children: EngineChildren,
    stop_limit: Duration,
    left_out: usize,
}

impl PodmanConnector {
    /// A connector for the containers of `agent`, which records its calls in `children`.
    #[must_use]
    pub fn new(agent: &str, children: EngineChildren) -> Self {
        let stop_limit = CONTAINER_STOP_DEFAULT + STOP_GRACE;
        Self { program: RUNTIME_NAME.to_owned(), agent: agent.into(), children, stop_limit, left_out: 0 }
    }

    /// A call that changes nothing.
    fn ask(&self, arguments: &[&str]) -> Result<String, CallError> {
        EngineCall::new(&self.program, self::arguments(arguments)).limit(LISTING_MAX).run(&mut Unwatched)?.into_text()
    }

    /// A call that changes something, and is recorded for the next agent.
    fn change(&self, arguments: Vec<String>) -> EngineCall<'_> {
        EngineCall::new(&self.program, arguments).recorded(&self.children)
    }

    fn list_with(&self, filter: &str) -> Result<Vec<EngineContainer>, CallError> {
        let arguments = ["ps", "--all", "--filter", filter, "--format=json"];
        container_list::parse(&self.ask(&arguments)?).map_err(|error| {
            let arguments = arguments.map(|argument| format!(" \"{argument}\"")).concat();
            CallError::Failed(format!("{error}. Execution of '{}{arguments}'", self.program))
        })
    }

    fn find_all(&self, instance: &InstanceName) -> Result<Vec<ContainerId>, CallError> {
        let containers = self.list_with(&filter_by_name(instance))?;
        Ok(containers.iter().filter(|container| container.is_of(instance)).filter_map(EngineContainer::id).collect())
    }

    /// The id that a successful `run` or `start` printed. An engine that printed something else is asked.
    // [impl->swdd~podman-create-workload-returns-workload-id~1]
    fn created_id(&self, output: EngineOutput, instance: &InstanceName) -> Result<ContainerId, CallError> {
        let text = output.into_text()?;
        let id = text.trim();
        if id.len() == ID_DIGITS && id.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Ok(ContainerId(id.into()));
        }
        match self.find_all(instance)?.as_slice() {
            [id] => Ok(id.clone()),
            found => Err(CallError::Failed(format!(
                "Unexpected number of workloads: {} containers after a create",
                found.len()
            ))),
        }
    }

    /// Runs a create or start; whatever a failed one has left is removed and the first error kept.
    fn run_or_clean_up(
        &self,
        arguments: Vec<String>,
        new: &NewContainer,
        existing: Option<&ContainerId>,
        limit: Option<Duration>,
        watch: &mut dyn CallWatch,
    ) -> Result<ContainerId, RuntimeError> {
        let result = self.change(arguments).limit(limit).run(watch);
        result.and_then(|output| self.created_id(output, &new.instance)).map_err(|error| {
            if !matches!(error, CallError::NotStarted(_)) {
                self.clean_up(&new.instance, existing);
            }
            error.into()
        })
    }

    /// Removes the containers of a create or start that failed. They are found by label, since the user may have
    /// named them differently, and a call that was ended half way printed no id.
    // [impl->swdd~podman-create-workload-deletes-failed-container~1]
    fn clean_up(&self, instance: &InstanceName, existing: Option<&ContainerId>) {
        let mut errors = Vec::new();
        let mut ids = self.find_all(instance).unwrap_or_else(|error| {
            errors.push(RuntimeError::from(error));
            Vec::new()
        });
        if let Some(id) = existing
            && !ids.contains(id)
        {
            ids.push(id.clone());
        }
        errors.extend(ids.iter().filter_map(|id| self.stop_and_remove(id).err()));
        for error in errors {
            log::warn!("Failed container cleanup after failed create. Error: '{error}'");
        }
    }

    // [impl->swdd~podman-delete-workload-stops-and-removes-workload~1]
    fn stop_and_remove(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.stop(id).or_else(|error| self.stop_paused(id, error))?;
        self.change(arguments(&["rm", "--ignore", &id.0])).limit(REMOVE_MAX).run(&mut Unwatched)?;
        Ok(())
    }

    /// Stops a container. It may take its own stop timeout, which only the engine knows: it comes from the
    /// workload's options or from the engine's configuration, maybe of an earlier agent. Nearly all stops end
    /// within the default, so the engine is asked only when one does not.
    fn stop(&self, id: &ContainerId) -> Result<(), CallError> {
        let call = self.change(arguments(&["stop", "--ignore", &id.0])).limit(self.stop_limit);
        let more_time = || self.stop_timeout(id)?.checked_sub(CONTAINER_STOP_DEFAULT).filter(|extra| !extra.is_zero());
        call.run_extended(&mut Unwatched, more_time).map(drop)
    }

    /// A paused container does not notice a stop, and podman 4 refuses it; so it has to go on first.
    fn stop_paused(&self, id: &ContainerId, refusal: CallError) -> Result<(), CallError> {
        if !matches!(&refusal, CallError::Failed(text) if text.contains("paused")) {
            return Err(refusal);
        }
        log::info!("container '{}' is paused, letting it go on to stop it", id.0);
        self.change(arguments(&["unpause", &id.0])).limit(LISTING_MAX).run(&mut Unwatched)?;
        self.stop(id)
    }

    /// How long the container may take to stop; `None` when the engine does not say.
    fn stop_timeout(&self, id: &ContainerId) -> Option<Duration> {
        let answer = self.ask(&["container", "inspect", "--format={{.Config.StopTimeout}}", &id.0]).ok()?;
        Some(Duration::from_secs(answer.trim().parse().ok()?))
    }
}

impl RuntimeConnector for PodmanConnector {
    fn create(
        &mut self,
        new: &NewContainer,
        limit: Option<Duration>,
        watch: &mut dyn CallWatch,
    ) -> Result<ContainerId, RuntimeError> {
        let config = ContainerConfig::of(new, RUNTIME_NAME)?;
        self.run_or_clean_up(config.run_arguments(new), new, None, limit, watch)
    }

    fn start(
        &mut self,
        id: &ContainerId,
        new: &NewContainer,
        limit: Option<Duration>,
        watch: &mut dyn CallWatch,
    ) -> Result<ContainerId, RuntimeError> {
        let config = ContainerConfig::of(new, RUNTIME_NAME)?;
        self.run_or_clean_up(config.start_arguments(&id.0), new, Some(id), limit, watch)
    }

    fn delete(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.stop_and_remove(id)
    }

    // [impl->swdd~podman-get-workload-id-uses-label~1]
    fn find(&mut self, instance: &InstanceName) -> Result<Vec<ContainerId>, RuntimeError> {
        Ok(self.find_all(instance)?)
    }

    // [impl->swdd~podman-list-of-existing-workloads-uses-labels~1]
    // [impl->swdd~podmancli-container-state-cache-all-containers~1]
    // [impl->swdd~podman-implements-runtime-state-getter~1]
    // [impl->swdd~podman-state-getter-uses-podmancli~1]
    fn list(&mut self) -> Result<Vec<ListedContainer>, RuntimeError> {
        let entries = self.list_with(&filter_by_agent(&self.agent))?;
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

fn arguments(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[cfg(test)]
mod tests;
