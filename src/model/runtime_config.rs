//! The `runtimeConfig` of a workload: the text, and the values in it for engines and for the
//! `lifecycle:` block.
//!
//! Thread: none, plain values. An agent reads each text once, on `rx:server`, and shares the
//! result.

use super::fields::reader::{DocumentKind, UnknownKey, read};
use super::fields::{Field, Kind, Object, Text};
use super::lifecycle::{self, Lifecycle, LifecycleError};
use super::names::Name;
use super::node::StateError;
use super::shown_text::without_passwords;
use super::yaml::{self, Origin, Yaml, YamlError};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

const SCALAR: Kind = Kind::Text(Text::Scalar);

/// The fields for podman and containerd.
pub(super) const CONTAINER: Object = Object::named(
    "containerConfig",
    &[
        Field::new("image", SCALAR).required(),
        texts("generalOptions"),
        texts("commandOptions"),
        texts("commandArgs"),
        lifecycle::FIELD,
    ],
);

/// The fields for podman-kube.
pub(super) const KUBE: Object = Object::named(
    "kubeConfig",
    &[
        Field::new("manifest", SCALAR).required(),
        texts("generalOptions"),
        texts("playOptions"),
        texts("downOptions"),
        Field {
            nullable: true,
            ..Field::new("controlInterfaceTarget", SCALAR)
        },
        lifecycle::FIELD,
    ],
);

const fn texts(name: &'static str) -> Field {
    Field {
        nullable: true,
        ..Field::new(name, Kind::List(&SCALAR))
    }
}

/// The text of a `runtimeConfig`, without surrounding white space. Two are equal when their texts
/// are.
#[derive(Debug, Clone, Default)]
pub struct RuntimeConfig {
    pub(super) text: Arc<str>,
    read: OnceLock<Arc<ReadConfig>>,
}

/// A `runtimeConfig` after reading. Each part may be wrong by itself: such a workload fails with
/// the reason.
#[derive(Debug)]
pub struct ReadConfig {
    runtime: Name,
    /// The `lifecycle:` block; `None` without one.
    pub lifecycle: Result<Option<Arc<Lifecycle>>, LifecycleError>,
    /// The part for the engine, or why no engine can run it.
    pub engine: Result<EngineConfig, String>,
    /// Unknown keys: engines ignore them, as other implementations do. The first ones of many.
    pub unknown: Vec<UnknownKey>,
    /// Number of further unknown keys.
    pub more_unknown: usize,
}

/// The unknown keys of a text while it is read.
#[derive(Debug, Default)]
struct UnknownKeys {
    first: Vec<UnknownKey>,
    more: usize,
}

/// The part for the engine, by family of engines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineConfig {
    /// One container: podman, containerd.
    Container(Arc<ContainerConfig>),
    /// Pods of a Kubernetes manifest.
    Kube(Arc<KubeConfig>),
}

/// A container.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerConfig {
    pub image: String,
    /// Options of the engine itself, before the verb.
    #[serde(default)]
    pub general_options: Vec<String>,
    /// Options of the verb `run`.
    #[serde(default)]
    pub command_options: Vec<String>,
    /// What the container executes.
    #[serde(default)]
    pub command_args: Vec<String>,
}

/// Pods.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeConfig {
    /// The Kubernetes manifest to play.
    pub manifest: String,
    /// Options of the engine itself.
    #[serde(default)]
    pub general_options: Vec<String>,
    /// Options of `kube play`.
    #[serde(default)]
    pub play_options: Vec<String>,
    /// Options of `kube down`.
    #[serde(default)]
    pub down_options: Vec<String>,
    /// `<pod>/<container>` that gets the control interface.
    pub control_interface_target: Option<String>,
}

impl RuntimeConfig {
    /// Reads the text for `runtime`. The result for the first runtime is kept.
    pub(super) fn read(&self, runtime: &Name) -> Arc<ReadConfig> {
        let read = self
            .read
            .get_or_init(|| Arc::new(ReadConfig::of(runtime, &self.text)));
        if read.runtime == *runtime {
            read.clone()
        } else {
            Arc::new(ReadConfig::of(runtime, &self.text))
        }
    }
}

impl ReadConfig {
    fn of(runtime: &Name, text: &str) -> Self {
        let read = yaml::read(text, Origin::Others);
        let root = read.as_ref().map(|document| &document.root);
        let lifecycle = lifecycle::of_document(runtime, text, root);
        let mut unknown = UnknownKeys::default();
        let engine = EngineConfig::read(runtime, text, root, &mut unknown);
        Self {
            runtime: runtime.clone(),
            lifecycle: lifecycle.map(|block| block.map(Arc::new)),
            engine,
            unknown: unknown.first,
            more_unknown: unknown.more,
        }
    }

