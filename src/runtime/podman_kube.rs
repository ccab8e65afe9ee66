//! Pods from Kubernetes manifests through `podman kube play` and `down`.
//!
//! Podman does not record to which workload a pod belongs, so two volumes per workload do: `<instance>.config`
//! holds the runtime configuration and `<instance>.pods` the ids of its pods, each in a label. The connectors of an agent
//! also remember what they played, so that a volume that could not be made hurts only after a restart of the agent.
//!
//! Nothing that may have pods is forgotten: the volumes of a workload stay until its pods are known to be gone, also
//! when a play failed and what it left could not be listed or removed.
//!
//! Thread: the caller's: `wl:<name>` for create and delete, `list:podman-kube` for listings.
//! Owns: what was played, shared behind a lock that is held for a moment only; what each read.

use super::container_config::strings;
use super::container_list::EngineContainer;
use super::engine_children::EngineChildren;
use super::engine_cli::EngineCli;
use super::images::pull_missing;
use super::kube_manifest::{first_container, images, pod_documents, with_control_interface};
use super::log_reader::{LogCall, log_arguments};
use super::masking::{MASK, Masked};
use super::pod_states::{Pods, is_in, listed};
use super::{
    CallSequence, CallWatch, ContainerId, ListedContainer, NewContainer, ProbeTarget, RuntimeConnector, RuntimeError,
    Unwatched,
};
use crate::limits::{LISTING_MAX, POD_DOWN_MAX};
use crate::model::messages::LogsRequest;
use crate::model::names::{InstanceName, Name};
use crate::model::runtime_config::{ContainerConfig, EngineConfig, KubeConfig, Texts};
use crate::model::shown_text::without_passwords;
use crate::model::workload::Workload;
use crate::platform::sync::Mutex;
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Name of the runtime in manifests.
// [impl->swdd~podman-kube-name-returns-podman-kube~1]
pub const RUNTIME_NAME: &str = "podman-kube";
const PROGRAM: &str = "podman";
const CONFIG_SUFFIX: &str = ".config";
const PODS_SUFFIX: &str = ".pods";

/// Written without padding as the peer does; read in either form.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_encode_padding(false).with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What is needed to watch and to take down a workload.
// [impl->swdd~podman-kube-workload-id]
#[derive(Debug, Clone, PartialEq, Eq)]
struct Played {
    manifest: String,
    down_options: Texts,
    /// `None` when it was read from its volume.
    pods: Option<Vec<String>>,
    /// Its pods are being taken down, so they may be missing.
    goes_down: bool,
}

/// A play that failed, whose pods are not known to be gone yet.
#[derive(Debug, Clone)]
struct FailedPlay {
    instance: InstanceName,
    manifest: String,
    /// Ids and names of the pods before it: those are somebody else's, even when the play failed because they have
    /// the same name.
    before: Vec<(String, String)>,
    /// What it made; `None` until the engine could list it.
    made: Option<Vec<String>>,
}

/// Runs workloads as pods for one agent.
// [impl->swdd~podman-kube-implements-runtime-connector~1]
// [impl->swdd~podman-kube-uses-podman-cli~1]
#[derive(Debug)]
pub struct PodmanKubeConnector {
    cli: EngineCli,
    agent: Name,
    /// Played by one of the connectors of this agent.
    played: Arc<Mutex<BTreeMap<InstanceName, Played>>>,
    failed_play: Option<FailedPlay>,
    /// Pods that were read from volumes.
    read: BTreeMap<InstanceName, Vec<String>>,
    /// Instances whose pods volume was complained about, so that the log does not repeat it.
    complained: BTreeSet<InstanceName>,
    /// Pods that the last listing missed, for the same reason.
    missing: BTreeSet<String>,
}

impl PodmanKubeConnector {
    /// A connector for the pods of `agent`, which records its calls in `children`.
    pub fn new(agent: &str, children: EngineChildren) -> Self {
        Self::with(EngineCli::new(PROGRAM, children), agent.into(), Arc::default())
    }

