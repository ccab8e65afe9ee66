//! One container per workload, through podman or nerdctl. The engines differ in what [`ContainerEngine`] defines.
//!
//! Thread: the caller's: `wl:<name>` for create, start and delete, `list:<engine>` for listings.
//! Owns: nothing that outlives a call; the engines keep the containers. Gives: ids, listings, [`RuntimeError`].

use super::command::{EngineCall, EngineOutput};
use super::container_config::{config_of, container_config, filter_by_agent, filter_by_name, strings};
use super::container_list::EngineContainer;
use super::engine_children::EngineChildren;
use super::engine_cli::EngineCli;
use super::images::pull_missing;
use super::log_reader::{LogCall, log_arguments};
use super::{
    CallSequence, CallWatch, ContainerId, ListedContainer, NewContainer, ProbeTarget, RuntimeConnector, RuntimeError,
    Unwatched,
};
use crate::limits::{CONTAINER_STOP_DEFAULT, LISTING_MAX, REMOVE_MAX, STOP_GRACE};
use crate::model::messages::LogsRequest;
use crate::model::names::{InstanceName, Name};
use crate::model::runtime_config::ContainerConfig;
use crate::model::workload::Workload;
use std::marker::PhantomData;
use std::time::Duration;

/// Environment variable with the path of the socket that a workload notifies.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
/// What an engine says that cannot write the pid.
const NO_PID_FILE: &str = "unknown flag: --pidfile";
/// Digits of a container id.
const ID_DIGITS: usize = 64;

/// What is different in an engine.
pub trait ContainerEngine: Send {
    /// Name of the runtime in manifests.
    const RUNTIME_NAME: &'static str;
    /// Its program.
    const PROGRAM: &'static str;
    /// The call that stops a container, without its id.
    const STOP: &'static [&'static str];
    /// The call that removes a container, without its id.
    const REMOVE: &'static [&'static str];
    /// The same for one that was never started: with its anonymous volumes, which hold nothing.
    const REMOVE_UNUSED: &'static [&'static str];
    /// The call that prints how long a container may take to stop, without its id.
    const STOP_TIMEOUT: &'static [&'static str];
    /// The call that fails when an image is missing, without its name.
    const IMAGE_EXISTS: &'static [&'static str];

    /// The containers that match `filter`, ended ones too.
    ///
    /// # Errors
    /// `Failed` or `TimedOut` when the engine could not be called; `Cancelled` by `watch`.
    fn listing(cli: &EngineCli, filter: &str, watch: &mut dyn CallWatch) -> Result<Vec<EngineContainer>, RuntimeError>;

    /// The entry as a container of `agent`; `None` when it is not its, or cannot be read.
    fn listed(entry: &EngineContainer, agent: &str) -> Option<ListedContainer>;
}

/// Runs workloads with the engine `E` for one agent.
#[derive(Debug, Clone)]
pub struct ContainerConnector<E> {
    pub(super) cli: EngineCli,
    agent: Name,
    pub(super) stop_limit: Duration,
    left_out: usize,
    engine: PhantomData<E>,
}

impl<E: ContainerEngine> ContainerConnector<E> {
    /// A connector for the containers of `agent`, which records its calls in `children`.
    #[must_use]
    pub fn new(agent: &str, children: EngineChildren) -> Self {
        Self {
            cli: EngineCli::new(E::PROGRAM, children),
            agent: agent.into(),
            stop_limit: CONTAINER_STOP_DEFAULT + STOP_GRACE,
            left_out: 0,
            engine: PhantomData,
        }
    }

    /// As [`RuntimeConnector::find`]; `in_pods` is set when the workload wants to be in a pod.
    // [impl->swdd~podman-get-workload-id-uses-label~1]
    fn find_watched(
        &self,
        instance: &InstanceName,
        in_pods: bool,
        watch: &mut dyn CallWatch,
    ) -> Result<Vec<ContainerId>, RuntimeError> {
        let containers = E::listing(&self.cli, &filter_by_name(instance), watch)?;
        let named = containers.iter().filter(|container| container.is_of(instance));
        // A container of a pod may have the labels of its image.
        let ours = named.filter_map(|container| {
            let id = container.id()?;
            (in_pods || container.pod().is_none() || self.cli.records().has(instance, &id)).then_some(id)
        });
        Ok(ours.collect())
    }

