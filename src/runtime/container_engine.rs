//! What podman and nerdctl have in common: create, start, and cleaning up after a create or start that failed.
//!
//! Thread: the caller's: `wl:<name>` for create, start and delete, `watch:<engine>` for listings.
//! Owns: nothing; the engines keep the containers.

use super::command::{EngineCall, EngineOutput};
use super::container_config::container_config;
use super::engine_cli::EngineCli;
use super::log_reader::{LogCall, log_arguments};
use super::{
    CallWatch, ContainerId, ListedContainer, NewContainer, ProbeTarget, RuntimeConnector, RuntimeError, Unwatched,
};
use crate::model::messages::LogsRequest;
use crate::model::names::InstanceName;
use crate::model::workload::Workload;
use std::time::Duration;

/// Environment variable with the path of the socket that a workload notifies.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
/// Digits of a container id.
const ID_DIGITS: usize = 64;

/// What is different in the engines that run single containers from a `ContainerConfig`. Each one is a
/// [`RuntimeConnector`].
pub trait ContainerEngine: Send {
    /// Name of the runtime in manifests.
    fn runtime_name(&self) -> &'static str;

    /// Its command line.
    fn cli(&self) -> &EngineCli;

    /// As [`RuntimeConnector::find`]; `in_pods` says that the workload wants to be in a pod.
    ///
    /// # Errors
    /// See there.
    fn find_watched(
        &self,
        instance: &InstanceName,
        in_pods: bool,
        watch: &mut dyn CallWatch,
    ) -> Result<Vec<ContainerId>, RuntimeError>;

    /// As [`RuntimeConnector::stop`].
    ///
    /// # Errors
    /// See there.
    fn stop_watched(&self, id: &ContainerId, watch: &mut dyn CallWatch) -> Result<(), RuntimeError>;

    /// Removes a container that does not run. Already gone counts as done.
    ///
    /// # Errors
    /// When the engine could not do it.
    fn remove(&self, id: &ContainerId, watch: &mut dyn CallWatch) -> Result<(), RuntimeError>;

    /// As [`RuntimeConnector::list`].
    ///
    /// # Errors
    /// See there.
    fn list_all(&mut self) -> Result<Vec<ListedContainer>, RuntimeError>;
}

// [impl->swdd~podman-delete-workload-stops-and-removes-workload~1]
fn stop_and_remove<E: ContainerEngine>(
    engine: &E,
    id: &ContainerId,
    watch: &mut dyn CallWatch,
) -> Result<(), RuntimeError> {
    engine.stop_watched(id, watch)?;
    engine.remove(id, watch) // Even what was never started, which an engine may not know to stop.
}

impl<E: ContainerEngine> RuntimeConnector for E {
    fn create(
        &mut self,
        new: &NewContainer,
        limit: Option<Duration>,
        watch: &mut dyn CallWatch,
    ) -> Result<ContainerId, RuntimeError> {
        let config = container_config(new, self.runtime_name())?;
        let call = self.cli().change(config.run_arguments(new)?).shown_as(config.shown_run_arguments(new)?);
        run_or_clean_up(self, call.limit(limit), new, None, watch)
    }

    fn start(
        &mut self,
        id: &ContainerId,
        new: &NewContainer,
        limit: Option<Duration>,
        watch: &mut dyn CallWatch,
    ) -> Result<ContainerId, RuntimeError> {
        let config = container_config(new, self.runtime_name())?;
        let call = self.cli().change(config.start_arguments(&id.0)).shown_as(config.shown_start_arguments(&id.0));
        run_or_clean_up(self, call.limit(limit), new, Some(id), watch)
    }

    fn delete(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        stop_and_remove(self, id, &mut Unwatched)
    }

    fn stop(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.stop_watched(id, &mut Unwatched)
    }

    fn probe_target(&mut self, id: &ContainerId, with_processes: bool) -> Result<ProbeTarget, RuntimeError> {
        let listed = if with_processes { self.list_all()? } else { Vec::new() };
        let found = listed.into_iter().find(|found| found.id == *id);
        let processes = found.map(|found| found.processes).unwrap_or_default();
        Ok(ProbeTarget { program: self.cli().program(), container: Some(id.0.to_string()), processes })
    }

    /// The engine refuses to remove a container that somebody started again, which has to be stopped then.
    fn delete_ended(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.remove(id, &mut Unwatched).or_else(|error| match error {
            RuntimeError::Failed(_) => self.delete(id),
            other => Err(other),
        })
    }

