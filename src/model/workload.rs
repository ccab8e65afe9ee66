//! A workload as a user describes it, and the values of its parts.
//!
//! Thread: none, plain values.

use super::access_rules::ControlInterfaceAccess;
use super::names::{InstanceName, Name, named_enum};
use super::node::Node;
use super::runtime_config::{ReadConfig, RuntimeConfig};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

named_enum! {
    /// When a workload that ended is started again.
    // [impl->swdd~api-supports-restart-policies~1]
    #[derive(Default)]
    RestartPolicy {
        /// Not at all.
        #[default]
        Never = "NEVER",
        /// After it failed.
        OnFailure = "ON_FAILURE",
        /// After it ended in whatever way.
        Always = "ALWAYS",
    }
}

named_enum! {
    /// What a dependency must have reached before a workload starts.
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
    /// What the other workload has to do, as it is shown.
    pub fn awaited(self) -> &'static str {
        match self {
            Self::Running => "to run",
            Self::Succeeded => "to succeed",
            Self::Failed => "to fail",
        }
    }
}

named_enum! {
    /// What a dependent must have reached before a workload is stopped.
    // [impl->swdd~api-delete-conditions-for-dependencies~1]
    #[derive(Default)]
    DeleteCondition {
        /// It runs.
        #[default]
        Running = "DEL_COND_RUNNING",
        /// It neither runs nor is about to.
        NotPendingNorRunning = "DEL_COND_NOT_PENDING_NOR_RUNNING",
    }
}

/// A file that the agent writes and mounts into the workload.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct File {
    /// Absolute path inside the workload.
    pub mount_point: String,
    /// What the file contains.
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
        data.map(Self::Data)
            .or(binary_data.map(Self::BinaryData))
            .ok_or("a file with `data` or `binaryData`")
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
            Node::Map(entries) => Self::Map(
                entries
                    .into_iter()
                    .map(|(key, node)| (key.into_owned(), node.into()))
                    .collect(),
            ),
        }
    }
}

/// One workload: of the desired state as written, of the effective state as agents get it.
// [impl->swdd~api-provides-spec-object-definitions~1]
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Workload {
    /// Agent that runs it; empty means not scheduled; may be a template in the desired state.
    pub agent: Name,
    /// Runtime that runs it.
    pub runtime: Name,
    /// Text for that runtime; without surrounding white space.
    #[serde(deserialize_with = "trimmed")]
    pub runtime_config: RuntimeConfig,
    /// When it is started again.
    #[serde(default)]
    pub restart_policy: RestartPolicy,
    /// What other workloads must have reached before it starts.
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
    /// What it may request through its control interface.
    #[serde(default)]
    pub control_interface_access: ControlInterfaceAccess,
    /// Why an agent that got it cannot read all of it, so that it must not be started. Never part
    /// of a state.
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

    /// What the runtime configuration says, read with the first call.
    pub fn config(&self) -> Arc<ReadConfig> {
        self.runtime_config.read(&self.runtime)
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
