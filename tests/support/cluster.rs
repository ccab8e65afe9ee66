//! A cluster of the three real programs: one server, any number of agents, and `ank` to ask them.
//!
//! Thread: the test's. Owns: port, folders, processes, the fake engine. On drop everything is
//! killed; when the test panicked, the logs of all programs are printed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use tempfile::TempDir;

use super::engine::FakeEngine;
use super::manifest::{Workload, manifest};
use super::process::{Process, clean_command, exit_code, is_alive};
use super::proxy::Proxy;
use super::table::{self, Row};
use super::{LIMIT, poll, scratch};

/// Longest run of one `ank` command. It may wait for its server, and then for workloads.
const COMMAND_LIMIT: Duration = Duration::from_secs(2 * LIMIT.as_secs());

/// Logged by an agent that has received something from its server.
const CONNECTED: &str = "Connected to the server.";

/// Lines for each `ank.conf`. A response of the server may take as long as anything in tests.
pub fn ank_config() -> String {
    format!("version = 'v1'\nresponse_timeout = {}\n", LIMIT.as_millis())
}

/// What a finished `ank` printed.
#[derive(Debug, Clone)]
pub struct Output {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    /// The output of a command that must have ended with 0 and without errors.
    #[track_caller]
    pub fn success(self) -> String {
        assert_eq!(
            (self.code, self.stderr.as_str()),
            (0, ""),
            "{}",
            self.stdout
        );
        self.stdout
    }
}

pub struct Cluster {
    folder: TempDir,
    port: u16,
    pub engine: FakeEngine,
    pub server: Option<Process>,
    pub agents: BTreeMap<String, Process>,
    /// Further environment of agents started later, such as the configuration of a real engine.
    pub agent_env: Vec<(String, String)>,
    /// Further environment of servers started later.
    pub server_env: Vec<(String, String)>,
    /// Lines for every `ank-agent.conf` written after this call, below `version`.
    pub agent_config: String,
    /// Lines for every `ank-server.conf` written after this call, below `version`.
    pub server_config: String,
    /// Folder with `ca.pem`, `<program>.pem` and `<program>-key.pem`; without it the programs run
    /// with `--insecure`.
    pub certificates: Option<PathBuf>,
    /// The URL of the server for agents started later, if not its own address.
    pub agent_url: Option<String>,
    /// The run folder of agents started later, if not that of the cluster.
    pub agent_run_folder: Option<PathBuf>,
    /// Words before the command of a program, for example for limits.
    wrappers: BTreeMap<String, Vec<PathBuf>>,
    /// Unix domain socket that all programs use instead of the port.
    socket: Option<PathBuf>,
    /// The words that start a program, if it is not the one that cargo built.
    programs: BTreeMap<String, Vec<PathBuf>>,
    commands: std::cell::Cell<u32>,
}

impl Cluster {
    /// Folders and a fake engine; nothing runs yet.
    pub fn prepare() -> Self {
        let folder = scratch::folder("cluster");
        // The folder of the default file of `ank`.
        let user_config = "home/.config/ankaios";
        for name in [user_config, "run", "logs"] {
            fs::create_dir_all(folder.path().join(name)).expect("own folder is writable");
        }
        let ank_file = folder.path().join(user_config).join("ank.conf");
        fs::write(ank_file, ank_config()).expect("own folder is writable");
        Self {
            folder,
            port: 0,
            engine: FakeEngine::new(),
            server: None,
            agents: BTreeMap::new(),
            agent_env: Vec::new(),
            server_env: Vec::new(),
            agent_config: String::new(),
            server_config: String::new(),
            certificates: None,
            agent_url: None,
            agent_run_folder: None,
            wrappers: BTreeMap::new(),
            socket: None,
            programs: BTreeMap::new(),
            commands: std::cell::Cell::new(0),
        }
    }

    /// A server and connected agents.
    pub fn start(agents: &[&str]) -> Self {
        let mut cluster = Self::prepare();
        cluster.start_all(agents);
        cluster
    }

    /// A server, and `agent_A` behind a proxy.
    pub fn start_behind_proxy() -> (Self, Proxy) {
        let mut cluster = Self::prepare();
        cluster.start_server(&[]);
        let proxy = Proxy::start(&cluster.address());
        cluster.agent_url = Some(proxy.url());
        cluster.start_agent("agent_A");
        cluster.wait_for_agents(&["agent_A"]);
        (cluster, proxy)
    }

