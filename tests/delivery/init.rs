//! The sysvinit scripts with the real programs: start, stop, status and restart, also twice, with a
//! stale pid file, and with settings that are wrong. With Debian's start-stop-daemon and with
//! busybox's, which Yocto images have, as far as they are on this machine.
//!
//! Thread: the test's. Owns: one scratch folder per test, with all that the scripts write, and the
//! program they start.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::process::{Identity, clean_command, write_program};
use crate::support::{leave_out, scratch, wait_until};
use tempfile::TempDir;

/// Where the scripts come from.
const FILES: &str = "cross/package";

/// One script with folders of its own; ends its daemon.
struct Script {
    folder: TempDir,
    service: &'static str,
}

impl Script {
    /// The script of `service` with this start-stop-daemon; `None` when it cannot be tried on this
    /// machine.
    fn new(service: &'static str, daemon: &str) -> Option<Self> {
        if !rustix::process::getuid().is_root() || !Path::new(daemon).exists() {
            leave_out(
                &format!("init scripts with '{daemon}'"),
                "it needs root and that program",
            );
            return None;
        }
        let folder = scratch::folder("init");
        let path = |name: &str| folder.path().join(name);
        for name in ["bin", "run", "var/log", "var/lib"] {
            fs::create_dir_all(path(name)).expect("own folder is writable");
        }
        symlink(daemon, path("bin/start-stop-daemon")).expect("own folder is writable");
        for engine in ["podman", "nerdctl"] {
            write_program(&path("bin").join(engine), "#!/bin/sh\necho '[]'\n");
        }
        let program = if service == "ank-server" {
            env!("CARGO_BIN_EXE_ank-server")
        } else {
            env!("CARGO_BIN_EXE_ank-agent")
        };
        let here = folder.path().display();
        let script = fs::read_to_string(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join(FILES)
                .join(format!("{service}.init")),
        )
        .expect("the script is there")
        .replace("PATH=/usr/sbin", &format!("PATH={here}/bin:/usr/sbin"))
        .replace("DAEMON=/usr/bin/$NAME", &format!("DAEMON={program}"))
        .replace("ankaios:ankaios", "root:root")
        .replace("/run/", &format!("{here}/run/"))
        .replace("/var/", &format!("{here}/var/"));
        fs::write(path("script"), script).expect("own folder is writable");
        Some(Self { folder, service })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, verb: &str) -> Command {
        let socket = format!("unix://{}", self.path("run/ank.sock").display());
        let mut command = clean_command("sh", self.folder.path());
        command.arg(self.path("script")).arg(verb);
        command
            .env("ANKSERVER_ADDRESS", &socket)
            .env("ANKAGENT_SERVER_URL", &socket);
        command
            .env("ANKAGENT_NAME", "agent_A")
            .env("TMPDIR", self.folder.path());
        command
    }

    /// Runs the script. Returns its exit code and its output.
    fn run(&self, verb: &str) -> (Option<i32>, String) {
        Self::end_of(self.command(verb))
    }

    fn end_of(mut command: Command) -> (Option<i32>, String) {
        let output = command.output().expect("there is a shell");
        (
            output.status.code(),
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        )
    }

    fn pid_file(&self) -> PathBuf {
        self.path("run").join(format!("{}.pid", self.service))
    }

    fn pid(&self) -> u32 {
        fs::read_to_string(self.pid_file())
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .expect("there is a pid file")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("var/log").join(format!("{}.log", self.service)))
            .unwrap_or_default()
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.command("stop").stdout(Stdio::null()).status();
    }
}

/// Every script with every start-stop-daemon there is.
fn with_each_script(test: impl Fn(&Script)) {
    for service in ["ank-server", "ank-agent"] {
        for daemon in ["/usr/sbin/start-stop-daemon", "/bin/busybox"] {
            if let Some(script) = Script::new(service, daemon) {
                test(&script);
            }
        }
    }
}

fn said(text: &str) -> (Option<i32>, String) {
    (Some(0), format!("{text}\n"))
}

#[test]
fn init_scripts_start_once_restart_and_stop() {
    with_each_script(|script| {
        let name = script.service;
        assert_eq!(
            script.run("start"),
            said(&format!("Starting {name}")),
            "{}",
            script.log()
        );
        assert_eq!(script.run("status"), said(&format!("{name} running")));
        let first = script.pid();
        let first_process = Identity::of(first);
        assert_eq!(
            script.run("start"),
            said(&format!("{name} is running already"))
        );
        assert_eq!(
            script.pid(),
            first,
            "a second start leaves the first program alone"
        );
        // Its log is in the file, and not in the usual place of a daemon's output.
        wait_until("it logs", || script.log().contains("INFO"));

        assert_eq!(
            script.run("restart"),
            said(&format!("Stopping {name}\nStarting {name}"))
        );
        assert!(!first_process.is_alive());
        let second = Identity::of(script.pid());
        assert!(second.is_alive());

        assert_eq!(script.run("stop"), said(&format!("Stopping {name}")));
        assert!(!second.is_alive() && !script.pid_file().exists());
        assert_eq!(script.run("stop"), said(&format!("{name} is not running")));
        assert_eq!(
            script.run("status"),
            (Some(3), format!("{name} not running\n"))
        );
    });
}

