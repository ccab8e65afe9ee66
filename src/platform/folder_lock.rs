//! A folder that one process at a time may use: a lock that the kernel takes back when its holder
//! ends, however.
//!
//! Thread: `main`, at the start. Takes: the open folder, or a file in it where others lock the
//! folder itself. Gives: the same, which is unlocked when it is dropped.

use rustix::event::poll;
use std::fs::{File, TryLockError};
use std::io;

/// Locks `file`. Waits a little for a holder that is about to end; `None` when it stays.
pub fn lock(file: File) -> io::Result<Option<File>> {
    // Attempts 50 ms apart. A server that starts holds that of its socket for much less
    // than one pause, and an agent that was stopped ends within half of the attempts.
    for _ in 0..40 {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let pause = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: 50_000_000,
        };
        let _ = poll(&mut [], Some(&pause)); // A pause that a signal ends early is none the worse.
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