    /// As `start`, of a cluster that was only prepared.
    pub fn start_all(&mut self, agents: &[&str]) {
        self.start_server(&[]);
        for name in agents {
            self.start_agent(name);
        }
        self.wait_for_agents(agents);
    }

    /// A server with this startup manifest, and `agent_A`. Returns the path of the manifest, for a
    /// later server.
    pub fn start_with_manifest(&mut self, text: &str) -> String {
        let path = self.write("startup.yaml", text).display().to_string();
        self.start_server(&["--startup-manifest", &path]);
        self.start_agent("agent_A");
        path
    }

    /// Makes programs started later use a Unix domain socket, without certificates and without
    /// `--insecure`.
    pub fn set_socket(&mut self, path: &Path) {
        self.socket = Some(path.to_owned());
        self.port = free_port();
    }

    /// Sets the words that start `program` later: a path, perhaps behind another program.
    pub fn set_program(&mut self, program: &str, words: &[&Path]) {
        let words = words.iter().map(|word| word.to_path_buf()).collect();
        self.programs.insert(program.to_owned(), words);
    }

    /// A command that runs `program` without options.
    fn program(&self, program: &str) -> Command {
        let built = match program {
            "ank-server" => env!("CARGO_BIN_EXE_ank-server"),
            "ank-agent" => env!("CARGO_BIN_EXE_ank-agent"),
            _ => env!("CARGO_BIN_EXE_ank"),
        };
        let mut words = Vec::new();
        if let Some(wrapper) = self.wrappers.get(program) {
            words.extend(wrapper.clone());
        }
        match self.programs.get(program) {
            Some(other) => words.extend(other.clone()),
            None => words.push(built_program(program, built)),
        }
        let mut command = clean_command(&words[0], &self.folder().join("home"));
        command.args(&words[1..]);
        command
    }

    /// Sets the words before the command of `program` when it is started later. They must run the
    /// words after them.
    pub fn set_wrapper(&mut self, program: &str, words: &[&str]) {
        let words = words.iter().map(PathBuf::from).collect();
        self.wrappers.insert(program.to_owned(), words);
    }