    fn find(&mut self, instance: &InstanceName, wanted: Option<&Workload>) -> Result<Vec<ContainerId>, RuntimeError> {
        self.find_watched(instance, wanted.is_some_and(|workload| workload.config().joins_pod()), &mut Unwatched)
    }

    fn note(&mut self, instance: &InstanceName, id: &ContainerId) {
        self.cli().records().note(instance, id);
    }

    fn is_noted(&self, instance: &InstanceName, id: &ContainerId) -> bool {
        self.cli().records().has(instance, id)
    }

    fn list(&mut self) -> Result<Vec<ListedContainer>, RuntimeError> {
        self.list_all()
    }

    fn log_calls(&mut self, instance: &InstanceName, wanted: &LogsRequest) -> Result<Vec<LogCall>, RuntimeError> {
        let found = self.find(instance, None)?;
        let call = |id: &ContainerId| self.cli().log_call(log_arguments(wanted, &id.0), String::new());
        Ok(found.iter().map(call).collect())
    }
}

/// Runs a create or start; whatever a failed one has left is removed and the first error kept. Who cancels a create
/// removes what is there anyway, so a cancelled one ends at once.
fn run_or_clean_up<E: ContainerEngine>(
    engine: &E,
    call: EngineCall<'_>,
    new: &NewContainer,
    existing: Option<&ContainerId>,
    watch: &mut dyn CallWatch,
) -> Result<ContainerId, RuntimeError> {
    let socket = new.notify_socket.as_ref().map(|path| (NOTIFY_SOCKET, path.to_string_lossy().into_owned()));
    let result = call.variables(socket).run(watch);
    let in_pods = new.workload.config().joins_pod();
    result.and_then(|output| created_id(engine, output, &new.instance, in_pods)).map_err(|error| {
        if !matches!(error, RuntimeError::NotInstalled(_) | RuntimeError::NotStarted(_) | RuntimeError::Cancelled) {
            watch.cleaning_up();
            if clean_up(engine, (&new.instance, in_pods), existing, watch) == Err(Interrupted) {
                return RuntimeError::Cancelled;
            }
        }
        error
    })
}

/// The id that a successful `run` or `start` printed. An engine that printed something else is asked.
// [impl->swdd~podman-create-workload-returns-workload-id~1]
fn created_id<E: ContainerEngine>(
    engine: &E,
    output: EngineOutput,
    instance: &InstanceName,
    in_pods: bool,
) -> Result<ContainerId, RuntimeError> {
    let text = output.into_text();
    let id = text.as_ref().map(|text| text.trim()).unwrap_or_default();
    if id.len() == ID_DIGITS && id.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Ok(ContainerId(id.into()));
    }
    // That the engine cannot be asked must not read as if nothing had been created: the container may well exist.
    let found = engine.find_watched(instance, in_pods, &mut Unwatched).map_err(|error| match error {
        RuntimeError::NotInstalled(reason) | RuntimeError::NotStarted(reason) => RuntimeError::Failed(reason),
        other => other,
    })?;
    match found.as_slice() {
        [id] => Ok(id.clone()),
        found => {
            text?;
            let count = found.len();
            Err(RuntimeError::Failed(format!("Unexpected number of workloads: {count} containers after a create")))
        }
    }
}

/// The cleaning up was cancelled.
#[derive(Debug, PartialEq, Eq)]
struct Interrupted;

/// Removes the containers of a create or start that failed. They are found by label, since the user may have
/// named them differently, and a call that was ended half way printed no id.
// [impl->swdd~podman-create-workload-deletes-failed-container~1]
fn clean_up<E: ContainerEngine>(
    engine: &E,
    (instance, in_pods): (&InstanceName, bool),
    existing: Option<&ContainerId>,
    watch: &mut dyn CallWatch,
) -> Result<(), Interrupted> {
    let mut errors = Vec::new();
    let mut ids = engine.find_watched(instance, in_pods, watch).unwrap_or_else(|error| {
        errors.push(error);
        Vec::new()
    });
    if let Some(id) = existing
        && !ids.contains(id)
    {
        ids.push(id.clone());
    }
    for id in ids {
        if errors.contains(&RuntimeError::Cancelled) {
            return Err(Interrupted);
        }
        errors.extend(stop_and_remove(engine, &id, watch).err());
    }
    if errors.contains(&RuntimeError::Cancelled) {
        return Err(Interrupted);
    }
    for error in errors {
        log::warn!("Failed container cleanup after failed create. Error: '{error}'");
    }
    Ok(())
}
