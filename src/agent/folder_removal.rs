//! Removes folders that a container could write to, however deep they are nested.
//!
//! There is no recursion: an inner folder that is not empty is moved up to the outermost one, and
//! emptied there. So deep folders need neither stack nor descriptors nor long paths. Folders are
//! opened without following links, so that entries which are replaced meanwhile do not lead
//! elsewhere.
//!
//! Thread: `wl:<name>`, which owns the folder of its workload; `removal` after a start, for folders
//! whose removal took too long before.

use crate::limits::REMOVAL_MAX;
use ankaios_platform::clock::{Clock, SystemClock};
use ankaios_platform::limits::STACK_SMALL;
use ankaios_platform::threads;
use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, chmod, fchmod, fstat, openat, renameat, unlinkat,
};
use rustix::io::Errno;
use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Tries to find a free name for a folder that is moved. Names are random, so only an attacker can
/// make the first one fail.
const NAME_TRIES: u32 = 8;

/// The beginning of the names of folders that were set aside for a later removal. No workload has
/// such a name.
const REMOVING: &str = ".removing-";

/// Removes `folder` with all its entries. Failures are logged; a missing folder is none. If it
/// takes longer than `limit`, the rest is set aside for [`remove_set_aside`].
pub(crate) fn remove_folder(folder: &Path, clock: &impl Clock, limit: Duration) {
    let removal = FolderRemoval {
        clock,
        until: clock.now() + limit,
        limit,
    };
    match removal.remove(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            log::warn!("Failed to delete folder: '{}': '{error}'", folder.display());
            if error.kind() == io::ErrorKind::TimedOut {
                set_aside(folder);
            }
        }
    }
}

/// Renames a folder, so that its name is free and a later agent removes it.
fn set_aside(folder: &Path) {
    if let Err(error) = fs::rename(folder, folder.with_file_name(new_name())) {
        let folder = folder.display();
        log::warn!("Could not set the folder '{folder}' aside: '{error}'");
    }
}

/// Removes the folders that were set aside in the agent's `folder`, on a thread of its own, and
/// does not wait for that. A removal that takes more than [`REMOVAL_MAX`] is continued at the next
/// start.
pub(crate) fn remove_set_aside(folder: &Path) {
    let mut folders: Vec<PathBuf> = Vec::new();
    for entry in readable_entries(folder) {
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(REMOVING.as_bytes()) {
            folders.push(entry.path());
        }
    }
    if folders.is_empty() {
        return;
    }
    let body = move || {
        for folder in &folders {
            remove_folder(folder, &SystemClock, REMOVAL_MAX);
        }
    };
    if let Err(error) = threads::spawn("removal", STACK_SMALL, body) {
        log::warn!(
            "Cannot remove the folders of earlier workloads, because no thread can be started: '{error}'. They stay \
             until the agent is started again."
        );
    }
}

/// Removes the entries of the agent's `folder` except those for which `keeps` returns true. They
/// are set aside first, so that their names are free at once.
pub(crate) fn remove_left_over(folder: &Path, keeps: impl Fn(&str) -> bool) {
    for entry in readable_entries(folder) {
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            continue; // The agent makes no such name.
        };
        if !name.starts_with(REMOVING) && !keeps(name) {
            // If it fails, the entry stays until the next start.
            let _ = fs::rename(entry.path(), folder.join(new_name()));
        }
    }
    remove_set_aside(folder);
}

/// The entries of a folder that can be read; none if the folder cannot be read.
fn readable_entries(folder: &Path) -> Vec<fs::DirEntry> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.flatten().collect(),
        Err(_) => Vec::new(),
    }
}

/// A random name for a folder that is set aside or moved.
fn new_name() -> String {
    format!("{REMOVING}{:016x}", fastrand::u64(..))
}

/// The progress of a removal of entries.
#[derive(Default)]
struct RemovalProgress {
    /// The number of entries that were removed or moved.
    moves: usize,
    /// The first failure.
    failure: Option<Errno>,
}

impl RemovalProgress {
    /// The progress after one entry.
    fn of_one(result: Result<(), Errno>) -> Self {
        match result {
            Ok(()) => Self {
                moves: 1,
                failure: None,
            },
            Err(errno) => Self {
                moves: 0,
                failure: Some(errno),
            },
        }
    }

    fn add(&mut self, more: Self) {
        self.moves += more.moves;
        self.failure = self.failure.or(more.failure);
    }
}

/// The removal of one folder.
struct FolderRemoval<'a, C> {
    clock: &'a C,
    until: Instant,
    limit: Duration,
}

/// The result of an attempt to remove one entry.
#[derive(PartialEq, Eq)]
enum Attempt {
    /// It is gone.
    Gone,
    /// It is a folder that is not empty.
    NotEmpty,
}

