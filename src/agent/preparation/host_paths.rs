//! The paths of the host that the arguments of a container name, and what would be different in it if they changed
//! between its create and its start.
//!
//! Thread: `call:<name>` looks before a create, `wl:<name>` right before the start; `host-paths` does it for them, since
//! a path on a network mount may hang. Owns: the paths that have not answered yet.

use crate::limits::{PREPARED_PATHS_THREADS, STACK_SMALL};
use crate::model::runtime_config::ContainerConfig;
use crate::platform::sync::Mutex;
use crate::platform::threads;
use crate::runtime::NewContainer;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::sync::Arc;
use std::time::Duration;

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
    // The value may stand behind a short option in the same word, as in `-v/a:/b`.
    let values = pieces.map(|piece| match piece.find(['.', '/']) {
        Some(begin) if piece.starts_with('-') => &piece[begin..],
        _ => piece,
    });
    let named = values.filter(|value| value.starts_with('.') || value.contains('/')).map(str::to_owned);
    let own = new.control_interface.iter().chain(new.files.iter().map(|(path, _)| path));
    named.chain(own.map(|path| path.to_string_lossy().into_owned())).collect()
}

/// Looks at these paths, for at most `limit`.
///
/// # Errors
/// The path that does not answer, in words. It is not looked at again before it has answered, so however often a start
/// is prepared, its path blocks one thread.
pub fn look(paths: BTreeSet<String>, limit: Duration) -> Result<HostPaths, String> {
    static LOOKS: Looks = Looks::new();
    LOOKS.look(paths, limit, facts)
}

/// The looks that are under way.
struct Looks {
    shared: Mutex<Shared>,
}

struct Shared {
    threads: usize,
    /// Paths that did not answer in time and have not answered since.
    hanging: BTreeSet<String>,
}

/// A look that is under way.
struct Progress {
    /// The path that it is at.
    at: String,
    found: HostPaths,
    is_done: bool,
    /// Nobody waits any more.
    given_up: bool,
}

impl Looks {
    const fn new() -> Self {
        Self { shared: Mutex::new(Shared { threads: 0, hanging: BTreeSet::new() }) }
    }

    fn look(
        &'static self,
        paths: BTreeSet<String>,
        limit: Duration,
        facts: fn(&str) -> Option<PathFacts>,
    ) -> Result<HostPaths, String> {
        let Some(at) = paths.first().cloned() else { return Ok(HostPaths::new()) };
        self.begin(&paths)?;
        let progress = Progress { at, found: HostPaths::new(), is_done: false, given_up: false };
        let progress = Arc::new(Mutex::new(progress));
        let body = {
            let progress = progress.clone();
            move || self.look_at_all(paths, &progress, facts)
        };
        let thread = threads::spawn("host-paths", STACK_SMALL, body).map_err(|error| {
            self.shared.lock().threads -= 1;
            format!("no thread can be started to look at host paths: {error}")
        })?;
        let _ = threads::join_all([thread], limit); // It may end just after that.
        let mut progress = progress.lock();
        if progress.is_done {
            return Ok(std::mem::take(&mut progress.found));
        }
        progress.given_up = true;
        self.shared.lock().hanging.insert(progress.at.clone());
        Err(format!("the host path '{}' does not answer within {} ms", progress.at, limit.as_millis()))
    }

    fn begin(&self, paths: &BTreeSet<String>) -> Result<(), String> {
        let mut shared = self.shared.lock();
        if let Some(path) = paths.intersection(&shared.hanging).next() {
            return Err(format!("the host path '{path}' still does not answer"));
        }
        if shared.threads >= PREPARED_PATHS_THREADS {
            return Err(format!("{PREPARED_PATHS_THREADS} other looks at host paths are not answered yet"));
        }
        shared.threads += 1;
        Ok(())
    }

    fn look_at_all(&self, paths: BTreeSet<String>, progress: &Mutex<Progress>, facts: fn(&str) -> Option<PathFacts>) {
        for path in paths {
            {
                let mut progress = progress.lock();
                if progress.given_up {
                    break;
                }
                progress.at.clone_from(&path);
            }
            let facts = facts(&path);
            progress.lock().found.insert(path, facts);
        }
        let mut progress = progress.lock();
        progress.is_done = true;
        let mut shared = self.shared.lock();
        shared.threads -= 1;
        if progress.given_up {
            shared.hanging.remove(&progress.at);
        }
    }
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

/// The first path that is not what it was, or does not answer within `limit`, in words.
///
/// # Errors
/// This text.
pub fn compare(before: &HostPaths, limit: Duration) -> Result<(), String> {
    let now = look(before.keys().cloned().collect(), limit)?;
    match before.iter().find(|(path, facts)| now.get(*path) != Some(*facts)) {
        Some((path, _)) => Err(format!("'{path}' has changed since the container was created")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