    /// A function that makes further connectors of the same agent.
    pub fn for_workload(&self) -> impl Fn() -> Self + Send + use<> {
        let (cli, agent, played) = (self.cli.clone(), self.agent.clone(), self.played.clone());
        move || Self::with(cli.clone(), agent.clone(), played.clone())
    }

    fn with(cli: EngineCli, agent: Name, played: Arc<Mutex<BTreeMap<InstanceName, Played>>>) -> Self {
        let (read, complained, missing) = Default::default();
        Self { cli, agent, played, failed_play: None, read, complained, missing }
    }

    // ---------------------------------------------------------------- volumes

    /// Keeps `data` in the label of a volume. Only a later agent needs it, so a failure is no failure of the workload.
    // [impl->swdd~podman-kube-create-continues-if-cannot-create-volume~1]
    fn store(&self, volume: &str, data: &str, watch: &mut CallSequence<'_>) -> Result<(), RuntimeError> {
        let label = format!("--label=data={}", BASE64.encode(data));
        let removal = self.cli.change(strings(&["volume", "rm", volume])).limit(LISTING_MAX);
        // What is kept holds all that the workload may keep secret.
        let shown = strings(&["volume", "create", &format!("--label=data={MASK}"), volume]);
        let create = self.cli.change(strings(&["volume", "create", &label, volume])).limit(LISTING_MAX);
        let create = create.shown_as(Masked { shown, hidden: vec![label] });
        if removal.run(watch.next_call()).is_err_and(|error| error == RuntimeError::Cancelled) {
            return Err(RuntimeError::Cancelled);
        }
        match create.run(watch.next_call()) {
            Err(RuntimeError::Cancelled) => return Err(RuntimeError::Cancelled),
            Err(error) => log::warn!("Could not create volume '{volume}': '{error}'"),
            Ok(_) => {}
        }
        Ok(())
    }

    /// The data kept in a volume; `None` when there is no such volume.
    fn read(&self, volume: &str) -> Result<Option<String>, RuntimeError> {
        let arguments = ["volume", "inspect", volume];
        let text = match self.cli.query(&arguments) {
            Err(RuntimeError::Failed(text)) if text.contains("no such volume") => return Ok(None),
            answer => answer?,
        };
        volume_data(&text)
            .map(Some)
            .ok_or_else(|| self.cli.nonsense(&format!("Volume '{volume}' holds no data"), &arguments))
    }

    // [impl->swdd~podman-kube-delete-removes-volumes~1]
    fn remove_volumes(&self, instance: &InstanceName) {
        // The configuration goes last: until then a crashed agent finds the workload again.
        for suffix in [PODS_SUFFIX, CONFIG_SUFFIX] {
            let volume = format!("{instance}{suffix}");
            let removal = self.cli.change(strings(&["volume", "rm", &volume])).limit(LISTING_MAX);
            match removal.run(&mut Unwatched) {
                Err(RuntimeError::Failed(text)) if text.contains("no such volume") => {}
                Err(error) => log::warn!("Could not remove volume '{volume}': '{error}'"),
                Ok(_) => {}
            }
        }
    }

    /// Instances of this agent that have a configuration volume, of one workload or of all.
    // [impl->swdd~podman-kube-list-existing-workloads-using-config-volumes~1]
    fn stored_instances(&self, of: Option<&InstanceName>) -> Result<Vec<InstanceName>, RuntimeError> {
        // The filter is a regular expression, so a plain dot would also match agents with a longer name.
        let filter = match of {
            Some(instance) => format!("name=^{instance}{CONFIG_SUFFIX}$").replace('.', "\\."),
            None => format!("name=\\.{}\\{CONFIG_SUFFIX}$", self.agent),
        };
        let arguments = ["volume", "ls", "--filter", &filter, "--format={{.Name}}"];
        let text = self.cli.query(&arguments)?;
        let volumes: Option<Vec<&str>> = text.lines().map(|line| line.trim().strip_suffix(CONFIG_SUFFIX)).collect();
        let volumes = volumes.ok_or_else(|| self.cli.nonsense("The list of volumes cannot be read", &arguments))?;
        let names = volumes.into_iter().filter_map(InstanceName::parse);
        Ok(names.filter(|name| name.agent == self.agent && of.is_none_or(|of| of == name)).collect())
    }

