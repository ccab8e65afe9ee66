//! One container per workload, through podman or nerdctl. The engines differ in what [`Engine`]
//! says.
//!
//! Thread: the caller's, see [`super`].
//! Owns: nothing that outlives a call; the engines keep the containers. Gives: ids, listings,
//! [`RuntimeError`].

use super::call_error::{CallError, ErrorMeaning, ID_DIGITS, ReadMeaning};
use super::command::{EngineCall, EngineOutput};
use super::container_config::{EngineArguments as _, config_of, filter_by_agent, filter_by_name};
use super::container_list::EngineContainer;
use super::container_records::{ENDED, PREPARED};
use super::engine_children::EngineChildren;
use super::engine_cli::EngineCli;
use super::images::{ImageRemoval, ImageStore};
use super::log_reader::{LogCall, log_arguments};
use super::masking::Arguments;
use super::out_of_memory::{self, OutOfMemory};
use super::{
    Cancel, ContainerId, ListedContainer, NewContainer, ProbeTarget, RuntimeConnector, RuntimeError,
};
use crate::limits::{LISTING_MAX, STOP_GRACE};
use ankaios_model::messages::LogsRequest;
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::runtime_config::ContainerConfig;
use ankaios_model::shown_text::without_passwords;
use ankaios_model::workload::Workload;
use std::path::Path;
use std::time::Duration;

/// Stop timeout of a container that names none itself (podman's default).
pub(super) const CONTAINER_STOP_DEFAULT: Duration = Duration::from_secs(10);

/// Longest wait for a removal of a stopped container.
const REMOVAL_MAX: Duration = Duration::from_secs(30);

/// Environment variable with the path of the socket that a workload notifies.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// What is different in an engine. Calls are without the id or name that they are about.
#[derive(Debug)]
pub struct Engine {
    /// Name of the runtime in manifests.
    pub(crate) runtime: &'static str,
    pub(crate) program: &'static str,
    /// Reads its errors.
    pub(crate) read_meaning: ReadMeaning,
    pub(crate) stop: &'static [&'static str],
    /// With the anonymous volumes of the container: nothing else can ever use them, and each start
    /// of an image with `VOLUME` makes new ones.
    pub(crate) remove: &'static [&'static str],
    /// Prints how long a container may take to stop.
    pub(crate) stop_timeout: &'static [&'static str],
    /// Prints what the engine has of a container, as JSON.
    pub(crate) details: &'static [&'static str],
    /// Fails when an image is missing.
    pub(crate) image_exists: &'static [&'static str],
    /// The containers that match a filter, ended ones too.
    pub(crate) listing: fn(&EngineCli, &str) -> Result<Vec<EngineContainer>, RuntimeError>,
    /// The entry as a container of an agent; `None` when it is not its, or cannot be read.
    pub(crate) listed: fn(&EngineContainer, &str) -> Option<ListedContainer>,
    /// Lists the images of the store, and those of all containers.
    pub(crate) image_store: fn(&EngineCli) -> Result<ImageStore, RuntimeError>,
    pub(crate) remove_image: fn(&EngineCli, &ImageRemoval) -> Result<(), RuntimeError>,
}

/// Runs workloads with an engine for one agent.
#[derive(Debug, Clone)]
pub struct ContainerConnector {
    pub(super) cli: EngineCli,
    engine: &'static Engine,
    agent: Name,
    pub(super) stop_limit: Duration,
    left_out: usize,
}

impl ContainerConnector {
    /// A connector for the containers of `agent`, which records its calls in `children`.
    pub fn new(engine: &'static Engine, agent: &str, children: EngineChildren) -> Self {
        Self {
            cli: EngineCli::new(engine.program, engine.read_meaning, children),
            engine,
            agent: agent.into(),
            stop_limit: CONTAINER_STOP_DEFAULT + STOP_GRACE,
            left_out: 0,
        }
    }

