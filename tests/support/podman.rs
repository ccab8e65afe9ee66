//! podman on a store of a test's own, whose configuration lies in the store's folder.
//!
//! Thread: the test's. Owns nothing.

use std::path::Path;
use std::process::{Command, Stdio};

/// The environment that selects the store in `folder`.
pub fn environment(folder: &Path) -> Vec<(String, String)> {
    let file = |name: &str| folder.join(name).to_string_lossy().into_owned();
    vec![
        ("CONTAINERS_CONF".to_owned(), file("containers.conf")),
        ("CONTAINERS_STORAGE_CONF".to_owned(), file("storage.conf")),
        (
            "CONTAINERS_REGISTRIES_CONF".to_owned(),
            file("registries.conf"),
        ),
    ]
}

/// Runs podman on the store in `folder`, behind the words of `wrapper`: its stdout, or its stderr
/// when it fails.
pub fn run_in(wrapper: &[String], folder: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut words: Vec<&str> = wrapper.iter().map(String::as_str).collect();
    words.push("podman");
    words.extend(arguments);
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).envs(environment(folder));
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Removes all containers of the store in `folder`, if it is one.
pub fn empty_store(folder: &Path) {
    if !folder.join("storage.conf").is_file() {
        return;
    }
    // What cannot be removed must not keep the rest from being removed.
    let _ = run_in(&[], folder, &["pod", "rm", "--all", "--force", "--time=0"]);
    let _ = run_in(&[], folder, &["rm", "--all", "--force", "--time=0"]);
    let _ = Command::new("umount")
        .args(["--lazy", "--quiet"])
        .arg(folder.join("store/overlay"))
        .output();
}
