//! The paths of the host that the arguments of a container name, and what would be different in it
//! if they changed between its create and its start.
//!
//! Thread: `call:<name>` looks before a create, `wl:<name>` right before the start; `paths` does it
//! for them, since a path on a network mount may hang.

use ankaios_model::collect::CollectEntries as _;
use ankaios_model::runtime_config::ContainerConfig;
use ankaios_platform::sync::Mutex;
use ankaios_runtime::NewContainer;
use ankaios_runtime::probes::paths::{self, PathFacts, PathProbes};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Paths with what was there; `None` for nothing.
pub(crate) type HostPaths = BTreeMap<String, Option<PathFacts>>;

/// The paths that the options of a container name, and those of its own folders and files. One too
/// many does no harm: it may only cause a new create.
pub(crate) fn named_paths(config: &ContainerConfig, new: &NewContainer) -> BTreeSet<String> {
    let options = config.general_options.iter().chain(&config.command_options);
    let pieces = options.flat_map(|option| option.split(['=', ',', ':']));
    // The value may stand behind a short option in the same word, as in `-v/a:/b`.
    let values = pieces.map(|piece| match piece.find(['.', '/']) {
        Some(begin) if piece.starts_with('-') => &piece[begin..],
        _ => piece,
    });
    let named = values
        .filter(|value| value.starts_with('.') || value.contains('/'))
        .map(str::to_owned);
    let own = new
        .control_interface
        .iter()
        .chain(new.files.iter().map(|(path, _)| path));
    named
        .chain(own.map(|path| path.to_string_lossy().into_owned()))
        .collect_entries()
}

/// Looks at these paths, for at most `limit`.
///
/// # Errors
/// The path that does not answer, in words. It is not waited for again before it has answered, so
/// it delays others once.
pub(crate) fn look(paths: &BTreeSet<String>, limit: Duration) -> Result<HostPaths, String> {
    // Of all workloads, since a path that hangs blocks a thread.
    static PROBES: Mutex<Option<PathProbes>> = Mutex::new(None);
    if paths.is_empty() {
        return Ok(HostPaths::new());
    }
    let probes = || PathProbes::new(Arc::new(|| ()), paths::node());
    look_by(PROBES.lock().get_or_insert_with(probes), paths, limit)
}

fn look_by(
    probes: &mut PathProbes,
    paths: &BTreeSet<String>,
    limit: Duration,
) -> Result<HostPaths, String> {
    let found = probes.look(paths.iter().cloned(), limit);
    match paths.iter().find(|path| !found.contains_key(*path)) {
        Some(path) => Err(format!(
            "the host path '{path}' does not answer within {} ms",
            limit.as_millis()
        )),
        None => Ok(found),
    }
}

/// The first path that is not what it was, or does not answer within `limit`, in words.
///
/// # Errors
/// This text.
pub(crate) fn compare(before: &HostPaths, limit: Duration) -> Result<(), String> {
    let now = look(&before.keys().cloned().collect_entries(), limit)?;
    match before
        .iter()
        .find(|(path, facts)| now.get(*path) != Some(*facts))
    {
        Some((path, _)) => Err(format!(
            "'{path}' has changed since the container was created"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
