//! The access rules of a workload for its control interface, as written in the manifest.
//!
//! Thread: none, plain values.

use super::names::named_enum;
use serde::Deserialize;

/// Rules of one workload; deny beats allow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ControlInterfaceAccess {
    pub allow_rules: Vec<AccessRule>,
    pub deny_rules: Vec<AccessRule>,
}

/// The type of rules about parts of the state, in manifests.
pub const STATE_RULE: &str = "StateRule";
/// The type of rules about logs.
pub const LOG_RULE: &str = "LogRule";

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
pub enum AccessRule {
    /// Reading or writing parts of the state.
    #[serde(rename = "StateRule")]
    State {
        operation: Operation,
        /// Paths into the state; `*` stands for one part.
        filter_masks: Vec<String>,
    },
    /// Reading logs of the named workloads; one `*` per name.
    #[serde(rename = "LogRule")]
    Log {
        /// Workload names or patterns.
        workload_names: Vec<String>,
    },
}

named_enum! {
    /// The operations that a state rule allows or denies.
    Operation {
        Nothing = "Nothing",
        Read = "Read",
        Write = "Write",
        ReadWrite = "ReadWrite",
    }
}