#[test]
fn log_of_a_program_is_bounded_and_keeps_its_end() {
    const LINES: usize = 3000;
    const PIECES: usize = 40;
    with_each_script(|script| {
        let chatty = script.path(script.service);
        let line = "x".repeat(90);
        let program = format!(
            "#!/bin/sh\ntrap 'kill $!; exit' TERM\ni=0\nwhile [ $i -lt {LINES} ]; do i=$((i + 1)); echo $i {line}; done\n\
             sleep 60 &\nwait\n"
        );
        write_program(&chatty, &program);
        let text = fs::read_to_string(script.path("script")).expect("it is there");
        let daemon = text
            .lines()
            .find(|line| line.starts_with("DAEMON="))
            .expect("it names its program");
        let text = text.replace(daemon, &format!("DAEMON={}", chatty.display()));
        let text = text.replace("LOGPIECES=2048", &format!("LOGPIECES={PIECES}"));
        fs::write(script.path("script"), text).expect("own folder is writable");
        assert_eq!(
            script.run("start"),
            said(&format!("Starting {}", script.service)),
            "{}",
            script.log()
        );
        let earlier = script
            .path("var/log")
            .join(format!("{}.log.1", script.service));
        let kept = || fs::read_to_string(&earlier).unwrap_or_default() + &script.log();
        let last = format!("\n{LINES} {line}\n");
        wait_until("the last line is in the log", || kept().ends_with(&last));
        let size = kept().len();
        assert!(
            (PIECES * line.len()..=2 * PIECES * 1024).contains(&size),
            "{size} bytes"
        );
        assert_eq!(script.run("stop").0, Some(0));
        assert!(kept().ends_with(&last), "it is still there");
    });
}

/// A shell that waits for the test to end; its pid is what a killed program's may have become.
struct Stranger(Child);

impl Stranger {
    fn new() -> Self {
        // `exec` keeps a shell from becoming `cat`.
        let shell = Command::new("/bin/sh")
            .args(["-c", "cat; exit"])
            .stdin(Stdio::piped())
            .spawn();
        Self(shell.expect("there is a shell"))
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn init_scripts_start_although_a_stale_pid_is_that_of_a_shell() {
    with_each_script(|script| {
        let mut stranger = Stranger::new();
        let stale = format!("{}\n", stranger.0.id());
        fs::write(script.pid_file(), &stale).expect("own folder is writable");
        assert_eq!(script.run("status").0, Some(3));
        assert_eq!(
            script.run("start"),
            said(&format!("Starting {}", script.service)),
            "{}",
            script.log()
        );
        assert_ne!(script.pid(), stranger.0.id());
        assert_eq!(script.run("stop").0, Some(0));

        fs::write(script.pid_file(), &stale).expect("own folder is writable");
        assert_eq!(
            script.run("stop"),
            said(&format!("{} is not running", script.service))
        );
        assert_eq!(
            stranger.0.try_wait().expect("it can be asked"),
            None,
            "a process of others is left alone"
        );
    });
}

#[test]
fn init_scripts_tell_that_the_program_has_ended_at_once() {
    with_each_script(|script| {
        let mut start = script.command("start");
        start
            .env("ANKSERVER_ADDRESS", "no address")
            .env("ANKAGENT_NAME", "no name");
        let (code, said) = Script::end_of(start);
        assert_eq!(code, Some(1), "{said}");
        assert!(
            said.contains(&format!("{} has ended: see ", script.service)),
            "{said}"
        );
        assert!(
            said.contains("no address") || said.contains("no name"),
            "the reason is shown: {said}"
        );
        assert!(!script.pid_file().exists());
        assert_eq!(script.run("status").0, Some(3));
    });
}

#[test]
fn init_scripts_set_the_limits_of_the_units() {
    with_each_script(|script| {
        assert_eq!(script.run("start").0, Some(0), "{}", script.log());
        let limits = fs::read_to_string(format!("/proc/{}/limits", script.pid())).expect("it runs");
        let limit = |name: &str| {
            let line = limits
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .expect("it is listed");
            line.split_whitespace().next().map(str::to_owned)
        };
        assert_eq!(
            limit("Max core file size").as_deref(),
            Some("0"),
            "{limits}"
        );
        assert_eq!(limit("Max open files").as_deref(), Some("8192"), "{limits}");
    });
}
