//! A workload as a user describes it, and the values of its parts.
//!
//! Thread: none, plain values.

use super::access_rules::ControlInterfaceAccess;
use super::lifecycle::{Lifecycle, LifecycleError};
use super::names::{InstanceName, Name, named_enum};
use super::node::Node;
use super::runtime_config::{ReadConfig, RuntimeConfig};
use crate::collect::CollectEntries as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

named_enum! {
    /// When an exited workload is restarted.
    // [impl->swdd~api-supports-restart-policies~1]
    #[derive(Default)]
    RestartPolicy {
        #[default]
        Never = "NEVER",
        /// After a failure.
        OnFailure = "ON_FAILURE",
        /// After success and failure.
        Always = "ALWAYS",
    }
}

named_enum! {
    /// The condition that a dependency must meet before a workload starts.
    ///
    /// A new one needs: [`Phase::fulfils_add`], [`AddCondition::awaited`], its number in
    /// `wire/convert/tree.rs`, `cli/describe.rs`, `cli/blame.rs`, and `meets` in the simulation; the
    /// compiler names these. By hand: `proto/ank_base.proto`, and `set_dependencies` in the
    /// simulation. `ank graph` follows the name.
    ///
    /// [`Phase::fulfils_add`]: crate::execution_state::Phase::fulfils_add
    // [impl->swdd~api-add-conditions-for-dependencies~1]
    AddCondition {
        /// It runs.
        Running = "ADD_COND_RUNNING",
        /// It ended well.
        Succeeded = "ADD_COND_SUCCEEDED",
        /// It ended with an error or could not be started.
        Failed = "ADD_COND_FAILED",
    }
}

impl AddCondition {
    /// The condition as people read it.
    pub fn awaited(self) -> &'static str {
        match self {
            Self::Running => "to run",
            Self::Succeeded => "to succeed",
            Self::Failed => "to fail",
        }
    }
}

named_enum! {
    /// The condition that a dependent must meet before a workload is stopped.
    // [impl->swdd~api-delete-conditions-for-dependencies~1]
    #[derive(Default)]
    DeleteCondition {
        /// It runs.
        #[default]
        Running = "DEL_COND_RUNNING",
        /// It neither runs nor waits for its start.
        NotPendingNorRunning = "DEL_COND_NOT_PENDING_NOR_RUNNING",
    }
}

/// A file that the agent writes and mounts into the workload.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct File {
    /// Absolute path inside the workload.
    pub mount_point: String,
    #[serde(flatten)]
    pub content: FileContent,
}

