//! Removes folders that a container could write to, however deep they are nested.
//!
//! Nothing here recurses: a folder inside a folder that is not empty is moved up to the outermost
//! one, and is emptied there. So depth costs neither stack nor descriptors nor long paths. Even
//! when entries are renamed or replaced meanwhile, only entries of folders that were opened without
//! following a link are removed.
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

/// Tries to find a free name for a folder that is moved. It is random, so the first one is free
/// unless an attacker watches.
const NAME_TRIES: u32 = 8;

/// The beginning of names of folders that were set aside to be removed. No workload has such a
/// name.
const REMOVING: &str = ".removing-";

/// Removes `folder` and its entries, for at most `limit`. A missing one is fine, any other failure
/// is logged. When it takes longer, the rest is set aside beside it, for [`remove_set_aside`].
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

fn set_aside(folder: &Path) {
    if let Err(error) = fs::rename(folder, folder.with_file_name(new_name())) {
        let folder = folder.display();
        log::warn!("Could not set the folder '{folder}' aside: '{error}'");
    }
}

/// Removes the folders that an earlier agent has set aside in the agent's `folder`. The thread for
/// that ends with the last of them and is not waited for. A removal that takes more than
/// [`REMOVAL_MAX`] is continued with the next start.
pub(crate) fn remove_set_aside(folder: &Path) {
    let mut folders: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
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
            "Folders that are left of earlier workloads stay, there is no thread to remove them: '{error}'"
        );
    }
}

/// Removes the entries of the agent's `folder` that `keeps` does not name, as [`remove_set_aside`].
pub(crate) fn remove_left(folder: &Path, keeps: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            continue;
        };
        if !name.starts_with(REMOVING) && !keeps(name) {
            // When it fails, the entry stays until the next start.
            let _ = fs::rename(entry.path(), folder.join(new_name()));
        }
    }
    remove_set_aside(folder);
}

/// A name that is free, unless an attacker watches.
fn new_name() -> String {
    format!("{REMOVING}{:016x}", fastrand::u64(..))
}

/// The progress of a removal of entries.
#[derive(Default)]
struct RemovalProgress {
    /// Entries that were removed or moved.
    moves: usize,
    /// The first failure.
    failure: Option<Errno>,
}

impl RemovalProgress {
    /// The progress with one entry.
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
    fn remove(&self, folder: &Path) -> io::Result<()> {
        if remove_entry(CWD, folder)? == Attempt::Gone {
            return Ok(());
        }
        let top = open_folder(CWD, folder)?;
        loop {
            // Entries that are moved up while a listing is read may be missing in it.
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

    /// Removes the entries of `folder`; `not_empty` is called for folders that are not empty. When
    /// nothing was removed or moved, another try would change nothing.
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

    /// Removes the folder `name` of `top`. Its entries are removed, or moved to `top` when they are
    /// folders that are not empty.
    fn flatten(&self, top: &OwnedFd, name: &CStr) -> io::Result<RemovalProgress> {
        let folder = match open_folder(top, name) {
            Ok(folder) => folder,
            // Replaced meanwhile.
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

/// Removes a file, link or empty folder. A missing one is gone.
fn remove_entry<P: rustix::path::Arg + Copy>(
    parent: impl AsFd,
    name: P,
) -> rustix::io::Result<Attempt> {
    let not_a_file = match unlinkat(&parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(Attempt::Gone),
        Err(errno @ (Errno::ISDIR | Errno::PERM)) => errno,
        Err(errno) => return Err(errno),
    };
    match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(Attempt::Gone),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Attempt::NotEmpty),
        Err(Errno::NOTDIR) => Err(not_a_file), // A file that must not be removed.
        Err(errno) => Err(errno),
    }
}

/// Opens a folder, never through a link, so that its content can be removed: its owner may have
/// taken that right from itself.
fn open_folder<P: rustix::path::Arg + Copy>(
    parent: impl AsFd,
    name: P,
) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(&parent, name, flags | OFlags::RDONLY, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let place = openat(&parent, name, flags | OFlags::PATH, Mode::empty())?;
            chmod(format!("/proc/self/fd/{}", place.as_raw_fd()), Mode::RWXU)?;
            openat(&place, c".", flags | OFlags::RDONLY, Mode::empty())
        }
        opened => {
            let folder = opened?;
            if !Mode::from_raw_mode(fstat(&folder)?.st_mode).contains(Mode::RWXU) {
                let _ = fchmod(&folder, Mode::RWXU); // Root does without.
            }
            Ok(folder)
        }
    }
}

/// Moves the folder `name` of `from` to `top`, under a name of its own.
fn lift(from: &OwnedFd, name: &CStr, top: &OwnedFd) -> rustix::io::Result<()> {
    let mut last = Errno::EXIST;
    for _ in 0..NAME_TRIES {
        match renameat(from, name, top, new_name()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // Its entry `..` changes, so it must be writable.
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
