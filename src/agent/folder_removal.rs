//! Removes folders that a container could write to, however deep they are nested.
//!
//! Nothing here recurses: a folder inside a folder that is not empty is moved up to the outermost
//! one, and is emptied there. So depth costs neither stack nor descriptors nor long paths, and
//! whatever is renamed or replaced meanwhile, only what is in folders that were opened without
//! following a link is removed.
//!
//! Thread: `wl:<name>`, which owns the folder of its workload; `removal` after a start, for what
//! took too long before.

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

/// Begins the names of folders that are only still there to be removed. No workload is called like
/// that.
const REMOVING: &str = ".removing-";

/// Removes `folder` with all that is in it, for at most `limit`; missing is fine, any other failure
/// only worth a warning. What takes longer is set aside beside it, for [`remove_set_aside`].
pub(crate) fn remove_folder(folder: &Path, clock: &impl Clock, limit: Duration) {
    let removal = Removal {
        clock,
        until: clock.now() + limit,
        limit,
    };
    match removal.remove(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            log::warn!("Failed to delete folder: '{}': '{error}'", folder.display());
            if error.kind() == io::ErrorKind::TimedOut
                && let Err(error) = fs::rename(folder, folder.with_file_name(new_name()))
            {
                log::warn!(
                    "Could not set the folder '{}' aside: '{error}'",
                    folder.display()
                );
            }
        }
    }
}

/// Removes what was set aside in the agent's `folder` in an earlier life, on a thread of its own
/// that ends with it and that is not waited for. What takes more than [`REMOVAL_MAX`] is continued
/// with the next start.
pub(crate) fn remove_set_aside(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let set_aside = entries.filter(|entry| {
        entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(REMOVING.as_bytes())
    });
    let folders: Vec<PathBuf> = set_aside.map(|entry| entry.path()).collect();
    if folders.is_empty() {
        return;
    }
    let body = move || {
        folders
            .iter()
            .for_each(|folder| remove_folder(folder, &SystemClock, REMOVAL_MAX))
    };
    if let Err(error) = threads::spawn("removal", STACK_SMALL, body) {
        log::warn!(
            "Folders that are left of earlier workloads stay, there is no thread to remove them: '{error}'"
        );
    }
}

/// Removes what is in the agent's `folder` and not kept, as [`remove_set_aside`].
pub(crate) fn remove_left(folder: &Path, keeps: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry
            .file_name()
            .to_str()
            .is_some_and(|name| !name.starts_with(REMOVING) && !keeps(name))
        {
            // Else it stays until the next start.
            let _ = fs::rename(entry.path(), folder.join(new_name()));
        }
    }
    remove_set_aside(folder);
}

/// A name that is free, unless an attacker watches.
fn new_name() -> String {
    format!("{REMOVING}{:016x}", fastrand::u64(..))
}

/// How many entries were removed or moved, and the first failure.
type Done = (usize, Option<Errno>);

struct Removal<'a, C> {
    clock: &'a C,
    until: Instant,
    limit: Duration,
}

/// What an attempt to remove one entry led to.
#[derive(PartialEq, Eq)]
enum Attempt {
    /// It is gone.
    Gone,
    /// It is a folder with something in it.
    NotEmpty,
}

impl<C: Clock> Removal<'_, C> {
    fn remove(&self, folder: &Path) -> io::Result<()> {
        if remove_entry(CWD, folder)? == Attempt::Gone {
            return Ok(());
        }
        let top = open_folder(CWD, folder)?;
        loop {
            // What is moved up while a listing is read need not be in it.
            let (moves, failure) = self.remove_entries(&top, |name| self.flatten(&top, name))?;
            match remove_entry(CWD, folder)? {
                Attempt::Gone => return Ok(()),
                Attempt::NotEmpty if moves == 0 => {
                    return Err(failure.unwrap_or(Errno::NOTEMPTY).into());
                }
                Attempt::NotEmpty => {}
            }
        }
    }

    /// Removes what is in `folder`; `not_empty` is called for folders with something in them. When
    /// nothing was removed or moved, another try would do no more.
    fn remove_entries(
        &self,
        folder: &OwnedFd,
        not_empty: impl Fn(&CStr) -> io::Result<Done>,
    ) -> io::Result<Done> {
        let (mut moves, mut failure) = (0, None);
        for entry in entries(folder)? {
            let entry = entry?;
            let (more, failed) = match remove_entry(folder, entry.file_name()) {
                Ok(Attempt::Gone) => (1, None),
                Ok(Attempt::NotEmpty) => not_empty(entry.file_name())?,
                Err(errno) => (0, Some(errno)),
            };
            moves += more;
            failure = failure.or(failed);
            self.check_time()?;
        }
        Ok((moves, failure))
    }

    /// Removes what is in the folder `name` of `top`, moves to `top` what is not empty there, and
    /// removes the folder.
    fn flatten(&self, top: &OwnedFd, name: &CStr) -> io::Result<Done> {
        let folder = match open_folder(top, name) {
            Ok(folder) => folder,
            // Replaced meanwhile.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok((0, None)),
            Err(errno) => return Ok((0, Some(errno))),
        };
        let lift = |inner: &CStr| {
            Ok(lift(&folder, inner, top).map_or_else(|errno| (0, Some(errno)), |()| (1, None)))
        };
        let (mut moves, failure) = self.remove_entries(&folder, lift)?;
        if remove_entry(top, name) == Ok(Attempt::Gone) {
            moves += 1;
        }
        Ok((moves, failure))
    }

    fn check_time(&self) -> io::Result<()> {
        if self.clock.now() < self.until {
            return Ok(());
        }
        let text = format!("not everything was removed within {:?}", self.limit);
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    }
}

/// What is in `folder`, without the two names that every folder has.
fn entries(
    folder: &OwnedFd,
) -> rustix::io::Result<impl Iterator<Item = rustix::io::Result<rustix::fs::DirEntry>>> {
    let entries = Dir::read_from(folder)?;
    Ok(entries.filter(|entry| {
        entry.as_ref().map_or(true, |entry| {
            entry.file_name() != c"." && entry.file_name() != c".."
        })
    }))
}

/// Removes a file, link or empty folder. Missing counts as gone.
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
