//! The paths of the host that the arguments of a container name: when one of them changes between
//! create and start, the container is created again.
//!
//! Thread: `call:<name>` needs their facts before a create, `wl:<name>` right before the start. The
//! thread `paths` reads them for both, since a path on a network mount may hang.

use ankaios_model::collect::CollectEntries as _;
use ankaios_model::runtime_config::ContainerConfig;
use ankaios_platform::sync::Mutex;
use ankaios_runtime::NewContainer;
use ankaios_runtime::probes::paths::{self, PathFacts, PathProbes};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Paths with the facts of their files; `None` for no file.
pub(crate) type HostPaths = BTreeMap<String, Option<PathFacts>>;

/// Returns the paths in the options of a container, and those of its own folders and files. Another
/// text among them does no harm: at most the container is created again.
pub(crate) fn named_paths(config: &ContainerConfig, new: &NewContainer) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    for option in config.general_options.iter().chain(&config.command_options) {
        for piece in option.split(['=', ',', ':']) {
            let value = without_short_option(piece);
            if value.starts_with('.') || value.contains('/') {
                named.insert(value.to_owned());
            }
        }
    }
    if let Some(folder) = &new.control_interface {
        named.insert(folder.to_string_lossy().into_owned());
    }
    for (file, _) in &new.files {
        named.insert(file.to_string_lossy().into_owned());
    }
    named
}

/// The value behind a short option in the same word, as in `-v/a:/b`; any other word as it is.
fn without_short_option(word: &str) -> &str {
    match word.find(['.', '/']) {
        Some(begin) if word.starts_with('-') => &word[begin..],
        _ => word,
    }
}

/// Returns the facts of these paths. Waits at most `limit` for them.
///
/// # Errors
/// A text that names a path without an answer. The next call does not wait for this path unless it
/// has answered meanwhile, so a path that hangs delays one call only.
pub(crate) fn look(paths: &BTreeSet<String>, limit: Duration) -> Result<HostPaths, String> {
    // Shared by all workloads, since each path that hangs blocks a thread.
    static PROBES: Mutex<Option<PathProbes>> = Mutex::new(None);
    if paths.is_empty() {
        return Ok(HostPaths::new());
    }
    let mut probes = PROBES.lock();
    let probes = probes.get_or_insert_with(|| PathProbes::new(Arc::new(|| ()), paths::node()));
    look_by(probes, paths, limit)
}

/// Does [`look`] with these probes.
fn look_by(
    probes: &mut PathProbes,
    paths: &BTreeSet<String>,
    limit: Duration,
) -> Result<HostPaths, String> {
    let found = probes.look(paths.iter().cloned(), limit);
    for path in paths {
        if !found.contains_key(path) {
            return Err(format!(
                "the host path '{path}' does not answer within {} ms",
                limit.as_millis()
            ));
        }
    }
    Ok(found)
}

/// Compares the paths with their earlier facts.
///
/// # Errors
/// A text that names the first path that has changed, or one that does not answer within `limit`.
pub(crate) fn compare(before: &HostPaths, limit: Duration) -> Result<(), String> {
    let now = look(&before.keys().cloned().collect_entries(), limit)?;
    for (path, facts) in before {
        if now.get(path) != Some(facts) {
            return Err(format!(
                "'{path}' has changed since the container was created"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