    /// The valid block, if there is one. Problems of an invalid one are reported when the workload
    /// is started.
    pub fn usable_lifecycle(&self) -> Option<&Lifecycle> {
        self.lifecycle.as_ref().ok()?.as_deref()
    }

    /// Returns the option or field by which the engine restarts the workload itself.
    pub fn engine_restarts(&self) -> Option<EngineRestarts> {
        match self.engine.as_ref().ok()? {
            EngineConfig::Container(config) => {
                config.restart_option().map(EngineRestarts::of_option)
            }
            EngineConfig::Kube(config) => config.restarted_pod(),
        }
    }

    /// Returns whether the option `--pod` puts the workload into a pod.
    pub fn joins_pod(&self) -> bool {
        let Ok(EngineConfig::Container(config)) = &self.engine else {
            return false;
        };
        let mut options = config.command_options.iter();
        options.any(|option| option == "--pod" || option.starts_with("--pod="))
    }
}

/// A restart policy of the engine itself, beside that of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineRestarts {
    /// The value, such as `on-failure:5` or `Always`.
    pub policy: String,
    /// The pod whose `restartPolicy` this is; `None` for the option `--restart` of a container.
    pub pod: Option<String>,
}

impl EngineRestarts {
    fn of_option(policy: &str) -> Self {
        Self {
            policy: policy.to_owned(),
            pod: None,
        }
    }
}

impl ContainerConfig {
    /// The value of `--restart` if the engine restarts the container by it.
    pub fn restart_option(&self) -> Option<&str> {
        match self.option("--restart")? {
            "" | "no" | "never" => None,
            policy => Some(policy),
        }
    }

    /// The last value of an option such as `--pull`: in the same word or the next one.
    pub fn option(&self, name: &str) -> Option<&str> {
        let mut words = self.command_options.iter();
        let mut found = None;
        while let Some(word) = words.next() {
            match word.strip_prefix(name) {
                Some("") => found = words.next().map(String::as_str),
                // Without an equals sign it is another option, with a longer name.
                Some(rest) => found = rest.strip_prefix('=').or(found),
                None => {}
            }
        }
        found
    }

    /// Checks the image. The engine would read one with a leading '-' as an option, and the first
    /// argument as the image.
    fn checked(self) -> Result<Self, String> {
        if !self.image.is_empty() && !self.image.starts_with('-') {
            return Ok(self);
        }
        let image = without_passwords(&self.image);
        Err(format!(
            "Unsupported image '{image}': an image neither is empty nor begins with '-'"
        ))
    }
}

impl KubeConfig {
    /// Reads the text without the manifest in it.
    ///
    /// # Errors
    /// The first problem, without values that may be secret.
    pub fn read(text: &str) -> Result<Self, String> {
        let read = yaml::read(text, Origin::Others);
        let root = read.as_ref().map(|document| &document.root);
        read_as(text, root, &KUBE, &mut UnknownKeys::default())
    }

    /// Returns the first pod whose containers podman restarts. Without `restartPolicy` it does so
    /// always.
    fn restarted_pod(&self) -> Option<EngineRestarts> {
        for document in yaml::read_all(&self.manifest, Origin::Others).ok()? {
            let spec: &[&str] = match document.scalar_at(&["kind"]) {
                Some("Pod") => &["spec"],
                Some("Deployment" | "DaemonSet" | "Job") => &["spec", "template", "spec"],
                _ => continue,
            };
            let policy = [spec, &["restartPolicy"]].concat();
            let policy = document.scalar_at(&policy).unwrap_or("Always");
            if policy != "Never" {
                let pod = document.scalar_at(&["metadata", "name"]);
                return Some(EngineRestarts {
                    policy: policy.to_owned(),
                    pod: Some(pod.unwrap_or_default().to_owned()),
                });
            }
        }
        None
    }

    /// Refuses a manifest that becomes too large or is nested too deep. A manifest with other
    /// faults is accepted here: podman reports them.
    fn checked(self) -> Result<Self, String> {
        match yaml::read_all(&self.manifest, Origin::Others) {
            // Only the error of the text as a whole has no place.
            Err(error) if error.location.is_none() => Err(error.to_string()),
            Ok(_) | Err(_) => Ok(self),
        }
    }
}

