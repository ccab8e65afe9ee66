//! What a workload may ask through its control interface, as written in the manifest.
//!
//! Thread: none, plain values.

/// Rules of one workload; deny beats allow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControlInterfaceAccess {
    /// What is allowed.
    pub allow_rules: Vec<AccessRule>,
    /// What is denied although a rule above allows it.
    pub deny_rules: Vec<AccessRule>,
}

impl ControlInterfaceAccess {
    /// Whether there is no rule at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.allow_rules.is_empty() && self.deny_rules.is_empty()
    }
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessRule {
    /// Reading or writing parts of the state.
    State {
        /// What the rule is about.
        operation: Operation,
        /// Paths into the state; `*` stands for one part.
        filter_masks: Vec<String>,
    },
    /// Reading logs of the named workloads; one `*` per name.
    Log {
        /// Workload names or patterns.
        workload_names: Vec<String>,
    },
}

/// What a state rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Neither reading nor writing.
    Nothing,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Reading and writing.
    ReadWrite,
}

impl Operation {
    /// All operations with their manifest names.
    pub const NAMES: [(&'static str, Self); 4] =
        [("Nothing", Self::Nothing), ("Read", Self::Read), ("Write", Self::Write), ("ReadWrite", Self::ReadWrite)];

    /// The manifest name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "Nothing",
            Self::Read => "Read",
            Self::Write => "Write",
            Self::ReadWrite => "ReadWrite",
        }
    }

    /// Reads the manifest name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, operation)| *operation)
    }
}
