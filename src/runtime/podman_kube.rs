//! Pods from Kubernetes manifests through `podman kube play` and `down` (spec/agent.md section 16).
//!
//! Podman keeps nothing that says to which workload a pod belongs, so two volumes per workload do: `<instance>.config`
//! holds the runtime configuration and `<instance>.pods` the ids of its pods, each in a label. What a connector played
//! itself it also remembers, and tells the connector that lists, so that a volume that could not be made hurts only
//! after a restart of the agent.
//!
//! Thread: the caller's: `wl:<name>` for create and delete, `watch:podman-kube` for listings.
//! Owns: what it played or read, per instance. Gives: [`KubeNews`] to the listing connector (never waits).

use super::command::CallError;
use super::container_config::list_or_null;
use super::container_list::EngineContainer;
use super::engine_children::EngineChildren;
use super::engine_cli::{EngineCli, strings};
use super::kube_manifest::{pod_documents, with_control_interface};
use super::{CallWatch, ContainerId, ListedContainer, NewContainer, RuntimeConnector, RuntimeError, Unwatched};
use crate::limits::{KUBE_NEWS, LISTING_MAX, POD_DOWN_MAX};
use crate::model::execution_state::{ExecutionState, Phase};
use crate::model::names::{InstanceName, Name};
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use crossbeam_channel::{Receiver, Sender, bounded};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
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

/// A parsed `runtimeConfig` (spec/agent.md section 16.1).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct KubeConfig {
    manifest: String,
    #[serde(default, deserialize_with = "list_or_null")]
    general_options: Vec<String>,
    #[serde(default, deserialize_with = "list_or_null")]
    play_options: Vec<String>,
    #[serde(default, deserialize_with = "list_or_null")]
    down_options: Vec<String>,
    #[serde(default)]
    control_interface_target: Option<String>,
}

/// What is needed to watch and to take down a workload.
// [impl->swdd~podman-kube-workload-id]
#[derive(Debug, Clone, PartialEq, Eq)]
struct Played {
    manifest: String,
    down_options: Vec<String>,
    pods: Vec<String>,
}

/// What the connector of a workload tells the one that lists.
#[derive(Debug, Clone)]
enum KubeNews {
    Played(InstanceName, Vec<String>),
    Down(InstanceName),
}

/// Runs workloads as pods for one agent. Clones tell each other what they played.
// [impl->swdd~podman-kube-implements-runtime-connector~1]
// [impl->swdd~podman-kube-uses-podman-cli~1]
#[derive(Debug, Clone)]
pub struct PodmanKubeConnector {
    cli: EngineCli,
    agent: Name,
    /// Played by this connector.
    played: BTreeMap<InstanceName, Played>,
    /// Pods that a failed play left and that could not be removed yet.
    left_over: BTreeSet<String>,
    /// Pods of each instance, for listings.
    pods: BTreeMap<InstanceName, Vec<String>>,
    /// Instances for which a missing pods volume was complained about.
    complained: BTreeSet<InstanceName>,
    news: (Sender<KubeNews>, Receiver<KubeNews>),
}

impl KubeConfig {
    fn parse(text: &str) -> Result<Self, RuntimeError> {
        serde_yaml::from_str(text).map_err(|error| RuntimeError::Unsupported(error.to_string()))
    }
}

impl PodmanKubeConnector {
    /// A connector for the pods of `agent`, which records its calls in `children`.
    #[must_use]
    pub fn new(agent: &str, children: EngineChildren) -> Self {
        Self {
            cli: EngineCli::new(PROGRAM, children),
            agent: agent.into(),
            played: BTreeMap::new(),
            left_over: BTreeSet::new(),
            pods: BTreeMap::new(),
            complained: BTreeSet::new(),
            news: bounded(KUBE_NEWS),
        }
    }

    fn tell(&self, news: KubeNews) {
        // When nobody listed for long the volumes have to do.
        let _ = self.news.0.try_send(news);
    }

    // ---------------------------------------------------------------- volumes

    /// Keeps `data` in the label of a volume. Only a later agent needs it, so a failure is no failure of the workload.
    // [impl->swdd~podman-kube-create-continues-if-cannot-create-volume~1]
    fn store(&self, volume: &str, data: &str) {
        let _ = self.cli.change(strings(&["volume", "rm", volume])).limit(LISTING_MAX).run(&mut Unwatched);
        let label = format!("--label=data={}", BASE64.encode(data));
        let create = self.cli.change(strings(&["volume", "create", &label, volume])).limit(LISTING_MAX);
        if let Err(error) = create.run(&mut Unwatched) {
            log::warn!("Could not create volume '{volume}': '{}'", RuntimeError::from(error));
        }
    }

