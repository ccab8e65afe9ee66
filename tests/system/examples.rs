//! The examples of `docs/examples/` and the tour of the README: each command of these pages is run
//! as it stands, on real podman, and has to print what the page shows.
//!
//! In a page `...` stands for any number of lines. Blanks, empty lines, times, durations and
//! numbers of attempts are not compared. A command that only reads is repeated until it prints what
//! is shown, since a container may need a moment.
//!
//! Thread: the test's. Owns: per test one cluster with the agents `front` and `rear`, one podman
//! store, and a copy of the folder of the example.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::control::{libraries, rust_program};
use crate::store::Podman;
use crate::support::process::clean_command;
use crate::support::python::{interpreter, repository, succeeded};
use crate::support::{Cluster, LIMIT, Process, leave_out, poll, wait_until};

/// A command of a page, and the lines that it prints there.
#[derive(Debug)]
struct Shown {
    command: String,
    lines: Vec<String>,
}

/// The commands in the blocks of the language `console` of a page.
fn commands(page: &str) -> Vec<Shown> {
    let blocks = page
        .split("```console\n")
        .skip(1)
        .filter_map(|rest| rest.split_once("```"));
    let mut found: Vec<Shown> = Vec::new();
    for line in blocks.flat_map(|(block, _)| block.lines()) {
        if let Some(command) = line.strip_prefix("$ ") {
            found.push(Shown {
                command: command.to_owned(),
                lines: Vec::new(),
            });
        } else {
            found
                .last_mut()
                .expect("a block begins with a command")
                .lines
                .push(line.to_owned());
        }
    }
    found
}

/// A line without what differs from run to run.
fn plain(line: &str) -> String {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    for at in 0..words.len() {
        let word = words[at].trim_end_matches(',');
        let digits = word.bytes().any(|byte| byte.is_ascii_digit());
        let number = word.trim_end_matches('.').contains('.')
            && word
                .bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b'.');
        let time = word.len() == "2026-11-24T11:28:06Z".len() && word.ends_with('Z');
        if digits && (number || time || at > 0 && words[at - 1] == "attempt") {
            words[at] = "#";
        }
    }
    words.join(" ")
}

fn plain_lines<'l>(lines: impl Iterator<Item = &'l str>) -> Vec<String> {
    lines.map(plain).filter(|line| !line.is_empty()).collect()
}

/// Returns whether `printed` is the shown text, with any lines in place of `...`.
fn is_shown(shown: &[String], printed: &[String]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line == "..." => {
            (0..=printed.len()).any(|skipped| is_shown(rest, &printed[skipped..]))
        }
        Some((line, rest)) => printed.first() == Some(line) && is_shown(rest, &printed[1..]),
    }
}

struct Example {
    /// Dropped before the store.
    cluster: Cluster,
    podman: Podman,
    name: &'static str,
}

impl Example {
    fn start(name: &'static str, podman: Podman) -> Self {
        podman.run(&[
            "tag",
            "docker.io/library/alpine:latest",
            "docker.io/library/busybox:latest",
        ]);
        let mut cluster = Cluster::prepare_on(&podman);
        let config = std::fs::read_to_string(repository("docs/examples/ank-server.conf"))
            .expect("the file is there");
        cluster.server_config = config.replace("version = \"v1\"", "");
        cluster.set_socket(&cluster.folder().join("ank.sock"));
        let wrapper = podman.wrapper();
        if !wrapper.is_empty() {
            cluster.set_wrapper(
                "ank-agent",
                &wrapper.iter().map(String::as_str).collect::<Vec<_>>(),
            );
        }
        cluster.start_all(&["front", "rear"]);
        let copied = Command::new("cp")
            .arg("-r")
            .arg(source(name))
            .arg(cluster.folder().join("example"))
            .status();
        assert!(
            copied.is_ok_and(|status| status.success()),
            "the example can be copied"
        );
        Self {
            cluster,
            podman,
            name,
        }
    }