    /// As [`RuntimeConnector::find`].
    // [impl->swdd~podman-get-workload-id-uses-label~1]
    fn find_one(
        &self,
        instance: &InstanceName,
        wanted: Option<&Workload>,
    ) -> Result<Vec<ContainerId>, RuntimeError> {
        let in_pods = wanted.is_some_and(|workload| workload.config().joins_pod());
        let containers = (self.engine.listing)(&self.cli, &filter_by_name(instance))?;
        let named = containers
            .iter()
            .filter(|container| container.is_of(instance));
        // A container of a pod may have the labels of its image.
        let ours = named.filter_map(|container| {
            let id = container.id()?;
            (in_pods || container.pod().is_none() || self.cli.records().has(instance, &id))
                .then_some(id)
        });
        Ok(ours.collect())
    }

    /// Stops a container, also a paused one: it does not notice a stop, and podman 4 refuses it, so
    /// it is continued first.
    fn stop_within(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        // The container may take its own stop timeout, which only the engine has: it comes from the
        // workload's options or from the engine's configuration, maybe of an earlier agent. Nearly
        // all stops end within the default, so the engine is queried only when one does not.
        let stop = || {
            let call = self.change(self.engine.stop, id).limit(self.stop_limit);
            let more_time = || more_than_default(&self.cli, self.engine.stop_timeout, &[&id.0]);
            gone_is_fine(call.run_extended(None, more_time).map(drop))
        };
        match stop() {
            Err(error) if *error.meaning() == ErrorMeaning::Paused => {
                log::info!("container '{}' is paused and continued to be stopped", id.0);
                self.change(&["unpause"], id).limit(LISTING_MAX).run(None)?;
                stop()
            }
            result => result,
        }
    }

    /// Removes a container that does not run, and its anonymous volumes. Already gone counts as
    /// done.
    // [impl->swdd~agent-removes-anonymous-volumes~1]
    fn remove(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        gone_is_fine(
            self.change(self.engine.remove, id)
                .limit(REMOVAL_MAX)
                .run(None)
                .map(drop),
        )
    }

    // [impl->swdd~podman-delete-workload-stops-and-removes-workload~1]
    /// Also what was never started, which an engine may not be able to stop, and what a removal
    /// left that was killed: podman does not stop it, and removes it.
    fn stop_and_remove(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        match self.stop_within(id) {
            Err(error @ RuntimeError::Failed(_)) => self.remove(id).map_err(|_| error),
            stopped => stopped.and_then(|()| self.remove(id)),
        }
    }

    fn change(&self, call: &[&str], id: &ContainerId) -> EngineCall<'_> {
        self.cli
            .change(Arguments::default().plain(call).plain(&[&*id.0]))
    }

    /// Makes a container, or changes one, as `arguments` say.
    fn make(
        &self,
        arguments: impl Fn(&ContainerConfig, &NewContainer) -> Result<Arguments, RuntimeError>,
        new: &NewContainer,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<ContainerId, RuntimeError> {
        let config = config_of(&new.workload, self.engine.runtime)?;
        let socket = new
            .notify_socket
            .as_ref()
            .map(|path| (NOTIFY_SOCKET, path.to_string_lossy().into_owned()));
        let call = self
            .cli
            .change(arguments(&config, new)?)
            .limit(limit)
            .variables(socket);
        let result = call
            .run(cancel)
            .and_then(|output| self.created_id(output, new));
        let Err(error) = result else { return result };
        match error.meaning() {
            ErrorMeaning::NoPidFileOption if new.pid_file.is_some() => {
                self.make(arguments, &without_pid_file(new), limit, cancel)
            }
            ErrorMeaning::NameInUse(id) => {
                self.remove_remains(id)?;
                Err(error)
            }
            _ => Err(error),
        }
    }

    /// A create that was killed, for want of memory for example, leaves what only podman's storage
    /// has. No listing shows it, and its name is taken: the next try has it again.
    fn remove_remains(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        match self.cli.query(&["container", "exists", &id.0]) {
            // It does not exist; an error has another status.
            Err(RuntimeError::Failed(CallError { code: Some(1), .. })) => {
                let removed = self.change(&["rm"], id).limit(REMOVAL_MAX).run(None);
                gone_is_fine(removed.map(drop))
            }
            _ => Ok(()),
        }
    }

    /// The id that a successful `run` or `start` printed. Where something else was printed it is
    /// looked up.
    // [impl->swdd~podman-create-workload-returns-workload-id~1]
    fn created_id(
        &self,
        output: EngineOutput,
        new: &NewContainer,
    ) -> Result<ContainerId, RuntimeError> {
        let text = output.into_text();
        let id = text.as_ref().map(|text| text.trim()).unwrap_or_default();
        if id.len() == ID_DIGITS && id.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Ok(ContainerId(id.into()));
        }
        // A failed call must not read as if nothing had been created: the container may well exist.
        let found =
            self.find_one(&new.instance, Some(&new.workload))
                .map_err(|error| match error {
                    RuntimeError::NotInstalled(reason) | RuntimeError::NotStarted(reason) => {
                        RuntimeError::Failed(reason)
                    }
                    other => other,
                })?;
        match found.as_slice() {
            [id] => Ok(id.clone()),
            found => {
                text?;
                let count = found.len();
                let text =
                    format!("Unexpected number of workloads: {count} containers after a create");
                Err(RuntimeError::Failed(text.into()))
            }
        }
    }
}

