//! The paths of the host that the arguments of a container name, and what would be different in it if they changed
//! between its create and its start.
//!
//! Thread: `prep:<name>` looks before a create, `wl:<name>` right before the start; `host-paths` does it for them, since
//! a path on a network mount may hang. Owns: nothing.

use crate::limits::{PREPARED_PATHS_THREADS, PREPARED_PATHS_WAIT, STACK_SMALL};
use crate::model::runtime_config::ContainerConfig;
use crate::platform::threads;
use crate::runtime::NewContainer;
use crossbeam_channel::bounded;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Paths with what was there; `None` for nothing.
pub type HostPaths = BTreeMap<String, Option<PathFacts>>;

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathFacts {
    device: u64,
    inode: u64,
    /// The number of a device, else 0.
    number: u64,
    /// Size and time of modification (seconds, nanoseconds) of a file; of others they change without meaning.
    content: Option<(u64, i64, i64)>,
}

/// The paths that the options of a container name, and those of its own folders and files. One too many does no harm: it
/// may only cause a new create.
#[must_use]
pub fn named_paths(config: &ContainerConfig, new: &NewContainer) -> BTreeSet<String> {
    let options = config.general_options.iter().chain(&config.command_options);
    let pieces = options.flat_map(|option| option.split(['=', ',', ':']));
    let named = pieces.filter(|piece| piece.starts_with(['/', '.'])).map(str::to_owned);
    let own = new.control_interface.iter().chain(new.files.iter().map(|(path, _)| path));
    named.chain(own.map(|path| path.to_string_lossy().into_owned())).collect()
}

/// Looks at these paths. `None` when one of them does not answer within [`PREPARED_PATHS_WAIT`].
#[must_use]
pub fn look(paths: BTreeSet<String>) -> Option<HostPaths> {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    if paths.is_empty() {
        return Some(HostPaths::new());
    }
    if THREADS.fetch_add(1, Ordering::Relaxed) >= PREPARED_PATHS_THREADS {
        THREADS.fetch_sub(1, Ordering::Relaxed);
        return None; // They hang, and so would this one.
    }
    let (give, found) = bounded(1);
    let body = move || {
        let found: HostPaths = paths.into_iter().map(|path| (path.clone(), facts(&path))).collect();
        THREADS.fetch_sub(1, Ordering::Relaxed);
        let _ = give.send(found); // Nobody may wait any more.
    };
    if threads::spawn("host-paths", STACK_SMALL, body).is_err() {
        THREADS.fetch_sub(1, Ordering::Relaxed);
        return None;
    }
    found.recv_timeout(PREPARED_PATHS_WAIT).ok()
}

fn facts(path: &str) -> Option<PathFacts> {
    let found = fs::metadata(path).ok()?;
    let kind = found.file_type();
    let is_device = kind.is_block_device() || kind.is_char_device();
    Some(PathFacts {
        device: found.dev(),
        inode: found.ino(),
        number: if is_device { found.rdev() } else { 0 },
        content: kind.is_file().then(|| (found.size(), found.mtime(), found.mtime_nsec())),
    })
}

/// The first path that is not what it was, in words.
///
/// # Errors
/// This text.
pub fn compare(before: &HostPaths) -> Result<(), String> {
    let Some(now) = look(before.keys().cloned().collect()) else {
        return Err(format!("a host path does not answer within {} ms", PREPARED_PATHS_WAIT.as_millis()));
    };
    match before.iter().find(|(path, facts)| now.get(*path) != Some(*facts)) {
        Some((path, _)) => Err(format!("'{path}' has changed since the container was created")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