    /// The data kept in a volume; `None` when there is no such volume.
    fn read(&self, volume: &str) -> Result<Option<String>, CallError> {
        let arguments = ["volume", "inspect", volume];
        let text = match self.cli.ask(&arguments) {
            Err(CallError::Failed(text)) if text.contains("no such volume") => return Ok(None),
            answer => answer?,
        };
        let data = serde_json::from_str::<Value>(&text)
            .ok()
            .and_then(|volumes| BASE64.decode(volumes[0]["Labels"]["data"].as_str()?).ok())
            .and_then(|bytes| String::from_utf8(bytes).ok());
        data.map(Some).ok_or_else(|| self.cli.nonsense(&format!("Volume '{volume}' holds no data"), &arguments))
    }

    // [impl->swdd~podman-kube-delete-removes-volumes~1]
    fn remove_volumes(&self, instance: &InstanceName) {
        // The configuration goes last: until then a crashed agent finds the workload again.
        for suffix in [PODS_SUFFIX, CONFIG_SUFFIX] {
            let volume = format!("{instance}{suffix}");
            let removal = self.cli.change(strings(&["volume", "rm", &volume])).limit(LISTING_MAX);
            match removal.run(&mut Unwatched) {
                Err(CallError::Failed(text)) if text.contains("no such volume") => {}
                Err(error) => log::warn!("Could not remove volume '{volume}': '{}'", RuntimeError::from(error)),
                Ok(_) => {}
            }
        }
    }

    /// Instances of this agent that have a configuration volume, of one workload or of all.
    // [impl->swdd~podman-kube-list-existing-workloads-using-config-volumes~1]
    fn stored_instances(&self, of: Option<&InstanceName>) -> Result<Vec<InstanceName>, CallError> {
        // The filter is a regular expression, so a plain dot would also match agents with a longer name.
        let filter = match of {
            Some(instance) => format!("name=^{instance}{CONFIG_SUFFIX}$").replace('.', "\\."),
            None => format!("name=\\.{}\\{CONFIG_SUFFIX}$", self.agent),
        };
        let text = self.cli.ask(&["volume", "ls", "--filter", &filter, "--format={{.Name}}"])?;
        let names = text.lines().filter_map(|line| InstanceName::parse(line.trim().strip_suffix(CONFIG_SUFFIX)?));
        Ok(names.filter(|name| name.agent == self.agent && of.is_none_or(|of| of == name)).collect())
    }

    // ------------------------------------------------------------------- pods

    /// Ids and names of all pods there are.
    fn existing_pods(&self) -> Result<Vec<(String, String)>, CallError> {
        let text = self.cli.ask(&["pod", "ls", "--no-trunc", "--format={{.Id}} {{.Name}}"])?;
        let pods = text.lines().filter_map(|line| line.trim().split_once(' '));
        Ok(pods.map(|(id, name)| (id.to_owned(), name.to_owned())).collect())
    }

    // [impl->swdd~podman-kube-create-workload-apply-manifest~1]
    fn play(
        &self,
        config: &KubeConfig,
        manifest: &str,
        limit: Option<Duration>,
        watch: &mut dyn CallWatch,
    ) -> Result<Vec<String>, CallError> {
        let mut arguments = config.general_options.clone();
        arguments.extend(strings(&["kube", "play", "--quiet"]));
        arguments.extend(config.play_options.iter().cloned());
        arguments.push("-".to_owned());
        let call = self.cli.change(arguments).input(manifest.as_bytes()).limit(limit);
        Ok(parse_pods(&call.run(watch)?.into_text()?))
    }

    /// Removes the pods that a failed play has made. Pods that were there before are somebody else's, even when the
    /// play failed because they have the same name.
    fn remove_new_pods(&mut self, manifest: &str, before: &[(String, String)]) {
        let documents = pod_documents(manifest);
        let after = self.existing_pods().unwrap_or_default();
        let is_ours =
            |pod: &&(String, String)| !before.contains(pod) && documents.iter().any(|document| document.makes(&pod.1));
        self.left_over.extend(after.iter().filter(is_ours).map(|(id, _)| id.clone()));
        self.remove_left_over();
    }

    fn remove_left_over(&mut self) {
        if self.left_over.is_empty() {
            return;
        }
        let mut arguments = strings(&["pod", "rm", "--force", "--ignore"]);
        arguments.extend(self.left_over.iter().cloned());
        match self.cli.change(arguments).limit(POD_DOWN_MAX).run(&mut Unwatched) {
            Ok(_) => self.left_over.clear(),
            Err(error) => {
                let error = RuntimeError::from(error);
                log::warn!("Failed container cleanup after failed create. Error: '{error}'");
            }
        }
    }