    /// Stops a container, also a paused one: it does not notice a stop, and podman 4 refuses it, so it is continued first.
    fn stop_watched(&self, id: &ContainerId, watch: &mut dyn CallWatch) -> Result<(), RuntimeError> {
        match self.stop_once(id, watch) {
            Err(RuntimeError::Failed(text)) if text.contains("paused") => {
                log::info!("container '{}' is paused and continued to be stopped", id.0);
                self.change(&["unpause"], id).limit(LISTING_MAX).run(watch)?;
                self.stop_once(id, watch)
            }
            result => result,
        }
    }

    /// The container may take its own stop timeout, which only the engine has: it comes from the workload's options or
    /// from the engine's configuration, maybe of an earlier agent. Nearly all stops end within the default, so the engine
    /// is queried only when one does not.
    fn stop_once(&self, id: &ContainerId, watch: &mut dyn CallWatch) -> Result<(), RuntimeError> {
        let stop_timeout = || -> Option<Duration> {
            let printed = self.cli.query(&[E::STOP_TIMEOUT, &[&id.0]].concat()).ok()?;
            Some(Duration::from_secs(printed.trim().parse().ok()?))
        };
        let more_time = || stop_timeout()?.checked_sub(CONTAINER_STOP_DEFAULT).filter(|extra| !extra.is_zero());
        gone_is_fine(self.change(E::STOP, id).limit(self.stop_limit).run_extended(watch, more_time).map(drop))
    }

    /// Removes a container that does not run, with one of the calls for that. Already gone counts as done.
    fn remove(&self, call: &[&str], id: &ContainerId, watch: &mut dyn CallWatch) -> Result<(), RuntimeError> {
        gone_is_fine(self.change(call, id).limit(REMOVE_MAX).run(watch).map(drop))
    }

    // [impl->swdd~podman-delete-workload-stops-and-removes-workload~1]
    fn stop_and_remove(&self, call: &[&str], id: &ContainerId, watch: &mut dyn CallWatch) -> Result<(), RuntimeError> {
        self.stop_watched(id, watch)?;
        self.remove(call, id, watch) // Even what was never started, which an engine may not be able to stop.
    }

    /// Removes what was seen not to run. The engine refuses it for a container that was started again meanwhile, which has
    /// to be stopped then.
    fn remove_or_stop(&self, call: &[&str], id: &ContainerId) -> Result<(), RuntimeError> {
        self.remove(call, id, &mut Unwatched).or_else(|error| match error {
            RuntimeError::Failed(_) => self.stop_and_remove(call, id, &mut Unwatched),
            other => Err(other),
        })
    }

