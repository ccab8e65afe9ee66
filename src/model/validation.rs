//! Validates names, versions, access rules and config keys of a state.
//!
//! Thread: none, plain functions. The server checks what changes; `ank` and the agent reuse single
//! rules.

use super::access_rules::AccessRule;
use super::field_path::is_filter_mask;
use super::names::{has_name_characters, is_name};
use super::version::{API_VERSION, API_VERSION_DEPRECATED};
use super::workload::{ConfigItem, Workload};
use crate::limits::NAME_MAX;

/// The rule of most names.
pub const NAME_RULE: &str = "Only a-z, A-Z, 0-9 chars, underscore (_), and hyphen (-) allowed. Maximum length is 63 characters.";
const _: () = assert!(NAME_MAX == 63, "the texts name the limit");

/// A state breaks a rule. The texts are part of the interface.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValidationError {
    /// Neither the current nor the deprecated version.
    #[error("Unsupported API version. Received '{0}', expected 'v1'")]
    ApiVersion(String),
    /// A key of the configs, at any depth.
    #[error("Unsupported config item key '{0}'. {NAME_RULE}")]
    ConfigItemKey(String),
    /// A name that templates use.
    #[error("Unsupported config alias '{0}'. {NAME_RULE}")]
    ConfigAlias(String),
    /// What an alias refers to.
    #[error("Unsupported config reference key '{0}'. {NAME_RULE}")]
    ConfigReference(String),
    /// A workload without name.
    #[error("Unsupported workload name '{0}'. Is empty.")]
    WorkloadNameEmpty(String),
    /// A workload name with other characters.
    #[error("Unsupported workload name '{0}'. Expected to have characters in [a-zA-Z0-9_-].")]
    WorkloadNameCharacters(String),
    /// A workload name that is too long.
    #[error(
        "Unsupported workload name '{0}'. Length {1} exceeds the maximum limit of 63 characters."
    )]
    WorkloadNameLength(String, usize),
    /// The agent of a workload.
    #[error("Unsupported agent name '{0}'. {NAME_RULE}")]
    AgentName(String),
    /// A mask of an access rule.
    #[error(
        "Unsupported filter mask '{0}'. Expected to have parts separated by '.', each '*' or of characters in [a-zA-Z0-9_-]."
    )]
    FilterMask(String),
    /// An empty mask of an access rule.
    #[error("Empty filter masks are not allowed in Control Interface access rules")]
    FilterMaskEmpty,
    /// A log rule that can never match a workload.
    #[error("Log rule validation failed: {0}")]
    LogRule(Box<ValidationError>),
    /// A pattern for workload names that can never match one.
    #[error(
        "Unsupported workload name filter with wildcard '{0}'. Expected to have characters in [a-zA-Z0-9_-] and at most 64 characters."
    )]
    WorkloadPattern(String),
    /// Where a file is mounted.
    #[error("Unsupported mount point '{}'. {}", .0.escape_debug(), mount_rule(*.1))]
    MountPoint(String, char),
    /// A pattern for workload names with several wildcards.
    #[error(
        "Unsupported workload name filter with wildcard '{0}'. Expected at most one '*' symbol."
    )]
    WorkloadPatternWildcards(String),
}

impl ValidationError {
    /// Returns whether the text of this error names the workload.
    pub fn names_workload(&self) -> bool {
        matches!(
            self,
            Self::WorkloadNameEmpty(_)
                | Self::WorkloadNameCharacters(_)
                | Self::WorkloadNameLength(..)
        )
    }
}

use ValidationError as Error;

/// Returns the first character of `path` that the option of a mount, a list with commas, cannot
/// contain.
pub fn unfit_for_mount(path: &str) -> Option<char> {
    let mut characters = path.chars();
    characters.find(|character| matches!(character, ',' | '"') || character.is_control())
}

/// Why a path with this character is refused.
pub fn mount_rule(character: char) -> String {
    format!(
        "It contains '{}': commas, double quotes and control characters are not allowed.",
        character.escape_debug()
    )
}

