//! Folders of a test under the system's temporary folder, removed on drop.
//!
//! A killed test leaves its folders, and with real podman containers, behind. So the pid of the
//! test is part of each name, and the first folder of a test binary clears away what dead ones
//! left.
//!
//! Thread: the test's. Owns nothing.

use std::fs;
use std::path::{Path, PathBuf};
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
    let entries = fs::read_dir(std::env::temp_dir())
        .into_iter()
        .flatten()
        .flatten();
    let left = entries
        .map(|entry| entry.path())
        .filter(|path| owner(path).is_some_and(|pid| !is_alive(pid)));
    for folder in left.collect::<Vec<PathBuf>>() {
        empty_store(&folder);
        let _ = fs::remove_dir_all(&folder);
    }
}

fn owner(folder: &Path) -> Option<u32> {
    folder
        .file_name()?
        .to_str()?
        .strip_prefix(PREFIX)?
        .split('-')
        .next()?
        .parse()
        .ok()
}