impl<C: Clock> FolderRemoval<'_, C> {
    /// Removes a folder with all its entries.
    ///
    /// # Errors
    /// The first failure, or `TimedOut` when it takes too long.
    fn remove(&self, folder: &Path) -> io::Result<()> {
        if remove_entry(CWD, folder)? == Attempt::Gone {
            return Ok(());
        }
        let top = open_folder(CWD, folder)?;
        // Several rounds are needed: a listing may miss entries that are moved up while it is read.
        loop {
            let progress = self.remove_entries(&top, |name| self.flatten(&top, name))?;
            match remove_entry(CWD, folder)? {
                Attempt::Gone => return Ok(()),
                Attempt::NotEmpty if progress.moves == 0 => {
                    return Err(progress.failure.unwrap_or(Errno::NOTEMPTY).into());
                }
                Attempt::NotEmpty => {}
            }
        }
    }

    /// Removes the entries of `folder`. For each inner folder that is not empty, `not_empty` is
    /// called instead.
    fn remove_entries(
        &self,
        folder: &OwnedFd,
        not_empty: impl Fn(&CStr) -> io::Result<RemovalProgress>,
    ) -> io::Result<RemovalProgress> {
        let mut progress = RemovalProgress::default();
        for entry in entries(folder)? {
            let entry = entry?;
            let one = match remove_entry(folder, entry.file_name()) {
                Ok(Attempt::Gone) => RemovalProgress::of_one(Ok(())),
                Ok(Attempt::NotEmpty) => not_empty(entry.file_name())?,
                Err(errno) => RemovalProgress::of_one(Err(errno)),
            };
            progress.add(one);
            self.check_time()?;
        }
        Ok(progress)
    }

    /// Removes the folder `name` in `top`. Its entries are removed; inner folders that are not
    /// empty are moved to `top`.
    fn flatten(&self, top: &OwnedFd, name: &CStr) -> io::Result<RemovalProgress> {
        let folder = match open_folder(top, name) {
            Ok(folder) => folder,
            // It was replaced or removed meanwhile.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                return Ok(RemovalProgress::default());
            }
            Err(errno) => return Ok(RemovalProgress::of_one(Err(errno))),
        };
        let mut progress = self.remove_entries(&folder, |inner| {
            Ok(RemovalProgress::of_one(lift(&folder, inner, top)))
        })?;
        if remove_entry(top, name) == Ok(Attempt::Gone) {
            progress.moves += 1;
        }
        Ok(progress)
    }

    /// # Errors
    /// `TimedOut` when the removal takes too long.
    fn check_time(&self) -> io::Result<()> {
        if self.clock.now() < self.until {
            return Ok(());
        }
        let text = format!("not everything was removed within {:?}", self.limit);
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    }
}

/// The entries of `folder`, without the two that every folder has.
fn entries(
    folder: &OwnedFd,
) -> rustix::io::Result<impl Iterator<Item = rustix::io::Result<rustix::fs::DirEntry>>> {
    let entries = Dir::read_from(folder)?;
    Ok(entries.filter(|entry| match entry {
        Ok(entry) => entry.file_name() != c"." && entry.file_name() != c"..",
        Err(_) => true,
    }))
}

/// Tries to remove an entry: a file, a link or an empty folder. A missing one is `Gone` as well.
fn remove_entry<P: rustix::path::Arg + Copy>(
    parent: impl AsFd,
    name: P,
) -> rustix::io::Result<Attempt> {
    // First: as a file or a link.
    let first_error = match unlinkat(&parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(Attempt::Gone),
        Err(errno @ (Errno::ISDIR | Errno::PERM)) => errno,
        Err(errno) => return Err(errno),
    };
    // Then: as a folder.
    match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(Attempt::Gone),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Attempt::NotEmpty),
        Err(Errno::NOTDIR) => Err(first_error), // It is a file that cannot be removed.
        Err(errno) => Err(errno),
    }
}

/// Opens a folder, never through a link, and makes it readable and writable for its owner, so that
/// its entries can be removed.
fn open_folder<P: rustix::path::Arg + Copy>(
    parent: impl AsFd,
    name: P,
) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(&parent, name, flags | OFlags::RDONLY, Mode::empty()) {
        Err(Errno::ACCESS) => {
            // Its owner has no right to read it. A change of the mode by name could follow a link
            // that has replaced it meanwhile, and `fchmod` takes no descriptor that only names a
            // place. So the place is held, its mode changed through /proc, and the same folder
            // opened from it.
            let place = openat(&parent, name, flags | OFlags::PATH, Mode::empty())?;
            chmod(format!("/proc/self/fd/{}", place.as_raw_fd()), Mode::RWXU)?;
            openat(&place, c".", flags | OFlags::RDONLY, Mode::empty())
        }
        opened => {
            let folder = opened?;
            if !Mode::from_raw_mode(fstat(&folder)?.st_mode).contains(Mode::RWXU) {
                let _ = fchmod(&folder, Mode::RWXU); // Root can do without.
            }
            Ok(folder)
        }
    }
}

/// Moves the folder `name` of `from` to `top`, under a free name. A missing one counts as moved.
fn lift(from: &OwnedFd, name: &CStr, top: &OwnedFd) -> rustix::io::Result<()> {
    let mut last = Errno::EXIST;
    for _ in 0..NAME_TRIES {
        match renameat(from, name, top, new_name()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // It must be writable, since its entry `..` changes. Opening it makes it so.
            Err(Errno::ACCESS) => drop(open_folder(from, name)?),
            Err(errno @ (Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR | Errno::ISDIR)) => {
                last = errno
            }
            Err(errno) => return Err(errno),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests;
