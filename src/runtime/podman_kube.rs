//! Pods from Kubernetes manifests through `podman kube play` and `down`.
//!
//! Podman does not record to which workload a pod belongs, so two texts per workload do: its
//! runtime configuration and the ids of its pods. Each is kept in a file in the folder of the
//! instance, and in the label of a volume (`<instance>.config`, `<instance>.pods`), which outlives
//! a boot and which other implementations read.
//!
//! Nothing that may have pods is forgotten: both stay until its pods are known to be gone, also
//! when a play failed and its pods could not be listed or removed.
//!
//! Thread: the caller's: `call:<name>` for create, `wl:<name>` for delete, `list:podman-kube` for
//! listings. Pods of one manifest that may take different times to stop have a thread `stop:<name>`
//! for each further time.
//! Owns: what a play that failed may have left.

use super::call_error::{ErrorMeaning, meaning_of_podman};
use super::command::EngineCall;
use super::container_config::CONTROL_INTERFACE;
use super::container_engine::{CONTAINER_STOP_DEFAULT, more_than_default, pull_missing};
use super::container_list::EngineContainer;
use super::container_records::ENDED;
use super::engine_children::EngineChildren;
use super::engine_cli::EngineCli;
use super::engine_version::version_of;
use super::images::{self, ImageRemoval, ImageStore};
use super::log_reader::{LogCall, log_arguments};
use super::masking::MaskedArguments;
use super::out_of_memory::{self, OutOfMemory, has_monitor_file, make_start_folder};
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