impl EngineConfig {
    /// Reads and checks the part for the engine. Unknown keys go to `unknown`.
    ///
    /// # Errors
    /// Why no engine can run it.
    fn read(
        runtime: &str,
        text: &str,
        root: Result<&Yaml, &YamlError>,
        unknown: &mut UnknownKeys,
    ) -> Result<Self, String> {
        if runtime == "podman-kube" {
            let config: KubeConfig = read_as(text, root, &KUBE, unknown)?;
            return Ok(Self::Kube(Arc::new(config.checked()?)));
        }
        let config: ContainerConfig = read_as(text, root, &CONTAINER, unknown)?;
        Ok(Self::Container(Arc::new(config.checked()?)))
    }
}

/// Returns the image that the text of a `runtimeConfig` names; empty if it names none, as that of
/// pods, or cannot be read.
pub fn image_of(text: &str) -> String {
    let Ok(document) = yaml::read(text, Origin::Others) else {
        return String::new();
    };
    let image = document.root.scalar_at(&["image"]);
    without_passwords(image.unwrap_or_default())
}

/// Reads a YAML text by a table of fields. Adds unknown keys to `unknown`.
fn read_as<T: DeserializeOwned>(
    text: &str,
    root: Result<&Yaml, &YamlError>,
    object: &'static Object,
    unknown: &mut UnknownKeys,
) -> Result<T, String> {
    let error = match root {
        Ok(root) => match read_object(root, object, unknown) {
            Ok(config) => return Ok(config),
            Err(error) => error,
        },
        Err(error) => error.to_string(),
    };
    let mut error = without_passwords(&error);
    // Without quotes, a template that was not rendered is a mapping.
    if text.contains("{{") {
        error.push_str("; templates are rendered only in workloads with 'configs'");
    }
    Err(error)
}

/// Reads the root of a text by a table of fields, and its tree as a value.
fn read_object<T: DeserializeOwned>(
    root: &Yaml,
    object: &'static Object,
    unknown: &mut UnknownKeys,
) -> Result<T, String> {
    let reading = read(root, object, DocumentKind::Engine);
    *unknown = UnknownKeys {
        first: reading.unknown,
        more: reading.more_unknown,
    };
    if let Some(problem) = reading.problems.into_iter().next() {
        return Err(LifecycleError::new(problem).to_string());
    }
    let config: Result<T, StateError> = reading.tree.read("runtimeConfig");
    config.map_err(|error| error.to_string())
}

impl From<&str> for RuntimeConfig {
    fn from(text: &str) -> Self {
        Self {
            text: text.into(),
            read: OnceLock::new(),
        }
    }
}

