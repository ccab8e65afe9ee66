//! The versions of container engines, for people.
//!
//! Thread: `list:<runtime>` calls an engine once, after its first listing; `scheduler` reads the
//! versions. Owns: the versions that are known.

use super::command::EngineCall;
use super::limits::{ENGINE_VERSION_MAX, LISTING_MAX};
use super::masking::MaskedArguments;
use super::{containerd, podman};
use ankaios_platform::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The engines of a node with their versions, as far as they are known.
#[derive(Debug, Clone, Default)]
pub struct EngineVersions {
    /// By program; empty for an engine that has not printed it, or not yet.
    read: Arc<Mutex<BTreeMap<&'static str, String>>>,
}

impl EngineVersions {
    /// Reads the version of the engine of a runtime with `call`, once: the call costs as much as a
    /// listing. Two runtimes may have the same engine.
    // [impl->swdd~agent-reports-engine~1]
    pub fn read_once(&self, runtime: &str, call: impl FnOnce() -> Option<String>) {
        let program = if runtime == containerd::RUNTIME_NAME {
            containerd::ENGINE.program
        } else {
            podman::ENGINE.program
        };
        let mut read = self.read.lock();
        if read.contains_key(program) {
            return;
        }
        read.insert(program, String::new());
        drop(read); // The engine may hang.
        if let Some(version) = call() {
            self.read.lock().insert(program, version);
        }
    }

    /// The names and versions that are known, for example `podman 4.3.1`; empty without any.
    pub fn shown(&self) -> String {
        let read = self.read.lock();
        let mut shown = Vec::new();
        for version in read.values() {
            if !version.is_empty() {
                shown.push(version.as_str());
            }
        }
        shown.join(", ")
    }
}

/// Reads the name and the version of an engine; `None` if it does not print them. The next
/// listing waits for this call, which therefore has the limit of a listing.
pub(crate) fn version_of(program: &'static str) -> Option<String> {
    let arguments = MaskedArguments::default().plain(&["--version"]);
    let call = EngineCall::new(program, arguments).limit(LISTING_MAX);
    let text = call.run(None).ok()?.into_text().ok()?;
    name_and_version(&text)
}

/// The name and the version that an engine printed, such as `podman version 4.3.1`.
fn name_and_version(printed: &str) -> Option<String> {
    let (name, version) = printed.lines().next()?.split_once(" version ")?;
    let shown = format!("{name} {}", version.trim());
    let is_plain = shown.chars().all(|character| !character.is_control());
    (is_plain && shown.len() <= ENGINE_VERSION_MAX).then_some(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    // [utest->swdd~agent-reports-engine~1]
    #[test]
    fn name_and_version_are_read_from_what_engines_print() {
        let long = format!("podman version {}", "1".repeat(ENGINE_VERSION_MAX));
        for (printed, expected) in [
            ("podman version 4.3.1\n", Some("podman 4.3.1")),
            ("nerdctl version 1.7.0\nmore\n", Some("nerdctl 1.7.0")),
            ("", None),
            ("usage: podman\n", None),
            ("podman version \u{1b}[1m\n", None),
            (long.as_str(), None),
        ] {
            assert_eq!(name_and_version(printed).as_deref(), expected, "{printed}");
        }
    }

    #[test]
    fn version_of_each_engine_is_read_once_and_shown() {
        let versions = EngineVersions::default();
        versions.read_once("containerd", || None);
        assert_eq!(versions.shown(), "");
        versions.read_once("podman", || Some("podman 4.3.1".to_owned()));
        assert_eq!(versions.shown(), "podman 4.3.1");
        versions.read_once("podman-kube", || panic!("the same engine is called again"));

        let versions = EngineVersions::default();
        versions.read_once("podman-kube", || Some("podman 4.3.1".to_owned()));
        versions.read_once("containerd", || Some("nerdctl 1.7.0".to_owned()));
        assert_eq!(versions.shown(), "nerdctl 1.7.0, podman 4.3.1");
    }
}
