//! A folder that one process at a time may use: a lock that the kernel takes back when its holder
//! ends, however.
//!
//! Thread: `main`, at the start. Takes: the open folder, or a file in it where others lock the
//! folder itself. Gives: the same, which is unlocked when it is dropped.

use rustix::event::{Timespec, poll};
use std::fs::{File, TryLockError};
use std::io;

/// Attempts to lock. A server holds the lock of its socket for much less than one pause, and a
/// stopped agent ends within half of the attempts.
const ATTEMPTS: u32 = 40;
/// Pause between two attempts: 50 ms.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Locks `file`; `None` if another process keeps the lock for two seconds.
pub fn lock(file: File) -> io::Result<Option<File>> {
    for _ in 0..ATTEMPTS {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let _ = poll(&mut [], Some(&PAUSE)); // A signal may shorten the pause.
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_holder_until_that_lets_go() {
        let folder = tempfile::tempdir().unwrap();
        let open = || File::open(folder.path()).unwrap();
        let first = lock(open()).unwrap();
        assert!(first.is_some());
        assert!(lock(open()).unwrap().is_none());
        drop(first);
        assert!(lock(open()).unwrap().is_some());
    }
}