    // ------------------------------------------------------------------- pods

    /// Ids and names of all pods there are.
    fn existing_pods(&self, watch: &mut dyn CallWatch) -> Result<Vec<(String, String)>, RuntimeError> {
        let arguments = ["pod", "ls", "--no-trunc", "--format={{.Id}} {{.Name}}"];
        let text = self.cli.call(strings(&arguments)).run(watch)?.into_text()?;
        let pods = text.lines().filter_map(|line| line.trim().split_once(' '));
        let pods = pods.filter(|(id, _)| is_pod_id(id));
        Ok(pods.map(|(id, name)| (id.to_owned(), name.to_owned())).collect())
    }

    /// Ids of the pods of `manifest` that are there now and were not `before`.
    fn pods_since(
        &self,
        before: &[(String, String)],
        manifest: &str,
        watch: &mut dyn CallWatch,
    ) -> Result<Vec<String>, RuntimeError> {
        let documents = pod_documents(manifest);
        let mut pods = self.existing_pods(watch)?;
        pods.retain(|pod| !before.contains(pod) && documents.iter().any(|one| one.makes(&pod.1)));
        Ok(pods.into_iter().map(|(id, _)| id).collect())
    }

    /// Returns the ids of the pods. Where something else was printed they are listed.
    // [impl->swdd~podman-kube-create-workload-apply-manifest~1]
    fn play(
        &self,
        config: &KubeConfig,
        FailedPlay { manifest, before, .. }: &FailedPlay,
        limit: Option<Duration>,
        watch: &mut CallSequence<'_>,
    ) -> Result<Vec<String>, RuntimeError> {
        let arguments = |general: Vec<String>, play: Vec<String>| {
            [general, strings(&["kube", "play", "--quiet"]), play, strings(&["-"])].concat()
        };
        let [general, play] = [&config.general_options, &config.play_options].map(|options| Masked::options(options));
        let masked =
            Masked { shown: arguments(general.shown, play.shown), hidden: [general.hidden, play.hidden].concat() };
        let call = self
            .cli
            .change(arguments(strings(&config.general_options), strings(&config.play_options)))
            .shown_as(masked);
        let call = call.input(manifest.as_bytes()).limit(limit);
        let text = call.run(watch.next_call())?.into_text();
        let printed = text.as_ref().map(|text| parse_pods(text)).unwrap_or_default();
        if !printed.is_empty() || pod_documents(manifest).is_empty() {
            return Ok(printed);
        }
        let pods = self.pods_since(before, manifest, watch.next_call())?;
        if pods.is_empty() {
            text?;
            return Err(self.cli.nonsense("It made no pod that can be found", &["kube", "play"]));
        }
        Ok(pods)
    }

    /// Removes the pods that a failed play has made, and then its volumes. What cannot be listed or removed now is
    /// tried again with the next create or delete.
    fn remove_left_over(&mut self, watch: &mut CallSequence<'_>) -> Result<(), RuntimeError> {
        let Some(failed) = &self.failed_play else { return Ok(()) };
        let made = match &failed.made {
            Some(made) => made.clone(),
            None => self.pods_since(&failed.before, &failed.manifest, watch.next_call())?,
        };
        if let Some(failed) = &mut self.failed_play {
            failed.made = Some(made.clone());
        }
        if !made.is_empty() {
            let mut arguments = strings(&["pod", "rm", "--force", "--ignore"]);
            arguments.extend(made);
            self.cli.change(arguments).limit(POD_DOWN_MAX).run(watch.next_call())?;
        }
        if let Some(failed) = self.failed_play.take() {
            self.remove_volumes(&failed.instance);
        }
        Ok(())
    }

