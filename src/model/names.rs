//! Names: their form, the name of a workload instance, and enums whose members have names.
//!
//! Thread: none, plain values.

use crate::limits::{EXCERPT_MAX, NAME_MAX};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A short text that many places hold at the same time.
pub type Name = Arc<str>;

/// Returns whether `text` consists of `[a-zA-Z0-9_-]` only; true for the empty text.
pub fn has_name_characters(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

/// Returns whether `text` is a name: 1 to 63 bytes of `[a-zA-Z0-9_-]`.
pub fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME_MAX && has_name_characters(text)
}

/// Returns whether `text` begins like the name of a commander's connection. No agent may have such
/// a name: responses to it are routed to commanders.
pub fn is_of_commander(text: &str) -> bool {
    text.starts_with("cli-conn") || text.starts_with("commander-conn")
}

/// Why an agent's name is refused.
pub const NOT_OF_COMMANDER: &str = "It must not begin with 'cli-conn' or 'commander-conn'.";

/// Identifies one configuration of a workload on one agent.
///
/// `id` is the SHA-256 of the rendered runtime configuration as 64 lower-case hex digits, so a
/// changed configuration is another instance and everything else that changes is not.
// [impl->swdd~api-workload-execution-instance-naming~1]
// [impl->swdd~api-workload-state-identification~1]
#[derive(
    Debug,
    Clone,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct InstanceName {
    pub workload: Name,
    /// Hash of the rendered runtime configuration; any text if a peer sent it.
    pub id: Name,
    /// Name of the agent; empty means not scheduled.
    pub agent: Name,
}

impl InstanceName {
    /// The instance of `workload` with this `runtime_config` on `agent`.
    pub fn new(workload: &str, runtime_config: &str, agent: &str) -> Self {
        Self {
            workload: workload.into(),
            id: hash_id(runtime_config).into(),
            agent: agent.into(),
        }
    }

    /// The instance with an id that is already known.
    pub fn with_id(workload: &str, id: &str, agent: &str) -> Self {
        Self {
            workload: workload.into(),
            id: id.into(),
            agent: agent.into(),
        }
    }

    /// Reads `<workload>.<id>.<agent>`; `None` unless there are exactly three parts.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let workload = parts.next()?;
        let id = parts.next()?;
        let agent = parts.next()?;
        if parts.next().is_some() {
            return None;
        }
        Some(Self::with_id(workload, id, agent))
    }

    /// `<workload>.<first 7 digits of the id>.<agent>`: the default name of the container.
    pub fn short(&self) -> String {
        let id = self.id.get(..7).unwrap_or(&self.id);
        format!("{}.{id}.{}", self.workload, self.agent)
    }

    /// Memory of its texts, in bytes.
    pub fn bytes(&self) -> usize {
        self.workload.len() + self.id.len() + self.agent.len()
    }

    /// `<workload>.<id>`: the folder of FIFOs and files.
    pub fn folder(&self) -> String {
        format!("{}.{}", self.workload, self.id)
    }
}

/// Returns the entries of one workload in a map by instance, where they are neighbours.
pub fn of_workload<'m, V>(
    map: &'m BTreeMap<InstanceName, V>,
    workload: &'m str,
) -> impl Iterator<Item = (&'m InstanceName, &'m V)> {
    let all = map.range(InstanceName::with_id(workload, "", "")..);
    all.take_while(move |(instance, _)| *instance.workload == *workload)
}

impl fmt::Display for InstanceName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.workload, self.id, self.agent)
    }
}

impl From<InstanceName> for String {
    fn from(name: InstanceName) -> Self {
        name.to_string()
    }
}

impl TryFrom<String> for InstanceName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or(text)
    }
}

/// The id that a runtime configuration gives to its instance.
pub fn hash_id(runtime_config: &str) -> String {
    format!("{:x}", Sha256::digest(runtime_config))
}

/// Returns the beginning of a text of any length from a peer, for a log line or a response.
pub fn excerpt(text: &str) -> Cow<'_, str> {
    if text.len() <= EXCERPT_MAX {
        return text.into();
    }
    format!(
        "{}... ({} bytes)",
        &text[..text.floor_char_boundary(EXCERPT_MAX)],
        text.len()
    )
    .into()
}

