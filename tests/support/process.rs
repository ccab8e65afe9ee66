//! A child process of a test: output in files, signals by pid, killed and waited for on drop.
//!
//! Thread: the test's. Owns: the child and its output files' paths.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Once};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::poll;

pub struct Process {
    child: Child,
    stdout: OutputFile,
    stderr: OutputFile,
    status: Option<ExitStatus>,
}

/// A file to which a process appends. Processes of the same name before it may have done so, too.
struct OutputFile {
    path: PathBuf,
    /// Bytes of the processes before.
    begin: u64,
}

impl OutputFile {
    fn new(path: PathBuf) -> Self {
        let begin = fs::metadata(&path).map_or(0, |metadata| metadata.len());
        Self { path, begin }
    }

    fn open(&self) -> File {
        let file = File::options().create(true).append(true).open(&self.path);
        file.expect("test folder is writable")
    }

    /// The text that was written since the process was started.
    fn text(&self) -> String {
        let bytes = fs::read(&self.path).unwrap_or_default();
        let begin = usize::try_from(self.begin).expect("a short file");
        let own = bytes.get(begin..).unwrap_or_default();
        String::from_utf8_lossy(own).into_owned()
    }
}

impl Process {
    /// Starts `command` with stdout and stderr in `<folder>/<name>.out` and `.err`; both are
    /// appended to.
    pub fn start(command: &mut Command, folder: &Path, name: &str) -> Self {
        stop_ignoring_signals();
        let stdout = OutputFile::new(folder.join(format!("{name}.out")));
        let stderr = OutputFile::new(folder.join(format!("{name}.err")));
        command.stdout(stdout.open()).stderr(stderr.open());
        let child = match command.spawn() {
            Ok(child) => child,
            Err(error) => panic!("cannot start {:?}: {error}", command.get_program()),
        };
        Self {
            child,
            stdout,
            stderr,
            status: None,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        assert!(
            send_signal(self.pid(), signal),
            "process {} is gone",
            self.pid()
        );
    }

    pub fn is_running(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("own child can be waited for");
        }
        self.status.is_none()
    }

    /// Waits for the end; `None` after `limit`.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        poll(limit, || {
            self.is_running();
            self.status
        })
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        if self.is_running() {
            let _ = self.child.kill();
            self.status = self.child.wait().ok();
        }
    }

    /// The output of this process. That of an earlier one with the same name is left out, so that no
    /// test takes it for the output of this one.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// The file with its errors, and with those of earlier processes of the same name.
    pub fn stderr_file(&self) -> &Path {
        &self.stderr.path
    }
}

/// Makes the signals of a terminal end the processes that tests start. A shell that runs the tests in
/// the background ignores some of these signals, and children inherit that.
fn stop_ignoring_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // A signal that has a handler here has none in a child, and is not ignored there.
        let always = Arc::new(AtomicBool::new(true));
        for signal in [Signal::INT, Signal::QUIT, Signal::HUP] {
            let code = 128 + signal.as_raw();
            let handled = signal_hook::flag::register_conditional_shutdown(
                signal.as_raw(),
                code,
                always.clone(),
            );
            handled.expect("this signal can be handled");
        }
    });
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Exit code as a shell shows it: 128 + signal for a killed process.
pub fn exit_code(status: ExitStatus) -> i32 {
    if let Some(code) = status.code() {
        return code;
    }
    128 + status.signal().expect("the process ended")
}

/// Sends a signal. Returns false if there is no such process.
pub fn send_signal(pid: u32, signal: Signal) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    kill_process(pid, signal).is_ok()
}

/// A process that existed when this was made. On a busy machine another one soon has its pid.
#[derive(Debug)]
pub struct Identity {
    pub pid: u32,
    /// Clock ticks from the boot to its start, as the kernel writes them.
    started: Option<String>,
}

impl Identity {
    pub fn of(pid: u32) -> Self {
        Self {
            pid,
            started: start_of(pid),
        }
    }

    /// True while it exists and is not a zombie.
    pub fn is_alive(&self) -> bool {
        self.started.is_some() && self.started == start_of(self.pid) && is_alive(self.pid)
    }
}

/// The fields of `/proc/<pid>/stat` behind the name of the process, which may contain anything. The
/// state is the first one.
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

fn start_of(pid: u32) -> Option<String> {
    stat_fields(pid)?.get(19).cloned()
}

