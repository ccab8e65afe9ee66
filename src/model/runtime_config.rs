//! The `runtimeConfig` of a workload: the text, and what it says for the engines and for the `lifecycle:` block.
//!
//! Thread: none, plain values. An agent reads each text once, on `rx:server`; what it says is shared from then on.

use super::lifecycle::{self, Lifecycle, LifecycleError};
use super::names::Name;
use super::shown_text::{masked_complaint, without_passwords};
use super::yaml;
use crate::limits::YAML_CONFIG_MAX;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// All runtimes that agents have.
pub const RUNTIMES: [&str; 3] = ["podman", "containerd", "podman-kube"];

/// The text of a `runtimeConfig`, without surrounding white space. Two are equal when their texts are.
#[derive(Clone)]
pub struct RuntimeConfig {
    text: Arc<str>,
    read: OnceLock<Arc<ReadConfig>>,
}

/// What a `runtimeConfig` says. Each part may be wrong by itself: such a workload fails with the reason.
#[derive(Debug)]
pub struct ReadConfig {
    runtime: Name,
    /// The block; `None` without one.
    pub lifecycle: Result<Option<Arc<Lifecycle>>, LifecycleError>,
    /// What the engine is to run, or why it never can.
    pub engine: Result<EngineConfig, String>,
}

/// What an engine is to run, by family of engines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineConfig {
    /// One container: podman, containerd.
    Container(Arc<ContainerConfig>),
    /// Pods of a Kubernetes manifest.
    Kube(Arc<KubeConfig>),
}

/// Texts in order, equal ones kept once: aliases make a hundred megabytes of one.
pub type Texts = Vec<Arc<str>>;

/// A container. Unknown keys are ignored, as other implementations do.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a mapping with the key 'image'")]
pub struct ContainerConfig {
    /// What to run.
    pub image: String,
    /// Options of the engine itself, before the verb.
    #[serde(default, deserialize_with = "list_or_null")]
    pub general_options: Texts,
    /// Options of the verb `run`.
    #[serde(default, deserialize_with = "list_or_null")]
    pub command_options: Texts,
    /// What the container executes.
    #[serde(default, deserialize_with = "list_or_null")]
    pub command_args: Texts,
}

/// Pods. Unknown keys are ignored, as other implementations do.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a mapping with the key 'manifest'")]
pub struct KubeConfig {
    /// What to play.
    pub manifest: String,
    /// Options of the engine itself.
    #[serde(default, deserialize_with = "list_or_null")]
    pub general_options: Texts,
    /// Options of `kube play`.
    #[serde(default, deserialize_with = "list_or_null")]
    pub play_options: Texts,
    /// Options of `kube down`.
    #[serde(default, deserialize_with = "list_or_null")]
    pub down_options: Texts,
    /// `<pod>/<container>` that gets the control interface.
    #[serde(default)]
    pub control_interface_target: Option<String>,
}

impl RuntimeConfig {
    /// What the text says for `runtime`; it is read with the first call.
    pub(super) fn read(&self, runtime: &Name) -> Arc<ReadConfig> {
        let read = self.read.get_or_init(|| Arc::new(ReadConfig::of(runtime, &self.text)));
        if read.runtime == *runtime { read.clone() } else { Arc::new(ReadConfig::of(runtime, &self.text)) }
    }
}

impl ReadConfig {
    fn of(runtime: &Name, text: &str) -> Self {
        let engine = if &**runtime == "podman-kube" {
            KubeConfig::read(text).and_then(KubeConfig::checked).map(|config| EngineConfig::Kube(Arc::new(config)))
        } else {
            ContainerConfig::read(text).map(|config| EngineConfig::Container(Arc::new(config)))
        };
        Self {
            runtime: runtime.clone(),
            lifecycle: lifecycle::of_config(runtime, text).map(|block| block.map(Arc::new)),
            engine,
        }
    }

    /// The block, when there is one that can be followed. What is wrong with another one is reported when the workload is
    /// started.
    #[must_use]
    pub fn usable_lifecycle(&self) -> Option<&Lifecycle> {
        self.lifecycle.as_ref().ok()?.as_deref()
    }

    /// Whether the workload is wanted in a pod, which `--pod` says.
    #[must_use]
    pub fn joins_pod(&self) -> bool {
        let Ok(EngineConfig::Container(config)) = &self.engine else { return false };
        config.command_options.iter().any(|option| &**option == "--pod" || option.starts_with("--pod="))
    }
}

impl ContainerConfig {
    /// The last value of an option such as `--pull`: in the same word or the next one.
    #[must_use]
    pub fn option(&self, name: &str) -> Option<&str> {
        let mut words = self.command_options.iter();
        let mut found = None;
        while let Some(word) = words.next() {
            match word.strip_prefix(name) {
                Some("") => found = words.next().map(|value| &**value),
                Some(rest) => found = rest.strip_prefix('=').or(found),
                None => {}
            }
        }
        found
    }