impl Deref for RuntimeConfig {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl PartialEq for RuntimeConfig {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for RuntimeConfig {}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ContainerConfig, String> {
        match ReadConfig::of(&"podman".into(), text).engine? {
            EngineConfig::Container(config) => Ok(ContainerConfig::clone(&config)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn scalars_in_lists_stay_as_written_and_null_is_an_empty_list() {
        let text = "image: 5\ncommandOptions: [true, 0x10, 1.50, ~, 'x y']\ncommandArgs: null\ngeneralOptions: ~\n\
                    unknown: {a: 1}\n";
        let config = parse(text).unwrap();
        assert_eq!(config.image, "5");
        assert_eq!(config.command_options, ["true", "0x10", "1.50", "~", "x y"]);
        assert_eq!(
            (config.command_args.len(), config.general_options.len()),
            (0, 0)
        );
        assert_eq!(
            parse("image: x\ncommandArgs:\n").unwrap().command_args,
            [""; 0]
        );
    }

    #[test]
    fn configuration_that_cannot_work_is_unsupported_with_a_reason() {
        for (text, reason) in [
            ("commandArgs: []", "missing field `image`"),
            (
                "image: a\nimage: b",
                "duplicate entry with key \"image\" at line 2 column 1",
            ),
            (
                "image: a\ncommandArgs: secret",
                "commandArgs: expected a list ('- ' before each item), found a text (line 2 column 1 of runtimeConfig)",
            ),
            (
                "image: a\ncommandArgs: [{a: b}]",
                "commandArgs[0]: expected text, found a mapping",
            ),
            ("image: [a]", "image: expected text, found a list"),
            (
                "image: {{c}}",
                "; templates are rendered only in workloads with 'configs'",
            ),
            ("image: a\n---\nimage: b", "more than one document"),
            ("", "missing field `image`"),
            (
                "just text",
                "expected a mapping ('key: value'), found a text",
            ),
            ("image: 'a", "while scanning a quoted scalar"),
        ] {
            match parse(text) {
                Err(message) => assert!(message.contains(reason), "{text:?}: {message}"),
                other => panic!("{text:?} gave {other:?}"),
            }
        }
    }

    #[test]
    fn an_image_that_reads_like_an_option_replaced_our_labels() {
        for image in ["''", "-v=/:/host", "--label=name=other.1.agent_A"] {
            let result = parse(&format!("image: {image}\ncommandArgs: [alpine]"));
            assert!(
                result
                    .as_ref()
                    .is_err_and(|text| text.starts_with("Unsupported image '")),
                "{image}: {result:?}"
            );
        }
    }

    #[test]
    fn restarts_by_the_engine_are_found_in_every_form() {
        let restarts = |runtime: &str, text: &str| {
            let found = ReadConfig::of(&runtime.into(), text).engine_restarts();
            found.map(|found| {
                found.pod.map_or_else(
                    || found.policy.clone(),
                    |pod| format!("{pod}: {}", found.policy),
                )
            })
        };
        for (options, expected) in [
            ("--restart=on-failure:5", Some("on-failure:5")),
            ("--restart, unless-stopped", Some("unless-stopped")),
            ("--restart=no, --restart=always", Some("always")),
            ("--restart=always, --restart=no", None),
            ("--restart=never", None),
            ("--restart, ''", None),
            ("--restart-x=always", None),
            ("-e, RESTART=always", None),
            ("", None),
        ] {
            for runtime in ["podman", "containerd"] {
                let found = restarts(runtime, &format!("image: x\ncommandOptions: [{options}]"));
                assert_eq!(found.as_deref(), expected, "{options}");
            }
        }
        let pod =
            |policy: &str| format!("{{kind: Pod, metadata: {{name: p}}, spec: {{{policy}}}}}");
        let job = "{kind: Job, metadata: {name: j}, spec: {template: {spec: {restartPolicy: OnFailure}}}}";
        let never = pod("restartPolicy: Never");
        for (documents, expected) in [
            (pod("restartPolicy: Always"), Some("p: Always")),
            (pod(""), Some("p: Always")),
            (never.clone(), None),
            (format!("{never}\n  ---\n  {job}"), Some("j: OnFailure")),
            ("{kind: ConfigMap, metadata: {name: c}}".to_owned(), None),
            ("[".to_owned(), None),
        ] {
            let found = restarts("podman-kube", &format!("manifest: |\n  {documents}\n"));
            assert_eq!(found.as_deref(), expected, "{documents}");
        }
    }

    #[test]
    fn image_is_found_where_the_text_names_one() {
        for (text, expected) in [
            ("image: nginx:1\n", "nginx:1"),
            (
                "commandArgs: [x]\nimage: \"nginx:1\" # the newest\n",
                "nginx:1",
            ),
            ("{image: nginx, commandArgs: []}", "nginx"),
            ("manifest: |\n  image: nginx\n", ""),
            ("image: [nginx", ""),
            ("", ""),
        ] {
            assert_eq!(image_of(text), expected, "{text}");
        }
    }

    #[test]
    fn a_text_is_read_once_for_its_runtime() {
        let config: RuntimeConfig = "image: x\ncommandOptions: [--pod=p]".into();
        let [podman, kube] = ["podman", "podman-kube"].map(Name::from);
        let read = config.read(&podman);
        assert!(Arc::ptr_eq(&read, &config.clone().read(&podman)) && read.joins_pod());
        assert!(config.read(&kube).engine.is_err() && config.read(&podman).engine.is_ok());
    }

    #[test]
    fn option_for_a_pod_is_found_in_both_of_its_forms() {
        for (options, expected) in [
            ("--pod, p", true),
            ("--pod=p", true),
            ("--name=x, --pod=p", true),
            ("--pods=p", false),
            ("--name, x", false),
            ("", false),
        ] {
            let text = format!("image: x\ncommandOptions: [{options}]");
            let config = ReadConfig::of(&"podman".into(), &text);
            assert_eq!(config.joins_pod(), expected, "{options}");
        }
        let kube = ReadConfig::of(&"podman-kube".into(), "manifest: 'kind: Pod'");
        assert!(!kube.joins_pod());
    }

    #[test]
    fn manifest_of_pods_that_becomes_too_large_is_refused() {
        let items = "x, ".repeat(1000);
        let aliases = "*a, ".repeat(1000);
        let text = format!("manifest: |\n  a: &a [{items}]\n  b: [{aliases}]\n");
        let error = ReadConfig::of(&"podman-kube".into(), &text)
            .engine
            .unwrap_err();
        assert!(error.contains("the YAML text becomes more than"), "{error}");
        // What only podman can read is left to podman.
        let kube = KubeConfig::read("manifest: '['\ncontrolInterfaceTarget: ~\n").unwrap();
        assert_eq!(kube.control_interface_target, None);
        assert!(kube.checked().is_ok());
    }
}
