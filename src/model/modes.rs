//! Modes of the vehicle: the tags by which workloads name theirs.
//!
//! Thread: none, plain functions. Shared by the server, which runs the workloads of the current
//! mode, and `ank`.

use super::names::is_name;
use std::collections::BTreeMap;

/// The tag that lists the modes of a workload. Without it the workload is in every mode.
pub const MODES_TAG: &str = "modes";
/// The tag of workloads whose final failure changes the mode.
pub const ESSENTIAL_TAG: &str = "essential";
/// The value of [`ESSENTIAL_TAG`] for such workloads.
pub const ESSENTIAL: &str = "true";
/// The value of [`ESSENTIAL_TAG`] for all others.
pub const NOT_ESSENTIAL: &str = "false";
/// Begins the additional info of a workload that is not scheduled because it is outside of the
/// current mode; the name of that mode and a quote follow.
pub const NOT_IN_MODE: &str = "not in mode '";
/// In the refusal of a tag without the config item, between the names of workload and item.
pub const NO_MODE_ITEM: &str = "' has the tag 'modes', but config item '";

/// The names in the value of a tag `modes`, in their order; not checked. They are separated by
/// blanks, tabs and line ends.
pub fn mode_names(value: &str) -> impl Iterator<Item = &str> {
    value
        .split([' ', '\t', '\n', '\r'])
        .filter(|name| !name.is_empty())
}

/// Returns whether a workload with these tags is in `mode`.
pub fn is_in_mode(tags: &BTreeMap<String, String>, mode: &str) -> bool {
    match tags.get(MODES_TAG) {
        Some(value) => mode_names(value).any(|name| name == mode),
        None => true,
    }
}

/// Returns whether a workload with these tags is essential.
pub fn is_essential(tags: &BTreeMap<String, String>) -> bool {
    tags.get(ESSENTIAL_TAG).map(String::as_str) == Some(ESSENTIAL)
}

/// Returns the first invalid name in the value of a tag `modes`. A valid one has 1 to 63 bytes of
/// `[a-zA-Z0-9_-]`.
pub fn wrong_mode(value: &str) -> Option<&str> {
    mode_names(value).find(|name| !is_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_lists_modes_and_a_workload_without_it_is_in_every_mode() {
        let long = "m".repeat(63);
        for (value, mode, is_in) in [
            (Some("drive limp"), "drive", true),
            (Some("drive limp"), "limp", true),
            (Some("\n drive\r\n\tlimp drive "), "limp", true),
            (Some("drive limp"), "Drive", false),
            (Some("drive limp"), "dri", false),
            (Some("drive,limp"), "drive", false),
            (Some(" \t\n"), "drive", false),
            (Some(long.as_str()), long.as_str(), true),
            (None, "anything", true),
        ] {
            let tags = value
                .map(|value| (MODES_TAG.to_owned(), value.to_owned()))
                .into_iter()
                .collect();
            assert_eq!(is_in_mode(&tags, mode), is_in, "{value:?} {mode}");
        }
    }

    #[test]
    fn names_with_other_characters_or_more_than_63_bytes_are_found() {
        let (long, longer) = ("m".repeat(63), "m".repeat(64));
        for (value, wrong) in [
            ("drive park-2 LIMP_x", None),
            (" \t", None),
            ("drive,limp", Some("drive,limp")),
            ("drive, limp", Some("drive,")),
            ("{{mode}}", Some("{{mode}}")),
            ("drive\u{a0}limp", Some("drive\u{a0}limp")),
            ("drive\u{c}limp", Some("drive\u{c}limp")),
            (long.as_str(), None),
            (longer.as_str(), Some(longer.as_str())),
        ] {
            assert_eq!(wrong_mode(value), wrong, "{value:?}");
        }
    }

    #[test]
    fn essential_is_what_says_exactly_so() {
        for (value, expected) in [
            (Some("true"), true),
            (Some("false"), false),
            (Some("True"), false),
            (None, false),
        ] {
            let tags = value
                .map(|value| (ESSENTIAL_TAG.to_owned(), value.to_owned()))
                .into_iter()
                .collect();
            assert_eq!(is_essential(&tags), expected, "{value:?}");
        }
    }
}
