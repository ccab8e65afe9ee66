//! One container per workload, through podman or nerdctl. [`Engine`] has the differences.
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
use super::engine_version::version_of;
use super::images::{ImageRemoval, ImageStore};
use super::log_reader::{LogCall, log_arguments};
use super::masking::MaskedArguments;
use super::out_of_memory::{self, OutOfMemory, has_monitor_file, make_start_folder};
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

/// The differences of an engine. Its calls lack the last argument, an id or a name.
#[derive(Debug)]
pub struct Engine {
    /// Name of the runtime in manifests.
    pub(crate) runtime: &'static str,
    /// Name of its program. Only this room calls it: an agent uses a [`ContainerConnector`], which
    /// records each call and bounds its time.
    pub(crate) program: &'static str,
    /// Finds the meaning of the output of a failed call.
    pub(crate) read_meaning: ReadMeaning,
    pub(crate) stop: &'static [&'static str],
    /// With the anonymous volumes of the container: nothing else can ever use them, and each start
    /// of an image with `VOLUME` makes new ones.
    pub(crate) remove: &'static [&'static str],
    /// Prints how long a container may take to stop.
    pub(crate) stop_timeout: &'static [&'static str],
    /// Prints all data of a container, as JSON.
    pub(crate) details: &'static [&'static str],
    /// Fails when an image is missing.
    pub(crate) image_exists: &'static [&'static str],
    /// The containers that match a filter, ended ones too.
    pub(crate) listing: fn(&EngineCli, &str) -> Result<Vec<EngineContainer>, RuntimeError>,
    /// The entry as a container of an agent; `None` if it belongs to another one, or is invalid.
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

    /// The containers labelled with exactly this instance, as [`RuntimeConnector::find`] returns
    /// them.
    // [impl->swdd~podman-get-workload-id-uses-label~1]
    fn find_one(
        &self,
        instance: &InstanceName,
        wanted: Option<&Workload>,
    ) -> Result<Vec<ContainerId>, RuntimeError> {
        let joins_pod = match wanted {
            Some(workload) => workload.config().joins_pod(),
            None => false,
        };
        let containers = (self.engine.listing)(&self.cli, &filter_by_name(instance))?;
        let mut found = Vec::new();
        for container in containers {
            let Some(id) = container.id() else {
                continue;
            };
            if !container.is_of(instance) {
                continue;
            }
            // A container in a pod can inherit our labels from its image. Unless the workload has
            // the option `--pod` they are no proof, and a record must name the container.
            let labels_are_proof = joins_pod || container.pod().is_none();
            if labels_are_proof || self.cli.records().has(instance, &id) {
                found.push(id);
            }
        }
        Ok(found)
    }

    /// Stops a container. A paused one is continued and then stopped: it does not notice a stop
    /// while it is paused, and podman 4 refuses to stop it.
    fn stop_even_paused(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        match self.stop_running(id) {
            Err(error) if *error.meaning() == ErrorMeaning::Paused => {
                log::info!("continuing the paused container '{}' to stop it", id.0);
                self.change(&["unpause"], id).limit(LISTING_MAX).run(None)?;
                self.stop_running(id)
            }
            result => result,
        }
    }

    /// Stops a container within its own stop timeout. Only the engine has that timeout; it is
    /// queried when the default has passed, since nearly all stops end before.
    fn stop_running(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let call = self.change(self.engine.stop, id).limit(self.stop_limit);
        let stopped = call.run_extended(None, || {
            more_than_default(&self.cli, self.engine.stop_timeout, &[&id.0])
        });
        accept_gone(stopped)
    }

    /// Removes a container that does not run, and its anonymous volumes. Already gone counts as
    /// done.
    // [impl->swdd~agent-removes-anonymous-volumes~1]
    fn remove(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let call = self.change(self.engine.remove, id);
        accept_gone(call.limit(REMOVAL_MAX).run(None))
    }

    // [impl->swdd~podman-delete-workload-stops-and-removes-workload~1]
    /// Stops and removes a container. After a failed stop it is removed anyway: a container that
    /// was never started, or whose removal was interrupted, can be removed but not stopped. If both
    /// fail, the error of the stop is returned.
    fn stop_and_remove(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        match self.stop_even_paused(id) {
            Ok(()) => self.remove(id),
            Err(error @ RuntimeError::Failed(_)) => self.remove(id).map_err(|_| error),
            Err(error) => Err(error),
        }
    }

    fn change(&self, call: &[&str], id: &ContainerId) -> EngineCall<'_> {
        let arguments = MaskedArguments::default().plain(call).plain(&[&*id.0]);
        self.cli.change(arguments)
    }

    /// Makes or changes a container by a call with these `arguments`, and returns its id.
    fn make(
        &self,
        arguments: impl Fn(&ContainerConfig, &NewContainer) -> Result<MaskedArguments, RuntimeError>,
        new: &NewContainer,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<ContainerId, RuntimeError> {
        // First make the call.
        let config = config_of(&new.workload, self.engine.runtime)?;
        let options = config.general_options.iter().chain(&config.command_options);
        let folder = make_start_folder(&self.cli.records(), &new.instance, options);
        let call = self.cli.change(arguments(&config, new)?).limit(limit);
        let mut call = call.folder(folder);
        if let Some(path) = &new.notify_socket {
            call = call.variable(NOTIFY_SOCKET, path.to_string_lossy().into_owned());
        }
        let made = match call.run(cancel) {
            Ok(output) => self.created_id(output, new),
            Err(error) => Err(error),
        };
        let error = match made {
            Ok(id) => return Ok(id),
            Err(error) => error,
        };
        // Then handle two errors.
        match error.meaning() {
            // Try again without a pid file. Listings then show the state of the container.
            ErrorMeaning::NoPidFileOption if new.pid_file.is_some() => {
                self.make(arguments, &without_pid_file(new), limit, cancel)
            }
            // Free the name for the next try.
            ErrorMeaning::NameInUse(id) => {
                self.remove_remains(id)?;
                Err(error)
            }
            _ => Err(error),
        }
    }

    /// Removes the rest of a create that was killed. It is in podman's storage only: no listing
    /// shows it, but its name is in use.
    fn remove_remains(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        match self.cli.query(&["container", "exists", &id.0]) {
            // Podman lists no such container, so only the rest exists. An error of the query has
            // another status.
            Err(RuntimeError::Failed(CallError { code: Some(1), .. })) => {
                accept_gone(self.change(&["rm"], id).limit(REMOVAL_MAX).run(None))
            }
            _ => Ok(()),
        }
    }

    /// The id that a successful `run` or `start` printed. If it printed something else, the
    /// container is listed.
    // [impl->swdd~podman-create-workload-returns-workload-id~1]
    fn created_id(
        &self,
        output: EngineOutput,
        new: &NewContainer,
    ) -> Result<ContainerId, RuntimeError> {
        let text = output.into_text();
        if let Ok(text) = &text
            && is_full_id(text.trim())
        {
            return Ok(ContainerId(text.trim().into()));
        }
        let found = match self.find_one(&new.instance, Some(&new.workload)) {
            Ok(found) => found,
            // For the listing, these errors mean that nothing happened. But the create has run, and
            // its container may exist.
            Err(RuntimeError::NotInstalled(reason) | RuntimeError::NotStarted(reason)) => {
                return Err(RuntimeError::Failed(reason));
            }
            Err(error) => return Err(error),
        };
        if let [id] = found.as_slice() {
            return Ok(id.clone());
        }
        text?; // If the output could not be read, that is the reason.
        let count = found.len();
        let text = format!("Unexpected number of workloads: {count} containers after a create");
        Err(RuntimeError::Failed(text.into()))
    }
}