/// Checks the mount points of a workload's files.
///
/// # Errors
/// [`ValidationError::MountPoint`] of the first that the engine would read as further options.
pub fn check_mount_points(workload: &Workload) -> Result<(), ValidationError> {
    for file in &workload.files {
        if let Some(character) = unfit_for_mount(&file.mount_point) {
            return Err(Error::MountPoint(file.mount_point.clone(), character));
        }
    }
    Ok(())
}

/// Checks the version of a state. Returns whether it is the deprecated one, which is worth a
/// warning.
///
/// # Errors
/// [`ValidationError::ApiVersion`].
// [impl->swdd~api-version-checks~1]
pub fn check_api_version(version: &str) -> Result<bool, ValidationError> {
    match version {
        API_VERSION => Ok(false),
        API_VERSION_DEPRECATED => Ok(true),
        other => Err(Error::ApiVersion(other.to_owned())),
    }
}

/// Checks all keys of the configs, at any depth and inside lists.
///
/// # Errors
/// [`ValidationError::ConfigItemKey`].
// [impl->swdd~api-config-item-key-naming-convention~1]
pub fn check_config_keys<'c>(
    configs: impl IntoIterator<Item = (&'c String, &'c ConfigItem)>,
) -> Result<(), ValidationError> {
    for (key, item) in configs {
        if !is_name(key) {
            return Err(Error::ConfigItemKey(key.clone()));
        }
        check_config_item(item)?;
    }
    Ok(())
}

fn check_config_item(item: &ConfigItem) -> Result<(), ValidationError> {
    match item {
        ConfigItem::Text(_) => Ok(()),
        ConfigItem::List(items) => items.iter().try_for_each(check_config_item),
        ConfigItem::Map(items) => check_config_keys(items),
    }
}

/// Checks the template names of a workload and the config keys they refer to.
///
/// # Errors
/// [`ValidationError::ConfigAlias`] or [`ValidationError::ConfigReference`].
// [impl->swdd~api-config-aliases-and-config-reference-keys-naming-convention~1]
pub fn check_config_references(workload: &Workload) -> Result<(), ValidationError> {
    for (alias, key) in &workload.configs {
        if !is_name(alias) {
            return Err(Error::ConfigAlias(alias.clone()));
        }
        if !is_name(key) {
            return Err(Error::ConfigReference(key.clone()));
        }
    }
    Ok(())
}

/// Checks a workload whose templates are rendered: its name, its agent and its access rules.
///
/// # Errors
/// [`ValidationError`] of the first rule that is broken.
pub fn check_workload(name: &str, workload: &Workload) -> Result<(), ValidationError> {
    check_workload_name(name)?;
    check_agent_of_workload(&workload.agent)?;
    let access = &workload.control_interface_access;
    for rule in access.allow_rules.iter().chain(&access.deny_rules) {
        check_rule(rule)?;
    }
    Ok(())
}

/// Checks the name of a workload: 1 to 63 bytes of `[a-zA-Z0-9_-]`.
///
/// # Errors
/// The [`ValidationError`] for the broken part of the rule.
// [impl->swdd~api-workload-naming-convention~1]
pub fn check_workload_name(name: &str) -> Result<(), ValidationError> {
    if name.is_empty() {
        Err(Error::WorkloadNameEmpty(name.to_owned()))
    } else if !has_name_characters(name) {
        Err(Error::WorkloadNameCharacters(name.to_owned()))
    } else if name.len() > NAME_MAX {
        Err(Error::WorkloadNameLength(name.to_owned(), name.len()))
    } else {
        Ok(())
    }
}

/// Checks the agent of a workload; empty means that it is not scheduled.
///
/// # Errors
/// [`ValidationError::AgentName`].
// [impl->swdd~api-agent-naming-convention~1]
pub(crate) fn check_agent_of_workload(agent: &str) -> Result<(), ValidationError> {
    if agent.is_empty() || is_name(agent) {
        Ok(())
    } else {
        Err(Error::AgentName(agent.to_owned()))
    }
}

