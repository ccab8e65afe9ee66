//! Versions: of the programs, which must agree in the major number, and of manifests and states.
//!
//! Thread: none, plain values.

use super::names::excerpt;
use std::sync::LazyLock;

/// Version of this program and of the Ankaios API level it implements.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The version as people see it: with the name of this program, since others have the same API
/// level. Shipped builds name their commit in `ANKAIOS_COMMIT`.
pub static SHOWN_VERSION: LazyLock<String> = LazyLock::new(|| shown(option_env!("ANKAIOS_COMMIT")));

fn shown(commit: Option<&str>) -> String {
    match commit {
        None | Some("") => shown_of_peer(VERSION),
        Some(commit) => format!("{VERSION} (ankaios-lite {commit})"),
    }
}

/// The version of another program of ours, as people see it.
pub fn shown_of_peer(version: &str) -> String {
    format!("{version} (ankaios-lite)")
}

/// The current version of manifests and states.
pub const API_VERSION: &str = "v1";
/// The older version of manifests and states, which is still read.
pub const API_VERSION_DEPRECATED: &str = "v0.1";

/// Checks the version of a peer's hello.
///
/// # Errors
/// The text for the peer when `theirs` is not a complete semantic version with our major number.
// [impl->swdd~common-version-checking~1]
pub fn check_compatible(theirs: &str) -> Result<(), String> {
    let ours = semver::Version::parse(VERSION).expect("the package version is a semantic version");
    match semver::Version::parse(theirs) {
        Ok(version) if version.major == ours.major => Ok(()),
        _ => Err(format!(
            "Unsupported protocol version '{}'. Currently supported '{}'",
            excerpt(theirs),
            ours.major
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_version_names_the_program_and_the_commit() {
        assert_eq!(
            shown(Some("4b1912c0ffee")),
            format!("{VERSION} (ankaios-lite 4b1912c0ffee)")
        );
        for unknown in [None, Some("")] {
            assert_eq!(
                shown(unknown),
                format!("{VERSION} (ankaios-lite)"),
                "{unknown:?}"
            );
        }
    }

    // [utest->swdd~common-version-checking~1]
    #[test]
    fn versions_with_the_same_major_number_are_accepted() {
        for (version, accepted) in [
            ("1.0.0", true),
            ("1.99.0", true),
            ("1.0.0-rc1", true),
            ("1.1.0-pre", true),
            ("2.0.0", false),
            ("0.9.9", false),
            ("", false),
            ("1", false),
            ("1.0", false),
            ("v1.0.0", false),
        ] {
            assert_eq!(check_compatible(version).is_ok(), accepted, "{version:?}");
        }
        let refusal = check_compatible("2.0.0").unwrap_err();
        assert_eq!(
            refusal,
            "Unsupported protocol version '2.0.0'. Currently supported '1'"
        );
    }
}