    /// Cleans up behind a create that failed, as well as possible now. It is not cancelled, because a delete that comes
    /// now would only have to do the same; the next create of another workload need not wait for it.
    fn clean_up(&mut self, watch: &mut CallSequence<'_>) {
        watch.cleaning_up();
        if let Err(error) = self.remove_left_over(&mut CallSequence::new(&mut Unwatched)) {
            log::warn!("Failed container cleanup after failed create. Error: '{error}'");
        }
    }

    fn down_once(&self, manifest: &str, options: &[Arc<str>]) -> Result<(), RuntimeError> {
        let arguments = |options: Vec<String>| [strings(&["kube", "down"]), options, strings(&["-"])].concat();
        let Masked { shown, hidden } = Masked::options(options);
        let call = self.cli.change(arguments(strings(options))).shown_as(Masked { shown: arguments(shown), hidden });
        call.input(manifest.as_bytes()).limit(POD_DOWN_MAX).run(&mut Unwatched).map(drop)
    }

    /// Takes all pods of the manifest down. Podman refuses as soon as one of them is missing and leaves the others,
    /// so each is tried alone then.
    // [impl->swdd~podman-kube-delete-workload-downs-manifest-file~1]
    fn down(&self, manifest: &str, options: &[Arc<str>]) -> Result<(), RuntimeError> {
        let no_such_pod =
            |error: &RuntimeError| matches!(error, RuntimeError::Failed(text) if text.contains("no such pod"));
        match self.down_once(manifest, options) {
            Err(error) if no_such_pod(&error) => {}
            result => return result,
        }
        let documents = pod_documents(manifest);
        if documents.len() < 2 {
            return Ok(());
        }
        for document in documents {
            match self.down_once(&document.text, options) {
                Err(error) if !no_such_pod(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// What was played for the instance: remembered, or read from its volume; `None` when there is nothing.
    fn recall(&self, instance: &InstanceName) -> Result<Option<Played>, RuntimeError> {
        if let Some(played) = self.played.lock().get(instance) {
            return Ok(Some(played.clone()));
        }
        let Some(text) = self.read(&format!("{instance}{CONFIG_SUFFIX}"))? else { return Ok(None) };
        let config = KubeConfig::read(&text).map_err(RuntimeError::Unsupported)?;
        Ok(Some(Played { manifest: config.manifest, down_options: config.down_options, pods: None, goes_down: false }))
    }

    // ---------------------------------------------------------------- listing

    /// Pods of the instance as far as known: played, read before, or read from the volume now.
    // [impl->swdd~podman-kube-get-workload-id-uses-volumes~1]
    fn pods_of(&mut self, instance: &InstanceName) -> Pods {
        let played = self.played.lock().get(instance).and_then(|played| played.pods.clone());
        if let Some(pods) = played.or_else(|| self.read.get(instance).cloned()) {
            return Pods::Known(pods);
        }
        let volume = format!("{instance}{PODS_SUFFIX}");
        // Once more at once, as for listings: a short failure must not look like a workload that is lost.
        let text = self.read(&volume).or_else(|_| self.read(&volume));
        let (pods, complaint) = match text {
            Ok(None) => (Pods::NotNoted, format!("there is no volume '{volume}'")),
            Ok(Some(text)) => match serde_json::from_str::<Vec<String>>(&text) {
                Ok(pods) if pods.iter().all(|pod| is_pod_id(pod)) => {
                    self.complained.remove(instance);
                    self.read.insert(instance.clone(), pods.clone());
                    return Pods::Known(pods);
                }
                Ok(_) => (Pods::Unreadable, format!("volume '{volume}' holds something other than ids of pods")),
                Err(error) => (Pods::Unreadable, format!("volume '{volume}' holds no list of pods: {error}")),
            },
            Err(error) => (Pods::Unreadable, error.to_string()),
        };
        if self.complained.insert(instance.clone()) {
            log::warn!("The pods of workload '{instance}' are not known: '{complaint}'");
        }
        pods
    }

    /// Pods that this connector played, or that are noted; none when that is not known.
    fn known_pods(&mut self, instance: &InstanceName) -> Vec<String> {
        match self.pods_of(instance) {
            Pods::Known(pods) => pods,
            Pods::NotNoted | Pods::Unreadable => Vec::new(),
        }
    }

    /// Warns of pods that are gone, once each.
    fn note_missing<'a>(&mut self, pods: impl Iterator<Item = &'a String>, containers: &[EngineContainer]) {
        let there: BTreeSet<&str> = containers.iter().filter_map(EngineContainer::pod).collect();
        let missing: BTreeSet<String> = pods.filter(|pod| !there.contains(pod.as_str())).cloned().collect();
        for pod in missing.difference(&self.missing) {
            log::warn!("The pod '{pod}' is missing.");
        }
        self.missing = missing;
    }
}

impl RuntimeConnector for PodmanKubeConnector {
    fn create(
        &mut self,
        new: &NewContainer,
        limit: Option<Duration>,
        watch: &mut dyn CallWatch,
    ) -> Result<ContainerId, RuntimeError> {
        let (config, manifest) = prepare(new)?;
        let mut watch = CallSequence::new(watch);
        self.remove_left_over(&mut watch)?;
        let before = self.existing_pods(watch.next_call())?;
        let instance = &new.instance;
        let made_nothing = FailedPlay { instance: instance.clone(), manifest, before, made: Some(Vec::new()) };
        // [impl->swdd~podman-kube-create-workload-creates-config-volume~1]
        let config_volume = format!("{instance}{CONFIG_SUFFIX}");
        if let Err(error) = self.store(&config_volume, &new.workload.runtime_config, &mut watch) {
            self.failed_play = Some(made_nothing);
            self.clean_up(&mut watch);
            return Err(error);
        }
        let pods = match self.play(&config, &made_nothing, limit, &mut watch) {
            Ok(pods) => pods,
            Err(error) => {
                let nothing = matches!(error, RuntimeError::NotInstalled(_) | RuntimeError::NotStarted(_));
                let made = nothing.then(Vec::new);
                self.failed_play = Some(FailedPlay { made, ..made_nothing });
                self.clean_up(&mut watch);
                return Err(error);
            }
        };
        // [impl->swdd~podman-kube-create-workload-creates-pods-volume~1]
        let pods_volume = format!("{instance}{PODS_SUFFIX}");
        // The pods run, so a command that comes now finds them as those of any other workload.
        let list = serde_json::json!(pods).to_string();
        let _ = self.store(&pods_volume, &list, &mut CallSequence::new(&mut Unwatched)); // It warned.
        let played = Played {
            manifest: made_nothing.manifest,
            down_options: config.down_options.clone(),
            pods: Some(pods),
            goes_down: false,
        };
        self.played.lock().insert(instance.clone(), played);
        // [impl->swdd~podman-kube-create-workload-returns-workload-id~1]
        Ok(ContainerId(instance.to_string().into()))
    }

    /// A play knows no steps that could be done before it.
    fn prepare_image(
        &mut self,
        workload: &Workload,
        limit: Option<Duration>,
        watch: &mut dyn CallWatch,
    ) -> Result<(), RuntimeError> {
        let config = config_of(workload)?;
        let mut watch = CallSequence::new(watch);
        for image in images(&config.manifest) {
            // It is called as a workload of that image would be.
            let container = ContainerConfig {
                image,
                general_options: config.general_options.clone(),
                command_options: config.play_options.clone(),
                command_args: Vec::new(),
            };
            pull_missing(&self.cli, &container, &["image", "exists"], limit, &mut watch)?;
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
        new: &NewContainer,
        _limit: Option<Duration>,
        _watch: &mut dyn CallWatch,
    ) -> Result<ContainerId, RuntimeError> {
        prepare(new)?;
        Err(RuntimeError::Unsupported(format!("The pods of '{}' cannot be started again", id.0)))
    }

    fn delete(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        let instance = InstanceName::parse(&id.0)
            .ok_or_else(|| RuntimeError::Failed(format!("'{}' is not the name of a workload instance", id.0)))?;
        self.remove_left_over(&mut CallSequence::new(&mut Unwatched))?;
        if let Some(mut played) = self.recall(&instance)? {
            played.goes_down = true;
            self.played.lock().insert(instance.clone(), played.clone());
            self.down(&played.manifest, &played.down_options)?;
            self.remove_volumes(&instance);
        }
        self.played.lock().remove(&instance);
        self.read.remove(&instance);
        Ok(())
    }

    /// Stops the pods and leaves them, with their logs. When they are not known, taking them down is all that can be done.
    fn stop(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        let instance = InstanceName::parse(&id.0);
        let pods = instance.map(|instance| self.known_pods(&instance)).unwrap_or_default();
        if pods.is_empty() {
            return self.delete(id);
        }
        let arguments = strings(&["pod", "stop", "--ignore"]).into_iter().chain(pods).collect();
        self.cli.change(arguments).limit(POD_DOWN_MAX).run(&mut Unwatched).map(drop)?;
        Ok(())
    }

    /// Commands run in the first container of the manifest; all containers of a pod share its network.
    fn probe_target(&mut self, id: &ContainerId, _with_processes: bool) -> Result<ProbeTarget, RuntimeError> {
        let instance = InstanceName::parse(&id.0)
            .ok_or_else(|| RuntimeError::Failed(format!("'{}' is not the name of a workload instance", id.0)))?;
        let pods = self.known_pods(&instance);
        let first = self.recall(&instance)?.and_then(|played| first_container(&played.manifest));
        let containers = self.cli.containers(None, &mut Unwatched)?;
        let ours: Vec<_> = containers.iter().filter(|one| is_in(one, &pods) && !one.is_infra()).collect();
        let is_first = |one: &&&EngineContainer| first.as_ref().is_some_and(|first| one.name().ends_with(first));
        let chosen = ours.iter().find(is_first).or(ours.first());
        Ok(ProbeTarget {
            program: PROGRAM,
            container: chosen.and_then(|one| one.id()).map(|id| id.0.to_string()),
            processes: ours.iter().filter_map(|one| one.process()).collect(),
        })
    }

    fn find(&mut self, instance: &InstanceName, _wanted: Option<&Workload>) -> Result<Vec<ContainerId>, RuntimeError> {
        let failed = self.failed_play.as_ref().is_some_and(|failed| failed.instance == *instance);
        let known = failed || self.played.lock().contains_key(instance);
        let known = known || !self.stored_instances(Some(instance))?.is_empty();
        Ok(known.then(|| ContainerId(instance.to_string().into())).into_iter().collect())
    }

    fn note(&mut self, instance: &InstanceName, id: &ContainerId) {
        self.cli.records().note(instance, id);
    }

    fn is_noted(&self, instance: &InstanceName, id: &ContainerId) -> bool {
        self.cli.records().has(instance, id)
    }

    // [impl->swdd~podman-kube-implements-runtime-state-getter~1]
    // [impl->swdd~podman-kube-create-starts-podman-kube-state-getter~1]
    fn list(&mut self) -> Result<Vec<ListedContainer>, RuntimeError> {
        let mut instances: BTreeSet<InstanceName> = self.stored_instances(None)?.into_iter().collect();
        instances.extend(self.played.lock().keys().cloned());
        self.read.retain(|instance, _| instances.contains(instance));
        self.complained.retain(|instance| instances.contains(instance));
        if instances.is_empty() {
            return Ok(Vec::new());
        }
        let with_pods: Vec<_> = instances.into_iter().map(|name| (self.pods_of(&name), name)).collect();
        // [impl->swdd~podman-kube-state-getter-uses-container-states~1]
        // [impl->swdd~podman-kube-state-getter-reset-cache~1]
        let containers = self.cli.containers(None, &mut Unwatched)?;
        // Some may have been taken down while the containers were listed.
        let goes_down = |instance| self.played.lock().get(instance).is_some_and(|played| played.goes_down);
        let expected = with_pods.iter().filter(|(_, instance)| !goes_down(instance));
        let known: Vec<_> =
            expected.filter_map(|(pods, _)| if let Pods::Known(ids) = pods { Some(ids) } else { None }).collect();
        self.note_missing(known.into_iter().flatten(), &containers);
        Ok(with_pods.into_iter().map(|(pods, instance)| listed(instance, &pods, &containers)).collect())
    }

    /// The containers of all pods, each with its name before its lines when there are several.
    fn log_calls(&mut self, instance: &InstanceName, wanted: &LogsRequest) -> Result<Vec<LogCall>, RuntimeError> {
        let pods = match self.pods_of(instance) {
            Pods::Known(pods) => pods,
            Pods::NotNoted => return Ok(Vec::new()),
            Pods::Unreadable => {
                return Err(RuntimeError::Failed(format!("The pods of '{instance}' are not known")));
            }
        };
        let containers = self.cli.containers(None, &mut Unwatched)?;
        let ours: Vec<_> = containers.iter().filter(|one| is_in(one, &pods) && !one.is_infra()).collect();
        let several = ours.len() > 1;
        let call = |container: &&EngineContainer| {
            let prefix = if several { format!("[{}] ", container.name()) } else { String::new() };
            Some(self.cli.log_call(log_arguments(wanted, &container.id()?.0), prefix))
        };
        Ok(ours.iter().filter_map(call).collect())
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
        return Err(RuntimeError::Unsupported(format!("Received a manifest for the wrong runtime: '{other}'")));
    }
    if !new.files.is_empty() {
        let text = "Workload files are not supported for podman-kube runtime. Use ConfigMaps instead.";
        return Err(RuntimeError::Unsupported(text.to_owned()));
    }
    let name = &new.instance.workload;
    if name.starts_with('-') {
        // The names of its volumes begin like it, and are arguments of calls.
        let text = format!("Unsupported workload name '{name}': podman has no volumes whose names begin with '-'");
        return Err(RuntimeError::Unsupported(text));
    }
    let config = config_of(&new.workload)?;
    let manifest = match &new.control_interface {
        None => config.manifest.clone(),
        Some(folder) => with_control_interface(&config.manifest, config.control_interface_target.as_deref(), folder)
            .map_err(|text| RuntimeError::Unsupported(without_passwords(&text)))?,
    };
    Ok((config, manifest))
}

fn config_of(workload: &Workload) -> Result<Arc<KubeConfig>, RuntimeError> {
    match &workload.config().engine {
        Ok(EngineConfig::Kube(config)) => Ok(config.clone()),
        Ok(EngineConfig::Container(_)) => Err(RuntimeError::Unsupported("It has no manifest".to_owned())),
        Err(reason) => Err(RuntimeError::Unsupported(reason.clone())),
    }
}

/// The data kept in the label of a volume, from what `volume inspect` prints.
pub fn volume_data(inspected: &str) -> Option<String> {
    let volumes: Value = serde_json::from_str(inspected).ok()?;
    String::from_utf8(BASE64.decode(volumes[0]["Labels"]["data"].as_str()?).ok()?).ok()
}

/// Whether a text can be the id of a pod, and nothing else as an argument of a call.
fn is_pod_id(text: &str) -> bool {
    ContainerId::printed(text).is_some()
}

/// The pod ids that `kube play` printed: the lines between `Pod:` and the next heading, of all such sections.
pub fn parse_pods(output: &str) -> Vec<String> {
    let mut in_pods = false;
    let mut pods = Vec::new();
    for line in output.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.ends_with(':') {
            in_pods = line == "Pod:";
        } else if in_pods && is_pod_id(line) {
            pods.push(line.to_owned());
        }
    }
    pods
}

#[cfg(test)]
mod tests;
