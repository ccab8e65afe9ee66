//! Folders of a test under the system's temporary folder, removed on drop.
//!
//! A killed test leaves its folders, and with real podman also containers. So each name has the pid
//! of the test, and the first folder of a test binary removes those of dead ones.
//!
//! Thread: the test's. Owns nothing.

use std::fs;
use std::path::Path;
use std::sync::Once;

use tempfile::TempDir;

use super::podman::empty_store;
use super::process::is_alive;

const PREFIX: &str = "ankl-test-";

/// A new folder; `kind` is part of its name.
pub fn folder(kind: &str) -> TempDir {
    static SWEEP: Once = Once::new();
    SWEEP.call_once(remove_folders_of_dead_tests);
    let prefix = format!("{PREFIX}{}-{kind}-", std::process::id());
    tempfile::Builder::new()
        .prefix(&prefix)
        .tempdir()
        .expect("the temporary folder is writable")
}

fn remove_folders_of_dead_tests() {
    let mut left = Vec::new();
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else {
        return;
    };
    for entry in entries.flatten() {
        if let Some(pid) = pid_in_name(&entry.path())
            && !is_alive(pid)
        {
            left.push(entry.path());
        }
    }
    for folder in left {
        empty_store(&folder);
        let _ = fs::remove_dir_all(&folder);
    }
}

/// The pid of the test that made a folder; `None` if no test did.
fn pid_in_name(folder: &Path) -> Option<u32> {
    let name = folder.file_name()?.to_str()?;
    let rest = name.strip_prefix(PREFIX)?;
    let (pid, _) = rest.split_once('-')?;
    pid.parse().ok()
}