    /// The options that protect the connections of `program`.
    fn security(&self, program: &str) -> Vec<String> {
        if self.socket.is_some() {
            return Vec::new();
        }
        let Some(folder) = &self.certificates else {
            return vec!["--insecure".to_owned()];
        };
        let mut options = Vec::new();
        for (option, file) in [
            ("--ca_pem", "ca.pem"),
            ("--crt_pem", &format!("{program}.pem")),
            ("--key_pem", &format!("{program}-key.pem")),
        ] {
            options.push(option.to_owned());
            options.push(folder.join(file).display().to_string());
        }
        options
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn url(&self) -> String {
        if let Some(path) = &self.socket {
            return format!("unix://{}", path.display());
        }
        let scheme = if self.certificates.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Starts a server on a free port and waits until it logs that it listens. A restarted one
    /// keeps its port.
    pub fn start_server(&mut self, arguments: &[&str]) {
        for _ in 0..5 {
            if self.port == 0 {
                self.port = free_port();
            }
            let before = self.starts_in_log();
            let mut server = self.spawn_server(arguments);
            let mut is_running = true;
            let has_result = poll(LIMIT, || {
                is_running = server.is_running();
                let listens = self.starts_in_log() > before;
                (listens || !is_running).then_some(())
            });
            if has_result.is_some() && is_running {
                self.server = Some(server);
                return;
            }
            let log = server.stderr();
            assert!(log.contains("in use"), "the server does not start:\n{log}");
            self.port = 0;
        }
        panic!("no free port found");
    }

    /// Number of lines in the log of the server that it listens. A connection would not show that:
    /// the port could be that of the server of another test.
    fn starts_in_log(&self) -> usize {
        let log = self.folder().join("logs/server.err");
        let text = fs::read_to_string(log).unwrap_or_default();
        text.matches("listens on").count()
    }

    /// Chooses the port of a server that is started later than its agents.
    pub fn reserve_port(&mut self) {
        self.port = free_port();
    }

    /// Starts a server and does not wait until it listens.
    pub fn spawn_server(&self, arguments: &[&str]) -> Process {
        let config = self.write(
            "ank-server.conf",
            &format!("version = \"v1\"\n{}\n", self.server_config),
        );
        let mut command = self.program("ank-server");
        let address = if self.socket.is_some() {
            self.url()
        } else {
            self.address()
        };
        command
            .args(self.security("ank-server"))
            .args(["--address", &address, "--server-config"]);
        command
            .arg(config)
            .args(arguments)
            .envs(self.server_env.iter().cloned());
        Process::start(&mut command, &self.folder().join("logs"), "server")
    }

    pub fn server(&mut self) -> &mut Process {
        self.server.as_mut().expect("the server was started")
    }

    /// SIGKILL to the server; its port stays reserved for the next one.
    pub fn kill_server(&mut self) {
        self.server.take().expect("the server was started").kill();
    }

    /// Starts an agent; does not wait for its connection.
    pub fn start_agent(&mut self, name: &str) {
        let mut command = self.agent_command(name);
        let process = Process::start(&mut command, &self.folder().join("logs"), name);
        self.agents.insert(name.to_owned(), process);
    }

    /// Starts another process with the name, options and environment of an agent.
    pub fn start_rival(&self, name: &str) -> Process {
        Process::start(
            &mut self.agent_command(name),
            &self.folder().join("logs"),
            &format!("{name}-rival"),
        )
    }

    fn agent_command(&self, name: &str) -> Command {
        let config = self.write(
            &format!("{name}.conf"),
            &format!("version = \"v1\"\n{}\n", self.agent_config),
        );
        let mut command = self.program("ank-agent");
        let url = self.agent_url.clone().unwrap_or_else(|| self.url());
        command
            .args(self.security("ank-agent"))
            .args(["--name", name, "--server-url", &url, "--agent-config"])
            .arg(config)
            .arg("--run-folder")
            .arg(self.agent_run_folder.clone().unwrap_or(self.run_folder()))
            .env("FAKE_ENGINE_DIR", self.engine.state())
            .env("ANKAIOS_TEST_PATIENCE", LIMIT.as_secs().to_string())
            // Only the engine: a test that takes it away must not meet the podman of the machine.
            .env("PATH", self.engine.bin())
            .envs(self.agent_env.iter().cloned());
        command
    }

    pub fn run_folder(&self) -> PathBuf {
        self.folder().join("run")
    }

    pub fn agent(&mut self, name: &str) -> &mut Process {
        self.agents.get_mut(name).expect("the agent was started")
    }

    pub fn kill_agent(&mut self, name: &str) {
        self.agents
            .remove(name)
            .expect("the agent was started")
            .kill();
    }

    /// Waits until these agents have a connection. Each must say so itself: the server may still have
    /// that of an earlier process.
    pub fn wait_for_agents(&self, names: &[&str]) {
        self.wait_for(&format!("agents {names:?} are connected"), || {
            for name in names {
                let agent = &self.agents[*name];
                assert!(is_alive(agent.pid()), "agent '{name}' ended by itself");
                if !agent.stderr().contains(CONNECTED) {
                    return None;
                }
            }
            let table = self.ank(&["get", "agents"]).stdout;
            let mut shown = Vec::new();
            for row in table::parse(&table) {
                shown.push(row[0].clone());
            }
            let mut names = names.iter();
            let are_shown = names.all(|name| shown.iter().any(|one| one == name));
            are_shown.then_some(())
        });
    }

    /// Runs `ank` against this cluster.
    pub fn ank(&self, arguments: &[&str]) -> Output {
        self.ank_with_input(arguments, "")
    }

    /// Runs `ank` with `input` on stdin.
    pub fn ank_with_input(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = self.ank_command();
        command.args(arguments);
        self.finish(command, input)
    }

    /// `ank` with the options for this cluster and nothing else.
    pub fn ank_command(&self) -> Command {
        let config = self.write("ank.conf", &ank_config());
        let mut command = self.bare_ank_command();
        command
            .args(self.security("ank"))
            .args(["--server-url", &self.url(), "--ank-config"])
            .arg(config);
        command
    }

    /// Runs `ank` with these options only.
    pub fn bare_ank(&self, arguments: &[&str]) -> Output {
        let mut command = self.bare_ank_command();
        command.args(arguments);
        self.finish(command, "")
    }

    /// `ank` without any option.
    pub fn bare_ank_command(&self) -> Command {
        let mut command = self.program("ank");
        command
            .current_dir(self.folder())
            .env("ANKAIOS_TEST_PATIENCE", LIMIT.as_secs().to_string());
        command
    }

    /// Runs a prepared command to its end.
    pub fn finish(&self, mut command: Command, input: &str) -> Output {
        let number = self.commands.replace(self.commands.get() + 1);
        let folder = self.folder().join("logs");
        let stdin = folder.join(format!("command-{number}.in"));
        fs::write(&stdin, input).expect("own folder is writable");
        command.stdin(File::open(&stdin).expect("just written"));
        let mut process = Process::start(&mut command, &folder, &format!("command-{number}"));
        let Some(status) = process.wait(COMMAND_LIMIT) else {
            panic!(
                "{command:?} runs for more than {COMMAND_LIMIT:?}; it printed:\n{}",
                process.stdout()
            );
        };
        Output {
            code: exit_code(status),
            stdout: process.stdout(),
            stderr: process.stderr(),
        }
    }

    /// Starts `ank` and lets it run, for commands that wait or follow.
    pub fn start_ank(&self, arguments: &[&str]) -> Process {
        let number = self.commands.replace(self.commands.get() + 1);
        let mut command = self.ank_command();
        command.args(arguments);
        Process::start(
            &mut command,
            &self.folder().join("logs"),
            &format!("command-{number}"),
        )
    }

    /// Applies a manifest without waiting for its workloads.
    ///
    /// # Panics
    /// When the server does not accept it, or `ank` warns of anything but an unknown runtime and
    /// restarts by the engine, which some tests want.
    pub fn apply(&self, manifest: &str) {
        let output = self.ank_with_input(&["--no-wait", "apply", "-"], manifest);
        let mut warnings = Vec::new();
        for line in output.stderr.lines() {
            let is_wanted = line.contains(": unknown runtime '")
                || line.contains(" the engine starts the container again ");
            if !is_wanted {
                warnings.push(line);
            }
        }
        assert!(
            output.code == 0 && warnings.is_empty(),
            "apply ends with {}: {warnings:?}\n{manifest}",
            output.code
        );
    }

    /// Applies these workloads and waits until all of them run.
    pub fn run(&self, workloads: &[Workload]) {
        self.apply(&manifest(workloads));
        self.wait_until_run(&workloads.iter().map(Workload::name).collect::<Vec<_>>());
    }

    pub fn delete(&self, workload: &str) {
        self.ank(&["--no-wait", "delete", "workload", workload])
            .success();
    }

    /// Deletes a workload and waits until it is gone.
    pub fn remove(&self, workload: &str) {
        self.delete(workload);
        self.wait_until_gone(workload);
    }

    /// Writes a file into the cluster's folder and returns its path.
    pub fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.folder().join(name);
        // A program that was started before may be reading the file, and must find either the old
        // or the new text. So an equal text is not written, and a new text is moved there.
        if fs::read_to_string(&path).is_ok_and(|text| text == content) {
            return path;
        }
        let temporary = self.folder().join(format!("{name}.new"));
        fs::write(&temporary, content).expect("own folder is writable");
        if let Ok(metadata) = fs::metadata(&path) {
            fs::set_permissions(&temporary, metadata.permissions()).expect("own file");
        }
        fs::rename(&temporary, &path).expect("own folder is writable");
        path
    }

    /// All rows of `ank get workloads`; empty when the server cannot be asked.
    pub fn workloads(&self) -> Vec<Row> {
        table::workloads(&self.ank(&["get", "workloads"]).stdout)
    }

    /// The row of a workload that has one instance. `None` during an update: the row of the old
    /// instance must not be taken for that of the new one.
    pub fn workload(&self, name: &str) -> Option<Row> {
        let mut rows = self.workloads();
        rows.retain(|row| row.name == name);
        if rows.len() != 1 {
            return None;
        }
        rows.pop()
    }

    /// Waits until the only instance of `name` is in `state`, for example `Running(Ok)`.
    pub fn wait_for_state(&self, name: &str, state: &str) -> Row {
        self.wait_for(&format!("'{name}' is {state}"), || {
            let row = self.workload(name)?;
            (row.state == state).then_some(row)
        })
    }

    /// Waits until each of these is `Running(Ok)`.
    pub fn wait_until_run(&self, names: &[impl AsRef<str>]) {
        for name in names {
            self.wait_for_state(name.as_ref(), "Running(Ok)");
        }
    }

    /// Waits until there are `count` workloads and all of them are in `state`.
    pub fn wait_for_all(&self, count: usize, state: &str) {
        self.wait_for(&format!("{count} workloads are {state}"), || {
            let rows = self.workloads();
            (rows.len() == count && rows.iter().all(|row| row.state == state)).then_some(())
        });
    }

    /// Waits until the row of `name` satisfies `condition`.
    pub fn wait_for_row(&self, name: &str, what: &str, condition: impl Fn(&Row) -> bool) -> Row {
        self.wait_for(&format!("'{name}': {what}"), || {
            self.workload(name).filter(|row| condition(row))
        })
    }

    pub fn wait_until_gone(&self, name: &str) {
        self.wait_for(&format!("'{name}' is gone"), || {
            let output = self.ank(&["get", "workloads"]);
            let gone = output.code == 0
                && table::workloads(&output.stdout)
                    .iter()
                    .all(|row| row.name != name);
            gone.then_some(())
        });
    }

    /// Waits until `condition` gives a value.
    ///
    /// # Panics
    /// After `LIMIT`; the workloads as last seen are part of the message, the logs follow on drop.
    pub fn wait_for<T>(&self, what: &str, condition: impl FnMut() -> Option<T>) -> T {
        poll(LIMIT, condition).unwrap_or_else(|| {
            let last = self.ank(&["get", "workloads"]);
            panic!(
                "waited {LIMIT:?} in vain: {what}\n{}{}",
                last.stdout, last.stderr
            );
        })
    }

    // Through the macro, so that it belongs to the output of the failed test.
    #[allow(clippy::print_stderr)]
    fn print_logs(&self) {
        eprintln!("--- calls of the fake engine\n{}", self.engine.tail());
        if let Some(server) = &self.server {
            print_end_of_log("server", server);
        }
        for (name, process) in &self.agents {
            print_end_of_log(name, process);
        }
    }
}

#[allow(clippy::print_stderr)]
fn print_end_of_log(name: &str, process: &Process) {
    // With the output of earlier processes of the same name.
    let log = fs::read(process.stderr_file()).unwrap_or_default();
    let log = String::from_utf8_lossy(&log).into_owned();
    let lines: Vec<&str> = log.lines().collect();
    let end = &lines[lines.len().saturating_sub(150)..];
    eprintln!("--- {name}\n{}", end.join("\n"));
}

/// The program `name`: as cargo built it, or the one in the folder that `ANKAIOS_TEST_PROGRAMS`
/// names.
fn built_program(name: &str, built: &str) -> PathBuf {
    match std::env::var_os("ANKAIOS_TEST_PROGRAMS") {
        Some(folder) if !folder.is_empty() => Path::new(&folder).join(name),
        _ => built.into(),
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_logs();
        }
        // Agents first, so that they do not log a lost server.
        self.agents.clear();
        self.server = None;
    }
}