fn is_full_id(text: &str) -> bool {
    text.len() == ID_DIGITS && text.bytes().all(|digit| digit.is_ascii_hexdigit())
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
        let config = config_of(&new.workload, self.engine.runtime)?;
        let arguments = config.create_arguments(&without_pid_file(new))?;
        Ok(arguments.given)
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
        self.make(
            |config, _| Ok(config.call(&["init", &id.0])),
            new,
            limit,
            cancel,
        )?;
        Ok(())
    }

    fn start(
        &mut self,
        id: &ContainerId,
        new: &NewContainer,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<ContainerId, RuntimeError> {
        self.make(
            |config, _| Ok(config.call(&["start", &id.0])),
            new,
            limit,
            cancel,
        )
    }

    fn delete(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.stop_and_remove(id)
    }

    fn stop(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.stop_even_paused(id)
    }

    fn probe_target(
        &mut self,
        id: &ContainerId,
        with_processes: bool,
    ) -> Result<ProbeTarget, RuntimeError> {
        let mut target = ProbeTarget {
            program: self.cli.program,
            container: Some(id.0.to_string()),
            processes: Vec::new(),
        };
        if !with_processes {
            return Ok(target);
        }
        for listed in self.list()? {
            if listed.id == *id {
                target.processes = listed.processes;
            }
        }
        Ok(target)
    }

    // [impl->swdd~agent-reports-kills-out-of-memory~1]
    fn out_of_memory(
        &mut self,
        instance: &InstanceName,
        id: &ContainerId,
    ) -> Result<Option<OutOfMemory>, RuntimeError> {
        let call = [self.engine.details, &[&*id.0]].concat();
        let text = self.cli.query(&call)?;
        let has_file = has_monitor_file(&self.cli.records(), instance);
        Ok(out_of_memory::in_inspected(&text, has_file, Path::new("/")))
    }

    /// Removes the container. The engine refuses that if it was started again meanwhile; then it is
    /// stopped as well.
    fn delete_ended(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        match self.remove(id) {
            Err(RuntimeError::Failed(_)) => self.stop_and_remove(id),
            result => result,
        }
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
        let mut listed = Vec::new();
        for entry in &entries {
            listed.extend((self.engine.listed)(entry, &self.agent));
        }
        // Warn when the number changes, not once per listing.
        let left_out = entries.len() - listed.len();
        if left_out != self.left_out {
            log::warn!(
                "'{left_out}' containers with the label of agent '{}' have no valid name label",
                self.agent
            );
            self.left_out = left_out;
        }
        Ok(listed)
    }

    fn version(&mut self) -> Option<String> {
        version_of(self.cli.program)
    }

    fn log_calls(
        &mut self,
        instance: &InstanceName,
        wanted: &LogsRequest,
    ) -> Result<Vec<LogCall>, RuntimeError> {
        let mut calls = Vec::new();
        for id in self.find(instance, None)? {
            let arguments = log_arguments(wanted, &id.0);
            calls.push(self.cli.log_call(arguments, String::new()));
        }
        Ok(calls)
    }

    fn image_store(&mut self) -> Result<ImageStore, RuntimeError> {
        (self.engine.image_store)(&self.cli)
    }

    fn remove_image(&mut self, removal: &ImageRemoval) -> Result<(), RuntimeError> {
        (self.engine.remove_image)(&self.cli, removal)
    }
}