impl RuntimeConnector for ContainerConnector {
    fn create(
        &mut self,
        new: &NewContainer,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<ContainerId, RuntimeError> {
        self.make(ContainerConfig::run_arguments, new, limit, cancel)
    }

    fn prepare_image(
        &mut self,
        workload: &Workload,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<(), RuntimeError> {
        let config = config_of(workload, self.engine.runtime)?;
        pull_missing(&self.cli, &config, self.engine.image_exists, limit, cancel)
    }

    fn create_arguments(&self, new: &NewContainer) -> Result<Vec<String>, RuntimeError> {
        config_of(&new.workload, self.engine.runtime)?
            .create_arguments(&without_pid_file(new))
            .map(|arguments| arguments.given)
    }

    fn create_only(
        &mut self,
        new: &NewContainer,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<ContainerId, RuntimeError> {
        self.make(ContainerConfig::create_arguments, new, limit, cancel)
    }

    fn init(
        &mut self,
        id: &ContainerId,
        new: &NewContainer,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<(), RuntimeError> {
        let call = |config: &ContainerConfig, _: &NewContainer| Ok(config.call(&["init", &id.0]));
        self.make(call, new, limit, cancel).map(drop)
    }

    fn start(
        &mut self,
        id: &ContainerId,
        new: &NewContainer,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<ContainerId, RuntimeError> {
        let call = |config: &ContainerConfig, _: &NewContainer| Ok(config.call(&["start", &id.0]));
        self.make(call, new, limit, cancel)
    }

    fn delete(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.stop_and_remove(id)
    }

    fn stop(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.stop_within(id)
    }

    fn probe_target(
        &mut self,
        id: &ContainerId,
        with_processes: bool,
    ) -> Result<ProbeTarget, RuntimeError> {
        let listed = if with_processes {
            self.list()?
        } else {
            Vec::new()
        };
        let found = listed.into_iter().find(|found| found.id == *id);
        let processes = found.map(|found| found.processes).unwrap_or_default();
        Ok(ProbeTarget {
            program: self.cli.program,
            container: Some(id.0.to_string()),
            processes,
        })
    }

    /// The engine refuses to remove a container that was started again meanwhile, which has to be
    /// stopped then.
    // [impl->swdd~agent-reports-kills-out-of-memory~1]
    fn out_of_memory(&mut self, id: &ContainerId) -> Result<Option<OutOfMemory>, RuntimeError> {
        let call = [self.engine.details, &[&*id.0]].concat();
        let text = self.cli.query(&call)?;
        Ok(out_of_memory::in_inspected(&text, Path::new("/")))
    }

    fn delete_ended(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.remove(id).or_else(|error| match error {
            RuntimeError::Failed(_) => self.stop_and_remove(id),
            other => Err(other),
        })
    }

    fn find(
        &mut self,
        instance: &InstanceName,
        wanted: Option<&Workload>,
    ) -> Result<Vec<ContainerId>, RuntimeError> {
        self.find_one(instance, wanted)
    }

    fn note(&mut self, instance: &InstanceName, id: &ContainerId) {
        self.cli.records().note(instance, id);
    }

    fn is_noted(&self, instance: &InstanceName, id: &ContainerId) -> bool {
        self.cli.records().has(instance, id)
    }

    fn ran_in_this_boot(&self, instance: &InstanceName, id: &ContainerId) -> bool {
        self.cli.records().ran_in_this_boot(instance, id)
    }

    fn note_prepared(&mut self, instance: &InstanceName, record: &str) {
        self.cli.records().keep(instance, PREPARED, record);
    }

    fn prepared_record(&self, instance: &InstanceName) -> Option<String> {
        self.cli.records().kept(instance, PREPARED)
    }

    fn note_end(&mut self, instance: &InstanceName, record: &str) {
        self.cli.records().keep(instance, ENDED, record);
    }

    fn end_record(&self, instance: &InstanceName) -> Option<String> {
        self.cli.records().kept(instance, ENDED)
    }

    fn forget_end(&mut self, instance: &InstanceName) {
        self.cli.records().forget(instance, ENDED);
    }

    // [impl->swdd~podman-list-of-existing-workloads-uses-labels~1]
    // [impl->swdd~podman-implements-runtime-state-getter~1]
    // [impl->swdd~podman-state-getter-uses-podmancli~1]
    fn list(&mut self) -> Result<Vec<ListedContainer>, RuntimeError> {
        let entries = (self.engine.listing)(&self.cli, &filter_by_agent(&self.agent))?;
        let listed: Vec<_> = entries
            .iter()
            .filter_map(|entry| (self.engine.listed)(entry, &self.agent))
            .collect();
        let left_out = entries.len() - listed.len();
        if left_out != self.left_out {
            // When the number changes, not once per listing.
            log::warn!(
                "'{left_out}' containers with the label of agent '{}' have no valid name label",
                self.agent
            );
            self.left_out = left_out;
        }
        Ok(listed)
    }

    fn log_calls(
        &mut self,
        instance: &InstanceName,
        wanted: &LogsRequest,
    ) -> Result<Vec<LogCall>, RuntimeError> {
        let found = self.find(instance, None)?;
        let call = |id: &ContainerId| {
            self.cli
                .log_call(log_arguments(wanted, &id.0), String::new())
        };
        Ok(found.iter().map(call).collect())
    }

    fn image_store(&mut self) -> Result<ImageStore, RuntimeError> {
        (self.engine.image_store)(&self.cli)
    }

    fn remove_image(&mut self, removal: &ImageRemoval) -> Result<(), RuntimeError> {
        (self.engine.remove_image)(&self.cli, removal)
    }
}

/// How much more than [`CONTAINER_STOP_DEFAULT`] one of these containers may take to stop, if so.
/// `call` prints the time that each has.
pub(super) fn more_than_default(cli: &EngineCli, call: &[&str], ids: &[&str]) -> Option<Duration> {
    let printed = cli.query(&[call, ids].concat()).ok()?;
    let seconds = printed
        .lines()
        .filter_map(|line| line.trim().parse().ok())
        .max()?;
    let extra = Duration::from_secs(seconds).checked_sub(CONTAINER_STOP_DEFAULT)?;
    (!extra.is_zero()).then_some(extra)
}

fn without_pid_file(new: &NewContainer) -> NewContainer {
    NewContainer {
        pid_file: None,
        ..new.clone()
    }
}

fn gone_is_fine(result: Result<(), RuntimeError>) -> Result<(), RuntimeError> {
    result.or_else(|error| {
        if error.means_gone() {
            Ok(())
        } else {
            Err(error)
        }
    })
}

/// Pulls the image of `config` if it is missing, with those of its options that choose the image.
/// `exists` is the call that fails when it is, without its name; `limit` bounds each call.
pub(crate) fn pull_missing(
    cli: &EngineCli,
    config: &ContainerConfig,
    exists: &[&str],
    limit: Option<Duration>,
    cancel: Cancel<'_>,
) -> Result<(), RuntimeError> {
    let call = cli.call(config.call(exists).address(&config.image));
    let short = limit.map_or(LISTING_MAX, |limit| limit.min(LISTING_MAX));
    match call.limit(short).run(cancel) {
        Err(RuntimeError::Failed(_)) if config.option("--pull") == Some("never") => {
            let text = format!("{}: image not known", without_passwords(&config.image));
            Err(RuntimeError::Failed(text.into()))
        }
        Err(RuntimeError::Failed(_)) => cli
            .change(config.pull_arguments())
            .limit(limit)
            .run(cancel)
            .map(drop),
        result => result.map(drop),
    }
}
