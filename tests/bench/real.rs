//! A server, an agent called `bench` and `ank` on real podman, in a store of their own.
//!
//! Thread: `main` of the bench. Owns: the store, the processes, the folder with settings, manifests
//! and what the containers share. All of it goes on drop.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::store::Podman;
use crate::support::cluster::free_port;
use crate::support::process::{Process, clean_command, write_program};
use crate::support::{poll, wait_until};

/// Wait for an agent or server that ends on SIGTERM; one that hangs is killed.
const END_LIMIT: Duration = Duration::from_secs(5);

pub struct Real {
    folder: TempDir,
    programs: PathBuf,
    store: Podman,
    port: u16,
    server: Option<Process>,
    agent: Option<Process>,
    /// Whether agents started later write each of their calls of podman into a file.
    pub counts_calls: bool,
}

/// Seconds since 1970.
pub fn now() -> f64 {
    seconds_of(SystemTime::now())
}

fn seconds_of(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .expect("the clock of this machine is set")
        .as_secs_f64()
}

impl Real {
    /// An empty store and folders; nothing runs yet.
    pub fn new(programs: &Path) -> Self {
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        for name in ["run", "logs", "shared", "home", "counting"] {
            fs::create_dir(folder.path().join(name)).expect("own folder is writable");
        }
        let podman = Command::new("sh")
            .args(["-c", "command -v podman"])
            .output();
        let podman = podman.expect("a shell is there").stdout;
        let real = Self {
            programs: programs.to_owned(),
            store: Podman::new(),
            port: 0,
            server: None,
            agent: None,
            counts_calls: false,
            folder,
        };
        let counting = format!(
            "#!/bin/sh\necho \"$*\" >>{}\nexec {} \"$@\"\n",
            real.calls_file().display(),
            String::from_utf8_lossy(&podman).trim()
        );
        write_program(&real.path("counting").join("podman"), &counting);
        real
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn calls_file(&self) -> PathBuf {
        self.path("calls")
    }

    /// The calls of podman that agents have made while they were counted.
    pub fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.calls_file()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub fn forget_calls(&self) {
        let _ = fs::remove_file(self.calls_file());
    }

    /// A file of this name with this text; returns its path.
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, text).expect("own folder is writable");
        path.display().to_string()
    }

    // ----------------------------------------------------------------- processes

    /// Starts a server and an agent with these lines in their settings.
    pub fn start(&mut self, server: &str, agent: &str) {
        self.write("ank-agent.conf", &format!("version = \"v1\"\n{agent}\n"));
        self.start_server(server);
        self.start_agent();
    }

    fn start_server(&mut self, settings: &str) {
        let settings = self.write(
            "ank-server.conf",
            &format!("version = \"v1\"\n{settings}\n"),
        );
        for _ in 0..5 {
            self.port = free_port();
            let mut command = self.program("ank-server");
            command.args([
                "--insecure",
                "--address",
                &format!("127.0.0.1:{}", self.port),
            ]);
            command.args(["--server-config", &settings]);
            let mut server = Process::start(&mut command, &self.path("logs"), "server");
            wait_until("the server responds or has ended", || {
                self.try_ank(&["get", "agents"]).is_ok() || !server.is_running()
            });
            if server.is_running() {
                self.server = Some(server);
                return;
            }
            // Another process may have taken the port.
        }
        panic!(
            "ank-server does not start, see {}",
            self.path("logs").display()
        );
    }

    pub fn start_agent(&mut self) {
        let mut command = self.program("ank-agent");
        command.args(["--insecure", "--name", "bench", "--server-url", &self.url()]);
        command.arg("--run-folder").arg(self.path("run"));
        command
            .arg("--agent-config")
            .arg(self.path("ank-agent.conf"));
        command.envs(self.store.environment());
        if self.counts_calls {
            let path = std::env::var("PATH").expect("PATH is set");
            command.env(
                "PATH",
                format!("{}:{path}", self.path("counting").display()),
            );
        }
        self.agent = Some(Process::start(&mut command, &self.path("logs"), "bench"));
        wait_until("the agent is connected", || {
            let agents = self.try_ank(&["get", "agents"]).unwrap_or_default();
            agents.lines().any(|line| line.starts_with("bench "))
        });
    }

    pub fn stop_agent(&mut self) {
        end(self.agent.take());
    }

    /// Ends both, and removes all containers with their shared files.
    pub fn stop(&mut self) {
        self.stop_agent();
        end(self.server.take());
        self.remove_containers();
        for name in ["run", "shared"] {
            let _ = fs::remove_dir_all(self.path(name));
            fs::create_dir(self.path(name)).expect("own folder is writable");
        }
    }

    pub fn agent_pid(&self) -> u32 {
        self.agent.as_ref().expect("the agent runs").pid()
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn program(&self, name: &str) -> Command {
        clean_command(self.programs.join(name), &self.path("home"))
    }

    // ----------------------------------------------------------------------- ank

    pub fn ank_command(&self, arguments: &[&str]) -> Command {
        let mut command = self.program("ank");
        command
            .args(["--insecure", "--server-url", &self.url()])
            .args(arguments);
        command
    }

    fn try_ank(&self, arguments: &[&str]) -> Result<String, String> {
        output(&mut self.ank_command(arguments))
    }

    /// What `ank` prints.
    ///
    /// # Panics
    /// When it fails.
    pub fn ank(&self, arguments: &[&str]) -> String {
        match self.try_ank(arguments) {
            Ok(printed) => printed,
            Err(error) => panic!("ank {arguments:?}: {error}"),
        }
    }

    /// Seconds that `ank` takes as a whole process.
    pub fn ank_time(&self, arguments: &[&str]) -> f64 {
        let begin = now();
        self.ank(arguments);
        now() - begin
    }

    /// How many lines of `ank get workloads` contain `text`.
    pub fn workloads_with(&self, text: &str) -> usize {
        let table = self.ank(&["get", "workloads"]);
        table.lines().filter(|line| line.contains(text)).count()
    }

    pub fn wait_for_workloads(&self, count: usize, text: &str) {
        wait_until(&format!("{count} workloads have '{text}'"), || {
            self.workloads_with(text) >= count
        });
    }

    /// Applies a manifest and waits until all its workloads run.
    pub fn apply(&self, file: &str, workloads: usize) {
        self.ank(&["--quiet", "apply", file]);
        let running = self.workloads_with("Running(Ok)");
        assert_eq!(running, workloads, "not all workloads run");
    }

    // -------------------------------------------------------------------- podman

    pub fn podman(&self, arguments: &[&str]) -> String {
        self.store.run(arguments)
    }

    pub fn podman_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("podman");
        command.args(arguments).envs(self.store.environment());
        command
    }

    /// Whether podman succeeds with these arguments on this machine.
    pub fn podman_can(&self, arguments: &[&str]) -> bool {
        output(&mut self.podman_command(arguments)).is_ok()
    }

    pub fn remove_containers(&self) {
        self.podman(&["rm", "--all", "--force", "--time", "0"]);
    }

    /// Names and ids of the containers of workloads.
    fn containers(&self) -> BTreeMap<String, String> {
        let format = "{{.Names}} {{.ID}}";
        let listed = self.podman(&["ps", "--all", "--filter", "label=name", "--format", format]);
        let pairs = listed.lines().filter_map(|line| line.split_once(' '));
        pairs
            .map(|(name, id)| (name.to_owned(), id.to_owned()))
            .collect()
    }

    /// The id of the container of a workload.
    fn container(&self, workload: &str) -> String {
        let prefix = format!("{workload}.");
        let containers = self.containers();
        let found = containers
            .iter()
            .find(|(name, _)| name.starts_with(&prefix));
        let (_, id) = found.unwrap_or_else(|| panic!("'{workload}' has no container"));
        id.clone()
    }

    /// A time of a container, in seconds since 1970: `StartedAt` or `FinishedAt`.
    pub fn time_of(&self, container: &str, what: &str) -> f64 {
        let format = format!("{{{{.State.{what}.UnixNano}}}}");
        let printed = self.podman(&["inspect", "--format", &format, container]);
        let nanoseconds: f64 = printed.trim().parse().expect("podman prints a number");
        nanoseconds / 1e9
    }

    /// When the container of a workload started.
    pub fn started(&self, workload: &str) -> f64 {
        self.time_of(&self.container(workload), "StartedAt")
    }

    /// When the container of a workload ended.
    pub fn finished(&self, workload: &str) -> f64 {
        self.time_of(&self.container(workload), "FinishedAt")
    }

    // -------------------------------------------------------------- shared files

    /// When a file that the containers share was changed last.
    pub fn changed(&self, name: &str) -> f64 {
        let data = fs::metadata(self.path("shared").join(name)).expect("the file is there");
        seconds_of(data.modified().expect("each file has a time"))
    }

    pub fn wait_for_file(&self, name: &str) {
        let path = self.path("shared").join(name);
        wait_until(&format!("'{name}' is made"), || path.exists());
    }

    pub fn remove_file(&self, name: &str) {
        let _ = fs::remove_file(self.path("shared").join(name));
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        end(self.agent.take());
        end(self.server.take());
    }
}

fn end(process: Option<Process>) {
    let Some(mut process) = process else { return };
    if process.is_running() {
        process.signal(Signal::TERM);
        let _ = poll(END_LIMIT, || (!process.is_running()).then_some(()));
    }
    process.kill();
}

/// What a command printed, or its errors when it failed.
pub fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