    /// Whether the image has to be there already.
    #[must_use]
    pub fn may_not_pull(&self) -> bool {
        self.option("--pull") == Some("never")
    }

    fn read(text: &str) -> Result<Self, String> {
        let config: Self = read(text)?;
        // The engine would take it as an option, and the first of the arguments as image.
        if config.image.is_empty() || config.image.starts_with('-') {
            let image = without_passwords(&config.image);
            return Err(format!("Unsupported image '{image}': an image neither is empty nor begins with '-'"));
        }
        Ok(config)
    }
}

impl KubeConfig {
    /// Reads the text; what the manifest says is not looked at.
    ///
    /// # Errors
    /// What is wrong, without values that may be secret.
    pub fn read(text: &str) -> Result<Self, String> {
        read(text)
    }

    /// Podman may read another manifest, but without knowing which pods it makes nobody can watch or remove them.
    fn checked(self) -> Result<Self, String> {
        let checked = yaml::check(&self.manifest, YAML_CONFIG_MAX);
        checked.map(|()| self).map_err(|error| masked_complaint(&error.to_string()))
    }
}

fn read<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    yaml::read(text, YAML_CONFIG_MAX).map_err(|error| {
        // Without quotes, a template that was not rendered is a mapping.
        let note = if text.contains("{{") { "; templates are rendered only in workloads with 'configs'" } else { "" };
        masked_complaint(&error.to_string()) + note
    })
}

/// A list of texts; YAML null counts as empty. Scalars of any type are taken as they are written.
fn list_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Texts, D::Error> {
    let mut known: BTreeSet<Arc<str>> = BTreeSet::new();
    let texts = Option::<Vec<String>>::deserialize(deserializer)?.unwrap_or_default().into_iter();
    let shared = texts.map(|text| match known.get(&*text) {
        Some(known) => known.clone(),
        None => {
            let text: Arc<str> = text.into();
            known.insert(text.clone());
            text
        }
    });
    Ok(shared.collect())
}

impl From<&str> for RuntimeConfig {
    fn from(text: &str) -> Self {
        Self { text: text.into(), read: OnceLock::new() }
    }
}

impl From<String> for RuntimeConfig {
    fn from(text: String) -> Self {
        text.as_str().into()
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

impl fmt::Debug for RuntimeConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.text, formatter)
    }
}

impl fmt::Display for RuntimeConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ContainerConfig, String> {
        ContainerConfig::read(text)
    }

    fn texts(texts: &[&str]) -> Texts {
        texts.iter().map(|text| (*text).into()).collect()
    }

    #[test]
    fn scalars_in_lists_are_taken_as_written_and_null_is_an_empty_list() {
        let text = "image: 5\ncommandOptions: [true, 0x10, 1.50, ~, 'x y']\ncommandArgs: null\ngeneralOptions: ~\n\
                    unknown: {a: 1}\n";
        let config = parse(text).unwrap();
        assert_eq!(config.image, "5");
        assert_eq!(config.command_options, texts(&["true", "0x10", "1.50", "~", "x y"]));
        assert_eq!((config.command_args, config.general_options), (vec![], vec![]));
        assert_eq!(parse("image: x\ncommandArgs:\n").unwrap().command_args, texts(&[]));
    }

    #[test]
    fn a_configuration_that_can_never_work_is_unsupported_and_says_why() {
        for (text, reason) in [
            ("commandArgs: []", "missing field `image`"),
            ("image: a\nimage: b", "duplicate field `image`"),
            ("image: a\ncommandArgs: x", "invalid type: string \"***\", expected a sequence"),
            ("image: a\ncommandArgs: [{a: b}]", "invalid type: map, expected a string"),
            ("image: [a]", "invalid type: sequence, expected a string"),
            ("image: {{c}}", "; templates are rendered only in workloads with 'configs'"),
            ("image: a\n---\nimage: b", "more than one document"),
            ("", "missing field `image`"),
            ("just text", "invalid type: string \"***\", expected a mapping with the key 'image'"),
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
            assert!(result.as_ref().is_err_and(|text| text.starts_with("Unsupported image '")), "{image}: {result:?}");
        }
    }

    #[test]
    fn a_text_is_read_once_for_its_runtime() {
        let config: RuntimeConfig = "image: x\ncommandOptions: [--pod=p, a, a]".into();
        let [podman, kube] = ["podman", "podman-kube"].map(Name::from);
        let read = config.read(&podman);
        assert!(Arc::ptr_eq(&read, &config.clone().read(&podman)) && read.joins_pod());
        assert!(config.read(&kube).engine.is_err() && config.read(&podman).engine.is_ok());
        let Ok(EngineConfig::Container(container)) = &read.engine else { panic!("{read:?}") };
        let [_, first, second] = &container.command_options[..] else { panic!("{container:?}") };
        assert!(Arc::ptr_eq(first, second), "equal texts are kept once");
    }
}