fn check_rule(rule: &AccessRule) -> Result<(), ValidationError> {
    match rule {
        AccessRule::State { filter_masks, .. } => {
            for mask in filter_masks {
                check_filter_mask(mask)?;
            }
        }
        AccessRule::Log { workload_names } => {
            for name in workload_names {
                check_workload_pattern(name).map_err(|error| Error::LogRule(Box::new(error)))?;
            }
        }
    }
    Ok(())
}

/// Checks a mask of an access rule: parts that are `*` or consist of name characters.
///
/// # Errors
/// [`ValidationError::FilterMaskEmpty`] or [`ValidationError::FilterMask`].
// [impl->swdd~api-access-rules-filter-mask-convention~1]
pub(crate) fn check_filter_mask(mask: &str) -> Result<(), ValidationError> {
    if mask.is_empty() {
        return Err(Error::FilterMaskEmpty);
    }
    if is_filter_mask(mask) {
        Ok(())
    } else {
        Err(Error::FilterMask(mask.to_owned()))
    }
}

/// Checks a workload name of a log rule, which may hold one `*`.
///
/// # Errors
/// The [`ValidationError`] with the reason why the name can never match a workload.
// [impl->swdd~api-access-rules-logs-workload-names-convention~1]
pub(crate) fn check_workload_pattern(pattern: &str) -> Result<(), ValidationError> {
    let Some((prefix, suffix)) = pattern.split_once('*') else {
        return check_workload_name(pattern);
    };
    if suffix.contains('*') {
        return Err(Error::WorkloadPatternWildcards(pattern.to_owned()));
    }
    let valid =
        has_name_characters(prefix) && has_name_characters(suffix) && pattern.len() <= NAME_MAX + 1;
    if valid {
        Ok(())
    } else {
        Err(Error::WorkloadPattern(pattern.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_rules::Operation;
    use std::collections::BTreeMap;

    fn long(bytes: usize) -> String {
        "a".repeat(bytes)
    }

    fn text(result: Result<(), ValidationError>) -> String {
        result.map_or_else(|error| error.to_string(), |()| "ok".to_owned())
    }

    // [utest->swdd~api-version-checks~1]
    #[test]
    fn two_versions_are_known_and_one_of_them_is_deprecated() {
        assert_eq!(check_api_version("v1"), Ok(false));
        assert_eq!(check_api_version("v0.1"), Ok(true));
        for version in ["", "v2", "1", "V1", "v1 "] {
            let expected = format!("Unsupported API version. Received '{version}', expected 'v1'");
            assert_eq!(
                check_api_version(version).unwrap_err().to_string(),
                expected
            );
        }
    }

    // [utest->swdd~api-workload-naming-convention~1]
    #[test]
    fn workload_names_have_characters_and_a_length() {
        for (name, expected) in [
            ("web_1-A".to_owned(), "ok".to_owned()),
            (long(63), "ok".to_owned()),
            (
                String::new(),
                "Unsupported workload name ''. Is empty.".to_owned(),
            ),
            (
                "a.b".to_owned(),
                "Unsupported workload name 'a.b'. Expected to have characters in [a-zA-Z0-9_-]."
                    .to_owned(),
            ),
            (
                long(64),
                format!(
                    "Unsupported workload name '{}'. Length 64 exceeds the maximum limit of 63 characters.",
                    long(64)
                ),
            ),
        ] {
            assert_eq!(text(check_workload_name(&name)), expected);
        }
    }

    // [utest->swdd~api-agent-naming-convention~1]
    #[test]
    fn agent_names_may_be_empty_but_neither_strange_nor_long() {
        for (name, valid) in [
            ("", true),
            ("agent_A", true),
            (&long(63), true),
            (&long(64), false),
            ("{{a}}", false),
        ] {
            let expected = if valid {
                "ok".to_owned()
            } else {
                format!("Unsupported agent name '{name}'. {NAME_RULE}")
            };
            assert_eq!(text(check_agent_of_workload(name)), expected);
        }
    }

    // [utest->swdd~api-config-item-key-naming-convention~1]
    #[test]
    fn config_keys_are_checked_at_any_depth() {
        let bad = || ConfigItem::Map([("b.d".to_owned(), ConfigItem::Text(String::new()))].into());
        let list = |item| ConfigItem::List(vec![ConfigItem::Text("x".into()), item]);
        for item in [
            bad(),
            list(bad()),
            list(list(bad())),
            ConfigItem::Map([("ok".to_owned(), list(bad()))].into()),
        ] {
            let configs = BTreeMap::from([("k".to_owned(), item)]);
            let expected = format!("Unsupported config item key 'b.d'. {NAME_RULE}");
            assert_eq!(text(check_config_keys(&configs)), expected, "{configs:?}");
        }
        let good = BTreeMap::from([("k".to_owned(), list(ConfigItem::Text("any. text".into())))]);
        assert_eq!(text(check_config_keys(&good)), "ok");
        assert_ne!(
            text(check_config_keys(&BTreeMap::from([(String::new(), bad())]))),
            "ok"
        );
    }

    // [utest->swdd~api-config-aliases-and-config-reference-keys-naming-convention~1]
    #[test]
    fn aliases_and_what_they_refer_to_are_names() {
        for (alias, key, expected) in [
            ("alias", "key", "ok".to_owned()),
            (
                "a b",
                "key",
                format!("Unsupported config alias 'a b'. {NAME_RULE}"),
            ),
            (
                "alias",
                "",
                format!("Unsupported config reference key ''. {NAME_RULE}"),
            ),
            (
                "alias",
                &long(64),
                format!(
                    "Unsupported config reference key '{}'. {NAME_RULE}",
                    long(64)
                ),
            ),
        ] {
            let mut workload = Workload::new("a", "r", "c");
            workload.configs.insert(alias.to_owned(), key.to_owned());
            assert_eq!(text(check_config_references(&workload)), expected);
        }
    }

    // [utest->swdd~api-access-rules-filter-mask-convention~1]
    // [utest->swdd~api-access-rules-logs-workload-names-convention~1]
    #[test]
    fn access_rules_that_say_nothing_are_refused() {
        let state = |mask: &str| AccessRule::State {
            operation: Operation::Read,
            filter_masks: vec![mask.to_owned()],
        };
        let log = |name: &str| AccessRule::Log {
            workload_names: vec![name.to_owned()],
        };
        for (rule, expected) in [
            (state("desiredState.*.a_b-C"), "ok"),
            (state("*"), "ok"),
            (
                state(""),
                "Empty filter masks are not allowed in Control Interface access rules",
            ),
            (state("a..b"), "Unsupported filter mask 'a..b'. Expected"),
            (state("a.*b"), "Unsupported filter mask 'a.*b'. Expected"),
            (log("web"), "ok"),
            (log("*"), "ok"),
            (log(&format!("{}*{}", long(31), long(32))), "ok"),
            (
                log(&format!("{}*{}", long(32), long(32))),
                "Log rule validation failed: Unsupported workload name filter",
            ),
            (
                log("a.*"),
                "Log rule validation failed: Unsupported workload name filter with wildcard 'a.*'.",
            ),
            (
                log("a**"),
                "Log rule validation failed: Unsupported workload name filter with wildcard 'a**'. Expected at most one '*' symbol.",
            ),
            (
                log(""),
                "Log rule validation failed: Unsupported workload name ''. Is empty.",
            ),
            (
                log("a.b"),
                "Log rule validation failed: Unsupported workload name 'a.b'. Expected",
            ),
        ] {
            for allow in [true, false] {
                let mut workload = Workload::new("a", "r", "c");
                let access = &mut workload.control_interface_access;
                if allow {
                    &mut access.allow_rules
                } else {
                    &mut access.deny_rules
                }
                .push(rule.clone());
                let result = text(check_workload("w", &workload));
                assert!(result.starts_with(expected), "{rule:?}: {result}");
            }
        }
    }

    #[test]
    fn first_character_that_no_mount_can_contain_is_found() {
        for (path, expected) in [
            ("/etc/a b.conf", None),
            ("/etc/a,b\"", Some(',')),
            ("/etc/\"", Some('"')),
            ("/etc/\n", Some('\n')),
            ("", None),
        ] {
            assert_eq!(unfit_for_mount(path), expected, "{path:?}");
        }
    }
}
