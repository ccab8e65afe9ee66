//! The test's side of the fake engine (tests/fake_engine): folder, script, orders, log of calls.
//!
//! Thread: the test's. Owns: the engine's folder; its removal ends every process of the engine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::listing;
use super::process::{arguments_of, is_alive, send_signal};
use super::{LIMIT, poll, scratch, wait_until};

/// Longer than the interval of anything that an agent repeats while it waits.
const QUIET: Duration = Duration::from_secs(3);

pub struct FakeEngine {
    folder: TempDir,
}

/// A call in `calls.log`: a command and, if it ended by itself, its exit code.
#[derive(Debug, Clone)]
pub struct Call {
    pub pid: u32,
    pub argv: Vec<String>,
    pub exit: Option<i64>,
    pub end_ms: Option<u64>,
}

impl Call {
    /// The subcommand: the first word that is not an option.
    pub fn command(&self) -> &str {
        let mut words = self.argv.iter();
        match words.find(|word| !word.starts_with('-')) {
            Some(word) => word,
            None => "",
        }
    }

    pub fn mentions(&self, text: &str) -> bool {
        self.argv.iter().any(|word| word.contains(text))
    }
}

impl FakeEngine {
    pub fn new() -> Self {
        let folder = scratch::folder("engine");
        fs::create_dir(folder.path().join("bin")).expect("own folder is writable");
        fs::create_dir(folder.path().join("state")).expect("own folder is writable");
        symlink(program(), folder.path().join("bin/podman")).expect("own folder is writable");
        Self { folder }
    }

    /// To be put first into `PATH`.
    pub fn bin(&self) -> PathBuf {
        self.folder.path().join("bin")
    }

    /// Value of `FAKE_ENGINE_DIR`.
    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Replaces the rules (see tests/fake_engine/script.rs) for all later commands.
    pub fn script(&self, rules: &Value) {
        self.write_script(&serde_json::json!({ "rules": rules }));
    }

    pub fn write_script(&self, script: &Value) {
        let temporary = self.state().join("script.json.new");
        fs::write(&temporary, script.to_string()).expect("own folder is writable");
        fs::rename(&temporary, self.state().join("script.json")).expect("own folder is writable");
    }

    /// Sets when the containers that have ended did so, in seconds since 1970.
    pub fn set_ends(&self, at: i64) {
        for mut container in self.containers() {
            let id = container["Id"].as_str().expect("an id").to_owned();
            container["ExitedAt"] = at.into();
            let temporary = self.state().join(format!("{id}.new"));
            fs::write(&temporary, container.to_string()).expect("own folder is writable");
            fs::rename(&temporary, self.state().join("containers").join(id))
                .expect("own folder is writable");
        }
    }

    /// Continues the commands that a rule holds under this name.
    pub fn release(&self, name: &str) {
        let folder = self.state().join("released");
        fs::create_dir_all(&folder).expect("own folder is writable");
        fs::write(folder.join(name), "").expect("own folder is writable");
    }

    /// Installs the same engine as containerd's command line.
    pub fn install_nerdctl(&self) {
        symlink(program(), self.bin().join("nerdctl")).expect("nerdctl is not installed");
    }

    /// Takes the engine away, as if it were not installed.
    pub fn uninstall(&self) {
        fs::remove_file(self.bin().join("podman")).expect("the engine is installed");
    }

    pub fn install(&self) {
        symlink(program(), self.bin().join("podman")).expect("the engine is not installed");
    }

    /// Orders the running container of `workload` to exit with `code`, and waits until it took the
    /// order.
    pub fn finish(&self, workload: &str, code: i32) {
        let order = self.state().join("finish").join(workload);
        let temporary = self.state().join(format!("finish-{workload}.new"));
        fs::write(&temporary, code.to_string()).expect("own folder is writable");
        fs::rename(&temporary, &order).expect("own folder is writable");
        wait_until(
            &format!("container of '{workload}' takes the order to end"),
            || !order.exists(),
        );
    }