    fn down_once(&self, manifest: &str, options: &[String]) -> Result<(), CallError> {
        let mut arguments = strings(&["kube", "down"]);
        arguments.extend(options.iter().cloned());
        arguments.push("-".to_owned());
        self.cli.change(arguments).input(manifest.as_bytes()).limit(POD_DOWN_MAX).run(&mut Unwatched).map(drop)
    }

    /// Takes all pods of the manifest down. Podman refuses as soon as one of them is missing and leaves the others,
    /// so each is tried alone then.
    // [impl->swdd~podman-kube-delete-workload-downs-manifest-file~1]
    fn down(&self, manifest: &str, options: &[String]) -> Result<(), CallError> {
        let no_such_pod = |error: &CallError| matches!(error, CallError::Failed(text) if text.contains("no such pod"));
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
        if let Some(played) = self.played.get(instance) {
            return Ok(Some(played.clone()));
        }
        let Some(text) = self.read(&format!("{instance}{CONFIG_SUFFIX}"))? else { return Ok(None) };
        let config = KubeConfig::parse(&text)?;
        Ok(Some(Played { manifest: config.manifest, down_options: config.down_options, pods: Vec::new() }))
    }

    // ---------------------------------------------------------------- listing

    /// Pods of the instance as far as known: told, read before, or read from the volume now.
    // [impl->swdd~podman-kube-get-workload-id-uses-volumes~1]
    fn pods_of(&mut self, instance: &InstanceName) -> Option<Vec<String>> {
        if let Some(pods) = self.pods.get(instance) {
            return Some(pods.clone());
        }
        let read = self.read(&format!("{instance}{PODS_SUFFIX}"));
        let pods = match read.map(|text| text.map(|text| serde_json::from_str::<Vec<String>>(&text))) {
            Ok(Some(Ok(pods))) => pods,
            other => {
                if self.complained.insert(instance.clone()) {
                    log::warn!("The pods of workload '{instance}' are not known: {other:?}");
                }
                return None;
            }
        };
        self.pods.insert(instance.clone(), pods.clone());
        Some(pods)
    }

    fn hear_news(&mut self) {
        for news in self.news.1.try_iter() {
            match news {
                KubeNews::Played(instance, pods) => self.pods.insert(instance, pods),
                KubeNews::Down(instance) => {
                    self.complained.remove(&instance);
                    self.pods.remove(&instance)
                }
            };
        }
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
        self.remove_left_over();
        let before = self.existing_pods()?;
        let instance = &new.instance;
        // [impl->swdd~podman-kube-create-workload-creates-config-volume~1]
        self.store(&format!("{instance}{CONFIG_SUFFIX}"), &new.workload.runtime_config);
        let pods = match self.play(&config, &manifest, limit, watch) {
            Ok(pods) => pods,
            Err(error) => {
                self.remove_new_pods(&manifest, &before);
                self.remove_volumes(instance);
                return Err(error.into());
            }
        };
        // [impl->swdd~podman-kube-create-workload-creates-pods-volume~1]
        self.store(&format!("{instance}{PODS_SUFFIX}"), &serde_json::json!(pods).to_string());
        self.tell(KubeNews::Played(instance.clone(), pods.clone()));
        self.played.insert(instance.clone(), Played { manifest, down_options: config.down_options, pods });
        // [impl->swdd~podman-kube-create-workload-returns-workload-id~1]
        Ok(ContainerId(instance.to_string().into()))
    }

    /// Podman cannot start the pods of a manifest again, so they are replaced.
    fn start(
        &mut self,
        id: &ContainerId,
        new: &NewContainer,
        limit: Option<Duration>,
        watch: &mut dyn CallWatch,
    ) -> Result<ContainerId, RuntimeError> {
        prepare(new)?;
        self.delete(id)?;
        self.create(new, limit, watch)
    }

    fn delete(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        let instance = InstanceName::parse(&id.0)
            .ok_or_else(|| RuntimeError::Failed(format!("'{}' is not the name of a workload instance", id.0)))?;
        if let Some(played) = self.recall(&instance)? {
            self.down(&played.manifest, &played.down_options)?;
            self.remove_volumes(&instance);
        }
        self.played.remove(&instance);
        self.tell(KubeNews::Down(instance));
        Ok(())
    }

    fn find(&mut self, instance: &InstanceName) -> Result<Vec<ContainerId>, RuntimeError> {
        let known = self.played.contains_key(instance) || !self.stored_instances(Some(instance))?.is_empty();
        Ok(known.then(|| ContainerId(instance.to_string().into())).into_iter().collect())
    }