/// Containers that podman stops at the same time on a node with one core: three for each core.
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
    /// The pods before the play. They are not pods of this instance, even if the play failed
    /// because of their names.
    before: Vec<ExistingPod>,
    /// Ids of the pods that the play has made; `None` until the engine could list them.
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

    // ------------------------------------------------- data of an instance

    /// Keeps `data` of the instance under the name `part`. Only other connectors and later agents
    /// need it, so a failure is no failure of the workload. The only error is `Cancelled`.
    // [impl->swdd~podman-kube-create-continues-if-cannot-create-volume~1]
    fn keep(
        &self,
        part: &str,
        instance: &InstanceName,
        data: &str,
        cancel: Cancel<'_>,
    ) -> Result<(), RuntimeError> {
        self.cli.records().keep(instance, part, data);
        let volume = format!("{instance}.{part}");
        // First remove an older volume. There may be none.
        let removed = self.remove_volume(&volume, cancel);
        if removed == Err(RuntimeError::Cancelled) {
            return removed;
        }
        // Then create the new one. The data may contain secrets of the workload.
        let label = format!("--label=data={}", BASE64_STANDARD_NO_PAD.encode(data));
        let create = MaskedArguments::from(["volume", "create"])
            .options(&[label])
            .plain(&[&volume]);
        match self.cli.change(create).limit(LISTING_MAX).run(cancel) {
            Err(RuntimeError::Cancelled) => return Err(RuntimeError::Cancelled),
            Err(error) => log::warn!("Could not create volume '{volume}': '{error}'"),
            Ok(_) => {}
        }
        Ok(())
    }

    /// The kept data; `None` if there is none.
    fn kept(&self, part: &str, instance: &InstanceName) -> Result<Option<String>, RuntimeError> {
        if let Some(text) = self.cli.records().kept(instance, part) {
            return Ok(Some(text));
        }
        let volume = format!("{instance}.{part}");
        let arguments = ["volume", "inspect", &volume];
        let text = match self.cli.query(&arguments) {
            Err(error) if *error.meaning() == ErrorMeaning::NoSuchVolume => return Ok(None),
            answer => answer?,
        };
        let Some(data) = volume_data(&text) else {
            let why = format!("Volume '{volume}' holds no data");
            return Err(self.cli.nonsense(&why, &arguments));
        };
        self.cli.records().keep(instance, part, &data); // Later reads need no call.
        Ok(Some(data))
    }

    fn remove_volume(&self, volume: &str, cancel: Cancel<'_>) -> Result<(), RuntimeError> {
        let call = self.cli.change(["volume", "rm", volume]);
        call.limit(LISTING_MAX).run(cancel)?;
        Ok(())
    }

    /// Forgets all that is kept of the instance.
    // [impl->swdd~podman-kube-delete-removes-volumes~1]
    fn forget(&self, instance: &InstanceName) {
        // The configuration goes last: until then a crashed agent finds the workload again.
        for part in [PODS, CONFIG] {
            self.cli.records().forget(instance, part);
            let volume = format!("{instance}.{part}");
            match self.remove_volume(&volume, None) {
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
        // The filter is a regular expression, in which a plain dot matches any character.
        let filter = format!("name=\\.{}\\.{CONFIG}$", self.agent);
        let arguments = ["volume", "ls", "--filter", &filter, "--format={{.Name}}"];
        for line in self.cli.query(&arguments)?.lines() {
            let name = line.trim().strip_suffix(CONFIG);
            let Some(name) = name.and_then(|name| name.strip_suffix('.')) else {
                let why = "The list of volumes cannot be read";
                return Err(self.cli.nonsense(why, &arguments));
            };
            if let Some(instance) = InstanceName::parse(name)
                && instance.agent == self.agent
            {
                instances.insert(instance);
            }
        }
        Ok(instances)
    }

    /// The pods of the instance.
    // [impl->swdd~podman-kube-get-workload-id-uses-volumes~1]
    fn pods_of(&self, instance: &InstanceName) -> PodsResult {
        let mut kept = self.kept(PODS, instance);
        if kept.is_err() {
            // Try once more, as for listings: a short failure must not look like a lost workload.
            kept = self.kept(PODS, instance);
        }
        let Some(text) = kept? else {
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

    /// All pods of the engine.
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

    /// A call of a verb of `kube` with the manifest as its input; the caller limits and runs it.
    fn kube_call<'c>(
        &'c self,
        general: &[String],
        verb: &[&str],
        options: &[String],
        manifest: &'c str,
    ) -> EngineCall<'c> {
        let arguments = MaskedArguments::default()
            .options(general)
            .plain(&["kube"])
            .plain(verb)
            .options(options);
        let call = self.cli.change(arguments.plain(&["-"]));
        call.input(manifest.as_bytes())
    }

    /// Makes the pods and returns their ids. If podman prints something else, they are listed.
    // [impl->swdd~podman-kube-create-workload-apply-manifest~1]
    fn play(
        &self,
        config: &KubeConfig,
        play: &Play,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<Vec<String>, RuntimeError> {
        // First play the manifest.
        let options = config.general_options.iter().chain(&config.play_options);
        let texts_with_paths = options.chain([&play.manifest]);
        let call = self.kube_call(
            &config.general_options,
            &["play", "--quiet"],
            &config.play_options,
            &play.manifest,
        );
        let folder = make_start_folder(&self.cli.records(), &play.instance, texts_with_paths);
        let output = call.folder(folder).limit(limit).run(cancel)?;
        // Then read the ids that podman printed.
        let text = output.into_text();
        let printed = match &text {
            Ok(text) => parse_pods(text),
            Err(_) => Vec::new(),
        };
        if !printed.is_empty() || pod_documents(&play.manifest).is_empty() {
            return Ok(printed);
        }
        // Finally, without ids, list the pods.
        let pods = self.pods_since(play, cancel)?;
        if pods.is_empty() {
            text?; // If the output could not be read, that is the reason.
            let why = "It made no pod that can be found";
            return Err(self.cli.nonsense(why, &["kube", "play"]));
        }
        Ok(pods)
    }

    /// Removes the pods that a failed play has made, and then its data. If they cannot be listed or
    /// removed now, the next create or delete tries again.
    fn remove_left_over(&self, workload: &Name, cancel: Cancel<'_>) -> Result<(), RuntimeError> {
        let Some(mut failed) = self.failed_plays.lock().remove(workload) else {
            return Ok(());
        };
        if let Err(error) = self.remove_made(&mut failed, cancel) {
            self.failed_plays.lock().insert(workload.clone(), failed);
            return Err(error);
        }
        self.forget(&failed.instance);
        Ok(())
    }

    /// Removes the pods that the failed play has made.
    fn remove_made(&self, failed: &mut Play, cancel: Cancel<'_>) -> Result<(), RuntimeError> {
        // First list them.
        if failed.made.is_none() {
            failed.made = Some(self.pods_since(failed, cancel)?);
        }
        let made = failed.made.as_deref().unwrap_or_default();
        if made.is_empty() {
            return Ok(());
        }
        // Then stop running containers in order: they may have data to write.
        self.stop_in_order(&failed.instance, &failed.manifest, Some(made))?;
        // Finally remove all at once. With another time podman would wait up to ten seconds for
        // each container that ignores its signal, whatever the manifest says.
        let call =
            MaskedArguments::from(["pod", "rm", "--force", "--ignore", "--time=0"]).plain(made);
        self.cli.change(call).limit(POD_DOWN_MAX).run(cancel)?;
        Ok(())
    }

    /// Stops the containers in the pods of the instance with their stop signals, each pod within
    /// its own time: `kube down` of podman 4.3 would kill them at once.
    ///
    /// The infra container of a pod continues, and with it the network. Without `pods`, as after an
    /// interrupted play, the pods are found by their names, as `kube down` finds them.
    // [impl->swdd~podman-kube-delete-stops-in-order~1]
    fn stop_in_order(
        &self,
        instance: &InstanceName,
        manifest: &str,
        pods: Option<&[String]>,
    ) -> Result<(), RuntimeError> {
        // First group the running containers by their time to stop.
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
                continue; // It does not run.
            };
            if container.is_paused() {
                paused.push(process.container.clone());
            }
            let seconds = document.and_then(|document| document.stop_seconds);
            running.entry(seconds).or_default().push(process.container);
        }
        // Then continue paused ones: they do not notice a stop, and podman 4 refuses both to stop
        // and to remove them.
        if !paused.is_empty() {
            let call = MaskedArguments::from(["unpause"]).plain(&texts_of(&paused));
            self.cli.change(call).limit(LISTING_MAX).run(None)?;
        }
        // Finally stop all groups.
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
        // First start a thread for each further group.
        let (send_result, results) = bounded(groups.len());
        for (seconds, group) in groups {
            let connector = self.clone();
            let send_result = send_result.clone();
            let source = instance.workload.clone();
            let thread = format!("stop:{}", instance.workload);
            let started = threads::spawn(thread, STACK_WORKLOAD, move || {
                let _source = log_source(source);
                // After an error the results have no receiver.
                let _ = send_result.send(connector.stop_group(seconds, &group));
            });
            if let Err(error) = started {
                let text = format!("Error: no thread stops its pods: {error}");
                return Err(RuntimeError::NotStarted(text.into()));
            }
        }
        drop(send_result);
        // Then stop the first group here, and wait for all others.
        let mut outcome = self.stop_group(first_seconds, &first);
        for other in results {
            outcome = outcome.and(other);
        }
        outcome
    }

    /// Stops these containers within `seconds`; without `seconds`, within the time that each has at
    /// the engine.
    fn stop_group(
        &self,
        seconds: Option<u32>,
        containers: &[ContainerId],
    ) -> Result<(), RuntimeError> {
        let ids = texts_of(containers);
        let count = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        let turns = count.div_ceil(STOPPED_AT_ONCE);
        let mut arguments = MaskedArguments::from(["stop", "--ignore"]);
        let mut one_stop = CONTAINER_STOP_DEFAULT;
        if let Some(seconds) = seconds {
            arguments = arguments.plain(&[format!("--time={seconds}")]);
            one_stop = Duration::from_secs(seconds.into());
        }
        let limit = one_stop.saturating_mul(turns).saturating_add(STOP_GRACE);
        let call = self.cli.change(arguments.plain(&ids)).limit(limit);
        call.run_extended(None, || {
            if seconds.is_some() {
                return None; // The times at the engine do not apply.
            }
            let inspect = ["container", "inspect", "--format={{.Config.StopTimeout}}"];
            let more = more_than_default(&self.cli, &inspect, &ids)?;
            Some(more.saturating_mul(turns))
        })?;
        Ok(())
    }

    /// Takes all pods of the manifest down. Podman refuses as soon as one of them is missing and
    /// leaves the other pods, so each is taken down alone then.
    // [impl->swdd~podman-kube-delete-workload-downs-manifest-file~1]
    fn down(&self, config: &KubeConfig) -> Result<(), RuntimeError> {
        let all = self.take_down(&config.manifest, config);
        if !is_missing_pod(&all) {
            return all;
        }
        let documents = pod_documents(&config.manifest);
        if documents.len() == 1 {
            return Ok(()); // Its pod is the missing one.
        }
        for document in documents {
            let one = self.take_down(&document.text, config);
            if !is_missing_pod(&one) {
                one?;
            }
        }
        Ok(())
    }

    fn take_down(&self, manifest: &str, config: &KubeConfig) -> Result<(), RuntimeError> {
        let options = &config.down_options;
        let call = self.kube_call(&[], &["down"], options, manifest);
        call.limit(POD_DOWN_MAX).run(None)?;
        Ok(())
    }

    /// The configuration of the play for the instance; `None` if there was none.
    fn recall(&self, instance: &InstanceName) -> Result<Option<KubeConfig>, RuntimeError> {
        let Some(text) = self.kept(CONFIG, instance)? else {
            return Ok(None);
        };
        let config = KubeConfig::read(&text).map_err(RuntimeError::Unsupported)?;
        Ok(Some(config))
    }
}

