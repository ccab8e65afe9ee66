//! Python environments of the tests, made once in `~/.cache/ankaios-lite` and used again.
//!
//! Thread: the test's; a lock file keeps tests of other processes from making the same one. Owns
//! nothing.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The interpreter of the environment called `name` with the packages of `requirements` (a file
/// below `tests/python`); `probe` is Python code that works only when they are there.
///
/// # Panics
/// When the environment cannot be made.
pub fn interpreter(name: &str, requirements: &str, probe: &str) -> PathBuf {
    environment(name, requirements, probe).unwrap_or_else(|error| panic!("{error}"))
}

/// As `interpreter`, but returns an error if pip cannot install the packages.
///
/// # Errors
/// The error output of pip.
///
/// # Panics
/// When this machine cannot make environments.
pub fn environment(name: &str, requirements: &str, probe: &str) -> Result<PathBuf, String> {
    let folder = cache().join(name);
    let program = folder.join("bin/python");
    fs::create_dir_all(cache()).expect("the cache folder is writable");
    let lock =
        File::create(cache().join(format!("{name}.lock"))).expect("the cache folder is writable");
    lock.lock().expect("the cache folder has locks");
    let works = Command::new(&program).args(["-c", probe]).output();
    if works.is_ok_and(|output| output.status.success()) {
        return Ok(program);
    }
    let made = Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(&folder)
        .output();
    succeeded("python3 -m venv (Debian package python3-venv)", made);
    let file = repository("tests/python").join(requirements);
    let output = Command::new(&program)
        .args(["-m", "pip", "install", "--quiet", "-r"])
        .arg(file)
        .output();
    let output = output.expect("the environment has a Python");
    if !output.status.success() {
        return Err(format!(
            "pip install -r {requirements}: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    Ok(program)
}

/// The folder in which tests keep what takes long to make.
pub fn cache() -> PathBuf {
    let cache = match std::env::var_os("XDG_CACHE_HOME") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".cache"),
    };
    cache.join("ankaios-lite")
}

/// A path below the top of the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The output of a command that has to work.
///
/// # Panics
/// With what it printed, when it does not.
#[track_caller]
pub fn succeeded(what: &str, output: std::io::Result<Output>) -> String {
    let output = output.unwrap_or_else(|error| panic!("{what}: {error}"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{what}: {}\n{stdout}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    stdout
}