    // [impl->swdd~podman-kube-implements-runtime-state-getter~1]
    // [impl->swdd~podman-kube-create-starts-podman-kube-state-getter~1]
    fn list(&mut self) -> Result<Vec<ListedContainer>, RuntimeError> {
        self.hear_news();
        let mut instances: BTreeSet<InstanceName> = self.stored_instances(None)?.into_iter().collect();
        instances.extend(self.pods.keys().cloned());
        if instances.is_empty() {
            return Ok(Vec::new());
        }
        let with_pods: Vec<_> = instances.into_iter().map(|name| (self.pods_of(&name), name)).collect();
        // [impl->swdd~podman-kube-state-getter-uses-container-states~1]
        // [impl->swdd~podman-kube-state-getter-reset-cache~1]
        let containers = self.cli.containers(None)?;
        Ok(with_pods.into_iter().map(|(pods, instance)| listed(instance, pods.as_deref(), &containers)).collect())
    }
}

/// Checks the workload; answers its configuration and the manifest to play.
fn prepare(new: &NewContainer) -> Result<(KubeConfig, String), RuntimeError> {
    if *new.workload.runtime != *RUNTIME_NAME {
        let other = &new.workload.runtime;
        return Err(RuntimeError::Unsupported(format!("Received a manifest for the wrong runtime: '{other}'")));
    }
    if !new.files.is_empty() {
        let text = "Workload files are not supported for podman-kube runtime. Use ConfigMaps instead.";
        return Err(RuntimeError::Unsupported(text.to_owned()));
    }
    let config = KubeConfig::parse(&new.workload.runtime_config)?;
    let manifest = match &new.control_interface {
        None => config.manifest.clone(),
        Some(folder) => with_control_interface(&config.manifest, config.control_interface_target.as_deref(), folder)
            .map_err(RuntimeError::Unsupported)?,
    };
    Ok((config, manifest))
}

/// The pod ids that `kube play` printed: the lines between `Pod:` and the next heading, of all such sections.
fn parse_pods(output: &str) -> Vec<String> {
    let mut in_pods = false;
    let mut pods = Vec::new();
    for line in output.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.ends_with(':') {
            in_pods = line == "Pod:";
        } else if in_pods {
            pods.push(line.to_owned());
        }
    }
    pods
}

// ------------------------------------------------------------------- states

fn listed(instance: InstanceName, pods: Option<&[String]>, containers: &[EngineContainer]) -> ListedContainer {
    let pods_of = |container: &&EngineContainer| {
        pods.is_some_and(|pods| container.pod().is_some_and(|pod| pods.iter().any(|ours| ours == pod)))
    };
    let processes = containers.iter().filter(pods_of).filter_map(EngineContainer::process).collect();
    let state = match pods {
        Some(pods) => combined_state(pods, containers),
        None => ExecutionState::plain(Phase::Succeeded),
    };
    ListedContainer { id: ContainerId(instance.to_string().into()), instance, state, processes, ended_at: None }
}

/// The state of a workload: of all containers of its pods the one that matters most (spec/agent.md section 16.4).
// [impl->swdd~podman-kube-state-getter-combines-states~2]
fn combined_state(pods: &[String], containers: &[EngineContainer]) -> ExecutionState {
    let states = pods.iter().flat_map(|pod| {
        let mut states: Vec<ExecutionState> =
            containers.iter().filter(|container| container.pod() == Some(pod)).map(pod_container_state).collect();
        // [impl->swdd~podman-kube-state-getter-treats-missing-pods-as-unknown~1]
        if states.is_empty() {
            log::debug!("The pod '{pod}' is missing.");
            states.push(unknown());
        }
        states
    });
    // [impl->swdd~podman-kube-state-getter-removed-if-no-container~1]
    states.min_by_key(|state| priority(state.phase)).unwrap_or_else(|| ExecutionState::plain(Phase::FailedLost))
}

fn unknown() -> ExecutionState {
    ExecutionState::with_info(Phase::FailedUnknown, "unknown container state")
}

// [impl->swdd~podman-kube-state-getter-maps-state~2]
fn pod_container_state(container: &EngineContainer) -> ExecutionState {
    let state = container.execution_state();
    match state.phase {
        Phase::PendingStarting => ExecutionState::with_info(Phase::PendingStarting, "starting container"),
        Phase::Stopping => ExecutionState::with_info(Phase::Stopping, "stopping container"),
        Phase::FailedUnknown => unknown(),
        _ => state,
    }
}

/// Lower matters more.
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

#[cfg(test)]
mod tests;