fn is_missing_pod(result: &Result<(), RuntimeError>) -> bool {
    match result {
        Ok(()) => false,
        Err(error) => *error.meaning() == ErrorMeaning::NoSuchPod,
    }
}

fn instance_of(id: &ContainerId) -> Result<InstanceName, RuntimeError> {
    InstanceName::parse(&id.0).ok_or_else(|| {
        let text = format!("'{}' is not the name of a workload instance", id.0);
        RuntimeError::Failed(text.into())
    })
}

impl RuntimeConnector for PodmanKubeConnector {
    /// Plays the manifest. If that fails, removes the pods that the play has made.
    fn create(
        &mut self,
        new: &NewContainer,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<ContainerId, RuntimeError> {
        let config = checked_config(new)?;
        let manifest = manifest_to_play(new, &config)?;
        // First remove the pods of an earlier play that failed.
        self.remove_left_over(&new.instance.workload, cancel)?;
        let instance = &new.instance;
        let mut play = Play {
            instance: instance.clone(),
            manifest,
            before: self.existing_pods(cancel)?,
            made: None,
        };
        // Then keep the configuration, and play.
        // [impl->swdd~podman-kube-create-workload-creates-config-volume~1]
        let kept = self.keep(CONFIG, instance, &new.workload.runtime_config, cancel);
        let is_kept = kept.is_ok();
        let played = match kept {
            Ok(()) => self.play(&config, &play, limit, cancel),
            Err(error) => Err(error),
        };
        let error = match played {
            Ok(pods) => {
                // Keep the ids of the pods. This is not cancelled, so that a delete that comes now
                // finds the running pods. A failure was logged.
                // [impl->swdd~podman-kube-create-workload-creates-pods-volume~1]
                let _ = self.keep(PODS, instance, &serde_json::json!(pods).to_string(), None);
                // [impl->swdd~podman-kube-create-workload-returns-workload-id~1]
                return Ok(ContainerId(instance.to_string().into()));
            }
            Err(error) => error,
        };
        // Finally clean up after a failure. This is not cancelled either: a delete that comes now
        // would only have to do the same.
        let has_begun = is_kept && !error.means_not_started();
        if !has_begun {
            play.made = Some(Vec::new()); // No pods have to be searched.
        }
        let mut failed_plays = self.failed_plays.lock();
        failed_plays.insert(instance.workload.clone(), play);
        drop(failed_plays);
        if let Err(error) = self.remove_left_over(&instance.workload, None) {
            log::warn!("Failed container cleanup after failed create. Error: '{error}'");
        }
        Err(error)
    }

    /// Pulls the missing images. A play has no other steps that could be done before it.
    fn prepare_image(
        &mut self,
        workload: &Workload,
        limit: Option<Duration>,
        cancel: Cancel<'_>,
    ) -> Result<(), RuntimeError> {
        let config = config_of(workload)?;
        for image in pulled_images(&config.manifest) {
            // The engine is called as for a workload with this image.
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

    /// Stops and removes the pods, then forgets the instance.
    fn delete(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        let instance = instance_of(id)?;
        self.remove_left_over(&instance.workload, None)?;
        let Some(config) = self.recall(&instance)? else {
            return Ok(()); // It is deleted, or was never made.
        };
        // If the ids cannot be read, the pods are found by their names.
        let pods = self.pods_of(&instance).ok().flatten();
        self.stop_in_order(&instance, &config.manifest, pods.as_deref())?;
        self.down(&config)?;
        self.forget(&instance);
        Ok(())
    }

    /// Stops the pods and keeps them, with their logs. If their ids are not known, they are
    /// deleted.
    fn stop(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        let instance = instance_of(id)?;
        let pods = self.pods_of(&instance).ok().flatten().unwrap_or_default();
        if pods.is_empty() {
            return self.delete(id);
        }
        let config = self.recall(&instance)?;
        let manifest = match &config {
            Some(config) => &config.manifest,
            None => "",
        };
        self.stop_in_order(&instance, manifest, Some(&pods))?;
        let arguments = MaskedArguments::from(["pod", "stop", "--ignore"]).plain(&pods);
        self.cli.change(arguments).limit(POD_DOWN_MAX).run(None)?;
        Ok(())
    }

    /// The container for commands is the first of the manifest, or else any of the instance. All
    /// processes are given, since the containers of a pod share its network.
    fn probe_target(
        &mut self,
        id: &ContainerId,
        _with_processes: bool,
    ) -> Result<ProbeTarget, RuntimeError> {
        let instance = instance_of(id)?;
        let config = self.recall(&instance)?;
        let name_end = config.and_then(|config| end_of_first_name(&config.manifest));
        // Without known pods there is no container, and the probe fails with that reason.
        let pods = self.pods_of(&instance).ok().flatten().unwrap_or_default();
        let ours = self.containers_of(&pods)?;
        let mut chosen = ours.first();
        if let Some(name_end) = name_end
            && let Some(first) = ours.iter().find(|one| one.name().ends_with(&name_end))
        {
            chosen = Some(first);
        }
        Ok(ProbeTarget {
            program: PROGRAM,
            container: chosen.and_then(|one| one.id()).map(|id| id.0.to_string()),
            processes: ours.iter().filter_map(|one| one.process()).collect(),
        })
    }

    /// Inspects the containers that were killed, if there are any.
    // [impl->swdd~agent-reports-kills-out-of-memory~1]
    fn out_of_memory(
        &mut self,
        instance: &InstanceName,
        id: &ContainerId,
    ) -> Result<Option<OutOfMemory>, RuntimeError> {
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
        let has_file = has_monitor_file(&self.cli.records(), instance);
        Ok(out_of_memory::in_inspected(&text, has_file, Path::new("/")))
    }

    /// An instance may have pods while its configuration is kept.
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
        // First read the ids of the pods, so that the later listing has the containers of all.
        let mut known_pods = BTreeMap::new();
        for instance in instances {
            let pods = self.pods_of(&instance);
            known_pods.insert(instance, pods);
        }
        // [impl->swdd~podman-kube-state-getter-uses-container-states~1]
        // [impl->swdd~podman-kube-state-getter-reset-cache~1]
        let containers = self.cli.containers(&[])?;
        let mut workloads = Vec::new();
        for (instance, pods) in known_pods {
            if let Err(error) = &pods {
                log::warn!("The pods of workload '{instance}' are not known: '{error}'");
            }
            workloads.push(listed(instance, &pods, &containers));
        }
        Ok(workloads)
    }

    fn version(&mut self) -> Option<String> {
        version_of(self.cli.program)
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
    manifest_to_play(new, &*checked_config(new)?)
}

/// Checks the workload and returns its configuration.
fn checked_config(new: &NewContainer) -> Result<Arc<KubeConfig>, RuntimeError> {
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
        // The names of its volumes begin with its own name, and are arguments of calls.
        let text = format!(
            "Unsupported workload name '{name}': podman has no volumes whose names begin with '-'"
        );
        return Err(RuntimeError::Unsupported(text));
    }
    config_of(&new.workload)
}

/// The manifest of `config`, with the control interface of `new` if it has one.
fn manifest_to_play(new: &NewContainer, config: &KubeConfig) -> Result<String, RuntimeError> {
    let Some(folder) = &new.control_interface else {
        return Ok(config.manifest.clone());
    };
    let target = config.control_interface_target.as_deref();
    with_control_interface(&config.manifest, target, folder)
        .map_err(|text| RuntimeError::Unsupported(without_passwords(&text)))
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
pub(crate) type PodsResult = Result<Option<Vec<String>>, RuntimeError>;

/// The workload as a listing shows it.
pub fn listed(
    instance: InstanceName,
    pods: &PodsResult,
    containers: &[EngineContainer],
) -> ListedContainer {
    let mut ids: &[String] = &[];
    if let Ok(Some(known)) = pods {
        ids = known;
    }
    let mut ours: Vec<&EngineContainer> = containers.iter().collect();
    ours.retain(|container| is_in(container, ids));
    let state = match pods {
        Ok(Some(pods)) => combined_state(pods, containers),
        // No play was complete, so no pod of it runs.
        Ok(None) => ExecutionState::plain(Phase::Succeeded),
        Err(_) => {
            ExecutionState::with_info(Phase::FailedUnknown, "Could not load workload metadata")
        }
    };
    let processes: Vec<MainProcess> = ours.iter().filter_map(|one| one.process()).collect();
    // A workload runs while any of its containers does.
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
    for container in containers {
        if pod_container_state(container) == *state {
            return container.id();
        }
    }
    None
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

/// The state of one container for [`combined_state`], without words of podman.
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
    /// Returns whether podman may have made the pod called `pod` from this document: a Pod keeps
    /// its name, the pods of other kinds are called `<name>-pod` or `<name>-pod-<number>`,
    /// depending on podman's version.
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

/// Reads a document; `None` if it has no kind or name.
fn pod_document(document: &mut Value) -> Option<PodDocument> {
    Some(PodDocument {
        text: serde_yaml::to_string(document).ok()?,
        name: document.get("metadata")?.get("name")?.as_str()?.to_owned(),
        is_pod: document.get("kind")?.as_str() == Some("Pod"),
        stop_seconds: stop_seconds(document),
    })
}

fn stop_seconds(document: &mut Value) -> Option<u32> {
    let seconds = pod_spec(document)?.get("terminationGracePeriodSeconds")?;
    let seconds = seconds.as_u64()?;
    Some(u32::try_from(seconds).unwrap_or(u32::MAX))
}

/// The images that a play of `manifest` pulls if they are missing, without images that it always or
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
    if image.is_empty() || image.starts_with('-') {
        return None; // As an argument of a call it would be missing, or an option.
    }
    Some(image)
}

/// The end of the name that podman gives to the first container of a manifest.
pub fn end_of_first_name(manifest: &str) -> Option<String> {
    of_pods(manifest).iter_mut().find_map(name_of_first)
}

fn name_of_first(document: &mut Value) -> Option<String> {
    let containers = pod_spec(document)?.get("containers")?;
    let name = containers.get(0)?.get("name")?.as_str()?;
    Some(format!("-{name}"))
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
    // First find the container.
    let target = target.ok_or("Control interface target not specified in runtime config.")?;
    let Some((pod, container)) = target.split_once('/') else {
        return Err(invalid_target(target));
    };
    if container.contains('/') {
        return Err(invalid_target(target));
    }
    let mut documents =
        parse(manifest).map_err(|error| format!("Failed to parse YAML manifest: {error}"))?;
    let document = find_pod(&mut documents, pod)?;
    let spec = pod_spec(document).ok_or("Manifest missing spec.containers")?;
    let containers = spec.get_mut("containers").and_then(Value::as_sequence_mut);
    let containers = containers.ok_or("Manifest missing spec.containers")?;
    // Then add the mount to it, and the volume to its pod.
    add_mount(containers, container)?;
    let host_path = mapping([
        ("path", host_folder.display().to_string().into()),
        ("type", "Directory".into()),
    ]);
    let volume = mapping([("name", VOLUME.into()), ("hostPath", host_path)]);
    append(spec, "volumes", volume).ok_or("Manifest missing spec.volumes")?;
    // Finally write all documents.
    let mut texts = Vec::new();
    for document in documents {
        let text = serde_yaml::to_string(&document);
        texts.push(text.map_err(|error| format!("Failed to parse YAML manifest: {error}"))?);
    }
    Ok(texts.join("---\n"))
}

fn invalid_target(target: &str) -> String {
    format!(
        "Invalid control interface target format: '{target}'. Expected format: '<pod_name>/<container_name>'"
    )
}

/// The documents without empty ones, which a `---` at the end makes.
fn parse(manifest: &str) -> Result<Vec<Value>, YamlError> {
    let mut documents = yaml::read_all(manifest, Origin::Others)?;
    documents.retain(|document| !document.is_null());
    Ok(documents.iter().map(value).collect())
}

/// Converts a node of the parser to the type that is written again.
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

/// Finds the document that makes the pod called `pod`.
fn find_pod<'a>(documents: &'a mut [Value], pod: &str) -> Result<&'a mut Value, String> {
    for document in documents {
        let kind = document.get("kind").and_then(Value::as_str);
        let kind = kind.ok_or("Manifest missing 'kind' field")?;
        let metadata = document.get("metadata");
        let name = metadata.and_then(|metadata| metadata.get("name")?.as_str());
        let name = name.ok_or("Manifest missing metadata.name")?;
        let makes_pod = match kind {
            "Pod" => name == pod,
            "Deployment" => pod.strip_suffix("-pod") == Some(name),
            _ => false,
        };
        if makes_pod {
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

/// Mounts the control interface into the container called `name`.
fn add_mount(containers: &mut [Value], name: &str) -> Result<(), String> {
    for container in containers {
        let its_name = container.get("name").and_then(Value::as_str);
        if its_name.ok_or("Container missing name field")? == name {
            let mount = mapping([
                ("name", VOLUME.into()),
                ("mountPath", CONTROL_INTERFACE.into()),
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
