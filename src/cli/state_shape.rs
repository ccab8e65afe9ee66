//! The fields of a complete state: their order, what they hold, which are left out when empty (spec/cli.md 6.1).
//!
//! Thread: none, plain values. One table for printing states and for reading the file of `set state`.

use crate::model::access_rules::Operation;
use crate::model::workload::{AddCondition, RestartPolicy};

/// What a node of a complete state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The root.
    CompleteState,
    /// `desiredState` and `effectiveState`.
    State,
    /// A workload.
    Workload,
    /// Its control interface rules.
    Access,
    /// One rule.
    Rule,
    /// A file of a workload.
    File,
    /// A connected agent.
    Agent,
    /// Its load.
    Status,
    /// Any number of names, each with this below it.
    Map(&'static Kind),
    /// Any number of these.
    List(&'static Kind),
    /// A value for templates: text, list or map.
    Config,
    /// Text.
    Text,
    /// A whole number.
    Number,
    /// One of a few texts.
    Choice(Choice),
    /// Whatever the server sends; nothing that could be set.
    Any,
}

/// Which few texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Of a workload.
    RestartPolicy,
    /// Of a dependency.
    AddCondition,
    /// Kinds of control interface rules.
    RuleType,
    /// Of a state rule.
    Operation,
}

impl Choice {
    /// The texts.
    #[must_use]
    pub fn texts(self) -> Vec<&'static str> {
        match self {
            Self::RestartPolicy => RestartPolicy::ALL.iter().map(|policy| policy.as_str()).collect(),
            Self::AddCondition => AddCondition::ALL.iter().map(|condition| condition.as_str()).collect(),
            Self::RuleType => vec!["StateRule", "LogRule"],
            Self::Operation => Operation::NAMES.iter().map(|(name, _)| *name).collect(),
        }
    }
}

/// A field of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Its key.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// Whether it is left out when it is an empty map or list.
    pub omit_empty: bool,
}

const fn field(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, omit_empty: false }
}

const fn optional(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, omit_empty: true }
}

const COMPLETE_STATE: [Field; 4] = [
    field("desiredState", Kind::State),
    field("workloadStates", Kind::Any),
    field("agents", Kind::Map(&Kind::Agent)),
    field("effectiveState", Kind::State),
];
const STATE: [Field; 3] = [
    field("apiVersion", Kind::Text),
    field("workloads", Kind::Map(&Kind::Workload)),
    optional("configs", Kind::Map(&Kind::Config)),
];
const WORKLOAD: [Field; 9] = [
    field("agent", Kind::Text),
    field("restartPolicy", Kind::Choice(Choice::RestartPolicy)),
    optional("dependencies", Kind::Map(&Kind::Choice(Choice::AddCondition))),
    optional("tags", Kind::Map(&Kind::Text)),
    field("runtime", Kind::Text),
    field("runtimeConfig", Kind::Text),
    optional("controlInterfaceAccess", Kind::Access),
    optional("configs", Kind::Map(&Kind::Text)),
    optional("files", Kind::List(&Kind::File)),
];
const ACCESS: [Field; 2] =
    [optional("allowRules", Kind::List(&Kind::Rule)), optional("denyRules", Kind::List(&Kind::Rule))];
const RULE: [Field; 4] = [
    field("type", Kind::Choice(Choice::RuleType)),
    field("operation", Kind::Choice(Choice::Operation)),
    field("filterMasks", Kind::List(&Kind::Text)),
    field("workloadNames", Kind::List(&Kind::Text)),
];
const FILE: [Field; 3] = [field("mountPoint", Kind::Text), field("data", Kind::Text), field("binaryData", Kind::Text)];
const AGENT: [Field; 2] = [optional("status", Kind::Status), optional("tags", Kind::Map(&Kind::Text))];
const STATUS: [Field; 2] = [field("cpuUsage", Kind::Number), field("freeMemory", Kind::Number)];

impl Kind {
    /// The fields of a node of this kind in the order in which they are printed; none where names are free.
    #[must_use]
    pub fn fields(self) -> &'static [Field] {
        match self {
            Self::CompleteState => &COMPLETE_STATE,
            Self::State => &STATE,
            Self::Workload => &WORKLOAD,
            Self::Access => &ACCESS,
            Self::Rule => &RULE,
            Self::File => &FILE,
            Self::Agent => &AGENT,
            Self::Status => &STATUS,
            Self::Map(_) | Self::List(_) | Self::Config | Self::Text | Self::Number | Self::Choice(_) | Self::Any => {
                &[]
            }
        }
    }
}