    /// A command in the folder of the example, where the network of the store is.
    fn command(&self, program: &str) -> Command {
        let home = self.cluster.folder().join("home");
        let folder = format!(
            "--chdir={}",
            self.cluster.folder().join("example").display()
        );
        // Who enters another network is in the topmost folder there.
        let in_folder = ["env".to_owned(), folder, program.to_owned()];
        let words: Vec<String> = self.podman.wrapper().into_iter().chain(in_folder).collect();
        let mut command = clean_command(&words[0], &home);
        let programs = Path::new(env!("CARGO_BIN_EXE_ank"))
            .parent()
            .expect("it is in a folder");
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", programs.display());
        command
            .args(&words[1..])
            .env("PATH", path)
            .env("ANK_SERVER_URL", self.cluster.url())
            .envs(self.podman.environment());
        command
    }

    fn prints(&self, line: &str) -> Vec<String> {
        let mut command = self.command("bash");
        command.args(["-c", &format!("exec 2>&1\n{line}")]);
        plain_lines(self.cluster.finish(command, "").stdout.lines())
    }

    /// Runs the commands of the page of the example.
    fn run(&self) {
        let page = source(self.name).join("README.md");
        self.run_page(&std::fs::read_to_string(page).expect("an example has a page"));
    }

    fn run_page(&self, page: &str) {
        let shown = commands(page);
        assert!(shown.len() > 2, "{}: its page shows no commands", self.name);
        for Shown { command, lines } in shown {
            let wanted = plain_lines(lines.iter().map(String::as_str));
            let mut reading = ["ank get", "ank logs", "ank graph"].iter();
            let only_reads = reading.any(|start| command.starts_with(start));
            let mut printed = self.prints(&command);
            if only_reads {
                // It can be repeated until the state is as shown.
                poll(LIMIT, || {
                    let is_done = is_shown(&wanted, &printed);
                    if !is_done {
                        printed = self.prints(&command);
                    }
                    is_done.then_some(())
                });
            }
            let mut is_right = is_shown(&wanted, &printed);
            if !only_reads && !is_right {
                // A workload that ends by itself may still run when the command returns.
                is_right = is_shown(&all_ended(&wanted), &all_ended(&printed));
            }
            assert!(
                is_right,
                "{}: $ {command}\nshown:\n{}\n\nprinted:\n{}",
                self.name,
                wanted.join("\n"),
                printed.join("\n")
            );
        }
    }
}

/// These lines as if all running workloads had succeeded.
fn all_ended(lines: &[String]) -> Vec<String> {
    let lines = lines.iter();
    let ended = lines.map(|line| line.replace("Running(Ok)", "Succeeded(Ok)"));
    ended.collect()
}

fn source(name: &str) -> PathBuf {
    repository("docs/examples").join(name)
}

/// Imports an image under the name that the manifest of an example has. Its containers have the
/// libraries of this machine, `folders`, and the folder of the example as `/app`. So nothing is
/// fetched as the `Containerfile` does.
fn with_image(podman: &Podman, image: &str, app: &Path, folders: &[PathBuf], path: &str) {
    let mut volumes = Vec::new();
    for folder in libraries().iter().chain(folders) {
        volumes.push(format!("\"{0}:{0}:ro\"", folder.display()));
    }
    volumes.push(format!("\"{}:/app:ro\"", app.display()));
    let mut variables = podman.environment().into_iter();
    let settings = variables.find(|(name, _)| name == "CONTAINERS_CONF");
    let (_, settings) = settings.expect("the store has settings");
    let text = std::fs::read_to_string(&settings).expect("just written");
    let text = text.replacen(
        "[containers]\n",
        &format!("[containers]\nvolumes = [{}]\n", volumes.join(", ")),
        1,
    );
    std::fs::write(&settings, text).expect("own folder is writable");
    let change = format!("ENV PATH={path}:/usr/bin:/bin");
    podman.run(&[
        "import",
        "--quiet",
        "--change",
        &change,
        &podman.image_archive(),
        image,
    ]);
}