/// Content of a [`File`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "FileFields")]
pub enum FileContent {
    /// Written as it is.
    Data(String),
    /// Base64 text of the bytes.
    BinaryData(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FileFields {
    data: Option<String>,
    binary_data: Option<String>,
}

impl TryFrom<FileFields> for FileContent {
    type Error = &'static str;

    fn try_from(FileFields { data, binary_data }: FileFields) -> Result<Self, &'static str> {
        match (data, binary_data) {
            (Some(data), _) => Ok(Self::Data(data)),
            (None, Some(data)) => Ok(Self::BinaryData(data)),
            (None, None) => Err("a file with `data` or `binaryData`"),
        }
    }
}

/// A value for templates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Node", untagged)]
pub enum ConfigItem {
    /// Text.
    Text(String),
    /// Values in order.
    List(Vec<ConfigItem>),
    /// Values by key.
    Map(BTreeMap<String, ConfigItem>),
}

/// A number becomes a text.
impl From<Node> for ConfigItem {
    fn from(node: Node) -> Self {
        match node {
            Node::Text(text) => Self::Text(text.to_string()),
            Node::Number(number) => Self::Text(number.to_string()),
            Node::List(items) => Self::List(items.into_iter().map(Self::from).collect()),
            Node::Map(entries) => {
                let entries = entries.into_iter();
                Self::Map(
                    entries
                        .map(|(key, node)| (key.into_owned(), node.into()))
                        .collect_entries(),
                )
            }
        }
    }
}

/// One workload: as written in the desired state, or as agents get it in the effective state.
// [impl->swdd~api-provides-spec-object-definitions~1]
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Workload {
    /// Name of its agent; empty means not scheduled; may be a template in the desired state.
    pub agent: Name,
    pub runtime: Name,
    /// Text for that runtime; without surrounding white space.
    #[serde(deserialize_with = "trimmed")]
    pub runtime_config: RuntimeConfig,
    #[serde(default)]
    pub restart_policy: RestartPolicy,
    /// The conditions that other workloads must meet before it starts.
    #[serde(default)]
    pub dependencies: BTreeMap<String, AddCondition>,
    /// Free text by key.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// Template names to keys of the configs; empty in the effective state.
    #[serde(default)]
    pub configs: BTreeMap<String, String>,
    /// Files mounted into it.
    #[serde(default)]
    pub files: Vec<File>,
    #[serde(default)]
    pub control_interface_access: ControlInterfaceAccess,
    /// Why an agent cannot read all of it and must not start it. Never part of a state.
    #[serde(skip)]
    pub unreadable: Option<Arc<str>>,
}

fn trimmed<'de, D: Deserializer<'de>>(text: D) -> Result<RuntimeConfig, D::Error> {
    String::deserialize(text).map(|text| text.trim().into())
}

impl Workload {
    /// A workload with everything optional left out.
    pub fn new(agent: &str, runtime: &str, runtime_config: &str) -> Self {
        Self {
            agent: agent.into(),
            runtime: runtime.into(),
            runtime_config: runtime_config.trim().into(),
            ..Self::default()
        }
    }

    /// The runtime configuration after reading, which the first call does.
    pub fn config(&self) -> Arc<ReadConfig> {
        self.runtime_config.read(&self.runtime)
    }

    /// The `lifecycle:` block; `None` without one.
    ///
    /// # Errors
    /// The block is invalid, by itself or for the dependencies of the workload.
    pub fn lifecycle(&self) -> Result<Option<Arc<Lifecycle>>, LifecycleError> {
        let lifecycle = self.config().lifecycle.clone()?;
        if let Some(lifecycle) = &lifecycle {
            lifecycle.check_dependencies(&self.dependencies)?;
        }
        Ok(lifecycle)
    }

    /// The instance that this workload has under `name`.
    pub fn instance_name(&self, name: &str) -> InstanceName {
        InstanceName::new(name, &self.runtime_config, &self.agent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [utest->swdd~api-supports-restart-policies~1]
    #[test]
    fn fixed_texts_are_read_back_and_nothing_else_is() {
        for policy in RestartPolicy::ALL {
            assert_eq!(RestartPolicy::parse(policy.as_str()), Some(*policy));
        }
        for text in ["never", "", "ON-FAILURE", "NEVER "] {
            assert_eq!(RestartPolicy::parse(text), None, "{text:?}");
        }
    }

    // [utest->swdd~api-add-conditions-for-dependencies~1]
    // [utest->swdd~api-delete-conditions-for-dependencies~1]
    #[test]
    fn conditions_have_the_names_of_the_manifest() {
        let add = [
            ("ADD_COND_RUNNING", Some(AddCondition::Running)),
            ("ADD_COND_SUCCEEDED", Some(AddCondition::Succeeded)),
            ("ADD_COND_FAILED", Some(AddCondition::Failed)),
            ("DEL_COND_RUNNING", None),
            ("RUNNING", None),
        ];
        for (text, condition) in add {
            assert_eq!(AddCondition::parse(text), condition, "{text}");
        }
        let delete = [
            ("DEL_COND_RUNNING", Some(DeleteCondition::Running)),
            (
                "DEL_COND_NOT_PENDING_NOR_RUNNING",
                Some(DeleteCondition::NotPendingNorRunning),
            ),
            ("ADD_COND_RUNNING", None),
        ];
        for (text, condition) in delete {
            assert_eq!(DeleteCondition::parse(text), condition, "{text}");
        }
    }
}