    /// All containers, as stored by the engine.
    pub fn containers(&self) -> Vec<Value> {
        let mut containers = Vec::new();
        let Ok(files) = fs::read_dir(self.state().join("containers")) else {
            return containers;
        };
        for file in files.flatten() {
            // A file that is being written has another name.
            let is_whole = !file.file_name().to_string_lossy().contains('.');
            // The engine may have removed the file since.
            if is_whole
                && let Ok(text) = fs::read_to_string(file.path())
                && let Ok(container) = serde_json::from_str(&text)
            {
                containers.push(container);
            }
        }
        containers
    }

    /// The containers of one workload, in any state.
    pub fn containers_of(&self, workload: &str) -> Vec<Value> {
        listing::containers_of(self.containers(), workload)
    }

    /// Pid and id of the only container of `workload`.
    pub fn only_container(&self, workload: &str) -> (u32, String) {
        listing::only_container(self.containers(), workload)
    }

    /// Waits until `workload` has one container, and that runs. Returns its pid and id.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn wait_for_container(&self, workload: &str) -> (u32, String) {
        let running = poll(LIMIT, || {
            let all = self.containers_of(workload);
            let is_it = all.len() == 1 && all[0]["State"] == "running";
            is_it.then(|| listing::only_container(all, workload))
        });
        running.unwrap_or_else(|| {
            panic!(
                "'{workload}' has no running container: {:?}",
                self.containers_of(workload)
            )
        })
    }

    /// Gives the engine a store of images, with these at first.
    pub fn set_images(&self, images: &Value) {
        let temporary = self.state().join("images.new");
        fs::write(&temporary, images.to_string()).expect("own folder is writable");
        fs::rename(&temporary, self.state().join("images.json")).expect("own folder is writable");
    }

    /// The first names of the images in the store, sorted.
    pub fn image_names(&self) -> Vec<String> {
        let text = fs::read_to_string(self.state().join("images.json")).unwrap_or_default();
        let images: Vec<Value> = serde_json::from_str(&text).unwrap_or_default();
        let mut full_names = Vec::new();
        for image in &images {
            full_names.extend(image["Names"][0].as_str());
        }
        full_names.sort();
        let mut names = Vec::new();
        for name in full_names {
            names.push(name.trim_start_matches("docker.io/library/").to_owned());
        }
        names
    }

    /// Removes the ended container of `workload`, as a user does who cleans up.
    pub fn remove_ended(&self, workload: &str) {
        let (_, id) = self.only_container(workload);
        let mut command = Command::new(self.bin().join("podman"));
        let status = command
            .args(["rm", &id])
            .env("FAKE_ENGINE_DIR", self.state())
            .stdout(Stdio::null())
            .status();
        assert!(
            status.expect("the engine starts").success(),
            "the container of '{workload}' cannot be removed"
        );
    }

    /// Number of listings that have ended so far.
    pub fn listings(&self) -> usize {
        let mut calls = self.calls_of("ps", "");
        calls.retain(|call| call.end_ms.is_some());
        calls.len()
    }

    /// Kills the container of `workload` as soon as it has one.
    pub fn kill_container(&self, workload: &str) {
        let (pid, _) = self.wait_for_container(workload);
        assert!(
            send_signal(pid, Signal::KILL),
            "container of '{workload}' does not run"
        );
    }

    /// Every command so far, in order of their start.
    pub fn calls(&self) -> Vec<Call> {
        let text = fs::read_to_string(self.state().join("calls.log")).unwrap_or_default();
        let mut calls: Vec<Call> = Vec::new();
        for line in text.lines() {
            // The last line may be incomplete.
            let Ok(line) = serde_json::from_str::<Value>(line) else {
                continue;
            };
            let pid = u32::try_from(line["pid"].as_u64().expect("a pid")).expect("a pid");
            let at_ms = line["at_ms"].as_u64().expect("a time");
            if let Some(words) = line["argv"].as_array() {
                let words = words.iter().filter_map(Value::as_str);
                calls.push(Call {
                    pid,
                    argv: words.map(str::to_owned).collect(),
                    exit: None,
                    end_ms: None,
                });
            } else if let Some(call) = calls.iter_mut().rev().find(|call| call.pid == pid) {
                call.exit = line["exit"].as_i64();
                call.end_ms = Some(at_ms);
            }
        }
        calls
    }

    /// The calls of one subcommand that mention `text` in any argument.
    pub fn calls_of(&self, command: &str, text: &str) -> Vec<Call> {
        let mut calls = self.calls();
        calls.retain(|call| call.command() == command && call.mentions(text));
        calls
    }

    /// Pids of commands that neither ended nor were killed.
    pub fn hanging_calls(&self) -> Vec<u32> {
        self.hanging(|_| true)
    }

    /// As [`Self::hanging_calls`], of one subcommand: a listing may run at any time.
    pub fn hanging_calls_of(&self, command: &str) -> Vec<u32> {
        self.hanging(|call| call.command() == command)
    }

    fn hanging(&self, is_wanted: impl Fn(&Call) -> bool) -> Vec<u32> {
        let mut pids = Vec::new();
        for call in self.calls() {
            // On a busy machine the pid of a killed call is soon that of another process.
            if call.end_ms.is_none()
                && is_wanted(&call)
                && is_alive(call.pid)
                && arguments_of(call.pid) == call.argv
            {
                pids.push(call.pid);
            }
        }
        pids
    }

    /// Waits until no command has begun for [`QUIET`]. An agent that calls its engine again and again
    /// does so more often, even on a slow machine.
    pub fn wait_until_quiet(&self) {
        let mut last_count = self.calls().len();
        let mut quiet_since = Instant::now();
        wait_until("the engine is not called any more", || {
            let count = self.calls().len();
            if count != last_count {
                last_count = count;
                quiet_since = Instant::now();
            }
            quiet_since.elapsed() >= QUIET
        });
    }

    /// The last lines of `calls.log`, for failure messages.
    pub fn tail(&self) -> String {
        let text = fs::read_to_string(self.state().join("calls.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }
}

impl Drop for FakeEngine {
    fn drop(&mut self) {
        // At once, so that no process of the engine writes a file into a folder that is being removed.
        let _ = fs::rename(self.state(), self.folder.path().join("ended"));
    }
}

/// The fake engine's program. `cargo test` builds examples, `cargo test --test <name>` does not:
/// then it is built here when it is missing or older than its sources.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let test = std::env::current_exe().expect("the test knows its path");
        let profile = test
            .parent()
            .and_then(Path::parent)
            .expect("tests are in <target>/<profile>/deps");
        let program = profile.join("examples/fake-podman");
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_engine");
        let built = changed_at(&program);
        let sources = fs::read_dir(sources).expect("the sources are there");
        let newest = sources.flatten().map(|file| changed_at(&file.path())).max();
        if built.is_none() || Some(built) < newest {
            build_program(profile);
        }
        program
    })
}

/// The time of the last change of a file, if it exists.
fn changed_at(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

fn build_program(profile: &Path) {
    let target = profile
        .parent()
        .expect("tests are in <target>/<profile>/deps");
    let mut build = Command::new(env!("CARGO"));
    // With the variables that cargo sets for this test it would build the dependencies again.
    const PREFIXES: [&str; 5] = [
        "CARGO_MANIFEST",
        "CARGO_PKG",
        "CARGO_BIN",
        "CARGO_CRATE",
        "OUT_DIR",
    ];
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if PREFIXES.iter().any(|prefix| text.starts_with(prefix)) {
            build.env_remove(&name);
        }
    }
    build
        .args([
            "build",
            "--quiet",
            "--locked",
            "--example",
            "fake-podman",
            "--target-dir",
        ])
        .arg(target);
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    let built = build.output().expect("cargo starts");
    assert!(
        built.status.success(),
        "{build:?}: {}",
        String::from_utf8_lossy(&built.stderr)
    );
}
