//! One container: a monitor process that records the exit code (as conmon does) and the container's
//! own process.
//!
//! Thread: `main` of the processes `__monitor <id>` and `__container <id>`, each in a session of
//! its own so that they outlive the command and the agent. Every one ends by itself after
//! `LIFETIME_MAX`, or when the engine's folder is gone.

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio, exit};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, setsid};

use crate::script::Script;
use crate::store::{Container, Store, now_ms};

/// No process of the engine lives longer, so that nothing stays behind when a test is killed.
pub const LIFETIME_MAX: Duration = Duration::from_secs(600);
/// Grain of all waiting in the engine.
const TICK: Duration = Duration::from_millis(10);

/// How a container behaves, named by its image:
/// `run`, `exit<code>`, each with any of `:after=<n>ms`, `:ignore-term`.
pub struct Behaviour {
    /// `None`: runs until it is stopped.
    exit_code: Option<i32>,
    /// Time until the exit.
    after: Duration,
    /// SIGTERM is ignored, as by a process 1 without a handler.
    ignore_term: bool,
    pub text: String,
}

impl Behaviour {
    /// `None` for any other image: it does not exist.
    pub fn parse(image: &str) -> Option<Self> {
        let mut parts = image.split(':');
        let exit_code = match parts.next()? {
            "run" => None,
            word => Some(word.strip_prefix("exit")?.parse().ok()?),
        };
        let mut behaviour = Self {
            exit_code,
            after: Duration::ZERO,
            ignore_term: false,
            text: image.to_owned(),
        };
        for part in parts {
            match part.split_once('=') {
                Some(("after", time)) => behaviour.after = milliseconds(time)?,
                None if part == "ignore-term" => behaviour.ignore_term = true,
                None if part == "latest" || part.starts_with('v') => {}
                _ => return None,
            }
        }
        Some(behaviour)
    }
}

fn milliseconds(text: &str) -> Option<Duration> {
    text.strip_suffix("ms")?
        .parse()
        .ok()
        .map(Duration::from_millis)
}

pub fn pause() {
    std::thread::sleep(TICK);
}

/// Starts the monitor of a container and waits until it reports that the container runs.
pub fn launch(store: &Store, id: &str) -> Result<(), String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let mut monitor = Command::new(program)
        .args(["__monitor", id])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let line = wait_for_line(monitor.stdout.take());
    match line.strip_prefix("Error: ") {
        Some(error) => Err(error.to_owned()),
        None if line == "running" => Ok(()),
        None => Err(format!(
            "the monitor of {} ended early",
            store.path(id).display()
        )),
    }
}

/// The first line a child writes; empty when it ended without one.
fn wait_for_line(output: Option<ChildStdout>) -> String {
    let mut line = String::new();
    if let Some(output) = output {
        let _ = BufReader::new(output).read_line(&mut line);
    }
    line.trim().to_owned()
}

/// Process `__monitor`: starts the container, waits for its end and records the exit code.
pub fn monitor(store: &Store, id: &str) {
    let _ = setsid();
    let Some(container) = store.read(id) else {
        return;
    };
    let Some(behaviour) = Behaviour::parse(&container.behaviour) else {
        return;
    };
    let Ok(program) = env::current_exe() else {
        return;
    };
    // An ignored signal stays ignored over exec, so the shell does what std cannot.
    let shell = if behaviour.ignore_term {
        "trap '' TERM; exec \"$0\" \"$@\""
    } else {
        "exec \"$0\" \"$@\""
    };
    let child = Command::new("/bin/sh")
        .args(["-c", shell])
        .arg(program)
        .args(["__container", id])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return };
    // It runs when it says so: from then on a signal meets the disposition set above.
    wait_for_line(child.stdout.take());
    store.change(id, |container| {
        container.state = "running".to_owned();
        container.exit_code = 0;
        container.pid = child.id();
        container.pid_begin = begin_of(child.id()).unwrap_or(0);
        container.started = now_ms() / 1000;
    });
    if let Err(error) = write_pid(&container.pid_file, child.id()) {
        let _ = child.kill();
        say(&format!("Error: runc create failed: {error}"));
        return;
    }
    say("running");

    let Ok(status) = child.wait() else { return };
    let until = Instant::now() + Script::load(store).exit_record_delay();
    while Instant::now() < until {
        pause();
    }
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(255);
    let removal_delay = Script::load(store).removal_delay();
    if container.removes_itself && removal_delay.is_zero() {
        store.remove(id);
        return;
    }
    store.change(id, |container| {
        container.state = "exited".to_owned();
        container.exit_code = i64::from(code);
        container.exited = i64::try_from(now_ms() / 1000).unwrap_or(i64::MAX);
        container.pid = 0;
    });
    if container.removes_itself {
        let until = Instant::now() + removal_delay;
        while Instant::now() < until {
            pause();
        }
        store.remove(id);
    }
}