/// All runtimes that agents have.
pub const RUNTIMES: [&str; 3] = ["podman", "containerd", "podman-kube"];

/// Declares an enum whose members have one fixed text each, used in manifests, state output and
/// messages.
macro_rules! named_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $member:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$doc])* #[serde(rename = $text)] $member),+ }

        impl $name {
            /// All members, in order.
            pub const ALL: &'static [Self] = &[$(Self::$member),+];

            /// The texts of all members, in order.
            pub const TEXTS: &'static [&'static str] = &[$($text),+];

            /// The text used in manifests and output.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$member => $text),+ }
            }

            /// Reads exactly that text.
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|member| member.as_str() == text)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(self.as_str())
            }
        }
    };
}
pub(super) use named_enum;

/// `A, B or C`.
pub(crate) fn alternatives(texts: &[&str]) -> String {
    match texts {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => texts.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpt_of_a_long_text_ends_between_characters() {
        assert_eq!(excerpt("short"), "short");
        for text in [
            "x".repeat(1_000_000),
            "ä".repeat(500_000),
            format!("x{}", "🦀".repeat(1_000)),
        ] {
            let excerpt = excerpt(&text);
            assert!(
                excerpt.len() < EXCERPT_MAX + 30
                    && excerpt.ends_with(&format!("... ({} bytes)", text.len()))
            );
        }
    }

    // [utest->swdd~api-workload-execution-instance-naming~1]
    #[test]
    fn the_id_is_the_hash_of_the_runtime_config_alone() {
        for (config, id) in [
            (
                "x",
                "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881",
            ),
            (
                "",
                "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            ),
        ] {
            assert_eq!(hash_id(config), id, "{config:?}");
        }
        let name = InstanceName::new("web", "x", "agent_A");
        assert_eq!(name.short(), "web.2d71164.agent_A");
        assert_eq!(name.folder(), format!("web.{}", hash_id("x")));
    }

    #[test]
    fn an_instance_name_has_exactly_three_parts() {
        for (text, valid) in [
            ("a.b.c", true),
            ("a.b.", true),
            ("..", true),
            ("a.b", false),
            ("a.b.c.d", false),
            ("", false),
        ] {
            let parsed = InstanceName::parse(text);
            assert_eq!(parsed.is_some(), valid, "{text:?}");
            assert!(
                parsed.is_none_or(|name| name.to_string() == text),
                "{text:?}"
            );
        }
    }

    #[test]
    fn an_id_that_is_not_a_hash_is_shortened_without_panic() {
        assert_eq!(
            InstanceName::with_id("w", "äöüäöü", "a").short(),
            "w.äöüäöü.a"
        );
        assert_eq!(InstanceName::with_id("w", "abc", "a").short(), "w.abc.a");
    }

    #[test]
    fn names_are_limited_in_characters_and_length() {
        for (text, valid) in [
            ("a", true),
            ("A_b-9", true),
            ("", false),
            ("a.b", false),
            ("ä", false),
            ("a b", false),
        ] {
            assert_eq!(is_name(text), valid, "{text:?}");
        }
        assert!(is_name(&"a".repeat(63)));
        assert!(!is_name(&"a".repeat(64)));
    }

    #[test]
    fn memory_of_an_instance_name_is_that_of_its_three_texts() {
        assert_eq!(InstanceName::with_id("web", "id", "agent").bytes(), 10);
    }

    #[test]
    fn names_of_commander_connections_are_recognised() {
        for (name, expected) in [
            ("cli-conn-1", true),
            ("commander-conn-1", true),
            ("agent_A", false),
            ("my-cli-conn", false),
            ("", false),
        ] {
            assert_eq!(is_of_commander(name), expected, "{name:?}");
        }
    }

    #[test]
    fn alternatives_are_listed_with_a_word_before_the_last() {
        assert_eq!(alternatives(&[]), "");
        assert_eq!(alternatives(&["a"]), "a");
        assert_eq!(alternatives(&["a", "b"]), "a or b");
        assert_eq!(alternatives(&["a", "b", "c"]), "a, b or c");
    }
}