/// A port without a listener that no other test uses: a server that is started again later finds it
/// free. Each process has hundreds of ports of its own.
pub fn free_port() -> u16 {
    static PORTS: Mutex<OwnPorts> = Mutex::new(OwnPorts::NONE);
    let mut ports = PORTS.lock().expect("it is not poisoned");
    loop {
        let port = ports.take();
        // Programs that are no tests have ports, too.
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// The first port of tests. All are below those that the kernel chooses for connections.
const FIRST_PORT: u16 = 20_000;
const PORTS_OF_LOCK: u16 = 100;
const PORT_LOCKS: u16 = 120;

/// The ports that this process has, by locks of files. They end with the process.
struct OwnPorts {
    locks: Vec<File>,
    next: u16,
    end: u16,
}

impl OwnPorts {
    const NONE: Self = Self {
        locks: Vec::new(),
        next: 0,
        end: 0,
    };

    /// The next port.
    fn take(&mut self) -> u16 {
        if self.next == self.end {
            self.lock_more();
        }
        self.next += 1;
        self.next - 1
    }

    fn lock_more(&mut self) {
        for number in 0..PORT_LOCKS {
            let path = std::env::temp_dir().join(format!("ankl-test-ports-{number}.lock"));
            let file = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(path);
            // Another user may have made it.
            if let Ok(file) = file
                && file.try_lock().is_ok()
            {
                self.locks.push(file);
                self.next = FIRST_PORT + number * PORTS_OF_LOCK;
                self.end = self.next + PORTS_OF_LOCK;
                return;
            }
        }
        panic!("other tests have all ports");
    }
}