/// Writes the pid of the container to its file, as runc does: first to a file beside it, which must
/// not be there, and stays if it cannot be written.
fn write_pid(pid_file: &str, pid: u32) -> Result<(), String> {
    if pid_file.is_empty() {
        return Ok(());
    }
    let path = Path::new(pid_file);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}"));
    let failed = |error: std::io::Error| format!("open {}: {error}", temporary.display());
    let mut file = fs::File::create_new(&temporary).map_err(failed)?;
    file.write_all(pid.to_string().as_bytes()).map_err(failed)?;
    fs::rename(&temporary, path).map_err(failed)
}

/// Prints a line for the parent. The parent may be gone: the command was killed and the container
/// continues to run, as with the real engine.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
    let _ = std::io::stdout().flush();
}

/// Process `__container`: lives as its image says, or until the test orders its end in
/// `finish/<workload>`.
pub fn live(store: &Store, id: &str) -> ! {
    let Some(container) = store.read(id) else {
        exit(255)
    };
    let Some(behaviour) = Behaviour::parse(&container.behaviour) else {
        exit(255)
    };
    let words = if container.command.is_empty() {
        String::new()
    } else {
        container.command.join(" ") + "\n"
    };
    let _ = fs::write(store.log_file(id), words);
    say("begun");
    let order = store
        .path("finish")
        .join(container.workload().unwrap_or_default());
    // A thousand containers that look a hundred times a second would change the measurement.
    let tick = env::var("FAKE_ENGINE_ORDER_TICK")
        .ok()
        .and_then(|text| milliseconds(&text))
        .unwrap_or(TICK);
    let begin = Instant::now();
    while begin.elapsed() < LIFETIME_MAX && !store.is_gone() {
        if let Some(code) = behaviour.exit_code
            && begin.elapsed() >= behaviour.after
        {
            exit(code);
        }
        if let Ok(code) = fs::read_to_string(&order) {
            let _ = fs::remove_file(&order);
            exit(code.trim().parse().unwrap_or(255));
        }
        std::thread::sleep(tick);
    }
    exit(255)
}

/// SIGTERM, then SIGKILL after the container's stop timeout, as podman does.
pub fn stop(store: &Store, id: &str, seconds: Option<u64>) -> Result<(), (i32, String)> {
    let Some(container) = store.read(id) else {
        return Ok(());
    };
    if container.state == "paused" {
        let reason = "is running or paused, refusing to clean up: container state improper";
        return Err((125, format!("container {id} {reason}")));
    }
    let limit = Duration::from_secs(seconds.unwrap_or(container.stop_seconds));
    if !limit.is_zero() && signal(&container, Signal::TERM) {
        let begin = Instant::now();
        while begin.elapsed() < limit && runs(store, id) {
            pause();
        }
    }
    kill(store, id)
}

/// SIGKILL, and waits until the exit is recorded.
pub fn kill(store: &Store, id: &str) -> Result<(), (i32, String)> {
    let Some(container) = store.read(id) else {
        return Ok(());
    };
    signal(&container, Signal::KILL);
    let begin = Instant::now();
    while runs(store, id) && !store.is_gone() {
        if begin.elapsed() > LIFETIME_MAX {
            return Err((125, format!("the end of container {id} was not recorded")));
        }
        pause();
    }
    Ok(())
}

/// Pauses a container, or lets it continue.
pub fn set_paused(store: &Store, id: &str, paused: bool) -> Result<(), (i32, String)> {
    let (from, to, sent) = if paused {
        ("running", "paused", Signal::STOP)
    } else {
        ("paused", "running", Signal::CONT)
    };
    let mut fits = false;
    store.change(id, |container| {
        fits = container.state == from;
        if fits {
            to.clone_into(&mut container.state);
            signal(container, sent);
        }
    });
    if fits {
        Ok(())
    } else {
        Err((
            125,
            format!("container {id} is not {from}: container state improper"),
        ))
    }
}

fn runs(store: &Store, id: &str) -> bool {
    store
        .read(id)
        .is_some_and(|container| container.is_active())
}

/// Sends a signal to the process of a container. Returns whether it was sent. The process may have
/// ended without a record of that yet, and its pid may be that of another task now, such as a
/// thread of the agent. So the time is compared at which the process began.
fn signal(container: &Container, signal: Signal) -> bool {
    let Some(pid) = i32::try_from(container.pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
        return false;
    };
    begin_of(container.pid) == Some(container.pid_begin)
        && pidfd_send_signal(process, signal).is_ok()
}

/// When a process began, field 22 of proc(5). The name of the process may contain anything, so the
/// fields are counted from the end of the name.
fn begin_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')')
        .next()?
        .split_whitespace()
        .nth(19)?
        .parse()
        .ok()
}