/// True while `pid` exists and is not a zombie.
pub fn is_alive(pid: u32) -> bool {
    process_state(pid).is_some_and(|state| state != 'Z')
}

/// The state letter of a process.
pub fn process_state(pid: u32) -> Option<char> {
    stat_fields(pid)?.first()?.chars().next()
}

/// The arguments with which a process was started; empty for a zombie.
pub fn arguments_of(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).into_owned();
    let mut words: Vec<String> = line.split('\0').map(str::to_owned).collect();
    words.pop(); // Each word has an end.
    words.drain(..1.min(words.len())); // The program.
    words
}

/// Direct children of `pid`, zombies included.
pub fn children(pid: u32) -> Vec<u32> {
    let mut children = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc is mounted").flatten() {
        let name = entry.file_name();
        // Other entries are no processes.
        if let Ok(child) = name.to_string_lossy().parse()
            && parent(child) == Some(pid)
        {
            children.push(child);
        }
    }
    children
}

fn parent(pid: u32) -> Option<u32> {
    stat_fields(pid)?.get(1)?.parse().ok()
}

/// Whether an ended child of `pid` was not waited for.
pub fn has_zombies(pid: u32) -> bool {
    let mut children = children(pid).into_iter();
    children.any(|child| process_state(child) == Some('Z'))
}

/// Most memory the process ever had, in KiB.
pub fn memory_peak_kib(pid: u32) -> u64 {
    memory_kib(pid, "VmHWM:")
}

/// The line `name` of `/proc/<pid>/status`, a size in KiB.
pub fn memory_kib(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix(name));
    let value = value.expect("the kernel counts it").trim();
    let number = value.trim_end_matches("kB").trim();
    number.parse().expect("a number")
}

/// Number of open file descriptors of a process.
pub fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("the process runs")
        .count()
}

/// CPU ticks that a process has used, each a hundredth of a second.
pub fn cpu_ticks(pid: u32) -> u64 {
    let fields = stat_fields(pid).expect("the process runs");
    let user: u64 = fields[11].parse().expect("a number");
    let system: u64 = fields[12].parse().expect("a number");
    user + system
}

/// Names of all threads of `pid`.
pub fn thread_names(pid: u32) -> Vec<String> {
    let mut names = Vec::new();
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return names;
    };
    for task in tasks.flatten() {
        // The thread may have ended meanwhile.
        if let Ok(name) = fs::read_to_string(task.path().join("comm")) {
            names.push(name.trim().to_owned());
        }
    }
    names
}

/// The threads that our programs start themselves.
///
/// gRPC starts and ends threads of its own as it needs them. Their number has a bound here, so that
/// it cannot grow without end.
pub fn own_threads(pid: u32) -> Vec<String> {
    const OF_GRPC: [&str; 5] = [
        "default-executo",
        "event_engine",
        "grpc_global_tim",
        "resolver-execut",
        "timer_manager",
    ];
    const OF_GRPC_MAX: usize = 16;
    let mut of_grpc = Vec::new();
    let mut own = Vec::new();
    for name in thread_names(pid) {
        if OF_GRPC.contains(&name.as_str()) {
            of_grpc.push(name);
        } else {
            own.push(name);
        }
    }
    assert!(of_grpc.len() <= OF_GRPC_MAX, "{of_grpc:?}");
    own
}

/// A command without anything from the environment that our programs would read.
pub fn clean_command(program: impl AsRef<OsStr>, home: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let ours = [
            "ANK",
            "RUST_LOG",
            "NOTIFY_SOCKET",
            "WATCHDOG",
            "COMPLETE",
            "CONTAINER",
            "XDG_",
            "TMPDIR",
        ];
        if ours.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command.env("HOME", home).stdin(Stdio::null());
    command
}

/// Puts an executable script at `path`, without the risk of [`copy_program`].
#[allow(dead_code)] // Not each test program writes one.
pub fn write_program(path: &Path, text: &str) {
    let written = path.with_extension("text");
    fs::write(&written, text).expect("own folder is writable");
    copy_program(&written, path);
    fs::remove_file(&written).expect("own file");
}

/// Copies a program with another process. If the test wrote it itself, a process that another test
/// starts at this moment could hold the file open, and it could not be executed ("text file busy").
pub fn copy_program(from: &Path, to: &Path) {
    let output = Command::new("install")
        .args(["-m", "755"])
        .arg(from)
        .arg(to)
        .output()
        .expect("'install' starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
