//! Probes paths of the node. A path on a network mount whose server is gone may hang: it blocks one
//! thread here, and neither the scheduler nor the thread of the probes.
//!
//! One thread does all the work; another one is started for each that is blocked, up to a bound.
//!
//! Thread: `scheduler`, `probes` and all listings of the paths of prepared containers have one
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
    /// Size and time of modification (seconds, nanoseconds) of a file. `None` for all other
    /// entries, where they change without meaning.
    content: Option<(u64, i64, i64)>,
}

/// One probe of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathProbe {
    /// Reads which entry is there.
    Look(String),
    /// Connects to the socket there.
    Connects(String),
}

/// The facts that a look has read, nothing for a connection, or the reason of the failure.
pub(crate) type PathResult = Result<Option<PathFacts>, Errno>;

/// A probe with its result.
pub(crate) struct ProbedPath {
    pub(crate) probe: PathProbe,
    pub(crate) result: PathResult,
}

/// Both ends of a queue.
struct PathQueue<T> {
    sender: Sender<T>,
    receiver: Receiver<T>,
}

impl<T> PathQueue<T> {
    /// A queue with room for all open probes, so that sending never waits for room.
    fn new() -> Self {
        let (sender, receiver) = bounded(PATH_PROBES_MAX);
        Self { sender, receiver }
    }
}

/// How to probe; may block.
pub(crate) type ProbePath = Arc<dyn Fn(&PathProbe) -> PathResult + Send + Sync>;

/// The probes of paths of one owner.
pub struct PathProbes {
    probe_path: ProbePath,
    wake: Arc<dyn Fn() + Send + Sync>,
    // Most agents never probe a path, and the queues take all their memory at once.
    probes: LazyCell<PathQueue<PathProbe>>,
    results: LazyCell<PathQueue<ProbedPath>>,
    /// The started probes without a result.
    open: BTreeMap<PathProbe, OpenProbe>,
    threads: usize,
}

/// A started probe without a result.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenProbe {
    Awaited,
    /// The owner does not wait any more. The thread of the probe may be blocked.
    Abandoned,
}

impl PathProbes {
    /// Starts no thread yet. `wake` is called when a result waits in [`Self::take_results`].
    pub fn new(wake: Arc<dyn Fn() + Send + Sync>, probe_path: ProbePath) -> Self {
        Self {
            probe_path,
            wake,
            probes: LazyCell::new(PathQueue::new),
            results: LazyCell::new(PathQueue::new),
            open: BTreeMap::new(),
            threads: 0,
        }
    }

    /// Starts a probe, unless it is open already: its result is awaited, or was given up and may still
    /// come.
    pub fn start(&mut self, probe: &PathProbe) -> Result<(), String> {
        if self.open.contains_key(probe) {
            return Ok(());
        }
        let blocked = self.blocked();
        if self.open.len() >= PATH_PROBES_MAX {
            return Err(format!("{blocked} other paths do not answer"));
        }
        // Another thread is needed if all may be blocked.
        if self.threads <= blocked && self.threads < PATH_THREADS {
            match self.start_thread() {
                Ok(()) => self.threads += 1,
                Err(error) if self.threads == 0 => {
                    return Err(format!("no thread to probe with: {error}"));
                }
                Err(_) => {} // The threads that run may become free again.
            }
        }
        let _ = self.probes.sender.try_send(probe.clone()); // There is room.
        self.open.insert(probe.clone(), OpenProbe::Awaited);
        Ok(())
    }

    /// Gives up the wait for this result. It may come anyway.
    pub fn abandon(&mut self, probe: &PathProbe) {
        if let Some(open) = self.open.get_mut(probe) {
            *open = OpenProbe::Abandoned;
        }
    }

    /// Takes the results that have arrived.
    pub(crate) fn take_results(&mut self) -> Vec<ProbedPath> {
        let mut results = Vec::new();
        if self.open.is_empty() {
            return results; // None can arrive, and reading would allocate the queue.
        }
        for probed in self.results.receiver.try_iter() {
            self.open.remove(&probed.probe);
            results.push(probed);
        }
        results
    }

    /// Reads which entries are at these paths, within `limit`. A path without an entry has `None`;
    /// one that does not answer in time is left out, and no later call waits for it until it has
    /// answered.
    pub fn look(
        &mut self,
        paths: impl Iterator<Item = String>,
        limit: Duration,
    ) -> BTreeMap<String, Option<PathFacts>> {
        // First drop late results, which may be old.
        self.take_results();
        // Then start all probes. A path whose probe cannot be started is not known.
        for path in paths {
            let _ = self.start(&PathProbe::Look(path));
        }
        // With all threads blocked, no result can come.
        let mut known = BTreeMap::new();
        let timeout = after(patience(limit));
        while self.awaits_results() && self.blocked() < PATH_THREADS {
            select_biased! {
                recv(self.results.receiver) -> probed => {
                    let Ok(ProbedPath { probe, result }) = probed else { break };
                    let was_open = self.open.remove(&probe);
                    if was_open == Some(OpenProbe::Awaited) && let PathProbe::Look(path) = probe {
                        known.insert(path, result.ok().flatten());
                    }
                }
                recv(timeout) -> _ => break,
            }
        }
        // Finally give up the wait for all others.
        for open in self.open.values_mut() {
            *open = OpenProbe::Abandoned;
        }
        known
    }

    fn awaits_results(&self) -> bool {
        self.open.values().any(|open| *open == OpenProbe::Awaited)
    }

    /// The number of threads that may be blocked: one for each abandoned probe.
    fn blocked(&self) -> usize {
        let mut abandoned = 0;
        for open in self.open.values() {
            if *open == OpenProbe::Abandoned {
                abandoned += 1;
            }
        }
        abandoned.min(PATH_THREADS)
    }

    /// Starts a thread that probes paths until their owner is dropped.
    fn start_thread(&self) -> std::io::Result<()> {
        let probes = self.probes.receiver.clone();
        let results = self.results.sender.clone();
        let probe_path = self.probe_path.clone();
        let wake = self.wake.clone();
        threads::spawn("paths", STACK_SMALL, move || {
            for probe in probes {
                let result = probe_path(&probe);
                let _ = results.try_send(ProbedPath { probe, result }); // There is room.
                wake();
            }
        })?;
        Ok(())
    }
}

/// Returns the function that probes the node of this process.
pub fn node() -> ProbePath {
    Arc::new(|probe| match probe {
        PathProbe::Look(path) => match fs::metadata(path) {
            Ok(found) => Ok(Some(facts(&found))),
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL)),
        },
        PathProbe::Connects(path) => {
            let address = SocketAddrUnix::new(path.as_str())?;
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            connect(&socket, &address)?;
            Ok(None)
        }
    })
}

/// The facts about an entry, by which a change of it is noticed.
fn facts(found: &fs::Metadata) -> PathFacts {
    let kind = found.file_type();
    let mut facts = PathFacts {
        device: found.dev(),
        inode: found.ino(),
        number: 0,
        content: None,
    };
    if kind.is_block_device() || kind.is_char_device() {
        facts.number = found.rdev();
    }
    if kind.is_file() {
        facts.content = Some((found.size(), found.mtime(), found.mtime_nsec()));
    }
    facts
}

#[cfg(test)]
mod tests;