/// The longest stop timeout of these containers, minus [`CONTAINER_STOP_DEFAULT`]; `None` if none
/// is longer. `call` prints the timeout of each container, in seconds.
pub(super) fn more_than_default(cli: &EngineCli, call: &[&str], ids: &[&str]) -> Option<Duration> {
    let printed = cli.query(&[call, ids].concat()).ok()?; // Without an answer, none is known.
    let mut longest = CONTAINER_STOP_DEFAULT;
    for line in printed.lines() {
        if let Ok(seconds) = line.trim().parse() {
            longest = longest.max(Duration::from_secs(seconds));
        }
    }
    let extra = longest - CONTAINER_STOP_DEFAULT;
    if extra.is_zero() {
        return None;
    }
    Some(extra)
}

fn without_pid_file(new: &NewContainer) -> NewContainer {
    NewContainer {
        pid_file: None,
        ..new.clone()
    }
}

/// Accepts a call that failed because its container does not exist.
fn accept_gone(result: Result<EngineOutput, RuntimeError>) -> Result<(), RuntimeError> {
    match result {
        Err(error) if !error.means_gone() => Err(error),
        _ => Ok(()),
    }
}

/// Pulls the image of `config` if it is missing. `exists` is the call that fails then, without the
/// name of the image; `limit` bounds each of both calls.
pub(crate) fn pull_missing(
    cli: &EngineCli,
    config: &ContainerConfig,
    exists: &[&str],
    limit: Option<Duration>,
    cancel: Cancel<'_>,
) -> Result<(), RuntimeError> {
    let call = cli.call(config.call(exists).address(&config.image));
    let query_limit = limit.unwrap_or(LISTING_MAX).min(LISTING_MAX);
    match call.limit(query_limit).run(cancel) {
        Ok(_) => return Ok(()),
        Err(RuntimeError::Failed(_)) => {} // It is missing.
        Err(error) => return Err(error),
    }
    if config.option("--pull") == Some("never") {
        let text = format!("{}: image not known", without_passwords(&config.image));
        return Err(RuntimeError::Failed(text.into()));
    }
    let pull = cli.change(config.pull_arguments());
    pull.limit(limit).run(cancel)?;
    Ok(())
}
