//! Pods from Kubernetes manifests through `podman kube play` and `down`.
//!
//! Podman does not record to which workload a pod belongs, so two texts per workload do: its
//! runtime configuration and the ids of its pods. Each is kept in a file in the folder of the
//! instance, and in the label of a volume (`<instance>.config`, `<instance>.pods`), which outlives
//! a boot and which other implementations read.
//!
//! Nothing that may have pods is forgotten: both stay until its pods are known to be gone, also
//! when a play failed and what it left could not be listed or removed.
//!
//! Thread: the caller's: `call:<name>` for create, `wl:<name>` for delete, `list:podman-kube` for
//! listings. Pods of one manifest that may take different times to stop have a thread `stop:<name>`
//! for each further time.
//! Owns: what a play that failed may have left.

use super::call_error::{ErrorMeaning, meaning_of_podman};
use super::command::EngineOutput;
use super::container_engine::{CONTAINER_STOP_DEFAULT, more_than_default, pull_missing};
use super::container_list::EngineContainer;
use super::container_records::ENDED;
use super::engine_children::EngineChildren;
use super::engine_cli::EngineCli;
use super::images::{self, ImageRemoval, ImageStore};
use super::log_reader::{LogCall, log_arguments};
use super::masking::Arguments;
use super::out_of_memory::{self, OutOfMemory};
use super::podman::DETAILS;
use super::{
    Cancel, ContainerId, ListedContainer, ListedPods, MainProcess, NewContainer, ProbeTarget,
    RuntimeConnector, RuntimeError,
};
use crate::limits::{LISTING_MAX, STACK_WORKLOAD, STOP_GRACE};
use ankaios_model::execution_state::{ExecutionState, Phase};
use ankaios_model::messages::LogsRequest;
use ankaios_model::names::{InstanceName, Name};
use ankaios_model::runtime_config::{ContainerConfig, EngineConfig, KubeConfig};
use ankaios_model::shown_text::without_passwords;
use ankaios_model::workload::Workload;
use ankaios_model::yaml::{self, Content, Origin, Plain, Yaml, YamlError};
use ankaios_platform::logging::log_source;
use ankaios_platform::sync::Mutex;
use ankaios_platform::threads;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use crossbeam_channel::bounded;
use serde_yaml::{Mapping, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Least number of containers that podman stops at the same time: three for each core.
const STOPPED_AT_ONCE: u32 = 3;
/// Longest wait for the removal of all pods of a manifest, one after the other. Pods that still run
/// are killed.
const POD_DOWN_MAX: Duration = Duration::from_secs(120);

/// Name of the runtime in manifests.
// [impl->swdd~podman-kube-name-returns-podman-kube~1]
pub const RUNTIME_NAME: &str = "podman-kube";
const PROGRAM: &str = "podman";
/// Name of the file with the runtime configuration, and end of the name of its volume.
const CONFIG: &str = "config";
/// Name of the file with the ids of the pods, and end of the name of its volume.
const PODS: &str = "pods";

/// A play. If it fails, it may have left pods.
// [impl->swdd~podman-kube-workload-id]
#[derive(Debug)]
struct Play {
    instance: InstanceName,
    manifest: String,
    /// The pods before it. They belong to others, even if the play failed because of their names.
    before: Vec<ExistingPod>,
    /// Ids of its pods; `None` until the engine could list them.
    made: Option<Vec<String>>,
}

/// A pod as the engine lists it.
#[derive(Debug, PartialEq, Eq)]
struct ExistingPod {
    id: String,
    name: String,
}

/// Runs workloads as pods for one agent.
// [impl->swdd~podman-kube-implements-runtime-connector~1]
// [impl->swdd~podman-kube-uses-podman-cli~1]
#[derive(Debug, Clone)]
pub struct PodmanKubeConnector {
    cli: EngineCli,
    agent: Name,
    /// By workload, for all clones.
    failed_plays: Arc<Mutex<BTreeMap<Name, Play>>>,
}

impl PodmanKubeConnector {
    /// A connector for the pods of `agent`, which records its calls in `children`.
    pub fn new(agent: &str, children: EngineChildren) -> Self {
        Self {
            cli: EngineCli::new(PROGRAM, meaning_of_podman, children),
            agent: agent.into(),
            failed_plays: Arc::default(),
        }
    }

    // ---------------------------------------------------------- what is kept

    /// Keeps `data`. Only other connectors and later agents need it, so a failure is no failure of
    /// the workload.
    // [impl->swdd~podman-kube-create-continues-if-cannot-create-volume~1]
    fn keep(
        &self,
        what: &str,
        instance: &InstanceName,
        data: &str,
        cancel: Cancel<'_>,
    ) -> Result<(), RuntimeError> {
        self.cli.records().keep(instance, what, data);
        let volume = format!("{instance}.{what}");
        let removal = self
            .cli
            .change(["volume", "rm", &volume])
            .limit(LISTING_MAX);
        // The data may contain secrets of the workload.
        let label = format!("--label=data={}", BASE64_STANDARD_NO_PAD.encode(data));
        let create = Arguments::from(["volume", "create"])
            .options(&[label])
            .plain(&[&volume]);
        let create = self.cli.change(create).limit(LISTING_MAX);
        if removal
            .run(cancel)
            .is_err_and(|error| error == RuntimeError::Cancelled)
        {
            return Err(RuntimeError::Cancelled);
        }
        match create.run(cancel) {
            Err(RuntimeError::Cancelled) => return Err(RuntimeError::Cancelled),
            Err(error) => log::warn!("Could not create volume '{volume}': '{error}'"),
            Ok(_) => {}
        }
        Ok(())
    }

    /// The kept data; `None` if there is none.
    fn kept(&self, what: &str, instance: &InstanceName) -> Result<Option<String>, RuntimeError> {
        if let Some(text) = self.cli.records().kept(instance, what) {
            return Ok(Some(text));
        }
        let volume = format!("{instance}.{what}");
        let arguments = ["volume", "inspect", &volume];
        let text = match self.cli.query(&arguments) {
            Err(error) if *error.meaning() == ErrorMeaning::NoSuchVolume => return Ok(None),
            answer => answer?,
        };
        let data = volume_data(&text).ok_or_else(|| {
            self.cli
                .nonsense(&format!("Volume '{volume}' holds no data"), &arguments)
        })?;
        self.cli.records().keep(instance, what, &data);
        Ok(Some(data))
    }

    // [impl->swdd~podman-kube-delete-removes-volumes~1]
    fn forget(&self, instance: &InstanceName) {
        // The configuration goes last: until then a crashed agent finds the workload again.
        for what in [PODS, CONFIG] {
            self.cli.records().forget(instance, what);
            let volume = format!("{instance}.{what}");
            match self
                .cli
                .change(["volume", "rm", &volume])
                .limit(LISTING_MAX)
                .run(None)
            {
                Err(error) if *error.meaning() == ErrorMeaning::NoSuchVolume => {}
                Err(error) => log::warn!("Could not remove volume '{volume}': '{error}'"),
                Ok(_) => {}
            }
        }
    }

    /// Instances of this agent whose configuration is kept.
    // [impl->swdd~podman-kube-list-existing-workloads-using-config-volumes~1]
    fn kept_instances(&self) -> Result<BTreeSet<InstanceName>, RuntimeError> {
        let mut instances = self.cli.records().instances(&self.agent, CONFIG);
        // The filter is a regular expression, so a plain dot would also match agents with a longer
        // name.
        let filter = format!("name=\\.{}\\.{CONFIG}$", self.agent);
        let arguments = ["volume", "ls", "--filter", &filter, "--format={{.Name}}"];
        for line in self.cli.query(&arguments)?.lines() {
            let name = line
                .trim()
                .strip_suffix(CONFIG)
                .and_then(|name| name.strip_suffix('.'));
            let name = name.ok_or_else(|| {
                self.cli
                    .nonsense("The list of volumes cannot be read", &arguments)
            })?;
            instances.extend(InstanceName::parse(name).filter(|name| name.agent == self.agent));
        }
        Ok(instances)
    }

    /// The pods of the instance.
    // [impl->swdd~podman-kube-get-workload-id-uses-volumes~1]
    fn pods_of(&self, instance: &InstanceName) -> Pods {
        // Once more at once, as for listings: a short failure must not look like a workload that is
        // lost.
        let Some(text) = self
            .kept(PODS, instance)
            .or_else(|_| self.kept(PODS, instance))?
        else {
            return Ok(None);
        };
        match serde_json::from_str::<Vec<String>>(&text) {
            Ok(pods) if pods.iter().all(|pod| is_pod_id(pod)) => Ok(Some(pods)),
            _ => {
                let text = format!("'{instance}.{PODS}' holds something other than ids of pods");
                Err(RuntimeError::Failed(text.into()))
            }
        }
    }

    /// The containers of these pods, without those that hold the pods together.
    fn containers_of(&self, pods: &[String]) -> Result<Vec<EngineContainer>, RuntimeError> {
        let mut containers = self.cli.containers(&[])?;
        containers.retain(|one| is_in(one, pods) && !one.is_infra());
        Ok(containers)
    }

    // ------------------------------------------------------------------- pods

    fn existing_pods(&self, cancel: Cancel<'_>) -> Result<Vec<ExistingPod>, RuntimeError> {
        let arguments = ["pod", "ls", "--no-trunc", "--format={{.Id}} {{.Name}}"];
        let text = self.cli.call(arguments).run(cancel)?.into_text()?;
        let mut pods = Vec::new();
        for line in text.lines() {
            if let Some((id, name)) = line.trim().split_once(' ')
                && is_pod_id(id)
            {
                pods.push(ExistingPod {
                    id: id.to_owned(),
                    name: name.to_owned(),
                });
            }
        }
        Ok(pods)
    }

    /// Ids of the pods that the play has added.
    fn pods_since(&self, play: &Play, cancel: Cancel<'_>) -> Result<Vec<String>, RuntimeError> {
        let documents = pod_documents(&play.manifest);
        let mut ids = Vec::new();
        for pod in self.existing_pods(cancel)? {
            let is_of_play = documents.iter().any(|document| document.makes(&pod.name));
            if is_of_play && !play.before.contains(&pod) {
                ids.push(pod.id);
            }
        }
        Ok(ids)
    }

    /// Runs a verb of `kube` with the manifest as its input.
    fn run_kube(
        &self,
        general: &[String],
        verb: &[&str],
        options: &[String],
        manifest: &str,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<EngineOutput, RuntimeError> {
        let arguments = Arguments::default()
            .options(general)
            .plain(&["kube"])
            .plain(verb)
            .options(options);
        let call = self.cli.change(arguments.plain(&["-"]));
        call.input(manifest.as_bytes()).limit(limit).run(cancel)
    }

    /// Returns the ids of the pods. Where something else was printed they are listed.
    // [impl->swdd~podman-kube-create-workload-apply-manifest~1]
    fn play(
        &self,
        config: &KubeConfig,
        play: &Play,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<Vec<String>, RuntimeError> {
        let (general, options) = (&config.general_options, &config.play_options);
        let output = self.run_kube(
            general,
            &["play", "--quiet"],
            options,
            &play.manifest,
            limit,
            cancel,
        )?;
        let text = output.into_text();
        let printed = text
            .as_ref()
            .map(|text| parse_pods(text))
            .unwrap_or_default();
        if !printed.is_empty() || pod_documents(&play.manifest).is_empty() {
            return Ok(printed);
        }
        let pods = self.pods_since(play, cancel)?;
        if pods.is_empty() {
            text?;
            return Err(self
                .cli
                .nonsense("It made no pod that can be found", &["kube", "play"]));
        }
        Ok(pods)
    }

    /// Removes the pods that a failed play has made, and then what is kept of it. What cannot be
    /// listed or removed now is tried again with the next create or delete.
    fn remove_left_over(&self, workload: &Name, cancel: Cancel<'_>) -> Result<(), RuntimeError> {
        let Some(mut failed) = self.failed_plays.lock().remove(workload) else {
            return Ok(());
        };
        let removed = self.remove_made(&mut failed, cancel);
        match removed {
            Ok(()) => self.forget(&failed.instance),
            Err(_) => _ = self.failed_plays.lock().insert(workload.clone(), failed),
        }
        removed
    }

    /// Removes the pods that the failed play has made. What runs is stopped in order first: it may
    /// have written something. All else never ran for the workload, so nothing is waited for:
    /// podman would wait ten seconds for what does not heed the signal, whatever the manifest says.
    fn remove_made(&self, failed: &mut Play, cancel: Cancel<'_>) -> Result<(), RuntimeError> {
        if failed.made.is_none() {
            failed.made = Some(self.pods_since(failed, cancel)?);
        }
        let made = failed.made.as_deref().unwrap_or_default();
        if made.is_empty() {
            return Ok(());
        }
        self.stop_in_order(&failed.instance, &failed.manifest, Some(made))?;
        let call = Arguments::from(["pod", "rm", "--force", "--ignore", "--time=0"]).plain(made);
        self.cli
            .change(call)
            .limit(POD_DOWN_MAX)
            .run(cancel)
            .map(drop)
    }

    /// Stops what runs in the pods of the instance with its stop signal, as long as each pod may
    /// take for that: `kube down` of podman 4.3 kills it at once. The container that holds a pod
    /// together goes on, and with it the network. Of a play that was cut short no ids of `pods`
    /// were noted: they are found by their names, as `kube down` finds them.
    // [impl->swdd~podman-kube-delete-stops-in-order~1]
    fn stop_in_order(
        &self,
        instance: &InstanceName,
        manifest: &str,
        pods: Option<&[String]>,
    ) -> Result<(), RuntimeError> {
        let documents = pod_documents(manifest);
        let mut running: BTreeMap<Option<u32>, Vec<ContainerId>> = BTreeMap::new();
        let mut paused = Vec::new();
        for container in self.cli.containers(&["--pod"])? {
            let mut documents = documents.iter();
            let document = documents.find(|document| document.makes(container.pod_name()));
            let is_ours = match pods {
                Some(pods) => is_in(&container, pods),
                None => document.is_some(),
            };
            if !is_ours || container.is_infra() {
                continue;
            }
            let Some(process) = container.process() else {
                continue;
            };
            if container.is_paused() {
                paused.push(process.container.clone());
            }
            let seconds = document.and_then(|document| document.stop_seconds);
            running.entry(seconds).or_default().push(process.container);
        }
        if !paused.is_empty() {
            // It does not notice a stop, and podman 4 refuses both to stop and to remove it.
            let call = Arguments::from(["unpause"]).plain(&texts_of(&paused));
            self.cli.change(call).limit(LISTING_MAX).run(None)?;
        }
        self.stop_groups(instance, running)
    }

    /// Stops each group of containers within its own seconds, all groups at the same time, so that
    /// one that hangs does not delay the others.
    fn stop_groups(
        &self,
        instance: &InstanceName,
        mut groups: BTreeMap<Option<u32>, Vec<ContainerId>>,
    ) -> Result<(), RuntimeError> {
        let Some((first_seconds, first)) = groups.pop_first() else {
            return Ok(());
        };
        let (result, results) = bounded(groups.len());
        for (seconds, group) in groups {
            let connector = self.clone();
            let result = result.clone();
            let source = instance.workload.clone();
            let stop = move || {
                let _source = log_source(source);
                // The receiver may have met an error.
                let _ = result.send(connector.stop_group(seconds, &group));
            };
            threads::spawn(format!("stop:{}", instance.workload), STACK_WORKLOAD, stop).map_err(
                |error| {
                    let text = format!("Error: no thread stops its pods: {error}");
                    RuntimeError::NotStarted(text.into())
                },
            )?;
        }
        drop(result);
        let mut outcome = self.stop_group(first_seconds, &first);
        for other in results {
            outcome = outcome.and(other);
        }
        outcome
    }

    /// Stops these containers within `seconds`, without them as long as the engine lets them take.
    fn stop_group(
        &self,
        seconds: Option<u32>,
        containers: &[ContainerId],
    ) -> Result<(), RuntimeError> {
        let ids = texts_of(containers);
        let time = seconds.map(|seconds| format!("--time={seconds}"));
        let call = Arguments::from(["stop", "--ignore"])
            .plain(time.as_slice())
            .plain(&ids);
        let one = seconds.map_or(CONTAINER_STOP_DEFAULT, |seconds| {
            Duration::from_secs(seconds.into())
        });
        let turns = u32::try_from(ids.len())
            .unwrap_or(u32::MAX)
            .div_ceil(STOPPED_AT_ONCE);
        let more_time = || {
            if seconds.is_some() {
                return None;
            }
            let inspect = ["container", "inspect", "--format={{.Config.StopTimeout}}"];
            Some(more_than_default(&self.cli, &inspect, &ids)?.saturating_mul(turns))
        };
        let limit = one.saturating_mul(turns).saturating_add(STOP_GRACE);
        self.cli
            .change(call)
            .limit(limit)
            .run_extended(None, more_time)
            .map(drop)
    }

    /// Takes all pods of the manifest down. Podman refuses as soon as one of them is missing and
    /// leaves the others, so each is tried alone then.
    // [impl->swdd~podman-kube-delete-workload-downs-manifest-file~1]
    fn down(&self, config: &KubeConfig) -> Result<(), RuntimeError> {
        let down = |manifest: &str| {
            let result = self.run_kube(
                &[],
                &["down"],
                &config.down_options,
                manifest,
                Some(POD_DOWN_MAX),
                None,
            );
            match result {
                Err(error) if *error.meaning() == ErrorMeaning::NoSuchPod => Ok(false),
                result => result.map(|_| true),
            }
        };
        if down(&config.manifest)? {
            return Ok(());
        }
        let documents = pod_documents(&config.manifest);
        // One alone was just found to be missing.
        documents
            .iter()
            .filter(|_| documents.len() > 1)
            .try_for_each(|document| down(&document.text).map(drop))
    }

    /// The configuration of the play for the instance; `None` if there was none.
    fn recall(&self, instance: &InstanceName) -> Result<Option<KubeConfig>, RuntimeError> {
        let text = self.kept(CONFIG, instance)?;
        text.map(|text| KubeConfig::read(&text))
            .transpose()
            .map_err(RuntimeError::Unsupported)
    }
}

fn instance_of(id: &ContainerId) -> Result<InstanceName, RuntimeError> {
    InstanceName::parse(&id.0).ok_or_else(|| {
        let text = format!("'{}' is not the name of a workload instance", id.0);
        RuntimeError::Failed(text.into())
    })
}

impl RuntimeConnector for PodmanKubeConnector {
    fn create(
        &mut self,
        new: &NewContainer,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<ContainerId, RuntimeError> {
        let (config, manifest) = prepare(new)?;
        self.remove_left_over(&new.instance.workload, cancel)?;
        let instance = &new.instance;
        let play = Play {
            instance: instance.clone(),
            manifest,
            before: self.existing_pods(cancel)?,
            made: None,
        };
        // [impl->swdd~podman-kube-create-workload-creates-config-volume~1]
        let kept = self.keep(CONFIG, instance, &new.workload.runtime_config, cancel);
        let is_kept = kept.is_ok();
        match kept.and_then(|()| self.play(&config, &play, limit, cancel)) {
            Ok(pods) => {
                // The pods run, so a command that comes now finds them as those of any other
                // workload.
                // [impl->swdd~podman-kube-create-workload-creates-pods-volume~1]
                // It warned.
                let _ = self.keep(PODS, instance, &serde_json::json!(pods).to_string(), None);
                // [impl->swdd~podman-kube-create-workload-returns-workload-id~1]
                Ok(ContainerId(instance.to_string().into()))
            }
            Err(error) => {
                // Cleans up as well as possible now. That is not cancelled, because a delete that
                // comes now would only have to do the same; the next create of another workload
                // need not wait for it.
                let has_begun = is_kept && !error.means_not_started();
                let failed = Play {
                    made: (!has_begun).then(Vec::new),
                    ..play
                };
                self.failed_plays
                    .lock()
                    .insert(instance.workload.clone(), failed);
                if let Err(error) = self.remove_left_over(&instance.workload, None) {
                    log::warn!("Failed container cleanup after failed create. Error: '{error}'");
                }
                Err(error)
            }
        }
    }

    /// A play knows no steps that could be done before it.
    fn prepare_image(
        &mut self,
        workload: &Workload,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<(), RuntimeError> {
        let config = config_of(workload)?;
        for image in pulled_images(&config.manifest) {
            // It is called as a workload of that image would be.
            let container = ContainerConfig {
                image,
                general_options: config.general_options.clone(),
                command_options: config.play_options.clone(),
                command_args: Vec::new(),
            };
            pull_missing(&self.cli, &container, &["image", "exists"], limit, cancel)?;
        }
        Ok(())
    }

    /// Podman cannot start the pods of a manifest again.
    fn can_start_again(&self) -> bool {
        false
    }

    fn start(
        &mut self,
        id: &ContainerId,
        _new: &NewContainer,
        _limit: Option<Duration>,
        _cancel: Cancel<'_>,
    ) -> Result<ContainerId, RuntimeError> {
        Err(RuntimeError::Unsupported(format!(
            "The pods of '{}' cannot be started again",
            id.0
        )))
    }

    fn delete(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        let instance = instance_of(id)?;
        self.remove_left_over(&instance.workload, None)?;
        if let Some(config) = self.recall(&instance)? {
            let pods = self.pods_of(&instance).ok().flatten();
            self.stop_in_order(&instance, &config.manifest, pods.as_deref())?;
            self.down(&config)?;
            self.forget(&instance);
        }
        Ok(())
    }

    /// Stops the pods and leaves them, with their logs. When they are not known, taking them down
    /// is all that can be done.
    fn stop(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        let instance = instance_of(id)?;
        match self.pods_of(&instance) {
            Ok(Some(pods)) if !pods.is_empty() => {
                let config = self.recall(&instance)?;
                let manifest = config.as_ref().map_or("", |config| &config.manifest);
                self.stop_in_order(&instance, manifest, Some(&pods))?;
                let arguments = Arguments::from(["pod", "stop", "--ignore"]).plain(&pods);
                self.cli
                    .change(arguments)
                    .limit(POD_DOWN_MAX)
                    .run(None)
                    .map(drop)
            }
            _ => self.delete(id),
        }
    }

    /// Commands run in the first container of the manifest; all containers of a pod share its
    /// network.
    fn probe_target(
        &mut self,
        id: &ContainerId,
        _with_processes: bool,
    ) -> Result<ProbeTarget, RuntimeError> {
        let instance = instance_of(id)?;
        let config = self.recall(&instance)?;
        let first = config.and_then(|config| first_container(&config.manifest));
        let pods = self.pods_of(&instance).ok().flatten().unwrap_or_default();
        let ours = self.containers_of(&pods)?;
        let mut chosen = ours.first();
        if let Some(first) = first
            && let Some(named) = ours.iter().find(|one| one.name().ends_with(&first))
        {
            chosen = Some(named);
        }
        Ok(ProbeTarget {
            program: PROGRAM,
            container: chosen.and_then(|one| one.id()).map(|id| id.0.to_string()),
            processes: ours.iter().filter_map(|one| one.process()).collect(),
        })
    }

    // [impl->swdd~agent-reports-kills-out-of-memory~1]
    fn out_of_memory(&mut self, id: &ContainerId) -> Result<Option<OutOfMemory>, RuntimeError> {
        let Some(pods) = self.pods_of(&instance_of(id)?)? else {
            return Ok(None);
        };
        let mut killed = Vec::new();
        for container in self.containers_of(&pods)? {
            if container.execution_state() == ExecutionState::killed() {
                killed.extend(container.id());
            }
        }
        if killed.is_empty() {
            return Ok(None);
        }
        let call = [&DETAILS[..], &texts_of(&killed)].concat();
        let text = self.cli.query(&call)?;
        Ok(out_of_memory::in_inspected(&text, Path::new("/")))
    }

    fn find(
        &mut self,
        instance: &InstanceName,
        _wanted: Option<&Workload>,
    ) -> Result<Vec<ContainerId>, RuntimeError> {
        match self.kept(CONFIG, instance)? {
            Some(_) => Ok(vec![ContainerId(instance.to_string().into())]),
            None => Ok(Vec::new()),
        }
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

    fn note_end(&mut self, instance: &InstanceName, record: &str) {
        self.cli.records().keep(instance, ENDED, record);
    }

    fn end_record(&self, instance: &InstanceName) -> Option<String> {
        self.cli.records().kept(instance, ENDED)
    }

    fn forget_end(&mut self, instance: &InstanceName) {
        self.cli.records().forget(instance, ENDED);
    }

    // [impl->swdd~podman-kube-implements-runtime-state-getter~1]
    // [impl->swdd~podman-kube-create-starts-podman-kube-state-getter~1]
    fn list(&mut self) -> Result<Vec<ListedContainer>, RuntimeError> {
        let instances = self.kept_instances()?;
        if instances.is_empty() {
            return Ok(Vec::new());
        }
        let mut with_pods = Vec::new();
        for instance in instances {
            with_pods.push((self.pods_of(&instance), instance));
        }
        // [impl->swdd~podman-kube-state-getter-uses-container-states~1]
        // [impl->swdd~podman-kube-state-getter-reset-cache~1]
        let containers = self.cli.containers(&[])?;
        let mut workloads = Vec::new();
        for (pods, instance) in with_pods {
            if let Err(error) = &pods {
                log::warn!("The pods of workload '{instance}' are not known: '{error}'");
            }
            workloads.push(listed(instance, &pods, &containers));
        }
        Ok(workloads)
    }

    /// The containers of all pods, each with its name before its lines when there are several.
    fn log_calls(
        &mut self,
        instance: &InstanceName,
        wanted: &LogsRequest,
    ) -> Result<Vec<LogCall>, RuntimeError> {
        let Some(pods) = self.pods_of(instance)? else {
            return Ok(Vec::new());
        };
        let ours = self.containers_of(&pods)?;
        let mut calls = Vec::new();
        for container in &ours {
            let Some(id) = container.id() else {
                continue;
            };
            let mut prefix = String::new();
            if ours.len() > 1 {
                prefix = format!("[{}] ", container.name());
            }
            calls.push(self.cli.log_call(log_arguments(wanted, &id.0), prefix));
        }
        Ok(calls)
    }

    fn image_store(&mut self) -> Result<ImageStore, RuntimeError> {
        images::podman_store(&self.cli)
    }

    fn remove_image(&mut self, removal: &ImageRemoval) -> Result<(), RuntimeError> {
        images::remove_from_podman(&self.cli, removal)
    }
}

/// Checks the workload and returns the manifest to play.
pub fn played_manifest(new: &NewContainer) -> Result<String, RuntimeError> {
    prepare(new).map(|(_, manifest)| manifest)
}

/// Checks the workload; returns its configuration and the manifest to play.
fn prepare(new: &NewContainer) -> Result<(Arc<KubeConfig>, String), RuntimeError> {
    if *new.workload.runtime != *RUNTIME_NAME {
        let other = &new.workload.runtime;
        return Err(RuntimeError::Unsupported(format!(
            "Received a manifest for the wrong runtime: '{other}'"
        )));
    }
    if !new.files.is_empty() {
        let text =
            "Workload files are not supported for podman-kube runtime. Use ConfigMaps instead.";
        return Err(RuntimeError::Unsupported(text.to_owned()));
    }
    let name = &new.instance.workload;
    if name.starts_with('-') {
        // The names of its volumes begin like it, and are arguments of calls.
        let text = format!(
            "Unsupported workload name '{name}': podman has no volumes whose names begin with '-'"
        );
        return Err(RuntimeError::Unsupported(text));
    }
    let config = config_of(&new.workload)?;
    let manifest = match &new.control_interface {
        None => config.manifest.clone(),
        Some(folder) => with_control_interface(
            &config.manifest,
            config.control_interface_target.as_deref(),
            folder,
        )
        .map_err(|text| RuntimeError::Unsupported(without_passwords(&text)))?,
    };
    Ok((config, manifest))
}

fn config_of(workload: &Workload) -> Result<Arc<KubeConfig>, RuntimeError> {
    match &workload.config().engine {
        Ok(EngineConfig::Kube(config)) => Ok(config.clone()),
        Ok(EngineConfig::Container(_)) => {
            Err(RuntimeError::Unsupported("It has no manifest".to_owned()))
        }
        Err(reason) => Err(RuntimeError::Unsupported(reason.clone())),
    }
}

/// The data kept in the label of a volume, from what `volume inspect` prints.
pub fn volume_data(inspected: &str) -> Option<String> {
    let volumes: serde_json::Value = serde_json::from_str(inspected).ok()?;
    let label = volumes[0]["Labels"]["data"].as_str()?;
    let data = BASE64_STANDARD_NO_PAD.decode(label.trim_end_matches('='));
    String::from_utf8(data.ok()?).ok()
}

/// Returns whether a text can be the id of a pod, and cannot be an option of a call.
fn is_pod_id(text: &str) -> bool {
    ContainerId::printed(text).is_some()
}

/// The pod ids that `kube play` printed: the lines between `Pod:` and the next heading, of all such
/// sections.
pub fn parse_pods(output: &str) -> Vec<String> {
    let mut in_pods = false;
    let mut pods = Vec::new();
    for line in output.lines().map(str::trim) {
        if line.ends_with(':') {
            in_pods = line == "Pod:";
        } else if in_pods && is_pod_id(line) {
            pods.push(line.to_owned());
        }
    }
    pods
}

// ------------------------------- states of workloads from the containers of their pods

/// Ids of the pods of a workload: `None` if no play was complete; an error if they cannot be read
/// now.
pub(crate) type Pods = Result<Option<Vec<String>>, RuntimeError>;

/// The workload as a listing shows it.
pub fn listed(
    instance: InstanceName,
    pods: &Pods,
    containers: &[EngineContainer],
) -> ListedContainer {
    let ids: &[String] = if let Ok(Some(ids)) = pods { ids } else { &[] };
    let mut ours: Vec<&EngineContainer> = containers.iter().collect();
    ours.retain(|container| is_in(container, ids));
    let state = match pods {
        Ok(Some(pods)) => combined_state(pods, containers),
        Ok(None) => ExecutionState::plain(Phase::Succeeded),
        Err(_) => {
            ExecutionState::with_info(Phase::FailedUnknown, "Could not load workload metadata")
        }
    };
    let processes: Vec<MainProcess> = ours.iter().filter_map(|one| one.process()).collect();
    // A workload has not ended while any of its containers runs.
    let mut ended_at = None;
    if processes.is_empty() && state.phase.has_ended() {
        ended_at = ours.iter().filter_map(|one| one.ended_at()).max();
    }
    let listed_pods = ListedPods {
        containers: ours.iter().filter_map(|container| container.id()).collect(),
        failed: failed_container(&ours, &state),
    };
    ListedContainer {
        id: ContainerId(instance.to_string().into()),
        instance,
        state,
        processes,
        ended_at,
        in_pod: false,
        pods: Some(listed_pods),
    }
}

/// The container whose failure is `state`; `None` if that is not a failure.
fn failed_container(
    containers: &[&EngineContainer],
    state: &ExecutionState,
) -> Option<ContainerId> {
    if state.phase != Phase::FailedExecFailed {
        return None;
    }
    let mut containers = containers.iter();
    containers
        .find(|container| pod_container_state(container) == *state)?
        .id()
}

fn texts_of(ids: &[ContainerId]) -> Vec<&str> {
    ids.iter().map(|id| &*id.0).collect()
}

/// Returns whether the container belongs to one of these pods.
fn is_in(container: &EngineContainer, pods: &[String]) -> bool {
    let Some(pod) = container.pod() else {
        return false;
    };
    pods.iter().any(|ours| ours == pod)
}

/// The state of a workload: that of its container with the highest priority.
// [impl->swdd~podman-kube-state-getter-combines-states~2]
fn combined_state(pods: &[String], containers: &[EngineContainer]) -> ExecutionState {
    let mut states = Vec::new();
    for pod in pods {
        let before = states.len();
        for container in containers {
            if container.pod() == Some(pod) {
                states.push(pod_container_state(container));
            }
        }
        // [impl->swdd~podman-kube-state-getter-treats-missing-pods-as-unknown~1]
        if states.len() == before {
            states.push(unknown());
        }
    }
    // [impl->swdd~podman-kube-state-getter-removed-if-no-container~1]
    let state = states.into_iter().min_by_key(|state| priority(state.phase));
    state.unwrap_or_else(|| ExecutionState::plain(Phase::FailedLost))
}

fn unknown() -> ExecutionState {
    ExecutionState::with_info(Phase::FailedUnknown, "unknown container state")
}

// [impl->swdd~podman-kube-state-getter-maps-state~2]
fn pod_container_state(container: &EngineContainer) -> ExecutionState {
    let state = container.execution_state();
    match state.phase {
        Phase::PendingStarting => {
            ExecutionState::with_info(Phase::PendingStarting, "starting container")
        }
        Phase::Stopping => ExecutionState::with_info(Phase::Stopping, "stopping container"),
        Phase::FailedUnknown => unknown(),
        _ => state,
    }
}

/// The priority of a state; the lowest number is the highest.
fn priority(phase: Phase) -> u8 {
    match phase {
        Phase::FailedExecFailed => 0,
        Phase::PendingStarting => 1,
        Phase::FailedUnknown => 2,
        Phase::Running => 3,
        Phase::Stopping => 4,
        Phase::Succeeded => 5,
        _ => 6,
    }
}

// ------------------------------------------------- manifests of Kubernetes

/// Name of the volume with the control interface inside a pod.
const VOLUME: &str = "control-interface-volume";

/// A document of a manifest that becomes one or more pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodDocument {
    /// The document alone.
    pub text: String,
    /// `metadata.name`.
    name: String,
    is_pod: bool,
    /// `terminationGracePeriodSeconds`: the time for its containers to stop. `None` if it has none,
    /// or it is not a number of seconds.
    pub(crate) stop_seconds: Option<u32>,
}

impl PodDocument {
    /// Returns whether podman may have made the pod called `pod` from this document: a Pod keeps its
    /// name, the pods of other kinds are called `<name>-pod` or `<name>-pod-<number>`, depending on
    /// podman's version.
    pub(crate) fn makes(&self, pod: &str) -> bool {
        if self.is_pod {
            return pod == self.name;
        }
        let rest = pod.strip_prefix(&self.name);
        let Some(rest) = rest.and_then(|rest| rest.strip_prefix("-pod")) else {
            return false;
        };
        let Some(number) = rest.strip_prefix('-') else {
            return rest.is_empty();
        };
        number.bytes().all(|digit| digit.is_ascii_digit())
    }
}

/// The documents of `manifest` that become pods; empty if it cannot be read.
pub fn pod_documents(manifest: &str) -> Vec<PodDocument> {
    let mut documents = of_pods(manifest);
    documents.iter_mut().filter_map(pod_document).collect()
}

fn pod_document(document: &mut Value) -> Option<PodDocument> {
    let name = document.get("metadata")?.get("name")?.as_str()?.to_owned();
    let is_pod = document.get("kind")?.as_str() == Some("Pod");
    let text = serde_yaml::to_string(document).ok()?;
    let seconds =
        pod_spec(document).and_then(|spec| spec.get("terminationGracePeriodSeconds")?.as_u64());
    let stop_seconds = seconds.map(|seconds| u32::try_from(seconds).unwrap_or(u32::MAX));
    Some(PodDocument {
        text,
        name,
        is_pod,
        stop_seconds,
    })
}

/// The images that a play of `manifest` pulls if they are missing: not those that it always or
/// never pulls.
pub(crate) fn pulled_images(manifest: &str) -> BTreeSet<String> {
    let mut images = BTreeSet::new();
    for container in containers_in(manifest) {
        images.extend(pulled_image(&container).map(str::to_owned));
    }
    images
}

/// All images of a manifest.
pub(crate) fn all_images(manifest: &str) -> BTreeSet<String> {
    let mut images = BTreeSet::new();
    for container in containers_in(manifest) {
        let image = container.get("image").and_then(Value::as_str);
        images.extend(image.map(str::to_owned));
    }
    images
}

/// The containers of all pods of a manifest.
fn containers_in(manifest: &str) -> Vec<Value> {
    let mut all = Vec::new();
    for mut document in of_pods(manifest) {
        let Some(spec) = pod_spec(&mut document) else {
            continue;
        };
        for list in ["containers", "initContainers"] {
            let containers = spec.get(list).and_then(Value::as_sequence);
            all.extend(containers.into_iter().flatten().cloned());
        }
    }
    all
}

/// The image of a container that is pulled if it is missing.
fn pulled_image(container: &Value) -> Option<&str> {
    if let Some(policy) = container.get("imagePullPolicy")
        && policy.as_str() != Some("IfNotPresent")
    {
        return None;
    }
    let image = container.get("image")?.as_str()?;
    // An engine would read the latter as an option.
    if image.is_empty() || image.starts_with('-') {
        return None;
    }
    Some(image)
}

/// The end of the name that podman gives to the first container of a manifest.
pub fn first_container(manifest: &str) -> Option<String> {
    of_pods(manifest).iter_mut().find_map(|document| {
        let containers = pod_spec(document)?.get("containers")?;
        let name = containers.get(0)?.get("name")?.as_str()?;
        Some(format!("-{name}"))
    })
}

/// The documents of the kinds that become pods; empty if the manifest cannot be read.
fn of_pods(manifest: &str) -> Vec<Value> {
    let mut documents = parse(manifest).unwrap_or_default();
    documents.retain(|document| {
        let kind = document.get("kind").and_then(Value::as_str);
        matches!(kind, Some("Pod" | "Deployment" | "DaemonSet" | "Job"))
    });
    documents
}

/// Mounts `host_folder` as control interface into the container that `target` (`<pod>/<container>`)
/// names.
pub(crate) fn with_control_interface(
    manifest: &str,
    target: Option<&str>,
    host_folder: &Path,
) -> Result<String, String> {
    let target = target.ok_or("Control interface target not specified in runtime config.")?;
    let (pod, container) =
        target.split_once('/').filter(|(_, container)| !container.contains('/')).ok_or_else(|| {
            format!(
                "Invalid control interface target format: '{target}'. Expected format: '<pod_name>/<container_name>'"
            )
        })?;
    let mut documents =
        parse(manifest).map_err(|error| format!("Failed to parse YAML manifest: {error}"))?;
    let document = find_pod(&mut documents, pod)?;
    let spec = pod_spec(document).ok_or("Manifest missing spec.containers")?;
    let containers = spec.get_mut("containers").and_then(Value::as_sequence_mut);
    add_mount(
        containers.ok_or("Manifest missing spec.containers")?,
        container,
    )?;
    let host_path = mapping([
        ("path", host_folder.display().to_string().into()),
        ("type", "Directory".into()),
    ]);
    let volume = mapping([("name", VOLUME.into()), ("hostPath", host_path)]);
    append(spec, "volumes", volume).ok_or("Manifest missing spec.volumes")?;
    let texts: Result<Vec<String>, _> = documents.iter().map(serde_yaml::to_string).collect();
    texts
        .map(|texts| texts.join("---\n"))
        .map_err(|error| format!("Failed to parse YAML manifest: {error}"))
}

/// The documents without empty ones, which a `---` at the end makes.
fn parse(manifest: &str) -> Result<Vec<Value>, YamlError> {
    let mut documents = yaml::read_all(manifest, Origin::Others)?;
    documents.retain(|document| !document.is_null());
    Ok(documents.iter().map(value).collect())
}

fn value(node: &Yaml) -> Value {
    match &node.content {
        Content::Text(text) => (**text).into(),
        Content::Plain(Plain::Null, _) => Value::Null,
        Content::Plain(Plain::Boolean, text) => text.eq_ignore_ascii_case("true").into(),
        Content::Plain(_, text) => match text.parse() {
            Ok(number) => Value::Number(number),
            Err(_) => (**text).into(),
        },
        Content::List(items) => Value::Sequence(items.iter().map(value).collect()),
        Content::Map(entries) => {
            let entries = entries.iter().map(|(key, node)| (value(key), value(node)));
            Value::Mapping(entries.collect())
        }
    }
}

fn find_pod<'a>(documents: &'a mut [Value], pod: &str) -> Result<&'a mut Value, String> {
    for document in documents {
        let kind = document.get("kind").and_then(Value::as_str);
        let kind = kind.ok_or("Manifest missing 'kind' field")?;
        let metadata = document.get("metadata");
        let name = metadata.and_then(|metadata| metadata.get("name")?.as_str());
        let name = name.ok_or("Manifest missing metadata.name")?;
        let found = match kind {
            "Pod" => name == pod,
            "Deployment" => pod.strip_suffix("-pod") == Some(name),
            _ => false,
        };
        if found {
            return Ok(document);
        }
    }
    Err(format!(
        "Cannot add Control Interface. Target pod not found '{pod}'"
    ))
}

/// The mapping with the list of containers.
fn pod_spec(document: &mut Value) -> Option<&mut Value> {
    let spec = document.get_mut("spec")?;
    if spec.get("containers").is_some_and(Value::is_sequence) {
        return Some(spec);
    }
    spec.get_mut("template")?.get_mut("spec")
}

fn add_mount(containers: &mut [Value], name: &str) -> Result<(), String> {
    for container in containers {
        let found = container.get("name").and_then(Value::as_str);
        if found.ok_or("Container missing name field")? == name {
            // Where a container finds its control interface.
            let mount = mapping([
                ("name", VOLUME.into()),
                ("mountPath", "/run/ankaios/control_interface".into()),
            ]);
            return append(container, "volumeMounts", mount)
                .ok_or_else(|| format!("The volumeMounts of container '{name}' are not a list"));
        }
    }
    Err(format!(
        "Cannot add Control Interface. Target container '{name}' not found."
    ))
}

/// Appends to the list `key` of `parent`, which is created if it is absent; `None` if it is not a
/// list.
fn append(parent: &mut Value, key: &str, item: Value) -> Option<()> {
    let entry = parent.as_mapping_mut()?.entry(key.into());
    let list = entry.or_insert(Value::Null);
    if list.is_null() {
        *list = Value::Sequence(Vec::new());
    }
    list.as_sequence_mut()?.push(item);
    Some(())
}

fn mapping<const N: usize>(entries: [(&str, Value); N]) -> Value {
    let entries = entries.into_iter().map(|(key, value)| (key.into(), value));
    Value::Mapping(entries.collect::<Mapping>())
}

#[cfg(test)]
mod tests;
