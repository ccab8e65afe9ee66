//! Probes paths of the node. A path on a network mount whose server is gone may hang: it blocks one
//! thread here, and neither the scheduler nor the thread of the probes.
//!
//! One thread does all the work; another one is started for each that is blocked, up to a bound.
//!
//! Thread: `scheduler`, `probes` and all looks at the paths of prepared containers have one
//! [`PathProbes`] each; `paths` probes for it and ends with it.
//! Owns: the probes without a result. Takes: probes of its owner. Gives: results, and wakes the
//! owner.

use crate::limits::{PATH_PROBES_MAX, PATH_THREADS};
use ankaios_platform::clock::patience;
use ankaios_platform::limits::STACK_SMALL;
use ankaios_platform::threads;
use crossbeam_channel::{Receiver, Sender, after, bounded, select_biased};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::{Deserialize, Serialize};
use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::sync::Arc;
use std::time::Duration;

/// The entry at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathFacts {
    device: u64,
    inode: u64,
    /// The number of a device, else 0.
    number: u64,
    /// Size and time of modification (seconds, nanoseconds) of a file; of others they change
    /// without meaning.
    content: Option<(u64, i64, i64)>,
}

/// One probe of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathProbe {
    /// What is there.
    Look(String),
    /// Whether the socket there accepts a connection.
    Connects(String),
}

/// Whether it holds, or why not; of a look, what is there.
pub(crate) type PathResult = Result<Option<PathFacts>, Errno>;

/// A probe with its result.
pub(crate) type Probed = (PathProbe, PathResult);

/// How to probe; may block.
pub(crate) type ProbePath = Arc<dyn Fn(&PathProbe) -> PathResult + Send + Sync>;

/// The probes of paths of one owner.
pub struct PathProbes {
    probe_path: ProbePath,
    wake: Arc<dyn Fn() + Send + Sync>,
    // Most agents never probe a path, and the queues take all their memory at once.
    probes: LazyCell<(Sender<PathProbe>, Receiver<PathProbe>)>,
    results: LazyCell<(Sender<Probed>, Receiver<Probed>)>,
    /// Started and without a result; whether the owner has abandoned it.
    open: BTreeMap<PathProbe, bool>,
    threads: usize,
}

impl PathProbes {
    /// Starts no thread yet. `wake` is called when a result waits in [`Self::take_results`].
    pub fn new(wake: Arc<dyn Fn() + Send + Sync>, probe_path: ProbePath) -> Self {
        Self {
            probe_path,
            wake,
            // There is room for all that may be open, so nothing ever waits for room.
            probes: LazyCell::new(|| bounded(PATH_PROBES_MAX)),
            results: LazyCell::new(|| bounded(PATH_PROBES_MAX)),
            open: BTreeMap::new(),
            threads: 0,
        }
    }

    /// Starts a probe, unless its result is awaited already.
    pub fn start(&mut self, probe: &PathProbe) -> Result<(), String> {
        if self.open.contains_key(probe) {
            return Ok(());
        }
        let blocked = self.blocked();
        if self.open.len() >= PATH_PROBES_MAX {
            return Err(format!("{blocked} other paths do not answer"));
        }
        if self.threads <= blocked && self.threads < PATH_THREADS {
            match self.start_thread() {
                Ok(()) => self.threads += 1,
                Err(error) if self.threads == 0 => {
                    return Err(format!("no thread to probe with: {error}"));
                }
                Err(_) => {} // Those that there are may go on some time.
            }
        }
        let _ = self.probes.0.try_send(probe.clone()); // There is room.
        self.open.insert(probe.clone(), false);
        Ok(())
    }

    /// The owner does not wait for this result any more; it may come all the same.
    pub fn abandon(&mut self, probe: &PathProbe) {
        if let Some(abandoned) = self.open.get_mut(probe) {
            *abandoned = true;
        }
    }

    /// The results that have come.
    pub(crate) fn take_results(&mut self) -> Vec<Probed> {
        if self.open.is_empty() {
            return Vec::new();
        }
        let results: Vec<_> = self.results.1.try_iter().collect();
        results
            .iter()
            .for_each(|(probe, _)| _ = self.open.remove(probe));
        results
    }

    /// What is at these paths, as far as that is known within `limit`; `None` for nothing. A path
    /// without a result by then is not waited for before it has answered.
    pub fn look(
        &mut self,
        paths: impl Iterator<Item = String>,
        limit: Duration,
    ) -> BTreeMap<String, Option<PathFacts>> {
        self.take_results(); // Late ones, which may be old.
        for path in paths {
            let _ = self.start(&PathProbe::Look(path)); // Then it is not known.
        }
        let (mut known, timeout) = (BTreeMap::new(), after(patience(limit)));
        // With all threads blocked, no result can come.
        while self.open.values().any(|abandoned| !abandoned) && self.blocked() < PATH_THREADS {
            select_biased! {
                recv(self.results.1) -> result => {
                    let Ok((probe, result)) = result else { break };
                    if self.open.remove(&probe) == Some(false) && let PathProbe::Look(path) = probe {
                        known.insert(path, result.ok().flatten());
                    }
                }
                recv(timeout) -> _ => break,
            }
        }
        self.open
            .values_mut()
            .for_each(|abandoned| *abandoned = true);
        known
    }

    /// How many threads are blocked by paths that do not answer, at most.
    fn blocked(&self) -> usize {
        self.open
            .values()
            .filter(|abandoned| **abandoned)
            .count()
            .min(PATH_THREADS)
    }

    fn start_thread(&self) -> std::io::Result<()> {
        let (probes, results) = (self.probes.1.clone(), self.results.0.clone());
        let (probe_path, wake) = (self.probe_path.clone(), self.wake.clone());
        let body = move || {
            for probe in probes {
                let result = probe_path(&probe);
                let _ = results.try_send((probe, result)); // There is room.
                wake();
            }
        };
        threads::spawn("paths", STACK_SMALL, body).map(drop)
    }
}

/// Probes the node that this process runs on.
pub fn node() -> ProbePath {
    Arc::new(|probe| match probe {
        PathProbe::Look(path) => match fs::metadata(path) {
            Ok(found) => Ok(Some(facts(&found))),
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL)),
        },
        PathProbe::Connects(path) => SocketAddrUnix::new(path.as_str()).and_then(|address| {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            connect(
                socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?,
                &address,
            )
            .map(|()| None)
        }),
    })
}

fn facts(found: &fs::Metadata) -> PathFacts {
    let kind = found.file_type();
    let is_device = kind.is_block_device() || kind.is_char_device();
    PathFacts {
        device: found.dev(),
        inode: found.ino(),
        number: if is_device { found.rdev() } else { 0 },
        content: kind
            .is_file()
            .then(|| (found.size(), found.mtime(), found.mtime_nsec())),
    }
}

#[cfg(test)]
mod tests;