/// The folder with the programs of the Python of the clients, and the folders that it needs.
fn python() -> (String, Vec<PathBuf>) {
    let program = interpreter(
        "venv-examples",
        "examples_requirements.txt",
        "import ankaios_sdk, paho.mqtt.client",
    );
    let prefix = Command::new(&program)
        .args(["-c", "import sys; print(sys.base_prefix)"])
        .output();
    let prefix = PathBuf::from(succeeded("python's folder", prefix).trim());
    let programs = program.parent().expect("it is in a folder").to_owned();
    let mut folders = vec![
        programs
            .parent()
            .expect("it is in an environment")
            .to_owned(),
    ];
    if !prefix.starts_with("/usr") {
        folders.push(prefix);
    }
    (programs.display().to_string(), folders)
}

#[test]
fn a_page_shows_what_is_printed() {
    let shown = |text: &str| plain_lines(text.lines());
    let printed = shown("first\nsecond 1.25\n\nthird  4\n");
    assert!(
        is_shown(&shown("first\nsecond 3.00\nthird 4"), &printed)
            && is_shown(&shown("...\nthird 4"), &printed)
    );
    assert!(is_shown(&shown("first\n...\nthird 4\n..."), &printed));
    assert!(
        !is_shown(&shown("first\n...\nthird 5"), &printed) && !is_shown(&shown("first"), &printed)
    );
    assert!(!is_shown(&[], &printed) && !is_shown(&shown("second 1.25\n..."), &printed));
}

#[test]
fn chain_with_readiness() {
    Example::start("chain", Podman::new()).run();
}

#[test]
fn client_in_python() {
    let podman = Podman::new();
    let (path, folders) = python();
    with_image(
        &podman,
        "localhost/example-python:1",
        &source("client-python"),
        &folders,
        &path,
    );
    Example::start("client-python", podman).run();
}

#[test]
fn client_in_rust() {
    let program = rust_program("docs/examples/client-rust", "example-client");
    let podman = Podman::new();
    let folder = program.parent().expect("it is in a folder");
    with_image(&podman, "localhost/example-rust:1", folder, &[], "/bin");
    Example::start("client-rust", podman).run();
}

#[test]
fn files_and_templates() {
    Example::start("files", Podman::new()).run();
}

#[test]
fn first_steps_on_two_nodes() {
    Example::start("first-steps", Podman::new()).run();
}

#[test]
fn tour_of_the_readme_prints_what_it_shows() {
    let page = std::fs::read_to_string(repository("README.md")).expect("it is there");
    let (_, manifest) = page.split_once("```yaml\n").expect("it has a manifest");
    let (manifest, _) = manifest.split_once("```").expect("the manifest ends");
    let example = Example::start("first-steps", Podman::new());
    let file = example.cluster.folder().join("example/demo.yaml");
    std::fs::write(file, manifest).expect("own folder is writable");
    example.run_page(&page);
}

#[test]
fn guarded_updates() {
    Example::start("update", Podman::new()).run();
}

#[test]
fn modes_of_the_vehicle() {
    Example::start("modes", Podman::new()).run();
}

#[test]
fn update_of_what_others_need() {
    Example::start("shared", Podman::new()).run();
}

#[test]
fn mqtt_bridge() {
    if !["/usr/sbin/mosquitto", "/usr/bin/mosquitto"]
        .iter()
        .any(|path| Path::new(path).exists())
    {
        return leave_out(
            "the example with MQTT",
            "'mosquitto' is not installed; `./justw setup` does that",
        );
    }
    // The broker has the port of the page, in a network of its own.
    let Some(podman) = Podman::with_networks() else {
        return;
    };
    let (path, folders) = python();
    with_image(
        &podman,
        "localhost/example-bridge:1",
        &source("mqtt"),
        &folders,
        &path,
    );
    let example = Example::start("mqtt", podman);
    let logs = example.cluster.folder().join("logs");
    let mut broker = Process::start(
        example.command("mosquitto").args(["-p", "1883"]),
        &logs,
        "mosquitto",
    );
    wait_until("the broker runs", || broker.stderr().contains("running"));
    example.run();
    assert!(broker.is_running());
}

#[test]
fn restart_and_liveness() {
    Example::start("restart", Podman::new()).run();
}