    fn change(&self, call: &[&str], id: &ContainerId) -> EngineCall<'_> {
        self.cli.change(strings(&[call, &[&id.0]].concat()))
    }

    /// Runs a create or start; whatever a failed one has left is removed, as `remove` says, and the first error kept. Who
    /// cancels a create removes what is there anyway, so a cancelled one ends at once.
    fn run_or_clean_up(
        &self,
        call: EngineCall<'_>,
        new: &NewContainer,
        (existing, remove): (Option<&ContainerId>, &[&str]),
        watch: &mut dyn CallWatch,
    ) -> Result<ContainerId, RuntimeError> {
        let socket = new.notify_socket.as_ref().map(|path| (NOTIFY_SOCKET, path.to_string_lossy().into_owned()));
        let in_pods = new.workload.config().joins_pod();
        let result = call.variables(socket).run(watch);
        result.and_then(|output| self.created_id(output, &new.instance, in_pods)).map_err(|error| {
            if !matches!(error, RuntimeError::NotInstalled(_) | RuntimeError::NotStarted(_) | RuntimeError::Cancelled) {
                watch.cleaning_up();
                if self.clean_up((&new.instance, in_pods), (existing, remove), watch) == Err(Interrupted) {
                    return RuntimeError::Cancelled;
                }
            }
            error
        })
    }

    /// Makes a call that changes an existing container of `new`, as [`Self::run_or_clean_up`].
    fn call_container(
        &self,
        (verb, remove): (&str, &[&str]),
        id: &ContainerId,
        new: &NewContainer,
        limit: Option<Duration>,
        watch: &mut dyn CallWatch,
    ) -> Result<ContainerId, RuntimeError> {
        let config = container_config(new, E::RUNTIME_NAME)?;
        let shown = config.shown(|config| Ok(config.call_arguments(verb, &id.0)))?;
        let call = self.cli.change(config.call_arguments(verb, &id.0)).shown_as(shown);
        self.run_or_clean_up(call.limit(limit), new, (Some(id), remove), watch)
    }

    /// Makes a container, started or not, as `arguments` say. What a failed one has left is removed as `remove` says.
    fn make(
        &self,
        arguments: impl Fn(&ContainerConfig, &NewContainer) -> Result<Vec<String>, RuntimeError>,
        remove: &[&str],
        new: &NewContainer,
        limit: Option<Duration>,
        watch: &mut dyn CallWatch,
    ) -> Result<ContainerId, RuntimeError> {
        let config = container_config(new, E::RUNTIME_NAME)?;
        let shown = config.shown(|config| arguments(config, new))?;
        let call = self.cli.change(arguments(&config, new)?).shown_as(shown);
        match self.run_or_clean_up(call.limit(limit), new, (None, remove), watch) {
            // A remote client for example.
            Err(RuntimeError::Failed(text)) if new.pid_file.is_some() && text.contains(NO_PID_FILE) => {
                self.make(arguments, remove, &without_pid_file(new), limit, watch)
            }
            result => result,
        }
    }

    /// The id that a successful `run` or `start` printed. Where something else was printed it is looked up.
    // [impl->swdd~podman-create-workload-returns-workload-id~1]
    fn created_id(
        &self,
        output: EngineOutput,
        instance: &InstanceName,
        in_pods: bool,
    ) -> Result<ContainerId, RuntimeError> {
        let text = output.into_text();
        let id = text.as_ref().map(|text| text.trim()).unwrap_or_default();
        if id.len() == ID_DIGITS && id.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Ok(ContainerId(id.into()));
        }
        // A failed call must not read as if nothing had been created: the container may well exist.
        let found = self.find_watched(instance, in_pods, &mut Unwatched).map_err(|error| match error {
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

    /// Removes the containers of a create or start that failed. They are found by label, since the user may have
    /// named them differently, and a call that was ended half way printed no id.
    // [impl->swdd~podman-create-workload-deletes-failed-container~1]
    fn clean_up(
        &self,
        (instance, in_pods): (&InstanceName, bool),
        (existing, remove): (Option<&ContainerId>, &[&str]),
        watch: &mut dyn CallWatch,
    ) -> Result<(), Interrupted> {
        let mut errors = Vec::new();
        let mut ids = self.find_watched(instance, in_pods, watch).unwrap_or_else(|error| {
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
            errors.extend(self.stop_and_remove(remove, &id, watch).err());
        }
        if errors.contains(&RuntimeError::Cancelled) {
            return Err(Interrupted);
        }
        for error in errors {
            log::warn!("Failed container cleanup after failed create. Error: '{error}'");
        }
        Ok(())
    }
}

/// The cleaning up was cancelled.
#[derive(Debug, PartialEq, Eq)]
struct Interrupted;

impl<E: ContainerEngine> RuntimeConnector for ContainerConnector<E> {
    fn create(
        &mut self,
        new: &NewContainer,
        limit: Option<Duration>,
        watch: &mut dyn CallWatch,
    ) -> Result<ContainerId, RuntimeError> {
        self.make(ContainerConfig::run_arguments, E::REMOVE, new, limit, watch)
    }

    fn prepare_image(
        &mut self,
        workload: &Workload,
        limit: Option<Duration>,
        watch: &mut dyn CallWatch,
    ) -> Result<(), RuntimeError> {
        let config = config_of(workload, E::RUNTIME_NAME)?;
        pull_missing(&self.cli, &config, E::IMAGE_EXISTS, limit, &mut CallSequence::new(watch))
    }

    fn create_arguments(&self, new: &NewContainer) -> Result<Vec<String>, RuntimeError> {
        container_config(new, E::RUNTIME_NAME)?.create_arguments(&without_pid_file(new))
    }

    fn create_only(
        &mut self,
        new: &NewContainer,
        limit: Option<Duration>,
        watch: &mut dyn CallWatch,
    ) -> Result<ContainerId, RuntimeError> {
        self.make(ContainerConfig::create_arguments, E::REMOVE_UNUSED, new, limit, watch)
    }

    fn init(
        &mut self,
        id: &ContainerId,
        new: &NewContainer,
        limit: Option<Duration>,
        watch: &mut dyn CallWatch,
    ) -> Result<(), RuntimeError> {
        self.call_container(("init", E::REMOVE_UNUSED), id, new, limit, watch).map(drop)
    }

    fn start(
        &mut self,
        id: &ContainerId,
        new: &NewContainer,
        limit: Option<Duration>,
        watch: &mut dyn CallWatch,
    ) -> Result<ContainerId, RuntimeError> {
        self.call_container(("start", E::REMOVE), id, new, limit, watch)
    }

    fn delete(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.stop_and_remove(E::REMOVE, id, &mut Unwatched)
    }

    fn stop(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.stop_watched(id, &mut Unwatched)
    }

    fn probe_target(&mut self, id: &ContainerId, with_processes: bool) -> Result<ProbeTarget, RuntimeError> {
        let listed = if with_processes { self.list()? } else { Vec::new() };
        let found = listed.into_iter().find(|found| found.id == *id);
        let processes = found.map(|found| found.processes).unwrap_or_default();
        Ok(ProbeTarget { program: self.cli.program(), container: Some(id.0.to_string()), processes })
    }

    fn delete_ended(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.remove_or_stop(E::REMOVE, id)
    }

    fn delete_unused(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.remove_or_stop(E::REMOVE_UNUSED, id)
    }

    fn find(&mut self, instance: &InstanceName, wanted: Option<&Workload>) -> Result<Vec<ContainerId>, RuntimeError> {
        let in_pods = wanted.is_some_and(|workload| workload.config().joins_pod());
        self.find_watched(instance, in_pods, &mut Unwatched)
    }

    fn note(&mut self, instance: &InstanceName, id: &ContainerId) {
        self.cli.records().note(instance, id);
    }

    fn is_noted(&self, instance: &InstanceName, id: &ContainerId) -> bool {
        self.cli.records().has(instance, id)
    }

    fn note_prepared(&mut self, instance: &InstanceName, record: &str) {
        self.cli.records().note_prepared(instance, record);
    }

    fn prepared_record(&self, instance: &InstanceName) -> Option<String> {
        self.cli.records().prepared(instance)
    }

    // [impl->swdd~podman-list-of-existing-workloads-uses-labels~1]
    // [impl->swdd~podman-implements-runtime-state-getter~1]
    // [impl->swdd~podman-state-getter-uses-podmancli~1]
    fn list(&mut self) -> Result<Vec<ListedContainer>, RuntimeError> {
        let entries = E::listing(&self.cli, &filter_by_agent(&self.agent), &mut Unwatched)?;
        let listed: Vec<_> = entries.iter().filter_map(|entry| E::listed(entry, &self.agent)).collect();
        let left_out = entries.len() - listed.len();
        if left_out != self.left_out {
            // When the number changes, not once per listing.
            log::warn!("'{left_out}' containers with the label of agent '{}' have no valid name label", self.agent);
            self.left_out = left_out;
        }
        Ok(listed)
    }

    fn log_calls(&mut self, instance: &InstanceName, wanted: &LogsRequest) -> Result<Vec<LogCall>, RuntimeError> {
        let found = self.find(instance, None)?;
        let call = |id: &ContainerId| self.cli.log_call(log_arguments(wanted, &id.0), String::new());
        Ok(found.iter().map(call).collect())
    }
}

/// Whether a call failed because its container does not exist.
pub(super) fn is_gone(error: &RuntimeError) -> bool {
    matches!(error, RuntimeError::Failed(text) if text.to_ascii_lowercase().contains("no such container"))
}

fn without_pid_file(new: &NewContainer) -> NewContainer {
    NewContainer { pid_file: None, ..new.clone() }
}

fn gone_is_fine(result: Result<(), RuntimeError>) -> Result<(), RuntimeError> {
    result.or_else(|error| if is_gone(&error) { Ok(()) } else { Err(error) })
}
